"""Likelihoods of block models: against enumeration block by block, and through the gate."""

from __future__ import annotations

import functools
import itertools
import json
import logging
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from oracles.blocks import Reader, block_bound, block_law, blocks_of
from oracles.enumeration import CLEAN, MASK, VOCAB, State, keep_grid, nelbo_discrete
from oracles.laws import order_law, random_order_law, surest_law
from support.block_models import block_model
from support.helpers import random_lm, random_rows, refused, run, settings, train_once
from unmask.data.tokenization import bytes_tokenizer
from unmask.evaluation import (
    ESTIMATORS,
    STRATA,
    TIMES,
    default_estimator,
    default_method,
    exact_nats,
    iw_bound,
    plan_nats,
    pseudo_nats,
    strata_nats,
)
from unmask.evaluation.estimators import every_set
from unmask.evaluation.likelihood import _warn, evaluate
from unmask.lm import LM
from unmask.models.block_diffusion import BlockDiffusion
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.process.schedule import ContinuousTime, DiscreteTime, Law
from unmask.sampling import Adaptive, FirstHitting, GivenOrder, LeftToRight, Sampler, Speculative
from unmask.types import Batch, UserError

LENGTH = 4
TEXTS = list(itertools.product(CLEAN, repeat=LENGTH))
ALL = torch.ones(len(TEXTS), LENGTH, dtype=torch.bool)
SIZES = (1, 2, 3, 4)  # 3: the last block is shorter
each_size = pytest.mark.parametrize("size", SIZES)


@functools.cache
def model_of(size: int, clean: str = "tokens", law: Law | None = None) -> BlockDiffusion:
    return block_model("dit", clean).under(law=law or ContinuousTime(0.0)).in_blocks(size)


@functools.cache
def reader_of(size: int, clean: str = "tokens") -> Reader:
    return Reader(model_of(size, clean), size)


def batch_of(xs: list[State] = TEXTS) -> Batch:
    return Batch(torch.tensor(xs), torch.arange(len(xs)), len(xs))


def bound_of(x: State, size: int, law: Law) -> float:
    """The sum over blocks of the bound of each, by enumeration."""
    reader = reader_of(size)
    if isinstance(law, ContinuousTime):
        return block_bound(reader, x, (law.cutoff, 1.0))
    assert law == DiscreteTime(2)
    keep, times = keep_grid("log-linear", 2), [0.0, 0.5, 1.0]
    return sum(nelbo_discrete(block, reader.after(before), keep, times) for before, block in blocks_of(x, size))


def gate(nats: Any) -> float:
    return float(np.exp(-np.asarray(nats, dtype=float)).sum())


PLANS: dict[str, tuple[Sampler | None, Any]] = {
    "any order": (None, random_order_law),
    "left to right": (LeftToRight(), lambda z, denoise: order_law(z, denoise, [[i] for i in range(len(z))])),
    "two at a time": (LeftToRight(2), lambda z, denoise: order_law(z, denoise, [[0, 1][: len(z)], range(2, len(z))])),
    "confidence": (Adaptive("confidence", k=1), lambda z, denoise: surest_law(z, denoise, "confidence", 1)),
    "entropy, two": (Adaptive("entropy", k=2), lambda z, denoise: surest_law(z, denoise, "entropy", 2)),
    "threshold": (
        Adaptive("confidence", threshold=0.6),
        lambda z, denoise: surest_law(z, denoise, "confidence", None, 0.6),
    ),
}


def exact_law(model: BlockDiffusion, batch: Batch, free: torch.Tensor, plan: Sampler | None) -> np.ndarray:
    if plan is None:
        return exact_nats(model, batch, free, 512)
    return plan_nats(model, batch, free, plan, Keys(0), batch_size=81).nats[:, 0]


@pytest.mark.parametrize(("size", "clean"), [*((size, "tokens") for size in SIZES), (2, "blocks"), (3, "blocks")])
@pytest.mark.parametrize("name", PLANS)
def test_exact_laws_are_products_over_blocks_and_put_one_on_everything(size: int, name: str, clean: str) -> None:
    """By confidence the first token is given: among nothing but masks all are as sure, up to rounding."""
    model, (plan, law), free = model_of(size, clean), PLANS[name], ALL.clone()
    given = int(isinstance(plan, Adaptive))
    free[:, :given] = False
    found, starts = exact_law(model, batch_of(), free, plan), [(token,) for token in CLEAN] if given else [()]
    assert gate(found) == pytest.approx(len(starts), abs=1e-4)
    truth: dict[State, float] = {}
    for start in starts:
        truth |= block_law(reader_of(size, clean), start + (MASK,) * (LENGTH - given), law)
    np.testing.assert_allclose(found, [-math.log(truth[x]) for x in TEXTS], rtol=1e-4)


@each_size
def test_what_is_given_is_seen_in_its_block_and_after_it(size: int) -> None:
    """Of a text with a hole: a law for each context, the same for exact, plan and (blocks of 1) the model itself."""
    model = model_of(size)
    hole = 1
    free = ALL.clone()
    free[:, hole] = False
    batch = replace(batch_of(), given=~free)
    for plan in (None, LeftToRight()):
        found = exact_law(model, batch, free, plan)
        for token in CLEAN:
            context = [n for n, x in zip(found, TEXTS, strict=True) if x[hole] == token]
            assert gate(context) == pytest.approx(1, abs=1e-4)
    if size == 1:
        with torch.no_grad():
            nats = model.nats(batch, Keys(0)).nats.sum(1)
        np.testing.assert_allclose(found, nats, rtol=1e-4)
    if size == 2:  # the second half does not depend on what is given, beside the text itself
        some = torch.arange(0, len(TEXTS), 8)
        texts, starts = (Batch(tokens[some], some, len(TEXTS)) for tokens in (batch.tokens, batch.tokens[:, :2]))
        whole, given = (exact_nats(model, texts, where[some], 64) for where in (ALL, free))
        first, seen = (exact_nats(model, starts, where[some, :2], 64) for where in (ALL, free))
        np.testing.assert_allclose(given - seen, whole - first, rtol=1e-3, atol=1e-4)


LAWS: list[Law] = [ContinuousTime(0.0), ContinuousTime(0.3), DiscreteTime(2)]


@pytest.mark.parametrize("law", LAWS, ids=repr)
@each_size
def test_the_bound_is_the_sum_over_blocks_and_puts_at_most_one_on_everything(size: int, law: Law) -> None:
    model, batch = model_of(size, "tokens", law), batch_of()
    found = [float(every_set(model, batch, i, ALL[i], 64).sum()) for i in range(len(TEXTS))]
    np.testing.assert_allclose(found[::5], [bound_of(x, size, law) for x in TEXTS[::5]], rtol=1e-4)
    assert gate(found) == pytest.approx(1, abs=1e-4) if size == 1 else gate(found) < 1
    if law == ContinuousTime(0.0):
        exact = exact_nats(model, batch_of(TEXTS[::5]), ALL[::5], 512)
        assert (np.array(found[::5]) >= exact - 1e-4).all()


@pytest.mark.parametrize(("size", "calls"), [(2, 1), (2, 3), (3, 2), (4, 2)])
@pytest.mark.parametrize("name", ESTIMATORS)
def test_both_estimators_draw_that_bound(name: str, size: int, calls: int) -> None:
    model, xs = model_of(size, "tokens", ContinuousTime(0.3)), TEXTS[::11]
    batch = batch_of(xs * 12)
    with torch.no_grad():
        drawn = [
            strata_nats(model, batch, Keys(5, d), calls=calls).nats
            if name == "strata"
            else model.nats(batch, Keys(5, d)).nats
            for d in range(40)
        ]
    found = torch.stack(drawn).double().sum(-1).unflatten(1, (12, len(xs))).mean(1).numpy()
    error = np.maximum(found.std(0, ddof=1) / math.sqrt(len(found)), 1e-5)
    z = np.abs(found.mean(0) - [bound_of(x, size, ContinuousTime(0.3)) for x in xs]) / error
    assert z.max() < 4


def test_strata_hide_in_all_blocks_at_once_and_do_not_depend_on_the_batch() -> None:
    model, batch = model_of(2), batch_of()
    whole = strata_nats(model, batch, Keys(1, 2), calls=3).nats
    assert ((whole[:, :2] > 0).any(1) & (whole[:, 2:] > 0).any(1)).all()
    parts = [strata_nats(model, batch.rows(torch.arange(i, i + 9)), Keys(1, 2), calls=3).nats for i in range(0, 81, 9)]
    torch.testing.assert_close(torch.cat(parts), whole)


def test_strata_of_blocks_have_less_noise() -> None:
    model, rows = model_of(2, "tokens", ContinuousTime(0.1)), random_rows(VOCAB, 40, LENGTH)
    strata, times = (evaluate(model, rows, draws=16, estimator=how) for how in (STRATA, TIMES))
    assert strata.stderr_nats and times.stderr_nats and strata.stderr_nats < times.stderr_nats
    assert abs(strata.nats_per_token - times.nats_per_token) < 4 * math.hypot(strata.stderr_nats, times.stderr_nats)
    assert "a block and draw" in strata.protocol["estimator"] and strata.protocol["block"] == 2


def test_blocks_of_one_token_are_exact_by_every_estimator() -> None:
    model, rows = model_of(1), random_rows(VOCAB, 12, LENGTH)
    assert default_estimator(model) is TIMES and default_method(model) == "bound"
    found = [evaluate(model, rows, draws=5, estimator=how) for how in ESTIMATORS.values()]
    assert found[0].nats == pytest.approx(found[1].nats, rel=1e-5)
    for one in found:
        assert one.stderr_nats == 0 and one.protocol["draws"] == 1
        assert one.protocol["estimator"] == "none: exact" and one.protocol["bound"] == "exact"
    assert default_estimator(model_of(2)) is STRATA and default_method(model_of(2)) == "strata"


def test_orders_are_averaged_within_each_block() -> None:
    """IW_3 of two blocks of two: each block has three of its two orders, whatever the other has."""
    model, reader, xs = model_of(2), reader_of(2), TEXTS[::9]
    found = plan_nats(model, batch_of(xs), ALL[: len(xs)], FirstHitting(), Keys(2), orders=3, draws=2, batch_size=81)
    for row, x in enumerate(xs):
        sums = [0.0]
        for before, block in blocks_of(x, 2):
            orders = [order_law((MASK,) * 2, reader.after(before), [[i], [1 - i]])[block] for i in (0, 1)]
            possible = iw_bound(np.log(list(itertools.product(orders, repeat=3)))[:, None])[0].ravel()
            sums = [a + b for a in sums for b in sorted(set(possible.round(9)))]
        for value in found.nats[row]:
            assert np.abs(np.array(sums) - value).min() < 1e-3
    many = plan_nats(model, batch_of(xs[:3]), ALL[:3], FirstHitting(), Keys(3), orders=100, batch_size=300)
    assert many.error is not None
    exact = exact_nats(model, batch_of(xs[:3]), ALL[:3], 64)
    assert (np.abs(many.nats[:, 0] - exact) < 4 * many.error + 1e-4).all() and many.error.max() < 0.2


def test_a_given_order_has_no_blocks_and_large_blocks_have_too_many_sets() -> None:
    with pytest.raises(UserError, match="names positions of a single block; set block=full"):
        plan_nats(model_of(2), batch_of(), ALL, GivenOrder((1, 0, 3, 2)), Keys(0))
    long = Batch(torch.zeros(1, 34, dtype=torch.int64), torch.arange(1), 1)
    with pytest.raises(UserError, match=r"17 tokens .* at most 16 tokens: choose a smaller block"):
        exact_nats(model_of(17), long, torch.ones(1, 34, dtype=torch.bool), 8)


# -- texts and spans -------------------------------------------------------------------------------------------------


@functools.cache
def lm_of(*overrides: str) -> LM:
    mixture = "block.mixture={1: 0.2, 4: 0.5, full: 0.3}"
    return random_lm(bytes_tokenizer(), "model.method=block", "block.size=4", mixture, *overrides, scale=1.5)


def whole_lm(lm: LM) -> LM:
    """The same weights as an MDLM."""
    model = lm.model
    assert isinstance(model, BlockDiffusion)
    return replace(lm, model=MaskedDiffusion(model.backbone, model.schedule, model.law).eval())


@pytest.mark.parametrize("method", ["bound", "strata", "exact", "orders", "plan", "pll"])
def test_a_single_block_is_mdlm(method: str) -> None:
    lm, text = lm_of(), "a cat sat"
    block = {} if method == "pll" else {"block": "full"}
    found, want = lm.score(text, method=method, **block), whole_lm(lm).score(text, method=method)
    assert found.nats == pytest.approx(want.nats, rel=1e-5) and found.stderr_nats == pytest.approx(want.stderr_nats)
    assert found.protocol["law"] == want.protocol["law"] and found.protocol["block"] == "the whole row"


def test_the_block_size_is_the_models_own_unless_another_is_asked_for() -> None:
    lm, text = lm_of(), "a text of 23 tokens, no?"
    assert lm.score(text) == lm.score(text, block=4) == lm.score(text, block="4")
    law = lm.score(text).protocol
    assert law["law"] == "evidence bound, in blocks of 4" and law["block"] == 4 and "trained_blocks" not in law
    one = lm.score(text, block=1)
    assert one.stderr_nats == 0 and one.protocol["law"] == "exact, in blocks of 1" and one.protocol["draws"] == 1
    for method in ("strata", "exact", "plan", "orders", "bound"):
        same = lm.score(text, block=1, method=method)
        assert same.nats == pytest.approx(one.nats, rel=1e-4) and same.stderr_nats == pytest.approx(0, abs=1e-9)
    with torch.no_grad():
        x = torch.tensor([list(text.encode())[:16]])
        law = lm.model.in_blocks(1)  # type: ignore[operator]
        nats = law.nats(Batch(x, torch.arange(1), 1), Keys(0)).nats[0]
    assert one.texts[0].token_nats is not None
    assert one.texts[0].token_nats[:16] == pytest.approx(nats.tolist(), rel=1e-4)


def test_a_size_that_was_not_trained_is_allowed_and_noted(caplog: pytest.LogCaptureFixture) -> None:
    _warn.cache_clear()
    with caplog.at_level(logging.WARNING, "unmask"):
        law = lm_of().score("some text", block=2).protocol
        assert "not trained on block size 2, only on: 1, 4, the whole row" in caplog.text
        caplog.clear()
        lm_of().score("some text", block=2)  # said once
        lm_of().score("some text", block=16), lm_of().score("some text", block=1)  # of rows of 16: the whole row
        assert not caplog.text
    assert law["block"] == 2 and law["trained_blocks"] == "1, 4, the whole row"


def test_speculation_has_the_law_of_blocks_of_one_token_whatever_the_blocks_of_the_model() -> None:
    lm, text = lm_of(), "a cat sat"
    one, drafted = lm.score(text, block=1), lm.score(text, plan=Speculative())
    assert drafted.nats == pytest.approx(one.nats, rel=1e-4) and drafted.stderr_nats == 0
    assert drafted.protocol["law"] == "exact, in blocks of 1" and drafted.protocol["block"] == 1
    assert lm.score(text, plan=Speculative(), block=1).nats == drafted.nats
    with pytest.raises(UserError, match="has the law of blocks of one token; leave out block=4"):
        lm.score(text, plan=Speculative(), block=4)
    with pytest.raises(UserError, match="speculative sampling is for models of method block"):
        random_lm(bytes_tokenizer()).score(text, plan=Speculative())


def test_a_block_longer_than_rows_is_the_whole_row(caplog: pytest.LogCaptureFixture) -> None:
    _warn.cache_clear()
    lm, text = lm_of(), "a cat sat"
    full, longer = lm.score(text, block="full"), lm.score(text, block=40)  # of rows of 16
    assert longer == full and "not trained" not in caplog.text


def test_a_text_with_a_gap_is_noted_if_the_whole_row_was_not_trained(caplog: pytest.LogCaptureFixture) -> None:
    """A gap with text after it is written as one block, the whole row, unless it fits into a block that was trained."""
    only_four = random_lm(bytes_tokenizer(), "model.method=block", "block.size=4")
    row = "not trained on the whole row as one block, only on: 4"
    for lm, how, says in (
        (only_four, {"prompt": "a", "suffix": "b", "length": 9}, row),
        (only_four, {"block": "full", "length": 9}, row),
        (only_four, {"block": 12, "length": 9}, row),
        (only_four, {"block": 3, "length": 9}, "not trained on block size 3, only on: 4"),
        (only_four, {"block": "full", "length": 30, "stride": 8}, row),
        (only_four, {"length": 9}, ""),
        (only_four, {"sampler": "speculative", "length": 9}, ""),
        (only_four, {"prompt": "a", "suffix": "b", "length": 4}, ""),
        (lm_of(), {"prompt": "a", "suffix": "b", "length": 9}, ""),
        (lm_of(), {"block": 12, "length": 9}, ""),
    ):
        _warn.cache_clear()
        caplog.clear()
        with caplog.at_level(logging.WARNING, "unmask"):
            lm.write_samples(1, **how)
        assert caplog.text.count("not trained") == bool(says) and says in caplog.text, how


def test_a_span_with_text_after_it_sees_the_whole_row_and_one_at_the_end_its_blocks() -> None:
    lm, text = lm_of(), "one two three"
    for method in ("strata", "bound", "exact", "plan"):
        middle, want = (model.score(text, span=(4, 7), method=method) for model in (lm, whole_lm(lm)))
        assert middle.nats == pytest.approx(want.nats, rel=1e-5)
        assert middle.protocol["block"] == "the whole row" and "blocks" not in middle.protocol["law"]
    whole, start = (lm.score(text[:n], method="exact") for n in (len(text), 8))  # 8: two blocks
    end = lm.score(text, span=(8, 13), method="exact")
    assert end.nats == pytest.approx(whole.nats - start.nats, rel=1e-4) and end.protocol["block"] == 4
    both = lm.score([text, text], span=[(4, 7), (8, 13)], method="exact")
    middle = lm.score(text, span=(4, 7), method="exact")
    assert [one.nats for one in both.texts] == pytest.approx([middle.nats, end.nats], rel=1e-4)
    assert both.protocol["law"].endswith("in blocks of 4; spans with text after them in the whole row")


def test_spans_of_a_model_that_is_exact_for_texts() -> None:
    """In the middle of a text there is a bound with an error; at the end none."""
    lm, text = replace(lm_of(), model=lm_of().model.in_blocks(1)), "one two three!"  # type: ignore[operator]
    end, middle = lm.score(text, span=(8, 14)), lm.score(text, span=(2, 9))
    assert end.stderr_nats == 0 and end.protocol["law"] == "exact, in blocks of 1"
    assert middle.stderr_nats and middle.protocol["method"] == "strata" and middle.protocol["draws"] == 4
    both = lm.score([text, text], span=[(8, 14), (2, 9)])
    assert both.texts[0].nats == pytest.approx(end.nats, rel=1e-5) and both.texts[0].stderr_nats == 0
    assert both.stderr_nats


@pytest.mark.parametrize("method", ["strata", "bound", "exact", "orders", "plan"])
def test_scores_do_not_depend_on_the_batch(method: str) -> None:
    texts = ["ab", "a longer text", "some", "a text"]
    few = {"orders": 2} if method == "orders" else {}
    want = [one.nats for one in lm_of().score(texts, method=method, **few).texts]
    for size in (1, 3):
        found = [one.nats for one in lm_of().score(texts, method=method, batch_size=size, **few).texts]
        assert found == pytest.approx(want, rel=1e-4)


def test_a_short_row_beside_a_long_one_has_its_own_law() -> None:
    alone = lm_of().score("abcdef", method="exact").nats
    assert lm_of().score(["abcdef", "a longer text"], method="exact").texts[0].nats == pytest.approx(alone, rel=1e-4)


@pytest.mark.parametrize("size", [1, 4, "full"])
def test_block_ends_and_learned_ends(size: int | str) -> None:
    """BOS and EOS stand in blocks too; the gate of texts of one letter holds with them."""
    letters = [chr(i) for i in range(32, 127)]
    for overrides in (["data.block_ends=true"], ["data.layout=pad"]):
        lm = lm_of(*overrides)
        for method in ("exact", "plan"):
            if method == "exact" and "data.layout=pad" in overrides and size == "full":
                continue  # sixteen tokens with the padding
            each = lm.score(letters[:4], method=method, block=size).texts
            assert all(one.tokens == 1 + (overrides[0] == "data.layout=pad") for one in each)
            assert 0 < gate([one.nats for one in each]) < 1


def test_mistakes_are_sentences() -> None:
    lm, plain = lm_of(), random_lm(bytes_tokenizer())
    for how, says in (
        ({"block": 0}, "block=0 must be at least 1"),
        ({"block": "half"}, "block=half must be a whole number of tokens, or full"),
        ({"block": True}, "block=True must be a whole number of tokens, or full"),
        ({"block": 2.5}, "block=2.5 must be a whole number of tokens, or full"),
        ({"block": 4, "method": "pll"}, "has no blocks; leave out block"),
    ):
        with pytest.raises(UserError, match=says):
            lm.score("some text", **how)
    with pytest.raises(UserError, match="block=4 is for models of method block, which this one is not; leave it out"):
        plain.score("some text", block=4)


def test_pseudo_likelihoods_and_ranged_gaps_see_the_whole_row() -> None:
    lm = lm_of()
    batch = Batch(torch.tensor([list(b"a cat")]), torch.arange(1), 1)
    free = torch.ones(1, 5, dtype=torch.bool)
    torch.testing.assert_close(
        pseudo_nats(lm.model, batch, free, 8), pseudo_nats(whole_lm(lm).model, batch, free, 8), rtol=1e-5, atol=1e-6
    )
    gap = "a {{1-3}} cat"
    found, want = (model.gap_canvas(gap, draws=8) for model in (lm, whole_lm(lm)))
    assert found.nats == pytest.approx(want.nats, rel=1e-5) and found.lengths == want.lengths


# -- the commands ----------------------------------------------------------------------------------------------------


@functools.cache
def block_run() -> Path:
    more = ["model.method=block", "block.size=4", "block.mixture={1: 0.3, 4: 0.4, full: 0.3}"]
    return train_once("blocks", "tiny", *settings(*more, "train.steps=6", "eval.every=3", "eval.rows=8"))


def test_eval_by_block_size(caplog: pytest.LogCaptureFixture) -> None:
    _warn.cache_clear()
    model = str(block_run())
    own, four = (run("eval", model, "--rows", "12", "--json", *more).json() for more in ([], ["--block", "4"]))
    assert own == four and own["protocol"]["block"] == 4 and "a block and draw" in own["protocol"]["estimator"]
    many = run("eval", model, "--rows", "12", "--json", "--block", "1, 4,full").json()
    assert many["model"] == model and [one["block"] for one in many["blocks"]] == ["1", "4", "full"]
    one, same, full = many["blocks"]
    assert {key: value for key, value in same.items() if key != "block"} == four
    assert one["stderr_nats"] == 0 and one["protocol"]["draws"] == 1 and full["protocol"]["block"] == "the whole row"
    ran = run("eval", model, "--rows", "12", "--block", "1,2,full")
    head, *lines = ran.out.splitlines()
    assert head.split()[:4] == ["block", "law", "nats/token", "perplexity"]
    assert [line.split()[:2] for line in lines[:3]] == [["1", "exact"], ["2", "bound"], ["full", "bound"]]
    assert "not trained on block size 2" in caplog.text and "  split: valid" in lines


def test_eval_refuses_in_a_sentence(tmp_path: Path) -> None:
    model = str(block_run())
    for block in ("3", "32"):
        says = f"blocks of {block} tokens do not divide rows of 16; choose a size that does, or full"
        assert says in refused("eval", model, "--rows", "4", "--block", block)
    for block, says in (("4,x", "block=x must be"), ("", "block= must be"), ("0", "block=0 must be at least 1")):
        assert says in refused("eval", model, "--rows", "4", "--block", block)


def test_score_by_block_size() -> None:
    model, text = str(block_run()), "one two three"
    own, four, one = (
        run("score", model, text, "--json", *more).json() for more in ([], *(["--block", b] for b in "41"))
    )
    assert own == four and own["protocol"]["law"] == "evidence bound, in blocks of 4"
    assert one["stderr_nats"] == 0 and one["protocol"]["law"] == "exact, in blocks of 1"
    full = run("score", model, text, "--block", "full", "--json").json()
    assert full["protocol"]["block"] == "the whole row" and full["protocol"]["law"] == "evidence bound"
    for block, says in (("-2", "block=-2 must be at least 1"), ("half", "must be a whole number of tokens, or full")):
        assert says in refused("score", model, text, "--block", block)
    plan = run("score", model, text, "--block", "4", "--plan", "confidence", "-k", "1", "--json").json()
    assert plan["protocol"]["law"] == "exact, in the order of the plan, in blocks of 4"


def test_training_logs_the_block_size_of_its_evaluations() -> None:
    lines = [json.loads(line) for line in (block_run() / "log.jsonl").read_text().splitlines()]
    judged = [line for line in lines if "valid_nats" in line]
    assert judged and all(line["valid_block"] == 4 for line in judged)


def test_samples_of_a_block_model_are_judged() -> None:
    args = ["eval", str(block_run()), "--generative", "-n", "2", "--reference", "none", "--json"]
    report = run(*args, "--block", "8", "--steps", "4", "--scorer", f"unmask:{block_run()}").json()
    assert report["protocol"]["block"] == 8 and report["protocol"]["steps"] == 4
    assert report["samples"]["protocol"]["scorer"]["scorer_law"]["block"] == 4
    whole = run(*args, "--block", "full", "--steps", "4", "--scorer", f"unmask:{block_run()}").json()
    assert whole["protocol"]["block"] == "full"
    assert "--block half must be a whole number of tokens, or full" in refused(*args[:-1], "--block", "half")
