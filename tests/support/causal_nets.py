"""A small autoregressive transformer, and the same network as transformers has it."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from support.neox import neox as plain_neox
from unmask.networks.causal import CausalTransformer
from unmask.types import Vocab

VOCAB = Vocab(17, mask=5, pad=0)
DIM, HEADS, BLOCKS = 32, 4, 2


def causal(seed: int = 0, dropout: float = 0.0, vocab: Vocab = VOCAB) -> CausalTransformer:
    """A small network in which no weight is zero."""
    torch.manual_seed(seed)
    net = CausalTransformer(vocab, DIM, BLOCKS, HEADS, dropout=dropout)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net.eval()


def tokens_of(batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB.size, (batch, length), generator=torch.Generator().manual_seed(seed))


def neox(net: CausalTransformer):
    """The same network as transformers has it: qkv by head, norms without bias."""
    oracle, zero = plain_neox(net.vocab.size, DIM, BLOCKS, HEADS), torch.zeros(DIM)
    state = {
        "gpt_neox.embed_in.weight": net.vocab_embed.embedding,
        "gpt_neox.final_layer_norm.weight": net.output_layer.norm_final.weight,
        "gpt_neox.final_layer_norm.bias": zero,
        "lm_head.weight": net.output_layer.linear.weight,
    }
    for i, block in enumerate(net.blocks):
        own = {
            "input_layernorm.weight": block.norm1.weight,
            "input_layernorm.bias": zero,
            "post_attention_layernorm.weight": block.norm2.weight,
            "post_attention_layernorm.bias": zero,
            "attention.query_key_value.weight": block.attn_qkv.weight.view(3, HEADS, DIM // HEADS, DIM)
            .permute(1, 0, 2, 3)
            .reshape(3 * DIM, DIM),
            "attention.dense.weight": block.attn_out.weight,
            "mlp.dense_h_to_4h.weight": block.mlp[0].weight,
            "mlp.dense_h_to_4h.bias": block.mlp[0].bias,
            "mlp.dense_4h_to_h.weight": block.mlp[2].weight,
            "mlp.dense_4h_to_h.bias": block.mlp[2].bias,
        }
        state |= {f"gpt_neox.layers.{i}.{name}": value for name, value in own.items()}
    oracle.load_state_dict(state, strict=True)
    return oracle


def neox_logits(net: CausalTransformer, tokens: Tensor, present: Tensor | None = None) -> Tensor:
    """(B, L, V) logits of GPT-NeoX, with the bias that it does not have."""
    with torch.no_grad():
        return neox(net)(input_ids=tokens, attention_mask=present).logits + net.output_layer.linear.bias
