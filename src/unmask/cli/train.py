"""`unmask train`: a new run, or one that is continued."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .shared import (
    Json,
    Minutes,
    Overrides,
    RunFolder,
    exit_code,
    figures_line,
    is_main,
    out_console,
    print_json,
    run_tree,
    with_minutes,
)

if TYPE_CHECKING:
    from ..config import Config
    from ..training.text import TrainResult


TINY = (
    "tiny only shows that the path works, in seconds: what it writes is not yet English; "
    "for that, train small (half an hour) or overnight (eight hours)"
)


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe or a YAML file. Recipes: tiny (seconds; it only shows that the path works), small "
            "(half an hour), overnight (eight hours), demo, lm1b, owt, text8, mosaicbert, mosaicbert-causal, dna-tiny, "
            "dna-caduceus, dna-mdlm, dna-mamba, dna-hyena."
        ),
    ],
    overrides: Overrides = None,
    minutes: Minutes = None,
    out: RunFolder = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings and exit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model, or continue a run."""
    from ..recipes import with_overrides

    out = out or f"runs/{Path(recipe).stem}"
    config = with_overrides(recipe, with_minutes(overrides, minutes), out)
    if print_config:
        sys.stdout.write(config.to_yaml())
        return
    remark = TINY if recipe == "tiny" else ""
    result = run(config, out, quiet=quiet, remark=remark)
    if not is_main():
        return
    valid = result.valid.as_dict() if result.valid else None
    if as_json:
        print_json(run_tree(result, valid=valid))
    elif result.finished:
        early = " (stopped early)" if result.stopped_early else ""
        out_console.print(f"trained {result.step} steps{early} into {result.out}", markup=False)
        if valid:
            out_console.print(figures_line(valid), markup=False)
        judged = "" if valid else " --generative"
        out_console.print(f"next: unmask sample {result.out} -n 4    unmask eval {result.out}{judged}", markup=False)
    if not result.finished:
        raise typer.Exit(exit_code())


def run(config: Config, out: str, *, quiet: bool = False, remark: str = "") -> TrainResult:
    """Train or continue a run; with train.start a new run begins with the weights of that model."""
    from ..hub import checkpoint
    from ..hub.resolve import load
    from ..training.text import train as train_text

    start = None
    if config.train.start is not None and not checkpoint.steps(Path(out)):
        start = load(config.train.start)
    return train_text(config, out, quiet=quiet, start=start, remark=remark)
