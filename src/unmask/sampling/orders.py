"""Samplers whose order is known before the first network call.

Under SUBS *when* a position is revealed does not depend on the network: a masked position is revealed in the step
t -> s with chance (alpha_s - alpha_t)/(1 - alpha_1), and what a cut schedule leaves over, (1 - alpha_0)/(1 - alpha_1),
in one last step. So the whole schedule of a T-step run is drawn ahead, and the network runs only where something is
revealed, on those rows. That is the same joint law as T-step ancestral sampling (paper section 4.1), at a cost that
does not grow with T: at most min(T, masks) calls per sequence. T -> infinity is the first-hitting sampler.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..process.keys import Keys
from ..types import UserError, Vocab
from .request import Request
from .sampler import Sampler, TokenDenoiser, Trajectory, positions_of, time_grid
from .settings import k_setting, setting, steps_setting


class Reveal(NamedTuple):
    """Positions that are revealed together."""

    step: int
    t: float
    positions: Tensor


class PlannedTrajectory(Trajectory):
    """A trajectory whose events are known in advance."""

    def __init__(self, request: Request, vocab: Vocab, events: list[Reveal]) -> None:
        super().__init__(request, vocab)
        self.events, self.at = events, 0
        self._next()

    @property
    def finished(self) -> bool:
        """Whether all events are over."""
        return self.at == len(self.events)

    def due(self) -> Tensor:
        """The positions of the next event."""
        return self.events[self.at].positions

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Write, and go to the next event."""
        self.at += 1
        self._next()
        return super().write(positions, tokens)

    def _next(self) -> None:
        if not self.finished:
            self.step, self.t, _ = self.events[self.at]


@dataclass(frozen=True)
class RevealPlan(Sampler):
    """T-step ancestral sampling with the reveals drawn ahead. Each sequence has its own clock, so batches stay full."""

    steps: int = steps_setting()

    def trajectory(self, request: Request, model: TokenDenoiser) -> PlannedTrajectory:
        """The steps in which something is revealed."""
        times, alphas = time_grid(model.schedule, self.steps)
        reveal = self.draw(request.writable(model.vocab), alphas, request.key)
        steps = [int(step) for step in reveal.unique() if step >= 0]
        events = [Reveal(step, float(times[step]), positions_of(reveal == step)) for step in steps]
        return PlannedTrajectory(request, model.vocab, events)

    @staticmethod
    def draw(free: Tensor, alphas: Tensor, key: Keys) -> Tensor:
        """(L,): the step in which each position is revealed: 0 .. T - 1, T if it is left over, -1 if it is not free."""
        uniform = key.uniform("reveal", [0], len(free))[0]
        revealed_by = (alphas[1:] - alphas[0]) / (1 - alphas[0])  # after steps 0 .. T - 1
        step = torch.searchsorted(revealed_by, uniform, right=True)
        return torch.where(free, step, -1)


@dataclass(frozen=True)
class FirstHitting(Sampler):
    """Ancestral sampling with infinitely many steps: every position has its own time, and no two times are equal."""

    def trajectory(self, request: Request, model: TokenDenoiser) -> PlannedTrajectory:
        """One event per position, in the order of their times; what a cut schedule leaves over is written together."""
        positions = positions_of(request.writable(model.vocab))
        first, last = model.schedule.alpha(torch.tensor([1.0, 0.0], dtype=torch.float64))
        alpha = first + request.key.uniform("reveal", [0], len(request.canvas))[0][positions] * (1 - first)
        order = alpha.argsort(stable=True)
        positions, alpha = positions[order], alpha[order]
        in_time = int((alpha < last).sum())
        times = model.schedule.inverse(alpha[:in_time])
        events = [Reveal(i, float(t), positions[i : i + 1]) for i, t in enumerate(times)]
        if in_time < len(positions):
            events.append(Reveal(in_time, 0.0, positions[in_time:]))
        return PlannedTrajectory(request, model.vocab, events)


def in_order(request: Request, vocab: Vocab, positions: Tensor, k: int) -> PlannedTrajectory:
    """K positions at a time; the time is the share that is still masked."""
    k = min(k, max(1, len(positions)))
    groups = positions.split(k) if len(positions) else ()
    return PlannedTrajectory(
        request, vocab, [Reveal(i, 1 - i * k / len(positions), group) for i, group in enumerate(groups)]
    )


@dataclass(frozen=True)
class LeftToRight(Sampler):
    """From the first masked position to the last, k at a time."""

    k: int = k_setting()
    deterministic = True
    timeless = True

    def trajectory(self, request: Request, model: TokenDenoiser) -> PlannedTrajectory:
        """The free positions from left to right."""
        return in_order(request, model.vocab, positions_of(request.writable(model.vocab)), self.k)


@dataclass(frozen=True)
class GivenOrder(Sampler):
    """The order that a user names, k at a time. It counts the masked positions of the canvas from 0."""

    order: Sequence[int] = setting(
        help="Masked tokens from 0, as 2,0,1", most=65_536, absent={"harness": "every request has another canvas"}
    )
    k: int = k_setting()
    deterministic = True
    timeless = True

    def trajectory(self, request: Request, model: TokenDenoiser) -> PlannedTrajectory:
        """The free positions in that order."""
        positions = positions_of(request.writable(model.vocab))
        wanted, known, seen = list(self.order), range(len(positions)), set[int]()
        for index in wanted:
            if index not in known:
                raise UserError(f"the order names masked position {index}, but there are {len(positions)} (from 0)")
            if index in seen:
                raise UserError(f"the order names masked position {index} twice")
            seen.add(index)
        if missing := set(known) - seen:
            raise UserError(f"the order leaves out masked position {min(missing)}; name all {len(positions)}")
        return in_order(request, model.vocab, positions[torch.tensor(wanted, dtype=torch.int64)], self.k)
