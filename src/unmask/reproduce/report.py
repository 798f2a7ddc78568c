"""What a re-created table is, and how it is shown: figures with their errors, beside those of the paper.

Nothing here computes with a model. A report is plain data; `write_report` turns it into `report.md` for people,
`results.json` for programs and one SVG a plot, and `terminal_lines` into text for a terminal.
"""

from __future__ import annotations

import json
import math
import os
import platform
import re
import sys
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
from rich.cells import cell_len

from ..files import write_text
from ..jsonable import described
from ..progress import CONTROLS
from ..types import UserError
from ..version import __version__
from .plot import Curve, Plot, left_out, svg

__all__ = [
    "Check",
    "Curve",
    "Figure",
    "Plot",
    "Report",
    "Row",
    "Table",
    "load_results",
    "ordering",
    "terminal_lines",
    "write_report",
]

SCHEMA = 1
NONE = "–"  # no figure
MARKS = {True: "✓", False: "✗", None: "~"}
MODEL_COLUMNS = {  # what `Report.models` should say of a model; other keys are shown after these
    "name": "model",
    "parameters": "parameters",
    "steps": "steps",
    "tokens": "tokens seen",
    "unmasked_tokens": "expected unmasked tokens",
    "seconds": "seconds",
}


# -- figures ----------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Figure:
    """A number with its standard error; `bound` if the truth is at most this; `decimals` to print it as a source does.

    The text has two significant digits of the error, or four of the value if there is no error. An int is exact.
    """

    value: float
    error: float | None = None
    bound: bool = False
    decimals: int | None = None

    def __str__(self) -> str:
        text = self._text()
        return f"≤ {text}" if self.bound else text

    def _text(self) -> str:
        if not math.isfinite(self.value):
            return str(float(self.value))
        if self.error is not None and not math.isfinite(self.error):
            return f"{_significant(self.value, 4)} ± {self.error}"
        if self.decimals is not None:
            value = _fixed(self.value, self.decimals)
            return value if self.error is None else f"{value} ± {_fixed(self.error, self.decimals)}"
        if not self.error:  # None, or 0: a figure that cannot vary
            value = str(self.value) if isinstance(self.value, int) else _significant(self.value, 4)
            return value if self.error is None else f"{value} ± 0"
        scale = _exponent(max(abs(self.value), self.error), 2)
        if not -4 <= scale <= 8:  # neither 0.0000012 nor 1200000000
            return f"({Figure(self.value / 10.0**scale, self.error / 10.0**scale)})e{scale}"
        places = 1 - _exponent(self.error, 2)
        if places > 8:  # the error is the noise of the arithmetic
            return f"{_significant(self.value, 4)} ± {self.error:.1e}"
        return f"{_fixed(self.value, places)} ± {_fixed(self.error, places)}"

    def as_dict(self) -> dict[str, Any]:
        """For JSON; what is not finite is a word."""
        return dict(described(self))


def _exponent(value: float, digits: int) -> int:
    """The power of ten of the first digit, after rounding to so many digits (0.0996 is 0.10)."""
    return int(f"{value:.{digits - 1}e}".split("e")[1])


def _fixed(value: float, places: int) -> str:
    """Rounded to so many decimals; to tens, hundreds, ... if negative. Never minus zero."""
    return f"{round(value, places) + 0.0:.{max(places, 0)}f}"


def _significant(value: float, digits: int) -> str:
    if value == 0:
        return "0"
    exponent = _exponent(value, digits)
    if not -4 <= exponent <= 8:
        return f"{value:.{digits - 1}e}"
    return _fixed(value, digits - 1 - exponent)


# -- what a report is made of -----------------------------------------------------------------------------------------

Cell = Figure | str | None


@dataclass(frozen=True)
class Row:
    """A line of a table: what the paper printed and what came out here, by column."""

    name: str
    paper: Mapping[str, Figure | str]
    ours: Mapping[str, Cell]
    note: str = ""


@dataclass(frozen=True)
class Table:
    """A table of the paper; each column is shown twice, "paper" and "here", if the paper says anything there."""

    title: str
    label: str
    columns: list[str]
    rows: list[Row]

    def __post_init__(self) -> None:
        for row in self.rows:
            unknown = {*row.paper, *row.ours} - {*self.columns}
            assert not unknown, f"row {row.name!r} has figures for {sorted(unknown)}, which are not columns"

    def cells(self) -> list[list[str]]:
        """All lines as text, the first of them the header."""
        shown: list[tuple[str, str]] = []
        for column in self.columns:
            if any(column in row.paper for row in self.rows):
                shown.append((column, "paper"))
            shown.append((column, "here"))
        lines = [["", *(f"{column}, {side}" for column, side in shown)]]
        for row in self.rows:
            sides: dict[str, Mapping[str, Cell]] = {"paper": row.paper, "here": row.ours}
            found = [sides[side].get(column) for column, side in shown]
            lines.append([row.name, *(NONE if cell is None else str(cell) for cell in found)])
        return lines


@dataclass(frozen=True)
class Check:
    """A claim of the paper: it holds here, it does not, or (None) the error bars leave it open."""

    claim: str
    holds: bool | None
    detail: str


@dataclass(frozen=True)
class Report:
    """Everything that one `unmask reproduce` found, and how."""

    name: str
    label: str
    scale: str
    command: str
    tables: list[Table]
    plots: list[Plot] = field(default_factory=list)
    checks: list[Check] = field(default_factory=list)
    protocol: dict[str, Any] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    models: list[dict[str, Any]] = field(default_factory=list)
    environment: dict[str, Any] = field(default_factory=dict)  # filled in when it is written


def ordering(claim: str, smaller: Figure, larger: Figure, sigmas: float = 2.0) -> Check:
    """Whether a figure is below another by more than so many of their combined standard errors."""
    difference = larger.value - smaller.value
    error = math.hypot(smaller.error or 0.0, larger.error or 0.0)
    shown = f"{smaller} against {larger}"
    if not math.isfinite(difference) or not math.isfinite(error):
        return Check(claim, None, f"{shown}: not finite, so not decided")
    apart = f"{shown}: difference {Figure(difference, error or None)}"
    if error:
        apart += f", {difference / error:.1f} combined standard errors"
    if smaller.error is None or larger.error is None:
        apart += " (a figure without an error counts as exact)"
    if abs(difference) <= sigmas * error:
        return Check(claim, None, f"{apart}: within {sigmas:g}, not decided")
    return Check(claim, difference > 0, apart)


# -- writing ----------------------------------------------------------------------------------------------------------


def write_report(report: Report, folder: Path) -> Path:
    """Write report.md, results.json and the plots; every file is replaced in one step. Returns report.md."""
    report = replace(report, environment=report.environment or environment())
    files = {f"{stem}.svg": svg(plot) for stem, plot in zip(_stems(report.plots), report.plots, strict=True)}
    document = json.dumps({"schema": SCHEMA, **described(report)}, indent=1, ensure_ascii=False, allow_nan=False)
    files |= {"results.json": document + "\n", "report.md": markdown(report)}  # the page last: it shows the others
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise UserError(f"could not make the folder {folder} ({error.strerror}); name another one") from None
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
        found = re.search(r"^model name\s*:\s*(.+)$", Path("/proc/cpuinfo").read_text(encoding="utf-8"), re.MULTILINE)
    except OSError:
        found = None
    return found[1].strip() if found else platform.processor() or platform.machine()


def _stems(plots: Sequence[Plot]) -> list[str]:
    """File names that are safe and differ from each other."""
    stems: list[str] = []
    for plot in plots:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", plot.name).strip("-") or "plot"
        stems.append(next(s for s in (stem, *(f"{stem}-{i}" for i in range(2, len(plots) + 2))) if s not in stems))
    return stems


# -- reading ----------------------------------------------------------------------------------------------------------


def load_results(path: Path) -> Report:
    """A report from its results.json (or the folder of it), for comparison with a later one."""
    path = path / "results.json" if path.is_dir() else path
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except OSError as error:
        raise UserError(f"cannot read {path} ({error.strerror}); give the folder of `unmask reproduce`") from None
    except ValueError:  # not JSON, or not UTF-8
        raise UserError(f"{path} is damaged: it is not JSON; run `unmask reproduce` again") from None
    schema = found.get("schema") if isinstance(found, dict) else None
    if isinstance(schema, int) and schema > SCHEMA:
        raise UserError(f"{path} was written by a later unmask (schema {schema}, not {SCHEMA}); update unmask")
    try:
        if schema != SCHEMA:
            raise ValueError("no schema version")
        return _report({key: value for key, value in found.items() if key != "schema"})
    except (AssertionError, AttributeError, KeyError, TypeError, ValueError) as error:
        what = f" ({error})" if str(error) else ""
        raise UserError(f"{path} is damaged: it is not a report{what}; run `unmask reproduce` again") from None


def _report(found: dict[str, Any]) -> Report:
    found["tables"] = [_table(**table) for table in found["tables"]]
    found["plots"] = [
        Plot(**{**plot, "curves": [_curve(**curve) for curve in plot["curves"]]}) for plot in found["plots"]
    ]
    found["checks"] = [Check(**check) for check in found["checks"]]
    return Report(**found)


def _table(title: str, label: str, columns: list[str], rows: list[dict[str, Any]]) -> Table:
    def cells(found: dict[str, Any]) -> dict[str, Any]:
        return {column: _figure(**cell) if isinstance(cell, dict) else cell for column, cell in found.items()}

    return Table(
        title, label, columns, [Row(**row | {side: cells(row[side]) for side in ("paper", "ours")}) for row in rows]
    )


def _figure(value: Any, error: Any = None, bound: bool = False, decimals: int | None = None) -> Figure:
    return Figure(_number(value), None if error is None else _number(error), bool(bound), decimals)


def _curve(name: str, x: list[Any], y: list[Any], error: list[Any] | None = None) -> Curve:
    return Curve(name, [*map(_number, x)], [*map(_number, y)], None if error is None else [*map(_number, error)])


def _number(value: Any) -> float:
    return value if isinstance(value, int) else float(value)  # "nan", "inf" and "-inf" are words in the file


# -- for people -------------------------------------------------------------------------------------------------------


def markdown(report: Report) -> str:
    """The page: plain GitHub markdown, with columns that are aligned for who reads the source too."""
    title = f"{report.name}: {report.label} of the paper, at scale {report.scale}"
    parts = [f"# {_md(title)}", _fenced(report.command)]
    for table in report.tables:
        lines, notes = table.cells(), ["note", *(row.note for row in table.rows)]
        last = len(lines[0])
        if any(notes[1:]):
            lines = [[*line, note] for line, note in zip(lines, notes, strict=True)]
        parts += [f"## {_md(f'{table.title} ({table.label})')}", _md_table(lines, text={0, last})]
    for stem, plot in zip(_stems(report.plots), report.plots, strict=True):
        parts.append(f"![{_md(plot.title)}]({stem}.svg)")
        parts += [_bullets(f"left out of the plot: {line}" for line in said)] if (said := left_out(plot)) else []
    if report.checks:
        parts.append("## What the paper claims")
        parts.append(_bullets(f"{MARKS[c.holds]} {c.claim}: {c.detail}" for c in report.checks))
        parts.append("✓ holds here, ✗ does not, ~ within the error bars: not decided.")
    if report.models:
        parts += ["## What was trained", _md_table(_model_cells(report.models), text={0})]
    for heading, found in (("Protocol", report.protocol), ("Machine", report.environment)):
        if found:
            settings = [["setting", "value"], *([key, value] for key, value in _flat(found).items())]
            parts += [f"## {heading}", _md_table(settings, text={0, 1})]
    if report.notes:
        parts += ["## Notes", _bullets(report.notes)]
    return "\n\n".join(parts) + "\n"


def terminal_lines(report: Report) -> list[str]:
    """The same tables and checks as aligned text; what a terminal would obey is shown as a picture."""
    lines = [_line(f"{report.name} ({report.label}), scale {report.scale}")]
    for table in report.tables:
        lines += ["", _line(f"{table.title} ({table.label})"), *_aligned(table.cells(), {0}, "  ")]
        lines += [f"  {_line(f'{row.name}: {row.note}')}" for row in table.rows if row.note]
    if report.checks:
        lines += ["", *(_line(f"{MARKS[c.holds]} {c.claim}: {c.detail}") for c in report.checks)]
    return [line.rstrip() for line in lines]


def _model_cells(models: list[dict[str, Any]]) -> list[list[str]]:
    keys = [key for key in MODEL_COLUMNS if any(key in model for model in models)]
    keys += sorted({key for model in models for key in model} - MODEL_COLUMNS.keys())
    header = [MODEL_COLUMNS.get(key, key.replace("_", " ")) for key in keys]
    return [header, *([_value(model.get(key), ",") for key in keys] for model in models)]


def _value(value: Any, thousands: str = "") -> str:
    """A setting in words."""
    value = described(value)
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:{thousands}}"
    if isinstance(value, float):
        return f"{value:.6g}" if not thousands else _significant(value, 4)
    return ", ".join(map(_value, value)) if isinstance(value, list) else str(value)


def _flat(settings: Mapping[str, Any], prefix: str = "") -> dict[str, str]:
    """Nested settings with dotted names."""
    flat: dict[str, str] = {}
    for key, value in settings.items():
        if isinstance(value, Mapping) and value:
            flat |= _flat(value, f"{prefix}{key}.")
        else:
            flat[f"{prefix}{key}"] = _value(value)
    return flat


def _md_table(lines: list[list[str]], text: set[int]) -> str:
    """Columns of text to the left, figures to the right."""
    lines = [[_md(cell) for cell in line] for line in lines]
    width = [max(3, *(cell_len(line[i]) for line in lines)) for i in range(len(lines[0]))]
    rule = ["-" * n if i in text else "-" * (n - 1) + ":" for i, n in enumerate(width)]
    return "\n".join(_aligned([lines[0], rule, *lines[1:]], text, " | ", "| ", " |"))


def _aligned(lines: list[list[str]], text: set[int], between: str, before: str = "  ", after: str = "") -> list[str]:
    lines = [[_line(cell) for cell in line] for line in lines]
    width = [max(cell_len(line[i]) for line in lines) for i in range(len(lines[0]))]

    def pad(i: int, cell: str) -> str:
        blank = " " * (width[i] - cell_len(cell))
        return cell + blank if i in text else blank + cell

    return [before + between.join(pad(i, cell) for i, cell in enumerate(line)) + after for line in lines]


def _line(text: str) -> str:
    """One line, without letters that a terminal would obey."""
    return " ".join(text.split()).translate(CONTROLS)


def _md(text: str) -> str:
    """Text that markdown shows letter by letter: no emphasis, no HTML, no formula, no new cell, no list in a list."""
    text = re.sub(r"([\\`*_\[\]~|#])", r"\\\1", _line(text))
    text = re.sub(r"^(\d*)([-+.)])(?= |$)", r"\1\\\2", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}sh\n{text.translate(CONTROLS)}\n{fence}"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {_md(line)}" for line in lines)
