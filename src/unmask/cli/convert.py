"""`unmask convert`: models as portable folders."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UserError
from .shared import Json, TokenizerOf, Weights, out_console, print_json


def convert(
    source: Annotated[str, typer.Argument(help="A run, a folder, a .ckpt, .bin or .pt file, or a Hub id.")],
    out: Annotated[
        str, typer.Argument(metavar="DIR", help="The folder to write; an existing one is never overwritten.")
    ],
    tokenizer: TokenizerOf = None,
    length: Annotated[
        int | None,
        typer.Option(help="Tokens per row of a masked LM of others (default: its positions, at most 1024).", min=2),
    ] = None,
    weights: Weights = "ema",
    to: Annotated[
        str, typer.Option(help="unmask (a portable folder), published (MDLM's layout), adapter (LoRA).")
    ] = "unmask",
    dtype: Annotated[str, typer.Option(help="float32, float16 or bfloat16.")] = "float32",
    revision: Annotated[str | None, typer.Option(help="Branch, tag or commit of a Hub model.")] = None,
    new_head: Annotated[
        bool, typer.Option("--new-head", help="Add a new, untrained masked-LM head to an encoder that has none.")
    ] = False,
    ignore: Annotated[
        list[str] | None,
        typer.Option(help="Lightning: a setting (model.name) that does not change the network (may be repeated)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Convert a run, a published model or a Lightning checkpoint to a portable folder; no code in it is executed."""
    from ..hub.convert import convert as run
    from ..progress import progress_bar

    if not out.strip():
        raise UserError("DIR is empty; give the folder to write")
    with progress_bar("converting (read, then written)") as progress:
        done = run(
            source,
            out,
            tokenizer=tokenizer,
            length=length,
            weights=weights,
            to=to,
            dtype=dtype,
            revision=revision,
            new_head=new_head,
            ignore=ignore or [],
            progress=progress,
        )
    if as_json:
        print_json(done)
        return
    what = f"{done['method']}, {done['parameters']:,} weights ({done['weights']}), tokenizer {done['tokenizer']}"
    out_console.print(f"wrote {done['out']}: {what}", markup=False)
    if done["unsaid"]:
        lost = ", ".join(f"{name}={value}" for name, value in done["unsaid"].items())
        out_console.print(f"its config.json cannot say {lost}: readers, unmask too, take the paper's", markup=False)
