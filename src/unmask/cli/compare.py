"""`unmask compare`: generated DNA against real DNA."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from ..errors import UserError
from .shared import Json, err_console, is_main, print_json, print_lines

SHOWN = ("sequences", "gc", "cpg_observed_expected", "mean_run")  # the report has them all


def compare(
    generated: Annotated[str, typer.Argument(help="Generated sequences: FASTA, .txt or .jsonl (.gz too).")],
    real: Annotated[str, typer.Argument(help="Real sequences, or a genome: FASTA, .txt or .jsonl (.gz too).")],
    out: Annotated[str, typer.Option(help="Folder for report.md, results.json and plots.")] = "comparison",
    k: Annotated[int, typer.Option("--k", help="Length of the longest k-mers to count, 1 to 8.")] = 6,
    as_json: Json = False,
) -> None:
    """Compare generated DNA with real DNA: GC, k-mers, CpG, runs, strands, each with its noise floor."""
    from ..dna.compare import compare as run
    from ..dna.compare import write_report
    from ..dna.sequence_files import read_sequences

    if Path(out).is_file():
        raise UserError(f"--out {out} is a file; give the name of a folder")
    comparison = run(lambda: read_sequences(generated), lambda: read_sequences(real), k)
    page = write_report(comparison, out, (generated, real))
    results = comparison.results()
    if as_json:
        print_json(results)
        return
    print_lines(comparison_lines(results))
    if is_main():
        err_console.print(f"report: {page}", markup=False)


def comparison_lines(results: dict[str, Any]) -> list[str]:
    """What the report says first, as two tables, each with its legend."""
    from ..dna.compare import FACTS, distance_words, floor_words, shown
    from ..text_tables import terminal_table

    facts = [
        [words, shown(results["generated"][name]), shown(results["real"][name])]
        for name, words in FACTS.items()
        if name in SHOWN
    ]
    far = [
        [distance_words(name), shown(row["generated"]), floor_words(row)] for name, row in results["distances"].items()
    ]
    return [
        *terminal_table([["", "generated", "real"], *facts]),
        "",
        *terminal_table([["distance from real DNA", "generated", "floor"], *far]),
        "",
        "floor: how far real sequences are from other real sequences, mean ± standard deviation; a perfect generator",
        "has about as much. 0 is equal; a Jensen-Shannon divergence is at most 1 bit.",
    ]
