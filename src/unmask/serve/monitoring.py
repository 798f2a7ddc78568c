"""Figures of a running server in Prometheus' text format."""

from __future__ import annotations

import bisect
import threading
from collections.abc import Callable, Iterator, Sequence

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
FILL = (1, 2, 4, 8, 16, 32, 64, 128, 256)
Labels = tuple[tuple[str, str], ...]


class Metric:
    """One name with its values, each under its labels."""

    kind = "counter"

    def __init__(self, name: str, text: str) -> None:
        self.name, self.text, self.lock = name, text, threading.Lock()
        self.values: dict[Labels, float] = {}

    def add(self, value: float = 1, **labels: str) -> None:
        """Count."""
        key = tuple(sorted(labels.items()))
        with self.lock:
            self.values[key] = self.values.get(key, 0) + value

    def get(self, **labels: str) -> float:
        """What was counted."""
        return self.values.get(tuple(sorted(labels.items())), 0)

    def lines(self) -> Iterator[str]:
        """The samples."""
        with self.lock:
            values = dict(self.values)
        for labels, value in sorted(values.items()):
            yield _line(self.name, labels, value)


class Gauge(Metric):
    """A value that is asked for when somebody looks."""

    kind = "gauge"

    def __init__(self, name: str, text: str, read: Callable[[], float]) -> None:
        super().__init__(name, text)
        self.read = read

    def lines(self) -> Iterator[str]:
        """The value now."""
        yield _line(self.name, (), self.read())


class Histogram(Metric):
    """How often a value was at most so much."""

    kind = "histogram"

    def __init__(self, name: str, text: str, bounds: Sequence[float]) -> None:
        super().__init__(name, text)
        self.bounds = tuple(bounds)
        self.counts: dict[Labels, list[int]] = {}

    def observe(self, value: float, **labels: str) -> None:
        """One more value."""
        key = tuple(sorted(labels.items()))
        with self.lock:
            counts = self.counts.setdefault(key, [0] * (len(self.bounds) + 1))
            counts[bisect.bisect_left(self.bounds, value)] += 1
            self.values[key] = self.values.get(key, 0) + value

    def lines(self) -> Iterator[str]:
        """Cumulative counts, the sum and the number."""
        with self.lock:
            found = {labels: list(counts) for labels, counts in self.counts.items()}
            sums = dict(self.values)
        for labels, counts in sorted(found.items()):
            total = 0
            for bound, count in zip((*self.bounds, float("inf")), counts, strict=True):
                total += count
                upper = "+Inf" if bound == float("inf") else f"{bound:g}"
                yield _line(f"{self.name}_bucket", (*labels, ("le", upper)), total)
            yield _line(f"{self.name}_sum", labels, sums[labels])
            yield _line(f"{self.name}_count", labels, total)


class Metrics:
    """All figures of a server."""

    def __init__(self) -> None:
        self.requests = Metric("unmask_requests_total", "Requests that were answered, by path and status.")
        self.seconds = Histogram("unmask_request_seconds", "Time from a request to the end of its answer.", SECONDS)
        self.first = Histogram("unmask_first_event_seconds", "Time from a request to its first written token.", SECONDS)
        self.waited = Histogram("unmask_queue_seconds", "Time that a sequence waited for its place.", SECONDS)
        self.tokens = Metric("unmask_tokens_total", "Tokens of finished sequences: given and written.")
        self.sequences = Metric("unmask_sequences_total", "Sequences by their end: done, cancelled, timeout, failed.")
        self.calls = Metric("unmask_network_calls_total", "Network calls, each for all sequences of a round.")
        self.rows = Histogram("unmask_batch_rows", "Sequences that a network call took along.", FILL)
        self.busy = Metric("unmask_network_seconds_total", "Time that was spent in network calls.")
        self.gauges: list[Gauge] = []

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A value to be read when somebody asks."""
        self.gauges.append(Gauge(name, text, read))

    def render(self) -> str:
        """The whole page."""
        known: list[Metric] = [
            self.requests,
            self.seconds,
            self.first,
            self.waited,
            self.tokens,
            self.sequences,
            self.calls,
            self.rows,
            self.busy,
            *self.gauges,
        ]
        out: list[str] = []
        for metric in known:
            out += [f"# HELP {metric.name} {metric.text}", f"# TYPE {metric.name} {metric.kind}", *metric.lines()]
        return "\n".join(out) + "\n"


def memory() -> float:
    """Bytes of this process in memory, where the system tells."""
    try:
        with open("/proc/self/statm", encoding="ascii") as file:
            return int(file.read().split()[1]) * 4096.0
    except OSError:
        return float("nan")


def _line(name: str, labels: Labels, value: float) -> str:
    shown = ",".join(f'{key}="{_escaped(text)}"' for key, text in labels)
    number = f"{value:.17g}" if value == value else "NaN"
    return f"{name}{{{shown}}} {number}" if shown else f"{name} {number}"


def _escaped(text: str) -> str:
    return text.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n")
