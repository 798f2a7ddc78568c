"""Many texts at once: a file with one template per line in, one finished text per line out.

A bad line is reported with its number, and all others are still written.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from ..config import nearest
from ..data.canvas import Canvas
from ..lm import LM, Job
from ..process.keys import check_seed
from ..sampling.params import SamplingParams, settings_on
from ..types import Sample, UserError

PLACES = ("text", "prompt", "suffix", "length")  # what to write where
LINE_KEYS = ("id", "n")  # of the line itself
Defaults = SamplingParams | Mapping[str, Any]  # complete; or what was set, and the rest as the model recommends


@dataclass(frozen=True)
class Line:
    """A template: its line number in the file, its name if it has one, and what to write."""

    number: int
    name: Any
    jobs: list[Job]


@dataclass(frozen=True)
class BadLine:
    """A line that cannot be written, and why."""

    number: int
    reason: str


def read_lines(path: str | Path) -> list[tuple[int, str]]:
    """(number, text) of the lines that are not empty; `-` is standard input."""
    import sys

    try:
        raw = sys.stdin.buffer.read() if str(path) == "-" else Path(path).read_bytes()
    except OSError as error:
        raise UserError(f"cannot read the template file {path}: {(error.strerror or str(error)).lower()}") from None
    if b"\0" in raw:
        raise UserError(f"the template file {path} is not text; write one JSON object per line, in UTF-8")
    lines = raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8", "surrogateescape").split("\n")
    return [(number, line) for number, line in enumerate(lines, 1) if line.strip()]


def parse_line(
    lm: LM, number: int, text: str, defaults: Defaults, n: int, length: int | None = None, before: int = 0
) -> Line:
    """One line of a template file; `defaults` are the settings that a line does not set (null means not set).

    A line without a seed counts on from the samples `before` it, so that no two of the file share a random stream.
    """
    row = _row(text)
    for key in ("text", "prompt", "suffix"):
        if not isinstance(row.get(key, ""), str):
            raise UserError(f"{key} must be text, not {_shown(row[key])}")
    for key in ("n", "length"):
        if key in row and type(row[key]) is not int:
            raise UserError(f"{key} must be a whole number, not {_shown(row[key])}")
    count = row.get("n", n)
    if count < 1:
        raise UserError(f"n={count} must be at least 1")
    chosen = {key: _setting(key, row[key]) for key in row if key in settings_on("cli")}
    if isinstance(defaults, SamplingParams):
        options = replace(defaults, **chosen)
    else:
        options = lm.sampling_params({**defaults, **chosen})
    if "seed" not in row:
        options = replace(options, seed=options.seed + before)
    check_seed(options.seed + count - 1)
    canvas = _canvas(lm, row, options, length)
    lm.check(Job(canvas, options))  # errors are raised before anything is written
    return Line(number, row.get("id"), [Job(canvas, replace(options, seed=options.seed + i)) for i in range(count)])


def _row(text: str) -> dict[str, Any]:
    """The values of a line, by key."""
    try:
        row = json.loads(text)
        json.dumps(row, allow_nan=False)  # NaN and numbers that are too large are not JSON
    except (ValueError, RecursionError):
        raise UserError('not JSON; write an object such as {"text": "The {{3}} sat."}') from None
    row = {"text": row} if isinstance(row, str) else row
    if not isinstance(row, dict):
        raise UserError('not an object; write one such as {"text": "The {{3}} sat."}')
    known = (*PLACES, *LINE_KEYS, *settings_on("cli"))
    for key in row:
        if key not in known:
            raise UserError(f"unknown key {key!r}{nearest(key, known)}")
    return {key: value for key, value in row.items() if value is not None}


def _shown(value: Any) -> str:
    """An invalid value, shortened."""
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:37] + "..."


def _setting(key: str, value: Any) -> Any:
    spec = settings_on("cli")[key]
    if spec.kind == "rules":
        if not isinstance(value, dict) or not all(k.isdecimal() and isinstance(v, list) for k, v in value.items()):
            raise UserError('allowed must map masked tokens (from 0) to lists, for example {"0": ["cat", "dog"]}')
    elif spec.kind in ("tokens", "texts", "wholes", "pair"):
        if not isinstance(value, list):
            raise UserError(f"{key} must be a list, not {_shown(value)}")
        return tuple(value)
    return spec.from_json(value)


def _canvas(lm: LM, row: dict[str, Any], options: SamplingParams, length: int | None) -> Canvas:
    windowed = options.stride is not None
    if "text" in row:
        for key in ("prompt", "suffix", "length"):
            if key in row:
                raise UserError(f"{key} cannot be combined with text, whose gaps say what is written where")
        return lm.gap_canvas(row["text"], windowed=windowed)
    if "prompt" not in row and "suffix" not in row:
        raise UserError('nothing to write: give "text" with gaps, or "prompt" or "suffix"')
    return lm.prompt_canvas(row.get("prompt", ""), row.get("length", length), row.get("suffix", ""), windowed)


def write_template(
    lm: LM,
    lines: Iterable[tuple[int, str]],
    defaults: Defaults,
    *,
    n: int = 1,
    length: int | None = None,
    batch_size: int = 16,
    report: Callable[[int, int], None] | None = None,
) -> Iterator[dict[str, Any] | BadLine]:
    """The finished texts and the bad lines, in the order of the lines and as soon as possible."""
    if n < 1 or batch_size < 1:
        raise UserError(f"n={n} and batch_size={batch_size} must be at least 1")
    turn: list[tuple[Line, int] | BadLine] = []
    jobs: dict[int, Job] = {}  # by turn
    samples = 0  # of the lines so far; of a wrong line as many as it would have had by default
    for number, text in lines:
        try:
            line = parse_line(lm, number, text, defaults, n, length, samples)
        except UserError as error:
            turn.append(BadLine(number, str(error)))
            samples += n
            continue
        samples += len(line.jobs)
        for i, job in enumerate(line.jobs):
            jobs[len(turn)] = job
            turn.append((line, i))
    done: dict[int, Sample | str] = {}
    next_turn = 0

    def ready() -> Iterator[dict[str, Any] | BadLine]:
        nonlocal next_turn
        while next_turn < len(turn):
            entry = turn[next_turn]
            if isinstance(entry, BadLine):
                yield entry
            elif next_turn in done:
                yield _result(*entry, done.pop(next_turn))
            else:
                return
            next_turn += 1

    for finished, (place, result) in enumerate(_finished(lm, jobs, batch_size), 1):
        done[place] = result
        if report:
            report(finished, len(jobs))
        yield from ready()
    yield from ready()


def _result(line: Line, i: int, result: Sample | str) -> dict[str, Any] | BadLine:
    if isinstance(result, str):
        return BadLine(line.number, result)
    name = {} if line.name is None else {"id": line.name}
    return {"line": line.number, **name, "index": i, **result.as_dict(tokens=True)}


def _finished(lm: LM, jobs: dict[int, Job], batch_size: int) -> Iterator[tuple[int, Sample | str]]:
    """The sample of every job, or the reason why there is none.

    All go through the network together. If one of them fails on the way (a constrain function may), the unfinished ones
    are sampled again one by one: the results are the same, and only the failing one is lost.
    """
    left = dict(jobs)
    try:
        places = list(left)
        for state, sample in lm.run(list(left.values()), batch_size=batch_size) if left else ():
            if sample is not None:
                del left[places[state.row]]
                yield places[state.row], sample
    except UserError:
        for place, job in left.items():
            try:
                [sample] = [result for _, result in lm.run([job]) if result is not None]
                yield place, sample
            except UserError as error:
                yield place, str(error)
