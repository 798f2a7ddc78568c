"""Files and folders that are complete or absent: written under a temporary name, synced, renamed; sealed; JSON.

A kill or a full disk at any moment leaves what was there before. What the operating system refuses becomes one
sentence (`writing`); where two blocks explain the same failure, the outer one knows better what the file was for.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .errors import UserError
from .jsonable import finite

log = logging.getLogger(__name__)
LARGEST_JSON = 1 << 26  # bytes: an object in memory has many times as many
MANIFEST = "manifest.json"  # of a sealed folder: the size and SHA-256 of every file
CHECK = "checksum"  # of a stamped JSON object, in itself
LOCK = ".lock"  # of a folder that a process works in


class WriteError(UserError):
    """Something could not be written: what, why, and what to do."""

    def __init__(self, what: object, reason: str, fix: str) -> None:
        super().__init__(f"could not write {what} ({reason}); {fix}")
        self.reason = reason


# -- writing ----------------------------------------------------------------------------------------------------------


@contextmanager
def writing(what: object, fix: str) -> Iterator[None]:
    """Say in one sentence that `what` could not be written, and how to go on."""
    from safetensors import SafetensorError

    try:
        yield
    except WriteError as error:
        raise WriteError(what, error.reason, fix) from None
    except OSError as error:
        raise WriteError(what, (error.strerror or str(error)).lower(), fix) from None
    except SafetensorError as error:
        raise WriteError(what, str(error), fix) from None


@contextmanager
def replacing(path: str | Path) -> Iterator[Path]:
    """A temporary neighbour of `path` to write to; it takes the name of `path` if nothing goes wrong."""
    path = Path(path)
    name = path.parent / f".{path.name}.{secrets.token_hex(8)}.writing"
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # mkstemp's are closed to all other users
    try:
        yield name
        sync(name)
        os.replace(name, path)
    except BaseException:
        with suppress(OSError):
            name.unlink(missing_ok=True)
        raise


def write_text(path: str | Path, text: str, fix: str = "free some space or choose another path") -> None:
    """Replace a text file in one step."""
    with writing(path, fix), replacing(path) as temporary:
        temporary.write_text(text, encoding="utf-8", newline="\n")


def write_json(path: str | Path, content: Any) -> None:
    """Replace a JSON file in one step."""
    write_text(path, json.dumps(finite(content), indent=1, sort_keys=True, allow_nan=False) + "\n")


@contextmanager
def replacing_folder(folder: str | Path, overwrite: bool = False) -> Iterator[Path]:
    """A temporary folder that becomes `folder`, synced, when the block ends well, and vanishes if not.

    Without `overwrite` the folder must not exist, or be empty.
    """
    folder = Path(folder).absolute()
    temporary = temporary_folder(folder)
    try:
        shutil.rmtree(temporary, ignore_errors=True)
        temporary.mkdir(parents=True)
        yield temporary
        for path in (temporary, *temporary.rglob("*")):
            sync(path)
        if overwrite and folder.exists():
            with removing(folder):  # it goes once the new one has its name
                os.rename(temporary, folder)
        else:
            os.rename(temporary, folder)
        sync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def temporary_folder(folder: Path) -> Path:
    """Where a folder is written before it gets its name: other processes can write there too."""
    return folder.with_name(f".{folder.name}.writing")


@contextmanager
def removing(folder: Path) -> Iterator[None]:
    """Take a folder's name away, and delete it after the block: a kill leaves it whole, or under no name of its own."""
    old = folder.with_name(f".{folder.name}.old.writing")
    shutil.rmtree(old, ignore_errors=True)
    os.rename(folder, old)
    try:
        yield
    except BaseException:
        os.rename(old, folder)
        raise
    shutil.rmtree(old, ignore_errors=True)


@contextmanager
def locked(folder: Path, what: str) -> Iterator[None]:
    """Hold a folder until the block ends, or say that another process does; `what` is what that process is doing.

    The lock ends with its process, however that dies. What killed writers left in the folder is removed.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(folder / LOCK, blocking=False)
    try:
        lock.acquire()
    except Timeout:
        raise UserError(f"another process {what} {folder}; wait until it has ended, or choose another folder") from None
    except NotImplementedError:
        log.warning("the file system of %s has no locks: take care that no other process uses it", folder)
    try:
        for leftover in (*folder.glob(".*.writing"), *folder.glob("*/.*.writing")):
            if leftover.is_dir():
                shutil.rmtree(leftover, ignore_errors=True)
            else:
                leftover.unlink(missing_ok=True)
        yield
    finally:
        lock.release()


def sync(path: Path) -> None:
    """Push a file or folder to the disk."""
    handle = os.open(path, os.O_RDONLY)
    try:
        os.fsync(handle)
    finally:
        os.close(handle)


# -- sealed folders ---------------------------------------------------------------------------------------------------


@contextmanager
def sealed_folder(folder: str | Path) -> Iterator[Path]:
    """As `replacing_folder`, and sealed; replaces a folder of that name."""
    with replacing_folder(folder, overwrite=True) as temporary:
        yield temporary
        seal(temporary)


def seal(folder: Path, *spared: str) -> None:
    """Record size and checksum of every file, except those that may change."""
    paths = [p for p in sorted(folder.rglob("*")) if p.is_file() and p.name not in (MANIFEST, *spared)]
    files = {p.relative_to(folder).as_posix(): {"size": p.stat().st_size, "sha256": sha256(p)} for p in paths}
    manifest = stamped({"format": 1, "files": files})
    (folder / MANIFEST).write_text(json.dumps(manifest, indent=1), encoding="utf-8")
    for path in paths:  # safetensors closes its files to all other users
        shutil.copymode(folder / MANIFEST, path)


def verify(folder: Path, kind: str, fix: str = "", only: str | None = None, rewritten: bool = False) -> None:
    """Raise one sentence that names the file if anything (or one file) is missing, cut short or changed.

    With `rewritten`, a folder in which a size is another one has been written anew, and is not compared.
    """
    manifest = read_json(folder / MANIFEST, f"{kind} {folder} is incomplete", fix)
    if not is_sound(manifest):
        raise UserError(f"{kind} file {folder / MANIFEST} is damaged: its checksum does not match{fix}")
    files = manifest.get("files")
    if not isinstance(files, dict) or not files:
        raise UserError(f"{kind} file {folder / MANIFEST} is damaged: it lists no files{fix}")
    sizes = {name: wanted.get("size") for name, wanted in files.items() if isinstance(wanted, dict)}
    if rewritten and any(_size(folder / name) != size for name, size in sizes.items()):
        return
    for name, wanted in files.items():
        path = folder / name
        if only not in (None, name):
            continue
        if not isinstance(wanted, dict) or not {"size", "sha256"} <= wanted.keys():
            raise UserError(f"{kind} file {folder / MANIFEST} is damaged: it says nothing of {name}{fix}")
        if not path.is_file():
            raise UserError(f"{kind} file {path} is missing{fix}")
        size = path.stat().st_size
        if size != wanted["size"]:
            raise UserError(f"{kind} file {path} is damaged: {size} bytes instead of {wanted['size']}{fix}")
        if sha256(path) != wanted["sha256"]:
            raise UserError(f"{kind} file {path} is damaged: its checksum does not match{fix}")


def _size(path: Path) -> int | None:
    return path.stat().st_size if path.is_file() else None


def stamped(content: dict[str, Any]) -> dict[str, Any]:
    """A JSON object with a checksum of itself, so that a changed bit in it is noticed."""
    return {**content, CHECK: _digest(content)}


def is_sound(content: dict[str, Any]) -> bool:
    """Whether a stamped object is as it was written; one from before there were stamps counts as sound."""
    rest = {key: value for key, value in content.items() if key != CHECK}
    return CHECK not in content or content[CHECK] == _digest(rest)


def _digest(content: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(finite(content), sort_keys=True).encode()).hexdigest()


def sha256(path: Path) -> str:
    """The checksum of a file's content."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# -- JSON -------------------------------------------------------------------------------------------------------------


def read_json(path: Path, context: str = "cannot read the file", fix: str = "") -> dict[str, Any]:
    """A JSON object from a file, or one sentence."""
    size = path.stat().st_size if path.is_file() else 0
    if size > LARGEST_JSON:
        raise UserError(f"{context}: {path} is damaged ({size:,} bytes; at most {LARGEST_JSON:,} are read){fix}")
    try:
        value = json.loads(path.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise UserError(f"{context}: {path} does not exist{fix}") from None
    except OSError as error:
        raise UserError(f"{context}: {path} cannot be read ({(error.strerror or str(error)).lower()})") from None
    except (ValueError, RecursionError):
        raise UserError(f"{context}: {path} is damaged (it is not JSON){fix}") from None
    if not isinstance(value, dict):
        raise UserError(f"{context}: {path} is damaged (it is not a JSON object){fix}")
    return value


def read_json_or_none(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none that can be read."""
    with suppress(UserError):
        return read_json(path)
    return None
