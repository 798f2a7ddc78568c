"""The tables of likelihood: the ladder of the ablation, time conditioning, and all methods side by side."""

from __future__ import annotations

import math
from collections.abc import Mapping

from ...evaluation import ESTIMATORS
from ...evaluation.likelihood import baselines
from .. import paper
from ..bench import SEEDS, Bench
from ..claims import NO_DIFFERENCE, Claim, nats_gap
from ..figures import Figure, significant
from ..report import Report, Row, Table
from ..scored import ScoredModel, Trainings, mean_perplexity, mean_rate
from ..specs import PaperTable
from ..text_models import LONGER, TEXT, both_budgets

LOWER = "a lower bound is not a better model by itself: one training each, so its own chance is in every difference"
SHORT, LONG, NATS = paper.PPL, "PPL, longer training", "nats/token, longer training"
Scores = Mapping[str, Trainings]  # by name of the model: one a training seed


def with_spread(scored: Trainings) -> Figure:
    """The perplexity with its standard deviation over evaluation seeds, as the paper prints it.

    Of several trainings it is the mean, with its standard error.
    """
    one = scored[0]
    return mean_perplexity(scored) if len(scored) > 1 else Figure(one.perplexity.value, one.spread, bound=not one.exact)


def budgets(bench: Bench, *names: str) -> dict[str, list[ScoredModel]]:
    """The likelihoods of models with both budgets, by name."""
    bench.need(both_budgets(*names))
    return {name: bench.scores(name) for name in both_budgets(*names)}


def another_seed(bench: Bench) -> list[str]:
    """With one training of each model, MDLM once more: the size of chance."""
    return ["mdlm-seed"] if bench.seeds == 1 else []


def errors(bench: Bench, words: str) -> str:
    """What ± means in a table: with several trainings their standard error."""
    return words if bench.seeds == 1 else "standard error, over draws and trainings together"


def remarks(bench: Bench, scored: Scores) -> list[str]:
    """What is said of the chance of a training."""
    gaps = []
    for end in ("", LONGER):
        first, *others = [*scored["mdlm" + end], *scored.get("mdlm-seed" + end, ())]
        gaps.append([abs(nats_gap(first, other).value) for other in others])
    if not all(gaps):
        return []
    short, long = (significant(sum(each) / len(each), 2) for each in gaps)
    moved = f"another training seed moves MDLM's bound by {short} nats a token (shorter) and {long} (longer training)."
    return [moved] if bench.seeds > 1 else [moved, f"{LOWER}."]


# -- tab:lm1b-ablation -----------------------------------------------------------------------------------------------

LADDER = {
    "MDLM": "mdlm",
    "w/o continuous time": "mdlm-T1000",
    "& w/o carry-over": "no-carry-over",
    "& w/o zero masking": "d3pm",
}
MDLM, DISCRETE, NO_CARRY_OVER, D3PM = (name + LONGER for name in LADDER.values())
ANY_ORDER = "any-order form"


def _rung(upper: str, lower: str) -> float:
    return paper.log_ratio(paper.LM1B_ABLATION, upper, lower)


ABLATION_CLAIMS = (
    Claim("continuous time is better than T = 1000", MDLM, DISCRETE, paper=_rung("MDLM", "w/o continuous time")),
    Claim("carry-over helps", DISCRETE, NO_CARRY_OVER, paper=_rung("w/o continuous time", "& w/o carry-over")),
    Claim(
        "zero masking makes no difference without carry-over",
        NO_CARRY_OVER,
        D3PM,
        "equal",
        margin=NO_DIFFERENCE,
        paper=_rung("& w/o carry-over", "& w/o zero masking"),
    ),
    Claim("MDLM is better than D3PM on the same network", MDLM, D3PM, paper=_rung("MDLM", "& w/o zero masking")),
    Claim("the any-order form of the bound agrees", MDLM, ANY_ORDER, "equal", trained=False),
)


def ablation(bench: Bench) -> Report:
    """MDLM, and without one part after the other, down to D3PM; with the shorter and the longer budget."""
    scored = budgets(bench, *LADDER.values(), *another_seed(bench))
    printed = paper.LM1B_ABLATION
    order = bench.scores(MDLM, estimator=ESTIMATORS["strata"], what=ANY_ORDER)
    rows = [Row(row, printed.rows[row], _ladder_row(scored, name)) for row, name in LADDER.items()]
    for name in another_seed(bench):
        rows.append(Row("MDLM, another training seed", {}, _ladder_row(scored, name), "the size of chance"))
    rows.append(
        Row(
            "MDLM, any-order form of the bound",
            {},
            {LONG: with_spread(order), NATS: mean_rate(order)},
            "the same number, another estimator",
        )
    )
    over_seeds = f"standard deviation over {SEEDS} evaluation seeds for PPL, as in the paper; standard error for nats"
    return bench.report(
        "ablation",
        printed.label,
        [Table(printed.title, printed.label, [SHORT, LONG, NATS], rows)],
        checks=[claim.check(scored | {ANY_ORDER: order}) for claim in ABLATION_CLAIMS],
        protocol={
            "±": errors(bench, over_seeds),
            "claims": "of the longer training",
            "discrete": "T = 1000, log-linear",
            "reconstruction": "without carry-over: -log x̂ of all tokens from the z of the last step, as in the paper "
            "(the authors' code scores clean x instead); of one row in four, with weight four",
            "time_conditioning": "off in all rows",
        },
        notes=remarks(bench, scored),
    )


def _ladder_row(scored: Scores, name: str) -> dict[str, Figure | str | None]:
    longer = scored[name + LONGER]
    return {SHORT: with_spread(scored[name]), LONG: with_spread(longer), NATS: mean_rate(longer)}


# -- tab:time-cond-abl -----------------------------------------------------------------------------------------------

TIMED, UNTIMED = "MDLM w/ time conditioning", "MDLM w/o time conditioning"
_TIME = paper.log_ratio(paper.TIME_CONDITIONING, UNTIMED, TIMED)
TIME_CLAIMS = (
    Claim(
        "time conditioning makes little difference (the paper: 0.7 %)",
        MDLM,
        "mdlm-time" + LONGER,
        "equal",
        margin=NO_DIFFERENCE,
        paper=_TIME,
    ),
    Claim("without time conditioning is better", MDLM, "mdlm-time" + LONGER, paper=_TIME),
)


def time_conditioning(bench: Bench) -> Report:
    """MDLM with and without time conditioning; with the shorter and the longer budget."""
    scored = budgets(bench, "mdlm", "mdlm-time", *another_seed(bench))
    printed = paper.TIME_CONDITIONING

    def row(name: str, model: str, note: str = "") -> Row:
        ours = {SHORT: mean_perplexity(scored[model]), LONG: mean_perplexity(scored[model + LONGER])}
        return Row(name, printed.rows.get(name, {}), ours, note)

    rows = [row(TIMED, "mdlm-time"), row(UNTIMED, "mdlm")]
    rows += [row("MDLM w/o, another training seed", name, "the size of chance") for name in another_seed(bench)]
    return bench.report(
        "time-conditioning",
        printed.label,
        [Table(printed.title, printed.label, [SHORT, LONG], rows)],
        checks=[claim.check(scored) for claim in TIME_CLAIMS],
        protocol={"±": errors(bench, "standard error over draws"), "claims": "of the longer training"},
        notes=[*printed.remarks, *remarks(bench, scored)],
    )


# -- tab:lm1b-ppl and owt-ppl ----------------------------------------------------------------------------------------

METHODS = {"AR": "ar", "SEDD": "sedd", "D3PM": "d3pm", "MDLM": "mdlm"}
WITH_TIME = "MDLM, with time conditioning"  # as SEDD has it


def _lm_claims(end: str, words: str, tokens: str) -> list[Claim]:
    rows = {"ar": f"AR ({tokens})", "mdlm": f"MDLM ({tokens})", "sedd": f"SEDD ({tokens})"}

    def claim(text: str, left: str, right: str) -> Claim:
        both = [rows.get(side, "") for side in (left, right)]
        known = all(row in paper.LM1B.rows for row in both)
        printed = paper.log_ratio(paper.LM1B, *both) if known else None
        return Claim(f"{text} ({words} training)", left + end, right + end, paper=printed)

    return [
        claim("AR is better than MDLM", "ar", "mdlm"),
        claim("MDLM is better than SEDD", "mdlm", "sedd"),
        Claim(
            f"MDLM is better than SEDD, both with time conditioning ({words} training)",
            "mdlm-time" + end,
            "sedd" + end,
            paper=paper.log_ratio(paper.OWT, "MDLM", "SEDD"),
        ),
        Claim(
            f"MDLM is better than D3PM ({words} training)",
            "mdlm" + end,
            "d3pm" + end,
            paper=_rung("MDLM", "& w/o zero masking"),
        ),
    ]


LM_CLAIMS = (
    *_lm_claims("", "shorter", "33B tokens"),
    *_lm_claims(LONGER, "longer", "327B tokens"),
    Claim(
        "MDLM improves with training",
        MDLM,
        "mdlm",
        paper=paper.log_ratio(paper.LM1B, "MDLM (327B tokens)", "MDLM (33B tokens)"),
    ),
)


def lm(bench: Bench) -> Report:
    """All methods side by side, with the shorter and the longer budget."""
    methods = METHODS | {WITH_TIME: "mdlm-time"}
    scored = budgets(bench, *methods.values())
    simple = baselines(bench.rows("train"), bench.rows(), bench.data.tokenizer.vocab.size)
    rows = [Row("unigram model", {}, {SHORT: Figure(math.exp(simple["unigram"]))}, "of the training text, add-one")]
    for method, name in methods.items():
        ours = {SHORT: mean_perplexity(scored[name]), LONG: mean_perplexity(scored[name + LONGER])}
        rows.append(Row(method, _lm1b(method), ours))
    printed = paper.LM1B
    title = "Test perplexity of all methods (paper: LM1B, 33B and 327B tokens)"
    like_theirs = {**METHODS, "MDLM": "mdlm-time"}  # the paper's MDLM on OpenWebText has time conditioning
    in_owt = [
        Row(method, paper.OWT.rows[method], {paper.PPL: mean_perplexity(scored[like_theirs[method] + LONGER])})
        for method in paper.OWT.rows
    ]
    owt = Table(paper.OWT.title, paper.OWT.label, paper.OWT.columns, in_owt)
    return bench.report(
        "lm",
        f"{printed.label}, {paper.OWT.label}",
        [Table(title, printed.label, [SHORT, LONG], rows), owt],
        checks=[claim.check(scored) for claim in LM_CLAIMS],
        protocol={
            "±": errors(bench, "standard error over draws; AR is exact"),
            "budgets": f"AR trains half the steps; the longer training is {bench.scale.longer} times the shorter",
            "first token": "AR predicts it too, from a start symbol: all methods score the same tokens",
            "time conditioning": "SEDD has it, MDLM where it says so; on OpenWebText both, as in the paper",
        },
        notes=[
            "D3PM in the paper's table is the original (70M, other tokens); here it is on the paper's own network.",
            *([f"{LOWER}."] if bench.seeds == 1 else []),
        ],
    )


def _lm1b(method: str) -> dict[str, Figure | str]:
    rows = paper.LM1B.rows
    if method == "D3PM":
        return {SHORT: rows["D3PM (absorb)"][paper.PPL]}
    if method == WITH_TIME:
        return {}
    printed = {SHORT: rows[f"{method} (33B tokens)"][paper.PPL]}
    longer = rows.get(f"{method} (327B tokens)")
    return printed if longer is None else printed | {LONG: longer[paper.PPL]}


ABLATION = PaperTable("ablation", ablation, TEXT, "lm1b", claims=ABLATION_CLAIMS)
TIME_CONDITIONING = PaperTable("time-conditioning", time_conditioning, TEXT, "owt", claims=TIME_CLAIMS)
LM1B = PaperTable("lm", lm, TEXT, "lm1b", claims=LM_CLAIMS)
