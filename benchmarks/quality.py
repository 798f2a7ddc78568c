"""Which sampler writes the best text for its network calls? Perplexity under a judge and entropy, always together.

python benchmarks/quality.py runs/stories --scorer llama2c:data/stories260K --out runs/quality.json
python benchmarks/quality.py --plot docs/images/quality.svg runs/quality.json

Samples of every plan at several budgets of network calls, and real text of the validation split beside them. A run is
continued where it stopped: cells that are in the file are not drawn again.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from pathlib import Path
from typing import Any

BUDGETS = (8, 16, 32, 64, 128)
LENGTH = 128  # tokens a sample


def settings(calls: int, length: int = LENGTH) -> dict[str, dict[str, Any]]:
    """Every plan with settings that make about so many network calls a sequence of `length` tokens."""
    k = -(-length // calls)
    plans: dict[str, dict[str, Any]] = {
        "ancestral (plan)": {"sampler": "plan", "steps": calls},
        "left to right": {"sampler": "left-to-right", "k": k},
        "confidence": {"sampler": "confidence", "k": k},
        "entropy": {"sampler": "entropy", "k": k},
        "margin": {"sampler": "margin", "k": k},
        "remask cap": {"sampler": "remask-cap", "steps": calls, "eta": 0.02},
        "remask rescale": {"sampler": "remask-rescale", "steps": calls, "eta": 0.05},
        "remask loop": {"sampler": "remask-loop", "steps": calls, "eta": 0.02},
        "corrector": {"sampler": "corrector", "steps": max(1, calls // 2), "eta": 0.05},
    }
    if calls == length:
        plans["first hitting"] = {"sampler": "first-hitting"}
    threshold = {8: 0.15, 16: 0.05, 32: 0.08}.get(calls)  # of a model of this size, which is seldom sure
    if threshold:
        plans["confidence threshold"] = {"sampler": "confidence", "threshold": threshold}
    return plans


def run(model: str, scorer: str, out: Path, n: int, seed: int, batch_size: int, only: str = "") -> None:
    """Draw and judge what is not in the file yet."""
    from unmask.evaluation.generative import judge_model

    found = json.loads(out.read_text()) if out.exists() else {"cells": [], "reference": None, "protocol": None}
    done = {(cell["plan"], cell["budget"]) for cell in found["cells"]}
    for calls in BUDGETS:
        for plan, how in settings(calls).items():
            if (plan, calls) in done or (only and plan not in only.split(",")):
                continue
            start = time.perf_counter()
            first = found["reference"] is None
            report = judge_model(
                model,
                scorer=scorer,
                n=n,
                length=LENGTH,
                reference="valid" if first else "none",
                seed=seed,
                batch_size=batch_size,
                **how,
            ).as_dict()
            if first:
                found |= {"reference": report["reference"], "protocol": report["protocol"]}
            found["cells"].append({"plan": plan, "budget": calls, "how": how, **report["samples"]})
            out.write_text(json.dumps(found, indent=1))
            print(row(found["cells"][-1]), f"{time.perf_counter() - start:6.1f} s", file=sys.stderr, flush=True)


def row(cell: dict[str, Any]) -> str:
    """One line of the table."""
    error = cell["stderr"]
    return (
        f"{cell['plan']:22s} {cell['network_calls_per_sample']:6.1f} calls  "
        f"gen-PPL {cell['gen_perplexity']:7.2f} ± {error['gen_perplexity']:5.2f}  "
        f"entropy {cell['entropy']:.3f} ± {error['entropy']:.3f}  repetition {cell['repetition_4']:.3f}  "
        f"self-BLEU {cell['self_bleu_4']:.3f}"
    )


def show(path: Path) -> None:
    """The table."""
    found = json.loads(path.read_text())
    for cell in sorted(found["cells"], key=lambda c: (c["budget"], c["plan"])):
        print(row(cell))
    real = found["reference"]
    print(f"{'real text':22s} {'':13s} gen-PPL {real['gen_perplexity']:7.2f}           entropy {real['entropy']:.3f}")


def plot(path: Path, out: Path) -> None:
    """Two panels over network calls: perplexity under the judge, and entropy."""
    import matplotlib as mpl

    mpl.use("svg")
    mpl.rcParams["svg.hashsalt"] = "unmask"
    import matplotlib.pyplot as plt

    found = json.loads(path.read_text())
    plans = list(dict.fromkeys(cell["plan"] for cell in found["cells"]))
    markers = "osD^v<>PX*h"
    figure, panels = plt.subplots(1, 2, figsize=(11, 4.8), constrained_layout=True)
    for panel, name, title in zip(
        panels, ("gen_perplexity", "entropy"), ("perplexity under the judge", "entropy of a sample (nats)"), strict=True
    ):
        for i, plan in enumerate(plans):
            cells = sorted(
                (c for c in found["cells"] if c["plan"] == plan), key=lambda c: c["network_calls_per_sample"]
            )
            panel.errorbar(
                [c["network_calls_per_sample"] for c in cells],
                [c[name] for c in cells],
                [c["stderr"][name] for c in cells],
                label=plan,
                linewidth=1.2,
                marker=markers[i % len(markers)],
                markersize=5,
                capsize=2,
                color=plt.get_cmap("tab20")(i * 2 % 20 + (i >= 10)),
            )
        panel.axhline(found["reference"][name], color="black", linestyle="--", linewidth=1, label="real text")
        panel.set(xscale="log", xlabel="network calls a sequence", title=title)
        panel.set_xticks(BUDGETS, [str(b) for b in BUDGETS], minor=False)
        panel.minorticks_off()
        panel.grid(alpha=0.3)
    panels[0].set_yscale("log")
    panels[1].legend(fontsize=8, loc="center left", bbox_to_anchor=(1.01, 0.5))
    out.parent.mkdir(exist_ok=True, parents=True)
    figure.savefig(out, metadata={"Date": None})


def main() -> None:
    """Parse and go."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("model", help="folder of a run, or with --plot the file of a finished measurement")
    parser.add_argument("--scorer", default="llama2c:data/stories260K")
    parser.add_argument("--out", type=Path, default=Path("runs/quality.json"))
    parser.add_argument("--plot", type=Path)
    parser.add_argument("--only", default="", help="plans to draw, with commas between (default: all)")
    parser.add_argument("-n", type=int, default=64)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--batch-size", type=int, default=64)
    given = parser.parse_args()
    if given.plot:
        plot(Path(given.model), given.plot)
    else:
        run(given.model, given.scorer, given.out, given.n, given.seed, given.batch_size, given.only)
        given.model = str(given.out)
    show(Path(given.model))


if __name__ == "__main__":
    main()
