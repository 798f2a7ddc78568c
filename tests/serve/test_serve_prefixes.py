"""What the server keeps of texts that have ended: a later turn is the same and reads only what is new."""

from __future__ import annotations

import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from support.serving import Running, chat_lm, post_head, running, wait_for
from unmask.lm import LM
from unmask.serve.limits import Limits

COLUMN = 2 * 1 * 32 * 4  # bytes of keys and values of a token: one block, 32 numbers of four bytes
LETTERS = list("abcdefgh")
BYTES, REUSED, DROPPED = (
    f'unmask_prefix_{name}{{model="%s"}}' for name in ("cache_bytes", "tokens_reused_total", "dropped_total")
)
each_cached = pytest.mark.parametrize("method", ["ar", "block"])


def ask(server: Running, method: str, messages: list[dict[str, str]], **more: object) -> str:
    body = {"model": method, "messages": messages, "max_tokens": 8, "only": LETTERS, **more}
    answer = server.post("/v1/chat/completions", body)
    assert answer.status == 200, answer.body
    return answer.json["choices"][0]["message"]["content"]


def talk(server: Running, method: str, questions: list[str], seed: int) -> list[dict[str, str]]:
    """A conversation; every answer is that of the library, which keeps nothing."""
    messages: list[dict[str, str]] = []
    for k, question in enumerate(questions):
        messages.append({"role": "user", "content": question})
        text = ask(server, method, messages, seed=seed + k)
        assert text == chat_lm(method).chat(messages, max_tokens=8, seed=seed + k, only=LETTERS)[0]
        messages.append({"role": "assistant", "content": text})
    return messages


class Reading:
    """Counts the columns that the network of a model reads; it may be held."""

    def __init__(self, lm: LM) -> None:
        self.columns: list[int] = []
        self.free = threading.Event()
        self.free.set()
        self.hook = lm.model.backbone.register_forward_pre_hook(self._count)

    def _count(self, _network: object, args: tuple) -> None:
        self.columns.append(args[0].tokens.numel() if hasattr(args[0], "tokens") else args[0].numel())
        assert self.free.wait(60)


@pytest.fixture
def reading(method):
    one = Reading(chat_lm(method))
    yield one
    one.hook.remove()


@each_cached
def test_the_next_turn_reads_only_what_is_new(method, reading):
    lm, messages, before = chat_lm(method), [], 0
    block = 1 if method == "ar" else 16  # the start symbol; the block that is written, and one that was not read
    with running({method: lm}) as server:
        for k, question in enumerate(("Hi, you", "And?", "Who")):
            messages.append({"role": "user", "content": question})
            reading.columns.clear()
            text = ask(server, method, messages, seed=k)
            given = len(lm.chat_template.prompt(messages))
            assert reading.columns[0] <= given - before + block
            assert k or reading.columns[0] >= given
            messages.append({"role": "assistant", "content": text})
            before = given
        assert server.metric(REUSED % method) >= 50 and 0 < server.metric(BYTES % method) <= 96 * COLUMN


@each_cached
def test_conversations_at_once_are_those_of_the_library(method):
    talks = [["Hi", "And?", "Why"], ["Hi", "Who", "Oh"], ["Hello", "And?"], ["Hi", "And?", "No"]]
    with running({method: chat_lm(method)}) as server:
        with ThreadPoolExecutor(len(talks)) as pool:
            list(pool.map(lambda one: talk(server, method, one[1], 10 * one[0]), enumerate(talks)))
        assert server.metric(REUSED % method) > 0
        assert not server.engine._queues[method].batcher.model.read


@each_cached
def test_the_least_recently_used_are_dropped_within_the_limit(method):
    limit = 3 * 96 * COLUMN  # a third is for the text under way
    with running({method: chat_lm(method)}, Limits(cache=limit, grace=1.0)) as server:
        for k in range(6):
            talk(server, method, [f"{k} is my number, what is yours?", "And?"], k)
            under_way = server.engine._queues[method].cache_peak
            assert server.metric(BYTES % method) + under_way <= limit
        assert server.metric(DROPPED % method) >= 3 and server.metric(BYTES % method) > 0


@each_cached
def test_samples_of_one_request_and_completions(method):
    lm = chat_lm(method)
    how = {"max_tokens": 8, "n": 3, "seed": 2, "only": LETTERS}
    with running({method: lm}) as server:
        for prompt in ("Once upon a time there", "Once upon a time there was a", "Once upon another"):
            found = server.post("/v1/completions", {"model": method, "prompt": prompt, **how}).json["choices"]
            canvas = lm.prompt_canvas(prompt, len(lm.prompt_builder.prompt(prompt, "", 96, False).ids))
            given = int((canvas.ids != lm.tokenizer.vocab.mask).sum())
            texts = lm.sample(3, prompt=prompt, length=given + 8, seed=2, only=LETTERS)
            assert [prompt + one["text"] for one in found] == texts
        assert server.metric(REUSED % method) >= 3 * 16


@each_cached
def test_a_cancelled_request_leaves_nothing_inconsistent(method, reading):
    lm, messages = chat_lm(method), [{"role": "user", "content": "Hi, how are you today?"}]
    with running({method: lm}) as server:
        batcher = server.engine._queues[method].batcher
        for calls in (0, 1, 3):
            reading.columns.clear()
            reading.free.clear()
            with server.connect() as sock:
                body = {"model": method, "messages": messages, "max_tokens": 24, "stream": True, "ignore_eos": True}
                sock.sendall(post_head(body, "/v1/chat/completions"))
                wait_for(lambda: len(reading.columns) > 0)
                if calls:
                    reading.free.set()
                    wait_for(lambda n=calls: len(reading.columns) > n)
            wait_for(lambda: server.engine.rows == 0 or all(h.cancelled for h in server.engine._queues[method].handles))
            reading.free.set()
            wait_for(lambda: server.engine.rows == 0)
            assert not batcher.model.read and not batcher.busy
            talk(server, method, ["Hi, how are you today?", "And?"], calls)
        assert server.metric(REUSED % method) > 0


def test_a_network_that_fails_keeps_nothing(monkeypatch):
    lm = chat_lm("ar")
    with running({"ar": lm}) as server:
        talk(server, "ar", ["Hi"], 0)
        assert server.metric(BYTES % "ar") > 0
        with monkeypatch.context() as broken:
            broken.setattr(type(lm.model), "log_x", lambda *_: 1 / 0)
            body = {"model": "ar", "messages": [{"role": "user", "content": "Hi"}]}
            assert server.post("/v1/chat/completions", body).status == 500
        assert server.metric(BYTES % "ar") == 0
        talk(server, "ar", ["Hi", "And?"], 0)


def test_it_can_be_turned_off_and_models_without_a_cache_have_none():
    with running({"ar": chat_lm("ar"), "mdlm": chat_lm()}, prefix_cache=False) as server:
        talk(server, "ar", ["Hi", "And?"], 0)
        assert server.metric("unmask_prefix") == 0
    with running({"mdlm": chat_lm()}) as server:
        ask(server, "mdlm", [{"role": "user", "content": "Hi"}], steps=2)
        assert server.metric("unmask_prefix") == 0
