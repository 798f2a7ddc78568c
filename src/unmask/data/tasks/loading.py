"""The examples of a task: a split as it is distributed, or all that a run trains and is judged on.

Genomic Benchmarks have no dev split. A tenth of their training split is drawn for it, by the seed of the run and with
our generator (the paper's five splits cannot be recovered), so that five seeds are five splits: what the paper
calls 5-fold cross-validation. Where only a part of a set is available, `task.split=random` makes splits that are not
the official ones.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...config import TaskConfig
from ...errors import UserError, nearest
from ...process.keys import Keys
from ..tabular import Row, Wanted
from . import sequences, task_files
from .definition import Task
from .task_files import OFFICIAL, Loaded, MissingTaskData, data_root, examples_of, facts_of, from_hub, kind_of

HELD_OUT = 0.1  # of the training split, for validation (appendix D.7)
TESTED = 0.2  # of all sequences, where the splits are not the official ones: as most of the official ones have it


def load(task: Task, split: str, local: str | None = None, genome: str | None = None) -> Loaded:
    """The examples of a split, and the facts that a reported number should carry: source, rows, classes, sha256, rule.

    `genome` is the FASTA of tasks that come as intervals.
    """
    if split not in task.splits:
        raise UserError(
            f"{task.name} has no split {split!r}{nearest(split, task.splits)}; it has {', '.join(task.splits)}"
        )
    return _sequences(task, split, local, genome) if task.sequences else task_files.load(task, split, local)


def splits(task: Task, spec: TaskConfig, seed: int) -> dict[str, Loaded]:
    """The training split, the dev splits, and the one that is tested once (if any), of a run with this seed."""
    loaded: dict[str, Loaded] = {}
    if spec.split == "random":
        loaded = _random(task, spec)
    else:
        wanted = ("train", *task.evaluations, *([task.tested] if task.tested else []))
        loaded = {split: load(task, split, spec.local, spec.genome) for split in wanted if split in task.splits}
    for dev in task.evaluations:
        if dev not in loaded:
            loaded["train"], loaded[dev] = _held_out(task, loaded["train"], dev, seed)
    return loaded


def draw(total: int, share: float, keys: Keys, purpose: str) -> tuple[np.ndarray, np.ndarray]:
    """Two sets of indices below `total`, both in order: the rest, and a share that is drawn (at least one each)."""
    n = min(max(1, round(share * total)), total - 1)
    order = keys.permute(purpose, np.arange(total), total)
    return np.sort(order[n:]), np.sort(order[:n])


def _held_out(task: Task, train: Loaded, dev: str, seed: int) -> tuple[Loaded, Loaded]:
    """Training without a tenth of its examples, and these."""
    total = len(train.examples)
    if total < 2:
        raise UserError(f"the training split of {task.name} has {total} example; two are needed, one for validation")
    kept, drawn = draw(total, HELD_OUT, Keys(seed), "task/validation")
    rule = f"{len(drawn):,} of the {total:,} training examples, drawn by seed {seed}"
    rest = f"{train.facts['rule']}, without {rule} for validation"
    return _some(task, train, kept, "train", rest), _some(task, train, drawn, dev, rule)


def _random(task: Task, spec: TaskConfig) -> dict[str, Loaded]:
    """Training and test from all that is available: the same for every seed, as the official ones are."""
    if not task.sequences:
        raise UserError(f"task.split=random is for tasks on sequences, and {task.name} is not one; leave it out")
    whole = _load_all(task, spec.local, spec.genome)
    total = len(whole.examples)
    if total < 3:
        raise UserError(f"{task.name} has {total} examples here, too few to split; give at least 3")
    kept, drawn = draw(total, TESTED, Keys(0), "task/test")
    rule = f"not official: {{}} of the {total:,} sequences at hand, drawn by task.split=random"
    assert task.tested is not None, "sequences are tested"
    return {
        "train": _some(task, whole, kept, "train", rule.format(f"{len(kept):,}")),
        task.tested: _some(task, whole, drawn, task.tested, rule.format(f"{len(drawn):,}")),
    }


def _some(task: Task, whole: Loaded, chosen: Sequence[int] | np.ndarray, split: str, rule: str) -> Loaded:
    """Some of the examples, as a separate split."""
    examples = [replace(whole.examples[int(i)], index=place) for place, i in enumerate(chosen)]
    facts = facts_of(task, split, examples, whole.facts["source"], rule, {})
    return Loaded(examples, {**whole.facts, **facts})


# ---- sequences


def _sequences(task: Task, split: str, local: str | None, genome: str | None) -> Loaded:
    """A split from files, or from the Hub where no folder is named that could have them."""
    for place in _places(task, local):
        part = sequences.find(task, split, place) or sequences.find_intervals(task, split, place, genome)
        if part is not None:
            sources = [str(path) for path in part.files]
            examples, _ = examples_of(task, split, _cleaned(part.rows), _wanted(), sources[0])
            facts = facts_of(task, split, examples, sources, OFFICIAL, {})
            return Loaded(examples, facts | ({"read": part.remark} if part.remark else {}))
    if local is not None:
        raise MissingTaskData(_missing(task, split, local))
    loaded = from_hub(task, split)
    named = f"of {task.hub.name}"
    clean = [replace(x, first=sequences.clean(x.first, f"row {x.index + 1} {named}")) for x in loaded.examples]
    return Loaded(clean, facts_of(task, split, clean, loaded.facts["source"], OFFICIAL, {}))


def _load_all(task: Task, local: str | None, genome: str | None) -> Loaded:
    """Every available sequence of a task, whatever its split."""
    parts: list[sequences.SequenceFiles] = []
    for place in _places(task, local):
        candidates = [sequences.find(task, split, place) for split in (*task.splits, sequences.WHOLE)]
        if not any(candidates):  # intervals need a genome: only where nothing else is there
            candidates = [sequences.find_intervals(task, split, place, genome) for split in task.splits]
        parts = [part for part in candidates if part is not None]
        if parts:
            break
    else:
        raise MissingTaskData(_missing(task, "train", local))
    sources = list(dict.fromkeys(str(path) for part in parts for path in part.files))
    table_rows = [row for part in parts for row in part.rows]
    examples, _ = examples_of(task, "train", _cleaned(table_rows), _wanted(), ", ".join(sources))
    return Loaded(examples, facts_of(task, "train", examples, sources, "all sequences at hand", {}))


def _places(task: Task, local: str | None) -> list[Path]:
    """The folders below which the files of a task may be."""
    if local is not None:
        root = Path(local).expanduser()
        if not root.is_dir():
            what = "is a file" if root.exists() else "does not exist"
            raise UserError(f"task.local={local} {what}; give the folder of {task.title}, or of all tasks")
        return [root]
    data = data_root()
    suite = task.name.partition("/")[0]
    return [] if data is None else [data / name for name in sequences.SUITES[suite] if (data / name).is_dir()]


def _missing(task: Task, split: str, local: str | None) -> str:
    folder = task.folders[0]
    ways = f"{folder}/{split}/CLASS/*.txt, {folder}/{split}.csv or {folder}.{split}.tsv"
    if task.references:
        ways += f", or {folder}/{split}/CLASS.csv.gz beside a genome"
    where = local or "the folder UNMASK_DATA"
    return (
        f"{where} has nothing of the split {split!r} of {task.name}; put {ways} there, "
        "or set task.split=random to cut what is there into splits of your own (not the official ones)"
    )


def _cleaned(table_rows: Iterable[Row]) -> Iterator[Row]:
    """Rows with sequences in upper case."""
    for where, values in table_rows:
        if not isinstance(values[0], str):
            raise UserError(f"{where} has {kind_of(values[0])} for a sequence; every sequence must be a string")
        yield where, [sequences.clean(values[0], where), values[1]]


def _wanted() -> Wanted:
    columns = sequences.SEQ
    return Wanted((columns,), labelled=True, names=[*columns.texts(), columns.label])
