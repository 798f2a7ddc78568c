"""Likelihoods of texts and spans: against enumeration, and through the gate (no law puts more than 1 on all texts)."""

from __future__ import annotations

import functools
import itertools
import json
import math
import re
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import scipy.stats
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unmask
from oracles.enumeration import (
    ALPHAS,
    LENGTH,
    MASK,
    SCHEDULES,
    XS,
    Denoiser,
    State,
    TableNet,
    ancestral_law,
    keep_grid,
    last_step,
    nelbo_continuous,
    nelbo_discrete,
    random_joint,
)
from support.helpers import SENTENCE, random_lm, random_model, random_rows, refused, run, tiny_config, trained
from unmask.data.tokenization import Tokenizer, bpe_tokenizer, bytes_tokenizer, chars_tokenizer
from unmask.evaluation import (
    ESTIMATORS,
    METHODS,
    STRATA,
    count_weights,
    default_method,
    exact_nats,
    iw_bound,
    marked,
    plan_nats,
    pseudo_nats,
    score,
    scoring,
    spans,
    strata_nats,
    times_nats,
)
from unmask.evaluation.estimators import _cover, _proposal
from unmask.evaluation.likelihood import TIMES, Estimator, eval_keys, evaluate
from unmask.lm import LM
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean
from unmask.process.schedule import ContinuousTime, DiscreteTime, Law, Polynomial
from unmask.sampling import Adaptive, Ancestral, FirstHitting, GivenOrder, LeftToRight, RevealPlan, Sampler
from unmask.types import Batch, UserError, Vocab

ALL = torch.ones(len(XS), LENGTH, dtype=torch.bool)
SPAN = torch.tensor([True, False, True]).expand(len(XS), LENGTH)
LAWS: list[Law] = [ContinuousTime(0.0), ContinuousTime(1e-3), ContinuousTime(0.3), *map(DiscreteTime, (1, 2, 7))]
JOINT = random_joint()
each_law = pytest.mark.parametrize("law", LAWS, ids=repr)


@functools.cache
def table(seed: int = 3, timed: bool = False) -> TableNet:
    return TableNet.random(seed, timed)


@functools.cache
def exact_table() -> TableNet:
    return TableNet.exact(JOINT)


def model_of(net: TableNet, name: str = "log-linear", law: Law | None = None) -> MaskedDiffusion:
    return MaskedDiffusion(net, SCHEDULES[name], law or ContinuousTime(0.0)).eval()


def batch_of(xs: list[State] = XS, total: int | None = None) -> Batch:
    return Batch(torch.tensor(xs), torch.arange(len(xs)), total or len(xs))


# -- slow truths -----------------------------------------------------------------------------------------------------


def hide(x: State, hidden: Any) -> State:
    return tuple(MASK if i in hidden else token for i, token in enumerate(x))


def order_log_p(x: State, order: tuple[int, ...], denoise: Denoiser) -> float:
    """Log p(x at these positions, written in this order | the others)."""
    return sum(denoise(hide(x, order[i:]), 0.5)[place, x[place]] for i, place in enumerate(order))


def all_orders(x: State, places: tuple[int, ...], denoise: Denoiser) -> list[float]:
    return [order_log_p(x, order, denoise) for order in itertools.permutations(places)]


def mean_nll(x: State, places: tuple[int, ...], n: int, denoise: Denoiser) -> float:
    """g(n): the mean over all sets of n places of the mean nll of the tokens in them."""
    sets = list(itertools.combinations(places, n))
    costs = [-denoise(hide(x, chosen), 0.5)[i, x[i]] / n for chosen in sets for i in chosen]
    return sum(costs) / len(sets)


def enumerated_bound(x: State, denoise: Denoiser, name: str, law: Law) -> float:
    if isinstance(law, DiscreteTime):
        times = [i / law.steps for i in range(law.steps + 1)]
        return nelbo_discrete(x, denoise, keep_grid(name, law.steps), times)
    keep = float(law.draw(torch.zeros(1, dtype=torch.float64), SCHEDULES[name]).keep)
    return nelbo_continuous(x, denoise, 0.0, keep) + last_step(x, denoise, keep, 0.0)


def by_counts(x: State, places: tuple[int, ...], denoise: Denoiser, name: str, law: Law) -> float:
    c = count_weights(law, SCHEDULES[name], len(places))
    return sum(float(c[n]) * mean_nll(x, places, n, denoise) for n in range(1, len(places) + 1))


# -- the bound as a sum over the number of masks ---------------------------------------------------------------------


@each_law
@pytest.mark.parametrize("name", SCHEDULES)
def test_the_sum_over_counts_is_the_enumerated_bound(name: str, law: Law) -> None:
    denoise = table().denoiser(name)
    for x in XS[::5]:
        found = by_counts(x, (0, 1, 2), denoise, name, law)
        assert found == pytest.approx(enumerated_bound(x, denoise, name, law), rel=1e-9)


def test_without_a_cut_off_the_schedule_drops_out() -> None:
    for name, schedule in SCHEDULES.items():
        if ALPHAS[name](0.0) == 1:
            weights = count_weights(ContinuousTime(0.0), schedule, 50)
            np.testing.assert_allclose(weights, [0.0, *[1.0] * 50], rtol=1e-9)


@pytest.mark.parametrize("total", [1, 3, 64, 1024])
@pytest.mark.parametrize("p", [1e-3, 0.1, 0.7])
def test_coefficients_equal_scipy(total: int, p: float) -> None:
    n = np.arange(total + 1)
    count = scipy.stats.binom(total, p)
    want = count.cdf(n - 1) + n * count.pmf(n)
    np.testing.assert_allclose(count_weights(ContinuousTime(p), Polynomial(), total), want, rtol=1e-8, atol=1e-12)


@each_law
def test_every_token_is_paid_for_once(law: Law) -> None:
    """Where every token costs 1 the bound is the number of tokens, whatever the schedule: the c_n sum to M."""
    for name, schedule in SCHEDULES.items():
        for total in (1, 2, 17, 300):
            assert float(count_weights(law, schedule, total).sum()) == pytest.approx(total, rel=1e-8), name


@pytest.mark.parametrize("power", [0.0, 0.5])
@each_law
def test_the_proposal_is_weighed_away(law: Law, power: float) -> None:
    chances, weight = _proposal(law, Polynomial(), 40, power)
    n, q = np.arange(1, 41), np.diff(chances, prepend=0.0)
    np.testing.assert_allclose(q * weight * n, count_weights(law, Polynomial(), 40)[1:], rtol=1e-9, atol=1e-12)
    assert chances[-1] == pytest.approx(1.0)


def test_sets_cover_evenly_and_have_their_sizes() -> None:
    counts = np.array([2, 3, 5, 8, 8, 9])
    weights = 1 / np.sqrt(counts)
    hideable, order = np.arange(12) % 6 != 5, np.random.default_rng(0).random((2, 12))  # ten of twelve
    chosen, none = _cover(np.stack([counts, 0 * counts]), np.stack([weights] * 2), np.stack([hideable] * 2), order)
    assert chosen.sum(1).tolist() == counts.tolist() and not chosen[:, ~hideable].any() and not none.any()
    had = (weights @ chosen)[hideable]
    assert had.max() - had.min() <= weights.max() + 1e-12


# -- both estimators draw that bound ---------------------------------------------------------------------------------


def z_scores(draws: np.ndarray, truth: list[float]) -> np.ndarray:
    """(n, rows) draws of rows against their true means."""
    error = draws.std(0, ddof=1) / math.sqrt(len(draws))
    return np.abs(draws.mean(0) - np.array(truth)) / np.maximum(error, 1e-6)


@pytest.mark.parametrize(
    ("name", "law", "calls", "span"),
    [
        ("log-linear", ContinuousTime(0.1), 1, False),
        ("cosine", ContinuousTime(0.0), 2, False),
        ("geometric wide cut", DiscreteTime(3), 5, False),
        ("log-linear", DiscreteTime(2), 3, True),
        ("square", ContinuousTime(0.3), 4, True),
    ],
)
def test_strata_are_unbiased(name: str, law: Law, calls: int, span: bool) -> None:
    xs, places = XS[::9], (0, 2) if span else (0, 1, 2)
    model, batch, denoise = model_of(table(), name, law), batch_of(xs), table().denoiser(name)
    free = (SPAN if span else ALL)[: len(xs)]
    drawn = [strata_nats(model, batch, Keys(5, d), calls=calls, free=free, batch_size=64).nats for d in range(300)]
    assert not torch.stack(drawn)[..., ~free[0]].any()
    truth = [by_counts(x, places, denoise, name, law) for x in xs]
    assert z_scores(torch.stack(drawn).double().sum(-1).numpy(), truth).max() < 4


@pytest.mark.parametrize("timed", [False, True])
def test_times_are_unbiased_for_a_span(timed: bool) -> None:
    """Given the token in the middle. The bound of a time-conditioned network comes from T steps by hand."""
    law, name, xs, places = DiscreteTime(2), "cosine", XS[::9], (0, 2)
    model, batch, denoise = model_of(table(4, timed), name, law), batch_of(xs), table(4, timed).denoiser(name)
    drawn = [times_nats(model, batch, Keys(6, d), SPAN[: len(xs)]).nats.double().sum(-1) for d in range(300)]
    keep, truth = keep_grid(name, 2), []
    for x in xs:
        total = 0.0
        for i in (1, 2):
            u = (keep[i - 1] - keep[i]) / (1 - keep[i])
            for size in (1, 2):
                for hidden in itertools.combinations(places, size):
                    chance = (1 - keep[i]) ** size * keep[i] ** (2 - size)
                    guess = denoise(hide(x, hidden), i / 2)
                    total -= u * chance * sum(guess[j, x[j]] for j in hidden)
        truth.append(total)
    assert z_scores(torch.stack(drawn).numpy(), truth).max() < 4


def test_times_of_everything_are_the_models_own() -> None:
    model, batch = model_of(table(3, timed=True), law=ContinuousTime(0.1)), batch_of()
    for draw in range(5):
        ours, theirs = times_nats(model, batch, Keys(1, draw), ALL), model.nats(batch, Keys(1, draw))
        torch.testing.assert_close(ours.nats, theirs.nats, rtol=1e-5, atol=1e-6)


def test_strata_have_less_noise_at_equal_calls() -> None:
    """On a data set, and on one text with eight calls."""
    model = model_of(exact_table(), law=ContinuousTime(0.1))
    batch, one = batch_of(), batch_of(XS[:1])
    with torch.no_grad():
        data = {
            name: np.var([float(e.nats(model, batch, Keys(2, d)).nats.double().sum()) for d in range(80)])
            for name, e in ESTIMATORS.items()
        }
        assert data["times"] > 2 * data["strata"]
        times = [np.mean([float(model.nats(one, Keys(3, 8 * d + k)).nats.sum()) for k in range(8)]) for d in range(60)]
        counts = [float(strata_nats(model, one, Keys(3, d), calls=8).nats.double().sum()) for d in range(60)]
    assert np.var(times) > 6 * np.var(counts)


def test_strata_do_not_depend_on_the_batch() -> None:
    model, whole = model_of(table()), batch_of()
    want = strata_nats(model, whole, Keys(1, 2), calls=3).nats
    parts = [Batch(whole.tokens[i : i + 4], whole.index[i : i + 4], len(whole)) for i in range(0, len(whole), 4)]
    got = torch.cat([strata_nats(model, part, Keys(1, 2), calls=3, batch_size=5).nats for part in parts])
    torch.testing.assert_close(got, want)


def test_padding_is_never_hidden_nor_counted() -> None:
    """A short row beside a longer one has the bound that it has alone."""
    model = model_of(table(), law=ContinuousTime(0.1))
    present = torch.tensor([[True, True, False], [True] * 3])
    batch = Batch(torch.tensor([[0, 2, 3], [0, 2, 3]]), torch.arange(2), 2, present, present)
    drawn = torch.stack([strata_nats(model, batch, Keys(8, d), calls=2).nats for d in range(300)]).double()
    assert not drawn[:, 0, 2].any()
    truth = [by_counts((0, 2, 3)[:n], tuple(range(n)), table().denoiser(), "log-linear", model.law) for n in (2, 3)]
    assert z_scores(drawn.sum(-1).numpy(), truth).max() < 4


# -- exact laws, and what is none ------------------------------------------------------------------------------------


@pytest.mark.parametrize("span", [False, True])
def test_exact_is_the_mean_over_all_orders(span: bool) -> None:
    places, denoise = (0, 2) if span else (0, 1, 2), table().denoiser()
    found = exact_nats(model_of(table()), batch_of(), SPAN if span else ALL, batch_size=7)
    want = [-math.log(np.mean(np.exp(all_orders(x, places, denoise)))) for x in XS]
    np.testing.assert_allclose(found, want, rtol=1e-5)


def test_exact_of_a_true_joint_is_its_likelihood() -> None:
    found = exact_nats(model_of(exact_table()), batch_of(), ALL, batch_size=64)
    np.testing.assert_allclose(found, [-math.log(JOINT[x]) for x in XS], rtol=1e-4)


def test_exact_is_what_very_many_steps_do() -> None:
    law = ancestral_law((MASK,) * 3, table().denoiser("log-linear uncut"), "log-linear uncut", 150)
    found = exact_nats(model_of(table()), batch_of(), ALL, batch_size=64)
    np.testing.assert_allclose(np.exp(-found), [law[x] for x in XS], rtol=0.05)


def test_exact_refuses_what_it_cannot_do() -> None:
    with pytest.raises(UserError, match="without time conditioning"):
        exact_nats(model_of(table(1, timed=True)), batch_of(), ALL, 8)
    long = Batch(torch.zeros(1, 15, dtype=torch.int64), torch.arange(1), 1)
    with pytest.raises(UserError, match=r"15 tokens .* at most 14"):
        exact_nats(model_of(table()), long, torch.ones(1, 15, dtype=torch.bool), 8)
    with pytest.raises(UserError, match="without time conditioning"):
        strata_nats(model_of(table(1, timed=True)), batch_of(), Keys(0))
    heavy = MaskedDiffusion(table(), Polynomial(), parameterization=Mean(zero_mask=False))
    for call in (
        lambda: exact_nats(heavy, batch_of(), ALL, 8),
        lambda: strata_nats(heavy, batch_of(), Keys(0)),
        lambda: pseudo_nats(heavy, batch_of(), ALL, 8),
        lambda: plan_nats(heavy, batch_of(), ALL, LeftToRight(), Keys(0)),
    ):
        with pytest.raises(UserError, match="sums to 1"):
            call()


@pytest.mark.parametrize("timed", [False, True])
def test_pseudo_likelihood_is_each_token_given_the_others(timed: bool) -> None:
    net, name = table(2, timed), "linear 3"
    found = pseudo_nats(model_of(net, name), batch_of(), SPAN, batch_size=5)
    t = -math.log((1 + math.exp(-3)) / 2) / 3  # where one of the two is hidden: half-way between alpha_0 and alpha_1
    denoise = net.denoiser(name)
    want = [[-denoise(hide(x, {i}), t)[i, x[i]] if i != 1 else 0.0 for i in range(3)] for x in XS]
    np.testing.assert_allclose(found, want, rtol=1e-4, atol=1e-6)


PLANS: dict[str, tuple[Sampler, Any]] = {
    "left to right": (LeftToRight(), [(0,), (1,), (2,)]),
    "two at a time": (LeftToRight(2), [(0, 1), (2,)]),
    "given": (GivenOrder((2, 0, 1)), [(2,), (0,), (1,)]),
}


@pytest.mark.parametrize("kind", PLANS)
def test_a_plan_is_a_chain_rule(kind: str) -> None:
    plan, groups = PLANS[kind]
    denoise = table().denoiser()
    found = plan_nats(model_of(table()), batch_of(), ALL, plan, Keys(0), batch_size=4)
    for row, x in enumerate(XS):
        left, want = [0, 1, 2], [0.0] * 3
        for group in groups:
            guess = denoise(hide(x, left), 0.5)
            for place in group:
                want[place] = -guess[place, x[place]]
                left.remove(place)
        assert found.tokens is not None
        np.testing.assert_allclose(found.tokens[row], want, rtol=1e-5)
        assert found.nats[row, 0] == pytest.approx(sum(want), rel=1e-5)


def confident_order(x: State, denoise: Denoiser) -> float:
    left, total = [0, 1, 2], 0.0
    while left:
        guess = denoise(hide(x, left), 0.5)
        place = max(left, key=lambda i: guess[i].max())
        total -= guess[place, x[place]]
        left.remove(place)
    return total


def test_the_surest_first_by_hand() -> None:
    found = plan_nats(model_of(table()), batch_of(), ALL, Adaptive("confidence", k=1), Keys(0))
    np.testing.assert_allclose(found.nats[:, 0], [confident_order(x, table().denoiser()) for x in XS], rtol=1e-5)


# -- the gate --------------------------------------------------------------------------------------------------------


def gate(nats: Any) -> float:
    return float(np.exp(-np.asarray(nats, dtype=float)).sum())


EXACT: dict[str, Sampler | None] = {
    "any order": None,
    "left to right": LeftToRight(),
    "left to right, two": LeftToRight(2),
    "given order": GivenOrder((1, 2, 0)),
    "confidence": Adaptive("confidence", k=1),
    "confidence, two": Adaptive("confidence", k=2),
    "entropy": Adaptive("entropy", k=1),
    "margin": Adaptive("margin", k=1),
    "threshold": Adaptive("confidence", threshold=0.6),
    "entropy bound": Adaptive("entropy", entropy_bound=0.6),
    "confidence, entropy bound": Adaptive("confidence", entropy_bound=0.6),
}


@pytest.mark.parametrize("law", EXACT)
def test_exact_laws_put_one_on_everything(law: str) -> None:
    plan = EXACT[law]
    for net in (table(0), table(1), exact_table()):
        model, batch = model_of(net), batch_of()
        found = exact_nats(model, batch, ALL, 32) if plan is None else plan_nats(model, batch, ALL, plan, Keys(0)).nats
        assert gate(found) == pytest.approx(1, abs=1e-4)
        if law == "given order":
            continue
        part = exact_nats(model, batch, SPAN, 32) if plan is None else plan_nats(model, batch, SPAN, plan, Keys(0)).nats
        for middle in (0, 2, 3):  # of a span: for each context alone
            assert gate([n for n, x in zip(part, XS, strict=True) if x[1] == middle]) == pytest.approx(1, abs=1e-4)


def test_bounds_put_at_most_one_on_everything() -> None:
    """`by_counts` is what the estimators estimate, without noise."""
    for net in (table(0), exact_table()):
        denoise = net.denoiser()
        for law in LAWS:
            total = gate([by_counts(x, (0, 1, 2), denoise, "log-linear", law) for x in XS])
            assert total <= 1 + 1e-6
        span = [by_counts(x, (0, 2), denoise, "log-linear", LAWS[1]) for x in XS if x[1] == 2]
        assert 0.2 < gate(span) <= 1 + 1e-6


def test_the_pseudo_likelihood_does_not_pass() -> None:
    """Tokens that say each other: the network is right, and still the sum is far above 1."""
    joint = {x: (0.97 if len(set(x)) == 1 else 0.03 / 8) / 3 for x in XS}
    joint = {x: p / sum(joint.values()) for x, p in joint.items()}
    model = model_of(TableNet.exact(joint))
    assert gate(pseudo_nats(model, batch_of(), ALL, 32).sum(1)) > 2
    assert gate(exact_nats(model, batch_of(), ALL, 32)) == pytest.approx(1, abs=1e-4)


# -- random orders ---------------------------------------------------------------------------------------------------


def test_bounds_come_closer_with_more_orders() -> None:
    """NELBO = E[IW_1] >= E[IW_2] >= ... >= exact, by enumeration of all K-tuples of orders."""
    denoise = table().denoiser()
    for x in XS[::4]:
        log_p = np.array(all_orders(x, (0, 1, 2), denoise))
        means = []
        for k in (1, 2, 3, 4):
            tuples = np.array(list(itertools.product(log_p, repeat=k)))
            means.append(float(iw_bound(tuples[:, None])[0].mean()))
        exact = -math.log(np.exp(log_p).mean())
        assert means[0] == pytest.approx(nelbo_continuous(x, denoise, 0.0, 1.0), rel=1e-9)
        assert all(a > b + 1e-6 for a, b in itertools.pairwise([*means, exact]))


def test_every_order_is_drawn_alike() -> None:
    denoise, x = table().denoiser(), XS[11]
    found = plan_nats(model_of(table()), batch_of([x]), ALL[:1], FirstHitting(), Keys(4), draws=600, batch_size=64)
    known = np.array(all_orders(x, (0, 1, 2), denoise))
    which = np.abs(found.nats[0][:, None] + known).argmin(1)
    np.testing.assert_allclose(-found.nats[0], known[which], rtol=1e-4)
    assert scipy.stats.chisquare(np.bincount(which, minlength=6)).pvalue > 1e-3


def test_orders_of_a_draw_are_averaged() -> None:
    """IW_3 is made of three orders, each row has its own, and they do not depend on the batch."""
    model, batch = model_of(table()), batch_of()
    found = plan_nats(model, batch, ALL, FirstHitting(), Keys(2), orders=3, draws=2, batch_size=7)
    known = [all_orders(x, (0, 1, 2), table().denoiser()) for x in XS]
    for row, log_p in enumerate(known):
        possible = iw_bound(np.array(list(itertools.product(log_p, repeat=3)))[:, None])[0].ravel()
        for value in found.nats[row]:
            assert np.abs(possible - value).min() < 1e-4
    same = plan_nats(model, batch_of([XS[11]] * 27), ALL, FirstHitting(), Keys(2), batch_size=30)
    assert len(set(same.nats[:, 0].round(4))) > 3
    part = Batch(batch.tokens[5:6], batch.index[5:6], len(batch))
    alone = plan_nats(model, part, ALL[:1], FirstHitting(), Keys(2), orders=3, draws=2)
    np.testing.assert_allclose(alone.nats[0], found.nats[5], rtol=1e-5)


@pytest.mark.parametrize("timed", [False, True])
def test_many_orders_of_t_steps_are_the_samplers_law(timed: bool) -> None:
    """T-step plans, time-conditioned networks too: -log of the exact chance that the sampler ends in x."""
    net, name, xs = table(6, timed), "cosine", XS[::9]
    law = ancestral_law((MASK,) * 3, net.denoiser(name), name, 2)
    found = plan_nats(model_of(net, name), batch_of(xs), ALL[: len(xs)], RevealPlan(2), Keys(1), orders=400)
    assert found.error is not None
    want = np.array([-math.log(law[x]) for x in xs])
    assert (np.abs(found.nats[:, 0] - want) < 4 * found.error + 1e-4).all()
    assert found.error.max() < 0.3


def test_the_jackknife_error_is_the_spread_of_groups() -> None:
    log_p = np.random.default_rng(0).normal(-20, 0.8, size=(1, 400, 24))
    nats, error = iw_bound(log_p)
    assert error is not None
    assert error[0] == pytest.approx(nats[0].std(ddof=1), rel=0.15)
    assert iw_bound(log_p[..., :1])[1] is None


def test_plans_without_a_likelihood() -> None:
    with pytest.raises(UserError, match="no likelihood that could be replayed"):
        plan_nats(model_of(table()), batch_of(), ALL, Ancestral(3), Keys(0))
    with pytest.raises(UserError, match="time"):
        plan_nats(model_of(table(1, timed=True)), batch_of(), ALL, LeftToRight(), Keys(0))


# -- texts and spans -------------------------------------------------------------------------------------------------

CORPUS = ["the naïve café of the 日本 and the 🙂 of the other café, again and again"] * 3
MAKERS = {
    "bytes": bytes_tokenizer,
    "chars": lambda: chars_tokenizer(CORPUS),
    "bpe": lambda: bpe_tokenizer(CORPUS, 290),
}


@functools.cache
def make(kind: str = "bytes", *overrides: str) -> LM:
    tokenizer: Tokenizer = MAKERS[kind]()
    return random_lm(tokenizer, "data.length=40", *overrides, scale=2.0)


@functools.cache
def learnt() -> LM:
    return unmask.load(trained())


def ask(lm: LM, texts: Any, **how: Any) -> Any:
    return score(lm.model, lm.prompt_builder, texts, **how)


@pytest.mark.parametrize("method", METHODS)
def test_tokens_add_up_to_texts_and_texts_to_the_whole(method: str) -> None:
    lm, texts = make("bpe"), ["the café", "of the other", "x"]
    whole = ask(lm, texts, method=method)
    for text, one in zip(texts, whole.texts, strict=True):
        assert one.tokens == len(lm.encode(text)) == len(one.pieces) and one.bytes == len(text.encode())
        assert (one.token_nats is None) == (method in ("exact", "orders"))
        if one.token_nats is not None:
            assert sum(one.token_nats) == pytest.approx(one.nats, rel=1e-6)
        assert one.stderr_nats == 0 if method in ("exact", "pll", "plan") else one.stderr_nats >= 0
    assert whole.nats == pytest.approx(sum(one.nats for one in whole.texts), rel=1e-9)
    assert whole.tokens == sum(one.tokens for one in whole.texts)
    assert whole.protocol["law"] == METHODS[method].law and whole.stderr_data is not None
    assert ("cutoff_mask_rate" in whole.protocol) == (method in ("bound", "strata"))


def test_the_bound_is_the_models_nats() -> None:
    lm = make()
    found = ask(lm, "a text of some tokens", method="bound", draws=3, seed=4)
    tokens = torch.tensor([list(b"a text of some tokens")])
    batch = Batch(tokens, torch.tensor([0]), 1)
    want = [lm.model.nats(batch, eval_keys(4).at(d)).nats.detach()[0].double() for d in range(3)]
    np.testing.assert_allclose(found.texts[0].token_nats, torch.stack(want).mean(0), rtol=1e-5, atol=1e-6)


def test_a_span_that_is_everything_is_the_text() -> None:
    """Rows without block ends have nothing else to hide: the same draws, the same figures."""
    lm, text = make("bpe"), "the other café"
    for method in ("bound", "strata", "exact", "orders"):
        whole, span = ask(lm, text, method=method), ask(lm, text, method=method, span=(0, len(text)))
        assert span.nats == pytest.approx(whole.nats, rel=1e-5)
        assert span.protocol["scored"] != whole.protocol["scored"]


def test_a_span_is_scored_given_the_rest() -> None:
    """The chain rule of an exact law, left to right: p(text) = p(beginning | masks) p(end | beginning)."""
    lm = make()
    text, cut = "chain rule", 4
    whole = ask(lm, text, method="plan").texts[0].token_nats
    end = ask(lm, text, method="plan", span=(cut, len(text))).texts[0]
    assert end.pieces == list("n rule")
    assert end.token_nats == pytest.approx(whole[cut:], rel=1e-4)
    both = ask(lm, text, method="plan", span=[(0, 2), (6, 8)]).texts[0]
    assert both.pieces == list("ch" + "ru") and both.bytes == 4


def test_a_span_is_all_that_is_ever_hidden() -> None:
    """Of a span of one token there is nothing to draw: it is hidden, and all others are seen."""
    lm, text, span = make(), "a text", (3, 4)
    want = ask(lm, text, method="pll", span=span).nats
    strata = ask(lm, text, method="strata", span=span)
    assert strata.nats == pytest.approx(want, rel=1e-4) and (strata.stderr_nats or 0) < 1e-5
    assert isinstance(lm.model, MaskedDiffusion)
    one_step = LM(lm.model.under(law=DiscreteTime(1)), lm.tokenizer, lm.config)
    assert ask(one_step, text, span=span).nats == pytest.approx(want, rel=1e-4)


def test_context_helps_a_model_that_has_learnt() -> None:
    lm = learnt()
    alone = ask(lm, "three", method="exact")
    inside = ask(lm, SENTENCE.strip(), method="exact", span=(8, 13))
    assert inside.nats < alone.nats - 1


@effort(max_examples=60)
@given(st.text(min_size=1, max_size=12), st.data())
def test_a_span_is_widened_to_whole_tokens(text: str, data: st.DataObject) -> None:
    if any(0xD800 <= ord(c) < 0xE000 for c in text):
        return
    start = data.draw(st.integers(0, len(text) - 1))
    end = data.draw(st.integers(start + 1, len(text)))
    for kind in MAKERS:
        lm = make(kind, "data.length=64")
        one = ask(lm, text, span=(start, end), method="pll").texts[0]
        shown = "".join(one.pieces or [])
        if "⟨" not in shown and kind != "chars":  # bytes of one character, and unknown characters, are shown otherwise
            assert text[start:end] in shown and shown in text
        assert one.bytes >= len(text[start:end].encode())
        if kind == "chars":
            assert one.tokens == end - start


def test_words_bring_their_space() -> None:
    one = ask(make("bpe"), "of the café", span=(7, 11), method="pll").texts[0]
    assert one.pieces == [" café"] and one.bytes == len(" café".encode())


def test_marks() -> None:
    assert marked("the [[cat]] sat") == ("the cat sat", [(4, 7)])
    assert marked("[[a]]b[[c\nd]]") == ("abc\nd", [(0, 1), (2, 5)])
    for none in ("no mark", "[a]", "[[a", "a]]"):
        with pytest.raises(UserError, match="no span"):
            marked(none)


def test_block_ends_are_seen_and_not_scored() -> None:
    lm = make("bytes", "data.block_ends=true", "data.length=12")
    assert ask(lm, "hello", method="exact").tokens == 5
    assert [t.tokens for t in ask(lm, "x" * 23, method="plan").texts] == [23]  # three blocks of at most ten
    bare = LM(lm.model, lm.tokenizer, lm.config.override(["data.block_ends=false"]))
    assert ask(bare, "hello", method="exact").nats != pytest.approx(ask(lm, "hello", method="exact").nats)
    framed = torch.tensor([[lm.tokenizer.vocab.bos, *b"hello", lm.tokenizer.vocab.eos]])
    free = torch.tensor([[False] + [True] * 5 + [False]])
    want = exact_nats(lm.model, Batch(framed, torch.arange(1), 1), free, 8)
    assert ask(lm, "hello", method="exact").nats == pytest.approx(want[0], rel=1e-5)


@pytest.mark.parametrize("method", ["strata", "exact", "orders", "plan", "pll"])
def test_scores_do_not_depend_on_the_batch(method: str) -> None:
    lm, texts = make(), ["ab", "longer", "mid"]
    want = [one.nats for one in ask(lm, texts, method=method).texts]
    for size in (1, 2):
        assert [one.nats for one in ask(lm, texts, method=method, batch_size=size).texts] == pytest.approx(
            want, rel=1e-4
        )


def test_dropout_is_off_and_comes_back() -> None:
    lm = random_lm(bytes_tokenizer(), "model.dropout=0.9")
    for method in METHODS:
        want = ask(lm, "abc", method=method)
        lm.model.train()
        assert ask(lm, "abc", method=method) == want and lm.model.training
        lm.model.eval()


def test_methods_agree_on_a_learnt_text() -> None:
    """One law, three ways: T -> infinity by enumeration, by orders, and bounded by strata without a cut-off."""
    lm = learnt()
    assert isinstance(lm.model, MaskedDiffusion)
    uncut = LM(lm.model.under(law=ContinuousTime(0.0)), lm.tokenizer, lm.config)
    text, span = SENTENCE * 1 + "one", (8, 13)
    exact = ask(uncut, text, method="exact", span=span)
    many = ask(uncut, text, method="orders", span=span, orders=200)
    one = ask(uncut, text, method="orders", span=span, orders=1, draws=200)
    bound = ask(uncut, text, method="strata", span=span, draws=40)
    assert abs(many.nats - exact.nats) < 4 * many.tokens * many.stderr_nats + 1e-4
    close = math.hypot(one.stderr_nats, bound.stderr_nats) * 5
    assert abs(one.nats - bound.nats) < 4 * close
    assert bound.nats + 4 * 5 * bound.stderr_nats > exact.nats


WRONG: dict[str, tuple[dict[str, Any], str]] = {
    "method": ({"method": "exactly"}, "unknown method 'exactly'"),
    "draws": ({"draws": 0}, "draws=0"),
    "calls": ({"method": "strata", "calls": -1}, "calls=-1"),
    "orders": ({"method": "orders", "orders": 0}, "orders=0"),
    "batch": ({"batch_size": 0}, "batch_size=0"),
    "draws of an exact law": ({"method": "exact", "draws": 4}, "does not take draws"),
    "calls of the bound": ({"method": "bound", "calls": 4}, "does not take calls"),
    "plan of the bound": ({"method": "bound", "plan": LeftToRight()}, "follows no plan"),
    "random plan": ({"method": "plan", "plan": RevealPlan(4)}, "use 'orders'"),
    "one order": ({"method": "orders", "plan": LeftToRight()}, "use method 'plan'"),
    "span outside": ({"span": (2, 50)}, "2:50"),
    "empty span": ({"span": (2, 2)}, "2:2"),
    "negative span": ({"span": (-3, 2)}, "-3:2"),
    "no span": ({"span": []}, "not a span"),
    "words for a span": ({"span": "ab"}, "not a span"),
    "half a span": ({"span": (3,)}, "not a span"),
    "seed": ({"seed": 2**63}, "seed"),
}


@pytest.mark.parametrize("what", WRONG)
def test_mistakes_are_sentences(what: str) -> None:
    how, says = WRONG[what]
    with pytest.raises(UserError, match=re.escape(says)):
        ask(make(), "some text", **how)


def test_more_mistakes() -> None:
    lm = make()
    for texts in ("", [], ["a", ""]):
        with pytest.raises(UserError):
            ask(lm, texts)
    with pytest.raises(UserError, match="2 texts need a list of 2 spans"):
        ask(lm, ["ab", "cd"], span=(0, 1))
    with pytest.raises(UserError, match=r"50 tokens, more than the 40 .* shorten the context"):
        ask(lm, "x" * 50, span=(0, 1))
    with pytest.raises(UserError, match="15 tokens"):
        ask(lm, "x" * 15, method="exact")
    assert [one.tokens for one in ask(lm, ["ab", "cd"], span=[(0, 1), None]).texts] == [1, 2]


# -- the estimator of a data set -------------------------------------------------------------------------------------

VOCAB = Vocab(12, mask=11, pad=10)


@functools.cache
def small() -> MaskedDiffusion:
    found: MaskedDiffusion = random_model(tiny_config("data.length=8"), VOCAB, scale=1.5)
    return found


@pytest.mark.parametrize("padded", [False, True])
def test_a_data_set_has_one_bound_and_two_estimators(padded: bool) -> None:
    rows = random_rows(VOCAB, 40, 8, padded=padded)
    times = evaluate(small(), rows, draws=24)
    strata = evaluate(small(), rows, draws=24, estimator=STRATA)
    assert strata.tokens == times.tokens and strata.stderr_nats and times.stderr_nats
    assert abs(strata.nats_per_token - times.nats_per_token) < 4 * math.hypot(strata.stderr_nats, times.stderr_nats)
    assert strata.stderr_nats < times.stderr_nats
    assert times.protocol["estimator"] == TIMES.name != strata.protocol["estimator"]
    again = evaluate(small(), rows, draws=24, estimator=STRATA, batch_size=7)
    assert again.nats == pytest.approx(strata.nats, rel=1e-5)


def test_the_error_of_strata_is_calibrated() -> None:
    rows = random_rows(VOCAB, 12, 8)
    found = [evaluate(small(), rows, draws=6, seed=seed, estimator=STRATA) for seed in range(60)]
    spread = np.std([f.nats_per_token for f in found], ddof=1)
    reported = math.sqrt(np.mean([(f.stderr_nats or 0) ** 2 for f in found]))
    assert reported / 1.4 < spread < reported * 1.4


def test_an_estimator_is_a_function_of_model_batch_and_keys() -> None:
    """The seam: whatever gives nats can be averaged."""
    ones = Estimator("ones", lambda _m, batch, _k: TIMES.nats(small(), batch, Keys(0)))
    found = evaluate(small(), random_rows(VOCAB, 3, 8), draws=2, estimator=ones)
    assert found.stderr_nats == 0 and found.protocol["estimator"] == "ones"


# -- the command -----------------------------------------------------------------------------------------------------


def command(*args: str) -> Any:
    return run("score", str(trained()), *args, "--json").json()


def test_the_command_is_the_function() -> None:
    text = SENTENCE.strip()
    for args, how in (
        ([], {}),  # one default, from one place
        ([], {"method": "strata"}),
        (["--method", "bound"], {"method": "bound"}),
        (["--method", "strata", "--draws", "3", "--calls", "4"], {"method": "strata", "draws": 3, "calls": 4}),
        (["--span", "4:7", "--method", "exact"], {"method": "exact", "span": (4, 7)}),
        (["--plan", "confidence", "-k", "2"], {"plan": Adaptive("confidence", k=2)}),
        (["--plan", "entropy", "--entropy-bound", "9"], {"plan": Adaptive("entropy", entropy_bound=9.0)}),
        (["--plan", "confidence", "-k", "2"], {"method": "plan", "plan": Adaptive("confidence", k=2)}),
        (
            ["--method", "orders", "--orders", "3", "--steps", "4"],
            {"method": "orders", "orders": 3, "plan": RevealPlan(4)},
        ),
        (["--method", "pll", "--seed", "3"], {"method": "pll"}),
    ):
        found, want = command(text, *args), ask(learnt(), text, **how)
        assert found["nats"] == pytest.approx(want.nats, rel=1e-4), args
        assert found["tokens"] == want.tokens and found["protocol"]["law"] == want.protocol["law"]
        [one] = found["texts"]
        assert one["text"] == text and one["pieces"] == want.texts[0].pieces


def test_the_default_method_is_one_that_the_model_allows() -> None:
    assert default_method(model_of(table())) == "strata"
    assert default_method(model_of(table(1, timed=True))) == "bound"
    assert default_method(MaskedDiffusion(table(), Polynomial(), parameterization=Mean(zero_mask=False))) == "bound"


def test_files_and_marks(tmp_path: Path) -> None:
    lines, objects = tmp_path / "a.txt", tmp_path / "a.jsonl"
    lines.write_text("one two\n\nthree four\n")
    objects.write_text('{"text": "one two", "span": [4, 7]}\n"three four"\n')
    assert [t["text"] for t in command("--file", str(lines))["texts"]] == ["one two", "three four"]
    found = command("--file", str(objects), "--method", "pll")
    assert [t["tokens"] for t in found["texts"]] == [3, 10]
    [one] = command("one [[two]]", "--marked", "--method", "pll")["texts"]
    assert one["text"] == "one two" and one["nats"] == pytest.approx(found["texts"][0]["nats"])
    [plain] = command("one [[two]]", "--method", "pll")["texts"]
    assert plain["tokens"] == len("one [[two]]"), "brackets are text unless --marked says otherwise"


def test_plain_output() -> None:
    ran = run("score", str(trained()), "one two three", "--method", "exact", "--span", "4:7")
    assert ran.code == 0 and "[[two]]" in ran.out and "law: exact" in ran.out
    ran = run("score", str(trained()), "one", "two", "--method", "strata")
    head, first, second, both = ran.out.splitlines()[:4]
    assert head.split()[:3] == ["text", "tokens", "nats"] and both.startswith("together")
    assert first.startswith("one") and second.startswith("two")
    one = run("score", str(trained()), "one")
    assert sum("█" in line for line in one.out.splitlines()) == 3


def test_eval_takes_an_estimator() -> None:
    args = ["eval", str(trained()), "--rows", "20", "--json"]
    times, strata = run(*args, "--estimator", "times").json(), run(*args).json()
    assert "mask count" in strata["protocol"]["estimator"]
    assert strata["stderr_nats"] < times["stderr_nats"]
    close = 6 * math.hypot(strata["stderr_nats"], times["stderr_nats"])  # four draws: the errors are rough themselves
    assert abs(strata["nats_per_token"] - times["nats_per_token"]) < close
    assert "unknown estimator 'stratum'" in refused("eval", str(trained()), "--estimator", "stratum")


def test_the_command_refuses_in_a_sentence(tmp_path: Path) -> None:
    model = str(trained())
    bad = tmp_path / "bad.jsonl"
    bad.write_text(json.dumps({"txt": "a"}) + "\n")
    (tmp_path / "empty.txt").write_text("\n")
    (tmp_path / "latin.txt").write_bytes(b"caf\xe9")
    for args, says in (
        ([], "give either texts or --file"),
        (["a", "--file", "b"], "give either texts or --file"),
        (["--file", str(tmp_path / "none.txt")], "none.txt"),
        (["--file", str(bad)], "line 1 of"),
        (["--file", str(tmp_path / "empty.txt")], "no text in it"),
        (["--file", str(tmp_path / "latin.txt")], "not UTF-8"),
        (["a", "--span", "x"], "--span x must be"),
        (["a", "--span", "3:"], "--span 3: must be"),
        (["a", "b", "--span", "0:1"], "--span needs a single text"),
        (["a", "--marked"], "no span"),
        (["a", "--steps", "3"], "--steps is a setting of a sampler"),
        (["a", "--plan", "lefty"], "lefty"),
        (["a", "--plan", "ancestral"], "no likelihood"),
        (["a", "--method", "nope"], "unknown method 'nope'"),
        (["a", "--label", "x"], "without labels"),
        (["a" * 20, "--method", "exact"], "20 tokens"),
    ):
        assert says in refused("score", model, *args), args


def test_rows_are_dealt_out_to_their_texts_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ten times as many texts are looked at ten times as often, not a hundred times."""
    looks = [0]

    class Counted(int):
        def __eq__(self, other: object) -> bool:
            looks[0] += 1
            return int.__eq__(self, other)

        __hash__ = int.__hash__

    def read(*given: Any) -> Any:
        passages, scored = spans.read_passages(*given)
        return [replace(passage, text=Counted(passage.text)) for passage in passages], scored

    monkeypatch.setattr(scoring, "read_passages", read)
    assert len(random_lm(bytes_tokenizer()).score(["abc"] * 60, draws=1).texts or ()) == 60
    assert looks[0] < 60 * 4
