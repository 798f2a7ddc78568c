"""Likelihood with error bars (paper appendix D.1): everything that says perplexity.

Each (row, draw) has a time stratum and a mask, keyed by row index and draw, so the result for a seed does not
depend on batch size or number of processes. Two errors are kept apart: the Monte Carlo error of the bound, from
independent draws over the whole set, and the error over texts, with the Monte Carlo part taken out.
"""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from ..data.loader import eval_batch
from ..data.pack import Rows
from ..distributed import World
from ..errors import UserError, at_least
from ..models.block_diffusion import as_blocks
from ..models.language_model import LanguageModel
from ..networks.kernels.int8 import is_quantized
from ..process.keys import Keys, check_seed
from ..types import Batch, Likelihood, Progress, TokenNats
from .uncertainty import rate_variance, standard_errors

log = logging.getLogger("unmask")


@dataclass(frozen=True)
class Estimator:
    """How one draw of the bound is taken: its name in the protocol, and the nats of a batch for given keys."""

    name: str
    nats: Callable[[LanguageModel, Batch, Keys], TokenNats]

    def describe(self, model: LanguageModel) -> str:
        """Its name; each block of a model with blocks has a draw of its own."""
        if model.exact:
            return "none: exact"
        return self.name if model.block_size is None else self.name.replace("a row", "a block")


TIMES = Estimator(
    "one time a row and draw, strata over the data set", lambda model, batch, keys: model.nats(batch, keys)
)


def draw_nats(
    model: LanguageModel, batch: Batch, draws: int, keys: Keys, estimator: Estimator = TIMES
) -> tuple[np.ndarray, np.ndarray]:
    """(nats (B, draws), tokens (B,)) of a batch, float64."""
    device = model.device
    nats, tokens = np.empty((len(batch), draws)), np.zeros(len(batch))
    with torch.no_grad():
        for draw in range(draws):
            scored = estimator.nats(model, batch.to(device), keys.at(draw))
            nats[:, draw] = scored.nats.double().sum(-1).cpu().numpy()
            tokens = scored.weight.sum(-1).double().cpu().numpy()
    refuse_nan(nats, "likelihoods of rows")
    return nats, tokens


def refuse_nan(values: Tensor | np.ndarray, what: str = "values") -> None:
    """Raise where a network says nothing; infinite nats are a probability of 0, and fine."""
    missing = np.isnan(values.cpu().numpy() if isinstance(values, Tensor) else values)
    if missing.any():
        raise UserError(
            f"{int(missing.sum())} of {missing.size} {what} are NaN, so the network predicts nothing there; check the "
            "weights of the model, or load it in float32"
        )


def eval_keys(seed: int) -> Keys:
    """The streams of evaluation, apart from those of training."""
    return Keys(check_seed(seed)).fork("eval")


@contextmanager
def evaluating(model: nn.Module) -> Iterator[None]:
    """Without dropout, inside the context."""
    was_training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(was_training)


def need_likelihood(model: LanguageModel) -> None:
    """One sentence for a model that has none."""
    if not model.likelihood:
        raise UserError("this model has no likelihood; judge its samples with unmask eval --generative")


def in_blocks(model: LanguageModel, block: int | str | None, length: int) -> LanguageModel:
    """The model under the law of a block size, a number or 'full', for rows of this length; None: its own law."""
    if block is None:
        return model
    number = isinstance(block, str) and block.removeprefix("-").isdecimal()
    size = None if block == "full" else int(block) if number else block
    if size is not None and (isinstance(size, bool) or not isinstance(size, int)):
        raise UserError(f"block={block} must be a whole number of tokens, or full")
    at_least("block", size)
    blocks = as_blocks(model)
    if blocks is None:
        raise UserError(f"block={block} is for models of method block, which this one is not; leave it out")
    return blocks.in_blocks(None if size == length else size)


@functools.cache
def _warn(text: str) -> None:
    log.warning(text)


def note_untrained(model: LanguageModel) -> None:
    """Say once if the network was not trained on the block size by which it is scored, or writes."""
    facts = model.describe()
    if "trained_blocks" in facts:
        law = f"block size {facts['block']}" if model.block_size else "the whole row as one block"
        _warn(f"the network was not trained on {law}, only on: {facts['trained_blocks']}; it may do worse there")


def check_request(model: LanguageModel, **counts: int | None) -> None:
    """Raise, before anything is read or computed, if something cannot be evaluated."""
    need_likelihood(model)
    for name, value in counts.items():
        at_least(name, value)


def row_nats(
    model: LanguageModel,
    rows: Rows,
    *,
    draws: int = 4,
    batch_size: int = 32,
    seed: int = 0,
    limit: int | None = None,
    world: World | None = None,
    attend_pads: bool = False,
    estimator: Estimator = TIMES,
    progress: Progress | None = None,
) -> tuple[np.ndarray, np.ndarray]:
    """(nats (rows, draws), tokens (rows,)) of a split, before anything is summed; of an exact model, one draw."""
    check_request(model, draws=draws, batch_size=batch_size, rows=limit)
    if model.block_size is not None and rows.length % model.block_size:
        raise UserError(
            f"blocks of {model.block_size} tokens do not divide rows of {rows.length}; choose a size that does, or full"
        )
    draws = 1 if model.exact else draws
    chosen = pick_rows(len(rows), limit)
    world = world or World(0, 1, model.device)
    if world.main:
        note_untrained(model)
    mine = list(world.slots(len(chosen)))
    nats, tokens = np.zeros((len(chosen), draws)), np.zeros(len(chosen))
    keys = eval_keys(seed)
    with evaluating(model):
        for start in range(0, len(mine), batch_size):
            part = mine[start : start + batch_size]
            batch = eval_batch(rows, chosen[part], attend_pads)
            batch = replace(batch, index=torch.tensor(part), total=len(chosen))
            nats[part], tokens[part] = draw_nats(model, batch, draws, keys, estimator)
            if progress:
                progress(min(start + batch_size, len(mine)), len(mine))
    both = world.sum(torch.from_numpy(np.column_stack((nats, tokens)))).cpu().numpy()
    if not both[:, -1].any():
        raise UserError("there is nothing to score: all tokens of these rows are given, as N in a text of bases")
    return both[:, :-1], both[:, -1]


def evaluate(
    model: LanguageModel,
    rows: Rows,
    *,
    draws: int = 4,
    seed: int = 0,
    estimator: Estimator = TIMES,
    protocol: dict[str, Any] | None = None,
    **how: Any,
) -> Likelihood:
    """The model's bound on a split, in nats per token with both standard errors; `how` as in `row_nats`."""
    nats, tokens = row_nats(model, rows, draws=draws, seed=seed, estimator=estimator, **how)
    facts = {
        **rows.describe(),
        **model.describe(),
        "rows": len(nats),
        "draws": nats.shape[1],
        "seed": seed,
        "dtype": compute_dtype(model),
        "estimator": estimator.describe(model),
        **({"labels": "given" if rows.labelled else "none"} if model.backbone.n_labels else {}),
        **(protocol or {}),
    }
    likelihood = summarise(nats, tokens, rows.bytes_per_token, facts)
    return replace(likelihood, stderr_nats=0.0) if model.exact else likelihood


def compute_dtype(model: LanguageModel) -> str:
    """The type in which the network computes now: that of its weights, or of the surrounding autocast."""
    kind = model.device.type
    dtype = torch.get_autocast_dtype(kind) if torch.is_autocast_enabled(kind) else next(model.parameters()).dtype
    return str(dtype).removeprefix("torch.") + (", matrices int8" if is_quantized(model) else "")


def pick_rows(available: int, limit: int | None) -> np.ndarray:
    """All rows, or `limit` of them evenly spaced."""
    if limit is None or limit >= available:
        return np.arange(available)
    return (np.arange(limit) * available) // limit


def summarise(
    nats: np.ndarray, tokens: np.ndarray, bytes_per_token: float | None, protocol: dict[str, Any]
) -> Likelihood:
    """From nats per (row, draw) and tokens per row to a likelihood with its errors per token."""
    n, draws = nats.shape
    total = tokens.sum()
    mean = nats.mean(1)
    monte_carlo = standard_errors(nats.sum(0)) / total if draws > 1 else None
    over_texts = None
    if n > 1:
        spread = rate_variance(mean, tokens)
        if draws > 1:  # what the spread owes to the draws, not to the texts
            spread -= nats.var(1, ddof=1).sum() / draws
        over_texts = math.sqrt(spread) / total if spread > 0 else None  # None: drowned in the Monte Carlo error
    return Likelihood(
        nats=float(mean.sum()),
        tokens=int(total),
        bytes=None if bytes_per_token is None else float(total * bytes_per_token),
        stderr_nats=None if monte_carlo is None else float(monte_carlo),
        stderr_data=over_texts,
        protocol=protocol,
    )


def count_tokens(rows: Rows, size: int) -> np.ndarray:
    """How often each token is scored in a split."""
    counts = np.zeros(size, dtype=np.int64)
    for start in range(0, len(rows), 1024):
        tokens, scored = rows.rows(np.arange(start, min(start + 1024, len(rows))))
        counts += np.bincount(tokens[scored] if scored is not None else tokens.ravel(), minlength=size)
    return counts


def baselines(train: Rows, rows: Rows, size: int) -> dict[str, float]:
    """Nats per token of two models without context: uniform, and the unigram (add-one) model of the train split.

    Both share the V - 1 tokens that are not [MASK].
    """
    seen, scored = count_tokens(train, size) + 1.0, count_tokens(rows, size)
    log_p = np.log(seen) - math.log(seen.sum() - 1)
    return {"uniform": math.log(size - 1), "unigram": float(-(scored * log_p).sum() / scored.sum())}
