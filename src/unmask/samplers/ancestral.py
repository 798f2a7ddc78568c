"""The textbook (paper section 3.2): a network call and a full look at every masked position, at each of T steps.

Slow and obvious; a reference for the others, and the right step for networks whose x̂ has mass on [MASK] or does not
sum to 1, where the chance of being revealed is the network's to say.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..keys import Keys
from ..masking import fold
from ..schedule import reveal_chance
from .base import Course, Denoiser, Plan, masked_positions, time_grid


@dataclass(frozen=True)
class Ancestral(Plan):
    """T steps, each with a network call, needed or not."""

    steps: int
    any_mass = True

    def course(self, canvas: Tensor, model: Denoiser, key: Keys) -> Course:
        """Ready at t = 1."""
        return _Textbook(canvas, key, model, *time_grid(model.schedule, self.steps))


class _Textbook(Course):
    ruled = False  # rules never touch when a position is revealed, also where the network says it

    def __init__(self, canvas: Tensor, key: Keys, model: Denoiser, times: Tensor, alphas: Tensor) -> None:
        super().__init__(canvas, key)
        self.vocab, self.times, self.alphas = model.vocab, times, alphas
        self.last = len(times) - 1
        self.masked = masked_positions(canvas, self.vocab)
        self.revealed = self.masked[:0]
        self._draws = self._draw()

    def _draw(self) -> Tensor:
        """(2, L) uniforms of this step: revealed or not, and which token."""
        return self.key.uniform("ancestral", [self.step], 2, len(self.canvas))[0]

    @property
    def finished(self) -> bool:
        """After T steps, and one more at t = 0 that writes all that is left over.

        Only a schedule with alpha_0 < 1, or a network that has mass on [MASK] to the end, leaves anything.
        """
        return self.step > self.last or (self.step == self.last and not len(self.masked))

    def look(self) -> Tensor:
        return self.masked

    def score(self, log_x: Tensor) -> Tensor:
        """Sum of x̃: p(z_s = y | z_t = m) = u x̃(y)."""
        log_mask, log_total = log_x[:, self.vocab.mask], torch.logsumexp(log_x, -1)
        return fold(log_total, log_mask, log_total, self.alphas[self.step].to(log_x))[1]

    def choose(self, scores: Tensor) -> None:
        if self.step == self.last:
            self.revealed = self.masked
            return
        u = reveal_chance(self.alphas[self.step + 1], self.alphas[self.step])
        self.revealed = self.masked[self._draws[0, self.masked] < u * scores.double()]

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
        self.masked = masked_positions(self.canvas, self.vocab)
        self.revealed = self.masked[:0]
        return changes
