"""From the config.json of a masked language model to a network of transformers, without downloads.

No code from a repository is run: only the part of a config.json that describes the network is read (`plain`), and the
classes are those of the installed package. The package is optional, so it is imported where it is needed.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn

from ..errors import UserError, optional

# Origin, runtime options, and what would fetch code or kernels: none of it describes the network.
NOT_NETWORK = {
    "attn_implementation", "auto_map", "distributed_config", "dtype", "experts_implementation", "fusion_config",
    "kernel_config", "name_or_path", "output_attentions", "output_hidden_states", "return_dict", "torch_dtype",
    "torchscript", "transformers_version", "transformers_weights", "trust_remote_code", "use_cache", "use_kernels",
}  # fmt: skip
MOST_LAYERS = 10_000  # the library makes one after the other


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
    maker = transformers().CONFIG_MAPPING[kind]
    with quiet():
        try:
            spec = maker.from_dict(plain(tree))
        except Exception as error:  # the library has many ways to say no
            raise UserError(f"this {kind} is not described correctly: {first_line(error)}") from None
    layers = getattr(spec, "num_hidden_layers", None)
    if isinstance(layers, int) and layers > MOST_LAYERS:
        raise UserError(f"this {kind} is described with {layers:,} layers, more than the {MOST_LAYERS:,} that are read")
    if getattr(spec, "is_encoder_decoder", False):
        raise UserError(f"a {kind} has a decoder; unmask reads encoders, which look both ways at once")
    if dropout is not None and dropout != dropout_of(spec):
        for key, value in spec.to_dict().items():
            if "dropout" in key and isinstance(value, int | float) and not isinstance(value, bool):
                setattr(spec, key, dropout)
    return spec


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
    first = 0 if not tables or tables[0].padding_idx is None else tables[0].padding_idx + 1
    most = tables[0].num_embeddings if tables else getattr(model.config, "max_position_embeddings", None)
    return first, None if not most or most < 1 else int(most) - first


@contextmanager
def quiet() -> Iterator[None]:
    """Silence the warnings and progress bars of the library."""
    logging = importlib.import_module("transformers.utils.logging")
    before, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(before)
        if bars:
            logging.enable_progress_bar()


def first_line(error: Exception) -> str:
    """The first line of an error message."""
    return next((line.strip() for line in str(error).splitlines() if line.strip()), type(error).__name__)
