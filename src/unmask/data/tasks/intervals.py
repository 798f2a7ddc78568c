"""Intervals of the Genomic Benchmarks, cut out of a genome: id, region, start, end, strand (from 0, end excluded).

A genome of another assembly silently gives other sequences. What can be detected is refused: a region that is
missing, an end beyond the end of its region, a chromosome of another length than in the assembly of the task.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from ...config import DataConfig
from ...errors import UserError
from .. import readers
from ..cache import cache_folder
from ..genome.bases import reverse_complement
from ..tabular import Row
from .definition import Task
from .genomics import REFERENCES, Reference
from .task_files import MissingTaskData

COLUMNS = ("region", "start", "end", "strand")
FASTA = (".fa", ".fasta", ".fna", ".fa.gz", ".fasta.gz", ".fna.gz")
LETTERS = np.array(list("???????ACGTN????"))  # by id


def cut(task: Task, files: Sequence[Path], folders: Sequence[Path], genome: str | None) -> tuple[list[Row], list[Path]]:
    """The sequences of all intervals with their class, and the genomes they are from."""
    rows: list[Row] = []
    opened: dict[Path, Any] = {}
    for path in files:
        label = path.name.partition(".")[0]
        reference = REFERENCES[task.references[label]]
        fasta = _fasta(reference, folders, genome, path)
        if fasta not in opened:
            opened[fasta] = _open(fasta)
        rows += [(where, [text, label]) for where, text in _sequences(path, opened[fasta], fasta, reference)]
    return rows, list(opened)


def _open(fasta: Path) -> Any:
    from ..genome.store import open_genome

    return open_genome(fasta, cache_folder(DataConfig()))


def _fasta(reference: Reference, folders: Sequence[Path], genome: str | None, intervals: Path) -> Path:
    """The file of a genome: the one that is set, the only one in the folder, or the one with a matching name."""
    if genome is not None:
        place = Path(genome).expanduser()
        if place.is_file():
            return place
        if not place.is_dir():
            raise UserError(f"task.genome={genome} does not exist; give the FASTA of {reference.title}, or its folder")
        folders = [place]
    for folder in dict.fromkeys(folders):
        fastas = sorted(p for p in folder.iterdir() if p.name.lower().endswith(FASTA)) if folder.is_dir() else []
        named = _named(reference, fastas)
        if len(named) == 1 or len(fastas) == 1:
            return (named or fastas)[0]
        if fastas:
            listed = ", ".join(p.name for p in fastas[:4])
            raise UserError(
                f"{folder} has the FASTA files {listed}, and it is not clear which is {reference.title}; "
                f"set task.genome to the right one, or put {reference.words[0]} into its name"
            )
    raise MissingTaskData(
        f"{intervals} holds intervals, but their genome is missing; put the FASTA of {reference.title} "
        "beside them, or set task.genome=FASTA"
    )


def _named(reference: Reference, files: Iterable[Path]) -> list[Path]:
    """The files with a word of the reference in their name; transcripts are not a genome."""
    cdna = reference is REFERENCES["human-cdna"]
    usable = [p for p in files if ("cdna" in p.name.lower()) == cdna]
    return next((hits for word in reference.words if (hits := [p for p in usable if word in p.name.lower()])), [])


def _sequences(path: Path, genome: Any, fasta: Path, reference: Reference) -> list[tuple[str, str]]:
    names = _names(genome.sizes)
    checked: set[str] = set()
    sequences = []
    for where, region, start, end, minus in _intervals(path):
        name = names.get(region)
        if name is None:
            raise UserError(
                f"{where} is on {region}, which {fasta} does not have; the intervals refer to {reference.title}: "
                "set task.genome to its FASTA"
            )
        size = genome.sizes[name]
        if name not in checked:
            _check_size(name, size, fasta, reference)
            checked.add(name)
        if end > size:
            raise UserError(
                f"{where} ends at {end:,}, and {region} of {fasta} has {size:,} bases; the intervals refer to "
                f"{reference.title}: set task.genome to its FASTA"
            )
        tokens = genome.fetch(name, start, end)
        sequences.append((where, "".join(LETTERS[reverse_complement(tokens) if minus else tokens])))
    return sequences


def _names(sizes: Iterable[str]) -> dict[str, str]:
    """What a region may be called, and its name in the genome: chr1 and 1, chrM and MT, ENST1 and ENST1.2."""
    names: dict[str, str] = {}
    for name in sizes:
        bare = name.removeprefix("chr")
        others = {"M": ("MT", "chrMT"), "MT": ("M", "chrM")}.get(bare, ())
        for other in (bare, f"chr{bare}", name.partition(".")[0], *others):
            names.setdefault(other, name)
    return names | {name: name for name in sizes}


def _check_size(name: str, size: int, fasta: Path, reference: Reference) -> None:
    known = reference.sizes.get(name.removeprefix("chr"))
    if known is not None and known != size:
        raise UserError(
            f"{name} of {fasta} has {size:,} bases, but {known:,} in {reference.title}, to which the intervals refer; "
            "another assembly gives wrong sequences: set task.genome to the right one"
        )


def _intervals(path: Path) -> Iterable[tuple[str, str, int, int, bool]]:
    """(where, region, start, end, whether it is on the other strand) of every line."""
    rows = readers.csv_rows(path)
    _, header = next(rows, ("", []))
    if missing := [name for name in COLUMNS if name not in header]:
        raise UserError(f"{path} has no column {missing[0]!r}; a file of intervals has id,{','.join(COLUMNS)}")
    places = [header.index(name) for name in COLUMNS]
    for where, cells in rows:
        if len(cells) != len(header):
            raise UserError(f"{where} has {len(cells)} cells for {len(header)} columns; restore the file")
        region, first, last, strand = (cells[place].strip() for place in places)
        if not (first.isdigit() and last.isdigit() and int(first) < int(last)):
            raise UserError(
                f"{where} has no interval: start {first!r}, end {last!r}; give whole numbers, start below end"
            )
        if strand not in ("+", "-", "", "."):
            raise UserError(f"{where} has the strand {strand!r}; write + or -")
        yield where, region, int(first), int(last), strand == "-"
