"""The main object of the Python API: a model with its tokenizer. Sample, infill, stream, score, choose, marginals."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from numbers import Integral
from pathlib import Path
from typing import Any, NamedTuple, overload

import torch
from torch import Tensor

from . import evaluation
from .config import Config
from .data.canvas import Canvas, Gap, PromptBuilder, parse_gaps
from .data.chat import ChatTemplate, Message
from .data.tokenization import Tokenizer
from .errors import UserError, at_least, nearest
from .evaluation.distributions import Marginals
from .evaluation.gap_lengths import GapLengths, compare_lengths
from .evaluation.likelihood import eval_keys, evaluating, note_untrained
from .evaluation.predictions import diffusion
from .models.block_diffusion import as_blocks, whole_row
from .models.language_model import LanguageModel
from .process.keys import Keys
from .sampling import BlockByBlock, Choice, Request, Windows, run_particles
from .sampling.params import SamplingParams, Stop, all_settings
from .sampling.recommended import Recommended
from .types import Ending, Likelihood, Sample, State, Token

Watch = Callable[[State], None]
WRITING = (
    "n",
    "text",
    "prompt",
    "suffix",
    "length",
    "batch_size",
    "tops",
    "watch",
    "exact",
    "particles",
)  # beside the settings
log = logging.getLogger("unmask")
MOST_RUNS = 64  # weighted runs by which the chance of a gap to fit is estimated ...
ROWS = 4096  # ... and rows of the network for all of them
HALF = "\ufffd"  # what an incomplete character (its other bytes are still missing) is decoded to


class Job(NamedTuple):
    """A canvas and its settings, the arguments of `LM.request`."""

    canvas: Canvas
    options: SamplingParams


@dataclass(repr=False)
class LM:
    """A language model with its tokenizer and the config it was trained with."""

    model: LanguageModel
    tokenizer: Tokenizer
    config: Config
    labels: list[str] = field(default_factory=list)
    recommended: Recommended = field(default_factory=Recommended)  # settings where a user leaves them open; examples
    chat_template: ChatTemplate | None = None  # how it reads a conversation, if it was made for them

    def __repr__(self) -> str:
        net, size = self.config.model, sum(weight.numel() for weight in self.model.parameters())
        advice = ", ".join(f"{name} {value}" for name, value in self.recommended.settings.items())
        return (
            f"LM({net.method} on {net.network}, {size:,} parameters, {self.length} tokens, tokenizer "
            f"{self.tokenizer.name!r} of {self.tokenizer.vocab.size:,}{f', recommends {advice}' if advice else ''})"
        )

    @property
    def length(self) -> int:
        """The longest sequence that the model was trained on."""
        return self.config.data.length

    @functools.cached_property
    def prompt_builder(self) -> PromptBuilder:
        """Makes canvases from text, and text from canvases."""
        return PromptBuilder(self.tokenizer, self.config.data, self.model.any_length)

    def save_pretrained(self, folder: str | Path, *, dtype: str = "float32", card: str | None = None) -> Path:
        """Write a portable folder (`hub.layout`) that `unmask.load`, `transformers` and the Hub can read.

        `dtype` is float32 (lossless), float16 or bfloat16; `card` becomes README.md.
        """
        from .hub.layout import write_folder

        about: dict[str, Any] = {"recommended": self.recommended, "chat_template": self.chat_template}
        return write_folder(folder, self.model, self.tokenizer, self.config, self.labels, dtype, card, **about)

    def push_to_hub(self, repo_id: str, **about: Any) -> str:
        """Upload the model and its card to the Hugging Face Hub; `about` as in `hub.push_to_hub` (figures, license)."""
        from .hub.push import push_to_hub

        return push_to_hub(self, repo_id, **about)

    # -- writing -----------------------------------------------------------------------------------------------------

    def sampling_params(self, explicit: Mapping[str, Any] | None = None, exact: bool = False) -> SamplingParams:
        """The settings for what a user asked for: theirs, and the recommended ones where they leave them open.

        `exact` leaves the recommended ones out: the plain law, by which a model is scored. Whoever measures gives
        `SamplingParams` of their own, which are used as they are.
        """
        return self.recommended.params(explicit or {}, exact)

    def sample(self, n: int = 1, **how: Any) -> list[str]:
        """N texts; `how` as in `write_samples`."""
        return [sample.text for sample in self.write_samples(n, **how)]

    def infill(self, text: str, n: int = 1, **how: Any) -> list[str]:
        """N ways to fill the gaps of a text; `how` as in `write`.

        {{3}} is a gap of three tokens, {{2-6}} one of two to six: of these lengths, the one with the lowest bound on
        the given text. `regex`, `schema`, `choices` or `where` say what the gaps must be.
        """
        _check_count(n)
        check_keywords(how, WRITING)
        options = self.sampling_params({name: value for name, value in how.items() if name not in WRITING})
        canvas = self.gap_canvas(text, windowed=options.stride is not None, options=options)
        return [sample.text for sample in self.write([canvas] * n, **how)]

    def chat(self, messages: Sequence[Message], n: int = 1, *, max_tokens: int | None = None, **how: Any) -> list[str]:
        """N answers to a conversation, [{"role": "user", "content": "Hi"}]; `how` as in `write`."""
        _check_count(n)
        canvas = self.chat_canvas(messages, max_tokens, how.get("stride") is not None)
        return [sample.text for sample in self.write([canvas] * n, **how)]

    def stream(self, prompt: str = "", *, length: int | None = None, exact: bool = False, **how: Any) -> Iterator[str]:
        """One text in pieces, each as soon as it is final; `how` as in `write`."""
        check_keywords(how, ("prompt", "length", "exact"))
        canvas = self.prompt_canvas(prompt, length, windowed=how.get("stride") is not None)
        job = Job(canvas, self.sampling_params(how, exact))
        pieces = TextStream(self.prompt_builder, canvas, job.options.stop)
        for state, sample in self.run([job]):
            if piece := pieces(state, sample):
                yield piece

    def write_samples(
        self,
        n: int = 1,
        *,
        length: int | None = None,
        prompt: str | None = None,
        suffix: str | None = None,
        **how: Any,
    ) -> list[Sample]:
        """N samples of `length` tokens, prompt and suffix included; `how` as in `write`."""
        _check_count(n)
        check_keywords(how, WRITING)
        windowed = how.get("stride") is not None
        return self.write([self.prompt_canvas(prompt or "", length, suffix or "", windowed)] * n, **how)

    def write(
        self,
        canvases: Sequence[Canvas],
        options: SamplingParams | None = None,
        *,
        batch_size: int = 16,
        tops: int = 0,
        watch: Watch | None = None,
        exact: bool = False,
        particles: int | None = None,
        **how: Any,
    ) -> list[Sample]:
        """Fill every canvas; `how` are the fields of `sampling.params.SamplingParams`.

        What `how` leaves open is as the model recommends (`sampling_params`); `exact=True`, or `options` in place of
        `how`, leaves that out. Sample i has the seed `seed + i`; sampled alone with that seed, it is the same.
        With `particles` each sample is drawn out of so many weighted runs (`sampling.particles`): under a constraint,
        the law of the free sampler given that its text fits, without what the model recommends.
        """
        if options is not None and (how or exact):
            raise UserError("give either options, which are complete, or settings by keyword")
        check_keywords(how, WRITING[-5:])
        options = self.sampling_params(how, exact or particles is not None) if options is None else options
        jobs = [Job(canvas, replace(options, seed=options.seed + i)) for i, canvas in enumerate(canvases)]
        if particles is not None:
            if watch or tops:
                raise UserError("a text that is drawn out of particles cannot be watched; leave out watch and tops")
            return [self._drawn(job, row, particles, batch_size) for row, job in enumerate(jobs)]
        done: dict[int, Sample] = {}
        for state, sample in self.run(jobs, batch_size=batch_size, tops=tops):
            if watch:
                watch(state)
            if sample:
                done[state.row] = sample
        return [done[i] for i in range(len(jobs))]

    def run(
        self, jobs: Sequence[Job | Request], *, batch_size: int = 16, tops: int = 0
    ) -> Iterator[tuple[State, Sample | None]]:
        """Every state of every job, batched through the network, with the sample once a job is finished."""
        requests = [
            replace(job, row=row) if isinstance(job, Request) else self.request(*job, row=row, tops=tops)
            for row, job in enumerate(jobs)
        ]
        with evaluating(self.model):
            for state in self.model.generate(requests, batch_size):
                yield state, self.finished(requests[state.row], state)

    def _drawn(self, job: Job, row: int, particles: int, batch_size: int) -> Sample:
        """A sample out of weighted runs."""
        request = self.request(*job, row=row)
        with evaluating(self.model):
            runs = run_particles(self.model.denoiser(), request, particles, batch_size)
        sample = self.finished(request, replace(runs.states[runs.chosen], row=row))
        assert sample is not None
        sample = replace(sample, log_weight=None, log_chance=runs.log_chance, effective=runs.effective)
        return replace(sample, network_calls=runs.calls)

    def request(self, canvas: Canvas, options: SamplingParams, *, row: int = 0, tops: int = 0) -> Request:
        """The request to a batcher: settings as the objects that this model needs."""
        params = options.settle(self.model)
        sampler = params.plan(self.prompt_builder)
        if params.block is not None:
            sampler.check(self.model)  # first: what else is wrong with it may be its blocks
        request = Request(
            row,
            canvas.ids,
            sampler,
            _sample_keys(params.seed),
            params.choice,
            params.control(canvas, self.prompt_builder),
            params.label_id(self.labels),
            params.guidance,
            tops,
            free=canvas.ids == self.tokenizer.vocab.mask,
            constraint=params.constraint(canvas, self.prompt_builder),
            stop=Stop.of(canvas, params, self.prompt_builder),
            ends=canvas.ends,
            prompt=canvas,
            params=params,
        )
        self._note_blocks(request)
        return request

    def _block_size(self, request: Request) -> int | None:
        """The size of the blocks in which a request is written; None: it is a single one, or has none."""
        sampler, tokens = request.sampler, min(len(request.canvas), self.length)  # a window is no longer than that
        if isinstance(sampler, BlockByBlock):
            return sampler.size_for(request, self.tokenizer.vocab)
        plan = sampler.plan if isinstance(sampler, Windows) else None
        size = plan.size if isinstance(plan, BlockByBlock) else None  # of windows that have no text after a gap
        return None if size is None or size >= tokens else size

    def _note_blocks(self, request: Request) -> None:
        """Say so if the network was not trained on the blocks in which a request is written."""
        blocks = as_blocks(self.model)
        if blocks is None or request.params.block is None:
            return
        size, tokens = self._block_size(request), min(len(request.canvas), self.length)
        if size is None and any(trained is None or trained >= tokens for trained in blocks.mixture):
            return  # a text that fits into a trained block is like a part of one
        note_untrained(blocks.in_blocks(size))

    @staticmethod
    def reseeded(request: Request, seed: int, row: int) -> Request:
        """Another sample of a request; what was made from its canvas and settings is shared."""
        return replace(request, row=row, key=_sample_keys(seed), params=replace(request.params, seed=seed))

    def finished(self, request: Request, state: State) -> Sample | None:
        """The sample, if the state is the last of its request; else None."""
        if not state.done:
            return None
        canvas: Canvas = request.prompt
        text, reason, count = state.ending or Ending(
            self.text(canvas, state.canvas), "length", len(state.canvas) - canvas.closed
        )
        return Sample(
            state.canvas[:count].tolist(),
            text,
            request.params.seed,
            state.calls,
            state.row,
            self._tokens(request, state, count),
            reason,
            canvas.lengths,
            canvas.nats,
            canvas.errors,
            canvas.undecided,
            log_weight=state.log_weight,
            drafted=state.drafts[0],
            accepted=state.drafts[1],
        )

    def _tokens(self, request: Request, state: State, count: int) -> list[Token]:
        """The first tokens: when each was written, and how sure the network was."""
        assert state.history is not None
        ids, free = state.canvas[:count].tolist(), request.writable(self.tokenizer.vocab)
        steps, probs = (values.tolist() for values in state.history)
        return [
            Token(token, piece, False, step, prob) if writable else Token(token, piece, True)
            for token, piece, writable, step, prob in zip(
                ids, self.tokenizer.pieces(ids), free.tolist(), steps, probs, strict=False
            )
        ]

    def check(self, job: Job | Request) -> None:
        """Raise what `run` would raise, before anything is written."""
        request = job if isinstance(job, Request) else self.request(*job)
        self.model.check(request)
        if request.constraint is not None:
            request.constraint.check(request, self.tokenizer.vocab, self.tokenizer.piece)
        request.sampler.trajectory(request, self.model.denoiser())

    def cache_bytes(self, request: Request) -> int:
        """Bytes of the keys and values that are kept for a request, at most; 0 if the model reads all tokens anew."""
        if request.params.block is not None and self._block_size(request) is None:
            return 0  # nothing comes before a single block
        tokens = min(len(request.canvas), self.length)  # a window is no longer than that
        return self.model.cache_bytes(tokens) * (1 if request.guidance == 1 else 2)

    def prompt_canvas(self, prompt: str, length: int | None = None, suffix: str = "", windowed: bool = False) -> Canvas:
        """Prompt, masks and suffix: `length` tokens in all, with BOS if the model was trained with it."""
        return self.prompt_builder.prompt(prompt, suffix, length, windowed)

    def chat_canvas(self, messages: Sequence[Message], max_tokens: int | None = None, windowed: bool = False) -> Canvas:
        """A conversation and masks for its answer: at most `max_tokens`, which end where its turn does."""
        template = self.chat_template
        if template is None:
            raise UserError("this model has no chat template; name one with --template plain (or chatml, llama3)")
        ends = {"ends": frozenset(template.stops()), "stop": (template.end_text,) if template.end_text else ()}
        return self.prompt_builder.answer(template.prompt(messages), max_tokens, windowed, **ends)

    def gap_canvas(
        self, text: str, *, windowed: bool = False, draws: int | None = None, options: SamplingParams | None = None
    ) -> Canvas:
        """A text with gaps; the lengths of ranged gaps are those with the lowest bound on the given text.

        The bound is that of the given tokens with the gap masked throughout: -log p(given | lengths). The same tokens
        are scored for all lengths, so long gaps are neither preferred nor avoided. Lengths that do not fit into the
        model are left out, and so are those at which `options` leave nothing to write; under a constraint the chance
        that a free gap of a length fits counts too, by weighted runs. Without `draws` there are as
        many as the choice needs (`evaluation.gap_lengths`); one that stays undecided is logged as a warning, and
        `Canvas.undecided` names the lengths that may be as good.
        """
        parts = parse_gaps(text)
        if all(part.low == part.high for part in parts if isinstance(part, Gap)):
            return self.prompt_builder.gaps(parts, windowed=windowed)
        if windowed:
            raise UserError(
                "the length of a gap is chosen by the bound of a whole row, which does not work with a stride"
            )
        lengths_of_gaps = self.prompt_builder.candidates(parts)
        canvases = self._possible([self.prompt_builder.gaps(parts, lengths) for lengths in lengths_of_gaps], options)
        compared = self._compare([canvas.ids for canvas in canvases], draws, self._misfits(canvases, options))
        names = ["+".join(map(str, canvas.lengths)) for canvas in canvases]
        canvas = replace(
            canvases[compared.best],
            nats=dict(zip(names, compared.nats, strict=True)),
            errors=dict(zip(names, compared.errors, strict=True)),
            undecided=[names[i] for i in compared.undecided],
        )
        if compared.undecided:
            rivals = ", ".join(f"{names[i]} ({compared.nats[i]:.3f})" for i in compared.undecided[:8])
            chosen = f"{names[compared.best]} tokens ({compared.nats[compared.best]:.3f} nats)"
            log.warning(
                f"the length of the gap is undecided after {compared.draws} draws: {chosen} were chosen, and {rivals} "
                f"may be as good; write the length that you want, for example {{{{{canvas.lengths[0]}}}}}"
            )
        return canvas

    def _possible(self, canvases: list[Canvas], options: SamplingParams | None) -> list[Canvas]:
        """The canvases that can be written under a constraint; raises if there are none."""
        if options is None or options.settle(self.model).constraint(canvases[0], self.prompt_builder) is None:
            return canvases
        result, wrong = [], None
        for canvas in canvases:
            try:
                self.check(Job(canvas, options))
                result.append(canvas)
            except UserError as error:
                wrong = error
        if not result and wrong is not None:
            raise wrong
        return result

    def _misfits(self, canvases: list[Canvas], options: SamplingParams | None) -> list[tuple[float, float]] | None:
        """-log p(the gaps fit | the given text) of canvases under a constraint, with standard errors; None without."""
        if options is None or options.settle(self.model).constraint(canvases[0], self.prompt_builder) is None:
            return None
        rows = sum(sum(canvas.lengths) for canvas in canvases)
        n = min(MOST_RUNS, max(4, ROWS // rows))
        result = []
        with evaluating(self.model):
            for canvas in canvases:
                request = self.request(canvas, options)
                if request.sampler.rewrites:  # what it writes has no chance that could be weighed
                    request = self.request(canvas, replace(options, sampler=None, values={}))
                request = replace(request, choice=Choice(), key=eval_keys(0), stop=None)
                runs = run_particles(self.model.denoiser(), request, n)
                result.append((-runs.log_chance, math.sqrt(max(0.0, 1 / runs.effective - 1 / n))))
        return result

    def _compare(
        self, canvases: Sequence[Tensor], draws: int | None, extra: list[tuple[float, float]] | None = None
    ) -> GapLengths:
        """The bounds on the given tokens of canvases that differ in the lengths of their gaps, and `extra` nats."""
        net = diffusion(whole_row(self.model), "ranged gaps")
        first = 0 if self.prompt_builder.block_ends is None else 1  # BOS costs nothing worth comparing
        known = torch.tensor([self.tokenizer.vocab.mask, *self.tokenizer.never_hidden])
        places = [first + torch.nonzero(~torch.isin(ids[first:], known)).squeeze(-1) for ids in canvases]
        if not len(places[0]):
            raise UserError("a gap of unknown length needs given text next to it; write {{3}} for three tokens")
        with evaluating(self.model):
            return compare_lengths(net, canvases, places, eval_keys(0), draws, extra)

    def encode(self, text: str) -> list[int]:
        """The ids of a text."""
        return self.prompt_builder.encode(text)

    def text(self, canvas: Canvas, ids: Tensor) -> str:
        """Given strings as typed, gaps decoded; an end of text inside a gap becomes a line break."""
        return self.prompt_builder.text(canvas, ids)

    @property
    def joins_spaces(self) -> bool:
        """Whether the tokenizer writes a space as the beginning of the next word's token, as GPT-2's does."""
        return self.prompt_builder.joins_spaces

    # -- reading -----------------------------------------------------------------------------------------------------

    def score(self, texts: str | Sequence[str], *, label: str | int | None = None, **how: Any) -> Likelihood:
        """The likelihood of texts: together, one by one (`.texts`), and per token (`.token_nats`).

        `how` as in `evaluation.score`: a method (by default the bound with the least noise), a span, draws, orders, a
        sampler (`plan`), a block size, a seed. A text longer than the model is scored in parts of its length, each
        without the others as context. Rows are laid out as in training (block ends, visible padding), but only the
        tokens of the text count.
        """
        return evaluation.score(
            self.model, self.prompt_builder, texts, label=SamplingParams(label=label).label_id(self.labels), **how
        )

    def choose(
        self, text: str, choices: Sequence[str], *, label: str | int | None = None, **how: Any
    ) -> list[evaluation.Answer]:
        """How probable each choice is in the gap of a text (or at its end), among these choices; in their order.

        The gap is {{}}, or written as for `infill`: its length does not matter. `how` as in `evaluation.answers`:
        `seed` and `batch_size`.
        """
        named = SamplingParams(label=label).label_id(self.labels)
        return evaluation.answers(self.model, self.prompt_builder, text, choices, label=named, **how)

    @overload
    def marginals(self, texts: str, **how: Any) -> Marginals: ...

    @overload
    def marginals(self, texts: Sequence[str], **how: Any) -> list[Marginals]: ...

    def marginals(
        self, texts: str | Sequence[str], *, label: str | int | None = None, **how: Any
    ) -> Marginals | list[Marginals]:
        """The distribution at every open position of a text with gaps, all from one network call; nothing is written.

        Gaps are as in `infill`; `how` as in `evaluation.marginals`: `top` (default 5) is how many tokens of each
        position to give, `batch_size` how many texts share a call. Several texts give a list.
        """
        net = evaluation.need_masks(self.model)
        if not texts and not isinstance(texts, str):
            raise UserError("there is nothing to read; give at least one text with a gap, such as {{3}}")
        canvases = [self.gap_canvas(text) for text in ([texts] if isinstance(texts, str) else texts)]
        named = SamplingParams(label=label).label_id(self.labels)
        each = evaluation.marginals(net, self.tokenizer, canvases, label=named, **how)
        return each[0] if isinstance(texts, str) else each


def _sample_keys(seed: int) -> Keys:
    return Keys(seed).fork("sample")


def check_keywords(given: Iterable[str], known: Iterable[str]) -> None:
    """Raise for a keyword that is neither known nor a setting; names the nearest."""
    names = [*known, *all_settings()]
    for name in given:
        if name not in names:
            raise UserError(f"there is no setting {name!r}{nearest(name, names)}")


def _check_count(n: Any) -> None:
    if not isinstance(n, Integral) or isinstance(n, bool):
        raise UserError(f"n={n!r} must be a whole number, how many texts; a text to begin with is prompt=")
    at_least("n", int(n))


class TextStream:
    """One text as it becomes final: each call returns what is new, and what was returned never changes."""

    def __init__(self, builder: PromptBuilder, canvas: Canvas, stop: Sequence[str] = ()) -> None:
        self.builder, self.canvas, self.shown = builder, canvas, ""
        stop = (*stop, *canvas.stop)
        self.held = max((len(word) - 1 for word in stop), default=0)  # held back: may be the beginning of a stop string
        self.late = 4 if builder.tokenizer.kind == "json" else 0  # a foreign decoder may join these with later ones

    def __call__(self, state: State, sample: Sample | None) -> str:
        """The text that a state adds."""
        if sample is not None:
            text = sample.text
        else:
            text = self.builder.text(self.canvas, state.canvas, max(0, state.fixed - self.late)).rstrip(HALF)
            text = text[: max(0, len(text) - self.held)]
            if not text.startswith(self.shown):
                return ""
        same = next((i for i, (a, b) in enumerate(zip(text, self.shown, strict=False)) if a != b), len(self.shown))
        self.shown = text
        return text[same:]
