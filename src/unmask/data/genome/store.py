"""A genome on disk, two bits per base, memory-mapped: any window of it in microseconds, whatever its size.

The folder is named by the content of the FASTA files. `bases.2bit` has four bases per byte (N is stored as A), all
records one after the other; `unknown.runs` and `soft.runs` say where N and lower-case bases are: start, end, start, end
... as int64 that count through all records and never cross from one to the next; `index.json` has names, lengths and
checksums, and is written last, so that a genome is complete or absent. N has no case.
"""

from __future__ import annotations

import hashlib
import logging
from collections.abc import Callable, Collection, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property, lru_cache
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from filelock import FileLock

from ...errors import nearest
from ...files import replacing, stamped, write_json
from ...types import Progress, UserError
from ..cache import content_key, file_hash, writing
from ..packed import map_file, read_record
from .bases import A, N
from .fasta import LOWER, UNKNOWN, read_fasta

FORMAT = 1
BASES_FILE, UNKNOWN_FILE, SOFT_FILE, INDEX_FILE = "bases.2bit", "unknown.runs", "soft.runs", "index.json"
SHOWN = 4  # names of records in a sentence
SAMPLES, SAMPLE = 64, 1 << 16  # large files are checked by so many pieces of so many bytes
_UNPACK = np.array([[A + (byte >> shift & 3) for shift in (0, 2, 4, 6)] for byte in range(256)], dtype=np.uint8)
_LETTERS = np.frombuffer(b"ACGTN", dtype=np.uint8)

log = logging.getLogger(__name__)


@dataclass(frozen=True, eq=False)
class Genome:
    """Records of bases. Positions count from 0; `start` is in, `end` is out."""

    names: tuple[str, ...]
    lengths: np.ndarray  # (records,) int64
    packed: np.ndarray = field(repr=False)  # uint8, four bases each
    unknown: np.ndarray = field(repr=False)  # (2 runs,) int64: where N begins and ends, in turn
    lower: np.ndarray = field(repr=False)  # (2 runs,) int64: the same for soft-masked bases
    key: str = ""  # names the content

    @cached_property
    def offsets(self) -> np.ndarray:
        """(records + 1,) int64: where each record begins among all bases."""
        return np.concatenate([[0], np.cumsum(self.lengths)]).astype(np.int64)

    @cached_property
    def sizes(self) -> dict[str, int]:
        """The length of every record."""
        return dict(zip(self.names, self.lengths.tolist(), strict=True))

    @property
    def total(self) -> int:
        """Bases of all records."""
        return int(self.offsets[-1])

    def index(self, name: str) -> int:
        """The number of a record, by its name or another spelling of it."""
        return self._numbers[self.record(name)]

    def record(self, name: str) -> str:
        """The name that the genome has for a record: chr1 and 1 are the same, and so are chrM and MT."""
        return record_name(name, self._numbers)

    @cached_property
    def _numbers(self) -> dict[str, int]:
        return {name: i for i, name in enumerate(self.names)}

    def fetch(self, name: str, start: int, end: int, soft_mask: bool = False) -> np.ndarray:
        """uint8 ids (7 to 11) of a part of a record; with `soft_mask` lower-case bases are N."""
        begin = self._place(name, start, end)
        return self.gather(np.array([begin]), end - start, soft_mask)[0]

    def text(self, name: str, start: int, end: int) -> str:
        """The letters of a part of a record, lower case where it is soft-masked."""
        ids = self.fetch(name, start, end)
        letters = _LETTERS[ids - A] | (self.soft(name, start, end).astype(np.uint8) << 5)
        return letters.tobytes().decode("ascii")

    def soft(self, name: str, start: int, end: int) -> np.ndarray:
        """Which bases of a part of a record are soft-masked (bool); N never is."""
        return _inside(self.lower, np.array([self._place(name, start, end)]), end - start)[0]

    def rows(
        self, chrom_index: np.ndarray | int, starts: np.ndarray | Sequence[int], length: int, soft_mask: bool = False
    ) -> np.ndarray:
        """(n, length) uint8 ids of windows that begin at `starts` of the records with these numbers."""
        begins = np.asarray(starts, dtype=np.int64)
        assert ((begins >= 0) & (begins + length <= self.lengths[chrom_index])).all(), "window outside its record"
        return self.gather(self.offsets[chrom_index] + begins, length, soft_mask)

    def gather(self, begins: np.ndarray, length: int, soft_mask: bool = False) -> np.ndarray:
        """`rows` by the places (n,) among all bases; what lies behind the last base is arbitrary."""
        begins = np.asarray(begins, dtype=np.int64)
        first, phase = begins >> 2, begins & 3
        places = first[:, None] + np.arange((length + 6) // 4)
        np.minimum(places, len(self.packed) - 1, out=places)
        unpacked = _UNPACK[self.packed[places]].reshape(len(begins), 4 * places.shape[1])
        out = np.empty((len(begins), length), dtype=np.uint8)
        for shift in range(4):
            in_phase = phase == shift
            out[in_phase] = unpacked[in_phase, shift : shift + length]
        for runs in (self.unknown, self.lower) if soft_mask else (self.unknown,):
            touched = _touched(runs, begins, length)
            if touched.any():
                part = out[touched]
                part[_inside(runs, begins[touched], length)] = N
                out[touched] = part
        return out

    def count_unknown(self, begins: np.ndarray, ends: np.ndarray, soft_mask: bool = False) -> np.ndarray:
        """(n,) int64: how many bases from `begins` to `ends` are N (or soft-masked) — without reading a base."""
        count = _count(self.unknown, self._unknown_sums, begins, ends)
        return count + _count(self.lower, self._lower_sums, begins, ends) if soft_mask else count

    @cached_property
    def _unknown_sums(self) -> np.ndarray:
        return _sums(self.unknown)

    @cached_property
    def _lower_sums(self) -> np.ndarray:
        return _sums(self.lower)

    def _place(self, name: str, start: int, end: int) -> int:
        i = self.index(name)
        size = int(self.lengths[i])
        if not 0 <= start <= end <= size:
            raise UserError(f"{name}:{start}-{end} is not inside the record, which has {size:,} bases")
        return int(self.offsets[i]) + start


def record_name(name: str, names: Collection[str]) -> str:
    """The record that a name means, with or without chr; one sentence where there is none, or more than one."""
    if name in names:
        return name
    same = _by_stem(tuple(names)).get(_stem(name), [])
    if len(same) > 1:
        raise UserError(f"{name!r} could be any of the genome's records {', '.join(same)}; write one of these names")
    if not same:
        raise UserError(f"the genome has no record {name!r}{nearest(name, names) or _listed(names)}")
    return same[0]


def _listed(names: Collection[str]) -> str:
    first = [*names][:SHOWN]
    return f" (it has {', '.join(first)}{', ...' * (len(names) > len(first))})"


@lru_cache(maxsize=4)
def _by_stem(names: tuple[str, ...]) -> dict[str, list[str]]:
    same: dict[str, list[str]] = {}
    for name in names:
        same.setdefault(_stem(name), []).append(name)
    return same


def _stem(name: str) -> str:
    """A chromosome without its prefix; the mitochondrion is M or MT."""
    stem = name[3:] if name[:3].lower() == "chr" else name
    return "MT" if stem == "M" else stem


# ---- runs: start, end, start, end, ... in order, so that the number of edges before a place says where it is


def _touched(runs: np.ndarray, begins: np.ndarray, length: int) -> np.ndarray:
    """(n,) bool: which windows have a part in a run."""
    low, high = _between(runs, begins, length)
    return low < high


def _between(runs: np.ndarray, begins: np.ndarray, length: int) -> tuple[np.ndarray, np.ndarray]:
    """(n,) twice: the first run that ends after a window begins, and the first that begins after it ends."""
    low = np.searchsorted(runs, begins, side="right") >> 1
    return low, (np.searchsorted(runs, begins + length) + 1) >> 1


def _inside(runs: np.ndarray, begins: np.ndarray, length: int) -> np.ndarray:
    """(n, length) bool: which positions of windows are in a run."""
    low, high = _between(runs, begins, length)
    count = np.maximum(high - low, 0)
    row = np.repeat(np.arange(len(begins)), count)
    which = np.arange(len(row)) - np.repeat(np.cumsum(count) - count - low, count)
    steps = np.zeros((len(begins), length + 1), dtype=np.int8)
    steps[row, np.maximum(runs[2 * which] - begins[row], 0)] += 1  # runs are disjoint: no two of a row begin together
    steps[row, np.minimum(runs[2 * which + 1] - begins[row], length)] -= 1
    return np.cumsum(steps[:, :length], axis=1, dtype=np.int8).astype(bool)


def _sums(runs: np.ndarray) -> np.ndarray:
    """(runs + 1,) int64: places in the runs before each."""
    return np.concatenate([[0], np.cumsum(runs[1::2] - runs[::2])]).astype(np.int64)


def _count(runs: np.ndarray, sums: np.ndarray, begins: np.ndarray, ends: np.ndarray) -> np.ndarray:
    """(n,) int64: places from `begins` to `ends` that are in runs."""
    if not len(runs):
        return np.zeros(len(begins), dtype=np.int64)

    def below(place: np.ndarray) -> np.ndarray:
        begun = (np.searchsorted(runs, place) + 1) >> 1
        over = np.where(begun > 0, np.maximum(runs[np.maximum(2 * begun - 1, 0)] - place, 0), 0)
        return np.asarray(sums[begun] - over)

    return below(ends) - below(begins)


# ---- on disk


def open_genome(path: Path | str | Sequence[Path], cache_dir: Path | str, progress: Progress | None = None) -> Genome:
    """The genome of a FASTA file (or of several as one), packed into the cache first if that does not have it yet.

    Any number of processes may call this at once: one of them does the work. `progress` gets bytes of the files.
    """
    paths = [Path(path)] if isinstance(path, Path | str) else [Path(file) for file in path]
    for file in paths:
        if not file.is_file():
            raise UserError(f"file {file} does not exist")
    cache = Path(cache_dir)
    with writing(cache):
        cache.mkdir(parents=True, exist_ok=True)
    key = content_key("genome", FORMAT, [file_hash(file, cache) for file in paths])
    folder = cache / "genomes" / key
    index = read_record(folder / INDEX_FILE, FORMAT, _checksum)
    if index is None:
        with writing(folder):
            folder.mkdir(parents=True, exist_ok=True)
            with FileLock(folder / ".lock"):
                index = read_record(folder / INDEX_FILE, FORMAT, _checksum)
                if index is None:
                    if (folder / INDEX_FILE).exists():
                        log.warning("the packed genome %s was damaged and is made again", folder)
                    index = _pack(paths, folder, progress)
    unknown, lower = (np.asarray(map_file(folder / name, np.dtype("<i8"))) for name in (UNKNOWN_FILE, SOFT_FILE))
    packed = np.asarray(map_file(folder / BASES_FILE, np.dtype("u1")))
    return Genome(tuple(index["names"]), np.array(index["lengths"], dtype=np.int64), packed, unknown, lower, key)


def _checksum(path: Path) -> list[Any]:
    """Size and hash: of everything, or of pieces all over a large file."""
    size = path.stat().st_size
    digest = hashlib.sha256()
    with path.open("rb") as file:
        if size <= SAMPLES * SAMPLE:
            digest.update(file.read())
        else:
            for i in range(SAMPLES):
                file.seek(i * (size - SAMPLE) // (SAMPLES - 1))
                digest.update(file.read(SAMPLE))
    return [size, digest.hexdigest()]


def _pack(paths: Sequence[Path], folder: Path, progress: Progress | None) -> dict[str, Any]:
    """Write a genome and its index."""
    total, before = sum(path.stat().st_size for path in paths), 0
    (folder / INDEX_FILE).unlink(missing_ok=True)
    for left in folder.glob(".*.*"):  # what a killed process left behind: we hold the lock
        left.unlink(missing_ok=True)
    lengths: dict[str, int] = {}
    origin: dict[str, Path] = {}
    with ExitStack() as stack:
        files = [
            stack.enter_context(stack.enter_context(replacing(folder / name)).open("wb"))
            for name in (BASES_FILE, UNKNOWN_FILE, SOFT_FILE)
        ]
        bases, unknown, soft = _Bases(files[0]), _Runs(files[1]), _Runs(files[2])
        at = 0
        for path in paths:
            report: Progress | None = None if progress is None else _shifted(progress, before, total)
            for name, codes in read_fasta(path, report):
                if name not in origin:
                    unknown.end(at)
                    soft.end(at)
                    origin[name], lengths[name] = path, 0
                elif origin[name] != path:
                    raise UserError(
                        f"record {name!r} is in {origin[name]} and in {path}; give every record a different name"
                    )
                bases.add(codes)
                unknown.add((codes & UNKNOWN) != 0, at)
                soft.add((codes & (UNKNOWN | LOWER)) == LOWER, at)
                at += codes.size
                lengths[name] += codes.size
            before += path.stat().st_size
        bases.end()
        unknown.end(at)
        soft.end(at)
    index = {
        "format": FORMAT,
        "names": list(lengths),
        "lengths": list(lengths.values()),
        "files": {name: _checksum(folder / name) for name in (BASES_FILE, UNKNOWN_FILE, SOFT_FILE)},
    }
    write_json(folder / INDEX_FILE, stamped(index))
    if progress is not None:
        progress(total, total)
    return index


def _shifted(progress: Progress, before: int, total: int) -> Callable[[int, int], None]:
    return lambda done, _: progress(before + done, total)


class _Bases:
    """Codes to bytes: four bases each, the first in the lowest bits."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.rest = np.empty(0, dtype=np.uint8)  # less than four codes

    def add(self, codes: np.ndarray) -> None:
        """Append codes."""
        two = codes & np.uint8(3)  # N becomes A
        if self.rest.size:
            two = np.concatenate([self.rest, two])
        whole = two.size & ~3
        self.rest = two[whole:].copy()
        four = two[:whole].view("<u4")
        self.file.write((four | four >> 6 | four >> 12 | four >> 18).astype(np.uint8).tobytes())

    def end(self) -> None:
        """Write what is left, filled up."""
        if self.rest.size:
            self.add(np.zeros(4 - self.rest.size, dtype=np.uint8))


class _Runs:
    """Where a property of the bases begins and ends, from its presence in part after part."""

    def __init__(self, file: BinaryIO) -> None:
        self.file = file
        self.inside = False

    def add(self, mask: np.ndarray, at: int) -> None:
        """Append the bases from place `at` on; no part is empty."""
        changes = np.flatnonzero(mask[1:] != mask[:-1]) + 1
        if bool(mask[0]) != self.inside:
            changes = np.concatenate([[0], changes])
        self.file.write((changes + at).astype("<i8").tobytes())
        self.inside = bool(mask[-1])

    def end(self, at: int) -> None:
        """A record ends at place `at`."""
        if self.inside:
            self.file.write(np.array([at], dtype="<i8").tobytes())
            self.inside = False
