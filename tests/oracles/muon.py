"""Muon one matrix and one step at a time, in float64 and with loops."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

NEWTON_SCHULZ = (3.4445, -4.7750, 2.0315)


def polar(matrix: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """U, the singular values and V of a matrix."""
    u, s, vt = torch.linalg.svd(matrix.double(), full_matrices=False)
    return u, s, vt.T


def five_steps(matrix: Tensor) -> Tensor:
    """The matrix with each singular value replaced by what five steps of the polynomial make of it."""
    u, s, v = polar(matrix)
    values = []
    for value in (s / s.square().sum().sqrt()).tolist() if bool(s.any()) else s.tolist():
        for _ in range(5):
            a, b, c = NEWTON_SCHULZ
            value = a * value + b * value**3 + c * value**5
        values.append(value)
    return u @ torch.diag(torch.tensor(values, dtype=torch.float64)) @ v.T


def momentum_of(step: int, last: float) -> float:
    """From 0.85 to `last` in the first 150 steps."""
    return last if step >= 150 else 0.85 + (last - 0.85) * step / 150


def move(
    weight: Tensor, mean: Tensor, gradient: Tensor, rows: Sequence[int], *, lr: float, momentum: float, decay: float
) -> tuple[Tensor, Tensor]:
    """The weight and the mean gradient after a step; the parts of the matrix have so many rows each."""
    weight, gradient = weight.double(), gradient.double()
    mean = momentum * mean.double() + (1 - momentum) * gradient
    ahead = (1 - momentum) * gradient + momentum * mean
    moved, begin = weight * (1 - lr * decay), 0
    for count in rows:
        for_part = five_steps(ahead[begin : begin + count])
        moved[begin : begin + count] -= lr * math.sqrt(max(1, count / weight.shape[1])) * for_part
        begin += count
    return moved, mean
