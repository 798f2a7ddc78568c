"""What a table still has to train, and about what that costs: `unmask reproduce NAME --plan`. Nothing is trained."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from ..config import Config
from ..hub import checkpoint
from ..training.tracking import JOURNAL, last_logged
from ..types import UserError
from .bench import Bench, Needed
from .specs import Finetuning, PaperTable

SPEED = 4e10  # multiplications and additions a second of one core, if the folder has no training to measure by


@dataclass(frozen=True)
class PlannedTraining:
    """A model of the plan; `hours` of one core are what is left of its training."""

    name: str
    tokens: int
    done: float  # share
    hours: float


@dataclass(frozen=True)
class Plan:
    """The trainings that a table needs, and what the claims need of them."""

    trainings: list[PlannedTraining]
    claims: dict[str, float]  # core-hours that are left of the trainings of both sides
    measured: bool  # the speed is that of trainings in the folder

    @property
    def hours(self) -> float:
        """Core-hours that are left."""
        return sum(training.hours for training in self.trainings)


def plan(bench: Bench, table: PaperTable) -> Plan:
    """The plan of a table; its report is begun, up to where it would train."""
    if not bench.scale.trains:
        raise UserError(f"--plan is for scales that train here; without it, --scale {bench.scale.name} prints commands")
    bench.planning = True
    try:
        table.report(bench)
        needed: list[str] = []
    except Needed as said:
        needed = _with_origins(bench, said.names)
    speed = _speed(bench)
    trainings = {name: _training(bench, name, speed or SPEED) for name in needed}
    claims = {}
    for claim in table.claims:
        sides = [table.sides.get(side, side) for side in (claim.left, claim.right)]
        names = [name for side in sides if side in bench.models for name in bench.of_seeds(side)]
        both = [name for name in _with_origins(bench, names) if name in trainings]
        if both:
            claims[claim.text] = sum(trainings[name].hours for name in both)
    return Plan(list(trainings.values()), claims, speed is not None)


def plan_lines(plan: Plan) -> list[list[str]]:
    """The trainings as a table of words."""
    lines = [["training", "tokens", "done", "core-hours"]]
    lines += [[one.name, f"{one.tokens:,}", f"{one.done:.0%}", f"{one.hours:.2f}"] for one in plan.trainings]
    return lines


def claim_lines(plan: Plan) -> list[list[str]]:
    """The claims, the cheapest first."""
    cheapest = sorted(plan.claims.items(), key=lambda claim: claim[1])
    return [["claim", "core-hours"], *([text, f"{hours:.2f}"] for text, hours in cheapest)]


def plan_summary(plan: Plan) -> str:
    """How much is missing, in a sentence."""
    missing = [training for training in plan.trainings if training.done < 1]
    source = "by the trainings in the folder" if plan.measured else "estimated: the folder has no training to go by"
    return (
        f"{len(missing)} of {len(plan.trainings)} trainings are missing or incomplete: about {plan.hours:.1f} "
        f"core-hours ({source}); scores, samples and classifiers come on top"
    )


def _with_origins(bench: Bench, names: Iterable[str]) -> list[str]:
    """The models that are trained here, each after what it starts from or continues."""
    every: dict[str, None] = {}
    for name in names:
        spec = bench.models[name]
        origins = [origin for origin in (spec.start, spec.continues) if origin]
        every |= dict.fromkeys((*_with_origins(bench, origins), *([] if spec.config is None else [name])))
    return list(every)


def _config(bench: Bench, name: str) -> Config | None:
    """The settings, as far as they are known before anything is trained; of a fine-tuning those of its start."""
    spec = bench.models[name]
    if isinstance(spec.config, Finetuning):
        start = bench.models[spec.start or ""].config
        return bench.config(spec.start or "") if start is None else _config(bench, spec.start or "")
    return spec.config


def _size(bench: Bench, name: str) -> tuple[int, int, float]:
    """(steps, tokens of a step, multiplications and additions of a token) of a training."""
    spec, config = bench.models[name], _config(bench, name)
    assert config is not None
    steps, batch = config.train.steps, config.train.batch_size
    if isinstance(spec.config, Finetuning):
        changes = spec.config.changes.get("train", {})
        steps, batch = changes.get("steps", steps), changes.get("batch_size", batch)
    model, length = config.model, config.data.length
    width, blocks = getattr(model, "hidden_dim", 0) or 0, getattr(model, "n_blocks", 0) or 0
    vocabulary = config.data.vocab_size if config.data.tokenizer == "bpe" else 64
    weights = blocks * (12 * width * width + 2 * length * width) + vocabulary * width
    views = 2 if config.objective.pairs else 1
    return steps, batch * length * views, 6.0 * max(weights, 1)


def _training(bench: Bench, name: str, speed: float) -> PlannedTraining:
    steps, tokens, work = _size(bench, name)
    before = bench.models[name].continues
    first = _size(bench, before)[0] if before else 0
    made = checkpoint.steps(bench.path(name))
    at = steps if bench.available(name) else min(made[-1], steps) if made else first
    done = 1.0 if at >= steps else (at - first) / (steps - first)
    return PlannedTraining(name, (steps - first) * tokens, done, (steps - at) * tokens * work / speed / 3600)


def _speed(bench: Bench) -> float | None:
    """Multiplications and additions a second of the trainings in the folder; None if there are none with a journal."""
    works, seconds = 0.0, 0.0
    for name, spec in bench.models.items():
        made = checkpoint.steps(bench.path(name))
        spent = last_logged(bench.path(name) / JOURNAL, "step_seconds") if made and spec.config is not None else None
        if made and spent:
            _, tokens, work = _size(bench, name)
            works, seconds = works + made[-1] * tokens * work, seconds + spent
    return works / seconds if seconds else None
