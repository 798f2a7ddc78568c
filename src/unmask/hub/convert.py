"""Models in other layouts to portable folders: Lightning checkpoints of the paper's repository, .bin files, runs."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from torch import Tensor

from ..config import Config, load_yaml
from ..data.tokenization import Tokenizer
from ..files import read_json
from ..lm import LM
from ..models import registry
from ..networks.foreign.families import LLADA, TRANSFORMERS, Names
from ..recipes import owt
from ..types import Progress, UserError
from . import checkpoint, layout, lora, pickled, resolve
from .gguf_files import SUFFIX
from .layout import Described
from .lightning import FLAT_EMBEDDING, read_lightning

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
    ignore: Sequence[str] = (),
    length: int | None = None,
    progress: Progress = lambda done, total: None,
) -> dict[str, Any]:
    """Write the model of any source as a folder; returns a summary for a report.

    `new_head` adds a new masked-LM head to an encoder that has none; `ignore` are settings of a Lightning checkpoint
    (as model.name) that unmask does not know and that do not matter; `length` as in `hub.load`. `progress` gets two
    stages: read, and written.
    """
    if to not in ("unmask", "published", "adapter"):
        raise UserError(f"--to {to} must be 'unmask', 'published' or 'adapter'")
    if weights not in ("ema", "raw"):
        raise UserError(f"--weights {weights} must be 'ema' or 'raw'")
    layout.refuse_existing(Path(out))  # before an hour of reading
    if to == "adapter":
        return write_adapter(source, out, weights, dtype)
    lm, used = open_source(source, tokenizer, weights, revision, new_head, ignore, length)
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


def write_adapter(source: str, out: str | Path, weights: str, dtype: str = "float32") -> dict[str, Any]:
    """Write the adapters of a run as peft lays them out; a summary as that of `convert`."""
    path = Path(source)
    folder = checkpoint.resolve(path) if path.is_dir() and not layout.is_folder(path) else None
    config = None if folder is None or not (folder / "config.yaml").is_file() else load_yaml(folder / "config.yaml")
    if folder is None or config is None or config.train.lora.rank is None:
        raise UserError(f"--to adapter is for runs with train.lora, and {source} is none; leave it out")
    if dtype not in layout.DTYPES:
        raise UserError(f"dtype {dtype!r} must be one of {', '.join(layout.DTYPES)}")
    checkpoint.verify(folder)
    group = "ema" if weights == "ema" and config.train.ema else "model"
    model, base, digest = resolve.run_adapters(folder, config, group)
    tokenizer = Tokenizer.load(folder)
    lm = resolve.advised(LM(model, tokenizer, config), folder)
    start = str(config.train.start)
    lora.write_adapter(out, model, lm, config, start, digest, layout.DTYPES[dtype], _names_of(start))
    kept = lora.adapters(model)
    return {
        "out": str(out),
        "to": "adapter",
        "method": config.model.method,
        "parameters": sum(p.numel() for p in kept.values()),
        "tensors": len(kept),
        "weights": "ema" if group == "ema" else "raw",
        "dtype": dtype,
        "length": config.data.length,
        "vocab": asdict(base.tokenizer.vocab),
        "tokenizer": tokenizer.name,
        "unsaid": {},
    }


def _names_of(base: str) -> Names:
    """The names of tensors in the files of a base model."""
    file = resolve.find(base) / layout.CONFIG
    kind = read_json(file, "cannot read the base model").get("model_type") if file.is_file() else None
    return LLADA if kind == "llada" else TRANSFORMERS


def open_source(
    source: str,
    tokenizer: str | None,
    weights: str,
    revision: str | None,
    new_head: bool = False,
    ignore: Sequence[str] = (),
    length: int | None = None,
) -> tuple[LM, str]:
    """The model of a source, and which of its weights were used."""
    path = Path(source)
    if path.is_file() and path.suffix != SUFFIX:
        if revision is not None:
            raise UserError(f"{source} is a local file; revision is for models on the Hub")
        described, tensors, used = read_file(path, weights, ignore)
        tokens = resolve.the_tokenizer(tokenizer, described, source, path.parent if described.vocab is None else None)
        described = layout.with_length(layout.with_tokenizer(described, tokens, tokenizer), length, source)
        described, tensors = layout.named(described, tensors, source, new_head)
        return resolve.assemble(described, tokens, tensors, source), used
    if ignore:
        raise UserError(f"--ignore is for Lightning checkpoints; delete the field from the {layout.CONFIG} of {source}")
    if path.is_file() or layout.is_folder(resolve.find(source, revision)):
        if weights != "ema":
            raise UserError(f"{source} holds only one set of weights; leave --weights out")
        lm = resolve.load(source, tokenizer=tokenizer, revision=revision, new_head=new_head, length=length)
        if path.is_file():
            return lm, "dequantised"
        return lm, "with a new head" if new_head else "as published"
    lm = resolve.load(source, weights=weights, tokenizer=tokenizer, new_head=new_head, length=length)
    return lm, weights if lm.config.train.ema else "raw"


def read_file(path: Path, weights: str, ignore: Sequence[str] = ()) -> tuple[Described, Tensors, str]:
    """What a pickled file holds: a checkpoint of the paper's code, or tensors with a config.json next to them."""
    if path.suffix not in resolve.PICKLES:
        raise UserError(f"{path} is not a model; convert reads folders, Hub ids and {', '.join(resolve.PICKLES)} files")
    tree = pickled.load(path)
    state = tree.get("state_dict") if isinstance(tree, dict) else None
    beside = layout.is_folder(path.parent)
    if isinstance(state, dict) and FLAT_EMBEDDING not in state and beside:
        return layout.read_folder(path.parent), pickled.tensors(state, path), "raw"
    if state is not None:
        return read_lightning(tree, path, weights, ignore)
    if not beside:
        raise UserError(
            f"{path} holds tensors only, and there is no {layout.CONFIG} next to it that describes the model"
        )
    return layout.read_folder(path.parent), pickled.tensors(tree, path), "raw"


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
