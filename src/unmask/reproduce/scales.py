"""The scales at which the tables can be re-created."""

from __future__ import annotations

from dataclasses import dataclass

from ..config import ModelConfig, nearest
from ..types import UserError


@dataclass(frozen=True)
class Sizes:
    """Sizes of the text models that are trained at a scale."""

    network: ModelConfig
    length: int
    vocab_size: int
    warmup: int
    ema: float
    checkpoint_every: int
    eval_rows: int
    block: int = 25  # of SSD-LM, as published; smaller than `length`
    batch_size: int = 16
    log_every: int = 1  # `variance-curve` is about single batches
    lr: float = 2e-3  # of AdamW; Muon, which moves the matrices, has its default
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
    decode_steps: int  # T of `semi-ar`, for each block of SSD-LM or window of MDLM
    long_samples: int  # sequences of `semi-ar`
    sizes: Sizes | None  # None = the paper's
    split: str = "test"
    unjudged: str = ""  # why its figures say nothing about the paper's claims; "" = they may

    @property
    def trains(self) -> bool:
        """Whether models are trained on this machine; the paper's scale needs a cluster."""
        return self.sizes is not None


SCALES = {
    "smoke": Scale(
        "smoke",
        steps=60,
        longer=2,
        rows=32,
        draws=4,
        samples=4,
        sampling_steps=(4, 16, 64),
        full_steps=None,
        times=3,
        decode_steps=16,
        long_samples=4,
        sizes=Sizes(
            ModelConfig(network="modern", hidden_dim=32, n_blocks=2, n_heads=2),
            length=32,
            vocab_size=512,
            warmup=20,
            ema=0.9,
            checkpoint_every=60,
            eval_rows=8,
            block=8,
        ),
        unjudged="No verdict: at the scale smoke networks are tiny and trained for seconds, so the figures show that "
        "the path works and not which method is better. Use --scale small or larger to judge these claims.",
    ),
    "small": Scale(
        "small",
        steps=200,
        longer=4,
        rows=1024,
        draws=32,
        samples=16,
        sampling_steps=(100, 500, 1000, 5000, 10_000),
        full_steps=1000,
        times=8,
        decode_steps=200,
        long_samples=8,
        sizes=Sizes(
            ModelConfig(network="modern", hidden_dim=128, n_blocks=4, n_heads=4),
            length=64,
            vocab_size=4096,
            warmup=20,
            ema=0.99,
            checkpoint_every=100,
            eval_rows=128,
            batch_size=32,  # bounds draw one time a row: with more rows a step they are less noisy
        ),
    ),
    "medium": Scale(
        "medium",
        steps=2000,
        longer=2.5,
        rows=512,
        draws=32,
        samples=16,
        sampling_steps=(100, 500, 1000, 5000, 10_000),
        full_steps=1000,
        times=8,
        decode_steps=200,
        long_samples=8,
        sizes=Sizes(
            ModelConfig(network="modern", hidden_dim=256, n_blocks=4, n_heads=4),
            length=128,
            vocab_size=8192,
            warmup=200,
            ema=0.999,
            checkpoint_every=250,
            eval_rows=256,
            log_every=10,
            cutoff=0.01,
        ),
    ),
    "paper": Scale(
        "paper",
        steps=1_000_000,
        longer=10,
        rows=None,
        draws=64,
        samples=64,
        sampling_steps=(100, 500, 1000, 5000, 10_000),
        full_steps=None,
        times=2,
        decode_steps=1000,
        long_samples=200,
        sizes=None,
    ),
}


def scale_named(name: str) -> Scale:
    """A scale by its name."""
    if name not in SCALES:
        raise UserError(f"unknown scale {name!r}{nearest(name, SCALES)}; choose one of {', '.join(SCALES)}")
    return SCALES[name]
