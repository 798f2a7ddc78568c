"""`unmask demo`, which `make demo` runs: show what the built-in model writes, then train one and show that."""

from __future__ import annotations

import math
import sys
import time
from typing import Annotated

import typer

from ..errors import UserError
from .shared import Overrides, exit_code

BUILT_IN = "tiny-en"
GAP = "This {{1}} is called when the {{2}} of the object is not found."


def demo(
    overrides: Overrides = None,
    out: Annotated[str, typer.Option(help="Folder of the run.")] = "runs/demo",
) -> None:
    """Train the demo model on Python's documentation and show what it can do."""
    run(out, overrides or [])


def show_built_in() -> None:
    """What the built-in model writes, before anything is trained."""
    from ..hub.resolve import load

    lm = load(BUILT_IN)
    story, gaps = lm.recommended.prompts[0], lm.recommended.infill
    parameters = sum(p.numel() for p in lm.model.parameters())
    print(f"{BUILT_IN}, a small model of {parameters:,} parameters, comes with the package. It fills gaps: {gaps}")
    for text in lm.infill(gaps, n=3, seed=0):
        print(f"  {text}")
    print(f"\nIt tells a story: {lm.sample(prompt=story, length=128, seed=0)[0]}")
    print(flush=True)


def run(out: str, overrides: list[str]) -> None:
    """Train (or continue), then report. Everything but the figures goes to standard error."""
    from ..data.pack import prepare
    from ..evaluation.likelihood import baselines, evaluate
    from ..hub import checkpoint
    from ..hub.resolve import load
    from ..recipes import with_overrides
    from ..training.text import train

    config = with_overrides("demo", overrides, out)
    if (method := config.model.method) != "mdlm":
        raise UserError(f"the demo shows mdlm; train another method with: unmask train demo model.method={method}")
    started = time.monotonic()
    show_built_in()
    print("A masked diffusion language model learns Python's own documentation.", file=sys.stderr)
    result = train(config, out)
    if not result.finished:
        sys.exit(exit_code())
    lm = load(out)
    data = prepare(lm.config.data, lm.tokenizer, splits=("train", "valid"))
    valid = data.split("valid")
    likelihood = evaluate(lm.model, valid, draws=config.eval.draws, batch_size=config.eval.batch_size)
    simple = baselines(data.split("train"), valid, lm.tokenizer.vocab.size)
    parameters = sum(p.numel() for p in lm.model.parameters())
    error = (likelihood.stderr_nats or 0.0) * likelihood.perplexity
    step = checkpoint.resolve(out).name
    trained = f"{result.seconds:.0f} s of training, {result.tokens_per_second:,.0f} tokens/s"
    if not result.tokens_per_second:
        trained = "trained before"
    print(f"\n{parameters:,} parameters, {step}, {trained}")
    print(f"\nPerplexity on {likelihood.tokens:,} held-out tokens ({valid.documents} documents), lower is better:")
    print(f"  uniform model              {math.exp(simple['uniform']):8.1f}")
    print(f"  unigram model              {math.exp(simple['unigram']):8.1f}")
    print(f"  masked diffusion (bound)   {likelihood.perplexity:8.1f} ± {error:.1f}")
    print("  protocol:", ", ".join(f"{k}={v}" for k, v in likelihood.protocol.items()))
    print("\nFour samples (128 steps, temperature 0.5):")
    for sample in lm.write_samples(4, seed=0, temperature=0.5):
        print(f"\n[seed {sample.seed}, {sample.network_calls} network calls]\n{sample.text}")
    print(f"\nA filled gap: {GAP}")
    for text in lm.infill(GAP, n=3, seed=0, temperature=0.7):
        print(f"  {text}")
    print(f"\n{time.monotonic() - started:.0f} s in all. What to try next, in this environment (. .venv/bin/activate):")
    print(f"  unmask sample {out} --watch                      see the masks become words")
    print(f"  unmask sample {out} --prompt 'The object' -n 2   continue a text")
    print(f"  unmask eval {out} --split test --draws 8         the held-out test set")
    print(f"  unmask finetune {BUILT_IN} mdlm --data YOUR.txt --minutes 2 --out runs/tuned")
    print("  unmask train small data.source=YOUR.txt --out runs/mine")
