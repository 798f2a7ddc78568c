"""Lightning checkpoints of the paper's repository: `last.ckpt`, `best.ckpt`.

They are pickles with the settings as OmegaConf objects and the average of the weights as a list without names, in the
order of `parameters()`. They are read by `pickled`, which executes nothing; the names come from our network, whose
parameters are in the same order, and every shape is checked. Every setting is read, known to be harmless, or an error.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import Config, parse
from ..networks.foreign.fields import Allowed, only, understood
from ..recipes import lm1b, owt
from ..types import UserError, Vocab
from . import layout, pickled
from .checkpoint import check_names
from .layout import Described

METHODS = {"subs": "mdlm", "sedd": "sedd", "d3pm": "d3pm", "ar": "ar"}
FLAT_EMBEDDING = "backbone.vocab_embed.embedding"
FIXED: Allowed = {"diffusion": ("absorbing_state",)}
READ = {"backbone", "data", "model", "noise", "parameterization", "subs_masking", "T", "time_conditioning", "training"}
HARMLESS = {  # how the run was made, watched and sampled
    "callbacks", "checkpointing", "defaults", "eval", "hydra", "loader", "lr_scheduler", "mode", "optim", "sampling",
    "seed", "strategy", "trainer", "wandb",
}  # fmt: skip
OF_DATA = {"cache_dir", "streaming", "tokenizer_name_or_path", "train", "valid", "wrap"}
OF_TRAINING = {"antithetic_sampling", "change_of_variables", "ema", "importance_sampling", "sampling_eps"}
Tensors = dict[str, Tensor]


def read_lightning(
    tree: Mapping[str, Any], path: Path, weights: str, ignore: Sequence[str] = ()
) -> tuple[Described, Tensors, str]:
    """A checkpoint of the paper's repository: its settings, and the requested weights under our names."""
    state = tree["state_dict"]
    if not isinstance(state, dict) or not isinstance(state.get(FLAT_EMBEDDING), pickled.Stored):
        raise UserError(f"{path} is not a checkpoint of the paper's code: its state_dict has no {FLAT_EMBEDDING}")
    shape = state[FLAT_EMBEDDING].shape
    if len(shape) != 2:
        raise UserError(f"{path} does not fit any model: {FLAT_EMBEDDING} has shape {shape}")
    settings = pickled.plain(tree.get("hyper_parameters"))
    settings = settings.get("config", settings) if isinstance(settings, dict) else None
    if not isinstance(settings, dict) or not isinstance(settings.get("model"), dict):
        raise UserError(
            f"{path} does not contain the settings of its run (hyper_parameters), so its network is unknown"
        )
    size = shape[0]
    try:
        config = lightning_config(_without(settings, ignore, path), path)
    except UserError as error:
        raise UserError(str(error).replace("delete it from the file", "add --ignore and its name")) from None
    described = Described(config, layout.known_vocab(size), (), size)
    tensors = {name: value for name, value in state.items() if not _is_noise(name, value)}
    average = tree.get("ema")
    if weights == "raw" or average is None:
        return described, pickled.tensors(tensors, path), "raw"
    return described, _average(average, described, tensors, len(state) - len(tensors), path), "ema"


def _is_noise(name: Any, value: Any) -> bool:
    """Their noise schedule is a module with at most a few numbers, which the settings contain as well."""
    return (
        isinstance(name, str)
        and name.startswith("noise.")
        and isinstance(value, pickled.Stored)
        and len(value.shape) < 2
    )


def _average(average: Any, described: Described, state: Mapping[str, Any], noise: int, path: Path) -> Tensors:
    """The list of averages with our names: first the network, then the noise, each in the order of its parameters."""
    shadow = average.get("shadow_params") if isinstance(average, dict) else None
    if not isinstance(shadow, list) or not all(isinstance(value, pickled.Stored) for value in shadow):
        raise UserError(f"{path} is damaged: its ema has no shadow_params; take the last weights with --weights raw")
    vocab = Vocab(described.vocab_size, mask=described.vocab_size - 1)  # shapes only
    model = layout.blueprint(described, vocab, len(state), path)
    wanted = {name: tuple(parameter.shape) for name, parameter in model.named_parameters()}
    buffer = {name: value for name, value in state.items() if name == layout.INV_FREQ}
    shapes = {name: getattr(value, "shape", ()) for name, value in state.items() if name not in buffer}
    check_names(wanted, shapes, path)
    if list(shapes) != list(wanted):
        raise UserError(
            f"{path} has its tensors in an unknown order, and its averages have no names; use --weights raw"
        )
    if not len(wanted) <= len(shadow) <= len(wanted) + noise:
        raise UserError(f"{path} does not fit this model: its ema has {len(shadow)} tensors, the model {len(wanted)}")
    averages = dict(zip(wanted, shadow, strict=False))
    check_names(wanted, {name: value.shape for name, value in averages.items()}, f"{path} (its ema)")
    pickled.check_size([*averages.values(), *buffer.values()], path)
    return {name: pickled.fetch(value, path) for name, value in averages.items()} | (
        pickled.tensors(buffer, path) if buffer else {}
    )


def _without(settings: dict[str, Any], ignore: Sequence[str], path: Path) -> dict[str, Any]:
    """The settings without those that the user knows to be harmless."""
    kept = {key: dict(value) if isinstance(value, dict) else value for key, value in settings.items()}
    for name in ignore:
        section, _, field = name.partition(".")
        place, key = (kept.get(section), field) if field else (kept, section)
        if not isinstance(place, dict) or key not in place:
            raise UserError(f"{path} has no setting {name!r}; leave out --ignore {name}")
        del place[key]
    return kept


def lightning_config(settings: Mapping[str, Any], path: Path) -> Config:
    """Our config for a run of the paper's repository."""
    method = _method(settings, path)
    data, noise, training = (_section(settings, key) for key in ("data", "noise", "training"))
    timed = method != "ar" and layout.value(settings, "time_conditioning", bool, path)
    only(settings, FIXED, path)
    understood(settings, {*READ, *HARMLESS, *FIXED}, path)
    understood(data, OF_DATA, path, "data.")
    understood(training, OF_TRAINING, path, "training.")
    if training.get("change_of_variables") and timed:
        raise UserError(f"{path} has training.change_of_variables, with which its network sees another time")
    tree = (lm1b if data.get("wrap") is False else owt)().model_dump(mode="json")
    tree["model"] |= {"method": method, **layout.read_network(settings["model"], path, causal=method == "ar")}
    tree["data"]["length"] = layout.value(settings["model"], "length", int, path)
    if isinstance(data.get("tokenizer_name_or_path"), str):
        tree["data"]["tokenizer"] = data["tokenizer_name_or_path"]
    if method == "ar":
        tree["objective"]["start_token"] = False  # their first token is given and not scored
    else:
        tree["model"]["time_conditioning"] = timed
        tree["schedule"] |= layout.noise_schedule(noise, path)
        if steps := layout.value(settings, "T", int, path, 0):
            tree["objective"] |= {"bound": "discrete", "steps": steps}
    return parse(tree)


def _section(settings: Mapping[str, Any], key: str) -> Mapping[str, Any]:
    section = settings.get(key)
    return section if isinstance(section, Mapping) else {}


def _method(settings: Mapping[str, Any], path: Path) -> str:
    """Our method for a backbone and a parameterization; `subs_masking` is D3PM without mass on [MASK]."""
    backbone, meaning = settings.get("backbone"), settings.get("parameterization")
    if backbone not in ("dit", "ar") or meaning not in METHODS:
        raise UserError(
            f"{path} is a model with backbone {backbone!r} and parameterization {meaning!r}; unmask converts dit "
            f"and ar with {', '.join(METHODS)}"
        )
    method = "ar" if backbone == "ar" else METHODS[meaning]
    if method == "sedd":
        layout.need_scale(settings["model"], path)
    if not layout.value(settings, "subs_masking", bool, path, False):
        return method
    if method != "d3pm":
        raise UserError(f"{path} has subs_masking true, which belongs to parameterization 'd3pm', not to {meaning!r}")
    return "no-carry-over"
