"""From logits to log x̂: SUBS and the D3PM ladder against loops over the vocabulary."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from oracles.enumeration import CLEAN, MASK, V, bayes, d3pm, one_hot, subs
from unmask.process.parameterization import Mean

SUBS, LADDER = Mean(), Mean(zero_mask=False)


def logits_of(rows: int = 6, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(seed).normal(size=(rows, V)) * 3).float()


def test_log_x_is_a_softmax_without_and_with_the_mask():
    logits = logits_of()
    np.testing.assert_allclose(SUBS.log_x(logits, MASK).exp(), np.exp(subs(logits.double().numpy())), atol=1e-6)
    np.testing.assert_allclose(LADDER.log_x(logits, MASK).exp(), np.exp(d3pm(logits.double().numpy())), atol=1e-6)
    assert (SUBS.log_x(logits, MASK)[:, MASK] == -math.inf).all()  # zero masking probabilities, exactly
    torch.testing.assert_close(SUBS.log_x(logits, MASK).exp().sum(-1), torch.ones(6))


@pytest.mark.parametrize("shape", [(5, V), (2, 3, V), (0, V)])
def test_any_number_of_rows(shape):
    assert SUBS.log_x(torch.randn(shape), MASK).shape == shape


def test_half_precision_logits_become_float32_and_are_not_written_to():
    logits = logits_of().bfloat16()
    before = logits.clone()
    for parameterization in (SUBS, LADDER):
        assert parameterization.log_x(logits, MASK).dtype == torch.float32
        parameterization.target(logits, torch.zeros(6, dtype=torch.long), torch.full((6,), 0.5), MASK)
    assert torch.equal(logits, before)


def test_huge_logits_on_the_mask_change_nothing_under_subs():
    """-inf and not -1e6: whatever the network says about [MASK] is of no consequence."""
    logits = logits_of()
    loud = logits.clone()
    loud[:, MASK] = 1e30
    torch.testing.assert_close(SUBS.log_x(loud, MASK), SUBS.log_x(logits, MASK), rtol=0, atol=0)


@pytest.mark.parametrize("alpha_t", [0.0, 0.3, 0.999])
def test_target_is_what_the_reverse_step_reveals(alpha_t):
    """-log x̃ and its total, read off the exact p(z_0|z_t = m): a step to s = 0 reveals with x̃ itself."""
    logits = logits_of()
    tokens = torch.tensor([0, 2, 3, 0, 2, 3])
    for parameterization, log_x in ((SUBS, subs), (LADDER, d3pm)):
        nll, mass = parameterization.target(logits, tokens, torch.full((6,), alpha_t, dtype=torch.float64), MASK)
        for row in range(6):
            guess = np.exp(log_x(logits[row].double().numpy()))
            truth = bayes(MASK, guess, 1.0, alpha_t, one_hot(MASK))
            assert float(nll[row]) == pytest.approx(-math.log(truth[tokens[row]]), rel=1e-5, abs=1e-6)
            assert float(mass[row]) == pytest.approx(sum(truth[y] for y in CLEAN), abs=1e-6)
    assert torch.equal(SUBS.target(logits, tokens, torch.zeros(6), MASK)[1], torch.ones(6))


def test_gradient_is_softmax_minus_one_hot_and_none_for_the_mask():
    logits = logits_of().requires_grad_()
    tokens = torch.tensor([0, 2, 3, 0, 2, 3])
    nll, _ = SUBS.target(logits, tokens, torch.zeros(6), MASK)
    nll.sum().backward()
    expected = np.exp(subs(logits.detach().double().numpy())) - np.eye(V)[tokens]
    np.testing.assert_allclose(logits.grad, expected, atol=1e-6)
    assert (logits.grad[:, MASK] == 0).all()


@pytest.mark.parametrize("alpha_t", [0.0, 0.5, 1 - 1e-6])
def test_gradients_stay_finite_where_the_network_is_sure(alpha_t):
    logits = torch.tensor([[100.0, 0, 0, 0], [0, 100.0, 0, 0], [-100.0, 0, 100.0, 0]], requires_grad=True)
    for parameterization in (SUBS, LADDER):
        nll, mass = parameterization.target(logits, torch.tensor([0, 0, 0]), torch.full((3,), alpha_t), MASK)
        assert torch.isfinite(nll).all() and torch.isfinite(mass).all()
        (grad,) = torch.autograd.grad(nll.sum() + mass.sum(), logits)
        assert torch.isfinite(grad).all()
