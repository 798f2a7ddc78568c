"""What a network has read of sequences, for denoisers that read only what is new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..networks.dit import KeyValue
from ..sampling import Request, Trajectory, Written, advance_tokens
from ..types import Vocab


class ModelDenoiser:
    """A model as a denoiser with a cache: what does not depend on how it reads."""

    time_conditioned = False
    normalised = True
    carry_over = True
    cached = True
    model: Any
    read: dict[Any, Read]
    keep_last = False  # whether to keep what was read of the sequence that ended last, for one that continues it
    last: Read | None = None

    def forget(self, name: Any) -> None:
        """Forget what was read under this name."""
        if (read := self.read.pop(name, None)) is not None and self.keep_last:
            self.last = read

    def share_last(self, tokens: Tensor, request: Request, name: Any, prompt: tuple[int, ...], start: int = 0) -> None:
        """Let a request begin with what was read of the last sequence, whose tokens these were, where it is the same.

        It is kept under `name` as if another sequence had the same `prompt`. The first `start` columns are no tokens.
        """
        if self.last is None or self.model.backbone.recurrent or request.label is not None:
            return
        free = torch.nonzero(request.writable(self.vocab))
        shared = int(free[0]) if len(free) else 0
        most = min(self.last.n - start, shared)
        differ = torch.nonzero(tokens[:most] != request.canvas[:most])
        kept = start + (int(differ[0]) if len(differ) else most)
        parts = [
            (k.transpose(0, 1)[None], v.transpose(0, 1)[None]) for k, v in self.last.rows.part(self.last.row, kept)
        ]
        self.read[name] = Read(CachedRows([kept], parts), 0, prompt, shared)

    @property
    def vocab(self) -> Vocab:
        """The vocabulary."""
        vocab: Vocab = self.model.vocab
        return vocab

    @property
    def device(self) -> torch.device:
        """Where it computes."""
        device: torch.device = self.model.device
        return device

    def check(self, request: Request) -> None:
        """Raise if the model cannot follow a request."""
        self.model.check(request)

    def advance(self, trajectories: Sequence[Trajectory]) -> list[Written | None]:
        """One network call for all trajectories."""
        return advance_tokens(self, trajectories)  # type: ignore[arg-type]

    def log_x(self, rows: Tensor) -> Tensor:
        """Log x̂ from rows of hidden states."""
        log_x: Tensor = self.model.log_x(rows)
        return log_x


@dataclass(frozen=True)
class CachedRows:
    """The cache of the rows of one call: (B, H, W, D) each, or states (B, ·, ·).

    Row b has read n[b] columns; in a cache with columns they are its *last* n[b].
    """

    n: list[int]
    cache: list[KeyValue]

    def part(self, row: int, kept: int) -> list[KeyValue]:
        """Keys and values of the first `kept` columns of a row, (kept, H, D) each."""
        begin = self.cache[0][0].shape[2] - self.n[row]
        columns = slice(begin, begin + kept)
        return [(k[row, :, columns].transpose(0, 1), v[row, :, columns].transpose(0, 1)) for k, v in self.cache]


@dataclass(frozen=True)
class Read:
    """What was read of a slot: a row of a cache, and what other sequences may share with it."""

    rows: CachedRows
    row: int
    prompt: tuple[int, ...] | None = None
    shared: int = 0

    @property
    def n(self) -> int:
        """The number of columns."""
        return self.rows.n[self.row]


def row_bytes(empty: list[KeyValue], columns: int) -> int:
    """Bytes of the cache of a row after so many columns; `empty` is the cache of one row before the first."""
    return sum(
        x.element_size() * (x.shape[1] * x.shape[3] * columns if x.dim() == 4 else x.numel())  # or a state
        for layer in empty
        for x in layer
    )


def held_bytes(reads: Iterable[Read]) -> int:
    """Bytes of all caches that hold these rows, with what they are padded with."""
    caches = {id(read.rows): read.rows.cache for read in reads}.values()
    return sum(x.nbytes for cache in caches for layer in cache for x in layer)


def cached_columns(reads: Sequence[Read | None], kept: Sequence[int], empty: list[KeyValue]) -> list[KeyValue]:
    """The keys and values of the first `kept` columns of each row, padded on the left; `empty` is a cache of none."""
    if not any(kept):
        return empty
    if (rows := same_rows(reads)) is not None and len(
        beyond := {n - k for n, k in zip(rows.n, kept, strict=True)}
    ) == 1:
        cut = beyond.pop()  # the common case, the rows of the last call a little later, needs no copy
        end = rows.cache[0][0].shape[2] - cut
        return [(k[:, :, :end], v[:, :, :end]) for k, v in rows.cache] if cut else rows.cache
    nothing = [(k[0].transpose(0, 1), v[0].transpose(0, 1)) for k, v in empty]
    parts = [nothing if read is None else read.rows.part(read.row, n) for read, n in zip(reads, kept, strict=True)]
    return [
        (side_by_side([k for k, _ in layer]), side_by_side([v for _, v in layer])) for layer in zip(*parts, strict=True)
    ]


def only_readers(read: Mapping[Any, Read], names: Iterable[Any], sources: Sequence[Read | None]) -> bool:
    """Whether nobody but these slots has what they continue from, so that its memory is theirs."""
    rows = same_rows(sources)
    return rows is not None and {name for name, one in read.items() if one.rows is rows} == set(names)


def same_rows(reads: Sequence[Read | None]) -> CachedRows | None:
    """The cache that has exactly these rows in this order, if there is one."""
    rows = None if reads[0] is None else reads[0].rows
    if rows is None or len(rows.n) != len(reads):
        return None
    same = all(read is not None and read.rows is rows and read.row == i for i, read in enumerate(reads))
    return rows if same else None


def side_by_side(rows: Sequence[Tensor]) -> Tensor:
    """(n, H, D) of any n to (B, H, the largest n, D), padded on the left."""
    return pad_sequence(list(rows), batch_first=True, padding_side="left").transpose(1, 2)
