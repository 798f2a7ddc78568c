"""Generated DNA against real DNA: figures, each beside what two sets of real sequences differ by, and a page of them.

Distances between samples are never 0. So real sequences are dealt into two halves. One is what both others are
compared with; from the other come sets of real sequences as large as the generated one, and what these are away from
the first half is the noise floor: a generator cannot do better.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..files import write_text
from ..jsonable import to_json
from ..types import UserError
from .kmers import GC_BINS, LONGEST_RUN, Counts, by_k, distances, pieces
from .picture import Series, chart, decades, even, round_up

Sequences = Callable[[], Iterable[tuple[str, str]]]  # reads them from the beginning
MOST_FLOORS = 10  # sets of real sequences that are compared with the first half
GC_STEP = 20  # bins of `Counts.gc` that are one point of the plot: 2 %


@dataclass(frozen=True)
class Comparison:
    """Counts of the generated sequences, of the half of the real ones, and of the sets that give the floor."""

    generated: Counts
    real: Counts
    floors: list[Counts]
    length: int | None  # to which real sequences were cut
    whole: dict[str, Any]  # figures of all real sequences

    def results(self) -> dict[str, Any]:
        """All figures, for JSON."""
        own = distances(self.generated, self.real)
        floors = [distances(floor, self.real) for floor in self.floors]
        compared = {}
        for name, value in own.items():
            drawn = [floor[name] for floor in floors]
            compared[name] = {
                "generated": value,
                "floor": float(np.mean(drawn)) if drawn else None,
                "floor_spread": float(np.std(drawn, ddof=1)) if len(drawn) > 1 else None,
            }
        return {
            "generated": self.generated.facts(),
            "real": self.whole,
            "distances": compared,
            "by_k": {"generated": by_k(self.generated), "real": self._real_by_k()},
            "protocol": {
                "real_cut_to": self.length,
                "real_half": self.real.sequences,
                "floor_sets": len(self.floors),
                "floor_sequences": self.floors[0].sequences if self.floors else 0,
                "distances": "Jensen-Shannon divergence of spectra, in bits; of gc the Wasserstein distance",
            },
        }

    def _real_by_k(self) -> list[dict[str, float]]:
        """Asymmetry and entropies of small samples are biased: means over sets of the generated size."""
        sets = [by_k(floor) for floor in self.floors] or [by_k(self.real)]
        return [
            {name: float(np.mean([row[name] for row in rows])) for name in rows[0]} for rows in zip(*sets, strict=True)
        ]


def compare(generated: Sequences, real: Sequences, k: int = 6) -> Comparison:
    """Count both; real sequences that are longer than the generated ones are cut to the median of their lengths."""
    own, lengths = Counts(k), []
    for rows in pieces(generated()):
        own.add(rows)
        lengths.append(rows.shape[1])
    if not own.bases:
        raise UserError("the generated sequences have no base in them; give at least one with A, C, G or T")
    length = int(np.median(lengths))
    total = sum(len(rows) for rows in pieces(real(), length))
    if not total:
        raise UserError("there are no real sequences to compare with; give at least one")
    first, floors, everything = _deal(real, length, total, own, k)
    return Comparison(own, first, floors, length, everything.facts())


def _deal(real: Sequences, length: int, total: int, own: Counts, k: int) -> tuple[Counts, list[Counts], Counts]:
    """Every second piece into the first half, and of the others as many sets of the generated size as there are."""
    spare = total // 2
    size = min(max(1, round(own.letters / length)), max(1, spare))  # pieces of a set
    sets = min(MOST_FLOORS, spare // size) if spare else 0
    member = np.full(max(1, spare), -1)
    if sets:
        chosen = (np.arange(sets * size) * spare) // (sets * size)  # evenly over the genome
        member[chosen] = np.arange(sets * size) % sets
    first, floors, everything = Counts(k), [Counts(k) for _ in range(sets)], Counts(k)
    for at, rows in _numbered(pieces(real(), length)):
        everything.add(rows)
        number = at + np.arange(len(rows))
        half = (number % 2 == 0) | (spare == 0)
        first.add(rows[half])
        for i, floor in enumerate(floors):
            floor.add(rows[~half & (member[np.minimum(number // 2, len(member) - 1)] == i)])
    return first, floors, everything


def _numbered(parts: Iterator[np.ndarray]) -> Iterator[tuple[int, np.ndarray]]:
    at = 0
    for rows in parts:
        yield at, rows
        at += len(rows)


# -- the page --------------------------------------------------------------------------------------------------------

FACTS = {
    "sequences": "sequences", "bases": "bases (A, C, G, T)", "unknown": "share of N", "gc": "GC",
    "gc_spread": "standard deviation of the GC of a sequence", "cpg_observed_expected": "CpG, observed / expected",
    "mean_run": "mean length of a run of one base", "runs_of_5_and_more": "share of runs of 5 and more",
    "longest_run": "longest run",
}  # fmt: skip


def write_report(found: Comparison, out: str | Path, names: tuple[str, str]) -> Path:
    """report.md, results.json and the plots, in a folder; the path of the page."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    results = found.results()
    results["protocol"] |= {"generated_file": names[0], "real_file": names[1], "k": found.generated.k}
    pictures = plots(found)
    files = {"results.json": to_json(results, indent=1) + "\n", "report.md": _page(results), **pictures}
    for name, content in files.items():
        write_text(folder / name, content)
    return folder / "report.md"


def _page(results: dict[str, Any]) -> str:
    protocol, compared = results["protocol"], results["distances"]
    lines = [
        "# Generated DNA against real DNA",
        "",
        f"Generated: `{protocol['generated_file']}`. Real: `{protocol['real_file']}`, "
        f"cut to {protocol['real_cut_to']:,} bases where longer.",
        "",
        "| | generated | real |",
        "|---|---|---|",
        *(
            f"| {words} | {_shown(results['generated'][name])} | {_shown(results['real'][name])} |"
            for name, words in FACTS.items()
        ),
        "",
        "![GC](gc.svg)",
        "",
        "## Distances",
        "",
        f"From one half of the real sequences ({protocol['real_half']:,}). The floor is what {protocol['floor_sets']} "
        f"sets of {protocol['floor_sequences']:,} other real sequences are away from it (mean ± standard deviation): "
        "a perfect generator has about as much."
        if protocol["floor_sets"]
        else "There are too few real sequences for a noise floor: small distances mean little.",
        "",
        "| | generated | floor |",
        "|---|---|---|",
        *(f"| {_words(name)} | {_shown(row['generated'])} | {_floor(row)} |" for name, row in compared.items()),
        "",
        "![k-mers](kmers.svg)",
        "",
        "![runs](runs.svg)",
        "",
        "## Strands and entropy",
        "",
        "Strand asymmetry is the divergence of a set's k-mers from their reverse complements; Chargaff's second rule "
        "says that it is near 0. Entropies are in bits. Both depend on how much there is, so real figures are means "
        "over the sets of the floor, where there are any.",
        "",
        "| k | asymmetry, generated | real | bits per base, generated | real | bits of next base, generated | real |",
        "|---|---|---|---|---|---|---|",
    ]
    for own, real in zip(results["by_k"]["generated"], results["by_k"]["real"], strict=True):
        cells = [
            _shown(side[name])
            for name in ("strand_asymmetry", "bits_per_base", "bits_of_next_base")
            for side in (own, real)
        ]
        lines.append(f"| {own['k']} | {' | '.join(cells)} |")
    return "\n".join(lines) + "\n"


def _words(name: str) -> str:
    if name.startswith("jsd_"):
        return f"{name.removeprefix('jsd_')}-mers, Jensen-Shannon divergence (bits)"
    return {"gc": "GC of a sequence, Wasserstein distance", "runs": "run lengths, Jensen-Shannon divergence (bits)"}[
        name
    ]


def _floor(row: dict[str, Any]) -> str:
    if row["floor"] is None:
        return "–"
    return _shown(row["floor"]) + ("" if row["floor_spread"] is None else f" ± {_shown(row['floor_spread'])}")


def _shown(value: float | int | None) -> str:
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"


def plots(found: Comparison) -> dict[str, str]:
    """SVG by file name."""
    sets = [("generated", found.generated), ("real", found.real)]
    return {"gc.svg": _gc(sets), "kmers.svg": _scatter(found), "runs.svg": _runs(sets)}


def _gc(sets: list[tuple[str, Counts]]) -> str:
    series = []
    for name, own in sets:
        grouped = np.add.reduceat(own.gc, np.arange(0, GC_BINS + 1, GC_STEP)) / max(1, own.gc.sum())
        grouped[-2] += grouped[-1]  # exactly 100 % belongs to the last bin
        series.append(
            Series(name, [(i + 0.5) * GC_STEP / GC_BINS for i in range(len(grouped) - 1)], grouped[:-1].tolist())
        )
    top = round_up(max(max(own.y) for own in series))
    return chart(
        "GC of the sequences",
        even("GC, in bins of 2 %", 0, 1, 10, percent=True),
        even("share of the sequences", 0, top, 5, percent=True),
        series,
    )


def _scatter(found: Comparison) -> str:
    k = found.generated.k
    own, real = found.generated.spectrum(k), found.real.spectrum(k)
    seen = np.concatenate((own[own > 0], real[real > 0]))
    low, high = (float(seen.min()), float(seen.max())) if seen.size else (0.1, 1.0)  # shorter than k: no k-mers
    never = low / 2  # what was not seen lies at the edge
    x, y = np.maximum(real, never), np.maximum(own, never)
    here = (own > 0) | (real > 0)
    cpg = _has_cpg(k)
    axes = [decades(f"share among {which} {k}-mers", never, high) for which in ("real", "generated")]
    series = [
        Series(name, x[part].tolist(), y[part].tolist(), line=False)
        for name, part in ((f"{k}-mers without CG", here & ~cpg), ("those with CG", here & cpg))
    ]
    return chart(f"{k}-mers, generated against real", axes[0], axes[1], series, diagonal=True)


def _has_cpg(k: int) -> np.ndarray:
    """(4^k,) bool: which k-mers have a C with a G after it."""
    found, index = np.zeros(4**k, dtype=bool), np.arange(4**k)
    for _ in range(k - 1):
        found |= index % 16 == 1 * 4 + 2
        index = index // 4
    return found


def _runs(sets: list[tuple[str, Counts]]) -> str:
    series, least = [], 1.0
    longest = min(LONGEST_RUN, max(2, *(own.longest_run for _, own in sets)))
    for name, own in sets:
        share = own.runs[1 : longest + 1] / max(1, own.runs.sum())
        at = np.flatnonzero(share)
        least = min(least, float(share[at].min())) if at.size else least
        series.append(Series(name, (at + 1).tolist(), share[at].tolist()))
    parts = longest - 1 if longest <= 12 else math.ceil((longest - 1) / 4)
    last = longest if longest <= 12 else 1 + 4 * parts
    return chart(
        "Runs of one base",
        even(f"length of the run (bases; {LONGEST_RUN} also stands for longer ones)", 1, last, parts),
        decades("share of all runs", least, 1.0),
        series,
    )
