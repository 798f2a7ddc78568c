"""Conversations to rows: prompts are given, answers are to be learned.

A row of a table has `messages`, or a `prompt` and a `completion` (texts or messages). It is written by a chat template;
what is not an answer is given: never hidden, never scored. Each answer has a row of its own, after all that was said
before it (`data.chat_rows=answer`): a model that looks both ways must not see what follows, nor how long the answer is.
One that looks to the left may learn all answers in one row (`conversation`). What is longer than a row loses its oldest
turns; what still does not fit is left out. A row ends with EOS that is learned, as in LLaDA (`data.chat_pad=eos`), or
with the answer (`cut`).

In the cache (`packed`) a row is a document, and a bit of each token says that it is to be learned.
"""

from __future__ import annotations

import csv
import json
import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import chain
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..config import DataConfig
from ..errors import UserError
from ..types import Progress
from . import dataset_files, documents, readers, records
from .cache import cache_folder, content_key, file_hash
from .chat import ChatTemplate, Message, checked
from .dataset_files import SPLIT_NAMES
from .documents import Piece
from .hub_datasets import load_place
from .pack import Prepared, build, empty
from .packed import FORMAT, SplitWriter, map_file
from .records import Hub
from .rows import Rows
from .streams import Corpus, Reader, assemble
from .tokenization import Tokenizer

MESSAGES, PROMPT, COMPLETION = "messages", "prompt", "completion"
COLUMNS = ((MESSAGES,), (PROMPT, COMPLETION))
ANSWER = 1 << 31  # in a stored token
log = logging.getLogger(__name__)


def prepare_chat(
    spec: DataConfig,
    tokenizer: Tokenizer | None,
    template: ChatTemplate | None,
    splits: Iterable[str],
    progress: Progress | None,
) -> ChatPrepared:
    """Conversations in tokens, in the cache; `template` is that of the model, where data.chat_template names none."""
    if tokenizer is None:
        raise UserError("data.layout=chat needs the tokenizer of a model; train one further: unmask finetune MODEL sft")
    if template is None:
        if spec.chat_template is None:
            raise UserError(
                f"the tokenizer {tokenizer.name!r} comes without a chat template; name one, as --template plain "
                "(data.chat_template: chatml, llama3, plain or a .jinja file)"
            )
        template = ChatTemplate.named(spec.chat_template, tokenizer)
    if spec.chat_pad == "eos" and tokenizer.vocab.eos is None:
        raise UserError(f"tokenizer {tokenizer.name!r} has no end-of-text token; set data.chat_pad=cut (--pad cut)")
    corpus = open_conversations(spec)
    shape = [spec.length, spec.chat_rows]
    key = content_key("chat", FORMAT, corpus.fingerprint, tokenizer.digest, template.source, shape)
    prepared = ChatPrepared(spec, tokenizer, corpus, key, cache_folder(spec) / key, template=template)
    build(prepared, [split for split in splits if split in corpus.splits], progress)
    return prepared


@dataclass(frozen=True)
class ChatPrepared(Prepared):
    """A corpus of conversations in tokens."""

    template: ChatTemplate | None = None

    def split(self, name: str, rest: bool = False) -> ChatRows:
        """The rows of a split, or one sentence why there are none."""
        facts, vocab = self.facts(name), self.tokenizer.vocab
        if not facts["documents"] + facts["dropped"]:
            raise empty(self, name)
        if not facts["documents"]:
            raise UserError(
                f"split {name!r} of {self.spec.source} has no conversation that fits into data.length="
                f"{self.spec.length} tokens; give shorter ones, or a model with longer rows"
            )
        counts = {count: facts[count] for count in ("tokens", "documents", "bytes", "answers", "shortened", "dropped")}
        about = {
            "source": self.spec.source,
            "split": name,
            "layout": "chat",
            "chat_pad": self.spec.chat_pad,
            "chat_rows": self.spec.chat_rows,
            "tokenizer": self.tokenizer.name,
            "tokenizer_digest": self.tokenizer.digest[:16],
            "corpus": self.corpus.fingerprint[:16],
            **counts,
        }
        for what, done in (("shortened", "lost their oldest turns"), ("dropped", "were left out")):
            if facts[what]:
                log.warning(
                    "%d of %d rows of split %r of %s %s: the conversations are longer than data.length=%d tokens",
                    facts[what],
                    facts["documents"] + facts["dropped"],
                    name,
                    self.spec.source,
                    done,
                    self.spec.length,
                )
        return ChatRows(
            stream=map_file(self.folder / f"{name}.bin", np.dtype("<u4")),
            ends=map_file(self.folder / f"{name}.idx", np.dtype("<u8")),
            facts=about,
            length=self.spec.length,
            pad=vocab.eos if self.spec.chat_pad == "eos" or vocab.pad is None else vocab.pad,
            learned=self.spec.chat_pad == "eos",
        )

    def write(self, splits: list[str], progress: Progress | None) -> None:
        """Write splits into the cache."""
        writers = {split: ChatWriter(self, split) for split in splits}
        size, done = self.corpus.size, 0
        try:
            for split, piece in self.corpus.pieces(splits):
                writers[split].converse(json.loads(piece.text))
                done += len(piece.text)
                if progress is not None and size:
                    progress(min(done, size), size)
            for writer in writers.values():
                writer.commit()
        finally:
            for writer in writers.values():
                writer.close()
        if progress is not None:
            progress(size or done, size or done)


class ChatWriter(SplitWriter):
    """One split of conversations on its way to disk."""

    def __init__(self, prepared: ChatPrepared, split: str) -> None:
        super().__init__(prepared, split)
        assert prepared.template is not None
        self.template, self.length, self.dtype = prepared.template, prepared.spec.length, np.dtype("<u4")
        self.alone = prepared.spec.chat_rows == "answer"
        self.more = {"answers": 0, "shortened": 0, "dropped": 0}

    def converse(self, messages: list[Message]) -> None:
        """Append the rows of a conversation, or what fits of them."""
        answered = [k for k, message in enumerate(messages, 1) if message["role"] == "assistant"]
        for end in answered if self.alone else answered[-1:]:
            row = fit(messages[:end], self.template, self.length, self.alone)
            if row is None:
                self.more["dropped"] += 1
                continue
            self.more["shortened"] += len(row.messages) < end
            self.more["answers"] += int(row.learned.sum())
            said = [message["content"] for message in row.messages if message["role"] == "assistant"]
            marks = np.where(row.learned, np.uint32(ANSWER), np.uint32(0))
            self.add([(Piece("".join(said[-1:] if self.alone else said)), row.ids | marks)])


class Fitting(NamedTuple):
    """A conversation that fits into a row."""

    messages: list[Message]
    ids: np.ndarray
    learned: np.ndarray


def fit(messages: list[Message], template: ChatTemplate, length: int, alone: bool) -> Fitting | None:
    """What fits into a row of a conversation up to its last answer, the only one to be learned if it is `alone`."""
    system = messages[:1] if messages[0]["role"] == "system" else []
    turns = messages[len(system) :]
    while turns:
        ids, answers = (np.array(values) for values in template.ids([*system, *turns]))
        places = np.flatnonzero(answers)
        if len(places) and places[-1] < length:
            end = places[-1] + 1  # what a template writes after an answer would say where it ends
            start = np.flatnonzero(~answers[:end])[-1] + 1 if alone and not answers[:end].all() else 0
            learned = answers[:end] & (np.arange(end) >= start)
            return Fitting([*system, *turns], ids[:end].astype(np.uint32), learned)
        turns = turns[2:]
    return None


@dataclass(frozen=True, eq=False)
class ChatRows(Rows):
    """Conversations as rows, of which the answers count."""

    learned: bool = True  # whether what follows a conversation is EOS that is learned, or nothing

    def rows(self, indices: np.ndarray | Iterable[int]) -> tuple[np.ndarray, np.ndarray | None]:
        """(n, L) int64 tokens, and (n, L) bool: the answers."""
        tokens, answers, _ = self._read(indices)
        return tokens, answers

    def fields(self, chosen: np.ndarray, attend_pads: bool) -> dict[str, np.ndarray | None]:
        """Tokens and marks of a batch: prompts are given."""
        tokens, answers, exists = self._read(chosen)
        if not self.learned:
            return {"tokens": tokens, "scored": answers, "present": exists, "given": exists & ~answers}
        return {"tokens": tokens, "given": exists & ~answers, "padding": ~exists}

    def _read(self, indices: np.ndarray | Iterable[int]) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """(n, L) each: tokens, whether they are answers, whether they are parts of a conversation."""
        chosen = np.asarray(list(indices) if not isinstance(indices, np.ndarray) else indices, dtype=np.int64)
        assert self.ends is not None and self.pad is not None
        tokens = np.full((len(chosen), self.length), self.pad, dtype=np.int64)
        answers, exists = np.zeros(tokens.shape, dtype=bool), np.zeros(tokens.shape, dtype=bool)
        for row, i in enumerate(chosen):
            stored = self.stream[int(self.ends[i - 1]) if i else 0 : int(self.ends[i])]
            tokens[row, : len(stored)] = stored & (ANSWER - 1)
            answers[row, : len(stored)] = stored >= ANSWER
            exists[row, : len(stored)] = True
        return tokens, answers, exists

    @cached_property
    def bytes_per_token(self) -> float:
        """Bytes of the answers for each of their tokens."""
        return float(self.facts["bytes"] / self.facts["answers"])

    def describe(self) -> dict[str, Any]:
        """What a reported number should carry."""
        counted = "only answers count; prompts are given"
        if self.learned:
            counted += "; the nats of the end-of-text tokens after a conversation belong to its last answer"
        return {**super().describe(), "counted": counted}


# ---- where they come from


def open_conversations(spec: DataConfig) -> Corpus:
    """The conversations that `data.source` names: a table, a folder of tables, or a data set of the Hub."""
    if records.find(spec.source) is not None:
        raise UserError(f"{spec.source} is text, not conversations; give a file or a Hub data set with messages")
    path = Path(spec.source).expanduser()
    if path.is_file():
        return _from_files(spec, path.name, {"train": [path]})
    if path.is_dir():
        files = [file for file in dataset_files.below(path) if documents.table_of(file)]
        if not files:
            raise UserError(f"folder {path} holds no .jsonl, .json, .csv or .parquet file with conversations")
        return _from_files(spec, path.name, dataset_files.by_split(path, files)[0])
    if path.suffix or spec.source.startswith((".", "/", "~")):
        raise UserError(f"file or folder {spec.source} does not exist")
    return _from_hub(spec)


def _from_files(spec: DataConfig, name: str, files: Mapping[str, list[Path]]) -> Corpus:
    every = [path for paths in files.values() for path in paths]
    for path in every:
        if documents.table_of(path) is None:
            raise UserError(f"{path} is not a table of conversations; give a .jsonl, .json, .csv or .parquet file")
    cache = cache_folder(spec)
    content = [[split, [file_hash(path, cache) for path in paths]] for split, paths in files.items()]

    def reader(paths: list[Path]) -> Reader:
        return lambda: _pieces(chain.from_iterable(map(_rows, paths)))

    size = sum(path.stat().st_size for path in every)
    about = f"{len(every)} file{'s' * (len(every) > 1)}, {size:,} bytes"
    return assemble(spec, name, about, ["chat", content], {s: reader(p) for s, p in files.items()}, size)


def _rows(path: Path) -> Iterator[readers.Located]:
    kind = documents.table_of(path)
    if kind == "parquet":
        return readers.parquet_rows(path, lambda names: _columns(names, str(path)))
    if kind in ("csv", "tsv"):
        options: dict[str, Any] = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if kind == "tsv" else {}
        return documents.header_rows(path, PROMPT, **options)
    return readers.json_rows(path) if kind == "json" else readers.jsonl_rows(path)


def _from_hub(spec: DataConfig) -> Corpus:
    name = spec.source
    loaded = load_place(Hub(name, spec.subset), f"data set {name!r}", f"{name!r} is not a file or a folder")
    parts: dict[str, Reader] = {}
    prints = []
    for hub_split, rows in loaded.items():
        split = SPLIT_NAMES.get(str(hub_split), str(hub_split))
        parts[split] = _hub_reader(rows, _columns(rows.column_names, f"data set {name!r}"), f"data set {name!r}")
        prints.append([str(hub_split), rows._fingerprint, rows.num_rows])
    about = ", ".join(f"{split}: {rows.num_rows:,} rows" for split, rows in loaded.items())
    return assemble(spec, name, about, ["chat", "hub", name, prints], parts)


def _hub_reader(rows: Any, columns: list[str], where: str) -> Reader:
    def located() -> Iterator[readers.Located]:
        for number, row in enumerate(rows.select_columns(columns), 1):
            yield f"row {number} of {where}", row

    return lambda: _pieces(located())


def _columns(names: Sequence[str], where: str) -> list[str]:
    """Those of a table that hold a conversation."""
    wanted = next((columns for columns in COLUMNS if set(columns) <= set(names)), None)
    if wanted is None:
        listed = ", ".join(map(repr, list(names)[:12]))
        raise UserError(f"{where} has neither {MESSAGES!r} nor {PROMPT!r} and {COMPLETION!r}; it has {listed}")
    return list(wanted)


def _pieces(rows: Iterable[readers.Located]) -> Iterator[Piece]:
    """Each conversation as JSON."""
    for where, row in rows:
        yield Piece(json.dumps(conversation(row, where)))


def conversation(row: Any, where: str) -> list[Message]:
    """The messages in a row of a table, up to the last answer."""
    if not isinstance(row, Mapping):
        raise UserError(f"{where} is not an object with {MESSAGES!r}, or {PROMPT!r} and {COMPLETION!r}")
    columns = _columns(list(row), where)
    if columns == [MESSAGES]:
        messages = row[MESSAGES]
    else:
        messages = [*_said(row[PROMPT], "user"), *_said(row[COMPLETION], "assistant")]
    try:
        result = checked(messages)
    except UserError as error:
        raise UserError(f"{where}: {error}") from None
    if result[-1]["role"] != "assistant":
        result = result[:-1]
    if not result or result[-1]["role"] != "assistant":
        raise UserError(f"{where} has no answer: a message of the role assistant is missing")
    return [{**message, "content": documents.storable(message["content"])} for message in result]


def _said(value: Any, role: str) -> list[Any]:
    """A text of a role, or messages as they are."""
    return (
        [{"role": role, "content": value}] if isinstance(value, str) else value if isinstance(value, list) else [value]
    )
