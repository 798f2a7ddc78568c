"""The interface of samplers: a sampler makes a trajectory for each request, and the trajectory says what it needs next.

A trajectory never calls the network. In every step it names a time and, of the positions that may be written, the
*candidates* to be scored (adaptive orders rank them) and those that are *due* (they get a token now).
`batcher.py` takes many trajectories through the network together.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from copy import copy
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from ..errors import UserError, at_least
from ..process.keys import Keys
from ..process.schedule import Schedule
from ..types import Vocab
from .choice import Choice
from .request import NOTHING, Request, Written
from .rules import Rules
from .settings import check_settings


class SlotColumns(NamedTuple):
    """What a model that writes in blocks reads after clean tokens, where that is not one token for each position."""

    place: Tensor  # (n,) the position of each column
    sees: Tensor  # (n, n) bool: which of them each one sees, besides all clean tokens


class Slot(NamedTuple):
    """The place of a sequence from admission to end, and how much of its canvas is unchanged since its last call."""

    number: int
    kept: int  # tokens at the beginning of the canvas that have not changed since
    prompt: tuple[int, ...] | None  # sequences with the same prompt begin with the same tokens ...
    shared: int  # ... this many
    clean: int = 0  # tokens at the beginning that are final, as far as the model is concerned: earlier blocks
    block: int | None = None  # tokens of a block; None: all tokens from `clean` on are one block
    columns: SlotColumns | None = None  # what the tokens from `clean` on are, if not one for each position


class Denoiser(Protocol):
    """What the batcher needs from a model. A model may keep data for each slot until the slot is released."""

    @property
    def vocab(self) -> Vocab:
        """The vocabulary."""

    @property
    def device(self) -> torch.device:
        """Where it computes."""

    @property
    def cached(self) -> bool:
        """Whether it caches what it has read of each slot."""

    def check(self, request: Request) -> None:
        """Raise if the request cannot be followed."""

    def advance(self, trajectories: Sequence[Any]) -> list[Written | None]:
        """One network call: what each trajectory writes, or None where its next token needs more calls."""

    def unread(self, trajectory: Any) -> int:
        """About how many tokens it reads in the next call of a trajectory."""

    def admit(self, trajectory: Any) -> None:
        """A sequence has got its slot; the model may know what it begins with, and then says so in `kept`."""

    def release(self, trajectory: Any) -> None:
        """The sequence of this trajectory's slot has ended."""

    @property
    def held_bytes(self) -> int:
        """Bytes of what it keeps for all slots."""


class TokenDenoiser(Denoiser, Protocol):
    """A model that predicts the tokens at positions of a canvas."""

    schedule: Schedule

    @property
    def time_conditioned(self) -> bool:
        """Whether the network depends on the time."""

    @property
    def normalised(self) -> bool:
        """Whether the schedule alone decides when a position is revealed, and no token changes afterwards."""

    @property
    def carry_over(self) -> bool:
        """Whether a written token stays; if not, the last step writes all tokens anew."""

    @property
    def one_way(self) -> bool:
        """Whether a position is predicted from those before it alone."""

    def hidden(
        self,
        z: Tensor,
        t: Tensor,
        present: Tensor | None = None,
        label: Tensor | None = None,
        queries: Tensor | None = None,
    ) -> Tensor:
        """Hidden states of z at times t, for the columns `queries` (B, M).

        If the model is `cached` it also takes `slots`, one per row.
        """

    def log_x(self, rows: Tensor) -> Tensor:
        """Log x̂ of chosen rows of hidden states."""


class Trajectory(ABC):
    """One canvas being written. Positions that are not free never change."""

    ruled = True  # whether scores are computed under the user's rules, or from the network's distribution alone
    final = True  # whether a written token stays
    in_turn = False  # whether it asks for distributions in turn and draws tokens itself (`asked`, `draw`)
    drafting = False  # whether what it asks for next is drafts, which only guess what the text will be
    drafts = 0, 0  # tokens that it drafted, and how many of them were accepted

    def __init__(self, request: Request, vocab: Vocab) -> None:
        self.request, self.key, self.vocab = request, request.key, vocab
        self.canvas = request.canvas.clone()  # (L,) what the network sees
        self.free = request.writable(vocab)  # (L,) bool: may be written
        self.open = self.free.clone()  # (L,) bool: is still to be written
        self.calls = 0
        self.step, self.t = 0, 1.0  # of the next call; a state reports those of its call
        self.slot = -1  # the batcher's
        self.kept = 0  # tokens at the beginning of `canvas` that are unchanged since the last call
        self.clean = 0  # of a model that writes in blocks, as in `Slot`
        self.block: int | None = None
        self.columns: SlotColumns | None = None
        self.error: UserError | None = None  # why it cannot go on
        self.log_weight = 0.0  # under a constraint: how much likelier the run is for the free sampler that it followed
        self.cuts_spans = True  # whether a step looks at no more of a span than what it writes depends on
        self.ahead: dict[int, float] = {}  # by span: the log chance that its rest fits, by the last call about it
        self._uniform: Tensor | None = None

    @property
    @abstractmethod
    def finished(self) -> bool:
        """Whether nothing is left to do."""

    def candidates(self) -> Tensor:
        """Positions to be scored before deciding what is due; none by default."""
        return NOTHING

    def score(self, log_x: Tensor) -> Tensor:
        """(k, ...): a score for each row of log-probabilities (k, V). Only called if there are candidates."""
        raise NotImplementedError

    def choose(self, scores: Tensor) -> None:
        """Take the scores of the candidates. Only called if there are any."""
        raise NotImplementedError

    @abstractmethod
    def due(self) -> Tensor:
        """Positions that get a token in this step."""

    def law(self, log_x: Tensor, positions: Tensor) -> Tensor:
        """Log-probabilities (k, V) that tokens are drawn from, given log x̂ of positions (k,) that are due: x̂ itself."""
        return log_x

    def asked(self) -> Tensor:
        """Of the positions that are due, those whose distributions it wants next; none: the step is complete.

        Only called if it draws `in_turn`.
        """
        raise NotImplementedError

    def rules(self) -> Rules | None:
        """The rules for what it asks in turn."""
        return self.request.rules

    def draw(self, chances: Tensor) -> Tensor:
        """(n,) tokens for the positions that it asked for, from chances (n, V)."""
        raise NotImplementedError

    def stuck(self, error: UserError) -> None:
        """Take note that the rules leave nothing to draw for the positions that it asked for."""
        self.error = error

    def uniform(self, positions: Tensor) -> Tensor:
        """One uniform number per position; the same in all steps, as by default a position is written once."""
        if self._uniform is None:
            self._uniform = self.key.uniform("token", [0], len(self.canvas))[0]
        return self._uniform[positions]

    def choice(self, asked: Choice) -> Choice:
        """How the tokens of this step are drawn: as the user asked, unless a trajectory differs."""
        return asked

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        """Write the tokens that were due and go on; returns what changed in the whole canvas, (positions, tokens)."""
        self.put(positions, tokens)
        return positions, tokens

    def put(self, positions: Tensor, tokens: Tensor | int) -> None:
        """Change the canvas; `kept` is then how much of its beginning is unchanged since the last call."""
        self.canvas[positions] = tokens
        self.open[positions] = False
        if len(positions):
            self.kept = min(self.kept, int(positions.min()))

    def copy(self, key: Keys) -> Trajectory:
        """The same run so far, which goes on with other random numbers."""
        other = copy(self)
        other.key, other._uniform, other.ahead = key, None, dict(self.ahead)
        other.canvas, other.free, other.open = self.canvas.clone(), self.free.clone(), self.open.clone()
        return other

    def place(self, positions: Tensor) -> Tensor:
        """Positions of `canvas` as positions of the whole canvas."""
        return positions

    def whole(self) -> Tensor:
        """The whole canvas (a trajectory may show the network a window of it)."""
        return self.canvas

    def fixed(self) -> int:
        """How many tokens at the beginning of the whole canvas will not change any more."""
        if self.finished:
            return len(self.whole())
        changing = torch.nonzero(self.open if self.final else self.free)
        return int(changing[0]) if len(changing) else len(self.canvas)

    def under_way(self) -> tuple[int, int] | None:
        """The block that is written next, [start, end) of the whole canvas; None if there are no blocks, or no next."""
        if self.finished or (not self.clean and self.block is None):
            return None
        start, end = self.place(torch.tensor([self.clean, len(self.canvas)])).tolist()
        return max(0, start), min(end, len(self.whole()))  # without the frame of a window

    @property
    def prompt(self) -> tuple[int, ...] | None:
        """Identifies the tokens before the first free position: requests with the same value share them."""
        return None if self.request.prompt is None else (id(self.request.prompt),)

    def in_slot(self) -> Slot:
        """The slot as of the next call."""
        writable = torch.nonzero(self.free) if self.prompt is not None and not self.calls else NOTHING
        shared = int(writable[0]) if len(writable) else 0
        return Slot(self.slot, self.kept, self.prompt, shared, self.clean, self.block, self.columns)


class OuterTrajectory(Trajectory):
    """A trajectory that leads another one, `inner`, through the parts of its canvas."""

    inner: Trajectory

    @property
    def finished(self) -> bool:
        """Whether the last part is written."""
        return self.inner.finished

    def candidates(self) -> Tensor:
        """Those of the part."""
        return self.inner.candidates()

    def score(self, log_x: Tensor) -> Tensor:
        """As in the part."""
        return self.inner.score(log_x)

    def choose(self, scores: Tensor) -> None:
        """As in the part."""
        self.inner.choose(scores)

    def due(self) -> Tensor:
        """Those of the part."""
        return self.inner.due()

    def law(self, log_x: Tensor, positions: Tensor) -> Tensor:
        """That of the part."""
        return self.inner.law(log_x, positions)

    def uniform(self, positions: Tensor) -> Tensor:
        """Those of the part, which has streams of its own."""
        return self.inner.uniform(positions)

    def choice(self, asked: Choice) -> Choice:
        """That of the part."""
        return self.inner.choice(asked)


class Sampler(ABC):
    """A sampling method: a dataclass whose fields are its settings (`settings.setting`)."""

    deterministic = False  # whether the order depends on nothing but what the network says
    timeless = False  # whether it has no clock, so that it cannot drive a network that depends on the time
    draws_by_position = True  # whether it shows the network the whole canvas and draws a token for each position
    rewrites = False  # whether it takes tokens back that it has written
    any_mass = False  # whether it is right for networks whose x̂ does not sum to 1 over the clean tokens
    sets_blocks = (
        False  # whether it says itself what a model reads as a block, so that there is no block size to choose
    )

    def __post_init__(self) -> None:
        check_settings(self)

    @abstractmethod
    def trajectory(self, request: Request, model: Any) -> Trajectory:
        """The trajectory of a request; the model is a `TokenDenoiser` unless the sampler says otherwise."""

    def check(self, model: Any) -> None:
        """Raise if this model cannot follow the sampler."""
        name = type(self).__name__
        if not self.any_mass and not model.normalised:  # first: what the other message suggests needs it too
            raise UserError(
                f"{name} needs a model that carries tokens over and whose prediction sums to 1 over them, which this "
                "model does not; choose the textbook ancestral sampler"
            )
        if self.timeless and model.time_conditioned:
            raise UserError(
                f"{name} has no clock, and this model was trained with time conditioning; "
                "choose ancestral, first-hitting or a remasking sampler"
            )

    def describe(self) -> dict[str, Any]:
        """The sampler, for protocols."""
        return {"plan": repr(self)}


def time_grid(schedule: Schedule, steps: int) -> tuple[Tensor, Tensor]:
    """Times 1, 1 - 1/T, ..., 0 and their alphas, (T + 1,) each."""
    at_least("steps", steps)
    times = 1 - torch.arange(steps + 1, dtype=torch.float64) / steps
    return times, schedule.alpha(times)


def positions_of(chosen: Tensor) -> Tensor:
    """The positions at which a boolean (L,) is true."""
    return torch.nonzero(chosen).squeeze(-1)


def stack(canvases: Sequence[Tensor], vocab: Vocab) -> tuple[Tensor, Tensor | None]:
    """Canvases of any lengths as one (B, L) tensor, and which positions exist (None = all)."""
    lengths = [len(canvas) for canvas in canvases]
    if len(set(lengths)) == 1:
        return torch.stack(list(canvases)), None
    filler = vocab.mask if vocab.pad is None else vocab.pad
    z = torch.nn.utils.rnn.pad_sequence(list(canvases), batch_first=True, padding_value=filler)
    return z, torch.arange(z.shape[1]) < torch.tensor(lengths)[:, None]
