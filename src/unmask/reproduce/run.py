"""Tables by name."""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence
from pathlib import Path

from ..config import load_yaml, nearest
from ..evaluation.suites import suite
from ..process.keys import check_seed
from ..types import UserError
from .bench import Bench
from .berts import BertBench
from .dna_bench import GenomeBench
from .report import Report, write_report
from .scales import PAPER_TEXTS, Scale, scale_named
from .tables.curves import variance_curve
from .tables.encoder_tuning import EncoderBench, encoder
from .tables.generation import caching, semi_ar
from .tables.genome_ppl import dna, dna_curves
from .tables.genomic_benchmarks import genomics
from .tables.glue_tables import bert, glue
from .tables.perplexity import ablation, lm, schedules, steps, time_conditioning
from .tables.zero_shot import zero_shot

TABLES: dict[str, Callable[[Bench], Report]] = {
    "ablation": ablation,
    "schedules": schedules,
    "steps": steps,
    "time-conditioning": time_conditioning,
    "lm": lm,
    "caching": caching,
    "semi-ar": semi_ar,
    "variance-curve": variance_curve,
    "zero-shot": zero_shot,
    "bert": bert,
    "glue": glue,
    "encoder": encoder,
    "dna": dna,
    "genomics": genomics,
    "dna-curves": dna_curves,
}
BENCHES: dict[str, type[Bench]] = {
    "bert": BertBench,
    "glue": BertBench,
    "encoder": EncoderBench,
    "dna": GenomeBench,
    "genomics": GenomeBench,
    "dna-curves": GenomeBench,
}
LOCAL = ("zero-shot", "bert", "glue", "encoder", "genomics")  # tables with sets of their own
USUAL = "python-docs"  # the text where nobody names one, below the paper's scale
HG38 = "hg38"  # the paper's genome
# in the paper; the other tables are on LM1B
ON_OWT = ("steps", "time-conditioning", "caching", "semi-ar", "variance-curve", "zero-shot")


def reproduce(
    name: str,
    *,
    scale: str = "smoke",
    data: str = USUAL,
    out: str | Path = "runs/reproduce",
    seed: int = 0,
    scorer: str | None = None,
    local: str | None = None,
    known: Sequence[str] = (),
    start: str | None = None,
    quiet: bool = False,
) -> tuple[Report, Path]:
    """Re-create a table: train or load what it needs, measure, write. Returns the report and its page."""
    if name not in TABLES:
        raise UserError(f"unknown table {name!r}{nearest(name, TABLES)}; choose one of {', '.join(TABLES)}")
    chosen = scale_named(scale)
    check_seed(check_seed(seed) + 1)  # of the second training of a model
    if known and name != "zero-shot":
        raise UserError("--in-domain belongs to zero-shot; leave it out")
    if local and name not in LOCAL:
        raise UserError(f"--local belongs to {', '.join(LOCAL)}; leave it out")
    if (start is None) == (name == "encoder"):
        raise UserError("--model names the encoder of the table encoder, and that table needs it")
    sets = tuple(member.corpus for member in suite("zero-shot", known)) if known else ()
    kind = BENCHES.get(name, Bench)
    bench = kind(chosen, _text(name, chosen, data), Path(out), seed, scorer, quiet, local, sets)
    if isinstance(bench, EncoderBench) and start is not None:
        bench.start = start
    _check_models(bench)
    if chosen.trains:
        _check_text(bench)
    report = TABLES[name](bench)
    return report, write_report(report, bench.folder / name)


def _text(name: str, scale: Scale, data: str) -> str:
    """The text of a table: at the paper's scale, the paper's."""
    if not data.strip():
        raise UserError("--data is empty; give a name, a file or a folder")
    if BENCHES.get(name) is GenomeBench:
        return _genome(name, scale, data)
    if scale.trains or data in PAPER_TEXTS:
        return data
    if data != USUAL:
        raise UserError(
            f"the paper's scale knows the texts {' and '.join(PAPER_TEXTS)}, not {data!r}; leave out --data"
        )
    if name in BENCHES:
        return "c4"
    return "owt" if name in ON_OWT else "lm1b"


def _genome(name: str, scale: Scale, data: str) -> str:
    """The genome of a table: at the paper's scale, the paper's."""
    if scale.trains and data == USUAL:
        raise UserError(f"{name} is on a genome; name its FASTA file: --data FASTA")
    if not scale.trains and data not in (USUAL, HG38):
        raise UserError(f"the paper's scale knows the genome {HG38}, not {data!r}; leave out --data")
    return data if scale.trains else HG38


def _check_models(bench: Bench) -> None:
    """Raise if models of another seed or text lie in the folder: their figures would be printed as this command's."""
    for path in sorted((bench.folder / "models").glob("*/config.yaml")):
        name, found = path.parent.name, load_yaml(path)
        if name not in bench.trainable():
            continue
        wanted = bench.config(name)
        if found.seed != wanted.seed:
            raise UserError(
                f"{path.parent} was trained with seed {found.seed}, not {wanted.seed} as --seed {bench.seed} means; "
                "give another --out, or the seed of the models"
            )
        if bench.scale.trains and os.path.abspath(found.data.source) != os.path.abspath(wanted.data.source):
            raise UserError(
                f"{path.parent} was trained on {found.data.source}, not on {wanted.data.source}; give another --out"
            )


def _check_text(bench: Bench) -> None:
    """Raise, before anything is trained, if there is too little text for errors over texts and for two long rows."""
    least, found = 2 * bench.scale.times, len(bench.rows())
    if found < least:
        raise UserError(
            f"the {bench.split} split of {bench.source} has {found} of the {least} rows of "
            f"{bench.config(bench.base).data.length} tokens that error bars need; give more text"
        )
