"""How much less does our recipe need than the paper's for the same likelihood? Tokens and CPU seconds, in one run.

The paper's recipe of the study `unmask reproduce learning` is trained for all tokens; then the recipe with all parts
for growing shares of them, each a complete training with its own decay, until one is as good. Judge: the bound without
a raised cut-off, on the same validation rows. Seconds are processor time of training steps and of the counts before.

    python benchmarks/learning.py --data FOLDER [--tokens 2048000] [--shares 0.05 0.08 0.12 0.2 0.35] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from pathlib import Path
from typing import Any

from unmask.data.pack import prepare
from unmask.evaluation.likelihood import evaluate
from unmask.hub.resolve import load
from unmask.reproduce.learning_models import (
    DRAWS,
    SIZES,
    WHOLE,
    StudySizes,
    forward_tokens,
    study_config,
    training_seconds,
    under_whole_bound,
)
from unmask.text_tables import terminal_table
from unmask.training.text import train


def trained(recipe: str, tokens: int, sizes: StudySizes, given: argparse.Namespace, folder: Path) -> dict[str, Any]:
    """Train a recipe with a budget: its tokens, seconds, and nats a token of the validation split."""
    config = study_config(recipe, sizes, given.data, tokens, given.lr, given.seed)
    out = folder / f"{recipe}-{tokens}"
    train(config, out, quiet=given.json)
    model = under_whole_bound(load(out).model)
    rows = prepare(config.data).split("valid")
    score = evaluate(model, rows, draws=DRAWS, batch_size=64, limit=sizes.rows, estimator=WHOLE)
    return {
        "recipe": recipe,
        "tokens": forward_tokens(config),
        "seconds": training_seconds(out),
        "nats": score.nats_per_token,
        "rows": score.protocol["rows"],
    }


def lines(paper: dict[str, Any], runs: list[dict[str, Any]]) -> list[str]:
    """A row for each training, with its ratios to the paper's recipe."""
    cells = [["", "tokens", "CPU seconds", "nats/token", "times fewer tokens", "times fewer seconds"]]
    for run in (paper, *runs):
        ratios = [f"{paper[key] / run[key]:.1f}" for key in ("tokens", "seconds")]
        cells.append([run["recipe"], f"{run['tokens']:,}", f"{run['seconds']:.1f}", f"{run['nats']:.3f}", *ratios])
    return terminal_table(cells)


def main() -> None:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, help="a folder with train and valid, or another text")
    parser.add_argument("--tokens", type=int, default=2_048_000, help="of the paper's recipe")
    parser.add_argument(
        "--shares", type=float, nargs="+", default=[0.05, 0.08, 0.12, 0.2, 0.35], help="of these tokens"
    )
    parser.add_argument("--scale", choices=list(SIZES), default="small")
    parser.add_argument("--lr", type=float, default=7e-4, help="of the paper's recipe")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    sizes = SIZES[given.scale]
    with tempfile.TemporaryDirectory(prefix="unmask-learning-") as folder:
        paper, runs = trained("paper", given.tokens, sizes, given, Path(folder)), []
        for share in sorted(given.shares):
            runs.append(trained("all", round(share * given.tokens), sizes, given, Path(folder)))
            if runs[-1]["nats"] <= paper["nats"]:
                break
    if given.json:
        print(json.dumps({"paper": paper, "all": runs, "reached": runs[-1]["nats"] <= paper["nats"]}, indent=1))
        return
    print("\n".join(lines(paper, runs)))
    if runs[-1]["nats"] > paper["nats"]:
        print(f"not reached with {max(given.shares):.0%} of the tokens; give larger --shares")


if __name__ == "__main__":
    main()
