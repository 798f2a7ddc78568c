"""What a user holds: a model with its tokenizer. Sample, infill, score."""

from __future__ import annotations

import functools
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .config import Config
from .data.tokenizers import Tokenizer
from .evaluate import check_seed, eval_keys, evaluating, summarise
from .keys import Keys
from .models.base import LanguageModel
from .samplers import Ancestral, Choice, Plan, RevealPlan
from .types import Batch, Likelihood, Sample, State, UserError

PLANS: dict[str, Callable[[int], Plan]] = {"plan": RevealPlan, "ancestral": Ancestral}
GAP = re.compile(r"\{\{(.*?)\}\}", re.DOTALL)
Watch = Callable[[State], None]


@dataclass(frozen=True)
class Canvas:
    """Tokens with masks to be written, and how the result is read as text: given strings stay as they were typed."""

    ids: Tensor  # (L,)
    parts: list[str | slice]  # given text, or the positions of a gap


@dataclass
class LM:
    """A language model with its tokenizer and the config it was trained with."""

    model: LanguageModel
    tokenizer: Tokenizer
    config: Config

    @property
    def length(self) -> int:
        """The longest sequence that the model was trained on."""
        return self.config.data.length

    # -- writing -----------------------------------------------------------------------------------------------------

    def sample(self, n: int = 1, **how: Any) -> list[str]:
        """N texts; `how` as in `write_samples`."""
        return [sample.text for sample in self.write_samples(n, **how)]

    def infill(self, text: str, n: int = 1, **how: Any) -> list[str]:
        """N ways to fill the gaps of a text: {{3}} is a gap of three tokens; `how` as in `write`."""
        if n < 1:
            raise UserError(f"n={n} must be at least 1")
        return [sample.text for sample in self.write([self.gap_canvas(text)] * n, **how)]

    def write_samples(
        self, n: int = 1, *, length: int | None = None, prompt: str | None = None, **how: Any
    ) -> list[Sample]:
        """N samples of `length` tokens that begin with the prompt; `how` as in `write`."""
        if n < 1:
            raise UserError(f"n={n} must be at least 1")
        return self.write([self.prompt_canvas(prompt or "", length)] * n, **how)

    def write(
        self,
        canvases: Sequence[Canvas],
        *,
        steps: int = 128,
        seed: int = 0,
        temperature: float = 1.0,
        top_k: int | None = None,
        top_p: float | None = None,
        sampler: str = "plan",
        batch_size: int = 16,
        watch: Watch | None = None,
    ) -> list[Sample]:
        """Fill every canvas. Sample i has the seed `seed + i`: alone with that seed it comes out the same."""
        if sampler not in PLANS:
            raise UserError(f"unknown sampler {sampler!r}; choose one of {', '.join(PLANS)}")
        if batch_size < 1:
            raise UserError(f"batch_size={batch_size} must be at least 1")
        plan, choice = PLANS[sampler](steps), Choice(temperature, top_k, top_p)
        keys = [Keys(check_seed(seed + i)).fork("sample") for i in range(len(canvases))]
        done: dict[int, State] = {}
        ids = [canvas.ids for canvas in canvases]
        with evaluating(self.model):
            for state in self.model.generate(ids, plan, keys, choice=choice, batch_size=batch_size):
                if watch:
                    watch(state)
                if state.done:
                    done[state.row] = state
        return [
            Sample(done[i].canvas.tolist(), self.text(canvas, done[i].canvas), seed + i, done[i].calls, i)
            for i, canvas in enumerate(canvases)
        ]

    def prompt_canvas(self, prompt: str, length: int | None = None) -> Canvas:
        """The prompt and masks up to `length` tokens; rows that were trained with block ends get them."""
        length = self.length if length is None else length
        if not 1 <= length <= self.length:
            raise UserError(f"length={length} must be between 1 and {self.length}, the length the model was trained on")
        vocab, given = self.tokenizer.vocab, self.encode(self._before_gap(prompt))
        first = [vocab.bos] if self.config.data.block_ends and vocab.bos is not None else []
        given = first + given
        if len(given) >= length:
            raise UserError(
                f"the prompt has {len(given)} tokens, which leaves nothing to write in length={length}; "
                f"shorten it{' or raise the length' if length < self.length else ''}"
            )
        ids = torch.full((length,), vocab.mask, dtype=torch.int64)
        ids[: len(given)] = torch.tensor(given, dtype=torch.int64)
        return Canvas(ids, [prompt, slice(len(given), length)])

    def gap_canvas(self, text: str) -> Canvas:
        """A text with gaps {{k}} of k tokens."""
        ids: list[int] = []
        parts: list[str | slice] = []
        if self.config.data.block_ends and self.tokenizer.vocab.bos is not None:
            ids.append(self.tokenizer.vocab.bos)
        pieces = GAP.split(text)
        for i, piece in enumerate(pieces):
            if i % 2 == 0:
                ids += self.encode(self._before_gap(piece) if i + 1 < len(pieces) else piece)
                parts.append(piece)
                continue
            if not re.fullmatch(r"\s*0*[1-9][0-9]{0,8}\s*", piece):
                raise UserError(f"{{{{{piece}}}}} is not a gap; write {{{{3}}}} for a gap of 3 tokens (at least 1)")
            parts.append(slice(len(ids), len(ids) + int(piece)))
            if len(ids) + int(piece) > self.length:
                raise UserError(
                    f"the text with its gaps is longer than the {self.length} tokens the model was trained on"
                )
            ids += [self.tokenizer.vocab.mask] * int(piece)
        if len(parts) == 1:
            raise UserError("there is no gap to fill; mark one with {{3}} for three tokens")
        if len(ids) > self.length:
            raise UserError(
                f"the text with its gaps has {len(ids)} tokens, more than the {self.length} the model was trained on"
            )
        return Canvas(torch.tensor(ids, dtype=torch.int64), parts)

    @functools.cached_property
    def joins_spaces(self) -> bool:
        """Whether the tokenizer writes a space as the beginning of the next word's token, as GPT-2's does."""
        return self.tokenizer.pieces(self.tokenizer.encode(" a")[:1]) != [" "]

    def _before_gap(self, text: str) -> str:
        """What the network sees of a text before a gap: the space between belongs to the first word of the gap."""
        return text[:-1] if self.joins_spaces and text.endswith(" ") else text

    def encode(self, text: str) -> list[int]:
        """The ids of a text that a user gave."""
        try:
            text.encode()
        except UnicodeEncodeError:  # bytes of the command line that are no text reach us as lone surrogates
            raise UserError("the given text is not UTF-8; check the encoding of your terminal") from None
        return self.tokenizer.encode(text) if text else []

    def text(self, canvas: Canvas, ids: Tensor) -> str:
        """Given strings as typed, gaps decoded; an end of text inside a gap reads as a line break."""
        text = ""
        for part in canvas.parts:
            written = part if isinstance(part, str) else self._read(ids[part].tolist())
            if not isinstance(part, str) and self._before_gap(text) != text:
                written = written.removeprefix(" ")  # the given text has it already
            text += written
        return text

    def _read(self, ids: list[int]) -> str:
        documents: list[list[int]] = [[]]
        for token in ids:
            if token in (self.tokenizer.vocab.eos, self.tokenizer.vocab.bos):
                documents.append([])
            else:
                documents[-1].append(token)
        return "\n".join(self.tokenizer.decode(document) for document in documents if document)

    # -- reading -----------------------------------------------------------------------------------------------------

    def score(self, texts: str | Sequence[str], *, draws: int = 16, seed: int = 0, batch_size: int = 32) -> Likelihood:
        """The bound on -log p of texts: together, each alone (`.texts`), and of each token (`.token_nats`).

        A text longer than the model is scored in blocks of its length, each without the others as context. Rows are
        laid out as in training (block ends, visible padding), but only the text's own tokens count.
        """
        texts = [texts] if isinstance(texts, str) else list(texts)
        if not texts or draws < 1 or batch_size < 1:
            raise UserError("give at least one text, one draw and one row a batch to score")
        room = self.length - (2 if self.config.data.block_ends else 0)
        blocks: list[tuple[int, list[int]]] = []
        for number, text in enumerate(texts):
            ids = self.encode(text)
            if not ids:
                raise UserError(f"text {number + 1} to score is empty; give it at least one token")
            blocks += [(number, ids[i : i + room]) for i in range(0, len(ids), room)]
        nats = self._block_nats([ids for _, ids in blocks], draws, seed, batch_size)
        protocol = {**self.model.describe(), "draws": draws, "seed": seed, "block_length": room}
        scored = []
        for number, text in enumerate(texts):
            own = [i for i, (owner, _) in enumerate(blocks) if owner == number]
            tokens = [token for i in own for token in blocks[i][1]]
            per_token = np.concatenate([nats[i] for i in own], axis=1)  # (draws, tokens)
            size = len(text.encode())
            scored.append(_text_likelihood(per_token, size, self.tokenizer.pieces(tokens), protocol))
        total = np.stack([n.sum(1) for n in nats])  # (blocks, draws)
        whole = summarise(total, np.array([len(ids) for _, ids in blocks], dtype=float), None, protocol)
        size = sum(len(text.encode()) for text in texts)
        return Likelihood(whole.nats, whole.tokens, size, whole.stderr_nats, whole.stderr_data, protocol, texts=scored)

    def _block_nats(self, blocks: list[list[int]], draws: int, seed: int, batch_size: int) -> list[np.ndarray]:
        """(draws, tokens) nats of every block, laid out as rows were in training (block ends are not scored)."""
        vocab, device, spec = self.tokenizer.vocab, self.model.device, self.config.data
        filler = next(token for token in (vocab.pad, vocab.eos, vocab.mask) if token is not None)
        first, last = ([vocab.bos], [vocab.eos]) if spec.block_ends else ([], [])
        result: list[np.ndarray] = []
        for start in range(0, len(blocks), batch_size):
            part = blocks[start : start + batch_size]
            lengths = torch.tensor([len(ids) for ids in part])[:, None]
            width = self.length if spec.attend_pads else int(lengths.max()) + len(first) + len(last)
            rows = [[*first, *ids, *last] for ids in part]
            tokens = torch.tensor([row + [filler] * (width - len(row)) for row in rows])
            place = torch.arange(width) - len(first)
            scored = (place >= 0) & (place < lengths)
            present = None if spec.attend_pads else place < lengths + len(last)
            index = torch.arange(start, start + len(part))
            batch = Batch(tokens, index, len(blocks), scored, None if present is None or present.all() else present)
            batch, keys = batch.to(device), eval_keys(seed)
            with torch.no_grad(), evaluating(self.model):
                drawn = [self.model.nats(batch, keys.at(d)).nats.double().cpu().numpy() for d in range(draws)]
            result += [np.stack([d[row, scored[row].numpy()] for d in drawn]) for row in range(len(part))]
        return result


def _text_likelihood(nats: np.ndarray, size: int, pieces: list[str], protocol: dict[str, Any]) -> Likelihood:
    """One text from its nats (draws, tokens)."""
    draws, tokens = nats.shape
    error = float(nats.sum(1).std(ddof=1) / np.sqrt(draws) / tokens) if draws > 1 else None
    mean = nats.mean(0)
    return Likelihood(float(mean.sum()), tokens, size, error, None, protocol, pieces, mean.tolist())
