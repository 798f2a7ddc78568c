"""Order: every epoch is every row once, and neither processes nor restarts change it."""

import json

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.config import DataConfig
from unmask.data.loader import eval_batch, train_batch, train_rows
from unmask.data.pack import prepare


@pytest.fixture
def rows(tmp_path):
    def make(layout="wrap", **more):
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps({"text": f"text {i} " + "x" * (i % 9)}) + "\n" for i in range(40)))
        spec = DataConfig(
            source=str(path),
            cache=str(tmp_path / "cache"),
            tokenizer="bytes",
            length=12,
            layout=layout,
            valid_fraction=0,
            test_fraction=0,
            **more,
        )
        return prepare(spec).split("train")

    return make


@given(st.integers(1, 200), st.integers(0, 9), st.integers(1, 64))
def test_every_epoch_visits_every_row_once(total, seed, batch_size):
    order = np.concatenate([train_rows(total, seed, step, batch_size, range(batch_size)) for step in range(2 * total)])
    for epoch in range(len(order) // total):
        assert sorted(order[epoch * total : (epoch + 1) * total]) == list(range(total))


def test_epochs_and_seeds_have_their_own_order():
    def epoch(number, seed):
        return tuple(train_rows(50, seed, number, 50, range(50)))

    assert len({epoch(0, 0), epoch(1, 0), epoch(2, 0), epoch(0, 1)}) == 4


def test_large_data_sets_need_no_table():
    total = 10**10
    found = train_rows(total, 0, 7, 1000, range(1000))
    assert len(set(found.tolist())) == 1000
    assert found.min() >= 0
    assert found.max() < total
    assert abs(found.mean() / total - 0.5) < 0.05


@pytest.mark.parametrize("layout", ["wrap", "pad"])
def test_two_processes_see_the_batch_of_one(rows, layout):
    data = rows(layout)
    for step in range(12):
        one = train_batch(data, False, 3, step, 8, range(8))
        parts = [train_batch(data, False, 3, step, 8, slots) for slots in (range(0, 8, 2), range(1, 8, 2))]
        assert one.total == parts[0].total == 8
        assert one.index.tolist() == list(range(8))
        for rank, part in enumerate(parts):
            assert part.index.tolist() == list(range(rank, 8, 2))
            assert part.tokens.equal(one.tokens[rank::2])
            if layout == "pad":
                assert part.scored.equal(one.scored[rank::2])


def test_resume_is_arithmetic(rows):
    data = rows()
    through = [train_batch(data, False, 0, step, 16, range(16)).tokens for step in range(9)]
    for step in (8, 3, 0):  # in any order, without the steps before
        assert train_batch(data, False, 0, step, 16, range(16)).tokens.equal(through[step])


def test_padding_counts_nowhere_and_is_seen_only_if_asked(rows):
    data = rows("pad", learn_end=False)
    hidden, seen = (train_batch(data, attend, 0, 0, 4, range(4)) for attend in (False, True))
    assert hidden.present.equal(hidden.scored)
    assert seen.present is None
    assert seen.scored.equal(hidden.scored)
    assert not hidden.scored.all()
    assert (hidden.tokens[~hidden.scored] == 257).all()
    wrapped = train_batch(rows("wrap"), False, 0, 0, 4, range(4))
    assert wrapped.scored is None
    assert wrapped.present is None


def test_eval_batches_are_placed_in_the_data_set(rows):
    data = rows()
    batch = eval_batch(data, [5, 2])
    assert batch.index.tolist() == [5, 2]
    assert batch.total == len(data)
    assert np.array_equal(batch.tokens.numpy(), data.rows([5, 2])[0])
