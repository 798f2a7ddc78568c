"""The command line: parse, call, print. Figures go to standard output, everything else to standard error."""

from __future__ import annotations

import io
import json
import os
import sys
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.console import Console

from .errors import UserError

app = typer.Typer(
    name="unmask",
    help="Masked diffusion language models: train, evaluate, sample, infill.",
    no_args_is_help=True,
    pretty_exceptions_enable=False,
    add_completion=False,
)
out_console = Console(highlight=False, soft_wrap=True, emoji=False)
err_console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as key=value, for example train.steps=100.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Model = Annotated[str, typer.Argument(help="Folder of a run or of a checkpoint.")]
Weights = Annotated[str, typer.Option(help="ema (the average) or raw.")]
Which = Annotated[str, typer.Option(help="last or best checkpoint of a run.")]


def _print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, indent=1, allow_nan=False) + "\n")


@app.command()
def train(
    recipe: Annotated[str, typer.Argument(help="A recipe (demo, tiny, lm1b, owt, text8) or a YAML file.")],
    overrides: Overrides = None,
    out: Annotated[str | None, typer.Option(help="Folder of the run; a run in it is continued.")] = None,
    print_config: Annotated[bool, typer.Option("--print-config", help="Show the settings and stop.")] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Train a model, or continue a run."""
    from .recipes import recipe as get_recipe

    config = get_recipe(recipe).override(overrides or [])
    if print_config:
        sys.stdout.write(config.to_yaml())
        return
    from .train import train as run

    result = run(config, out or f"runs/{Path(recipe).stem}", quiet=quiet)
    if os.environ.get("RANK", "0") != "0":
        return
    valid = result.valid.as_dict() if result.valid else None
    if as_json:
        _print_json(
            {"out": str(result.out), "step": result.step, "finished": result.finished, "valid": valid,
             "seconds": result.seconds, "tokens_per_second": result.tokens_per_second}
        )  # fmt: skip
    elif result.finished:
        out_console.print(f"trained {result.step} steps into {result.out}", markup=False)
        if valid:
            out_console.print(figures_line(valid), markup=False)
        out_console.print(f"next: unmask sample {result.out} -n 4    unmask eval {result.out}", markup=False)
    if not result.finished:
        raise typer.Exit(130)


def figures_line(figures: dict[str, Any]) -> str:
    """The figures of a likelihood in one line."""
    error = figures["stderr_nats"]
    ppl = figures["perplexity"]
    bar = "" if error is None else f" ± {ppl * error:.2f} (Monte Carlo)"
    data = figures["stderr_data"]
    bar += "" if data is None else f" ± {ppl * data:.2f} (over texts)"
    per_byte = figures["bits_per_byte"]
    tail = "" if per_byte is None else f", {per_byte:.3f} bits/byte"
    return f"perplexity {ppl:.2f}{bar}, {figures['bits_per_token']:.3f} bits/token{tail}, {figures['tokens']:,} tokens"


@app.command("eval")
def evaluate(
    model: Model,
    data: Annotated[
        str | None, typer.Option(help="Data set: a name, a file or a folder (default: the model's).")
    ] = None,
    split: Annotated[str, typer.Option(help="train, valid, test, or all (the whole of a file).")] = "valid",
    bound: Annotated[str | None, typer.Option(help="continuous or discrete (default: the model's).")] = None,
    steps: Annotated[int | None, typer.Option(help="T of the discrete bound.")] = None,
    draws: Annotated[int, typer.Option(help="Independent Monte Carlo draws; 2 or more give an error bar.")] = 4,
    schedule: Annotated[str | None, typer.Option(help="Noise schedule (default: the model's).")] = None,
    batch_size: Annotated[int, typer.Option(help="Rows a network call; it does not change the result.")] = 32,
    rows: Annotated[int | None, typer.Option(help="At most this many rows, evenly spaced.")] = None,
    seed: Annotated[int, typer.Option(help="Seed of times and masks.")] = 0,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Perplexity (an upper bound) of a model on a data set, with its standard errors and protocol."""
    from .commands import evaluate_model

    likelihood = evaluate_model(
        model, data=data, split=split, bound=bound, steps=steps, draws=draws, schedule=schedule,
        batch_size=batch_size, rows=rows, seed=seed, which=which, weights=weights, device=device,
    )  # fmt: skip
    if os.environ.get("RANK", "0") != "0":
        return
    figures = likelihood.as_dict()
    if as_json:
        _print_json(figures)
        return
    out_console.print(figures_line(figures), markup=False)
    for name, value in figures["protocol"].items():
        out_console.print(f"  {name}: {value}", markup=False)


@app.command()
def sample(
    model: Model,
    n: Annotated[int, typer.Option("-n", help="How many.")] = 1,
    length: Annotated[int | None, typer.Option(help="Tokens (default: the model's length).")] = None,
    steps: Annotated[int, typer.Option(help="T, the number of denoising steps.")] = 128,
    seed: Annotated[int, typer.Option(help="Sample i has seed + i.")] = 0,
    prompt: Annotated[str | None, typer.Option(help="Text that every sample begins with.")] = None,
    infill: Annotated[str | None, typer.Option(help="Text with gaps: {{3}} is a gap of 3 tokens.")] = None,
    temperature: Annotated[float, typer.Option(help="0 takes the most likely token.")] = 1.0,
    top_k: Annotated[int | None, typer.Option(help="Only the k most likely tokens.")] = None,
    top_p: Annotated[float | None, typer.Option(help="Only the most likely tokens that hold this much.")] = None,
    sampler: Annotated[str, typer.Option(help="plan (fast) or ancestral (textbook); the law is the same.")] = "plan",
    batch_size: Annotated[int, typer.Option(help="Sequences a network call.")] = 16,
    watch: Annotated[bool, typer.Option("--watch", help="Show the masks become words.")] = False,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Write text: from nothing, after a prompt, or into gaps."""
    from .commands import write_samples

    if prompt is not None and infill is not None:
        raise UserError("give either --prompt or --infill; a prompt is a text with a gap at its end")
    if infill is not None and length is not None:
        raise UserError("--length does not go with --infill; the text and its gaps say how long it is")
    samples, protocol = write_samples(
        model, n=n, length=length, prompt=prompt, infill=infill, watch=watch, which=which, weights=weights,
        device=device,
        how={"steps": steps, "seed": seed, "temperature": temperature, "top_k": top_k, "top_p": top_p,
             "sampler": sampler, "batch_size": batch_size},
    )  # fmt: skip
    if as_json:
        shown = [{"text": s.text, "ids": s.ids, "seed": s.seed, "network_calls": s.network_calls} for s in samples]
        _print_json({"samples": shown, "protocol": protocol})
        return
    for s in samples:
        if len(samples) > 1:
            err_console.print(f"[dim]-- seed {s.seed}, {s.network_calls} network calls[/dim]")
        sys.stdout.write(s.text + "\n")


@app.command()
def demo(
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="Folder of the run.")] = "runs/demo",
) -> None:
    """Train the demo model on Python's documentation, and show what it can do."""
    from .demo import run

    run(out, overrides or [])


@app.callback(invoke_without_command=True)
def _version(version: Annotated[bool, typer.Option("--version", help="Print the version.")] = False) -> None:
    if version:
        from .version import __version__

        sys.stdout.write(f"unmask {__version__}\n")
        raise typer.Exit


def main() -> None:
    """Run; what the user got wrong is one sentence and exit code 2."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):  # where a character cannot be shown its number is
            stream.reconfigure(errors="backslashreplace")
    try:
        app()
    except UserError as error:
        err_console.print("unmask:", *str(error).splitlines(), markup=False)
        sys.exit(2)
    except OSError as error:  # a full disk, a file that may not be read: the system's own words
        err_console.print(f"unmask: {error.filename or 'input/output'}: {error.strerror or error}", markup=False)
        sys.exit(2)
