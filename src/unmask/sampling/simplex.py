"""SSD-LM's sampler (Han et al. 2022), with which the paper compares its semi-autoregressive samples.

A block of tokens is a block of logits z (block, V), which begins as noise. In every step the network predicts x̂ of the
block, x̂ is projected to ±K (almost one-hot), and noise is added again, a little less each time. Blocks follow each
other from left to right, each with the finished tokens as its context. If the last block is longer than what is left,
it is written whole, as in training, and cut.

Canvases go through the network together, each at its own time and in its own block. A canvas draws all noise from its
keys, so a sample does not depend on what else is in the batch.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

import numpy as np
import torch
from torch import Tensor

from ..types import UserError
from .choice import Choice
from .request import Request, Written, not_a_number, read_off
from .sampler import Denoiser, Sampler, Trajectory
from .settings import setting, steps_setting

OFFSET = 1e-4  # keeps the first steps from being almost without noise
Projection = Literal["sampling", "multi-hot", "greedy"]


# -- the process, as pure functions ----------------------------------------------------------------------------------


def abar(t: Tensor) -> Tensor:
    """Signal kept at time t in [0, 1] (step t·T of T): f(t)/f(0), f = cos²((t + 1e-4)/(1 + 1e-4)·pi/2), in float64."""
    at_zero = math.cos(OFFSET / (1 + OFFSET) * math.pi / 2) ** 2
    return torch.cos((t.double() + OFFSET) / (1 + OFFSET) * (math.pi / 2)) ** 2 / at_zero


def plus_minus(chosen: Tensor, scale: float) -> Tensor:
    """+K where chosen, -K elsewhere, in float32."""
    return torch.where(chosen, scale, -scale).float()


def almost_one_hot(tokens: Tensor, size: int, scale: float) -> Tensor:
    """Tokens (...) to logits (..., V): +K at the token, -K elsewhere."""
    return plus_minus(torch.arange(size, device=tokens.device) == tokens[..., None], scale)


def noised(x: Tensor, t: Tensor, noise: Tensor, scale: float) -> Tensor:
    """z_t = sqrt(abar)·x + sqrt(1 - abar)·K·noise for x and noise (B, W, V) and times t (B,)."""
    kept = abar(t)[:, None, None]
    signal, rest = (part.to(x.dtype).to(x.device) for part in (kept.sqrt(), scale * (1 - kept).clamp(min=0).sqrt()))
    return signal * x + rest * noise


def sampling_projection(log_x: Tensor, uniform: Tensor, choice: Choice, scale: float) -> Tensor:
    """A token drawn from each row (N, V), almost one-hot."""
    return almost_one_hot(choice.tokens(log_x, uniform), log_x.shape[-1], scale)


def multi_hot_projection(log_x: Tensor, uniform: Tensor, choice: Choice, scale: float) -> Tensor:
    """+K for every token that could be drawn (the nucleus of top-p)."""
    if choice.temperature == 0:
        return greedy_projection(log_x, uniform, choice, scale)
    return plus_minus(~torch.isneginf(choice.filtered(log_x)), scale)


def greedy_projection(log_x: Tensor, uniform: Tensor, choice: Choice, scale: float) -> Tensor:
    """The most likely token of each row, almost one-hot."""
    return almost_one_hot(log_x.argmax(-1), log_x.shape[-1], scale)


PROJECTIONS: dict[str, Callable[[Tensor, Tensor, Choice, float], Tensor]] = {
    "sampling": sampling_projection,
    "multi-hot": multi_hot_projection,
    "greedy": greedy_projection,
}


# -- the sampler -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simplex(Sampler):
    """One block after another, each in `steps` steps; T may differ from training."""

    steps: int = steps_setting(1000)
    projection: Projection = setting("sampling", "simplex: how a token becomes a point of the simplex")
    context: int | None = setting(None, "simplex: tokens of context that a block sees (as in training)", least=1)
    draws_by_position = False

    def check(self, model: Any) -> None:
        """Raise for a model over tokens, which has nothing to project."""
        if not hasattr(model, "block"):
            raise UserError("only SSD-LM models (model.method=ssd-lm) can use the simplex sampler; choose another one")

    def trajectory(self, request: Request, model: BlockDenoiser) -> SimplexTrajectory:
        """The trajectory from the first block, which begins as noise."""
        self.check(model)
        return SimplexTrajectory(request, model, self)

    def check_choice(self, choice: Choice) -> None:
        """Raise if every token would be in the nucleus: z would then tell the network nothing."""
        cut = choice.temperature == 0 or choice.top_k or choice.min_p or (choice.top_p or 1) < 1
        if self.projection == "multi-hot" and not cut:
            raise UserError(
                "projection multi-hot keeps the likely tokens of each position; give top_p, for example 0.9"
            )


# -- writing ---------------------------------------------------------------------------------------------------------


class BlockDenoiser(Denoiser, Protocol):
    """What this sampler needs from a model."""

    block: int
    scale: float
    context: int | None

    def log_x(self, context: Tensor, z: Tensor, t: Tensor, valid: Tensor | None, label: Tensor | None) -> Tensor:
        """Log x̂ (B, W, V) of blocks z (B, W, V) at times t (B,) after contexts (B, C); valid is (B, C + W)."""


def advance_blocks(model: BlockDenoiser, active: Sequence[SimplexTrajectory]) -> list[Written | None]:
    """One network call for all; shorter contexts are padded on the left. Tokens for the blocks that are done."""
    contexts = [trajectory.seen() for trajectory in active]
    most, device = max(map(len, contexts)), model.device
    context = torch.zeros(len(active), most, dtype=torch.int64)
    valid = torch.ones(len(active), most + model.block, dtype=torch.bool)
    for row, tokens in enumerate(contexts):
        context[row, most - len(tokens) :] = tokens
        valid[row, : most - len(tokens)] = False
    labels = [trajectory.request.label for trajectory in active]
    label = None
    if any(number is not None for number in labels):
        label = torch.tensor([-1 if number is None else number for number in labels], device=device)
    z = torch.stack([trajectory.z for trajectory in active])
    t = torch.tensor([trajectory.level for trajectory in active], dtype=torch.float64)
    log_x = model.log_x(context.to(device), z, t, None if valid.all() else valid.to(device), label)
    return [trajectory.move(rows) for trajectory, rows in zip(active, log_x.unbind(), strict=True)]


class SimplexTrajectory(Trajectory):
    """One canvas being written. A step is a block; every block begins at time 1."""

    def __init__(self, request: Request, model: BlockDenoiser, sampler: Simplex) -> None:
        super().__init__(request, model.vocab)
        self.model, self.sampler = model, sampler
        self.canvas = request.canvas.cpu().clone()
        self.start = int((~self.free).sum())  # all that is given stands before it
        if not self.finished:
            self._begin()

    def _begin(self) -> None:
        """Begin the block at `start` with noise, from a random stream for this block."""
        self.rng: np.random.Generator = self.key.stream("block", self.step)
        self.left = self.sampler.steps
        self.z = self.model.scale * self._noise()

    def _noise(self) -> Tensor:
        shape = (self.model.block, self.vocab.size)
        return torch.from_numpy(self.rng.standard_normal(shape, dtype=np.float32)).to(self.model.device)

    @property
    def finished(self) -> bool:
        """Whether the last block has been written."""
        return self.start == len(self.canvas)

    @property
    def level(self) -> float:
        """The time of z."""
        return self.left / self.sampler.steps

    def due(self) -> Tensor:
        """The positions of the block that are on the canvas."""
        return torch.arange(self.start, min(self.start + self.model.block, len(self.canvas)))

    def seen(self) -> Tensor:
        """The tokens that the network sees before the block."""
        most = self.model.context if self.sampler.context is None else self.sampler.context
        return self.canvas[0 if most is None else max(0, self.start - most) : self.start]

    def move(self, log_x: Tensor) -> Written | None:
        """Take the prediction for z: go to the next time, or finish the block."""
        try:
            ruled = self._ruled(log_x)
        except UserError as error:  # the other canvases go on
            self.error = error
            return None
        if (bad := ruled[: len(self.due())].amax(-1).isnan()).any():
            return not_a_number(self.due(), bad)
        if self.left == 1:  # the most likely tokens of the last step, as published
            positions = self.due()
            return read_off(log_x[: len(positions)], positions, ruled[: len(positions)].argmax(-1), self.request.tops)
        self.left -= 1
        uniform = torch.from_numpy(self.rng.random(self.model.block))  # drawn for all projections: equal noise
        x = PROJECTIONS[self.sampler.projection](ruled, uniform, self.request.choice, self.model.scale)
        t = torch.tensor([self.level], dtype=torch.float64)
        self.z = noised(x[None], t, self._noise()[None], self.model.scale)[0]
        return None

    def _ruled(self, log_x: Tensor) -> Tensor:
        """The prediction under the user's rules, which do not apply to what will be cut off."""
        if self.request.rules is None:
            return log_x
        positions = self.due()
        ruled = self.request.rules(log_x[: len(positions)], positions, self.canvas, self.vocab)
        return torch.cat([ruled, log_x[len(positions) :]])

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Write a block, and begin the next."""
        changes = super().write(positions, tokens)
        self.start += len(positions)
        self.step += 1
        if not self.finished:
            self._begin()
        return changes
