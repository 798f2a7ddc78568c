"""What every method answers. Trainer, evaluator, server and command line see only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..networks.interface import Network
from ..process.chunks import in_chunks as in_chunks
from ..process.keys import Keys
from ..process.schedule import Law, Schedule
from ..sampling import Batcher, Denoiser, Request
from ..types import Batch, State, TokenNats, UserError, Vocab


class LanguageModel(nn.Module, ABC):
    """A backbone with a likelihood, a loss and a way to write."""

    backbone: Network
    exact = False  # whether nats are -log p itself, without a draw: then one draw says all
    likelihood = True  # whether nats bound -log p at all: without that there is no perplexity
    fills_masks = False  # whether it says what stood at masked positions, at any time (`models.masked.as_masked`)
    reads_tokens = True  # whether its network reads tokens, so that `states` of a text mean something
    any_length = False  # whether it writes texts of any length without windows
    given = 0  # tokens at the start of a row that it does not score
    default_sampler = "plan"  # the name of the sampler where a user names none
    cached = False  # whether its denoiser keeps what it has read of each sequence

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the backbone."""
        return self.backbone.vocab

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def features(self) -> nn.Module:
        """The module that a classifier begins with: the network, unless it reads something else than tokens."""
        return self.backbone

    def states(self, tokens: Tensor, present: Tensor | None = None) -> Tensor:
        """(B, L, hidden) of tokens (B, L) as they stand, where the model `reads_tokens`."""
        raise UserError("embeddings are the hidden states of a network that reads tokens, and this model's does not")

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

    def generate(self, requests: Iterable[Request], batch_size: int = 16) -> Iterator[State]:
        """The states of all requests as they come, so many sequences through the network together.

        What may be written is; the other positions never change. What cannot be done is said before anything is
        written.
        """
        batcher = self.batcher(batch_size)
        for request in requests:
            batcher.add(request)
        return batcher.run()

    def batcher(self, batch_size: int, token_budget: int | None = None) -> Batcher:
        """Where requests join and leave between network calls; `token_budget` as in `Batcher`."""
        return Batcher(self.denoiser(), batch_size, token_budget)

    @abstractmethod
    def denoiser(self) -> Denoiser:
        """What a batcher drives: the model itself, or the model with something that it keeps for each sequence."""

    @abstractmethod
    def check(self, request: Request) -> None:
        """Raise if a request cannot be followed."""

    def release(self, slot: int) -> None:
        """The sequence of this slot has ended; nothing was kept of it."""

    def under(self, schedule: Schedule | None = None, law: Law | None = None) -> LanguageModel:
        """The same network and weights, scored under another schedule or law; methods without one refuse."""
        raise UserError("this model has no noise schedule and no choice of bound; leave out bound, steps and schedule")

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """The law of its likelihood, for protocols."""
