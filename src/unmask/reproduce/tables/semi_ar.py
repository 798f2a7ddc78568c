"""tab:semi-ar: texts longer than the model, by SSD-LM's blocks and by windows of MDLM."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from .. import paper
from ..bench import Bench
from ..claims import Claim, figure_ratio
from ..figures import Figure
from ..report import Cell, Check, Report, Row, Table
from ..specs import PaperTable
from ..text_models import TEXT
from ..timed_samples import (
    CALLS,
    ENTROPY,
    PPL,
    REPETITION,
    SECONDS,
    GenerationEntry,
    Samples,
    about_judge,
    by_sampler,
    entry_figures,
    joined,
    less_time,
    lower_perplexity,
    prepare,
    real_text,
    take_turns,
)

EVERY = "MDLM, a call every step"


def semi_ar(bench: Bench) -> Report:
    """Texts longer than the model: SSD-LM's blocks against windows of MDLM."""
    scorers = prepare(bench, ["ssd-lm", "mdlm"])
    printed, scale, config = paper.SEMI_AR, bench.scale, bench.config("ssd-lm")
    length, block = config.data.length, config.simplex.block
    context, stride, total, t = length - block, length // 2, scale.times * length, scale.decode_steps
    blocks: dict[str, Any] = {"sampler": "simplex", "projection": "sampling", "top_p": 0.95, "context": context}
    windows: dict[str, Any] = {"length": total, "stride": stride}
    each: list[dict[str, dict[str, Cell]]] = []
    for training, scorer in enumerate(scorers):
        ssd, mdlm = bench.lms("ssd-lm")[training], bench.lms("mdlm")[training]
        for lm, how in ((ssd, blocks), (mdlm, windows)):
            by_sampler(lm, **{**how, "length": length + 1, "steps": 1})(2, 0)  # warm
        entries = [
            GenerationEntry("SSD-LM", t, by_sampler(ssd, total, steps=t, **blocks)),
            GenerationEntry("MDLM", t, by_sampler(mdlm, steps=t, **windows)),
            GenerationEntry(
                EVERY,
                t,
                by_sampler(mdlm, steps=t, sampler="ancestral", **windows),
                note="the textbook in the same windows",
            ),
        ]
        batch = take_turns(bench, entries, scale.long_samples, training)
        each.append({entry.method: entry_figures(entry, scorer) for entry in entries})
    figures = {entry.method: [seed[entry.method] for seed in each] for entry in entries}
    columns = [*printed.columns, ENTROPY, REPETITION, CALLS]
    rows = [
        Row(entry.method, printed.rows.get(entry.method, {}), _renamed(joined(figures[entry.method])), entry.note)
        for entry in entries
    ]
    real, about = real_text(bench, total, scale.long_samples, scorers[0])
    rows.append(Row(real.name, {}, _renamed(real.ours), real.note))
    return bench.report(
        "semi-ar",
        printed.label,
        [Table(f"Semi-autoregressive generation of {total} tokens (paper: 2048)", printed.label, columns, rows)],
        checks=_checks(figures),
        protocol={
            "samples": scale.long_samples,
            "batch": batch,
            "sampled_tokens": total,
            "timing": f"all samplers in turns, {len(entries[0].parts)} rounds, after one short run each",
            "±": "standard error, over rounds for seconds and over samples for the rest"
            if bench.seeds == 1
            else "standard error over trainings",
            "MDLM": f"reveal plan, T = {t} a window of {length} tokens that moves by {stride}",
            "SSD-LM": f"blocks of {block}, T = {t} a block, sampling projection, top-p 0.95, a context of at most "
            f"{context} tokens, so that context and block are as long as a row of the training",
            "SSD-LM training": f"T = {config.simplex.steps}, as many steps and tokens seen as MDLM",
            "reference": about,
            **about_judge(bench, scorers[0]),
        },
        notes=[
            "A low perplexity with a low entropy is repetition, and no good text: read both, beside real text.",
            f"A block of SSD-LM takes T = {t} network calls, so its time grows with T; the reveal plan's does not.",
            *printed.remarks,
        ],
    )


def _renamed(figures: Mapping[str, Cell]) -> dict[str, Cell]:
    """Under the names of the paper's columns."""
    names = {PPL: "Gen. PPL", SECONDS: "Sec/Seq"}
    return {names.get(name, name): figure for name, figure in figures.items()}


FASTER = Claim(
    "MDLM is faster than SSD-LM (the paper: 28 times)",
    "MDLM",
    "SSD-LM",
    measure=less_time,
    paper=paper.log_ratio(paper.SEMI_AR, "MDLM", "SSD-LM", "Sec/Seq"),
    trained=False,
)
LOWER = Claim(
    "MDLM has the lower generative perplexity",
    "MDLM",
    "SSD-LM",
    measure=lower_perplexity,
    paper=paper.log_ratio(paper.SEMI_AR, "MDLM", "SSD-LM", "Gen. PPL"),
)


def _checks(figures: Mapping[str, Samples]) -> list[Check]:
    faster = FASTER.check(figures)
    seconds = {method: joined(each)[SECONDS] for method, each in figures.items()}
    times, textbook = (figure_ratio(_figure(seconds["SSD-LM"]), _figure(seconds[method])) for method in ("MDLM", EVERY))
    checks = [replace(faster, detail=f"{faster.detail}; {times} times, of which the textbook has {textbook}")]
    judged = all(one.get(PPL) for side in (LOWER.left, LOWER.right) for one in figures[side])
    return [*checks, LOWER.check(figures)] if judged else checks


def _figure(cell: Cell) -> Figure:
    assert isinstance(cell, Figure)
    return cell


SEMI_AR = PaperTable(
    "semi-ar", semi_ar, TEXT, "owt", claims=(FASTER, LOWER), sides={"MDLM": "mdlm", "SSD-LM": "ssd-lm"}
)
