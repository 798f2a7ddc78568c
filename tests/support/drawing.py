"""Shared by the tests of samplers: networks that are tables, runs to their end, and the chi-square of a run."""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest
import torch
from scipy import stats
from torch import Tensor

from oracles.enumeration import MASK, SCHEDULES, TableNet
from unmask.models.language_model import LanguageModel
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.sampling import (
    Adaptive,
    Ancestral,
    Choice,
    Constraint,
    FirstHitting,
    Gibbs,
    GivenOrder,
    LeftToRight,
    PredictorCorrector,
    Remasking,
    Request,
    RevealPlan,
    Rules,
    Sampler,
    Windows,
)
from unmask.types import Ending, State

Law = dict[tuple[int, ...], float]

CANVASES = [
    [MASK, MASK, MASK],
    [0, MASK, 3],
    [2, 2, 2],
    [MASK],
    [MASK, 3],
    [3, MASK, MASK],
    [0],
    [MASK, MASK, MASK],
]

# One of each kind, for contracts. A given order fits one canvas only: `plan_for` makes one for each.
TIMED: dict[str, Sampler] = {
    "reveal": RevealPlan(3),
    "ancestral": Ancestral(3),
    "first-hitting": FirstHitting(),
    "cap": Remasking(6, "cap", 0.6),
    "rescale": Remasking(6, "rescale", 0.7),
    "loop": Remasking(8, "loop", 0.5, (0.8, 0.2), 0.6),
    "corrector": PredictorCorrector(3, 2, 0.5),
    "windows": Windows(RevealPlan(2), 2, 1),
    "remasking windows": Windows(Remasking(5, "rescale", 0.7), 3, 2),
    "ancestral windows": Windows(Ancestral(2), 2, 1),
}
TIMELESS: dict[str, Sampler] = {
    "left-to-right": LeftToRight(),
    "two at a time": LeftToRight(2),
    "order": GivenOrder(()),
    "confidence": Adaptive("confidence", k=1),
    "entropy": Adaptive("entropy", threshold=0.7),
    "margin": Adaptive("margin", steps=2),
    "entropy bound": Adaptive("entropy", entropy_bound=0.5),
    "gibbs": Gibbs(7),
    "gibbs sweeps": Gibbs(7, "sequential", 3),
    "gibbs windows": Windows(Gibbs(6), 3, 1),
    "surest windows": Windows(Adaptive("margin", threshold=0.3), 3, 1),
}
PLANS = TIMED | TIMELESS
each_plan = pytest.mark.parametrize("name", PLANS)


def plan_for(name: str, canvas: Sequence[int]) -> Sampler:
    """A plan of that name that fits a canvas."""
    plan, masks = PLANS[name], list(canvas).count(MASK)
    return GivenOrder([*range(1, masks, 2), *range(0, masks, 2)]) if isinstance(plan, GivenOrder) else plan


def model_of(name: str = "log-linear", **kwargs: Any) -> MaskedDiffusion:
    """A random table under a schedule."""
    return MaskedDiffusion(TableNet.random(**kwargs), SCHEDULES[name]).eval()


def keys_of(n: int, seed: int = 0) -> list[Keys]:
    return [Keys(seed * 1_000_000 + i) for i in range(n)]


def tensors(canvases: Sequence[Sequence[int]]) -> list[torch.Tensor]:
    return [torch.tensor(canvas) for canvas in canvases]


def generate(
    model: LanguageModel,
    canvases: Sequence[Tensor],
    sampler: Sampler | Sequence[Sampler],
    keys: Sequence[Keys],
    *,
    choice: Choice | Sequence[Choice] = Choice(),
    batch_size: int = 16,
    controls: Sequence[Rules | None] | None = None,
    constraints: Sequence[Constraint | None] | None = None,
    labels: Sequence[int | None] | None = None,
    guidance: float | Sequence[float] = 1.0,
    tops: int = 0,
    until: Callable[[State], bool] | None = None,
) -> Iterator[State]:
    """`model.generate` with one request per canvas; one sampler and choice for all, or one each."""
    n = len(canvases)
    samplers = [sampler] * n if isinstance(sampler, Sampler) else sampler
    choices = [choice] * n if isinstance(choice, Choice) else choice

    def stop(state: State) -> Ending | None:
        return Ending("", "stop", len(state.canvas)) if until is not None and until(state) else None

    scales = [guidance] * n if isinstance(guidance, int | float) else guidance
    none = [None] * n
    each = zip(
        canvases, samplers, keys, choices, controls or none, labels or none, scales, constraints or none, strict=True
    )
    requests = [
        Request(row, canvas, way, key, drawn, rules, label, scale, tops, constraint=form, stop=stop)
        for row, (canvas, way, key, drawn, rules, label, scale, form) in enumerate(each)
    ]
    return model.generate(requests, batch_size)


def request_of(canvas: Tensor, sampler: Sampler, key: Keys) -> Request:
    return Request(0, canvas, sampler, key)


def check(model: LanguageModel, canvas: Tensor, sampler: Sampler) -> None:
    """What `LM.check` does with a canvas and a sampler."""
    request = request_of(canvas, sampler, Keys(0))
    model.check(request)
    sampler.trajectory(request, model.denoiser())


def finish(
    model: MaskedDiffusion,
    canvases: Sequence[Sequence[int]],
    plan: Sampler | Sequence[Sampler],
    keys: list[Keys],
    **more: Any,
) -> list[State]:
    """The last state of every canvas, in order."""
    last: dict[int, State] = {}
    for state in generate(model, tensors(canvases), plan, keys, **more):
        assert state.row not in last or not last[state.row].done, "a state after the last one"
        last[state.row] = state
    assert sorted(last) == list(range(len(canvases))) and all(state.done for state in last.values())
    return [last[row] for row in range(len(canvases))]


def texts(*args: Any, **kwargs: Any) -> list[tuple[int, ...]]:
    return [tuple(state.canvas.tolist()) for state in finish(*args, **kwargs)]


def outcomes(*args: Any, **kwargs: Any) -> Counter[tuple[int, ...]]:
    return Counter(texts(*args, **kwargs))


def p_value(counts: Counter[tuple[int, ...]], law: Law) -> float:
    """Chi-square of counts against an exact law; outcomes too rare for it share one cell."""
    n = sum(counts.values())
    assert set(counts) <= {x for x, p in law.items() if p > 0}
    assert sum(law.values()) == pytest.approx(1, abs=1e-9)
    seen, expected = [0], [0.0]
    for x, p in law.items():
        if n * p >= 8:
            seen.append(counts[x])
            expected.append(n * p)
        else:
            seen[0] += counts[x]
            expected[0] += n * p
    first = 0 if expected[0] > 1 else 1
    kept = np.array(expected[first:])
    if len(kept) == 1:  # nothing is left to chance, and nothing else was seen
        return 1.0
    return float(stats.chisquare(seen[first:], kept * sum(seen[first:]) / kept.sum()).pvalue)


@dataclass(frozen=True)
class Case:
    """A way of writing a canvas, and its law."""

    plan: Sampler
    law: Callable[[], Law]
    canvas: tuple[int, ...] = (MASK,) * 3
    choice: Choice = field(default_factory=Choice)
    control: Rules | None = None
    constraint: Constraint | None = None
    label: int | None = None
    guidance: float = 1.0


def mixed(model: MaskedDiffusion, cases: Sequence[Case], keys: Sequence[Keys], batch_size: int) -> list[list[State]]:
    """Every case with every key, all of them through each other in one call; the last states of each case."""
    whole = [case for _ in keys for case in cases]
    last = finish(
        model,
        [case.canvas for case in whole],
        [case.plan for case in whole],
        [key for key in keys for _ in cases],
        choice=[case.choice for case in whole],
        controls=[case.control for case in whole],
        constraints=[case.constraint for case in whole],
        labels=[case.label for case in whole],
        guidance=[case.guidance for case in whole],
        batch_size=batch_size,
    )
    return [last[i :: len(cases)] for i in range(len(cases))]


def judge(states: Sequence[State], law: Law) -> float:
    """P-value of the last states under a law."""
    return p_value(Counter(tuple(state.canvas.tolist()) for state in states), law)


def close(law: Law, other: Law) -> float:
    """The largest difference of two laws; NaN if one of them does not sum to 1."""
    sums = abs(sum(law.values()) - 1) < 1e-9 and abs(sum(other.values()) - 1) < 1e-9
    return max(abs(law.get(x, 0.0) - other.get(x, 0.0)) for x in law | other) if sums else math.nan
