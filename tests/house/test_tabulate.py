"""Tables: text that is aligned by what a terminal shows, and markdown that parses back to its cells."""

from __future__ import annotations

from unmask.tabulate import markdown_table, text_table


def test_columns_are_aligned_and_lines_never_broken() -> None:
    rows = [("a", 1, "x" * 300), ("longer", 12345, "[bold]no markup[/bold] :smile:"), ("None", None, "")]
    head, *lines = text_table(("name", "n", "what"), rows, right=(1,))
    assert head == "name        n  what"
    assert lines[0] == f"a           1  {'x' * 300}"
    assert lines[1] == "longer  12345  [bold]no markup[/bold] :smile:"
    assert lines[2] == "None" and len(lines) == 3


def test_wide_characters_count_twice() -> None:
    first, second = text_table(("", ""), [("中文", "a"), ("abcd", "b")])[1:]
    assert first == "中文  a" and second == "abcd  b"


def test_markdown_escapes_what_would_end_a_cell() -> None:
    lines = markdown_table(("a", "b"), [("x|y", None), (1.5, "two\nlines")]).split("\n")
    assert lines == ["| a | b |", "|---|---|", "| x\\|y |  |", "| 1.5 | two lines |"]
