"""Tables as text: markdown for files, aligned columns for a terminal.

Lines are lists of cells, the first line is the header. `words` are the numbers of the columns that hold words: these
are aligned to the left, all others (figures) to the right.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Sequence

from rich.cells import cell_len
from rich.console import Console
from rich.table import Table as RichTable
from rich.text import Text

from .progress import CONTROLS

Lines = Sequence[Sequence[str]]


def one_line(text: str) -> str:
    """The text in one line, without characters that a terminal would obey."""
    return " ".join(text.split()).translate(CONTROLS)


def escape_markdown(text: str) -> str:
    """Text that markdown shows letter by letter: no emphasis, HTML, formula, new cell, or list within a list."""
    text = re.sub(r"([\\`*_\[\]~|#])", r"\\\1", one_line(text))
    text = re.sub(r"^(\d*)([-+.)])(?= |$)", r"\1\\\2", text)
    return text.replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;").replace("$", "&#36;")


def markdown_table(lines: Lines, words: Collection[int] = (0,)) -> str:
    """A table whose source is aligned too; every cell is shown letter by letter."""
    cells = [[escape_markdown(cell) for cell in line] for line in lines]
    widths = [max(3, *(cell_len(line[i]) for line in cells)) for i in range(len(cells[0]))]
    rule = ["-" * width if i in words else "-" * (width - 1) + ":" for i, width in enumerate(widths)]

    def padded(line: Sequence[str]) -> str:
        blanks = [" " * (width - cell_len(cell)) for cell, width in zip(line, widths, strict=True)]
        return " | ".join(
            cell + blank if i in words else blank + cell
            for i, (cell, blank) in enumerate(zip(line, blanks, strict=True))
        )

    return "\n".join(f"| {padded(line)} |" for line in (cells[0], rule, *cells[1:]))


def terminal_table(lines: Lines, words: Collection[int] = (0,), indent: str = "") -> list[str]:
    """The lines of a table for a terminal: as wide as its cells need, two blanks between columns."""
    table = RichTable.grid(padding=(0, 2), pad_edge=False)
    for i in range(len(lines[0])):
        table.add_column(justify="left" if i in words else "right", no_wrap=True)
    for line in lines:
        table.add_row(*(Text(one_line(cell)) for cell in line))
    console = Console(width=1_000_000, color_system=None, highlight=False, emoji=False, markup=False)
    with console.capture() as captured:
        console.print(table)
    return [(indent + line).rstrip() for line in captured.get().splitlines()]
