"""Lines of text files, plain or compressed, and sequences by name from files of any kind."""

from __future__ import annotations

import csv
import gzip
import json
import zlib
from collections.abc import Iterator
from itertools import groupby
from pathlib import Path

import numpy as np

from ..config import nearest
from ..data.genome.bed import read_bed
from ..data.genome.fasta import EXTENSIONS, is_fasta, read_fasta
from ..data.genome.store import Genome
from ..types import Progress, UserError

LETTERS = np.frombuffer(b"ACGTN", dtype=np.uint8)
KINDS = f"{', '.join(EXTENSIONS[:3])}, .txt, .jsonl, .csv, .tsv or .bed, also with .gz"
TEXTS = ("sequence", "seq", "text")  # columns and keys that hold a sequence, where none is named
NAMES = ("name", "id")


def read_lines(path: str | Path, kind: str) -> Iterator[tuple[int, str]]:
    """(number, line) of a text file, plain or gzip (bgzip too), without its line end; a file cut short is named."""
    try:
        with open(path, "rb") as file:
            packed = file.read(2) == b"\x1f\x8b"
            file.seek(0)
            source = gzip.GzipFile(fileobj=file) if packed else file
            for number, line in enumerate(source, 1):
                yield number, line.rstrip(b"\r\n").decode("utf-8-sig" if number == 1 else "utf-8")
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise UserError(f"{path} is cut short or damaged: its gzip data has no end; get the file again") from None
    except UnicodeDecodeError:
        raise UserError(f"{path} is not text; give a {kind}") from None
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give a {kind}") from None


def read_sequences(
    path: str | Path, *, column: str | None = None, genome: Genome | None = None, progress: Progress | None = None
) -> Iterator[tuple[str, str]]:
    """(name, sequence) of a FASTA file, lines, JSON lines, a table or the intervals of a BED file, one at a time."""
    place = Path(path)
    kind = Path(place.name.lower().removesuffix(".gz")).suffix
    if column is not None and kind not in (".csv", ".tsv", ".jsonl"):
        raise UserError(f"--column is for .csv, .tsv and .jsonl files, and {path} is none; leave it out")
    if genome is not None and kind != ".bed":
        raise UserError(f"--genome is for the intervals of a .bed file, and {path} is none; leave it out")
    if not place.exists():
        raise UserError(f"there is no file {path}")
    if is_fasta(place):
        for name, parts in groupby(read_fasta(place, progress), key=lambda part: part[0]):
            yield name, LETTERS[np.concatenate([codes & 7 for _, codes in parts])].tobytes().decode("ascii")
    elif kind == ".txt":
        yield from ((str(number), line) for number, line in read_lines(path, "text file") if line.strip())
    elif kind == ".jsonl":
        yield from _objects(path, column)
    elif kind in (".csv", ".tsv"):
        yield from _table(path, "," if kind == ".csv" else "\t", column)
    elif kind == ".bed":
        if genome is None:
            raise UserError(f"{path} has intervals only; give the FASTA file that they are of with --genome")
        for interval in read_bed(place, genome.sizes):
            yield (
                f"{interval.name}:{interval.start}-{interval.end}",
                genome.text(interval.name, interval.start, interval.end),
            )
    else:
        raise UserError(f"{path} has no ending that says what it is; give a file that ends in {KINDS}")


def _objects(path: str | Path, column: str | None) -> Iterator[tuple[str, str]]:
    for number, line in read_lines(path, "file of JSON lines"):
        if not line.strip():
            continue
        try:
            row = json.loads(line)
        except (ValueError, RecursionError):
            raise UserError(f"line {number} of {path} is not JSON; write an object a line") from None
        row = {TEXTS[-1]: row} if isinstance(row, str) else row
        keys = [column] if column else [key for key in TEXTS if isinstance(row, dict) and key in row]
        if not isinstance(row, dict) or not keys or not isinstance(row.get(keys[0]), str):
            raise UserError(
                f'line {number} of {path} has no {column or "sequence"!r}; write {{"name": "...", "sequence": "..."}}'
            )
        yield str(next((row[key] for key in NAMES if key in row), number)), row[keys[0]]


def _table(path: str | Path, separator: str, column: str | None) -> Iterator[tuple[str, str]]:
    lines = read_lines(path, "table")
    table = csv.reader((line for _, line in lines), delimiter=separator)
    head = next(table, None)
    if not head:
        raise UserError(f"{path} is empty; its first line names the columns")
    wanted = column or next((name for name in TEXTS if name in head), None)
    if wanted is None or wanted not in head:
        asked = "" if column is None else f" {column!r}{nearest(column, head)}"
        raise UserError(f"{path} has no column{asked} of sequences; name one of {', '.join(head)} with --column")
    at, named = head.index(wanted), next((head.index(name) for name in NAMES if name in head), None)
    for number, row in enumerate(table, 2):
        if not row:
            continue
        if len(row) <= max(at, named or 0):
            raise UserError(f"line {number} of {path} has {len(row)} columns, fewer than its header names")
        yield str(number) if named is None else row[named], row[at]
