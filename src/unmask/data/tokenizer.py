"""One class around a `tokenizers.Tokenizer`, and its two files."""

from __future__ import annotations

import functools
import hashlib
import json
import re
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import Tokenizer as Backend

from ..files import read_json_or_none, write_json, write_text
from ..types import UserError, Vocab
from .documents import storable
from .online import reason

MASK = "[MASK]"
BUILT_IN = ("bytes", "chars", "bpe", "dna")
FORMAT = 1
LARGEST = 1 << 29  # bytes of a file of a tokenizer
CONFIG_FILE, JSON_FILE = "tokenizer_config.json", "tokenizer.json"


class Tokenizer:
    """A tokenizer with its special ids; immutable."""

    def __init__(self, backend: Backend, vocab: Vocab, name: str, kind: str = "json") -> None:
        backend.no_truncation()  # published files often cut at 128 or 512 tokens
        backend.no_padding()
        backend.encode_special_tokens = True  # "[MASK]" in a text is text
        self._backend = backend
        self.vocab = vocab
        self.name = name
        self.kind = kind  # bytes, chars, bpe, dna or json

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, {self.vocab})"

    def __reduce__(self) -> tuple[Any, ...]:  # the library's own pickle forgets encode_special_tokens
        return _unpickle, (self._backend.to_str(), self.vocab, self.name, self.kind)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it or in it."""
        return self.encode_batch([text])[0]

    def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the characters (from, to) that each of them stands for."""
        encoding = self._backend.encode(storable(text), add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    def with_special(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """`offsets`, for a text in which special tokens are meant as such: what a chat template writes."""
        encoding = self._reads_special.encode(storable(text), add_special_tokens=False)
        return list(encoding.ids), list(encoding.offsets)

    @functools.cached_property
    def _reads_special(self) -> Backend:
        backend = Backend.from_str(self._backend.to_str())
        backend.encode_special_tokens = False
        return backend

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of several texts."""
        return [ids.tolist() for ids in self.arrays(list(texts))]

    def arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode_batch` as arrays, with a short cut for bytes, characters and bases (ten times faster)."""
        try:
            return self._arrays(texts)
        except (UnicodeEncodeError, TypeError):  # a lone surrogate
            return self._arrays([storable(text) for text in texts])

    def _arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self.kind == "bytes":
            return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]
        if self.kind in ("chars", "dna"):
            return [self._table[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")] for text in texts]
        encodings = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        arrays = (np.array(encoding.ids, dtype=np.uint32) for encoding in encodings)
        mask = self.vocab.mask
        return [self._apart(text) if (ids == mask).any() else ids for text, ids in zip(texts, arrays, strict=True)]

    def _apart(self, text: str) -> np.ndarray:
        """Some vocabularies hold the mask token as an ordinary word: take that word apart."""
        cuts = [match.start() + 1 for match in re.finditer(re.escape(self.piece(self.vocab.mask)), text)]
        parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])] if cuts else list(text)
        encodings = self._backend.encode_batch_fast(parts, add_special_tokens=False)
        ids = np.array([token for encoding in encodings for token in encoding.ids], dtype=np.uint32)
        return ids[ids != self.vocab.mask]

    @functools.cached_property
    def _table(self) -> np.ndarray:
        """Code point to id, for characters and bases."""
        if self.kind == "dna":  # several letters are one token: a, A; n, N, R
            table = np.full(0x110000, self._backend.token_to_id("[UNK]"), dtype=np.uint32)
            table[:128] = [self._backend.encode(chr(i), add_special_tokens=False).ids[0] for i in range(128)]
            return table
        table = np.zeros(0x110000, dtype=np.uint32)
        for piece, token in self._backend.get_vocab(with_added_tokens=False).items():
            if len(piece) == 1:
                table[ord(piece)] = token
        return table

    def decode(self, ids: Iterable[int], skip_special: bool = True) -> str:
        """The text of any ids; special tokens are left out, or written by name."""
        return str(self._backend.decode([int(token) for token in ids], skip_special_tokens=skip_special))

    def piece(self, token: int) -> str:
        """A token as the vocabulary writes it."""
        return self._backend.id_to_token(token) or ""

    def pieces(self, ids: Iterable[int]) -> list[str]:
        """What to show for each token alone; a part of a UTF-8 character is shown as its bytes (⟨e2 82⟩)."""
        return [self._display[int(token)] for token in ids]

    @functools.cached_property
    def _display(self) -> list[str]:
        special, decoder = self._backend.get_added_tokens_decoder(), self._decoder
        return [
            self.piece(token) if token in special else _shown(self.piece(token), decoder)
            for token in range(self.vocab.size)
        ]

    @functools.cached_property
    def _decoder(self) -> str:
        return str(json.loads(self._backend.to_str()).get("decoder") or "")

    @functools.cached_property
    def special(self) -> frozenset[int]:
        """The tokens that are not text: added ones, those with a role, and the one for what is not known."""
        vocab = self.vocab
        roles = (vocab.mask, vocab.pad, vocab.bos, vocab.eos, self.unknown)
        return frozenset(self._backend.get_added_tokens_decoder()) | {token for token in roles if token is not None}

    def has_special(self, piece: str) -> bool:
        """Whether a special token is written in this way."""
        return self._backend.token_to_id(piece) in self.special

    @functools.cached_property
    def spelling(self) -> list[bytes | None]:
        """What each token adds to a text, as UTF-8; an end of text is a line break, other special tokens have None."""
        special = self._backend.get_added_tokens_decoder()
        byte, byte_level = _byte_of(), "ByteLevel" in self._decoder
        after = None if byte_level else next((t for t in range(self.vocab.size) if _is_word(self._display[t])), None)
        result: list[bytes | None] = []
        for token, shown in enumerate(self._display):
            piece = self.piece(token)
            if token in (self.vocab.eos, self.vocab.bos):
                result.append(b"\n")
            elif token in special or token in (self.vocab.mask, self.vocab.pad):
                result.append(None)
            elif byte_level and all(character in byte for character in piece):
                result.append(bytes(byte[character] for character in piece))
            elif "ByteFallback" in self._decoder and (one := re.fullmatch("<0x([0-9A-Fa-f]{2})>", piece)):
                result.append(bytes.fromhex(one[1]))
            elif after is not None and self.kind == "json":  # as its decoder writes it, which may leave out a space
                before, both = self.decode([after]), self.decode([after, token])
                result.append(both[len(before) :].encode() if both.startswith(before) else shown.encode())
            else:
                result.append(shown.encode())
        return result

    @functools.cached_property
    def digest(self) -> str:
        """Content hash: equal for tokenizers that give the same ids."""
        content = json.dumps([json.loads(self._backend.to_str()), asdict(self.vocab)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    @functools.cached_property
    def never_hidden(self) -> tuple[int, ...]:
        """Ids that say nothing, as N of a genome: a model sees them, and never has to guess them."""
        unknown = self._backend.token_to_id("N") if self.kind == "dna" else None
        return () if unknown is None else (unknown,)

    @functools.cached_property
    def adds_bos(self) -> bool:
        """Whether a text begins with BOS where its tokenizer.json is used with special tokens, as Llama's does."""
        return self._backend.encode("a", add_special_tokens=True).ids[:1] == [self.vocab.bos]

    @functools.cached_property
    def unknown(self) -> int | None:
        """The id for what the tokenizer does not know; None if it knows every text."""
        if self.kind == "chars":
            return 0
        model = json.loads(self._backend.to_str())["model"]
        if isinstance(model.get("unk_id"), int):  # a Unigram model
            return int(model["unk_id"])
        piece = model.get("unk_token")
        return None if piece is None else self._backend.token_to_id(piece)

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json (which `transformers` reads too)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ours = {"format": FORMAT, "name": self.name, "kind": self.kind, "vocab": asdict(self.vocab)}
        write_text(folder / JSON_FILE, self._backend.to_str(pretty=True))
        write_json(
            folder / CONFIG_FILE, {"tokenizer_class": "PreTrainedTokenizerFast", **self._named(), "unmask": ours}
        )

    def _named(self) -> dict[str, str]:
        roles = {role: token for role, token in asdict(self.vocab).items() if role != "size" and token is not None}
        return {f"{role}_token": self.piece(token) for role, token in roles.items()}

    @classmethod
    def load(cls, folder: str | Path) -> Tokenizer:
        """Read what `save` wrote."""
        folder = Path(folder)
        backend = read_backend(folder / JSON_FILE)
        config = read_config(folder / CONFIG_FILE, must_exist=True)
        try:
            ours = config["unmask"]
            tokenizer = cls(backend, Vocab(**ours["vocab"]), str(ours["name"]), str(ours["kind"]))
        except (TypeError, KeyError, ValueError):
            raise UserError(
                f"{folder / CONFIG_FILE} is damaged: it does not describe a tokenizer that was saved here"
            ) from None
        agree = all(config.get(role) == piece for role, piece in tokenizer._named().items())
        if not agree or size_of(backend) != tokenizer.vocab.size:
            raise UserError(
                f"{folder / JSON_FILE} and {folder / CONFIG_FILE} do not belong together; restore both files"
            )
        return tokenizer


def _unpickle(content: str, vocab: Vocab, name: str, kind: str) -> Tokenizer:
    return Tokenizer(Backend.from_str(content), vocab, name, kind)


def check_size(file: Path) -> None:
    """One sentence, before it is read, for a file that is no tokenizer."""
    if file.is_file() and (size := file.stat().st_size) > LARGEST:
        raise UserError(f"{file} has {size:,} bytes, more than any tokenizer; give a tokenizer.json or a vocab.txt")


def read_backend(file: Path) -> Backend:
    """The content of a tokenizer.json."""
    if not file.is_file():
        raise UserError(f"tokenizer file {file} does not exist")
    check_size(file)
    try:
        return Backend.from_file(str(file))
    except Exception as error:  # all that the library raises
        raise UserError(f"{file} is damaged or not a tokenizer.json: {reason(error)}") from None


def read_config(file: Path, must_exist: bool = False) -> dict[str, Any]:
    """The content of a tokenizer_config.json."""
    if must_exist and not file.is_file():
        raise UserError(f"tokenizer file {file} does not exist")
    config = read_json_or_none(file)
    if config is None and file.exists():
        raise UserError(f"{file} is damaged: it is not a JSON object")
    return config or {}


def size_of(backend: Backend) -> int:
    """How many rows an embedding needs; ids may have gaps."""
    return max(backend.get_vocab().values(), default=-1) + 1


@functools.cache
def byte_characters() -> tuple[str, ...]:
    """How byte-level vocabularies write each byte: itself where it is visible in Latin-1, else from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + i) for i in count())
    return tuple(chr(byte) if byte in visible else next(others) for byte in range(256))


@functools.cache
def _byte_of() -> dict[str, int]:
    """The byte that each character of a byte-level vocabulary stands for."""
    return {character: value for value, character in enumerate(byte_characters())}


def _is_word(shown: str) -> bool:
    """Whether a token is letters alone, so that a decoder changes nothing about what follows it."""
    return shown.strip().isalpha()


def _shown(piece: str, decoder: str) -> str:
    """A token of the vocabulary as a reader wants to see it."""
    if "ByteLevel" in decoder:
        byte = _byte_of()
        if not all(character in byte for character in piece):
            return piece
        text = bytes(byte[character] for character in piece).decode("utf-8", "surrogateescape")
        return re.sub("[\udc80-\udcff]+", lambda bad: f"⟨{bad[0].encode('utf-8', 'surrogateescape').hex(' ')}⟩", text)
    if "WordPiece" in decoder:
        return piece.removeprefix("##") if piece.startswith("##") else f" {piece}"
    return piece.replace("▁", " ")
