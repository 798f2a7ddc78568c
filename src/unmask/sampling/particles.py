"""Text by the sampler's own law, given that it fits: runs under the constraint, weighted and resampled (twisted SMC).

Each particle is a run of `constrained.py` with its weight W, so that the weighted particles follow the law of the free
sampler, restricted to what fits, and the mean weight estimates the chance that a free text fits, without bias. After a
step particles are compared by W Z⁺, their chance to fit in the end, and drawn anew where a few of them have most of it.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from ..errors import UserError, at_least
from ..types import State
from .request import Request
from .sampler import Denoiser, Trajectory

RESAMPLE = 0.5  # of the particles: below this effective number they are drawn anew


@dataclass(frozen=True)
class Particles:
    """Finished runs with their weights, and the one that was drawn by weight."""

    states: list[State]
    log_weights: np.ndarray  # (n,): W, resampling included
    chosen: int
    calls: int  # network calls of all runs

    @property
    def log_chance(self) -> float:
        """The log of an unbiased estimate of the chance that a free text fits."""
        return _log_mean(self.log_weights)

    @property
    def effective(self) -> float:
        """How many equally weighted runs they are worth: (sum W)² / sum W²."""
        return _effective(self.log_weights)


def run_particles(model: Denoiser, request: Request, n: int, batch_size: int = 16) -> Particles:
    """N runs of a request, all with its canvas and settings and each with random numbers of its own."""
    at_least("particles", n)
    if request.constraint is None:
        raise UserError("particles are drawn under a constraint; give a regex, a schema, choices or where")
    if request.choice.temperature == 0:
        raise UserError("particles need chances to weigh; give a temperature above 0")
    if request.sampler.rewrites:  # without a constraint it might write what does not fit, and take it back
        raise UserError(
            f"particles weigh runs by tokens that stay, and {type(request.sampler).__name__} takes tokens back; choose "
            "a sampler that does not"
        )
    model.check(request)
    if request.rules is not None:
        request.rules.check(request.canvas, model.vocab, free=request.free)
    request.constraint.check(request, model.vocab)
    runs = [_Run.begin(model, request, i) for i in range(n)]
    turn = calls = 0
    with torch.no_grad():
        while any(not run.trajectory.finished for run in runs):
            active = [run for run in runs if not run.trajectory.finished]
            for start in range(0, len(active), batch_size):
                part = active[start : start + batch_size]
                predictions = model.advance([run.trajectory for run in part])
                for run, written in zip(part, predictions, strict=True):
                    assert written is not None, "a constraint needs a model that writes tokens in every call"
                    run.write(written.positions, written.tokens, written.log_probs)
                calls += len(part) * (1 if request.guidance == 1 else 2)
            turn += 1
            runs = _resampled(runs, request, turn)
    for run in runs:
        model.release(run.trajectory)
    weights = np.array([run.trajectory.log_weight for run in runs])
    if np.isneginf(weights).all():
        raise UserError("top-k, top-p or min-p forbids every text that fits; draw particles without them")
    uniform = float(request.key.uniform("chosen", [0], 1)[0, 0])
    chosen = int(_systematic(weights, np.array([uniform]))[0])
    return Particles([run.state(i) for i, run in enumerate(runs)], weights, chosen, calls)


@dataclass
class _Run:
    """A trajectory, and when each of its tokens was written."""

    trajectory: Trajectory
    steps: torch.Tensor
    probs: torch.Tensor

    @staticmethod
    def begin(model: Denoiser, request: Request, i: int) -> _Run:
        trajectory = request.sampler.trajectory(replace(request, key=request.key.fork(f"particle {i}")), model)
        trajectory.slot, trajectory.cuts_spans = i, False  # particles are compared by what is ahead of them
        length = len(trajectory.whole())
        return _Run(trajectory, torch.full((length,), -1), torch.zeros(length))

    def write(self, positions: torch.Tensor, tokens: torch.Tensor, log_probs: torch.Tensor) -> None:
        trajectory, step = self.trajectory, self.trajectory.step
        if trajectory.error is not None:
            raise trajectory.error
        if not log_probs.isfinite().all():
            raise UserError(f"step {step} cannot be written: the network gave NaN; check the weights of the model")
        trajectory.calls += 1 if trajectory.request.guidance == 1 else 2
        trajectory.kept = len(trajectory.canvas)
        changed, _ = trajectory.write(positions, tokens)
        self.steps[changed], self.probs[changed] = step, 0.0
        self.probs[changed[: len(log_probs)]] = log_probs.exp().float()  # then what was taken back

    def state(self, row: int) -> State:
        """The last state."""
        trajectory, empty = self.trajectory, torch.empty(0)
        canvas = trajectory.whole().clone()
        state = State(
            row, trajectory.step, trajectory.t, empty.long(), empty.long(), empty, canvas, trajectory.calls, True,
            fixed=len(canvas), history=(self.steps, self.probs), log_weight=trajectory.log_weight,
        )  # fmt: skip
        stop = trajectory.request.stop
        return state if stop is None else replace(state, ending=stop(state))


def _resampled(runs: Sequence[_Run], request: Request, turn: int) -> list[_Run]:
    """The runs, drawn anew by their chance to fit in the end where few of them have most of it."""
    ahead = np.array([sum(run.trajectory.ahead.values()) for run in runs])
    twisted = np.array([run.trajectory.log_weight for run in runs]) + ahead
    if np.isneginf(twisted).all() or _effective(twisted) >= RESAMPLE * len(runs):
        return list(runs)
    n, mean = len(runs), _log_mean(twisted)
    uniform = float(request.key.uniform("resampling", [turn], 1)[0, 0])
    parents = _systematic(twisted, (np.arange(n) + uniform) / n)
    free = [runs[i].trajectory.slot for i in sorted(set(range(n)) - set(parents.tolist()))]
    result, used = [], set[int]()
    for i, parent in enumerate(parents.tolist()):
        run = runs[parent]
        if parent in used:
            copied = run.trajectory.copy(request.key.fork(f"particle {i}, turn {turn}"))
            copied.slot, copied.kept = free.pop(), 0  # nothing that is cached there is of this run
            run = _Run(copied, run.steps.clone(), run.probs.clone())
        used.add(parent)
        result.append(run)
    for run in result:
        run.trajectory.log_weight = mean - sum(run.trajectory.ahead.values())
    return result


def _systematic(log_weights: np.ndarray, points: np.ndarray) -> np.ndarray:
    """Indices at these points of [0, 1), each weight as wide as its share."""
    total = np.exp(log_weights - log_weights.max()).cumsum()
    return np.minimum(np.searchsorted(total, points * total[-1], side="right"), len(total) - 1)


def _log_mean(log_weights: np.ndarray) -> float:
    top = log_weights.max()
    return -math.inf if np.isneginf(top) else float(top + np.log(np.exp(log_weights - top).mean()))


def _effective(log_weights: np.ndarray) -> float:
    weights = np.exp(log_weights - log_weights.max())
    return float(weights.sum() ** 2 / (weights**2).sum())
