"""What the commands do, as functions: between the command line and the library."""

from __future__ import annotations

from typing import Any

import torch

from . import build
from .config import Config, DataConfig
from .data.pack import prepare
from .dist import world as join_world
from .evaluate import evaluate
from .hub import load
from .lm import LM
from .terminal import Watcher
from .track import progress_bar
from .types import Likelihood, Sample, UserError


def evaluate_model(
    path: str,
    *,
    data: str | None,
    split: str,
    bound: str | None,
    steps: int | None,
    draws: int,
    schedule: str | None,
    batch_size: int,
    rows: int | None,
    seed: int,
    which: str,
    weights: str,
    device: str,
) -> Likelihood:
    """The bound of a saved model on a data set."""
    with join_world(device) as world:
        lm = load(path, which=which, weights=weights, device=str(world.device))
        config = _with_law(lm.config, bound, steps, schedule)
        spec, own = _data(config.data, data, split)
        model = lm.model
        if config != lm.config:  # another schedule or bound than the model's own
            model = model.under(build.schedule(config.schedule), build.law(config.objective))
        with world.first(), progress_bar("tokenizing", quiet=not world.main) as progress:
            prepared = prepare(spec, lm.tokenizer, splits=(own,), progress=progress)
            if split == "all" and prepared.corpus.division is None:
                raise UserError(f"{spec.source} has splits of its own; name one: {', '.join(prepared.corpus.splits)}")
            split_rows = prepared.split(own)
        with progress_bar("evaluating", quiet=not world.main) as progress:
            return evaluate(
                model, split_rows, draws=draws, batch_size=batch_size, seed=seed, limit=rows, world=world,
                attend_pads=config.data.attend_pads, progress=progress,
                protocol={"model": path, "checkpoint": which, "weights": used_weights(lm, weights), "split": split},
            )  # fmt: skip


def used_weights(lm: LM, asked: str) -> str:
    """`raw` where a run kept no average."""
    return asked if lm.config.train.ema else "raw"


def _data(spec: DataConfig, source: str | None, split: str) -> tuple[DataConfig, str]:
    """The data that were asked for, and the name of the split; `all` is a file or folder without any splitting."""
    if source is not None and not source.strip():
        raise UserError("--data is empty; give a name, a file or a folder")
    changes: dict[str, Any] = {} if source is None else {"source": source, "subset": None}
    if split == "all":
        changes |= {"valid_fraction": 0.0, "test_fraction": 0.0}
    return spec.model_copy(update=changes), "train" if split == "all" else split


def _with_law(config: Config, bound: str | None, steps: int | None, schedule: str | None) -> Config:
    """The config under the bound and schedule that were asked for."""
    changes = [f"schedule.name={schedule}"] if schedule else []
    if steps is not None and bound is None:
        bound = "discrete"
    if bound is not None:
        if bound == "continuous" and steps is not None:
            raise UserError("--steps belongs to --bound discrete")
        changes += [f"objective.bound={bound}", f"objective.steps={'null' if steps is None else steps}"]
    return config.override(changes)


def write_samples(
    path: str,
    *,
    n: int,
    length: int | None,
    prompt: str | None,
    infill: str | None,
    watch: bool,
    which: str,
    weights: str,
    device: str,
    how: dict[str, Any],
) -> tuple[list[Sample], dict[str, Any]]:
    """Samples of a saved model, and the protocol they were drawn by."""
    if n < 1:
        raise UserError(f"-n {n} must be at least 1")
    lm = load(path, which=which, weights=weights, device=device)
    canvas = lm.gap_canvas(infill) if infill is not None else lm.prompt_canvas(prompt or "", length)
    protocol = {
        "model": path, "checkpoint": which, "weights": used_weights(lm, weights), "dtype": "float32",
        "length": len(canvas.ids), "device": str(lm.model.device), "torch": torch.__version__,
        "law": "T-step ancestral", **how,
    }  # fmt: skip
    if not watch:
        return lm.write([canvas] * n, **how), protocol
    with Watcher(lm.tokenizer, [canvas.ids] * n) as watcher:
        return lm.write([canvas] * n, watch=watcher, **how), protocol
