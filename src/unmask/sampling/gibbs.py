"""Gibbs sampling from a masked language model (BERT-Mouth: Wang & Cho 2019, arXiv 1902.04094).

Every gap begins as [MASK]. An update masks one position, asks the network for its distribution given all the others,
and draws its token anew. If these conditionals belong to one joint law, updates leave that law invariant and the chain
converges to it from anywhere. The conditionals of a trained network need not belong to any joint law.

The published `parallel` scan is not a Gibbs sampler: nothing is masked after the first update, the network reads the
text as it stands, and all positions are drawn anew at once, even though the network sees the token it predicts. Such an
update does not leave the joint law invariant, however good the network.

Unlike in the published code, each sequence draws its positions independently, and the first updates visit every gap
once (in random order, or from left to right), so that no [MASK] remains. Given positions never change.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..process.keys import Keys
from ..types import UserError, Vocab
from .choice import Choice
from .request import Request
from .sampler import Sampler, TokenDenoiser, Trajectory, positions_of
from .settings import setting, steps_setting

Scan = Literal["random", "sequential", "parallel"]


@dataclass(frozen=True)
class Gibbs(Sampler):
    """Updates of one position at a time, `random` or `sequential` (sweeps to the right), or `parallel`: all at once."""

    steps: int = steps_setting(500)  # updates, each with one network call; the authors make 500 for 40 tokens
    scan: Scan = setting("random", "gibbs: positions at random, in sweeps to the right, or all at once")
    burn: int = setting(0, "gibbs: first updates that ignore temperature, top-k, top-p and min-p", least=0)
    timeless = True
    rewrites = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.burn < self.steps:
            raise UserError(f"burn={self.burn} must be at least 0 and less than steps={self.steps}")

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """The trajectory from the first update."""
        return _GibbsTrajectory(request, model.vocab, self)

    def turns(self, gaps: Tensor, key: Keys) -> Tensor:
        """(steps, k): the positions of each update, for gaps (n,)."""
        n = len(gaps)
        if self.scan == "parallel":
            return gaps.expand(self.steps, n)
        if self.steps < n:
            raise UserError(f"steps={self.steps} updates cannot write {n} masked tokens; give at least {n} steps")
        if self.scan == "sequential":
            return gaps[torch.arange(self.steps) % n, None]
        stream = key.stream("site")
        first, rest = stream.permutation(n), stream.integers(n, size=self.steps - n)
        return gaps[torch.cat([torch.from_numpy(first), torch.from_numpy(rest)]), None]


class _GibbsTrajectory(Trajectory):
    """One update after another. A state shows the canvas as the network sees it next: the next position is masked."""

    final = False

    def __init__(self, request: Request, vocab: Vocab, sampler: Gibbs) -> None:
        super().__init__(request, vocab)
        self.burn, self.masks = sampler.burn, sampler.scan != "parallel"
        gaps = positions_of(self.free)
        self.turns = sampler.turns(gaps, self.key) if len(gaps) else gaps

    @property
    def finished(self) -> bool:
        return self.step == len(self.turns)

    def due(self) -> Tensor:
        return self.turns[self.step]

    def choice(self, asked: Choice) -> Choice:
        return Choice() if self.step < self.burn else asked

    def uniform(self, positions: Tensor) -> Tensor:
        return self.key.uniform("token", [self.step], len(self.canvas))[0][positions]

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self.put(positions, tokens)
        self.step += 1
        self.t = 1 - self.step / len(self.turns)  # the share of updates that are left; the network does not see it
        if self.finished or not self.masks:
            return positions, tokens
        back = self.due()[self.canvas[self.due()] != self.vocab.mask]  # none in the first visit
        self.put(back, self.vocab.mask)
        return torch.cat([positions, back]), torch.cat([tokens, torch.full_like(back, self.vocab.mask)])
