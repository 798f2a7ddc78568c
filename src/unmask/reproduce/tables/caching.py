"""tab:caching-wall-clock and fig:caching-wall-clock: how long samples take with and without caching."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from ...plot import Curve, Plot
from .. import paper, reference, timed_samples
from ..bench import Bench
from ..claims import Claim, figure_ratio
from ..figures import Figure
from ..report import Cell, Check, Report, Row, Table
from ..specs import PaperTable
from ..text_models import TEXT
from ..timed_samples import (
    CALLS,
    ENTROPY,
    PARTS,
    PPL,
    REAL,
    SECONDS,
    GenerationEntry,
    Samples,
    about_judge,
    by_caching,
    by_sampler,
    by_some_steps,
    entry_figures,
    equal_perplexity,
    joined,
    less_time,
    lower_perplexity,
    prepare,
    real_text,
    take_turns,
)

CACHED, CACHED_ONE, PLAN = "MDLM + caching", "MDLM + caching, batch 1", "MDLM, reveal plan"
BEST_CACHED = "MDLM + caching at its better batch size"
PRINTED = {"SEDD": "SEDD", "MDLM": "MDLM", CACHED_ONE: "MDLM + caching"}  # the paper's rows; it caches at batch 1
Grid = dict[tuple[str, int | None], GenerationEntry]
Quality = dict[tuple[str, int | None], Any]  # the figures of a sampler, by column; of several trainings the means


def caching(bench: Bench) -> Report:
    """Quality against time: AR, SEDD, and MDLM without caching, with it, and with the sampler `plan`."""
    scorers = prepare(bench, ["ar", "sedd", "mdlm"])
    every, each = [], []
    for training, scorer in enumerate(scorers):
        entries = _entries(bench, training)
        batch = take_turns(bench, entries, bench.scale.samples, training)
        every.append(entries)
        each.append([entry_figures(entry, scorer) for entry in entries])
    real, about = real_text(bench, bench.config("mdlm").data.length, max(2, bench.scale.samples), scorers[0])
    entries = every[0]
    figures = {(e.method, e.steps): list(seeds) for e, seeds in zip(entries, zip(*each, strict=True), strict=True)}
    rows = [Row(_name(e), {}, joined(figures[e.method, e.steps]), e.note) for e in entries]
    grid = {(entry.method, entry.steps): entry for entry in entries}
    quality = {key: joined(seeds) for key, seeds in figures.items()}
    columns, timed = [SECONDS, CALLS, PPL, ENTROPY], timed_samples.TIMED
    tables = [
        Table(paper.CACHING.title, paper.CACHING.label, *_minutes(bench, grid, quality)),
        Table("Time in units of MDLM without caching", paper.CACHING.label, *_ratios(bench, quality)),
        Table("Samples and what they cost", paper.WALL_CLOCK.label, columns, _only(columns, [*rows, real])),
    ]
    return bench.report(
        "caching",
        f"{paper.CACHING.label}, {paper.WALL_CLOCK.label}",
        tables,
        plots=[_quality_plot(grid, quality, real)],
        checks=_checks(bench, figures),
        protocol={
            "samples": bench.scale.samples,
            "batch": batch,
            "timing": f"all samplers in turns, {len(entries[0].parts)} rounds, after one short run each",
            "±": "standard error, over rounds for seconds and over samples for the rest"
            if bench.seeds == 1
            else "standard error over trainings",
            "MDLM": "plan ancestral: a network call every step; the head looks at masked positions only",
            "SEDD": "plan analytic: a network call every step",
            "caching": "as published: draws for all positions at every step, a network call after a step that changed "
            f"any sequence of the batch; arithmetic {reference.Careful.__name__}",
            "batch 1": "timed on one sample a round, and not judged: the law of its samples is that of a batch",
            "extrapolated": f"the time of {timed} of the T steps, at {PARTS} places of the run, times T / {timed}",
            "reference": about,
            **about_judge(bench, scorers[0]),
        },
        notes=[
            "The paper's minutes are of another machine, network and length: compare the ratios.",
            *paper.CACHING.remarks,
            *paper.WALL_CLOCK.remarks,
        ],
    )


def _entries(bench: Bench, training: int) -> list[GenerationEntry]:
    """All samplers of one training seed, each warmed up by a short run."""
    ar, sedd, mdlm = (bench.lms(name)[training] for name in ("ar", "sedd", "mdlm"))
    two = {"sampler": "ancestral", "steps": 2}
    for write in (by_sampler(ar), by_sampler(sedd, None, **two), by_sampler(mdlm, None, **two), by_caching(mdlm, 2)):
        write(2, 0)
    entries = [GenerationEntry("AR", None, by_sampler(ar))]
    for t in bench.scale.sampling_steps:
        full = t <= (bench.scale.full_steps or t)
        for method, lm, sampler in (("SEDD", sedd, "analytic"), ("MDLM", mdlm, "ancestral")):
            if full:
                entries.append(GenerationEntry(method, t, by_sampler(lm, sampler=sampler, steps=t)))
            else:
                write, factor = by_some_steps(bench, lm, sampler, t), t / timed_samples.TIMED
                entries.append(GenerationEntry(method, t, write, factor=factor, judged=False, note="extrapolated"))
        entries += [
            GenerationEntry(CACHED_ONE, t, by_caching(mdlm, t), batch=1, judged=False),
            GenerationEntry(CACHED, t, by_caching(mdlm, t)),
            GenerationEntry(PLAN, t, by_sampler(mdlm, sampler="plan", steps=t)),
        ]
    return entries


def _only(columns: list[str], rows: list[Row]) -> list[Row]:
    """The rows without figures that have no column in the table."""
    return [
        Row(row.name, row.paper, {key: value for key, value in row.ours.items() if key in columns}, row.note)
        for row in rows
    ]


def _name(entry: GenerationEntry) -> str:
    return entry.method if entry.steps is None else f"{entry.method}, T={_short(entry.steps)}"


def _short(t: int) -> str:
    return f"{t // 1000}k" if t % 1000 == 0 else str(t)


def _shown(bench: Bench) -> dict[str, int]:
    """The columns of the paper's table: its largest two numbers of steps, or ours."""
    return {f"T={_short(t)}": t for t in sorted(bench.scale.sampling_steps)[-2:]}


def _minutes(bench: Bench, grid: Grid, quality: Quality) -> tuple[list[str], list[Row]]:
    """Minutes for 64 samples."""
    shown = _shown(bench)
    rows = []
    for method in ("SEDD", "MDLM", CACHED_ONE, CACHED, PLAN):
        each: dict[str, Cell] = {}
        for column, t in shown.items():
            seconds = quality[method, t][SECONDS]
            each[column] = Figure(seconds.value * 64 / 60, None if seconds.error is None else seconds.error * 64 / 60)
        rows.append(
            Row(
                method,
                paper.CACHING.rows.get(PRINTED.get(method, ""), {}),
                each,
                grid[method, max(shown.values())].note,
            )
        )
    return _columns(shown), rows


def _ratios(bench: Bench, quality: Quality) -> tuple[list[str], list[Row]]:
    """Seconds over those of MDLM without caching, in the paper and here."""
    shown, printed, rows = _shown(bench), paper.CACHING.rows, []
    for method in ("SEDD", "MDLM", CACHED_ONE, CACHED, PLAN):
        theirs: dict[str, Figure | str] = {}
        for column in paper.CACHING.columns if method in PRINTED else ():
            over, under = printed[PRINTED[method]][column], printed["MDLM"][column]
            assert isinstance(over, Figure) and isinstance(under, Figure)
            theirs[column] = Figure(over.value / under.value, decimals=3)
        ours = {
            column: figure_ratio(quality[method, t][SECONDS], quality["MDLM", t][SECONDS])
            for column, t in shown.items()
        }
        rows.append(Row(method, theirs, ours if method != "MDLM" else dict.fromkeys(shown, Figure(1))))
    return _columns(shown), rows


def _columns(shown: dict[str, int]) -> list[str]:
    return list(dict.fromkeys([*paper.CACHING.columns, *shown]))


_FASTER = {  # the paper's logarithm of the ratio, by column
    column: paper.log_ratio(paper.CACHING, "MDLM + caching", "MDLM", column) for column in paper.CACHING.columns
}
FASTER = (  # than what, with T steps
    Claim("caching at batch 1 is faster than none in batches", CACHED_ONE, "MDLM", measure=less_time, trained=False),
    Claim(
        "the reveal plan is faster than caching at its better batch size",
        PLAN,
        BEST_CACHED,
        measure=less_time,
        trained=False,
    ),
)
THAN_AR = Claim("MDLM has a lower generative perplexity than AR", PLAN, "AR", measure=lower_perplexity)
THAN_SEDD = Claim("MDLM has a lower generative perplexity than SEDD", "MDLM", "SEDD", measure=lower_perplexity)
SAME_LAW = Claim(
    "the reveal plan's samples have the perplexity of the textbook's",
    "MDLM",
    PLAN,
    "equal",
    equal_perplexity,
    sigmas=3.0,
    trained=False,
)


def _at(claim: Claim, column: str) -> Claim:
    printed = _FASTER.get(column) if claim is FASTER[0] else None
    return replace(claim, text=f"{claim.text} ({column})", paper=printed)


def _checks(bench: Bench, figures: Mapping[tuple[str, int | None], Samples]) -> list[Check]:
    """The claims at every T; those on samples that were not judged are left out."""
    checks = []
    for column, t in _shown(bench).items():
        sides = {method: each for (method, steps), each in figures.items() if steps in (t, None)}
        sides[BEST_CACHED] = min(
            sides[CACHED_ONE], sides[CACHED], key=lambda each: sum(one[SECONDS].value for one in each)
        )
        checks += [_at(claim, column).check(sides) for claim in FASTER]
        checks += _if_judged(THAN_AR, column, t, figures)
    for t in bench.scale.sampling_steps:
        for claim in (THAN_SEDD, SAME_LAW):
            checks += _if_judged(claim, f"T={_short(t)}", t, figures)
    return checks


def _if_judged(claim: Claim, column: str, t: int, figures: Mapping[tuple[str, int | None], Samples]) -> list[Check]:
    sides = {method: each for (method, steps), each in figures.items() if steps in (t, None)}
    if not all(one.get(PPL) for side in (claim.left, claim.right) for one in sides[side]):
        return []
    return [_at(claim, column).check(sides)]


def _quality_plot(grid: Grid, quality: Quality, real: Row) -> Plot:
    curves: dict[str, list[tuple[float, Figure]]] = {}
    for key, entry in grid.items():
        if figure := quality[key].get(PPL):
            curves.setdefault(entry.method, []).append((quality[key][SECONDS].value, figure))
    drawn = [
        Curve(name, [x for x, _ in points], [f.value for _, f in points], [f.error or 0.0 for _, f in points])
        for name, points in curves.items()
    ]
    level = real.ours.get(PPL)
    if isinstance(level, Figure) and drawn:
        ends = [x for curve in drawn for x in curve.x]
        drawn.append(Curve(REAL, [min(ends), max(ends)], [level.value] * 2))
    return Plot(
        "wall-clock", "Generative perplexity against time, a point a T", SECONDS, PPL, drawn, log_x=True, log_y=True
    )


CACHING = PaperTable(
    "caching",
    caching,
    TEXT,
    "owt",
    claims=(*FASTER, THAN_AR, THAN_SEDD, SAME_LAW),
    sides={"AR": "ar", "SEDD": "sedd"} | dict.fromkeys(("MDLM", PLAN, CACHED, CACHED_ONE, BEST_CACHED), "mdlm"),
)
