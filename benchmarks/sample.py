"""What does the reveal plan cost over the network itself? OWT size: 12 x 768, V = 50258, L = 1024, random weights.

Seconds a network call of the reveal plan over the trunk's own time (target: at most 1.10), and the cost of T = 250,
1000 and 5000 steps against the textbook ancestral sampler. Calls of a whole run are counted exactly from the plan;
at least 20 calls are timed a cell and multiplied by that count, which the table marks with ~.

    python benchmarks/sample.py [--calls 20]
"""

from __future__ import annotations

import argparse
import statistics
import time
from collections.abc import Callable, Iterator

import torch

from unmask import build
from unmask.config import Config
from unmask.keys import Keys
from unmask.models.masked import MaskedDiffusion
from unmask.ops.memory import keep_pages
from unmask.samplers import Ancestral, Choice, Plan, RevealPlan, time_grid
from unmask.types import State, Vocab

LENGTH = 1024
VOCAB = Vocab(50_258, 50_257, None, 50_256, 50_256)


def random_model() -> MaskedDiffusion:
    """Weights as at initialisation, but with a head and gates that are not zero."""
    torch.manual_seed(0)
    model = build.model(Config(), VOCAB)
    for name, p in model.named_parameters():
        if "adaLN" in name or "linear" in name:
            torch.nn.init.normal_(p, std=0.02)
    assert isinstance(model, MaskedDiffusion)
    return model.eval()


def seconds_per_call(states: Iterator[State], trunk: Callable[[], object], calls: int) -> tuple[float, float]:
    """Median times of a sampler's call (between states of one sequence) and of the trunk alone, taken in turns."""
    next(states)
    sampler, alone = [], []
    for _ in range(calls):
        start = time.perf_counter()
        next(states)
        middle = time.perf_counter()
        trunk()
        sampler.append(middle - start)
        alone.append(time.perf_counter() - middle)
    return statistics.median(sampler), statistics.median(alone)


def planned_calls(model: MaskedDiffusion, steps: int, key: Keys) -> int:
    """Network calls of a run: the distinct steps in which something is revealed."""
    masked = torch.ones(LENGTH, dtype=torch.bool)
    return len(RevealPlan.draw(masked, time_grid(model.schedule, steps)[1], key).unique())


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--calls", type=int, default=20)
    args = parser.parse_args()
    keep_pages()
    model = random_model()
    canvas, key = torch.full((LENGTH,), VOCAB.mask), Keys(0)

    @torch.no_grad()
    def trunk() -> torch.Tensor:
        return model.hidden(canvas[None], torch.ones(1))

    print(f"threads {torch.get_num_threads()}, torch {torch.__version__}, batch 1, {args.calls} timed calls a cell")
    print("    T  sampler         calls   s/call   trunk s   ratio   whole run (~ extrapolated)")
    for steps in (250, 1000, 5000):
        plans: list[tuple[str, Plan, int]] = [
            ("reveal plan", RevealPlan(steps), planned_calls(model, steps, key)),
            ("textbook", Ancestral(steps), steps),
        ]
        for name, plan, calls in plans:
            states = plan.run(model, [canvas], [key], Choice(), 1)
            each, alone = seconds_per_call(states, trunk, args.calls)
            times = f"{each:7.3f}   {alone:7.3f}   {each / alone:5.2f}   ~{each * calls:7.0f} s"
            print(f"{steps:5d}  {name:14s} {calls:6d}  {times}", flush=True)


if __name__ == "__main__":
    main()
