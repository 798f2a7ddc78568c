"""The autoregressive transformer of the paper's tables: the blocks of the DiT without adaLN.

A column sees itself and what stands before it, so what was computed for a prefix stays right whatever follows: the
keys and values of every block are the cache. Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..types import Vocab
from .dit import DiTBlock, KeyValue, OutputLayer, rotary_of
from .interface import Network
from .kernels.attention import Attn
from .layers import Embedding

Cache = Sequence[KeyValue]  # of every block


class Causal(Network):
    """Tokens to hidden states, of which column j has seen the tokens 0 .. j."""

    causal = True

    def __init__(
        self,
        vocab: Vocab,
        hidden_dim: int = 768,
        n_blocks: int = 12,
        n_heads: int = 12,
        mlp_ratio: int = 4,
        dropout: float = 0.1,
    ) -> None:
        super().__init__()
        self.vocab, self.hidden_dim = vocab, hidden_dim
        self.n_heads, self.head_dim = n_heads, hidden_dim // n_heads
        self.vocab_embed = Embedding(vocab.size, hidden_dim)
        self.blocks = nn.ModuleList(DiTBlock(hidden_dim, n_heads, None, mlp_ratio, dropout) for _ in range(n_blocks))
        self.output_layer = OutputLayer(hidden_dim, vocab.size, None)

    def condition(self, sigma: Tensor, label: Tensor | None = None) -> None:
        """Nothing: it is told neither the time nor a label."""
        self.refuse(label=label)

    def empty_cache(self, rows: int) -> list[KeyValue]:
        """The cache of `rows` rows before their first token: give it to `forward` to get one back."""
        weight = self.vocab_embed.embedding
        nothing = weight.new_empty(rows, self.n_heads, 0, self.head_dim)
        return [(nothing, nothing)] * len(self.blocks)

    def forward(
        self,
        tokens: Tensor | None = None,
        *,
        inputs: Tensor | None = None,
        types: Tensor | None = None,
        cond: Tensor | None = None,
        attn: Attn | None = None,
        cache: Any = None,
    ) -> tuple[Tensor, list[KeyValue] | None]:
        """(B, L) tokens, which stand after those of the cache, to (B, L, hidden); with a cache also that of both."""
        attn = attn or Attn("causal")
        self.refuse(inputs=inputs, types=types, cond=cond, queries=attn.queries)
        if attn.pattern != "causal":
            raise ValueError('the Causal backbone looks to the left only; give it Attn("causal")')
        assert tokens is not None, "the Causal backbone needs tokens"
        past: Sequence[KeyValue | None] = [None] * len(self.blocks) if cache is None else cache
        before = 0 if past[0] is None else past[0][0].shape[2]
        positions = attn.positions
        if positions is None:
            positions = torch.arange(before, before + tokens.shape[1], device=tokens.device)
        rotary = rotary_of(positions, self.head_dim)
        x, kept = self.vocab_embed(tokens), []
        for block, own in zip(self.blocks, past, strict=True):
            x, own = block(x, None, rotary, attn, past=own)
            kept.append(own)
        return self.output_layer(x, None), None if cache is None else kept

    def head(self, rows: Tensor) -> Tensor:
        """(N, hidden) to (N, V) logits."""
        return self.output_layer.linear(rows)
