"""Shared by the benchmarks: the machine's own matrix-multiply peak, and robust timing."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import torch


def sgemm_peak(seconds: float = 2.0) -> float:
    """Best float32 FLOP/s over square products and the shapes of a 768-wide transformer."""
    best = 0.0
    for m, k, n in ((2048, 2048, 2048), (4096, 4096, 4096), (1024, 768, 3072), (1024, 3072, 768)):
        a, b = torch.randn(m, k), torch.randn(k, n)
        a @ b
        end = time.perf_counter() + seconds / 4
        while True:
            start = time.perf_counter()
            a @ b
            now = time.perf_counter()
            best = max(best, 2 * m * k * n / (now - start))
            if now > end:
                break
    return best


def median_seconds(call: Callable[[], object], repeats: int, warmup: int = 1) -> float:
    """Median wall time of a call."""
    for _ in range(warmup):
        call()
    times = []
    for _ in range(repeats):
        start = time.perf_counter()
        call()
        times.append(time.perf_counter() - start)
    return statistics.median(times)
