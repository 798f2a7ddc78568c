"""DNA models in use: `unmask variants`, `embed` and `compare`."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from ..errors import UserError
from ..jsonable import finite
from .shared import Device, Json, Model, Weights, Which, err_console, is_main, print_json, print_lines

NAMED = 5  # skipped lines that are named on standard error; all of them are in the table
BothStrands = Annotated[
    bool, typer.Option("--both-strands", help="The mean over both strands, for networks that are not equivariant.")
]


def variants(
    model: Model,
    vcf: Annotated[str, typer.Option(help="The variants, .vcf or .vcf.gz.")],
    genome: Annotated[str, typer.Option(help="FASTA file (.gz too) that the variants are of.")],
    out: Annotated[str | None, typer.Option(help="Write the table to this file (default: standard output).")] = None,
    window: Annotated[int | None, typer.Option(help="Bases around a variant (default: the model's length).")] = None,
    method: Annotated[
        str, typer.Option(help="bound (any variant), pll, or masked (substitutions; one look each).")
    ] = "bound",
    draws: Annotated[int, typer.Option(help="Paired draws of the bound; more make the error smaller.")] = 8,
    both_strands: BothStrands = False,
    batch_size: Annotated[int, typer.Option(help="Windows a network call.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of times and masks.")] = 0,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Score variants: log p(alternative) - log p(reference) of each; below 0 the model expects the reference."""
    from ..dna.variants import VariantRequest, score_variants
    from ..dna.vcf import survey
    from ..progress import progress_bar
    from .commands import check_writable, load_lm, used_weights

    if out is not None:
        check_writable(out)
    request = VariantRequest(window, method, draws, batch_size, both_strands, seed)
    found = survey(vcf)
    lm = load_lm(model, which, weights, device)
    request.check(lm)
    own = _genome(genome, lm.config.data)
    if found.unsorted is not None:
        said = f"{vcf} is not sorted (line {found.unsorted}); scores come in its order"
        err_console.print(said, markup=False)
    protocol = {"model": model, "weights": used_weights(lm, weights), **request.protocol(lm), "vcf": vcf}
    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar("scoring"))
        table = _Table(stack, out, protocol, as_json)
        for effect in score_variants(lm, vcf, own, request, progress, found.alleles):
            table.add(effect)
        table.end()
    skipped = table.total - table.scored
    if not table.scored:
        raise UserError(f"none of the {table.total} alleles of {vcf} could be scored; line {table.first}")
    err_console.print(f"scored {table.scored:,} alleles, skipped {skipped:,}", markup=False)
    if out is not None:
        err_console.print(f"table: {out}", markup=False)


class _Table:
    """Takes effects as they come: lines to a file or to standard output, or parts of one JSON document."""

    def __init__(self, stack: ExitStack, out: str | None, protocol: dict[str, Any], as_json: bool) -> None:
        from ..dna.variants import HEADER
        from ..files import replacing

        self.scored = self.total = 0
        self.first = ""  # what was wrong with the first line that was skipped
        self.as_json, self.protocol = as_json, protocol
        self.file: IO[str] | None = None
        if out is not None:
            self.file = stack.enter_context(stack.enter_context(replacing(Path(out))).open("w", encoding="utf-8"))
        elif not as_json:
            self.file = sys.stdout
        if self.file is not None:
            self.file.write(HEADER + "\n")
        if as_json:
            sys.stdout.write('{"variants": [')

    def add(self, effect: Any) -> None:
        """One more."""
        if self.as_json:
            sys.stdout.write(
                ("," if self.total else "") + "\n " + json.dumps(finite(effect.as_dict()), allow_nan=False)
            )
        if self.file is not None:
            self.file.write(effect.row() + "\n")
        self.total += 1
        self.scored += effect.score is not None
        if effect.reason is not None:
            skipped = self.total - self.scored
            said = f"{effect.line}: {effect.reason}"
            self.first = self.first or said
            if skipped <= NAMED:
                err_console.print(f"skipped line {said}", markup=False)
            elif skipped == NAMED + 1:
                err_console.print("skipped more lines, which the table names", markup=False)

    def end(self) -> None:
        """The rest of the document."""
        if self.as_json:
            sys.stdout.write('],\n "protocol": ' + json.dumps(finite(self.protocol), allow_nan=False) + "}\n")


def _genome(path: str, spec: Any) -> Any:
    from ..data.cache import cache_folder
    from ..data.genome.store import open_genome
    from ..progress import progress_bar

    with progress_bar("reading the genome") as progress:
        return open_genome(path, cache_folder(spec), progress)


def embed(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="Sequences or texts: FASTA, .txt, .jsonl, .csv, .tsv, .bed (.gz too)."),
    ],
    out: Annotated[str, typer.Option(help="X.npy (names beside it in X.json) or X.parquet.")],
    pool: Annotated[str, typer.Option(help="mean over the positions of a sequence, or none.")] = "mean",
    column: Annotated[str | None, typer.Option(help="Column of a table, key of JSON lines.")] = None,
    genome: Annotated[str | None, typer.Option(help="FASTA file that the intervals of a .bed file are of.")] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens that are seen at once (default: the model's length).")
    ] = None,
    both_strands: BothStrands = False,
    batch_size: Annotated[int, typer.Option(help="Sequences a network call.")] = 32,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Turn sequences into vectors: the last hidden states of the network, mean over positions."""
    from ..dna.embed import Embedder, open_writer
    from ..dna.sequence_files import read_sequences
    from ..progress import progress_bar
    from .commands import check_writable, load_lm, used_weights

    check_writable(out)
    if not out.endswith((".npy", ".parquet")):
        raise UserError(f"--out {out} must end in .npy or .parquet")
    lm = load_lm(model, which, weights, device)
    embedder = Embedder(lm, pool, length, both_strands, batch_size)
    own = None if genome is None else _genome(genome, lm.config.data)
    facts = {"model": model, "weights": used_weights(lm, weights), "source": source, **embedder.protocol()}
    count = 0
    with progress_bar("embedding") as progress, open_writer(out, embedder, facts) as writer:
        for found in embedder(read_sequences(source, column=column, genome=own)):
            writer.add(*found)
            count += 1
            progress(count, 0)
        if not count:
            raise UserError(f"{source} has no sequences in it; give at least one")
    if as_json:
        print_json({"out": out, "sequences": count, "dim": embedder.dim, "protocol": facts})
        return
    print_lines([f"wrote {out}: {count:,} sequences, {embedder.dim} numbers each ({facts['strands']})"])


def compare(
    generated: Annotated[str, typer.Argument(help="Generated sequences: FASTA, .txt or .jsonl (.gz too).")],
    real: Annotated[str, typer.Argument(help="Real sequences, or a genome: FASTA, .txt or .jsonl (.gz too).")],
    out: Annotated[str, typer.Option(help="Folder of report.md, results.json and plots.")] = "comparison",
    k: Annotated[int, typer.Option("--k", help="Longest k-mers that are counted, 1 to 8.")] = 6,
    as_json: Json = False,
) -> None:
    """Compare generated DNA with real DNA: GC, k-mers, CpG, runs, strands, each beside its noise floor."""
    from ..dna.compare import compare as run
    from ..dna.compare import write_report
    from ..dna.sequence_files import read_sequences

    if Path(out).is_file():
        raise UserError(f"--out {out} is a file; give the name of a folder")
    found = run(lambda: read_sequences(generated), lambda: read_sequences(real), k)
    page = write_report(found, out, (generated, real))
    results = found.results()
    if as_json:
        print_json(results)
        return
    for name in ("gc", "cpg_observed_expected", "mean_run"):
        own, other = results["generated"][name], results["real"][name]
        shown = " ".join("none" if value is None else f"{value:.4f}" for value in (own, other))
        print_lines([f"{name}: generated and real {shown}"])
    for name, row in results["distances"].items():
        floor = "none" if row["floor"] is None else f"{row['floor']:.5f}"
        print_lines([f"{name}: {row['generated']:.5f}, floor {floor}"])
    if is_main():
        err_console.print(f"report: {page}", markup=False)
