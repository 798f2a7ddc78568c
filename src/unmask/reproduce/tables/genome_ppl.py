"""Section 5.2: perplexities on a genome (tab:genome-ppl), and bits per base against the time of a training."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import mean, stdev

import numpy as np

from ...config import Config
from ...types import UserError
from .. import paper_dna
from ..bench import SEEDS, Bench, ScoredModel, difference
from ..dna_bench import CADUCEUS, HYENA, LONG_AR, LONG_MDLM, MAMBA, ORDERS, SYSTEMS, GenomeBench
from ..paper import PPL
from ..paper_dna import PARAMETERS
from ..report import Cell, Check, Curve, Figure, Plot, Report, Row, Table
from .perplexity import LOWER, compared

NOISE, BITS, HOURS = "PPL, Monte Carlo error", "bits/base", "core-hours"
LONG = {"Mamba AR": LONG_AR, "MDLM, Caduceus": LONG_MDLM}
LN2 = math.log(2)
MARKOV = (
    "counted on all training windows, + 1/2; contexts do not reach beyond a window or across N: there the longest one "
    "that is known serves, of a lower order; one strand"
)
CLAIMS = (  # better, worse
    ("Mamba is better than HyenaDNA", "Mamba", "HyenaDNA"),
    ("MDLM is better than SEDD", "MDLM", "SEDD"),
    ("SEDD is better than Plaid", "SEDD", "Plaid"),
    ("AR is better than MDLM: Mamba", "Mamba", "MDLM"),
    ("AR is better than MDLM: HyenaDNA", "HyenaDNA", "MDLM"),
)


# -- tab:genome-ppl --------------------------------------------------------------------------------------------------


def dna(bench: Bench) -> Report:
    """Perplexities of five systems, several fine-tunings each, beside Markov models of the same windows."""
    assert isinstance(bench, GenomeBench)
    names = {row: bench.fine_tuned(row) for row in SYSTEMS}
    bench.need([MAMBA, HYENA, CADUCEUS, *(name for own in names.values() for name in own)])
    limit, printed = bench.sizes.rows, paper_dna.GENOME_PPL
    scored = {row: [bench.score(name, limit=limit) for name in own] for row, own in names.items()}
    rows = [_markov_row(order, bench.reference(order)) for order in ORDERS]
    for row, own in scored.items():
        size = sum(p.numel() for p in bench.lm(names[row][0]).model.parameters())
        rows.append(Row(row, printed.rows[row], {PARAMETERS: Figure(size), **_figures(own)}))
    return bench.report(
        "dna",
        printed.label,
        [Table(printed.title, printed.label, [PARAMETERS, PPL, NOISE, BITS], rows)],
        checks=[contest(claim, scored[better], scored[worse]) for claim, better, worse in CLAIMS],
        protocol={
            **protocol(bench, (MAMBA, HYENA, CADUCEUS)),
            "PPL": f"mean over {bench.sizes.seeds} fine-tunings of one pre-training; ± is the largest minus the "
            "smallest, as in the paper",
            NOISE: f"of that mean, from {SEEDS} draws of the bound; the AR models are exact",
            "claims": "difference of the means, paired over rows and fine-tuning seeds: errors of both kinds together; "
            "the chance of the pre-training is not among them",
            "Markov models": MARKOV,
        },
        notes=[*printed.remarks, f"The paper: {printed.protocol}."],
    )


def _figures(scored: Sequence[ScoredModel]) -> dict[str, Cell]:
    """The figures of one row: the mean over fine-tunings, its spread, and its Monte Carlo error."""
    each = [own.perplexity for own in scored]
    values = [figure.value for figure in each]
    spread = max(values) - min(values) if len(values) > 1 else None
    noise = math.hypot(*(figure.error or 0.0 for figure in each)) / len(each)
    exact = scored[0].exact
    return {
        PPL: Figure(mean(values), spread, bound=not exact),
        NOISE: "exact" if exact else Figure(noise),
        BITS: Figure(mean(own.rate.value for own in scored) / LN2, bound=not exact),
    }


def _markov_row(order: int, scored: ScoredModel) -> Row:
    value = scored.rate.value
    name = f"Markov model of order {order}" if order else "unigram model"
    return Row(name, {}, {PPL: Figure(math.exp(value)), NOISE: "exact", BITS: Figure(value / LN2)})


def contest(claim: str, better: Sequence[ScoredModel], worse: Sequence[ScoredModel], sigmas: float = 2.0) -> Check:
    """Whether one system has fewer nats than another: errors over texts and over fine-tuning seeds, both paired."""
    each = [difference(one, other).value for one, other in zip(better, worse, strict=True)]
    over_texts = difference(_pooled(better), _pooled(worse)).error
    assert over_texts is not None
    over_seeds = stdev(each) / math.sqrt(len(each)) if len(each) > 1 else 0.0
    gap = Figure(mean(each), math.hypot(over_texts, over_seeds))
    assert gap.error is not None
    apart = gap.value / gap.error if gap.error else math.copysign(math.inf, gap.value)
    shown = f"{_mean(better)} against {_mean(worse)}: {gap} nats a base, {apart:.1f} errors"
    if len(each) < 2:
        shown += " (one seed: the error is over texts only)"
    if not math.isfinite(gap.value) or abs(apart) <= sigmas:
        return Check(claim, None, f"{shown}: within {sigmas:g}, not decided")
    return Check(claim, apart > 0, shown)


def _pooled(scored: Sequence[ScoredModel]) -> ScoredModel:
    """All fine-tunings as draws of one."""
    first = scored[0]
    return ScoredModel(np.concatenate([own.nats for own in scored], axis=1), first.tokens, first.exact, first.protocol)


def _mean(scored: Sequence[ScoredModel]) -> Figure:
    return Figure(mean(own.perplexity.value for own in scored), bound=not scored[0].exact)


def protocol(bench: GenomeBench, starts: Sequence[str]) -> dict[str, str | int]:
    """What the tables of these pre-trained models, and of those that began with them, share."""
    own, rows = bench.config(MAMBA), len(bench.rows())
    found: dict[str, str | int] = {
        "test_rows": min(rows, bench.sizes.rows or rows),
        "network": "; ".join(
            f"{config.model.network} {config.model.n_blocks} x {config.model.hidden_dim}"
            for config in map(bench.config, starts)
        ),
        "strands": "AR models see each row on either strand; Caduceus (PS) is equivariant by its weights",
        "optimizer": f"AdamW, betas {own.train.betas[0]} and {own.train.betas[1]}, decay {own.train.weight_decay}, "
        f"cosine, batch {own.train.batch_size}",
        "time": "no model is told the time; Plaid is told its noise level with its input",
        "N": "seen, not scored",
    }
    for start in starts:
        first, then = bench.config(start).train, bench.config(bench.fine_tuned(_row(start))[0]).train
        found[f"training of {start}"] = (
            f"{first.steps} steps at {first.lr:g} ({first.warmup} of warm-up), then {then.steps} at {then.lr:g} "
            f"({then.warmup}), down to {first.final_lr:g} and {then.final_lr:g} of these"
        )
    return found


def _row(start: str) -> str:
    return next(row for row, (own, _) in SYSTEMS.items() if own == start)


# -- bits per base against time --------------------------------------------------------------------------------------


@dataclass(frozen=True)
class History:
    """The evaluations of a training."""

    hours: list[float]
    bits: list[float]
    errors: list[float]
    cores: bool  # hours of a core; else of the clock


def history(path: Path, config: Config) -> History:
    """What a training said of held-out rows, and when.

    The journal has the time of a processor since the process began; a training that went on counts on. A journal that
    is in part of an older version has the speed only: bases a second of the clock.
    """
    records = _records(path / "log.jsonl")
    trained = [record for record in records if "loss" in record]
    judged = [record for record in records if "valid_nats" in record]
    if not trained or not judged:
        raise UserError(f"the journal {path / 'log.jsonl'} has no evaluations; remove {path} to train the model anew")
    cores = all("core_seconds" in record for record in trained)
    size = config.train.batch_size * config.data.length
    seconds = _counted_on(trained) if cores else [one["step"] * size / one["tokens_per_second"] for one in trained]
    steps = [record["step"] for record in judged]
    hours = np.interp(steps, [0, *(record["step"] for record in trained)], [0.0, *seconds]) / 3600
    return History(
        hours.tolist(),
        [record["valid_nats"] / LN2 for record in judged],
        [(record["valid_stderr_nats"] or 0.0) / LN2 for record in judged],
        cores,
    )


def _counted_on(records: Sequence[dict[str, float]]) -> list[float]:
    """The processor time of a training; each process that took part began at 0."""
    found, before, last = [], 0.0, 0.0
    for now in (record["core_seconds"] for record in records):
        before, last = before + (last if now < last else 0.0), now
        found.append(before + now)
    return found


def _records(file: Path) -> list[dict[str, float]]:
    try:
        return [json.loads(line) for line in file.read_text(encoding="utf-8").splitlines()]
    except OSError as error:
        raise UserError(f"cannot read the journal {file} ({error.strerror}); train the model anew") from None
    except ValueError:
        raise UserError(f"the journal {file} is damaged; remove its folder to train the model anew") from None


def dna_curves(bench: Bench) -> Report:
    """Two longer trainings: held-out bits per base against time, with Markov models of the same windows as lines."""
    assert isinstance(bench, GenomeBench)
    bench.need(list(LONG.values()))
    configs = {row: bench.config(name) for row, name in LONG.items()}
    past = {row: history(bench.path(name), configs[row]) for row, name in LONG.items()}
    scored = {row: bench.score(name, limit=bench.sizes.rows) for row, name in LONG.items()}
    lines = {order: bench.reference(order) for order in ORDERS}
    unit = HOURS if all(own.cores for own in past.values()) else "hours of the clock"
    rows = [
        Row(row, {}, {unit: Figure(past[row].hours[-1]), PPL: own.perplexity, BITS: _bits(own)})
        for row, own in scored.items()
    ]
    for order, own in lines.items():
        rows.append(_with_error(_markov_row(order, own), own))
    title = "Two trainings and Markov models of the same windows, test split"
    return bench.report(
        "dna-curves",
        "section 5.2",
        [Table(title, "here", [unit, PPL, BITS], rows)],
        plots=[_plot(bench, past, configs, unit)],
        checks=[
            compared("Mamba AR beats the Markov model of order 5", scored["Mamba AR"], lines[5]),
            compared("the bound of MDLM beats the Markov model of order 2", scored["MDLM, Caduceus"], lines[2]),
        ],
        protocol={
            **_long_protocol(bench, configs),
            "±": f"PPL: standard error over {SEEDS} draws; bits/base: standard error over rows, Monte Carlo part taken "
            "out; claims: paired over rows",
            "time": f"{unit}, evaluations included" + ("" if unit == HOURS else "; the journal has no processor time"),
            "Markov models": MARKOV,
        },
        notes=[f"{LOWER}."],
    )


def _bits(scored: ScoredModel) -> Figure:
    found = scored.likelihood
    error = None if found.stderr_data is None else found.stderr_data / LN2
    return Figure(found.nats_per_token / LN2, error, bound=not scored.exact)


def _with_error(row: Row, scored: ScoredModel) -> Row:
    return Row(row.name, {}, {PPL: row.ours[PPL], BITS: _bits(scored)})


def _plot(bench: GenomeBench, past: dict[str, History], configs: dict[str, Config], unit: str) -> Plot:
    """The lines are of the validation rows that the curves are of."""
    curves = [Curve(row, own.hours, own.bits, own.errors) for row, own in past.items()]
    end = max(own.hours[-1] for own in past.values())
    spec = configs["Mamba AR"].eval
    for order in ORDERS[1:]:
        value = bench.reference(order, spec.split, spec.rows).rate.value / LN2
        curves.append(Curve(f"Markov, order {order}", [0.0, end], [value, value]))
    return Plot("bits-per-base", "Held-out bits per base against the time of training", unit, BITS, curves)


def _long_protocol(bench: GenomeBench, configs: dict[str, Config]) -> dict[str, str | int]:
    rows = len(bench.rows())
    found: dict[str, str | int] = {"test_rows": min(rows, bench.sizes.rows or rows), "N": "seen, not scored"}
    found["network"] = "; ".join(
        f"{own.model.network} {own.model.n_blocks} x {own.model.hidden_dim}, "
        f"state {getattr(own.model, 'state_dim', '-')}"
        for own in configs.values()
    )
    for row, own in configs.items():
        found[row] = (
            f"{own.train.steps} steps of {own.train.batch_size} x {own.data.length} bases, lr {own.train.lr:g} "
            f"(cosine to {own.train.final_lr:g} of it, {own.train.warmup} steps of warm-up), average of decay "
            f"{own.train.ema}; curve: {own.eval.rows} validation rows, {own.eval.draws} draws"
        )
    return found


__all__ = ["dna", "dna_curves"]
