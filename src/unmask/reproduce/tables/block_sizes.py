"""Our study of block diffusion, beside the table of BD3-LM: perplexity by block size, and what samples cost.

AR, MDLM and blocks of three sizes trained apart, and one network trained on a mixture of sizes, all on the same rows
and with two seeds.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from ...config import Config
from ...models.block_diffusion import BlockDiffusion
from ...models.language_model import LanguageModel
from ...plot import Curve, Plot
from .. import paper
from ..bench import Bench
from ..claims import Claim
from ..figures import Figure
from ..report import Report, Row, Table
from ..scored import ScoredModel, mean_perplexity, mean_rate
from ..specs import Changes, ModelSpec, PaperTable, Setup, changed
from ..text_models import TEXT, text_models, train_words
from ..timed_samples import (
    CALLS,
    ENTROPY,
    PPL,
    REAL,
    REPETITION,
    SECONDS,
    GenerationEntry,
    about_judge,
    by_sampler,
    entry_figures,
    prepare,
    real_text,
    take_turns,
)

SIZES = (16, 8, 4)  # trained apart
MIXTURE = {"1": 0.25, "4": 0.25, "16": 0.25, "full": 0.25}
LAWS: dict[str, int | None] = {"1": 1, "2": 2, "4": 4, "8": 8, "16": 16, "the whole row": None}
PLAIN = {"objective": {"loss": "cross-entropy"}}
MODELS: dict[str, Changes] = {
    "ar": {"model": {"method": "ar"}},
    "mdlm": PLAIN,
    **{f"block-{size}": {**PLAIN, "model": {"method": "block"}, "block": {"size": size}} for size in SIZES},
    "mixture": {**PLAIN, "model": {"method": "block"}, "block": {"size": 4, "mixture": MIXTURE}},
}
CALLS_IN_BLOCK = (16, 8, 4, 2)  # of blocks of 16


def _name(model: str) -> str:
    return f"blocks-{model}-seed0"


def block_models(setup: Setup) -> dict[str, ModelSpec]:
    """All of them train as many steps on the same rows: below the paper's scale twice those of the shorter MDLM."""
    shared = text_models(setup)["mdlm"].config
    assert isinstance(shared, Config)
    if setup.scale.trains:
        shared = changed(shared, {"train": {"steps": 2 * shared.train.steps}})
    models = {}
    for model, changes in MODELS.items():
        config = changed(shared, changes)
        models[_name(model)] = ModelSpec(config, command=train_words(setup, config))
    return models


def blocks(bench: Bench) -> Report:
    """Perplexity by each law, and quality of samples against calls and seconds."""
    names = list(map(_name, MODELS))
    (scorer,) = prepare(bench, names, 1)
    scored = _scored(bench)
    printed = paper.BD3LM
    rows = [_row(name, scored[name], printed.rows.get(name, {})) for name in scored]
    entries = _entries(bench)
    batch = take_turns(bench, entries, bench.scale.samples)
    real, about = real_text(bench, bench.base.data.length, max(2, bench.scale.samples), scorer, names[0])
    columns = [CALLS, SECONDS, PPL, ENTROPY, REPETITION]
    written = [Row(_entry_name(entry), {}, entry_figures(entry, scorer)) for entry in entries]
    return bench.report(
        "blocks",
        printed.label,
        [
            Table(printed.title, printed.label, [paper.PPL, NATS], rows),
            Table("Samples and what they cost", "ours", columns, [*written, real]),
        ],
        plots=[
            _plot(name, column, entries, written, real) for name, column in (("calls", CALLS), ("seconds", SECONDS))
        ],
        checks=[claim.check(scored) for claim in CLAIMS],
        protocol={
            "±": "standard error: over draws and trainings for perplexities, over rounds for seconds, over samples "
            "for the rest",
            "training": f"{bench.config(names[0]).train.steps} steps of every model, on the same rows; cross-entropy "
            f"of hidden tokens; a mixture step has one block size, shares {MIXTURE}",
            "law": "bound; exact for AR and for blocks of one token",
            "samples": bench.scale.samples,
            "batch": batch,
            "sampled from": "AR, MDLM and the mixture of the first seed, at temperature 1",
            "reference": about,
            **about_judge(bench, scorer),
        },
        notes=list(printed.remarks),
        study=True,
    )


NATS = "nats/token"


def _printed(less: str, more: str) -> float:
    return paper.log_ratio(paper.BD3LM, less, more)


CLAIMS = (
    Claim("blocks of 16 are better than MDLM", "blocks of 16", "MDLM", paper=_printed("blocks of 16", "MDLM")),
    Claim(
        "blocks of 8 are better than blocks of 16",
        "blocks of 8",
        "blocks of 16",
        paper=_printed("blocks of 8", "blocks of 16"),
    ),
    Claim(
        "blocks of 4 are better than blocks of 8",
        "blocks of 4",
        "blocks of 8",
        paper=_printed("blocks of 4", "blocks of 8"),
    ),
    Claim("AR is better than blocks of 4", "AR", "blocks of 4", paper=_printed("AR", "blocks of 4")),
    Claim("AR is better than the mixture by its blocks of 1", "AR", "mixture, 1"),
    Claim("blocks of 4 trained apart are better than the mixture", "blocks of 4", "mixture, 4"),
    Claim("MDLM is better than the mixture", "MDLM", "mixture, the whole row"),
)


def _models() -> dict[str, str]:
    """By what a row of the table is called."""
    rows = {"AR": "ar", "MDLM": "mdlm"} | {f"blocks of {size}": f"block-{size}" for size in SIZES}
    return {row: _name(model) for row, model in rows.items()}


def _scored(bench: Bench) -> dict[str, list[ScoredModel]]:
    """The likelihoods of all seeds, by what a row of the table is called."""
    out = {row: bench.scores(name) for row, name in _models().items()}
    length = bench.base.data.length
    for law, size in LAWS.items():
        if size is None or length % size == 0:
            out[f"mixture, {law}"] = bench.scores(_name("mixture"), _law(size), what=f"mixture by blocks of {law}")
    return out


def _law(size: int | None) -> Any:
    def change(model: LanguageModel) -> LanguageModel:
        assert isinstance(model, BlockDiffusion)
        return model.in_blocks(size)

    return change


def _row(name: str, scored: Sequence[ScoredModel], printed: dict[str, Any]) -> Row:
    return Row(name, printed, {paper.PPL: mean_perplexity(scored), NATS: mean_rate(scored)})


def _entries(bench: Bench) -> list[GenerationEntry]:
    """AR, MDLM with some numbers of steps, the mixture in blocks and by speculation, each warmed up."""
    ar, mdlm, mixture = (bench.lm(_name(model)) for model in ("ar", "mdlm", "mixture"))
    length = bench.base.data.length
    entries = [GenerationEntry("AR", None, by_sampler(ar))]
    steps = sorted({length * 4, length, length // 2, length // 4, length // 8})
    entries += [GenerationEntry("MDLM, plan", t, by_sampler(mdlm, sampler="plan", steps=t)) for t in steps]
    for size in (4, 16):
        for t in (calls for calls in CALLS_IN_BLOCK if calls <= size):
            entries.append(
                GenerationEntry(f"blocks of {size}", t, by_sampler(mixture, sampler="plan", block=size, steps=t))
            )
    entries.append(GenerationEntry("blocks of 1", None, by_sampler(mixture, sampler="plan", block=1, steps=1)))
    entries.append(GenerationEntry("speculative", None, by_sampler(mixture, sampler="speculative")))
    for entry in entries:
        entry.write(2, 0)
    return entries


def _entry_name(entry: GenerationEntry) -> str:
    return entry.method if entry.steps is None else f"{entry.method}, T={entry.steps}"


def _plot(name: str, column: str, entries: Sequence[GenerationEntry], written: Sequence[Row], real: Row) -> Plot:
    """Generative perplexity against what a sample costs, a curve a method."""
    points: dict[str, list[tuple[float, Figure]]] = {}
    for entry, row in zip(entries, written, strict=True):
        cost, quality = row.ours[column], row.ours.get(PPL)
        if isinstance(cost, Figure) and isinstance(quality, Figure):
            points.setdefault(entry.method, []).append((cost.value, quality))
    curves = [
        Curve(method, [x for x, _ in each], [f.value for _, f in each], [f.error or 0.0 for _, f in each])
        for method, each in points.items()
    ]
    level = real.ours.get(PPL)
    ends = [x for curve in curves for x in curve.x]
    if isinstance(level, Figure) and ends:
        curves.append(Curve(REAL, [min(ends), max(ends)], [level.value] * 2))
    title = f"Generative perplexity against {column}, a point a T"
    return Plot(f"blocks-{name}", title, column, PPL, curves, log_x=True, log_y=True)


BLOCKS = PaperTable(
    "blocks",
    blocks,
    TEXT.including(block_models),
    "lm1b",
    seeds=2,
    claims=CLAIMS,
    sides=_models() | {f"mixture, {law}": _name("mixture") for law in LAWS},
)
