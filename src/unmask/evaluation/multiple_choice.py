"""Which of several texts stands in a gap? Their probabilities, which sum to 1 over the choices.

A choice counts by the likelihood of its tokens, given the text around them:

    - where the model has one law (AR, blocks of one token) exactly, with what follows the gap;
    - else, one token at a time in random order, exactly for few tokens (`exact`), and by orders or draws for more.

Choices of different lengths are different canvases. There the given text counts, too: -log p(given | the gap, masked
throughout), by the same draws for all of them (`gap_lengths`). The sum is the likelihood of the whole text.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import torch

from ..data.canvas import Gap, PromptBuilder, split_gaps
from ..errors import UserError, known_keywords
from ..models.block_diffusion import whole_row
from ..models.language_model import LanguageModel
from ..models.masked import as_masked
from .gap_lengths import compare_lengths
from .likelihood import eval_keys, evaluating
from .predictions import diffusion
from .scoring import score
from .spans import Passage, read_passages

EXACT = 8  # tokens in a block: 2^8 network rows for a choice
DRAWS = {"orders": {"draws": 4, "orders": 16}}  # of longer choices


@dataclass(frozen=True)
class Answer:
    """A choice: its probability among all, the standard error of that (0 if exact), and its -log likelihood."""

    text: str
    probability: float
    error: float
    nats: float

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return asdict(self)


@known_keywords
def answers(
    model: LanguageModel,
    builder: PromptBuilder,
    text: str,
    choices: Sequence[str],
    *,
    seed: int = 0,
    batch_size: int = 32,
    label: int | None = None,
) -> list[Answer]:
    """The choices in their order, for the gap of a text, or for its end if it has none."""
    before, after = _around(text)
    if isinstance(choices, str) or len(choices) < 2 or len(set(choices)) < len(choices) or "" in choices:
        raise UserError("give at least two different choices, none of them empty")
    texts = [before + choice + after for choice in choices]
    how: dict[str, Any] = {"seed": seed, "batch_size": batch_size, "label": label}
    if model.fills_masks:
        nats, errors = _in_gap(model, builder, (before, after), texts, how)
    else:
        nats, errors = _whole(model, builder, texts, how)
    chances = np.exp(nats.min() - nats)
    chances = chances / chances.sum()
    total = (chances * errors) ** 2
    spread = chances * np.sqrt((1 - 2 * chances) * errors**2 + total.sum())
    return [
        Answer(choice, float(p), float(error), float(value))
        for choice, p, error, value in zip(choices, chances, spread, nats, strict=True)
    ]


def _whole(
    model: LanguageModel, builder: PromptBuilder, texts: list[str], how: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Nats of whole texts without their ends, and errors; what is before the choices is alike in all."""
    rows: list[list[Passage]] = [[] for _ in texts]
    for passage in read_passages(builder, texts, [None] * len(texts), model.unscored)[0]:
        rows[passage.text].append(passage)
    ends = [len(builder.closing) if parts[-1].ends else 0 for parts in rows]
    likelihoods = score(model, builder, texts, **how).texts
    nats = [sum((one.token_nats or [])[: one.tokens - end]) for one, end in zip(likelihoods, ends, strict=True)]
    return np.array(nats), np.array([(one.stderr_nats or 0.0) * one.tokens for one in likelihoods])


def _in_gap(
    model: LanguageModel, builder: PromptBuilder, around: tuple[str, str], texts: list[str], how: dict[str, Any]
) -> tuple[np.ndarray, np.ndarray]:
    """Nats of what stands in the gap, given the rest (which counts too where lengths differ), and errors."""
    before, after = around
    spans = [(len(before), len(whole) - len(after)) for whole in texts]
    passages = read_passages(builder, texts, [[span] for span in spans])[0]
    likelihoods = score(model, builder, texts, span=spans, **how, **_method(model, passages)).texts
    nats = np.array([one.nats for one in likelihoods])
    errors = np.array([(one.stderr_nats or 0.0) * one.tokens for one in likelihoods])
    lengths = [len(passage.asked or ()) for passage in passages]
    if len(set(lengths)) > 1 and (model.block_size is None or passages[0].goes_on):
        more, spread = _given(model, builder, before, after, lengths, how["seed"])
        nats, errors = nats + more, np.hypot(errors, spread)
    return nats, errors


def _around(text: str) -> tuple[str, str]:
    parts = split_gaps(text)
    if len(parts) > 3:
        raise UserError(f"the text has {len(parts) // 2} gaps, and choices are for one; write the others out")
    if len(parts) == 3 and ":" in parts[1]:
        raise UserError(f"the gap {{{{{parts[1]}}}}} has a pattern, and the choices say what it may be; write {{{{}}}}")
    return parts[0], parts[2] if len(parts) == 3 else ""


def _method(model: LanguageModel, passages: Sequence[Passage]) -> dict[str, Any]:
    """How tokens are scored: by the law itself, by every set of masks, by orders, or as the model is by default."""
    net = as_masked(model)
    if model.exact or net is None or not net.normalised or net.time_conditioned:
        return {}
    most = max(len(passage.asked or ()) for passage in passages)
    if net.block_size is not None and not passages[0].goes_on:
        most = min(most, net.block_size)
    return {"method": "exact"} if most <= EXACT else {"method": "orders", **DRAWS["orders"]}


def _given(
    model: LanguageModel, builder: PromptBuilder, before: str, after: str, lengths: Sequence[int], seed: int
) -> tuple[np.ndarray, np.ndarray]:
    """(-log p of the given text, its error relative to the best) for a masked gap of each of these lengths."""
    net = diffusion(whole_row(model), "choices")
    different = sorted(set(lengths))
    canvases = [builder.gaps([before, Gap(n, n), after]).ids for n in different]
    first = 0 if builder.block_ends is None else 1
    known = torch.tensor([builder.vocab.mask, *builder.tokenizer.never_hidden])
    places = [first + torch.nonzero(~torch.isin(ids[first:], known)).squeeze(-1) for ids in canvases]
    if not len(places[0]):
        return np.zeros(len(lengths)), np.zeros(len(lengths))
    with evaluating(model):
        compared = compare_lengths(net, canvases, places, eval_keys(seed))
    at = [different.index(n) for n in lengths]
    errors = [error if math.isfinite(error) else 0.0 for error in compared.errors]
    return np.array(compared.nats)[at], np.array(errors)[at]
