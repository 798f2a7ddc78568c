"""What every request goes through: the gate (what each answer carries, counting), CORS, the door (who may ask)."""

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
from .http import header, refused
from .limits import Limits, Refusal

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
OPEN = ("/", "/health", "/openapi.json", "/favicon.ico")  # and the page's files: they hold nothing of anybody


class MetricsMiddleware:
    """What holds for every answer: the headers it carries, that it is counted, that no error tells of the server."""

    def __init__(self, app: ASGIApp, engine: Engine) -> None:
        self.app, self.metrics = app, engine.metrics

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and count."""
        if scope["type"] != "http":
            if scope["type"] == "lifespan":
                await self.app(scope, receive, send)
            return
        begun, status = time.monotonic(), 0

        async def guarded(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                own = {name.lower() for name, _ in message.get("headers", [])}
                extra = [pair for pair in SECURITY if pair[0] not in own]
                if b"cache-control" not in own:
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
            self.metrics.requests.add(path=path, method=_method(scope), code=str(status or 499))  # 499: it went away
            self.metrics.seconds.observe(seconds, path=path)
            log.info("%s %s %s %.3f s", _method(scope), path, status or 499, seconds)


class AuthMiddleware:
    """Who may ask, and in what way."""

    def __init__(self, app: ASGIApp, engine: Engine, api_key: str | None, hosts: Sequence[str] | None) -> None:
        self.app, self.limits = app, engine.limits
        self.key = None if api_key is None else _digest(api_key.encode())
        self.hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, and pass on."""
        refusal = self._refusal(scope) if scope["type"] == "http" else None
        if refusal is not None:
            await refused(refusal)(scope, receive, send)
        else:
            await self._pass(scope, receive, send)

    async def _pass(self, scope: Scope, receive: Receive, send: Send) -> None:
        """The application; what it says of paths and methods that it does not know becomes a sentence."""
        held: Refusal | None = None

        async def sentences(message: Message) -> None:
            nonlocal held
            if message["type"] == "http.response.start" and message["status"] in (404, 405):
                kind = dict(message.get("headers", [])).get(b"content-type", b"")
                if not kind.startswith(b"application/json"):
                    allow = dict(message["headers"]).get(b"allow", b"").decode() or None
                    said = "there is nothing at this path; /openapi.json lists what there is"
                    if message["status"] == 405:
                        said = f"this path takes {allow or 'another method'} only"
                    held = Refusal(message["status"], said, code="not_found" if allow is None else None, allow=allow)
            if held is None:
                await send(message)

        await self.app(scope, receive, sentences)
        if held is not None:
            await refused(held)(scope, receive, send)

    def _refusal(self, scope: Scope) -> Refusal | None:
        if len(getattr(scope["app"].state, "connections", ())) > self.limits.connections:
            return Refusal(503, "the server has too many connections; try again later", "server_error", retry_after=1)
        if sum(len(name) + len(value) + 4 for name, value in scope["headers"]) > self.limits.header:
            return too_long(self.limits)
        if self.hosts is not None:
            host = header(scope, b"host").lower()
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if name not in self.hosts:
                return Refusal(421, "this server is not known under that host name; see --allow-host")
        path = scope["path"]
        if self.key is None or path in OPEN or path.startswith("/page/"):
            return None
        scheme, _, given = header(scope, b"authorization").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(given.strip(" \t").encode("latin-1")), self.key):
            return None
        return Refusal(
            401,
            "a valid API key is needed: send the header Authorization: Bearer KEY",
            "authentication_error",
            code="invalid_api_key",
        )


class CorsMiddleware(CORSMiddleware):
    """Pages of other origins; a refusal is like all others."""

    def preflight_response(self, request_headers: Headers) -> Response:
        """What a browser is told that asks whether a page may ask."""
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        return refused(Refusal(400, "pages of this origin may not ask in this way; see --cors"))


def too_long(limits: Limits) -> Refusal:
    """Too much before the body."""
    return Refusal(431, f"the header lines are longer than the {limits.header} bytes that this server takes")


def _digest(key: bytes) -> bytes:
    """Of one length, whatever the key: comparing tells nothing."""
    return hashlib.sha256(key).digest()


def _known(scope: Scope) -> str:
    """The path if it is one of ours: anybody can make up others, and each would be a line of the metrics for ever."""
    path = str(scope["path"])
    if path.startswith("/page/"):
        return "/page"
    if path.startswith("/v1/models"):
        return "/v1/models"
    known = (*OPEN, "/metrics", "/v1/diffusion", "/v1/infill", "/v1/completions", "/v1/score", "/v1/tokenize")
    return path if path in known else "other"


def _method(scope: Scope) -> str:
    method = str(scope["method"])
    return method if method in ("GET", "POST", "HEAD", "OPTIONS") else "other"
