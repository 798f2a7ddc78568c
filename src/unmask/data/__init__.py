"""Text to rows of tokens: corpora, tokenizers, packing, order."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from .records import CORPORA, Record, record

if TYPE_CHECKING:
    from .corpora import Corpus, open_corpus
    from .loader import eval_batch, train_batch
    from .pack import Prepared, Rows, prepare
    from .tokenizers import Tokenizer, make_tokenizer

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
    "Rows": "pack", "prepare": "pack", "Tokenizer": "tokenizers", "make_tokenizer": "tokenizers",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a room when it is first used: recipes take the records of data sets from here, without torch."""
    if name in _ROOMS:
        import importlib

        value = getattr(importlib.import_module(f".{_ROOMS[name]}", __name__), name)
        globals()[name] = value
        return value
    raise AttributeError(f"module 'unmask.data' has no attribute {name!r}")
