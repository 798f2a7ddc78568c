"""Foreign masked language models: the config.json and the tensors of any encoder of transformers, and of MosaicBERT.

They become models of method mdlm, with the log-linear schedule: a network that does not see the time and gives a
distribution for every masked token is a denoiser, whatever objective it was trained with. transformers updates the
names of tensors that its older versions wrote; what is missing or unknown after that is an error.
"""

from __future__ import annotations

import copy
import logging
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ...config import Config, DataConfig, EncoderConfig, TrainConfig, parse
from ...data.tokenization import Tokenizer
from ...networks.architectures import (
    buffers_of,
    check_fits,
    class_of,
    dropout_of,
    fresh,
    masked_lms,
    plain,
    positions_of,
    quiet,
    settings,
    understood_by_library,
)
from ...networks.encoder import ties_of
from ...networks.foreign import FORMATS
from ...networks.foreign.fields import value
from ...networks.foreign.mosaic import OTHERS
from ...networks.layers import padded
from ...types import UserError, Vocab
from ..checkpoint import check_names
from .dna_layouts import fits_mamba, fitted, mamba_with
from .family_folders import family_with, fits_family
from .terms import Described, inside
from .weights import PREFIX, our_names

log = logging.getLogger(__name__)
LENGTH = 1024  # tokens a row at most: as many as the network has positions, but attention to all costs their square
ALIBI = 128  # of MosaicBERT, which has no positions: what it was trained on
PADDING = 1024  # rows that the embedding of a network may have beyond its tokenizer


def is_encoder(tree: Mapping[str, Any]) -> bool:
    """Whether a config.json is that of a masked language model of transformers."""
    kind = tree.get("model_type")
    return isinstance(kind, str) and kind not in ("mdlm", "unmask") and kind in masked_lms()


def with_type(tree: Mapping[str, Any]) -> Mapping[str, Any]:
    """A config.json with its model_type; those of early versions have only the name of their class."""
    classes = tree.get("architectures")
    if tree.get("model_type") is not None or not isinstance(classes, list) or len(classes) != 1:
        return tree
    stem = re.match(r"(\w+?)(For\w+|WithLMHeadModel|Model)$", str(classes[0]))
    known = {name.partition("For")[0].removesuffix("WithLMHeadModel"): kind for kind, name in masked_lms().items()}
    return tree if stem is None or stem[1] not in known else {**tree, "model_type": known[stem[1]]}


def read_encoder(tree: Mapping[str, Any], where: str | Path, tokenizer: str | None = None) -> Described:
    """A masked language model of transformers; `tokenizer` is the path or name of its tokenizer."""
    spec = inside(where, lambda: settings(tree))
    kind, width = tree["model_type"], type(spec).attribute_map.get("hidden_size", "hidden_size")
    if not {width, "hidden_size"} & tree.keys():
        raise UserError(f"{where} does not describe a network: its model_type is {kind!r}, and it has no {width}")
    understood_by_library(tree, spec, where)
    size = value(tree, "vocab_size", int, where, spec.vocab_size)
    with torch.device("meta"):
        most = positions_of(inside(where, lambda: fresh(spec)))[1]
    architecture = plain(tree) | {"architectures": [masked_lms()[kind]]}
    config = inside(where, lambda: _config(_network(spec, architecture), min(LENGTH, most or LENGTH), tokenizer))
    return Described(config, None, (), size)


def _network(spec: Any, architecture: Mapping[str, Any]) -> dict[str, Any]:
    names = {"hidden_dim": "hidden_size", "n_blocks": "num_hidden_layers", "n_heads": "num_attention_heads"}
    shape = {
        ours: number for ours, theirs in names.items() if isinstance(number := getattr(spec, theirs, None), int | float)
    }
    return shape | {"dropout": dropout_of(spec), "network": "transformers", "architecture": dict(architecture)}


def read_mosaic(tree: Mapping[str, Any], where: str | Path, tokenizer: str | None = None) -> Described:
    """MosaicBERT, whose config.json is that of BERT with ALiBi."""
    network = {"network": "mosaicbert", **FORMATS["mosaicbert"].from_published(tree, where)}
    size = value(tree, "vocab_size", int, where)
    return Described(inside(where, lambda: _config(network, ALIBI, tokenizer or "bert-base-uncased")), None, (), size)


def _config(network: Mapping[str, Any], length: int, tokenizer: str | None) -> Config:
    """Rows as BERT was trained on: concatenated texts separated by [SEP], from [CLS] to [SEP]."""
    data = DataConfig(length=max(2, length), tokenizer=tokenizer or "bert-base-uncased", block_ends=length > 2)
    return parse(Config(data=data, train=TrainConfig(ema=0)).model_dump(mode="json") | {"model": dict(network)})


def fits(size: int, described: Described) -> bool:
    """Whether a tokenizer of this size fits an encoder, whose embedding may be padded."""
    rows = described.vocab_size
    if described.config.model.network == "mosaicbert":
        return padded(size) == padded(rows)
    if described.config.model.network == "mamba":
        return fits_mamba(size, rows)
    if described.config.model.network == "llama":
        return fits_family(size, described)
    return size <= rows <= min(size + PADDING, 2 * size)


def with_tokenizer(described: Described, tokenizer: Tokenizer, given: Any = None) -> Described:
    """A foreign encoder with its tokenizer: rows have end tokens if the tokenizer has them."""
    config, vocab = described.config, tokenizer.vocab
    if described.vocab is not None or config.model.network == "dit":
        return described
    if config.model.network == "mamba":
        return mamba_with(described, tokenizer, given)
    if config.model.network == "llama":
        return family_with(described, tokenizer, given)
    data: dict[str, Any] = {} if given is None or isinstance(given, Tokenizer) else {"tokenizer": str(given)}
    if vocab.eos is None:
        data |= {"block_ends": False, "eos_between": False}
    return replace(described, config=config.model_copy(update={"data": config.data.model_copy(update=data)}))


def with_length(described: Described, length: int | None, where: str) -> Described:
    """A foreign encoder with rows of another length; a model of ours has the one that it was trained with."""
    if length is None:
        return described
    config = described.config
    if described.vocab is not None or config.model.network not in ("transformers", "mosaicbert", "llama"):
        raise UserError(f"{where} was trained on rows of {config.data.length} tokens; leave out the length")
    if length < 2:
        raise UserError(f"length={length} must be at least 2")
    if described.longest is not None and length > described.longest:
        raise UserError(f"length={length} is longer than the {described.longest} tokens that {where} was made for")
    data = config.data.model_copy(update={"length": length, "block_ends": config.data.block_ends and length > 2})
    return replace(described, config=config.model_copy(update={"data": data}))


# -- config.json with our part ---------------------------------------------------------------------------------------


def with_part(config: Config, part: Mapping[str, Any], dtype: str) -> dict[str, Any]:
    """The config.json of an encoder for transformers with our part, which does not repeat the network."""
    sections = dict(part["config"])
    sections["model"] = {key: value for key, value in sections["model"].items() if key != "architecture"}
    return {**_architecture(config), "dtype": dtype, "unmask": {**part, "config": sections}}


def _architecture(config: Config) -> dict[str, Any]:
    assert isinstance(config.model, EncoderConfig)
    return dict(config.model.architecture or {})


def sections_of(tree: Mapping[str, Any], sections: Mapping[str, Any]) -> dict[str, Any]:
    """The config in our part of a config.json, with the network of an encoder added back."""
    model = sections.get("model")
    if not isinstance(model, Mapping) or "transformers" not in (model.get("network"), model.get("backbone")):
        return dict(sections)
    network = plain({key: value for key, value in tree.items() if key != "unmask"})
    return {**sections, "model": {**model, "architecture": network}}


def agree(tree: Mapping[str, Any], vocab: Vocab, where: str | Path) -> None:
    """Raise unless the embedding of an encoder has a row for every token."""
    if not is_encoder(tree):
        raise UserError(f"{where} is damaged: model_type {tree.get('model_type')!r} is not an encoder of transformers")
    size = value(tree, "vocab_size", int, where)
    if size < vocab.size:
        raise UserError(
            f"{where} contradicts itself: vocab_size is {size} at the top level and {vocab.size} in its 'unmask' part"
        )


# -- tensors ---------------------------------------------------------------------------------------------------------


class NoHead(UserError):
    """An encoder without a masked-LM head."""


def named(
    described: Described, tensors: Mapping[str, Tensor], where: str | Path, new_head: bool = False
) -> tuple[Described, dict[str, Tensor]]:
    """The description in a config.json, and exactly its tensors under our names.

    With `new_head` an encoder without a masked-LM head gets a new one, the same every time.
    """
    if described.config.model.network != "transformers":
        if new_head:
            raise UserError(f"{where} already has a head; leave out --new-head")
        known = FORMATS.get(described.config.model.network)
        if known is None:
            return described, our_names(tensors)
        ours = known.our_tensors(described.config.model, tensors, where)
        return described, ours if described.config.model.network == "llama" else fitted(described, ours)
    architecture = _architecture(described.config)
    if new_head:
        architecture["tie_word_embeddings"] = True
    model, info = _load(architecture, tensors, where)
    _complete(model, info, where, new_head)
    if lost := untied(model):  # the file has two tensors for one
        log.info("%s: %s is a separate tensor", where, lost[0])
        architecture["tie_word_embeddings"] = False
    dropped: set[str] = set() if lost else set(ties_of(model))
    dropped |= _buffers(model, tensors, where)
    renamed = {PREFIX + name: tensor for name, tensor in model.state_dict().items() if name not in dropped}
    network = described.config.model.model_copy(update={"architecture": architecture})
    return replace(described, config=described.config.model_copy(update={"model": network})), renamed


def _buffers(model: Any, tensors: Mapping[str, Tensor], where: str | Path) -> set[str]:
    """The names of the buffers, which are computed; those in the files must agree up to 16-bit precision."""
    buffers, computed = dict(model.named_buffers()), buffers_of(model.config)
    for name, wanted in computed.items():
        if name in tensors and not torch.allclose(buffers[name].double(), wanted.double(), rtol=1e-2, atol=1e-6):
            raise UserError(f"{where} does not fit this model: {name} does not agree with its config.json")
    return set(buffers)


def untied(model: Any) -> list[str]:
    """The names of parameters that should be tied to another one but are not."""
    pairs = model.get_expanded_tied_weights_keys(all_submodels=True)
    parameters = dict(model.named_parameters(remove_duplicate=False))
    return sorted(name for name, source in pairs.items() if parameters.get(name) is not parameters.get(source))


def _load(architecture: Mapping[str, Any], tensors: Mapping[str, Tensor], where: str | Path) -> tuple[Any, Any]:
    """The model of transformers with these tensors, and the report of its loader."""
    spec = inside(where, lambda: settings(architecture))
    check_fits(lambda: fresh(copy.deepcopy(spec)), sum(tensor.numel() for tensor in tensors.values()), where)
    floats = {name: tensor for name, tensor in tensors.items() if tensor.is_floating_point() or not _other(name)}
    with quiet(), torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # of a new head
        try:
            return class_of(spec).from_pretrained(
                None,
                config=spec,
                state_dict=floats,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
                dtype=torch.float32,
                local_files_only=True,
                trust_remote_code=False,
            )
        except (RuntimeError, ValueError, TypeError, KeyError, OSError) as error:
            raise UserError(f"{where} cannot be read as a {spec.model_type}: {error}") from None


def _other(name: str) -> bool:
    return OTHERS.search(name) is not None


def _complete(model: Any, info: Any, where: str | Path, new_head: bool) -> None:
    """Raise if a tensor is missing, unknown or mis-shaped, or the whole head is missing."""
    base = f"{model.base_model_prefix}."
    tied = ties_of(model)
    head = {name for name, _ in model.named_parameters() if not name.startswith(base) and name not in tied}
    missing: set[str] = set(info["missing_keys"]) - dict(model.named_buffers()).keys()
    headless = bool(head) and head <= missing
    if new_head and not headless:
        raise UserError(f"{where} already has a masked-LM head; leave out --new-head")
    lacking = {name for name in missing if name.startswith(base)} if headless else missing
    extra = _unknown(model, info["unexpected_keys"])
    wanted: dict[str, Sequence[int]] = dict.fromkeys(lacking, ())
    loaded: dict[str, Sequence[int]] = dict.fromkeys(extra, ())
    for name, theirs, ours in info["mismatched_keys"]:
        loaded[name], wanted[name] = theirs, ours
    check_names(wanted, loaded, where)
    if headless and not new_head:
        raise NoHead(
            f"{where} has no masked-LM head; make one with: unmask convert {where} DIR --new-head, then fine-tune it: "
            "unmask finetune DIR mdlm"
        )
    if heads := sorted(name for name in info["unexpected_keys"] if name not in extra and not _other(name)):
        log.info("%s: left out heads for other tasks: %s", where, ", ".join(heads))


def _unknown(model: Any, names: Iterable[str]) -> set[str]:
    """Unexpected tensors, except those of heads for other tasks and those that old versions stored."""
    parts = {name for name, _ in model.named_modules()}
    base = {model.base_model_prefix, *(name for name, _ in model.base_model.named_children())}
    unknown = set()
    for name in names:
        above = name.split(".")[:-1]
        depth = max(n for n in range(len(above) + 1) if ".".join(above[:n]) in parts)
        if not _other(name) and ((above[:1] and above[0] in base) or depth > 1 or depth == len(above)):
            unknown.add(name)
    return unknown
