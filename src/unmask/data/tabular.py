"""Rows of a table on disk, whatever its format: where a row is, in words, and the values of the wanted columns.

The files of GLUE are tab-separated, and their quotes are ordinary, unescaped characters: a csv reader would
swallow whole paragraphs. Tables with the Hub's columns may be .jsonl, .parquet or .csv (with ordinary quoting).
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ..errors import UserError
from . import readers

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

    def choose(self, header: Sequence[str], path: Path) -> list[str]:
        """The columns to read, of those in the header."""
        for columns in self.choices:
            if not set(self._needed(columns)) - set(header):
                label = [columns.label] if columns.label in header else []
                self.names = [*columns.texts(), *label, *self.more]
                return self.names
        missing = [name for name in self._needed(self.choices[0]) if name not in header]
        listed = ", ".join(repr(name[:40]) for name in header[:20])
        absent = f"column {missing[0]!r}" if len(missing) == 1 else "columns " + ", ".join(map(repr, missing))
        raise UserError(f"{path} has no {absent}; its columns are {listed}: rename them, or give the official file")

    def _needed(self, columns: Columns) -> list[str]:
        return [*columns.texts(), *([columns.label] if self.labelled else []), *self.more]


def rows(path: Path, wanted: Wanted, header: Sequence[str] = ()) -> Iterator[Row]:
    """The rows of a file; its format is in its name, and everything else is tab-separated text."""
    kind = Path(path.name.lower().removesuffix(".gz")).suffix
    if kind == ".jsonl":
        return _jsonl(path, wanted)
    if kind == ".parquet":
        return _parquet(path, wanted)
    return _csv(path, wanted) if kind == ".csv" and not header else _tsv(path, wanted, header)


def _tsv(path: Path, wanted: Wanted, header: Sequence[str]) -> Iterator[Row]:
    places: list[int] = []
    width = len(header)
    for number, line in readers.numbered_lines(path):
        cells = line.split("\t")
        if not places:
            named = not header or set(wanted.choices[0].texts()) <= set(cells)  # a header was added to it
            columns = cells if named else header
            places = [list(columns).index(name) for name in wanted.choose(columns, path)]
            width = len(cells) if named else 0
            if named:
                continue
        if not line:
            continue
        where = readers.line_of(path, number)
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
    places: list[int] = []
    width = 0
    for where, cells in readers.csv_rows(path):
        if not places:
            places, width = [cells.index(name) for name in wanted.choose(cells, path)], len(cells)
        elif len(cells) != width:
            raise UserError(f"{where} has {len(cells)} cells for {width} columns; put quotes around texts")
        else:
            yield where, [cells[place] for place in places]


def _jsonl(path: Path, wanted: Wanted) -> Iterator[Row]:
    names: list[str] = []
    for where, row in readers.jsonl_rows(path):
        if not isinstance(row, dict):
            raise UserError(f"{where} is not a JSON object; write one with the columns {wanted.choices[0].texts()}")
        names = names or wanted.choose(list(row), path)
        if absent := [name for name in names if name not in row]:
            raise UserError(f"{where} has no column {absent[0]!r}, which the first row has; add it there")
        yield where, [row[name] for name in names]


def _parquet(path: Path, wanted: Wanted) -> Iterator[Row]:
    for where, row in readers.parquet_rows(path, lambda names: wanted.choose(names, path)):
        yield where, [row[name] for name in wanted.names]
