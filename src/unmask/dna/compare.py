"""Generated DNA against real DNA: figures, each next to how much two real sets differ, and a report.

Distances between samples are never 0. So the real sequences are split into two halves. The first is the reference; the
second is divided into sets of the size of the generated one, and their distance from the reference is the noise floor:
a generator cannot do better.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..evaluation.uncertainty import deviation
from ..files import write_text
from ..jsonable import to_json
from ..plot import Curve, Plot, svg
from ..text_tables import markdown_table
from ..types import UserError
from .kmers import GC_BINS, LONGEST_RUN, Counts, by_k, distances, pieces

Sequences = Callable[[], Iterable[tuple[str, str]]]  # reads them from the beginning
MOST_FLOORS = 10  # sets of real sequences that are compared with the first half
GC_STEP = 20  # bins of `Counts.gc` that are one point of the plot: 2 %


@dataclass(frozen=True)
class Comparison:
    """Counts of the generated sequences, of the reference half of the real ones, and of the sets of the floor."""

    generated: Counts
    real: Counts
    floors: list[Counts]
    length: int | None  # to which real sequences were cut
    whole: dict[str, Any]  # figures of all real sequences

    def results(self) -> dict[str, Any]:
        """All figures, for JSON."""
        floors = [distances(floor, self.real) for floor in self.floors]
        compared = {}
        for name, value in distances(self.generated, self.real).items():
            drawn = [floor[name] for floor in floors]
            compared[name] = {
                "generated": value,
                "floor": float(np.mean(drawn)) if drawn else None,
                "floor_spread": deviation(drawn),
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
        """Asymmetry and entropies of small samples are biased, so these are means over sets of the generated size."""
        sets = [by_k(floor) for floor in self.floors] or [by_k(self.real)]
        return [
            {name: float(np.mean([row[name] for row in rows])) for name in rows[0]} for rows in zip(*sets, strict=True)
        ]


def compare(generated: Sequences, real: Sequences, k: int = 6) -> Comparison:
    """Count both; longer real sequences are cut to the median length of the generated ones."""
    counts, lengths = Counts(k), []
    for rows in pieces(generated()):
        counts.add(rows)
        lengths.append(rows.shape[1])
    if not counts.bases:
        raise UserError("the generated sequences contain no bases; give at least one with A, C, G or T")
    length = int(np.median(lengths))
    total = sum(len(rows) for rows in pieces(real(), length))
    if not total:
        raise UserError("there are no real sequences to compare with; give at least one")
    first, floors, everything = _deal(real, length, total, counts, k)
    return Comparison(counts, first, floors, length, everything.facts())


def _deal(real: Sequences, length: int, total: int, generated: Counts, k: int) -> tuple[Counts, list[Counts], Counts]:
    """Every second piece goes to the first half; the others form as many sets of the generated size as possible."""
    spare = total // 2
    size = min(max(1, round(generated.letters / length)), max(1, spare))  # pieces of a set
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
    "sequences": "sequences",
    "bases": "bases (A, C, G, T)",
    "unknown": "share of N",
    "gc": "GC",
    "gc_spread": "standard deviation of the GC of a sequence",
    "cpg_observed_expected": "CpG, observed / expected",
    "mean_run": "mean length of a run of one base",
    "runs_of_5_and_more": "share of runs of 5 and more",
    "longest_run": "longest run",
}
DISTANCES = {
    "gc": "GC of a sequence, Wasserstein distance",
    "runs": "run lengths, Jensen-Shannon divergence (bits)",
}
BY_K = {
    "strand_asymmetry": "asymmetry",
    "bits_per_base": "bits per base",
    "bits_of_next_base": "bits of next base",
}


def write_report(comparison: Comparison, out: str | Path, names: tuple[str, str]) -> Path:
    """Write report.md, results.json and the plots to a folder; returns the path of report.md."""
    folder = Path(out)
    folder.mkdir(parents=True, exist_ok=True)
    results = comparison.results()
    results["protocol"] |= {"generated_file": names[0], "real_file": names[1], "k": comparison.generated.k}
    pictures = plots(comparison)
    files = {"results.json": to_json(results, indent=1) + "\n", "report.md": _page(results), **pictures}
    for name, content in files.items():
        write_text(folder / name, content)
    return folder / "report.md"


def _page(results: dict[str, Any]) -> str:
    protocol = results["protocol"]
    floor = "There are too few real sequences for a noise floor: small distances mean little."
    if protocol["floor_sets"]:
        floor = (
            f"From one half of the real sequences ({protocol['real_half']:,}). The floor is what "
            f"{protocol['floor_sets']} sets of {protocol['floor_sequences']:,} other real sequences are away from it "
            "(mean ± standard deviation): a perfect generator has about as much."
        )
    parts = [
        "# Generated DNA against real DNA",
        f"Generated: `{protocol['generated_file']}`. Real: `{protocol['real_file']}`, "
        f"cut to {protocol['real_cut_to']:,} bases where longer.",
        markdown_table(
            [
                ["", "generated", "real"],
                *(
                    [words, shown(results["generated"][name]), shown(results["real"][name])]
                    for name, words in FACTS.items()
                ),
            ]
        ),
        "![GC](gc.svg)",
        "## Distances",
        floor,
        markdown_table(
            [
                ["", "generated", "floor"],
                *(
                    [distance_words(name), shown(row["generated"]), floor_words(row)]
                    for name, row in results["distances"].items()
                ),
            ]
        ),
        "![k-mers](kmers.svg)",
        "![runs](runs.svg)",
        "## Strands and entropy",
        "Strand asymmetry is the divergence of a set's k-mers from their reverse complements; Chargaff's second rule "
        "says that it is near 0. Entropies are in bits. Both depend on how much there is, so real figures are means "
        "over the sets of the floor, where there are any.",
        _by_k_table(results["by_k"]),
    ]
    return "\n\n".join(parts) + "\n"


def _by_k_table(by_k: dict[str, list[dict[str, float]]]) -> str:
    header = ["k", *(cell for words in BY_K.values() for cell in (f"{words}, generated", "real"))]
    rows = [
        [str(generated["k"]), *(shown(side[name]) for name in BY_K for side in (generated, real))]
        for generated, real in zip(by_k["generated"], by_k["real"], strict=True)
    ]
    return markdown_table([header, *rows], words=())


def distance_words(name: str) -> str:
    """What a distance measures."""
    if name.startswith("jsd_"):
        return f"{name.removeprefix('jsd_')}-mers, Jensen-Shannon divergence (bits)"
    return DISTANCES[name]


def floor_words(row: dict[str, Any]) -> str:
    """The noise floor of a distance, with its spread."""
    if row["floor"] is None:
        return "–"
    return shown(row["floor"]) + ("" if row["floor_spread"] is None else f" ± {shown(row['floor_spread'])}")


def shown(value: float | int | None) -> str:
    """A figure with three or four digits."""
    if value is None:
        return "–"
    return f"{value:,}" if isinstance(value, int) else f"{value:.3g}" if abs(value) < 1 else f"{value:.4g}"


def plots(comparison: Comparison) -> dict[str, str]:
    """SVG by file name."""
    sets = {"generated": comparison.generated, "real": comparison.real}
    return {
        "gc.svg": svg(_gc_plot(sets)),
        "kmers.svg": svg(_kmer_plot(comparison), scatter=True),
        "runs.svg": svg(_run_plot(sets)),
    }


def _gc_plot(sets: Mapping[str, Counts]) -> Plot:
    curves = []
    for name, counts in sets.items():
        grouped = np.add.reduceat(counts.gc, np.arange(0, GC_BINS + 1, GC_STEP)) * 100 / max(1, counts.gc.sum())
        grouped[-2] += grouped[-1]  # exactly 100 % belongs to the last bin
        middles = [100 * (i + 0.5) * GC_STEP / GC_BINS for i in range(len(grouped) - 1)]
        curves.append(Curve(name, middles, grouped[:-1].tolist()))
    return Plot("gc", "GC of the sequences", "GC (%), in bins of 2 %", "share of the sequences (%)", curves)


def _kmer_plot(comparison: Comparison) -> Plot:
    k = comparison.generated.k
    generated, real = comparison.generated.spectrum(k), comparison.real.spectrum(k)
    seen = (generated > 0) | (real > 0)
    shares = np.concatenate((generated[generated > 0], real[real > 0]))
    never = float(shares.min()) / 2 if shares.size else 1.0  # what was not seen in one of the sets lies at the edge
    x, y = np.maximum(real, never), np.maximum(generated, never)
    parts = {f"{k}-mers without CG": seen & ~_has_cpg(k), "those with CG": seen & _has_cpg(k)}
    curves = [Curve(name, x[part].tolist(), y[part].tolist()) for name, part in parts.items()]
    labels = [f"share among {which} {k}-mers" for which in ("real", "generated")]
    return Plot("kmers", f"{k}-mers, generated against real", labels[0], labels[1], curves, log_x=True, log_y=True)


def _has_cpg(k: int) -> np.ndarray:
    """(4^k,) bool: which k-mers contain CG."""
    has, index = np.zeros(4**k, dtype=bool), np.arange(4**k)
    for _ in range(k - 1):
        has |= index % 16 == 1 * 4 + 2
        index = index // 4
    return has


def _run_plot(sets: Mapping[str, Counts]) -> Plot:
    curves = []
    for name, counts in sets.items():
        share = counts.runs / max(1, counts.runs.sum())
        length = np.flatnonzero(share)
        curves.append(Curve(name, length.astype(float).tolist(), share[length].tolist()))
    label = f"length of the run (bases; {LONGEST_RUN} also stands for longer ones)"
    return Plot("runs", "Runs of one base", label, "share of all runs", curves, log_y=True)
