"""Small frozen records that all packages share. Nothing here computes."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field, replace
from html import escape
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .errors import UserError
from .pieces import surprise, unmasking

__all__ = ["Batch", "Ending", "Likelihood", "Progress", "Sample", "State", "Token", "TokenNats", "UserError", "Vocab"]


@dataclass(frozen=True)
class Vocab:
    """Size of the vocabulary ([MASK] included) and the ids with a special meaning."""

    size: int
    mask: int
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None

    def __post_init__(self) -> None:
        for name in ("mask", "pad", "bos", "eos"):
            token = getattr(self, name)
            if token is not None and not 0 <= token < self.size:
                raise UserError(f"the {name} id {token} is outside a vocabulary of {self.size} tokens")
        if self.mask in (self.pad, self.bos, self.eos):
            raise UserError(f"the mask id {self.mask} is also the pad, bos or eos id; give it another id")


@dataclass(frozen=True)
class Batch:
    """Rows of tokens. `index` and `total` place each row in the global batch (training) or data set (evaluation).

    Random streams and time strata depend on (index, total) only, so a batch may be cut over processes and
    accumulation steps in any way without changing a number.
    """

    tokens: Tensor  # (B, L) int64
    index: Tensor  # (B,) int64, global; where rows are blocks, those of a text are a row of it
    total: int
    scored: Tensor | None = None  # (B, L) bool: counts in the likelihood; None = all
    present: Tensor | None = None  # (B, L) bool: may be attended to; None = all
    label: Tensor | None = None  # (B,) int64, -1 = no label; of a task (B,) int64 or, of a regression, float32
    types: Tensor | None = None  # (B, L) int64: 0 and 1, first and second text of a pair
    given: Tensor | None = None  # (B, L) bool: is seen, never hidden and never counts, as N of a genome; None = nothing
    padding: Tensor | None = None  # (B, L) bool: padding that is learned; its nats belong to the end of the text

    def to(self, device: torch.device | str) -> Batch:
        """The same batch on a device (the index stays on the CPU, where the random streams are)."""
        moved: dict[str, Any] = {"tokens": self.tokens.to(device, non_blocking=True)}
        for name in ("scored", "present", "label", "types", "given", "padding"):
            value = getattr(self, name)
            moved[name] = None if value is None else value.to(device, non_blocking=True)
        return replace(self, **moved)

    def weight(self) -> Tensor:
        """(B, L) bool: the positions that count; what is given never does."""
        counts = torch.ones_like(self.tokens, dtype=torch.bool) if self.scored is None else self.scored
        return counts if self.given is None else counts & ~self.given

    def free(self) -> Tensor:
        """(B, L) bool: the positions that a process may hide, which are those that exist and are not given."""
        exists = torch.ones_like(self.tokens, dtype=torch.bool) if self.present is None else self.present
        return exists if self.given is None else exists & ~self.given

    def counted(self) -> Tensor:
        """(B, L) bool: the tokens that a figure is divided by: those that count, without learned padding."""
        return self.weight() if self.padding is None else self.weight() & ~self.padding

    def rows(self, which: Tensor) -> Batch:
        """Some of the rows, with their places in the whole."""
        parts: dict[str, Any] = {}
        for name in ("tokens", "index", "scored", "present", "label", "types", "given", "padding"):
            value = getattr(self, name)
            parts[name] = None if value is None else value[which.to(value.device)]
        return replace(self, **parts)

    def __len__(self) -> int:
        return self.tokens.shape[0]


@dataclass(frozen=True)
class TokenNats:
    """A bound on -log p(token) for each scored token; `weight` is 1 where a token counts, else 0."""

    nats: Tensor  # (B, L) float32
    weight: Tensor  # (B, L) bool


class Ending(NamedTuple):
    """Where a text ends before its canvas does."""

    text: str
    reason: str  # "eos" or "stop"
    tokens: int  # that count


@dataclass(frozen=True)
class State:
    """One event of a generation: which positions of which sequence changed, to what, at what time.

    Changes are in order. A position that a remasking sampler takes back becomes [MASK], with probability 0.
    """

    row: int  # which canvas
    step: int  # the step of its plan, 0 .. T
    t: float  # the time before the step
    positions: Tensor  # (k,) int64: changed
    tokens: Tensor  # (k,) int64
    probs: Tensor  # (k,) float32: what the network gave the written tokens
    canvas: Tensor  # (L,) int64: after the step
    calls: int  # network calls for this sequence so far
    done: bool
    tops: tuple[Tensor, Tensor] | None = None  # (k, m) the most likely tokens of each written position, if asked for
    fixed: int = 0  # tokens at the beginning of the canvas that will never change any more
    block: tuple[int, int] | None = None  # [start, end): the block that is written next, if the text is in blocks
    ending: Ending | None = None  # of the last state, where the text ends before the canvas does
    error: UserError | None = None  # of the last state: why nothing more is written
    drafts: tuple[int, int] = (0, 0)  # tokens drafted so far, and how many of them were accepted (speculative)
    history: tuple[Tensor, Tensor] | None = None  # of the last state, (L,) each: the step in which a position was
    # written last (-1: never), and with what probability
    log_weight: float | None = None  # of the last state under a constraint: how much likelier the run is without it


@dataclass(frozen=True)
class Token:
    """One token of a finished sequence: given, or written in a step with the probability the network gave it."""

    id: int
    piece: str
    given: bool
    step: int | None = None
    prob: float | None = None

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {"id": self.id, "piece": self.piece, "given": self.given, "step": self.step, "prob": self.prob}


@dataclass(frozen=True, repr=False)
class Sample:
    """A finished sequence."""

    ids: list[int]
    text: str
    seed: int
    network_calls: int
    index: int = 0
    tokens: list[Token] = field(default_factory=list)
    stopped: str = "length"  # or "eos" or "stop": why it ended where it did
    gaps: list[int] = field(default_factory=list)  # lengths of the gaps
    gap_nats: dict[str, float] = field(default_factory=dict)  # the bound by which ranged lengths were chosen
    gap_errors: dict[str, float] = field(default_factory=dict)  # standard errors of its differences from the chosen one
    gap_undecided: list[str] = field(default_factory=list)  # lengths that may be as good as the chosen ones
    log_weight: float | None = None  # under a constraint: log of how much likelier the run is without it
    log_chance: float | None = None  # drawn from particles: log chance that a free text fits, as they estimate it
    effective: float | None = None  # and how many independent texts they are worth
    drafted: int = 0  # tokens of speculative drafts, ...
    accepted: int = 0  # ... and how many of them stayed

    def as_dict(self, tokens: bool = False) -> dict[str, Any]:
        """For JSON, with or without a record of every token."""
        out: dict[str, Any] = {
            "text": self.text,
            "ids": self.ids,
            "seed": self.seed,
            "network_calls": self.network_calls,
            "stopped": self.stopped,
        }
        if self.gap_nats:
            out |= {"gaps": self.gaps, "gap_nats": self.gap_nats}
            out |= {"gap_errors": self.gap_errors, "gap_undecided": self.gap_undecided}
        facts = {name: getattr(self, name) for name in ("log_weight", "log_chance", "effective")}
        out |= {name: value for name, value in facts.items() if value is not None}
        if self.drafted:
            out |= {"drafted": self.drafted, "accepted": self.accepted}
        return out | ({"tokens": [token.as_dict() for token in self.tokens]} if tokens else {})

    def __repr__(self) -> str:
        shown = self.text if len(self.text) <= 60 else self.text[:57] + "..."
        return f"Sample({shown!r}, seed={self.seed}, {len(self.ids)} tokens, {self.network_calls} network calls)"

    def _repr_html_(self) -> str:
        """The text in a notebook, unmasked as it was written."""
        tokens = self.tokens
        return unmasking([t.piece for t in tokens], [t.step for t in tokens], [t.prob for t in tokens])


@dataclass(frozen=True, repr=False)
class Likelihood:
    """A likelihood with its law, its two standard errors and its protocol. Nats are totals, errors per token."""

    nats: float
    tokens: int
    bytes: float | None
    stderr_nats: float | None  # Monte Carlo alone, per token; None with one draw
    stderr_data: float | None  # over texts, per token; None with one text
    protocol: dict[str, Any] = field(default_factory=dict)
    pieces: list[str] | None = None  # of one text: its tokens as text ...
    token_nats: list[float] | None = None  # ... and the bound of each
    texts: list[Likelihood] = field(default_factory=list)  # of several texts: each alone

    @property
    def nats_per_token(self) -> float:
        """Mean bound per token."""
        return self.nats / self.tokens

    def as_dict(self) -> dict[str, Any]:
        """The figures under the names that scripts rely on."""
        from math import exp, log

        per_token = self.nats_per_token
        return {
            "perplexity": exp(per_token) if per_token < 700 else float("inf"),
            "nats_per_token": per_token,
            "bits_per_token": per_token / log(2),
            "bits_per_byte": self.nats / log(2) / self.bytes if self.bytes else None,
            "stderr_nats": self.stderr_nats,
            "stderr_data": self.stderr_data,
            "tokens": self.tokens,
            "protocol": self.protocol,
        }

    @property
    def perplexity(self) -> float:
        """exp(nats per token)."""
        return float(self.as_dict()["perplexity"])

    def __repr__(self) -> str:
        if not self.tokens:
            return "Likelihood(no tokens)"
        error = "" if self.stderr_nats is None else f" ± {self.perplexity * self.stderr_nats:.2g}"
        texts = f", {len(self.texts)} texts" if len(self.texts) > 1 else ""
        return (
            f"Likelihood(perplexity {self.perplexity:.2f}{error}, {self.nats_per_token:.3f} nats/token, "
            f"{self.tokens:,} tokens{texts})"
        )

    def _repr_html_(self) -> str:
        """The figures in a notebook, and the text of one that was scored alone, coloured by surprise."""
        figures = f"<p>{escape(repr(self))}</p>"
        if self.pieces is None or self.token_nats is None:
            return figures + "".join(text._repr_html_() for text in self.texts[:20] if len(self.texts) > 1)
        return figures + surprise(self.pieces, self.token_nats)


Progress = Callable[[int, int], None]  # (done, total)
