"""Files to text, lines and rows: plain or gzip (bgzip too), streaming. What is wrong with a file is said here.

A gzip file is known by its first bytes. A bgzip file must have its last block: one that is cut at the end of a block
would otherwise read as a shorter file.
"""

from __future__ import annotations

import codecs
import csv
import gzip
import io
import json
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from ..errors import UserError, optional
from ..types import Progress

CHUNK = 1 << 20  # bytes read at once
MAGIC = b"\x1f\x8b"
BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")  # the last block of a bgzip file

Located = tuple[str, Any]  # where a row is, in words; the row


class DamagedFile(UserError):
    """A compressed file that ends too early or cannot be unpacked."""


class NotText(UserError):
    """A file that is not UTF-8."""


def line_of(path: Path | str, number: int) -> str:
    """Where a line is, in words."""
    return f"line {number} of {path}"


def number_in(where: str) -> str:
    """The number in what `line_of` says."""
    return where.split(" ", 2)[1]


# ---- bytes


@contextmanager
def open_bytes(path: Path | str) -> Iterator[tuple[IO[bytes], BinaryIO]]:
    """(the bytes of a file, unpacked if need be; the file itself, whose position tells how far it is read)."""
    try:
        with Path(path).open("rb") as raw:
            yield _unpacked(raw, path), raw
    except (EOFError, zlib.error, gzip.BadGzipFile):
        raise DamagedFile(f"{path} is cut short or damaged: its gzip data has no end; copy it again") from None
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give a file") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


def _unpacked(raw: BinaryIO, path: Path | str) -> IO[bytes]:
    head = raw.read(14)
    raw.seek(0)
    if not head.startswith(MAGIC):
        return raw
    if head[3:4] == b"\x04" and head[12:14] == b"BC":
        raw.seek(max(0, raw.seek(0, io.SEEK_END) - len(BGZIP_END)))
        if raw.read() != BGZIP_END:
            raise DamagedFile(f"{path} is cut short: the last block of a bgzip file is missing; copy it again")
        raw.seek(0)
    return gzip.GzipFile(fileobj=raw, mode="rb")  # type: ignore[return-value]


def is_gzip(path: Path | str) -> bool:
    """Whether a file begins as gzip files do, whatever its name says."""
    with Path(path).open("rb") as file:
        return file.read(len(MAGIC)) == MAGIC


def read_bytes(path: Path | str, chunk: int = CHUNK, progress: Progress | None = None) -> Iterator[bytes]:
    """The content of a file in chunks; `progress` is told bytes of the file that were read, and its size."""
    with open_bytes(path) as (stream, raw):
        size = Path(path).stat().st_size
        while data := stream.read(chunk):
            if progress is not None:
                progress(min(raw.tell(), size), size)
            yield data


# ---- text


def read_text(path: Path | str) -> Iterator[str]:
    """The text of a UTF-8 file in chunks; line ends become newlines, a byte-order mark is dropped."""
    decoder = codecs.getincrementaldecoder("utf-8")()
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    position = 0
    with open_bytes(path) as (stream, _):
        while True:
            data = stream.read(CHUNK)
            pending = len(decoder.getstate()[0])
            try:
                text = decoder.decode(data, final=not data)
            except UnicodeDecodeError as error:
                raise _not_utf8(path, position - pending + error.start) from None
            if position == 0:
                text = text.removeprefix("\ufeff")
            position += len(data)
            if text := newlines.decode(text, final=not data):
                yield text
            if not data:
                return


def split_lines(chunks: Iterable[str]) -> Iterator[str]:
    """The lines of a text, each with its line break (the last may have none)."""
    held: list[str] = []
    for chunk in chunks:
        *whole, rest = chunk.split("\n")
        for line in whole:
            yield "".join([*held, line, "\n"])
            held = []
        held.append(rest)
    if last := "".join(held):
        yield last


def read_lines(path: Path | str) -> Iterator[str]:
    """The lines of a file, each with its line break (the last may have none)."""
    return split_lines(read_text(path))


def numbered_lines(path: Path | str, kind: str | None = None) -> Iterator[tuple[int, str]]:
    """(number, line without its line break) of a file; `kind` says what to give instead of a file that is not text."""
    try:
        yield from ((number, line.removesuffix("\n")) for number, line in enumerate(read_lines(path), 1))
    except NotText:
        if kind is None:
            raise
        raise UserError(f"{path} is not text; give a {kind}") from None


def _not_utf8(path: Path | str, offset: int) -> NotText:
    return NotText(f"{path} is not UTF-8 text: bad byte at offset {offset}; convert the file to UTF-8")


# ---- rows


def jsonl_rows(path: Path | str) -> Iterator[Located]:
    """Every row of a JSON-lines file that is not blank."""
    position = 0
    with open_bytes(path) as (stream, _):
        for number, line in enumerate(stream, 1):
            try:
                text = line.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as error:
                raise _not_utf8(path, position + error.start) from None
            position += len(line)
            if text.isspace() or not text:
                continue
            try:
                row = json.loads(text)
            except (ValueError, RecursionError):
                raise UserError(f"{line_of(path, number)} is not JSON; every line must be an object") from None
            yield line_of(path, number), row


def csv_rows(path: Path | str, **options: Any) -> Iterator[tuple[str, list[str]]]:
    """The cells of every row that is not blank, the header included; `options` as `csv.reader` has them."""
    reader = csv.reader(read_lines(path), strict=True, **options)
    try:
        yield from ((line_of(path, reader.line_num), cells) for cells in reader if cells)
    except csv.Error as error:
        where = line_of(path, reader.line_num)
        raise UserError(f"{where} is damaged ({error}); write the file again") from None


def parquet_rows(path: Path | str, columns: Callable[[Sequence[str]], list[str]]) -> Iterator[Located]:
    """Every row of a Parquet file; `columns` chooses among those that it has, and only these are read."""
    pq = optional("pyarrow.parquet", "a Parquet file", "data")
    with arrow_errors(path, "a Parquet"), pq.ParquetFile(path, memory_map=True) as file:
        number = 0
        for batch in file.iter_batches(batch_size=256, columns=columns(file.schema_arrow.names)):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number} of {path}", row


@contextmanager
def arrow_errors(path: Path | str, kind: str) -> Iterator[None]:
    """One sentence for a file that pyarrow cannot read."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise UserError(f"{path} cannot be read as {kind} file: {str(error).splitlines()[0]}") from None
