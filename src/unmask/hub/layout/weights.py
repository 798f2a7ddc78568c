"""The tensors of a folder: reading them from whatever files it has, and loading them into a model, strictly."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TypeVar

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

from ...config import Config, DiTConfig, LlamaConfig
from ...distributed import pick_device
from ...files import read_json
from ...models import registry
from ...models.language_model import LanguageModel
from ...networks.foreign.families import their_name
from ...types import UserError, Vocab
from .. import pickled
from ..checkpoint import assign, check_names
from .family_folders import for_transformers
from .terms import CHECKPOINT, DTYPES, INDEX, PICKLE, WEIGHTS, Described, inside, is_published

PREFIX = "backbone.model."  # before the names that transformers has for the tensors of an encoder
INV_FREQ = "backbone.rotary_emb.inv_freq"  # a buffer of the published network, which we compute
CLIPPED = ("sampling_eps_min", "sampling_eps_max")  # numbers in BD3-LM's files: the mask rates of its training


def inv_freq(config: Config) -> Tensor:
    """The rotary frequencies as the published network computes them, bit for bit."""
    assert isinstance(config.model, DiTConfig)
    dim = config.model.hidden_dim // config.model.n_heads
    return 1.0 / (10_000.0 ** (torch.arange(0, dim, 2).float() / dim))


def check_rotary(theirs: Tensor, config: Config, where: str | Path) -> None:
    """Raise if frequencies are not those of base 10000, in full or 16-bit precision."""
    ours, theirs = inv_freq(config), theirs.float().cpu()
    near = (torch.allclose(theirs, ours.to(dtype).float(), rtol=1e-5) for dtype in DTYPES.values())
    if theirs.shape != ours.shape or not any(near):
        raise UserError(f"{where} does not fit this model: {INV_FREQ} has a rotary base other than 10000")


def read_tensors(folder: str | Path) -> dict[str, Tensor]:
    """All tensors of a folder: model.safetensors, shards with an index, other safetensors, or a pickled file."""
    folder = Path(folder)
    if (folder / WEIGHTS).is_file():
        return _read(folder / WEIGHTS)
    if (folder / INDEX).is_file():
        return _read_shards(folder)
    if files := sorted(path for path in folder.glob("*.safetensors") if path.is_file()):  # a pipe would never end
        return _joined(files)
    if (folder / PICKLE).is_file():
        return pickled.tensors(pickled.load(folder / PICKLE), folder / PICKLE)
    if (folder / CHECKPOINT).is_file():
        tree = pickled.load(folder / CHECKPOINT)
        return pickled.tensors(tree.get("state_dict") if isinstance(tree, dict) else tree, folder / CHECKPOINT)
    raise UserError(f"{folder} has no weights: it holds neither {WEIGHTS} nor {PICKLE}")


def read_weights(folder: str | Path) -> dict[str, Tensor]:
    """The tensors of a folder under our names: SEDD's published files have them without "backbone."."""
    return our_names(read_tensors(folder))


def our_names(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The same tensors, with the prefix "backbone." if none of them has it, without BD3-LM's two numbers."""
    inside = any(name.startswith("backbone.") for name in tensors)
    kept = {name: tensor for name, tensor in tensors.items() if name not in CLIPPED or tensor.numel() > 1}
    return {name if inside else f"backbone.{name}": tensor for name, tensor in kept.items()}


def _read(path: Path) -> dict[str, Tensor]:
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"weights file {path} is missing; copy or download the folder again") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"weights file {path} is damaged: {error}; copy or download it again") from None


def _joined(files: Sequence[Path]) -> dict[str, Tensor]:
    joined: dict[str, Tensor] = {}
    for file in files:
        tensors = _read(file)
        if twice := sorted(joined.keys() & tensors.keys()):
            raise UserError(f"weights file {file} holds {twice[0]}, which another file in its folder holds as well")
        joined |= tensors
    return joined


def _read_shards(folder: Path) -> dict[str, Tensor]:
    places = read_json(folder / INDEX, "cannot read the weights").get("weight_map")
    if not isinstance(places, dict) or not all(isinstance(name, str) for name in places.values()):
        raise UserError(f"{folder / INDEX} is damaged: it has no weight_map")
    names = sorted(set(places.values()))
    for name in names:  # a name and not a path: an index must not lead out of its folder
        if Path(name).name != name or not name.endswith(".safetensors"):
            raise UserError(f"{folder / INDEX} is damaged: {name!r} is not a safetensors file of its folder")
    tensors = _joined([folder / name for name in names])
    check_names(dict.fromkeys(places, ()), dict.fromkeys(tensors, ()), folder / INDEX)
    return tensors


def blueprint(described: Described, vocab: Vocab, count: int, where: str | Path) -> LanguageModel:
    """The model that a config describes, without memory for its weights; its files have `count` tensors."""
    config = described.config
    if config.model.n_blocks > count:
        raise UserError(f"{where} does not fit this model of {config.model.n_blocks} blocks: it has {count} tensors")
    try:
        with torch.device("meta"):
            return inside(where, lambda: registry.model(config, vocab, len(described.labels)))
    except (RuntimeError, OverflowError, TypeError):  # sizes that no machine has
        raise UserError(f"{where} is described as a network too large to exist") from None


def check(model: nn.Module, tensors: Mapping[str, Tensor], config: Config, where: str | Path) -> None:
    """Raise if a tensor is missing, unknown, mis-shaped or of a wrong type; shapes of the model suffice."""
    weights = {name: tensor for name, tensor in tensors.items() if name != INV_FREQ}
    wanted = {name: tensor.shape for name, tensor in model.state_dict().items() if name != INV_FREQ}
    check_names(wanted, {name: tensor.shape for name, tensor in weights.items()}, where)
    for name, tensor in weights.items():
        if tensor.dtype not in DTYPES.values():
            raise UserError(f"{where} does not fit this model: {name} holds {tensor.dtype}, not 16- or 32-bit floats")
    if (theirs := tensors.get(INV_FREQ)) is not None:
        check_rotary(theirs, config, where)


M = TypeVar("M", bound=nn.Module)


def filled(model: M, tensors: Mapping[str, Tensor], config: Config, where: str | Path, device: str = "cpu") -> M:
    """A model without memory with its weights, strictly: every tensor is accounted for; 16-bit ones become float32.

    A Llama, which may be large, keeps the types of its files and their memory: they are mapped, and pages are read
    when they are used. What is written to its weights does not reach the files.
    """
    check(model, tensors, config, where)  # before memory is taken
    place = pick_device(device)
    if isinstance(config.model, LlamaConfig):
        model.load_state_dict({name: tensor.to(place) for name, tensor in tensors.items()}, assign=True)
        return model
    model = model.to_empty(device=place)
    fill(model, tensors, config, where)
    return model


def fill(model: nn.Module, tensors: Mapping[str, Tensor], config: Config, where: str | Path) -> None:
    """Load weights into a model, strictly: every tensor is accounted for; 16-bit ones become float32."""
    check(model, tensors, config, where)
    for name, target in model.state_dict().items():
        if name != INV_FREQ:
            assign(target, tensors[name])


def tensors_of(model: nn.Module, config: Config, dtype: str = "float32") -> dict[str, Tensor]:
    """The tensors of a model as they are written: MDLM's with the buffer of the published network.

    Those of a network of transformers have the names that transformers uses.
    """
    weights = {name: _cast(name, tensor, dtype) for name, tensor in model.state_dict().items()}
    if config.model.network == "transformers":
        return {name.removeprefix(PREFIX): tensor for name, tensor in weights.items()}
    if isinstance(model, LanguageModel) and for_transformers(config, model.vocab) is not None:
        return {their_name(name): tensor for name, tensor in weights.items()}
    return weights | ({INV_FREQ: inv_freq(config)} if is_published(config) else {})


def _cast(name: str, tensor: Tensor, dtype: str) -> Tensor:
    value = tensor.detach().to(device="cpu", dtype=DTYPES[dtype]).contiguous()
    if bool(torch.isfinite(tensor).all()) and not bool(torch.isfinite(value).all()):
        raise UserError(f"{name} holds numbers beyond the range of {dtype}; write the folder as float32 or bfloat16")
    return value
