"""Tables: aligned text for a terminal (rich), and markdown for reports and pages."""

from __future__ import annotations

import io
from collections.abc import Iterable, Sequence
from typing import Any

WIDE = 100_000  # columns of a table whose lines are never broken


def text_table(head: Sequence[str], rows: Iterable[Sequence[Any]], right: Sequence[int] = ()) -> list[str]:
    """Aligned lines without a frame, two spaces between columns; the columns `right` are aligned to the right."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False, padding=(0, 2, 0, 0), show_edge=False)
    for i, name in enumerate(head):
        table.add_column(Text(name), justify="right" if i in right else "left", no_wrap=True)
    for row in rows:
        table.add_row(*(Text("" if cell is None else str(cell)) for cell in row))
    stream = io.StringIO()
    Console(file=stream, width=WIDE, color_system=None, highlight=False, emoji=False).print(table)
    return [line.rstrip() for line in stream.getvalue().splitlines()]


def markdown_table(head: Sequence[str], rows: Iterable[Sequence[Any]]) -> str:
    """A table of GitHub's markdown; a bar inside a cell is escaped."""
    body = [f"| {' | '.join(map(_cell, row))} |" for row in [head, *rows]]
    return "\n".join([body[0], "|" + "---|" * len(head), *body[1:]])


def _cell(value: Any) -> str:
    return "" if value is None else str(value).replace("|", "\\|").replace("\n", " ")
