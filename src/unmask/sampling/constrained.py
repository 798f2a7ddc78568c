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
from bisect import bisect_right
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..constraints import chain
from ..constraints.reach import ANY
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


class Impossible(UserError):
    """A span cannot be written; `number` counts those of a constraint."""

    number = 0


class FormedSpan(NamedTuple):
    """Positions `start` to `stop` of a canvas, given tokens among them, which must spell a text of an automaton."""

    automaton: TokenAutomaton
    start: int
    stop: int


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
        for number, span in enumerate(self.spans):
            try:
                _check_span(span, request, vocab, name)
            except Impossible as error:
                error.number = number
                raise


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
    what = f"the {n} token{'s' if n > 1 else ''} from position {start} on cannot be a text that fits {automaton.name}"
    stuck = int(np.flatnonzero(reached.any(1))[-1])
    if stuck < n:
        given = f"the given {name(int(request.canvas[start + stuck]))!r}" if not free[stuck] else "any token"
        raise Impossible(f"{what}: at position {start + stuck} {given} would be one too many or the wrong one")
    if not all(free):
        raise Impossible(f"{what}: they would end before the text is complete")
    every = chain.possible(automaton, np.ones((n + FARTHEST, automaton.n_classes), dtype=bool))
    fits = np.flatnonzero((every & automaton.accepting).any(1))
    near = sorted(fits[np.argsort(abs(fits - n), kind="stable")][:3].tolist())
    cure = f"; give it {' or '.join(map(str, near))} tokens" if near and n not in near else "; check what is banned"
    raise Impossible(what + (cure if near else f"; it takes at least {automaton.shortest} tokens"))


def _allowed(rules: Rules, position: int, vocab: Vocab) -> np.ndarray:
    """The tokens that rules allow at a position."""
    tokens = np.ones(vocab.size, dtype=bool)
    if position in rules.allowed:
        tokens[:] = False
        tokens[list(rules.allowed[position])] = True
    tokens[[vocab.mask, *rules.forbidden_at(position, vocab)]] = False
    return np.flatnonzero(tokens)


class Part(NamedTuple):
    """Positions of a span whose law, given all tokens so far, does not depend on the others.

    The automaton is in one state before them, and in those of `ends` (a number, as in `constraints.reach`) after them.
    Some positions in the middle may be a part of their own: here they have classes that could be theirs, as if given.
    """

    span: FormedSpan
    start: int  # in the canvas
    state: int
    ends: int
    classes: np.ndarray  # (n,): of each position, or `ANY`


def parts(trajectory: Trajectory, due: np.ndarray, one_way: bool, whole: bool = False) -> list[Part]:
    """The parts that hold positions that are due; `whole`: as if nothing in the middle were a part of its own."""
    constraint = trajectory.request.constraint
    if constraint is None or trajectory.in_turn:
        return []
    whole = whole or one_way or not trajectory.cuts_spans
    return [
        part
        for span in constraint.spans
        if ((due >= span.start) & (due < span.stop)).any()
        for outer in _outer_parts(trajectory, span, due, one_way)
        for part in ([outer] if whole else _inner_parts(outer, due))
    ]


def _outer_parts(trajectory: Trajectory, span: FormedSpan, due: np.ndarray, one_way: bool) -> list[Part]:
    """The parts of a span that hold positions that are due, from left to right.

    A span is cut where only one state is possible. It also ends where the network has said nothing of what follows: in
    a text that is written in blocks after the block, and where the model reads only what stands before a position
    (`one_way`) after that position. There all states count alike from which the text can be completed.
    """
    automaton, start, stop = span
    classes = np.where(
        _unwritten(trajectory, span, due), ANY, automaton.classes[trajectory.whole().numpy()[start:stop]]
    )
    sets = automaton.reach.along(classes.tolist())
    seen = len(trajectory.canvas[start:stop])
    cuts = [i for i in range(1, seen) if sets[i].bit_count() == 1] if trajectory.cuts_spans else []
    if one_way:
        cuts = sorted({*cuts, *(due - start).tolist(), *(due - start + 1).tolist()} - {0, seen})
    bounds = [0, *cuts, seen]
    result = []
    for at in sorted({bisect_right(bounds, i) - 1 for i in (due - start).tolist() if 0 <= i < stop - start}):
        begin, end = bounds[at], bounds[at + 1]
        state = sets[begin].bit_length() - 1
        result.append(Part(span, start + begin, max(0, state), sets[end], classes[begin:end]))
    return result


def _inner_parts(part: Part, due: np.ndarray) -> list[Part]:
    """The stretches with due positions, each a part of its own, and what is left, if anything is due there."""
    span, start, state, ends, classes = part
    reach = span.automaton.reach
    open_at = due[(due >= start) & (due < start + len(classes))] - start
    result, left = [], classes.copy()
    for stretch in reach.stretches(classes.tolist(), reach.along(classes.tolist(), 1 << state, ends)):
        inside = slice(stretch.start, stretch.stop)
        left[inside] = stretch.classes
        if ((open_at >= stretch.start) & (open_at < stretch.stop)).any():
            result.append(Part(span, start + stretch.start, stretch.state, 1 << stretch.end, classes[inside]))
    if (left[open_at] == ANY).any():
        result.append(Part(span, start, state, ends, left))
    return result


def _unwritten(trajectory: Trajectory, span: FormedSpan, due: np.ndarray) -> np.ndarray:
    """(stop - start,) bool: the positions of a span whose tokens are not known yet."""
    _, start, stop = span
    result = trajectory.whole().numpy()[start:stop] == trajectory.vocab.mask
    left = trajectory.open.numpy()[start:stop]
    result[: len(left)] |= left
    result[due[(due >= start) & (due < stop)] - start] = True
    return result


def needed(positions: Tensor, parts_of: Sequence[Part]) -> Tensor:
    """The positions whose distributions a step needs, given those that it scores or writes and their parts."""
    if not parts_of:
        return positions
    inside = [torch.from_numpy(part.start + np.flatnonzero(part.classes == ANY)) for part in parts_of]
    return torch.cat([positions, *inside]).unique()


class Guide:
    """Writing from left to right under a constraint, by a model that does not see what follows: no dead ends.

    It knows the canvas `known`, which is written while it is asked from left to right; [MASK] there may be any token.
    """

    def __init__(self, constraint: Constraint, known: Tensor, mask: int) -> None:
        self.known, self.mask = known, mask
        self._at = {span: (span.start, 1) for span in constraint.spans}  # by span: up to where it was read, the state

    def chances(self, places: Tensor, weights: Tensor, choice: Choice) -> tuple[Tensor, float]:
        """(n, V) float64: what tokens are drawn from, given log weights (n, V); the log chance that they fit.

        Where filters leave nothing that fits it is without them, and that chance is 0.
        """
        each = [self._chances(place, row, choice) for place, row in zip(places.tolist(), weights.split(1), strict=True)]
        return torch.cat([chances for chances, _ in each]), sum(fits for _, fits in each)

    def _chances(self, place: int, weights: Tensor, choice: Choice) -> tuple[Tensor, float]:
        allowed = self._allowed(place, weights.device)
        if allowed is None:
            return choice.chances(weights), 0.0
        law = weights if choice.temperature == 0 else choice.filtered(weights)
        fits, lost = law.masked_fill(~allowed, NEVER), False
        if torch.isneginf(fits).all() and _filters(choice):
            law, lost = Choice(choice.temperature).filtered(weights), True
            fits = law.masked_fill(~allowed, NEVER)
        if torch.isneginf(fits).all():
            raise UserError(f"the constraint leaves no token to write at position {place}: rules forbid what it needs")
        if choice.temperature == 0:
            return choice.chances(fits), 0.0
        log_chance = float(fits.double().logsumexp(-1) - law.double().logsumexp(-1))
        return torch.softmax(fits.double(), -1), NEVER if lost else log_chance

    def _allowed(self, place: int, device: torch.device) -> Tensor | None:
        """(V,) bool: the tokens after which the span of a place can be completed; None: it is in none."""
        for span, (read, state) in self._at.items():
            if not span.start <= place < span.stop:
                continue
            automaton, reach = span.automaton, span.automaton.reach
            for token in self.known[read:place].tolist():
                state = reach.step(state, ANY if token == self.mask else int(automaton.classes[token]), ahead=True)
            self._at[span] = place, state
            after = reach.members(reach.completable(span.stop - place - 1))
            leads = reach.members(state)[automaton.source] & after[automaton.target]
            classes = np.zeros(automaton.n_classes + 1, dtype=bool)  # the last: tokens that never fit
            classes[automaton.label[leads]] = True
            return torch.from_numpy(classes[automaton.classes]).to(device)
        return None


class SpanStep:
    """A part of a span in one step: the chances of classes at its positions, and the classes drawn for what is due."""

    def __init__(self, trajectory: Trajectory, part: Part, due: Tensor) -> None:
        automaton, n = part.span.automaton, len(part.classes)
        self.trajectory, self.automaton, self.start, self.span = trajectory, automaton, part.start, part.span.start
        self.state, self.end = part.state, np.where(automaton.reach.members(part.ends), 0.0, NEVER)
        self.open = part.classes == ANY  # (n,) bool: what the network says something of
        self.known = np.flatnonzero(self.open)
        self.due = np.sort(due.numpy()) - part.start
        self.due = self.due[(self.due >= 0) & (self.due < n)]
        self.due = self.due[self.open[self.due]]
        self.choice = trajectory.choice(trajectory.request.choice)
        self.weights = np.full((n, automaton.n_classes), NEVER)
        given = np.flatnonzero(~self.open)
        self.weights[given, part.classes[given]] = 0.0
        self.unfiltered = self.weights.copy() if _filters(self.choice) else self.weights  # if a filter leaves nothing
        self.classes = np.full(n, -1)
        self.log_chance = 0.0

    @property
    def group(self) -> Group:
        """Steps of a group are computed together."""
        return self.automaton, self.choice

    @property
    def upto(self) -> int:
        """The positions up to the last one that is due."""
        return int(self.due[-1]) + 1

    def draw(self, after: np.ndarray) -> bool:
        """Draw the classes of what is due, given backward sums (n + 1, Q); False if nothing fits."""
        self.log_chance = float(after[0, self.state])
        trajectory = self.trajectory
        if math.isnan(self.log_chance) or np.isnan(self.weights).any():
            raise UserError(
                f"step {trajectory.step} cannot be written: the network gave NaN; check the weights of the model"
            )
        if self.log_chance == NEVER:
            return False
        greedy = self.choice.temperature == 0
        uniform = trajectory.key.uniform("constraint", [trajectory.calls], self.start + self.upto)[0].numpy()
        drawn = chain.draw(
            self.automaton, self.weights, after, uniform[self.start :], self.upto, greedy, state=self.state
        )
        self.classes[self.due] = drawn[self.due]
        self.end = after[self.upto]
        self.weights = self.weights[: self.upto].copy()
        self.weights[self.due] = NEVER
        self.weights[self.due, drawn[self.due]] = 0.0
        return True

    def weigh(self, ahead: float) -> None:
        """Add this step to the weight of the run, given the log chance that what is left fits."""
        self.trajectory.ahead[self.span] = ahead
        self.trajectory.log_weight += self.log_chance - ahead

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
    return automaton.chances(rows if choice == Choice() else torch.log_softmax(choice.filtered(rows), -1))


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
    left = []
    for step in drawn:
        if len(step.due) == len(step.known):  # what follows is given
            step.weigh(0.0)
        else:
            left.append(step)
    for step, after in _backward(left):
        step.weigh(float(after[0, step.state]))


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
    groups: dict[tuple[TokenAutomaton, int, bool], list[SpanStep]] = {}
    for step in steps:
        groups.setdefault((step.automaton, len(step.weights), step.choice.temperature == 0), []).append(step)
    for (automaton, n, greedy), members in groups.items():
        size = max(1, SUMS_AT_ONCE // (n * (automaton.states + automaton.n_classes)))
        for begin in range(0, len(members), size):
            some = members[begin : begin + size]
            weights, ends = np.stack([step.weights for step in some]), np.stack([step.end for step in some])
            first = np.array([step.state for step in some])
            yield from zip(some, chain.backward(automaton, weights, greedy, ends, first), strict=True)
