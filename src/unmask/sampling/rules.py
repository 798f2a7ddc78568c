"""What may be written where: rules for the tokens of a canvas, and a function that the user supplies.

Rules shape the distribution that a token is drawn from. They never change when a position is revealed, and the
probability that is reported is still the network's.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property

import torch
from torch import Tensor

from ..types import UserError, Vocab
from .choice import NEVER
from .phrases import NO_TOKENS, Phrase

Constrain = Callable[[Tensor, Tensor, Tensor], Tensor]  # (log_p (k, V), positions (k,), canvas (L,)) -> (k, V)


@dataclass(frozen=True)
class Rules:
    """Rules for one canvas. Positions count from the beginning of the canvas."""

    banned: frozenset[int] = frozenset()
    allowed: Mapping[int, Sequence[int]] = field(default_factory=dict)  # position -> the only tokens it may hold
    eos_from: int = 0  # no end of text before this position
    constrain: Constrain | None = None
    phrases: tuple[Phrase, ...] = ()  # words that never appear, whichever tokens would spell them
    ends: frozenset[int] = frozenset()  # the tokens that end a text; none: the end-of-text token

    def check(self, canvas: Tensor, vocab: Vocab, name: Callable[[int], str] = str, free: Tensor | None = None) -> None:
        """Raise if the rules contradict each other and leave nothing to write; `name` shows a token.

        `free` (L,): the positions that may be written; None: those that hold [MASK].
        """
        free = canvas == vocab.mask if free is None else free
        for token in (*self.banned, *(token for tokens in self.allowed.values() for token in tokens)):
            if not 0 <= token < vocab.size:
                raise UserError(f"token {token} in the constraints is outside the vocabulary of {vocab.size} tokens")
        for position, tokens in self.allowed.items():
            if not 0 <= position < len(canvas):
                raise UserError(f"allowed names position {position}, but the canvas has {len(canvas)} positions")
            if not free[position]:
                if int(canvas[position]) not in tokens:
                    shown = name(int(canvas[position]))
                    raise UserError(f"position {position} is given as {shown!r}, which its allowed set excludes")
                continue
            if vocab.mask in tokens:
                raise UserError(f"[MASK] cannot be allowed at position {position}: it is never written")
            self._check_set(position, list(tokens), vocab, name)
        writable = vocab.size - 1 - len(self.banned - {vocab.mask})
        if writable < 1:
            raise UserError("every token is banned; leave at least one to write")

    def _check_set(self, position: int, tokens: list[int], vocab: Vocab, name: Callable[[int], str]) -> None:
        if not tokens:
            raise UserError(f"the allowed set of position {position} is empty; give it at least one token")
        early = self._early(vocab) if position < self.eos_from else frozenset()
        if not set(tokens) <= self.forbidden_at(position, vocab):
            return
        reasons = ["banned" for token in tokens if token in self.banned][:1]
        reasons += [f"an end of text before min_length ends at {self.eos_from}"] if early & set(tokens) else []
        shown = ", ".join(repr(name(token)) for token in tokens[:5])
        raise UserError(
            f"contradiction at position {position}: it allows only {shown}, which is {' or '.join(reasons)}"
        )

    def _early(self, vocab: Vocab) -> frozenset[int]:
        """What may not stand before `eos_from`."""
        return self.ends or frozenset(() if vocab.eos is None else (vocab.eos,))

    def forbidden_at(self, position: int, vocab: Vocab) -> frozenset[int]:
        """The tokens that the lists of rules forbid at a position that may hold all others."""
        return self.banned | (self._early(vocab) if position < self.eos_from else frozenset())

    def alike(self, first: int, second: int) -> bool:
        """Whether the lists of rules allow the same at two positions."""
        listed = first in self.allowed or second in self.allowed
        return not listed and (first < self.eos_from) == (second < self.eos_from)

    @cached_property
    def _banned(self) -> Tensor:
        return torch.tensor(sorted(self.banned), dtype=torch.int64)

    def __call__(self, log_x: Tensor, positions: Tensor, canvas: Tensor, vocab: Vocab) -> Tensor:
        """Normalised log-probabilities (k, V) of rows (k, V) under the rules."""
        out = log_x.clone()
        if len(self._banned):
            out[:, self._banned.to(out.device)] = NEVER
        for token in self._early(vocab) if self.eos_from > 0 else ():
            out[positions.to(out.device) < self.eos_from, token] = NEVER
        for row, position in enumerate(positions.tolist()) if self.allowed else ():
            if position in self.allowed:
                keep = torch.tensor(list(self.allowed[position]), device=out.device)
                out[row] = torch.full_like(out[row], NEVER).index_copy(0, keep, out[row, keep])
        if self.phrases:
            context = canvas.cpu().clone()
            context[positions.cpu()] = vocab.mask  # what is written together is not known yet
            known = context.tolist()
            for row, position in enumerate(positions.tolist()):
                out[row, self.forbidden(known, position, vocab).to(out.device)] = NEVER
        self.some_left(out, positions)
        if self.constrain is not None:
            out = self._ask(out, positions, canvas, vocab)
            self.some_left(out, positions)
        return torch.log_softmax(out, -1)

    def forbidden(self, canvas: Sequence[int], position: int, vocab: Vocab) -> Tensor:
        """The tokens that would complete a banned word at a position."""
        return torch.cat([NO_TOKENS, *(phrase.forbidden(canvas, position, vocab.mask) for phrase in self.phrases)])

    @staticmethod
    def some_left(log_x: Tensor, positions: Tensor) -> None:
        """Raise if nothing can be written at one of the positions."""
        nothing = torch.isneginf(log_x).all(-1)
        if nothing.any():
            raise UserError(f"the constraints leave no token to write at position {int(positions[nothing.cpu()][0])}")

    def _ask(self, log_x: Tensor, positions: Tensor, canvas: Tensor, vocab: Vocab) -> Tensor:
        """Apply the user's function to what the other rules left; it cannot bring back what they forbid."""
        assert self.constrain is not None
        out = self.constrain(torch.log_softmax(log_x, -1), positions.clone(), canvas.clone())
        if not isinstance(out, Tensor) or out.shape != log_x.shape:
            shape = tuple(out.shape) if isinstance(out, Tensor) else type(out).__name__
            raise UserError(f"constrain must return log-probabilities of shape {tuple(log_x.shape)}, not {shape}")
        if torch.isnan(out).any() or torch.isposinf(out).any():
            raise UserError("constrain returned NaN or +inf; use -inf to forbid a token and finite numbers otherwise")
        return out.to(log_x).masked_fill(torch.isneginf(log_x), NEVER)
