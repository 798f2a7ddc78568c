"""Long convolutions against plain sums in numpy, their gradients against differences, and which way is taken."""

from __future__ import annotations

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.networks.kernels import fftconv
from unmask.networks.kernels.fftconv import FEW, by_fft, direct, good_size, long_conv

GRID = list(itertools.product([1, 3], [1, 4], [1, 2, 5, 16, 33, 100]))  # rows, channels, columns
either = pytest.mark.parametrize("way", [direct, by_fft])


def some(b: int, d: int, length: int, dtype: torch.dtype = torch.float64) -> tuple[Tensor, Tensor, Tensor]:
    g = torch.Generator().manual_seed(100 * b + 10 * d + length)
    u, k, bias = (
        torch.randn(*shape, generator=g, dtype=torch.float64) for shape in ((b, length, d), (length, d), (d,))
    )
    return u.to(dtype), k.to(dtype), bias.to(dtype)


def summed(u: Tensor, k: Tensor, bias: Tensor) -> np.ndarray:
    """The definition, one product at a time, in float64."""
    u_, k_, bias_ = (x.double().numpy() for x in (u, k, bias))
    y = np.zeros_like(u_)
    for row, i, channel in itertools.product(*map(range, u_.shape)):
        y[row, i, channel] = bias_[channel] * u_[row, i, channel]
        y[row, i, channel] += sum(k_[i - j, channel] * u_[row, j, channel] for j in range(i + 1))
    return y


@either
@pytest.mark.parametrize(("b", "d", "length"), GRID)
def test_both_ways_are_the_sum(way, b, d, length):
    u, k, bias = some(b, d, length)
    truth = summed(u, k, bias)
    np.testing.assert_allclose(way(u, k, bias).numpy(), truth, rtol=0, atol=1e-12)
    for last in {1, (length + 1) // 2, length}:
        np.testing.assert_allclose(way(u, k, bias, last).numpy(), truth[:, -last:], rtol=0, atol=1e-12)
    single = way(*(x.float() for x in (u, k, bias)))
    assert single.dtype == torch.float32
    np.testing.assert_allclose(single.numpy(), truth, rtol=1e-4, atol=1e-4)


def test_a_channel_is_numpys_convolution():
    u, k, bias = some(2, 3, 1024)
    for way in (direct, by_fft):
        y = way(u, k, bias)
        for row, channel in itertools.product(range(2), range(3)):
            truth = np.convolve(u[row, :, channel], k[:, channel])[:1024] + (bias[channel] * u[row, :, channel]).numpy()
            np.testing.assert_allclose(y[row, :, channel].numpy(), truth, rtol=0, atol=1e-11)


@either
@pytest.mark.parametrize(
    ("b", "d", "length", "last"), [(1, 1, 1, None), (2, 2, 5, None), (2, 1, 6, None), (2, 2, 5, 2)]
)
def test_gradients_are_differences(way, b, d, length, last):
    given = [x.requires_grad_() for x in some(b, d, length)]
    assert torch.autograd.gradcheck(lambda *three: way(*three, last), given)


@pytest.mark.parametrize(("b", "d", "length"), GRID)
def test_gradients_are_equal(b, d, length):
    given = [x.requires_grad_() for x in some(b, d, length)]
    weight = torch.randn(b, length, d, generator=torch.Generator().manual_seed(9), dtype=torch.float64)
    found = [torch.autograd.grad((way(*given) * weight).sum(), given) for way in (direct, by_fft)]
    for one, other in zip(*found, strict=True):
        torch.testing.assert_close(one, other, rtol=0, atol=1e-11)


@either
def test_columns_of_zeros_before_a_row_add_nothing(way):
    u, k, bias = some(2, 3, 9)
    padded = torch.cat((torch.zeros(2, 4, 3, dtype=u.dtype), u), dim=1)
    longer = torch.cat((k, torch.full((4, 3), 7.0, dtype=k.dtype)))  # what lies further back than the row is long
    torch.testing.assert_close(way(padded, longer, bias)[:, 4:], way(u, k, bias), rtol=0, atol=1e-12)


@either
def test_a_longer_filter_is_cut_and_a_shorter_one_refused(way):
    u, k, bias = some(2, 3, 9)
    torch.testing.assert_close(way(u[:, :6], k, bias), way(u, k, bias)[:, :6], rtol=0, atol=1e-12)
    with pytest.raises(ValueError, match="filter of 8 columns is too short for rows of 9"):
        way(u, k[:8], bias)


@either
def test_half_precision_is_summed_in_float32(way):
    """Of 600 products of size 1: sums in bfloat16 are off by whole units, and so is a spectrum in it."""
    u, k, bias = some(2, 3, 600, torch.bfloat16)
    truth = summed(u, k, bias)
    with torch.autocast("cpu", torch.bfloat16):
        y = way(u, k.float(), bias.float())
    assert y.dtype == torch.bfloat16
    error = np.abs(y.double().numpy() - truth)
    assert (error <= 2**-8 * np.abs(truth) + 1e-3).all()  # one rounding, at the end
    grads = torch.autograd.grad(way(u.requires_grad_(), k, bias).float().sum(), u)
    assert grads[0].dtype == torch.bfloat16 and grads[0].isfinite().all()


def test_a_few_columns_go_by_direct_sums_and_all_others_by_fft(monkeypatch):
    taken = []
    for name in ("direct", "by_fft"):
        own = getattr(fftconv, name)
        monkeypatch.setattr(fftconv, name, lambda *a, own=own, name=name: taken.append(name) or own(*a))
    u, k, bias = some(1, 2, 100)
    whole = summed(u, k, bias)
    for last in (1, FEW, FEW + 1, None):
        np.testing.assert_allclose(long_conv(u, k, bias, last).numpy(), whole[:, -(last or 100) :], rtol=0, atol=1e-12)
    assert taken == ["direct", "direct", "by_fft", "by_fft"]


def test_sizes_have_small_factors_only():
    smooth = sorted(
        2**a * 3**b * 5**c for a in range(1, 13) for b in range(8) for c in range(6) if 2**a * 3**b * 5**c < 5000
    )
    for least in (1, 2, 3, 7, 13, 129, 2047, 2048, 2049, 2051, 4097):
        assert good_size(least) == next(size for size in smooth if size >= least)
