"""From a record to its examples: files in a folder, else $UNMASK_DATA, else the Hub; and the facts for protocols.

`local` is the folder of one task, or the folder of all of them. The content of a split has one sha256 whatever files
it was read from: it is made of texts and labels.
"""

from __future__ import annotations

import hashlib
import json
import logging
import math
import os
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...errors import UserError
from ..hub_datasets import load_place
from ..tabular import Row, Wanted, rows
from .definition import Carve, Columns, Example, Form, Task

log = logging.getLogger(__name__)

WORDS = {"train": ("train",), "dev": ("dev", "validation", "valid", "val"), "test": ("test",)}
MOST_BROKEN = 0.01  # of the rows of a file; more is no accident
OFFICIAL = "the official split"


class MissingTaskData(UserError):
    """The files of a task are not on this machine and cannot be downloaded. Unreadable files are another error."""


@dataclass(frozen=True)
class Loaded:
    """A split: its examples, and where they come from."""

    examples: list[Example]
    facts: dict[str, Any]


@dataclass(frozen=True)
class _Place:
    """The files of a split, and how they are read; `carve` where dev and train come out of one file."""

    folder: Path
    files: list[Path]
    columns: tuple[Columns, ...]
    header: tuple[str, ...] = ()
    also: Path | None = None
    carve: Carve | None = None


def load(task: Task, split: str, local: str | None = None) -> Loaded:
    """A split of texts."""
    folder = _folder(task, local)
    return from_hub(task, split) if folder is None else _from_disk(task, split, folder)


# ---- where


def _folder(task: Task, local: str | None) -> Path | None:
    """The folder of the task, None where it should come from the Hub."""
    if local is not None:
        root = Path(local).expanduser()
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            raise UserError(f"task.local={local} {what}; give the folder of {task.title}, or of all tasks")
        return _below(task, root) or root
    data = data_root()
    return None if data is None else _below(task, data / task.name.partition("/")[0])


def data_root() -> Path | None:
    """$UNMASK_DATA."""
    data = os.environ.get("UNMASK_DATA")
    if not data:
        return None
    root = Path(data).expanduser()
    if not root.is_dir():
        raise UserError(f"UNMASK_DATA={data} is not a folder; set it to one that holds data sets, or unset it")
    return root


def _below(task: Task, root: Path) -> Path | None:
    if not root.is_dir():
        return None
    known = [name.lower() for name in task.folders or (_folder_name(task),)]
    folders = [p for p in sorted(root.iterdir()) if p.is_dir() and p.name.lower() in known]
    return min(folders, key=lambda p: known.index(p.name.lower()), default=None)


def _folder_name(task: Task) -> str:
    return task.folders[0] if task.folders else task.name.rpartition("/")[2]


def _place(task: Task, split: str, folder: Path) -> _Place:
    """The files of a split: official ones before tables, tables as the Hub has them."""
    for form in task.forms:
        for name in form.files.get(split, ()):
            if (folder / name).is_file():
                return _official(task, split, folder, folder / name, form)
    for kind in ("parquet", "jsonl", "csv"):
        for word in _words(task, split):
            if tables := sorted(p for p in folder.glob(f"{word}*.{kind}") if _is_table(p, word)):
                return _Place(folder, tables, (task.columns,))
    names = [name for form in task.forms for name in form.files.get(split, ())]
    listed = ", ".join(dict.fromkeys(names)) or f"{split}.csv"
    below = (
        ""
        if folder.name.lower() in map(str.lower, (_folder_name(task), *task.folders))
        else f", and no folder {_folder_name(task)}"
    )
    raise MissingTaskData(
        f"{folder} has no file for the split {split!r} of {task.title}{below}; put {listed} there (or a .parquet, "
        f".jsonl or .csv named {task.hub_splits.get(split, split)}), or unset task.local and UNMASK_DATA for the Hub"
    )


def _official(task: Task, split: str, folder: Path, path: Path, form: Form) -> _Place:
    columns = tuple(dict.fromkeys([form.columns, task.columns]))
    also = folder / form.also[split] if split in form.also and (folder / form.also[split]).is_file() else None
    carve = form.carve if split in ("train", "dev") else None
    return _Place(folder, [path], columns, form.header, also, carve)


def _words(task: Task, split: str) -> list[str]:
    """What a table of a split is called: as official files, as the Hub has it, and by common words."""
    official = [name for form in task.forms if form.carve is None for name in form.files.get(split, ())]
    hub = task.hub_splits.get(split, split)
    words = WORDS.get(split, ())
    return list(dict.fromkeys([*(words if hub in words else ()), *(Path(name).stem for name in official), split, hub]))


def _is_table(path: Path, word: str) -> bool:
    """Whether a name is WORD, or a part of it as the Hub cuts files: WORD-00000-of-00002."""
    rest = path.stem.removeprefix(word)
    return rest == "" or all(part.isdigit() or part == "of" for part in rest.removeprefix("-").split("-"))


# ---- what


def _from_disk(task: Task, split: str, folder: Path) -> Loaded:
    place = _place(task, split, folder)
    wanted = Wanted(
        place.columns,
        labelled=not split.startswith("test"),
        more=place.carve.columns if place.carve else (),
        broken=[] if task.broken_rows else None,
    )
    table_rows = [row for path in place.files for row in rows(path, wanted, place.header)]
    files, rule = list(place.files), OFFICIAL
    if place.also is not None:
        more = list(rows(place.also, wanted, place.header))
        if len(table_rows) + len(more) == task.rows.get(split):
            files, table_rows = [*files, place.also], [*table_rows, *more]
            rule = f"{OFFICIAL}: {' and '.join(path.name for path in files)} together"
    if place.carve is not None:
        table_rows, rule = _carved(place.carve, place.folder, split, table_rows, place.files[0].name)
    listed = ", ".join(map(str, files))
    _check_broken(wanted, len(table_rows), listed)
    examples, left_out = examples_of(task, split, table_rows, wanted, listed)
    skipped = {"too few columns": len(wanted.broken or []), "without a label": left_out}
    return Loaded(examples, facts_of(task, split, examples, [str(path) for path in files], rule, skipped))


def _carved(carve: Carve, folder: Path, split: str, table_rows: list[Row], file: str) -> tuple[list[Row], str]:
    """Train or dev out of one file: by the official list of ids, else by position."""
    if listed := next((folder / name for name in carve.ids if (folder / name).is_file()), None):
        wanted = Wanted((Columns(carve.columns[0], carve.columns[1], ""),), labelled=False)
        ids = {tuple(values[:2]) for _, values in rows(listed, wanted, carve.columns)}
        dev = [tuple(values[-2:]) in ids for _, values in table_rows]
        rule = f"{OFFICIAL}: dev is the rows of {file} that {listed.name} lists, train the others"
    else:
        dev = [place % carve.every == carve.every - 1 for place in range(len(table_rows))]
        rule = (
            f"not the official split, whose list of ids ({carve.ids[0]}) is missing: dev is every {carve.every}th row "
            f"of {file} ({carve.every}, {2 * carve.every}, ...), train the others"
        )
    return [row for row, held in zip(table_rows, dev, strict=True) if held == (split == "dev")], rule


def _check_broken(wanted: Wanted, good: int, files: str) -> None:
    """The official file of QQP has three such rows; many of them mean another file."""
    for what, places in (("too few", wanted.broken or []), ("too many", wanted.long)):
        if places and (not good or len(places) > max(10, MOST_BROKEN * good)):
            raise UserError(
                f"{len(places)} rows of {files} have {what} columns, the first is {places[0]}; mend the file"
            )
        if places:
            done = "left out" if what == "too few" else "read without the rest"
            log.warning("%d rows with %s columns were %s; the first is %s", len(places), what, done, places[0])


def examples_of(
    task: Task, split: str, table_rows: Iterable[Row], wanted: Wanted, source: str
) -> tuple[list[Example], int]:
    """Checked examples of rows, and how many had no label."""
    texts = 1 + task.pairs
    has_label = len(wanted.names) - len(wanted.more) > texts
    hidden = split.startswith("test") and split != task.tested
    examples: list[Example] = []
    left_out = 0
    for where, values in table_rows:
        label = values[texts] if has_label else None
        if isinstance(label, str) and label in task.unlabelled and not hidden:
            left_out += 1
            continue
        for name, value in zip(wanted.names[:texts], values[:texts], strict=True):
            if not isinstance(value, str):
                raise UserError(f"{where} has {kind_of(value)} in column {name!r}; every text must be a string")
        known = _label(task, label, hidden, where, wanted.names[texts]) if has_label else None
        examples.append(Example(values[0], values[1] if task.pairs else None, known, len(examples)))
    if not examples:
        raise UserError(f"{source} has no rows for the split {split!r} of {task.title}; download it again")
    for place, name in enumerate(wanted.names[:texts]):
        if not any((example.first, example.second)[place] for example in examples):
            raise UserError(f"column {name!r} of {source} is empty in every row; give the column with the texts")
    return examples, left_out


def kind_of(value: Any) -> str:
    """In words, the kind of a value that should be a text."""
    return "nothing" if value is None else type(value).__name__


def _label(task: Task, value: Any, hidden: bool, where: str, column: str) -> int | float | None:
    """A label as a number: an id, or its name, or a score; None where it is hidden (the Hub writes -1)."""
    text = value.strip() if isinstance(value, str) else value
    if text is None or text == "":
        if hidden:
            return None
        raise UserError(f"{where} has no label in column {column!r}; {task.title} allows {task.allowed}")
    if isinstance(text, str) and text in task.labels:
        return task.labels.index(text)
    try:
        score = float(text)
    except (TypeError, ValueError):
        score = math.nan
    if hidden and score == -1:
        return None
    if task.span is not None and task.span[0] <= score <= task.span[1]:
        return float(f"{score:.6g}")  # the Hub has float32: 3.7999999523 is 3.8
    if task.labels and score in range(len(task.labels)):
        return task.labels.index((task.numbered or task.labels)[int(score)])
    raise UserError(
        f"{where} has the label {str(text)[:40]!r} in column {column!r}; {task.title} allows {task.allowed}"
    )


def from_hub(task: Task, split: str) -> Loaded:
    """A split from the Hugging Face Hub."""
    suite, hub_split = task.name.partition("/")[0], task.hub_splits.get(split, split)
    ways = (
        f"set task.local=PATH to a folder with its files, or UNMASK_DATA=ROOT with ROOT/{suite}/{_folder_name(task)}/, "
        "or connect to the network"
    )
    try:
        loaded = load_place(task.hub, f"task {task.name!r}", f"task {task.name!r} is not on this machine", ways)
    except UserError as error:
        raise MissingTaskData(str(error)) from None
    place = f"{task.hub.name} ({f'{task.hub.subset}, ' if task.hub.subset else ''}{hub_split})"
    if hub_split not in loaded:
        raise UserError(f"{place} is not on the Hugging Face Hub, which has {', '.join(loaded)}; set task.local=PATH")
    table = loaded[hub_split]
    wanted = Wanted((task.columns,), labelled=not split.startswith("test"))
    wanted.choose(table.column_names, Path(place))
    examples, left_out = examples_of(task, split, _hub_rows(table, wanted, task, place), wanted, place)
    facts = facts_of(task, split, examples, [f"Hugging Face Hub: {place}"], OFFICIAL, {"without a label": left_out})
    return Loaded(examples, facts)


def _hub_rows(table: Any, wanted: Wanted, task: Task, place: str) -> Iterator[Row]:
    """Rows of a split of the Hub; classes by their names, whatever ids they have there."""
    names = getattr(table.features.get(task.columns.label), "names", None)
    number = 0
    for batch in table.select_columns(wanted.names).iter(batch_size=1000):
        for values in zip(*(batch[name] for name in wanted.names), strict=True):
            number += 1
            row = list(values)
            if names is not None and isinstance(row[-1], int) and 0 <= row[-1] < len(names):
                row[-1] = names[row[-1]]
            yield f"row {number} of {place}", row


def facts_of(
    task: Task, split: str, examples: list[Example], source: list[str], rule: str, skipped: dict[str, int]
) -> dict[str, Any]:
    """The facts for protocols."""
    official = task.rows.get(split)
    if rule == OFFICIAL and official is not None and len(examples) != official:
        rule = f"the rows that are there: {len(examples):,}, where the official split has {official:,}"
    facts: dict[str, Any] = {
        "task": task.name,
        "version": task.version,
        "split": split,
        "source": source,
        "rule": rule,
        "rows": len(examples),
        "official_rows": official,
        "sha256": fingerprint(examples),
    }
    if task.labels and all(example.label is not None for example in examples):
        counts = Counter(example.label for example in examples)
        facts["classes"] = {name: counts[i] for i, name in enumerate(task.labels)}
    if left := {why: n for why, n in skipped.items() if n}:
        facts["left_out"] = left
    return facts


def fingerprint(examples: Iterable[Example]) -> str:
    """SHA-256 of texts and labels in their order."""
    digest = hashlib.sha256()
    for example in examples:
        digest.update(json.dumps([example.first, example.second, example.label]).encode() + b"\n")
    return digest.hexdigest()
