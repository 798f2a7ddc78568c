"""The folder of a run: which checkpoints it has, what is in one, and tensors whole or in shards.

A checkpoint is a sealed folder (`files`): safetensors for everything with numbers in it, JSON and text for the rest,
and a manifest with the size and SHA-256 of every file. If the process is killed or the disk is full, the previous
checkpoint stays intact. Nothing is ever unpickled.
"""

from __future__ import annotations

import re
import shutil
import warnings
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from .. import files
from ..types import UserError

SHARDS = "shards"
STEP = re.compile(r"step-(\d{8})")


@contextmanager
def writing(folder: Path) -> Iterator[Path]:
    """A temporary folder that becomes `folder`, sealed and synced, if the block succeeds, and is deleted otherwise."""
    fix = "earlier checkpoints are untouched, free some space and run the same command again"
    with files.writing(f"checkpoint {folder}", fix), files.sealed_folder(folder) as temporary:
        yield temporary


def verify(folder: Path, only: str | None = None) -> None:
    """Raise a UserError that names the file if anything (or one file) is missing, truncated or changed."""
    files.verify(folder, "checkpoint", _fix(folder), only)


def read_json(path: Path) -> dict[str, Any]:
    """A JSON object of a checkpoint, or a UserError."""
    return files.read_json(path, "cannot read the checkpoint", _fix(path.parent))


def _fix(folder: Path) -> str:
    if STEP.fullmatch(folder.name):
        return f"; delete the folder {folder} to go on from the checkpoint before it"
    return ""


# -- tensors, whole or in shards: groups of named tensors -----------------------------------------------------------

Groups = Mapping[str, Mapping[str, Tensor]]


def write_whole(folder: Path, groups: Groups) -> None:
    """One safetensors file per group."""
    for group, tensors in groups.items():
        save_file({k: v.detach().contiguous().cpu() for k, v in tensors.items()}, folder / f"{group}.safetensors")


def write_shards(folder: Path, groups: Groups) -> None:
    """Every process writes its part with torch.distributed.checkpoint, as safetensors (a collective call)."""
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageWriter

    flat = {f"{group}.{name}": tensor for group, tensors in groups.items() for name, tensor in tensors.items()}
    try:
        dcp.save(flat, storage_writer=HuggingFaceStorageWriter(str(folder / SHARDS), save_distributed=True))
    except dcp.api.CheckpointException as error:
        first = next(iter(error.failures.values()))[0]
        raise OSError(str(first)) from None


def read_into(folder: Path, group: str, targets: Mapping[str, Tensor]) -> None:
    """Fill tensors by name, strictly, from a checkpoint of either kind; targets may be sharded."""
    if (folder / SHARDS).is_dir():
        _read_shards(folder, group, targets)
        return
    path = folder / f"{group}.safetensors"
    try:
        values = load_file(path)
    except FileNotFoundError:
        raise UserError(f"checkpoint file {path} is missing{_fix(folder)}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"checkpoint file {path} is damaged: {error}{_fix(folder)}") from None
    check_names({name: t.shape for name, t in targets.items()}, {name: t.shape for name, t in values.items()}, path)
    for name, target in targets.items():
        assign(target, values[name])


def shapes(folder: Path, group: str) -> dict[str, Any]:
    """The shapes of a group's tensors by name, from the headers of its files."""
    if (folder / SHARDS).is_dir():
        from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

        stored = HuggingFaceStorageReader(str(folder / SHARDS)).read_metadata().state_dict_metadata
        return {n.removeprefix(f"{group}."): m.size for n, m in stored.items() if n.startswith(f"{group}.")}  # type: ignore[union-attr]
    path = folder / f"{group}.safetensors"
    try:
        with safe_open(path, framework="pt") as file:
            return {name: file.get_slice(name).get_shape() for name in file.keys()}  # noqa: SIM118 (not a dict)
    except FileNotFoundError:
        raise UserError(f"checkpoint file {path} is missing{_fix(folder)}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"checkpoint file {path} is damaged: {error}{_fix(folder)}") from None


def _read_shards(folder: Path, group: str, targets: Mapping[str, Tensor]) -> None:
    import torch.distributed.checkpoint as dcp
    from torch.distributed.checkpoint.hf_storage import HuggingFaceStorageReader

    reader = HuggingFaceStorageReader(str(folder / SHARDS))
    check_names({name: t.shape for name, t in targets.items()}, shapes(folder, group), folder / SHARDS)
    flat = {f"{group}.{name}": target.detach() for name, target in targets.items()}
    alone = not any(hasattr(target, "device_mesh") for target in targets.values())
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        dcp.load(flat, storage_reader=reader, no_dist=alone)


def check_names(wanted: Mapping[str, Any], actual: Mapping[str, Any], path: str | Path) -> None:
    """Raise unless every tensor is accounted for with the right shape; compares names and shapes only."""
    for what, names in (("lacks", wanted.keys() - actual.keys()), ("has unknown", actual.keys() - wanted.keys())):
        if names:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise UserError(f"{path} does not fit this model: it {what} {len(names)} tensor(s): {some}")
    for name, shape in wanted.items():
        if tuple(actual[name]) != tuple(shape):
            raise UserError(
                f"{path} does not fit this model: {name} has shape {tuple(actual[name])}, "
                f"the model wants {tuple(shape)}"
            )


# -- the folder of a run ---------------------------------------------------------------------------------------------


def step_folder(run: Path, step: int) -> Path:
    """The folder of the checkpoint of a step."""
    return run / "checkpoints" / f"step-{step:08d}"


def steps(run: Path) -> list[int]:
    """Steps that have a checkpoint, oldest first."""
    root = run / "checkpoints"
    if not root.is_dir():
        return []
    matches = (STEP.fullmatch(path.name) for path in root.iterdir())
    return sorted(int(match[1]) for match in matches if match)


def prune(run: Path, keep_last: int, best: int | None) -> None:
    """Delete all checkpoints except the last k and the best, and what interrupted writers left behind."""
    for step in steps(run)[:-keep_last]:
        if step != best:
            with suppress(OSError), files.removing(step_folder(run, step)):
                pass
    for leftover in (run / "checkpoints").glob(".step-*.writing"):
        shutil.rmtree(leftover, ignore_errors=True)


def resolve(path: str | Path, which: str = "last") -> Path:
    """The checkpoint folder that a path means: itself, or the last (or best) one of a run."""
    folder = Path(path)
    sealed = (folder / files.MANIFEST).is_file() and not (folder / "config.json").is_file()  # else a model for others
    if sealed or (STEP.fullmatch(folder.name) and folder.is_dir()):
        return folder
    saved = steps(folder)
    if not saved:
        raise UserError(f"no checkpoint in {folder}; train one with: unmask train demo --out {folder}")
    last = step_folder(folder, saved[-1])
    if which == "last":
        return last
    verify(last, only="state.json")
    best = read_json(last / "state.json").get("best")
    if not best or best["step"] not in saved:
        raise UserError(f"{folder} has no best checkpoint yet; use the last one")
    return step_folder(folder, best["step"])


def full(tensor: Tensor) -> Tensor:
    """The full tensor of one that may be sharded (then it is a collective call)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensor: Tensor) -> Tensor:
    """The local part of a tensor that may be sharded; shares memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def assign(target: Tensor, value: Tensor) -> None:
    """Copy a full tensor into one that may be sharded."""
    if hasattr(target, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)  # type: ignore[attr-defined]
    with torch.no_grad():
        target.copy_(value)
