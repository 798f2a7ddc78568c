"""A run that is killed, interrupted or out of disk goes on to the same bits as one that was left alone."""

from __future__ import annotations

import functools
import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import unmask
from support.helpers import once, refused, run, settings, start
from unmask.hub.resolve import checkpoint

STEPS = 60
RUN = [
    "model.dropout=0.2",
    "train.batch_size=4",
    "train.micro_batch_size=3",
    "train.warmup=5",
    "train.log_every=1",
    "eval.every=10",
    "eval.rows=4",
    "sample.every=15",
    "sample.n=1",
    "sample.steps=4",
]


def arguments(out: Path, *more: str, steps: int = STEPS, every: int = 4) -> list[str]:
    own = [*RUN, f"train.steps={steps}", f"train.checkpoint_every={every}", *more]
    return ["train", "tiny", *settings(*own), "--out", str(out)]


@functools.cache
def reference(steps: int = STEPS) -> Path:
    """The run that nobody disturbs."""

    def train(out: Path) -> None:
        assert run(*arguments(out, steps=steps)).code == 0

    return once(f"undisturbed-{steps}", train)


def journal(out: Path) -> list[dict[str, Any]]:
    """The log without the two figures that depend on the clock."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("tokens_per_second", "core_seconds", "step_seconds")}
        for line in lines
    ]


def assert_same(out: Path, steps: int = STEPS) -> None:
    ours, theirs = (checkpoint.step_folder(path, steps) for path in (out, reference(steps)))
    for name in ("model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    assert journal(out) == journal(reference(steps))
    assert not list((out / "checkpoints").glob(".*")), "leftovers of a killed writer"


def last_step(out: Path) -> int:
    """The last step that the log tells of (a writer may be in the middle of a line)."""
    try:
        lines = (out / "log.jsonl").read_text().splitlines()
    except FileNotFoundError:
        return 0
    found = 0
    for line in lines:
        try:
            found = json.loads(line)["step"]
        except ValueError:
            break
    return found


def wait_for(out: Path, step: int, alive: Callable[[], bool]) -> None:
    deadline = time.monotonic() + 120
    while last_step(out) < step and alive() and time.monotonic() < deadline:
        time.sleep(0.002)


def kill_often(out: Path, kills: int, rng: random.Random, launch: Callable[[], Any]) -> set[int]:
    """Kill -9 at random moments, one in five while the process still starts; gives the steps it got to."""
    moments = set()
    for _ in range(kills):
        process = launch()
        alive = process.is_alive if hasattr(process, "is_alive") else lambda p=process: p.poll() is None
        if rng.random() < 0.2:
            time.sleep(rng.uniform(0, 1))
        else:
            saved = checkpoint.steps(out)
            wait_for(out, (saved[-1] if saved else 0) + rng.randint(1, 9), alive)
            time.sleep(rng.uniform(0, 0.02))
        if not alive():  # a very fast machine
            break
        os.kill(process.pid, signal.SIGKILL)
        (process.join if hasattr(process, "join") else process.wait)()
        moments.add(last_step(out))
    return moments


def test_killed_four_times_and_continued(tmp_path: Path) -> None:
    out = tmp_path / "run"
    moments = kill_often(out, 4, random.Random(4), lambda: start(arguments(out), tmp_path / "err"))
    assert len(moments) > 1
    assert "Traceback" not in (tmp_path / "err").read_text()
    assert run(*arguments(out)).code == 0
    assert_same(out)


@pytest.mark.slow
def test_killed_at_twenty_random_moments_and_continued(tmp_path: Path) -> None:
    out, steps = tmp_path / "run", 200
    command = [sys.executable, "-m", "unmask", *arguments(out, steps=steps, every=3), "--quiet"]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    moments = kill_often(out, 20, random.Random(20), lambda: subprocess.Popen(command, env=environment))
    assert len(moments) > 10
    subprocess.run(command, env=environment, check=True)
    assert_same(out, steps)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_saves_says_how_to_go_on_and_loses_nothing(tmp_path: Path, number: signal.Signals) -> None:
    out, err = tmp_path / "run", tmp_path / "err"
    seldom = ["train.checkpoint_every=1000", "eval.every=0", "sample.every=0"]
    process = start(arguments(out, *seldom), err)
    wait_for(out, 7, process.is_alive)
    os.kill(process.pid or 0, number)
    process.join(60)
    assert process.exitcode == 130
    [step] = checkpoint.steps(out)
    assert 7 <= step < STEPS
    assert step == last_step(out), "everything that was logged is saved"
    said = err.read_text()
    assert f"stopped at step {step} and saved" in said and "same command again" in said
    assert "Traceback" not in said
    assert run(*arguments(out)).code == 0
    ours, theirs = (checkpoint.step_folder(path, STEPS) for path in (out, reference()))
    for name in ("model.safetensors", "ema.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()


def die_while_writing(moment: str, count: int) -> None:
    """Make this process die like a kill -9 in the `count`-th checkpoint that it writes."""
    save_file, rename, seen = checkpoint.save_file, os.rename, [0]

    def save(tensors: Any, path: Any, *rest: Any) -> None:
        save_file(tensors, path, *rest)
        seen[0] += Path(path).name.startswith("optimizer")
        if seen[0] == count and moment == "between files":
            os._exit(9)
        if seen[0] == count and moment == "in a file":
            os.truncate(path, 100)
            os._exit(9)

    def rename_(source: Any, target: Any) -> None:
        if seen[0] == count and moment == "before its name":
            os._exit(9)
        rename(source, target)
        if seen[0] == count and moment == "after its name":
            os._exit(9)

    checkpoint.save_file, os.rename = save, rename_


LATER = [pytest.param(m, marks=pytest.mark.slow) for m in ("between files", "before its name", "after its name")]


@pytest.mark.parametrize("moment", ["in a file", *LATER])
def test_killed_while_a_checkpoint_is_written(tmp_path: Path, moment: str) -> None:
    out = tmp_path / "run"
    more = ["eval.every=0", "train.keep_last=1"]
    process = start(arguments(out, *more), tmp_path / "err", die_while_writing, moment, 2)
    process.join(60)
    assert process.exitcode == 9
    complete = 8 if moment == "after its name" else 4
    assert checkpoint.steps(out)[-1] == complete
    assert bool(list((out / "checkpoints").glob(".*"))) == (moment != "after its name")
    assert len(unmask.load(out).sample(1, steps=2)) == 1, "what is there can be used"
    assert run(*arguments(out)).code == 0
    assert_same(out)


# -- continuing with other settings ----------------------------------------------------------------------------------


def short(out: Path, *more: str, steps: int = 8) -> list[str]:
    return arguments(out, "eval.every=0", "sample.every=0", *more, steps=steps)


def test_other_settings_are_refused_by_name_and_nothing_is_touched(tmp_path: Path) -> None:
    out = tmp_path / "run"
    assert run(*short(out)).code == 0
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    for change, key in (
        ("train.lr=0.1", "train.lr=0.001"),
        ("seed=1", "seed=0"),
        ("model.dropout=0", "model.dropout=0.2"),
        ("train.batch_size=5", "train.batch_size=4"),
        ("data.length=17", "data.length=16"),
        ("schedule.name=cosine", "schedule.name=log-linear"),
    ):
        said = refused(*short(out, change), "--quiet")
        assert key in said and "--out" in said
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_more_steps_continue_a_finished_run(tmp_path: Path) -> None:
    longer, straight = tmp_path / "longer", tmp_path / "straight"
    assert run(*short(longer)).code == 0
    again = run(*short(longer))  # nothing left to do
    assert again.code == 0 and checkpoint.steps(longer)[-1] == 8
    assert run(*short(longer, "train.log_every=2", steps=12)).code == 0
    assert run(*short(straight, steps=12)).code == 0
    ours, theirs = (checkpoint.step_folder(path, 12) for path in (longer, straight))
    for name in ("model.safetensors", "ema.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert [line["step"] for line in journal(longer) if "loss" in line] == [*range(1, 9), 10, 12]


def test_changed_data_are_refused(tmp_path: Path) -> None:
    out, data = tmp_path / "run", tmp_path / "own.txt"
    data.write_text("abcdefghij" * 600)
    assert run(*short(out, f"data.source={data}")).code == 0
    data.write_text("abcdefghij" * 599 + "abcdefghiX")
    said = refused(*short(out, f"data.source={data}", steps=12), "--quiet")
    assert str(data) in said and "changed" in said
    data.write_text("abcdefghij" * 600)
    assert run(*short(out, f"data.source={data}", steps=12)).code == 0


def test_the_order_of_checkpoints_does_not_change_the_run(tmp_path: Path) -> None:
    """Evaluation, samples and checkpoints have streams of their own: they leave training alone."""
    out = tmp_path / "run"
    assert run(*arguments(out, "eval.every=7", "sample.every=0", "train.log_every=50", every=1000)).code == 0
    ours, theirs = (checkpoint.step_folder(path, STEPS) for path in (out, reference()))
    for name in ("model.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
