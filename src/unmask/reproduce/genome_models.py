"""The models of section 5.2 at every scale: Mamba and HyenaDNA from left to right, Caduceus by MLM, and what follows.

As in the paper a model is pre-trained and then continues at a lower rate: Mamba and HyenaDNA as they were, the one
Caduceus as Plaid, SEDD and MDLM. Several seeds differ in the second part only. They start at 1: with the seed of the
pre-training, the fine-tuning would begin with the same rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from ..config import TaskConfig
from ..data import tasks
from ..data.tasks.sequences import SUITES
from ..recipes import GENOMICS_SEEDS, dna_finetuning, recipe
from ..types import UserError
from .bench import Bench
from .markov import Markov
from .scales import Scale
from .scored import Classified, ScoredModel
from .specs import Changes, Family, Finetuning, ModelSpec, Setup, changed
from .task_classifiers import classifiers, swept_classifiers

HG38 = "hg38"  # the paper's genome
MAMBA, HYENA, CADUCEUS = "mamba", "hyena", "caduceus"
LONG_AR, LONG_MDLM = "mamba-long", "mdlm-long"
RECIPES = {
    MAMBA: "dna-mamba",
    HYENA: "dna-hyena",
    CADUCEUS: "dna-caduceus",
    LONG_AR: "dna-mamba",
    LONG_MDLM: "dna-mdlm",
}
SYSTEMS = {  # the rows of tab:genome-ppl: how they begin, and how they continue
    "Mamba": (MAMBA, "ar"),
    "HyenaDNA": (HYENA, "ar"),
    "Plaid": (CADUCEUS, "plaid"),
    "SEDD": (CADUCEUS, "sedd"),
    "MDLM": (CADUCEUS, "mdlm"),
}
MARKOV_ORDERS = (0, 2, 5, 8, 10)
THREE_TASKS = ("genomics/human_nontata_promoters", "gue/prom_core_tata", "gue/tf_0")


@dataclass(frozen=True)
class GenomicsSizes:
    """How the classifiers are trained; the rest is the recipe of the paper's tasks."""

    names: tuple[str, ...] = THREE_TASKS
    rows: int | None = 300  # training examples; None = all
    eval_rows: int | None = 300  # examples of each split that they are judged on
    epochs: float | None = 3  # None: the recipe's, with the learning rate and the batch size
    batch_size: int = 16
    lr: float = 2e-3
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
    networks: Mapping[str, Changes] = field(default_factory=dict)  # by pre-training: changes of the paper's network
    train: Changes = field(default_factory=dict)  # of all but the trainings of the curves
    eval: Changes = field(default_factory=dict)
    cutoff: float = 0.1  # of the bounds of masked diffusion
    curves: Mapping[str, Changes] = field(default_factory=dict)  # the trainings of the curves
    tasks: GenomicsSizes = GenomicsSizes()


_TRAIN: Changes = {
    "batch_size": 8,
    "micro_batch_size": None,
    "decay": "cosine",
    "final_lr": 0.05,
    "ema": 0.99,
    "precision": "float32",
    "log_every": 10,
    "checkpoint_every": 250,
    "keep_last": 1,
}
_EVAL: Changes = {"every": 0, "rows": 128, "draws": 1}
_LONG: Changes = {
    "micro_batch_size": None,
    "lr": 4e-3,
    "warmup": 100,
    "final_lr": 0.02,
    "ema": 0.995,
    "precision": "float32",
    "log_every": 25,
}
_SMOKE: Changes = {**_LONG, "steps": 40, "log_every": 1, "checkpoint_every": 100}
_SMOKE_EVAL: Changes = {"every": 10, "rows": 16, "draws": 2}
_TINY: Changes = {"hidden_dim": 16, "n_blocks": 2, "state_dim": 4}

GENOME_SIZES = {
    "smoke": GenomeSizes(
        length=64,
        steps=30,
        tuning_steps=20,
        rows=24,
        warmup=3,
        tuning_warmup=2,
        train=_TRAIN,
        eval=_EVAL,
        networks={MAMBA: _TINY, CADUCEUS: _TINY, HYENA: {"hidden_dim": 16, "filter_dim": 8}},
        curves={
            LONG_AR: {"model": _TINY, "train": {**_SMOKE, "batch_size": 16}, "eval": _SMOKE_EVAL},
            LONG_MDLM: {
                "model": _TINY,
                "objective": {"cutoff": 0.1},
                "train": {**_SMOKE, "batch_size": 8},
                "eval": _SMOKE_EVAL,
            },
        },
        tasks=GenomicsSizes(rows=32, eval_rows=32, epochs=1, lr=1e-3),
    ),
    "small": GenomeSizes(  # a third of the paper's weights: three times as many steps in the same time
        steps=750,
        tuning_steps=200,
        seeds=1,  # what is trained again, with --seeds, is the pre-training with its fine-tunings
        train=_TRAIN,
        eval=_EVAL,
        networks={
            MAMBA: {"hidden_dim": 68, "state_dim": 8},
            CADUCEUS: {"hidden_dim": 64, "state_dim": 8},
            HYENA: {"hidden_dim": 72, "filter_dim": 32},
        },
        curves={
            LONG_AR: {
                "train": {**_LONG, "batch_size": 16, "steps": 2400, "checkpoint_every": 200},
                "eval": {"every": 200, "rows": 256, "draws": 1, "batch_size": 16},
            },
            LONG_MDLM: {
                "model": {"hidden_dim": 64, "state_dim": 8},
                "objective": {"cutoff": 0.1},
                "train": {**_LONG, "batch_size": 8, "steps": 5000, "checkpoint_every": 250},
                "eval": {"every": 250, "rows": 256, "draws": 2, "batch_size": 32},
            },
        },
        tasks=GenomicsSizes(rows=500, eval_rows=1000, seeds=(1,)),
    ),
    "paper": GenomeSizes(
        length=1024,
        steps=10_000,
        tuning_steps=50_000,
        seeds=5,
        rows=None,
        tasks=GenomicsSizes(
            names=tuple(task.name for task in (*tasks.genomics(), *tasks.gue())),
            rows=None,
            eval_rows=None,
            epochs=None,
            seeds=GENOMICS_SEEDS,
            swept=True,
        ),
    ),
}


def genome_sizes(scale: Scale) -> GenomeSizes:
    """The sizes of a scale."""
    if scale.name not in GENOME_SIZES:
        raise UserError(f"this table has the scales smoke, small and paper, not {scale.name}")
    return GENOME_SIZES[scale.name]


# -- models ----------------------------------------------------------------------------------------------------------


def tuned(start: str, kind: str, seed: int) -> str:
    """The name of a fine-tuned model."""
    return f"{start}-{kind}-{seed}"


def fine_tuned(row: str, scale: Scale) -> list[str]:
    """The models of a row of tab:genome-ppl, one per seed (counted from --seed on)."""
    return [tuned(*SYSTEMS[row], seed) for seed in range(1, 1 + genome_sizes(scale).seeds)]


def genome_models(setup: Setup) -> dict[str, ModelSpec]:
    """All models of a genome, by name."""
    models = {name: _pretrained(setup, name) for name in RECIPES}
    for start, kind in SYSTEMS.values():
        for seed in range(1, 1 + genome_sizes(setup.scale).seeds):
            models[tuned(start, kind, seed)] = _fine_tuned(setup, start, kind, setup.seed + seed)
    return models


GENOME = Family(genome_models, base=MAMBA, texts=(HG38,), noun="genome", genome=True)


def _pretrained(setup: Setup, name: str) -> ModelSpec:
    """Training from scratch: the paper's recipe, with the sizes of the scale."""
    config, sizes = recipe(RECIPES[name]), genome_sizes(setup.scale)
    if not setup.scale.trains:
        return ModelSpec(changed(config, {"seed": setup.seed}), command=(RECIPES[name], f"seed={setup.seed}"))
    config = changed(config, {"seed": setup.seed, "data": {"source": setup.source, "length": sizes.length}})
    if name in (LONG_AR, LONG_MDLM):
        return ModelSpec(changed(config, sizes.curves[name]))
    changes = {
        "model": sizes.networks.get(name, {}),
        "objective": {"cutoff": sizes.cutoff} if name == CADUCEUS else {},
        "train": {**sizes.train, "steps": sizes.steps, "lr": sizes.rates[name][0], "warmup": sizes.warmup},
        "eval": sizes.eval,
    }
    return ModelSpec(changed(config, changes))


def _fine_tuned(setup: Setup, start: str, kind: str, seed: int) -> ModelSpec:
    sizes = genome_sizes(setup.scale)
    if not setup.scale.trains:
        config = changed(dna_finetuning(recipe(RECIPES[start]), kind), {"seed": seed})
        return ModelSpec(config, start=start, command=(kind, "--data", HG38, f"seed={seed}"))
    rate = {"steps": sizes.tuning_steps, "lr": sizes.rates[start][1], "warmup": sizes.tuning_warmup}
    changes = {
        "seed": seed,
        "objective": {} if kind in ("ar", "plaid") else {"cutoff": sizes.cutoff},
        "train": {**sizes.train, **rate},
        "eval": sizes.eval,
    }
    return ModelSpec(Finetuning(kind, changes), start=start)


# -- figures and tasks -----------------------------------------------------------------------------------------------


def count_contexts(bench: Bench) -> Markov:
    """The Markov models of the training windows."""
    return Markov(bench.rows("train"), max(MARKOV_ORDERS))


def markov_scores(
    bench: Bench, markov: Markov, split: str | None = None, limit: int | None = None
) -> dict[int, ScoredModel]:
    """Markov models by order, on the rows that the models are scored on."""
    rows, limit = bench.rows(split), limit or genome_sizes(bench.scale).rows
    scored = {}
    for order in MARKOV_ORDERS:
        nats, bases = markov.nats(rows, order, limit)
        scored[order] = ScoredModel(nats[:, None], bases, True, {})
    return scored


def available_tasks(bench: Bench) -> dict[str, str]:
    """The available tasks, with their splits; having none is an error, raised before anything is trained."""
    sizes, splits, first = genome_sizes(bench.scale).tasks, {}, ""
    for name in sizes.names:
        for split in ("official",) if sizes.swept else ("official", "random"):
            try:
                spec = TaskConfig(name=name, local=_place(bench, name), split=split)
                tasks.splits(tasks.task(name), spec, 0)
            except (
                tasks.MissingTaskData
            ) as error:  # a file that exists and is damaged is no reason to continue without it
                first = first or str(error)
            else:
                splits[name] = split
                break
    if not splits:
        raise UserError(f"no task of Genomic Benchmarks or GUE is available: {first}")
    return splits


def sequence_classifiers(bench: Bench, name: str, task: str, split: str) -> list[Classified]:
    """A task, learned once per seed from a model of the bench; all trainings of it have the same seeds and splits."""
    sizes = genome_sizes(bench.scale).tasks
    spec: dict[str, Any] = {"split": split, "rows": sizes.rows, "eval_rows": sizes.eval_rows}
    changes: Changes = {"task": spec}
    if sizes.epochs is not None:
        rates = {"batch_size": sizes.batch_size, "lr": sizes.lr}
        changes = {"task": {**spec, "epochs": sizes.epochs}, "train": rates}
    learn = swept_classifiers if sizes.swept else classifiers
    return learn(bench, name, task, changes, [bench.seed + seed for seed in sizes.seeds], _place(bench, task))


def _place(bench: Bench, task: str) -> str | None:
    """The folder of a task's suite below --local, or that folder itself."""
    if bench.local is None:
        return None
    folders = [Path(bench.local) / name for name in SUITES[task.partition("/")[0]]]
    return next((str(folder) for folder in folders if folder.is_dir()), bench.local)
