"""The lm-evaluation-harness: log-likelihoods against enumeration and hand-made sums, tasks from local files."""

from __future__ import annotations

import contextlib
import functools
import io
import itertools
import json
import logging
import math
import re
import runpy
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st
from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from oracles.enumeration import (
    LENGTH,
    MASK,
    SCHEDULES,
    VOCAB,
    XS,
    Denoiser,
    State,
    TableNet,
    V,
    keep_grid,
    last_step,
    nelbo_continuous,
    nelbo_discrete,
    random_joint,
)
from support.helpers import SENTENCE, once, random_lm, sentence, tiny_config
from unmask.data.tokenization import Tokenizer, bpe_tokenizer, bytes_tokenizer, chars_tokenizer
from unmask.hub.lm_eval import GenerationRequests, LikelihoodRequests, adapter, settings
from unmask.hub.lm_eval.adapter import protocol
from unmask.hub.lm_eval.likelihood_requests import split, windows
from unmask.hub.resolve import checkpoint
from unmask.lm import LM
from unmask.models.masked import MaskedDiffusion
from unmask.process.schedule import ContinuousTime, DiscreteTime, Law
from unmask.types import UserError

LETTERS = {0: "a", 2: "b", 3: "c"}  # the tokens of the table; 1 is [MASK]
JOINT = random_joint(5)
ALL_SETS = 2**LENGTH - 1


# -- models ----------------------------------------------------------------------------------------------------------


def letters() -> Tokenizer:
    """One letter a token, [MASK] in the middle."""
    backend = Backend(models.WordLevel({"a": 0, "[MASK]": MASK, "b": 2, "c": 3}, unk_token="a"))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken("[MASK]", special=True, normalized=False)])
    return Tokenizer(backend, VOCAB, "letters")


def table_lm(net: TableNet, law: Law | None = None) -> LM:
    """A model of three letters about which everything is known."""
    model = MaskedDiffusion(net, SCHEDULES["log-linear"], law or ContinuousTime(0.0)).eval()
    return LM(model, letters(), tiny_config(f"data.length={LENGTH}"))


@functools.cache
def bytes_lm(*overrides: str) -> LM:
    return random_lm(bytes_tokenizer(), *overrides, scale=3.0)


def ar_lm(*overrides: str) -> LM:
    return bytes_lm("model.method=ar", *overrides)


@functools.cache
def chars_lm(*overrides: str) -> LM:
    """Writes letters only: bytes need not be text, and a random model ends it as soon as anything."""
    lm = random_lm(chars_tokenizer([SENTENCE]), *overrides, scale=3.0)
    vocab, bias = lm.tokenizer.vocab, lm.model.get_parameter("backbone.output_layer.linear.bias")
    with torch.no_grad():
        bias[[0, vocab.pad, vocab.eos]] = -1000.0
    return lm


def text_of(x: tuple[int, ...]) -> str:
    return "".join(LETTERS[token] for token in x)


def pairs_of(reading: LikelihoodRequests, pairs: list[tuple[str, str]]) -> list[tuple[float, bool]]:
    out: dict[int, tuple[float, bool]] = {}
    reading.pairs(pairs, lambda i, value, greedy: out.update({i: (value, greedy)}))
    return [out[i] for i in range(len(pairs))]


def texts_of(reading: LikelihoodRequests, texts: list[str]) -> list[float]:
    out: dict[int, float] = {}
    reading.texts(texts, lambda i, value, _: out.update({i: value}))
    return [out[i] for i in range(len(texts))]


def written(asking: GenerationRequests, requests: list[tuple[str, dict[str, Any]]]) -> list[str]:
    out: dict[int, str] = {}
    asking.write(requests, lambda i, text: out.update({i: text}))
    return [out[i] for i in range(len(requests))]


# -- slow truths -----------------------------------------------------------------------------------------------------


def bound_by_orders(x: State, places: tuple[int, ...], denoise: Denoiser) -> float:
    """The continuous bound: one token after the other, the mean over every order of its chain rule."""
    orders = list(itertools.permutations(places))
    total = 0.0
    for order in orders:
        for i, place in enumerate(order):
            z = tuple(MASK if j in order[i:] else token for j, token in enumerate(x))
            total -= denoise(z, math.nan)[place, x[place]]
    return total / len(orders)


def dense_bound(x: State, denoise: Denoiser, law: Law) -> float:
    """The bound of a law by dense matrices and polynomials."""
    if isinstance(law, DiscreteTime):
        times = [i / law.steps for i in range(law.steps + 1)]
        return nelbo_discrete(x, denoise, keep_grid("log-linear", law.steps), times)
    assert isinstance(law, ContinuousTime)  # all that is masked at mask rate `cutoff` goes in one step
    return nelbo_continuous(x, denoise, 0.0, 1 - law.cutoff) + last_step(x, denoise, 1 - law.cutoff, 0.0)


def greedy_by_hand(x: State, cut: int, denoise: Denoiser) -> State:
    """The likeliest token for one mask after the other, from `cut` on."""
    z = list(x[:cut]) + [MASK] * (LENGTH - cut)
    for place in range(cut, LENGTH):
        z[place] = int(np.argmax(denoise(tuple(z), math.nan)[place]))
    return tuple(z)


def next_log_p(lm: LM, ids: list[int]) -> Tensor:
    """(L, V) log-probabilities of each token of a row given those before it, by one plain forward pass."""
    model: Any = lm.model
    mask = lm.tokenizer.vocab.mask
    inputs = torch.tensor([[mask, *ids[:-1]] if model.start else ids])
    with torch.no_grad():
        logits = model.backbone.head(model.backbone(inputs)[0][0]).double()
    logits[:, mask] = -math.inf
    log_p = torch.log_softmax(logits, -1)
    return log_p if model.start else torch.cat([torch.full((1, log_p.shape[1]), math.nan), log_p[:-1]])


def ar_by_hand(lm: LM, before: list[int], asked: list[int]) -> tuple[float, bool]:
    log_p = next_log_p(lm, [*before, *asked])[len(before) :]
    best = log_p.argmax(-1).tolist() == asked
    return float(log_p[range(len(asked)), asked].sum()), best


# -- log-likelihoods of diffusion models -----------------------------------------------------------------------------


@pytest.mark.parametrize("cut", range(LENGTH))
def test_a_true_denoiser_gives_the_conditional_probability(cut: int) -> None:
    found = pairs_of(
        LikelihoodRequests(table_lm(TableNet.exact(JOINT)), draws=ALL_SETS),
        [(text_of(x[:cut]), text_of(x[cut:])) for x in XS],
    )
    contexts = [sum(p for y, p in JOINT.items() if y[:cut] == x[:cut]) for x in XS]
    truth = [math.log(JOINT[x] / context) for x, context in zip(XS, contexts, strict=True)]
    assert [value for value, _ in found] == pytest.approx(truth, abs=1e-5)


@pytest.mark.parametrize("cut", range(LENGTH))
def test_few_tokens_are_enumerated(cut: int) -> None:
    net = TableNet.random(11)
    reading = LikelihoodRequests(table_lm(net), draws=ALL_SETS)
    found = pairs_of(reading, [(text_of(x[:cut]), text_of(x[cut:])) for x in XS])
    truth = [-bound_by_orders(x, tuple(range(cut, LENGTH)), net.denoiser()) for x in XS]
    assert [value for value, _ in found] == pytest.approx(truth, abs=1e-5)
    again = LikelihoodRequests(table_lm(net), draws=ALL_SETS, seed=1)
    assert pairs_of(again, [("a", "bc")]) == pairs_of(reading, [("a", "bc")])  # nothing was drawn


@pytest.mark.parametrize("law", [DiscreteTime(3), ContinuousTime(0.2)], ids=repr)
def test_enumeration_knows_the_law(law: Law) -> None:
    net = TableNet.random(2)
    found = pairs_of(LikelihoodRequests(table_lm(net, law), draws=ALL_SETS), [("", text_of(x)) for x in XS])
    assert [-value for value, _ in found] == pytest.approx([dense_bound(x, net.denoiser(), law) for x in XS], abs=1e-5)


@pytest.mark.parametrize("estimator", ["strata", "times"])
@pytest.mark.parametrize("cut", [0, 1])
def test_draws_are_unbiased(estimator: str, cut: int) -> None:
    net = TableNet.random(4)
    lm, x = table_lm(net), (2, 0, 3)
    pair = [(text_of(x[:cut]), text_of(x[cut:]))]
    drawn = [
        pairs_of(LikelihoodRequests(lm, draws=2, estimator=estimator, seed=seed), pair)[0][0] for seed in range(250)
    ]
    truth = -bound_by_orders(x, tuple(range(cut, LENGTH)), net.denoiser())
    assert abs(np.mean(drawn) - truth) < 4 * np.std(drawn, ddof=1) / math.sqrt(len(drawn))
    assert len(set(drawn)) > 1


@pytest.mark.parametrize("timed", [False, True])
def test_greedy_is_what_it_would_write(timed: bool) -> None:
    net = TableNet.random(6, timed=timed)
    reading = LikelihoodRequests(table_lm(net), draws=1, rows=2)
    for cut in range(LENGTH):
        found = pairs_of(reading, [(text_of(x[:cut]), text_of(x[cut:])) for x in XS])
        greedy = {x for x, (_, same) in zip(XS, found, strict=True) if same}
        assert len(greedy) == 3**cut  # one continuation of each context
        if not timed:
            assert greedy == {greedy_by_hand(x, cut, net.denoiser()) for x in XS}


def test_greedy_is_the_samplers() -> None:
    lm = chars_lm()
    for context, size in (("one", 1), ("two ", 3), ("f", 5)):
        canvas = lm.prompt_canvas(context, len(context) + size)
        (sample,) = lm.write([canvas], sampler="left-to-right", temperature=0.0)
        text = sample.text[len(context) :]
        assert lm.tokenizer.encode(text) == sample.ids[len(context) :]  # no end of text in it
        others = [text[:-1] + letter for letter in "onetwhrfu." if letter != text[-1]]
        found = pairs_of(LikelihoodRequests(lm, draws=1), [(context, answer) for answer in (text, *others)])
        assert [same for _, same in found] == [True] + [False] * len(others)


def test_numbers_depend_on_the_request_alone() -> None:
    lm = bytes_lm()
    pairs = [("one two", " three"), ("one", " two three"), ("", "four five"), ("one two", " seven")]
    reading = LikelihoodRequests(lm, draws=8)
    together = pairs_of(reading, pairs)
    assert pairs_of(LikelihoodRequests(lm, draws=8), pairs[::-1]) == together[::-1]
    assert [pairs_of(reading, [pair])[0] for pair in pairs] == together
    small = pairs_of(LikelihoodRequests(lm, draws=8, rows=3), pairs)
    assert [value for value, _ in small] == pytest.approx([value for value, _ in together], rel=1e-5)
    other = pairs_of(LikelihoodRequests(lm, draws=8, seed=1), pairs)
    assert all(a != b for (a, _), (b, _) in zip(other, together, strict=True))


def test_answers_of_equal_length_hide_the_same_positions() -> None:
    """The spread of a difference over seeds, with the numbers in common and with numbers of their own."""
    reading = [LikelihoodRequests(bytes_lm(), draws=4, seed=seed) for seed in range(60)]
    pairs = [("one two", " three four"), ("one two", " three five")]
    a, b = np.array([[value for value, _ in pairs_of(r, pairs)] for r in reading]).T
    assert np.var(a - b) < 0.5 * (np.var(a) + np.var(b))


def test_a_context_that_is_seen_is_never_hidden() -> None:
    lm = bytes_lm()
    seen: list[Tensor] = []
    hidden = type(lm.model).hidden

    def spy(self: Any, z: Tensor, *rest: Any, **named: Any) -> Tensor:
        seen.append(z)
        return hidden(self, z, *rest, **named)

    with mock.patch.object(type(lm.model), "hidden", spy):
        pairs_of(LikelihoodRequests(lm, draws=40), [("one two", " three f")])
    z = torch.cat(seen)
    assert (z[:, :7] == torch.tensor(list(b"one two"))).all()
    assert (z[:, 7:] == lm.tokenizer.vocab.mask).any(1).all()


# -- autoregressive models -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("rows", [1, 3, 32])
@pytest.mark.parametrize("start", ["true", "false"])
def test_autoregressive_is_exact(start: str, rows: int) -> None:
    lm = ar_lm(f"objective.start_token={start}")
    pairs = [("one two", " three"), ("o", "ne"), ("", "four five"), ("two", "x"), ("ab", "é ☃")]
    found = pairs_of(LikelihoodRequests(lm, rows=rows), pairs)
    for (context, continuation), (value, greedy) in zip(pairs, found, strict=True):
        before = list(context.encode())
        if not before and start == "false":
            before = [lm.tokenizer.vocab.bos]
        truth, best = ar_by_hand(lm, before, list(continuation.encode()))
        assert value == pytest.approx(truth, abs=1e-4)
        assert greedy is best


def test_autoregressive_greedy_by_hand() -> None:
    lm = ar_lm()
    answers = [chr(c) for c in range(128)]
    for context in ("one", "t"):
        best = int(next_log_p(lm, [*context.encode(), 0])[-1].argmax())
        found = pairs_of(LikelihoodRequests(lm), [(context, answer) for answer in answers])
        assert [i for i, (_, same) in enumerate(found) if same] == ([best] if best < 128 else [])


# -- block models ----------------------------------------------------------------------------------------------------


@functools.cache
def block_lm(size: int, *overrides: str) -> LM:
    return random_lm(chars_tokenizer([SENTENCE]), "model.method=block", f"block.size={size}", *overrides, scale=2.0)


@pytest.mark.parametrize("size", [1, 2, 4])
def test_block_models_continue_a_context_in_their_blocks(size: int) -> None:
    """As `lm.score` has it: exact for blocks of 1, else the sum over all sets of each block; greedy as they write."""
    lm = block_lm(size)
    reading = LikelihoodRequests(lm, draws=15, rows=3)
    pairs = [("one t", "wo three"), ("o", "ne"), ("", "four"), ("two three ", "four")]
    found = pairs_of(reading, pairs)
    for (context, answer), (value, _) in zip(pairs, found, strict=True):
        whole = context + answer
        want = lm.score(whole, span=(len(context), len(whole)))
        assert -value == pytest.approx(want.nats, rel=1e-4) and want.stderr_nats == 0
    texts = ["one two", "three four.", "x"]
    assert texts_of(reading, texts) == pytest.approx([-one.nats for one in lm.score(texts).texts], rel=1e-4)
    assert reading.used == ("none: exact" if size == 1 else "strata")


def test_the_block_size_of_model_args_is_that_of_scores_and_of_writing() -> None:
    lm, pair = block_lm(4), [("one t", "wo three")]
    for block in (1, 2, "full", None):
        model = adapter()(pretrained=lm, draws=15, **({} if block is None else {"block": block}))
        [(value, _)] = pairs_of(model.reading, pair)
        want = lm.score("one two three", span=(5, 13), block=block)
        assert -value == pytest.approx(want.nats, rel=1e-4) or want.stderr_nats > 0
        assert model.reading.exact is (block == 1)
        told = protocol(model.settings, model.reading, model.asking)
        assert told["block"] == ("the whole row" if block == "full" else block or 4)
        assert told["writing"]["block"] == (block or 4)
    for block, says in ((0, "block=0 must be at least 1"), ("half", "must be a whole number of tokens, or full")):
        with pytest.raises(UserError, match=says):
            adapter()(pretrained=lm, block=block)
    with pytest.raises(UserError, match="block=4 is for models of method block"):
        adapter()(pretrained=bytes_lm(), block=4)


@pytest.mark.parametrize("size", [1, 4])
def test_greedy_of_block_models_is_the_samplers(size: int) -> None:
    lm = block_lm(size)
    vocab, bias = lm.tokenizer.vocab, lm.model.get_parameter("backbone.output_layer.linear.bias")
    with torch.no_grad():
        bias[[0, vocab.pad, vocab.eos]] = -1000.0
    for context, count in (("one", 1), ("two ", 3), ("f", 6)):
        canvas = lm.prompt_canvas(context, len(context) + count)
        (sample,) = lm.write([canvas], sampler="left-to-right", temperature=0.0)
        text = sample.text[len(context) :]
        others = [text[:-1] + letter for letter in "onetwhrfu." if letter != text[-1]]
        found = pairs_of(LikelihoodRequests(lm, draws=1), [(context, answer) for answer in (text, *others)])
        assert [same for _, same in found] == [True] + [False] * len(others)


@pytest.mark.parametrize("size", [1, 4])
def test_block_models_pay_for_the_end_of_a_text(size: int) -> None:
    lm = block_lm(size, "data.layout=pad")
    found = texts_of(LikelihoodRequests(lm, draws=15), ["one", "two three"])
    assert found == pytest.approx([-one.nats for one in lm.score(["one", "two three"]).texts], rel=1e-4)


# -- tokens and windows ----------------------------------------------------------------------------------------------


@functools.cache
def bpe() -> LM:
    return random_lm(bpe_tokenizer([SENTENCE * 20], 300))


WORDS = st.text(alphabet="one twhrfu.é☃[MASK]\n", max_size=12)


@given(WORDS, WORDS)
@effort(max_examples=150)
def test_tokens_are_those_of_the_whole_text(context: str, continuation: str) -> None:
    lm = bpe()
    before, after = split(lm.prompt_builder, context, continuation)
    assert [*before, *after] == lm.tokenizer.encode(context + continuation)
    read = lm.tokenizer.decode(before).encode("utf-8", "replace")
    assert context.encode().startswith(read.rstrip("\ufffd".encode()))
    assert bool(after) == bool(continuation)
    if after:  # no token of the continuation is left out, and none that has nothing of it is counted
        assert lm.tokenizer.decode(after).endswith(continuation)
        assert sum(len(lm.tokenizer.piece(token)) for token in after[1:]) < len(
            continuation.encode()
        )  # a byte a letter


def test_words_keep_their_space() -> None:
    lm = bpe()
    assert split(lm.prompt_builder, "one", " two") == split(lm.prompt_builder, "one ", "two")
    before, after = split(lm.prompt_builder, "one two thr", "ee")
    assert lm.tokenizer.decode(after) == " three" and lm.tokenizer.decode(before) == "one two"


@given(st.integers(0, 20), st.integers(0, 30), st.integers(2, 9), st.integers(0, 1))
def test_windows_cover_everything_once(context: int, count: int, room: int, given: int) -> None:
    before, after = list(range(max(given, context))), list(range(100, 100 + count))
    done: list[int] = []
    for seen, asked in windows(before, after, room, given):
        assert given <= len(seen) and len(asked) > 0 and len(seen) + len(asked) <= room
        whole = [*before, *done]
        assert whole[len(whole) - len(seen) :] == seen
        assert len(seen) == min(len(whole), room - len(asked))  # as much as fits
        done += asked
    assert done == after
    assert len(list(windows(before, after, room, given))) == (count > 0) or count > room - given


def test_long_contexts_are_cut_from_the_left() -> None:
    context = "nothing to see, " * 3 + "one two"
    for lm in (bytes_lm(), ar_lm()):  # 16 tokens
        reading = LikelihoodRequests(lm, draws=3)
        (cut,) = pairs_of(reading, [(context, " three")])
        assert reading.seen["contexts_cut"] == 1
        assert pairs_of(reading, [(context[-10:], " three")]) == [cut]
        assert pairs_of(reading, [(context[-9:], " three")]) != [cut]
        assert reading.seen["contexts_cut"] == 1


def test_long_continuations_are_sums_over_windows() -> None:
    text = "one two three four five six seven"
    lm = ar_lm()
    reading = LikelihoodRequests(lm)
    ((value, _),) = pairs_of(reading, [("zero ", text)])
    ids, total = list(("zero " + text).encode()), 0.0
    for start in range(5, len(ids), 8):
        asked = ids[start : start + 8]
        total += ar_by_hand(lm, ids[max(0, start - (16 - len(asked))) : start], asked)[0]
    assert value == pytest.approx(total, abs=1e-3)
    assert reading.seen == {"contexts_cut": 0, "continuations_in_windows": 1}


@pytest.mark.parametrize("make", [bytes_lm, ar_lm, bpe, lambda: block_lm(1), lambda: block_lm(4)])
def test_any_text_is_a_request(make: Any) -> None:
    pairs = [("", ""), ("one", ""), ("", "x"), (" ", " "), ("[MASK]", "[EOS]"), ("é", "☃ 🙂"), ("\ud83d", "\udc00 one")]
    found = pairs_of(LikelihoodRequests(make(), draws=2), pairs)
    assert found[:2] == [(0.0, True)] * 2
    assert all(math.isfinite(value) and value < 0 for value, _ in found[2:])


def test_rows_with_block_ends_begin_with_bos() -> None:
    lm = ar_lm("data.block_ends=true")
    ((value, _),) = pairs_of(LikelihoodRequests(lm), [("one", " two")])
    assert value == pytest.approx(ar_by_hand(lm, [lm.tokenizer.vocab.bos, *b"one"], list(b" two"))[0], abs=1e-4)
    assert LikelihoodRequests(lm).room == 14


# -- whole texts -----------------------------------------------------------------------------------------------------


def test_whole_texts_go_in_blocks() -> None:
    net = TableNet.random(8)
    texts = ["abc", "cabbca", "", "bbb"]
    truth = [
        -sum(bound_by_orders(ids[i : i + 3], (0, 1, 2), net.denoiser()) for i in range(0, len(ids), 3))
        for ids in (tuple({"a": 0, "b": 2, "c": 3}[letter] for letter in text) for text in texts)
    ]
    assert texts_of(LikelihoodRequests(table_lm(net), draws=ALL_SETS), texts) == pytest.approx(truth, abs=1e-5)


def test_block_ends_are_hidden_as_in_training_and_not_counted() -> None:
    """Two letters between BOS and EOS: all 15 sets, against draws of the model's own bound by time."""
    lm = bytes_lm("data.block_ends=true")
    (value,) = texts_of(LikelihoodRequests(lm, draws=15), ["ab"])
    times = [LikelihoodRequests(lm, draws=200, estimator="times", seed=seed, rows=200) for seed in range(20)]
    drawn = [texts_of(reading, ["ab"])[0] for reading in times]
    assert abs(np.mean(drawn) - value) < 4 * np.std(drawn, ddof=1) / math.sqrt(len(drawn))
    assert value == texts_of(LikelihoodRequests(lm, draws=15, seed=3), ["ab"])[0]


@pytest.mark.parametrize("start", ["true", "false"])
def test_whole_texts_of_an_autoregressive_model(start: str) -> None:
    lm = ar_lm(f"objective.start_token={start}")
    text = "one two three four five six"
    prefix = [] if start == "true" else [lm.tokenizer.vocab.bos]
    size = 16 - len(prefix)  # every token is scored, whatever stands before
    ids = list(text.encode())
    truth = sum(ar_by_hand(lm, prefix, ids[i : i + size])[0] for i in range(0, len(ids), size))
    assert texts_of(LikelihoodRequests(lm), [text]) == pytest.approx([truth], abs=1e-3)


def test_sedd_has_whole_texts_only() -> None:
    reading = LikelihoodRequests(bytes_lm("model.method=sedd", "model.time_conditioning=true"), draws=4)
    assert texts_of(reading, ["one two"])[0] < 0
    with pytest.raises(UserError, match="span given its context"):
        pairs_of(reading, [("one", " two")])


# -- writing ---------------------------------------------------------------------------------------------------------


def greedy_text(lm: LM, context: str, count: int) -> str:
    """The likeliest next token again and again, up to an end of text."""
    ids = lm.tokenizer.encode(context)
    for _ in range(count):
        ids.append(int(next_log_p(lm, [*ids, 0])[-1].argmax()))
    new, eos = ids[-count:], lm.tokenizer.vocab.eos
    return lm.tokenizer.decode(new[: new.index(eos)] if eos in new else new)


def test_greedy_writing_by_hand() -> None:
    lm = chars_lm("model.method=ar")
    how = {"max_gen_toks": 5, "do_sample": False, "temperature": 0.9}
    words = ["one", "two", "f", "three"]
    truth = [greedy_text(lm, word, 5) for word in words]
    assert written(GenerationRequests(lm), [(word, how) for word in words]) == truth
    assert len(set(truth)) > 1


@pytest.mark.parametrize("overrides", [(), ("model.method=ar",)])
def test_stop_strings_end_a_text(overrides: tuple[str, ...]) -> None:
    """Greedily from left to right nothing depends on the seed: the text is the same up to the stop string."""
    asking = GenerationRequests(chars_lm(*overrides), defaults={"sampler": "left-to-right"})
    (free,) = written(asking, [("one", {"max_gen_toks": 10})])
    assert len(free) > 4
    word = free[2:4]
    (cut,) = written(asking, [("one", {"max_gen_toks": 10, "until": ["~never~", word]})])
    assert cut == free[: free.index(word)]


def test_samples_have_seeds_of_their_own() -> None:
    how = {"do_sample": True, "max_gen_toks": 8}
    requests = [("one", how), ("one", how), ("two", how)]
    texts = written(GenerationRequests(chars_lm()), requests)
    assert len(set(texts)) == 3
    assert written(GenerationRequests(chars_lm(), rows=1), requests) == texts
    assert written(GenerationRequests(chars_lm()), requests[2:]) == texts[2:]
    assert written(GenerationRequests(chars_lm(), seed=1), requests) != texts


@pytest.mark.parametrize("make", [bytes_lm, ar_lm, lambda: ar_lm("objective.start_token=false"), lambda: block_lm(4)])
@pytest.mark.parametrize(("context", "count"), [("", 4), ("x" * 40, 4), ("abc", 40), ("x" * 40, 16)])
def test_any_length_can_be_asked_for(make: Any, context: str, count: int) -> None:
    lm = make()
    job = GenerationRequests(lm).job(context, {"max_gen_toks": count})
    masks = job.canvas.ids == lm.tokenizer.vocab.mask
    assert int(masks.sum()) == count and masks[-count:].all()
    assert (job.options.stride is None) == (count == 4)
    if count == 4:
        assert len(masks) == min(16, max(1 if lm.model.unscored else 0, len(context)) + 4)
    (text,) = written(GenerationRequests(lm), [(context, {"max_gen_toks": count})])
    assert not text.startswith("xxxxxxxxxx") and isinstance(text, str)


def test_text_of_a_form() -> None:
    """Guided tasks: gen_kwargs name a regex, choices or a schema, and the text ends where it is complete."""
    asking = GenerationRequests(bytes_lm())
    kinds: list[dict[str, Any]] = [{"regex": "[a-c]{2,4}"}, {"choices": ["yes", "no"]}, {"schema": {"type": "boolean"}}]
    for sampled in (False, True):
        requests = [("one ", {"max_gen_toks": 8, "do_sample": sampled, **kind}) for kind in kinds]
        guided, choice, value = written(asking, requests)
        assert re.fullmatch("[a-c]{2,4}", guided) and choice in ("yes", "no") and value in ("true", "false")


def test_settings_of_a_request() -> None:
    asking = GenerationRequests(bytes_lm(), defaults={"sampler": "confidence", "steps": 4})
    options = asking.options({"do_sample": True, "top_k": 0, "top_p": 0.9, "until": "\n", "num_beams": 1}, 3)
    assert (options.temperature, options.top_k, options.top_p, options.stop) == (1.0, None, 0.9, ["\n"])
    assert (options.sampler, options.steps, options.seed, options.stop_at_eos) == ("confidence", 4, 3, True)
    assert asking.options({"temperature": 0.5}, 0).temperature == 0.5
    assert asking.options({"steps": 2, "until": None}, 0).steps == 2
    assert asking.options({}, 0).temperature == 0
    for name in ("max_new_tokens", "max_tokens", "max_completion_tokens"):
        assert asking.job("one", {name: 3}).canvas.lengths == [3]


@pytest.mark.parametrize(
    ("how", "what"),
    [
        ({"temprature": 1}, "temperature"),
        ({"num_beams": 4}, "num_beams=4"),
        ({"max_gen_toks": 0}, "at least 1"),
        ({"max_gen_toks": "many"}, "whole number"),
        ({"temperature": "hot"}, "a number"),
        ({"top_p": 2.0}, "above 0 and at most 1"),
        ({"until": [3]}, "texts"),
        ({"sampler": "plann"}, "plan"),
    ],
)
def test_requests_are_refused_in_a_sentence(how: dict[str, Any], what: str) -> None:
    with pytest.raises(UserError, match=what):
        GenerationRequests(bytes_lm()).job("one", how)


# -- in the harness --------------------------------------------------------------------------------------------------


def task(where: Path, name: str, docs: list[dict[str, Any]], **config: Any) -> None:
    """A task as a YAML file (JSON is YAML) with its documents beside it."""
    data = where / f"{name}.jsonl"
    data.write_text("".join(json.dumps(doc) + "\n" for doc in docs))
    source = {"dataset_path": "json", "dataset_kwargs": {"data_files": {"test": str(data)}}, "test_split": "test"}
    (where / f"{name}.yaml").write_text(json.dumps({"task": name, **source, **config, "metadata": {"version": 1}}))


@pytest.fixture
def harness(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    """`simple_evaluate` on the tasks of a folder, with nothing from the network and no cache at home."""
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    adapter()
    from lm_eval import simple_evaluate
    from lm_eval.tasks import TaskManager

    def run(*tasks: str, **how: Any) -> Any:
        manager = TaskManager(include_path=str(tmp_path), include_defaults=False)
        return simple_evaluate("unmask", tasks=list(tasks), task_manager=manager, bootstrap_iters=0, **how)

    return run


def test_multiple_choice(tmp_path: Path, harness: Any) -> None:
    """Questions of one letter, answers of two: the accuracy of a model whose every probability is known."""
    rng = np.random.default_rng(0)
    answers = [text_of(x) for x in itertools.product(LETTERS, repeat=2)]
    docs, right = [], 0
    for _ in range(20):
        first = rng.choice(list(LETTERS))
        choices = [str(a) for a in rng.choice(answers, 3, replace=False)]
        chances = [next(p for x, p in JOINT.items() if text_of(x) == LETTERS[first] + c) for c in choices]
        gold = int(rng.integers(3))
        right += int(np.argmax(chances)) == gold
        docs.append({"question": LETTERS[first], "choices": choices, "gold": gold})
    task(
        tmp_path,
        "letters",
        docs,
        output_type="multiple_choice",
        doc_to_text="{{question}}",
        doc_to_target="gold",
        doc_to_choice="choices",
        target_delimiter="",
        metric_list=[{"metric": "acc"}],
    )
    found = harness("letters", model_args={"pretrained": table_lm(TableNet.exact(JOINT)), "draws": 4})
    assert found["results"]["letters"]["acc,none"] == pytest.approx(right / 20)
    facts = found["config"]["unmask"]
    assert (facts["likelihood"], facts["draws"], facts["estimator"]) == ("evidence bound", 4, "strata")
    assert (facts["seed"], facts["dtype"], facts["bound"]) == (0, "float32", "continuous")
    assert facts["no_draws_up_to_tokens"] == 2


def test_writing_and_perplexity(tmp_path: Path, harness: Any) -> None:
    lm = chars_lm("model.method=ar")
    texts = ["one two three four", "four"]
    contexts = [(word, greedy_text(lm, word, 4)) for word in ("one", "two")]
    task(
        tmp_path,
        "write",
        [{"q": word, "a": answer} for word, answer in [*contexts, ("four", "not this")]],
        output_type="generate_until",
        doc_to_text="{{q}}",
        doc_to_target="{{a}}",
        generation_kwargs={"until": ["~~"], "max_gen_toks": 4, "do_sample": False},
        metric_list=[{"metric": "exact_match"}],
    )
    task(
        tmp_path,
        "read",
        [{"text": text} for text in texts],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "bits_per_byte"}, {"metric": "word_perplexity"}],
    )
    found = harness("write", "read", model_args={"pretrained": lm}, batch_size=4)["results"]
    assert found["write"]["exact_match,none"] == pytest.approx(2 / 3)
    blocks = [lm.tokenizer.encode(text[i : i + 16]) for text in texts for i in range(0, len(text), 16)]
    nats = -sum(ar_by_hand(lm, [], block)[0] for block in blocks)
    assert found["read"]["bits_per_byte,none"] == pytest.approx(nats / math.log(2) / 22, rel=1e-5)
    assert found["read"]["word_perplexity,none"] == pytest.approx(math.exp(nats / 5), rel=1e-4)


def test_answers_go_into_the_cache_of_the_harness(tmp_path: Path) -> None:
    from lm_eval.api.instance import Instance
    from lm_eval.api.model import CachingLM

    own = adapter()(pretrained=bytes_lm(), draws=2)
    cached = CachingLM(own, str(tmp_path / "answers.db"))
    reads = [Instance("loglikelihood", {}, pair, i) for i, pair in enumerate([("one", " two"), ("one", " six")])]
    texts = [Instance("loglikelihood_rolling", {}, ("one two",), 0)]
    asks = [Instance("generate_until", {}, ("one", {"max_gen_toks": 3}), 0)]
    first = [cached.loglikelihood(reads), cached.loglikelihood_rolling(texts), cached.generate_until(asks)]
    assert first == [own.loglikelihood(reads), own.loglikelihood_rolling(texts), own.generate_until(asks)]
    with mock.patch.object(own, "_collect", side_effect=AssertionError("asked again")):
        again = [cached.loglikelihood(reads), cached.loglikelihood_rolling(texts), cached.generate_until(asks)]
    assert [list(map(_plain, part)) for part in again] == [list(map(_plain, part)) for part in first]
    assert len(cached.dbdict) == 4


def _plain(answer: Any) -> Any:
    return list(answer) if isinstance(answer, tuple) else answer


def test_chat_templates_are_refused(tmp_path: Path, harness: Any) -> None:
    task(tmp_path, "chat", [{"text": "one"}], output_type="generate_until", doc_to_text="x", doc_to_target="y")
    with pytest.raises(UserError, match="no chat template"):
        harness("chat", model_args={"pretrained": bytes_lm()}, apply_chat_template=True)


def test_what_was_cut_is_said(caplog: pytest.LogCaptureFixture) -> None:
    from lm_eval.api.instance import Instance

    own = adapter()(pretrained=bytes_lm(), draws=2)
    with caplog.at_level(logging.WARNING, "unmask"):
        own.loglikelihood([Instance("loglikelihood", {}, ("x" * 30, "y"), 0), Instance("l", {}, ("", "z" * 20), 1)])
    assert "1 contexts were cut" in caplog.text and "1 continuations are longer" in caplog.text
    facts = own.get_model_info()["unmask"]
    assert (facts["contexts_cut"], facts["continuations_in_windows"]) == (1, 1)


# -- the command -----------------------------------------------------------------------------------------------------


@functools.cache
def saved() -> str:
    """A random model as a folder."""

    def save(path: Path) -> None:
        lm = bytes_lm()
        with checkpoint.writing(path) as here:
            (here / "config.yaml").write_text(lm.config.to_yaml())
            lm.tokenizer.save(here)
            weights = dict(lm.model.state_dict())
            checkpoint.write_whole(here, {"model": weights, "ema": weights})

    return str(once("harness-model", save))


def command(*args: str) -> tuple[int, str, str]:
    """`python -m unmask.hub.lm_eval ARGS` in this process: exit code and both streams."""
    out, err, code = io.StringIO(), io.StringIO(), 0
    with (
        mock.patch.object(sys, "argv", ["harness", *args]),
        contextlib.redirect_stdout(out),
        contextlib.redirect_stderr(err),
    ):
        try:
            runpy.run_module("unmask.hub.lm_eval", run_name="__main__")
        except SystemExit as stop:
            code = int(stop.code or 0)
    return code, out.getvalue(), err.getvalue()


def test_the_command_knows_our_models(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    monkeypatch.setattr(datasets.config, "HF_DATASETS_CACHE", tmp_path / "cache")
    task(
        tmp_path,
        "read",
        [{"text": "one two"}],
        output_type="loglikelihood_rolling",
        doc_to_text="",
        doc_to_target="{{text}}",
        metric_list=[{"metric": "bits_per_byte"}],
    )
    import lm_eval.tasks

    only_ours = functools.partial(lm_eval.tasks.TaskManager, include_defaults=False)  # ten thousand files take seconds
    monkeypatch.setattr(lm_eval.tasks, "TaskManager", only_ours)
    args = f"pretrained={saved()},draws=3,seed=5"
    code, out, err = command(
        "--model",
        "unmask",
        "--model_args",
        args,
        "--tasks",
        str(tmp_path / "read.yaml"),
        "--output_path",
        str(tmp_path / "out"),
    )
    assert code == 0, err
    assert "bits_per_byte" in out
    (file,) = (tmp_path / "out").rglob("results*.json")
    found = json.loads(file.read_text())
    (value,) = texts_of(LikelihoodRequests(bytes_lm(), draws=3, seed=5), ["one two"])
    assert found["results"]["read"]["bits_per_byte,none"] == pytest.approx(-value / math.log(2) / 7)
    assert found["config"]["unmask"]["draws"] == 3


@pytest.mark.parametrize(
    ("args", "what"),
    [
        ("", "no model is named"),
        ("pretrained=/nowhere", "no model at /nowhere"),
        ("pretrained={model},drws=3", "draws"),
        ("pretrained={model},draws=0", "draws=0"),
        ("pretrained={model},draws=some", "whole number"),
        ("pretrained={model},estimator=strat", "unknown estimator"),
        ("pretrained={model},sampler=plann", "unknown sampler"),
        ("pretrained={model},max_gen_toks=0", "max_gen_toks=0"),
        ("pretrained={model},device=abacus", "abacus"),
    ],
)
def test_mistakes_in_model_args_are_one_sentence(tmp_path: Path, args: str, what: str) -> None:
    task(tmp_path, "read", [{"text": "one"}], output_type="loglikelihood_rolling", doc_to_text="", doc_to_target="x")
    with mock.patch.object(sys.modules["unmask.hub.lm_eval.adapter"], "main", _only_model):
        code, out, err = command(args.format(model=saved()))
    assert code == 2 and out == "", err
    assert what in sentence(err)


def _only_model(args: list[str]) -> None:
    """What the harness does first, without its tasks."""
    adapter().create_from_arg_string(args[0], {"batch_size": 1, "max_batch_size": None, "device": None})


def test_model_args_win_over_options_of_the_harness() -> None:
    usual = {"batch_size": 1, "max_batch_size": None, "device": "cuda:0"}  # what its command says by itself
    with mock.patch("torch.cuda.is_available", return_value=False):
        own = adapter().create_from_arg_string(f"pretrained={saved()},device=cpu,batch_size=4", usual)
        assert (own.settings.device, own.settings.rows) == ("cpu", 4)
        assert adapter().create_from_arg_obj({"pretrained": saved()}, usual).settings.device == "cpu"
        with pytest.raises(UserError, match="cuda:0"):
            adapter().create_from_arg_obj({"pretrained": saved(), "device": "cuda:0"}, usual)


def test_what_load_takes_reaches_it() -> None:
    given = {"which": "best", "weights": "raw", "device": "cpu", "tokenizer": "gpt2", "revision": "main"}
    with mock.patch("unmask.hub.lm_eval.adapter.load", return_value=bytes_lm()) as load:
        adapter()(pretrained="somebody/model", **given)
        adapter()(pretrained=7)  # the harness makes numbers of names like that
    assert load.call_args_list == [
        mock.call("somebody/model", **given),
        mock.call("7", which="last", weights="ema", device="cpu"),
    ]


def test_batch_sizes() -> None:
    assert settings(pretrained="x", batch_size="8").rows == 8
    assert settings(pretrained="x", batch_size="auto:4", max_batch_size=64).rows == 32
    assert settings(pretrained="x", batch_size=1).rows == 32
    assert settings(pretrained="x", batch_size=1, rows=1).rows == 1
    with pytest.raises(UserError, match="batch_size=-1"):
        settings(pretrained="x", batch_size=-1)


def test_a_harness_that_is_not_installed_is_one_sentence() -> None:
    with (
        mock.patch.dict(sys.modules, {"lm_eval.api.model": None}),
        pytest.raises(UserError, match=r"pip install .*\[eval\]"),
    ):
        adapter.__wrapped__()


def test_vocabulary_of_the_table() -> None:
    assert letters().vocab.size == V and letters().encode("abc") == [0, 2, 3]
