"""The vocabulary of DNA models (Caduceus, HyenaDNA and the paper's diffusion models on them): one token per base.

Lower case reads as upper case, U as T, and every other nucleotide code of the IUPAC (R, Y, ...) as N. Networks pad
their embedding to 16 rows; the ids 12 to 15 are never seen and never predicted.
"""

from __future__ import annotations

from typing import overload

import numpy as np
import torch
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend
from torch import Tensor

from ...types import Vocab
from ..tokenizer import Tokenizer

SPECIALS = ("[CLS]", "[SEP]", "[BOS]", "[MASK]", "[PAD]", "[RESERVED]", "[UNK]")
CLS, SEP, BOS, MASK, PAD, RESERVED, UNK = range(7)
BASES = "ACGT"
A, C, G, T, N = range(7, 12)
AMBIGUOUS = "RYSWKMBDHV"  # IUPAC codes for "one of several bases": they are read as N
VOCAB = Vocab(size=12, mask=MASK, pad=PAD, bos=BOS, eos=SEP)
ROWS = 16  # of an embedding: the vocabulary, padded to a multiple of 8

COMPLEMENT = np.arange(ROWS, dtype=np.int64)  # id to id: A and T change places, C and G do, all others stay
COMPLEMENT[[A, C, G, T]] = [T, G, C, A]


@overload
def reverse_complement(tokens: Tensor) -> Tensor: ...
@overload
def reverse_complement(tokens: np.ndarray) -> np.ndarray: ...


def reverse_complement(tokens: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """The other strand, read in its direction: complement of every token, last axis backwards."""
    if isinstance(tokens, Tensor):
        table = torch.from_numpy(COMPLEMENT).to(tokens.device)
        return table[tokens.long()].flip(-1).to(tokens.dtype)
    return COMPLEMENT.astype(tokens.dtype)[tokens][..., ::-1].copy()


def dna_tokenizer() -> Tokenizer:
    """One token per base, with the paper's ids; what is not a nucleotide code becomes [UNK]."""
    words = [*SPECIALS, *BASES, "N"]
    backend = Backend(models.WordLevel({word: token for token, word in enumerate(words)}, unk_token="[UNK]"))
    backend.normalizer = normalizers.Sequence(
        [
            *(normalizers.Replace(base.lower(), base) for base in BASES),
            normalizers.Replace(Regex("[uU]"), "T"),
            normalizers.Replace(Regex(f"[n{AMBIGUOUS}{AMBIGUOUS.lower()}]"), "N"),
        ]
    )
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    backend.add_special_tokens([AddedToken(word, special=True, normalized=False) for word in SPECIALS])
    return Tokenizer(backend, VOCAB, "dna", "dna")
