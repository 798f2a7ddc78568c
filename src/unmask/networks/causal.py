"""The autoregressive transformer of the paper's tables: the blocks of the DiT without adaLN.

A column sees itself and the columns before it, so what was computed for a prefix stays valid whatever follows: the
keys and values of every block are the cache. Parameter names are those of the published checkpoints.
"""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn
from typing_extensions import override

from ..types import Vocab
from .dit import FUSED, DiTBlock, KeyValue, OutputLayer, no_keys, run_blocks
from .interface import Network, NetworkInput, TokenWeights
from .kernels.attention import Attention, Causal
from .layers import Embedding


class CausalTransformer(Network):
    """Tokens to hidden states; column j has seen the tokens 0 .. j, unless the input says otherwise."""

    takes = frozenset({"tokens", "attention", "valid", "positions", "queries", "cache", "grow"})
    attention: Attention = Causal()
    causal = True
    directions = frozenset({"left"})
    fused = FUSED

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

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> CausalTransformer:
        sizes = settings.model_dump(include={"hidden_dim", "n_blocks", "n_heads", "mlp_ratio", "dropout"})
        return cls(vocab, **sizes)

    @override
    def empty_cache(self, rows: int) -> list[KeyValue]:
        return no_keys(self.vocab_embed.embedding, rows, self.n_heads, self.head_dim, len(self.blocks))

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, list[KeyValue] | None]:
        """(B, L) tokens, which follow those of the cache, to (B, L, hidden); with a cache also the new one."""
        return run_blocks(self, inputs)

    @override
    def token_weights(self) -> TokenWeights:
        return TokenWeights(self.vocab_embed.embedding, self.output_layer.linear.weight, self.output_layer.linear.bias)

    @override
    def head(self, rows: Tensor) -> Tensor:
        return self.output_layer.linear(rows)
