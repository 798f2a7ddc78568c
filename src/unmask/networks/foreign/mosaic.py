"""Published MosaicBERT files: their config.json is that of BERT with ALiBi."""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError
from .fields import HARMLESS, Allowed, only, understood, value

FIXED: Allowed = {
    "hidden_act": ("gelu",),
    "layer_norm_eps": (1e-12,),
    "position_embedding_type": ("absolute",),  # what BERT's config says by default: it has ALiBi
    "tie_word_embeddings": (True,),
    "use_glu_mlp": (True,),
    "normalization": ("layernorm",),
}
SIZES = {"hidden_dim": "hidden_size", "n_blocks": "num_hidden_layers", "n_heads": "num_attention_heads"}
MORE = {  # read below, seen from the tensors, or of training only
    "alibi_starting_size", "attention_probs_dropout_prob", "hidden_dropout_prob", "intermediate_size",
    "max_position_embeddings", "type_vocab_size", "vocab_size",
}  # fmt: skip
OTHERS = re.compile(r"(^|\.)(pooler|position_ids|token_type_ids|inv_freq|seq_relationship|contact_head)(\.|$)")


def settings(tree: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The settings of a MosaicBERT."""
    only(tree, FIXED, where)
    understood(tree, {*HARMLESS, *FIXED, *SIZES.values(), *MORE}, where)
    network = {ours: value(tree, theirs, int, where) for ours, theirs in SIZES.items()}
    inner = value(tree, "intermediate_size", int, where)
    if inner < 1 or inner % network["hidden_dim"]:
        raise UserError(f"{where} has intermediate_size {inner}, which is not a multiple of its hidden_size")
    dropout = value(tree, "hidden_dropout_prob", float, where, 0.1)
    return network | {"mlp_ratio": inner // network["hidden_dim"], "dropout": dropout}


def our_tensors(settings: Any, tensors: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """The tensors under published names, without the pooler and the decoder, which is tied to the embedding."""
    named = {name.removeprefix("backbone."): tensor for name, tensor in tensors.items()}
    kept = {name: tensor for name, tensor in named.items() if not OTHERS.search(name)}
    decoder = kept.pop("cls.predictions.decoder.weight", None)
    table = kept.get("bert.embeddings.word_embeddings.weight")
    if decoder is not None and (table is None or not torch.equal(decoder, table)):
        raise UserError(f"{where} has a decoder that is not tied to its embedding, unlike MosaicBERT")
    return {f"backbone.{name}": tensor for name, tensor in kept.items()}
