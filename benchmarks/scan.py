"""What does the selective scan of Mamba cost? One block of the paper's size: E = 256, N = 16, 2 rows, float32.

The fused scan against the plain loop, the chunked loop, the parallel scan of mambapy and, at the shortest length only,
the loop of transformers, whose backward is quadratic in the length. Forward, and forward with backward, in turns of
all of them. Times are medians, ratios are medians of the ratios of the turns. Then time a token (linear is a constant),
what autograd keeps for backward, and by how much a process of its own grows at the peak of forward and backward.

No scan can do with less than one exponential and one multiplication with addition for every number of every state. How
long these take on numbers that stay in the cache, over the best time of a forward: that is the share of the machine.

    python benchmarks/scan.py [--lengths 256,1024,4096] [--turns 7] [--keep-pages] [--json]
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from measure import median_seconds
from unmask.networks.kernels.scan import scan_chunked, scan_fused, scan_loop
from unmask.training.memory import keep_pages

ROWS, INNER, STATE = 2, 256, 16
FUSED, LOOP, HF = "fused", "plain loop", "transformers"
WAYS = (FUSED, LOOP, "chunked loop", "mambapy pscan", HF)
KINDS = ("forward", "forward + backward")
TARGET = 1.7  # times the plain loop in forward and backward


def inputs(length: int) -> list[Tensor]:
    """x, delta, A, B, C, D as a fresh block of Mamba has them."""
    g = torch.Generator().manual_seed(length)
    x, b, c = (torch.randn(ROWS, length, size, generator=g) for size in (INNER, STATE, STATE))
    delta = 1e-3 * 100 ** torch.rand(ROWS, length, INNER, generator=g)  # from 0.001 to 0.1
    a = -torch.arange(1, STATE + 1).float().repeat(INNER, 1)
    return [tensor.requires_grad_() for tensor in (x, delta, a, b, c, torch.ones(INNER))]


def way(name: str) -> Callable[..., Tensor]:
    """The output of a scan from its six inputs."""
    ours = {FUSED: scan_fused, LOOP: scan_loop, "chunked loop": scan_chunked}
    if name in ours:
        return lambda *given: ours[name](*given)[0]
    if name == HF:
        from transformers.models.mamba.modeling_mamba import mamba_selective_scan

        def slow(x: Tensor, delta: Tensor, a: Tensor, b: Tensor, c: Tensor, d: Tensor) -> Tensor:
            return mamba_selective_scan(x.mT, delta.mT, a, b.mT, c.mT, d).mT

        return slow
    from mambapy.mamba import MambaBlock

    return lambda *given: MambaBlock.selective_scan(None, *given)


def forward(scan: Callable[..., Tensor], given: Sequence[Tensor]) -> Tensor:
    with torch.no_grad():
        return scan(*given)


def both(scan: Callable[..., Tensor], given: Sequence[Tensor], dy: Tensor) -> tuple[Tensor, ...]:
    """The output and all six gradients."""
    y = scan(*given)
    return y.detach(), *torch.autograd.grad(y, given, dy)


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def furthest(found: Sequence[Tensor], truth: Sequence[Tensor]) -> float:
    """The largest difference of outputs and gradients, each against the largest number of its truth."""
    return max(float((a - b).abs().max() / b.abs().max()) for a, b in zip(found, truth, strict=True))


def kept_bytes(scan: Callable[..., Tensor], given: Sequence[Tensor]) -> int:
    """What autograd keeps between forward and backward, the inputs themselves not counted."""
    own = {tensor.untyped_storage().data_ptr() for tensor in given}
    found: dict[int, int] = {}

    def pack(tensor: Tensor) -> Tensor:
        storage = tensor.untyped_storage()
        found[storage.data_ptr()] = storage.nbytes()
        return tensor

    with torch.autograd.graph.saved_tensors_hooks(pack, lambda tensor: tensor):
        kept = scan(*given)  # alive while it is counted: no address is used twice
    del kept
    return sum(size for place, size in found.items() if place not in own)


def peak_bytes(name: str, length: int) -> int | None:
    """By how many bytes a process of its own grows at the peak of one forward and backward."""
    command = [sys.executable, __file__, "--peak-of", name, "--lengths", str(length)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def peak_here(name: str, length: int) -> int | None:
    """The growth, in this process; None where /proc does not say."""
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    if not refs.exists():
        return None

    def kib(field: str) -> int:
        return next(int(line.split()[1]) for line in status.read_text().splitlines() if line.startswith(field + ":"))

    scan, small, given = way(name), inputs(8), inputs(length)
    both(scan, small, torch.ones(ROWS, 8, INNER))  # libraries take buffers of their own once
    dy = torch.ones(ROWS, length, INNER)
    before = kib("VmRSS")
    refs.write_text("5")  # the high-water mark starts from here
    both(scan, given, dy)
    return 1024 * (kib("VmHWM") - before)


def least_seconds() -> float:
    """One exponential and one multiplication with addition, for one number of the state, in the cache."""
    h, decay, push = (torch.rand(2**14) for _ in range(3))
    out = torch.empty_like(h)

    def step() -> None:
        torch.exp(decay, out=out)
        torch.addcmul(push, out, h, out=out)

    return median_seconds(step, repeats=64) / h.numel()


class Bench:
    """All ways at one length."""

    def __init__(self, length: int, names: Sequence[str]) -> None:
        self.length, self.given = length, inputs(length)
        self.dy = torch.randn(ROWS, length, INNER, generator=torch.Generator().manual_seed(0))
        self.scans = {name: way(name) for name in names}
        truth = both(self.scans[LOOP], self.given, self.dy)
        self.gaps = {name: furthest(self._both(name), truth) for name in names}  # warms up, too
        self.seconds: dict[str, dict[str, list[float]]] = {name: {kind: [] for kind in KINDS} for name in names}
        self.least: list[float] = []

    def _both(self, name: str) -> tuple[Tensor, ...]:
        return both(self.scans[name], self.given, self.dy)

    def turn(self) -> None:
        """Every way once, one after the other: what slows the machine down slows all of them down."""
        self.least.append(least_seconds() * ROWS * self.length * INNER * STATE)
        for name, scan in self.scans.items():
            self.seconds[name]["forward"].append(timed(lambda scan=scan: forward(scan, self.given)))
            self.seconds[name]["forward + backward"].append(timed(lambda name=name: self._both(name)))

    def result(self) -> dict[str, Any]:
        return {
            "length": self.length,
            "least_seconds": self.least,
            "ways": {
                name: {
                    "seconds": self.seconds[name],
                    "difference": self.gaps[name],
                    "kept_bytes": kept_bytes(scan, self.given),
                    "peak_bytes": peak_bytes(name, self.length),
                }
                for name, scan in self.scans.items()
            },
        }


def ratio(above: Sequence[float], below: Sequence[float]) -> float:
    """The median of the ratios of the turns."""
    return statistics.median(a / b for a, b in zip(above, below, strict=True))


def show(result: dict[str, Any]) -> None:
    """The tables."""
    pages = "freed memory is kept" if result["kept_pages"] else "freed memory goes back to the kernel"
    print(
        f"E = {INNER}, N = {STATE}, {ROWS} rows, float32, threads {result['threads']}, torch {result['torch']}, "
        f"{result['turns']} turns, medians; {pages}"
    )
    for kind in KINDS:
        print(f"\n{kind:20}{'ms':>10}{'best':>8}{'this / fused':>14}{'µs a token':>12}{'difference':>12}")
        for part in result["lengths"]:
            fused, tokens = part["ways"][FUSED]["seconds"][kind], ROWS * part["length"]
            print(f"  L = {part['length']}")
            for name, own in part["ways"].items():
                taken, best = statistics.median(own["seconds"][kind]), min(own["seconds"][kind])
                print(
                    f"    {name:16}{1e3 * taken:10.1f}{1e3 * best:8.1f}{ratio(own['seconds'][kind], fused):14.2f}"
                    f"{1e6 * taken / tokens:12.2f}{own['difference']:12.0e}"
                )
    print(f"\n{'bytes a token':20}{'kept for backward':>20}{'peak':>12}")
    for part in result["lengths"]:
        print(f"  L = {part['length']}")
        for name, own in part["ways"].items():
            tokens = ROWS * part["length"]
            peak = "-" if own["peak_bytes"] is None else f"{own['peak_bytes'] / tokens:,.0f}"
            print(f"    {name:16}{own['kept_bytes'] / tokens:20,.0f}{peak:>12}")
    print()
    _show_summary(result["lengths"])


def _show_summary(parts: list[dict[str, Any]]) -> None:
    for part in parts:
        fused, loop = (part["ways"][name]["seconds"] for name in (FUSED, LOOP))
        times = [ratio(loop[kind], fused[kind]) for kind in KINDS]
        target = f" (target {TARGET})" if part["length"] == 1024 else ""
        print(
            f"L = {part['length']}: plain loop / fused = {times[0]:.2f} forward, {times[1]:.2f} with backward{target}; "
            f"{min(part['least_seconds']) / min(fused['forward']):.2f} of the machine in forward"
        )
    first, last = parts[0], parts[-1]
    if len(parts) > 1:
        for kind in KINDS:
            cost = ratio(last["ways"][FUSED]["seconds"][kind], first["ways"][FUSED]["seconds"][kind])
            longer = last["length"] / first["length"]
            print(f"{longer:g} times the length costs the fused scan {cost:.1f} times the time of {kind}")


def lengths(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers of at least 1, such as 256,1024")
    return sorted(values)


def main(argv: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--lengths", type=lengths, default="256,1024,4096")
    parser.add_argument("--turns", type=int, default=7)
    parser.add_argument("--keep-pages", action="store_true", help="freed memory is used again, as in training")
    parser.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    parser.add_argument("--peak-of", choices=WAYS, help=argparse.SUPPRESS)  # what the memory's own process is told
    args = parser.parse_args(argv)
    if args.turns < 1:
        parser.error(f"argument --turns: {args.turns} must be at least 1")
    if args.peak_of:
        print(json.dumps(peak_here(args.peak_of, args.lengths[0])))
        return
    result: dict[str, Any] = {
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "turns": args.turns,
        "kept_pages": args.keep_pages and keep_pages(),
    }
    shortest = args.lengths[0]
    benches = [Bench(length, [n for n in WAYS if n != HF or length == shortest]) for length in args.lengths]
    for turn in range(args.turns):
        for bench in benches:
            bench.turn()
        print(f"turn {turn + 1} of {args.turns}", file=sys.stderr)
    result["lengths"] = [bench.result() for bench in benches]
    if args.json:
        print(json.dumps(result))
    else:
        show(result)


if __name__ == "__main__":
    main()
