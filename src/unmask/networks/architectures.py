"""From the config.json of a masked language model to a network of transformers, without downloads.

No code from a repository is run: only the part of a config.json that describes the network is read (`plain`), and the
classes are those of the installed package. The package is optional, so it is imported where it is needed.
"""

from __future__ import annotations

import copy
import dataclasses
import importlib
import inspect
import re
import warnings
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, optional
from .foreign.fields import HARMLESS, only, understood

# Origin, runtime options, and what would fetch code or kernels: none of it describes the network.
NOT_NETWORK = {
    "attn_implementation", "auto_map", "distributed_config", "dtype", "experts_implementation", "fusion_config",
    "kernel_config", "name_or_path", "output_attentions", "output_hidden_states", "return_dict", "torch_dtype",
    "torchscript", "transformers_version", "transformers_weights", "trust_remote_code", "use_cache", "use_kernels",
}  # fmt: skip
# Fields that transformers does not read any more, if it ever did, and that change nothing (sizes: tensors have them).
UNREAD = {
    "classifier_activation", "classifier_pooling", "directionality", "down_scale_factor", "gap_size",
    "intermediate_size", "max_position_embeddings", "max_seq_length", "net_structure_type", "num_memory_blocks",
    "pooler_dropout", "pooler_fc_size", "pooler_hidden_act", "pooler_hidden_size", "pooler_num_attention_heads",
    "pooler_num_fc_layers", "pooler_size_per_head", "pooler_type", "qa_dropout", "reference_compile",
    "repad_logits_with_grad", "seq_classif_dropout", "sparse_prediction", "summary_activation",
    "summary_first_dropout", "summary_last_dropout", "summary_type", "summary_use_proj", "tie_weights_",
    "vocab_list",
}  # fmt: skip
# The same, where the value says that nothing special is asked for.
PLAIN: Mapping[str, tuple[Any, ...]] = {
    "position_embedding_type": ("absolute",),
    "pruned_heads": ({},),
}
# How the library reads a field that its configuration does not declare.
READING = r"""(?:config\.|config, ["']|kwargs\[["']|kwargs\.(?:get|pop)\(["'])"""
# Sizes beyond any network: they are checked before it is built, which takes memory for every part of it.
COUNTS = re.compile(r"layers?$|blocks?$|block_sizes$|groups?$|group_num$|experts$|heads$|depth$")
MOST_PARTS, MOST_TOGETHER, LARGEST = 1024, 1 << 16, 1 << 31
TABLES = {"distilbert": 1 << 24, "flaubert": 1 << 24, "roformer": 1 << 24, "xlm": 1 << 24}  # made number by number
LARGEST_TABLE = 1 << 28  # of positions
SPARE = 1 << 24  # numbers that a network may have beyond four times those in its files: new heads, fixed tables


def transformers() -> Any:
    """The package; raises in one sentence if it is not installed."""
    return optional("transformers", "a model of transformers", "transformers")


def masked_lms() -> Mapping[str, str]:
    """The masked language model class of every model_type that has one."""
    transformers()
    names: Mapping[str, str] = importlib.import_module(
        "transformers.models.auto.modeling_auto"
    ).MODEL_FOR_MASKED_LM_MAPPING_NAMES
    return names


def plain(tree: Any) -> Any:
    """The part of a config.json that describes the network."""
    if isinstance(tree, Mapping):
        return {k: plain(v) for k, v in tree.items() if k not in NOT_NETWORK and not str(k).startswith("_")}
    return [plain(value) for value in tree] if isinstance(tree, list | tuple) else tree


def settings(tree: Mapping[str, Any], dropout: float | None = None) -> Any:
    """The configuration object of transformers for a config.json; raises if there is none or it is not valid.

    If `dropout` differs from what the config says, it replaces all of its dropout settings.
    """
    kind = tree.get("model_type")
    if kind not in masked_lms():
        raise UserError(f"model_type {kind!r} is not a masked language model of transformers")
    if tree.get("quantization_config"):
        raise UserError(
            f"this {kind} is quantised, which unmask does not read; give its weights as float32 or bfloat16"
        )
    if tree.get("is_decoder") or tree.get("is_encoder_decoder"):
        raise UserError(f"this {kind} is a decoder; unmask reads encoders, which look both ways at once")
    check_sizes(tree)
    maker = transformers().CONFIG_MAPPING[kind]
    with quiet():
        try:
            spec = maker.from_dict(plain(tree))
        except Exception as error:  # the library has many ways to say no
            raise UserError(f"this {kind} is not described correctly: {first_line(error)}") from None
    if getattr(spec, "is_encoder_decoder", False):
        raise UserError(f"a {kind} has a decoder; unmask reads encoders, which look both ways at once")
    if dropout is not None and dropout != dropout_of(spec):
        for key, value in spec.to_dict().items():
            if "dropout" in key and isinstance(value, int | float) and not isinstance(value, bool):
                setattr(spec, key, dropout)
    return spec


def check_sizes(tree: Mapping[str, Any]) -> None:
    """Raise if a config.json names a size that no network has; nothing is built to find out."""
    together = 1
    for key, value in _whole_numbers(tree):
        part = COUNTS.search(key) is not None
        most = MOST_PARTS if part else LARGEST
        together *= max(1, value) if part and not key.endswith("heads") else 1
        if not -LARGEST <= value <= most or together > MOST_TOGETHER:
            shown = f"{value:,}" if abs(value) < 10**30 else "a number of over 30 digits"
            raise UserError(f"{key[:80]} is {shown}, which is more than any network has")
    sizes = dict(_whole_numbers(tree))
    positions, width = sizes.get("max_position_embeddings", 0), sizes.get("hidden_size", sizes.get("dim", 1))
    if positions * width > TABLES.get(str(tree.get("model_type")), LARGEST_TABLE):
        raise UserError(f"max_position_embeddings is {positions:,}, which is more than any network has")


def _whole_numbers(tree: Any, key: str = "") -> Iterator[tuple[str, int]]:
    """All whole numbers in a config.json, with the name of their field."""
    if isinstance(tree, Mapping):
        for name, value in tree.items():
            yield from _whole_numbers(value, str(name))
    elif isinstance(tree, list):
        for value in tree:
            yield from _whole_numbers(value, key)
    elif isinstance(tree, int) and not isinstance(tree, bool):
        yield key, tree


def check_fits(make: Callable[[], Any], stored: int, where: Any) -> None:
    """Raise if a network is far larger than its files, which hold `stored` numbers; it is built without memory."""
    with torch.device("meta"):
        model = make()
    numbers = sum(part.numel() for part in (*model.parameters(), *model.buffers()))
    if numbers > 4 * stored + SPARE:
        raise UserError(
            f"{where} does not fit this model: its config.json describes {numbers:,} numbers, and its files hold "
            f"{stored:,}"
        )


def understood_by_library(tree: Mapping[str, Any], spec: Any, where: Any) -> None:
    """Raise if a config.json has a field that the library would silently ignore: it may change the network."""
    declared = {field.name for field in dataclasses.fields(spec)} | type(spec).attribute_map.keys()
    turns = set() if "rope_parameters" in declared else {"rope_scaling", "rope_theta", "rope_parameters"}
    kept = vars(spec).keys() | turns  # what is not kept was translated to a declared field
    left = {key: value for key, value in plain(tree).items() if key not in declared and key in kept}
    if left.get("layer_norm_eps") == getattr(spec, "norm_eps", ...):  # ModernBERT's files say it twice
        left.pop("layer_norm_eps", None)
    only(left, PLAIN if "position_embedding_type" not in declared else {}, where)
    modules = {inspect.getmodule(part) for part in (class_of(spec), type(spec))}
    source = "".join(inspect.getsource(module) for module in modules if module is not None)
    read = {key for key in left if re.search(rf"""{READING}{re.escape(key)}\b""", source)}
    understood(left, {*HARMLESS, *UNREAD, *PLAIN, *read}, where)


def dropout_of(spec: Any) -> float:
    """The dropout of the hidden states in a configuration, by the names that architectures use."""
    names = ("hidden_dropout_prob", "dropout", "mlp_dropout")
    values = (getattr(spec, name, None) for name in names)
    return next((float(value) for value in values if isinstance(value, int | float)), 0.0)


def buffers_of(spec: Any) -> dict[str, Tensor]:
    """The buffers of a network (positions, frequencies) as they are when it is made on the CPU."""
    without = importlib.import_module("transformers.initialization").no_init_weights
    with torch.device("cpu"), without():  # its weights are never touched, so they use no memory
        return dict(fresh(copy.deepcopy(spec)).named_buffers())


def class_of(spec: Any) -> Any:
    """The masked language model class for a configuration."""
    return transformers().MODEL_FOR_MASKED_LM_MAPPING[type(spec)]


def fresh(spec: Any) -> Any:
    """A network with fresh weights, on torch's current device."""
    with quiet():
        try:
            return class_of(spec)(spec)
        except Exception as error:
            raise UserError(f"this {spec.model_type} cannot be built: {first_line(error)}") from None


def positions_of(model: Any) -> tuple[int, int | None]:
    """The index of the first position, and the number of positions (None: any)."""
    named = ((name.rpartition(".")[2], part) for name, part in model.base_model.named_modules())
    tables = [part for name, part in named if isinstance(part, nn.Embedding) and name == "position_embeddings"]
    stated = getattr(model.config, "max_position_embeddings", None)
    most = tables[0].num_embeddings if tables else stated
    first = 0 if not tables or tables[0].padding_idx is None else tables[0].padding_idx + 1
    if tables and not first and isinstance(stated, int):
        first = max(0, tables[0].num_embeddings - stated)  # rows before the first position, which some networks add
    return first, None if not most or most < 1 else int(most) - first


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of the library."""
    logging = importlib.import_module("transformers.utils.logging")
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The first line of an error message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
