"""Forward and backward sums against every sequence of tokens."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy import stats

from unmask.constraints import chain, over_tokens, regex

SPELLING = [b"a", None, b"ab", b"b", b"c"]
MASK, V, N = 1, 5, 4
AUTOMATON = over_tokens(regex("(ab|c)*a?b*"), SPELLING, MASK)


def rows(seed=0, batch=2):
    log_p = np.random.default_rng(seed).normal(size=(batch, N, V)) * 2
    log_p[..., MASK] = -math.inf
    return log_p - np.log(np.exp(log_p).sum(-1, keepdims=True))


def weights_of(log_p):
    return np.stack([AUTOMATON.weights(torch.from_numpy(row)) for row in log_p])


def law(log_p):
    """Every sequence that fits, with its chance among free ones."""
    return {
        x: math.exp(sum(log_p[i, token] for i, token in enumerate(x)))
        for x in itertools.product([0, 2, 3, 4], repeat=N)
        if AUTOMATON.reads(x)
    }


def test_the_chance_that_free_tokens_fit():
    log_p = rows(batch=3)
    after, before = chain.backward(AUTOMATON, weights_of(log_p)), chain.forward(AUTOMATON, weights_of(log_p))
    for row in range(3):
        total = math.log(sum(law(log_p[row]).values()))
        assert chain.log_chance(after)[row] == pytest.approx(total, abs=1e-9)
        ends = before[row, N][AUTOMATON.accepting]
        assert np.logaddexp.reduce(ends) == pytest.approx(total, abs=1e-9)
        for i in range(N + 1):  # any cut says the same
            assert np.logaddexp.reduce(before[row, i] + after[row, i]) == pytest.approx(total, abs=1e-9)


def test_the_chances_of_tokens_given_that_they_fit():
    log_p = rows()
    more = chain.conditional(AUTOMATON, weights_of(log_p))
    for row in range(2):
        exact = law(log_p[row])
        total = sum(exact.values())
        for i, token in itertools.product(range(N), range(V)):
            expected = sum(p for x, p in exact.items() if x[i] == token) / total
            label = AUTOMATON.classes[token]
            got = 0.0 if label < 0 else math.exp(log_p[row, i, token] + more[row, i, label])
            assert got == pytest.approx(expected, abs=1e-9)


def test_whole_texts_have_the_law_of_free_ones_that_fit():
    log_p = rows()
    weights = weights_of(log_p)
    after = chain.backward(AUTOMATON, weights)
    rng, n = np.random.default_rng(1), 4000
    exact: Counter[tuple[int, ...]] = Counter()
    for x, p in law(log_p[0]).items():
        exact[tuple(AUTOMATON.classes[list(x)].tolist())] += p
    total = sum(exact.values())
    seen = Counter(tuple(chain.draw(AUTOMATON, weights[0], after[0], rng.random(N), N).tolist()) for _ in range(n))
    assert set(seen) <= set(exact)
    common = [x for x, p in exact.items() if n * p / total >= 8]
    counts = [seen[x] for x in common] + [n - sum(seen[x] for x in common)]
    expected = [n * exact[x] / total for x in common]
    expected.append(n - sum(expected))
    assert stats.chisquare(counts, expected).pvalue > 1e-3


def test_given_tokens_and_unlikely_texts():
    log_p = rows() - 5000 * np.arange(N)[None, :, None]  # no chance that float64 could hold
    weights = weights_of(log_p)
    weights[0, 1] = -np.inf
    weights[0, 1, AUTOMATON.classes[4]] = 0.0  # position 1 is given as c
    after = chain.backward(AUTOMATON, weights)
    known = {x: sum(log_p[0, i, token] for i, token in enumerate(x) if i != 1) for x in law(log_p[0]) if x[1] == 4}
    assert after[0, 0, 0] == pytest.approx(np.logaddexp.reduce(list(known.values())), rel=1e-12)
    classes = chain.draw(AUTOMATON, weights[0], after[0], np.full(N, 0.5), N)
    assert classes[1] == AUTOMATON.classes[4]


@pytest.mark.parametrize("spread", [1, 100, 700, 5000])
def test_sums_of_any_size(spread):
    """Also where what fits is e^-5000 times as likely as what does not."""
    rng = np.random.default_rng(spread)
    log_p = rng.normal(size=(2, N, V)) * spread
    log_p[..., MASK] = -math.inf
    log_p[1, 2, rng.integers(2, V)] = -math.inf
    weights = weights_of(log_p)
    after = chain.backward(AUTOMATON, weights)
    for row in range(2):
        every = [
            sum(log_p[row, i, token] for i, token in enumerate(x))
            for x in itertools.product([0, 2, 3, 4], repeat=N)
            if AUTOMATON.reads(x)
        ]
        assert after[row, 0, 0] == pytest.approx(np.logaddexp.reduce(every), rel=1e-9)
        assert np.logaddexp.reduce(chain.forward(AUTOMATON, weights)[row, N][AUTOMATON.accepting]) == pytest.approx(
            after[row, 0, 0], rel=1e-9
        )


def test_the_best_text():
    log_p = rows(3)
    weights = np.stack([AUTOMATON.best(torch.from_numpy(row)) for row in log_p])
    after = chain.backward(AUTOMATON, weights, largest=True)
    for row in range(2):
        exact = law(log_p[row])
        best = max(exact, key=exact.__getitem__)
        assert after[row, 0, 0] == pytest.approx(math.log(exact[best]))
        classes = chain.draw(AUTOMATON, weights[row], after[row], np.zeros(N), N, largest=True)
        assert classes.tolist() == AUTOMATON.classes[list(best)].tolist()


def test_what_is_possible():
    allowed = np.zeros((N, AUTOMATON.n_classes), dtype=bool)
    allowed[:, AUTOMATON.classes[0]] = True  # a alone: aaaa does not fit
    reached = chain.possible(AUTOMATON, allowed)
    assert reached[1].any() and not reached[2].any()
    allowed[1:, AUTOMATON.classes[3]] = True
    assert (chain.possible(AUTOMATON, allowed)[N] & AUTOMATON.accepting).any()


def test_sums_from_a_state_to_a_state():
    """A part of a span: it begins in one state and ends in chances of its own."""
    log_p = rows(5)
    weights = weights_of(log_p)
    whole = chain.backward(AUTOMATON, weights)
    first = np.array([0, 1])
    part = chain.backward(AUTOMATON, weights[:, :2], end=whole[:, 2], first=first)
    assert np.allclose(np.exp(part), np.exp(whole[:, :3]), rtol=1e-12)
    careful = chain._careful(AUTOMATON, weights, False, whole[:, N])
    assert np.allclose(np.exp(whole), np.exp(careful), rtol=1e-9)


def test_which_states_are_possible():
    """Against every sequence of classes, with some positions given."""
    for given in itertools.product([-1, 0, 1], repeat=3):
        sets = AUTOMATON.reach.along(given)
        seen = [set() for _ in range(4)]
        for labels in itertools.product(range(AUTOMATON.n_classes), repeat=3):
            if any(want not in (-1, label) for want, label in zip(given, labels, strict=True)):
                continue
            path = [0]
            for label in labels:
                edges = (AUTOMATON.source == path[-1]) & (AUTOMATON.label == label)
                if not edges.any():
                    break
                path.append(int(AUTOMATON.target[edges][0]))
            if len(path) == 4 and AUTOMATON.accepting[path[-1]]:
                for at, state in enumerate(path):
                    seen[at].add(state)
        assert [set(np.flatnonzero(AUTOMATON.reach.members(number)).tolist()) for number in sets] == seen


def test_what_is_remembered_is_limited(monkeypatch):
    automaton = over_tokens(regex("[abc]{20}"), SPELLING, MASK)
    whole = automaton.reach.along([-1] * 15)
    monkeypatch.setattr("unmask.constraints.reach.MOST", 2000)
    fresh = over_tokens(regex("[abc]{20}"), SPELLING, MASK)
    assert fresh.reach.along([-1] * 15) == whole and 0 < fresh.reach.nbytes < 4000


def test_a_state_without_an_exit():
    automaton = over_tokens(regex("ab"), SPELLING, MASK)
    weights = np.zeros((1, 2, automaton.n_classes))
    assert chain.log_chance(chain.backward(automaton, weights))[0] == 0.0  # a, then b
    assert np.isneginf(chain.log_chance(chain.backward(automaton, weights[:, [0, 0, 0]])))[0]
