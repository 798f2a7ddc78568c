"""Streams depend on their name only, look uniform, and `permute` is a permutation of any range."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from unmask.process.keys import Keys


def test_a_row_does_not_depend_on_the_rows_beside_it():
    keys = Keys(3, 7)
    together = keys.uniform("mask", torch.tensor([5, 2, 900_000_000_000]), 4)
    for row, index in enumerate([5, 2, 900_000_000_000]):
        assert torch.equal(together[row], keys.uniform("mask", [index], 4)[0])
    assert torch.equal(together[:, :2], keys.uniform("mask", [5, 2, 900_000_000_000], 2))  # longer rows go on
    assert together.dtype == torch.float64 and keys.uniform("time", [1, 2]).shape == (2,)


def test_indices_of_a_row_share_a_stream():
    keys = Keys(3, 1)
    rows = torch.tensor([[10, 11, 12], [40, 41, 42]])
    for shape in ((), (2,)):
        drawn = keys.uniform("time", rows, *shape)
        assert torch.equal(drawn, keys.uniform("time", [10, 40], 3, *shape))
        assert len(drawn.unique()) == drawn.numel()


def test_streams_differ_by_every_part_of_their_name():
    names = [
        (seed, step, index, purpose)
        for seed in (0, 1, -1)
        for step in (0, 1, 2**40)
        for index in (0, 1, 2)
        for purpose in ("mask", "time", "mas", "k")
    ]
    first = {Keys(seed, step).uniform(purpose, [index])[0].item() for seed, step, index, purpose in names}
    assert len(first) == len(names)
    words = {Keys(seed, step).digest(purpose, index) for seed, step, index, purpose in names}
    assert len(words) == len(names)
    assert Keys(4, 1) == Keys(4).at(1) and Keys(4).at(1).at(0) == Keys(4)


def test_torch_seed_is_a_seed_that_torch_takes():
    seeds = {Keys(0, step).torch_seed("dropout", rank) for step in range(20) for rank in range(3)}
    assert len(seeds) == 60
    for seed in seeds:
        torch.Generator().manual_seed(seed)


def test_uniforms_are_uniform_within_a_stream_and_across_streams():
    within = Keys(0).uniform("mask", [0], 20_000)[0].numpy()
    across = Keys(0).uniform("mask", range(5000)).numpy()
    steps = np.array([Keys(0, step).uniform("mask", [0])[0].item() for step in range(5000)])
    for sample in (within, across, steps):
        assert stats.kstest(sample, "uniform").pvalue > 1e-3
        assert abs(np.corrcoef(sample[1:], sample[:-1])[0, 1]) < 4 / np.sqrt(len(sample))
        assert sample.min() >= 0 and sample.max() < 1
        assert len(np.unique(sample)) == len(sample)
    assert abs(np.corrcoef(across, steps)[0, 1]) < 4 / np.sqrt(5000)


def test_uniforms_have_53_bits():
    scaled = Keys(0).uniform("token", [0], 1000)[0].numpy() * 2.0**53
    assert (scaled == np.floor(scaled)).all()
    assert (scaled % 2).mean() == pytest.approx(0.5, abs=0.07)  # the last of the 53 bits is in use


@pytest.mark.parametrize("total", [1, 2, 3, 1000, 65_535, 65_536, 65_537, 70_001, 131_072, 131_073, 262_145])
def test_permute_is_a_bijection_of_the_whole_range(total):
    image = Keys(1, 2).permute("order", np.arange(total), total)
    assert image.dtype == np.int64
    assert np.array_equal(np.sort(image), np.arange(total))
    part = Keys(1, 2).permute("order", torch.arange(0, total, 7), total)  # any part, in any container
    assert np.array_equal(part, image[::7])
    assert np.array_equal(Keys(1, 2).permute("order", [total - 1, 0], total), image[[total - 1, 0]])


@settings(max_examples=40)
@given(total=st.integers(65_537, 2**50), start=st.integers(0, 2**50), seed=st.integers(0, 2**32))
def test_permute_stays_inside_and_injective_for_any_total(total, start, seed):
    index = np.unique(np.concatenate([np.arange(500) + start % total, np.arange(500), total - 1 - np.arange(500)]))
    index = index[index < total]
    image = Keys(seed).permute("order", index, total)
    assert image.min() >= 0 and image.max() < total
    assert len(np.unique(image)) == len(index)


@pytest.mark.parametrize("total", [500, 100_003])
def test_permute_looks_random(total):
    """Where an index goes is uniform over keys, and so is where others go relative to it, powers of 2 away too."""
    index = [0, 1, 2, 128, 256, *([] if total < 1000 else [512, 1024, 65_536]), total - 1]
    images = np.array([Keys(seed).permute("order", index, total) for seed in range(1500)]) / total
    for column in images.T:
        assert stats.kstest(column, "uniform").pvalue > 1e-3
    for column in images.T[1:]:
        assert stats.kstest((column - images[:, 0]) % 1, "uniform").pvalue > 1e-3
    assert abs(np.corrcoef(images.T) - np.eye(len(index))).max() < 4 / np.sqrt(1500)
    whole = Keys(0).permute("order", np.arange(total), total)
    assert abs(np.corrcoef(whole, np.arange(total))[0, 1]) < 4 / np.sqrt(total)
    assert 0 <= (whole == np.arange(total)).sum() <= 8  # fixed points are Poisson(1)


def test_permutations_differ_by_step_and_purpose():
    for total in (1000, 70_001):
        index = np.arange(1000)
        first = Keys(0, 0).permute("order", index, total)
        for other in (Keys(0, 1).permute("order", index, total), Keys(0).permute("strata", index, total)):
            assert (first == other).mean() < 0.02


def test_permute_refuses_an_index_outside():
    with pytest.raises(AssertionError):
        Keys(0).permute("order", [10], 10)


def test_the_streams_are_these_and_no_others():
    """Golden: a seed means the same numbers in every release. Changing the hash changes every recorded result, and how
    corpora are divided: raise SPLITTING in data/corpora.py with it, so that old caches are not mixed with new ones."""
    golden = [[0.6202592702265849, 0.7355835333072649], [0.43996140214543633, 0.5989324665073608]]
    assert Keys(0).uniform("mask", [0, 1], 2).tolist() == golden
    assert Keys(7, 3).permute("strata", range(5), 5).tolist() == [3, 4, 0, 2, 1]
    assert Keys(7, 3).permute("strata", range(3), 10**6).tolist() == [743636, 534520, 376689]


def test_uniforms_are_the_beginnings_of_their_streams():
    """Also in threads that draw at the same time, and beside a stream that is half read."""
    keys, rows = Keys(5, 2), range(40)
    want = np.stack([keys.stream("x", row).random((3,)) for row in rows])
    half = keys.stream("x", 7)
    half.random(2)
    with ThreadPoolExecutor(4) as pool:
        drawn = list(pool.map(lambda _: keys.uniform("x", rows, 3), range(8)))
    assert all((uniforms.numpy() == want).all() for uniforms in drawn)
    assert half.random() == want[7, 2]
