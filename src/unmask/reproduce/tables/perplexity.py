"""The tables of likelihood: the ladder of the ablation, time conditioning, and all methods side by side."""

from __future__ import annotations

import math

from ...evaluation import ESTIMATORS
from ...evaluation.likelihood import baselines
from .. import paper
from ..bench import SEEDS, Bench, ScoredModel
from ..claims import Claim, equal_nats, nats_gap
from ..figures import Figure
from ..report import Check, Report, Row, Table
from ..specs import PaperTable
from ..text_models import LONGER, TEXT, both_budgets

LOWER = "a lower bound is not a better model by itself: one training each, so its own chance is in every difference"
SHORT, LONG, NATS = paper.PPL, "PPL, longer training", "nats/token, longer training"


def with_spread(scored: ScoredModel) -> Figure:
    """The perplexity with its standard deviation over evaluation seeds, as the paper prints it."""
    return Figure(scored.perplexity.value, scored.spread, bound=not scored.exact)


# -- tab:lm1b-ablation -----------------------------------------------------------------------------------------------

LADDER = {
    "MDLM": "mdlm",
    "w/o continuous time": "mdlm-T1000",
    "& w/o carry-over": "no-carry-over",
    "& w/o zero masking": "d3pm",
}

ANY_ORDER = "any-order form"
ABLATION_CLAIMS = (
    Claim("continuous time is better than T = 1000", "mdlm", "mdlm-T1000"),
    Claim("carry-over helps", "mdlm-T1000", "no-carry-over"),
    Claim("zero masking makes no difference without carry-over", "no-carry-over", "d3pm", "equal", equal_nats),
    Claim("MDLM is better than D3PM on the same network", "mdlm", "d3pm"),
    Claim("the any-order form of the bound agrees", "mdlm", ANY_ORDER, "equal", equal_nats),
)


def ablation(bench: Bench) -> Report:
    """MDLM, and without one part after the other, down to D3PM; with the shorter and the longer budget."""
    scored = budgets(bench, *LADDER.values(), "mdlm-seed")
    printed = paper.LM1B_ABLATION
    order = bench.score("mdlm" + LONGER, estimator=ESTIMATORS["strata"], what=ANY_ORDER)
    rows = [Row(row, printed.rows[row], _ladder_row(scored, name)) for row, name in LADDER.items()]
    rows.append(Row("MDLM, another training seed", {}, _ladder_row(scored, "mdlm-seed"), "the size of chance"))
    rows.append(
        Row(
            "MDLM, any-order form of the bound",
            {},
            {LONG: with_spread(order), NATS: order.rate},
            "the same number, another estimator",
        )
    )
    sides = {name: scored[name + LONGER] for name in LADDER.values()} | {ANY_ORDER: order}
    return bench.report(
        "ablation",
        printed.label,
        [Table(printed.title, printed.label, [SHORT, LONG, NATS], rows)],
        checks=[claim.check(sides) for claim in ABLATION_CLAIMS],
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


def budgets(bench: Bench, *names: str) -> dict[str, ScoredModel]:
    """The likelihoods of models with both budgets, by name."""
    bench.need(both_budgets(*names))
    return {name: bench.score(name) for name in both_budgets(*names)}


def _chance(scored: dict[str, ScoredModel]) -> str:
    short = nats_gap(scored["mdlm"], scored["mdlm-seed"])
    long = nats_gap(scored["mdlm" + LONGER], scored["mdlm-seed" + LONGER])
    return f"another training seed moves MDLM's bound by {short} nats a token (shorter) and {long} (longer training)."


def _ladder_row(scored: dict[str, ScoredModel], name: str) -> dict[str, Figure | str | None]:
    longer = scored[name + LONGER]
    return {SHORT: with_spread(scored[name]), LONG: with_spread(longer), NATS: longer.rate}


# -- tab:time-cond-abl -----------------------------------------------------------------------------------------------

TIME_CLAIMS = (Claim("without time conditioning is better", "mdlm", "mdlm-time"),)


def time_conditioning(bench: Bench) -> Report:
    """MDLM with and without time conditioning; with the shorter and the longer budget."""
    scored = budgets(bench, "mdlm", "mdlm-time", "mdlm-seed")
    printed = paper.TIME_CONDITIONING

    def row(name: str, model: str, note: str = "") -> Row:
        ours = {SHORT: scored[model].perplexity, LONG: scored[model + LONGER].perplexity}
        return Row(name, printed.rows.get(name, {}), ours, note)

    rows = [
        row("MDLM w/ time conditioning", "mdlm-time"),
        row("MDLM w/o time conditioning", "mdlm"),
        row("MDLM w/o, another training seed", "mdlm-seed", "the size of chance"),
    ]
    sides = {name: scored[name + LONGER] for name in ("mdlm", "mdlm-time", "mdlm-seed")}
    gap, chance = (nats_gap(sides["mdlm"], sides[name]) for name in ("mdlm-time", "mdlm-seed"))
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
        checks=[small, *(claim.check(sides) for claim in TIME_CLAIMS)],
        protocol={"±": "standard error over draws", "claims": "of the longer training"},
        notes=[*printed.remarks, _chance(scored), f"{LOWER}."],
    )


# -- tab:lm1b-ppl and owt-ppl ----------------------------------------------------------------------------------------

METHODS = {"AR": "ar", "SEDD": "sedd", "D3PM": "d3pm", "MDLM": "mdlm"}

LM_CLAIMS = (
    Claim("AR is better than MDLM (shorter training)", "ar", "mdlm"),
    Claim("MDLM is better than SEDD (shorter training)", "mdlm", "sedd"),
    Claim("MDLM is better than D3PM (shorter training)", "mdlm", "d3pm"),
    Claim("AR is better than MDLM (longer training)", "ar" + LONGER, "mdlm" + LONGER),
    Claim("MDLM is better than SEDD (longer training)", "mdlm" + LONGER, "sedd" + LONGER),
    Claim("MDLM is better than D3PM (longer training)", "mdlm" + LONGER, "d3pm" + LONGER),
    Claim("MDLM improves with training", "mdlm" + LONGER, "mdlm"),
)


def lm(bench: Bench) -> Report:
    """All methods side by side, with the shorter and the longer budget."""
    scored = budgets(bench, *METHODS.values())
    simple = baselines(bench.rows("train"), bench.rows(), bench.data.tokenizer.vocab.size)
    rows = [Row("unigram model", {}, {SHORT: Figure(math.exp(simple["unigram"]))}, "of the training text, add-one")]
    for method, name in METHODS.items():
        ours = {SHORT: scored[name].perplexity, LONG: scored[name + LONGER].perplexity}
        rows.append(Row(method, _lm1b(method), ours))
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
        checks=[claim.check(scored) for claim in LM_CLAIMS],
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
    printed = {SHORT: rows[f"{method} (33B tokens)"][paper.PPL]}
    longer = rows.get(f"{method} (327B tokens)")
    return printed if longer is None else printed | {LONG: longer[paper.PPL]}


ABLATION = PaperTable("ablation", ablation, TEXT, "lm1b")
TIME_CONDITIONING = PaperTable("time-conditioning", time_conditioning, TEXT, "owt")
LM1B = PaperTable("lm", lm, TEXT, "lm1b")
