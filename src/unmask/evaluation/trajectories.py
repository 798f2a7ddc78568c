"""The likelihood of a plan: follow it, but write the text (`sampling.replay`).

Where the plan's order depends on nothing but the network's predictions, there is one order for a text, and the product
of the probabilities of its tokens is the exact likelihood. Where the order is random, p(x) is a mean over orders, and K
of them give the importance-weighted bound

    IW_K = -log( mean over k of p(x | order k) )

whose expectation is at least -log p(x), falls with K, and for K = 1 is the evidence bound of the plan.

Of a model with blocks p(x) is a product over blocks, the plan is that of each block, and so is IW_K: the mean is over
K orders of a block, given the blocks before it, and the bounds of the blocks add up. That is tighter than K orders of
the whole text.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ..models.language_model import LanguageModel
from ..process.blocks import split_rows
from ..process.keys import Keys
from ..sampling import BlockByBlock, FirstHitting, RevealPlan, Sampler, replay
from ..types import Batch, UserError
from .predictions import RowNats, diffusion


def plan_nats(
    model: LanguageModel,
    batch: Batch,
    free: Tensor,
    plan: Sampler,
    keys: Keys,
    *,
    orders: int = 1,
    draws: int = 1,
    batch_size: int = 32,
) -> RowNats:
    """-log p(free positions | the others) under a plan: exact if it is deterministic, else IW_K with K = `orders`.

    A model with blocks follows it block after block, and a block does not see what is given after it.
    """
    net = diffusion(model, "plan" if plan.deterministic else "orders")
    plan.check(net)
    if not plan.deterministic and not isinstance(plan, FirstHitting | RevealPlan):
        raise UserError(
            f"{type(plan).__name__} has no likelihood that could be replayed; choose left-to-right, order, confidence, "
            "entropy or margin, or a random order with method 'orders'"
        )
    size, many = net.block_size, 1 if plan.deterministic else orders * draws
    canvases, targets = zip(*(_canvas(batch, free, i, net.vocab.mask) for i in range(len(batch))), strict=True)
    names = [
        keys.at(k // orders).fork(f"order {k % orders} of row {int(index)}")
        for index in batch.index
        for k in range(many)
    ]
    log_probs = replay(
        net.denoiser(),
        [c for c in canvases for _ in range(many)],
        [t for t in targets for _ in range(many)],
        plan if size is None or plan.sets_blocks else BlockByBlock(plan, size, ahead=False),
        names,
        batch_size,
        labels=None if batch.label is None else [int(label) for label in batch.label for _ in range(many)],
    )
    if plan.deterministic:
        tokens = torch.zeros(batch.tokens.shape, dtype=torch.float64)
        for i, log_p in enumerate(log_probs):
            tokens[i, : len(log_p)] = -log_p
        return RowNats(tokens.sum(1, keepdim=True).numpy(), tokens.numpy(), np.zeros(len(batch)))
    width = batch.tokens.shape[1]
    padded = torch.stack([F.pad(log_p, (0, width - len(log_p))) for log_p in log_probs])
    sums = split_rows(padded, size or width).sum(1).reshape(len(batch), draws, orders, -1).movedim(-1, 1)
    nats, error = iw_bound(sums.flatten(0, 1).numpy())  # of blocks
    nats = nats.reshape(len(batch), -1, draws).sum(1)
    if error is not None:
        error = np.sqrt((error.reshape(len(batch), -1) ** 2).sum(1))
    return RowNats(nats, None, error if draws == 1 else None)


def _canvas(batch: Batch, free: Tensor, row: int, mask: int) -> tuple[Tensor, Tensor]:
    """(canvas with the free positions masked, the tokens to write), without padding that does not exist."""
    length = batch.tokens.shape[1] if batch.present is None else int(batch.present[row].sum())
    target = batch.tokens[row, :length].cpu()
    return torch.where(free[row, :length].cpu(), mask, target), target


def iw_bound(log_p: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
    """(IW_K (B, draws), its jackknife error (B,)) from log p(x | order) of shape (B, draws, K)."""
    orders = log_p.shape[-1]
    nats = np.log(orders) - np.logaddexp.reduce(log_p, axis=-1)
    if orders == 1:
        return nats, None
    left_out = [np.delete(log_p, k, axis=-1) for k in range(orders)]
    without = np.stack([np.logaddexp.reduce(rest, axis=-1) for rest in left_out], axis=-1) - np.log(orders - 1)
    variance = ((without - without.mean(-1, keepdims=True)) ** 2).sum(-1) * (orders - 1) / orders
    return nats, np.sqrt(variance.mean(-1))
