"""The interface of all networks: a record of inputs -> hidden states (`forward`), chosen rows -> logits (`head`)."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any

from torch import Tensor, nn

from ..types import Vocab
from .kernels.attention import Attention, Full

Parts = int | Sequence[int]  # of the rows of a matrix: how many equal parts, or how many rows each part has


@dataclass(frozen=True)
class NetworkInput:
    """What a network may be called with. A network declares which of these fields it takes (`Network.takes`)."""

    tokens: Tensor | None = None  # (B, L) int64
    embeddings: Tensor | None = None  # (B, L, dim) instead of tokens
    types: Tensor | None = None  # (B, L) which text of a pair a token belongs to: 0 or 1
    condition: Tensor | None = None  # from `Network.condition`
    attention: Attention | None = None  # which columns may see which; None = the default of the network
    valid: Tensor | None = None  # (B, L) bool: not padding, cached columns included; None = all
    positions: Tensor | None = None  # (B, L) or (L,) int64; None = 0, 1, 2, ...
    queries: Tensor | None = None  # (B, M) columns whose hidden states are wanted; None = all
    cache: Any = None  # what an earlier call returned, or `Network.empty_cache`
    grow: bool | None = None  # the new cache may use the memory behind the columns of the old one: nobody else does

    @property
    def content(self) -> Tensor:
        """The tokens or the embeddings, whichever are set."""
        content = self.tokens if self.embeddings is None else self.embeddings
        assert content is not None
        return content


@dataclass(frozen=True)
class TokenWeights:
    """The weights that stand for tokens, one row or number each; there may be more rows than tokens."""

    embedding: Tensor  # (V, dim) that tokens are read with
    head: Tensor | None = None  # (V, dim) that they are predicted with; None = the embedding itself
    bias: Tensor | None = None  # (V,) of the logits


class Network(nn.Module, ABC):
    """A network, without a method. Fields of the input that it does not take raise an error before `forward`."""

    vocab: Vocab
    hidden_dim: int
    takes: frozenset[str] = frozenset({"tokens", "valid"})  # with "attention": any `Attention`
    attention: Attention = Full()  # if the input does not say
    directions: frozenset[str] = frozenset({"both"})  # "both" ways, to the "left": what `from_config` supports
    takes_labels: bool = False  # whether it can be built with labels
    shardable: bool = True  # whether FSDP can shard it by blocks
    time_conditioning: bool = False  # whether the condition depends on the time
    causal: bool = False  # whether it looks to the left only, and so has a cache
    recurrent: bool = False  # whether that cache is a state, which cannot be cut back to a shorter prefix
    longest: int | None = None  # the largest number of tokens; None = any
    n_labels: int = 0  # labels that `condition` takes: 0 .. n_labels - 1, and -1 = no label
    fused: Mapping[str, Parts] = {}  # projections in the blocks that compute several things at once, by their last name

    @classmethod
    def from_config(cls, settings: Any, vocab: Vocab, n_labels: int = 0, causal: bool = False) -> Network:
        """The network described by its section of a config, with fresh weights; `directions` limits `causal`."""
        raise NotImplementedError(f"{cls.__name__} cannot be built from a config")

    def __call__(self, inputs: NetworkInput | Tensor | None = None, **more: Any) -> Any:
        """`forward` on a record, or on one made from the arguments: net(tokens, valid=valid)."""
        inputs = inputs if isinstance(inputs, NetworkInput) else NetworkInput(inputs, **more)
        self.refuse(inputs)
        return super().__call__(inputs)

    @abstractmethod
    def forward(self, inputs: NetworkInput) -> tuple[Tensor, Any]:
        """(B, L, hidden) states, final norm applied, and the new cache (or None).

        With `queries` (B, M), if the network takes them, only these columns: (B, M, hidden).
        """

    @abstractmethod
    def head(self, rows: Tensor) -> Tensor:
        """(N, hidden) to (N, V) logits, without those of the padding of the vocabulary."""

    def condition(self, sigma: Tensor, label: Tensor | None = None) -> Tensor | None:
        """(B,) noise levels, and (B,) labels if the network takes them, to the `condition` of its input."""
        if label is not None:
            raise ValueError(f"the {self.name} network does not take labels")
        return None

    def empty_cache(self, rows: int) -> Any:
        """The cache of `rows` rows before their first token; with it the network returns a new cache."""
        raise ValueError(f"the {self.name} network looks both ways and has no cache")

    def no_decay(self) -> set[str]:
        """The names of weights that train.weight_decay does not pull towards 0."""
        return set()

    def token_weights(self) -> TokenWeights | None:
        """The embedding, head and bias of its vocabulary; None if they are not to be set from outside."""
        return None

    def matrices(self) -> dict[str, Parts]:
        """The weights that train.optimizer=muon orthogonalises, by name, and their parts.

        They are the matrices of the linear layers of the blocks, without those that make adaLN's shifts and scales.
        """
        inside = {module for block in getattr(self, "blocks", ()) for module in block.modules()}
        return {
            f"{name}.weight": self.fused.get(name.rpartition(".")[2], 1)
            for name, module in self.named_modules()
            if module in inside and isinstance(module, nn.Linear) and "adaLN" not in name
        }

    @property
    def name(self) -> str:
        """Its name in messages."""
        return type(self).__name__

    def refuse(self, inputs: NetworkInput) -> None:
        """Raise for an input that this network does not take."""
        asked = (field.name for field in fields(inputs) if getattr(inputs, field.name) is not None)
        for field in asked:
            if field not in self.takes and field != "attention":
                raise ValueError(f"the {self.name} network does not take {field}")
        if (inputs.tokens is None) == (inputs.embeddings is None):
            either = "either tokens or embeddings" if "embeddings" in self.takes else "tokens"
            raise ValueError(f"give the {self.name} network {either}")
        if "attention" not in self.takes and inputs.attention not in (None, self.attention):
            looks = "looks to the left only" if self.causal else "looks both ways"
            raise ValueError(
                f"the {self.name} network {looks} and does not take the attention {inputs.attention!r}; leave it out"
            )
        attention = inputs.attention or self.attention
        if inputs.cache is not None and not attention.cacheable:
            raise ValueError(
                f"the {self.name} network has no cache under {attention!r}, where a column sees later ones"
            )
