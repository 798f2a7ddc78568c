"""Head start or factor? How much less a recipe needs for what another one reaches, and whether that lasts."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from ..evaluation.uncertainty import mean
from .figures import Figure, significant
from .study import Run


@dataclass(frozen=True)
class Reached:
    """What the recipe with all parts needs for the nats of a baseline with some budget: means over seeds."""

    budget: int
    seconds: float  # of the baseline
    nats: float
    tokens: float  # that are needed
    fewer_tokens: Figure  # as ratios
    fewer_seconds: Figure
    least: bool  # the smallest budget is enough already: ratios are at least these


def crossing(x: Sequence[float], nats: Sequence[float], target: float) -> tuple[float, bool] | None:
    """Where a falling curve reaches the target, by lines over log x; True if its first point is already below it.

    None if it never does. A curve that is convex in log x lies below its chords, so this is rather too late.
    """
    if nats and nats[0] <= target:
        return x[0], True
    for i in range(1, len(x)):
        if nats[i] <= target:
            share = (nats[i - 1] - target) / (nats[i - 1] - nats[i])
            return math.exp(math.log(x[i - 1]) + share * math.log(x[i] / x[i - 1])), False
    return None


def reached(baseline: Mapping[int, Sequence[Run]], other: Mapping[int, Sequence[Run]]) -> list[Reached]:
    """For each budget of the baseline that the other recipe matches; both by budget, smallest first, then by seed.

    A seed of one recipe is compared with the same seed of the other, at all budgets that have it.
    """
    leads = []
    for budget, runs in baseline.items():
        tokens, seconds = [], []
        for seed, run in enumerate(runs):
            curve = [others[seed] for others in other.values() if len(others) > seed]
            nats = [point.nats for point in curve]
            tokens.append(crossing([float(point.tokens) for point in curve], nats, run.nats))
            seconds.append(crossing([point.seconds for point in curve], nats, run.nats))
        needed, spent = _all(tokens), _all(seconds)
        if needed and spent:
            leads.append(
                Reached(
                    budget,
                    mean([run.seconds for run in runs]).value,
                    mean([run.nats for run in runs]).value,
                    mean([place for place, _ in needed]).value,
                    Figure(*mean([run.tokens / place for run, (place, _) in zip(runs, needed, strict=True)])),
                    Figure(*mean([run.seconds / place for run, (place, _) in zip(runs, spent, strict=True)])),
                    any(at_first for _, at_first in needed),
                )
            )
    return leads


def _all(places: Sequence[tuple[float, bool] | None]) -> list[tuple[float, bool]]:
    """All of them, or none if one is missing."""
    return [] if None in places else [place for place in places if place]


def lasting(unit: str, budgets: Sequence[float], ratios: Sequence[float]) -> str:
    """Whether a lead is a head start or a factor: in words that follow from how a ratio goes from budget to budget."""
    first, last, ratio, now = budgets[0], budgets[-1], ratios[0], ratios[-1]
    span = f"From {significant(first, 3)} to {significant(last, 3)} {unit} of the baseline"
    begin = f"{span} the ratio goes from {significant(ratio, 3)} to {significant(now, 3)}"
    if ratio <= 1:
        return f"{begin}; with the smallest budget there is no lead that could last."
    ahead = first - first / ratio
    left = last / (last - ahead)
    share = round(math.log(now / left) / math.log(ratio / left), 2) + 0.0  # as it is printed, without -0
    if share > 1:
        verdict = "the ratio grows"
    elif share >= 0.5:
        verdict = "nearer to a factor"
    elif share >= 0:
        verdict = "nearer to a head start"
    else:
        verdict = "less than a head start is left"
    return (
        f"{begin}. A head start of {significant(ahead, 3)} {unit} would leave {significant(left, 3)}, a factor "
        f"{significant(ratio, 3)}. On a log scale it is {share:.0%} of the way from the one to the other: {verdict}."
    )
