"""What a re-created table is: figures with their errors, beside those of the paper. Plain data."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ..plot import Plot
from .figures import Figure

NONE = "–"  # no figure
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
    """A table of the paper; each column is shown twice, "paper" and "here", if the paper has a value for it."""

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
            cells = [sides[side].get(column) for column, side in shown]
            lines.append([row.name, *(NONE if cell is None else str(cell) for cell in cells)])
        return lines


@dataclass(frozen=True)
class EffectSize:
    """By how much one side is better than the other: here with its interval, and in the paper."""

    value: float
    error: float | None  # standard error
    low: float | None  # the ends of the interval that decides; None where there is no such interval
    high: float | None
    unit: str  # NATS, RATIO or POINTS
    paper: float | None = None
    trainings: int | None = None  # of each side; None: it is not about trainings


NATS = "nats"  # a token: the logarithm of the ratio of two perplexities
RATIO = "log ratio"  # of seconds, of variances, of perplexities of samples
POINTS = "points"  # of a mean accuracy, x 100


@dataclass(frozen=True)
class Check:
    """A claim of the paper: it holds here, it does not, or (None) the error bars leave it open."""

    claim: str
    holds: bool | None
    detail: str
    effect: EffectSize | None = None  # None: it was not judged, or is not about a difference
    needs: str = ""  # what would decide it

    @property
    def verdict(self) -> str:
        """In words."""
        if self.holds is None:
            return f"not decided ({self.needs})" if self.needs else "not decided"
        return "holds" if self.holds else "refuted"


@dataclass(frozen=True)
class Report:
    """All results of one `unmask reproduce`, and how they were obtained."""

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
    data: str = ""  # what the models were trained on
    unjudged: str = ""  # why the claims are not judged; "" = they are
    study: bool = False  # a study of this project: the paper has no such table


def plot_stems(plots: Sequence[Plot]) -> list[str]:
    """File names that are safe and distinct."""
    stems: list[str] = []
    for plot in plots:
        stem = re.sub(r"[^A-Za-z0-9_-]+", "-", plot.name).strip("-") or "plot"
        stems.append(next(s for s in (stem, *(f"{stem}-{i}" for i in range(2, len(plots) + 2))) if s not in stems))
    return stems
