"""The infill loop of the terminal: a text with gaps, filled live, again and again.

It shows what `--watch` shows (`terminal`) and keeps what a replay needs (`trace`), so that `:html` and `:json` save the
last text as the page would.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from ..config import nearest
from ..data.canvas import blanks, split_gaps
from ..lm import LM, Job
from ..sampling.params import SamplingParams, settings_on
from ..sampling.trace import Trace
from ..serve.replay import write_html
from ..types import Sample, State, UserError
from .terminal import Watcher

HELP = """\
A text with gaps is filled: {{3}} or ___ is a gap of 3 tokens, {{2-6}} one of 2 to 6, [MASK] one of 1.
An empty line fills the last text again, with the next seed.
  :SETTING VALUE  set one of SETTINGS (- resets it to its default)
  :n 3            three samples of each text
  :show           all settings
  :html FILE      save the last texts as a replay
  :json FILE      save their trace
  :help, :quit"""


@dataclass
class FillLoop:
    """The settings, which persist, and the last text."""

    lm: LM
    name: str  # of the model, for protocols
    how: dict[str, Any] = field(default_factory=dict)  # fields of `SamplingParams` that were set
    n: int = 1
    console: Console | None = None  # where to show how masks become words; None: nowhere
    text: str = ""
    trace: Trace | None = None
    exact: bool = False  # whether to leave out what the model recommends

    @property
    def options(self) -> SamplingParams:
        """The settings: those that were set, and what the model recommends for the others."""
        return self.lm.sampling_params(self.how, self.exact).settle(self.lm.model)

    def line(self, line: str, say: Callable[[str], object]) -> list[Sample] | None:
        """Execute a line; returns its samples (none if all it did was `say` something), or None to quit."""
        if line.startswith(":"):
            return self._command(line[1:].strip(), say)
        if not line.strip():
            if not self.text:
                say("type a text with a gap, for example: The cat {{3}} the house.   (:help says more)")
                return []
            self.how["seed"] = self.how.get("seed", 0) + self.n  # n samples have n seeds
            return self.fill(self.text)
        samples = self.fill(gaps(line))
        self.text = gaps(line)
        return samples

    def check(self) -> None:
        """Check that the settings are compatible, before anything is typed."""
        any_form = replace(self.options, regex=None, schema=None, choices=(), where=None)  # one token may be too few
        self.lm.check(Job(self.lm.gap_canvas("{{1}}"), any_form))

    def fill(self, text: str) -> list[Sample]:
        """The text with its gaps filled, n times."""
        lm, options = self.lm, self.options
        canvas = lm.gap_canvas(text, windowed=options.stride is not None, options=options)
        canvases = [canvas] * self.n
        protocol = {"model": self.name, "length": len(canvas.ids), **options.describe(), "seed": options.seed}
        trace = Trace(lm.tokenizer, [one.ids for one in canvases], protocol)
        with ExitStack() as stack:
            takes: list[Callable[[State], None]] = [trace]
            if self.console is not None:
                takes.append(stack.enter_context(Watcher(lm.tokenizer, [one.ids for one in canvases], self.console)))
            samples = lm.write(canvases, options, tops=5, watch=lambda state: _each(takes, state))
        trace.finish(samples)
        self.trace = trace
        return samples

    def _command(self, words: str, say: Callable[[str], object]) -> list[Sample] | None:
        name, _, value = words.partition(" ")
        name, value = name.replace("-", "_"), value.strip()
        if name in ("quit", "q", "exit"):
            return None
        if name in ("help", "h", ""):
            say(HELP.replace("SETTINGS", ", ".join(settings_on("loop"))))
        elif name == "show":
            say(", ".join(f"{key} {shown}" for key, shown in self._settings().items()))
        elif name in ("html", "json"):
            self._save(name, value, say)
        elif name == "n":
            self.n = _count(value)
        elif name in settings_on("loop"):
            self._set(name, value)
        else:
            known = (*settings_on("loop"), "n", "show", "html", "json", "help", "quit")
            raise UserError(f"there is no command :{name}{nearest(name, known)}; :help lists them")
        return []

    def _settings(self) -> dict[str, Any]:
        described = self.options.describe()
        return {"n": self.n, "seed": self.how.get("seed", 0)} | {
            key: value for key, value in described.items() if value is not None and key != "law"
        }

    def _set(self, name: str, value: str) -> None:
        changed = {key: kept for key, kept in self.how.items() if key != name}
        if value not in ("", "-"):
            spec = settings_on("loop")[name]
            changed[name] = spec.parse(value.split() if spec.kind == "tokens" else value, f":{name} {value}")
        replace(self, how=changed).check()  # raises now, before anything is changed
        self.how = changed

    def _save(self, kind: str, path: str, say: Callable[[str], object]) -> None:
        if self.trace is None:
            raise UserError("there is nothing to save yet; fill a text first")
        if not path:
            raise UserError(f"name a file, for example :{kind} fill.{kind}")
        if kind == "html":
            write_html(self.trace, path)
        else:
            self.trace.save(path)
        say(f"wrote {path}")


def gaps(text: str) -> str:
    """Blanks as gaps, whatever else is in the text: ___ becomes {{3}}; other gaps stay as they are."""
    parts = split_gaps(text)
    for i, part in enumerate(parts):
        parts[i] = f"{{{{{part}}}}}" if i % 2 else _braced(blanks(part))
    return "".join(parts)


def _braced(parts: Sequence[str]) -> str:
    return "".join(f"{{{{{part}}}}}" if i % 2 else part for i, part in enumerate(parts))


def _each(takes: Sequence[Callable[[State], None]], state: State) -> None:
    for take in takes:
        take(state)


def _count(value: str) -> int:
    if not value.isdecimal() or not 1 <= int(value) <= 64:
        raise UserError(f":n {value} must be a whole number from 1 to 64")
    return int(value)
