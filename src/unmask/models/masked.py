"""Masked diffusion (paper sections 3.2-3.5): MDLM, D3PM and the ladder between them, SEDD.

They differ only in what the logits mean (`parameterization.py`).

Only masked rows matter: under carry-over an unmasked position costs nothing and never changes, so the vocabulary
projection, the softmax and the loss run on masked, scored positions only. No (B, L, V) tensor is ever made. Without
carry-over there is one more term, the reconstruction of all positions from the last z (appendix A.2.4).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, cast

import torch
from torch import Tensor

from ..networks.interface import Network
from ..networks.kernels.attention import Full, PartlyCausal
from ..process import bounds
from ..process.counts import hidden_sets
from ..process.keys import Keys
from ..process.masking import at_tokens, corrupt, corrupt_mlm
from ..process.parameterization import Mean, Parameterization
from ..process.schedule import ContinuousTime, Draw, Law, Schedule
from ..sampling import Request, Trajectory, Written, advance_tokens
from ..types import Batch, TokenNats, UserError
from .language_model import LanguageModel, in_chunks

MAX_SIGMA = 30.0  # the noise level that a network sees saturates here: fewer than 1e-13 of the tokens are unmasked
RECONSTRUCTED = 4  # one row in this many is reconstructed, with that weight: the term is small, a second pass is not


@dataclass(frozen=True)
class Objective:
    """What training minimises, where it is not the bound itself."""

    cross_entropy: bool = False  # of masked tokens, unweighted (MaskGIT, discrete flow matching)
    law: Law | None = None  # times of the training only, such as a clipped range
    stratified: bool = True  # one row per stratum of time; else independent times
    mask_rate: float | None = (
        None  # BERT's masked language modeling (15 % of the tokens, 80/10/10) instead of diffusion
    )
    counts: bool = False  # draw how many positions are hidden, not a time
    pairs: bool = False  # with counts: every row twice, what is hidden in one view is seen in the other
    law_until: int | None = None  # the steps with that law; then the model's; None = all
    anneal: int = 0  # the steps in which a network that was causal comes to see what is to the right

    def describe(self) -> dict[str, object]:
        """How training differs from the paper's, for protocols; nothing where it does not."""
        words = []
        if self.counts:
            words.append("mask counts in strata" + ", every set with its complement" * self.pairs)
        if self.law is not None:
            until = "" if self.law_until is None else f", until step {self.law_until}"
            words.append(str(self.law.describe()["bound"]).removeprefix("none: ") + until)
        if self.cross_entropy:
            words.append("cross-entropy without the weights of the bound")
        if self.anneal:
            words.append(f"from causal attention to full attention in {self.anneal} steps")
        return {"training": "; ".join(words)} if words else {}


class MaskedDiffusion(LanguageModel):
    """A network, a schedule, the meaning of its logits, and the law of its bound."""

    fills_masks = True
    sight: Tensor | None = None  # (L, L) bool: the columns to the right that each column sees; None = all

    def __init__(
        self,
        backbone: Network,
        schedule: Schedule,
        law: Law | None = None,
        parameterization: Parameterization | None = None,
        objective: Objective | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.schedule = backbone, schedule
        self.law: Law = law or ContinuousTime()
        self.parameterization: Parameterization = parameterization or Mean()
        self.objective = objective or Objective()
        if self.parameterization.is_measure and not isinstance(self.law, ContinuousTime):
            raise UserError("SEDD's score has a bound in continuous time only; set objective.bound=continuous")
        if self.objective.counts and not self.normalised:
            raise UserError(
                "the bound of this method is no sum over the number of masks, so they cannot be drawn for it; "
                "set objective.times=strata, or model.method=mdlm"
            )
        if self.objective.counts and self.time_conditioned:
            raise UserError(
                "objective.times=counts draws the number of masks and no time, which this network wants to know; "
                "set model.time_conditioning=false, or objective.times=strata"
            )

    def under(
        self,
        schedule: Schedule | None = None,
        law: Law | None = None,
        *,
        objective: Objective | None = None,
        backbone: Network | None = None,
    ) -> MaskedDiffusion:
        """The same network and weights, scored under another schedule or law (or another network around them)."""
        other = MaskedDiffusion(
            backbone or self.backbone,
            schedule or self.schedule,
            law or self.law,
            self.parameterization,
            objective or self.objective,
        )
        return other.train(self.training)

    def states(self, tokens: Tensor, present: Tensor | None = None) -> Tensor:
        """(B, L, hidden) of unmasked tokens, at time 0."""
        return self.hidden(tokens, torch.zeros(len(tokens), dtype=torch.float64), present)

    def hidden(
        self,
        z: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        label: Tensor | None = None,
        queries: Tensor | None = None,
        clean: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, L, hidden) of z at times t (B,) or (B, L), given labels (B,) if it has any (-1 = none).

        With `queries` (B, M), only the states of these columns: (B, M, hidden). `clean` (B, L) are the tokens
        themselves, for models that see those of earlier blocks; others do not look at them.
        """
        cond = self.condition(z, t, label)
        valid = None if present is None else present.to(z.device)
        attention = None if self.sight is None else PartlyCausal(Full(), self.sight)
        if queries is None or ("queries" in self.backbone.takes and 2 * queries.shape[1] <= z.shape[1]):
            return self.backbone(z, condition=cond, valid=valid, queries=queries, attention=attention)[0]
        hidden = self.backbone(z, condition=cond, valid=valid, attention=attention)[0]
        return hidden[torch.arange(len(z), device=z.device)[:, None], queries]

    def condition(self, z: Tensor, t: Tensor, label: Tensor | None) -> Tensor | None:
        """What the network is told of the times t (B,) or (B, L) and the labels (B,) of z, on its device."""
        if t.ndim > 1:
            if self.backbone.time_conditioning:
                raise UserError("this network takes one time per row; set model.time_conditioning=false")
            t = t[:, 0]  # the network does not use it
        sigma = self.schedule.sigma(t).clamp(max=MAX_SIGMA)
        return self.backbone.condition(sigma.float().to(z.device), None if label is None else label.to(z.device))

    def log_x(self, rows: Tensor) -> Tensor:
        """Log x̂ (N, V) in float32 from rows of hidden states."""
        return self.parameterization.log_x(self.backbone.head(rows), self.vocab.mask)

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """One mask per row, at one time or (if the law says so) one per position: an unbiased draw of the bound."""
        return TokenNats(self._nats(batch, keys, self.law), batch.counted())

    def loss(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """(sum to minimise, weight it is a sum over)."""
        if self.sight is None and keys.step < self.objective.anneal:
            share = keys.step / self.objective.anneal
            return MaskedDiffusion.loss(self.partly_causal(share, batch, keys), batch, keys)
        if self.objective.mask_rate is not None:
            return self._mlm(batch, keys, self.objective.mask_rate)
        until = self.objective.law_until
        law = self.law if until is not None and keys.step >= until else self.objective.law or self.law
        if self.objective.counts:
            return self._by_counts(batch, keys, law)
        if not self.objective.cross_entropy:
            return self._nats(batch, keys, law).sum(), batch.counted().sum()
        prediction = self._predict(batch, law.draw(self._times(batch, keys, law), self.schedule), keys)
        nll = prediction.nll + bounds.log_mass(prediction.mass)  # of x̃ scaled to 1, where it is not
        return nll.float().sum(), torch.tensor(float(len(nll)), device=nll.device)

    def partly_causal(self, share: float, batch: Batch, keys: Keys) -> MaskedDiffusion:
        """The same network and weights, where a column sees this share of the columns to its right, drawn for each."""
        other, length = copy.copy(self), batch.tokens.shape[1]
        other.sight = (keys.uniform("sight", [0], length, length)[0] < share).to(batch.tokens.device)
        return other

    def _by_counts(self, batch: Batch, keys: Keys, law: Law) -> tuple[Tensor, Tensor]:
        """How many positions of a row are hidden is drawn, not a time: the same bound, or plain cross-entropy."""
        counted = batch.counted().sum()
        hidden, weight = self._hidden_sets(batch, keys, law)
        if self.objective.pairs:
            batch = batch.rows(torch.arange(len(batch)).repeat(2))
        hidden = hidden.to(batch.tokens.device)
        z = torch.where(hidden, self.vocab.mask, batch.tokens)
        chosen, t = hidden & batch.weight(), torch.ones(len(batch), dtype=torch.float64)
        row, column, nll = self._guessed(batch, z, chosen, t)
        if self.objective.cross_entropy:
            return nll.sum(), torch.tensor(float(len(nll)), device=nll.device)
        return (nll * weight.float().to(row.device).expand(hidden.shape)[row, column]).sum(), counted

    def _hidden_sets(self, batch: Batch, keys: Keys, law: Law) -> tuple[Tensor, Tensor]:
        """(B, L) bool, what is hidden, and (B, 1) or (B, L), the weight of each token; of pairs twice as many rows."""
        weighted, pairs = not self.objective.cross_entropy, self.objective.pairs
        hidden, weight = hidden_sets(batch, keys, law, self.schedule, weighted=weighted, pairs=pairs)
        return hidden, weight[:, None]

    def _mlm(self, batch: Batch, keys: Keys, rate: float) -> tuple[Tensor, Tensor]:
        """BERT's objective (Devlin et al. 2018): the cross-entropy of the chosen tokens, special ones never chosen."""
        vocab, tokens = self.vocab, batch.tokens.cpu()
        special = [token for token in (vocab.mask, vocab.pad, vocab.bos, vocab.eos) if token is not None]
        ordinary = ~torch.isin(tokens, torch.tensor(special)) & batch.weight().cpu()
        uniform = keys.uniform("mlm", batch.index, tokens.shape[1], 3)
        chosen = ordinary & (uniform[..., 0] < rate)
        z = corrupt_mlm(tokens, chosen, uniform[..., 1:], vocab.size, vocab.mask).to(batch.tokens.device)
        t = self.schedule.inverse(torch.full((len(batch),), 1 - rate, dtype=torch.float64)).clamp(0, 1)
        *_, nll = self._guessed(batch, z, chosen.to(z.device), t)
        return nll.sum(), torch.tensor(float(len(nll)), device=nll.device)

    def _guessed(self, batch: Batch, z: Tensor, chosen: Tensor, t: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Rows and columns (N,) of the chosen positions (B, L), and -log x̂ (N,) of their tokens, from z at times t."""
        row, column = torch.nonzero(chosen, as_tuple=True)
        hidden = self.hidden(z, t, batch.present, batch.label, clean=batch.tokens)[row, column]
        (nll,) = in_chunks(self._token_nll, self.vocab.size, hidden, batch.tokens[row, column])
        return row, column, nll

    def _token_nll(self, hidden: Tensor, tokens: Tensor) -> tuple[Tensor]:
        """-log x̂ of tokens (N,) from hidden rows (N, hidden)."""
        return (-at_tokens(self.log_x(hidden), tokens),)

    def _times(self, batch: Batch, keys: Keys, law: Law) -> Tensor:
        return law.uniforms(batch.index, batch.total, batch.tokens.shape[1], keys, self.objective.stratified)

    def _nats(self, batch: Batch, keys: Keys, law: Law) -> Tensor:
        """(B, L) float32."""
        uniform = self._times(batch, keys, law)
        if self.parameterization.carry_over:
            return self._step(batch, law.draw(uniform, self.schedule), keys)
        inner, last = law.split(uniform, self.schedule)
        return self._step(batch, inner, keys) + self._reconstruction(batch, last, keys)

    def _step(self, batch: Batch, draw: Draw, keys: Keys) -> Tensor:
        """The nats of one step per row: masked positions cost something, the others nothing."""
        prediction = self._predict(batch, draw, keys)
        value = bounds.nats(prediction.draw, prediction.nll, prediction.mass, self.parameterization.is_measure).float()
        return prediction.spread(value, batch)

    def _predict(self, batch: Batch, draw: Draw, keys: Keys) -> Prediction:
        """The prediction for the masked, scored positions of a draw."""
        z = self._corrupt(batch, draw, keys, "mask")
        row, column = torch.nonzero((z == self.vocab.mask) & batch.weight(), as_tuple=True)
        hidden = self.hidden(z, draw.t, batch.present, batch.label, clean=batch.tokens)[row, column]  # (N, hidden)
        draw = draw.at(row, column)

        def target(hidden: Tensor, tokens: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
            return self.parameterization.target(self.backbone.head(hidden), tokens, keep, self.vocab.mask)

        nll, mass = in_chunks(target, self.vocab.size, hidden, batch.tokens[row, column], draw.keep)
        return Prediction(row, column, draw, nll, mass)

    def _reconstruction(self, batch: Batch, last: Draw, keys: Keys) -> Tensor:
        """-log x̂(x) at every scored position, masked or not, from the z of the last step (eq. 46, first term).

        Computed for one row in RECONSTRUCTED, drawn from the global batch or data set, with that weight.
        """
        share = -(-batch.total // RECONSTRUCTED)
        drawn = torch.from_numpy(keys.permute("reconstruct", batch.index, batch.total)) < share
        # If no row is drawn, the first one is computed with weight 0: FSDP needs equally many passes in all processes.
        chosen = torch.nonzero(drawn if drawn.any() else torch.arange(len(batch)) == 0).squeeze(-1)
        part, draw = batch.rows(chosen), last.rows(chosen)
        row, column = torch.nonzero(part.weight(), as_tuple=True)
        z = self._corrupt(part, draw, keys, "last mask")
        hidden = self.hidden(z, draw.t, part.present, part.label)[row, column]
        (nll,) = in_chunks(self._token_nll, self.vocab.size, hidden, part.tokens[row, column])
        scale = draw.at(row, column).scale * (batch.total / share)
        nll = torch.where(drawn[chosen].to(row.device)[row], nll, 0.0)  # which may be infinite
        value = torch.zeros(batch.tokens.shape, dtype=nll.dtype, device=nll.device)
        return value.index_put((chosen.to(row.device)[row], column), nll * scale.float())

    def _corrupt(self, batch: Batch, draw: Draw, keys: Keys, purpose: str) -> Tensor:
        uniform = keys.uniform(purpose, batch.index, batch.tokens.shape[1])
        z = corrupt(batch.tokens.cpu(), draw.per_position(draw.keep), uniform, self.vocab.mask).to(batch.tokens.device)
        return z if batch.given is None else torch.where(batch.given, batch.tokens, z)

    def denoiser(self) -> MaskedDiffusion:
        """The model itself."""
        return self

    def check(self, request: Request) -> None:
        """Raise if the model cannot follow a request."""
        request.sampler.check(self)

    def advance(self, trajectories: Sequence[Trajectory]) -> list[Written | None]:
        """One network call for all trajectories."""
        return advance_tokens(self, trajectories)

    @property
    def time_conditioned(self) -> bool:
        """Whether the network depends on the time."""
        return self.backbone.time_conditioning

    @property
    def normalised(self) -> bool:
        """Whether the schedule alone decides when a position is revealed, and no token changes afterwards."""
        return self.parameterization.zero_mask and self.parameterization.carry_over

    @property
    def carry_over(self) -> bool:
        """Whether a written token stays; if not, the last step writes all tokens anew."""
        return self.parameterization.carry_over

    @property
    def default_sampler(self) -> str:  # type: ignore[override]
        """The sampler `plan`, with reveals drawn ahead, where the schedule allows it; else the textbook sampler."""
        return "plan" if self.normalised else "ancestral"

    def describe(self) -> dict[str, Any]:
        """How its likelihood is defined, for protocols."""
        facts = {
            **self.law.describe(),
            "schedule": repr(self.schedule),
            "parameterization": repr(self.parameterization),
        }
        if isinstance(self.law, ContinuousTime):  # a cut schedule may begin its last step before the cut-off is reached
            facts["cutoff_mask_rate"] = float(f"{self.law.last(self.schedule):.6g}")
        if not self.carry_over:
            facts["reconstruction"] = (
                "-log x̂ of every token from the z of the last step (the paper's), not from clean x"
            )
        if not self.objective.stratified:
            facts["times"] = "independent"
        return facts | self.objective.describe()


def as_masked(model: LanguageModel) -> MaskedDiffusion | None:
    """The model as one that fills masks, or None if it does not."""
    return cast(MaskedDiffusion, model) if model.fills_masks else None


@dataclass(frozen=True)
class Prediction:
    """Masked, scored positions and what the network predicts for them."""

    row: Tensor  # (N,)
    column: Tensor  # (N,)
    draw: Draw  # one value per position
    nll: Tensor  # (N,) -log x̃(x)
    mass: Tensor  # (N,) sum of x̃

    def spread(self, value: Tensor, batch: Batch) -> Tensor:
        """(B, L): the values at these positions, 0 elsewhere."""
        empty = torch.zeros(batch.tokens.shape, dtype=value.dtype, device=value.device)
        return empty.index_put((self.row, self.column), value)
