"""A split as rows of tokens: a view on the memory-mapped stream that `pack` writes; block ends and capacity of rows."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from ..config import DataConfig
from ..types import Vocab

Ends = tuple[int, int]  # BOS and EOS


def ends_of(spec: DataConfig, vocab: Vocab) -> Ends | None:
    """BOS and EOS, where `data.block_ends` puts them at the ends of every row."""
    if not spec.block_ends or vocab.bos is None or vocab.eos is None:
        return None
    return vocab.bos, vocab.eos


def end_of(spec: DataConfig, vocab: Vocab) -> int | None:
    """The token after a document, where a model learns its end: EOS, else the first token of the padding."""
    if not spec.has_ends:
        return None
    return vocab.eos if vocab.eos is not None else vocab.pad


def capacity(length: int, ends: Ends | None) -> int:
    """How many tokens of text fit into a row of `length` tokens."""
    return length if ends is None else length - 2


@dataclass(frozen=True, eq=False)
class Rows:
    """One split as rows of `length` tokens. Nothing is read before it is asked for."""

    stream: np.ndarray = field(repr=False)  # (tokens,) uint16 or uint32
    ends: np.ndarray | None = field(repr=False)  # pad: (documents,) uint64
    facts: dict[str, Any]  # counts and settings, for protocols
    length: int
    block_ends: Ends | None = None  # BOS and EOS at the ends of every row (block_ends)
    pad: int | None = None  # what fills a row of the pad layout
    end: int | None = None  # pad: the token after a document, where a model learns it with the padding that follows
    marks: np.ndarray | None = field(default=None, repr=False)  # (documents,) uint16: labels as the cache has them ...
    label_ids: np.ndarray | None = field(default=None, repr=False)  # ... and (labels,) int64: the id of each
    never_hidden: tuple[int, ...] = ()  # ids that are given wherever they stand, as N in a text of bases
    rest: bool = False  # wrap: what is left after the last whole row is a row too, a shorter one

    @property
    def capacity(self) -> int:
        """Tokens of text in a row."""
        return capacity(self.length, self.block_ends)

    @property
    def tokens(self) -> int:
        """Tokens of the split, EOS between documents included."""
        return int(self.stream.size)

    @property
    def documents(self) -> int:
        """Documents of the split."""
        return int(self.facts["documents"])

    @property
    def labelled(self) -> bool:
        """Whether every row has a label."""
        return self.marks is not None

    def __len__(self) -> int:
        if self.ends is not None:
            return int(self.ends.size)
        return -(-self.tokens // self.capacity) if self.rest else self.tokens // self.capacity

    def first(self, n: int) -> Rows:
        """The first rows; all, if there are not so many."""
        if n >= len(self):
            return self
        if self.ends is None:
            return replace(self, stream=self.stream[: n * self.capacity], rest=False)
        marks = None if self.marks is None else self.marks[:n]
        facts = {**self.facts, "documents": n}
        return replace(self, stream=self.stream[: int(self.ends[n - 1])], ends=self.ends[:n], marks=marks, facts=facts)

    def rows(self, indices: np.ndarray | Iterable[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """(n, L) int64 tokens, and (n, L) bool where they count (None = everywhere)."""
        chosen = np.asarray(list(indices) if not isinstance(indices, np.ndarray) else indices, dtype=np.int64)
        assert ((chosen >= 0) & (chosen < len(self))).all(), "row outside the split"
        tokens, scored = self._wrapped(chosen) if self.ends is None else self._padded(chosen)
        if (given := self.given(tokens)) is not None:
            scored = ~given if scored is None else scored & ~given
        return tokens, scored

    def fields(self, chosen: np.ndarray, attend_pads: bool) -> dict[str, np.ndarray | None]:
        """Tokens and marks (fields of `Batch`) of some rows."""
        tokens, counts = self.rows(chosen)
        padding = self.padding(tokens)
        if padding is not None:  # the network has to write it, so it sees it and learns it
            counts, attend_pads = padding if counts is None else counts | padding, True
        present = None if attend_pads else self.present(tokens, counts)
        return {
            "tokens": tokens,
            "scored": counts,
            "present": present,
            "given": self.given(tokens),
            "padding": padding,
        }

    def present(self, tokens: np.ndarray, counts: np.ndarray | None) -> np.ndarray | None:
        """(n, L) bool where rows that were read hold something to see: what counts or is given (None = everywhere)."""
        given = self.given(tokens)
        seen = counts if counts is None or given is None else counts | given
        return None if seen is None or (given is not None and seen.all()) else seen

    def given(self, tokens: np.ndarray) -> np.ndarray | None:
        """(n, L) bool where rows that were read hold what is never hidden; None = nowhere."""
        given = np.isin(tokens, self.never_hidden) if self.never_hidden else None
        return given if given is not None and given.any() else None

    def padding(self, tokens: np.ndarray) -> np.ndarray | None:
        """(n, L) bool where rows that were read hold learned padding: all that follows the end of a document."""
        if self.end is None:
            return None
        end = tokens == self.end
        if self.block_ends is not None:
            end[:, 0] = False  # BOS may be the same token
        return np.cumsum(end, 1) - end > 0

    def labels(self, indices: np.ndarray | Iterable[int]) -> np.ndarray | None:
        """(n,) int64 ids of the labels of rows; None where the data have none."""
        if self.marks is None or self.label_ids is None:
            return None
        chosen = np.asarray(list(indices) if not isinstance(indices, np.ndarray) else indices, dtype=np.int64)
        return np.asarray(self.label_ids[self.marks[chosen]])

    def _wrapped(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray | None]:
        whole, left = divmod(self.tokens, self.capacity)
        tokens = np.full((len(chosen), self.length), self.pad or 0, dtype=np.int64)
        before, after = (0, 0) if self.block_ends is None else (1, 1)
        blocks = self.stream[: whole * self.capacity].reshape(whole, self.capacity)
        tokens[chosen < whole, before : self.length - after] = blocks[chosen[chosen < whole]]
        if self.block_ends is not None:
            tokens[:, 0], tokens[:, -1] = self.block_ends
        short = chosen == whole
        if not short.any():
            return tokens, None
        counts = np.ones((len(chosen), self.length), dtype=bool)
        counts[short, left + before + after :] = False
        tokens[short, before : before + left] = self.stream[whole * self.capacity :]
        tokens[short, before + left :] = self.pad or 0
        if self.block_ends is not None:
            tokens[short, before + left] = self.block_ends[1]
        return tokens, counts

    def _padded(self, chosen: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        assert self.ends is not None and self.pad is not None
        tokens = np.full((len(chosen), self.length), self.pad, dtype=np.int64)
        scored = np.zeros((len(chosen), self.length), dtype=bool)
        for row, i in enumerate(chosen):
            start = int(self.ends[i - 1]) if i else 0
            text = self.stream[start : min(int(self.ends[i]), start + self.capacity)]
            whole = text
            if self.block_ends is not None:
                whole = np.concatenate([self.block_ends[:1], text, self.block_ends[1:]])
            elif self.end is not None and len(text) < self.length:  # a document that is cut has no end
                whole = np.append(text, self.end)
            tokens[row, : len(whole)] = whole
            scored[row, : len(whole)] = True
        return tokens, scored

    @cached_property
    def bytes_per_token(self) -> float:
        """Bytes of source text for each token that counts (where documents are cut, at the average rate)."""
        rate = self.facts["bytes"] / self.tokens
        if self.ends is None:
            ends = self.length - self.capacity
            kept = self.tokens if self.rest else len(self) * self.capacity
            return float(rate * kept / (kept + ends * len(self)))
        kept, scored, before = 0, 0, 0
        for at in range(0, len(self), 1 << 20):
            part = self.ends[at : at + (1 << 20)].astype(np.int64)
            lengths = np.minimum(np.diff(part, prepend=before), self.capacity)
            kept, before = kept + int(lengths.sum()), int(part[-1])
            scored += int(lengths.sum()) + (0 if self.block_ends is None else 2 * len(lengths))
            if self.end is not None and self.block_ends is None:
                scored += int((lengths < self.length).sum())
        return float(rate * kept / scored)

    def describe(self) -> dict[str, Any]:
        """What a reported number should carry: the text, the tokens and the convention."""
        about = {**self.facts, "length": self.length, "block_ends": self.block_ends is not None, "rows": len(self)}
        if self.rest and self.tokens % self.capacity:
            about["rest"] = "the last row is shorter, so that every token counts"
        if self.end is not None:
            about["ends"] = "an end-of-text token per document counts; the nats of the padding after it belong to it"
        return about
