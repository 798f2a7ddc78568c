"""How fast is the reveal plan? Against ancestral sampling, textbook and cached as in the paper (section 4.1).

Wall time and network calls of whole runs that write B sequences of 1024 tokens from nothing but masks, with random
weights, at OWT size (12 x 768, V = 50258) and at 10M parameters (6 x 256, V = 8192). Network calls are counted
exactly: when a position is revealed does not depend on the network, so the plan's own draws say which steps change
something. The parts of a run are timed in turns, 20 times each, and these are the times of the table, marked ~:

    textbook      T x (predict + draw)                  predict: network, head and SUBS on (B, L, V)
    cached        calls x predict + T x draw            calls: 1 + steps before the last that change any of B sequences
    reveal plan   row calls x (one call of B rows) / B  row calls: steps that change a sequence, summed over sequences

A plan's sequences end at different calls, so its last few calls have fewer rows; hence row calls. Quartiles beside
the last ratio are over rounds, each judged by its own timings. A run that would take at most --complete seconds is
made, shown without ~, and compared with its extrapolation. What --style means: unmask/reproduce/published.py.

    python benchmarks/sampling.py                                             everything: hours on 2 cores
    python benchmarks/sampling.py --network owt --batch 16 --json owt16.json  one piece
    python benchmarks/sampling.py --show owt1.json owt16.json                 print saved pieces
"""

from __future__ import annotations

import argparse
import itertools
import json
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict
from pathlib import Path

import torch

from measure import sgemm_peak
from sampling_table import GIB, Counts, Piece, cell, show
from unmask.config import Config, ModelConfig
from unmask.models import registry
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.reproduce.reference import STYLES, Careful, ancestral
from unmask.sampling import Request, RevealPlan, time_grid
from unmask.training.memory import keep_pages
from unmask.types import State, Vocab

NETWORKS = {  # name -> (blocks, width, heads, vocabulary, length)
    "owt": (12, 768, 12, 50_258, 1024),
    "10m": (6, 256, 4, 8_192, 1024),
    "toy": (1, 16, 2, 64, 16),
}
STEPS = "50,250,1000,5000,10000"


def random_model(name: str) -> MaskedDiffusion:
    """Weights as at initialisation, but with a head and gates that are not zero."""
    blocks, width, heads, size, _ = NETWORKS[name]
    torch.manual_seed(0)
    config = Config(model=ModelConfig(n_blocks=blocks, hidden_dim=width, n_heads=heads))
    model = registry.model(config, Vocab(size, size - 1))
    for key, p in model.named_parameters():
        if "adaLN" in key or "linear" in key:
            torch.nn.init.normal_(p, std=0.02)
    assert isinstance(model, MaskedDiffusion)
    return model.eval()


def plan_keys(batch: int) -> list[Keys]:
    return [Keys(i) for i in range(batch)]


def blank(model: MaskedDiffusion, batch: int, length: int) -> torch.Tensor:
    return torch.full((batch, length), model.vocab.mask)


def count(model: MaskedDiffusion, batch: int, length: int, steps: int) -> Counts:
    """Network calls of whole runs, from the draws of the plan."""
    masked = torch.ones(length, dtype=torch.bool)
    alphas = time_grid(model.schedule, steps)[1]
    events = [set(RevealPlan.draw(masked, alphas, key).tolist()) for key in plan_keys(batch)]
    changed = set().union(*events)
    return Counts(
        cached=1 + len([step for step in changed if step < steps - 1]),
        plan=max(len(own) for own in events),
        rows=sum(len(own) for own in events),
        full=min(len(own) for own in events),
    )


class PlanCalls:
    """A run of the reveal plan that stops after every network call."""

    def __init__(self, model: MaskedDiffusion, batch: int, length: int, steps: int) -> None:
        self.model, self.batch, self.length, self.plan = model, batch, length, RevealPlan(steps)
        self.full = count(model, batch, length, steps).full
        self.seen, self.done, self.states = 0, 0, self._start()
        model.backbone.register_forward_pre_hook(self._hook)

    def _hook(self, *_: object) -> None:
        self.seen += 1

    def _start(self) -> Iterator[State]:
        canvases = zip(blank(self.model, self.batch, self.length), plan_keys(self.batch), strict=True)
        requests = [Request(row, canvas, self.plan, key) for row, (canvas, key) in enumerate(canvases)]
        return self.model.generate(requests, self.batch)

    def __call__(self) -> None:
        """One call with all B sequences under way; after the last of those the run begins again."""
        if self.done == self.full:
            self.done, self.states = 0, self._start()
        before = self.seen
        for _ in range(self.batch):
            next(self.states)
        assert self.seen > before, "a call of the plan is no longer one state of every sequence"
        self.done += 1

    def complete(self) -> int:
        """A whole run; gives its network calls."""
        before = self.seen
        for _ in self._start():
            pass
        return self.seen - before


def timed(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def flops(name: str, batch: int) -> float:
    """Matrix products of the trunk for B rows."""
    blocks, width, _, _, length = NETWORKS[name]
    return blocks * batch * (2 * 12 * width**2 * length + 4 * length**2 * width)


def measure(name: str, batch: int, args: argparse.Namespace, save: Callable[[Piece], None]) -> None:
    """All parts of one network and batch size, in turns; `save` gets the piece after every round."""
    model, style = random_model(name), STYLES[args.style]
    blocks, width, _, size, length = NETWORKS[name]
    piece = Piece(
        network=name,
        batch=batch,
        blocks=blocks,
        width=width,
        vocab=size,
        length=length,
        parameters=sum(p.numel() for p in model.parameters()),
        flops=flops(name, batch),
        style=args.style,
        threads=torch.get_num_threads(),
        torch=torch.__version__,
        kept_pages=args.keep_pages,
        lean=args.lean,
        counts={str(t): count(model, batch, length, t) for t in args.steps},
        memory=plan_memory(name, batch, min(args.steps)),
    )
    plans = {t: PlanCalls(model, batch, length, t) for t in args.steps}
    half = blank(model, batch, length)  # a canvas from the middle of a run
    half[torch.rand(half.shape, generator=torch.Generator().manual_seed(0)) < 0.5] = 0
    start = time.perf_counter()
    for done in range(args.calls + 1):
        seconds = lean_round(model, half, plans, style) if args.lean else one_round(model, half, plans, style)
        if done:  # the first round warms up
            for part, value in seconds.items():
                piece.seconds.setdefault(part, []).append(value)
            piece.peaks.append(sgemm_peak(0.5))
            save(piece)
        left = (time.perf_counter() - start) / (done + 1) * (args.calls - done)
        print(f"{name}, batch {batch}: round {done} of {args.calls}, {left / 60:.1f} min left", file=sys.stderr)
    for t, sampler in itertools.product(args.steps, ("textbook", "cached", "plan")):
        if cell(piece, sampler, t).seconds <= args.complete:
            piece.complete[f"{sampler} {t}"] = complete_run(model, plans[t], sampler, style)
            save(piece)


def one_round(
    model: MaskedDiffusion, z: torch.Tensor, plans: dict[int, PlanCalls], style: type[Careful]
) -> dict[str, float]:
    """Every part once."""
    t = torch.full((len(z),), 0.5, dtype=torch.float64)
    with torch.no_grad():
        seconds = {"trunk": timed(lambda: model.hidden(z, t))}
    return seconds | baseline_round(model, z, t, style) | {f"plan {T}": timed(plan) for T, plan in plans.items()}


def lean_round(
    model: MaskedDiffusion, z: torch.Tensor, plans: dict[int, PlanCalls], style: type[Careful]
) -> dict[str, float]:
    """The least that a table needs: one draw, and one call of the plan, which hardly differs between values of T."""
    t = torch.full((len(z),), 0.5, dtype=torch.float64)
    clock = [time.perf_counter()]
    x = style.predict(model, z, t)
    clock.append(time.perf_counter())
    style.draw(x, 0.5, 0.501, model.vocab.mask, keep=True)
    clock.append(time.perf_counter())
    del x
    predict, draw = clock[1] - clock[0], clock[2] - clock[1]
    plan = timed(plans[1000] if 1000 in plans else next(iter(plans.values())))
    return {"predict": predict, "draw, cache kept": draw, "draw": draw} | {f"plan {T}": plan for T in plans}


def baseline_round(model: MaskedDiffusion, z: torch.Tensor, t: torch.Tensor, style: type[Careful]) -> dict[str, float]:
    """The parts of the other two; their (B, L, V) tensors are gone when this returns."""
    start = time.perf_counter()
    x = style.predict(model, z, t)
    return {
        "predict": time.perf_counter() - start,
        "draw, cache kept": timed(lambda: style.draw(x, 0.5, 0.501, model.vocab.mask, keep=True)),
        "draw": timed(lambda: style.draw(x, 0.5, 0.501, model.vocab.mask, keep=False)),
    }


def complete_run(model: MaskedDiffusion, plan: PlanCalls, sampler: str, style: type[Careful]) -> tuple[float, int]:
    """(seconds, network calls) of a whole run."""
    start = time.perf_counter()
    if sampler == "plan":
        calls = plan.complete()
    else:
        z = blank(model, plan.batch, plan.length)
        calls = ancestral(model, z, plan.plan.steps, cache=sampler == "cached", style=style)[1]
    return time.perf_counter() - start, calls


def plan_memory(name: str, batch: int, steps: int) -> int | None:
    """By how many bytes a process of its own grows at the peak of a plan's call; None where /proc does not say."""
    command = [sys.executable, __file__, "--memory-of", name, "--batch", str(batch), "--steps", str(steps)]
    return json.loads(subprocess.run(command, stdout=subprocess.PIPE, check=True).stdout)


def memory_of(name: str, batch: int, steps: int) -> int | None:
    """The growth, in this process."""
    status, refs = Path("/proc/self/status"), Path("/proc/self/clear_refs")
    model = random_model(name)
    call = PlanCalls(model, batch, NETWORKS[name][-1], steps)
    if not refs.exists():
        return None
    with torch.no_grad():
        model.log_x(model.hidden(blank(model, 1, 2), torch.ones(1)))  # libraries take buffers of their own once
    before = _kib(status, "VmRSS")
    refs.write_text("5")  # the high-water mark starts from here
    call()
    return 1024 * (_kib(status, "VmHWM") - before)


def _kib(file: Path, name: str) -> int:
    return next(int(line.split()[1]) for line in file.read_text().splitlines() if line.startswith(name + ":"))


def integers(text: str) -> list[int]:
    try:
        values = [int(part) for part in text.split(",")]
    except ValueError:
        values = [0]
    if min(values) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} must be whole numbers of at least 1, such as 1,16")
    return values


def names(text: str) -> list[str]:
    if unknown := set(text.split(",")) - set(NETWORKS):
        raise argparse.ArgumentTypeError(f"unknown network {min(unknown)!r}; choose from {', '.join(NETWORKS)}")
    return text.split(",")


def arguments(argv: list[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--network", type=names, default="owt,10m", help="of " + ", ".join(NETWORKS))
    parser.add_argument("--batch", type=integers, default="1,16")
    parser.add_argument("--steps", type=integers, default=STEPS, help="values of T")
    parser.add_argument("--calls", type=int, default=20, help="how often every part is timed")
    parser.add_argument("--complete", type=float, default=60.0, help="make runs that take at most so many seconds")
    parser.add_argument("--style", choices=list(STYLES), default="careful", help="how the other two are written")
    parser.add_argument("--keep-pages", action="store_true", help="all samplers reuse freed memory, as training does")
    parser.add_argument("--lean", action="store_true", help="time one call of the plan (T = 1000) for all values of T")
    parser.add_argument("--json", type=Path, metavar="FILE", help="save the timings, after every round")
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="print saved pieces and measure nothing")
    parser.add_argument("--memory-of", type=names, help=argparse.SUPPRESS)  # what the memory's own process is told
    args = parser.parse_args(argv)
    if args.calls < 1:
        parser.error(f"argument --calls: {args.calls} must be at least 1")
    if args.json and (args.json.is_dir() or not args.json.parent.is_dir()):
        parser.error(f"argument --json: {args.json} cannot be written; name a file in a folder that exists")
    try:
        args.show = [piece for file in args.show or () for piece in load(file)]
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        parser.error(f"argument --show: that is no file which --json wrote ({error})")
    if not args.show and not args.memory_of:
        for name, batch in itertools.product(args.network, args.batch):
            if lack := too_large(name, batch, STYLES[args.style]):
                parser.error(lack)
    return args


def load(file: Path) -> list[Piece]:
    return [Piece.read(fields) for fields in json.loads(file.read_text())]


def too_large(name: str, batch: int, style: type[Careful]) -> str:
    """Why the textbook does not fit, or nothing."""
    need = style.tensors * 4 * batch * NETWORKS[name][-1] * NETWORKS[name][-2]
    meminfo = Path("/proc/meminfo")
    free = 1024 * _kib(meminfo, "MemAvailable") if meminfo.exists() else need
    if need <= free:
        return ""
    return (
        f"{name} at batch {batch} needs {need / GIB:.1f} GiB for the textbook's (B, L, V) tensors and "
        f"{free / GIB:.1f} are free; give a smaller --batch"
    )


def main(argv: list[str] | None = None) -> None:
    args = arguments(argv)
    if args.memory_of:
        print(json.dumps(memory_of(args.memory_of[0], args.batch[0], args.steps[0])))
        return
    if args.show:
        show(args.show)
        return
    args.keep_pages = args.keep_pages and keep_pages()
    pieces: dict[tuple[str, int], Piece] = {}

    def save(piece: Piece) -> None:
        pieces[piece.network, piece.batch] = piece
        if args.json:
            args.json.write_text(json.dumps([asdict(piece) for piece in pieces.values()]))

    for name, batch in itertools.product(args.network, args.batch):
        measure(name, batch, args, save)
    show(list(pieces.values()))


if __name__ == "__main__":
    main()
