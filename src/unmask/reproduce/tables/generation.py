"""The tables of samples: how long they take with and without caching, and texts that are longer than the model.

Every sampler takes its turn in every round, so that a machine that is slow for a while is slow for all of them. Samples
are judged by a model that wrote none of them. Real text goes through the same judge; perplexity never stands without
entropy, for text that repeats itself has little of both.
"""

from __future__ import annotations

import itertools
import math
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch

from ...data.canvas import Canvas
from ...evaluation.generative import BoundScorer, open_judge, real_rows, text_tokens
from ...evaluation.judge import Scorer, judge
from ...evaluation.judge.diversity import mean
from ...evaluation.likelihood import evaluating
from ...lm import LM, Job
from ...models.masked import as_masked
from ...process.keys import Keys
from ...progress import progress_bar
from ...sampling.params import SamplingParams
from .. import paper, reference
from ..bench import Bench
from ..report import Check, Curve, Figure, Plot, Report, Row, Table, ordering
from ..scales import JUDGE

BATCH = 16  # sequences that go through the network together, as in the paper
TIMED = 100  # steps, evenly spread over a run, from which the time of a longer run is extrapolated
PARTS = 10  # places of the run where these steps are made
SEEDS_APART = 10_000  # between the seeds of two samplers: all samples are independent
SECONDS, CALLS, PPL, ENTROPY, REPETITION = "seconds a sample", "network calls", "gen. PPL", "entropy", "repetition"
REAL = "real text"


@dataclass(frozen=True)
class GeneratedTexts:
    """Samples: how they read, their tokens, and how often each went through the network."""

    texts: list[str]
    tokens: list[list[int]]
    calls: list[int]

    @staticmethod
    def joined(parts: Sequence[GeneratedTexts]) -> GeneratedTexts:
        """All of them."""
        return GeneratedTexts(
            [text for part in parts for text in part.texts],
            [ids for part in parts for ids in part.tokens],
            [calls for part in parts for calls in part.calls],
        )


Write = Callable[[int, int], GeneratedTexts]  # so many samples, with seeds from here on


@dataclass
class GenerationEntry:
    """A sampler with a number of steps, and what it has done so far."""

    method: str
    steps: int | None
    write: Write
    batch: int | None = None  # sequences a round; None = as many as the table has
    factor: float = 1.0  # above 1 where only so many times fewer steps were made
    judged: bool = True
    note: str = ""
    spent: list[float] = field(default_factory=list)  # seconds a sample, a round each
    parts: list[GeneratedTexts] = field(default_factory=list)

    def turn(self, n: int, seed: int) -> None:
        """One round."""
        began = time.perf_counter()
        found = self.write(n, seed)
        self.spent.append((time.perf_counter() - began) * self.factor / n)
        self.parts.append(found)

    @property
    def seconds(self) -> Figure:
        """Seconds a sample, with the standard error over rounds."""
        return Figure(*mean(self.spent))

    @property
    def calls(self) -> Figure:
        """Network calls a sample."""
        value, error = mean([self.factor * calls for calls in GeneratedTexts.joined(self.parts).calls])
        return Figure(value, error or None)


# -- samplers --------------------------------------------------------------------------------------------------------


def by_plan(lm: LM, length: int | None = None, **how: Any) -> Write:
    """Any plan of the library."""

    def write(n: int, seed: int) -> GeneratedTexts:
        samples = lm.write_samples(n, length=length, batch_size=n, seed=seed, **how)
        return GeneratedTexts(
            [sample.text for sample in samples],
            [text_tokens(lm, sample.ids) for sample in samples],
            [sample.network_calls for sample in samples],
        )

    return write


def by_some_steps(bench: Bench, lm: LM, sampler: str, steps: int) -> Write:
    """Some of the T steps, for their time: at PARTS places of the run, on real text of which as much is masked there.

    What a step costs depends on how many positions are masked and on how few are revealed, and not on what is written.
    """
    parts = min(PARTS, TIMED)
    each = TIMED // parts
    assert each <= steps

    def write(n: int, seed: int) -> GeneratedTexts:
        tokens = torch.from_numpy(bench.rows().rows(np.arange(n) % len(bench.rows()))[0])
        for part in range(parts):
            masked = Keys(seed).uniform("masked", range(n), tokens.shape[1]) < (part + 0.5) / parts
            canvases = [Canvas(row, [slice(0, len(row))]) for row in tokens.masked_fill(masked, lm.model.vocab.mask)]
            options = SamplingParams(sampler=sampler, steps=steps, seed=seed)
            states = lm.run([Job(canvas, options) for canvas in canvases], batch_size=n)
            made = list(itertools.islice(states, n * each))  # a state of every sequence a step
            assert {state.calls for state, _ in made[-n:]} == {each}
        return GeneratedTexts([], [], [parts * each] * n)

    return write


def by_caching(lm: LM, steps: int) -> Write:
    """The paper's sampler with caching, as a careful author would write it."""
    model = as_masked(lm.model)
    assert model is not None and not model.time_conditioned, "a cache is wrong for who knows the time"

    def write(n: int, seed: int) -> GeneratedTexts:
        canvas = lm.prompt_canvas("")
        with torch.random.fork_rng(), evaluating(model):  # plain torch, so its one stream of random numbers
            torch.manual_seed(Keys(seed).torch_seed("caching"))
            start = canvas.ids.repeat(n, 1).to(model.device)
            z, calls = reference.ancestral(model, start, steps, cache=True)
        rows = list(z.cpu())
        return GeneratedTexts(
            [lm.text(canvas, row) for row in rows], [text_tokens(lm, row.tolist()) for row in rows], [calls] * n
        )

    return write


def take_turns(bench: Bench, entries: Sequence[GenerationEntry], samples: int) -> int:
    """Every sampler writes its samples, a batch a round, all in turns; gives the size of a batch."""
    batch = max(1, min(BATCH, samples // 2))  # at least two rounds: a time needs an error
    rounds = -(-samples // batch)
    with progress_bar("sampling", bench.quiet) as progress:
        for done in range(rounds):
            for number, entry in enumerate(entries):
                size = entry.batch or min(batch, samples - done * batch)
                entry.turn(size, bench.seed + number * SEEDS_APART + done * batch)
                progress(done * len(entries) + number + 1, rounds * len(entries))
    return batch


# -- the judge -------------------------------------------------------------------------------------------------------


def prepare(bench: Bench, names: Sequence[str]) -> Scorer:
    """All models that a table needs, and the judge; one that cannot be opened is refused before anything is trained."""
    given = None if bench.scorer is None else open_judge(bench.scorer, torch.device("cpu"), "cpu")
    bench.need([*names, *([] if given else [JUDGE])])
    return given or BoundScorer(bench.lm(JUDGE), JUDGE, bench.seed, draws=1)


def judged(found: GeneratedTexts, scorer: Scorer) -> dict[str, Figure | str | None]:
    """Generative perplexity, entropy and repetition of samples, with standard errors over samples."""
    figures = judge(found.texts, found.tokens, scorer=scorer).figures
    names = {PPL: "gen_perplexity", ENTROPY: "entropy", REPETITION: "repetition_4"}
    return {own: Figure(*figures[name]) if name in figures else None for own, name in names.items()}


def real_text(bench: Bench, length: int, n: int, scorer: Scorer) -> tuple[Row, dict[str, Any]]:
    """Real text of the same length under the same judge, and which it is."""
    texts, tokens, about = real_rows(bench.lm("mdlm"), bench.split, length, n)
    found = judged(GeneratedTexts(texts, tokens, [0] * len(texts)), scorer)
    return Row(REAL, {}, found, f"{len(texts)} rows of the {bench.split} split"), about


def about_judge(bench: Bench, scorer: Scorer) -> dict[str, Any]:
    """What the protocol says of the judge."""
    found = {"who": "given by --scorer", **scorer.describe()}
    if bench.scorer is None:
        found["who"] = (
            "an AR model with another training seed, trained as the longer AR: no model judges its own samples"
        )
        found["long_texts"] = f"blocks of {bench.lm(JUDGE).length} tokens, each without the others as context"
    return {"judge": {**found, "text": "samples are decoded, and tokenized anew by the judge"}}


def same(claim: str, one: Figure, other: Figure, sigmas: float = 3.0) -> Check:
    """Whether two figures are equal as far as their errors can tell."""
    apart, error = abs(one.value - other.value), math.hypot(one.error or 0.0, other.error or 0.0)
    shown = f"{one} and {other}: difference {Figure(apart, error or None)}, equal if within {sigmas:g} standard errors"
    return Check(claim, apart <= sigmas * error, shown)


def ratio(one: Figure, other: Figure) -> Figure:
    """One over the other, with the error of both."""
    value = one.value / other.value
    return Figure(value, value * math.hypot((one.error or 0) / one.value, (other.error or 0) / other.value) or None)


# -- tab:caching-wall-clock and fig:caching-wall-clock ---------------------------------------------------------------

CACHED, CACHED_ONE, PLAN = "MDLM + caching", "MDLM + caching, batch 1", "MDLM, reveal plan"
PRINTED = {"SEDD": "SEDD", "MDLM": "MDLM", CACHED_ONE: "MDLM + caching"}  # the paper's rows; it caches at batch 1
Grid = dict[tuple[str, int | None], GenerationEntry]


def caching(bench: Bench) -> Report:
    """Quality against time: AR, SEDD, and MDLM without caching, with it, and by the reveal plan."""
    scorer = prepare(bench, ["ar", "sedd", "mdlm"])
    entries = _entries(bench)
    batch = take_turns(bench, entries, bench.scale.samples)
    real, about = real_text(bench, bench.config("mdlm").data.length, max(2, bench.scale.samples), scorer)
    rows = [Row(_name(e), {}, _figures(e, scorer), e.note) for e in entries]
    found = {(entry.method, entry.steps): entry for entry in entries}
    quality = {(entry.method, entry.steps): row.ours for entry, row in zip(entries, rows, strict=True)}
    columns = [SECONDS, CALLS, PPL, ENTROPY]
    tables = [
        Table(paper.CACHING.title, paper.CACHING.label, *_minutes(bench, found)),
        Table("Time in units of MDLM without caching", paper.CACHING.label, *_ratios(bench, found)),
        Table("Samples and what they cost", paper.WALL_CLOCK.label, columns, _only(columns, [*rows, real])),
    ]
    return bench.report(
        "caching",
        f"{paper.CACHING.label}, {paper.WALL_CLOCK.label}",
        tables,
        plots=[_quality_plot(found, quality, real)],
        checks=_caching_checks(bench, found, quality),
        protocol={
            "samples": bench.scale.samples,
            "batch": batch,
            "timing": f"all samplers in turns, {len(entries[0].parts)} rounds, after one short run each",
            "±": "standard error, over rounds for seconds and over samples for the rest",
            "MDLM": "plan ancestral: a network call every step; the head looks at masked positions only",
            "SEDD": "plan analytic: a network call every step",
            "caching": "as published: draws for all positions at every step, a network call after a step that changed "
            f"any sequence of the batch; arithmetic {reference.Careful.__name__}",
            "batch 1": "timed on one sample a round, and not judged: the law of its samples is that of a batch",
            "extrapolated": f"the time of {TIMED} of the T steps, at {PARTS} places of the run, times T / {TIMED}",
            "reference": about,
            **about_judge(bench, scorer),
        },
        notes=[
            "The paper's minutes are of another machine, network and length: compare the ratios.",
            *paper.CACHING.remarks,
            *paper.WALL_CLOCK.remarks,
        ],
    )


def _entries(bench: Bench) -> list[GenerationEntry]:
    """All samplers, each warmed up by a short run."""
    ar, sedd, mdlm = (bench.lm(name) for name in ("ar", "sedd", "mdlm"))
    two = {"sampler": "ancestral", "steps": 2}
    for write in (by_plan(ar), by_plan(sedd, None, **two), by_plan(mdlm, None, **two), by_caching(mdlm, 2)):
        write(2, 0)
    entries = [GenerationEntry("AR", None, by_plan(ar))]
    for t in bench.scale.sampling_steps:
        full = t <= (bench.scale.full_steps or t)
        for method, lm, sampler in (("SEDD", sedd, "analytic"), ("MDLM", mdlm, "ancestral")):
            if full:
                entries.append(GenerationEntry(method, t, by_plan(lm, sampler=sampler, steps=t)))
            else:
                write, factor = by_some_steps(bench, lm, sampler, t), t / TIMED
                entries.append(GenerationEntry(method, t, write, factor=factor, judged=False, note="extrapolated"))
        entries += [
            GenerationEntry(CACHED_ONE, t, by_caching(mdlm, t), batch=1, judged=False),
            GenerationEntry(CACHED, t, by_caching(mdlm, t)),
            GenerationEntry(PLAN, t, by_plan(mdlm, sampler="plan", steps=t)),
        ]
    return entries


def _figures(entry: GenerationEntry, scorer: Scorer) -> dict[str, Figure | str | None]:
    found: dict[str, Figure | str | None] = {SECONDS: entry.seconds, CALLS: entry.calls}
    return found | (judged(GeneratedTexts.joined(entry.parts), scorer) if entry.judged else {})


def _only(columns: list[str], rows: list[Row]) -> list[Row]:
    """The rows without the figures that a table has no column for."""
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


def _minutes(bench: Bench, found: Grid) -> tuple[list[str], list[Row]]:
    """Minutes for 64 samples."""
    shown = _shown(bench)
    rows = []
    for method in ("SEDD", "MDLM", CACHED_ONE, CACHED, PLAN):
        each: dict[str, Figure | str | None] = {}
        for column, t in shown.items():
            seconds = found[method, t].seconds
            each[column] = Figure(seconds.value * 64 / 60, None if seconds.error is None else seconds.error * 64 / 60)
        rows.append(
            Row(
                method,
                paper.CACHING.rows.get(PRINTED.get(method, ""), {}),
                each,
                found[method, max(shown.values())].note,
            )
        )
    return _columns(shown), rows


def _ratios(bench: Bench, found: Grid) -> tuple[list[str], list[Row]]:
    """Seconds over those of MDLM without caching, in the paper and here."""
    shown, printed, rows = _shown(bench), paper.CACHING.rows, []
    for method in ("SEDD", "MDLM", CACHED_ONE, CACHED, PLAN):
        theirs: dict[str, Figure | str] = {}
        for column in paper.CACHING.columns if method in PRINTED else ():
            one, other = printed[PRINTED[method]][column], printed["MDLM"][column]
            assert isinstance(one, Figure) and isinstance(other, Figure)
            theirs[column] = Figure(one.value / other.value, decimals=3)
        ours = {column: ratio(found[method, t].seconds, found["MDLM", t].seconds) for column, t in shown.items()}
        rows.append(Row(method, theirs, ours if method != "MDLM" else dict.fromkeys(shown, Figure(1))))
    return _columns(shown), rows


def _columns(shown: dict[str, int]) -> list[str]:
    return list(dict.fromkeys([*paper.CACHING.columns, *shown]))


Quality = dict[tuple[str, int | None], Any]  # the figures of a sampler, by column


def _caching_checks(bench: Bench, found: Grid, quality: Quality) -> list[Check]:
    checks = []
    for column, t in _shown(bench).items():
        one, many = found[CACHED_ONE, t].seconds, found[CACHED, t].seconds
        least = min(one, many, key=lambda figure: figure.value)
        checks += [
            ordering(f"caching at batch 1 is faster than none in batches ({column})", one, found["MDLM", t].seconds),
            ordering(
                f"the reveal plan is faster than caching at its better batch size ({column})",
                found[PLAN, t].seconds,
                least,
            ),
            *_better(
                f"MDLM has a lower generative perplexity than AR ({column})", quality[PLAN, t], quality["AR", None]
            ),
        ]
    for t in bench.scale.sampling_steps:
        mdlm, sedd, plan = (quality[method, t] for method in ("MDLM", "SEDD", PLAN))
        checks += _better(f"MDLM has a lower generative perplexity than SEDD (T={_short(t)})", mdlm, sedd)
        if mdlm.get(PPL) and plan.get(PPL):
            claim = f"the reveal plan's samples have the perplexity of the textbook's (T={_short(t)})"
            checks.append(same(claim, mdlm[PPL], plan[PPL]))
    return checks


def _better(claim: str, one: Any, other: Any) -> list[Check]:
    """Whether a sampler's perplexity is the lower one; nothing where either was not judged."""
    if not (one.get(PPL) and other.get(PPL)):
        return []
    check = ordering(claim, one[PPL], other[PPL])
    return [Check(claim, check.holds, f"{check.detail}; entropy {one[ENTROPY]} against {other[ENTROPY]}")]


def _quality_plot(found: Grid, quality: Quality, real: Row) -> Plot:
    curves: dict[str, list[tuple[float, Figure]]] = {}
    for key, entry in found.items():
        if figure := quality[key].get(PPL):
            curves.setdefault(entry.method, []).append((entry.seconds.value, figure))
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


# -- tab:semi-ar -----------------------------------------------------------------------------------------------------

EVERY = "MDLM, a call every step"


def semi_ar(bench: Bench) -> Report:
    """Texts longer than the model: SSD-LM's blocks against windows of MDLM."""
    scorer = prepare(bench, ["ssd-lm", "mdlm"])
    printed, scale, config = paper.SEMI_AR, bench.scale, bench.config("ssd-lm")
    length, block = config.data.length, config.simplex.block
    context, stride, total, t = length - block, length // 2, scale.times * length, scale.decode_steps
    ssd, mdlm = bench.lm("ssd-lm"), bench.lm("mdlm")
    blocks: dict[str, Any] = {"sampler": "simplex", "projection": "sampling", "top_p": 0.95, "context": context}
    windows: dict[str, Any] = {"length": total, "stride": stride}
    for lm, how in ((ssd, blocks), (mdlm, windows)):
        by_plan(lm, **{**how, "length": length + 1, "steps": 1})(2, 0)  # warm
    entries = [
        GenerationEntry("SSD-LM", t, by_plan(ssd, total, steps=t, **blocks)),
        GenerationEntry("MDLM", t, by_plan(mdlm, steps=t, **windows)),
        GenerationEntry(
            EVERY, t, by_plan(mdlm, steps=t, sampler="ancestral", **windows), note="the textbook in the same windows"
        ),
    ]
    batch = take_turns(bench, entries, scale.long_samples)
    columns = [*printed.columns, ENTROPY, REPETITION, CALLS]
    found = {entry.method: _renamed(_figures(entry, scorer)) for entry in entries}
    rows = [Row(entry.method, printed.rows.get(entry.method, {}), found[entry.method], entry.note) for entry in entries]
    real, about = real_text(bench, total, scale.long_samples, scorer)
    rows.append(Row(real.name, {}, _renamed(real.ours), real.note))
    return bench.report(
        "semi-ar",
        printed.label,
        [Table(f"Semi-autoregressive generation of {total} tokens (paper: 2048)", printed.label, columns, rows)],
        checks=_semi_ar_checks(found),
        protocol={
            "samples": scale.long_samples,
            "batch": batch,
            "sampled_tokens": total,
            "timing": f"all samplers in turns, {len(entries[0].parts)} rounds, after one short run each",
            "±": "standard error, over rounds for seconds and over samples for the rest",
            "MDLM": f"reveal plan, T = {t} a window of {length} tokens that moves by {stride}",
            "SSD-LM": f"blocks of {block}, T = {t} a block, sampling projection, top-p 0.95, a context of at most "
            f"{context} tokens, so that context and block are as long as a row of the training",
            "SSD-LM training": f"T = {config.simplex.steps}, as many steps and tokens seen as MDLM",
            "reference": about,
            **about_judge(bench, scorer),
        },
        notes=[
            "A low perplexity with a low entropy is repetition, and no good text: read both, beside real text.",
            f"A block of SSD-LM takes T = {t} network calls, so its time grows with T; the reveal plan's does not.",
            *printed.remarks,
        ],
    )


def _renamed(figures: Any) -> dict[str, Figure | str | None]:
    """Under the names of the paper's columns."""
    names = {PPL: "Gen. PPL", SECONDS: "Sec/Seq"}
    return {names.get(name, name): figure for name, figure in figures.items()}


def _semi_ar_checks(found: dict[str, dict[str, Any]]) -> list[Check]:
    ssd, mdlm = found["SSD-LM"], found["MDLM"]
    faster = ordering("MDLM is faster than SSD-LM (the paper: 28 times)", mdlm["Sec/Seq"], ssd["Sec/Seq"])
    times = ratio(ssd["Sec/Seq"], mdlm["Sec/Seq"])
    textbook = ratio(ssd["Sec/Seq"], found[EVERY]["Sec/Seq"])
    detail = f"{faster.detail}; {times} times, of which the textbook has {textbook}"
    checks = [Check(faster.claim, faster.holds, detail)]
    if ssd.get("Gen. PPL") and mdlm.get("Gen. PPL"):
        better = ordering("MDLM has the lower generative perplexity", mdlm["Gen. PPL"], ssd["Gen. PPL"])
        detail = f"{better.detail}; entropy {mdlm[ENTROPY]} against {ssd[ENTROPY]}"
        checks.append(Check(better.claim, better.holds, detail))
    return checks


__all__ = ["caching", "semi_ar"]
