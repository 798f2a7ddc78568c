"""Data sets at a glance: the named ones, how text becomes rows, what the cache holds. Everything is plain data."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np

from ..config import DataConfig, parse
from ..errors import UserError
from ..types import Progress
from .corpora import Corpus, open_corpus
from .genome.genome_corpus import GenomePrepared, prepare_genome
from .pack import Prepared, cached, prepare, preview
from .records import CORPORA, Record, find

COUNTED = 64 << 20  # bytes: larger sources are shown without counts, unless these are in the cache
SETTINGS = ("tokenizer", "length", "layout", "eos_between", "block_ends", "learn_end", "attend_pads")


def list_sets() -> list[dict[str, Any]]:
    """Every named data set with the paper's conventions for it."""
    return [_described(record) for record in CORPORA.values()]


def _described(record: Record) -> dict[str, Any]:
    spec = DataConfig(**record.conventions)
    return {
        "name": record.name,
        "about": record.about,
        "splits": list(record.splits),
        "plays": dict(record.plays),
        "readable": not record.unread,
        "hub": record.hub and {"name": record.hub.name, "subset": record.hub.subset, "revision": record.hub.revision},
        "field": record.field,
        "detokenizer": record.detokenizer,
        **{name: getattr(spec, name) for name in SETTINGS},
    }


def settings_for(source: str, overrides: Iterable[str] = (), zero_shot: bool = False) -> DataConfig:
    """The paper's settings for a named set, the defaults for anything else, with `data.key=value` laid over them."""
    record = find(source)
    if zero_shot and record is None:
        raise UserError(f"--zero-shot belongs to a named data set, and {source!r} is none; see `unmask data list`")
    conventions: dict[str, Any] = {"source": source}
    if record is not None:
        conventions = record.conventions
    if record is not None and zero_shot:
        conventions = {"tokenizer": "gpt2", "block_ends": True, **record.zero_shot}
    given = list(overrides)
    for assignment in given:
        if "=" in assignment and not assignment.startswith("data."):
            raise UserError(f"{assignment!r} is no setting of the data; write data.key=value, as data.length=64")
    return parse({"data": conventions}).override(given).data


def show(spec: DataConfig, split: str | None = None, n: int = 3, progress: Progress | None = None) -> dict[str, Any]:
    """The first texts of a split on their way to the network, its first rows, and its counts where they are cheap."""
    if n < 1:
        raise UserError(f"-n {n} must be at least 1")
    corpus = _open(spec, progress)
    split = corpus.splits[0] if split is None else split
    corpus.check(split)
    texts = _first(corpus, split, n)  # before the tokenizer: a wrong field is the first thing to know
    raw = texts if corpus.detokenizer == "none" else _first(_undetokenized(spec), split, n)
    prepared = prepare(spec, splits=())
    rows = prepared.split(split) if isinstance(prepared, GenomePrepared) else preview(prepared, split, n)
    tokens, scored = rows.rows(range(min(n, len(rows))))
    scored = np.ones_like(tokens, dtype=bool) if scored is None else scored
    return {
        **_about(prepared),
        "split": split,
        "texts": [_text(prepared, before, after) for before, after in zip(raw, texts, strict=True)],
        "rows": [_row(prepared, row, counts) for row, counts in zip(tokens, scored, strict=True)],
        "counts": _counts(prepared, split, progress),
    }


def prepare_set(
    spec: DataConfig, splits: Sequence[str] | None = None, progress: Progress | None = None
) -> dict[str, Any]:
    """Fill the cache; the folder and the counts of every split."""
    corpus = _open(spec, progress)
    for split in splits or ():
        corpus.check(split)
    wanted = list(splits or corpus.splits)
    prepared = prepare(spec, splits=wanted, progress=progress)
    return {
        **_about(prepared),
        "folder": str(prepared.folder),
        "counts": {split: counts(prepared, split) for split in wanted},
    }


def counts(prepared: Prepared, split: str) -> dict[str, Any]:
    """Documents, tokens, rows, and what does not get into a row; `problem` says why there are no rows."""
    facts = prepared.facts(split)
    figures: dict[str, Any] = {count: facts[count] for count in ("documents", "bytes", "tokens")}
    try:
        rows = prepared.split(split)
    except UserError as error:
        return {**figures, "rows": 0, "dropped_tokens": facts["tokens"], "bytes_per_token": None, "problem": str(error)}
    if isinstance(prepared, GenomePrepared):
        dropped = facts["bases_left_out"]
    elif rows.ends is None:
        dropped = rows.tokens - len(rows) * rows.capacity
    else:
        lengths = np.diff(np.asarray(rows.ends, dtype=np.int64), prepend=0)
        dropped = int(np.maximum(lengths - rows.capacity, 0).sum())
    rate = round(facts["bytes"] / max(facts["tokens"], 1), 4)
    return {**figures, "rows": len(rows), "dropped_tokens": dropped, "bytes_per_token": rate}


def _counts(prepared: Prepared, split: str, progress: Progress | None) -> dict[str, Any] | None:
    if not isinstance(prepared, GenomePrepared) and cached(prepared, split) is None:
        if not 0 < prepared.corpus.size <= COUNTED and prepared.spec.source != "python-docs":
            return None
        prepared = prepare(prepared.spec, prepared.tokenizer, [split], progress)
    return counts(prepared, split)


def _about(prepared: Prepared) -> dict[str, Any]:
    spec, corpus = prepared.spec, prepared.corpus
    return {
        "source": spec.source,
        "about": corpus.description,
        "splits": list(corpus.splits),
        "detokenizer": corpus.detokenizer,
        **{name: getattr(spec, name) for name in SETTINGS},
        "vocabulary": prepared.tokenizer.vocab.size,
    }


def _open(spec: DataConfig, progress: Progress | None) -> Corpus:
    """The corpus; a genome is packed first, which is told."""
    genome = prepare_genome(spec, None, progress)
    return open_corpus(spec) if genome is None else genome.corpus


def _undetokenized(spec: DataConfig) -> Corpus:
    return open_corpus(spec.model_copy(update={"detokenizer": "none"}))


def _first(corpus: Corpus, split: str, n: int) -> list[str]:
    """The beginnings of the first documents: of a long one its first piece."""
    beginnings = []
    begins = True
    for piece in corpus.documents(split):
        if begins:
            beginnings.append(piece.text)
        if len(beginnings) == n:
            break
        begins = piece.ends
    return beginnings


def _text(prepared: Prepared, raw: str, text: str) -> dict[str, Any]:
    ids = prepared.tokenizer.encode(text)
    detokenized = None if prepared.corpus.detokenizer == "none" else text
    return {"raw": raw, "detokenized": detokenized, "ids": ids, "tokens": prepared.tokenizer.pieces(ids)}


def _row(prepared: Prepared, row: np.ndarray, scored: np.ndarray) -> dict[str, Any]:
    return {"ids": row.tolist(), "tokens": prepared.tokenizer.pieces(row), "counted": int(scored.sum())}
