"""Which states are possible between the positions of a span, whatever the network says.

Sets of states are whole numbers, state q the bit 2^q. Where a set follows from another and a class it is remembered,
so that after a few steps nothing but looking up is left. Where a single state is possible, what is before and what is
after do not depend on each other, and the span falls into parts.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

ANY = -1  # in place of a class: the position is open
MOST = 1 << 22  # bytes of the sets that are remembered


class Reach:
    """The sets before and after a position, for the transitions (E,) of an automaton."""

    def __init__(self, source: np.ndarray, label: np.ndarray, target: np.ndarray, accepting: np.ndarray) -> None:
        self.states, self.label = len(accepting), label
        self.accepting = self.number(accepting)
        self._ends = {True: (source, target), False: (target, source)}
        self._known: dict[tuple[bool, int, int], int] = {}

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
        return len(self._known) * (200 + self.states // 8)

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
            if self.nbytes > MOST:
                self._known = {}
            self._known[ahead, states, label] = known
        return known

    def along(self, classes: Sequence[int]) -> list[int]:
        """(n + 1): the states that are possible before each position and at the end, given classes or `ANY` of each."""
        first = [1]
        for label in classes:
            first.append(self.step(first[-1], label, ahead=True))
        state = first[-1] = first[-1] & self.accepting
        for i in range(len(classes) - 1, -1, -1):
            state = self.step(state, classes[i], ahead=False)
            first[i] = state = state & first[i]
        return first
