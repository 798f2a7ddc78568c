"""Draw docs/images/unmasking.svg, the picture in the README: one sample of a trained model at four moments.

python docs/pictures.py runs/demo
"""

from __future__ import annotations

import io
import sys
from pathlib import Path

from rich.console import Console
from rich.panel import Panel

import unmask
from unmask.cli.terminal import canvas_text
from unmask.types import State

MOMENTS = (0.0, 0.35, 0.7, 1.0)  # fractions of the written tokens


def main(model: str, out: Path = Path(__file__).parent / "images" / "unmasking.svg") -> None:
    """Sample once and keep four of its states."""
    lm = unmask.load(model)
    states: list[State] = []
    lm.write_samples(1, length=64, steps=64, seed=0, temperature=0.5, watch=states.append)
    mask = lm.tokenizer.vocab.mask
    frames = [(0, states[0].canvas.clone().fill_(mask), set())]
    frames += [(s.step + 1, s.canvas, set(s.positions.tolist())) for s in states]
    console = Console(record=True, width=92, file=io.StringIO())
    for moment in MOMENTS:
        step, canvas, fresh = frames[round(moment * (len(frames) - 1))]
        text = canvas_text(lm.tokenizer, canvas.tolist(), fresh)
        left = int((canvas == mask).sum())
        console.print(Panel(text, title=f"step {step} of 64, {left} masks left"))
    out.parent.mkdir(exist_ok=True)
    console.save_svg(str(out), title=f"unmask sample {model} --length 64 --steps 64 --temperature 0.5 --watch")


if __name__ == "__main__":
    main(sys.argv[1] if len(sys.argv) > 1 else "runs/demo")
