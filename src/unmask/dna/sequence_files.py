"""Sequences by name, from files of any kind."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from ..data.genome.bed import Interval, read_bed
from ..data.genome.fasta import EXTENSIONS, is_fasta, read_fasta
from ..data.genome.store import Genome
from ..data.readers import csv_rows, jsonl_rows, line_of, number_in, numbered_lines, unpacked_name
from ..errors import UserError, nearest
from ..types import Progress
from .protein_files import read_records

LETTERS = np.frombuffer(b"ACGTN", dtype=np.uint8)
KINDS = f"{', '.join(EXTENSIONS)}, .txt, .jsonl, .csv, .tsv or .bed, also with .gz or .xz"
OTHER_STRAND = str.maketrans("ACGTacgt", "TGCAtgca")
TEXTS = ("sequence", "seq", "text")  # columns and keys that hold a sequence, where none is named
NAMES = ("name", "id")


def read_sequences(
    path: str | Path,
    *,
    column: str | None = None,
    genome: Genome | None = None,
    bases: bool = True,
    progress: Progress | None = None,
) -> Iterator[tuple[str, str]]:
    """(name, sequence) of a FASTA file, lines, JSON lines, a table or the intervals of a BED file, one at a time.

    Without `bases` the letters of a FASTA file are those of proteins.
    """
    place = Path(path)
    kind = Path(unpacked_name(place)).suffix
    if column is not None and kind not in (".csv", ".tsv", ".jsonl"):
        raise UserError(f"--column is for .csv, .tsv and .jsonl files, and {path} is not one; leave it out")
    if genome is not None and kind != ".bed":
        raise UserError(f"--genome is for the intervals of a .bed file, and {path} is not one; leave it out")
    if not place.exists():
        raise UserError(f"there is no file {path}")
    if is_fasta(place) and not bases:
        yield from read_records(place)
    elif is_fasta(place):
        for name, parts in groupby(read_fasta(place, progress), key=lambda part: part[0]):
            yield name, LETTERS[np.concatenate([codes & 7 for _, codes in parts])].tobytes().decode("ascii")
    elif kind == ".txt":
        yield from ((str(number), line) for number, line in numbered_lines(path, "text file") if line.strip())
    elif kind == ".jsonl":
        yield from _objects(path, column)
    elif kind in (".csv", ".tsv"):
        yield from _table(path, "," if kind == ".csv" else "\t", column)
    elif kind == ".bed":
        if genome is None:
            raise UserError(f"{path} has only intervals; give their FASTA file with --genome")
        for interval in read_bed(place, genome.sizes):
            yield _region(place, interval, genome)
    else:
        raise UserError(f"{path} has an unknown extension; give a file that ends in {KINDS}")


def _region(path: Path, interval: Interval, genome: Genome) -> tuple[str, str]:
    """The name that a line of a BED file gives, else its place; the sequence of the strand that it names."""
    if interval.strand not in ("+", "-", "."):
        where = line_of(path, interval.line)
        raise UserError(f"{where} has {interval.strand!r} for its strand; the sixth column of BED is +, - or a dot")
    text = genome.text(interval.name, interval.start, interval.end)
    name = interval.label or f"{interval.name}:{interval.start}-{interval.end}"
    return name, text[::-1].translate(OTHER_STRAND) if interval.strand == "-" else text


def _objects(path: str | Path, column: str | None) -> Iterator[tuple[str, str]]:
    for where, row in jsonl_rows(path):
        row = {TEXTS[-1]: row} if isinstance(row, str) else row
        keys = [column] if column else [key for key in TEXTS if isinstance(row, dict) and key in row]
        if not isinstance(row, dict) or not keys or not isinstance(row.get(keys[0]), str):
            raise UserError(f'{where} has no {column or "sequence"!r}; write {{"name": "...", "sequence": "..."}}')
        yield str(next((row[key] for key in NAMES if key in row), number_in(where))), row[keys[0]]


def _table(path: str | Path, separator: str, column: str | None) -> Iterator[tuple[str, str]]:
    rows = csv_rows(path, delimiter=separator)
    _, head = next(rows, ("", []))
    if not head:
        raise UserError(f"{path} is empty; its first line names the columns")
    wanted = column or next((name for name in TEXTS if name in head), None)
    if wanted is None or wanted not in head:
        asked = "" if column is None else f" {column!r}{nearest(column, head)}"
        raise UserError(f"{path} has no column{asked} of sequences; name one of {', '.join(head)} with --column")
    at, named = head.index(wanted), next((head.index(name) for name in NAMES if name in head), None)
    for where, row in rows:
        if len(row) <= max(at, named or 0):
            raise UserError(f"{where} has {len(row)} columns, fewer than its header names")
        yield number_in(where) if named is None else row[named], row[at]
