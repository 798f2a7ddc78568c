"""Do time and memory grow with the text, and not faster? A long text sampled and scored, and many texts scored.

Every size is measured in a process of its own: seconds of processor time, and the most memory beyond that of the
loaded model. A ratio of 2 from one size to the next is linear. The network is small (2 blocks of width 64, rows of
128 bytes), since what is asked is how the cost grows.

    python benchmarks/long_texts.py                        a table, a few minutes
    python benchmarks/long_texts.py --page docs/reliability.md     also between the markers of that page
    python benchmarks/long_texts.py --share 0.02           a look
"""

from __future__ import annotations

import argparse
import json
import random
import resource
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

import unmask
from unmask.config import Config
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.models import registry

BEGIN, END = "<!-- long texts: begin -->", "<!-- long texts: end -->"
SETTINGS = ["model.n_blocks=2", "model.hidden_dim=64", "model.n_heads=2", "data.tokenizer=bytes", "data.length=128"]


def small_folder(folder: Path) -> Path:
    torch.manual_seed(0)
    config = Config().override([*SETTINGS, "train.ema=0"])
    tokenizer = bytes_tokenizer()
    model = registry.model(config, tokenizer.vocab)
    for weight in model.parameters():
        if weight.ndim > 1:
            torch.nn.init.normal_(weight, std=0.02)
    return LM(model, tokenizer, config).save_pretrained(folder / "small")


def words(n: int) -> str:
    rng = random.Random(0)
    return " ".join(str(rng.randrange(10**6)) for _ in range(n))


def sampled(lm: LM, size: int) -> None:
    [text] = lm.sample(1, length=size, steps=8, stride=64, seed=0)
    assert text


def scored(lm: LM, size: int) -> None:
    assert lm.score(words(size // 6)[:size], draws=1).tokens


def texts_scored(lm: LM, size: int) -> None:
    assert lm.score([f"number {i} of all texts" for i in range(size)], draws=1).tokens


Task = tuple[str, int, Callable[[LM, int], None]]  # what is done, the largest size, how
TASKS: dict[str, Task] = {
    "sampled": ("tokens sampled in windows (stride 64)", 100_000, sampled),
    "scored": ("tokens of a text scored", 100_000, scored),
    "texts": ("texts scored", 10_000, texts_scored),
}


def measure(folder: str, task: str, size: int) -> None:
    """In a process of its own: print the figures of one size."""
    torch.set_num_threads(1)
    lm = unmask.load(folder)
    run = TASKS[task][2]
    run(lm, 256 if task != "texts" else 4)
    before, begun, clock = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss, time.process_time(), time.monotonic()
    run(lm, size)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    figures = {"seconds": time.process_time() - begun, "wall": time.monotonic() - clock, "mb": (peak - before) / 1024}
    print(json.dumps(figures))


def table(share: float) -> str:
    lines = ["| what | size | seconds | ratio | memory | ratio |", "|---|---:|---:|---:|---:|---:|"]
    with tempfile.TemporaryDirectory() as temporary:
        folder = small_folder(Path(temporary))
        for task, (what, most, _) in TASKS.items():
            before: dict[str, Any] = {}
            for part in (4, 2, 1):
                size = int(most * share) // part
                command = [sys.executable, __file__, "--measure", str(folder), task, str(size)]
                said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
                figures = json.loads(said.splitlines()[-1])
                ratios = [f"{figures[key] / max(before[key], 0.01):.2f}" if before else "" for key in ("seconds", "mb")]
                shown = [f"{size:,}", f"{figures['seconds']:.1f}", ratios[0], f"{figures['mb']:.0f} MB", ratios[1]]
                lines.append(f"| {what} | {' | '.join(shown)} |")
                sys.stderr.write(lines[-1] + "\n")
                before = figures
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="of the sizes")
    parser.add_argument("--page", type=Path, help="write the table between the markers of this page")
    parser.add_argument("--measure", nargs=3, metavar=("FOLDER", "TASK", "SIZE"), help=argparse.SUPPRESS)
    asked = parser.parse_args()
    if asked.measure:
        measure(asked.measure[0], asked.measure[1], int(asked.measure[2]))
        return
    made = table(asked.share)
    print(made)
    if asked.page is not None:
        head, _, rest = asked.page.read_text(encoding="utf-8").partition(BEGIN)
        page = f"{head}{BEGIN}\n\n{made}\n\n{END}{rest.partition(END)[2]}"
        asked.page.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
