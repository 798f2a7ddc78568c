"""How much of a text a tokenizer does not know: counted where text becomes ids, in every protocol, never silent."""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

import numpy as np

from ..errors import UserError
from .tokenizer import Tokenizer

MUCH = 0.01  # share of unknown tokens above which there is a warning
NOT_BASES = 0.05  # share of letters that are not bases above which a text is not DNA

log = logging.getLogger(__name__)


def count_unknown(tokenizer: Tokenizer, ids: Iterable[int] | np.ndarray) -> int:
    """How many of the tokens stand for what the tokenizer does not know."""
    if tokenizer.unknown is None:
        return 0
    tokens = ids if isinstance(ids, np.ndarray) else np.fromiter(ids, dtype=np.int64)
    return int((tokens == tokenizer.unknown).sum())


def unknown_facts(tokenizer: Tokenizer, unknown: int, tokens: int) -> dict[str, Any]:
    """For protocols: the share of tokens that are unknown; nothing for a tokenizer that knows everything."""
    return {} if tokenizer.unknown is None or not tokens else {"unknown_tokens": round(unknown / tokens, 6)}


def warn_unknown(tokenizer: Tokenizer, unknown: int, tokens: int, what: str) -> bool:
    """One sentence if much of a text is unknown to the tokenizer; whether there was one."""
    if not tokens or unknown / tokens <= MUCH or tokenizer.unknown is None:
        return False
    log.warning(
        "%.1f %% of the tokens of %s are %s: the tokenizer %r does not know what stands there, and the model sees "
        "nothing of it; check its vocabulary, capitals and language",
        100 * unknown / tokens,
        what,
        tokenizer.piece(tokenizer.unknown),
        tokenizer.name,
    )
    return True


def check_bases(tokenizer: Tokenizer, unknown: int, tokens: int, source: str) -> None:
    """Raise if a text for a model of DNA is not DNA."""
    if tokenizer.kind == "dna" and tokens and unknown / tokens > NOT_BASES:
        raise UserError(
            f"{source} is not DNA: {unknown / tokens:.0%} of its letters are not bases (A, C, G, T, N or another "
            "nucleotide code); give sequences, one per line, or set data.tokenizer for text, as data.tokenizer=bpe"
        )


class UnknownTokens:
    """What a tokenizer did not know of the texts that were given so far; warns once."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.tokenizer, self.tokens, self.unknown, self.warned = tokenizer, 0, 0, False

    def add(self, ids: list[int]) -> None:
        """Count the tokens of a text."""
        self.tokens += len(ids)
        self.unknown += count_unknown(self.tokenizer, ids)
        if not self.warned:
            self.warned = warn_unknown(self.tokenizer, self.unknown, self.tokens, "the given text")

    def facts(self) -> dict[str, Any]:
        """For protocols."""
        return unknown_facts(self.tokenizer, self.unknown, self.tokens)
