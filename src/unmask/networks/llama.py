"""The transformer of Llama, Qwen2 and Qwen3, and of the diffusion models that were made from them.

RMS norms, rotary positions, several heads of queries for each head of keys and values, SwiGLU, no biases; Qwen2 has
biases of queries, keys and values, Qwen3 norms queries and keys in each head. It looks both ways, or to the left only
with a cache of keys and values. Names inside a block are those of transformers. Weights keep the type that their files
have; norms, rotations and what is added up over the blocks are float32 at least.

Models that were autoregressive before may have kept their shift (`prediction="shifted"`): what predicts a token is the
state of the column before it, and the first column has only its own. `forward` gives states that are moved to the
column of their token, so nobody else has to know. Their cache has one more entry, the states of the columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from ..errors import UserError
from ..types import Vocab
from .dit import BlockCall, KeyValue, append, block_calls, no_keys, pick
from .interface import Network, NetworkInput, TokenWeights
from .kernels.attention import Attention, Causal, Full
from .kernels.packed_linear import PackedLinear, packed_linear
from .kernels.positions import rotate
from .layers import RMSNorm, wide

STD = 0.02  # of the matrices of a fresh network, as in transformers


def normed(norm: RMSNorm, x: Tensor) -> Tensor:
    """The norm of x, in the type of its weights."""
    return norm(x).to(norm.weight.dtype)


class GroupedAttention(nn.Module):
    """Attention in which several heads of queries share the keys and values of one head."""

    def __init__(
        self, dim: int, n_heads: int, n_kv_heads: int, head_dim: int, qkv_bias: bool, qk_norm: bool, eps: float
    ) -> None:
        super().__init__()
        self.head_dim = head_dim
        self.q_proj = PackedLinear(dim, n_heads * head_dim, bias=qkv_bias)
        self.k_proj = PackedLinear(dim, n_kv_heads * head_dim, bias=qkv_bias)
        self.v_proj = PackedLinear(dim, n_kv_heads * head_dim, bias=qkv_bias)
        self.o_proj = PackedLinear(n_heads * head_dim, dim, bias=False)
        self.q_norm = RMSNorm(head_dim, eps) if qk_norm else None
        self.k_norm = RMSNorm(head_dim, eps) if qk_norm else None

    def forward(self, h: Tensor, how: BlockCall) -> tuple[Tensor, KeyValue | None]:
        """(B, L, dim) to (B, L, dim), or to (B, M, dim) for the columns `how.queries`, and the new `how.past`."""
        asking = h if how.queries is None else pick(h, how.queries)
        v = self._heads(self.v_proj(h))
        q, k = self._heads(self.q_proj(asking)), self._heads(self.k_proj(h))
        if self.q_norm is not None and self.k_norm is not None:
            q, k = normed(self.q_norm, q), normed(self.k_norm, k)
        q, k = rotate(q, *how.turns(len(h))).to(v.dtype), rotate(k, *how.rotary).to(v.dtype)
        heads, past = how.attend(q.transpose(1, 2), k.transpose(1, 2), v.transpose(1, 2))
        return self.o_proj(heads), past

    def _heads(self, x: Tensor) -> Tensor:
        return x.unflatten(-1, (-1, self.head_dim))


class SwiGLU(nn.Module):
    """An MLP with a gate."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.gate_proj = PackedLinear(dim, inner, bias=False)
        self.up_proj = PackedLinear(dim, inner, bias=False)
        self.down_proj = PackedLinear(inner, dim, bias=False)

    def forward(self, h: Tensor) -> Tensor:
        """(..., dim) to (..., dim)."""
        return self.down_proj(F.silu(self.gate_proj(h)) * self.up_proj(h))


class LlamaBlock(nn.Module):
    """Attention and MLP, each after a norm and added to its input."""

    def __init__(self, dim: int, mlp_dim: int, eps: float, **attention: Any) -> None:
        super().__init__()
        self.input_layernorm = RMSNorm(dim, eps)
        self.self_attn = GroupedAttention(dim, eps=eps, **attention)
        self.post_attention_layernorm = RMSNorm(dim, eps)
        self.mlp = SwiGLU(dim, mlp_dim)

    def forward(self, x: Tensor, how: BlockCall) -> tuple[Tensor, KeyValue | None]:
        """(B, L, dim) to (B, L, dim), or to (B, M, dim) for the columns `how.queries`, and the new `how.past`."""
        heads, past = self.self_attn(normed(self.input_layernorm, x), how)
        x = (x if how.queries is None else pick(x, how.queries)) + heads
        return x + self.mlp(normed(self.post_attention_layernorm, x)), past


class Llama(Network):
    """Tokens to hidden states; `head` for the rows whose logits are wanted."""

    takes = frozenset({"tokens", "attention", "valid", "positions", "queries", "cache", "grow"})
    directions = frozenset({"both", "left"})

    def __init__(
        self,
        vocab: Vocab,
        hidden_dim: int = 768,
        n_blocks: int = 12,
        n_heads: int = 12,
        n_kv_heads: int | None = None,
        head_dim: int | None = None,
        mlp_dim: int = 2048,
        rotary_base: float = 10_000.0,
        rotary_scaling: Sequence[float] | None = None,
        norm_eps: float = 1e-5,
        qk_norm: bool = False,
        qkv_bias: bool = False,
        tied: bool = True,
        embedding_rows: int | None = None,
        prediction: str = "same",
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.vocab, self.hidden_dim, self.causal = vocab, hidden_dim, causal
        self.n_kv_heads, self.head_dim = n_kv_heads or n_heads, head_dim or hidden_dim // n_heads
        self.rotary_base, self.rotary_scaling, self.shifted = rotary_base, rotary_scaling, prediction == "shifted"
        self.attention: Attention = Causal() if causal else Full()
        rows = embedding_rows or vocab.size
        self.embed_tokens = nn.Embedding(rows, hidden_dim, _weight=torch.empty(rows, hidden_dim))
        self.blocks = nn.ModuleList(
            LlamaBlock(
                hidden_dim,
                mlp_dim,
                norm_eps,
                n_heads=n_heads,
                n_kv_heads=self.n_kv_heads,
                head_dim=self.head_dim,
                qkv_bias=qkv_bias,
                qk_norm=qk_norm,
            )
            for _ in range(n_blocks)
        )
        self.norm = RMSNorm(hidden_dim, norm_eps)
        self.lm_head = None if tied else nn.Linear(hidden_dim, rows, bias=False)
        for name, parameter in self.named_parameters():
            if parameter.dim() > 1 and not parameter.is_meta:  # where torch takes seconds to draw nothing
                nn.init.normal_(parameter, std=STD)
            elif name.endswith("bias"):
                nn.init.zeros_(parameter)

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Llama:
        if causal and settings.prediction == "shifted":
            raise UserError("an autoregressive model predicts the next token anyway; set model.prediction=same")
        return cls(vocab, **settings.model_dump(exclude={"method", "network"}), causal=causal)

    @override
    def empty_cache(self, rows: int) -> list[KeyValue]:
        table = self.embed_tokens.weight
        keys = no_keys(table, rows, self.n_kv_heads, self.head_dim, len(self.blocks))
        states = (table.new_empty(rows, 1, 0, self.hidden_dim), table.new_empty(rows, 1, 0, 0))
        return [*keys, states] if self.shifted else keys

    @override
    def no_decay(self) -> set[str]:
        """All but the matrices: norms, biases and the embedding."""
        return {name for name, weight in self.named_parameters() if weight.dim() == 1 or "embed" in name}

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, list[KeyValue] | None]:
        """(B, L) tokens to (B, L, hidden), or (B, M, hidden) for `queries`.

        A cache requires attention in which a column does not see what is read after it (`Attention.cacheable`).
        """
        return self._shifted(inputs) if self.shifted else self._states(inputs)

    def _states(self, inputs: NetworkInput) -> tuple[Tensor, list[KeyValue] | None]:
        """The state of each column."""
        assert inputs.tokens is not None
        x, kept = wide(self.embed_tokens(inputs.tokens)), []
        for block, how in block_calls(self, inputs):
            x, past = block(x, how)
            kept.append(past)
        return normed(self.norm, x), None if inputs.cache is None else kept

    def _shifted(self, inputs: NetworkInput) -> tuple[Tensor, list[KeyValue] | None]:
        """For each column the state of the one before it; where there is none, or only padding, its own."""
        rows, length = inputs.content.shape[:2]
        cached = 0 if inputs.cache is None else inputs.cache[0][0].shape[2]
        column = torch.arange(length, device=inputs.content.device) if inputs.queries is None else inputs.queries
        column = column.expand(rows, -1) + cached
        before = (inputs.attention or self.attention).before(column)
        if inputs.valid is not None:
            before = torch.where(inputs.valid.gather(1, before), before, column)
        if inputs.cache is None:
            if inputs.queries is not None:
                return self._states(replace(inputs, queries=before))
            return pick(self._states(inputs)[0], before), None
        *keys, states = inputs.cache
        new, kept = self._states(replace(inputs, queries=None, cache=keys))
        assert kept is not None
        states = append(states, (new[:, None], new.new_empty(rows, 1, length, 0)), bool(inputs.grow))
        return pick(states[0][:, 0], before), [*kept, states]

    @override
    def token_weights(self) -> TokenWeights:
        return TokenWeights(self.embed_tokens.weight, None if self.lm_head is None else self.lm_head.weight)

    @override
    def head(self, rows: Tensor) -> Tensor:
        """Rows of the embedding beyond the vocabulary are left out; a [MASK] without a row has the logit 0."""
        weight = (self.embed_tokens if self.lm_head is None else self.lm_head).weight
        if len(weight) > self.vocab.size:
            weight = weight[: self.vocab.size]
        logits = packed_linear(rows, weight)
        return F.pad(logits, (0, self.vocab.size - len(weight))) if len(weight) < self.vocab.size else logits
