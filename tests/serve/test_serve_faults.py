"""A fault run: among requests that are right, others that are wrong in every way. Every answer is right or a clean 4xx,
nobody else's text changes, and nothing is left behind."""

from __future__ import annotations

import contextlib
import gc
import json
import os
import random
import socket
import threading
import time
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from support.serving import Running, ar_lm, chat_lm, diffusion_lm, running, wait_for
from unmask.serve.limits import Limits

SAMPLERS = [{"steps": 6}, {"sampler": "first-hitting"}, {"sampler": "confidence", "k": 4},
            {"sampler": "remask-cap", "steps": 8, "eta": 0.1}, {"sampler": "left-to-right", "k": 5}]  # fmt: skip
LIMITS = Limits(batch=8, queue=2000, body=20_000, header=16_384, read_timeout=1.5, grace=2.0)
HEAD = b"POST /v1/infill HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
WRONG = [
    b"{", b'{"prompt": "a", "length": -1}', b'{"prompt": "a", "temperature": NaN}', b'{"prompt": 3}',
    b'{"prompt": "a", "unknown": 1}', b'{"prompt": "\xff"}', b'{"prompt": "a", "n": "many"}', b"[" * 9000,
    b'{"prompt": "a", "steps": 1e400}', b'{"prompt": "a", "seed": -1e30}', b'"' + b"x" * 9000 + b'"', b"null",
    b'{"prompt": "\\ud83d"}', b'{"text": "{{-3}}"}', b'{"prompt": "a", "length": 99999999999}',
    b'{"model": "../../etc/passwd", "prompt": "a"}', b'{"prompt": "a", "sampler": ["plan"]}',
]  # fmt: skip


def good_request(rng: random.Random) -> dict:
    body = {"prompt": "abcdef"[: rng.randrange(6)], "length": rng.randrange(8, 49), "seed": rng.randrange(30)}
    if rng.random() < 0.2:
        return {**body, "model": "ar"}
    return {**body, **rng.choice(SAMPLERS), "temperature": rng.choice([0.5, 1.0])}


def offline(body: dict) -> str:
    how = {name: value for name, value in body.items() if name not in ("model", "prompt", "length")}
    lm = ar_lm() if body.get("model") == "ar" else diffusion_lm()
    (sample,) = lm.write([lm.prompt_canvas(body["prompt"], body["length"])], **how)
    return sample.text


def talk(server: Running, data: bytes, *, parts: int = 1, pause: float = 0.0) -> bytes:
    """Send in parts; the first bytes of the answer."""
    with server.connect(30) as sock:
        try:
            size = -(-len(data) // parts)
            for at in range(0, len(data), size):
                sock.sendall(data[at : at + size])
                time.sleep(pause)
            return sock.recv(65536)
        except (ConnectionResetError, BrokenPipeError):
            return b""


class Faults:
    """What clients do wrong, each by its name; a result is a status, or 0 where the server just closed."""

    def __init__(self, server: Running, header: int) -> None:
        self.server, self.header = server, header

    def wrong_body(self, rng: random.Random) -> int:
        answer = self.server.post("/v1/" + rng.choice(["infill", "diffusion"]), rng.choice(WRONG))
        assert answer.error
        return answer.status

    def huge_body(self, rng: random.Random) -> int:
        data = b"x" * rng.choice([20_001, 300_000])
        if rng.random() < 0.5:
            return self._status(talk(self.server, HEAD + b"Content-Length: 99999999999\r\n\r\n" + data))
        chunks = b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (data[:8000], data[8000:]))
        return self._status(talk(self.server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n" + chunks))

    def slow_body(self, rng: random.Random) -> int:
        data = HEAD + b"Content-Length: 50\r\n\r\n"
        with self.server.connect(30) as sock:
            sock.sendall(data)
            try:
                for _ in range(4):
                    sock.sendall(b"{")
                    time.sleep(0.5)
            except (ConnectionResetError, BrokenPipeError):
                pass
            return self._status(sock.recv(65536))

    def huge_header(self, rng: random.Random) -> int:
        with self.server.connect(30) as sock:
            try:
                sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Huge: ")
                block = b"x" * 65536
                for _ in range(self.header // len(block)):
                    sock.sendall(block)
                return self._status(sock.recv(65536))
            except (ConnectionResetError, BrokenPipeError):
                return 0

    def no_http(self, rng: random.Random) -> int:
        return self._status(
            talk(self.server, rng.choice([b"\x16\x03\x01\r\n\r\n", b"GET\r\n\r\n", rng.randbytes(300)]))
        )

    def disconnect(self, rng: random.Random) -> int:
        """In the middle of the request, or of the answer."""
        data = json.dumps({**good_request(rng), "n": rng.randrange(1, 4)}).encode()
        path = rng.choice([b"diffusion", b"infill"])
        whole = HEAD.replace(b"infill", path) + b"Content-Length: %d\r\n\r\n" % len(data) + data
        with self.server.connect(30) as sock:
            if rng.random() < 0.3:
                sock.sendall(whole[: rng.randrange(1, len(whole))])
            else:
                sock.sendall(whole)
                time.sleep(rng.random() * 0.05)
                if rng.random() < 0.5:
                    sock.settimeout(0.05)
                    with contextlib.suppress(TimeoutError, ConnectionResetError):
                        sock.recv(rng.randrange(1, 400))
            if rng.random() < 0.5:  # a reset instead of a farewell
                sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\x01\x00\x00\x00\x00\x00\x00\x00")
        return 0

    @staticmethod
    def _status(said: bytes) -> int:
        assert said == b"" or said.startswith(b"HTTP/1.1 "), said[:40]
        return int(said[9:12]) if said else 0


def fault_run(requests: int, clients: int, header: int) -> None:
    plan = random.Random(0)
    kinds = ["good"] * 10 + ["wrong_body"] * 4 + ["disconnect"] * 4 + ["huge_body", "no_http"]
    jobs = [(plan.choice(kinds), plan.randrange(2**31)) for _ in range(requests)]
    jobs[3] = ("huge_header", 1)
    for i in range(5, requests, 40):
        jobs[i] = ("slow_body", i)
    bodies = [good_request(random.Random(seed)) if kind == "good" else None for kind, seed in jobs]
    expected = {json.dumps(body): offline(body) for body in bodies if body}
    seen: Counter = Counter()
    lock = threading.Lock()
    with running({"tiny": diffusion_lm(), "ar": ar_lm()}, LIMITS) as server:
        faults = Faults(server, header)
        server.post("/v1/infill", {"prompt": "a", "length": 9})
        threads = threading.active_count()

        def one(job) -> None:
            (kind, seed), body = job
            if body is None:
                status = getattr(faults, kind)(random.Random(seed))
                assert status == 0 or 400 <= status < 500, (kind, status)
            else:
                answer = server.post("/v1/infill", {**body})
                status = answer.status
                assert status == 200, answer.body
                assert answer.json["samples"][0]["text"] == expected[json.dumps(body)]
            with lock:
                seen[kind, status] += 1

        with ThreadPoolExecutor(clients) as pool:
            list(pool.map(one, zip(jobs, bodies, strict=True)))
        wait_for(lambda: server.engine.rows == 0)
        wait_for(lambda: not server.server.server_state.tasks)
        assert server.engine._tokens == 0 and threading.active_count() <= threads + 3
        queues = list(server.engine._queues.values())
        assert all(not queue.handles and not queue.rows and not queue.batcher.busy for queue in queues)
        assert all(not queue.batcher._saved for queue in queues)
        assert server.post("/v1/infill", {"prompt": "a", "length": 9}).status == 200
        bad = server.metric('unmask_requests_total{code="5')
        assert bad == 0
    assert sum(seen.values()) == requests
    assert seen["good", 200] == sum(body is not None for body in bodies)
    assert {status for kind, status in seen if kind == "slow_body"} == {408}
    assert {status for kind, status in seen if kind == "wrong_body"} <= {400, 404}


def test_a_small_fault_run():
    fault_run(60, 12, header=1_000_000)


def memory() -> int:
    """Bytes of this process in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_five_hundred_requests_with_faults():
    gc.collect()
    fault_run(500, 24, header=100_000_000)
    before = memory()
    fault_run(500, 24, header=100_000_000)
    gc.collect()
    assert memory() - before < 60e6


# -- schemathesis ----------------------------------------------------------------------------------------------------


SMALL = {
    "/v1/infill": {"prompt": "a", "length": 6}, "/v1/diffusion": {"length": 6}, "/v1/score": {"text": "ab"},
    "/v1/marginals": {"text": "a{{1}}"}, "/v1/completions": {"prompt": "a", "max_tokens": 4},
    "/v1/chat/completions": {"messages": [{"role": "user", "content": "a"}], "max_tokens": 4},
}  # fmt: skip


def schema_run(examples: int) -> None:
    """Bodies that fit the OpenAPI document, and bodies that do not: none of them is an error of the server."""
    schemathesis = pytest.importorskip("schemathesis")
    from hypothesis import HealthCheck, given, settings

    limits = Limits(length=24, steps=8, n=2, texts=2, grace=2.0, timeout=20.0)
    with running({"tiny": chat_lm(), "ar": ar_lm()}, limits) as server:
        base = f"http://127.0.0.1:{server.port}"
        schema = schemathesis.openapi.from_dict(server.get("/openapi.json").json)
        statuses: Counter = Counter()
        for found in schema.get_all_operations():
            operation = found.ok()
            modes = [schemathesis.GenerationMode.POSITIVE]
            if operation.body:  # nothing can be wrong with a path that takes nothing
                modes.append(schemathesis.GenerationMode.NEGATIVE)
            for mode in modes:
                strategy = operation.as_strategy(generation_mode=mode)

                @settings(
                    max_examples=examples,
                    deadline=None,
                    database=None,
                    derandomize=True,
                    suppress_health_check=list(HealthCheck),
                )
                @given(case=strategy)
                def check(case) -> None:
                    response = case.call(base_url=base, timeout=60)
                    statuses[case.operation.path, response.status_code] += 1
                    assert response.status_code < 500, response.text
                    case.validate_response(response, checks=[schemathesis.checks.not_a_server_error])
                    path = case.operation.path
                    if path in SMALL and isinstance(case.body, dict):  # each of its fields alone, beside what is right
                        for name, value in list(case.body.items())[:4]:
                            answer = server.post(path, {**SMALL[path], name: value})
                            statuses[path, answer.status] += 1
                            assert answer.status < 500, answer.body
                            if answer.status != 200:
                                assert answer.error

                check()
        for path in SMALL:
            assert statuses[path, 200] and statuses[path, 400], statuses
        assert server.engine.rows == 0


def test_schemathesis_finds_no_error_of_the_server():
    schema_run(5)


@pytest.mark.slow
def test_schemathesis_finds_none_in_many_tries_either():
    schema_run(300)
