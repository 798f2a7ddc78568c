"""Byte-level BPE from its parts: the tokens, the merges and the name of the rule that splits a text first.

So they are stored in GGUF files (the names of the rules are llama.cpp's), and in a vocab.json with a merges.txt.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from tokenizers import Regex, decoders, models, normalizers, pre_tokenizers
from tokenizers import Tokenizer as Backend

from ..errors import UserError

WORDS = (
    r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}%s| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
)
SPLITS = {  # whether digits stand alone before GPT-2's rule, or a rule of its own
    "gpt-2": False,
    "smollm": True,
    "starcoder": True,
    "refact": True,
    "llama-bpe": WORDS % "{1,3}",
    "qwen2": WORDS % "",
}
OF_CLASS = {"Qwen2Tokenizer": "qwen2", "DreamTokenizer": "qwen2", "GPT2Tokenizer": "gpt-2"}
VOCAB, MERGES = "vocab.json", "merges.txt"


def byte_level(vocabulary: Mapping[str, int], merges: Sequence[tuple[str, str]], split: str) -> Backend:
    """The tokenizer with these tokens; merges in their order."""
    rule = SPLITS[split]
    try:
        model = models.BPE(dict(vocabulary), list(merges), ignore_merges=split == "llama-bpe")
    except Exception as error:  # all that the library raises
        raise UserError(f"its tokens and merges do not fit together: {error}") from None
    backend = Backend(model)
    plain = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=not isinstance(rule, str))
    if isinstance(rule, str):
        first: list[Any] = [pre_tokenizers.Split(Regex(rule), "isolated")]
    else:
        first = [pre_tokenizers.Digits(individual_digits=True)] if rule else []
    backend.pre_tokenizer = pre_tokenizers.Sequence([*first, plain])
    backend.decoder = decoders.ByteLevel()
    if split == "qwen2":
        backend.normalizer = normalizers.NFC()
    return backend


def pair(merge: str, where: str | Path) -> tuple[str, str]:
    """The two tokens of a line of merges."""
    first, space, second = merge.partition(" ")
    if not space or not first or not second:
        raise UserError(f"{where} is damaged: {merge[:40]!r} is not a merge of two tokens")
    return first, second


def read_files(folder: Path, config: Mapping[str, Any]) -> Backend:
    """The vocab.json and merges.txt of a folder; `config` is its tokenizer_config.json, which names the class."""
    kind = str(config.get("tokenizer_class")).removesuffix("Fast")
    if kind not in OF_CLASS:
        raise UserError(
            f"{folder} has a {VOCAB} and the tokenizer class {kind[:80]}, which unmask does not know; write a "
            "tokenizer.json with transformers: AutoTokenizer.from_pretrained(...).save_pretrained(DIR)"
        )
    try:
        vocabulary = json.loads((folder / VOCAB).read_text(encoding="utf-8"))
        lines = (folder / MERGES).read_text(encoding="utf-8").splitlines()
    except (OSError, ValueError) as error:
        raise UserError(f"cannot read {VOCAB} and {MERGES} of {folder}: {error}") from None
    merges = [pair(line, folder / MERGES) for line in lines if line and not line.startswith("#version")]
    return byte_level(vocabulary, merges, OF_CLASS[kind])
