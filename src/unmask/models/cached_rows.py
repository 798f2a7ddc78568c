"""What a network has read of sequences, for denoisers that read only what is new."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from torch.nn.utils.rnn import pad_sequence

from ..networks.dit import KeyValue
from ..sampling import Request, Slot, Trajectory, Written, advance_tokens
from ..types import Vocab
from .prefix_cache import KeptPrefix, PrefixCache


class ModelDenoiser:
    """A model as a denoiser with a cache: what does not depend on how it reads."""

    time_conditioned = False
    normalised = True
    carry_over = True
    cached = True
    model: Any
    read: dict[Any, Read]
    prefixes: PrefixCache | None = None  # what is kept of sequences that have ended
    start = 0  # columns before the first token

    def name(self, slot: int) -> Any:
        """Under which name the tokens of a slot are read."""
        raise NotImplementedError

    def unit(self, trajectory: Trajectory) -> int:
        """How many tokens are read together, so that what is kept of them depends on all; 0: nothing can be kept."""
        return 1

    def prompt(self, slot: Slot, label: int | None = None) -> tuple[int, ...] | None:
        """What sequences have in common that read the same prompt."""
        return slot.prompt

    def admit(self, trajectory: Trajectory) -> None:
        """Let a sequence begin with what was read of one that has ended, as far as both have the same tokens."""
        if self.prefixes is None or not (unit := self._unit(trajectory)):
            return
        free = torch.nonzero(trajectory.free)
        given = trajectory.canvas[: int(free[0])] if len(free) else trajectory.canvas
        if (longest := self.prefixes.longest(given, unit)) is None:
            return
        kept, n = longest
        self.prefixes.reused += n
        trajectory.kept, slot = n, trajectory.in_slot()
        rows = CachedRows([self.start + n], kept.first(self.start + n))
        self.read[self.name(slot.number)] = Read(rows, 0, self.prompt(slot), slot.shared)

    def release(self, trajectory: Trajectory) -> None:
        """Forget what was read of a slot, or keep it for others."""
        read = self.read.pop(self.name(trajectory.slot), None)
        if self.prefixes is None or read is None or trajectory.error or not (unit := self._unit(trajectory)):
            return
        n = min(read.n - self.start, trajectory.kept)
        if n := n - n % unit:
            parts = [(k.transpose(0, 1), v.transpose(0, 1)) for k, v in read.rows.part(read.row, self.start + n)]
            self.prefixes.add(KeptPrefix(trajectory.canvas[:n], unit, parts))

    def _unit(self, trajectory: Trajectory) -> int:
        """As `unit`; a recurrent state cannot be cut, and what is read under a label is not shared."""
        if self.model.backbone.recurrent or trajectory.request.label is not None:
            return 0
        return self.unit(trajectory)

    @property
    def held_bytes(self) -> int:
        """Bytes of what it keeps for all slots."""
        return held_bytes(self.read.values())

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
