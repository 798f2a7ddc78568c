"""Folders that are complete or not there at all.

A checkpoint is a folder: safetensors for everything with numbers in it, JSON and text for the rest, and a manifest
with the size and SHA-256 of every file. It is written under a temporary name, synced, and renamed, so a kill or a full
disk at any moment leaves the previous checkpoint untouched. Nothing is ever unpickled.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file
from torch import Tensor

from .types import UserError

MANIFEST = "manifest.json"
STEP = re.compile(r"step-(\d{8})")


def save(
    folder: Path,
    tensors: Mapping[str, Mapping[str, Tensor]],
    state: Mapping[str, Any],
    others: Callable[[Path], None] = lambda folder: None,
) -> None:
    """Write a checkpoint folder atomically: {file: tensors}, state.json, and what `others` puts there."""
    temporary = folder.with_name(f".{folder.name}.writing")
    shutil.rmtree(temporary, ignore_errors=True)
    try:
        temporary.mkdir(parents=True)
        others(temporary)
        for name, named in tensors.items():
            save_file({k: v.detach().contiguous().cpu() for k, v in named.items()}, temporary / name)
        (temporary / "state.json").write_text(json.dumps(state, indent=1), encoding="utf-8")
        seal(temporary)
        if folder.exists():
            shutil.rmtree(folder)
        os.rename(temporary, folder)
        _sync(folder.parent)
    except (OSError, SafetensorError) as error:
        shutil.rmtree(temporary, ignore_errors=True)
        raise UserError(
            f"could not write checkpoint {folder} ({error}); earlier checkpoints are untouched, "
            "free some space and run the same command again"
        ) from None


def seal(folder: Path) -> None:
    """Record size and checksum of every file, and push all of it to the disk."""
    files = {p.name: _fingerprint(p) for p in sorted(folder.iterdir()) if p.name != MANIFEST}
    (folder / MANIFEST).write_text(json.dumps({"format": 1, "files": files}, indent=1), encoding="utf-8")
    for path in folder.iterdir():
        _sync(path)
    _sync(folder)


def verify(folder: Path) -> None:
    """Raise one sentence that names the file if anything is missing, cut short or changed."""
    manifest = read_json(folder / MANIFEST, f"checkpoint {folder} is incomplete")
    files = manifest.get("files")
    if not isinstance(files, dict):
        raise UserError(f"checkpoint file {folder / MANIFEST} is damaged: it lists no files{_fix(folder)}")
    for name, want in files.items():
        path = folder / name
        if not path.is_file():
            raise UserError(f"checkpoint file {path} is missing{_fix(folder)}")
        size = path.stat().st_size
        if size != want["size"]:
            raise UserError(f"checkpoint file {path} is damaged: {size} bytes instead of {want['size']}{_fix(folder)}")
        if _fingerprint(path)["sha256"] != want["sha256"]:
            raise UserError(f"checkpoint file {path} is damaged: its checksum does not match{_fix(folder)}")


def load_tensors(path: Path) -> dict[str, Tensor]:
    """Tensors of a safetensors file, or one sentence that names it."""
    try:
        return load_file(path)
    except FileNotFoundError:
        raise UserError(f"checkpoint file {path} is missing{_fix(path.parent)}") from None
    except (SafetensorError, OSError, ValueError) as error:
        raise UserError(f"checkpoint file {path} is damaged: {error}{_fix(path.parent)}") from None


def assign_all(targets: Mapping[str, Tensor], values: Mapping[str, Tensor], path: Path) -> None:
    """Copy tensors over by name, strictly: every one is accounted for, with the right shape."""
    for what, names in (("lacks", targets.keys() - values.keys()), ("has unknown", values.keys() - targets.keys())):
        if names:
            some = ", ".join(sorted(names)[:3]) + (", ..." if len(names) > 3 else "")
            raise UserError(f"{path} does not fit this model: it {what} {len(names)} tensor(s): {some}")
    for name, target in targets.items():
        if values[name].shape != target.shape:
            raise UserError(
                f"{path} does not fit this model: {name} has shape {tuple(values[name].shape)}, "
                f"the model wants {tuple(target.shape)}"
            )
        assign(target, values[name])


def read_json(path: Path, context: str = "cannot read the checkpoint") -> dict[str, Any]:
    """A JSON object from a file, or one sentence."""
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{context}: {path} does not exist") from None
    except (json.JSONDecodeError, UnicodeDecodeError):
        raise UserError(f"{context}: {path} is damaged (it is not JSON){_fix(path.parent)}") from None
    if not isinstance(value, dict):
        raise UserError(f"{context}: {path} is damaged (it is not a JSON object){_fix(path.parent)}")
    return value


# -- the folder of a run ---------------------------------------------------------------------------------------------


def step_folder(run: Path, step: int) -> Path:
    """Where the checkpoint of a step lies."""
    return run / "checkpoints" / f"step-{step:08d}"


def steps(run: Path) -> list[int]:
    """Steps that have a checkpoint, oldest first."""
    root = run / "checkpoints"
    if not root.is_dir():
        return []
    found = (STEP.fullmatch(path.name) for path in root.iterdir())
    return sorted(int(match[1]) for match in found if match)


def prune(run: Path, keep_last: int, best: int | None) -> None:
    """Delete all checkpoints but the last k and the best, and what killed writers left."""
    for step in steps(run)[:-keep_last]:
        if step != best:
            shutil.rmtree(step_folder(run, step), ignore_errors=True)
    for leftover in (run / "checkpoints").glob(".step-*.writing"):
        shutil.rmtree(leftover, ignore_errors=True)


def resolve(path: str | Path, which: str = "last") -> Path:
    """The checkpoint folder that a path means: itself, or the last (or best) one of a run."""
    folder = Path(path)
    if (folder / MANIFEST).is_file():
        return folder
    found = steps(folder)
    if not found:
        raise UserError(f"no checkpoint in {folder}; train one with: unmask train demo --out {folder}")
    last = step_folder(folder, found[-1])
    if which == "last":
        return last
    best = read_json(last / "state.json").get("best")
    if not best or best["step"] not in found:
        raise UserError(f"{folder} has no best checkpoint yet; use the last one")
    return step_folder(folder, best["step"])


def write_atomically(path: Path, text: str) -> None:
    """Replace a small text file in one step."""
    temporary = path.with_name(f".{path.name}.writing")
    temporary.write_text(text, encoding="utf-8")
    _sync(temporary)
    os.replace(temporary, path)


def _fix(folder: Path) -> str:
    if STEP.fullmatch(folder.name):
        return f"; delete the folder {folder} to go on from the checkpoint before it"
    return ""


def _fingerprint(path: Path) -> dict[str, Any]:
    with path.open("rb") as file:
        return {"size": path.stat().st_size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}


def _sync(path: Path) -> None:
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


def full(tensor: Tensor) -> Tensor:
    """The whole of a tensor that may be sharded (a collective call where it is)."""
    return tensor.full_tensor() if hasattr(tensor, "full_tensor") else tensor


def local(tensor: Tensor) -> Tensor:
    """The part here of a tensor that may be sharded; shares memory."""
    return tensor.to_local() if hasattr(tensor, "to_local") else tensor


def assign(target: Tensor, value: Tensor) -> None:
    """Copy a whole tensor into one that may be sharded."""
    if hasattr(target, "device_mesh"):
        from torch.distributed.tensor import distribute_tensor

        value = distribute_tensor(value.to(target.device), target.device_mesh, target.placements)  # type: ignore[attr-defined]
    with torch.no_grad():
        target.copy_(value)
