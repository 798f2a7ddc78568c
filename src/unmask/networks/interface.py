"""The seam of every network: tokens -> hidden states (`forward`), chosen rows -> logits (`head`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from typing import Any

from torch import Tensor, nn

from ..types import Vocab
from .kernels.attention import Attn


class Network(nn.Module, ABC):
    """A network without a method. It takes what it supports and refuses the rest with a sentence."""

    vocab: Vocab
    hidden_dim: int
    time_conditioning: bool = False  # whether it is told the time
    takes_queries: bool = False  # whether it saves work for columns that are not asked for (attn.queries)
    takes_types: bool = False  # whether it is told which text of a pair a token is of
    causal: bool = False  # whether it looks to the left only, and so has a cache
    recurrent: bool = False  # whether that cache is a state: all that was read, which cannot be cut shorter
    longest: int | None = None  # the most tokens that it can take; None = any number
    n_labels: int = 0  # labels that `condition` takes: 0 .. n_labels - 1, and -1 = no label

    @abstractmethod
    def forward(
        self,
        tokens: Tensor | None = None,
        *,
        inputs: Tensor | None = None,
        types: Tensor | None = None,
        cond: Tensor | None = None,
        attn: Attn | None = None,
        cache: Any = None,
    ) -> tuple[Tensor, Any]:
        """(B, L) tokens to (B, L, hidden) states, final norm applied, and the new cache (or None).

        With attn.queries (B, M), where the backbone takes them, (B, M, hidden): only those columns.
        """

    @abstractmethod
    def head(self, rows: Tensor) -> Tensor:
        """(N, hidden) to (N, V) logits."""

    @abstractmethod
    def condition(self, sigma: Tensor, label: Tensor | None = None) -> Tensor | None:
        """(B,) noise levels, and (B,) labels where the network has any, to what `forward` takes as `cond`."""

    def empty_cache(self, rows: int) -> Any:
        """Of a causal network: the cache of `rows` rows before their first token."""
        raise ValueError(f"the {type(self).__name__} backbone looks both ways and has no cache")

    def no_decay(self) -> set[str]:
        """The names of weights that train.weight_decay does not pull towards 0."""
        return set()

    def refuse(self, **given: Any) -> None:
        """Raise for arguments that this backbone has no use for."""
        for name, value in given.items():
            if value is not None:
                raise ValueError(f"the {type(self).__name__} backbone takes no {name!r}")
