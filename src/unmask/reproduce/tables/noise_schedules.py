"""tab:var_ns: one model under several noise schedules. The means are equal, the variances are not."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from ...evaluation import ESTIMATORS
from ...evaluation.uncertainty import combined, deviation, mean
from ...models.language_model import LanguageModel
from ...models.masked import Objective, as_masked
from ...process.schedule import ContinuousTime, Cosine, Linear, LogUniform, Polynomial, Schedule
from .. import paper
from ..bench import Bench
from ..claims import Claim, less_variance
from ..figures import Figure
from ..report import Check, Report, Row, Table
from ..scored import ScoredModel
from ..specs import PaperTable
from ..text_models import TEXT

SIGMA_MAX = 7.0  # of the linear schedule, as in the authors' code; 1e8, as printed, leaves nothing to draw
SCHEDULES: dict[str, Schedule] = {
    "log-linear": Polynomial(),
    "cosine": Cosine(),
    "cosine squared": Cosine(2),
    "linear": Linear(SIGMA_MAX),
    "power 1.5": Polynomial(1.5),
    "log-uniform": LogUniform(),
}
REMARKS = {
    "power 1.5": "mask rate t^1.5: somewhat more draws at small rates",
    "log-uniform": "every time has the same weight",
}

CLAIMS = tuple(
    Claim(
        f"log-linear has less variance than {name}",
        "log-linear",
        name,
        measure=less_variance,
        paper=paper.log_ratio(paper.NOISE_SCHEDULES, "log-linear", name, "variance"),
        trained=False,
    )
    for name in ("cosine", "cosine squared", "linear")
)


def per_point(scored: ScoredModel) -> tuple[Figure, Figure]:
    """(mean, variance of one draw of one text) in bits per token, with standard errors over draws and over texts."""
    bits = scored.nats / scored.tokens[:, None] / math.log(2)
    within = bits.var(1, ddof=1)
    return Figure(*mean(bits.mean(0).tolist())), Figure(*mean(within.tolist()))


def _average(figures: Sequence[Figure]) -> Figure:
    """Of several trainings, with the error of one: their texts and draws are the same."""
    error = combined(*(figure.error for figure in figures)) / math.sqrt(len(figures))
    return Figure(mean([figure.value for figure in figures]).value, error)


def _under(schedule: Schedule) -> Callable[[LanguageModel], LanguageModel]:
    return lambda model: model.under(schedule=schedule)


def proposed(schedule: Schedule, stratified: bool) -> Callable[[LanguageModel], LanguageModel]:
    """The model with its schedule, and times drawn under another: a proposal does not change the mean."""

    def change(model: LanguageModel) -> LanguageModel:
        net = as_masked(model)
        assert net is not None
        law, objective = ContinuousTime(1e-3, schedule), Objective(stratified=stratified)
        return net.under(law=law, objective=objective)

    return change


def schedules(bench: Bench) -> Report:
    """One model under several noise schedules: equal means, different variances."""
    bench.need(["mdlm"])
    printed = paper.NOISE_SCHEDULES
    rows, figures, drawn = [], {}, {}
    settings: dict[str, Any] = {
        "draws": bench.scale.draws,
        "limit": None if bench.scale.rows is None else bench.scale.rows // 4,
    }
    for name, schedule in SCHEDULES.items():
        drawn[name] = bench.scores("mdlm", _under(schedule), what=name, **settings)
        figures[name] = [per_point(scored) for scored in drawn[name]]
        rows.append(_schedule_row(name, figures[name], REMARKS.get(name, "")))
    counts = bench.scores("mdlm", estimator=ESTIMATORS["strata"], what="counts", **settings)
    rows.append(
        _schedule_row("stratified over mask counts", list(map(per_point, counts)), "no schedule: --estimator strata")
    )
    table = Table(printed.title, printed.label, printed.columns, rows)
    means, variances = ({name: [both[i] for both in seeds] for name, seeds in figures.items()} for i in (0, 1))
    return bench.report(
        "schedules",
        printed.label,
        [table, _discrepancy(bench, settings, drawn)],
        checks=[_equal_means(list(map(_average, means.values()))), *(claim.check(variances) for claim in CLAIMS)],
        protocol={
            "mean": "bits a token, mean over texts; ± standard error over draws",
            "variance": "of one draw of one text in squared bits a token, mean over texts; ± standard error over texts",
            "draws": settings["draws"],
            "texts": settings["limit"] or "all",
            "linear": f"sigma = {SIGMA_MAX:g} t, as in the authors' code; the paper prints 1e8",
            "cutoff": "mask rate 1e-3, the rest in one step",
        },
        notes=[
            "Under the log-linear schedule the weight 1/t and the number of masked tokens cancel: its times are close "
            "to importance sampling by the loss. Equal weights (log-uniform) are not: most draws then have few masks.",
            *printed.remarks,
        ],
    )


def _schedule_row(name: str, figures: Sequence[tuple[Figure, Figure]], note: str = "") -> Row:
    middle, variance = (_average([both[i] for both in figures]) for i in (0, 1))
    return Row(name, paper.NOISE_SCHEDULES.rows.get(name, {}), {"mean": middle, "variance": variance}, note)


def _equal_means(means: list[Figure]) -> Check:
    """Chi-square of the means against one common value."""
    weights = np.array([1 / (figure.error or 1e-12) ** 2 for figure in means])
    values = np.array([figure.value for figure in means])
    common = float((weights * values).sum() / weights.sum())
    chi = float((weights * (values - common) ** 2).sum())
    freedom = len(means) - 1
    shown = f"chi-square {chi:.1f} with {freedom} degrees of freedom around {common:.4f} bits a token"
    return Check("all schedules have the same mean", chi < freedom + 3 * math.sqrt(2 * freedom), shown)


def _discrepancy(bench: Bench, settings: dict[str, Any], drawn: dict[str, list[ScoredModel]]) -> Table:
    """How much the mean over all texts varies from draw to draw, with low-discrepancy times and without: one model."""
    rows = []
    for name, schedule in SCHEDULES.items():
        alone = bench.score("mdlm", proposed(schedule, stratified=False), what=f"{name}, independent", **settings)
        rows.append(Row(name, {}, {"strata": _of_sums(drawn[name][0]), "independent": _of_sums(alone)}))
    title = "Standard deviation of the mean over all texts, from draw to draw (bits a token)"
    return Table(title, "appendix D.3", ["strata", "independent"], rows)


def _of_sums(scored: ScoredModel) -> Figure:
    """The standard deviation over draws of the bits per token of all texts together."""
    sums = scored.nats.sum(0) / scored.tokens.sum() / math.log(2)
    spread = deviation(sums.tolist()) or 0.0
    return Figure(spread, spread / math.sqrt(2 * (len(sums) - 1)))


SCHEDULES_TABLE = PaperTable(
    "schedules", schedules, TEXT, "lm1b", claims=CLAIMS, sides=dict.fromkeys(SCHEDULES, "mdlm")
)
