"""Noise schedules alpha(t), and the draw of times for the two bounds (paper sections 3.1 and 3.5, appendix E.1).

`alpha` is always the signal kept: q(z_t|x) = Cat(alpha_t x + (1 - alpha_t) prior), from about 1 at t = 0 to about 0 at
t = 1. Times and alphas are float64: there are only a few of them per row, and 1 - alpha must not lose its digits.

Schedules may be cut: alpha(1) > 0 keeps sigma = -log alpha finite, alpha(0) < 1 comes with the geometric one. The
process that is trained, scored and sampled always starts from all masks and ends with none, so a position is still
unmasked at time t with chance `keep(t) = (alpha_t - alpha_1) / (1 - alpha_1)`. Bounds and samplers are exact for that
process; the rate -keep'/(1 - keep) equals -alpha'/(1 - alpha), so the loss of the paper is unchanged. (Where
alpha(0) < 1, the T-step bound reveals what is left over in its last step, the T-step samplers in one more.)
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass, fields, replace

import torch
from torch import Tensor
from typing_extensions import override

from ..errors import UserError
from .keys import Keys


class Schedule(ABC):
    """A strictly decreasing alpha on [0, 1] with its derivative and inverse."""

    @abstractmethod
    def alpha(self, t: Tensor) -> Tensor:
        """Signal kept at time t."""

    @abstractmethod
    def dalpha(self, t: Tensor) -> Tensor:
        """D alpha / d t."""

    @abstractmethod
    def inverse(self, alpha: Tensor) -> Tensor:
        """The time at which alpha is reached."""

    def sigma(self, t: Tensor) -> Tensor:
        """Total noise -log alpha: what a time-conditioned network is conditioned on."""
        return -torch.log(self.alpha(t))

    def rate(self, t: Tensor) -> Tensor:
        """-alpha'/(1 - alpha): the weight of the continuous bound (eq. 10)."""
        return -self.dalpha(t) / (1 - self.alpha(t))

    def keep(self, t: Tensor) -> Tensor:
        """Chance that a position is unmasked at time t when the process ends in all masks."""
        end = self.alpha(torch.ones((), dtype=torch.float64, device=t.device))
        return ((self.alpha(t) - end) / (1 - end)).clamp(0, 1)


@dataclass(frozen=True)
class Polynomial(Schedule):
    """alpha = 1 - (1 - eps) t^power. Power 1 is the log-linear schedule of the paper (sigma = -log(1 - t))."""

    power: float = 1.0
    eps: float = 1e-3

    @override
    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * t**self.power

    @override
    def dalpha(self, t: Tensor) -> Tensor:
        return -(1 - self.eps) * self.power * t ** (self.power - 1)

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        return ((1 - alpha) / (1 - self.eps)) ** (1 / self.power)


@dataclass(frozen=True)
class Cosine(Schedule):
    """alpha = eps + (1 - eps) cos^power(pi t / 2), power 1 or 2 (the paper prints 1 - t for t: a misprint)."""

    power: int = 1
    eps: float = 1e-3

    @override
    def alpha(self, t: Tensor) -> Tensor:
        return self.eps + (1 - self.eps) * torch.cos(math.pi / 2 * t) ** self.power

    @override
    def dalpha(self, t: Tensor) -> Tensor:
        angle = math.pi / 2 * t
        slope = self.power * torch.cos(angle) ** (self.power - 1) * torch.sin(angle)
        return -(1 - self.eps) * math.pi / 2 * slope

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        cosine = ((alpha - self.eps) / (1 - self.eps)).clamp(0, 1) ** (1 / self.power)
        return torch.acos(cosine) * 2 / math.pi


class SigmaSchedule(Schedule):
    """A schedule given by its total noise: forms that keep their digits where alpha is close to 1 or underflows."""

    @abstractmethod
    def sigma(self, t: Tensor) -> Tensor:
        """Total noise -log alpha."""

    @abstractmethod
    def dsigma(self, t: Tensor) -> Tensor:
        """D sigma / d t."""

    @override
    def alpha(self, t: Tensor) -> Tensor:
        return torch.exp(-self.sigma(t))

    @override
    def dalpha(self, t: Tensor) -> Tensor:
        return -self.dsigma(t) * torch.exp(-self.sigma(t))

    def rate(self, t: Tensor) -> Tensor:
        """sigma'/(e^sigma - 1) = -alpha'/(1 - alpha)."""
        return self.dsigma(t) / torch.expm1(self.sigma(t))


@dataclass(frozen=True)
class Linear(SigmaSchedule):
    """sigma = sigma_max t (the paper takes sigma_max = 1e8)."""

    sigma_max: float = 20.0

    @override
    def sigma(self, t: Tensor) -> Tensor:
        return self.sigma_max * t

    @override
    def dsigma(self, t: Tensor) -> Tensor:
        return torch.full_like(t, self.sigma_max)

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        return -torch.log(alpha) / self.sigma_max


@dataclass(frozen=True)
class Geometric(SigmaSchedule):
    """sigma = sigma_min^(1 - t) sigma_max^t. Both ends are cut."""

    sigma_min: float = 1e-3
    sigma_max: float = 20.0

    @override
    def sigma(self, t: Tensor) -> Tensor:
        return self.sigma_min ** (1 - t) * self.sigma_max**t

    @override
    def dsigma(self, t: Tensor) -> Tensor:
        return math.log(self.sigma_max / self.sigma_min) * self.sigma(t)

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        return torch.log(-torch.log(alpha) / self.sigma_min) / math.log(self.sigma_max / self.sigma_min)


@dataclass(frozen=True)
class LogUniform(Schedule):
    """1 - alpha = (1 - eps) low^(1 - t): the log of the mask rate is uniform, so every time has the same weight.

    As a proposal it is importance sampling by the weight of the bound. The end near t = 0 is cut.
    """

    low: float = 1e-3
    eps: float = 1e-3

    @override
    def alpha(self, t: Tensor) -> Tensor:
        return 1 - (1 - self.eps) * self.low ** (1 - t)

    @override
    def dalpha(self, t: Tensor) -> Tensor:
        return (1 - self.eps) * math.log(self.low) * self.low ** (1 - t)

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        return 1 - torch.log((1 - alpha) / (1 - self.eps)) / math.log(self.low)


@dataclass(frozen=True)
class Bell(Schedule):
    """1 - alpha = (1 - eps) p, where even times give mask rates p with a bell: a logistic density, cut to [0, 1].

    The density is k / (2 tanh(k/2)) in the middle and k / sinh(k) at both ends, with k = `steep`. So as a proposal its
    weights are at most sinh(k) / k times the usual ones; under a Beta density, which is 0 at the ends, the variance at
    mask rate 1 would be infinite.
    """

    steep: float = 4.0
    eps: float = 1e-3

    @override
    def alpha(self, t: Tensor) -> Tensor:
        a, least = math.tanh(self.steep / 2), torch.minimum(t, 1 - t)
        p = torch.atanh(2 * a * least / (1 + a * a * (2 * least - 1))) / self.steep  # both ends keep their digits
        return 1 - (1 - self.eps) * torch.where(t < 0.5, p, 1 - p)

    @override
    def dalpha(self, t: Tensor) -> Tensor:
        a = math.tanh(self.steep / 2)
        return -(1 - self.eps) * 2 * a / (self.steep * (1 - (a * (2 * t - 1)) ** 2))

    @override
    def inverse(self, alpha: Tensor) -> Tensor:
        kp = self.steep * (1 - alpha) / (1 - self.eps)
        return torch.sinh(kp) / (2 * math.sinh(self.steep / 2) * torch.cosh(kp - self.steep / 2))


def reveal_chance(alpha_s: Tensor, alpha_t: Tensor) -> Tensor:
    """U = (alpha_s - alpha_t)/(1 - alpha_t): chance that a masked position is revealed in t -> s."""
    return (alpha_s - alpha_t) / (1 - alpha_t)


def independent(index: Tensor, total: int, keys: Keys) -> Tensor:
    """One independent uniform per row: what `strata` is measured against."""
    return keys.uniform("time", index)


def strata(index: Tensor, total: int, keys: Keys) -> Tensor:
    """One uniform per row, one row per stratum of the *global* batch or data set, independent jitter (appendix D.3).

    Which row gets which stratum is drawn anew for every step or draw: otherwise the first rows of a data set would
    only ever be drawn at small times.
    """
    place = torch.from_numpy(keys.permute("strata", index, total)).double()
    return (place + keys.uniform("time", index)) / total  # float64, of the shape of index


@dataclass(frozen=True)
class Draw:
    """The times that were drawn, and their weight in the whole bound: one value per row or per position."""

    t: Tensor  # (B,) or (B, L): the time of z
    keep: Tensor  # chance that a position of z is unmasked
    finite: Tensor  # bool: the step that starts here is a finite one; else infinitesimal
    u: Tensor  # reveal chance of a finite step
    scale: Tensor  # 1 / chance of this step being drawn; of an infinitesimal one, rate / density of t

    def rows(self, row: Tensor) -> Draw:
        """The same, looked up for these rows, on their device."""
        return self._each(row, (row,))

    def at(self, row: Tensor, column: Tensor) -> Draw:
        """The same, looked up for positions (row, column), on their device: one value each."""
        return self._each(row, (row,) if self.t.ndim == 1 else (row, column))

    def _each(self, row: Tensor, index: tuple[Tensor, ...]) -> Draw:
        values = [getattr(self, f.name) for f in fields(self)]
        if row.device.type == "mps":  # has no float64
            values = [v.float() if v.is_floating_point() else v for v in values]
        return Draw(*(v.to(row.device)[index] for v in values))

    def per_position(self, value: Tensor) -> Tensor:
        """A field of this draw, or anything of its first dimension, to broadcast against (B, L)."""
        return value[:, None] if value.ndim == 1 else value


class Law(ABC):
    """Which steps the reverse process takes: continuous time, or T steps."""

    def uniforms(self, index: Tensor, total: int, length: int, keys: Keys, stratified: bool) -> Tensor:
        """What times are drawn from, for rows of a global batch: (B,), or (B, length) where a row has several times."""
        return (strata if stratified else independent)(index, total, keys)

    @abstractmethod
    def draw(self, uniform: Tensor, schedule: Schedule) -> Draw:
        """Turn uniforms into times with their weights; the smallest ones are the last step, if there is one."""

    @abstractmethod
    def last(self, schedule: Schedule) -> float:
        """The chance with which `draw` takes the last step, which ends at t = 0."""

    def split(self, uniform: Tensor, schedule: Schedule) -> tuple[Draw, Draw]:
        """(a step that is not the last, the last one): separately, as the last may need another forward pass."""
        chance = self.last(schedule)
        beyond = math.nextafter(chance, 1)  # T · (1/T) may come out below 1, which would be the last step again
        inner = self.draw((beyond + (1 - chance) * uniform).clamp(max=1), schedule)
        last = self.draw(torch.zeros_like(uniform), schedule)
        return replace(inner, scale=inner.scale * (1 - chance)), replace(last, scale=last.scale * chance)

    @abstractmethod
    def describe(self) -> dict[str, object]:
        """For the protocol of a reported number."""


@dataclass(frozen=True)
class ContinuousTime(Law):
    """T -> infinity. What is masked at mask rate `cutoff` is revealed in one last step.

    Without a cut-off the variance of the estimator is infinite (weight 1/t, chance t). Leaving [0, cutoff] out, as
    public code does, is not a bound any more; a last step in its place is. For the log-linear schedule it amounts to
    t = max(uniform, cutoff) with weight 1/t.
    """

    cutoff: float = 1e-3
    proposal: Schedule | None = None  # times are drawn evenly in the time of this schedule; the bound does not change

    def draw(self, uniform: Tensor, schedule: Schedule) -> Draw:
        """Times on [t_low, 1] in proportion to 1 - p, and the last step with chance p, its mask rate."""
        if self.proposal is not None:
            return self._proposed(uniform, schedule, self.proposal)
        t_low = self._low(schedule)
        last = 1 - schedule.keep(t_low)
        ended = uniform < last
        t = torch.where(ended, t_low, t_low + (uniform - last) / (1 - last) * (1 - t_low))
        scale = torch.where(ended, 1 / last, schedule.rate(t) * (1 - t_low) / (1 - last))
        return Draw(t, schedule.keep(t), ended, ended.double(), scale)

    def _proposed(self, uniform: Tensor, schedule: Schedule, proposal: Schedule) -> Draw:
        """The bound is an integral over the mask rate alone (paper section 3.4): only the name of each time changes."""
        law = self._without_proposal(schedule)
        begin = float(1 - proposal.keep(torch.zeros((), dtype=torch.float64)))
        if begin > law.cutoff * (1 + 1e-6):
            raise UserError(
                f"the proposal {proposal!r} has no times below mask rate {begin:.3g}, and the bound needs them from "
                f"{law.cutoff:.3g} on; raise objective.cutoff, or lower schedule.low or schedule.sigma_min"
            )
        drawn = law.draw(uniform, proposal)
        end = schedule.alpha(torch.ones((), dtype=torch.float64))
        return replace(drawn, t=schedule.inverse(end + drawn.keep * (1 - end)).clamp(0, 1))

    def _without_proposal(self, schedule: Schedule) -> ContinuousTime:
        """The law without a proposal, with the last step where it is under this schedule."""
        return ContinuousTime(float(1 - schedule.keep(self._low(schedule))))

    def _low(self, schedule: Schedule) -> Tensor:
        """The time from which on all that is masked is revealed at once."""
        end = torch.ones((), dtype=torch.float64)
        alpha_low = 1 - self.cutoff * (1 - schedule.alpha(end))  # where 1 - keep = cutoff
        return schedule.inverse(torch.minimum(alpha_low, schedule.alpha(0 * end)))

    def last(self, schedule: Schedule) -> float:
        """The mask rate at which the last step begins."""
        if self.proposal is not None:
            return self._without_proposal(schedule).last(self.proposal)
        return float(1 - schedule.keep(self._low(schedule)))

    @override
    def describe(self) -> dict[str, object]:
        proposal = {} if self.proposal is None else {"proposal": repr(self.proposal)}
        return {"bound": "continuous", "cutoff_mask_rate": self.cutoff, **proposal}


@dataclass(frozen=True)
class ClippedTime(Law):
    """Only mask rates between low and high: a part of the continuous bound, for training with less noise.

    Not a bound of anything: models are scored under the whole of it.
    """

    low: float
    high: float

    def draw(self, uniform: Tensor, schedule: Schedule) -> Draw:
        """Times evenly between those two mask rates."""
        end = schedule.alpha(torch.ones((), dtype=torch.float64))
        rates = torch.tensor([self.low, self.high], dtype=torch.float64)
        early, late = schedule.inverse(1 - rates * (1 - end)).clamp(0, 1)
        t = early + (late - early) * uniform
        never = torch.zeros_like(t, dtype=torch.bool)
        return Draw(t, schedule.keep(t), never, never.double(), schedule.rate(t) * (late - early))

    def last(self, schedule: Schedule) -> float:
        """There is none."""
        return 0.0

    @override
    def describe(self) -> dict[str, object]:
        return {"bound": f"none: mask rates {self.low} to {self.high} only"}


@dataclass(frozen=True)
class DiscreteTime(Law):
    """T steps of equal length in t; the last one, s = 0, reveals all that is left (alpha_0 = 1)."""

    steps: int

    def draw(self, uniform: Tensor, schedule: Schedule) -> Draw:
        """One of the T steps, each with chance 1/T."""
        i = torch.floor(uniform * self.steps).clamp(max=self.steps - 1)
        s, t = i / self.steps, (i + 1) / self.steps
        alpha_s = torch.where(i == 0, torch.ones_like(s), schedule.alpha(s))
        u = reveal_chance(alpha_s, schedule.alpha(t))
        every = torch.ones_like(t, dtype=torch.bool)
        return Draw(t, schedule.keep(t), every, u, torch.full_like(t, float(self.steps)))

    def last(self, schedule: Schedule) -> float:
        """One of T."""
        return 1 / self.steps

    @override
    def describe(self) -> dict[str, object]:
        return {"bound": "discrete", "steps": self.steps}
