"""Fine-tuning on a task with labels (paper section 5.1, appendix D.6): a classifier on the backbone of a model.

It runs in the loop of all training (`loop`), so it goes on bit for bit after a stop. Every checkpoint with an
evaluation holds its predictions and metrics; those of the best one are copied into the folder of the run at the end.
"""

from __future__ import annotations

import hashlib
import json
import math
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from . import checkpoint, tasks
from .classifying import Predicted, TaskModel, blank, load_classifier, outputs, table
from .config import Config
from .data.labels import save_labels
from .data.loader import train_rows
from .data.tokenizers import Tokenizer
from .dist import World
from .dist import world as join_world
from .evaluate import pick_rows
from .keys import Keys
from .lm import LM
from .loop import Evaluated, Job, Loop, Outcome, open_folder, stop_signals
from .models.classifier import Classifier
from .tasks import Encoded, Example
from .train import fill
from .trainer import Trainer
from .types import Batch, UserError

__all__ = ["Predicted", "TaskJob", "TaskModel", "TaskResult", "finetune", "load_classifier", "with_steps"]

METRICS = "metrics.json"  # in checkpoints
RESULTS = "results.json"  # in the folder of the run
Metrics = dict[str, dict[str, float]]  # by split


@dataclass(frozen=True)
class TaskResult:
    """How a call of `finetune` ended; metrics are by split, as `tasks.metrics.compute` gives them."""

    out: Path
    step: int
    finished: bool
    stopped_early: bool
    last: Metrics  # of the last evaluation
    best: Metrics  # of the checkpoint that is the best by the task's metric
    best_step: int | None
    seconds: float


def finetune(lm: LM, config: Config, out: str | Path, *, quiet: bool = False) -> TaskResult:
    """Train a classifier for config.task on the backbone of a model, or continue the run that is in `out`.

    task.epochs says how many steps there are. It is evaluated every eval.every steps (0: after every epoch) on the
    whole of the dev splits, and the best is that with the highest metric of the task on the first of them.
    """
    out = Path(out)
    _check(lm, config)
    with join_world(config.train.device) as world:
        hidden = quiet or not world.main
        folder = open_folder(config, out)
        job = TaskJob(lm, config, world, folder)
        loop = Loop(job, out, world, hidden, folder)
        with stop_signals() as stopped:
            end = loop.go(stopped)
        result = _result(out, end, loop.best)
        if world.main and end.finished:
            _conclude(result, job)
        world.barrier()
    return result


def _check(lm: LM, config: Config) -> None:
    """Raise for settings that cannot be."""
    if config.task.name is None:
        raise UserError("no task is named; set task.name, for example to glue/sst2")
    if config.train.start is None:
        raise UserError("a classifier begins with the weights of a model, and must name it; set train.start")
    if config.train.strategy == "fsdp":
        raise UserError("a classifier has weights outside its backbone, which fsdp does not shard; use ddp")
    if config.sample.every:
        raise UserError("a classifier writes nothing; leave sample.every out")
    if config.data.label != lm.config.data.label:
        raise UserError(
            f"the model {config.train.start} was trained with data.label={lm.config.data.label}, "
            f"not {config.data.label}; leave data.label out"
        )


class TaskJob(Job):
    """A classifier, the examples of a task, and its metric on the dev splits."""

    model: Classifier
    higher_is_better = True
    unit = "examples"

    def __init__(self, lm: LM, config: Config, world: World, folder: Path | None) -> None:
        assert config.task.name is not None
        self.task, self.world, self.cut = tasks.task(config.task.name), world, example_batch
        self.figure = self.task.metric
        self.tokenizer = lm.tokenizer if folder is None else Tokenizer.load(folder)
        self.labels, self.started = lm.labels, digest(lm)
        self._read(config)
        self.config = config = with_steps(config, len(self.data))
        torch.manual_seed(Keys(config.seed).torch_seed("init"))
        self.model = blank(config, self.task, self.tokenizer, len(self.labels))
        if folder is None:
            fill(self.model.backbone, lm.model.backbone, f"the model {config.train.start}")
        self.model.freeze_unused()
        self.metrics: Metrics = {}
        self.tables: dict[str, str] = {}
        self.evaluated = -1  # the step that these are of

    def _read(self, config: Config) -> None:
        """The examples in tokens; one process may have to fetch them for all."""
        spec = config.task
        with self.world.first():
            loaded = {s: tasks.load(self.task, s, spec.local) for s in ("train", *self.task.evaluations)}
        self.facts = {split: one.facts for split, one in loaded.items()}
        train = loaded["train"].examples
        self.data: Encoded = self._encode([train[i] for i in pick_rows(len(train), spec.rows)], spec.length)
        self.dev = {split: self._encode(loaded[split].examples, spec.length) for split in self.task.evaluations}

    def _encode(self, examples: list[Example], length: int) -> Encoded:
        return tasks.encode(examples, self.tokenizer, length)

    def identity(self) -> dict[str, Any]:
        """The examples, and the model it began with."""
        return {"data": {split: facts["sha256"] for split, facts in self.facts.items()}, "start": self.started}

    def changed(self, fact: str) -> str:
        """The sentence for another model, or other examples, than before."""
        if fact == "start":
            return f"the weights or the tokenizer of the model {self.config.train.start} changed"
        return f"the files of {self.task.name} changed"

    def evaluates(self, step: int) -> bool:
        """Every eval.every steps, or with the step that ends an epoch."""
        every, size, total = self.config.eval.every, self.config.train.batch_size, len(self.data)
        if every:
            return step % every == 0
        return step * size // total > (step - 1) * size // total

    def evaluate(self, trainer: Trainer, step: int) -> Evaluated:
        """The metrics of all dev splits; what is compared is the task's own on the first."""
        self.metrics, self.tables, self.evaluated = {}, {}, step
        for split, data in self.dev.items():
            with trainer.averaged():
                found = outputs(self.model, data, self.config.eval.batch_size, self.world)
            self.metrics[split] = tasks.metrics.compute(self.task, found, data.labels)
            self.tables[split] = table(self.task, found, data.labels)
        name, first = self.figure, self.metrics[self.task.evaluations[0]]
        bar = f" ± {first[f'{name}_stderr']:.4f}"
        logged = {f"{split}_{key}": value for split, found in self.metrics.items() for key, value in found.items()}
        return Evaluated(first[name], {f"{self.task.evaluations[0]} {name}": f"{first[name]:.4f}{bar}"}, logged)

    def describe(self, folder: Path, step: int) -> None:
        """The tokenizer, the labels of the language model, and what was found after this step."""
        self.tokenizer.save(folder)
        if self.config.data.label is not None:
            save_labels(folder, self.config.data.label, self.labels)
        if step == self.evaluated:
            checkpoint.write_atomically(folder / METRICS, json.dumps({"step": step, "metrics": self.metrics}, indent=1))
            for split, text in self.tables.items():
                checkpoint.write_atomically(folder / predictions_file(split), text)

    def protocol(self) -> dict[str, Any]:
        """How the numbers came about."""
        spec, data = self.config.train, {"train": self.data, **self.dev}
        return {
            "task": self.task.name, "version": self.task.version, "data": self.facts,
            "rows": {split: len(rows) for split, rows in data.items()},
            "seen": {split: rows.describe() for split, rows in data.items()},
            "start": spec.start, "tokenizer": self.tokenizer.name, "told_types": self.model.backbone.takes_types,
            "pooling": self.model.pooling, "seed": self.config.seed, "epochs": self.config.task.epochs,
            "steps": spec.steps, "batch_size": spec.batch_size, "lr": spec.lr, "warmup": spec.warmup,
            "decay": spec.decay, "weight_decay": spec.weight_decay, "dropout": self.config.task.dropout,
            "patience": spec.patience, "dtype": "bfloat16" if spec.precision == "bf16" else "float32",
            "weights": "ema" if spec.ema else "raw",
            "best": f"of all evaluations the highest {self.figure} on {self.task.evaluations[0]}, the first of equals",
        }  # fmt: skip


# -- pieces ----------------------------------------------------------------------------------------------------------


def example_batch(config: Config, data: Encoded, slots: range, keys: Keys) -> Batch:
    """Some slots of a step on the examples of a task."""
    size = config.train.batch_size
    chosen = train_rows(len(data), config.seed, keys.step, size, slots)
    return data.batch(chosen, np.array(slots, dtype=np.int64), size)


def with_steps(config: Config, examples: int) -> Config:
    """The config with the train.steps that task.epochs means."""
    whole = Fraction(config.task.epochs).limit_denominator(10**6) * examples  # 0.1 of 30 examples is 3, not 4
    steps = math.ceil(whole / config.train.batch_size)
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": max(1, steps)})})


def digest(lm: LM) -> str:
    """A name for the weights and the tokenizer of a model."""
    found = hashlib.sha256(lm.tokenizer.digest.encode())
    for name, tensor in sorted(lm.model.backbone.state_dict().items()):
        found.update(name.encode())
        found.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def predictions_file(split: str) -> str:
    """The name of the table of a split."""
    return f"predictions.{split}.tsv"


# -- the end of a run ------------------------------------------------------------------------------------------------


def _result(out: Path, end: Outcome, best: dict[str, Any] | None) -> TaskResult:
    step = best["step"] if best else None
    return TaskResult(
        out, end.step, end.finished, end.stopped_early, _metrics(out, end.step), _metrics(out, step), step, end.seconds
    )


def _metrics(out: Path, step: int | None) -> Metrics:
    """What was found after a step; nothing if there was no evaluation."""
    path = None if step is None else checkpoint.step_folder(out, step) / METRICS
    return checkpoint.read_json(path)["metrics"] if path and path.is_file() else {}


def _conclude(result: TaskResult, job: TaskJob) -> None:
    """Put predictions of the best checkpoint, or the last if no metric was a number, and results into the folder."""
    step = result.step if result.best_step is None else result.best_step
    for split in job.task.evaluations:
        name = predictions_file(split)
        text = (checkpoint.step_folder(result.out, step) / name).read_text(encoding="utf-8")
        checkpoint.write_atomically(result.out / name, text)
    tree = {
        "task": job.task.name, "metric": job.figure, "stopped_early": result.stopped_early,
        "predictions": {"step": step}, "best": {"step": result.best_step, "metrics": result.best},
        "last": {"step": result.step, "metrics": result.last}, "protocol": job.protocol(),
    }  # fmt: skip
    checkpoint.write_atomically(result.out / RESULTS, json.dumps(tree, indent=1) + "\n")
