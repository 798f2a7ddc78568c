"""The exact law of writing one token at a time in random order, and the pseudo-likelihood (which is not a law).

A network without time conditioning, sampled with infinitely many steps, reveals one position after the other in
uniformly random order. So p(x) is the mean over all m! orders of the product of p(x_i | the tokens revealed before).
These are a set, and there are only 2^m sets: the chance of passing through a set is a sum over its last members.
Of a model with blocks p(x) is the product over blocks of such means, each given the blocks before it.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import numpy as np
import torch
from torch import Tensor

from ..models.block_diffusion import whole_row
from ..models.language_model import LanguageModel
from ..models.masked import MaskedDiffusion
from ..process.blocks import block_places
from ..process.schedule import Schedule
from ..types import Batch, Progress, UserError
from .predictions import diffusion, token_nll

MOST_TOKENS = 14  # 2^14 network calls
MOST_IN_BLOCK = 16  # of a model with blocks: all blocks of a text share these calls


def exact_nats(
    model: LanguageModel, batch: Batch, free: Tensor, batch_size: int, progress: Progress | None = None
) -> np.ndarray:
    """(B,) -log p(free positions | the others): tokens one at a time, every order of a block (or row) alike."""
    net = diffusion(model, "exact", timeless=True)
    blocks = [block_places(row, net.block_size) for row in free]
    most = [max(map(len, parts), default=0) for parts in blocks]
    limit = MOST_TOKENS if net.block_size is None else MOST_IN_BLOCK
    if (m := max(most)) > limit:
        shorter = "name a shorter span" if net.block_size is None else "choose a smaller block"
        raise UserError(
            f"{m} tokens have 2^{m} sets of masks, and method 'exact' evaluates each; it allows at most {limit} "
            f"tokens: {shorter}, or use method 'orders'"
        )
    todo, done = sum(2**m for m in most), 0

    def seen(calls: int) -> None:
        nonlocal done
        done += calls
        if progress:
            progress(done, todo)

    return np.array([_all_sets(net, batch, i, parts, batch_size, seen) for i, parts in enumerate(blocks)])


def _all_sets(
    net: MaskedDiffusion, batch: Batch, row: int, blocks: list[Tensor], batch_size: int, seen: Callable[[int], None]
) -> float:
    """One row, whose free positions are given block by block. A network call is for one set of every block."""
    m, length = max(map(len, blocks), default=0), batch.tokens.shape[1]
    sets = np.arange(2**m)
    known = (sets[:, None] >> np.arange(m)) & 1 == 1  # (2^m, m)
    reached = np.full((len(blocks), 2**m), -np.inf)  # log chance of passing through a set with the tokens of x in it
    reached[:, 0] = 0.0
    for size in range(m):
        of_size = sets[known.sum(1) == size]
        masked = torch.zeros(len(of_size), length, dtype=torch.bool)
        for places in blocks:
            masked[:, places] = torch.from_numpy(~known[of_size][:, : len(places)])
        rows = torch.full((len(of_size),), row)
        ones = torch.ones(len(of_size), dtype=torch.float64)
        nll = token_nll(net, batch, rows, masked, masked, ones, batch_size).numpy()
        for log_p, places in zip(reached, blocks, strict=True):
            for i, place in enumerate(places.tolist()):
                still = ~known[of_size, i] & (of_size < 2 ** len(places))
                before, after = of_size[still], of_size[still] | (1 << i)
                step = log_p[before] - nll[still, place] - math.log(max(1, len(places) - size))
                log_p[after] = np.logaddexp(log_p[after], step)
        seen(len(of_size))
    seen(1)  # the set of all, which needs no call
    return -float(sum(log_p[2 ** len(places) - 1] for log_p, places in zip(reached, blocks, strict=True)))


def pseudo_nats(model: LanguageModel, batch: Batch, free: Tensor, batch_size: int) -> Tensor:
    """(B, L) -log p(token | all the others), for free positions.

    The sum is a pseudo-log-likelihood. It is useful for ranking and is not the likelihood of anything: over all texts
    exp(-sum) adds up to more than 1 wherever tokens depend on each other. A model with blocks sees the whole row.
    """
    net = diffusion(whole_row(model), "pll")
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
