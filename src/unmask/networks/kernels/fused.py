"""Norm, rotary positions and ReLU² with derivatives of their own.

What autograd derives from the single operations reads and writes these tensors several times as often, which costs a
twentieth of a training step on a CPU.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

NORM_EPS = 1e-6


def rms_norm(x: Tensor, cos: Tensor | None = None, sin: Tensor | None = None) -> Tensor:
    """(..., dim) with a root mean square of 1, and then rotated as by `positions.rotate` if there are angles."""
    if not torch.is_grad_enabled():
        return _normed(x, cos, sin)[0]
    normed: Tensor = _Norm.apply(x, cos, sin)
    return normed


def squared_relu(x: Tensor) -> Tensor:
    """max(x, 0)²."""
    if not torch.is_grad_enabled():
        return x.clamp(min=0).square()
    squared: Tensor = _SquaredRelu.apply(x)
    return squared


def _normed(x: Tensor, cos: Tensor | None, sin: Tensor | None) -> tuple[Tensor, Tensor]:
    """The norm, and what it multiplies by."""
    scale = torch.rsqrt(x.square().mean(-1, keepdim=True) + NORM_EPS)
    return x * scale if cos is None or sin is None else _turn(x, cos, sin).mul_(scale), scale


class _Norm(Function):
    """A rotation keeps lengths: it commutes with the norm, and <dy, y> is the same before and after it."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, cos: Tensor | None, sin: Tensor | None) -> Tensor:
        y, scale = _normed(x, cos, sin)
        ctx.save_for_backward(y, scale, cos, sin)
        return y

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        y, scale, cos, sin = ctx.saved_tensors
        dx = torch.addcmul(dy, y, (dy * y).mean(-1, keepdim=True), value=-1)
        dx = dx if cos is None else _turn(dx, cos, -sin)
        return dx.mul_(scale), None, None


def _turn(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """A new tensor: the pairs (i, i + dim/2) of x rotated by their angles."""
    y, half = x * cos, x.shape[-1] // 2
    y[..., :half].addcmul_(x[..., half:], sin[..., :half], value=-1)
    y[..., half:].addcmul_(x[..., :half], sin[..., half:])
    return y


class _SquaredRelu(Function):
    @staticmethod
    def forward(ctx: Any, x: Tensor) -> Tensor:
        positive = x.clamp(min=0)
        ctx.save_for_backward(positive)
        return positive.square()

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> Tensor:
        (positive,) = ctx.saved_tensors
        return (dy * positive).mul_(2)
