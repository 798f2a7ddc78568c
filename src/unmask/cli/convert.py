"""`unmask convert`: a folder that travels."""

from __future__ import annotations

from typing import Annotated

import typer

from .shared import Json, Weights, out_console, print_json


def convert(
    source: Annotated[str, typer.Argument(help="A run, a folder, a .ckpt, .bin or .pt file, or a Hub id.")],
    out: Annotated[str, typer.Argument(metavar="DIR", help="The folder to write; nothing is overwritten.")],
    tokenizer: Annotated[str | None, typer.Option(help="For models without one: a folder, file or Hub name.")] = None,
    weights: Weights = "ema",
    to: Annotated[str, typer.Option(help="unmask (a folder that travels) or published (MDLM's layout).")] = "unmask",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")] = None,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="Give an encoder without a masked-LM head a fresh one, to be trained.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Make a folder that travels of a run, a published model or a Lightning checkpoint; nothing in it is executed."""
    from ..hub.convert import convert as run

    done = run(
        source, out, tokenizer=tokenizer, weights=weights, to=to, dtype=dtype, revision=revision, new_head=new_head
    )
    if as_json:
        print_json(done)
        return
    what = f"{done['method']}, {done['parameters']:,} weights ({done['weights']}), tokenizer {done['tokenizer']}"
    out_console.print(f"wrote {done['out']}: {what}", markup=False)
    if done["unsaid"]:
        lost = ", ".join(f"{name}={value}" for name, value in done["unsaid"].items())
        out_console.print(f"its config.json cannot say {lost}: readers, unmask too, take the paper's", markup=False)
