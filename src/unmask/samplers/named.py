"""Plans by name, with the settings that a user may give. A setting that a plan has no use for is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from ..types import UserError
from .adaptive import MEASURES, Adaptive
from .ancestral import Ancestral
from .base import Plan
from .gaussian import Gaussian
from .gibbs import Gibbs
from .plans import FirstHitting, GivenOrder, LeftToRight, RevealPlan
from .remask import PredictorCorrector, Remasking
from .simplex import Simplex

STEPS = 128  # where nobody says how many
MOST = 10_000_000  # steps and corrections together; first-hitting is the limit of infinitely many


@dataclass(frozen=True)
class Named:
    """A plan that can be asked for: which settings it takes, how it is made, and what to say of its law."""

    takes: tuple[str, ...]
    make: Callable[..., Plan]
    law: str


def _adaptive(measure: str) -> Callable[..., Plan]:
    def make(steps: int | None = None, k: int | None = None, threshold: float | None = None) -> Plan:
        if steps is None and k is None and threshold is None:
            steps = STEPS
        return Adaptive(measure, k, steps, threshold)

    return make


def _remasking(kind: str) -> Callable[..., Plan]:
    usual: dict[str, Any] = {"eta": 0.05 if kind == "rescale" else 0.02}
    if kind == "loop":
        usual["window"] = (0.55, 0.05)  # as its authors do

    def make(steps: int = STEPS, **given: Any) -> Plan:
        return Remasking(steps, kind, **{**usual, **given})

    return make


PLANS: dict[str, Named] = {
    "plan": Named(("steps",), lambda steps=STEPS: RevealPlan(steps), "T-step ancestral"),
    "ancestral": Named(("steps",), lambda steps=STEPS: Ancestral(steps), "T-step ancestral"),
    "analytic": Named(
        ("steps",), lambda steps=STEPS: Ancestral(steps), "SEDD's analytic step, which is T-step ancestral"
    ),
    "euler": Named(("steps",), lambda steps=STEPS: Ancestral(steps, euler=True), "T Euler steps of the reverse rate"),
    "first-hitting": Named((), FirstHitting, "ancestral with T -> infinity"),
    "left-to-right": Named(("k",), LeftToRight, "left to right"),
    "order": Named(("order", "k"), GivenOrder, "a given order"),
    **{measure: Named(("steps", "k", "threshold"), _adaptive(measure), f"order by {measure}") for measure in MEASURES},
    **{
        f"remask-{kind}": Named(
            ("steps", "eta", "window", *(["keep"] if kind == "loop" else [])), _remasking(kind), f"ReMDM {kind}"
        )
        for kind in ("cap", "rescale", "loop")
    },
    "corrector": Named(
        ("steps", "eta", "window", "corrections"),
        lambda steps=STEPS, **given: PredictorCorrector(steps, **given),
        "predictor-corrector",
    ),
    "gibbs": Named(("steps", "scan", "burn"), Gibbs, "Gibbs sampling"),
    "simplex": Named(("steps", "projection", "context"), Simplex, "SSD-LM, block after block"),
    "gaussian": Named(("steps", "score_temperature"), Gaussian, "T-step ancestral, of Gaussian diffusion"),
}


def named(name: str) -> Named:
    """The entry of a name."""
    if name not in PLANS:
        from ..config import nearest

        raise UserError(f"unknown sampler {name!r}{nearest(name, PLANS)}; choose one of {', '.join(PLANS)}")
    return PLANS[name]


def plan_named(
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
) -> Plan:
    """The plan of a name; settings that are None take their usual values."""
    chosen = named(name)
    settings = {
        "steps": steps, "k": None if k is None else min(k, MOST), "threshold": threshold, "order": order, "eta": eta,
        "window": window, "keep": keep, "corrections": corrections, "projection": projection, "context": context,
        "scan": scan, "burn": burn, "score_temperature": score_temperature,
    }  # fmt: skip
    given = {setting: value for setting, value in settings.items() if value is not None}
    for setting in given:
        if setting not in chosen.takes:
            users = ", ".join(other for other, entry in PLANS.items() if setting in entry.takes)
            raise UserError(f"sampler {name!r} has no use for {setting}; it belongs to {users}")
    if name == "order" and order is None:
        raise UserError("sampler 'order' needs the order, for example 2,0,1 for three masked tokens")
    if "steps" in given and ("k" in given or "threshold" in given):
        raise UserError(f"give sampler {name!r} either steps, tokens a step or a threshold")
    if (steps or STEPS) * (1 + (corrections or 0)) > MOST:
        what = "steps" if (steps or STEPS) > MOST else "corrections"
        raise UserError(f"{what}={given[what]} is too many; at most {MOST:,} steps and corrections can be planned")
    return chosen.make(**given)
