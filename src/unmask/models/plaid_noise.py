"""The learned noise of Plaid (Gulrajani and Hashimoto 2023, after Variational Diffusion Models).

gamma(t) = gamma_0 + (gamma_1 - gamma_0) gamma~(t) is the logarithm of the noise-to-signal ratio at time t. gamma~ is a
small network that can only grow, scaled to run from 0 to 1. All of it is in float64 (float32 on devices without
float64): gamma' is a difference of tiny numbers, and the loss is as precise as gamma'.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

FEATURES = 64  # sines and cosines that encode the noise level


def precise(tensor: Tensor) -> Tensor:
    """In float64, if the device supports it."""
    return tensor.float() if tensor.device.type == "mps" else tensor.double()


class NoiseSchedule(nn.Module):
    """gamma~: times in [0, 1] to [0, 1], increasing. A sum of tanh steps with positive slopes and heights."""

    def __init__(self, width: int = 1024) -> None:
        super().__init__()
        self.slope = nn.Parameter(torch.randn(width))
        self.shift = nn.Parameter(torch.randn(width))
        self.height = nn.Parameter(torch.randn(width))  # its scale has no effect: the sum is normalised

    def forward(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """(gamma~, its derivative) at times t (B,)."""
        slope, height = (F.softplus(precise(weight)) for weight in (self.slope, self.height))
        ends = torch.tensor([0.0, 1.0], dtype=slope.dtype, device=slope.device)
        times = torch.cat([ends, t.to(slope.dtype).to(slope.device)])
        step = torch.tanh(slope * (times[:, None] - 0.5) + precise(self.shift))  # (2 + B, width)
        value, growth = step @ height, (1 - step**2) @ (slope * height)
        span = value[1] - value[0]
        return (value[2:] - value[0]) / span, growth[2:] / span


class GammaBounds(nn.Module):
    """gamma at t = 0 and at t = 1."""

    def __init__(self, gamma_0: float = -3.0, gamma_1: float = 6.0) -> None:
        super().__init__()
        self.gamma = nn.Parameter(torch.tensor([gamma_0, gamma_1]))

    def forward(self) -> tuple[Tensor, Tensor]:
        """(gamma_0, gamma_1)."""
        gamma = precise(self.gamma)
        return gamma[0], gamma[1]


def features(gamma: Tensor) -> Tensor:
    """(B,) to (B, 64): sine and cosine of gamma at 32 frequencies from e^-5 to e^5."""
    half = FEATURES // 2
    frequencies = torch.exp(torch.linspace(-5, 5, half, dtype=gamma.dtype, device=gamma.device))
    angle = gamma[:, None] * frequencies
    return torch.cat([angle.sin(), angle.cos()], dim=-1)


def posterior_scale(gamma: Tensor) -> Tensor:
    """alpha/sigma²: log q(z | x) is this times z·x plus a term that does not depend on x if all x have length 1."""
    return torch.exp(F.logsigmoid(-gamma) / 2 - F.logsigmoid(gamma))


def prior_nats(gamma: Tensor, dim: int) -> Tensor:
    """KL of q(z_1 | x) = N(alpha x, sigma²) from N(0, 1), for any x of length 1 in `dim` dimensions."""
    signal = torch.sigmoid(-gamma)  # alpha², which is 1 - sigma²
    return (dim * (-signal - F.logsigmoid(gamma)) + signal) / 2


def minimising_squares(*values: Tensor) -> list[Tensor]:
    """Multiply gradients that reach `values` (K,) by 2·loss (K,), so that the weights behind them minimise E[loss²].

    The mean of a continuous-time loss does not depend on the schedule between its ends; its variance does. The loss is
    not known yet when the values are used: append it to the returned list before backward.
    """
    losses: list[Tensor] = []
    for value in values:
        if value.requires_grad:
            value.register_hook(lambda gradient: gradient * 2 * losses[0].to(gradient))
    return losses


def ramp(step: int, warmup: int) -> float:
    """From 1/warmup at step 0 to 1 at the end of the warm-up, and after it."""
    return min(1.0, (step + 1) / warmup) if warmup else 1.0
