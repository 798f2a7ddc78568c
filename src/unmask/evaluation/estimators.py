"""Two ways to draw the same bound: by time, as in the paper, and by the number of masked tokens.

For a network without time conditioning the bound is a sum over the number n of hidden positions, with coefficients c_n
(`process/counts.py`). Of a model with blocks it is the sum of such bounds over the blocks of a row, each with a number
of its own; a network call hides something in all of them.

`strata_nats` draws n instead of a time. What the paper's estimator owes to the number of masks being random is gone,
and so is most of the rest: n comes from strata of a proposal q, in antithetic pairs, and the sets of one row's calls
are chosen to cover its positions evenly. The standard deviation of a mean over n tokens falls as 1/sqrt(n), so q is c_n
/ sqrt(n): calls go where the noise is. Both are unbiased draws of one number, the bound of `model.nats`.
"""

from __future__ import annotations

import functools
import itertools
import math
from dataclasses import replace

import numpy as np
import torch
from torch import Tensor

from ..models.language_model import LanguageModel
from ..models.masked import MaskedDiffusion, as_masked
from ..process.blocks import block_batch, block_places, join_blocks, split_rows
from ..process.counts import count_weights
from ..process.keys import Keys
from ..process.schedule import ContinuousTime, DiscreteTime, Law, Schedule, strata
from ..types import Batch, TokenNats
from .likelihood import TIMES, Estimator
from .predictions import diffusion, token_nll

__all__ = ["ESTIMATORS", "STRATA", "TIMES", "count_weights", "default_estimator", "strata_nats", "times_nats"]

FEW = 4  # with fewer strata than this the proposal is c_n itself: no stratum may contain different weights


def times_nats(model: LanguageModel, batch: Batch, keys: Keys, free: Tensor | None = None) -> TokenNats:
    """One time and one mask per row, as `model.nats`, but only `free` positions (B, L) are ever hidden.

    That is a bound on -log p(scored tokens | everything that is not free).
    """
    if free is None:
        return model.nats(batch, keys)
    diffusion(model, "span")
    with torch.no_grad():
        return model.nats(replace(batch, given=~free.to(batch.tokens.device)), keys)


@functools.lru_cache(maxsize=4096)
def _proposal(law: Law, schedule: Schedule, total: int, power: float) -> tuple[np.ndarray, np.ndarray]:
    """(total,) cumulative chances of n = 1 .. total under q = c_n / n^power, and c_n / (n q_n)."""
    n = np.arange(1, total + 1, dtype=float)
    shares = count_weights(law, schedule, total)[1:].numpy() * n**-power
    return np.cumsum(shares) / shares.sum(), shares.sum() * n ** (power - 1)


def strata_nats(
    model: LanguageModel,
    batch: Batch,
    keys: Keys,
    *,
    calls: int = 1,
    free: Tensor | None = None,
    batch_size: int | None = None,
) -> TokenNats:
    """The mean of `calls` network calls for each row, each with another number of hidden positions in each block.

    Strata of n are over the calls of a row and over the rows (or blocks) of the global batch together, so one call per
    row of a large data set is stratified too. Like `model.nats` it depends on (index, total) of a row, not on the
    batch.
    """
    net = diffusion(model, "strata", timeless=True)
    length = batch.tokens.shape[1]
    size = min(net.block_size or length, length)
    blocks = block_batch(batch, size)  # of a model without blocks, the rows
    hideable = split_rows((batch.free() if free is None else free).cpu(), size).numpy()
    counts, weights = _counts(net.law, net.schedule, hideable.sum(1), blocks, calls, keys)
    order = keys.uniform("mask", blocks.index, size).flatten(0, 1).numpy()
    masked = torch.from_numpy(_cover(counts, weights, hideable, order))  # (blocks, calls, size)
    hidden = join_blocks(masked.transpose(0, 1).reshape(-1, size), length)
    row = torch.arange(len(batch)).repeat(calls)
    wanted = hidden & batch.weight().cpu()[row]
    t = torch.ones(len(row), dtype=torch.float64)  # not used
    nll = token_nll(net, batch, row, hidden, wanted, t, batch_size or len(batch))
    weight = join_blocks(torch.from_numpy(weights).T.reshape(-1, 1).expand(-1, size), length)
    return _token_nats(batch, (weight * nll / calls).unflatten(0, (calls, len(batch))).sum(0))


def _counts(
    law: Law, schedule: Schedule, totals: np.ndarray, batch: Batch, calls: int, keys: Keys
) -> tuple[np.ndarray, np.ndarray]:
    """(B, calls) numbers of hidden positions, of `totals` (B,), and the weight of each hidden token, c_n / (n q_n).

    Calls 2j and 2j + 1 lie mirrored in neighbouring strata: what the first is too far left, the second is too far
    right, and a smooth integrand does not notice.
    """
    counts, weights = np.zeros((len(batch), calls), dtype=np.int64), np.zeros((len(batch), calls))
    power = 0.5 if calls * batch.total >= FEW else 0.0
    forks = [keys.fork(f"counts {j}") for j in range((calls + 1) // 2)]
    pairs = [strata(batch.index, batch.total, fork).flatten().numpy() for fork in forks]
    for call in range(calls):
        inside = pairs[call // 2] if call % 2 == 0 else 1 - pairs[call // 2]
        place = (call + inside) / calls
        for total in np.unique(totals[totals > 0]).tolist():
            rows = totals == total
            chances, weight = _proposal(law, schedule, total, power)
            n = np.searchsorted(chances, place[rows], side="right").clip(max=total - 1)
            counts[rows, call], weights[rows, call] = n + 1, weight[n]
    return counts, weights


def _cover(counts: np.ndarray, weights: np.ndarray, hideable: np.ndarray, order: np.ndarray) -> np.ndarray:
    """(B, calls, L) bool: sets of these sizes (B, calls) that give every position nearly the same total weight.

    Each call hides the positions with the least weight so far, of several the first in a random `order` (B, L). The
    rule does not depend on the text, so each set alone is still a uniform one of the positions that are hideable.
    """
    chosen = np.zeros((len(counts), counts.shape[1], hideable.shape[1]), dtype=bool)
    had, rows = np.where(hideable, 0.0, np.inf), np.arange(len(counts))
    for call in np.argsort(counts, axis=1, kind="stable").T:  # heavy tokens first, so that light ones can even them out
        rank = np.lexsort((order, had)).argsort(axis=1)
        least = rank < counts[rows, call][:, None]
        chosen[rows, call] = least
        had += least * weights[rows, call][:, None]
    return chosen


def every_set(net: MaskedDiffusion, batch: Batch, row: int, free: Tensor, batch_size: int) -> Tensor:
    """(L,) the bound of one row as a sum over every set of its free positions (L,) that may be hidden: no random draws.

    A set of n of M positions of a block has chance 1 / C(M, n) among those of its size, and its tokens count c_n / n
    each. Sets of all blocks are hidden in the same network calls.
    """
    blocks, out = block_places(free, net.block_size), torch.zeros(len(free), dtype=torch.float64)
    most = max(map(len, blocks), default=0)
    sets = torch.tensor(list(itertools.product((False, True), repeat=most)), dtype=torch.bool)[1:]  # (2^m - 1, m)
    masked = torch.zeros(len(sets), len(free), dtype=torch.bool)
    for places in blocks:
        masked[:, places] = sets[:, -len(places) :]
    rows = torch.full((len(sets),), row)
    t = torch.ones(len(sets), dtype=torch.float64)  # not used
    nll = token_nll(net, batch, rows, masked, masked & batch.weight().cpu()[row], t, batch_size)
    for places in blocks:
        m = len(places)
        first = 2**m - 1  # these are the sets of the last m places alone
        c, n = count_weights(net.law, net.schedule, m), sets[:first].sum(1)
        ways = torch.tensor([math.comb(m, int(size)) for size in n], dtype=torch.float64)
        out[places] = (c[n] / (n * ways)) @ nll[:first, places]
    return out


def few_sets(net: MaskedDiffusion, free: Tensor, calls: int) -> bool:
    """Whether `every_set` of a row needs no more network calls than these."""
    most = max(map(len, block_places(free, net.block_size)), default=0)
    return 0 < 2**most - 1 <= calls


def _token_nats(batch: Batch, nats: Tensor) -> TokenNats:
    return TokenNats(nats.float().to(batch.tokens.device), batch.counted())


def default_estimator(model: LanguageModel) -> Estimator:
    """The one with the least noise and with true error bars: mask counts, where they are unbiased, else times.

    An exact model has no noise; its own nats are all there is to know.
    """
    net = as_masked(model)
    if net is None or net.exact or not net.normalised or net.time_conditioned:
        return TIMES
    return STRATA if isinstance(net.law, ContinuousTime | DiscreteTime) else TIMES


STRATA = Estimator("one mask count a row and draw, strata over the data set", strata_nats)
ESTIMATORS = {"times": TIMES, "strata": STRATA}
