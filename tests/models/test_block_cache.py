"""Block diffusion with a cache: the same as without one, nothing is read twice, and what has ended is let go."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor

from oracles.blocks import Rereader, read_block
from oracles.enumeration import CLEAN, MASK
from support.block_models import block_model, each_network, each_stream, every_network
from unmask.models.block_diffusion import BlockDiffusion, CachedBlocks
from unmask.process.keys import Keys
from unmask.sampling import (
    Adaptive,
    Ancestral,
    Batcher,
    BlockByBlock,
    Choice,
    FirstHitting,
    Gibbs,
    LeftToRight,
    PredictorCorrector,
    Remasking,
    Request,
    RevealPlan,
    Rules,
    Sampler,
    Slot,
    Windows,
)
from unmask.types import State

PLANS: dict[str, Sampler] = {
    "plan": RevealPlan(3),
    "one step": RevealPlan(1),
    "ancestral": Ancestral(3),
    "first-hitting": FirstHitting(),
    "left-to-right": LeftToRight(),
    "two at a time": LeftToRight(2),
    "confidence": Adaptive("confidence", k=1),
    "entropy": Adaptive("entropy", threshold=0.7),
    "margin": Adaptive("margin", steps=2),
    "entropy bound": Adaptive("confidence", entropy_bound=0.9),
    "euler": Ancestral(3, euler=True),
    "cap": Remasking(6, "cap", 0.6),
    "rescale": Remasking(6, "rescale", 0.6),
    "loop": Remasking(8, "loop", 0.5, (0.8, 0.2), 0.6),
    "corrector": PredictorCorrector(3, 2, 0.5),
    "gibbs": Gibbs(11),
    "gibbs parallel": Gibbs(3, "parallel"),
}
CANVASES = [
    [MASK] * 9,
    [2, 0, 3, MASK, MASK, MASK, MASK],
    [0, 0, 2, 3, MASK],
    [MASK, MASK, 3, MASK, MASK, MASK],  # text after a gap: a single block
    [2, 3, 0, 2, 3, 3, 0, 0, MASK, MASK, MASK],
    [MASK],
    [2, 2, 3],
]
SIZES = [1, 2, 3, 4, 16]

# -- requests to their end -------------------------------------------------------------------------------------------


def run(denoiser: CachedBlocks, requests: Sequence[Request], batch_size: int) -> list[list[tuple[State, Tensor]]]:
    """All states of every request, with the log-probabilities of what was written."""
    batcher, out = Batcher(denoiser, batch_size), [[] for _ in requests]
    for request in requests:
        batcher.add(request)
    while batcher.busy:
        for state, log_probs in batcher.step():
            assert state.error is None
            out[state.row].append((state, log_probs))
    assert not denoiser.read
    return out


def same(model: BlockDiffusion, requests: Sequence[Request], *batch_sizes: int) -> list[list[tuple[State, Tensor]]]:
    """The states without a cache, which are those with one, in batches of these sizes."""
    truth = run(Rereader(model), requests, 1)
    for size in batch_sizes:
        for ours, theirs in zip(run(model.denoiser(), requests, size), truth, strict=True):
            assert len(ours) == len(theirs)
            for (state, log_probs), (other, expected) in zip(ours, theirs, strict=True):
                assert torch.equal(state.canvas, other.canvas) and torch.equal(state.positions, other.positions)
                assert (state.step, state.t, state.calls, state.fixed) == (
                    other.step, other.t, other.calls, other.fixed,
                )  # fmt: skip
                torch.testing.assert_close(log_probs, expected, rtol=1e-4, atol=1e-5)
    return truth


def request(row: int, canvas: Sequence[int], sampler: Sampler, **more: Any) -> Request:
    return Request(row, torch.tensor(canvas), sampler, Keys(row), **more)


def every_kind() -> list[Request]:
    """Every plan, with block sizes and canvases that go round."""
    return [
        request(i, CANVASES[i % len(CANVASES)], BlockByBlock(plan, SIZES[i % len(SIZES)]))
        for i, plan in enumerate(PLANS.values())
    ]


@every_network
@each_stream
def test_a_cache_changes_nothing(network, clean):
    """Lengths, block sizes, steps, prompts and samplers of all kinds side by side, in batches of 4 and all."""
    told = same(block_model(network, clean), every_kind(), 4, len(PLANS))
    for asked, states in zip(every_kind(), told, strict=True):
        last = states[-1][0].canvas
        given = asked.canvas != MASK
        assert torch.equal(last[given], asked.canvas[given]) and (last != MASK).all()
        assert states[-1][0].done and states[-1][0].fixed == len(last)


@pytest.mark.parametrize("name", PLANS)
@pytest.mark.parametrize("size", [1, 2, 4])
def test_a_cache_changes_nothing_for_any_plan(name, size):
    requests = [request(i, canvas, BlockByBlock(PLANS[name], size)) for i, canvas in enumerate(CANVASES[:3])]
    same(block_model(), requests, 3)


@each_network
def test_labels_and_guidance_have_caches_of_their_own(network):
    model = block_model(network, n_labels=2)
    kinds = [(None, 1.0), (0, 1.0), (1, 1.0), (0, 2.5), (1, 0.0), (1, 0.5)]
    prompt = object()
    requests = [
        request(
            i,
            CANVASES[4] if i % 2 else CANVASES[1],
            BlockByBlock(FirstHitting(), 1 + i % 3),
            label=label,
            guidance=scale,
            prompt=prompt if i % 2 else None,
        )
        for i, (label, scale) in enumerate(kinds * 2)
    ]
    told = same(model, requests, 1, 4, 12)
    assert told[3][-1][0].calls == 2 * told[1][-1][0].calls
    chances = [float(torch.cat([log_probs for _, log_probs in states]).sum()) for states in told[:6]]
    assert len({round(chance, 6) for chance in chances}) == 6


def test_rules_and_choices_are_those_of_the_whole_text():
    rules = Rules(banned=frozenset({2}), allowed={4: [3]})
    choices = [Choice(temperature=0.5), Choice(top_k=1), Choice()]
    requests = [
        request(i, CANVASES[0], BlockByBlock(RevealPlan(2), 2), choice=choices[i], rules=rules if i else None)
        for i in range(3)
    ]
    told = same(block_model(), requests, 3)
    for states in told[1:]:
        canvas = states[-1][0].canvas.tolist()
        assert 2 not in canvas and canvas[4] == 3


# -- windows ---------------------------------------------------------------------------------------------------------


@each_stream
@pytest.mark.parametrize("stride", [3, 6, 7])
def test_windows_in_blocks_go_beyond_the_trained_length(clean, stride):
    """What is left of a window may be less than a block, and begin inside one. What was written stays."""
    model = block_model("dit", clean, length=8)
    canvases = [[MASK] * 21, [2, 3, 0] + [MASK] * 16, [MASK] * 5]
    requests = [
        request(i, canvas, Windows(BlockByBlock(plan, size), 8, stride))
        for i, (canvas, (plan, size)) in enumerate(
            zip(canvases, [(FirstHitting(), 4), (RevealPlan(2), 2), (LeftToRight(), 1)], strict=True)
        )
    ]
    for asked, states in zip(requests, same(model, requests, 1, 3), strict=True):
        now = asked.canvas.clone()
        for state, _ in states:
            assert (now[state.positions] == MASK).all()  # nothing is written twice
            now[state.positions] = state.tokens
            assert torch.equal(now, state.canvas)
        assert (now != MASK).all() and torch.equal(now[asked.canvas != MASK], asked.canvas[asked.canvas != MASK])


def test_a_window_is_the_same_as_a_text_of_its_own():
    """The second window is written given the end of the first, in blocks from its own beginning."""
    model = block_model(length=8)
    asked = request(0, [MASK] * 12, Windows(BlockByBlock(RevealPlan(2), 2), 8, 4))
    text = same(model, [asked], 1)[0][-1][0].canvas
    inner = replace(asked, sampler=BlockByBlock(RevealPlan(2), 2), key=asked.key.fork("window 1"))
    alone = replace(inner, canvas=torch.cat([text[4:8], torch.full((4,), MASK)]))
    assert torch.equal(run(model.denoiser(), [alone], 1)[0][-1][0].canvas, text[4:])


@dataclass(frozen=True)
class Framed(Windows):
    """Windows whose requests are remembered."""

    def trajectory(self, request: Request, model: Any) -> Any:
        made = super().trajectory(request, model)
        seen.append(made)
        return made


seen: list[Any] = []


def test_the_frame_of_a_window_does_not_make_it_a_single_block():
    """BOS and EOS around every window; the EOS at its end is seen by the last block only."""
    vocab = replace(block_model().vocab, bos=0, eos=3)
    model = block_model(length=8, vocab=vocab)
    asked = request(0, [MASK] * 10, Framed(BlockByBlock(LeftToRight(), 2), 8, 3, (0, 3)))
    told = same(model, [asked], 1)[0]
    assert [int(state.positions[0]) for state, _ in told] == list(range(10))
    assert {trajectory.block for trajectory in seen} == {2}
    seen.clear()


# -- what is read ----------------------------------------------------------------------------------------------------


def watched(model: BlockDiffusion) -> list[tuple[int, int]]:
    """The shapes of what its network reads from now on."""
    shapes: list[tuple[int, int]] = []
    model.backbone.register_forward_pre_hook(lambda _, given: shapes.append(tuple(given[0].tokens.shape)))
    return shapes


@each_network
def test_a_block_is_read_in_every_call_and_once_more_when_it_is_finished(network):
    model = block_model(network)
    shapes = watched(model)
    run(model.denoiser(), [request(i, [MASK] * 9, BlockByBlock(FirstHitting(), 3)) for i in range(4)], 4)
    assert shapes == [(4, 3), (4, 3), (4, 3), (4, 6), (4, 3), (4, 3), (4, 6), (4, 3), (4, 3)]
    shapes.clear()
    run(model.denoiser(), [request(0, [MASK] * 5, BlockByBlock(LeftToRight(), 1))], 1)
    assert shapes == [(1, 1), (1, 2), (1, 2), (1, 2), (1, 2)]


@each_stream
def test_a_prompt_is_read_once(clean):
    model, prompt = block_model("dit", clean), object()
    shapes = watched(model)
    canvas = [2, 3, 0, 0, 3, 2, MASK, MASK, MASK, MASK]
    requests = [request(i, canvas, BlockByBlock(FirstHitting(), 2), prompt=prompt) for i in range(5)]
    run(model.denoiser(), requests, 5)
    assert shapes == [(1, 6), (5, 2), (5, 2), (5, 4), (5, 2)]
    shapes.clear()
    alone = [replace(each, prompt=None) for each in requests]
    run(model.denoiser(), alone, 5)
    assert shapes == [(5, 8), (5, 2), (5, 4), (5, 2)]
    same(model, requests, 5, 2)


def test_a_sequence_that_joins_later_shares_the_prompt():
    """Also one with other blocks, as clean tokens are read alike for all of them."""
    model, prompt = block_model(), object()
    shapes = watched(model)
    begin = [2, 3, 0, 0, 3, 2, 2, 3]
    lengths, sizes = [24, 10, 10, 12], [2, 2, 2, 4]
    requests = [
        request(i, begin + [MASK] * (n - 8), BlockByBlock(FirstHitting(), size), prompt=prompt)
        for i, (n, size) in enumerate(zip(lengths, sizes, strict=True))
    ]
    run(model.denoiser(), requests, 2)
    assert shapes[0] == (1, 8) and max(width for _, width in shapes[1:]) <= 6  # the prompt, then a block or two
    same(model, requests, 2)


def test_a_prompt_that_ends_inside_a_block_is_shared_up_to_that_block():
    model, prompt = block_model(), object()
    shapes = watched(model)
    canvas = [2, 3, 0, 0, 3, 2, MASK, MASK, MASK]
    requests = [request(i, canvas, BlockByBlock(LeftToRight(), 4), prompt=prompt) for i in range(3)]
    run(model.denoiser(), requests, 3)
    assert shapes == [(1, 4), (3, 4), (3, 4), (3, 5)]
    same(model, requests, 3)


def test_a_row_with_much_to_read_does_not_make_all_others_read_as_much():
    model = block_model()
    shapes = watched(model)
    long = request(1, [2] * 40 + [MASK] * 2, BlockByBlock(LeftToRight(), 2))
    requests = [request(0, [MASK] * 8, BlockByBlock(LeftToRight(), 2)), long]
    run(model.denoiser(), requests, 2)
    assert shapes[:2] == [(1, 42), (1, 2)]
    same(model, requests, 2)


# -- what is kept ----------------------------------------------------------------------------------------------------


def held(denoiser: CachedBlocks) -> int:
    """Numbers in all tensors that a denoiser holds on to."""
    found = {}
    for read in denoiser.read.values():
        for layer in read.rows.cache:
            for tensor in layer:
                storage = tensor.untyped_storage()
                found[storage.data_ptr()] = storage.nbytes() // 4
    return sum(found.values())


def test_what_has_ended_is_let_go():
    """By the next call at the latest: rows of one batch share their tensors."""
    model = block_model()
    layers, width = 2, 16
    batcher = Batcher(model.denoiser(), 4)
    denoiser: Any = batcher.model
    for i, n in enumerate([40, 40, 40, 40]):
        batcher.add(request(i, [MASK] * n, BlockByBlock(LeftToRight(), 4)))
    for _ in range(34):
        batcher.step()
    column = 2 * layers * width  # keys and values of a token
    room = 128  # columns that a cache has room for, so that it need not be copied for each token
    assert 4 * 32 * column <= held(denoiser) <= 4 * room * column
    for row in (0, 2, 3):
        batcher.drop(row)
    batcher.step()
    assert set(denoiser.read) == {(1, False)} and held(denoiser) <= room * column
    batcher.drop(1)
    assert not denoiser.read


def test_a_single_block_among_others_holds_nothing():
    model = block_model()
    batcher = Batcher(model.denoiser(), 2)
    denoiser: Any = batcher.model
    batcher.add(request(0, [MASK] * 30, FirstHitting()))
    batcher.add(request(1, [MASK] * 8, BlockByBlock(FirstHitting(), 2)))
    for _ in range(8):
        batcher.step()
    assert len(batcher.active) == 1
    batcher.step()
    assert held(denoiser) == 0


# -- any slots, in any order -----------------------------------------------------------------------------------------


def by_hand(model: BlockDiffusion, canvas: list[int], slot: Slot) -> Tensor:
    """The states of all positions from `clean` on, each block alone."""
    size, parts, at = slot.block or len(canvas), [], slot.clean
    while at < len(canvas):
        end = len(canvas) if slot.block is None else min((at // size + 1) * size, len(canvas))
        noisy = [MASK] * (end - at) if slot.block == 1 else canvas[at:end]
        parts.append(read_block(model, [*canvas[:at], *noisy], at, slot.block))
        at = end
    return torch.cat(parts)


@every_network
@each_stream
@pytest.mark.parametrize("seed", [0, 1])
def test_whatever_is_asked_is_what_the_blocks_say(network, clean, seed):
    """Canvases that change from any position on, several blocks in one call, other lengths and rows in every call.

    Clean text that is read by blocks keeps its block size, and ends with a block.
    """
    model, rng = block_model(network, clean), random.Random(seed)
    denoiser, length = model.denoiser(), 14
    canvases = {number: [rng.choice(CLEAN) for _ in range(length)] for number in range(4)}
    size_of = {number: (1, 2, 4, 3)[number] for number in range(4)}
    kept = dict.fromkeys(canvases, 0)
    for _ in range(25):
        numbers = rng.sample(sorted(canvases), rng.randint(1, 4))
        if rng.random() < 0.1:
            denoiser.release(SimpleNamespace(slot=numbers[0]))
            kept[numbers[0]] = 0
        slots, ends = [], []
        for number in canvases:  # also of slots that this call leaves out
            if rng.random() < 0.5:
                at = rng.randrange(length)
                canvases[number][at:] = [rng.choice([*CLEAN, MASK]) for _ in range(length - at)]
                kept[number] = min(kept[number], at)
        for number in numbers:
            size = size_of[number] if clean == "blocks" else rng.choice([1, 2, 4, None])
            at = rng.randrange(length)
            at -= at % (size or 1) if clean == "blocks" else 0
            ends.append(rng.randint(at + 1, length))
            slots.append(Slot(number, min(kept[number], ends[-1]), None, 0, at, size))
        rows = [torch.tensor(canvases[number][:end]) for number, end in zip(numbers, ends, strict=True)]
        z = torch.nn.utils.rnn.pad_sequence(rows, batch_first=True)
        present = torch.arange(z.shape[1]) < torch.tensor(ends)[:, None]
        queries = torch.arange(z.shape[1]).expand(z.shape)
        with torch.no_grad():
            got = denoiser.hidden(z, torch.ones(len(z)), present, None, queries, slots=slots)
            for i, slot in enumerate(slots):
                truth = by_hand(model, rows[i].tolist(), slot)
                torch.testing.assert_close(got[i, slot.clean : ends[i]], truth, rtol=1e-4, atol=1e-4)
                kept[slot.number] = ends[i]
