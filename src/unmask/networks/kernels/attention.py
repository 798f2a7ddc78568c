"""Attention and rotary positions. torch's SDPA picks the kernel (flash on GPU and CPU); no other package is needed."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass(frozen=True)
class Attn:
    """Who may look at whom: the pattern, the positions that exist, and their numbers."""

    pattern: Literal["full", "causal"] = "full"
    valid: Tensor | None = None  # (B, L) bool, of what is cached too; None = all
    positions: Tensor | None = None  # (B, L) or (L,) int64; None = 0, 1, 2, ...
    queries: Tensor | None = None  # (B, M) columns whose hidden states are wanted; None = all


def rotary_table(positions: Tensor, dim: int, base: float = 10_000.0) -> tuple[Tensor, Tensor]:
    """Cos and sin for positions (..., L) -> (..., L, dim), in float32, half-split convention."""
    inv_freq = base ** (-torch.arange(0, dim, 2, dtype=torch.float32, device=positions.device) / dim)
    angle = positions[..., None].float() * inv_freq
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Turn the pairs (i, i + dim/2) of x by their angles; cos and sin broadcast against x."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def attention(q: Tensor, k: Tensor, v: Tensor, attn: Attn) -> Tensor:
    """softmax(q kᵀ/√d) v for (B, H, L, D), under a pattern.

    Fewer queries than keys are some columns under the full pattern, and the last columns under the causal one.
    """
    new, length, causal = q.shape[-2], k.shape[-2], attn.pattern == "causal"
    if attn.valid is None and (not causal or new in (1, length)):
        return F.scaled_dot_product_attention(q, k, v, is_causal=causal and new == length)
    if attn.valid is not None and not causal and new < length:  # each of these queries looks at something that exists
        return F.scaled_dot_product_attention(q, k, v, attn_mask=attn.valid[:, None, None, :])
    own = torch.arange(length - new, length, device=q.device)[:, None]  # the columns of the queries
    column = torch.arange(length, device=q.device)
    allowed = (column <= own if causal else torch.ones_like(own, dtype=torch.bool))[None, None]
    if attn.valid is not None:
        # A row of nothing but padding would be softmax over nothing: let it see itself; nobody reads it.
        allowed = (allowed & attn.valid[:, None, None, :]) | (column == own)
    return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed)


def alibi_slopes(n_heads: int, device: torch.device | str = "cpu") -> Tensor:
    """(H,) slopes of ALiBi (Press et al. 2022): a geometric series.

    For other numbers than powers of 2 the rest is every second one of the next longer series.
    """
    whole = 1 << (n_heads.bit_length() - 1)

    def series(n: int) -> list[float]:
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    slopes = series(whole) + series(2 * whole)[0::2][: n_heads - whole]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def alibi(slopes: Tensor, length: int, new: int, attn: Attn) -> Tensor:
    """(1 or B, H, new, length) float32: -slope · distance, and -inf for columns that may not be looked at.

    The queries are the last `new` of `length` columns. Distances are of positions under the full pattern, where they
    are given, and else of columns.
    """
    causal = attn.pattern == "causal"
    column = torch.arange(length, device=slopes.device)
    own = column[length - new :, None]
    distance = (own - column).abs()[None]  # (1, new, L)
    if attn.positions is not None and not causal:
        place = attn.positions.view(-1, length)
        distance = (place[:, :, None] - place[:, None, :]).abs()
    bias = -slopes[:, None, None] * distance[:, None]
    if not causal and attn.valid is None:
        return bias
    allowed = (column <= own if causal else torch.ones_like(column <= own))[None, None]
    if attn.valid is not None:  # a row of nothing but padding sees itself, as in `attention`
        allowed = (allowed & attn.valid[:, None, None, :]) | (column == own)
    return bias.masked_fill(~allowed, float("-inf"))


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """softmax(q kᵀ/√d + bias) v for (B, H, L, D) and a bias (1 or B, H, M, L)."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
