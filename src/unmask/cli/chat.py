"""`unmask chat`: a conversation in the terminal, or with the lines of a pipe."""

from __future__ import annotations

import sys
from typing import Annotated, Any

import typer

from ..errors import UserError
from .sample import sample_protocol
from .shared import (
    Context,
    Device,
    Exact,
    Json,
    Model,
    Quantize,
    Template,
    TokenizerOf,
    Weights,
    Which,
    With,
    err_console,
    lines_of,
    load_lm,
    print_json,
    read_settings,
    with_template,
)

PROMPT = "> "


def chat(
    ctx: typer.Context,
    model: Model,
    system: Annotated[str | None, typer.Option(help="What the conversation begins with, for the model alone.")] = None,
    template: Template = None,
    max_tokens: Annotated[
        int | None, typer.Option(help="Tokens of an answer (default: 128, or as many as the model has room for).")
    ] = None,
    context: Context = None,
    exact: Exact = False,
    more: With = None,
    tokenizer: TokenizerOf = None,
    quantize: Quantize = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
    **settings: Any,
) -> None:
    """Talk to a model and watch its answers appear. Lines from a pipe work too; /help lists the commands."""
    from .chat_loop import ChatLoop

    how = read_settings(ctx, more)
    lm = with_template(load_lm(model, which, weights, device, tokenizer, quantize, context), template)
    live = err_console if err_console.is_terminal else None
    loop = ChatLoop(lm, how, system, max_tokens, live, exact)
    loop.check()
    if loop.options.advice:
        err_console.print(loop.options.advice, markup=False)
    typed, wrong = sys.stdin.isatty(), False
    if typed:
        err_console.print(f"{model} answers; Ctrl-C stops an answer. /help, /quit", markup=False)
    for line in lines_of(typed, PROMPT, "/quit or Ctrl-D ends"):
        try:
            answers = loop.line(line, lambda text: err_console.print(text, markup=False))
        except UserError as error:
            wrong = True
            err_console.print("unmask:", *str(error).splitlines(), markup=False)
            continue
        except KeyboardInterrupt:  # this answer only
            err_console.print("stopped; your message is forgotten", markup=False)
            continue
        if answers is None:
            break
        for answer in answers:
            if not as_json:
                sys.stdout.write(answer.text + "\n")
                sys.stdout.flush()
            elif live is not None:
                live.print(answer.text, markup=False)
    if as_json:
        print_json(loop.document(sample_protocol(lm, model, which, weights)))
    if wrong and not typed:
        raise typer.Exit(2)
