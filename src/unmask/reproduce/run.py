"""`unmask reproduce NAME`: from the options of a table to its report."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from ..config import load_yaml, nearest
from ..evaluation.suites import suite
from ..process.keys import check_seed
from ..types import UserError
from .bench import Bench
from .kept_scores import KeptScores
from .report import Report
from .report_files import write_report
from .scales import Scale, scale_named
from .specs import PaperTable
from .tables import TABLES

DEFAULT_TEXT = "python-docs"  # below the paper's scale


def reproduce(name: str, **how: Any) -> tuple[Report, Path]:
    """Re-create a table: train or load what it needs, measure, write. Returns the report and its page.

    `how` as in `open_bench`.
    """
    bench = open_bench(name, **how)
    if bench.scale.trains:
        _check_text(bench)
    report = TABLES[name].report(bench)
    return report, write_report(report, bench.folder / name)


def open_bench(
    name: str,
    *,
    scale: str = "smoke",
    data: str = DEFAULT_TEXT,
    out: str | Path = "runs/reproduce",
    seed: int = 0,
    scorer: str | None = None,
    local: str | None = None,
    known: Sequence[str] = (),
    start: str | None = None,
    trains: bool = True,
    seeds: int | None = None,
    scores: str | Path | None = None,
    quiet: bool = False,
) -> Bench:
    """The bench of a table; raises if the options do not fit together, or do not fit the models in the folder.

    Every model is trained with `seeds` seeds, beginning with `seed`; by default with as many as the table has by
    itself, mostly one. Without `trains` a study reports what is trained so far. `scores` is a folder with what is kept
    of trainings, if it is not to be beside the models.
    """
    if name not in TABLES:
        raise UserError(f"unknown table {name!r}{nearest(name, TABLES)}; choose one of {', '.join(TABLES)}")
    table, chosen = TABLES[name], scale_named(scale)
    if seeds is not None and seeds < 1:
        raise UserError(f"--seeds {seeds} is the number of trainings of each model; give 1 or more")
    check_seed(check_seed(seed) + (seeds or 1))  # of the last training of a model, or of a judge
    if known and not table.in_domain:
        raise UserError("--in-domain belongs to zero-shot; leave it out")
    if local and not table.local:
        takers = ", ".join(name for name, other in TABLES.items() if other.local)
        raise UserError(f"--local belongs to {takers}; leave it out")
    if (start is None) == table.encoder:
        raise UserError("--model is for the table encoder, which needs it")
    if not trains and not table.partial:
        takers = ", ".join(name for name, other in TABLES.items() if other.partial)
        raise UserError(f"--no-train belongs to {takers}; leave it out")
    sets = tuple(member.corpus for member in suite("zero-shot", known)) if known else ()
    text = _text(table, chosen, data)
    bench = Bench(chosen, text, Path(out), seed, scorer, quiet, local, sets, start, table.family, trains)
    bench.seeds, bench.asked_seeds = seeds or table.seeds, seeds
    if scores and Path(scores).is_file():
        raise UserError(f"--scores {scores} is a file; give the name of a folder")
    bench.kept = KeptScores(Path(scores)) if scores else None
    _check_models(bench)
    return bench


def _text(table: PaperTable, scale: Scale, data: str) -> str:
    """The text or genome of a table: at the paper's scale, the paper's."""
    family = table.family
    if not data.strip():
        raise UserError("--data is empty; give a name, a file or a folder")
    if scale.trains:
        if family.genome and data == DEFAULT_TEXT:
            raise UserError(f"{table.name} needs a genome; give its FASTA file: --data FASTA")
        return data
    if data == DEFAULT_TEXT:
        return table.text
    if data not in family.texts:
        known = " and ".join(family.texts)
        raise UserError(f"the paper's scale knows the {family.noun} {known}, not {data!r}; leave out --data")
    return data


def _check_models(bench: Bench) -> None:
    """Raise if the folder has models of another seed or text, whose figures would be printed as this command's."""
    for path in sorted((bench.folder / "models").glob("*/config.yaml")):
        name, trained = path.parent.name, load_yaml(path)
        if name not in bench.declared():
            continue
        wanted = bench.config(name)
        if trained.seed != wanted.seed:
            raise UserError(
                f"{path.parent} was trained with seed {trained.seed}, not {wanted.seed} as --seed {bench.seed} means; "
                "give another --out, or the seed of the models"
            )
        if bench.scale.trains and os.path.abspath(trained.data.source) != os.path.abspath(wanted.data.source):
            raise UserError(
                f"{path.parent} was trained on {trained.data.source}, not on {wanted.data.source}; give another --out"
            )


def _check_text(bench: Bench) -> None:
    """Raise, before anything is trained, if there is too little text for errors over texts or for two long rows."""
    least, rows = 2 * bench.scale.times, len(bench.rows())
    if rows < least:
        raise UserError(
            f"the {bench.split} split of {bench.source} has {rows} of the {least} rows of "
            f"{bench.base.data.length} tokens that error bars need; give more text"
        )
