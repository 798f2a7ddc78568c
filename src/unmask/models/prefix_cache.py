"""Keys and values of sequences that have ended, for later ones that begin with the same tokens: the turns of a chat.

A sequence is compared with what is kept once, when it begins. It gets a copy, so that nobody writes into what is kept.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..networks.dit import KeyValue


@dataclass(frozen=True, eq=False)
class KeptPrefix:
    """The tokens of a sequence, and the keys and values of its columns: (H, n, D) each, for every layer."""

    tokens: Tensor  # (n,) int64
    unit: int  # tokens that were read together: what was read depends on it
    columns: list[KeyValue]

    @property
    def bytes(self) -> int:
        """What it takes."""
        return sum(x.nbytes for layer in self.columns for x in layer)

    def first(self, n: int) -> list[KeyValue]:
        """Keys and values of the first n columns as a cache of one row, in memory of its own."""
        return [(_copy(k[:, :n])[None], _copy(v[:, :n])[None]) for k, v in self.columns]


class PrefixCache:
    """What is kept of sequences that have ended, at most `limit` bytes; the least recently used are dropped first."""

    def __init__(self, limit: int) -> None:
        self.limit, self.bytes = limit, 0
        self.reused = self.dropped = 0  # counts: tokens that were not read again, sequences that found no room
        self._kept: list[KeptPrefix] = []  # the last one was used last

    def __len__(self) -> int:
        return len(self._kept)

    def longest(self, tokens: Tensor, unit: int) -> tuple[KeptPrefix, int] | None:
        """Of what was read in the same units, the one that begins most like these tokens, and how many are the same."""
        best, most = None, 0
        for kept in self._kept:
            if kept.unit == unit and (n := _same(kept.tokens, tokens)) > most:
                best, most = kept, n
        if best is None or not (most := most - most % unit):
            return None
        self._use(best)
        return best, most

    def add(self, new: KeptPrefix) -> None:
        """Keep what was read of a sequence; it replaces what it begins with."""
        for kept in [kept for kept in self._kept if kept.unit == new.unit]:
            same = _same(kept.tokens, new.tokens)
            if same == len(new.tokens):
                self._use(kept)
                return
            if same == len(kept.tokens):
                self._remove(kept)
        if new.bytes > self.limit:
            self.dropped += 1
            return
        copies = [(_copy(k), _copy(v)) for k, v in new.columns]  # of views of a batch
        self._kept.append(KeptPrefix(new.tokens.clone(), new.unit, copies))
        self.bytes += new.bytes
        self.resize(self.limit)

    def resize(self, limit: int) -> None:
        """Set the limit, and drop what is beyond it."""
        self.limit = limit
        while self.bytes > limit:
            self._remove(self._kept[0])
            self.dropped += 1

    def _use(self, kept: KeptPrefix) -> None:
        self._kept.remove(kept)
        self._kept.append(kept)

    def _remove(self, kept: KeptPrefix) -> None:
        self._kept.remove(kept)
        self.bytes -= kept.bytes


def _copy(x: Tensor) -> Tensor:
    """A copy whose strides are those of its own memory: a cache that grows in place reads off them how much it has."""
    return x.clone(memory_format=torch.contiguous_format)


def _same(a: Tensor, b: Tensor) -> int:
    """How many tokens both begin with."""
    n = min(len(a), len(b))
    differ = torch.nonzero(a[:n] != b[:n])
    return int(differ[0]) if len(differ) else n
