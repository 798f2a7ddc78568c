"""Means, spreads and standard errors: the one place in which they are computed.

An error is `None` where there is nothing to compute it from: one value has no spread.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from functools import lru_cache
from statistics import NormalDist
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


# -- few values ------------------------------------------------------------------------------------------------------


@lru_cache(4096)
def student(probability: float, freedom: float) -> float:
    """The quantile of Student's law; with much freedom, of the normal law."""
    if freedom > 1e6:
        return NormalDist().inv_cdf(probability)
    if probability < 0.5:
        return -student(1 - probability, freedom)
    norm = math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2) - math.log(freedom * math.pi) / 2
    t, step = 0.0, 1.0
    while step > 1e-13 * t:  # Newton's method never passes the root: beyond 0 the law is concave
        density = math.exp(norm - (freedom + 1) / 2 * math.log1p(t * t / freedom))
        step = (probability - _student_below(t, freedom)) / density
        t += step
    return t


def freedom_of(*parts: tuple[float | None, float]) -> float:
    """The degrees of freedom of errors that add up, each with its own (Welch and Satterthwaite)."""
    largest = max((error or 0.0 for error, _ in parts), default=0.0)
    if not largest:
        return math.inf
    shares = [(((error or 0.0) / largest) ** 2, freedom) for error, freedom in parts]
    spread = math.fsum(share**2 / freedom for share, freedom in shares)
    return math.fsum(share for share, _ in shares) ** 2 / spread if spread else math.inf


def _student_below(t: float, freedom: float) -> float:
    """The chance that Student's t is below t >= 0: an incomplete beta function, by Lentz' continued fraction."""
    x, a, b = freedom / (freedom + t * t), freedom / 2, 0.5
    if x > (a + 1) / (a + b + 2):
        return 0.5 + 0.5 * _beta(t * t / (freedom + t * t), b, a)
    return 1 - 0.5 * _beta(x, a, b)


def _beta(x: float, a: float, b: float) -> float:
    """The regularised incomplete beta function where its fraction converges fast."""
    if x <= 0:
        return 0.0
    front = math.exp(math.lgamma(a + b) - math.lgamma(a) - math.lgamma(b) + a * math.log(x) + b * math.log1p(-x))
    c, d = 1.0, 1 / (1 - (a + b) * x / (a + 1))
    value = d
    for m in range(1, 500):
        for step in (
            m * (b - m) * x / ((a + 2 * m - 1) * (a + 2 * m)),
            -(a + m) * (a + b + m) * x / ((a + 2 * m) * (a + 2 * m + 1)),
        ):
            d, c = 1 / (1 + step * d), 1 + step / c
            value *= c * d
        if abs(c * d - 1) < 1e-14:
            break
    return front * value / a
