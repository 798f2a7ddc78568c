"""Section 5.2: perplexities on a genome (tab:genome-ppl), and bits per base against the time of a training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np

from ...config import Config, steps_of
from ...evaluation.uncertainty import combined, extent, mean
from ...plot import Curve, Plot
from ...types import UserError
from .. import paper_dna
from ..bench import SEEDS, Bench
from ..claims import Claim, fewer_nats_a_base
from ..figures import Figure
from ..genome_models import (
    CADUCEUS,
    GENOME,
    HYENA,
    LONG_AR,
    LONG_MDLM,
    MAMBA,
    MARKOV_ORDERS,
    SYSTEMS,
    count_contexts,
    fine_tuned,
    genome_sizes,
    markov_scores,
    tuned,
)
from ..markov import Markov
from ..paper import PPL, log_ratio
from ..paper_dna import PARAMETERS
from ..report import Cell, Report, Row, Table
from ..scored import ScoredModel, mean_perplexity, pooled
from ..specs import PaperTable
from .perplexity import LOWER

NOISE, BITS, HOURS = "PPL, Monte Carlo error", "bits/base", "core-hours"
LONG = {"Mamba AR": LONG_AR, "MDLM, Caduceus": LONG_MDLM}
LN2 = math.log(2)
MARKOV = (
    "counted on all training windows, + 1/2; contexts do not reach beyond a window or across N: there the longest one "
    "that is known serves, of a lower order; one strand"
)
CLAIMS = tuple(
    Claim(text, less, more, measure=fewer_nats_a_base, paper=log_ratio(paper_dna.GENOME_PPL, less, more))
    for text, less, more in (
        ("Mamba is better than HyenaDNA", "Mamba", "HyenaDNA"),
        ("MDLM is better than SEDD", "MDLM", "SEDD"),
        ("SEDD is better than Plaid", "SEDD", "Plaid"),
        ("AR is better than MDLM: Mamba", "Mamba", "MDLM"),
        ("AR is better than MDLM: HyenaDNA", "HyenaDNA", "MDLM"),
    )
)
BEST = "the best of the Markov models"
CURVE_CLAIMS = (
    Claim(f"Mamba AR beats {BEST}", "Mamba AR", BEST, measure=fewer_nats_a_base),
    Claim(f"the bound of MDLM beats {BEST}", "MDLM, Caduceus", BEST, measure=fewer_nats_a_base),
)


# -- tab:genome-ppl --------------------------------------------------------------------------------------------------


def dna(bench: Bench) -> Report:
    """Perplexities of five systems, several fine-tunings each, beside Markov models of the same windows."""
    names = {row: fine_tuned(row, bench.scale) for row in SYSTEMS}
    bench.need([MAMBA, HYENA, CADUCEUS, *(name for seeds in names.values() for name in seeds)])
    sizes, printed = genome_sizes(bench.scale), paper_dna.GENOME_PPL
    scored = {row: _trainings(bench, seeds) for row, seeds in names.items()}
    rows = [_markov_row(order, model) for order, model in markov_scores(bench, count_contexts(bench)).items()]
    for row, seeds in scored.items():
        size = bench.use(names[row][0])["parameters"]
        rows.append(Row(row, printed.rows[row], {PARAMETERS: Figure(size), **_figures(seeds)}))
    return bench.report(
        "dna",
        printed.label,
        [Table(printed.title, printed.label, [PARAMETERS, PPL, NOISE, BITS], rows)],
        checks=[claim.check(scored) for claim in CLAIMS],
        protocol={
            **protocol(bench, (MAMBA, HYENA, CADUCEUS)),
            "PPL": f"mean over {sizes.seeds} fine-tunings of {_number(bench.seeds)}; ± is the largest minus the "
            "smallest, as in the paper",
            NOISE: f"of that mean, from {SEEDS} draws of the bound; the AR models are exact",
            "claims": "difference of the means, paired over rows and fine-tuning seeds: errors of both kinds together; "
            "the chance of the pre-training is not among them"
            if bench.seeds == 1
            else "difference of the means, paired over rows and pre-training seeds: errors of both kinds together",
            "Markov models": MARKOV,
        },
        notes=[*printed.remarks, f"The paper: {printed.protocol}."],
    )


def _number(pretrainings: int) -> str:
    return "one pre-training" if pretrainings == 1 else f"each of {pretrainings} pre-trainings, whose means count"


def _trainings(bench: Bench, names: Sequence[str]) -> list[ScoredModel]:
    """The fine-tunings of one pre-training; of several, the mean of the fine-tunings of each."""
    limit = genome_sizes(bench.scale).rows
    if bench.seeds == 1:
        return [bench.score(name, limit=limit) for name in names]
    each = [bench.scores(name, limit=limit) for name in names]
    return [pooled(fine_tunings) for fine_tunings in zip(*each, strict=True)]


def _figures(scored: Sequence[ScoredModel]) -> dict[str, Cell]:
    """The figures of one row: the mean over fine-tunings, its spread, and its Monte Carlo error."""
    each = [model.perplexity for model in scored]
    values = [figure.value for figure in each]
    noise = combined(*(figure.error for figure in each)) / len(each)
    exact = scored[0].exact
    return {
        PPL: Figure(mean(values).value, extent(values), bound=not exact),
        NOISE: "exact" if exact else Figure(noise),
        BITS: Figure(mean([model.rate.value for model in scored]).value / LN2, bound=not exact),
    }


def _markov_row(order: int, scored: ScoredModel) -> Row:
    value = scored.rate.value
    name = f"Markov model of order {order}" if order else "unigram model"
    return Row(name, {}, {PPL: Figure(math.exp(value)), NOISE: "exact", BITS: Figure(value / LN2)})


def protocol(bench: Bench, starts: Sequence[str]) -> dict[str, str | int]:
    """What the tables of these pre-trained models and of their fine-tunings share."""
    train, rows = bench.base.train, len(bench.rows())
    facts: dict[str, str | int] = {
        "test_rows": min(rows, genome_sizes(bench.scale).rows or rows),
        "network": "; ".join(
            f"{config.model.network} {config.model.n_blocks} x {config.model.hidden_dim}"
            for config in map(bench.config, starts)
        ),
        "strands": "AR models see each row on either strand; Caduceus (PS) is equivariant by its weights",
        "optimizer": f"AdamW, betas {train.betas[0]} and {train.betas[1]}, decay {train.weight_decay}, "
        f"cosine, batch {train.batch_size}",
        "time": "no model is told the time; Plaid is told its noise level with its input",
        "N": "seen, not scored",
    }
    for start in starts:
        first, then = bench.config(start).train, bench.config(fine_tuned(_row(start), bench.scale)[0]).train
        facts[f"training of {start}"] = (
            f"{first.steps} steps at {first.lr:g} ({steps_of(first.warmup, first.steps)} of warm-up), then "
            f"{then.steps} at {then.lr:g} ({steps_of(then.warmup, then.steps)}), "
            f"down to {first.final_lr:g} and {then.final_lr:g} of these"
        )
    return facts


def _row(start: str) -> str:
    return next(row for row, (first, _) in SYSTEMS.items() if first == start)


# -- bits per base against time --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """The evaluations of a training."""

    hours: list[float]
    bits: list[float]
    errors: list[float]
    cores: bool  # hours of a core; else of the clock


def history(path: Path, config: Config) -> History:
    """The evaluations of a training run on held-out rows, with their times.

    The journal has the processor time since the process began; for a run that was continued, the times add up. A
    journal partly written by an older version has only the speed: bases per second of wall-clock time.
    """
    records = _records(path / "log.jsonl")
    trained = [record for record in records if "loss" in record]
    judged = [record for record in records if "valid_nats" in record]
    if not trained or not judged:
        raise UserError(f"the journal {path / 'log.jsonl'} has no evaluations; remove {path} to train the model again")
    cores = all("core_seconds" in record for record in trained)
    size = config.train.batch_size * config.data.length
    seconds = _counted_on(trained) if cores else [at["step"] * size / at["tokens_per_second"] for at in trained]
    steps = [record["step"] for record in judged]
    hours = np.interp(steps, [0, *(record["step"] for record in trained)], [0.0, *seconds]) / 3600
    return History(
        hours.tolist(),
        [record["valid_nats"] / LN2 for record in judged],
        [(record["valid_stderr_nats"] or 0.0) / LN2 for record in judged],
        cores,
    )


def _counted_on(records: Sequence[dict[str, float]]) -> list[float]:
    """The processor time of a training run; the time of each process in it starts at 0."""
    seconds, before, last = [], 0.0, 0.0
    for now in (record["core_seconds"] for record in records):
        before, last = before + (last if now < last else 0.0), now
        seconds.append(before + now)
    return seconds


def _records(file: Path) -> list[dict[str, float]]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UserError(f"cannot read the journal {file} ({error.strerror}); train the model again") from None
    except ValueError:
        raise UserError(f"the journal {file} is damaged; remove its folder to train the model again") from None


def dna_curves(bench: Bench) -> Report:
    """Two longer trainings: held-out bits per base against time, with Markov models of the same windows as lines."""
    bench.need(list(LONG.values()))
    configs = {row: bench.config(name) for row, name in LONG.items()}
    past = {row: history(bench.path(name), configs[row]) for row, name in LONG.items()}
    scored = {row: bench.scores(name, limit=genome_sizes(bench.scale).rows) for row, name in LONG.items()}
    counted = count_contexts(bench)
    markov = markov_scores(bench, counted)
    unit = HOURS if all(run.cores for run in past.values()) else "hours of the clock"
    rows = [
        Row(row, {}, {unit: Figure(past[row].hours[-1]), PPL: mean_perplexity(each), BITS: _bits(pooled(each))})
        for row, each in scored.items()
    ]
    for order, model in markov.items():
        rows.append(_with_error(_markov_row(order, model), model))
    sides = scored | {BEST: [min(markov.values(), key=lambda model: model.rate.value)] * bench.seeds}
    title = "Two trainings and Markov models of the same windows, test split"
    return bench.report(
        "dna-curves",
        "section 5.2",
        [Table(title, "here", [unit, PPL, BITS], rows)],
        plots=[_plot(bench, counted, past, configs, unit)],
        checks=[claim.check(sides) for claim in CURVE_CLAIMS],
        protocol={
            **_long_protocol(bench, configs),
            "±": f"PPL: standard error over {SEEDS} draws; bits/base: standard error over rows, Monte Carlo part taken "
            "out; claims: paired over rows",
            "time": f"{unit}, evaluations included" + ("" if unit == HOURS else "; the journal has no processor time"),
            "Markov models": MARKOV,
        },
        notes=[f"{LOWER}."] if bench.seeds == 1 else ["The curves are of the first training seed."],
    )


def _bits(scored: ScoredModel) -> Figure:
    whole = scored.likelihood
    error = None if whole.stderr_data is None else whole.stderr_data / LN2
    return Figure(whole.nats_per_token / LN2, error, bound=not scored.exact)


def _with_error(row: Row, scored: ScoredModel) -> Row:
    return Row(row.name, {}, {PPL: row.ours[PPL], BITS: _bits(scored)})


def _plot(bench: Bench, counted: Markov, past: dict[str, History], configs: dict[str, Config], unit: str) -> Plot:
    """The lines are for the same validation rows as the curves."""
    curves = [Curve(row, run.hours, run.bits, run.errors) for row, run in past.items()]
    end = max(run.hours[-1] for run in past.values())
    spec = configs["Mamba AR"].eval
    markov = markov_scores(bench, counted, spec.split, spec.rows)
    for order in MARKOV_ORDERS[1:]:
        value = markov[order].rate.value / LN2
        curves.append(Curve(f"Markov, order {order}", [0.0, end], [value, value]))
    return Plot("bits-per-base", "Held-out bits per base against the time of training", unit, BITS, curves)


def _long_protocol(bench: Bench, configs: dict[str, Config]) -> dict[str, str | int]:
    rows, limit = len(bench.rows()), genome_sizes(bench.scale).rows
    facts: dict[str, str | int] = {"test_rows": min(rows, limit or rows), "N": "seen, not scored"}
    facts["network"] = "; ".join(
        f"{config.model.backbone} {config.model.n_blocks} x {config.model.hidden_dim}, "
        f"state {getattr(config.model, 'state_dim', '-')}"
        for config in configs.values()
    )
    for row, config in configs.items():
        train = config.train
        facts[row] = (
            f"{train.steps} steps of {train.batch_size} x {config.data.length} bases, lr {train.lr:g} "
            f"(cosine to {train.final_lr:g} of it, {steps_of(train.warmup, train.steps)} steps of warm-up), "
            f"average of decay {train.ema}; curve: {config.eval.rows} validation rows, {config.eval.draws} draws"
        )
    return facts


DNA = PaperTable("dna", dna, GENOME, "hg38", claims=CLAIMS, sides={row: tuned(*SYSTEMS[row], 1) for row in SYSTEMS})
DNA_CURVES = PaperTable("dna-curves", dna_curves, GENOME, "hg38", claims=CURVE_CLAIMS, sides=LONG)
