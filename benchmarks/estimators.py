"""How much noise is in the bound at equal network calls? The paper's estimator (times) against mask counts (strata).

Two settings, on the validation rows of a trained model:

- a data set: one call a row and draw, strata over all rows for both, as `unmask eval --estimator` does it;
- one text with K calls: times drawn independently (as in `unmask score`), times in K strata, and K mask counts.

Printed are the standard errors in nats per token, their ratio to that of the paper's estimator, and its square: the
calls that the paper's estimator needs for one of ours. ± is the standard error of the ratio (bootstrap).

    python benchmarks/estimators.py runs/demo [--rows 64] [--draws 32] [--texts 12] [--repeats 16] [--calls 1 4 16]
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from dataclasses import replace

import numpy as np
import torch

import unmask
from unmask.data.loader import eval_batch
from unmask.data.pack import prepare
from unmask.evaluation import STRATA, strata_nats
from unmask.evaluation.likelihood import TIMES, Estimator, eval_keys, evaluating, pick_rows
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.process.schedule import ContinuousTime
from unmask.types import Batch

AT_ONCE = 32  # rows a network call


def data_set(model: MaskedDiffusion, batch: Batch, estimator: Estimator, draws: int, seed: int) -> np.ndarray:
    """(draws,) nats per token of the whole set."""
    totals = np.zeros(draws)
    for start in range(0, len(batch), AT_ONCE):
        part = rows_of(batch, torch.arange(start, min(start + AT_ONCE, len(batch))))
        for draw in range(draws):
            totals[draw] += float(estimator.nats(model, part, eval_keys(seed).at(draw)).nats.double().sum())
    return totals / float(batch.weight().sum())


def rows_of(batch: Batch, which: torch.Tensor, index: torch.Tensor | None = None, total: int | None = None) -> Batch:
    """Some rows, at other places of the strata if these are given."""
    pick = {
        name: value[which]
        for name in ("tokens", "scored", "present", "label")
        if (value := getattr(batch, name)) is not None
    }
    return replace(batch, index=batch.index[which] if index is None else index, total=total or batch.total, **pick)


def times_apart(model: MaskedDiffusion, text: Batch, calls: int, keys: Keys) -> float:
    """K independent times."""
    return float(np.mean([float(model.nats(text, keys.fork(f"call {k}")).nats.double().sum()) for k in range(calls)]))


def times_in_strata(model: MaskedDiffusion, text: Batch, calls: int, keys: Keys) -> float:
    """K times, one in each of K strata."""
    many = rows_of(text, torch.zeros(calls, dtype=torch.int64), torch.arange(calls), calls)
    return float(model.nats(many, keys).nats.double().sum(-1).mean())


def counts(model: MaskedDiffusion, text: Batch, calls: int, keys: Keys) -> float:
    """K mask counts, covering the text evenly."""
    return float(strata_nats(model, text, keys, calls=calls, batch_size=AT_ONCE).nats.double().sum())


Single = Callable[[MaskedDiffusion, Batch, int, Keys], float]
SINGLE: dict[str, Single] = {"times": times_apart, "times in strata": times_in_strata, "mask counts": counts}


def single_text(
    model: MaskedDiffusion, batch: Batch, how: Single, calls: int, texts: int, repeats: int, seed: int
) -> np.ndarray:
    """(texts, repeats) nats per token of single texts."""
    found = np.zeros((texts, repeats))
    for i, row in enumerate(pick_rows(len(batch), texts)):
        text = rows_of(batch, torch.tensor([int(row)]), torch.tensor([0]), 1)
        for r in range(repeats):
            keys = eval_keys(seed).fork(f"text {i}").at(r)
            found[i, r] = how(model, text, calls, keys) / float(text.weight().sum())
    return found


def deviation(found: np.ndarray) -> float:
    """Root mean square over texts of the standard deviation over repeats."""
    return float(np.sqrt(found.var(-1, ddof=1).mean()))


def ratio(base: np.ndarray, ours: np.ndarray, seed: int = 0) -> tuple[float, float]:
    """(deviation of base / that of ours, its bootstrap error), resampling texts and repeats."""
    rng = np.random.default_rng(seed)

    def again(found: np.ndarray) -> np.ndarray:
        some = found[rng.integers(0, len(found), len(found))]
        return np.take_along_axis(some, rng.integers(0, some.shape[1], some.shape), axis=1)

    many = [deviation(again(base)) / deviation(again(ours)) for _ in range(400)]
    return deviation(base) / deviation(ours), float(np.std(many))


def line(name: str, found: np.ndarray, base: np.ndarray) -> str:
    """One row of the table."""
    mean, spread = found.mean(), deviation(found)
    off = spread / np.sqrt(found.size)
    if found is base:
        return f"  {name:16s} {mean:8.4f} ± {off:.4f}   {spread:.4f}     1"
    factor, error = ratio(base, found)
    return f"  {name:16s} {mean:8.4f} ± {off:.4f}   {spread:.4f}  {factor:5.2f} ± {error:.2f}   {factor**2:6.1f}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model")
    parser.add_argument("--rows", type=int, default=64, help="rows of the data set")
    parser.add_argument("--draws", type=int, default=32, help="draws of the data set")
    parser.add_argument("--texts", type=int, default=12, help="single texts")
    parser.add_argument("--repeats", type=int, default=16, help="repetitions of each text")
    parser.add_argument("--calls", type=int, nargs="*", default=[1, 4, 16], help="network calls a text")
    parser.add_argument("--cutoff", type=float, help="another cut-off than the model's")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    lm = unmask.load(args.model)
    assert isinstance(lm.model, MaskedDiffusion)
    model = lm.model if args.cutoff is None else lm.model.under(law=ContinuousTime(args.cutoff))
    rows = prepare(lm.config.data, lm.tokenizer, splits=("valid",)).split("valid")
    batch = eval_batch(rows, pick_rows(len(rows), args.rows), lm.config.data.attend_pads)
    batch = replace(batch, index=torch.arange(len(batch)), total=len(batch))
    print(f"{args.model}, {model.law}, rows of {batch.tokens.shape[1]} tokens, seed {args.seed}")
    head = "                       mean               error    ratio          calls saved"
    with torch.no_grad(), evaluating(model):
        print(f"a data set of {len(batch)} rows, one call a row, {args.draws} draws\n{head}")
        base = data_set(model, batch, TIMES, args.draws, args.seed)[None]
        print(line("times", base, base), flush=True)
        print(line("mask counts", data_set(model, batch, STRATA, args.draws, args.seed)[None], base), flush=True)
        for calls in args.calls:
            print(f"one text, {calls} calls; {args.texts} texts, {args.repeats} repetitions\n{head}")
            base = np.empty(0)
            for name, how in SINGLE.items():
                if calls == 1 and name == "times in strata":
                    continue
                found = single_text(model, batch, how, calls, args.texts, args.repeats, args.seed)
                base = found if name == "times" else base
                print(line(name, found, base), flush=True)


if __name__ == "__main__":
    main()
