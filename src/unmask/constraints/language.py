"""Sets of texts as automata over bytes: from an expression to the smallest deterministic automaton.

An expression is a tree of five kinds of nodes; `regexes.py`, `json_schemas.py` and `motifs.py` write such trees.
Characters become UTF-8. A state is dead if no text of the language can be reached from it; dead states are left out.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from ..errors import UserError
from .recent import recent

MOST_STATES = 20_000  # of a deterministic automaton
MOST_PARTS = 200_000  # states of the automaton that it is made from
MOST_ARCS = 1_000_000  # between these, and expressions that were added
MOST_MEMBERS = 4_000_000  # of the sets of states that are made on the way
MOST_COMPARED = 400_000_000  # transitions that are compared to merge equal states
LAST = 0x10FFFF
SURROGATES = (0xD800, 0xDFFF)  # which UTF-8 does not have
NO_STATE = -1

Ranges = tuple[tuple[int, int], ...]


class Chars(NamedTuple):
    """One character out of ranges of code points, in order and without overlap."""

    ranges: Ranges


class Then(NamedTuple):
    """Parts one after the other; none: the empty text."""

    parts: tuple[Node, ...]


class Either(NamedTuple):
    """One of several options; none: no text at all."""

    options: tuple[Node, ...]


class Times(NamedTuple):
    """A part `least` to `most` times (None: any number of times), with something between."""

    part: Node
    least: int
    most: int | None
    between: Node = Then(())


class At(NamedTuple):
    """Nothing, at the beginning of the text or at its end."""

    end: bool


Node = Chars | Then | Either | Times | At


def literal(text: str) -> Node:
    """Exactly this text."""
    return Then(tuple(Chars(((ord(character), ord(character)),)) for character in text))


def outside(ranges: Ranges) -> Ranges:
    """All other characters."""
    result, at = [], 0
    for low, high in merged((*ranges, SURROGATES)):
        if at < low:
            result.append((at, low - 1))
        at = high + 1
    return (*result, *(((at, LAST),) if at <= LAST else ()))


def merged(ranges: Sequence[tuple[int, int]]) -> Ranges:
    """The same characters in order and without overlap."""
    result: list[tuple[int, int]] = []
    for low, high in sorted(ranges):
        if result and low <= result[-1][1] + 1:
            result[-1] = (result[-1][0], max(high, result[-1][1]))
        else:
            result.append((low, high))
    return tuple(result)


@dataclass(frozen=True, eq=False)
class Language:
    """A set of texts: the smallest automaton over their bytes. State 0 is the first; no state is dead."""

    delta: np.ndarray  # (states, 256) int32: the next state, or -1
    accepting: np.ndarray  # (states,) bool
    source: str  # how a user wrote it, for messages and protocols

    def __repr__(self) -> str:
        return f"Language({self.source}, {len(self.delta)} states)"

    def __contains__(self, text: str) -> bool:
        state = 0
        for byte in text.encode("utf-8", "surrogatepass"):
            state = int(self.delta[state, byte])
            if state == NO_STATE:
                return False
        return bool(self.accepting[state])

    def __and__(self, other: Language) -> Language:
        """The texts of both."""
        width = len(other.delta)
        numbers, order, rows = {0: 0}, [0], []
        for pair in order:  # which grows
            a, b = self.delta[pair // width], other.delta[pair % width]
            row = np.where((a >= 0) & (b >= 0), a.astype(np.int64) * width + b, NO_STATE)
            for target in np.unique(row[row >= 0]).tolist():
                if target not in numbers:
                    numbers[target] = len(order)
                    order.append(target)
            _check_states(len(order))
            rows.append(row)
        pairs, targets = np.array(order), np.stack(rows)
        sorter = np.argsort(pairs)
        delta = np.where(targets >= 0, sorter[np.searchsorted(pairs, targets, sorter=sorter)], NO_STATE)
        accepting = self.accepting[pairs // width] & other.accepting[pairs % width]
        return smallest(delta, accepting, f"{self.source} & {other.source}")

    @property
    def nbytes(self) -> int:
        """The memory that it takes."""
        return self.delta.nbytes + self.accepting.nbytes

    @property
    def after_space(self) -> Language:
        """The texts whose rest, after one space if they begin with one, is a text of this language."""
        return _after_space(self)


@recent
def _after_space(language: Language) -> Language:
    old = language.delta
    first = np.where(old[0] >= 0, old[0] + 1, NO_STATE)
    first[ord(" ")] = 1
    delta = np.concatenate([first[None], np.where(old >= 0, old + 1, NO_STATE)])
    return smallest(delta, np.concatenate([language.accepting[:1], language.accepting]), language.source)


def compiled(node: Node, source: str) -> Language:
    """The language of an expression; one that would take long or much memory is refused on the way."""
    parts = _Parts()
    first = parts.new()
    try:
        last = parts.add(node, first)
    except RecursionError:
        raise UserError("the constraint is nested too deeply; flatten it") from None
    return parts.determined(first, last, source)


def choices(texts: Sequence[str]) -> Language:
    """These texts and no others."""
    if isinstance(texts, str) or not texts or not all(isinstance(text, str) for text in texts):
        raise UserError("choices are a list of at least one text")
    return _chosen(tuple(dict.fromkeys(texts)))


@recent
def _chosen(texts: tuple[str, ...]) -> Language:
    shown = ", ".join(map(repr, texts[:5])) + (f" and {len(texts) - 5} more" if len(texts) > 5 else "")
    return compiled(Either(tuple(map(literal, texts))), f"one of {shown}")


def _check_states(number: int) -> None:
    if number > MOST_STATES:
        raise UserError(
            f"the constraint needs more than {MOST_STATES:,} states; use smaller numbers of repetitions, or * in "
            "place of a large one"
        )


def _check_members(number: int) -> None:
    if number > MOST_MEMBERS:
        raise UserError(
            "the constraint can be read in too many ways at once; use smaller numbers of repetitions, and fewer "
            "repetitions inside each other"
        )


class _Parts:
    """A nondeterministic automaton: bytes lead from state to state, and so does nothing, anywhere or at an end."""

    def __init__(self) -> None:
        self.bytes: list[list[tuple[int, int, int]]] = []  # of each state: (lowest byte, highest, next state)
        self.jumps: list[list[int]] = []
        self.at_start: dict[int, list[int]] = {}
        self.at_end: dict[int, list[int]] = {}
        self.arcs = self.members = 0  # how much was made

    def new(self) -> int:
        self._count(1)
        if len(self.bytes) >= MOST_PARTS:
            self._count(MOST_ARCS)
        self.bytes.append([])
        self.jumps.append([])
        return len(self.bytes) - 1

    def add(self, node: Node, first: int) -> int:
        """Add an expression behind a state; returns the state after it."""
        self._count(1)
        match node:
            case Chars():
                return self._chars(node.ranges, first)
            case Then():
                for part in node.parts:
                    first = self.add(part, first)
                return first
            case Either():
                last = self.new()
                for option in node.options:
                    begin = self.new()
                    self.jumps[first].append(begin)
                    self.jumps[self.add(option, begin)].append(last)
                return last
            case Times():
                return self._times(node, first)
            case At():
                last = self.new()
                (self.at_end if node.end else self.at_start).setdefault(first, []).append(last)
                return last

    def _count(self, arcs: int) -> None:
        self.arcs += arcs
        if self.arcs > MOST_ARCS:
            raise UserError("the constraint repeats too much; use smaller numbers of repetitions, or * in their place")

    def _times(self, node: Times, first: int) -> int:
        part, least, most, between = node
        for i in range(least if most is not None else max(least - 1, 0)):
            first = self.add(part, self.add(between, first) if i else first)
        last = self.new()
        if most is None:  # the last copy is a loop
            if not least:
                self.jumps[first].append(last)
            begin = self.new()
            self.jumps[self.add(between, first) if least > 1 else first].append(begin)
            end = self.add(part, begin)
            self.jumps[end].append(last)
            self.jumps[self.add(between, end)].append(begin)
            return last
        for i in range(least, most):
            self.jumps[first].append(last)
            begin = self.new()
            self.jumps[first].append(begin)
            first = self.add(part, self.add(between, begin) if i else begin)
        self.jumps[first].append(last)
        return last

    def _chars(self, ranges: Ranges, first: int) -> int:
        last = self.new()
        states: dict[Ranges, int] = {(): last}
        leads, rests = _endings(ranges)
        self._count(len(leads) + len(rests))
        for rest, following in rests:
            states[rest] = self.new()
            self.bytes[states[rest]].append((*rest[0], states[following]))
        self.bytes[first] += [(*lead, states[rest]) for lead, rest in leads]
        return last

    def _closure(self, states: frozenset[int], start: bool = False, end: bool = False) -> frozenset[int]:
        """With all states that nothing leads to."""
        reached, left = set(states), list(states)
        while left:
            state = left.pop()
            following = self.jumps[state]
            if start and state in self.at_start:
                following = following + self.at_start[state]
            if end and state in self.at_end:
                following = following + self.at_end[state]
            for other in following:
                if other not in reached:
                    reached.add(other)
                    left.append(other)
            self.members += 1 + len(following)
            _check_members(self.members)
        return frozenset(reached)

    def determined(self, first: int, last: int, source: str) -> Language:
        """The deterministic automaton, by sets of states."""
        cuts = sorted({0, 256, *(cut for arcs in self.bytes for low, high, _ in arcs for cut in (low, high + 1))})
        segment = np.repeat(np.arange(len(cuts) - 1), np.diff(cuts)).tolist()  # (256,): bytes that no arc tells apart
        arcs = [[(segment[low], segment[high] + 1, target) for low, high, target in arcs] for arcs in self.bytes]
        begin = self._closure(frozenset([first]), start=True)
        numbers: dict[tuple[frozenset[int], bool], int] = {(begin, True): 0}
        order, rows, accepting = [(begin, True)], [], []
        closures: dict[frozenset[int], frozenset[int]] = {}
        for states, is_first in order:  # which grows
            accepting.append(last in self._closure(states, start=is_first, end=True))
            targets: list[set[int]] = [set() for _ in range(len(cuts) - 1)]
            for state in states:
                for low, high, target in arcs[state]:
                    for column in range(low, high):
                        targets[column].add(target)
                    self.members += high - low
            _check_members(self.members)
            row = []
            for reached in map(frozenset, targets):
                if not reached:
                    row.append(NO_STATE)
                    continue
                if reached not in closures:
                    closures[reached] = self._closure(reached)
                key = (closures[reached], False)
                if key not in numbers:
                    numbers[key] = len(order)
                    order.append(key)
                    _check_states(len(order))
                row.append(numbers[key])
            rows.append(row)
        return smallest(np.array(rows)[:, segment], np.array(accepting), source)


@functools.lru_cache(maxsize=1024)
def _endings(ranges: Ranges) -> tuple[list[tuple[tuple[int, int], Ranges]], list[tuple[Ranges, Ranges]]]:
    """Characters as (range of the first byte, the rest), and all such rests with what follows their first byte."""
    leads, rests = [], dict[Ranges, Ranges]()
    for low, high in ranges:
        for lead, *others in _utf8(low, high):
            rest = tuple(others)
            leads.append((lead, rest))
            for i in range(len(rest) - 1, -1, -1):  # equal ends of characters share their states
                rests[rest[i:]] = rest[i + 1 :]
    return leads, sorted(rests.items(), key=lambda pair: len(pair[0]))


def _utf8(low: int, high: int) -> Iterator[list[tuple[int, int]]]:
    """Ranges of bytes, one for each byte of a character, that together are all characters from `low` to `high`."""
    if low > high:
        return
    for limit in (0x7F, 0x7FF, 0xD7FF, 0xDFFF, 0xFFFF):
        if low <= limit < high:
            yield from _utf8(low, limit)
            yield from _utf8(limit + 1, high)
            return
    if SURROGATES[0] <= low <= SURROGATES[1]:
        return
    for tail in range(1, len(chr(high).encode())):
        ones = (1 << 6 * tail) - 1  # the bits of the last bytes
        if low & ~ones != high & ~ones:
            if low & ones:
                cut = low | ones
            elif high & ones != ones:
                cut = (high & ~ones) - 1
            else:
                continue
            yield from _utf8(low, cut)
            yield from _utf8(cut + 1, high)
            return
    yield list(zip(chr(low).encode(), chr(high).encode(), strict=True))


def smallest(delta: np.ndarray, accepting: np.ndarray, source: str) -> Language:
    """The automaton without dead and unreachable states, equal states merged; state 0 stays the first."""
    n = len(delta)
    columns = np.unique(delta, axis=1, return_inverse=True)
    table, column = columns[0], columns[1].reshape(-1)
    table = np.where(table < 0, n, table)  # the dead state, for now
    table = np.concatenate([table, np.full((1, table.shape[1]), n)])
    # How many bytes are left at least: equal states agree in it, and the dead ones are those without a number.
    following, before = _neighbours(table)
    distance = _distances(before, np.flatnonzero(accepting).tolist())
    if distance[0] == NO_STATE:
        raise UserError(f"no text fits the constraint {source}")
    if (distance[:-1] == NO_STATE).any():  # all of them become the one that was added
        table[distance[table] == NO_STATE] = n
        following, before = _neighbours(table)
    weight = np.random.default_rng(0).integers(1, 2**63, table.shape[1] + 1, dtype=np.uint64) | np.uint64(1)
    facts = np.stack([distance, _farthest(following, before), np.append(accepting, False)])
    label = np.unique(facts, axis=1, return_inverse=True)[1].reshape(-1)
    compared = 0
    while True:  # split states until equal ones have equal successors; rows are compared by a 64-bit hash
        compared += table.size + 32 * len(table)  # and they are sorted
        if compared > MOST_COMPARED:
            raise UserError(
                "the constraint has too many states that differ only far ahead; use smaller numbers of repetitions"
            )
        with np.errstate(over="ignore"):
            row = (label[table].astype(np.uint64) * weight[1:]).sum(1) + label.astype(np.uint64) * weight[0]
        split = np.unique(row, return_inverse=True)[1].reshape(-1)
        if split.max() == label.max():
            break
        label = split
    dead = label[n]
    first = np.full(label.max() + 1, -1)
    first[label[::-1]] = np.arange(n, -1, -1)  # a state of each kind
    small = label[table[first]]  # (kinds, columns)
    reached, left = {int(label[0]): 0}, [int(label[0])]
    for kind in left:  # which grows
        for target in np.unique(small[kind]).tolist():
            if target != dead and target not in reached:
                reached[target] = len(left)
                left.append(target)
    number = np.full(len(small), NO_STATE, dtype=np.int32)
    number[left] = np.arange(len(left))
    _check_states(len(left))
    return Language(number[small[left]][:, column], np.append(accepting, False)[first[left]], source)


def _neighbours(table: np.ndarray) -> tuple[list[set[int]], list[list[int]]]:
    """The states after and before each state of (states, columns); the last one, which is dead, is before none."""
    following = [set(row) for row in table.tolist()]
    before: list[list[int]] = [[] for _ in following]
    for state, targets in enumerate(following[:-1]):
        for target in targets:
            before[target].append(state)
    return following, before


def _distances(following: Sequence[Iterable[int]], start: Sequence[int]) -> np.ndarray:
    """(states,): how many transitions lead at least from the states of the start to each; -1: none do."""
    result, left = [NO_STATE] * len(following), list(start)
    for state in left:
        result[state] = 0
    for state in left:  # which grows
        for other in following[state]:
            if result[other] == NO_STATE:
                result[other] = result[state] + 1
                left.append(other)
    return np.array(result)


def _farthest(following: Sequence[set[int]], before: Sequence[list[int]]) -> np.ndarray:
    """(states,): how many bytes may follow at most, -1 without a limit; the last state is the dead one.

    Equal states agree in it, and with it long chains need not be split one state at a time.
    """
    result, waits, ready = [-1] * len(following), [len(targets) for targets in following], [len(following) - 1]
    result[-1] = 0
    for state in ready:  # which grows
        for earlier in before[state]:
            waits[earlier] -= 1
            if not waits[earlier]:
                result[earlier] = 1 + max(result[target] for target in following[earlier])
                ready.append(earlier)
    return np.array(result)
