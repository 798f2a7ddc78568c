"""`unmask embed`: sequences as vectors."""

from __future__ import annotations

from typing import Annotated

import typer

from ..errors import UserError
from .shared import (
    BothStrands,
    Device,
    Json,
    Model,
    TokenizerOf,
    Weights,
    Which,
    check_writable,
    load_lm,
    print_json,
    print_lines,
    read_genome,
    used_weights,
)


def embed(
    model: Model,
    source: Annotated[
        str,
        typer.Argument(metavar="INPUT", help="FASTA, .txt, .jsonl, .csv, .tsv or .bed (.gz or .xz too)."),
    ],
    out: Annotated[str, typer.Option(help="X.npy (with the names in X.json) or X.parquet.")],
    pool: Annotated[str, typer.Option(help="mean (over the positions of a sequence) or none.")] = "mean",
    column: Annotated[str | None, typer.Option(help="Column of a table, or key of JSON lines.")] = None,
    genome: Annotated[str | None, typer.Option(help="FASTA file that the intervals of a .bed file refer to.")] = None,
    length: Annotated[
        int | None, typer.Option(help="Tokens that the network sees at once (default: the model's length).")
    ] = None,
    both_strands: BothStrands = False,
    batch_size: Annotated[int, typer.Option(help="Sequences per network call.")] = 32,
    tokenizer: TokenizerOf = None,
    which: Which = "last",
    weights: Weights = "ema",
    device: Device = "auto",
    as_json: Json = False,
) -> None:
    """Turn sequences into vectors: the mean over positions of the network's last hidden states."""
    from ..dna.embed import Embedder, open_writer
    from ..dna.sequence_files import read_sequences
    from ..progress import progress_bar

    check_writable(out)
    if not out.endswith((".npy", ".parquet")):
        raise UserError(f"--out {out} must end in .npy or .parquet")
    lm = load_lm(model, which, weights, device, tokenizer)
    bases = lm.tokenizer.kind == "dna"
    embedder = Embedder(lm, pool, length, both_strands, batch_size)
    sequence = None if genome is None else read_genome(genome, lm.config.data)
    facts = {"model": model, "weights": used_weights(lm, weights), "source": source, **embedder.protocol()}
    count = 0
    with progress_bar("embedding") as progress, open_writer(out, embedder, facts) as writer:
        for embedded in embedder(read_sequences(source, column=column, genome=sequence, bases=bases)):
            writer.add(*embedded)
            count += 1
            progress(count, 0)
        if not count:
            raise UserError(f"{source} contains no sequences; give at least one")
    if as_json:
        print_json({"out": out, "sequences": count, "dim": embedder.dim, "protocol": facts})
        return
    print_lines([f"wrote {out}: {count:,} sequences, {embedder.dim} numbers each ({facts['strands']})"])
