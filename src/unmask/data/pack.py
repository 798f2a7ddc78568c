"""Documents to rows: tokenize once into a memory-mapped cache, then view it as rows of any length.

Two conventions, both of the paper. `wrap`: all documents in one stream, EOS after each (`data.eos_between`), cut into
blocks; with `data.block_ends` a row is BOS, L - 2 tokens of the stream, EOS. Only the last partial block of a split is
dropped. `pad`: a row is one document, cut at L and padded; padding does not count in the likelihood. A third, `chat`,
is for conversations (`conversations`).

The cache (`packed`) has a folder named by a hash of the corpus' content, the tokenizer and every setting that changes
its bytes; the row length is not one of them.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import numpy as np
from filelock import FileLock

from ..config import DataConfig
from ..types import Progress, UserError
from .cache import cache_folder, content_key, writing
from .chat import ChatTemplate
from .corpora import Corpus, open_corpus
from .labels import in_order, translate
from .packed import FORMAT, clear, intact, map_file, write_splits
from .rows import Rows, capacity, end_of, ends_of
from .tokenization import BPE_SAMPLE, Tokenizer, make_tokenizer
from .unknown import check_bases, count_unknown, unknown_facts, warn_unknown

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Prepared:
    """A corpus in tokens, with the tokenizer that made them."""

    spec: DataConfig
    tokenizer: Tokenizer
    corpus: Corpus = field(repr=False)
    fingerprint: str  # the name of the cache folder
    folder: Path
    labels: tuple[str, ...] = ()  # the names of the labels by their ids; none without `data.label`

    def split(self, name: str, rest: bool = False) -> Rows:
        """The rows of a split, or one sentence why there are none; with `rest` the last may be shorter than others."""
        return _rows(self, name, self.facts(name), rest)

    def facts(self, name: str) -> dict[str, Any]:
        """The record of a split that is in the cache when this returns."""
        self.corpus.check(name)
        facts = intact(self.folder, name)
        if facts is None:  # asked for later than the others, or damaged since
            build(self, [name], None)
            facts = intact(self.folder, name)
            assert facts is not None, "a split that was just written can be read"
        return facts

    def write(self, splits: list[str], progress: Progress | None) -> None:
        """Write splits into the cache."""
        write_splits(self, splits, progress)


def prepare(
    spec: DataConfig,
    tokenizer: Tokenizer | None = None,
    splits: Iterable[str] = ("train", "valid", "test"),
    progress: Progress | None = None,
    labels: Sequence[str] | None = None,
    template: ChatTemplate | None = None,
) -> Prepared:
    """Tokenize the splits that the corpus has, or find them in the cache.

    Any number of processes may call this at once: one of them does the work. `progress` gets the bytes of text done and
    the size of the source (0 if unknown). `labels` are the names that a model knows, in the order of its ids; without
    them labels get their ids from the train split. `template` is the chat template of a model, for conversations.
    """
    from .conversations import prepare_chat  # they import this module
    from .genome.genome_corpus import prepare_genome

    if spec.layout == "chat":
        return prepare_chat(spec, tokenizer, template, splits, progress)
    if (genome := prepare_genome(spec, tokenizer, progress)) is not None:
        return genome
    corpus = open_corpus(spec)
    cache = cache_folder(spec)
    if tokenizer is None:
        tokenizer = _tokenizer(spec, corpus, cache)
    _check_specials(spec, tokenizer)
    key = content_key(
        FORMAT,
        corpus.fingerprint,
        tokenizer.digest,
        spec.layout,
        spec.eos_between if spec.layout == "wrap" else None,
        *([] if spec.label is None else [{"label": spec.label}]),
    )
    prepared = Prepared(spec, tokenizer, corpus, key, cache / key)
    build(prepared, [split for split in splits if split in corpus.splits], progress)
    if spec.label is None:
        return prepared
    names = in_order(prepared.facts("train")["labels"]) if labels is None else tuple(labels)
    return replace(prepared, labels=names)


def _tokenizer(spec: DataConfig, corpus: Corpus, cache: Path) -> Tokenizer:
    """Tokenizers that are made from the corpus are kept: training one takes longer than reading it."""
    if spec.tokenizer not in ("chars", "bpe"):
        return make_tokenizer(spec, lambda: ())
    size = [spec.vocab_size, BPE_SAMPLE] if spec.tokenizer == "bpe" else None
    folder = cache / "tokenizers" / content_key(FORMAT, corpus.fingerprint, spec.tokenizer, size)
    with suppress(UserError):  # not there, or damaged
        return Tokenizer.load(folder)
    with writing(cache):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            with suppress(UserError):  # another process made it meanwhile
                return Tokenizer.load(folder)
            made = make_tokenizer(spec, lambda: (piece.text for piece in corpus.documents("train")))
            made.save(folder)
            return made


def _check_specials(spec: DataConfig, tokenizer: Tokenizer) -> None:
    vocab = tokenizer.vocab
    if spec.layout == "wrap" and spec.eos_between and vocab.eos is None:
        raise UserError(f"tokenizer {tokenizer.name!r} has no end-of-text token; set data.eos_between=false")
    if spec.block_ends and (vocab.bos is None or vocab.eos is None):
        raise UserError(f"tokenizer {tokenizer.name!r} has no end-of-text token; set data.block_ends=false")
    if spec.layout == "pad" and vocab.pad is None and vocab.eos is None:
        raise UserError(f"tokenizer {tokenizer.name!r} has no token to pad with; set data.layout=wrap")


def cached(prepared: Prepared, split: str) -> dict[str, Any] | None:
    """The record of a split if it is in the cache already."""
    return intact(prepared.folder, split)


def preview(prepared: Prepared, split: str, n: int) -> Rows:
    """At least the first `n` rows of a split (fewer if it ends before), without tokenizing the rest of it."""
    spec, vocab = prepared.spec, prepared.tokenizer.vocab
    pad, block_ends = spec.layout == "pad", ends_of(spec, vocab)
    eos = np.array([vocab.eos] if spec.eos_between and not pad else [], dtype=np.uint32)
    wanted = n * capacity(spec.length, block_ends)
    parts, tokens = [eos[:0]], 0
    ends: list[int] = []
    for piece in prepared.corpus.documents(split):
        arrays = [*prepared.tokenizer.arrays([piece.text]), *([eos] if piece.ends else [])]
        parts += arrays
        tokens += sum(map(len, arrays))
        if piece.ends and tokens > (ends[-1] if ends else 0):
            ends.append(tokens)
        if len(ends) >= n if pad else tokens >= wanted:
            break
    return Rows(
        stream=np.concatenate(parts),
        ends=np.array(ends, dtype=np.uint64) if pad else None,
        facts={"documents": len(ends), "tokens": tokens},
        length=spec.length,
        block_ends=block_ends,
        pad=vocab.pad if vocab.pad is not None else vocab.eos,
        end=end_of(spec, vocab),
        never_hidden=prepared.tokenizer.never_hidden,
    )


def _rows(prepared: Prepared, name: str, facts: dict[str, Any], rest: bool = False) -> Rows:
    spec, vocab = prepared.spec, prepared.tokenizer.vocab
    ends = map_file(prepared.folder / f"{name}.idx", np.dtype("<u8")) if spec.layout == "pad" else None
    about = {
        "source": spec.source,
        "split": name,
        "layout": spec.layout,
        "eos_between": spec.eos_between if spec.layout == "wrap" else None,
        "tokenizer": prepared.tokenizer.name,
        "tokenizer_digest": prepared.tokenizer.digest[:16],
        "corpus": prepared.corpus.fingerprint[:16],
        **{count: facts[count] for count in ("tokens", "documents", "bytes")},
    }
    tokenizer, stream = prepared.tokenizer, map_file(prepared.folder / f"{name}.bin", np.dtype(facts["dtype"]))
    unknown = facts["unknown"] if "unknown" in facts else _unknown(tokenizer, stream)
    check_bases(tokenizer, unknown, facts["tokens"], spec.source)
    warn_unknown(tokenizer, unknown, facts["tokens"], f"split {name!r} of {spec.source}")
    about |= unknown_facts(tokenizer, unknown, facts["tokens"])
    if prepared.corpus.detokenizer != "none":
        about["detokenizer"] = prepared.corpus.detokenizer
    label: dict[str, Any] = {}
    if spec.label is not None:
        about["label"] = spec.label
        ids = translate(facts["labels"], prepared.labels, f"split {name!r} of {spec.source}")
        label = {"marks": map_file(prepared.folder / f"{name}.lab", np.dtype("<u2")), "label_ids": ids}
    rows = Rows(
        stream=stream,
        ends=ends,
        facts=about,
        length=spec.length,
        block_ends=ends_of(spec, vocab),
        pad=vocab.pad if vocab.pad is not None else vocab.eos,
        end=end_of(spec, vocab),
        never_hidden=prepared.tokenizer.never_hidden,
        rest=rest,
        **label,
    )
    if not rows.documents:
        raise empty(prepared, name)
    if not len(rows):
        raise UserError(
            f"split {name!r} of {spec.source} has {rows.tokens} tokens, shorter than one block of "
            f"data.length={spec.length}; make data.length smaller or give more text"
        )
    return rows


def empty(prepared: Prepared, name: str) -> UserError:
    """The error for a split without a document."""
    fix = f"give a larger data.{name}_fraction or more text" if prepared.corpus.division else "give it some text"
    return UserError(f"split {name!r} of {prepared.spec.source} is empty; {fix}")


def _unknown(tokenizer: Tokenizer, stream: np.ndarray) -> int:
    """The unknown tokens of a split that an older version wrote."""
    if tokenizer.unknown is None:
        return 0
    return sum(count_unknown(tokenizer, stream[at : at + (1 << 24)]) for at in range(0, len(stream), 1 << 24))


def build(prepared: Prepared, splits: list[str], progress: Progress | None) -> None:
    """Write the splits that are missing or damaged; other processes that want the same wait for it."""
    folder = prepared.folder
    if all(intact(folder, split) for split in splits):
        return
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        with FileLock(folder / ".lock"):
            missing = [split for split in splits if not intact(folder, split)]
            for split in missing:
                if (folder / f"{split}.json").exists():
                    log.warning("the cached split %s was damaged and is made again", folder / split)
            if missing:
                clear(folder)
                prepared.write(missing, progress)
