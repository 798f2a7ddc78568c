"""Where prepared data lives, and how files get there: hashed by content, written beside and renamed into place."""

from __future__ import annotations

import hashlib
import json
import os
import secrets
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from ..config import DataConfig
from ..types import UserError

RACY_SECONDS = 2.0  # a file that was just written may change again without changing its time stamp


def cache_folder(spec: DataConfig) -> Path:
    """`data.cache`, else $UNMASK_CACHE, else ~/.cache/unmask; made if missing."""
    folder = Path(spec.cache or os.environ.get("UNMASK_CACHE") or "~/.cache/unmask").expanduser()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """A full disk or a folder that belongs to somebody else is the user's to know."""
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise UserError(f"cannot write the cache folder {folder} ({reason}); set data.cache or UNMASK_CACHE") from None


def content_key(*parts: Any) -> str:
    """A short name for a combination of settings and content; any difference gives another name."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A temporary neighbour of `path` to write to; it takes the name of `path` if nothing goes wrong."""
    name = path.with_name(f".{path.name}.{secrets.token_hex(8)}")
    os.close(os.open(name, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o666))  # mkstemp's are closed to all other users
    try:
        yield name
        os.replace(name, path)
    except BaseException:
        name.unlink(missing_ok=True)
        raise


def write_json(path: Path, content: Any) -> None:
    """Write JSON that is either there completely or not at all."""
    with replacing(path) as temporary:
        temporary.write_text(json.dumps(content, indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_json(path: Path) -> dict[str, Any] | None:
    """A JSON object, or None where there is none that can be read."""
    try:
        content = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return None
    return content if isinstance(content, dict) else None


def file_hash(path: Path, cache: Path) -> str:
    """SHA-256 of a file's bytes; remembered by (path, size, time), so a big file is read once."""
    status = path.stat()
    name = content_key(str(path.resolve()), status.st_size, status.st_mtime_ns)
    note = cache / "hashes" / f"{name}.json"
    known = read_json(note)
    if known is not None and isinstance(known.get("sha256"), str):
        return known["sha256"]
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    if time.time() - status.st_mtime > RACY_SECONDS and path.stat().st_mtime_ns == status.st_mtime_ns:
        with suppress(OSError):  # a cache that is only read will do
            note.parent.mkdir(exist_ok=True)
            write_json(note, {"sha256": digest, "path": str(path.resolve())})
    return digest
