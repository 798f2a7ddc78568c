"""Text to rows of tokens: corpora, tokenizers, packing, order."""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

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

__path__.append(f"{__path__[0]}/../compat/data")  # old names, for one release

_MODULES = {
    "Corpus": "corpora", "open_corpus": "corpora", "eval_batch": "loader", "train_batch": "loader", "Prepared": "pack",
    "Rows": "pack", "prepare": "pack", "Tokenizer": "tokenization", "make_tokenizer": "tokenization",
}  # fmt: skip


def __getattr__(name: str) -> Any:
    """Import a name when it is first used: recipes take the records of data sets from here, without torch."""
    if name not in _MODULES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_MODULES[name]}", __name__), name)
