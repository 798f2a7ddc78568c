"""Plaid's sampler (Gulrajani and Hashimoto 2023): ancestral sampling of Gaussian diffusion over embeddings.

All positions of a canvas share one z (L, D), which begins as noise. In every step the network guesses x̂, the mean of
the embeddings under its distribution over tokens, and z moves to the next time by the posterior q(z_s | z_t, x = x̂) of
the noise (eq. 33 of Variational Diffusion Models), in float64. At t = 0 the tokens are drawn from p(x | z_0), which is
part of the model; temperature 0 takes the most likely ones, as published.

Given tokens are clamped: at every time their z is drawn anew from q(z_t | x), and their x̂ is the true embedding. So
prompts, suffixes and gaps anywhere are treated alike. (With such replacement the rest is predicted beside a noised
context, which is not the exact conditional.)

Canvases go through the network together, each at its own time. A canvas draws all noise from its keys, so a sample
does not depend on what else is in the batch.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, fields
from typing import Any, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..process.chunks import rows_at_once
from ..types import UserError
from .request import Request, Written, not_a_number, read_off
from .sampler import Denoiser, Sampler, Trajectory, positions_of
from .settings import setting, steps_setting
from .token_step import LOGITS_AT_ONCE

# -- the process, as pure functions of gamma, the logarithm of the noise-to-signal ratio ------------------------------


def alpha(gamma: Tensor) -> Tensor:
    """The signal that is left: alpha² = sigmoid(-gamma)."""
    return torch.exp(F.logsigmoid(-gamma) / 2)


def sigma(gamma: Tensor) -> Tensor:
    """The noise: sigma² = sigmoid(gamma) = 1 - alpha²."""
    return torch.exp(F.logsigmoid(gamma) / 2)


def noised(x: Tensor, gamma: Tensor, noise: Tensor) -> Tensor:
    """The noised x, z = alpha·x + sigma·noise; gamma broadcasts against x."""
    return alpha(gamma).to(x.dtype) * x + sigma(gamma).to(x.dtype) * noise


def ancestral(z: Tensor, x: Tensor, gamma_t: Tensor, gamma_s: Tensor, noise: Tensor) -> Tensor:
    """A draw from q(z_s | z_t, x) for s < t.

    With c = 1 - e^(gamma_s - gamma_t) its mean is (1 - c) alpha_s/alpha_t z + c alpha_s x and its variance c sigma_s².
    """
    c = -torch.expm1(gamma_s - gamma_t)
    mean = (1 - c) * alpha(gamma_s) / alpha(gamma_t) * z + c * alpha(gamma_s) * x
    return mean + c.sqrt() * sigma(gamma_s) * noise


def cooled(x: Tensor, z: Tensor, gamma: Tensor, temperature: float) -> Tensor:
    """x̂ where the noise that it implies, (z - alpha·x̂)/sigma, is divided by the score temperature."""
    return x / temperature + (1 - 1 / temperature) * z / alpha(gamma)


# -- the sampler -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaussian(Sampler):
    """T steps for the whole canvas, and one more call that reads the tokens."""

    steps: int = steps_setting(256)
    score_temperature: float = setting(  # 1: the model's law; Plaid's samples were drawn with 0.9
        1.0, "gaussian: below 1 the noise that the network predicts counts more", above=0
    )
    draws_by_position = False

    def check(self, model: Any) -> None:
        """Raise for a model over tokens, which has no embeddings to add noise to."""
        if not hasattr(model, "embeddings"):
            raise UserError("only Plaid models (model.method=plaid) can use the gaussian sampler; choose another one")

    def trajectory(self, request: Request, model: EmbeddingDenoiser) -> GaussianTrajectory:
        """The trajectory from t = 1, where the whole canvas is noise."""
        self.check(model)
        return GaussianTrajectory(request, model, self)


# -- writing ---------------------------------------------------------------------------------------------------------


class EmbeddingDenoiser(Denoiser, Protocol):
    """What this sampler needs from a model."""

    self_condition: float

    def embeddings(self) -> Tensor:
        """(V, D), each of length 1."""

    def gamma(self, t: Tensor) -> Tensor:
        """Noise levels at times in [0, 1], in float64."""

    def hidden(
        self, z: Tensor, gamma: Tensor, guess: Tensor | None, present: Tensor | None, label: Tensor | None
    ) -> Tensor:
        """Hidden states of z (B, L, D) at noise levels (B,), given a first guess of x (B, L, D)."""

    def log_x(self, rows: Tensor, z: Tensor, gamma: Tensor) -> Tensor:
        """Log-probabilities (N, V) of rows of hidden states, with their z (N, D) and noise levels (N,)."""


def advance_gaussian(model: EmbeddingDenoiser, active: Sequence[GaussianTrajectory]) -> list[Written | None]:
    """One network call for all; shorter canvases are padded on the right. Tokens for the canvases that are done."""
    device, longest, table = model.device, max(len(trajectory.canvas) for trajectory in active), model.embeddings()
    times = [[trajectory.t for trajectory in active], [trajectory.next_t for trajectory in active]]
    levels = model.gamma(torch.tensor(times, dtype=torch.float64).flatten()).view(2, -1)
    gammas = levels.cpu().double()
    z, guess = (torch.zeros(len(active), longest, active[0].z.shape[1], dtype=torch.float64) for _ in range(2))
    present = torch.zeros(len(active), longest, dtype=torch.bool)
    for row, trajectory in enumerate(active):
        n = len(trajectory.canvas)
        trajectory.clamp(gammas[0, row])
        z[row, :n], guess[row, :n], present[row, :n] = trajectory.z, trajectory.guess, True
    labels = [trajectory.request.label for trajectory in active]
    label = None
    if any(number is not None for number in labels):
        label = torch.tensor([-1 if number is None else number for number in labels], device=device)
    hidden = model.hidden(
        z.to(table.dtype).to(device),
        levels[0],
        guess.to(table.dtype).to(device) if model.self_condition else None,
        None if present.all() else present.to(device),
        label,
    )
    written: list[Written | None] = []
    for row, trajectory in enumerate(active):
        predictions = trajectory.predictions(model, hidden[row], levels[0, row], table.dtype)
        try:
            if trajectory.step == trajectory.sampler.steps:
                written.append(trajectory.tokens(predictions))
            else:
                written.append(trajectory.move(predictions, table, *gammas[:, row]))
        except UserError as error:  # of its rules: the other canvases go on
            trajectory.error = error
            written.append(None)
    return written


class GaussianTrajectory(Trajectory):
    """One canvas being written; its z stays on the CPU, where float64 is available."""

    def __init__(self, request: Request, model: EmbeddingDenoiser, sampler: Gaussian) -> None:
        super().__init__(request, model.vocab)
        self.sampler = sampler
        self.canvas = request.canvas.cpu().clone()
        self.masked, self.clamped = positions_of(self.free), positions_of(~self.free)
        with torch.no_grad():
            table = model.embeddings()
            self.known = table[self.canvas[self.clamped].to(table.device)].double().cpu()  # of what is clamped
        self.dim = table.shape[1]
        self.noise, self.shown = self.key.stream("noise"), self.key.stream("given")
        self.z = self._noise()
        self.guess = torch.zeros_like(self.z)

    def _noise(self) -> Tensor:
        return torch.from_numpy(self.noise.standard_normal((len(self.canvas), self.dim)))

    @property
    def finished(self) -> bool:
        """Whether the tokens have been read."""
        return not self.open.any()

    def due(self) -> Tensor:
        """All free positions: they are written together at the end."""
        return self.masked

    @property
    def next_t(self) -> float:
        """The time of the next z, or 0 at the end."""
        return max(0.0, 1 - (self.step + 1) / self.sampler.steps)

    def clamp(self, gamma: Tensor) -> None:
        """Draw the z of the given tokens anew from q(z_t | x)."""
        if not len(self.clamped):
            return
        noise = torch.from_numpy(self.shown.standard_normal(self.known.shape))
        self.z[self.clamped] = noised(self.known, gamma, noise)

    def predictions(
        self, model: EmbeddingDenoiser, hidden: Tensor, gamma: Tensor, dtype: torch.dtype
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """In chunks of free positions: (positions, log-probabilities, the same under the user's rules)."""
        rows, z = hidden[self.masked.to(hidden.device)], self.z[self.masked].to(dtype)
        size, rules = rows_at_once(self.vocab.size, LOGITS_AT_ONCE), self.request.rules
        for row, noisy, positions in zip(
            rows.split(size), z.to(rows.device).split(size), self.masked.split(size), strict=True
        ):
            log_x = model.log_x(row, noisy, gamma.expand(len(row)))
            yield positions, log_x, log_x if rules is None else rules(log_x, positions, self.canvas, self.vocab)

    def move(
        self, predictions: Iterable[tuple[Tensor, Tensor, Tensor]], table: Tensor, gamma_t: Tensor, gamma_s: Tensor
    ) -> Written | None:
        """Move z to the next time; a prediction that is not a number is passed on, for the batcher to refuse."""
        x = torch.zeros_like(self.z)
        x[self.clamped] = self.known
        x[self.masked] = torch.cat([(ruled.exp() @ table).double().cpu() for _, _, ruled in predictions])
        if (bad := x[self.masked].isnan().any(-1)).any():
            return not_a_number(self.masked, bad)
        self.guess = x
        if self.sampler.score_temperature != 1:
            x = cooled(x, self.z, gamma_t, self.sampler.score_temperature)
        self.z = ancestral(self.z, x, gamma_t, gamma_s, self._noise())
        self.step += 1
        self.t = 1 - self.step / self.sampler.steps
        return None

    def tokens(self, predictions: Iterable[tuple[Tensor, Tensor, Tensor]]) -> Written:
        """Draw tokens from p(x | z_0)."""
        uniform = torch.from_numpy(self.key.stream("token").random(len(self.masked)))
        parts, done = [], 0
        for positions, log_x, ruled in predictions:
            chosen = self.request.choice.tokens(ruled, uniform[done : done + len(ruled)])
            parts.append(read_off(log_x, positions, chosen, self.request.tops))
            done += len(ruled)
        return Written(*(torch.cat([getattr(part, f.name) for part in parts]) for f in fields(Written)))
