"""The run loop of everything that is trained: steps, evaluations, the best, checkpoints, signals, and resuming.

What is trained is a `TrainingJob`: a language model on rows of text (`text`), or a classifier on a task (`finetune`).
The loop asks it for batches, figures and files, and knows nothing else of it.
"""

from __future__ import annotations

import json
import math
import os
import signal
import sys
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import Config, differences, load_yaml
from ..distributed import World, launched
from ..files import locked, temporary_folder, write_text
from ..hub import checkpoint
from ..progress import Display
from ..types import UserError
from .divergence import Divergence
from .step import Cut, Trainer
from .tracking import JOURNAL, Sink, last_logged, open_sinks

# Settings that may differ in a continued run: how far it goes, what is reported, and on which machine. (Under a
# decay, train.steps and train.decay_share move the learning rate of the steps to come.) train.start is not one of
# them: a checkpoint is never replaced by other weights, so another name would only make the record of the run false.
MAY_CHANGE = (
    "train.steps", "train.minutes", "train.decay_share", "train.log_every", "train.checkpoint_every", "train.keep_last",
    "train.sinks", "train.device", "train.strategy", "train.micro_batch_size", "train.compile", "train.patience",
    "data.cache", "data.local", "task.local", "task.genome", "eval.", "sample.",
)  # fmt: skip


WHOLE = ("task.name", "train.start", "model.architecture")  # settings that make it another run


@dataclass(frozen=True)
class Evaluated:
    """One evaluation."""

    figure: float  # what is compared with the best
    shown: dict[str, str]  # in the line of progress
    logged: dict[str, Any]


@dataclass(frozen=True)
class Outcome:
    """How a call of `Loop.run` ended."""

    step: int
    finished: bool
    stopped_early: bool
    seconds: float
    per_second: float  # units (tokens, examples) of training


class TrainingJob(ABC):
    """What is trained, on what, and how it is judged."""

    config: Config  # complete: train.steps is known
    model: nn.Module
    cut: Cut
    data: Any  # what `cut` takes batches from
    figure: str  # the name of what is compared
    higher_is_better = False
    unit = "tokens"  # what its speed counts, a figure of a step
    display: Display | None = None  # of the loop: evaluations may show there how far they are
    start_seconds = 0.0  # processor time that the weights of a new run took before the first step

    @abstractmethod
    def identity(self) -> dict[str, Any]:
        """Facts that a continued run must find unchanged: they are kept in state.json."""

    @abstractmethod
    def changed(self, fact: str) -> str:
        """The sentence for a fact that has changed."""

    @abstractmethod
    def evaluates(self, step: int) -> bool:
        """Whether there is an evaluation after a step that is not the last."""

    @abstractmethod
    def evaluate(self, trainer: Trainer, step: int) -> Evaluated | None:
        """Judge the averaged weights (all processes call); None where the model cannot be judged."""

    def streams(self, step: int | None = None) -> float:
        """As `LanguageModel.streams`: a step costs in proportion to it."""
        return 1.0

    def evaluation_seconds(self, trainer: Trainer) -> float:
        """About how long an evaluation takes (all processes call)."""
        return 0.0

    def samples(self, trainer: Trainer, step: int) -> list[str]:
        """What the model writes after this step, if it is time for that."""
        return []

    @abstractmethod
    def describe(self, folder: Path, step: int) -> None:
        """Write what makes a checkpoint complete in itself, config.yaml apart."""


def folder_of(out: str | Path) -> Path:
    """The folder of a run; an empty name is an error, and not the current folder."""
    if not str(out).strip():
        raise UserError("the folder of the run has no name; give one with --out, or leave --out away")
    return Path(out)


def make_folder(out: Path) -> None:
    """Make the folder of a run, or say why it cannot be."""
    try:
        out.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot make the folder {out}: {error.strerror}; choose another --out") from None
    if not os.access(out, os.W_OK | os.X_OK):
        raise UserError(f"the folder {out} is not writable; choose another --out")


@contextmanager
def alone_in(out: Path, world: World) -> Iterator[None]:
    """Keep other trainings out of the folder of a run."""
    make_folder(out)
    if not world.main:  # the main process holds it for all of them
        yield
        return
    with locked(out, "is training in"):
        yield


def open_folder(config: Config, out: Path) -> tuple[Config, Path | None]:
    """The settings of the run in `out`, and the checkpoint from which it continues; None for a new run.

    The checkpoint is intact, and its run has the same settings. What the run chose when it began stays.
    """
    make_folder(out)
    steps = checkpoint.steps(out)
    if not steps:
        return config.resolved(), None
    before = load_yaml(out / "config.yaml")
    config = _continued(before, config, out)
    _check_same(before, config, out)
    if steps[-1] > config.train.steps:
        raise UserError(
            f"the run in {out} is already at step {steps[-1]}, beyond train.steps={config.train.steps}; "
            f"set train.steps={steps[-1]} or more, or start a new run with another --out"
        )
    folder = checkpoint.step_folder(out, steps[-1])
    checkpoint.verify(folder)
    return config, folder


def _continued(before: Config, config: Config, out: Path) -> Config:
    """The config with what the run chose when it began: its shares in steps, and the steps of its time."""
    train: dict[str, Any] = {}
    objective: dict[str, Any] = {}
    if 0 < config.train.warmup < 1:  # a share; a number of steps is compared
        train["warmup"] = before.train.warmup
    if 0 < (config.objective.clip_until or 0) < 1:
        objective["clip_until"] = before.objective.clip_until
    if config.train.minutes is not None:
        if before.train.minutes is None:
            raise UserError(
                f"the run in {out} was started without train.minutes; set train.steps, or choose another --out"
            )
        train["steps"] = max(1, round(before.train.steps * config.train.minutes / before.train.minutes))
    return config.changed(train=train, objective=objective).resolved()


def _check_same(before: Config, config: Config, out: Path) -> None:
    changed = [d for d in differences(before, config) if not d[0].startswith(MAY_CHANGE)]
    if changed:
        key, old, new = min(changed, key=lambda each: WHOLE.index(each[0]) if each[0] in WHOLE else len(WHOLE))
        if key in WHOLE:  # everything else follows from these, so changing it would not help
            raise UserError(
                f"the run in {out} was started with {key}={_shown(old)}, not {_shown(new)}: it is another run; "
                "choose another --out"
            )
        raise UserError(
            f"the run in {out} was started with {key}={old}, not {new}; "
            f"continue it with {key}={old}, or start a new one with another --out"
        )


def say_run(name: str, number: int, total: int, quiet: bool) -> None:
    """Which of several runs comes now."""
    if not quiet and os.environ.get("RANK", "0") == "0":
        print(f"run {number}/{total}: {name}", file=sys.stderr, flush=True)


def _shown(value: Any) -> str:
    """A setting in a sentence: not all of a config.json."""
    return f"that of a {value.get('model_type')}" if isinstance(value, dict) else str(value)


class Loop:
    """One job on one process, new or continued from the checkpoint `folder`."""

    def __init__(self, job: TrainingJob, out: Path, world: World, quiet: bool, folder: Path | None) -> None:
        self.job, self.config, self.out, self.world = job, job.config, out, world
        self.trainer = Trainer(job.config, job.model, world, job.cut)
        self.start, self.waited, remark = 0, 0, ""  # waited: evaluations since the best
        self.best: dict[str, Any] | None = None
        self.cores = 0.0  # processor time of this process when the first step began
        self.spent = job.start_seconds  # processor time of learning alone: of the start and of all steps so far
        if folder is not None:
            remark = self._restore(folder)
        if world.main:
            write_text(out / "config.yaml", self.config.to_yaml())
        self.sinks: list[Sink] = []
        if world.main:
            self.sinks = open_sinks(self.config.train.sinks, out, self.config.model_dump(mode="json"), self.start)
            self.spent += last_logged(out / JOURNAL, "step_seconds")
        self.display = job.display = Display(self.config.train.steps, self.start, quiet)
        self.trainer.progress = self.display.inside("micro-batch")
        if self.start:
            self.display.say(f"continuing {out} at step {self.start}{remark}")

    def _restore(self, folder: Path) -> str:
        """Restore weights and counts from a checkpoint; returns a remark where the last bits may differ."""
        state = checkpoint.read_json(folder / "state.json")
        for fact, value in self.job.identity().items():
            if state.get(fact) != value:
                raise UserError(
                    f"{self.job.changed(fact)} since the run in {self.out} was started; "
                    "restore it, or start a new run with another --out"
                )
        self.trainer.restore(folder)
        self.start, self.waited = state["step"], state.get("waited", 0)
        self.best = state["best"]
        before, now = (state["processes"], state["threads"]), (self.world.size, torch.get_num_threads())
        if before == now:
            return ""
        # sums are taken in another order than before
        return f" (with {now[0]} x {now[1]} instead of {before[0]} x {before[1]} processes x threads: not bit for bit)"

    # -- the loop ----------------------------------------------------------------------------------------------------

    def run(self, stopped: list[int]) -> Outcome:
        """Step until the end, a signal, or too many evaluations without an improvement."""
        steps = self.config.train.steps
        begin, done, step = time.monotonic(), 0.0, self.start
        self.cores = time.process_time()
        divergence = Divergence(self.config.train)
        try:
            while step < steps and not self.patience_ended:
                before = time.process_time()
                figures, stop = self.trainer.step(self.job.data, step, stopped)
                self.spent += time.process_time() - before
                if figures:
                    divergence.check(step, figures["loss"])
                    step += 1
                    counted = {unit: figures.pop(unit) for unit in ("tokens", "examples")}
                    done += counted[self.job.unit]
                    self._after_step(step, figures, done / (time.monotonic() - begin))
                if stop and step < steps and not self.patience_ended:
                    self._interrupted(step)
                    break
            early = step < steps and self.patience_ended
            if early:
                self.display.say(
                    f"stopped early at step {step}: train.patience={self.config.train.patience}, and the last "
                    f"{self.waited} evaluations were not better than that of step {self.best and self.best['step']}"
                )
        finally:
            self.display.close()
            for sink in self.sinks:
                sink.close()
        seconds = time.monotonic() - begin
        return Outcome(step, early or step >= steps, early, seconds, done / max(seconds, 1e-9))

    @property
    def patience_ended(self) -> bool:
        """Whether there were so many evaluations without an improvement that it stops."""
        patience = self.config.train.patience
        return patience is not None and self.waited >= patience

    def _after_step(self, step: int, figures: dict[str, float], speed: float) -> None:
        spec, unit = self.config.train, self.job.unit
        shown = {"loss": f"{figures['loss']:.3f}", f"{unit}/s": f"{speed:,.0f}"}
        last = step == spec.steps
        judged = last or self.job.evaluates(step)
        if not judged:  # else with its own figures, and not with those of the evaluation before
            self.display.update(step, **shown)
        if step % spec.log_every == 0 or last:
            spent = {f"{unit}_per_second": speed, "core_seconds": time.process_time() - self.cores}
            self._log(step, {**figures, **spent, "step_seconds": self.spent})  # the first two since this call of `run`
        improved = judged and self._evaluate(step, shown)
        texts = self.job.samples(self.trainer, step)
        if texts:
            self._log(step, {"samples": texts})
        for text in texts:
            self.display.say(f"sample at step {step}: {text}")
        if last or improved or self.patience_ended or step % spec.checkpoint_every == 0:
            self.save(step)

    def _log(self, step: int, figures: dict[str, Any]) -> None:
        for sink in self.sinks:
            sink.log(figures, step)

    def _evaluate(self, step: int, shown: dict[str, str]) -> bool:
        """Evaluate the averaged weights; returns whether they are the best so far."""
        evaluated = self.job.evaluate(self.trainer, step)
        self.display.update(step, **shown, **(evaluated.shown if evaluated else {}))
        if evaluated is None:
            return False
        self._log(step, evaluated.logged)
        if self._better(evaluated.figure):
            self.best, self.waited = {"step": step, self.job.figure: evaluated.figure}, 0
            return True
        self.waited += 1
        return False

    def _better(self, figure: float) -> bool:
        if self.best is None or math.isnan(figure):
            return not math.isnan(figure)
        best = float(self.best[self.job.figure])
        return figure > best if self.job.higher_is_better else figure < best

    # -- keeping -----------------------------------------------------------------------------------------------------

    def save(self, step: int) -> None:
        """Write a checkpoint (all processes take part where the model is sharded), then drop old ones."""
        folder = checkpoint.step_folder(self.out, step)
        if not self.world.main:
            self.world.barrier()  # until the folder is there
            self.trainer.save(temporary_folder(folder))
        else:
            state = {
                "step": step,
                "seed": self.config.seed,
                **self.job.identity(),
                "best": self.best,
                "waited": self.waited,
                "processes": self.world.size,
                "threads": torch.get_num_threads(),
            }
            with checkpoint.writing(folder) as temporary:
                self.world.barrier()
                self.trainer.save(temporary)
                (temporary / "config.yaml").write_text(self.config.to_yaml(), encoding="utf-8")
                self.job.describe(temporary, step)
                (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
            checkpoint.prune(self.out, self.config.train.keep_last, self.best["step"] if self.best else None)
        self.world.barrier()

    def _interrupted(self, step: int) -> None:
        if step and checkpoint.steps(self.out)[-1:] != [step]:
            self.save(step)
        if self.world.main:
            what = f"stopped at step {step} and saved" if step else "stopped in the first step, nothing to save yet"
            self.display.say(f"{what}; run the same command again to continue", always=True)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """SIGTERM and the first Ctrl-C are added to the list, which is read after every micro-batch.

    A second one acts as usual. Under torchrun it does not: it may be the same, sent on by torchrun, which kills after a
    while what does not end.
    """
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)
        signal.signal(number, signal.SIG_IGN if launched() else before[number])

    numbers = (signal.SIGTERM, signal.SIGINT)
    before: dict[int, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, note)
    except ValueError:  # not in the main thread: signals are handled elsewhere
        yield seen
        return
    try:
        yield seen
    finally:
        for number in numbers:
            signal.signal(number, signal.SIG_IGN if launched() and seen else before[number])
