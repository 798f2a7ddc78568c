"""Guidance by a label: the law of the mixture, guided and plain sequences in one batch, and what it costs."""

from __future__ import annotations

import functools
import itertools
import math

import numpy as np
import pytest
import torch

from oracles.enumeration import MASK, SCHEDULES, TableNet, ancestral_law
from oracles.laws import guided, order_law, random_order_law, ruled, surest_law
from support.drawing import Case, close, generate, judge, keys_of, mixed, model_of
from unmask.models.masked import MaskedDiffusion
from unmask.process.parameterization import Mean, Score
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
    return dict(zip(CASES, mixed(model, list(CASES.values()), keys_of(200), batch_size=100), strict=True))


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


# -- one law for all strengths ---------------------------------------------------------------------------------------

METHODS = {
    "mdlm": (Mean(), (RevealPlan(3), FirstHitting(), Adaptive("entropy", k=1), Ancestral(3))),
    "carry-over": (Mean(zero_mask=False), (Ancestral(3),)),
    "no-carry-over": (Mean(carry_over=False), (Ancestral(3),)),
    "d3pm": (Mean(zero_mask=False, carry_over=False), (Ancestral(3),)),
    "sedd": (Score(), (Ancestral(3), Ancestral(3, euler=True))),
}


def canvases(model: MaskedDiffusion, sampler, n: int = 50, **how):
    states = generate(model, [torch.tensor(M3)] * n, sampler, keys_of(n), batch_size=n, **how)
    return [state.canvas.tolist() for state in sorted((s for s in states if s.done), key=lambda s: s.row)]


@pytest.mark.parametrize("method", METHODS)
def test_the_law_does_not_jump_at_0_or_1(method):
    """With the same random numbers nearly all samples are the same; of two laws that are 0.3 apart a third is not."""
    meaning, samplers = METHODS[method]
    model = MaskedDiffusion(network(), SCHEDULES[NAME], parameterization=meaning)
    for sampler in samplers:
        with_label = canvases(model, sampler, labels=[1] * 50)
        without = canvases(model, sampler)
        for scale, like in [(0.0, without), (1e-6, without), (-1e-6, without), (1 - 1e-6, with_label)]:
            assert canvases(model, sampler, labels=[1] * 50, guidance=scale) == like, (sampler, scale)
        assert canvases(model, sampler, labels=[1] * 50, guidance=1 + 1e-6) == with_label
        assert with_label != without


def measure_law(scale: float, steps: int = 2) -> dict[tuple[int, ...], float]:
    """SEDD in T analytic steps: x̂ is the geometric mixture, in all as large as the masses of both, mixed alike."""

    def scaled(rows):
        return rows - math.log(rows.shape[-1] - 1)

    raw = [network().denoiser(log_x=scaled, label=label) for label in (1, -1)]
    law, alpha = {M3: 1.0}, [1 - 0.999 * i / steps for i in range(steps + 1)]
    for i in range(steps, -1, -1):
        u = 1.0 if i == 0 else (alpha[i - 1] - alpha[i]) / (1 - alpha[i])
        out: dict[tuple[int, ...], float] = {}
        for z, chance in law.items():
            options = []
            for position, token in enumerate(z):
                if token != MASK:
                    options.append([(token, 1.0)])
                    continue
                a, b = (np.delete(np.exp(denoise(z, 0.0)[position]), MASK) for denoise in raw)
                weights, size = b ** (1 - scale) * a**scale, b.sum() ** (1 - scale) * a.sum() ** scale
                reveal = 1.0 if i == 0 else min(1.0, u * size)
                clean = [y for y in range(4) if y != MASK]
                options.append([(MASK, 1 - reveal), *zip(clean, reveal * weights / weights.sum(), strict=True)])
            for combination in itertools.product(*options):
                state, p = tuple(y for y, _ in combination), math.prod(p for _, p in combination)
                out[state] = out.get(state, 0.0) + chance * p
        law = {state: p for state, p in out.items() if p > 0}
    return law


@pytest.mark.parametrize("scale", [0.5, 2.0])
def test_the_law_of_a_guided_measure(scale):
    model = MaskedDiffusion(network(), SCHEDULES[NAME], parameterization=Score())
    (states,) = mixed(
        model,
        [Case(Ancestral(2), lambda: measure_law(scale), label=1, guidance=scale)],
        keys_of(700),
        batch_size=500,
    )
    assert judge(states, measure_law(scale)) > 1e-3


@pytest.mark.parametrize("forbidden", ["with the label", "without it"])
@pytest.mark.parametrize("scale", [-0.5, 0.0, 0.3, 1.0, 2.0])
def test_a_token_that_one_of_both_excludes(forbidden, scale):
    """Never NaN, and never a token that the formula gives no chance; the ends are the two laws themselves."""
    net = TableNet.random(13, labels=2)
    with torch.no_grad():
        (net.tables[1] if forbidden == "with the label" else net.table)[..., 3] = -math.inf
    model = MaskedDiffusion(net, SCHEDULES[NAME])
    texts = canvases(model, LeftToRight(), 60, labels=[1] * 60, guidance=scale)
    written = {token for text in texts for token in text}
    assert MASK not in written
    possible = scale == 0 if forbidden == "with the label" else scale >= 1
    assert (3 in written) == possible
    if scale in (0.0, 1.0):
        labels = [1] * 60 if scale else None
        assert texts == canvases(model, LeftToRight(), 60, **({"labels": labels} if labels else {}))
