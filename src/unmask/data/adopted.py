"""Tokenizers that others made: a tokenizer.json, a vocab.txt, a model on the Hub; each gets a mask token."""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, decoders, models, normalizers, pre_tokenizers, processors
from tokenizers import Tokenizer as Backend

from ..types import UserError, Vocab
from .byte_level import MERGES, VOCAB, read_files
from .online import hub, reason
from .tokenizer import (
    BUILT_IN,
    CONFIG_FILE,
    JSON_FILE,
    MASK,
    Tokenizer,
    check_size,
    read_backend,
    read_config,
    size_of,
)

VOCAB_FILE = "vocab.txt"
IN_BRACKETS = re.compile(r"\[\S+\]|<\S+>")  # how a vocab.txt writes tokens that are not text
CASED = 0.01  # share of entries with capitals from which a vocabulary is cased
SPECIAL_NAMES = {
    "mask": ("[MASK]", "<mask>", "<|mask|>"),
    "pad": ("[PAD]", "<pad>", "<|pad|>", "<|padding|>"),
    "bos": ("[CLS]", "[BOS]", "<s>", "<bos>", "<|begin_of_text|>", "<|startoftext|>", "<cls>"),
    "eos": ("[SEP]", "[EOS]", "</s>", "<eos>", "<|end_of_text|>", "<|endoftext|>"),
}


@dataclass(frozen=True)
class SpecialIds:
    """What the config.json of a model says of special tokens."""

    mask: int | None = None
    pad: int | None = None
    bos: int | None = None
    eos: int | None = None
    unnamed_mask: int | None = None  # the id of [MASK] if neither config.json nor the tokenizer names it


def read_tokenizer(path: Path, require_mask: bool = False, ids: SpecialIds | None = None) -> Tokenizer:
    """A tokenizer.json or vocab.txt, or a folder with one; special tokens as its config says, else by common names.

    With `require_mask` it must have a mask token: the embedding of its network has no row for one that is added.
    A folder may also have the vocab.json and merges.txt of a byte-level BPE. `ids` as in `adopt`.
    """
    file = path
    if path.is_dir():
        file = path / (VOCAB_FILE if (path / VOCAB_FILE).is_file() and not (path / JSON_FILE).is_file() else JSON_FILE)
    named = file.name in (JSON_FILE, VOCAB_FILE)
    config = read_config(file.parent / CONFIG_FILE) if named else {}
    if "unmask" in config and file.name == JSON_FILE:
        return Tokenizer.load(file.parent)
    name = file.parent.name if named else file.stem
    if file.suffix == ".txt":
        return adopt(read_vocab_file(file, config), name, config, require_mask=True)
    parts = path.is_dir() and not file.is_file() and is_in_parts(path)
    backend = read_files(path, config) if parts else read_backend(file)
    return adopt(backend, name, config, require_mask, ids)


def is_in_parts(folder: Path) -> bool:
    """Whether a folder holds a byte-level BPE as vocab.json and merges.txt."""
    return (folder / VOCAB).is_file() and (folder / MERGES).is_file()


def read_vocab_file(file: Path, config: dict[str, Any]) -> Backend:
    """A vocab.txt, one token per line: BERT's WordPiece, or characters where all its text tokens are one character."""
    check_size(file)
    try:
        with file.open(encoding="utf-8") as lines:
            vocabulary = {line.rstrip("\n"): token for token, line in enumerate(lines)}
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the tokenizer file {file}: {reason(error)}") from None
    unknown = next((token for token in ("[UNK]", "<unk>") if token in vocabulary), None)
    if unknown is None:
        raise UserError(f"{file} is not a vocabulary like BERT's, with one token per line: it has no [UNK]")
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
            lowercase=_lower_cases(text, config),
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


def _lower_cases(text: list[str], config: dict[str, Any]) -> bool:
    """Whether a text is lower-cased: never where entries have capitals, which no text could reach then."""
    cased = sum(token != token.lower() for token in text)
    return config.get("do_lower_case", True) is not False and cased < CASED * len(text)


def hub_tokenizer(name: str, require_mask: bool = False, ids: SpecialIds | None = None) -> Tokenizer:
    """The tokenizer.json of a model on the Hugging Face Hub; `require_mask` and `ids` as in `read_tokenizer`."""
    from huggingface_hub import hf_hub_download

    with hub() as online:
        try:
            file = Path(hf_hub_download(name, JSON_FILE))
        except (OSError, ValueError) as error:
            known = f"{name!r} is not a built-in tokenizer ({', '.join(BUILT_IN)}) or a file"
            absent = (
                f"the Hugging Face Hub has no {JSON_FILE} for it: {reason(error)}"
                if online
                else "the Hugging Face Hub cannot be reached"
            )
            raise UserError(f"{known}, and {absent}") from None
        try:
            config = read_config(Path(hf_hub_download(name, CONFIG_FILE)))
        except (OSError, ValueError):  # not every model has one
            config = {}
    return adopt(read_backend(file), name, config, require_mask, ids)


def adopt(
    backend: Backend,
    name: str,
    config: dict[str, Any],
    require_mask: bool = False,
    ids: SpecialIds | None = None,
) -> Tokenizer:
    """A tokenizer from elsewhere, with a mask token; with `require_mask` it is an error if it has none.

    The mask id that its model states must be that of its mask token; other stated ids are for what it does not name.
    """
    if not backend.get_vocab():
        raise UserError(f"tokenizer {name!r} has an empty vocabulary")
    if ids is not None:
        config = _with_ids(backend, name, config, ids)
    tokens = backend.get_vocab()
    special: dict[str, int | None] = {
        role: tokens.get(_special(role, config, tokens)) for role in ("mask", "pad", "bos", "eos")
    }
    bos = special["eos"] if special["bos"] is None else special["bos"]
    eos = special["bos"] if special["eos"] is None else special["eos"]
    backend.add_special_tokens([backend.id_to_token(token) for token in special.values() if token is not None])
    mask = special["mask"]
    if require_mask and (mask is None or mask in (special["pad"], bos, eos)):
        raise UserError(_no_mask(name))
    if mask is None or mask in (
        special["pad"],
        bos,
        eos,
    ):  # it needs an id that nothing else has, whatever the file says
        content = next(text for i in count() if (text := MASK if not i else f"[MASK{i}]") not in tokens)
        backend.add_special_tokens([AddedToken(content, special=True, normalized=False)])
        mask = int(backend.get_vocab()[content])
        if mask in tokens.values():
            raise UserError(f"tokenizer {name!r} numbers its tokens with gaps, so that no [MASK] can be added to it")
    return Tokenizer(backend, Vocab(size_of(backend), mask=mask, pad=special["pad"], bos=bos, eos=eos), name)


def _with_ids(backend: Backend, name: str, config: dict[str, Any], ids: SpecialIds) -> dict[str, Any]:
    """The settings of a tokenizer, with the tokens that its model names by their ids."""
    tokens = backend.get_vocab()
    named = {role: _special(role, config, tokens) for role in SPECIAL_NAMES}
    mask = ids.mask
    if mask is None:
        mask = tokens[named["mask"]] if named["mask"] else ids.unnamed_mask
    stated = {"pad": ids.pad, "bos": ids.bos, "eos": ids.eos}
    pieces = {role: backend.id_to_token(i) for role, i in stated.items() if i is not None and not named[role]}
    if mask is not None:
        piece = pieces["mask"] = _mask_piece(backend, name, config, mask)
        other = tokens.get(named["mask"], mask)
        if other != mask and (named["mask"] in _declared("mask", config) or "mask" not in piece.lower()):
            raise UserError(
                f"[MASK] is token {other} ({named['mask']}) of the tokenizer {name!r} and token {mask} ({piece}) of "
                "the model; give the tokenizer that the model was trained with, or mend mask_token_id in config.json"
            )
        roles = {named[role] or pieces.get(role): role for role in stated}
        if piece in roles:
            raise UserError(
                f"the model says that [MASK] is token {mask}, which is {piece!r} in its tokenizer {name!r}, and is its "
                f"{roles[piece]} token as well; mend mask_token_id in config.json"
            )
    return config | {f"{role}_token": piece for role, piece in pieces.items() if piece}


def _mask_piece(backend: Backend, name: str, config: dict[str, Any], mask: int) -> str:
    """The token with the id of [MASK], which must not be a part of texts; its config may have what its file has not."""
    said = config.get("added_tokens_decoder")
    added: dict[str, Any] = said if isinstance(said, dict) else {}
    numbers = sorted(int(key) for key in added if str(key).isdecimal())
    for number in numbers:
        entry = added.get(str(number))
        if number == size_of(backend) and isinstance(entry, dict):
            backend.add_special_tokens([AddedToken(str(entry.get("content")), special=True, normalized=False)])
    piece = backend.id_to_token(mask)
    if piece is None:
        raise UserError(
            f"the model says that [MASK] is token {mask}, and its tokenizer {name!r} has only {size_of(backend)} tokens"
        )
    if mask not in backend.get_added_tokens_decoder() and not IN_BRACKETS.fullmatch(piece):
        raise UserError(
            f"the model says that [MASK] is token {mask}, which is {piece!r} in its tokenizer {name!r}: an ordinary "
            "token; mend mask_token_id in config.json"
        )
    return str(piece)


def _no_mask(name: str) -> str:
    return (
        f"tokenizer {name!r} has no mask token ({', '.join(SPECIAL_NAMES['mask'])}), and its network has no row for "
        f'one; if it has another name, set it in {CONFIG_FILE}: {{"mask_token": "..."}}; else add one '
        'with transformers: tokenizer.add_special_tokens({"mask_token": "[MASK]"}), '
        "model.resize_token_embeddings(len(tokenizer)), and save both"
    )


def _special(role: str, config: dict[str, Any], tokens: dict[str, int]) -> str:
    """The token for a role: what the file declares, else the first common name in the vocabulary, else ''."""
    return next((token for token in (*_declared(role, config), *SPECIAL_NAMES[role]) if token in tokens), "")


def _declared(role: str, config: dict[str, Any]) -> list[str]:
    """The tokens that the settings of a tokenizer name for a role."""
    also = {"bos": ("bos_token", "cls_token"), "eos": ("eos_token", "sep_token")}
    declared = [config.get(key) for key in also.get(role, (f"{role}_token",))]
    names = [str(token.get("content")) if isinstance(token, dict) else token for token in declared]
    return [token for token in names if token]
