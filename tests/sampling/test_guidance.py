"""Guidance by a label: the law of the mixture, guided and plain sequences in one batch, and what it costs."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from oracles.enumeration import MASK, SCHEDULES, TableNet, ancestral_law
from oracles.laws import guided, order_law, random_order_law, ruled, surest_law
from support.drawing import Case, close, generate, judge, keys_of, mixed, model_of
from unmask.models.masked import MaskedDiffusion
from unmask.sampling import Adaptive, Ancestral, FirstHitting, LeftToRight, RevealPlan, Rules
from unmask.types import UserError

NAME = "log-linear"
M2, M3 = (MASK,) * 2, (MASK,) * 3
network = functools.cache(lambda: TableNet.random(13, labels=2))
own = functools.cache(lambda label: network().denoiser(label=label))


def law_of(label: int, scale: float):
    return guided(own(label), own(-1), scale)


CASES: dict[str, Case] = {
    "no label": Case(RevealPlan(2), lambda: ancestral_law(M3, own(-1), NAME, 2)),
    "a label": Case(RevealPlan(2), lambda: ancestral_law(M3, own(0), NAME, 2), label=0),
    "another": Case(FirstHitting(), lambda: random_order_law(M3, own(1)), label=1),
    "0 is without": Case(LeftToRight(), lambda: order_law(M3, own(-1), [[0], [1], [2]]), label=0, guidance=0.0),
    "half": Case(LeftToRight(2), lambda: order_law(M3, law_of(1, 0.5), [[0, 1], [2]]), label=1, guidance=0.5),
    "2": Case(RevealPlan(2), lambda: ancestral_law(M3, law_of(0, 2.0), NAME, 2), label=0, guidance=2.0),
    "2, textbook": Case(Ancestral(2), lambda: ancestral_law(M2, law_of(1, 2.0), NAME, 2), M2, label=1, guidance=2.0),
    "3, in an order": Case(
        Adaptive("margin", k=1), lambda: surest_law(M3, law_of(1, 3.0), "margin", 1), label=1, guidance=3.0
    ),
    "2 under a ban": Case(
        LeftToRight(),
        lambda: order_law(M3, ruled(law_of(0, 2.0), lambda i, y: y != 2), [[0], [1], [2]]),
        label=0,
        guidance=2.0,
        control=Rules(frozenset({2})),
    ),
}


@functools.cache
def run():
    model = MaskedDiffusion(network(), SCHEDULES[NAME])
    return dict(zip(CASES, mixed(model, list(CASES.values()), keys_of(300), batch_size=100), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_law_in_a_batch_of_guided_and_plain(case):
    assert judge(run()[case], CASES[case].law()) > 1e-3


@pytest.mark.parametrize("case", CASES)
def test_alone_it_is_the_same_sample(case):
    (alone,) = mixed(MaskedDiffusion(network(), SCHEDULES[NAME]), [CASES[case]], keys_of(15), batch_size=1)
    for state, among in zip(alone, run()[case], strict=False):
        assert state.canvas.tolist() == among.canvas.tolist() and state.calls == among.calls


def test_the_oracle_has_its_ends_right():
    none = random_order_law(M3, own(-1))
    for label in (0, 1):
        with_label = random_order_law(M3, own(label))
        assert close(random_order_law(M3, law_of(label, 1.0)), with_label) < 1e-9
        assert close(random_order_law(M3, law_of(label, 0.0)), none) < 1e-9
        assert close(with_label, none) > 0.02


def test_guided_ones_cost_two_calls_a_round():
    net = TableNet.random(13, labels=2)
    model, scales = MaskedDiffusion(net, SCHEDULES[NAME]), [1.0, 2.0, 0.0, 1.0]
    states = list(
        generate(
            model,
            [torch.tensor(M3)] * 4,
            LeftToRight(),
            keys_of(4),
            labels=[None, 0, 1, 1],
            guidance=scales,
            batch_size=3,
        )
    )
    for row, scale in enumerate(scales):
        assert [s.calls for s in states if s.row == row] == ([1, 2, 3] if scale == 1 else [2, 4, 6])
    assert sum(net.calls) == sum(s.calls for s in states if s.done) and net.calls[0] == 5


def test_probabilities_are_those_of_the_guided_distribution():
    model = MaskedDiffusion(network(), SCHEDULES[NAME])
    before = M3
    for state in generate(model, [torch.tensor(M3)], LeftToRight(), keys_of(1), labels=[1], guidance=2.5, tops=2):
        law = np.exp(law_of(1, 2.5)(before, 0.0)[int(state.positions[0])])
        assert float(state.probs[0]) == pytest.approx(law[int(state.tokens[0])], rel=1e-4)
        assert state.tops[0][0].tolist() == np.argsort(-law)[:2].tolist()
        before = tuple(state.canvas.tolist())


@pytest.mark.parametrize("scale", [0.0, 2.0, math.nan])
def test_guidance_needs_a_label(scale):
    with pytest.raises(UserError, match=f"guidance={scale} needs a label"):
        list(generate(model_of(), [torch.tensor(M3)], LeftToRight(), keys_of(1), guidance=scale))


@pytest.mark.parametrize("scale", [math.inf, -math.inf, math.nan])
def test_guidance_is_a_number(scale):
    model = MaskedDiffusion(network(), SCHEDULES[NAME])
    with pytest.raises(UserError, match=f"guidance={scale} must be a finite number"):
        list(generate(model, [torch.tensor(M3)], LeftToRight(), keys_of(1), labels=[0], guidance=scale))


def test_a_network_without_labels_is_not_told_any():
    list(generate(model_of(), [torch.tensor(M3)], LeftToRight(), keys_of(1), labels=[None]))
    with pytest.raises(ValueError, match="label"):
        list(generate(model_of(), [torch.tensor(M3)], LeftToRight(), keys_of(1), labels=[0]))
