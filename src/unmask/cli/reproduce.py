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
            help="A table of the paper, such as ablation, lm, caching, zero-shot, bert or dna, or our study "
            "learning; an unknown name lists all of them."
        ),
    ],
    scale: Annotated[
        str, typer.Option(help="smoke (minutes), small (an hour or so), medium (hours) or paper (a cluster).")
    ] = "smoke",
    data: Annotated[str, typer.Option(help="The text: a name, a file or a folder; dna: a FASTA file.")] = "python-docs",
    out: Annotated[str, typer.Option(help="Folder for models and reports; tables share the models in it.")] = (
        "runs/reproduce"
    ),
    seed: Annotated[int, typer.Option(help="Seed of training and evaluation.")] = 0,
    scorer: Annotated[str | None, typer.Option(help="Judge of samples, as for unmask eval --generative.")] = None,
    local: Annotated[
        str | None,
        typer.Option(
            help="Where the data of zero-shot, GLUE or the DNA tasks is on disk (default: UNMASK_DATA, else the Hub)."
        ),
    ] = None,
    model: Annotated[str | None, typer.Option(help="For the table encoder: a BERT, as for unmask finetune.")] = None,
    in_domain: Annotated[
        list[str] | None, typer.Option(help="For zero-shot: a data set that the text is made from (may be repeated).")
    ] = None,
    no_train: Annotated[
        bool, typer.Option("--no-train", help="For learning: train nothing, report what is trained so far.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Re-create a table of the paper and compare it with the paper's figures; writes report.md and plots."""
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
            trains=not no_train,
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
