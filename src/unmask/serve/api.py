"""The endpoints: read, check, submit to the engine, answer."""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, TypeVar

import torch
from starlette.requests import Request
from starlette.responses import Response
from starlette.types import Receive

from ..data.canvas import Canvas
from ..errors import nearest
from ..evaluation import Answer, Marginals
from ..lm import LM, Job
from ..sampling import Request as WritingRequest
from ..sampling.params import SAMPLERS, SamplingParams, default_words, settings_on
from ..types import Likelihood, UserError
from .answers import (
    ChatCompletion,
    ClientAnswer,
    Completion,
    all_done,
    diffusion_events,
    marginals_answer,
    samples_answer,
    score_answer,
)
from .engine import Engine
from .handles import RequestHandle
from .http import EventStream, answer, read_body, while_connected
from .limits import Limits, Refusal
from .preparation import patterned, prepare, prepare_chat, prepare_completion, ranged, readable_gaps, tokens
from .schema import (
    NAMES,
    Body,
    ChatBody,
    ChooseBody,
    CompletionBody,
    DiffusionBody,
    Gapped,
    InfillBody,
    MarginalsBody,
    ScoreBody,
    TokenizeBody,
    Writing,
    read,
)
from .threads import run_in_thread, use_cores

B = TypeVar("B", bound=Body)
T = TypeVar("T")
Endpoint = Callable[[Request], Awaitable[Response]]
log = logging.getLogger("unmask.serve")
QUEUED = 16  # scores, marginals, and texts with gaps of variable length, that wait for the thread that reads


class Service:
    """The models behind the endpoints."""

    def __init__(self, engine: Engine, log_prompts: bool = False) -> None:
        self.engine, self.limits, self.log_prompts = engine, engine.limits, log_prompts
        created = int(time.time())
        self.models = [_card(name, lm, self.limits, created) for name, lm in engine.lms.items()]
        self._prepare = ThreadPoolExecutor(2, "unmask-prepare", use_cores, (1,))
        self._compile = ThreadPoolExecutor(1, "unmask-compile", use_cores, (1,))
        self._read = ThreadPoolExecutor(1, "unmask-read")
        self._reading = self._compiling = self._held = 0  # on the threads that read and compile; bytes of bodies

    def close(self) -> None:
        """Accept no more requests."""
        for pool in (self._prepare, self._compile, self._read):
            pool.shutdown(wait=False, cancel_futures=True)

    # -- what the endpoints share ------------------------------------------------------------------------------------

    def _lm(self, name: str | None) -> tuple[str, LM]:
        lms = self.engine.lms
        if name is None:
            name = next(iter(lms))
        if name not in lms:
            raise Refusal(
                404,
                f"there is no model {name[:80]!r}{nearest(name[:80], lms)}; /v1/models lists those that are served",
                param="model",
                code="model_not_found",
            )
        return name, lms[name]

    def holding(self, endpoint: Endpoint) -> Endpoint:
        """An endpoint whose body counts, as long as it is at work, towards what all bodies may hold."""

        async def held(request: Request) -> Response:
            request.state.held = 0
            try:
                return await endpoint(request)
            finally:
                self._held -= request.state.held

        return held

    async def _asked(self, kind: type[B], request: Request) -> B:
        def hold(count: int) -> None:
            if self._held + count > self.limits.bodies:
                raise Refusal(
                    429,
                    "the server is busy with other large requests; try again later",
                    "rate_limit_error",
                    code="queue_full",
                    retry_after=1,
                    linger=self.limits.linger,
                )
            self._held += count
            request.state.held += count

        body = await read_body(request, self.limits, hold)
        asked = read(kind, body) if len(body) < 4096 else await self._off(self._prepare, read, kind, body)
        if self.log_prompts:
            log.info("%s %s", request.url.path, asked.model_dump_json(exclude_defaults=True))
        return asked

    async def _off(self, pool: ThreadPoolExecutor, call: Callable[..., T], *args: Any) -> T:
        """Call a function that would block the event loop on another thread."""
        return await asyncio.get_running_loop().run_in_executor(pool, call, *args)

    async def _long(self, receive: Receive, call: Callable[..., T], *args: Any) -> T:
        """Call a function that uses a network outside the engine, one at a time.

        It ends at its next network call if the client has disconnected or the time limit has passed.
        """
        if self.engine.draining:
            raise Refusal(503, "the server is shutting down; try another one", "server_error", retry_after=5)
        if self._reading >= QUEUED:
            raise _full()
        stop = threading.Event()

        def check() -> None:
            if self.engine.ended:
                raise Refusal(503, "the server is shutting down; try another one", "server_error", code="shutdown")
            if stop.is_set():
                raise _late()

        guarded = partial(run_in_thread, call, *args, threads=self.engine.threads, check=check)
        self._reading += 1
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await while_connected(receive, self._off(self._read, guarded))
        except TimeoutError:
            raise _late() from None
        finally:
            self._reading -= 1
            stop.set()

    async def _compiled(self, receive: Receive, call: Callable[..., T], *args: Any) -> T:
        """Call a function that may compile a form for seconds: one at a time, and no other request waits for it."""
        if self._compiling > self.limits.queue:
            raise _full()
        self._compiling += 1
        try:
            async with asyncio.timeout(self.limits.timeout):
                return await while_connected(receive, self._off(self._compile, call, *args))
        except TimeoutError:
            raise _late() from None
        finally:
            self._compiling -= 1

    async def _submit(
        self, receive: Receive, name: str, prepare: Callable[..., list[WritingRequest]], asked: Writing, steps: bool
    ) -> RequestHandle:
        lm, clock = self.engine.lms[name], self.engine.clock
        deadline = clock() + self.limits.timeout
        if isinstance(asked, Gapped) and asked.text is not None and ranged(asked.text):
            made = await self._long(receive, prepare, lm, asked, self.limits)
        elif asked.has_form or (isinstance(asked, Gapped) and asked.text is not None and patterned(asked.text)):
            made = await self._compiled(receive, prepare, lm, asked, self.limits)
        else:
            made = await while_connected(receive, self._off(self._prepare, prepare, lm, asked, self.limits))
        left = deadline - clock()
        handle = RequestHandle(name, made, timeout=left, steps=steps, buffer=self.limits.buffer, clock=clock)
        self.engine.submit(handle)
        return handle

    # -- endpoints ---------------------------------------------------------------------------------------------------

    async def diffusion(self, request: Request) -> Response:
        """POST /v1/diffusion: events, each with what has changed."""
        asked = await self._asked(DiffusionBody, request)
        name, lm = self._lm(asked.model)
        handle = await self._submit(request.receive, name, prepare, asked, True)
        return self._stream(handle, diffusion_events(name, lm, handle))

    async def infill(self, request: Request) -> Response:
        """POST /v1/infill: samples."""
        asked = await self._asked(InfillBody, request)
        name, _ = self._lm(asked.model)
        handle = await self._submit(request.receive, name, prepare, asked, False)
        done = await self._wait(request.receive, handle, all_done(handle))
        return await self._off(self._prepare, lambda: answer(samples_answer(name, handle, done, asked.tokens)))

    async def completions(self, request: Request) -> Response:
        """POST /v1/completions: as OpenAI's."""
        asked = await self._asked(CompletionBody, request)
        return await self._client(request, asked, prepare_completion, Completion)

    async def chat_completions(self, request: Request) -> Response:
        """POST /v1/chat/completions: as OpenAI's."""
        asked = await self._asked(ChatBody, request)
        return await self._client(request, asked, prepare_chat, ChatCompletion)

    async def _client(
        self,
        request: Request,
        asked: CompletionBody | ChatBody,
        prepare: Callable[..., list[WritingRequest]],
        make: Callable[..., ClientAnswer],
    ) -> Response:
        """Answer one of OpenAI's clients, with a document or a stream."""
        name, lm = self._lm(asked.model)
        steps = bool(asked.stream) or bool(asked.alternatives)
        handle = await self._submit(request.receive, name, prepare, asked, steps)
        result = make(name, lm, asked, handle)
        if asked.stream:
            return self._stream(handle, result.stream())
        return answer(await self._wait(request.receive, handle, result.collect()))

    async def score(self, request: Request) -> Response:
        """POST /v1/score: the likelihood of texts."""
        asked = await self._asked(ScoreBody, request)
        name, lm = self._lm(asked.model)
        texts = _texts(asked, self.limits)
        if asked.spans is not None and len(texts) != 1:
            raise Refusal(400, "spans are for one text", param="spans")
        likelihood = await self._long(request.receive, _score, lm, asked, texts, self.limits)
        return answer(score_answer(name, likelihood))

    async def marginals(self, request: Request) -> Response:
        """POST /v1/marginals: the distribution at every open position of texts with gaps."""
        asked = await self._asked(MarginalsBody, request)
        name, lm = self._lm(asked.model)
        each = await self._long(request.receive, _marginals, lm, asked, _texts(asked, self.limits), self.limits)
        return await self._off(self._prepare, lambda: answer(marginals_answer(name, each)))

    async def choose(self, request: Request) -> Response:
        """POST /v1/choose: how probable each of several texts is in a gap."""
        asked = await self._asked(ChooseBody, request)
        name, lm = self._lm(asked.model)
        answers = await self._long(request.receive, _choose, lm, asked, self.limits)
        return answer({"object": "choices", "model": name, "choices": [one.as_dict() for one in answers]})

    async def tokenize(self, request: Request) -> Response:
        """POST /v1/tokenize: the tokens of a text, null where it has gaps."""
        asked = await self._asked(TokenizeBody, request)
        name, lm = self._lm(asked.model)
        ids = await self._off(self._prepare, tokens, lm, asked, self.limits)
        mask, piece = lm.tokenizer.vocab.mask, lm.tokenizer.piece
        shown = [{"id": None, "piece": None} if i == mask else {"id": i, "piece": piece(i)} for i in ids]
        return answer({"object": "tokens", "model": name, "count": len(ids), "tokens": shown})

    async def list_models(self, _request: Request) -> Response:
        """GET /v1/models."""
        return answer({"object": "list", "data": self.models})

    async def model_card(self, request: Request) -> Response:
        """GET /v1/models/NAME."""
        name, _ = self._lm(request.path_params["name"])
        return answer(next(card for card in self.models if card["id"] == name))

    async def _wait(self, receive: Receive, handle: RequestHandle, result: Awaitable[T]) -> T:
        """Wait for a result; if the client disconnects, its place becomes free."""
        try:
            return await while_connected(receive, result)
        finally:
            self.engine.cancel(handle)

    def _stream(self, handle: RequestHandle, events: AsyncIterator[str]) -> EventStream:
        return EventStream(events, self.limits.timeout + 30.0, lambda: self.engine.cancel(handle))


def _late() -> Refusal:
    return Refusal(408, "the request took longer than the server allows; ask for less", "timeout_error")


def _full() -> Refusal:
    return Refusal(
        429,
        "the server is busy and its queue is full; try again later",
        "rate_limit_error",
        code="queue_full",
        retry_after=5,
    )


def _texts(asked: ScoreBody | MarginalsBody, limits: Limits) -> list[str]:
    if (asked.text is None) == (asked.texts is None):
        raise Refusal(400, "give either text or texts", param="text")
    texts = [asked.text] if asked.text is not None else asked.texts or []
    if len(texts) > limits.texts:
        raise Refusal(400, f"{len(texts)} texts are more than {limits.texts} at a time", param="texts")
    return texts


def _score(lm: LM, asked: ScoreBody, texts: list[str], limits: Limits) -> Likelihood:
    tokens = sum(len(lm.encode(text)) for text in texts)
    if tokens > limits.length * 4:
        raise Refusal(400, f"{tokens} tokens are more than the {limits.length * 4} that are scored at once")
    numbers = {name: value for name in ("draws", "calls", "orders") if (value := getattr(asked, name)) is not None}
    span = None if asked.spans is None else [(start, end) for start, end in asked.spans]
    return lm.score(
        texts[0] if asked.text is not None else texts,
        label=asked.label,
        method=asked.method,
        span=span,
        block=asked.block,
        seed=asked.seed,
        batch_size=_rows(lm),
        **numbers,
    )


def _choose(lm: LM, asked: ChooseBody, limits: Limits) -> list[Answer]:
    if len(asked.choices) > limits.texts:
        raise Refusal(400, f"{len(asked.choices)} choices are more than {limits.texts} at a time", param="choices")
    tokens = sum(len(lm.encode(asked.text)) + len(lm.encode(choice)) for choice in asked.choices)
    if tokens > limits.length * 4:
        raise Refusal(400, f"{tokens} tokens are more than the {limits.length * 4} that are scored at once")
    return lm.choose(asked.text, asked.choices, label=asked.label, seed=asked.seed, batch_size=_rows(lm))


def _marginals(lm: LM, asked: MarginalsBody, texts: list[str], limits: Limits) -> list[Marginals]:
    positions = readable_gaps(lm, texts, limits)
    top, most = min(asked.top, lm.tokenizer.vocab.size - 1), limits.alternatives // QUEUED
    if positions * top > most:
        raise Refusal(
            400,
            f"{positions} open positions with top={top} are {positions * top} tokens, more than the {most} that this "
            "server sends",
            param="top",
        )
    return lm.marginals(texts, top=top, label=asked.label, batch_size=_rows(lm))


def _rows(lm: LM) -> int:
    """How many rows of the model's length go through the network together."""
    return max(1, min(32, 2048 // lm.length))


def _card(name: str, lm: LM, limits: Limits, created: int) -> dict[str, Any]:
    """The public description of a model."""
    tokenizer, model = lm.tokenizer, lm.model
    windows = _can(lm, model.default_sampler, max(1, lm.length // 2))
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
            "default_sampler": model.default_sampler,
            "usual_sampler": model.default_sampler,  # the older name
            "takes": {
                sampler: [name for name in SAMPLERS[sampler].takes if name in Writing.model_fields] for sampler in NAMES
            },
            "settings": _settings(lm, windows),
            "time_conditioned": bool(getattr(model, "time_conditioned", False)),
            "any_length": model.any_length,
            "infills": model.writes_blocks or not model.exact,
            "block_size": model.block_size,  # null: a text is one block
            "block_sizes": _block_sizes(lm),
            "likelihood": model.likelihood,
            "max_steps": limits.steps,
            "max_length": longest,
            "max_n": limits.n,
            "labels": list(lm.labels),
            "chat_template": None if lm.chat_template is None else lm.chat_template.name,  # null: no chat
            "recommended": lm.recommended.as_dict(),
            "parameters": sum(weight.numel() for weight in model.parameters()),
        },
    }


def _block_sizes(lm: LM) -> dict[str, float]:
    """The block sizes that a model was trained on, with their shares of the training."""
    shares = lm.config.block.shares if lm.model.writes_blocks else {}
    return {str(size): share for size, share in shares.items()}


SHOWN = ("whole", "size", "number", "choice", "flag", "label", "sampler")  # that have a control on the page


def _settings(lm: LM, windows: bool) -> list[dict[str, Any]]:
    """The settings that this model can use; the page builds its controls from them."""
    has = {
        "labels": bool(lm.labels),
        "eos": lm.tokenizer.vocab.eos is not None,
        "windows": windows,
        "blocks": lm.model.writes_blocks,
    }
    choices = {"label": list(lm.labels)}
    return [
        {
            "name": spec.name,
            "title": spec.title,
            "kind": "whole" if spec.kind == "size" else spec.kind,  # a number that is large enough is the whole text
            "help": spec.help,
            "default": spec.default,
            "default_words": default_words(spec.name),
            "min": spec.least if spec.above is None else spec.above,
            "max": spec.most if spec.below is None else spec.below,
            "choices": choices.get(spec.kind, list(spec.choices)),
            "instead": list(spec.instead),
            "needs": spec.needs,
        }
        for spec in settings_on("page").values()
        if spec.kind in SHOWN and has.get(spec.needs, True)
    ]


def _can(lm: LM, sampler: str, stride: int | None = None) -> bool:
    """Whether a model can be sampled with this sampler."""
    mask = lm.tokenizer.vocab.mask
    ids = torch.tensor([0 if mask else 1, mask, mask])
    try:
        lm.check(Job(Canvas(ids, [slice(0, 3)]), SamplingParams(sampler=sampler, stride=stride)))
    except UserError:
        return False
    return True
