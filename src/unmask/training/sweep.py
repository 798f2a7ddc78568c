"""Choosing learning rate and batch size of a classifier (paper, appendix D.7), and numbers as the paper prints them.

Every cell of the grid is trained once per seed. The best cell has the highest mean over the seeds of the best
validation metric (the first in a tie); only its runs are tested, each with its best checkpoint. "For each task, we do a
hyperparameter sweep over batch size and learning rate and report the values of the 5-fold CV for the best
configuration": one cell for all seeds. A sweep can be continued in its folder: finished runs are read, not trained
again.
"""

from __future__ import annotations

import itertools
import math
import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import Config
from ..data import tasks
from ..evaluation.uncertainty import deviation, extent, mean
from ..files import write_text
from ..jsonable import to_json
from ..lm import LM
from ..recipes import GENOMICS_GRID, GENOMICS_SEEDS
from ..types import UserError
from .finetune import RESULTS, TaskResult, finetune
from .loop import say_run

Grid = Mapping[str, Sequence[Any]]  # setting -> values


@dataclass
class Cell:
    """One combination of settings, with one run per seed."""

    settings: dict[str, Any]
    out: Path
    runs: list[TaskResult] = field(default_factory=list)

    def validation(self, dev: str, metric: str) -> list[float]:
        """The best validation metric of every seed."""
        return [run.best.get(dev, {}).get(metric, -math.inf) for run in self.runs]


@dataclass(frozen=True)
class Swept:
    """The outcome of a sweep; `best` is None if it was stopped early."""

    cells: list[Cell]
    best: Cell | None
    finished: bool


def sweep(
    lm: LM,
    config: Config,
    out: str | Path,
    seeds: Sequence[int] = GENOMICS_SEEDS,
    grid: Grid | None = None,
    *,
    quiet: bool = False,
) -> Swept:
    """Train every cell of the grid with every seed, choose by validation, and test the best; or continue a sweep."""
    out, task = Path(out), _task(config)
    cells = [Cell(settings, out / _name(settings)) for settings in _settings(grid or GENOMICS_GRID)]
    number = itertools.count(1)
    for cell in cells:
        chosen = config.override([f"{key}={value}" for key, value in cell.settings.items()])
        for seed in seeds:
            say_run(f"{cell.out.name}, seed {seed}", next(number), len(cells) * len(seeds), quiet)
            run = finetune(lm, _with_seed(chosen, seed), cell.out / f"seed-{seed}", quiet=quiet, test=False)
            cell.runs.append(run)
            if not run.finished:
                return Swept(cells, None, False)
    dev = task.evaluations[0]
    best = max(cells, key=lambda cell: mean(cell.validation(dev, task.metric)).value)  # max takes the first of equals
    chosen = config.override([f"{key}={value}" for key, value in best.settings.items()])
    best.runs = [finetune(lm, _with_seed(chosen, seed), best.out / f"seed-{seed}", quiet=quiet) for seed in seeds]
    done = Swept(cells, best, True)
    if os.environ.get("RANK", "0") == "0":  # of those that torchrun started
        write_text(out / RESULTS, to_json(tree(done, task, seeds), indent=1) + "\n")
    return done


def _task(config: Config) -> tasks.Task:
    task = tasks.task(config.task.name or "")
    if task.tested is None:
        raise UserError(f"a sweep needs a test split, but {task.name} is judged on its dev split; leave out --sweep")
    return task


def _settings(grid: Grid) -> list[dict[str, Any]]:
    return [dict(zip(grid, values, strict=True)) for values in itertools.product(*grid.values())]


def _name(settings: Mapping[str, Any]) -> str:
    """The folder of a cell, for example lr-0.001-batch_size-128."""
    return "-".join(f"{key.rpartition('.')[2]}-{value:g}" for key, value in settings.items())


def _with_seed(config: Config, seed: int) -> Config:
    return config.model_copy(update={"seed": seed})


# -- numbers ---------------------------------------------------------------------------------------------------------


def spread(values: Sequence[float]) -> dict[str, Any]:
    """Mean and error bar over seeds as the paper prints them, and the standard deviation (None for one value).

    "Error bars indicate the difference between the maximum and minimum values across 5 random seeds": max_min.
    """
    return {
        "values": list(values),
        "mean": mean(values).value,
        "max_min": extent(values) or 0.0,
        "sd": deviation(values),
    }


def over_seeds(results: Sequence[TaskResult], metric: str, dev: str = "dev") -> dict[str, dict[str, Any]]:
    """Validation and test of runs with several seeds: the metric of the best checkpoint of each."""
    summary = {}
    if all(dev in run.best for run in results):
        summary[dev] = spread([run.best[dev][metric] for run in results])
    summary["test"] = spread([run.test[metric] for run in results])
    summary["test"]["stderr_data"] = results[0].test.get(f"{metric}_stderr")
    return summary


def tree(done: Swept, task: tasks.Task, seeds: Sequence[int]) -> dict[str, Any]:
    """All cells, the chosen one and its test, as plain data."""
    assert done.best is not None
    dev = task.evaluations[0]
    cells = [
        {
            "settings": cell.settings,
            "out": str(cell.out),
            "validation": spread(cell.validation(dev, task.metric)),
            "best_steps": [run.best_step for run in cell.runs],
            "chosen": cell is done.best,
        }
        for cell in done.cells
    ]
    return {
        "task": task.name,
        "metric": task.metric,
        "seeds": list(seeds),
        "cells": cells,
        "chosen": done.best.settings,
        "summary": over_seeds(done.best.runs, task.metric, dev),
        "also": {name: spread([run.test[name] for run in done.best.runs]) for name in task.also},
        "protocol": {
            "chosen_by": f"the highest mean over {len(seeds)} seeds of the best {task.metric} on {dev}",
            "tested": "the best checkpoint of each seed of the chosen cell, once",
            "error bar": "max_min: the largest value of the seeds minus the smallest, as in the paper",
        },
    }
