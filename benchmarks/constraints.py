"""What does a constraint cost? Compiling it for vocabularies of 8k, 50k and 126k tokens, and its steps.

Vocabularies are pieces of words of Python's standard library, so that nothing has to be loaded; `--tokenizer FOLDER`
takes a real one. Forms have about 10, 100 and 1000 states: a date, a JSON object, a JSON object with long strings. For
each: processor seconds to compile the pattern and the automaton over tokens, the peak of memory while doing so and what
is kept, and the seconds of one step for one text of L open positions: the chances of classes from (L, V)
log-probabilities, and the sums and the draw.

    python benchmarks/constraints.py [--sizes 8000,50000,126000] [--lengths 128,1024] [--turns 3] [--json]

With `--network`, processor seconds a token of a sampler with and without a form, for random networks: 64 steps, each a
call of the network that writes L / 64 positions at random, timed in turns where 7/8, 5/8, 3/8 and 1/8 of a text that
fits are still open. The forms are any number of dates, the JSON object, and lines of 999 letters: 10, 100 and 1000
states.

    python benchmarks/constraints.py --network 6x256 [--batch 1] [--states 10,100,1000] [--sizes ...] [--lengths ...]
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import sysconfig
import time
import tracemalloc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from unmask.config import Config, ModelConfig
from unmask.constraints import Language, TokenAutomaton, chain, json_schema, over_tokens, regex
from unmask.models import registry
from unmask.models.masked import MaskedDiffusion
from unmask.networks.kernels.packed_linear import PackedWeights
from unmask.process.keys import Keys
from unmask.sampling import Constraint, FormedSpan, GivenOrder, LeftToRight, Request, Trajectory
from unmask.types import Vocab

PIECE = re.compile(r" ?[A-Za-z]+| ?[0-9]+| ?[^\sA-Za-z0-9]+|\s+")
AT_ONCE = 64  # rows of log-probabilities


def schema(longest: int | None) -> dict[str, Any]:
    """An object with two strings of at most this length, a number and a list."""
    text = {"type": "string"} | ({} if longest is None else {"maxLength": longest})
    colours = {"enum": ["red", "green", "blue"]}
    properties = {"name": text, "place": text, "age": {"type": "integer"}, "tags": {"type": "array", "items": colours}}
    return {"type": "object", "properties": properties, "required": ["name", "age"]}


FORMS: dict[str, Callable[[], Language]] = {
    "date": lambda: regex(r"\d\d\.\d\d\.\d{4}"),
    "object": lambda: json_schema(schema(None)),
    "letters": lambda: regex("[A-Za-z ,.]{0,999}"),
    "long strings": lambda: json_schema(schema(28)),
}


LETTERS = "[A-Za-z ,.]"
BY_STATES: dict[int, Callable[[], Language]] = {
    10: lambda: regex(r"(\d\d\.\d\d\.\d{4} )*"),
    100: FORMS["object"],
    1000: lambda: regex(rf"({LETTERS}{{998}}\n)*{LETTERS}{{0,998}}"),
}
OPEN = (7 / 8, 5 / 8, 3 / 8, 1 / 8)  # shares of a text that are still open
STEPS = 64


def vocabulary(size: int) -> list[bytes | None]:
    """All bytes, then pieces of words in the order of their first occurrence, and [MASK] at the end."""
    known: dict[bytes, None] = dict.fromkeys(bytes([byte]) for byte in range(256))
    for file in sorted(Path(sysconfig.get_paths()["stdlib"]).rglob("*.py")):
        for word in set(PIECE.findall(file.read_text(encoding="utf-8", errors="ignore"))):
            data = word.encode()
            for end in range(2, min(len(data), 12) + 1):
                known.setdefault(data[:end])
        if len(known) >= size:
            return [*list(known)[: size - 1], None]
    raise SystemExit(f"the standard library has only {len(known):,} pieces; give a smaller size")


def spelling(size: int, tokenizer: str | None) -> tuple[list[bytes | None], int]:
    """What the tokens of a vocabulary spell, and its mask."""
    if tokenizer is None:
        return vocabulary(size), size - 1
    from unmask.data.adopted import read_tokenizer

    read = read_tokenizer(Path(tokenizer))
    return [None if i in read.special else text for i, text in enumerate(read.spelling)], read.vocab.mask


def kept(automaton: TokenAutomaton) -> int:
    """Bytes of an automaton."""
    parts = (automaton.classes, automaton.source, automaton.label, automaton.target, automaton.accepting)
    return sum(part.nbytes for part in parts)


def seconds_of(call: Callable[[], object], turns: int) -> float:
    """Median processor time of a call, after one that does not count."""
    times = []
    for _ in range(turns + 1):
        start = time.process_time()
        call()
        times.append(time.process_time() - start)
    return statistics.median(times[1:])


def step_seconds(automaton: TokenAutomaton, size: int, length: int, turns: int) -> tuple[float, float]:
    """(the chances of classes, the sums and the draw) of one text of so many open positions."""
    rows = torch.log_softmax(torch.randn(AT_ONCE, size, generator=torch.Generator().manual_seed(0)), -1)
    chances = seconds_of(lambda: automaton.weights(rows), turns) * length / AT_ONCE
    weights = np.tile(automaton.weights(rows), (-(-length // AT_ONCE), 1))[None, :length]
    uniform = np.random.default_rng(0).random(length)

    def sums() -> None:
        after = chain.backward(automaton, weights)
        if np.isfinite(after[0, 0, 0]):
            chain.draw(automaton, weights[0], after[0], uniform, length)
        chain.backward(automaton, weights)

    return chances, seconds_of(sums, turns)


def measured(size: int, tokenizer: str | None, lengths: Sequence[int], turns: int) -> list[dict[str, Any]]:
    """One record for each form."""
    texts, mask = spelling(size, tokenizer)
    result = []
    for name, make in FORMS.items():
        start = time.process_time()
        language = make()
        pattern = time.process_time() - start
        start = time.process_time()
        automaton = over_tokens(language, texts, mask)
        seconds = time.process_time() - start
        tracemalloc.start()
        over_tokens(language, texts, mask)
        peak = tracemalloc.get_traced_memory()[1]
        tracemalloc.stop()
        facts = {
            "form": name, "vocabulary": len(texts), "states": automaton.states, "classes": automaton.n_classes,
            "transitions": len(automaton.source), "pattern_seconds": pattern, "compile_seconds": seconds,
            "peak_bytes": peak, "kept_bytes": kept(automaton),
        }  # fmt: skip
        for length in lengths:
            chances, sums = step_seconds(automaton, len(texts), length, turns)
            facts |= {f"chances_seconds_{length}": chances, f"sums_seconds_{length}": sums}
        result.append(facts)
    return result


def random_model(blocks: int, width: int, size: int) -> MaskedDiffusion:
    """Weights as at initialisation, but with a head and gates that are not zero."""
    torch.manual_seed(0)
    config = Config(model=ModelConfig(n_blocks=blocks, hidden_dim=width, n_heads=max(1, width // 64)))
    model = registry.model(config, Vocab(size, size - 1))
    for key, p in model.named_parameters():
        if "adaLN" in key or "linear" in key:
            torch.nn.init.normal_(p, std=0.02)
    assert isinstance(model, MaskedDiffusion)
    return model.eval()


def under_way(model: MaskedDiffusion, text: torch.Tensor, share: float, form: Constraint | None) -> Trajectory:
    """A run at the moment when this share of the text is open; its next step writes as much as each of `STEPS` does."""
    rng = np.random.default_rng(int(8 * share))
    opened = torch.from_numpy(rng.permutation(len(text))[: round(share * len(text))])
    canvas = text.clone()
    canvas[opened] = model.vocab.mask
    order = rng.permutation(len(opened)).tolist()
    sampler = GivenOrder(order, k=max(1, len(text) // STEPS))
    return sampler.trajectory(Request(0, canvas, sampler, Keys(0), constraint=form), model)


def token_seconds(
    model: MaskedDiffusion, automaton: TokenAutomaton, length: int, batch: int, turns: int
) -> tuple[float, float]:
    """(without, with the form): processor seconds a token, the mean over `OPEN`."""
    form = Constraint((FormedSpan(automaton, 0, length),))
    blank = torch.full((length,), model.vocab.mask)
    requests = [Request(row, blank, LeftToRight(length), Keys(row), constraint=form) for row in range(batch)]
    texts = [state.canvas for state in model.generate(requests, 1) if state.done]
    denoiser, seconds, packed = model.denoiser(), [0.0, 0.0], PackedWeights()  # as a batcher has them
    for share in OPEN:
        runs = [[under_way(model, text, share, way) for text in texts] for way in (None, form)]
        times: list[list[float]] = [[], []]
        for turn in range(2 * turns + 2):
            way = turn % 2
            start = time.process_time()
            with torch.no_grad(), packed.in_use():
                denoiser.advance(runs[way])
            times[way].append(time.process_time() - start)
        for way in (0, 1):  # the first turn packs weights and does not count
            seconds[way] += statistics.median(times[way][1:]) / len(OPEN) / (batch * max(1, length // STEPS))
    return seconds[0], seconds[1]


def sampled(args: argparse.Namespace, sizes: Sequence[int], lengths: Sequence[int]) -> list[dict[str, Any]]:
    """One record for each vocabulary, length and number of states."""
    blocks, width = map(int, args.network.split("x"))
    result = []
    for size in sizes:
        model, texts = random_model(blocks, width, size), vocabulary(size)
        for states in map(int, args.states.split(",")):
            automaton = over_tokens(BY_STATES[states](), texts, size - 1)
            for length in lengths:
                free, formed = token_seconds(model, automaton, length, args.batch, args.turns)
                result.append(
                    {"network": args.network, "batch": args.batch, "vocabulary": size, "length": length,
                     "states": automaton.states, "free_seconds": free, "formed_seconds": formed,
                     "ratio": formed / free}
                )  # fmt: skip
                if not args.json:
                    print(
                        f"{args.network}, batch {args.batch}, V {size:,}, L {length}, {automaton.states} states: "
                        f"{1e3 * free:.2f} ms a token free, {1e3 * formed:.2f} ms with the form, "
                        f"{formed / free:.2f} times",
                        flush=True,
                    )
    return result


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="8000,50000,126000")
    parser.add_argument("--lengths", default="128,1024")
    parser.add_argument("--tokenizer", help="a folder or file, in place of --sizes")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--network", help="blocks x width of a random network, such as 6x256: time the sampler")
    parser.add_argument("--batch", type=int, default=1)
    parser.add_argument("--states", default="10,100,1000")
    args = parser.parse_args(argv)
    lengths = [int(length) for length in args.lengths.split(",")]
    if args.network:
        found = sampled(args, [int(size) for size in args.sizes.split(",")], lengths)
        if args.json:
            print(json.dumps(found, indent=1))
        return
    sizes = [0] if args.tokenizer else [int(size) for size in args.sizes.split(",")]
    records = [record for size in sizes for record in measured(size, args.tokenizer, lengths, args.turns)]
    if args.json:
        print(json.dumps(records, indent=1))
        return
    print(
        "vocabulary  form          states  classes  transitions  pattern s  compile s  peak MB  kept MB  step ms by L"
    )
    for r in records:
        steps = ", ".join(
            f"{n}: {1e3 * r[f'chances_seconds_{n}']:.1f} + {1e3 * r[f'sums_seconds_{n}']:.1f}" for n in lengths
        )
        sizes_shown = f"{r['vocabulary']:10,}  {r['form']:12}  {r['states']:6}  {r['classes']:7}  {r['transitions']:11}"
        times = f"{r['pattern_seconds']:9.2f}  {r['compile_seconds']:9.2f}"
        print(f"{sizes_shown}  {times}  {r['peak_bytes'] / 1e6:7.0f}  {r['kept_bytes'] / 1e6:7.2f}  {steps}")


if __name__ == "__main__":
    main()
