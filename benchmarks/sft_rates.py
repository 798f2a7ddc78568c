"""Learning rates of instruction tuning, all weights and LoRA: the bound on answers after equally many steps.

python benchmarks/sft_rates.py STORIES VALID tiny-en --steps 200

The conversations are made from stories with <|endoftext|> between them: the first sentence is the prompt, and the
sentences after it are the answer, as many as fit into 200 characters. Every line of the table is a run of
`unmask finetune MODEL sft`; runs with the same seed see the same rows in the same order.
"""

from __future__ import annotations

import argparse
import json
import re
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any

from unmask.text_tables import markdown_table

MOST = 200  # characters of an answer


def conversations(text: str) -> list[dict[str, str]]:
    """A prompt and a completion from every story."""
    rows = []
    for story in text.split("<|endoftext|>"):
        prompt, *rest = re.split(r"(?<=[.!?])\s+", story.strip())
        answer = ""
        for sentence in rest:
            if len(answer) + len(sentence) >= MOST:
                break
            answer = f"{answer} {sentence}".strip()
        if answer:
            rows.append({"prompt": prompt, "completion": answer})
    return rows


def write(folder: Path, files: dict[str, str]) -> Path:
    """A folder with a split in each file."""
    for name, path in files.items():
        rows = conversations(Path(path).read_text(encoding="utf-8"))
        (folder / f"{name}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows), encoding="utf-8")
        print(f"{name}: {len(rows):,} conversations", file=sys.stderr)
    return folder


def run(model: str, data: Path, out: Path, lora: int | None, rate: float, seed: int, more: list[str]) -> dict[str, Any]:
    """One fine-tuning, as a user starts it."""
    command = [sys.executable, "-m", "unmask", "finetune", model, "sft", "--data", str(data), "--out", str(out)]
    command += [] if lora is None else ["--lora", str(lora)]
    done = subprocess.run(
        [*command, "--json", "--quiet", f"train.lr={rate:g}", f"seed={seed}", *more], stdout=subprocess.PIPE, check=True
    )
    report: dict[str, Any] = json.loads(done.stdout)
    return report


def main() -> None:
    """Run all rates, and print a table of bits per token of answers."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("stories")
    parser.add_argument("valid")
    parser.add_argument("model")
    parser.add_argument("--steps", type=int, default=200)
    parser.add_argument("--full", type=float, nargs="*", default=[2.5e-5, 1e-4, 4e-4])
    parser.add_argument("--lora", type=float, nargs="*", default=[2e-4, 1e-3, 4e-3])
    parser.add_argument("--rank", type=int, default=16)
    parser.add_argument("--seeds", type=int, nargs="*", default=[0])
    parser.add_argument("--set", nargs="*", default=[], help="further settings, as data.length=128")
    args = parser.parse_args()
    rows = []
    with tempfile.TemporaryDirectory() as folder:
        data = write(Path(folder), {"train": args.stories, "valid": args.valid})
        for rank, rates in ((None, args.full), (args.rank, args.lora)):
            for rate in rates:
                for seed in args.seeds:
                    out = Path(folder) / f"{rank}-{rate:g}-{seed}"
                    report = run(args.model, data, out, rank, rate, seed, [f"train.steps={args.steps}", *args.set])
                    before, after = report["before"], report["after"]
                    what = "all weights" if rank is None else f"LoRA {rank}"
                    figures = (f"{one['bits_per_token']:.4f}" for one in (before, after))
                    rows.append([what, f"{rate:g}", str(seed), *figures, f"{report['seconds']:.0f}"])
                    print(*rows[-1], file=sys.stderr, flush=True)
    print(markdown_table([["weights", "rate", "seed", "bits before", "bits after", "seconds"], *rows]))


if __name__ == "__main__":
    main()
