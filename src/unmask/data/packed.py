"""One split on disk: tokens, ends and labels, complete or absent, and checked when it is read.

SPLIT.bin are the tokens (uint16 or uint32), SPLIT.idx for `pad` where each document ends (uint64), SPLIT.lab for
labelled data the label of each document (uint16), SPLIT.json counts, sizes, labels and checksums, written last.
"""

from __future__ import annotations

import hashlib
import os
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np

from ..files import is_sound, read_json_or_none, stamped, write_json
from ..types import Progress
from .documents import Piece
from .labels import Numbering
from .unknown import check_bases, count_unknown

if TYPE_CHECKING:
    from .pack import Prepared

FORMAT = 1
BATCH = 1 << 20  # characters tokenized at once
WHOLE = 64 << 20  # bytes: larger files are checked by size, head and tail
STALE = 86_400.0  # seconds after which an unfinished file has no owner any more


def map_file(path: Path, dtype: np.dtype[Any]) -> np.ndarray:
    """The numbers of a file, without reading it."""
    if path.stat().st_size == 0:  # an empty file cannot be mapped
        return np.empty(0, dtype=dtype)
    return np.memmap(path, dtype=dtype, mode="r")


def intact(folder: Path, split: str) -> dict[str, Any] | None:
    """The facts of a cached split if its files are what they should be."""
    return read_record(folder / f"{split}.json", FORMAT, _checksum)


def read_record(path: Path, version: int, checksum: Callable[[Path], list[Any]]) -> dict[str, Any] | None:
    """A record that was written last, if it has this format and the files that it lists are what they should be."""
    record = read_json_or_none(path)
    if record is None or not is_sound(record):
        return None
    try:
        sound = record["format"] == version and all(
            checksum(path.parent / name) == recorded for name, recorded in record["files"].items()
        )
    except (KeyError, AttributeError, OSError):
        sound = False
    return record if sound else None


def _checksum(path: Path) -> list[Any]:
    """Size and hash, of everything or, for large files, of head and tail."""
    size = path.stat().st_size
    with path.open("rb") as file:
        if size <= WHOLE:
            digest = hashlib.file_digest(file, "sha256")
        else:
            digest = hashlib.sha256(file.read(1 << 20))
            file.seek(-(1 << 20), 2)
            digest.update(file.read())
    return [size, digest.hexdigest()]


def clear(folder: Path) -> None:
    """Remove what killed processes left behind (not what a process elsewhere may still be writing)."""
    for path in folder.glob(".*.part"):
        if time.time() - path.stat().st_mtime > STALE:
            path.unlink(missing_ok=True)


def write_splits(prepared: Prepared, splits: list[str], progress: Progress | None) -> None:
    """One pass over the corpus, or over the parts of it that were asked for."""
    size, done = prepared.corpus.size, 0
    writers = {split: SplitWriter(prepared, split) for split in splits}
    try:
        for batch in _batches(prepared.corpus.pieces(splits)):
            arrays = prepared.tokenizer.arrays([piece.text for _, piece in batch])
            for split, writer in writers.items():
                done += writer.add(
                    [
                        (piece, ids)
                        for (piece_split, piece), ids in zip(batch, arrays, strict=True)
                        if piece_split == split
                    ]
                )
            if progress is not None:
                progress(min(done, size) if size else done, size)
        for writer in writers.values():
            writer.commit()
    finally:
        for writer in writers.values():
            writer.close()
    if progress is not None:
        progress(size or done, size or done)


def _batches(pieces: Iterable[tuple[str, Piece]]) -> Iterator[list[tuple[str, Piece]]]:
    batch: list[tuple[str, Piece]] = []
    size = 0
    for pair in pieces:
        batch.append(pair)
        size += len(pair[1].text) + 64  # very short documents have a fixed cost
        if size >= BATCH:
            yield batch
            batch, size = [], 0
    if batch:
        yield batch


class SplitWriter:
    """One split on its way to disk: everything goes to temporary files until it is complete."""

    def __init__(self, prepared: Prepared, split: str) -> None:
        vocab = prepared.tokenizer.vocab
        self.folder, self.split = prepared.folder, split
        self.pad = prepared.spec.layout != "wrap"
        self.eos = vocab.eos if prepared.spec.eos_between and not self.pad else None
        self.dtype = np.dtype("<u2" if vocab.size <= 1 << 16 else "<u4")
        column = prepared.spec.label
        self.labels = None if column is None else Numbering(column)
        self.where = f"split {split!r} of {prepared.spec.source}"
        self.names = [
            f"{split}.bin",
            *([f"{split}.idx"] if self.pad else []),
            *([f"{split}.lab"] if self.labels else []),
        ]
        self.files = [self._temporary(name) for name in self.names]
        self.tokenizer, self.source = prepared.tokenizer, prepared.spec.source
        self.tokens = self.documents = self.bytes = self.unknown = 0
        self.last = 0  # where the last document ended
        self.more: dict[str, int] = {}  # other counts for the record

    def _temporary(self, name: str) -> BinaryIO:
        handle, path = tempfile.mkstemp(dir=self.folder, prefix=f".{name}.", suffix=".part")
        os.close(handle)
        return Path(path).open("wb")

    def add(self, pieces: list[tuple[Piece, np.ndarray]]) -> int:
        """Append pieces with their tokens; gives their size in bytes."""
        between = np.array([] if self.eos is None else [self.eos], dtype=np.uint32)
        parts: list[np.ndarray] = [between[:0]]
        ends, labels = [], []
        size = 0
        for piece, ids in pieces:
            parts.append(ids)
            size += len(piece.text) if piece.text.isascii() else len(piece.text.encode())
            self.tokens += len(ids)
            if piece.ends:
                parts.append(between)
                self.tokens += len(between)
                if not self.pad or self.tokens > self.last:  # a tokenizer may make nothing of a document: no row for it
                    ends.append(self.tokens)
                    self.last = self.tokens
                    if self.labels is not None:
                        document = f"document {self.documents + len(ends)} in {self.where}"
                        labels.append(self.labels.number(piece.label, document))
        tokens = np.concatenate(parts)
        self.unknown += count_unknown(self.tokenizer, tokens)
        check_bases(self.tokenizer, self.unknown, self.tokens, self.source)
        self.files[0].write(tokens.astype(self.dtype).tobytes())
        if self.pad:
            self.files[1].write(np.array(ends, dtype="<u8").tobytes())
        if self.labels is not None:
            self.files[2].write(np.array(labels, dtype="<u2").tobytes())
        self.documents += len(ends)
        self.bytes += size
        return size

    def commit(self) -> None:
        """Give the files their names; the record comes last, so that a split is complete or absent."""
        checksums = {}
        (self.folder / f"{self.split}.json").unlink(missing_ok=True)
        for file, name in zip(self.files, self.names, strict=True):
            file.close()
            Path(file.name).replace(self.folder / name)
            checksums[name] = _checksum(self.folder / name)
        counts = {"tokens": self.tokens, "documents": self.documents, "bytes": self.bytes, "unknown": self.unknown}
        record = {"format": FORMAT, "dtype": self.dtype.str, "files": checksums, **counts, **self.more}
        if self.labels is not None:
            record["labels"] = list(self.labels.ids)
        write_json(self.folder / f"{self.split}.json", stamped(record))

    def close(self) -> None:
        """Leave no temporary file behind, also where closing one writes to a full disk."""
        for file in self.files:
            with suppress(OSError):
                file.close()
            Path(file.name).unlink(missing_ok=True)
