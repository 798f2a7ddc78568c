"""One thread that owns the networks: requests join and leave between network calls.

Every model has a batcher (`sampling/batcher.py`). A step takes all its active sequences through the network together;
models take turns. Places go to the request that has the fewest, then to the oldest, so that one request of many samples
does not hold up the others, and a long sequence goes through the network less often than short ones.
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass, replace

import torch

from ..lm import LM
from ..sampling import Batcher
from ..sampling.trace import changes_of
from ..types import State
from .handles import Done, Failed, RequestHandle, Step
from .limits import Limits, Refusal
from .monitoring import Metrics
from .threads import interruptible, use_cores

TOKEN_BUDGET = {"cpu": 32, "cuda": 2048}  # tokens that cost next to nothing beside the call itself
log = logging.getLogger("unmask.serve")


@dataclass
class _Line:
    """A model, its batcher, and the requests for it."""

    name: str
    lm: LM
    batcher: Batcher
    tickets: list[RequestHandle]
    rows: dict[int, tuple[RequestHandle, int]]  # under way


class Engine:
    """All models and all requests."""

    def __init__(self, lms: Mapping[str, LM], limits: Limits | None = None, metrics: Metrics | None = None) -> None:
        self.limits, self.metrics = limits or Limits(), metrics or Metrics()
        self.lms = dict(lms)
        self.threads = torch.get_num_threads()
        for lm in lms.values():
            lm.model.eval()
            interruptible(lm.model)
        self._lines = {name: _Line(name, lm, self._batcher(lm), [], {}) for name, lm in lms.items()}
        self._wake = threading.Condition()
        self._new: list[RequestHandle] = []
        self._rows = self._tokens = self._numbers = self._arrivals = 0
        self._ending: tuple[str, str] | None = None  # why all requests are to end
        self._pace = 0.0  # seconds between two finished sequences, lately
        self._last = time.monotonic()
        self._stopping = self.draining = self.ended = False
        self._thread = threading.Thread(target=self._work, name="unmask-engine", daemon=True)
        self.metrics.watch("unmask_rows", "Sequences that wait or are under way.", lambda: self._rows)
        self.metrics.watch("unmask_rows_active", "Sequences that are under way.", lambda: self.active)
        self.metrics.watch("unmask_tokens_in_flight", "Tokens of these sequences.", lambda: self._tokens)

    def _batcher(self, lm: LM) -> Batcher:
        return lm.model.batcher(self.limits.batch, TOKEN_BUDGET.get(lm.model.device.type, 2048))

    # -- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Begin to work."""
        self._thread.start()

    @property
    def active(self) -> int:
        """Sequences under way."""
        return sum(len(line.rows) for line in self._lines.values())

    @property
    def rows(self) -> int:
        """Sequences that wait or are under way."""
        return self._rows

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, ticket: RequestHandle) -> None:
        """Take a request, or refuse it because there are too many."""
        with self._wake:
            if self.draining or self._stopping:
                raise Refusal(503, "the server is shutting down; try another one", "server_error", retry_after=5)
            room = self.limits.queue + self.limits.batch - self._rows
            if len(ticket.works) > room or ticket.tokens > self.limits.tokens - self._tokens:
                raise Refusal(
                    429,
                    "the server is busy and its queue is full; try again later",
                    "rate_limit_error",
                    code="queue_full",
                    retry_after=self._wait(),
                )
            self._arrivals += 1
            ticket.number = self._arrivals
            self._rows += len(ticket.works)
            self._tokens += ticket.tokens
            self._new.append(ticket)
            self._wake.notify()

    def cancel(self, ticket: RequestHandle) -> None:
        """Nobody waits for it any more."""
        with self._wake:
            if not ticket.over:
                ticket.cancelled = True
                self._wake.notify()

    def fail(self, message: str, kind: str = "shutdown") -> None:
        """Take no more requests, and end all that are there."""
        with self._wake:
            self.draining = self.ended = True
            self._ending = (message, kind)
            self._wake.notify()

    def stop(self, timeout: float = 30.0) -> None:
        """End the thread, and what still runs."""
        self.fail("the server is shutting down")
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _wait(self) -> int:
        """Seconds after which there may be room again."""
        return min(60, max(1, math.ceil(self._pace * self.limits.batch)))

    # -- in the thread of the engine ---------------------------------------------------------------------------------

    def _work(self) -> None:
        use_cores(self.threads)
        while True:
            with self._wake:
                while not self._new and not self._stopping and not any(map(self._due, self._lines.values())):
                    self._wake.wait()
                new, self._new = self._new, []
                ending, stopping = self._ending, self._stopping
                self._ending = None
            for ticket in new:
                self._lines[ticket.model].tickets.append(ticket)
            for line in self._lines.values():
                self._tidy(line, ending)
                self._admit(line)
                if line.batcher.busy:
                    self._step(line)
            if stopping and not self._new:
                return

    def _due(self, line: _Line) -> bool:
        return line.batcher.busy or bool(line.tickets)

    def _tidy(self, line: _Line, ending: tuple[str, str] | None) -> None:
        """Let go what nobody waits for, what took too long, and on the way out everything."""
        now = time.monotonic()
        for ticket in list(line.tickets):
            if ticket.cancelled:
                self._end(line, ticket, "cancelled")
            elif now > ticket.deadline:
                self._end(line, ticket, "timeout", "the request took longer than the server allows; ask for less")
            elif ending is not None:
                self._end(line, ticket, ending[1], ending[0])

    def _end(self, line: _Line, ticket: RequestHandle, why: str, message: str | None = None) -> None:
        """A request is over before it is done."""
        for row, (owner, _) in list(line.rows.items()):
            if owner is ticket:
                line.batcher.drop(row)
                del line.rows[row]
        self.metrics.sequences.add(ticket.left, end=why)
        self._free(ticket, ticket.left)
        self._close(line, ticket)
        if message is not None:
            ticket.put(Failed(message, why))

    def _free(self, ticket: RequestHandle, rows: int) -> None:
        with self._wake:
            self._rows -= rows
            ticket.left -= rows

    def _close(self, line: _Line, ticket: RequestHandle) -> None:
        line.tickets.remove(ticket)
        with self._wake:
            ticket.over = True
            self._tokens -= ticket.tokens

    def _admit(self, line: _Line) -> None:
        """Fill free places: first whoever has the fewest, then whoever came first."""
        while len(line.rows) < self.limits.batch:
            asking = [ticket for ticket in line.tickets if ticket.waiting]
            if not asking:
                return
            ticket = min(asking, key=lambda one: (len(one.active), one.number))
            index = ticket.waiting.pop()
            self._numbers += 1
            try:
                line.batcher.add(replace(ticket.works[index], row=self._numbers))
            except Exception:
                log.exception("a request could not be begun")
                self._end(line, ticket, "failed", "the server could not begin this request")
                continue
            ticket.active.add(index)
            line.rows[self._numbers] = (ticket, index)
            self.metrics.waited.observe(time.monotonic() - ticket.begun)

    def _step(self, line: _Line) -> None:
        begun = time.monotonic()
        try:
            states = line.batcher.step()
        except Exception:
            log.exception("a network call failed")
            line.batcher = self._batcher(line.lm)
            for ticket in {id(owner): owner for owner, _ in line.rows.values()}.values():
                self._end(line, ticket, "failed", "the server failed while it wrote this text")
            line.rows.clear()
            return
        self.metrics.busy.add(time.monotonic() - begun, model=line.name)
        if states:
            self.metrics.calls.add(model=line.name)
            self.metrics.rows.observe(len(states), model=line.name)
        for state, _ in states:
            if state.row not in line.rows:  # its request has ended in this round
                continue
            try:
                self._deliver(line, state)
            except Exception:
                log.exception("a text could not be read")
                self._end(line, line.rows[state.row][0], "failed", "the server failed while it wrote this text")

    def _deliver(self, line: _Line, state: State) -> None:
        ticket, index = line.rows[state.row]
        request, mask = ticket.works[index], line.lm.tokenizer.vocab.mask
        sample = line.lm.finished(request, state)
        if ticket.first is None:
            ticket.first = time.monotonic()
            self.metrics.first.observe(ticket.first - ticket.begun)
        if ticket.wants_steps:
            changes = tuple(changes_of(state, mask))
            fixed = state.fixed if sample is None else 0  # where the text ends, only `Done` says
            ticket.put(Step(index, state.step, state.t, state.calls, changes, state.canvas, fixed))
        if sample is None:
            return
        del line.rows[state.row]
        ticket.active.discard(index)
        now = time.monotonic()
        self._pace += 0.1 * (min(now - self._last, 10.0) - self._pace)
        self._last = now
        given = int((~request.writable(line.lm.tokenizer.vocab)).sum())
        self.metrics.tokens.add(given, kind="given")
        self.metrics.tokens.add(max(0, len(sample.ids) - given), kind="written")
        self.metrics.sequences.add(end="done")
        self._free(ticket, 1)
        if not ticket.left:
            self._close(line, ticket)
        ticket.put(Done(index, replace(sample, index=index), state.fixed, state.canvas))
