"""Forward and backward sums over the positions of a span: the law of tokens given that together they fit.

The network gives each open position a distribution of its own. Given that the tokens of the span drive the automaton
from its first state into an accepting one, positions depend on each other, as the states of a Markov chain do. All sums
are of logarithms, in float64: a text that fits may be as unlikely as it likes. `weights` (B, n, C) are log chances of
classes of tokens (`TokenAutomaton.weights`); at a given token its class has 0 and all others have -inf.
"""

from __future__ import annotations

import numpy as np

from .token_automaton import TokenAutomaton, log_sums

NEVER = -np.inf


def backward(automaton: TokenAutomaton, weights: np.ndarray, largest: np.ndarray | bool = False) -> np.ndarray:
    """(B, n + 1, Q): the log chance that what follows position i leads from state q to an accepting state.

    Where `largest` (n,) is true, the best token counts in place of the sum over all.
    """
    batch, n, _ = weights.shape
    best = np.broadcast_to(largest, n)
    result = np.full((batch, n + 1, automaton.states), NEVER)
    result[:, n, automaton.accepting] = 0.0
    going = np.flatnonzero(np.diff(automaton.first))  # states with a transition
    begin, label, target = automaton.first[going], automaton.label, automaton.target
    for i in range(n - 1, -1, -1) if len(going) else ():
        values = weights[:, i][:, label] + result[:, i + 1][:, target]
        result[:, i, going] = np.maximum.reduceat(values, begin, axis=1) if best[i] else log_sums(values, begin)
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
) -> np.ndarray:
    """(upto,): the classes of the first tokens of a text that fits, for one row: weights (n, C), after (n + 1, Q).

    One uniform number per position; with `largest` the best text.
    """
    state, classes = 0, np.empty(upto, dtype=np.int64)
    for i in range(upto):
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
