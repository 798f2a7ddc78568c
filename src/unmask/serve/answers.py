"""What the engine returns, as JSON: events of a diffusion, samples, OpenAI's completions, scores, marginals."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator, Callable
from typing import Any

from ..evaluation import Marginals
from ..jsonable import to_json
from ..lm import LM, TextStream
from ..sampling import Request
from ..sampling.trace import Change
from ..types import Likelihood, Sample, State
from .handles import Done, Event, Failed, RequestHandle, Step
from .http import KEEP_ALIVE, event
from .limits import Refusal
from .schema import ChatBody, CompletionBody

STATUS = {"timeout": 408, "shutdown": 503, "failed": 500}


def new_id(kind: str) -> str:
    """A random name for an answer."""
    return f"{kind}-{secrets.token_hex(12)}"


async def events_of(handle: RequestHandle) -> AsyncIterator[Event | None]:
    """Every event of a request until its end; None from time to time while nothing happens."""
    left = len(handle.requests)
    while left:
        try:
            async with asyncio.timeout(KEEP_ALIVE):
                events = await handle.take()
        except TimeoutError:
            yield None
            continue
        for item in events:
            left -= isinstance(item, Done)
            yield item
            await asyncio.sleep(0)  # a full buffer does not hold up other requests
            if isinstance(item, Failed):
                return


async def all_done(handle: RequestHandle, on_step: Callable[[Step], None] = lambda _: None) -> list[Done]:
    """All samples of a request, in order."""
    done: list[Done] = []
    async for item in events_of(handle):
        if isinstance(item, Failed):
            raise failure(item)
        if isinstance(item, Step):
            on_step(item)
        elif isinstance(item, Done):
            done.append(item)
    return sorted(done, key=lambda item: item.index)


def failure(event: Failed) -> Refusal:
    """The error for a request that was accepted but ended without a result."""
    kind = {"timeout": "timeout_error"}.get(event.kind, "server_error")
    return Refusal(STATUS.get(event.kind, 500), event.message, kind, code=event.kind)


def usage(requests: list[Request], samples: list[Sample]) -> dict[str, int]:
    """Numbers of tokens: those of the prompts (once per canvas), and those written."""
    distinct = {id(request.prompt): request for request in requests}.values()
    prompt = sum(int((~request.free).sum()) for request in distinct if request.free is not None)
    written = sum(sum(not token.given for token in sample.tokens) for sample in samples)
    return {"prompt_tokens": prompt, "completion_tokens": written, "total_tokens": prompt + written}


# -- diffusion -------------------------------------------------------------------------------------------------------


async def diffusion_events(name: str, lm: LM, handle: RequestHandle) -> AsyncIterator[str]:
    """The stream of /v1/diffusion."""
    yield _start(name, lm, handle.requests)
    samples: list[Sample] = []
    lengths = [len(request.canvas) for request in handle.requests]
    async for item in events_of(handle):
        if item is None:
            yield ": still here\n\n"
        elif isinstance(item, Step):
            yield event(_step(lm, item, lengths), "step")
        elif isinstance(item, Failed):
            yield event(failure(item).body(), "error")
            return
        else:
            samples.append(item.sample)
            done = item.sample
            data: dict[str, Any] = {
                "index": item.index,
                "text": done.text,
                "stopped": done.stopped,
                "calls": done.network_calls,
                "tokens": len(done.ids),
                "seed": done.seed,
            }
            if done.gap_nats:
                data |= {"gaps": done.gaps, "nats": done.gap_nats, "undecided": done.gap_undecided}
            yield event(data, "done")
    calls = sum(sample.network_calls for sample in samples)
    yield event({"usage": usage(handle.requests, samples) | {"network_calls": calls}}, "end")


def _start(name: str, lm: LM, requests: list[Request]) -> str:
    """The first event. It may be large: a canvas that many samples share is encoded once."""
    vocab, options = lm.tokenizer.vocab, requests[0].params
    special = {token for token in (vocab.pad, vocab.bos, vocab.eos) if token is not None}
    canvases: dict[int, str] = {}  # as JSON
    samples = []
    for index, request in enumerate(requests):
        if id(request.prompt) not in canvases:
            ids = request.canvas.tolist()
            canvases[id(request.prompt)] = to_json(
                [
                    {"id": None, "piece": None, "given": False}
                    if token == vocab.mask
                    else {"id": token, "piece": piece, "given": True} | ({"special": True} if token in special else {})
                    for token, piece in zip(ids, lm.tokenizer.pieces(ids), strict=True)
                ]
            )
        samples.append(f'{{"index":{index},"seed":{request.params.seed},"tokens":{canvases[id(request.prompt)]}}}')
    head = {
        "id": new_id("diff"),
        "object": "diffusion",
        "created": int(time.time()),
        "model": name,
        "steps": getattr(requests[0].sampler, "steps", None),
        "mask": {"id": vocab.mask, "piece": _shown(lm, vocab.mask)},
        "special": {str(token): _shown(lm, token) for token in sorted(special)},
        "settings": options.describe(),
    }
    return event(f'{to_json(head)[:-1]},"samples":[{",".join(samples)}]}}', "start")


def _step(lm: LM, step: Step, lengths: list[int]) -> dict[str, Any]:
    mask = lm.tokenizer.vocab.mask
    data: dict[str, Any] = {
        "index": step.index,
        "step": step.step,
        "t": step.t,
        "calls": step.calls,
        "changes": [_change(lm, change, mask) for change in step.changes],
    }
    if len(step.canvas) != lengths[step.index]:
        lengths[step.index] = data["length"] = len(step.canvas)
    if step.block is not None:
        data["block"] = step.block
    return data


def _change(lm: LM, change: Change, mask: int) -> list[Any]:
    if change.token == mask:
        return [change.position, None, None, 0]
    row: list[Any] = [change.position, change.token, _shown(lm, change.token), change.prob]
    if change.tops:
        row.append([[_shown(lm, token), prob, token] for token, prob in change.tops])
    return row


def _shown(lm: LM, token: int) -> str:
    return lm.tokenizer.pieces([token])[0]


def samples_answer(name: str, handle: RequestHandle, done: list[Done], tokens: bool) -> dict[str, Any]:
    """The document of /v1/infill."""
    samples = [item.sample for item in done]
    return {
        "id": new_id("infill"),
        "object": "infill",
        "created": int(time.time()),
        "model": name,
        "samples": [sample.as_dict(tokens) | {"index": sample.index} for sample in samples],
        "settings": handle.requests[0].params.describe(),
        "usage": usage(handle.requests, samples),
    }


# -- OpenAI's completions --------------------------------------------------------------------------------------------


class ClientAnswer:
    """Answers to one request of OpenAI's clients: as a whole, or in chunks that are never taken back."""

    kind: str  # of its id
    whole: str  # the name of a document
    chunk: str  # and of a part of it
    asked: CompletionBody | ChatBody

    def __init__(self, name: str, lm: LM, handle: RequestHandle) -> None:
        self.lm, self.handle = lm, handle
        self.head = {"id": new_id(self.kind), "created": int(time.time()), "model": name}
        self.tops: list[dict[int, Change]] = [{} for _ in handle.requests]

    def document(self, done: list[Done]) -> dict[str, Any]:
        """The whole answer."""
        choices = [
            self.choice(item.index, self.cut(item.index, item.sample.text), _reason(item.sample), self.logprobs(item))
            for item in done
        ]
        samples = [item.sample for item in done]
        return self.head | {
            "object": self.whole,
            "choices": choices,
            "usage": usage(self.handle.requests, samples),
            "unmask": {
                "seeds": [sample.seed for sample in samples],
                "network_calls": sum(sample.network_calls for sample in samples),
            },
        }

    async def collect(self) -> dict[str, Any]:
        """Wait for all samples; with alternatives, keep those of every written position."""
        return self.document(await all_done(self.handle, self._keep))

    async def stream(self) -> AsyncIterator[str]:
        """The text of every sample as it becomes final: what was sent never changes."""
        pieces = [
            TextStream(self.lm.prompt_builder, request.prompt, request.params.stop) for request in self.handle.requests
        ]
        sent = [0] * len(pieces)
        samples: list[Sample] = []
        options = self.asked.stream_options
        counts = options is not None and options.include_usage
        head = self.head | {"object": self.chunk} | ({"usage": None} if counts else {})
        for index in range(len(pieces)):
            if first := self.first(index):
                yield event(head | {"choices": [first]})
        async for item in events_of(self.handle):
            if item is None:
                yield ": still here\n\n"
                continue
            if isinstance(item, Failed):
                yield event(failure(item).body())
                return
            index = item.index
            if isinstance(item, Step):
                self._keep(item)
                pieces[index](_seen(item), None)
                text, reason = self.cut(index, pieces[index].shown), None
            else:
                samples.append(item.sample)
                text, reason = self.cut(index, item.sample.text), _reason(item.sample)
            new, sent[index] = text[sent[index] :], max(sent[index], len(text))
            if new or reason:
                logprobs = self.logprobs(item) if isinstance(item, Done) else None
                yield event(head | {"choices": [self.part(index, new, reason, logprobs)]})
        if counts:
            yield event(head | {"choices": [], "usage": usage(self.handle.requests, samples)})
        yield event("[DONE]")

    def cut(self, index: int, text: str) -> str:
        """What is sent of a text."""
        return text

    def first(self, index: int) -> dict[str, Any] | None:
        """The part of a choice that comes before its text."""
        return None

    def choice(self, index: int, text: str, reason: str | None, logprobs: Any) -> dict[str, Any]:
        """A whole choice."""
        raise NotImplementedError

    def part(self, index: int, text: str, reason: str | None, logprobs: Any) -> dict[str, Any]:
        """A part of a choice; the last one has a reason."""
        return self.choice(index, text, reason, logprobs)

    def logprobs(self, done: Done) -> Any:
        """Log-probabilities of a finished choice, if they were asked for."""
        raise NotImplementedError

    def _keep(self, step: Step) -> None:
        self.tops[step.index].update({change.position: change for change in step.changes})


class Completion(ClientAnswer):
    """Of /v1/completions."""

    kind, whole, chunk = "cmpl", "text_completion", "text_completion"
    asked: CompletionBody

    def __init__(self, name: str, lm: LM, asked: CompletionBody, handle: RequestHandle) -> None:
        super().__init__(name, lm, handle)
        self.asked = asked
        self.prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt

    def cut(self, index: int, text: str) -> str:
        """A text without its prompt and suffix."""
        suffix = self.asked.suffix or ""
        text = text[: len(text) - len(suffix)] if suffix and text.endswith(suffix) else text
        return text if self.asked.echo else text[len(self.prompts[index // self.asked.n]) :]

    def choice(self, index: int, text: str, reason: str | None, logprobs: Any) -> dict[str, Any]:
        """A whole choice, or a part of one."""
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, done: Done) -> dict[str, Any] | None:
        """The written tokens in the order of the text, in OpenAI's format."""
        if self.asked.logprobs is None:
            return None
        pieces, changes = self.lm.tokenizer.pieces, self.tops[done.index]
        vocab = self.lm.tokenizer.vocab
        special, offset, begun = (vocab.bos, vocab.eos, vocab.pad), 0, False
        tokens: list[str] = []
        logs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for position, token in enumerate(done.sample.tokens):
            if token.given and (not self.asked.echo or begun or token.id in special):
                continue  # of the given tokens only the prompt, and only with echo
            begun = not token.given
            log, seen = None if token.given else _log(token.prob or 0.0), changes.get(position)
            tokens.append(token.piece)
            logs.append(log)
            best = {pieces([t])[0]: _log(p) for t, p in (seen.tops if seen else ())}
            tops.append(None if log is None else {**best, token.piece: log})
            offsets.append(offset)
            offset += len(token.piece)
        return {
            "tokens": tokens,
            "token_logprobs": logs,
            "top_logprobs": tops if self.asked.logprobs else None,
            "text_offset": offsets,
        }


class ChatCompletion(ClientAnswer):
    """Of /v1/chat/completions: the canvas of an answer has its text alone."""

    kind, whole, chunk = "chatcmpl", "chat.completion", "chat.completion.chunk"
    asked: ChatBody

    def __init__(self, name: str, lm: LM, asked: ChatBody, handle: RequestHandle) -> None:
        super().__init__(name, lm, handle)
        self.asked = asked

    def first(self, index: int) -> dict[str, Any]:
        """Who speaks."""
        delta = {"role": "assistant", "content": ""}
        return {"index": index, "delta": delta, "logprobs": None, "finish_reason": None}

    def choice(self, index: int, text: str, reason: str | None, logprobs: Any) -> dict[str, Any]:
        """A message."""
        message = {"role": "assistant", "content": text, "refusal": None}
        return {"index": index, "message": message, "logprobs": logprobs, "finish_reason": reason}

    def part(self, index: int, text: str, reason: str | None, logprobs: Any) -> dict[str, Any]:
        """More of a message."""
        delta = {"content": text} if text else {}
        return {"index": index, "delta": delta, "logprobs": logprobs, "finish_reason": reason}

    def logprobs(self, done: Done) -> dict[str, Any] | None:
        """The written tokens in the order of the text, in OpenAI's format."""
        if self.asked.alternatives is None:
            return None
        changes, content = self.tops[done.index], []
        for position, token in enumerate(done.sample.tokens):
            if not token.given:
                tops = changes[position].tops if position in changes else ()
                best = [_named_log(self.lm.tokenizer.pieces([other])[0], prob) for other, prob in tops]
                content.append(_named_log(token.piece, token.prob or 0.0) | {"top_logprobs": best})
        return {"content": content, "refusal": None}


def _named_log(piece: str, prob: float) -> dict[str, Any]:
    return {"token": piece, "logprob": _log(prob), "bytes": list(piece.encode())}


def _seen(step: Step) -> State:
    """The part of a state that `TextStream` reads."""
    nothing = step.canvas[:0]
    probs = nothing.float()
    return State(0, step.step, step.t, nothing, nothing, probs, step.canvas, step.calls, False, None, step.fixed)


def _reason(sample: Sample) -> str:
    return "length" if sample.stopped == "length" else "stop"


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -9999.0  # what OpenAI sends for a token that is all but impossible


# -- scores ----------------------------------------------------------------------------------------------------------


def score_answer(name: str, likelihood: Likelihood) -> dict[str, Any]:
    """The document of /v1/score."""
    texts = [
        {key: value for key, value in text.as_dict().items() if key != "protocol"}
        | {"nats": text.nats, "pieces": text.pieces, "token_nats": text.token_nats}
        for text in likelihood.texts
    ]
    total = {key: value for key, value in likelihood.as_dict().items() if key != "protocol"} | {"nats": likelihood.nats}
    return {
        "id": new_id("score"),
        "object": "score",
        "created": int(time.time()),
        "model": name,
        "texts": texts,
        "total": total,
        "protocol": likelihood.protocol,
    }


def marginals_answer(name: str, texts: list[Marginals]) -> dict[str, Any]:
    """The document of /v1/marginals."""
    return {
        "id": new_id("marginals"),
        "object": "marginals",
        "created": int(time.time()),
        "model": name,
        "texts": [text.as_dict() for text in texts],
    }
