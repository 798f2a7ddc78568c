"""The OpenAPI document, generated from the models of the bodies."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from typing import Any

from pydantic import BaseModel
from pydantic.json_schema import models_json_schema

from ..version import __version__
from .limits import Limits
from .schema import (
    ChatBody,
    ChooseBody,
    ClientBody,
    CompletionBody,
    DiffusionBody,
    InfillBody,
    MarginalsBody,
    ScoreBody,
    TokenizeBody,
)

ERRORS = {
    400: "Something in the request is wrong; the message says what.",
    401: "A valid API key is needed.",
    404: "There is no such model.",
    408: "The body came too slowly, or the request took too long.",
    413: "The body is too large.",
    415: "The body must be JSON.",
    421: "The server does not answer to this host name.",
    429: "The queue is full; Retry-After says when to try again.",
    503: "The server is shutting down, or has too many connections.",
}
POSTS: dict[str, tuple[type[BaseModel], str, str, str]] = {
    "/v1/diffusion": (
        DiffusionBody, "Write text, and send every step as a server-sent event.", "text/event-stream",
        "Events: start, step (what changed), done (of each sample), end; or error.",
    ),
    "/v1/infill": (InfillBody, "Fill gaps, or write around a prompt and a suffix.", "application/json", "Samples."),
    "/v1/completions": (
        CompletionBody, "Write text, as OpenAI's clients ask for it.", "application/json",
        "A completion; with stream, events of chunks that are never taken back.",
    ),
    "/v1/chat/completions": (
        ChatBody, "Answer a conversation, as OpenAI's clients ask for it.", "application/json",
        "A message; with stream, events of chunks that are never taken back.",
    ),
    "/v1/score": (ScoreBody, "How likely texts are, token by token.", "application/json", "Likelihoods."),
    "/v1/marginals": (
        MarginalsBody, "The model's distribution at every open position of a text; nothing is written.",
        "application/json", "The most likely tokens of each position, their probabilities, and its entropy.",
    ),
    "/v1/choose": (
        ChooseBody, "How probable each of several texts is in a gap; nothing is written.", "application/json",
        "The choices in their order, with probabilities that sum to 1.",
    ),
    "/v1/tokenize": (TokenizeBody, "The tokens of a text.", "application/json", "Ids and pieces."),
}  # fmt: skip
GETS = {
    "/docs": ("This document as a page.", "text/html"),
    "/health": ("Whether the server is healthy.", "application/json"),
    "/metrics": ("Metrics in Prometheus' text format.", "text/plain"),
    "/openapi.json": ("This document.", "application/json"),
    "/v1/models": ("The models that are served.", "application/json"),
}


def document(models: Sequence[str], limits: Limits, useless: Collection[str] = ()) -> dict[str, Any]:
    """The whole document, with the models and the limits of this server, and without settings that are useless here."""
    kinds = [kind for kind, *_ in POSTS.values()]
    _, schemas = models_json_schema(
        [(kind, "validation") for kind in kinds], ref_template="#/components/schemas/{model}"
    )
    _narrow(schemas.get("$defs", {}), models, limits, useless)
    paths: dict[str, Any] = {path: {"get": _get(path)} for path in GETS}
    for path, (kind, summary, media, what) in POSTS.items():
        content: dict[str, Any] = {media: {"schema": {"type": "string"} if media != "application/json" else _any()}}
        if issubclass(kind, ClientBody):
            content["text/event-stream"] = {"schema": {"type": "string"}}
        body = {"schema": {"$ref": f"#/components/schemas/{kind.__name__}"}}
        paths[path] = {
            "post": {
                "summary": summary,
                "operationId": path.removeprefix("/v1/").replace("/", "_"),
                "requestBody": {"required": True, "content": {"application/json": body}},
                "responses": {"200": {"description": what, "content": content}} | _errors(ERRORS),
                "security": [{}, {"key": []}],
            }
        }
    paths["/v1/models/{name}"] = {
        "get": {
            "summary": "One model.",
            "operationId": "model",
            "parameters": [
                {"name": "name", "in": "path", "required": True, "schema": {"type": "string", "examples": list(models)}}
            ],
            "responses": {"200": {"description": "The model.", "content": {"application/json": {"schema": _any()}}}}
            | _errors({code: ERRORS[code] for code in (401, 404, 421)}),
            "security": [{}, {"key": []}],
        }
    }
    error = {
        "type": "object", "required": ["error"],
        "properties": {"error": {
            "type": "object", "required": ["message", "type", "param", "code"],
            "properties": {"message": {"type": "string"}, "type": {"type": "string"},
                           "param": {"type": ["string", "null"]}, "code": {"type": ["string", "null"]}},
        }},
    }  # fmt: skip
    return {
        "openapi": "3.1.0",
        "info": {"title": "unmask", "version": __version__, "description": "Masked diffusion language models."},
        "paths": paths,
        "components": {
            "schemas": schemas.get("$defs", {}) | {"Error": error},
            "securitySchemes": {"key": {"type": "http", "scheme": "bearer"}},
        },
    }


def _narrow(schemas: dict[str, Any], models: Sequence[str], limits: Limits, useless: Collection[str]) -> None:
    """Lower the maxima of the fields to the limits of this server, and remove those that no model has a use for."""
    most = {"n": limits.n, "steps": limits.steps, "length": limits.length, "max_tokens": limits.length}
    most |= {"corrections": limits.steps, "max_completion_tokens": limits.length}
    for schema in schemas.values():
        for name in useless:
            schema["properties"].pop(name, None)
        for name, field in schema["properties"].items():
            for kind in field.get("anyOf", [field]):
                if name in most and kind.get("type") == "integer":
                    kind.pop("exclusiveMaximum", None)
                    kind["maximum"] = most[name]
                if name == "model" and kind.get("type") == "string":
                    kind["enum"] = list(models)
                if name == "texts" and kind.get("type") == "array":
                    kind["maxItems"] = limits.texts


def _get(path: str) -> dict[str, Any]:
    summary, media = GETS[path]
    schema = _any() if media == "application/json" else {"type": "string"}
    known = {401: ERRORS[401], 421: ERRORS[421]} | ({503: ERRORS[503]} if path == "/health" else {})
    return {
        "summary": summary,
        "operationId": path.rpartition("/")[2].partition(".")[0],
        "responses": {"200": {"description": summary, "content": {media: {"schema": schema}}}} | _errors(known),
        "security": [{}, {"key": []}],
    }


def _any() -> dict[str, Any]:
    return {"type": "object"}


def _errors(known: dict[int, str]) -> dict[str, Any]:
    schema = {"schema": {"$ref": "#/components/schemas/Error"}}
    return {str(code): {"description": text, "content": {"application/json": schema}} for code, text in known.items()}
