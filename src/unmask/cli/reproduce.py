"""`unmask reproduce`: the tables of the paper."""

from __future__ import annotations

from typing import Annotated

import typer

from ..jsonable import described
from .shared import Json, err_console, out_console, print_json, print_lines


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="A table of the paper, such as ablation, lm, caching, zero-shot, bert or dna; an unknown name is "
            "answered with all of them."
        ),
    ],
    scale: Annotated[
        str, typer.Option(help="smoke (minutes), small (an hour or so), medium (hours) or paper (a cluster).")
    ] = "smoke",
    data: Annotated[str, typer.Option(help="The text: a name, a file or a folder; dna: a FASTA file.")] = "python-docs",
    out: Annotated[str, typer.Option(help="Folder of models and reports; tables share the models in it.")] = (
        "runs/reproduce"
    ),
    seed: Annotated[int, typer.Option(help="Seed of trainings and evaluations.")] = 0,
    scorer: Annotated[str | None, typer.Option(help="Judge of samples, as for unmask eval --generative.")] = None,
    local: Annotated[
        str | None,
        typer.Option(help="Where sets of zero-shot, GLUE, or tasks on DNA lie (default: UNMASK_DATA, else the Hub)."),
    ] = None,
    model: Annotated[str | None, typer.Option(help="encoder: a BERT, as for unmask finetune.")] = None,
    in_domain: Annotated[
        list[str] | None, typer.Option(help="zero-shot: a set that the text is made from (may be repeated).")
    ] = None,
    quiet: Annotated[bool, typer.Option("--quiet", help="No progress.")] = False,
    as_json: Json = False,
) -> None:
    """Re-create a table of the paper, beside the paper's figures: trains what it needs, writes report.md and plots."""
    from ..reproduce import reproduce as run
    from ..reproduce.bench import Missing
    from ..reproduce.rendering import terminal_lines

    try:
        report, page = run(
            name,
            scale=scale,
            data=data,
            out=out,
            seed=seed,
            scorer=scorer,
            local=local,
            known=in_domain or (),
            start=model,
            quiet=quiet,
        )
    except Missing as missing:  # the paper's scale: what to run, and then this command again
        if as_json:
            print_json({"missing": str(missing).splitlines()})
        else:
            out_console.print(str(missing), markup=False)
            err_console.print("train these on a cluster, then run the same command again", markup=False)
        return
    if as_json:
        print_json(described(report))
        return
    print_lines(terminal_lines(report))
    err_console.print(f"report: {page}", markup=False)
