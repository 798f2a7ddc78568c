"""How large: the models of the tables, and the scales at which they can be trained."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import Config, DataConfig, EvalConfig, ModelConfig, ObjectiveConfig, TrainConfig, nearest
from ..recipes import recipe
from ..types import UserError

LONGER = "-longer"  # the end of the name of a model that is trained on
JUDGE = "ar-judge"  # an AR model that is used for nothing but to judge samples
T1000 = ("objective.bound=discrete", "objective.steps=1000")
AR = "model.method=ar"

MODELS: dict[str, tuple[str, ...]] = {  # what tells a model from MDLM in continuous time without time conditioning
    "mdlm": (),
    "mdlm-seed": (),  # with another seed: how much a training is worth by itself
    "mdlm-T1000": T1000,
    "no-carry-over": ("model.method=no-carry-over", *T1000),
    "d3pm": ("model.method=d3pm", *T1000),
    "mdlm-time": ("model.time_conditioning=true",),
    "sedd": ("model.method=sedd", "model.time_conditioning=true"),
    "ar": (AR,),
    JUDGE: (AR,),  # with another seed, and trained longer
    "ssd-lm": ("model.method=ssd-lm",),
}
SECOND = ("mdlm-seed", JUDGE)  # trained with the second seed
PAPER_TEXTS = ("lm1b", "owt")  # recipes of the paper's scale


@dataclass(frozen=True)
class Sizes:
    """Sizes of the models that are trained here."""

    network: ModelConfig
    length: int
    vocab_size: int
    warmup: int
    ema: float
    checkpoint_every: int
    eval_rows: int
    block: int = 25  # of SSD-LM, as published; smaller than `length`
    log_every: int = 10
    lr: float = 6e-4
    cutoff: float = 1e-3


@dataclass(frozen=True)
class Scale:
    """Sizes of networks, trainings and evaluations."""

    name: str
    steps: int  # of a diffusion model; AR takes half, so that both see as many tokens (paper, appendix D.2)
    longer: float  # the longer budget, in units of the shorter
    rows: int | None  # test rows of a likelihood; None = all
    draws: int  # draws of each row for a variance
    samples: int  # sequences for a generative perplexity
    sampling_steps: tuple[int, ...]  # T of `caching`
    full_steps: int | None  # the largest T at which samplers with a call every step are run to the end; None = all
    times: int  # length of the samples of `semi-ar`, in units of the model's
    decode_steps: int  # T of `semi-ar`, a block of SSD-LM or a window of MDLM
    long_samples: int  # sequences of `semi-ar`
    sizes: Sizes | None  # None = the paper's
    split: str = "test"

    @property
    def trains(self) -> bool:
        """Whether models are trained here; the paper's are a job for a cluster."""
        return self.sizes is not None

    def steps_of(self, name: str) -> int:
        """Training steps of a model."""
        own = self.steps // 2 if AR in MODELS[name.removesuffix(LONGER)] else self.steps
        return round(own * self.longer) if name.endswith(LONGER) or name == JUDGE else own

    def command(self, name: str, source: str = "lm1b", seed: int = 0) -> tuple[str, list[str]]:
        """(recipe, changes) of a model at the paper's scale, on one of the paper's texts."""
        changes = [*MODELS[name.removesuffix(LONGER)], f"train.steps={self.steps_of(name)}"]
        own = seed_of(name, seed)
        return (source if source in PAPER_TEXTS else "lm1b"), [*changes, *([f"seed={own}"] if own else [])]


SCALES = {
    "smoke": Scale(
        "smoke",
        60,
        2,
        32,
        4,
        4,
        (4, 16, 64),
        None,
        3,
        16,
        4,
        Sizes(
            ModelConfig(hidden_dim=32, n_blocks=2, n_heads=2, cond_dim=16, dropout=0.0),
            length=32,
            vocab_size=512,
            warmup=20,
            ema=0.9,
            checkpoint_every=60,
            eval_rows=8,
            block=8,
            log_every=1,
        ),
    ),
    "small": Scale(
        "small",
        1600,
        2,
        1024,
        32,
        16,
        (100, 500, 1000, 5000, 10_000),
        1000,
        8,
        200,
        8,
        Sizes(
            ModelConfig(hidden_dim=128, n_blocks=4, n_heads=4, cond_dim=64, dropout=0.0),
            length=64,
            vocab_size=4096,
            warmup=100,
            ema=0.998,
            checkpoint_every=250,
            eval_rows=128,
        ),
    ),
    "medium": Scale(  # of the model in the package, `tiny-en`
        "medium",
        2000,
        2.5,
        512,
        32,
        16,
        (100, 500, 1000, 5000, 10_000),
        1000,
        8,
        200,
        8,
        Sizes(
            ModelConfig(hidden_dim=256, n_blocks=4, n_heads=4, cond_dim=64, dropout=0.0),
            length=128,
            vocab_size=8192,
            warmup=200,
            ema=0.999,
            checkpoint_every=250,
            eval_rows=256,
            lr=8e-4,
            cutoff=0.01,
        ),
    ),
    "paper": Scale("paper", 1_000_000, 10, None, 64, 64, (100, 500, 1000, 5000, 10_000), None, 2, 1000, 200, None),
}


def scale_named(name: str) -> Scale:
    """A scale by its name."""
    if name not in SCALES:
        raise UserError(f"unknown scale {name!r}{nearest(name, SCALES)}; choose one of {', '.join(SCALES)}")
    return SCALES[name]


def seed_of(name: str, seed: int) -> int:
    """The seed that a model is trained with."""
    return seed + (name.removesuffix(LONGER) in SECOND)


def model_config(scale: Scale, source: str, name: str, seed: int = 0) -> Config:
    """The settings of a model at a scale, on a text: as in the paper but for the sizes.

    A constant learning rate and an average of the weights: a longer training is the shorter one, continued.
    """
    sizes = scale.sizes
    if sizes is None:
        text, changes = scale.command(name, source, seed)
        return recipe(text).override(changes)
    base = Config(
        seed=seed_of(name, seed),
        data=DataConfig(source=source, length=sizes.length, vocab_size=sizes.vocab_size),
        model=sizes.network,
        objective=ObjectiveConfig(cutoff=sizes.cutoff),
        train=TrainConfig(
            steps=scale.steps_of(name),
            batch_size=16,
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
    changes = list(MODELS[name.removesuffix(LONGER)])
    if "model.method=ssd-lm" in changes:
        changes.append(f"simplex.block={sizes.block}")
    return base.override(changes)
