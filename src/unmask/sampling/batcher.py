"""Many sequences through one network: continuous batching.

Every step is one network call for all active sequences, whatever the method: the model's denoiser advances their
trajectories. A sequence keeps its slot from admission to its end, and a finished one makes room for the next. Nothing
depends on what else is in the batch, so a sample does not either. A text that stops early is also ended here.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace

import torch
from torch import Tensor

from ..errors import UserError, at_least
from ..networks.kernels.packed_linear import PackedWeights
from ..process.keys import Keys
from ..types import State
from .request import NOTHING, Request, Written
from .rules import Rules
from .sampler import Denoiser, Sampler, TokenDenoiser, Trajectory

NO_LOG_PROBS = torch.empty(0, dtype=torch.float64)
NONE = Written(NOTHING, NOTHING, NO_LOG_PROBS, NOTHING[:, None], torch.empty(0, 1))


class Batcher:
    """Requests that wait, and trajectories that are under way.

    With a `token_budget`, every sequence gets the same share of the network: it saves up that many tokens per step (or
    the median of what sequences read, if that is more) and goes through the network once it has saved what it reads. So
    a long sequence among short ones does not slow down each of their steps. Without a budget all go in every step.
    """

    def __init__(self, model: Denoiser, batch_size: int, token_budget: int | None = None) -> None:
        at_least("batch_size", batch_size)
        self.model, self.batch_size, self.token_budget = model, batch_size, token_budget
        self.waiting: deque[Request] = deque()
        self.active: list[Trajectory] = []
        self._slots = list(range(batch_size))[::-1]  # free ones, the next one last
        self._packed = PackedWeights()
        self._saved: dict[int, int] = {}  # tokens, by row
        self._written: dict[int, tuple[Tensor, Tensor]] = {}  # by row: when each token was written, and how sure

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.waiting or self.active)

    def add(self, request: Request) -> None:
        """Queue a request; raises at once if the model cannot follow it."""
        self.model.check(request)
        if request.guidance != 1 and request.label is None:
            raise UserError(f"guidance={request.guidance} needs a label to be guided by")
        if not math.isfinite(request.guidance):
            raise UserError(
                f"guidance={request.guidance} must be a finite number; 1 is the distribution given the label"
            )
        if request.rules is not None:
            request.rules.check(request.canvas, self.model.vocab, free=request.free)
        if request.constraint is not None:
            request.constraint.check(request, self.model.vocab)
        self.waiting.append(request)

    def drop(self, row: int) -> None:
        """Forget a sequence, wherever it is."""
        self.waiting = deque(request for request in self.waiting if request.row != row)
        self._end({row})

    def step(self) -> list[tuple[State, Tensor]]:
        """One network call: new states of active sequences, and the log-probabilities of what was written."""
        with torch.no_grad(), self._packed.in_use():
            states = self._admit()
            turn = self._turn()
            predictions = self.model.advance(turn) if turn else []
            every = [NO_LOG_PROBS, *(written.log_probs for written in predictions if written is not None)]
            sound = bool(torch.cat(every).isfinite().all())  # at once for all, as the batch has many and most are
            for trajectory, written in zip(turn, predictions, strict=True):
                trajectory.calls += 1 if trajectory.request.guidance == 1 else 2
                trajectory.kept = len(trajectory.canvas)
                error = trajectory.error if sound else trajectory.error or _unusable(trajectory, written)
                if error is not None:
                    states.append((self._failed(trajectory, error), NO_LOG_PROBS))
                elif written is not None:
                    states.append((self._write(trajectory, written), written.log_probs))
        self._end({state.row for state, _ in states if state.done})
        return states

    def run(self) -> Iterator[State]:
        """The states of all requests as they come; raises where one of them cannot go on."""
        while self.busy:
            for state, _ in self.step():
                if state.error is not None:
                    raise state.error
                yield state

    def _admit(self) -> list[tuple[State, Tensor]]:
        """Give slots to waiting requests; returns the states of those that have nothing to write."""
        empty: list[tuple[State, Tensor]] = []
        while self.waiting and len(self.active) < self.batch_size:
            request = self.waiting.popleft()
            trajectory = request.sampler.trajectory(request, self.model)
            length = len(trajectory.whole())
            self._written[request.row] = torch.full((length,), -1), torch.zeros(length)
            if trajectory.finished:
                empty.append((self._state(trajectory, 0, trajectory.t, NONE, NOTHING, NOTHING), NO_LOG_PROBS))
                self._written.pop(request.row)
            else:
                trajectory.slot = self._slots.pop()
                self.model.admit(trajectory)
                self.active.append(trajectory)
        return empty

    def _end(self, rows: set[int]) -> None:
        """Remove sequences that have ended, and free their slots."""
        ended = [trajectory for trajectory in self.active if trajectory.request.row in rows]
        for trajectory in ended:
            self._slots.append(trajectory.slot)
            self.model.release(trajectory)
            self._saved.pop(trajectory.request.row, None)
            self._written.pop(trajectory.request.row, None)
        if ended:
            self.active = [trajectory for trajectory in self.active if trajectory.request.row not in rows]

    def _turn(self) -> list[Trajectory]:
        """The sequences that go through the network in this step."""
        if self.token_budget is None or not self.active:
            return self.active
        unread = map(self.model.unread, self.active)
        costs = [n * (1 if one.request.guidance == 1 else 2) for n, one in zip(unread, self.active, strict=True)]
        budget, chosen = max(self.token_budget, sorted(costs)[(len(costs) - 1) // 2]), []
        for trajectory, cost in zip(self.active, costs, strict=True):
            row = trajectory.request.row
            self._saved[row] = min(self._saved.get(row, cost) + budget, max(cost, budget))  # a new one goes at once
            if self._saved[row] >= cost:
                self._saved[row] -= cost
                chosen.append(trajectory)
        return chosen

    def _write(self, trajectory: Trajectory, written: Written) -> State:
        """Write into a canvas, and end the sequence if that ends its text."""
        step, t = trajectory.step, trajectory.t
        positions, tokens = trajectory.write(written.positions, written.tokens)
        return self._state(trajectory, step, t, written, positions, tokens)

    def _failed(self, trajectory: Trajectory, error: UserError) -> State:
        """The last state of a sequence that cannot go on: nothing is written."""
        trajectory.error = error
        state = self._state(trajectory, trajectory.step, trajectory.t, NONE, NOTHING, NOTHING)
        return replace(state, done=True, tops=None, ending=None, error=error)

    def _state(
        self, trajectory: Trajectory, step: int, t: float, written: Written, positions: Tensor, tokens: Tensor
    ) -> State:
        request = trajectory.request
        probs = torch.zeros(len(positions), dtype=torch.float32)  # what was re-masked comes last, with probability 0
        probs[: len(written.tokens)] = written.log_probs.exp().float()
        steps, chances = self._written[request.row]
        steps[positions], chances[positions] = step, probs
        state = State(
            request.row,
            step,
            t,
            positions,
            tokens,
            probs,
            trajectory.whole().clone(),
            trajectory.calls,
            trajectory.finished,
            written.best(request.tops) if trajectory.calls else None,
            trajectory.fixed(),
            trajectory.under_way(),
            drafts=trajectory.drafts,
        )
        ending = None if request.stop is None else request.stop(state)
        if not state.done and ending is None:
            return state
        weighs = request.constraint is not None and request.choice.temperature and not request.sampler.rewrites
        weight = trajectory.log_weight if weighs else None
        return replace(state, done=True, ending=ending, history=(steps, chances), log_weight=weight)


def _unusable(trajectory: Trajectory, written: Written | None) -> UserError | None:
    """Why a prediction cannot be written: NaN in the logits, or no token that is possible, makes chances NaN or 0."""
    if written is None:
        return None
    replayed = trajectory.request.target is not None  # whose text may be impossible
    bad = int((written.log_probs.isnan() if replayed else ~written.log_probs.isfinite()).sum())
    if not bad:
        return None
    return UserError(
        f"step {trajectory.step} cannot be written: for {bad} of {len(written.log_probs)} positions the network gave "
        "NaN, or no token that is possible; check the weights of the model, or load it in float32"
    )


def replay(
    model: TokenDenoiser,
    canvases: Sequence[Tensor],
    targets: Sequence[Tensor],
    sampler: Sampler,
    keys: Sequence[Keys],
    batch_size: int = 16,
    rules: Rules | None = None,
    labels: Sequence[int] | None = None,
) -> list[Tensor]:
    """Follow a sampler, but write the tokens of `targets`: (L,) float64 log-probabilities, 0 where a token was given.

    The sum is log p(target | the sampler's order). Where the order depends on nothing but what the network says, that
    is the exact log-likelihood of the sampler; under rules, that of the sampler under them.
    """
    batcher = Batcher(model, batch_size)
    result = [torch.zeros(len(canvas), dtype=torch.float64) for canvas in canvases]
    for row, (canvas, target, key) in enumerate(zip(canvases, targets, keys, strict=True)):
        label = None if labels is None else labels[row]
        request = Request(row, canvas, sampler, key, rules=rules, label=label, target=target)
        _check_target(request, target, request.writable(model.vocab), model.vocab.mask)
        batcher.add(request)
    while batcher.busy:
        for state, log_probs in batcher.step():
            if state.error is not None:
                raise state.error
            result[state.row][state.positions[: len(log_probs)]] = log_probs
    return result


def _check_target(request: Request, target: Tensor, free: Tensor, mask: int) -> None:
    row, canvas = request.row, request.canvas
    if canvas.shape != target.shape:
        raise UserError(f"target {row} has {len(target)} tokens, but its canvas has {len(canvas)}")
    if (target == mask).any():
        raise UserError(f"target {row} holds [MASK], which no sampler ever writes")
    if (off := torch.nonzero(~free & (canvas != target))).numel():
        raise UserError(f"target {row} differs from its canvas at position {int(off[0])}, where the token is given")
