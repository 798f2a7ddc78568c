"""`unmask reproduce`: the tables of the paper."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from ..jsonable import described
from ..text_tables import terminal_table
from .shared import Json, err_console, out_console, print_json, print_lines

if TYPE_CHECKING:
    from ..reproduce.bench import Bench


def reproduce(
    name: Annotated[
        str,
        typer.Argument(
            help="A table of the paper, such as ablation, lm, caching, zero-shot, bert or dna, or our study "
            "learning; an unknown name lists all of them. summary: one page of all reports in --out."
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
    seeds: Annotated[
        int | None, typer.Option(help="Trainings of each model, with seeds from --seed on; 3 or more decide claims.")
    ] = None,
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
    scores: Annotated[
        str | None,
        typer.Option(
            help="Folder for what is kept of trainings: with it a table goes on where the weights are gone "
            "(default: scores, beside the models)."
        ),
    ] = None,
    no_train: Annotated[
        bool, typer.Option("--no-train", help="For learning: train nothing, report what is trained so far.")
    ] = False,
    plan: Annotated[
        bool, typer.Option("--plan", help="Train nothing: print what is missing, and about what it costs.")
    ] = False,
    quiet: Annotated[bool, typer.Option("--quiet", help="Do not show progress.")] = False,
    as_json: Json = False,
) -> None:
    """Re-create a table of the paper and compare it with the paper's figures; writes report.md and plots.

    `unmask reproduce summary --out FOLDER` writes one page of all reports below a folder.
    """
    from ..reproduce import reproduce as run
    from ..reproduce.bench import Missing
    from ..reproduce.rendering import terminal_lines
    from ..reproduce.run import open_bench
    from ..reproduce.summary import write_summary

    if name == "summary":
        err_console.print(f"summary: {write_summary(out)}", markup=False)
        return
    options: dict[str, Any] = {
        "scale": scale,
        "data": data,
        "out": out,
        "seed": seed,
        "scorer": scorer,
        "local": local,
        "known": in_domain or (),
        "start": model,
        "trains": not no_train,
        "seeds": seeds,
        "scores": scores,
        "quiet": quiet,
    }
    if plan:
        print_plan(name, open_bench(name, **options), as_json)
        return
    try:
        report, page = run(name, **options)
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


def print_plan(name: str, bench: Bench, as_json: bool) -> None:
    """What a table would train."""
    from ..reproduce import TABLES
    from ..reproduce import plan as planning

    made = planning.plan(bench, TABLES[name])
    if as_json:
        print_json(described(made))
        return
    lines = terminal_table(planning.plan_lines(made))
    if made.claims:
        lines += ["", *terminal_table(planning.claim_lines(made))]
    print_lines([*lines, "", planning.plan_summary(made)])
