"""How a network knows the position of a column: rotary embeddings, and the bias of ALiBi."""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from .attention import Attention


def frequencies(
    dim: int, base: float = 10_000.0, scaling: Sequence[float] | None = None, device: torch.device | None = None
) -> Tensor:
    """(dim / 2,) float32: how fast each pair of channels turns.

    `scaling` of Llama 3.1 and later is (factor, low, high, positions): what turns less than `low` times in so many
    positions is slower by the factor, what turns more than `high` times is as it was, and in between it is blended.
    """
    speed = base ** (-torch.arange(0, dim, 2, dtype=torch.float32, device=device) / dim)
    if scaling is None:
        return speed
    factor, low, high, positions = scaling
    kept = ((positions * speed / (2 * math.pi) - low) / (high - low)).clamp(0, 1)
    return speed * (kept + (1 - kept) / factor)


def rotary_table(
    positions: Tensor, dim: int, base: float = 10_000.0, scaling: Sequence[float] | None = None
) -> tuple[Tensor, Tensor]:
    """Cos and sin for positions (..., L) -> (..., L, dim), in float32, half-split convention."""
    angle = positions[..., None].float() * frequencies(dim, base, scaling, positions.device)
    angle = torch.cat((angle, angle), dim=-1)
    return angle.cos(), angle.sin()


def rotate(x: Tensor, cos: Tensor, sin: Tensor) -> Tensor:
    """Rotate the pairs (i, i + dim/2) of x by their angles; cos and sin broadcast against x."""
    first, second = x.chunk(2, dim=-1)
    return x * cos + torch.cat((-second, first), dim=-1) * sin


def alibi_slopes(n_heads: int, device: torch.device | str = "cpu") -> Tensor:
    """(H,) slopes of ALiBi (Press et al. 2022): a geometric series.

    If n_heads is not a power of 2, the rest is every second slope of the next longer series.
    """
    whole = 1 << (n_heads.bit_length() - 1)

    def series(n: int) -> list[float]:
        return [2 ** (-8 * (i + 1) / n) for i in range(n)]

    slopes = series(whole) + series(2 * whole)[0::2][: n_heads - whole]
    return torch.tensor(slopes, dtype=torch.float32, device=device)


def alibi(
    slopes: Tensor,
    length: int,
    new: int,
    attention: Attention,
    valid: Tensor | None = None,
    positions: Tensor | None = None,
) -> Tensor:
    """(1 or B, H, new, length) float32: -slope · distance, and -inf for columns that may not be seen.

    The queries are the last `new` of `length` columns. Distances are between positions if all columns have one, else
    between columns.
    """
    place = torch.arange(length, device=slopes.device)[None]
    if positions is not None and positions.shape[-1] == length:
        place = positions.view(-1, length)
    distance = (place[:, length - new :, None] - place[:, None]).abs()  # (1 or B, new, L)
    allowed = attention.allowed(new, length, valid, device=slopes.device)[:, None]
    return (-slopes[:, None, None] * distance[:, None]).masked_fill(~allowed, float("-inf"))


def biased_attention(q: Tensor, k: Tensor, v: Tensor, bias: Tensor) -> Tensor:
    """softmax(q kᵀ/√d + bias) v for (B, H, L, D) and a bias (1 or B, H, M, L)."""
    return F.scaled_dot_product_attention(q, k, v, attn_mask=bias.to(q.dtype))
