"""Settings of a fine-tuning that fit the machine, and what it will cost."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..config import Config, load_yaml
from ..distributed import pick_device
from ..distributed import world as join_world
from ..hub import checkpoint
from ..lm import LM
from ..models import registry
from ..models.language_model import LanguageModel
from ..models.masked import as_masked
from ..process.keys import Keys
from ..progress import clock
from ..recipes import named_keys
from ..types import Batch
from .budget import ending, mean_over, peak_memory

MINUTES = 30.0  # of a fine-tuning without a GPU, unless the user sets steps or a time
FEWEST_STEPS, LEAST_ROWS = 1000, 8  # fewer rows are taken until so many steps fit into the time
MICRO_SECONDS = 2.0  # of a micro-batch: a signal is noticed after it


def fit_machine(lm: LM, config: Config, out: str | Path, overrides: Sequence[str], *, quiet: bool = False) -> Config:
    """Settings that this machine can do: rows, micro-batches, time and evaluations, where the user sets none.

    The paper's fine-tuning is for GPUs, and stays as it is on one. Elsewhere the cost of a row is measured, and what
    would take longer than MINUTES gets fewer rows per step and a time. A run that is continued keeps what it has.
    """
    named = named_keys(overrides)
    if checkpoint.steps(Path(out)):
        return _kept(config, load_yaml(Path(out) / "config.yaml"), named)
    if pick_device(config.train.device).type == "cuda" and config.train.minutes is None:
        return config
    with join_world(config.train.device) as world:
        few = {} if config.train.lora.rank is None else {"adapters": True}
        cost, processes = row_cost(trained_on(lm, config), config.data.length, **few), world.size
        cost = replace(cost, seconds=mean_over(cost.seconds, world))  # all processes choose the same
    row = cost.seconds / processes
    full = config.train.batch_size * row
    if config.train.minutes is not None or full * config.train.steps > 60 * MINUTES:
        config = _smaller(config, row, named)
    share = -(-config.train.batch_size // processes)
    most = power_of_two(MICRO_SECONDS / cost.seconds)
    if "train.micro_batch_size" not in named and most < (config.train.micro_batch_size or share):
        config = config.changed(train={"micro_batch_size": most})
    if not quiet:
        print(_estimate(config, cost, row, full), file=sys.stderr, flush=True)
    return config


def _smaller(config: Config, row: float, named: set[str]) -> Config:
    """Fewer rows per step, a time instead of a number of steps, and evaluations that take little of it."""
    timed = "train.steps" not in named
    seconds = 60 * (config.train.minutes or MINUTES)
    train: dict[str, Any] = {"minutes": config.train.minutes or MINUTES} if timed else {}
    if "train.batch_size" not in named:
        most = power_of_two(seconds / FEWEST_STEPS / row)
        train["batch_size"] = min(config.train.batch_size, max(LEAST_ROWS, most))
    judged: dict[str, Any] = {}
    if "eval.rows" not in named:
        once = 0.02 * seconds / (config.eval.draws * row / 3)  # of the three parts of a step the backward pass is two
        judged["rows"] = min(config.eval.rows or 512, max(32, power_of_two(once)))
    if timed:
        judged |= {} if "eval.every" in named else {"every": 0.2}
        train |= {} if "train.checkpoint_every" in named else {"checkpoint_every": 0.1}
        train |= {} if "train.warmup" in named else {"warmup": 0.1}
    return config.changed(train=train, eval=judged)


def _kept(config: Config, before: Config, named: set[str]) -> Config:
    """The config with what a run that is continued has, where the user sets nothing else."""
    train = ("batch_size", "micro_batch_size", "minutes", "steps", "warmup", "checkpoint_every")
    kept: dict[str, dict[str, Any]] = {}
    for section, keys in (("train", train), ("eval", ("every", "rows"))):
        old = getattr(before, section)
        kept[section] = {key: getattr(old, key) for key in keys if f"{section}.{key}" not in named}
    if "train.steps" in named:
        kept["train"]["minutes"] = None
    return config.changed(**kept)


def _estimate(config: Config, cost: RowCost, seconds: float, full: float) -> str:
    """What it will cost, before it starts; `seconds` are those of a row, `full` of a step as the recipe has it."""
    spec = config.train
    step = spec.batch_size * seconds
    rows = f"{spec.batch_size} rows" + (f" ({spec.micro_batch_size} at a time)" if spec.micro_batch_size else "")
    paper = "" if full <= step else f", instead of {full:.3g} s with the recipe's rows"
    length = f"{spec.minutes:g} minutes" if spec.minutes else f"{spec.steps:,} steps in {clock(step * spec.steps)}"
    end = ending(60 * spec.minutes if spec.minutes else step * spec.steps)
    memory = cost.memory(spec.micro_batch_size or spec.batch_size, bool(spec.ema)) / 2**30
    return f"cost: {rows} a step, about {step:.3g} s{paper}; {length}, until about {end}; {memory:.1f} GB of memory"


@dataclass(frozen=True)
class RowCost:
    """What a row costs in training."""

    seconds: float  # forward and backward
    saved: int  # bytes that the backward pass needs
    weights: int  # bytes of the weights that are trained

    def memory(self, rows: int, ema: bool) -> int:
        """Of a process that trains with so many rows at once: a second model, gradients, AdamW's two, the average."""
        return peak_memory(torch.device("cpu")) + (4 + ema) * self.weights + rows * self.saved


def trained_on(lm: LM, config: Config) -> LanguageModel:
    """The model that a config trains, with the network of lm, so that its steps can be measured."""
    if config.model.method != "block":
        return lm.model
    with torch.device("meta"):
        model = as_masked(registry.model(config, lm.model.vocab, len(lm.labels)))
    assert model is not None, "block diffusion fills masks"
    return model.under(backbone=lm.model.backbone)


def row_cost(model: LanguageModel, length: int, adapters: bool = False) -> RowCost:
    """Measured with a few rows of random tokens, in a step that reads the most columns; `adapters`: with few gradients.

    Adapters need what the network computes, as the scales of norms and biases do; their own cost is small.
    """
    trained = [p for p in model.parameters() if p.requires_grad]
    few = [p for p in trained if p.dim() == 1]
    if adapters and few:
        model.requires_grad_(False)
        for p in few:
            p.requires_grad_(True)
    saved = dict[int, int]()
    step = max(range(16), key=model.streams)

    def note(tensor: Tensor) -> Tensor:
        saved[tensor.data_ptr()] = tensor.numel() * tensor.element_size()
        return tensor

    def seconds(rows: int) -> float:
        tokens = torch.randint(model.vocab.size - 1, (rows, length), generator=torch.Generator().manual_seed(0))
        begin = time.monotonic()
        loss, _ = model(Batch(tokens.to(model.device), torch.arange(rows), rows), Keys(0).at(step))
        loss.backward()
        return (time.monotonic() - begin) / rows

    was_training = model.training
    model.train()
    with torch.autograd.graph.saved_tensors_hooks(note, lambda tensor: tensor):
        seconds(1)  # it also takes memory and chooses kernels, so its time says nothing
    row = seconds(2)
    if row < 0.1:  # what is done once for all rows counts less with more of them
        row = seconds(16)
    model.zero_grad(set_to_none=True)
    model.train(was_training)
    weights = sum(p.numel() * p.element_size() for p in model.parameters() if p.requires_grad)
    for p in trained:
        p.requires_grad_(True)
    held = {p.data_ptr() for p in model.parameters()}
    row *= model.streams() / model.streams(step)
    return RowCost(max(row, 1e-6), sum(size for place, size in saved.items() if place not in held), weights)


def power_of_two(value: float) -> int:
    """The largest power of two up to a number, at least 1."""
    return 2 ** int(math.log2(max(value, 1)))
