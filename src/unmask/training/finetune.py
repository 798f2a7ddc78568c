"""Fine-tuning on a task with labels (paper sections 5.1 and 5.2): a classifier on the backbone of a model.

It runs in the loop of all training (`loop`), so it resumes bit for bit after a stop. Every checkpoint with an
evaluation holds its predictions and metrics; those of the best one are copied into the folder of the run at the end.
Where a task is tested (Genomic Benchmarks, GUE), the best checkpoint is judged on the test split then, and only then.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass, field, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np
import torch

from ..config import Config
from ..data import tasks
from ..data.labels import save_labels
from ..data.loader import train_rows
from ..data.tasks import Encoded, Example
from ..data.tokenization import Tokenizer
from ..distributed import World
from ..distributed import world as join_world
from ..evaluation.classification import Predicted, TaskModel, encoded, outputs, table
from ..evaluation.likelihood import pick_rows
from ..files import write_text
from ..hub import checkpoint
from ..hub.resolve import load_classifier
from ..jsonable import to_json
from ..lm import LM
from ..models import registry
from ..models.classifier import Classifier
from ..process.keys import Keys
from ..types import Batch, UserError
from .loop import Evaluated, Loop, Outcome, TrainingJob, alone_in, folder_of, open_folder, stop_signals
from .step import Trainer
from .text import load_weights

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
    test: dict[str, float] = field(default_factory=dict)  # of the best checkpoint, where the task is tested


def finetune(lm: LM, config: Config, out: str | Path, *, quiet: bool = False, test: bool = True) -> TaskResult:
    """Train a classifier for config.task on the backbone of a model, or continue the run that is in `out`.

    task.epochs says how many steps there are. It is evaluated every eval.every steps (0: after every epoch) on the
    dev splits (task.eval_rows of each), and the best is that with the highest metric of the task on the first of them.
    `test` says whether a finished run is tested (a sweep tests the runs it chose only).
    """
    out = folder_of(out)
    _check(lm, config)
    with join_world(config.train.device) as world, alone_in(out, world):
        hidden = quiet or not world.main
        loaded = read_splits(config, world)
        config = with_steps(config, _rows(config, loaded))  # the warm-up may be a share of them
        config, folder = open_folder(config, out)
        job = TaskJob(lm, config, world, folder, loaded)
        loop = Loop(job, out, world, hidden, folder)
        with stop_signals() as stopped:
            end = loop.run(stopped)
        result = _result(out, end, loop.best)
        if end.finished and job.task.tested:
            metrics = _known_test(result, job) or (_tested(result, job, loop.trainer) if test else {})
            result = replace(result, test=metrics)
        if world.main and end.finished:
            _conclude(result, job)
        world.barrier()
    return result


def _check(lm: LM, config: Config) -> None:
    """Raise for settings that are not possible."""
    if config.task.name is None:
        raise UserError("no task is named; set task.name, for example to glue/sst2")
    tasks.metrics.check_packages(tasks.task(config.task.name))
    if config.train.start is None:
        raise UserError("a classifier starts from the weights of a model; name it in train.start")
    if config.train.lora.rank is not None:
        raise UserError("train.lora is for language models, not for tasks; leave it out")
    if config.train.minutes is not None:
        raise UserError("the steps of a task follow from task.epochs; set task.epochs or task.max_steps, not minutes")
    if config.train.strategy == "fsdp":
        raise UserError("a classifier has weights outside its backbone, which fsdp does not shard; use ddp")
    if config.sample.every:
        raise UserError("a classifier writes nothing; leave sample.every out")
    if config.data.label != lm.config.data.label:
        raise UserError(
            f"the model {config.train.start} was trained with data.label={lm.config.data.label}, "
            f"not {config.data.label}; leave data.label out"
        )


class TaskJob(TrainingJob):
    """A classifier, the examples of a task, and its metric on the dev splits."""

    model: Classifier
    higher_is_better = True
    unit = "examples"

    def __init__(
        self, lm: LM, config: Config, world: World, folder: Path | None, loaded: dict[str, tasks.Loaded]
    ) -> None:
        assert config.task.name is not None
        self.task, self.world, self.cut = tasks.task(config.task.name), world, example_batch
        self.figure = self.task.metric
        self.tokenizer = lm.tokenizer if folder is None else Tokenizer.load(folder)
        self.labels, self.started = lm.labels, digest(lm)
        self.config = config
        self._read(config, loaded)
        torch.manual_seed(Keys(config.seed).torch_seed("init"))
        self.model = registry.classifier(config, self.task, self.tokenizer.vocab, len(self.labels))
        if folder is None:
            _begin(self.model, lm, f"the model {config.train.start}")
        self.model.freeze_unused()
        self.metrics: Metrics = {}
        self.tables: dict[str, str] = {}
        self.evaluated = -1  # the step that these are of

    def _read(self, config: Config, loaded: dict[str, tasks.Loaded]) -> None:
        """The examples in tokens."""
        spec = config.task
        if not self.task.sequences and (spec.strands != "one" or spec.genome is not None):
            raise UserError(
                f"{self.task.name} is a task on texts, which have no strands; leave out the settings for DNA"
            )
        self.facts = {split: split_data.facts for split, split_data in loaded.items()}
        self.data: Encoded = self._encode(loaded["train"].examples, spec.rows)
        self.dev = {split: self._encode(loaded[split].examples, spec.eval_rows) for split in self.task.evaluations}
        self.test = self._encode(loaded[self.task.tested].examples, spec.eval_rows) if self.task.tested else None

    def _encode(self, examples: list[Example], most: int | None) -> Encoded:
        chosen = [examples[i] for i in pick_rows(len(examples), most)]
        return encoded(self.task, chosen, self.tokenizer, self.config.task.length)

    def judge(self, data: Encoded, split: str) -> tuple[dict[str, float], str]:
        """The metrics of the current weights, and the table of their predictions (all processes call)."""
        both = self.config.task.strands == "conjoin"
        progress = self.display.inside(f"evaluating {split}") if self.display else None
        predicted = outputs(self.model, data, self.config.eval.batch_size, self.world, both, progress)
        return tasks.metrics.compute(self.task, predicted, data.labels), table(self.task, predicted, data.labels)

    def identity(self) -> dict[str, Any]:
        """The examples, and the model it began with."""
        return {"data": {split: facts["sha256"] for split, facts in self.facts.items()}, "start": self.started}

    def changed(self, fact: str) -> str:
        """The sentence for a model or examples that changed."""
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
        """The metrics of all dev splits; the task's metric on the first of them is compared."""
        self.metrics, self.tables, self.evaluated = {}, {}, step
        for split, data in self.dev.items():
            with trainer.averaged():
                self.metrics[split], self.tables[split] = self.judge(data, split)
        name, first = self.figure, self.metrics[self.task.evaluations[0]]
        said = tasks.metrics.in_words(first[name], f" ± {first[f'{name}_stderr']:.4f}")
        logged = {f"{split}_{key}": value for split, metrics in self.metrics.items() for key, value in metrics.items()}
        return Evaluated(first[name], {f"{self.task.evaluations[0]} {name}": said}, logged)

    def describe(self, folder: Path, step: int) -> None:
        """The tokenizer, the labels of the language model, and the results after this step."""
        self.tokenizer.save(folder)
        if self.config.data.label is not None:
            save_labels(folder, self.config.data.label, self.labels)
        if step == self.evaluated:
            write_text(folder / METRICS, to_json({"step": step, "metrics": self.metrics}, indent=1))
            for split, text in self.tables.items():
                write_text(folder / predictions_file(split), text)

    def protocol(self) -> dict[str, Any]:
        """How the numbers came about."""
        spec, data = self.config.train, {"train": self.data, **self.dev}
        if self.test is not None and self.task.tested:
            data[self.task.tested] = self.test
        return {
            "task": self.task.name,
            "version": self.task.version,
            "data": self.facts,
            "rows": {split: len(rows) for split, rows in data.items()},
            "seen": {split: rows.describe() for split, rows in data.items()},
            "start": spec.start,
            "tokenizer": self.tokenizer.name,
            "told_types": "types" in self.model.backbone.takes,
            "pooling": self.model.pooling,
            "strands": self.config.task.strands,
            "seed": self.config.seed,
            "epochs": self.config.task.epochs,
            "max_steps": self.config.task.max_steps,
            "steps": spec.steps,
            "batch_size": spec.batch_size,
            "optimizer": spec.optimizer,
            "lr": spec.lr,
            "warmup": spec.warmup,
            "decay": spec.decay,
            "weight_decay": spec.weight_decay,
            "dropout": self.config.task.dropout,
            "patience": spec.patience,
            "dtype": "bfloat16" if spec.precision == "bf16" else "float32",
            "weights": "ema" if spec.ema else "raw",
            "best": f"of all evaluations the highest {self.figure} on {self.task.evaluations[0]}, the first of equals",
        }


# -- pieces ----------------------------------------------------------------------------------------------------------


def example_batch(config: Config, data: Encoded, slots: range, keys: Keys) -> Batch:
    """Some slots of a step on the examples of a task, the longest first: micro-batches then need little padding."""
    size = config.train.batch_size
    rows = train_rows(len(data), config.seed, keys.step, size, range(size))
    index = np.argsort(-data.sizes(rows), kind="stable")[list(slots)]
    other = None
    if config.task.strands != "one":
        other = (keys.uniform("strand", index) < 0.5).numpy()
    return data.batch(rows[index], index, size, other)


def read_splits(config: Config, world: World) -> dict[str, tasks.Loaded]:
    """The examples of a run by split; one process may have to fetch them for all."""
    assert config.task.name is not None
    with world.first():
        return tasks.splits(tasks.task(config.task.name), config.task, config.seed)


def _rows(config: Config, loaded: dict[str, tasks.Loaded]) -> int:
    return len(pick_rows(len(loaded["train"].examples), config.task.rows))


def _begin(model: Classifier, lm: LM, where: str) -> None:
    """Give a classifier the weights of the language model; for Plaid also those of its input embeddings."""
    load_weights(model.backbone, lm.model.backbone, where)
    if model.reader is not None:
        theirs = {k: v for k, v in lm.model.state_dict().items() if not k.startswith("backbone.")}
        for name, target in model.reader.state_dict().items():
            checkpoint.assign(target, theirs[name])


def with_steps(config: Config, examples: int) -> Config:
    """The config with train.steps from task.epochs and task.max_steps, and the warm-up as a share of them."""
    spec = config.task
    whole = Fraction(spec.epochs).limit_denominator(10**6) * examples  # 0.1 of 30 examples is 3, not 4
    steps = max(1, math.ceil(whole / config.train.batch_size))
    steps = steps if spec.max_steps is None else min(steps, spec.max_steps)
    warmup = config.train.warmup if spec.warmup is None else round(spec.warmup * steps)
    return config.model_copy(update={"train": config.train.model_copy(update={"steps": steps, "warmup": warmup})})


def digest(lm: LM) -> str:
    """A name for the weights and the tokenizer of a model."""
    sha256 = hashlib.sha256(lm.tokenizer.digest.encode())
    source = lm.model.features
    for name, tensor in sorted(source.state_dict().items()):
        sha256.update(name.encode())
        sha256.update(tensor.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return sha256.hexdigest()


def predictions_file(split: str) -> str:
    """The name of the table of a split."""
    return f"predictions.{split}.tsv"


# -- the end of a run ------------------------------------------------------------------------------------------------


def _result(out: Path, end: Outcome, best: dict[str, Any] | None) -> TaskResult:
    step = best["step"] if best else None
    return TaskResult(
        out, end.step, end.finished, end.stopped_early, _metrics(out, end.step), _metrics(out, step), step, end.seconds
    )


def _judged(result: TaskResult) -> int:
    """The step of the best checkpoint; of the last if no metric was a number."""
    return result.step if result.best_step is None else result.best_step


def _known_test(result: TaskResult, job: TaskJob) -> dict[str, float]:
    """The results of an earlier call for this checkpoint and test split, if there was one: it is tested once."""
    path = result.out / RESULTS
    known = checkpoint.read_json(path).get("test") if path.is_file() else None
    if not known or known["step"] != _judged(result) or known["sha256"] != job.facts[known["split"]]["sha256"]:
        return {}
    return _numbers(known["metrics"])


def _tested(result: TaskResult, job: TaskJob, trainer: Trainer) -> dict[str, float]:
    """The metrics of the best checkpoint on the test split (all processes call)."""
    assert job.task.tested is not None and job.test is not None
    folder = checkpoint.step_folder(result.out, _judged(result))
    checkpoint.read_into(folder, "model", dict(job.model.state_dict()))
    if job.config.train.ema:
        checkpoint.read_into(folder, "ema", dict(job.model.named_parameters()))
    with trainer.autocast():
        metrics, said = job.judge(job.test, job.task.tested)
    if job.world.main:
        write_text(result.out / predictions_file(job.task.tested), said)
    return metrics


def _metrics(out: Path, step: int | None) -> Metrics:
    """The metrics after a step; empty if there was no evaluation."""
    path = None if step is None else checkpoint.step_folder(out, step) / METRICS
    splits = checkpoint.read_json(path)["metrics"] if path and path.is_file() else {}
    return {split: _numbers(metrics) for split, metrics in splits.items()}


def _numbers(metrics: dict[str, float | None]) -> dict[str, float]:
    """Metrics from JSON, where null is one that is not defined."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}


def _conclude(result: TaskResult, job: TaskJob) -> None:
    """Put predictions of the best checkpoint, or the last if no metric was a number, and results into the folder."""
    step = _judged(result)
    for split in job.task.evaluations:
        name = predictions_file(split)
        text = (checkpoint.step_folder(result.out, step) / name).read_text(encoding="utf-8")
        write_text(result.out / name, text)
    tree: dict[str, Any] = {
        "task": job.task.name,
        "metric": job.figure,
        "stopped_early": result.stopped_early,
        "predictions": {"step": step},
        "best": {"step": result.best_step, "metrics": result.best},
        "last": {"step": result.step, "metrics": result.last},
        "protocol": job.protocol(),
    }
    if result.test and job.task.tested:
        sha256 = job.facts[job.task.tested]["sha256"]
        tree["test"] = {"split": job.task.tested, "step": step, "sha256": sha256, "metrics": result.test}
    write_text(result.out / RESULTS, to_json(tree, indent=1) + "\n")
