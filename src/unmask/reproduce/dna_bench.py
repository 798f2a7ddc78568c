"""The models of section 5.2 at every scale: Mamba and HyenaDNA from left to right, Caduceus by MLM, and what follows.

As in the paper a model is pre-trained and then goes on at a lower rate: Mamba and HyenaDNA as they were, the one
Caduceus as Plaid, SEDD and MDLM. Several seeds differ in the second part only. They begin with 1: with the seed of the
pre-training a fine-tuning would see the rows again with which that one began.
"""

from __future__ import annotations

import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

from ..config import Config, TaskConfig
from ..data import tasks
from ..data.tasks.sequences import SUITES
from ..recipes import GENOMICS_SEEDS, dna_finetuning, recipe
from ..training.adapt import classify, language_config, task_config
from ..training.finetune import TaskResult
from ..training.sweep import sweep
from ..training.text import TrainResult, train
from ..types import UserError
from .bench import Bench, ScoredModel
from .markov import Markov

MAMBA, HYENA, CADUCEUS = "mamba", "hyena", "caduceus"
LONG_AR, LONG_MDLM = "mamba-long", "mdlm-long"
RECIPES = {
    MAMBA: "dna-mamba",
    HYENA: "dna-hyena",
    CADUCEUS: "dna-caduceus",
    LONG_AR: "dna-mamba",
    LONG_MDLM: "dna-mdlm",
}
SYSTEMS = {  # the rows of tab:genome-ppl: how they begin, and how they go on
    "Mamba": (MAMBA, "ar"),
    "HyenaDNA": (HYENA, "ar"),
    "Plaid": (CADUCEUS, "plaid"),
    "SEDD": (CADUCEUS, "sedd"),
    "MDLM": (CADUCEUS, "mdlm"),
}
ORDERS = (0, 2, 5, 8)  # of the Markov models
HERE = ("genomics/human_nontata_promoters", "gue/prom_core_tata", "gue/tf_0")
Changes = tuple[str, ...]


@dataclass(frozen=True)
class GenomicsSizes:
    """How the classifiers are trained; the rest is the recipe of the paper's tasks."""

    names: tuple[str, ...] = HERE
    rows: int | None = 300  # training examples; None = all
    eval_rows: int | None = 300  # examples of each split that they are judged on
    changes: Changes = ("task.epochs=3", "train.batch_size=16", "train.lr=2e-3")
    seeds: tuple[int, ...] = (1, 2)  # each is a split into training and validation, where the task has none
    swept: bool = False  # learning rate and batch size by validation, and official splits only


@dataclass(frozen=True)
class GenomeSizes:
    """Sizes of networks and trainings; the rest is the paper's recipe."""

    length: int = 256
    steps: int = 1000  # of the pre-trainings
    tuning_steps: int = 500
    seeds: int = 2  # fine-tunings of each kind
    rows: int | None = 512  # of the test split, for likelihoods
    rates: Mapping[str, tuple[float, float]] = field(  # of the pre-training and the fine-tuning
        default_factory=lambda: {MAMBA: (4e-3, 1e-3), CADUCEUS: (4e-3, 1e-3), HYENA: (6e-4, 2e-4)}
    )
    warmup: int = 50
    tuning_warmup: int = 25
    networks: Mapping[str, Changes] = field(default_factory=dict)  # changes of the paper's networks
    common: Changes = (
        "train.batch_size=8",
        "train.micro_batch_size=null",
        "train.decay=cosine",
        "train.final_lr=0.05",
        "train.ema=0.99",
        "train.precision=float32",
        "train.log_every=10",
        "train.checkpoint_every=250",
        "train.keep_last=1",
        "eval.every=0",
        "eval.rows=128",
        "eval.draws=1",
    )
    cutoff: float = 0.1  # of the bounds of masked diffusion
    long: Mapping[str, Changes] = field(default_factory=dict)  # the trainings of the curves
    tasks: GenomicsSizes = GenomicsSizes()


_LONG: Changes = (
    "train.micro_batch_size=null",
    "train.lr=4e-3",
    "train.warmup=100",
    "train.final_lr=0.02",
    "train.ema=0.995",
    "train.precision=float32",
    "train.log_every=25",
    "eval.rows=256",
)
_SMOKE: Changes = ("train.log_every=1", "train.checkpoint_every=100", "eval.every=10", "eval.rows=16", "eval.draws=2")
_TINY: Changes = ("model.hidden_dim=16", "model.n_blocks=2", "model.state_dim=4")

SIZES = {
    "smoke": GenomeSizes(
        length=64,
        steps=30,
        tuning_steps=20,
        rows=24,
        warmup=3,
        tuning_warmup=2,
        networks={MAMBA: _TINY, CADUCEUS: _TINY, HYENA: ("model.hidden_dim=16", "model.filter_dim=8")},
        long={
            LONG_AR: (*_TINY, *_LONG, "train.batch_size=16", "train.steps=40", *_SMOKE),
            LONG_MDLM: (*_TINY, *_LONG, "train.batch_size=8", "train.steps=40", "objective.cutoff=0.1", *_SMOKE),
        },
        tasks=GenomicsSizes(rows=32, eval_rows=32, changes=("task.epochs=1", "train.batch_size=16", "train.lr=1e-3")),
    ),
    "small": GenomeSizes(  # a third of the paper's weights: three times as many steps in the same time
        steps=1500,
        tuning_steps=750,
        networks={
            MAMBA: ("model.hidden_dim=68", "model.state_dim=8"),
            CADUCEUS: ("model.hidden_dim=64", "model.state_dim=8"),
            HYENA: ("model.hidden_dim=72", "model.filter_dim=32"),
        },
        long={
            LONG_AR: (
                *_LONG,
                "train.batch_size=16",
                "train.steps=2400",
                "train.checkpoint_every=200",
                "eval.every=200",
                "eval.draws=1",
                "eval.batch_size=16",
            ),
            LONG_MDLM: (
                *_LONG,
                "model.hidden_dim=64",
                "model.state_dim=8",
                "train.batch_size=8",
                "train.steps=5000",
                "train.checkpoint_every=250",
                "objective.cutoff=0.1",
                "eval.every=250",
                "eval.draws=2",
                "eval.batch_size=32",
            ),
        },
    ),
    "paper": GenomeSizes(
        length=1024,
        steps=10_000,
        tuning_steps=50_000,
        seeds=5,
        rows=None,
        common=(),
        tasks=GenomicsSizes(
            tuple(task.name for task in (*tasks.genomics(), *tasks.gue())), None, None, (), GENOMICS_SEEDS, True
        ),
    ),
}


def tuned(start: str, kind: str, seed: int) -> str:
    """The name of a fine-tuned model."""
    return f"{start}-{kind}-{seed}"


class GenomeBench(Bench):
    """A bench whose models are those of section 5.2, on a FASTA file."""

    base = MAMBA

    @property
    def sizes(self) -> GenomeSizes:
        """The sizes of this scale."""
        if self.scale.name not in SIZES:
            raise UserError(f"this table has the scales smoke, small and paper, not {self.scale.name}")
        return SIZES[self.scale.name]

    # -- models ------------------------------------------------------------------------------------------------------

    def seeds(self) -> list[int]:
        """Those of the fine-tunings, counted from --seed on."""
        return list(range(1, 1 + self.sizes.seeds))

    def fine_tuned(self, row: str) -> list[str]:
        """The models of a row of tab:genome-ppl, one a seed."""
        return [tuned(*SYSTEMS[row], seed) for seed in self.seeds()]

    def config(self, name: str) -> Config:
        """The settings of a model."""
        if name in RECIPES:
            return self._from_recipe(name)
        start, kind, seed = name.rsplit("-", 2)
        own = self.seed + int(seed)
        if not self.scale.trains:
            return dna_finetuning(recipe(RECIPES[start]), kind).override([f"seed={own}"])
        sizes = self.sizes
        changes = [
            *sizes.common,
            f"train.steps={sizes.tuning_steps}",
            f"train.lr={sizes.rates[start][1]}",
            f"train.warmup={sizes.tuning_warmup}",
            f"seed={own}",
            *([] if kind in ("ar", "plaid") else [f"objective.cutoff={sizes.cutoff}"]),
        ]
        return language_config(self.lm(start), str(self.path(start)), kind, self.source, None, changes)

    def _from_recipe(self, name: str) -> Config:
        """The settings of a training from scratch: the paper's recipe, with the sizes of the scale."""
        config, sizes = recipe(RECIPES[name]), self.sizes
        if self.scale.trains:
            config = config.model_copy(update={"data": config.data.model_copy(update={"source": self.source})})
        else:
            return config.override([f"seed={self.seed}"])
        if name in sizes.long:
            changes: Sequence[str] = sizes.long[name]
        else:
            changes = [
                *sizes.networks.get(name, ()),
                *sizes.common,
                f"train.steps={sizes.steps}",
                f"train.lr={sizes.rates[name][0]}",
                f"train.warmup={sizes.warmup}",
                *([f"objective.cutoff={sizes.cutoff}"] if name == CADUCEUS else []),
            ]
        return config.override([f"data.length={sizes.length}", f"seed={self.seed}", *changes])

    def trainable(self) -> list[str]:
        """Those that begin with nothing; the others follow from them."""
        return list(RECIPES)

    def commands(self, names: Sequence[str]) -> list[str]:
        """How to train these models on a cluster."""
        lines = []
        for name in names:
            if name in RECIPES:
                words = ["train", RECIPES[name], f"seed={self.seed}"]
            else:
                start, kind, seed = name.rsplit("-", 2)
                words = ["finetune", str(self.path(start)), kind, "--data", "hg38", f"seed={self.seed + int(seed)}"]
            out = ["--out", str(self.path(name))]
            lines.append(shlex.join(["torchrun", "--nproc-per-node", "8", "-m", "unmask", *words, *out]))
        return lines

    def finished(self, name: str) -> bool:
        """Whether a model is trained."""
        if name not in RECIPES and self.scale.trains and not super().finished(name.rsplit("-", 2)[0]):
            return False  # its settings follow from the model that it begins with
        return super().finished(name)

    def run(self, name: str, path: Path) -> TrainResult:
        """Train a model, or continue; a fine-tuned one begins with the pre-trained."""
        start = None if name in RECIPES else self.lm(name.rsplit("-", 2)[0])
        return train(self.config(name), path, quiet=self.quiet, start=start)

    def _facts(self, name: str) -> dict[str, Any]:
        """Plaid hides no tokens, so it has no count of those that are not hidden."""
        found = super()._facts(name)
        return found | {"unmasked_tokens": None} if self.config(name).model.method == "plaid" else found

    # -- figures -----------------------------------------------------------------------------------------------------

    @cached_property
    def markov(self) -> Markov:
        """The Markov models of the training windows."""
        return Markov(self.rows("train"), max(ORDERS))

    def reference(self, order: int, split: str | None = None, limit: int | None = None) -> ScoredModel:
        """A Markov model on the rows that the models are scored on."""
        nats, bases = self.markov.nats(self.rows(split), order, limit or self.sizes.rows)
        return ScoredModel(nats[:, None], bases, True, {})

    # -- tasks -------------------------------------------------------------------------------------------------------

    def place(self, task: str) -> str | None:
        """The folder of a task's suite below --local, or that itself."""
        if self.local is None:
            return None
        folders = [Path(self.local) / own for own in SUITES[task.partition("/")[0]]]
        return next((str(folder) for folder in folders if folder.is_dir()), self.local)

    def available(self) -> dict[str, str]:
        """The tasks that are at hand, with their splits; none at all is an error, before anything is trained."""
        own, found, first = self.sizes.tasks, {}, ""
        for name in own.names:
            for split in ("official",) if own.swept else ("official", "random"):
                try:
                    spec = TaskConfig(name=name, local=self.place(name), split=split)
                    tasks.splits(tasks.task(name), spec, 0)
                except (
                    tasks.MissingTaskData
                ) as error:  # a file that is there and damaged is no reason to go on without it
                    first = first or str(error)
                else:
                    found[name] = split
                    break
        if not found:
            raise UserError(f"no task of Genomic Benchmarks or GUE is here: {first}")
        return found

    def classifiers(self, name: str, task: str, split: str) -> list[TaskResult]:
        """A task, learned once a seed from a model."""
        own, lm = self.sizes.tasks, self.lm(name)
        changes = [*own.changes, f"task.split={split}", "train.keep_last=1"]
        changes += [] if own.rows is None else [f"task.rows={own.rows}"]
        changes += [] if own.eval_rows is None else [f"task.eval_rows={own.eval_rows}"]
        config = task_config(lm, str(self.path(name)), task, self.place(task), changes)
        out, seeds = self.folder / "tasks" / name / task.replace("/", "-"), [self.seed + seed for seed in own.seeds]
        if own.swept:
            done = sweep(lm, config, out, seeds, quiet=self.quiet)
            runs = done.best.runs if done.best else []
        else:
            runs = classify(lm, config, out, seeds, quiet=self.quiet)
        if not runs or not all(result.finished for result in runs):
            raise UserError(f"the training of {task} was stopped; run the same command again to go on")
        return runs
