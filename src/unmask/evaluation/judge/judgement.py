"""All figures of a set of generated texts, each with its error, and the protocol they depend on.

Perplexity under a judge falls when text repeats itself, and entropy rises when text is noise. So they are reported
together, and `unmask eval --generative` adds the same figures of real text.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from ...errors import UserError, optional
from ..likelihood import summarise
from ..uncertainty import Statistic, mean
from .diversity import Tokens, distinct, entropy, repetition, self_bleu
from .scorers import JudgedText, Scorer

ORDER = 4  # of repetition, self-BLEU and the longest n-grams of distinct-n


@dataclass(frozen=True)
class Judgement:
    """The figures of a set of texts."""

    samples: int
    figures: dict[str, Statistic]
    scorer: str | None
    protocol: dict[str, Any] = field(default_factory=dict)

    def as_dict(self) -> dict[str, Any]:
        """The figures under the names that scripts rely on; errors under the same name in `stderr`."""
        return {
            "samples": self.samples,
            "scorer": self.scorer,
            **{name: figure.value for name, figure in self.figures.items()},
            "stderr": {name: figure.stderr for name, figure in self.figures.items() if figure.stderr is not None},
            "protocol": self.protocol,
        }


def judge(
    texts: Sequence[str],
    ids: Sequence[Tokens],
    *,
    scorer: Scorer | None = None,
    references: Sequence[str] | None = None,
    network_calls: Sequence[int] | None = None,
    seconds: float | None = None,
    seed: int = 0,
) -> Judgement:
    """Judge texts and their tokens (without padding and other special tokens).

    Without a scorer there is no perplexity. With `references`, real texts, MAUVE is added, on the scorer's features.
    """
    if len(texts) != len(ids):
        raise UserError(f"there are {len(texts)} texts, but tokens of {len(ids)}; give both for every sample")
    if len(texts) < 2:
        raise UserError(f"{len(texts)} samples cannot be judged; give at least 2, better 64")
    lengths = [len(sample) for sample in ids]
    protocol: dict[str, Any] = {
        "entropy": "of each sample's tokens, in nats",
        "repetition": f"share of a sample's {ORDER}-grams that occurred before in it",
        "self_bleu": f"tokens, up to {ORDER}-grams, all {len(texts) - 1} others as references, smoothed by 0.1",
        "empty_samples": lengths.count(0),
    }
    figures: dict[str, Statistic] = {}
    if scorer is not None:
        scored = scorer.nats(texts)
        figures |= likelihood(scored)
        protocol["scorer"] = scorer.describe() | {"scored_tokens": sum(text.tokens for text in scored)}
    figures["entropy"] = mean([entropy(sample) for sample in ids])
    for n in range(1, ORDER + 1):
        share = distinct(ids, n)
        if share is not None:
            figures[f"distinct_{n}"] = Statistic(share)
    figures[f"repetition_{ORDER}"] = mean([repetition(sample, ORDER) for sample in ids])
    figures[f"self_bleu_{ORDER}"] = mean(self_bleu(ids, ORDER))
    if references is not None:
        figures["mauve"] = Statistic(mauve(texts, references, scorer, seed))
        protocol["mauve"] = f"mean last hidden states of the scorer, {len(references)} references, seed {seed}"
    figures["tokens_per_sample"] = mean(lengths)
    if network_calls is not None:
        figures["network_calls_per_sample"] = mean(network_calls)
    if seconds is not None:
        figures["seconds_per_sample"] = Statistic(seconds / len(texts))
    name = None if scorer is None else str(protocol["scorer"]["scorer"])
    return Judgement(len(texts), figures, name, protocol)


def likelihood(scored: Sequence[JudgedText]) -> dict[str, Statistic]:
    """Perplexity, exp(total nats / scored tokens), its error over samples (delta method), and what was scored."""
    nats = np.array([text.nats for text in scored])
    tokens = np.array([text.tokens for text in scored], dtype=float)
    figures: dict[str, Statistic] = {}
    if tokens.sum():
        whole = summarise(nats[:, None], tokens, None, {})
        rate, error, ppl = whole.nats_per_token, whole.stderr_data, whole.perplexity
        if np.isfinite(ppl):
            figures["gen_perplexity"] = Statistic(ppl, None if error is None else ppl * error)
        figures["gen_nats_per_token"] = Statistic(rate, error)
    figures["scored_tokens_per_sample"] = mean(tokens.tolist())
    words = np.array([text.words for text in scored], dtype=float)
    if words.sum():
        share = summarise(np.array([[text.unknown] for text in scored], dtype=float), words, None, {})
        figures["unknown_share"] = Statistic(share.nats_per_token, share.stderr_data)
    return figures


def mauve(texts: Sequence[str], references: Sequence[str], scorer: Scorer | None, seed: int = 0) -> float:
    """How much two sets of texts overlap in the eyes of a causal judge, 0 to 1 (Pillutla et al., 2021)."""
    package, features = mauve_parts(scorer)
    result = package.compute_mauve(p_features=features(references), q_features=features(texts), seed=seed)
    return float(result.mauve)


def mauve_parts(scorer: Scorer | None) -> tuple[Any, Callable[[Sequence[str]], np.ndarray]]:
    """The package, and the function that turns texts into features; raises a UserError if something is missing."""
    features = getattr(scorer, "features", None)
    if features is None:
        raise UserError("MAUVE compares hidden states; give it a causal scorer (hf: or llama2c:)")
    return optional("mauve", "MAUVE (GPLv3)", "mauve"), features
