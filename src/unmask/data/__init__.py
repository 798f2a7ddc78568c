"""Text to rows of tokens: corpora, tokenizers, packing, order."""

from .corpora import CORPORA, Corpus, open_corpus
from .loader import eval_batch, train_batch
from .pack import Prepared, Rows, prepare
from .tokenizers import Tokenizer, make_tokenizer

__all__ = [
    "CORPORA",
    "Corpus",
    "Prepared",
    "Rows",
    "Tokenizer",
    "eval_batch",
    "make_tokenizer",
    "open_corpus",
    "prepare",
    "train_batch",
]
