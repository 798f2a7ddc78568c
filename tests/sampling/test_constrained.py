"""Writing under a constraint: the law of every order against enumeration, weights, and what cannot be written."""

from __future__ import annotations

import functools
import itertools
import math
import re
from collections import Counter

import numpy as np
import pytest
import torch

from oracles.enumeration import CLEAN, MASK, SCHEDULES, VOCAB, TableNet, V, ancestral_law
from oracles.laws import (
    collect,
    filtered,
    formed,
    legs_law,
    masks_of,
    order_law,
    plan_law,
    random_order_law,
    remask_legs,
    ruled,
    surest_law,
    written,
)
from support.causal_nets import causal
from support.drawing import PLANS, Case, finish, judge, keys_of, mixed, model_of, p_value, plan_for, texts
from support.helpers import random_model, tiny_config
from unmask.constraints import over_tokens, regex
from unmask.models.autoregressive import AutoRegressive
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.sampling import (
    Adaptive,
    Ancestral,
    Choice,
    Constraint,
    FirstHitting,
    FormedSpan,
    Gibbs,
    GivenOrder,
    LeftToRight,
    Remasking,
    Request,
    RevealPlan,
    Rules,
    Windows,
)
from unmask.sampling.constrained import needed, parts
from unmask.sampling.phrases import Phrase
from unmask.types import UserError, Vocab

NAME = "log-linear"
SPELLING = [b"a", None, b"ab", b"b"]
FORM = "(ab)*b?a*"
M3 = (MASK,) * 3


def spells(x, pattern=FORM):
    return re.fullmatch(pattern, b"".join(SPELLING[token] or b"?" for token in x).decode()) is not None


def span(start=0, stop=3, pattern=FORM):
    return FormedSpan(over_tokens(regex(pattern), SPELLING, MASK), start, stop)


def form(*args, **kwargs):
    return Constraint((span(*args, **kwargs),))


@functools.cache
def model():
    return model_of(NAME, seed=5)


plain = functools.cache(lambda: model().backbone.denoiser())
WHOLE = form()


def case(plan, law, canvas=M3, **more):
    return Case(plan, law, canvas, **{"constraint": WHOLE, **more})


def rewritten(form_of):
    """The law of Gibbs sweeps over two positions, three updates: 0, 1, 0."""
    law = {(MASK, MASK): 1.0}
    for position in (0, 1, 0):
        law = collect(
            (state, chance * p)
            for z, chance in law.items()
            for shown in [tuple(MASK if i == position else y for i, y in enumerate(z))]
            for state, p in form_of(shown, plain()(shown, math.nan), [position])
        )
    return law


CASES: dict[str, Case] = {
    "left to right": case(LeftToRight(), lambda: order_law(M3, plain(), [[0], [1], [2]], formed(spells))),
    "a given order": case(GivenOrder((2, 0, 1)), lambda: order_law(M3, plain(), [[2], [0], [1]], formed(spells))),
    "two at a time": case(LeftToRight(2), lambda: order_law(M3, plain(), [[0, 1], [2]], formed(spells))),
    "all at once": case(LeftToRight(3), lambda: order_law(M3, plain(), [[0, 1, 2]], formed(spells))),
    "a plan": case(RevealPlan(2), lambda: plan_law(M3, plain(), NAME, 2, formed(spells))),
    "textbook": case(Ancestral(3), lambda: plan_law(M3, plain(), NAME, 3, formed(spells))),
    "first-hitting": case(FirstHitting(), lambda: random_order_law(M3, plain(), formed(spells))),
    "confidence": case(
        Adaptive("confidence", k=1), lambda: surest_law(M3, plain(), "confidence", 1, write=formed(spells))
    ),
    "entropy": case(Adaptive("entropy", k=2), lambda: surest_law(M3, plain(), "entropy", 2, write=formed(spells))),
    "a threshold": case(
        Adaptive("margin", threshold=0.3),
        lambda: surest_law(M3, plain(), "margin", threshold=0.3, write=formed(spells)),
    ),
    "given tokens in the span": case(
        RevealPlan(2), lambda: plan_law((MASK, 3, MASK), plain(), NAME, 2, formed(spells)), (MASK, 3, MASK)
    ),
    "given tokens beside it": case(
        LeftToRight(),
        lambda: order_law((3, MASK, MASK), plain(), [[1], [2]], formed(lambda x: spells(x[1:], "a*b?"))),
        (3, MASK, MASK),
        constraint=form(1, 3, "a*b?"),
    ),
    "two spans": case(
        RevealPlan(3),
        lambda: plan_law(M3, plain(), NAME, 3, formed(lambda x: spells(x[:1], "a|b") and spells(x[1:], "a+b"))),
        constraint=Constraint((span(0, 1, "a|b"), span(1, 3, "a+b"))),
    ),
    "a part of the canvas": case(
        FirstHitting(),
        lambda: random_order_law(M3, plain(), formed(lambda x: spells(x[1:], "a+b"))),
        constraint=form(1, 3, "a+b"),
    ),
    "temperature": case(
        LeftToRight(2),
        lambda: order_law(M3, filtered(plain(), 0.5), [[0, 1], [2]], formed(spells)),
        choice=Choice(0.5),
    ),
    "top-k": case(
        LeftToRight(),
        lambda: order_law(M3, filtered(plain(), top_k=2), [[0], [1], [2]], formed(spells)),
        choice=Choice(top_k=2),
    ),
    "rules": case(
        RevealPlan(2),
        lambda: plan_law(M3, ruled(plain(), lambda i, y: (i, y) != (1, 0)), NAME, 2, formed(spells)),
        control=Rules(allowed={1: [2, 3]}),
    ),
    "sweeps": case(Gibbs(3, "sequential"), lambda: rewritten(formed(spells)), (MASK, MASK), constraint=form(0, 2)),
    "no constraint": Case(RevealPlan(2), lambda: ancestral_law(M3, plain(), NAME, 2)),
}  # fmt: skip


@functools.cache
def ran(n=300):
    """All cases through each other in one call."""
    return dict(zip(CASES, mixed(model(), list(CASES.values()), keys_of(n, seed=3), batch_size=64), strict=True))


def states(name):
    return ran()[name]


@pytest.mark.parametrize("name", CASES)
def test_each_step_has_the_law_of_what_fits(name):
    assert judge(states(name), CASES[name].law()) > 1e-3


FREE = {
    "left to right": lambda: order_law(M3, plain(), [[0], [1], [2]]),
    "two at a time": lambda: order_law(M3, plain(), [[0, 1], [2]]),
    "all at once": lambda: order_law(M3, plain(), [[0, 1, 2]]),
    "a plan": lambda: ancestral_law(M3, plain(), NAME, 2),
    "textbook": lambda: ancestral_law(M3, plain(), NAME, 3),
    "first-hitting": lambda: random_order_law(M3, plain()),
    "entropy": lambda: surest_law(M3, plain(), "entropy", 2),
    "a threshold": lambda: surest_law(M3, plain(), "margin", threshold=0.3),
    "given tokens in the span": lambda: ancestral_law((MASK, 3, MASK), plain(), NAME, 2),
    "temperature": lambda: order_law(M3, filtered(plain(), 0.5), [[0, 1], [2]]),
}


@pytest.mark.parametrize("name", FREE)
def test_weighted_runs_are_the_free_sampler_restricted(name):
    """E[W; x] is the free chance of x, for every x that fits: so E[W] is the chance that a free text fits.

    Texts that were seen now and then only have no error bar, so they are left out, of both sides.
    """
    free, runs = FREE[name](), states(name)
    weights: dict[tuple[int, ...], list[float]] = {}
    for state in runs:
        weights.setdefault(tuple(state.canvas.tolist()), []).append(math.exp(state.log_weight))
    common = [x for x, seen in weights.items() if len(seen) >= 10]
    assert common and all(spells(x) for x in weights)
    for texts_of in ([x] for x in common), [common]:
        for chosen in texts_of:
            values = torch.zeros(len(runs), dtype=torch.float64)
            seen = [weight for x in chosen for weight in weights[x]]
            values[: len(seen)] = torch.tensor(seen, dtype=torch.float64)
            expected, error = sum(free[x] for x in chosen), float(values.std()) / len(runs) ** 0.5
            assert abs(float(values.mean()) - expected) < 4.5 * error


def test_the_weight_of_a_run_is_that_of_its_steps():
    """Left to right: the product of Z / Z⁺, by enumeration."""
    for state in states("left to right")[:50]:
        x, log_weight = tuple(state.canvas.tolist()), 0.0
        for i in range(3):
            z, z_next = x[:i] + M3[i:], x[: i + 1] + M3[i + 1 :]
            guess = plain()(z, math.nan)
            fits = [sum(p for y, p in written(w, guess, masks_of(w)) if spells(y)) for w in (z, z_next)]
            log_weight += math.log(fits[0] / fits[1])
        assert state.log_weight == pytest.approx(log_weight, abs=1e-5)


def test_free_texts_have_no_weight():
    assert all(state.log_weight is None for state in states("no constraint"))


def test_what_is_taken_back_has_no_weight():
    """A free sweep may pass through what does not fit, so that no weight of runs that always fit is right."""
    assert all(state.log_weight is None for state in states("sweeps"))


@pytest.mark.parametrize("name", PLANS)
def test_every_sampler_writes_what_fits_alone_and_among_others(name):
    canvases = [M3, (0, MASK, MASK), (MASK, 3, MASK), (MASK, MASK, 0)] * 3
    plans = [plan_for(name, canvas) for canvas in canvases]
    if isinstance(plans[0], Windows):
        with pytest.raises(UserError, match="Windows does not; leave out the stride"):
            texts(model(), canvases, plans, keys_of(12), constraints=[WHOLE] * 12)
        return
    together = texts(model(), canvases, plans, keys_of(12), constraints=[WHOLE] * 12)
    assert all(spells(x) for x in together)
    alone = [
        texts(model(), [canvas], [plan], [key], constraints=[WHOLE])[0]
        for canvas, plan, key in zip(canvases, plans, keys_of(12), strict=True)
    ]
    assert together == alone


def test_remasking_ends_in_what_fits():
    """Its law has no simple form, but each leg is drawn from what fits: no text outside, none of it left out."""
    legs = remask_legs(NAME, 3, "rescale", 0.6)
    seen = Counter(texts(model(), [M3] * 400, Remasking(3, "rescale", 0.6), keys_of(400), constraints=[WHOLE] * 400))
    possible = {x for x, p in legs_law(M3, plain(), legs).items() if p > 0.01 and spells(x)}
    assert all(spells(x) for x in seen) and possible <= set(seen)


def test_temperature_zero_writes_the_best_text_of_each_step():
    [state] = finish(model(), [M3], LeftToRight(3), keys_of(1), choice=Choice(0.0), constraints=[WHOLE])
    law = {x: p for x, p in written(M3, plain()(M3, math.nan), [0, 1, 2]) if spells(x)}
    assert tuple(state.canvas.tolist()) == max(law, key=law.__getitem__) and state.log_weight is None


def test_forced_tokens_are_certain():
    only = form(pattern="bba")
    seen = set(texts(model(), [(MASK, 3, MASK)] * 50, RevealPlan(2), keys_of(50), constraints=[only] * 50))
    assert seen == {(3, 3, 0)}
    exact = texts(model(), [(MASK, MASK)] * 20, FirstHitting(), keys_of(20), constraints=[form(0, 2, "abab")] * 20)
    assert set(exact) == {(2, 2)}


def test_a_filter_that_leaves_nothing_is_dropped():
    """Top-k 1 keeps the best token alone; where that does not fit, the step is drawn without it, and has no weight."""
    best = max(CLEAN, key=lambda y: plain()(M3, math.nan)[0, y])
    other = next(y for y in CLEAN if y != best)
    pattern = {0: "a", 2: "ab", 3: "b"}[other] + ".*"
    runs = finish(
        model(), [M3] * 8, LeftToRight(), keys_of(8), choice=Choice(top_k=1), constraints=[form(pattern=pattern)] * 8
    )
    assert all(spells(state.canvas.tolist(), pattern) for state in runs)
    assert any(state.log_weight == -math.inf for state in runs)


# -- the autoregressive model ----------------------------------------------------------------------------------------


def causal_law(probs, length):
    """Token by token, each among those after which the text can still be completed."""
    law = {(): 1.0}
    for i in range(length):
        out = []
        for prefix, chance in law.items():
            firsts = {rest[0] for rest in itertools.product(CLEAN, repeat=length - i) if spells(prefix + rest)}
            total = sum(probs(prefix)[y] for y in firsts)
            out += [((*prefix, y), chance * probs(prefix)[y] / total) for y in firsts]
        law = collect(out)
    return law


def test_an_autoregressive_model_never_gets_stuck():
    net = causal(vocab=VOCAB)
    ar = AutoRegressive(net).eval()

    @functools.cache
    def probs(prefix):
        rows = torch.tensor([[MASK, *prefix]])
        with torch.no_grad():
            return ar.log_x(net(rows)[0][0, -1:])[0].double().exp().tolist()

    n = 800
    runs = finish(ar, [M3] * n, LeftToRight(), keys_of(n), constraints=[WHOLE] * n, batch_size=64)
    assert p_value(Counter(tuple(state.canvas.tolist()) for state in runs), causal_law(probs, 3)) > 1e-3
    free = {x: math.prod(probs(x[:i])[x[i]] for i in range(3)) for x in itertools.product(CLEAN, repeat=3)}
    chance = sum(p for x, p in free.items() if spells(x))
    weights = torch.tensor([math.exp(state.log_weight) for state in runs], dtype=torch.float64)
    assert abs(float(weights.mean()) - chance) < 4.5 * float(weights.std()) / n**0.5


# -- what cannot be written ------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("canvas", "constraint", "rules", "said"),
    [
        (M3, form(pattern="a"), None, "from position 0 on cannot be a text that fits a: at position 1 any token"),
        (M3, form(pattern="a{9}"), None, "give it 9 tokens"),
        (M3, form(pattern="(ab){9}"), None, "give it 9 or 10 or 11 tokens"),
        ((MASK, 3, MASK), form(pattern="a*"), None, "at position 1 the given '3'"),
        ((MASK, 0, MASK), form(pattern="aaaa+"), None, "they would end before the text is complete"),
        (M3, form(pattern="a*"), Rules(frozenset({0})), "at position 0 any token"),
        (M3, form(pattern="a*"), Rules(allowed={2: [3]}), "at position 2 any token"),
        (M3, form(2, 5), None, "positions 2 to 5, but the canvas has 3"),
        (M3, WHOLE, Rules(phrases=(Phrase(b"aa", SPELLING),)), "banned words of several tokens"),
    ],
)  # fmt: skip
def test_the_impossible_is_said_before_anything_is_written(canvas, constraint, rules, said):
    fresh = model_of(NAME, seed=5)
    with pytest.raises(UserError, match=re.escape(said)):
        texts(fresh, [canvas], RevealPlan(2), keys_of(1), controls=[rules], constraints=[constraint])
    assert not fresh.backbone.calls


def test_a_function_that_forbids_all_that_fits_ends_its_sequence_alone():
    def never_a(log_p, positions, canvas):
        out = log_p.clone()
        out[:, 0] = -math.inf
        return out

    requests = [
        Request(row, torch.tensor(M3), LeftToRight(), keys_of(1)[0], rules=rules, constraint=constraint)
        for row, (rules, constraint) in enumerate([(Rules(constrain=never_a), form(pattern="a*")), (None, WHOLE)])
    ]
    batcher = model().batcher(2)
    for request in requests:
        batcher.add(request)
    last = {}
    while batcher.busy:
        last |= {state.row: state for state, _ in batcher.step()}
    assert "leaves nothing that fits a*" in str(last[0].error)
    assert last[1].error is None and spells(last[1].canvas.tolist())


def test_a_network_that_gives_nan_is_said():
    table = TableNet.random(0)
    table.table.data[:] = math.nan
    with pytest.raises(UserError, match="NaN"):
        texts(MaskedDiffusion(table, SCHEDULES[NAME]), [M3], RevealPlan(2), keys_of(1), constraints=[WHOLE])


def test_rows_in_parts_are_the_same(monkeypatch):
    whole = texts(model(), [M3] * 9, RevealPlan(2), keys_of(9), constraints=[WHOLE] * 9)
    monkeypatch.setattr("unmask.sampling.token_step.LOGITS_AT_ONCE", 2 * V)
    monkeypatch.setattr("unmask.sampling.constrained.SUMS_AT_ONCE", 1)
    assert texts(model(), [M3] * 9, RevealPlan(2), keys_of(9), constraints=[WHOLE] * 9) == whole


# -- what is in the middle of a span may not depend on what is around it ---------------------------------------------

QUOTED = [b"a", None, b"b", b'"', b'",']
LIST = r'"[ab]*",("[ab]*",)?"[ab]*"'
GAPS = (3, 0, MASK, MASK, 0, MASK, 2, MASK, MASK, 0, 3)  # the third gap cannot be the end of a text between quotes


def quoted(x):
    return re.fullmatch(LIST, b"".join(QUOTED[token] or b"?" for token in x).decode()) is not None


@functools.cache
def lister():
    network = random_model(tiny_config(f"data.length={len(GAPS)}"), Vocab(len(QUOTED), MASK), scale=3.0)

    @functools.cache
    def guess(z, _t):
        with torch.no_grad():
            hidden = network.hidden(torch.tensor([z]), torch.zeros(1, dtype=torch.float64))
            return network.log_x(hidden[0]).double().numpy()

    return network, guess, Constraint((FormedSpan(over_tokens(regex(LIST), QUOTED, MASK), 0, len(GAPS)),))


@pytest.mark.parametrize("groups", [[[2, 3, 5, 7, 8]], [[5, 7], [2, 8], [3]], [[5], [2], [8], [3], [7]]], ids=str)
def test_a_stretch_in_the_middle_has_the_law_of_the_whole(groups):
    network, guess, constraint = lister()
    order = [masks_of(GAPS).index(position) for group in groups for position in group]
    sampler, n = GivenOrder(order, k=len(groups[0])), 600
    runs = finish(network, [GAPS] * n, sampler, keys_of(n), constraints=[constraint] * n, batch_size=50)
    assert judge(runs, order_law(GAPS, lambda z, _: guess(z, 0), groups, formed(quoted))) > 1e-3
    for state in runs[:60]:
        x, log_weight, z = tuple(state.canvas.tolist()), 0.0, GAPS
        for group in groups:
            after = tuple(x[i] if i in group else y for i, y in enumerate(z))
            fits = [sum(p for y, p in written(w, guess(z, 0), masks_of(w)) if quoted(y)) for w in (z, after)]
            log_weight, z = log_weight + math.log(fits[0] / fits[1]), after
        assert state.log_weight == pytest.approx(log_weight, abs=1e-4)


def test_only_what_is_due_and_its_stretch_are_asked_for():
    network, _, constraint = lister()
    sampler = GivenOrder((2, 0, 1, 3, 4))
    trajectory = sampler.trajectory(Request(0, torch.tensor(GAPS), sampler, Keys(0), constraint=constraint), network)
    due = trajectory.due()
    assert needed(due, parts(trajectory, due.numpy(), one_way=False)).tolist() == [5]
    assert needed(due, parts(trajectory, due.numpy(), one_way=False, whole=True)).tolist() == [2, 3, 5, 7, 8]
    outside = np.array([3])
    assert needed(torch.tensor([3]), parts(trajectory, outside, one_way=False)).tolist() == [2, 3, 7, 8]
