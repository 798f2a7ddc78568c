"""The models of the study `learning`: the paper's recipe, the parts that replace parts of it, and budgets of tokens.

A recipe is data: what it changes in the paper's, in the words of `unmask train`. Every model is trained for its own
budget, with its own decay to the end; nothing is continued.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from ..config import Config, ModelConfig
from ..earlier_recipes import EARLIER
from ..evaluation.estimators import strata_nats
from ..evaluation.likelihood import Estimator
from ..models.language_model import LanguageModel
from ..process.schedule import ContinuousTime
from ..training.tracking import JOURNAL, last_logged
from ..types import UserError
from .scales import Scale
from .specs import Family, ModelSpec, Setup, changed

Words = tuple[str, ...]  # `section.key=value`
CUTOFF = 1e-4  # of the bound that is reported: no weight of it is left to a last step
DRAWS, CALLS = 2, 4  # of each row; network calls of a draw: enough that a row alone has little noise

PARTS: dict[str, Words] = {  # what replaces a part of the paper's recipe
    "modern": ("model.network=modern",),
    "counts": ("train.embeddings=counts",),
    "muon": ("train.optimizer=muon", "train.muon_lr=0.02", "train.lr=0.002"),
    "cross-entropy": ("objective.loss=cross-entropy", "objective.cutoff=0.001"),
    "linear": ("train.decay=linear", "train.ema=0"),
}
WITH: dict[str, Words] = {  # what may be changed in the recipe of all parts
    "counts-strata": ("objective.times=counts",),
    "pairs": ("objective.times=counts", "objective.pairs=true", "train.batch_size=8"),  # two views of a row
    "bell": ("objective.proposal=bell",),
    "curriculum": ("objective.clip=[0.01,0.5]", "objective.clip_until=0.3"),
    "weights": ("objective.loss=bound",),  # 1/t, with the low cut-off
    "no-skips": ("model.skips=none",),
    "more-skips": ("model.skips=both",),
    "muon-half": ("train.muon_lr=0.01",),
    "muon-double": ("train.muon_lr=0.04",),
}


def _together(*parts: str) -> Words:
    return tuple(word for part in parts for word in PARTS[part])


def _ar(words: Sequence[str]) -> Words:
    """Without the settings of a diffusion, which AR has no use for."""
    return ("model.method=ar", *(word for word in words if not word.startswith("objective.")))


ALONE = {f"paper+{part}": _together(part, *["linear"] * (part == "muon")) for part in PARTS}
WITHOUT = {f"all-without-{part}": _together(*(other for other in PARTS if other != part)) for part in PARTS}
VARIANTS = {f"all+{name}": (*_together(*PARTS), *words) for name, words in WITH.items()}
FINALISTS: dict[str, Words] = {
    "paper": (),
    "all": _together(*PARTS),
    "ar": _ar(()),
    "ar-all": _ar(_together(*PARTS)),
}
RECIPES: dict[str, Words] = FINALISTS | ALONE | WITHOUT | VARIANTS
TUNED = ("paper", "ar")  # their learning rate is the best of several


@dataclass(frozen=True)
class StudySizes:
    """Sizes and budgets of the study at a scale."""

    network: ModelConfig
    length: int
    vocab_size: int
    budgets: dict[int, int]  # tokens through the network, smallest first, and how many seeds
    smaller: dict[int, int]  # the same of recipes with all parts only: where these reach what the others end with
    longest: dict[int, int]  # the same of MDLM only, the baseline and all parts: does the lead last?
    rates: tuple[float, ...]  # of AdamW in the paper's recipe; beyond the first `tried` only while the last is best
    tried: int
    rows: int  # of a split that is scored
    ablation: bool = True  # whether recipes other than the finalists are trained
    batch_size: int = 16
    checkpoint_every: int = 250

    @property
    def first(self) -> int:
        """The smallest budget: that of the choices."""
        return next(iter(self.budgets))


SIZES = {
    "smoke": StudySizes(
        ModelConfig(hidden_dim=32, n_blocks=2, n_heads=2, cond_dim=16, dropout=0.0),
        length=32,
        vocab_size=512,
        budgets={4096: 2, 16384: 1},
        smaller={2048: 2},
        longest={},
        rates=(7e-4, 1.4e-3, 2.8e-3),
        tried=2,
        rows=32,
        checkpoint_every=10,
    ),
    "small": StudySizes(
        ModelConfig(hidden_dim=128, n_blocks=4, n_heads=4, cond_dim=64, dropout=0.0),
        length=128,
        vocab_size=4096,
        budgets={2**19: 3, 2**21: 3, 2**23: 3},
        smaller={2**15: 3, 2**16: 3, 2**17: 3, 2**18: 3},
        longest={2**25: 1},
        rates=(3.5e-4, 7e-4, 1.4e-3, 2.8e-3, 5.6e-3),
        tried=3,
        rows=1024,
    ),
    "medium": StudySizes(
        ModelConfig(hidden_dim=256, n_blocks=6, n_heads=4, cond_dim=64, dropout=0.0),
        length=256,
        vocab_size=4096,
        budgets={2**23: 1, 2**25: 1},
        smaller={2**19: 1, 2**21: 1},
        longest={},
        rates=(7e-4,),
        tried=1,
        rows=512,
        ablation=False,
    ),
}


def study_sizes(scale: Scale) -> StudySizes:
    """The sizes of a scale."""
    if scale.name not in SIZES:
        raise UserError(f"learning has the scales {', '.join(SIZES)}, not {scale.name}")
    return SIZES[scale.name]


def takes_rate(recipe: str) -> bool:
    """Whether the learning rate of a recipe is the one that is chosen; others say their own."""
    return not any(word.startswith("train.lr=") for word in RECIPES[recipe])


def model_name(recipe: str, rate: float, tokens: int) -> str:
    """The name of a model with the first seed."""
    return f"{recipe}{f'-lr{rate:g}' * takes_rate(recipe)}-{tokens}-seed0"


def study_config(recipe: str, sizes: StudySizes, source: str, tokens: int, rate: float, seed: int = 0) -> Config:
    """A recipe for a budget: that of `demo` in version 0.3, with the changes of the recipe."""
    config = changed(
        EARLIER["demo"](),
        {
            "seed": seed,
            "data": {"source": source, "length": sizes.length, "vocab_size": sizes.vocab_size},
            "model": sizes.network.model_dump(mode="json"),
            "train": {
                "steps": max(1, round(tokens / (sizes.batch_size * sizes.length))),
                "batch_size": sizes.batch_size,
                "lr": rate,
                "checkpoint_every": sizes.checkpoint_every,
                "keep_last": 1,
            },
            "eval": {"every": 0, "rows": 32, "draws": 1},
        },
    )
    return config.override(RECIPES[recipe])


def forward_tokens(config: Config) -> int:
    """The tokens that go through the network in a training."""
    views = 2 if config.objective.pairs else 1
    return config.train.steps * config.train.batch_size * config.data.length * views


def learning_models(setup: Setup) -> dict[str, ModelSpec]:
    """All models that the study may need, by name: which of the learning rates are needed, the first trainings say."""
    sizes, models = study_sizes(setup.scale), {}
    for recipe in RECIPES:
        for tokens in planned(sizes, recipe):
            for rate in sizes.rates if takes_rate(recipe) else sizes.rates[:1]:
                config = study_config(recipe, sizes, setup.source, tokens, rate, setup.seed)
                models[model_name(recipe, rate, tokens)] = ModelSpec(config)
    return models


def planned(sizes: StudySizes, recipe: str) -> dict[int, int]:
    """The budgets of a recipe, smallest first, and how many seeds of each, unless the command says how many."""
    if recipe not in FINALISTS:
        return {sizes.first: 1} if sizes.ablation else {}
    budgets = sizes.budgets if recipe in TUNED else sizes.smaller | sizes.budgets
    return budgets if recipe.startswith("ar") else budgets | sizes.longest


MOST_SEEDS = max(seeds for sizes in SIZES.values() for seeds in (*sizes.budgets.values(), *sizes.smaller.values()))
LEARNED = Family(learning_models, base="", texts=())


WHOLE = Estimator(f"{CALLS} mask counts a row and draw, in strata", functools.partial(strata_nats, calls=CALLS))


def under_whole_bound(model: LanguageModel) -> LanguageModel:
    """The model under the bound without a raised cut-off; `WHOLE` draws it with the least noise."""
    return model if model.exact else model.under(law=ContinuousTime(CUTOFF))


def training_seconds(path: Path) -> float:
    """The processor time of a training run: of what its weights start from and of its steps, without evaluations."""
    seconds = last_logged(path / JOURNAL, "step_seconds")
    if not seconds:
        raise UserError(f"the journal {path / JOURNAL} does not say how long the training was; train it again")
    return seconds
