"""Reading VCF files, plain or compressed, line by line.

A line that cannot be used is reported with its number and a reason, and the others still count. Only a file that is not
a VCF at all, holds no variant or is cut short is refused.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from ..data.readers import numbered_lines
from ..errors import UserError

COLUMNS = "#CHROM, POS, ID, REF, ALT"
BASES = frozenset("ACGTN")
ANY_OTHER = ("<*>", "<NON_REF>", "<X>")  # in a gVCF: any allele but those that are named, so it has no score


@dataclass(frozen=True)
class VcfRecord:
    """One line: a place of the genome, and the alleles that may be there. `pos` counts from 1."""

    line: int
    chrom: str
    pos: int
    id: str
    ref: str  # upper case
    alts: tuple[str, ...]  # upper case, or as written where it is not a sequence


@dataclass(frozen=True)
class BadVariant:
    """A line that is not a variant."""

    line: int
    chrom: str
    pos: str
    id: str
    ref: str
    alt: str
    reason: str


@dataclass(frozen=True)
class Survey:
    """What a file holds, before anything is scored."""

    lines: int  # of variants
    alleles: int  # alternatives on them; a line without any counts as one
    any_other: int  # <*> and <NON_REF>, which are left out and not among the alleles
    chroms: frozenset[str]
    unsorted: int | None  # the first line that belongs before the line above it


def read_vcf(path: str | Path) -> Iterator[VcfRecord | BadVariant]:
    """The variants of a file, in its order."""
    seen = False  # a header, or a line that looks like a variant
    for number, line in numbered_lines(path, "VCF (bcftools view makes one of a BCF)"):
        if line.startswith("#"):
            seen = seen or line.startswith(("##fileformat=VCF", "#CHROM\t"))
            continue
        if not line.strip():
            continue
        variant = _record(number, line)
        if not seen and isinstance(variant, BadVariant):
            raise UserError(
                f"{path} is not a VCF: line {number} is neither a header nor a variant ({variant.reason}); "
                "give a VCF (bcftools view makes one of a BCF)"
            )
        seen = True
        yield variant
    if not seen:
        raise UserError(f"{path} is not a VCF: it is empty; its columns are {COLUMNS}, with tabs between")


def _record(number: int, line: str) -> VcfRecord | BadVariant:
    fields = line.split("\t")
    chrom, pos, name, ref, alt = [*fields, "", "", "", "", ""][:5]

    def bad(reason: str) -> BadVariant:
        return BadVariant(number, chrom, pos, name, ref, alt, reason)

    if len(fields) < 5:
        return bad(f"it has {len(fields)} column{'s' * (len(fields) > 1)} with tabs between, not the 5 of {COLUMNS}")
    if not (pos.isascii() and pos.isdecimal() and len(pos) < 16):
        return bad(f"POS {pos[:20]!r} is not a whole number")
    if ref in ("", "-", "."):
        return bad("REF is empty; write an insertion with the base before it, such as A and ACG")
    if not BASES.issuperset(ref.upper()):
        return bad(f"REF {_short(ref)!r} has letters other than A, C, G, T and N")
    return VcfRecord(number, chrom, int(pos), name, ref.upper(), tuple(map(_allele, alt.split(","))))


def _allele(alt: str) -> str:
    return alt.upper() if BASES.issuperset(alt.upper()) else alt


def no_sequence(alt: str) -> str | None:
    """Why an alternative cannot be put into the sequence; None where it can."""
    if alt in ("", "."):
        return "there is no alternative allele"
    if alt == "-":
        return "the alternative is empty; write a deletion with the base before it, such as ACG and A"
    if alt == "*":
        return "the alternative * only says that a deletion begins further up"
    if alt in ANY_OTHER:
        return f"the alternative {alt} is any other allele (gVCF)"
    if alt.startswith("<"):
        return f"the alternative {_short(alt)} is symbolic: its sequence is not in the file"
    if "[" in alt or "]" in alt or alt.startswith(".") or alt.endswith("."):
        return f"the alternative {_short(alt)} is a breakend"
    if not BASES.issuperset(alt):
        return f"the alternative {_short(alt)!r} has letters other than A, C, G and T"
    return "the alternative has an N" if "N" in alt else None


def _short(text: str) -> str:
    return text if len(text) <= 20 else text[:17] + "..."


def survey(path: str | Path) -> Survey:
    """Read a file once from end to end: what is wrong with it as a whole is reported before minutes of work."""
    count = alleles = any_other = 0
    unsorted: int | None = None
    chroms: set[str] = set()
    done: set[str] = set()  # chromosomes that ended
    chrom, pos = "", 0
    for variant in read_vcf(path):
        count += 1
        if isinstance(variant, BadVariant):
            alleles += 1
            continue
        left_out = sum(alt in ANY_OTHER for alt in variant.alts)
        alleles, any_other = alleles + len(variant.alts) - left_out, any_other + left_out
        if unsorted is None and (variant.chrom in done or (variant.chrom == chrom and variant.pos < pos)):
            unsorted = variant.line
        if variant.chrom != chrom:
            done.add(chrom)
            chroms.add(variant.chrom)
        chrom, pos = variant.chrom, variant.pos
    if not count:
        raise UserError(f"{path} has no variants, only a header; give a file with at least one line")
    return Survey(count, alleles, any_other, frozenset(chroms), unsorted)
