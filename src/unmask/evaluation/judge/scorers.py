"""Judges of text: a scorer turns texts into nats. What it does with long texts, first tokens and ends is its protocol.

Every text is tokenized again by the scorer, so the number of scored tokens is not the number of sampled tokens; both
are reported. Every token of a text is scored at most once and no text is left out.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Mapping, Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, NamedTuple, Protocol, runtime_checkable

import numpy as np
import torch
from torch import Tensor

from ...types import UserError

JUDGES = {  # by prefix: the module with the function (or class) that opens a place on a device
    "hf": ".causal_lm HfScorer",
    "llama2c": ".formats.llama2c Llama2cScorer",
    "gguf": ".formats.gguf_judge GgufScorer",
    "smollm2": ".formats.gguf_judge smollm2_scorer",
    "arpa": ".formats.ngram arpa_scorer",
    "trigram": ".formats.ngram pocketsphinx_scorer",
}
KINDS = "hf:FOLDER_OR_HUB_ID, smollm2, gguf:FILE, llama2c:FOLDER_OR_FILE, arpa:FILE or trigram:pocketsphinx"
ROWS = 1 << 27  # logits that may exist at once
BETWEEN, TURN = "<|endoftext|>", "<|im_start|>"  # what is between two texts, and before a message of a chat


class JudgedText(NamedTuple):
    """One text under a scorer."""

    nats: float
    tokens: int  # that were scored
    words: int = 0  # of a judge with a closed vocabulary: the words of the text ...
    unknown: int = 0  # ... and those that it does not know


@runtime_checkable
class Scorer(Protocol):
    """Anything that assigns nats to texts."""

    def nats(self, texts: Sequence[str]) -> list[JudgedText]:
        """-log p of each text and how many tokens were scored."""
        ...

    def describe(self) -> dict[str, Any]:
        """The protocol: what the number depends on."""
        ...


class Window(NamedTuple):
    """Tokens start..stop go through the network at once; first..stop are scored."""

    start: int
    stop: int
    first: int


def windows(length: int, context: int) -> Iterator[Window]:
    """Cover 1..length, each token once. After the first window each token has at least half a context before it.

    Token 0 has nothing before it and is not scored: it is BOS if there is one.
    """
    assert context >= 2, "a token and one to predict"
    stop = min(length, context)
    if stop > 1:
        yield Window(0, stop, 1)
    keep = context - context // 2
    while stop < length:
        first, start = stop, stop - keep
        stop = min(length, start + context)
        yield Window(start, stop, first)


class CausalScorer(ABC):
    """A network that predicts the next token, with its tokenizer. The result does not depend on `batch_size`."""

    context: int
    bos: int | None
    vocab_size: int
    batch_size: int = 8

    @abstractmethod
    def encode(self, text: str) -> list[int]:
        """The tokens of a text, without special tokens at its ends."""

    @abstractmethod
    def hidden(self, tokens: Tensor, present: Tensor) -> tuple[Tensor, Callable[[int, Tensor], Tensor]]:
        """Run the network on rows (B, L): last hidden states (B, L, D), and logits (k, V) of positions of one row."""

    @abstractmethod
    def about(self) -> dict[str, Any]:
        """A description of the network."""

    def describe(self) -> dict[str, Any]:
        """The protocol of the scores."""
        first = "scored after BOS" if self.bos is not None else "context only: the tokenizer has no BOS"
        return {
            **self.about(),
            "likelihood": "exact, next token",
            "context": self.context,
            "long_texts": f"windows that overlap by {self.context - self.context // 2} tokens, each token scored once",
            "first_token": first,
            "end_of_text": "none is added or scored",
        }

    @torch.no_grad()
    def nats(self, texts: Sequence[str]) -> list[JudgedText]:
        """-log p of each text, summed in float64."""
        total, tokens = np.zeros(len(texts)), np.zeros(len(texts), dtype=np.int64)
        for part, rows, present, spans in self._batches(texts):
            _, logits = self.hidden(rows, present)
            for row, (text, window) in enumerate(zip(part, spans, strict=True)):
                positions = torch.arange(window.first - window.start, window.stop - window.start, device=rows.device)
                log_p = logits(row, positions - 1).float().log_softmax(-1)
                total[text] -= log_p.gather(1, rows[row, positions, None]).double().sum().item()
                tokens[text] += len(positions)
        return [JudgedText(float(a), int(b)) for a, b in zip(total, tokens, strict=True)]

    @torch.no_grad()
    def features(self, texts: Sequence[str]) -> np.ndarray:
        """(texts, D) mean last hidden state of each text's first window; zeros for an empty text."""
        features: dict[int, np.ndarray] = {}
        width = 1
        for part, rows, present, spans in self._batches(texts, first_only=True):
            hidden, _ = self.hidden(rows, present)
            width = hidden.shape[-1]
            for row, (text, window) in enumerate(zip(part, spans, strict=True)):
                features[text] = hidden[row, 1 : window.stop].double().mean(0).cpu().numpy()
        return np.stack([features.get(i, np.zeros(width)) for i in range(len(texts))])

    def _batches(
        self, texts: Sequence[str], first_only: bool = False
    ) -> Iterator[tuple[list[int], Tensor, Tensor, list[Window]]]:
        """Windows of all texts, grouped by length: (text numbers, tokens, which are not padding, spans)."""
        jobs: list[tuple[int, list[int], Window]] = []
        for number, text in enumerate(texts):
            ids = ([] if self.bos is None else [self.bos]) + (self.encode(text) if text else [])
            spans = list(windows(len(ids), self.context))
            jobs += [(number, ids, window) for window in (spans[:1] if first_only else spans)]
        jobs.sort(key=lambda job: job[2].stop - job[2].start)
        while jobs:
            longest = jobs[-1][2].stop - jobs[-1][2].start  # from the longest: out of memory shows at once
            size = max(1, min(self.batch_size, ROWS // (longest * self.vocab_size)))
            part, jobs = jobs[-size:], jobs[:-size]
            rows = torch.zeros(len(part), longest, dtype=torch.int64)
            present = torch.zeros(len(part), longest, dtype=torch.bool)
            for row, (_, ids, window) in enumerate(part):
                rows[row, : window.stop - window.start] = torch.tensor(ids[window.start : window.stop])
                present[row, : window.stop - window.start] = True
            yield [job[0] for job in part], rows.to(self.device), present.to(self.device), [job[2] for job in part]

    @property
    @abstractmethod
    def device(self) -> torch.device:
        """The device of the network."""


def first_token(bos: int | None, tokens: Mapping[str, int]) -> int | None:
    """The token after which a text is scored: BOS, or what is between texts where BOS begins messages (SmolLM2)."""
    return tokens.get(BETWEEN, bos) if bos == tokens.get(TURN, -1) else bos


def open_scorer(name: str, device: str | torch.device = "cpu") -> Scorer:
    """A scorer by its name, KIND:WHERE; without a kind, a file by its extension, smollm2, or else a causal model."""
    kind, colon, where = name.partition(":")
    if not colon or kind not in JUDGES:
        if colon and "/" not in kind and "\\" not in kind and len(kind) > 1 and not Path(name).exists():
            raise UserError(f"unknown kind of scorer {kind!r}; give {KINDS}")
        kind, where = _guess(name), name
    if not where.strip():
        raise UserError(f"the scorer has no path or name; give {KINDS}")
    module, opener = JUDGES[kind].split()
    scorer: Scorer = getattr(import_module(module, __package__), opener)(where, device)
    return scorer


def _guess(name: str) -> str:
    if name == "smollm2" and not Path(name).exists():
        return name
    lower = name.lower().removesuffix(".gz")
    if lower.endswith(".gguf"):
        return "gguf"
    if lower.endswith((".arpa", ".lm")):
        return "arpa"
    return "llama2c" if lower.endswith(".bin") else "hf"
