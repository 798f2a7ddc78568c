"""The interface of all methods: trainer, evaluator, server and command line see only this."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Iterator
from typing import Any

import torch
from torch import Tensor, nn

from ..networks.interface import Network, TokenWeights
from ..process.chunks import in_chunks as in_chunks
from ..process.keys import Keys
from ..process.schedule import Law, Schedule
from ..sampling import Batcher, Denoiser, Request, Trajectory
from ..types import Batch, State, TokenNats, UserError, Vocab
from .cached_rows import ModelDenoiser
from .prefix_cache import PrefixCache


class LanguageModel(nn.Module, ABC):
    """A network with a likelihood, a loss and a way to generate."""

    backbone: Network
    exact = False  # whether nats are -log p itself, not a random draw of a bound
    likelihood = True  # whether nats bound -log p at all; if not, there is no perplexity
    fills_masks = False  # whether it predicts masked positions at any time (`models.masked.as_masked`)
    reads_tokens = True  # whether its network reads tokens, so that a text has `states`
    any_length = False  # whether it writes texts of any length without windows
    unscored = 0  # tokens at the start of a row that it does not score
    default_sampler = "plan"  # the name of the sampler if the user names none
    one_way = False  # whether a position is predicted from those before it alone
    cached = False  # whether its denoiser caches what it has read of each sequence
    writes_blocks = False  # whether it can write block after block ...
    block_size: int | None = None  # ... and the size of its blocks if the user names none; None = a text is one block

    @property
    def vocab(self) -> Vocab:
        """The vocabulary of the network."""
        return self.backbone.vocab

    @property
    def device(self) -> torch.device:
        """Where the weights are."""
        return next(self.parameters()).device

    @property
    def features(self) -> nn.Module:
        """The module that a classifier is built on: the network, unless it reads something other than tokens."""
        return self.backbone

    def states(self, tokens: Tensor, present: Tensor | None = None) -> Tensor:
        """(B, L, hidden) of unmasked tokens (B, L), if the model `reads_tokens`."""
        raise UserError("embeddings are the hidden states of a network that reads tokens, which this model's does not")

    def token_weights(self) -> TokenWeights | None:
        """The weights of its vocabulary, if it `reads_tokens` and its network lets them be set."""
        return self.backbone.token_weights() if self.reads_tokens else None

    def rates(self) -> dict[str, float]:
        """Weights that learn faster or slower than others: their learning rate in units of train.lr, by name."""
        return {}

    def streams(self, step: int | None = None) -> float:
        """How many columns the network reads for a token in a training step; None: in the mean over all steps."""
        return 1.0

    @abstractmethod
    def nats(self, batch: Batch, keys: Keys) -> TokenNats:
        """An unbiased draw of a bound on -log p, distributed over the scored tokens."""

    def loss(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """(sum to minimise, weight it is a sum over)."""
        scored = self.nats(batch, keys)
        return scored.nats.sum(), scored.weight.sum()

    def forward(self, batch: Batch, keys: Keys) -> tuple[Tensor, Tensor]:
        """The loss, as the call that DDP and FSDP wrap."""
        return self.loss(batch, keys)

    def generate(self, requests: Iterable[Request], batch_size: int = 16) -> Iterator[State]:
        """The states of all requests as they come, with `batch_size` sequences in the network at a time.

        Only free positions are written; the others never change. Raises for a request that cannot be followed before
        anything is written.
        """
        batcher = self.batcher(batch_size)
        for request in requests:
            batcher.add(request)
        return batcher.run()

    def batcher(self, batch_size: int, token_budget: int | None = None, prefixes: PrefixCache | None = None) -> Batcher:
        """A batcher, where requests join and leave between network calls; `token_budget` as in `Batcher`.

        In `prefixes` a model with a cache keeps what it has read of sequences that have ended.
        """
        denoiser = self.denoiser()
        if isinstance(denoiser, ModelDenoiser):
            denoiser.prefixes = prefixes
        return Batcher(denoiser, batch_size, token_budget)

    @abstractmethod
    def denoiser(self) -> Denoiser:
        """What a batcher drives: the model itself, or the model with a cache for each sequence."""

    @abstractmethod
    def check(self, request: Request) -> None:
        """Raise if the model cannot follow a request."""

    def unread(self, trajectory: Trajectory) -> int:
        """As a denoiser: how many tokens it reads in the next call of a trajectory."""
        return len(trajectory.canvas)

    def admit(self, trajectory: Trajectory) -> None:
        """As a denoiser: a sequence has got its slot; by default nothing is known of it."""

    def release(self, trajectory: Trajectory) -> None:
        """As a denoiser: a sequence has ended; by default nothing was cached for it."""

    def cache_bytes(self, tokens: int) -> int:
        """Bytes that its denoiser keeps for a sequence of so many tokens; by default nothing."""
        return 0

    @property
    def held_bytes(self) -> int:
        """As a denoiser: bytes of what it keeps now."""
        return 0

    def under(self, schedule: Schedule | None = None, law: Law | None = None) -> LanguageModel:
        """The same network and weights, scored under another schedule or law; methods without one raise."""
        raise UserError("this model has no noise schedule and no choice of bound; leave out bound, steps and schedule")

    @abstractmethod
    def describe(self) -> dict[str, Any]:
        """How its likelihood is defined, for protocols."""
