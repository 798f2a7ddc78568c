"""Fast paths against their references."""

from __future__ import annotations

import pytest
import torch

from unmask.networks.kernels.dropout import dropout


@pytest.mark.parametrize("p", [0.1, 0.5, 0.9])
def test_dropout_has_its_rate_and_keeps_the_expectation(p: float) -> None:
    torch.manual_seed(0)
    n = 400_003  # not a multiple of four
    y = dropout(torch.ones(n), p, True)
    rate = (y == 0).double().mean().item()
    assert abs(rate - p) < 5 * (p * (1 - p) / n) ** 0.5 + 2**-16
    assert y.unique().numel() == 2
    level = round(p * 65536) / 65536
    assert y.max().item() == pytest.approx(1 / (1 - level), rel=1e-6)


def test_dropout_elements_are_independent() -> None:
    """Neighbours (they share a 64-bit word) and rows: pairs are dropped as often as independence says."""
    torch.manual_seed(1)
    dropped = (dropout(torch.ones(1000, 1000), 0.3, True) == 0).double()
    for shift, dim in ((1, 1), (2, 1), (3, 1), (4, 1), (1, 0)):
        both = (dropped * dropped.roll(shift, dim)).mean().item()
        assert both == pytest.approx(0.09, abs=5 * (0.09 * 0.91 / 1e6) ** 0.5)


def test_dropout_follows_the_global_generator_and_its_gradient_the_mask() -> None:
    x = torch.randn(50, 40, requires_grad=True)
    results = []
    for seed in (3, 3, 4):
        torch.manual_seed(seed)
        results.append(dropout(x, 0.2, True))
    torch.testing.assert_close(results[0], results[1], rtol=0, atol=0)
    assert not torch.equal(results[0], results[2])
    (gradient,) = torch.autograd.grad(results[0].sum(), x)
    torch.testing.assert_close(gradient * x, results[0])
    torch.manual_seed(3)
    first, second = dropout(x, 0.2, True), dropout(x, 0.2, True)
    assert not torch.equal(first, second)


def test_no_dropout_is_the_identity() -> None:
    x = torch.randn(5)
    assert dropout(x, 0.5, False) is x
    assert dropout(x, 0.0, True) is x


def test_bf16_keeps_its_type() -> None:
    assert dropout(torch.ones(8, dtype=torch.bfloat16), 0.1, True).dtype is torch.bfloat16
