"""How a canvas is to be written: all settings that a user may give, checked, and what the library makes of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

import torch

from .canvas import Canvas, Painter
from .evaluate import check_seed
from .samplers import PLANS, Choice, Control, Plan, Windows, plan_named
from .samplers.control import Constrain
from .types import State, UserError

Word = str | int  # a token by its text or by its id


@dataclass(frozen=True)
class Options:
    """Settings of one sequence. None means the usual value of the sampler."""

    seed: int = 0
    sampler: str = "plan"
    steps: int | None = None
    k: int | None = None  # tokens a step, for orders
    threshold: float | None = None  # for confidence, entropy and margin
    order: Sequence[int] | None = None
    eta: float | None = None  # strength of remasking and correction
    window: tuple[float, float] | None = None  # times between which remasking is on
    keep: float | None = None  # remask-loop
    corrections: int | None = None
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    ban: Sequence[Word] = ()
    allowed: Mapping[int, Sequence[Word]] = field(default_factory=dict)  # masked position (from 0) -> tokens
    min_length: int = 0  # no end of text within the first tokens that are written
    constrain: Constrain | None = None
    label: Word | None = None
    guidance: float = 1.0
    stride: int | None = None  # write in windows that move by this much
    stop: Sequence[str] = ()
    stop_at_eos: bool = False

    def __post_init__(self) -> None:
        check_seed(self.seed)
        if self.min_length < 0:
            raise UserError(f"min_length={self.min_length} must be at least 0")
        if not 0 <= self.guidance < float("inf"):
            raise UserError(
                f"guidance={self.guidance} must be a number of at least 0; 1 is the label's own distribution"
            )
        if isinstance(self.stop, str) or any(not word for word in self.stop):
            raise UserError("stop must be a list of texts that are not empty")
        if self.guidance != 1 and self.label is None:
            raise UserError(f"guidance={self.guidance} needs a label to be guided by; give one with label")

    @property
    def choice(self) -> Choice:
        """How tokens are drawn."""
        return Choice(self.temperature, self.top_k, self.top_p, self.min_p)

    def plan(self, painter: Painter) -> Plan:
        """The plan, in windows if a stride is given."""
        plan = plan_named(
            self.sampler, steps=self.steps, k=self.k, threshold=self.threshold, order=self.order, eta=self.eta,
            window=self.window, keep=self.keep, corrections=self.corrections,
        )  # fmt: skip
        if self.stride is None:
            return plan
        return Windows(plan, painter.spec.length, self.stride, painter.frame)

    def control(self, canvas: Canvas, painter: Painter) -> Control | None:
        """The rules for a canvas, or None where there are none."""
        if not (self.ban or self.allowed or self.min_length or self.constrain):
            return None
        vocab = painter.vocab
        masked = torch.nonzero(canvas.ids == vocab.mask).squeeze(-1).tolist()
        if self.min_length and vocab.eos is None:
            raise UserError("min_length needs a tokenizer with an end-of-text token, and this model's has none")
        for index in self.allowed:
            if not 0 <= index < len(masked):
                raise UserError(f"allowed names masked token {index}, but there are {len(masked)} (from 0)")
        control = Control(
            banned=frozenset(token for word in self.ban for token in tokens_of(word, painter)),
            allowed={
                masked[index]: [token for word in words for token in tokens_of(word, painter)]
                for index, words in self.allowed.items()
            },
            eos_from=masked[0] + self.min_length if self.min_length and masked else 0,
            constrain=self.constrain,
        )
        control.check(canvas.ids, vocab, painter.tokenizer.piece)
        return control

    def label_id(self, labels: Sequence[str]) -> int | None:
        """The number of the label, by its name or number."""
        if self.label is None:
            return None
        if not labels:
            raise UserError("this model was trained without labels; train one with data.label to ask for a label")
        if str(self.label) in labels:
            return list(labels).index(str(self.label))
        raise UserError(f"unknown label {self.label!r}; the model knows {', '.join(labels[:20])}")

    def describe(self) -> dict[str, Any]:
        """Law and settings, for protocols."""
        usual = {f.name: f.default for f in fields(self)}
        shown = {name: getattr(self, name) for name in usual}
        always = ("sampler", "steps", "temperature", "top_k", "top_p")
        kept = {name: value for name, value in shown.items() if name in always or (value and value != usual[name])}
        if self.constrain is not None:
            kept["constrain"] = getattr(self.constrain, "__name__", "a function")
        return {"law": PLANS[self.sampler].law if self.sampler in PLANS else None, **kept}


def tokens_of(word: Word, painter: Painter) -> list[int]:
    """The tokens that stand for a word: its own id, or the id with and without the space before it."""
    if isinstance(word, int):
        if not 0 <= word < painter.vocab.size:
            raise UserError(f"token {word} is outside the vocabulary of {painter.vocab.size} tokens")
        return [word]
    spellings = [word] if word.startswith(" ") or not painter.joins_spaces else [word, " " + word]
    found = {ids[0] for ids in map(painter.encode, spellings) if len(ids) == 1}
    if not found:
        raise UserError(
            f"{word!r} is {len(painter.encode(word))} tokens for this model's tokenizer; rules work on single tokens: "
            "name its parts or an id, or use constrain="
        )
    return sorted(found)


@dataclass(frozen=True)
class Stop:
    """Where a text is to end: at an end of text or a stop string in what was written."""

    canvas: Canvas
    options: Options
    painter: Painter

    @staticmethod
    def of(canvas: Canvas, options: Options, painter: Painter) -> Stop | None:
        """None where nothing stops a text."""
        if not options.stop and not options.stop_at_eos:
            return None
        if not canvas.open_end:
            raise UserError("stop and stop_at_eos belong to texts that end in a gap; this one ends in given text")
        if options.stop_at_eos and painter.vocab.eos is None:
            raise UserError("stop_at_eos needs a tokenizer with an end-of-text token, and this model's has none")
        return Stop(canvas, options, painter)

    def __call__(self, state: State) -> bool:
        """Whether the text has ended."""
        return self.end(state) is not None

    def end(self, state: State) -> tuple[str, str, int] | None:
        """(text up to the end, why it ended, tokens that count), or None while it goes on."""
        gap = next(part for part in reversed(self.canvas.parts) if isinstance(part, slice))
        if self.options.stop_at_eos:
            written = state.canvas[gap.start : state.fixed].tolist()
            if self.painter.vocab.eos in written:
                last = gap.start + written.index(self.painter.vocab.eos)
                return self._cut(state, last, "eos", gap.start)
        if not self.options.stop or state.fixed <= gap.start:
            return None
        cut, why, tokens = self._cut(state, state.fixed, "", gap.start)
        return (cut, why, tokens) if why else None

    def _cut(self, state: State, tokens: int, why: str, start: int) -> tuple[str, str, int]:
        """At the first stop string in what was written from `start` on."""
        text = self.painter.text(self.canvas, state.canvas, tokens)
        given = len(self.painter.text(self.canvas, state.canvas, start))
        places = [(at, word) for word in self.options.stop if (at := text.find(word, given)) >= 0]
        return (text[: min(places)[0]], "stop", tokens) if places else (text, why, tokens)
