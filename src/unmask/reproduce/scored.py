"""Likelihoods as they were drawn, of one training or of several with different seeds, and their means."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from ..evaluation.likelihood import summarise
from ..evaluation.uncertainty import combined, deviation, mean
from ..types import Likelihood
from .figures import Figure


@dataclass(frozen=True)
class ScoredModel:
    """A likelihood of a split, draw by draw."""

    nats: np.ndarray  # (rows, draws)
    tokens: np.ndarray  # (rows,)
    exact: bool
    protocol: dict[str, Any]

    @property
    def likelihood(self) -> Likelihood:
        """Summed up, with errors."""
        return summarise(self.nats, self.tokens, None, self.protocol)

    @property
    def rate(self) -> Figure:
        """Nats per token with the standard error of the mean over draws."""
        whole = self.likelihood
        return Figure(whole.nats_per_token, 0.0 if self.exact else whole.stderr_nats, bound=not self.exact)

    @property
    def perplexity(self) -> Figure:
        """exp(nats per token) with the standard error of the mean over draws."""
        return _exponential(self.rate)

    @property
    def spread(self) -> float:
        """The standard deviation of the perplexity over draws, which is what the paper prints."""
        each = np.exp(self.nats.sum(0) / self.tokens.sum())
        return 0.0 if self.exact else deviation(each.tolist()) or 0.0


@dataclass(frozen=True)
class Classified:
    """How good a classifier is: its metrics, and which examples it was right about."""

    last: dict[str, dict[str, float]]  # after the last epoch, by dev split
    test: dict[str, float]  # of the best checkpoint; empty where the task has no test split
    right: str  # 1 for each test example whose class it named, else 0


Trainings = Sequence[ScoredModel]  # of one kind of model on the same rows, a seed each


def pooled(scored: Trainings) -> ScoredModel:
    """All trainings as draws of one."""
    first = scored[0]
    if len(scored) == 1:
        return first
    return ScoredModel(
        np.concatenate([model.nats for model in scored], axis=1), first.tokens, first.exact, first.protocol
    )


def mean_rate(scored: Trainings) -> Figure:
    """Nats per token: the mean over trainings. The error is over draws, and of several trainings over these too."""
    if len(scored) == 1:
        return scored[0].rate
    over = mean([model.rate.value for model in scored])
    draws = combined(*(model.rate.error for model in scored)) / math.sqrt(len(scored))  # all have the same draws
    return Figure(over.value, combined(draws, over.stderr), bound=not scored[0].exact)


def mean_perplexity(scored: Trainings) -> Figure:
    """Exp of the mean nats per token, with the same error."""
    return _exponential(mean_rate(scored))


def _exponential(rate: Figure) -> Figure:
    value = math.exp(rate.value)
    return Figure(value, None if rate.error is None else value * rate.error, bound=rate.bound)
