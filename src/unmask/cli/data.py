"""`unmask data`: list the named data sets, show how text becomes rows, prepare the cache."""

from __future__ import annotations

import shutil
import sys
import textwrap
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from .help import HelpfulCommand, HelpfulGroup
from .shared import Json, print_json, print_lines

SHOWN = 400  # characters of a text that a terminal shows

app = typer.Typer(cls=HelpfulGroup, help="Data sets: list, show, prepare.", no_args_is_help=True)
DataOverrides = Annotated[
    list[str] | None, typer.Argument(help="Settings as data.key=value, for example data.length=64.")
]
Source = Annotated[str, typer.Argument(help="A named data set, a file, a folder or a Hub data set.")]
ZeroShot = Annotated[
    bool, typer.Option("--zero-shot", help="The paper's zero-shot settings (gpt2 tokens, no EOS between documents).")
]


@app.command("list", cls=HelpfulCommand)
def data_list(as_json: Json = False) -> None:
    """List the named data sets, with the paper's conventions for each."""
    from ..data.overview import list_sets

    sets = list_sets()
    width = shutil.get_terminal_size().columns if sys.stdout.isatty() else None  # a pipe gets one line per set
    _print_data(sets, lines_of_list(sets, width), as_json)


@app.command("show", cls=HelpfulCommand)
def data_show(
    source: Source,
    overrides: DataOverrides = None,
    split: Annotated[str | None, typer.Option(help="train, valid or test (default: the first that exists).")] = None,
    n: Annotated[int, typer.Option("-n", help="Number of texts and rows.")] = 3,
    zero_shot: ZeroShot = False,
    as_json: Json = False,
) -> None:
    """Show how text becomes rows: raw, detokenized, as tokens, as the network reads it; and counts."""
    from ..data.overview import settings_for, show
    from ..progress import progress_bar

    with progress_bar("tokenizing") as progress:
        overview = show(settings_for(source, overrides or [], zero_shot), split, n, progress)
    _print_data(overview, lines_of_show(overview), as_json)


@app.command("prepare", cls=HelpfulCommand)
def data_prepare(
    source: Source,
    overrides: DataOverrides = None,
    split: Annotated[list[str] | None, typer.Option(help="Only this split (may be repeated).")] = None,
    zero_shot: ZeroShot = False,
    as_json: Json = False,
) -> None:
    """Tokenize a data set into the cache, and print the folder and counts."""
    from ..data.overview import prepare_set, settings_for
    from ..progress import progress_bar

    with progress_bar("tokenizing") as progress:
        overview = prepare_set(settings_for(source, overrides or [], zero_shot), split, progress)
    _print_data(overview, lines_of_prepare(overview), as_json)


def _print_data(overview: Any, lines: list[str], as_json: bool) -> None:
    if as_json:
        print_json(overview)
        return
    print_lines(lines)


def lines_of_list(sets: Sequence[dict[str, Any]], width: int | None = None) -> list[str]:
    """A table of the data sets, one line each; two or more where a table is wider than `width`."""
    from rich.cells import cell_len

    from ..text_tables import terminal_table

    head = ("name", "splits", "tokenizer", "length", "layout", "detokenizer", "what")
    body = [
        (
            one["name"],
            _splits(one),
            one["tokenizer"],
            str(one["length"]),
            one["layout"],
            one["detokenizer"],
            one["about"] if one["readable"] else f"{one['about']} (not read yet)",
        )
        for one in sets
    ]
    lines = terminal_table([head, *body], words=range(len(head)))
    if width is None or max(map(cell_len, lines)) <= width:
        return lines
    lines = []
    for name, *settings, about in body:
        lines += textwrap.wrap(f"{name}: {', '.join(settings)}", width, subsequent_indent="    ")
        lines += textwrap.wrap(about, width, initial_indent="    ", subsequent_indent="    ")
    return lines


def _splits(one: dict[str, Any]) -> str:
    return " ".join(f"{split}={one['plays'][split]}" if split in one["plays"] else split for split in one["splits"])


def lines_of_show(overview: dict[str, Any]) -> list[str]:
    """Texts, tokens and rows; line breaks are escaped, tokens are separated by |."""
    lines = [f"{overview['source']}: {overview['about']}", _settings_line(overview), ""]
    for number, text in enumerate(overview["texts"], 1):
        lines.append(f"text {number} of {overview['split']}")
        lines.append(f"  raw          {_short(text['raw'])}")
        if text["detokenized"] is not None:
            lines.append(f"  detokenized  {_short(text['detokenized'])}")
        lines.append(f"  {len(text['ids'])} tokens".ljust(15) + _short("|".join(text["tokens"])))
    lines.append("")
    for number, row in enumerate(overview["rows"], 1):
        lines.append(f"row {number}: {len(row['ids'])} tokens, {row['counted']} of them count")
        lines.append(f"  {_short('|'.join(row['tokens']), both_ends=True)}")
    return [*lines, "", *_counts_lines(overview)]


def _counts_lines(overview: dict[str, Any]) -> list[str]:
    if overview["counts"] is None:
        return [f"not counted yet: unmask data prepare {overview['source']}"]
    return [count_line(overview["split"], overview["counts"])]


def lines_of_prepare(overview: dict[str, Any]) -> list[str]:
    """Counts of every split and the folder."""
    counted = [count_line(split, counts) for split, counts in overview["counts"].items()]
    return [f"{overview['source']}: {overview['about']}", _settings_line(overview), *counted, overview["folder"]]


def count_line(split: str, counts: dict[str, Any]) -> str:
    """The counts of a split in one line."""
    if "problem" in counts:
        return f"{split}: {counts['documents']:,} documents, {counts['tokens']:,} tokens, no rows: {counts['problem']}"
    return (
        f"{split}: {counts['documents']:,} documents, {counts['tokens']:,} tokens, {counts['rows']:,} rows, "
        f"{counts['bytes_per_token']:.2f} bytes/token, {counts['dropped_tokens']:,} tokens in no row"
    )


def _settings_line(overview: dict[str, Any]) -> str:
    from ..data.overview import SETTINGS

    return ", ".join(f"{name}={overview[name]}" for name in ("detokenizer", *SETTINGS, "vocabulary"))


def _short(text: str, both_ends: bool = False) -> str:
    shown = text.replace("\n", "\\n")
    if len(shown) <= SHOWN:
        return shown
    if both_ends:
        return f"{shown[: SHOWN // 2]} ... {shown[-SHOWN // 2 :]}"
    return f"{shown[:SHOWN]} ..."
