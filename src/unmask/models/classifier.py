"""A backbone with a label or a score for each row: what GLUE trains (paper section 5.1; SYSTEMS 3.5).

Pooler and classifier are BERT's: one hidden state, a dense layer with tanh, dropout, a linear layer. The state is that
of the first token; a causal network's first token sees only itself, so there it is the last real token (the paper does
not say what it took). The head of the language model stays where it is, unused and untrained.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..backbones.base import Backbone
from ..backbones.transformer import pick
from ..keys import Keys
from ..ops.attention import Attn
from ..ops.dropout import dropout
from ..types import Batch


class Classifier(nn.Module):
    """Rows of tokens to n_outputs numbers each: logits of labels, or one score (n_outputs = 1)."""

    def __init__(self, backbone: Backbone, n_outputs: int, *, dropout: float = 0.1) -> None:
        super().__init__()
        self.backbone, self.n_outputs, self.dropout = backbone, n_outputs, dropout
        self.pooler = nn.Linear(backbone.hidden_dim, backbone.hidden_dim)
        self.classifier = nn.Linear(backbone.hidden_dim, n_outputs)
        for layer in (self.pooler, self.classifier):
            nn.init.normal_(layer.weight, std=0.02)
            nn.init.zeros_(layer.bias)

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return self.pooler.weight.device

    @property
    def pooling(self) -> str:
        """Which hidden state stands for a row, for protocols."""
        return "last real token" if self.backbone.causal else "first token"

    def outputs(self, batch: Batch) -> Tensor:
        """(B, n_outputs) float32."""
        hidden = torch.tanh(self.pooler(self._pooled(batch)))
        return self.classifier(dropout(hidden, self.dropout, self.training)).float()

    def _pooled(self, batch: Batch) -> Tensor:
        """(B, hidden): the state that stands for each row, of clean text (sigma 0)."""
        net, tokens = self.backbone, batch.tokens
        column = self._column(batch)
        told = {"types": batch.types} if net.takes_types and batch.types is not None else {}
        asked = column if net.takes_queries and not net.causal else None
        attn = Attn("causal" if net.causal else "full", batch.present, queries=asked)
        cond = net.condition(torch.zeros(len(batch), device=tokens.device))
        hidden = net(tokens, cond=cond, attn=attn, **told)[0]
        return (hidden if asked is not None else pick(hidden, column))[:, 0]

    def _column(self, batch: Batch) -> Tensor:
        """(B, 1): where the state stands."""
        tokens = batch.tokens
        if not self.backbone.causal:
            return tokens.new_zeros(len(tokens), 1)
        every = torch.arange(tokens.shape[1], device=tokens.device).expand(tokens.shape)
        real = every if batch.present is None else torch.where(batch.present, every, 0)
        return real.max(1, keepdim=True).values

    def forward(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """(cross-entropy, or squared error of a score, summed over rows; the number of rows)."""
        assert batch.label is not None, "a classifier learns from labels"
        found = self.outputs(batch)
        if self.n_outputs == 1:
            loss = (found[:, 0] - batch.label.to(found.dtype)).square().sum()
        else:
            loss = F.cross_entropy(found, batch.label, reduction="sum")
        return loss, torch.tensor(float(len(batch)), device=found.device)

    def freeze_unused(self) -> list[str]:
        """Take no gradient of weights that the outputs do not depend on (the language model's head); their names.

        A probe finds them, whatever the backbone. (DDP waits for the gradient of every weight that may have one.)
        """
        tokens = torch.tensor([[0, 1, 2, 0]], device=self.device) % self.backbone.vocab.size
        probe = Batch(tokens, torch.zeros(1, dtype=torch.int64), 1, types=tokens.clamp(max=1))
        self.outputs(probe).sum().backward()
        unused = [name for name, p in self.named_parameters() if p.grad is None]
        for name, p in self.named_parameters():
            p.requires_grad_(name not in unused)
            p.grad = None
        return unused
