"""HyenaDNA (paper 5.2 and D.7): long convolutions between gates instead of attention, causal.

Each block is a pre-norm residual block around the Hyena operator of order 2 and an MLP. The operator gates, convolves
with a filter as long as the row, and gates again; the filter is the output of a small network with sines at each
position, times a decaying window. The residual stream is float32, dropout is applied after the embedding only, and the
head is tied to the embedding. The vocabulary is padded to a multiple of 8; logits of the padding are not computed.

Tensors inside a language model have the published names (LongSafari/hyenadna-*, without "model." or "hyena." in front):
backbone.embeddings.word_embeddings.weight, backbone.layers.i.{norm1, norm2, mixer.{in_proj, out_proj, short_filter,
filter_fn.{bias, implicit_filter.{0, 2, 4, 6, 1.freq}}}, mlp.{fc1, fc2}}, backbone.ln_f. Every tensor is stored once:
implicit_filter.{3, 5}.freq are implicit_filter.1.freq, and lm_head.weight is the embedding. The fixed tables,
pos_emb.{z, t} and modulation.deltas, are computed and not part of the state: they never have a gradient, and weight
averages and models on the meta device need not hold them. So the size in the paper is 436,096: frequencies count once,
fixed tables and the head do not. `published` maps the names of a published file to ours, and checks everything that it
drops.

Padding has no effect, wherever it is. Without a cache the tokens of a row are moved to its front, and what follows
them is not seen. With a cache, where padding precedes a row, its columns are zeros in both convolutions, like anything
before the first column.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from ..types import UserError, Vocab
from .interface import Network, NetworkInput, Parts, TokenWeights
from .kernels.attention import Causal
from .kernels.dropout import dropout
from .kernels.fftconv import long_conv
from .kernels.scan import short_conv
from .layers import PackedRows, padded

INIT_STD = 0.02
WIDTH = 3  # columns that the short filter sees
BANDS = 2  # frequencies that encode a position for the filter's network
FREQUENCY = 10.0  # of its sines, before training
FAST, SLOW, TARGET = 0.3, 1.5, 0.01  # channels decay to TARGET at these shares of the longest row

Kept = tuple[
    Tensor, Tensor
]  # of one block: what the short filter reads (B, 1, n, 3 dim) and the long one (B, 1, n, dim)


def positions(longest: int, like: Tensor) -> tuple[Tensor, Tensor]:
    """The input of the filter's network for each column, z (longest, 5), and the time t (longest, 1) from 0 to 1."""
    how = _how(like)
    t = torch.linspace(0, 1, longest, **how)[:, None]
    angle = 2 * math.pi * torch.linspace(0, longest - 1, longest, **how)[:, None] / longest
    angle = angle * torch.linspace(1e-4, BANDS - 1, BANDS, **how)
    return torch.cat((t, angle.cos(), -angle.sin()), dim=1), t  # exp(-i angle)


def deltas(dim: int, like: Tensor) -> Tensor:
    """(dim,): the rates at which the filters of the channels decay, slow ones first."""
    return torch.linspace(math.log(TARGET) / SLOW, math.log(TARGET) / FAST, dim, **_how(like))


def _how(like: Tensor) -> dict[str, Any]:
    """Type and device of a table; at least float32, as 16 bits cannot distinguish the positions."""
    return {"dtype": torch.promote_types(like.dtype, torch.float32), "device": like.device}


class Sine(nn.Module):
    """sin(freq · x) with trainable frequencies."""

    def __init__(self, dim: int) -> None:
        super().__init__()
        self.freq = nn.Parameter(torch.full((1, dim), FREQUENCY))

    def forward(self, x: Tensor) -> Tensor:
        """(L, dim) to (L, dim)."""
        return torch.sin(self.freq * x)


class Filter(nn.Module):
    """The long filter of each channel; `bias` weighs the contribution of a column to itself."""

    def __init__(self, dim: int, width: int, longest: int, shift: float) -> None:
        super().__init__()
        self.dim, self.longest, self.shift = dim, longest, shift
        self.bias = nn.Parameter(torch.randn(dim))
        self.implicit_filter = nn.ModuleDict(
            {
                "0": nn.Linear(1 + 2 * BANDS, width),
                "1": Sine(width),  # shared by all layers, under its first published name
                "2": nn.Linear(width, width),
                "4": nn.Linear(width, width),
                "6": nn.Linear(width, dim, bias=False),
            }
        )

    def forward(self, length: int) -> Tensor:
        """The first columns (length, dim) of the filters, in float32 whatever autocast says."""
        with torch.autocast(self.bias.device.type, enabled=False):
            z, t = (table[:length] for table in positions(self.longest, self.bias))
            net, h = self.implicit_filter, z.to(self.bias.dtype)
            for name in ("0", "2", "4"):
                h = net["1"](net[name](h))
            window = torch.exp(-t * deltas(self.dim, self.bias).abs()) + self.shift
            return net["6"](h) * window


class Operator(nn.Module):
    """Hyena of order 2: out(x0 · conv(x1 · v)), where x0, x1 and v are short convolutions of projections."""

    def __init__(self, dim: int, width: int, longest: int, shift: float) -> None:
        super().__init__()
        self.in_proj = nn.Linear(dim, 3 * dim)
        self.out_proj = nn.Linear(dim, dim)
        self.short_filter = nn.Conv1d(3 * dim, 3 * dim, WIDTH, groups=3 * dim)
        self.filter_fn = Filter(dim, width, longest, shift)

    def forward(self, h: Tensor, past: Kept | None = None, absent: Tensor | None = None) -> tuple[Tensor, Kept | None]:
        """(B, L, dim) to (B, L, dim); with `past`, the cache of n columns before them, also the cache of both.

        `absent` (B, n + L, 1) marks the columns of padding.
        """
        new, p, short = h.shape[1], self.in_proj(h), self.short_filter
        assert short.bias is not None
        whole, before = p, None
        if past is not None:
            whole = _zeroed(torch.cat((past[0][:, 0].to(p.dtype), p), dim=1), absent)
            begin = whole.shape[1] - new
            p, before = whole[:, begin:], F.pad(whole[:, :begin], (0, 0, WIDTH - 1, 0))[:, begin:]
        x0, x1, v = short_conv(p, short.weight[:, 0], short.bias, before).chunk(3, dim=-1)
        u = x1 * v
        if past is not None:
            u = _zeroed(torch.cat((past[1][:, 0].to(u.dtype), u), dim=1), absent)
            past = whole[:, None], u[:, None]
        last = None if past is None else new
        y = long_conv(u, self.filter_fn(u.shape[1]), self.filter_fn.bias, last)
        return self.out_proj(y * x0), past


def _zeroed(columns: Tensor, absent: Tensor | None) -> Tensor:
    return columns if absent is None else columns.masked_fill(absent, 0.0)


class Mlp(nn.Module):
    """Two layers with a GELU between them."""

    def __init__(self, dim: int, inner: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(dim, inner), nn.Linear(inner, dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, L, dim) to (B, L, dim)."""
        return self.fc2(F.gelu(self.fc1(x), approximate="tanh"))


class HyenaBlock(nn.Module):
    """Operator and MLP, each with a norm before it and added to its input."""

    def __init__(self, dim: int, inner: int, width: int, longest: int, shift: float) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(dim), nn.LayerNorm(dim)
        self.mixer = Operator(dim, width, longest, shift)
        self.mlp = Mlp(dim, inner)

    def forward(self, x: Tensor, past: Kept | None = None, absent: Tensor | None = None) -> tuple[Tensor, Kept | None]:
        """(B, L, dim) to (B, L, dim) in the type of x, and the new cache, as in `Operator`."""
        mixed, past = self.mixer(self.norm1(x), past, absent)
        x = x + mixed.to(x.dtype)
        return x + self.mlp(self.norm2(x)).to(x.dtype), past


class Hyena(Network):
    """Tokens to hidden states; column j has seen the tokens 0 .. j; rows have at most `filter_length` tokens."""

    takes = frozenset({"tokens", "valid", "positions", "cache"})
    attention = Causal()
    causal = True
    directions = frozenset({"left"})
    fused: Mapping[str, Parts] = {"in_proj": 3}

    def __init__(
        self,
        vocab: Vocab,
        hidden_dim: int = 128,
        n_blocks: int = 2,
        mlp_ratio: int = 4,
        dropout: float = 0.1,
        filter_dim: int = 64,
        filter_length: int = 1026,
        shift: float = 0.0,
    ) -> None:
        super().__init__()
        self.vocab, self.hidden_dim, self.dropout, self.longest = vocab, hidden_dim, dropout, filter_length
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(padded(vocab.size), hidden_dim)})
        sizes = (hidden_dim, mlp_ratio * hidden_dim, filter_dim, filter_length)
        self.layers = nn.ModuleList(HyenaBlock(*sizes, shift) for _ in range(n_blocks))
        self.ln_f = nn.LayerNorm(hidden_dim)
        self._initialise()

    def _initialise(self) -> None:
        """As in GPT-2: normal with a deviation of 0.02, smaller for what is added to the residuals; zero biases."""
        for name, module in self.named_modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                added = name.endswith((".out_proj", ".fc2"))
                nn.init.normal_(module.weight, std=INIT_STD / math.sqrt(2 * len(self.layers)) if added else INIT_STD)
            if isinstance(module, nn.Linear) and module.bias is not None:
                nn.init.zeros_(module.bias)

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Hyena:
        names = {"hidden_dim", "n_blocks", "mlp_ratio", "dropout", "filter_dim", "filter_length"}
        return cls(vocab, **settings.model_dump(include=names), shift=settings.filter_shift)

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers."""
        return self.layers

    @property
    def table(self) -> nn.Parameter:
        """The embedding, to which the head is tied."""
        weight = self.embeddings["word_embeddings"].weight
        assert isinstance(weight, nn.Parameter)
        return weight

    @override
    def no_decay(self) -> set[str]:
        """The names of parameters without weight decay: biases, norms, the embedding and all of the filters."""
        parts = ("norm", "ln_f", "embeddings", "filter_fn")
        names = (name for name, _ in self.named_parameters())
        return {name for name in names if name.endswith("bias") or any(part in name for part in parts)}

    @override
    def matrices(self) -> dict[str, Parts]:
        """Without those that make the filters: a filter is a function of the position, learned like a convolution."""
        return {name: parts for name, parts in super().matrices().items() if "filter_fn" not in name}

    @override
    def empty_cache(self, rows: int) -> list[Kept]:
        short, long = (self.table.new_empty(rows, 1, 0, width * self.hidden_dim) for width in (3, 1))
        return [(short, long)] * len(self.layers)

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, list[Kept] | None]:
        """(B, L) tokens, which follow those of the cache, to (B, L, hidden); with a cache also the new one.

        `positions` have no effect: the distance of two columns is the number of tokens between them.
        """
        tokens, cache = inputs.content, inputs.cache
        self._check_length(tokens.shape[1] + (0 if cache is None else cache[0][0].shape[2]))
        if cache is not None:
            return self._run(tokens, cache, _absent(inputs.valid))
        together = PackedRows.of(inputs.valid)
        if together is None:
            return self._run(tokens)[0], None
        return together.back(self._run(together.take(tokens))[0]), None

    def _check_length(self, length: int) -> None:
        assert self.longest is not None
        if length > self.longest:
            raise UserError(
                f"{length} tokens are more than the {self.longest} that the filters of this Hyena were made for; set "
                f"data.length to at most {self.longest}, or train a model with model.filter_length={length}"
            )

    def _run(
        self, tokens: Tensor, cache: Sequence[Kept] | None = None, absent: Tensor | None = None
    ) -> tuple[Tensor, list[Kept]]:
        x = dropout(F.embedding(tokens, self.table), self.dropout, self.training)
        past: Sequence[Kept | None] = [None] * len(self.layers) if cache is None else cache
        kept = []
        for block, memory in zip(self.layers, past, strict=True):
            x, memory = block(x, memory, absent)
            kept.append(memory)
        return self.ln_f(x), kept

    @override
    def token_weights(self) -> TokenWeights:
        return TokenWeights(self.table)

    @override
    def head(self, rows: Tensor) -> Tensor:
        return F.linear(rows, self.table[: self.vocab.size])


def _absent(valid: Tensor | None) -> Tensor | None:
    """(B, L, 1): where padding is. It must precede the rows, so that their columns are contiguous."""
    if valid is None:
        return None
    if bool((valid[:, :-1] & ~valid[:, 1:]).any()):
        raise ValueError("with a cache, the Hyena network takes padding before the rows only")
    return ~valid[..., None]
