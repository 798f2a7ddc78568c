"""SSD-LM's way of writing (Han et al. 2022; the rival of the paper's table of semi-autoregressive samples).

A block of tokens is a block of logits z (block, V). It begins as noise; in every step the network says x̂ of the block,
x̂ is projected to ±K (almost one-hot), and noise is added again, a little less each time. Blocks follow each other from
left to right, each with the finished tokens as its context. A last block that is longer than what is left is
written whole, as the network was trained, and cut.

Canvases go through the network together, each at its own time and in its own block. All noise of a canvas is from its
own keys, so a sample does not depend on who else is in the batch.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Literal, NoReturn, Protocol

import numpy as np
import torch
from torch import Tensor

from ..process.keys import Keys
from ..types import State, UserError, Vocab
from .batcher import Request
from .choice import Choice
from .sampler import NOTHING, Denoiser, Sampler, Trajectory
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


# -- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Simplex(Sampler):
    """Block after block, each in `steps` steps; T may differ from that of the training."""

    steps: int = steps_setting(1000)
    projection: Projection = setting("sampling", "simplex: how a token becomes a point of the simplex")
    context: int | None = setting(None, "simplex: tokens of context that a block sees (as in training)", least=1)

    def check(self, model: Denoiser) -> NoReturn:
        """Models that are asked this way write into [MASK], and there is nothing to project in theirs."""
        raise UserError("only SSD-LM models (model.method=ssd-lm) can follow the simplex sampler; choose another one")

    def course(self, canvas: Tensor, model: Denoiser, key: Keys) -> Trajectory:
        """There is none: a course knows tokens only."""
        self.check(model)

    def check_choice(self, choice: Choice) -> None:
        """Raise where every token would be in the nucleus: the network would then be told nothing."""
        cut = choice.temperature == 0 or choice.top_k or choice.min_p or (choice.top_p or 1) < 1
        if self.projection == "multi-hot" and not cut:
            raise UserError(
                "projection multi-hot keeps the likely tokens of each position; give top_p, for example 0.9"
            )


# -- writing ---------------------------------------------------------------------------------------------------------


class BlockDenoiser(Protocol):
    """What this sampler needs of a model."""

    block: int
    scale: float
    context: int | None

    @property
    def vocab(self) -> Vocab:
        """The vocabulary."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def log_x(self, context: Tensor, z: Tensor, t: Tensor, valid: Tensor | None, label: Tensor | None) -> Tensor:
        """Log x̂ (B, W, V) of blocks z (B, W, V) at times t (B,) after contexts (B, C); valid is (B, C + W)."""


def write_blocks(
    model: BlockDenoiser, tasks: Iterable[Request], batch_size: int, until: Callable[[State], bool] | None = None
) -> Iterator[State]:
    """A state for every block of every task as it comes; a sequence for which `until` is true is done."""
    waiting, active = deque(tasks), list[_SimplexWriter]()
    while waiting or active:
        while waiting and len(active) < batch_size:
            writer = _SimplexWriter(model, waiting.popleft())
            if writer.done:  # nothing was masked
                yield writer.state(0, NOTHING, torch.empty(0), None)
            else:
                active.append(writer)
        for writer, log_x in zip(active, _call(model, active), strict=True):
            state = writer.take(log_x)
            if state is None:
                continue
            if until is not None and not state.done and until(state):
                writer.done, state = True, replace(state, done=True)
            yield state
        active = [writer for writer in active if not writer.done]


def _call(model: BlockDenoiser, active: list[_SimplexWriter]) -> Iterable[Tensor]:
    """One network call for all: log x̂ (W, V) of each. Shorter contexts are padded on the left."""
    if not active:
        return ()
    contexts = [writer.seen() for writer in active]
    most, device = max(map(len, contexts)), model.device
    context = torch.zeros(len(active), most, dtype=torch.int64)
    valid = torch.ones(len(active), most + model.block, dtype=torch.bool)
    for row, own in enumerate(contexts):
        context[row, most - len(own) :] = own
        valid[row, : most - len(own)] = False
    label = None
    if any(writer.task.label is not None for writer in active):
        label = torch.tensor([-1 if w.task.label is None else w.task.label for w in active], device=device)
    z = torch.stack([writer.z for writer in active])
    t = torch.tensor([writer.t for writer in active], dtype=torch.float64)
    with torch.no_grad():
        return model.log_x(context.to(device), z, t, None if valid.all() else valid.to(device), label).unbind()


class _SimplexWriter:
    """One canvas on its way."""

    def __init__(self, model: BlockDenoiser, task: Request) -> None:
        assert isinstance(task.plan, Simplex)
        self.model, self.task, self.plan = model, task, task.plan
        self.canvas = task.canvas.cpu().clone()
        self.start = int((self.canvas != model.vocab.mask).sum())  # all that is given stands before it
        self.number, self.calls, self.done = 0, 0, self.start == len(self.canvas)
        if not self.done:
            self._open()

    def _open(self) -> None:
        """The block that begins at `start`: noise, from a stream of its own."""
        self.rng: np.random.Generator = self.task.key.stream("block", self.number)
        self.left = self.plan.steps
        self.z = self.model.scale * self._noise()

    def _noise(self) -> Tensor:
        shape = (self.model.block, self.model.vocab.size)
        return torch.from_numpy(self.rng.standard_normal(shape, dtype=np.float32)).to(self.model.device)

    @property
    def t(self) -> float:
        """The time of z."""
        return self.left / self.plan.steps

    @property
    def kept(self) -> int:
        """Tokens of the block that the canvas has room for."""
        return min(self.model.block, len(self.canvas) - self.start)

    def seen(self) -> Tensor:
        """The tokens that the network sees before the block."""
        most = self.model.context if self.plan.context is None else self.plan.context
        return self.canvas[0 if most is None else max(0, self.start - most) : self.start]

    def take(self, log_x: Tensor) -> State | None:
        """What the network said of z: go on to the next time, or end the block."""
        self.calls += 1
        ruled = self._ruled(log_x)
        if self.left == 1:
            return self._write(log_x, ruled)
        self.left -= 1
        uniform = torch.from_numpy(self.rng.random(self.model.block))  # drawn for all projections: equal noise
        x = PROJECTIONS[self.plan.projection](ruled, uniform, self.task.choice, self.model.scale)
        t = torch.tensor([self.t], dtype=torch.float64)
        self.z = noised(x[None], t, self._noise()[None], self.model.scale)[0]
        return None

    def _ruled(self, log_x: Tensor) -> Tensor:
        """The same under the user's rules, which know nothing of what will be cut off."""
        if self.task.control is None:
            return log_x
        positions = torch.arange(self.start, self.start + self.kept)
        ruled = self.task.control(log_x[: self.kept], positions, self.canvas, self.model.vocab)
        return torch.cat([ruled, log_x[self.kept :]])

    def _write(self, log_x: Tensor, ruled: Tensor) -> State:
        """The most likely tokens of the last step, as published."""
        first, kept = self.start, self.kept
        log_x, tokens = log_x[:kept], ruled[:kept].argmax(-1)
        probs = log_x.gather(-1, tokens[:, None]).squeeze(-1).exp().cpu()
        best = log_x.topk(min(self.task.tops, log_x.shape[-1] - 1), dim=-1)
        tops = (best.indices.cpu(), best.values.exp().cpu()) if self.task.tops else None
        self.canvas[first : first + kept] = tokens.cpu()
        self.start, self.done = first + kept, first + kept == len(self.canvas)
        state = self.state(first, tokens.cpu(), probs, tops)
        self.number += 1
        if not self.done:
            self._open()
        return state

    def state(self, first: int, tokens: Tensor, probs: Tensor, tops: tuple[Tensor, Tensor] | None) -> State:
        """A step is a block; every block begins at time 1."""
        positions = torch.arange(first, first + len(tokens))
        return State(
            self.task.row,
            self.number,
            1.0,
            positions,
            tokens,
            probs,
            self.canvas.clone(),
            self.calls,
            self.done,
            tops,
            self.start,
        )
