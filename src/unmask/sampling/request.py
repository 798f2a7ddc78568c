"""Two records: what is to be written, and what one network call wrote."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from ..process.keys import Keys
from ..process.masking import at_tokens
from ..types import Ending, State, Vocab
from .choice import Choice
from .constrained import Constraint
from .rules import Rules

if TYPE_CHECKING:
    from .sampler import Sampler

NOTHING = torch.empty(0, dtype=torch.int64)
PLAIN = Choice()
StopCondition = Callable[[State], Ending | None]  # where the text of a state ends, or None while it goes on


@dataclass(frozen=True, eq=False)
class Request:
    """A canvas and how to write it; with the prompt and the settings that it was made from, if any."""

    row: int  # how states refer to it
    canvas: Tensor  # (L,) int64
    sampler: Sampler
    key: Keys
    choice: Choice = PLAIN
    rules: Rules | None = None
    label: int | None = None
    guidance: float = 1.0  # 0: the distribution without the label, 1: the one with it; above 1 beyond that
    tops: int = 0  # alternatives to report for each written position
    target: Tensor | None = None  # replay: write these tokens instead of drawing any
    free: Tensor | None = None  # (L,) bool: may be written; None: where the canvas holds [MASK]
    constraint: Constraint | None = None  # the form that spans of the canvas must have
    stop: StopCondition | None = None
    ends: frozenset[int] = frozenset()  # tokens that end its text as EOS does: the one after the answers of a chat
    prompt: Any = None  # the `Canvas` it was made from: requests that share the object begin with the same tokens
    params: Any = None  # the `SamplingParams` it was made from

    def writable(self, vocab: Vocab) -> Tensor:
        """(L,) bool: the positions that may be written."""
        return self.canvas == vocab.mask if self.free is None else self.free


@dataclass(frozen=True)
class Written:
    """Tokens for positions of a canvas: (n,) positions, tokens, log-probabilities, and (n, m) alternatives."""

    positions: Tensor
    tokens: Tensor
    log_probs: Tensor
    tops: Tensor
    top_probs: Tensor

    def part(self, start: int, stop: int) -> Written:
        """The rows from `start` to `stop`."""
        rows = slice(start, stop)
        return Written(
            self.positions[rows], self.tokens[rows], self.log_probs[rows], self.tops[rows], self.top_probs[rows]
        )

    def best(self, m: int) -> tuple[Tensor, Tensor] | None:
        """The m best alternatives of each row (a neighbour in the batch may have asked for more), or None for m = 0."""
        return (self.tops[:, :m], self.top_probs[:, :m]) if m else None


def not_a_number(positions: Tensor, bad: Tensor) -> Written:
    """What cannot be written: tokens of no meaning, and NaN as the log-probability of the bad ones (n,) bool."""
    log_probs = torch.zeros(len(positions), dtype=torch.float64).masked_fill(bad.cpu(), float("nan"))
    none = positions[:, None][:, :0]
    return Written(positions, torch.zeros_like(positions), log_probs, none, none.float())


def read_off(log_x: Tensor, positions: Tensor, tokens: Tensor, m: int) -> Written:
    """What was written, with its probabilities under rows of log x̂ (n, V) and their m best tokens."""
    log_probs = at_tokens(log_x, tokens.to(log_x.device)).double().cpu()
    best = log_x.topk(min(m, log_x.shape[-1] - 1), dim=-1)
    return Written(positions, tokens.cpu(), log_probs, best.indices.cpu(), best.values.exp().cpu())
