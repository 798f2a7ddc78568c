"""How masks become tokens (paper section 4.1): reveal plans, and the textbook ancestral sampler as reference.

Under SUBS *when* a position is revealed does not depend on the network: a masked position is revealed in the step
t -> s with chance (alpha_s - alpha_t)/(1 - alpha_1), and what a cut schedule leaves over, (1 - alpha_0)/(1 - alpha_1),
in one last step. So the whole schedule of a T-step run is drawn before the first network call, and the network runs
only where something is revealed, on those rows. That is the same joint law as T-step ancestral sampling, at a cost
that does not grow with T: at most min(T, masks) calls a sequence.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Protocol

import torch
from torch import Tensor

from .keys import Keys
from .masking import categorical
from .schedule import Schedule, reveal_chance
from .types import State, UserError, Vocab


class Denoiser(Protocol):
    """What a sampler needs of a model."""

    schedule: Schedule

    @property
    def vocab(self) -> Vocab:
        """The vocabulary."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    def hidden(self, z: Tensor, t: Tensor, present: Tensor | None = None) -> Tensor:
        """Hidden states of z at times t."""

    def log_x(self, rows: Tensor) -> Tensor:
        """Log x̂ of chosen rows of hidden states."""


@dataclass(frozen=True)
class Choice:
    """How a token is taken from x̂. It never touches the chance of being revealed."""

    temperature: float = 1.0  # 0 = the most likely token
    top_k: int | None = None  # tokens as likely as the k-th are kept too
    top_p: float | None = None  # the smallest set of tokens that holds at least this much (the crossing one included)

    def __post_init__(self) -> None:
        if not 0 <= self.temperature < float("inf"):
            raise UserError(f"temperature={self.temperature} must be a number of at least 0")
        if self.top_k is not None and self.top_k < 1:
            raise UserError(f"top_k={self.top_k} must be at least 1")
        if self.top_p is not None and not 0 < self.top_p <= 1:
            raise UserError(f"top_p={self.top_p} must be in (0, 1]")

    def __call__(self, log_x: Tensor, uniform: Tensor) -> tuple[Tensor, Tensor]:
        """(tokens, what the network gave them) for rows of log x̂ (N, V) and one uniform a row."""
        tokens = log_x.argmax(-1) if self.temperature == 0 else categorical(self.filtered(log_x), uniform)
        return tokens, log_x.gather(-1, tokens[:, None]).squeeze(-1).exp()

    def filtered(self, log_x: Tensor) -> Tensor:
        """Log weights after temperature, top-k and top-p, not normalised."""
        logits = log_x
        if self.temperature != 1:  # the largest becomes 0 first: no temperature is too small
            logits = (log_x - log_x.amax(-1, keepdim=True)).double() / self.temperature
        if self.top_k is not None and self.top_k < logits.shape[-1]:
            least = logits.topk(self.top_k, dim=-1).values[:, -1:]
            logits = logits.masked_fill(logits < least, float("-inf"))
        if self.top_p is not None and self.top_p < 1:
            order = logits.sort(dim=-1, descending=True)
            before = torch.softmax(order.values.double(), -1).cumsum(-1).roll(1, -1)
            before[:, 0] = 0.0
            drop = torch.zeros_like(before, dtype=torch.bool).scatter(-1, order.indices, before >= self.top_p)
            logits = logits.masked_fill(drop, float("-inf"))
        return logits


class Plan(ABC):
    """An order of writing. `run` yields a state each time positions of a canvas have been written."""

    @abstractmethod
    def run(
        self,
        model: Denoiser,
        canvases: Sequence[Tensor],
        keys: Sequence[Keys],
        choice: Choice,
        batch_size: int,
    ) -> Iterator[State]:
        """Write every canvas."""


def time_grid(schedule: Schedule, steps: int) -> tuple[Tensor, Tensor]:
    """Times 1, 1 - 1/T, ..., 0 and their alphas, (T + 1,) each."""
    if steps < 1:
        raise UserError(f"steps={steps} must be at least 1")
    times = 1 - torch.arange(steps + 1, dtype=torch.float64) / steps
    return times, schedule.alpha(times)


@dataclass(frozen=True)
class RevealPlan(Plan):
    """T-step ancestral sampling, drawn ahead. Each sequence follows its own clock, so batches stay full."""

    steps: int

    def run(
        self,
        model: Denoiser,
        canvases: Sequence[Tensor],
        keys: Sequence[Keys],
        choice: Choice,
        batch_size: int,
    ) -> Iterator[State]:
        """Write every canvas; a finished one makes room for the next."""
        times, alphas = time_grid(model.schedule, self.steps)
        waiting = [
            _Course(row, canvas, self.draw(canvas == model.vocab.mask, alphas, key), key)
            for row, (canvas, key) in enumerate(zip(canvases, keys, strict=True))
        ]
        waiting.reverse()
        active: list[_Course] = []
        while active or waiting:
            while waiting and len(active) < batch_size:
                active.append(waiting.pop())
            yield from (course.state(times) for course in active if course.finished)  # nothing was masked
            active = [course for course in active if not course.finished]
            if active:
                yield from _write(model, active, times, choice)
                active = [course for course in active if not course.finished]

    @staticmethod
    def draw(masked: Tensor, alphas: Tensor, key: Keys) -> Tensor:
        """(L,) the step in which each position is revealed: 0 .. T - 1, T for what is left over, -1 if given."""
        uniform = key.uniform("reveal", [0], len(masked))[0]
        revealed_by = (alphas[1:] - alphas[0]) / (1 - alphas[0])  # after steps 0 .. T - 1
        step = torch.searchsorted(revealed_by, uniform, right=True)
        return torch.where(masked, step, -1)


class _Course:
    """One canvas on its way: what has been written, and what is due when."""

    def __init__(self, row: int, canvas: Tensor, reveal: Tensor, key: Keys) -> None:
        self.row, self.canvas, self.calls, self.event = row, canvas.clone(), 0, 0
        self.reveal = reveal
        self.due = [int(s) for s in reveal.unique() if s >= 0]
        self.uniform = key.uniform("token", [0], len(canvas))[0]
        self.written: tuple[Tensor, Tensor, Tensor] = (reveal[:0], reveal[:0], reveal[:0].float())

    @property
    def finished(self) -> bool:
        return self.event == len(self.due)

    @property
    def step(self) -> int:
        return self.due[self.event]

    def positions(self) -> Tensor:
        return torch.nonzero(self.reveal == self.step).squeeze(-1)

    def write(self, positions: Tensor, tokens: Tensor, probs: Tensor) -> None:
        self.canvas[positions] = tokens
        self.written = (positions, tokens, probs)
        self.calls += 1
        self.event += 1

    def state(self, times: Tensor) -> State:
        step = self.due[self.event - 1] if self.event else 0
        return State(self.row, step, float(times[step]), *self.written, self.canvas.clone(), self.calls, self.finished)


def _write(model: Denoiser, active: list[_Course], times: Tensor, choice: Choice) -> Iterator[State]:
    """One network call for all active canvases, each at its own time, and the head on the rows that are due."""
    positions = [course.positions() for course in active]
    z, present = stack([course.canvas for course in active], model.vocab)
    t = torch.stack([times[course.step] for course in active])
    row = torch.repeat_interleave(torch.arange(len(active)), torch.tensor([len(p) for p in positions]))
    uniform = torch.cat([course.uniform[p] for course, p in zip(active, positions, strict=True)])
    with torch.no_grad():
        hidden = model.hidden(z.to(model.device), t, present)
        rows = hidden[row.to(model.device), torch.cat(positions).to(model.device)]
        tokens, probs = (x.cpu() for x in choice(model.log_x(rows), uniform))
    start = 0
    for course, p in zip(active, positions, strict=True):
        part = slice(start, start + len(p))
        course.write(p, tokens[part], probs[part])
        start += len(p)
        yield course.state(times)


def stack(canvases: Sequence[Tensor], vocab: Vocab) -> tuple[Tensor, Tensor | None]:
    """(B, L) canvases of any lengths side by side, and which positions exist (None = all)."""
    lengths = [len(canvas) for canvas in canvases]
    if len(set(lengths)) == 1:
        return torch.stack(list(canvases)), None
    filler = vocab.mask if vocab.pad is None else vocab.pad
    z = torch.nn.utils.rnn.pad_sequence(list(canvases), batch_first=True, padding_value=filler)
    return z, torch.arange(z.shape[1]) < torch.tensor(lengths)[:, None]


@dataclass(frozen=True)
class Ancestral(Plan):
    """The textbook: a network call and the full posterior at each of T steps. Slow and obvious; a reference."""

    steps: int

    def run(
        self,
        model: Denoiser,
        canvases: Sequence[Tensor],
        keys: Sequence[Keys],
        choice: Choice,
        batch_size: int,
    ) -> Iterator[State]:
        """Write every canvas, a batch at a time."""
        for start in range(0, len(canvases), batch_size):
            part = slice(start, start + batch_size)
            yield from self._batch(model, canvases[part], keys[part], choice, start)

    def _batch(
        self, model: Denoiser, canvases: Sequence[Tensor], keys: Sequence[Keys], choice: Choice, first: int
    ) -> Iterator[State]:
        times, alphas = time_grid(model.schedule, self.steps)
        z, present = stack(canvases, model.vocab)
        exists = torch.ones_like(z, dtype=torch.bool) if present is None else present
        for k in range(self.steps + 1):
            masked = (z == model.vocab.mask) & exists
            last = k == self.steps
            if last and not masked.any():  # only a schedule with alpha_0 < 1 leaves anything to a step at t = 0
                return
            alpha_s = torch.ones(()) if last else alphas[k + 1]
            u = reveal_chance(alpha_s, alphas[k])
            draws = torch.ones(2, *z.shape, dtype=torch.float64)
            for row, (canvas, key) in enumerate(zip(canvases, keys, strict=True)):
                draws[:, row, : len(canvas)] = key.at(k).uniform("ancestral", [0], 2, len(canvas))[0]
            with torch.no_grad():
                hidden = model.hidden(z.to(model.device), times[k].expand(len(z)), present)
                log_x = model.log_x(hidden)  # (B, L, V): every position, needed or not
            revealed = masked & (draws[0] < u)
            tokens, probs = (x.cpu() for x in choice(log_x[revealed.to(log_x.device)], draws[1][revealed]))
            z = z.masked_scatter(revealed, tokens)
            given = torch.zeros(z.shape).masked_scatter(revealed, probs)
            done = not ((z == model.vocab.mask) & exists).any() and k >= self.steps - 1
            for row, canvas in enumerate(canvases):
                where = torch.nonzero(revealed[row]).squeeze(-1)
                yield State(
                    first + row, k, float(times[k]), where, z[row, where], given[row, where],
                    z[row, : len(canvas)].clone(), k + 1, done,
                )  # fmt: skip
