"""What makes training faster: the paper's recipe and parts that replace its parts, at equal tokens. A study of ours.

Learning rates are chosen, recipes compared and leads measured on the validation split. The test split is scored once,
when everything is trained, and for the longest trainings only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...evaluation.uncertainty import combined, deviation, freedom_of, mean, rate
from ...plot import Curve, Plot
from ...types import UserError
from ..bench import Bench
from ..claims import Claim, Difference, Measure, fewer_nats, nats_gap
from ..figures import Figure, significant
from ..lead import Reached, lasting, reached
from ..learning_models import (
    CALLS,
    CUTOFF,
    DRAWS,
    FINALISTS,
    LEARNED,
    MOST_SEEDS,
    PARTS,
    RECIPES,
    TUNED,
    model_name,
    planned,
    study_sizes,
)
from ..report import Cell, Check, Report, Row, Table
from ..scored import Trainings
from ..specs import PaperTable
from ..study import Run, Study

NATS, BITS, SECONDS, SEEDS = "nats/token", "bits/byte", "CPU seconds", "seeds"
TO_BASELINE, TO_ALL = "against the baseline", "against all parts"
TOKENS_NEEDED, FEWER_TOKENS, FEWER_SECONDS = "tokens that all parts need", "times fewer tokens", "times fewer seconds"
SHOWN = {"paper": "baseline", "all": "all parts", "ar": "AR, baseline", "ar-all": "AR, all parts"}
Finals = dict[str, dict[int, list[Run]]]  # runs of the finalists by recipe, budget and seed
PAIRS = {"MDLM": ("paper", "all"), "AR": ("ar", "ar-all")}  # a baseline, and the recipe with all parts


# -- tables ----------------------------------------------------------------------------------------------------------


def learning(bench: Bench) -> Report:
    """Train what is missing in the order of `Study.train`, then compare."""
    study = Study(bench, study_sizes(bench.scale))
    study.train()
    if not study.rates:
        raise UserError(f"no model of the study is trained in {bench.folder} yet; leave out --no-train")
    for name in bench.models:
        if bench.available(name):
            bench.use(name)  # so that the report says what was trained
    finals: Finals = {
        recipe: {tokens: runs for tokens in planned(study.sizes, recipe) if (runs := study.runs(recipe, tokens))}
        for recipe in FINALISTS
    }
    most = max((*study.sizes.budgets, *study.sizes.longest))
    longest: Finals = {
        recipe: {most: study.runs(recipe, most, bench.split)}
        for recipe in FINALISTS
        if most in planned(study.sizes, recipe) and not study.missing
    }
    leads = {method: reached(finals[base], finals[best]) for method, (base, best) in PAIRS.items()}
    return bench.report(
        "learning",
        "what makes training faster",
        [
            *([_recipes(study)] if study.sizes.ablation else []),
            _budgets(study, finals),
            _ratios(leads),
            _behind_ar(finals),
            *([_budgets(study, longest, bench.split)] if longest else []),
        ],
        plots=[*_plots(finals), _ratio_plot(leads)],
        checks=[*_checks(study, finals), *_checked(_leads([most], f", {bench.split} split"), _sides(longest))],
        protocol=_protocol(study),
        notes=_notes(study, finals, leads),
        study=True,
    )


def _recipes(study: Study) -> Table:
    """Every recipe with the smallest budget and one seed, on the validation split."""
    first, sizes = study.sizes.first, study.sizes
    named = {
        f"{SHOWN[recipe]}, rate {lr:g}": (recipe, model_name(recipe, lr, first))
        for recipe in TUNED
        for lr in sizes.rates
    }
    named |= {recipe: (recipe, study.name(recipe, first)) for recipe in RECIPES if recipe not in TUNED}
    sides = {recipe: study.runs(recipe, first)[:1] for recipe in FINALISTS}
    rows = []
    for shown, (recipe, name) in named.items():
        if study.bench.available(name):
            result = study.run(name)
            others = {column: sides[other] for column, other in zip((TO_BASELINE, TO_ALL), _pair(recipe), strict=True)}
            chosen = " (chosen)" if recipe in TUNED and name == study.name(recipe, first) else ""
            rows.append(Row(SHOWN.get(shown, shown) + chosen, {}, _figures(study, [result], "valid", others)))
    title = f"Every recipe with {first:,} tokens and one seed, validation split"
    return Table(title, "ours", [NATS, BITS, TO_BASELINE, TO_ALL, SECONDS], rows)


def _pair(recipe: str) -> tuple[str, str]:
    """The baseline and the recipe with all parts of the same method."""
    return PAIRS["AR" if recipe in ("ar", "ar-all") else "MDLM"]


def _budgets(study: Study, finals: Finals, split: str = "valid") -> Table:
    rows = []
    for tokens in (*study.sizes.smaller, *study.sizes.budgets, *study.sizes.longest):
        for recipe, budgets in finals.items():
            if tokens in budgets:
                others = {TO_BASELINE: finals[_pair(recipe)[0]].get(tokens, [])}
                cells = _figures(study, budgets[tokens], split, others)
                count = {SEEDS: Figure(len(budgets[tokens]))}
                rows.append(Row(f"{SHOWN[recipe]}, {tokens:,} tokens", {}, {**cells, **count}))
    return Table(f"The finalists by budget, {split} split", "ours", [NATS, BITS, TO_BASELINE, SECONDS, SEEDS], rows)


def _figures(study: Study, runs: Sequence[Run], split: str, others: Mapping[str, Sequence[Run]]) -> dict[str, Cell]:
    """The figures of a recipe: means over seeds, with errors over texts and seeds; differences by column."""
    nats = _mean_nats(runs)
    per_byte = 1 / math.log(2) / study.bench.rows(split).bytes_per_token
    bits = Figure(nats.value * per_byte, None if nats.error is None else nats.error * per_byte, nats.bound)
    cells: dict[str, Cell] = {NATS: nats, BITS: bits, SECONDS: Figure(mean([run.seconds for run in runs]).value)}
    for column, other in others.items():
        if other and other[0].name != runs[0].name:
            cells[column] = _gap(other, runs)
    return cells


def _mean_nats(runs: Sequence[Run]) -> Figure:
    over_seeds = mean([run.nats for run in runs])
    nats = np.mean([run.scored.nats.mean(1) for run in runs], axis=0)
    over_texts = rate(nats, runs[0].scored.tokens)
    return Figure(over_seeds.value, combined(over_texts.stderr, over_seeds.stderr), not runs[0].scored.exact)


def _gap(left: Sequence[Run], right: Sequence[Run]) -> Figure:
    """The nats that the right has more, paired over texts and seeds."""
    gap = fewer_nats([run.scored for run in left], [run.scored for run in right])
    return Figure(gap.value, gap.error)


def _ratios(leads: Mapping[str, list[Reached]]) -> Table:
    rows = []
    for method, points in leads.items():
        for point in points:
            cells: dict[str, Cell] = {
                NATS: Figure(point.nats, bound=method != "AR"),
                TOKENS_NEEDED: f"{'≤ ' * point.least}{round(point.tokens):,}",
                FEWER_TOKENS: _least(point.fewer_tokens) if point.least else point.fewer_tokens,
                FEWER_SECONDS: _least(point.fewer_seconds) if point.least else point.fewer_seconds,
            }
            rows.append(Row(f"{method}, baseline with {point.budget:,} tokens", {}, cells))
    title = "What all parts need for the nats of the baseline, valid split"
    return Table(title, "ours", [NATS, TOKENS_NEEDED, FEWER_TOKENS, FEWER_SECONDS], rows)


def _behind_ar(finals: Finals) -> Table:
    """By how much the bound of MDLM is above AR, as trainings grow."""
    sides = {"baseline": ("ar", "paper"), "all parts": ("ar-all", "all")}
    rows: dict[int, dict[str, Cell]] = {}
    for column, (ar, mdlm) in sides.items():
        for tokens in sorted(finals[ar].keys() & finals[mdlm].keys()):
            rows.setdefault(tokens, {})[column] = _gap(finals[ar][tokens], finals[mdlm][tokens])
    shown = [Row(f"{tokens:,} tokens", {}, rows[tokens]) for tokens in sorted(rows)]
    return Table("Nats/token that MDLM has more than AR with as many tokens, valid split", "ours", list(sides), shown)


def _least(ratio: Figure) -> str:
    return f"≥ {significant(ratio.value, 3)}"


# -- plots -----------------------------------------------------------------------------------------------------------


def _plots(finals: Finals) -> list[Plot]:
    plots = []
    for name, unit in (("tokens", "tokens through the network"), ("seconds", SECONDS)):
        curves = []
        for recipe, budgets in finals.items():
            points = list(budgets.values())
            figures = [_mean_nats(runs) for runs in points]
            x = [mean([float(getattr(run, name)) for run in runs]).value for runs in points]
            curves.append(
                Curve(
                    SHOWN[recipe], x, [figure.value for figure in figures], [figure.error or 0.0 for figure in figures]
                )
            )
        title = "Nats a token at the end of trainings, valid split"
        plots.append(Plot(f"nats-{name}", title, unit, f"{NATS} (bound; AR exact)", curves, log_x=True))
    return plots


def _ratio_plot(leads: Mapping[str, list[Reached]]) -> Plot:
    curves = []
    for method, points in leads.items():
        budgets = [float(point.budget) for point in points]
        for unit, figures in (
            ("tokens", [point.fewer_tokens for point in points]),
            ("seconds", [point.fewer_seconds for point in points]),
        ):
            values, errors = [figure.value for figure in figures], [figure.error or 0.0 for figure in figures]
            curves.append(Curve(f"{method}, {unit}", budgets, values, errors))
    title = "How many times less all parts need for the nats of the baseline"
    return Plot("ratios", title, "tokens of the baseline", "ratio", curves, log_x=True, log_y=True)


# -- claims ----------------------------------------------------------------------------------------------------------


def with_chance(chance: float | None, trainings: int = 0) -> Measure:
    """For one training on each side: `chance` is the standard deviation of so many trainings, if it is known."""

    def measure(left: Trainings, right: Trainings) -> Difference:
        gap = fewer_nats(left, right)
        if chance is None:
            return gap
        spread = math.sqrt(2) * chance
        remark = f" (one seed: the error has the spread of seeds, {significant(chance, 2)} nats, on both sides)"
        freedom = freedom_of((spread, trainings - 1), (gap.texts, gap.freedom))
        return replace(gap, error=combined(gap.error, spread), spread=spread, freedom=freedom, remark=remark)

    return measure


def _leads(budgets: Iterable[int], end: str = "") -> list[Claim]:
    """All parts against the baseline, of either method; `end` is that of the claims."""
    return [
        Claim(
            f"all parts are better than the baseline{of}, {tokens:,} tokens{end}",
            f"{best} {tokens}",
            f"{base} {tokens}",
        )
        for of, (base, best) in (("", PAIRS["MDLM"]), (" of AR", PAIRS["AR"]))
        for tokens in budgets
    ]


def _claims(study: Study) -> list[Claim]:
    sizes = study.sizes
    claims = _leads((*sizes.budgets, *sizes.longest))
    if sizes.ablation:
        nats = ([run.nats for run in study.runs(recipe, sizes.first)] for recipe in PAIRS["MDLM"])
        alone, together = (with_chance(deviation(each), len(each)) for each in nats)
        claims += [Claim(f"{part} helps the baseline", f"paper+{part}", "paper", measure=alone) for part in PARTS]
        claims += [
            Claim(f"{part} helps on top of the other parts", "all", f"all-without-{part}", measure=together)
            for part in PARTS
        ]
        text = "plain cross-entropy is better than the weights of the bound"
        claims.append(Claim(text, "all", "all+weights", measure=together))
    return claims


def _checks(study: Study, finals: Finals) -> list[Check]:
    """Of what is trained, on the validation split."""
    sides = _sides(finals)
    if study.sizes.ablation:
        sides |= {recipe: study.runs(recipe, study.sizes.first)[:1] for recipe in RECIPES}
    return _checked(_claims(study), sides)


def _sides(finals: Finals) -> dict[str, list[Run]]:
    return {f"{recipe} {tokens}": runs for recipe, budgets in finals.items() for tokens, runs in budgets.items()}


def _checked(claims: Sequence[Claim], sides: Mapping[str, Sequence[Run]]) -> list[Check]:
    """The claims of which both sides are trained."""
    scored = {side: [run.scored for run in runs] for side, runs in sides.items() if runs}
    return [claim.check(scored) for claim in claims if {claim.left, claim.right} <= scored.keys()]


# -- words -----------------------------------------------------------------------------------------------------------


def _protocol(study: Study) -> dict[str, object]:
    bench, sizes = study.bench, study.sizes
    tried = ", ".join(f"{lr:g}" for lr in sizes.rates[: sizes.tried])
    chosen = ", ".join(f"{SHOWN[recipe]} {lr:g}" for recipe, lr in study.rates.items())
    words = {
        f"recipe {recipe}": " ".join(words)
        for recipe, words in RECIPES.items()
        if words and (sizes.ablation or recipe in FINALISTS)
    }
    return {
        "test_rows": f"{min(len(bench.rows('valid')), sizes.rows)} of the valid split; for the longest trainings, when "
        f"all is trained, {min(len(bench.rows()), sizes.rows)} of the {bench.split} split",
        "network": f"{sizes.network.n_blocks} blocks of width {sizes.network.hidden_dim}",
        "optimizer": f"as the recipes say, batch {sizes.batch_size}; every training decays to its own end",
        "embeddings": "as the recipes say",
        "weights": "as the recipes say",
        "learning rates": f"the best of {tried} on the validation split with {sizes.first:,} tokens (larger ones only "
        f"while the largest is best): {chosen}; all parts have none to choose",
        "evaluation": f"{DRAWS} draws of seed {bench.seed}, {CALLS} mask counts a row each; the last step is at mask "
        f"rate {CUTOFF:g}, whatever the training had; AR exact",
        "±": "standard error over texts, with the noise of the draws, and over training seeds where there are several; "
        "differences are paired",
        "tokens": "through the network, forward and backward; of pairs both views",
        SECONDS: "processor time of the steps, and of the counts that embeddings start from; without evaluations",
        "counts": "of the whole training split, of which a small budget sees only a part",
        "ratios": "lines over log tokens between the budgets of all parts: where the curve is convex, too small",
        "recipe paper": "DiT, AdamW (0.9, 0.999), cosine, warm-up 0.05, EMA 0.995, bound with cut-off 0.1",
        **words,
    }


def _notes(study: Study, finals: Finals, leads: Mapping[str, list[Reached]]) -> list[str]:
    notes = []
    for method, points in leads.items():
        points = [point for point in points if not point.least]
        if len(points) < 2:
            notes.append(f"{method}: the ratio is known for {len(points)} budgets, and a trend needs two of them.")
        else:
            budgets, seconds = [float(point.budget) for point in points], [point.seconds for point in points]
            notes.append(f"{method}: {lasting('tokens', budgets, [point.fewer_tokens.value for point in points])}")
            notes.append(
                f"{method}: {lasting('CPU seconds', seconds, [point.fewer_seconds.value for point in points])}"
            )
    for recipe in ("paper", "all"):
        runs = finals[recipe].get(study.sizes.first, [])
        if len(runs) > 1:
            gap = nats_gap(runs[0].scored, runs[1].scored)
            notes.append(f"Another training seed moves {SHOWN[recipe]} by {gap} nats a token.")
    if study.missing:
        notes.append(
            f"Not complete: {len(study.missing)} trainings are missing, the first of them {study.missing[0]}. "
            "So the test split is left alone."
        )
    return notes


LEARNING = PaperTable("learning", learning, LEARNED, "", partial=True, seeds=MOST_SEEDS)
