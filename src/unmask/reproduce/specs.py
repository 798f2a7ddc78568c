"""What a table of the paper declares: its models as typed settings, what each starts from, the options it takes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any

from ..config import Config, parse
from .scales import Scale

if TYPE_CHECKING:
    from .bench import Bench
    from .claims import Claim
    from .report import Report

Changes = Mapping[str, Any]  # of a config: {"seed": 1, "train": {"steps": 100}}


def changed(config: Config, *changes: Changes) -> Config:
    """A validated copy of a config; later changes win."""
    tree = config.model_dump(mode="json")
    for part in changes:
        for section, value in part.items():
            tree[section] = {**tree[section], **value} if isinstance(value, Mapping) else value
    return parse(tree)


@dataclass(frozen=True)
class Finetuning:
    """Settings that follow from the model it starts from: the paper's fine-tuning of a kind (`unmask finetune`)."""

    kind: str
    changes: Changes


@dataclass(frozen=True)
class ModelSpec:
    """A model of a bench: its settings, and the names of the models of the bench that it starts from."""

    config: Config | Finetuning | None  # None: nothing is trained, it is loaded from `path`
    start: str | None = None  # its training begins with the weights of this model
    continues: str | None = None  # its training is that of this model, continued
    command: tuple[str, ...] = ()  # words of `unmask train` (or of `unmask finetune START`) at the paper's scale
    path: str = ""


def of_seed(name: str, seed: int) -> str:
    """The name of a model with another training seed, counted from 0: `mdlm`, `mdlm-seed1`, `mdlm-seed2`."""
    return f"{name.removesuffix('-seed0')}-seed{seed}" if seed else name


@dataclass(frozen=True)
class Setup:
    """What the settings of models depend on."""

    scale: Scale
    source: str
    seed: int = 0
    local: str | None = None  # where named data sets lie on disk
    encoder: str | None = None  # a model from elsewhere


@dataclass(frozen=True)
class Family:
    """Models that tables share; all models of a family are in one folder under their names."""

    models: Callable[[Setup], dict[str, ModelSpec]]
    base: str  # the model whose settings of data and network stand for all; "" = the first
    texts: tuple[str, ...]  # what the paper's scale can be trained on
    noun: str = "texts"
    genome: bool = False  # trained on a FASTA file, which has no default

    def of_seeds(self, setup: Setup, seeds: int) -> dict[str, ModelSpec]:
        """All models with so many training seeds, by name; what is loaded from elsewhere is the same for all seeds."""
        models: dict[str, ModelSpec] = {}
        for seed in range(seeds):
            specs = self.models(replace(setup, seed=setup.seed + seed))

            def name(of: str | None, seed: int = seed, specs: Mapping[str, ModelSpec] = specs) -> str:
                return "" if of is None else of if specs[of].config is None else of_seed(of, seed)

            for key, spec in specs.items():
                models[name(key)] = replace(
                    spec, start=name(spec.start) or None, continues=name(spec.continues) or None
                )
        return models

    def including(self, models: Callable[[Setup], dict[str, ModelSpec]]) -> Family:
        """The family with more models, for a table that needs additional ones."""
        shared = self.models
        return replace(self, models=lambda setup: shared(setup) | models(setup))


@dataclass(frozen=True)
class PaperTable:
    """A table of the paper, or a study of ours: its models, and the function that measures and reports."""

    name: str
    report: Callable[[Bench], Report]
    family: Family
    text: str  # of the paper
    local: bool = False  # takes --local: it reads sets or tasks besides its text
    in_domain: bool = False  # takes --in-domain
    encoder: bool = False  # needs --model
    partial: bool = False  # takes --no-train: it can report what is there
    seeds: int = 1  # trainings of each model, unless --seeds says otherwise
    claims: tuple[Claim, ...] = ()  # those that are known before anything is trained
    sides: Mapping[str, str] = field(default_factory=dict)  # of the claims: the model of a side, if named otherwise
