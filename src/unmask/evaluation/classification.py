"""A classifier of a task (models/classifier.py) in use: its predictions, and a saved one as an object."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch

from ..config import Config
from ..data import tasks
from ..data.tasks import Encoded, Example, Task
from ..data.tokenization import Tokenizer
from ..distributed import World
from ..errors import UserError, at_least
from ..models.classifier import Classifier
from ..types import Progress
from .likelihood import evaluating


@dataclass(frozen=True)
class Predicted:
    """The predictions of a classifier."""

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
        at_least("batch_size", batch_size)
        examples = [self._example(i, text) for i, text in enumerate(texts)]
        if not examples:
            return Predicted([], None if self.task.regression else np.empty((0, self.task.n_outputs)))
        spec = self.config.task
        data = encoded(self.task, examples, self.tokenizer, spec.length)
        logits = outputs(self.model, data, batch_size, both=spec.strands == "conjoin")
        choice = decided(self.task, logits)
        if self.task.regression:
            return Predicted([float(score) for score in choice], None)
        return Predicted([self.task.labels[int(i)] for i in choice], probabilities(logits))

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


def outputs(
    model: Classifier,
    data: Encoded,
    batch_size: int,
    world: World | None = None,
    both: bool = False,
    progress: Progress | None = None,
) -> np.ndarray:
    """(N, n_outputs) float64 of all examples; each process computes its share.

    With `both`, the mean of a sequence's outputs and those of its reverse complement ("post-hoc conjoining").
    """
    world = world or World(0, 1, model.device)
    by_size = np.argsort(np.diff(data.ends, prepend=0), kind="stable")  # little padding, and equal shares
    mine, result = by_size[world.rank :: world.size], torch.zeros(len(data), model.n_outputs, dtype=torch.float64)
    with evaluating(model), torch.no_grad():
        for start in range(0, len(mine), batch_size):
            part = mine[start : start + batch_size]
            strands = [None, np.ones(len(part), dtype=bool)] if both else [None]
            batches = [data.batch(part, part, len(data), other).to(model.device) for other in strands]
            result[part] = torch.stack([model.outputs(batch).double().cpu() for batch in batches]).mean(0)
            if progress:
                progress(min(start + batch_size, len(mine)), len(mine))
    return world.sum(result).cpu().numpy()


def decided(task: Task, logits: np.ndarray) -> np.ndarray:
    """(N,): the id of the likeliest label, or the score."""
    return logits[:, 0] if task.regression else logits.argmax(1)


def probabilities(logits: np.ndarray) -> np.ndarray:
    """(N, labels): softmax."""
    weight = np.exp(logits - logits.max(1, keepdims=True))
    return weight / weight.sum(1, keepdims=True)


def table(task: Task, logits: np.ndarray, labels: np.ndarray) -> str:
    """Predictions as tab-separated values: index, prediction, label, and one probability per label."""
    lines = ["\t".join(["index", "prediction", "label", *(f"p({name})" for name in task.labels)])]
    chances = np.empty((len(logits), 0)) if task.regression else probabilities(logits)
    for index, (choice, label) in enumerate(zip(decided(task, logits), labels, strict=True)):
        named = [f"{value:.6g}" if task.regression else task.labels[int(value)] for value in (choice, label)]
        lines.append("\t".join([str(index), *named, *(f"{p:.6f}" for p in chances[index])]))
    return "\n".join(lines) + "\n"
