"""GGUF files, the format of llama.cpp: networks of the architecture llama, as float32, with their tokenizer.

Its fields become those of a config.json of transformers, so that one reader checks both. Rows of queries and keys are
stored in the order of rotary positions that turn neighbours, (0, 1), (2, 3); here they turn halves, as in transformers.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import torch
from tokenizers import AddedToken, processors
from torch import Tensor

from ..data.byte_level import SPLITS, byte_level, pair
from ..data.online import reason
from ..data.tokenization import Tokenizer, adopt
from ..errors import UserError, optional
from ..networks.foreign.families import GGUF, renamed
from ..networks.foreign.fields import Allowed, only, understood, value
from .layout import Described
from .layout.family_folders import read_family

SUFFIX = ".gguf"
ARCHITECTURE = "llama"
SIZES = {  # fields of config.json, and those of the file after the name of the architecture
    "hidden_size": "embedding_length",
    "num_hidden_layers": "block_count",
    "num_attention_heads": "attention.head_count",
    "num_key_value_heads": "attention.head_count_kv",
    "head_dim": "attention.key_length",
    "intermediate_size": "feed_forward_length",
    "rms_norm_eps": "attention.layer_norm_rms_epsilon",
    "rope_theta": "rope.freq_base",
    "max_position_embeddings": "context_length",
}
ROLES = {"bos": "bos_token_id", "eos": "eos_token_id", "pad": "padding_token_id"}
CONTROL, USER = 3, 4  # types of tokens that are not parts of texts


def is_gguf(path: Path) -> bool:
    """Whether a path is a GGUF file, by its name."""
    return path.suffix == SUFFIX and path.is_file()


def read_gguf(path: Path) -> tuple[Described, Tokenizer | None, Any, dict[str, Tensor]]:
    """The model in a file, its tokenizer (None if it is of a kind that we do not read), chat template and tensors."""
    library = optional("gguf", "a GGUF file", "gguf")
    try:
        reader = library.GGUFReader(str(path))
        fields = {name: field.contents() for name, field in reader.fields.items()}
        stored = {tensor.name: tensor for tensor in reader.tensors}
    except Exception as error:  # numpy's and the library's own, by what is cut off
        raise UserError(f"{path} is damaged, or not a GGUF file: {reason(error)}; copy or download it again") from None
    tree = _config_tree(fields, stored, path)
    described = read_family(tree, path, path.stem)
    template = fields.get("tokenizer.chat_template")
    return described, _tokenizer(fields, path), template, _tensors(stored, tree, path, library.dequantize)


def _config_tree(fields: Mapping[str, Any], stored: Mapping[str, Any], path: Path) -> dict[str, Any]:
    """What a config.json would say."""
    kind = fields.get("general.architecture")
    if kind != ARCHITECTURE:
        raise UserError(f"{path} has a network of the architecture {str(kind)[:80]!r}; unmask reads {ARCHITECTURE!r}")
    before = f"{ARCHITECTURE}."
    said = {name.removeprefix(before): field for name, field in fields.items() if name.startswith(before)}
    tree = {theirs: said[ours] for theirs, ours in SIZES.items() if ours in said}
    table = stored.get("token_embd.weight")
    if table is None:
        raise UserError(f"{path} has no token_embd.weight, so it is not a language model")
    heads, width = (value(tree, key, int, path) for key in ("num_attention_heads", "hidden_size"))
    head_dim = tree.get("head_dim", width // max(1, heads))
    known: Allowed = {
        "rope.dimension_count": (head_dim,),
        "attention.value_length": (head_dim,),
        "rope.scaling.type": ("none",),
        "vocab_size": (int(table.shape[-1]),),
    }
    if said.get("expert_count"):
        raise UserError(f"{path} is a mixture of experts, which unmask does not run; give a dense model")
    only(said, known, path, before)
    understood(said, {*known, *SIZES.values(), "expert_count", "expert_used_count"}, path, before)
    ids = {f"{role}_token_id": fields.get(f"tokenizer.ggml.{name}") for role, name in ROLES.items()}
    return (
        tree
        | ids
        | {
            "model_type": "llama",
            "vocab_size": int(table.shape[-1]),
            "tie_word_embeddings": "output.weight" not in stored,
        }
    )


def _tensors(stored: Mapping[str, Any], tree: Mapping[str, Any], path: Path, dequantize: Any) -> dict[str, Tensor]:
    """The tensors under our names, in float32."""
    heads, tensors = tree["num_attention_heads"], {}
    of_keys = tree.get("num_key_value_heads") or heads
    for name, tensor in stored.items():
        try:
            numbers = np.array(dequantize(tensor.data, tensor.tensor_type), dtype=np.float32)
        except NotImplementedError:
            raise UserError(f"{path} stores {name} as {tensor.tensor_type.name}, which is not read here") from None
        ours = renamed(name, GGUF)
        if ours.endswith(("q_proj.weight", "k_proj.weight")):
            n = heads if "q_proj" in ours else of_keys
            if numbers.shape[0] % (2 * n):
                raise UserError(f"{path} does not fit this model: {name} has {numbers.shape[0]} rows for {n} heads")
            pairs = numbers.reshape(n, -1, 2, numbers.shape[-1])
            numbers = np.ascontiguousarray(pairs.swapaxes(1, 2)).reshape(numbers.shape)
        tensors[ours] = torch.from_numpy(numbers)
    return tensors


def _tokenizer(fields: Mapping[str, Any], path: Path) -> Tokenizer | None:
    """The byte-level BPE in a file; None if its tokenizer is of another kind."""
    of_file = {name.removeprefix("tokenizer.ggml."): field for name, field in fields.items()}
    split = of_file.get("pre", "gpt-2")
    if of_file.get("model") != "gpt2" or split not in SPLITS:
        return None
    tokens, merges = of_file.get("tokens"), of_file.get("merges")
    if not isinstance(tokens, list) or not isinstance(merges, list):
        raise UserError(f"{path} is damaged: its tokenizer has no tokens or no merges")
    pairs = [pair(merge, path) for merge in merges]
    try:
        backend = byte_level({token: i for i, token in enumerate(tokens)}, pairs, split)
    except UserError as error:
        raise UserError(f"{path} is damaged: {error}") from None
    kinds = of_file.get("token_type") or []
    for kind, special in ((CONTROL, True), (USER, False)):
        added = [token for token, type_of in zip(tokens, kinds, strict=False) if type_of == kind]
        backend.add_tokens([AddedToken(token, special=special, normalized=False) for token in added])
    named = {role: of_file.get(name) for role, name in ROLES.items()}
    config = {f"{role}_token": tokens[i] for role, i in named.items() if i is not None and i < len(tokens)}
    if of_file.get("add_bos_token", split == "llama-bpe") and "bos_token" in config:
        first = config["bos_token"]
        backend.post_processor = processors.TemplateProcessing(
            f"{first} $A", f"{first} $A {first} $B:1", [(first, named["bos"])]
        )
    return adopt(backend, path.stem, config)
