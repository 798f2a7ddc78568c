"""What every method answers. Trainer, evaluator, server and command line see only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..backbones.base import Backbone
from ..keys import Keys
from ..samplers import Choice, Control, Plan
from ..schedule import Law, Schedule
from ..types import Batch, State, TokenNats, UserError, Vocab


class LanguageModel(nn.Module, ABC):
    """A backbone with a likelihood, a loss and a way to write into masked positions."""

    backbone: Backbone

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the backbone."""
        return self.backbone.vocab

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @abstractmethod
    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """An unbiased draw of a bound on -log p, spread over the scored tokens."""

    def loss(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """(sum to minimise, weight it is a sum over)."""
        scored = self.nats(batch, keys)
        return scored.nats.sum(), scored.weight.sum()

    def forward(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """The loss: what DDP and FSDP wrap."""
        return self.loss(batch, keys)

    @abstractmethod
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
        """Write into the positions that hold [MASK]; the others never change.

        One stream of keys a canvas; one plan, choice and guidance for all, or one each. `tops` asks for that many
        alternatives of every written token; a sequence for which `until` is true is done.
        """

    @abstractmethod
    def check(self, canvas: Tensor, plan: Plan) -> None:
        """Raise if a plan cannot be followed on a canvas."""

    def under(self, schedule: Schedule | None = None, law: Law | None = None) -> LanguageModel:
        """The same network and weights, scored under another schedule or law; methods without one refuse."""
        raise UserError(f"a {type(self).__name__} model has no noise schedule and no choice of bound")

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The law of its likelihood, for protocols."""
