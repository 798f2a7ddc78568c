"""Masks that become words, in a terminal."""

from __future__ import annotations

import time
from collections.abc import Sequence, Set

from rich.console import Console, Group
from rich.live import Live
from rich.panel import Panel
from rich.text import Text
from torch import Tensor

from .data.tokenizers import Tokenizer
from .types import State

FRAME = 0.06  # seconds a state stays on the screen at least


class Watcher:
    """Canvases on a terminal: grey blocks are masks, green is what was just written, white what stands."""

    def __init__(self, tokenizer: Tokenizer, canvases: Sequence[Tensor], console: Console | None = None) -> None:
        self.tokenizer, self.mask = tokenizer, tokenizer.vocab.mask
        self.canvases = [canvas.clone() for canvas in canvases]
        self.fresh: list[set[int]] = [set() for _ in canvases]
        self.titles = ["all masked"] * len(canvases)
        self.console = console or Console(stderr=True)
        self.live = Live(self.render(), console=self.console, refresh_per_second=20)

    def __enter__(self) -> Watcher:
        self.live.start(refresh=True)  # all masks, however fast the model is
        return self

    def __exit__(self, *error: object) -> None:
        self.live.stop()

    def __call__(self, state: State) -> None:
        """Take a state of the generation."""
        self.canvases[state.row] = state.canvas
        self.fresh[state.row] = set() if state.done else set(state.positions.tolist())
        left = int((state.canvas == self.mask).sum())
        self.titles[state.row] = f"step {state.step + 1}, t = {state.t:.3f}, {state.calls} calls, {left} masks left"
        self.live.update(self.render(), refresh=True)
        if self.console.is_terminal:  # a small model writes faster than anybody reads
            time.sleep(FRAME / len(self.canvases))

    def render(self) -> Group:
        """All canvases as panels."""
        shown = zip(self.canvases, self.fresh, self.titles, strict=True)
        return Group(*(Panel(canvas_text(self.tokenizer, ids.tolist(), new), title=title) for ids, new, title in shown))


def canvas_text(tokenizer: Tokenizer, ids: Sequence[int], fresh: Set[int]) -> Text:
    """A canvas as coloured text; `fresh` are the positions that were just written."""
    text = Text()
    for position, (token, piece) in enumerate(zip(ids, tokenizer.pieces(ids), strict=True)):
        if token == tokenizer.vocab.mask:
            text.append("░░ ", style="grey50")
        else:
            text.append(piece, style="bold green" if position in fresh else "")
    return text
