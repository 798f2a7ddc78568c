"""Where text comes from: built-in corpora, files, folders and Hub data sets, each as one streaming `Corpus`.

What a source is, in this order: the name of a record in `CORPORA`; a file (.txt, .jsonl, either of them with .gz, or
.parquet); a folder of such files; a data set on the Hugging Face Hub. What a document of a .txt file is:
`line`, `paragraph` (blank lines between) or `file`; `auto` means `file` for layout=wrap (the model sees the text as it
is), and for layout=pad, where a row is a document, `paragraph` if the beginning has blank lines, else `line`.

Splits are the source's own where it has them: files or folders with train, valid (validation, val, dev) or test in
their names, or the splits of a Hub data set. Otherwise the stream of pieces is divided by `data.valid_fraction`,
`data.test_fraction` and `data.split_seed`. Each corpus has a fingerprint: equal content, equal fingerprint, whatever
its path.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from pathlib import Path
from typing import Any

from ..config import DataConfig, nearest
from ..keys import Keys
from ..types import UserError
from . import documents, pythondocs
from .cache import cache_folder, content_key, file_hash
from .documents import Entry, Piece
from .online import hub

SPLITTING = 2  # part of every fingerprint: raise it when pieces or splits are made in another way
SPLIT_NAMES = {"train": "train", "training": "train", "valid": "valid", "validation": "valid", "val": "valid",
               "dev": "valid", "test": "test"}  # fmt: skip

Reader = Callable[[], Iterator[Piece]]


@dataclass(frozen=True)
class Corpus:
    """Text with splits. `parts` are the splits of the source itself, or one part that `division` divides."""

    name: str
    description: str
    fingerprint: str
    parts: Mapping[str, Reader]
    division: Division | None = None
    size: int = 0  # bytes on disk, 0 where unknown; for progress only

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits; one of them may still turn out to be empty."""
        return tuple(self.parts) if self.division is None else self.division.splits

    def pieces(self, splits: Iterable[str]) -> Iterator[tuple[str, Piece]]:
        """The pieces of several splits with the name of theirs, in one pass over the source where one is enough."""
        wanted = [split for split in splits if split in self.splits]
        if self.division is None:
            for split in wanted:
                yield from ((split, piece) for piece in self.parts[split]())
        elif wanted:
            stream = chain.from_iterable(read() for read in self.parts.values())
            yield from (found for found in self.division.divide(stream) if found[0] in wanted)

    def documents(self, split: str) -> Iterator[Piece]:
        """The pieces of one split, streaming."""
        self.check(split)
        return (piece for _, piece in self.pieces([split]))

    def check(self, split: str) -> None:
        """One sentence when there is no such split."""
        if split not in self.splits:
            own = "data.valid_fraction and data.test_fraction" if self.division else "the files of the source"
            raise UserError(
                f"corpus {self.name!r} has no split {split!r}{nearest(split, self.splits)}; "
                f"it has {', '.join(self.splits)} (see {own})"
            )


@dataclass(frozen=True)
class Division:
    """A deterministic, stratified split of a stream of unknown length.

    The stream is cut into runs of 1/fraction pieces (runs differ by one piece where that is not a whole number), and
    from each run one piece is chosen by (seed, number of the run) for the valid split; the pieces that are left are
    divided in the same way for the test split. So splits are disjoint, spread over the whole stream, and need one pass.
    """

    valid: float
    test: float
    seed: int

    @property
    def splits(self) -> tuple[str, ...]:
        """Train first; splits with fraction 0 do not exist."""
        return ("train", *(["valid"] if self.valid else []), *(["test"] if self.test else []))

    def names(self) -> Iterator[str]:
        """The split of piece 0, 1, 2, ..."""
        valid = _chosen(self.valid, self.seed, "split/valid")
        test = _chosen(self.test / (1 - self.valid), self.seed, "split/test")
        while True:
            yield "valid" if next(valid) else "test" if next(test) else "train"

    def divide(self, pieces: Iterable[Piece]) -> Iterator[tuple[str, Piece]]:
        """Each piece with its split; where the next piece of a document goes elsewhere, the document ends."""
        held: tuple[str, Piece] | None = None
        for split, piece in zip(self.names(), pieces, strict=False):
            if held is not None:
                yield held if held[0] == split else (held[0], held[1]._replace(ends=True))
            held = split, piece
        if held is not None:
            yield held[0], held[1]._replace(ends=True)


def _chosen(fraction: float, seed: int, purpose: str) -> Iterator[bool]:
    exact = Fraction(fraction).limit_denominator(10**6)
    run = 0
    while exact:
        start, stop = (-(-number * exact.denominator // exact.numerator) for number in (run, run + 1))
        choice = start + int(Keys(seed).stream(purpose, run).integers(stop - start))
        yield from (number == choice for number in range(start, stop))
        run += 1
    while True:
        yield False


@dataclass(frozen=True)
class Record:
    """What is true of one named corpus only. Whatever changes its text (a revision, a detokenizer) must be part of the
    `content` that `open` gives to `assemble`, since that names the cache.
    """

    about: str
    open: Callable[[DataConfig], Corpus]


def open_corpus(spec: DataConfig) -> Corpus:
    """The corpus that `data.source` names."""
    if spec.source in CORPORA:
        return CORPORA[spec.source].open(spec)
    path = Path(spec.source).expanduser()
    if path.is_file():
        corpus = _open_files(spec, path.name, {"train": [path]})
    elif path.is_dir():
        corpus = _open_folder(spec, path)
    else:
        _check_name(spec.source)
        corpus = open_hub(spec, spec.source)
    if next(corpus.pieces(corpus.splits), None) is None:
        raise UserError(f"{spec.source} holds no text; give data.source a corpus with at least one document")
    return corpus


def assemble(
    spec: DataConfig, name: str, about: str, content: Any, parts: Mapping[str, Reader], size: int = 0
) -> Corpus:
    """A corpus from its parts; a lone training part is divided. `content` stands for everything that was read."""
    division = None
    if set(parts) == {"train"}:
        division = Division(spec.valid_fraction, spec.test_fraction, spec.split_seed)
    settings = [division.valid, division.test, division.seed] if division else None
    key = content_key("corpus", SPLITTING, content, settings)
    return Corpus(name, about, key, parts, division, size)


def _open_python_docs(spec: DataConfig) -> Corpus:
    def read() -> Iterator[Piece]:
        return documents.by_row(Entry(text) for text in pythondocs.documents())

    _no_columns(spec, "python-docs")
    about = CORPORA["python-docs"].about
    return assemble(spec, "python-docs", about, pythondocs.fingerprint(), {"train": read})


CORPORA: dict[str, Record] = {
    "python-docs": Record("the language reference and docstrings that come with CPython", _open_python_docs),
}


def _open_files(spec: DataConfig, name: str, files: Mapping[str, list[Path]], ignored: int = 0) -> Corpus:
    every = [path for paths in files.values() for path in paths]
    for path in every:
        if documents.format_of(path) is None:
            raise UserError(f"{path} is not a corpus; give a .txt, .jsonl, .txt.gz, .jsonl.gz or .parquet file")
        if documents.format_of(path) == "txt":
            _no_columns(spec, str(path))
    cache = cache_folder(spec)
    size = sum(path.stat().st_size for path in every)
    piece = min(max(size // documents.FILE_PIECES, documents.SMALLEST_PIECE), documents.PIECE)
    kinds = {path: _document(spec, path) for path in every}

    def reader(paths: list[Path]) -> Reader:
        return lambda: chain.from_iterable(documents.read(p, kinds[p], spec.field, piece, spec.label) for p in paths)

    content = [
        [split, [[documents.format_of(p), kinds[p], file_hash(p, cache)] for p in paths]]
        for split, paths in files.items()
    ]
    field = spec.field if any(kind == "row" for kind in kinds.values()) else None
    about = f"{len(every)} file{'s' * (len(every) > 1)}, {size:,} bytes" + (f", {ignored} ignored" if ignored else "")
    return assemble(spec, name, about, [content, piece, field], {s: reader(p) for s, p in files.items()}, size)


def _no_columns(spec: DataConfig, where: str) -> None:
    """One sentence when labels are wanted of plain text."""
    if spec.label is not None:
        raise UserError(
            f"{where} is plain text without columns, so it has no data.label={spec.label}; "
            "give a .jsonl or .parquet file or a Hub data set, or set data.label=null"
        )


def _document(spec: DataConfig, path: Path) -> str:
    """What a document of this file is."""
    if documents.format_of(path) != "txt":
        return "row"
    if spec.document != "auto":
        return spec.document
    if spec.layout == "wrap":
        return "file"
    beginning = next(documents.read_text(path), "")
    return "paragraph" if re.search(r"\S[^\n]*\n[ \t]*\n", beginning) else "line"


def _open_folder(spec: DataConfig, folder: Path) -> Corpus:
    found = [p for p in folder.rglob("*") if p.is_file() and documents.format_of(p)]
    found = [p for p in found if not any(part.startswith(".") for part in p.relative_to(folder).parts)]
    found.sort(key=lambda p: p.relative_to(folder).as_posix())
    if not found:
        raise UserError(f"folder {folder} holds no .txt, .jsonl, .txt.gz, .jsonl.gz or .parquet file")
    named: dict[str, list[Path]] = {"train": [], "valid": [], "test": []}
    rest: list[Path] = []
    for path in found:
        words = re.split(r"[^a-z]+", path.relative_to(folder).as_posix().lower())
        split = next((SPLIT_NAMES[word] for word in words if word in SPLIT_NAMES), None)
        (named[split] if split else rest).append(path)
    own = {split: paths for split, paths in named.items() if paths}
    if "train" in own or len(own) > 1 or (own and not rest):
        return _open_files(spec, folder.name, own, ignored=len(rest))
    return _open_files(spec, folder.name, {"train": found})


def _check_name(source: str) -> None:
    """Tell a mistyped path or name from the name of a Hub data set."""
    if "/" not in source and difflib.get_close_matches(source, CORPORA, n=1, cutoff=0.75):
        raise UserError(f"there is no corpus, file or folder {source!r}{nearest(source, CORPORA)}")
    looks_like_path = source.startswith((".", "/", "~")) or source.count("/") > 1 or "\\" in source
    if looks_like_path or documents.format_of(Path(source)):
        raise UserError(f"file or folder {source} does not exist")


def open_hub(spec: DataConfig, name: str, subset: str | None = None, revision: str | None = None) -> Corpus:
    """A data set of the Hugging Face Hub, through its Arrow files on disk; code of a data set is never run."""
    import datasets

    with hub() as online:
        try:
            loaded = datasets.load_dataset(name, subset or spec.subset, revision=revision)
        except OSError as error:
            known = f"{name!r} is no built-in corpus ({', '.join(CORPORA)}), no file and no folder"
            reason = " ".join(str(error).split())[:200]
            there = (
                f"was not found on the Hugging Face Hub: {reason}"
                if online
                else "the Hugging Face Hub cannot be reached"
            )
            raise UserError(f"{known}, and {there}") from None
        except (ValueError, RuntimeError, datasets.exceptions.DatasetsError) as error:  # subset missing, code needed
            reason = " ".join(str(error).split())[:300]
            raise UserError(f"data set {name!r} cannot be loaded: {reason}") from None
    parts: dict[str, Reader] = {}
    prints = []
    for own, rows in loaded.items():
        parts[SPLIT_NAMES.get(str(own), str(own))] = _hub_reader(rows, spec, f"data set {name!r}")
        prints.append([str(own), rows._fingerprint, rows.num_rows])
    about = ", ".join(f"{own}: {rows.num_rows:,} rows" for own, rows in loaded.items())
    return assemble(spec, name, about, ["hub", name, prints, spec.field], parts)


def _hub_reader(rows: Any, spec: DataConfig, where: str) -> Reader:
    field, label = spec.field, spec.label
    documents.check_field(field, rows.column_names, where)
    wanted = [field]
    if label is not None:
        documents.check_field(label, rows.column_names, where, "data.label")
        wanted.append(label)
    names = getattr(rows.features.get(label), "names", None)  # of a ClassLabel, whose -1 is "not known"

    def found() -> Iterator[Entry]:
        number = 0
        for batch in rows.select_columns(wanted).iter(batch_size=256):
            for values in zip(*(batch[column] for column in wanted), strict=True):
                number += 1
                row = dict(zip(wanted, values, strict=True))
                if label is not None and names is not None and isinstance(row[label], int):
                    row[label] = names[row[label]] if row[label] >= 0 else None
                if (one := documents.entry(row, field, label, f"row {number} of {where}")) is not None:
                    yield one

    return lambda: documents.by_row(found())
