"""BED files: regions of a genome, one per line, in any order.

The fourth column is the name of a region, or its split (as in hg38); the sixth is its strand.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

from ...types import UserError
from ..dataset_files import SPLIT_NAMES
from ..readers import line_of, numbered_lines
from .store import record_name

SKIPPED = ("#", "track", "browser")


@dataclass(frozen=True)
class Interval:
    """Bases `start` (in) to `end` (out) of a record, counted from 0."""

    name: str  # of the record, as the genome has it
    start: int
    end: int
    split: str | None  # train, valid or test, where the line names one
    line: int
    label: str | None = None  # the fourth column; a dot is none
    strand: str = "."  # the sixth column: +, - or a dot


def read_bed(path: Path | str, sizes: Mapping[str, int]) -> list[Interval]:
    """The intervals of a BED file (.gz or .xz too) in its order, checked against the lengths of the records."""
    path = Path(path)
    intervals = [_interval(path, line, words, sizes) for line, words in _lines(path)]
    if not intervals:
        raise UserError(f"{path} holds no interval; give lines of chromosome, start and end")
    return intervals


def _lines(path: Path) -> Iterator[tuple[int, list[str]]]:
    """(number, columns) of every line that is an interval."""
    if not path.is_file():
        raise UserError(f"file {path} does not exist; give data.intervals the path of a BED file")
    for number, line in numbered_lines(path, "BED file"):
        words = [word.strip() for word in (line.split("\t") if "\t" in line else line.split())]
        if any(words) and not words[0].startswith("#") and words[0].split(" ")[0] not in SKIPPED:
            yield number, words


def _interval(path: Path, line: int, words: list[str], sizes: Mapping[str, int]) -> Interval:
    where = line_of(path, line)
    if len(words) < 3:
        raise UserError(f"{where} has {len(words)} column{'s' * (len(words) > 1)}; BED needs chromosome, start and end")
    name, first, last = words[:3]
    try:
        start, end = int(first), int(last)
    except ValueError:
        raise UserError(
            f"{where} has {first!r} and {last!r} for start and end, which are not whole numbers"
            + "; begin a line of column names with #" * (not first[:1].isdigit())
        ) from None
    try:
        name = record_name(name, sizes)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if start < 0:
        raise UserError(f"{where} starts at {start}, before the chromosome; BED counts from 0")
    if start >= end:
        raise UserError(f"{where} starts at {start} and ends at {end}; an interval ends after its start")
    if end > sizes[name]:
        raise UserError(f"{where} ends at {end:,}, beyond the end of {name!r}, which has {sizes[name]:,} bases")
    label, _, strand = (*words[3:6], *(".", ".", ".")[len(words[3:6]) :])
    named = None if label in ("", ".") else label
    return Interval(name, start, end, SPLIT_NAMES.get(label.lower()), line, named, strand or ".")
