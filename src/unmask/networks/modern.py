"""A transformer with what was found useful since the paper's: the same attention, less around it.

RMS norms without weights, queries and keys normed in each head, ReLU² in the MLP, no biases, output projections that
are zero at the start, a head that is tied to the embedding, and learned paths from the embedding to every block. It
looks both ways, or to the left only with a cache of keys and values. What it knows of the time and the label of a row
is added to the embedding; without them there is no such part.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import fields
from typing import Any

import torch
from torch import Tensor, nn
from typing_extensions import override

from ..types import Vocab
from .dit import BlockCall, KeyValue, block_calls, no_keys, pick
from .interface import Network, NetworkInput, Parts, TokenWeights
from .kernels.attention import Attention, Causal, Full
from .kernels.dropout import dropout
from .kernels.fused import rms_norm, squared_relu
from .kernels.packed_linear import PackedLinear, packed_linear
from .layers import LabelEmbedding, TiedEmbedding, TimestepEmbedder, wide

LOGIT_STD = 0.5  # of a fresh network


def norm(x: Tensor, *turn: Tensor) -> Tensor:
    """(..., dim) with a root mean square of 1, and rotated by the cos and sin of `turn`, in at least float32."""
    return rms_norm(wide(x), *turn)


class ModernBlock(nn.Module):
    """Attention and MLP, each after a norm and added to its input."""

    def __init__(self, dim: int, n_heads: int, mlp_ratio: int, dropout: float, skips: str) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.qkv = PackedLinear(dim, 3 * dim, bias=False)
        self.out = PackedLinear(dim, dim, bias=False)
        self.fc = PackedLinear(dim, mlp_ratio * dim, bias=False)
        self.proj = PackedLinear(mlp_ratio * dim, dim, bias=False)
        self.x0_skip = None if skips == "none" else nn.Parameter(torch.tensor([1.0, 0.0]))
        self.value_skip = nn.Parameter(torch.tensor([0.5, 0.5])) if skips == "both" else None
        nn.init.zeros_(self.out.weight)
        nn.init.zeros_(self.proj.weight)

    def forward(
        self, x: Tensor, x0: Tensor, first: Tensor | None, how: BlockCall
    ) -> tuple[Tensor, Tensor | None, KeyValue | None]:
        """(B, L, dim) to (B, L or M, dim), the values of the first block for the next one, and the keys and values.

        x0 is the input of the first block, `first` its values (None in that block itself).
        """
        if self.x0_skip is not None:
            x = self.x0_skip[0] * x + self.x0_skip[1] * x0
        q, k, v = self._qkv(norm(x), how)
        if self.value_skip is not None:
            first = v if first is None else first
            v = self.value_skip[0] * v + self.value_skip[1] * first
        heads, past = how.attend(q, k, v)
        x = x if how.queries is None else pick(x, how.queries)
        x = x + self._dropped(self.out(heads))
        return x + self._dropped(self.proj(squared_relu(self.fc(norm(x))))), first, past

    def _qkv(self, h: Tensor, how: BlockCall) -> Sequence[Tensor]:
        """Queries, keys and values, (B, H, L, D) each; with `how.queries`, only the queries of these columns."""
        if how.queries is None:
            turn = how.rotary
            q, k, v = self.qkv(h).unflatten(-1, (3, self.n_heads, -1)).unbind(2)
        else:
            q, k, v, turn = how.of_some(h, self.qkv, self.n_heads)
        q, k = norm(q, *turn).to(v.dtype), norm(k, *how.rotary).to(v.dtype)
        return [part.transpose(1, 2) for part in (q, k, v)]

    def _dropped(self, branch: Tensor) -> Tensor:
        return wide(dropout(branch, self.dropout, self.training))


class Modern(Network):
    """Tokens to hidden states; `head` for the rows whose logits are wanted."""

    takes = frozenset(field.name for field in fields(NetworkInput)) - {"types"}
    directions = frozenset({"both", "left"})
    takes_labels = True
    fused: Mapping[str, Parts] = {"qkv": 3}

    def __init__(
        self,
        vocab: Vocab,
        hidden_dim: int = 768,
        n_blocks: int = 12,
        n_heads: int = 12,
        mlp_ratio: int = 4,
        dropout: float = 0.0,
        time_conditioning: bool = False,
        skips: str = "x0",
        n_labels: int = 0,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.vocab, self.hidden_dim = vocab, hidden_dim
        self.n_heads, self.head_dim = n_heads, hidden_dim // n_heads
        self.time_conditioning, self.n_labels, self.causal = time_conditioning, n_labels, causal
        self.attention: Attention = Causal() if causal else Full()
        self.vocab_embed = TiedEmbedding(vocab.size, hidden_dim, LOGIT_STD)
        self.head_bias = nn.Parameter(torch.zeros(vocab.size))
        self.blocks = nn.ModuleList(
            ModernBlock(hidden_dim, n_heads, mlp_ratio, dropout, skips) for _ in range(n_blocks)
        )
        if time_conditioning:
            self.sigma_map = TimestepEmbedder(hidden_dim)
        if n_labels:
            self.label_embed = LabelEmbedding(n_labels, hidden_dim)

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Modern:
        sizes = settings.model_dump(exclude={"method", "network"})
        return cls(vocab, **sizes, n_labels=n_labels, causal=causal)

    @override
    def condition(self, sigma: Tensor, label: Tensor | None = None) -> Tensor | None:
        """(B,) sigma and labels (-1 = none) to (1 or B, hidden), or None if it takes neither."""
        if not self.n_labels:
            super().condition(sigma, label)  # refuses labels
        time = self.sigma_map(sigma) if self.time_conditioning else None
        kind = self.label_embed(label) if self.n_labels else None
        return time if kind is None else kind if time is None else time + kind

    @override
    def empty_cache(self, rows: int) -> list[KeyValue]:
        return no_keys(self.vocab_embed.embedding, rows, self.n_heads, self.head_dim, len(self.blocks))

    @override
    def no_decay(self) -> set[str]:
        """All but the matrices of the blocks: the skips, the bias and the embeddings."""
        return {name for name, _ in self.named_parameters() if name.endswith(("skip", "bias")) or "embed" in name}

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, list[KeyValue] | None]:
        """(B, L) tokens, or (B, L, hidden) embeddings, to (B, L, hidden).

        A cache requires attention in which a column does not see what is read after it (`Attention.cacheable`).
        """
        x = norm(self.vocab_embed(inputs.tokens) if inputs.embeddings is None else inputs.embeddings)
        if inputs.condition is not None:
            x = x + inputs.condition[:, None]
        x0, first, kept = x, None, []
        for block, how in block_calls(self, inputs):
            x, first, past = block(x, x0, first, how)
            kept.append(past)
        return norm(x), None if inputs.cache is None else kept

    @override
    def token_weights(self) -> TokenWeights:
        return TokenWeights(self.vocab_embed.embedding, bias=self.head_bias)

    @override
    def head(self, rows: Tensor) -> Tensor:
        return packed_linear(rows, self.vocab_embed.embedding, self.head_bias)
