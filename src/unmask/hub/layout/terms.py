"""What a config.json says about a model, and reading its values with a clear error for each invalid one."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...config import Config
from ...data.chat import TEMPLATE_FILE
from ...data.tokenization import CONFIG_FILE, JSON_FILE, SpecialIds
from ...sampling.recommended import FILE as SAMPLING_FILE
from ...types import UserError, Vocab

T = TypeVar("T")
CONFIG, WEIGHTS, INDEX, PICKLE, CARD = (
    "config.json",
    "model.safetensors",
    "model.safetensors.index.json",
    "pytorch_model.bin",
    "README.md",
)
CHECKPOINT = "weights.ckpt"  # of HyenaDNA, as its authors published it
FILES = (CONFIG, "*.safetensors", JSON_FILE, CONFIG_FILE, SAMPLING_FILE, TEMPLATE_FILE)  # of a folder, beside its card
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHAPE = ("hidden_dim", "n_blocks", "n_heads", "cond_dim", "mlp_ratio", "dropout", "time_conditioning")
ROLES = ("mask", "pad", "bos", "eos")
COVERED = "the method mdlm (and block, if whole rows are among its block sizes) on the networks dit and modern"
GPT2 = Vocab(50258, mask=50257, bos=50256, eos=50256)  # <|endoftext|> is both ends, and [MASK] comes after all others


@dataclass(frozen=True)
class Described:
    """What a config.json says of a model."""

    config: Config
    vocab: Vocab | None  # None: only the tokenizer can tell
    labels: tuple[str, ...] = ()
    vocab_size: int = 0
    tokenizer: Mapping[str, str] | None = None  # name and kind of ours
    ids: SpecialIds | None = None  # special tokens that a foreign config.json states ...
    longest: int | None = None  # ... and the most tokens of a row


def is_published(config: Config) -> bool:
    """Whether the published layout can express this model: MDLM on the paper's diffusion transformer."""
    return config.model.method == "mdlm" and config.model.network == "dit"


def is_readable(config: Config) -> bool:
    """Whether our classes for transformers can hold this model: one that was trained to fill masks in whole rows."""
    method, rows = config.model.method, {"full", config.data.length}
    whole = method == "mdlm" or (method == "block" and bool(rows & config.block.shares.keys()))
    return whole and config.model.network in ("dit", "modern")


def is_foreign(described: Described) -> bool:
    """Whether it is a foreign network, whose vocabulary only the tokenizer knows."""
    return described.vocab is None and described.config.model.network != "dit"


def needs_mask(described: Described) -> bool:
    """Whether the tokenizer must already have a mask token: the embedding of an encoder has no row for a new one."""
    return is_foreign(described) and described.config.model.method != "ar"


def inside(where: str | Path, make: Callable[[], T]) -> T:
    """The result of `make`; its errors name the file."""
    try:
        return make()
    except UserError as error:
        raise UserError(f"{where}: {error}") from None


def read_vocab(ids: Mapping[str, Any], where: str | Path) -> Vocab:
    """A vocabulary from its size and special ids."""
    for role in ("size", *ROLES):
        token = ids.get(role)
        absent = token is None and role in ("pad", "bos", "eos")
        if not absent and (isinstance(token, bool) or not isinstance(token, int)):
            raise UserError(f"{where} has the {role} token {token!r}, which is not a number")
    return inside(where, lambda: Vocab(ids["size"], ids["mask"], ids.get("pad"), ids.get("bos"), ids.get("eos")))


def known_vocab(size: int) -> Vocab | None:
    """GPT-2's vocabulary if the size is GPT-2's; any other is known only from a tokenizer."""
    return GPT2 if size == GPT2.size else None
