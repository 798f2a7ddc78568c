"""Measures of generated text that need no other model: pure functions on lists of tokens.

A sample is a sequence of hashable tokens (ids or words). Nothing here is random, and nothing depends on the order of
the samples. Each figure alone can be fooled: a repeated word has a good perplexity but no entropy, noise the reverse.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Hashable, Iterable, Sequence

SMOOTH = 0.1  # what stands for a count of 0 in BLEU (method 1 of Chen and Cherry, 2014)

Tokens = Sequence[Hashable]


def ngrams(tokens: Tokens, n: int) -> Iterable[tuple[Hashable, ...]]:
    """All n-grams of a sample."""
    return zip(*(tokens[i:] for i in range(n)), strict=False)


def entropy(tokens: Tokens) -> float:
    """The entropy of the tokens of a sample in nats: at most log(number of tokens), 0 for one repeated token."""
    total = len(tokens)
    return abs(math.fsum(count / total * math.log(total / count) for count in Counter(tokens).values()))


def repetition(tokens: Tokens, n: int = 4) -> float:
    """The share of a sample's n-grams that occurred before in it; 0 for a sample without any."""
    total = len(tokens) - n + 1
    return 1 - len(set(ngrams(tokens, n))) / total if total > 0 else 0.0


def distinct(samples: Sequence[Tokens], n: int) -> float | None:
    """Distinct n-grams of a set over all its n-grams. It falls as a set grows: compare only sets of equal size."""
    total = sum(max(0, len(sample) - n + 1) for sample in samples)
    return len({gram for sample in samples for gram in ngrams(sample, n)}) / total if total else None


def self_bleu(samples: Sequence[Tokens], order: int = 4) -> list[float]:
    """BLEU of each sample with all others as its references; high if samples are similar.

    Counts of 0 become `SMOOTH`, and a sample that shares no token with the others has 0, as in nltk's sentence BLEU
    with its method 1. The cost is linear in the tokens: for each n-gram the two highest counts over samples are enough
    to know the highest count over the others.
    """
    if len(samples) < 2:
        raise ValueError("self-BLEU compares samples with each other; it needs at least two")
    logs = [0.0] * len(samples)
    for n in range(1, order + 1):
        counts = [Counter(ngrams(sample, n)) for sample in samples]
        best = _two_best(counts)
        for i, sample_counts in enumerate(counts):
            shared = 0
            for gram, count in sample_counts.items():
                first, owner, second = best[gram]
                shared += min(count, second if owner == i else first)
            if n == 1 and not shared:
                logs[i] = -math.inf
            logs[i] += math.log((shared or SMOOTH) / max(1, len(samples[i]) - n + 1)) / order
    lengths = Counter(len(sample) for sample in samples)
    return [_brevity(len(sample), lengths) * math.exp(log) for sample, log in zip(samples, logs, strict=True)]


def _two_best(counts: Sequence[Counter[tuple[Hashable, ...]]]) -> dict[tuple[Hashable, ...], tuple[int, int, int]]:
    """For each n-gram: its highest count in a sample, that sample, and its highest count in any other."""
    best: dict[tuple[Hashable, ...], tuple[int, int, int]] = {}
    for i, sample_counts in enumerate(counts):
        for gram, count in sample_counts.items():
            first, owner, second = best.get(gram, (0, -1, 0))
            best[gram] = (count, i, first) if count > first else (first, owner, max(second, count))
    return best


def _brevity(length: int, lengths: Counter[int]) -> float:
    """The penalty for being shorter than the reference of the nearest length (the shorter of two)."""
    if length == 0:
        return 0.0
    others = [other for other, times in lengths.items() if times > (other == length)]
    nearest = min(others, key=lambda other: (abs(other - length), other))
    return min(1.0, math.exp(1 - nearest / length))
