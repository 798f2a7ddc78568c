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
