"""The models of the tables on text: every method on one network, with a shorter and a longer budget.

As in the paper but for the sizes, and below its scale for what learns faster (`learning` compares): the modern network,
embeddings from counts, Muon. Every method minimises its own bound. A constant learning rate and an average of the
weights: a longer training is the shorter one, continued.
"""

from __future__ import annotations

import json
from typing import Any

from ..config import Config, DataConfig, EvalConfig, ObjectiveConfig, TrainConfig, differences
from ..data.records import find
from ..evaluation.suites import SUITES
from ..recipes import recipe
from .scales import Sizes
from .specs import Changes, Family, ModelSpec, Setup, changed

LONGER = "-longer"  # the end of the name of a model whose training is continued
JUDGE = "ar-judge"  # an AR model that is used for nothing but to judge samples
PAPER_TEXTS = ("lm1b", "owt")  # recipes of the paper's scale
_T1000 = {"bound": "discrete", "steps": 1000}
METHODS: dict[str, Changes] = {  # what distinguishes a model from MDLM in continuous time without time conditioning
    "mdlm": {},
    "mdlm-seed": {},  # with another seed: how much a training is worth by itself
    "mdlm-T1000": {"objective": _T1000},
    "no-carry-over": {"model": {"method": "no-carry-over"}, "objective": _T1000},
    "d3pm": {"model": {"method": "d3pm"}, "objective": _T1000},
    "mdlm-time": {"model": {"time_conditioning": True}},
    "sedd": {"model": {"method": "sedd", "time_conditioning": True}},
    "sedd-independent": {  # with times as its authors draw them
        "model": {"method": "sedd", "time_conditioning": True},
        "objective": {"times": "independent"},
    },
    "ar": {"model": {"method": "ar"}},
    JUDGE: {"model": {"method": "ar"}},  # with another seed, and trained longer
    "ssd-lm": {"model": {"method": "ssd-lm"}},
}
SECOND_SEED = ("mdlm-seed", JUDGE)


def both_budgets(*names: str) -> list[str]:
    """Models with the shorter and with the longer budget."""
    return [name + end for end in ("", LONGER) for name in names]


def text_models(setup: Setup) -> dict[str, ModelSpec]:
    """All models of a text, by name."""
    models, place = {}, _place(setup)
    for name in METHODS:
        short, long = (_config(setup, name, longer) for longer in (name == JUDGE, True))
        models[name] = ModelSpec(changed(short, place), command=train_words(setup, short))
        models[name + LONGER] = ModelSpec(changed(long, place), continues=name, command=train_words(setup, long))
    return models


TEXT = Family(text_models, base="mdlm", texts=PAPER_TEXTS)


def _config(setup: Setup, name: str, longer: bool) -> Config:
    scale, changes = setup.scale, METHODS[name]
    steps = scale.steps // 2 if changes.get("model", {}).get("method") == "ar" else scale.steps
    budget = {
        "seed": setup.seed + (name in SECOND_SEED),
        "train": {"steps": round(steps * scale.longer) if longer else steps},
    }
    if scale.sizes is None:
        return changed(recipe(_recipe(setup)), changes, budget)
    config = changed(_base(setup, scale.sizes), changes, budget)
    if config.model.method == "ssd-lm":
        config = changed(config, {"simplex": {"block": scale.sizes.block}})
    return config


def _base(setup: Setup, sizes: Sizes) -> Config:
    """MDLM at a scale."""
    return Config(
        data=DataConfig(source=setup.source, length=sizes.length, vocab_size=sizes.vocab_size),
        model=sizes.network,
        objective=ObjectiveConfig(cutoff=sizes.cutoff),
        train=TrainConfig(
            batch_size=sizes.batch_size,
            optimizer="muon",
            embeddings="counts",
            lr=sizes.lr,
            betas=(0.9, 0.98),
            warmup=sizes.warmup,
            ema=sizes.ema,
            checkpoint_every=sizes.checkpoint_every,
            keep_last=1,
            log_every=sizes.log_every,
        ),
        eval=EvalConfig(every=0, rows=sizes.eval_rows, draws=1),
    )


def _place(setup: Setup) -> Changes:
    """A text that is one of the data sets of `zero-shot` is read from the same place."""
    record = find(setup.source)
    if record is None or record.name not in {member.corpus for member in SUITES["zero-shot"]}:
        return {}
    return {"data": {"local": setup.local}}


def _recipe(setup: Setup) -> str:
    return setup.source if setup.source in PAPER_TEXTS else "lm1b"


def train_words(setup: Setup, config: Config) -> tuple[str, ...]:
    """The recipe and how the config differs from it; training steps always, the seed last."""
    if setup.scale.trains:
        return ()
    last: dict[str, Any] = {"train.steps": config.train.steps} | ({"seed": config.seed} if config.seed else {})
    changes = {key: new for key, _, new in differences(recipe(_recipe(setup)), config) if key not in last}
    words = [f"{key}={v if isinstance(v, str) else json.dumps(v)}" for key, v in (changes | last).items()]
    return (_recipe(setup), *words)
