"""A model in the published layout, and GPT-NeoX on the same tensors."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import save_file
from tokenizers import Tokenizer as Backend
from tokenizers import models, pre_tokenizers
from torch import Tensor

from support.neox import neox

DIM, HEADS, COND, BLOCKS, LENGTH = 32, 4, 12, 12, 24
BYTES = 259  # tokens of the tokenizer of bytes
ROTARY = "backbone.rotary_emb.inv_freq"
PUBLISHED = {
    "_name_or_path": "kuleshov-group/mdlm-owt", "architectures": ["MDLM"],
    "auto_map": {"AutoConfig": "configuration_mdlm.MDLMConfig", "AutoModelForMaskedLM": "modeling_mdlm.MDLM"},
    "cond_dim": COND, "dropout": 0.1, "hidden_dim": DIM, "model_length": LENGTH, "model_type": "mdlm",
    "n_blocks": BLOCKS, "n_heads": HEADS, "return_dict": False, "time_conditioning": False, "torch_dtype": "float32",
    "transformers_version": "4.38.2", "vocab_size": BYTES,
}  # fmt: skip


def published_tensors(
    vocab: int = BYTES,
    dim: int = DIM,
    cond: int = COND,
    blocks: int = BLOCKS,
    heads: int = HEADS,
    prefix: str = "backbone.",
) -> dict[str, Tensor]:
    """The tensors of the published repositories in the order of their file, drawn at random."""
    generator = torch.Generator().manual_seed(3)
    shapes: dict[str, tuple[int, ...]] = {
        "vocab_embed.embedding": (vocab, dim),
        "sigma_map.mlp.0.weight": (cond, 256),
        "sigma_map.mlp.0.bias": (cond,),
        "sigma_map.mlp.2.weight": (cond, cond),
        "sigma_map.mlp.2.bias": (cond,),
        "rotary_emb.inv_freq": (dim // heads // 2,),
    }
    for i in range(blocks):
        own = {
            "norm1.weight": (dim,), "attn_qkv.weight": (3 * dim, dim), "attn_out.weight": (dim, dim),
            "norm2.weight": (dim,), "mlp.0.weight": (4 * dim, dim), "mlp.0.bias": (4 * dim,),
            "mlp.2.weight": (dim, 4 * dim), "mlp.2.bias": (dim,), "adaLN_modulation.weight": (6 * dim, cond),
            "adaLN_modulation.bias": (6 * dim,),
        }  # fmt: skip
        shapes |= {f"blocks.{i}.{name}": shape for name, shape in own.items()}
    shapes |= {
        "output_layer.norm_final.weight": (dim,),
        "output_layer.linear.weight": (vocab, dim),
        "output_layer.linear.bias": (vocab,),
        "output_layer.adaLN_modulation.weight": (2 * dim, cond),
        "output_layer.adaLN_modulation.bias": (2 * dim,),
    }
    tensors = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    size = dim // heads
    tensors["rotary_emb.inv_freq"] = 1.0 / (10_000 ** (torch.arange(0, size, 2).float() / size))  # their formula
    return {prefix + name: tensor for name, tensor in tensors.items()}


def published_folder(path: Path, tensors: dict[str, Tensor] | None = None, **config: Any) -> Path:
    """A folder of exactly the published layout: no tokenizer, and code that must not run."""
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(PUBLISHED | config))
    save_file(tensors or published_tensors(), path / "model.safetensors", metadata={"format": "pt"})
    trap = f"open({str(path / 'RAN')!r}, 'w').close()\n"
    for name in ("configuration_mdlm.py", "modeling_mdlm.py"):
        (path / name).write_text(trap)
    return path


def gpt2_like(folder: Path, size: int = 50257) -> Path:
    """A tokenizer of GPT-2's size and special token, and none of its words."""
    words = {f"t{i}": i for i in range(size - 1)} | {"<|endoftext|>": size - 1}
    backend = Backend(models.WordLevel(words, unk_token="t0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    folder.mkdir(parents=True)
    backend.save(str(folder / "tokenizer.json"))
    return folder


def gpt_neox(
    tensors: dict[str, Tensor], sigma: float, heads: int = HEADS, causal: bool = False, prefix: str = "backbone."
):
    """Logits of tokens by transformers' GPT-NeoX, with adaLN at one sigma folded into its weights."""
    t = {name.removeprefix(prefix): tensor.float() for name, tensor in tensors.items()}
    vocab, dim = t["vocab_embed.embedding"].shape
    blocks = sum(name.endswith("attn_out.weight") for name in t)
    cond = None if causal else _condition(t, sigma)

    def modulation(name: str, parts: int) -> list[Tensor]:
        """Shift, scale, gate, ...; a network without adaLN has shift 0, scale 0 and gate 1."""
        if cond is None:
            return [torch.full((dim,), float(i % 3 == 2)) for i in range(parts)]
        return list((t[f"{name}.adaLN_modulation.weight"] @ cond + t[f"{name}.adaLN_modulation.bias"]).chunk(parts))

    state = {"gpt_neox.embed_in.weight": t["vocab_embed.embedding"], "lm_head.weight": t["output_layer.linear.weight"]}
    for i in range(blocks):
        b = {n.removeprefix(f"blocks.{i}."): v for n, v in t.items() if n.startswith(f"blocks.{i}.")}
        shift1, scale1, gate1, shift2, scale2, gate2 = modulation(f"blocks.{i}", 6)
        qkv = b["attn_qkv.weight"].view(3, heads, dim // heads, dim).permute(1, 0, 2, 3).reshape(3 * dim, dim)
        own = {
            "input_layernorm.weight": b["norm1.weight"] * (1 + scale1), "input_layernorm.bias": shift1,
            "post_attention_layernorm.weight": b["norm2.weight"] * (1 + scale2),
            "post_attention_layernorm.bias": shift2, "attention.query_key_value.weight": qkv,
            "attention.dense.weight": gate1[:, None] * b["attn_out.weight"],
            "mlp.dense_h_to_4h.weight": b["mlp.0.weight"], "mlp.dense_h_to_4h.bias": b["mlp.0.bias"],
            "mlp.dense_4h_to_h.weight": gate2[:, None] * b["mlp.2.weight"],
            "mlp.dense_4h_to_h.bias": gate2 * b["mlp.2.bias"],
        }  # fmt: skip
        state |= {f"gpt_neox.layers.{i}.{name}": value for name, value in own.items()}
    shift, scale = modulation("output_layer", 2)
    state["gpt_neox.final_layer_norm.weight"] = t["output_layer.norm_final.weight"] * (1 + scale)
    state["gpt_neox.final_layer_norm.bias"] = shift
    oracle = neox(vocab, dim, blocks, heads)
    oracle.load_state_dict(state, strict=True)

    def logits(tokens: Tensor) -> Tensor:
        length = tokens.shape[1]
        mask = torch.zeros(len(tokens), 1, length, length)
        if causal:
            mask = mask.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        with torch.no_grad():
            return oracle(input_ids=tokens, attention_mask=mask).logits + t["output_layer.linear.bias"]

    return logits


def _condition(t: dict[str, Tensor], sigma: float) -> Tensor:
    angles = [sigma * 10_000.0 ** (-i / 128) for i in range(128)]
    h = torch.tensor([*map(math.cos, angles), *map(math.sin, angles)])
    for layer in ("0", "2"):
        h = t[f"sigma_map.mlp.{layer}.weight"] @ h + t[f"sigma_map.mlp.{layer}.bias"]
        h = h * torch.sigmoid(h)
    return h


def our_logits(model: Any, tokens: Tensor, sigma: float | None = None) -> Tensor:
    """The same by the network of an LM."""
    with torch.no_grad():
        if sigma is None:
            return model.backbone.head(model.backbone(tokens)[0])
        cond = model.backbone.condition(torch.full((len(tokens),), sigma))
        return model.backbone.head(model.backbone(tokens, condition=cond)[0])


def tokens_of(vocab: int = BYTES, length: int = LENGTH) -> Tensor:
    return torch.randint(vocab, (2, length), generator=torch.Generator().manual_seed(1))


def equal(a: dict[str, Tensor], b: dict[str, Tensor]) -> bool:
    return a.keys() == b.keys() and all(a[k].dtype == b[k].dtype and torch.equal(a[k], b[k]) for k in a)
