"""The two strands of DNA, for models in use: complement tables, and a model that reads both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ..data.genome.bases import COMPLEMENT
from ..files import replacing
from ..lm import LM
from ..models.masked import as_masked
from ..networks.conjoined import Conjoined
from ..networks.interface import Network
from ..sampling.sampler import stack
from ..types import Sample, UserError

LINE = 60  # bases of a line of FASTA


def need_dna(lm: LM, what: str) -> None:
    """Raise for a model that does not read bases."""
    if lm.tokenizer.kind != "dna":
        raise UserError(
            f"{what} needs a model of DNA (data.tokenizer=dna), and this one reads {lm.tokenizer.name!r}; "
            "give a model that was trained on bases"
        )


def need_letters(lm: LM, what: str) -> None:
    """Raise for a model that writes neither bases nor single letters, as those of proteins do."""
    if lm.tokenizer.kind != "dna" and not all(len(piece.strip()) <= 1 for piece in _written(lm)):
        raise UserError(
            f"{what} needs a model of DNA or proteins, and this one reads {lm.tokenizer.name!r}; leave it out"
        )


def _written(lm: LM) -> list[str]:
    """What the tokens of a model say, without the special ones."""
    pieces = lm.tokenizer.pieces(range(lm.tokenizer.vocab.size))
    return [piece for piece in pieces if not piece.strip().startswith(("[", "<"))]


def complement_of(lm: LM) -> Tensor:
    """(V,) id to id. BOS and EOS at the ends of rows are swapped: the other strand has a beginning too."""
    table = torch.from_numpy(COMPLEMENT)[: lm.tokenizer.vocab.size].clone()
    if lm.prompt_builder.block_ends is not None:
        first, last = lm.prompt_builder.block_ends
        table[first], table[last] = last, first
    return table


def side_by_side(lm: LM, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """(B, L) rows of ids with the block ends of the training, padded, and which columns exist (None = all)."""
    tensors = [torch.from_numpy(np.asarray(row, dtype=np.int64)) for row in rows]
    if (block_ends := lm.prompt_builder.block_ends) is not None:
        first, last = torch.tensor(block_ends).split(1)
        tensors = [torch.cat((first, row, last)) for row in tensors]
    return stack(tensors, lm.tokenizer.vocab)


def equivariant(backbone: Network) -> bool:
    """Whether a network predicts the same for both strands, by its weights (Caduceus-PS) or by reading both."""
    return isinstance(backbone, Conjoined) or getattr(backbone, "strands", None) == "ps"


def conjoined(lm: LM) -> LM:
    """The same model, reading both strands (`networks.conjoined`); unchanged where its weights are equivariant."""
    need_dna(lm, "both strands")
    model = as_masked(lm.model)
    if model is None:
        raise UserError(
            "both strands need a masked diffusion model, which reads in both directions, and this model is not one; "
            "leave out --both-strands"
        )
    if equivariant(model.backbone):
        return lm
    both = Conjoined(model.backbone, complement_of(lm).to(model.device))
    return replace(lm, model=model.under(backbone=both))


def write_fasta(path: str | Path, samples: Sequence[Sample], model: str) -> None:
    """Samples as records: each is named by its number, and its header has seed and model."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(f">sample_{sample.index} seed={sample.seed} model={model}\n")
            text = sample.text
            file.writelines(text[i : i + LINE] + "\n" for i in range(0, len(text), LINE))
