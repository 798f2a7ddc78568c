"""The same process as a continuous-time Markov chain, and its relation to SEDD (paper appendix C).

An executable appendix: nothing in the package calls it. It states the paper's equivalences as code, and the tests hold
the samplers and the bound of SEDD against it.

Convention: *rows*. `rate[i, j]` is the rate of jumps from i to j, rows sum to 0, a law is a row vector and obeys
dq/dt = q R_t with R_t = sigma'(t) R, so q(z_t|z_s) = z_s exp((sigma_t - sigma_s) R). (The paper prints the transpose.)

A score s(z)_y = q_t(y)/q_t(z) belongs to the state z that the chain is in. Functions on token ids take rows: log_score
(..., V), z (...) and sigma broadcastable to z. They want the *true* sigma = -log alpha, positive and finite, also where
the network is not conditioned on it; all in float64. Where sigma is large the published formulas subtract numbers of
size e^sigma; here such factors are only ever added as logarithms (relative error about sigma · 1e-16).
"""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn.functional import one_hot

from ..errors import UserError
from .masking import at_tokens, fold, marginal
from .schedule import reveal_chance

# -- any prior: x, z and prior are (..., V) probability vectors ------------------------------------------------------


def rate_matrix(prior: Tensor) -> Tensor:
    """R = 1 prior' - I (V, V), per unit of sigma: jumps at rate 1 to a draw from the prior; rows are "from"."""
    size = len(prior)
    return prior.expand(size, size) - torch.eye(size, dtype=prior.dtype, device=prior.device)


def mask_prior(size: int, mask: int) -> Tensor:
    """The prior of masked diffusion: all mass on [MASK]; `rate_matrix` of it is that of appendix C.1 without sigma'."""
    return one_hot(torch.tensor(mask), size).double()


def concrete_score(z: Tensor, x: Tensor, alpha: Tensor, prior: Tensor) -> Tensor:
    """s(z)_y = q_t(y|x̂)/q_t(z|x̂) for a one-hot z and a predicted x̂, any prior."""
    q = marginal(x, alpha, prior)
    return q / (z * q).sum(-1, keepdim=True)


def reverse_rate(rate: Tensor, score: Tensor) -> Tensor:
    """Rate matrix of the process run backwards, rows are "from"; score[i, j] = q_t(j)/q_t(i).

    Where the forward process has no jump, the reverse has none, even if the score is infinite or undefined.
    """
    back = rate.mT
    never = (back == 0) | torch.eye(len(rate), dtype=torch.bool, device=rate.device)
    flow = torch.where(never, 0.0, score * back)
    return flow - torch.diag_embed(flow.sum(-1))


# -- the mask as prior: token ids ------------------------------------------------------------------------------------


def log_expm1(sigma: Tensor) -> Tensor:
    """Log(e^sigma - 1) = log((1 - alpha)/alpha): no overflow for large sigma, no lost digits for small."""
    return sigma + torch.log(-torch.expm1(-sigma))


def log_score(log_x: Tensor, z: Tensor, sigma: Tensor, mask: int) -> Tensor:
    """Log concrete score (..., V) from log x̂ under carry-over (what x̂ says at z ≠ m is not read).

    At z = m: alpha/(1 - alpha) x̃(y), with the mass of x̂ on [MASK] folded away (none for SUBS); 1 at y = m.
    At z ≠ m: (1 - alpha)/alpha at y = m, 1 at y = z, else 0.
    """
    log_odds = -log_expm1(_true(sigma)).unsqueeze(-1)
    ratio = log_odds + log_x
    folded = ratio - torch.logaddexp(ratio[..., mask : mask + 1], torch.zeros_like(log_odds))
    carried = torch.where(_is_mask(log_x, mask), -log_odds, -math.inf)
    score = torch.where((z == mask).unsqueeze(-1), folded, carried)
    return score.scatter(-1, z.unsqueeze(-1), 0.0)


def log_mean(log_score: Tensor, z: Tensor, sigma: Tensor, mask: int) -> Tensor:
    """Log x̃ (..., V) back from the log score: (e^sigma - 1) s(y) at z = m, not normalised; z itself elsewhere."""
    log_x = (log_score + log_expm1(_true(sigma)).unsqueeze(-1)).masked_fill(_is_mask(log_score, mask), -math.inf)
    return torch.where((z == mask).unsqueeze(-1), log_x, torch.log(_carry(log_score, z)))


def sedd_log_score(logits: Tensor, z: Tensor, sigma: Tensor) -> Tensor:
    """SEDD's output layer: logits - log(e^sigma - 1) - log(V - 1), and log 1 for the token that is there."""
    scale = log_expm1(_true(sigma)).unsqueeze(-1) + math.log(logits.shape[-1] - 1)
    return (logits - scale).scatter(-1, z.unsqueeze(-1), 0.0)


def score_entropy(log_score: Tensor, x: Tensor, sigma: Tensor, dsigma: Tensor, mask: int) -> Tensor:
    """SEDD's integrand at masked positions: sigma' [Σ_{y≠m} s_y - r log s_x + r (log r - 1)], r = alpha/(1 - alpha).

    Nats for each row of log_score at z = m with the clean token x; positions with z ≠ m cost nothing.
    """
    log_r = -log_expm1(_true(sigma))
    total = torch.exp(log_score.masked_fill(_is_mask(log_score, mask), -math.inf)).sum(-1)
    at_x = at_tokens(log_score, x)
    return dsigma * (total + torch.exp(log_r) * (log_r - at_x - 1))  # one bracket: the large logs cancel first


# -- steps: p(z_s|z_t) as rows (..., V) ------------------------------------------------------------------------------


def reverse_step(log_x: Tensor, alpha_s: Tensor, alpha_t: Tensor, mask: int) -> Tensor:
    """p(z_s|z_t = m) for rows of log x̂ (N, V) (eq. 7 with the mass on [MASK] folded away)."""
    u = reveal_chance(alpha_s, alpha_t)
    log_total = torch.logsumexp(log_x, -1, keepdim=True)
    log_folded, mass = fold(log_x, log_x[..., mask : mask + 1], log_total, alpha_t)
    probs = u * torch.exp(log_folded)
    probs[..., mask : mask + 1] = 1 - u * mass
    return probs


def analytic_step(log_score: Tensor, z: Tensor, sigma_s: Tensor, sigma_t: Tensor, mask: int) -> Tensor:
    """Tau-leaping with Tweedie's formula: `[s exp(-Δσ R)](y) · q(z_t|z_s = y)`, Δσ = sigma_t - sigma_s.

    At z = m that is (e^Δσ - 1) s(y), and what is missing to 1 for staying; below 0 for a score that is too large.
    """
    return _reveal(log_score, z, log_expm1(sigma_t - sigma_s), mask)


def euler_step(log_score: Tensor, z: Tensor, dsigma: Tensor, dt: Tensor | float, mask: int) -> Tensor:
    """Z + dt · (its row of the reverse rate) with sigma' at t; staying may come out below 0 for a long step."""
    return _reveal(log_score, z, torch.log(dsigma * dt), mask)


def denoise_step(log_score: Tensor, z: Tensor, mask: int) -> Tensor:
    """The last step: the analytic one to sigma_s = 0 with [MASK] dropped and the rest renormalised (sigma cancels)."""
    law = torch.softmax(log_score.masked_fill(_is_mask(log_score, mask), -math.inf), -1)
    return torch.where((z == mask).unsqueeze(-1), law, _carry(log_score, z))


def renormalise(probs: Tensor) -> Tensor:
    """The law that the published samplers draw from: what is below 0 is never drawn, the rest in proportion."""
    positive = probs.clamp(min=0)
    return positive / positive.sum(-1, keepdim=True)


def _reveal(log_score: Tensor, z: Tensor, log_weight: Tensor, mask: int) -> Tensor:
    """Weight · s(y) for y ≠ m and the rest for staying where z = m; z stays where it is not."""
    is_mask = _is_mask(log_score, mask)
    reveal = torch.exp(log_weight.unsqueeze(-1) + log_score).masked_fill(is_mask, 0.0)
    step = torch.where(is_mask, 1 - reveal.sum(-1, keepdim=True), reveal)
    return torch.where((z == mask).unsqueeze(-1), step, _carry(log_score, z))


def _carry(like: Tensor, z: Tensor) -> Tensor:
    return one_hot(z, like.shape[-1]).to(like.dtype)


def _is_mask(like: Tensor, mask: int) -> Tensor:
    return torch.arange(like.shape[-1], device=like.device) == mask  # (V,)


def _true(sigma: Tensor) -> Tensor:
    """Refuse the sigma of a network without time conditioning (0), and the end of a schedule that is not cut (inf)."""
    if not bool(((sigma > 0) & torch.isfinite(sigma)).all()):
        raise UserError(
            "A score needs the true noise level, positive and finite: pass sigma = -log alpha(t) of a time after 0, "
            "not the zero that a network without time conditioning gets, and cut the schedule (eps > 0)."
        )
    return sigma
