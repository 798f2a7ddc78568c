"""The blocks of rows: cut and joined, and their times in strata over all blocks of the global batch."""

from __future__ import annotations

from itertools import pairwise

import numpy as np
import pytest
import torch
from torch import Tensor

from unmask.process.blocks import block_batch, block_times, join_blocks, n_blocks, split_rows
from unmask.process.counts import count_chances, hidden_sets
from unmask.process.keys import Keys
from unmask.process.schedule import ContinuousTime, Polynomial
from unmask.types import Batch

LAW = ContinuousTime(0.1)
ROWS, LENGTH, SIZE = 6, 12, 4


def batch_of(rows: int = ROWS, length: int = LENGTH, **more) -> Batch:
    return Batch(torch.arange(rows * length).view(rows, length), torch.arange(rows), rows, **more)


def times(batch: Batch, step: int, size: int = SIZE, stratified: bool = True) -> Tensor:
    return block_times(LAW, batch, size, Keys(3, step), stratified)


@pytest.mark.parametrize("size", [1, 2, 3, 4, 5, 11, 12, 20])
def test_joining_undoes_splitting(size):
    batch = batch_of()
    blocks = split_rows(batch.tokens, size)
    assert blocks.shape == (ROWS * n_blocks(LENGTH, size), size)
    assert torch.equal(join_blocks(blocks, LENGTH), batch.tokens)
    for row, place in ((0, 0), (2, 7), (5, 11)):
        assert blocks[row * n_blocks(LENGTH, size) + place // size, place % size] == batch.tokens[row, place]


def test_a_block_is_a_row_with_all_that_a_row_has():
    flags = {name: torch.rand(ROWS, 10) < 0.5 for name in ("scored", "present", "given", "padding")}
    batch = batch_of(length=10, label=torch.arange(ROWS), **flags)
    blocks = block_batch(batch, SIZE)
    assert len(blocks) == blocks.total == 3 * ROWS and blocks.index.flatten().tolist() == list(range(3 * ROWS))
    assert blocks.label is not None and blocks.label.tolist() == [row for row in range(ROWS) for _ in range(3)]
    for name in ("free", "weight", "counted"):  # and what is beyond the end of a row does not exist
        value = getattr(blocks, name)()
        assert torch.equal(join_blocks(value, 10), getattr(batch, name)())
        assert not value.view(ROWS, 12)[:, 10:].any()
    plain = block_batch(batch_of(length=10), SIZE)
    assert plain.free().sum() == plain.weight().sum() == 10 * ROWS


def test_every_stratum_has_one_block_of_the_global_batch():
    n = ROWS * LENGTH // SIZE
    for step in range(5):
        drawn = times(batch_of(), step)
        blocks = split_rows(drawn, SIZE)
        assert (blocks == blocks[:, :1]).all()  # one time for all positions of a block
        assert sorted(torch.floor(blocks[:, 0] * n).long().tolist()) == list(range(n))


def test_a_block_gets_any_stratum():
    """Public code gives the first block of a row the smallest times, in every step."""
    n, steps = ROWS * LENGTH // SIZE, 1800
    places = torch.stack([torch.floor(split_rows(times(batch_of(), step), SIZE)[:, 0] * n) for step in range(steps)])
    for block in (0, 7, n - 1):
        counts = np.bincount(places[:, block].long(), minlength=n)
        assert ((counts - steps / n) ** 2 / (steps / n)).sum() < 45  # 17 degrees of freedom
    assert abs(float(torch.corrcoef(places[:, :2].T)[0, 1])) < 0.15  # nor do neighbours go together


@pytest.mark.parametrize("stratified", [True, False])
def test_a_batch_may_be_cut_in_any_way(stratified):
    batch = batch_of()
    whole = times(batch, 2, stratified=stratified)
    for cut in ([0, 1, 6], [0, 2, 3, 6]):
        parts = [times(batch.rows(torch.arange(a, b)), 2, stratified=stratified) for a, b in pairwise(cut)]
        assert torch.equal(torch.cat(parts), whole)
    n = ROWS * LENGTH // SIZE
    one_each = len(set(torch.floor(split_rows(whole, SIZE)[:, 0] * n).tolist())) == n
    assert one_each is stratified


def test_counts_are_in_strata_over_all_blocks():
    """Of 750 blocks, as many hide n positions as their chances say, to within one."""
    blocks = block_batch(batch_of(250), SIZE)
    hidden, _ = hidden_sets(blocks, Keys(1), LAW, Polynomial())
    chances, _ = count_chances(LAW, Polynomial(), SIZE, True)
    np.testing.assert_allclose(np.bincount(hidden.sum(1), minlength=SIZE + 1), 750 * chances, atol=1.01)
    firsts = hidden.view(250, 3, SIZE)[:, 0].sum(1)
    assert len(firsts.unique()) == SIZE  # first blocks too hide any number
