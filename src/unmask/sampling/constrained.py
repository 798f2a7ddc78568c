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

import math
from collections.abc import Callable, Iterator, Sequence
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
Group = tuple[TokenAutomaton, Choice]


class FormedSpan(NamedTuple):
    """Positions `start` to `stop` of a canvas, given tokens among them, which must spell a text of an automaton."""

    automaton: TokenAutomaton
    start: int
    stop: int

    def holds(self, positions: Tensor) -> bool:
        """Whether any of the positions is in it."""
        return bool(((positions >= self.start) & (positions < self.stop)).any())


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
    free, n, rules = request.writable(vocab)[start:stop].tolist(), stop - start, request.rules
    allowed = np.zeros((n, automaton.n_classes), dtype=bool)
    for i, (token, writable) in enumerate(zip(request.canvas[start:stop].tolist(), free, strict=True)):
        if writable and rules is None:
            allowed[i] = True
        elif i and writable and free[i - 1] and rules is not None and rules.alike(start + i - 1, start + i):
            allowed[i] = allowed[i - 1]
        else:
            tokens = _allowed(rules, start + i, vocab) if writable and rules is not None else np.array([token])
            classes = automaton.classes[tokens]
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


def _allowed(rules: Rules, position: int, vocab: Vocab) -> np.ndarray:
    """The tokens that rules allow at a position."""
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
    spans = [span for span in constraint.spans if span.holds(positions)]
    parts = [span.start + torch.nonzero(left[span.start : span.stop]).squeeze(-1) for span in spans]
    return torch.cat([positions, *parts]).unique()


class SpanStep:
    """One span in one step: the chances of classes at its positions, and the classes that are drawn for what is due.

    Where the model reads only what stands before a position (`one_way`), nothing is known yet of those after the due
    one, and in a text that is written in blocks of those after the block: they count as possible or not.
    """

    def __init__(self, trajectory: Trajectory, span: FormedSpan, due: Tensor, one_way: bool) -> None:
        automaton, start, stop = span
        self.trajectory, self.automaton, self.start = trajectory, automaton, start
        self.due = np.sort(due.numpy()) - start
        self.due = self.due[(self.due >= 0) & (self.due < stop - start)]
        self.choice = trajectory.choice(trajectory.request.choice)
        canvas, seen = trajectory.whole().numpy()[start:stop], trajectory.canvas[start:stop]
        unwritten = canvas == trajectory.vocab.mask
        unwritten[: len(seen)] |= trajectory.open.numpy()[start:stop]
        unwritten[self.due] = True
        self.known = self.due if one_way else np.flatnonzero(unwritten[: len(seen)])  # what the network says of them
        weights = np.full((stop - start, automaton.n_classes), NEVER)
        classes = automaton.classes[canvas]
        weights[classes >= 0, classes[classes >= 0]] = 0.0  # given tokens
        weights[unwritten] = 0.0
        self.largest = unwritten
        self.largest[self.known] = self.choice.temperature == 0
        self.weights = weights
        self.unfiltered = weights.copy() if _filters(self.choice) else weights  # in case a filter leaves nothing
        self.classes = np.full(stop - start, -1)
        self.log_chance = 0.0

    @property
    def group(self) -> Group:
        """Steps of a group are computed together."""
        return self.automaton, self.choice

    def draw(self, after: np.ndarray) -> bool:
        """Draw the classes of what is due, given backward sums (n + 1, Q); False if nothing fits."""
        self.log_chance = float(after[0, 0])
        trajectory = self.trajectory
        if math.isnan(self.log_chance) or np.isnan(self.weights).any():
            raise UserError(
                f"step {trajectory.step} cannot be written: the network gave NaN; check the weights of the model"
            )
        if self.log_chance == NEVER:
            return False
        upto, greedy = int(self.due[-1]) + 1, self.choice.temperature == 0
        uniform = trajectory.key.uniform("constraint", [trajectory.calls], self.start + upto)[0].numpy()
        drawn = chain.draw(self.automaton, self.weights, after, uniform[self.start :], upto, greedy)
        self.classes[self.due] = drawn[self.due]
        self.weights = self.weights.copy()
        self.weights[self.due] = NEVER
        self.weights[self.due, drawn[self.due]] = 0.0
        return True

    def weigh(self, after: np.ndarray) -> None:
        """Add this step to the weight of the run, given backward sums after it."""
        trajectory, ahead = self.trajectory, float(after[0, 0])
        trajectory.ahead[self.start] = ahead
        trajectory.log_weight += self.log_chance - ahead

    def without_filters(self) -> None:
        """Draw this step without top-k, top-p and min-p, as they left nothing that fits: of no weight under them."""
        self.weights, self.choice = self.unfiltered, Choice(self.choice.temperature)
        self.trajectory.log_weight = NEVER


def _filters(choice: Choice) -> bool:
    return choice.temperature != 0 and (choice.top_k, choice.top_p, choice.min_p) != (None, None, None)


def add_rows(owners: Sequence[tuple[SpanStep, np.ndarray]], log_x: Tensor) -> None:
    """Give steps the distributions (N, V) of some of their known positions, in order."""
    ends = np.cumsum([len(at) for _, at in owners])
    groups: dict[Group, list[int]] = {}
    for number, (step, _) in enumerate(owners):
        groups.setdefault(step.group, []).append(number)
    for (automaton, choice), numbers in groups.items():
        which = np.concatenate([np.arange(ends[i] - len(owners[i][1]), ends[i]) for i in numbers])
        rows = log_x if len(which) == len(log_x) else log_x[torch.from_numpy(which).to(log_x.device)]
        sums = _chances(automaton, choice, rows)
        plain = _chances(automaton, Choice(choice.temperature), rows) if _filters(choice) else sums
        begin = 0
        for step, at in (owners[i] for i in numbers):
            step.weights[at] = sums[begin : begin + len(at)]
            step.unfiltered[at] = plain[begin : begin + len(at)]
            begin += len(at)


def _chances(automaton: TokenAutomaton, choice: Choice, rows: Tensor) -> np.ndarray:
    if choice.temperature == 0:
        return automaton.best(rows)
    return automaton.weights(rows if choice == Choice() else torch.log_softmax(choice.filtered(rows), -1))


def draw_tokens(owners: Sequence[tuple[SpanStep, np.ndarray]], log_x: Tensor, uniform: Tensor) -> Tensor:
    """(N,) tokens for rows (N, V) of due positions, each out of the class that its step drew."""
    tokens = torch.empty(len(log_x), dtype=torch.int64)
    groups: dict[Group, list[tuple[np.ndarray, np.ndarray]]] = {}
    begin = 0
    for step, at in owners:
        rows = np.arange(begin, begin + len(at))
        groups.setdefault(step.group, []).append((rows, step.classes[at]))
        begin += len(at)
    for (automaton, choice), members in groups.items():
        which = torch.from_numpy(np.concatenate([rows for rows, _ in members]))
        wanted = torch.from_numpy(np.concatenate([classes for _, classes in members])).to(log_x.device)
        classes = torch.from_numpy(automaton.classes).to(log_x.device)
        law, greedy = log_x[which.to(log_x.device)], choice.temperature == 0
        law = law if greedy else choice.filtered(law)
        law = law.masked_fill(classes != wanted[:, None], NEVER)
        tokens[which] = (law.argmax(-1) if greedy else categorical(law, uniform[which])).cpu()
    return tokens


def solve(steps: Sequence[SpanStep]) -> None:
    """Draw the classes of all steps and weigh them."""
    drawn: list[SpanStep] = []
    again: list[SpanStep] = []
    for step, after in _backward(steps):
        if _attempt(step, after, last=step.unfiltered is step.weights):
            drawn.append(step)
        elif step.trajectory.error is None:
            again.append(step)
    for step in again:
        step.without_filters()
    drawn += [step for step, after in _backward(again) if _attempt(step, after, last=True)]
    for step, after in _backward(drawn):
        step.weigh(after)


def _attempt(step: SpanStep, after: np.ndarray, last: bool) -> bool:
    """Whether something fits and was drawn."""
    trajectory = step.trajectory
    if trajectory.error is not None:
        return False
    try:
        if step.draw(after):
            return True
        if last:
            raise UserError(
                f"step {trajectory.step} leaves nothing that fits {step.automaton.name} from position {step.start} on: "
                "rules or a constrain function forbid what the constraint needs"
            )
    except UserError as error:  # it is this sequence that ends, and not the others of the batch
        trajectory.error = error
    return False


def _backward(steps: Sequence[SpanStep]) -> Iterator[tuple[SpanStep, np.ndarray]]:
    """Backward sums of all steps; those of one automaton with equally many positions are computed together."""
    groups: dict[tuple[TokenAutomaton, int, bytes], list[SpanStep]] = {}
    for step in steps:
        groups.setdefault((step.automaton, len(step.weights), step.largest.tobytes()), []).append(step)
    for (automaton, n, _), members in groups.items():
        size = max(1, SUMS_AT_ONCE // (n * (automaton.states + automaton.n_classes)))
        for begin in range(0, len(members), size):
            part = members[begin : begin + size]
            sums = chain.backward(automaton, np.stack([step.weights for step in part]), part[0].largest)
            yield from zip(part, sums, strict=True)
