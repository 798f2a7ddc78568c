"""The bound as a sum over the number of hidden positions, and the draw of that number for training.

A network without time conditioning sees only *which* positions are hidden. With M positions that may be hidden, the
bound is then a sum over the number n of hidden ones,

    NELBO = sum over n of c_n g(n),      g(n) = E[mean nll of the hidden tokens], over all sets of n positions alike

and schedule and law are in the coefficients alone. In continuous time without a cut-off the integral of p^(n-1)
(1-p)^(M-n) makes every c_n = 1: the schedule drops out. A last step at mask rate p makes it

    c_n = P(Bin(M, p) < n) + n P(Bin(M, p) = n)

T steps with reveal chances u_i at mask rates p_i make it c_n = n * sum over i of u_i P(Bin(M, p_i) = n), and the part of
the bound with mask rates from a to b has c_n = P(Bin(M, a) < n <= Bin(M, b)), for one uniform number behind both.

So with n drawn with chance q_n, and c_n / (n q_n) as the weight of each hidden token, the loss of a row is an unbiased
draw of its bound. The noise of a mean over n tokens falls as 1/sqrt(n), so q is c_n / sqrt(n) where nobody says otherwise.
"""

from __future__ import annotations

import functools

import numpy as np
import torch
from torch import Tensor

from ..errors import UserError
from .keys import Keys
from .schedule import ClippedTime, ContinuousTime, DiscreteTime, Law, Schedule, strata

GRID = 1024  # of a proposal, from which the chances of counts are made


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
def count_chances(law: Law, schedule: Schedule, total: int, weighted: bool) -> tuple[np.ndarray, np.ndarray]:
    """(M + 1,) each: the chance q_n of hiding n positions, and the weight of each hidden token.

    Weighted it is c_n / (n q_n), for the bound. Otherwise it is 1, and n is as likely as any other, or (under a clipped
    law) as the mask rates allow. A law with a proposal has the counts of the proposal's mask rates in both cases.
    """
    n, c = np.arange(total + 1), count_weights(law, schedule, total).numpy()
    proposal = law.proposal if isinstance(law, ContinuousTime) else None
    if proposal is not None:
        q = _proposed(proposal, total)
    elif weighted:
        q = c / np.sqrt(np.maximum(n, 1))
    else:
        q = c if isinstance(law, ClippedTime) else np.ones(total + 1)
    q = np.where(n > 0, q, 0.0)
    q = q / max(q.sum(), np.finfo(float).tiny)
    if not weighted:
        return q, (n > 0).astype(float)
    if (q[c > 0] <= 0).any():
        raise UserError(f"the proposal {proposal!r} never hides some numbers of {total} tokens; leave it out")
    return q, np.divide(c, n * q, out=np.zeros(total + 1), where=q > 0)


def _proposed(proposal: Schedule, total: int) -> np.ndarray:
    """The chance of every number of masks at the mask rates of a schedule, at times that are spread evenly."""
    middle = (torch.arange(GRID, dtype=torch.float64) + 0.5) / GRID
    return binomial(total, 1 - proposal.keep(middle)).mean(0).numpy()


def hidden_sets(
    free: Tensor, index: Tensor, total: int, keys: Keys, law: Law, schedule: Schedule, weighted: bool
) -> tuple[Tensor, Tensor]:
    """(B, L) bool, which of the `free` positions (B, L) of rows are hidden, and (B,) the weight of their tokens.

    The numbers of hidden positions come from strata over the rows of the global batch; every set of that size is as
    likely as any other.
    """
    may, place = free.cpu().numpy(), strata(index, total, keys).numpy()
    n, weight = np.zeros(len(may), dtype=np.int64), np.zeros(len(may))
    positions = may.sum(1)
    for m in np.unique(positions[positions > 0]):
        rows = positions == m
        q, weights = count_chances(law, schedule, int(m), weighted)
        n[rows] = _inverted(q, place[rows])
        weight[rows] = weights[n[rows]]
    uniform = np.where(may, keys.uniform("mask", index, may.shape[1]).numpy(), 2.0)
    order = np.argsort(uniform, axis=1)  # what may be hidden comes first
    hidden = np.zeros_like(may)
    np.put_along_axis(hidden, order, np.arange(may.shape[1]) < n[:, None], axis=1)
    return torch.from_numpy(hidden), torch.from_numpy(weight)


def _inverted(q: np.ndarray, uniform: np.ndarray) -> np.ndarray:
    """Numbers with these chances, in the order of the uniforms."""
    sums = np.cumsum(q)
    return np.searchsorted(sums, uniform * sums[-1], side="right").clip(max=np.flatnonzero(q)[-1])
