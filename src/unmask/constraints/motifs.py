"""Languages of DNA: sequences that contain a motif, and reading frames without a stop codon."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from itertools import product

from ..data.genome.bases import BASES
from ..errors import UserError
from .language import Chars, Either, Language, Node, Then, Times, compiled, literal, merged

IUPAC = {
    **{base: base for base in BASES},
    "U": "T", "R": "AG", "Y": "CT", "S": "CG", "W": "AT", "K": "GT", "M": "AC",
    "B": "CGT", "D": "AGT", "H": "ACT", "V": "ACG", "N": "ACGT",
}  # fmt: skip
STOPS = ("TAA", "TAG", "TGA")


def _one_of(bases: str) -> Node:
    return Chars(merged([(ord(base), ord(base)) for base in bases]))


@functools.lru_cache(maxsize=256)
def motif(code: str) -> Language:
    """DNA that contains a motif, in the codes of the IUPAC: TATAWAW contains TATAAAA."""
    if not code:
        raise UserError("the motif is empty; give bases or codes such as W (A or T)")
    for letter in code.upper():
        if letter not in IUPAC:
            raise UserError(f"{letter!r} in the motif {code!r} is not a code of a base; use {', '.join(IUPAC)}")
    anything = Times(_one_of(BASES), 0, None)
    parts = [_one_of(IUPAC[letter]) for letter in code.upper()]
    return compiled(Then((anything, *parts, anything)), f"motif {code.upper()}")


def open_frame(start: int = 0, stops: Sequence[str] = STOPS) -> Language:
    """DNA without a stop codon in the frame that begins after `start` bases; other frames may have some."""
    return _open_frame(start, tuple(stops))


@functools.lru_cache(maxsize=64)
def _open_frame(start: int, stops: tuple[str, ...]) -> Language:
    if start not in (0, 1, 2):
        raise UserError(f"start={start} must be 0, 1 or 2, the bases before the first codon")
    codons = ["".join(codon) for codon in product(BASES, repeat=3)]
    for stop in stops:
        if stop not in codons:
            raise UserError(f"the stop codon {stop!r} must be three of the bases {BASES}")
    base = _one_of(BASES)
    sense = Either(tuple(literal(codon) for codon in codons if codon not in stops))
    whole = Then((*[base] * start, Times(sense, 0, None), Times(base, 0, 2)))
    short = [Times(base, 0, start)]  # which ends before its first codon
    return compiled(Either((whole, *short)), f"open frame {start}")
