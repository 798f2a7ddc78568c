"""Progress of long work, on standard error: a live bar on a terminal, lines of text elsewhere."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, TextColumn, TimeRemainingColumn
from rich.progress import Progress as Bar

from .types import Progress

# What a terminal would obey, as pictures of it: control characters, and marks that turn the direction of a line.
CONTROLS = {code: 0x2400 + code for code in range(32) if chr(code) not in "\n\t"} | {0x7F: 0x2421}
CONTROLS |= dict.fromkeys((*range(0x80, 0xA0), *range(0x202A, 0x202F), *range(0x2066, 0x206A)), 0xFFFD)


class Display:
    """Live progress on a terminal, lines of text elsewhere; silent on all processes but the first."""

    def __init__(self, total: int, start: int, quiet: bool = False, every: float = 10.0) -> None:
        self.total, self.start, self.quiet, self.every = total, start, quiet, every
        self.began = self.spoke = time.monotonic()
        self.console = Console(stderr=True, highlight=False, emoji=False)
        self.live: Bar | None = None
        self.figures: dict[str, str] = {}
        self.step = start
        if not quiet and self.console.is_terminal:
            columns = (TextColumn("step {task.completed}/{task.total}"), BarColumn(), TimeRemainingColumn())
            self.live = Bar(*columns, TextColumn("{task.description}"), console=self.console)
            self.task = self.live.add_task("", total=total, completed=start)
            self.live.start()

    def update(self, step: int, **figures: str) -> None:
        """Show where the run is."""
        self.figures.update(figures)
        self.step, text = step, self._figures()
        if self.live:
            self.live.update(self.task, completed=step, description=text)
        elif not self.quiet:
            now = time.monotonic()
            if now - self.spoke >= self.every or step == self.total or step == self.start + 1:
                self.spoke = now
                left = (now - self.began) / max(step - self.start, 1) * (self.total - step)
                print(f"step {step}/{self.total}  {text}  left {clock(left)}", file=sys.stderr, flush=True)

    def inside(self, what: str) -> Progress:
        """How far something is that happens within a step: a function of how many are done, and of how many."""

        def show(done: int, total: int) -> None:
            if self.live:
                text = "" if done == total else f"{what} {done}/{total}  "
                self.live.update(self.task, description=text + self._figures())
            elif not self.quiet and time.monotonic() - self.spoke >= self.every:
                self.spoke = time.monotonic()
                print(f"step {self.step}/{self.total}  {what} {done}/{total}", file=sys.stderr, flush=True)

        return show

    def _figures(self) -> str:
        return "  ".join(f"{name} {value}" for name, value in self.figures.items())

    def say(self, text: str, always: bool = False) -> None:
        """A separate line; with `always`, also where progress is not wanted."""
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
        columns = (TextColumn(what), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
        with Bar(*columns, console=console, transient=True) as bar:
            task = bar.add_task(what, total=None)
            yield lambda done, total: bar.update(task, completed=done, total=total or None)  # 0: not known
    else:
        spoke = [time.monotonic()]

        def line(done: int, total: int) -> None:
            if time.monotonic() - spoke[0] > 10:
                spoke[0] = time.monotonic()
                print(f"{what}: {done}/{total}" if total else f"{what}: {done}", file=sys.stderr, flush=True)

        yield line


def clock(seconds: float) -> str:
    """A time span as a person says it."""
    minutes, rest = divmod(int(seconds), 60)
    if minutes >= 60:
        return f"{minutes // 60}h{minutes % 60:02d}m"
    return f"{minutes}m{rest:02d}s" if minutes else f"{rest}s"


def perplexity_form(perplexity: float) -> str:
    """How a perplexity is written: not with 70 digits where a model has never seen such text."""
    return ".2f" if perplexity < 1e9 else ".3g"
