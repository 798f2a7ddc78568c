"""The recipes of version 0.3 whose settings have changed since, so that what was begun with them can go on.

They are also the baseline that `unmask reproduce learning` measures against: the paper's network, AdamW, an average of
the weights and the weights of the bound.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from .config import Config, DataConfig, EvalConfig, ModelConfig, ObjectiveConfig, TrainConfig


def tiny() -> Config:
    """A model of some 270,000 weights that trains in seconds: it shows that the path works, and learns little."""
    return Config(
        data=DataConfig(length=64, vocab_size=1024),
        model=ModelConfig(hidden_dim=64, n_blocks=2, n_heads=2, cond_dim=32, dropout=0.0),
        objective=ObjectiveConfig(cutoff=0.1),
        train=TrainConfig(steps=200, batch_size=16, lr=1e-3, warmup=0.1, ema=0.99, checkpoint_every=100),
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
            steps=2000, batch_size=16, lr=7e-4, warmup=0.05, decay="cosine", ema=0.995, checkpoint_every=500
        ),
        eval=EvalConfig(every=500, rows=256, draws=4),
    )


def small() -> Config:
    """A model for a text of your own, about a megabyte: half an hour on two CPU cores."""
    return Config(
        data=DataConfig(length=128, vocab_size=2048),
        model=ModelConfig(hidden_dim=192, n_blocks=6, n_heads=6, cond_dim=64, dropout=0.0),
        objective=ObjectiveConfig(cutoff=0.1),
        train=_timed(30, batch_size=16, lr=1.5e-3, ema=0.999),
        eval=EvalConfig(every=0.1, rows=128, draws=2),
    )


def overnight() -> Config:
    """A larger model for a text of your own, a few megabytes or more: eight hours, on a GPU or a CPU."""
    return Config(
        data=DataConfig(length=256, vocab_size=8192),
        model=ModelConfig(hidden_dim=384, n_blocks=8, n_heads=6, cond_dim=128, dropout=0.1),
        objective=ObjectiveConfig(cutoff=0.03),
        train=_timed(480, batch_size=32, lr=1e-3, ema=0.9995),
        eval=EvalConfig(every=0.05, rows=256, draws=2),
    )


def _timed(minutes: float, **settings: Any) -> TrainConfig:
    """Steps that are chosen by measuring, with a decay to the end, and a checkpoint every twentieth of them."""
    return TrainConfig(
        minutes=minutes,
        warmup=0.05,
        decay="cosine",
        final_lr=0.02,
        betas=(0.9, 0.98),
        weight_decay=0.05,
        checkpoint_every=0.05,
        **settings,
    )


EARLIER: dict[str, Callable[[], Config]] = {f.__name__: f for f in (tiny, demo, small, overnight)}
