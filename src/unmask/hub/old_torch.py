"""Files of torch before 1.6, which are no zip: pickles one after the other, then the numbers of every storage.

The pickles are a magic number, the version, facts about the machine, what was saved, and the names of the storages.
They are run by the same machine as all others (`pickled`), and every storage must have its place in the file.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

from .torch_zip import DTYPES, LARGEST, Archive, Damaged, Name, Storage, is_count

MAGIC, VERSION = 0x1950A86A20F9469CFC6C, 1001
SIZE = struct.Struct("<q")
Run = Callable[[Archive, io.BytesIO], Any]


def is_old(path: Path) -> bool:
    """Whether a file begins with the magic number of the old format."""
    with path.open("rb") as file:
        return file.read(14)[2:] == b"\x8a\x0a" + MAGIC.to_bytes(10, "little")


def read(path: Path, run: Run) -> Any:
    """What such a file holds; `run` runs one pickle of a stream."""
    archive = OldArchive(path)
    with path.open("rb") as file:
        head = io.BytesIO(file.read(LARGEST))  # the numbers come last
    if run(archive, head) != MAGIC or run(archive, head) != VERSION:
        raise Damaged("it is of torch's old format, but of another version")
    about = run(archive, head)
    if not isinstance(about, dict) or about.get("little_endian") is not True:
        raise Damaged("it was written by a big-endian machine, which is not supported; save it as safetensors")
    tree = run(archive, head)
    archive.locate(run(archive, head), head.tell())
    return tree


class OldArchive(Archive):
    """The storages of a file: named by its pickles, found when all of them are known."""

    def __init__(self, path: Path) -> None:
        self.path, self.last = path, ("", b"")
        self.storages: dict[str, Storage] = {}
        self.places: dict[str, int] = {}

    def storage(self, spec: Any) -> Storage:
        """The storage that a persistent id means: ('storage', type, key, device, number of elements, view)."""
        if not isinstance(spec, tuple) or len(spec) != 6 or spec[0] != "storage":
            raise Damaged("it refers to something that is not a storage")
        _, kind, key, _, numel, view = spec
        if view is not None:
            raise Damaged("its storages are parts of others; open it with torch and save it again")
        if not isinstance(kind, Name) or kind.module not in ("torch", "torch.storage") or kind.name not in DTYPES:
            raise Damaged(f"it has a storage of unknown type {str(kind)[:80]}")
        if not isinstance(key, str) or not is_count(numel):
            raise Damaged("it has a storage without a name or size")
        named = self.storages.setdefault(key, Storage(self, key, DTYPES[kind.name], numel))
        if (named.dtype, named.numel) != (DTYPES[kind.name], numel):
            raise Damaged(f"storage {key[:40]!r} has two types or sizes")
        return named

    def locate(self, keys: Any, at: int) -> None:
        """Find the numbers of every storage, which stand in the order of `keys` from `at` on."""
        if not isinstance(keys, list) or set(map(str, keys)) != self.storages.keys() or len(keys) != len(self.storages):
            raise Damaged("its list of storages is not that of its tensors")
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            for key in keys:
                storage = self.storages[key]
                file.seek(at)
                raw = file.read(SIZE.size)
                if len(raw) < SIZE.size or SIZE.unpack(raw)[0] != storage.numel:
                    raise Damaged(f"the numbers of storage {key[:40]!r} are missing; copy or download it again")
                self.places[key] = at + SIZE.size
                at += SIZE.size + storage.numel * storage.dtype.itemsize
                if at > size:
                    raise Damaged(f"it is cut short in storage {key[:40]!r}; copy or download it again")

    def data(self, key: str) -> bytes:
        """The numbers of a storage."""
        if self.last[0] != key:
            storage = self.storages[key]
            with self.path.open("rb") as file:
                file.seek(self.places[key])
                self.last = (key, file.read(storage.numel * storage.dtype.itemsize))
        return self.last[1]
