"""Records of `sampling.py`: from timed parts and counted calls to whole runs, and the table."""

from __future__ import annotations

import statistics
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

GIB = 2**30
TARGETS = {("owt", 16, 1000): 4.0, ("owt", 1, 10_000): 8.0}  # times faster than the cached sampler


@dataclass(frozen=True)
class Counts:
    """Network calls of whole runs."""

    cached: int
    plan: int  # calls of the batch: those of the sequence with the most events
    rows: int  # summed over the sequences
    full: int  # calls with every sequence under way


@dataclass
class Piece:
    """All that was measured of one network at one batch size, in one run of the machine."""

    network: str
    batch: int
    blocks: int
    width: int
    vocab: int
    length: int
    parameters: int
    flops: float  # of the trunk's matrix products in one call
    threads: int
    torch: str
    style: str  # of the other two samplers
    kept_pages: bool
    counts: dict[str, Counts]  # by T
    memory: int | None  # bytes by which a process grows in a call of the plan
    lean: bool = False  # one call of the plan was timed for all T
    seconds: dict[str, list[float]] = field(default_factory=dict)  # by part, one value a round
    peaks: list[float] = field(default_factory=list)  # sgemm FLOP/s, one value a round
    complete: dict[str, tuple[float, int]] = field(default_factory=dict)  # "sampler T" -> (seconds, network calls)

    @staticmethod
    def read(fields: dict[str, Any]) -> Piece:
        """From JSON."""
        counts = {steps: Counts(**values) for steps, values in fields["counts"].items()}
        complete = {name: (float(run[0]), int(run[1])) for name, run in fields["complete"].items()}
        return Piece(**{**fields, "counts": counts, "complete": complete})

    def median(self, part: str) -> float:
        """Seconds of a part."""
        return statistics.median(self.seconds[part])

    @property
    def whole_tensor(self) -> int:
        """Bytes of one float32 (B, L, V) tensor."""
        return 4 * self.batch * self.length * self.vocab


class Cell(NamedTuple):
    """A whole run."""

    calls: int
    seconds: float
    extrapolated: bool

    def __str__(self) -> str:
        digits = 0 if self.seconds >= 100 else 1 if self.seconds >= 10 else 2
        return f"{self.calls:6d} {'~' if self.extrapolated else ' '}{self.seconds:11,.{digits}f} s"


def whole_run(piece: Piece, sampler: str, steps: int, seconds: Callable[[str], float]) -> Cell:
    """A whole run from the seconds of its parts."""
    counts = piece.counts[str(steps)]
    if sampler == "textbook":
        return Cell(steps, steps * (seconds("predict") + seconds("draw")), True)
    if sampler == "cached":
        return Cell(counts.cached, counts.cached * seconds("predict") + steps * seconds("draw, cache kept"), True)
    return Cell(counts.plan, counts.rows * seconds(f"plan {steps}") / piece.batch, True)


def extrapolate(piece: Piece, sampler: str, steps: int) -> Cell:
    """A whole run from the medians."""
    return whole_run(piece, sampler, steps, piece.median)


def cell(piece: Piece, sampler: str, steps: int) -> Cell:
    """A whole run, as it was if it was made."""
    if run := piece.complete.get(f"{sampler} {steps}"):
        return Cell(run[1], run[0], False)
    return extrapolate(piece, sampler, steps)


def round_ratios(piece: Piece, steps: int) -> list[float]:
    """Cached over plan, from the parts of one round each."""

    def at(sampler: str, i: int) -> float:
        return whole_run(piece, sampler, steps, lambda part: piece.seconds[part][i]).seconds

    return [at("cached", i) / at("plan", i) for i in range(len(piece.peaks))]


def show(pieces: list[Piece]) -> None:
    """Print every piece; times are compared within a piece only, where they were measured in turns."""
    order = {"owt": 0, "10m": 1}
    for piece in sorted(pieces, key=lambda piece: (order.get(piece.network, 2), piece.batch)):
        if piece.seconds:
            _table(piece)
            _parts(piece)
            _memory(piece)
            _checks(piece)


def _table(piece: Piece) -> None:
    pages = ", freed memory kept" if piece.kept_pages else ""
    print(
        f"\n{piece.network}: {piece.blocks} x {piece.width}, V = {piece.vocab:,}, L = {piece.length}, "
        f"{piece.parameters / 1e6:.1f}M parameters, batch {piece.batch}; {len(piece.peaks)} timed calls a part, "
        f"baselines {piece.style}, {piece.threads} threads, torch {piece.torch}{pages}; ~ extrapolated"
        + ("; one call of the plan timed for all T" if piece.lean else "")
    )
    print(f"{'':>7}  {'textbook':^21} {'cached':^21} {'reveal plan':^31} {'plan is faster than':>20}")
    print(
        f"{'T':>7}  " + f"{'calls':>6} {'time':>14} " * 2 + f"{'calls':>6} {'time':>14} {'row calls':>9} "
        f"{'textbook':>10} {'cached':>9}"
    )
    for key, counts in piece.counts.items():
        textbook, cached, plan = (cell(piece, sampler, int(key)) for sampler in ("textbook", "cached", "plan"))
        low, high = _quartiles(round_ratios(piece, int(key)))
        faster = (
            f"{textbook.seconds / plan.seconds:9.1f}x {cached.seconds / plan.seconds:8.1f}x  ({low:.1f} .. {high:.1f})"
        )
        print(f"{key:>7}  {textbook} {cached} {plan} {counts.rows:9d} {faster}")
        if target := TARGETS.get((piece.network, piece.batch, int(key))):
            met = "met" if cached.seconds / plan.seconds >= target else "not met"
            print(f"{'':>7}  target: at least {target:.0f} times faster than the cached sampler: {met}")


def _parts(piece: Piece) -> None:
    peak = max(piece.peaks)
    print(
        f"parts in seconds, median (least; quartiles); the machine's sgemm peak in this run is {peak / 1e9:.1f} GFLOP/s"
    )
    for part, values in piece.seconds.items():
        low, high = _quartiles(values)
        line = f"  {part:18s} {statistics.median(values):9.4f}  ({min(values):.4f}; {low:.4f} .. {high:.4f})"
        if part.startswith("plan"):
            trunks = piece.seconds.get("trunk")
            share = trunks and statistics.median(a / b for a, b in zip(values, trunks, strict=True))
            of_trunk = f"{share:.2f} of the trunk; " if share else ""
            of_round = statistics.median(piece.flops / a / b for a, b in zip(values, piece.peaks, strict=True))
            of_peak = piece.flops / statistics.median(values) / peak
            line += f"  {of_trunk}{of_peak:.2f} of the peak ({of_round:.2f} of its round's sgemm)"
        print(line)


def _quartiles(values: list[float]) -> tuple[float, float]:
    if len(values) == 1:
        return values[0], values[0]
    low, _, high = statistics.quantiles(values, n=4, method="inclusive")
    return low, high


def _memory(piece: Piece) -> None:
    if piece.memory is None:
        print("memory: not measured, there is no /proc here")
        return
    print(
        f"memory: a call of the plan grows its process by {piece.memory / GIB:.3f} GiB at the peak, "
        f"{piece.memory / piece.whole_tensor:.2f} of one (B, L, V) tensor ({piece.whole_tensor / GIB:.3f} GiB)"
    )


def _checks(piece: Piece) -> None:
    for name, (seconds, calls) in piece.complete.items():
        sampler, steps = name.split()
        guess = extrapolate(piece, sampler, int(steps))
        print(
            f"check: {sampler} T = {steps} ran completely: {seconds:.2f} s and {calls} calls; extrapolated "
            f"{guess.seconds:.2f} s ({guess.seconds / seconds - 1:+.0%}) and {guess.calls} calls"
        )
