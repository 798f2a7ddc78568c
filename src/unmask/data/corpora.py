"""Where text comes from: named data sets, files, folders and Hub data sets, each as one streaming `Corpus`.

What a source is, in this order: the name of a record in `CORPORA`; a file (any text, or a table: .jsonl, .json, .csv,
.tsv, .parquet; all but the last may be compressed); a folder of .txt, .jsonl and .parquet files, or of those that
`data.files` names; a data set on the Hugging Face Hub. A named set is read from `data.local`, else from
$UNMASK_DATA, else from the Hub. What a document of a .txt file is: `line`, `paragraph` (blank lines between) or `file`;
`auto` means `file` for layout=wrap (the model sees the text as it is), and for layout=pad, where a row is a document,
`paragraph` if the beginning has blank lines, else `line`.

The splits of the source are used where it has them: files or folders with train, valid (validation, val, dev) or test
in their names, or the splits of a Hub data set. Otherwise the stream of pieces is divided by `data.valid_fraction`,
`data.test_fraction` and `data.split_seed`. Each corpus has a fingerprint: equal content, equal fingerprint, whatever
its path.
"""

from __future__ import annotations

import logging
import os
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import Any

from ..config import DataConfig
from ..errors import nearest
from ..types import UserError
from . import dataset_files, detokenize, documents, python_docs, readers, records
from .cache import cache_folder, content_key, file_hash
from .dataset_files import SPLIT_NAMES
from .documents import Detokenize, FileEntry, Piece
from .hub_datasets import load_place, reader_of
from .records import CORPORA, Hub, Record
from .streams import SPLITTING, Corpus, Division, Reader, assemble

__all__ = ["CORPORA", "SPLITTING", "SPLIT_NAMES", "Corpus", "Division", "assemble", "open_corpus", "open_hub"]

ROWS = 1  # part of the fingerprint of named data sets: raise it when their rows are read in another way
COLUMNS = ("table", "news")  # forms that have labels

log = logging.getLogger(__name__)


def open_corpus(spec: DataConfig) -> Corpus:
    """The corpus that `data.source` names."""
    from .genome.genome_corpus import prepare_genome  # it imports this module

    if (genome := prepare_genome(spec, None, None)) is not None:
        return genome.corpus
    record = records.find(spec.source)
    default = "none" if record is None else record.detokenizer
    return replace(_open(spec, record), detokenizer=default if spec.detokenizer == "auto" else spec.detokenizer)


def _open(spec: DataConfig, record: Record | None) -> Corpus:
    if record is not None:
        corpus = _open_record(spec, record)
        if record.held_out or record.name == "python-docs":  # reading the first piece takes long, and always finds text
            return corpus
    else:
        corpus = _open_path(spec)
    if next(corpus.pieces(corpus.splits), None) is None:
        raise UserError(f"{spec.source} holds no text; give data.source a corpus with at least one document")
    return corpus


def _open_path(spec: DataConfig) -> Corpus:
    """A file, a folder, or a data set of the Hub that we have no record of."""
    path = Path(spec.source).expanduser()
    if not path.exists():
        _check_name(spec.source)
    if spec.local is not None and not path.exists():
        raise UserError(
            f"{spec.source!r} is not a named data set{nearest(spec.source, CORPORA)}, so data.local={spec.local} does "
            "not apply; `unmask data list` shows all of them"
        )
    if spec.local is not None:
        raise UserError(f"data.local={spec.local} belongs to a named data set; give the path as data.source instead")
    if spec.files is not None and not path.is_dir():
        raise UserError(f"data.files={spec.files} chooses files of a folder, and {spec.source} is none; leave it out")
    if path.is_file():
        return _open_files(spec, path.name, {"train": [path]})
    return _open_folder(spec, path) if path.is_dir() else open_hub(spec, spec.source)


def _detokenizer(spec: DataConfig, default: str = "none") -> tuple[Detokenize | None, list[Any]]:
    """The detokenizer that is wanted, and what it adds to the content that names the cache."""
    name = default if spec.detokenizer == "auto" else spec.detokenizer
    if name == "none":
        return None, []
    return detokenize.detokenizer(name), [{"detokenizer": [name, detokenize.RULES]}]


# ---- named data sets


def _open_record(spec: DataConfig, record: Record) -> Corpus:
    """A named set: from `data.local`, else from $UNMASK_DATA, else from the Hub."""
    if record.unread:
        raise UserError(f"{record.name!r} has no reader yet; {record.unread}")
    if record.name == "python-docs":
        return _open_python_docs(spec, record)
    if spec.local is None and Path(spec.source).exists():
        log.warning(
            "%s is read as the named data set; for the file or folder in this directory write ./%s", *[spec.source] * 2
        )
    dataset = _on_disk(spec, record)
    return _from_hub(spec, record) if dataset is None else _from_disk(spec, record, dataset)


def _open_python_docs(spec: DataConfig, record: Record) -> Corpus:
    _no_columns(spec, "python-docs")
    detokenize, also = _detokenizer(spec)

    def read() -> Iterator[Piece]:
        return documents.by_row((FileEntry(text) for text in python_docs.documents()), detokenize)

    content = python_docs.fingerprint()
    return assemble(spec, "python-docs", record.about, [content, *also] if also else content, {"train": read})


def _on_disk(spec: DataConfig, record: Record) -> dataset_files.DatasetFiles | None:
    """The files of a set, None where it should come from the Hub."""
    if spec.local is not None:
        path = Path(spec.local).expanduser()
        if not path.exists():
            raise UserError(f"data.local={spec.local} does not exist; give the folder of {record.name!r}")
        if (dataset := dataset_files.locate(record, path)) is None:
            raise UserError(
                f"data.local={spec.local} does not hold {record.name!r}; expected {dataset_files.expected(record)}"
            )
        return dataset
    root = os.environ.get("UNMASK_DATA")
    if not root:
        return None
    if not Path(root).expanduser().is_dir():
        raise UserError(f"UNMASK_DATA={root} is not a folder; set it to one that holds data sets, or unset it")
    return dataset_files.locate(record, Path(root).expanduser(), only_below=True)


def _from_disk(spec: DataConfig, record: Record, dataset: dataset_files.DatasetFiles) -> Corpus:
    every = [path for paths in dataset.files.values() for path in paths]
    if dataset.read not in COLUMNS:
        _no_columns(spec, str(every[0]))
    field = _field(spec, record)
    detokenize, also = _detokenizer(spec, record.detokenizer)
    cache = cache_folder(spec)
    hashes = [
        [split, [[dataset_files.table_format(path), file_hash(path, cache)] for path in paths]]
        for split, paths in dataset.files.items()
    ]
    parts: dict[str, Reader] = {}
    for split, paths in dataset.files.items():
        parts |= _disk_parts(spec, record, dataset.read, field, detokenize, split, paths)
    size = sum(path.stat().st_size for path in every)
    about = f"{record.about} ({len(every)} file{'s' * (len(every) > 1)}, {size:,} bytes)"
    content = ["record", ROWS, dataset.read, hashes, field, record.held_out, *also]
    return _named_corpus(record, about, content, parts, size)


def _disk_parts(
    spec: DataConfig,
    record: Record,
    read: str,
    field: str,
    detokenize: Detokenize | None,
    split: str,
    paths: list[Path],
) -> dict[str, Reader]:
    """The splits that some files of a set hold: one, or two where the last rows are held out, or those of text8."""
    if read == "characters":

        def text8(name: str) -> Reader:
            return lambda: _detokenized(dataset_files.text8_pieces(paths[0], name), detokenize)

        return {name: text8(name) for name in dataset_files.TEXT8}
    if read == "document":
        return {split: lambda: _detokenized(chain.from_iterable(map(dataset_files.document_pieces, paths)), detokenize)}

    def reader(rows: Callable[[], Iterator[readers.Located]]) -> Reader:
        return lambda: documents.by_row(_entries(rows(), field, spec.label, record.labels), detokenize)

    if not record.held_out or split != "train":
        return {
            split: reader(lambda: chain.from_iterable(dataset_files.rows(read, p, field, spec.label) for p in paths))
        }

    def held(valid: bool) -> Iterator[readers.Located]:
        total = sum(dataset_files.count(read, path, field) for path in paths)
        edge = _edge(record, total)
        start, stop = (edge, total) if valid else (0, edge)
        return dataset_files.between(read, paths, field, spec.label, start, stop)

    return {"train": reader(lambda: held(False)), "valid": reader(lambda: held(True))}


def _edge(record: Record, total: int) -> int:
    """The first row that is held out."""
    if total <= record.held_out:
        raise UserError(
            f"{record.name!r} holds out its last {record.held_out:,} documents, but this copy has only {total:,}; "
            "give its path as data.source, which divides by data.valid_fraction"
        )
    return total - record.held_out


def _detokenized(pieces: Iterable[Piece], detokenize: Detokenize | None) -> Iterator[Piece]:
    """Long documents come in pieces, which a detokenizer gets one by one."""
    return (piece if detokenize is None else piece._replace(text=detokenize(piece.text)) for piece in pieces)


def _entries(
    rows: Iterable[readers.Located], field: str, label: str | None, names: tuple[str, ...] = ()
) -> Iterator[FileEntry]:
    """Text and label of rows; classes by their names, where the record knows them."""
    for where, row in rows:
        if label == "label" and names and isinstance(row, dict) and type(number := row.get(label)) is int:
            row = {**row, label: names[number] if 0 <= number < len(names) else None}
        if (entry := documents.entry(row, field, label, where)) is not None:
            yield entry


def _field(spec: DataConfig, record: Record) -> str:
    """The column of the text: that of the record, unless another is named."""
    return record.field if spec.field == DataConfig.model_fields["field"].default else spec.field


def _named_corpus(record: Record, about: str, content: Any, parts: dict[str, Reader], size: int = 0) -> Corpus:
    """A named set in the order train, valid, test, with the splits that others play."""
    played = {split: parts[by] for split, by in record.plays.items() if split not in parts and by in parts}
    every = {**parts, **played}
    standard = [split for split in ("train", "valid", "test") if split in every]
    order = [*standard, *(split for split in every if split not in standard)]
    key = content_key("corpus", SPLITTING, content, None)
    return Corpus(record.name, about, key, {split: every[split] for split in order}, None, size)


def _from_hub(spec: DataConfig, record: Record) -> Corpus:
    assert record.hub is not None, "every set that can be opened is on the Hub"
    place = record.hub if spec.subset is None else Hub(record.hub.name, spec.subset, record.hub.revision)
    detokenize, also = _detokenizer(spec, record.detokenizer)
    ways = (
        "set data.local=PATH or UNMASK_DATA=ROOT (eval, reproduce: --local ROOT) to a copy of "
        f"{record.name!r} on disk, or connect to the network"
    )
    loaded = load_place(place, f"data set {record.name!r}", f"data set {record.name!r} is not on this machine", ways)
    field = _field(spec, record)
    where = f"data set {record.name!r}"
    parts: dict[str, Reader] = {}
    prints = []
    for hub_split, rows in loaded.items():
        split = SPLIT_NAMES.get(str(hub_split), str(hub_split))
        prints.append([str(hub_split), rows._fingerprint, rows.num_rows])
        pieces = {split: rows}
        if record.held_out and split == "train":
            edge = _edge(record, rows.num_rows)
            pieces = {"train": rows.select(range(edge)), "valid": rows.select(range(edge, rows.num_rows))}
        for name, part in pieces.items():
            parts[name] = reader_of(part, field, spec.label, where, detokenize)
    about = f"{record.about} ({', '.join(f'{name}: {rows.num_rows:,} rows' for name, rows in loaded.items())})"
    content = ["record", ROWS, "hub", place.name, prints, field, record.held_out, *also]
    return _named_corpus(record, about, content, parts)


# ---- files, folders, the Hub


def _open_files(spec: DataConfig, name: str, files: Mapping[str, list[Path]], ignored: int = 0) -> Corpus:
    every = [path for paths in files.values() for path in paths]
    for path in every:
        if _is_text(spec, path):
            _no_columns(spec, str(path))
            if documents.format_of(path) is None:  # any text is a corpus
                documents.check_text(path)
        elif readers.unpacked_name(path) != path.name.lower() and documents.table_of(path) == "parquet":
            raise UserError(f"{path} is not a corpus: a Parquet file is compressed inside; unpack it")
    cache = cache_folder(spec)
    size = sum(path.stat().st_size for path in every)
    piece = min(max(size // documents.FILE_PIECES, documents.SMALLEST_PIECE), documents.PIECE)
    kinds = {path: _document(spec, path) for path in every}
    detokenize, also = _detokenizer(spec)

    def reader(paths: list[Path]) -> Reader:
        return lambda: chain.from_iterable(
            documents.read(p, kinds[p], spec.field, piece, spec.label, detokenize) for p in paths
        )

    content = [
        [split, [[documents.table_of(p) or "txt", kinds[p], file_hash(p, cache)] for p in paths]]
        for split, paths in files.items()
    ]
    field = spec.field if any(kind == "row" for kind in kinds.values()) else None
    about = f"{len(every)} file{'s' * (len(every) > 1)}, {size:,} bytes" + (f", {ignored} ignored" if ignored else "")
    parts = {split: reader(paths) for split, paths in files.items()}
    return assemble(spec, name, about, [content, piece, field, *also], parts, size)


def _no_columns(spec: DataConfig, where: str) -> None:
    """Raise if labels are wanted from text without columns."""
    if spec.label is not None:
        raise UserError(
            f"{where} is plain text without columns, so it has no data.label={spec.label}; "
            "give a .jsonl, .csv or .parquet file or a Hub data set, or set data.label=null (eval: --label-column none)"
        )


def _is_text(spec: DataConfig, path: Path) -> bool:
    """Whether a file is read as it is: text, or a table of text whose documents are named (data.document=file)."""
    kind = documents.table_of(path)
    return kind is None or (kind in ("json", "csv", "tsv") and spec.document != "auto" and spec.label is None)


def _document(spec: DataConfig, path: Path) -> str:
    """What a document of this file is."""
    if not _is_text(spec, path):
        return "row"
    if spec.document != "auto":
        return spec.document
    if spec.tokenizer == "dna":  # one sequence per line: line breaks are not bases
        return "line"
    if spec.layout == "wrap":
        return "file"
    beginning = next(readers.read_text(path), "")
    return "paragraph" if re.search(r"\S[^\n]*\n[ \t]*\n", beginning) else "line"


def _open_folder(spec: DataConfig, folder: Path) -> Corpus:
    every = dataset_files.below(folder)
    if spec.files is None:
        files = [p for p in every if documents.format_of(p)]
        none = "holds no .txt, .jsonl or .parquet file; name the files to read, for example data.files='*.py'"
    else:
        patterns = [pattern.strip() for pattern in spec.files.split(",") if pattern.strip()]
        files = [p for p in every if any(p.relative_to(folder).match(pattern) for pattern in patterns)]
        none = f"holds no file that matches data.files={spec.files}"
    if not files:
        endings = Counter(path.suffix or path.name for path in every).most_common(5)
        kinds = ", ".join(f"{count} {ending}" for ending, count in endings)
        raise UserError(f"folder {folder} {none}" + (f" (it has {kinds})" if kinds else ""))
    splits, ignored = {"train": files}, 0
    if spec.files is None or all(p.relative_to(folder).parts[0] in dataset_files.SPLIT_NAMES for p in files):
        splits, ignored = dataset_files.by_split(folder, files)  # the name of a source file, as test.py, is no split
    return _open_files(spec, folder.name, splits, ignored)


def _check_name(source: str) -> None:
    """Tell a mistyped path or name from the name of a Hub data set."""
    if "+" in source and "/" not in source:  # how a published model names its training text
        raise UserError(f"{source} is a mixture of texts that is not on this machine; name a data set, file or folder")
    if "/" not in source and (meant := records.close(source)):
        raise UserError(f"there is no corpus, file or folder {source!r} (did you mean {meant!r}?)")
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source
    if looks_like_path or documents.format_of(Path(source)) or documents.table_of(Path(source)):
        raise UserError(f"file or folder {source} does not exist")


def open_hub(spec: DataConfig, name: str) -> Corpus:
    """A data set of the Hugging Face Hub, through its Arrow files on disk; code of a data set is never run."""
    missing = f"{name!r} is not a named data set (see `unmask data list`), a file or a folder"
    loaded = load_place(Hub(name, spec.subset), f"data set {name!r}", missing)
    detokenize, also = _detokenizer(spec)
    parts: dict[str, Reader] = {}
    prints = []
    for hub_split, rows in loaded.items():
        split = SPLIT_NAMES.get(str(hub_split), str(hub_split))
        parts[split] = reader_of(rows, spec.field, spec.label, f"data set {name!r}", detokenize)
        prints.append([str(hub_split), rows._fingerprint, rows.num_rows])
    about = ", ".join(f"{name}: {rows.num_rows:,} rows" for name, rows in loaded.items())
    return assemble(spec, name, about, ["hub", name, prints, spec.field, *also], parts)
