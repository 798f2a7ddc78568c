"""`unmask compare`: generated DNA against real DNA."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from ..errors import UserError
from .shared import Json, err_console, is_main, print_json, print_lines


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
    for name in ("gc", "cpg_observed_expected", "mean_run"):
        ours, theirs = results["generated"][name], results["real"][name]
        shown = " ".join("none" if value is None else f"{value:.4f}" for value in (ours, theirs))
        print_lines([f"{name}: generated and real {shown}"])
    for name, row in results["distances"].items():
        floor = "none" if row["floor"] is None else f"{row['floor']:.5f}"
        print_lines([f"{name}: {row['generated']:.5f}, floor {floor}"])
    if is_main():
        err_console.print(f"report: {page}", markup=False)
