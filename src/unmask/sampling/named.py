"""Plans by name, with the settings that a user may give. A setting that a plan has no use for is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..types import UserError
from .adaptive import MEASURES, Adaptive
from .ancestral import Ancestral
from .gaussian import Gaussian
from .gibbs import Gibbs
from .orders import FirstHitting, GivenOrder, LeftToRight, RevealPlan
from .remask import PredictorCorrector, Remasking
from .sampler import Sampler
from .simplex import Simplex

STEPS = 128  # where nobody says how many
MOST = 10_000_000  # steps and corrections together; first-hitting is the limit of infinitely many


@dataclass(frozen=True)
class SamplerEntry:
    """A plan that can be asked for: which settings it takes, how it is made, and what to say of its law."""

    takes: tuple[str, ...]
    make: Callable[..., Sampler]
    law: str


def _adaptive(measure: str) -> Callable[..., Sampler]:
    def make(steps: int | None = None, k: int | None = None, threshold: float | None = None) -> Sampler:
        if steps is None and k is None and threshold is None:
            steps = STEPS
        return Adaptive(measure, k, steps, threshold)

    return make


def _remasking(kind: str) -> Callable[..., Sampler]:
    usual: dict[str, Any] = {"eta": 0.05 if kind == "rescale" else 0.02}
    if kind == "loop":
        usual["window"] = (0.55, 0.05)  # as its authors do

    def make(steps: int = STEPS, **given: Any) -> Sampler:
        return Remasking(steps, kind, **{**usual, **given})

    return make


SAMPLERS: dict[str, SamplerEntry] = {
    "plan": SamplerEntry(("steps",), lambda steps=STEPS: RevealPlan(steps), "T-step ancestral"),
    "ancestral": SamplerEntry(("steps",), lambda steps=STEPS: Ancestral(steps), "T-step ancestral"),
    "analytic": SamplerEntry(
        ("steps",), lambda steps=STEPS: Ancestral(steps), "SEDD's analytic step, which is T-step ancestral"
    ),
    "euler": SamplerEntry(
        ("steps",), lambda steps=STEPS: Ancestral(steps, euler=True), "T Euler steps of the reverse rate"
    ),
    "first-hitting": SamplerEntry((), FirstHitting, "ancestral with T -> infinity"),
    "left-to-right": SamplerEntry(("k",), LeftToRight, "left to right"),
    "order": SamplerEntry(("order", "k"), GivenOrder, "a given order"),
    **{
        measure: SamplerEntry(("steps", "k", "threshold"), _adaptive(measure), f"order by {measure}")
        for measure in MEASURES
    },
    **{
        f"remask-{kind}": SamplerEntry(
            ("steps", "eta", "window", *(["keep"] if kind == "loop" else [])), _remasking(kind), f"ReMDM {kind}"
        )
        for kind in ("cap", "rescale", "loop")
    },
    "corrector": SamplerEntry(
        ("steps", "eta", "window", "corrections"),
        lambda steps=STEPS, **given: PredictorCorrector(steps, **given),
        "predictor-corrector",
    ),
    "gibbs": SamplerEntry(("steps", "scan", "burn"), Gibbs, "Gibbs sampling"),
    "simplex": SamplerEntry(("steps", "projection", "context"), Simplex, "SSD-LM, block after block"),
    "gaussian": SamplerEntry(("steps", "score_temperature"), Gaussian, "T-step ancestral, of Gaussian diffusion"),
}


def named(name: str) -> SamplerEntry:
    """The entry of a name."""
    if name not in SAMPLERS:
        from ..config import nearest

        raise UserError(f"unknown sampler {name!r}{nearest(name, SAMPLERS)}; choose one of {', '.join(SAMPLERS)}")
    return SAMPLERS[name]


def make_sampler(
    name: str,
    *,
    steps: int | None = None,
    k: int | None = None,
    threshold: float | None = None,
    order: Sequence[int] | None = None,
    eta: float | None = None,
    window: tuple[float, float] | None = None,
    keep: float | None = None,
    corrections: int | None = None,
    projection: str | None = None,
    context: int | None = None,
    scan: str | None = None,
    burn: int | None = None,
    score_temperature: float | None = None,
) -> Sampler:
    """The plan of a name; settings that are None take their usual values."""
    chosen = named(name)
    settings = {
        "steps": steps,
        "k": None if k is None else min(k, MOST),
        "threshold": threshold,
        "order": order,
        "eta": eta,
        "window": window,
        "keep": keep,
        "corrections": corrections,
        "projection": projection,
        "context": context,
        "scan": scan,
        "burn": burn,
        "score_temperature": score_temperature,
    }
    given = {setting: value for setting, value in settings.items() if value is not None}
    for setting in given:
        if setting not in chosen.takes:
            users = ", ".join(other for other, entry in SAMPLERS.items() if setting in entry.takes)
            raise UserError(f"sampler {name!r} has no use for {setting}; it belongs to {users}")
    if name == "order" and order is None:
        raise UserError("sampler 'order' needs the order, for example 2,0,1 for three masked tokens")
    if "steps" in given and ("k" in given or "threshold" in given):
        raise UserError(f"give sampler {name!r} either steps, tokens a step or a threshold")
    if (steps or STEPS) * (1 + (corrections or 0)) > MOST:
        what = "steps" if (steps or STEPS) > MOST else "corrections"
        raise UserError(f"{what}={given[what]} is too many; at most {MOST:,} steps and corrections can be planned")
    return chosen.make(**given)
