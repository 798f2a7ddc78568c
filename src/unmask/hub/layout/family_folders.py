"""Folders of models on the transformer of Llama, Qwen2 and Qwen3: causal ones, and the diffusion models made from them.

What sees both ways becomes a model of method mdlm with the log-linear schedule, as its training was; what sees its
block and those before one of method block; what looks to the left one of method ar, whose first token is given. Rows
begin with BOS where the tokenizer says so. How config.json and tensors of each family are read is in
`networks/foreign/families`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...config import Config, DataConfig, LlamaConfig, ObjectiveConfig, TrainConfig, parse
from ...data.tokenization import SpecialIds, Tokenizer
from ...networks.foreign import families
from ...networks.foreign.fields import value
from ...types import UserError, Vocab
from .terms import Described, inside

LENGTH = 1024  # tokens a row at most: attention to all costs their square
PADDING = 1024  # rows that an embedding may have beyond its tokenizer
ROLES = ("mask", "pad", "bos", "eos")


def read_family(tree: Mapping[str, Any], where: str | Path, name: str | None = None) -> Described:
    """A model of a family; `name` is its name on the Hub, or its folder."""
    family = families.family_of(tree, name or str(where))
    assert family is not None
    network = families.settings(tree, where, family)
    method = families.method_of(family)
    longest = value(tree, family.trunk.positions, int, where, LENGTH)
    length, parts = max(2, min(LENGTH, longest)), {"model": {"method": method, "network": "llama", **network}}
    if method == "block":
        size = families.block_size(family, tree, where)
        length = _whole_blocks(size, longest, where)
        parts["block"] = {"size": size, "clean": "blocks"}
    data = DataConfig(length=length, tokenizer=name or str(where))
    base = Config(data=data, train=TrainConfig(ema=0), objective=ObjectiveConfig(start_token=method != "ar"))
    config = inside(where, lambda: parse(base.model_dump(mode="json") | parts))
    rows = network["embedding_rows"]
    ids = SpecialIds(**{role: _id(tree, role, rows, where) for role in ROLES}, unnamed_mask=family.mask)
    if method == "ar":
        ids = replace(ids, mask=None)
    return Described(config, None, (), rows, ids=ids, longest=longest)


def _whole_blocks(size: int, longest: int, where: str | Path) -> int:
    """The longest row of whole blocks, at least one."""
    length = min(max(LENGTH, size), longest) // size * size
    if length < 2:
        raise UserError(f"{where} has blocks of {size} tokens, but positions for {longest} only")
    return length


def _id(tree: Mapping[str, Any], role: str, rows: int, where: str | Path) -> int | None:
    """The id that a config.json states; the first where there are several."""
    key = f"{role}_token_id"
    said = tree.get(key)
    said = said[0] if isinstance(said, list) and said else said
    if said is None or said == -1:
        return None
    token = value({key: said}, key, int, where)
    if not 0 <= token < rows:
        raise UserError(f"{where} has {key} {token}, which is outside a vocabulary of {rows} tokens")
    return int(token)


def fits_family(size: int, described: Described) -> bool:
    """Whether a tokenizer fits: in a causal model, a [MASK] that we added needs no row in the embedding."""
    rows, added = described.vocab_size, 1 if described.config.model.method == "ar" else 0
    return size - added <= rows <= min(size + PADDING, 2 * size)


def family_with(described: Described, tokenizer: Tokenizer, given: Any = None) -> Described:
    """A model with its tokenizer, which decides what its rows are."""
    vocab, config = tokenizer.vocab, described.config
    data: dict[str, Any] = {} if given is None or isinstance(given, Tokenizer) else {"tokenizer": str(given)}
    data |= {"block_ends": tokenizer.adds_bos, "eos_between": vocab.eos is not None}
    return replace(described, config=config.changed(data=data))


# -- what transformers reads -----------------------------------------------------------------------------------------


def for_transformers(config: Config, vocab: Vocab) -> dict[str, Any] | None:
    """The config.json of a causal model as transformers reads it; None if it is another model there, or none."""
    if not isinstance(config.model, LlamaConfig) or config.model.method != "ar" or config.objective.start_token:
        return None
    tree = families.causal_tree(config.model, vocab.size, config.data.length)
    if tree is None:
        return None
    ids = {f"{role}_token_id": getattr(vocab, role) for role in ROLES[1:]}
    return tree | {key: token for key, token in ids.items() if token is None or token < tree["vocab_size"]}
