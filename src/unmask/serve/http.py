"""Between ASGI and the endpoints: bodies with a limit and a deadline, JSON, event streams, clients that disconnect.

Starlette does the rest. Neither FastAPI nor sse-starlette would save code: FastAPI reads a body of any size and at any
pace before it calls an endpoint, and accepts NaN as a number; sse-starlette cuts streams off when the server stops, and
would replace only `EventStream`.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any, TypeVar

from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.types import Receive, Scope, Send

from ..jsonable import to_json
from .limits import Limits, Refusal

T = TypeVar("T")
DRAINED = 64_000_000  # bytes that are still read, and thrown away, of a body that is too large
KEEP_ALIVE = 15.0  # seconds after which a silent stream sends a comment


def answer(value: Any, status: int = 200, headers: dict[str, str] | None = None) -> Response:
    """A JSON document."""
    return Response(to_json(value), status, headers, "application/json")


class LingeringResponse(Response):
    """A response to a client that is still sending: the body is read for a while, so that the response arrives."""

    linger = 0.0  # seconds

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send the response, discard what arrives, and close."""
        await send({"type": "http.response.start", "status": self.status_code, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": bytes(self.body), "more_body": True})
        left = DRAINED
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(self.linger):
                while left > 0:
                    message = await receive()
                    left -= len(message.get("body", b""))
                    if message["type"] == "http.disconnect" or not message.get("more_body", False):
                        break
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def refused(refusal: Refusal) -> Response:
    """The response that says why a request was refused."""
    headers: dict[str, str] = {}
    if refusal.retry_after is not None:
        headers["Retry-After"] = str(refusal.retry_after)
    if refusal.allow is not None:
        headers["Allow"] = refusal.allow
    if refusal.status == 401:
        headers["WWW-Authenticate"] = "Bearer"
    if refusal.status in (408, 413, 421, 431, 503):
        headers["Connection"] = "close"  # the rest of the body is not read, and no further request is taken
    if refusal.linger is None:
        return answer(refusal.body(), refusal.status, headers)
    response = LingeringResponse(to_json(refusal.body()), refusal.status, headers, "application/json")
    response.linger = refusal.linger
    return response


async def read_body(request: Request, limits: Limits, hold: Callable[[int], None] = lambda _: None) -> bytes:
    """The body, if it is JSON, not too large and not too slow; `hold` hears of each part, and may refuse it."""
    kind = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if kind != "application/json":  # this also keeps out forms of other pages, which need no permission to post text
        raise Refusal(415, "send the body as JSON, with the header Content-Type: application/json")
    if request.headers.get("content-encoding", "") not in ("", "identity"):
        raise Refusal(415, "send the body as it is, without Content-Encoding")
    stated = request.headers.get("content-length", "")
    too_large = Refusal(
        413, f"the body is larger than the {limits.body} bytes that this server accepts", linger=limits.linger
    )
    if stated.isdecimal() and int(stated[:20]) > limits.body:
        raise too_large
    body = bytearray()
    try:
        async with asyncio.timeout(limits.read_timeout):
            async for part in request.stream():
                if len(body) + len(part) > limits.body:
                    raise too_large
                hold(len(part))
                body += part
    except TimeoutError:
        raise Refusal(408, f"the body did not arrive within {limits.read_timeout:g} seconds") from None
    return bytes(body)


async def while_connected(receive: Receive, result: Awaitable[T]) -> T:
    """Await a result, unless the client disconnects first."""

    async def disconnected() -> None:
        while (await receive())["type"] != "http.disconnect":
            pass

    task, watch = asyncio.ensure_future(result), asyncio.ensure_future(disconnected())
    try:
        await asyncio.wait({task, watch}, return_when=asyncio.FIRST_COMPLETED)
        if not task.done():
            raise ClientDisconnect
        return task.result()
    finally:
        for future in (task, watch):
            future.cancel()
            with contextlib.suppress(BaseException):
                await future


class EventStream(StreamingResponse):
    """Server-sent events; ends when the client disconnects or has not read everything by the deadline."""

    media_type = "text/event-stream"

    def __init__(self, events: AsyncIterator[str], seconds: float, close: Callable[[], None]) -> None:
        super().__init__(events, headers={"Cache-Control": "no-cache", "X-Accel-Buffering": "no"})
        self.seconds, self.close = seconds, close

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Send all events."""
        try:
            with contextlib.suppress(ClientDisconnect, OSError, TimeoutError):
                async with asyncio.timeout(self.seconds):
                    await while_connected(receive, self.stream_response(send))
        finally:
            self.close()


def event(data: Any, name: str | None = None) -> str:
    """One server-sent event; compact JSON has no line breaks."""
    return (f"event: {name}\n" if name else "") + f"data: {data if isinstance(data, str) else to_json(data)}\n\n"
