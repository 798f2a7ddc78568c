"""Which settings suit a model? A grid of temperature, top-p, sampler and steps under a judge, beside distinctness.

python benchmarks/recommend.py tiny-en --scorer hf:FOLDER --prompt 'Once upon a time' --prompt '' --out runs/grid.json

A judge alone prefers text that repeats itself: a point counts only while its samples stay as distinct as real text
nearly is. Texts of every point are in the file, to be read. A run is continued where it stopped.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

CHOICES = [(t, p) for t in (1.0, 0.9, 0.8, 0.7, 0.6, 0.5) for p in (None, 0.95, 0.9, 0.8)]
PLANS: list[dict[str, Any]] = [
    {"sampler": "plan", "steps": steps} for steps in (32, 64, 256)
] + [
    {"sampler": "first-hitting"},
    {"sampler": "confidence", "k": 1},
    {"sampler": "margin", "k": 1},
    {"sampler": "remask-cap", "steps": 128},
    {"sampler": "remask-loop", "steps": 128},
    {"sampler": "corrector", "steps": 64},
]  # fmt: skip


def measure(lm: Any, judge: Any, prompts: list[str], n: int, length: int, how: dict[str, Any]) -> dict[str, Any]:
    """One point of the grid: n samples of each prompt, with one seed for all points."""
    from unmask.evaluation.generative import text_tokens
    from unmask.evaluation.judge import judge as judged
    from unmask.sampling.params import SamplingParams

    options, start = SamplingParams(seed=0, **how), time.perf_counter()
    canvases = [lm.prompt_canvas(prompt, length) for prompt in prompts for _ in range(n)]
    samples = lm.write(canvases, options, batch_size=n * len(prompts))
    seconds = time.perf_counter() - start
    texts = [sample.text for sample in samples]
    verdict = judged(
        texts,
        [text_tokens(lm, sample.ids) for sample in samples],
        scorer=judge,
        network_calls=[sample.network_calls for sample in samples],
        seconds=seconds,
    )
    return {"how": how, **{k: v for k, v in verdict.as_dict().items() if k != "protocol"}, "texts": texts}


def real(lm: Any, judge: Any, files: list[str], n: int, length: int) -> dict[str, Any]:
    """The same figures of the beginnings of real documents."""
    from unmask.evaluation.judge import judge as judged

    rows: list[list[int]] = []
    for file in files:
        documents = Path(file).read_text(encoding="utf-8", errors="replace")[:4_000_000].split("<|endoftext|>")
        if len(documents) < n:
            documents = [part for part in documents[0].split("\n") if len(part) > 8 * length]
        each = max(1, len(documents) // n)
        rows += [lm.encode(" ".join(text.split()))[:length] for text in documents[::each][:n]]
    verdict = judged([lm.tokenizer.decode(row) for row in rows], rows, scorer=judge)
    return {k: v for k, v in verdict.as_dict().items() if k != "protocol"}


def main() -> None:
    """Fill the grid: first temperature and top-p, then sampler and steps at the settings that are named."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("model")
    parser.add_argument("--scorer", required=True)
    parser.add_argument("--prompt", action="append", required=True)
    parser.add_argument("--real", action="append", default=[], help="a text file, <|endoftext|> between documents")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("-n", type=int, default=8, help="samples of each prompt")
    parser.add_argument("--length", type=int, default=64)
    parser.add_argument("--how", type=json.loads, action="append", help="measure these settings instead of a grid")
    parser.add_argument("--plans-at", type=json.loads, help='compare samplers at these, {"temperature": 0.7}')
    args = parser.parse_args()
    import torch

    import unmask
    from unmask.evaluation.generative import open_judge

    lm = unmask.load(args.model)
    judge = open_judge(args.scorer, torch.device("cpu"), "cpu")
    data = json.loads(args.out.read_text()) if args.out.exists() else {"points": [], "real": None}
    if data["real"] is None and args.real:
        data["real"] = real(lm, judge, args.real, args.n, args.length)
    grid: list[dict[str, Any]] = [{"temperature": t} | ({"top_p": p} if p else {}) for t, p in CHOICES]
    if args.plans_at is not None:
        grid = [args.plans_at | plan for plan in PLANS]
    grid = args.how or grid
    done = [point["how"] for point in data["points"]]
    for how in grid:
        if how not in done:
            data["points"].append(measure(lm, judge, args.prompt, args.n, args.length, how))
            args.out.write_text(json.dumps(data, indent=1))
            point = data["points"][-1]
            figures = (
                "gen_perplexity",
                "network_calls_per_sample",
                "entropy",
                "distinct_2",
                "repetition_4",
                "self_bleu_4",
            )
            print(how, {key: round(point[key], 3) for key in figures}, file=sys.stderr, flush=True)


if __name__ == "__main__":
    main()
