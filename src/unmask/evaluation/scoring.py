"""Texts to likelihoods, by any of the methods."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ..data.canvas import PromptBuilder
from ..data.unknown import count_unknown, unknown_facts
from ..errors import UserError, at_least, choose, known_keywords
from ..models.block_diffusion import whole_row
from ..models.language_model import LanguageModel
from ..process.keys import Keys
from ..sampling import FirstHitting, LeftToRight, Sampler
from ..types import Batch, Likelihood, Progress
from .estimators import STRATA, default_estimator, every_set, few_sets, strata_nats, times_nats
from .exact import exact_nats, pseudo_nats
from .likelihood import (
    compute_dtype,
    eval_keys,
    evaluating,
    in_blocks,
    need_likelihood,
    note_untrained,
    refuse_nan,
    summarise,
)
from .predictions import RowNats, diffusion
from .spans import Passage, ScoredPassage, each_span, lay_out, read_passages
from .trajectories import plan_nats
from .uncertainty import combined, standard_errors


@dataclass(frozen=True)
class ScoreRequest:
    """How texts are to be scored."""

    model: LanguageModel
    keys: Keys
    plan: Sampler | None
    batch_size: int
    draws: int = 1  # independent repetitions, for the error
    calls: int = 1  # strata: network calls of one draw
    orders: int = 1  # orders: K of the importance-weighted bound
    progress: Progress | None = None


@dataclass(frozen=True)
class Method:
    """Nats of rows, of (batch, positions that may be hidden), and what the protocol says about them."""

    run: Callable[[ScoreRequest, Batch, Tensor], RowNats]
    law: str
    defaults: dict[str, int]  # the numbers that it takes, with their defaults
    is_bound: bool = False  # whether it depends on the law of the model (steps, cut-off)


def _drawn(per_draw: list[Tensor]) -> RowNats:
    """From the nats of tokens (B, L) of every draw."""
    nats = np.stack([draw.double().cpu().numpy() for draw in per_draw], axis=1)  # (B, draws, L)
    refuse_nan(nats, "log-probabilities")
    return RowNats(nats.sum(-1), nats.mean(1), None)


def _bound(ask: ScoreRequest, batch: Batch, free: Tensor) -> RowNats:
    hidden = None if torch.equal(free, batch.free()) else free  # None: any method can do it
    batch = batch.to(ask.model.device)
    with torch.no_grad():
        return _drawn([times_nats(ask.model, batch, ask.keys.at(d), hidden).nats for d in range(ask.draws)])


def _strata(ask: ScoreRequest, batch: Batch, free: Tensor) -> RowNats:
    how: dict[str, Any] = {"calls": ask.calls, "free": free, "batch_size": ask.batch_size}
    drawn = [strata_nats(ask.model, batch, ask.keys.at(d), **how).nats for d in range(ask.draws)]
    net = diffusion(ask.model, "strata", timeless=True)
    for i in (i for i, row in enumerate(free) if few_sets(net, row, ask.draws * ask.calls)):
        exact = every_set(net, batch, i, free[i], ask.batch_size)  # costs no more than the draws, and has no error
        for nats in drawn:
            nats[i] = exact.to(nats)
    return _drawn(drawn)


def _pll(ask: ScoreRequest, batch: Batch, _free: Tensor) -> RowNats:
    nats = pseudo_nats(ask.model, batch, batch.counted(), ask.batch_size).numpy()
    return RowNats(nats.sum(1, keepdims=True), nats, np.zeros(len(batch)))


def _exact(ask: ScoreRequest, batch: Batch, free: Tensor) -> RowNats:
    if ask.model.exact:
        return _bound(ask, batch, free)
    nats = exact_nats(ask.model, batch, batch.weight(), ask.batch_size, ask.progress)
    return RowNats(nats[:, None], None, np.zeros(len(batch)))


def _plan(ask: ScoreRequest, batch: Batch, _free: Tensor) -> RowNats:
    assert ask.plan is not None
    return plan_nats(
        ask.model,
        batch,
        batch.weight(),
        ask.plan,
        ask.keys,
        orders=ask.orders,
        draws=ask.draws,
        batch_size=ask.batch_size,
    )


ANY_LAW = ("schedule", "parameterization", "block", "clean_stream", "trained_blocks")  # facts that are not of a bound
METHODS: dict[str, Method] = {
    "bound": Method(_bound, "evidence bound", {"draws": 16}, True),
    "strata": Method(_strata, "evidence bound", {"draws": 4, "calls": 8}, True),
    "pll": Method(_pll, "pseudo-log-likelihood, which is not a likelihood", {}),
    "exact": Method(_exact, "exact, one token at a time in random order", {}),
    "orders": Method(_plan, "importance-weighted bound over random orders", {"draws": 1, "orders": 16}),
    "plan": Method(_plan, "exact, in the order of the plan", {}),
}


def default_method(model: LanguageModel, plan: Sampler | None = None) -> str:
    """The likelihood under a plan, if there is one; else the bound by the default estimator of the model."""
    if plan is not None:
        return "plan" if plan.deterministic else "orders"
    return "strata" if default_estimator(model) is STRATA else "bound"


@known_keywords
def score(
    model: LanguageModel,
    builder: PromptBuilder,
    texts: str | Sequence[str],
    *,
    method: str | None = None,
    span: object = None,
    draws: int | None = None,
    calls: int | None = None,
    orders: int | None = None,
    plan: Sampler | None = None,
    seed: int = 0,
    batch_size: int = 32,
    label: int | None = None,
    block: int | str | None = None,
    progress: Progress | None = None,
) -> Likelihood:
    """-log p of texts, or of spans of them given the rest: together, each alone (`.texts`), each token.

    `method` is bound, strata, pll, exact, orders or plan (default: `default_method`); `span` is (start, end) in
    characters, or a list of such pairs, for one text, and a list with an entry for each of several texts. `plan` is
    the order for plan (default: left to right) and for orders (default: one token at a time in random order). `block`
    is the block size of a model with blocks, or 'full' (default: its own); a span with text after it, and pll, always
    have the whole row as one block.
    """
    if not texts and not isinstance(texts, str):
        raise UserError("there is nothing to score; give at least one text")
    need_likelihood(model)
    if block is not None and method == "pll":
        raise UserError("method 'pll' looks at all other tokens of a text, so it has no blocks; leave out block")
    if plan is not None and plan.sets_blocks:
        plan.check(model)
        if block not in (None, 1, "1"):
            raise UserError(f"{type(plan).__name__} has the law of blocks of one token; leave out block={block}")
        block = 1
    model = in_blocks(model, block, builder.spec.length) if method != "pll" else whole_row(model)
    if model.block_size is not None and model.block_size > builder.spec.length:
        model = whole_row(model)
    spans = each_span(span, texts)
    texts = [texts] if isinstance(texts, str) else list(texts)
    unscored = model.unscored if builder.block_ends is None else 0  # else BOS is given, and never scored
    passages, scored = read_passages(builder, texts, spans, unscored)
    whole = whole_row(model)
    laws = [whole if passage.goes_on else model for passage in passages]
    for law in {id(law): law for law in laws}.values():
        note_untrained(law)
    method = method or default_method(min(laws, key=lambda law: law.exact), plan)
    numbers = _numbers(method, batch_size, {"draws": draws, "calls": calls, "orders": orders})
    if all(law.exact for law in laws):
        numbers |= dict.fromkeys(numbers.keys() & {"draws", "calls"}, 1)  # nothing is drawn
    ask = ScoreRequest(model, eval_keys(seed), _plan_for(method, plan), batch_size, progress=progress, **numbers)
    longest = 0 if model.block_size is None else max(len(passage.ids) for passage in passages)  # as many blocks in all
    rows: list[RowNats] = []
    counts: list[int] = []  # scored tokens of each row
    with evaluating(model):
        for start in range(0, len(passages), batch_size):
            part = passages[start : start + batch_size]
            batch, free = lay_out(builder, part, start, len(passages), longest)
            if label is not None:
                batch = replace(batch, label=torch.full((len(part),), label))
            rows += _by_law(METHODS[method], ask, laws[start : start + batch_size], batch, free)
            counts += batch.counted().sum(1).tolist()
            if progress and method != "exact":  # which reports how many sets it has evaluated
                progress(start + len(part), len(passages))
    ids = [token for passage in passages for token in passage.ids]
    known = unknown_facts(builder.tokenizer, count_unknown(builder.tokenizer, ids), len(ids))
    protocol = _protocol(method, ask, builder, laws, any(spans)) | numbers | {"seed": seed} | known
    return _together(rows, passages, scored, np.array(counts, dtype=float), protocol)


def _by_law(
    method: Method, ask: ScoreRequest, laws: Sequence[LanguageModel], batch: Batch, free: Tensor
) -> list[RowNats]:
    """The rows of a batch, each by its law: the blocks of the model, or the whole row."""
    rows: dict[int, RowNats] = {}
    for law in {id(law): law for law in laws}.values():
        which = torch.tensor([i for i, other in enumerate(laws) if other is law])
        part = batch.rows(which)
        result = method.run(replace(ask, model=law), part, free[which])
        result = replace(result, error=np.zeros(len(part))) if law.exact else result
        rows |= {i: _row(result, k, part) for k, i in enumerate(which.tolist())}
    return [rows[i] for i in range(len(laws))]


def _protocol(
    method: str, ask: ScoreRequest, builder: PromptBuilder, laws: Sequence[LanguageModel], spans: bool
) -> dict[str, Any]:
    """The law of the figures and what else they depend on."""
    how, model = METHODS[method], laws[0] if all(law is laws[0] for law in laws) else ask.model
    facts = model.describe()
    if not how.is_bound and not model.exact:
        facts = {name: facts[name] for name in ANY_LAW if name in facts}
    law = "exact" if model.exact else how.law
    if model.block_size is not None:
        law += f", in blocks of {model.block_size}"
    if not all(one is model for one in laws):
        law += "; spans with text after them in the whole row"
    whole = "whole texts and their ends" if builder.closing else "whole texts"
    what = "spans, given the rest of their texts" if spans else whole
    plan = {} if ask.plan is None else ask.plan.describe()
    block = {"block_length": builder.capacity, "dtype": compute_dtype(ask.model)}
    return {"method": method, "law": law, "scored": what, **plan, **facts, **block}


def _numbers(method: str, batch_size: int, numbers: dict[str, int | None]) -> dict[str, int]:
    """The numbers that the user gave, else the defaults of the method."""
    choose(method, METHODS, "method")
    asked = {name: value for name, value in numbers.items() if value is not None}
    for name, value in {**asked, "batch_size": batch_size}.items():
        at_least(name, value)
        if name != "batch_size" and name not in METHODS[method].defaults:
            raise UserError(f"method {method!r} does not take {name}; leave it out")
    return {**METHODS[method].defaults, **asked}


def _plan_for(method: str, plan: Sampler | None) -> Sampler | None:
    """The plan that a method follows, or a sentence on why it cannot."""
    if method not in ("orders", "plan"):
        if plan is not None:
            raise UserError(f"method {method!r} follows no plan; use 'plan' or 'orders'")
        return None
    if plan is None:
        return FirstHitting() if method == "orders" else LeftToRight()
    if plan.deterministic and method == "orders":
        raise UserError(f"{type(plan).__name__} has one order only, so its likelihood is exact; use method 'plan'")
    if not plan.deterministic and method == "plan":
        raise UserError(f"the order of {type(plan).__name__} is random, so its likelihood is a mean; use 'orders'")
    return plan


def _row(rows: RowNats, i: int, batch: Batch) -> RowNats:
    """One row of a batch: nats (draws,), tokens (n,), error (). What learned padding costs is the end's."""
    tokens = None if rows.tokens is None else rows.tokens[i][batch.counted()[i].numpy()]
    if tokens is not None and rows.tokens is not None and batch.padding is not None and batch.padding[i].any():
        tokens[-1] += rows.tokens[i][batch.padding[i].numpy()].sum()
    return RowNats(rows.nats[i], tokens, None if rows.error is None else rows.error[i])


def _together(
    rows: list[RowNats],
    passages: list[Passage],
    scored: list[ScoredPassage],
    counts: np.ndarray,
    protocol: dict[str, Any],
) -> Likelihood:
    """Rows to texts, texts to the whole."""
    texts = []
    rows_of: list[list[RowNats]] = [[] for _ in scored]
    for row, passage in zip(rows, passages, strict=True):
        rows_of[passage.text].append(row)
    for what, text_rows in zip(scored, rows_of, strict=True):
        nats = np.sum([row.nats for row in text_rows], axis=0)  # (draws,)
        parts = [row.tokens for row in text_rows if row.tokens is not None]
        texts.append(
            Likelihood(
                float(nats.mean()),
                len(what.pieces),
                what.size,
                _error(text_rows, nats, len(what.pieces)),
                None,
                protocol,
                what.pieces,
                np.concatenate(parts).tolist() if parts else None,
            )
        )
    totals = np.stack([row.nats for row in rows])  # (rows, draws)
    whole = summarise(totals, counts, None, protocol)
    error = _error(rows, totals.sum(0), int(counts.sum()))
    sizes = [what.size for what in scored if what.size is not None]
    size = sum(sizes) if len(sizes) == len(scored) else None
    return Likelihood(whole.nats, whole.tokens, size, error, whole.stderr_data, protocol, texts=texts)


def _error(rows: Sequence[RowNats], nats: np.ndarray, tokens: int) -> float | None:
    """The Monte Carlo error per token: from the errors of the rows, else from the draws of their sum."""
    known = [row.error for row in rows if row.error is not None]
    if len(known) == len(rows):
        return combined(*map(float, known)) / tokens
    return float(standard_errors(nats) / tokens) if len(nats) > 1 else None
