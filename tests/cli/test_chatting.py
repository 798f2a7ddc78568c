"""The conversation of the terminal: from a pipe, and on a pseudo-terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import select
import signal
import subprocess
import sys
import time

import pytest

from support.serving import chat_lm, diffusion_lm
from unmask import cli
from unmask.cli.chat_loop import ChatLoop
from unmask.types import UserError


@pytest.fixture
def piped(monkeypatch, capsys):
    """`unmask chat MODEL ARGS` with lines from a pipe: (exit code, output, errors)."""
    models = {"mdlm": chat_lm(), "ar": chat_lm("ar"), "mute": diffusion_lm()}
    monkeypatch.setattr("unmask.hub.resolve.load", lambda path, **_how: models[path])

    def run(lines: str, *args: str, model: str = "ar") -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        monkeypatch.setattr(sys, "argv", ["unmask", "chat", model, *args])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


def said(*contents: str, system: str | None = None) -> list[dict[str, str]]:
    turns = [{"role": ("user", "assistant")[i % 2], "content": text} for i, text in enumerate(contents)]
    return [*([{"role": "system", "content": system}] if system else []), *turns]


@pytest.mark.parametrize("method", ["mdlm", "ar", "block"])
def test_the_history_is_the_prompt_of_the_next_answer(method):
    lm, how = chat_lm(method), {"seed": 5, "only": list("abcdefgh")}
    loop = ChatLoop(lm, dict(how), "Be good.", max_tokens=10)
    first = loop.answer("Hi").text
    second = loop.answer("And?").text
    assert first == lm.chat(said("Hi", system="Be good."), max_tokens=10, **how)[0]
    how["seed"] = 6  # each answer has its own
    assert second == lm.chat(said("Hi", first, "And?", system="Be good."), max_tokens=10, **how)[0]
    assert loop.messages == said("Hi", first, "And?", second, system="Be good.")
    loop.line("/reset", print)
    loop.line("/system", print)
    assert loop.messages == [] and loop.line("", print) == []
    how["seed"] = 7
    assert loop.answer("Hi").text == lm.chat(said("Hi"), max_tokens=10, **how)[0]


@pytest.mark.parametrize("method", ["ar", "block"])
def test_what_was_read_is_not_read_again(method, monkeypatch):
    lm, read = chat_lm(method), []
    forward = type(lm.model.backbone).forward

    def counting(self, *args, **more):
        read.append(args[0].tokens.shape[1])
        return forward(self, *args, **more)

    monkeypatch.setattr(type(lm.model.backbone), "forward", counting)
    loop = ChatLoop(lm, {"only": list("abcdefgh"), "seed": 1}, max_tokens=8)
    answers, new = [], []
    for text in ("Hi", "And?", "Who"):
        read.clear()
        answers.append(loop.answer(text).text)
        new.append(read[0])  # of the first call
    given = [len(lm.chat_template.prompt(loop.messages[:n])) for n in (1, 3, 5)]
    block = 0 if method == "ar" else 16  # the block that is written, and one of which only a part is known
    assert new[0] >= given[0] and all(n <= b - a + block for a, b, n in zip(given, given[1:], new[1:], strict=False))
    loop.line("/reset", print)
    read.clear()
    answers.append(loop.answer("Hi, you").text)
    monkeypatch.undo()
    for k, messages in enumerate([*(before(answers, n) for n in range(3)), said("Hi, you")]):
        assert answers[k] == lm.chat(messages, max_tokens=8, seed=1 + k, only=list("abcdefgh"))[0]


def before(answers: list[str], n: int) -> list[dict[str, str]]:
    """The conversation before answer n."""
    texts = ("Hi", "And?", "Who")
    return said(*(part for k in range(n) for part in (texts[k], answers[k])), texts[n])


def test_lines_from_a_pipe(piped, tmp_path):
    file = tmp_path / "chat.jsonl"
    lines = f"Hi\n\n/system Be good.\n/reset\nWho?\n/save {file}\n/quit\nnever\n"
    code, out, err = piped(lines, "--max-tokens", "8", "--seed", "3", "--only", "a", "--only", "b")
    how = {"max_tokens": 8, "only": ["a", "b"]}
    first = chat_lm("ar").chat(said("Hi"), seed=3, **how)[0]
    second = chat_lm("ar").chat(said("Who?", system="Be good."), seed=4, **how)[0]
    assert code == 0 and out == f"{first}\n{second}\n" and err == f"wrote {file}\n"
    assert json.loads(file.read_text()) == {"messages": said("Who?", second, system="Be good.")}


def test_one_document(piped):
    code, out, err = piped("Hi\nWho?\n", "--json", "--max-tokens", "6", "--steps", "3", model="mdlm")
    found = json.loads(out)
    assert code == 0 and not err and set(found) == {"messages", "answers", "protocol"}
    assert [turn["role"] for turn in found["messages"]] == ["user", "assistant"] * 2
    assert [one["text"] for one in found["answers"]] == [turn["content"] for turn in found["messages"][1::2]]
    assert [one["seed"] for one in found["answers"]] == [0, 1]
    assert found["protocol"]["template"] == "plain" and found["protocol"]["steps"] == 3


def test_mistakes_are_sentences_and_the_conversation_goes_on(piped):
    code, out, err = piped(f"/rest\n/save\n{'x' * 200}\nHi\n/save\n{'x' * 60}\n", "--max-tokens", "9")
    said = err.splitlines()
    assert code == 2 and len(out.splitlines()) >= 1 and "Traceback" not in err
    assert len(said) == 5 and all(line.startswith("unmask: ") for line in said)
    assert "did you mean" in said[0] and "/reset" not in said[2] and "/reset begins a new" in said[4]


def test_what_is_wrong_from_the_start(piped):
    for args, model, words in (
        ((), "mute", "--template plain"),
        (("--template", "plane"), "mute", "plain"),
        (("--template", "chatml"), "mute", "im_start"),
        (("--max-tokens", "90"), "ar", "max_tokens=90"),
        (("--max-tokens", "0"), "ar", "max_tokens"),
        (("--sampler", "gibbs"), "ar", "left to right"),
    ):
        code, out, err = piped("Hi\n", *args, model=model)
        assert code == 2 and not out and words in err and len(err.splitlines()) == 1, err
    assert piped("Hi\n", "--template", "plain", "--max-tokens", "4", model="mute")[0] == 0


def test_an_answer_that_is_stopped_is_forgotten(monkeypatch):
    loop = ChatLoop(chat_lm(), {"steps": 4}, max_tokens=8)

    def interrupted(state):
        raise KeyboardInterrupt

    monkeypatch.setattr("unmask.cli.chat_loop.LM.finished", lambda *_: interrupted(None))
    with pytest.raises(KeyboardInterrupt):
        loop.answer("Hi")
    monkeypatch.undo()
    assert loop.messages == [] and not loop.batcher.busy
    assert loop.answer("Hi").text == chat_lm().chat(said("Hi"), max_tokens=8, steps=4)[0]
    with pytest.raises(UserError, match="nothing to save"):
        ChatLoop(chat_lm()).line("/save x", print)


def test_on_a_terminal(tmp_path):
    """Masks become words; Ctrl-C ends an answer, and Ctrl-D the conversation."""
    master, slave = pty.openpty()
    names = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    env = {key: value for key, value in os.environ.items() if key not in names}
    env |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    words = ["chat", "tiny-en", "--template", "plain", "--max-tokens", "100", "--block", "100", "--steps", "100"]
    with subprocess.Popen(
        [sys.executable, "-m", "unmask", *words, "--no-stop-at-eos"],
        stdin=slave, stdout=slave, stderr=slave, env=env, start_new_session=True,
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # jobs in the background of a shell ignore it
    ) as process:  # fmt: skip
        os.close(slave)
        shown, place = "", 0

        def until(text: str) -> None:
            """Read on to the next place with this text."""
            nonlocal shown, place
            end = time.monotonic() + 90
            while (at := shown.find(text, place)) < 0:
                assert time.monotonic() < end and select.select([master], [], [], 90)[0], shown
                shown += os.read(master, 65536).decode(errors="replace")
            place = at + len(text)

        try:
            until("\n> ")
            os.write(master, b"Tell me a story.\r")
            until("masks left")
            assert "░░" in shown and "Assistant" not in shown  # the prompt is not shown again
            process.send_signal(signal.SIGINT)
            until("stopped")
            until("> ")
            os.write(master, b"/nonsense\r")
            until("there is no command")
            until("> ")
            os.write(master, b"\x04")  # Ctrl-D
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(master)
    assert "Traceback" not in shown
