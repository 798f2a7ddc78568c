"""What a cache costs: counted by hand, and as large as what a denoiser really holds."""

from __future__ import annotations

import pytest
import torch

from support.helpers import random_lm
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.models import registry
from unmask.recipes import with_overrides
from unmask.sampling import Batcher, SamplingParams

SIZES = ("data.length=48", "model.hidden_dim=32", "model.n_blocks=3")


def lm_of(method: str, *more: str) -> LM:
    return random_lm(bytes_tokenizer(), *SIZES, f"model.method={method}", *more, scale=2.0)


def request_of(lm: LM, prompt: str, length: int, row: int = 0, **how):
    canvas = lm.prompt_canvas(prompt, length, windowed="stride" in how)
    return lm.request(canvas, SamplingParams(seed=row, stop_at_eos=False, **how), row=row)


def test_bytes_of_a_sequence_by_hand():
    column = 2 * 3 * 32 * 4  # keys and values, blocks, numbers, bytes
    assert lm_of("block", "block.size=8").model.cache_bytes(20) == 20 * column
    assert lm_of("ar").model.cache_bytes(20) == 21 * column  # with a start symbol
    assert lm_of("ar", "objective.start_token=false").model.cache_bytes(20) == 20 * column
    assert lm_of("mdlm").model.cache_bytes(20) == 0
    config = with_overrides("tiny", ["model.network=mamba", "model.method=ar", "model.n_blocks=2"])
    recurrent = registry.model(config, bytes_tokenizer().vocab)
    assert recurrent.cache_bytes(20) == recurrent.cache_bytes(2000) > 0  # a state


def test_bytes_of_a_request():
    lm = lm_of("block", "block.size=8")
    column = lm.model.cache_bytes(1)
    assert lm.cache_bytes(request_of(lm, "a", 30)) == 30 * column
    assert lm.cache_bytes(request_of(lm, "a", 30, block=30)) == 0  # nothing comes before a single block
    assert lm.cache_bytes(request_of(lm, "a", 30, block="full")) == 0
    gap = lm.request(lm.prompt_canvas("a", 30, "b"), SamplingParams())
    assert lm.cache_bytes(gap) == 0  # a single block, as there is text after it
    whole = lm_of("block", "block.size=full")
    assert whole.cache_bytes(request_of(whole, "a", 30)) == 0
    assert whole.cache_bytes(request_of(whole, "a", 30, sampler="speculative")) == 30 * column
    assert lm.cache_bytes(request_of(lm, "a", 90, stride=24)) == 48 * column  # a window
    assert lm.cache_bytes(request_of(lm, "a", 90, stride=24, block=48)) == 0
    late = lm.prompt_canvas("a", 90, "b", windowed=True)  # windows that do not see what follows the gap are in blocks
    assert lm.cache_bytes(lm.request(late, SamplingParams(stride=24))) == 48 * column
    ar = lm_of("ar")
    assert ar.cache_bytes(request_of(ar, "a", 30)) == 31 * column


@pytest.mark.parametrize("method", ["block", "ar"])
def test_a_denoiser_holds_what_it_has_read_and_no_more(method):
    lm = lm_of(method, "block.size=8")
    batcher, column = lm.model.batcher(4), lm.model.cache_bytes(2) - lm.model.cache_bytes(1)
    how = {} if method == "ar" else {"sampler": "first-hitting"}
    batcher.add(request_of(lm, "ab", 40, **how))
    assert held(batcher) == 0
    while batcher.busy:
        ((state, _),) = batcher.step()
        asked = int(state.positions[0])  # with an AR model all before it and a start symbol, else all blocks before it
        read = asked + 1 if method == "ar" else asked // 8 * 8
        assert held(batcher) == (0 if state.done else read * column)


@pytest.mark.parametrize("method", ["block", "ar"])
def test_what_is_dropped_is_not_held_for_the_others(method):
    lm = lm_of(method, "block.size=8")
    batcher, column = lm.model.batcher(4), lm.model.cache_bytes(2) - lm.model.cache_bytes(1)
    how = {} if method == "ar" else {"sampler": "first-hitting"}
    for row, length in enumerate((48, 40, 48)):
        batcher.add(request_of(lm, "ab", length, row, **how))
    for _ in range(24):
        batcher.step()
    assert len(batcher.model.read) == 3
    batcher.drop(0)
    batcher.drop(1)
    assert len(batcher.model.read) == 1
    for _ in range(8):  # into the next block
        ((state, _),) = batcher.step()
    asked = int(state.positions[0])
    assert held(batcher) == (asked + 1 if method == "ar" else asked // 8 * 8) * column
    batcher.drop(2)
    assert held(batcher) == 0 and not batcher.model.read


def held(batcher: Batcher) -> int:
    """Counted twice: as the denoiser says, and from its tensors."""
    caches = {id(read.rows): read.rows.cache for read in batcher.model.read.values()}.values()
    tensors = [x for cache in caches for layer in cache for x in layer]
    assert batcher.model.held_bytes == sum(torch.numel(x) * 4 for x in tensors)
    return batcher.model.held_bytes
