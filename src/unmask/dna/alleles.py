"""From a variant and a genome to two windows of the same length: one with the reference, one with the alternative.

Both have as many bases as the model reads, with the allele in the middle. A longer allele has shorter flanks: a model
of rows of L bases is one distribution over all of these, and in it no allele is penalised for being longer. At the end
of a chromosome the window moves inwards.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np

from ..data.genome.bases import A, C, G, N, T
from ..data.genome.store import Genome
from ..errors import UserError
from .vcf import VcfRecord, no_sequence

IDS = {"A": A, "C": C, "G": G, "T": T, "N": N}
LETTERS = {token: letter for letter, token in IDS.items()}
NONE = -1
MISMATCH = "REF is"  # how the reason begins where the genome has other bases


@dataclass(frozen=True)
class Pair:
    """Two windows of ids, and which of their columns are the same base of the genome."""

    name: str  # of its random stream: what the score of a variant depends on, and nothing else in the file
    ref: np.ndarray  # (L,) int64
    alt: np.ndarray  # (M,) int64
    partner: np.ndarray  # (M,) the column of `ref` that is the same base of the genome, -1 = none

    @cached_property
    def differing(self) -> tuple[np.ndarray, np.ndarray]:
        """(columns of ref, columns of alt) that differ: the other window does not have them."""
        shared = self.partner[self.partner != NONE]
        return np.setdiff1d(np.arange(len(self.ref)), shared), np.flatnonzero(self.partner == NONE)

    @cached_property
    def aligned(self) -> bool:
        """Whether nothing moved: a substitution."""
        ref, alt = self.differing
        return len(self.ref) == len(self.alt) and np.array_equal(ref, alt)


def pair_of(record: VcfRecord, alt: str, genome: Genome, length: int) -> Pair | str:
    """The two windows of at most `length` bases, or why there are none."""
    if (reason := no_sequence(alt) or _misplaced(record, genome)) is not None:
        return reason
    if alt == record.ref:
        return "the alternative is the reference"
    ref, alt, start = _trim(record.ref, alt, record.pos - 1)
    if max(len(ref), len(alt)) > length:
        return f"the allele has {max(len(ref), len(alt))} bases, more than the window of {length}"
    chrom = genome.record(record.chrom)
    size = genome.sizes[chrom]
    before, after = start, size - start - len(ref)  # bases on both sides
    flanks = [_flanks(length - len(allele), before, after) for allele in (ref, alt)]
    left, right = (max(sides) for sides in zip(*flanks, strict=True))
    near = genome.fetch(chrom, start - left, start + len(ref) + right).astype(np.int64)
    upstream, downstream = near[:left], near[left + len(ref) :]
    windows, places = [], []
    for allele, (left_flank, right_flank) in zip((ref, alt), flanks, strict=True):
        middle = np.array([IDS[base] for base in allele], dtype=np.int64)
        windows.append(np.concatenate((upstream[left - left_flank :], middle, downstream[:right_flank])))
        nowhere = np.full(len(allele), NONE)
        coordinates = start - left_flank + np.arange(left_flank), start + len(ref) + np.arange(right_flank)
        places.append(np.concatenate((coordinates[0], nowhere, coordinates[1])))
    column = {int(place): i for i, place in enumerate(places[0]) if place != NONE}
    partner = np.array([column.get(int(place), NONE) for place in places[1]], dtype=np.int64)
    return Pair(f"{chrom}:{start} {ref}>{alt}", windows[0], windows[1], partner)


def _misplaced(record: VcfRecord, genome: Genome) -> str | None:
    """Why a variant is not where it says it is."""
    try:
        chrom = genome.record(record.chrom)
    except UserError as error:
        return str(error)
    size, end = genome.sizes[chrom], record.pos - 1 + len(record.ref)
    if record.pos < 1 or end > size:
        what = f"POS {record.pos}" if len(record.ref) == 1 else f"POS {record.pos} to {end}"
        return f"{what} is not within {chrom}, which has {size:,} bases"
    reference = genome.fetch(chrom, record.pos - 1, end)
    if any(IDS[base] != token for base, token in zip(record.ref, reference.tolist(), strict=True)):
        shown = "".join(LETTERS[token] for token in reference[:20].tolist()) + ("..." if len(reference) > 20 else "")
        return f"{MISMATCH} {record.ref[:20]}, but the genome has {shown} at {record.chrom}:{record.pos}"
    return "the reference has an N" if N in reference else None


def _trim(ref: str, alt: str, start: int) -> tuple[str, str, int]:
    """Without the bases that both alleles end and begin with, and where the rest starts (from 0)."""
    while ref and alt and ref[-1] == alt[-1]:
        ref, alt = ref[:-1], alt[:-1]
    while ref and alt and ref[0] == alt[0]:
        ref, alt, start = ref[1:], alt[1:], start + 1
    return ref, alt, start


def _flanks(total: int, before: int, after: int) -> tuple[int, int]:
    """How many bases to the left and to the right: half of the total each, more where the other side has ended."""
    left = min(before, max(total // 2, total - after))
    return left, min(after, total - left)
