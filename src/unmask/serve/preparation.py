"""From the body of a request to sequences for the engine: canvases, checked settings, limits."""

from __future__ import annotations

import secrets
from dataclasses import replace
from typing import Any

from ..data.canvas import Canvas, Gap, parse_gaps, split_gaps
from ..lm import LM
from ..process.keys import check_seed
from ..sampling import Request
from ..sampling.constrained import Impossible
from ..sampling.params import SamplingParams
from ..sampling.settings import STEPS
from .limits import Limits, Refusal, megabytes
from .schema import FORMS, CompletionBody, DiffusionBody, Gapped, InfillBody, TokenizeBody, Writing

DEFAULT_TOKENS = 16  # what OpenAI's clients get unless they say how many


def ranged(text: str) -> bool:
    """Whether a text has a gap of variable length, which needs the network to choose."""
    return any("-" in inside.partition(":")[0] for inside in split_gaps(text)[1::2])


def patterned(text: str) -> bool:
    """Whether a gap of a text has a pattern, which is compiled."""
    return any(":" in inside for inside in split_gaps(text)[1::2])


def prepare(lm: LM, asked: DiffusionBody | InfillBody, limits: Limits) -> list[Request]:
    """The sequences of /v1/diffusion and /v1/infill."""
    _within(asked, limits)
    options = _options(lm, asked)
    if asked.text is not None and (asked.prompt is not None or asked.suffix is not None or asked.length is not None):
        raise Refusal(400, "give either a text with gaps, or a prompt, suffix and length", param="text")
    try:
        canvas = _gaps(lm, asked, options, limits) if asked.text is not None else _prompt(lm, asked, limits)
        return _works(lm, [canvas] * asked.n, options, limits, getattr(asked, "tops", 0))
    except Impossible as error:  # patterns are counted as they stand in the text
        param = f"patterns[{error.number}]" if asked.text is not None and patterned(asked.text) else None
        raise Refusal(400, str(error), param=param, code="impossible") from None


def prepare_completion(lm: LM, asked: CompletionBody, limits: Limits) -> list[Request]:
    """The sequences of /v1/completions: n for each prompt."""
    _within(asked, limits)
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(asked, name):
            raise Refusal(400, f"{name} is not supported; leave it at 0", param=name)
    if asked.logit_bias:
        raise Refusal(400, "logit_bias is not supported; name tokens to leave out with ban", param="logit_bias")
    if asked.best_of not in (None, asked.n):
        raise Refusal(400, "best_of must equal n: every sample is sent", param="best_of")
    prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
    if len(prompts) * asked.n > limits.n:
        raise Refusal(400, f"{len(prompts)} prompts with n={asked.n} are more than {limits.n} samples", param="n")
    suffix, builder = asked.suffix or "", lm.prompt_builder
    _readable([*prompts, suffix], limits)
    _fits(len(builder.encode(suffix)), limits)
    ends = not suffix and not asked.ignore_eos and builder.vocab.eos is not None
    options = _options(lm, asked, stop_at_eos=ends)
    canvases: list[Canvas] = []
    for prompt in prompts:
        fixed = builder.prompt_tokens(prompt, suffix, windowed=asked.stride is not None)
        length = fixed + (asked.max_tokens or DEFAULT_TOKENS)
        most = limits.length if asked.stride is not None or lm.model.any_length else min(lm.length, limits.length)
        if length > most:
            raise Refusal(
                400,
                f"this model writes at most {most} tokens, but {fixed} tokens of prompt and suffix and max_tokens="
                f"{length - fixed} make {length}; shorten the prompt or reduce max_tokens",
                param="max_tokens",
                code="context_length_exceeded",
            )
        canvases += [lm.prompt_canvas(prompt, length, suffix, asked.stride is not None)] * asked.n
    return _works(lm, canvases, options, limits, asked.logprobs or 0, "logprobs")


def readable_gaps(lm: LM, texts: list[str], limits: Limits) -> int:
    """The number of open positions of texts with gaps, if all are short enough; a range counts as its longest."""
    positions = given = 0
    for text in texts:
        parts = _parts(text, limits)
        positions += min(lm.length, sum(part.high for part in parts if isinstance(part, Gap)))
        given += sum(len(lm.encode(part)) for part in parts if isinstance(part, str))
    if positions + given > limits.length * 4:
        raise Refusal(
            400, f"{positions + given} tokens are more than the {limits.length * 4} that are read at once", param="text"
        )
    return positions


def tokens(lm: LM, asked: TokenizeBody, limits: Limits) -> list[int]:
    """The ids of a text as a model reads them; a gap of variable length gets its minimal length."""
    _readable([asked.text], limits)
    parts: list[str | Gap] = [asked.text]
    if len(split_gaps(asked.text)) > 1:
        parts = _parts(asked.text, limits)
    ids: list[int] = lm.prompt_builder.gaps(parts, windowed=True).ids.tolist()
    _fits(len(ids), limits)
    return ids


def _within(asked: Writing, limits: Limits) -> None:
    for name, most in (("n", limits.n), ("steps", limits.steps)):
        value = getattr(asked, name)
        if value is not None and value > most:
            raise Refusal(400, f"{name}={value} is more than the {most} that this server allows", param=name)
    if (asked.corrections or 0) * (asked.steps or STEPS) > limits.steps:
        raise Refusal(
            400, f"steps and corrections are more than the {limits.steps} that this server allows", param="corrections"
        )
    rules = {name: getattr(asked, name, None) or () for name in ("ban", "only", "allowed")}
    words = len(rules["ban"]) + len(rules["only"]) + sum(map(len, dict(rules["allowed"]).values()))
    if words > limits.words:
        raise Refusal(
            400, f"the rules name {words} tokens, more than the {limits.words} that this server allows", param="allowed"
        )


def _options(lm: LM, asked: Writing, **more: Any) -> SamplingParams:
    """The settings: what was asked for, and what the model recommends where that leaves something open."""
    seed = secrets.randbelow(2**31) if asked.seed is None else asked.seed
    return lm.sampling_params({**asked.explicit(), "seed": seed, **more}, asked.exact)


def _prompt(lm: LM, asked: Gapped, limits: Limits) -> Canvas:
    length = min(lm.length, limits.length) if asked.length is None else asked.length
    _fits(length, limits)
    _readable([asked.prompt or "", asked.suffix or ""], limits)
    return lm.prompt_canvas(asked.prompt or "", length, asked.suffix or "", asked.stride is not None)


def _gaps(lm: LM, asked: Gapped, options: SamplingParams, limits: Limits) -> Canvas:
    assert asked.text is not None
    _parts(asked.text, limits)
    return lm.gap_canvas(asked.text, windowed=asked.stride is not None, options=options)


def _parts(text: str, limits: Limits) -> list[str | Gap]:
    parts = parse_gaps(text)
    _fits(sum(part.low for part in parts if isinstance(part, Gap)), limits)
    _readable([part for part in parts if isinstance(part, str)], limits)
    return parts


def _readable(texts: list[str], limits: Limits) -> None:
    """Refuse what is far too long before it is read into tokens."""
    _fits(max(map(len, texts), default=0) // 64, limits)


def _fits(length: int, limits: Limits) -> None:
    if length > limits.length:
        raise Refusal(
            400, f"a text of {length} tokens is longer than the {limits.length} that this server allows", param="length"
        )


def _sums(request: Request) -> int:
    """How much the constraint of a sequence adds to each of its steps: positions times transitions."""
    spans = () if request.constraint is None else request.constraint.spans
    return sum((span.stop - span.start) * len(span.automaton.source) for span in spans)


def _works(
    lm: LM, canvases: list[Canvas], options: SamplingParams, limits: Limits, tops: int, name: str = "tops"
) -> list[Request]:
    for canvas in canvases[:1]:
        _fits(len(canvas.ids), limits)
    if (total := sum(len(canvas.ids) for canvas in canvases)) > limits.tokens:
        raise Refusal(
            400, f"{total} tokens in all are more than the {limits.tokens} that this server allows", param="n"
        )
    if total * tops > limits.alternatives:
        raise Refusal(
            400,
            f"{total} tokens with {name}={tops} are {total * tops} alternatives, more than the {limits.alternatives} "
            "that this server allows",
            param=name,
        )
    if len(canvases) > limits.queue + limits.batch:
        raise Refusal(400, f"{len(canvases)} samples are more than this server holds at a time", param="n")
    check_seed(options.seed + len(canvases) - 1)
    requests: list[Request] = []
    sums = 0
    for i, canvas in enumerate(canvases):
        if i and canvas is canvases[i - 1]:
            requests.append(lm.reseeded(requests[-1], options.seed + i, i))
            continue
        _fits(len(canvas.ids), limits)
        requests.append(lm.request(canvas, replace(options, seed=options.seed + i), row=i, tops=tops))
        sums += _sums(requests[-1]) * sum(other is canvas for other in canvases)
        if sums > limits.sums:
            raise Refusal(
                400,
                f"what the text must be needs {sums:,} sums in each step, more than the {limits.sums:,} that this "
                "server allows; ask for shorter or fewer texts, or for smaller numbers of repetitions",
                param=next((name for name in FORMS if getattr(options, name)), None),
            )
        lm.check(requests[-1])
        need = lm.cache_bytes(requests[-1])
        if limits.cache is not None and need > limits.cache:
            raise Refusal(
                400,
                f"the keys and values of a text of {len(canvas.ids)} tokens need {megabytes(need)}, more than the "
                f"{megabytes(limits.cache)} that this server keeps (--max-cache); ask for a shorter text",
                param="length",
                code="cache_limit_exceeded",
            )
    return requests
