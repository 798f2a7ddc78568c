"""Configs for published networks that read bases (Caduceus, Mamba, HyenaDNA): their rows and their tokenizer.

Caduceus was trained as a masked language model and becomes a model of method mdlm; Mamba (also on text) and HyenaDNA
are autoregressive, and their first token is given and not scored, because they never saw a start symbol. How their
files describe the network itself is next to it (`networks/foreign`).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch.nn.functional as F
from torch import Tensor

from ...config import Config, DataConfig, parse
from ...data.genome.bases import ROWS, VOCAB
from ...data.tokenization import JSON_FILE, Tokenizer
from ...networks.foreign import FORMATS, format_of
from ...networks.foreign.fields import value
from ...networks.foreign.state_space import embedding_of
from ...networks.layers import padded
from ...recipes import dna_hyena, dna_mamba, dna_mdlm, owt
from ...types import UserError
from .terms import Described, inside

LENGTH = 1024  # bases or tokens a row, where the filters are made for so many
NEOX = "EleutherAI/gpt-neox-20b"  # the tokenizer of the Mambas that read text
PADDING = 1024  # rows that an embedding may have beyond its tokenizer


def read_genomic(tree: Mapping[str, Any], where: str | Path, tokenizer: str | None = None) -> Described:
    """Caduceus, Mamba or HyenaDNA; `tokenizer` is the path of a Mamba's tokenizer, if it has one."""
    kind = format_of(tree)
    assert kind is not None
    network = FORMATS[kind].from_published(tree, where)
    if kind == "mamba":
        return _mamba(tree, network, where, tokenizer)
    size = value(tree, "vocab_size", int, where)
    if not VOCAB.size <= size <= ROWS:
        raise UserError(f"{where} has vocab_size {size}; unmask reads a {kind} of {VOCAB.size} tokens of DNA")
    if kind == "caduceus":
        made = _config(dna_mdlm(), network, {"length": LENGTH, "reverse_complement": network["strands"] == "ph"}, where)
    else:
        longest = min(LENGTH, max(2, network["filter_length"] - 2))  # without the two ends that their rows have
        made = _config(dna_hyena(), network, {"length": longest}, where)
    return Described(made, VOCAB, (), VOCAB.size)


def _config(base: Config, network: Mapping[str, Any], data: Mapping[str, Any], where: str | Path) -> Config:
    """A recipe of the paper with another network."""
    tree = base.model_dump(mode="json")
    tree["model"] = {"method": base.model.method, "network": base.model.network, **network}
    tree["data"] |= dict(data)
    tree["objective"]["start_token"] = tree["model"]["method"] != "ar"
    return inside(where, lambda: parse(tree))


def _mamba(tree: Mapping[str, Any], network: Mapping[str, Any], where: str | Path, tokenizer: str | None) -> Described:
    size = value(tree, "vocab_size", int, where)
    bases = VOCAB.size <= size <= ROWS
    default = "dna" if bases else NEOX
    name = tokenizer if tokenizer and (Path(where).parent / JSON_FILE).is_file() else default
    data = _data(name).model_dump(mode="json")
    made = _config(dna_mamba() if bases else owt(), {"method": "ar", "network": "mamba", **network}, data, where)
    return Described(made, None, (), size)


def _data(tokenizer: str) -> DataConfig:
    """Rows as a Mamba reads them: windows of a genome, or concatenated texts separated by their end token."""
    if tokenizer == "dna":
        return dna_mamba().data
    return owt().data.model_copy(
        update={"tokenizer": tokenizer, "length": LENGTH, "eos_between": True, "block_ends": False}
    )


# -- tokenizers ------------------------------------------------------------------------------------------------------


def fits_mamba(size: int, rows: int) -> bool:
    """Whether a tokenizer of this size fits a Mamba: a mask token that we add does not need a row."""
    return size - 1 <= rows <= min(size + PADDING, 2 * size)


def mamba_with(described: Described, tokenizer: Tokenizer, given: Any = None) -> Described:
    """A Mamba with its tokenizer, which decides what its rows are."""
    config = described.config
    bases = tokenizer.kind == "dna"
    named = config.data.tokenizer if given is None or isinstance(given, Tokenizer) else str(given)
    data = _data("dna" if bases else named)
    if not bases and tokenizer.vocab.eos is None:
        data = data.model_copy(update={"eos_between": False})
    return replace(described, config=config.model_copy(update={"data": data}), vocab=tokenizer.vocab)


# -- tensors ---------------------------------------------------------------------------------------------------------


def fitted(described: Described, tensors: dict[str, Tensor]) -> dict[str, Tensor]:
    """The tensors with an embedding resized to our number of rows: new rows are zero, rows without a token are dropped.

    A new row belongs to a [MASK] that the network does not have: it is neither read nor predicted. An embedding whose
    size differs from config.json stays as it is, and is rejected later.
    """
    name, vocab, said = embedding_of(tensors), described.vocab, described.vocab_size
    if not name or vocab is None or tensors[name].dim() != 2:
        return tensors
    rows, wanted = len(tensors[name]), padded(vocab.size)
    least = vocab.size - (1 if vocab.mask == vocab.size - 1 else 0)
    if rows not in (said, padded(said)) or rows < least:
        return tensors
    return tensors | {name: F.pad(tensors[name], (0, 0, 0, wanted - rows)) if rows != wanted else tensors[name]}
