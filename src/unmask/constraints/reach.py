"""Which states are possible between the positions of a span, whatever the network says.

Sets of states are whole numbers, state q the bit 2^q. Where a set follows from another and a class it is remembered,
so that after a few steps nothing but looking up is left. Where a single state is possible, what is before and what is
after do not depend on each other, and the span falls into parts.

More often several states are possible that no open position nearby can tell apart: inside a JSON string, whichever of
its strings it is. A *stretch* is a run of positions that the same classes can fill whatever the state before it, after
which the state follows from that one alone. Then what is inside and what is outside do not depend on each other.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

ANY = -1  # in place of a class: the position is open
MOST = 1 << 22  # bytes of the sets that are remembered
STATES = 16  # that are possible before a stretch, at most: with more of them some position nearly always differs
WAYS = 64  # in which these states may lead on together, at most
FARTHEST = 64  # positions of a stretch, at most
States = tuple[int, ...]
Ways = dict[States, tuple[States, int]]  # what states become together: from which ones, by which class


class Stretch(NamedTuple):
    """Positions `start` to `stop`, filled by the same classes from any state before them; `state` leads to `end`."""

    start: int
    stop: int
    state: int
    end: int
    classes: list[int]  # one way to fill it


class Reach:
    """The sets before and after a position, for the transitions (E,) of an automaton."""

    def __init__(self, source: np.ndarray, label: np.ndarray, target: np.ndarray, accepting: np.ndarray) -> None:
        self.states, self.label = len(accepting), label
        self.accepting = self.number(accepting)
        self._ends = {True: (source, target), False: (target, source)}
        self._first = np.searchsorted(source, np.arange(self.states + 1))
        self._known: dict[tuple[bool, int, int], int] = {}
        self._ways: dict[tuple[tuple[States, ...], int, int], tuple[tuple[States, ...], Ways] | None] = {}
        self._held = 0  # bytes of `_ways`
        self._completable = [self.accepting]

    @staticmethod
    def number(states: np.ndarray) -> int:
        """A set (Q,) bool as a number."""
        return int.from_bytes(np.packbits(states, bitorder="little").tobytes(), "little")

    def members(self, number: int) -> np.ndarray:
        """The set (Q,) bool of a number."""
        packed = np.frombuffer(number.to_bytes(-(-self.states // 8), "little"), dtype=np.uint8)
        return np.unpackbits(packed, bitorder="little")[: self.states].astype(bool)

    @property
    def nbytes(self) -> int:
        """About the memory that it takes."""
        return self._remembered + len(self._completable) * (50 + self.states // 8)

    @property
    def _remembered(self) -> int:
        return len(self._known) * (200 + self.states // 8) + self._held

    def step(self, states: int, label: int, ahead: bool) -> int:
        """The states that a class leads to from one of these, or (not `ahead`) from which it leads to one of them."""
        known = self._known.get((ahead, states, label))
        if known is None:
            start, end = self._ends[ahead]
            leads = self.members(states)[start]
            if label != ANY:
                leads &= self.label == label
            reached = np.zeros(self.states, dtype=bool)
            reached[end[leads]] = True
            known = self.number(reached)
            self._make_room()
            self._known[ahead, states, label] = known
        return known

    def _make_room(self) -> None:
        if self._remembered > MOST:
            self._known, self._ways, self._held = {}, {}, 0

    def completable(self, n: int) -> int:
        """The states from which n open positions can be filled."""
        sets = self._completable
        while len(sets) <= n and (len(sets) < 2 or sets[-1] != sets[-2]):  # from then on they are the same
            sets.append(self.step(sets[-1], ANY, ahead=False))
        return sets[min(n, len(sets) - 1)]

    def along(self, classes: Sequence[int], first: int = 1, last: int | None = None) -> list[int]:
        """(n + 1): the states that are possible before each position and at the end, given classes or `ANY` of each.

        It begins in a state of `first` and ends in one of `last`, else in an accepting one.
        """
        sets = [first]
        for label in classes:
            sets.append(self.step(sets[-1], label, ahead=True))
        state = sets[-1] = sets[-1] & (self.accepting if last is None else last)
        for i in range(len(classes) - 1, -1, -1):
            state = self.step(state, classes[i], ahead=False)
            sets[i] = state = state & sets[i]
        return sets

    def stretches(self, classes: Sequence[int], sets: Sequence[int]) -> list[Stretch]:
        """The stretches with an open position, given what `along` says; each as short as can be, from left to right."""
        result, i = [], 0
        while i < len(classes):
            if (
                classes[i] == ANY
                and 2 <= sets[i].bit_count() <= STATES
                and (stretch := self._stretch(classes, sets, i))
            ):
                result.append(stretch)
                i = stretch.stop
            else:
                i += 1
        return result

    def _stretch(self, classes: Sequence[int], sets: Sequence[int], start: int) -> Stretch | None:
        """The stretch that begins at a position, or None."""
        together: tuple[States, ...] = (tuple(np.flatnonzero(self.members(sets[start])).tolist()),)
        state, passed = together[0][0], []
        for i in range(start, min(len(classes), start + FARTHEST)):
            if (led := self._led(together, classes[i], sets[i + 1])) is None:
                return None
            together, ways = led
            passed.append(ways)
            if len(together) == 1:
                labels, at = [], together[0]
                for ways in reversed(passed):
                    at, label = ways[at]
                    labels.append(label)
                return Stretch(start, i + 1, state, together[0][0], labels[::-1])
        return None

    def _led(self, together: tuple[States, ...], label: int, after: int) -> tuple[tuple[States, ...], Ways] | None:
        """What states become together after a position, if the same classes lead on from all of them; else None."""
        key = together, label, after
        if key not in self._ways:
            ways = self._ways_on(together, label, self.members(after))
            self._make_room()
            self._ways[key] = None if ways is None else (tuple(ways), ways)
            self._held += 300 + 100 * sum(map(len, together)) + (100 * len(ways) * len(together[0]) if ways else 0)
        return self._ways[key]

    def _ways_on(self, together: tuple[States, ...], label: int, after: np.ndarray) -> Ways | None:
        ways: Ways = {}
        for states in together:
            (labels, first), *others = (self._moves(state, label, after) for state in states)
            if any(not np.array_equal(labels, same) for same, _ in others):
                return None
            targets = np.stack([first, *(target for _, target in others)], axis=1)
            for led, by in zip(targets.tolist(), labels.tolist(), strict=True):
                ways.setdefault(tuple(led), (states, by))
            if len(ways) > WAYS:
                return None
        return ways

    def _moves(self, state: int, label: int, after: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """The classes in order that lead from a state to one of those after, and where each leads."""
        edges = slice(self._first[state], self._first[state + 1])
        labels, targets = self.label[edges], self._ends[True][1][edges]
        kept = after[targets] if label == ANY else after[targets] & (labels == label)
        order = np.argsort(labels[kept])
        return labels[kept][order], targets[kept][order]
