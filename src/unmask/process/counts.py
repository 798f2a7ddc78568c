"""The bound as a sum over the number of hidden positions, and the draw of that number for training.

A network without time conditioning sees only *which* positions are hidden. With M positions that may be hidden, the
bound is then a sum over the number n of hidden ones,

    NELBO = sum over n of c_n g(n),      g(n) = E[mean nll of the hidden tokens], over all sets of n positions alike

and schedule and law are in the coefficients alone. In continuous time without a cut-off the integral of p^(n-1)
(1-p)^(M-n) makes every c_n = 1: the schedule drops out. A last step at mask rate p makes it

    c_n = P(Bin(M, p) < n) + n P(Bin(M, p) = n)

T steps with reveal chances u_i at mask rates p_i make it c_n = n * sum over i of u_i P(Bin(M, p_i) = n), and mask rates
from a to b alone c_n = P(Bin(M, a) < n) - P(Bin(M, b) < n).

If n is drawn with chance q_n and each hidden token has weight c_n / (n q_n), the loss of a row is an unbiased draw of
its bound. The noise of a mean over n tokens falls as 1/sqrt(n), so q is c_n / sqrt(n) unless there is a proposal.

A pair hides a set of n positions and, in a second view of the row, the other M - n. Sets of n positions are then seen
with chance q_n + q_(M-n), in one view or the other, and that takes the place of q_n in the weight: the *sum* of both
views is an unbiased draw. A pair of n = M has an empty second view, which costs nothing and says nothing.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from ..types import Batch, UserError
from .keys import Keys
from .schedule import ClippedTime, ContinuousTime, DiscreteTime, Law, Schedule, strata

GRID = 1024  # mask rates from which the chances of counts under a proposal are made


@functools.lru_cache(maxsize=4096)
def count_weights(law: Law, schedule: Schedule, total: int) -> Tensor:
    """(M + 1,) float64 c_n of a row with M = `total` positions that may be hidden; c_0 = 0."""
    n = torch.arange(total + 1, dtype=torch.float64)
    if isinstance(law, ContinuousTime):
        end = law.draw(torch.zeros(1, dtype=torch.float64), schedule)  # the last step, or t = 0 where there is none
        chance = binomial(total, 1 - end.keep)[0]
        weights = chance.cumsum(0) - chance + n * chance
    elif isinstance(law, ClippedTime):
        low, high = binomial(total, torch.tensor([law.low, law.high], dtype=torch.float64))
        weights = (low - high).cumsum(0) - (low - high)
    elif isinstance(law, DiscreteTime):
        weights = torch.zeros_like(n)
        middle = (torch.arange(law.steps, dtype=torch.float64) + 0.5) / law.steps
        for part in middle.split(1024):  # steps at a time
            draw = law.draw(part, schedule)
            weights += n * (draw.u @ binomial(total, 1 - draw.keep))
    else:
        raise UserError(f"the bound {law!r} has no known form in the number of masks; use method 'bound'")
    return weights.clamp(min=0) * (n > 0)


def binomial(total: int, p: Tensor) -> Tensor:
    """P(Bin(total, p) = n) for n = 0 .. total, (len(p), total + 1)."""
    n = torch.arange(total + 1, dtype=torch.float64)
    whole = torch.tensor(total + 1.0, dtype=torch.float64)
    choose = torch.lgamma(whole) - torch.lgamma(n + 1) - torch.lgamma(whole - n)
    p = p.double()[:, None]
    return torch.exp(choose + torch.special.xlogy(n, p) + torch.special.xlog1py(total - n, -p))


@functools.lru_cache(maxsize=4096)
def count_chances(
    law: Law, schedule: Schedule, total: int, weighted: bool, pairs: bool = False
) -> tuple[np.ndarray, np.ndarray]:
    """(M + 1,) each: the chance of hiding n positions (of a pair: in the larger set), and the weight of their tokens.

    Weighted it is that of the bound. Otherwise it is 1, and all n from 1 to M are alike, or (of a clipped law) as its
    mask rates make them. A law with a proposal has the counts of the proposal's mask rates in both cases.
    """
    n, c = np.arange(total + 1), count_weights(law, schedule, total).numpy()
    proposal = law.proposal if isinstance(law, ContinuousTime) else None
    if proposal is not None:
        q = _proposed(proposal, total)
    elif weighted:
        q = c / np.sqrt(np.maximum(n, 1))
    else:
        q = c if isinstance(law, ClippedTime) else np.ones(total + 1)
    q = q * (n > 0)
    q = seen = q / max(q.sum(), np.finfo(float).tiny)
    if pairs:
        seen = q + q[::-1]
        q = np.where(2 * n > total, seen, np.where(2 * n == total, q, 0.0))
    if not weighted:
        return q, (n > 0).astype(float)
    if (seen[c > 0] <= 0).any():
        raise UserError(f"the proposal {proposal!r} never hides some numbers of {total} tokens; leave it out")
    return q, np.divide(c, n * seen, out=np.zeros(total + 1), where=c > 0)


def _proposed(proposal: Schedule, total: int) -> np.ndarray:
    """The chance of every number of masks at the mask rates of a schedule, whose time is drawn evenly."""
    edges = torch.arange(GRID + 1, dtype=torch.float64) / GRID
    end = proposal.alpha(torch.ones((), dtype=torch.float64))
    share = proposal.inverse(1 - edges * (1 - end)).clamp(0, 1).diff()  # of the times between two mask rates
    middle = (edges[1:] + edges[:-1]) / 2
    parts = zip(share.split(64), middle.split(64), strict=True)
    return torch.stack([part @ binomial(total, rate) for part, rate in parts]).sum(0).numpy()


def hidden_sets(
    batch: Batch, keys: Keys, law: Law, schedule: Schedule, *, weighted: bool = True, pairs: bool = False
) -> tuple[Tensor, Tensor]:
    """(B, L) bool, which positions of rows are hidden, and (B,) the weight of their tokens; of pairs (2B, L) and (2B,).

    How many are hidden comes from strata over the rows of the global batch; every set of that size is as likely as any
    other. Second views come after all first ones.
    """
    free, place = batch.free().cpu().numpy(), strata(batch.index, batch.total, keys).flatten().numpy()
    m, length = free.sum(1), free.shape[1]
    n, weight = np.zeros(len(free), dtype=np.int64), np.zeros((2, len(free)))
    for total in np.unique(m[m > 0]):
        rows = m == total
        chances, weights = count_chances(law, schedule, int(total), weighted, pairs)
        sums = np.cumsum(chances)
        largest = np.flatnonzero(chances)[-1]
        n[rows] = np.searchsorted(sums, place[rows] * sums[-1], side="right").clip(max=largest)
        weight[:, rows] = weights[n[rows]], weights[total - n[rows]]
    uniform = np.where(free, keys.uniform("mask", batch.index, length).view(free.shape).numpy(), 2.0)
    order = np.argsort(uniform, axis=1)  # the free positions come first
    hidden = np.zeros_like(free)
    np.put_along_axis(hidden, order, np.arange(length) < n[:, None], axis=1)
    if not pairs:
        return torch.from_numpy(hidden), torch.from_numpy(weight[0])
    return torch.from_numpy(np.concatenate([hidden, free & ~hidden])), torch.from_numpy(weight.reshape(-1))
