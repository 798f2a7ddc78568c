"""Lossless speculation: a model of block diffusion drafts several tokens at once, and checks them by its own B = 1 law.

A round, after m final tokens, is two network calls. The *draft* asks n masks together, as one block: tokens d_i from
q_i, independent of each other. The *check* reads the drafted tokens as clean ones and asks every position, and the one
after them, as a block of its own: p_i given all tokens before it. From left to right, d_i is accepted with chance
min(1, p_i(d_i)/q_i(d_i)). The first refused one is replaced by a token from (p_i - q_i)_+, normalised, and those after
it are taken back; if none is refused, one more token is drawn from p_(m + n). Whatever the q_i are, a position holds
token y with chance min(p, q)(y) + (1 - sum of min(p, q)) (p - q)_+(y) / sum of (p - q)_+ = p(y): the law is exactly
that of blocks of one token, from left to right (Leviathan et al. 2023). Under a constraint p_i and q_i are those of the
tokens after which the text can be completed, and the law is that of blocks of one token under it.

How many tokens a round drafts follows from those accepted so far in this text, so it depends on nothing else. Without a
draft a round is a single call, as in left-to-right writing.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ..errors import UserError
from ..process.keys import Keys
from .block_order import BlockByBlock
from .orders import LeftToRight
from .request import Request
from .sampler import Sampler, TokenDenoiser, Trajectory, positions_of
from .settings import k_setting

LONGEST = 16  # tokens of a draft, by default
COLUMNS = 32  # that take as long as what a call costs without them: measured 26 at OWT size, 46 at 5M weights
MEMORY = 0.98  # how much an earlier round counts, compared with the one after it


@dataclass(frozen=True)
class Speculative(Sampler):
    """Drafts of at most k tokens, each checked by the law of blocks of one token."""

    k: int = k_setting(LONGEST)
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


class _SpeculativeTrajectory(Trajectory):
    """Round after round. `clean` is the number of final tokens, and `canvas` ends with the last position to ask."""

    final = False
    in_turn = True

    def __init__(self, request: Request, model: TokenDenoiser, k: int) -> None:
        super().__init__(request, model.vocab)
        free = positions_of(self.free)
        self.total, self.masks, self.round = request.canvas.clone(), len(free), 0
        self.clean = len(self.total) - len(free)
        self.tested, self.passed = ([0.0] * max(0, min(k, len(free) - 1)) for _ in range(2))  # by place in a draft
        self._open()

    @property
    def finished(self) -> bool:
        return self.clean == len(self.total)

    @property
    def drafting(self) -> bool:  # type: ignore[override]
        """Whether this call is a draft."""
        return self.block is None

    def copy(self, key: Keys) -> Trajectory:
        """With new draws for the rest of the round."""
        other = super().copy(key)
        assert isinstance(other, _SpeculativeTrajectory)
        other.total, other.guesses = self.total.clone(), list(self.guesses)
        other.tested, other.passed = list(self.tested), list(self.passed)
        if not self.finished:
            other._draw_uniforms()
        return other

    def _draw_uniforms(self) -> None:
        self.uniforms = self.key.uniform("round", [self.round], 3, self.n + 1)[0].tolist()

    def _open(self) -> None:
        """Begin a round."""
        if self.finished:
            return
        self.t = (len(self.total) - self.clean) / self.masks
        self.n, self.guesses = self._length(), list[Tensor]()  # tokens to draft, and q_i (V,) of each
        self._draw_uniforms()
        if self.n:
            self._ask(self.n, None)
        else:
            self._ask(1, 1)

    def _length(self) -> int:
        """How many tokens to draft: the most tokens for the time, as far as the earlier drafts tell.

        A place in a draft is expected to pass as often as it did, and in one more case as often as the place before it.
        """
        best, pace, tokens, all_pass, rate = 0, 1 / (1 + 2 / COLUMNS), 1.0, 1.0, 1.0
        for n in range(1, min(len(self.tested), len(self.total) - self.clean - 1) + 1):
            rate = (self.passed[n - 1] + rate) / (self.tested[n - 1] + 1)
            all_pass *= rate
            tokens += all_pass
            drafted = tokens / (2 + (3 * n + 2) / COLUMNS)  # n + 1 columns are read, then 2 n + 1
            if drafted > pace:
                best, pace = n, drafted
        return best

    def _ask(self, count: int, block: int | None) -> None:
        """Ask positions from `clean` on: together for a draft, or each as a block of its own."""
        self.count, self.block = count, block
        self.canvas = self.total[: self.clean + count]

    def due(self) -> Tensor:
        return torch.arange(self.clean, self.clean + self.count)

    def draw(self, chances: Tensor, position: int) -> int:
        place = position - self.clean
        guess, accept, again = (row[place] for row in self.uniforms)
        if self.drafting:
            self.guesses.append(chances)
            return _drawn(chances, guess)
        if place < self.n:
            q, token = self.guesses[place], int(self.total[position])
            rest = (chances - q).clamp(min=0)
            if accept * float(q[token]) < float(chances[token]) or not rest.any():
                return token
            self.count, chances = place + 1, rest
        return _drawn(chances, again)

    def stuck(self, error: UserError) -> None:
        if self.drafting:  # a check may still refuse what led there
            self.n = self.count = len(self.guesses)
        else:
            super().stuck(error)

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self.step += 1
        self.total[positions] = tokens
        if self.drafting:
            self.kept = self.clean
            self._ask(self.n + 1, 1)
            return positions, tokens
        passed = self.count - 1  # the last token is another one, or one more
        back = torch.arange(self.clean, self.clean + self.n)[self.count :]
        self.total[back] = self.vocab.mask
        self.drafts = self.drafts[0] + self.n, self.drafts[1] + passed
        for values, new in ((self.tested, min(self.count, self.n)), (self.passed, passed)):
            values[:] = [MEMORY * value + (place < new) for place, value in enumerate(values)]
        self.kept = self.clean + passed
        self.clean += self.count
        self.round += 1
        self._open()
        return torch.cat([positions, back]), torch.cat([tokens, torch.full_like(back, self.vocab.mask)])

    def whole(self) -> Tensor:
        return self.total

    def fixed(self) -> int:
        return self.clean


def _drawn(chances: Tensor, uniform: float) -> int:
    """A token from chances (V,), which need not sum to 1."""
    sums = chances.cumsum(0)
    return min(int(torch.searchsorted(sums, uniform * sums[-1:], right=True)), len(sums) - 1)
