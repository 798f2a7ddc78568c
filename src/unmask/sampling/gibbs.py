"""Gibbs sampling from a masked language model (BERT-Mouth: Wang & Cho 2019, arXiv 1902.04094).

Every gap begins as [MASK]. An update takes one position back to [MASK], asks the network for it given all the others,
and draws its token anew. Where these conditionals belong to one joint law, that law is left as it is, and the chain
comes to it from anywhere. A trained network's conditionals need not belong to any: then there is no law to name.

The published `parallel` way is no Gibbs sampler: nothing is masked after the first update, the network reads the text
as it stands and every position is drawn anew at once, also from what the network says where it sees the token. No
update of this kind leaves the joint law as it is, however good the network.

Unlike the published code, each sequence draws its own positions, and the first updates visit every gap once (in random
order, or from left to right): no [MASK] is ever left. Given positions never change.
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
    """Updates of one position each, at `random` or `sequential` (sweeps to the right); `parallel`: of all at once."""

    steps: int = steps_setting(500)  # updates, each with one network call; the authors make 500 for 40 tokens
    scan: Scan = setting("random", "gibbs: positions at random, in sweeps to the right, or all at once")
    burn: int = setting(0, "gibbs: first updates that ignore temperature, top-k, top-p and min-p", least=0)
    timeless = True

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.burn < self.steps:
            raise UserError(f"burn={self.burn} must be at least 0 and less than steps={self.steps}")

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """Ready at the first update."""
        return _GibbsTrajectory(request, model.vocab, self)

    def turns(self, gaps: Tensor, key: Keys) -> Tensor:
        """(steps, k) the positions of each update, for gaps (n,)."""
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
    """Update after update. A state shows the canvas as the network sees it next: the next position is taken back."""

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
        self.t = 1 - self.step / len(self.turns)  # the share of updates that are left; no network is told
        if self.finished or not self.masks:
            return positions, tokens
        back = self.due()[self.canvas[self.due()] != self.vocab.mask]  # none in the first visit
        self.put(back, self.vocab.mask)
        return torch.cat([positions, back]), torch.cat([tokens, torch.full_like(back, self.vocab.mask)])
