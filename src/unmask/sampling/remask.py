"""Samplers that take tokens back: remasking (ReMDM) and predictor-corrector steps.

A leg leads from alpha_t to alpha_s. In it a written position becomes [MASK] again with chance sigma, and a masked one
is revealed with chance (alpha_s - (1 - sigma) alpha_t)/(1 - alpha_t), so that the share of masks stays the schedule's
(Wang et al. 2025, arXiv 2503.00307). Alpha is `Schedule.keep` here, which is 0 where all are masked: with the alpha of
a cut schedule the share would be a little off. sigma = 0 is ancestral sampling; alpha_s = alpha_t is a corrector step,
which only takes tokens back and writes them anew. Every variant is a table of legs. When something is revealed still
does not depend on the network, so legs without a reveal cost no call.

Early mistakes can be corrected, so the text is often better for the same number of calls, but the samples no longer
follow the law that `unmask eval` bounds. Given positions never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError, choose
from ..process.schedule import Schedule
from ..types import Vocab
from .request import Request
from .sampler import Sampler, TokenDenoiser, Trajectory, positions_of, time_grid
from .settings import MOST_STEPS, setting, steps_setting


@dataclass(frozen=True)
class Legs:
    """A table of legs, (N,) float64 each."""

    t: Tensor
    alpha_t: Tensor
    alpha_s: Tensor
    sigma: Tensor

    def __post_init__(self) -> None:
        assert (self.sigma <= sigma_most(self.alpha_t, self.alpha_s) + 1e-12).all(), "more masks than there can be"

    @property
    def reveal(self) -> Tensor:
        """Chance that a masked position is revealed."""
        return ((self.alpha_s - (1 - self.sigma) * self.alpha_t) / (1 - self.alpha_t)).clamp(0, 1)


def sigma_most(alpha_t: Tensor, alpha_s: Tensor) -> Tensor:
    """The largest chance of remasking under which the share of masks can follow the schedule."""
    return ((1 - alpha_s) / alpha_t.clamp(min=1e-300)).clamp(max=1)  # nothing is written yet where alpha_t = 0


def keep_grid(schedule: Schedule, steps: int) -> tuple[Tensor, Tensor]:
    """Times 1, 1 - 1/T, ..., 0 and the share of positions that are written at each; both (T + 1,)."""
    times, _ = time_grid(schedule, steps)
    return times, schedule.keep(times)


def legs_of(t: Tensor, alpha: Tensor, sigma: Tensor) -> Legs:
    """Legs along times t and alphas (N + 1,), with one more at the end if alpha does not reach 1."""
    t, alpha_t, alpha_s = t[:-1], alpha[:-1], alpha[1:]
    if alpha[-1] < 1:
        full, none = torch.ones(1, dtype=torch.float64), torch.zeros(1, dtype=torch.float64)
        t, sigma = torch.cat([t, none]), torch.cat([sigma, none])
        alpha_t, alpha_s = torch.cat([alpha_t, alpha[-1:]]), torch.cat([alpha_s, full])
    return Legs(t, alpha_t, alpha_s, sigma)


def eta_setting(default: float) -> Any:
    """The strength of remasking."""
    return setting(default, "Strength of remasking and correction", title="Remasking η", least=0, most=1)


def window_setting() -> Any:
    """When remasking is on: for off < t <= on; corrections for off < s <= on, where s is the time after the step."""
    return setting((1.0, 0.0), "Times between which remasking is on, as 0.55,0.05")


def check_window(window: tuple[float, float]) -> None:
    """Raise if the times between which remasking is on are not valid."""
    on, off = window
    if not 0 <= off < on <= 1:
        raise UserError(f"the remasking window ({on}, {off}) must go down from at most 1 to at least 0")


@dataclass(frozen=True)
class Remasking(Sampler):
    """ReMDM with T steps. `cap`: at most eta; `rescale`: eta times the most; `loop`: constant alpha in the window."""

    steps: int = steps_setting()
    kind: str = "cap"
    eta: float = eta_setting(0.02)
    window: tuple[float, float] = window_setting()  # the authors loop in (0.55, 0.05)
    keep: float = setting(0.9, "remask-loop: share that stays written while it loops", above=0, below=1)
    rewrites = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.window)
        choose(self.kind, ("cap", "rescale", "loop"), "kind of remasking")

    def legs(self, schedule: Schedule) -> Legs:
        """The table of legs for a schedule."""
        times, alphas = keep_grid(schedule, self.steps)
        on = (times[:-1] <= self.window[0]) & (times[:-1] > self.window[1])
        if self.kind == "loop":
            return self._loop(schedule, times)
        most = sigma_most(alphas[:-1], alphas[1:])
        sigma = most.clamp(max=self.eta) if self.kind == "cap" else self.eta * most
        return legs_of(times, alphas, sigma * on)

    def _loop(self, schedule: Schedule, times: Tensor) -> Legs:
        """From all masked to the share `keep` before the window, constant inside it, and on to the end after it."""
        start, stop = self.window
        first, last = schedule.alpha(torch.tensor([1.0, 0.0], dtype=torch.float64))
        rest = schedule.inverse(torch.minimum(first + self.keep * (1 - first), last))
        before = (times - start) / (1 - start) if start < 1 else torch.zeros_like(times)
        after = times / stop if stop > 0 else torch.zeros_like(times)
        clock = torch.where(times > start, rest + (1 - rest) * before, torch.where(times > stop, rest, rest * after))
        clock[0], clock[-1] = 1.0, 0.0
        alphas = schedule.keep(clock)
        standing = (clock[:-1] == rest) & (clock[1:] == rest)
        sigma = sigma_most(alphas[:-1], alphas[1:]).clamp(max=self.eta) * standing
        return legs_of(clock, alphas, sigma)

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """The trajectory from t = 1."""
        return _RemaskTrajectory(request, model.vocab, self.legs(model.schedule))


@dataclass(frozen=True)
class PredictorCorrector(Sampler):
    """T ancestral steps, each followed by corrector steps that remask a share eta and write it anew."""

    steps: int = steps_setting()
    corrections: int = setting(1, "Corrector steps after each step", least=1, most=MOST_STEPS)
    eta: float = eta_setting(0.05)
    window: tuple[float, float] = window_setting()
    rewrites = True

    def __post_init__(self) -> None:
        super().__post_init__()
        check_window(self.window)
        if self.steps * (1 + self.corrections) > MOST_STEPS:
            raise UserError(
                f"steps={self.steps} with corrections={self.corrections} are too many; at most {MOST_STEPS:,} steps "
                "and corrections can be planned"
            )

    def legs(self, schedule: Schedule) -> Legs:
        """The table of legs for a schedule."""
        times, alphas = keep_grid(schedule, self.steps)
        t, alpha, correct = [times[0]], [alphas[0]], []
        for s, alpha_s in zip(times[1:], alphas[1:], strict=True):
            inside = self.window[1] < s <= self.window[0] and alpha_s < 1
            repeats = 1 + (self.corrections if inside else 0)
            t += [s] * repeats
            alpha += [alpha_s] * repeats
            correct += [False] + [True] * (repeats - 1)
        grid = torch.stack(alpha)
        sigma = sigma_most(grid[:-1], grid[1:]).clamp(max=self.eta) * torch.tensor(correct)
        return legs_of(torch.stack(t), grid, sigma)

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """The trajectory from t = 1."""
        return _RemaskTrajectory(request, model.vocab, self.legs(model.schedule))


class _RemaskTrajectory(Trajectory):
    """One leg after another; what legs without a reveal take back is reported with the next write."""

    final = False

    def __init__(self, request: Request, vocab: Vocab, legs: Legs) -> None:
        super().__init__(request, vocab)
        self.legs, self.reveal, self.mask = legs, legs.reveal, vocab.mask
        self.leg = 0 if self.free.any() else len(self.reveal)
        self.fresh = self.taken = torch.empty(0, dtype=torch.int64)
        self.shown = self.canvas.clone()  # as of the last state
        self._seek()

    @property
    def finished(self) -> bool:
        return self.leg == len(self.reveal)  # the last leg reveals all that is left

    def _seek(self) -> None:
        """Go to the next leg in which something is revealed."""
        while not self.finished:
            uniform = self.key.uniform("leg", [self.leg], len(self.canvas))[0]
            self.fresh = positions_of(self.open & (uniform < self.reveal[self.leg]))
            self.taken = positions_of(self.free & ~self.open & (uniform < self.legs.sigma[self.leg]))
            if len(self.fresh):
                self.step, self.t = self.leg, float(self.legs.t[self.leg])
                return
            self._take_back()
            self.leg += 1

    def _take_back(self) -> None:
        self.put(self.taken, self.mask)
        self.open[self.taken] = True

    def due(self) -> Tensor:
        return self.fresh

    def uniform(self, positions: Tensor) -> Tensor:
        return self.key.uniform("token", [self.leg], len(self.canvas))[0][positions]

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self.put(positions, tokens)
        self._take_back()
        self.leg += 1
        self._seek()
        # Also what the legs up to the next reveal took back: a state shows the canvas as the network sees it next.
        # Changes are in order: a position may be written and taken back between two calls.
        gone = torch.nonzero((self.canvas == self.mask) & (self.shown != self.mask)).squeeze(-1)
        again = positions[self.canvas[positions] == self.mask]
        gone = torch.cat([gone, again[~torch.isin(again, gone)]])
        self.shown = self.canvas.clone()
        masks = torch.full_like(gone, self.mask)
        return torch.cat([positions, gone]), torch.cat([tokens, masks])
