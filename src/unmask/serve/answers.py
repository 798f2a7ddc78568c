"""What comes back from the engine, as JSON: events of a diffusion, samples, OpenAI's completions, scores."""

from __future__ import annotations

import asyncio
import math
import secrets
import time
from collections.abc import AsyncIterator
from typing import Any

from ..lm import LM, TextStream
from ..sampling import Request
from ..sampling.trace import Change
from ..types import Likelihood, Sample, State
from .handles import Done, Event, Failed, RequestHandle, Step
from .http import QUIET, dumps, event
from .limits import Refusal
from .schema import CompletionBody

STATUS = {"timeout": 408, "shutdown": 503, "failed": 500}


def new_id(kind: str) -> str:
    """A name for an answer."""
    return f"{kind}-{secrets.token_hex(12)}"


async def events_of(ticket: RequestHandle) -> AsyncIterator[Event | None]:
    """Every event of a request up to its end; None now and then while nothing happens."""
    left = len(ticket.works)
    while left:
        try:
            async with asyncio.timeout(QUIET):
                found = await ticket.take()
        except TimeoutError:
            yield None
            continue
        for one in found:
            left -= isinstance(one, Done)
            yield one
            await asyncio.sleep(0)  # a full box does not hold up other requests
            if isinstance(one, Failed):
                return


async def all_done(ticket: RequestHandle) -> list[Done]:
    """All samples of a request, in order."""
    done: list[Done] = []
    async for one in events_of(ticket):
        if isinstance(one, Failed):
            raise failure(one)
        if isinstance(one, Done):
            done.append(one)
    return sorted(done, key=lambda one: one.index)


def failure(event: Failed) -> Refusal:
    """A request that was accepted and has no result."""
    kind = {"timeout": "timeout_error"}.get(event.kind, "server_error")
    return Refusal(STATUS.get(event.kind, 500), event.message, kind, code=event.kind)


def usage(works: list[Request], samples: list[Sample]) -> dict[str, int]:
    """Tokens that were given (once for each canvas) and written."""
    distinct = {id(work.prompt): work for work in works}.values()
    given = sum(int((~work.free).sum()) for work in distinct if work.free is not None)
    written = sum(sum(not token.given for token in sample.tokens) for sample in samples)
    return {"prompt_tokens": given, "completion_tokens": written, "total_tokens": given + written}


# -- diffusion -------------------------------------------------------------------------------------------------------


async def diffusion_events(name: str, lm: LM, ticket: RequestHandle) -> AsyncIterator[str]:
    """The stream of /v1/diffusion."""
    yield _start(name, lm, ticket.works)
    samples: list[Sample] = []
    lengths = [len(work.canvas) for work in ticket.works]
    async for one in events_of(ticket):
        if one is None:
            yield ": still here\n\n"
        elif isinstance(one, Step):
            yield event(_step(lm, one, lengths), "step")
        elif isinstance(one, Failed):
            yield event(failure(one).body(), "error")
            return
        else:
            samples.append(one.sample)
            done = one.sample
            data: dict[str, Any] = {
                "index": one.index,
                "text": done.text,
                "stopped": done.stopped,
                "calls": done.network_calls,
                "tokens": len(done.ids),
                "seed": done.seed,
            }
            if done.gap_nats:
                data |= {"gaps": done.gaps, "nats": done.gap_nats}
            yield event(data, "done")
    calls = sum(sample.network_calls for sample in samples)
    yield event({"usage": usage(ticket.works, samples) | {"network_calls": calls}}, "end")


def _start(name: str, lm: LM, works: list[Request]) -> str:
    """The first event. It may be large: a canvas that many samples share is put into JSON once."""
    vocab, options = lm.tokenizer.vocab, works[0].params
    special = {token for token in (vocab.pad, vocab.bos, vocab.eos) if token is not None}
    told: dict[int, str] = {}
    samples = []
    for index, work in enumerate(works):
        if id(work.prompt) not in told:
            ids = work.canvas.tolist()
            told[id(work.prompt)] = dumps(
                [
                    {"id": None, "piece": None, "given": False}
                    if token == vocab.mask
                    else {"id": token, "piece": piece, "given": True} | ({"special": True} if token in special else {})
                    for token, piece in zip(ids, lm.tokenizer.pieces(ids), strict=True)
                ]
            )
        samples.append(f'{{"index":{index},"seed":{work.params.seed},"tokens":{told[id(work.prompt)]}}}')
    head = {
        "id": new_id("diff"),
        "object": "diffusion",
        "created": int(time.time()),
        "model": name,
        "steps": getattr(works[0].sampler, "steps", None),
        "mask": {"id": vocab.mask, "piece": _shown(lm, vocab.mask)},
        "special": {str(token): _shown(lm, token) for token in sorted(special)},
        "settings": options.describe(),
    }
    return event(f'{dumps(head)[:-1]},"samples":[{",".join(samples)}]}}', "start")


def _step(lm: LM, one: Step, lengths: list[int]) -> dict[str, Any]:
    mask = lm.tokenizer.vocab.mask
    data: dict[str, Any] = {
        "index": one.index,
        "step": one.step,
        "t": one.t if math.isfinite(one.t) else None,
        "calls": one.calls,
        "changes": [_change(lm, change, mask) for change in one.changes],
    }
    if len(one.canvas) != lengths[one.index]:
        lengths[one.index] = data["length"] = len(one.canvas)
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


def samples_answer(name: str, ticket: RequestHandle, done: list[Done], tokens: bool) -> dict[str, Any]:
    """The document of /v1/infill."""
    samples = [one.sample for one in done]
    return {
        "id": new_id("infill"),
        "object": "infill",
        "created": int(time.time()),
        "model": name,
        "samples": [sample.as_dict(tokens) | {"index": sample.index} for sample in samples],
        "settings": ticket.works[0].params.describe(),
        "usage": usage(ticket.works, samples),
    }


# -- OpenAI's completions --------------------------------------------------------------------------------------------


class Completion:
    """Answers of /v1/completions to one request."""

    def __init__(self, name: str, lm: LM, asked: CompletionBody, ticket: RequestHandle) -> None:
        self.lm, self.asked, self.ticket = lm, asked, ticket
        self.head = {
            "id": new_id("cmpl"),
            "object": "text_completion",
            "created": int(time.time()),
            "model": name,
        }
        self.prompts = [asked.prompt] if isinstance(asked.prompt, str) else asked.prompt
        self.tops: list[dict[int, Change]] = [{} for _ in ticket.works]

    def document(self, done: list[Done]) -> dict[str, Any]:
        """All at once."""
        choices = [
            self._choice(one.index, self._cut(one.index, one.sample.text), _reason(one.sample), self._logprobs(one))
            for one in done
        ]
        samples = [one.sample for one in done]
        return self.head | {
            "choices": choices,
            "usage": usage(self.ticket.works, samples),
            "unmask": {
                "seeds": [sample.seed for sample in samples],
                "network_calls": sum(sample.network_calls for sample in samples),
            },
        }

    async def collect(self) -> dict[str, Any]:
        """Wait for all samples; with alternatives, keep those of every written position."""
        done: list[Done] = []
        async for one in events_of(self.ticket):
            if isinstance(one, Failed):
                raise failure(one)
            if isinstance(one, Step):
                self._keep(one)
            elif isinstance(one, Done):
                done.append(one)
        return self.document(sorted(done, key=lambda one: one.index))

    async def stream(self) -> AsyncIterator[str]:
        """The text of every sample as it becomes fixed: what was sent never changes."""
        pieces = [TextStream(self.lm.painter, work.prompt, work.params.stop) for work in self.ticket.works]
        sent = [0] * len(pieces)
        samples: list[Sample] = []
        options = self.asked.stream_options
        counts = options is not None and options.include_usage
        async for one in events_of(self.ticket):
            if one is None:
                yield ": still here\n\n"
                continue
            if isinstance(one, Failed):
                yield event(failure(one).body())
                return
            index = one.index
            if isinstance(one, Step):
                self._keep(one)
                pieces[index](_seen(one), None)
                text, reason = self._cut(index, pieces[index].shown), None
            else:
                samples.append(one.sample)
                text, reason = self._cut(index, one.sample.text), _reason(one.sample)
            new, sent[index] = text[sent[index] :], max(sent[index], len(text))
            if new or reason:
                logprobs = self._logprobs(one) if isinstance(one, Done) else None
                chunk = self.head | {"choices": [self._choice(index, new, reason, logprobs)]}
                yield event(chunk | ({"usage": None} if counts else {}))
        if counts:
            yield event(self.head | {"choices": [], "usage": usage(self.ticket.works, samples)})
        yield event("[DONE]")

    def _prompt(self, index: int) -> str:
        return self.prompts[index // self.asked.n]

    def _cut(self, index: int, text: str) -> str:
        """A text without what was given around it."""
        suffix = self.asked.suffix or ""
        text = text[: len(text) - len(suffix)] if suffix and text.endswith(suffix) else text
        return text if self.asked.echo else text[len(self._prompt(index)) :]

    def _choice(self, index: int, text: str, reason: str | None, logprobs: Any = None) -> dict[str, Any]:
        return {"text": text, "index": index, "logprobs": logprobs, "finish_reason": reason}

    def _keep(self, one: Step) -> None:
        self.tops[one.index].update({change.position: change for change in one.changes})

    def _logprobs(self, one: Done) -> dict[str, Any] | None:
        """Tokens that were written, in order of the text, as OpenAI lays them out."""
        if self.asked.logprobs is None:
            return None
        pieces, changes = self.lm.tokenizer.pieces, self.tops[one.index]
        vocab = self.lm.tokenizer.vocab
        special, offset, begun = (vocab.bos, vocab.eos, vocab.pad), 0, False
        tokens: list[str] = []
        logs: list[float | None] = []
        tops: list[dict[str, float] | None] = []
        offsets: list[int] = []
        for position, token in enumerate(one.sample.tokens):
            if token.given and (not self.asked.echo or begun or token.id in special):
                continue  # of what was given only the prompt, and only if it is sent back
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


def _seen(one: Step) -> State:
    """As much of a state as `TextStream` looks at."""
    nothing = one.canvas[:0]
    return State(0, one.step, one.t, nothing, nothing, nothing.float(), one.canvas, one.calls, False, None, one.fixed)


def _reason(sample: Sample) -> str:
    return "length" if sample.stopped == "length" else "stop"


def _log(prob: float) -> float:
    return math.log(prob) if prob > 0 else -9999.0  # what OpenAI sends for what is all but impossible


# -- scores ----------------------------------------------------------------------------------------------------------


def score_answer(name: str, found: Likelihood) -> dict[str, Any]:
    """The document of /v1/score."""
    texts = [
        {key: value for key, value in one.as_dict().items() if key != "protocol"}
        | {"nats": one.nats, "pieces": one.pieces, "token_nats": one.token_nats}
        for one in found.texts
    ]
    total = {key: value for key, value in found.as_dict().items() if key != "protocol"} | {"nats": found.nats}
    return {
        "id": new_id("score"),
        "object": "score",
        "created": int(time.time()),
        "model": name,
        "texts": texts,
        "total": total,
        "protocol": found.protocol,
    }
