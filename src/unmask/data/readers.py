"""Files to text, lines and rows: plain, gzip (bgzip too), xz, bzip2 or zstd, streaming.

What is wrong with a file is said here. No file takes more memory than its longest row: what unpacks to hundreds of
times its size is refused before it fills a disk, and so is a row that is too long.

A compressed file is known by its first bytes. A bgzip file must have its last block: one that is cut at the end
of a block would otherwise read as a shorter file.
"""

from __future__ import annotations

import bz2
import codecs
import csv
import gzip
import io
import json
import lzma
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, BinaryIO

from ..errors import UserError, optional
from ..types import Progress

CHUNK = 1 << 20  # bytes read at once
MOST_ROW = 1 << 30  # bytes of a row of a table
BOMB = (256 << 20, 500)  # bytes, and how often its size: text that unpacks to more than both is no text
MAGIC, XZ_MAGIC = b"\x1f\x8b", b"\xfd7zXZ\x00"
BZIP_MAGIC, ZSTD_MAGIC = b"1AY&SY", b"\x28\xb5\x2f\xfd"  # of bzip2 after "BZh" and the level
COMPRESSED = (".gz", ".bgz", ".xz", ".bz2", ".zst")  # endings of compressed files
BGZIP_END = bytes.fromhex("1f8b08040000000000ff0600424302001b0003000000000000000000")  # the last block of a bgzip file

_BETWEEN = re.compile(r"[\s,]*")  # what stands between the rows of a list

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
    except (EOFError, zlib.error, gzip.BadGzipFile, lzma.LZMAError):
        raise DamagedFile(f"{path} is cut short or damaged: its compressed data has no end; copy it again") from None
    except FileNotFoundError:
        raise UserError(f"there is no file {path}") from None
    except IsADirectoryError:
        raise UserError(f"{path} is a folder; give a file") from None
    except OSError as error:
        raise UserError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None


class _Unpacked(io.RawIOBase):
    """What a compressed file holds, counted: a bomb is refused."""

    def __init__(self, inner: Any, path: Path | str) -> None:
        self.inner, self.path, self.count = inner, path, 0
        least, times = BOMB
        self.most = max(least, times * Path(path).stat().st_size)

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self.inner.read(len(buffer))
        buffer[: len(data)] = data
        self.count += len(data)
        if self.count > self.most:
            raise DamagedFile(
                f"{self.path} unpacks to more than {BOMB[1]} times its size, as no text does; "
                "unpack it yourself if you trust it"
            )
        return len(data)


def _unpacked(raw: BinaryIO, path: Path | str) -> IO[bytes]:
    inner = _inner(raw, path)
    return raw if inner is raw else io.BufferedReader(_Unpacked(inner, path), CHUNK)


def _inner(raw: BinaryIO, path: Path | str) -> Any:
    """The file, or what reads its compressed data."""
    head = raw.read(14)
    raw.seek(0)
    if head.startswith(XZ_MAGIC):
        return lzma.LZMAFile(raw)
    if head.startswith(b"BZh") and head[4:10] == BZIP_MAGIC:
        return bz2.BZ2File(raw)
    if head.startswith(ZSTD_MAGIC):
        return _zstd(raw, path)
    if not head.startswith(MAGIC):
        return raw
    if head[3:4] == b"\x04" and head[12:14] == b"BC":
        raw.seek(max(0, raw.seek(0, io.SEEK_END) - len(BGZIP_END)))
        if raw.read() != BGZIP_END:
            raise DamagedFile(f"{path} is cut short: the last block of a bgzip file is missing; copy it again")
        raw.seek(0)
    return gzip.GzipFile(fileobj=raw, mode="rb")


def _zstd(raw: BinaryIO, path: Path | str) -> Any:
    try:
        from compression import zstd  # type: ignore[import-not-found]  # Python 3.14
    except ImportError:
        raise UserError(
            f"{path} is compressed with zstd, which Python reads from version 3.14 on; "
            "unpack it (zstd -d), or use .gz or .xz"
        ) from None
    return zstd.ZstdFile(raw)


def is_compressed(path: Path | str) -> bool:
    """Whether a file begins as compressed files do, whatever its name says."""
    with Path(path).open("rb") as file:
        head = file.read(10)
    return head.startswith((MAGIC, XZ_MAGIC, ZSTD_MAGIC)) or (head.startswith(b"BZh") and head[4:] == BZIP_MAGIC)


def unpacked_name(path: Path | str) -> str:
    """The name of a file in lower case, without the ending of its compression."""
    name = Path(path).name.lower()
    return next((name.removesuffix(ending) for ending in COMPRESSED if name.endswith(ending)), name)


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


def split_lines(chunks: Iterable[str], path: Path | str = "the text") -> Iterator[str]:
    """The lines of a text, each with its line break (the last may have none)."""
    held: list[str] = []
    number = 1
    for chunk in chunks:
        if held and sum(map(len, held)) > MOST_ROW:
            raise UserError(f"{line_of(path, number)} is longer than {MOST_ROW >> 30} GB; make it several lines")
        *whole, rest = chunk.split("\n")
        for line in whole:
            yield "".join([*held, line, "\n"])
            held, number = [], number + 1
        held.append(rest)
    if last := "".join(held):
        yield last


def read_lines(path: Path | str) -> Iterator[str]:
    """The lines of a file, each with its line break (the last may have none)."""
    return split_lines(read_text(path), path)


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
        for number, line in enumerate(iter(lambda: stream.readline(MOST_ROW), b""), 1):
            if len(line) >= MOST_ROW:
                raise UserError(f"{line_of(path, number)} is longer than {MOST_ROW >> 30} GB; make it several rows")
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


def json_rows(path: Path | str) -> Iterator[Located]:
    """The rows of a .json file: a list of them, read one by one, or one row per line."""
    chunks = read_text(path)
    text = ""
    while not text and (chunk := next(chunks, "")):
        text = chunk.lstrip()
    if not text.startswith("["):
        try:
            yield from jsonl_rows(path)
        except UserError as error:
            if not str(error).startswith(line_of(path, 1) + " is not JSON"):
                raise
            raise UserError(
                f"{path} is JSON, but neither a list of rows nor one row per line; to read it as plain text, "
                "set data.document=file"
            ) from None
        return
    decoder, number, at = json.JSONDecoder(), 0, 1
    while True:
        at = _BETWEEN.match(text, at).end()  # type: ignore[union-attr]
        where = f"row {number + 1} of {path}"
        if text[at : at + 1] == "]":
            return
        row, end = _decoded(decoder, text, at, where)
        if at < end < len(text):  # a number at the end of a chunk may go on
            number, at = number + 1, end
            yield where, row
        else:
            text, at = _longer(chunks, text[at:], where), 0


def _decoded(decoder: json.JSONDecoder, text: str, at: int, where: str) -> tuple[Any, int]:
    """The value at a place of a text and where it ends; at that place itself if it is not complete."""
    try:
        return decoder.raw_decode(text, at)
    except RecursionError:
        raise UserError(f"{where} is nested too deeply; every row must be an object") from None
    except ValueError:
        return None, at


def _longer(chunks: Iterator[str], rest: str, where: str) -> str:
    """A text with more of the file after it: twice as much, so that long rows take linear time."""
    parts, size = [rest], len(rest)
    while size <= 2 * len(rest) and (chunk := next(chunks, "")):
        parts.append(chunk)
        size += len(chunk)
    if len(parts) == 1:
        raise UserError(f"{where} is not JSON; the file is cut short or damaged")
    if size > MOST_ROW:
        raise UserError(f"{where} is longer than {MOST_ROW >> 30} GB; make it several rows")
    return "".join(parts)


def csv_rows(path: Path | str, **options: Any) -> Iterator[tuple[str, list[str]]]:
    """The cells of every row that is not blank, the header included; `options` as `csv.reader` has them."""
    csv.field_size_limit(MOST_ROW)
    reader = csv.reader(read_lines(path), strict=True, **options)
    try:
        yield from ((line_of(path, reader.line_num), cells) for cells in reader if cells)
    except csv.Error as error:
        where = line_of(path, reader.line_num)
        raise UserError(f"{where} is damaged ({error}); write the file again") from None


def parquet_rows(path: Path | str, columns: Callable[[Sequence[str]], list[str]]) -> Iterator[Located]:
    """Every row of a Parquet file; `columns` chooses among those that it has, and only these are read."""
    pq = optional("pyarrow.parquet", "a Parquet file", "data")
    with arrow_errors(path, "a Parquet"), pq.ParquetFile(path, buffer_size=CHUNK) as file:
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
