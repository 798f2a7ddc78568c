"""Published Caduceus and Mamba files: their config.json, and the names of their tensors.

A setting that our network does not have is an error that names its key. Duplicate (tied) and fixed tensors
(complements) must have the expected values, and are left out.

The published "ps" Caduceus has fused_add_norm: true, and so swaps the strands before every layer.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...data.genome.bases import COMPLEMENT, VOCAB
from ...errors import UserError
from .fields import HARMLESS, Allowed, only, understood, value

SIZES = {"d_state": "state_dim", "d_conv": "conv_width", "expand": "expand"}  # of ssm_cfg
NO_MATTER = {"dt_min", "dt_max", "dt_init", "dt_scale", "dt_init_floor", "use_fast_path"}  # initialisation and speed
FIXED: Allowed = {
    "rms_norm": (True,),
    "norm_epsilon": (1e-5,),
    "tie_word_embeddings": (True,),
    "tie_embeddings": (True,),
    "d_intermediate": (0,),
    "attn_layer_idx": ([], None),
    "attn_cfg": ({},),
}
BOTH_WAYS: Allowed = {  # of Caduceus
    "bidirectional": (True,),
    "bidirectional_strategy": ("add", None),
    "bidirectional_weight_tie": (True,),
}
READ = {"d_model", "n_layer", "ssm_cfg", "vocab_size"}
CADUCEUS = {*BOTH_WAYS, "complement_map", "rcps"}
SPEED = {"fused_add_norm", "initializer_cfg", "pad_vocab_size_multiple", "residual_in_fp32"}  # or rounding, or shapes
PORTED = {  # by transformers: initialisation and speed
    "rescale_prenorm_residual", "residual_in_fp32", "time_step_floor", "time_step_init_scheme", "time_step_max",
    "time_step_min", "time_step_scale", "use_associative_scan", "use_mambapy", "vocab_size",
}  # fmt: skip
ORIGIN = {"d_model", "d_inner", "n_layer", "ssm_cfg", "fused_add_norm", "pad_vocab_size_multiple", "rms_norm"}
BEFORE = re.compile(r"^(model\.)?(caduceus\.|hyena\.)?(?=backbone\.|lm_head\.)")
EMBEDDINGS = "backbone.embeddings."


def caduceus(tree: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The settings of a Caduceus."""
    only(tree, BOTH_WAYS, where)
    both = value(tree, "rcps", bool, where, False)
    fused = value(tree, "fused_add_norm", bool, where, True)
    if both:
        _check_complements(tree.get("complement_map"), where)
    return {"strands": "ps" if both else "ph", "swap_strands": both and fused, **_state_space(tree, where, CADUCEUS)}


def mamba(tree: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The settings of a Mamba, from transformers or mamba_ssm."""
    return _ported_mamba(tree, where) if "hidden_size" in tree else _state_space(tree, where)


def _state_space(tree: Mapping[str, Any], where: str | Path, more: Collection[str] = ()) -> dict[str, Any]:
    """The sizes of a Mamba, under the names of mamba_ssm and Caduceus."""
    dim = value(tree, "d_model", int, where)
    only(tree, FIXED, where)
    understood(tree, {*HARMLESS, *FIXED, *READ, *SPEED, *more}, where)
    ssm = tree.get("ssm_cfg") or {}
    if not isinstance(ssm, Mapping):
        raise UserError(f"{where} is damaged: its ssm_cfg is {str(ssm)[:80]!r}")
    fixed: Allowed = {
        "layer": ("Mamba1",),
        "dt_rank": ("auto", math.ceil(dim / 16)),
        "conv_bias": (True,),
        "bias": (False,),
    }
    only(ssm, fixed, where, "ssm_cfg.")
    if unknown := sorted(ssm.keys() - SIZES.keys() - fixed.keys() - NO_MATTER):
        raise UserError(f"{where} has ssm_cfg.{str(unknown[0])[:80]}, which unmask does not know")
    sizes = {ours: value(ssm, theirs, int, where) for theirs, ours in SIZES.items() if theirs in ssm}
    return {"hidden_dim": dim, "n_blocks": value(tree, "n_layer", int, where), "dropout": 0.0, **sizes}


def _check_complements(complements: Any, where: str | Path) -> None:
    """Raise if the complements of ids, as config.json has them (string to id), are not ours."""
    wanted = {str(token): int(other) for token, other in enumerate(COMPLEMENT)}
    named = {str(token): other for token, other in complements.items()} if isinstance(complements, Mapping) else None
    if named is None or not named.items() <= wanted.items() or len(named) < VOCAB.size:
        raise UserError(f"{where} has a complement_map other than A and T, C and G (ids 7 and 10, 8 and 9)")


def _ported_mamba(tree: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """The sizes of a Mamba, under the names of transformers."""
    names = {"hidden_dim": "hidden_size", "n_blocks": "num_hidden_layers"}
    more = {"state_dim": "state_size", "conv_width": "conv_kernel", "expand": "expand"}
    network = {ours: value(tree, theirs, int, where) for ours, theirs in names.items()}
    network |= {ours: value(tree, theirs, int, where) for ours, theirs in more.items() if theirs in tree}
    dim = network["hidden_dim"]
    fixed: Allowed = {
        "use_bias": (False,),
        "use_conv_bias": (True,),
        "hidden_act": ("silu",),
        "layer_norm_epsilon": (1e-5,),
        "tie_word_embeddings": (True,),
        "time_step_rank": ("auto", math.ceil(dim / 16)),
        "intermediate_size": (network.get("expand", 2) * dim,),
    }
    only(tree, fixed, where)
    understood(tree, {*HARMLESS, *names.values(), *more.values(), *fixed, *PORTED, *ORIGIN}, where)
    return network | {"dropout": 0.0}


def our_tensors(settings: Any, tensors: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """The tensors of a file under our names, each once."""
    if getattr(settings, "strands", "ph") == "ph" and (odd := sorted(n for n in tensors if ".submodule." in n)):
        raise UserError(f"{where} does not fit this model: {odd[0]} needs a network with rcps, but its config has none")
    renamed = {_our_name(name): tensor for name, tensor in tensors.items()}
    if len(renamed) < len(tensors):
        twice = next(name for name in tensors if _our_name(name) != name and _our_name(name) in tensors)
        raise UserError(f"{where} does not fit this model: it has {_our_name(twice)} twice, once as {twice}")
    return _without_copies(renamed, where)


def _our_name(name: str) -> str:
    """The name without leading prefixes and without those of the wrappers for two strands."""
    name = BEFORE.sub("", name).replace(".submodule.", ".").replace("lm_head.lm_head.", "lm_head.")
    name = name.replace(".word_embeddings.embedding.", ".word_embeddings.")
    return re.sub(r"^backbone\.embedding\.", EMBEDDINGS, name)  # the name in the first files of state-spaces


def embedding_of(names: Mapping[str, Tensor]) -> str:
    """The name of the embedding."""
    return next((name for name in (f"{EMBEDDINGS}word_embeddings.weight", f"{EMBEDDINGS}weight") if name in names), "")


def _without_copies(tensors: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """The tensors without tied weights and complements, after a check of their values."""
    kept = dict(tensors)
    for name, tensor in tensors.items():
        wanted, what = None, ""
        if name == "lm_head.weight":
            what = embedding_of(tensors) or "an embedding"
            wanted = tensors.get(what)
        elif re.search(r"\.mamba_rev\.(in|out)_proj\.", name):
            what = name.replace(".mamba_rev.", ".mamba_fwd.")
            wanted = tensors.get(what)
        elif name.endswith(".complement_map"):
            wanted, what = torch.from_numpy(COMPLEMENT[: tensor.numel()]), "that of A and T, C and G"
        else:
            continue
        if wanted is None or wanted.shape != tensor.shape or not torch.equal(wanted, tensor):
            tied = "" if name.endswith(".complement_map") else ", to which it is tied"
            raise UserError(f"{where} does not fit this model: {name} is not {what}{tied}")
        del kept[name]
    return kept
