"""What a config.json says of a model, and reading its values with one sentence for each that is wrong."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch

from ...config import Config
from ...data.tokenization import CONFIG_FILE, JSON_FILE
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
FILES = (CONFIG, "*.safetensors", JSON_FILE, CONFIG_FILE)  # of a folder, beside its card
DTYPES = {"float32": torch.float32, "float16": torch.float16, "bfloat16": torch.bfloat16}
SHAPE = ("hidden_dim", "n_blocks", "n_heads", "cond_dim", "mlp_ratio", "dropout", "time_conditioning")
ROLES = ("mask", "pad", "bos", "eos")
GPT2 = Vocab(50258, mask=50257, bos=50256, eos=50256)  # <|endoftext|> is both ends, and [MASK] comes after all others


@dataclass(frozen=True)
class Described:
    """What a config.json says of a model."""

    config: Config
    vocab: Vocab | None  # None: only the tokenizer can tell
    labels: tuple[str, ...] = ()
    vocab_size: int = 0
    tokenizer: Mapping[str, str] | None = None  # name and kind of ours


def is_published(config: Config) -> bool:
    """Whether the published layout has words for this model: MDLM on the paper's diffusion transformer."""
    return config.model.method == "mdlm" and config.model.network == "dit"


def is_foreign(described: Described) -> bool:
    """Whether it is the network of others, of which only the tokenizer can tell the vocabulary."""
    return described.vocab is None and described.config.model.network != "dit"


def needs_mask(described: Described) -> bool:
    """Whether the tokenizer must have a mask token of its own: the embedding of an encoder has no row for a new one."""
    return is_foreign(described) and described.config.model.network != "mamba"


def inside(where: str | Path, make: Callable[[], T]) -> T:
    """What `make` gives; its complaints name the file."""
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
    """GPT-2's vocabulary, if it is one of that size; of any other only a tokenizer can tell."""
    return GPT2 if size == GPT2.size else None
