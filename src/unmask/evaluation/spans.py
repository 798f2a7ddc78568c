"""From texts and spans to rows for the network: laid out as in training, with the positions that are asked about."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data.canvas import PromptBuilder
from ..data.readers import line_of, numbered_lines
from ..data.tokenization import Tokenizer
from ..types import Batch, UserError

Span = tuple[int, int]  # characters of the text, the end not included
MARKED = re.compile(r"\[\[(.*?)\]\]", re.DOTALL)


@dataclass(frozen=True)
class Passage:
    """One row: a block of a text, or a whole text of which some tokens are asked about."""

    text: int  # which text
    ids: list[int]
    asked: list[int] | None  # places in `ids`; None = all of them, as one block of a text
    unscored: int = 0  # tokens at its start that the model does not score
    ends: bool = False  # whether the end of the text is scored with it
    goes_on: bool = False  # whether text that is given follows a token that is asked about


@dataclass(frozen=True)
class ScoredPassage:
    """What of one text is scored."""

    pieces: list[str]
    size: int | None  # bytes; None where the tokenizer cannot tell those of some tokens from the others


def read_texts(path: str) -> list[tuple[str, object]]:
    """(text, its span or None) of every line of a file that is not empty.

    A line of a .jsonl file is a string, or an object with a "text" and, if only a part of it counts, a "span".
    """
    rows = [(number, line) for number, line in numbered_lines(path) if line.strip()]
    if not rows:
        raise UserError(f"{path} has no text in it; write one text per line")
    if not path.endswith((".jsonl", ".ndjson")):
        return [(line, None) for _, line in rows]
    return [_line(path, number, line) for number, line in rows]


def _line(path: str, number: int, line: str) -> tuple[str, object]:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError):
        row = None
    row = {"text": row} if isinstance(row, str) else row
    if not isinstance(row, dict) or not isinstance(row.get("text"), str):
        raise UserError(f'{line_of(path, number)} is not a text; write {{"text": "...", "span": [0, 5]}} or a string')
    return row["text"], row.get("span")


def marked(text: str) -> tuple[str, list[Span]]:
    """("the cat", [(4, 7)]) from "the [[cat]]": a text without its marks, and what they enclose."""
    bare, spans = "", []
    for i, part in enumerate(MARKED.split(text)):
        if i % 2:
            spans.append((len(bare), len(bare) + len(part)))
        bare += part
    if not spans:
        raise UserError("there is no span in the text; mark what is to be scored as [[...]]")
    return bare, spans


def each_span(span: object, texts: str | Sequence[str]) -> list[list[Span] | None]:
    """The spans of every text: for one text (start, end) or several of them, for several texts one such entry each."""
    count = 1 if isinstance(texts, str) else len(texts)
    if span is None:
        return [None] * count
    if isinstance(texts, str):
        return [_spans(span)]
    if not isinstance(span, Sequence) or len(span) != count or any(isinstance(entry, int) for entry in span):
        raise UserError(f"{count} texts need a list of {count} spans, one for each, or None for a whole text")
    return [None if entry is None else _spans(entry) for entry in span]


def _spans(entry: object) -> list[Span]:
    several = [entry] if _is_span(entry) else entry
    if not isinstance(several, Sequence) or isinstance(several, str) or not several or not all(map(_is_span, several)):
        raise UserError(f"{entry!r} is not a span; give (start, end) in characters, or a list of such pairs")
    return [(pair[0], pair[1]) for pair in several]


def _is_span(entry: object) -> bool:
    whole = isinstance(entry, Sequence) and len(entry) == 2
    return whole and all(isinstance(end, int) and not isinstance(end, bool) for end in entry)  # type: ignore[attr-defined]


def read_passages(
    builder: PromptBuilder, texts: Sequence[str], spans: Sequence[list[Span] | None], unscored: int = 0
) -> tuple[list[Passage], list[ScoredPassage]]:
    """The rows of all texts, and what is scored of each.

    A whole text longer than the model is cut into blocks. A text with a span has to fit, for its context to be seen.
    The first `unscored` tokens of a row are not scored.
    """
    capacity, given = builder.capacity, set(builder.tokenizer.never_hidden)
    passages, scored = [], []
    for number, (text, text_spans) in enumerate(zip(texts, spans, strict=True)):
        ids = builder.encode(text)
        if not ids:
            raise UserError(f"text {number + 1} to score is empty; give it at least one token")
        if text_spans is None:
            counted = [i for i, token in enumerate(ids) if i % capacity >= unscored and token not in given]
            if not counted:
                raise UserError(
                    f"text {number + 1} has only tokens that this model is given and does not score; make it longer"
                )
            passages += [Passage(number, ids[i : i + capacity], None, unscored) for i in range(0, len(ids), capacity)]
            passages[-1] = with_end(builder, passages[-1])
            closing = builder.closing if passages[-1].ends else []
            if unscored:
                size = bytes_of(builder.tokenizer, text, ids, counted)
            else:
                size = len(text.encode()) if len(counted) == len(ids) else len(counted)
            scored.append(ScoredPassage(builder.tokenizer.pieces([*(ids[i] for i in counted), *closing]), size))
            continue
        if len(ids) > capacity:
            raise UserError(
                f"text {number + 1} has {len(ids)} tokens, more than the {capacity} that the model can see at once; "
                "shorten the context of the span"
            )
        asked, size = span_tokens(builder.tokenizer, text, ids, text_spans)
        if known := [i for i in asked if ids[i] in given]:
            asked, size = [i for i in asked if i not in known], size - len(known)
        if not asked:
            raise UserError(f"the span of text {number + 1} has only letters that are never scored, as N; widen it")
        rest = set(range(asked[0], len(ids))).difference(asked)
        passages.append(Passage(number, ids, asked, goes_on=any(ids[i] not in given for i in rest)))
        scored.append(ScoredPassage(builder.tokenizer.pieces([ids[i] for i in asked]), size))
    return passages, scored


def with_end(builder: PromptBuilder, passage: Passage) -> Passage:
    """The last block of a text with the end of the text, where the model learns it and there is room for it."""
    room = len(passage.ids) < builder.capacity or builder.block_ends is not None
    return replace(passage, ends=bool(builder.closing) and room)


def span_tokens(tokenizer: Tokenizer, text: str, ids: list[int], spans: Sequence[Span]) -> tuple[list[int], int]:
    """The tokens that spans touch, and the bytes of text that these stand for.

    A token is scored as a whole: a span that cuts one is widened to it (" cat" for "cat", with most tokenizers).
    """
    for start, end in spans:
        if not 0 <= start < end <= len(text):
            raise UserError(
                f"the span {start}:{end} does not lie in a text of {len(text)} characters; give 0 <= start < end"
            )
    encoded, offsets = tokenizer.offsets(text)
    if encoded != ids:  # a vocabulary with [MASK] as an ordinary word, which we take apart
        raise UserError("the text holds the mask token of this tokenizer as a word; take it out to score a span")
    asked = [i for i, (a, b) in enumerate(offsets) if any(a < end and start < b for start, end in spans)]
    if not asked:
        raise UserError("no token of the text stands for the span; the tokenizer drops these characters")
    return asked, _bytes(text, [offsets[i] for i in asked])


def bytes_of(tokenizer: Tokenizer, text: str, ids: list[int], places: Sequence[int]) -> int | None:
    """The bytes of text that some of its tokens stand for; None if the tokenizer does not say which are whose."""
    encoded, offsets = tokenizer.offsets(text)
    return _bytes(text, [offsets[i] for i in places]) if encoded == ids else None


def _bytes(text: str, spans: Sequence[Span]) -> int:
    covered = {place for span in spans for place in range(*span)}
    return sum(len(text[place].encode()) for place in covered)


def lay_out(
    builder: PromptBuilder, passages: Sequence[Passage], first: int, total: int, least: int = 0
) -> tuple[Batch, Tensor]:
    """Rows as in training (block ends, padding), and (B, L) bool: the positions that the process may hide.

    They are as long as the longest passage, and as one of `least` tokens.

    Of a whole text these are all positions that exist, as in training, block ends included; the block ends are hidden
    now and then, but do not count. Of a span they are its tokens alone. Letters that say nothing, as N in a text of
    bases, are given wherever they stand. Where a model learns where documents end, a text has its end and the padding
    after it, and the nats of both are those of the end.
    """
    vocab, spec = builder.vocab, builder.spec
    filler = next(token for token in (vocab.pad, vocab.eos, vocab.mask) if token is not None)
    before, after = ([], []) if builder.block_ends is None else ([builder.block_ends[0]], [builder.block_ends[1]])
    after = after or builder.closing
    longest = max(least, *(len(p.ids) for p in passages)) + len(before) + len(after)
    seen = spec.attend_pads or spec.has_ends
    width = spec.length if seen else longest
    tokens = torch.full((len(passages), width), filler)
    never_hidden = torch.tensor(builder.tokenizer.never_hidden, dtype=torch.int64)
    scored, free, present, padding = (torch.zeros(len(passages), width, dtype=torch.bool) for _ in range(4))
    for i, passage in enumerate(passages):
        row = torch.tensor([*before, *passage.ids, *after])[:width]
        every = torch.arange(passage.unscored, len(passage.ids) + passage.ends)
        places = every if passage.asked is None else torch.tensor(passage.asked)
        tokens[i, : len(row)] = row
        scored[i, places + len(before)] = True
        if passage.ends:  # what the end costs, over all positions that say it
            padding[i, len(row) :] = True
            scored[i] |= padding[i]
        present[i, : width if seen else len(row)] = True
        free[i] = present[i] if passage.asked is None else scored[i]
    given = torch.isin(tokens, never_hidden)
    batch = Batch(
        tokens,
        torch.arange(first, first + len(passages)),
        total,
        scored & ~given,
        None if present.all() else present,
        given=given if given.any() else None,
        padding=padding if spec.has_ends else None,
    )
    return batch, free & ~given
