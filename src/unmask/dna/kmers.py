"""Composition of DNA: GC, k-mers, CpG, runs of one base, both strands (used to compare generated DNA).

Everything is counted in one pass over pieces of equal length, so a chromosome needs no more memory than a gene. A k-mer
with an N does not count, and none crosses the end of a piece.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

import numpy as np

from ..types import UserError

LONGEST_K = 8
LONGEST_RUN = 30  # runs of one base that are longer count as this long
GC_BINS = 1000
N = 4  # the code of what is not a base
AT_ONCE = 2**22  # bases that are counted together

_CODES = np.full(256, 255, dtype=np.uint8)
for _letters, _code in (("Aa", 0), ("Cc", 1), ("Gg", 2), ("TtUu", 3), ("NnRrYySsWwKkMmBbDdHhVv", N)):
    _CODES[np.frombuffer(_letters.encode(), dtype=np.uint8)] = _code


def codes_of(name: str, text: str) -> np.ndarray:
    """(L,) 0 to 3 for A, C, G, T and 4 for N and other ambiguous letters; anything else is an error."""
    codes = _CODES[np.frombuffer(text.strip().encode("ascii", "replace"), dtype=np.uint8)]
    if codes.size and codes.max() > N:
        wrong = text.strip()[int(codes.argmax())]
        raise UserError(f"sequence {name!r} has {wrong!r}, which is not a base; give sequences of A, C, G, T and N")
    return codes


def pieces(sequences: Iterable[tuple[str, str]], length: int | None = None) -> Iterator[np.ndarray]:
    """(m, L) codes: sequences as they are, or cut to pieces of `length`; a last piece of less than half is left out."""
    for name, text in sequences:
        codes = codes_of(name, text)
        if length is None or len(codes) <= length:
            if codes.size:
                yield codes[None]
            continue
        whole = len(codes) // length
        rows = codes[: whole * length].reshape(whole, length)
        step = max(1, AT_ONCE // length)
        yield from (rows[i : i + step] for i in range(0, whole, step))
        if 2 * (len(codes) - whole * length) >= length:
            yield codes[None, whole * length :]


@dataclass
class Counts:
    """Counts of a set of sequences."""

    k: int
    sequences: int = 0
    letters: int = 0
    unknown: int = 0
    kmers: list[np.ndarray] = field(default_factory=list)  # of length 1 .. k: (4^k,) int64
    runs: np.ndarray = field(default_factory=lambda: np.zeros(LONGEST_RUN + 1, dtype=np.int64))
    longest_run: int = 0
    gc: np.ndarray = field(default_factory=lambda: np.zeros(GC_BINS + 1, dtype=np.int64))  # sequences by their GC

    def __post_init__(self) -> None:
        if not 1 <= self.k <= LONGEST_K:
            raise UserError(f"k={self.k} must be between 1 and {LONGEST_K}")
        if not self.kmers:
            self.kmers = [np.zeros(4**n, dtype=np.int64) for n in range(1, self.k + 1)]

    def add(self, rows: np.ndarray) -> None:
        """Count pieces (m, L) of codes."""
        if not rows.size:
            return
        bases = rows < N
        self.sequences += len(rows)
        self.letters += rows.size
        self.unknown += int((~bases).sum())
        known = bases.sum(1)
        gc = ((rows == 1) | (rows == 2)).sum(1)
        counted = known > 0
        share = np.rint(gc[counted] / known[counted] * GC_BINS).astype(np.int64)
        self.gc += np.bincount(share, minlength=GC_BINS + 1)
        index, valid = np.where(bases, rows, 0).astype(np.int64), bases
        for n in range(1, self.k + 1):
            if n > 1:
                index = index[:, :-1] * 4 + np.where(bases, rows, 0)[:, n - 1 :]
                valid = valid[:, :-1] & bases[:, n - 1 :]
            self.kmers[n - 1] += np.bincount(index[valid], minlength=4**n)
        self._add_runs(rows)

    def _add_runs(self, rows: np.ndarray) -> None:
        flat = np.full((len(rows), rows.shape[1] + 1), 255, dtype=np.uint8)  # a border after each piece
        flat[:, :-1] = rows
        line = flat.ravel()
        edges = np.flatnonzero(np.concatenate(([True], line[1:] != line[:-1])))
        size = np.diff(np.concatenate((edges, [len(line)])))[line[edges] < N]
        if size.size:
            self.longest_run = max(self.longest_run, int(size.max()))
            self.runs += np.bincount(np.minimum(size, LONGEST_RUN), minlength=LONGEST_RUN + 1)

    @property
    def bases(self) -> int:
        """A, C, G and T."""
        return self.letters - self.unknown

    def spectrum(self, n: int) -> np.ndarray:
        """(4^n,) shares of the n-mers."""
        counts = self.kmers[n - 1]
        return counts / max(1, counts.sum())

    def facts(self) -> dict[str, float | int | None]:
        """The figures of this set."""
        p = self.spectrum(1)
        gc = _moments(self.gc)
        mean_run = _moments(self.runs)[0]
        facts: dict[str, float | int | None] = {
            "sequences": self.sequences,
            "bases": self.bases,
            "unknown": self.unknown / max(1, self.letters),
            "gc": float(p[1] + p[2]),
            "gc_of_a_sequence": gc[0] / GC_BINS,
            "gc_stderr": gc[1] / GC_BINS / math.sqrt(self.sequences) if self.sequences > 1 else None,
            "gc_spread": gc[1] / GC_BINS,
            "cpg_observed_expected": None,
            "mean_run": mean_run,
            "runs_of_5_and_more": float(self.runs[5:].sum() / max(1, self.runs.sum())),
            "longest_run": self.longest_run,
        }
        if self.k > 1 and p[1] * p[2] > 0:
            facts["cpg_observed_expected"] = float(self.spectrum(2)[1 * 4 + 2] / (p[1] * p[2]))
        return facts


def _moments(histogram: np.ndarray) -> tuple[float, float]:
    """Mean and standard deviation (of a sample) of a histogram over 0, 1, 2, ..."""
    total, value = histogram.sum(), np.arange(len(histogram))
    if not total:
        return 0.0, 0.0
    mean = float((histogram * value).sum() / total)
    return mean, math.sqrt(float((histogram * (value - mean) ** 2).sum()) / max(1, total - 1))


def entropy(p: np.ndarray) -> float:
    """Bits."""
    p = p[p > 0]
    return float(-(p * np.log2(p)).sum())


def divergence(p: np.ndarray, q: np.ndarray) -> float:
    """Jensen-Shannon divergence in bits: 0 for equal distributions, 1 for those that share nothing."""
    return max(0.0, entropy((p + q) / 2) - (entropy(p) + entropy(q)) / 2)


def other_strand(p: np.ndarray) -> np.ndarray:
    """The spectrum of the reverse complements: of k-mer i, the share of its reverse complement."""
    k = round(math.log(len(p), 4))
    left, index = np.arange(len(p)), np.zeros(len(p), dtype=np.int64)
    for _ in range(k):  # the last base becomes the first, complemented
        index, left = index * 4 + 3 - left % 4, left // 4
    return p[index]


def gc_distance(a: Counts, b: Counts) -> float:
    """The Wasserstein distance between the GC distributions of two sets of sequences, in GC."""
    first, second = (np.cumsum(counts.gc) / max(1, counts.gc.sum()) for counts in (a, b))
    return float(np.abs(first - second).sum() / GC_BINS)


def distances(a: Counts, b: Counts) -> dict[str, float]:
    """All distances between two sets."""
    runs = (counts.runs / max(1, counts.runs.sum()) for counts in (a, b))
    return {
        **{f"jsd_{n}": divergence(a.spectrum(n), b.spectrum(n)) for n in range(1, a.k + 1)},
        "gc": gc_distance(a, b),
        "runs": divergence(*runs),
    }


def by_k(counts: Counts) -> list[dict[str, float]]:
    """For each k: how far a set is from its other strand (Chargaff's second rule), and its entropies in bits."""
    rows, before = [], 0.0
    for n in range(1, counts.k + 1):
        p = counts.spectrum(n)
        block = entropy(p)
        asymmetry = divergence(p, other_strand(p))
        rows.append(
            {"k": n, "strand_asymmetry": asymmetry, "bits_per_base": block / n, "bits_of_next_base": block - before}
        )
        before = block
    return rows
