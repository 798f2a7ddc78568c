"""Text to ids and back: bytes, characters, byte-level BPE trained here, and any `tokenizer.json`.

All of them are one class around a `tokenizers.Tokenizer`, so a saved model always holds one tokenizer.json. Rules:

- The vocabulary includes [MASK]. A tokenizer that has a mask token keeps it (BERT: 103); otherwise one is added after
  the last id (GPT-2: 50257, size 50258). It never shares an id with PAD, BOS or EOS.
- Text cannot contain special tokens: "[MASK]" or "<|endoftext|>" in a text are encoded as the characters they are.
- The built-in tokenizers end with [EOS], [PAD], [MASK]; [EOS] is also BOS, as GPT-2's <|endoftext|> is. Bytes have the
  ids 0-255. Bytes and BPE are lossless; a character that the corpus does not have becomes U+FFFD (id 0), the unknown
  token.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

from tokenizers import AddedToken, Regex, decoders, models, pre_tokenizers, trainers
from tokenizers import Tokenizer as Backend

from ..config import DataConfig
from ..errors import nearest
from ..types import UserError, Vocab
from .adopted import (
    SPECIAL_NAMES,
    VOCAB_FILE,
    SpecialIds,
    adopt,
    hub_tokenizer,
    is_in_parts,
    read_tokenizer,
    read_vocab_file,
)
from .documents import storable
from .tokenizer import BUILT_IN, CONFIG_FILE, JSON_FILE, MASK, Tokenizer, byte_characters, read_backend, size_of

__all__ = [
    "BPE_SAMPLE", "BUILT_IN", "CONFIG_FILE", "EOS", "JSON_FILE", "MASK", "PAD", "SPECIALS", "SPECIAL_NAMES", "UNKNOWN",
    "VOCAB_FILE", "SpecialIds", "Tokenizer", "adopt", "bpe_tokenizer", "bytes_tokenizer", "chars_tokenizer",
    "hub_tokenizer", "is_in_parts", "make_tokenizer", "on_shelf", "read_backend", "read_tokenizer", "read_vocab_file",
    "size_of",
]  # fmt: skip

BPE_SAMPLE = 100_000_000  # characters of the training split that a BPE is trained on, from its beginning
UNKNOWN = "\ufffd"
EOS, PAD = "[EOS]", "[PAD]"
SPECIALS = (EOS, PAD, MASK)


def make_tokenizer(spec: DataConfig, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """The tokenizer that `data.tokenizer` names; `texts` gives the training split, for those that are made from it."""
    wanted = spec.tokenizer
    if wanted == "bytes":
        return bytes_tokenizer()
    if wanted == "chars":
        return chars_tokenizer(texts())
    if wanted == "bpe":
        return bpe_tokenizer(texts(), spec.vocab_size)
    if wanted == "dna":
        from .genome.bases import dna_tokenizer  # it imports this module

        return dna_tokenizer()
    path = Path(wanted).expanduser()
    place = path if path.exists() else on_shelf(wanted)
    if place is not None:
        return read_tokenizer(place)
    if "/" not in wanted and difflib.get_close_matches(wanted, BUILT_IN, n=1, cutoff=0.6):
        raise UserError(f"unknown tokenizer {wanted!r}{nearest(wanted, BUILT_IN)}")
    if wanted.startswith((".", "/", "~")) or wanted.endswith((".json", ".txt")) or wanted.count("/") > 1:
        raise UserError(f"tokenizer file {wanted} does not exist")
    try:
        return hub_tokenizer(wanted)
    except UserError as error:
        ways = "give data.tokenizer the path of a tokenizer.json, or set UNMASK_TOKENIZERS to a folder that holds"
        raise UserError(f"{error}; {ways} {wanted}/{JSON_FILE}") from None


def on_shelf(name: str | Path) -> Path | None:
    """The tokenizer of this name in the folder $UNMASK_TOKENIZERS, if there is one."""
    shelf = os.environ.get("UNMASK_TOKENIZERS")
    place = Path(shelf or "").expanduser() / name
    return place if shelf and place.exists() else None


def bytes_tokenizer() -> Tokenizer:
    """UTF-8 bytes: byte-level BPE without merges, id = byte."""
    backend = Backend(models.BPE({character: byte for byte, character in enumerate(byte_characters())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _with_specials(backend, "bytes")


def chars_tokenizer(texts: Iterable[str]) -> Tokenizer:
    """The characters of the corpus in the order of their code points, after the unknown token."""
    characters: set[str] = set()
    for text in texts:
        characters.update(text)
    known = sorted(character for character in characters - {UNKNOWN} if not 0xD800 <= ord(character) < 0xE000)
    vocabulary = {character: token for token, character in enumerate([UNKNOWN, *known])}
    backend = Backend(models.WordLevel(vocabulary, unk_token=UNKNOWN))
    backend.pre_tokenizer = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
    backend.decoder = decoders.Fuse()
    return _with_specials(backend, "chars")


def bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE trained on the first `BPE_SAMPLE` characters; a small corpus may give fewer than vocab_size."""
    smallest = 256 + len(SPECIALS)
    if vocab_size < smallest:
        raise UserError(f"data.vocab_size={vocab_size} is too small for a byte-level BPE; give at least {smallest}")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIALS),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_sample(texts, BPE_SAMPLE), trainer)
    return _with_specials(backend, "bpe")


def _sample(texts: Iterable[str], characters: int) -> Iterator[str]:
    for text in texts:
        yield storable(text[:characters])
        characters -= len(text)
        if characters <= 0:
            return


def _with_specials(backend: Backend, kind: str) -> Tokenizer:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIALS])
    eos, pad, mask = (backend.get_vocab()[token] for token in SPECIALS)
    return Tokenizer(backend, Vocab(size_of(backend), mask=mask, pad=pad, bos=eos, eos=eos), kind, kind)
