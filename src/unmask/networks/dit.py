"""The diffusion transformer of the paper (appendix D.4): rotary positions, adaLN, untied output.

Parameter names are those of the published checkpoints. A network without time conditioning still has the adaLN
layers and gets sigma = 0, like the published one. A network for labelled data has one more parameter, an embedding of
the labels that is added to that of the time (as in the DiT of Peebles and Xie); its last row means "no label".

The autoregressive network (`causal.py`) uses the same blocks, without adaLN and with a cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Any, NamedTuple, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from ..types import Vocab
from .interface import Network, NetworkInput, TokenWeights
from .kernels.attention import Attention
from .kernels.dropout import dropout
from .kernels.packed_linear import PackedLinear
from .kernels.positions import rotary_table, rotate
from .layers import Embedding, LabelEmbedding, LayerNorm, TimestepEmbedder, weight_of, wide

KeyValue = tuple[Tensor, Tensor]  # keys (rotated) and values of one block, (B, H, L, D) each
Rotary = tuple[Tensor, Tensor]  # cos and sin, (1 or B, L, 1, D) each, float32


FUSED = {"attn_qkv": 3}  # of a block: queries, keys and values
FEW = 64  # columns whose queries cost no more than a second product does


class BlockCall(NamedTuple):
    """What a block of a transformer is called with, besides its columns."""

    rotary: Rotary
    attention: Attention
    valid: Tensor | None = None  # (B, L), cached columns included
    queries: Tensor | None = None  # (B, M): the columns that are wanted; None = all
    past: KeyValue | None = None  # keys and values of the columns before
    grow: bool = False  # whether the new ones may be written behind them (`NetworkInput`)

    def attend(self, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, KeyValue | None]:
        """Queries, keys and values, (B, H, M or L, D) each, to (B, M or L, dim); with `past`, the new one as well."""
        queries, past = self.queries, self.past
        if past is not None:
            queries = None if queries is None else queries + past[0].shape[2]
            k, v = past = append(past, (k, v), self.grow)
        return self.attention.attend(q, k, v, self.valid, queries).transpose(1, 2).flatten(2), past

    def of_some(self, h: Tensor, qkv: nn.Linear, n_heads: int) -> tuple[Tensor, Tensor, Tensor, Rotary]:
        """Queries of the wanted columns, keys and values of all, (B, M or L, H, D), and the angles of the queries."""
        assert self.queries is not None
        if h.shape[:2].numel() <= FEW:
            q, k, v = qkv(h).unflatten(-1, (3, n_heads, -1)).unbind(2)
            return pick(q, self.queries), k, v, self.turns(len(h))
        q_weight, kv_weight = weight_of(qkv).split([h.shape[-1], 2 * h.shape[-1]])
        k, v = F.linear(h, kv_weight).unflatten(-1, (2, n_heads, -1)).unbind(2)
        q = F.linear(pick(h, self.queries), q_weight).unflatten(-1, (n_heads, -1))
        return q, k, v, self.turns(len(h))

    def turns(self, rows: int) -> Rotary:
        """The angles of the wanted columns."""
        if self.queries is None:
            return self.rotary
        cos, sin = (pick(table.expand(rows, -1, -1, -1), self.queries) for table in self.rotary)
        return cos, sin


class DiTBlock(nn.Module):
    """Attention and MLP, each with adaLN before and a gate after; without cond_dim a plain norm and no gate."""

    def __init__(self, dim: int, n_heads: int, cond_dim: int | None, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.norm1 = LayerNorm(dim)
        self.attn_qkv = PackedLinear(dim, 3 * dim, bias=False)
        self.attn_out = PackedLinear(dim, dim, bias=False)
        self.norm2 = LayerNorm(dim)
        self.mlp = nn.Sequential(
            PackedLinear(dim, mlp_ratio * dim), nn.GELU(approximate="tanh"), PackedLinear(mlp_ratio * dim, dim)
        )
        self.adaLN_modulation = None if cond_dim is None else nn.Linear(cond_dim, 6 * dim)
        if self.adaLN_modulation is not None:
            nn.init.zeros_(self.adaLN_modulation.weight)
            nn.init.zeros_(self.adaLN_modulation.bias)

    def forward(self, x: Tensor, cond: Tensor | None, how: BlockCall) -> tuple[Tensor, KeyValue | None]:
        """(B, L, dim) to (B, L, dim), or to (B, M, dim) for the columns `how.queries`; cond is (1 or B, cond_dim).

        With `how.past`, the keys and values of the columns before x, those of both are returned as well.
        """
        shift1, scale1, gate1, shift2, scale2, gate2 = self._modulation(cond)
        h = self.norm1(x, shift1, scale1)
        heads, past = how.attend(*self._qkv(h, how))
        x = x if how.queries is None else pick(x, how.queries)
        x = self._add(x, gate1, self.attn_out(heads))
        return self._add(x, gate2, self.mlp(self.norm2(x, shift2, scale2))), past

    def _modulation(self, cond: Tensor | None) -> Sequence[Tensor | None]:
        if self.adaLN_modulation is None:
            return [None] * 6
        return self.adaLN_modulation(cond)[:, None].chunk(6, dim=-1)

    def _qkv(self, h: Tensor, how: BlockCall) -> Sequence[Tensor]:
        """Queries, keys and values, (B, H, L, D) each; with `how.queries`, only the queries of these columns."""
        if how.queries is not None:
            q, k, v, turn = how.of_some(h, self.attn_qkv, self.n_heads)
            q, k = rotate(q, *turn).to(q.dtype), rotate(k, *how.rotary).to(k.dtype)
            return [part.transpose(1, 2) for part in (q, k, v)]
        qkv = self.attn_qkv(h).view(*h.shape[:2], 3, self.n_heads, -1)
        cos, sin = how.rotary
        qk = rotate(qkv[:, :, :2], cos[:, :, None], sin[:, :, None]).to(qkv.dtype)
        return *qk.transpose(1, 3).unbind(2), qkv[:, :, 2].transpose(1, 2)

    def _add(self, x: Tensor, gate: Tensor | None, branch: Tensor) -> Tensor:
        branch = wide(dropout(branch, self.dropout, self.training))
        return x + branch if gate is None else torch.addcmul(x, wide(gate), branch)


def pick(x: Tensor, columns: Tensor) -> Tensor:
    """(B, L, dim) to (B, M, dim): some columns of each row."""
    return x[torch.arange(len(x), device=x.device)[:, None], columns]


class OutputLayer(nn.Module):
    """Final norm, and the projection to the vocabulary (zero at the start: every token equally likely)."""

    def __init__(self, dim: int, vocab_size: int, cond_dim: int | None) -> None:
        super().__init__()
        self.norm_final = LayerNorm(dim)
        self.linear = PackedLinear(dim, vocab_size)
        self.adaLN_modulation = None if cond_dim is None else nn.Linear(cond_dim, 2 * dim)
        for name, parameter in self.named_parameters():
            if not name.startswith("norm_final"):
                nn.init.zeros_(parameter)

    def forward(self, x: Tensor, cond: Tensor | None) -> Tensor:
        """The final norm alone: the projection is for the rows whose logits are wanted."""
        if self.adaLN_modulation is None:
            return self.norm_final(x)
        shift, scale = self.adaLN_modulation(cond)[:, None].chunk(2, dim=-1)
        return self.norm_final(x, shift, scale)


def rotary_of(
    positions: Tensor, head_dim: int, base: float = 10_000.0, scaling: Sequence[float] | None = None
) -> Rotary:
    """Cos and sin of positions (L,) or (B, L) in the shape that blocks take: (1 or B, L, 1, D)."""
    cos, sin = rotary_table(positions, head_dim, base, scaling)
    shape = (-1, positions.shape[-1], 1, head_dim)
    return cos.view(shape), sin.view(shape)


class DiT(Network):
    """Tokens to hidden states; `head` for the rows whose logits are wanted."""

    takes = frozenset(field.name for field in fields(NetworkInput)) - {"types"}

    directions = frozenset({"both", "left"})
    takes_labels = True
    fused = FUSED

    def __init__(
        self,
        vocab: Vocab,
        hidden_dim: int = 768,
        n_blocks: int = 12,
        n_heads: int = 12,
        cond_dim: int = 128,
        mlp_ratio: int = 4,
        dropout: float = 0.1,
        time_conditioning: bool = False,
        n_labels: int = 0,
    ) -> None:
        super().__init__()
        self.vocab, self.hidden_dim = vocab, hidden_dim
        self.n_heads, self.head_dim = n_heads, hidden_dim // n_heads
        self.time_conditioning, self.n_labels = time_conditioning, n_labels
        self.vocab_embed = Embedding(vocab.size, hidden_dim)
        self.sigma_map = TimestepEmbedder(cond_dim)
        self.blocks = nn.ModuleList(
            DiTBlock(hidden_dim, n_heads, cond_dim, mlp_ratio, dropout) for _ in range(n_blocks)
        )
        self.output_layer = OutputLayer(hidden_dim, vocab.size, cond_dim)
        if n_labels:  # made last, so that all other weights are drawn as without labels
            self.label_embed = LabelEmbedding(n_labels, cond_dim)

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Network:
        sizes = settings.model_dump(include={"hidden_dim", "n_blocks", "n_heads", "mlp_ratio", "dropout"})
        if causal:
            from .causal import CausalTransformer

            return CausalTransformer(vocab, **sizes)
        return cls(
            vocab,
            **sizes,
            cond_dim=settings.cond_dim,
            time_conditioning=settings.time_conditioning,
            n_labels=n_labels,
        )

    @override
    def condition(self, sigma: Tensor, label: Tensor | None = None) -> Tensor:
        """(B,) sigma and labels (-1 = none) to (B, cond_dim), or (1, cond_dim) if it is the same for all rows."""
        if not self.time_conditioning:
            sigma = sigma.new_zeros(1)
        cond = self.sigma_map(sigma)
        if self.n_labels:
            cond = cond + self.label_embed(label)
        else:
            super().condition(sigma, label)  # refuses labels
        return F.silu(cond)

    @override
    def empty_cache(self, rows: int) -> list[KeyValue]:
        return no_keys(self.vocab_embed.embedding, rows, self.n_heads, self.head_dim, len(self.blocks))

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, list[KeyValue] | None]:
        """(B, L) tokens, or (B, L, hidden) embeddings, to (B, L, hidden).

        A cache requires attention in which a column does not see what is read after it (`Attention.cacheable`).
        """
        assert inputs.condition is not None, "the DiT needs condition = network.condition(sigma)"
        return run_blocks(self, inputs)

    @override
    def token_weights(self) -> TokenWeights:
        return TokenWeights(self.vocab_embed.embedding, self.output_layer.linear.weight, self.output_layer.linear.bias)

    @override
    def head(self, rows: Tensor) -> Tensor:
        return self.output_layer.linear(rows)


class _Transformer(Protocol):
    """What `run_blocks` needs from a network."""

    vocab_embed: Embedding
    blocks: nn.ModuleList
    output_layer: OutputLayer
    head_dim: int
    attention: Attention


def run_blocks(net: _Transformer, inputs: NetworkInput) -> tuple[Tensor, list[KeyValue] | None]:
    """Embedding, blocks and the last norm."""
    x = net.vocab_embed(inputs.tokens) if inputs.embeddings is None else inputs.embeddings
    kept = []
    for block, how in block_calls(net, inputs):
        x, past = block(x, inputs.condition, how)
        kept.append(past)
    return net.output_layer(x, inputs.condition), None if inputs.cache is None else kept


def block_calls(net: Any, inputs: NetworkInput) -> Iterator[tuple[nn.Module, BlockCall]]:
    """Each block, and how it is called; the last one computes only the columns that are wanted."""
    content, last = inputs.content, len(net.blocks) - 1
    cache: Sequence[KeyValue | None] = [None] * len(net.blocks) if inputs.cache is None else inputs.cache
    positions = inputs.positions
    if positions is None:
        before = 0 if cache[0] is None else cache[0][0].shape[2]
        positions = torch.arange(before, before + content.shape[1], device=content.device)
    turning = (getattr(net, "rotary_base", 10_000.0), getattr(net, "rotary_scaling", None))
    rotary, attention = rotary_of(positions, net.head_dim, *turning), inputs.attention or net.attention
    for number, (block, past) in enumerate(zip(net.blocks, cache, strict=True)):
        queries = inputs.queries if number == last else None
        yield block, BlockCall(rotary, attention, inputs.valid, queries, past, bool(inputs.grow))


def append(past: KeyValue, new: KeyValue, grow: bool = False) -> KeyValue:
    """Keys and values of the cached columns, followed by those of the new ones."""
    k, v = (_followed(old, fresh, grow) for old, fresh in zip(past, new, strict=True))
    return k, v


def _followed(old: Tensor, new: Tensor, grow: bool) -> Tensor:
    """(B, H, n, D) and (B, H, m, D) one after the other: a copy, or with `grow` in place where there is room behind."""
    if not grow or torch.is_grad_enabled():
        return torch.cat((old.to(new.dtype), new), dim=2)
    rows, heads, n, dim = old.shape
    end = n + new.shape[2]
    if not n or old.dtype != new.dtype or old.stride(2) != dim or old.stride(1) < end * dim:
        room = new.new_empty(rows, heads, max(128, end * 3 // 2), dim)
        room[:, :, :n] = old
        old = room
    whole = old.as_strided((rows, heads, end, dim), old.stride(), old.storage_offset())
    whole[:, :, n:] = new
    return whole


def no_keys(like: Tensor, rows: int, n_heads: int, head_dim: int, n_blocks: int) -> list[KeyValue]:
    """The cache of a network that has read nothing."""
    empty = like.new_empty(rows, n_heads, 0, head_dim)
    return [(empty, empty)] * n_blocks
