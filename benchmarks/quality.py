"""Which sampler writes the best text for its network calls? Perplexity under a judge and entropy, always together.

python benchmarks/quality.py tiny-en --scorer smollm2 --real data/text/tinystories/valid.txt --out runs/quality.json
python benchmarks/quality.py runs/quality.json --plot docs/images/quality.svg

Samples of every sampler at several budgets of network calls, at temperature 1, and the beginnings of real documents
beside them. A model that writes in blocks writes the whole row as one, but where a sampler's name says otherwise. A run
is continued where it stopped: cells that are in the file are not drawn again.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any

import torch

from recommend import measure, real
from unmask.files import write_text
from unmask.plot import Curve, Plot, svg
from unmask.reproduce.figures import Figure
from unmask.text_tables import markdown_table

BUDGETS = (8, 16, 32, 64, 128)
LENGTH = 128  # tokens a sample


def settings(calls: int, length: int = LENGTH, blocks: bool = False) -> dict[str, dict[str, Any]]:
    """Every sampler with settings that make about so many network calls a sequence of `length` tokens."""
    k = -(-length // calls)
    plans: dict[str, dict[str, Any]] = {
        "ancestral (plan)": {"sampler": "plan", "steps": calls},
        "left to right": {"sampler": "left-to-right", "k": k},
        "confidence": {"sampler": "confidence", "k": k},
        "entropy": {"sampler": "entropy", "k": k},
        "margin": {"sampler": "margin", "k": k},
        "remask cap": {"sampler": "remask-cap", "steps": calls, "eta": 0.02},
        "remask rescale": {"sampler": "remask-rescale", "steps": calls, "eta": 0.05},
        "remask loop": {"sampler": "remask-loop", "steps": calls, "eta": 0.02},
        "corrector": {"sampler": "corrector", "steps": max(1, calls // 2), "eta": 0.05},
    }
    if calls == length:
        plans["first hitting"] = {"sampler": "first-hitting"}
    if blocks:
        plans = {name: {**how, "block": "full"} for name, how in plans.items()}
        for size in (16, 4):
            if (steps := calls * size // length) >= 1:
                plans[f"blocks of {size}"] = {"sampler": "plan", "steps": steps, "block": size}
        if calls == length:
            plans["blocks of 1"] = {"sampler": "plan", "block": 1}
            plans["speculative"] = {"sampler": "speculative", "k": 16}
    return plans


def run(given: argparse.Namespace) -> None:
    """Draw and judge what is not in the file yet."""
    import unmask
    from unmask.evaluation.generative import open_judge
    from unmask.models.block_diffusion import BlockDiffusion

    lm = unmask.load(given.model)
    judge = open_judge(given.scorer, torch.device("cpu"), "cpu")
    found: dict[str, Any] = {"model": given.model, "scorer": given.scorer, "reference": None, "cells": []}
    if given.out.exists():
        found = json.loads(given.out.read_text())
    if found["reference"] is None:
        found["reference"] = _without(real(lm, judge, given.real, given.n, LENGTH), "scorer")
    done = {(cell["plan"], cell["budget"]) for cell in found["cells"]}
    for calls in BUDGETS:
        for plan, how in settings(calls, blocks=isinstance(lm.model, BlockDiffusion)).items():
            if (plan, calls) in done or (given.only and plan not in given.only.split(",")):
                continue
            figures = _without(measure(lm, judge, [""], given.n, LENGTH, how), "texts", "scorer")
            found["cells"].append({"plan": plan, "budget": calls, **figures})
            given.out.write_text(json.dumps(found, indent=1))
            print(row(found["cells"][-1]), file=sys.stderr, flush=True)


def _without(figures: dict[str, Any], *names: str) -> dict[str, Any]:
    return {key: value for key, value in figures.items() if key not in names}


def row(cell: dict[str, Any]) -> str:
    """One line of progress."""
    error = cell["stderr"]
    return (
        f"{cell['plan']:22s} {cell['network_calls_per_sample']:6.1f} calls  "
        f"gen-PPL {cell['gen_perplexity']:7.2f} ± {error['gen_perplexity']:5.2f}  "
        f"entropy {cell['entropy']:.3f} ± {error['entropy']:.3f}  repetition {cell['repetition_4']:.3f}"
    )


def table(found: dict[str, Any]) -> str:
    """Perplexity ± its error, entropy, and the calls where they are not about the budget."""
    cells = {(cell["plan"], cell["budget"]): cell for cell in found["cells"]}
    lines = [["", *(f"{calls} calls" for calls in BUDGETS)]]
    for plan in dict.fromkeys(plan for plan, _ in cells):
        lines.append([plan, *(shown(cells.get((plan, calls)), calls) for calls in BUDGETS)])
    return f"{markdown_table(lines)}\n\nReal text (the beginnings of documents): {shown(found['reference'], 0)}."


def shown(cell: dict[str, Any] | None, calls: int) -> str:
    """A cell of the table."""
    if cell is None:
        return ""
    figure, made = (
        Figure(cell["gen_perplexity"], cell["stderr"]["gen_perplexity"]),
        cell.get("network_calls_per_sample"),
    )
    other = f" ({made:.0f})" if made is not None and abs(made - calls) > calls / 8 else ""
    return f"{figure}, {cell['entropy']:.2f}{other}"


def plots(found: dict[str, Any], stem: str) -> list[Plot]:
    """Perplexity under the judge over network calls, and entropy."""
    ends = [float(BUDGETS[0]), float(BUDGETS[-1])]
    drawn = []
    for name, words, file in (
        ("gen_perplexity", "perplexity under the judge", stem),
        ("entropy", "entropy of a sample, nats", f"{stem}-entropy"),
    ):
        curves = []
        for plan in dict.fromkeys(cell["plan"] for cell in found["cells"]):
            cells = [cell for cell in found["cells"] if cell["plan"] == plan]
            cells.sort(key=lambda cell: cell["network_calls_per_sample"])
            calls = [cell["network_calls_per_sample"] for cell in cells]
            errors = [cell["stderr"][name] for cell in cells]
            curves.append(Curve(plan, calls, [cell[name] for cell in cells], errors))
        curves.append(Curve("real text", ends, [found["reference"][name]] * 2))
        labels = (f"{words.capitalize()}, over network calls", "network calls a sequence", words)
        drawn.append(Plot(file, *labels, curves, log_x=True, log_y=name != "entropy"))
    return drawn


def main() -> None:
    """Parse and go."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a run, or with --plot the file of a finished measurement")
    parser.add_argument("--scorer", default="smollm2")
    parser.add_argument("--real", action="append", default=[], help="a text file, <|endoftext|> between documents")
    parser.add_argument("--out", type=Path, default=Path("runs/quality.json"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--only", default="", help="plans to draw, with commas between (default: all)")
    parser.add_argument("-n", type=int, default=64)
    given = parser.parse_args()
    if given.plot:
        for drawn in plots(json.loads(Path(given.model).read_text()), given.plot.stem):
            write_text(given.plot.with_stem(drawn.name), svg(drawn))
    else:
        if not given.real:
            parser.error("give a file of real text to compare with: --real FILE")
        run(given)
    print(table(json.loads((Path(given.model) if given.plot else given.out).read_text())))


if __name__ == "__main__":
    main()
