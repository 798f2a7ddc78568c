"""A classifier of a task (models/classifier.py) in use: what it says of examples, and a saved one as an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from . import build, checkpoint, tasks
from .config import Config, load_yaml
from .data.labels import load_labels
from .data.tokenizers import Tokenizer
from .dist import World, pick_device
from .evaluate import evaluating
from .models.classifier import Classifier
from .models.plaid import Plaid
from .tasks import Encoded, Example, Task
from .types import UserError


@dataclass(frozen=True)
class Predicted:
    """What a classifier says of some examples."""

    answers: list[str] | list[float]  # names of labels, or scores
    probabilities: np.ndarray | None  # (N, labels); None of a regression


@dataclass
class TaskModel:
    """A trained classifier with its tokenizer."""

    model: Classifier
    tokenizer: Tokenizer
    task: Task
    config: Config

    def predict(self, texts: Sequence[str | tuple[str, str]], batch_size: int = 32) -> Predicted:
        """Labels and their probabilities, or scores, of texts or of pairs of texts."""
        if isinstance(texts, str):
            raise UserError("predict takes a list; for one text give [text]")
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        examples = [self._example(i, text) for i, text in enumerate(texts)]
        if not examples:
            return Predicted([], None if self.task.regression else np.empty((0, self.task.n_outputs)))
        spec = self.config.task
        data = encoded(self.task, examples, self.tokenizer, spec.length)
        found = outputs(self.model, data, batch_size, both=spec.strands == "conjoin")
        choice = decided(self.task, found)
        if self.task.regression:
            return Predicted([float(score) for score in choice], None)
        return Predicted([self.task.labels[int(i)] for i in choice], probabilities(found))

    def _example(self, index: int, text: str | tuple[str, str]) -> Example:
        pair = tuple(text) if isinstance(text, tuple | list) else (text,)
        if len(pair) != (2 if self.task.pairs else 1) or not all(isinstance(part, str) for part in pair):
            wanted = "pairs of texts" if self.task.pairs else "single texts"
            raise UserError(f"{self.task.name} is a task on {wanted}; example {index} is {text!r}")
        first = tasks.clean(pair[0], f"example {index}") if self.task.sequences else pair[0]
        return Example(first, pair[1] if self.task.pairs else None, None, index)


def encoded(task: Task, examples: list[Example], tokenizer: Tokenizer, length: int) -> Encoded:
    """Examples as a classifier of the task takes them."""
    return (tasks.encode_bases if task.sequences else tasks.encode)(examples, tokenizer, length)


def load_classifier(path: str | Path, device: str = "cpu", *, which: str | None = None) -> TaskModel:
    """The classifier of a run of `finetune`: its best checkpoint, or the last where none is the best.

    `which` is "best" or "last"; `path` may also be a checkpoint.
    """
    if which not in (None, "best", "last"):
        raise UserError("which must be 'best' or 'last'")
    if not checkpoint.steps(Path(path)) and (seeds := sorted(Path(path).glob("**/seed-*"))):
        raise UserError(f"{path} holds a classifier a seed; give one of them, for example {seeds[0]}")
    folder = checkpoint.resolve(path, which or "last")
    if which is None and (best := checkpoint.read_json(folder / "state.json")["best"]) and folder != Path(path):
        folder = checkpoint.step_folder(Path(path), best["step"])
    checkpoint.verify(folder)
    config = load_yaml(folder / "config.yaml")
    if config.task.name is None:
        raise UserError(f"{path} holds a language model and no classifier; train one with: unmask finetune {path} TASK")
    task, tokenizer = tasks.task(config.task.name), Tokenizer.load(folder)
    model = blank(config, task, tokenizer, len(load_labels(folder, config.data.label)))
    checkpoint.read_into(folder, "model", dict(model.state_dict()))
    if config.train.ema:
        checkpoint.read_into(folder, "ema", dict(model.named_parameters()))
    return TaskModel(model.to(pick_device(device)).eval(), tokenizer, task, config)


def blank(config: Config, task: Task, tokenizer: Tokenizer, n_labels: int) -> Classifier:
    """The classifier of a config, with fresh weights."""
    lm = build.model(config, tokenizer.vocab, n_labels)
    backbone = lm.backbone
    longest = backbone.longest
    if longest is not None and config.task.length > longest:
        raise UserError(
            f"task.length={config.task.length} is longer than the {longest} tokens that the model can take; "
            f"set task.length to at most {longest}"
        )
    return Classifier(
        backbone, task.n_outputs, dropout=config.task.dropout, pooling=config.task.pooling,
        reader=lm if isinstance(lm, Plaid) else None,
    )  # fmt: skip


def outputs(
    model: Classifier, data: Encoded, batch_size: int, world: World | None = None, both: bool = False
) -> np.ndarray:
    """(N, n_outputs) float64 of all examples; each process computes its share.

    With `both`, the mean of a sequence's outputs and those of its reverse complement ("post-hoc conjoining").
    """
    world = world or World(0, 1, model.device)
    by_size = np.argsort(np.diff(data.ends, prepend=0), kind="stable")  # little padding, and equal shares
    mine, found = by_size[world.rank :: world.size], torch.zeros(len(data), model.n_outputs, dtype=torch.float64)
    with evaluating(model), torch.no_grad():
        for start in range(0, len(mine), batch_size):
            part = mine[start : start + batch_size]
            strands = [None, np.ones(len(part), dtype=bool)] if both else [None]
            batches = [data.batch(part, part, len(data), other).to(model.device) for other in strands]
            found[part] = torch.stack([model.outputs(batch).double().cpu() for batch in batches]).mean(0)
    return world.sum(found).cpu().numpy()


def decided(task: Task, found: np.ndarray) -> np.ndarray:
    """(N,): the id of the likeliest label, or the score."""
    return found[:, 0] if task.regression else found.argmax(1)


def probabilities(found: np.ndarray) -> np.ndarray:
    """(N, labels): softmax."""
    weight = np.exp(found - found.max(1, keepdims=True))
    return weight / weight.sum(1, keepdims=True)


def table(task: Task, found: np.ndarray, labels: np.ndarray) -> str:
    """Predictions as tab-separated values: index, prediction, label, and one probability a label."""
    lines = ["\t".join(["index", "prediction", "label", *(f"p({name})" for name in task.labels)])]
    chances = np.empty((len(found), 0)) if task.regression else probabilities(found)
    for index, (choice, label) in enumerate(zip(decided(task, found), labels, strict=True)):
        named = [f"{value:.6g}" if task.regression else task.labels[int(value)] for value in (choice, label)]
        lines.append("\t".join([str(index), *named, *(f"{p:.6f}" for p in chances[index])]))
    return "\n".join(lines) + "\n"
