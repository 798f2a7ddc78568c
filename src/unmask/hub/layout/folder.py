"""The folder itself: recognizing it, its tokenizer, and writing it atomically."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from safetensors.torch import save_file
from torch import Tensor, nn

from ...config import Config
from ...data.chat import ChatTemplate
from ...data.tokenization import (
    CONFIG_FILE,
    JSON_FILE,
    VOCAB_FILE,
    Tokenizer,
    is_in_parts,
    read_backend,
    read_tokenizer,
    size_of,
)
from ...files import MANIFEST, read_json, replacing_folder, seal, verify, writing
from ...networks.kernels.int8 import is_quantized
from ...sampling.recommended import FILE as SETTINGS
from ...sampling.recommended import Recommended
from ...types import UserError
from .encoder_folders import fits
from .ours import describe, from_json
from .terms import CARD, CONFIG, WEIGHTS, Described, is_foreign, needs_mask
from .weights import tensors_of


def is_folder(path: str | Path) -> bool:
    """Whether a path is a portable folder (and not a run or a checkpoint of ours)."""
    return (Path(path) / CONFIG).is_file()


def read_folder(folder: str | Path, name: str | None = None) -> Described:
    """The description in the config.json of a folder; `name` is its name on the Hub, if it is from there."""
    path = Path(folder) / CONFIG
    return from_json(read_json(path, "cannot read the model"), path, name or str(folder))


def load_tokenizer(folder: str | Path, described: Described) -> Tokenizer | None:
    """The tokenizer of a folder, or None; its kind is in config.json, since other libraries may rewrite its files."""
    folder = Path(folder)
    file, settings = folder / JSON_FILE, folder / CONFIG_FILE
    others = (folder / VOCAB_FILE).is_file() or is_in_parts(folder)
    if not file.is_file() and not (is_foreign(described) and others):
        return None
    if described.vocab is None or (settings.is_file() and "unmask" in read_json(settings, "cannot read the tokenizer")):
        tokenizer = read_tokenizer(folder, needs_mask(described), described.ids)
    else:
        named = described.tokenizer or {"name": folder.name, "kind": "json"}
        backend = read_backend(file)
        if (size := size_of(backend)) != described.vocab_size:
            raise UserError(_misfit(f"{file} has {size:,} tokens", described))
        tokenizer = Tokenizer(backend, described.vocab, str(named["name"]), str(named["kind"]))
    check_tokenizer(tokenizer, described, str(folder))
    return tokenizer


def check_tokenizer(tokenizer: Tokenizer, described: Described, where: str) -> None:
    """Raise if the size or special ids show that a tokenizer is not the one that a model was trained with."""
    vocab = tokenizer.vocab
    if not (fits(vocab.size, described) if is_foreign(described) else vocab.size == described.vocab_size):
        raise UserError(
            _misfit(f"{where}: the tokenizer {tokenizer.name!r} has {vocab.size:,} tokens with [MASK]", described)
        )
    mask = described.vocab.mask if described.vocab is not None else described.ids.mask if described.ids else None
    if mask is not None and vocab.mask != mask:
        raise UserError(
            f"{where}: [MASK] is token {vocab.mask} of the tokenizer {tokenizer.name!r} and token "
            f"{mask} of the model; give the tokenizer that the model was trained with"
        )


def _misfit(what: str, described: Described) -> str:
    return f"{what}, and the model {described.vocab_size:,}; give the tokenizer that it was trained with"


def write_folder(
    folder: str | Path,
    model: nn.Module,
    tokenizer: Tokenizer,
    config: Config,
    labels: Sequence[str] = (),
    dtype: str = "float32",
    card: str | None = None,
    recommended: Recommended | None = None,
    chat_template: ChatTemplate | None = None,
) -> Path:
    """Write a model as a portable folder, atomically; nothing is overwritten."""
    if is_quantized(model):
        raise UserError("this model is int8, for inference only; to save it, load it again without quantize")
    described = describe(config, tokenizer, labels, dtype)
    weights = tensors_of(model, config, dtype)
    return write_files(folder, described, weights, tokenizer, card, recommended, chat_template)


def write_files(
    folder: str | Path,
    described: Mapping[str, Any],
    weights: Mapping[str, Tensor],
    tokenizer: Tokenizer | None = None,
    card: str | None = None,
    recommended: Recommended | None = None,
    chat_template: ChatTemplate | None = None,
) -> Path:
    """Write the files of a folder."""
    folder = Path(folder)
    refuse_existing(folder)
    with writing(folder, "nothing is left of it"), replacing_folder(folder) as new:
        (new / CONFIG).write_text(json.dumps(described, indent=2) + "\n", encoding="utf-8")
        save_file(dict(weights), new / WEIGHTS, metadata={"format": "pt"})
        shutil.copymode(new / CONFIG, new / WEIGHTS)  # safetensors closes its files to all other users
        if tokenizer is not None:
            tokenizer.save(new)
        if card is not None:
            (new / CARD).write_text(card, encoding="utf-8")
        if recommended:
            recommended.write(new)
        if chat_template is not None:
            chat_template.save(new)
        seal(new, CARD, SETTINGS)  # which people edit
    return folder


def verify_folder(folder: Path) -> None:
    """Raise if a file of a folder that we wrote has its size and other bytes.

    Where a size differs, another library has written into the folder: then its files speak for themselves.
    """
    if (folder / MANIFEST).is_file():
        fix = f"; copy it again, or delete {MANIFEST} if it was changed on purpose"
        verify(folder, "model", fix, rewritten=True)


def refuse_existing(folder: Path) -> None:
    """Raise if something would be overwritten; an empty folder may be."""
    if folder.exists() and not (folder.is_dir() and not any(folder.iterdir())):
        raise UserError(f"{folder} already exists; give the name of a new folder, or delete it first")
