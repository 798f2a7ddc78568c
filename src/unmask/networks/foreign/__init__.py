"""Published networks of other projects: from their config.json to our settings, from their tensors to our names.

Each format is a module here; `hub/layout` reads and writes the folders.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from . import families, hyenadna, mosaic, state_space


@dataclass(frozen=True)
class Format:
    """How a network is published."""

    describes: Callable[[Mapping[str, Any]], bool]  # whether a config.json has this format
    from_published: Callable[[Mapping[str, Any], str | Path], dict[str, Any]]  # config.json to settings
    our_tensors: Callable[[Any, Mapping[str, Tensor], str | Path], dict[str, Tensor]]  # settings, tensors to ours


def _is_mamba(tree: Mapping[str, Any]) -> bool:
    kind = tree.get("model_type")
    return kind == "mamba" or (kind is None and {"d_model", "ssm_cfg"} <= tree.keys())


def _is_hyena(tree: Mapping[str, Any]) -> bool:
    kind, layer = tree.get("model_type"), tree.get("layer")
    return kind == "hyenadna" or (kind is None and isinstance(layer, Mapping) and layer.get("_name_") == "hyena")


def _is_mosaic(tree: Mapping[str, Any]) -> bool:
    return tree.get("model_type") == "bert" and "alibi_starting_size" in tree  # it calls itself a BERT


FORMATS: dict[str, Format] = {
    "caduceus": Format(
        lambda tree: tree.get("model_type") == "caduceus", state_space.caduceus, state_space.our_tensors
    ),
    "llama": Format(families.is_family, families.settings, families.our_tensors),
    "hyena": Format(_is_hyena, hyenadna.settings, hyenadna.our_tensors),
    "mamba": Format(_is_mamba, state_space.mamba, state_space.our_tensors),
    "mosaicbert": Format(_is_mosaic, mosaic.settings, mosaic.our_tensors),
}


def format_of(tree: Mapping[str, Any]) -> str | None:
    """The network that a published config.json describes; None if it is none of these."""
    return next((name for name, known in FORMATS.items() if known.describes(tree)), None)
