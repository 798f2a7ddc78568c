"""Models in other layouts to portable folders: Lightning checkpoints of the paper's repository, .bin files, runs.

The Lightning files (`last.ckpt`, `best.ckpt`) are pickles with the settings as OmegaConf objects and the average of the
weights as a list without names, in the order of `parameters()`. They are read by `pickled`, which executes nothing; the
names come from our network, whose parameters are in the same order, and every shape is checked.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import Config, parse
from ..lm import LM
from ..models import registry
from ..recipes import lm1b, owt
from ..types import Progress, UserError, Vocab
from . import layout, pickled, resolve
from .checkpoint import check_names
from .layout import Described

METHODS = {"subs": "mdlm", "sedd": "sedd", "d3pm": "d3pm", "ar": "ar"}
FLAT_EMBEDDING = "backbone.vocab_embed.embedding"
Tensors = dict[str, Tensor]


def convert(
    source: str,
    out: str | Path,
    *,
    tokenizer: str | None = None,
    weights: str = "ema",
    to: str = "unmask",
    dtype: str = "float32",
    revision: str | None = None,
    new_head: bool = False,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Write the model of any source as a folder; returns a summary for a report.

    `new_head` adds a new masked-LM head to an encoder that has none. `progress` gets two stages: read, and written.
    """
    if to not in ("unmask", "published"):
        raise UserError(f"--to {to} must be 'unmask' or 'published'")
    if weights not in ("ema", "raw"):
        raise UserError(f"--weights {weights} must be 'ema' or 'raw'")
    layout.refuse_existing(Path(out))  # before an hour of reading
    lm, used = open_source(source, tokenizer, weights, revision, new_head)
    progress(1, 2)
    if to == "published":
        write_published(out, lm, dtype)
    else:
        lm.save_pretrained(out, dtype=dtype)
    progress(2, 2)
    return {
        "out": str(out),
        "to": to,
        "method": lm.config.model.method,
        "parameters": sum(p.numel() for p in lm.model.parameters()),
        "tensors": len(lm.model.state_dict()),
        "weights": used,
        "dtype": dtype,
        "length": lm.length,
        "vocab": asdict(lm.tokenizer.vocab),
        "tokenizer": lm.tokenizer.name,
        "unsaid": unsaid(lm.config) if to == "published" else {},
    }


def open_source(
    source: str, tokenizer: str | None, weights: str, revision: str | None, new_head: bool = False
) -> tuple[LM, str]:
    """The model of a source, and which of its weights were used."""
    path = Path(source)
    if path.is_file():
        if revision is not None:
            raise UserError(f"{source} is a local file; revision is for models on the Hub")
        described, tensors, used = read_file(path, weights)
        tokens = resolve.the_tokenizer(tokenizer, described, source, path.parent if described.vocab is None else None)
        described = layout.with_tokenizer(described, tokens, tokenizer)
        described, tensors = layout.named(described, tensors, source, new_head)
        return resolve.assemble(described, tokens, tensors, source), used
    if layout.is_folder(resolve.find(source, revision)):
        if weights != "ema":
            raise UserError(f"{source} holds only one set of weights; leave --weights out")
        lm = resolve.load(source, tokenizer=tokenizer, revision=revision, new_head=new_head)
        return lm, "with a new head" if new_head else "as published"
    lm = resolve.load(source, weights=weights, tokenizer=tokenizer, new_head=new_head)
    return lm, weights if lm.config.train.ema else "raw"


def read_file(path: Path, weights: str) -> tuple[Described, Tensors, str]:
    """What a pickled file holds: a checkpoint of the paper's code, or tensors with a config.json next to them."""
    if path.suffix not in resolve.PICKLES:
        raise UserError(f"{path} is not a model; convert reads folders, Hub ids and {', '.join(resolve.PICKLES)} files")
    tree = pickled.load(path)
    state = tree.get("state_dict") if isinstance(tree, dict) else None
    beside = layout.is_folder(path.parent)
    if isinstance(state, dict) and FLAT_EMBEDDING not in state and beside:
        return layout.read_folder(path.parent), pickled.tensors(state, path), "raw"
    if state is not None:
        return read_lightning(tree, path, weights)
    if not beside:
        raise UserError(
            f"{path} holds tensors only, and there is no {layout.CONFIG} next to it that describes the model"
        )
    return layout.read_folder(path.parent), pickled.tensors(tree, path), "raw"


# -- Lightning -------------------------------------------------------------------------------------------------------


def read_lightning(tree: Mapping[str, Any], path: Path, weights: str) -> tuple[Described, Tensors, str]:
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
    described = Described(lightning_config(settings, path), layout.known_vocab(size), (), size)
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
    return {name: pickled.fetch(value, path) for name, value in averages.items()} | (
        pickled.tensors(buffer, path) if buffer else {}
    )


def lightning_config(settings: Mapping[str, Any], path: Path) -> Config:
    """Our config for a run of the paper's repository."""
    net = settings["model"]
    backbone, meaning = settings.get("backbone"), settings.get("parameterization")
    if backbone not in ("dit", "ar") or meaning not in METHODS:
        raise UserError(
            f"{path} is a model with backbone {backbone!r} and parameterization {meaning!r}; unmask converts dit "
            f"and ar with {', '.join(METHODS)}"
        )
    method = "ar" if backbone == "ar" else METHODS[meaning]
    data, noise = (section if isinstance(section := settings.get(key), dict) else {} for key in ("data", "noise"))
    tree = (lm1b if data.get("wrap") is False else owt)().model_dump(mode="json")
    tree["model"] |= {"method": method, **layout.read_network(net, path)}
    tree["data"]["length"] = layout.value(net, "length", int, path)
    if isinstance(data.get("tokenizer_name_or_path"), str):
        tree["data"]["tokenizer"] = data["tokenizer_name_or_path"]
    if method == "ar":
        tree["objective"]["start_token"] = False  # their first token is given and not scored
    else:
        tree["model"]["time_conditioning"] = layout.value(settings, "time_conditioning", bool, path)
        tree["schedule"] |= layout.noise_schedule(noise, path)
        if steps := layout.value(settings, "T", int, path, 0):
            tree["objective"] |= {"bound": "discrete", "steps": steps}
    return parse(tree)


# -- the published layout --------------------------------------------------------------------------------------------


def unsaid(config: Config) -> dict[str, Any]:
    """Settings that the published config.json cannot express, where they differ from the paper's run."""
    paper = owt()
    names = [("data", key) for key in ("layout", "eos_between", "block_ends", "attend_pads")]
    names += [("objective", "bound"), ("objective", "steps")]
    both = {f"{part}.{key}": [getattr(getattr(each, part), key) for each in (config, paper)] for part, key in names}
    both["schedule"] = [repr(registry.schedule(each.schedule)) for each in (config, paper)]
    return {name: ours for name, (ours, theirs) in both.items() if ours != theirs}


def write_published(out: str | Path, lm: LM, dtype: str = "float32") -> None:
    """Write config.json and model.safetensors as published; tokenizer files only if it is not GPT-2's."""
    config, vocab = lm.config, lm.tokenizer.vocab
    if not layout.is_published(config) or lm.labels:
        net = config.model
        other = f"the method {net.method}" if net.method != "mdlm" else f"the network {net.network}"
        what = "labels" if lm.labels else other
        raise UserError(f"the published layout cannot express {what}; leave out --to published")
    tokenizer = None if vocab.size == layout.GPT2.size else lm.tokenizer
    described = layout.to_published(config, vocab, dtype)
    layout.write_files(out, described, layout.tensors_of(lm.model, config, dtype), tokenizer)
