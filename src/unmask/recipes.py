"""Recipes: functions that return a validated config. Numbers from the paper stand here and nowhere else."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from .config import (
    Config,
    DataConfig,
    EvalConfig,
    ModelConfig,
    ObjectiveConfig,
    SampleConfig,
    ScheduleConfig,
    TrainConfig,
    load_yaml,
    nearest,
)
from .data.records import record
from .errors import UserError


def tiny() -> Config:
    """A model of some 270,000 weights that trains in seconds: for tests and first steps with your own data."""
    return Config(
        data=DataConfig(length=64, vocab_size=1024),
        model=ModelConfig(hidden_dim=64, n_blocks=2, n_heads=2, cond_dim=32, dropout=0.0),
        objective=ObjectiveConfig(cutoff=0.1),
        train=TrainConfig(steps=200, batch_size=16, lr=1e-3, warmup=20, ema=0.99, checkpoint_every=100),
        eval=EvalConfig(every=100, rows=64, draws=2),
    )


def demo() -> Config:
    """The job of `make demo`: Python's own documentation, a few minutes on two cores.

    A high cut-off (a valid bound, a little looser) takes the rare, heavily weighted rows with few masks out of a
    training that has no time to average over them.
    """
    return Config(
        data=DataConfig(length=64, vocab_size=1024),
        model=ModelConfig(hidden_dim=128, n_blocks=4, n_heads=4, cond_dim=64, dropout=0.0),
        objective=ObjectiveConfig(cutoff=0.1),
        train=TrainConfig(
            steps=2000, batch_size=16, lr=7e-4, warmup=100, decay="cosine", ema=0.995, checkpoint_every=500
        ),
        eval=EvalConfig(every=500, rows=256, draws=4),
    )


def _paper(data: DataConfig, split: str = "valid") -> Config:
    """Appendix D.4: DiT 12 x 768, AdamW 3e-4, 2500 steps of warm-up then constant, batch 512, 1M steps, EMA 0.9999."""
    return Config(
        data=data,
        model=ModelConfig(),
        schedule=ScheduleConfig(name="log-linear", eps=1e-3),
        objective=ObjectiveConfig(bound="continuous", cutoff=1e-3),
        train=TrainConfig(
            steps=1_000_000,
            batch_size=512,
            lr=3e-4,
            warmup=2500,
            decay="constant",
            betas=(0.9, 0.999),
            adam_eps=1e-8,
            weight_decay=0.0,
            clip=1.0,
            ema=0.9999,
            precision="bf16",
            log_every=100,
            checkpoint_every=10_000,
        ),
        eval=EvalConfig(every=10_000, rows=2048, split=split),
        sample=SampleConfig(every=50_000, steps=1000),
    )


def lm1b() -> Config:
    """MDLM on One Billion Words: bert-base-uncased, a sentence a row, padded to 128, padding noised and attended."""
    return _paper(
        DataConfig(**record("lm1b").conventions),
        split="test",  # the set has no third split; the paper validates on this one
    )


def owt() -> Config:
    """MDLM on OpenWebText: GPT-2 tokens, wrapped to 1024 with EOS between documents and at block ends."""
    return _paper(DataConfig(**record("openwebtext").conventions))


def text8() -> Config:
    """MDLM on text8: 27 characters, wrapped to 256 without ends (appendix: D3PM's protocol)."""
    return _paper(DataConfig(**record("text8").conventions))


RECIPES: dict[str, Callable[[], Config]] = {f.__name__: f for f in (demo, tiny, lm1b, owt, text8)}


def recipe(name: str) -> Config:
    """A config by the name of its recipe, or from a YAML file."""
    if name in RECIPES:
        return RECIPES[name]()
    if name.endswith((".yaml", ".yml")) or Path(name).is_file():
        return load_yaml(name)
    raise UserError(
        f"unknown recipe {name!r}{nearest(name, RECIPES)}; choose one of {', '.join(RECIPES)}, or give a YAML file"
    )
