"""Models that keep keys and values: blocks in continuous batching, what their caches cost, and who is told so."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.helpers import random_lm
from support.serving import Running, ar_lm, block_lm, diffusion_lm, post_head, running, wait_for
from unmask.cli.serve import how_it_writes
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.sampling import SamplingParams
from unmask.serve.limits import Limits

COLUMN = 2 * 1 * 32 * 4  # bytes of keys and values of a token: one block, 32 numbers of four bytes
CACHES = 'unmask_cache_bytes{model="%s"}'


class Gate:
    """A model whose network makes as many calls as the test permits."""

    def __init__(self, lm: LM) -> None:
        kind = ("model.method=ar",) if lm.model.exact else ("model.method=block", "block.size=8")
        self.lm = random_lm(bytes_tokenizer(), "data.length=48", "model.hidden_dim=32", *kind, scale=2.0)
        self.lm.model.load_state_dict(lm.model.state_dict())
        self._permits, self.calls, self._open = threading.Semaphore(0), 0, False
        self.lm.model.backbone.register_forward_pre_hook(self._wait)

    def _wait(self, *_: object) -> None:
        if not self._open:
            assert self._permits.acquire(timeout=60)
        self.calls += 1

    def permit(self, calls: int) -> None:
        until = self.calls + calls
        self._permits.release(calls)
        wait_for(lambda: self.calls >= until)

    def open(self) -> None:
        self._open = True
        self._permits.release(1)


@pytest.fixture(scope="module")
def server():
    with running({"blocks": block_lm(), "ar": ar_lm(), "tiny": diffusion_lm()}) as one:
        yield one


def slots_of(server: Running, name: str) -> int:
    return len(server.engine._queues[name].batcher.model.read)


# -- writing ---------------------------------------------------------------------------------------------------------


def test_texts_of_many_requests_are_those_of_the_library(server: Running):
    lm = block_lm()
    how = [
        {"prompt": "ab", "length": 48, "seed": 1, "steps": 3},
        {"prompt": "", "length": 30, "seed": 2, "block": 4, "sampler": "first-hitting"},
        {"prompt": "a long beginning", "length": 40, "seed": 3, "block": 1},
        {"prompt": "abc", "suffix": "xyz", "length": 20, "seed": 4, "steps": 5},
        {"prompt": "ab", "length": 33, "seed": 5, "block": 48, "steps": 4},
        {"prompt": "ab", "length": 33, "seed": 5, "block": "full", "steps": 4},
        {"prompt": "q", "length": 41, "seed": 6, "sampler": "remask-cap", "eta": 0.3, "steps": 6},
        {"prompt": "q", "length": 70, "seed": 7, "stride": 24, "steps": 3},
    ]
    with ThreadPoolExecutor(len(how)) as pool:
        answers = list(pool.map(lambda body: server.post("/v1/infill", {**body, "model": "blocks"}), how))
    for body, answer in zip(how, answers, strict=True):
        assert answer.status == 200, answer.body
        (sample,) = lm.write_samples(1, **body)
        assert answer.json["samples"][0]["text"] == sample.text
        assert answer.json["settings"]["block"] == body.get("block", 8)
    assert slots_of(server, "blocks") == 0 and server.metric(CACHES % "blocks") == 0


def test_a_stream_grows_block_by_block_and_never_changes(server: Running):
    lm = block_lm()
    body = {"model": "blocks", "prompt": "abcd", "max_tokens": 44, "seed": 5, "only": [*"abcdef"]}
    for more in ({"steps": 4}, {"steps": 6, "sampler": "remask-cap", "eta": 0.4}, {"sampler": "confidence", "k": 2}):
        answer = server.post("/v1/completions", {**body, **more, "stream": True})
        pieces = [data["choices"][0]["text"] for _, data in answer.events[:-1]]
        (sample,) = lm.write_samples(1, prompt="abcd", length=48, seed=5, only=[*"abcdef"], **more)
        assert "abcd" + "".join(pieces) == sample.text
        assert len([piece for piece in pieces if piece]) >= 5  # of six blocks
        if "eta" in more:  # a sampler that takes tokens back: a block is said when it is finished
            assert {len(piece) for piece in pieces[1:]} <= {0, 8} and len(pieces[0]) == 4


def test_events_name_the_block_that_is_written(server: Running):
    events = server.post(
        "/v1/diffusion", {"model": "blocks", "prompt": "abcd", "length": 30, "seed": 1, "steps": 4}
    ).events
    steps = [data for name, data in events if name == "step"]
    left = set(range(4, 30))
    for data in steps:
        left -= {change[0] for change in data["changes"]}
        start = min(left, default=30) // 8 * 8
        assert data.get("block") == ([start, min(start + 8, 30)] if left else None)
    for other in ({"suffix": "z"}, {"block": 48}):  # a single block is no news
        events = server.post("/v1/diffusion", {"model": "blocks", "prompt": "a", "length": 20, **other}).events
        assert all("block" not in data for name, data in events if name == "step")


def test_a_text_in_one_block_goes_less_often_than_those_in_small_ones():
    lm = block_lm()
    batcher = lm.model.batcher(5, 8)
    for row in range(5):
        how = {"block": 48, "steps": 128} if row == 0 else {"sampler": "left-to-right"}
        batcher.add(lm.request(lm.prompt_canvas("", 48), SamplingParams(seed=row, **how), row=row))
    steps = [{state.row for state, _ in batcher.step()} for _ in range(12)]
    assert all(rows >= {1, 2, 3, 4} for rows in steps)
    assert [0 in rows for rows in steps].count(True) == 2  # 48 tokens are six blocks


# -- what caches cost ------------------------------------------------------------------------------------------------


def test_a_cache_that_can_never_fit_is_refused_with_both_numbers():
    lms = {"blocks": block_lm(), "ar": ar_lm(), "tiny": diffusion_lm()}
    with running(lms, Limits(cache=30 * COLUMN, grace=1.0)) as server:
        for model in ("blocks", "ar"):
            body = {"model": model, "prompt": "a", "length": 40}
            answer = server.post("/v1/infill", body)
            columns = 40 + (model == "ar")  # a start symbol
            assert answer.status == 400 and answer.error["code"] == "cache_limit_exceeded"
            for word in (f"{columns * COLUMN / 1e6:.1f} MB", f"{30 * COLUMN / 1e6:.1f} MB", "--max-cache", "40 tokens"):
                assert word in answer.error["message"]
            assert server.post("/v1/infill", {**body, "length": 29}).status == 200
        assert server.post("/v1/infill", {"model": "tiny", "prompt": "a", "length": 40}).status == 200  # has none
        for single in ({"block": 40}, {"block": "full"}, {"suffix": "b"}):  # keeps nothing
            body = {"model": "blocks", "prompt": "a", "length": 40, **single}
            assert server.post("/v1/infill", body).status == 200


@pytest.mark.parametrize("lm", [block_lm, ar_lm])
def test_sequences_wait_until_their_caches_fit(lm):
    gate = Gate(lm())
    with running({"one": gate.lm}, Limits(cache=2 * 31 * COLUMN, grace=1.0)) as server, ThreadPoolExecutor(2) as pool:
        small = pool.submit(server.post, "/v1/infill", {"prompt": "a", "length": 15, "n": 5, "seed": 1})
        wait_for(lambda: server.engine.rows == 5)
        gate.permit(1)
        assert server.engine.active == (62 // 15 if lm is block_lm else 62 // 16)  # which has a start symbol
        large = pool.submit(server.post, "/v1/infill", {"prompt": "a", "length": 30, "n": 3, "seed": 9})
        wait_for(lambda: server.engine.rows == 8)
        gate.open()
        assert len(small.result().json["samples"]) == 5 and len(large.result().json["samples"]) == 3
        assert 0 < server.metric('unmask_cache_peak_bytes{model="one"}') <= 2 * 31 * COLUMN
        assert server.metric(CACHES % "one") == 0


@pytest.mark.parametrize("lm", [block_lm, ar_lm])
def test_a_cancelled_stream_frees_its_cache_at_once(lm):
    gate = Gate(lm())
    with running({"one": gate.lm}) as server:
        body = {"prompt": "ab", "length": 48, "seed": 1, "n": 3}
        sock = server.connect()
        sock.sendall(post_head(body if lm is ar_lm else {**body, "sampler": "first-hitting"}))
        wait_for(lambda: server.engine.active == 3)
        gate.permit(20)
        wait_for(lambda: server.metric(CACHES % "one") >= 3 * 16 * COLUMN)
        assert slots_of(server, "one") == 3
        sock.close()
        wait_for(lambda: all(handle.cancelled for handle in server.engine._queues["one"].handles))
        calls = gate.calls
        gate.open()
        wait_for(lambda: server.engine.rows == 0)
        assert gate.calls - calls <= 1
        assert slots_of(server, "one") == 0 and server.metric(CACHES % "one") == 0
        assert server.metric('unmask_cache_peak_bytes{model="one"}') >= 3 * 16 * COLUMN


def test_the_default_limit_is_a_share_of_the_memory(monkeypatch):
    monkeypatch.setattr("unmask.serve.limits._memory", lambda device: 800)
    with running({"a": block_lm(), "b": ar_lm(), "c": diffusion_lm()}) as server:
        assert server.engine.limits.cache == 100  # a quarter, for two models with caches
        assert "--max-cache" in server.post("/v1/infill", {"model": "a", "prompt": "a"}).error["message"]


# -- what is said of blocks ------------------------------------------------------------------------------------------


def test_a_card_tells_its_blocks(server: Running):
    cards = {card["id"]: card["unmask"] for card in server.get("/v1/models").json["data"]}
    blocks = cards["blocks"]
    assert blocks["method"] == "block" and blocks["default_sampler"] == "plan" and blocks["infills"]
    assert blocks["block_size"] == 8 and blocks["block_sizes"] == {"1": 0.25, "8": 0.5, "full": 0.25}
    assert {"plan", "first-hitting", "confidence", "left-to-right"} <= set(blocks["samplers"])
    assert cards["tiny"]["block_size"] is None and cards["tiny"]["block_sizes"] == {}
    offered = {name: {one["name"] for one in card["settings"]} for name, card in cards.items()}
    assert [name for name in offered if "block" in offered[name]] == ["blocks"]


def test_the_start_says_methods_and_block_sizes():
    assert [how_it_writes(lm()) for lm in (block_lm, ar_lm, diffusion_lm)] == ["block, 8 tokens a block", "ar", "mdlm"]


def test_blocks_are_documented_where_there_are_any(server: Running):
    def bodies(one: Running) -> set[str]:
        schemas = one.get("/openapi.json").json["components"]["schemas"]
        return {name for name, schema in schemas.items() if "block" in schema["properties"]}

    assert bodies(server) == {"DiffusionBody", "InfillBody", "ChatBody", "CompletionBody", "ScoreBody"}
    with running({"tiny": diffusion_lm()}) as other:
        assert bodies(other) == set()


@pytest.mark.parametrize("model", ["tiny", "ar"])
def test_a_model_without_blocks_refuses_them(server: Running, model):
    answer = server.post("/v1/infill", {"model": model, "prompt": "a", "length": 9, "block": 4})
    assert answer.status == 400
    assert answer.error["message"].startswith("block=4 is for models of method block, which this one is not")
    for wrong in (0, -1, "whole", 1.5, True):
        answer = server.post("/v1/infill", {"model": "blocks", "prompt": "a", "length": 9, "block": wrong})
        assert answer.status == 400 and answer.error["message"].startswith("block")
    assert answer.error["param"] == "block"
    said = server.post("/v1/infill", {"model": "blocks", "prompt": "a", "length": 9, "block": "whole"}).error["message"]
    assert said == "block='whole' must be a whole number of tokens, or full"


def test_scores_are_by_the_law_of_a_block_size(server: Running):
    lm = block_lm()
    for block in (1, 4, "full", None):
        body = {"model": "blocks", "text": "hello you", "seed": 4} | ({} if block is None else {"block": block})
        found, expected = server.post("/v1/score", body).json, lm.score("hello you", block=block, seed=4)
        assert found["total"]["nats"] == pytest.approx(expected.nats, rel=1e-5)
        assert found["protocol"]["law"] == expected.protocol["law"]
    for wrong in (0, "whole", 1.5):
        assert server.post("/v1/score", {"model": "blocks", "text": "hello", "block": wrong}).status == 400
    assert "block" in server.post("/v1/score", {"model": "tiny", "text": "hello", "block": 4}).error["message"]
