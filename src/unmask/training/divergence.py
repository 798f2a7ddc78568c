"""A learning rate that is too high, in one sentence: the loss is not finite, or stays far above that of the start."""

from __future__ import annotations

import math
import statistics

from ..config import TrainConfig, steps_of
from ..types import UserError

FIRST, SUSTAINED = 10, 20  # steps
TIMES, NATS = 3.0, 3.0  # a loss is too high if it is above the first ones by this factor, and by this much
ABSURD = (
    100.0  # nats a token, which no model has that learns: where a run diverges at once, its first losses say nothing
)


class Divergence:
    """Compares each loss with those of the first steps that it has seen.

    The loss of a healthy run falls, and its noise does not lift twenty steps in a row: each of them would have to be
    above three times the median of the first. So it misses some divergent runs, and stops no other. Nothing of it is
    saved: a run that is continued is compared with its loss at that time.
    """

    def __init__(self, spec: TrainConfig) -> None:
        self.spec, self.warmup = spec, steps_of(spec.warmup, spec.steps)
        self._first: list[float] = []
        self._high = 0  # steps in a row

    def check(self, step: int, loss: float) -> None:
        """Raise where the loss of a step (counted from 0) shows that training diverges."""
        if len(self._first) < FIRST:
            self._first.append(loss)
            return
        first = statistics.median(self._first)
        limit = max(TIMES * first, first + NATS)
        if limit > ABSURD:  # all but the very first loss were after a step
            first = self._first[0]
            limit = max(TIMES * first, ABSURD)
        self._high = self._high + 1 if loss > limit and step >= self.warmup else 0
        if self._high == SUSTAINED:
            raise UserError(
                f"training diverges: the loss of step {step} is {loss:.4g}; it was {first:.4g} in the first steps and "
                f"has been above {limit:.4g} for {SUSTAINED} steps; {advice(self.spec)} and start a new run"
            )


def check_finite(what: str, value: float, step: int, spec: TrainConfig) -> None:
    """Raise unless a figure of a step is a number."""
    if not math.isfinite(value):
        raise UserError(f"the {what} of step {step} is not finite; {advice(spec)}, or check the data")


def advice(spec: TrainConfig) -> str:
    """What to do about a divergence."""
    muon = f"train.muon_lr (now {spec.muon_lr:g}) or " if spec.optimizer == "muon" else ""
    return f"lower {muon}train.lr (now {spec.lr:g})"
