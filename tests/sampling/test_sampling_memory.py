"""No plan makes a (B, L, V) tensor: the largest tensor of a whole generation is watched, at toy size."""

from __future__ import annotations

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from support.drawing import generate
from support.helpers import random_model, tiny_config
from unmask.process.keys import Keys
from unmask.sampling import (
    Adaptive,
    Ancestral,
    FirstHitting,
    GivenOrder,
    LeftToRight,
    PredictorCorrector,
    Remasking,
    RevealPlan,
    Sampler,
    Windows,
    token_step,
)
from unmask.types import Vocab

BATCH, LENGTH, SIZE = 4, 12, 1000
WHOLE = BATCH * LENGTH * SIZE


class Largest(TorchDispatchMode):
    """The most elements of any tensor that an operation takes or makes, and which operation that was."""

    def __init__(self) -> None:
        super().__init__()
        self.elements, self.name = 0, ""

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for leaf in tree_leaves((args, kwargs, out)):
            if isinstance(leaf, torch.Tensor) and leaf.numel() > self.elements:
                self.elements, self.name = leaf.numel(), str(func)
        return out


@pytest.fixture(scope="module")
def model():
    model = random_model(tiny_config(f"data.length={LENGTH}"), Vocab(SIZE, SIZE - 1))
    weights = max(p.numel() for p in model.parameters())
    assert 2 * weights < WHOLE  # else a weight could hide what is looked for
    return model


def largest(model, plan: Sampler, **more) -> Largest:
    """What a whole generation of BATCH sequences needs at most, under any plan."""
    canvases = list(torch.full((BATCH, LENGTH), SIZE - 1))
    with Largest() as watch:
        states = list(generate(model, canvases, plan, [Keys(i) for i in range(BATCH)], batch_size=BATCH, **more))
    assert sum(state.done for state in states) == BATCH
    return watch


PLANS: list[Sampler] = [
    RevealPlan(1),  # all positions of all sequences are due in one call
    RevealPlan(5),
    FirstHitting(),
    LeftToRight(LENGTH),
    GivenOrder(list(range(LENGTH)), LENGTH),
    Adaptive("confidence", k=4),
    Adaptive("entropy", threshold=1e9),
    Adaptive("margin", steps=1),
    Ancestral(3),
    Remasking(3, eta=0.2),
    PredictorCorrector(3),
    Windows(RevealPlan(1), LENGTH - 2, LENGTH // 2),
]


@pytest.mark.parametrize("plan", PLANS, ids=repr)
@pytest.mark.parametrize("more", [{}, {"tops": 3}], ids=["plain", "tops"])
def test_no_plan_makes_a_tensor_of_all_logits(model, plan, more, monkeypatch):
    rows = 8  # the limit of logits at once, in proportion to this size
    monkeypatch.setattr(token_step, "LOGITS_AT_ONCE", rows * SIZE)
    watch = largest(model, plan, **more)
    limit = max(rows * SIZE, *(p.numel() for p in model.parameters()))
    assert watch.elements <= limit < WHOLE / 2, f"{watch.name} made {watch.elements} elements"


def test_the_reveal_plan_needs_no_limit(model):
    watch = largest(model, RevealPlan(50))
    assert watch.elements < WHOLE / 2, f"{watch.name} made {watch.elements} elements"


def test_a_tensor_of_all_logits_would_be_seen(model, monkeypatch):
    monkeypatch.setattr(token_step, "LOGITS_AT_ONCE", 2 * WHOLE)
    assert largest(model, RevealPlan(1)).elements == WHOLE
