"""The API: what comes back is what the library gives offline, event by event; OpenAI's own client can talk to it."""

from __future__ import annotations

import json
import math
import re
import shutil
import subprocess
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

import unmask
from support.serving import Running, ar_lm, diffusion_lm, parse_events, running
from unmask.evaluation import default_method

MASK = "□"


@pytest.fixture(scope="module")
def server():
    with running() as one:
        yield one


def replay(events) -> dict[int, list]:
    """The pieces of every sample, by what the events say."""
    (name, start), *rest = events
    assert name == "start"
    canvas = {sample["index"]: [token["piece"] for token in sample["tokens"]] for sample in start["samples"]}
    for name, data in rest:
        if name == "step":
            for position, token, piece, prob, *_ in data["changes"]:
                assert (token is None) == (piece is None) and 0 <= prob <= 1
                canvas[data["index"]][position] = piece
    return canvas


# -- results equal those of the library ------------------------------------------------------------------------------

REQUESTS = [
    {"prompt": "ab", "length": 20, "steps": 5, "seed": 3, "n": 2},
    {"length": 7, "seed": 11, "sampler": "first-hitting"},
    {"text": "one {{4}} two {{3}}.", "seed": 5, "steps": 64, "temperature": 0.7},
    {"prompt": "x", "suffix": "yz", "length": 31, "seed": 8, "sampler": "confidence", "k": 3},
    {"length": 40, "seed": 1, "steps": 12, "sampler": "remask-cap", "eta": 0.2},
    {"length": 33, "seed": 2, "steps": 9, "sampler": "ancestral", "top_k": 20},
    {"prompt": "long", "length": 90, "stride": 20, "seed": 4, "steps": 6},
    {"length": 48, "seed": 6, "sampler": "left-to-right", "k": 2, "top_p": 0.9, "min_p": 0.01},
    {"text": "{{2-4}} is", "seed": 6, "steps": 3},
    {"length": 12, "seed": 9, "sampler": "gibbs", "steps": 30},
]


def offline(body: dict) -> list:
    """The same request to the library."""
    how = dict(body)
    lm = ar_lm() if how.pop("model", None) == "ar" else diffusion_lm()
    n, prompt, suffix, length = how.pop("n", 1), how.pop("prompt", ""), how.pop("suffix", ""), how.pop("length", None)
    windowed = how.get("stride") is not None
    text = how.pop("text", None)
    canvas = lm.prompt_canvas(prompt, length, suffix, windowed) if text is None else lm.gap_canvas(text)
    return lm.write([canvas] * n, **how)


@pytest.mark.parametrize("body", REQUESTS, ids=lambda body: body.get("sampler", "plan"))
def test_a_diffusion_is_that_of_the_library(server: Running, body):
    answer = server.post("/v1/diffusion", {**body, "tops": 2})
    assert answer.status == 200 and answer.headers["content-type"].startswith("text/event-stream")
    events, expected = answer.events, offline(body)
    canvas = replay(events)
    done = {data["index"]: data for name, data in events if name == "done"}
    for index, sample in enumerate(expected):
        assert done[index]["text"] == sample.text and done[index]["seed"] == sample.seed
        assert done[index]["calls"] == sample.network_calls
        assert canvas[index] == [token.piece for token in sample.tokens]
    name, end = events[-1]
    written = sum(not token.given for sample in expected for token in sample.tokens)
    assert name == "end" and end["usage"]["completion_tokens"] == written
    assert end["usage"]["network_calls"] == sum(sample.network_calls for sample in expected)


def test_all_of_them_at_once_come_out_the_same(server: Running):
    """Different lengths, plans, steps and models share network calls; nobody's text depends on who else is there."""
    bodies = [*REQUESTS, *({"model": "ar", "prompt": "ab"[: i % 3], "length": 10 + i, "seed": i} for i in range(6))] * 2
    expected = [[sample.text for sample in offline(body)] for body in bodies]
    before = server.metric("unmask_network_calls_total")
    with ThreadPoolExecutor(len(bodies)) as pool:
        answers = list(
            pool.map(
                lambda body: server.post("/v1/infill", {"prompt": "", **body} if "text" not in body else body), bodies
            )
        )
    for answer, texts in zip(answers, expected, strict=True):
        assert [sample["text"] for sample in answer.json["samples"]] == texts
    calls = sum(sample["network_calls"] for answer in answers for sample in answer.json["samples"])
    assert server.metric("unmask_network_calls_total") - before < calls / 2  # they did share


def test_only_changes_are_sent_and_alternatives_if_asked_for(server: Running):
    plain = server.post("/v1/diffusion", {"length": 30, "steps": 6, "seed": 1}).events
    steps = [data for name, data in plain if name == "step"]
    places = [change[0] for data in steps for change in data["changes"]]
    assert sorted(places) == list(range(30))  # each of them once
    assert all(len(change) == 4 for data in steps for change in data["changes"])
    assert [data["calls"] for data in steps] == list(range(1, len(steps) + 1))
    tops = server.post("/v1/diffusion", {"length": 30, "steps": 6, "seed": 1, "tops": 3}).events
    for name, data in tops:
        for change in data["changes"] if name == "step" else ():
            assert len(change[4]) == 3 and change[4] == sorted(change[4], key=lambda top: -top[1])
            best = diffusion_lm().tokenizer.pieces([top[2] for top in change[4]])
            assert [top[0] for top in change[4]] == best


def test_a_remasked_position_is_null(server: Running):
    body = {"length": 40, "seed": 1, "steps": 20, "sampler": "remask-cap", "eta": 0.5}
    changes = [
        change
        for name, data in server.post("/v1/diffusion", body).events
        if name == "step"
        for change in data["changes"]
    ]
    assert any(change[1:] == [None, None, 0] for change in changes)


def test_a_server_draws_a_seed_and_tells_it(server: Running):
    first = server.post("/v1/infill", {"prompt": "a", "length": 20}).json["samples"][0]
    second = server.post("/v1/infill", {"prompt": "a", "length": 20}).json["samples"][0]
    assert first["seed"] != second["seed"]
    again = server.post("/v1/infill", {"prompt": "a", "length": 20, "seed": first["seed"]}).json["samples"][0]
    assert again["text"] == first["text"]


def test_infill_tells_of_tokens_if_asked(server: Running):
    body = {"text": "a{{3}}b", "seed": 2, "tokens": True}
    (sample,) = server.post("/v1/infill", body).json["samples"]
    assert [token["given"] for token in sample["tokens"]] == [True, False, False, False, True]
    assert all(0 < token["prob"] <= 1 for token in sample["tokens"] if not token["given"])


def test_tokens_are_those_a_model_is_given(server: Running):
    found = server.post("/v1/tokenize", {"text": "añ {{2}}."}).json
    ids = diffusion_lm().encode("añ ")
    assert [token["id"] for token in found["tokens"]] == [*ids, None, None, *diffusion_lm().encode(".")]
    assert found["count"] == 7 and found["tokens"][0]["piece"] == "a" and found["tokens"][-2]["piece"] is None
    assert server.post("/v1/tokenize", {"text": ""}).json["count"] == 0
    long = server.post("/v1/tokenize", {"text": "a" * 4096}).json  # more than the model's length
    assert long["count"] == 4096
    for wrong in ("a" * 4097, "{{5000}}", "{{x}}", "{{" * 400_000):  # the last one: in linear time
        answer = server.post("/v1/tokenize", {"text": wrong})
        assert answer.status == 400 and answer.error["message"]


# -- curl ------------------------------------------------------------------------------------------------------------


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_the_commands_of_the_docs(server: Running):
    page = (Path(__file__).parents[2] / "docs" / "serving.md").read_text()
    commands = re.findall(r"^curl (?:.*\\\n)*.*", page, re.MULTILINE)
    assert len(commands) >= 4
    answers = {}
    for command in commands:
        command = command.replace("localhost:8000", f"localhost:{server.port}")
        told = subprocess.run(["bash", "-c", command], capture_output=True, text=True, timeout=60)
        assert told.returncode == 0, told.stderr
        assert '"error"' not in told.stdout
        answers.setdefault(re.search(r"/v1/(\w+)", command)[1], told.stdout)
    samples = json.loads(answers["infill"])["samples"]
    expected = diffusion_lm().infill("The {{2}} sat on the {{3}}.", n=2, seed=1)
    assert [one["text"] for one in samples] == expected
    events = parse_events(answers["diffusion"])
    assert events[0][0] == "start" and events[-1][0] == "end"
    text = next(data["text"] for name, data in events if name == "done")
    assert text.startswith("Once upon a time")
    assert json.loads(answers["score"])["total"]["tokens"] == len("The cat sat on the mat.")
    assert json.loads(answers["completions"])["choices"][0]["text"]


@pytest.mark.skipif(shutil.which("curl") is None, reason="curl is not installed")
def test_curl_sees_clean_errors(server: Running):
    def curl(*words: str) -> tuple[int, str]:
        told = subprocess.run(
            ["curl", "-s", "-w", "\n%{http_code}", *words], capture_output=True, text=True, timeout=60
        )
        body, _, status = told.stdout.rpartition("\n")
        return int(status), body

    address, kind = f"localhost:{server.port}/v1/infill", ("-H", "Content-Type: application/json")
    for words, status in (
        (("-d", "{}"), 415),
        ((*kind, "-d", "{"), 400),
        ((*kind, "-d", '{"lenght": 3}'), 400),
        ((*kind, "-d", '{"prompt": "", "steps": -1}'), 400),
        (("-X", "PUT"), 405),
        ((), 405),
    ):
        found, body = curl(address, *words)
        assert found == status and json.loads(body)["error"]["message"], (words, body)
    assert curl(address.replace("infill", "nothing"))[0] == 404


# -- OpenAI's completions --------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(server: Running):
    openai = pytest.importorskip("openai")
    with openai.OpenAI(base_url=f"http://127.0.0.1:{server.port}/v1", api_key="none", max_retries=0) as one:
        yield one


def expected_text(prompt: str, tokens: int, seed: int, suffix: str = "", lm=None, **how) -> str:
    lm = lm or diffusion_lm()
    canvas = lm.prompt_canvas(prompt, len(prompt) + len(suffix) + tokens, suffix)
    (sample,) = lm.write([canvas], seed=seed, stop_at_eos=not suffix, **how)
    assert sample.text.startswith(prompt) and sample.text.endswith(suffix)
    return sample.text[len(prompt) : len(sample.text) - len(suffix)]


def test_openai_plain(client):
    found = client.completions.create(model="tiny", prompt="abc", max_tokens=12, n=2, seed=7, temperature=0.8)
    assert found.object == "text_completion" and found.model == "tiny"
    assert [choice.index for choice in found.choices] == [0, 1]
    for i, choice in enumerate(found.choices):
        assert choice.text == expected_text("abc", 12, 7 + i, temperature=0.8)
    assert found.usage.prompt_tokens == 3
    assert found.usage.total_tokens == 3 + found.usage.completion_tokens


def test_openai_stream_is_append_only_and_the_same_text(client):
    for model, lm in (("tiny", diffusion_lm()), ("ar", ar_lm())):
        texts, reasons, usage = ["", ""], [None, None], None
        chunks = 0
        for chunk in client.completions.create(
            model=model, prompt="abc", max_tokens=30, n=2, seed=7, stream=True, stream_options={"include_usage": True}
        ):
            usage = chunk.usage or usage
            for choice in chunk.choices:
                texts[choice.index] += choice.text
                reasons[choice.index] = choice.finish_reason or reasons[choice.index]
                chunks += 1
        assert texts == [expected_text("abc", 30, 7 + i, lm=lm) for i in range(2)]
        assert set(reasons) <= {"stop", "length"} and usage.prompt_tokens == 3
        if model == "ar":
            assert chunks > 10  # it came in pieces


def test_openai_suffix_stop_and_echo(client):
    found = client.completions.create(model="tiny", prompt="abc", suffix="xyz", max_tokens=6, seed=3)
    assert found.choices[0].text == expected_text("abc", 6, 3, "xyz")
    streamed = client.completions.create(model="tiny", prompt="abc", suffix="xyz", max_tokens=6, seed=3, stream=True)
    assert "".join(chunk.choices[0].text for chunk in streamed) == found.choices[0].text
    whole = client.completions.create(model="tiny", prompt="abc", max_tokens=40, seed=3, echo=True).choices[0]
    assert whole.text == "abc" + expected_text("abc", 40, 3)
    letter = whole.text[10]
    cut = client.completions.create(model="tiny", prompt="abc", max_tokens=40, seed=3, stop=[letter]).choices[0]
    assert cut.finish_reason == "stop"
    assert cut.text == whole.text[3:].partition(letter)[0]


STOPS = [
    {"stop": "."}, {"stop": ["the", ", "]}, {"stop": " and ", "sampler": "confidence", "steps": 8},
    {"stop": "e", "sampler": "remask-cap", "steps": 16}, {"stop": "\n"}, {}, {"stop": ".", "logprobs": 2},
]  # fmt: skip


def test_a_stream_ends_where_the_text_does():
    lm, prompt, seeds = unmask.load("tiny-en"), "Once upon a time", (0,)
    bodies = [{"prompt": prompt, "max_tokens": 24, "seed": seed, **how} for how in STOPS for seed in seeds]
    streams = [{**body, "stream": True} for body in bodies]
    with running({"tiny-en": lm}) as server, ThreadPoolExecutor(2 * len(bodies)) as pool:  # all of them in one batch
        answers = list(pool.map(lambda body: server.post("/v1/completions", body), [*bodies, *streams]))
    canvas, offline = lm.prompt_canvas(prompt, 24 + len(lm.encode(prompt))), []
    for how in STOPS:
        stop = [how["stop"]] if isinstance(how.get("stop"), str) else how.get("stop", [])
        options = {name: how[name] for name in ("sampler", "steps") if name in how}
        offline += lm.write([canvas] * len(seeds), seed=seeds[0], stop=stop, stop_at_eos=True, **options)
    for body, plain, stream, sample in zip(bodies, answers, answers[len(bodies) :], offline, strict=False):
        (choice,) = plain.json["choices"]
        streamed = [event["choices"][0] for _, event in stream.events[:-1]]
        assert "".join(piece["text"] for piece in streamed) == choice["text"]
        assert streamed[-1]["finish_reason"] == choice["finish_reason"]
        assert sample.text == prompt + choice["text"] and sample.seed == body["seed"]
    assert len(offline) == len(bodies)


def test_openai_prompts_and_logprobs(client):
    found = client.completions.create(
        model="tiny",
        prompt=["ab", "c"],
        max_tokens=5,
        n=2,
        seed=1,
        logprobs=2,
        extra_body={"ignore_eos": True, "steps": 3},
    )
    assert [choice.index for choice in found.choices] == [0, 1, 2, 3]
    for i, choice in enumerate(found.choices):
        prompt, lm = ["ab", "ab", "c", "c"][i], diffusion_lm()
        (sample,) = lm.write([lm.prompt_canvas(prompt, len(prompt) + 5)], seed=1 + i, steps=3)
        assert choice.text == sample.text[len(prompt) :]
        written = [token for token in sample.tokens if not token.given]
        assert choice.logprobs.tokens == [token.piece for token in written]
        assert choice.logprobs.token_logprobs == pytest.approx([math.log(token.prob) for token in written], rel=1e-4)
        for token, log, tops in zip(
            choice.logprobs.tokens, choice.logprobs.token_logprobs, choice.logprobs.top_logprobs, strict=True
        ):
            assert 2 <= len(tops) <= 3 and tops[token] == pytest.approx(log, rel=1e-4)  # the best two, and the token


def test_openai_echo_with_logprobs(client):
    found = client.completions.create(
        model="tiny", prompt="ab", max_tokens=5, seed=1, logprobs=1, echo=True, suffix="z", extra_body={"steps": 3}
    )
    logprobs = found.choices[0].logprobs
    assert logprobs.tokens[:2] == ["a", "b"] and logprobs.token_logprobs[:2] == logprobs.top_logprobs[:2] == [
        None,
        None,
    ]
    assert len(logprobs.tokens) == 7 and None not in logprobs.token_logprobs[2:]  # and nothing of the suffix
    assert logprobs.text_offset[:3] == [0, 1, 2]


def test_openai_errors_are_those_of_its_client(client):
    import openai

    with pytest.raises(openai.NotFoundError, match="no model 'gpt'"):
        client.completions.create(model="gpt", prompt="a")
    with pytest.raises(openai.BadRequestError, match="at most 48 tokens"):
        client.completions.create(model="tiny", prompt="a", max_tokens=1000)
    with pytest.raises(openai.BadRequestError, match="presence_penalty"):
        client.completions.create(model="tiny", prompt="a", presence_penalty=1)
    with pytest.raises(openai.BadRequestError, match="send a prompt to /v1/completions"):
        client.chat.completions.create(model="tiny", messages=[{"role": "user", "content": "hello"}])
    assert [model.id for model in client.models.list()] == ["tiny", "ar"]
    assert client.models.retrieve("ar").id == "ar"


def test_the_stream_ends_as_openai_says(server: Running):
    answer = server.post("/v1/completions", {"prompt": "a", "max_tokens": 3, "stream": True, "seed": 0})
    events = parse_events(answer.body.decode())
    assert events[-1] == ("message", "[DONE]") and {name for name, _ in events} == {"message"}


# -- scores ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["tiny", "ar"])
def test_scores_are_those_of_the_library(server: Running, model):
    lm = diffusion_lm() if model == "tiny" else ar_lm()
    found = server.post("/v1/score", {"model": model, "texts": ["hello", "you there"], "seed": 4}).json
    expected = lm.score(["hello", "you there"], method=default_method(lm.model), seed=4)
    for got, one in zip(found["texts"], expected.texts, strict=True):
        assert got["nats"] == pytest.approx(one.nats, rel=1e-5) and got["pieces"] == one.pieces
        assert got["token_nats"] == pytest.approx(one.token_nats, rel=1e-5)
    assert found["total"]["nats"] == pytest.approx(expected.nats, rel=1e-5)
    assert found["protocol"]["method"] == default_method(lm.model)


def test_a_span_is_scored_given_the_rest(server: Running):
    found = server.post("/v1/score", {"text": "hello", "spans": [[1, 3]], "method": "exact"}).json
    expected = diffusion_lm().score("hello", span=(1, 3), method="exact")
    assert found["total"]["nats"] == pytest.approx(expected.nats, rel=1e-5) and found["total"]["tokens"] == 2
    assert server.post("/v1/score", {"text": "hello", "spans": [[1, 30]]}).status == 400


# -- marginals -------------------------------------------------------------------------------------------------------


def test_marginals_are_those_of_the_library(server: Running):
    texts, lm = ["hel{{2}} you", "{{1}}a", "ab {{1-3}} cd"], diffusion_lm()
    found = server.post("/v1/marginals", {"texts": texts, "top": 4}).json
    assert found["object"] == "marginals" and found["model"] == "tiny"
    for got, one in zip(found["texts"], lm.marginals(texts, top=4), strict=True):
        want = one.as_dict()
        assert set(got) == set(want) and got["ids"] == want["ids"] and got["gaps"] == want["gaps"]
        for place, same in zip(got["positions"], want["positions"], strict=True):
            assert {name: place[name] for name in ("position", "ids", "pieces")} == {
                name: same[name] for name in ("position", "ids", "pieces")
            }
            assert place["probs"] == pytest.approx(same["probs"], rel=1e-5)
            assert place["entropy"] == pytest.approx(same["entropy"], rel=1e-5)


def test_marginals_of_one_text_and_of_all_tokens(server: Running):
    (text,) = server.post("/v1/marginals", {"text": "a{{1}}b", "top": 300}).json["texts"]
    (place,) = text["positions"]
    assert text["ids"] == [97, None, 98] and sum(place["probs"]) == pytest.approx(1) and len(place["ids"]) == 258


def test_an_autoregressive_model_has_no_marginals(server: Running):
    answer = server.post("/v1/marginals", {"model": "ar", "text": "a{{1}}b"})
    assert answer.status == 400 and "inside a text" in answer.error["message"]


def test_choices_are_those_of_the_library(server: Running):
    found = server.post("/v1/choose", {"text": "hel{{}} you", "choices": ["lo", "p!"]}).json
    want = diffusion_lm().choose("hel{{}} you", ["lo", "p!"])
    assert found["object"] == "choices" and [one["text"] for one in found["choices"]] == ["lo", "p!"]
    assert [one["probability"] for one in found["choices"]] == pytest.approx(
        [one.probability for one in want], rel=1e-4
    )
    left = server.post("/v1/choose", {"model": "ar", "text": "a", "choices": ["b", "cd"]}).json
    assert sum(one["probability"] for one in left["choices"]) == pytest.approx(1)
    many = {"text": "a", "choices": [str(i) for i in range(100)]}
    for body, said in (({"text": "a", "choices": ["b", "b"]}, "two different choices"), (many, "more than 64")):
        answer = server.post("/v1/choose", body)
        assert answer.status == 400 and said in answer.error["message"]


def test_marginals_are_counted_under_their_path():
    with running({"tiny": diffusion_lm()}) as server:
        server.post("/v1/marginals", {"text": "a{{1}}"})
        metrics = server.get("/metrics").body.decode()
        assert 'unmask_requests_total{code="200",method="POST",path="/v1/marginals"} 1' in metrics


# -- what there is ---------------------------------------------------------------------------------------------------


def test_models_tell_what_they_can(server: Running):
    cards = {card["id"]: card["unmask"] for card in server.get("/v1/models").json["data"]}
    assert cards["ar"]["samplers"] == ["left-to-right"] and cards["ar"]["infills"] is False
    assert {"plan", "first-hitting", "confidence", "remask-cap"} <= set(cards["tiny"]["samplers"])
    assert cards["tiny"]["length"] == 48 and cards["tiny"]["vocab_size"] == 259
    for sampler in cards["tiny"]["samplers"]:
        more = {} if sampler in ("first-hitting", "left-to-right") else {"steps": 8}
        assert server.post("/v1/infill", {"prompt": "a", "length": 8, "sampler": sampler, **more}).status == 200


def test_the_page_and_its_files(server: Running):
    page = server.get("/")
    assert page.status == 200 and page.headers["content-type"].startswith("text/html")
    tag = page.headers["etag"]
    assert server.get("/", headers={"If-None-Match": tag}).status == 304
    assert server.get("/page/page.js").headers["content-type"].startswith("text/javascript")
    for path in ("/page/..%2fapp.py", "/page/../app.py", "/page/app.py", "/page/", "/page/%2e%2e", "/page/__init__.py"):
        assert server.get(path).status == 404
        assert server.get(path).error


def test_metrics_count_requests_tokens_and_calls():
    with running() as server:
        server.post("/v1/infill", {"prompt": "abcd", "length": 24, "seed": 0, "n": 3, "steps": 4})
        server.post("/v1/infill", {"prompt": "abcd", "length": 2})
        expected = diffusion_lm().write([diffusion_lm().prompt_canvas("abcd", 24)] * 3, seed=0, steps=4)
        most = max(sample.network_calls for sample in expected)
        text = server.get("/metrics").body.decode()
        values = dict(line.rsplit(" ", 1) for line in text.splitlines() if not line.startswith("#"))
        assert float(values['unmask_tokens_total{kind="given"}']) == 12
        assert float(values['unmask_tokens_total{kind="written"}']) == 60
        assert float(values['unmask_network_calls_total{model="tiny"}']) == most
        rows = 'unmask_batch_rows_sum{model="tiny"}'
        assert float(values[rows]) == sum(sample.network_calls for sample in expected)
        assert float(values['unmask_requests_total{code="200",method="POST",path="/v1/infill"}']) == 1
        assert float(values['unmask_requests_total{code="400",method="POST",path="/v1/infill"}']) == 1
        bounds = [
            float(value)
            for name, value in values.items()
            if name.startswith("unmask_request_seconds_bucket") and "/v1/infill" in name
        ]
        assert bounds == sorted(bounds) and bounds[-1] == 2
        kinds = [line.split()[2] for line in text.splitlines() if line.startswith("# TYPE")]
        assert len(kinds) == len(set(kinds))  # a name is announced once


KINDS = {
    "unmask_requests": "counter", "unmask_request_seconds": "histogram", "unmask_first_event_seconds": "histogram",
    "unmask_queue_seconds": "histogram", "unmask_tokens": "counter", "unmask_sequences": "counter",
    "unmask_network_calls": "counter", "unmask_batch_rows": "histogram", "unmask_network_seconds": "counter",
    "unmask_rows": "gauge", "unmask_rows_active": "gauge", "unmask_tokens_in_flight": "gauge",
    "process_resident_memory_bytes": "gauge",
}  # fmt: skip


def test_every_server_has_metrics_of_its_own(server: Running):
    from prometheus_client.parser import text_string_to_metric_families

    server.post("/v1/infill", {"prompt": "abcd", "length": 6})
    with running() as other:
        other.post("/v1/infill", {"prompt": "abcd", "length": 6})
        families = {
            family.name: family for family in text_string_to_metric_families(other.get("/metrics").body.decode())
        }
    assert {name: families[name].type for name in KINDS} == KINDS
    samples = [sample for family in families.values() for sample in family.samples]
    assert not any(sample.name.endswith("_created") for sample in samples)
    assert [sample.value for sample in samples if sample.name == "unmask_requests_total"] == [1]


def test_the_openapi_document_knows_every_field(server: Running):
    found = server.get("/openapi.json").json
    assert found["openapi"].startswith("3.1")
    assert set(found["paths"]) >= {
        "/v1/diffusion",
        "/v1/infill",
        "/v1/completions",
        "/v1/score",
        "/v1/marginals",
        "/v1/models",
    }
    fields = found["components"]["schemas"]["DiffusionBody"]
    assert {"prompt", "text", "steps", "seed", "tops", "sampler"} <= set(fields["properties"])
    assert fields["additionalProperties"] is False
    assert json.dumps(found).count("#/components/schemas/CompletionBody") == 1


def test_many_threads_ask_for_many_things(server: Running):
    """A barrier lets them go at once."""
    barrier, found = threading.Barrier(12), {}

    def ask(i: int) -> None:
        barrier.wait()
        body = {"prompt": "q", "length": 6 + 3 * i, "seed": i, "steps": 1 + i}
        found[i] = server.post("/v1/infill", body).json["samples"][0]["text"]

    threads = [threading.Thread(target=ask, args=(i,)) for i in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    lm = diffusion_lm()
    for i in range(12):
        (sample,) = lm.write([lm.prompt_canvas("q", 6 + 3 * i)], seed=i, steps=1 + i)
        assert found[i] == sample.text
