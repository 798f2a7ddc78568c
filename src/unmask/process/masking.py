"""The forward process and its reversal, as pure functions (paper sections 3.1 and 3.2, appendix A).

The first part is the interpolating process for any prior, on probability vectors: slow and general, the definition.
The second part is what the prior "mask" makes of it, on token ids and rows.
"""

from __future__ import annotations

import torch
from torch import Tensor

# -- any prior: x, z and prior are (..., V) probability vectors ------------------------------------------------------


def marginal(x: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """q(z_t|x) = alpha_t x + (1 - alpha_t) prior (eq. 3)."""
    return alpha * x + (1 - alpha) * prior


def transition(z_s: Tensor, alpha_s: Tensor, alpha_t: Tensor, prior: Tensor) -> Tensor:
    """q(z_t|z_s), with alpha_{t|s} = alpha_t / alpha_s."""
    return marginal(z_s, alpha_t / alpha_s, prior)


def posterior(z_t: Tensor, x: Tensor, alpha_s: Tensor, alpha_t: Tensor, prior: Tensor) -> Tensor:
    """q(z_s|z_t, x) (eq. 4); z_t is one-hot, x may be any distribution (then it is the model's p(z_s|z_t))."""
    ratio = alpha_t / alpha_s
    likelihood = ratio * z_t + (1 - ratio) * (prior * z_t).sum(-1, keepdim=True)
    evidence = (z_t * marginal(x, alpha_t, prior)).sum(-1, keepdim=True)
    return likelihood * marginal(x, alpha_s, prior) / evidence


# -- the mask as prior: token ids ------------------------------------------------------------------------------------


def corrupt(tokens: Tensor, keep: Tensor, uniform: Tensor, mask: int) -> Tensor:
    """z_t ~ q(z_t|x): every position becomes [MASK] with chance 1 - keep, independently."""
    return torch.where(uniform < keep, tokens, torch.full_like(tokens, mask))


def corrupt_mlm(tokens: Tensor, chosen: Tensor, uniform: Tensor, size: int, mask: int) -> Tensor:
    """BERT's corruption of chosen positions: 80 % [MASK], 10 % any token of the vocabulary, 10 % as they are.

    `uniform` (B, L, 2): what is done, and which token.
    """
    act, which = uniform.unbind(-1)
    other = (which * size).long().clamp(max=size - 1)
    z = torch.where(act < 0.9, other, tokens)
    z = torch.where(act < 0.8, mask, z)
    return torch.where(chosen, z, tokens)


def fold(log_x: Tensor, log_x_mask: Tensor, log_total: Tensor | float, alpha_t: Tensor) -> tuple[Tensor, Tensor]:
    """Fold the mass that x̂ has on [MASK] away: (log x̃(y), sum of x̃), from log x̂(y), log x̂(m) and log sum x̂.

    x̃(y) = x̂(y) / (1 + alpha_t x̂(m) / (1 - alpha_t)), so that p(z_s = y | z_t = m) = u x̃(y).
    """
    x_mask = torch.exp(log_x_mask)
    scale = torch.log1p(alpha_t / (1 - alpha_t) * x_mask)
    total = torch.exp(torch.as_tensor(log_total, dtype=x_mask.dtype)) - x_mask
    return log_x - scale, total * torch.exp(-scale)


def at_tokens(log_x: Tensor, tokens: Tensor) -> Tensor:
    """Log x̂ (...) of one token per row, from rows of log x̂ (..., V)."""
    return log_x.gather(-1, tokens.unsqueeze(-1)).squeeze(-1)


def categorical(log_probs: Tensor, uniform: Tensor) -> Tensor:
    """One token per row by inverting the cumulative sum, in float64.

    One uniform per row instead of V Gumbels, and a token of chance 1e-6 keeps that chance, where float32 noise would
    cut it off. Rows need not be normalised.
    """
    total = torch.softmax(log_probs.double(), dim=-1).cumsum(-1)  # (N, V)
    target = uniform.to(total.device).unsqueeze(-1) * total[..., -1:]
    return torch.searchsorted(total, target, right=True).squeeze(-1).clamp(max=log_probs.shape[-1] - 1)
