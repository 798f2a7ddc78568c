"""What `--watch` shows: masks and words as they are now, on a screen of any size."""

from __future__ import annotations

import io
import re
from dataclasses import replace

import pytest
import torch
from rich.console import Console

from unmask.cli import terminal
from unmask.cli.terminal import Watcher, canvas_text
from unmask.data.tokenization import bytes_tokenizer
from unmask.types import State

TOKENIZER = bytes_tokenizer()
MASK = TOKENIZER.vocab.mask


@pytest.fixture(autouse=True)
def _no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(terminal, "FRAME", 0.0)


def screen(width: int = 60, height: int = 12, is_terminal: bool = True) -> Console:
    return Console(file=io.StringIO(), width=width, height=height, force_terminal=is_terminal, color_system=None)


def canvas(text: str) -> torch.Tensor:
    """`_` is a mask."""
    return torch.tensor([MASK if character == "_" else ord(character) for character in text])


def state(text: str, positions: list[int] = [], row: int = 0, done: bool = False) -> State:  # noqa: B006
    ids = canvas(text)
    where = torch.tensor(positions, dtype=torch.int64)
    return State(row, 2, 0.25, where, ids[where], torch.ones(len(positions)), ids, 3, done)


def frame(watcher: Watcher, whole: bool = False) -> list[str]:
    """The lines of a picture; asked of a second console, so that nothing is left on the first."""
    console = screen(watcher.console.width, watcher.console.height)
    console.print(watcher.render(whole))
    return console.file.getvalue().splitlines()  # type: ignore[attr-defined]


def test_the_masks_of_the_current_block_stand_out():
    watcher = Watcher(TOKENIZER, [canvas("ab______")], screen())
    watcher(replace(state("ab_c____", [3]), block=(0, 4)))
    assert "step 3, t = 0.250, block 1–4, 3 calls, 5 masks left" in frame(watcher)[0]
    blue = [span for span in watcher.texts[0].spans if span.style == "blue"]
    assert len(blue) == 1 and watcher.texts[0].plain[: blue[0].start] == "ab"
    watcher(state("abcc____", [2], done=True))
    assert "block" not in frame(watcher)[0] and all(span.style != "blue" for span in watcher.texts[0].spans)


def test_a_position_that_is_masked_again_is_a_mask():
    watcher = Watcher(TOKENIZER, [canvas("ab__")], screen())
    assert "2 masks to write" in frame(watcher)[0]
    watcher(state("abcd", [2, 3]))
    assert "0 masks left" in frame(watcher)[0] and "abcd" in frame(watcher)[1]
    assert [watcher.texts[0].plain[span.start : span.end] for span in watcher.texts[0].spans if span.style] == [
        "c",
        "d",
    ]
    watcher(state("ab_x", [2, 3]))
    assert "step 3, t = 0.250, 3 calls, 1 masks left" in " ".join(frame(watcher)).replace("\n", " ")
    assert "ab░░ x" in frame(watcher)[1]
    green = [s for s in watcher.texts[0].spans if "green" in str(s.style)]
    assert [watcher.texts[0].plain[span.start : span.end] for span in green] == ["x"]
    watcher(state("abyx", [2], done=True))
    assert not [s for s in watcher.texts[0].spans if "green" in str(s.style)]


def test_a_canvas_that_grows():
    watcher = Watcher(TOKENIZER, [canvas("__")], screen())
    watcher(state("ab", [0, 1]))
    watcher(state("ab___", []))
    assert "3 masks left" in frame(watcher)[0] and "ab░░ ░░ ░░" in frame(watcher)[1]
    watcher(state("abcd_", [2, 3]))
    assert "abcd░░" in frame(watcher)[1]


@pytest.mark.parametrize(("n", "height"), [(1, 12), (1, 4), (2, 12), (9, 12), (9, 30)])
def test_what_is_longer_than_the_screen_shows_its_end(n, height):
    words = " ".join(f"word{i}" for i in range(100))
    watcher = Watcher(TOKENIZER, [canvas(words)] * n, screen(height=height))
    watcher(state(words + " END", [0], row=n // 2))
    lines = frame(watcher)
    assert len(lines) <= height
    shown = "\n".join(lines)
    assert "END" in shown and "word0 " not in shown
    assert ("lines above" in shown) == (height > 4)  # no line to spare for that
    missing = re.search(r"and (\d+) more", shown)
    assert shown.count("╭") + (int(missing[1]) if missing else 0) == n
    whole = "\n".join(frame(watcher, whole=True))
    assert whole.count("word0 ") == n and whole.count("╭") == n and "lines above" not in whole


def test_the_sequence_that_changed_last_has_room():
    watcher = Watcher(TOKENIZER, [canvas("___")] * 20, screen(height=12))
    for row in (3, 17, 0):
        watcher(state(f"x{chr(97 + row)}_", [0, 1], row=row))
    shown = "\n".join(frame(watcher))
    assert "xa" in shown and "xr" in shown and "and 18 more" in shown
    assert shown.index("xa") < shown.index("xr")  # still in their own order


def test_everything_is_left_on_the_screen():
    console = screen()
    words = " ".join(f"word{i}" for i in range(60))
    with Watcher(TOKENIZER, [canvas("_" * len(words))] * 4, console) as watcher:
        for row in range(4):
            watcher(state(words, list(range(len(words))), row=row, done=True))
        before = len(console.file.getvalue())  # type: ignore[attr-defined]
    last = console.file.getvalue()[before:]  # type: ignore[attr-defined]
    assert last.count("word0 ") == 4 and last.count("word59") == 4


def test_no_terminal_gets_the_end_only():
    console = screen(is_terminal=False)
    with Watcher(TOKENIZER, [canvas("____")], console) as watcher:
        watcher(state("ab__", [0, 1]))
        watcher(state("abcd", [2, 3], done=True))
    text = console.file.getvalue()  # type: ignore[attr-defined]
    assert text.count("╭") == 1 and "abcd" in text and "\x1b" not in text


def test_what_a_terminal_would_obey_is_only_shown():
    text = canvas_text(TOKENIZER, list(b"a\x1b[2J\r\x07\x7fb\n\tc"), set()).plain
    assert text == "a␛[2J␍␇␡b\n\tc"
    assert not re.search(r"[\x00-\x08\x0b-\x1f\x7f-\x9f]", canvas_text(TOKENIZER, range(MASK), set()).plain)
