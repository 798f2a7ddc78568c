"""Orders that are decided step by step, by what the network says: the surest positions first.

Their samples no longer follow the law that `unmask eval` bounds: the order prefers likely tokens. But the order
depends on the network's distribution alone, never on the token that is drawn, so a text still has an exact likelihood
under such a sampler (`replay` computes it).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
from torch import Tensor

from ..errors import UserError, choose
from ..types import Vocab
from .request import Request
from .sampler import Sampler, TokenDenoiser, Trajectory, positions_of
from .settings import k_setting, setting, steps_setting


def confidence(log_x: Tensor) -> Tensor:
    """Probability of the most likely token."""
    return log_x.amax(-1).exp()


def entropy(log_x: Tensor) -> Tensor:
    """The negative entropy in nats: as in the other measures, larger means surer."""
    return -torch.special.entr(log_x.exp()).sum(-1)


def margin(log_x: Tensor) -> Tensor:
    """By how much the most likely token is ahead of the next."""
    best = log_x.topk(2, dim=-1).values.exp()
    return best[:, 0] - best[:, 1]


TIE = 1e-5  # scores that are closer than this differ by no more than rounding


def by_score(scores: Tensor) -> Tensor:
    """Indices from the highest score to the lowest; ties go from left to right.

    Ties are the rule, not the exception: all positions of an empty canvas have the same distribution, since attention
    over equal values cannot tell positions apart. Rounding must not choose among them, as it depends on the batch.
    """
    order = scores.argsort(descending=True, stable=True)
    rank = torch.zeros_like(order)
    rank[1:] = (scores[order].diff() < -TIE).cumsum(0)
    return order[(rank * len(scores) + order).argsort()]


def loss_at_once(nats: Tensor) -> Tensor:
    """(n,) nats: what is lost at most by writing the first 1, 2, ..., n positions at once, given the entropy of each.

    The joint entropy of a set is at least its largest, so what its tokens tell of each other is at most the sum of
    the others.
    """
    nats = nats.double()
    return nats.cumsum(0) - nats.cummax(0).values


MEASURES: dict[str, Callable[[Tensor], Tensor]] = {"confidence": confidence, "entropy": entropy, "margin": margin}


@dataclass(frozen=True)
class Adaptive(Sampler):
    """The surest positions first: k per step, or as many as a threshold or a bound allows (at least one)."""

    measure: str = "confidence"
    k: int | None = k_setting(None)
    steps: int | None = steps_setting(None)  # about this many: k = masks / steps rounded up
    threshold: float | None = setting(
        None,
        "Write all that is at least this sure (entropy: at most this unsure)",
        least=0,
        instead=("steps", "k", "entropy_bound"),
    )
    entropy_bound: float | None = setting(
        None,
        "Write the surest together while their entropies without the largest sum to at most this (nats)",
        least=0,
        instead=("steps", "k", "threshold"),
    )
    late_eos: bool = setting(
        False,
        "A position where an end (of the text, of an answer) is most likely waits for all before it (LLaDA's flood)",
        title="Late end-of-text",
        needs="eos",
    )
    deterministic = True
    timeless = True

    def __post_init__(self) -> None:
        choose(self.measure, MEASURES, "measure")
        if sum(x is not None for x in (self.k, self.steps, self.threshold, self.entropy_bound)) != 1:
            ways = "either tokens per step, a number of steps, a threshold, or an entropy bound"
            raise UserError(f"give the {self.measure} order {ways}")
        if self.threshold is not None:
            top = float("inf") if self.measure == "entropy" else 1.0
            if not 0 <= self.threshold <= top:
                limit = "at least 0 nats" if self.measure == "entropy" else "in [0, 1]"
                raise UserError(f"threshold={self.threshold} of the {self.measure} order must be {limit}")
        super().__post_init__()

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """A trajectory with all free positions as candidates."""
        free = int(request.writable(model.vocab).sum())
        k = None if self.steps is None else -(-free // self.steps)
        k = k if self.k is None else min(self.k, len(request.canvas))
        least = self.threshold
        if least is not None and self.measure == "entropy":
            least = -least
        ends = request.ends if model.vocab.eos is None else request.ends | {model.vocab.eos}
        if self.late_eos and not ends:
            raise UserError("late_eos needs a tokenizer with an end-of-text token, which this model's does not have")
        late = torch.tensor(sorted(ends)) if self.late_eos else None
        return _AdaptiveTrajectory(request, model.vocab, MEASURES[self.measure], k, least, self.entropy_bound, late)


class _AdaptiveTrajectory(Trajectory):
    def __init__(
        self,
        request: Request,
        vocab: Vocab,
        measure: Callable[[Tensor], Tensor],
        k: int | None,
        least: float | None,
        bound: float | None,
        late: Tensor | None,
    ) -> None:
        super().__init__(request, vocab)
        self.measure, self.k, self.least, self.bound, self.late = measure, k, least, bound, late
        self.left = positions_of(self.open)
        self.total, self.chosen = len(self.left), self.left[:0]

    @property
    def finished(self) -> bool:
        return not len(self.left)

    def candidates(self) -> Tensor:
        return self.left

    def score(self, log_x: Tensor) -> Tensor:
        scores = self.measure(log_x)
        if self.bound is None and self.late is None:
            return scores
        nats = scores if self.bound is None else -entropy(log_x)
        ends = torch.zeros_like(scores)
        if self.late is not None:
            ends = torch.isin(log_x.argmax(-1), self.late.to(log_x.device)).to(scores)
        return torch.stack([scores, nats, ends], -1)

    def choose(self, scores: Tensor) -> None:
        left, nats = self.left, scores
        if scores.ndim > 1:
            text = scores[:, 2] == 0
            ready = text | (text.cumsum(0) == 0)  # an end does not wait if there is no text before it
            left, (scores, nats, _) = left[ready], scores[ready].unbind(-1)
        enough = torch.zeros(len(scores), dtype=torch.bool)
        if self.bound is not None:
            order = by_score(scores)
            enough[order] = loss_at_once(nats[order]) <= self.bound
        elif self.least is not None:
            enough = scores >= self.least
        if not enough.any():
            enough[by_score(scores)[: self.k or 1]] = True
        self.chosen = left[enough]

    def due(self) -> Tensor:
        return self.chosen

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        changes = super().write(positions, tokens)
        self.left = positions_of(self.open)
        self.step += 1
        self.t = len(self.left) / self.total
        return changes
