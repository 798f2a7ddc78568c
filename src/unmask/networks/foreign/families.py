"""Published models on the transformer of Llama, Qwen2 and Qwen3: one record for each family.

A record says what the config.json of a family looks like, which columns see which (`topology`), where the prediction of
a token is read (`prediction`), and the id of [MASK] where config.json does not have it. A field that would change what
the network computes must have the value that our network computes, else the error names it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from ...errors import UserError
from ..kernels.positions import frequencies
from .fields import HARMLESS, Allowed, only, understood, value

SIZES = {  # our settings, and the fields of a config.json of transformers
    "hidden_dim": "hidden_size",
    "n_blocks": "num_hidden_layers",
    "n_heads": "num_attention_heads",
    "n_kv_heads": "num_key_value_heads",
    "head_dim": "head_dim",
    "mlp_dim": "intermediate_size",
    "norm_eps": "rms_norm_eps",
    "tied": "tie_word_embeddings",
    "embedding_rows": "vocab_size",
}
OLMO_SIZES = {
    "hidden_dim": "d_model",
    "n_blocks": "n_layers",
    "n_heads": "n_heads",
    "n_kv_heads": "n_kv_heads",
    "mlp_dim": "mlp_hidden_size",
    "norm_eps": "rms_norm_eps",
    "tied": "weight_tying",
    "embedding_rows": "embedding_size",
}
KINDS = {"norm_eps": float, "tied": bool}  # all others are whole numbers
ABSENT = {"n_kv_heads": None, "head_dim": None, "tied": False}  # where a config.json does not say
EXPERTS = ("num_experts", "n_routed_experts", "num_local_experts", "moe_num_experts", "num_experts_per_tok")
PLAIN: Allowed = {  # of transformers
    "hidden_act": ("silu",),
    "mlp_bias": (False,),
    "use_sliding_window": (False,),
    "use_mrope": (False,),
    "pretraining_tp": (1,),
}
UNREAD = {"attention_dropout", "sliding_window", "max_window_layers", "fuse_cross_entropy"}  # training, or switched off
ROTARY = {"rope_theta", "rope_scaling", "rope_parameters", "max_position_embeddings", "layer_types"}
LLAMA3 = ("factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings")  # `rotary_scaling`
OLMO_PLAIN: Allowed = {
    "activation_type": ("silu",),
    "alibi": (False,),
    "attention_layer_norm": (False,),
    "bias_for_layer_norm": (False, None),
    "block_type": ("llama",),
    "include_bias": (False,),
    "include_qkv_bias": (False, None),
    "input_emb_norm": (False,),
    "layer_norm_type": ("rms",),
    "layer_norm_with_affine": (True,),
    "multi_query_attention": (False, None),
    "rope": (True,),
    "scale_logits": (False,),
}
OLMO_UNREAD = {  # training, speed, precision (ours is full), and what the values above switch off
    "alibi_bias_max", "attention_dropout", "attention_layer_norm_with_affine", "block_group_size", "embedding_dropout",
    "flash_attention", "init_cutoff_factor", "init_device", "init_fn", "init_std", "max_sequence_length", "mlp_ratio",
    "precision", "residual_dropout", "rope_full_precision", "rope_theta", "vocab_size",
}  # fmt: skip

INSIDE = (
    "input_layernorm", "self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj", "self_attn.o_proj",
    "self_attn.q_norm", "self_attn.k_norm", "post_attention_layernorm", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj",
)  # fmt: skip
Names = Mapping[str, str]  # of tensors in files to ours, without the last word; N is the number of a block
TRANSFORMERS: Names = {
    "model.embed_tokens": "embed_tokens",
    "model.norm": "norm",
    "lm_head": "lm_head",
    **{f"model.layers.N.{part}": f"blocks.N.{part}" for part in INSIDE},
}
LLADA: Names = {
    "model.transformer.wte": "embed_tokens",
    "model.transformer.ln_f": "norm",
    "model.transformer.ff_out": "lm_head",
    "model.transformer.blocks.N.attn_norm": "blocks.N.input_layernorm",
    "model.transformer.blocks.N.q_proj": "blocks.N.self_attn.q_proj",
    "model.transformer.blocks.N.k_proj": "blocks.N.self_attn.k_proj",
    "model.transformer.blocks.N.v_proj": "blocks.N.self_attn.v_proj",
    "model.transformer.blocks.N.attn_out": "blocks.N.self_attn.o_proj",
    "model.transformer.blocks.N.ff_norm": "blocks.N.post_attention_layernorm",
    "model.transformer.blocks.N.ff_proj": "blocks.N.mlp.gate_proj",
    "model.transformer.blocks.N.up_proj": "blocks.N.mlp.up_proj",
    "model.transformer.blocks.N.ff_out": "blocks.N.mlp.down_proj",
}
GGUF: Names = {
    "token_embd": "embed_tokens",
    "output_norm": "norm",
    "output": "lm_head",
    "blk.N.attn_norm": "blocks.N.input_layernorm",
    "blk.N.attn_q": "blocks.N.self_attn.q_proj",
    "blk.N.attn_k": "blocks.N.self_attn.k_proj",
    "blk.N.attn_v": "blocks.N.self_attn.v_proj",
    "blk.N.attn_output": "blocks.N.self_attn.o_proj",
    "blk.N.ffn_norm": "blocks.N.post_attention_layernorm",
    "blk.N.ffn_gate": "blocks.N.mlp.gate_proj",
    "blk.N.ffn_up": "blocks.N.mlp.up_proj",
    "blk.N.ffn_down": "blocks.N.mlp.down_proj",
}
NUMBERED = re.compile(r"(.+?\.)(\d+)(\..+)")
FREQUENCIES = "rotary_emb.inv_freq"  # buffers of old files, which we compute


@dataclass(frozen=True)
class Trunk:
    """A network as config.json files describe it."""

    network: Mapping[str, Any] = field(default_factory=dict)  # settings that no field says
    keys: Mapping[str, str] = field(default_factory=lambda: SIZES)  # our settings, and their fields
    absent: Mapping[str, Any] = field(default_factory=lambda: ABSENT)  # settings whose field may be missing
    plain: Allowed = field(default_factory=lambda: {**PLAIN, "attention_bias": (False,)})  # the only values we compute
    missing: Mapping[str, Any] = field(default_factory=dict)  # what a field is that is not there
    unread: frozenset[str] = frozenset(UNREAD)  # fields that do not change what is computed
    positions: str = "max_position_embeddings"  # the field with the longest row


LLAMA = Trunk()
MISTRAL = Trunk(
    plain={**LLAMA.plain, "sliding_window": (None,)},
    missing={"sliding_window": 4096},
    unread=frozenset(UNREAD - {"sliding_window"}),
)
QWEN2 = Trunk({"qkv_bias": True}, plain=PLAIN, unread=frozenset({*UNREAD, "attention_bias"}))
QWEN3 = Trunk({"qk_norm": True}, absent={**ABSENT, "head_dim": 128})
OLMO = Trunk(
    keys=OLMO_SIZES, plain=OLMO_PLAIN, unread=frozenset(OLMO_UNREAD), positions="max_sequence_length"
)  # of LLaDA, whose code began as OLMo's


@dataclass(frozen=True)
class ModelFamily:
    """A kind of published models."""

    model_type: str
    trunk: Trunk
    topology: Literal["causal", "bidirectional", "block_causal"]
    prediction: Literal["same", "shifted"] = "same"
    mask: int | None = None  # the id of [MASK] where config.json does not say
    block: str = "block_size"  # the field with the size of a block of a block_causal model ...
    block_size: int | None = None  # ... and its default
    name: str = ""  # a word in the name of the model, where config.json does not tell two families apart


FAMILIES = (
    ModelFamily("llama", LLAMA, "causal"),
    ModelFamily("mistral", MISTRAL, "causal"),
    ModelFamily("qwen2", QWEN2, "causal"),
    ModelFamily("qwen3", QWEN3, "causal"),
    ModelFamily("llada", OLMO, "bidirectional", mask=126336),  # LLaDA 8B, 1.5 and iLLaDA
    ModelFamily("Dream", QWEN2, "bidirectional", "shifted", mask=151666),  # Dream, Dream-Coder, DiffuCoder
    ModelFamily("sdar", QWEN3, "causal", block_size=4, name="uno-qwen3"),  # an SDAR by its config.json only
    ModelFamily("sdar", QWEN3, "block_causal", mask=151669, block_size=4),
    ModelFamily("Fast_dLLM_Qwen", QWEN2, "block_causal", "shifted", mask=151665, block="bd_size", block_size=32),
    ModelFamily("a2d-llama", LLAMA, "block_causal", block_size=32, name="bd3lm"),  # dllm's Tiny-A2D
    ModelFamily("a2d-qwen2", QWEN2, "block_causal", block_size=32, name="bd3lm"),
    ModelFamily("a2d-qwen3", QWEN3, "block_causal", mask=151669, block_size=32, name="bd3lm"),
    ModelFamily("a2d-llama", LLAMA, "bidirectional"),
    ModelFamily("a2d-qwen2", QWEN2, "bidirectional"),
    ModelFamily("a2d-qwen3", QWEN3, "bidirectional", mask=151669),
)


def family_of(tree: Mapping[str, Any], name: str = "") -> ModelFamily | None:
    """The family of a config.json; `name` is that of the model or its folder."""
    names = f"{name} {tree.get('_name_or_path', '')}".lower()
    kind = tree.get("model_type")
    return next((known for known in FAMILIES if known.model_type == kind and known.name in names), None)


def is_family(tree: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a family."""
    return any(known.model_type == tree.get("model_type") for known in FAMILIES)


def method_of(family: ModelFamily) -> str:
    """The method of a family's models."""
    return {"causal": "ar", "bidirectional": "mdlm", "block_causal": "block"}[family.topology]


def block_size(family: ModelFamily, tree: Mapping[str, Any], where: str | Path) -> int:
    """The tokens of a block of a block-causal family."""
    said = tree.get(family.block)
    size = int(value({family.block: family.block_size if said is None else said}, family.block, int, where))
    if size < 1:
        raise UserError(f"{where} has {family.block} {size}, but a block has at least one token")
    return size


def refuse_experts(tree: Mapping[str, Any], where: str | Path) -> None:
    """Raise for a mixture of experts."""
    if any(tree.get(key) for key in EXPERTS) or "moe" in str(tree.get("model_type")).lower():
        raise UserError(
            f"{where} describes a mixture of experts ({str(tree.get('model_type'))[:80]}), which unmask does not run; "
            "give a dense model"
        )


def settings(tree: Mapping[str, Any], where: str | Path, family: ModelFamily | None = None) -> dict[str, Any]:
    """The settings of the network that a config.json describes."""
    family = family or family_of(tree)
    assert family is not None
    trunk = family.trunk
    refuse_experts(tree, where)
    only({**trunk.missing, **tree}, trunk.plain, where)
    known = {*HARMLESS, *trunk.plain, *trunk.unread, *trunk.keys.values(), *ROTARY, trunk.positions}
    understood(tree, known | ({family.block} if family.block_size else set()), where)
    if any(kind != "full_attention" for kind in tree.get("layer_types") or ()):
        raise UserError(f'{where} has layer_types other than "full_attention", which unmask does not run')
    sizes = {ours: _size(tree, ours, theirs, trunk, where) for ours, theirs in trunk.keys.items()}
    return {**sizes, **_rotary(tree, where), **trunk.network, "prediction": family.prediction}


def _size(tree: Mapping[str, Any], ours: str, theirs: str, trunk: Trunk, where: str | Path) -> Any:
    if tree.get(theirs) is None and ours in trunk.absent:
        return trunk.absent[ours]
    if ours == "embedding_rows" and tree.get(theirs) is None:
        theirs = "vocab_size"
    return value(tree, theirs, KINDS.get(ours, int), where)


def _rotary(tree: Mapping[str, Any], where: str | Path) -> dict[str, Any]:
    """Theta of the rotary positions, as any version of transformers writes it, and the scaling of Llama 3.1."""
    theta, scaling = tree.get("rope_theta"), None
    for section in ("rope_scaling", "rope_parameters"):
        part = tree.get(section)
        if part is None:
            continue
        if not isinstance(part, Mapping):
            raise UserError(f"{where} is damaged: its {section} is {str(part)[:80]!r}")
        kind = {"rope_type": ("default", "llama3"), "type": ("default", "llama3"), "partial_rotary_factor": (1.0, 1)}
        only(part, kind, where, f"{section}.")
        scaled = "llama3" in (part.get("rope_type"), part.get("type"))
        understood(part, {*kind, "rope_theta", *(LLAMA3 if scaled else ())}, where, f"{section}.")
        if scaled:
            scaling = tuple(float(value(part, key, float, f"{where}, {section},")) for key in LLAMA3)
        theta = theta if part.get("rope_theta") is None else part["rope_theta"]
    base = float(value({"rope_theta": 10_000.0 if theta is None else theta}, "rope_theta", float, where))
    return {"rotary_base": base, "rotary_scaling": scaling}


# -- tensors ---------------------------------------------------------------------------------------------------------


def renamed(name: str, names: Names) -> str:
    """The name of a tensor by a table; one that it does not know stays as it is."""
    number = NUMBERED.fullmatch(name)
    stem, _, leaf = (f"{number[1]}N{number[3]}" if number else name).rpartition(".")
    if stem not in names:
        return name
    other = names[stem].replace(".N.", f".{number[2]}.") if number else names[stem]
    return f"{other}.{leaf}"


def our_tensors(settings: Any, tensors: Mapping[str, Tensor], where: str | Path) -> dict[str, Tensor]:
    """The tensors of a file under our names, all of one type: that of the embedding."""
    named = {}
    for name, tensor in tensors.items():
        if name.endswith(FREQUENCIES):
            _check_frequencies(name, tensor, settings, where)
        else:
            named[renamed(name.removeprefix("backbone."), {**TRANSFORMERS, **LLADA})] = tensor
    table, head = named.get("embed_tokens.weight"), named.get("lm_head.weight")
    if settings.tied and head is not None:
        if table is None or not torch.equal(table, head):
            raise UserError(f"{where} does not fit this model: its head is not its embedding, to which it is tied")
        del named["lm_head.weight"]
    if table is not None and table.is_floating_point():
        named = {name: t.to(table.dtype) if t.is_floating_point() else t for name, t in named.items()}
    return {f"backbone.{name}": tensor for name, tensor in named.items()}


def _check_frequencies(name: str, theirs: Tensor, settings: Any, where: str | Path) -> None:
    """Raise if rotary frequencies are not those of config.json, up to 16-bit rounding."""
    dim = settings.head_dim or settings.hidden_dim // settings.n_heads
    ours = frequencies(dim, settings.rotary_base, settings.rotary_scaling)
    if theirs.shape != ours.shape or not torch.allclose(theirs.float().cpu(), ours, rtol=1e-2):
        raise UserError(f"{where} does not fit this model: {name} does not agree with its config.json")


# -- what transformers can read --------------------------------------------------------------------------------------


def causal_tree(settings: Any, rows: int, length: int) -> dict[str, Any] | None:
    """The config.json for transformers of a causal network with these settings; None if it has no such network."""
    kinds = {(False, False): "llama", (True, False): "qwen2", (False, True): "qwen3"}
    kind = kinds.get((settings.qkv_bias, settings.qk_norm))
    if kind is None or settings.prediction == "shifted":
        return None
    sizes = {theirs: getattr(settings, ours) for ours, theirs in SIZES.items()}
    return {
        "architectures": [f"{kind.capitalize()}ForCausalLM"],
        "model_type": kind,
        **sizes,
        "num_key_value_heads": settings.n_kv_heads or settings.n_heads,
        "head_dim": settings.head_dim or settings.hidden_dim // settings.n_heads,
        "vocab_size": settings.embedding_rows or rows,
        "hidden_act": "silu",
        "max_position_embeddings": length,
        "rope_theta": settings.rotary_base,
        "rope_parameters": {"rope_theta": settings.rotary_base, **_scaling(settings.rotary_scaling)},
    }


def _scaling(scaling: Sequence[float] | None) -> dict[str, Any]:
    if scaling is None:
        return {"rope_type": "default"}
    *rates, positions = scaling
    return {"rope_type": "llama3", **dict(zip(LLAMA3, [*rates, int(positions)], strict=True))}


def their_name(name: str) -> str:
    """The name that transformers has for a tensor of ours."""
    return renamed(name.removeprefix("backbone."), {ours: theirs for theirs, ours in TRANSFORMERS.items()})
