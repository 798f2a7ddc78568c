"""What does a token cost? AR with its cache, the reveal plan of MDLM, and block diffusion, in one run.

Random weights at OWT size (12 x 768, V = 50258) and at 10M parameters (6 x 256, V = 8192). A text of L tokens is not
written whole: at some places of it a few tokens are written after a prompt of random tokens, which is read before the
clock starts; the methods take turns, and the median of the rounds counts. A text costs L times the mean over the
places. A call of MDLM reads the whole text wherever it is, so one call is timed.

    ar            one token a call, keys and values cached
    block B       blocks of B, one token a call
    block B / c   blocks of B in c calls (the reveal plan with c steps)
    speculative   every call checks a tree of drafted tokens by the law of blocks of one token, and drafts the next.
                  Random weights say nothing about how many are accepted: calls a token and the columns of a call are
                  those of a trained model (--trained), and a call with as many columns is timed here.
    mdlm          the reveal plan, one token a call, whole canvas

With one thread the clock is that of the process, so that others may use the machine meanwhile. Several lengths show
whether a token costs the same everywhere: its cost without attention, which is timed alone with as many keys, should.

    python benchmarks/blocks.py                                  OWT size, batch 1, L = 1024
    python benchmarks/blocks.py --network 10m --length 2048 --batch 16
    python benchmarks/blocks.py --network 10m --length 256 512 1024 2048 --threads 1
    python benchmarks/blocks.py --trained tiny-en --temperature 0.9 --top-p 0.9
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, cast

import torch
import torch.nn.functional as F
from torch import Tensor

import unmask
from measure import sgemm_peak
from sampling import NETWORKS
from unmask.config import Config, ModelConfig
from unmask.models import registry
from unmask.models.block_diffusion import BlockDiffusion, CachedBlocks
from unmask.models.language_model import LanguageModel
from unmask.networks.kernels.packed_linear import PackedWeights
from unmask.process.keys import Keys
from unmask.sampling import Batcher, BlockByBlock, FirstHitting, LeftToRight, Request, RevealPlan, Sampler, Slot
from unmask.sampling.params import SamplingParams
from unmask.sampling.sampler import SlotColumns
from unmask.training.memory import keep_pages
from unmask.types import Vocab

WRITTEN = 32  # tokens at each place: whole blocks of every size
PLACES = 4


def clock() -> float:
    """Seconds: of this process if it has one thread, else of the wall."""
    return time.process_time() if torch.get_num_threads() == 1 else time.perf_counter()


def random_model(name: str, method: str, kind: str) -> LanguageModel:
    """A network as at initialisation, but with no weights that are zero."""
    blocks, width, heads, size, _ = NETWORKS[name]
    torch.manual_seed(0)
    config = Config(model=ModelConfig(method=method, network=kind, n_blocks=blocks, hidden_dim=width, n_heads=heads))
    model = registry.model(config, Vocab(size, size - 1))
    for weight in model.parameters():
        if not weight.any():
            torch.nn.init.normal_(weight, std=0.02)
    return model.eval()


class Writing:
    """A batch of texts from one place on, `WRITTEN` tokens each."""

    def __init__(self, model: LanguageModel, sampler: Sampler, place: int, batch: int) -> None:
        self.batcher = Batcher(model.denoiser(), batch)
        tokens = torch.randint(0, model.vocab.mask, (batch, place), generator=torch.Generator().manual_seed(place))
        masks = torch.full((WRITTEN + 1,), model.vocab.mask)
        for row in range(batch):
            self.batcher.add(Request(row, torch.cat([tokens[row], masks]), sampler, Keys(row)))
        self.batcher.step()  # which also reads the prompts
        self.written, self.batch = 0, batch

    def __call__(self) -> float:
        """Seconds a token of a text."""
        start, written, alive = clock(), 0, True
        while alive and self.batcher.busy:
            states = self.batcher.step()
            written += sum(len(state.positions) for state, _ in states)
            alive = not any(state.done for state, _ in states)
        return (clock() - start) * self.batch / written


def places(length: int) -> list[int]:
    """Where a text of this length is looked at: multiples of the tokens that are written."""
    return [int((i + 0.5) * length / PLACES) // WRITTEN * WRITTEN for i in range(PLACES)]


class Drafts(NamedTuple):
    """What speculation by a trained model takes: means over its calls."""

    calls: float  # a token
    columns: int  # of a call, without the tokens of the call before
    accepted: float  # tokens of a call
    drafted: float


class SpeculativeCall:
    """A call of speculation for a batch of texts, from one place on; it reads again what the last one has written."""

    def __init__(self, model: LanguageModel, place: int, batch: int, drafts: Drafts) -> None:
        self.model, self.denoiser, self.packed = model, model.denoiser(), PackedWeights()
        self.n, length, again = drafts.columns, place + drafts.columns, round(drafts.accepted) + 1
        self.z = torch.randint(0, model.vocab.mask, (batch, length), generator=torch.Generator().manual_seed(place))
        columns = SlotColumns(place + torch.arange(self.n) % 8, torch.ones(self.n, self.n).tril().bool())
        self.slots = [Slot(row, place - again, None, 0, place, None, columns) for row in range(batch)]
        self.queries = torch.arange(place, length).expand(batch, -1)
        self.asked = again + 2  # rows of the head: what is checked, and drafts for two places
        self()  # which also reads the prompts

    def __call__(self) -> float:
        """Seconds of a call."""
        start = clock()
        with self.packed.in_use():
            t = torch.ones(len(self.z), dtype=torch.float64)
            hidden = self.denoiser.hidden(self.z, t, None, None, self.queries, self.slots)
            self.denoiser.log_x(hidden[:, : self.asked].flatten(0, 1)).exp()
        return clock() - start


class CountedColumns(CachedBlocks):
    """A denoiser that counts what it is asked to read."""

    columns = 0

    def hidden(self, *args: Any, slots: Sequence[Slot] = (), **more: Any) -> Tensor:
        """As ever, and counted."""
        self.columns += sum(len(slot.columns.place) for slot in slots if slot.columns is not None)
        return super().hidden(*args, slots=slots, **more)


def drafts_of(name: str, **choice: float | None) -> Drafts:
    """What speculation takes by a trained model, over eight texts."""
    lm = unmask.load(name)
    denoiser = CountedColumns(cast(BlockDiffusion, lm.model))
    lm.model.denoiser = lambda: denoiser  # type: ignore[attr-defined]
    samples = lm.write([lm.prompt_canvas("")] * 8, SamplingParams(sampler="speculative", **choice))
    calls, drafted, accepted = (
        sum(getattr(sample, name) for sample in samples) for name in ("network_calls", "drafted", "accepted")
    )
    tokens = sum(len(sample.ids) for sample in samples)
    return Drafts(calls / tokens, round(denoiser.columns / calls), accepted / calls, drafted / calls)


def attention(name: str, batch: int, place: int, columns: int) -> float:
    """Seconds of the attention of a call, all blocks."""
    blocks, width, heads, *_ = NETWORKS[name]
    q, k, v = (torch.randn(batch, heads, n, width // heads) for n in (columns, place, place))
    return blocks * least(lambda: F.scaled_dot_product_attention(q, k, v))


def least(call: Callable[[], object], times: int = 5) -> float:
    """The least seconds of some calls."""
    found = []
    for _ in range(times):
        start = clock()
        call()
        found.append(clock() - start)
    return min(found)


WAYS: dict[str, tuple[str, Sampler, float, int]] = {  # method, sampler, calls a token, columns of most calls
    "ar": ("ar", LeftToRight(1), 1.0, 1),
    "block 4": ("block", BlockByBlock(FirstHitting(), 4), 1.0, 4),
    "block 16": ("block", BlockByBlock(FirstHitting(), 16), 1.0, 16),
    "block 16 / 4": ("block", BlockByBlock(RevealPlan(4), 16), 0.25, 16),
}


def seconds_a_token(
    args: argparse.Namespace, models: dict[str, LanguageModel], length: int, drafts: Drafts | None
) -> dict[str, float]:
    """Seconds that each way takes for a token of each text of the batch: one round."""
    costs: dict[str, list[float]] = {}
    for place in places(length):
        for name, (method, sampler, *_) in WAYS.items():
            costs.setdefault(name, []).append(Writing(models[method], sampler, place, args.batch)())
        if drafts is not None:
            a_call = SpeculativeCall(models["block"], place, args.batch, drafts)()
            costs.setdefault("speculative", []).append(a_call * drafts.calls)
    if not args.no_mdlm:
        whole = Batcher(models["mdlm"].denoiser(), args.batch)
        for row in range(args.batch):
            whole.add(Request(row, torch.full((length,), models["mdlm"].vocab.mask), RevealPlan(1000), Keys(row)))
        whole.step()
        start = clock()
        whole.step()
        costs["mdlm"] = [clock() - start]
    return {name: statistics.mean(values) for name, values in costs.items()}


def main() -> None:
    """Time all methods and print a table for each length."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--network", default="owt", choices=NETWORKS)
    parser.add_argument("--kind", default="modern", choices=("modern", "dit"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, nargs="+", default=[1024])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=torch.get_num_threads())
    parser.add_argument("--trained", default=None, help="a trained block model, for what speculation accepts")
    parser.add_argument("--temperature", type=float, default=1.0, help="of the trained model's texts")
    parser.add_argument("--top-p", type=float, default=None)
    parser.add_argument("--no-mdlm", action="store_true", help="leave the whole canvas out")
    parser.add_argument("--json", default=None)
    args = parser.parse_args()
    torch.set_num_threads(args.threads)
    keep_pages()
    calls = {name: each for name, (_, _, each, _) in WAYS.items()} | {"mdlm": 1.0}
    drafts = None
    if args.trained is not None:
        drafts = drafts_of(args.trained, temperature=args.temperature, top_p=args.top_p)
        calls["speculative"] = drafts.calls
        print(
            f"speculative, as by {args.trained}: a call has {drafts.columns} columns, and {drafts.accepted:.2f} of "
            f"{drafts.drafted:.2f} drafted tokens are accepted"
        )
    methods = ("ar", "block") if args.no_mdlm else ("ar", "block", "mdlm")
    models = {method: random_model(args.network, method, args.kind) for method in methods}
    results = []
    for length in args.length:
        rounds = []
        for number in range(args.rounds):
            with torch.no_grad():
                rounds.append(seconds_a_token(args, models, length, drafts))
            print(f"L = {length}, round {number + 1} of {args.rounds}", file=sys.stderr)
        token = {name: statistics.median(one[name] for one in rounds) for name in rounds[0]}
        seen = {
            name: calls[name] * statistics.mean(attention(args.network, args.batch, p, m) for p in places(length))
            for name, (_, _, _, m) in WAYS.items()
        }
        report(args, length, token, seen, calls)
        results.append({"length": length, "seconds_a_token": token, "attention": seen, "calls": calls})
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"settings": vars(args), "results": results}, file, indent=1)


def report(
    args: argparse.Namespace, length: int, token: dict[str, float], seen: dict[str, float], calls: dict[str, float]
) -> None:
    """The table: what a text and a token of it cost, and in units of AR's."""
    threads = torch.get_num_threads()
    how = "1 thread, CPU time" if threads == 1 else f"{threads} threads, peak {sgemm_peak() / 1e9:.0f} GFLOP/s"
    print(f"\n{args.network} ({args.kind}), batch {args.batch}, L = {length}, {how}")
    names = ("seconds a text", "calls a token", "times AR", "ms a token", "of it attention")
    print(" " * 16 + "".join(f"{name:>16}" for name in names))
    for name, value in token.items():
        ms = value / args.batch * 1e3
        part = f"{seen[name] / args.batch * 1e3:16.2f}" if name in seen else ""
        print(f"{name:16}{ms * length / 1e3:16.1f}{calls[name]:16.2f}{value / token['ar']:16.2f}{ms:16.2f}{part}")


if __name__ == "__main__":
    main()
