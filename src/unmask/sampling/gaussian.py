"""Plaid's way of writing (Gulrajani and Hashimoto 2023): ancestral sampling of Gaussian diffusion over embeddings.

All positions of a canvas are one z (L, D). It begins as noise; in every step the network guesses x̂, the mean of the
embeddings under what it says of the tokens, and z moves to the next time by the posterior q(z_s | z_t, x = x̂) of the
noise (eq. 33 of Variational Diffusion Models), in float64. At t = 0 the tokens are drawn from p(x | z_0), which is part
of the model; temperature 0 takes the most likely ones, as published.

Given tokens are clamped: at every time their z is drawn anew from q(z_t | x), and their x̂ is the truth. So prompts,
suffixes and gaps anywhere are the same to it. (Replacement says of the rest what the network says beside a noised
context; it is not the exact conditional.)

Canvases go through the network together, each at its own time. All noise of a canvas is from its own keys, so a sample
does not depend on who else is in the batch.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import NoReturn, Protocol

import torch
import torch.nn.functional as F
from torch import Tensor

from ..process.keys import Keys
from ..types import State, UserError, Vocab
from .batcher import LOGITS_AT_ONCE, Request
from .sampler import NOTHING, Denoiser, Sampler, Trajectory, masked_positions
from .settings import setting, steps_setting

# -- the process, as pure functions of gamma, the logarithm of the noise-to-signal ratio ------------------------------


def alpha(gamma: Tensor) -> Tensor:
    """What is left of the signal: alpha² = sigmoid(-gamma)."""
    return torch.exp(F.logsigmoid(-gamma) / 2)


def sigma(gamma: Tensor) -> Tensor:
    """The noise: sigma² = sigmoid(gamma) = 1 - alpha²."""
    return torch.exp(F.logsigmoid(gamma) / 2)


def noised(x: Tensor, gamma: Tensor, noise: Tensor) -> Tensor:
    """alpha·x + sigma·noise, which is z; gamma broadcasts against x."""
    return alpha(gamma).to(x.dtype) * x + sigma(gamma).to(x.dtype) * noise


def ancestral(z: Tensor, x: Tensor, gamma_t: Tensor, gamma_s: Tensor, noise: Tensor) -> Tensor:
    """A draw of q(z_s | z_t, x) for s < t.

    With c = 1 - e^(gamma_s - gamma_t) its mean is (1 - c) alpha_s/alpha_t z + c alpha_s x and its variance c sigma_s².
    """
    c = -torch.expm1(gamma_s - gamma_t)
    mean = (1 - c) * alpha(gamma_s) / alpha(gamma_t) * z + c * alpha(gamma_s) * x
    return mean + c.sqrt() * sigma(gamma_s) * noise


def cooled(x: Tensor, z: Tensor, gamma: Tensor, temperature: float) -> Tensor:
    """x̂ where the noise that it implies, (z - alpha·x̂)/sigma, is divided by the score temperature."""
    return x / temperature + (1 - 1 / temperature) * z / alpha(gamma)


# -- the plan --------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Gaussian(Sampler):
    """T steps for the whole canvas, and one call more that reads the tokens."""

    steps: int = steps_setting(256)
    score_temperature: float = setting(  # 1: the model's law; Plaid's samples were drawn with 0.9
        1.0, "gaussian: below 1 the noise that the network predicts counts more", above=0
    )

    def check(self, model: Denoiser) -> NoReturn:
        """Models that are asked this way write into [MASK], and have no embeddings to put noise on."""
        raise UserError("only Plaid models (model.method=plaid) can follow the gaussian sampler; choose another one")

    def course(self, canvas: Tensor, model: Denoiser, key: Keys) -> Trajectory:
        """There is none: a course knows tokens only."""
        self.check(model)


# -- writing ---------------------------------------------------------------------------------------------------------


class EmbeddingDenoiser(Protocol):
    """What this sampler needs of a model."""

    self_condition: float

    @property
    def vocab(self) -> Vocab:
        """The vocabulary."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def embeddings(self) -> Tensor:
        """(V, D), of length 1 each."""

    def gamma(self, t: Tensor) -> Tensor:
        """Noise levels of times in [0, 1], in float64."""

    def hidden(
        self, z: Tensor, gamma: Tensor, guess: Tensor | None, present: Tensor | None, label: Tensor | None
    ) -> Tensor:
        """Hidden states of z (B, L, D) at noise levels (B,), given a first guess of x (B, L, D)."""

    def log_x(self, rows: Tensor, z: Tensor, gamma: Tensor) -> Tensor:
        """Log-probabilities (N, V) of rows of hidden states, with their z (N, D) and noise levels (N,)."""


def write_gaussian(model: EmbeddingDenoiser, tasks: Iterable[Request], batch_size: int) -> Iterator[State]:
    """One state for each task, at its end."""
    waiting, active = deque(tasks), list[_GaussianWriter]()
    with torch.no_grad():
        table = model.embeddings()
    while waiting or active:
        while waiting and len(active) < batch_size:
            writer = _GaussianWriter(model, waiting.popleft(), table)
            if len(writer.masked):
                active.append(writer)
            else:
                yield writer.state(NOTHING, torch.empty(0), None)
        if active:
            with torch.no_grad():
                states = _round(model, active)
            yield from states
            active = [writer for writer in active if not writer.done]


def _round(model: EmbeddingDenoiser, active: list[_GaussianWriter]) -> list[State]:
    """One network call for all; shorter canvases are padded on the right. The states of those that it ends."""
    device, longest = model.device, max(len(writer.canvas) for writer in active)
    here = torch.tensor([writer.t for writer in active], dtype=torch.float64)
    there = torch.tensor([writer.next_t for writer in active], dtype=torch.float64)
    levels = model.gamma(torch.cat([here, there])).view(2, -1)
    gammas = levels.cpu().double()
    z, guess = (torch.zeros(len(active), longest, active[0].z.shape[1], dtype=torch.float64) for _ in range(2))
    present = torch.zeros(len(active), longest, dtype=torch.bool)
    for row, writer in enumerate(active):
        n = len(writer.canvas)
        writer.clamp(gammas[0, row])
        z[row, :n], guess[row, :n], present[row, :n] = writer.z, writer.guess, True
    label = None
    if any(writer.task.label is not None for writer in active):
        label = torch.tensor([-1 if w.task.label is None else w.task.label for w in active], device=device)
    kind = active[0].table.dtype
    hidden = model.hidden(
        z.to(kind).to(device),
        levels[0],
        guess.to(kind).to(device) if model.self_condition else None,
        None if present.all() else present.to(device),
        label,
    )
    moved = [writer.take(hidden[row], levels[0, row], *gammas[:, row]) for row, writer in enumerate(active)]
    return [state for state in moved if state is not None]


class _GaussianWriter:
    """One canvas on its way; its z is kept on the CPU, where float64 is."""

    def __init__(self, model: EmbeddingDenoiser, task: Request, table: Tensor) -> None:
        assert isinstance(task.plan, Gaussian)
        self.model, self.task, self.plan, self.table = model, task, task.plan, table
        self.canvas = task.canvas.cpu().clone()
        self.masked = masked_positions(self.canvas, model.vocab)
        self.given = torch.nonzero(self.canvas != model.vocab.mask).squeeze(-1)
        self.known = table[self.canvas[self.given].to(table.device)].double().cpu()  # embeddings of what is given
        self.step, self.done = 0, not len(self.masked)
        self.noise, self.shown = task.key.stream("noise"), task.key.stream("given")
        self.z = self._noise()
        self.guess = torch.zeros_like(self.z)

    def _noise(self) -> Tensor:
        return torch.from_numpy(self.noise.standard_normal((len(self.canvas), self.table.shape[1])))

    @property
    def t(self) -> float:
        """The time of z."""
        return 1 - self.step / self.plan.steps

    @property
    def next_t(self) -> float:
        """The time of the next z; after the last there is none."""
        return max(0.0, 1 - (self.step + 1) / self.plan.steps)

    def clamp(self, gamma: Tensor) -> None:
        """Draw the z of the given tokens anew from q(z_t | x)."""
        if not len(self.given):
            return
        noise = torch.from_numpy(self.shown.standard_normal(self.known.shape))
        self.z[self.given] = noised(self.known, gamma, noise)

    def take(self, hidden: Tensor, told: Tensor, gamma_t: Tensor, gamma_s: Tensor) -> State | None:
        """What the network said of z when it was told its level: go on to the next time, or read the tokens."""
        rows, z = hidden[self.masked.to(hidden.device)], self.z[self.masked].to(self.table.dtype)
        size = max(1, LOGITS_AT_ONCE // self.model.vocab.size)
        parts = list(zip(rows.split(size), z.to(rows.device).split(size), self.masked.split(size), strict=True))
        said = (self._said(row, z, positions, told) for row, z, positions in parts)
        if self.step == self.plan.steps:
            return self._write(said)
        x = torch.zeros_like(self.z)
        x[self.given] = self.known
        x[self.masked] = torch.cat([(ruled.exp() @ self.table).double().cpu() for _, ruled in said])
        self.guess = x
        if self.plan.score_temperature != 1:
            x = cooled(x, self.z, gamma_t, self.plan.score_temperature)
        self.z = ancestral(self.z, x, gamma_t, gamma_s, self._noise())
        self.step += 1
        return None

    def _said(self, rows: Tensor, z: Tensor, positions: Tensor, gamma: Tensor) -> tuple[Tensor, Tensor]:
        """Log-probabilities of some masked positions, and the same under the user's rules."""
        log_x = self.model.log_x(rows, z, gamma.expand(len(rows)))
        if self.task.control is None:
            return log_x, log_x
        return log_x, self.task.control(log_x, positions, self.canvas, self.model.vocab)

    def _write(self, said: Iterable[tuple[Tensor, Tensor]]) -> State:
        """Tokens from p(x | z_0)."""
        uniform = torch.from_numpy(self.task.key.stream("token").random(len(self.masked)))
        tokens, probs, tops, m = [], [], [], min(self.task.tops, self.model.vocab.size - 1)
        done = 0
        for log_x, ruled in said:
            chosen = self.task.choice.tokens(ruled, uniform[done : done + len(ruled)])
            tokens.append(chosen.cpu())
            probs.append(log_x.gather(-1, chosen[:, None]).squeeze(-1).exp().float().cpu())
            tops.append(log_x.topk(m, dim=-1))
            done += len(ruled)
        self.canvas[self.masked], self.done = torch.cat(tokens), True
        best = (torch.cat([top.indices.cpu() for top in tops]), torch.cat([top.values.exp().cpu() for top in tops]))
        return self.state(torch.cat(tokens), torch.cat(probs), best if self.task.tops else None)

    def state(self, tokens: Tensor, probs: Tensor, tops: tuple[Tensor, Tensor] | None) -> State:
        """The one state of a canvas, at its end."""
        calls = self.step + 1 if len(self.masked) else 0
        return State(
            self.task.row,
            self.step,
            self.t,
            self.masked,
            tokens,
            probs,
            self.canvas.clone(),
            calls,
            True,
            tops,
            len(self.canvas),
        )
