"""`unmask train`: a new run, or one that is continued."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from .shared import Json, Overrides, figures_line, is_main, out_console, print_json, run_tree

if TYPE_CHECKING:
    from ..config import Config
    from ..training.text import TrainResult


def train(
    recipe: Annotated[
        str,
        typer.Argument(
            help="A recipe (demo, tiny, lm1b, owt, text8, mosaicbert, mosaicbert-causal, dna-tiny, dna-caduceus, "
            "dna-mdlm, dna-mamba, dna-hyena) or a YAML file."
        ),
    ],
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; an existing run is continued.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Print the settings and exit.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model, or continue a run."""
    from ..recipes import recipe as get_recipe

    config = get_recipe(recipe).override(overrides or [])
    if print_config:
        sys.stdout.write(config.to_yaml())
        return
    result = run(config, out or f"runs/{Path(recipe).stem}", quiet=quiet)
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
        raise typer.Exit(130)


def run(config: Config, out: str, *, quiet: bool = False) -> TrainResult:
    """Train or continue a run; with train.start a new run begins with the weights of that model."""
    from ..hub import checkpoint
    from ..hub.resolve import load
    from ..training.text import train as train_text

    start = None
    if config.train.start is not None and not checkpoint.steps(Path(out)):
        start = load(config.train.start)
    return train_text(config, out, quiet=quiet, start=start)
