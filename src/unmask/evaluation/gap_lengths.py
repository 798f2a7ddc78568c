"""The length of a gap under which the given text around it is likeliest.

For every candidate the bound on -log p(given tokens | the gap, masked throughout) is drawn. With m given tokens it is

    sum over n = 1 .. m of E[mean nll of n hidden tokens],      over all sets of n of them alike

one token at a time in random order; a network with time conditioning is at a mask rate p ~ Beta(n, m - n + 1), which is
how p is distributed where n of m are hidden and all rates are weighed by 1/p (continuous time, no cut-off).

All candidates have the same given tokens, and the same sets of them are hidden in each at the same times: on real text
the noise of a difference is then twenty times smaller than with independent masks. Draws go on, for those that may
still be the best, until the best is better than every other by four standard errors of their difference. (Four, as they
are looked at again and again.)

Under a constraint a length also counts by the chance that a free gap of that length fits, p(fits | given, length).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..models.masked import MaskedDiffusion
from ..process.keys import Keys
from ..types import Batch
from .exact import time_of
from .predictions import token_nll

FIRST = 32  # draws of each candidate to begin with; then twice as many, and so on
MOST = 1024  # draws of a candidate
ROWS = 8192  # of the network, for all candidates together
SIGMAS = 4.0  # by so many standard errors a candidate must be worse to be left out
BATCH = 32  # rows of a network call


@dataclass(frozen=True)
class GapLengths:
    """The bound of every candidate, which is the best, how far the others are from it, and which may be as good."""

    nats: list[float]
    best: int
    errors: list[float]  # standard errors of the differences from the best
    undecided: list[int]  # candidates that may be better than the best
    draws: int  # of the best


def compare_lengths(
    net: MaskedDiffusion,
    canvases: Sequence[Tensor],
    places: Sequence[Tensor],
    keys: Keys,
    draws: int | None = None,
    extra: Sequence[tuple[float, float]] | None = None,
) -> GapLengths:
    """Compare canvases whose given tokens stand at `places` (m,) of each; with `draws`, so many and no more.

    `extra` are nats to add to the bound of each, with their standard errors.
    """
    extra = extra or [(0.0, 0.0)] * len(canvases)
    m, left = len(places[0]), list(range(len(canvases)))
    nll = [torch.zeros(0, m, dtype=torch.float64) for _ in canvases]  # of each candidate: (draws, m), 0 if not hidden
    weight = torch.zeros(0, m, dtype=torch.float64)
    done = rows = 0
    while True:
        more = min(draws or max(FIRST, done), (draws or MOST) - done)
        hidden, t, share = _draw(net, m, done, more, keys)
        weight = torch.cat([weight, share])
        for i in left:
            masked = torch.zeros(more, len(canvases[i]), dtype=torch.bool)
            masked[:, places[i]] = hidden
            zero = torch.zeros(more, dtype=torch.int64)
            said = token_nll(net, Batch(canvases[i][None], zero[:1], 1), zero, masked, masked, t, BATCH)
            nll[i] = torch.cat([nll[i], said[:, places[i]]])
        done, rows = done + more, rows + more * len(left)
        nats = [_ratio(values, weight[: len(values)])[0] + nat for values, (nat, _) in zip(nll, extra, strict=True)]
        best = min(left, key=lambda i: nats[i])
        worse = []
        for values, (nat, spread) in zip(nll, extra, strict=True):
            mean, error = _difference(values, nll[best], weight)
            both = (spread, extra[best][1]) if values is not nll[best] else ()
            worse.append((mean + nat - extra[best][0], math.hypot(error, *both)))
        errors = [error for _, error in worse]
        others = {i: worse[i] for i in left if i != best}
        close = [i for i, (mean, error) in others.items() if not mean > SIGMAS * error]
        left = [i for i in left if i == best or (i in close and others[i][1] > 1e-9)]  # a tie stays one
        if draws is not None or len(left) == 1 or done >= MOST or rows + done * len(left) > ROWS:
            return GapLengths(nats, best, errors, sorted(close), done)


def _draw(net: MaskedDiffusion, m: int, done: int, more: int, keys: Keys) -> tuple[Tensor, Tensor, Tensor]:
    """(hidden (more, m), times (more,), the weight of each hidden token (more, m)) of further draws.

    The number n of hidden tokens is drawn in strata.
    """
    uniform = keys.uniform("gaps", range(done, done + more), m + 1)
    n = 1 + (m * (torch.arange(more) + uniform[:, 0]) / more).long().clamp(max=m - 1)
    hidden = uniform[:, 1:].argsort(1).argsort(1) < n[:, None]
    t = torch.ones(more, dtype=torch.float64)
    if net.time_conditioned:
        rates = [keys.stream("mask rate", done + i).beta(k, m - k + 1) for i, k in enumerate(n.tolist())]
        t = time_of(net.schedule, torch.tensor(rates, dtype=torch.float64))
    return hidden, t, hidden / n[:, None].double()


def _ratio(values: Tensor, weight: Tensor) -> tuple[float, float]:
    """The sum over tokens of their weighted mean over draws, each token counting once, and its standard error."""
    draws, size = len(values), weight.mean(0).clamp(min=1e-9)
    means = (weight * values).mean(0) / size
    if draws < 2:
        return float(means.sum()), math.inf
    spread = (weight * (values - means) / size).sum(1).numpy()
    return float(means.sum()), float(np.sqrt((spread**2).sum() / (draws - 1) / draws))


def _difference(values: Tensor, best: Tensor, weight: Tensor) -> tuple[float, float]:
    """(mean, standard error) of how much worse a candidate is than the best, over the draws that both have."""
    draws = min(len(values), len(best))
    return _ratio(values[:draws] - best[:draws], weight[:draws])
