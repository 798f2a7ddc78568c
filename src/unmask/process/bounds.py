"""Nats: the bound on -log p(x) from one draw of time and masks (paper sections 3.3 and 3.4, appendices A.2 and B).

All take nll = -log x̃(x) and mass = sum of x̃ of masked positions (x̃ is x̂ with the mass on [MASK] folded away).
For SUBS mass = 1 and every bound is a weighted cross-entropy; the general forms also hold for D3PM.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .schedule import Draw


def continuous(nll: Tensor, mass: Tensor, rate: Tensor) -> Tensor:
    """Rate · [-log x̃(x) + Σx̃ - 1], the integrand of eq. 10; rate = -alpha'/(1 - alpha)."""
    return rate * (nll + mass - 1)


def discrete(nll: Tensor, mass: Tensor, u: Tensor, steps: Tensor) -> Tensor:
    """T · [-u log x̃(x) + (1 - u) log((1 - u)/(1 - u Σx̃))]: T times the KL of one step.

    At u = 1 (the step to s = 0) the second term is exactly 0: it is left out there instead of computed as 0 · log 0.
    """
    inner = u < 1
    v, safe = torch.where(inner, u, 0.5), torch.where(inner, mass, 1.0)  # nor may its gradient be 0 · nan
    stay = (1 - v) * (torch.log1p(-v) - torch.log1p(-v * safe))
    return steps * (u * nll + torch.where(inner, stay, 0.0))


def log_mass(mass: Tensor) -> Tensor:
    """Log of the sum of x̃, finite and with a finite gradient also where that sum underflows."""
    return torch.log(mass.clamp(min=torch.finfo(mass.dtype).tiny))


def nats(draw: Draw, nll: Tensor, mass: Tensor, is_measure: bool = False) -> Tensor:
    """The bound's value for masked positions; `draw` has one entry per position (`Draw.rows`).

    Where x̃ is a measure of any size, the last step (the only finite one then) writes tokens in proportion to it.
    """
    if is_measure:
        nll = nll + log_mass(torch.where(draw.finite, mass, 1.0))
    step = discrete(nll, mass, draw.u, draw.scale)
    return torch.where(draw.finite, step, continuous(nll, mass, draw.scale))
