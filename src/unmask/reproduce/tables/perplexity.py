"""The tables of likelihood: the ladder of the ablation, schedules, steps, time conditioning, and all methods."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable
from typing import Any

import numpy as np

from ...evaluation import ESTIMATORS
from ...evaluation.likelihood import baselines
from ...models.language_model import LanguageModel
from ...models.masked import Objective, as_masked
from ...process.schedule import ContinuousTime, Cosine, DiscreteTime, Linear, LogUniform, Polynomial, Schedule
from .. import paper
from ..bench import LONGER, SEEDS, Bench, ScoredModel, difference
from ..report import Check, Curve, Figure, Plot, Report, Row, Table, ordering

LOWER = "a lower bound is not a better model by itself: one training each, so its own chance is in every difference"
SIGMA_MAX = 7.0  # of the linear schedule, as in the authors' code; 1e8, as printed, leaves nothing to draw
STEPS = (10, 20, 50, 100, 200, 500, 1000)
SHORT, LONG, NATS = paper.PPL, "PPL, longer training", "nats/token, longer training"


def compared(claim: str, better: ScoredModel, worse: ScoredModel, sigmas: float = 2.0) -> Check:
    """Whether a model has fewer nats than another on the same rows, by more than so many standard errors."""
    gap = difference(better, worse)
    assert gap.error is not None
    apart = gap.value / gap.error if gap.error else math.copysign(math.inf, gap.value)
    shown = f"{better.perplexity} against {worse.perplexity}: {gap} nats a token, paired over texts, {apart:.1f} errors"
    if abs(apart) <= sigmas:
        return Check(claim, None, f"{shown}: within {sigmas:g}, not decided")
    return Check(claim, apart > 0, shown)


def tied(claim: str, one: ScoredModel, other: ScoredModel, sigmas: float = 2.0) -> Check:
    """Whether two models are equal as far as the errors can tell."""
    gap = difference(one, other)
    assert gap.error is not None
    apart = abs(gap.value) / gap.error if gap.error else math.inf
    shown = f"{one.perplexity} and {other.perplexity}: {gap} nats a token, {apart:.1f} errors"
    return Check(claim, apart <= sigmas, shown)


def spread(scored: ScoredModel) -> Figure:
    """The perplexity with its standard deviation over evaluation seeds, as the paper prints it."""
    return Figure(scored.perplexity.value, scored.spread, bound=not scored.exact)


def under(**law: Any) -> Callable[[LanguageModel], LanguageModel]:
    """The model under another schedule or law."""
    return lambda model: model.under(**law)


# -- tab:lm1b-ablation -----------------------------------------------------------------------------------------------

LADDER = {
    "MDLM": "mdlm",
    "w/o continuous time": "mdlm-T1000",
    "& w/o carry-over": "no-carry-over",
    "& w/o zero masking": "d3pm",
}


def ablation(bench: Bench) -> Report:
    """MDLM, and without one part after the other, down to D3PM; with the shorter and the longer budget."""
    scored = budgets(bench, [*LADDER.values(), "mdlm-seed"])
    printed = paper.LM1B_ABLATION
    order = bench.score("mdlm" + LONGER, estimator=ESTIMATORS["strata"], what="any-order form")
    rows = [Row(row, printed.rows[row], _ladder_row(scored, name)) for row, name in LADDER.items()]
    rows.append(Row("MDLM, another training seed", {}, _ladder_row(scored, "mdlm-seed"), "the size of chance"))
    rows.append(
        Row(
            "MDLM, any-order form of the bound",
            {},
            {LONG: spread(order), NATS: order.rate},
            "the same number, another estimator",
        )
    )
    by = {name: scored[name + LONGER] for name in [*LADDER.values(), "mdlm-seed"]}
    checks = [
        compared("continuous time is better than T = 1000", by["mdlm"], by["mdlm-T1000"]),
        compared("carry-over helps", by["mdlm-T1000"], by["no-carry-over"]),
        tied("zero masking makes no difference without carry-over", by["no-carry-over"], by["d3pm"]),
        compared("MDLM is better than D3PM on the same network", by["mdlm"], by["d3pm"]),
        tied("the any-order form of the bound agrees", by["mdlm"], order),
    ]
    return bench.report(
        "ablation",
        printed.label,
        [Table(printed.title, printed.label, [SHORT, LONG, NATS], rows)],
        checks=checks,
        protocol={
            "±": f"standard deviation over {SEEDS} evaluation seeds for PPL, as in the paper; standard error for nats",
            "claims": "of the longer training",
            "discrete": "T = 1000, log-linear",
            "reconstruction": "without carry-over: -log x̂ of all tokens from the z of the last step, as in the paper "
            "(the authors' code scores clean x instead); of one row in four, with weight four",
            "time_conditioning": "off in all rows",
        },
        notes=[_chance(scored), f"{LOWER}."],
    )


def budgets(bench: Bench, names: list[str]) -> dict[str, ScoredModel]:
    """The likelihoods of models with both budgets, by name."""
    both = [name + end for end in ("", LONGER) for name in names]
    bench.need(both)
    return {name: bench.score(name) for name in both}


def _chance(scored: dict[str, ScoredModel]) -> str:
    short = difference(scored["mdlm"], scored["mdlm-seed"])
    long = difference(scored["mdlm" + LONGER], scored["mdlm-seed" + LONGER])
    return f"another training seed moves MDLM's bound by {short} nats a token (shorter) and {long} (longer training)."


def _ladder_row(scored: dict[str, ScoredModel], name: str) -> dict[str, Figure | str | None]:
    longer = scored[name + LONGER]
    return {SHORT: spread(scored[name]), LONG: spread(longer), NATS: longer.rate}


# -- tab:var_ns ------------------------------------------------------------------------------------------------------

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


def per_point(scored: ScoredModel) -> tuple[Figure, Figure]:
    """(mean, variance of one draw of one text) in bits a token, with standard errors over draws and over texts."""
    bits = scored.nats / scored.tokens[:, None] / math.log(2)
    mean, within = bits.mean(1), bits.var(1, ddof=1)
    n = math.sqrt(len(bits))
    total = Figure(float(bits.mean()), float(bits.mean(0).std(ddof=1) / math.sqrt(bits.shape[1])))
    assert mean.shape == within.shape
    return total, Figure(float(within.mean()), float(within.std(ddof=1) / n))


def proposed(schedule: Schedule, stratified: bool) -> Callable[[LanguageModel], LanguageModel]:
    """The model with its own schedule and times that are drawn under another: a proposal changes no mean."""

    def change(model: LanguageModel) -> LanguageModel:
        net = as_masked(model)
        assert net is not None
        return net.under(law=ContinuousTime(1e-3, schedule), objective=Objective(stratified=stratified))

    return change


def schedules(bench: Bench) -> Report:
    """One model under several noise schedules: equal means, different variances."""
    bench.need(["mdlm"])
    printed = paper.NOISE_SCHEDULES
    rows, found, drawn = [], {}, {}
    settings: dict[str, Any] = {
        "draws": bench.scale.draws,
        "limit": None if bench.scale.rows is None else bench.scale.rows // 4,
    }
    for name, schedule in SCHEDULES.items():
        drawn[name] = bench.score("mdlm", under(schedule=schedule), what=name, **settings)
        found[name] = per_point(drawn[name])
        rows.append(_schedule_row(name, found[name], REMARKS.get(name, "")))
    counts = bench.score("mdlm", estimator=ESTIMATORS["strata"], what="counts", **settings)
    rows.append(_schedule_row("stratified over mask counts", per_point(counts), "no schedule: --estimator strata"))
    table = Table(printed.title, printed.label, printed.columns, rows)
    means = [figure for figure, _ in found.values()]
    least = found["log-linear"]
    checks = [_equal_means(means)]
    for name in ("cosine", "cosine squared", "linear"):
        checks.append(ordering(f"log-linear has less variance than {name}", least[1], found[name][1]))
    return bench.report(
        "schedules",
        printed.label,
        [table, _discrepancy(bench, settings, drawn)],
        checks=checks,
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


def _schedule_row(name: str, figures: tuple[Figure, Figure], note: str = "") -> Row:
    return Row(name, paper.NOISE_SCHEDULES.rows.get(name, {}), {"mean": figures[0], "variance": figures[1]}, note)


def _equal_means(means: list[Figure]) -> Check:
    """Chi-square of the means against one common value."""
    weights = np.array([1 / (figure.error or 1e-12) ** 2 for figure in means])
    values = np.array([figure.value for figure in means])
    common = float((weights * values).sum() / weights.sum())
    chi = float((weights * (values - common) ** 2).sum())
    freedom = len(means) - 1
    shown = f"chi-square {chi:.1f} with {freedom} degrees of freedom around {common:.4f} bits a token"
    return Check("all schedules have the same mean", chi < freedom + 3 * math.sqrt(2 * freedom), shown)


def _discrepancy(bench: Bench, settings: dict[str, Any], drawn: dict[str, ScoredModel]) -> Table:
    """How much the mean over all texts varies from draw to draw, with low-discrepancy times and without."""
    rows = []
    for name, schedule in SCHEDULES.items():
        alone = bench.score("mdlm", proposed(schedule, stratified=False), what=f"{name}, independent", **settings)
        rows.append(Row(name, {}, {"strata": _of_sums(drawn[name]), "independent": _of_sums(alone)}))
    title = "Standard deviation of the mean over all texts, from draw to draw (bits a token)"
    return Table(title, "appendix D.3", ["strata", "independent"], rows)


def _of_sums(scored: ScoredModel) -> Figure:
    """The standard deviation over draws of the bits a token of all texts together."""
    sums = scored.nats.sum(0) / scored.tokens.sum() / math.log(2)
    deviation = float(sums.std(ddof=1))
    return Figure(deviation, deviation / math.sqrt(2 * (len(sums) - 1)))


# -- supp:fig:subs-ablation ------------------------------------------------------------------------------------------


def steps(bench: Bench) -> Report:
    """The bound of T steps, for growing T: the same model throughout."""
    bench.need(["mdlm"])
    printed = paper.DISCRETE_TIME
    estimator = ESTIMATORS["strata"]
    found = {"∞": bench.score("mdlm", estimator=estimator, what="T = ∞")}
    for t in STEPS:
        change = under(law=DiscreteTime(t))
        found[str(t)] = bench.score("mdlm", change, estimator=estimator, what=f"T = {t}")
    rows = [Row(name, printed.rows[name], {paper.PPL: scored.perplexity}) for name, scored in found.items()]
    ladder = [*(str(t) for t in STEPS), "∞"]
    checks = [
        compared(f"T = {more} is better than T = {less}", found[more], found[less])
        for less, more in itertools.pairwise(ladder)
    ]
    limit = found["∞"].perplexity.value
    curve = Curve("here", [float(t) for t in STEPS], [found[str(t)].perplexity.value / limit for t in STEPS])
    theirs = [_value(printed.rows[str(t)][paper.PPL]) / _value(printed.rows["∞"][paper.PPL]) for t in STEPS]
    plot = Plot(
        "steps",
        "Perplexity bound with T steps, relative to T = ∞",
        "T",
        "ratio",
        [curve, Curve("paper", [float(t) for t in STEPS], theirs)],
        log_x=True,
    )
    return bench.report(
        "steps",
        printed.label,
        [Table(printed.title, printed.label, printed.columns, rows)],
        plots=[plot],
        checks=checks,
        protocol={"estimator": estimator.name, "±": "standard error over draws"},
        notes=list(printed.remarks),
    )


def _value(figure: Figure | str) -> float:
    assert isinstance(figure, Figure)
    return figure.value


# -- tab:time-cond-abl -----------------------------------------------------------------------------------------------


def time_conditioning(bench: Bench) -> Report:
    """MDLM with and without being told the time; with the shorter and the longer budget."""
    scored = budgets(bench, ["mdlm", "mdlm-time", "mdlm-seed"])
    printed = paper.TIME_CONDITIONING

    def row(name: str, model: str, note: str = "") -> Row:
        ours = {SHORT: scored[model].perplexity, LONG: scored[model + LONGER].perplexity}
        return Row(name, printed.rows.get(name, {}), ours, note)

    rows = [
        row("MDLM w/ time conditioning", "mdlm-time"),
        row("MDLM w/o time conditioning", "mdlm"),
        row("MDLM w/o, another training seed", "mdlm-seed", "the size of chance"),
    ]
    untold, told, again = (scored[name + LONGER] for name in ("mdlm", "mdlm-time", "mdlm-seed"))
    gap, chance = difference(untold, told), difference(untold, again)
    small = Check(
        "time conditioning makes little difference (the paper: 0.7 %)",
        abs(math.expm1(gap.value)) < 0.03,
        f"it changes the perplexity by {100 * math.expm1(gap.value):+.2f} %; another training seed by "
        f"{100 * math.expm1(chance.value):+.2f} %",
    )
    return bench.report(
        "time-conditioning",
        printed.label,
        [Table(printed.title, printed.label, [SHORT, LONG], rows)],
        checks=[small, compared("without time conditioning is better", untold, told)],
        protocol={"±": "standard error over draws", "claims": "of the longer training"},
        notes=[*printed.remarks, _chance(scored), f"{LOWER}."],
    )


# -- tab:lm1b-ppl and owt-ppl ----------------------------------------------------------------------------------------

METHODS = {"AR": "ar", "SEDD": "sedd", "D3PM": "d3pm", "MDLM": "mdlm"}


def lm(bench: Bench) -> Report:
    """All methods side by side, with the shorter and the longer budget."""
    scored = budgets(bench, list(METHODS.values()))
    simple = baselines(bench.rows("train"), bench.rows(), bench.data.tokenizer.vocab.size)
    rows = [Row("unigram model", {}, {SHORT: Figure(math.exp(simple["unigram"]))}, "of the training text, add-one")]
    for method, name in METHODS.items():
        ours = {SHORT: scored[name].perplexity, LONG: scored[name + LONGER].perplexity}
        rows.append(Row(method, _lm1b(method), ours))
    checks = []
    for end, what in (("", "shorter"), (LONGER, "longer")):
        by = {method: scored[name + end] for method, name in METHODS.items()}
        checks += [
            compared(f"AR is better than MDLM ({what} training)", by["AR"], by["MDLM"]),
            compared(f"MDLM is better than SEDD ({what} training)", by["MDLM"], by["SEDD"]),
            compared(f"MDLM is better than D3PM ({what} training)", by["MDLM"], by["D3PM"]),
        ]
    checks.append(compared("MDLM improves with training", scored["mdlm" + LONGER], scored["mdlm"]))
    printed = paper.LM1B
    title = "Test perplexity of all methods (paper: LM1B, 33B and 327B tokens)"
    in_owt = [
        Row(method, paper.OWT.rows[method], {paper.PPL: scored[METHODS[method] + LONGER].perplexity})
        for method in paper.OWT.rows
    ]
    owt = Table(paper.OWT.title, paper.OWT.label, paper.OWT.columns, in_owt)
    return bench.report(
        "lm",
        f"{printed.label}, {paper.OWT.label}",
        [Table(title, printed.label, [SHORT, LONG], rows), owt],
        checks=checks,
        protocol={
            "±": "standard error over draws; AR is exact",
            "budgets": f"AR trains half the steps; the longer training is {bench.scale.longer} times the shorter",
            "first token": "AR predicts it too, from a start symbol: all methods score the same tokens",
        },
        notes=[
            "D3PM in the paper's table is the original (70M, other tokens); here it is on the paper's own network.",
            f"{LOWER}.",
        ],
    )


def _lm1b(method: str) -> dict[str, Figure | str]:
    rows = paper.LM1B.rows
    if method == "D3PM":
        return {SHORT: rows["D3PM (absorb)"][paper.PPL]}
    found = {SHORT: rows[f"{method} (33B tokens)"][paper.PPL]}
    longer = rows.get(f"{method} (327B tokens)")
    return found if longer is None else found | {LONG: longer[paper.PPL]}


__all__ = ["ablation", "lm", "schedules", "steps", "time_conditioning"]
