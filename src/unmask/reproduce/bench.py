"""A folder of models, each trained once for every seed, and how they are scored.

Every model that a table needs is in the bench under its name. It is trained if it is missing, continued if its training
was stopped, and waited for if another process trains it. So tables share models, and several of them may run at once.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from filelock import FileLock

from ..config import Config, steps_of
from ..data.pack import Prepared, Rows, prepare
from ..evaluation.likelihood import TIMES, Estimator, row_nats
from ..evaluation.uncertainty import deviation, mean
from ..files import write_text
from ..hub import checkpoint
from ..hub.resolve import load
from ..lm import LM
from ..models import registry
from ..models.language_model import LanguageModel
from ..progress import progress_bar
from ..training.adapt import language_config, load_start
from ..training.text import train
from ..training.tracking import JOURNAL, last_logged
from ..types import UserError
from .figures import Figure
from .kept_scores import KeptScores
from .report import Cell, Check, Plot, Report, Row, Table
from .scales import Scale
from .scored import ScoredModel
from .specs import Family, Finetuning, ModelSpec, Setup, changed, of_seed
from .text_models import TEXT

SEEDS = 5  # evaluation seeds of a likelihood, as in the paper's ablation


class Needed(Exception):
    """The names of the models that a table needs, raised instead of training them."""

    def __init__(self, names: Sequence[str]) -> None:
        super().__init__(*names)
        self.names = list(names)


class Missing(UserError):
    """A model that is not trained on this machine: at the paper's scale that needs a cluster."""


def as_trained(model: LanguageModel) -> LanguageModel:
    """The model under its own law."""
    return model


@dataclass
class Bench:
    """A scale, a text, and a folder with the models for them."""

    scale: Scale
    source: str
    out: Path
    seed: int = 0
    scorer: str | None = None
    quiet: bool = False
    local: str | None = None  # where the data sets besides the text lie on disk
    known: tuple[str, ...] = ()  # sets of `zero-shot` that the text is made from
    encoder: str | None = None  # a model from elsewhere that the others start from
    family: Family = TEXT
    trains: bool = True  # whether what is missing is trained
    seeds: int = 1  # trainings of each model: with `seed`, `seed` + 1, ...
    asked_seeds: int | None = None  # what the command says; None: as many as the table has by itself
    planning: bool = False  # whether `need` raises what it would train
    kept: KeptScores | None = None  # scores of trainings whose weights may be gone; None: `scores` beside the models
    trained: dict[str, dict[str, Any]] = field(default_factory=dict)  # facts of the models that were used, by name
    _scored: dict[str, list[ScoredModel]] = field(default_factory=dict)  # of all seeds, by what was scored
    _loaded: dict[str, LM] = field(default_factory=dict)

    @property
    def folder(self) -> Path:
        """The folder for this scale and text, and for the encoder if there is one."""
        slug = re.sub(r"[^A-Za-z0-9_.-]+", "-", Path(self.source.rstrip("/")).name) or "data"
        folder = self.out / self.scale.name / slug
        return folder / f"encoder-{Path(self.encoder.rstrip('/')).name}" if self.encoder else folder

    @cached_property
    def records(self) -> KeptScores:
        """What is kept of trainings, on this machine or on others."""
        return self.kept or KeptScores(self.folder / "scores")

    @cached_property
    def models(self) -> dict[str, ModelSpec]:
        """The specifications of all models that may be in the folder, by name."""
        return self.family.of_seeds(Setup(self.scale, self.source, self.seed, self.local, self.encoder), self.seeds)

    @cached_property
    def base(self) -> Config:
        """The settings of data and network that all models share."""
        return self.config(self.family.base or next(iter(self.models)))

    @cached_property
    def data(self) -> Prepared:
        """The text as tokens, by the tokenizer that all models share."""
        with progress_bar("tokenizing", self.quiet) as progress:
            return prepare(self.base.data, progress=progress)

    @property
    def split(self) -> str:
        """The split that is evaluated; some texts (OpenWebText) hold out only a validation split."""
        if not self.base.data.test_fraction or self.scale.split not in self.data.corpus.splits:
            return "valid"
        return self.scale.split

    def rows(self, split: str | None = None) -> Rows:
        """The rows of a split (default: the one that is evaluated)."""
        return self.data.split(split or self.split)

    # -- models ------------------------------------------------------------------------------------------------------

    def config(self, name: str) -> Config:
        """The settings of a model; those of a fine-tuning follow from the model it starts from."""
        spec = self.models[name]
        if isinstance(spec.config, Config):
            return spec.config
        if spec.config is None:
            return self.lm(name).config
        start = self._start(spec)
        config = language_config(self.lm(start), self.origin(start), spec.config.kind, self.source)
        return changed(config, spec.config.changes)

    @staticmethod
    def _start(spec: ModelSpec) -> str:
        assert spec.start is not None, "a fine-tuning starts from a model"
        return spec.start

    def declared(self) -> list[str]:
        """The models whose settings are known before any model of the bench is trained."""
        starts = [None, *(name for name, spec in self.models.items() if spec.config is None)]
        return [name for name, spec in self.models.items() if spec.config is not None and spec.start in starts]

    def need(self, names: Sequence[str], extra: Sequence[str] = ()) -> None:
        """Train the missing ones of these with every seed, and `extra` as named; at the paper's scale, say how."""
        seeds = zip(*map(self.of_seeds, names), strict=True)  # all models of the first seed, then of the next
        names = list(dict.fromkeys(name for one in (*seeds, extra) for name in one))
        self._spare_scores(names)
        if self.planning:
            raise Needed(names)
        absent = [name for name in names if not self.available(name)]
        if absent and not self.scale.trains:
            raise Missing("\n".join(map(self.command, absent)))
        for number, name in enumerate(names, 1):
            if name in absent and not self.quiet:
                print(f"training {name}, model {number}/{len(names)}", file=sys.stderr, flush=True)
            self.use(name)

    def _spare_scores(self, names: Sequence[str]) -> None:
        """Raise if the folder of --scores has some of another text or of other settings: they would be replaced."""
        if self.kept is None or not self.scale.trains:
            return
        for name in names:
            if self.models[name].config is not None and self.records.has(name) and self._kept_facts(name) is None:
                raise UserError(
                    f"{self.kept.folder / name} has scores of another text or of other settings, which this command "
                    "would replace; give another --scores, or delete that folder"
                )

    def use(self, name: str) -> dict[str, Any]:
        """The facts of a training, which the report will name; it is trained unless its facts are kept."""
        if name not in self.trained:
            facts = self._kept_facts(name)
            if facts is None:
                self.lm(name)
            else:
                self.trained[name] = facts
        return self.trained.get(name, {})

    def available(self, name: str) -> bool:
        """Whether a model need not be trained: it is, or was, and its scores are kept."""
        return self._kept_facts(name) is not None or self.finished(name)

    def _kept_facts(self, name: str) -> dict[str, Any] | None:
        if self.models[name].config is None or not self.records.has(name):  # settings need the text: only if asked for
            return None
        return self.records.facts(name, self.settings(name))

    def settings(self, name: str) -> dict[str, Any]:
        """All that the weights of a model depend on."""
        return {"text": self.data.fingerprint, **self._settings(name)}

    def _settings(self, name: str) -> dict[str, Any]:
        spec = self.models[name]
        if spec.config is None:
            return {"path": spec.path}
        if isinstance(spec.config, Finetuning):
            start = self._settings(self._start(spec))
            return {"kind": spec.config.kind, "changes": spec.config.changes, "start": start}
        return {"config": spec.config.model_dump(mode="json")}

    def of_seeds(self, name: str) -> list[str]:
        """The names of a model, one a training seed; a model from elsewhere is the same for all."""
        loaded = self.models[name].config is None
        return [name if loaded else of_seed(name, seed) for seed in range(self.seeds)]

    def command(self, name: str) -> str:
        """How to train a model on a cluster."""
        spec = self.models[name]
        words = ["finetune", self.origin(spec.start), *spec.command] if spec.start else ["train", *spec.command]
        many = ["torchrun", "--nproc-per-node", "8", "-m", "unmask"]
        return shlex.join([*many, *words, "--out", str(self.path(name))])

    def lm(self, name: str) -> LM:
        """A trained model, with averaged weights."""
        if name not in self._loaded:
            spec = self.models[name]
            if spec.config is None:
                self._loaded[name] = load_start(spec.path, "ema", "last", None)
            else:
                self._train(name)
                self._loaded[name] = load(self.path(name))
                self.trained[name] = self._facts(name)
                self.records.keep_facts(name, self.settings(name), self.trained[name])
        return self._loaded[name]

    def path(self, name: str) -> Path:
        """The folder of a model that is trained here."""
        return self.folder / "models" / name

    def origin(self, name: str) -> str:
        """The path that a model is loaded from."""
        return self.models[name].path or str(self.path(name))

    def finished(self, name: str) -> bool:
        """Whether a model is trained."""
        spec = self.models[name]
        if spec.config is None:
            return True
        if isinstance(spec.config, Finetuning) and not self.finished(self._start(spec)):
            return False  # its settings follow from the model it starts from
        steps = checkpoint.steps(self.path(name))
        return bool(steps) and steps[-1] >= self.config(name).train.steps

    def _train(self, name: str) -> None:
        path, spec = self.path(name), self.models[name]
        path.parent.mkdir(parents=True, exist_ok=True)
        if self.finished(name):
            return
        if spec.continues:
            self._train(spec.continues)
        with FileLock(path.parent / f".{name}.lock"):  # another table may need it too, just now
            if self.finished(name):
                return
            if spec.continues and not path.exists():
                partial = path.with_name(f".{name}.copy")
                shutil.rmtree(partial, ignore_errors=True)
                shutil.copytree(self.path(spec.continues), partial)
                partial.rename(path)
            started = time.monotonic()
            start = self.lm(spec.start) if spec.start else None
            result = train(self.config(name), path, quiet=self.quiet, start=start)
            spent = time.monotonic() - started + self._seconds(path)
            write_text(path / "seconds.json", json.dumps({"seconds": spent}))
            if not result.finished:
                raise UserError(f"the training of {name} was stopped; run the same command again to continue")

    @staticmethod
    def _seconds(path: Path) -> float:
        try:
            return float(json.loads((path / "seconds.json").read_text(encoding="utf-8"))["seconds"])
        except (OSError, ValueError, KeyError):
            return 0.0

    def _facts(self, name: str) -> dict[str, Any]:
        """What a reader wants to know about a training run; tokens seen are counted as in the paper (appendix D.2)."""
        config, lm = self.config(name), self._loaded[name]
        views = 2 if config.objective.pairs else 1
        tokens = config.train.steps * config.train.batch_size * config.data.length * views
        objective = registry.objective(config.objective, config.train)
        hidden = 0.5 if objective.mask_rate is None else 0.8 * objective.mask_rate  # of BERT's chosen tokens 20 % stay
        seen = 1.0 if config.model.method == "ar" else 1 - hidden
        return {
            "name": name,
            "parameters": sum(p.numel() for p in lm.model.parameters()),
            "steps": config.train.steps,
            "tokens": tokens,
            "unmasked_tokens": None if config.model.method == "plaid" else round(tokens * seen),  # Plaid hides none
            "seconds": round(self._seconds(self.path(name))),
            "core_seconds": round(last_logged(self.path(name) / JOURNAL, "step_seconds"), 3),
        }

    # -- figures -----------------------------------------------------------------------------------------------------

    def score(
        self,
        name: str,
        change: Callable[[LanguageModel], LanguageModel] = as_trained,
        *,
        draws: int = SEEDS,
        limit: int | None = None,
        estimator: Estimator = TIMES,
        what: str = "",
        rows: Rows | None = None,
    ) -> ScoredModel:
        """The likelihood of a model on rows (default: test rows), or what is kept of it.

        `change` may put it under another schedule or law, which `what` names.
        """
        assert what or change is as_trained, "a law needs a name"
        of = self._scoring(self.rows() if rows is None else rows, what, draws, limit, estimator)
        kept = self.records.score(name, what or name, of) if self._kept_facts(name) else None
        if kept is not None:
            return kept
        model = change(self.lm(name).model)
        with progress_bar(f"scoring {name}{f' ({what})' if what else ''}", self.quiet) as progress:
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
        scored = ScoredModel(nats, tokens, model.exact, model.describe())
        return self.records.keep_score(name, what or name, of, scored) if self._kept_facts(name) else scored

    def _scoring(self, rows: Rows, what: str, draws: int, limit: int | None, estimator: Estimator) -> dict[str, Any]:
        """All that a score depends on, besides the model and where its text lies."""
        text = {key: value for key, value in rows.describe().items() if key != "source"}
        how = {"draws": draws, "limit": limit or self.scale.rows, "estimator": estimator.name, "seed": self.seed}
        return {"text": text, "law": what, **how}

    def scores(self, name: str, *args: Any, what: str = "", **how: Any) -> list[ScoredModel]:
        """The likelihoods of a model, one a training seed."""
        key = what or name
        names = self.of_seeds(name)
        each = {one: self.score(one, *args, what=what, **how) for one in dict.fromkeys(names)}
        self._scored[key] = [each[one] for one in names]
        return self._scored[key]

    def lms(self, name: str) -> list[LM]:
        """A trained model, one a seed."""
        return [self.lm(one) for one in self.of_seeds(name)]

    def _each_seed(self) -> list[Table]:
        """What was scored, training by training."""
        if self.seeds == 1 or not self._scored:
            return []
        columns = [f"seed {self.seed + k}" for k in range(self.seeds)]
        rows = []
        for name, scored in self._scored.items():
            values = [model.rate.value for model in scored]
            over, bound = mean(values), not scored[0].exact
            cells: dict[str, Cell] = {
                column: Figure(value, bound=bound) for column, value in zip(columns, values, strict=True)
            }
            cells |= {"mean": Figure(*over, bound=bound), "deviation": Figure(deviation(values) or 0.0)}
            rows.append(Row(name, {}, cells))
        title = "Each training: nats/token; the mean with its standard error over trainings, and their deviation"
        return [Table(title, "ours", [*columns, "mean", "deviation"], rows)]

    def protocol(self, **more: Any) -> dict[str, Any]:
        """What all figures of a report depend on."""
        config, rows = self.base, self.rows()
        warmup = steps_of(config.train.warmup, config.train.steps)
        muon = config.train.optimizer == "muon"
        optimizer = f"Muon {config.train.muon_lr} for matrices, AdamW for the rest" if muon else "AdamW"
        return {
            **rows.describe(),
            "test_rows": min(len(rows), self.scale.rows or len(rows)),
            "tokenizer": f"{config.data.tokenizer}, {self.data.tokenizer.vocab.size} entries",
            "length": config.data.length,
            "network": f"{config.model.network}, {config.model.n_blocks} blocks of width {config.model.hidden_dim}",
            "embeddings": config.train.embeddings,
            "optimizer": f"{optimizer}, lr {config.train.lr} ({config.train.decay}), betas {config.train.betas[0]} and "
            f"{config.train.betas[1]}, {warmup} steps of warm-up, batch {config.train.batch_size}",
            "weights": f"average, decay {config.train.ema}" if config.train.ema else "raw",
            "training_seed": self.seed if self.seeds == 1 else list(range(self.seed, self.seed + self.seeds)),
            "evaluation": f"{SEEDS} draws of seed {self.seed}, float32",
            **more,
        }

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
        study: bool = False,
    ) -> Report:
        """A report of what this bench measured; `study`: the paper has no such table."""
        words = ["--scale", self.scale.name, "--data", self.source, "--seed", str(self.seed)]
        for option, value in (("--scorer", self.scorer), ("--model", self.encoder), ("--local", self.local)):
            words += [option, value] if value else []
        words += ["--seeds", str(self.asked_seeds)] if self.asked_seeds else []
        words += [word for corpus in self.known for word in ("--in-domain", corpus)]
        words += ["--scores", str(self.kept.folder)] if self.kept else []
        words += [] if self.trains else ["--no-train"]
        unjudged = self.scale.unjudged
        if unjudged:
            checks = [Check(check.claim, None, f"not judged at the scale {self.scale.name}") for check in checks]
        return Report(
            name,
            label,
            self.scale.name,
            shlex.join(["unmask", "reproduce", name, *words]),
            [*tables, *self._each_seed()],
            list(plots),
            list(checks),
            self.protocol(**protocol),
            list(notes),
            list(self.trained.values()),
            data=self.source,
            unjudged=unjudged,
            study=study,
        )
