"""Writing under a constraint: in each step the due tokens are drawn from the law of all open ones, given the form.

Before a step the network gives every open position of a span a distribution of its own. Given that the whole span fits
its automaton, these positions depend on each other. A completion is drawn from that joint law (`constraints.chain`),
and only what is due of it is written: whatever the order, what is written can always be completed.

The text then follows the sampler's steps under the constraint, not the sampler's law given the constraint. The ratio of
the two is the weight of a run: the product over its steps of Z / Z⁺, where Z is the chance that free tokens would fit
before the step, and Z⁺ the same after it, by the same distributions. Its mean is the chance that a free text fits.
`particles.py` draws by these weights.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..constraints import chain
from ..constraints.token_automaton import TokenAutomaton
from ..errors import UserError
from ..process.masking import categorical
from ..types import Vocab
from .choice import NEVER, Choice

if TYPE_CHECKING:
    from .request import Request
    from .rules import Rules
    from .sampler import Trajectory

FARTHEST = 64  # tokens beyond the length of a gap, up to which lengths that would fit are looked for
SUMS_AT_ONCE = 1 << 24  # numbers that backward sums hold at a time


class FormedSpan(NamedTuple):
    """Positions `start` to `stop` of a canvas, given tokens among them, which must spell a text of an automaton."""

    automaton: TokenAutomaton
    start: int
    stop: int

    def holds(self, positions: Tensor) -> Tensor:
        """(k,) bool: which positions are in it."""
        return (positions >= self.start) & (positions < self.stop)


@dataclass(frozen=True, eq=False)
class Constraint:
    """The spans of a canvas that must have a form; they do not overlap."""

    spans: tuple[FormedSpan, ...]

    def check(self, request: Request, vocab: Vocab, name: Callable[[int], str] = str) -> None:
        """Raise if a span cannot be written, or not by this sampler; `name` shows a token."""
        if not request.sampler.draws_by_position:
            raise UserError(
                f"a constraint needs a sampler that draws tokens position by position from one canvas, which "
                f"{type(request.sampler).__name__} does not; leave out the stride, or choose another sampler"
            )
        if request.rules is not None and request.rules.phrases:
            raise UserError("a constraint does not go with banned words of several tokens; exclude them in the pattern")
        for span in self.spans:
            _check_span(span, request, vocab, name)


def _check_span(span: FormedSpan, request: Request, vocab: Vocab, name: Callable[[int], str]) -> None:
    automaton, start, stop = span
    if not 0 <= start < stop <= len(request.canvas):
        raise UserError(f"the constraint names positions {start} to {stop}, but the canvas has {len(request.canvas)}")
    free, n = request.writable(vocab)[start:stop].tolist(), stop - start
    allowed = np.zeros((n, automaton.n_classes), dtype=bool)
    for i, (token, writable) in enumerate(zip(request.canvas[start:stop].tolist(), free, strict=True)):
        tokens = _allowed(request.rules, start + i, vocab) if writable else np.array([token])
        classes = automaton.classes if tokens is None else automaton.classes[tokens]
        allowed[i, classes[classes >= 0]] = True
    reached = chain.possible(automaton, allowed)
    if (reached[n] & automaton.accepting).any():
        return
    what = f"the {n} tokens from position {start} on cannot be a text that fits {automaton.name}"
    stuck = int(np.flatnonzero(reached.any(1))[-1])
    if stuck < n:
        given = f"the given {name(int(request.canvas[start + stuck]))!r}" if not free[stuck] else "any token"
        raise UserError(f"{what}: at position {start + stuck} {given} would be one too many or the wrong one")
    if not all(free):
        raise UserError(f"{what}: they would end before the text is complete")
    every = chain.possible(automaton, np.ones((n + FARTHEST, automaton.n_classes), dtype=bool))
    fits = np.flatnonzero((every & automaton.accepting).any(1))
    near = sorted(fits[np.argsort(abs(fits - n), kind="stable")][:3].tolist())
    cure = f"; give it {' or '.join(map(str, near))} tokens" if near and n not in near else "; check what is banned"
    raise UserError(what + (cure if near else f"; it takes at least {automaton.shortest} tokens"))


def _allowed(rules: Rules | None, position: int, vocab: Vocab) -> np.ndarray | None:
    """The tokens that rules allow at a position; None: all."""
    if rules is None:
        return None
    tokens = np.ones(vocab.size, dtype=bool)
    if position in rules.allowed:
        tokens[:] = False
        tokens[list(rules.allowed[position])] = True
    tokens[[vocab.mask, *rules.forbidden_at(position, vocab)]] = False
    return np.flatnonzero(tokens)


def needed(trajectory: Trajectory, positions: Tensor, one_way: bool) -> Tensor:
    """The positions whose distributions a step needs, given those that it scores or writes."""
    constraint = trajectory.request.constraint
    if constraint is None or one_way:
        return positions
    left = trajectory.open | (trajectory.canvas == trajectory.vocab.mask)
    parts = [
        span.start + torch.nonzero(left[span.start : span.stop]).squeeze(-1)
        for span in constraint.spans
        if span.holds(positions).any()
    ]
    return torch.cat([positions, *parts]).unique()


class SpanStep:
    """One span in one step: its distributions, and the classes of tokens that are drawn for what is due.

    Where the model reads only what stands before a position (`one_way`), nothing is known yet of those after the due
    one: they count as possible or not.
    """

    def __init__(self, trajectory: Trajectory, span: FormedSpan, due: Tensor, one_way: bool) -> None:
        automaton, start, stop = span
        self.trajectory, self.span, self.automaton, self.start = trajectory, span, automaton, start
        self.due = np.sort(due[span.holds(due)].numpy() - start)
        self.choice = trajectory.choice(trajectory.request.choice)
        canvas = trajectory.canvas[start:stop]
        unwritten = (trajectory.open[start:stop] | (canvas == trajectory.vocab.mask)).numpy()
        unwritten[self.due] = True
        known = unwritten.copy()
        if one_way:
            known[:] = False
            known[self.due] = True
        self.positions = torch.from_numpy(start + np.flatnonzero(known))
        self.largest = (unwritten & ~known) | (self.choice.temperature == 0)
        weights = np.full((stop - start, automaton.n_classes), NEVER)
        weights[unwritten & ~known] = 0.0
        given = np.flatnonzero(~unwritten)
        classes = automaton.classes[canvas.numpy()[given]]
        weights[given[classes >= 0], classes[classes >= 0]] = 0.0
        self.weights = weights
        self.unfiltered = weights.copy() if self._filters else weights  # in case a filter leaves nothing that fits
        self.classes = np.full(stop - start, -1)

    @property
    def _filters(self) -> bool:
        choice = self.choice
        return choice.temperature != 0 and (choice.top_k, choice.top_p, choice.min_p) != (None, None, None)

    def add(self, positions: Tensor, log_x: Tensor) -> None:
        """Take the distributions (k, V) of some positions, under the rules."""
        inside = torch.isin(positions, self.positions)
        if not inside.any():
            return
        at, rows = positions[inside].numpy() - self.start, log_x if inside.all() else log_x[inside.to(log_x.device)]
        if self.choice.temperature == 0:
            self.weights[at] = self.automaton.best(rows)
            return
        self.weights[at] = self.automaton.weights(torch.log_softmax(self.choice.filtered(rows), -1))
        if self._filters:
            warm = Choice(self.choice.temperature)
            self.unfiltered[at] = self.automaton.weights(torch.log_softmax(warm.filtered(rows), -1))

    def take(self, after: np.ndarray) -> bool:
        """Draw the classes of what is due, given backward sums (n + 1, Q); False if nothing fits."""
        before = float(after[0, 0])
        trajectory = self.trajectory
        if np.isnan(self.weights).any():
            raise UserError(
                f"step {trajectory.step} cannot be written: the network gave NaN; check the weights of the model"
            )
        if before == NEVER:
            return False
        upto, greedy = int(self.due[-1]) + 1, self.choice.temperature == 0
        uniform = trajectory.key.uniform("constraint", [trajectory.calls], len(trajectory.canvas))[0].numpy()
        drawn = chain.draw(self.automaton, self.weights, after, uniform[self.start :], upto, greedy)
        self.classes[self.due] = drawn[self.due]
        fixed = self.weights[:upto].copy()
        fixed[self.due] = NEVER
        fixed[self.due, drawn[self.due]] = 0.0
        later = chain.backward(self.automaton, fixed[None], self.largest[:upto], after[None, upto])
        trajectory.ahead[self.start] = float(later[0, 0, 0])
        trajectory.log_weight += before - trajectory.ahead[self.start]
        return True

    def without_filters(self) -> None:
        """Draw this step without top-k, top-p and min-p, as they left nothing that fits: of no weight under them."""
        self.weights, self.choice = self.unfiltered, Choice(self.choice.temperature)
        self.trajectory.log_weight = NEVER

    def tokens(self, positions: Tensor, log_x: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """Which of the rows (k,) bool belong to this span, and their tokens."""
        inside = self.span.holds(positions)
        rows = log_x[inside.to(log_x.device)]
        wanted = torch.from_numpy(self.classes[positions[inside].numpy() - self.start]).to(rows.device)
        classes = torch.from_numpy(self.automaton.classes).to(rows.device)
        greedy = self.choice.temperature == 0
        rows = rows if greedy else self.choice.filtered(rows)
        rows = rows.masked_fill(classes != wanted[:, None], NEVER)
        tokens = rows.argmax(-1) if greedy else categorical(rows, uniform[inside])
        return inside, tokens.cpu()


def solve(steps: Sequence[SpanStep]) -> None:
    """Draw the classes of all steps; those with the same automaton and as many positions are summed together."""
    left = list(steps)
    for again in (False, True):
        groups: dict[tuple[int, tuple[int, ...], bytes], list[SpanStep]] = {}
        for step in left:
            key = id(step.automaton), step.weights.shape, step.largest.tobytes()
            groups.setdefault(key, []).append(step)
        left = []
        for members in groups.values():
            first = members[0]
            size = max(
                1, SUMS_AT_ONCE // max(1, len(first.weights) * (first.automaton.states + first.automaton.n_classes))
            )
            for begin in range(0, len(members), size):
                part = members[begin : begin + size]
                sums = chain.backward(first.automaton, np.stack([step.weights for step in part]), first.largest)
                for step, after in zip(part, sums, strict=True):
                    if step.trajectory.error is None:
                        left += _take(step, after, again)


def _take(step: SpanStep, after: np.ndarray, again: bool) -> list[SpanStep]:
    """Draw; returns the step if it is to be tried again without filters."""
    trajectory = step.trajectory
    try:
        if step.take(after):
            return []
        if not again and step.weights is not step.unfiltered:
            step.without_filters()
            return [step]
        place = step.start
        raise UserError(
            f"step {trajectory.step} leaves nothing that fits {step.automaton.name} from position {place} on: "
            "rules or a constrain function forbid what the constraint needs"
        )
    except UserError as error:  # it is this sequence that ends, and not the others of the batch
        trajectory.error = error
        return []
