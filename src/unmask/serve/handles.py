"""What a request and the engine share: the requested sequences, and a buffer of events for the way back.

The engine writes into the buffer and never waits; the request reads as fast as its client does. A full buffer merges
the steps of a sequence: a slow reader sees fewer, larger steps, and the same text.
"""

from __future__ import annotations

import asyncio
import contextlib
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from torch import Tensor

from ..sampling import Request
from ..sampling.trace import Change
from ..types import Sample


@dataclass(frozen=True)
class Step:
    """What one step changed in one sequence of a request."""

    index: int
    step: int
    t: float
    calls: int
    changes: tuple[Change, ...]
    canvas: Tensor
    fixed: int
    block: tuple[int, int] | None = None

    def then(self, later: Step) -> Step:
        """Both steps as one: for each position the token that it holds at the end."""
        changes = {change.position: change for change in (*self.changes, *later.changes)}
        return replace(later, changes=tuple(changes.values()))


@dataclass(frozen=True)
class Done:
    """A finished sequence, with the canvas it ended with."""

    index: int
    sample: Sample
    fixed: int
    canvas: Tensor


@dataclass(frozen=True)
class Failed:
    """The request has ended without a result."""

    message: str
    kind: str  # timeout, shutdown, failed


Event = Step | Done | Failed


class RequestHandle:
    """One request in the engine."""

    def __init__(
        self,
        model: str,
        requests: Sequence[Request],
        *,
        timeout: float,
        steps: bool = False,
        buffer: int = 256,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.model, self.requests, self.wants_steps = model, list(requests), steps
        self.waiting = list(range(len(requests)))[::-1]  # the next one is last
        self.active: set[int] = set()
        self.left = len(requests)
        self.tokens = sum(len(request.canvas) for request in requests)
        self.alternatives = sum(len(request.canvas) * request.tops for request in requests)
        self.begun = clock()
        self.deadline = self.begun + timeout
        self.number = 0  # in the order of arrival
        self.cancelled = self.over = False
        self.first: float | None = None  # when its first token was written
        self._capacity = buffer
        self._events: list[Event] = []
        self._lock = threading.Lock()
        self._loop = asyncio.get_running_loop()
        self._ready = asyncio.Event()

    def put(self, event: Event) -> None:
        """Add an event; never waits."""
        with self._lock:
            if isinstance(event, Step) and len(self._events) >= self._capacity and self._merge(event):
                return
            self._events.append(event)
        with contextlib.suppress(RuntimeError):  # nobody listens on a loop that is closed
            self._loop.call_soon_threadsafe(self._ready.set)

    def _merge(self, event: Step) -> bool:
        for i in range(len(self._events) - 1, -1, -1):
            earlier = self._events[i]
            if isinstance(earlier, Step) and earlier.index == event.index:
                self._events[i] = earlier.then(event)
                return True
        return False

    async def take(self) -> list[Event]:
        """All events since the last call; waits until there is one."""
        await self._ready.wait()
        self._ready.clear()
        with self._lock:
            events, self._events = self._events, []
        return events
