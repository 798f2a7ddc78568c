"""Data sets as they are on disk: which files of a folder are which split, and what a row of such a file is.

A record says under which file names its set is distributed (`Files`); besides, every set may be a folder of tables, as
the Hub, `datasets.save_to_disk` and people keep them: .parquet, .jsonl (.json, .gz), .csv with a header, .arrow. Rows
are what the Hub's rows of the same set are, so that both give the same text. All readers stream.
"""

from __future__ import annotations

import io
import zipfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path, PurePath
from typing import Any

from ..errors import UserError, optional
from . import documents, readers
from .documents import Piece
from .readers import Located
from .records import CORPORA, Files, Record

TEXT8 = {"train": (0, 90_000_000), "valid": (90_000_000, 95_000_000), "test": (95_000_000, 100_000_000)}
SPLIT_NAMES = {
    "train": "train",
    "training": "train",
    "valid": "valid",
    "validation": "valid",
    "val": "valid",
    "dev": "valid",
    "test": "test",
}
TABLES = ("parquet", "jsonl", "json", "csv", "arrow")


@dataclass(frozen=True)
class DatasetFiles:
    """A set on disk: its files by split, and how they are read."""

    read: str
    files: Mapping[str, list[Path]]


# ---- which files


def split_of(path: PurePath) -> str | None:
    """The split that a word in the path names, if one does."""
    words = "".join(c if c.isascii() and c.isalpha() else " " for c in path.as_posix().lower()).split()
    return next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)


def by_split(folder: Path, files: list[Path]) -> tuple[dict[str, list[Path]], int]:
    """Files by the split in their names, and how many were left out; without such names all of them are `train`."""
    named: dict[str, list[Path]] = {"train": [], "valid": [], "test": []}
    rest: list[Path] = []
    for path in files:
        split = split_of(path.relative_to(folder))
        (named[split] if split else rest).append(path)
    splits = {split: paths for split, paths in named.items() if paths}
    if "train" in splits or len(splits) > 1 or (splits and not rest):
        return splits, len(rest)
    return {"train": files}, 0


def below(folder: Path) -> list[Path]:
    """The files below a folder in a fixed order, hidden ones left out."""
    files = [p for p in folder.rglob("*") if p.is_file()]
    files = [p for p in files if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    return sorted(files, key=lambda p: p.relative_to(folder).as_posix())


def locate(record: Record, path: Path, only_below: bool = False) -> DatasetFiles | None:
    """The set at `path`: its folder or file, or (with `only_below`: only) a folder of sets that has it."""
    for name in record.folders:
        if (dataset := _dataset_at(record, path / name)) is not None:
            return dataset
    return None if only_below or _is_root(record, path) else _dataset_at(record, path)


def expected(record: Record) -> str:
    """In words, what `locate` looks for."""
    names = [names[0] for form in record.layouts for names in form.splits.values()]
    shown = ", ".join(dict.fromkeys(names[:3]))
    folders = " or ".join(f"{name}/" for name in record.folders[:2])
    return f"{shown + ' or ' if shown else ''}.parquet, .jsonl, .csv or .arrow files, in it or in {folders} below it"


def _is_root(record: Record, path: Path) -> bool:
    """Whether this is a folder of several sets: then its other files are not this one."""
    others = {name.partition("/")[0] for other in CORPORA.values() if other is not record for name in other.folders}
    return any((path / name).is_dir() for name in others - {name.partition("/")[0] for name in record.folders})


def _dataset_at(record: Record, path: Path) -> DatasetFiles | None:
    if not path.exists():
        return None
    folder, files = (path.parent, [path]) if path.is_file() else (path, below(path))
    for form in record.layouts:
        if splits := _matching(form, folder, files):
            return DatasetFiles(form.read, splits)
    tables = [p for p in files if table_format(p) and not p.name.startswith("cache-")]  # what `map` leaves behind
    if not tables:
        return None
    return DatasetFiles("table", by_split(folder, tables)[0])


def _matching(form: Files, folder: Path, files: list[Path]) -> dict[str, list[Path]]:
    splits: dict[str, list[Path]] = {}
    for split, patterns in form.splits.items():
        for pattern in patterns:
            if split not in splits and (fits := [p for p in files if p.relative_to(folder).match(pattern)]):
                splits[split] = fits
    return splits


def table_format(path: Path) -> str | None:
    """parquet, jsonl, csv or arrow, from the name of a file; None for anything else and for notes beside the data."""
    name = path.name.lower()
    kind = name.removesuffix(".gz").rpartition(".")[2]
    if kind not in TABLES or "." not in name or name in ("dataset_info.json", "dataset_dict.json", "state.json"):
        return None
    if name.endswith(".gz") and kind in ("parquet", "arrow"):
        return None
    return "jsonl" if kind == "json" else kind


# ---- what a row is


def rows(read: str, path: Path, field: str, label: str | None) -> Iterator[Located]:
    """The rows of a file, those without text included, so that they can be counted."""
    return READERS[read](path, field, label)


def count(read: str, path: Path, field: str) -> int:
    """How many rows a file has: a Parquet file records it, others are read."""
    if read == "table" and table_format(path) == "parquet":
        pq = optional("pyarrow.parquet", "a Parquet file", "data")
        with readers.arrow_errors(path, "a Parquet"):
            return int(pq.read_metadata(path).num_rows)
    return sum(1 for _ in rows(read, path, field, None))


def between(
    read: str, paths: Iterable[Path], field: str, label: str | None, start: int, stop: int
) -> Iterator[Located]:
    """Rows start to stop of several files taken together; of files outside only the size is read."""
    offset = 0
    for path in paths:
        if offset >= stop:
            return
        size = count(read, path, field)
        if offset + size > start:
            yield from islice(rows(read, path, field, label), max(0, start - offset), stop - offset)
        offset += size


def _lines(path: Path, field: str, label: str | None) -> Iterator[Located]:
    """WikiText: a row is a line with its spaces and its line break; a blank line is an empty row."""
    for number, line in enumerate(readers.read_lines(path), 1):
        yield readers.line_of(path, number), {field: "" if line.isspace() else line}


def _sentences(path: Path, field: str, label: str | None) -> Iterator[Located]:
    """LM1B, PTB: a row is a line without the space around it."""
    for number, line in readers.numbered_lines(path):
        yield readers.line_of(path, number), {field: line.strip()}


def _articles(path: Path, field: str, label: str | None) -> Iterator[Located]:
    """Scientific papers as their authors keep them: JSON lines with a list of sentences, which the Hub joins."""
    for where, row in readers.jsonl_rows(path):
        sentences = row.get("article_text") if isinstance(row, dict) else None
        if isinstance(sentences, list) and all(isinstance(sentence, str) for sentence in sentences):
            row = {**row, "article": "\n".join(sentences)}
        elif not isinstance(row, dict) or "article" not in row:
            raise UserError(
                f"{where} is not a paper: it has no list of sentences in article_text; download the set again"
            )
        yield where, row


def _news(path: Path, field: str, label: str | None) -> Iterator[Located]:
    """AG News as its authors keep it: class 1 to 4, title, description; the Hub joins the last two with a space."""
    names = CORPORA["ag_news"].labels
    for where, cells in readers.csv_rows(path, skipinitialspace=True):
        if len(cells) != 3 or cells[0] not in [str(number + 1) for number in range(len(names))]:
            raise UserError(f"{where} is not a class (1 to 4), a title and a description; download the set again")
        yield where, {"text": f"{cells[1]} {cells[2]}", "label": names[int(cells[0]) - 1]}


def _table(path: Path, field: str, label: str | None) -> Iterator[Located]:
    kind = table_format(path)
    if kind == "parquet":
        return documents.parquet_rows(path, field, label)
    return {"jsonl": _jsonl, "csv": _header_csv, "arrow": _arrow_rows}[kind or ""](path, field, label)


def _jsonl(path: Path, field: str, label: str | None) -> Iterator[Located]:
    return readers.jsonl_rows(path)


def _header_csv(path: Path, field: str, label: str | None) -> Iterator[Located]:
    return documents.header_rows(path, field)


def _arrow_rows(path: Path, field: str, label: str | None) -> Iterator[Located]:
    """What `datasets` writes: Arrow streams; and Arrow files."""
    pa = optional("pyarrow", "an Arrow file", "data")
    number = 0
    with readers.arrow_errors(path, "an Arrow"), pa.memory_map(str(path)) as source:
        try:
            batches: Iterable[Any] = pa.ipc.open_stream(source)
        except pa.ArrowInvalid:
            file = pa.ipc.open_file(source)
            batches = (file.get_batch(i) for i in range(file.num_record_batches))
        for batch in batches:
            columns = documents.checked_fields(field, label, batch.schema.names, str(path))
            for row in batch.select(columns).to_pylist():
                number += 1
                yield f"row {number} of {path}", row


READERS: dict[str, Callable[[Path, str, str | None], Iterator[Located]]] = {
    "lines": _lines,
    "sentences": _sentences,
    "articles": _articles,
    "news": _news,
    "table": _table,
}


# ---- sets that are one long document


def document_pieces(path: Path) -> Iterator[Piece]:
    """A whole file as one document."""
    return documents.cut(documents.by_file(readers.read_text(path)))


def text8_pieces(path: Path, split: str) -> Iterator[Piece]:
    """The 90, 5 and 5 million characters of text8 or text8.zip, each as one document."""
    start, stop = TEXT8[split]
    return documents.cut(documents.by_file(_characters(path, start, stop)))


def _characters(path: Path, start: int, stop: int) -> Iterator[str]:
    try:
        with _text8_bytes(path) as file:
            position = 0
            while position < stop and (data := file.read(readers.CHUNK)):
                chunk = data.decode("ascii")
                yield chunk[max(0, start - position) : stop - position]
                position += len(chunk)
    except (UnicodeDecodeError, zipfile.BadZipFile, zlib.error, KeyError, EOFError, OSError) as error:
        raise UserError(f"{path} is not text8 or its zip file: {' '.join(str(error).split())[:200]}") from None
    if position < stop:
        raise UserError(f"{path} ends after {position:,} characters, text8 has {TEXT8['test'][1]:,}; download it again")


@contextmanager
def _text8_bytes(path: Path) -> Iterator[Any]:
    """The bytes of text8, from the file or from the zip file it comes in."""
    if path.suffix.lower() != ".zip":
        with path.open("rb") as file:
            yield file
        return
    with zipfile.ZipFile(path) as archive, archive.open("text8") as member:
        yield io.BufferedReader(member)
