"""Which rows make up a batch, as arithmetic: any step, any slice of the global batch, no state to save.

Slot j of step k is sample number n = k * batch_size + j. Its epoch is n // len(rows), and its row is the image of
n % len(rows) under the permutation named (seed, epoch). So every epoch visits every row once, processes take
disjoint slots of the same batch, and resuming is calling with another step.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace

import numpy as np
import torch

from ..process.keys import Keys
from ..types import Batch
from .genome.bases import BOS, COMPLEMENT, PAD, SEP
from .pack import Rows


def train_rows(total: int, seed: int, step: int, batch_size: int, slots: Iterable[int]) -> np.ndarray:
    """The row in each slot of the global batch of a step, for a data set of `total` rows."""
    samples = np.array([step * batch_size + int(slot) for slot in slots], dtype=np.int64)
    epochs, places = samples // total, samples % total
    chosen = np.empty_like(samples)
    for epoch in np.unique(epochs):
        in_epoch = epochs == epoch
        chosen[in_epoch] = Keys(seed, int(epoch)).permute("data/order", places[in_epoch], total)
    return chosen


def train_batch(rows: Rows, attend_pads: bool, seed: int, step: int, batch_size: int, slots: Iterable[int]) -> Batch:
    """Some slots of the global batch of a training step; `index` is the slot, `total` the size of the batch."""
    slots = list(slots)
    assert all(0 <= slot < batch_size for slot in slots), "slot outside the global batch"
    chosen = train_rows(len(rows), seed, step, batch_size, slots)
    return _batch(rows, attend_pads, chosen, np.array(slots, dtype=np.int64), batch_size)


def drop_labels(batch: Batch, chance: float, keys: Keys) -> Batch:
    """The batch with labels hidden (-1) at random, slot by slot, so that a network learns to do without them."""
    if batch.label is None or not chance:
        return batch
    kept = (keys.uniform("label", batch.index) >= chance).to(batch.label.device)
    return replace(batch, label=torch.where(kept, batch.label, -1))


def flip_strands(batch: Batch, keys: Keys) -> Batch:
    """The batch with each row of bases, with chance 1/2, as its reverse complement: depends on step and slot only.

    Padding stays at the end; so does a beginning or an end of text.
    """
    length = batch.tokens.shape[1]
    flipped = keys.uniform("strand", batch.index) < 0.5
    if not flipped.any():
        return batch
    place = torch.arange(length)
    end = ((batch.tokens != PAD) * (place + 1)).amax(1)  # (B,) behind the last token
    first = (batch.tokens[:, 0] == BOS).long()
    last = end - (batch.tokens.gather(1, (end - 1).clamp(min=0)[:, None])[:, 0] == SEP).long()
    inside = (place >= first[:, None]) & (place < last[:, None]) & flipped[:, None]
    source = torch.where(inside, (first + last - 1)[:, None] - place, place)
    tokens = batch.tokens.gather(1, source)
    return replace(
        batch,
        tokens=torch.where(flipped[:, None], torch.from_numpy(COMPLEMENT)[tokens], tokens),
        scored=None if batch.scored is None else batch.scored.gather(1, source),
        present=None if batch.present is None else batch.present.gather(1, source),
        given=None if batch.given is None else batch.given.gather(1, source),
    )


def eval_batch(rows: Rows, indices: Iterable[int], attend_pads: bool = False) -> Batch:
    """Some rows of a split; `index` is the row, `total` the size of the split."""
    chosen = np.array([int(i) for i in indices], dtype=np.int64)
    return _batch(rows, attend_pads, chosen, chosen, len(rows))


def _batch(rows: Rows, attend_pads: bool, chosen: np.ndarray, index: np.ndarray, total: int) -> Batch:
    labels = rows.labels(chosen)
    fields = rows.fields(chosen, attend_pads)
    return Batch(
        index=torch.from_numpy(index),
        total=total,
        label=None if labels is None else torch.from_numpy(labels),
        **{name: torch.from_numpy(values) for name, values in fields.items() if values is not None},
    )
