"""Claims of the paper as data: two sides, a relation, and how the error between them is judged.

A claim names its two sides; `Claim.check` looks them up among what a table measured. How the difference of two sides
and its error are computed is a function (`measure`): paired over texts, paired by seed, or of independent figures.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np

from ..evaluation.uncertainty import Statistic, combined, larger_than_error, mean, rate, ratio
from .bench import ScoredModel
from .figures import Figure
from .report import Check

MARGIN = 1.0  # points of GLUE (or of accuracy) that "no worse" may hide


@dataclass(frozen=True)
class Difference:
    """By how much the left side is better than the right one; its error is None if it is unknown."""

    value: float
    error: float | None
    words: str
    counted: str = "errors"  # what the words are followed by, with their number; "" = nothing
    remark: str = ""
    beside: str = ""  # what is said after the verdict

    @property
    def apart(self) -> float:
        """The difference in units of its error."""
        return self.value / self.error if self.error else math.copysign(math.inf, self.value)

    @property
    def shown(self) -> str:
        """All of it as text."""
        counted = f", {self.apart:.1f} {self.counted}" if self.counted else ""
        return f"{self.words}{counted}{self.remark}"


Measure = Callable[[Any, Any], Difference]
Relation = Literal["better", "no worse", "equal"]


def decide(claim: str, difference: Difference, relation: Relation = "better", sigmas: float = 2.0) -> Check:
    """Whether a claim holds, does not, or (None) is left open by the error."""
    holds, why = _verdict(difference, relation, sigmas)
    return Check(claim, holds, f"{difference.shown}{why}{difference.beside}")


def _verdict(difference: Difference, relation: Relation, sigmas: float) -> tuple[bool | None, str]:
    value, error = difference.value, difference.error
    if error is None:
        return None, ": one seed has no error"
    if not math.isfinite(value) or not math.isfinite(error):
        return None, ": not finite, so not decided"
    if relation == "equal":
        return not larger_than_error(value, error, sigmas), ""
    if relation == "no worse" and value + sigmas * error >= 0 and value - sigmas * error > -MARGIN:
        return True, f": less than {MARGIN:g} below 0 by {sigmas:g} errors"
    if not larger_than_error(value, error, sigmas):
        return None, f": within {sigmas:g}{'' if difference.counted else ' errors'}, not decided"
    return value > 0, ""


# -- differences -----------------------------------------------------------------------------------------------------


def nats_gap(first: ScoredModel, second: ScoredModel) -> Figure:
    """The excess nats per token of the second on the same rows, with errors over draws and over texts, both paired."""
    gap = second.nats.mean(1) - first.nats.mean(1)  # one text each, so what a text is worth cancels
    return Figure(*rate(gap, first.tokens))


def fewer_nats(left: ScoredModel, right: ScoredModel) -> Difference:
    """For two models on the same texts, paired over texts."""
    gap = nats_gap(left, right)
    words = f"{left.perplexity} against {right.perplexity}: {gap} nats a token, paired over texts"
    return Difference(gap.value, gap.error, words)


def equal_nats(left: ScoredModel, right: ScoredModel) -> Difference:
    """The same without a direction, for claims that two models are equal."""
    gap = nats_gap(left, right)
    return Difference(abs(gap.value), gap.error, f"{left.perplexity} and {right.perplexity}: {gap} nats a token")


def fewer_nats_of_seeds(left: Sequence[ScoredModel], right: Sequence[ScoredModel], unit: str = "base") -> Difference:
    """For two systems with several training runs each: errors over texts and over training seeds, both paired."""
    each = [nats_gap(first, second).value for first, second in zip(left, right, strict=True)]
    over_seeds = mean(each)
    gap = Figure(over_seeds.value, combined(nats_gap(_pooled(left), _pooled(right)).error, over_seeds.stderr))
    remark = "" if len(each) > 1 else " (one seed: the error is over texts only)"
    words = f"{_mean(left)} against {_mean(right)}: {gap} nats a {unit}"
    return Difference(gap.value, gap.error, words, remark=remark)


def _pooled(scored: Sequence[ScoredModel]) -> ScoredModel:
    """All training runs as draws of one."""
    first = scored[0]
    return ScoredModel(
        np.concatenate([model.nats for model in scored], axis=1), first.tokens, first.exact, first.protocol
    )


def _mean(scored: Sequence[ScoredModel]) -> Figure:
    return Figure(mean([model.perplexity.value for model in scored]).value, bound=not scored[0].exact)


def smaller(left: Figure, right: Figure) -> Difference:
    """For two independent figures."""
    value, error = right.value - left.value, combined(left.error, right.error)
    remark = " (a figure without an error counts as exact)" if left.error is None or right.error is None else ""
    counted = "combined standard errors" if error else ""
    words = f"{left} against {right}: difference {Figure(value, error or None)}"
    return Difference(value, error, words, counted, remark)


def apart(left: Figure, right: Figure) -> Difference:
    """For two independent figures, for the claim that they are equal within three errors."""
    value, error = abs(left.value - right.value), combined(left.error, right.error)
    words = f"{left} and {right}: difference {Figure(value, error or None)}, equal if within 3 standard errors"
    return Difference(value, error, words, counted="")


def paired_by_seed(gap: Figure) -> Difference:
    """A difference of means that is already measured, seed by seed."""
    return Difference(gap.value, gap.error, f"difference of the means {gap}, paired by seed", counted="")


# -- claims ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Claim:
    """A sentence of the paper about two sides, in the words of a table."""

    text: str
    left: str
    right: str
    relation: Relation = "better"
    measure: Measure = fewer_nats
    sigmas: float = 2.0

    def check(self, sides: Mapping[str, Any]) -> Check:
        """Judge it by what was measured."""
        return decide(self.text, self.measure(sides[self.left], sides[self.right]), self.relation, self.sigmas)


def figure_ratio(over: Figure, under: Figure) -> Figure:
    """One figure divided by another, with the error of both."""
    return Figure(*ratio(Statistic(over.value, over.error), Statistic(under.value, under.error)))
