"""How to write a canvas: samplers by name, all settings that a user may give, and the objects made from them."""

from __future__ import annotations

import functools
from bisect import bisect_left
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from typing import TYPE_CHECKING, Any, Literal

import torch

from ..constraints import Language, choices, for_tokenizer, json_schema, regex
from ..data.canvas import Canvas, PromptBuilder
from ..data.genome.bases import BASES
from ..errors import UserError, choose, nearest
from ..types import Ending, State
from .adaptive import Adaptive
from .ancestral import Ancestral
from .block_order import BlockByBlock
from .choice import Choice
from .constrained import Constraint, FormedSpan
from .gaussian import Gaussian
from .gibbs import Gibbs
from .orders import FirstHitting, GivenOrder, LeftToRight, RevealPlan
from .phrases import Phrase
from .remask import PredictorCorrector, Remasking
from .rules import Constrain, Rules
from .sampler import Sampler
from .settings import STEPS, Setting, setting, settings_of
from .simplex import Simplex
from .speculative import Speculative
from .windows import Windows

if TYPE_CHECKING:
    from ..models.language_model import LanguageModel

Word = str | int  # a token by its text or by its id
AT_ONCE = ("simplex", "gaussian")  # samplers that draw all their tokens together
IN_GAPS = {"page": "a gap carries its own pattern there: {{3:[a-z]+}}"}
UNKNOWN = ("[UNK]", "<unk>", "\ufffd")  # what tokenizers write for a word that they do not know


@dataclass(frozen=True, eq=False)
class SamplerEntry:
    """A sampler with a name: its class, the fields that the name presets, and its law."""

    make: type[Sampler]
    law: str  # as protocols name it
    about: str  # what it does
    note: str  # how its samples relate to the model's likelihood
    preset: Mapping[str, Any] = field(default_factory=dict)
    omit: tuple[str, ...] = ()  # settings of the class that do not apply to this name

    @functools.cached_property
    def settings(self) -> dict[str, Setting]:
        """What a user may set, with the defaults for this name."""
        return {
            name: replace(spec, default=self.preset.get(name, spec.default))
            for name, spec in settings_of(self.make).items()
            if name not in self.omit
        }

    @property
    def takes(self) -> tuple[str, ...]:
        """The names of its settings."""
        return tuple(self.settings)

    def __call__(self, **chosen: Any) -> Sampler:
        """The sampler; chosen settings replace presets, including those that they are an alternative to."""
        replaced = {other for name in chosen for other in self.settings[name].instead}
        preset = {name: value for name, value in self.preset.items() if name not in replaced}
        return self.make(**{**preset, **chosen})


def _adaptive(measure: str) -> SamplerEntry:
    preset = {"measure": measure, "steps": STEPS}
    return SamplerEntry(
        Adaptive, f"order by {measure}", f"the surest positions first, by {measure}", "of that plan only", preset
    )


def _remasking(kind: str, **preset: Any) -> SamplerEntry:
    omit = () if kind == "loop" else ("keep",)
    about = {
        "cap": "takes tokens back now and then (ReMDM), with chance at most eta",
        "rescale": "the same, with eta times the largest chance there can be",
        "loop": "the same inside a window of time, while the clock stands",
    }[kind]
    return SamplerEntry(Remasking, f"ReMDM {kind}", about, "no bound", {"kind": kind, **preset}, omit)


SAMPLERS: dict[str, SamplerEntry] = {
    "plan": SamplerEntry(RevealPlan, "T-step ancestral", "T-step ancestral sampling, drawn ahead", "exact, T steps"),
    "ancestral": SamplerEntry(
        Ancestral,
        "T-step ancestral",
        "the textbook: a call at every step, over all masks",
        "exact, T steps; slow, a reference",
    ),
    "analytic": SamplerEntry(
        Ancestral,
        "SEDD's analytic step, which is T-step ancestral",
        "SEDD's analytic step, which is `ancestral`",
        "exact, T steps",
    ),
    "euler": SamplerEntry(
        Ancestral,
        "T Euler steps of the reverse rate",
        "SEDD's Euler step, first order in the step",
        "approximate",
        {"euler": True},
    ),
    "first-hitting": SamplerEntry(
        FirstHitting,
        "ancestral with T -> infinity",
        "every position at its own time, one call each",
        "exact, T → infinity",
    ),
    "left-to-right": SamplerEntry(
        LeftToRight, "left to right", "from the first mask to the last, k at a time", "exact for that order"
    ),
    "speculative": SamplerEntry(
        Speculative,
        "left to right, block size 1",
        "block models only: a tree of k drafted tokens, checked in one call",
        "exact, that of blocks of one token",
    ),
    "order": SamplerEntry(
        GivenOrder, "a given order", "the order you name (masks count from 0)", "exact for that order"
    ),
    **{measure: _adaptive(measure) for measure in ("confidence", "entropy", "margin")},
    "remask-cap": _remasking("cap"),
    "remask-rescale": _remasking("rescale", eta=0.05),
    "remask-loop": _remasking("loop", window=(0.55, 0.05)),  # as its authors do
    "corrector": SamplerEntry(
        PredictorCorrector, "predictor-corrector", "ancestral steps, each followed by corrections", "no bound"
    ),
    "gibbs": SamplerEntry(Gibbs, "Gibbs sampling", "draws one position anew, again and again (BERT-Mouth)", "no bound"),
    "simplex": SamplerEntry(
        Simplex, "SSD-LM, block after block", "SSD-LM models only: block after block", "no likelihood"
    ),
    "gaussian": SamplerEntry(
        Gaussian,
        "T-step ancestral, of Gaussian diffusion",
        "Plaid models only: all tokens at once, out of noise",
        "T steps; approximate where tokens are given",
    ),
}


def make_sampler(name: str, **settings: Any) -> Sampler:
    """The sampler with this name; None means the default of a setting. Raises for a setting that it does not have."""
    entry = SAMPLERS[choose(name, SAMPLERS, "sampler")]
    chosen = {setting: value for setting, value in settings.items() if value is not None}
    for setting_name in chosen:
        if setting_name not in entry.takes:
            users = ", ".join(other for other, its in SAMPLERS.items() if setting_name in its.takes)
            raise UserError(f"sampler {name!r} does not take {setting_name}; it belongs to {users or 'no sampler'}")
    for setting_name, spec in entry.settings.items():
        if spec.required and setting_name not in chosen:
            raise UserError(f"sampler {name!r} needs the {setting_name} ({spec.help.lower()})")
    return entry(**chosen)


@dataclass(frozen=True, init=False)
class SamplingParams:
    """The settings of one sequence: those below, those of its sampler, and those of `Choice`, all by keyword.

    Every setting is an attribute; a setting of the sampler is None if it was not given, which means its default.
    """

    seed: int = setting(
        0,
        "Sample i has the seed + i",
        least=-(2**63),
        most=2**63 - 1,
        absent={"harness": "every request has its own seed"},
    )
    sampler: str | None = setting(  # None: the model's default (`settle`)
        None, "How positions are written one after another", kind="sampler"
    )
    ban: Sequence[Word] = setting(
        (),
        "A token that is never written, by its text or as #17, or a word of several tokens that never appears",
        kind="tokens",
        most=256,
    )
    only: Sequence[Word] | None = setting(  # None: all, and of bases A, C, G and T
        None, "A token that may be written; no other is", kind="tokens", most=4096
    )
    allowed: Mapping[int, Sequence[Word]] = setting(
        factory=dict,
        help="Tokens that a masked position (from 0) may hold, as '{0: [cat, dog]}'",
        kind="rules",
        most=256,
    )
    min_length: int = setting(0, "No end of text within the first tokens written", least=0, needs="eos")
    constrain: Constrain | None = setting(
        None,
        "A function of log-probabilities",
        kind="function",
        absent=dict.fromkeys(("cli", "http", "page", "loop", "harness"), "a function exists in Python only"),
    )
    regex: str | None = setting(
        None, "A regular expression that every gap must match as a whole", kind="text", most=4096, absent=IN_GAPS
    )
    schema: Mapping[str, Any] | str | None = setting(
        None, "A JSON schema that every gap must be valid under, or its file", kind="schema", absent=IN_GAPS
    )
    choices: Sequence[str] = setting((), "A text that a gap may be", kind="texts", most=256, absent=IN_GAPS)
    where: Language | str | Sequence[Language | str | None] | None = setting(
        None,
        "What gaps must be, one form for each gap: a regular expression or a Language",
        kind="forms",
        absent=dict.fromkeys(("cli", "http", "page", "loop", "harness"), "languages exist in Python only"),
    )
    label: Word | None = setting(None, "Label of a model that was trained with labels", kind="label", needs="labels")
    guidance: float = setting(  # beyond a million, differences of log-probabilities overflow
        1.0, "Classifier-free guidance towards the label; 1 is none", least=0, most=1_000_000, needs="labels"
    )
    stride: int | None = setting(
        None,
        "Any length: windows of the model's length that move by this many tokens",
        title="Window stride",
        needs="windows",
        absent={"harness": "it follows from the lengths of context and answer"},
    )
    block: int | Literal["full"] | None = setting(  # None: the model's (`settle`)
        None,
        "Tokens of a block, or full (the whole text), of models that write block after block; steps are those of one",
        kind="size",
        title="Block size",
        needs="blocks",
        least=1,
        most=1 << 20,
    )
    stop: Sequence[str] = setting(
        (),
        "End the text before this string",
        kind="texts",
        most=16,
        absent={"harness": "a request says it with until"},
    )
    stop_at_eos: bool | None = setting(  # None: where the model has learned the ends of documents
        None,
        "End the text at an end-of-text token (default: if the model has learned where documents end)",
        needs="eos",
        absent={"harness": "every answer ends there", "completions": "ignore_eos is its opposite"},
    )
    values: Mapping[str, Any] = field(default_factory=dict)  # of the sampler and of `Choice`, where given
    recommended: tuple[str, ...] = field(default=(), compare=False)  # settings that come from the model, not the user

    def __init__(self, **chosen: Any) -> None:
        known = all_settings()
        object.__setattr__(self, "recommended", tuple(chosen.pop("recommended", ())))
        chosen = {**chosen.pop("values", {}), **chosen}
        if unknown := [name for name in chosen if name not in known]:
            raise UserError(f"there is no setting {unknown[0]!r}{nearest(unknown[0], known)}")
        names, values = {spec.name for spec in fields(self)}, {}
        for name, spec in known.items():
            value = chosen.get(name, spec.default)
            if name in chosen:
                (spec.check if name in names else spec.check_kind)(value)
            if name in names:
                object.__setattr__(self, name, value)  # a frozen record
            elif value != spec.default:
                values[name] = value
        object.__setattr__(self, "values", values)
        if self.sampler is not None:
            choose(self.sampler, SAMPLERS, "sampler")
        Choice(**self._of(Choice))
        self._forms()

    def __getattr__(self, name: str) -> Any:
        """A setting of the sampler or of `Choice`."""
        if name.startswith("_") or name == "values" or name not in (known := all_settings()):
            raise AttributeError(name)
        return self.values.get(name, known[name].default)

    def _of(self, record: type) -> dict[str, Any]:
        """The settings of a class that were given."""
        return {name: value for name, value in self.values.items() if name in settings_of(record)}

    def settle(self, model: LanguageModel) -> SamplingParams:
        """The same, with the model's default sampler and block size where none was named."""
        sampler = self.sampler or model.default_sampler
        block = self.block
        if block is None and model.writes_blocks and not SAMPLERS[sampler].make.sets_blocks:
            block = model.block_size or "full"
        settled = (sampler, block) == (self.sampler, self.block)
        return self if settled else replace(self, sampler=sampler, block=block)

    @property
    def _sampler(self) -> str:
        return self.sampler or "plan"

    @property
    def choice(self) -> Choice:
        """How tokens are drawn."""
        return Choice(**self._of(Choice))

    def plan(self, builder: PromptBuilder) -> Sampler:
        """The sampler, in blocks if there is a block size, and in windows if a stride is given."""
        plan = self.plan_in_blocks()
        return plan if self.stride is None else Windows(plan, builder.spec.length, self.stride, builder.block_ends)

    def plan_in_blocks(self) -> Sampler:
        """The sampler without windows, in blocks if there is a block size."""
        if self.block is None:
            return self.plan_alone()
        return BlockByBlock(self.plan_alone(), None if self.block == "full" else self.block)

    def plan_alone(self) -> Sampler:
        """The sampler without blocks and windows."""
        chosen = settings_of(Choice)
        return make_sampler(self._sampler, **{name: value for name, value in self.values.items() if name not in chosen})

    def control(self, canvas: Canvas, builder: PromptBuilder) -> Rules | None:
        """The rules for a canvas, or None if there are none."""
        only = self.only
        if only is None and builder.tokenizer.kind == "dna":  # neither N nor the special tokens of its vocabulary
            only = (*BASES, *builder.closing, *(builder.ends if builder.closing else ()))
        if only is None and not (self.ban or self.allowed or self.min_length or self.constrain):
            return None
        vocab = builder.vocab
        masked = torch.nonzero(canvas.ids == vocab.mask).squeeze(-1).tolist()
        if self.min_length and vocab.eos is None:
            raise UserError("min_length needs a tokenizer with an end-of-text token, which this model's does not have")
        for index in self.allowed:
            if not 0 <= index < len(masked):
                raise UserError(f"allowed names masked token {index}, but there are {len(masked)} (from 0)")
        least = min(self.min_length, len(masked))
        banned, phrases = self._bans(builder)
        control = Rules(  # as the user counts: masked tokens from 0
            banned=_outside(only, builder) | frozenset(banned),
            phrases=phrases,
            allowed={
                index: [token for word in words for token in tokens_of(word, builder)]
                for index, words in self.allowed.items()
            },
            eos_from=least,
            constrain=self.constrain,
            ends=builder.ends | canvas.ends,
        )
        control.check(canvas.ids[masked], vocab, builder.tokenizer.piece)
        if least and len(control.banned | {vocab.mask, *builder.ends}) == vocab.size:
            raise UserError("contradiction: ban leaves only the end of text, which min_length forbids at the beginning")
        allowed = {masked[index]: tokens for index, tokens in control.allowed.items()}
        return replace(control, allowed=allowed, eos_from=masked[least - 1] + 1 if least else 0)

    def _forms(self) -> Language | list[Language | None] | None:
        """What gaps must be: one form for all of them, or one for each; None if that is left open."""
        given = [name for name in ("regex", "schema", "choices", "where") if getattr(self, name) not in (None, ())]
        if not given:
            return None
        if len(given) > 1:
            raise UserError(f"give either {given[0]} or {given[1]}; where takes one form for each gap")
        if self.regex is not None:
            return regex(self.regex)
        if self.schema is not None:
            return json_schema(self.schema)
        if self.where is None:
            return choices(self.choices)
        if isinstance(self.where, Language | str):
            return _language(self.where)
        return [None if form is None else _language(form) for form in self.where]

    def _ends_in_form(self, canvas: Canvas) -> bool:
        forms = list(canvas.patterns) or self._forms()
        return forms is not None and (isinstance(forms, Language) or forms[-1:] != [None])

    def constraint(self, canvas: Canvas, builder: PromptBuilder) -> Constraint | None:
        """The form of the gaps of a canvas; where the text ends in a gap, an end of text may follow it."""
        forms = self._forms()
        if canvas.patterns:
            if forms is not None:
                raise UserError("gaps of the text have patterns; leave out regex, schema, choices and where")
            forms = [None if pattern is None else regex(pattern) for pattern in canvas.patterns]
        if forms is None:
            return None
        gaps = [part for part in canvas.parts if isinstance(part, slice)]
        each = forms if isinstance(forms, list) else [forms] * len(gaps)
        if len(each) != len(gaps):
            raise UserError(
                f"where has {len(each)} forms, but the text has {len(gaps)} gaps; give one (or None) for each"
            )
        spans = []
        for gap, form in zip(gaps, each, strict=True):
            if form is not None:
                form = form.after_space if builder.has_space(canvas, gap) else form
                ends = tuple(sorted(builder.ends | canvas.ends)) if canvas.open_end and gap is gaps[-1] else ()
                ends = () if self.stop_at_eos is False else ends
                spans.append(FormedSpan(for_tokenizer(form, builder.tokenizer, ends), gap.start, gap.stop))
        return Constraint(tuple(spans)) if spans else None

    def _bans(self, builder: PromptBuilder) -> tuple[set[int], tuple[Phrase, ...]]:
        """The banned tokens, and the banned words that are several tokens."""
        words = [word for word in self.ban if isinstance(word, str) and _tokens(word, builder) == []]
        if words and self._sampler in AT_ONCE:
            raise UserError(
                f"{words[0]!r} is {len(builder.encode(words[0]))} tokens for this model's tokenizer, and the sampler "
                f"{self._sampler!r} writes many tokens at once: it can only ban single tokens; name its parts or an id"
            )
        tokens = {token for word in self.ban if word not in words for token in tokens_of(word, builder)}
        spelling = builder.tokenizer.spelling if words else ()
        spelled = {variant for word in words for variant in (word, _as_written(word, builder))}
        phrases = tuple(Phrase(word.encode(), spelling) for word in sorted(spelled))
        return tokens | {token for phrase in phrases for token in phrase.alone()}, phrases

    def label_id(self, labels: Sequence[str]) -> int | None:
        """The id of the label, which is given by name or id."""
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
        """Law and settings, for protocols: those that were given, and the defaults of the sampler."""
        entry, always = SAMPLERS[self._sampler], ("temperature", "top_k", "top_p")
        kept = {
            name: value
            for name, spec in all_settings().items()
            if (value := getattr(self, name)) != spec.default and _says(value)
        }
        shown = {"law": entry.law, "sampler": self._sampler} | {name: getattr(self, name) for name in always} | kept
        try:
            plan = self.plan_alone()
        except UserError:  # the lines of a template may give what is missing
            plan = None
        decided = {name: getattr(plan, name, None) for name in entry.takes}
        shown |= {name: value for name, value in decided.items() if value is not None}
        if self.constrain is not None:
            shown["constrain"] = getattr(self.constrain, "__name__", "a function")
        if "where" in shown:
            forms = self._forms()
            each = [None if form is None else form.source for form in (forms if isinstance(forms, list) else [forms])]
            shown["where"] = each if isinstance(forms, list) else each[0]
        return shown | ({"recommended": list(self.recommended)} if self.recommended else {})

    @property
    def advice(self) -> str:
        """One line that names the settings that come from the model; empty if there are none."""
        if not self.recommended:
            return ""
        names = ", ".join(f"{name} {getattr(self, name)}" for name in self.recommended)
        return f"recommended by the model: {names} (--exact: the plain law)"


def all_settings() -> dict[str, Setting]:
    """Every setting by name: those of samplers follow `sampler`, and default to None until a sampler is chosen."""
    return _merged(tuple(SAMPLERS.values()))


@functools.cache
def _merged(entries: tuple[SamplerEntry, ...]) -> dict[str, Setting]:
    common, chosen = settings_of(SamplingParams), settings_of(Choice)
    result = {name: common[name] for name in ("seed", "sampler")}
    for entry in entries:
        for name, spec in entry.settings.items():
            assert name not in common and name not in chosen, f"{name} names two settings"
            result.setdefault(name, replace(spec, default=None, nullable=True, required=False))
    return result | chosen | common


def settings_on(surface: str) -> dict[str, Setting]:
    """The settings that a surface offers."""
    return {name: spec for name, spec in all_settings().items() if surface not in spec.absent}


def default_words(name: str) -> str:
    """The default of a setting in words, with those of samplers that differ."""
    spec = all_settings()[name]
    if spec.default is not None and spec.default not in ((), {}):
        return str(spec.default)
    groups: dict[str, list[str]] = {}
    for sampler, entry in SAMPLERS.items():
        if name in entry.takes and (default := entry.settings[name].default) is not None:
            shown = ",".join(map(str, default)) if isinstance(default, tuple) else str(default)
            groups.setdefault(shown, []).append(sampler)
    if not groups:
        return ""
    common = max(groups, key=lambda shown: len(groups[shown]))
    rest = [f"{sampler}: {shown}" for shown, users in groups.items() if shown != common for sampler in users]
    return "; ".join([common, *rest])


def _language(form: Language | str) -> Language:
    return regex(form) if isinstance(form, str) else form


def _outside(only: Sequence[Word] | None, builder: PromptBuilder) -> frozenset[int]:
    """All tokens except these."""
    if only is None:
        return frozenset()
    kept = {token for word in only for token in tokens_of(word, builder)}
    return frozenset(range(builder.vocab.size)) - kept


def _says(value: Any) -> bool:
    """Whether a setting says anything: an empty list of rules does not."""
    return value is not None and (not isinstance(value, Sequence | Mapping) or len(value) > 0)


def tokens_of(word: Word, builder: PromptBuilder) -> list[int]:
    """The tokens for a word: the id itself, or the ids of the word with and without a leading space."""
    if isinstance(word, int):
        if not 0 <= word < builder.vocab.size:
            raise UserError(f"token {word} is outside the vocabulary of {builder.vocab.size} tokens")
        return [word]
    tokens = _tokens(word, builder)
    if not tokens:
        raise UserError(
            f"{word!r} is {len(builder.encode(word))} tokens for this model's tokenizer; only and allowed work on "
            "single tokens: name its parts or an id, or use constrain= (ban takes any word)"
        )
    if any(piece in UNKNOWN and piece != word for piece in map(builder.tokenizer.piece, tokens)):
        raise UserError(f"{word!r} is unknown to this model's tokenizer, so it is never written; take it out")
    return tokens


def _tokens(word: str, builder: PromptBuilder) -> list[int]:
    """The single tokens that are a word, with or without a leading space; none for a word of several tokens."""
    if not word:
        raise UserError("a token in a rule is empty; give its text or its id")
    spellings = [word] if word.startswith(" ") or not builder.joins_spaces else [word, " " + word]
    return sorted({ids[0] for ids in map(builder.encode, spellings) if len(ids) == 1})


def _as_written(word: str, builder: PromptBuilder) -> str:
    """A word of several tokens as the tokenizer writes it (which may be in lower case)."""
    ids = builder.encode(word)
    if any(builder.tokenizer.piece(token) in UNKNOWN for token in ids):
        raise UserError(f"{word!r} is unknown to this model's tokenizer, so it is never written; take it out")
    return builder.tokenizer.decode(ids) or word


@dataclass(frozen=True)
class Stop:
    """Where a text ends: at an end-of-text token or a stop string in what was written."""

    canvas: Canvas
    options: SamplingParams
    builder: PromptBuilder
    at_eos: bool

    @staticmethod
    def of(canvas: Canvas, options: SamplingParams, builder: PromptBuilder) -> Stop | None:
        """The stop condition of a request; None if nothing stops it."""
        at_eos = options.stop_at_eos
        if at_eos is None:  # a text under a constraint ends where it is complete
            learned = builder.spec.has_ends or bool(canvas.ends)
            at_eos = canvas.open_end and (learned or (options._ends_in_form(canvas) and bool(builder.ends)))
        if "stop_at_eos" in options.recommended:
            at_eos = at_eos and canvas.open_end  # a recommendation is not for texts with a given end
        if not options.stop and not canvas.stop and not at_eos:
            return None
        if not canvas.open_end:
            raise UserError("stop and stop_at_eos need a text that ends in a gap; this one ends in given text")
        if at_eos and not builder.ends | canvas.ends:
            raise UserError("stop_at_eos needs a tokenizer with an end-of-text token, which this model's does not have")
        return Stop(canvas, options, builder, at_eos)

    @property
    def words(self) -> tuple[str, ...]:
        """The texts that end it."""
        return (*self.options.stop, *self.canvas.stop)

    def __call__(self, state: State) -> Ending | None:
        """Where the text of a state ends; None while it goes on."""
        gap = next(part for part in reversed(self.canvas.parts) if isinstance(part, slice))
        if self.at_eos:
            written, ends = state.canvas[gap.start : state.fixed].tolist(), self.builder.ends | self.canvas.ends
            last = next((at for at, token in enumerate(written, gap.start) if token in ends), None)
            if last is not None:
                return self._cut(state, last, "eos", gap.start)
        if not self.words or state.fixed <= gap.start:
            return None
        ending = self._cut(state, state.fixed, "", gap.start)
        return ending if ending.reason else None

    def _cut(self, state: State, tokens: int, why: str, start: int) -> Ending:
        """Cut the text at the first stop string in what was written from `start` on."""
        text = self._reads(state, tokens)
        before = len(self._reads(state, start))
        places = [(at, at + len(word)) for word in self.words if (at := text.find(word, before)) >= 0]
        if not places:
            return Ending(text, why, tokens)
        at, end = min(places)

        def complete(count: int) -> bool:
            return self._reads(state, count)[:end] == text[:end]

        # Without tokens after the one that completed the stop string.
        return Ending(text[:at], "stop", bisect_left(range(tokens), True, lo=start, key=complete))

    def _reads(self, state: State, tokens: int) -> str:
        return self.builder.text(self.canvas, state.canvas, tokens)
