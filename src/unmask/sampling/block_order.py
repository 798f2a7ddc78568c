"""Block after block, from left to right (block diffusion): any sampler writes a block, given the blocks before it.

Blocks begin at multiples of their size. What a block has written never changes, so a model may keep what it has
computed for it. Blocks of one token are left to right. A model does not see what follows a block: a text that goes on
after a gap is written as a single block, the whole of it.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

from torch import Tensor

from ..errors import UserError, at_least
from ..process.keys import Keys
from ..types import Vocab
from .orders import GivenOrder
from .request import Request
from .sampler import OuterTrajectory, Sampler, TokenDenoiser, Trajectory, positions_of


@dataclass(frozen=True)
class BlockByBlock(Sampler):
    """Another sampler (`plan`), one block after another."""

    plan: Sampler
    size: int | None  # None: a text is a single block
    ahead: bool = True  # whether a gap sees the text after it, as a single block; else only what its own block has

    def __post_init__(self) -> None:
        super().__post_init__()
        at_least("block", self.size)
        if self.plan.sets_blocks:
            raise UserError(
                f"{type(self.plan).__name__} has blocks of its own and the law of blocks of one token; leave block out"
            )
        for name in ("deterministic", "draws_by_position", "rewrites"):
            object.__setattr__(self, name, getattr(self.plan, name))  # a frozen record

    def check(self, model: Any) -> None:
        """Raise if the model cannot follow the sampler inside the blocks."""
        if not model.writes_blocks:
            raise UserError(
                f"block={self.size or 'full'} is for models of method block, which this one is not; leave it out"
            )
        self.plan.check(model)

    def size_for(self, request: Request, vocab: Vocab) -> int | None:
        """The size of the blocks in which a request is written; None: it is a single one."""
        free, length = request.writable(vocab), len(request.canvas)
        if length and int(request.canvas[-1]) == vocab.eos:
            free = free[:-1]  # the frame of a window: an end that all rows have says nothing of what is before it
        gap = self.ahead and bool((free[:-1] & ~free[1:]).any())  # with given text after it
        return None if gap or self.size is None or self.size >= length else self.size

    def trajectory(self, request: Request, model: TokenDenoiser) -> Trajectory:
        """The trajectory from the first block that has something to write."""
        size = self.size_for(request, model.vocab)
        if size is None:
            return self.plan.trajectory(request, model)
        if isinstance(self.plan, GivenOrder):
            raise UserError("a given order names positions of a single block; set block=full, the whole text")
        return _BlockTrajectory(request, model, self.plan, size)


class _BlockTrajectory(OuterTrajectory):
    """The trajectory of the current block; the network sees the text to the end of that block."""

    def __init__(self, request: Request, model: TokenDenoiser, plan: Sampler, size: int) -> None:
        super().__init__(request, model.vocab)
        self.model, self.plan, self.size, self.total = model, plan, size, request.canvas.clone()
        self.writable, self.block, self.steps = self.free.clone(), size, 0
        self._open()

    def _open(self) -> None:
        """Open the block of the first position that is still to be written; it keeps what the last one has kept."""
        left = positions_of(self.writable)
        if not len(left):
            self.inner: Trajectory = self.plan.trajectory(replace(self.request, free=self.writable), self.model)
            return
        self.clean = int(left[0]) // self.size * self.size
        end = min(self.clean + self.size, len(self.total))
        key = self.key.fork(f"block {self.clean // self.size}")
        part = replace(self.request, canvas=self.total[:end], free=self.writable[:end].clone(), key=key)
        self.writable[:end] = False
        self.inner = self.plan.trajectory(part, self.model)
        self.inner.kept = self.kept
        self._show()

    def copy(self, key: Keys) -> Trajectory:
        """With a copy of the block that is under way."""
        other = super().copy(key)
        assert isinstance(other, _BlockTrajectory)
        other.total, other.writable = self.total.clone(), self.writable.clone()
        other.inner = self.inner.copy(key.fork(f"block {self.clean // self.size}"))
        other._show()
        return other

    def _show(self) -> None:
        self.canvas, self.free, self.open = self.inner.canvas, self.inner.free, self.inner.open
        self.t, self.kept, self.ruled = self.inner.t, self.inner.kept, self.inner.ruled
        if not self.inner.finished:
            self.step = self.steps + self.inner.step

    def write(self, positions: Tensor, tokens: Tensor) -> tuple[Tensor, Tensor]:
        self.inner.kept = self.kept
        changes = self.inner.write(positions, tokens)
        self.total[: len(self.inner.canvas)] = self.inner.canvas
        self._show()
        if self.inner.finished and self.writable.any():
            self.steps = self.step + 1
            self._open()
        return changes

    def whole(self) -> Tensor:
        return self.total

    def fixed(self) -> int:
        return len(self.total) if self.finished else self.inner.fixed()
