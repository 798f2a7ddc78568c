"""From `data.source` to windows of a genome: which FASTA files, which splits, and which settings do not apply.

A source is a FASTA file, a folder of them (files named train, valid or test are those splits), or `hg38`, the paper's
data: the genome with the intervals of the Basenji data set, each of them extended to 2^20 bases around its middle.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...config import DataConfig
from ...types import Progress, UserError
from .. import dataset_files, records
from ..cache import cache_folder, content_key, file_hash
from ..documents import Piece, format_of, table_of
from ..pack import Prepared
from ..readers import unpacked_name
from ..streams import Corpus, Division
from ..tokenizer import Tokenizer
from .bases import dna_tokenizer
from .bed import read_bed
from .fasta import ENDINGS, is_fasta
from .regions import GenomeRows, Regions, blocks, divide, from_intervals
from .store import Genome, open_genome

WINDOWS = 1  # part of every fingerprint: raise it when regions or rows are made in another way
PIECE = 1 << 16  # bases of a text that is shown or read by others
HG38 = ("hg38.ml.fa", "hg38.ml.fa.gz", "hg38.fa", "hg38.fa.gz")
HG38_INTERVALS = ("human-sequences.bed", "sequences_human.bed")
HG38_EXTENDED = 1 << 20


@dataclass(frozen=True)
class Source:
    """FASTA files by split, and the BED file of the regions to read."""

    name: str
    files: Mapping[str, list[Path]]
    intervals: Path | None = None
    extend: int | None = None  # bases that each interval is made


@dataclass(frozen=True)
class GenomeCorpus(Corpus):
    """The letters of a genome by split, for those who want text."""

    @property
    def splits(self) -> tuple[str, ...]:
        """The names of the splits."""
        return tuple(self.parts)

    def pieces(self, splits: Iterable[str]) -> Iterator[tuple[str, Piece]]:
        """The regions of several splits; N and soft-masking as the file has them."""
        for split in splits:
            if split in self.parts:
                yield from ((split, piece) for piece in self.parts[split]())


@dataclass(frozen=True)
class GenomePrepared(Prepared):
    """A genome with its splits; rows are views on the store, so there is nothing else to be prepared."""

    parts: Mapping[str, tuple[Genome, Regions]] = field(default_factory=dict, repr=False)
    about: Mapping[str, Any] = field(default_factory=dict)

    def split(self, name: str, rest: bool = False) -> GenomeRows:
        """The rows of a split, or one sentence why there are none. Windows cover every base, with or without `rest`."""
        rows = self._rows(name)
        if not len(rows):
            if not rows.tokens:
                fix = f"give a larger data.{name}_fraction or more sequence" if self.corpus.division else "give it some"
                raise UserError(f"split {name!r} of {self.spec.source} is empty; {fix}")
            raise UserError(
                f"split {name!r} of {self.spec.source} has {rows.tokens:,} bases, and more than half of every window "
                "is N; give other regions" + (", or set data.soft_mask=keep" if rows.soft_mask else "")
            )
        return rows

    def facts(self, name: str) -> dict[str, Any]:
        """The counts of a split."""
        return dict(self._rows(name).facts)

    def _rows(self, name: str) -> GenomeRows:
        self.corpus.check(name)
        genome, regions = self.parts[name]
        facts = {
            "source": self.spec.source,
            "split": name,
            "tokenizer": self.tokenizer.name,
            "tokenizer_digest": self.tokenizer.digest[:16],
            "corpus": self.corpus.fingerprint[:16],
            **self.about,
        }
        return GenomeRows.make(genome, regions, self.spec.length, facts, self.spec.soft_mask == "mask")


def prepare_genome(spec: DataConfig, tokenizer: Tokenizer | None, progress: Progress | None) -> GenomePrepared | None:
    """The genome that `data.source` names, packed; None where the source is text."""
    bases = spec.tokenizer == "dna" if tokenizer is None else tokenizer.kind == "dna"
    source = find_source(spec, bases)
    if source is None:
        _check_text(spec)
        if bases:
            _check_sequences(spec)
        return None
    if any(unpacked_name(file).endswith(".faa") for files in source.files.values() for file in files):
        raise UserError(
            f"{spec.source} is FASTA of proteins; to train on them, write a sequence per line to a .txt file and set "
            "data.document=line data.layout=pad data.tokenizer=chars"
        )
    if not bases:
        remark = "" if tokenizer is None else f", and the tokenizer {tokenizer.name!r} of this model is for text"
        raise UserError(f"{spec.source} is FASTA, which is read base by base{remark}; set data.tokenizer=dna")
    _check_settings(spec)
    cache = cache_folder(spec)
    files = source.files
    if source.intervals is not None:  # it says which bases are which split, whatever the files are called
        files = {"train": [path for paths in files.values() for path in paths]}
    genomes = {split: open_genome(paths, cache, progress) for split, paths in files.items()}
    parts, division = _regions(spec, source, genomes)
    about: dict[str, Any] = {"soft_mask": spec.soft_mask}
    content: list[Any] = [[split, genome.key] for split, genome in genomes.items()]
    if source.intervals is not None:
        about["intervals"] = str(source.intervals)
        content.append([file_hash(source.intervals, cache), source.extend])
    divided = [division.valid, division.test, division.seed] if division else None
    key = content_key("genome rows", WINDOWS, content, divided, spec.soft_mask)
    corpus = GenomeCorpus(
        source.name,
        _described(genomes),
        key,
        {split: _reader(*part) for split, part in parts.items()},
        division,
        sum(path.stat().st_size for paths in files.values() for path in paths),
    )
    folder = cache / "genomes" / genomes["train" if "train" in genomes else next(iter(genomes))].key
    return GenomePrepared(spec, tokenizer or dna_tokenizer(), corpus, key, folder, parts=parts, about=about)


def _regions(
    spec: DataConfig, source: Source, genomes: Mapping[str, Genome]
) -> tuple[dict[str, tuple[Genome, Regions]], Division | None]:
    """The regions of each split with their genome, and the division if the source has no splits."""
    division = Division(spec.valid_fraction, spec.test_fraction, spec.split_seed)
    genome = genomes.get("train")
    if source.intervals is not None:
        assert genome is not None
        intervals = read_bed(source.intervals, genome.sizes)
        split_regions = from_intervals(genome, intervals, source.intervals, division, source.extend)
        named = any(interval.split for interval in intervals)
        return {split: (genome, regions) for split, regions in split_regions.items()}, None if named else division
    if set(genomes) != {"train"}:
        return {split: (whole, Regions.of(_whole(whole))) for split, whole in genomes.items()}, None
    assert genome is not None
    divided = divide([[block] for block in blocks(genome, spec.length)], division)
    return {split: (genome, regions) for split, regions in divided.items()}, division


def _whole(genome: Genome) -> list[tuple[int, int]]:
    offsets = genome.offsets.tolist()
    return list(pairwise(offsets))


def _reader(genome: Genome, regions: Regions) -> Callable[[], Iterator[Piece]]:
    def read() -> Iterator[Piece]:
        for start, length in zip(regions.starts.tolist(), regions.lengths.tolist(), strict=True):
            record = int(genome.offsets.searchsorted(start, side="right")) - 1
            name, begin = genome.names[record], start - int(genome.offsets[record])
            for at in range(0, length, PIECE):
                end = min(at + PIECE, length)
                yield Piece(genome.text(name, begin + at, begin + end), end == length)

    return read


def _described(genomes: Mapping[str, Genome]) -> str:
    count = sum(len(genome.names) for genome in genomes.values())
    total = sum(genome.total for genome in genomes.values())
    return f"FASTA, {count:,} record{'s' * (count > 1)}, {total:,} bases"


# ---- which files


def find_source(spec: DataConfig, bases: bool) -> Source | None:
    """The FASTA files that `data.source` names; None where it is text. In a folder of both, `bases` chooses."""
    intervals = None if spec.intervals is None else Path(spec.intervals).expanduser()
    record = records.find(spec.source)
    if record is not None:
        return _hg38(spec, intervals) if record.name == "hg38" else None
    path = Path(spec.source).expanduser()
    if path.is_dir():
        below = dataset_files.below(path)
        fastas = [file for file in below if is_fasta(file)]
        if not fastas or (not bases and any(format_of(file) for file in below)):
            return None
        files, _ = dataset_files.by_split(path, fastas)
        return Source(path.name, files, intervals)
    if not is_fasta(path):
        return None
    if not path.exists():
        raise UserError(f"file or folder {spec.source} does not exist")
    return Source(path.name, {"train": [path]}, intervals)


def _hg38(spec: DataConfig, intervals: Path | None) -> Source:
    """The paper's genome: its FASTA file and, unless another is set, the BED file beside it."""
    name, root = ("data.local", spec.local) if spec.local else ("UNMASK_DATA", os.environ.get("UNMASK_DATA"))
    wanted = f"a folder with {HG38[0]} (or {HG38[-1]}) and {HG38_INTERVALS[0]} (or {HG38_INTERVALS[1]})"
    if not root:
        raise UserError(f"data set 'hg38' is not on this machine; set data.local to {wanted}")
    if not Path(root).expanduser().is_dir():
        raise UserError(f"{name}={root} is not a folder; set data.local to {wanted}")
    folders = [Path(root).expanduser(), Path(root).expanduser() / "hg38"]
    fasta = _first(folders, HG38)
    if fasta is None:
        raise UserError(f"{root} does not hold the genome 'hg38'; set data.local to {wanted}")
    if intervals is not None:
        return Source("hg38", {"train": [fasta]}, intervals)
    bed = _first(folders, HG38_INTERVALS)
    if bed is None:
        raise UserError(f"{fasta.parent} has no {' or '.join(HG38_INTERVALS)}; put one there or set data.intervals")
    return Source("hg38", {"train": [fasta]}, bed, HG38_EXTENDED)


def _first(folders: Iterable[Path], names: Iterable[str]) -> Path | None:
    every = [folder / name for folder in folders for name in names]
    return next((path for path in every if path.is_file()), None)


# ---- settings


def _check_settings(spec: DataConfig) -> None:
    """Raise for settings that do not apply to FASTA; `eos_between` and `document` are simply not used."""
    if spec.local is not None and records.find(spec.source) is None:
        raise UserError(f"data.local={spec.local} belongs to a named data set; give the path as data.source instead")
    fields = DataConfig.model_fields
    for name in ("layout", "block_ends", "label", "field", "subset"):
        value = getattr(spec, name)
        if value != fields[name].default:
            shown = str(value).lower() if isinstance(value, bool) else value
            raise UserError(
                f"data.{name}={shown} is for text, and {spec.source} is FASTA: rows are windows of bases; leave it out"
            )
    if spec.detokenizer not in ("auto", "none"):
        raise UserError(f"data.detokenizer={spec.detokenizer} is for text, and {spec.source} is FASTA; leave it out")


def _check_text(spec: DataConfig) -> None:
    """Raise for what only FASTA has."""
    for name, default in (("intervals", None), ("soft_mask", "keep")):
        value = getattr(spec, name)
        if value != default:
            raise UserError(f"data.{name}={value} is for FASTA ({ENDINGS}), and {spec.source} is text; leave it out")


def _check_sequences(spec: DataConfig) -> None:
    """Raise for a model of DNA whose source is a set of texts, or a file of no kind that holds sequences."""
    path, give = Path(spec.source).expanduser(), f"give a FASTA file ({ENDINGS}): data.source=genome.fa.gz"
    record = records.find(spec.source)
    if record is not None and not record.unread:
        raise UserError(f"data.tokenizer=dna reads bases, and {spec.source!r} is text; {give}")
    if path.is_file() and format_of(path) is None and table_of(path) is None:
        raise UserError(f"the name of {path} does not say what it holds; {give}")
