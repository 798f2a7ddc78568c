"""A report for people: a page of markdown, and lines for a terminal."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from ..jsonable import described
from ..plot import left_out
from ..progress import CONTROLS
from ..text_tables import escape_markdown, markdown_table, one_line, terminal_table
from .figures import significant
from .report import NONE, Report, plot_stems

MARKS = {True: "✓", False: "✗", None: "~"}
ORIGINS = (
    'Figures under "here" are of models trained on {data}, and the protocol says what they are scored on; those under '
    '"paper" and the titles of the tables are of the data of the paper.'
)
STUDY = "A study of this project, of which the paper has no table, with models trained on {data}."
MODEL_COLUMNS = {  # what `Report.models` should say of a model; other keys are shown after these
    "name": "model",
    "parameters": "parameters",
    "steps": "steps",
    "tokens": "tokens seen",
    "unmasked_tokens": "expected unmasked tokens",
    "seconds": "seconds",
}


def markdown(report: Report) -> str:
    """The report as plain GitHub markdown, with columns that are aligned in the source as well."""
    title = f"{report.name}: {report.label}{'' if report.study else ' of the paper'}, at scale {report.scale}"
    parts = [f"# {escape_markdown(title + f', on {report.data}' * bool(report.data))}", _fenced(report.command)]
    if report.data:
        parts.append(escape_markdown((STUDY if report.study else ORIGINS).format(data=report.data)))
    for table in report.tables:
        lines, notes = table.cells(), ["note", *(row.note for row in table.rows)]
        last = len(lines[0])
        if any(notes[1:]):
            lines = [[*line, note] for line, note in zip(lines, notes, strict=True)]
        parts += [f"## {escape_markdown(f'{table.title} ({table.label})')}", markdown_table(lines, words={0, last})]
    for stem, plot in zip(plot_stems(report.plots), report.plots, strict=True):
        parts.append(f"![{escape_markdown(plot.title)}]({stem}.svg)")
        parts += [_bullets(f"left out of the plot: {line}" for line in said)] if (said := left_out(plot)) else []
    if report.checks:
        parts += ["## Claims", *([escape_markdown(report.unjudged)] * bool(report.unjudged))]
        parts.append(_bullets(_claims(report)))
        parts += [] if report.unjudged else ["✓ holds here, ✗ does not, ~ within the error bars: not decided."]
    if report.models:
        parts += ["## What was trained", markdown_table(_model_cells(report.models))]
    for heading, facts in (("Protocol", report.protocol), ("Machine", report.environment)):
        if facts:
            settings = [["setting", "value"], *([key, value] for key, value in _flat(facts).items())]
            parts += [f"## {heading}", markdown_table(settings, words={0, 1})]
    if report.notes:
        parts += ["## Notes", _bullets(report.notes)]
    return "\n\n".join(parts) + "\n"


def terminal_lines(report: Report) -> list[str]:
    """The same tables and checks as aligned text; control characters are shown as pictures."""
    data = f", on {report.data}" * bool(report.data)
    lines = [one_line(f"{report.name} ({report.label}), scale {report.scale}{data}")]
    for table in report.tables:
        lines += ["", one_line(f"{table.title} ({table.label})"), *terminal_table(table.cells(), indent="  ")]
        lines += [f"  {one_line(f'{row.name}: {row.note}')}" for row in table.rows if row.note]
    if report.checks:
        lines += ["", *([one_line(report.unjudged)] * bool(report.unjudged)), *map(one_line, _claims(report))]
    return [line.rstrip() for line in lines]


def _claims(report: Report) -> Iterator[str]:
    for check in report.checks:
        yield check.claim if report.unjudged else f"{MARKS[check.holds]} {check.claim}: {check.detail}"


def _model_cells(models: list[dict[str, Any]]) -> list[list[str]]:
    keys = [key for key in MODEL_COLUMNS if any(key in model for model in models)]
    keys += sorted({key for model in models for key in model} - MODEL_COLUMNS.keys())
    header = [MODEL_COLUMNS.get(key, key.replace("_", " ")) for key in keys]
    return [header, *([_value(model.get(key), ",") for key in keys] for model in models)]


def _value(value: Any, thousands: str = "") -> str:
    """A setting as text."""
    value = described(value)
    if value is None:
        return NONE
    if isinstance(value, bool):
        return "yes" if value else "no"
    if isinstance(value, int):
        return f"{value:{thousands}}"
    if isinstance(value, float):
        return f"{value:.6g}" if not thousands else significant(value, 4)
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


def _fenced(text: str) -> str:
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", text)), default=0))
    return f"{fence}sh\n{text.translate(CONTROLS)}\n{fence}"


def _bullets(lines: Iterable[str]) -> str:
    return "\n".join(f"- {escape_markdown(line)}" for line in lines)
