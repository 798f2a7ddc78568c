"""Markov models of order k on bases: the yardstick for the networks of section 5.2.

They are counted on all windows of a split. p(base | context) is (count + 1/2) / (total + 2), where the context is the k
bases before it. Contexts do not cross the start of a window or an N: a base with j < k known bases directly before it
has these j as its context, with the counts of order j (all bases with at least j known ones before them). N and padding
are neither counted nor scored. Only the strand in the file is used.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

from ..data.genome.bases import BASES, A, N
from ..data.pack import Rows
from ..evaluation.likelihood import pick_rows

SMOOTHING = 0.5
CHUNK = 1 << 19  # bases that are looked at together


@dataclass(frozen=True)
class Place:
    """All bases of some windows, seen with contexts of one length."""

    base: np.ndarray  # (n, L) int32: 0 to 3
    context: np.ndarray  # (n, L) int32: the bases before it as digits of a number, the nearest last
    known: np.ndarray  # (n, L) bool: base and context are known


def contexts(tokens: np.ndarray, order: int) -> Iterator[Place]:
    """Windows (n, L) of ids with contexts of length 0, 1, ..., order."""
    known = (tokens >= A) & (tokens < N)
    base = np.where(known, tokens - A, 0).astype(np.int32)
    context, complete = np.zeros_like(base), known.copy()
    for length in range(order + 1):
        if length:
            context[:, length:] += base[:, :-length] << 2 * (length - 1)
            complete[:, length:] &= known[:, :-length]
            complete[:, :length] = False
        yield Place(base, context, complete)


class Markov:
    """Counts of bases after every context of up to `order` bases."""

    def __init__(self, rows: Rows, order: int) -> None:
        self.counts = [np.zeros((len(BASES) ** length, len(BASES)), dtype=np.int64) for length in range(order + 1)]
        for part in _parts(len(rows), rows.length):
            tokens, _ = rows.rows(np.arange(part.start, part.stop))
            for counts, place in zip(self.counts, contexts(tokens, order), strict=True):
                cell = (place.context[place.known] << 2) + place.base[place.known]
                counts += np.bincount(cell, minlength=counts.size).reshape(counts.shape)

    def log_p(self, length: int) -> np.ndarray:
        """(4^length, 4): the log-probability of each base after each context of this length."""
        counts = self.counts[length] + SMOOTHING
        return np.asarray(np.log(counts / counts.sum(1, keepdims=True)))

    def nats(self, rows: Rows, order: int, limit: int | None = None) -> tuple[np.ndarray, np.ndarray]:
        """(nats (n,), bases (n,)) of the rows that an evaluation with this limit uses, under the model of an order."""
        tables = [self.log_p(length) for length in range(order + 1)]
        chosen = pick_rows(len(rows), limit)
        nats, bases = np.zeros(len(chosen)), np.zeros(len(chosen))
        for part in _parts(len(chosen), rows.length):
            tokens, _ = rows.rows(chosen[part])
            each = np.zeros(tokens.shape)
            for table, place in zip(tables, contexts(tokens, order), strict=True):  # the longest context counts
                each[place.known] = -table[place.context[place.known], place.base[place.known]]
            nats[part], bases[part] = each.sum(1), ((tokens >= A) & (tokens < N)).sum(1)
        return nats, bases


def _parts(total: int, length: int) -> list[slice]:
    size = max(1, CHUNK // length)
    return [slice(start, min(start + size, total)) for start in range(0, total, size)]
