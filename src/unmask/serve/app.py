"""The application: its routes, and the files of the page."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.middleware import Middleware
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from ..version import __version__
from .api import Service, endpoint
from .engine import Engine
from .http import answer, dumps, refused
from .limits import Refusal
from .middleware import AuthMiddleware, CorsMiddleware, MetricsMiddleware
from .monitoring import memory
from .openapi import document
from .page import assets

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
        *(
            Route(f"/v1/{name}", _Raw(endpoint(getattr(service, name))), methods=["POST"])
            for name in ("diffusion", "infill", "completions", "score", "tokenize")
        ),
    ]
    engine.metrics.watch("process_resident_memory_bytes", "Memory of this process.", memory)
    middleware = [Middleware(MetricsMiddleware, engine=engine)]
    if cors:
        middleware.append(
            Middleware(
                CorsMiddleware,
                allow_origins=list(cors),
                allow_methods=["GET", "POST"],
                allow_headers=["Authorization", "Content-Type"],
                expose_headers=["Retry-After"],
            )
        )
    middleware.append(Middleware(AuthMiddleware, engine=engine, api_key=api_key, hosts=hosts))
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
