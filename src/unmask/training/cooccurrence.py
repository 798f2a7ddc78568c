"""Embeddings from counts: what neighbouring tokens say of each other, put into a network before its first step.

For each offset o the pairs (x_i, x_{i+o}) of the training text are counted. With f the counts of single tokens, N their
sum, c those of pairs and e = f fᵀ/N what c would be if tokens were independent,

    M_o = log((c + 1)/(e + 1)) / sqrt(o)

and the embeddings are the leading left singular vectors of [M_1, M_1ᵀ, M_2, M_2ᵀ], each times the square root of its
singular value. The log splits into log(c + 1), which is sparse, and log(1 + e), which depends only on how often the two
tokens occur; so products with M_o cost what the distinct pairs cost, and no (V, V) matrix is made.
The head, tied or a copy, then predicts tokens that occur in places like the one it sees; its bias is the unigram law.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from torch import Tensor

from ..data.pack import Rows
from ..distributed import World
from ..models.language_model import LanguageModel
from ..process.keys import Keys
from ..types import Vocab

OFFSETS = (1, 2)
NOISE = 0.3  # beside embeddings of rms 1: directions that the counts do not use
MOST_TOKENS = 50_000_000  # of the text that is counted, in rows that are evenly spaced
SPARE = 16  # directions beyond those wanted, for the randomised range
ROUNDS = 6  # of the subspace iteration
FREQUENCIES = 1024  # different frequencies that log(1 + e) distinguishes; more are rounded


@dataclass(frozen=True)
class PairCounts:
    """How often tokens and pairs of tokens occur in a text."""

    single: np.ndarray  # (V,) int64
    pairs: tuple[tuple[np.ndarray, np.ndarray], ...]  # for each offset the codes a V + b, sorted, and their counts


def count(rows: Rows, vocab: Vocab, offsets: Sequence[int] = OFFSETS, most: int = MOST_TOKENS) -> PairCounts:
    """Count the tokens and pairs of a split, within its rows; padding and special tokens do not count."""
    total = len(rows)
    chosen = np.linspace(0, total - 1, min(total, max(1, most // rows.length))).astype(np.int64)
    special = [token for token in (vocab.mask, vocab.pad) if token is not None and token != vocab.eos]
    single = np.zeros(vocab.size, dtype=np.int64)
    pairs: list[tuple[np.ndarray, np.ndarray]] = [(np.empty(0, np.int64), np.empty(0, np.int64)) for _ in offsets]
    for part in np.array_split(chosen, max(1, len(chosen) * rows.length >> 22)):
        tokens, scored = rows.rows(part)
        counted = ~np.isin(tokens, special) & (True if scored is None else scored)
        single += np.bincount(tokens[counted], minlength=vocab.size)
        for at, offset in enumerate(offsets):
            both = counted[:, :-offset] & counted[:, offset:]
            codes = (tokens[:, :-offset] * vocab.size + tokens[:, offset:])[both]
            pairs[at] = _merged(pairs[at], np.unique(codes, return_counts=True))
    return PairCounts(single, tuple(pairs))


def _merged(one: tuple[np.ndarray, np.ndarray], other: tuple[np.ndarray, np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    codes, place = np.unique(np.concatenate((one[0], other[0])), return_inverse=True)
    return codes, np.bincount(place, weights=np.concatenate((one[1], other[1])), minlength=len(codes)).astype(np.int64)


class Associations:
    """The matrices M_o of a text, as products with other matrices."""

    def __init__(self, counts: PairCounts, offsets: Sequence[int] = OFFSETS) -> None:
        size, single = len(counts.single), counts.single.astype(np.float64)
        self.weights = [1 / offset for offset in offsets]  # the squares of 1/sqrt(o)
        self.sparse = []
        for codes, times in counts.pairs:
            place = torch.from_numpy(np.stack((codes // size, codes % size)))
            logs = torch.from_numpy(np.log1p(times)).float()
            whole = torch.sparse_coo_tensor(place, logs, (size, size), is_coalesced=True, check_invariants=False)
            self.sparse.append((whole, whole.t().coalesce()))
        values, kind = np.unique(single, return_inverse=True)
        if len(values) > FREQUENCIES:  # rounded on a logarithmic scale; most tokens are rare, and those are exact
            edges = np.unique(np.geomspace(1, values.max() + 1, FREQUENCIES).astype(np.int64))
            kind = np.searchsorted(edges, single, side="right")
            mass = np.bincount(kind, weights=single)
            values = mass / np.maximum(np.bincount(kind), 1)
        self.kind = torch.from_numpy(kind)
        self.expected = torch.from_numpy(np.log1p(np.outer(values, values) / max(single.sum(), 1))).float()

    def _times(self, matrix: Tensor, x: Tensor) -> Tensor:
        """(V, V) @ (V, k), where the matrix is sparse, minus what independent tokens would give."""
        grouped = torch.zeros(len(self.expected), x.shape[1]).index_add_(0, self.kind, x)
        return torch.sparse.mm(matrix, x) - (self.expected @ grouped)[self.kind]

    def gram(self, x: Tensor) -> Tensor:
        """A Aᵀ x for A = [M_1, M_1ᵀ, M_2, M_2ᵀ]."""
        out = torch.zeros_like(x)
        for weight, (forth, back) in zip(self.weights, self.sparse, strict=True):
            out += weight * (self._times(forth, self._times(back, x)) + self._times(back, self._times(forth, x)))
        return out


def leading(matrix: Associations, size: int, rank: int, keys: Keys) -> Tensor:
    """(V, rank): the leading left singular vectors of A, each times the square root of its singular value.

    By subspace iteration from a random start; deterministic by its keys. Signs are fixed by the largest entry.
    """
    width = min(size, rank + SPARE)
    start = keys.stream("counts/range").standard_normal((size, width), dtype=np.float32)
    basis = torch.linalg.qr(torch.from_numpy(start))[0]
    for _ in range(ROUNDS):
        basis = torch.linalg.qr(matrix.gram(basis))[0]
    values, turn = torch.linalg.eigh((basis.T @ matrix.gram(basis)).double())
    vectors = (basis @ turn.float().flip(1))[:, :rank]
    scale = values.flip(0)[:rank].clamp(min=0) ** 0.25  # the eigenvalues of A Aᵀ are the squares of singular values
    signs = vectors.gather(0, vectors.abs().argmax(0, keepdim=True)).sign()
    return vectors * signs * scale.float()


def embeddings(counts: PairCounts, dim: int, keys: Keys) -> Tensor:
    """(V, dim) with deviation 1: directions from the counts with some noise; tokens that do not occur are random."""
    size = len(counts.single)
    rank = min(size, dim)
    table = torch.from_numpy(keys.stream("counts/noise").standard_normal((size, dim), dtype=np.float32))
    seen = torch.from_numpy(counts.single > 0)
    directions = leading(Associations(counts), size, rank, keys)
    directions = directions / directions[seen].pow(2).mean().sqrt().clamp(min=1e-12)
    table[seen] *= NOISE
    table[seen, :rank] += directions[seen]
    return table / table.std()


def unigram_bias(counts: PairCounts) -> Tensor:
    """(V,) log of the chance of each token in units of the uniform one: 0 for all if all are equally frequent."""
    single = torch.from_numpy(counts.single).double() + 1
    return (single.log() - single.sum().log() + math.log(len(single) - 1)).float()


def start_from_counts(model: LanguageModel, rows: Rows, keys: Keys, world: World) -> str:
    """Set the token weights of a new model from the counts of its training text; a sentence where that cannot be.

    The main process counts, and the others take its result: it is the same for any number of processes.
    """
    tables = model.token_weights()
    if tables is None:
        return "note: this model has no token embeddings that counts could set; its weights start at random"
    if rows.tokens < model.vocab.size:
        return (
            f"note: {rows.tokens:,} tokens of text are too few to count the pairs of a vocabulary of "
            f"{model.vocab.size:,}; embeddings start at random (a smaller data.vocab_size would help)"
        )
    size, dim = model.vocab.size, tables.embedding.shape[1]
    both = torch.zeros(size, dim + 1)
    if world.main:
        counts = count(rows, model.vocab)
        both = torch.cat((embeddings(counts, dim, keys), unigram_bias(counts)[:, None]), dim=1)
    both = world.sum(both).cpu()
    table, bias = both[:, :dim], both[:, dim]
    with torch.no_grad():
        table = table * tables.embedding[:size].std().cpu()
        tables.embedding[:size] = table
        if tables.head is not None:
            tables.head[:size] = table
        if tables.bias is not None:
            tables.bias[:size] = bias
    return ""
