"""The textbook sampler (paper section 3.2): at each of T steps one network call, over every masked position.

Slow and obvious: a reference for the others, and the right sampler for networks whose x̂ has mass on [MASK] or does not
sum to 1, so that the network decides the chance of being revealed. These are D3PM and SEDD, whose analytic
(tau-leaping) step it is. Euler's step differs only in that chance.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..process.keys import Keys
from ..process.masking import fold
from ..process.schedule import reveal_chance
from .request import Request
from .sampler import Sampler, TokenDenoiser, Trajectory, positions_of, time_grid
from .settings import steps_setting


@dataclass(frozen=True)
class Ancestral(Sampler):
    """T steps, each with a network call, whether it reveals anything or not."""

    steps: int = steps_setting()
    euler: bool = False  # the chance of a step is its length times the rate at its beginning
    any_mass = True

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """The trajectory from t = 1."""
        times, alphas = time_grid(model.schedule, self.steps)
        chances = reveal_chance(alphas[1:], alphas[:-1])
        if self.euler:
            chances = model.schedule.rate(times[:-1]) / self.steps
        return _AncestralTrajectory(request, model, times, chances)


class _AncestralTrajectory(Trajectory):
    ruled = False  # rules never change when a position is revealed, even where the network decides it

    def __init__(self, request: Request, model: TokenDenoiser, times: Tensor, chances: Tensor) -> None:
        super().__init__(request, model.vocab)
        self.times, self.chances = times, chances
        self.keep = model.schedule.keep(times)  # not alpha: mass on [MASK] is folded away as in the bound
        self.last = len(times) - 1
        self.masked = self.all = positions_of(self.free)
        self.final = model.carry_over  # else the step to t = 0 is the reconstruction, of all that was written
        if not self.final:
            self.last -= 1
        self.revealed = self.masked[:0]
        self._draws = self._draw()

    def _draw(self) -> Tensor:
        """(2, L) uniforms of this step: revealed or not, and which token."""
        return self.key.uniform("ancestral", [self.step], 2, len(self.canvas))[0]

    def copy(self, key: Keys) -> Trajectory:
        """With new draws for the next step too."""
        other = super().copy(key)
        assert isinstance(other, _AncestralTrajectory)
        other._draws = other._draw()
        return other

    @property
    def finished(self) -> bool:
        """After T steps, and one more at t = 0 that writes whatever is left.

        Something is left only under a schedule with alpha_0 < 1, or if the network has mass on [MASK] to the end.
        Without carry-over, step T writes everything.
        """
        return self.step > self.last or (self.step == self.last and not len(self.masked) and not self._rewriting)

    @property
    def _rewriting(self) -> bool:
        return not self.final and self.step == self.last and len(self.all) > 0

    def candidates(self) -> Tensor:
        return self.all if self._rewriting else self.masked

    def score(self, log_x: Tensor) -> Tensor:
        """Sum of x̃: p(z_s = y | z_t = m) = u x̃(y)."""
        log_mask, log_total = log_x[:, self.vocab.mask], torch.logsumexp(log_x, -1)
        return fold(log_total, log_mask, log_total, self.keep[self.step].to(log_x))[1]

    def choose(self, scores: Tensor) -> None:
        if self.step == self.last:
            self.revealed = self.candidates()
            return
        chance = self.chances[self.step] * scores.double()  # above 1 where x̂ is too large a measure: then always
        self.revealed = self.masked[self._draws[0, self.masked] < chance]

    def due(self) -> Tensor:
        return self.revealed

    def uniform(self, positions: Tensor) -> Tensor:
        return self._draws[1, positions]

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        changes = super().write(positions, tokens)
        self.step += 1
        if not self.finished:
            self.t = float(self.times[self.step])
            self._draws = self._draw()
        self.masked = positions_of(self.open)
        self.revealed = self.masked[:0]
        return changes
