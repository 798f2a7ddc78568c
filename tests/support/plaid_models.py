"""Small models of Plaid: exact ones of one token, and random ones."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from unmask.models.plaid import Plaid
from unmask.models.plaid_noise import posterior_scale
from unmask.networks.dit import DiT
from unmask.networks.interface import Network, NetworkInput
from unmask.types import Vocab

MASK, SIZE, DIM = 2, 7, 5
VOCAB = Vocab(SIZE, MASK, pad=0)


class Table(Network):
    """A network that says log p of every token whatever it reads: with it, Plaid's posterior of one token is exact."""

    takes = frozenset({"embeddings", "valid"})

    def __init__(self, log_p: Tensor, mask: int = MASK) -> None:
        super().__init__()
        self.vocab, self.hidden_dim = Vocab(len(log_p), mask), len(log_p)
        self.log_p = nn.Parameter(log_p)

    def condition(self, sigma: Tensor, label: Tensor | None = None) -> None:
        return None

    def forward(self, inputs: NetworkInput) -> tuple[Tensor, None]:
        return self.log_p.expand(*inputs.content.shape[:2], -1) + 0 * inputs.content.sum(), None

    def head(self, rows: Tensor) -> Tensor:
        return rows


def table_model(seed: int = 0, **how: Any) -> tuple[Plaid, Tensor]:
    """An exact model of one token in float64, and p."""
    torch.manual_seed(seed)
    logits = torch.randn(SIZE, dtype=torch.float64)
    logits[MASK] = -math.inf
    p = torch.softmax(logits, -1)
    finite = torch.where(torch.isinf(logits), torch.zeros_like(logits), logits)
    return Plaid(Table(finite), embed_dim=DIM, **how).double().eval(), p


def shaken(model: Plaid, scale: float = 0.4) -> Plaid:
    """Weights that make everything matter: a fresh network says the same of everything."""
    with torch.no_grad():
        for name, p in model.named_parameters():
            if name.startswith("gamma_bounds"):
                p.add_(torch.tensor([0.3, -0.4]))
            elif not name.startswith("noise_schedule"):
                p.add_(scale * torch.randn(p.shape))
    return model.eval()


def model_of(seed: int = 0, vocab: Vocab = VOCAB, **how: Any) -> Plaid:
    torch.manual_seed(seed)
    net = DiT(vocab, hidden_dim=16, n_blocks=1, n_heads=2, cond_dim=8, dropout=0.0, n_labels=how.pop("n_labels", 0))
    return shaken(Plaid(net, embed_dim=DIM, **{"bias_warmup": 10, **how}))


class Pairs(Plaid):
    """The exact posterior of a distribution over pairs: hidden states are log p(x_i | z of the other)."""

    def __init__(self, joint: Tensor, **how: Any) -> None:
        super().__init__(Table(torch.zeros(len(joint), dtype=torch.float64), 0), embed_dim=DIM, **how)
        self.joint = joint  # (V, V), nothing on [MASK] = 0

    def hidden(self, z: Tensor, gamma: Tensor, guess=None, present=None, label=None) -> Tensor:
        seen = posterior_scale(gamma)[:, None, None] * (z @ self.embeddings().T)  # (B, 2, V)
        log_p = self.joint.log()
        first = torch.logsumexp(log_p[None] + seen[:, 1, None, :], -1)
        second = torch.logsumexp(log_p.T[None] + seen[:, 0, None, :], -1)
        return torch.stack([first, second], 1).clamp(min=-1e9)


def pairs(seed: int = 0, **how: Any) -> Pairs:
    rng = np.random.default_rng(seed)
    joint = torch.zeros(4, 4, dtype=torch.float64)
    joint[1:, 1:] = torch.from_numpy(rng.dirichlet(np.full(9, 1.5)).reshape(3, 3))
    torch.manual_seed(seed)
    return Pairs(joint, **how).double().eval()
