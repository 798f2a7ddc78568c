"""The training curves of fig:nll_owt: how much the loss varies from batch to batch, for MDLM and for SEDD."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np

from ...evaluation.uncertainty import combined, mean
from ...plot import Curve, Plot
from ...types import UserError
from .. import paper
from ..bench import Bench
from ..claims import Claim, Difference, paired
from ..figures import Figure
from ..report import RATIO, Report, Row, Table
from ..specs import PaperTable
from ..text_models import LONGER, TEXT

METHODS = {"MDLM": "mdlm", "SEDD": "sedd", "SEDD, independent times": "sedd-independent"}
MEAN, SPREAD, POINTS = "mean", "standard deviation", "batches"


def journal(path: Path) -> tuple[np.ndarray, np.ndarray]:
    """(steps, losses) of a training run; of a step that was repeated after an interruption, the last one counts."""
    losses: dict[int, float] = {}
    file = path / "log.jsonl"
    try:
        for line in file.read_text(encoding="utf-8").splitlines():
            record = json.loads(line)
            if "loss" in record:
                losses[int(record["step"])] = float(record["loss"])
    except OSError as error:
        raise UserError(f"cannot read the journal {file} ({error.strerror}); train the model again") from None
    except (ValueError, TypeError, KeyError):
        raise UserError(f"the journal {file} is damaged; remove the folder {path} to train the model again") from None
    steps = np.array(sorted(losses))
    return steps, np.array([losses[step] for step in steps.tolist()])


def strays(steps: np.ndarray, losses: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """(losses, the distance of each from a straight line through all of them) of the second half of a training run."""
    late = steps > steps.max(initial=0) / 2
    x, y = steps[late].astype(float), losses[late]
    if len(y) < 4:
        raise UserError(
            f"the second half of a training has {len(y)} logged steps, and a spread needs 4; log more often"
        )
    slope, level = np.polyfit(x, y, 1)
    return y, y - slope * x - level


def spread(strayed: np.ndarray) -> Figure:
    """The standard deviation around the line; its error is from the fourth moment, for losses are not normal."""
    n = len(strayed)
    variance = float((strayed**2).sum() / (n - 2))  # two numbers say where the line is
    error = math.sqrt(max(float((strayed**4).mean()) - variance**2, 0.0) / n)
    deviation = math.sqrt(variance)
    return Figure(deviation, error / (2 * deviation) if deviation else 0.0)


def wider(wide: Sequence[np.ndarray], narrow: Sequence[np.ndarray]) -> Difference:
    """How many times (as a logarithm) the first varies more than the second, batch by batch, one training a seed.

    Both trainings of a seed saw the same batches.
    """
    each, errors = [], []
    for first, second in zip(wide, narrow, strict=True):
        a, b = first**2 / (first**2).mean(), second**2 / (second**2).mean()
        each.append(math.log((first**2).mean() / (second**2).mean()))
        errors.append(mean((a - b).tolist()).stderr)
    n = len(each)
    batches = combined(*errors) / n
    gap = paired(each, (batches if n == 1 else 0.0, math.inf), RATIO)
    deviations = f"standard deviation {_spread(wide)} against {_spread(narrow)}"
    words = f"{deviations}; log of the ratio of variances {Figure(gap.value, gap.error)}, paired by batch"
    return replace(gap, words=words, counted="")


def _spread(strayed: Sequence[np.ndarray]) -> Figure:
    figures = [spread(one) for one in strayed]
    return figures[0] if len(figures) == 1 else Figure(*mean([figure.value for figure in figures]))


CLAIMS = (
    Claim("SEDD's training loss has the larger variance", "SEDD", "MDLM", measure=wider),
    Claim(
        "SEDD's training loss with independent times has the larger variance",
        "SEDD, independent times",
        "MDLM",
        measure=wider,
    ),
)


def variance_curve(bench: Bench) -> Report:
    """The loss of every logged batch of MDLM's and SEDD's training, and how far it deviates from its trend."""
    bench.need(list(METHODS.values()))
    longer = all(bench.available(one) for name in ("mdlm", "sedd") for one in bench.of_seeds(name + LONGER))
    end = LONGER if longer else ""  # if both were continued, their whole trainings
    bench.need([name + end for name in METHODS.values()])
    for name in METHODS.values():
        bench.lms(name + end)  # their journals are beside the weights: what has scores alone is trained again
    logged = {
        method: [journal(bench.path(one)) for one in bench.of_seeds(name + end)] for method, name in METHODS.items()
    }
    late = {method: [strays(*curve) for curve in each] for method, each in logged.items()}
    rows = [
        Row(method, {}, {MEAN: _mean(each), SPREAD: _spread([off for _, off in each]), POINTS: Figure(len(each[0][0]))})
        for method, each in late.items()
    ]
    printed, config = paper.TRAIN_NLL, bench.config("mdlm")
    every = config.train.log_every
    curves = [Curve(method, x.astype(float).tolist(), y.tolist()) for method, ((x, y), *_) in logged.items()]
    return bench.report(
        "variance-curve",
        printed.label,
        [
            Table(
                "Training loss of single batches, second half of the training",
                printed.label,
                [MEAN, SPREAD, POINTS],
                rows,
            )
        ],
        plots=[Plot("train-nll", "Loss of single batches, not smoothed", printed.x_label, printed.y_label, curves)],
        checks=[claim.check({method: [off for _, off in each] for method, each in late.items()}) for claim in CLAIMS],
        protocol={
            "journal": f"the loss of one batch of {config.train.batch_size} rows, every "
            + ("step" if every == 1 else f"{every} steps"),
            "trend": "a straight line through the second half",
            "±": "standard error over batches; of the deviation, from the fourth moment"
            if bench.seeds == 1
            else "standard error over trainings; the plot is of the first",
            "noise": f"the same rows, times ({config.objective.times}) and masks for both methods, batch by batch; the "
            "original SEDD draws its times independently",
        },
        notes=[f"The paper: {printed.protocol}.", *printed.remarks],
    )


def _mean(each: Sequence[tuple[np.ndarray, np.ndarray]]) -> Figure:
    if len(each) > 1:
        return Figure(*mean([float(losses.mean()) for losses, _ in each]))
    ((losses, strayed),) = each
    return Figure(float(losses.mean()), spread(strayed).value / math.sqrt(len(losses)))


VARIANCE_CURVE = PaperTable("variance-curve", variance_curve, TEXT, "owt", claims=CLAIMS, sides=METHODS)
