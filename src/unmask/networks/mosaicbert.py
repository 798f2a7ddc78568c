"""MosaicBERT (paper 5.1 and D.6): BERT with ALiBi instead of positions and GEGLU instead of the MLP.

Norms follow the residual sum, the MLM head is tied to the embedding, and the vocabulary is padded to a multiple of 8;
the logits of the padding are cut off, so that it is never predicted. Parameter names are those of the published
checkpoints. The causal variant is the same network looking to the left only; it has a cache like `causal.py`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from ..types import Vocab
from .dit import KeyValue, append, no_keys, pick
from .interface import Network, NetworkInput, Parts, TokenWeights
from .kernels.attention import Causal
from .kernels.dropout import dropout
from .kernels.positions import alibi, alibi_slopes, biased_attention
from .layers import padded, weight_of

INIT_STD = 0.02
NORM_EPS = 1e-12


def norm(dim: int) -> nn.LayerNorm:
    """The layer norm of BERT."""
    return nn.LayerNorm(dim, eps=NORM_EPS)


class MosaicBertLayer(nn.Module):
    """Attention with ALiBi, then a gated MLP; each is added to its input and normalised."""

    def __init__(self, dim: int, n_heads: int, inner: int, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.attention = nn.ModuleDict(
            {
                "self": nn.ModuleDict({"Wqkv": nn.Linear(dim, 3 * dim)}),
                "output": nn.ModuleDict({"dense": nn.Linear(dim, dim), "LayerNorm": norm(dim)}),
            }
        )
        self.mlp = nn.ModuleDict(
            {
                "gated_layers": nn.Linear(dim, 2 * inner, bias=False),
                "wo": nn.Linear(inner, dim),
                "layernorm": norm(dim),
            }
        )

    def forward(
        self, x: Tensor, bias: Tensor, queries: Tensor | None = None, past: KeyValue | None = None
    ) -> tuple[Tensor, KeyValue | None]:
        """(B, L, dim) to (B, L, dim), or to (B, M, dim) for `queries`; with `past` also the keys and values of both."""
        out: Any = self.attention["output"]
        heads, past = self._attend(x, bias, queries, past)
        x = x if queries is None else pick(x, queries)
        x = out["LayerNorm"](dropout(out["dense"](heads), self.dropout, self.training) + x)
        first, second = self.mlp["gated_layers"](x).chunk(2, dim=-1)
        inner = dropout(F.gelu(first) * second, self.dropout, self.training)
        return self.mlp["layernorm"](self.mlp["wo"](inner) + x), past

    def _attend(
        self, x: Tensor, bias: Tensor, queries: Tensor | None, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue | None]:
        """The heads side by side, (B, L or M, dim)."""
        batch, length, dim = x.shape
        qkv: Any = self.attention["self"]
        linear: nn.Linear = qkv["Wqkv"]
        if queries is None:
            q, k, v = linear(x).view(batch, length, 3, self.n_heads, -1).permute(2, 0, 3, 1, 4)  # (B, H, L, D) each
        else:
            parts = zip(weight_of(linear).split([dim, 2 * dim]), linear.bias.split([dim, 2 * dim]), strict=True)
            (q_weight, q_bias), (kv_weight, kv_bias) = parts
            q = F.linear(pick(x, queries), q_weight, q_bias).view(batch, -1, self.n_heads, dim // self.n_heads)
            k, v = F.linear(x, kv_weight, kv_bias).view(batch, length, 2, self.n_heads, -1).permute(2, 0, 3, 1, 4)
            q = q.transpose(1, 2)
        if past is not None:
            k, v = past = append(past, (k, v))
        return biased_attention(q, k, v, bias).transpose(1, 2).reshape(batch, -1, dim), past


class MosaicBert(Network):
    """Tokens, with types 0 and 1 for the texts of a pair, to hidden states; `head` is the MLM head of BERT."""

    takes = frozenset({"tokens", "types", "attention", "valid", "positions", "queries"})
    directions = frozenset({"both", "left"})
    fused: Mapping[str, Parts] = {"Wqkv": 3, "gated_layers": 2}

    def __init__(
        self,
        vocab: Vocab,
        hidden_dim: int = 768,
        n_blocks: int = 12,
        n_heads: int = 12,
        mlp_ratio: int = 4,
        dropout: float = 0.1,
        causal: bool = False,
    ) -> None:
        super().__init__()
        self.vocab, self.hidden_dim, self.dropout = vocab, hidden_dim, dropout
        self.n_heads, self.causal = n_heads, causal
        if causal:
            self.attention, self.takes = Causal(), self.takes | {"cache"}
        self.bert = nn.ModuleDict(
            {
                "embeddings": nn.ModuleDict(
                    {
                        "word_embeddings": nn.Embedding(padded(vocab.size), hidden_dim),
                        "token_type_embeddings": nn.Embedding(2, hidden_dim),
                        "LayerNorm": norm(hidden_dim),
                    }
                ),
                "encoder": nn.ModuleDict(
                    {
                        "layer": nn.ModuleList(
                            MosaicBertLayer(hidden_dim, n_heads, mlp_ratio * hidden_dim, dropout)
                            for _ in range(n_blocks)
                        )
                    }
                ),
            }
        )
        self.cls = nn.ModuleDict(
            {
                "predictions": nn.ModuleDict(
                    {
                        "transform": nn.ModuleDict(
                            {"dense": nn.Linear(hidden_dim, hidden_dim), "LayerNorm": norm(hidden_dim)}
                        ),
                        "decoder": Bias(padded(vocab.size)),
                    }
                )
            }
        )
        self.apply(_initialise)

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> MosaicBert:
        sizes = settings.model_dump(include={"hidden_dim", "n_blocks", "n_heads", "mlp_ratio", "dropout"})
        return cls(vocab, **sizes, causal=causal)

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers."""
        encoder: Any = self.bert["encoder"]
        layers = encoder["layer"]
        assert isinstance(layers, nn.ModuleList)
        return layers

    @property
    def embeddings(self) -> Any:
        """The embeddings of tokens and types, and their norm."""
        return self.bert["embeddings"]

    @override
    def empty_cache(self, rows: int) -> list[KeyValue]:
        if not self.causal:
            super().empty_cache(rows)
        weight = self.embeddings["word_embeddings"].weight
        return no_keys(weight, rows, self.n_heads, self.hidden_dim // self.n_heads, len(self.blocks))

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, list[KeyValue] | None]:
        """(B, L) tokens to (B, L, hidden), or to those of the columns `queries`; with a cache also the new one."""
        tokens, attention, cache = inputs.content, inputs.attention or self.attention, inputs.cache
        past: Sequence[KeyValue | None] = [None] * len(self.blocks) if cache is None else cache
        x = self._embed(tokens, inputs.types)
        before = 0 if past[0] is None else past[0][0].shape[2]
        slopes, new = alibi_slopes(self.n_heads, x.device), tokens.shape[1]
        bias = alibi(slopes, before + new, new, attention, inputs.valid, inputs.positions)
        kept = []
        for number, (layer, layer_past) in enumerate(zip(self.blocks, past, strict=True), 1):
            queries = inputs.queries if number == len(self.blocks) else None  # columns can be left out only there
            rows = bias if queries is None else pick_rows(bias, queries)
            x, layer_past = layer(x, rows, queries, layer_past)
            kept.append(layer_past)
        return x, None if cache is None else kept

    def _embed(self, tokens: Tensor, types: Tensor | None) -> Tensor:
        tables = self.embeddings
        kind = tables["token_type_embeddings"].weight[0] if types is None else tables["token_type_embeddings"](types)
        x = tables["LayerNorm"](tables["word_embeddings"](tokens) + kind)
        return dropout(x, self.dropout, self.training)

    @override
    def token_weights(self) -> TokenWeights:
        top: Any = self.cls["predictions"]
        return TokenWeights(self.embeddings["word_embeddings"].weight, bias=top["decoder"].bias)

    @override
    def head(self, rows: Tensor) -> Tensor:
        top: Any = self.cls["predictions"]
        rows = top["transform"]["LayerNorm"](F.gelu(top["transform"]["dense"](rows)))
        size = self.vocab.size
        return F.linear(rows, self.embeddings["word_embeddings"].weight[:size], top["decoder"].bias[:size])


class Bias(nn.Module):
    """The bias of the tied decoder, under its published name."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.bias = nn.Parameter(torch.zeros(size))


def pick_rows(bias: Tensor, queries: Tensor) -> Tensor:
    """(B, H, M, L): the rows of a bias (1 or B, H, L, L) that belong to some columns (B, M) of each row."""
    if bias.shape[0] == 1:
        return bias[0][:, queries].transpose(0, 1)
    return bias[torch.arange(len(queries), device=bias.device)[:, None], :, queries].transpose(1, 2)


def _initialise(module: nn.Module) -> None:
    """As in BERT: normal with a deviation of 0.02, zero biases."""
    if isinstance(module, nn.Linear | nn.Embedding):
        nn.init.normal_(module.weight, std=INIT_STD)
    if isinstance(module, nn.Linear) and module.bias is not None:
        nn.init.zeros_(module.bias)
