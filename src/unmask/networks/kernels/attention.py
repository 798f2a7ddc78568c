"""Attention patterns: which columns may see which. SDPA of torch picks the kernel; no other package is needed.

A pattern answers one question, `mask`: may column `query` see column `key`? That is the slow, obvious reference, and
all that a new pattern must define. `attend` is the fast path; the default builds the mask, and the patterns below avoid
a dense mask where they can.

Columns are counted over cached and new keys together; without `queries` the queries are the last columns. `valid` is
not part of a pattern: padding is hidden from all columns under every pattern.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from dataclasses import dataclass, field
from itertools import pairwise
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from typing_extensions import override

GROUP = 128  # columns that go through SDPA together where blocks are smaller than this


def sdpa(q: Tensor, k: Tensor, v: Tensor, mask: Tensor | None = None, is_causal: bool = False) -> Tensor:
    """softmax(q kᵀ/√d) v; a head of keys and values may serve several heads of queries (grouped-query attention)."""
    grouped = q.shape[1] != k.shape[1]
    return F.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=is_causal, enable_gqa=grouped)


class Attention(ABC):
    """A pattern: which columns may see which."""

    cacheable: bool = False  # whether columns may be read in parts, as no column sees a later part

    @abstractmethod
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        """Bool of the shape to which columns `query` (1 or B, M, 1) and `key` (1, 1, L) broadcast."""

    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        """softmax(q kᵀ/√d) v for q (B, H, M, D), k and v (B, H or fewer, L, D), valid (B, L), queries (B, M)."""
        allowed = self.allowed(q.shape[-2], k.shape[-2], valid, queries, q.device)
        return sdpa(q, k, v, allowed[:, None])

    def allowed(
        self,
        new: int,
        length: int,
        valid: Tensor | None = None,
        queries: Tensor | None = None,
        device: torch.device | str = "cpu",
    ) -> Tensor:
        """(1 or B, M, L): the mask with padding hidden; every query sees at least itself."""
        key = torch.arange(length, device=device)[None, None]
        query = key.mT[:, length - new :] if queries is None else queries[..., None]
        mask = self.mask(query, key)
        return mask if valid is None else (mask & valid[:, None]) | (query == key)

    def before(self, column: Tensor) -> Tensor:
        """The column that stands before each of these in its text; the first one stands for itself."""
        return (column - 1).clamp(min=0)


@dataclass(frozen=True)
class Full(Attention):
    """Every column sees all columns."""

    @override
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        return torch.ones_like(query == key)

    @override
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        return sdpa(q, k, v, _existing(valid))


@dataclass(frozen=True)
class Causal(Attention):
    """A column sees itself and all columns before it."""

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
            return sdpa(q, k, v, is_causal=new == length)
        return super().attend(q, k, v, valid, queries)


@dataclass(frozen=True)
class Blocks(Attention):
    """A column sees its block and the blocks before it. Blocks of 1 are causal, a single block is full attention.

    A cache must end with a block: a column does not see the part of its block that is read later.
    """

    size: int
    cacheable = True

    def __post_init__(self) -> None:
        assert self.size > 0, "a block has at least one column"

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
            single = begin // self.size == (end - 1) // self.size
            part = q[..., begin - length : end - length or None, :]
            parts.append(_part(self, part, k, v, valid, range(begin, end), [range(seen)], single))
        return _joined(parts)


@dataclass(frozen=True)
class TwoStreams(Attention):
    """A noisy stream (columns 0 .. length - 1) next to the clean one (length .. 2 length - 1), in blocks.

    A noisy column sees the noisy columns of its block and the clean columns of the blocks before it. The clean stream
    does not see the noisy one; within itself it is causal by blocks, or by tokens. Give both streams the same
    positions.
    """

    length: int
    size: int
    clean: Literal["blocks", "tokens"] = "blocks"

    @property
    def within_clean(self) -> Attention:
        """The pattern of the clean stream."""
        return Blocks(self.size) if self.clean == "blocks" else Causal()

    @override
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        block_q, block_k = ((column % self.length) // self.size for column in (query, key))
        noisy, clean = query < self.length, key >= self.length
        of_noisy = torch.where(clean, block_k < block_q, block_k == block_q)
        return torch.where(noisy, of_noisy, clean & self.within_clean.mask(query - self.length, key - self.length))

    @override
    def before(self, column: Tensor) -> Tensor:
        """Before a block of the noisy stream stands a clean column, as all blocks before it are written."""
        begins = (column < self.length) & (column % self.size == 0) & (column > 0)
        first = (column == 0) | (column == self.length)
        return torch.where(begins, column + self.length, column) - torch.where(first, 0, 1)

    @override
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        n = self.length
        assert k.shape[-2] == 2 * n, "two streams of the same length"
        noisy = torch.arange(n, device=q.device).expand(len(q), -1)
        noisy_only = queries is not None and queries.shape == noisy.shape and torch.equal(queries, noisy)
        if not noisy_only and (queries is not None or q.shape[-2] != 2 * n):
            return super().attend(q, k, v, valid, queries)
        parts = []
        for begin, end in _groups(0, n, self.size):
            earlier = (end - 1) // self.size * self.size
            single = begin == earlier
            columns = [range(begin, end), range(n, n + earlier)]
            parts.append(_part(self, q[..., begin:end, :], k, v, valid, range(begin, end), columns, single))
        if noisy_only:
            return _joined(parts)
        after = None if valid is None else valid[:, n:]
        parts.append(self.within_clean.attend(q[..., n:, :], k[..., n:, :], v[..., n:, :], after))
        return _joined(parts)


@dataclass(frozen=True, eq=False)
class Streams(Attention):
    """Clean and noisy columns of any order and number, other ones in each row.

    A column sees the clean columns at positions below its `sees`. A noisy column also sees the noisy ones with the same
    `sees`, those of its block; or those that `among` names.
    """

    place: Tensor  # (B, L) the position of each column
    sees: Tensor  # (B, L)
    noisy: Tensor  # (B, L) bool
    among: Tensor | None = None  # (B, N, N) bool: which of the last N columns, the noisy ones among them, see which
    masks: dict[Any, Tensor | None] = field(default_factory=dict)  # made once for all blocks of a network
    cacheable = True

    @override
    def attend(
        self, q: Tensor, k: Tensor, v: Tensor, valid: Tensor | None = None, queries: Tensor | None = None
    ) -> Tensor:
        name = (q.shape[-2], k.shape[-2], id(valid), id(queries))
        if name not in self.masks:
            allowed = self.allowed(q.shape[-2], k.shape[-2], valid, queries, q.device)[:, None]
            self.masks[name] = None if q.device.type == "cpu" and allowed.all() else allowed
        return sdpa(q, k, v, self.masks[name])

    @override
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        row = torch.arange(len(self.place), device=query.device)[:, None, None]
        sees = self.sees[row, query]
        if self.among is None:
            together = self.noisy[row, query] & (sees == self.sees[row, key])
        else:
            first = self.place.shape[1] - self.among.shape[1]
            together = self.among[row, (query - first).clamp(min=0), (key - first).clamp(min=0)]
        return torch.where(self.noisy[row, key], together, self.place[row, key] < sees)

    @override
    def before(self, column: Tensor) -> Tensor:
        """The column at the position before that it sees: in its block if that is noisy, else a clean one."""
        key = torch.arange(self.place.shape[1], device=column.device)[None, None]
        place = self.place.gather(1, column)
        seen = self.mask(column[..., None], key) & (self.place[:, None] == place[..., None] - 1)
        return torch.where(seen.any(-1), seen.int().argmax(-1), column)


@dataclass(frozen=True, eq=False)
class PartlyCausal(Attention):
    """A pattern in which a column sees, of what is to its right in the text, only the columns drawn for it."""

    inner: Attention
    drawn: Tensor  # (L, L) bool, for positions of the text: row sees column

    @override
    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        at, of = query % len(self.drawn), key % len(self.drawn)  # two streams have the same positions
        return self.inner.mask(query, key) & ((of <= at) | self.drawn[at, of])

    @override
    def before(self, column: Tensor) -> Tensor:
        return self.inner.before(column)


def _groups(begin: int, end: int, size: int) -> list[tuple[int, int]]:
    """The columns from begin to end, split at the ends of blocks; small blocks are grouped."""
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
    single_block: bool,
) -> Tensor:
    """Some queries, the columns `rows`, against the keys of some ranges of columns; a single block needs no mask."""
    keys, values = (_joined([x[..., r.start : r.stop, :] for r in columns if len(r)]) for x in (k, v))
    exists = None if valid is None else torch.cat([valid[:, r.start : r.stop] for r in columns], dim=1)
    if single_block:
        return sdpa(q, keys, values, _existing(exists))
    query = torch.arange(rows.start, rows.stop, device=q.device)[None, :, None]
    key = torch.cat([torch.arange(r.start, r.stop, device=q.device) for r in columns])[None, None]
    mask = spec.mask(query, key)
    if exists is not None:
        mask = (mask & exists[:, None]) | (query == key)
    return sdpa(q, keys, values, mask[:, None])


def _existing(valid: Tensor | None) -> Tensor | None:
    """(B, 1, 1, L): what all queries see; a row of padding alone sees all of itself, as its output is not used."""
    return None if valid is None else (valid | ~valid.any(1, keepdim=True))[:, None, None]


def _joined(parts: list[Tensor]) -> Tensor:
    return parts[0] if len(parts) == 1 else torch.cat(parts, dim=-2)
