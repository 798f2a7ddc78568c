"""A split of a genome as rows: regions cut into windows of data.length, looked up in the 2-bit store when asked for.

Without a BED file every record is cut into blocks, and blocks are divided into splits: neighbours stay together, and
the splits are distributed over the genome. The size of a block is a power of two near a 400th of all bases (at most
2^20), the same for every length of up to a quarter of it, so models of different lengths have the same splits. A region
is cut into windows from its start; the last one is shifted back to end with the region, and a region shorter than a
window is padded.

N is a token that the network sees, and it is not scored (the paper's code reads N as [PAD] instead: not scored either).
A window of which more than half is N is left out. Positions count through all records of the genome, as in `store`.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np

from ...types import UserError
from ..rows import Rows
from ..streams import Division
from .bases import PAD, A, N
from .bed import Interval
from .store import Genome

SMALL_BLOCK, LARGE_BLOCK, BLOCKS = 1 << 10, 1 << 20, 400
COUNTED = 1 << 20  # windows counted together


@dataclass(frozen=True, eq=False)
class Regions:
    """Parts of a genome, none of them across records: (regions,) int64 each."""

    starts: np.ndarray
    lengths: np.ndarray

    @classmethod
    def of(cls, pairs: Sequence[tuple[int, int]]) -> Regions:
        """From (start, end)."""
        both = np.array(pairs, dtype=np.int64).reshape(-1, 2)
        return cls(both[:, 0], both[:, 1] - both[:, 0])


# ---- regions


def block_size(total: int, length: int) -> int:
    """Bases of a block: a power of two near total / 400, not below four windows."""
    preferred = min(_power(total // BLOCKS), LARGE_BLOCK)
    small = min(_power(total // (BLOCKS // 10)), SMALL_BLOCK)
    return max(preferred, small, _power(4 * length - 1) * 2)


def _power(number: int) -> int:
    """The largest power of two that is not above a number."""
    return 1 << max(number.bit_length() - 1, 0)


def blocks(genome: Genome, length: int) -> list[tuple[int, int]]:
    """Every record in blocks; what is left at its end and shorter than half a block belongs to the last one."""
    size = block_size(genome.total, length)
    pairs = []
    for offset, bases in zip(genome.offsets.tolist(), genome.lengths.tolist(), strict=False):
        count = max(1, (bases + size // 2) // size)
        edges = [offset + i * size for i in range(count)] + [offset + bases]
        pairs += list(pairwise(edges))
    return pairs


def divide(groups: Sequence[Sequence[tuple[int, int]]], division: Division) -> dict[str, Regions]:
    """Groups of regions that stay together, as splits."""
    parts: dict[str, list[tuple[int, int]]] = {split: [] for split in division.splits}
    for split, group in zip(division.names(), groups, strict=False):
        parts[split] += group
    return {split: Regions.of(pairs) for split, pairs in parts.items()}


def from_intervals(
    genome: Genome, intervals: Sequence[Interval], path: Path, division: Division, extend: int | None = None
) -> dict[str, Regions]:
    """The regions of a BED file by split; lines that name none are divided, overlapping ones together.

    With `extend` each is made that long around its middle, shifted where the record ends (hg38 as in the paper).
    """
    numbers = {name: i for i, name in enumerate(genome.names)}
    offsets = genome.offsets.tolist()
    placed = [(*_extended(line, genome, extend, offsets[numbers[line.name]]), line) for line in intervals]
    named = [interval for interval in intervals if interval.split is not None]
    if named and len(named) < len(intervals):
        bare = next(interval for interval in intervals if interval.split is None)
        raise UserError(
            f"line {bare.line} of {path} names no split, and line {named[0].line} does; "
            "write train, valid or test into the fourth column of every line, or of none"
        )
    ordered = sorted(placed, key=lambda region: region[:2])
    if not named:
        groups: list[list[tuple[int, int]]] = []
        reach = -1
        for start, end, _ in ordered:
            if start >= reach:
                groups.append([])
            groups[-1].append((start, end))
            reach = max(reach, end)
        return divide(groups, division)
    if extend is None:
        _check_apart(ordered, path)
    parts: dict[str, list[tuple[int, int]]] = {}
    for start, end, interval in placed:
        parts.setdefault(str(interval.split), []).append((start, end))
    return {split: Regions.of(parts[split]) for split in ("train", "valid", "test") if split in parts}


def _extended(interval: Interval, genome: Genome, extend: int | None, offset: int) -> tuple[int, int]:
    start, end = interval.start, interval.end
    if extend is not None:
        size = genome.sizes[interval.name]
        start = max(0, min((interval.start + interval.end) // 2 - extend // 2, size - extend))
        end = min(start + extend, size)
    return offset + start, offset + end


def _check_apart(ordered: Sequence[tuple[int, int, Interval]], path: Path) -> None:
    """Raise for a base that two splits have: what is held out must not be trained on."""
    last: dict[str, tuple[int, int]] = {}  # split -> how far it reaches, and the line
    for start, end, interval in ordered:
        for split, (reach, line) in last.items():
            if split != interval.split and start < reach:
                raise UserError(
                    f"line {interval.line} of {path} ({interval.split}) overlaps line {line} ({split}); "
                    "splits must not share bases"
                )
        if end > last.get(str(interval.split), (0, 0))[0]:
            last[str(interval.split)] = end, interval.line


# ---- rows


@dataclass(frozen=True, eq=False)
class GenomeRows(Rows):
    """One split of a genome as rows of `length` bases, with the interface of `Rows`."""

    genome: Genome = field(kw_only=True, repr=False)
    regions: Regions = field(kw_only=True, repr=False)
    soft_mask: bool = field(default=False, kw_only=True)  # read lower-case bases as N

    @classmethod
    def make(cls, genome: Genome, regions: Regions, length: int, facts: dict[str, Any], soft_mask: bool) -> GenomeRows:
        """Rows with their counts in `facts`."""
        rows = cls(
            np.empty(0, dtype=np.uint8),
            None,
            facts,
            length,
            pad=PAD,
            genome=genome,
            regions=regions,
            soft_mask=soft_mask,
        )
        rows.facts.update(rows.counts())
        return rows

    @property
    def tokens(self) -> int:
        """Bases of the regions of the split."""
        return int(self.regions.lengths.sum())

    @property
    def windows(self) -> int:
        """Windows before any is left out."""
        return int(self._edges[-1])

    def __len__(self) -> int:
        return self.windows - len(self._unread)

    @cached_property
    def _edges(self) -> np.ndarray:
        """(regions + 1,) int64: the first window of each region."""
        return np.concatenate([[0], np.cumsum(-(-self.regions.lengths // self.length))]).astype(np.int64)

    def place(self, indices: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """(n,) where rows begin among all bases of the genome, and how many bases they have."""
        chosen = np.asarray(indices, dtype=np.int64)
        return self._window(chosen + np.searchsorted(self._before, chosen, side="right"))

    def _window(self, number: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """`place` of windows that are counted before any is left out."""
        region = np.searchsorted(self._edges, number, side="right") - 1
        lengths = self.regions.lengths[region]
        inside = np.minimum((number - self._edges[region]) * self.length, np.maximum(lengths - self.length, 0))
        return self.regions.starts[region] + inside, np.minimum(lengths, self.length)

    @cached_property
    def _census(self) -> tuple[np.ndarray, int]:
        """The windows that are left out, in order, and the bases that are scored in all others."""
        out, scored = [np.empty(0, dtype=np.int64)], 0
        for at in range(0, self.windows, COUNTED):
            number = np.arange(at, min(at + COUNTED, self.windows))
            begins, sizes = self._window(number)
            unknown = self.genome.count_unknown(begins, begins + sizes, self.soft_mask)
            bad = 2 * unknown > sizes
            out.append(number[bad])
            scored += int((sizes - unknown)[~bad].sum())
        return np.concatenate(out), scored

    @property
    def _unread(self) -> np.ndarray:
        return self._census[0]

    @cached_property
    def _before(self) -> np.ndarray:
        """For each window that is left out, how many that are not come before it: in order, so it can be searched."""
        return self._unread - np.arange(len(self._unread))

    def rows(self, indices: np.ndarray | Iterable[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """(n, L) int64 tokens, and (n, L) bool where they are scored: not at N, not behind a region's end."""
        chosen = np.asarray(list(indices) if not isinstance(indices, np.ndarray) else indices, dtype=np.int64)
        assert ((chosen >= 0) & (chosen < len(self))).all(), "row outside the split"
        begins, sizes = self.place(chosen)
        tokens = self.genome.gather(begins, self.length, self.soft_mask).astype(np.int64)
        if (sizes < self.length).any():
            tokens[np.arange(self.length) >= sizes[:, None]] = PAD
        counts = (tokens >= A) & (tokens < N)
        return tokens, None if counts.all() else counts

    def present(self, tokens: np.ndarray, counts: np.ndarray | None) -> np.ndarray | None:
        """(n, L) bool: what the network sees, N included; None = everywhere."""
        seen = tokens != PAD
        return None if seen.all() else seen

    def given(self, tokens: np.ndarray) -> np.ndarray | None:
        """(n, L) bool: N, which is never hidden; None = nowhere."""
        unknown = tokens == N
        return unknown if unknown.any() else None

    def counts(self) -> dict[str, int]:
        """Records, bases in windows that are read, bases that are scored, and windows that are left out."""
        records = np.unique(np.searchsorted(self.genome.offsets, self.regions.starts, side="right"))
        left = self._window(self._unread)[1].sum()
        every = np.minimum(self.regions.lengths, self.length) * np.diff(self._edges)
        return {
            "documents": len(records),
            "tokens": int(every.sum() - left),
            "bytes": self._census[1],
            "windows": len(self),
            "windows_left_out": len(self._unread),
            "bases_left_out": int(left),
        }

    @cached_property
    def bytes_per_token(self) -> float:
        """A base is a byte: bits per byte are bits per base."""
        return 1.0

    def describe(self) -> dict[str, Any]:
        """What a reported number should carry."""
        return {**self.facts, "length": self.length, "rows": len(self)}
