"""The schema of sampling settings: a dataclass field declares its kind, its limits and its help text.

The command line, HTTP bodies and their OpenAPI document, the page, the terminal loop, the evaluation harness and the
tables of docs/sampling.md are generated from these records; settings are listed nowhere else.
"""

from __future__ import annotations

import functools
import json
import math
import types
from collections.abc import Callable, Mapping, Sequence
from dataclasses import MISSING, dataclass, field, fields
from numbers import Integral, Real
from pathlib import Path
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from ..constraints import Language
from ..errors import UserError, choose

STEPS = 128  # by default
MOST_STEPS = 10_000_000  # steps and corrections together; first-hitting is the limit of infinitely many
Surface = Literal["cli", "http", "page", "loop", "harness"]


def _whole(value: Any) -> bool:
    return isinstance(value, Integral) and not isinstance(value, bool)


def _number(value: Any) -> bool:
    return isinstance(value, Real) and not isinstance(value, bool)


def _size(text: str) -> int | str:
    return text if text == "full" else int(text)


def _text(value: Any) -> bool:
    return isinstance(value, str)


def _token(value: Any) -> bool:
    return isinstance(value, str) or _whole(value)


def _list(each: Callable[[Any], bool]) -> Callable[[Any], bool]:
    return lambda value: isinstance(value, Sequence) and not isinstance(value, str) and all(map(each, value))


def _rules(value: Any) -> bool:
    return isinstance(value, Mapping) and all(_whole(key) and _list(_token)(words) for key, words in value.items())


def _schema(text: str) -> Any:
    """A JSON schema, or the path of a file that holds one."""
    if not text.lstrip().startswith("{"):
        try:
            text = Path(text).expanduser().read_text(encoding="utf-8")
        except OSError:
            raise ValueError from None
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError from None


def _form(value: Any) -> bool:
    return isinstance(value, str | Language)


def _numbers(text: str, kind: Callable[[str], Any]) -> tuple[Any, ...]:
    return tuple(kind(part) for part in text.split(","))


def _pair(text: str) -> tuple[float, float]:
    on, off = _numbers(text, float)
    return on, off


def _flag(text: str) -> bool:
    return {"true": True, "yes": True, "on": True, "false": False, "no": False, "off": False}[text.lower()]


def _by_id(text: str) -> str | int:
    """A token by its text, or by its number as #17."""
    return int(text[1:]) if text.startswith("#") and text[1:].isdecimal() else text


def _mapping(text: str) -> Any:
    import yaml

    try:
        return yaml.safe_load(text)
    except (yaml.YAMLError, RecursionError):
        raise ValueError from None


@dataclass(frozen=True)
class Kind:
    """A kind of value: the check for it, its name in messages, and how it is read from text."""

    fits: Callable[[Any], bool]
    name: str
    parse: Callable[[str], Any]
    spelled: str = ""  # what it looks like as text, where its name does not say
    several: bool = False  # a list whose entries are written one by one


KINDS: dict[str, Kind] = {
    "whole": Kind(_whole, "a whole number", int),
    "size": Kind(lambda value: value == "full" or _whole(value), "a whole number of tokens, or full", _size),
    "number": Kind(_number, "a number", float),
    "flag": Kind(lambda value: isinstance(value, bool), "true or false", _flag),
    "choice": Kind(_text, "a name", str),
    "sampler": Kind(_text, "the name of a sampler", str),
    "label": Kind(lambda value: isinstance(value, str | int), "the name or the number of a label", str),
    "wholes": Kind(
        _list(_whole),
        "a list of whole numbers",
        functools.partial(_numbers, kind=int),
        "whole numbers with commas between, for example 2,0,1",
    ),
    "pair": Kind(
        lambda value: _list(_number)(value) and len(value) == 2,
        "two times, for example 0.55 and 0.05",
        _pair,
        "two times with a comma between, for example 0.55,0.05",
    ),
    "tokens": Kind(_list(_token), "a list of tokens, each by its text or its id", _by_id, several=True),
    "texts": Kind(
        _list(lambda word: isinstance(word, str) and word != ""),
        "a list of texts that are not empty",
        str,
        several=True,
    ),
    "rules": Kind(
        _rules,
        "masked tokens (from 0) with a list of tokens for each, by text or id",
        _mapping,
        "masked tokens (from 0) with a list for each, for example '{0: [cat, dog]}'",
    ),
    "text": Kind(_text, "a text", str),
    "schema": Kind(
        lambda value: isinstance(value, Mapping | str),
        "a JSON schema: an object",
        _schema,
        "a JSON schema ({...}), or a file that holds one",
    ),
    "forms": Kind(
        lambda value: _form(value) or _list(lambda form: form is None or _form(form))(value),
        "a regular expression or a Language of unmask.constraints, or a list with one (or None) for each gap",
        str,
    ),
    "function": Kind(callable, "a function", str),
}

NUMBERS = ("whole", "size", "number")  # kinds with limits


@dataclass(frozen=True)
class Setting:
    """One setting. `default` applies if it is not given; None: off, or left to the sampler."""

    name: str
    kind: str
    default: Any
    help: str
    title: str  # on the page
    nullable: bool = False
    required: bool = False
    least: float | None = None
    most: float | None = None  # over HTTP: of a list entries, of a text characters
    above: float | None = None
    below: float | None = None
    choices: tuple[str, ...] = ()
    off: bool = False  # over HTTP and in the harness 0 means "off", as in other libraries
    instead: tuple[str, ...] = ()  # settings of the sampler that it replaces
    needs: str = ""  # what a model must have for it: labels, eos or windows
    absent: Mapping[str, str] = field(default_factory=dict)  # surface -> why it makes no sense there

    @property
    def option(self) -> str:
        """The option of the command line."""
        return f"-{self.name}" if len(self.name) == 1 else f"--{self.name.replace('_', '-')}"

    @property
    def limits(self) -> str:
        """The range in words; empty if there is none."""
        if self.kind not in NUMBERS:
            return ""
        if self.least is not None and self.most is not None:
            return f"from {self.least:,} to {self.most:,}"
        low = f"at least {self.least:,}" if self.least is not None else ""
        low = f"above {self.above:,}" if self.above is not None else low
        high = f"at most {self.most:,}" if self.most is not None else ""
        high = f"below {self.below:,}" if self.below is not None else high
        return " and ".join(filter(None, (low, high)))

    def check_kind(self, value: Any) -> None:
        """Raise if a value is not of this kind."""
        if not KINDS[self.kind].fits(value) and not (value is None and self.nullable):
            what = f"the name of a {self.name}" if self.kind == "choice" else KINDS[self.kind].name
            raise UserError(f"{self.name}={_shown(value)} must be {what}")

    def check(self, value: Any) -> None:
        """Raise if a value is not of this kind or is outside the limits."""
        self.check_kind(value)
        if value is None:
            return
        if self.kind == "choice":
            choose(value, self.choices, self.name)
        if self.kind in NUMBERS and value != "full" and not self.inside(value):
            limits = self.limits if math.isfinite(value) else "a finite number"
            if self.kind != "number" and self.least is not None and self.most is not None:  # a range of many millions
                limits = f"at least {self.least:,}" if value < self.least else f"at most {self.most:,}"
            raise UserError(f"{self.name}={value} must be {limits}")

    def inside(self, value: float) -> bool:
        """Whether a number is within the limits; infinity and NaN never are."""
        return (
            math.isfinite(value)
            and (self.least is None or value >= self.least)
            and (self.most is None or value <= self.most)
            and (self.above is None or value > self.above)
            and (self.below is None or value < self.below)
        )

    def switches_off(self, value: Any) -> bool:
        """Whether a client switches a filter off the way other libraries do, with 0 (or -1)."""
        return self.off and _number(value) and (value == 0 or (self.kind == "whole" and value < 0))

    def parse(self, text: str | Sequence[str], where: str = "") -> Any:
        """Read a value from text; for lists whose entries are given one by one, from a list of texts."""
        kind = KINDS[self.kind]
        if kind.several:
            return [kind.parse(word) for word in ([text] if isinstance(text, str) else text)]
        assert isinstance(text, str)
        try:
            return kind.parse(text)
        except (ValueError, KeyError):
            raise UserError(f"{where or f'{self.name}={text}'} must be {kind.spelled or kind.name}") from None

    def from_json(self, value: Any) -> Any:
        """A value from JSON or YAML, where keys of mappings are strings and a list may be given as text."""
        if self.kind == "rules" and isinstance(value, Mapping):
            return {int(key) if str(key).isdecimal() else key: words for key, words in value.items()}
        if isinstance(value, str) and self.kind in ("wholes", "pair", "texts", "tokens"):
            return self.parse(value)
        return value


def setting(default: Any = MISSING, help: str = "", *, kind: str = "", factory: Any = MISSING, **facts: Any) -> Any:
    """A dataclass field that is a setting; by default its kind follows from its annotation."""
    return field(default=default, default_factory=factory, metadata={"setting": {"kind": kind, "help": help, **facts}})


def steps_setting(default: int | None = STEPS) -> Any:
    """The number of steps of a sampler."""
    return setting(default, "T, the number of denoising steps", least=1, most=MOST_STEPS)


def k_setting(default: int | None = 1) -> Any:
    """The number of tokens that an order writes at a time."""
    instead = ("steps", "threshold", "entropy_bound")
    about = "Tokens per step, for orders; speculative: drafted tokens of a call, instead of what saves most time"
    return setting(default, about, title="Tokens per step", least=1, instead=instead)


def settings_of(record: type) -> dict[str, Setting]:
    """The settings that a dataclass declares, by name."""
    return _declared(record)


@functools.cache
def _declared(record: Any) -> dict[str, Setting]:
    result, hints = {}, get_type_hints(record)
    for spec in fields(record):
        if "setting" not in spec.metadata:
            continue
        facts = dict(spec.metadata["setting"])
        required = spec.default is MISSING and spec.default_factory is MISSING
        default = None if required else spec.default
        if spec.default_factory is not MISSING:
            default = spec.default_factory()
        kind, choices = _kind(hints[spec.name])
        facts["kind"] = facts["kind"] or kind
        facts.setdefault("title", spec.name.replace("_", " ").capitalize())
        result[spec.name] = Setting(
            name=spec.name,
            default=default,
            nullable=spec.default is None,
            required=required,
            choices=choices,
            **facts,
        )
    return result


def _kind(hint: Any) -> tuple[str, tuple[str, ...]]:
    """The kind that an annotation stands for, and its choices."""
    if get_origin(hint) in (Union, types.UnionType):
        hint = next(part for part in get_args(hint) if part is not type(None))
    if get_origin(hint) is Literal:
        return "choice", get_args(hint)
    if get_origin(hint) is tuple:
        return "pair", ()
    if get_origin(hint) is not None:
        return "wholes", ()
    return {int: "whole", float: "number", bool: "flag", str: "choice"}.get(hint, ""), ()


def check_settings(record: Any) -> None:
    """Raise for the first setting of a dataclass whose value is not valid."""
    for name, spec in settings_of(type(record)).items():
        spec.check(getattr(record, name))


def _shown(value: Any) -> str:
    """A wrong value for a message, shortened."""
    text = repr(list(value) if isinstance(value, tuple) else value)
    return text if len(text) <= 60 else text[:57] + "..."
