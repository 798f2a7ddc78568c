"""torch's zip files: their entries and storages with every bound checked, and tensors that stay in the file."""

from __future__ import annotations

import struct
import zipfile
import zlib
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

LARGEST = 1 << 26  # bytes of a pickle: the tensors are not in it
DTYPES = {
    "DoubleStorage": torch.float64,
    "FloatStorage": torch.float32,
    "HalfStorage": torch.float16,
    "BFloat16Storage": torch.bfloat16,
    "LongStorage": torch.int64,
    "IntStorage": torch.int32,
    "ShortStorage": torch.int16,
    "CharStorage": torch.int8,
    "ByteStorage": torch.uint8,
    "BoolStorage": torch.bool,
}


class Damaged(Exception):
    """The file is not what it should be; `load` turns this into a UserError."""


@dataclass(frozen=True)
class Name:
    """A name that a file refers to; it is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


def is_count(value: Any) -> bool:
    """Whether a value can be a size, an offset or a stride."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62


@dataclass(frozen=True)
class Storage:
    """The numbers of one or several tensors, still in the file."""

    archive: Archive
    key: str
    dtype: torch.dtype
    numel: int


@dataclass(frozen=True, eq=False)
class Stored:
    """A tensor, still in the file."""

    storage: Storage
    offset: int
    shape: tuple[int, ...]
    stride: tuple[int, ...]

    def read(self) -> Tensor:
        """The tensor, in newly allocated memory."""
        raw = self.storage.archive.data(self.storage.key)
        flat = torch.frombuffer(bytearray(raw), dtype=self.storage.dtype) if raw else torch.empty(0, dtype=self.dtype)
        return flat.as_strided(self.shape, self.stride, self.offset).clone(memory_format=torch.contiguous_format)

    @property
    def dtype(self) -> torch.dtype:
        """The type of its numbers."""
        return self.storage.dtype


class Archive:
    """A torch file: a zip of data.pkl and one uncompressed entry per storage."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.last: tuple[str, bytes] = ("", b"")  # tensors that share a storage often stand together
        if path.is_dir():
            raise Damaged("it is a folder")
        with path.open("rb") as file:
            start = file.read(4)
        if not zipfile.is_zipfile(path):
            if start.startswith(b"PK"):
                raise Damaged("it is cut short (its list of contents is missing); copy or download it again")
            if start.startswith(b"\x80"):
                raise Damaged("it is a pickle, but not one of torch's; save it as safetensors")
            raise Damaged("it is not a torch file")
        entries = self._entries()
        roots = [name.removesuffix("data.pkl") for name in entries if name.endswith("/data.pkl")]
        if len(roots) != 1 or roots[0].count("/") != 1:
            raise Damaged("it is a zip file, but not one of torch's (it has no data.pkl)")
        self.entries, self.root = entries, roots[0]
        order = f"{self.root}byteorder"
        if order in entries and self.content(order, 16).strip() != b"little":
            raise Damaged("it was written by a big-endian machine, which is not supported; save it as safetensors")

    def _entries(self) -> dict[str, zipfile.ZipInfo]:
        size = self.path.stat().st_size
        if (listed := _listed_bytes(self.path, size)) > LARGEST:
            raise Damaged(f"its list of contents has {listed:,} bytes, and torch's have at most {LARGEST:,}")
        try:
            with zipfile.ZipFile(self.path) as archive:
                infos = archive.infolist()
        except (zipfile.BadZipFile, ValueError, NotImplementedError, struct.error) as error:
            raise Damaged(f"it is damaged ({error}); copy or download it again") from None
        entries = {info.filename: info for info in infos}
        if len(entries) != len(infos):
            raise Damaged("it is damaged: two of its entries have the same name")
        for info in infos:
            if info.compress_type != zipfile.ZIP_STORED or info.flag_bits & 1:
                raise Damaged(f"its entry {info.filename[:80]!r} is packed or locked, which torch never does")
            if info.file_size > size:
                raise Damaged(
                    f"its entry {info.filename[:80]!r} claims {info.file_size:,} bytes, and the file has {size:,}"
                )
        return entries

    def content(self, name: str, most: int | None = None) -> bytes:
        """The content of an entry, with its checksum verified."""
        if name not in self.entries:
            raise Damaged(f"its entry {name[:80]!r} is missing")
        if most is not None and self.entries[name].file_size > most:
            raise Damaged(f"its entry {name[:80]!r} is larger than {most:,} bytes")
        try:
            with zipfile.ZipFile(self.path) as archive:
                return archive.read(self.entries[name])
        except (zipfile.BadZipFile, ValueError, NotImplementedError, EOFError, struct.error, zlib.error) as error:
            raise Damaged(f"it is damaged ({error}); copy or download it again") from None

    def pickle(self) -> bytes:
        """The program that says what the file holds."""
        return self.content(f"{self.root}data.pkl", LARGEST)

    def data(self, key: str) -> bytes:
        """The numbers of a storage."""
        if self.last[0] != key:
            self.last = (key, self.content(f"{self.root}data/{key}"))
        return self.last[1]

    def storage(self, spec: Any) -> Storage:
        """The storage that a persistent id means: ('storage', type, key, device, number of elements)."""
        if not isinstance(spec, tuple) or len(spec) != 5 or spec[0] != "storage":
            raise Damaged("it refers to something that is not a storage")
        _, kind, key, _, numel = spec
        if not isinstance(kind, Name) or kind.module not in ("torch", "torch.storage") or kind.name not in DTYPES:
            raise Damaged(f"it has a storage of unknown type {str(kind)[:80]}")
        if not isinstance(key, str) or not is_count(numel):
            raise Damaged("it has a storage without a name or size")
        dtype = DTYPES[kind.name]
        info = self.entries.get(f"{self.root}data/{key}")
        if info is None:
            raise Damaged(f"the numbers of storage {key[:40]!r} are missing")
        if info.file_size != numel * dtype.itemsize:
            raise Damaged(f"storage {key[:40]!r} has {info.file_size:,} bytes instead of {numel * dtype.itemsize:,}")
        return Storage(self, key, dtype, numel)


def _listed_bytes(path: Path, size: int) -> int:
    """The size that a zip file states for its list of contents, which is read as a whole."""
    tail = min(size, 1 << 17)  # the end record, with the longest comment
    with path.open("rb") as file:
        file.seek(size - tail)
        end = file.read(tail)
    large, small = end.rfind(b"PK\x06\x06"), end.rfind(b"PK\x05\x06")
    if large >= 0 and len(end) >= large + 48:
        return int(struct.unpack_from("<Q", end, large + 40)[0])
    return int(struct.unpack_from("<I", end, small + 12)[0]) if small >= 0 and len(end) >= small + 16 else 0
