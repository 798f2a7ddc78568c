"""Classifiers on the models of a bench, for GLUE and Genomic Benchmarks: one a seed, and kept as scores are.

A classifier needs the weights of its model, a table only how good it is. So what is kept of it is enough to go on from,
where a classifier of each model takes hours and the machines that trained them are gone.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import TaskConfig
from ..data import tasks
from ..training.adapt import classify, task_config
from ..training.finetune import TaskResult, predictions_file
from ..training.sweep import sweep
from ..types import UserError
from .bench import Bench
from .scored import Classified
from .specs import Changes, changed

# Rows that go through a network at once on a CPU: those of a step are sorted by length, and fewer need less padding.
TOGETHER = 8


def classifiers(
    bench: Bench, name: str, task: str, changes: Changes, seeds: Sequence[int], local: str | None = None
) -> list[Classified]:
    """A task, learned once a seed from a model of the bench with these settings; what is kept is not learned again."""
    return [_classifier(bench, name, task, changes, seed, local) for seed in seeds]


def swept_classifiers(
    bench: Bench, name: str, task: str, changes: Changes, seeds: Sequence[int], local: str | None
) -> list[Classified]:
    """The same with the learning rate and batch size that serve a model best on the validation splits."""
    lm = bench.lm(name)
    config = changed(task_config(lm, bench.origin(name), task, local), changes)
    best = sweep(lm, config, _folder(bench, name, task), seeds, quiet=bench.quiet).best
    return [_read(result, task) for result in finished(best.runs if best else [], task)]


def _classifier(bench: Bench, name: str, task: str, changes: Changes, seed: int, local: str | None) -> Classified:
    spec = TaskConfig(name=task, local=local, **_split(changes))
    of = {
        "task": task,
        "version": tasks.task(task).version,
        "examples": {key: split.facts["sha256"] for key, split in tasks.splits(tasks.task(task), spec, seed).items()},
        "changes": changes,
        "seed": seed,
    }
    settings = bench.settings(name)
    kept = bench.records.classifier(name, task, settings, of)
    if kept is not None:
        return kept
    if not bench.quiet:
        print(f"training a classifier: {task} from {name}, seed {seed}", file=sys.stderr, flush=True)
    lm = bench.lm(name)
    more = {"train": {"keep_last": 1, **({"micro_batch_size": TOGETHER} if bench.scale.trains else {})}}
    config = changed(task_config(lm, bench.origin(name), task, local), changes, more)
    out = _folder(bench, name, task) / f"seed-{seed}"
    classified = _read(finished(classify(lm, config, out, [seed], quiet=bench.quiet), task)[0], task)
    bench.records.keep_classifier(name, task, settings, of, classified)
    return classified


def _split(changes: Changes) -> dict[str, Any]:
    return {key: value for key, value in changes["task"].items() if key == "split"}


def _folder(bench: Bench, name: str, task: str) -> Path:
    return bench.folder / "tasks" / name / task.replace("/", "-")


def _read(result: TaskResult, task: str) -> Classified:
    """What is kept of a finished run; which examples were right is in the table of its predictions."""
    tested, right = tasks.task(task).tested, ""
    if tested:
        lines = (result.out / predictions_file(tested)).read_text(encoding="utf-8").splitlines()[1:]
        right = "".join("01"[cells[1] == cells[2]] for cells in (line.split("\t") for line in lines))
    return Classified(result.last, result.test, right)


def finished(results: list[TaskResult], task: str) -> list[TaskResult]:
    """The runs, if all of them are complete."""
    if not results or not all(result.finished for result in results):
        raise UserError(f"the training of {task} was stopped; run the same command again to continue")
    return results
