"""Every plan: its law by enumeration, alone and among others in one batch, and the contracts that all of them keep."""

from __future__ import annotations

import functools
import itertools
from collections import Counter

import pytest
import torch

from oracles.enumeration import MASK, SCHEDULES, TableNet, ancestral_law
from oracles.laws import (
    corrector_legs,
    filtered,
    hitting_law,
    legs_law,
    order_law,
    random_order_law,
    remask_legs,
    ruled,
    surest_law,
    windows_law,
)
from support.drawing import (
    Case,
    close,
    judge,
    keys_of,
    mixed,
    p_value,
)
from unmask.models.masked import MaskedDiffusion
from unmask.sampling import (
    Adaptive,
    Ancestral,
    Choice,
    FirstHitting,
    GivenOrder,
    LeftToRight,
    PredictorCorrector,
    Remasking,
    RevealPlan,
    Rules,
    Windows,
)
from unmask.types import State

N = 300  # samples of each case; one test below says what that can tell apart
M2, M3, M4 = (MASK,) * 2, (MASK,) * 3, (MASK,) * 4

# -- laws, all plans in one call -------------------------------------------------------------------------------------

CUT = "geometric wide cut"  # keeps 0.13 at t = 1 and loses 0.18 at t = 0: no end may be taken for granted
table = functools.partial(TableNet.random, 53, spread=2.5)  # of the first 60, the one that tells most laws apart
plain = functools.cache(lambda: table().denoiser(CUT))
unbanned = functools.cache(lambda: ruled(plain(), lambda position, token: token != 3))
CASES: dict[str, Case] = {
    "reveal": Case(RevealPlan(2), lambda: ancestral_law(M3, plain(), CUT, 2)),
    "reveal, given": Case(RevealPlan(3), lambda: ancestral_law((MASK, 2, MASK), plain(), CUT, 3), (MASK, 2, MASK)),
    "ancestral": Case(Ancestral(2), lambda: ancestral_law(M2, plain(), CUT, 2), M2),
    "first-hitting": Case(FirstHitting(), lambda: hitting_law(M3, plain(), CUT, 4)),
    "left-to-right": Case(LeftToRight(), lambda: order_law(M3, plain(), [[0], [1], [2]])),
    "left-to-right 2": Case(LeftToRight(2), lambda: order_law(M3, plain(), [[0, 1], [2]])),
    "order": Case(GivenOrder([2, 0, 1]), lambda: order_law(M3, plain(), [[2], [0], [1]])),
    "order 2, given": Case(
        GivenOrder([1, 0], 2), lambda: order_law((MASK, 0, MASK), plain(), [[0, 2]]), (MASK, 0, MASK)
    ),
    "confidence": Case(Adaptive("confidence", k=1), lambda: surest_law(M3, plain(), "confidence", 1)),
    "entropy 2": Case(Adaptive("entropy", k=2), lambda: surest_law(M3, plain(), "entropy", 2)),
    "margin": Case(Adaptive("margin", steps=3), lambda: surest_law(M3, plain(), "margin", 1)),
    "confidence threshold": Case(
        Adaptive("confidence", threshold=0.6), lambda: surest_law(M3, plain(), "confidence", threshold=0.6)
    ),
    "entropy threshold": Case(
        Adaptive("entropy", threshold=0.75), lambda: surest_law(M3, plain(), "entropy", threshold=0.75)
    ),
    "margin threshold": Case(
        Adaptive("margin", threshold=0.4), lambda: surest_law(M3, plain(), "margin", threshold=0.4)
    ),
    "entropy bound": Case(
        Adaptive("entropy", entropy_bound=0.6), lambda: surest_law(M3, plain(), "entropy", bound=0.6)
    ),
    "cap": Case(
        Remasking(3, "cap", 0.5, (0.7, 0.0)),
        lambda: legs_law(M2, plain(), remask_legs(CUT, 3, "cap", 0.5, (0.7, 0.0))),
        M2,
    ),
    "rescale, given": Case(
        Remasking(3, "rescale", 0.8),
        lambda: legs_law((MASK, 2, MASK), plain(), remask_legs(CUT, 3, "rescale", 0.8)),
        (MASK, 2, MASK),
    ),
    "loop": Case(
        Remasking(5, "loop", 0.6, (0.7, 0.3), 0.6),
        lambda: legs_law(M2, plain(), remask_legs(CUT, 5, "loop", 0.6, (0.7, 0.3), 0.6)),
        M2,
    ),
    "corrector": Case(
        PredictorCorrector(2, 2, 0.6, (1.0, 0.1)),
        lambda: legs_law(M2, plain(), corrector_legs(CUT, 2, 2, 0.6, (1.0, 0.1))),
        M2,
    ),
    "windows": Case(
        Windows(RevealPlan(2), 3, 2), lambda: windows_law(M4, 3, 2, lambda z: ancestral_law(z, plain(), CUT, 2)), M4
    ),
    "surest in windows": Case(
        Windows(Adaptive("margin", k=1), 2, 1),
        lambda: windows_law(M3, 2, 1, lambda z: surest_law(z, plain(), "margin", 1)),
    ),
    "filters": Case(
        RevealPlan(2),
        lambda: ancestral_law(M3, filtered(plain(), 0.7, top_k=2, min_p=0.2), CUT, 2),
        choice=Choice(0.7, top_k=2, min_p=0.2),
    ),
    "filters of orders": Case(  # the order is that of the network's own distribution: filters come after it
        LeftToRight(2),
        lambda: order_law(M3, filtered(plain(), 1.5, top_p=0.7), [[0, 1], [2]]),
        choice=Choice(1.5, top_p=0.7),
    ),
    "a ban": Case(FirstHitting(), lambda: hitting_law(M3, unbanned(), CUT, 4), control=Rules(banned=frozenset({3}))),
    "a ban in an order": Case(
        Adaptive("entropy", k=1), lambda: surest_law(M3, unbanned(), "entropy", 1), control=Rules(frozenset({3}))
    ),
}


@functools.cache
def run_of_all() -> dict[str, list[State]]:
    model = MaskedDiffusion(table(), SCHEDULES[CUT])
    return dict(zip(CASES, mixed(model, list(CASES.values()), keys_of(N), batch_size=500), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_law_in_a_batch_of_all_plans(case):
    assert judge(run_of_all()[case], CASES[case].law()) > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_alone_it_is_the_same_sample(case):
    """So the law above is also that of a plan by itself: same text, same number of calls, whoever else is there."""
    own, model = CASES[case], MaskedDiffusion(table(), SCHEDULES[CUT])
    (alone,) = mixed(model, [own], keys_of(10), batch_size=1)
    for state, among in zip(alone, run_of_all()[case], strict=False):
        assert state.canvas.tolist() == among.canvas.tolist() and state.calls == among.calls
        torch.testing.assert_close(state.probs, among.probs)


timed_table = functools.partial(TableNet.random, 7, timed=True, spread=2.5)
timed = functools.cache(lambda: timed_table().denoiser("cosine"))
TIMED_CASES: dict[str, Case] = {
    "reveal": Case(RevealPlan(2), lambda: ancestral_law(M2, timed(), "cosine", 2), M2),
    "ancestral": Case(Ancestral(3), lambda: ancestral_law(M2, timed(), "cosine", 3), M2),
    "first-hitting": Case(FirstHitting(), lambda: hitting_law(M2, timed(), "cosine"), M2),
    "cap": Case(Remasking(4, "cap", 0.4), lambda: legs_law(M2, timed(), remask_legs("cosine", 4, "cap", 0.4)), M2),
    "loop": Case(
        Remasking(6, "loop", 0.7, (0.6, 0.3), 0.7),
        lambda: legs_law(M2, timed(), remask_legs("cosine", 6, "loop", 0.7, (0.6, 0.3), 0.7)),
        M2,
    ),
    "corrector": Case(
        PredictorCorrector(3, 1, 0.5),
        lambda: legs_law(M2, timed(), corrector_legs("cosine", 3, 1, 0.5, (1.0, 0.0))),
        M2,
    ),
    "windows": Case(
        Windows(FirstHitting(), 2, 1), lambda: windows_law(M3, 2, 1, lambda z: hitting_law(z, timed(), "cosine"))
    ),
}


@functools.cache
def timed_run() -> dict[str, list[State]]:
    model = MaskedDiffusion(timed_table(), SCHEDULES["cosine"])
    return dict(zip(TIMED_CASES, mixed(model, list(TIMED_CASES.values()), keys_of(N, 1), batch_size=300), strict=True))


@pytest.mark.parametrize("case", TIMED_CASES)
def test_the_law_of_a_network_that_is_told_the_time(case):
    """Every row at the time of its own step."""
    assert judge(timed_run()[case], TIMED_CASES[case].law()) > 1e-3


NEAR = [  # with this table; `test_adaptive` and `test_remask` compare the orders and the legs themselves
    {"order", "entropy threshold"},
    {"confidence", "margin"},
    {"entropy 2", "entropy bound"},
    *({"cap", "loop"}, {"cap", "corrector"}, {"loop", "corrector"}),
]


def test_the_laws_of_the_mixed_runs_differ():
    """Else a plan could take the place of another, or a network's time be forgotten, without notice."""
    laws = {name: case.law() for name, case in CASES.items()}
    for (first, a), (second, b) in itertools.combinations(laws.items(), 2):
        if CASES[first].canvas == CASES[second].canvas:
            counts = Counter({x: round(N * p) for x, p in a.items() if round(N * p)})
            told_apart = any(b.get(x, 0) == 0 for x in counts) or p_value(counts, b) < 1e-3
            assert told_apart or {first, second} in NEAR, (first, second)
    frozen = lambda z, t: timed()(z, 0.5)  # noqa: E731
    steps = {n: ancestral_law(M2, timed(), "cosine", n) for n in (2, 3, 4, 6)}
    hitting = hitting_law(M2, timed(), "cosine")
    for law, other in (
        (hitting, hitting_law(M2, frozen, "cosine")),
        (hitting, steps[4]),
        (steps[2], steps[3]),
        (legs_law(M2, timed(), remask_legs("cosine", 4, "cap", 0.4)), steps[4]),
        (legs_law(M2, timed(), remask_legs("cosine", 6, "loop", 0.7, (0.6, 0.3), 0.7)), steps[6]),
        (legs_law(M2, timed(), corrector_legs("cosine", 3, 1, 0.5, (1.0, 0.0))), steps[3]),
    ):
        assert p_value(Counter({x: round(N * p) for x, p in law.items()}), other) < 1e-3


def test_the_oracles_agree_where_laws_are_equal():
    """No sampler here: infinitely many steps are random orders, legs without remasking are ancestral."""
    denoise, start = plain(), M3
    assert close(hitting_law(start, denoise, "cosine uncut", 5), random_order_law(start, denoise)) < 1e-9
    assert (
        close(legs_law(start, denoise, remask_legs(CUT, 3, "cap", 0.0)), ancestral_law(start, denoise, CUT, 3)) < 1e-9
    )
    many = ancestral_law(M2, timed_table().denoiser(CUT), CUT, 200)
    assert close(hitting_law(M2, timed_table().denoiser(CUT), CUT), many) < 5e-3
