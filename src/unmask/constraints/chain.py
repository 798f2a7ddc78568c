"""Forward and backward sums over the positions of a span: the law of tokens given that together they fit.

The network gives each open position a distribution of its moves. Given that the tokens of the span drive the automaton
from its first state into an accepting one, positions depend on each other, as the states of a Markov chain do. Sums
are in float64, and a text that fits may be as unlikely as it likes. `weights` (B, n, C) are log chances of classes of
tokens (`TokenAutomaton.weights`); at a given token its class has 0 and all others have -inf.
"""

from __future__ import annotations

import numpy as np

from .token_automaton import TokenAutomaton, log_sums

NEVER = -np.inf
RAREST = -600.0  # below this log chance, relative to what could be, sums are of logarithms
RESCALED = 4  # positions between two scalings of sums
GATHERED = 1 << 20  # chances of transitions that are held at a time


def backward(
    automaton: TokenAutomaton,
    weights: np.ndarray,
    largest: bool = False,
    end: np.ndarray | None = None,
    first: np.ndarray | int = 0,
) -> np.ndarray:
    """(B, n + 1, Q): the log chance that what follows position i leads from state q to an accepting state.

    With `largest` the best token counts in place of the sum over all. `end` (B, Q) has log chances in place of the
    accepting states. The sums are of chances, scaled; where what begins in state `first` (B,) is so unlikely that
    something of it may have been lost, they are of logarithms.
    """
    if end is None:
        end = np.where(automaton.accepting, 0.0, NEVER)[None]
    end = np.broadcast_to(end, (len(weights), automaton.states))
    with np.errstate(divide="ignore", invalid="ignore", over="ignore", under="ignore"):
        shift = weights.max(2) if largest else _log_sum(weights)
        shift = np.where(np.isneginf(shift), 0.0, shift)
        top = end.max(1)
        top = np.where(np.isneginf(top), 0.0, top)
        result = _scaled(automaton, np.exp(weights - shift[:, :, None]), largest, np.exp(end - top[:, None]))
        lost = np.flatnonzero(~(result[np.arange(len(weights)), 0, first] > RAREST))
        result[:, :-1] += shift[:, ::-1].cumsum(1)[:, ::-1, None]
        result += top[:, None, None]
    if len(lost):
        result[lost] = _careful(automaton, weights[lost], largest, end[lost])
    return result


def _log_sum(values: np.ndarray) -> np.ndarray:
    top = values.max(-1)
    return np.log(np.exp(values - np.where(np.isneginf(top), 0.0, top)[..., None]).sum(-1)) + top


def _scaled(automaton: TokenAutomaton, chances: np.ndarray, largest: bool, end: np.ndarray) -> np.ndarray:
    """(B, n + 1, Q) logarithms, from chances (B, n, C) that sum to at most 1 and (B, Q) of at most 1.

    What is lost is less than 1e-300 of that, at each position.
    """
    batch, n, _ = chances.shape
    going = np.flatnonzero(np.diff(automaton.first))  # states with a transition
    begin, add = automaton.first[going], np.maximum if largest else np.add
    every, at_once = len(going) == automaton.states, max(1, GATHERED // (batch * len(automaton.label) + 1))
    result, scale = np.zeros((batch, n + 1, automaton.states)), np.zeros((batch, n + 1))
    result[:, n] = state = end
    given = _given(chances[0]) if batch == 1 else [-1] * n
    edge, source, target = automaton.by_class
    low = n
    for i in range(n - 1, -1, -1) if len(going) else ():
        if given[i] >= 0:
            moves, state = slice(edge[given[i]], edge[given[i] + 1]), np.zeros_like(end)
            state[0, source[moves]] = result[0, i + 1, target[moves]]
            result[0, i] = state
            continue
        if i < low:
            low = max(0, i + 1 - at_once)
            gathered = chances[:, low : i + 1].take(automaton.label, axis=2)
        values = add.reduceat(gathered[:, i - low] * state.take(automaton.target, axis=1), begin, axis=1)
        if every:
            state = values
        else:
            state = np.zeros_like(end)
            state[:, going] = values
        if i % RESCALED == 0:
            largest_of = state.max(1)
            scale[:, i] = np.log(np.where(largest_of > 0, largest_of, 1.0))
            state = state / np.where(largest_of > 0, largest_of, 1.0)[:, None]
        result[:, i] = state
    return np.asarray(np.log(result) + scale[:, ::-1].cumsum(1)[:, ::-1, None])


def _given(chances: np.ndarray) -> list[int]:
    """(n,): the class of each position where only one has a chance (n, C), which is 1; else -1."""
    return np.where((chances > 0).sum(1) == 1, chances.argmax(1), -1).tolist()


def _careful(automaton: TokenAutomaton, weights: np.ndarray, largest: bool, end: np.ndarray) -> np.ndarray:
    """As `backward`, by logarithms alone: a text that fits may be as unlikely as it likes."""
    batch, n, _ = weights.shape
    result = np.full((batch, n + 1, automaton.states), NEVER)
    result[:, n] = end
    going = np.flatnonzero(np.diff(automaton.first))
    begin, label, target = automaton.first[going], automaton.label, automaton.target
    for i in range(n - 1, -1, -1) if len(going) else ():
        values = weights[:, i][:, label] + result[:, i + 1][:, target]
        result[:, i, going] = np.maximum.reduceat(values, begin, axis=1) if largest else log_sums(values, begin)
    return result


def forward(automaton: TokenAutomaton, weights: np.ndarray) -> np.ndarray:
    """(B, n + 1, Q): the log chance that the positions before i lead from the first state to state q."""
    batch, n, _ = weights.shape
    result = np.full((batch, n + 1, automaton.states), NEVER)
    result[:, 0, 0] = 0.0
    order = np.argsort(automaton.target, kind="stable")
    label, source, target = automaton.label[order], automaton.source[order], automaton.target[order]
    reached = np.unique(target)
    begin = np.searchsorted(target, reached)
    for i in range(n) if len(reached) else ():
        result[:, i + 1, reached] = log_sums(weights[:, i][:, label] + result[:, i][:, source], begin)
    return result


def log_chance(after: np.ndarray) -> np.ndarray:
    """(B,): the log chance that independent tokens fit, from what `backward` gave."""
    return after[:, 0, 0]


def draw(
    automaton: TokenAutomaton,
    weights: np.ndarray,
    after: np.ndarray,
    uniform: np.ndarray,
    upto: int,
    largest: bool = False,
    state: int = 0,
) -> np.ndarray:
    """(upto,): the classes of the first tokens of a text that fits, for one row: weights (n, C), after (n + 1, Q).

    One uniform number per position; with `largest` the best text. It begins in `state`.
    """
    classes = np.empty(upto, dtype=np.int64)
    given, (edge, source, target) = _given(~np.isneginf(weights[:upto])), automaton.by_class
    for i in range(upto):
        if (label := given[i]) >= 0:
            moves = slice(edge[label], edge[label + 1])
            classes[i], state = label, int(target[moves][source[moves].searchsorted(state)])
            continue
        edges = slice(automaton.first[state], automaton.first[state + 1])
        values = weights[i, automaton.label[edges]] + after[i + 1, automaton.target[edges]]
        if largest:
            at = int(values.argmax())
        else:
            total = np.exp(values - values.max()).cumsum()
            at = min(int(np.searchsorted(total, uniform[i] * total[-1], side="right")), len(total) - 1)
        classes[i] = automaton.label[edges][at]
        state = int(automaton.target[edges][at])
    return classes


def conditional(automaton: TokenAutomaton, weights: np.ndarray) -> np.ndarray:
    """(B, n, C): log p(class | the span fits) - log p(class): what to add to the log-probability of each token."""
    before, after = forward(automaton, weights), backward(automaton, weights)
    order = np.argsort(automaton.label, kind="stable")
    label, source, target = automaton.label[order], automaton.source[order], automaton.target[order]
    begin = np.searchsorted(label, np.arange(automaton.n_classes))
    values = [log_sums(before[:, i][:, source] + after[:, i + 1][:, target], begin) for i in range(weights.shape[1])]
    return np.stack(values, axis=1) - log_chance(after)[:, None, None]


def possible(automaton: TokenAutomaton, allowed: np.ndarray) -> np.ndarray:
    """(n + 1, Q) bool: the states that the classes allowed at each position (n, C) can lead to."""
    result = np.zeros((len(allowed) + 1, automaton.states), dtype=bool)
    result[0, 0] = True
    for i, classes in enumerate(allowed):
        leads = result[i, automaton.source] & classes[automaton.label]
        result[i + 1, automaton.target[leads]] = True
    return result
