"""From what a user typed to a canvas of tokens and masks, and back to text.

Given text comes back byte for byte: only gaps are decoded, given strings are pasted as they were typed. That also holds
for tokenizers that lower-case, and where a gap meets the middle of a word.
"""

from __future__ import annotations

import functools
import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor

from ..config import DataConfig
from ..errors import UserError, at_least
from .genome.bases import UNK
from .rows import Ends, capacity, end_of, ends_of
from .tokenization import MASK, Tokenizer
from .unknown import UnknownTokens

MOST_LENGTHS = 256  # combinations of lengths of ranged gaps that are compared
LONGEST = 2**22  # tokens of a text that is written in windows
ANSWER_TOKENS = 128  # tokens of an answer unless somebody says how many; if the model has room for them
BLANKS = re.compile(r"(?<![\w{])_+(?!\w)|(?:\[MASK\])+")
TORN = re.compile(r"\{\{\s*[0-9][0-9 -]*\}?(?!\})|(?<!\{)\{\s*[0-9][0-9 -]*\}\}")  # {{3}, {{3 and {3}}
SINGLE = re.compile(r"\{[0-9]+(?:-[0-9]+)?\}")
LENGTHS = re.compile(r"\s*0*([1-9][0-9]{0,8})\s*(?:-\s*0*([1-9][0-9]{0,8})\s*)?")


class ContextExceeded(UserError):
    """A conversation that leaves no room for its answer."""


@dataclass(frozen=True)
class Gap:
    """A gap of `low` to `high` tokens, and the regular expression that it must match, if any."""

    low: int
    high: int
    pattern: str | None = None


@dataclass(frozen=True)
class Canvas:
    """Tokens with masks to be written, and how the result is read as text: given strings stay as they were typed."""

    ids: Tensor  # (L,)
    parts: list[str | slice]  # given text, or the positions of a gap (gaps with nothing between them are one)
    lengths: list[int] = field(default_factory=list)  # of the gaps
    nats: dict[str, float] = field(default_factory=dict)  # the bound by which the lengths of ranged gaps were chosen
    errors: dict[str, float] = field(default_factory=dict)  # standard errors of its differences from the chosen one
    undecided: list[str] = field(default_factory=list)  # lengths that may be as good as the chosen ones
    closed: int = 0  # tokens at its end that only say that the text ends there
    ends: frozenset[int] = frozenset()  # tokens that end what is written: in a conversation, the end of a turn
    stop: tuple[str, ...] = ()  # and texts that do
    patterns: tuple[str | None, ...] = ()  # that gaps (slices of `parts`) must match; empty: none has one

    @property
    def open_end(self) -> bool:
        """Whether the text ends in a gap."""
        filled = [part for part in self.parts if part != ""]
        return isinstance(filled[-1], slice)


def split_gaps(text: str) -> list[str]:
    """What stands outside and inside of gaps, in turns: an odd number of strings, in linear time.

    {{3}} is a gap, and {{3:[a-z]{2}}} one with a pattern. In a text without braces ___ is a gap of three tokens, and
    [MASK] one of one token.
    """
    parts, at = [], 0
    while (start := text.find("{{", at)) >= 0 and (end := text.find("}}", start + 2)) >= 0:
        if ":" in text[start:end]:  # a pattern may have braces of its own
            while text[end + 2 : end + 3] == "}":
                end += 1
        parts += [text[at:start], text[start + 2 : end]]
        at = end + 2
    return [*parts, text[at:]] if parts else blanks(text, least=2)


def blanks(text: str, least: int = 1) -> list[str]:
    """What stands outside of blanks, and their lengths, in turns: ___ is three tokens, [MASK] one."""
    parts, at = [], 0
    for run in BLANKS.finditer(text):
        masks = run[0].startswith("[")
        if masks or len(run[0]) >= least:
            parts += [text[at : run.start()], str(len(run[0]) // len(MASK) if masks else len(run[0]))]
            at = run.end()
    return [*parts, text[at:]]


def parse_gaps(text: str) -> list[str | Gap]:
    """Given strings and gaps in turn: {{3}} is a gap of 3 tokens, {{2-6}} one of 2 to 6 (`split_gaps` has the rest)."""
    parts: list[str | Gap] = []
    for i, piece in enumerate(split_gaps(text)):
        if i % 2 == 0:
            if torn := TORN.search(piece):
                cure = "".join(character for character in torn[0] if character not in "{} ")
                raise UserError(f"{torn[0]!r} is half a gap; write {{{{{cure}}}}}, with two braces on either side")
            parts.append(piece)
            continue
        length, colon, pattern = piece.partition(":")
        match, pattern = LENGTHS.fullmatch(length), pattern.strip()
        if not match or (colon and not pattern):
            shown = piece if len(piece) <= 40 else piece[:37] + "..."
            raise UserError(
                f"{{{{{shown}}}}} is not a gap; write {{{{3}}}} for a gap of 3 tokens (at least 1) "
                "or {{2-6}} for one of 2 to 6; a pattern follows a colon, as in {{3:[0-9]+}}"
            )
        low = int(match[1])
        high = int(match[2] or low)
        if high < low:
            raise UserError(f"{{{{{length}}}}} is not a gap: write the smaller length first, {{{{{high}-{low}}}}}")
        parts.append(Gap(low, high, pattern or None))
    if len(parts) == 1:
        single = SINGLE.search(text)
        meant = f"{single[0]} has one brace on either side, write {{{single[0]}}}" if single else "mark one with {{3}}"
        raise UserError(f"there is no gap to fill; {meant} (or ___) for three tokens, [MASK] for one")
    return parts


class PromptBuilder:
    """Makes canvases for a model: knows its tokenizer, its length and how its rows were laid out."""

    def __init__(self, tokenizer: Tokenizer, spec: DataConfig, any_length: bool = False) -> None:
        self.tokenizer, self.spec, self.vocab = tokenizer, spec, tokenizer.vocab
        self.any_length = any_length  # whether the model needs no windows for more than it was trained on
        self.unknown = UnknownTokens(tokenizer)  # of the texts that were encoded

    @property
    def block_ends(self) -> Ends | None:
        """BOS and EOS, where the rows of the training had them at their ends."""
        return ends_of(self.spec, self.vocab)

    @property
    def capacity(self) -> int:
        """How many tokens of text the model sees at once."""
        return capacity(self.spec.length, self.block_ends)

    @property
    def closing(self) -> list[int]:
        """The token after a text that is complete, where the model has learned where documents end."""
        end = end_of(self.spec, self.vocab)
        return [] if end is None else [end]

    @property
    def ends(self) -> frozenset[int]:
        """The tokens that end a text: EOS, and padding where the model has learned it."""
        tokens = (self.vocab.eos, self.vocab.pad if self.spec.has_ends else None)
        return frozenset(token for token in tokens if token is not None)

    def prompt(self, prompt: str, suffix: str, length: int | None, windowed: bool = False) -> Canvas:
        """The prompt, masks up to `length` tokens in all, and the suffix.

        Rows that were trained with block ends begin with BOS; windows get their block ends later.
        """
        most = self.spec.length
        length = most if length is None else length
        at_least("length", length)
        if length > most and not (windowed or self.any_length):
            raise UserError(
                f"length={length} must be between 1 and {most}, the length the model was trained on; "
                f"give a stride below {most}, for example {most // 2}, to write more in windows"
            )
        _check_longest(length)
        before, after = self.encode(self.before_gap(prompt)), self.encode(suffix)
        closing = self.closing if suffix and not windowed else []
        after += closing
        if self.block_ends is not None and not windowed:
            before = [self.block_ends[0], *before]
        if len(before) + len(after) >= length:
            what = "the prompt and the suffix have" if after else "the prompt has"
            raise UserError(
                f"{what} {len(before) + len(after)} tokens, which leaves nothing to write in length={length}; "
                f"shorten {'them' if after else 'it'}{' or raise the length' if length < most or windowed else ''}"
            )
        gap = length - len(before) - len(after)
        ids = torch.tensor([*before, *[self.vocab.mask] * gap, *after], dtype=torch.int64)
        parts: list[str | slice] = [prompt, slice(len(before), len(before) + gap)]
        return Canvas(ids, [*parts, suffix] if suffix else parts, [gap], closed=len(closing))

    def answer(
        self, conversation: Sequence[int], tokens: int | None = None, windowed: bool = False, **ends: Any
    ) -> Canvas:
        """A conversation and masks for its answer, at most `tokens`, whose text is the answer alone.

        `ends` are the `ends` and the `stop` of the canvas.
        """
        if tokens is not None:
            at_least("max_tokens", tokens)
        given, most = len(conversation), LONGEST if windowed or self.any_length else self.spec.length
        length = min(given + ANSWER_TOKENS, most) if tokens is None else given + tokens
        if not given < length <= most:
            wanted = f" and max_tokens={tokens} make {length}" if tokens is not None and given < most else ""
            raise ContextExceeded(
                f"this model reads and writes {most} tokens, but the conversation has {given}{wanted}; shorten it"
                f"{' or reduce max_tokens' if wanted else ''}"
            )
        ids = torch.tensor([*conversation, *[self.vocab.mask] * (length - given)], dtype=torch.int64)
        return Canvas(ids, [slice(given, length)], [length - given], **ends)

    def prompt_tokens(self, prompt: str, suffix: str = "", windowed: bool = False) -> int:
        """How many tokens of such a canvas are given."""
        bos = 0 if self.block_ends is None or windowed else 1
        closing = len(self.closing) if suffix and not windowed else 0
        return bos + len(self.encode(self.before_gap(prompt))) + len(self.encode(suffix)) + closing

    def gaps(self, parts: list[str | Gap], lengths: list[int] | None = None, windowed: bool = False) -> Canvas:
        """A text with gaps, of the lengths that are given (default: the shortest)."""
        chosen = lengths or [part.low for part in parts if isinstance(part, Gap)]
        sizes = iter(chosen)
        ids: list[int] = [] if self.block_ends is None or windowed else [self.block_ends[0]]
        shown: list[str | slice] = []
        patterns: list[str | None] = []
        for i, part in enumerate(parts):
            if isinstance(part, str):
                ids += self._part_ids(parts, i)
                shown += [part] if part else []
                continue
            size = next(sizes)
            if windowed:
                _check_longest(len(ids) + size)
            elif len(ids) + size > self.spec.length:  # before a huge gap is made
                raise UserError(
                    f"the text with its gaps is longer than the {self.spec.length} tokens the model was trained on; "
                    "shorten it, or write it in windows, with a stride"
                )
            last = shown[-1] if shown else ""
            if isinstance(last, slice):
                if patterns[-1] is not None or part.pattern is not None:
                    raise UserError("two gaps side by side are one, which has no pattern; write it as one gap")
                shown[-1] = slice(last.start, len(ids) + size)
            else:
                shown.append(slice(len(ids), len(ids) + size))
                patterns.append(part.pattern)
            ids += [self.vocab.mask] * size
        if not windowed and len(ids) > self.spec.length:
            raise UserError(
                f"the text with its gaps has {len(ids)} tokens, more than the {self.spec.length} the model was trained "
                "on; shorten it, or write it in windows, with a stride"
            )
        complete = parts[-1] != "" and not windowed and len(ids) < self.spec.length  # it ends in given text
        closing = self.closing if complete else []
        return Canvas(
            torch.tensor([*ids, *closing], dtype=torch.int64),
            shown,
            list(chosen),
            closed=len(closing),
            patterns=tuple(patterns) if any(patterns) else (),
        )

    def candidates(self, parts: list[str | Gap]) -> list[list[int]]:
        """Every combination of lengths of the ranged gaps that fits into the model's length; at most 256."""
        prompt_tokens = sum(len(self._part_ids(parts, i)) for i, part in enumerate(parts) if isinstance(part, str))
        gaps = [part for part in parts if isinstance(part, Gap)]
        if all(gap.low == gap.high for gap in gaps):
            return [[gap.low for gap in gaps]]
        capacity = self.spec.length - prompt_tokens - (0 if self.block_ends is None else 1)
        if sum(gap.low for gap in gaps) > capacity:
            raise UserError(
                f"even the shortest gaps make the text longer than the {self.spec.length} tokens the model was trained "
                "on; shorten it"
            )
        combinations: list[list[int]] = [[]]
        for i, gap in enumerate(gaps):  # each of them can be completed, so their number only grows
            spare = capacity - sum(other.low for other in gaps[i + 1 :])
            combinations = [
                [*sizes, size]
                for sizes in combinations
                for size in range(gap.low, min(gap.high, spare - sum(sizes)) + 1)
            ]
            if len(combinations) > MOST_LENGTHS:
                raise UserError(
                    f"the ranges of the gaps allow more than {MOST_LENGTHS} combinations of lengths; narrow them"
                )
        return combinations

    def _part_ids(self, parts: list[str | Gap], i: int) -> list[int]:
        """The ids of given part i of a text with gaps."""
        part = parts[i]
        assert isinstance(part, str)
        return self.encode(self.before_gap(part) if i + 1 < len(parts) else part)

    def encode(self, text: str) -> list[int]:
        """The ids of a text that a user gave."""
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes of the command line that are not text arrive as lone surrogates
            raise UserError("the given text is not UTF-8; check the encoding of your terminal") from None
        ids = self.tokenizer.encode(text) if text else []
        if self.tokenizer.kind == "dna" and UNK in ids:
            raise UserError(f"{text[ids.index(UNK)]!r} in the given text is not a base; use A, C, G, T and N only")
        self.unknown.add(ids)
        return ids

    @functools.cached_property
    def joins_spaces(self) -> bool:
        """Whether the tokenizer writes a space as the beginning of the next word's token, as GPT-2's does."""
        if self.tokenizer.kind == "dna":
            return False
        return self.tokenizer.pieces(self.tokenizer.encode(" a")[:1]) != [" "]

    @functools.cached_property
    def drops_spaces(self) -> bool:
        """Whether white space has no tokens at all, as in WordPiece: it is the decoder that sets words apart."""
        return not self.tokenizer.encode(" \n")

    def before_gap(self, text: str) -> str:
        """What the network sees of a text before a gap: the space between belongs to the first word of the gap."""
        return text[:-1] if self.joins_spaces and text.endswith(" ") else text

    @functools.cached_property
    def _bare_beginning(self) -> bool:
        """Whether the decoder leaves out the space that begins a text."""
        spelling = self.tokenizer.spelling
        first = next((token for token, text in enumerate(spelling) if text is not None and text[:1] == b" "), None)
        return first is not None and not self.tokenizer.decode([first]).startswith(" ")

    def has_space(self, canvas: Canvas, gap: slice) -> bool:
        """Whether a space that begins a gap is not part of its text: the given text has it, or the decoder adds it."""
        before = canvas.parts[: canvas.parts.index(gap)]
        text = "".join(part for part in before if isinstance(part, str))
        if self.drops_spaces or self.before_gap(text) != text:
            return True
        first = gap.start == 0 or int(canvas.ids[gap.start - 1]) in (self.vocab.eos, self.vocab.bos)
        return first and self._bare_beginning

    def text(self, canvas: Canvas, ids: Tensor, upto: int | None = None) -> str:
        """Given strings as typed, gaps decoded; with `upto` only what stands before that position.

        An end of text between other text reads as a line break.
        """
        text, ended = "", False
        upto = len(ids) if upto is None else upto
        for part in canvas.parts:
            if isinstance(part, str):
                text += "\n" + part if ended and part else part
                continue
            written = self._read(ids[: part.start].tolist(), ids[part.start : min(part.stop, upto)].tolist())
            apart = text[-1:].isspace() if self.drops_spaces else self.before_gap(text) != text
            if apart and written.startswith(" "):
                written = written[1:]  # the given text has it already
            text += written
            if upto < part.stop:
                break  # the gap is still open
            ended = bool(text) and int(ids[part.stop - 1]) in (self.vocab.eos, self.vocab.bos)
        return text

    def _read(self, before: list[int], ids: list[int]) -> str:
        """A gap as text: what its tokens add to the token before it (which may say that a space belongs between)."""
        ends = (self.vocab.eos, self.vocab.bos)
        documents: list[list[int]] = [[]]
        for token in ids:
            if token in ends:
                documents.append([])
            else:
                documents[-1].append(token)
        lines = [self.tokenizer.decode(document) for document in documents if document]
        if documents[0] and before and before[-1] not in (*ends, self.vocab.mask):
            alone = self.tokenizer.decode(before[-1:])
            both = self.tokenizer.decode([before[-1], *documents[0]])
            if alone and both.startswith(alone):
                lines[0] = both[len(alone) :]
        after_text = bool(before) and before[-1] not in ends
        return "\n".join(["", *lines] if lines and not documents[0] and after_text else lines)


def _check_longest(tokens: int) -> None:
    if tokens > LONGEST:
        raise UserError(f"a text of {tokens:,} tokens is longer than the {LONGEST:,} that can be written; shorten it")
