"""The blocks of a row, each a row of its own: a bound over blocks is a sum of bounds of these.

Blocks begin at multiples of their size; the last one may be shorter, and the rest of it does not exist.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..types import Batch
from .keys import Keys
from .schedule import Law


def n_blocks(length: int, size: int) -> int:
    """How many blocks a row has, the shorter last one included."""
    return -(-length // size)


def split_rows(values: Tensor, size: int) -> Tensor:
    """(B, L) to (B · blocks, size), filled with 0 or False at the end of a row."""
    length = values.shape[1]
    return F.pad(values, (0, n_blocks(length, size) * size - length)).reshape(-1, size)


def join_blocks(values: Tensor, length: int) -> Tensor:
    """(B · blocks, size) to (B, length): the inverse of `split_rows`."""
    return values.reshape(-1, n_blocks(length, values.shape[1]) * values.shape[1])[:, :length]


def block_places(chosen: Tensor, size: int | None) -> list[Tensor]:
    """The chosen positions of a row, from a boolean (L,), block by block; blocks without any are left out."""
    places = torch.nonzero(chosen.cpu()).squeeze(-1)
    block = torch.zeros_like(places) if size is None else places // size
    return list(places.split(torch.unique_consecutive(block, return_counts=True)[1].tolist()))


def block_batch(batch: Batch, size: int) -> Batch:
    """The blocks of a batch as rows, with a place of their own among all blocks of the global batch.

    Their index is (B, blocks of a row): a random stream for each block would take seconds a step.
    """
    count = n_blocks(batch.tokens.shape[1], size)
    index = batch.index[:, None] * count + torch.arange(count)
    exists = torch.ones_like(batch.tokens, dtype=torch.bool) if batch.present is None else batch.present
    parts = {
        name: None if (value := getattr(batch, name)) is None else split_rows(value, size)
        for name in ("scored", "given", "padding")
    }
    if parts["scored"] is None:
        parts["scored"] = split_rows(torch.ones_like(exists), size)
    label = None if batch.label is None else batch.label.repeat_interleave(count)
    tokens, present = split_rows(batch.tokens, size), split_rows(exists, size)
    return Batch(tokens, index, batch.total * count, present=present, label=label, **parts)


def block_times(law: Law, batch: Batch, size: int, keys: Keys, stratified: bool) -> Tensor:
    """(B, L) uniforms, the same for all positions of a block: strata over all blocks of the global batch."""
    blocks = block_batch(batch, size)
    uniform = law.uniforms(blocks.index, blocks.total, size, keys, stratified)
    assert uniform.shape == blocks.index.shape, "a law with several times in a row has no time per block"
    return join_blocks(uniform.reshape(-1, 1).expand(-1, size), batch.tokens.shape[1])
