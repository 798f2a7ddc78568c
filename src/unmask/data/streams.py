"""What a corpus is: text with splits and a fingerprint, as one stream; and how a stream without splits is divided."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from fractions import Fraction
from itertools import chain
from typing import Any

from ..config import DataConfig
from ..errors import nearest
from ..process.keys import Keys
from ..types import UserError
from .cache import content_key
from .documents import Piece

SPLITTING = 2  # part of every fingerprint: raise it when pieces or splits are made in another way

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
    detokenizer: str = "none"  # for protocols; the fingerprint knows it too

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
            yield from ((split, piece) for split, piece in self.division.divide(stream) if split in wanted)

    def documents(self, split: str) -> Iterator[Piece]:
        """The pieces of one split, streaming."""
        self.check(split)
        return (piece for _, piece in self.pieces([split]))

    def check(self, split: str) -> None:
        """One sentence when there is no such split."""
        if split not in self.splits:
            where = "data.valid_fraction and data.test_fraction" if self.division else "the files of the source"
            raise UserError(
                f"corpus {self.name!r} has no split {split!r}{nearest(split, self.splits)}; "
                f"it has {', '.join(self.splits)} (see {where})"
            )


@dataclass(frozen=True)
class Division:
    """A deterministic, stratified split of a stream of unknown length.

    The stream is cut into runs of 1/fraction pieces (runs differ by one piece where that is not a whole number), and
    from each run one piece is chosen by (seed, number of the run) for the valid split; the pieces that are left are
    divided in the same way for the test split. So splits are disjoint, evenly distributed over the whole stream, and
    need one pass.
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
