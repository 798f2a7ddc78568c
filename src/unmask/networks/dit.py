"""The diffusion transformer of the paper (appendix D.4): rotary positions, adaLN, untied output.

Parameter names are those of the published checkpoints. The network without time conditioning still has the adaLN
layers and is told sigma = 0, as the published one is. A network for labelled data has one more parameter, an embedding
of the labels that is added to that of the time (as in the DiT of Peebles and Xie); its last row stands for "no label".

The blocks serve the autoregressive network too (`causal.py`), without adaLN and with a cache of keys and values.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..types import Vocab
from .interface import Network
from .kernels.attention import Attn, attention, rotary_table, rotate
from .kernels.dropout import dropout
from .layers import Embedding, LayerNorm, TimestepEmbedder

KeyValue = tuple[Tensor, Tensor]  # keys (rotated) and values of one block, (B, H, L, D) each


class DiTBlock(nn.Module):
    """Attention and MLP, each with adaLN before and a gate after; without cond_dim a plain norm and no gate."""

    def __init__(self, dim: int, n_heads: int, cond_dim: int | None, mlp_ratio: int, dropout: float) -> None:
        super().__init__()
        self.n_heads, self.dropout = n_heads, dropout
        self.norm1 = LayerNorm(dim)
        self.attn_qkv = nn.Linear(dim, 3 * dim, bias=False)
        self.attn_out = nn.Linear(dim, dim, bias=False)
        self.norm2 = LayerNorm(dim)
        self.mlp = nn.Sequential(
            nn.Linear(dim, mlp_ratio * dim), nn.GELU(approximate="tanh"), nn.Linear(mlp_ratio * dim, dim)
        )
        self.adaLN_modulation = None if cond_dim is None else nn.Linear(cond_dim, 6 * dim)
        if self.adaLN_modulation is not None:
            nn.init.zeros_(self.adaLN_modulation.weight)
            nn.init.zeros_(self.adaLN_modulation.bias)

    def forward(
        self,
        x: Tensor,
        cond: Tensor | None,
        rotary: tuple[Tensor, Tensor],
        attn: Attn,
        queries: Tensor | None = None,
        past: KeyValue | None = None,
    ) -> tuple[Tensor, KeyValue | None]:
        """(B, L, dim) to (B, L, dim), or of some columns (B, M) only; cond is (1 or B, cond_dim).

        With the keys and values of what stands before x, `past`, those of both come back as well.
        """
        shift1, scale1, gate1, shift2, scale2, gate2 = self._modulation(cond)
        h = self.norm1(x, shift1, scale1)
        if queries is None:
            attended, past = self._attend(h, rotary, attn, past)
            x = self._add(x, gate1, attended)
        else:
            x = self._add(pick(x, queries), gate1, self._attend_some(h, rotary, attn, queries))
        return self._add(x, gate2, self.mlp(self.norm2(x, shift2, scale2))), past

    def _modulation(self, cond: Tensor | None) -> Sequence[Tensor | None]:
        if self.adaLN_modulation is None:
            return [None] * 6
        return self.adaLN_modulation(cond)[:, None].chunk(6, dim=-1)

    def _attend(
        self, h: Tensor, rotary: tuple[Tensor, Tensor], attn: Attn, past: KeyValue | None
    ) -> tuple[Tensor, KeyValue | None]:
        batch, length, dim = h.shape
        qkv = self.attn_qkv(h).view(batch, length, 3, self.n_heads, -1)
        cos, sin = rotary  # (1 or B, L, 1, D), float32
        qk = rotate(qkv[:, :, :2], cos[:, :, None], sin[:, :, None]).to(qkv.dtype)
        q, k = qk.transpose(1, 3).unbind(2)  # (B, H, L, D)
        v = qkv[:, :, 2].transpose(1, 2)
        if past is not None:
            k, v = (torch.cat((old.to(new.dtype), new), dim=2) for old, new in zip(past, (k, v), strict=True))
            past = (k, v)
        return self.attn_out(attention(q, k, v, attn).transpose(1, 2).reshape(batch, length, dim)), past

    def _attend_some(self, h: Tensor, rotary: tuple[Tensor, Tensor], attn: Attn, queries: Tensor) -> Tensor:
        """The same for some columns: keys and values of all, queries of those."""
        batch, length, dim = h.shape
        q_weight, kv_weight = self.attn_qkv.weight.split([dim, 2 * dim])
        kv = F.linear(h, kv_weight).view(batch, length, 2, self.n_heads, -1)
        q = F.linear(pick(h, queries), q_weight).view(batch, queries.shape[1], self.n_heads, -1)
        cos, sin = (table.expand(batch, -1, -1, -1) for table in rotary)
        k = rotate(kv[:, :, 0], cos, sin).to(kv.dtype).transpose(1, 2)
        row = torch.arange(batch, device=h.device)[:, None]
        q = rotate(q, cos[row, queries], sin[row, queries]).to(q.dtype).transpose(1, 2)
        out = attention(q, k, kv[:, :, 1].transpose(1, 2), attn)  # (B, H, M, D)
        return self.attn_out(out.transpose(1, 2).reshape(batch, -1, dim))

    def _add(self, x: Tensor, gate: Tensor | None, branch: Tensor) -> Tensor:
        branch = dropout(branch, self.dropout, self.training).float()
        return x + branch if gate is None else torch.addcmul(x, gate.float(), branch)


def pick(x: Tensor, columns: Tensor) -> Tensor:
    """(B, M, dim) of (B, L, dim): some columns of each row."""
    return x[torch.arange(len(x), device=x.device)[:, None], columns]


class OutputLayer(nn.Module):
    """Final norm, and the projection to the vocabulary (zero at the start: every token equally likely)."""

    def __init__(self, dim: int, vocab_size: int, cond_dim: int | None) -> None:
        super().__init__()
        self.norm_final = LayerNorm(dim)
        self.linear = nn.Linear(dim, vocab_size)
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


def rotary_of(positions: Tensor, head_dim: int) -> tuple[Tensor, Tensor]:
    """Cos and sin of positions (L,) or (B, L) as blocks take them: (1 or B, L, 1, D)."""
    cos, sin = rotary_table(positions, head_dim)
    shape = (-1, positions.shape[-1], 1, head_dim)
    return cos.view(shape), sin.view(shape)


class DiT(Network):
    """Tokens to hidden states; `head` for the rows whose logits are wanted."""

    takes_queries = True

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
        self.vocab, self.hidden_dim, self.head_dim = vocab, hidden_dim, hidden_dim // n_heads
        self.time_conditioning, self.n_labels = time_conditioning, n_labels
        self.vocab_embed = Embedding(vocab.size, hidden_dim)
        self.sigma_map = TimestepEmbedder(cond_dim)
        self.blocks = nn.ModuleList(
            DiTBlock(hidden_dim, n_heads, cond_dim, mlp_ratio, dropout) for _ in range(n_blocks)
        )
        self.output_layer = OutputLayer(hidden_dim, vocab.size, cond_dim)
        if n_labels:  # made last, so that all other weights are drawn as without labels
            self.label_embed = Embedding(n_labels + 1, cond_dim)

    def condition(self, sigma: Tensor, label: Tensor | None = None) -> Tensor:
        """(B,) sigma and labels (-1 = none) to (B, cond_dim), or (1, cond_dim) where nothing tells rows apart."""
        if not self.time_conditioning:
            sigma = sigma.new_zeros(1)
        cond = self.sigma_map(sigma)
        if self.n_labels:
            cond = cond + self._label(label)
        else:
            self.refuse(label=label)
        return F.silu(cond)

    def _label(self, label: Tensor | None) -> Tensor:
        """(B, cond_dim) of the labels, or (1, cond_dim) of "no label" for all."""
        if label is None:
            return self.label_embed.embedding[-1:]
        beyond = label >= self.n_labels  # n_labels itself must fail like all others above it, not mean "none"
        return self.label_embed(torch.where(label < 0, self.n_labels, label + beyond))

    def forward(
        self,
        tokens: Tensor | None = None,
        *,
        inputs: Tensor | None = None,
        types: Tensor | None = None,
        cond: Tensor | None = None,
        attn: Attn | None = None,
        cache: Any = None,
    ) -> tuple[Tensor, None]:
        """(B, L) tokens, or (B, L, hidden) inputs, to (B, L, hidden)."""
        self.refuse(types=types, cache=cache)
        if (tokens is None) == (inputs is None):
            raise ValueError("give the DiT backbone either tokens or inputs")
        x = self.vocab_embed(tokens) if inputs is None else inputs
        assert cond is not None, "the DiT needs cond = backbone.condition(sigma)"
        attn = attn or Attn()
        if attn.queries is not None and attn.pattern != "full":
            raise ValueError("the DiT backbone takes some queries only with full attention")
        positions = torch.arange(x.shape[1], device=x.device) if attn.positions is None else attn.positions
        rotary = rotary_of(positions, self.head_dim)
        for block in self.blocks[:-1]:
            x, _ = block(x, cond, rotary, attn)
        x, _ = self.blocks[-1](x, cond, rotary, attn, attn.queries)  # only here can columns be left out
        return self.output_layer(x, cond), None

    def head(self, rows: Tensor) -> Tensor:
        """(N, hidden) to (N, V) logits."""
        return self.output_layer.linear(rows)
