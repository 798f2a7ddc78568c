"""`unmask variants`: the effects of genome variants."""

from __future__ import annotations

import json
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import IO, Annotated, Any

import typer

from ..errors import UserError
from ..jsonable import finite
from .shared import (
    BothStrands,
    Device,
    Json,
    Model,
    Weights,
    Which,
    check_writable,
    err_console,
    load_lm,
    read_genome,
    used_weights,
)

ANOTHER_GENOME = 0.05  # share of alleles with another REF from which on a VCF is of another genome
NAMED = 5  # skipped lines that are named on standard error; all of them are in the table


def variants(
    model: Model,
    vcf: Annotated[str, typer.Option(help="The variants, .vcf (.gz or .xz too); a gVCF too.")],
    genome: Annotated[str, typer.Option(help="FASTA file (.gz or .xz too) that the variants refer to.")],
    out: Annotated[str | None, typer.Option(help="Write the table to this file (default: standard output).")] = None,
    window: Annotated[int | None, typer.Option(help="Bases around a variant (default: the model's length).")] = None,
    method: Annotated[
        str, typer.Option(help="bound (any variant), pll, or masked (substitutions; one prediction each).")
    ] = "bound",
    draws: Annotated[int, typer.Option(help="Paired draws of the bound; more draws make the error smaller.")] = 8,
    both_strands: BothStrands = False,
    batch_size: Annotated[int, typer.Option(help="Windows per network call.")] = 32,
    seed: Annotated[int, typer.Option(help="Seed of the times and masks.")] = 0,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Score variants: log p(alternative) - log p(reference) of each; below 0 the model prefers the reference."""
    from ..dna.variants import VariantRequest, other_names, score_variants
    from ..dna.vcf import survey
    from ..progress import progress_bar

    if out is not None:
        check_writable(out)
    request = VariantRequest(window, method, draws, batch_size, both_strands, seed)
    overview = survey(vcf)
    if not overview.alleles:
        raise UserError(f"{vcf} names no alternative allele, only <*> or <NON_REF>; give a file with variants")
    lm = load_lm(model, which, weights, device)
    request.check(lm)
    sequence = read_genome(genome, lm.config.data)
    if overview.unsorted is not None:
        said = f"{vcf} is not sorted (line {overview.unsorted}); scores come in its order"
        err_console.print(said, markup=False)
    protocol = {"model": model, "weights": used_weights(lm, weights), **request.protocol(lm), "vcf": vcf}
    if renamed := other_names(overview.chroms, sequence):
        protocol["records"] = renamed
        shown = ", ".join(f"{chrom} is {name}" for chrom, name in list(renamed.items())[:NAMED])
        more = ", ..." if len(renamed) > NAMED else ""
        err_console.print(f"names of chromosomes are matched with and without chr: {shown}{more}", markup=False)
    if overview.any_other:
        protocol["any_other_alleles"] = overview.any_other
    with ExitStack() as stack:
        progress = stack.enter_context(progress_bar("scoring"))
        table = _Table(stack, out, protocol, as_json)
        for effect in score_variants(lm, vcf, sequence, request, progress, overview.alleles):
            table.add(effect)
        table.end()
    skipped = table.total - table.scored
    if not table.scored:
        raise UserError(f"none of the {table.total} alleles of {vcf} could be scored; line {table.first}")
    left_out = f", left out {overview.any_other:,} that stand for any other allele (gVCF)" * bool(overview.any_other)
    err_console.print(f"scored {table.scored:,} alleles, skipped {skipped:,}{left_out}", markup=False)
    if table.mismatched > ANOTHER_GENOME * table.total:
        said = f"{table.mismatched:,} of {table.total:,} alleles have a REF that the genome does not have there"
        err_console.print(f"{said}; is {genome} the assembly that {vcf} was made with?", markup=False)
    if out is not None:
        err_console.print(f"table: {out}", markup=False)


class _Table:
    """Writes effects as they come: lines of a file or of standard output, or parts of one JSON document."""

    def __init__(self, stack: ExitStack, out: str | None, protocol: dict[str, Any], as_json: bool) -> None:
        from ..dna.variants import HEADER
        from ..files import replacing

        self.scored = self.total = self.mismatched = 0
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
        """Write one effect."""
        from ..dna.alleles import MISMATCH

        if self.as_json:
            sys.stdout.write(
                ("," if self.total else "") + "\n " + json.dumps(finite(effect.as_dict()), allow_nan=False)
            )
        if self.file is not None:
            self.file.write(effect.row() + "\n")
        self.total += 1
        self.scored += effect.score is not None
        if effect.reason is not None:
            self.mismatched += effect.reason.startswith(MISMATCH)
            skipped = self.total - self.scored
            said = f"{effect.line}: {effect.reason}"
            self.first = self.first or said
            if skipped <= NAMED:
                err_console.print(f"skipped line {said}", markup=False)
            elif skipped == NAMED + 1:
                err_console.print("skipped more lines, which the table names", markup=False)

    def end(self) -> None:
        """Write the rest of the document."""
        if self.as_json:
            sys.stdout.write('],\n "protocol": ' + json.dumps(finite(self.protocol), allow_nan=False) + "}\n")
