"""What clients send: bodies that are right, bodies that are wrong, and bytes that are not HTTP."""

from __future__ import annotations

import json
import math
import random
from typing import Any

HOST = b"Host: localhost\r\n"
JSON_TYPE = b"Content-Type: application/json\r\n"
SAMPLERS: list[dict[str, Any]] = [
    {"steps": 4},
    {"steps": 8, "temperature": 0.7, "top_p": 0.9},
    {"sampler": "first-hitting"},
    {"sampler": "confidence", "k": 4},
    {"sampler": "remask-cap", "steps": 6, "eta": 0.1},
    {"sampler": "left-to-right", "k": 5},
]
PROMPTS = ["One day", "The little", "Once upon a time", "", "Tom and"]
GAPS = ["The {{2}} sat on the {{3}}.", "One {{1}}, a {{2}} went home.", "{{4}} said the {{1}}."]


def good(rng: random.Random) -> tuple[str, dict[str, Any]]:
    """A path and a body that is right, with a seed: the same answer every time."""
    how = rng.choice(SAMPLERS)
    seed = rng.randrange(1000)
    kind = rng.choice(["infill", "gaps", "completions", "stream", "diffusion", "score", "marginals", "tokenize"])
    length = rng.choice([12, 16, 24, 32])
    if kind == "infill":
        return "/v1/infill", {"prompt": rng.choice(PROMPTS), "length": length, "seed": seed, **how}
    if kind == "gaps":
        return "/v1/infill", {"text": rng.choice(GAPS), "seed": seed, "n": rng.choice([1, 2]), "tokens": True, **how}
    if kind in ("completions", "stream"):
        body = {"prompt": rng.choice(PROMPTS), "max_tokens": length // 2, "seed": seed, "stream": kind == "stream"}
        return "/v1/completions", {**body, **how}
    if kind == "diffusion":
        return "/v1/diffusion", {"prompt": rng.choice(PROMPTS), "length": length, "seed": seed, "tops": 2, **how}
    if kind == "score":
        return "/v1/score", {"text": f"The cat sat on mat {seed}.", "draws": 2, "seed": seed}
    if kind == "marginals":
        return "/v1/marginals", {"texts": rng.sample(GAPS, 2), "top": rng.choice([1, 5])}
    return "/v1/tokenize", {"text": rng.choice(GAPS) + str(seed)}


OPEN = [
    "/",
    "/health",
    "/metrics",
    "/openapi.json",
    "/v1/models",
    "/v1/models/tiny-en",
    "/page/page.css",
    "/favicon.ico",
]


def answered(path: str, body: bytes) -> Any:
    """What an answer says about the text, without ids and times; of a stream, its events together."""
    if b"data: " not in body[:400] and not body.startswith(b"event:"):
        tree = json.loads(body)
        return {key: value for key, value in tree.items() if key not in ("id", "created")}
    events = [json.loads(line[6:]) for line in body.decode().splitlines() if line.startswith("data: {")]
    if path == "/v1/diffusion":
        return [event["text"] for event in events if "text" in event]
    return "".join(choice["text"] for event in events for choice in event.get("choices", []))


def alike(seen: Any, expected: Any) -> bool:
    """Whether two answers are the same; probabilities up to rounding, which depends on the neighbours in a batch."""
    if isinstance(seen, dict) and isinstance(expected, dict):
        return seen.keys() == expected.keys() and all(alike(seen[key], expected[key]) for key in seen)
    if isinstance(seen, list) and isinstance(expected, list):
        return len(seen) == len(expected) and all(map(alike, seen, expected))
    if isinstance(seen, float) and isinstance(expected, float):
        return math.isclose(seen, expected, rel_tol=1e-3, abs_tol=1e-6)
    return bool(seen == expected)


# -- wrong bodies ------------------------------------------------------------------------------------------------------

HUGE = "9" * 5000
WRONG: list[bytes] = [
    b"", b"{", b"null", b"[]", b'"text"', b"\xff\xfe", b'{"prompt": "\xff"}', b'{"prompt": "\\ud83d"', b"{" * 5000,
    b"[" * 200_000, b'{"prompt":' * 50_000, b'{"prompt": "a", "steps": 1e400}', b'{"prompt": "a", "seed": -1e30}',
    b'{"prompt": "a", "temperature": NaN}', b'{"prompt": "a", "temperature": Infinity}', b'{"prompt": 3}',
    b'{"prompt": "a", "length": -1}', b'{"prompt": "a", "length": 99999999999}', b'{"prompt": "a", "length": 4097}',
    b'{"prompt": "a", "n": "many"}', b'{"prompt": "a", "n": 65}', b'{"prompt": "a", "unknown": 1}',
    f'{{"prompt": "a", "seed": {HUGE}}}'.encode(), f'{{"prompt": "a", "temperature": {HUGE}}}'.encode(),
    b'{"prompt": "a", "steps": 9223372036854775808}', b'{"prompt": "a", "temperature": -1}',
    b'{"prompt": "a", "sampler": ["plan"]}', b'{"prompt": "a", "sampler": "no such"}', b'{"text": "{{-3}}"}',
    b'{"text": "{{999999999999999999999}}"}', b'{"text": "{{1-999999999}}"}', b'{"model": "../../etc/passwd"}',
    b'{"text": "' + b"{{1}}" * 100_000 + b'"}', b'{"text": "a {{2}}", "prompt": "b"}', b'{"prompt": "a", "ban": [[]]}',
    b'{"prompt": "a", "ban": {"a": {"b": {"c": []}}}}', b'{"prompt": "a", "stop": ' + b"[" * 900 + b"]" * 900 + b"}",
    b'{"prompt": "a", "top_p": 0}', b'{"prompt": "a", "guidance": 1e308}', b'{"prompt": "a", "label": "no"}',
    b'{"prompt": "a", "steps": true}', b'{"prompt": "a", "tokens": 1, "tops": 11, "tops": -1}',
]  # fmt: skip
ENDPOINTS = ["/v1/infill", "/v1/diffusion", "/v1/completions", "/v1/score", "/v1/marginals", "/v1/tokenize"]


def post(path: str, body: bytes, close: bool = True) -> bytes:
    """A whole request."""
    end = b"Connection: close\r\n" if close else b""
    return (
        b"POST %s HTTP/1.1\r\n" % path.encode()
        + HOST
        + JSON_TYPE
        + end
        + b"Content-Length: %d\r\n\r\n" % len(body)
        + body
    )


def get(path: str, method: str = "GET") -> bytes:
    """A whole request without a body."""
    return f"{method} {path} HTTP/1.1\r\n".encode() + HOST + b"Connection: close\r\n\r\n"


def not_http(rng: random.Random) -> bytes:
    """Bytes that are not a proper request, or one for something that does not exist."""
    whole = post("/v1/infill", b'{"prompt": "a", "length": 12, "steps": 2}')
    return rng.choice(
        [
            rng.randbytes(rng.randrange(1, 3000)) + b"\r\n\r\n",
            b"GET\r\n\r\n",
            b"GET / HTTP/9.9\r\n\r\n",
            b"GET / HTTP/1.1\r\n\r\n",
            b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
            b"GET /health HTTP/1.1\r\nHost: evil.example\r\nConnection: close\r\n\r\n",
            b"GET /health HTTP/1.1\r\n" + HOST + b"no colon\r\n\r\n",
            b"GET /health HTTP/1.1\r\n" + HOST + b"X: " + b"x" * 70_000 + b"\r\n\r\n",
            b"GET /health HTTP/1.1\r\n" + HOST + b"X: y\r\n" * 8000 + b"\r\n",
            b"GET /" + b"a" * 60_000 + b" HTTP/1.1\r\n" + HOST + b"\r\n",
            get("/page/../../../../etc/passwd"),
            get("/page/%2e%2e%2f%2e%2e%2fetc%2fpasswd"),
            get("/v1/models/" + "%00" * 50),
            get("/v1/infill"),
            get("/health", "DELETE"),
            get("/health", "TRACE"),
            get("*", "OPTIONS"),
            b"POST /v1/infill HTTP/1.1\r\n" + HOST + JSON_TYPE + b"Content-Length: -5\r\n\r\n{}",
            b"POST /v1/infill HTTP/1.1\r\n"
            + HOST
            + JSON_TYPE
            + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n{}{}{}",
            b"POST /v1/infill HTTP/1.1\r\n"
            + HOST
            + JSON_TYPE
            + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n{}\r\n0\r\n\r\n",
            b"POST /v1/infill HTTP/1.1\r\n" + HOST + JSON_TYPE + b"Transfer-Encoding: gzip\r\n\r\n{}",
            b"POST /v1/infill HTTP/1.1\r\n" + HOST + JSON_TYPE + b"Content-Length: 99999999999\r\n\r\n" + b"x" * 5000,
            b"POST /v1/infill HTTP/1.1\r\n" + HOST + b"Content-Type: text/plain\r\nContent-Length: 2\r\n\r\n{}",
            b"POST /v1/infill HTTP/1.1\r\n"
            + HOST
            + JSON_TYPE
            + b"Content-Encoding: gzip\r\nContent-Length: 2\r\n\r\n{}",
            whole.replace(b"\r\n", b"\n"),
            whole.replace(b"Host: localhost", b"Host: \xff\xfe"),
            b"\0" * 2000 + b"\r\n\r\n",
        ]
    )
