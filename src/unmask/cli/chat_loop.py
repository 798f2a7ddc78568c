"""The conversation of the terminal: the history is the prompt of the next answer.

A model with a cache reads only what is new of it.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any

from rich.console import Console

from ..config import nearest
from ..data.chat import Message
from ..evaluation.likelihood import evaluating
from ..files import write_text
from ..jsonable import to_json
from ..lm import LM, Job
from ..models.prefix_cache import PrefixCache
from ..sampling.params import SamplingParams
from ..types import Sample, UserError
from .terminal import Watcher

HELP = """\
What you type is answered; a line that begins with / is a command.
  /reset        begin a new conversation
  /system TEXT  what the conversation begins with, for the model alone (without a text: nothing)
  /save FILE    write the conversation as a JSON line, which unmask finetune MODEL sft --data FILE can read
  /help, /quit"""
CONVERSATIONS = 2  # of full length, of which is kept what was read
COMMANDS = ("reset", "system", "save", "help", "quit")


@dataclass
class ChatLoop:
    """The conversation so far."""

    lm: LM
    how: dict[str, Any] = field(default_factory=dict)  # fields of `SamplingParams` that were set
    system: str | None = None
    max_tokens: int | None = None  # of an answer
    console: Console | None = None  # where to show how masks become words; None: nowhere
    exact: bool = False  # whether to leave out what the model recommends
    turns: list[Message] = field(default_factory=list)  # user and assistant
    answers: list[Sample] = field(default_factory=list)  # of all conversations

    def __post_init__(self) -> None:
        room = PrefixCache(CONVERSATIONS * self.lm.model.cache_bytes(self.lm.length))
        self.batcher = self.lm.model.batcher(1, prefixes=room)

    @property
    def options(self) -> SamplingParams:
        """The settings: those that were set, and what the model recommends for the others."""
        return self.lm.sampling_params(self.how, self.exact).settle(self.lm.model)

    @property
    def messages(self) -> list[Message]:
        """The conversation."""
        return [*([{"role": "system", "content": self.system}] if self.system else []), *self.turns]

    def check(self) -> None:
        """Check that the settings are compatible and that there is room, before anything is typed."""
        options, asked = self.options, [*self.messages, {"role": "user", "content": "?"}]
        self.lm.check(Job(self.lm.chat_canvas(asked, self.max_tokens, options.stride is not None), options))

    def line(self, line: str, say: Callable[[str], object]) -> list[Sample] | None:
        """Execute a line; returns its answer (nothing if all it did was `say` something), or None to quit."""
        if line.startswith("/"):
            return self._command(line[1:].strip(), say)
        return [self.answer(line)] if line.strip() else []

    def answer(self, text: str) -> Sample:
        """The answer to a message; every answer has a seed of its own."""
        lm, options = self.lm, self.options
        options = replace(options, seed=options.seed + len(self.answers))
        asked: Message = {"role": "user", "content": text}
        try:
            canvas = lm.chat_canvas([*self.messages, asked], self.max_tokens, options.stride is not None)
        except UserError as error:
            raise UserError(f"{error} (/reset begins a new conversation)" if self.turns else str(error)) from None
        request, sample = lm.request(canvas, options), None
        with ExitStack() as stack:
            stack.callback(self.batcher.drop, request.row)  # also of an answer that was stopped
            stack.enter_context(evaluating(lm.model))
            begin = len(canvas.ids) - canvas.lengths[0]
            watch = None
            if self.console is not None:
                watch = stack.enter_context(Watcher(lm.tokenizer, [canvas.ids], self.console, begin, passing=True))
            self.batcher.add(request)
            for state in self.batcher.run():
                if watch is not None:
                    watch(state)
                sample = lm.finished(request, state)
        assert sample is not None
        self.turns = [*self.turns, asked, {"role": "assistant", "content": sample.text}]
        self.answers.append(sample)
        return sample

    def document(self, protocol: dict[str, Any]) -> dict[str, Any]:
        """The conversation, and how its answers were written."""
        assert self.lm.chat_template is not None
        options = self.options
        described = {"template": self.lm.chat_template.name, **options.describe(), "seed": options.seed}
        answers = [sample.as_dict() for sample in self.answers]
        return {"messages": self.messages, "answers": answers, "protocol": protocol | described}

    def _command(self, words: str, say: Callable[[str], object]) -> list[Sample] | None:
        name, _, value = words.partition(" ")
        value = value.strip()
        if name in ("quit", "q", "exit"):
            return None
        if name in ("help", "h", ""):
            say(HELP)
        elif name == "reset":
            self.turns = []
        elif name == "system":
            self.system = value or None
        elif name == "save":
            self._save(value, say)
        else:
            raise UserError(f"there is no command /{name}{nearest(name, COMMANDS)}; /help lists them")
        return []

    def _save(self, path: str, say: Callable[[str], object]) -> None:
        if not self.turns:
            raise UserError("there is nothing to save yet; type a message first")
        if not path:
            raise UserError("name a file, for example /save chat.jsonl")
        write_text(path, to_json({"messages": self.messages}) + "\n")
        say(f"wrote {path}")
