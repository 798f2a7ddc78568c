"""Where the figures of a run go: always to a JSONL journal, and to other sinks on request."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol

from ..files import write_text, writing
from ..jsonable import finite
from ..types import UserError


class Sink(Protocol):
    """Somewhere to send figures."""

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Record the figures of a step."""

    def close(self) -> None:
        """Nothing more will come."""


JOURNAL = "log.jsonl"


class Journal:
    """log.jsonl: one JSON object per line, each with its step."""

    def __init__(self, path: Path, resume_at: int) -> None:
        self.path = path
        if path.exists():  # lines of steps that were lost with a kill would appear twice
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _step_of(line) <= resume_at]
            write_text(path, "".join(line + "\n" for line in kept))

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Append a line."""
        fix = "checkpoints are untouched, free some space and run the same command again"
        with writing(self.path, fix), self.path.open("a", encoding="utf-8") as file:
            file.write(json.dumps(finite({"step": step, **figures})) + "\n")

    def close(self) -> None:
        """Every line is already on its way to the disk."""


def _step_of(line: str) -> float:
    """The step of a journal line; a line that a kill cut short counts as lost."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def last_logged(path: Path, figure: str) -> float:
    """The last value of a figure in a journal; 0 where there is none."""
    lines = path.read_text(encoding="utf-8").splitlines() if path.exists() else []
    records = (json.loads(line) for line in reversed(lines))
    return next((float(record[figure]) for record in records if figure in record), 0.0)


class TensorBoard:
    """Event files for TensorBoard."""

    def __init__(self, out: Path) -> None:
        from torch.utils.tensorboard import SummaryWriter

        self.writer = SummaryWriter(str(out / "tensorboard"))

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Write the numbers as scalars."""
        for name, value in figures.items():
            if isinstance(value, int | float):
                self.writer.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush and close."""
        self.writer.close()


class Tracker:
    """trackio or wandb: they share one interface."""

    def __init__(self, package: str, out: Path, config: Mapping[str, Any]) -> None:
        import importlib

        self.module = importlib.import_module(package)
        self.module.init(project="unmask", name=out.name, config=dict(config))

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Send the figures."""
        self.module.log(dict(figures), step=step)

    def close(self) -> None:
        """End the run."""
        self.module.finish()


def open_sinks(names: Sequence[str], out: Path, config: Mapping[str, Any], resume_at: int) -> list[Sink]:
    """The journal, and the sinks that the config names."""
    sinks: list[Sink] = [Journal(out / JOURNAL, resume_at)]
    for name in names:
        try:
            sinks.append(TensorBoard(out) if name == "tensorboard" else Tracker(name, out, config))
        except ImportError:
            raise UserError(
                f"train.sinks names {name}, which is not installed; pip install {name}, or leave it out"
            ) from None
    return sinks
