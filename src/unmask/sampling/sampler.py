"""The interface of all ways of writing: a plan makes a course for each canvas, and a course says what it needs next.

A course never calls the network. In every round it names a time and, of the positions that hold [MASK], those that it
wants to *look* at (adaptive orders rank them by a score) and those that are *due* (they get a token now). `desk.py`
takes many courses through the network together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, Protocol

import torch
from torch import Tensor

from ..process.keys import Keys
from ..process.schedule import Schedule
from ..types import State, UserError, Vocab
from .choice import Choice
from .settings import check_settings

NOTHING = torch.empty(0, dtype=torch.int64)


class Denoiser(Protocol):
    """What a sampler needs of a model."""

    schedule: Schedule

    @property
    def vocab(self) -> Vocab:
        """The vocabulary."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def time_conditioned(self) -> bool:
        """Whether the network is told the time."""

    @property
    def normalised(self) -> bool:
        """Whether the schedule alone says when a position is revealed, and no token changes afterwards."""

    @property
    def carry_over(self) -> bool:
        """Whether a written token stays: without it the last step writes all tokens anew."""

    def hidden(
        self,
        z: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        label: Tensor | None = None,
        queries: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of z at times t, of the columns (B, M) that are asked for."""

    def log_x(self, rows: Tensor) -> Tensor:
        """Log x̂ of chosen rows of hidden states."""


class Trajectory(ABC):
    """One canvas on its way. Given positions never change."""

    ruled = True  # whether scores are of the distribution under the user's rules, or of the network's own

    def __init__(self, canvas: Tensor, key: Keys) -> None:
        self.canvas = canvas.clone()  # (L,) what the network sees
        self.key = key
        self.calls = 0
        self.step, self.t = 0, 1.0  # of the round that comes; a state reports those of its own round
        self._uniform: Tensor | None = None

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing is left to do."""

    def look(self) -> Tensor:
        """Positions to be scored before it is decided what is due; none by default."""
        return NOTHING

    def score(self, log_x: Tensor) -> Tensor:
        """(k,) a score of each row of log-probabilities (k, V). Only a course that looks is ever asked."""
        raise NotImplementedError

    def choose(self, scores: Tensor) -> None:
        """Take the scores of the positions that `look` named. Only a course that looks is ever told."""
        raise NotImplementedError

    @abstractmethod
    def due(self) -> Tensor:
        """Positions that get a token in this round."""

    def uniform(self, positions: Tensor) -> Tensor:
        """One uniform number for the token of each position; a position that is written once needs one only."""
        if self._uniform is None:
            self._uniform = self.key.uniform("token", [0], len(self.canvas))[0]
        return self._uniform[positions]

    def choice(self, given: Choice) -> Choice:
        """How the tokens of this round are drawn, if the user asked for `given`; a course may do so later only."""
        return given

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Write the tokens that were due and go on; gives what changed in the whole canvas, (positions, tokens)."""
        self.canvas[positions] = tokens
        return positions, tokens

    def place(self, positions: Tensor) -> Tensor:
        """The positions of the whole canvas that positions of `canvas` stand for."""
        return positions

    def whole(self) -> Tensor:
        """The whole canvas (a course may show the network a window of it)."""
        return self.canvas

    def fixed(self, mask: int) -> int:
        """How many tokens at the beginning of the whole canvas will never change any more."""
        left = torch.nonzero(self.whole() == mask)
        return int(left[0]) if len(left) else len(self.whole())


class Sampler(ABC):
    """A way of writing: a dataclass whose fields are its settings (`settings.setting`)."""

    deterministic = False  # whether the order depends on nothing but what the network says
    timeless = False  # whether it has no clock: a network that is told the time cannot follow it
    any_mass = False  # whether it is right for networks whose x̂ does not sum to 1 over the clean tokens

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def course(self, canvas: Tensor, model: Denoiser, key: Keys) -> Trajectory:
        """One canvas, ready to go."""

    def check(self, model: Denoiser) -> None:
        """Raise if this model cannot follow the plan."""
        name = type(self).__name__
        if not self.any_mass and not model.normalised:  # first: what the other one advises needs this too
            raise UserError(
                f"{name} needs a model whose prediction sums to 1 over the tokens and carries them over, and this "
                "one's does not; choose the textbook ancestral sampler"
            )
        if self.timeless and model.time_conditioned:
            raise UserError(
                f"{name} has no time to tell the network, and this model was trained with time conditioning; "
                "choose ancestral, first-hitting or a remasking sampler"
            )

    def describe(self) -> dict[str, Any]:
        """For protocols."""
        return {"plan": repr(self)}


def time_grid(schedule: Schedule, steps: int) -> tuple[Tensor, Tensor]:
    """Times 1, 1 - 1/T, ..., 0 and their alphas, (T + 1,) each."""
    if steps < 1:
        raise UserError(f"steps={steps} must be at least 1")
    times = 1 - torch.arange(steps + 1, dtype=torch.float64) / steps
    return times, schedule.alpha(times)


def masked_positions(canvas: Tensor, vocab: Vocab) -> Tensor:
    """Where [MASK] is."""
    return torch.nonzero(canvas == vocab.mask).squeeze(-1)


def stack(canvases: Sequence[Tensor], vocab: Vocab) -> tuple[Tensor, Tensor | None]:
    """(B, L) canvases of any lengths side by side, and which positions exist (None = all)."""
    lengths = [len(canvas) for canvas in canvases]
    if len(set(lengths)) == 1:
        return torch.stack(list(canvases)), None
    filler = vocab.mask if vocab.pad is None else vocab.pad
    z = torch.nn.utils.rnn.pad_sequence(list(canvases), batch_first=True, padding_value=filler)
    return z, torch.arange(z.shape[1]) < torch.tensor(lengths)[:, None]


__all__ = ["Denoiser", "Sampler", "State", "Trajectory", "masked_positions", "stack", "time_grid"]
