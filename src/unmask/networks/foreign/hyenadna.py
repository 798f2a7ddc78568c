"""Published HyenaDNA files: their config.json, and the names of their tensors.

Fixed or duplicate tensors must have the expected values, and are left out.

The port to transformers adds 0.05 to the decay of its filters, the training code does not.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...errors import UserError
from ..hyena import BANDS, deltas, positions
from .fields import HARMLESS, Allowed, mapping, only, understood, value
from .state_space import our_tensors as without_copies

FIXED: Allowed = {  # of a layer, by the names of the training code
    "emb_dim": (5,),
    "order": (2,),
    "num_inner_mlps": (2,),
    "short_filter_order": (3,),
    "local_order": (3,),
    "bias": (True,),
    "modulate": (True,),
    "normalized": (False,),
    "bidirectional": (False,),
    "num_heads": (1,),
    "num_blocks": (1,),
    "inner_factor": (1,),
    "outer_mixing": (False,),
    "post_order_ffn": (False,),
    "activation": ("id",),
}
OUTER: Allowed = {
    "layer_norm_epsilon": (1e-5,),
    "attn_layer_idx": ([], None),
    "max_position_embeddings": (0,),
    "attn_cfg": ({}, None),
}
READ = {"d_model", "d_inner", "n_layer", "layer", "embed_dropout", "vocab_size"}
OF_LAYER = {  # read, or: learning rates, dropout, and what the tensors of the sines hold
    "_name_", "l_max", "max_seq_len", "filter_order", "shift", "w", "wd", "lr", "lr_pos_emb", "dropout",
    "filter_dropout", "train_freq", "activation_freq", "hyena_dropout", "hyena_filter_dropout", "fused_fft_conv",
}  # fmt: skip
PORT = {"pad_vocab_size_multiple", "tie_word_embeddings"}  # checked in the tensors
TRAINING = {
    "_name_", "resid_dropout", "fused_mlp", "fused_dropout_add_ln", "checkpoint_mixer", "checkpoint_mlp",
    "residual_in_fp32", "pad_vocab_size_multiple", "return_hidden_state", "process_group", "sequence_parallel",
    "initializer_cfg", "dropout_cls", "device",
}  # fmt: skip
PORT_SHIFT = 0.05  # of HyenaDNA in transformers


def settings(tree: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The settings of a HyenaDNA: flat (transformers), or with a section `layer` (the training code)."""
    port = tree.get("model_type") == "hyenadna"
    layer = tree if port else mapping(tree, "layer", where)
    names = {"order": "hyena_order", "bias": "use_bias"} if port else {}
    fixed = {name: FIXED[key] for key, name in (*zip(FIXED, FIXED, strict=True), *names.items())}
    only({"emb_dim": 3} | dict(layer), fixed, where, "" if port else "layer.")  # 3 is the default of both
    only(tree, OUTER, where)
    if port:
        understood(tree, {*HARMLESS, *fixed, *OUTER, *READ, *OF_LAYER, *PORT}, where)
    else:
        understood(tree, {*HARMLESS, *OUTER, *READ, *TRAINING}, where)
        understood(layer, {*fixed, *OF_LAYER}, where, "layer.")
    dim = value(tree, "d_model", int, where)
    inner = value(tree, "d_inner", int, where, 4 * dim)
    if inner < 1 or dim < 1 or inner % dim:
        raise UserError(f"{where} has d_inner {inner}, which is not a multiple of its d_model")
    longest = value(layer, "max_seq_len" if port else "l_max", int, where)
    return {
        "hidden_dim": dim,
        "n_blocks": value(tree, "n_layer", int, where),
        "mlp_ratio": inner // dim,
        "dropout": value(tree, "embed_dropout", float, where, 0.1),
        "filter_length": longest,
        "filter_dim": value(layer, "filter_order", int, where, 64),
        "filter_shift": PORT_SHIFT if port else value(layer, "shift", float, where, 0.0),
    }


def our_tensors(settings: Any, tensors: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """The tensors of a file under our names, each once."""
    return published(without_copies(settings, tensors, where), settings.filter_length, str(where))


def published(tensors: Mapping[str, Tensor], longest: int, where: str) -> dict[str, Tensor]:
    """The tensors of a published file under their names in a language model, each once.

    Fixed or duplicate tensors are left out after a check of their values; `longest` is the length of the filters.
    """
    named = {_our_name(name): tensor for name, tensor in tensors.items()}
    kept = {}
    for name, tensor in named.items():
        owner, _, leaf = name.rpartition(".")
        if leaf in ("z", "t", "deltas") and ".filter_fn." in name:
            right = _is_fixed(leaf, tensor, longest)
            what = f"that of filters for {longest} columns"
        elif leaf == "freq" and not owner.endswith(".1"):
            right = _is_same(tensor, named.get(f"{owner.rpartition('.')[0]}.1.freq"))
            what = "the tensor of the first sines"
        elif name.endswith("lm_head.weight"):
            right = _is_same(tensor, named.get("backbone.embeddings.word_embeddings.weight"))
            what = "the embedding, to which the head is tied"
        else:
            kept[name] = tensor
            continue
        if not right:
            raise UserError(f"{where} does not fit this model: {name} is not {what}")
    return kept


def _our_name(name: str) -> str:
    """The name from "backbone." on, without the ".layer" in files of networks with activation checkpointing."""
    _, inside, rest = name.rpartition("backbone.")
    return inside + rest.replace(".mixer.layer.", ".mixer.").replace(".mlp.layer.", ".mlp.")


def _is_same(tensor: Tensor, other: Tensor | None) -> bool:
    return other is not None and torch.equal(tensor, other)


def _is_fixed(leaf: str, table: Tensor, longest: int) -> bool:
    """Whether a fixed table equals ours up to rounding. Ours is computed only if the sizes agree."""
    if leaf == "deltas":
        wanted = deltas(table.numel(), table)
    elif table.numel() == longest * (1 + 2 * BANDS if leaf == "z" else 1):
        wanted = positions(longest, table)[0 if leaf == "z" else 1]
    else:
        return False
    near = 1e-4 if table.dtype == torch.float32 else 1e-2
    return torch.allclose(table.to(wanted.dtype).reshape(wanted.shape), wanted, near, near)
