"""Mamba (Gu and Dao 2023; paper section 5.2): a causal network whose memory is a state of fixed size.

Parameter names are those of the published checkpoints (`layers.0.mixer.A_log`). The embedding is padded to a multiple
of 8 and tied to the head; the padding is never predicted. Its cache is a state: the last columns before the short
convolution and the state of the scan, so one more token costs the same after any prefix.

Padding is skipped wherever it is: the columns that exist are moved to the front, and those after them leave state and
convolution unchanged.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from ..types import Vocab
from .interface import Network, NetworkInput, Parts, TokenWeights
from .kernels.attention import Causal
from .kernels.scan import selective_scan, short_conv
from .layers import PackedRows, RMSNorm, padded, weight_of

DT_MIN, DT_MAX, DT_FLOOR = 1e-3, 0.1, 1e-4  # the steps that a fresh network takes
EMBED_STD = 0.02

Memory = tuple[Tensor, Tensor]  # of a layer: (R, K - 1, E) columns before the convolution, (R, N, E) state of the scan


def rank_of(dim: int) -> int:
    """The rank of the steps of a layer."""
    return math.ceil(dim / 16)


def fused(dim: int, state_dim: int) -> dict[str, Parts]:
    """The projections of a mixer that compute several things at once, as in `Network.fused`."""
    return {"in_proj": 2, "x_proj": (rank_of(dim), state_dim, state_dim)}


class Mixer(nn.Module):
    """The selective state space of one direction; a second direction shares the projections of the first."""

    def __init__(self, dim: int, state_dim: int, conv_width: int, expand: int, projections: bool = True) -> None:
        super().__init__()
        inner, rank = expand * dim, rank_of(dim)
        self.state_dim, self.rank, self.conv_width = state_dim, rank, conv_width
        if projections:
            self.in_proj = nn.Linear(dim, 2 * inner, bias=False)
            self.out_proj = nn.Linear(inner, dim, bias=False)
        self.conv1d = nn.Conv1d(inner, inner, conv_width, groups=inner)  # holds the weights; `short_conv` computes
        self.x_proj = nn.Linear(inner, rank + 2 * state_dim, bias=False)
        self.dt_proj = nn.Linear(rank, inner)
        self.A_log = nn.Parameter(torch.arange(1, state_dim + 1, dtype=torch.float32).log().repeat(inner, 1))
        self.D = nn.Parameter(torch.ones(inner))
        self._first_steps(inner)

    def _first_steps(self, inner: int) -> None:
        """Initialise the steps (delta) evenly in their logarithm."""
        nn.init.uniform_(self.dt_proj.weight, -(self.rank**-0.5), self.rank**-0.5)
        with torch.no_grad():
            step = torch.exp(torch.rand(inner) * (math.log(DT_MAX) - math.log(DT_MIN)) + math.log(DT_MIN))
            step = step.clamp(min=DT_FLOOR)
            self.dt_proj.bias.copy_(step + torch.log(-torch.expm1(-step)))  # the inverse of softplus

    def scan(
        self, x: Tensor, exists: Tensor | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, Memory | None]:
        """Inner channels (R, L, E) to (R, L, E): short convolution and scan. `exists` (R, L) is False for padding.

        With a memory of the columns before, and padding only at the end, the new memory is returned too.
        """
        before, state = (None, None) if memory is None else memory
        assert self.conv1d.bias is not None
        if exists is not None:
            x = x * exists[..., None]
        seen = x
        x = F.silu(short_conv(x, self.conv1d.weight[:, 0], self.conv1d.bias, before))
        dt, b, c = self.x_proj(x).split([self.rank, self.state_dim, self.state_dim], dim=-1)
        wide = torch.promote_types(self.A_log.dtype, torch.float32)  # steps and decays are never 16-bit
        delta = F.softplus(F.linear(dt, weight_of(self.dt_proj)).to(wide) + self.dt_proj.bias.to(wide))
        if exists is not None:
            delta = delta * exists[..., None]
        y, state = selective_scan(x, delta, -torch.exp(self.A_log.to(wide)), b, c, self.D, state)
        if before is None:
            return y.to(x.dtype), None
        return y.to(x.dtype), (_last_columns(before, seen, exists), state)

    def forward(
        self, x: Tensor, exists: Tensor | None = None, memory: Memory | None = None
    ) -> tuple[Tensor, Memory | None]:
        """(R, L, dim) to (R, L, dim), and the new memory."""
        x, z = self.in_proj(x).chunk(2, dim=-1)
        y, memory = self.scan(x, exists, memory)
        return self.out_proj(y * F.silu(z)), memory


def _last_columns(before: Tensor, new: Tensor, exists: Tensor | None) -> Tensor:
    """(R, K - 1, E): the last columns that exist."""
    whole = torch.cat((before.to(new.dtype), new), dim=1)
    if exists is None:
        return whole[:, whole.shape[1] - before.shape[1] :]
    place = exists.sum(1)[:, None] + torch.arange(before.shape[1], device=new.device)
    return whole.gather(1, place[..., None].expand(-1, -1, whole.shape[2]))


class MambaLayer(nn.Module):
    """Add, norm, mix; the result is added by the next layer."""

    def __init__(self, dim: int, mixer: nn.Module) -> None:
        super().__init__()
        self.mixer = mixer
        self.norm = RMSNorm(dim)

    def forward(
        self, hidden: Tensor | None, residual: Tensor, exists: Tensor | None, memory: Memory | None = None
    ) -> tuple[Tensor, Tensor, Memory | None]:
        """What the layer adds, the residual stream before that, and the memory; the stream is at least float32."""
        if hidden is not None:
            residual = residual + hidden.to(residual.dtype)
        hidden, memory = self.mixer(self.norm(residual), exists, memory)
        return hidden, residual, memory


def initialise(net: nn.Module, n_layers: int) -> None:
    """Small normal embeddings; the more layers there are, the less each of them adds."""
    for name, module in net.named_modules():
        if isinstance(module, nn.Embedding):
            nn.init.normal_(module.weight, std=EMBED_STD)
        if name.endswith("out_proj") and isinstance(module, nn.Linear):
            nn.init.kaiming_uniform_(module.weight, a=math.sqrt(5))
            with torch.no_grad():
                module.weight /= math.sqrt(n_layers)


def undecayed(net: nn.Module) -> set[str]:
    """The names of weights without weight decay: biases, embeddings, A and D (as Caduceus was trained)."""
    return {name for name, _ in net.named_parameters() if name.endswith((".bias", ".A_log", ".D")) or "embed" in name}


class Mamba(Network):
    """Tokens to hidden states; column j has seen the tokens 0 .. j."""

    takes = frozenset({"tokens", "valid", "cache"})
    attention = Causal()
    causal = True
    directions = frozenset({"left"})
    recurrent = True

    def __init__(
        self,
        vocab: Vocab,
        hidden_dim: int = 128,
        n_blocks: int = 4,
        state_dim: int = 16,
        conv_width: int = 4,
        expand: int = 2,
    ) -> None:
        super().__init__()
        self.vocab, self.hidden_dim = vocab, hidden_dim
        self.inner, self.state_dim, self.conv_width = expand * hidden_dim, state_dim, conv_width
        self.embeddings = nn.Embedding(padded(vocab.size), hidden_dim)
        self.layers = nn.ModuleList(
            MambaLayer(hidden_dim, Mixer(hidden_dim, state_dim, conv_width, expand)) for _ in range(n_blocks)
        )
        self.norm_f = RMSNorm(hidden_dim)
        self.fused = fused(hidden_dim, state_dim)
        initialise(self, n_blocks)

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Mamba:
        sizes = settings.model_dump(include={"hidden_dim", "n_blocks", "state_dim", "conv_width", "expand"})
        return cls(vocab, **sizes)

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers."""
        return self.layers

    @override
    def no_decay(self) -> set[str]:
        return undecayed(self)

    @override
    def empty_cache(self, rows: int) -> list[Memory]:
        new = self.embeddings.weight.new_zeros
        empty = new(rows, self.conv_width - 1, self.inner), new(rows, self.state_dim, self.inner)
        return [empty] * len(self.layers)

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, list[Memory] | None]:
        """(B, L) tokens, which follow those of the cache, to (B, L, hidden); with a cache also the new one.

        There are no positions: columns are read in order.
        """
        tokens, valid, cache = inputs.content, inputs.valid, inputs.cache
        together = PackedRows.of(None if valid is None else valid[:, -tokens.shape[1] :])
        exists = None
        if together is not None:
            tokens, exists = together.take(tokens), together.exists
        past: Sequence[Memory | None] = [None] * len(self.layers) if cache is None else cache
        hidden, residual, kept = None, self.embeddings(tokens), []
        for layer, past_memory in zip(self.layers, past, strict=True):
            hidden, residual, memory = layer(hidden, residual, exists, past_memory)
            kept.append(memory)
        assert hidden is not None
        out = self.norm_f(residual + hidden.to(residual.dtype))
        return out if together is None else together.back(out), None if cache is None else kept

    @override
    def token_weights(self) -> TokenWeights:
        return TokenWeights(self.embeddings.weight)

    @override
    def head(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.embeddings.weight[: self.vocab.size].to(rows.dtype))
