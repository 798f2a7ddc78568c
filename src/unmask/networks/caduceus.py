"""Caduceus (Schiff et al. 2024; paper section 5.2): Mamba in both directions, on both strands of DNA.

BiMamba: out = M_f(x) + flip(M_r(flip x)), where M_r has the projections of M_f, so that each is computed once.

The two strands of a molecule are the same text: the reverse complement R (order reversed, bases complemented). With
strands="ps" the network is equivariant by its weights. It reads x and R x with the same weights; the hidden state of a
column is [h(x), R h(R x)], where R reverses length and channels, so hidden(R x) = R hidden(x). The head adds the logits
of a base from one half and those of its complement from the other. With strands="ph" it reads one strand, and
equivariance is left to training (data.reverse_complement) and to averaging afterwards.

The published "ps" weights were trained with fused norms, which swap the two strands, reversed, before every
layer; the result is equivariant too, but another function of the same weights (`swap`).

Parameter names are those of the published "ph" checkpoints without the first prefix; "ps" has the same weights.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from typing_extensions import override

from ..data.genome.bases import COMPLEMENT
from ..types import UserError, Vocab
from .interface import Network, NetworkInput, TokenWeights
from .layers import PackedRows, RMSNorm, padded
from .mamba import MambaLayer, Mixer, fused, initialise, undecayed


class BiMamba(nn.Module):
    """Both directions of a row, with one pair of projections."""

    def __init__(self, dim: int, state_dim: int, conv_width: int, expand: int) -> None:
        super().__init__()
        self.mamba_fwd = Mixer(dim, state_dim, conv_width, expand)
        self.mamba_rev = Mixer(dim, state_dim, conv_width, expand, projections=False)

    def forward(self, x: Tensor, exists: Tensor | None = None, memory: None = None) -> tuple[Tensor, None]:
        """(R, L, dim) to (R, L, dim); it looks both ways, so it has no memory."""
        x, z = self.mamba_fwd.in_proj(x).chunk(2, dim=-1)
        forth, _ = self.mamba_fwd.scan(x, exists)
        back, _ = self.mamba_rev.scan(x.flip(1), None if exists is None else exists.flip(1))
        return self.mamba_fwd.out_proj((forth + back.flip(1)) * F.silu(z)), None


def turned(x: Tensor) -> Tensor:
    """R: (..., L, dim) with length and channels reversed."""
    return x.flip(-2, -1)


class Caduceus(Network):
    """Tokens to hidden states that have seen both directions, and with "ps" both strands."""

    takes = frozenset({"tokens", "embeddings", "valid"})

    def __init__(
        self,
        vocab: Vocab,
        dim: int = 118,
        n_blocks: int = 4,
        state_dim: int = 16,
        conv_width: int = 4,
        expand: int = 2,
        strands: str = "ps",
        swap: bool = False,
    ) -> None:
        super().__init__()
        if strands == "ps" and vocab.size > len(COMPLEMENT):
            raise UserError(
                f"a network for both strands reads bases, not a vocabulary of {vocab.size} tokens; "
                "set data.tokenizer=dna, or model.strands=ph"
            )
        if swap and strands != "ps":
            raise UserError("model.swap_strands belongs to model.strands=ps; leave it out")
        self.vocab, self.dim, self.strands, self.swap = vocab, dim, strands, swap
        self.hidden_dim = 2 * dim if strands == "ps" else dim
        self.embeddings = nn.ModuleDict({"word_embeddings": nn.Embedding(padded(vocab.size), dim)})
        self.layers = nn.ModuleList(
            MambaLayer(dim, BiMamba(dim, state_dim, conv_width, expand)) for _ in range(n_blocks)
        )
        self.norm_f = RMSNorm(dim)
        self.fused = fused(dim, state_dim)
        initialise(self, n_blocks)

    @override
    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Caduceus:
        sizes = settings.model_dump(include={"n_blocks", "state_dim", "conv_width", "expand", "strands"})
        return cls(vocab, settings.hidden_dim, **sizes, swap=settings.swap_strands)

    @property
    def blocks(self) -> nn.ModuleList:
        """The layers."""
        return self.layers

    @property
    def embedding(self) -> nn.Embedding:
        """The embedding, to which the head is tied."""
        embedding = self.embeddings["word_embeddings"]
        assert isinstance(embedding, nn.Embedding)
        return embedding

    @override
    def no_decay(self) -> set[str]:
        return undecayed(self)

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, None]:
        """(B, L) tokens, or embeddings (B, L, hidden), to (B, L, hidden).

        With "ps", hidden and embeddings are [strand, R other strand]: 2 dim channels.
        """
        content, plain = inputs.content, inputs.embeddings is None
        together = PackedRows.of(inputs.valid)
        exists = None if together is None else together.exists
        if together is not None:
            content = together.take(content)
        if self.strands == "ph":
            out = self._read(self.embedding(content) if plain else content, exists)
        else:
            both = self._both(content) if plain else torch.cat((content[..., : self.dim], self._other(content)))
            out = self._read(both, None if exists is None else torch.cat((exists, exists.flip(1))))
            forth, back = out.chunk(2)
            out = torch.cat((forth, turned(back)), dim=-1)
        return out if together is None else together.back(out), None

    def _both(self, tokens: Tensor) -> Tensor:
        """(2 B, L, dim): the rows, followed by the same rows of the other strand."""
        other = self.complement.to(tokens.device)[tokens].flip(1)
        return self.embedding(torch.cat((tokens, other)))

    def _other(self, embeddings: Tensor) -> Tensor:
        """The other strand of embeddings (B, L, 2 dim), in its reading direction."""
        return turned(embeddings[..., self.dim :])

    def _read(self, x: Tensor, exists: Tensor | None) -> Tensor:
        """(R, L, dim) through all layers and the last norm."""
        hidden: Tensor | None = None
        for layer in self.layers:
            if self.swap:
                x = self._swapped(x)
                hidden = None if hidden is None else self._swapped(hidden)
            hidden, x, _ = layer(hidden, x, exists)
        assert hidden is not None
        return self.norm_f(x + hidden.to(x.dtype))

    def _swapped(self, both: Tensor) -> Tensor:
        """(2 B, L, dim) with the strands swapped and reversed: padding stays where it was."""
        first, second = both.chunk(2)
        return torch.cat((turned(second), turned(first)))

    @property
    def complement(self) -> Tensor:
        """(V padded,) the id of the opposite base."""
        return torch.from_numpy(COMPLEMENT)

    @override
    def token_weights(self) -> TokenWeights:
        return TokenWeights(self.embedding.weight)

    @override
    def head(self, rows: Tensor) -> Tensor:
        weight = self.embedding.weight[: self.vocab.size].to(rows.dtype)
        if self.strands == "ph":
            return F.linear(rows, weight)
        opposite = self.complement[: self.vocab.size].to(rows.device)
        return F.linear(rows[..., : self.dim], weight) + F.linear(rows[..., self.dim :].flip(-1), weight[opposite])
