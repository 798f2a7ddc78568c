"""The class that the lm-evaluation-harness sees, and its command with that class registered.

The harness (0.4.13) knows the model classes on its list and those registered in the same process; it does not look for
plugins. So `main` registers ours and then calls the command of the harness.
"""

from __future__ import annotations

import functools
import importlib
import logging
import sys
from collections.abc import Sequence
from dataclasses import dataclass, field, fields, replace
from typing import Any

import torch

from ...config import nearest
from ...errors import UserError, optional
from ...evaluation.likelihood import compute_dtype, in_blocks, note_untrained
from ...lm import LM
from ...process.keys import check_seed
from ...progress import progress_bar
from ...sampling.params import settings_on
from ...version import __version__
from ..resolve import load
from .generation_requests import GenerationRequests
from .likelihood_requests import LikelihoodRequests

ROWS = 32  # of a network call, where nobody says
log = logging.getLogger("unmask")


@dataclass(frozen=True)
class Settings:
    """The settings of `--model_args`."""

    pretrained: str | LM
    draws: int = 32  # network rows per continuation, or per block of a text
    estimator: str | None = None  # strata or times; None: the one with the least noise that the model allows
    seed: int = 0
    device: str = "cpu"
    which: str = "last"  # or best, of a run
    weights: str = "ema"  # or raw
    tokenizer: str | None = None  # for models that come without one
    revision: str | None = None  # of a model on the Hub
    max_gen_toks: int = 256  # where a task does not say
    rows: int = ROWS  # of a network call
    writing: dict[str, Any] = field(default_factory=dict)  # sampler, steps and so on, where a task does not say


def settings(**args: Any) -> Settings:
    """Checked settings. `batch_size` is the harness's name for `rows`; its default of 1 means our default."""
    size = args.pop("batch_size", None)
    args.pop("max_batch_size", None)  # for "auto", which means the default
    if size is not None and not str(size).startswith("auto"):
        if not str(size).isdecimal() or int(size) < 1:
            raise UserError(f"batch_size={size} must be a whole number of at least 1, or auto")
        args.setdefault("rows", int(size) if int(size) > 1 else ROWS)
    names, of_writing = [f.name for f in fields(Settings) if f.name != "writing"], settings_on("harness")
    for name in args:
        if name not in names and name not in of_writing:
            known = [*names, "batch_size", *of_writing]
            raise UserError(f"model_args: {name} is unknown{nearest(name, known)}; choose from {', '.join(known)}")
    if not args.get("pretrained"):
        raise UserError("no model is named; give its folder, for example --model_args pretrained=runs/demo")
    for name in ("draws", "seed", "max_gen_toks", "rows"):
        value = args.get(name, 1)
        if isinstance(value, bool) or not isinstance(value, int):
            raise UserError(f"model_args: {name}={value} must be a whole number")
    check_seed(args.get("seed", 0))
    writing = {name: args.pop(name) for name in of_writing if name in args}
    return Settings(**args, writing=writing)


def harness_options(options: dict[str, Any]) -> dict[str, Any]:
    """What the options of the harness say. Its command asks for cuda:0 by default, even if there is none."""
    missing = str(options.get("device")).startswith("cuda") and not torch.cuda.is_available()
    return {name: value for name, value in options.items() if value is not None and not (name == "device" and missing)}


def open_model(settings: Settings) -> LM:
    """The model object that was passed, or the model with that name."""
    if isinstance(settings.pretrained, LM):
        return settings.pretrained
    optional = {"tokenizer": settings.tokenizer, "revision": settings.revision}
    more: dict[str, Any] = {name: value for name, value in optional.items() if value is not None}
    return load(
        str(settings.pretrained), which=settings.which, weights=settings.weights, device=settings.device, **more
    )


def protocol(settings: Settings, reading: LikelihoodRequests, asking: GenerationRequests) -> dict[str, Any]:
    """What the figures of a run depend on."""
    lm = reading.lm
    likelihood: dict[str, Any] = {"likelihood": "none"}
    if lm.model.likelihood:
        exact = reading.exact
        likelihood = {
            "likelihood": "exact" if exact else "evidence bound",
            "loglikelihood": "of the continuation, given the context",
            "loglikelihood_rolling": f"in blocks of {reading.room} tokens, each without the others",
            "estimator": reading.used,
            "draws": 1 if exact else reading.draws,
            "no_draws_up_to_tokens": (reading.draws + 1).bit_length() - 1 if reading.used == "strata" else 0,
            "is_greedy": "left to right, one token at a time",
            **lm.model.describe(),
            **reading.seen,
        }
    return {
        "version": __version__,
        "weights": settings.weights if lm.config.train.ema else "raw",
        "checkpoint": settings.which,
        **likelihood,
        "writing": asking.options({}, 0).settle(lm.model).describe(),
        "seed": settings.seed,
        "dtype": compute_dtype(lm.model),
        "device": str(lm.model.device),
        "tokenizer": lm.tokenizer.name,
    }


@functools.cache
def adapter() -> type[Any]:
    """The class, registered as `unmask`; the harness is imported only here."""
    base: Any = optional("lm_eval.api.model", "the lm-evaluation-harness", "eval").LM
    register = optional("lm_eval.api.registry", "the lm-evaluation-harness", "eval").register_model
    parse = optional("lm_eval.utils", "the lm-evaluation-harness", "eval").simple_parse_args_string

    class Unmask(base):
        """A model of this library as the harness sees it."""

        def __init__(self, **model_args: Any) -> None:
            super().__init__()
            self.settings = settings(**model_args)
            chosen, lm = self.settings, open_model(self.settings)
            self._device = lm.model.device
            law = replace(lm, model=in_blocks(lm.model, chosen.writing.get("block"), lm.length))
            note_untrained(law.model)
            self.reading = LikelihoodRequests(law, chosen.draws, chosen.estimator, chosen.seed, chosen.rows)
            self.asking = GenerationRequests(lm, chosen.seed, chosen.rows, chosen.max_gen_toks, chosen.writing)

        @classmethod
        def create_from_arg_obj(cls, arg_dict: dict[str, Any], additional_config: dict[str, Any] | None = None) -> Any:
            """A model from `--model_args`, and from the options of the harness for what they leave open."""
            return cls(**{**harness_options(additional_config or {}), **arg_dict})

        @classmethod
        def create_from_arg_string(cls, arg_string: str, additional_config: dict[str, Any] | None = None) -> Any:
            """The same, from key=value,key=value."""
            return cls.create_from_arg_obj(parse(arg_string), additional_config)

        def loglikelihood(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[tuple[float, bool]]:
            """(log p(continuation | context), whether greedy writing gives it) of every request."""
            pairs = [request.args for request in requests]
            before = dict(self.reading.seen)
            answers = self._collect("loglikelihood", pairs, disable_tqdm, self.reading.pairs)
            _tell({name: count - before[name] for name, count in self.reading.seen.items()})
            return answers

        def loglikelihood_rolling(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[float]:
            """Log p of whole texts."""
            texts = [request.args for request in requests]

            def read(args: Any, answer: Any) -> None:
                self.reading.texts([text for (text,) in args], lambda i, value, _: answer(i, value))

            return self._collect("loglikelihood_rolling", texts, disable_tqdm, read)

        def generate_until(self, requests: Sequence[Any], disable_tqdm: bool = False) -> list[str]:
            """What the model writes after each context, up to a stop string."""
            return self._collect("generate_until", [r.args for r in requests], disable_tqdm, self.asking.write)

        def _collect(self, kind: str, args: list[Any], quiet: bool, run: Any) -> list[Any]:
            """Run all requests; each answer goes to the harness's cache immediately."""
            answers: dict[int, Any] = {}
            with progress_bar(kind, quiet) as progress:

                def add(i: int, *answer: Any) -> None:
                    answers[i] = answer if len(answer) > 1 else answer[0]
                    self.cache_hook.add_partial(kind, args[i], answers[i])
                    progress(len(answers), len(args))

                run(args, add)
            return [answers[i] for i in range(len(args))]

        def get_model_info(self) -> dict[str, Any]:
            """What the harness saves with its results."""
            lm = self.reading.lm
            return {
                "model_num_parameters": sum(p.numel() for p in lm.model.parameters()),
                "model_dtype": compute_dtype(lm.model),
                "unmask": protocol(self.settings, self.reading, self.asking),
            }

        @property
        def tokenizer_name(self) -> str:
            """The tokenizer, for the names of cached requests."""
            return str(self.reading.lm.tokenizer.name)

        def chat_template(self, chat_template: bool | str = False) -> str:
            """None: these models were trained on plain text."""
            if chat_template:
                raise UserError("this model was trained on plain text and has no chat template; leave it out")
            return ""

        def apply_chat_template(self, chat_history: Any, add_generation_prompt: bool = True) -> str:
            """Raises the same error."""
            return self.chat_template(True)

    register("unmask")(Unmask)
    return Unmask


def _tell(seen: dict[str, int]) -> None:
    if seen["contexts_cut"]:
        log.warning("unmask: %d contexts were cut from the left to fit into the model", seen["contexts_cut"])
    if seen["continuations_in_windows"]:
        log.warning(
            "unmask: %d continuations are longer than the model; each is the sum over windows of half its length",
            seen["continuations_in_windows"],
        )


def main(args: Sequence[str]) -> None:
    """The command of the harness, with `--model unmask` registered."""
    adapter()
    command = importlib.import_module("lm_eval.__main__").cli_evaluate
    before, sys.argv = sys.argv, ["lm-eval", *args]  # the harness reads the command line from there
    try:
        command()
    finally:
        sys.argv = before
