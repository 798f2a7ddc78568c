"""Text to ids and back: bytes, characters, byte-level BPE trained here, and any `tokenizer.json`.

All of them are one class around a `tokenizers.Tokenizer`, so a saved model always holds one tokenizer.json. Rules:

- The vocabulary includes [MASK]. A tokenizer that has a mask token keeps it (BERT: 103); otherwise one is added after
  the last id (GPT-2: 50257, size 50258). It never shares an id with PAD, BOS or EOS.
- Text cannot contain special tokens: "[MASK]" or "<|endoftext|>" in a text are encoded as the characters they are.
- Our own tokenizers end with [EOS], [PAD], [MASK]; [EOS] is also BOS, as GPT-2's <|endoftext|> is. Bytes have the ids
  0-255. Bytes and BPE are lossless; a character that the corpus does not have becomes U+FFFD (id 0), the unknown token.
"""

from __future__ import annotations

import difflib
import functools
import hashlib
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import asdict
from itertools import count, pairwise
from pathlib import Path
from typing import Any

import numpy as np
from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors, trainers
from tokenizers import Tokenizer as Backend

from ..config import DataConfig, nearest
from ..types import UserError, Vocab
from .cache import read_json, replacing, write_json
from .documents import storable
from .online import hub, reason

BPE_SAMPLE = 100_000_000  # characters of the training split that a BPE is trained on, from its beginning
UNKNOWN = "\ufffd"
EOS, PAD, MASK = "[EOS]", "[PAD]", "[MASK]"
OWN_SPECIALS = (EOS, PAD, MASK)
BUILT_IN = ("bytes", "chars", "bpe")
USUAL = {
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>"),
    "bos": ("[CLS]", "[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<cls>"),
    "eos": ("[SEP]", "[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}
FORMAT = 1
CONFIG_FILE, JSON_FILE, VOCAB_FILE = "tokenizer_config.json", "tokenizer.json", "vocab.txt"
IN_BRACKETS = re.compile(r"\[\S+\]|<\S+>")  # how a vocab.txt writes tokens that are no text


class Tokenizer:
    """A tokenizer with its special ids; immutable."""

    def __init__(self, backend: Backend, vocab: Vocab, name: str, kind: str = "json") -> None:
        backend.no_truncation()  # published files often cut at 128 or 512 tokens
        backend.no_padding()
        backend.encode_special_tokens = True  # "[MASK]" in a text is text
        self._backend = backend
        self.vocab = vocab
        self.name = name
        self.kind = kind  # bytes, chars, bpe or json

    def __repr__(self) -> str:
        return f"Tokenizer({self.name!r}, {self.vocab})"

    def __reduce__(self) -> tuple[Any, ...]:  # the library's own pickle forgets encode_special_tokens
        return _unpickle, (self._backend.to_str(), self.vocab, self.name, self.kind)

    def encode(self, text: str) -> list[int]:
        """The ids of a text, without special tokens around it or in it."""
        return self.encode_batch([text])[0]

    def offsets(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """The ids of a text, and the characters (from, to) that each of them stands for."""
        found = self._backend.encode(storable(text), add_special_tokens=False)
        return list(found.ids), list(found.offsets)

    def encode_batch(self, texts: Iterable[str]) -> list[list[int]]:
        """The ids of several texts."""
        return [ids.tolist() for ids in self.arrays(list(texts))]

    def arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        """`encode_batch` as arrays, with a short cut for bytes and characters (ten times faster)."""
        try:
            return self._arrays(texts)
        except (UnicodeEncodeError, TypeError):  # a lone surrogate
            return self._arrays([storable(text) for text in texts])

    def _arrays(self, texts: Sequence[str]) -> list[np.ndarray]:
        if self.kind == "bytes":
            return [np.frombuffer(text.encode(), dtype=np.uint8).astype(np.uint32) for text in texts]
        if self.kind == "chars":
            return [self._table[np.frombuffer(text.encode("utf-32-le"), dtype="<u4")] for text in texts]
        found = self._backend.encode_batch_fast(list(texts), add_special_tokens=False)
        arrays = (np.array(encoding.ids, dtype=np.uint32) for encoding in found)
        mask = self.vocab.mask
        return [self._apart(text) if (ids == mask).any() else ids for text, ids in zip(texts, arrays, strict=True)]

    def _apart(self, text: str) -> np.ndarray:
        """Some vocabularies hold the mask token as an ordinary word: take that word apart."""
        cuts = [match.start() + 1 for match in re.finditer(re.escape(self.piece(self.vocab.mask)), text)]
        parts = [text[a:b] for a, b in pairwise([0, *cuts, len(text)])] if cuts else list(text)
        found = self._backend.encode_batch_fast(parts, add_special_tokens=False)
        ids = np.array([token for encoding in found for token in encoding.ids], dtype=np.uint32)
        return ids[ids != self.vocab.mask]

    @functools.cached_property
    def _table(self) -> np.ndarray:
        """Code point to id, for characters."""
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
        """What to show for each token on its own; a part of a UTF-8 character is shown as its bytes (⟨e2 82⟩)."""
        return [self._display[int(token)] for token in ids]

    @functools.cached_property
    def _display(self) -> list[str]:
        special = self._backend.get_added_tokens_decoder()
        decoder = str(json.loads(self._backend.to_str()).get("decoder") or "")
        return [
            self.piece(token) if token in special else _shown(self.piece(token), decoder)
            for token in range(self.vocab.size)
        ]

    @functools.cached_property
    def digest(self) -> str:
        """Content hash: equal for tokenizers that give the same ids."""
        content = json.dumps([json.loads(self._backend.to_str()), asdict(self.vocab)], sort_keys=True)
        return hashlib.sha256(content.encode()).hexdigest()

    def save(self, folder: str | Path) -> None:
        """Write tokenizer.json and tokenizer_config.json (which `transformers` reads too)."""
        folder = Path(folder)
        folder.mkdir(parents=True, exist_ok=True)
        ours = {"format": FORMAT, "name": self.name, "kind": self.kind, "vocab": asdict(self.vocab)}
        with replacing(folder / JSON_FILE) as temporary:
            temporary.write_text(self._backend.to_str(pretty=True), encoding="utf-8")
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
        config = _read_config(folder / CONFIG_FILE, must_exist=True)
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


def make_tokenizer(spec: DataConfig, texts: Callable[[], Iterable[str]]) -> Tokenizer:
    """The tokenizer that `data.tokenizer` names; `texts` gives the training split, for those that are made from it."""
    wanted = spec.tokenizer
    if wanted == "bytes":
        return bytes_tokenizer()
    if wanted == "chars":
        return chars_tokenizer(texts())
    if wanted == "bpe":
        return bpe_tokenizer(texts(), spec.vocab_size)
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
    """The tokenizer of this name in the folder $UNMASK_TOKENIZERS, if it is there."""
    shelf = os.environ.get("UNMASK_TOKENIZERS")
    place = Path(shelf or "").expanduser() / name
    return place if shelf and place.exists() else None


def bytes_tokenizer() -> Tokenizer:
    """UTF-8 bytes: byte-level BPE without merges, id = byte."""
    backend = Backend(models.BPE({character: byte for byte, character in enumerate(_byte_characters())}, []))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    backend.decoder = decoders.ByteLevel()
    return _own(backend, "bytes")


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
    return _own(backend, "chars")


def bpe_tokenizer(texts: Iterable[str], vocab_size: int) -> Tokenizer:
    """Byte-level BPE trained on the first `BPE_SAMPLE` characters; a small corpus may give fewer than vocab_size."""
    smallest = 256 + len(OWN_SPECIALS)
    if vocab_size < smallest:
        raise UserError(f"data.vocab_size={vocab_size} is too small for a byte-level BPE; give at least {smallest}")
    backend = Backend(models.BPE())
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=True)
    backend.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(OWN_SPECIALS),
        min_frequency=2,
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    backend.train_from_iterator(_sample(texts, BPE_SAMPLE), trainer)
    return _own(backend, "bpe")


def _sample(texts: Iterable[str], characters: int) -> Iterator[str]:
    for text in texts:
        yield storable(text[:characters])
        characters -= len(text)
        if characters <= 0:
            return


def _own(backend: Backend, kind: str) -> Tokenizer:
    backend.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in OWN_SPECIALS])
    eos, pad, mask = (backend.get_vocab()[token] for token in OWN_SPECIALS)
    return Tokenizer(backend, Vocab(size_of(backend), mask=mask, pad=pad, bos=eos, eos=eos), kind, kind)


def read_tokenizer(path: Path, own_mask: bool = False) -> Tokenizer:
    """A tokenizer.json or vocab.txt, or a folder with one; special tokens as its neighbours say, else by usual names.

    With `own_mask` it must have a mask token: the embedding of its network has no row for one that is added.
    """
    file = path
    if path.is_dir():
        file = path / (VOCAB_FILE if (path / VOCAB_FILE).is_file() and not (path / JSON_FILE).is_file() else JSON_FILE)
    named = file.name in (JSON_FILE, VOCAB_FILE)
    config = _read_config(file.parent / CONFIG_FILE) if named else {}
    if "unmask" in config and file.name == JSON_FILE:
        return Tokenizer.load(file.parent)
    name = file.parent.name if named else file.stem
    if file.suffix == ".txt":
        return adopt(read_vocab_file(file, config), name, config, own_mask=True)
    return adopt(read_backend(file), name, config, own_mask)


def read_vocab_file(file: Path, config: dict[str, Any]) -> Backend:
    """A vocab.txt, a token a line: BERT's WordPiece; or single characters, where all tokens that are text are that."""
    try:
        with file.open(encoding="utf-8") as lines:
            vocabulary = {line.rstrip("\n"): token for token, line in enumerate(lines)}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the tokenizer file {file}: {reason(error)}") from None
    unknown = next((token for token in ("[UNK]", "<unk>") if token in vocabulary), None)
    if unknown is None:
        raise UserError(f"{file} is no vocabulary of BERT's kind: it has no [UNK], a token a line")
    text = [token for token in vocabulary if token and not IN_BRACKETS.fullmatch(token)]
    if text and all(len(token) == 1 for token in text):
        backend = Backend(models.WordLevel(vocabulary, unk_token=unknown))
        apart = pre_tokenizers.Split(Regex(r"[\s\S]"), "isolated")
        spaces = [] if " " in vocabulary else [pre_tokenizers.WhitespaceSplit()]
        backend.pre_tokenizer = pre_tokenizers.Sequence([*spaces, apart])
        backend.decoder = decoders.Fuse()
    else:
        backend = Backend(models.WordPiece(vocabulary, unk_token=unknown, max_input_chars_per_word=100))
        backend.normalizer = normalizers.BertNormalizer(
            handle_chinese_chars=config.get("tokenize_chinese_chars", True) is not False,
            strip_accents=config.get("strip_accents"),
            lowercase=config.get("do_lower_case", True) is not False,
        )
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        backend.decoder = decoders.WordPiece()
    first, last = (_special(role, config, vocabulary) for role in ("bos", "eos"))
    if first and last:  # for those who read it with transformers
        ends = [(first, vocabulary[first]), (last, vocabulary[last])]
        pair = f"{first} $A {last} $B:1 {last}:1"
        backend.post_processor = processors.TemplateProcessing(f"{first} $A {last}", pair, ends)
    backend.add_special_tokens([AddedToken(unknown, special=True, normalized=False)])
    return backend


def hub_tokenizer(name: str, own_mask: bool = False) -> Tokenizer:
    """The tokenizer.json of a model on the Hugging Face Hub; `own_mask` as in `read_tokenizer`."""
    from huggingface_hub import hf_hub_download

    with hub() as online:
        try:
            file = Path(hf_hub_download(name, JSON_FILE))
        except (OSError, ValueError) as error:
            known = f"{name!r} is no built-in tokenizer ({', '.join(BUILT_IN)}) and no file"
            there = (
                f"the Hugging Face Hub has no {JSON_FILE} for it: {reason(error)}"
                if online
                else "the Hugging Face Hub cannot be reached"
            )
            raise UserError(f"{known}, and {there}") from None
        try:
            config = _read_config(Path(hf_hub_download(name, CONFIG_FILE)))
        except (OSError, ValueError):  # not every model has one
            config = {}
    return adopt(read_backend(file), name, config, own_mask)


def adopt(backend: Backend, name: str, config: dict[str, Any], own_mask: bool = False) -> Tokenizer:
    """A tokenizer from elsewhere, with a mask token of its own; `own_mask`: it is an error if it has none."""
    tokens = backend.get_vocab()
    if not tokens:
        raise UserError(f"tokenizer {name!r} has an empty vocabulary")
    ids: dict[str, int | None] = {
        role: tokens.get(_special(role, config, tokens)) for role in ("mask", "pad", "bos", "eos")
    }
    bos = ids["eos"] if ids["bos"] is None else ids["bos"]
    eos = ids["bos"] if ids["eos"] is None else ids["eos"]
    backend.add_special_tokens([backend.id_to_token(token) for token in ids.values() if token is not None])
    mask = ids["mask"]
    if own_mask and (mask is None or mask in (ids["pad"], bos, eos)):
        raise UserError(_no_mask(name))
    if mask is None or mask in (ids["pad"], bos, eos):  # an id of its own, whatever the file says
        content = next(text for i in count() if (text := MASK if not i else f"[MASK{i}]") not in tokens)
        backend.add_special_tokens([AddedToken(content, special=True, normalized=False)])
        mask = int(backend.get_vocab()[content])
        if mask in tokens.values():
            raise UserError(f"tokenizer {name!r} numbers its tokens with gaps, so that no [MASK] can be added to it")
    return Tokenizer(backend, Vocab(size_of(backend), mask=mask, pad=ids["pad"], bos=bos, eos=eos), name)


def _no_mask(name: str) -> str:
    return (
        f"tokenizer {name!r} has no mask token ({', '.join(USUAL['mask'])}), and its network no row for one; if it is "
        f'another, say so in its {CONFIG_FILE}: {{"mask_token": "..."}}; else add one with transformers: '
        'tokenizer.add_special_tokens({"mask_token": "[MASK]"}), model.resize_token_embeddings(len(tokenizer)), and '
        "save both"
    )


def _special(role: str, config: dict[str, Any], tokens: dict[str, int]) -> str:
    """The token for a role: what the file declares, else the first usual name in the vocabulary, else ''."""
    also = {"bos": ("bos_token", "cls_token"), "eos": ("eos_token", "sep_token")}
    declared = [config.get(key) for key in also.get(role, (f"{role}_token",))]
    names = [str(token.get("content")) if isinstance(token, dict) else token for token in declared]
    return next((token for token in (*names, *USUAL[role]) if token and token in tokens), "")


def read_backend(file: Path) -> Backend:
    """The content of a tokenizer.json."""
    if not file.is_file():
        raise UserError(f"tokenizer file {file} does not exist")
    try:
        return Backend.from_file(str(file))
    except Exception as error:  # all that the library raises
        raise UserError(f"{file} is damaged or not a tokenizer.json: {reason(error)}") from None


def _read_config(file: Path, must_exist: bool = False) -> dict[str, Any]:
    if must_exist and not file.is_file():
        raise UserError(f"tokenizer file {file} does not exist")
    config = read_json(file)
    if config is None and file.exists():
        raise UserError(f"{file} is damaged: it is not a JSON object")
    return config or {}


def size_of(backend: Backend) -> int:
    """How many rows an embedding needs; ids may have gaps."""
    return max(backend.get_vocab().values(), default=-1) + 1


@functools.cache
def _byte_characters() -> tuple[str, ...]:
    """How byte-level vocabularies write each byte: itself where it is visible in Latin-1, else from U+0100 on."""
    visible = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    others = (chr(0x100 + i) for i in count())
    return tuple(chr(byte) if byte in visible else next(others) for byte in range(256))


def _shown(piece: str, decoder: str) -> str:
    """A token of the vocabulary as a reader wants to see it."""
    if "ByteLevel" in decoder:
        byte = {character: value for value, character in enumerate(_byte_characters())}
        if not all(character in byte for character in piece):
            return piece
        text = bytes(byte[character] for character in piece).decode("utf-8", "surrogateescape")
        return re.sub("[\udc80-\udcff]+", lambda bad: f"⟨{bad[0].encode('utf-8', 'surrogateescape').hex(' ')}⟩", text)
    if "WordPiece" in decoder:
        return piece.removeprefix("##") if piece.startswith("##") else f" {piece}"
    return piece.replace("▁", " ")
