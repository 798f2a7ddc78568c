"""Plaid (Gulrajani and Hashimoto 2023; the paper compares with it on DNA): Gaussian diffusion over embeddings.

A token is a learned point E[x] on the unit sphere of a small space, and z = alpha·E[x] + sigma·noise. The network
predicts the token, x̂ is the mean embedding under that prediction, and

    NELBO = -log p(x | z_0) + E_t[½ gamma'(t) e^(-gamma(t)) |E[x] - x̂|²] + KL(q(z_1 | x) || N(0, 1))

is a bound on -log p(x). Schedule and embeddings are learned together with the network.

How the noise level reaches the network: as sines and cosines of gamma, through a linear layer that is zero at the
start, added to the input of every position. So any network that takes embeddings will do, and the paper's Caduceus
needs no time embedding.

On a Caduceus that is equivariant to the reverse complement (strands "ps") so is the whole model. For that a complement
must be a permutation of the channels of z, so embeddings are tied there: E[complement of v] is E[v] with its channels
backwards, and tokens that are their own complement read the same both ways. The other strand of z is then z with
positions and channels backwards, and it goes through the same weights.
"""

from __future__ import annotations

import functools
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..errors import UserError, at_least
from ..networks.interface import Network
from ..networks.layers import Embedding, TiedEmbedding
from ..process.keys import Keys
from ..process.masking import at_tokens
from ..process.schedule import Law, Schedule, strata
from ..sampling import Request, Written
from ..sampling.gaussian import Gaussian, GaussianTrajectory, advance_gaussian, noised
from ..types import Batch, TokenNats
from .language_model import LanguageModel, in_chunks
from .plaid_noise import (
    FEATURES,
    GammaBounds,
    NoiseSchedule,
    features,
    minimising_squares,
    posterior_scale,
    prior_nats,
    ramp,
)

FASTER = ("embedding_matrix", "noise_schedule", "gamma_bounds")  # modules with a higher learning rate


@dataclass(frozen=True)
class PlaidPrediction:
    """The times at which rows are evaluated: t = 0, or a time of the diffusion."""

    row: Tensor  # (K,) rows of the batch
    t: Tensor  # (K,) float64
    first: Tensor  # (K,) bool: at t = 0, where the tokens are read
    scale: Tensor  # (K,) float64: 1 / probability of this kind of time


class Plaid(LanguageModel):
    """A bidirectional network that takes embeddings, an embedding table, and a noise schedule."""

    default_sampler = "gaussian"
    reads_tokens = False

    def __init__(
        self,
        backbone: Network,
        embed_dim: int = 16,
        gamma_0: float = -3.0,
        gamma_1: float = 6.0,
        self_condition: float = 0.25,
        reconstruct: float = 0.125,
        bias_warmup: int = 5000,
        lr_factor: float = 7.0,
    ) -> None:
        super().__init__()
        _check_settings(backbone, embed_dim, gamma_0, gamma_1)
        self.backbone, self.embed_dim = backbone, embed_dim
        self.self_condition, self.reconstruct = self_condition, reconstruct
        self.bias_warmup, self.lr_factor = bias_warmup, lr_factor
        self.complement = _complement(backbone)
        width = backbone.hidden_dim if self.complement is None else backbone.hidden_dim // 2
        self.embedding_matrix = Embedding(backbone.vocab.size, embed_dim)
        self.noise_schedule, self.gamma_bounds = NoiseSchedule(), GammaBounds(gamma_0, gamma_1)
        self.read_z = nn.Linear(embed_dim, width, bias=False)
        self.read_guess = nn.Linear(embed_dim, width, bias=False)
        self.read_noise = nn.Linear(FEATURES, width)
        nn.init.normal_(self.embedding_matrix.embedding)
        for weight in (self.read_guess.weight, self.read_noise.weight, self.read_noise.bias):
            nn.init.zeros_(weight)
        unused = getattr(backbone, "vocab_embed", None)
        if isinstance(unused, Embedding) and not isinstance(
            unused, TiedEmbedding
        ):  # tokens never reach it; under DDP every trained weight needs a gradient
            unused.requires_grad_(False)

    # -- the network -------------------------------------------------------------------------------------------------

    def embeddings(self) -> Tensor:
        """(V, D) embeddings, each of length 1."""
        table: Tensor = self.embedding_matrix.embedding
        if self.complement is not None:
            table = table + table[self.complement].flip(-1)
        return F.normalize(table, dim=-1)

    def gamma(self, t: Tensor) -> Tensor:
        """Noise levels at times (B,), in float64."""
        low, high = self.gamma_bounds()
        return low + (high - low) * self.noise_schedule(t)[0]

    def hidden(
        self,
        z: Tensor,
        gamma: Tensor,
        guess: Tensor | None = None,
        present: Tensor | None = None,
        label: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of z (B, L, D) at noise levels (B,), given a first guess of x (B, L, D)."""
        guess = torch.zeros_like(z) if guess is None else guess
        inputs = self._inputs(z, gamma, guess)
        if self.complement is not None:
            other = self._inputs(z.flip(1, 2), gamma, guess.flip(1, 2))
            inputs = torch.cat([inputs, other.flip(1, 2)], dim=-1)
        cond = self.backbone.condition(torch.zeros(len(z), device=z.device), label)
        return self.backbone(embeddings=inputs, condition=cond, valid=present)[0]

    def _inputs(self, z: Tensor, gamma: Tensor, guess: Tensor) -> Tensor:
        """(B, L, hidden): z of variance 1, the guess, and the noise level."""
        size = torch.rsqrt(torch.sigmoid(-gamma) / self.embed_dim + torch.sigmoid(gamma)).to(z.dtype)
        level = self.read_noise(features(gamma).to(z.dtype))
        inputs = self.read_z(z * size[:, None, None]) + self.read_guess(guess * self.embed_dim**0.5) + level[:, None]
        return inputs.to(z.dtype)

    def log_x(self, rows: Tensor, z: Tensor, gamma: Tensor, bias: float = 1.0) -> Tensor:
        """Log-probabilities (N, V) of rows of hidden states, with their z (N, D) and noise levels (N,).

        The logits are those of the network, plus `bias` times log q(z | x), which is known from the noise alone.
        """
        logits = self.backbone.head(rows)[:, : self.vocab.size].to(z.dtype)
        with torch.autocast(z.device.type, enabled=False):
            scale = bias * posterior_scale(gamma).to(z.dtype)
            logits = logits + scale[:, None] * (z @ self.embeddings().T)
            never = torch.tensor([self.vocab.mask], device=z.device)
            return torch.log_softmax(logits.index_fill(-1, never, float("-inf")), dim=-1)

    def _read(self, hidden: Tensor, z: Tensor, gamma: Tensor, tokens: Tensor, bias: float) -> tuple[Tensor, ...]:
        """(x̂ (N, D), -log p(token) (N,)) of rows."""
        log_x = self.log_x(hidden, z, gamma, bias)
        with torch.autocast(z.device.type, enabled=False):
            return log_x.exp() @ self.embeddings(), -at_tokens(log_x, tokens)

    def _reads(
        self, hidden: Tensor, z: Tensor, gamma: Tensor, tokens: Tensor, where: Tensor, bias: float
    ) -> tuple[Tensor, Tensor]:
        """The same for the positions `where` (K, L) of whole rows, in the order of nonzero."""
        levels = gamma[:, None].expand(where.shape)[where]
        read = functools.partial(self._read, bias=bias)
        x, nll = in_chunks(read, self.vocab.size, hidden[where], z[where], levels, tokens[where])
        return x, nll

    # -- the bound ---------------------------------------------------------------------------------------------------

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """One time per row: an unbiased draw of the bound. Every row has a first guess."""
        return TokenNats(self._nats(batch, keys, training=False), batch.counted())

    def loss(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """(sum to minimise, weight it is a sum over): the bound with a first guess for some rows only.

        The noise schedule minimises the square of the loss instead. What is known from the noise alone counts less in
        the first steps (bias_warmup): keys.step is the training step.
        """
        return self._nats(batch, keys, training=True).sum(), batch.counted().sum()

    def _nats(self, batch: Batch, keys: Keys, training: bool) -> Tensor:
        """(B, L) float32 (float64 for a float64 model)."""
        drawn = self._draw_times(batch, keys)
        part = batch.rows(drawn.row)
        device, counts = batch.tokens.device, part.weight()
        tilde, slope = self.noise_schedule(drawn.t)
        losses = minimising_squares(tilde, slope) if training else []
        low, high = self.gamma_bounds()
        gamma = low + (high - low) * tilde
        x = self.embeddings()[part.tokens]
        noise = self._noise(part, keys).to(x)
        z = noised(x, gamma[:, None, None], noise)
        if part.given is not None:  # is never hidden, so never noised
            z = torch.where(part.given[..., None], x, z)
        bias = ramp(keys.step, self.bias_warmup) if training else 1.0
        guess = self._guess(part, z, gamma, keys, bias, training)
        hidden = self.hidden(z, gamma, guess, part.present, part.label)
        guessed, nll = self._reads(hidden, z, gamma, part.tokens, counts, bias)
        row, column = torch.nonzero(counts, as_tuple=True)
        square = ((x[row, column] - guessed) ** 2).sum(-1)
        cost = ((high - low) * slope * torch.exp(-gamma) / 2).to(square.dtype)[row] * square
        first, scale = drawn.first.to(device)[row], drawn.scale.to(square.dtype).to(device)[row]
        losses.append(self._row_means(cost.detach(), row, counts, drawn.first.to(device)))
        value = scale * torch.where(first, nll, cost)
        prior = prior_nats(high, self.embed_dim).to(value.dtype) * batch.weight()
        return prior.index_put((drawn.row.to(device)[row], column), value, accumulate=True)

    @staticmethod
    def _row_means(cost: Tensor, row: Tensor, counts: Tensor, first: Tensor) -> Tensor:
        """(K,): the mean diffusion loss of each row; ½ at t = 0, which does not depend on the schedule."""
        sums = cost.new_zeros(len(counts)).index_add(0, row, cost)
        return torch.where(first, 0.5, sums / counts.sum(1).clamp(min=1))

    def _draw_times(self, batch: Batch, keys: Keys) -> PlaidPrediction:
        """A share of the rows of the global batch or data set at t = 0, all others at one stratum of time each."""
        uniform, total = strata(batch.index, batch.total, keys), batch.total
        if total == 1:  # a single row has both
            row = torch.arange(len(batch))
            first = torch.cat([torch.ones_like(row), torch.zeros_like(row)]).bool()
            times = torch.cat([torch.zeros_like(uniform), uniform])
            return PlaidPrediction(row.repeat(2), times, first, torch.ones_like(times))
        share = min(total - 1, max(1, round(self.reconstruct * total)))
        place = uniform * total
        first = place < share
        t = ((place - share) / (total - share)).clamp(0, 1)  # 0 where place < share
        scale = total / torch.where(first, share, total - share).double()
        return PlaidPrediction(torch.arange(len(batch)), t, first, scale)

    def _noise(self, batch: Batch, keys: Keys) -> Tensor:
        """(B, L, D) normal numbers, from one random stream per row."""
        shape = (batch.tokens.shape[1], self.embed_dim)
        rows = [torch.from_numpy(keys.stream("noise", int(i)).standard_normal(shape)) for i in batch.index]
        return torch.stack(rows)

    def _guess(self, batch: Batch, z: Tensor, gamma: Tensor, keys: Keys, bias: float, training: bool) -> Tensor | None:
        """(B, L, D): a first guess of x, from a pass without one; 0 for rows that get none, and for padding."""
        if not self.self_condition:
            return None
        chosen = torch.ones(len(batch), dtype=torch.bool)
        if training:
            chosen = keys.uniform("guess", batch.index) < self.self_condition
        guess = torch.zeros_like(z)
        if not chosen.any():
            return guess
        chosen_rows = torch.nonzero(chosen).squeeze(-1)
        part, chosen_rows = batch.rows(chosen_rows), chosen_rows.to(z.device)
        where = torch.ones_like(part.tokens, dtype=torch.bool) if part.present is None else part.present
        with torch.no_grad():
            hidden = self.hidden(z[chosen_rows], gamma[chosen_rows], None, part.present, part.label)
            guessed, _ = self._reads(hidden, z[chosen_rows], gamma[chosen_rows], part.tokens, where, bias)
            row, column = torch.nonzero(where, as_tuple=True)
            guess = guess.index_put((chosen_rows[row], column), guessed)
            if batch.given is None:
                return guess
            known = batch.given & chosen.to(z.device)[:, None]
            return torch.where(known[..., None], self.embeddings()[batch.tokens], guess)

    def rates(self) -> dict[str, float]:
        """Weights whose learning rate is a multiple of train.lr: embeddings and noise."""
        return {name: self.lr_factor for name, _ in self.named_parameters() if name.startswith(FASTER)}

    @property
    def features(self) -> Plaid:
        """The whole model, as its network reads embeddings that belong to the model."""
        return self

    # -- writing -----------------------------------------------------------------------------------------------------

    def denoiser(self) -> Plaid:
        """The model itself."""
        return self

    def check(self, request: Request) -> None:
        """Raise if the model cannot follow a request."""
        if not isinstance(request.sampler, Gaussian):
            raise UserError(
                f"a Plaid model writes all tokens at once and cannot follow {type(request.sampler).__name__}; "
                "choose the gaussian sampler, without a stride"
            )
        if request.guidance != 1:
            raise UserError(f"guidance={request.guidance} is not supported by Plaid models; leave it at 1")

    def advance(self, trajectories: Sequence[GaussianTrajectory]) -> list[Written | None]:
        """Move all canvases to their next time; tokens for those that have reached the end."""
        return advance_gaussian(self, trajectories)

    def under(self, schedule: Schedule | None = None, law: Law | None = None) -> LanguageModel:
        """Raise, as the schedule is learned."""
        raise UserError(
            "a Plaid model has a learned noise schedule and a single bound; leave out bound, steps and schedule"
        )

    def describe(self) -> dict[str, Any]:
        """How its likelihood is defined, for protocols."""
        low, high = (round(float(end.detach()), 3) for end in self.gamma_bounds())
        return {
            "bound": "continuous",
            "diffusion": "Gaussian, over embeddings",
            "embed_dim": self.embed_dim,
            "gamma": [low, high],
            "self_conditioning": bool(self.self_condition),
            "reconstruct": self.reconstruct,
        }


def _complement(backbone: Network) -> list[int] | None:
    """The complement of every token, where the network keeps two strands."""
    if getattr(backbone, "strands", None) != "ps":
        return None
    from ..data.genome.bases import COMPLEMENT

    return [int(token) for token in COMPLEMENT[: backbone.vocab.size]]


def _check_settings(backbone: Network, embed_dim: int, gamma_0: float, gamma_1: float) -> None:
    """Raise for settings that do not make a model."""
    at_least("plaid.embed_dim", embed_dim)
    if not gamma_0 < gamma_1:
        raise UserError(f"plaid.gamma_0={gamma_0} must be below plaid.gamma_1={gamma_1}: noise grows with time")
    if backbone.causal:
        raise UserError("Plaid needs a network that looks both ways; set model.network=dit or model.network=caduceus")
    if backbone.time_conditioning:
        raise UserError("Plaid passes the noise level in the input of the network; set model.time_conditioning=false")
