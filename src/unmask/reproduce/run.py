"""Tables by name."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..config import nearest
from ..types import UserError
from .bench import Bench
from .curves import variance_curve
from .generation import caching, semi_ar
from .likelihoods import ablation, lm, schedules, steps, time_conditioning
from .report import Report, write_report
from .scales import PAPER_TEXTS, Scale, scale_named

TABLES: dict[str, Callable[[Bench], Report]] = {
    "ablation": ablation,
    "schedules": schedules,
    "steps": steps,
    "time-conditioning": time_conditioning,
    "lm": lm,
    "caching": caching,
    "semi-ar": semi_ar,
    "variance-curve": variance_curve,
}
USUAL = "python-docs"  # the text where nobody names one, below the paper's scale
ON_OWT = ("steps", "time-conditioning", "caching", "semi-ar", "variance-curve")  # in the paper; the others are on LM1B


def reproduce(
    name: str,
    *,
    scale: str = "smoke",
    data: str = USUAL,
    out: str | Path = "runs/reproduce",
    seed: int = 0,
    scorer: str | None = None,
    quiet: bool = False,
) -> tuple[Report, Path]:
    """Re-create a table: train or load what it needs, measure, write. Returns the report and its page."""
    if name not in TABLES:
        raise UserError(f"unknown table {name!r}{nearest(name, TABLES)}; choose one of {', '.join(TABLES)}")
    chosen = scale_named(scale)
    bench = Bench(chosen, _text(name, chosen, data), Path(out), seed, scorer, quiet)
    report = TABLES[name](bench)
    return report, write_report(report, bench.folder / name)


def _text(name: str, scale: Scale, data: str) -> str:
    """The text of a table: at the paper's scale, the paper's."""
    if scale.trains or data in PAPER_TEXTS:
        return data
    if data != USUAL:
        raise UserError(
            f"the paper's scale knows the texts {' and '.join(PAPER_TEXTS)}, not {data!r}; leave out --data"
        )
    return "owt" if name in ON_OWT else "lm1b"
