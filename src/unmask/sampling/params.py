"""How a canvas is to be written: all settings that a user may give, checked, and what the library makes of them."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from numbers import Integral, Real
from typing import TYPE_CHECKING, Any

import torch

from ..config import nearest
from ..data.canvas import Canvas, PromptBuilder
from ..data.genome.bases import BASES
from ..process.keys import check_seed
from ..types import Ending, State, UserError
from . import SAMPLERS, Choice, Rules, Sampler, Windows, make_sampler
from .named import named
from .rules import Constrain

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel

Word = str | int  # a token by its text or by its id
MOST_GUIDANCE = 1e6  # beyond it differences of log-probabilities are no numbers any more
UNKNOWN = ("[UNK]", "<unk>", "\ufffd")  # what tokenizers write for a word that they do not know


@dataclass(frozen=True)
class SamplingParams:
    """Settings of one sequence. None means the usual value of the sampler."""

    seed: int = 0
    sampler: str | None = None  # None: what the model is usually sampled with (`settle`)
    steps: int | None = None
    k: int | None = None  # tokens a step, for orders
    threshold: float | None = None  # for confidence, entropy and margin
    order: Sequence[int] | None = None
    eta: float | None = None  # strength of remasking and correction
    window: tuple[float, float] | None = None  # times between which remasking is on
    keep: float | None = None  # remask-loop
    corrections: int | None = None
    projection: str | None = None  # simplex: sampling, multi-hot or greedy
    context: int | None = None  # simplex: tokens of context a block sees
    scan: str | None = None  # gibbs: random, sequential or parallel
    burn: int | None = None  # gibbs: first updates without temperature, top-k, top-p and min-p
    score_temperature: float | None = None  # gaussian: below 1 the noise that the network finds counts more
    temperature: float = 1.0
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    ban: Sequence[Word] = ()
    only: Sequence[Word] | None = None  # tokens that may be written; None: all, and of bases A, C, G and T
    allowed: Mapping[int, Sequence[Word]] = field(default_factory=dict)  # masked position (from 0) -> tokens
    min_length: int = 0  # no end of text within the first tokens that are written
    constrain: Constrain | None = None
    label: Word | None = None
    guidance: float = 1.0
    stride: int | None = None  # write in windows that move by this much
    stop: Sequence[str] = ()
    stop_at_eos: bool = False

    def __post_init__(self) -> None:
        for name, (fits, what) in KINDS.items():
            value = getattr(self, name)
            if not fits(value) and not (value is None and name in NULLABLE):
                raise UserError(f"{name}={_shown(value)} must be {what}")
        check_seed(self.seed)
        if self.sampler is not None:
            named(self.sampler)
        Choice(self.temperature, self.top_k, self.top_p, self.min_p)
        if self.min_length < 0:
            raise UserError(f"min_length={self.min_length} must be at least 0")
        if not 0 <= self.guidance <= MOST_GUIDANCE:
            raise UserError(
                f"guidance={self.guidance} must be between 0 and a million; 1 is the label's own distribution"
            )

    def settle(self, model: LanguageModel) -> SamplingParams:
        """The same, with the model's usual sampler where none was named."""
        return self if self.sampler is not None else replace(self, sampler=model.default_sampler)

    @property
    def _sampler(self) -> str:
        return self.sampler or "plan"

    @property
    def choice(self) -> Choice:
        """How tokens are drawn."""
        return Choice(self.temperature, self.top_k, self.top_p, self.min_p)

    def plan(self, painter: PromptBuilder) -> Sampler:
        """The plan, in windows if a stride is given."""
        if self.stride is None:
            return self._plan()
        return Windows(self._plan(), painter.spec.length, self.stride, painter.block_ends)

    def _plan(self) -> Sampler:
        return make_sampler(
            self._sampler,
            steps=self.steps,
            k=self.k,
            threshold=self.threshold,
            order=self.order,
            eta=self.eta,
            window=self.window,
            keep=self.keep,
            corrections=self.corrections,
            projection=self.projection,
            context=self.context,
            scan=self.scan,
            burn=self.burn,
            score_temperature=self.score_temperature,
        )

    def control(self, canvas: Canvas, painter: PromptBuilder) -> Rules | None:
        """The rules for a canvas, or None where there are none."""
        only = self.only
        if only is None and painter.tokenizer.kind == "dna":  # neither N nor the special tokens of its vocabulary
            only = tuple(BASES)
        if only is None and not (self.ban or self.allowed or self.min_length or self.constrain):
            return None
        vocab = painter.vocab
        masked = torch.nonzero(canvas.ids == vocab.mask).squeeze(-1).tolist()
        if self.min_length and vocab.eos is None:
            raise UserError("min_length needs a tokenizer with an end-of-text token, and this model's has none")
        for index in self.allowed:
            if not 0 <= index < len(masked):
                raise UserError(f"allowed names masked token {index}, but there are {len(masked)} (from 0)")
        least = min(self.min_length, len(masked))
        control = Rules(  # as the user counts: masked tokens from 0
            banned=_outside(only, painter) | {token for word in self.ban for token in tokens_of(word, painter)},
            allowed={
                index: [token for word in words for token in tokens_of(word, painter)]
                for index, words in self.allowed.items()
            },
            eos_from=least,
            constrain=self.constrain,
        )
        control.check(canvas.ids[masked], vocab, painter.tokenizer.piece)
        if least and len(control.banned | {vocab.mask, vocab.eos}) == vocab.size:
            raise UserError("contradiction: ban leaves only the end of text, which min_length forbids at first")
        allowed = {masked[index]: tokens for index, tokens in control.allowed.items()}
        return replace(control, allowed=allowed, eos_from=masked[least - 1] + 1 if least else 0)

    def label_id(self, labels: Sequence[str]) -> int | None:
        """The number of the label, by its name or number."""
        if self.label is None and self.guidance != 1:
            raise UserError(f"guidance={self.guidance} needs a label to be guided by; give one with label")
        if self.label is None:
            return None
        if not labels:
            raise UserError("this model was trained without labels; train one with data.label to ask for a label")
        name = str(self.label).lower() if isinstance(self.label, bool) else str(self.label)
        if name in labels:
            return list(labels).index(name)
        known = ", ".join(labels[:20]) + (f", and {len(labels) - 20} more" if len(labels) > 20 else "")
        raise UserError(f"unknown label {name!r}{nearest(name, labels)}; the model knows {known}")

    def describe(self) -> dict[str, Any]:
        """Law and settings, for protocols: those that were given, and those that the sampler has from itself."""
        usual = {f.name: f.default for f in fields(self)}
        always = ("temperature", "top_k", "top_p")
        kept = {name: value for name in usual if (value := getattr(self, name)) != usual[name] and _says(value)}
        shown = (
            {"law": SAMPLERS[self._sampler].law, "sampler": self._sampler}
            | {name: getattr(self, name) for name in always}
            | kept
        )
        try:
            plan = self._plan()
        except UserError:  # the lines of a template may give what is missing
            plan = None
        own = {name: getattr(plan, name, None) for name in SAMPLERS[self._sampler].takes}
        shown |= {name: value for name, value in own.items() if value is not None}
        if self.constrain is not None:
            shown["constrain"] = getattr(self.constrain, "__name__", "a function")
        return shown


def _outside(only: Sequence[Word] | None, painter: PromptBuilder) -> frozenset[int]:
    """All tokens but these."""
    if only is None:
        return frozenset()
    kept = {token for word in only for token in tokens_of(word, painter)}
    return frozenset(range(painter.vocab.size)) - kept


def _says(value: Any) -> bool:
    """Whether a setting is there at all: an empty list of rules is none."""
    return value is not None and (not isinstance(value, Sequence | Mapping) or len(value) > 0)


def _shown(value: Any) -> str:
    """A value that is wrong, cut short."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:57] + "..."


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _list(each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(each, value))


def _word(value: Any) -> bool:
    return isinstance(value, str) or _whole(value)


def _rules(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_whole(key) and _list(_word)(words) for key, words in value.items())


KINDS: dict[str, tuple[Callable[[Any], bool], str]] = {  # setting -> whether a value is of its kind, and which that is
    **dict.fromkeys(
        ("seed", "steps", "k", "corrections", "context", "burn", "top_k", "min_length", "stride"),
        (_whole, "a whole number"),
    ),
    **dict.fromkeys(
        ("threshold", "eta", "keep", "score_temperature", "temperature", "top_p", "min_p", "guidance"),
        (_number, "a number"),
    ),
    "sampler": (lambda value: isinstance(value, str), "the name of a sampler"),
    "projection": (lambda value: isinstance(value, str), "the name of a projection"),
    "scan": (lambda value: isinstance(value, str), "the name of a scan"),
    "order": (_list(_whole), "a list of whole numbers"),
    "window": (lambda value: _list(_number)(value) and len(value) == 2, "two times, for example 0.55 and 0.05"),
    **dict.fromkeys(("ban", "only"), (_list(_word), "a list of tokens, each by its text or its id")),
    "allowed": (_rules, "masked tokens (from 0) with a list of tokens for each, by text or id"),
    "stop": (_list(lambda word: isinstance(word, str) and word != ""), "a list of texts that are not empty"),
    "stop_at_eos": (lambda value: isinstance(value, bool), "true or false"),
    "label": (lambda value: isinstance(value, str | int), "the name or the number of a label"),
}
NULLABLE = {f.name for f in fields(SamplingParams) if f.default is None}


def tokens_of(word: Word, painter: PromptBuilder) -> list[int]:
    """The tokens that stand for a word: its own id, or the id with and without the space before it."""
    if isinstance(word, int):
        if not 0 <= word < painter.vocab.size:
            raise UserError(f"token {word} is outside the vocabulary of {painter.vocab.size} tokens")
        return [word]
    if not word:
        raise UserError("a token in a rule is empty; give its text or its id")
    spellings = [word] if word.startswith(" ") or not painter.joins_spaces else [word, " " + word]
    found = {ids[0] for ids in map(painter.encode, spellings) if len(ids) == 1}
    if not found:
        raise UserError(
            f"{word!r} is {len(painter.encode(word))} tokens for this model's tokenizer; rules work on single tokens: "
            "name its parts or an id, or use constrain="
        )
    if any(piece in UNKNOWN and piece != word for piece in map(painter.tokenizer.piece, found)):
        raise UserError(f"{word!r} is unknown to this model's tokenizer, so it is never written; take it out")
    return sorted(found)


@dataclass(frozen=True)
class Stop:
    """Where a text is to end: at an end of text or a stop string in what was written."""

    canvas: Canvas
    options: SamplingParams
    painter: PromptBuilder

    @staticmethod
    def of(canvas: Canvas, options: SamplingParams, painter: PromptBuilder) -> Stop | None:
        """None where nothing stops a text."""
        if not options.stop and not options.stop_at_eos:
            return None
        if not canvas.open_end:
            raise UserError("stop and stop_at_eos belong to texts that end in a gap; this one ends in given text")
        if options.stop_at_eos and painter.vocab.eos is None:
            raise UserError("stop_at_eos needs a tokenizer with an end-of-text token, and this model's has none")
        return Stop(canvas, options, painter)

    def __call__(self, state: State) -> Ending | None:
        """None while it goes on."""
        gap = next(part for part in reversed(self.canvas.parts) if isinstance(part, slice))
        if self.options.stop_at_eos:
            written = state.canvas[gap.start : state.fixed].tolist()
            if self.painter.vocab.eos in written:
                last = gap.start + written.index(self.painter.vocab.eos)
                return self._cut(state, last, "eos", gap.start)
        if not self.options.stop or state.fixed <= gap.start:
            return None
        ending = self._cut(state, state.fixed, "", gap.start)
        return ending if ending.reason else None

    def _cut(self, state: State, tokens: int, why: str, start: int) -> Ending:
        """At the first stop string in what was written from `start` on."""
        text = self._reads(state, tokens)
        given = len(self._reads(state, start))
        places = [(at, at + len(word)) for word in self.options.stop if (at := text.find(word, given)) >= 0]
        if not places:
            return Ending(text, why, tokens)
        at, end = min(places)

        def complete(count: int) -> bool:
            return self._reads(state, count)[:end] == text[:end]

        # No token after the one that completed the stop string.
        return Ending(text[:at], "stop", bisect_left(range(tokens), True, lo=start, key=complete))

    def _reads(self, state: State, tokens: int) -> str:
        return self.painter.text(self.canvas, state.canvas, tokens)
