"""States say which block is written next, so that pages and terminals can show it."""

from __future__ import annotations

from itertools import pairwise

import pytest

from support.helpers import random_lm
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.types import State


def block_lm(*more: str) -> LM:
    return random_lm(bytes_tokenizer(), "data.length=24", "model.method=block", "block.size=8", *more, scale=2.0)


def states(lm: LM, prompt: str = "ab", suffix: str = "", length: int = 22, **how) -> list[State]:
    seen: list[State] = []
    canvas = lm.prompt_canvas(prompt, length, suffix, "stride" in how)
    lm.write([canvas], seed=3, stop_at_eos=False, watch=seen.append, **how)
    return seen


@pytest.mark.parametrize(
    "how",
    [
        {"steps": 3},
        {"block": 5, "sampler": "confidence", "k": 2},
        {"sampler": "remask-cap", "eta": 0.4, "steps": 5},
        {"length": 50, "stride": 12, "steps": 3},
    ],
)
def test_what_is_written_next_is_in_the_block_that_was_named(how):
    seen = states(block_lm(), **how)
    assert len({state.block for state in seen}) >= 3
    for before, after in pairwise(seen):
        assert before.block is not None
        start, end = before.block
        assert 0 <= start < end <= len(before.canvas) and end - start <= how.get("block", 8)
        assert start <= before.fixed and all(start <= p < end for p in after.positions.tolist())
    assert seen[-1].done and seen[-1].block is None


def test_a_text_that_is_a_single_block_names_none():
    lm = block_lm()
    other = random_lm(bytes_tokenizer(), "data.length=24", scale=2.0)
    for seen in (states(lm, suffix="yz"), states(lm, block=24), states(other), states(other, length=40, stride=12)):
        assert seen and all(state.block is None for state in seen)
