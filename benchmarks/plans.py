"""How likely is real text under an order, for its network calls? Exact nats per token, and the calls that they took.

python benchmarks/plans.py tiny-en TEXT_FILE [--measure entropy] [-n 16] [--length 64]

The texts are the beginnings of the first documents (<|endoftext|> between them) that are long enough. What a plan costs
is its nats above those of one token a call, text by text; ± is its error over texts.
"""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import Any

import numpy as np

import unmask
from unmask.sampling import Adaptive
from unmask.text_tables import markdown_table

PLANS: list[dict[str, Any]] = [
    *({"k": k} for k in (1, 2, 4, 8)),
    *({"entropy_bound": nats} for nats in (0.0, 0.05, 0.1, 0.3, 1.0, 3.0, 8.0)),
]


def beginnings(lm: unmask.LM, file: Path, n: int, length: int) -> list[str]:
    """The first tokens of n documents, as text."""
    rows = (lm.encode(text.strip()) for text in file.read_text(encoding="utf-8").split("<|endoftext|>"))
    texts = (lm.tokenizer.decode(row[:length]) for row in rows if len(row) >= length)
    return [text for _, text in zip(range(n), texts, strict=False)]


def main() -> None:
    """Score the texts under every plan."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model")
    parser.add_argument("file", type=Path)
    parser.add_argument("--measure", default="entropy", help="confidence, entropy or margin")
    parser.add_argument("-n", type=int, default=16, help="texts")
    parser.add_argument("--length", type=int, default=64, help="tokens of each")
    given = parser.parse_args()
    lm = unmask.load(given.model)
    texts = beginnings(lm, given.file, given.n, given.length)
    calls: list[int] = []  # sequences in each call of the network
    lm.model.backbone.register_forward_pre_hook(lambda _, inputs: calls.append(len(inputs[0].content)))
    table, base = [["plan", "network calls", "nats per token", "cost"]], np.zeros(0)
    for how in PLANS:
        calls.clear()
        likelihood = lm.score(texts, plan=Adaptive(given.measure, **how))
        nats = np.array([text.nats_per_token for text in likelihood.texts])
        base = base if len(base) else nats
        error = (nats - base).std(ddof=1) / len(texts) ** 0.5
        name = " ".join(f"{name} {value}" for name, value in how.items())
        cost = f"{(nats - base).mean():.3f} ± {error:.3f}"
        table.append([name, f"{sum(calls) / len(texts):.1f}", f"{likelihood.nats_per_token:.3f}", cost])
    print(markdown_table(table))


if __name__ == "__main__":
    main()
