"""Figures of generated text against brute force and scipy."""

from __future__ import annotations

import math
from collections import Counter
from fractions import Fraction

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats

from unmask.evaluation.judge.diversity import distinct, entropy, ngrams, repetition, self_bleu
from unmask.evaluation.uncertainty import mean

tokens = st.lists(st.integers(0, 4), max_size=12)


@given(tokens)
def test_entropy_is_that_of_the_histogram(sample):
    counts = np.bincount(sample, minlength=1)
    assert entropy(sample) == pytest.approx(float(stats.entropy(counts)) if sample else 0.0, abs=1e-12)


def test_entropy_has_its_known_ends():
    assert entropy([7] * 50) == 0.0
    assert entropy(range(50)) == pytest.approx(math.log(50))
    assert entropy([]) == 0.0


@given(tokens, st.integers(1, 4))
def test_repetition_counts_what_came_before(sample, n):
    grams = [tuple(sample[i : i + n]) for i in range(len(sample) - n + 1)]
    again = sum(gram in grams[:i] for i, gram in enumerate(grams))
    assert repetition(sample, n) == pytest.approx(again / len(grams) if grams else 0.0)


@given(st.lists(tokens, max_size=5), st.integers(1, 4))
def test_distinct_is_over_the_set(samples, n):
    grams = [tuple(sample[i : i + n]) for sample in samples for i in range(len(sample) - n + 1)]
    assert distinct(samples, n) == (pytest.approx(len(set(grams)) / len(grams)) if grams else None)


def slow_bleu(hypothesis: list[int], references: list[list[int]], order: int) -> float:
    """Papineni et al. (2002) with 0.1 for a count of zero, as it is written down."""
    logs = 0.0
    for n in range(1, order + 1):
        own = Counter(ngrams(hypothesis, n))
        clipped = sum(min(count, max(Counter(ngrams(r, n))[gram] for r in references)) for gram, count in own.items())
        if n == 1 and clipped == 0:
            return 0.0
        precision = Fraction(clipped, max(1, len(hypothesis) - n + 1))
        logs += math.log(precision or 0.1 / max(1, len(hypothesis) - n + 1))
    nearest = sorted((abs(len(r) - len(hypothesis)), len(r)) for r in references)[0][1]
    brevity = 1.0 if len(hypothesis) > nearest else math.exp(1 - nearest / len(hypothesis))
    return brevity * math.exp(logs / order)


@given(st.lists(tokens, min_size=2, max_size=6), st.integers(1, 4))
def test_self_bleu_is_bleu_against_all_others(samples, order):
    expected = [slow_bleu(one, samples[:i] + samples[i + 1 :], order) for i, one in enumerate(samples)]
    assert self_bleu(samples, order) == pytest.approx(expected, abs=1e-12)


def test_self_bleu_of_equal_and_of_unlike_samples():
    assert self_bleu([[1, 2, 3, 4, 5]] * 3) == pytest.approx([1.0] * 3)
    assert self_bleu([[1, 2], [3, 4]]) == [0.0, 0.0]
    with pytest.raises(ValueError, match="needs at least two"):
        self_bleu([[1, 2]])


NLTK = [0.773932154047, 0.77625351449, 0.03391326091, 0.07610462252]


def test_self_bleu_agrees_with_nltk_on_recorded_values():
    """nltk 3.10.4, sentence_bleu(..., smoothing_function=SmoothingFunction().method1)."""
    samples = [list("the cat sat on the mat"), list("the cat sat on a mat"), list("dogs bark"), list("the")]
    assert self_bleu(samples) == pytest.approx(NLTK, abs=1e-9)


def test_mean_has_the_usual_standard_error():
    values = [1.0, 2.0, 4.0, 8.0]
    assert mean(values) == pytest.approx((np.mean(values), stats.sem(values)))
    assert mean([3.0]) == (3.0, None)
