"""Attention under a specification: who may see whom. torch's SDPA picks the kernel; no other package is needed.

A specification answers one question, `mask`: may column `query` see column `key`? That is the slow, obvious reference,
and all that a new specification must have. `attend` is the fast path; the one here builds the mask, and those of the
specifications below do without a dense one where they can.

Columns are counted over cached and new keys together; without `queries` the queries are the last columns. What exists
(`valid`) is no part of a specification: padding is hidden from everyone under all of them.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass
from itertools import pairwise
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

GROUP = 128  # columns that go through SDPA together where blocks are smaller than this


class Attention(ABC):
    """Who may see whom."""

    cacheable: bool = False  # whether columns may be read in parts, as none sees what is read after its part

    @abstractmethod
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        """Bool of the shape to which columns `query` (1 or B, M, 1) and `key` (1, 1, L) broadcast."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        """softmax(q kᵀ/√d) v for q (B, H, M, D), k and v (B, H, L, D), valid (B, L), queries (B, M)."""
        allowed = self.allowed(q.shape[-2], k.shape[-2], valid, queries, q.device)
        return F.scaled_dot_product_attention(q, k, v, attn_mask=allowed[:, None])

    def allowed(
        self,
        new: int,
        length: int,
        valid: Tensor | None = None,
        queries: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """(1 or B, M, L): the mask without padding; a query sees itself at least: no softmax over nothing."""
        key = torch.arange(length, device=device)[None, None]
        query = key.mT[:, length - new :] if queries is None else queries[..., None]
        mask = self.mask(query, key)
        return mask if valid is None else (mask & valid[:, None]) | (query == key)


@dataclass(frozen=True)
class Full(Attention):
    """Every column sees all."""

    @override
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(query == key)

    @override
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        return F.scaled_dot_product_attention(q, k, v, attn_mask=_existing(valid))


@dataclass(frozen=True)
class Causal(Attention):
    """A column sees itself and what stands before it."""

    cacheable = True

    @override
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        return key <= query

    @override
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        new, length = q.shape[-2], k.shape[-2]
        if valid is None and queries is None and new in (1, length):
            return F.scaled_dot_product_attention(q, k, v, is_causal=new == length)
        return super().attend(q, k, v, valid, queries)


@dataclass(frozen=True)
class Blocks(Attention):
    """A column sees its block and the blocks before it. Blocks of 1 are causal, one block of all columns is full.

    A cache ends where a block ends: a column does not see what of its block is read after it.
    """

    size: int
    cacheable = True

    def __post_init__(self) -> None:
        assert self.size > 0, "a block has columns"

    @override
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        return key // self.size <= query // self.size

    @override
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        length = k.shape[-2]
        if self.size == 1:
            return Causal().attend(q, k, v, valid, queries)
        if queries is not None:
            return super().attend(q, k, v, valid, queries)
        parts = []
        for begin, end in _groups(length - q.shape[-2], length, self.size):
            seen = min(-(-end // self.size) * self.size, length)
            one = begin // self.size == (end - 1) // self.size
            part = q[..., begin - length : end - length or None, :]
            parts.append(_part(self, part, k, v, valid, range(begin, end), [range(seen)], one))
        return _joined(parts)


@dataclass(frozen=True)
class TwoStreams(Attention):
    """A noisy stream (columns 0 .. length - 1) beside the clean one (length .. 2 length - 1), under a block rule.

    A noisy column sees the noisy ones of its block and the clean ones of the blocks before it. The clean stream does
    not see the noisy one; within itself it is causal by blocks, or by tokens. Give both streams the same positions.
    """

    length: int
    size: int
    clean: Literal["blocks", "tokens"] = "blocks"

    @property
    def within_clean(self) -> Attention:
        """The rule of the clean stream."""
        return Blocks(self.size) if self.clean == "blocks" else Causal()

    @override
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        own, other = ((column % self.length) // self.size for column in (query, key))
        noisy, clean = query < self.length, key >= self.length
        of_noisy = torch.where(clean, other < own, other == own)
        return torch.where(noisy, of_noisy, clean & self.within_clean.mask(query - self.length, key - self.length))

    @override
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        n = self.length
        assert k.shape[-2] == 2 * n, "two streams of the same length"
        if queries is not None or q.shape[-2] != 2 * n:
            return super().attend(q, k, v, valid, queries)
        parts = []
        for begin, end in _groups(0, n, self.size):
            earlier = (end - 1) // self.size * self.size
            one = begin == earlier
            columns = [range(begin, end), range(n, n + earlier)]
            parts.append(_part(self, q[..., begin:end, :], k, v, valid, range(begin, end), columns, one))
        after = None if valid is None else valid[:, n:]
        parts.append(self.within_clean.attend(q[..., n:, :], k[..., n:, :], v[..., n:, :], after))
        return _joined(parts)


def _groups(begin: int, end: int, size: int) -> list[tuple[int, int]]:
    """Columns from begin to end cut at the ends of blocks, small blocks together."""
    step = max(1, GROUP // size) * size
    cuts = [begin, *range((begin // step + 1) * step, end, step), end]
    return list(pairwise(cuts))


def _part(
    spec: Attention,
    q: Tensor,
    k: Tensor,
    v: Tensor,
    valid: Tensor | None,
    rows: range,
    columns: list[range],
    one_block: bool,
) -> Tensor:
    """Some queries, the columns `rows`, against the keys of some ranges of columns; one block needs no mask."""
    keys, values = (_joined([x[..., r.start : r.stop, :] for r in columns if len(r)]) for x in (k, v))
    there = None if valid is None else torch.cat([valid[:, r.start : r.stop] for r in columns], dim=1)
    if one_block:
        return F.scaled_dot_product_attention(q, keys, values, attn_mask=_existing(there))
    query = torch.arange(rows.start, rows.stop, device=q.device)[None, :, None]
    key = torch.cat([torch.arange(r.start, r.stop, device=q.device) for r in columns])[None, None]
    mask = spec.mask(query, key)
    if there is not None:
        mask = (mask & there[:, None]) | (query == key)
    return F.scaled_dot_product_attention(q, keys, values, attn_mask=mask[:, None])


def _existing(valid: Tensor | None) -> Tensor | None:
    """(B, 1, 1, L) what all queries see; in a row of nothing but padding all of it, as nobody reads that row."""
    return None if valid is None else (valid | ~valid.any(1, keepdim=True))[:, None, None]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)
