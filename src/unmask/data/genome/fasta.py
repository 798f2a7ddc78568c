"""FASTA files, plain, gzip (bgzip too) or xz, as a stream of bases: any line width, lines of any length, little memory.

A base comes as a code: 0 to 3 for A, C, G, T (U reads as T), 4 for N and the other IUPAC codes; 8 is added to lower
case, the soft-masking of repeats. Anything else is refused in one sentence that names file, record and line.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from ...types import Progress, UserError
from ..readers import COMPRESSED, DamagedFile, is_compressed, line_of, read_bytes, unpacked_name
from .bases import AMBIGUOUS, BASES

EXTENSIONS = (".fa", ".fasta", ".fna", ".faa", ".ffn", ".fas")
ENDINGS = ".fa, .fasta, .fna, .ffn or .fas, also with .gz or .xz"  # of DNA, in words; .faa is protein
CHUNK = 2 << 20  # bytes of text that are read at once
LONGEST_HEADER = 1 << 20  # bytes: beyond it there are no line ends that we know
UNKNOWN, LOWER, WRONG = 4, 8, 16  # codes: N; the bit of lower case; not a nucleotide
PROTEIN = "EFILPQZJXO"  # letters of amino acids that no nucleotide code has


def _table() -> bytes:
    codes = {base: i for i, base in enumerate(BASES)} | {"U": 3} | dict.fromkeys("N" + AMBIGUOUS, UNKNOWN)
    table = bytearray([WRONG] * 256)
    for letter, code in codes.items():
        table[ord(letter)], table[ord(letter.lower())] = code, code | LOWER
    return bytes(table)


TABLE = _table()


def is_fasta(path: Path) -> bool:
    """Whether the name of a file says that it is FASTA."""
    return unpacked_name(path).endswith(EXTENSIONS)


def read_fasta(path: Path, progress: Progress | None = None) -> Iterator[tuple[str, np.ndarray]]:
    """(record, uint8 codes of its next bases) from the beginning of a file to its end; no part is empty.

    `progress` gets the bytes of the file that were read, and its size.
    """
    return FastaReader(path).parts(progress)


class FastaReader:
    """One pass over a file, which knows its place in it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.line = 1  # where the next byte is
        self.name: str | None = None  # of the record we are in
        self.seen: dict[str, int] = {}  # record -> line of its header
        self.bases = 0  # of this record so far

    def parts(self, progress: Progress | None = None) -> Iterator[tuple[str, np.ndarray]]:
        """See `read_fasta`."""
        header: bytes | None = None  # what there is of the header line that we are in
        begins = True  # whether the next byte begins a line
        for data in self._whole_ends(progress):
            at = 0
            while at < len(data):
                if header is not None:
                    end = data.find(b"\n", at)
                    header += data[at : end if end >= 0 else len(data)]
                    if len(header) > LONGEST_HEADER:
                        raise UserError(
                            f"line {self.line} of {self.path} has no end; give a FASTA file with Unix line ends"
                        )
                    at = len(data) if end < 0 else end + 1
                    if end >= 0:
                        self._begin(header)
                        header, begins = None, True
                elif begins and data[at] == ord(">"):
                    header, at = b"", at + 1
                else:
                    end = data.find(b"\n>", at)
                    stop = len(data) if end < 0 else end + 1
                    codes = self._sequence(data[at:stop])
                    begins, at = data[stop - 1] == ord("\n"), stop
                    if codes.size and self.name is not None:
                        self.bases += codes.size
                        yield self.name, codes
        self._end()
        if self.name is None:
            raise UserError(f"{self.path} is empty; give a FASTA file with at least one record")

    def _whole_ends(self, progress: Progress | None) -> Iterator[bytes]:
        """The text in chunks that keep white space together with the line end after it; the last one ends a line."""
        held = b""
        for i, chunk in enumerate(self._chunks(progress)):
            data = held + (chunk.removeprefix(b"\xef\xbb\xbf") if i == 0 else chunk)
            kept = data.rstrip(b" \t\r")
            held = data[len(kept) :]
            if kept:
                yield kept
        yield held + b"\n"

    def _chunks(self, progress: Progress | None) -> Iterator[bytes]:
        if (ending := self.path.suffix.lower()) in COMPRESSED and not is_compressed(self.path):
            kind = "an xz" if ending == ".xz" else "a gzip"
            raise UserError(f"{self.path} is not {kind} file, though its name says so; unpack it or copy it again")
        try:
            yield from read_bytes(self.path, CHUNK, progress)
        except DamagedFile as error:
            where = "" if self.name is None else f"in record {self.name!r} "
            raise UserError(f"{error} (it ends {where}near line {self.line})") from None

    def _begin(self, header: bytes) -> None:
        """A header was read: the record before it is complete."""
        self._end()
        words = header.decode("utf-8", "replace").split()
        if not words:
            raise UserError(f"line {self.line} of {self.path} is a header without a name; write >NAME")
        self.name, self.bases = words[0], 0
        if self.name in self.seen:
            raise UserError(
                f"record {self.name!r} is twice in {self.path}, in lines {self.seen[self.name]} and {self.line}; "
                "give every record a different name"
            )
        self.seen[self.name] = self.line
        self.line += 1

    def _end(self) -> None:
        if self.name is not None and not self.bases:
            raise UserError(
                f"record {self.name!r} in line {self.seen[self.name]} of {self.path} has no bases; remove it"
            )

    def _sequence(self, text: bytes) -> np.ndarray:
        """The codes of some lines."""
        codes = np.frombuffer(text.translate(TABLE, b"\n"), dtype=np.uint8)
        if codes.size and codes.max() >= WRONG:
            text = text.replace(b"\r\n", b"\n")
            codes = np.frombuffer(text.translate(TABLE, b"\n"), dtype=np.uint8)
            if codes.size and codes.max() >= WRONG:
                text = re.sub(rb"[ \t\r]+(?=\n)", b"", text)
                codes = np.frombuffer(text.translate(TABLE, b"\n"), dtype=np.uint8)
        if codes.size and self.name is None:
            self._no_fasta(text)
        if codes.size and codes.max() >= WRONG:
            self._refuse(text)
        self.line += text.count(b"\n")
        return codes

    def _no_fasta(self, text: bytes) -> None:
        """Raise for a file that does not begin with a header."""
        line = self.line + text[: len(text) - len(text.lstrip())].count(b"\n")
        first = text.lstrip().split(b"\n", 1)[0][:200]
        if first and not first.translate(None, b"ACGTUNacgtun"):
            raise UserError(f"line {line} of {self.path} is sequence before the first header; begin with a line >NAME")
        raise UserError(f"{self.path} is not a FASTA file: line {line} does not begin with '>'")

    def _refuse(self, text: bytes) -> None:
        """Raise for the first byte that is not a nucleotide."""
        letters = np.frombuffer(text, dtype=np.uint8)
        wrong = (np.frombuffer(TABLE, dtype=np.uint8)[letters] >= WRONG) & (letters != ord("\n"))
        place = int(np.argmax(wrong))
        byte = text[place : place + 1]
        line = self.line + text.count(b"\n", 0, place)
        where = f"{line_of(self.path, line)} (record {self.name!r})"
        letter = byte.decode("latin-1")
        if letter.upper() in PROTEIN:
            raise UserError(f"{where} has the letter {letter!r}, so it looks like protein; give DNA or RNA")
        if letter == "*":
            raise UserError(f"{where} has '*', the stop of a protein; give DNA or RNA")
        if letter in "-.~":
            raise UserError(f"{where} has {letter!r}, a gap of an alignment; remove the gaps")
        if letter.isspace():
            raise UserError(f"{where} has white space between its bases; remove it")
        if letter.isdigit():
            raise UserError(f"{where} has the digit {letter}; remove numbers from the sequence")
        shown = repr(letter) if letter.isascii() and letter.isprintable() else f"the byte 0x{byte.hex()}"
        raise UserError(f"{where} has {shown}, which is not a nucleotide code; use IUPAC letters (ACGTUN ...)")
