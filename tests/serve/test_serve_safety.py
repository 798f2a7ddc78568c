"""Safe by default: what is wrong is a clean 4xx sentence, nothing of the server is told, and nobody gets in unasked."""

from __future__ import annotations

import contextlib
import json
import logging
import re
import socket
import time

import pytest

from support.helpers import run
from support.serving import Running, diffusion_lm, running, wait_for
from unmask.serve.limits import Limits
from unmask.types import UserError

LIMITS = Limits(length=100, steps=50, n=4, body=5000, header=8192, linger=0.2, grace=0.5, tokens=1000)
IMPATIENT = Limits(read_timeout=0.25, timeout=0.25, linger=0.1, grace=0.5)


@pytest.fixture(scope="module")
def server():
    with running({"tiny": diffusion_lm()}, LIMITS) as one:
        yield one


@pytest.fixture(scope="module")
def impatient():
    """A server that waits for nobody."""
    with running({"tiny": diffusion_lm()}, IMPATIENT, send_buffer=4096) as one:
        yield one


# -- bodies ----------------------------------------------------------------------------------------------------------

GOOD = {"prompt": "a", "length": 8, "seed": 1}
BAD_BODIES = {
    "nothing": b"",
    "no JSON": b"{",
    "a list": b"[]",
    "a number": b"3",
    "a string": b'"a"',
    "null": b"null",
    "invalid UTF-8": b'{"prompt": "\xff\xfe"}',
    "UTF-16": '{"prompt": "a"}'.encode("utf-16"),
    "a lone surrogate": b'{"prompt": "\\ud800"}',
    "NaN": b'{"temperature": NaN}',
    "Infinity": b'{"temperature": Infinity}',
    "1e999": b'{"temperature": 1e999}',
    "a huge integer": b'{"seed": ' + b"9" * 4900 + b"}",
    "a large integer": b'{"seed": 9223372036854775808}',
    "too deep": b'{"prompt": ' + b"[" * 2400 + b"]" * 2400 + b"}",
    "two documents": b"{} {}",
    "a trailing comma": b'{"n": 1,}',
}
BAD_FIELDS = [
    {"nonsense": 1}, {"Prompt": "a"}, {"__proto__": {}}, {"n": 0}, {"n": -1}, {"n": 5}, {"n": 1.5}, {"n": "2"},
    {"n": True}, {"n": None}, {"steps": 0}, {"steps": -3}, {"steps": 51}, {"steps": "many"}, {"length": 0},
    {"length": -5}, {"length": 101}, {"length": 10**9}, {"length": 49}, {"temperature": -1}, {"temperature": "hot"},
    {"temperature": True}, {"top_p": 0}, {"top_p": 1.1}, {"top_p": -0.1}, {"top_k": -1}, {"min_p": 2},
    {"sampler": "order"}, {"sampler": "nonsense"}, {"sampler": 3}, {"sampler": "simplex"}, {"k": 0}, {"k": 2},
    {"seed": 1.5}, {"seed": "1"}, {"seed": 2**63 - 1, "n": 4}, {"prompt": 3}, {"prompt": ["a"]}, {"prompt": "x" * 60},
    {"prompt": {"a": 1}}, {"text": "no gap"}, {"text": "{{0}}"}, {"text": "{{999999999}}"}, {"text": "{{3-1}}"},
    {"text": "{{1-9}}{{1-9}}{{1-9}}{{1-9}} x"}, {"text": "a {{2}}", "prompt": "a"}, {"stop": ""}, {"stop": [""]},
    {"stop": "x", "suffix": "y"}, {"stop": ["x"] * 17}, {"ban": [""]}, {"ban": [9999]}, {"label": "cat"},
    {"guidance": 2}, {"guidance": -1}, {"stride": 48}, {"stride": 0}, {"eta": 0.1}, {"threshold": 0.5},
    {"tops": 11}, {"tops": -1}, {"model": "other"}, {"model": 3}, {"model": "x" * 900}, {"min_length": -1},
]  # fmt: skip


@pytest.mark.parametrize("what", BAD_BODIES)
def test_a_body_that_is_no_request_is_a_sentence(server: Running, what):
    for path in ("/v1/diffusion", "/v1/infill", "/v1/completions", "/v1/score", "/v1/marginals"):
        answer = server.post(path, BAD_BODIES[what])
        assert answer.status == 400 and answer.error["type"] == "invalid_request_error"


@pytest.mark.parametrize("fields", BAD_FIELDS, ids=lambda fields: json.dumps(fields)[:40])
def test_a_field_that_is_wrong_is_a_sentence(server: Running, fields):
    answer = server.post("/v1/diffusion", {**({} if "text" in fields else GOOD), **fields})
    assert answer.status == (404 if fields.get("model") in ("other", "x" * 900) else 400), answer.body
    assert answer.error


@pytest.mark.parametrize(
    "fields",
    [
        {"max_tokens": 0},
        {"max_tokens": 1000},
        {"logprobs": 11},
        {"logprobs": -1},
        {"best_of": 3},
        {"logit_bias": {"5": 1}},
        {"prompt": []},
        {"prompt": ["a"] * 5},
        {"prompt": [[1, 2]]},
        {"stream": "yes"},
        {"stream_options": {"x": 1}},
        {"frequency_penalty": 1},
        {"stop": "x", "suffix": "y"},
    ],
    ids=str,
)
def test_a_completion_that_is_wrong_is_a_sentence(server: Running, fields):
    answer = server.post("/v1/completions", {"prompt": "a", **fields})
    assert answer.status == 400 and answer.error


@pytest.mark.parametrize(
    "fields",
    [
        {},
        {"text": ""},
        {"texts": []},
        {"text": "a", "texts": ["b"]},
        {"text": "a", "draws": 0},
        {"text": "a", "draws": 1e9},
        {"text": "a", "method": "nonsense"},
        {"text": "a", "method": "pll", "draws": 3},
        {"text": "x" * 450},
        {"texts": ["a"] * 65},
        {"text": "x" * 20, "method": "exact"},
        {"text": "abc", "spans": [[2, 1]]},
        {"text": "abc", "spans": [[-1, 1]]},
        {"text": "abc", "spans": [[0]]},
        {"text": "abc", "label": "x"},
    ],
    ids=str,
)
def test_a_score_that_is_wrong_is_a_sentence(server: Running, fields):
    answer = server.post("/v1/score", fields)
    assert answer.status == 400 and answer.error


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({}, "either text or texts"),
        ({"text": "a{{1}}", "texts": ["b{{1}}"]}, "either text or texts"),
        ({"text": ""}, "no gap"),
        ({"text": "no gap"}, "no gap"),
        ({"texts": []}, "texts"),
        ({"texts": ["a{{1}}", "b"]}, "no gap"),
        ({"texts": ["a{{1}}"] * 65}, "65 texts are more than 64"),
        ({"texts": ["a{{40}}"] * 10}, "410 tokens are more than the 400"),
        ({"text": "{{101}}"}, "longer than the 100"),
        ({"text": "{{49}}"}, "longer than the 48 tokens"),
        ({"text": "{{999999999}}"}, "longer than the 100"),
        ({"text": "a{{1-9}}{{1-9}}{{1-9}}"}, "more than 256"),
        ({"text": "{{1-3}}"}, "needs given text"),
        ({"text": "a{{1}}", "top": 0}, "top"),
        ({"text": "a{{1}}", "top": 2.5}, "top"),
        ({"texts": ["{{40}}"] * 9, "top": 10**6}, "360 open positions with top=258 are 92880 tokens, more than"),
        ({"text": "a{{1}}", "label": "x"}, "label"),
        ({"text": "a{{1}}", "temperature": 1}, "unknown field"),
    ],
    ids=lambda value: str(value)[:40],
)
def test_marginals_that_are_wrong_are_a_sentence(server: Running, fields, words):
    answer = server.post("/v1/marginals", fields)
    assert answer.status == 400 and re.search(words, answer.error["message"]), answer.body


def test_the_good_one_is_good(server: Running):
    assert server.post("/v1/diffusion", GOOD).status == 200


def test_what_somebody_sent_is_cut_short_in_an_answer(server: Running):
    answer = server.post("/v1/diffusion", {"text": "{{" + "<script>" * 400 + "}}"})
    assert answer.status == 400 and len(answer.error["message"]) <= 400
    assert answer.headers["x-content-type-options"] == "nosniff"


def test_a_body_must_be_json_by_its_header(server: Running):
    for kind in ("text/plain", "application/x-www-form-urlencoded", ""):
        assert server.post("/v1/infill", GOOD, headers={"Content-Type": kind}).status == 415
    assert server.post("/v1/infill", GOOD, headers={"Content-Encoding": "gzip"}).status == 415
    assert server.post("/v1/infill", GOOD, headers={"Content-Type": "Application/JSON; charset=utf-8"}).status == 200


# -- what is too large or too slow -----------------------------------------------------------------------------------


def talk(server: Running, *parts: bytes, pause: float = 0.0, seconds: float = 8.0) -> bytes:
    """Send parts with pauses; all that comes back until the server closes, or b'' if it just closes."""
    with server.connect(seconds) as sock:
        try:
            for part in parts:
                sock.sendall(part)
                time.sleep(pause)
        except (BrokenPipeError, ConnectionResetError):
            pass
        return read_all(sock)


def read_all(sock: socket.socket) -> bytes:
    found = b""
    try:
        while data := sock.recv(65536):
            found += data
    except (ConnectionResetError, BrokenPipeError):
        pass
    return found


HEAD = b"POST /v1/infill HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"


def test_a_large_body_is_not_read(server: Running):
    assert server.post("/v1/infill", b"x" * 5001).status == 413
    answer = server.post("/v1/infill", b"x" * 20_000_000)  # a client that reads only when all is sent gets its answer
    assert answer.status == 413 and answer.error
    said = talk(server, HEAD + b"Content-Length: 104857600\r\n\r\n")  # nothing of it is ever sent
    assert said.startswith(b"HTTP/1.1 413")
    chunk = b"1000\r\n" + b"x" * 4096 + b"\r\n"
    assert talk(server, HEAD + b"Transfer-Encoding: chunked\r\n\r\n", *[chunk] * 3).startswith(b"HTTP/1.1 413")


def test_a_slow_body_is_not_waited_for(impatient: Running):
    begun = time.monotonic()
    said = talk(impatient, HEAD + b"Content-Length: 100\r\n\r\n", *[b"{"] * 6, pause=0.06)
    assert said.startswith(b"HTTP/1.1 408") and time.monotonic() - begun < 5
    assert json.loads(said.partition(b"\r\n\r\n")[2])["error"]["message"]


def test_slow_header_lines_are_not_waited_for(impatient: Running):
    for parts in ([], [b"GET /health HTTP/1.1\r\n"], [b"GET /health HTTP/1.1\r\nHost: localhost\r\n", b"X: y\r\n"]):
        begun = time.monotonic()
        assert talk(impatient, *parts, pause=0.05) == b""
        assert time.monotonic() - begun < 5


def test_a_connection_that_is_kept_open_is_used_again(impatient: Running):
    with impatient.connect(5) as sock:
        for _ in range(2):
            sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")
            said = b""
            while not said.endswith(b"}"):
                said += sock.recv(65536)
            assert said.startswith(b"HTTP/1.1 200")
            time.sleep(1.5 * IMPATIENT.read_timeout)  # longer than header lines may take


@pytest.mark.parametrize(
    "head", ["POST /nothing", "PUT /v1/infill", "POST /v1/infill", "GET /health"], ids=["404", "405", "415", "200"]
)
def test_a_body_that_nobody_reads_is_not_waited_for(impatient: Running, head):
    with impatient.connect() as sock:
        sock.sendall(f"{head} HTTP/1.1\r\nHost: localhost\r\nContent-Length: 1000000\r\n\r\n".encode())
        assert sock.recv(65536).startswith(b"HTTP/1.1 ")
        end = time.monotonic() + 20
        with contextlib.suppress(OSError):
            while time.monotonic() < end:
                sock.sendall(b"x")
                time.sleep(0.05)
        assert time.monotonic() < end
        wait_for(lambda: not impatient.server.server_state.connections)


def test_a_body_that_comes_after_its_answer_is_no_harm():
    with running({"tiny": diffusion_lm()}) as server, server.connect() as sock:
        sock.sendall(b"POST /nothing HTTP/1.1\r\nHost: localhost\r\nContent-Length: 3\r\n\r\n")
        data = b""
        while not data.endswith(b"}}"):
            data += sock.recv(65536)
        assert data.startswith(b"HTTP/1.1 404")
        sock.sendall(b"abcGET /health HTTP/1.1\r\nHost: localhost\r\n\r\n")  # and the next request of this connection
        assert sock.recv(65536).startswith(b"HTTP/1.1 200")


def test_who_does_not_read_loses_the_connection(impatient: Running):
    with impatient.connect() as sock:
        for _ in range(400):  # of 20 kB each
            sock.sendall(b"GET /openapi.json HTTP/1.1\r\nHost: localhost\r\n\r\n")
        wait_for(lambda: len(impatient.server.server_state.connections) == 1)
        wait_for(lambda: not impatient.server.server_state.connections)


def test_a_chunk_that_is_none_is_refused(server: Running):
    head = b"POST /v1/infill HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    with server.connect() as sock:
        sock.sendall(head + b"Transfer-Encoding: chunked\r\n\r\nzz\r\n")
        data = b""
        while got := sock.recv(65536):
            data += got
    assert data.startswith(b"HTTP/1.1 400") and b"not an HTTP request" in data


def test_header_lines_that_come_at_once_are_measured_too(server: Running):
    with server.connect() as sock:
        sock.sendall(b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: " + b"a" * 60_000 + b"\r\n\r\n")
        assert sock.recv(65536).startswith(b"HTTP/1.1 431")


def test_of_a_field_of_several_kinds_the_right_one_is_told(server: Running):
    for prompt, said in (([], "at least 1"), (["a"] * 65, "at most 64"), ([5], "string"), (5, "string")):
        answer = server.post("/v1/completions", {"prompt": prompt})
        assert answer.status == 400 and said in answer.error["message"], answer.error
    assert server.post("/v1/completions", {"prompt": "a", "seed": 2**63 - 1, "max_tokens": 2}).status == 200
    assert server.post("/v1/completions", {"prompt": "a", "seed": 2**63 - 1, "n": 2}).status == 400


def test_too_many_connections_are_told_so():
    with running({"tiny": diffusion_lm()}, Limits(connections=3, grace=1.0)) as server:
        held = [server.connect() for _ in range(3)]
        wait_for(lambda: len(server.server.server_state.connections) == 3)
        answer = server.get("/health")
        assert answer.status == 503 and "connections" in answer.error["message"] and answer.headers["retry-after"]
        assert answer.headers["connection"] == "close" and "content-security-policy" in answer.headers
        for one in held:
            one.close()
        wait_for(lambda: not server.server.server_state.connections)
        assert server.get("/health").status == 200


def test_large_header_lines_are_refused(server: Running):
    lines = b"GET /health HTTP/1.1\r\nHost: localhost\r\nX-Large: " + b"x" * 200_000
    assert talk(server, lines).startswith(b"HTTP/1.1 431")
    said = talk(server, lines, *[b"x" * 1_000_000] * 10)  # it sends on, and still gets its answer
    assert said.startswith(b"HTTP/1.1 431") and json.loads(said.partition(b"\r\n\r\n")[2])["error"]["message"]
    many = b"".join(b"X-%d: y\r\n" % i for i in range(20_000))
    assert talk(server, b"GET /health HTTP/1.1\r\nHost: localhost\r\n" + many).startswith(b"HTTP/1.1 431")
    assert server.get("/health").status == 200


def test_what_is_no_http_is_refused(server: Running):
    for data in (b"nonsense\r\n\r\n", b"GET / HTTP/9.9\r\n\r\n", b"\x16\x03\x01\x02\x00", b"\x00" * 100 + b"\r\n\r\n"):
        assert talk(server, data)[:10] in (b"HTTP/1.1 4", b"")
    assert server.get("/health").status == 200


# -- who may ask -----------------------------------------------------------------------------------------------------


def test_paths_and_methods(server: Running):
    assert server.get("/nothing").status == 404 and server.get("/nothing").error
    assert server.get("/v1/models/nothing").error["code"] == "model_not_found"
    answer = server.get("/v1/infill")
    assert answer.status == 405 and "POST" in answer.headers["allow"] and answer.error
    for method in ("PUT", "DELETE", "PATCH", "TRACE", "OPTIONS", "NONSENSE"):
        assert server.ask(method, "/v1/models").status in (400, 405)


def test_every_answer_has_its_security_headers(server: Running):
    for answer in (
        server.get("/"),
        server.get("/health"),
        server.get("/nothing"),
        server.post("/v1/infill", b"{"),
        server.post("/v1/diffusion", GOOD),
        server.get("/page/page.js"),
    ):
        policy = answer.headers["content-security-policy"]
        assert "default-src 'none'" in policy and "script-src 'self'" in policy and "unsafe" not in policy
        assert "frame-ancestors 'none'" in policy and "base-uri 'none'" in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["referrer-policy"] == "no-referrer" and answer.headers["x-frame-options"] == "DENY"
        assert "server" not in answer.headers
        assert answer.headers["cache-control"] in ("no-store", "no-cache")


def test_other_pages_may_not_ask(server: Running):
    evil = {"Origin": "https://evil.example", "Access-Control-Request-Method": "POST"}
    for answer in (server.ask("OPTIONS", "/v1/infill", headers=evil), server.post("/v1/infill", GOOD, headers=evil)):
        assert not any(name.startswith("access-control") for name in answer.headers)


def test_a_host_name_that_somebody_made_up_is_refused(server: Running):
    for host in ("evil.example", "127.0.0.1.evil.example", "localhost.evil.example:80", ""):
        answer = server.get("/v1/models", headers={"Host": host})
        assert answer.status == 421 and answer.error
    for host in ("localhost", "LOCALHOST:80", "127.0.0.1:1", "[::1]:8000"):
        assert server.get("/v1/models", headers={"Host": host}).status == 200


def test_one_origin_may_be_let_in():
    with running({"tiny": diffusion_lm()}, cors=["https://good.example"], api_key="secret") as server:
        ask = {"Access-Control-Request-Method": "POST", "Access-Control-Request-Headers": "authorization"}
        good = server.ask("OPTIONS", "/v1/infill", headers={**ask, "Origin": "https://good.example"})
        assert good.status == 200 and good.headers["access-control-allow-origin"] == "https://good.example"
        evil = server.ask("OPTIONS", "/v1/infill", headers={**ask, "Origin": "https://evil.example"})
        assert evil.status == 400 and "access-control-allow-origin" not in evil.headers and evil.error
        made_up = server.ask("OPTIONS", "/v1/infill", headers={**ask, "Host": "evil.example"})
        assert made_up.status == 421
        for answer in (good, evil, made_up):
            assert "default-src 'none'" in answer.headers["content-security-policy"]
        assert server.ask("OPTIONS", "/v1/infill").status == 401  # without such a question it needs the key
        for path in ("/v1/models", "/nothing", "/v1/infill"):  # the page of that origin can read refusals, too
            answer = server.get(path, headers={"Origin": "https://good.example"})
            assert answer.status == 401 and answer.headers["access-control-allow-origin"] == "https://good.example"


def test_a_key_is_needed_where_one_is_set():
    with running({"tiny": diffusion_lm()}, api_key="se;cret~!") as server:
        for path in ("/", "/health", "/openapi.json", "/page/page.js"):
            assert server.get(path).status == 200
        wrong = [
            None,
            "Bearer",
            "Bearer ",
            "Bearer wrong",
            "Bearer secret",
            "Basic se;cret~!",
            "Bearer se;cret~!2",
            "se;cret~!",
            "Bearer se;cret~!\u00a0",
        ]
        for given in wrong:
            headers = {} if given is None else {"Authorization": given.encode().decode("latin-1")}
            for answer in (
                server.get("/v1/models", headers=headers),
                server.get("/metrics", headers=headers),
                server.post("/v1/infill", GOOD, headers=headers),
            ):
                assert answer.status == 401 and answer.error["code"] == "invalid_api_key"
                assert answer.headers["www-authenticate"] == "Bearer"
        headers = {"Authorization": "Bearer se;cret~!"}
        assert server.post("/v1/infill", GOOD, headers=headers).status == 200
        assert server.get("/metrics", headers=headers).status == 200


# -- what is told ----------------------------------------------------------------------------------------------------


def test_an_error_of_the_server_tells_nothing_and_harms_nobody_else(caplog):
    from unmask.serve import api

    with running({"tiny": diffusion_lm()}) as server, pytest.MonkeyPatch.context() as patch:
        patch.setattr(api, "prepare", lambda *_: 1 / 0)
        answer = server.post("/v1/infill", {"prompt": "the secret prompt", "length": 30})
        assert answer.status == 500 and "ZeroDivision" not in answer.body.decode() and answer.error
    assert "ZeroDivisionError" in caplog.text and "the secret prompt" not in caplog.text


def test_prompts_are_logged_only_if_asked(caplog):
    for asked in (False, True):
        caplog.clear()
        with caplog.at_level(logging.DEBUG), running({"tiny": diffusion_lm()}, log_prompts=asked) as server:
            server.post("/v1/infill", {"prompt": "a secret", "length": 10})
            server.post("/v1/infill", {"prompt": "a secret", "length": 1})
            wait_for(lambda: "/v1/infill" in caplog.text)
        assert ("a secret" in caplog.text) == asked


def test_html_stays_text(server: Running):
    text = "<script>alert(1)</script>"
    answer = server.post("/v1/infill", {"text": text + "{{2}}", "seed": 1})
    assert answer.json["samples"][0]["text"].startswith(text)
    assert answer.headers["content-type"] == "application/json"


# -- the command -----------------------------------------------------------------------------------------------------


def test_a_port_that_is_taken_is_a_sentence():
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = taken.getsockname()[1]
        ran = run("serve", "tiny-en", "--port", str(port))
    assert ran.code == 2 and f"127.0.0.1:{port}" in ran.err and "--port" in ran.err and "Traceback" not in ran.err


def test_wrong_settings_of_the_command_are_sentences(tmp_path):
    empty = tmp_path / "key"
    empty.write_text("\n")
    (odd := tmp_path / "odd").write_text("voilà")
    for words, said in (
        (["--api-key-file", str(tmp_path / "nothing")], "cannot read the API key"),
        (["--api-key-file", str(empty)], "is empty"),
        (["--api-key-file", str(odd)], "must consist of printable ASCII"),
        (["--batch-size", "0"], "--batch-size"),
        (["--timeout", "inf"], "--timeout"),
        (["--host", "no.such.host.invalid"], "no address"),
        (["--timeout", "nan"], "--timeout"),
    ):
        ran = run("serve", "tiny-en", "--port", "0", *words)
        assert ran.code == 2 and said in ran.err.replace("\n", " "), ran.err
    ran = run("serve", "a=tiny-en", "a=tiny-en", "--port", "0")
    assert ran.code == 2 and "two models are called a" in ran.err


def test_limits_are_checked():
    with pytest.raises(UserError, match="body=0"):
        Limits(body=0)
