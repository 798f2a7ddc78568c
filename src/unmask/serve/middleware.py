"""What every request passes through: metrics and security headers, CORS, limits and authentication."""

from __future__ import annotations

import hashlib
import hmac
import logging
import time
from collections.abc import Sequence

from starlette.datastructures import Headers
from starlette.middleware.cors import CORSMiddleware
from starlette.responses import Response
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from .engine import Engine
from .http import refused
from .limits import Limits, Refusal
from .openapi import POSTS

log = logging.getLogger("unmask.serve")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; base-uri 'none'; "
    "form-action 'none'; frame-ancestors 'none'"
)
SECURITY = [
    (b"content-security-policy", POLICY.encode()),
    (b"x-content-type-options", b"nosniff"),
    (b"x-frame-options", b"DENY"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-opener-policy", b"same-origin"),
    (b"cross-origin-resource-policy", b"same-origin"),
    (b"permissions-policy", b"camera=(), geolocation=(), microphone=()"),
]
OPEN = (
    "/",
    "/health",
    "/openapi.json",
    "/docs",
    "/favicon.ico",
)  # and the files of the page: nothing in them is private


class MetricsMiddleware:
    """What holds for every answer: security headers, metrics, and no error that reveals internals."""

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self.app, self.metrics = app, engine.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass the request on, and count it."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                present = {name.lower() for name, _ in message.get("headers", [])}
                extra = [pair for pair in SECURITY if pair[0] not in present]
                if b"cache-control" not in present:
                    extra.append((b"cache-control", b"no-store"))
                message = {**message, "headers": [*message.get("headers", []), *extra]}
            await send(message)

        try:
            await self.app(scope, receive, guarded)
        except Exception:
            log.exception("a request failed")
            if not status:
                failed = Refusal(500, "the server failed on this request", "server_error")
                await refused(failed)(scope, receive, guarded)
        finally:
            path = _known(scope)
            seconds = time.monotonic() - begun
            code = str(status or 499)  # 499: the client has disconnected
            self.metrics.requests.labels(path=path, method=_method(scope), code=code).inc()
            self.metrics.seconds.labels(path=path).observe(seconds)
            log.info("%s %s %s %.3f s", _method(scope), path, code, seconds)


class AuthMiddleware:
    """Who may send requests: limits of connections and header lines, the host name, the API key.

    Starlette's TrustedHostMiddleware would answer 400 in plain text, and redirect to names with www.
    """

    def __init__(self, app: ASGIApp, engine: Engine, api_key: str | None, hosts: Sequence[str] | None) -> None:
        self.app, self.limits = app, engine.limits
        self.key = None if api_key is None else _digest(api_key.encode())
        self.hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, and pass it on."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        await (self.app if refusal is None else refused(refusal))(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        headers = Headers(scope=scope)
        if len(getattr(scope["app"].state, "connections", ())) > self.limits.connections:
            return Refusal(503, "the server has too many connections; try again later", "server_error", retry_after=1)
        if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > self.limits.header:
            return headers_too_long(self.limits)
        if self.hosts is not None:
            host = headers.get("host", "").lower()
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if name not in self.hosts:
                return Refusal(421, "this server is not known under that host name; see --allow-host")
        path = scope["path"]
        if self.key is None or path in OPEN or path.startswith("/page/"):
            return None
        scheme, _, key = headers.get("authorization", "").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(key.strip(" \t").encode("latin-1")), self.key):
            return None
        return Refusal(
            401,
            "a valid API key is needed: send the header Authorization: Bearer KEY",
            "authentication_error",
            code="invalid_api_key",
        )


class CorsMiddleware(CORSMiddleware):
    """CORS as in Starlette, except that a refused preflight gets the same error body as every refusal."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """The answer to a browser that asks whether a page may send a request."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        return refused(Refusal(400, "pages of this origin may not send this request; see --cors"))


def headers_too_long(limits: Limits) -> Refusal:
    """The refusal of a request whose header lines are too long."""
    return Refusal(431, f"the header lines are longer than the {limits.header} bytes that this server accepts")


def _digest(key: bytes) -> bytes:
    """A digest: it has the same length for every key, so that the time of a comparison reveals nothing."""
    return hashlib.sha256(key).digest()


def _known(scope: Scope) -> str:
    """The path if it is one of ours: anyone can invent others, and each would stay in the metrics forever."""
    path = str(scope["path"])
    if path.startswith("/page/"):
        return "/page"
    if path.startswith("/v1/models"):
        return "/v1/models"
    return path if path in (*OPEN, "/metrics", *POSTS) else "other"


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in ("GET", "POST", "HEAD", "OPTIONS") else "other"
