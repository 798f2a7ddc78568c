"""Tables as text: what a reader of the page and of the terminal sees."""

from __future__ import annotations

from markdown_it import MarkdownIt
from rich.cells import cell_len

from unmask.text_tables import escape_markdown, markdown_table, one_line, terminal_table

LINES = [
    ["", "figure", "note"],
    ["日本語", "1.5", "a|b"],
    ["[bold]x[/]", "12.25", "$5 & <b>"],
    ["\x1b[31m", "–", "two\nlines"],
]


def test_a_markdown_table_shows_every_letter_and_is_aligned():
    source = markdown_table(LINES, words=(0, 2))
    assert len({cell_len(line) for line in source.splitlines()}) == 1
    assert source.splitlines()[1].split("|")[1:-1][1].strip().endswith("-:")
    html = MarkdownIt("commonmark").enable("table").render(source)
    cells = [part.split("</td>")[0].partition(">")[2] for part in html.split("<td")[1:]]
    assert cells[:3] == ["日本語", "1.5", "a|b"]
    assert cells[3:6] == ["[bold]x[/]", "12.25", "$5 &amp; &lt;b&gt;"]
    assert cells[6:] == ["␛[31m", "–", "two lines"]


def test_a_terminal_table_is_aligned_and_obeys_nothing():
    assert terminal_table(LINES, words=(0, 2), indent="  ") == [
        "              figure  note",
        "  日本語         1.5  a|b",
        "  [bold]x[/]   12.25  $5 & <b>",
        "  ␛[31m            –  two lines",
    ]
    wide = terminal_table([["a" * 5000, "b"]])
    assert wide == ["a" * 5000 + "  b"]


def test_text_in_one_line():
    assert one_line("a\n b\x00") == "a b␀"
    assert escape_markdown("- a_b") == "\\- a\\_b"
