"""A running server: uvicorn with our limits, and a shutdown that lets running requests finish."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import socket
import sys
from collections.abc import Callable
from http import HTTPStatus
from typing import Any

import h11
import uvicorn
from starlette.applications import Starlette
from uvicorn.protocols.http.h11_impl import H11Protocol

from ..errors import UserError
from .engine import Engine
from .http import refused
from .limits import Limits, Refusal
from .middleware import headers_too_long

log = logging.getLogger("unmask.serve")


def bind(host: str, port: int) -> socket.socket:
    """A listening socket; an address that cannot be used is a user error."""
    try:
        kind, _, _, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        sock = socket.socket(kind, socket.SOCK_STREAM)
    except (OSError, OverflowError, UnicodeError):
        raise UserError(f"there is no address {host} to listen on; give --host 127.0.0.1") from None
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        sock.bind(address)
        sock.listen(2048)
    except OSError as error:
        sock.close()
        why = (error.strerror or "it cannot be used").lower()
        raise UserError(f"cannot listen on {host}:{port} ({why}); give another --port or --host") from None
    sock.setblocking(False)
    return sock


def protocol(limits: Limits) -> type[H11Protocol]:
    """HTTP with deadlines, and with an answer even to what is not HTTP.

    The connection is closed for a client that sends its header lines too slowly, that goes on sending the body of a
    request which was answered without it, or that does not read its answer. A client that is still sending when it is
    refused gets the refusal: its bytes are discarded for a second, since closing at once would discard the answer.
    """

    class TimedProtocol(H11Protocol):
        _read_timer: asyncio.TimerHandle | None = None
        _write_timer: asyncio.TimerHandle | None = None
        _refused = False

        def connection_made(self, transport: Any) -> None:
            super().connection_made(transport)
            self._start_read_timer()

        def data_received(self, data: bytes) -> None:
            if self._refused:
                return
            if self.conn.their_state is h11.IDLE:
                self._start_read_timer()
            super().data_received(data)
            if self.conn.their_state is not h11.IDLE and not self._late_body() and not self._refused:
                self._stop_read_timer()

        def on_response_complete(self) -> None:
            super().on_response_complete()
            if self._late_body():
                self._start_read_timer()

        def pause_writing(self) -> None:
            super().pause_writing()
            self._write_timer = self.loop.call_later(limits.timeout, self.transport.abort)

        def resume_writing(self) -> None:
            super().resume_writing()
            self._stop_write_timer()

        def send_400_response(self, msg: str) -> None:
            self._stop_read_timer()
            if self._refused or self.transport.is_closing():
                return
            if self.cycle is not None and not self.cycle.response_complete:
                if self.cycle.response_started:  # an answer is already being sent
                    self.transport.close()
                    return
                self.cycle.waiting_for_100_continue = False
                self.cycle.disconnected = True  # whoever waits for the body gets a disconnect
                self.cycle.message_event.set()
            status = getattr(sys.exc_info()[1], "error_status_hint", 400)
            self._refused = True
            self.transport.write(_refusal(431 if status == 431 else 400, limits))
            with contextlib.suppress(OSError):  # the client may have gone
                self.transport.write_eof()
            self._read_timer = self.loop.call_later(limits.linger, self._close_now)

        def connection_lost(self, exc: Exception | None) -> None:
            self._stop_read_timer()
            self._stop_write_timer()
            super().connection_lost(exc)

        def _late_body(self) -> bool:
            """Whether the client is still sending the body of a request that has its answer."""
            return self.conn.their_state is h11.SEND_BODY and self.cycle is not None and self.cycle.response_complete

        def _start_read_timer(self) -> None:
            if self._read_timer is None:
                self._read_timer = self.loop.call_later(limits.read_timeout, self._close_now)

        def _stop_write_timer(self) -> None:
            if self._write_timer is not None:
                self._write_timer.cancel()
                self._write_timer = None

        def _stop_read_timer(self) -> None:
            if self._read_timer is not None:
                self._read_timer.cancel()
                self._read_timer = None

        def _close_now(self) -> None:
            self._read_timer = None
            if self.transport is not None and not self.transport.is_closing():
                self.transport.close()

    return TimedProtocol


def _refusal(status: int, limits: Limits) -> bytes:
    """The whole answer to bytes that cannot be read as a request."""
    response = refused(headers_too_long(limits) if status == 431 else Refusal(status, "this is not an HTTP request"))
    lines = [f"HTTP/1.1 {status} {HTTPStatus(status).phrase}", "connection: close", "x-content-type-options: nosniff"]
    lines += [f"{name.decode()}: {value.decode()}" for name, value in response.raw_headers if name != b"connection"]
    return "\r\n".join([*lines, "", ""]).encode() + bytes(response.body)


class Server(uvicorn.Server):
    """A server that, when it stops, takes no more requests and ends those that do not finish in time."""

    def __init__(self, app: Starlette, engine: Engine) -> None:
        limits = engine.limits
        config = uvicorn.Config(
            app,
            http=protocol(limits),
            ws="none",
            lifespan="on",
            log_config=None,
            log_level="error",  # not a line for everyone who sends nonsense
            access_log=False,
            server_header=False,
            proxy_headers=False,
            h11_max_incomplete_event_size=limits.header,
            timeout_keep_alive=15,
            timeout_graceful_shutdown=int(limits.grace) + 5,
        )
        super().__init__(config)
        self.engine = engine
        app.state.connections = self.server_state.connections  # AuthMiddleware counts them

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """Let running requests finish for a while, then end them."""
        self.engine.draining = True
        loop = asyncio.get_running_loop()
        end = loop.call_later(
            self.engine.limits.grace, self.engine.fail, "the server is shutting down; try another one"
        )
        try:
            await super().shutdown(sockets)
        finally:
            end.cancel()


def serve(app: Starlette, engine: Engine, sock: socket.socket, ready: Callable[[], object] = lambda: None) -> None:
    """Serve until a signal arrives."""
    server = Server(app, engine)
    ready()
    server.run([sock])
