"""int8 beside float32: processor seconds of a network call, bits per token, and the most memory that a process took.

python benchmarks/int8.py TEXT_FILE tiny-en [MODEL ...]

A call reads rows of 64 tokens and predicts one token of each, as when texts are written. The beginnings of the
first documents (<|endoftext|> between them) are scored. Each line of the table is a process; memory is its largest
resident set without what Python and torch take before a model is loaded, a mapped file included.
"""

from __future__ import annotations

import argparse
import json
import resource
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.networks.kernels.packed_linear import PackedWeights
from unmask.text_tables import markdown_table

COLUMNS = 64
MOMENTS = ("loading", "loaded", "all", "held")  # at most until it is loaded, then; at most until the end, then


def resident(now: bool = False) -> float:
    """The largest resident set of this process so far, or that of now, in MB."""
    if now:
        return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize() / 1e6
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1000


def seconds(lm: unmask.LM, rows: int, repeats: int = 5) -> float:
    """Of the fastest call."""
    tokens = torch.randint(1000, (rows, COLUMNS), generator=torch.Generator().manual_seed(0))
    backbone, times = lm.model.backbone, []
    with PackedWeights().in_use():
        for _ in range(repeats):
            begin = time.process_time()
            backbone.head(backbone(tokens)[0][:, -1])
            times.append(time.process_time() - begin)
    return min(times)


@torch.no_grad()
def measure(model: str, quantize: str | None, file: Path, n: int) -> dict[str, Any]:
    """One line of the table."""
    documents = file.read_text(encoding="utf-8").split("<|endoftext|>")
    texts = [text.strip()[:300] for text in documents if len(text) > 300][:n]
    empty = resident()
    lm = unmask.load(model, quantize=quantize)
    loading, loaded = resident() - empty, resident(now=True) - empty
    one, many = seconds(lm, 1), seconds(lm, 16)
    bits = lm.score(texts).as_dict()["bits_per_token"]
    lm.sample(1, prompt="One day", length=32, seed=0)
    memory = {"loading": loading, "loaded": loaded, "all": resident() - empty, "held": resident(now=True) - empty}
    return {"one": one, "many": many, "bits": bits, **memory}


def main() -> None:
    """Measure every model in both types, each in its own process."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("file", type=Path)
    parser.add_argument("models", nargs="+")
    parser.add_argument("-n", type=int, default=16, help="texts")
    parser.add_argument("--quantize", help=argparse.SUPPRESS)
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    given = parser.parse_args()
    if given.here:
        print(json.dumps(measure(given.models[0], given.quantize, given.file, given.n)))
        return
    table = [["model", "matrices", "ms, 1 row", "ms, 16 rows", "bits per token", *(f"MB, {when}" for when in MOMENTS)]]
    for model in given.models:
        for quantize in (None, "int8"):
            asked = [str(given.file), model, "-n", str(given.n), "--here"]
            asked += [] if quantize is None else ["--quantize", quantize]
            told = subprocess.run([sys.executable, __file__, *asked], check=True, capture_output=True, text=True)
            found = json.loads(told.stdout)
            numbers = [f"{1000 * found['one']:.1f}", f"{1000 * found['many']:.0f}", f"{found['bits']:.4f}"]
            numbers += [f"{found[key]:.0f}" for key in MOMENTS]
            table.append([Path(model).name, quantize or "float32", *numbers])
            print(table[-1], file=sys.stderr, flush=True)
    print(markdown_table(table))


if __name__ == "__main__":
    main()
