"""From files to pieces of text, streaming: no reader holds more than one document or one megabyte.

A document is what gets an end-of-text token: a line, a paragraph or a whole .txt file, a row of a .jsonl or
.parquet file. A piece is a document, or a part of a long one, and is the unit of tokenization and of the split into
train, valid and test. Documents are cut where a cut does not change how byte-level BPE and WordPiece tokenize them:
before the single whitespace character in front of a word. Rows of a table may have a label, which all pieces of a row
carry.
"""

from __future__ import annotations

import csv
import json
import re
from collections.abc import Callable, Collection, Iterable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError, nearest
from . import readers
from .readers import read_lines, read_text

PIECE = 1 << 16  # characters: no piece is longer
FILE_PIECES = 256  # a file that is one document is cut into about this many pieces, so that it can be split
SMALLEST_PIECE = 256  # characters

TABLES = ("jsonl", "json", "csv", "tsv", "parquet")
NO_TEXT = {
    b"%PDF": "a PDF; make text of it, for example with pdftotext",
    b"PK": "a zip file (or a document in one, as .docx or .epub); unpack it, or export it as text",
    b"PAR1": "a Parquet file; name it .parquet",
    b"\xd0\xcf\x11\xe0": "an Office document; export it as text",
    b"{\\rtf": "a rich text document; export it as plain text",
    b"\xff\xfe": "UTF-16 text; make UTF-8 of it: iconv -f utf-16 -t utf-8",
    b"\xfe\xff": "UTF-16 text; make UTF-8 of it: iconv -f utf-16 -t utf-8",
    b"\x89PNG": "a picture; give a text file",
    b"\xff\xd8\xff": "a picture; give a text file",
    b"7z\xbc\xaf": "a 7z archive; unpack it and give the folder",
    b"SQLite format 3": "a database; export a table as .csv",
}

Fragment = tuple[str, bool]  # some text; whether the document ends after it
Detokenize = Callable[[str], str]

_BOUNDARIES = tuple(
    re.compile(f"(?s:.*){place}")  # the last such place: the search starts at the end
    for place in (
        r"\n(?=\n\S)",  # between paragraphs: the next piece starts with one newline
        r"(?=\n\S)",  # between lines
        r"(?=[ \t]\S)",  # between words
    )
)


class Piece(NamedTuple):
    """A document or a part of one; `ends` says that what follows in its split is another document."""

    text: str
    ends: bool = True
    label: str | None = None  # of its document, where `data.label` names a column


class FileEntry(NamedTuple):
    """The text in a row of a table, with the label of the row if one is wanted."""

    text: str
    label: str | None = None


def format_of(path: Path) -> str | None:
    """'txt', 'jsonl' or 'parquet', from the name of a file that is surely a corpus; None for anything else."""
    name = readers.unpacked_name(path)
    kind = name.rpartition(".")[2]
    if kind == "parquet":
        return "parquet" if path.name.lower() == name else None
    return kind if kind in ("txt", "jsonl") and "." in name else None


def table_of(path: Path) -> str | None:
    """The kind of table that a file is, from its name: jsonl, json, csv, tsv or parquet; None for text."""
    name = readers.unpacked_name(path)
    kind = name.rpartition(".")[2] if "." in name else ""
    return {"ndjson": "jsonl"}.get(kind, kind) if kind in (*TABLES, "ndjson") else None


def check_text(path: Path) -> None:
    """One sentence for a file that is not text, with what to do instead."""
    with readers.open_bytes(path) as (stream, _):
        head = stream.read(4096)
    for magic, what in NO_TEXT.items():
        if head.startswith(magic):
            raise UserError(f"{path} is not a corpus but {what}")
    if b"\0" in head:
        tables = ", ".join(f".{kind}" for kind in TABLES)
        raise UserError(
            f"{path} is not a corpus: it is not text; give a text file, a table ({tables}) or a folder of them"
        )


def read(
    path: Path, document: str, field: str, piece: int, label: str | None = None, detokenize: Detokenize | None = None
) -> Iterator[Piece]:
    """The pieces of one file; `document` is line, paragraph, file or row, `piece` the size for whole-file documents.

    A detokenizer gets a row of a table, or a line of a text file (with its line break where that stays in the text).
    """
    if document == "row":
        return by_row(entries(table_rows(path, field, label), field, label), detokenize)
    assert label is None, "text files have no columns"
    if document == "line" and detokenize is not None:
        return by_row((FileEntry(line.removesuffix("\n")) for line in read_lines(path)), detokenize)
    chunks = read_text(path) if detokenize is None else map(detokenize, read_lines(path))
    fragments: dict[str, Callable[[Iterable[str]], Iterator[Fragment]]]
    fragments = {"line": by_line, "paragraph": by_paragraph, "file": by_file}
    return cut(fragments[document](chunks), piece if document == "file" else PIECE)


def cut(fragments: Iterable[Fragment], size: int = PIECE) -> Iterator[Piece]:
    """Join fragments into documents, cut at `size` characters; documents without a visible character are dropped."""
    buffer, start = "", 0
    continued = False  # whether a piece of this document is out already
    for text, ends in fragments:
        buffer, start = buffer[start:] + text, 0
        while len(buffer) - start > size:
            stop = _boundary(buffer, start, size)
            yield Piece(buffer[start:stop], False)
            start, continued = stop, True
        if ends:
            rest = buffer[start:]
            if continued or (rest and not rest.isspace()):
                yield Piece(rest, True)
            buffer, start, continued = "", 0, False


def _boundary(text: str, start: int, size: int) -> int:
    """The best place to cut in the second half of text[start:start + size]."""
    for pattern in _BOUNDARIES:
        if match := pattern.match(text, start + size // 2, start + size):
            return match.end()
    return start + size


def by_file(chunks: Iterable[str]) -> Iterator[Fragment]:
    """The whole file is one document."""
    for chunk in chunks:
        yield chunk, False
    yield "", True


def by_line(chunks: Iterable[str]) -> Iterator[Fragment]:
    """Every line is a document."""
    for chunk in chunks:
        *lines, rest = chunk.split("\n")
        for line in lines:
            yield line, True
        yield rest, False
    yield "", True


def by_paragraph(chunks: Iterable[str]) -> Iterator[Fragment]:
    """Documents are separated by blank lines; newlines inside a paragraph stay."""
    blank, first = True, True  # of the current line; of the current paragraph
    held = ""  # whitespace of a line that may turn out to be blank
    for text, ends_line in by_line(chunks):
        if text and not text.isspace():
            yield (held if blank else "") + text, False
            blank, held = False, ""
        elif blank:
            held += text
        else:
            yield text, False
        if ends_line:
            if blank and not first:
                yield "", True
            first = blank
            blank, held = True, "" if first else "\n"
    if not first:
        yield "", True


def by_row(entries: Iterable[FileEntry], detokenize: Detokenize | None = None) -> Iterator[Piece]:
    """Every row is a document."""
    for text, label in entries:
        for piece in cut([(storable(text if detokenize is None else detokenize(text)), True)]):
            yield piece if label is None else Piece(piece.text, piece.ends, label)


def storable(text: str) -> str:
    """JSON may hold half a surrogate pair, which UTF-8 cannot: it becomes U+FFFD."""
    try:
        text.encode()
    except UnicodeEncodeError:
        return text.encode("utf-16", "surrogatepass").decode("utf-16", "replace")
    return text


def read_jsonl(path: Path, field: str, label: str | None = None) -> Iterator[FileEntry]:
    """The strings in one field of a JSON-lines file, with the labels in another."""
    return entries(readers.jsonl_rows(path), field, label)


def read_parquet(path: Path, field: str, label: str | None = None) -> Iterator[FileEntry]:
    """The strings in one column of a Parquet file, with the labels in another."""
    return entries(parquet_rows(path, field, label), field, label)


def parquet_rows(path: Path, field: str, label: str | None = None) -> Iterator[readers.Located]:
    """Every row of a Parquet file, of which only these columns are read."""
    return readers.parquet_rows(path, lambda names: checked_fields(field, label, names, str(path)))


def table_rows(path: Path, field: str, label: str | None = None) -> Iterator[readers.Located]:
    """Every row of a table."""
    kind = table_of(path)
    if kind == "parquet":
        return parquet_rows(path, field, label)
    if kind == "csv":
        return header_rows(path, field)
    if kind == "tsv":  # quotes are ordinary characters there
        return header_rows(path, field, delimiter="\t", quoting=csv.QUOTE_NONE)
    return readers.json_rows(path) if kind == "json" else readers.jsonl_rows(path)


def header_rows(path: Path, field: str, **options: Any) -> Iterator[readers.Located]:
    """The rows of a table with the names of its columns in the first line; `options` as `csv.reader` has them."""
    header: list[str] | None = None
    for where, cells in readers.csv_rows(path, **options):
        if header is None:
            header = cells
            check_field(field, header, str(path))
        elif len(cells) != len(header):
            raise UserError(f"{where} has {len(cells)} cells for {len(header)} columns; the file is damaged")
        else:
            yield where, dict(zip(header, cells, strict=True))


def entries(rows: Iterable[readers.Located], field: str, label: str | None) -> Iterator[FileEntry]:
    """Text and label of the rows that have text."""
    for where, row in rows:
        if (row_entry := entry(row, field, label, where)) is not None:
            yield row_entry


def checked_fields(field: str, label: str | None, known: Collection[str], where: str) -> list[str]:
    """The columns of text and label, or one sentence when there is no such column."""
    check_field(field, known, where)
    if label is not None:
        check_field(label, known, where, "data.label")
    return [field] if label is None else [field, label]


def check_field(field: str, known: Collection[str], where: str, setting: str = "data.field") -> None:
    """One sentence when a column does not exist."""
    if field not in known:
        listed = ", ".join(map(repr, list(known)[:12]))
        raise UserError(f"{where} has no field {field!r}{nearest(field, known)}; set {setting} to one of {listed}")


def entry(row: Any, field: str, label: str | None, where: str) -> FileEntry | None:
    """Text and label of a row of a table, None where it has no text."""
    text = text_value(row, field, where)
    if text is None:
        return None
    return FileEntry(text, None if label is None else label_value(row, label, where))


def text_value(row: Any, field: str, where: str) -> str | None:
    """The text in a row of a table, None where it has none."""
    if not isinstance(row, dict):
        raise UserError(f"{where} is not a JSON object with a field {field!r}")
    check_field(field, row, where)
    value = row[field]
    if value is not None and not isinstance(value, str):
        raise UserError(
            f"field {field!r} in {where} is {type(value).__name__}, not text; set data.field to a text field"
        )
    return value


def label_value(row: dict[str, Any], label: str, where: str) -> str:
    """The label of a row by its name: a string, or a whole number or truth value as JSON writes it."""
    check_field(label, row, where, "data.label")
    value = row[label]
    if value is None or (isinstance(value, str) and not value.strip()):
        raise UserError(f"{where} has no label: field {label!r} is empty; give the row a label or leave it out")
    if not isinstance(value, str | int):
        raise UserError(
            f"field {label!r} in {where} is {type(value).__name__}, not a label; "
            "set data.label to a field of strings or whole numbers"
        )
    return storable(value) if isinstance(value, str) else json.dumps(value)
