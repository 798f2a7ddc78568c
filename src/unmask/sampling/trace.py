"""How a text came to be: a record of every event of a generation, and its form as plain JSON data.

A `Trace` is called with each `State` (pass it as `watch=`). Its data are what the replay page and a server show, so the
format has one invariant: positions are absolute, a position that is masked again changes to the mask token,
and the events applied to the first canvas give exactly the last one. docs/replay.md describes every field.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

from torch import Tensor

from ..data.tokenization import Tokenizer
from ..files import write_text
from ..jsonable import described
from ..types import Sample, State, UserError

FORMAT = "unmask-trace/1"
KEYS = {"format", "mask", "special", "pieces", "protocol", "sequences"}
SEQUENCE_KEYS = {"canvas", "given", "events", "text", "name", "done"}
BROWSER = 2**53  # beyond that a browser would show another number
LONGEST = 2**22  # positions: a damaged length must not fill the memory
EVENT_KEYS = {"step", "t", "calls", "changes"}
MORE_KEYS = {"length", "block"}  # where the canvas grew, and where a text is written in blocks


class Change(NamedTuple):
    """A position and what it holds from now on; `tops` are the most likely tokens there, if they were asked for."""

    position: int
    token: int
    prob: float
    tops: tuple[tuple[int, float], ...] = ()


@dataclass(frozen=True)
class TraceEvent:
    """What one step of a sampler changed."""

    step: int
    t: float | None  # None: the sampler has no time
    calls: int  # network calls for this sequence so far
    changes: tuple[Change, ...]
    length: int | None = None  # where the canvas grew: its positions from now on; new ones are masks
    block: tuple[int, int] | None = None  # [start, end): the block that is written next


@dataclass
class Recording:
    """One sequence from its first canvas to its text."""

    canvas: list[int]
    given: list[tuple[int, int]]  # runs [start, end) of positions that hold what the user wrote
    events: list[TraceEvent] = field(default_factory=list)
    text: str | None = None
    name: str = ""  # what distinguishes it from the others: its seed
    done: bool = False

    def replay(self, mask: int, events: int | None = None) -> list[int]:
        """The canvas after the first `events` events (None: all)."""
        canvas = list(self.canvas)
        for event in self.events[:events]:
            canvas += [mask] * ((event.length or 0) - len(canvas))
            for change in event.changes:
                canvas[change.position] = change.token
        return canvas


class Trace:
    """Collects the states of a generation: `lm.write(canvases, watch=trace)`."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        canvases: Sequence[Tensor],
        protocol: dict[str, Any] | None = None,
        free: Sequence[Tensor] | None = None,
    ) -> None:
        """`free`: for each canvas (L,) the positions that may be written; None: those that hold [MASK]."""
        vocab = tokenizer.vocab
        self.tokenizer: Tokenizer | None = tokenizer
        self.mask = vocab.mask
        self.special = {token for token in (vocab.mask, vocab.pad, vocab.bos, vocab.eos) if token is not None}
        self.pieces: dict[int, str] = {}  # of the tokens that occur
        self.protocol: dict[str, Any] = described(protocol or {}, BROWSER)
        self._now = [canvas.detach().cpu().clone() for canvas in canvases]
        starts = [canvas.tolist() for canvas in self._now]
        free = [canvas == self.mask for canvas in self._now] if free is None else free
        self.recordings = [Recording(ids, _runs((~may).tolist())) for ids, may in zip(starts, free, strict=True)]
        self._meet({self.mask}.union(*starts))

    @property
    def courses(self) -> list[Recording]:
        """The old name of `recordings`."""
        warnings.warn("Trace.courses is Trace.recordings now", DeprecationWarning, stacklevel=2)
        return self.recordings

    def __call__(self, state: State) -> None:
        """Record a state of the generation."""
        assert self.tokenizer is not None, "a trace that was read from a file is complete"
        recording, before, canvas = self.recordings[state.row], self._now[state.row], state.canvas.detach().cpu()
        assert len(canvas) >= len(before), "a canvas never shrinks"
        changes = changes_of(state, self.mask)
        now = canvas.new_full(canvas.shape, self.mask)
        now[: len(before)] = before
        for change in changes:  # in order: a position may be written and taken back in one event
            now[change.position] = change.token
        # The canvas is the truth: what differs from it and was not named is a change too, so that a replay is exact.
        changes += [Change(p, int(canvas[p]), 0.0) for p in (now != canvas).nonzero().flatten().tolist()]
        length = len(canvas) if len(canvas) > len(before) else None
        t = float(f"{state.t:.6g}") if math.isfinite(state.t) else None
        recording.events.append(TraceEvent(state.step, t, state.calls, tuple(changes), length, state.block))
        recording.done = state.done
        self._now[state.row] = canvas.clone()
        self._meet({change.token for change in changes} | {token for change in changes for token, _ in change.tops})

    def finish(self, samples: Sequence[Sample]) -> None:
        """Take texts and seeds from what `LM.write` returned: given strings then appear as they were typed."""
        for recording, sample in zip(self.recordings, samples, strict=True):
            recording.text, recording.name = sample.text, f"seed {sample.seed}"

    def to_json(self) -> dict[str, Any]:
        """The trace as plain data for `json.dumps`."""
        return {
            "format": FORMAT,
            "mask": self.mask,
            "special": sorted(self.special & set(self.pieces)),
            "pieces": {str(token): self.pieces[token] for token in sorted(self.pieces)},
            "protocol": self.protocol,
            "sequences": [
                {
                    "canvas": list(recording.canvas),
                    "given": [list(run) for run in recording.given],
                    "events": [_event_json(event) for event in recording.events],
                    "text": self._text(recording),
                    "name": recording.name,
                    "done": recording.done,
                }
                for recording in self.recordings
            ],
        }

    @classmethod
    def from_json(cls, data: Any) -> Trace:
        """Read the data of `to_json`; raises if it is anything else."""
        if not isinstance(data, dict) or not isinstance(data.get("format"), str):
            raise UserError('this is not a trace: a JSON object with a "format" is expected')
        if data["format"] != FORMAT:
            raise UserError(f"the trace has the format {data['format']!r}, this version of unmask reads {FORMAT!r}")
        _keys(data, KEYS, "the trace")
        trace = cls.__new__(cls)
        trace.tokenizer, trace._now = None, []
        pieces, special, trace.protocol = data["pieces"], data["special"], data["protocol"]
        _need(
            isinstance(trace.protocol, dict) and described(trace.protocol, BROWSER) == trace.protocol,
            '"protocol" is not an object',
        )
        good = isinstance(pieces, dict) and all(
            key.isdecimal() and len(key) < 12 and type(piece) is str for key, piece in pieces.items()
        )
        _need(good, '"pieces" does not map token ids to text')
        trace.pieces = {int(token): piece for token, piece in pieces.items()}
        good = isinstance(special, list) and _known(special, trace.pieces)
        _need(good, '"special" is not a list of tokens in "pieces"')
        _need(_known([data["mask"]], trace.pieces), '"mask" is not a token in "pieces"')
        trace.mask, trace.special = data["mask"], set(special)
        _need(isinstance(data["sequences"], list), '"sequences" is not a list')
        trace.recordings = [
            _read_recording(sequence, trace.mask, trace.pieces, f"sequence {i + 1}")
            for i, sequence in enumerate(data["sequences"])
        ]
        return trace

    def save(self, path: str | Path) -> None:
        """Write the trace as a JSON file."""
        write_text(path, json.dumps(self.to_json(), separators=(",", ":")) + "\n")

    @classmethod
    def load(cls, path: str | Path) -> Trace:
        """Read a JSON file that `save` wrote."""
        try:
            data = json.loads(Path(path).read_text(encoding="utf-8"))
        except OSError as error:
            raise UserError(f"cannot read the trace {path} ({(error.strerror or str(error)).lower()})") from None
        except (ValueError, RecursionError):
            raise UserError(f"{path} is damaged or not a trace: it is not JSON") from None
        return cls.from_json(data)

    def _meet(self, tokens: set[int]) -> None:
        """Remember how new tokens are shown."""
        assert self.tokenizer is not None
        new = [token for token in tokens if token not in self.pieces]
        self.pieces.update(zip(new, self.tokenizer.pieces(new), strict=True))

    def _text(self, recording: Recording) -> str:
        """The text, or as much as can be read so far; an end of text becomes a line break."""
        if recording.text is not None or self.tokenizer is None:
            return recording.text or ""
        ends = {self.tokenizer.vocab.eos, self.tokenizer.vocab.bos}
        documents = [
            list(ids) for end, ids in groupby(recording.replay(self.mask), lambda token: token in ends) if not end
        ]
        return "\n".join(self.tokenizer.decode(ids) for ids in documents)


# -- states to data --------------------------------------------------------------------------------------------------


def changes_of(state: State, mask: int) -> list[Change]:
    """The changes in a state."""
    positions, tokens = state.positions.tolist(), state.tokens.tolist()
    tops: list[tuple[tuple[int, float], ...]] = []
    if state.tops is not None:  # of the written positions, which come first
        pairs = zip(state.tops[0].tolist(), state.tops[1].tolist(), strict=True)
        tops = [tuple((token, _chance(prob)) for token, prob in zip(*pair, strict=True)) for pair in pairs]
    tops += [()] * (len(positions) - len(tops))
    probs = map(_chance, state.probs.tolist())
    changes = (Change(*change) for change in zip(positions, tokens, probs, tops, strict=True))
    return [change._replace(tops=()) if change.token == mask else change for change in changes]


def _chance(prob: float) -> float:
    """A probability with four digits, which is all that is shown: a file has many of them."""
    return min(1.0, max(0.0, float(f"{prob:.4g}"))) if prob == prob else 0.0


def _event_json(event: TraceEvent) -> dict[str, Any]:
    changes = [
        [*change[:3], *([[list(top) for top in change.tops]] if change.tops else [])] for change in event.changes
    ]
    data = {"step": event.step, "t": event.t, "calls": event.calls, "changes": changes}
    block = None if event.block is None else list(event.block)
    return data | {name: value for name, value in (("length", event.length), ("block", block)) if value is not None}


def _runs(flags: Iterable[bool]) -> list[tuple[int, int]]:
    """The runs [start, end) where a flag is set."""
    runs = [(flag, [i for i, _ in group]) for flag, group in groupby(enumerate(flags), lambda pair: pair[1])]
    return [(where[0], where[-1] + 1) for flag, where in runs if flag]


# -- data to events, checked -----------------------------------------------------------------------------------------


def _read_recording(data: Any, mask: int, pieces: dict[int, str], where: str) -> Recording:
    _keys(data, SEQUENCE_KEYS, where)
    canvas, given, events = data["canvas"], data["given"], data["events"]
    _need(isinstance(canvas, list) and _known(canvas, pieces), f'the canvas of {where} has tokens not in "pieces"')
    pairs = isinstance(given, list) and all(_counts(run) and len(run) == 2 and run[0] < run[1] for run in given)
    ends = [end for run in given for end in run] if pairs else []
    good = pairs and ends == sorted(ends) and (not ends or ends[-1] <= len(canvas))
    good = good and all(token != mask for start, end in given for token in canvas[start:end])
    _need(good, f'"given" of {where} is not a list of runs [start, end) of tokens')
    _need(isinstance(events, list), f'"events" of {where} is not a list')
    _need(isinstance(data["text"], str), f'"text" of {where} is not a string')
    _need(type(data["done"]) is bool, f'"done" of {where} is neither true nor false')
    _need(isinstance(data["name"], str), f'"name" of {where} is not a string')
    recording = Recording(canvas, [(start, end) for start, end in given], [], data["text"], data["name"], data["done"])
    length, calls = len(canvas), 0
    for i, event in enumerate(events):
        recording.events.append(_read_event(event, length, calls, pieces, f"event {i + 1} of {where}"))
        length, calls = recording.events[-1].length or length, recording.events[-1].calls
    return recording


def _read_event(data: Any, length: int, calls: int, pieces: dict[int, str], where: str) -> TraceEvent:
    more = MORE_KEYS & set(data) if isinstance(data, dict) else set()
    _keys(data, EVENT_KEYS | more, where)
    grown: Any = data.get("length")
    block: Any = data.get("block")
    good = _counts([data["step"], data["calls"]]) and data["calls"] >= calls
    _need(good, f'"step" or "calls" of {where} is not a growing count')
    _need(data["t"] is None or _number(data["t"]), f'"t" of {where} is not a number')
    _need(
        "length" not in more or (_counts([grown]) and length < grown <= LONGEST),
        f'"length" of {where} does not grow or is too large',
    )
    good = "block" not in more or (_counts(block) and len(block) == 2 and block[0] < block[1] <= (grown or length))
    _need(good, f'"block" of {where} is not a run [start, end) of positions')
    _need(isinstance(data["changes"], list), f'"changes" of {where} is not a list')
    changes = []
    for item in data["changes"]:
        good = isinstance(item, list) and len(item) in (3, 4) and _counts(item[:1]) and item[0] < (grown or length)
        good = good and _choice(item[1:3], pieces)
        tops = item[3] if good and len(item) == 4 else []
        good = good and isinstance(tops, list) and bool(tops) == (len(item) == 4)
        if not good or not all(_choice(top, pieces) for top in tops):
            _need(False, f"{where} has the change {json.dumps(item)[:80]}")
        changes.append(Change(item[0], item[1], item[2], tuple((token, prob) for token, prob in tops)))
    return TraceEvent(data["step"], data["t"], data["calls"], tuple(changes), grown, block and (block[0], block[1]))


def _choice(pair: Any, pieces: dict[int, str]) -> bool:
    """Whether the pair is [token, probability]."""
    if not isinstance(pair, list) or len(pair) != 2 or not _known(pair[:1], pieces):
        return False
    return _number(pair[1]) and 0 <= pair[1] <= 1


def _known(tokens: list[Any], pieces: dict[int, str]) -> bool:
    return all(type(token) is int and token in pieces for token in tokens)


def _counts(values: Any) -> bool:
    return isinstance(values, list) and all(type(value) is int and value >= 0 for value in values)


def _number(value: Any) -> bool:
    return type(value) in (int, float) and math.isfinite(value)


def _keys(data: Any, keys: set[str], where: str) -> None:
    names = ", ".join(sorted(keys))
    _need(isinstance(data, dict) and set(data) == keys, f"{where} does not have exactly the keys {names}")


def _need(good: Any, problem: str) -> None:
    if not good:
        raise UserError(f"the trace is damaged: {problem}; record it again")
