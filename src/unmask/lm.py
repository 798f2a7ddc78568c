"""What a user holds: a model with its tokenizer. Sample, infill, stream, score."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import numpy as np
import torch
from torch import Tensor

from .canvas import Canvas, Painter, parse_gaps
from .config import Config
from .data.tokenizers import Tokenizer
from .evaluate import eval_keys, evaluating, summarise
from .keys import Keys
from .models.base import LanguageModel
from .types import Batch, Likelihood, Sample, State, Token, UserError
from .writing import Options, Stop

Watch = Callable[[State], None]
HALF = "\ufffd"  # how the beginning of a character is decoded whose other bytes are not there yet


@dataclass(frozen=True)
class Job:
    """A canvas and how it is to be written."""

    canvas: Canvas
    options: Options


@dataclass
class LM:
    """A language model with its tokenizer and the config it was trained with."""

    model: LanguageModel
    tokenizer: Tokenizer
    config: Config
    labels: list[str] = field(default_factory=list)

    @property
    def length(self) -> int:
        """The longest sequence that the model was trained on."""
        return self.config.data.length

    @functools.cached_property
    def painter(self) -> Painter:
        """Makes canvases from text, and text from canvases."""
        return Painter(self.tokenizer, self.config.data)

    # -- writing -----------------------------------------------------------------------------------------------------

    def sample(self, n: int = 1, **how: Any) -> list[str]:
        """N texts; `how` as in `write_samples`."""
        return [sample.text for sample in self.write_samples(n, **how)]

    def infill(self, text: str, n: int = 1, **how: Any) -> list[str]:
        """N ways to fill the gaps of a text; `how` as in `write`.

        {{3}} is a gap of three tokens, {{2-6}} one of two to six: the length under which the bound on the given text is
        lowest.
        """
        if n < 1:
            raise UserError(f"n={n} must be at least 1")
        canvas = self.gap_canvas(text, windowed=how.get("stride") is not None)
        return [sample.text for sample in self.write([canvas] * n, **how)]

    def stream(self, prompt: str = "", *, length: int | None = None, **how: Any) -> Iterator[str]:
        """One text in pieces, each as soon as nothing in it can change any more; `how` as in `write`."""
        canvas = self.prompt_canvas(prompt, length, windowed=how.get("stride") is not None)
        job = Job(canvas, Options(**how))
        pieces = Pieces(self.painter, canvas, job.options.stop)
        for state, sample in self.run([job]):
            if piece := pieces(state, sample):
                yield piece

    def write_samples(
        self,
        n: int = 1,
        *,
        length: int | None = None,
        prompt: str | None = None,
        suffix: str | None = None,
        **how: Any,
    ) -> list[Sample]:
        """N samples of `length` tokens between the prompt and the suffix; `how` as in `write`."""
        if n < 1:
            raise UserError(f"n={n} must be at least 1")
        windowed = how.get("stride") is not None
        return self.write([self.prompt_canvas(prompt or "", length, suffix or "", windowed)] * n, **how)

    def write(
        self,
        canvases: Sequence[Canvas],
        *,
        batch_size: int = 16,
        tops: int = 0,
        watch: Watch | None = None,
        **how: Any,
    ) -> list[Sample]:
        """Fill every canvas; `how` are the fields of `writing.Options`.

        Sample i has the seed `seed + i`: alone with that seed it comes out the same.
        """
        options = Options(**how)
        jobs = [Job(canvas, replace(options, seed=options.seed + i)) for i, canvas in enumerate(canvases)]
        done: dict[int, Sample] = {}
        for state, sample in self.run(jobs, batch_size=batch_size, tops=tops):
            if watch:
                watch(state)
            if sample:
                done[state.row] = sample
        return [done[i] for i in range(len(jobs))]

    def run(self, jobs: Sequence[Job], *, batch_size: int = 16, tops: int = 0) -> Iterator[tuple[State, Sample | None]]:
        """Every state of every job, all through the network together, and the sample where one is finished."""
        painter = self.painter
        plans = [job.options.plan(painter) for job in jobs]
        controls = [job.options.control(job.canvas, painter) for job in jobs]
        stops = [Stop.of(job.canvas, job.options, painter) for job in jobs]
        labels = [job.options.label_id(self.labels) for job in jobs]
        records = [_Record(job.canvas.ids, self.tokenizer) for job in jobs]

        def until(state: State) -> bool:
            stop = stops[state.row]
            return stop is not None and stop(state)

        with evaluating(self.model):
            states = self.model.generate(
                [job.canvas.ids for job in jobs],
                plans,
                [Keys(job.options.seed).fork("sample") for job in jobs],
                choice=[job.options.choice for job in jobs],
                batch_size=batch_size,
                controls=controls,
                labels=labels,
                guidance=[job.options.guidance for job in jobs],
                tops=tops,
                until=until,
            )
            for state in states:
                records[state.row].add(state)
                job, stop = jobs[state.row], stops[state.row]
                yield state, self._sample(job, stop, state, records[state.row]) if state.done else None

    def check(self, job: Job) -> None:
        """Raise, before anything is written, what `run` would raise."""
        self.model.check(job.canvas.ids, job.options.plan(self.painter))
        assert job.options.choice
        job.options.control(job.canvas, self.painter)
        Stop.of(job.canvas, job.options, self.painter)
        job.options.label_id(self.labels)

    def _sample(self, job: Job, stop: Stop | None, state: State, record: _Record) -> Sample:
        canvas = job.canvas
        end = stop.end(state) if stop else None
        text, why, count = end or (self.painter.text(canvas, state.canvas), "length", len(state.canvas))
        return Sample(
            state.canvas[:count].tolist(), text, job.options.seed, state.calls, state.row, record.tokens(count), why,
            canvas.lengths, canvas.nats,
        )  # fmt: skip

    def prompt_canvas(self, prompt: str, length: int | None = None, suffix: str = "", windowed: bool = False) -> Canvas:
        """The prompt, masks, and the suffix: `length` tokens in all, with the BOS of rows that were trained with it."""
        return self.painter.prompt(prompt, suffix, length, windowed)

    def gap_canvas(self, text: str, *, windowed: bool = False, draws: int = 32) -> Canvas:
        """A text with gaps; the lengths of ranged gaps are those with the lowest bound on the given text.

        The bound is that of the given tokens with the gap masked throughout: -log p(given | lengths). The same tokens
        are scored whatever the lengths, so long gaps are neither preferred nor avoided.
        """
        parts = parse_gaps(text)
        options = self.painter.candidates(parts)
        if len(options) == 1:
            return self.painter.gaps(parts, options[0], windowed)
        if windowed:
            raise UserError("the length of a gap is chosen by the bound of a whole row; it does not go with a stride")
        if not any(part.strip() for part in parts if isinstance(part, str)):
            raise UserError("a gap of unknown length needs given text beside it; write {{3}} for three tokens")
        canvases = [self.painter.gaps(parts, lengths) for lengths in options]
        nats = [self._given_nats(canvas.ids, draws) for canvas in canvases]
        best = int(np.argmin(nats))
        shown = {"+".join(map(str, lengths)): value for lengths, value in zip(options, nats, strict=True)}
        return replace(canvases[best], nats=shown)

    def _given_nats(self, ids: Tensor, draws: int) -> float:
        """The bound on -log p of the tokens that are given while the masks stay masks; times stratified over draws."""
        given = ids != self.tokenizer.vocab.mask
        if self.painter.frame is not None:
            given[0] = False  # BOS costs nothing worth comparing
        total = 0.0
        for start in range(0, draws, 32):
            index = torch.arange(start, min(draws, start + 32))
            rows = (len(index), 1)
            batch = Batch(ids.repeat(rows), index, draws, given.repeat(rows)).to(self.model.device)
            with torch.no_grad(), evaluating(self.model):
                total += float(self.model.nats(batch, eval_keys(0)).nats.double().sum())
        return total / draws

    def encode(self, text: str) -> list[int]:
        """The ids of a text that a user gave."""
        return self.painter.encode(text)

    def text(self, canvas: Canvas, ids: Tensor) -> str:
        """Given strings as typed, gaps decoded; an end of text inside a gap reads as a line break."""
        return self.painter.text(canvas, ids)

    @property
    def joins_spaces(self) -> bool:
        """Whether the tokenizer writes a space as the beginning of the next word's token, as GPT-2's does."""
        return self.painter.joins_spaces

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


class Pieces:
    """One text as it becomes fixed: each call gives what is new, and nothing that was given ever changes."""

    def __init__(self, painter: Painter, canvas: Canvas, stop: Sequence[str] = ()) -> None:
        self.painter, self.canvas, self.shown = painter, canvas, ""
        self.held = max((len(word) - 1 for word in stop), default=0)  # may be the beginning of a stop string
        self.late = 4 if painter.tokenizer.kind == "json" else 0  # WordPiece joins "don ' t" when it sees all of it

    def __call__(self, state: State, sample: Sample | None) -> str:
        """What a state adds."""
        if sample is not None:
            text = sample.text
        else:
            text = self.painter.text(self.canvas, state.canvas, max(0, state.fixed - self.late)).rstrip(HALF)
            text = text[: max(0, len(text) - self.held)]
            if not text.startswith(self.shown):
                return ""
        same = next((i for i, (a, b) in enumerate(zip(text, self.shown, strict=False)) if a != b), len(self.shown))
        self.shown = text
        return text[same:]


class _Record:
    """When each token of a sequence was written, and how sure the network was."""

    def __init__(self, canvas: Tensor, tokenizer: Tokenizer) -> None:
        self.tokenizer = tokenizer
        self.given = (canvas != tokenizer.vocab.mask).tolist()
        self.canvas = canvas
        self.step = [-1] * len(canvas)
        self.prob = [0.0] * len(canvas)

    def add(self, state: State) -> None:
        """One more event; what is taken back is written again later."""
        self.canvas = state.canvas
        for position, prob in zip(state.positions.tolist(), state.probs.tolist(), strict=True):
            self.step[position], self.prob[position] = state.step, prob

    def tokens(self, count: int) -> list[Token]:
        """The first tokens with their records."""
        ids = self.canvas[:count].tolist()
        pieces = self.tokenizer.pieces(ids)
        return [
            Token(token, piece, True) if given else Token(token, piece, False, step, prob)
            for token, piece, given, step, prob in zip(ids, pieces, self.given, self.step, self.prob, strict=False)
        ]
