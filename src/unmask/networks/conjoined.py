"""Both strands of DNA through any network that looks both ways (paper section 5.2: reverse-complement equivariance).

A sequence and its reverse complement are one molecule. A network that is not equivariant by its weights predicts
something different for each. `Conjoined` runs it on both and takes the mean of the logits, with the bases of the other
strand complemented. The prediction for the other strand is then that for this one, read backwards: exactly, as a sum
does not depend on the order of its two terms.

Why the mean of the logits and not that of the probabilities: it does not depend on what the logits mean (a softmax
without [MASK], SEDD's scores), and the bound of the conjoined network is at most the mean of the bounds of the two
strands, as sum sqrt(p q) is at most 1.
"""

from __future__ import annotations

from dataclasses import replace

import torch
from torch import Tensor
from typing_extensions import override

from .interface import Network, NetworkInput, Parts


def backwards(tokens: Tensor, valid: Tensor | None = None) -> Tensor:
    """(B, L): the column that each column swaps places with when rows are read backwards; padding stays in place."""
    column = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
    if valid is None:
        return column.flip(1)
    rank, count = valid.long().cumsum(1) - 1, valid.sum(1, keepdim=True)
    existing = valid.long().argsort(dim=1, descending=True, stable=True)  # existing columns first, in their order
    return torch.where(valid, existing.gather(1, (count - 1 - rank).clamp(min=0)), column)


class Conjoined(Network):
    """A network on both strands: per column, the hidden state of this strand followed by that of the other."""

    def __init__(self, inner: Network, complement: Tensor) -> None:
        super().__init__()
        assert not inner.causal, "a network that looks to the left only cannot read both strands"
        self.takes = inner.takes & {"tokens", "condition", "valid"}
        self.inner, self.vocab, self.hidden_dim = inner, inner.vocab, 2 * inner.hidden_dim
        self.time_conditioning, self.n_labels, self.longest = inner.time_conditioning, inner.n_labels, inner.longest
        self.complement: Tensor
        self.register_buffer("complement", complement.long(), persistent=False)  # id to id, an involution

    @override
    def condition(self, sigma: Tensor, label: Tensor | None = None) -> Tensor | None:
        return self.inner.condition(sigma, label)

    @override
    def matrices(self) -> dict[str, Parts]:
        return {f"inner.{name}": parts for name, parts in self.inner.matrices().items()}

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, None]:
        """(B, L) tokens to (B, L, 2 hidden)."""
        tokens = inputs.content
        turn = backwards(tokens, inputs.valid)
        this = self.inner(inputs)[0]
        other = self.inner(replace(inputs, tokens=self.complement[tokens].gather(1, turn)))[0]
        return torch.cat((this, other.gather(1, turn[..., None].expand_as(other))), dim=-1), None

    def head(self, rows: Tensor) -> Tensor:
        """(N, 2 hidden) to (N, V) logits: the mean over both strands."""
        this, other = (self.inner.head(half) for half in rows.chunk(2, dim=-1))
        beyond = torch.arange(len(self.complement), other.shape[-1], device=rows.device)  # rows of a padded embedding
        return (this + other[:, torch.cat((self.complement[: other.shape[-1]], beyond))]) / 2
