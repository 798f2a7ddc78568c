"""`unmask fill`: a loop in the terminal that fills the gaps in what is typed."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ..errors import UserError
from .shared import (
    Device,
    Exact,
    Model,
    Quantize,
    TokenizerOf,
    Weights,
    Which,
    With,
    err_console,
    json_text,
    lines_of,
    load_lm,
    read_settings,
)

PROMPT = "fill> "


def fill(
    ctx: typer.Context,
    model: Model,
    n: Annotated[int, typer.Option("-n", help="Samples per text.", min=1, max=64)] = 1,
    exact: Exact = False,
    more: With = None,
    as_lines: Annotated[bool, typer.Option("--jsonl", help="Print one JSON line per sample.")] = False,
    tokenizer: TokenizerOf = None,
    quantize: Quantize = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    **settings: Any,
) -> None:
    """Type a text with gaps, see it filled, again and again. Lines from a pipe work too; :help lists the commands."""
    from .fill_loop import FillLoop

    how = read_settings(ctx, more)
    lm = load_lm(model, which, weights, device, tokenizer, quantize=quantize)
    live = err_console if err_console.is_terminal else None
    loop = FillLoop(lm, model, how, n, live, exact=exact)
    loop.check()
    if loop.options.advice:
        err_console.print(loop.options.advice, markup=False)
    typed = sys.stdin.isatty()
    if typed:
        err_console.print(f"{model} fills gaps: {{{{3}}}} or ___ is one of 3 tokens. :help, :quit", markup=False)
    wrong = False
    for line in lines_of(typed, PROMPT, ":quit or Ctrl-D ends"):
        try:
            samples = loop.line(line, lambda text: err_console.print(text, markup=False))
        except UserError as error:
            wrong = True
            err_console.print("unmask:", *str(error).splitlines(), markup=False)
            continue
        except KeyboardInterrupt:  # this text only
            err_console.print("stopped", markup=False)
            continue
        if samples is None:
            break
        if as_lines or not (live and sys.stdout.isatty()):  # a terminal has already shown it
            _print(samples, as_lines)
    if wrong and not typed:
        raise typer.Exit(2)


def _print(samples: list[Any], as_lines: bool) -> None:
    for sample in samples:
        text = json_text(sample.as_dict(tokens=True)) if as_lines else sample.text
        sys.stdout.write(text + "\n")
    sys.stdout.flush()
