"""Many courses through one network: continuous batching.

Every round is one network call for all active sequences, each at its own time and with its own length, and the head on
the rows that are wanted, a chunk of rows at a time: no (B, L, V) tensor is ever made. A finished sequence makes room
for the next. Nothing here depends on who else is in the batch, so a sample does not either.
"""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from typing import Generic, TypeVar

import torch
from torch import Tensor

from ..process.keys import Keys
from ..types import State, UserError
from .choice import NEVER, Choice
from .rules import Rules
from .sampler import NOTHING, Denoiser, Sampler, Trajectory, stack

PLAIN = Choice()
Segments = list[tuple[int, Tensor]]  # sequences by their number, with positions of each
TOKENS_AT_ONCE = 2048  # that go through the network together on a CPU
PADDING = 128  # tokens of padding that go along with them: more than that costs more than another call
LOGITS_AT_ONCE = 2**25  # float32 logits held at a time (128 MiB)


@dataclass(frozen=True)
class Request:
    """A canvas and how it is to be written."""

    row: int  # its name in the states
    canvas: Tensor
    plan: Sampler
    key: Keys
    choice: Choice = PLAIN
    control: Rules | None = None
    label: int | None = None
    guidance: float = 1.0  # how far to go from the distribution without a label towards (and beyond) the one with it
    tops: int = 0  # alternatives to report for each written position
    target: Tensor | None = None  # replay: write these tokens instead of drawing any


@dataclass(frozen=True)
class Written:
    """What happened to rows of the head: (n,) tokens and log-probabilities, (n, m) alternatives."""

    tokens: Tensor
    log_probs: Tensor
    tops: Tensor
    top_probs: Tensor

    def part(self, start: int, stop: int) -> Written:
        """Some of the rows."""
        here = slice(start, stop)
        return Written(self.tokens[here], self.log_probs[here], self.tops[here], self.top_probs[here])

    def best(self, m: int) -> tuple[Tensor, Tensor] | None:
        """The m best alternatives of each row: a neighbour in the batch may have asked for more, or for none."""
        return (self.tops[:, :m], self.top_probs[:, :m]) if m else None


Way = TypeVar("Way")  # what is under way for a task


class _Places(Generic[Way]):
    """Tasks that wait, and those that are under way."""

    def __init__(self) -> None:
        self.waiting: deque[Request] = deque()
        self.active: list[tuple[Request, Way]] = []

    @property
    def busy(self) -> bool:
        """Whether anything is left to do."""
        return bool(self.waiting or self.active)

    def drop(self, row: int) -> None:
        """Forget a sequence, wherever it is."""
        self.waiting = deque(task for task in self.waiting if task.row != row)
        self.active = [(task, way) for task, way in self.active if task.row != row]


class Batcher(_Places[Trajectory]):
    """Tasks that wait, and courses that are under way.

    With a `share`, a round costs every sequence the same: it saves up so many tokens a round (or the median length, if
    that is more) and goes through the network when it has saved its length. So one long sequence among short ones does
    not make each of their rounds long. Without it all go every time.
    """

    def __init__(self, model: Denoiser, batch_size: int, share: int | None = None) -> None:
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        super().__init__()
        self.model, self.batch_size, self.share = model, batch_size, share
        self.saved: dict[int, int] = {}  # by row

    def add(self, task: Request) -> None:
        """Queue a task; what the model cannot do is said now."""
        task.plan.check(self.model)
        if task.guidance != 1 and task.label is None:
            raise UserError(f"guidance={task.guidance} needs a label to be guided by")
        if not math.isfinite(task.guidance):
            raise UserError(f"guidance={task.guidance} must be a finite number; 1 is the label's own distribution")
        if task.control is not None:
            task.control.check(task.canvas, self.model.vocab)
        self.waiting.append(task)

    def drop(self, row: int) -> None:
        """Forget a sequence, wherever it is."""
        super().drop(row)
        self.saved.pop(row, None)

    def round(self) -> list[tuple[State, Tensor]]:
        """One network call: new states of active sequences, and the log-probabilities of what was written."""
        states: list[tuple[State, Tensor]] = []
        while self.waiting and len(self.active) < self.batch_size:
            task = self.waiting.popleft()
            course = task.plan.course(task.canvas, self.model, task.key)
            if course.finished:  # nothing was masked
                nothing = torch.empty(0, dtype=torch.float64)
                written = (NOTHING, NOTHING, nothing.float())
                states.append(
                    (
                        State(
                            task.row, 0, course.t, *written, course.whole().clone(), 0, True, fixed=len(course.whole())
                        ),
                        nothing,
                    )
                )
            else:
                self.active.append((task, course))
        if self.active:
            with torch.no_grad():
                states += self._call(self._turn())
            for task, course in self.active:
                if course.finished:
                    self.saved.pop(task.row, None)
            self.active = [(task, course) for task, course in self.active if not course.finished]
        return states

    def _turn(self) -> list[tuple[Request, Trajectory]]:
        """The sequences that go through the network in this round."""
        if self.share is None:
            return self.active
        costs = [len(course.canvas) * (1 if task.guidance == 1 else 2) for task, course in self.active]
        share, chosen = max(self.share, sorted(costs)[(len(costs) - 1) // 2]), []
        for one, cost in zip(self.active, costs, strict=True):
            row = one[0].row
            self.saved[row] = min(self.saved.get(row, cost) + share, max(cost, share))  # a new one goes at once
            if self.saved[row] >= cost:
                self.saved[row] -= cost
                chosen.append(one)
        return chosen

    def _call(self, active: list[tuple[Request, Trajectory]]) -> list[tuple[State, Tensor]]:
        looks = [course.look() for _, course in active]
        wanted = [look if len(look) else course.due() for look, (_, course) in zip(looks, active, strict=True)]
        rows = _Rows(self.model, active, wanted)
        for (_, course), scores in zip(active, rows.scores(looks), strict=True):
            if scores is not None:
                course.choose(scores)
        due = [course.due() for _, course in active]
        result = []
        for (task, course), positions, written in zip(active, due, rows.written(due), strict=True):
            step, t = course.step, course.t
            course.calls += 1 if task.guidance == 1 else 2
            places, tokens = course.write(positions, written.tokens)
            probs = torch.zeros(len(places), dtype=torch.float32)  # what was re-masked comes last, with probability 0
            probs[: len(positions)] = written.log_probs.exp().float()
            state = State(
                task.row,
                step,
                t,
                places,
                tokens,
                probs,
                course.whole().clone(),
                course.calls,
                course.finished,
                written.best(task.tops),
                course.fixed(self.model.vocab.mask),
            )
            result.append((state, written.log_probs))
        return result


class SequentialBatcher(_Places[Iterator[State]]):
    """Tasks of a model that has no desk: one after another, and a round is the time to the next state."""

    def __init__(self, write: Callable[[Request], Iterator[State]]) -> None:
        super().__init__()
        self.write = write

    def add(self, task: Request) -> None:
        """Queue a task; what the model cannot do is said now."""
        self.write(task)  # nothing runs before its first state is asked for
        self.waiting.append(task)

    def round(self) -> list[tuple[State, Tensor]]:
        """The next state of the sequence that is under way."""
        if not self.active and self.waiting:
            task = self.waiting.popleft()
            self.active = [(task, self.write(task))]
        for task, states in self.active:
            state = next(states)
            if state.done:
                self.drop(task.row)
            return [(state, torch.empty(0, dtype=torch.float64))]
        return []


class _Rows:
    """The hidden states of one call, and the head on any rows of them, in chunks."""

    def __init__(self, model: Denoiser, active: list[tuple[Request, Trajectory]], wanted: Sequence[Tensor]) -> None:
        self.model, self.active = model, active
        guided = [i for i, (task, _) in enumerate(active) if task.guidance != 1]
        self.twin = torch.full((len(active),), -1)  # the row without a label, for those that are guided
        self.twin[guided] = torch.arange(len(active), len(active) + len(guided))
        courses = [course for _, course in active] + [active[i][1] for i in guided]
        z, present = stack([course.canvas for course in courses], model.vocab)
        t = torch.tensor([course.t for course in courses], dtype=torch.float64)
        label = None
        if any(task.label is not None for task, _ in active):
            label = torch.full((len(courses),), -1)
            for i, (task, _) in enumerate(active):
                label[i] = -1 if task.label is None else task.label
            label = label.to(model.device)
        queries = torch.nn.utils.rnn.pad_sequence([*wanted, *(wanted[i] for i in guided)], batch_first=True)
        if not queries.shape[1]:  # a textbook step after the last reveal: one column, as no network takes none
            queries = queries.new_zeros(len(courses), 1)
        self.slot = torch.zeros(len(active), z.shape[1], dtype=torch.int64)  # where a position is among those wanted
        for i, positions in enumerate(wanted):
            self.slot[i, positions] = torch.arange(len(positions))
        counts = [len(positions) for positions in wanted]
        counts += [counts[i] for i in guided]
        self.hidden = _hidden(model, z, t, present, label, queries, counts)
        self.at_once = max(1, LOGITS_AT_ONCE // model.vocab.size)

    def _chunks(self, wanted: Sequence[Tensor]) -> Iterator[tuple[Tensor, Tensor, Segments]]:
        """Positions of all sequences, a chunk at a time: whose each is, the positions, and the same by sequence."""
        which = torch.repeat_interleave(torch.arange(len(wanted)), torch.tensor([len(p) for p in wanted]))
        if not len(which):
            return
        for own, positions in zip(which.split(self.at_once), torch.cat(list(wanted)).split(self.at_once), strict=True):
            numbers, counts = own.unique_consecutive(return_counts=True)
            yield own, positions, list(zip(numbers.tolist(), positions.split(counts.tolist()), strict=True))

    def scores(self, looks: Sequence[Tensor]) -> list[Tensor | None]:
        """What each course makes of the positions that it looks at."""
        parts: list[list[Tensor]] = [[] for _ in looks]
        for which, positions, segments in self._chunks(looks):
            shaped = self._controlled(self._log_x(which, positions), segments, looking=True)
            for (i, _), rows in zip(segments, shaped.split([len(p) for _, p in segments]), strict=True):
                parts[i].append(self.active[i][1].score(rows).cpu())
        return [torch.cat(scores) if scores else None for scores in parts]

    def written(self, due: Sequence[Tensor]) -> list[Written]:
        """A token for every position that is due."""
        m = min(max(task.tops for task, _ in self.active), self.model.vocab.size - 1)
        none = torch.empty(0, m)
        parts = [Written(NOTHING, torch.empty(0, dtype=torch.float64), none.long(), none)]
        parts += [self._write(*chunk, m) for chunk in self._chunks(due)]
        whole = Written(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Written)))
        counts = [len(positions) for positions in due]
        ends = torch.tensor(counts).cumsum(0).tolist()
        return [whole.part(end - count, end) for count, end in zip(counts, ends, strict=True)]

    def _write(self, which: Tensor, positions: Tensor, segments: Segments, m: int) -> Written:
        """Tokens for one chunk of rows, which may belong to several sequences."""
        log_x = self._log_x(which, positions)
        log_x[:, self.model.vocab.mask] = NEVER  # never written, whatever mass the network gives it
        if not self.model.normalised:
            log_x = torch.log_softmax(log_x, -1)  # of a token that is written now
        shaped = self._controlled(log_x, segments)
        tokens, where = torch.empty(len(which), dtype=torch.int64), dict(segments)
        for choice, members in self._by_choice(segments).items():
            here = torch.isin(which, torch.tensor(members))
            uniform = torch.cat([self.active[i][1].uniform(where[i]) for i in members])
            rows = shaped if here.all() else shaped[here.to(shaped.device)]
            tokens[here] = choice.tokens(rows, uniform).cpu()
        replayed = torch.zeros(len(which), dtype=torch.bool)
        for i, p in segments:
            task, course = self.active[i]
            if task.target is not None:
                tokens[which == i] = task.target[course.place(p)]
                replayed |= which == i
        law = log_x
        if replayed.any():  # the likelihood of a replay is that of the text under its rules
            law = torch.where(replayed.to(log_x.device)[:, None], shaped, log_x)
        log_probs = law.gather(-1, tokens.to(law.device)[:, None]).squeeze(-1).double().cpu()
        best = log_x.topk(m, dim=-1)
        return Written(tokens, log_probs, best.indices.cpu(), best.values.exp().cpu())

    def _by_choice(self, segments: Segments) -> dict[Choice, list[int]]:
        """Sequences that draw their tokens the same way (a replay draws none)."""
        groups: dict[Choice, list[int]] = {}
        for i, _ in segments:
            task, course = self.active[i]
            if task.target is None:
                groups.setdefault(course.choice(task.choice), []).append(i)
        return groups

    def _log_x(self, which: Tensor, positions: Tensor) -> Tensor:
        """Log x̂ (N, V) of positions of sequences, guided where that was asked for."""
        device = self.hidden.device
        slots = self.slot[which, positions].to(device)
        log_x = self.model.log_x(self.hidden[which.to(device), slots])
        twin = self.twin[which]
        guided = torch.nonzero(twin >= 0).squeeze(-1)
        if not len(guided):
            return log_x
        plain = self.model.log_x(self.hidden[twin[guided].to(device), slots[guided.to(device)]])
        scale = torch.tensor([self.active[int(i)][0].guidance for i in which[guided]], device=device)[:, None]
        own = log_x[guided.to(device)]
        mixed = torch.where(torch.isneginf(own), own, plain + scale * (own - plain))
        log_x = log_x.clone()
        log_x[guided.to(device)] = torch.log_softmax(mixed, -1)
        return log_x

    def _controlled(self, log_x: Tensor, segments: Segments, looking: bool = False) -> Tensor:
        """The same rows under the rules of their sequences; rows are in the order of the segments."""
        if all(task.control is None for task, _ in self.active):
            return log_x
        out, start = [], 0
        for i, positions in segments:
            task, course = self.active[i]
            rows = log_x[start : start + len(positions)]
            start += len(positions)
            if task.control is not None and (course.ruled or not looking):
                rows = task.control(rows, course.place(positions), course.whole(), self.model.vocab)
            out.append(rows)
        return torch.cat(out)


def _hidden(
    model: Denoiser,
    z: Tensor,
    t: Tensor,
    present: Tensor | None,
    label: Tensor | None,
    queries: Tensor,
    counts: Sequence[int],
) -> Tensor:
    """One network call; on a CPU a few rows at a time, so that what is between two layers stays in its caches.

    There rows of like lengths go together, each part as wide as its longest row: padding costs as much as text.
    """
    device = model.device
    if device.type != "cpu":
        return model.hidden(z.to(device), t, present, label, queries.to(device))
    lengths = torch.full((len(z),), z.shape[1]) if present is None else present.sum(1)
    order = torch.arange(len(z)) if present is None else lengths.argsort(stable=True)
    hidden: Tensor | None = None
    for rows in _parts(order.tolist(), lengths.tolist()):
        width, looks = int(lengths[rows].max()), max(1, *(counts[i] for i in rows))
        if len(rows) == len(z):
            rows = list(range(len(z)))  # no copy, and no other order than without padding
        here = slice(None) if len(rows) == len(z) else torch.tensor(rows)
        there = None if present is None or (lengths[rows] == width).all() else present[here, :width]
        part = model.hidden(
            z[here, :width], t[here], there, None if label is None else label[here], queries[here, :looks]
        )
        if len(rows) == len(z):
            return part
        if hidden is None:
            hidden = part.new_zeros(len(z), queries.shape[1], part.shape[-1])
        hidden[here, :looks] = part
    assert hidden is not None
    return hidden


def _parts(order: Sequence[int], lengths: Sequence[int]) -> Iterator[list[int]]:
    """Rows in this order, from the shortest on: a part has at most `TOKENS_AT_ONCE` tokens and `PADDING` of padding."""
    rows: list[int] = []
    padding = 0
    for row in order:
        more = len(rows) * (lengths[row] - lengths[rows[-1]]) if rows else 0
        if rows and (padding + more > PADDING or (len(rows) + 1) * lengths[row] > TOKENS_AT_ONCE):
            yield rows
            rows, padding, more = [], 0, 0
        rows.append(row)
        padding += more
    if rows:
        yield rows


def run(
    model: Denoiser, tasks: Iterable[Request], batch_size: int, until: Callable[[State], bool] | None = None
) -> Iterator[State]:
    """States of all tasks as they come; a sequence for which `until` is true is done."""
    desk = Batcher(model, batch_size)
    for task in tasks:
        desk.add(task)
    while desk.busy:
        for state, _ in desk.round():
            if until is not None and not state.done and until(state):
                desk.drop(state.row)
                state = replace(state, done=True)
            yield state


def replay(
    model: Denoiser,
    canvases: Sequence[Tensor],
    targets: Sequence[Tensor],
    plan: Sampler,
    keys: Sequence[Keys],
    batch_size: int = 16,
    control: Rules | None = None,
    labels: Sequence[int] | None = None,
) -> list[Tensor]:
    """Follow a plan, but write the tokens of `targets`: (L,) float64 log-probability of each, 0 where it was given.

    The sum is log p(target | the plan's order). Where the order depends on nothing but what the network says, that is
    the exact log-likelihood of the plan; under rules, that of the plan under them.
    """
    desk = Batcher(model, batch_size)
    result = [torch.zeros(len(canvas), dtype=torch.float64) for canvas in canvases]
    for row, (canvas, target, key) in enumerate(zip(canvases, targets, keys, strict=True)):
        _check_target(row, canvas, target, model.vocab.mask)
        label = None if labels is None else labels[row]
        desk.add(Request(row, canvas, plan, key, control=control, label=label, target=target))
    while desk.busy:
        for state, log_probs in desk.round():
            result[state.row][state.positions[: len(log_probs)]] = log_probs
    return result


def _check_target(row: int, canvas: Tensor, target: Tensor, mask: int) -> None:
    if canvas.shape != target.shape:
        raise UserError(f"target {row} has {len(target)} tokens, but its canvas has {len(canvas)}")
    if (target == mask).any():
        raise UserError(f"target {row} holds [MASK], which no plan ever writes")
    if (off := torch.nonzero((canvas != mask) & (canvas != target))).numel():
        raise UserError(f"target {row} differs from its canvas at position {int(off[0])}, where the token is given")
