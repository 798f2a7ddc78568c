"""A network with a label or a score for each row, for GLUE and Genomic Benchmarks (paper sections 5.1 and 5.2).

pooling="first": pooler and classifier are those of BERT: one hidden state, a dense layer with tanh, dropout, a
linear layer. The state is that of the first token; in a causal network the first token sees only itself, so there it is
the last real token (the paper does not say which it used).

pooling="mean": the mean of the hidden states, and a linear layer. Padding does not count (in the code of Caduceus it
does, so that a short sequence gets another result in a batch with a long one). For a network with two strands (Caduceus
PS) the layer is applied to each strand and its two outputs are averaged, so that the reverse complement of a sequence
has the same output. (The layer is linear, so this is its output for the mean of the two.)

A Plaid model reads embeddings, not tokens: there `reader` is that model, and a row is read at t = 0 without noise and
without a guess (the paper does not say how it was done).

The head of the language model stays in place, unused and untrained.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..networks.dit import pick
from ..networks.interface import Network
from ..networks.kernels.dropout import dropout
from ..process.keys import Keys
from ..types import Batch
from .plaid import Plaid


class Classifier(nn.Module):
    """Rows of tokens to n_outputs numbers each: logits of labels, or one score (n_outputs = 1)."""

    pooler: nn.Linear | None
    reader: Plaid | None

    def __init__(
        self,
        backbone: Network,
        n_outputs: int,
        *,
        dropout: float = 0.1,
        pooling: str = "first",
        reader: Plaid | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.n_outputs, self.dropout, self.mean = backbone, n_outputs, dropout, pooling == "mean"
        self.two_strands = self.mean and getattr(backbone, "strands", None) == "ps"
        width = backbone.hidden_dim // 2 if self.two_strands else backbone.hidden_dim
        self.pooler = None if self.mean else nn.Linear(width, width)
        self.classifier = nn.Linear(width, n_outputs)
        for layer in (self.pooler, self.classifier):
            if layer is not None:
                nn.init.normal_(layer.weight, std=0.02)
                nn.init.zeros_(layer.bias)
        self.reader = reader
        if reader is not None:  # it shares our network: one owner, or the weights would be saved twice
            reader.__dict__["backbone"] = reader._modules.pop("backbone", backbone)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.classifier.weight.device

    @property
    def pooling(self) -> str:
        """How a row is pooled, for protocols."""
        if self.mean:
            return "mean over real tokens" + (", both strands averaged" if self.two_strands else "")
        return "last real token" if self.backbone.causal else "first token"

    def outputs(self, batch: Batch) -> Tensor:
        """(B, n_outputs) float32."""
        hidden = self._mean(batch) if self.mean else self._pooled(batch)
        if self.pooler is not None:
            hidden = torch.tanh(self.pooler(hidden))
        return self.classifier(dropout(hidden, self.dropout, self.training)).float()

    def _mean(self, batch: Batch) -> Tensor:
        """(B, width): the mean over real tokens, and over both strands where there are two."""
        hidden = self._hidden(batch)  # (B, L, hidden)
        if batch.present is None:
            mean = hidden.mean(1)
        else:
            real = batch.present[..., None]
            mean = torch.where(real, hidden, 0).sum(1) / real.sum(1).clamp(min=1)
        if not self.two_strands:
            return mean
        forward, other = mean.chunk(2, -1)  # the channels of the other strand are reversed
        return (forward + other.flip(-1)) / 2

    def _pooled(self, batch: Batch) -> Tensor:
        """(B, hidden): the state that represents each row."""
        column = self._column(batch)
        net = self.backbone
        asked = column if "queries" in net.takes and not net.causal and self.reader is None else None
        hidden = self._hidden(batch, asked)
        return (hidden if asked is not None else pick(hidden, column))[:, 0]

    def _hidden(self, batch: Batch, asked: Tensor | None = None) -> Tensor:
        """(B, L, hidden): the states of clean text (sigma 0), or only those of the columns `asked`."""
        net, tokens, reader = self.backbone, batch.tokens, self.reader
        if reader is not None:
            gamma = reader.gamma(torch.zeros(len(batch), device=tokens.device, dtype=torch.float64))
            z = torch.sigmoid(-gamma).sqrt().float()[:, None, None] * reader.embeddings()[tokens]
            return reader.hidden(z, gamma, present=batch.present)
        condition = net.condition(torch.zeros(len(batch), device=tokens.device))
        types = batch.types if "types" in net.takes else None
        hidden: Tensor = net(tokens, types=types, condition=condition, valid=batch.present, queries=asked)[0]
        return hidden

    def _column(self, batch: Batch) -> Tensor:
        """(B, 1): the column of that state."""
        tokens = batch.tokens
        if not self.backbone.causal:
            return tokens.new_zeros(len(tokens), 1)
        every = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        real = every if batch.present is None else torch.where(batch.present, every, 0)
        return real.max(1, keepdim=True).values

    def forward(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """(cross-entropy, or squared error of a score, summed over rows; the number of rows)."""
        assert batch.label is not None, "a classifier learns from labels"
        outputs = self.outputs(batch)
        if self.n_outputs == 1:
            loss = (outputs[:, 0] - batch.label.to(outputs.dtype)).square().sum()
        else:
            loss = F.cross_entropy(outputs, batch.label, reduction="sum")
        return loss, torch.tensor(float(len(batch)), device=outputs.device)

    def freeze_unused(self) -> list[str]:
        """Freeze the weights that the outputs do not depend on (the language model's head), and return their names.

        A probe finds them in any network. (DDP waits for the gradient of every weight that may have one.)
        """
        tokens = torch.tensor([[0, 1, 2, 0]], device=self.device) % self.backbone.vocab.size
        probe = Batch(tokens, torch.zeros(1, dtype=torch.int64), 1, types=tokens.clamp(max=1))
        self.outputs(probe).sum().backward()
        unused = [name for name, p in self.named_parameters() if p.grad is None]
        for name, p in self.named_parameters():
            p.requires_grad_(name not in unused)
            p.grad = None
        return unused
