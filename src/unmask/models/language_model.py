"""What every method answers. Trainer, evaluator, server and command line see only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import torch
from torch import Tensor, nn

from ..networks.interface import Network
from ..process.chunks import in_chunks as in_chunks
from ..process.keys import Keys
from ..process.schedule import Law, Schedule
from ..sampling import Batcher, Choice, Request, Rules, Sampler, SequentialBatcher
from ..types import Batch, State, TokenNats, UserError, Vocab

Until = Callable[[State], bool]  # whether a sequence is done before its end


class LanguageModel(nn.Module, ABC):
    """A backbone with a likelihood, a loss and a way to write into masked positions."""

    backbone: Network
    exact = False  # whether nats are -log p itself, without a draw: then one draw says all
    likelihood = True  # whether nats bound -log p at all: without that there is no perplexity
    any_length = False  # whether it writes texts of any length without windows
    given = 0  # tokens at the start of a row that it does not score
    usual_sampler = "plan"  # the name of the plan it is sampled with where a user names none

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the backbone."""
        return self.backbone.vocab

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    def rates(self) -> dict[str, float]:
        """The names of weights that learn faster or slower than others: their learning rate in units of train.lr."""
        return {}

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

    def generate(
        self,
        canvases: Sequence[Tensor],
        plan: Sampler | Sequence[Sampler],
        keys: Sequence[Keys],
        *,
        choice: Choice | Sequence[Choice] = Choice(),
        batch_size: int = 16,
        controls: Sequence[Rules | None] | None = None,
        labels: Sequence[int | None] | None = None,
        guidance: float | Sequence[float] = 1.0,
        tops: int = 0,
        until: Until | None = None,
    ) -> Iterator[State]:
        """Write into the positions that hold [MASK]; the others never change.

        One stream of keys a canvas; one plan, choice and guidance for all, or one each. `tops` asks for that many
        alternatives of every written token; a sequence for which `until` is true is done.
        """
        n = len(canvases)
        plans = [plan] * n if isinstance(plan, Sampler) else plan
        choices = [choice] * n if isinstance(choice, Choice) else choice
        scales = [guidance] * n if isinstance(guidance, int | float) else guidance
        each = zip(canvases, plans, keys, choices, controls or [None] * n, labels or [None] * n, scales, strict=True)
        tasks = [
            Request(row, canvas, own, key, drawn, control, label, scale, tops)
            for row, (canvas, own, key, drawn, control, label, scale) in enumerate(each)
        ]
        return self.write(tasks, batch_size, until)

    @abstractmethod
    def write(self, tasks: Sequence[Request], batch_size: int, until: Until | None) -> Iterator[State]:
        """The states of all tasks as they come; what cannot be done is said before anything is written."""

    def desk(self, batch_size: int, share: int | None = None) -> Batcher | SequentialBatcher:
        """Where tasks join and leave between network calls; `share` as in `Batcher`. By default one after another."""
        return SequentialBatcher(lambda task: self.write([task], 1, None))

    @abstractmethod
    def check(self, canvas: Tensor, plan: Sampler) -> None:
        """Raise if a plan cannot be followed on a canvas."""

    def under(self, schedule: Schedule | None = None, law: Law | None = None) -> LanguageModel:
        """The same network and weights, scored under another schedule or law; methods without one refuse."""
        raise UserError("this model has no noise schedule and no choice of bound; leave out bound, steps and schedule")

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The law of its likelihood, for protocols."""
