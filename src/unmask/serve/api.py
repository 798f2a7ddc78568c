"""The endpoints: read, check, ask the engine, answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch
from starlette.requests import ClientDisconnect
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from ..data.canvas import Canvas
from ..evaluation import usual_method
from ..lm import LM, Job
from ..sampling import Request
from ..sampling.named import SAMPLERS
from ..sampling.params import SamplingParams
from ..types import Likelihood, UserError
from .answers import Completion, all_done, diffusion_events, samples_answer, score_answer
from .engine import Engine
from .handles import RequestHandle
from .http import EventStream, answer, read_body, refused, send_whole, while_there
from .limits import Limits, Refusal
from .preparation import prepare, prepare_completion, ranged, sentence, tokens
from .schema import (
    NAMES,
    Body,
    CompletionBody,
    DiffusionBody,
    Gapped,
    InfillBody,
    ScoreBody,
    TokenizeBody,
    Writing,
    read,
)
from .threads import briefly, use_cores

B = TypeVar("B", bound=Body)
T = TypeVar("T")
Answer = Callable[[Scope, Receive, Send], Awaitable[None]]
log = logging.getLogger("unmask.serve")
QUEUED = 16  # scores, and texts whose gaps have no given length, that wait for the thread that reads


class Service:
    """The models behind the endpoints."""

    def __init__(self, engine: Engine, log_prompts: bool = False) -> None:
        self.engine, self.limits, self.log_prompts = engine, engine.limits, log_prompts
        self.begun = int(time.time())
        self.models = [_card(name, lm, self.limits, self.begun) for name, lm in engine.lms.items()]
        self._prepare = ThreadPoolExecutor(2, "unmask-prepare", use_cores, (1,))
        self._read = ThreadPoolExecutor(1, "unmask-read")
        self._reading = 0

    def close(self) -> None:
        """No more requests."""
        for pool in (self._prepare, self._read):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- what the endpoints share ------------------------------------------------------------------------------------

    def _lm(self, name: str | None) -> tuple[str, LM]:
        lms = self.engine.lms
        if name is None:
            name = next(iter(lms))
        if name not in lms:
            raise Refusal(
                404,
                f"there is no model {name[:80]!r}; /v1/models lists those that are served",
                param="model",
                code="model_not_found",
            )
        return name, lms[name]

    async def _asked(self, kind: type[B], scope: Scope, receive: Receive) -> B:
        body = await read_body(scope, receive, self.limits)
        asked = read(kind, body) if len(body) < 4096 else await self._off(self._prepare, read, kind, body)
        if self.log_prompts:
            log.info("%s %s", scope["path"], asked.model_dump_json(exclude_defaults=True))
        return asked

    async def _off(self, pool: ThreadPoolExecutor, call: Callable[..., T], *given: Any) -> T:
        """Work that would hold up the loop, on another thread."""
        try:
            return await asyncio.get_running_loop().run_in_executor(pool, call, *given)
        except UserError as error:
            raise sentence(error) from None

    async def _long(self, receive: Receive, call: Callable[..., T], *given: Any) -> T:
        """Work that asks a network itself, one at a time and beside the engine.

        It ends at its next network call when nobody waits for it any more, or when its time is over.
        """
        if self.engine.draining:
            raise Refusal(503, "the server is shutting down; try another one", "server_error", retry_after=5)
        if self._reading >= QUEUED:
            raise Refusal(
                429,
                "the server is busy and its queue is full; try again later",
                "rate_limit_error",
                code="queue_full",
                retry_after=5,
            )
        stop = threading.Event()

        def check() -> None:
            if self.engine.ended:
                raise Refusal(503, "the server is shutting down; try another one", "server_error", code="shutdown")
            if stop.is_set():
                raise _late()

        work = partial(briefly, call, *given, threads=self.engine.threads, check=check)
        self._reading += 1
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await while_there(receive, self._off(self._read, work))
        except TimeoutError:
            raise _late() from None
        finally:
            self._reading -= 1
            stop.set()

    async def _submit(
        self, receive: Receive, name: str, works: Callable[..., list[Request]], asked: Body, steps: bool
    ) -> RequestHandle:
        lm, deadline = self.engine.lms[name], time.monotonic() + self.limits.timeout
        if isinstance(asked, Gapped) and asked.text is not None and ranged(asked.text):
            made = await self._long(receive, works, lm, asked, self.limits)
        else:
            made = await while_there(receive, self._off(self._prepare, works, lm, asked, self.limits))
        left = deadline - time.monotonic()
        ticket = RequestHandle(name, made, timeout=left, steps=steps, buffer=self.limits.buffer)
        self.engine.submit(ticket)
        return ticket

    # -- endpoints ---------------------------------------------------------------------------------------------------

    async def diffusion(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/diffusion: events, each with what has changed."""
        asked = await self._asked(DiffusionBody, scope, receive)
        name, lm = self._lm(asked.model)
        ticket = await self._submit(receive, name, prepare, asked, True)
        await self._stream(ticket, diffusion_events(name, lm, ticket))(scope, receive, send)

    async def infill(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/infill: samples."""
        asked = await self._asked(InfillBody, scope, receive)
        if asked.text is None and asked.prompt is None and asked.suffix is None:
            raise Refusal(400, "give a text with gaps, as {{3}}, or a prompt or suffix", param="text")
        name, _ = self._lm(asked.model)
        ticket = await self._submit(receive, name, prepare, asked, False)
        done = await self._wait(receive, ticket, all_done(ticket))
        response = await self._off(self._prepare, lambda: answer(samples_answer(name, ticket, done, asked.tokens)))
        await response(scope, receive, send)

    async def completions(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/completions: as OpenAI's."""
        asked = await self._asked(CompletionBody, scope, receive)
        name, lm = self._lm(asked.model)
        steps = bool(asked.stream) or bool(asked.logprobs)
        ticket = await self._submit(receive, name, prepare_completion, asked, steps)
        completion = Completion(name, lm, asked, ticket)
        if asked.stream:
            await self._stream(ticket, completion.stream())(scope, receive, send)
            return
        document = await self._wait(receive, ticket, completion.collect())
        await answer(document)(scope, receive, send)

    async def score(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/score: the likelihood of texts."""
        asked = await self._asked(ScoreBody, scope, receive)
        name, lm = self._lm(asked.model)
        if (asked.text is None) == (asked.texts is None):
            raise Refusal(400, "give either text or texts", param="text")
        texts = [asked.text] if asked.text is not None else asked.texts or []
        if len(texts) > self.limits.texts:
            raise Refusal(400, f"{len(texts)} texts are more than {self.limits.texts} at a time", param="texts")
        if asked.spans is not None and len(texts) != 1:
            raise Refusal(400, "spans are for one text", param="spans")
        found = await self._long(receive, _score, lm, asked, texts, self.limits)
        await answer(score_answer(name, found))(scope, receive, send)

    async def tokenize(self, scope: Scope, receive: Receive, send: Send) -> None:
        """POST /v1/tokenize: the tokens of a text, null where it has gaps."""
        asked = await self._asked(TokenizeBody, scope, receive)
        name, lm = self._lm(asked.model)
        ids = await self._off(self._prepare, tokens, lm, asked, self.limits)
        mask, piece = lm.tokenizer.vocab.mask, lm.tokenizer.piece
        shown = [{"id": None, "piece": None} if i == mask else {"id": i, "piece": piece(i)} for i in ids]
        await answer({"object": "tokens", "model": name, "count": len(ids), "tokens": shown})(scope, receive, send)

    def list_models(self) -> dict[str, Any]:
        """GET /v1/models."""
        return {"object": "list", "data": self.models}

    def one_model(self, name: str) -> dict[str, Any]:
        """GET /v1/models/NAME."""
        self._lm(name)
        return next(card for card in self.models if card["id"] == name)

    async def _wait(self, receive: Receive, ticket: RequestHandle, result: Awaitable[T]) -> T:
        """A result; if the client goes away, its place is free again."""
        try:
            return await while_there(receive, result)
        finally:
            self.engine.cancel(ticket)

    def _stream(self, ticket: RequestHandle, events: Any) -> EventStream:
        return EventStream(events, self.limits.timeout + 30.0, lambda: self.engine.cancel(ticket))


def endpoint(call: Answer) -> Answer:
    """Refusals become answers; a client that has gone gets none."""

    async def run(scope: Scope, receive: Receive, send: Send) -> None:
        response: Response | None = None
        try:
            await call(scope, receive, send)
        except Refusal as refusal:
            response = refused(refusal)
        except UserError as error:
            response = refused(sentence(error))
        except ClientDisconnect:
            return
        if response is not None and response.status_code == 413:
            await send_whole(response, scope, receive, send)
        elif response is not None:
            await response(scope, receive, send)

    return run


def _late() -> Refusal:
    return Refusal(408, "the request took longer than the server allows; ask for less", "timeout_error")


def _score(lm: LM, asked: ScoreBody, texts: list[str], limits: Limits) -> Likelihood:
    tokens = sum(len(lm.encode(text)) for text in texts)
    if tokens > limits.length * 4:
        raise Refusal(400, f"{tokens} tokens are more than the {limits.length * 4} that are scored at once")
    numbers = {name: value for name in ("draws", "calls", "orders") if (value := getattr(asked, name)) is not None}
    span = None if asked.spans is None else [(start, end) for start, end in asked.spans]
    return lm.score(
        texts[0] if asked.text is not None else texts,
        label=asked.label,
        method=asked.method or usual_method(lm.model),
        span=span,
        seed=asked.seed,
        batch_size=max(1, min(32, 2048 // lm.length)),
        **numbers,
    )


def _card(name: str, lm: LM, limits: Limits, created: int) -> dict[str, Any]:
    """What a client may know of a model."""
    tokenizer, model = lm.tokenizer, lm.model
    windows = any(_can(lm, sampler, max(1, lm.length // 2)) for sampler in (model.default_sampler,))
    longest = limits.length if model.any_length or windows else min(lm.length, limits.length)
    return {
        "id": name,
        "object": "model",
        "created": created,
        "owned_by": "unmask",
        "unmask": {
            "method": lm.config.model.method,
            "length": lm.length,
            "kind": {"dna": "dna", "bytes": "bytes"}.get(tokenizer.kind, "text"),
            "vocab_size": tokenizer.vocab.size,
            "mask_piece": tokenizer.piece(tokenizer.vocab.mask),
            "samplers": [sampler for sampler in NAMES if _can(lm, sampler)],
            "usual_sampler": model.default_sampler,
            "takes": {
                sampler: [name for name in SAMPLERS[sampler].takes if name in Writing.model_fields] for sampler in NAMES
            },
            "time_conditioned": bool(getattr(model, "time_conditioned", False)),
            "any_length": model.any_length,
            "infills": not model.exact,
            "likelihood": model.likelihood,
            "max_steps": limits.steps,
            "max_length": longest,
            "max_n": limits.n,
            "labels": list(lm.labels),
            "parameters": sum(weight.numel() for weight in model.parameters()),
        },
    }


def _can(lm: LM, sampler: str, stride: int | None = None) -> bool:
    """Whether a model can be sampled so."""
    mask = lm.tokenizer.vocab.mask
    ids = torch.tensor([0 if mask else 1, mask, mask])
    try:
        lm.check(Job(Canvas(ids, [slice(0, 3)]), SamplingParams(sampler=sampler, stride=stride)))
    except UserError:
        return False
    return True
