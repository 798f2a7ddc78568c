"""Folders of models on a Llama or Qwen trunk, scaled down: exact fields and tensor names of each family."""

from __future__ import annotations

import json
from functools import cache
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from unmask.data.tokenizer import byte_characters

EOS, MASK, ROWS = 256, 258, 264  # the embedding is longer than the vocabulary of 259
SIZES: dict[str, Any] = {
    "hidden_size": 24, "num_hidden_layers": 2, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "vocab_size": ROWS, "max_position_embeddings": 64, "rms_norm_eps": 1e-6,
    "hidden_act": "silu", "tie_word_embeddings": False, "torch_dtype": "bfloat16", "use_cache": True,
    "initializer_range": 0.02, "attention_dropout": 0.0, "bos_token_id": EOS, "eos_token_id": EOS,
    "transformers_version": "4.46.2",
}  # fmt: skip
QWEN: dict[str, Any] = {
    "rope_theta": 1000000.0, "rope_scaling": None, "use_sliding_window": False, "sliding_window": None,
    "max_window_layers": 2,
}  # fmt: skip
LLADA: dict[str, Any] = {  # as published, with other sizes
    "activation_type": "silu", "alibi": False, "alibi_bias_max": 8.0, "architectures": ["LLaDAModelLM"],
    "attention_dropout": 0.0, "attention_layer_norm": False, "attention_layer_norm_with_affine": True,
    "auto_map": {"AutoConfig": "configuration_llada.LLaDAConfig", "AutoModel": "modeling_llada.LLaDAModelLM"},
    "bias_for_layer_norm": False, "block_group_size": 1, "block_type": "llama", "d_model": 24, "embedding_dropout": 0.0,
    "embedding_size": ROWS, "eos_token_id": EOS, "flash_attention": False, "include_bias": False,
    "include_qkv_bias": False, "init_cutoff_factor": None, "init_device": "meta", "init_fn": "mitchell",
    "init_std": 0.02, "input_emb_norm": False, "layer_norm_type": "rms", "layer_norm_with_affine": True,
    "mask_token_id": MASK, "max_sequence_length": 64, "mlp_hidden_size": 40, "mlp_ratio": 4, "model_type": "llada",
    "multi_query_attention": None, "n_heads": 4, "n_kv_heads": 2, "n_layers": 2, "pad_token_id": EOS,
    "precision": "amp_bf16", "residual_dropout": 0.0, "rms_norm_eps": 1e-6, "rope": True, "rope_full_precision": True,
    "rope_theta": 500000.0, "scale_logits": False, "transformers_version": "4.46.3", "use_cache": False,
    "vocab_size": ROWS, "weight_tying": False,
}  # fmt: skip
LLADA_NAMES = {  # of transformers' Llama to LLaDA's
    "model.embed_tokens": "model.transformer.wte", "model.norm": "model.transformer.ln_f",
    "lm_head": "model.transformer.ff_out", "input_layernorm": "attn_norm", "post_attention_layernorm": "ff_norm",
    "self_attn.q_proj": "q_proj", "self_attn.k_proj": "k_proj", "self_attn.v_proj": "v_proj",
    "self_attn.o_proj": "attn_out", "mlp.gate_proj": "ff_proj", "mlp.up_proj": "up_proj", "mlp.down_proj": "ff_out",
    "model.layers.": "model.transformer.blocks.",
}  # fmt: skip
LLAMA3 = {  # one pair of channels turns as before, one more slowly, one in between
    "rope_type": "llama3", "factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 512,
}  # fmt: skip
# family: the class of transformers with its network, more of its config, theta, its config.json
FAMILIES: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {
    "llama": ("Llama", {"rope_theta": 1e5}, {"model_type": "llama", "mlp_bias": False, "attention_bias": False}),
    "llama3": ("Llama", {"rope_theta": 1e5, "rope_scaling": LLAMA3}, {"model_type": "llama"}),
    "mistral": ("Mistral", {"rope_theta": 1e6, "sliding_window": None, "head_dim": 8}, {"model_type": "mistral"}),
    "qwen2": ("Qwen2", QWEN, {"model_type": "qwen2"}),
    "qwen3": ("Qwen3", QWEN | {"head_dim": 8}, {"model_type": "qwen3", "attention_bias": False}),
    "llada": ("Llama", {"rope_theta": 500000.0}, LLADA),
    "Dream": ("Qwen2", QWEN, {"model_type": "Dream", "architectures": ["DreamModel"], "mask_token_id": MASK}),
    "a2d-qwen3": ("Qwen3", QWEN | {"head_dim": 8, "tie_word_embeddings": True}, {"model_type": "a2d-qwen3"}),
    "sdar": ("Qwen3", QWEN | {"head_dim": 8}, {"model_type": "sdar", "block_size": 4, "mask_token_id": MASK}),
    "Fast_dLLM_Qwen": ("Qwen2", QWEN, {"model_type": "Fast_dLLM_Qwen", "bd_size": 32}),
}
SHIFTED = ("Dream", "Fast_dLLM_Qwen")
CAUSAL = ("llama", "llama3", "mistral", "qwen2", "qwen3")


@cache
def reference(family: str) -> Any:
    """The network of transformers, in which every weight matters."""
    import transformers

    kind, more, _ = FAMILIES[family]
    config = {key: value for key, value in (SIZES | more).items() if key not in ("torch_dtype", "rope_scaling")}
    theta = config.pop("rope_theta")
    rope = {"rope_type": "default", "rope_theta": theta} | (more.get("rope_scaling") or {})
    settings = getattr(transformers, f"{kind}Config")(**config, rope_parameters=rope, attn_implementation="eager")
    torch.manual_seed(0)
    net = getattr(transformers, f"{kind}ForCausalLM")(settings).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + ("norm" in name))
    return net


def tensors_of(family: str) -> dict[str, Tensor]:
    """The tensors of the reference under the names of the family; a tied head is there once."""
    net = reference(family)
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    if net.config.tie_word_embeddings:
        del state["lm_head.weight"]
    if family != "llada":
        return state
    renamed = {}
    for name, tensor in state.items():
        for theirs, ours in LLADA_NAMES.items():
            name = name.replace(theirs, ours)
        renamed[name] = tensor
    return renamed


def config_of(family: str, **changes: Any) -> dict[str, Any]:
    _, more, own = FAMILIES[family]
    tree = dict(own) if family == "llada" else SIZES | more | own
    return {key: value for key, value in (tree | changes).items() if value is not ...}


def byte_tokenizer(mask: str | None = "<|mask|>") -> Backend:
    """Bytes, <|endoftext|>, <|im_end|> and a mask token."""
    backend = Backend(models.BPE({character: byte for byte, character in enumerate(byte_characters())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    special = ["<|endoftext|>", "<|im_end|>", *([mask] if mask else [])]
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in special])
    return backend


def write(
    folder: Path,
    family: str,
    *,
    dtype: torch.dtype = torch.float32,
    shards: int = 0,
    tensors: dict[str, Tensor] | None = None,
    mask: str | None = "<|mask|>",
    tokenizer: dict[str, Any] | None = None,
    **changes: Any,
) -> Path:
    """A folder as published, with code that must not run."""
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "config.json").write_text(json.dumps(config_of(family, **changes)))
    held = {name: t.to(dtype) for name, t in (tensors or tensors_of(family)).items()}
    if shards:
        names = sorted(held)
        places = {name: f"model-{i % shards + 1:05d}-of-{shards:05d}.safetensors" for i, name in enumerate(names)}
        for place in set(places.values()):
            part = {name: held[name] for name in names if places[name] == place}
            save_file(part, folder / place, metadata={"format": "pt"})
        index = {"metadata": {"total_size": 0}, "weight_map": places}
        (folder / "model.safetensors.index.json").write_text(json.dumps(index))
    else:
        save_file(held, folder / "model.safetensors", metadata={"format": "pt"})
    byte_tokenizer(mask if family not in CAUSAL else None).save(str(folder / "tokenizer.json"))
    names = {"eos_token": "<|endoftext|>", "pad_token": "<|endoftext|>"} | (tokenizer or {})
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    for name in ("modeling_llada", "modeling_dream", "tokenization_dream"):
        (folder / f"{name}.py").write_text(f"open({str(folder / 'RAN')!r}, 'w').close()\n")
    return folder
