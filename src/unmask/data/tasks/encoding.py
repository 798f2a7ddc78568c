"""Examples to tokens, as BERT sees them: [CLS] text [SEP], or [CLS] first [SEP] second [SEP] with types 0 and 1.

[CLS] and [SEP] are the BOS and EOS of the tokenizer. What is longer than `length` is cut as `transformers` does it
(longest first): a short text stays whole, and the longer one gets the rest; two long ones get half each.

Sequences of bases stand alone, without special tokens, and a batch may have any of its rows from the other strand.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import torch
from torch import Tensor

from ...errors import UserError
from ...types import Batch
from ..genome.bases import COMPLEMENT
from ..tokenization import Tokenizer
from ..unknown import count_unknown, warn_unknown
from .definition import Example


@dataclass(frozen=True, eq=False)
class Encoded:
    """Examples as rows of tokens of different lengths."""

    tokens: np.ndarray = field(repr=False)  # (all tokens,) uint32, row after row
    ends: np.ndarray = field(repr=False)  # (n,) int64: where each row ends
    second: np.ndarray = field(repr=False)  # (n,) int64: tokens of a row before its second text
    labels: np.ndarray = field(repr=False)  # (n,) int64, -1 = hidden; of a regression float32, NaN = hidden
    length: int  # most tokens of a row
    cut: int  # examples that lost tokens
    pad: int  # what fills a batch; never attended to

    def __len__(self) -> int:
        return len(self.ends)

    def ids(self, row: int) -> np.ndarray:
        """(L,) int64: the tokens of a row."""
        return self.tokens[self._start(row) : int(self.ends[row])].astype(np.int64)

    def types(self, row: int) -> np.ndarray:
        """(L,) int64: 0 for the first text, 1 for the second."""
        size = int(self.ends[row]) - self._start(row)
        return (np.arange(size) >= self.second[row]).astype(np.int64)

    def _start(self, row: int) -> int:
        return int(self.ends[row - 1]) if row else 0

    def sizes(self, rows: np.ndarray) -> np.ndarray:
        """(n,) int64: how many tokens these rows have."""
        return self.ends[rows] - np.where(rows > 0, self.ends[rows - 1], 0)

    def describe(self) -> dict[str, Any]:
        """For protocols: how much of the examples the model sees."""
        return {"length": self.length, "tokens": int(self.tokens.size), "cut_examples": self.cut}

    def batch(
        self,
        indices: np.ndarray | Iterable[int],
        index: np.ndarray | Tensor,
        total: int,
        other: np.ndarray | None = None,
    ) -> Batch:
        """Some rows, padded to the longest of them; `index` and `total` as `Batch` has them.

        Where `other` (n,) bool is set, a row is the reverse complement of its sequence.
        """
        chosen = np.asarray(indices if isinstance(indices, np.ndarray) else list(indices), dtype=np.int64)
        assert chosen.size and ((chosen >= 0) & (chosen < len(self))).all(), "row outside the split"
        sizes = self.sizes(chosen)
        starts = self.ends[chosen] - sizes
        place = np.arange(int(sizes.max()))[None, :]  # (1, L)
        present = place < sizes[:, None]  # (n, L)
        turned = place if other is None else np.where(other[:, None], sizes[:, None] - 1 - place, place)
        at = np.where(present, starts[:, None] + turned, 0)
        tokens = np.where(present, self.tokens[at].astype(np.int64), self.pad)
        if other is not None:
            tokens = np.where(other[:, None], COMPLEMENT[tokens], tokens)
        types = (present & (place >= self.second[chosen][:, None])).astype(np.int64)
        return Batch(
            torch.from_numpy(tokens),
            torch.as_tensor(index, dtype=torch.int64),
            total,
            present=torch.from_numpy(present),
            label=torch.from_numpy(self.labels[chosen]),
            types=torch.from_numpy(types),
        )


def encode_bases(examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Encoded:
    """The bases of sequences in the letters A, C, G, T and N, at most `length` each: the first ones."""
    if tokenizer.kind != "dna":
        raise UserError(
            f"a task on bases needs a model of bases, and the tokenizer of this one is {tokenizer.name!r}; "
            "use a model that was trained with data.tokenizer=dna"
        )
    table = np.zeros(128, dtype=np.uint32)
    for letter in "ACGTN":
        table[ord(letter)] = tokenizer.encode(letter)[0]
    rows = [table[np.frombuffer(example.first[:length].encode("ascii"), dtype=np.uint8)] for example in examples]
    ends = np.cumsum([len(row) for row in rows], dtype=np.int64)
    pad = tokenizer.vocab.pad
    assert pad is not None, "bases have a pad"
    stream = np.concatenate([np.empty(0, dtype=np.uint32), *rows])
    sizes = np.diff(ends, prepend=0)
    return Encoded(stream, ends, sizes, _labels(examples), length, sum(len(x.first) > length for x in examples), pad)


def encode(examples: Sequence[Example], tokenizer: Tokenizer, length: int) -> Encoded:
    """The tokens of examples, at most `length` each."""
    bos, eos = tokenizer.vocab.bos, tokenizer.vocab.eos
    if bos is None or eos is None:
        raise UserError(
            f"the tokenizer {tokenizer.name!r} has no beginning and end of text (BOS and EOS, or [CLS] and [SEP]), "
            "which mark the texts of a task; use a model whose tokenizer has them"
        )
    pairs = any(example.second is not None for example in examples)
    if length < (5 if pairs else 3):
        raise UserError(f"task.length={length} leaves no room for text; give at least {5 if pairs else 3}")
    firsts = tokenizer.arrays([example.first for example in examples])
    seconds = tokenizer.arrays([example.second or "" for example in examples]) if pairs else [None] * len(examples)
    texts = [ids for ids in (*firsts, *seconds) if ids is not None]
    unknown, tokens = sum(count_unknown(tokenizer, ids) for ids in texts), sum(map(len, texts))
    warn_unknown(tokenizer, unknown, tokens, "the examples of the task")
    parts: list[np.ndarray] = [np.empty(0, dtype=np.uint32)]
    ends, second, cut, end = [], [], 0, 0
    opening, closing = np.array([bos], dtype=np.uint32), np.array([eos], dtype=np.uint32)
    for example, a, b in zip(examples, firsts, seconds, strict=True):
        other = 0 if b is None or example.second is None else len(b)
        keep, keep_other = longest_first(len(a), other, length - (2 if example.second is None else 3))
        cut += (keep, keep_other) != (len(a), other)
        row = [opening, a[:keep], closing]
        second.append(keep + 2)
        if b is not None and example.second is not None:
            row += [b[:keep_other], closing]
        end += sum(map(len, row))
        parts += row
        ends.append(end)
    pad = eos if tokenizer.vocab.pad is None else tokenizer.vocab.pad
    stream = np.concatenate(parts).astype(np.uint32)
    where = np.array(ends, dtype=np.int64)
    return Encoded(stream, where, np.array(second, dtype=np.int64), _labels(examples), length, cut, pad)


def longest_first(a: int, b: int, capacity: int) -> tuple[int, int]:
    """How many tokens of two texts are kept when both together may have `capacity` tokens."""
    if a + b <= capacity:
        return a, b
    shorter, half = min(a, b), capacity // 2
    if shorter > half:
        shorter = half
    rest = capacity - shorter
    return (rest, shorter) if a > b else (shorter, rest)


def _labels(examples: Sequence[Example]) -> np.ndarray:
    if any(isinstance(example.label, float) for example in examples):
        return np.array([np.nan if example.label is None else example.label for example in examples], dtype=np.float32)
    return np.array([-1 if example.label is None else example.label for example in examples], dtype=np.int64)
