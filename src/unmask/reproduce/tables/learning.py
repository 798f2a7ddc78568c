"""What makes training faster: the paper's recipe and parts that replace its parts, at equal tokens. A study of ours.

Learning rates are chosen, and recipes compared, on the validation split. The test split is scored once everything is
trained, and for the finalists only.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field

import numpy as np

from ...evaluation.uncertainty import combined, mean, rate
from ...files import replacing
from ...plot import Curve, Plot
from ...types import UserError
from ..bench import Bench, ScoredModel
from ..claims import Claim, Difference, fewer_nats_of_seeds, nats_gap
from ..figures import Figure, significant
from ..learning_models import (
    ALONE,
    CALLS,
    CUTOFF,
    DRAWS,
    FINALISTS,
    LEARNED,
    PARTS,
    RECIPES,
    TUNED,
    VARIANTS,
    WITHOUT,
    StudySizes,
    forward_tokens,
    model_name,
    planned,
    study_sizes,
    training_seconds,
    under_whole_bound,
)
from ..report import Cell, Check, Report, Row, Table
from ..specs import PaperTable

NATS, BITS, SECONDS, SEEDS = "nats/token", "bits/byte", "CPU seconds", "seeds"
TO_BASELINE, TO_ALL = "against the baseline", "against all parts"
TOKENS_NEEDED, FEWER_TOKENS, FEWER_SECONDS = "tokens that all parts need", "times fewer tokens", "times fewer seconds"
SHOWN = {"paper": "baseline", "all": "all parts", "ar": "AR, baseline", "ar-all": "AR, all parts"}
PAIRS = {"MDLM": ("paper", "all"), "AR": ("ar", "ar-all")}  # a baseline, and the recipe with all parts


@dataclass(frozen=True)
class Run:
    """A trained model and its score on one split."""

    name: str
    tokens: int
    seconds: float
    scored: ScoredModel

    @property
    def nats(self) -> float:
        """Nats per token."""
        return self.scored.rate.value


@dataclass
class Study:
    """What is trained so far: the chosen learning rates, and the runs of recipes by budget and seed."""

    bench: Bench
    sizes: StudySizes
    rates: dict[str, float] = field(default_factory=dict)  # of the recipes that are tuned
    missing: list[str] = field(default_factory=list)  # models that a complete study has

    def name(self, recipe: str, tokens: int, seed: int = 0) -> str:
        """The name of a model with the learning rate that was chosen."""
        tuned = "ar" if recipe == "ar" else "paper"
        return model_name(recipe, self.rates.get(tuned, self.sizes.rates[0]), tokens, seed)

    def have(self, names: Iterable[str]) -> list[str]:
        """The ones of these models that are trained; unless the bench may not, it trains those that are missing."""
        names = list(names)
        if self.bench.trains:
            self.bench.need(names)
        there = [name for name in names if self.bench.finished(name)]
        self.missing += [name for name in names if name not in there]
        return there

    def choose_rate(self, recipe: str) -> None:
        """The best learning rate on the validation split; while it is the largest one tried, a larger one is tried."""
        rates, tried, first = self.sizes.rates, self.sizes.tried, self.sizes.first
        while True:
            names = {model_name(recipe, lr, first, 0): lr for lr in rates[:tried]}
            nats = {lr: self.run(name).nats for name, lr in names.items() if name in self.have([name])}
            if not nats:
                return
            self.rates[recipe] = min(nats, key=lambda lr: nats[lr])
            if self.rates[recipe] != rates[tried - 1] or tried == len(rates):
                return
            tried += 1

    def train(self) -> None:
        """Everything, the cheap and important first."""
        sizes = self.sizes
        self.choose_rate("paper")
        self.have([self.name("all", sizes.first)])
        self.choose_rate("ar")
        self.have([self.name("ar-all", sizes.first)])
        if sizes.ablation:
            self.have(self.name(recipe, sizes.first) for recipe in (*ALONE, *WITHOUT, *VARIANTS))
        later = list(sizes.budgets)[1:]
        self._finalists([*sizes.smaller, *later[:1]], first_seed=True)
        self._finalists([*sizes.smaller, sizes.first, *later[:1]], first_seed=False)
        for tokens in later[1:]:
            self._finalists([tokens], first_seed=True)
            self._finalists([tokens], first_seed=False)

    def _finalists(self, budgets: Sequence[int], first_seed: bool) -> None:
        for tokens in budgets:
            for recipe in FINALISTS:
                seeds = planned(self.sizes, recipe).get(tokens, 0)
                self.have(
                    self.name(recipe, tokens, seed) for seed in (range(seeds)[:1] if first_seed else range(seeds)[1:])
                )

    def run(self, name: str, split: str = "valid") -> Run:
        """A model that is trained, scored; scores are kept beside the model."""
        bench, limit = self.bench, self.sizes.rows
        file = bench.path(name) / f"{split}-{limit}x{DRAWS}x{CALLS}-seed{bench.seed}.npz"
        if not file.exists():
            model, estimator = under_whole_bound(bench.lm(name).model)
            rows, what = bench.rows(split), f"{name} ({split})"
            scored = bench.score(
                name, lambda _: model, draws=DRAWS, limit=limit, estimator=estimator, what=what, rows=rows
            )
            with replacing(file) as temporary, temporary.open("wb") as opened:
                np.savez(opened, nats=scored.nats, tokens=scored.tokens)
        with np.load(file) as kept:
            exact = bench.config(name).model.method == "ar"
            scored = ScoredModel(kept["nats"], kept["tokens"], exact, {})
        return Run(name, forward_tokens(bench.config(name)), training_seconds(bench.path(name)), scored)

    def runs(self, recipe: str, tokens: int, split: str = "valid") -> list[Run]:
        """The trained models of a recipe with a budget, by seed."""
        names = (self.name(recipe, tokens, seed) for seed in range(planned(self.sizes, recipe).get(tokens, 0)))
        return [self.run(name, split) for name in names if self.bench.finished(name)]


# -- tables ----------------------------------------------------------------------------------------------------------


def learning(bench: Bench) -> Report:
    """Train what is missing in the order of `Study.train`, then compare."""
    study = Study(bench, study_sizes(bench.scale))
    study.train()
    if not study.rates:
        raise UserError(f"no model of the study is trained in {bench.folder} yet; leave out --no-train")
    for name in bench.models:
        if bench.finished(name):
            bench.lm(name)  # so that the report says what was trained
    split = "valid" if study.missing else bench.split
    finals = {
        (recipe, tokens): runs
        for recipe in FINALISTS
        for tokens in planned(study.sizes, recipe)
        if (runs := study.runs(recipe, tokens, split))
    }
    reached = {method: _reached(finals, study.sizes, *pair) for method, pair in PAIRS.items()}
    return bench.report(
        "learning",
        "what makes training faster",
        [
            *([_recipes(study)] if study.sizes.ablation else []),
            _budgets(study, finals, split),
            _ratios(reached, split),
        ],
        plots=[*_plots(finals, split), _ratio_plot(reached)],
        checks=_checks(study, finals),
        protocol=_protocol(study, split),
        notes=_notes(study, finals, reached),
        own=True,
    )


def _recipes(study: Study) -> Table:
    """Every recipe with the smallest budget and one seed, on the validation split."""
    first, sizes = study.sizes.first, study.sizes
    named = {
        f"{SHOWN[recipe]}, rate {lr:g}": (recipe, model_name(recipe, lr, first, 0))
        for recipe in TUNED
        for lr in sizes.rates
    }
    named |= {recipe: (recipe, study.name(recipe, first)) for recipe in RECIPES if recipe not in TUNED}
    sides = {recipe: study.runs(recipe, first)[:1] for recipe in FINALISTS}
    rows = []
    for shown, (recipe, name) in named.items():
        if study.bench.finished(name):
            own = study.run(name)
            baseline, best = PAIRS["AR" if recipe.startswith("ar") else "MDLM"]
            chosen = " (chosen)" if recipe in TUNED and name == study.name(recipe, first) else ""
            rows.append(
                Row(SHOWN.get(shown, shown) + chosen, {}, _figures(study, [own], "valid", sides[baseline], sides[best]))
            )
    title = f"Every recipe with {first:,} tokens and one seed, validation split"
    return Table(title, "ours", [NATS, BITS, TO_BASELINE, TO_ALL, SECONDS], rows)


def _budgets(study: Study, finals: dict[tuple[str, int], list[Run]], split: str) -> Table:
    rows = []
    for (recipe, tokens), runs in sorted(finals.items(), key=lambda item: item[0][1]):
        baseline = PAIRS["AR" if recipe.startswith("ar") else "MDLM"][0]
        cells = _figures(study, runs, split, finals.get((baseline, tokens), []), None)
        rows.append(Row(f"{SHOWN[recipe]}, {tokens:,} tokens", {}, {**cells, SEEDS: Figure(len(runs))}))
    return Table(f"The finalists by budget, {split} split", "ours", [NATS, BITS, TO_BASELINE, SECONDS, SEEDS], rows)


def _figures(
    study: Study, runs: Sequence[Run], split: str, baseline: Sequence[Run], best: Sequence[Run] | None
) -> dict[str, Cell]:
    """The figures of a recipe: means over seeds, with errors over texts and seeds."""
    nats = _mean_nats(runs)
    per_byte = 1 / math.log(2) / study.bench.rows(split).bytes_per_token
    bits = Figure(nats.value * per_byte, None if nats.error is None else nats.error * per_byte, nats.bound)
    cells: dict[str, Cell] = {NATS: nats, BITS: bits, SECONDS: Figure(mean([run.seconds for run in runs]).value)}
    for column, others in ((TO_BASELINE, baseline), (TO_ALL, best or [])):
        if others and others[0].name != runs[0].name:
            cells[column] = _gap(others, runs)
    return cells


def _mean_nats(runs: Sequence[Run]) -> Figure:
    over_seeds = mean([run.nats for run in runs])
    nats = np.mean([run.scored.nats.mean(1) for run in runs], axis=0)
    over_texts = rate(nats, runs[0].scored.tokens)
    return Figure(over_seeds.value, combined(over_texts.stderr, over_seeds.stderr), not runs[0].scored.exact)


def _gap(left: Sequence[Run], right: Sequence[Run]) -> Figure:
    """The nats that the right has more, paired over texts and seeds."""
    gap = fewer([run.scored for run in left], [run.scored for run in right])
    return Figure(gap.value, gap.error)


# -- head start or factor --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Reached:
    """What the recipe with all parts needs for the nats of a baseline with some budget: means over seeds."""

    budget: int
    seconds: float  # of the baseline
    nats: float
    tokens: float  # that are needed
    fewer_tokens: Figure  # as ratios
    fewer_seconds: Figure
    least: bool  # the smallest budget is enough already: ratios are at least these


def crossing(x: Sequence[float], nats: Sequence[float], target: float) -> tuple[float, bool] | None:
    """Where a falling curve reaches the target, by lines over log x; True if its first point is already below it.

    None if it never does. A curve that is convex in log x lies below its chords, so this is rather too late.
    """
    if nats[0] <= target:
        return x[0], True
    for i in range(1, len(x)):
        if nats[i] <= target:
            share = (nats[i - 1] - target) / (nats[i - 1] - nats[i])
            return math.exp(math.log(x[i - 1]) + share * math.log(x[i] / x[i - 1])), False
    return None


def _reached(finals: dict[tuple[str, int], list[Run]], sizes: StudySizes, baseline: str, best: str) -> list[Reached]:
    """For each budget of the baseline; a seed of one recipe is compared with the same seed of the other."""
    found = []
    for budget in sizes.budgets:
        each = []
        for seed, run in enumerate(finals.get((baseline, budget), [])):
            curve = [
                finals[best, tokens][seed : seed + 1] for tokens in planned(sizes, best) if (best, tokens) in finals
            ]
            points = [point[0] for point in curve if point]
            where = (
                [
                    crossing(x, [point.nats for point in points], run.nats)
                    for x in ([float(point.tokens) for point in points], [point.seconds for point in points])
                ]
                if points
                else [None]
            )
            if None not in where:
                each.append((run, *where))
        if each:
            runs = [run for run, *_ in each]
            tokens, seconds = ([place[i][0] for place in each] for i in (1, 2))
            found.append(
                Reached(
                    budget,
                    mean([run.seconds for run in runs]).value,
                    mean([run.nats for run in runs]).value,
                    mean(tokens).value,
                    Figure(*mean([run.tokens / x for run, x in zip(runs, tokens, strict=True)])),
                    Figure(*mean([run.seconds / x for run, x in zip(runs, seconds, strict=True)])),
                    any(at_first for _, (_, at_first), _ in each),
                )
            )
    return found


def lasting(unit: str, budgets: Sequence[float], ratios: Sequence[float]) -> str:
    """Whether a lead is a head start or a factor: in words that follow from how a ratio goes from budget to budget."""
    first, last, ratio, now = budgets[0], budgets[-1], ratios[0], ratios[-1]
    span = f"From {significant(first, 3)} to {significant(last, 3)} {unit} of the baseline"
    begin = f"{span} the ratio goes from {significant(ratio, 3)} to {significant(now, 3)}"
    if ratio <= 1:
        return f"{begin}; with the smallest budget there is no lead that could last."
    ahead = first - first / ratio
    left = last / (last - ahead)
    share = math.log(now / left) / math.log(ratio / left)
    if share > 1:
        verdict = "the ratio grows"
    elif share >= 0.5:
        verdict = "nearer to a factor"
    elif share >= 0:
        verdict = "nearer to a head start"
    else:
        verdict = "less than a head start is left"
    return (
        f"{begin}. A head start of {significant(ahead, 3)} {unit} would leave {significant(left, 3)}, a factor "
        f"{significant(ratio, 3)}. On a log scale it is {share:.0%} of the way from the one to the other: {verdict}."
    )


def _ratios(reached: dict[str, list[Reached]], split: str) -> Table:
    rows = []
    for method, points in reached.items():
        for point in points:
            cells: dict[str, Cell] = {
                NATS: Figure(point.nats, bound=method != "AR"),
                TOKENS_NEEDED: f"{'≤ ' * point.least}{round(point.tokens):,}",
                FEWER_TOKENS: _least(point.fewer_tokens) if point.least else point.fewer_tokens,
                FEWER_SECONDS: _least(point.fewer_seconds) if point.least else point.fewer_seconds,
            }
            rows.append(Row(f"{method}, baseline with {point.budget:,} tokens", {}, cells))
    title = f"What all parts need for the nats of the baseline, {split} split"
    return Table(title, "ours", [NATS, TOKENS_NEEDED, FEWER_TOKENS, FEWER_SECONDS], rows)


def _least(ratio: Figure) -> str:
    return f"≥ {significant(ratio.value, 3)}"


# -- plots -----------------------------------------------------------------------------------------------------------


def _plots(finals: dict[tuple[str, int], list[Run]], split: str) -> list[Plot]:
    by_recipe = {
        recipe: [runs for (own, _), runs in sorted(finals.items(), key=lambda item: item[0][1]) if own == recipe]
        for recipe in FINALISTS
    }
    plots = []
    for name, unit in (("tokens", "tokens through the network"), ("seconds", SECONDS)):
        curves = []
        for recipe, points in by_recipe.items():
            figures = [_mean_nats(runs) for runs in points]
            x = [mean([float(getattr(run, name)) for run in runs]).value for runs in points]
            curves.append(
                Curve(
                    SHOWN[recipe], x, [figure.value for figure in figures], [figure.error or 0.0 for figure in figures]
                )
            )
        title = f"Nats a token at the end of trainings, {split} split"
        plots.append(Plot(f"nats-{name}", title, unit, f"{NATS} (bound; AR exact)", curves, log_x=True))
    return plots


def _ratio_plot(reached: dict[str, list[Reached]]) -> Plot:
    curves = []
    for method, points in reached.items():
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


def fewer(left: Sequence[ScoredModel], right: Sequence[ScoredModel]) -> Difference:
    """For two recipes, with the seeds that both have."""
    n = min(len(left), len(right))
    return fewer_nats_of_seeds(left[:n], right[:n], unit="token")


def _claims(sizes: StudySizes) -> list[Claim]:
    claims = [
        Claim(
            f"all parts are better than the baseline{method}, {tokens:,} tokens",
            f"{best} {tokens}",
            f"{base} {tokens}",
            measure=fewer,
        )
        for method, (base, best) in (("", PAIRS["MDLM"]), (" of AR", PAIRS["AR"]))
        for tokens in sizes.budgets
    ]
    if sizes.ablation:
        sentences = {f"{part} helps the baseline": (f"paper+{part}", "paper") for part in PARTS}
        sentences |= {f"{part} helps on top of the other parts": ("all", f"all-without-{part}") for part in PARTS}
        sentences["plain cross-entropy is better than the weights of the bound"] = ("all", "all+weights")
        claims += [Claim(text, *sides, measure=fewer) for text, sides in sentences.items()]
    return claims


def _checks(study: Study, finals: dict[tuple[str, int], list[Run]]) -> list[Check]:
    """Of what is trained: budgets on the split of the finalists, recipes on the validation split."""
    sides = {f"{recipe} {tokens}": runs for (recipe, tokens), runs in finals.items()}
    if study.sizes.ablation:
        sides |= {recipe: study.runs(recipe, study.sizes.first)[:1] for recipe in RECIPES}
    scored = {side: [run.scored for run in runs] for side, runs in sides.items() if runs}
    return [claim.check(scored) for claim in _claims(study.sizes) if {claim.left, claim.right} <= scored.keys()]


# -- words -----------------------------------------------------------------------------------------------------------


def _protocol(study: Study, split: str) -> dict[str, object]:
    bench, sizes = study.bench, study.sizes
    tried = ", ".join(f"{lr:g}" for lr in sizes.rates[: sizes.tried])
    chosen = ", ".join(f"{SHOWN[recipe]} {lr:g}" for recipe, lr in study.rates.items())
    words = {
        f"recipe {recipe}": " ".join(words)
        for recipe, words in RECIPES.items()
        if words and (sizes.ablation or recipe in FINALISTS)
    }
    return {
        "test_rows": f"{min(len(bench.rows(split)), sizes.rows)} of the {split} split",
        "network": f"{sizes.network.n_blocks} blocks of width {sizes.network.hidden_dim}",
        "optimizer": f"as the recipes say, batch {sizes.batch_size}; every training decays to its own end",
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


def _notes(study: Study, finals: dict[tuple[str, int], list[Run]], reached: dict[str, list[Reached]]) -> list[str]:
    notes = []
    for method, points in reached.items():
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
        runs = finals.get((recipe, study.sizes.first), [])
        if len(runs) > 1:
            gap = nats_gap(runs[0].scored, runs[1].scored)
            notes.append(f"Another training seed moves {SHOWN[recipe]} by {gap} nats a token.")
    if study.missing:
        notes.append(
            f"Not complete: {len(study.missing)} trainings are missing, the first of them {study.missing[0]}. "
            "So the test split is left alone, and the finalists are compared on the validation split."
        )
    return notes


LEARNING = PaperTable("learning", learning, LEARNED, "", partial=True)
