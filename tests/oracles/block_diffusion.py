"""The forward pass of BD3-LM and BlockGen on tensors of the published names: one dense mask over both streams."""

from __future__ import annotations

import math
from collections.abc import Mapping

import torch
import torch.nn.functional as F
from torch import Tensor


def block_mask(length: int, size: int, by_tokens: bool = False) -> Tensor:
    """(2 L, 2 L) for [noisy; clean], by the rules of the papers, pair by pair."""
    mask = torch.zeros(2 * length, 2 * length, dtype=torch.bool)
    for query in range(2 * length):
        for key in range(2 * length):
            at, other = query % length, key % length
            noisy, sees_noisy = query < length, key < length
            if noisy and sees_noisy:  # block-diagonal
                mask[query, key] = at // size == other // size
            elif noisy:  # offset block-causal
                mask[query, key] = at // size > other // size
            elif not sees_noisy:  # block-causal, or BlockGen's x0_causal
                mask[query, key] = at >= other if by_tokens else at // size >= other // size
    return mask


def block_logits(
    tensors: Mapping[str, Tensor], noisy: Tensor, clean: Tensor, size: int, heads: int, by_tokens: bool = False
) -> Tensor:
    """(B, L, V): logits of the noisy half, from a network that is told sigma = 0."""
    t = {name.removeprefix("backbone."): tensor.double() for name, tensor in tensors.items()}
    length, blocks = noisy.shape[1], sum(name.endswith("attn_out.weight") for name in t)
    x = t["vocab_embed.embedding"][torch.cat([noisy, clean], 1)]
    cond = torch.cat([torch.ones(128), torch.zeros(128)]).double()  # cosines and sines of 0
    for layer in ("0", "2"):
        cond = F.silu(t[f"sigma_map.mlp.{layer}.weight"] @ cond + t[f"sigma_map.mlp.{layer}.bias"])
    mask = block_mask(length, size, by_tokens)
    for i in range(blocks):
        b = {name.removeprefix(f"blocks.{i}."): tensor for name, tensor in t.items() if name.startswith(f"blocks.{i}.")}
        m = (b["adaLN_modulation.weight"] @ cond + b["adaLN_modulation.bias"]).chunk(6)
        qkv = _norm(x, b["norm1.weight"], m[0], m[1]) @ b["attn_qkv.weight"].T
        q, k, v = (part.unflatten(-1, (heads, -1)).transpose(1, 2) for part in qkv.chunk(3, -1))
        h = F.scaled_dot_product_attention(_turned(q, length), _turned(k, length), v, attn_mask=mask)
        x = x + m[2] * (h.transpose(1, 2).flatten(2) @ b["attn_out.weight"].T)
        h = _norm(x, b["norm2.weight"], m[3], m[4]) @ b["mlp.0.weight"].T + b["mlp.0.bias"]
        x = x + m[5] * (F.gelu(h, approximate="tanh") @ b["mlp.2.weight"].T + b["mlp.2.bias"])
    m = (t["output_layer.adaLN_modulation.weight"] @ cond + t["output_layer.adaLN_modulation.bias"]).chunk(2)
    x = _norm(x[:, :length], t["output_layer.norm_final.weight"], m[0], m[1])
    return x @ t["output_layer.linear.weight"].T + t["output_layer.linear.bias"]


def _norm(x: Tensor, weight: Tensor, shift: Tensor, scale: Tensor) -> Tensor:
    return F.layer_norm(x, x.shape[-1:]) * weight * (1 + scale) + shift


def _turned(x: Tensor, length: int) -> Tensor:
    """Rotary positions (base 10000, halves) of two streams that both begin at 0."""
    out, half = torch.empty_like(x), x.shape[-1] // 2
    for column in range(2 * length):
        for pair in range(half):
            angle = (column % length) / 10_000 ** (pair / half)
            a, b = x[..., column, pair], x[..., column, pair + half]
            out[..., column, pair] = a * math.cos(angle) - b * math.sin(angle)
            out[..., column, pair + half] = b * math.cos(angle) + a * math.sin(angle)
    return out
