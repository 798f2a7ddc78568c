"""Any length, semi-autoregressively (paper section 4.2): windows of L tokens that move by L' < L.

Any sampler writes a window; the next window begins L' tokens later, with the end of the text so far as its prefix.
What a window has written never changes. The last window is moved back so that it ends with the canvas. Given tokens may
be anywhere, so long texts with gaps work too.

Rows that were trained with BOS and EOS at their ends (`data.block_ends`) are shown to the network with the same frame
around every window. The frame is not part of the canvas: no window can end the text by writing the EOS that training
put at the end of every block.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..data.rows import capacity
from ..types import UserError
from .orders import GivenOrder
from .request import Request
from .rules import Rules
from .sampler import OuterTrajectory, Sampler, TokenDenoiser, Trajectory


@dataclass(frozen=True)
class Windows(Sampler):
    """Another sampler (`plan`), one window after another."""

    plan: Sampler
    length: int  # tokens that the network sees at once, the frame included
    stride: int  # by how much the window moves
    frame: tuple[int, int] | None = None  # BOS and EOS around every window
    draws_by_position = False

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 1 <= self.stride < self.room:
            raise UserError(
                f"stride={self.stride} must be at least 1 and less than the window of {self.room} tokens: "
                "what is left of the window is the context of the next one"
            )
        if isinstance(self.plan, GivenOrder):
            raise UserError("a given order names positions of one window; it cannot be used over several windows")
        if isinstance(self.plan, Windows):
            raise UserError("a sampler in windows cannot be used inside windows")
        object.__setattr__(self, "deterministic", self.plan.deterministic)  # a frozen record

    @property
    def room(self) -> int:
        """Tokens of the canvas in a window."""
        return capacity(self.length, self.frame)

    def check(self, model: TokenDenoiser) -> None:
        """Raise if the model cannot follow the sampler inside the windows."""
        self.plan.check(model)

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """The trajectory from the first window that has something to write."""
        return _WindowTrajectory(request, model, self)


class _WindowTrajectory(OuterTrajectory):
    """The trajectory of the current window; `canvas`, `free` and `kept` are those of the window."""

    def __init__(self, request: Request, model: TokenDenoiser, windows: Windows) -> None:
        super().__init__(request, model.vocab)
        self.total, self.writable = request.canvas.clone(), self.free.clone()
        self.windows, self.model = windows, model
        self.first = 0 if windows.frame is None else 1  # where the canvas begins in a window
        self.start, self.number, self.steps = 0, 0, 0
        self._open()

    def _open(self) -> None:
        """Open the next window that has something to write, beginning with the current one."""
        while True:
            key, canvas, free = self.key.fork(f"window {self.number}"), *self._framed()
            request = replace(self.request, canvas=canvas, free=free, key=key)
            self.inner = self.windows.plan.trajectory(request, self.model)
            if not self.inner.finished or not self._move():
                self._show()
                return

    @property
    def _end(self) -> int:
        """Where the window ends in the whole canvas, which may be shorter than a window."""
        return min(self.start + self.windows.room, len(self.total))

    def _framed(self) -> tuple[Tensor, Tensor]:
        """The tokens of the window, and which of them may be written: what a window has written stays."""
        part, free = self.total[self.start : self._end], self.writable[self.start : self._end]
        if self.windows.frame is None:
            return part, free
        bos, eos = (torch.tensor([token]) for token in self.windows.frame)
        never = torch.zeros(1, dtype=torch.bool)
        return torch.cat([bos, part, eos]), torch.cat([never, free, never])

    def _move(self) -> bool:
        """Move to the next window; False if there is none."""
        if self.start + self.windows.room >= len(self.total):
            return False
        self.writable[self.start : self._end] = False
        self.start = min(self.start + self.windows.stride, len(self.total) - self.windows.room)
        self.number += 1
        return True

    def _show(self) -> None:
        self.canvas, self.free, self.t = self.inner.canvas, self.inner.free, self.inner.t
        self.kept, self.ruled, self.in_turn = self.inner.kept, self.inner.ruled, self.inner.in_turn
        self.clean, self.block, self.columns = self.inner.clean, self.inner.block, self.inner.columns
        if not self.inner.finished:
            self.step = self.steps + self.inner.step

    @property
    def prompt(self) -> tuple[int, ...] | None:
        return None if self.request.prompt is None else (id(self.request.prompt), self.start)

    def asked(self) -> Tensor:
        return self.inner.asked()

    def rules(self) -> Rules | None:
        return self.inner.rules()

    def draw(self, chances: Tensor) -> Tensor:
        return self.inner.draw(chances)

    def stuck(self, error: UserError) -> None:
        self.inner.stuck(error)
        self.error = self.inner.error

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self.inner.kept = self.kept
        (drafted, accepted), before = self.drafts, self.inner.drafts
        changed, tokens = self.inner.write(positions, tokens)
        self.drafts = drafted + self.inner.drafts[0] - before[0], accepted + self.inner.drafts[1] - before[1]
        places = changed - self.first + self.start
        self.total[self.start : self._end] = self.inner.whole()[self.first :][: self._end - self.start]
        if self.inner.finished and self._move():
            self.steps = self.step + 1
            self._open()  # another text for the network: nothing is kept
        else:
            self._show()
        return places, tokens

    def place(self, positions: Tensor) -> Tensor:
        return self.inner.place(positions) - self.first + self.start

    def under_way(self) -> tuple[int, int] | None:
        if (block := self.inner.under_way()) is None:
            return None
        start, end = (place - self.first + self.start for place in block)
        return max(0, start), min(end, len(self.total))  # without the frame

    def whole(self) -> Tensor:
        return self.total

    def fixed(self) -> int:
        if self.finished:
            return len(self.total)
        return min(self.start + self.inner.fixed() - self.first, self._end)  # the frame does not count
