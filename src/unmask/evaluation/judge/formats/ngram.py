"""Word n-gram models with Katz back-off as judges: ARPA files, and the English trigram that comes with pocketsphinx.

They know little about grammar and nothing about meaning, but they were made from other text by other people, need no
network and read a million words in seconds. The difficulty is unknown words: they are scored as <unk> if the model has
it; otherwise they are skipped, dropped from the history, and counted separately.
"""

from __future__ import annotations

import gzip
import importlib
import math
import re
import zlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol, TextIO

from ....types import UserError
from ..scorers import JudgedText

START, STOP = "<s>", "</s>"
UNKNOWN = ("<unk>", "<UNK>")
MARKS = re.compile(r"(\W*)(.*?)(\W*)", re.DOTALL)  # what is around a word
SENTENCE = re.compile(r"[.!?]['\")\]”’]*$")
LONGEST = 1 << 16  # characters of a line
UNPACKED = 100  # times that a packed file may grow
LN10 = math.log(10)


class WordModel(Protocol):
    """The probability of a word after a history."""

    @property
    def order(self) -> int:
        """The number of words of the longest n-gram."""
        ...

    def knows(self, word: str) -> bool:
        """Whether the word is in the vocabulary."""
        ...

    def nats(self, word: str, history: Sequence[str]) -> float:
        """-log p(word | history), with the nearest word of the history last; all words are known."""
        ...


@dataclass(frozen=True)
class Arpa:
    """An ARPA model: log10 probabilities of n-grams and back-off weights, by their words joined with spaces."""

    order: int
    log_p: dict[str, float] = field(repr=False)
    back_off: dict[str, float] = field(repr=False)

    def knows(self, word: str) -> bool:
        """Whether the word is in the vocabulary."""
        return " " not in word and word in self.log_p

    def nats(self, word: str, history: Sequence[str]) -> float:
        """-log p: that of the longest known n-gram, plus the cost of backing off to it."""
        cost = 0.0
        for start in range(max(0, len(history) - self.order + 1), len(history)):
            before = " ".join(history[start:])
            log_p = self.log_p.get(f"{before} {word}")
            if log_p is not None:
                return -(cost + log_p) * LN10
            cost += self.back_off.get(before, 0.0)
        return -(cost + self.log_p[word]) * LN10


def read_arpa(path: Path) -> Arpa:
    """Read an ARPA file of any order, plain or gzipped; errors name the line."""
    if not path.is_file():
        raise UserError(f"n-gram model {path} does not exist")
    try:
        with gzip.open(path, "rt", encoding="utf-8") if path.suffix == ".gz" else path.open(encoding="utf-8") as lines:
            return _parse(_bounded(lines, path), path)
    except UnicodeDecodeError:
        hint = "; for a binary model of pocketsphinx write trigram: before its name" if path.suffix == ".bin" else ""
        raise UserError(f"{path} is not an ARPA file in UTF-8{hint}") from None
    except (EOFError, gzip.BadGzipFile, zlib.error):
        raise UserError(f"{path} is damaged: it cannot be unpacked") from None


def _bounded(lines: TextIO, path: Path) -> Iterator[str]:
    """The lines of a file; one without an end, or far more than the packed file can hold, is an error."""
    left = UNPACKED * path.stat().st_size + LONGEST
    while line := lines.readline(LONGEST):
        left -= len(line)
        if len(line) == LONGEST or left < 0:
            what = f"a line of {LONGEST:,} characters" if left >= 0 else f"over {UNPACKED} times its size when unpacked"
            raise UserError(f"{path} is not an ARPA file: it has {what}")
        yield line


def _parse(lines: Iterable[str], path: Path) -> Arpa:
    announced: dict[int, int] = {}
    seen: dict[int, int] = {}
    log_p: dict[str, float] = {}
    back_off: dict[str, float] = {}
    section: int | None = None  # None before \data\, 0 in the header
    for number, line in enumerate(lines, 1):
        line = line.strip()
        if line == "\\data\\":
            section = 0
        elif section is None or not line:
            continue
        elif line == "\\end\\":
            if not announced or seen != announced:
                raise UserError(f"{path} is damaged: it announces n-grams {announced} and holds {seen}")
            return Arpa(max(announced), log_p, back_off)
        elif match := re.fullmatch(r"\\(\d+)-grams:", line):
            section = int(match[1])
            seen[section] = 0
        elif section == 0 and (match := re.fullmatch(r"ngram\s+(\d+)\s*=\s*(\d+)", line)):
            announced[int(match[1])] = int(match[2])
        else:
            fields = line.split()
            try:
                key = " ".join(fields[1 : 1 + section])
                log_p[key] = float(fields[0])
                if len(fields) == section + 2:
                    back_off[key] = float(fields[-1])
                elif len(fields) != section + 1 or not section:
                    raise ValueError
            except (ValueError, IndexError):
                raise UserError(f"{path} is damaged in line {number}: no {section}-gram") from None
            seen[section] += 1
            if seen[section] > announced.get(section, 0):
                raise UserError(f"{path} is damaged: it holds more {section}-grams than it announces, {announced}")
    raise UserError(
        f"{path} is damaged: it ends before \\end\\" if section else f"{path} is not an ARPA file: no \\data\\"
    )


class Sphinx:
    """The n-gram reader of pocketsphinx: whole numbers, logarithms to the base 1.0001."""

    def __init__(self, model: Any, log: Any) -> None:
        self.model, self.log = model, log
        self.order = int(model.size())

    def knows(self, word: str) -> bool:
        """Whether the word is in the vocabulary."""
        return bool(self.model.prob([word]) > self.log.get_zero())

    def nats(self, word: str, history: Sequence[str]) -> float:
        """-log p; pocketsphinx takes the word first and its history backwards."""
        nearest = list(history)[::-1][: self.order - 1]
        return -float(self.log.log_to_ln(self.model.prob([word, *nearest])))


@dataclass(frozen=True)
class NgramScorer:
    """A word model as a judge of running text."""

    model: WordModel
    name: str
    case: str  # lower, upper or kept

    def nats(self, texts: Sequence[str]) -> list[JudgedText]:
        """-log p of each text."""
        return [self._score(text) for text in texts]

    def describe(self) -> dict[str, Any]:
        """The protocol of the scores."""
        left_out = "left out of the perplexity, counted as unknown_share"
        return {
            "scorer": self.name,
            "likelihood": f"exact, words, order {self.model.order}, Katz back-off",
            "case": self.case,
            "punctuation": "words" if self._marks else "dropped",
            "sentences": "end at . ! ? and line breaks; <s> before each, </s> scored where one ends",
            "unknown_words": f"scored as {self._unknown}" if self._unknown else left_out,
        }

    @property
    def _marks(self) -> bool:
        return self.model.knows(".") or self.model.knows(",")

    @property
    def _unknown(self) -> str | None:
        return next((word for word in UNKNOWN if self.model.knows(word)), None)

    def _score(self, text: str) -> JudgedText:
        unknown, marks, keep = self._unknown, self._marks, self.model.order - 1
        nats, tokens, strange, total = 0.0, 0, 0, 0
        begin = [START] if self.model.knows(START) else []
        for chunks, ended in sentences(text):
            words = [word for chunk in chunks for word in self._words(chunk, marks)]
            history = list(begin)
            for word in words:
                known = word if self.model.knows(word) else unknown
                strange += known != word
                if known is None:
                    history = []
                    continue
                nats, tokens = nats + self.model.nats(known, history), tokens + 1
                history = [*history, known][-keep:] if keep else []
            total += len(words)
            if words and ended and self.model.knows(STOP):
                nats, tokens = nats + self.model.nats(STOP, history), tokens + 1
        return JudgedText(nats, tokens, total, strange)

    def _words(self, chunk: str, marks: bool) -> Iterator[str]:
        """A whitespace-separated piece as words of the model: as it is if it is known, else without punctuation."""
        for form in (chunk, self._cased(chunk)):
            if self.model.knows(form):
                yield form
                return
        parts = MARKS.fullmatch(chunk.replace("’", "'"))
        assert parts is not None, "anything is marks, word, marks"
        before, word, behind = parts.groups()
        if marks:
            yield from before
        if word:
            yield self._cased(word)
        if marks:
            yield from behind

    def _cased(self, word: str) -> str:
        return {"lower": word.lower(), "upper": word.upper()}.get(self.case, word)


def sentences(text: str) -> Iterator[tuple[list[str], bool]]:
    """Whitespace-separated pieces, sentence by sentence, and whether the sentence or the text ended."""
    lines = text.split("\n")
    for i, line in enumerate(lines):
        words: list[str] = []
        for chunk in line.split():
            words.append(chunk)
            if SENTENCE.search(chunk):
                yield words, True
                words = []
        if words:
            yield words, i + 1 < len(lines)


def arpa_scorer(where: str, device: object = "cpu") -> NgramScorer:
    """A judge from an ARPA file; texts are scored in the case of its vocabulary. It needs no device."""
    model = read_arpa(Path(where).expanduser())
    words = [word for word in model.log_p if " " not in word and word not in (START, STOP, *UNKNOWN)]
    upper, lower = (any(word != change(word) for word in words) for change in (str.lower, str.upper))
    case = "kept" if upper == lower else "upper" if upper else "lower"
    return NgramScorer(model, f"arpa:{where}", case)


def pocketsphinx_scorer(where: str, device: object = "cpu") -> NgramScorer:
    """A judge from a binary n-gram file, by default the English trigram that comes with pocketsphinx."""
    try:
        sphinx = importlib.import_module("pocketsphinx")
    except ImportError:
        raise UserError("the English trigram needs the package pocketsphinx; pip install pocketsphinx") from None
    path = Path(where).expanduser()
    if where == "pocketsphinx":
        path = Path(sphinx.get_model_path()) / "en-us" / "en-us.lm.bin"
    if not path.is_file():
        raise UserError(f"n-gram model {path} does not exist; give trigram:pocketsphinx or a .lm.bin file")
    try:
        model = Sphinx(sphinx.NGramModel.readfile(str(path)), sphinx.LogMath())
    except (ValueError, RuntimeError):
        raise UserError(f"{path} is damaged or not an n-gram model that pocketsphinx can read") from None
    lower, upper = model.knows("the"), model.knows("THE") or model.knows("The")
    case = "kept" if upper == lower else "upper" if upper else "lower"
    return NgramScorer(model, f"trigram:{where}", case)
