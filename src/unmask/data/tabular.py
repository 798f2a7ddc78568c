"""Rows of a table on disk, whatever its format: where a row is, in words, and the values of the wanted columns.

GLUE's own files are tab-separated, and their quotes are ordinary characters that nobody escaped: a csv reader would
swallow whole paragraphs. Tables with the Hub's columns may be .jsonl, .parquet or .csv (quotes as usual).
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from . import documents

if TYPE_CHECKING:
    from .tasks.definition import Columns

Row = tuple[str, list[Any]]  # where it is; the values in the order of Wanted.names


@dataclass
class Wanted:
    """The columns to read: the first of several choices that a table has, and some more."""

    choices: Sequence[Columns]
    labelled: bool  # whether there must be a label
    more: Sequence[str] = ()
    broken: list[str] | None = None  # where rows with too few columns are noted; None: they are refused
    long: list[str] = field(default_factory=list)  # rows with more columns than the header
    names: list[str] = field(default_factory=list)  # as chosen: texts, label, more

    def choose(self, there: Sequence[str], path: Path) -> list[str]:
        """The columns to take from those that are there."""
        for columns in self.choices:
            if not set(self._needed(columns)) - set(there):
                label = [columns.label] if columns.label in there else []
                self.names = [*columns.texts(), *label, *self.more]
                return self.names
        missing = [name for name in self._needed(self.choices[0]) if name not in there]
        listed = ", ".join(repr(name[:40]) for name in there[:20])
        one = f"column {missing[0]!r}" if len(missing) == 1 else "columns " + ", ".join(map(repr, missing))
        raise UserError(f"{path} has no {one}; its columns are {listed}: rename them, or give the official file")

    def _needed(self, columns: Columns) -> list[str]:
        return [*columns.texts(), *([columns.label] if self.labelled else []), *self.more]


def rows(path: Path, wanted: Wanted, header: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a file; its format is in its name, and everything that is no table is tab-separated text."""
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind == ".jsonl":
        return _jsonl(path, wanted)
    if kind == ".parquet":
        return _parquet(path, wanted)
    return _csv(path, wanted) if kind == ".csv" and not header else _tsv(path, wanted, header)


def _tsv(path: Path, wanted: Wanted, header: Sequence[str]) -> Iterator[Row]:
    places: list[int] = []
    width = len(header)
    for number, line in enumerate(documents.lines(documents.read_text(path)), 1):
        cells = line.removesuffix("\n").split("\t")
        if not places:
            named = not header or set(wanted.choices[0].texts()) <= set(cells)  # somebody gave it a header
            there = cells if named else header
            places = [list(there).index(name) for name in wanted.choose(there, path)]
            width = len(cells) if named else 0
            if named:
                continue
        if line == "\n":
            continue
        where = f"line {number} of {path}"
        if len(cells) <= max(places):
            _too_short(where, len(cells), max(places) + 1, wanted)
            continue
        if width and len(cells) > width:
            wanted.long.append(where)
        yield where, [cells[place] for place in places]


def _too_short(where: str, cells: int, needed: int, wanted: Wanted) -> None:
    if wanted.broken is None:
        columns = f"{cells} column{'s' * (cells != 1)}"
        raise UserError(f"{where} has {columns}, and {needed} are needed; mend the row, with tabs between its columns")
    wanted.broken.append(where)


def _csv(path: Path, wanted: Wanted) -> Iterator[Row]:
    reader = csv.reader(documents.lines(documents.read_text(path)), strict=True)
    places: list[int] = []
    width = 0
    try:
        for cells in reader:
            if not cells:
                continue
            if not places:
                places, width = [cells.index(name) for name in wanted.choose(cells, path)], len(cells)
                continue
            where = f"line {reader.line_num} of {path}"
            if len(cells) != width:
                raise UserError(f"{where} has {len(cells)} cells for {width} columns; put quotes around texts")
            yield where, [cells[place] for place in places]
    except csv.Error as error:
        raise UserError(f"line {reader.line_num} of {path} is damaged ({error}); write the file again") from None


def _jsonl(path: Path, wanted: Wanted) -> Iterator[Row]:
    names: list[str] = []
    for where, row in documents.jsonl_rows(path):
        if not isinstance(row, dict):
            raise UserError(f"{where} is no JSON object; write one with the columns {wanted.choices[0].texts()}")
        names = names or wanted.choose(list(row), path)
        if absent := [name for name in names if name not in row]:
            raise UserError(f"{where} has no column {absent[0]!r}, which the first row has; add it there")
        yield where, [row[name] for name in names]


def _parquet(path: Path, wanted: Wanted) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(path) as file:
            names = wanted.choose(file.schema_arrow.names, path)
            number = 0
            for batch in file.iter_batches(columns=names):
                for row in batch.to_pylist():
                    number += 1
                    yield f"row {number} of {path}", [row[name] for name in names]
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as a Parquet file: {str(error).splitlines()[0]}") from None
