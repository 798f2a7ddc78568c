"""From bytes to tokens: the automaton that tokens drive, for any vocabulary.

The bytes of every token are run from every state, all tokens at once: over a trie of their bytes, in which bytes that
no state tells apart are one. Tokens that lead from every state to the same state are a class; a step of the automaton
needs the chance of each class, not of each token. Memory is linear in the vocabulary and in the number of transitions.
"""

from __future__ import annotations

import functools
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .language import NO_STATE, Language
from .reach import Reach
from .recent import recent

if TYPE_CHECKING:
    from ..data.tokenizer import Tokenizer

MOST_RUNS = 1 << 29  # pairs of a state and a part of a token in all
MOST_TRANSITIONS = 2_000_000
AT_ONCE = 1 << 22  # pairs of a state and a part of a token that are run together
TINY = 1e-30  # relative to the likeliest token: below it the float32 sum of a class is computed with more care
MAIN = 0.25  # the least chance of a class that may be had by subtraction
Spelling = Sequence[bytes | None]  # what each token adds to a text; None: it may not stand in it


@dataclass(frozen=True, eq=False)
class TokenAutomaton:
    """States and transitions over classes of tokens. State 0 is the first; from every state a text can be completed."""

    classes: np.ndarray  # (V,) int32: the class of each token; -1: it never fits
    source: np.ndarray  # (E,) int32, in order: the transitions
    label: np.ndarray  # (E,) int32: their classes
    target: np.ndarray  # (E,) int32
    accepting: np.ndarray  # (Q,) bool
    name: str  # of the language

    def __repr__(self) -> str:
        size = f"{self.states} states, {self.n_classes} classes, {len(self.source)} transitions"
        return f"TokenAutomaton({self.name}, {size})"

    @property
    def states(self) -> int:
        """The number of states."""
        return len(self.accepting)

    @property
    def nbytes(self) -> int:
        """The memory that it takes, with what is made from it on use."""
        return 5 * self.classes.nbytes + 5 * self.source.nbytes + 9 * self.states + self.reach.nbytes

    @functools.cached_property
    def n_classes(self) -> int:
        """The number of classes."""
        return int(self.classes.max()) + 1

    @functools.cached_property
    def first(self) -> np.ndarray:
        """(Q + 1,): where the transitions of each state begin."""
        return np.searchsorted(self.source, np.arange(self.states + 1))

    @functools.cached_property
    def members(self) -> tuple[np.ndarray, np.ndarray]:
        """The tokens that fit somewhere, class after class, and where each class begins."""
        order = np.argsort(self.classes, kind="stable")
        order = order[self.classes[order] >= 0]
        return order, np.searchsorted(self.classes[order], np.arange(self.n_classes))

    @functools.cached_property
    def reach(self) -> Reach:
        """Which states are possible, position by position."""
        return Reach(self.source, self.label, self.target, self.accepting)

    @functools.cached_property
    def by_class(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """The transitions class after class, in each by their sources: where each class begins, sources and targets."""
        order = np.lexsort((self.source, self.label))
        first = np.searchsorted(self.label[order], np.arange(self.n_classes + 1))
        return first, self.source[order], self.target[order]

    @functools.cached_property
    def _others(self) -> tuple[np.ndarray, np.ndarray, int]:
        """The tokens that are not of the largest class, and where their classes begin; the largest class.

        They are class after class, and those that never fit are the last.
        """
        order, begin = self.members
        sizes = np.diff(np.append(begin, len(order)))
        largest = int(sizes.argmax())
        order = np.delete(order, np.arange(begin[largest], begin[largest] + sizes[largest]))
        never = np.flatnonzero(self.classes < 0)
        begin = np.append(np.cumsum(np.delete(sizes, largest)) - np.delete(sizes, largest), len(order))
        return np.concatenate([order, never]), begin, largest

    def chances(self, log_p: Tensor) -> np.ndarray:
        """(n, classes) float64: the log chance of each class, for rows (n, V) that sum to 1.

        The largest class has what the others leave, unless that is so little that it would be rounded away.
        """
        order, begin, largest = self._others
        if not begin[-1] or 2 * len(order) > len(self.members[0]):
            return self.weights(log_p)
        rows = log_p.index_select(1, torch.from_numpy(order).to(log_p.device)).exp().cpu().numpy()
        mass = np.add.reduceat(rows, begin, axis=1, dtype=np.float64)
        rest = 1 - mass.sum(1)
        careful = np.flatnonzero(~(rest > MAIN) | (mass[:, :-1] < TINY).any(1))
        with np.errstate(divide="ignore", invalid="ignore"):
            result = np.log(np.insert(mass[:, :-1], largest, rest, axis=1))
        if len(careful):
            result[careful] = self.weights(log_p[torch.from_numpy(careful).to(log_p.device)])
        return result

    def weights(self, log_p: Tensor) -> np.ndarray:
        """(n, classes) float64: the log chance of each class, for rows of log-probabilities (n, V)."""
        order, begin = self.members
        rows = log_p.index_select(1, torch.from_numpy(order).to(log_p.device))
        top = rows.amax(1, keepdim=True)
        top = torch.where(torch.isneginf(top), torch.zeros_like(top), top)
        with np.errstate(divide="ignore"):
            mass = np.add.reduceat((rows - top).exp().cpu().numpy(), begin, axis=1, dtype=np.float64)
            careful = np.flatnonzero((mass < TINY).any(1))
            result = np.log(mass) + top.double().cpu().numpy()
            if len(careful):
                result[careful] = log_sums(
                    rows[torch.from_numpy(careful).to(rows.device)].double().cpu().numpy(), begin
                )
        return result

    def best(self, log_p: Tensor) -> np.ndarray:
        """(n, classes) float64: the log chance of the likeliest token of each class."""
        order, begin = self.members
        rows = log_p.index_select(1, torch.from_numpy(order).to(log_p.device)).double().cpu().numpy()
        return np.maximum.reduceat(rows, begin, axis=1)

    def reads(self, tokens: Iterable[int]) -> bool:
        """Whether these tokens spell a text of the language."""
        state = 0
        for token in tokens:
            edges = slice(self.first[state], self.first[state + 1])
            leads = np.flatnonzero(self.label[edges] == self.classes[token])
            if self.classes[token] < 0 or not len(leads):
                return False
            state = int(self.target[edges][leads[0]])
        return bool(self.accepting[state])

    @functools.cached_property
    def shortest(self) -> int:
        """The least number of tokens of a text."""
        return int(_depths(np.arange(self.states) == 0, self.source, self.target)[self.accepting].min())


def log_sums(rows: np.ndarray, begin: np.ndarray) -> np.ndarray:
    """Log-sum-exp of parts of rows (n, m) that begin at these columns."""
    top = np.maximum.reduceat(rows, begin, axis=1)
    top = np.where(np.isneginf(top), 0.0, top)
    spread = np.repeat(top, np.diff(np.append(begin, rows.shape[1])), axis=1)
    with np.errstate(divide="ignore"):
        return np.asarray(np.log(np.add.reduceat(np.exp(rows - spread), begin, axis=1)) + top)


def over_tokens(language: Language, spelling: Spelling, mask: int, ends: Sequence[int] = ()) -> TokenAutomaton:
    """The automaton of a language over a vocabulary; `mask` is never written.

    With `ends`, one of these tokens may follow a complete text, and then anything may.
    """
    size = len(spelling)
    barred = {mask, *ends}
    texts = [b"" if text is None or token in barred else text for token, text in enumerate(spelling)]
    trie = _Trie.of(texts, language.delta)
    if len(language.delta) * trie.nodes > MOST_RUNS:
        raise _too_large(language)
    kind = trie.kinds()  # (nodes,): equal where nodes lead from every state to the same one
    used, classes = _renumbered(np.append(kind, NO_STATE)[trie.token])
    source, label, target = trie.transitions(kind, used)
    if len(source) > MOST_TRANSITIONS:
        raise _too_large(language)
    accepting = language.accepting.copy()
    if ends:
        done, n = len(accepting), len(used)
        closing, rest = np.flatnonzero(accepting), n + 1
        classes[list(ends)] = n
        classes[[token for token in np.flatnonzero(classes < 0).tolist() if token != mask]] = rest
        whole = np.arange(n + 2)
        source = np.concatenate([source, closing, np.full(n + 2, done)])
        label = np.concatenate([label, np.full(len(closing), n), whole])
        target = np.concatenate([target, np.full(len(closing) + n + 2, done)])
        accepting = np.append(accepting, True)
    assert len(classes) == size
    return _trimmed(classes, source, label, target, accepting, language.source)


def _too_large(language: Language) -> UserError:
    return UserError(
        f"{language.source} has {len(language.delta):,} states, too many for the vocabulary of this model; use smaller "
        "numbers of repetitions, or * in place of a large one"
    )


def _renumbered(classes: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """The numbers that occur in (V,) except -1, and the same with these counted from 0."""
    used = np.unique(classes[classes >= 0])
    return used, np.where(classes >= 0, np.searchsorted(used, classes), NO_STATE).astype(np.int32)


@dataclass(frozen=True)
class _Trie:
    """All tokens as a tree of bytes; a level is the nodes of one depth, `parent` counts in the level before."""

    delta: np.ndarray  # (states + 1, kinds of bytes): the next state; the last state is dead
    parent: list[np.ndarray]
    byte: list[np.ndarray]
    offset: list[int]  # the number of the first node of each level
    token: np.ndarray  # (V,): the node of each token; -1: it never fits

    @staticmethod
    def of(texts: Sequence[bytes], delta: np.ndarray) -> _Trie:
        """The tree of the tokens that are not empty and whose bytes all occur."""
        dead = len(delta)
        columns, kind = np.unique(delta, axis=1, return_inverse=True)
        kind = kind.reshape(-1)
        table = np.full((dead + 1, columns.shape[1]), dead, dtype=np.int32)
        table[:dead] = np.where(columns >= 0, columns, dead)
        possible = np.asarray((columns >= 0).any(0))[kind]  # (256,)
        lengths = np.array([len(text) for text in texts])
        ends = np.cumsum(lengths)
        flat = np.frombuffer(b"".join(texts), dtype=np.uint8)
        wrong = np.concatenate([[0], np.cumsum(~possible[flat])])
        alive = np.flatnonzero((lengths > 0) & (wrong[ends] == wrong[ends - lengths]))
        begin, length = (ends - lengths)[alive], lengths[alive]
        token = np.full(len(texts), -1, dtype=np.int64)
        node, total = np.zeros(len(alive), dtype=np.int64), 0
        parent, byte, offset = [], [], []
        for depth in range(int(length.max(initial=0))):
            longer = length > depth
            alive, begin, length, node = alive[longer], begin[longer], length[longer], node[longer]
            key, node = np.unique(node * 256 + kind[flat[begin + depth]], return_inverse=True)
            node = node.reshape(-1)
            parent.append(key // 256)
            byte.append(key % 256)
            offset.append(total)
            last = length == depth + 1
            token[alive[last]] = total + node[last]
            total += len(key)
        return _Trie(table, parent, byte, offset, token)

    @property
    def nodes(self) -> int:
        """The number of nodes."""
        return self.offset[-1] + len(self.parent[-1]) if self.parent else 0

    def _levels(self, states: np.ndarray) -> Iterable[tuple[int, np.ndarray]]:
        """(first node, (nodes of the level, states) int32): where each node leads from each of these states."""
        reached = states[None].astype(np.int32)
        for parent, byte, offset in zip(self.parent, self.byte, self.offset, strict=True):
            reached = self.delta[reached[parent], byte[:, None]]
            yield offset, reached

    def _states(self) -> Iterable[np.ndarray]:
        """The states, as many at a time as memory allows."""
        widest = max((len(parent) for parent in self.parent), default=1)
        states = np.arange(len(self.delta) - 1)
        return np.array_split(states, max(1, -(-len(states) * widest // AT_ONCE)))

    def kinds(self) -> np.ndarray:
        """(nodes,): nodes that lead everywhere to the same states have the same number; -1: nowhere."""
        dead = len(self.delta) - 1
        rng, hashes = np.random.default_rng(0), np.zeros(self.nodes, dtype=np.uint64)
        with np.errstate(over="ignore"):
            for states in self._states():
                weight = rng.integers(0, 2**64, len(states), dtype=np.uint64, endpoint=False)
                for offset, reached in self._levels(states):
                    value = (dead - reached).astype(np.uint64)  # 0 where it leads nowhere
                    value *= np.uint64(0x9E3779B97F4A7C15)
                    value ^= value >> np.uint64(29)
                    hashes[offset : offset + len(reached)] += value @ weight
        kind = np.unique(hashes, return_inverse=True)[1].reshape(-1)
        return np.where(hashes == 0, -1, kind)

    def transitions(self, kind: np.ndarray, used: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(source, label, target) of the kinds that are used, which are counted from 0."""
        parts: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        dead, total = len(self.delta) - 1, 0
        some = np.full(len(kind) + 1, -1)
        some[kind[::-1]] = np.arange(len(kind) - 1, -1, -1)  # a node of each kind
        chosen = np.full(self.nodes, -1)
        chosen[some[used]] = np.arange(len(used))
        for states in self._states():
            for offset, reached in self._levels(states):
                rows = np.flatnonzero(chosen[offset : offset + len(reached)] >= 0)
                row, column = np.nonzero(reached[rows] != dead)
                where = rows[row]
                parts.append((states[column], chosen[offset + where], reached[where, column]))
                total += len(row)
                if total > MOST_TRANSITIONS:  # which the caller refuses
                    break
        if not parts:
            return (np.zeros(0, dtype=np.int64),) * 3
        source, label, target = (np.concatenate(part) for part in zip(*parts, strict=True))
        return source, label, target


def _trimmed(
    classes: np.ndarray, source: np.ndarray, label: np.ndarray, target: np.ndarray, accepting: np.ndarray, name: str
) -> TokenAutomaton:
    """Without states that tokens cannot reach or complete; classes that differ only there become one."""
    n = len(accepting)
    useful = (_depths(np.arange(n) == 0, source, target) < n) & (_depths(accepting, target, source) < n)
    if not useful[0]:
        raise UserError(f"no tokens of this model's vocabulary spell a text that fits {name}")
    number = np.cumsum(useful) - 1
    kept = useful[source] & useful[target]
    source, label, target = number[source[kept]], label[kept], number[target[kept]]
    with np.errstate(over="ignore"):  # a class is the set of its transitions
        mixed = (source.astype(np.uint64) + np.uint64(1)) * np.uint64(0x9E3779B97F4A7C15) + target.astype(np.uint64)
        mixed = (mixed ^ (mixed >> np.uint64(31))) * np.uint64(0xBF58476D1CE4E5B9)
        mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes = np.zeros(int(classes.max()) + 1, dtype=np.uint64)
        np.add.at(hashes, label, mixed ^ (mixed >> np.uint64(33)))
    lives = np.zeros(len(hashes), dtype=bool)
    lives[label] = True
    first, kind = np.unique(hashes, return_index=True, return_inverse=True)[1:]
    kind = kind.reshape(-1)
    used, classes = _renumbered(np.append(np.where(lives, kind, NO_STATE), NO_STATE)[classes])
    same = np.zeros(len(hashes), dtype=bool)
    same[first] = True  # one of each kind keeps its transitions
    kept = same[label]
    source, label, target = source[kept], np.searchsorted(used, kind[label[kept]]), target[kept]
    order = np.lexsort((label, target, source))
    source, label, target = (part[order].astype(np.int32) for part in (source, label, target))
    return TokenAutomaton(classes, source, label, target, accepting[useful], name)


def _depths(start: np.ndarray, source: np.ndarray, target: np.ndarray) -> np.ndarray:
    """(states,): how many transitions lead at least from the start (bool) to each state; as many as states: none do."""
    order = np.argsort(source, kind="stable")
    first, target = np.searchsorted(source[order], np.arange(len(start) + 1)), target[order]
    depths, newest, depth = np.where(start, 0, len(start)), np.flatnonzero(start), 0
    while len(newest):
        depth += 1
        counts = first[newest + 1] - first[newest]
        begin = np.repeat(first[newest] - np.cumsum(counts) + counts, counts)
        reached = target[begin + np.arange(len(begin))]
        newest = np.unique(reached[depths[reached] == len(start)])
        depths[newest] = depth
    return depths


@recent
def for_tokenizer(language: Language, tokenizer: Tokenizer, ends: tuple[int, ...] = ()) -> TokenAutomaton:
    """The automaton of a language over the vocabulary of a tokenizer, compiled once."""
    special = tokenizer.special
    spelling = [None if token in special else text for token, text in enumerate(tokenizer.spelling)]
    return over_tokens(language, spelling, tokenizer.vocab.mask, ends)
