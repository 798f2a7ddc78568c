"""The selective scan of Mamba (Gu and Dao 2023) and its short convolution: slow, obvious forms and fast ones.

    h_t = exp(delta_t A) h_{t-1} + delta_t x_t B_t        y_t = C_t h_t + D x_t

with a state of N numbers for each of E channels. One signature: x and delta (R, L, E), A (E, N) below 0, B and C
(R, L, N), D (E,), the state before the first column (R, N, E) or None; the result is y (R, L, E) and the last state.

- `scan_loop` is the formula, one column at a time. Columns are taken by `unbind`: autograd through x[:, t] would write
  a whole tensor of zeros for every column, so that a row of length L would cost L².
- `scan_chunked` is the reference in two levels: first inside chunks of columns, all chunks together, then over chunks.
- `scan_fused` is a custom autograd function. It keeps the state at the ends of chunks, and backward recomputes the
  rest, one chunk at a time, while it is in the processor's cache. Memory grows with L / chunk, not with L.
- If the package mamba_ssm is installed and the tensors are on a GPU, its kernel does the same.

Where delta is 0, a column leaves the state unchanged; padding is skipped this way.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd.function import once_differentiable

Scanned = tuple[Tensor, Tensor]  # y (R, L, E) and the last state (R, N, E)
Scan = Callable[..., Scanned]
CHUNK = 32  # columns of the reference's chunks
AT_ONCE = 2**19  # state elements in a chunk of the fused scan: 2 MiB, which stays in the cache
LONGEST = 64  # columns of such a chunk


def selective_scan(
    x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, state: Tensor | None = None
) -> Scanned:
    """The scan by the fastest implementation available, in at least float32, whatever autocast says."""
    wide = torch.promote_types(torch.promote_types(x.dtype, delta.dtype), torch.float32)
    x, delta, a, b, c, d = (tensor.to(wide) for tensor in (x, delta, a, b, c, d))
    with torch.autocast(x.device.type, enabled=False):
        takes = state is None and x.is_cuda and wide == torch.float32  # the kernel has no first state and no float64
        if takes and (kernel := _mamba_ssm()) is not None:
            return _by_kernel(kernel, x, delta, a, b, c, d)
        return scan_fused(x, delta, a, b, c, d, None if state is None else state.to(wide))


def scan_loop(
    x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, state: Tensor | None = None
) -> Scanned:
    """The formula, one column at a time."""
    h = _begin(x, a, state)
    columns = []
    for x_t, delta_t, b_t, c_t in zip(*(tensor.unbind(1) for tensor in (x, delta, b, c)), strict=True):
        h = torch.exp(delta_t[:, None] * a.T) * h + (delta_t * x_t)[:, None] * b_t[..., None]  # (R, N, E)
        columns.append((c_t[..., None] * h).sum(1) + d * x_t)
    return torch.stack(columns, dim=1), h


def scan_chunked(
    x: Tensor,
    delta: Tensor,
    a: Tensor,
    b: Tensor,
    c: Tensor,
    d: Tensor,
    state: Tensor | None = None,
    chunk: int = CHUNK,
) -> Scanned:
    """The reference in two levels: L / chunk + chunk steps instead of L, with all states in memory.

    The decay from the beginning of a chunk is exp(A · sum of delta) and never a ratio of products: those underflow.
    """
    length = x.shape[1]
    short = -length % chunk
    x_, delta_, b_, c_ = (
        F.pad(v, (0, 0, 0, short)).unflatten(1, (-1, chunk)) for v in (x, delta, b, c)
    )  # (R, K, chunk, ·)
    decay = torch.exp(delta_[..., None, :] * a.T)  # (R, K, chunk, N, E)
    push = (delta_ * x_)[..., None, :] * b_[..., None]
    h, inside = torch.zeros_like(push[:, :, 0]), []
    for decay_t, push_t in zip(decay.unbind(2), push.unbind(2), strict=True):
        h = decay_t * h + push_t
        inside.append(h)
    since = torch.exp(delta_.cumsum(2)[..., None, :] * a.T)  # from before the chunk to each of its columns
    carry, before = _begin(x, a, state), []
    for whole, last in zip(since[:, :, -1].unbind(1), h.unbind(1), strict=True):
        before.append(carry)
        carry = whole * carry + last
    states = torch.stack(inside, dim=2) + since * torch.stack(before, dim=1)[:, :, None]
    y = (c_[..., None] * states).sum(-2).flatten(1, 2)[:, :length]
    return y + d * x, carry


def scan_fused(
    x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, state: Tensor | None = None
) -> Scanned:
    """The fast implementation, whose backward keeps only some of the states."""
    y, last = _Fused.apply(x, delta, a, b, c, d, _begin(x, a, state))
    return y, last


def _begin(x: Tensor, a: Tensor, state: Tensor | None) -> Tensor:
    """The state before the first column."""
    return x.new_zeros(x.shape[0], a.shape[1], a.shape[0]) if state is None else state


class _Fused(torch.autograd.Function):
    """Inside, time is the first dimension and channels the last, so that operations run over contiguous memory."""

    @staticmethod
    def forward(
        ctx: Any, x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor, state: Tensor
    ) -> Scanned:
        x, delta, b, c = (tensor.transpose(0, 1).contiguous() for tensor in (x, delta, b, c))  # (L, R, ·)
        a = a.T.contiguous()  # (N, E)
        size = _chunk(state)
        kept = state.new_empty(-(-len(x) // size), *state.shape)  # the state before each chunk
        y, h = torch.empty_like(x), state
        room = state.new_empty(2, size, *state.shape)  # allocated once: fresh memory costs more than the computation
        for number, at in enumerate(range(0, len(x), size)):
            part = slice(at, at + size)
            kept[number] = h
            _, states = _states(x[part], delta[part], a, b[part], kept[number], room)
            torch.matmul(c[part, :, None], states, out=y[part, :, None])
            h = states[-1]
        h = h.clone()
        y.addcmul_(x, d)
        ctx.save_for_backward(x, delta, a, b, c, d, kept)
        return y.transpose(0, 1), h

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor, dlast: Tensor) -> tuple[Tensor, ...]:
        x, delta, a, b, c, d, kept = ctx.saved_tensors
        dy = dy.transpose(0, 1).contiguous()
        dx, ddelta, db, dc = (torch.empty_like(tensor) for tensor in (x, delta, b, c))
        da, carry = torch.zeros_like(a), dlast.clone()  # carry: the gradient from later columns
        size = _chunk(carry)
        room = carry.new_empty(3, size, *carry.shape)
        for number in reversed(range(len(kept))):
            part = slice(number * size, (number + 1) * size)
            decay, states = _states(x[part], delta[part], a, b[part], kept[number], room)
            up = room[2, : len(states)]  # (T, R, N, E): the gradient of each state
            torch.mul(dy[part, :, None], c[part, ..., None], out=up)
            up[-1] += carry
            steps, decays = up.unbind(0), decay.unbind(0)
            for t in range(len(steps) - 2, -1, -1):
                steps[t].addcmul_(decays[t + 1], steps[t + 1])
            carry = decays[0] * steps[0]
            push = torch.matmul(b[part, :, None], up).squeeze(2)  # the gradient of delta · x
            # vector times matrix: nine times as fast here as matrix times vector
            torch.matmul((delta[part] * x[part])[:, :, None], up.mT, out=db[part, :, None])
            torch.matmul(dy[part, :, None], states.mT, out=dc[part, :, None])
            torch.mul(push, delta[part], out=dx[part])
            up.mul_(decay)  # now of the exponent, once the state before it is multiplied in
            up[1:].mul_(states[:-1])
            up[0].mul_(kept[number])
            torch.mul(up, a, out=decay)
            torch.sum(decay, 2, out=ddelta[part])
            ddelta[part].addcmul_(push, x[part])
            da += up.mul_(delta[part, :, None]).sum((0, 1))
        dx.addcmul_(dy, d)
        dd = (dy * x).sum((0, 1))
        back = [tensor.transpose(0, 1) for tensor in (dx, ddelta, db, dc)]
        return back[0], back[1], da.T, back[2], back[3], dd, carry


def _chunk(state: Tensor) -> int:
    """The number of columns in a chunk of the fused scan."""
    return max(1, min(LONGEST, AT_ONCE // max(1, state.numel())))


def _states(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, before: Tensor, room: Tensor) -> tuple[Tensor, Tensor]:
    """Decay and states (T, R, N, E) of the columns of a chunk, from the state before it, written into `room`."""
    decay, states = room[0, : len(x)], room[1, : len(x)]
    torch.mul(delta[:, :, None], a, out=decay).exp_()
    torch.mul((delta * x)[:, :, None], b[..., None], out=states)
    for decay_t, state_t in zip(decay.unbind(0), states.unbind(0), strict=True):
        before = state_t.addcmul_(decay_t, before)
    return decay, states


@functools.cache
def _mamba_ssm() -> Callable[..., Any] | None:
    """The kernel of the package mamba_ssm, if it is installed."""
    try:
        from mamba_ssm.ops.selective_scan_interface import selective_scan_fn
    except Exception:  # not installed, or built for another machine
        return None
    kernel: Callable[..., Any] = selective_scan_fn
    return kernel


def _by_kernel(
    kernel: Callable[..., Any], x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor
) -> Scanned:
    """The scan by mamba_ssm, where time is last and the state is (R, E, N)."""
    first = [tensor.transpose(1, 2).contiguous() for tensor in (x, delta, b, c)]
    y, last = kernel(first[0], first[1], a.contiguous(), first[2], first[3], d, return_last_state=True)
    return y.transpose(1, 2), last.transpose(1, 2)


# -- the short convolution --------------------------------------------------------------------------------------------


def short_conv(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None = None) -> Tensor:
    """Convolve each channel of x (R, L, E) with its filter in weight (E, K): column t sees columns t - K + 1 .. t.

    `before` (R, K - 1, E) are the columns before the first one; by default zeros.
    """
    width = weight.shape[1]
    if before is None:
        before = x.new_zeros(x.shape[0], width - 1, x.shape[2])
    return _ShortConv.apply(torch.cat((before.to(x.dtype), x), dim=1), weight.to(x.dtype), bias.to(x.dtype))


def short_conv_reference(x: Tensor, weight: Tensor, bias: Tensor, before: Tensor | None = None) -> Tensor:
    """The same by the convolution of torch."""
    width = weight.shape[1]
    whole = F.pad(x, (0, 0, width - 1, 0)) if before is None else torch.cat((before, x), dim=1)
    return F.conv1d(whole.transpose(1, 2), weight[:, None], bias, groups=len(weight)).transpose(1, 2)


class _ShortConv(torch.autograd.Function):
    """K shifted products. torch's convolution wants time last, and autograd through slices writes zeros K times."""

    @staticmethod
    def forward(ctx: Any, x: Tensor, weight: Tensor, bias: Tensor) -> Tensor:
        ctx.save_for_backward(x, weight)
        width = weight.shape[1]
        length = x.shape[1] - width + 1
        out = torch.addcmul(bias, x[:, :length], weight[:, 0])
        for k in range(1, width):
            out.addcmul_(x[:, k : k + length], weight[:, k])
        return out

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        x, weight = ctx.saved_tensors
        length = dy.shape[1]
        dx, dw = torch.zeros_like(x), torch.empty_like(weight)
        for k in range(weight.shape[1]):
            dx[:, k : k + length].addcmul_(dy, weight[:, k])
            dw[:, k] = (dy * x[:, k : k + length]).sum((0, 1))
        return dx, dw, dy.sum((0, 1))
