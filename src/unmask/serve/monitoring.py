"""Metrics of a running server, for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, generate_latest
from prometheus_client.metrics_core import Metric

SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 30, 60, 120, 300)
ROWS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Registry(CollectorRegistry):
    """The metrics of one server, without the time at which each of them was created."""

    def collect(self) -> Iterable[Metric]:
        """All metrics with their samples."""
        for metric in super().collect():
            metric.samples = [sample for sample in metric.samples if not sample.name.endswith("_created")]
            yield metric


class Metrics:
    """All metrics of a server; every server has a separate registry, even if several run in one process."""

    def __init__(self) -> None:
        self.registry = Registry()
        ProcessCollector(registry=self.registry)

        def counter(name: str, text: str, *labels: str) -> Counter:
            return Counter(name, text, labels, registry=self.registry)

        def histogram(name: str, text: str, buckets: tuple[float, ...], *labels: str) -> Histogram:
            return Histogram(name, text, labels, registry=self.registry, buckets=buckets)

        self.requests = counter(
            "unmask_requests_total", "Requests that were answered, by path and status.", "path", "method", "code"
        )
        self.seconds = histogram(
            "unmask_request_seconds", "Time from a request to the end of its answer.", SECONDS, "path"
        )
        self.first = histogram("unmask_first_event_seconds", "Time from a request to its first written token.", SECONDS)
        self.waited = histogram("unmask_queue_seconds", "Time that a sequence waited for its place.", SECONDS)
        self.tokens = counter("unmask_tokens_total", "Tokens of finished sequences: given and written.", "kind")
        self.sequences = counter(
            "unmask_sequences_total", "Sequences by their end: done, cancelled, timeout, failed.", "end"
        )
        self.calls = counter("unmask_network_calls_total", "Network calls, each for all sequences of a step.", "model")
        self.rows = histogram("unmask_batch_rows", "Sequences per network call.", ROWS, "model")
        self.cache = Gauge(
            "unmask_cache_bytes", "Keys and values of sequences under way.", ["model"], registry=self.registry
        )
        self.cache_peak = Gauge(
            "unmask_cache_peak_bytes", "The most that they ever were.", ["model"], registry=self.registry
        )
        self.prefix_cache = Gauge(
            "unmask_prefix_cache_bytes",
            "Keys and values of sequences that have ended, kept for requests that begin like them.",
            ["model"],
            registry=self.registry,
        )
        self.prefix_reused = counter(
            "unmask_prefix_tokens_reused_total", "Tokens of prompts that were not read again.", "model"
        )
        self.prefix_dropped = counter(
            "unmask_prefix_dropped_total", "Ended sequences that were dropped for lack of room.", "model"
        )
        self.busy = counter("unmask_network_seconds_total", "Time that was spent in network calls.", "model")

    def watch(self, name: str, text: str, read: Callable[[], float]) -> None:
        """A gauge whose value is read when the metrics are collected."""
        Gauge(name, text, registry=self.registry).set_function(read)

    def render(self) -> bytes:
        """Everything in Prometheus' text format."""
        return generate_latest(self.registry)
