"""The files of a report: `report.md` for people, `results.json` for programs, and one SVG per plot."""

from __future__ import annotations

import json
import os
import platform
import re
import sys
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

from ..files import write_text
from ..jsonable import described
from ..plot import Curve, Plot, svg
from ..types import UserError
from ..version import __version__
from .earlier_results import judged_again
from .figures import Figure
from .rendering import markdown
from .report import Check, EffectSize, Report, Row, Table, plot_stems

SCHEMA = 2
READABLE = (1, 2)  # of 1 the claims have neither effects nor what they need


def write_report(report: Report, folder: Path) -> Path:
    """Write report.md, results.json and the plots; every file is replaced atomically. Returns report.md."""
    report = replace(report, environment=report.environment or environment())
    files = {f"{stem}.svg": svg(plot) for stem, plot in zip(plot_stems(report.plots), report.plots, strict=True)}
    document = json.dumps({"schema": SCHEMA, **described(report)}, indent=1, ensure_ascii=False, allow_nan=False)
    files |= {"results.json": document + "\n", "report.md": markdown(report)}  # the page last: it shows the others
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"cannot create the folder {folder} ({error.strerror}); name another one") from None
    for name, text in files.items():
        write_text(folder / name, text)
    return folder / "report.md"


def environment() -> dict[str, Any]:
    """The versions and the machine: what timings and last digits depend on."""
    return {
        "python": platform.python_version(),
        "torch": torch.__version__,
        "unmask": __version__,
        "cpu": _cpu(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "platform": sys.platform,
    }


def _cpu() -> str:
    try:
        text = Path("/proc/cpuinfo").read_text(encoding="utf-8")
    except OSError:
        text = ""
    name = re.search(r"^model name\s*:\s*(.+)$", text, re.MULTILINE)
    return name[1].strip() if name else platform.processor() or platform.machine()


# -- reading ----------------------------------------------------------------------------------------------------------


def load_results(path: Path) -> Report:
    """A report from its results.json (or its folder), for comparison with a later one."""
    path = path / "results.json" if path.is_dir() else path
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); give the folder of `unmask reproduce`") from None
    except ValueError:  # not JSON, or not UTF-8
        raise UserError(f"{path} is damaged: it is not JSON; run `unmask reproduce` again") from None
    schema = document.get("schema") if isinstance(document, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise UserError(f"{path} was written by a later unmask (schema {schema}, not {SCHEMA}); update unmask")
    try:
        if schema not in READABLE:
            raise ValueError("no schema version")
        report = _report({key: value for key, value in document.items() if key != "schema"})
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        what = f" ({error})" if str(error) else ""
        raise UserError(f"{path} is damaged: it is not a report{what}; run `unmask reproduce` again") from None
    return report if schema == SCHEMA else judged_again(report)


def _report(document: dict[str, Any]) -> Report:
    document["tables"] = [_table(**table) for table in document["tables"]]
    document["plots"] = [
        Plot(**{**plot, "curves": [_curve(**curve) for curve in plot["curves"]]}) for plot in document["plots"]
    ]
    document["checks"] = [_check(**check) for check in document["checks"]]
    return Report(**document)


def _check(effect: dict[str, Any] | None = None, **check: Any) -> Check:
    if effect is None:
        return Check(**check)
    numbers = ("value", "error", "low", "high", "paper")
    known: dict[str, Any] = {**effect}
    known |= {key: _number(known[key]) for key in numbers if known[key] is not None}
    return Check(**check, effect=EffectSize(**known))


def _table(title: str, label: str, columns: list[str], rows: list[dict[str, Any]]) -> Table:
    def figures(cells: dict[str, Any]) -> dict[str, Any]:
        return {column: _figure(**cell) if isinstance(cell, dict) else cell for column, cell in cells.items()}

    return Table(
        title, label, columns, [Row(**row | {side: figures(row[side]) for side in ("paper", "ours")}) for row in rows]
    )


def _figure(value: Any, error: Any = None, bound: bool = False, decimals: int | None = None) -> Figure:
    return Figure(_number(value), None if error is None else _number(error), bool(bound), decimals)


def _curve(name: str, x: list[Any], y: list[Any], error: list[Any] | None = None) -> Curve:
    return Curve(name, [*map(_number, x)], [*map(_number, y)], None if error is None else [*map(_number, error)])


def _number(value: Any) -> float:
    return value if isinstance(value, int) else float(value)  # "nan", "inf" and "-inf" are words in the file
