"""Requests for text: the harness's gen_kwargs as our settings, and a context as a canvas."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

import torch

from ...config import nearest
from ...data.canvas import Canvas
from ...data.documents import storable
from ...lm import LM, Job
from ...sampling.params import SamplingParams, settings_on
from ...types import UserError
from .likelihood_requests import start_of_text, tail

LENGTHS = ("max_gen_toks", "max_new_tokens", "max_tokens", "max_completion_tokens")  # the first that is there counts
NOTHING = {"num_beams": 1, "num_return_sequences": 1, "repetition_penalty": 1, "length_penalty": 1, "use_cache": True}
Wrote = Callable[[int, str], None]  # (which request, what was written)


@dataclass
class GenerationRequests:
    """A model, and the settings for what a request leaves open."""

    lm: LM
    seed: int = 0
    rows: int = 32
    max_gen_toks: int = 256
    defaults: Mapping[str, Any] = field(default_factory=dict)  # sampler, steps and so on

    def __post_init__(self) -> None:
        self.options({}, 0)  # raises before anything is written
        _count(self.max_gen_toks)

    def write(self, requests: Sequence[tuple[str, Mapping[str, Any]]], wrote: Wrote) -> None:
        """Write all continuations; `wrote` gets each as soon as it is finished. Equal requests get different seeds."""
        again: Counter[str] = Counter()
        jobs, contexts = [], [storable(context) for context, _ in requests]
        for (_, how), context in zip(requests, contexts, strict=True):
            name = json.dumps([context, how], sort_keys=True, default=str)
            jobs.append(self.job(context, how, _seed(self.seed, name, again[name])))
            again[name] += 1
        for _, sample in self.lm.run(jobs, batch_size=self.rows):
            if sample is not None:
                wrote(sample.index, sample.text[len(contexts[sample.index]) :])

    def job(self, context: str, how: Mapping[str, Any], seed: int = 0) -> Job:
        """One request as a canvas and settings."""
        count = _count(next((how[name] for name in LENGTHS if how.get(name) is not None), self.max_gen_toks))
        canvas, stride = self.canvas(context, count)
        return Job(canvas, replace(self.options(how, seed), stride=stride))

    def options(self, how: Mapping[str, Any], seed: int) -> SamplingParams:
        """The settings of a request on top of the defaults; without do_sample or a temperature, greedy."""
        known = ("until", "do_sample", *LENGTHS, *settings_on("harness"))
        for name, value in how.items():
            if name not in known and not (name in NOTHING and value == NOTHING[name]):
                near = nearest(name, known)
                raise UserError(f"gen_kwargs: {name}={value!r} is not supported{near}; choose from {', '.join(known)}")
        schema = settings_on("harness")
        settings = {**self.defaults, **{name: how[name] for name in schema if how.get(name) is not None}}
        sampled = how.get("do_sample")
        if sampled is False:
            settings["temperature"] = 0.0
        settings.setdefault("temperature", 1.0 if sampled else 0.0)
        settings = {
            name: schema[name].from_json(value)
            for name, value in settings.items()
            if not schema[name].switches_off(value)
        }
        until = how.get("until") or []
        stop = [until] if isinstance(until, str) else list(until)
        eos = self.lm.tokenizer.vocab.eos is not None
        return SamplingParams(seed=seed, stop=[text for text in stop if text != ""], stop_at_eos=eos, **settings)

    def canvas(self, context: str, count: int) -> tuple[Canvas, int | None]:
        """The context and masks, and the stride of the windows if that is more than the model can see at once.

        Up to half of the model's length is written in one piece, with as much of the end of the context as fits.
        """
        builder, length = self.lm.prompt_builder, self.lm.length
        given = builder.encode(builder.before_gap(context)) or start_of_text(self.lm)
        bos = [] if builder.block_ends is None else [builder.block_ends[0]]
        room = length - len(bos)
        too_long = len(given) + count > room and not builder.any_length
        stride = max(1, length // 2) if too_long and count > room // 2 else None
        if too_long and stride is None:
            given = tail(given, room - count)
        if stride is None:  # windows get theirs later
            given = [*bos, *given]
        ids = torch.tensor([*given, *[builder.vocab.mask] * count], dtype=torch.int64)
        return Canvas(ids, [context, slice(len(given), len(ids))], [count]), stride


def _count(value: Any) -> int:
    if isinstance(value, bool) or not isinstance(value, int) or value < 1:
        raise UserError(f"max_gen_toks={value!r} must be a whole number of at least 1")
    return value


def _seed(seed: int, name: str, again: int) -> int:
    """The seed of a request; depends only on the request and on how often it was made before."""
    digest = hashlib.sha256(f"{seed} {again} {name}".encode()).digest()
    return int.from_bytes(digest[:8], "little") >> 1
