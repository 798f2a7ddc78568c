"""FASTA records as they are written: for models that read letters (amino acids) and not bases."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from ..data.readers import line_of, numbered_lines
from ..errors import UserError

LETTERS = frozenset("ABCDEFGHIJKLMNOPQRSTUVWXYZ")
ENDINGS = (".fa", ".fasta", ".faa", ".fna")


def read_records(path: str | Path) -> Iterator[tuple[str, str]]:
    """(name, sequence in capitals) of every record; the stop at the end of a protein, *, is left out."""
    seen: dict[str, int] = {}
    parts: list[str] = []
    name, stopped = "", False
    for number, line in numbered_lines(path):
        line = line.strip()
        if line.startswith(">"):
            if name:
                yield _record(path, name, parts, seen)
            name, parts, stopped = (line[1:].split() or [""])[0], [], False
            if not name:
                raise UserError(f"{line_of(path, number)} is a header without a name; write >NAME")
            if name in seen:
                raise UserError(f"record {name!r} is twice in {path}, in lines {seen[name]} and {number}; rename one")
            seen[name] = number
        elif line and not name:
            raise UserError(f"{path} is not a FASTA file: line {number} does not begin with '>'")
        elif line:
            letters = line.upper().removesuffix("*")
            wrong = next((letter for letter in letters if letter not in LETTERS), "*" if stopped else None)
            if wrong is not None:
                raise UserError(f"{line_of(path, number)} (record {name!r}) has {wrong!r}, which is not an amino acid")
            stopped = line.endswith("*")
            parts.append(letters)
    if not name:
        raise UserError(f"{path} is empty; give a FASTA file ({', '.join(ENDINGS)}) with at least one record")
    yield _record(path, name, parts, seen)


def _record(path: str | Path, name: str, parts: list[str], seen: dict[str, int]) -> tuple[str, str]:
    if not any(parts):
        raise UserError(f"record {name!r} in line {seen[name]} of {path} has no sequence; remove it")
    return name, "".join(parts)
