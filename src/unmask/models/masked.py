"""Masked diffusion (paper sections 3.2-3.5): MDLM is the SUBS parameterization of it.

Only masked rows matter: under carry-over an unmasked position costs nothing and never changes, so the vocabulary
projection, the softmax and the loss run on masked, scored positions only. No (B, L, V) tensor is ever made.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils.checkpoint import checkpoint

from .. import bounds
from ..backbones.base import Backbone
from ..keys import Keys
from ..masking import corrupt
from ..ops.attention import Attn
from ..parameterization import Mean, Parameterization
from ..samplers import Choice, Control, Plan, Task, run
from ..schedule import ContinuousTime, Law, Schedule, strata
from ..types import Batch, State, TokenNats
from .base import LanguageModel

LOGITS_AT_ONCE = 2**28  # float32 logits held at a time (1 GiB); beyond it the head runs in recomputed chunks

SIGMA_TOLD = 30.0  # what a network is told saturates here: fewer than 1e-13 of the tokens are left to see


class MaskedDiffusion(LanguageModel):
    """A backbone, a schedule, the meaning of its logits, and the law of its bound."""

    def __init__(
        self,
        backbone: Backbone,
        schedule: Schedule,
        law: Law | None = None,
        parameterization: Parameterization | None = None,
    ) -> None:
        super().__init__()
        self.backbone, self.schedule = backbone, schedule
        self.law: Law = law or ContinuousTime()
        self.parameterization: Parameterization = parameterization or Mean()
        assert self.parameterization.carry_over, "without carry-over the bound has a reconstruction term of its own"

    def under(self, schedule: Schedule | None = None, law: Law | None = None) -> MaskedDiffusion:
        """The same network and weights, scored under another schedule or law."""
        other = MaskedDiffusion(self.backbone, schedule or self.schedule, law or self.law, self.parameterization)
        return other.train(self.training)

    def hidden(
        self,
        z: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        label: Tensor | None = None,
        queries: Tensor | None = None,
    ) -> Tensor:
        """Hidden states (B, L, hidden) of z at times t (B,), given labels (B,) if the network has any (-1 = none).

        With `queries` (B, M), those of these columns only: (B, M, hidden).
        """
        sigma = self.schedule.sigma(t).clamp(max=SIGMA_TOLD)
        told = None if label is None else label.to(z.device)
        cond = self.backbone.condition(sigma.float().to(z.device), told)
        valid = None if present is None else present.to(z.device)
        if queries is None or (self.backbone.takes_queries and 2 * queries.shape[1] <= z.shape[1]):
            return self.backbone(z, cond=cond, attn=Attn(valid=valid, queries=queries))[0]
        hidden = self.backbone(z, cond=cond, attn=Attn(valid=valid))[0]
        return hidden[torch.arange(len(z), device=z.device)[:, None], queries]

    def log_x(self, rows: Tensor) -> Tensor:
        """Log x̂ (N, V) in float32 of chosen rows of hidden states."""
        return self.parameterization.log_x(self.backbone.head(rows), self.vocab.mask)

    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """One time and one mask a row: an unbiased draw of the bound."""
        draw = self.law.draw(strata(batch.index, batch.total, keys), self.schedule)
        uniform = keys.uniform("mask", batch.index, batch.tokens.shape[1])
        z = corrupt(batch.tokens.cpu(), draw.keep[:, None], uniform, self.vocab.mask).to(batch.tokens.device)
        weight = batch.weight()
        row, column = torch.nonzero((z == self.vocab.mask) & weight, as_tuple=True)
        hidden = self.hidden(z, draw.t, batch.present, batch.label)[row, column]  # (N, hidden)
        draw = draw.rows(row)
        nll, mass = self._target(hidden, batch.tokens[row, column], draw.keep)
        value = bounds.nats(draw, nll, mass).float()
        empty = torch.zeros(weight.shape, dtype=value.dtype, device=value.device)
        return TokenNats(empty.index_put((row, column), value), weight)

    def _target(self, hidden: Tensor, tokens: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
        """(-log x̃(token), sum of x̃); in chunks that are recomputed in the backward pass where logits are large."""

        def target(hidden: Tensor, tokens: Tensor, keep: Tensor) -> tuple[Tensor, Tensor]:
            return self.parameterization.target(self.backbone.head(hidden), tokens, keep, self.vocab.mask)

        rows = max(1, LOGITS_AT_ONCE // self.vocab.size)
        if len(hidden) <= rows:
            return target(hidden, tokens, keep)
        parts = [
            checkpoint(target, *chunk, use_reentrant=False)
            for chunk in zip(hidden.split(rows), tokens.split(rows), keep.split(rows), strict=True)
        ]
        return torch.cat([nll for nll, _ in parts]), torch.cat([mass for _, mass in parts])

    def generate(
        self,
        canvases: Sequence[Tensor],
        plan: Plan | Sequence[Plan],
        keys: Sequence[Keys],
        *,
        choice: Choice | Sequence[Choice] = Choice(),
        batch_size: int = 16,
        controls: Sequence[Control | None] | None = None,
        labels: Sequence[int | None] | None = None,
        guidance: float | Sequence[float] = 1.0,
        tops: int = 0,
        until: Callable[[State], bool] | None = None,
    ) -> Iterator[State]:
        """Follow a plan on every canvas, all of them through the network together."""
        n = len(canvases)
        plans = [plan] * n if isinstance(plan, Plan) else plan
        choices = [choice] * n if isinstance(choice, Choice) else choice
        scales = [guidance] * n if isinstance(guidance, int | float) else guidance
        each = zip(
            canvases, plans, keys, choices, controls or [None] * n, labels or [None] * n, scales, strict=True
        )  # fmt: skip
        tasks = [
            Task(row, canvas, own, key, drawn, control, label, scale, tops)
            for row, (canvas, own, key, drawn, control, label, scale) in enumerate(each)
        ]
        return run(self, tasks, batch_size, until)

    def check(self, canvas: Tensor, plan: Plan) -> None:
        """Raise if a plan cannot be followed on a canvas."""
        plan.check(self)
        plan.course(canvas, self, Keys(0))

    @property
    def time_conditioned(self) -> bool:
        """Whether the network is told the time."""
        return self.backbone.time_conditioning

    @property
    def normalised(self) -> bool:
        """Whether x̂ sums to 1 over the clean tokens: then the schedule alone says when a position is revealed."""
        return self.parameterization.zero_mask

    def describe(self) -> dict[str, Any]:
        """The law of its likelihood, for protocols."""
        return {
            **self.law.describe(),
            "schedule": repr(self.schedule),
            "parameterization": repr(self.parameterization),
        }
