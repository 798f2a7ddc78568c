"""The two strands of DNA, for models that are in use: complement tables, and a model that asks about both."""

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
    """One sentence for a model that reads something else than bases."""
    if lm.tokenizer.kind != "dna":
        raise UserError(
            f"{what} needs a model of DNA (data.tokenizer=dna), and this one reads {lm.tokenizer.name!r}; "
            "give a model that was trained on bases"
        )


def complement_of(lm: LM) -> Tensor:
    """(V,) id to id. Where rows have BOS and EOS at their ends, these change places: the other strand begins too."""
    table = torch.from_numpy(COMPLEMENT)[: lm.tokenizer.vocab.size].clone()
    if lm.painter.frame is not None:
        first, last = lm.painter.frame
        table[first], table[last] = last, first
    return table


def side_by_side(lm: LM, rows: Sequence[np.ndarray]) -> tuple[Tensor, Tensor | None]:
    """(B, L) rows of ids with the block ends of the training, padded, and which columns exist (None = all)."""
    own = [torch.from_numpy(np.asarray(row, dtype=np.int64)) for row in rows]
    if (frame := lm.painter.frame) is not None:
        first, last = torch.tensor(frame).split(1)
        own = [torch.cat((first, row, last)) for row in own]
    return stack(own, lm.tokenizer.vocab)


def equivariant(backbone: Network) -> bool:
    """Whether a network says the same of both strands by its weights (Caduceus-PS), or as it asks about both."""
    return isinstance(backbone, Conjoined) or getattr(backbone, "strands", None) == "ps"


def conjoined(lm: LM) -> LM:
    """The same model, asked about both strands (`backbones.strands`); unchanged where its weights see to that."""
    need_dna(lm, "both strands")
    model = as_masked(lm.model)
    if model is None:
        raise UserError(
            "both strands need a masked diffusion model, which looks both ways, and this model is none; "
            "leave out --both-strands"
        )
    if equivariant(model.backbone):
        return lm
    both = Conjoined(model.backbone, complement_of(lm).to(model.device))
    return replace(lm, model=model.under(backbone=both))


def write_fasta(path: str | Path, samples: Sequence[Sample], model: str) -> None:
    """Samples as records: each is named by its number, and says its seed and model."""
    with replacing(path) as temporary, temporary.open("w", encoding="utf-8") as file:
        for sample in samples:
            file.write(f">sample_{sample.index} seed={sample.seed} model={model}\n")
            text = sample.text
            file.writelines(text[i : i + LINE] + "\n" for i in range(0, len(text), LINE))
