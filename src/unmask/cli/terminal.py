"""Masks that become words, in a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set

from rich.console import Console, ConsoleOptions, Group, RenderResult
from rich.live import Live
from rich.panel import Panel
from rich.text import Text
from torch import Tensor

from ..data.tokenization import Tokenizer
from ..pieces import characters
from ..progress import CONTROLS
from ..types import State

FRAME = 0.06  # seconds: a state stays on the screen at least this long
FEWEST = 3  # lines of text: a canvas gets at least this many


class Watcher:
    """Canvases on a terminal: grey blocks are masks, green is what was just written, white what was there.

    Where a text is written block after block, the masks of the current block are blue.
    A canvas that is longer than the screen shows its last lines, and canvases that do not fit are counted; at the end
    everything is shown, or (`passing`) nothing is left on the screen. What stands before `begin` is not shown.
    """

    def __init__(
        self,
        tokenizer: Tokenizer,
        canvases: Sequence[Tensor],
        console: Console | None = None,
        begin: int = 0,
        passing: bool = False,
    ) -> None:
        self.tokenizer, self.mask, self.begin = tokenizer, tokenizer.vocab.mask, begin
        self.texts = [canvas_text(tokenizer, canvas[begin:].tolist(), set()) for canvas in canvases]
        self.titles = [f"{int((canvas == self.mask).sum())} masks to write" for canvas in canvases]
        self.latest = list(range(len(canvases)))  # rows, the one that changed last at the end
        self.console = console or Console(stderr=True)
        self.live = Live(self.render(), console=self.console, auto_refresh=False, transient=passing)

    def __enter__(self) -> Watcher:
        self.live.start(refresh=True)  # all masks, however fast the model is
        return self

    def __exit__(self, *error: object) -> None:
        self.live.update(self.render(whole=True))
        self.live.stop()

    def __call__(self, state: State) -> None:
        """Show a state of the generation."""
        ids = state.canvas[self.begin :].tolist()
        written = (state.positions - self.begin).tolist()
        fresh = {position for position in written if ids[position] != self.mask}
        part = (state.block[0] - self.begin, state.block[1] - self.begin) if state.block else None
        self.texts[state.row] = canvas_text(self.tokenizer, ids, set() if state.done else fresh, part)
        left = ids.count(self.mask)
        block = f"block {max(0, part[0]) + 1}–{part[1]}, " if part else ""
        title = f"step {state.step + 1}, t = {state.t:.3f}, {block}{state.calls} calls, {left} masks left"
        self.titles[state.row] = title
        self.latest.remove(state.row)
        self.latest.append(state.row)
        self.live.update(self.render(), refresh=True)
        if self.console.is_terminal:  # a small model writes faster than anyone can read
            time.sleep(FRAME / len(self.texts))

    def render(self, whole: bool = False) -> Group:
        """The canvases as panels: those that fit on the screen, or all of them in full."""
        if whole:
            return Group(*(Panel(text, title=title) for text, title in zip(self.texts, self.titles, strict=True)))
        room = self.console.height - 1  # one line for those that do not fit
        rows = sorted(self.latest[-max(1, room // (FEWEST + 2)) :])
        lines = max(1, room // max(1, len(rows)) - 2)
        panels = [Panel(Tail(self.texts[row], lines), title=self.titles[row]) for row in rows]
        missing = len(self.texts) - len(rows)
        return Group(*panels, *([Text(f"and {missing} more", style="grey50")] if missing else []))


class Tail:
    """The last lines of a text as it wraps on this console."""

    def __init__(self, text: Text, lines: int) -> None:
        self.text, self.lines = text, lines

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        lines = list(self.text.wrap(console, options.max_width, tab_size=8))
        if len(lines) > self.lines:
            hidden = len(lines) - max(1, self.lines - 1)  # a line says how many are above
            if self.lines > 1:
                yield Text(f"... {hidden} lines above", style="grey50")
            lines = lines[hidden:]
        yield from lines


def canvas_text(
    tokenizer: Tokenizer, ids: Sequence[int], fresh: Set[int], block: tuple[int, int] | None = None
) -> Text:
    """A canvas as coloured text; `fresh` are the positions that were just written, `block` is [start, end)."""
    text, mask, start = Text(), tokenizer.vocab.mask, 0
    alone = [None if token == mask else piece for token, piece in zip(ids, tokenizer.pieces(ids), strict=True)]
    new: dict[int, bool] = {}  # by the token that shows a character: whether one of its bytes is new
    shown = characters(alone)
    for position, piece in enumerate(shown):
        start = position if piece or alone[position] is None else start
        new[start] = new.get(start, False) or position in fresh
    for position, piece in enumerate(shown):
        if alone[position] is None:
            text.append("░░ ", style="blue" if block and block[0] <= position < block[1] else "grey50")
        elif piece:
            text.append(piece.translate(CONTROLS), style="bold green" if new[position] else "")
    return text
