"""Block after block: the laws of its samplers by enumeration, what it sees, and what it refuses."""

from __future__ import annotations

import functools
from collections.abc import Callable

import pytest
import torch

from oracles.blocks import Reader, block_law
from oracles.enumeration import ALPHAS, MASK, Denoiser, State, ancestral_law
from oracles.laws import legs_law, order_law, random_order_law, remask_legs, surest_law
from support.block_models import block_model
from support.drawing import Law, check, finish, generate, keys_of, outcomes, p_value, tensors
from support.helpers import random_model, tiny_config
from unmask.models.block_diffusion import BlockDiffusion
from unmask.process.keys import Keys
from unmask.sampling import (
    Adaptive,
    BlockByBlock,
    FirstHitting,
    Gibbs,
    GivenOrder,
    LeftToRight,
    PredictorCorrector,
    Remasking,
    Request,
    RevealPlan,
    Sampler,
    SamplingParams,
    replay,
)
from unmask.types import UserError

LENGTH = 4
INNER: dict[str, tuple[Sampler, Callable[[State, Denoiser], Law]]] = {
    "first-hitting": (FirstHitting(), random_order_law),
    "plan": (RevealPlan(3), lambda start, denoise: ancestral_law(start, denoise, "log-linear", 3)),
    "one step": (RevealPlan(1), lambda start, denoise: ancestral_law(start, denoise, "log-linear", 1)),
    "confidence": (Adaptive("confidence", k=1), lambda start, denoise: surest_law(start, denoise, "confidence", 1)),
    "entropy": (
        Adaptive("entropy", threshold=0.8),
        lambda start, denoise: surest_law(start, denoise, "entropy", threshold=0.8),
    ),
    "entropy bound": (
        Adaptive("entropy", entropy_bound=0.6),
        lambda start, denoise: surest_law(start, denoise, "entropy", bound=0.6),
    ),
    "remasking": (
        Remasking(3, "cap", 0.5),
        lambda start, denoise: legs_law(start, denoise, remask_legs("log-linear", 3, "cap", 0.5)),
    ),
}
STARTS = {
    "nothing": (MASK,) * LENGTH,
    "half a block": (3, MASK, MASK, MASK),
    "a block and a half": (3, 0, 2, MASK),
    "a block": (2, 0, MASK, MASK),
}


@functools.cache
def model_of() -> BlockDiffusion:
    """One network for all block sizes."""
    model = block_model()
    assert float(model.schedule.alpha(torch.tensor(0.3))) == pytest.approx(ALPHAS["log-linear"](0.3))
    return model


@functools.cache
def reader_of(size: int | None) -> Reader:
    return Reader(model_of(), size)


def p_of(size: int, plan: Sampler, start: State, law: Law, n: int = 700) -> float:
    counts = outcomes(model_of(), [start] * n, BlockByBlock(plan, size), keys_of(n), batch_size=250)
    return p_value(counts, law)


@pytest.mark.parametrize("name", ["first-hitting", "plan", "confidence"])
@pytest.mark.parametrize("size", [1, 2, 4])
def test_texts_follow_the_law_of_enumeration(name, size):
    plan, inner = INNER[name]
    law = block_law(reader_of(size), STARTS["nothing"], inner)
    assert max(law.values()) > 3 * min(law.values())
    assert p_of(size, plan, STARTS["nothing"], law) > 1e-3


@pytest.mark.parametrize("name", ["one step", "entropy", "entropy bound", "remasking"])
def test_other_samplers_inside_the_blocks(name):
    plan, inner = INNER[name]
    size = 3 if name == "entropy bound" else 2  # which writes one or two of three at once
    assert p_of(size, plan, STARTS["nothing"], block_law(reader_of(size), STARTS["nothing"], inner), 400) > 1e-3


@pytest.mark.parametrize("start", ["half a block", "a block and a half", "a block"])
@pytest.mark.parametrize("size", [2, 3])
def test_a_prompt_may_end_anywhere(start, size):
    """The rest of the block is written given its beginning, and the clean blocks before it."""
    plan, inner = INNER["plan"]
    law = block_law(reader_of(size), STARTS[start], inner)
    assert p_of(size, plan, STARTS[start], law, 400) > 1e-3


@pytest.mark.parametrize("start", [(MASK, 3, MASK, MASK), (MASK, MASK, MASK, 2), (0, MASK, 2, 2)])
def test_text_after_a_gap_is_written_as_a_single_block(start):
    """Blocks do not see what follows them; the law of the whole row does, and is MDLM's."""
    plan, inner = INNER["first-hitting"]
    whole, apart = (block_law(reader_of(size), start, inner) for size in (None, 2))
    assert max(abs(whole[x] - apart[x]) for x in whole) > 0.01
    assert p_of(2, plan, start, whole, 400) > 1e-3


@pytest.mark.parametrize("name", [*INNER, "gibbs", "corrector"])
def test_blocks_of_one_token_are_left_to_right_whatever_the_sampler(name):
    left = order_law(STARTS["nothing"], lambda z, t: _next(z), [[i] for i in range(LENGTH)])
    others = {"gibbs": Gibbs(3), "corrector": PredictorCorrector(2, 1, 0.5)}
    plan = others[name] if name in others else INNER[name][0]
    assert p_of(1, plan, STARTS["nothing"], left, 300) > 1e-3


def _next(z: State):
    """Only the first [MASK] is asked for; all positions get its law."""
    at = z.index(MASK)
    return reader_of(1).log_x(z[:at], (MASK,)).repeat(len(z), 0)


# -- what is told ----------------------------------------------------------------------------------------------------


def test_blocks_are_written_one_after_another_and_what_is_fixed_is_told():
    model = random_model(tiny_config("model.method=block", "block.size=4"), block_model().vocab)
    canvases, size = [[MASK] * 11, [2, 3, 0, 2, 3] + [MASK] * 8], 4
    for plan in (FirstHitting(), RevealPlan(2), Remasking(6, "cap", 0.6), Adaptive("confidence", steps=2)):
        told = {0: [], 1: []}
        for state in generate(model, tensors(canvases), BlockByBlock(plan, size), keys_of(2)):
            told[state.row].append(state)
        for canvas, states in zip(canvases, told.values(), strict=True):
            blocks = [int(state.positions[0]) // size for state in states]
            assert blocks == sorted(blocks)
            assert set(blocks) == {i // size for i, token in enumerate(canvas) if token == MASK}
            steps = [state.step for state in states]
            assert steps == sorted(set(steps))
            for state, block in zip(states, blocks, strict=True):
                assert {int(i) // size for i in state.positions} == {block} and state.fixed >= block * size
                assert (state.canvas[(block + 1) * size :] == torch.tensor(canvas)[(block + 1) * size :]).all()
            assert [state.fixed for state in states] == sorted(state.fixed for state in states)
            assert states[-1].fixed == len(canvas)
            written, _ = states[-1].history
            assert [int(step) >= 0 for step in written] == [token == MASK for token in canvas]


def test_steps_are_those_of_a_block():
    model = model_of()
    for plan, most in ((RevealPlan(1), 1), (Adaptive("confidence", steps=2), 2), (FirstHitting(), 4)):
        (state,) = finish(model, [[MASK] * 12], BlockByBlock(plan, 4), keys_of(1))
        assert state.calls == 3 * most


def test_a_text_that_stops_early_makes_no_more_blocks():
    model, states = model_of(), []
    for state in generate(
        model, tensors([[MASK] * 12]), BlockByBlock(LeftToRight(), 2), keys_of(1), until=lambda state: state.fixed >= 4
    ):
        states.append(state)
    assert states[-1].done and states[-1].calls == 4 and (states[-1].canvas[4:] == MASK).all()


def test_a_replay_is_the_likelihood_of_an_order():
    """Left to right in blocks of two: log p of a text is a sum of what the network says of its blocks."""
    model, text = model_of(), (2, 0, 3, 3)
    (got,) = replay(
        model.denoiser(), [torch.full((4,), MASK)], [torch.tensor(text)], BlockByBlock(LeftToRight(), 2), keys_of(1)
    )
    law = block_law(reader_of(2), STARTS["nothing"], lambda start, denoise: order_law(start, denoise, [[0], [1]]))
    assert float(got.sum().exp()) == pytest.approx(law[text], rel=1e-4)


# -- settings --------------------------------------------------------------------------------------------------------


def test_the_model_says_how_long_its_blocks_are():
    model = model_of()
    assert SamplingParams().settle(model).block == 2
    assert SamplingParams(block=4).settle(model).block == 4
    assert SamplingParams().settle(model.in_blocks(None)).block == "full"
    assert SamplingParams(sampler="speculative").settle(model).block is None


def test_full_is_the_whole_text_as_one_block():
    model = model_of()
    full, own = (SamplingParams(sampler="first-hitting", block=block).plan_in_blocks() for block in ("full", 2))
    whole, plain = (finish(model, [[MASK] * 4] * 5, plan, keys_of(5)) for plan in (full, FirstHitting()))
    assert [state.canvas.tolist() for state in whole] == [state.canvas.tolist() for state in plain]
    assert isinstance(own, BlockByBlock) and own.size == 2
    other = random_model(tiny_config("model.method=mdlm"), block_model().vocab)
    with pytest.raises(UserError, match=r"block=full is for models of method block, which this one is not"):
        check(other, torch.full((4,), MASK), full)
    for wrong in ("whole", 2.5, True):
        with pytest.raises(UserError, match="must be a whole number of tokens, or full"):
            SamplingParams(block=wrong)
    for wrong, says in ((0, "block=0 must be at least 1"), (1 << 30, "block=1073741824 must be at most 1,048,576")):
        with pytest.raises(UserError, match=says):
            SamplingParams(block=wrong)


def test_a_given_order_is_one_of_a_single_block():
    model, order = model_of(), GivenOrder((2, 0, 1, 3))
    with pytest.raises(UserError, match=r"names positions of a single block; set block=full, the whole text"):
        check(model, torch.full((4,), MASK), BlockByBlock(order, 2))
    request = Request(0, torch.full((4,), MASK), BlockByBlock(order, 4), Keys(0))
    assert [int(state.positions[0]) for state in model.generate([request])] == [2, 0, 1, 3]


def test_what_cannot_be_is_a_sentence():
    with pytest.raises(UserError, match="block"):
        BlockByBlock(FirstHitting(), 0)
    other = random_model(tiny_config("model.method=mdlm"), block_model().vocab)
    with pytest.raises(UserError, match=r"block=2 is for models of method block, which this one is not; leave it out"):
        check(other, torch.full((4,), MASK), BlockByBlock(FirstHitting(), 2))


@pytest.mark.parametrize("canvas", [[], [2, 3, 0]])
def test_nothing_to_write(canvas):
    (state,) = finish(model_of(), [canvas or [2]], BlockByBlock(FirstHitting(), 2), keys_of(1))
    assert state.done and state.calls == 0
