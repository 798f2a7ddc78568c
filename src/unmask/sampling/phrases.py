"""Words that must not appear in a text, whichever tokens would spell them.

A token is forbidden where it would complete such a word together with its known neighbours. That is decided anew for
every draw, so the law is the sampler's with those tokens left out, as with single tokens: it is not the model's law
given that the word does not occur. Positions that are written together are drawn from left to right, each knowing the
tokens before it. Text is compared as UTF-8.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

import torch
from torch import Tensor

NO_TOKENS = torch.empty(0, dtype=torch.int64)
Spelling = Sequence[bytes | None]  # what each token adds to a text; None: nothing that text goes on through


@dataclass(frozen=True, eq=False)
class Phrase:
    """A word that never appears, over a vocabulary."""

    word: bytes
    spelling: Spelling
    _cache: dict[tuple[int, int], Tensor] = field(default_factory=dict, init=False)

    def alone(self) -> list[int]:
        """The tokens that contain the word."""
        return [token for token, text in enumerate(self.spelling) if text is not None and self.word in text]

    def forbidden(self, canvas: Sequence[int], position: int, mask: int) -> Tensor:
        """The tokens that would complete the word at a position of a canvas; [MASK] is what is not known."""
        begun, ended = self._begun(canvas, position, mask), self._ended(canvas, position, mask)
        if not begun and not ended:
            return NO_TOKENS
        key = sum(1 << i for i in begun), sum(1 << i for i in ended)
        if key not in self._cache:
            self._cache[key] = self._complete(begun, ended)
        return self._cache[key]

    def _begun(self, canvas: Sequence[int], position: int, mask: int) -> list[int]:
        """How many bytes at the beginning of the word stand directly before a position: all possible numbers."""
        before, most = b"", len(self.word) - 1
        for at in range(position - 1, -1, -1):
            text = None if canvas[at] == mask else self.spelling[canvas[at]]
            if text is None or len(before) >= most:
                break
            before = text + before
        return [n for n in range(1, min(most, len(before)) + 1) if before.endswith(self.word[:n])]

    def _ended(self, canvas: Sequence[int], position: int, mask: int) -> list[int]:
        """How many bytes at the end of the word stand directly after a position."""
        after, most = b"", len(self.word) - 1
        for at in range(position + 1, len(canvas)):
            text = None if canvas[at] == mask else self.spelling[canvas[at]]
            if text is None or len(after) >= most:
                break
            after += text
        return [n for n in range(1, min(most, len(after)) + 1) if after.startswith(self.word[-n:])]

    def _complete(self, begun: list[int], ended: list[int]) -> Tensor:
        word, size = self.word, len(self.word)
        starts = tuple(word[n:] for n in begun)
        ends = tuple(word[: size - n] for n in ended)
        middles = {word[i : size - j] for i in begun for j in ended if i + j < size}
        tokens = [
            token
            for token, text in enumerate(self.spelling)
            if text and (text.startswith(starts) or text.endswith(ends) or text in middles)
        ]
        return torch.tensor(tokens, dtype=torch.int64)
