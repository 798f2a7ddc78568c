"""The application: routes, and the gate that every request goes through."""

from __future__ import annotations

import contextlib
import hashlib
import hmac
import logging
import time
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.datastructures import Headers
from starlette.middleware import Middleware
from starlette.middleware.cors import CORSMiddleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import ASGIApp, Message, Receive, Scope, Send

from ..version import __version__
from .api import Service, endpoint
from .engine import Engine
from .http import answer, dumps, header, refused
from .limits import Refusal
from .metrics import memory
from .openapi import document
from .page import assets

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
LOOPBACK = ("localhost", "127.0.0.1", "[::1]")


def make_app(
    engine: Engine,
    *,
    api_key: str | None = None,
    cors: Sequence[str] = (),
    hosts: Sequence[str] | None = LOOPBACK,
    log_prompts: bool = False,
) -> Starlette:
    """The application of an engine; it starts and stops with it.

    `hosts` are the names under which it may be reached (None: any): a name that somebody else's page made up for this
    machine's own address is not among them.
    """
    service = Service(engine, log_prompts)
    page = _page()
    open_api = dumps(document([card["id"] for card in service.models], engine.limits))

    @contextlib.asynccontextmanager
    async def lifespan(_app: Starlette) -> AsyncIterator[None]:
        engine.start()
        yield
        engine.stop()
        service.close()

    async def health(_request: Request) -> Response:
        if not engine.alive or engine.draining:
            return answer({"status": "stopping"}, 503)
        return answer({"status": "ok", "version": __version__, "models": len(service.models)})

    async def models(_request: Request) -> Response:
        return answer(service.list_models())

    async def model(request: Request) -> Response:
        try:
            return answer(service.one_model(request.path_params["name"]))
        except Refusal as refusal:
            return refused(refusal)

    async def metrics(_request: Request) -> Response:
        return Response(engine.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(_request: Request) -> Response:
        return Response(open_api, media_type="application/json")

    async def index(request: Request) -> Response:
        return _file(page, "index.html", request)

    async def page_file(request: Request) -> Response:
        return _file(page, request.path_params["name"], request)

    async def icon(_request: Request) -> Response:
        return Response(status_code=204)

    routes = [
        Route("/", index, methods=["GET"]),
        Route("/page/{name}", page_file, methods=["GET"]),
        Route("/favicon.ico", icon, methods=["GET"]),
        Route("/health", health, methods=["GET"]),
        Route("/metrics", metrics, methods=["GET"]),
        Route("/openapi.json", openapi, methods=["GET"]),
        Route("/v1/models", models, methods=["GET"]),
        Route("/v1/models/{name:path}", model, methods=["GET"]),
        *(Route(f"/v1/{name}", _Raw(endpoint(getattr(service, name))), methods=["POST"])
          for name in ("diffusion", "infill", "completions", "score", "tokenize")),
    ]  # fmt: skip
    engine.metrics.watch("process_resident_memory_bytes", "Memory of this process.", memory)
    middleware = [Middleware(Gate, engine=engine, api_key=api_key, hosts=hosts)]
    if cors:
        middleware.append(Middleware(
            _Cors, allow_origins=list(cors), allow_methods=["GET", "POST"],
            allow_headers=["Authorization", "Content-Type"],
        ))  # fmt: skip
    app = Starlette(routes=routes, middleware=middleware, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.service = service
    return app


class _Raw:
    """An endpoint that speaks ASGI itself; Starlette tells functions and objects apart."""

    def __init__(self, call: Any) -> None:
        self.call = call

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        await self.call(scope, receive, send)


class Gate:
    """What holds for every request: who may ask, what every answer carries, that no error tells of the server."""

    def __init__(self, app: ASGIApp, engine: Engine, api_key: str | None, hosts: Sequence[str] | None) -> None:
        self.app, self.metrics, self.most = app, engine.metrics, engine.limits.connections
        self.key = None if api_key is None else _digest(api_key.encode())
        self.hosts = None if hosts is None else {host.lower() for host in hosts}

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check, pass on, count."""
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
            refusal = self._refusal(scope)
            if refusal is not None:
                await refused(refusal)(scope, receive, guarded)
            else:
                await self._pass(scope, receive, guarded)
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
        if len(getattr(scope["app"].state, "connections", ())) > self.most:
            return Refusal(503, "the server has too many connections; try again later", "server_error", retry_after=1)
        if self.hosts is not None:
            host = header(scope, b"host").lower()
            name = host.rpartition(":")[0] if host.rpartition(":")[2].isdecimal() else host
            if name not in self.hosts:
                return Refusal(421, "this server is not known under that host name; see --allow-host")
        path = scope["path"]
        if self.key is None or path in OPEN or path.startswith("/page/") or _preflight(scope):
            return None
        scheme, _, given = header(scope, b"authorization").partition(" ")
        if scheme.lower() == "bearer" and hmac.compare_digest(_digest(given.strip(" \t").encode("latin-1")), self.key):
            return None
        return Refusal(
            401, "a valid API key is needed: send the header Authorization: Bearer KEY", "authentication_error",
            code="invalid_api_key",
        )  # fmt: skip


def _preflight(scope: Scope) -> bool:
    """Whether a browser asks if another page may ask: it sends no key with that, and gets nothing but the answer."""
    return scope["method"] == "OPTIONS" and header(scope, b"access-control-request-method") != ""


class _Cors(CORSMiddleware):
    """Whose refusals are like all others."""

    def preflight_response(self, request_headers: Headers) -> Response:
        response = super().preflight_response(request_headers)
        if response.status_code == 200:
            return response
        return refused(Refusal(400, "pages of this origin may not ask in this way; see --cors"))


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


# -- the page --------------------------------------------------------------------------------------------------------


def _page() -> dict[str, tuple[bytes, str, str]]:
    """The files of the page by name, read once: (content, kind, tag). Nothing else is ever opened."""
    return {
        name: (asset.body, asset.media, f'"{hashlib.sha256(asset.body).hexdigest()[:32]}"')
        for name, asset in assets().items()
    }


def _file(page: dict[str, tuple[bytes, str, str]], name: str, request: Request) -> Response:
    if name not in page:
        return refused(Refusal(404, "there is nothing at this path; /openapi.json lists what there is"))
    content, kind, tag = page[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
