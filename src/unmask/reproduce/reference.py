"""What the reveal plan is compared with: T-step ancestral sampling as it is usually written, in plain torch.

Used by the table `caching` and by benchmarks/sampling.py.

The network, the head and the softmax on all B x L positions, then at every step one draw for each position from the
posterior over V tokens, [MASK] among them, by dividing float32 probabilities by exponential noise. That is the
sampler of the paper and of its public code. It comes in three styles:

    Careful    tensors are changed in place where they are not needed any more, one log-softmax, true -inf
    Published  the arithmetic of the public code: a new tensor for every operation, logsumexp and a difference, and
               -1e6 for what cannot be, whose exponential takes a CPU several times as long as that of -inf
    Float64    the same with noise in float64, a sequence at a time: float32 noise cuts rare tokens at many steps, so
               this is the one that has the law it should have
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..models.masked import MaskedDiffusion
from ..sampling import time_grid


class Careful:
    """As a careful author would write it."""

    tensors = 3.2  # (B, L, V) tensors that are alive together: a cache, a posterior, its noise

    @staticmethod
    @torch.no_grad()
    def predict(model: MaskedDiffusion, z: Tensor, t: Tensor) -> Tensor:
        """(B, L, V) x̂ of every position, needed or not: network call, head, SUBS with carry-over."""
        logits = model.backbone.head(model.hidden(z, t)).float()
        logits[..., model.vocab.mask] = float("-inf")
        log_x = torch.log_softmax(logits, dim=-1)
        del logits
        known = z != model.vocab.mask
        log_x.masked_fill_(known[..., None], float("-inf"))
        log_x[known, z[known]] = 0.0
        return log_x.exp_()

    @staticmethod
    def draw(x: Tensor, alpha_t: float, alpha_s: float, mask: int, *, keep: bool) -> Tensor:
        """(B, L) tokens from p(z_s|z_t) of masked positions; `keep` leaves x as it is, for a cache."""
        q = x * (alpha_s - alpha_t) if keep else x.mul_(alpha_s - alpha_t)
        q[..., mask] = 1 - alpha_s
        noise = torch.rand_like(q).add_(1e-10).log_().neg_().add_(1e-10)  # exponential
        return q.div_(noise).argmax(-1)


class Published(Careful):
    """As it was published."""

    tensors = 4.2

    @staticmethod
    @torch.no_grad()
    def predict(model: MaskedDiffusion, z: Tensor, t: Tensor) -> Tensor:
        """The same."""
        logits = model.backbone.head(model.hidden(z, t)).float()
        logits[..., model.vocab.mask] -= 1e6
        log_x = logits - torch.logsumexp(logits, dim=-1, keepdim=True)
        known = z != model.vocab.mask
        log_x[known] = -1e6
        log_x[known, z[known]] = 0.0
        return log_x.exp()

    @staticmethod
    def draw(x: Tensor, alpha_t: float, alpha_s: float, mask: int, *, keep: bool) -> Tensor:
        """The same; x always stays as it is."""
        q = x * (alpha_s - alpha_t)
        q[..., mask] = 1 - alpha_s
        exponential = 1e-10 - (torch.rand_like(q) + 1e-10).log()
        return (q / exponential).argmax(-1)


class Float64(Published):
    """As it was published, with noise that keeps rare tokens."""

    tensors = 4.4

    @staticmethod
    def draw(x: Tensor, alpha_t: float, alpha_s: float, mask: int, *, keep: bool) -> Tensor:
        """The same in float64; x always stays as it is."""
        return torch.cat([_draw_float64(row[None], alpha_t, alpha_s, mask) for row in x])


def _draw_float64(x: Tensor, alpha_t: float, alpha_s: float, mask: int) -> Tensor:
    q = x.double() * (alpha_s - alpha_t)
    q[..., mask] = 1 - alpha_s
    return (q / -torch.rand_like(q).log()).argmax(-1)


STYLES = {"careful": Careful, "published": Published, "float64": Float64}


def ancestral(
    model: MaskedDiffusion, z: Tensor, steps: int, *, cache: bool, style: type[Careful] = Careful
) -> tuple[Tensor, int]:
    """Write (B, L) canvases in T steps; (canvases, network calls).

    With `cache` (paper section 4.1) the prediction is computed again only after a step that changed any token of the
    batch; that is right for a network without time conditioning.
    """
    times, alphas = time_grid(model.schedule, steps)
    levels = alphas.tolist()
    x: Tensor | None = None
    calls = 0
    for k in range(steps):
        if x is None:
            x = style.predict(model, z, times[k].expand(len(z)))
            calls += 1
        drawn = style.draw(x, levels[k], levels[k + 1], model.vocab.mask, keep=cache)
        new = torch.where(z == model.vocab.mask, drawn, z)
        if not cache or not torch.equal(new, z):
            x = None
        z = new
    return z, calls
