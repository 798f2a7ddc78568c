"""What a run tells: a JSONL journal always, other sinks on request, and progress on standard error."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Protocol

from rich.console import Console
from rich.progress import BarColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from .checkpoint import write_atomically
from .types import Progress, UserError


class Sink(Protocol):
    """Somewhere to send figures."""

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Take the figures of a step."""

    def close(self) -> None:
        """Nothing more will come."""


class Journal:
    """log.jsonl: one JSON object a line, each with its step."""

    def __init__(self, path: Path, resume_at: int) -> None:
        self.path = path
        if path.exists():  # lines of steps that were lost with a kill would appear twice
            lines = path.read_text(encoding="utf-8", errors="replace").splitlines()
            kept = [line for line in lines if _step_of(line) <= resume_at]
            write_atomically(path, "".join(line + "\n" for line in kept))

    def log(self, figures: Mapping[str, Any], step: int) -> None:
        """Append a line."""
        try:
            with self.path.open("a", encoding="utf-8") as file:
                file.write(json.dumps({"step": step, **figures}) + "\n")
        except OSError as error:
            raise UserError(
                f"could not write {self.path} ({error.strerror}); checkpoints are untouched, "
                "free some space and run the same command again"
            ) from None

    def close(self) -> None:
        """Every line is already on its way to the disk."""


def _step_of(line: str) -> float:
    """The step of a journal line; a line that a kill cut short counts as lost."""
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


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
    sinks: list[Sink] = [Journal(out / "log.jsonl", resume_at)]
    for name in names:
        try:
            sinks.append(TensorBoard(out) if name == "tensorboard" else Tracker(name, out, config))
        except ImportError:
            raise UserError(
                f"train.sinks names {name}, which is not installed; pip install {name}, or leave it out"
            ) from None
    return sinks


class Display:
    """Live progress on a terminal, plain lines where there is none; silent on all processes but the first."""

    def __init__(self, total: int, start: int, quiet: bool = False, every: float = 10.0) -> None:
        self.total, self.start, self.quiet, self.every = total, start, quiet, every
        self.began = self.spoke = time.monotonic()
        self.console = Console(stderr=True, highlight=False, emoji=False)
        self.live: Bar | None = None
        self.figures: dict[str, str] = {}
        if not quiet and self.console.is_terminal:
            columns = (TextColumn("step {task.completed}/{task.total}"), BarColumn(), TimeRemainingColumn())
            self.live = Bar(*columns, TextColumn("{task.description}"), console=self.console)
            self.task = self.live.add_task("", total=total, completed=start)
            self.live.start()

    def update(self, step: int, **figures: str) -> None:
        """Show where the run is."""
        self.figures.update(figures)
        text = "  ".join(f"{name} {value}" for name, value in self.figures.items())
        if self.live:
            self.live.update(self.task, completed=step, description=text)
        elif not self.quiet:
            now = time.monotonic()
            if now - self.spoke >= self.every or step == self.total or step == self.start + 1:
                self.spoke = now
                left = (now - self.began) / max(step - self.start, 1) * (self.total - step)
                print(f"step {step}/{self.total}  {text}  left {_clock(left)}", file=sys.stderr, flush=True)

    def say(self, text: str, always: bool = False) -> None:
        """A line of its own; `always`, also where progress is not wanted."""
        if always or not self.quiet:
            self.console.print(text, markup=False, soft_wrap=True)

    def close(self) -> None:
        """Leave the terminal as it was."""
        if self.live:
            self.live.stop()


@contextmanager
def progress_bar(what: str, quiet: bool = False) -> Iterator[Progress]:
    """A bar on a terminal, a line every ten seconds elsewhere; always on standard error."""
    console = Console(stderr=True)
    if quiet:
        yield lambda done, total: None
    elif console.is_terminal:
        with Bar(TextColumn(what), BarColumn(), TimeRemainingColumn(), console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total or None)  # 0: not known
    else:
        spoke = [time.monotonic()]

        def line(done: int, total: int) -> None:
            if time.monotonic() - spoke[0] > 10:
                spoke[0] = time.monotonic()
                print(f"{what}: {done}/{total}" if total else f"{what}: {done}", file=sys.stderr, flush=True)

        yield line


def _clock(seconds: float) -> str:
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"
