"""From a config to objects: the one place where a name chooses a class."""

from __future__ import annotations

from .backbones.base import Backbone
from .backbones.transformer import DiT
from .config import Config, ModelConfig, ObjectiveConfig, ScheduleConfig
from .models.base import LanguageModel
from .models.masked import MaskedDiffusion
from .schedule import ContinuousTime, Cosine, DiscreteTime, Geometric, Law, Linear, Polynomial, Schedule
from .types import UserError, Vocab


def schedule(spec: ScheduleConfig) -> Schedule:
    """The schedule that a config names."""
    if spec.sigma_min >= spec.sigma_max:
        raise UserError(f"schedule.sigma_min={spec.sigma_min} must be below schedule.sigma_max={spec.sigma_max}")
    makers = {
        "log-linear": lambda: Polynomial(1.0, spec.eps),
        "polynomial": lambda: Polynomial(spec.power, spec.eps),
        "cosine": lambda: Cosine(1, spec.eps),
        "cosine-squared": lambda: Cosine(2, spec.eps),
        "linear": lambda: Linear(spec.sigma_max),
        "geometric": lambda: Geometric(spec.sigma_min, spec.sigma_max),
    }
    return makers[spec.name]()


def law(spec: ObjectiveConfig) -> Law:
    """The law of the bound that a config names."""
    if spec.bound == "continuous":
        return ContinuousTime(spec.cutoff)
    assert spec.steps is not None
    return DiscreteTime(spec.steps)


def backbone(spec: ModelConfig, vocab: Vocab, n_labels: int = 0) -> Backbone:
    """The network that a config names; `n_labels` is the number of labels that the data have."""
    return DiT(
        vocab,
        hidden_dim=spec.hidden_dim,
        n_blocks=spec.n_blocks,
        n_heads=spec.n_heads,
        cond_dim=spec.cond_dim,
        mlp_ratio=spec.mlp_ratio,
        dropout=spec.dropout,
        time_conditioning=spec.time_conditioning,
        n_labels=n_labels,
    )


def model(config: Config, vocab: Vocab, n_labels: int = 0) -> LanguageModel:
    """The language model that a config names, with fresh weights from torch's global generator.

    How many labels there are is a fact of the data, or of the checkpoint's labels.json, and never a setting.
    """
    return MaskedDiffusion(backbone(config.model, vocab, n_labels), schedule(config.schedule), law(config.objective))
