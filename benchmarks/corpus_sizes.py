"""Time and memory of tokenizing and packing, for corpora of growing size and odd shape: both should be linear or flat.

    python benchmarks/corpus_sizes.py --share 0.05 0.1        # of the full sizes, in a temporary folder
    python benchmarks/corpus_sizes.py --case documents --share 0.5 1

Full sizes: a text of 2 GB, 10 million short documents, one line of 1 GB, 20,000 files, a Parquet file of 5 million
rows. Each corpus is prepared in a process of its own: CPU seconds (a shared machine does not matter), and the peak
memory beyond what an empty corpus takes.
"""

from __future__ import annotations

import argparse
import json
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

SENTENCE = "The quick brown fox jumps over the lazy dog, and number {} watches it go.\n"
CHILD = """
import json, resource, sys, time
from unmask.config import DataConfig
from unmask.data.pack import prepare
started, spec = time.process_time(), json.loads(sys.argv[1])
rows = prepare(DataConfig(**spec)).split("train")
rows.rows([0, len(rows) - 1])
usage = resource.getrusage(resource.RUSAGE_SELF)
print(json.dumps({
    "seconds": time.process_time() - started, "peak": usage.ru_maxrss * 1024, "rows": len(rows), "tokens": rows.tokens
}))
"""


def blocks(size: int) -> Iterator[str]:
    """Sentences of `size` bytes in all, a megabyte at a time."""
    done = number = 0
    while done < size:
        block = "".join(SENTENCE.format(number + i) for i in range(14_000))[: size - done]
        yield block
        done, number = done + len(block), number + 14_000


def text(folder: Path, size: int) -> dict[str, Any]:
    with (folder / "text.txt").open("w") as file:
        file.writelines(blocks(size))
    return {"source": str(folder / "text.txt")}


def line(folder: Path, size: int) -> dict[str, Any]:
    with (folder / "line.txt").open("w") as file:
        file.writelines(block.replace("\n", " ") for block in blocks(size))
    return {"source": str(folder / "line.txt"), "document": "line"}


def documents(folder: Path, count: int) -> dict[str, Any]:
    with (folder / "names.txt").open("w") as file:
        for start in range(0, count, 100_000):
            file.writelines(f"name {i:x}\n" for i in range(start, min(start + 100_000, count)))
    return {"source": str(folder / "names.txt"), "layout": "pad", "document": "line"}


def files(folder: Path, count: int) -> dict[str, Any]:
    for i in range(count):
        place = folder / f"part{i // 1000}"
        place.mkdir(exist_ok=True)
        (place / f"{i}.py").write_text("".join(SENTENCE.format(i) for _ in range(12)))
    return {"source": str(folder), "files": "*.py"}


def parquet(folder: Path, count: int) -> dict[str, Any]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    schema = pa.schema([("text", pa.string())])
    with pq.ParquetWriter(folder / "rows.parquet", schema) as writer:
        for start in range(0, count, 100_000):
            texts = [SENTENCE.format(i) for i in range(start, min(start + 100_000, count))]
            writer.write_table(pa.table({"text": texts}, schema=schema))
    return {"source": str(folder / "rows.parquet"), "layout": "pad"}


CASES: dict[str, tuple[Callable[[Path, int], dict[str, Any]], int, str]] = {
    "text": (text, 2_000_000_000, "bytes"),
    "documents": (documents, 10_000_000, "documents"),
    "line": (line, 1_000_000_000, "bytes"),
    "files": (files, 20_000, "files"),
    "parquet": (parquet, 5_000_000, "rows"),
}


def measure(case: str, size: int, tokenizer: str, where: Path | None = None) -> dict[str, Any]:
    """One corpus of this size, made, prepared and removed."""
    folder = Path(tempfile.mkdtemp(prefix="corpus-sizes-", dir=where))
    try:
        (folder / "data").mkdir()
        spec = CASES[case][0](folder / "data", size)
        spec |= {"cache": str(folder / "cache"), "tokenizer": tokenizer, "vocab_size": 1024, "length": 128}
        run = subprocess.run(
            [sys.executable, "-c", CHILD, json.dumps(spec)], check=True, capture_output=True, text=True
        )
        return {"case": case, "size": size, **json.loads(run.stdout)}
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def main(arguments: list[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--case", choices=CASES, action="append", help="only this one (may be repeated)")
    parser.add_argument("--share", type=float, nargs="+", default=[0.05, 0.1], help="of the full sizes")
    parser.add_argument("--tokenizer", default="bytes")
    parser.add_argument("--folder", type=Path, help="where the corpora are made (default: the temporary folder)")
    parser.add_argument("--json", action="store_true")
    given = parser.parse_args(arguments)
    results = []
    for case in given.case or CASES:
        start = measure(case, 2000, given.tokenizer, given.folder)["peak"]  # what torch and pyarrow take anyway
        for share in given.share:
            result = measure(case, max(2000, round(share * CASES[case][1])), given.tokenizer, given.folder)
            results.append(result | {"beyond": result["peak"] - start})
            if not given.json:
                print(shown(results[-1]), flush=True)
    if given.json:
        print(json.dumps(results))


def shown(result: dict[str, Any]) -> str:
    """A line of a markdown table."""
    size, unit = result["size"], CASES[result["case"]][2]
    speed = size / result["seconds"]
    return (
        f"| {result['case']} | {size:,} {unit} | {result['seconds']:.1f} s | {speed:,.0f} {unit}/s "
        f"| {result['peak'] / 2**20:.0f} MB | {result['beyond'] / 2**20:+.0f} MB |"
    )


if __name__ == "__main__":
    main()
