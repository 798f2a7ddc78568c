"""The infill loop of the terminal: from a pipe, and on a pseudo-terminal."""

from __future__ import annotations

import io
import json
import os
import pty
import subprocess
import sys
import time
from typing import Any

import pytest

import unmask
from unmask import cli
from unmask.cli.fill_loop import FillLoop, gaps
from unmask.sampling.trace import Trace
from unmask.types import UserError


@pytest.fixture(scope="module")
def lm() -> Any:
    return unmask.load("tiny-en")


@pytest.fixture
def piped(monkeypatch, capsys, lm):
    """`unmask fill ARGS` with lines from a pipe: (exit code, output, errors)."""
    monkeypatch.setattr("unmask.hub.resolve.load", lambda *_args, **_how: lm)

    def run(lines: str, *args: str) -> tuple[int, str, str]:
        monkeypatch.setattr(sys, "stdin", io.StringIO(lines))
        monkeypatch.setattr(sys, "argv", ["unmask", "fill", "tiny-en", *args])
        code = 0
        try:
            cli.main()
        except SystemExit as stop:
            code = int(stop.code or 0)
        return code, *capsys.readouterr()

    return run


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("The ___ sat.", "The {{3}} sat."),
        ("_ and __", "{{1}} and {{2}}"),
        ("a {{2-6}} b ____", "a {{2-6}} b {{4}}"),
        ("snake_case __init__ stays", "snake_case __init__ stays"),
        ("{{3}}_", "{{3}}{{1}}"),
        ("[MASK] and _", "{{1}} and {{1}}"),
    ],
)
def test_blanks_are_gaps(typed, meant):
    assert gaps(typed) == meant


def test_lines_from_a_pipe_are_filled_as_the_library_does(piped, lm):
    text = "The dog ran to {{3}} house."
    code, out, err = piped(
        f"The dog ran to ___ house.\n\n:seed 7\n:steps 4\n{text}\n:quit\nnever {{{{1}}}}\n", "--steps", "8"
    )
    expected = [lm.infill(text, seed=seed, steps=steps)[0] for seed, steps in ((0, 8), (1, 8), (7, 4))]
    assert code == 0 and out.splitlines() == expected and err.startswith("recommended by the model: ")
    assert err.count("\n") == 1


def test_several_samples_as_json_lines(piped, lm):
    code, out, _ = piped(":n 2\nA {{4}} day.\n", "--jsonl", "--sampler", "confidence", "--steps", "2")
    found = [json.loads(line) for line in out.splitlines()]
    assert code == 0 and [one["text"] for one in found] == lm.infill("A {{4}} day.", 2, sampler="confidence", steps=2)
    assert [one["seed"] for one in found] == [0, 1] and all(one["tokens"] for one in found)


def test_mistakes_are_sentences_and_the_loop_goes_on(piped):
    lines = "no gap here\n:steps many\n:samplr x\n:sampler fast\n:html\n:n 0\n:temperature -1\n\nA {{2}} day.\n"
    code, out, err = piped(lines, "--steps", "2")
    assert code == 2 and out.startswith("A ") and len(out.splitlines()) == 1 and "Traceback" not in err
    said = err.splitlines()
    assert "did you mean" in err or "sampler" in err
    assert sum(line.startswith("unmask:") for line in said) == 7
    assert "type a text with a gap" in err


def test_a_wrong_setting_changes_nothing(lm):
    loop = FillLoop(lm, "tiny-en", {"steps": 4})
    with pytest.raises(UserError):
        loop.line(":steps -3", print)
    with pytest.raises(UserError):
        loop.line(":sampler first-hitting", print)  # which has no steps
    assert loop.how == {"steps": 4}
    loop.line(":steps -", print)
    loop.line(":sampler first-hitting", print)
    said: list[str] = []
    loop.line(":show", said.append)
    assert "first-hitting" in said[0] and "steps" not in said[0]
    assert loop.line(":quit", print) is None


def test_seeds_and_numbers(lm):
    loop = FillLoop(lm, "tiny-en", {"steps": 2}, n=3)
    seeds = [[sample.seed for sample in loop.line(line, print)] for line in ("a {{1}}", "", "")]
    assert seeds == [[0, 1, 2], [3, 4, 5], [6, 7, 8]]
    for line, name, value in (
        (":seed 010", "seed", 10),
        (":temperature 1e-1", "temperature", 0.1),
        (":k -", "k", None),
    ):
        loop.line(line, print)
        assert loop.how.get(name) == value
    for line in (":seed 1:30", ":seed 1.5", ":temperature warm", ":steps yes"):
        with pytest.raises(UserError, match="number"):
            loop.line(line, print)


def test_what_is_saved_is_the_trace_of_what_was_seen(lm, tmp_path):
    loop = FillLoop(lm, "tiny-en", {"steps": 6, "seed": 3}, n=2)
    samples = loop.line("The {{5}} end.", print)
    loop.line(f":json {tmp_path / 'fill.json'}", print)
    loop.line(f":html {tmp_path / 'fill.html'}", print)
    trace = Trace.load(tmp_path / "fill.json")
    assert [course.replay(trace.mask) for course in trace.recordings] == [sample.ids for sample in samples]
    assert [course.text for course in trace.recordings] == [sample.text for sample in samples]
    assert trace.protocol["model"] == "tiny-en" and "unmask-trace/1" in (tmp_path / "fill.html").read_text()


def test_on_a_terminal(lm, tmp_path):
    master, slave = pty.openpty()
    names = ("NO_COLOR", "FORCE_COLOR", "COLUMNS", "TTY_COMPATIBLE", "TTY_INTERACTIVE")
    env = {key: value for key, value in os.environ.items() if key not in names}
    env |= {"TERM": "xterm-256color", "OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        [sys.executable, "-m", "unmask", "fill", "tiny-en", "--steps", "4"],
        stdin=slave,
        stdout=slave,
        stderr=slave,
        env=env,
        start_new_session=True,
    ) as process:
        os.close(slave)
        shown = ""

        def until(text: str, count: int = 1) -> None:
            nonlocal shown
            end = time.monotonic() + 90
            while shown.count(text) < count:
                assert time.monotonic() < end, shown
                shown += os.read(master, 65536).decode(errors="replace")

        try:
            until("fill> ")
            os.write(master, b"The ___ house.\r")
            until("fill> ", 2)
            assert "░░" in shown and "masks left" in shown and "0 masks left" in shown
            assert lm.infill("The {{3}} house.", steps=4)[0].split(".")[0].strip() in shown
            os.write(master, b":nonsense\r")
            until("there is no command")
            asked = shown.rindex("there is no command")
            until("fill> ", shown[:asked].count("fill> ") + 1)  # a Ctrl-D before it listens again would be lost
            os.write(master, b"\x04")  # Ctrl-D
            assert process.wait(60) == 0
        finally:
            process.kill()
            os.close(master)
    assert "Traceback" not in shown
