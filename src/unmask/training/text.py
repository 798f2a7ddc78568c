"""Training a language model on rows of text: what the loop (`loop`) needs to know about it."""

from __future__ import annotations

import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import nn

from ..config import Config, load_yaml
from ..data.chat import ChatTemplate
from ..data.labels import load_labels, save_labels
from ..data.pack import Prepared, prepare
from ..data.tokenization import Tokenizer
from ..distributed import World
from ..distributed import world as join_world
from ..evaluation.likelihood import evaluate
from ..hub import checkpoint, lora
from ..hub.both_ways import turned
from ..hub.resolve import load
from ..lm import LM
from ..lm import Job as WritingJob
from ..models import registry
from ..models.language_model import LanguageModel
from ..process.keys import Keys
from ..progress import perplexity_form, progress_bar
from ..sampling import SAMPLERS
from ..sampling.params import SamplingParams
from ..sampling.recommended import of_training
from ..types import Likelihood, Progress, UserError
from .budget import describe, fitting, mean_over, measure
from .cooccurrence import start_from_counts
from .loop import MAY_CHANGE, Evaluated, Loop, TrainingJob, alone_in, folder_of, open_folder, stop_signals
from .step import Trainer, before_last, text_batch

__all__ = ["MAY_CHANGE", "TextJob", "TrainResult", "check", "load_weights", "train"]


@dataclass(frozen=True)
class TrainResult:
    """How a call of `train` ended."""

    out: Path
    step: int
    finished: bool
    valid: Likelihood | None  # of this call's last evaluation
    seconds: float
    tokens_per_second: float
    stopped_early: bool = False  # by train.patience: finished before train.steps


def train(
    config: Config, out: str | Path, *, quiet: bool = False, start: LM | None = None, remark: str = ""
) -> TrainResult:
    """Train, or continue the run that is in `out`; a finished one is evaluated. SIGTERM and Ctrl-C save and stop.

    With `start` a new run begins with the weights and the tokenizer of that model, which config.train.start names; a
    run that is continued has its own, and needs no `start`. A new run says `remark` when it begins.
    """
    out = folder_of(out)
    with join_world(config.train.device) as world, alone_in(out, world):
        hidden = quiet or not world.main
        config = continued(config, out)
        fixed, folder = open_folder(config, out)
        job = TextJob(fixed, world, hidden, folder, start)
        if config.train.minutes is not None and folder is None:
            fixed = in_time(job, config, out, world, hidden)
            job = TextJob(fixed, world, hidden, folder, start, job.prepared)
        loop = Loop(job, out, world, hidden, folder)
        for sentence in filter(None, (remark, job.remark)) if folder is None else ():
            loop.display.say(sentence)
        with stop_signals() as stopped:
            end = loop.run(stopped)
        if end.finished and job.valid is None:  # it was finished before
            with progress_bar("evaluating", hidden) as progress:
                job.likelihood(loop.trainer, progress)
    return TrainResult(out, end.step, end.finished, job.valid, end.seconds, end.per_second, end.stopped_early)


def in_time(job: TextJob, config: Config, out: Path, world: World, quiet: bool) -> Config:
    """The config with the steps that fit into train.minutes; what they cost is measured, and the job is used up."""
    assert config.train.minutes is not None
    begin, seconds = time.monotonic(), 60 * config.train.minutes
    if not quiet:
        print(f"measuring how many steps fit into {config.train.minutes:g} minutes", file=sys.stderr, flush=True)
    cost = measure(job, out, world, seconds)
    left = seconds - mean_over(time.monotonic() - begin, world)
    fixed = fitting(config, cost, left)
    if not quiet:
        print(f"train.minutes={config.train.minutes:g}: {describe(fixed, cost)}", file=sys.stderr, flush=True)
    return fixed


def continued(config: Config, out: Path) -> Config:
    """The config for a run that an older version began: its documents have no learned ends unless that is asked for."""
    if config.data.learn_end is not None or not (out / "config.yaml").is_file():
        return config
    before = load_yaml(out / "config.yaml").data
    return config.override(["data.learn_end=false"]) if before.layout == "pad" and not before.has_ends else config


class TextJob(TrainingJob):
    """A language model, its rows, and its likelihood on the validation split."""

    model: LanguageModel
    figure = "nats"

    def __init__(
        self,
        config: Config,
        world: World,
        quiet: bool,
        folder: Path | None,
        start: LM | None = None,
        prepared: Prepared | None = None,
    ) -> None:
        self.config, self.world, self.cut = config, world, text_batch
        self.valid: Likelihood | None = None
        self.remark = ""  # to be said when a new run begins
        check(config, start, folder)
        tokenizer, labels = self._inherited(folder, start)
        self.template = self._template(folder, start)
        if prepared is None:
            with world.first(), progress_bar("tokenizing", quiet) as progress:
                prepared = prepare(
                    config.data, tokenizer, ("train", config.eval.split), progress, labels, self.template
                )
        self.prepared: Prepared = prepared
        self.data, self.valid_rows = self.prepared.split("train"), self.prepared.split(config.eval.split)
        if config.train.rows is not None:
            self.data = self.data.first(config.train.rows)
        torch.manual_seed(Keys(config.seed).torch_seed("init"))
        self.base: str | None = None  # the fingerprint of the weights that adapters stand beside
        if config.train.lora.rank is None:
            self.model = registry.model(config, self.prepared.tokenizer.vocab, len(self.prepared.labels))
        else:
            self._adapt(start if folder is None else turned(load(str(config.train.start)), config))
        self.recommended = of_training(
            config.sample.recommended, self.prepared.tokenizer.kind, self.model.default_sampler
        )
        if config.train.patience is not None and not self.model.likelihood:
            raise UserError("train.patience waits for a better likelihood, and this model has none; leave it out")
        if start is not None and folder is None and self.base is None:
            target, source = self.model, start.model
            if target.state_dict().keys() != source.state_dict().keys():  # what another method adds begins fresh
                target, source = target.backbone, source.backbone  # type: ignore[assignment]
            load_weights(target, source, f"the model {config.train.start}")
        elif config.train.embeddings == "counts" and folder is None:
            before = time.process_time()
            self.remark = start_from_counts(self.model, self.data, Keys(config.seed), world)
            self.start_seconds = time.process_time() - before
        if config.sample.every:  # raised now, and not after a day
            lm, steps = self._writer()
            lm.check(WritingJob(lm.prompt_canvas("", config.sample.length), SamplingParams(steps=steps)))

    def _inherited(self, folder: Path | None, start: LM | None) -> tuple[Tokenizer | None, list[str] | None]:
        """Tokenizer and labels of the run that is continued, or of the model that it begins with."""
        column = self.config.data.label
        if folder is not None:
            return Tokenizer.load(folder), load_labels(folder, column)
        if start is not None:
            return start.tokenizer, start.labels or None
        return None, None

    def _adapt(self, base: LM | None) -> None:
        """The model with the weights of another, and fresh adapters beside them."""
        assert base is not None, "checked before"
        self.base = lora.fingerprint(base.model)
        self.model = lora.based_on(base, self.config, len(self.prepared.labels))
        torch.manual_seed(Keys(self.config.seed).torch_seed("init"))
        lora.attach(self.model, self.config.train.lora)

    def _template(self, folder: Path | None, start: LM | None) -> ChatTemplate | None:
        """The chat template of the run that is continued, or the one it begins with."""
        if folder is not None:
            return ChatTemplate.read(folder, Tokenizer.load(folder))
        return None if start is None else template_of(self.config, start)

    def identity(self) -> dict[str, Any]:
        """The data, and the weights beside which adapters are trained."""
        return {"data": self.prepared.fingerprint} | ({} if self.base is None else {"base": self.base})

    def changed(self, fact: str) -> str:
        """The sentence for data or weights that are not those of before."""
        if fact == "base":
            return f"the weights of the model {self.config.train.start} changed"
        return f"the data {self.config.data.source} changed"

    def evaluates(self, step: int) -> bool:
        """Every eval.every steps."""
        every = self.config.eval.every
        return bool(every) and step % every == 0

    def evaluate(self, trainer: Trainer, step: int) -> Evaluated | None:
        """The likelihood of the validation split."""
        valid = self.likelihood(trainer, self.display.inside("evaluating") if self.display else None)
        if valid is None:
            return None
        nats, error, perplexity = valid.nats_per_token, valid.stderr_nats, valid.perplexity
        form = perplexity_form(perplexity)
        bar = f" ± {perplexity * error:{form}}" if error else ""
        logged = {"valid_nats": nats, "valid_stderr_nats": error, "valid_perplexity": perplexity}
        if "block" in valid.protocol:
            logged["valid_block"] = valid.protocol["block"]
        return Evaluated(nats, {"valid ppl": f"{perplexity:{form}}{bar}"}, logged)

    def likelihood(self, trainer: Trainer, progress: Progress | None = None, **how: Any) -> Likelihood | None:
        """The likelihood of the averaged weights, as eval.* says; None where there is none."""
        if not self.model.likelihood:
            return None
        spec = self.config.eval
        options = {"draws": spec.draws, "batch_size": spec.batch_size, "seed": spec.seed, "limit": spec.rows, **how}
        pads = self.config.data.attend_pads
        with trainer.averaged():
            self.valid = evaluate(
                self.model, self.valid_rows, world=self.world, attend_pads=pads, progress=progress, **options
            )
        return self.valid

    def streams(self, step: int | None = None) -> float:
        """Those of the model."""
        return self.model.streams(step)

    def evaluation_seconds(self, trainer: Trainer) -> float:
        """From one draw of a few rows."""
        spec, rows = self.config.eval, len(self.valid_rows)
        rows = min(rows, spec.rows or rows)
        few = min(rows, 2 * spec.batch_size * self.world.size)
        begin = time.monotonic()
        if few == 0 or self.likelihood(trainer, draws=1, limit=few) is None:
            return 0.0
        return (time.monotonic() - begin) * rows / few * (1 if self.model.exact else spec.draws)

    def _writer(self) -> tuple[LM, int | None]:
        """The model with its tokenizer, and the steps of its samples: None where its sampler takes no steps."""
        lm = LM(self.model, self.prepared.tokenizer, self.config, labels=list(self.prepared.labels))
        lm.chat_template = self.template
        return lm, self.config.sample.steps if "steps" in SAMPLERS[lm.model.default_sampler].takes else None

    def samples(self, trainer: Trainer, step: int) -> list[str]:
        """A few texts every sample.every steps and at the end."""
        spec = self.config.sample
        if not spec.every or (step % spec.every and step != self.config.train.steps):
            return []
        lm, steps = self._writer()
        with trainer.averaged():
            return lm.sample(spec.n, length=spec.length, steps=steps, seed=self.config.seed)

    def describe(self, folder: Path, step: int) -> None:
        """The tokenizer, its chat template, the names of the labels, and the settings that the model recommends."""
        self.prepared.tokenizer.save(folder)
        if self.template is not None:
            self.template.save(folder)
        if self.config.data.label is not None:
            save_labels(folder, self.config.data.label, self.prepared.labels)
        if self.recommended:
            self.recommended.write(folder)


def check(config: Config, start: LM | None, folder: Path | None) -> None:
    """Raise for settings that do not fit together; `folder` is the checkpoint that a run is continued from."""
    spec = config.train
    if config.task.name is not None:
        raise UserError(
            f"task.name={config.task.name} is a task for a classifier; "
            f"train one with: unmask finetune MODEL {config.task.name}"
        )
    if spec.rows is not None and config.data.tokenizer == "dna":
        raise UserError("train.rows takes the first rows of a text; for DNA choose regions with data.intervals")
    if spec.patience is not None and not config.eval.every:
        raise UserError("train.patience counts evaluations; set eval.every to the steps between two of them")
    if start is not None and spec.last_blocks is not None:
        before_last(start.model, spec.last_blocks)
    if start is not None and spec.start is None:
        raise UserError("a run that begins with the weights of a model must name it; set train.start")
    if spec.lora.rank is not None:
        if spec.start is None:
            raise UserError(
                "train.lora trains adapters beside the weights of a model; name one: unmask finetune MODEL KIND --lora "
                f"{spec.lora.rank}"
            )
        if spec.strategy == "fsdp":
            raise UserError("train.lora does not work with train.strategy=fsdp; use ddp")
    if start is None and spec.start is not None and folder is None:
        raise UserError(f"train.start={spec.start} names a model to begin with; use: unmask finetune {spec.start} mdlm")


def template_of(config: Config, start: LM) -> ChatTemplate | None:
    """The chat template that a new run is trained with: that of its settings, else that of its model."""
    name = config.data.chat_template
    return start.chat_template if name is None else ChatTemplate.named(name, start.tokenizer)


def load_weights(model: nn.Module, source: nn.Module, where: str) -> None:
    """Give a model the weights of another, strictly: the same names and shapes; `where` names the other in errors."""
    wanted, theirs = model.state_dict(), source.state_dict()
    checkpoint.check_names({k: v.shape for k, v in wanted.items()}, {k: v.shape for k, v in theirs.items()}, where)
    for name, target in wanted.items():
        checkpoint.assign(target, theirs[name])
