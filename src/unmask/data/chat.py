"""Conversations: messages to text and tokens, and which of the tokens are answers.

A template is a program in Jinja that comes with a model (chat_template.jinja, or a field of tokenizer_config.json); it
is rendered as in transformers, in a sandbox. The built-in ones need no jinja2. What a message says is text: a special
token written in it is encoded as the characters it is.
"""

from __future__ import annotations

import functools
import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from ..errors import UserError, choose, optional
from ..files import write_text
from .online import reason
from .tokenizer import CONFIG_FILE, Tokenizer, read_config

TEMPLATE_FILE = "chat_template.jinja"
ROLES = ("system", "user", "assistant")
LARGEST = 1 << 20  # characters of a template
Message = Mapping[str, str]  # role and content


class BuiltIn(NamedTuple):
    """A template by name: how transformers renders it, and the same in Python."""

    source: str
    render: Callable[[Sequence[Message], bool, Mapping[str, str]], str]
    tokens: tuple[str, ...] = ()  # special tokens that it needs


class ChatIds(NamedTuple):
    """A conversation in tokens; `answers` are those that the assistant writes, the end of its turn among them."""

    ids: list[int]
    answers: list[bool]


@dataclass(frozen=True)
class ChatTemplate:
    """How a model reads a conversation."""

    tokenizer: Tokenizer
    source: str  # Jinja
    name: str = "template"

    def __repr__(self) -> str:
        return f"ChatTemplate({self.name!r})"

    @classmethod
    def named(cls, name: str | Path, tokenizer: Tokenizer) -> ChatTemplate:
        """A built-in template, or one in a file."""
        path = Path(name)
        if (built_in := BUILT_IN.get(str(name))) is not None:
            missing = [token for token in built_in.tokens if not tokenizer.has_special(token)]
            if missing:
                raise UserError(
                    f"the chat template {name} is written with {', '.join(missing)}, which the tokenizer "
                    f"{tokenizer.name!r} does not have; use plain"
                )
            return cls(tokenizer, built_in.source, str(name))
        if path.is_file():
            return cls(tokenizer, _read(path), path.name)
        choose(str(name), BUILT_IN, "chat template", " or the path of a .jinja file")
        raise AssertionError

    @classmethod
    def read(cls, folder: str | Path, tokenizer: Tokenizer) -> ChatTemplate | None:
        """The template of a folder with a model, if it has one."""
        folder = Path(folder)
        if (file := folder / TEMPLATE_FILE).is_file():
            return cls.of(_read(file), tokenizer)
        return cls.of(read_config(folder / CONFIG_FILE).get("chat_template"), tokenizer)

    @classmethod
    def of(cls, source: Any, tokenizer: Tokenizer) -> ChatTemplate | None:
        """From what tokenizer_config.json says: a template, or several of which one is the default."""
        if isinstance(source, list):
            several = {entry.get("name"): entry.get("template") for entry in source if isinstance(entry, Mapping)}
            source = several.get("default")
        if not isinstance(source, str) or not source.strip():
            return None
        known = next((name for name, entry in BUILT_IN.items() if entry.source == source), "template")
        return cls(tokenizer, source, known)

    def save(self, folder: str | Path) -> None:
        """Write it where transformers and `read` look for it."""
        write_text(Path(folder) / TEMPLATE_FILE, self.source)

    def text(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> str:
        """The conversation as text; with `add_generation_prompt` an answer begins at its end."""
        messages = checked(messages)
        if add_generation_prompt and messages[-1]["role"] == "assistant":
            raise UserError("the last message is an answer already; end with one of the role user")
        if not self._listens:
            raise UserError(
                "the chat template leaves out what the messages say; use another one, for example --template plain"
            )
        return self._text(messages, add_generation_prompt)

    def ids(self, messages: Sequence[Message], add_generation_prompt: bool = False) -> ChatIds:
        """The conversation in tokens, and which of them are answers."""
        messages, cut = self._apart(checked(messages))
        text = self.text(messages, add_generation_prompt)
        answers = [
            self._answer(messages, k, text) for k, message in enumerate(messages) if message["role"] == "assistant"
        ]
        ids, written, place = [], [], 0
        for part in text.split(cut):
            tokens, offsets = self.tokenizer.with_special(part)
            ids += tokens
            spans = [(place + start, place + end) for start, end in offsets]
            written += [any(a < end and start < b for a, b in answers) for start, end in spans]
            place += len(part) + len(cut)
        return ChatIds(ids, written)

    def prompt(self, messages: Sequence[Message]) -> list[int]:
        """The tokens after which an answer begins."""
        messages, cut = self._apart(checked(messages))
        parts = self.text(messages, add_generation_prompt=True).split(cut)
        return [token for part in parts for token in self.tokenizer.with_special(part)[0]]

    @functools.cached_property
    def end(self) -> int | None:
        """The special token that ends an answer; None where a template has none."""
        question, answer = "Who?", "I, robot."  # text that no template contains
        text = self._text([{"role": "user", "content": question}, {"role": "assistant", "content": answer}], False)
        mark = self._special.search(text, text.rindex(answer) + len(answer)) if answer in text else None
        return None if mark is None else self.tokenizer.with_special(mark[0])[0][0]

    def stops(self) -> tuple[int, ...]:
        """The tokens that end an answer: that of the template, and the end of a text."""
        ends = (self.end, self.tokenizer.vocab.eos)
        return tuple(dict.fromkeys(token for token in ends if token is not None))

    @functools.cached_property
    def end_text(self) -> str:
        """The text that ends an answer where no special token does: the first line between it and the next question."""
        if self.end is not None:
            return ""
        turns = [{"role": role, "content": role} for role in ("user", "assistant", "user")]
        before, text = self._text(turns[:1], True) + "assistant", self._text(turns, False)
        if not text.startswith(before):
            return ""
        between = text[len(before) :].partition("user")[0]
        breaks = len(between) - len(between.lstrip("\n"))
        return between[:breaks] + between[breaks:].partition("\n")[0] if between.strip() else ""

    def _text(self, messages: Sequence[Message], add_generation_prompt: bool) -> str:
        vocab = self.tokenizer.vocab
        roles = {"bos": vocab.bos, "eos": vocab.eos, "pad": vocab.pad, "unk": self.tokenizer.unknown}
        tokens = {f"{role}_token": self.tokenizer.piece(token) for role, token in roles.items() if token is not None}
        built_in = BUILT_IN.get(self.name)
        if built_in is not None and built_in.source == self.source:
            return built_in.render(messages, add_generation_prompt, tokens)
        try:
            return str(
                _compiled(self.source).render(
                    messages=list(messages),
                    tools=None,
                    documents=None,
                    add_generation_prompt=add_generation_prompt,
                    **tokens,
                )
            )
        except UserError:
            raise
        except Exception as error:  # whatever the program of a template raises
            raise UserError(f"the chat template does not render these messages: {reason(error)}") from None

    @functools.cached_property
    def _listens(self) -> bool:
        """Whether questions and answers make a difference to the text."""
        talks = [("Who?", "I."), ("Why?", "I."), ("Who?", "You.")]
        try:
            texts = {
                self._text([{"role": "user", "content": asked}, {"role": "assistant", "content": said}], False)
                for asked, said in talks
            }
        except UserError:  # one that wants a system message, say
            return True
        return len(texts) == len(talks)

    def _answer(self, messages: Sequence[Message], k: int, text: str) -> tuple[int, int]:
        """The characters of answer k: all that follows its prompt, up to the special token that ends it."""
        before = self._text(messages[:k], True)
        if not text.startswith(before):
            raise UserError(
                f"the chat template writes the first {k} messages in another way when an answer follows, so that the "
                "answer cannot be told from its prompt; use another one, for example --template chatml"
            )
        after = self._text(messages[: k + 1], False)
        start, content = len(before), messages[k]["content"].strip()
        place = text.find(content, start)
        if text.startswith(after) and len(after) >= start:
            marks = [match.end() for match in self._special.finditer(after, start)]
            if place >= 0 and before == self._text(messages[:k], False):  # it begins the next answer in any case
                marks = [mark for mark in marks if mark > place + len(content)][:1]
            elif marks and after[marks[-1] :].strip():  # else the rest is a line break between two turns
                marks = []
            return start, marks[-1] if marks else len(after)
        if place < 0:
            raise UserError(
                "the chat template changes an answer when messages follow, so that its end is not known; use another "
                "one, for example --template chatml"
            )
        mark = self._special.search(text, place + len(content))
        return start, mark.end() if mark else place + len(content)

    @functools.cached_property
    def _special(self) -> re.Pattern[str]:
        pieces = sorted(filter(None, map(self.tokenizer.piece, self.tokenizer.special)), key=len, reverse=True)
        return re.compile("|".join(map(re.escape, pieces)) or r"(?!)")

    def _apart(self, messages: Sequence[Message]) -> tuple[list[Message], str]:
        """The messages with a mark inside special tokens that somebody typed, and the mark."""
        typed = "".join(message["content"] for message in messages)
        cut = next(mark for code in range(0xFDD0, 0xFDF0) if (mark := chr(code)) not in typed)
        return [
            {**m, "content": self._special.sub(lambda match: match[0][:1] + cut + match[0][1:], m["content"])}
            for m in messages
        ], cut


def checked(messages: Any) -> list[Message]:
    """The messages with role and content only, if they are a conversation."""
    if not isinstance(messages, Sequence) or isinstance(messages, str) or not messages:
        raise UserError('messages must be a list that is not empty, as [{"role": "user", "content": "Hi"}]')
    result: list[Message] = []
    for number, message in enumerate(messages, 1):
        if not isinstance(message, Mapping) or not isinstance(message.get("content"), str):
            raise UserError(f'message {number} must have a role and a content that is a text, as {{"role": "user", ...')
        role = choose(str(message.get("role")), ROLES, f"role of message {number}:")
        before = result[-1]["role"] if result else None
        if role == "system" and result:
            raise UserError(f"message {number} has the role system, which only the first may have")
        expected = "assistant" if before == "user" else "user"
        if role != "system" and role != expected:
            raise UserError(
                f"message {number} has the role {role}, and {expected} is expected: after a system message that may "
                "come first, user and assistant take turns"
            )
        result.append({"role": role, "content": message["content"]})
    if result[-1]["role"] == "system":
        raise UserError("the only message has the role system; add one of the role user")
    return result


def _read(path: Path) -> str:
    try:
        if path.stat().st_size > LARGEST:
            raise UserError(f"{path} is too large for a chat template")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UserError(f"cannot read the chat template {path}: {reason(error)}") from None


@functools.lru_cache(maxsize=16)
def _compiled(source: str) -> Any:
    """A template as transformers compiles it."""
    jinja2 = optional("jinja2", "this chat template", "chat")
    sandbox = optional("jinja2.sandbox", "this chat template", "chat")
    extension = optional("jinja2.ext", "this chat template", "chat")

    class Generation(extension.Extension):  # type: ignore[name-defined]
        """{% generation %} ... {% endgeneration %} marks answers for transformers; here it is what is inside."""

        tags = {"generation"}  # noqa: RUF012 (as jinja2 wants it)

        def parse(self, parser: Any) -> Any:
            next(parser.stream)
            return parser.parse_statements(("name:endgeneration",), drop_needle=True)

    def raise_exception(message: str) -> None:
        raise UserError(f"the chat template refuses these messages: {message}")

    def tojson(value: Any, ensure_ascii: bool = False, **how: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, **how)

    environment = sandbox.ImmutableSandboxedEnvironment(
        trim_blocks=True, lstrip_blocks=True, extensions=[Generation, extension.loopcontrols]
    )
    environment.filters["tojson"] = tojson
    environment.globals["raise_exception"] = raise_exception
    environment.globals["strftime_now"] = lambda form: datetime.now().strftime(form)
    try:
        return environment.from_string(source)
    except jinja2.TemplateError as error:
        raise UserError(f"the chat template is not a Jinja template: {reason(error)}") from None


# -- built-in templates ----------------------------------------------------------------------------------------------


def _chatml(messages: Sequence[Message], add_generation_prompt: bool, tokens: Mapping[str, str]) -> str:
    turns = [f"<|im_start|>{m['role']}\n{m['content']}<|im_end|>\n" for m in messages]
    return "".join([*turns, "<|im_start|>assistant\n"] if add_generation_prompt else turns)


def _llama3(messages: Sequence[Message], add_generation_prompt: bool, tokens: Mapping[str, str]) -> str:
    head = "<|start_header_id|>{}<|end_header_id|>\n\n"
    turns = [f"{head.format(m['role'])}{m['content'].strip()}<|eot_id|>" for m in messages]
    last = [head.format("assistant")] if add_generation_prompt else []
    return "".join([tokens.get("bos_token", ""), *turns, *last])


def _plain(messages: Sequence[Message], add_generation_prompt: bool, tokens: Mapping[str, str]) -> str:
    ends = {"assistant": tokens.get("eos_token", "")}
    turns = [f"{m['role'].capitalize()}:\n{m['content'].strip()}{ends.get(m['role'], '')}\n" for m in messages]
    return "".join([*turns, "Assistant:\n"] if add_generation_prompt else turns)


BUILT_IN = {
    "chatml": BuiltIn(
        "{% for message in messages %}{{ '<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' "
        "+ '\\n' }}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}",
        _chatml,
        ("<|im_start|>", "<|im_end|>"),
    ),
    "llama3": BuiltIn(
        "{{ bos_token }}{% for message in messages %}{{ '<|start_header_id|>' + message['role'] + "
        "'<|end_header_id|>\\n\\n' + message['content'] | trim + '<|eot_id|>' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ '<|start_header_id|>assistant<|end_header_id|>\\n\\n' }}{% endif %}",
        _llama3,
        ("<|start_header_id|>", "<|end_header_id|>", "<|eot_id|>"),
    ),
    "plain": BuiltIn(
        "{% for message in messages %}{{ message['role'] | capitalize + ':\\n' + message['content'] | trim }}"
        "{% if message['role'] == 'assistant' %}{{ eos_token }}{% endif %}{{ '\\n' }}{% endfor %}"
        "{% if add_generation_prompt %}{{ 'Assistant:\\n' }}{% endif %}",
        _plain,
    ),
}
