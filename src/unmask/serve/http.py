"""Between ASGI and the answers: bodies with a limit and a deadline, JSON, event streams, clients that go away."""

from __future__ import annotations

import asyncio
import contextlib
import json
import math
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from .limits import Limits, Refusal

T = TypeVar("T")
THROWN = 64_000_000  # bytes of a body that is too large
QUIET = 15.0  # seconds after which a stream says that it is still there


def finite(value: Any) -> Any:
    """The same with null for what JSON has no word for."""
    if isinstance(value, dict):
        return {str(key): finite(own) for key, own in value.items()}
    if isinstance(value, list | tuple):
        return [finite(own) for own in value]
    return None if isinstance(value, float) and not math.isfinite(value) else value


def dumps(value: Any) -> str:
    """JSON in ASCII: no text in it can break a line of an event stream."""
    return json.dumps(finite(value), separators=(",", ":"), allow_nan=False)


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON document."""
    return Response(dumps(value), status, headers, "application/json")


def refused(refusal: Refusal) -> Response:
    """The answer that a refusal is."""
    headers: dict[str, str] = {}
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(refusal.retry_after)
    if refusal.allow is not None:
        headers["Allow"] = refusal.allow
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if refusal.status in (408, 413, 421, 431, 503):
        headers["Connection"] = "close"  # what is left of the body is not read, and nothing more is taken
    return answer(refusal.body(), refusal.status, headers)


def header(scope: Scope, name: bytes) -> str:
    """A header line, or nothing."""
    return next((value.decode("latin-1") for key, value in scope["headers"] if key == name), "")


async def read_body(scope: Scope, receive: Receive, limits: Limits) -> bytes:
    """The body, if it is JSON, not too large and not too slow."""
    kind = header(scope, b"content-type").partition(";")[0].strip().lower()
    if kind != "application/json":  # also keeps forms of other pages out, which need no permission to post text
        raise Refusal(415, "send the body as JSON, with the header Content-Type: application/json")
    if header(scope, b"content-encoding") not in ("", "identity"):
        raise Refusal(415, "send the body as it is, without Content-Encoding")
    stated = header(scope, b"content-length")
    if stated.isdecimal() and int(stated[:20]) > limits.body:
        raise _too_large(limits)
    parts: list[bytes] = []
    size, more = 0, True
    try:
        async with asyncio.timeout(limits.read_timeout):
            while more:
                message = await receive()
                if message["type"] == "http.disconnect":
                    raise ClientDisconnect
                size += len(message.get("body", b""))
                if size > limits.body:
                    raise _too_large(limits)
                parts.append(message.get("body", b""))
                more = message.get("more_body", False)
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {limits.read_timeout:g} seconds") from None
    return b"".join(parts)


def _too_large(limits: Limits) -> Refusal:
    return Refusal(413, f"the body is larger than the {limits.body} bytes that this server takes")


async def send_whole(response: Response, scope: Scope, receive: Receive, send: Send) -> None:
    """Send an answer to somebody who still sends: what comes is thrown away for a while, so that it gets the answer."""
    start = {"type": "http.response.start", "status": response.status_code, "headers": response.raw_headers}
    await send(start)
    await send({"type": "http.response.body", "body": bytes(response.body), "more_body": True})
    left = THROWN
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(1.0):
            while left > 0:
                message = await receive()
                left -= len(message.get("body", b""))
                if message["type"] == "http.disconnect" or not message.get("more_body", False):
                    break
    await send({"type": "http.response.body", "body": b"", "more_body": False})


async def gone(receive: Receive) -> None:
    """Returns when the client has gone away."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def while_there(receive: Receive, work: Awaitable[T]) -> T:
    """The result of some work, unless the client goes away first."""
    task, left = asyncio.ensure_future(work), asyncio.ensure_future(gone(receive))
    try:
        await asyncio.wait({task, left}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for one in (task, left):
            one.cancel()
            with contextlib.suppress(BaseException):
                await one


class EventStream:
    """An answer of server-sent events. A client that is gone, or does not read until the deadline, ends it."""

    def __init__(self, events: AsyncIterator[str], seconds: float, close: Callable[[], None]) -> None:
        self.events, self.seconds, self.close = events, seconds, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send until the end."""
        try:
            with contextlib.suppress(ClientDisconnect, OSError, TimeoutError):
                async with asyncio.timeout(self.seconds):
                    await while_there(receive, self._send(send))
        finally:
            self.close()

    async def _send(self, send: Send) -> None:
        headers = [
            (b"content-type", b"text/event-stream; charset=utf-8"),
            (b"cache-control", b"no-store"),
            (b"x-accel-buffering", b"no"),
        ]
        await send({"type": "http.response.start", "status": 200, "headers": headers})
        async for text in self.events:
            await send({"type": "http.response.body", "body": text.encode(), "more_body": True})
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def event(data: Any, name: str | None = None) -> str:
    """One server-sent event."""
    return (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else dumps(data)}\n\n"
