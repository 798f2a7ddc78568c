"""What a run tells: the journal after a kill, event files, other trackers through one adapter, the progress line."""

from __future__ import annotations

import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest

from support.helpers import run, settings
from unmask.progress import Display
from unmask.training.tracking import Journal, open_sinks
from unmask.types import UserError


def steps(path: Path) -> list[int]:
    return [json.loads(line)["step"] for line in path.read_text().splitlines()]


def test_journal_drops_what_comes_after_the_checkpoint(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    first = Journal(path, 0)
    for step in (10, 20, 30, 40):
        first.log({"loss": step / 7}, step)
    first.log({"valid_nats": 1.5}, 40)
    again = Journal(path, 30)
    assert steps(path) == [10, 20, 30]
    again.log({"loss": 1.0}, 40)
    assert steps(path) == [10, 20, 30, 40]
    assert json.loads(path.read_text().splitlines()[1]) == {"step": 20, "loss": 20 / 7}


@pytest.mark.parametrize(
    "rest",
    [b'{"step": 30, "lo', b"{", b"[1, 2]\n", b'{"loss": 1}\n', b"\xff\xfe\x00", b'{"step": "x"}\n', b"30\n", b"\n"],
)
def test_journal_drops_half_a_line(tmp_path: Path, rest: bytes) -> None:
    path = tmp_path / "log.jsonl"
    path.write_bytes(b'{"step": 10, "samples": ["\\u2028 caf\\u00e9"]}\n{"step": 20}\n' + rest)
    journal = Journal(path, 1000)
    journal.log({"loss": 2.0}, 30)
    assert steps(path) == [10, 20, 30]
    assert json.loads(path.read_text().splitlines()[0])["samples"] == ["\u2028 café"]


def test_a_new_run_begins_a_new_journal(tmp_path: Path) -> None:
    path = tmp_path / "log.jsonl"
    path.write_text('{"step": 10}\n')  # of a run that was killed before its first checkpoint
    Journal(path, 0)
    assert path.read_text() == ""


def test_full_disk(tmp_path: Path) -> None:
    """On a full disk the journal is often the first that cannot be written."""
    path = tmp_path / "log.jsonl"
    journal = Journal(path, 0)
    path.symlink_to("/dev/full")
    with pytest.raises(UserError, match=r"log\.jsonl \(no space left on device\); checkpoints are untouched"):
        journal.log({"loss": 1.0}, 1)


def test_tensorboard_writes_the_figures(tmp_path: Path) -> None:
    pytest.importorskip("tensorboard", reason="the tensorboard extra is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    sinks = open_sinks(["tensorboard"], tmp_path, {}, 0)
    for step in (1, 2, 3):
        for sink in sinks:
            sink.log({"loss": 1 / step, "samples": ["no number"]}, step)
    for sink in sinks:
        sink.close()
    events = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(e.step, round(e.value, 6)) for e in events.Scalars("loss")] == [(1, 1.0), (2, 0.5), (3, 0.333333)]
    assert steps(tmp_path / "log.jsonl") == [1, 2, 3], "the journal is always there"


class Fake(types.ModuleType):
    """Stands for wandb or trackio, and notes what it is told."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.told: list[Any] = []

    def init(self, **given: Any) -> None:
        self.told.append(("init", given))

    def log(self, figures: dict[str, Any], step: int) -> None:
        self.told.append((step, figures))

    def finish(self) -> None:
        self.told.append("finish")


@pytest.mark.parametrize("name", ["wandb", "trackio"])
def test_trackers_hear_what_the_journal_hears(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    fake = Fake(name)
    monkeypatch.setitem(sys.modules, name, fake)
    own = ["train.steps=4", "train.batch_size=2", "train.log_every=2", "eval.rows=2", f"train.sinks=[{name}]"]
    assert run("train", "tiny", *settings(*own), "--out", str(tmp_path / "mine"), "--quiet").code == 0
    (_, begun), *logged, end = fake.told
    assert begun["name"] == "mine" and begun["config"]["train"]["steps"] == 4
    assert end == "finish"
    lines = [json.loads(line) for line in (tmp_path / "mine" / "log.jsonl").read_text().splitlines()]
    assert [{"step": step, **figures} for step, figures in logged] == lines
    assert [step for step, _ in logged] == [2, 4, 4]


def test_a_tracker_that_is_not_installed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "trackio", None)  # importing it raises ImportError
    with pytest.raises(UserError, match="pip install trackio"):
        open_sinks(["trackio"], tmp_path, {}, 0)


def test_plain_lines_where_there_is_no_terminal(capsys: pytest.CaptureFixture[str]) -> None:
    display = Display(100, 0, every=0.0)
    display.update(1, loss="5.0")
    display.update(50, **{"valid ppl": "12.3"})
    display.say("a [bold]line[/bold] of :cat: its own")
    display.close()
    out, err = capsys.readouterr()
    assert out == ""
    first, second, third = err.splitlines()
    assert first.startswith("step 1/100  loss 5.0") and "left" in first
    assert "loss 5.0  valid ppl 12.3" in second
    assert third == "a [bold]line[/bold] of :cat: its own"
    quiet = Display(100, 0, quiet=True)
    quiet.update(1, loss="5.0")
    quiet.say("nothing")
    assert capsys.readouterr() == ("", "")
