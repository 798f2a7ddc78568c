"""What does a constraint cost? Compiling it for vocabularies of 8k, 50k and 126k tokens, and its sums in a step.

Vocabularies are pieces of words of Python's standard library, so that nothing has to be loaded; `--tokenizer FOLDER`
takes a real one. Forms have about 10, 100 and 1000 states: a date, a JSON object, a JSON object with long strings. For
each: processor seconds to compile the pattern and the automaton over tokens, the peak of memory while doing so and what
is kept, and the seconds of one step for one text of L open positions: the chances of classes from (L, V)
log-probabilities, and the sums and the draw.

    python benchmarks/constraints.py [--sizes 8000,50000,126000] [--lengths 128,1024] [--turns 3] [--json]
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

from unmask.constraints import Language, TokenAutomaton, chain, json_schema, over_tokens, regex

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


def main(argv: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--sizes", default="8000,50000,126000")
    parser.add_argument("--lengths", default="128,1024")
    parser.add_argument("--tokenizer", help="a folder or file, in place of --sizes")
    parser.add_argument("--turns", type=int, default=3)
    parser.add_argument("--json", action="store_true")
    args = parser.parse_args(argv)
    lengths = [int(length) for length in args.lengths.split(",")]
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
