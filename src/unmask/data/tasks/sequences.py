"""Sequences of bases with labels, as they are distributed (appendix D.7): where they are, and how they are read.

Three layouts, looked for in this order, in the folder of a task and in the folder of all of them:
    SPLIT/CLASS/*.txt                     one sequence per file: what the package `genomic_benchmarks` downloads
    SPLIT.csv, NAME.SPLIT.tsv, NAME.tsv   tables (.csv, .tsv, .jsonl, .parquet, .gz) of sequence and label; a table of
                                          all splits has a column `split`
    SPLIT/CLASS.csv.gz                    intervals of a genome, whose FASTA lies in the folder, or above, or is set
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from ...errors import UserError
from .. import readers
from ..genome.bases import AMBIGUOUS
from ..tabular import Row, Wanted, rows
from .definition import Task
from .genomics import SEQ, SEQUENCE
from .intervals import cut

WORDS = {"train": ("train",), "dev": ("dev", "valid", "validation", "val"), "test": ("test",)}
BELOW = ("", "sequences", "intervals")  # where a folder of all tasks keeps them
SUITES = {"genomics": ("genomics", "genomic_benchmarks"), "gue": ("gue", "GUE")}  # below $UNMASK_DATA
KIND = r"\.(csv|tsv|jsonl|parquet)(\.gz)?"
WHOLE = "all"  # a table without splits

_READ_AS = str.maketrans({"U": "T", **dict.fromkeys(AMBIGUOUS, "N")})
_STRANGE = re.compile(r"[^ACGTN]")


@dataclass(frozen=True)
class SequenceFiles:
    """The rows of a split (sequence, label), the files they are from, and a remark for protocols."""

    rows: list[Row]
    files: list[Path]
    remark: str = ""


def clean(text: str, where: str) -> str:
    """A sequence in the letters A, C, G, T and N: lower case is upper case, U is T, other codes of the IUPAC are N."""
    bases = "".join(text.split()).upper().translate(_READ_AS)
    if not bases:
        raise UserError(f"{where} has no bases; leave it out")
    if strange := _STRANGE.search(bases):
        raise UserError(
            f"{where} has the letter {strange[0]!r} at base {strange.start() + 1}, which is not a base; "
            "give sequences of A, C, G, T and N"
        )
    return bases


def roots(task: Task, root: Path) -> list[Path]:
    """The folders that may hold a task: those with its name before those of all tasks."""
    bases = [root / below for below in BELOW if (root / below).is_dir()]
    task_folders = [base / name for base in bases for name in task.folders if (base / name).is_dir()]
    return list(dict.fromkeys([*task_folders, *bases]))


def find(task: Task, split: str, root: Path) -> SequenceFiles | None:
    """The sequences of a split in or below a folder; None where there are none.

    The split `WHOLE` is a table of the task without splits.
    """
    for folder in roots(task, root):
        for layout in (_from_folders, _from_tables):
            if (files := layout(task, split, folder, root)) is not None:
                return files
    return None


def find_intervals(task: Task, split: str, root: Path, genome: str | None = None) -> SequenceFiles | None:
    """The same, cut at the intervals of a split; None where there are no intervals."""
    for folder in roots(task, root):
        if (files := _from_intervals(task, split, folder, root, genome)) is not None:
            return files
    return None


# ---- one sequence per file


def _from_folders(task: Task, split: str, folder: Path, root: Path) -> SequenceFiles | None:
    place = _split_folder(folder, split)
    if place is None:
        return None
    classes = sorted(p for p in place.iterdir() if p.is_dir() and not p.name.startswith("."))
    if not classes:
        return None
    _check_classes(task, [p.name for p in classes], place)
    sequences: list[Row] = []
    for class_folder in classes:
        files = sorted(class_folder.glob("*.txt"))
        if not files:
            raise UserError(
                f"{class_folder} has no .txt files; it should hold one sequence per file, as the package writes them"
            )
        sequences += [(str(path), ["".join(readers.read_text(path)), class_folder.name]) for path in files]
    return SequenceFiles(sequences, [place], "one sequence a file")


def _split_folder(folder: Path, split: str) -> Path | None:
    return next((folder / word for word in WORDS.get(split, ()) if (folder / word).is_dir()), None)


def _check_classes(task: Task, present: Sequence[str], place: Path) -> None:
    for kind, names in (
        ("no class", set(task.labels) - set(present)),
        ("an unknown class", set(present) - set(task.labels)),
    ):
        if names:
            raise UserError(
                f"{place} has {kind} {min(names)!r}; {task.name} has the classes {', '.join(task.labels)}: "
                "give the folder as it was downloaded"
            )


# ---- tables


def _from_tables(task: Task, split: str, folder: Path, root: Path) -> SequenceFiles | None:
    is_task_folder = folder.name in task.folders or folder.parent.name + "/" + folder.name in task.folders
    short = task.name.rpartition("/")[2]
    names = "|".join(re.escape(name) for name in dict.fromkeys([*task.folders, short]))
    files = sorted(p for p in folder.iterdir() if p.is_file())
    for word in WORDS.get(split, ()):
        part = rf"(?:{names})\.{word}(?:[._-][\w-]*)?"
        if is_task_folder or folder == root:  # as the Hub cuts files: train-00000-of-00002
            part += rf"|{word}(?:-\d+-of-\d+[\w-]*)?"
        if tables := [p for p in files if re.fullmatch(rf"(?:{part}){KIND}", p.name, re.IGNORECASE)]:
            return SequenceFiles([row for path in tables for row in _table(path)], tables)
    for path in (p for p in files if re.fullmatch(rf"(?:{names}){KIND}", p.name, re.IGNORECASE)):
        if (of_split := _part(path, split)) is not None:
            return SequenceFiles(of_split, [path])
    return None


def _table(path: Path, more: Sequence[str] = ()) -> Iterator[Row]:
    return rows(path, Wanted((SEQ, SEQUENCE), labelled=True, more=more))


def _part(path: Path, split: str) -> list[Row] | None:
    """The rows of a split in a table of all of them; None where there are none, or where the table has no splits."""
    splits = "split" in _header(path)
    if not splits:
        return list(_table(path)) if split == WHOLE else None
    named = [(where, values) for where, values in _table(path, ("split",))]
    known = {word for words in WORDS.values() for word in words}
    for where, values in named:
        if values[-1] not in known:
            raise UserError(f"{where} has the split {str(values[-1])[:40]!r}; write train, dev or test there")
    return [(where, values[:-1]) for where, values in named if values[-1] in WORDS.get(split, ())] or None


def _header(path: Path) -> list[str]:
    kind = path.name.lower().removesuffix(".gz").rpartition(".")[2]
    if kind not in ("csv", "tsv"):
        return []
    first = next(readers.read_lines(path), "")
    return [cell.strip('"') for cell in first.strip().split("\t" if kind == "tsv" else ",")]


# ---- intervals


def _from_intervals(task: Task, split: str, folder: Path, root: Path, genome: str | None) -> SequenceFiles | None:
    place = _split_folder(folder, split)
    if place is None or not task.references:
        return None
    files = sorted(p for p in place.iterdir() if re.fullmatch(r".+\.csv(\.gz)?", p.name))
    if not files:
        return None
    _check_classes(task, [p.name.partition(".")[0] for p in files], place)
    sequences, used = cut(task, files, [folder, place, *folder.parents[:2], root], genome)
    return SequenceFiles(
        sequences, [*files, *used], f"cut at the official intervals from {', '.join(p.name for p in used)}"
    )
