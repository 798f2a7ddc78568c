"""Shared by the tests of writing: models for every kind of tokenizer, and a way to make a model write a known text."""

from __future__ import annotations

import functools
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
import tokenizers
import torch
from tokenizers import decoders, models, normalizers, pre_tokenizers
from torch import Tensor

from support.helpers import random_lm
from support.paths import DATA
from unmask.data.tokenization import Tokenizer, bpe_tokenizer, bytes_tokenizer, chars_tokenizer, read_tokenizer
from unmask.lm import LM

TOKENIZERS = DATA / "tokenizers"
CORPUS = ["the naïve café of the 日本 and the 🙂 of the other café, again and again"] * 3
WORDS = ["the", "cat", "sat", "on", "mat", "and", "dog", "can", "play", "cafe", *",.!?'-()12"]
PARTS = ["##s", "##ing", "##ed", *(f"##{letter}" for letter in "abcdefghijklmnopqrstuvwxyz")]


def wordpiece() -> Tokenizer:
    """A WordPiece that lower-cases and strips accents, as bert-base-uncased does, from a tokenizer.json."""
    specials = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
    vocabulary = {piece: i for i, piece in enumerate(dict.fromkeys([*specials, *WORDS, *"abcdefghijklmnopst", *PARTS]))}
    backend = tokenizers.Tokenizer(models.WordPiece(vocabulary, unk_token="[UNK]"))
    backend.normalizer = normalizers.BertNormalizer(lowercase=True)
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    backend.decoder = decoders.WordPiece()
    backend.add_special_tokens(specials)
    with tempfile.TemporaryDirectory() as folder:
        backend.save(str(Path(folder) / "tokenizer.json"))
        return read_tokenizer(Path(folder))


MAKERS: dict[str, Callable[[], Tokenizer]] = {
    "bytes": bytes_tokenizer,
    "chars": lambda: chars_tokenizer(CORPUS),
    "bpe": lambda: bpe_tokenizer(CORPUS, 290),
    "wordpiece": wordpiece,
}
REAL = ("bert-base-uncased", "gpt2")
OWN = pytest.mark.parametrize("kind", MAKERS)
ALL = pytest.mark.parametrize("kind", [*MAKERS, *REAL])


@functools.cache
def make(kind: str, *overrides: str) -> LM:
    """A random model of 40 tokens: it writes any token anywhere, special ones included."""
    if kind in REAL and not TOKENIZERS.is_dir():
        pytest.skip(f"{TOKENIZERS} is not there, and with it the real tokenizers")
    tokenizer = read_tokenizer(TOKENIZERS / kind) if kind in REAL else MAKERS[kind]()
    return random_lm(tokenizer, "data.length=40", *overrides, scale=2.0)


def forced(target: Sequence[int]) -> Callable[[Tensor, Tensor, Tensor], Tensor]:
    """A `constrain` that leaves only these tokens: position by position, whatever the order."""
    wanted = torch.tensor(list(target))

    def constrain(log_p: Tensor, positions: Tensor, canvas: Tensor) -> Tensor:
        only = torch.full_like(log_p, -torch.inf)
        return only.scatter(1, wanted[positions][:, None], 0.0)

    return constrain


SAMPLERS: dict[str, dict[str, Any]] = {
    "plan": {"sampler": "plan", "steps": 9},
    "ancestral": {"sampler": "ancestral", "steps": 5},
    "first-hitting": {"sampler": "first-hitting"},
    "left-to-right": {"sampler": "left-to-right"},
    "three at a time": {"sampler": "left-to-right", "k": 3},
    "confidence": {"sampler": "confidence", "k": 2},
    "entropy": {"sampler": "entropy", "threshold": 4.0},
    "margin": {"sampler": "margin", "steps": 7},
    "entropy bound": {"sampler": "entropy", "entropy_bound": 9.0},
    "remask-cap": {"sampler": "remask-cap", "steps": 8, "eta": 0.3},
    "remask-rescale": {"sampler": "remask-rescale", "steps": 8, "eta": 0.4},
    "remask-loop": {"sampler": "remask-loop", "steps": 12, "eta": 0.3},
    "corrector": {"sampler": "corrector", "steps": 5, "eta": 0.3},
    "gibbs": {"sampler": "gibbs", "steps": 40, "burn": 10},
    "gibbs in parallel": {"sampler": "gibbs", "steps": 5, "scan": "parallel"},
    "windows": {"sampler": "plan", "steps": 4, "stride": 7},
    "windows left to right": {"sampler": "left-to-right", "stride": 20},
    "remasking windows": {"sampler": "remask-cap", "steps": 6, "eta": 0.4, "stride": 9},
}
EACH_SAMPLER = pytest.mark.parametrize("how", SAMPLERS.values(), ids=SAMPLERS)
