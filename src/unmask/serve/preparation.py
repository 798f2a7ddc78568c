"""From the body of a request to sequences for the engine: canvases, checked settings, limits."""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import replace
from typing import Any

from ..data.canvas import Canvas, ContextExceeded, Gap, parse_gaps, split_gaps
from ..errors import UserError
from ..lm import LM
from ..process.keys import check_seed
from ..sampling import Request
from ..sampling.constrained import Impossible
from ..sampling.params import SamplingParams
from ..sampling.settings import STEPS
from .limits import Limits, Refusal, megabytes
from .schema import (
    FORMS,
    ChatBody,
    ChatMessage,
    ClientBody,
    CompletionBody,
    ContentPart,
    DiffusionBody,
    Gapped,
    InfillBody,
    TokenizeBody,
    Writing,
)

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
    if isinstance(asked, DiffusionBody):
        if asked.messages is not None:
            _alone(asked, "messages", ("prompt", "suffix", "text", "length"))
            canvas = _chat(lm, asked.messages, asked.max_tokens, asked.stride is not None, limits)
            return _works(lm, [canvas] * asked.n, _options(lm, asked), limits, asked.tops)
        if asked.max_tokens is not None:
            raise Refusal(400, "max_tokens goes with messages; give the length of a text as length", param="max_tokens")
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
    _supported(asked)
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


def prepare_chat(lm: LM, asked: ChatBody, limits: Limits) -> list[Request]:
    """The sequences of /v1/chat/completions: n answers."""
    _within(asked, limits)
    _supported(asked)
    tokens = asked.max_tokens or asked.max_completion_tokens
    if asked.max_completion_tokens not in (None, tokens):
        raise Refusal(
            400, "max_tokens and max_completion_tokens say the same; give one of them", param="max_completion_tokens"
        )
    if asked.top_logprobs and not asked.logprobs:
        raise Refusal(400, "top_logprobs needs logprobs to be true", param="top_logprobs")
    canvas = _chat(lm, asked.messages, tokens, asked.stride is not None, limits)
    options = _options(lm, asked, **{"stop_at_eos": False} if asked.ignore_eos else {})
    return _works(lm, [canvas] * asked.n, options, limits, asked.alternatives or 0, "top_logprobs")


def _supported(asked: ClientBody) -> None:
    for name in ("presence_penalty", "frequency_penalty"):
        if getattr(asked, name):
            raise Refusal(400, f"{name} is not supported; leave it at 0", param=name)
    if asked.logit_bias:
        raise Refusal(400, "logit_bias is not supported; name tokens to leave out with ban", param="logit_bias")


def _alone(asked: Writing, name: str, others: Iterable[str]) -> None:
    for other in others:
        if getattr(asked, other) is not None:
            raise Refusal(400, f"give either {name} or {other}", param=other)


def _chat(lm: LM, messages: list[ChatMessage], tokens: int | None, windowed: bool, limits: Limits) -> Canvas:
    """A conversation and masks for its answer."""
    if lm.chat_template is None:
        raise Refusal(
            400,
            "this model has no chat template; start the server with one, as unmask serve MODEL --template plain (or "
            "chatml), or send a prompt to /v1/completions",
            param="model",
            code="no_chat_template",
        )
    if (tokens or 0) > limits.length:
        raise Refusal(
            400, f"max_tokens={tokens} is more than the {limits.length} that this server allows", param="max_tokens"
        )
    conversation = [_message(number, message) for number, message in enumerate(messages, 1)]
    _fits(sum(len(message["content"]) for message in conversation) // 64, limits)
    try:
        return lm.chat_canvas(conversation, tokens, windowed)
    except ContextExceeded as error:
        raise Refusal(400, str(error), param="messages", code="context_length_exceeded") from None
    except UserError as error:
        raise Refusal(400, str(error), param="messages") from None


def _message(number: int, message: ChatMessage) -> dict[str, str]:
    """Role and text of a message."""
    if other := [name for name, value in (message.model_extra or {}).items() if value]:
        raise Refusal(
            400, f"message {number} has the field {other[0][:60]!r}, which these models do not read", param="messages"
        )
    parts = message.content
    if parts is None:
        raise Refusal(400, f"message {number} has no content", param="messages")
    if isinstance(parts, str):
        parts = [ContentPart(type="text", text=parts)]
    if wrong := [part.type for part in parts if part.type != "text" or part.text is None]:
        raise Refusal(
            400, f"message {number} has a part of the type {wrong[0]!r}; these models read text only", param="messages"
        )
    role = "system" if message.role == "developer" else message.role
    return {"role": role, "content": "".join(part.text or "" for part in parts)}


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
