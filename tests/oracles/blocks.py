"""Block diffusion by the book: one network call for one block of one text, which sees the clean text before it.

No second stream, no cache, no batch. The network is the package's, with a dense mask; all else is plain numpy.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from oracles.enumeration import Denoiser, State
from oracles.laws import collect
from unmask.models.block_diffusion import BlockDiffusion, CachedBlocks
from unmask.networks.kernels.attention import Attention
from unmask.sampling import Slot

Law = dict[State, float]


@dataclass(frozen=True)
class Known(Attention):
    """Clean columns, then one noisy block that sees all columns. Clean ones see their block and those before it."""

    known: int
    size: int  # of the blocks of the clean text; 1: causal by tokens

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        clean = (key < self.known) & (key // self.size <= query // self.size)
        return (query >= self.known) | clean


def read_block(
    model: BlockDiffusion, tokens: Sequence[int], known: int, size: int | None, label: int | None = None
) -> Tensor:
    """(n - known, hidden): one row alone, of which the first `known` tokens are clean and all others are one block."""
    by = 1 if model.clean == "tokens" or size is None else size
    row, label_of = torch.tensor([tokens]), None if label is None else torch.tensor([label])
    cond = model.backbone.condition(torch.zeros(1), label_of)
    return model.backbone(row, condition=cond, attention=Known(known, by))[0][0, known:]


class Reader:
    """What a model says of a block after a text: (len(block), V) log x̂, by softmax over all tokens but [MASK]."""

    def __init__(self, model: BlockDiffusion, size: int | None, label: int | None = None) -> None:
        self.model, self.size, self.label = model, size, label
        self.log_x = functools.cache(self._log_x)

    def _log_x(self, before: State, z: State) -> np.ndarray:
        with torch.no_grad():
            hidden = read_block(self.model, before + z, len(before), self.size, self.label)
            logits = self.model.backbone.head(hidden).double().numpy()
        logits[:, self.model.vocab.mask] = -np.inf
        top = logits.max(-1, keepdims=True)
        return logits - top - np.log(np.exp(logits - top).sum(-1, keepdims=True))

    def after(self, before: State) -> Denoiser:
        """The law of the next block, for the oracles of a single block."""
        return lambda z, _t: self.log_x(before, z)


def blocks_of(x: State, size: int | None) -> Iterator[tuple[State, State]]:
    """(what stands before it, the block) for every block."""
    size = size or len(x)
    for at in range(0, len(x), size):
        yield x[:at], x[at : at + size]


def chain_rule(reader: Reader, x: State) -> list[float]:
    """-log p(token) of each token after the clean ones before it: one call each, for a single [MASK]."""
    mask = reader.model.vocab.mask
    return [-float(reader.log_x(x[:i], (mask,))[0, token]) for i, token in enumerate(x)]


def hidden_sets(reader: Reader, x: State, free: str = "", counts: str = "") -> Iterator[tuple[int, int, int, float]]:
    """(how many, of how many, how many of them count, their cost) for every set of positions of a block but the empty
    one, of every block. A string of 0 and 1 says what may be hidden and what counts; nothing is all.
    """
    may, counted = ([c == "1" for c in text or "1" * len(x)] for text in (free, counts))
    for before, block in blocks_of(x, reader.size):
        at = len(before)
        places = [i for i in range(len(block)) if may[at + i]]
        for n in range(1, len(places) + 1):
            for chosen in itertools.combinations(places, n):
                z = tuple(reader.model.vocab.mask if i in chosen else token for i, token in enumerate(block))
                log_x, own = reader.log_x(before, z), [i for i in chosen if counted[at + i]]
                yield n, len(places), len(own), -sum(float(log_x[i, block[i]]) for i in own)


def block_bound(
    reader: Reader, x: State, rates: tuple[float, float], last: bool = True, free: str = "", counts: str = ""
) -> float:
    """The sum over blocks of the bound of each: an integral over its own mask rate, and a last step at the lowest."""
    (low, high), p = rates, np.polynomial.Polynomial([0, 1])
    total = 0.0
    for n, m, _, cost in hidden_sets(reader, x, free, counts):
        integral = (p ** (n - 1) * (1 - p) ** (m - n)).integ()
        total += (integral(high) - integral(low) + last * low**n * (1 - low) ** (m - n)) * cost
    return total


def block_law(reader: Reader, start: State, inner: Callable[[State, Denoiser], Law]) -> Law:
    """Block after block, each by the law of its sampler given what stands before it."""
    law: Law = {(): 1.0}
    for _, block in blocks_of(start, reader.size):
        law = collect(
            (before + part, chance * p)
            for before, chance in law.items()
            for part, p in inner(block, reader.after(before)).items()
        )
    return law


class Rereader(CachedBlocks):
    """The model as a denoiser that keeps nothing: every row of every call is read alone, from its first token on."""

    def __init__(self, model: BlockDiffusion) -> None:
        super().__init__(model)
        self.columns = 0  # that the network has read

    def hidden(  # type: ignore[override]
        self,
        z: Tensor,
        t: Tensor,
        present: Any = None,
        label: Any = None,
        queries: Any = None,
        slots: Sequence[Slot] = (),
    ) -> Tensor:
        rows = []
        for i, slot in enumerate(slots):
            end = z.shape[1] if present is None else int(present[i].sum())
            assert slot.block is None or end - slot.clean <= slot.block, "one block at a time"
            self.columns += end
            kind = None if label is None else int(label[i])
            tokens = z[i, :end].tolist()
            if slot.block == 1:
                tokens[slot.clean :] = [self.vocab.mask]
            hidden = read_block(self.model, tokens, slot.clean, slot.block, kind)
            rows.append(hidden[(queries[i] - slot.clean).clamp(0, len(hidden) - 1)])
        return torch.stack(rows)
