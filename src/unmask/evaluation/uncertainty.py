"""Means, spreads and standard errors: the one place in which they are computed.

An error is `None` where there is nothing to compute it from: one value has no spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np


class Statistic(NamedTuple):
    """A figure and its standard error; None where it is not a mean."""

    value: float
    stderr: float | None = None


def mean(values: Sequence[float]) -> Statistic:
    """The mean with its standard error."""
    middle = math.fsum(values) / len(values)
    spread = deviation(values)
    return Statistic(middle, None if spread is None else spread / math.sqrt(len(values)))


def deviation(values: Sequence[float]) -> float | None:
    """The standard deviation of a sample (n - 1 in the denominator)."""
    n = len(values)
    if n < 2:
        return None
    middle = math.fsum(values) / n
    return math.sqrt(math.fsum((value - middle) ** 2 for value in values) / (n - 1))


def extent(values: Sequence[float]) -> float | None:
    """The largest value minus the smallest: the error bar of the paper's tables over seeds."""
    return max(values) - min(values) if len(values) > 1 else None


def standard_errors(values: np.ndarray) -> np.ndarray:
    """(...,) standard errors of the means over the last axis of (..., n), n > 1."""
    return np.asarray(values.std(-1, ddof=1) / math.sqrt(values.shape[-1]))


def rate_variance(amounts: np.ndarray, sizes: np.ndarray) -> float:
    """The variance of sum(amounts), centred on sum(amounts) / sum(sizes) per unit of size: texts differ in length.

    Divided by sum(sizes)^2 it is the variance of that ratio (the delta method). At least two texts.
    """
    n, rate = len(amounts), amounts.sum() / sizes.sum()
    return float(((amounts - rate * sizes) ** 2).sum() * n / (n - 1))


def rate(amounts: np.ndarray, sizes: np.ndarray) -> Statistic:
    """sum(amounts) / sum(sizes) with its standard error over texts."""
    total = float(sizes.sum())
    error = math.sqrt(rate_variance(amounts, sizes)) / total if len(amounts) > 1 else None
    return Statistic(float(amounts.sum()) / total, error)


def combined(*errors: float | None) -> float:
    """The standard error of a sum or a difference of independent figures; one without an error counts as exact."""
    return math.hypot(*(error or 0.0 for error in errors))


def ratio(over: Statistic, under: Statistic) -> Statistic:
    """One figure divided by another, independent one, with the error of both to first order."""
    value = over.value / under.value
    relative = combined((over.stderr or 0.0) / over.value, (under.stderr or 0.0) / under.value)
    return Statistic(value, abs(value) * relative or None)


def larger_than_error(difference: float, error: float, sigmas: float = 2.0) -> bool:
    """Whether a difference is further from 0 than so many of its standard errors; never, where one is not finite."""
    return math.isfinite(difference) and abs(difference) > sigmas * error
