"""What a request may ask for: hints for wrong names, sizes that are refused before memory is taken, siblings alike."""

from __future__ import annotations

import json
import logging
import re
import socket
from dataclasses import replace
from html.parser import HTMLParser

import pytest

from support.serving import Running, ar_lm, chat_lm, diffusion_lm, running, wait_for
from unmask.evaluation import default_method
from unmask.sampling.recommended import Recommended
from unmask.serve.api_page import EXAMPLES
from unmask.serve.app import INSTEAD
from unmask.serve.limits import Limits
from unmask.serve.preparation import prepare
from unmask.serve.schema import DiffusionBody, read

HEAD = b"POST %s HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\nContent-Length: %d\r\n\r\n"
POSTS = (
    "/v1/diffusion",
    "/v1/infill",
    "/v1/completions",
    "/v1/chat/completions",
    "/v1/score",
    "/v1/marginals",
    "/v1/choose",
    "/v1/tokenize",
)


@pytest.fixture(scope="module")
def server():
    with running() as one:
        yield one


# -- names -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("path", "body", "meant"),
    [
        ("/v1/infill", {"lenght": 8}, "length"),
        ("/v1/infill", {"max_tokens": 8}, "length"),  # OpenAI's name
        ("/v1/completions", {"length": 8}, "max_tokens"),
        ("/v1/completions", {"messages": []}, "prompt"),
        ("/v1/completions", {"stream_options": {"include_usag": True}}, "include_usage"),
        ("/v1/diffusion", {"sampler": "confidance"}, "confidence"),
        ("/v1/diffusion", {"model": "tinny"}, "tiny"),
        ("/v1/score", {"text": "a", "method": "exakt"}, "exact"),
        ("/v1/marginals", {"text": "a{{1}}", "tops": 3}, "top"),
        ("/v1/tokenize", {"txt": "a"}, "text"),
    ],
)
def test_a_wrong_name_gets_the_nearest(server: Running, path, body, meant):
    answer = server.post(path, body)
    assert answer.status == (404 if "model" in body else 400)
    assert f"(did you mean {meant!r}?)" in answer.error["message"]


def test_a_wrong_name_is_quoted_briefly(server: Running):
    for body in ({"x" * 9000: 1}, {"sampler": "y" * 9000}):
        assert len(server.post("/v1/diffusion", body).error["message"]) <= 400


def test_a_wrong_path_gets_the_nearest(server: Running):
    for path, meant in (("/v1/infil", "/v1/infill"), ("/completions", "/v1/completions"), ("/v1/model", "/v1/models")):
        assert f"(did you mean {meant!r}?)" in server.post(path, {}).error["message"]


def test_paths_of_other_servers_say_what_to_use(server: Running):
    for path in INSTEAD:
        answer = server.post(path, {"messages": [{"role": "user", "content": "hello"}]})
        assert answer.status == 404 and answer.error["message"] == INSTEAD[path]
    assert "/v1/completions" in INSTEAD["/v1/responses"]


# -- siblings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("body", [{"length": 8}, {"n": 2}, {}, {"prompt": ""}, {"suffix": "a"}], ids=str)
def test_infill_takes_what_diffusion_takes(server: Running, body):
    body = {**body, "seed": 3, "steps": 4}
    infill, diffusion = server.post("/v1/infill", body), server.post("/v1/diffusion", body)
    assert infill.status == diffusion.status == 200
    streamed = [data["text"] for name, data in diffusion.events if name == "done"]
    assert sorted(sample["text"] for sample in infill.json["samples"]) == sorted(streamed)


def test_answers_can_be_read_in_every_script(server: Running):
    text = "привет 世界 \u2028 🙂"
    for path, body in (
        ("/v1/infill", {"text": text + "{{2}}"}),
        ("/v1/completions", {"prompt": text, "max_tokens": 2, "echo": True}),
        ("/v1/score", {"text": text, "method": "bound", "draws": 1}),
        ("/v1/diffusion", {"text": text + "{{2}}"}),
    ):
        answer = server.post(path, {**body, "seed": 1} if path != "/v1/score" else body)
        assert answer.status == 200
        if path != "/v1/score":  # which has its bytes only
            assert "привет 世界" in answer.body.decode()
    assert "\\u" not in server.post("/v1/infill", {"text": "привет {{0}}"}).body.decode()


# -- recommended settings --------------------------------------------------------------------------------------------


def test_a_request_that_leaves_settings_open_gets_what_the_model_recommends():
    lm = replace(diffusion_lm(), recommended=Recommended({"temperature": 0.3, "top_k": 5}))
    body = {"prompt": "ab", "length": 20, "seed": 3, "steps": 4}
    how = {"length": 20, "seed": 3, "steps": 4, "prompt": "ab"}
    with running({"tiny": lm}) as server:
        card = server.get("/v1/models").json["data"][0]["unmask"]["recommended"]
        assert card["settings"] == {"temperature": 0.3, "top_k": 5}

        def text(**more) -> str:
            answer = server.post("/v1/infill", {**body, **more}).json
            assert answer["samples"][0]["text"] == server.post("/v1/diffusion", {**body, **more}).events[-2][1]["text"]
            return answer["samples"][0]["text"]

        settings = server.post("/v1/infill", body).json["settings"]
        assert settings["temperature"] == 0.3 and set(settings["recommended"]) == {"temperature", "top_k"}
        plain = lm.sample(exact=True, **how)[0]
        assert text() == lm.sample(**how)[0] == lm.sample(temperature=0.3, top_k=5, **how)[0] != plain
        for more in ({"exact": True}, {"temperature": 1}, {"temperature": 1.0, "top_k": 0}, {"top_k": 0}, {"top_p": 1}):
            assert text(**more) == plain
        assert text(temperature=0.5) == lm.sample(temperature=0.5, **how)[0]
        openai = {"prompt": "ab", "max_tokens": 18, "seed": 3, "steps": 4, "ignore_eos": True}
        found = [server.post("/v1/completions", openai | more).json for more in ({}, {"exact": True})]
        assert ["ab" + one["choices"][0]["text"] for one in found] == [text(), plain]
        scored = server.post("/v1/score", {"text": "hello"}).json["total"]["nats"]  # by the plain law
        assert scored == pytest.approx(diffusion_lm().score("hello", method=default_method(lm.model)).nats, rel=1e-5)


# -- the document as a page ------------------------------------------------------------------------------------------


class Links(HTMLParser):
    """The tags of a page and where they point to."""

    def __init__(self) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.targets: list[str] = []
        self.ids: list[str] = []

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.targets += [value for name, value in attrs if name in ("href", "src")]
        self.ids += [value for name, value in attrs if name == "id"]


def test_the_document_is_a_page_for_people():
    with running({"tiny": chat_lm()}) as server:
        check_document(server)


def check_document(server: Running) -> None:
    answer, document = server.get("/docs"), server.get("/openapi.json").json
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/html")
    page = answer.body.decode()
    links = Links()
    links.feed(page)
    assert "script" not in links.tags and "style" not in links.tags
    assert "https://arxiv.org/abs/2406.07524" in links.targets  # a link; nothing is loaded from elsewhere
    for target in set(links.targets) - {"https://arxiv.org/abs/2406.07524"}:
        assert target[1:] in links.ids if target.startswith("#") else server.get(target).status == 200
    for path, methods in document["paths"].items():
        assert path in page and all(
            operation["summary"].replace("'", "&#x27;") in page for operation in methods.values()
        )
    for schema in document["components"]["schemas"].values():
        for name, field in schema.get("properties", {}).items():
            assert name in page or name == "error"
            assert field.get("description", "").replace("'", "&#x27;") in page
    for path, body in EXAMPLES.items():  # they work as they stand
        assert server.post(path, body).status == 200, path
        command = re.search(rf"curl localhost:8000{path} .*?-d &#x27;(.*?)&#x27;|{path}.*?-d '(.*?)'</pre>", page, re.S)
        assert command
    assert set(EXAMPLES) == set(POSTS)


def test_the_page_of_the_document_needs_no_key():
    with running({"tiny": diffusion_lm()}, api_key="secret") as server:
        assert server.get("/docs").status == 200


# -- sizes -----------------------------------------------------------------------------------------------------------

SMALL = Limits(tokens=4096, alternatives=2000, length=1024, n=64, words=20, grace=1.0)


@pytest.mark.parametrize(
    ("path", "body", "param"),
    [
        ("/v1/diffusion", {"length": 48, "n": 8, "tops": 6}, "tops"),
        ("/v1/diffusion", {"length": 48, "n": 64, "tops": 1}, "tops"),
        ("/v1/diffusion", {"length": 1024, "stride": 40, "n": 5}, "n"),
        ("/v1/diffusion", {"text": "{{1}}" * 1025, "stride": 4}, "length"),
        ("/v1/diffusion", {"text": "{{900}} {{900}}", "stride": 4}, "length"),
        ("/v1/diffusion", {"prompt": "a" * 900_000}, "length"),
        ("/v1/diffusion", {"suffix": "a" * 900_000}, "length"),
        ("/v1/diffusion", {"length": 8, "ban": ["a"] * 21}, "allowed"),
        ("/v1/diffusion", {"length": 8, "allowed": {str(i): ["a"] * 3 for i in range(8)}}, "allowed"),
        ("/v1/completions", {"prompt": "a", "max_tokens": 40, "n": 8, "logprobs": 10}, "logprobs"),
        ("/v1/completions", {"prompt": ["a"] * 64, "suffix": "b" * 900_000}, "length"),
        ("/v1/completions", {"prompt": ["a"] * 64, "suffix": "b" * 2000}, "length"),
        ("/v1/tokenize", {"text": "a" * 900_000}, "length"),
        ("/v1/tokenize", {"text": "a{{1}}" * 1025}, "length"),
    ],
    ids=lambda value: json.dumps(value)[:40],
)
def test_what_is_too_much_is_refused(path, body, param, shared_small):
    answer = shared_small.post(path, body)
    assert answer.status == 400 and answer.error["param"] == param


@pytest.fixture(scope="module")
def shared_small():
    with running({"tiny": diffusion_lm()}, SMALL) as one:
        yield one


def test_what_is_just_enough_is_not_refused(shared_small: Running):
    assert shared_small.post("/v1/diffusion", {"length": 40, "n": 10, "tops": 5, "steps": 1}).status == 200
    assert shared_small.post("/v1/infill", {"length": 8, "ban": ["a"] * 20, "steps": 1}).status == 200


def test_alternatives_in_flight_are_counted_and_freed():
    """Two requests may have as many together as one alone; the second waits for its turn by being refused."""
    from support.serving import HeldNetwork

    held = HeldNetwork()
    with running({"tiny": held.lm}, Limits(alternatives=500, grace=1.0)) as server:
        body = {"length": 40, "tops": 10, "steps": 2, "seed": 1}
        first = server.connect()
        data = json.dumps(body).encode()
        first.sendall(HEAD % (b"/v1/diffusion", len(data)) + data)
        wait_for(lambda: held.calls)
        assert server.post("/v1/diffusion", body).status == 429
        held.release()
        wait_for(lambda: not server.engine.rows)
        assert server.post("/v1/diffusion", body).status == 200
        first.close()


def test_bodies_of_all_requests_are_counted_and_freed():
    with running({"tiny": diffusion_lm()}, Limits(body=5000, bodies=9000, grace=1.0)) as server:
        held = [server.connect() for _ in range(2)]
        for one in held:
            one.sendall(HEAD % (b"/v1/infill", 4900) + b" " * 4400)  # the rest never comes
        service = server.server.config.app.state.service
        wait_for(lambda: service._held == 8800)
        answer = server.post("/v1/infill", b'{"length": 4}' + b" " * 1000)
        assert answer.status == 429 and answer.headers["retry-after"] and answer.error
        assert server.post("/v1/infill", {"length": 4, "steps": 1}).status == 200  # a small one has room
        for one in held:
            one.close()
        wait_for(lambda: service._held == 0)
        assert server.post("/v1/infill", b'{"length": 4}' + b" " * 1000).status == 200


def test_samples_of_a_request_share_what_its_rules_were_read_into():
    """Rules of thousands of words are read once, not once for each sample; the samples are those of the library."""
    lm, words = diffusion_lm(), [chr(i) for i in range(97, 123)]
    body = {"length": 12, "n": 4, "seed": 5, "steps": 3, "only": words}
    requests = prepare(lm, read(DiffusionBody, json.dumps(body).encode()), Limits())
    assert len({id(request.rules) for request in requests}) == 1
    expected = lm.write([lm.prompt_canvas("", 12)] * 4, seed=5, steps=3, only=words)
    with running({"tiny": lm}) as server:
        found = server.post("/v1/infill", body).json["samples"]
    assert [sample["text"] for sample in found] == [sample.text for sample in expected]
    assert [sample["seed"] for sample in found] == [5, 6, 7, 8]


def test_nesting_is_no_way_in(server: Running):
    for path in POSTS:
        for depth in (500, 5000, 200_000):
            for field in (b"prompt", b"text", b"allowed", b"nothing", b"model"):
                for opening, closing in ((b"[", b"]"), (b'{"a":', b"}")):
                    body = b'{"' + field + b'": ' + opening * depth + b"1" + closing * depth + b"}"
                    answer = server.post(path, body)
                    assert answer.status in (400, 413) and answer.error


# -- connections -----------------------------------------------------------------------------------------------------


def test_clients_that_break_the_rules_and_go_leave_no_trace(caplog):
    """Nonsense behind a request, a wrong body after Expect, a reset: no error of the server, and all is freed."""
    head = b"POST /v1/tokenize HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
    reset = b"\x01\x00\x00\x00\x00\x00\x00\x00"
    with caplog.at_level(logging.WARNING), running({"tiny": diffusion_lm(), "ar": ar_lm()}) as server:
        for data in (
            b"GET /nothing HTTP/1.1\r\nHost: localhost\r\n\r\n0\r\n\r\n",
            head + b"Expect: 100-continue\r\nTransfer-Encoding: chunked\r\n\r\n-1\r\n",
            head + b"Upgrade: websocket\r\nConnection: upgrade\r\nContent-Length: 2\r\n\r\n{}",
            head + b"Content-Length: 5\r\nContent-Length: 6\r\n\r\n",
        ):
            for _ in range(5):
                with server.connect() as sock:
                    sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, reset)
                    sock.sendall(data)
        wait_for(lambda: not server.server.server_state.connections)
        assert server.get("/health").status == 200
    assert not caplog.text
