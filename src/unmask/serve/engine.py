"""One thread that owns the networks: requests join and leave between network calls.

Every model has a batcher (`sampling/batcher.py`). A step takes all its active sequences through the network together;
models take turns. A free place goes to the request that has the fewest, then to the oldest, so that a request for many
samples does not hold up the others. A long sequence goes through the network less often than short ones. A model that
caches what it has read begins a sequence once its keys and values fit beside those of the others. In what is left of
the limit it keeps those of sequences that have ended, for requests that begin like them (`models/prefix_cache.py`).
"""

from __future__ import annotations

import logging
import math
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace

import torch

from ..lm import LM
from ..models.prefix_cache import PrefixCache
from ..sampling import Batcher, Request
from ..sampling.trace import changes_of
from ..training.memory import give_back
from ..types import State
from .handles import Done, Failed, RequestHandle, Step
from .limits import Limits, Refusal, cache_for
from .monitoring import Metrics
from .threads import interruptible, use_cores

IDLE = 2.0  # seconds without a request after which freed memory is given back to the system
TOKEN_BUDGET = {"cpu": 32, "cuda": 2048}  # tokens that cost next to nothing compared with the call itself
log = logging.getLogger("unmask.serve")


@dataclass
class _ModelQueue:
    """A model, its batcher, and the requests for it."""

    name: str
    lm: LM
    batcher: Batcher
    prefixes: PrefixCache
    handles: list[RequestHandle]
    rows: dict[int, tuple[RequestHandle, int]]  # under way
    cache_peak: int = 0  # bytes


class Engine:
    """All models and all requests."""

    def __init__(
        self,
        lms: Mapping[str, LM],
        limits: Limits | None = None,
        clock: Callable[[], float] = time.monotonic,
        *,
        prefix_cache: bool = True,
    ) -> None:
        self.limits, self.metrics, self.clock, self.prefix_cache = limits or Limits(), Metrics(), clock, prefix_cache
        self.lms = dict(lms)
        if self.limits.cache is None:
            cached = [lm.model.cache_bytes(1) for lm in lms.values()]
            devices = {lm.model.device for lm in lms.values()}
            self.limits = replace(self.limits, cache=cache_for(devices, sum(map(bool, cached))))
        self.threads = torch.get_num_threads()
        for lm in lms.values():
            lm.model.eval()
            interruptible(lm.model)
        self._queues = {name: _ModelQueue(name, lm, *self._batcher(lm), [], {}) for name, lm in lms.items()}
        self._wake = threading.Condition()
        self._new: list[RequestHandle] = []
        self._rows = self._tokens = self._alternatives = self._numbers = self._arrivals = 0
        self._ending: tuple[str, str] | None = None  # why all requests end: message, kind
        self._pace = 0.0  # seconds between two finished sequences, lately
        self._last = self.clock()
        self._stopping = self.draining = self.ended = False
        self._thread = threading.Thread(target=self._run, name="unmask-engine", daemon=True)
        self.metrics.watch("unmask_rows", "Sequences that wait or are under way.", lambda: self.rows)
        self.metrics.watch("unmask_rows_active", "Sequences that are under way.", lambda: self.active)
        self.metrics.watch("unmask_tokens_in_flight", "Tokens of these sequences.", lambda: self._tokens)

    def _batcher(self, lm: LM) -> tuple[Batcher, PrefixCache]:
        """A batcher, and what it keeps of sequences that have ended."""
        budget, prefixes = TOKEN_BUDGET.get(lm.model.device.type, 2048), PrefixCache(self.limits.cache or 0)
        return lm.model.batcher(self.limits.batch, budget, prefixes if self.prefix_cache else None), prefixes

    # -- from any thread ---------------------------------------------------------------------------------------------

    def start(self) -> None:
        """Start the thread."""
        self._thread.start()

    @property
    def active(self) -> int:
        """Sequences under way."""
        return sum(len(queue.rows) for queue in self._queues.values())

    @property
    def rows(self) -> int:
        """Sequences that wait or are under way."""
        return self._rows

    @property
    def alive(self) -> bool:
        """Whether the thread runs."""
        return self._thread.is_alive()

    def submit(self, handle: RequestHandle) -> None:
        """Accept a request, or refuse it because there are too many."""
        with self._wake:
            if self.draining or self._stopping:
                raise Refusal(503, "the server is shutting down; try another one", "server_error", retry_after=5)
            free = self.limits.queue + self.limits.batch - self._rows
            tokens, alternatives = self._tokens + handle.tokens, self._alternatives + handle.alternatives
            full = tokens > self.limits.tokens or alternatives > self.limits.alternatives
            if full or len(handle.requests) > free:
                raise Refusal(
                    429,
                    "the server is busy and its queue is full; try again later",
                    "rate_limit_error",
                    code="queue_full",
                    retry_after=self._wait(),
                )
            self._arrivals += 1
            handle.number = self._arrivals
            self._rows += len(handle.requests)
            self._tokens, self._alternatives = tokens, alternatives
            self._new.append(handle)
            self._wake.notify()

    def cancel(self, handle: RequestHandle) -> None:
        """Cancel a request whose client has gone."""
        with self._wake:
            if not handle.over:
                handle.cancelled = True
                self._wake.notify()

    def fail(self, message: str, kind: str = "shutdown") -> None:
        """Accept no more requests, and end all that wait or are under way."""
        with self._wake:
            self.draining = self.ended = True
            self._ending = (message, kind)
            self._wake.notify()

    def stop(self, timeout: float = 30.0) -> None:
        """End the thread, and all requests that are left."""
        self.fail("the server is shutting down")
        with self._wake:
            self._stopping = True
            self._wake.notify()
        if self._thread.is_alive():
            self._thread.join(timeout)

    def _wait(self) -> int:
        """Seconds after which a retry may succeed."""
        return min(60, max(1, math.ceil(self._pace * self.limits.batch)))

    # -- in the thread of the engine ---------------------------------------------------------------------------------

    def _run(self) -> None:
        use_cores(self.threads)
        tidy = True  # whether freed memory was given back since the last request
        while True:
            with self._wake:
                while not self._ready() and self._wake.wait(None if tidy else IDLE):
                    pass
                idle = not self._ready()
                new, self._new = self._new, []
                ending, stopping = self._ending, self._stopping
                self._ending = None
            tidy = idle
            if idle:
                give_back()
                continue
            for handle in new:
                self._queues[handle.model].handles.append(handle)
            for queue in self._queues.values():
                self._tidy(queue, ending)
                self._admit(queue)
                if queue.batcher.busy:
                    self._step(queue)
            if stopping and not self._new:
                return

    def _ready(self) -> bool:
        return bool(self._new) or self._stopping or any(map(self._due, self._queues.values()))

    def _due(self, queue: _ModelQueue) -> bool:
        return queue.batcher.busy or bool(queue.handles)

    def _tidy(self, queue: _ModelQueue, ending: tuple[str, str] | None) -> None:
        """End requests that were cancelled or took too long; all of them when the server stops."""
        now = self.clock()
        for handle in list(queue.handles):
            if handle.cancelled:
                self._end(queue, handle, "cancelled")
            elif now > handle.deadline:
                self._end(queue, handle, "timeout", "the request took longer than the server allows; ask for less")
            elif ending is not None:
                self._end(queue, handle, ending[1], ending[0])

    def _end(self, queue: _ModelQueue, handle: RequestHandle, why: str, message: str | None = None) -> None:
        """End a request before it is finished."""
        for row, (owner, _) in list(queue.rows.items()):
            if owner is handle:
                queue.batcher.drop(row)
                del queue.rows[row]
        self.metrics.sequences.labels(end=why).inc(handle.left)
        self._free(handle, handle.left)
        self._close(queue, handle)
        self._weigh(queue)
        if message is not None:
            handle.put(Failed(message, why))

    def _free(self, handle: RequestHandle, rows: int) -> None:
        with self._wake:
            self._rows -= rows
            handle.left -= rows

    def _close(self, queue: _ModelQueue, handle: RequestHandle) -> None:
        queue.handles.remove(handle)
        with self._wake:
            handle.over = True
            self._tokens -= handle.tokens
            self._alternatives -= handle.alternatives

    def _admit(self, queue: _ModelQueue) -> None:
        """Fill free places: first the request that has the fewest, then the oldest."""
        while len(queue.rows) < self.limits.batch:
            asking = [handle for handle in queue.handles if handle.waiting]
            if not asking:
                return
            handle = min(asking, key=lambda waiting: (len(waiting.active), waiting.number))
            if not self._make_room(queue, handle.requests[handle.waiting[-1]]):
                return
            index = handle.waiting.pop()
            self._numbers += 1
            try:
                queue.batcher.add(replace(handle.requests[index], row=self._numbers))
            except Exception:
                log.exception("a request could not be begun")
                self._end(queue, handle, "failed", "the server could not begin this request")
                continue
            handle.active.add(index)
            queue.rows[self._numbers] = (handle, index)
            self.metrics.waited.observe(self.clock() - handle.begun)

    def _make_room(self, queue: _ModelQueue, request: Request) -> bool:
        """Whether the cache of one more sequence fits; sequences side by side take as much as the largest of them.

        What is kept of those that have ended makes room for it.
        """
        assert self.limits.cache is not None
        others = (owner.requests[index] for owner, index in queue.rows.values())
        largest = max(queue.lm.cache_bytes(one) for one in (request, *others))
        left = self.limits.cache - largest * (len(queue.rows) + 1)
        if queue.rows and left < 0:
            return False
        queue.prefixes.resize(max(0, left))
        return True

    def _weigh(self, queue: _ModelQueue) -> None:
        """Report how large the cache of a model is."""
        held = queue.batcher.model.held_bytes
        queue.cache_peak = max(queue.cache_peak, held)
        self.metrics.cache.labels(model=queue.name).set(held)
        self.metrics.cache_peak.labels(model=queue.name).set(queue.cache_peak)
        prefixes = queue.prefixes
        self.metrics.prefix_cache.labels(model=queue.name).set(prefixes.bytes)
        self.metrics.prefix_reused.labels(model=queue.name).inc(prefixes.reused)
        self.metrics.prefix_dropped.labels(model=queue.name).inc(prefixes.dropped)
        prefixes.reused = prefixes.dropped = 0

    def _step(self, queue: _ModelQueue) -> None:
        begun = self.clock()
        try:
            states = queue.batcher.step()
        except Exception:
            log.exception("a network call failed")
            queue.batcher, queue.prefixes = self._batcher(queue.lm)
            for handle in {id(owner): owner for owner, _ in queue.rows.values()}.values():
                self._end(queue, handle, "failed", "the server failed while it wrote this text")
            queue.rows.clear()
            return
        self.metrics.busy.labels(model=queue.name).inc(self.clock() - begun)
        self._weigh(queue)
        if states:
            self.metrics.calls.labels(model=queue.name).inc()
            self.metrics.rows.labels(model=queue.name).observe(len(states))
        for state, _ in states:
            if state.row not in queue.rows:  # its request has ended in this step
                continue
            if state.error is not None:
                log.error("a text could not be written: %s", state.error)
                self._end(queue, queue.rows[state.row][0], "failed", str(state.error))
                continue
            try:
                self._deliver(queue, state)
            except Exception:
                log.exception("a text could not be read")
                self._end(queue, queue.rows[state.row][0], "failed", "the server failed while it wrote this text")

    def _deliver(self, queue: _ModelQueue, state: State) -> None:
        handle, index = queue.rows[state.row]
        request, vocab = handle.requests[index], queue.lm.tokenizer.vocab
        sample = queue.lm.finished(request, state)
        if handle.first is None:
            handle.first = self.clock()
            self.metrics.first.observe(handle.first - handle.begun)
        if handle.wants_steps:
            changes = tuple(changes_of(state, vocab.mask))
            fixed = state.fixed if sample is None else 0  # only `Done` says where the text ends
            handle.put(Step(index, state.step, state.t, state.calls, changes, state.canvas, fixed, state.block))
        if sample is None:
            return
        del queue.rows[state.row]
        handle.active.discard(index)
        now = self.clock()
        self._pace += 0.1 * (min(now - self._last, 10.0) - self._pace)
        self._last = now
        given = int((~request.writable(vocab)).sum())
        self.metrics.tokens.labels(kind="given").inc(given)
        self.metrics.tokens.labels(kind="written").inc(max(0, len(sample.ids) - given))
        self.metrics.sequences.labels(end="done").inc()
        self._free(handle, 1)
        if not handle.left:
            self._close(queue, handle)
        handle.put(Done(index, replace(sample, index=index), state.fixed, state.canvas))
