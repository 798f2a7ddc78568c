"""Lossless speculation: a model of block diffusion drafts what may come next, and checks it by its own B = 1 law.

Every position i has a random number e_i(y), exponential, for each token y. The text has the token with the largest
p_i(y) / e_i(y), where p_i is the law of blocks of one token given all tokens before it. That token has the law p_i, so
the text has exactly the left-to-right law, whatever is drafted: a draft decides how much of the text one call tells,
and nothing else. The same seed gives the same text with any drafts, or none. Under a constraint p_i is over the tokens
after which the text can be completed.

One call reads a tree of drafted tokens and asks p after each of its paths. From its root on, the text is followed as
far as its tokens are in the tree, and one token further. The same call has also asked, after the paths where the text
is likely to leave the tree, several masks together: laws q of the places that follow, given nothing of the token that
is drawn there. The next tree has the tokens with the largest q(y) / e(y): as draft and check share their random
numbers, these are likely to be those with the largest p(y) / e(y) (Daliri et al. 2024: without communication).

How large trees are, and how far ahead is asked, follows from what was accepted so far in this text, so it depends on
nothing else. Without a draft a token is one call, as in left-to-right writing.
"""

from __future__ import annotations

from copy import copy
from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..process.keys import Keys
from .block_order import BlockByBlock
from .draft_tree import COLUMNS, Ranked, grow, lay_out
from .orders import LeftToRight
from .request import NOTHING, Request
from .rules import Rules
from .sampler import Sampler, TokenDenoiser, Trajectory
from .settings import k_setting

LARGEST = 32  # drafted tokens of a call, if there is no number
DEEPEST = 16  # places ahead
FIRST = 0.5  # how often a place of a draft passes, as far as nothing is known
MEMORY = 0.98  # how much an earlier call counts, compared with the one after it
SPREAD = 1.5  # a token's chance to be the one is about (q / e) to the power of 1 / this
SELDOM = 0.2  # with k tokens a call: nothing for places reached less often, nor after paths that end k times less often


@dataclass(frozen=True)
class Speculative(Sampler):
    """Drafts of k tokens a call, or of as many as make the most of the time, under the law of blocks of one token."""

    k: int | None = k_setting(None)
    deterministic = True
    timeless = True
    sets_blocks = True

    def check(self, model: Any) -> None:
        """Raise if the model has no law of blocks of one token beside that of its drafts."""
        if not model.writes_blocks:
            raise UserError("speculative sampling is for models of method block, which this one is not")
        if model.clean != "tokens":
            raise UserError(
                "speculative sampling needs a model that reads a finished text causally by tokens "
                "(block.clean=tokens), and this one reads it by blocks; choose another sampler"
            )
        super().check(model)

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """The trajectory from the first free position; a given text is followed without drafts."""
        free = request.writable(model.vocab)
        if (free[:-1] & ~free[1:]).any():
            raise UserError(
                "speculative sampling writes from left to right and does not see what follows a gap; "
                "give a prompt, without a suffix or gaps, or choose another sampler"
            )
        if request.target is not None:
            return BlockByBlock(LeftToRight(), 1).trajectory(request, model)
        return _SpeculativeTrajectory(request, model, self.k)


@dataclass
class _Record:
    """What became of a place of the drafts, in calls that count less the longer they are ago."""

    tested: float = 0.0
    offered: float = 0.0  # chance, by the draft, that one of its tokens is the one
    passed: float = 0.0

    @property
    def trust(self) -> float:
        """By how much the chances of a draft are too large."""
        return min(1.0, (self.passed + 1) / (self.offered + 1.1))

    def add(self, offered: float, passed: bool) -> None:
        """Count a call."""
        self.tested, self.offered, self.passed = (
            MEMORY * old + new
            for old, new in ((self.tested, offered > 0), (self.offered, offered), (self.passed, passed))
        )


class _SpeculativeTrajectory(Trajectory):
    """Call after call. `clean` is the number of final tokens; `canvas` goes on with the columns of a tree."""

    final = False
    in_turn = True

    def __init__(self, request: Request, model: TokenDenoiser, k: int | None) -> None:
        super().__init__(request, model.vocab)
        self.total, self.masks, self.k = request.canvas.clone(), int(self.free.sum()), k
        self.clean = len(self.total) - self.masks
        self.places = list[Ranked]()  # what is drafted for the positions from `clean` on
        self.records = [_Record() for _ in range(min(k or DEEPEST, DEEPEST))]  # of each place of a draft
        self.races = dict[int, Tensor]()  # by position: 1 / e of each token (V,)
        self._open()

    @property
    def finished(self) -> bool:
        return self.clean == len(self.total)

    def copy(self, key: Keys) -> Trajectory:
        """With new random numbers where drafts have not looked: how far a call came may depend on those they know."""
        other = super().copy(key)
        assert isinstance(other, _SpeculativeTrajectory)
        other.total, other.races, other.records = self.total.clone(), dict(self.races), list(map(copy, self.records))
        return other

    def _open(self) -> None:
        """Begin a call: the tree of what was drafted, and what is asked after its vertices."""
        if self.finished:
            return
        left = len(self.total) - self.clean - 1  # after the next position; a draft for the last one is of no use
        self.t = (left + 1) / self.masks
        places = [
            (tokens, [record.trust * chance for chance in chances])
            for (tokens, chances), record in zip(self.places[:left], self.records, strict=False)
        ]
        self.tree = grow(places, self.k or LARGEST, for_time=self.k is None)
        most = [max(0, left - depth - 1) for depth in self.tree.depths]
        self.layout = lay_out(self.tree, self.clean, list(map(min, self._ahead(), most)), self.vocab.mask)
        self.canvas, self.columns = torch.cat([self.total[: self.clean], self.layout.tokens]), self.layout.columns
        self.vertex, self.checked, self.places = 0, 0, []
        self.drafting = self.complete = False

    def _ahead(self) -> list[int]:
        """For each vertex, how many places to draft for the case that the text leaves the tree there.

        A place is expected to pass as often as it did, and in one more case as often as the place before it.
        """
        chance, rate, reach = 1.0, FIRST, []
        for record in self.records:
            rate = (record.passed + rate) / (record.tested + 1)
            chance *= rate
            reach.append(chance)
        if self.k is None:
            cost = self.tree.pace / COLUMNS
            return [sum(end * chance > cost for chance in reach) for end in self.tree.ends]
        return [sum(chance > SELDOM for chance in reach) if end > SELDOM / self.k else 0 for end in self.tree.ends]

    def due(self) -> Tensor:
        return torch.arange(self.clean + len(self.tree), len(self.canvas))

    def asked(self) -> Tensor:
        if self.complete:
            return NOTHING
        if self.drafting:
            later = self.layout.together[self.vertex]
            return self.clean + torch.arange(later.start, later.stop)
        return torch.tensor([self.clean + self.layout.single[self.vertex]])

    def rules(self) -> Rules | None:
        rules = self.request.rules
        if self.drafting and rules is not None:  # a user's function is asked left to right, and not about drafts
            return replace(rules, constrain=None)
        return rules

    def draw(self, chances: Tensor) -> Tensor:
        raced = chances * self._races(self.place(self.asked()).tolist()).to(chances.device)
        if self.drafting:
            weights = raced.pow(1 / SPREAD)
            best = (weights / weights.sum(1, keepdim=True)).topk(min(self.k or LARGEST, weights.shape[1]))
            self.places, self.complete = list(zip(best.indices.tolist(), best.values.tolist(), strict=True)), True
            return best.indices[:, 0]
        [token] = raced.argmax(1).tolist()
        child = self.tree.children.get((self.vertex, token))
        self.checked, self.drafting, self.vertex = self.checked + 1, child is None, child or self.vertex
        return torch.tensor([token])

    def _races(self, positions: list[int]) -> Tensor:
        """(n, V): 1 / e of positions. A chance times it is largest for the token that the text has there."""
        new = [position for position in positions if position not in self.races]
        uniform = self.key.uniform("race", new, self.vocab.size)
        self.races |= zip(new, (-uniform.log()).reciprocal(), strict=True)
        return torch.stack([self.races[position] for position in positions])

    def stuck(self, error: UserError) -> None:
        self.complete = True
        if not self.drafting:  # without a draft it can go on
            super().stuck(error)

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self.step += 1
        places = self.place(positions)
        self.total[places] = tokens
        back = torch.arange(int(places[-1]) + 1, len(self.total))
        back = back[self.total[back] != self.vocab.mask]  # drafts that were shown
        self.total[back] = self.vocab.mask
        passed = self.checked - 1
        self.drafts = self.drafts[0] + len(self.tree), self.drafts[1] + passed
        path = self.tree.path(self.vertex)
        for place, record in enumerate(self.records):
            offered = self.tree.offered(path[place]) if place < len(path) else 0.0
            record.add(offered / record.trust, place < passed)
        self.kept = self.clean
        self.clean += self.checked
        self.races = {place: race for place, race in self.races.items() if place >= self.clean}
        self._open()
        return torch.cat([places, back]), torch.cat([tokens, torch.full_like(back, self.vocab.mask)])

    def place(self, positions: Tensor) -> Tensor:
        return torch.cat([torch.arange(self.clean), self.layout.columns.place])[positions]

    def under_way(self) -> tuple[int, int] | None:
        return None if self.finished else (self.clean, int(self.layout.columns.place.max()) + 1)

    def whole(self) -> Tensor:
        return self.total

    def fixed(self) -> int:
        return self.clean
