"""What does a token cost? AR with its cache, the reveal plan of MDLM, and block diffusion, in one run.

Random weights at OWT size (12 x 768, V = 50258) and at 10M parameters (6 x 256, V = 8192). A text of L tokens is not
written whole: at some places of it a few tokens are written after a prompt of random tokens, which is read before the
clock starts; the methods take turns, and the median of the rounds counts. A text costs L times the mean over the
places. A call of MDLM reads the whole text wherever it is, so one call is timed.

    ar            one token a call, keys and values cached
    block B       blocks of B, one token a call
    block B / c   blocks of B in c calls (the reveal plan with c steps)
    speculative   a round: some tokens drafted in one call, and checked in another by the law of blocks of one token.
                  Random weights say nothing about how many are accepted: calls a token and the length of a draft are
                  those of a trained model (--trained), and a round with drafts of that length is timed here.
    mdlm          the reveal plan, one token a call, whole canvas

    python benchmarks/blocks.py                                  OWT size, batch 1, L = 1024
    python benchmarks/blocks.py --network 10m --length 2048 --batch 16
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time

import torch

import unmask
from measure import sgemm_peak
from sampling import NETWORKS
from unmask.config import Config, ModelConfig
from unmask.models import registry
from unmask.models.language_model import LanguageModel
from unmask.process.keys import Keys
from unmask.sampling import Batcher, BlockByBlock, FirstHitting, LeftToRight, Request, RevealPlan, Sampler, Slot
from unmask.sampling.params import SamplingParams
from unmask.training.memory import keep_pages
from unmask.types import Vocab

WRITTEN = 32  # tokens at each place: whole blocks of every size
PLACES = 4


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
        start, written, alive = time.perf_counter(), 0, True
        while alive and self.batcher.busy:
            states = self.batcher.step()
            written += sum(len(state.positions) for state, _ in states)
            alive = not any(state.done for state, _ in states)
        return (time.perf_counter() - start) * self.batch / written


def places(length: int) -> list[int]:
    """Where a text of this length is looked at: multiples of the tokens that are written."""
    return [int((i + 0.5) * length / PLACES) // WRITTEN * WRITTEN for i in range(PLACES)]


class Round:
    """The two calls of a speculative round for a batch of texts, from one place on."""

    def __init__(self, model: LanguageModel, place: int, batch: int, n: int) -> None:
        self.model, self.place, self.n, self.denoiser = model, place, n, model.denoiser()
        length = place + n + 1
        self.z = torch.randint(0, model.vocab.mask, (batch, length), generator=torch.Generator().manual_seed(place))
        self()  # which also reads the prompts

    def __call__(self) -> float:
        """Seconds of a round."""
        start = time.perf_counter()
        for count, block in ((self.n, None), (self.n + 1, 1)):
            z = self.z[:, : self.place + count].clone()
            if block is None:
                z[:, self.place :] = self.model.vocab.mask
            slots = [Slot(row, self.place, None, 0, self.place, block) for row in range(len(z))]
            queries = torch.arange(self.place, self.place + count).expand(len(z), -1)
            hidden = self.denoiser.hidden(z, torch.ones(len(z), dtype=torch.float64), None, None, queries, slots)
            self.denoiser.log_x(hidden.flatten(0, 1)).exp()
        return time.perf_counter() - start


def drafts_of(name: str) -> tuple[float, int]:
    """Calls a token and tokens of a draft of a trained model that writes speculatively, at temperature 1."""
    lm = unmask.load(name)
    samples = lm.write([lm.prompt_canvas("")] * 8, SamplingParams(sampler="speculative"))
    calls = sum(sample.network_calls for sample in samples)
    tokens = sum(len(sample.ids) for sample in samples)
    return calls / tokens, max(1, round(2 * sum(sample.drafted for sample in samples) / calls))


def main() -> None:
    """Time all methods and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n")[0])
    parser.add_argument("--network", default="owt", choices=NETWORKS)
    parser.add_argument("--kind", default="modern", choices=("modern", "dit"))
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--length", type=int, default=1024)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--trained", default=None, help="a trained block model, for what speculation accepts")
    parser.add_argument("--json", default=None)
    args = parser.parse_args()
    keep_pages()
    ar, block, mdlm = (random_model(args.network, method, args.kind) for method in ("ar", "block", "mdlm"))
    ways: dict[str, tuple[LanguageModel, Sampler]] = {
        "ar": (ar, LeftToRight(1)),
        "block 4": (block, BlockByBlock(FirstHitting(), 4)),
        "block 16": (block, BlockByBlock(FirstHitting(), 16)),
        "block 16 / 4": (block, BlockByBlock(RevealPlan(4), 16)),
    }
    calls = dict.fromkeys((*ways, "mdlm"), 1.0) | {"block 16 / 4": 0.25}
    draft = 0
    if args.trained is not None:
        calls["speculative"], draft = drafts_of(args.trained)
    seconds: dict[str, list[float]] = {name: [] for name in calls}
    with torch.no_grad():
        for round_ in range(args.rounds):
            costs: dict[str, list[float]] = {name: [] for name in ways}
            for place in places(args.length):
                for name, (model, sampler) in ways.items():
                    costs[name].append(Writing(model, sampler, place, args.batch)())
                if draft:
                    spent = Round(block, place, args.batch, draft)() * calls["speculative"] / 2
                    costs.setdefault("speculative", []).append(spent)
            for name, values in costs.items():
                seconds[name].append(statistics.mean(values))
            canvas = torch.full((args.length,), mdlm.vocab.mask)
            whole = Batcher(mdlm.denoiser(), args.batch)
            for row in range(args.batch):
                whole.add(Request(row, canvas, RevealPlan(1000), Keys(row)))
            start = time.perf_counter()
            whole.step()
            seconds["mdlm"].append(time.perf_counter() - start)
            print(f"round {round_ + 1} of {args.rounds}", file=sys.stderr)
    report(args, seconds, calls)
    if draft:
        print(f"speculative: drafts of {draft} tokens, as {args.trained} makes them")


def report(args: argparse.Namespace, seconds: dict[str, list[float]], calls: dict[str, float]) -> None:
    """The table: seconds of a text, and in units of AR's."""
    text = {name: statistics.median(values) * args.length for name, values in seconds.items()}
    print(
        f"{args.network} ({args.kind}), batch {args.batch}, L = {args.length}, {torch.get_num_threads()} threads, "
        f"matrix peak {sgemm_peak() / 1e9:.0f} GFLOP/s"
    )
    print(f"{'':16}{'seconds a text':>16}{'calls a token':>15}{'times AR':>10}")
    for name, value in text.items():
        print(f"{name:16}{value / args.batch:16.1f}{calls[name]:15.2f}{value / text['ar']:10.2f}")
    if args.json:
        with open(args.json, "w", encoding="utf-8") as file:
            json.dump({"settings": vars(args), "seconds": text, "calls": calls}, file, indent=1)


if __name__ == "__main__":
    main()
