"""Text to rows of tokens: corpora, tokenizers, packing, order."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of
from .records import CORPORA, Record, record

if TYPE_CHECKING:
    from .corpora import Corpus, open_corpus
    from .loader import eval_batch, train_batch
    from .pack import Prepared, Rows, prepare
    from .tokenization import Tokenizer, make_tokenizer

__all__ = [
    "CORPORA",
    "Corpus",
    "Prepared",
    "Record",
    "Rows",
    "Tokenizer",
    "eval_batch",
    "make_tokenizer",
    "open_corpus",
    "prepare",
    "record",
    "train_batch",
]

_ROOMS = {
    "Corpus": "corpora", "open_corpus": "corpora", "eval_batch": "loader", "train_batch": "loader", "Prepared": "pack",
    "Rows": "pack", "prepare": "pack", "Tokenizer": "tokenization", "make_tokenizer": "tokenization",
}  # fmt: skip

__getattr__ = names_of(__name__, _ROOMS)  # recipes take the records of data sets from here, without torch
