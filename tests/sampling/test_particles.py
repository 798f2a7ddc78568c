"""Particles: weighted texts follow the free sampler's law given that they fit, and the chance to fit is unbiased."""

from __future__ import annotations

import math
import re

import numpy as np
import pytest
import torch

from oracles.enumeration import MASK, VOCAB, ancestral_law
from oracles.laws import order_law, surest_law
from support.causal_nets import causal
from support.drawing import model_of
from unmask.constraints import over_tokens, regex
from unmask.models.autoregressive import AutoRegressive
from unmask.process.keys import Keys
from unmask.sampling import (
    Adaptive,
    Ancestral,
    Choice,
    Constraint,
    FormedSpan,
    Gibbs,
    LeftToRight,
    PredictorCorrector,
    Remasking,
    Request,
    RevealPlan,
    run_particles,
)
from unmask.sampling.particles import _effective, _log_mean, _systematic
from unmask.types import UserError

NAME = "log-linear"
SPELLING = [b"a", None, b"ab", b"b"]
FORM = "(ab)*b?a*"
FORMED = Constraint((FormedSpan(over_tokens(regex(FORM), SPELLING, MASK), 0, 3),))
M3 = (MASK,) * 3
MODEL = model_of(NAME, seed=5)
plain = MODEL.backbone.denoiser()


def spells(x):
    return re.fullmatch(FORM, b"".join(SPELLING[token] or b"?" for token in x).decode()) is not None


def request(sampler, seed=0, **more):
    return Request(0, torch.tensor(M3), sampler, Keys(seed), constraint=FORMED, **more)


LAWS = {
    "left to right": (LeftToRight(), lambda: order_law(M3, plain, [[0], [1], [2]])),
    "a plan": (RevealPlan(2), lambda: ancestral_law(M3, plain, NAME, 2)),
    "textbook": (Ancestral(3), lambda: ancestral_law(M3, plain, NAME, 3)),
    "entropy": (Adaptive("entropy", k=1), lambda: surest_law(M3, plain, "entropy", 1)),
}


@pytest.mark.parametrize("name", LAWS)
def test_the_law_and_the_chance_are_unbiased(name):
    """Over independent sets of particles, resampling included: sum of W over a text is its free chance."""
    sampler, free = LAWS[name][0], LAWS[name][1]()
    sets, n = 60, 6
    runs = [run_particles(MODEL, request(sampler, seed), n) for seed in range(sets)]
    chances = np.array([math.exp(run.log_chance) for run in runs])
    true = sum(p for x, p in free.items() if spells(x))
    assert abs(chances.mean() - true) < 4.5 * chances.std() / sets**0.5 + 1e-9
    for x in (x for x in free if spells(x) and free[x] > 0.01):
        mass = [
            sum(
                math.exp(weight) / n
                for state, weight in zip(run.states, run.log_weights, strict=True)
                if tuple(state.canvas.tolist()) == x
            )
            for run in runs
        ]
        assert abs(np.mean(mass) - free[x]) < 4.5 * np.std(mass) / sets**0.5 + 2e-3
    assert all(spells(state.canvas.tolist()) for run in runs for state in run.states)
    assert all(1 <= run.effective <= n + 1e-9 for run in runs)


def test_resampling_happens_and_copies_go_their_own_ways(monkeypatch):
    monkeypatch.setattr("unmask.sampling.particles.RESAMPLE", 1.1)  # after every step
    runs = [run_particles(MODEL, request(LeftToRight(), seed), 8) for seed in range(40)]
    free = LAWS["left to right"][1]()
    true = sum(p for x, p in free.items() if spells(x))
    chances = np.array([math.exp(run.log_chance) for run in runs])
    assert abs(chances.mean() - true) < 4.5 * chances.std() / len(runs) ** 0.5
    assert all(len(set(run.log_weights)) == 1 for run in runs)  # the last step was followed by one too
    assert any(len({tuple(state.canvas.tolist()) for state in run.states}) > 2 for run in runs)


def test_the_same_seed_gives_the_same_text_whatever_the_batch():
    whole, parts = (run_particles(MODEL, request(RevealPlan(2)), 7, batch_size=size) for size in (16, 2))
    assert whole.chosen == parts.chosen and np.allclose(whole.log_weights, parts.log_weights)
    assert [s.canvas.tolist() for s in whole.states] == [s.canvas.tolist() for s in parts.states]
    assert whole.calls == parts.calls == sum(state.calls for state in whole.states)


def test_states_say_when_each_token_was_written():
    run = run_particles(MODEL, request(LeftToRight()), 4)
    for state in run.states:
        steps, probs = state.history
        assert steps.tolist() == [0, 1, 2] and (probs > 0).all() and state.done


def test_an_autoregressive_model_with_its_cache():
    ar = AutoRegressive(causal(vocab=VOCAB)).eval()
    runs = [run_particles(ar.denoiser(), request(LeftToRight(), seed), 8) for seed in range(25)]
    chances = np.array([math.exp(run.log_chance) for run in runs])
    free = torch.tensor([[a, b, c] for a in (0, 2, 3) for b in (0, 2, 3) for c in (0, 2, 3) if spells((a, b, c))])
    with torch.no_grad():
        rows = torch.cat([torch.full((len(free), 1), MASK), free[:, :2]], 1)
        log_p = ar.log_x(ar.backbone(rows)[0].flatten(0, 1)).double().view(len(free), 3, -1)
    true = float(log_p.gather(2, free[..., None]).sum((1, 2)).exp().sum())
    assert abs(chances.mean() - true) < 4.5 * chances.std() / 5
    assert all(spells(state.canvas.tolist()) for run in runs for state in run.states)


def test_figures_of_weights():
    assert _effective(np.zeros(5)) == pytest.approx(5) and _effective(np.array([0.0, -np.inf])) == pytest.approx(1)
    assert _log_mean(np.log([1.0, 3.0])) == pytest.approx(math.log(2)) and _log_mean(np.array([-np.inf])) == -math.inf
    assert _systematic(np.log([1.0, 2.0, 1.0]), np.array([0.0, 0.24, 0.26, 0.74, 0.99])).tolist() == [0, 0, 1, 1, 2]


@pytest.mark.parametrize(
    ("asked", "n", "said"),
    [
        (Request(0, torch.tensor(M3), LeftToRight(), Keys(0)), 2, "drawn under a constraint"),
        (request(LeftToRight(), choice=Choice(0.0)), 2, "a temperature above 0"),
        (request(LeftToRight()), 0, "particles=0 must be at least 1"),
        (request(Gibbs(9)), 2, "Gibbs takes tokens back"),
        (request(Remasking(4, "rescale", 0.5)), 2, "Remasking takes tokens back"),
        (request(PredictorCorrector(4)), 2, "PredictorCorrector takes tokens back"),
    ],
)
def test_what_has_no_particles(asked, n, said):
    with pytest.raises(UserError, match=said):
        run_particles(MODEL, asked, n)
