"""Draw docs/images/unmasking.svg, the picture in the README: one story of tiny-en at four moments.

python docs/pictures.py
"""

from __future__ import annotations

import io
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

import unmask
from unmask.cli.terminal import canvas_text
from unmask.types import State

MOMENTS = (0.0, 0.35, 0.7, 1.0)  # fractions of the steps
OUT = Path(__file__).parent / "images" / "unmasking.svg"
PROMPT, TOKENS = "One day,", 64


def main(out: Path = OUT) -> None:
    """Sample once, the whole row at a time, and keep four of its states."""
    lm = unmask.load("tiny-en")
    states: list[State] = []
    how = {"length": TOKENS, "steps": TOKENS, "block": "full", "stop_at_eos": False}
    lm.write_samples(1, prompt=PROMPT, seed=0, watch=states.append, **how)
    mask = lm.tokenizer.vocab.mask
    frames = [(0, lm.prompt_canvas(PROMPT, TOKENS).ids, set())]
    frames += [(s.step + 1, s.canvas, set(s.positions.tolist())) for s in states]
    console = Console(record=True, width=92, file=io.StringIO())
    for moment in MOMENTS:
        step, canvas, fresh = frames[round(moment * (len(frames) - 1))]
        text = canvas_text(lm.tokenizer, canvas.tolist(), fresh)
        left = int((canvas == mask).sum())
        console.print(Panel(text, title=f"step {step} of {TOKENS}, {left} masks left"))
    out.parent.mkdir(exist_ok=True)
    command = f"unmask sample tiny-en --prompt '{PROMPT}' --length {TOKENS} --steps {TOKENS} --block full --watch"
    console.save_svg(str(out), title=command)


if __name__ == "__main__":
    main()
