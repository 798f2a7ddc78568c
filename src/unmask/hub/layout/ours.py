"""The config.json that we write: the published keys, and under "unmask" what they do not cover."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from ...config import Config, parse
from ...data.tokenization import Tokenizer
from ...networks.foreign import format_of
from ...networks.foreign.families import FAMILIES, SIZES, refuse_experts
from ...networks.foreign.fields import mapping
from ...types import UserError, Vocab
from .dna_layouts import read_genomic
from .encoder_folders import agree, is_encoder, read_encoder, read_mosaic, sections_of, with_part, with_type
from .family_folders import for_transformers, read_family
from .published import is_blockgen, read_bd3lm, read_blockgen, read_mdlm, read_sedd
from .terms import CONFIG, DTYPES, GPT2, ROLES, SHAPE, Described, inside, is_published, read_vocab

FORMAT = 1


def to_json(
    config: Config,
    vocab: Vocab,
    labels: Sequence[str] = (),
    dtype: str = "float32",
    tokenizer: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """The config.json of a model; `tokenizer` are the name and kind of its tokenizer."""
    if dtype not in DTYPES:
        raise UserError(f"dtype {dtype!r} must be one of {', '.join(DTYPES)}")
    published = is_published(config)
    settings = config.model.model_dump(mode="json")
    data = config.data.model_copy(update={"cache": None, "local": None})  # paths of this machine
    travelling = config.model_copy(update={"data": data})
    part = {
        "format": FORMAT,
        "config": travelling.model_dump(mode="json"),
        "labels": list(labels),
        "vocab": asdict(vocab),
        "tokenizer": dict(tokenizer) if tokenizer else None,
    }
    if config.model.network == "transformers":
        return with_part(config, part, dtype)
    if (tree := for_transformers(config, vocab)) is not None:
        return {**tree, "dtype": dtype, "unmask": part}
    return {
        "architectures": ["MDLM" if published else "Unmask"],
        "model_type": "mdlm" if published else "unmask",
        **{key: settings[key] for key in SHAPE if key in settings},
        "model_length": config.data.length,
        "vocab_size": vocab.size,
        **{f"{role}_token_id": getattr(vocab, role) for role in ROLES},
        "dtype": dtype,
        "unmask": part,
    }


def describe(
    config: Config, tokenizer: Tokenizer, labels: Sequence[str] = (), dtype: str = "float32"
) -> dict[str, Any]:
    """The config.json of a model with its tokenizer."""
    return to_json(config, tokenizer.vocab, labels, dtype, {"name": tokenizer.name, "kind": tokenizer.kind})


def to_published(config: Config, vocab: Vocab, dtype: str = "float32") -> dict[str, Any]:
    """The config.json with published keys only; settings that are as in the paper are left out."""
    drop = {"unmask", "mlp_ratio", "dtype", *(f"{role}_token_id" for role in ROLES)}
    ours = to_json(config, vocab, (), dtype)
    tree = {key: value for key, value in ours.items() if key not in drop} | {"torch_dtype": dtype}
    if ours.get("mlp_ratio", 4) != 4:
        tree["mlp_ratio"] = ours["mlp_ratio"]
    if vocab.size != GPT2.size:
        tree |= {f"{role}_token_id": getattr(vocab, role) for role in ROLES}
    return tree


def from_json(tree: Mapping[str, Any], where: str | Path = CONFIG, tokenizer: str | None = None) -> Described:
    """The description in a config.json, ours or a published one; `where` names it in errors.

    `tokenizer` is the path or name of the tokenizer of a foreign masked language model.
    """
    if "unmask" in tree:
        return _ours(tree, where)
    if tree.get("model_type") == "mdlm":
        return read_mdlm(tree, where)
    if tree.get("model_type") == "bd3lm":
        return read_bd3lm(tree, where)
    if is_blockgen(tree):
        return read_blockgen(tree, where)
    if isinstance(tree.get("model"), Mapping) and "graph" in tree:
        return read_sedd(tree, where)
    if (known := format_of(tree)) is not None:
        read = {"mosaicbert": read_mosaic, "llama": read_family}.get(known, read_genomic)
        return read(tree, where, tokenizer)
    tree = with_type(tree)
    if is_encoder(tree):
        return read_encoder(tree, where, tokenizer)
    refuse_experts(tree, where)
    kind = tree.get("model_type")
    if kind is None and "hidden_size" in tree:
        raise UserError(
            f'{where} has no model_type, so its network is unknown; write it into the file, for example "model_type": '
            '"bert" for a BERT'
        )
    families = ", ".join(dict.fromkeys(repr(known.model_type) for known in FAMILIES))
    raise UserError(
        f"{where} does not describe a masked diffusion model: its model_type is {kind!r}, and unmask reads 'mdlm', "
        f"'bd3lm', 'unmask', SEDD's config, {families}, 'caduceus', 'mamba', 'hyenadna', and masked language models "
        "(bert, roberta, ...), which look both ways"
    )


def _ours(tree: Mapping[str, Any], where: str | Path) -> Described:
    part = tree["unmask"]
    if not isinstance(part, Mapping) or part.get("format") != FORMAT:
        made = part.get("format") if isinstance(part, Mapping) else part
        raise UserError(f"{where} has an 'unmask' part of format {made!r}, and this version reads {FORMAT}; update it")
    config = inside(where, lambda: parse(sections_of(tree, mapping(part, "config", where))))
    vocab = read_vocab(mapping(part, "vocab", where), where)
    labels, tokenizer = part.get("labels", []), part.get("tokenizer")
    if not isinstance(labels, list) or not all(isinstance(name, str) for name in labels):
        raise UserError(f"{where} is damaged: its labels are not a list of names")
    if (config.data.label is None) == bool(labels):
        raise UserError(
            f"{where} contradicts itself: data.label is {config.data.label!r} and it lists {len(labels)} labels"
        )
    if tokenizer is not None and not (isinstance(tokenizer, Mapping) and {"name", "kind"} <= tokenizer.keys()):
        raise UserError(f"{where} is damaged: its tokenizer has no name and kind")
    if config.model.network == "transformers":
        agree(tree, vocab, where)
    else:
        _agree(tree, to_json(config, vocab, labels), where)
    return Described(config, vocab, tuple(labels), vocab.size, tokenizer)


def _agree(tree: Mapping[str, Any], said: Mapping[str, Any], where: str | Path) -> None:
    """Raise if the published keys contradict the 'unmask' part; a library may have left some of them out."""
    keys = (*SHAPE, *SIZES.values(), "model_length", "model_type", *(f"{role}_token_id" for role in ROLES))
    for key in keys:
        if tree.get(key) is not None and key in said and tree[key] != said[key]:
            raise UserError(
                f"{where} contradicts itself: {key} is {tree[key]!r} at the top level and {said[key]!r} in its "
                "'unmask' part"
            )
