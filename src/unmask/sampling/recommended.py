"""The settings that a model recommends, with examples of what to ask it: sampling.json in its folder.

A model is scored by its plain law, and a small one reads better a little colder. What suits it is measured once and
travels with it. Where a user leaves a setting open it applies (`LM.sampling_params`); figures never read it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from ..data.canvas import parse_gaps
from ..errors import UserError, nearest
from ..files import read_json, write_json
from .choice import Choice
from .params import SAMPLERS, SamplingParams, all_settings
from .settings import settings_of

FILE = "sampling.json"
FORMAT = 1
MOST = 16  # example prompts
TEXT: Mapping[str, Any] = {"temperature": 0.7, "top_p": 0.9}  # docs/tiny-en.md has the measurements
LONGEST = 2000  # characters of an example
END = "stop_at_eos"  # where a text is open at its end
BLOCK = "block"  # of models that write block after block


@dataclass(frozen=True)
class Recommended:
    """Settings that suit a model, and examples; empty: the plain law."""

    settings: Mapping[str, Any] = field(default_factory=dict)  # by name: of samplers, of `Choice`, block, stop_at_eos
    style: str = ""  # one sentence: which prompts suit the model
    prompts: tuple[str, ...] = ()  # beginnings that it continues well
    infill: str = ""  # a text with gaps that it fills well

    def __bool__(self) -> bool:
        return self != Recommended()

    def __post_init__(self) -> None:
        known = recommendable()
        for name in self.settings:
            if name not in known:
                raise UserError(f"{name!r} cannot be recommended{nearest(name, known)}; {', '.join(known)} can")
        params = SamplingParams(**self.settings)
        if params.block is not None or params.sampler is not None:
            params.plan_in_blocks()
        if len(self.prompts) > MOST or any(len(text) > LONGEST for text in (self.style, self.infill, *self.prompts)):
            raise UserError(f"at most {MOST} example prompts, and texts of at most {LONGEST:,} characters")
        if self.infill:
            parse_gaps(self.infill)

    def params(self, explicit: Mapping[str, Any], exact: bool = False) -> SamplingParams:
        """The settings that a user gave, and the recommended ones where they leave something open.

        A temperature of 1 (or `exact`) is the plain law. Whoever sets one of temperature, top-k, top-p and min-p sets
        all of them; another sampler, or a setting that the recommended one does not take, replaces the sampler.
        """
        kept = {} if exact else self._left_open(explicit)
        return SamplingParams(**{**kept, **explicit}, recommended=tuple(kept))

    def _left_open(self, explicit: Mapping[str, Any]) -> dict[str, Any]:
        if explicit.get("temperature") == 1:
            return {}
        choices = settings_of(Choice)
        drawn = {name: value for name, value in self.settings.items() if name in choices}
        plan = {name: value for name, value in self.settings.items() if name not in (*choices, END, BLOCK)}
        others = {name: value for name, value in self.settings.items() if name in (END, BLOCK)}
        if any(name in choices for name in explicit):
            drawn = {}
        known = all_settings()
        chosen = [name for name in explicit if any(name in entry.takes for entry in SAMPLERS.values())]
        named = self.settings.get("sampler")
        other = "sampler" in explicit and explicit["sampler"] != named
        if other or (named is not None and any(name not in SAMPLERS[named].takes for name in chosen)):
            plan = {}
        for name in chosen:  # k instead of steps, steps instead of k
            plan = {
                key: v for key, v in plan.items() if key not in known[name].instead and name not in known[key].instead
            }
        sampler = explicit.get("sampler") or plan.get("sampler")
        if sampler in SAMPLERS and SAMPLERS[sampler].make.sets_blocks:
            others.pop(BLOCK, None)
        return {name: value for name, value in (plan | drawn | others).items() if name not in explicit}

    def as_dict(self) -> dict[str, Any]:
        """For JSON."""
        return {**asdict(self), "settings": dict(self.settings), "prompts": list(self.prompts)}

    def write(self, folder: str | Path) -> None:
        """Write sampling.json into the folder of a model."""
        write_json(Path(folder) / FILE, {"format": FORMAT, **self.as_dict()})

    @classmethod
    def read(cls, folder: str | Path) -> Recommended:
        """What sampling.json of a folder says; nothing where there is none."""
        path = Path(folder) / FILE
        if not path.is_file():
            return cls()
        fix = "; mend it, or delete it to use the plain law"
        data = read_json(path, "cannot read the recommended settings", fix)
        if data.get("format") != FORMAT:
            raise UserError(f"{path} has the format {data.get('format')!r}, and this version reads {FORMAT}{fix}")
        try:
            return cls.from_dict({key: value for key, value in data.items() if key != "format"})
        except UserError as error:
            raise UserError(f"{path} is damaged: {error}{fix}") from None

    @classmethod
    def from_dict(cls, data: Mapping[str, Any]) -> Recommended:
        """From what `as_dict` gave, checked; what is missing is empty."""
        known = ("settings", "style", "prompts", "infill")
        for key in data:
            if key not in known:
                raise UserError(f"unknown key {key!r}{nearest(key, known)}")
        settings, prompts = data.get("settings", {}), data.get("prompts", [])
        style, infill = data.get("style", ""), data.get("infill", "")
        if not isinstance(settings, Mapping):
            raise UserError("its settings are not an object")
        if not isinstance(prompts, list) or not all(isinstance(text, str) for text in (style, infill, *prompts)):
            raise UserError("style and infill are not texts, or prompts is not a list of texts")
        schema = all_settings()
        read = {name: schema[name].from_json(value) if name in schema else value for name, value in settings.items()}
        return cls(read, style, tuple(prompts), infill)


def of_training(asked: str | Mapping[str, Any], kind: str, sampler: str) -> Recommended:
    """What a model recommends after training: as sample.recommended says; auto: what suits small models of text.

    `kind` is that of the tokenizer, `sampler` the default of the model. For DNA and for samplers that draw no tokens
    from a softmax nothing was measured, so nothing is recommended.
    """
    if isinstance(asked, Mapping):
        try:
            return Recommended.from_dict({"settings": asked})
        except UserError as error:
            raise UserError(f"sample.recommended: {error}") from None
    if asked == "none" or kind == "dna" or sampler in ("simplex", "gaussian"):
        return Recommended()
    return Recommended(TEXT)


def recommendable() -> tuple[str, ...]:
    """The settings that a model may recommend: of samplers and of `Choice`, a block size, and whether a text ends."""
    choices = settings_of(Choice)
    taken = {name for entry in SAMPLERS.values() for name in entry.takes}
    return tuple(name for name in all_settings() if name in ("sampler", END, BLOCK) or name in taken or name in choices)
