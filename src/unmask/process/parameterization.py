"""From the network's logits to log x̂, the predicted clean token (paper section 3.2.3)."""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from dataclasses import dataclass

import torch
from torch import Tensor
from typing_extensions import override

from .masking import at_tokens, fold


class Parameterization(ABC):
    """What the logits of a masked position mean."""

    zero_mask: bool  # x̂ has no mass on [MASK] and sums to 1 over the others
    carry_over: bool  # unmasked positions are copied: they cost nothing and never change
    is_measure = False  # x̂ may sum to anything: there is no T-step posterior, and the last step scales it to 1

    @abstractmethod
    def log_x(self, logits: Tensor, mask: int) -> Tensor:
        """Log x̂ (N, V) in float32 from logits of masked positions."""

    @abstractmethod
    def target(self, logits: Tensor, tokens: Tensor, alpha_t: Tensor, mask: int) -> tuple[Tensor, Tensor]:
        """(-log x̃(token), sum of x̃) for each row: all that the bounds need."""


@dataclass(frozen=True)
class Mean(Parameterization):
    """x̂ = softmax(logits). With both switches on it is SUBS; with both off it is D3PM's."""

    zero_mask: bool = True
    carry_over: bool = True

    @override
    def log_x(self, logits: Tensor, mask: int) -> Tensor:
        logits = logits.float()
        if self.zero_mask:
            column = torch.tensor([mask], device=logits.device)
            logits = logits.index_fill(-1, column, float("-inf"))
        return torch.log_softmax(logits, dim=-1)

    @override
    def target(self, logits: Tensor, tokens: Tensor, alpha_t: Tensor, mask: int) -> tuple[Tensor, Tensor]:
        log_x = self.log_x(logits, mask)
        log_token = at_tokens(log_x, tokens)
        if self.zero_mask:
            return -log_token, torch.ones_like(log_token)
        folded, mass = fold(log_token, log_x[..., mask], 0.0, alpha_t)
        return -folded, mass


@dataclass(frozen=True)
class Score(Parameterization):
    """SEDD: the logits are those of a concrete score s(y) = x̂(y) alpha/(1 - alpha), log x̂ = logits - log(V - 1).

    Its published output layer has a scale log(e^sigma - 1), which is that of alpha/(1 - alpha): it cancels in x̂
    (`ctmc.sedd_log_score` has it), so nothing here depends on sigma, and a network need not be conditioned on it.
    """

    zero_mask = False
    carry_over = True
    is_measure = True

    def log_x(self, logits: Tensor, mask: int) -> Tensor:
        """Log x̂ (N, V) in float32; nothing on [MASK]."""
        column = torch.tensor([mask], device=logits.device)
        return (logits.float() - math.log(logits.shape[-1] - 1)).index_fill(-1, column, float("-inf"))

    def target(self, logits: Tensor, tokens: Tensor, alpha_t: Tensor, mask: int) -> tuple[Tensor, Tensor]:
        """(-log x̂(token), sum of x̂) for each row."""
        log_x = self.log_x(logits, mask)
        return -at_tokens(log_x, tokens), torch.logsumexp(log_x, -1).exp()
