"""The exact law of writing one token at a time in random order, and the pseudo-likelihood (which is not a law).

A network without time conditioning, sampled with infinitely many steps, reveals one position after the other in
uniformly random order. So p(x) is the mean over all m! orders of the product of p(x_i | the tokens revealed before).
These are a set, and there are only 2^m sets: the chance of passing through a set is a sum over its last members.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..models.language_model import LanguageModel
from ..models.masked import MaskedDiffusion
from ..process.schedule import Schedule
from ..types import Batch, Progress, UserError
from .predictions import diffusion, token_nll

MOST_TOKENS = 14  # 2^14 network calls


def exact_nats(
    model: LanguageModel, batch: Batch, free: Tensor, batch_size: int, progress: Progress | None = None
) -> np.ndarray:
    """(B,) -log p(free positions | the others): tokens one at a time, every order alike."""
    net = diffusion(model, "exact", timeless=True)
    most = int(free.sum(1).max())
    if most > MOST_TOKENS:
        raise UserError(
            f"{most} tokens have 2^{most} sets of masks, and method 'exact' evaluates each; it allows at most "
            f"{MOST_TOKENS} tokens: name a shorter span, or use method 'orders'"
        )
    todo, done = int((2 ** free.sum(1)).sum()), 0

    def seen(calls: int) -> None:
        nonlocal done
        done += calls
        if progress:
            progress(done, todo)

    return np.array([_all_sets(net, batch, i, free[i].cpu(), batch_size, seen) for i in range(len(batch))])


def _all_sets(
    net: MaskedDiffusion, batch: Batch, row: int, free: Tensor, batch_size: int, seen: Callable[[int], None]
) -> float:
    positions = torch.nonzero(free).squeeze(-1)
    m = len(positions)
    sets = np.arange(2**m)
    known = (sets[:, None] >> np.arange(m)) & 1 == 1  # (2^m, m)
    reached = np.full(2**m, -np.inf)  # log chance of passing through a set with the tokens of x in it
    reached[0] = 0.0
    for size in range(m):
        of_size = sets[known.sum(1) == size]
        masked = torch.zeros(len(of_size), len(free), dtype=torch.bool)
        masked[:, positions] = torch.from_numpy(~known[of_size])
        rows = torch.full((len(of_size),), row)
        ones = torch.ones(len(of_size), dtype=torch.float64)
        nll = token_nll(net, batch, rows, masked, masked, ones, batch_size)[:, positions].numpy()
        for i in range(m):
            still = ~known[of_size, i]
            before, after = of_size[still], of_size[still] | (1 << i)
            step = reached[before] - nll[still, i] - math.log(m - size)
            reached[after] = np.logaddexp(reached[after], step)
        seen(len(of_size))
    seen(1)  # the set of all, which needs no call
    return -float(reached[-1])


def pseudo_nats(model: LanguageModel, batch: Batch, free: Tensor, batch_size: int) -> Tensor:
    """(B, L) -log p(token | all the others), for free positions.

    The sum is a pseudo-log-likelihood. It is useful for ranking and is not the likelihood of anything: over all texts
    exp(-sum) adds up to more than 1 wherever tokens depend on each other.
    """
    net = diffusion(model, "pll")
    row, place = torch.nonzero(free.cpu(), as_tuple=True)
    masked = torch.zeros(len(row), batch.tokens.shape[1], dtype=torch.bool)
    masked[torch.arange(len(row)), place] = True
    share = 1 / free.cpu().sum(1).double()[row]
    t = time_of(net.schedule, share)
    nll = token_nll(net, batch, row, masked, masked, t, batch_size)
    out = torch.zeros(batch.tokens.shape, dtype=torch.float64)
    out[row, place] = nll[torch.arange(len(row)), place]
    return out


def time_of(schedule: Schedule, share: Tensor) -> Tensor:
    """The time at which this share of positions is hidden."""
    last, first = schedule.alpha(torch.tensor([1.0, 0.0], dtype=torch.float64))
    return schedule.inverse(torch.minimum(1 - share * (1 - last), first))
