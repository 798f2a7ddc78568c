"""A run: data, model, the loop with its evaluations, samples and checkpoints, and how it goes on after a stop."""

from __future__ import annotations

import json
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from . import build, checkpoint
from .config import Config, differences, load_yaml
from .data.labels import load_labels, save_labels
from .data.pack import Prepared, prepare
from .data.tokenizers import Tokenizer
from .dist import World
from .dist import world as join_world
from .evaluate import evaluate
from .keys import Keys
from .lm import LM, Job
from .samplers import PLANS
from .track import Display, Sink, open_sinks, progress_bar
from .trainer import Trainer
from .types import Likelihood, UserError
from .writing import Options

# Settings that a continued run may have different: how far it goes, what is reported, and on which machine. (Under a
# decay, train.steps moves the learning rate of the steps to come.)
MAY_CHANGE = (
    "train.steps", "train.log_every", "train.checkpoint_every", "train.keep_last", "train.sinks", "train.device",
    "train.strategy", "train.micro_batch_size", "train.compile", "data.cache", "data.local", "eval.", "sample.",
)  # fmt: skip


@dataclass(frozen=True)
class Result:
    """How a call of `train` ended."""

    out: Path
    step: int
    finished: bool
    valid: Likelihood | None  # of this call's last evaluation
    seconds: float
    tokens_per_second: float


def train(config: Config, out: str | Path, *, quiet: bool = False) -> Result:
    """Train, or continue the run that is in `out`. SIGTERM and Ctrl-C save before they stop."""
    with join_world(config.train.device) as world:
        run = Run(config, Path(out), world, quiet)
        with stop_signals() as stopped:
            return run.go(stopped)


class Run:
    """One call of `train` on one process."""

    def __init__(self, config: Config, out: Path, world: World, quiet: bool = False) -> None:
        self.config, self.out, self.world = config, out, world
        self.quiet = quiet or not world.main
        found = checkpoint.steps(out)
        self.start = found[-1] if found else 0
        tokenizer, labels = self._open_folder()
        with world.first(), progress_bar("tokenizing", self.quiet) as progress:
            splits = ("train", config.eval.split)
            self.data: Prepared = prepare(config.data, tokenizer, splits, progress, labels)
        self.rows, self.valid_rows = self.data.split("train"), self.data.split(config.eval.split)
        torch.manual_seed(Keys(config.seed).torch_seed("init"))
        model = build.model(config, self.data.tokenizer.vocab, len(self.data.labels))
        self.trainer = Trainer(config, model, world)
        if config.sample.every:  # said now, and not after a day
            lm, steps = self._writer()
            lm.check(Job(lm.prompt_canvas("", config.sample.length), Options(steps=steps)))
        self.best: dict[str, Any] | None = None
        self.other_machine = ""
        self.valid: Likelihood | None = None
        if found:
            folder = checkpoint.step_folder(out, self.start)
            state = checkpoint.read_json(folder / "state.json")
            self._same_data(state)
            self.other_machine = self._compare_machine(state)
            self.trainer.restore(folder)
            self.best = state["best"]
        if world.main:
            checkpoint.write_atomically(out / "config.yaml", config.to_yaml())
        self.sinks: list[Sink] = []
        if world.main:
            self.sinks = open_sinks(config.train.sinks, out, config.model_dump(mode="json"), self.start)
        self.display = Display(config.train.steps, self.start, self.quiet)

    # -- beginning ---------------------------------------------------------------------------------------------------

    def _open_folder(self) -> tuple[Tokenizer | None, list[str] | None]:
        """Check that the folder can hold this run, and take tokenizer and labels of a run that is already there."""
        try:
            self.out.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise UserError(f"cannot make the folder {self.out}: {error.strerror}; choose another --out") from None
        if not self.start:
            return None, None
        before = load_yaml(self.out / "config.yaml")
        changed = [d for d in differences(before, self.config) if not d[0].startswith(MAY_CHANGE)]
        if changed:
            key, old, new = changed[0]
            raise UserError(
                f"the run in {self.out} was started with {key}={old}, not {new}; "
                f"continue it with {key}={old}, or start a new one with another --out"
            )
        folder = checkpoint.step_folder(self.out, self.start)
        checkpoint.verify(folder)
        return Tokenizer.load(folder), load_labels(folder, self.config.data.label)

    def _same_data(self, state: dict[str, Any]) -> None:
        if state["data"] != self.data.fingerprint:
            raise UserError(
                f"the data {self.config.data.source} changed since the run in {self.out} was started; "
                "restore it, or start a new run with another --out"
            )

    def _compare_machine(self, state: dict[str, Any]) -> str:
        """A remark where sums are taken in another order than before, so that the last bits may differ."""
        before, now = (state["processes"], state["threads"]), (self.world.size, torch.get_num_threads())
        if before == now:
            return ""
        return f" (with {now[0]} x {now[1]} instead of {before[0]} x {before[1]} processes x threads: not bit for bit)"

    # -- the loop ----------------------------------------------------------------------------------------------------

    def go(self, stopped: list[int]) -> Result:
        """Step until the end or a signal."""
        spec = self.config.train
        begin, tokens, step = time.monotonic(), 0.0, self.start
        if step:
            self.display.say(f"continuing {self.out} at step {step}{self.other_machine}")
        try:
            while step < spec.steps:
                figures, stop = self.trainer.step(self.rows, step, bool(stopped))
                step += 1
                tokens += figures.pop("tokens")
                speed = tokens / (time.monotonic() - begin)
                self._after_step(step, figures, speed)
                if stop and step < spec.steps:
                    self._interrupted(step)
                    break
        finally:
            self.display.close()
            for sink in self.sinks:
                sink.close()
        seconds = time.monotonic() - begin
        return Result(self.out, step, step >= spec.steps, self.valid, seconds, tokens / max(seconds, 1e-9))

    def _after_step(self, step: int, figures: dict[str, float], speed: float) -> None:
        spec = self.config
        self.display.update(step, loss=f"{figures['loss']:.3f}", **{"tokens/s": f"{speed:,.0f}"})
        last = step == spec.train.steps
        if step % spec.train.log_every == 0 or last:
            self._log(step, {**figures, "tokens_per_second": speed})
        improved = False
        if self.trainer.model.likelihood and (last or (spec.eval.every and step % spec.eval.every == 0)):
            improved = self._evaluate(step)
        if spec.sample.every and (last or step % spec.sample.every == 0):
            self._sample(step)
        if last or improved or step % spec.train.checkpoint_every == 0:
            self.save(step)

    def _log(self, step: int, figures: dict[str, Any]) -> None:
        for sink in self.sinks:
            sink.log(figures, step)

    def _evaluate(self, step: int) -> bool:
        """Score the validation split with the averaged weights; says whether it is the best so far."""
        spec = self.config.eval
        with self.trainer.ema.swapped(self.trainer.model), self.trainer.autocast():
            self.valid = evaluate(
                self.trainer.model, self.valid_rows, draws=spec.draws, batch_size=spec.batch_size, seed=spec.seed,
                limit=spec.rows, world=self.world, attend_pads=self.config.data.attend_pads,
            )  # fmt: skip
        nats, error = self.valid.nats_per_token, self.valid.stderr_nats
        bar = f" ± {self.valid.perplexity * error:.2f}" if error else ""
        self.display.update(step, **{"valid ppl": f"{self.valid.perplexity:.2f}{bar}"})
        self._log(step, {"valid_nats": nats, "valid_stderr_nats": error, "valid_perplexity": self.valid.perplexity})
        improved = self.best is None or nats < self.best["nats"]
        if improved:
            self.best = {"step": step, "nats": nats}
        return improved

    def _writer(self) -> tuple[LM, int | None]:
        """The model with its tokenizer, and the steps of its samples: None where its sampler takes no steps."""
        lm = LM(self.trainer.model, self.data.tokenizer, self.config, labels=list(self.data.labels))
        return lm, self.config.sample.steps if "steps" in PLANS[lm.model.usual_sampler].takes else None

    def _sample(self, step: int) -> None:
        spec, (lm, steps) = self.config.sample, self._writer()
        with self.trainer.ema.swapped(self.trainer.model), self.trainer.autocast():
            texts = lm.sample(spec.n, length=spec.length, steps=steps, seed=self.config.seed)
        self._log(step, {"samples": texts})
        for text in texts:
            self.display.say(f"sample at step {step}: {text}")

    # -- keeping -----------------------------------------------------------------------------------------------------

    def save(self, step: int) -> None:
        """Write a checkpoint (all processes take part where the model is sharded), then drop old ones."""
        folder = checkpoint.step_folder(self.out, step)
        if not self.world.main:
            self.world.barrier()  # until the folder is there
            self.trainer.save(checkpoint.temporary_name(folder))
        else:
            state = {
                "step": step,
                "seed": self.config.seed,
                "data": self.data.fingerprint,
                "best": self.best,
                "processes": self.world.size,
                "threads": torch.get_num_threads(),
            }
            with checkpoint.writing(folder) as temporary:
                self.world.barrier()
                self.trainer.save(temporary)
                self._describe(temporary)
                (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
            checkpoint.prune(self.out, self.config.train.keep_last, self.best["step"] if self.best else None)
        self.world.barrier()

    def _describe(self, folder: Path) -> None:
        """What makes a checkpoint folder complete in itself: config, tokenizer and the names of the labels."""
        (folder / "config.yaml").write_text(self.config.to_yaml(), encoding="utf-8")
        self.data.tokenizer.save(folder)
        if self.config.data.label is not None:
            save_labels(folder, self.config.data.label, self.data.labels)

    def _interrupted(self, step: int) -> None:
        if checkpoint.steps(self.out)[-1:] != [step]:
            self.save(step)
        if self.world.main:
            self.display.say(f"stopped at step {step} and saved; run the same command again to go on", always=True)


@contextmanager
def stop_signals() -> Iterator[list[int]]:
    """SIGTERM and the first Ctrl-C are noted in the list; the loop looks at it after each step."""
    seen: list[int] = []

    def note(number: int, frame: object) -> None:
        seen.append(number)
        signal.signal(number, before[number])  # a second one acts as usual

    numbers = (signal.SIGTERM, signal.SIGINT)
    before: dict[int, Any] = {}
    try:
        for number in numbers:
            before[number] = signal.signal(number, note)
    except ValueError:  # not in the main thread: somebody else minds the signals
        yield seen
        return
    try:
        yield seen
    finally:
        for number in numbers:
            signal.signal(number, before[number])
