"""Where prepared data lives, and the names it has there: hashes of content and settings."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

from .. import files
from ..config import DataConfig
from ..types import UserError

SMALL = 1 << 18  # bytes: a file that is read faster than a note about it is written
RACY_SECONDS = 2.0  # a file that was just written may change again without changing its time stamp


def cache_folder(spec: DataConfig) -> Path:
    """`data.cache`, else $UNMASK_CACHE, else ~/.cache/unmask; made if missing."""
    folder = Path(spec.cache or os.environ.get("UNMASK_CACHE") or "~/.cache/unmask").expanduser()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextmanager
def writing(folder: Path) -> Iterator[None]:
    """Say how to choose another cache folder where this one is full or belongs to somebody else."""
    with files.writing(f"the cache folder {folder}", "set data.cache or UNMASK_CACHE"):
        yield


def content_key(*parts: Any) -> str:
    """A short name for a combination of settings and content; any difference gives another name."""
    return hashlib.sha256(json.dumps(parts, sort_keys=True).encode()).hexdigest()[:32]


def file_hash(path: Path, cache: Path) -> str:
    """SHA-256 of a file's bytes; remembered by (path, size, time), so a big file is read once."""
    status = path.stat()
    if status.st_size < SMALL:
        return files.sha256(path)
    name = content_key(str(path.resolve()), status.st_size, status.st_mtime_ns)
    note = cache / "hashes" / f"{name}.json"
    known = files.read_json_or_none(note)
    if known is not None and files.is_sound(known) and isinstance(known.get("sha256"), str):
        return known["sha256"]
    digest = files.sha256(path)
    if time.time() - status.st_mtime > RACY_SECONDS and path.stat().st_mtime_ns == status.st_mtime_ns:
        with suppress(OSError, UserError):  # a cache that is only read will do
            note.parent.mkdir(exist_ok=True)
            files.write_json(note, files.stamped({"sha256": digest, "path": str(path.resolve())}))
    return digest
