"""How far do the drafts of a block model get? Calls a token of speculative sampling, for sizes of a tree of drafts.

A text is the same with any drafts, so a row of the table is one set of texts, written in more or fewer calls.

    python benchmarks/drafts.py tiny-en
    python benchmarks/drafts.py tiny-en --texts 4 --sizes 4 16 64
"""

from __future__ import annotations

import argparse
from typing import Any

import unmask
from unmask.lm import LM
from unmask.sampling.params import SamplingParams

SETTINGS: list[dict[str, float]] = [{}, {"temperature": 0.9, "top_p": 0.9}, {"temperature": 0.7, "top_p": 0.9}]


def measured(lm: LM, texts: int, **how: Any) -> tuple[list[str], float, float]:
    """The texts, calls a token, and drafted tokens of a call."""
    samples = lm.write([lm.prompt_canvas("")] * texts, SamplingParams(sampler="speculative", **how), batch_size=texts)
    calls = sum(sample.network_calls for sample in samples)
    tokens = sum(len(sample.ids) for sample in samples)
    return [sample.text for sample in samples], calls / tokens, sum(sample.drafted for sample in samples) / calls


def main() -> None:
    """Print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("model")
    parser.add_argument("--texts", type=int, default=8)
    parser.add_argument("--sizes", type=int, nargs="+", default=[1, 4, 16], help="drafted tokens of a call")
    args = parser.parse_args()
    lm = unmask.load(args.model)
    print(f"{'calls a token, by drafted tokens of a call':44}{'by default':>20}", *(f"{k:>7}" for k in args.sizes))
    for how in SETTINGS:
        first, calls, drafted = measured(lm, args.texts, **how)
        row = f"{how or 'the plain law'!s:44}{f'{calls:.2f} ({drafted:.1f} drafted)':>20}"
        for k in args.sizes:
            texts, calls, _ = measured(lm, args.texts, k=k, **how)
            row += f" {calls:7.2f}" + ("" if texts == first else " (other texts)")  # by rounding alone
        print(row, flush=True)


if __name__ == "__main__":
    main()
