"""How many entries should a vocabulary have, and which text helps? Bits per byte after as many bytes of text.

The recipe with all parts of `unmask reproduce learning` is trained on each text with each size of BPE, every one for
the same bytes of text with a decay to its own end. Judge: the bound without a raised cut-off, on the whole validation
split of each text; texts that share their validation file compare. Seconds are processor time of the steps.

    python benchmarks/vocabulary.py --data FOLDER [FOLDER ...] [--sizes 2048 4096 8192] [--megabytes 4] [--json]
"""

from __future__ import annotations

import argparse
import json
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import Any

from unmask.config import Config
from unmask.data.pack import prepare
from unmask.evaluation.likelihood import evaluate
from unmask.hub.resolve import load
from unmask.reproduce.learning_models import (
    DRAWS,
    SIZES,
    WHOLE,
    forward_tokens,
    study_config,
    training_seconds,
    under_whole_bound,
)
from unmask.text_tables import terminal_table
from unmask.training.text import train


def trained(source: str, size: int, given: argparse.Namespace, out: Path) -> dict[str, Any]:
    """Train with a vocabulary for so many bytes: bits per byte of the validation split, with the error over texts."""
    sizes = replace(SIZES[given.scale], vocab_size=size)

    def config_for(tokens: int) -> Config:
        return study_config("all", sizes, source, tokens, sizes.rates[0], given.seed)  # the recipe has its own rate

    data = prepare(config_for(1).data)
    per_token = data.split("train").bytes_per_token
    config = config_for(round(given.megabytes * 1e6 / per_token))
    train(config, out, quiet=given.json)
    model = under_whole_bound(load(out).model)
    score = evaluate(model, data.split("valid"), draws=DRAWS, batch_size=64, estimator=WHOLE).as_dict()
    return {
        "text": source,
        "entries": size,
        "weights": sum(weight.numel() for weight in model.parameters()),
        "bytes_per_token": per_token,
        "tokens": forward_tokens(config),
        "seconds": training_seconds(out),
        "bits_per_byte": score["bits_per_byte"],
        "error": score["bits_per_byte"] * score["stderr_data"] / score["nats_per_token"],
    }


def lines(runs: list[dict[str, Any]]) -> list[str]:
    """A row for each training."""
    cells = [["text", "entries", "weights", "bytes a token", "tokens", "CPU seconds", "bits per byte"]]
    for run in runs:
        sizes = [f"{run['entries']:,}", f"{run['weights']:,}", f"{run['bytes_per_token']:.2f}", f"{run['tokens']:,}"]
        bits = f"≤ {run['bits_per_byte']:.3f} ± {run['error']:.3f}"
        cells.append([Path(run["text"]).name, *sizes, f"{run['seconds']:.0f}", bits])
    return terminal_table(cells)


def main(argv: list[str] | None = None) -> None:
    """Train, compare, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", required=True, nargs="+", help="folders with train and valid, or other texts")
    parser.add_argument("--sizes", type=int, nargs="+", default=[2048, 4096, 8192], help="entries of the vocabulary")
    parser.add_argument("--megabytes", type=float, default=4.0, help="of text that each training sees")
    parser.add_argument("--scale", choices=list(SIZES), default="small", help="the network, as in the study learning")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(argv)
    with tempfile.TemporaryDirectory(prefix="unmask-vocabulary-") as folder:
        runs = [
            trained(source, size, given, Path(folder) / f"{number}-{size}")
            for number, source in enumerate(given.data)
            for size in given.sizes
        ]
    print(json.dumps(runs, indent=1) if given.json else "\n".join(lines(runs)))


if __name__ == "__main__":
    main()
