"""What the tables share: data, models that are trained once, and how they are scored.

A bench is a folder. Every model that a table needs lies in it under its own name; it is trained if it is not there,
continued if its training was stopped, and waited for if another process trains it. So tables share models, and several
of them may run at once.
"""

from __future__ import annotations

import json
import math
import re
import shlex
import shutil
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..config import Config
from ..data.pack import Prepared, Rows, prepare
from ..data.records import find
from ..evaluation.likelihood import TIMES, Estimator, row_nats, summarise
from ..evaluation.suites import SUITES
from ..files import write_text
from ..hub import checkpoint
from ..hub.resolve import load
from ..lm import LM
from ..models import registry
from ..models.language_model import LanguageModel
from ..progress import progress_bar
from ..training.text import TrainResult, train
from ..types import Likelihood, UserError
from .report import Check, Figure, Plot, Report, Table
from .scales import LONGER, MODELS, Scale, model_config

SEEDS = 5  # evaluation seeds of a likelihood, as in the paper's ablation


class Missing(UserError):
    """A model that is not trained here: at the paper's scale that is a job for a cluster."""


@dataclass(frozen=True)
class ScoredModel:
    """A likelihood of a split, draw by draw."""

    nats: np.ndarray  # (rows, draws)
    tokens: np.ndarray  # (rows,)
    exact: bool
    protocol: dict[str, Any]

    @property
    def likelihood(self) -> Likelihood:
        """Summed up, with errors."""
        return summarise(self.nats, self.tokens, None, self.protocol)

    @property
    def rate(self) -> Figure:
        """Nats per token with the standard error of the mean over draws."""
        found = self.likelihood
        return Figure(found.nats_per_token, 0.0 if self.exact else found.stderr_nats, bound=not self.exact)

    @property
    def perplexity(self) -> Figure:
        """exp(nats per token) with the standard error of the mean over draws."""
        rate = self.rate
        value = math.exp(rate.value)
        return Figure(value, None if rate.error is None else value * rate.error, bound=not self.exact)

    @property
    def spread(self) -> float:
        """The standard deviation of the perplexity over draws, which is what the paper prints."""
        each = np.exp(self.nats.sum(0) / self.tokens.sum())
        return 0.0 if self.exact else float(each.std(ddof=1))


def difference(first: ScoredModel, second: ScoredModel) -> Figure:
    """Nats per token that the second has more, on the same rows: the errors of draws and of texts, both paired."""
    gap = second.nats.mean(1) - first.nats.mean(1)  # one text each, so what a text is worth cancels
    total = first.tokens.sum()
    rate = gap.sum() / total
    spread = ((gap - rate * first.tokens) ** 2).sum() * len(gap) / (len(gap) - 1)
    return Figure(float(rate), math.sqrt(spread) / float(total))


@dataclass
class Bench:
    """A scale, a text, and a folder with the models of both."""

    scale: Scale
    source: str
    out: Path
    seed: int = 0
    scorer: str | None = None
    quiet: bool = False
    local: str | None = None  # where the sets of `zero-shot` lie on disk
    known: tuple[str, ...] = ()  # those of them that the text is made from
    trained: dict[str, dict[str, Any]] = field(default_factory=dict)  # facts of the models that were used, by name
    _loaded: dict[str, LM] = field(default_factory=dict)
    base = "mdlm"  # the model whose settings of data and network stand for all

    @property
    def folder(self) -> Path:
        """All that belongs to this scale and text."""
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(self.source.rstrip("/")).name) or "data"
        return self.out / self.scale.name / slug

    def config(self, name: str) -> Config:
        """The settings of a model; a text that is one of the sets of `zero-shot` is read where they lie."""
        config = model_config(self.scale, self.source, name, self.seed)
        found = find(self.source)
        if self.local is None or found is None or found.name not in {member.corpus for member in SUITES["zero-shot"]}:
            return config
        return config.model_copy(update={"data": config.data.model_copy(update={"local": self.local})})

    @cached_property
    def data(self) -> Prepared:
        """The text as tokens, by the tokenizer that all models share."""
        with progress_bar("tokenizing", self.quiet) as progress:
            return prepare(self.config(self.base).data, progress=progress)

    @property
    def split(self) -> str:
        """The split that figures are of; some texts (OpenWebText) hold out no more than a validation split."""
        if not self.config(self.base).data.test_fraction or self.scale.split not in self.data.corpus.splits:
            return "valid"
        return self.scale.split

    def rows(self, split: str | None = None) -> Rows:
        """The rows of a split (default: the one that figures are of)."""
        return self.data.split(split or self.split)

    # -- models ------------------------------------------------------------------------------------------------------

    def trainable(self) -> list[str]:
        """The names of the models that may lie in the folder, and whose settings are known before any is trained."""
        return [name + end for name in MODELS for end in ("", LONGER)]

    def need(self, names: Sequence[str]) -> None:
        """Train whatever is missing of these; at the paper's scale, say how."""
        absent = [name for name in names if not self.finished(name)]
        if absent and not self.scale.trains:
            raise Missing("\n".join(self.commands(absent)))
        for name in names:
            self.lm(name)

    def commands(self, names: Sequence[str]) -> list[str]:
        """How to train these models on a cluster."""
        lines = []
        for name in names:
            recipe, changes = self.scale.command(name, self.source, self.seed)
            out = str(self.path(name))
            train = ["torchrun", "--nproc-per-node", "8", "-m", "unmask", "train", recipe, *changes, "--out", out]
            lines.append(shlex.join(train))
        return lines

    def lm(self, name: str) -> LM:
        """A trained model, with averaged weights."""
        if name not in self._loaded:
            self._train(name)
            self._loaded[name] = load(self.path(name))
            self.trained[name] = self._facts(name)
        return self._loaded[name]

    def path(self, name: str) -> Path:
        """The folder of a model."""
        return self.folder / "models" / name

    def finished(self, name: str) -> bool:
        """Whether a model is trained."""
        found = checkpoint.steps(self.path(name))
        return bool(found) and found[-1] >= self.config(name).train.steps

    def _train(self, name: str) -> None:
        path = self.path(name)
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.finished(name):
            return
        before = name.removesuffix(LONGER)
        if before != name:
            self._train(before)
        with FileLock(path.parent / f".{name}.lock"):  # another table may need it too, just now
            if self.finished(name):
                return
            if before != name and not path.exists():  # a longer training goes on from the shorter one
                partial = path.with_name(f".{name}.copy")
                shutil.rmtree(partial, ignore_errors=True)
                shutil.copytree(self.path(before), partial)
                partial.rename(path)
            started = time.monotonic()
            result = self.run(name, path)
            spent = time.monotonic() - started + self._seconds(path)
            write_text(path / "seconds.json", json.dumps({"seconds": spent}))
            if not result.finished:
                raise UserError(f"the training of {name} was stopped; run the same command again to go on")

    def run(self, name: str, path: Path) -> TrainResult:
        """Train a model, or continue."""
        return train(self.config(name), path, quiet=self.quiet)

    @staticmethod
    def _seconds(path: Path) -> float:
        try:
            return float(json.loads((path / "seconds.json").read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError):
            return 0.0

    def _facts(self, name: str) -> dict[str, Any]:
        """What a reader wants to know of a training; tokens seen are counted as the paper does (appendix D.2)."""
        config, lm = self.config(name), self._loaded[name]
        tokens = config.train.steps * config.train.batch_size * config.data.length
        objective = registry.objective(config.objective)
        hidden = 0.5 if objective.mask_rate is None else 0.8 * objective.mask_rate  # of BERT's chosen tokens 20 % stay
        seen = 1.0 if config.model.method == "ar" else 1 - hidden
        return {
            "name": name,
            "parameters": sum(p.numel() for p in lm.model.parameters()),
            "steps": config.train.steps,
            "tokens": tokens,
            "unmasked_tokens": round(tokens * seen),
            "seconds": round(self._seconds(self.path(name))),
        }

    # -- figures -----------------------------------------------------------------------------------------------------

    def score(
        self,
        name: str,
        change: Callable[[LanguageModel], LanguageModel] = lambda model: model,
        *,
        draws: int = SEEDS,
        limit: int | None = None,
        estimator: Estimator = TIMES,
        what: str = "",
        rows: Rows | None = None,
    ) -> ScoredModel:
        """The likelihood of a model on rows (default: test rows); `change` may put it under another schedule or law."""
        model = change(self.lm(name).model)
        with progress_bar(f"scoring {what or name}", self.quiet) as progress:
            nats, tokens = row_nats(
                model,
                self.rows() if rows is None else rows,
                draws=draws,
                batch_size=64,
                seed=self.seed,
                limit=limit or self.scale.rows,
                estimator=estimator,
                progress=progress,
                attend_pads=rows is None and self.config(name).data.attend_pads,
            )
        return ScoredModel(nats, tokens, model.exact, model.describe())

    def protocol(self, **more: Any) -> dict[str, Any]:
        """What all figures of a report depend on."""
        config, rows = self.config(self.base), self.rows()
        return {
            **rows.describe(),
            "test_rows": min(len(rows), self.scale.rows or len(rows)),
            "tokenizer": f"{config.data.tokenizer}, {self.data.tokenizer.vocab.size} entries",
            "length": config.data.length,
            "network": f"{config.model.n_blocks} blocks of width {config.model.hidden_dim}",
            "optimizer": f"AdamW, lr {config.train.lr} ({config.train.decay}), betas {config.train.betas[0]} and "
            f"{config.train.betas[1]}, {config.train.warmup} steps of warm-up, batch {config.train.batch_size}",
            "weights": f"average, decay {config.train.ema}" if config.train.ema else "raw",
            "training_seed": self.seed,
            "evaluation": f"{SEEDS} draws of seed {self.seed}, float32",
            **more,
        }

    def words(self) -> list[str]:
        """More words of the command that makes a report here."""
        return []

    def report(
        self,
        name: str,
        label: str,
        tables: list[Table],
        *,
        plots: Sequence[Plot] = (),
        checks: Sequence[Check] = (),
        protocol: dict[str, Any],
        notes: Sequence[str] = (),
    ) -> Report:
        """A report of what this bench measured."""
        words = ["--scale", self.scale.name, "--data", self.source, "--seed", str(self.seed)]
        words += ["--scorer", self.scorer] if self.scorer else []
        words += self.words()
        words += ["--local", self.local] if self.local else []
        words += [word for own in self.known for word in ("--in-domain", own)]
        command = shlex.join(["unmask", "reproduce", name, *words])
        return Report(
            name,
            label,
            self.scale.name,
            command,
            tables,
            list(plots),
            list(checks),
            self.protocol(**protocol),
            list(notes),
            list(self.trained.values()),
        )
