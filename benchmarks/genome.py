"""How long does a genome take to prepare, and in how much memory? A made-up FASTA of any size, as a human one is.

Chromosomes of random bases with runs of N at their ends and in between and half of the bases in lower case, in runs of
about 300. Preparing runs in a process of its own, whose peak resident memory is printed; then windows are read from all
over the packed genome.

    python benchmarks/genome.py [--gigabases 0.3] [--gzip] [--length 1024] [--json]
"""

from __future__ import annotations

import argparse
import gzip
import json
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import IO, Any

import numpy as np

from unmask.config import DataConfig
from unmask.data.genome.regions import GenomeRows
from unmask.data.genome.store import open_genome
from unmask.data.pack import prepare

CHROMOSOMES, WIDTH = 24, 60
STRETCH = 6_000_000  # bases that are made at once
WINDOWS = 64  # read together, as a batch is


def write_fasta(path: Path, bases: int) -> int:
    """A genome of about so many bases; gives their number."""
    letters = np.frombuffer(b"ACGT", dtype=np.uint8)
    rng = np.random.default_rng(0)
    total = 0
    # The fastest packing: the benchmark is of reading.
    with gzip.open(path, "wb", compresslevel=1) if path.suffix == ".gz" else path.open("wb") as file:
        for number in range(1, CHROMOSOMES + 1):
            size = max(WIDTH, bases // CHROMOSOMES // WIDTH * WIDTH)
            file.write(f">chr{number} made up\n".encode())
            for at in range(0, size, STRETCH):
                part = letters[rng.integers(0, 4, min(STRETCH, size - at), dtype=np.uint8)]
                edges = np.cumsum(rng.geometric(1 / 300, max(2, len(part) // 300)))
                part = part | (np.searchsorted(edges, np.arange(len(part))) % 2 * 32).astype(np.uint8)
                part[: min(10_000, len(part) // 20)] = ord("N")
                _write_lines(file, part)
            total += size
    return total


def _write_lines(file: IO[bytes] | gzip.GzipFile, part: np.ndarray) -> None:
    lines = np.full((len(part) // WIDTH, WIDTH + 1), ord("\n"), dtype=np.uint8)
    lines[:, :WIDTH] = part.reshape(-1, WIDTH)
    file.write(lines.tobytes())


def peak_mb() -> float:
    """The most memory that this process has held (what getrusage says may be its parent's)."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return int(next(line for line in lines if line.startswith("VmHWM")).split()[1]) / 1024


def work(path: str, cache: str, length: str) -> None:
    """What the other process does: pack, find the windows, and say how long it took in how much memory."""
    before, start = peak_mb(), time.perf_counter()
    spec = DataConfig(source=path, tokenizer="dna", length=int(length), cache=cache)
    rows = prepare(spec).split("train")
    assert isinstance(rows, GenomeRows)
    found = {"rows": len(rows), "bases": rows.genome.total, "peak_mb": peak_mb(), "idle_mb": before}
    print(json.dumps({"seconds": time.perf_counter() - start, **found}))


def read_speed(path: Path, cache: Path, length: int, seconds: float = 2.0) -> dict[str, float]:
    """Windows a second from random places, in batches."""
    start = time.perf_counter()
    genome = open_genome(path, cache)
    opened = time.perf_counter() - start
    rng = np.random.default_rng(1)
    windows, start = 0, time.perf_counter()
    while (passed := time.perf_counter() - start) < seconds:
        genome.gather(rng.integers(0, genome.total - length, WINDOWS), length)
        windows += WINDOWS
    return {
        "open_seconds": opened,
        "windows_per_second": windows / passed,
        "bases_per_second": windows * length / passed,
    }


def main() -> None:
    """Make, prepare, read."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--gigabases", type=float, default=0.3)
    parser.add_argument("--gzip", action="store_true", help="a .fa.gz")
    parser.add_argument("--length", type=int, default=1024, help="bases of a window")
    parser.add_argument("--folder", type=Path, default=None, help="where the file and the cache go; default: temporary")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="unmask-genome-", dir=given.folder) as folder:
        path, cache = Path(folder) / ("made-up.fa" + ".gz" * given.gzip), Path(folder) / "cache"
        start = time.perf_counter()
        write_fasta(path, int(given.gigabases * 1e9))
        made, size = time.perf_counter() - start, path.stat().st_size
        command = [sys.executable, __file__, "--work", str(path), str(cache), str(given.length)]
        found: dict[str, Any] = json.loads(subprocess.run(command, check=True, capture_output=True).stdout)
        packed = sum(file.stat().st_size for file in cache.rglob("*") if file.is_file())
        found |= {"file_mb": size / 1e6, "packed_mb": packed / 1e6, "made_seconds": made}
        found["mb_per_second"] = found["bases"] / 1e6 / found["seconds"]
        found |= read_speed(path, cache, given.length)
    if given.json:
        print(json.dumps(found, indent=1))
        return
    print(f"{found['bases'] / 1e9:.2f} Gb in a file of {found['file_mb']:,.0f} MB (made in {made:.0f} s)")
    print(
        f"prepared in {found['seconds']:.1f} s: {found['mb_per_second']:.0f} Mb/s, {found['packed_mb']:,.0f} MB on disk"
    )
    print(
        f"{found['rows']:,} training rows; peak memory {found['peak_mb']:.0f} MB, {found['idle_mb']:.0f} MB before it"
    )
    speed = f"{found['windows_per_second']:,.0f} a second"
    print(f"opened in {found['open_seconds']:.2f} s; random windows of {given.length}: {speed}")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--work"]:
        work(*sys.argv[2:5])
    else:
        main()
