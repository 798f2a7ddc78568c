"""Claims of the paper as data: two sides, a relation, and how the error between them is judged.

A claim names its two sides; `Claim.check` looks them up among what a table measured. How the difference of two sides
and its error are computed is a function (`measure`). A claim about models is a claim about trainings: a side is a list,
one training a seed, the same seeds and rows on both sides. Its error combines the one over texts with the one over
trainings, and Student's law counts how few these are. One training each decides nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from statistics import NormalDist
from typing import Any, Literal

from ..evaluation.uncertainty import Statistic, combined, deviation, freedom_of, mean, rate, ratio, student
from .figures import Figure
from .report import NATS, POINTS, RATIO, Check, EffectSize
from .scored import ScoredModel, Trainings, mean_perplexity, pooled

MARGIN = 1.0  # points of GLUE (or of accuracy) that "no worse" may hide
NO_DIFFERENCE = 0.03  # nats that are called no difference: 3 % of a perplexity
CHANCE = 0.05  # nats by which two trainings differ by chance (standard deviation), as long as nothing better is known
POWER = 0.8  # with this chance as many trainings as are said to be needed decide a claim
FEWEST, MOST = 3, 1000  # trainings: of two the spread is hardly known, and nobody will make more


@dataclass(frozen=True)
class Difference:
    """By how much the left side is better than the right one; its error is None if it is unknown."""

    value: float
    error: float | None
    words: str
    counted: str = "errors"  # what the words are followed by, with their number; "" = nothing
    remark: str = ""
    beside: str = ""  # what is said after the verdict
    unit: str = NATS
    freedom: float = math.inf  # degrees of freedom of the error
    trainings: int | None = None  # of each side; None: the error is not over trainings
    spread: float | None = None  # standard deviation of the difference from training to training
    texts: float = 0.0  # the part of the error that more trainings leave as it is

    @property
    def apart(self) -> float:
        """The difference in units of its error."""
        return self.value / self.error if self.error else math.copysign(math.inf, self.value)

    @property
    def shown(self) -> str:
        """All of it as text."""
        counted = f", {self.apart:.1f} {self.counted}" if self.counted else ""
        return f"{self.words}{counted}{self.remark}"

    @property
    def alone(self) -> bool:
        """Whether there is one training of each side, and nothing known about their chance."""
        return self.trainings == 1 and self.spread is None

    def reach(self, sigmas: float) -> float:
        """Half the length of the interval: as sure as so many errors of a normal law."""
        assert self.error is not None
        return self.error * (sigmas if math.isinf(self.freedom) else student(NormalDist().cdf(sigmas), self.freedom))


Measure = Callable[[Any, Any], Difference]
Relation = Literal["better", "no worse", "equal"]


# -- verdicts --------------------------------------------------------------------------------------------------------


def decide(
    claim: str,
    difference: Difference,
    relation: Relation = "better",
    sigmas: float = 2.0,
    margin: float = 0.0,
    paper: float | None = None,
) -> Check:
    """Whether a claim holds, does not, or (None) is left open by the error; then what would decide it.

    Two sides are equal if the interval of their difference lies within the margin; without a margin the claim is an
    identity, and only a difference that is larger than its error speaks against it.
    """
    margin = margin or (MARGIN if relation == "no worse" else 0.0)
    holds, why = _verdict(difference, relation, sigmas, margin)
    needs = "" if holds is not None else _needs(difference, relation, sigmas, margin)
    finite = difference.error is not None and math.isfinite(difference.value) and math.isfinite(difference.error)
    low, high = None, None
    if finite and not difference.alone:
        reach = difference.reach(sigmas)
        low, high = difference.value - reach, difference.value + reach
    effect = EffectSize(difference.value, difference.error, low, high, difference.unit, paper, difference.trainings)
    why = f": {why}" if why else ""
    open_ = f": not decided{f' ({needs})' if needs else ''}" if holds is None else ""
    return Check(claim, holds, f"{difference.shown}{why}{open_}{difference.beside}", effect, needs)


def _verdict(difference: Difference, relation: Relation, sigmas: float, margin: float) -> tuple[bool | None, str]:
    """Whether it holds, and why that is not plain."""
    value, error = difference.value, difference.error
    if error is None:
        return None, "one seed has no error"
    if not math.isfinite(value) or not math.isfinite(error):
        return None, "not finite"
    if difference.alone:
        return None, "one training each, whose chance is in no error"
    reach = difference.reach(sigmas)
    if relation == "equal" and not margin:
        return abs(value) <= reach, ""
    if relation == "equal":
        if abs(value) + reach <= margin:
            return True, f"within {margin:g} of 0"
        return (False, "") if abs(value) - reach > margin else (None, f"the interval is not within {margin:g} of 0")
    if relation == "no worse" and value + reach >= 0 and value - reach > -margin:
        return True, f"less than {margin:g} below 0"
    if abs(value) > reach:
        return value > 0, ""
    return None, "0 is in the interval"


def _needs(difference: Difference, relation: Relation, sigmas: float, margin: float) -> str:
    """What would probably decide: more trainings, or more texts; "" if that cannot be said."""
    value, error, trainings = difference.value, difference.error, difference.trainings
    if error is None:
        return "one training each; needs at least 2 more"
    if not math.isfinite(value) or not math.isfinite(error):
        return ""
    if trainings is None:
        return "needs more texts or draws"
    distance = abs(value)
    if relation == "equal":
        distance = abs(margin - abs(value))
    elif relation == "no worse" and value > -margin / 2:
        distance = value + margin
    spread = difference.spread if difference.spread is not None else CHANCE if difference.unit == NATS else None
    begin = "one training each; " if trainings == 1 else ""
    if spread is None:
        return f"{begin}needs at least 2 more"
    total = trainings_for(distance, spread, difference.texts, trainings + 1, sigmas)
    if total is None:
        texts = trainings_for(distance, 0.0, difference.texts, trainings + 1, sigmas) is None
        return begin + ("needs more texts" if texts else f"needs more than {MOST} trainings")
    more = total - trainings
    return f"{begin}needs about {more} more"


def trainings_for(distance: float, spread: float, texts: float, least: int, sigmas: float = 2.0) -> int | None:
    """The fewest trainings whose interval probably (`POWER`) does not reach as far as `distance`; None: too many.

    `spread` is the standard deviation from training to training, `texts` an error that stays however many there are.
    """
    sure = NormalDist().cdf(sigmas)

    def enough(n: int) -> bool:
        trained = spread / math.sqrt(n)
        freedom = freedom_of((trained, n - 1), (texts, math.inf))
        return (student(sure, freedom) + student(POWER, freedom)) * combined(trained, texts) <= distance

    low, high = max(least, FEWEST), MOST
    if not enough(high):
        return None
    while low < high:
        middle = (low + high) // 2
        low, high = (low, middle) if enough(middle) else (middle + 1, high)
    return low


# -- differences -----------------------------------------------------------------------------------------------------


def paired(each: Sequence[float], shared: tuple[float, float] = (0.0, math.inf), unit: str = NATS) -> Difference:
    """A difference that was measured once a training seed, without words.

    `shared` is the error of what all seeds have in common, with its degrees of freedom: that of the texts.
    """
    over, n = mean(each), len(each)
    if over.stderr is None:
        return Difference(over.value, shared[0], "", unit=unit, freedom=shared[1], trainings=1, texts=shared[0])
    return Difference(
        over.value,
        combined(over.stderr, shared[0]),
        "",
        unit=unit,
        freedom=freedom_of((over.stderr, n - 1), shared),
        trainings=n,
        spread=deviation(each),
        texts=shared[0],
    )


def nats_gap(first: ScoredModel, second: ScoredModel) -> Figure:
    """The excess nats per token of the second on the same rows, with errors over draws and over texts, both paired."""
    gap = second.nats.mean(1) - first.nats.mean(1)  # one text each, so what a text is worth cancels
    return Figure(*rate(gap, first.tokens))


def fewer_nats(left: ScoredModel | Trainings, right: ScoredModel | Trainings, per: str = "token") -> Difference:
    """For two kinds of model on the same texts: paired over texts and over training seeds, those that both have."""
    left, right = ([side] if isinstance(side, ScoredModel) else side for side in (left, right))
    n = min(len(left), len(right))
    left, right = left[:n], right[:n]
    each = [nats_gap(first, second).value for first, second in zip(left, right, strict=True)]
    over_texts = nats_gap(pooled(left), pooled(right)).error or 0.0
    gap = paired(each, (over_texts, max(1, len(left[0].tokens) - 1)))
    how = "paired over texts" if n == 1 else f"paired over texts and {n} trainings"
    words = f"{mean_perplexity(left)} against {mean_perplexity(right)}: {Figure(gap.value, gap.error)} nats a {per}"
    return replace(gap, words=f"{words}, {how}")


def fewer_nats_a_base(left: Trainings, right: Trainings) -> Difference:
    """The same for DNA."""
    return fewer_nats(left, right, "base")


def smaller(left: Figure | Sequence[Figure], right: Figure | Sequence[Figure], same_draws: bool = False) -> Difference:
    """For two positive figures that are independent, or lists of these, one a training seed: the log of their ratio.

    Errors of the figures are part of what trainings differ by, unless all of them have the same texts and draws.
    """
    both = [[side] if isinstance(side, Figure) else list(side) for side in (left, right)]
    pairs = list(zip(*both, strict=True))
    each = [_log_ratio(under, over) for under, over in pairs]
    measured = combined(*(part.error for part in each)) / math.sqrt(len(each))
    gap = paired([part.value for part in each], (measured if same_draws or len(each) == 1 else 0.0, math.inf), RATIO)
    if isinstance(left, Figure):
        gap = replace(gap, trainings=None)
    plain = any(figure.error is None for pair in pairs for figure in pair)
    remark = " (a figure without an error counts as exact)" if plain and len(each) == 1 else ""
    means = [_mean(side) for side in both]
    counted = "combined standard errors" if gap.error else ""
    words = f"{means[0]} against {means[1]}: log of the ratio {Figure(gap.value, gap.error or None)}"
    return replace(gap, words=words, counted=counted, remark=remark)


def less_variance(left: Sequence[Figure], right: Sequence[Figure]) -> Difference:
    """Variances of draws, with the same texts and draws for every training."""
    return smaller(left, right, same_draws=True)


def _log_ratio(under: Figure, over: Figure) -> Figure:
    if not (0 < under.value < math.inf and 0 < over.value < math.inf):
        return Figure(math.nan, math.nan)
    errors = (under.error or 0.0) / under.value, (over.error or 0.0) / over.value
    return Figure(math.log(over.value / under.value), combined(*errors))


def _mean(figures: Sequence[Figure]) -> Figure:
    return figures[0] if len(figures) == 1 else Figure(*mean([figure.value for figure in figures]))


def paired_by_seed(gap: Figure, seeds: int | None = None) -> Difference:
    """A difference of means in points that is already measured, seed by seed."""
    freedom, spread = math.inf, None
    if seeds is not None and seeds > 1 and gap.error is not None:
        freedom, spread = seeds - 1, gap.error * math.sqrt(seeds)
    words = f"difference of the means {gap}, paired by seed"
    return Difference(gap.value, gap.error, words, "", unit=POINTS, freedom=freedom, trainings=seeds, spread=spread)


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
    margin: float = 0.0  # "equal" and "no worse": up to this; 0: see `decide`
    paper: float | None = None  # the paper's difference in the unit of ours
    trained: bool = True  # False: both sides are the same model, or it is about seconds; one training decides

    def check(self, sides: Mapping[str, Any]) -> Check:
        """Judge it by what was measured."""
        difference = self.measure(sides[self.left], sides[self.right])
        if not self.trained and difference.trainings == 1:
            difference = replace(difference, trainings=None)
        return decide(self.text, difference, self.relation, self.sigmas, self.margin, self.paper)


def figure_ratio(over: Figure, under: Figure) -> Figure:
    """One figure divided by another, with the error of both."""
    return Figure(*ratio(Statistic(over.value, over.error), Statistic(under.value, under.error)))
