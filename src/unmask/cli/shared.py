"""What the commands share: consoles, kinds of options, what they print, what they refuse."""

from __future__ import annotations

import math
import os
import sys
from collections.abc import Iterable
from typing import Annotated, Any

import typer
from rich.console import Console

from ..errors import UserError
from ..jsonable import to_json

out_console = Console(highlight=False, soft_wrap=True, emoji=False)
err_console = Console(stderr=True, highlight=False, soft_wrap=True, emoji=False)

Overrides = Annotated[list[str] | None, typer.Argument(help="Settings as key=value, for example train.steps=100.")]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document on standard output and nothing else.")]
Device = Annotated[str, typer.Option(help="auto, cpu, cuda, cuda:1, ...")]
Model = Annotated[str, typer.Argument(help="A run, a folder, a built-in model (tiny-en) or a Hub id.")]
Weights = Annotated[str, typer.Option(help="ema (the average) or raw.")]
Which = Annotated[str, typer.Option(help="last or best checkpoint of a run.")]
With = Annotated[
    list[str] | None,
    typer.Option("--with", help="Any other setting of the sampler, as projection=greedy (may be repeated)."),
]


def print_json(value: Any) -> None:
    """One JSON document on standard output."""
    sys.stdout.write(to_json(value, indent=1) + "\n")


def print_lines(lines: Iterable[str]) -> None:
    """Lines on standard output, as they are."""
    for line in lines:
        out_console.print(line, markup=False)


def is_main() -> bool:
    """Whether this is the process that prints, of those that torchrun started."""
    return os.environ.get("RANK", "0") == "0"


def figures_line(figures: dict[str, Any]) -> str:
    """The figures of a likelihood in one line."""
    error = figures["stderr_nats"]
    ppl = figures["perplexity"]
    error, data = (error, figures["stderr_data"]) if math.isfinite(ppl) else (None, None)
    bar = "" if error is None else f" ± {ppl * error:.2f} (Monte Carlo)"
    bar += "" if data is None else f" ± {ppl * data:.2f} (over texts)"
    per_byte = figures["bits_per_byte"]
    tail = "" if per_byte is None else f", {per_byte:.3f} bits/byte"
    return f"perplexity {ppl:.2f}{bar}, {figures['bits_per_token']:.3f} bits/token{tail}, {figures['tokens']:,} tokens"


def refuse(ctx: typer.Context, names: Iterable[str], why: str) -> None:
    """One sentence if an option was given that would change nothing."""
    for name in names:
        if getattr(ctx.get_parameter_source(name), "name", "") == "COMMANDLINE":
            option = {"n": "-n", "k": "-k", "more": "--with"}.get(name, f"--{name.replace('_', '-')}")
            raise UserError(f"{option} {why}")


def settings(given: list[str] | None, options: Iterable[str]) -> dict[str, Any]:
    """What `--with` says, of settings that are no options of the command."""
    import yaml

    from ..config import nearest
    from ..sampling.params import KINDS

    found: dict[str, Any] = {}
    for text in given or []:
        name, sep, value = text.partition("=")
        if not sep:
            raise UserError(f"--with {text} must be a setting and its value, for example projection=greedy")
        if name not in KINDS:
            raise UserError(f"--with {text}: a sampler has no setting {name!r}{nearest(name, KINDS)}")
        if name in options or name in found:
            fix = "give it once" if name in found else f"give {'-k' if name == 'k' else '--' + name.replace('_', '-')}"
            raise UserError(f"--with {text}: {name} {'is set twice' if name in found else 'is an option'}; {fix}")
        try:
            found[name] = yaml.safe_load(value)
        except yaml.YAMLError:
            found[name] = value
    return found


def integers(text: str | None) -> tuple[int, ...] | None:
    """The numbers of `--order`."""
    if text is None:
        return None
    try:
        return tuple(int(part) for part in text.split(","))
    except ValueError:
        raise UserError(f"--order {text} must be whole numbers with commas between, for example 2,0,1") from None
