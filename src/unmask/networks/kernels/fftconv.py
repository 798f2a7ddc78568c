"""The long convolutions of Hyena (Poli et al. 2023): each channel with a filter as long as the row.

    y_i = sum over j <= i of k_{i-j} u_j  +  bias · u_i

One signature: u (B, L, D), a filter k of at least L columns (L, D), bias (D,), and `last`, how many columns at the end
are wanted (None = all); the result is y (B, last, D) in the type of u. Both compute in at least float32.

- `direct` is the formula, one column at a time: L products for each column that is wanted.
- `by_fft` computes all columns at once, by the convolution theorem: L log L. The row is padded with as many zeros, so
  that its end does not wrap around to its beginning. Rounding errors scale with the largest column.

Where u is 0, a column adds nothing to the others; padding is skipped this way.
"""

from __future__ import annotations

import functools

import torch
from torch import Tensor

FEW = 16  # columns up to which direct sums are faster


def long_conv(u: Tensor, k: Tensor, bias: Tensor, last: int | None = None) -> Tensor:
    """The convolution: a few columns by direct sums, otherwise by FFT."""
    few = last is not None and last <= FEW
    return (direct if few else by_fft)(u, k, bias, last)


def direct(u: Tensor, k: Tensor, bias: Tensor, last: int | None = None) -> Tensor:
    """The reference; also used for the next column of a cached row."""
    length = u.shape[1]
    last = length if last is None else last
    wide, k, bias = _widened(u, k, bias)
    with torch.autocast(u.device.type, enabled=False):
        back = k.flip(0)  # the filter from its last column to its first
        ends = range(length - last + 1, length + 1)
        columns = [(wide[:, :end] * back[length - end :]).sum(1) for end in ends]
        y = torch.stack(columns, dim=1) + bias * wide[:, length - last :]
    return y.to(u.dtype)


def by_fft(u: Tensor, k: Tensor, bias: Tensor, last: int | None = None) -> Tensor:
    """The fast implementation: products of spectra."""
    length = u.shape[1]
    first = 0 if last is None else length - last
    wide, k, bias = _widened(u, k, bias)
    size = good_size(2 * length - 1)
    with torch.autocast(u.device.type, enabled=False):
        spectrum = torch.fft.rfft(wide.mT.contiguous(), size) * torch.fft.rfft(k.mT.contiguous(), size)  # time last
        y = torch.fft.irfft(spectrum, size)[..., first:length].mT + bias * wide[:, first:]
    return y.to(u.dtype)


def _widened(u: Tensor, k: Tensor, bias: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """All three in one type, at least float32, with the filter cut to the length of the row."""
    if len(k) < u.shape[1]:
        raise ValueError(f"a filter of {len(k)} columns is too short for rows of {u.shape[1]}")
    wide = torch.promote_types(torch.promote_types(u.dtype, k.dtype), torch.float32)
    return u.to(wide), k[: u.shape[1]].to(wide), bias.to(wide)


@functools.cache
def good_size(least: int) -> int:
    """The smallest even size >= `least` without prime factors above 5: other sizes are slow."""
    size = least + least % 2
    while not _is_smooth(size):
        size += 2
    return size


def _is_smooth(size: int) -> bool:
    for prime in (2, 3, 5):
        while size % prime == 0:
            size //= prime
    return size == 1
