"""The application: its routes, its error answers, and the files of the page."""

from __future__ import annotations

import contextlib
import hashlib
from collections.abc import AsyncIterator, Sequence
from typing import Any

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.middleware import Middleware
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response
from starlette.routing import Route

from ..errors import UserError, nearest
from ..jsonable import to_json
from ..sampling.params import settings_on
from ..version import __version__
from .api import Service
from .api_page import api_page
from .engine import Engine
from .http import answer, refused
from .limits import Refusal
from .middleware import AuthMiddleware, CorsMiddleware, MetricsMiddleware
from .openapi import GETS, POSTS, document
from .page import assets

LOOPBACK = ("localhost", "127.0.0.1", "[::1]")
NOTHING = "there is nothing at this path{hint}; /docs lists what there is"
INSTEAD = {  # paths of other servers, and what does the same here
    "/v1/responses": "send the messages to /v1/chat/completions, or the text so far as prompt to /v1/completions",
    "/v1/messages": "send the messages to /v1/chat/completions, or the text so far as prompt to /v1/completions",
    "/v1/embeddings": "this server makes no embeddings; the command unmask embed does, for DNA models",
    "/generate": "send the text as prompt to /v1/completions, or a text with gaps to /v1/infill",
}


def make_app(
    engine: Engine,
    *,
    api_key: str | None = None,
    cors: Sequence[str] = (),
    hosts: Sequence[str] | None = LOOPBACK,
    log_prompts: bool = False,
) -> Starlette:
    """The application of an engine; the engine starts and stops with it.

    `hosts` are the host names that clients may use (None: any). This keeps out foreign pages whose host name points to
    the address of this machine (DNS rebinding).
    """
    service = Service(engine, log_prompts)
    page = _page()
    blocks = any(lm.model.writes_blocks for lm in engine.lms.values())
    useless = [name for name, spec in settings_on("http").items() if spec.needs == "blocks" and not blocks]
    described = document([card["id"] for card in service.models], engine.limits, useless)
    open_api, reference = to_json(described), api_page(described)

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

    async def metrics(_request: Request) -> Response:
        return Response(engine.metrics.render(), media_type="text/plain; version=0.0.4; charset=utf-8")

    async def openapi(_request: Request) -> Response:
        return Response(open_api, media_type="application/json")

    async def docs(_request: Request) -> Response:
        return Response(reference, media_type="text/html; charset=utf-8")

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
        Route("/docs", docs, methods=["GET"]),
        Route("/v1/models", service.list_models, methods=["GET"]),
        Route("/v1/models/{name:path}", service.model_card, methods=["GET"]),
        Route("/v1/diffusion", service.holding(service.diffusion), methods=["POST"]),
        Route("/v1/infill", service.holding(service.infill), methods=["POST"]),
        Route("/v1/completions", service.holding(service.completions), methods=["POST"]),
        Route("/v1/chat/completions", service.holding(service.chat_completions), methods=["POST"]),
        Route("/v1/score", service.holding(service.score), methods=["POST"]),
        Route("/v1/marginals", service.holding(service.marginals), methods=["POST"]),
        Route("/v1/choose", service.holding(service.choose), methods=["POST"]),
        Route("/v1/tokenize", service.holding(service.tokenize), methods=["POST"]),
    ]
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
    app = Starlette(routes=routes, middleware=middleware, exception_handlers=HANDLERS, lifespan=lifespan)
    app.router.redirect_slashes = False
    app.state.service = service
    return app


# -- exceptions that are answers -------------------------------------------------------------------------------------


async def _on_refusal(_request: Request, refusal: Exception) -> Response:
    assert isinstance(refusal, Refusal)
    return refused(refusal)


async def _on_user_error(_request: Request, error: Exception) -> Response:
    return refused(Refusal(400, str(error)))


async def _on_http_error(request: Request, error: Exception) -> Response:
    """A path or a method that the router does not know."""
    assert isinstance(error, HTTPException)
    if error.status_code == 405:
        allow = (error.headers or {}).get("Allow")
        return refused(Refusal(405, f"this path accepts {allow} only", allow=allow))
    return refused(nothing_at(request))


def nothing_at(request: Request) -> Refusal:
    """The refusal of a path that does not exist: what to use instead, or the path that may have been meant."""
    path = request.url.path.rstrip("/")[:100]
    if path in INSTEAD:
        return Refusal(404, INSTEAD[path], code="not_found")
    return Refusal(404, NOTHING.format(hint=nearest(path, [*POSTS, *GETS])), code="not_found")


async def _on_disconnect(_request: Request, _error: Exception) -> None:
    """There is no client left to answer."""


HANDLERS: dict[Any, Any] = {
    Refusal: _on_refusal,
    UserError: _on_user_error,
    HTTPException: _on_http_error,
    ClientDisconnect: _on_disconnect,
}


# -- the page --------------------------------------------------------------------------------------------------------


def _page() -> dict[str, tuple[bytes, str, str]]:
    """The files of the page by name, read once: (content, media type, tag). No other file is ever opened."""
    return {
        name: (asset.body, asset.media, f'"{hashlib.sha256(asset.body).hexdigest()[:32]}"')
        for name, asset in assets().items()
    }


def _file(page: dict[str, tuple[bytes, str, str]], name: str, request: Request) -> Response:
    if name not in page:
        return refused(nothing_at(request))
    content, kind, tag = page[name]
    headers = {"ETag": tag, "Cache-Control": "no-cache"}
    if request.headers.get("if-none-match") == tag:
        return Response(status_code=304, headers=headers)
    return Response(content, headers=headers, media_type=kind)
