"""Shared by the tests of the server: a real one on a free loopback port, small models, and a plain client."""

from __future__ import annotations

import contextlib
import functools
import http.client
import json
import socket
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Any

from support.helpers import random_lm
from unmask.data.chat import ChatTemplate
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.serve.app import make_app
from unmask.serve.engine import Engine
from unmask.serve.limits import Limits
from unmask.serve.server import Server, bind

JSON = {"Content-Type": "application/json"}


@functools.cache
def diffusion_lm() -> LM:
    """Writes any byte anywhere."""
    return random_lm(bytes_tokenizer(), "data.length=48", "model.hidden_dim=32", scale=2.0)


@functools.cache
def ar_lm() -> LM:
    return random_lm(bytes_tokenizer(), "data.length=48", "model.hidden_dim=32", "model.method=ar", scale=2.0)


@functools.cache
def block_lm() -> LM:
    """Blocks of 8, in rows of 48."""
    blocks = ("model.method=block", "block.size=8", "block.mixture={1: 1, 8: 2, full: 1}")
    return random_lm(bytes_tokenizer(), "data.length=48", "model.hidden_dim=32", *blocks, scale=2.0)


@functools.cache
def chat_lm(method: str = "mdlm") -> LM:
    """Answers in any bytes; reads 96 of them, with a template."""
    blocks = ("block.size=8",) if method == "block" else ()
    made = random_lm(
        bytes_tokenizer(), "data.length=96", "model.hidden_dim=32", f"model.method={method}", *blocks, scale=2.0
    )
    made.chat_template = ChatTemplate.named("plain", made.tokenizer)
    return made


class HeldNetwork:
    """A model whose network calls wait until the test releases them: a slow network without a clock."""

    def __init__(self) -> None:
        self.lm = random_lm(bytes_tokenizer(), "data.length=48", "model.hidden_dim=32", scale=2.0)
        self.lm.model.load_state_dict(diffusion_lm().model.state_dict())
        self.calls = 0
        self._free = threading.Event()
        hidden = self.lm.model.hidden

        def held(*args: Any, **more: Any) -> Any:
            self.calls += 1
            assert self._free.wait(60)
            return hidden(*args, **more)

        object.__setattr__(self.lm.model, "hidden", held)

    def hold(self) -> None:
        self._free.clear()

    def release(self) -> None:
        self._free.set()


class Clock:
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@dataclass
class Answer:
    status: int
    headers: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> dict[str, Any]:
        """Of an error that is as it must be: one sentence, nothing of the server."""
        assert self.headers["content-type"] == "application/json", self.body
        error = self.json["error"]
        assert set(self.json) == {"error"} and set(error) == {"message", "type", "param", "code"}
        assert error["message"] and "\n" not in error["message"] and len(error["message"]) <= 400
        for secret in ("Traceback", "/work", "/root", "/tmp", "site-packages", ".py", "torch"):
            assert secret not in self.body.decode()
        return error

    @property
    def events(self) -> list[tuple[str, Any]]:
        return parse_events(self.body.decode())


def parse_events(text: str) -> list[tuple[str, Any]]:
    """Server-sent events by the standard: one field per line, and an empty line after each event."""
    assert text.endswith("\n\n"), text[-80:]
    events = []
    for block in text[:-2].split("\n\n"):
        fields = [line.partition(": ") for line in block.split("\n")]
        assert all(name in ("event", "data", "") for name, _, _ in fields), block
        values = {name: value for name, _, value in fields if name}
        if "data" in values:
            data = values["data"]
            events.append((values.get("event", "message"), data if data == "[DONE]" else json.loads(data)))
    return events


@dataclass
class Running:
    """A server and how to ask it."""

    engine: Engine
    server: Server
    thread: threading.Thread
    port: int

    def connect(self, timeout: float = 60.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def ask(
        self, method: str, path: str, body: Any = None, headers: dict[str, str] | None = None, timeout: float = 60.0
    ) -> Answer:
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=timeout)
        try:
            data = body if body is None or isinstance(body, bytes) else json.dumps(body).encode()
            connection.request(method, path, data, {**(JSON if body is not None else {}), **(headers or {})})
            response = connection.getresponse()
            named = {name.lower(): value for name, value in response.getheaders()}
            return Answer(response.status, named, response.read())
        finally:
            connection.close()

    def get(self, path: str, **more: Any) -> Answer:
        return self.ask("GET", path, **more)

    def post(self, path: str, body: Any, **more: Any) -> Answer:
        return self.ask("POST", path, body, **more)

    def metric(self, name: str) -> float:
        """The sum of all lines of a metric that begin so."""
        lines = self.get("/metrics").body.decode().splitlines()
        return sum(float(line.rpartition(" ")[2]) for line in lines if line.startswith(name))


def post_head(body: dict[str, Any], path: str = "/v1/diffusion") -> bytes:
    """A whole request, for a socket."""
    data = json.dumps(body).encode()
    return (
        f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        f"Content-Length: {len(data)}\r\n\r\n"
    ).encode() + data


def wait_for(what: Callable[[], Any], seconds: float = 60.0) -> Any:
    """Until something is true."""
    end = time.monotonic() + seconds
    while not (result := what()):
        assert time.monotonic() < end, "it never happened"
        time.sleep(0.005)
    return result


@contextlib.contextmanager
def running(
    lms: dict[str, LM] | None = None,
    limits: Limits | None = None,
    send_buffer: int | None = None,
    clock: Callable[[], float] = time.monotonic,
    prefix_cache: bool = True,
    **more: Any,
) -> Iterator[Running]:
    """A server with these models, until the end of the block; no sequence may be left in it then."""
    served = lms or {"tiny": diffusion_lm(), "ar": ar_lm()}
    engine = Engine(served, limits or Limits(grace=1.0), clock, prefix_cache=prefix_cache)
    sock = bind("127.0.0.1", 0)
    if send_buffer is not None:
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, send_buffer)  # its connections inherit it
    server = Server(make_app(engine, **more), engine)
    thread = threading.Thread(target=server.run, args=([sock],), daemon=True)
    thread.start()
    try:
        wait_for(lambda: server.started)
        yield Running(engine, server, thread, sock.getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(30)
    assert not thread.is_alive() and not engine.alive
    assert engine.rows == engine.active == engine._tokens == 0
