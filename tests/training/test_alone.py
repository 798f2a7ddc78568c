"""A run's folder belongs to one training; a process that is lost or stalled ends the others in one sentence."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path

import pytest
import torch.distributed as dist

from support.helpers import refused, run, settings
from unmask import distributed
from unmask.distributed import LEFT, Pulse
from unmask.files import locked
from unmask.types import UserError


def train(out: Path) -> list[str]:
    few = ["train.steps=2", "train.batch_size=2", "eval.every=0"]
    return ["train", "tiny", *settings(*few), "--out", str(out), "--quiet"]


def test_a_second_training_on_a_folder_is_refused(tmp_path: Path) -> None:
    out = tmp_path / "run"
    out.mkdir()
    with locked(out, "is training in"):
        said = refused(*train(out))
        assert "another process is training in" in said and str(out) in said
        assert [path.name for path in out.iterdir()] == [".lock"]
    assert run(*train(out)).code == 0
    assert run(*train(out)).code == 0, "the lock ends with the training"


def test_what_a_killed_training_left_is_cleared_by_the_next(tmp_path: Path) -> None:
    out = tmp_path / "run"
    (out / "checkpoints" / ".step-00000001.writing").mkdir(parents=True)
    (out / ".config.yaml.0123.writing").touch()
    assert run(*train(out)).code == 0
    assert not [path for path in out.rglob(".*") if path.name != ".lock"]


@pytest.mark.parametrize(
    "error",
    [
        RuntimeError("[/pytorch/third_party/gloo/gloo/transport/tcp/pair.cc:547] Connection closed by peer [::1]:99"),
        RuntimeError("Broken pipe"),
        dist.DistNetworkError("The client socket has timed out"),
        dist.DistBackendError("NCCL error"),
    ],
)
def test_a_lost_connection_is_one_sentence(error: RuntimeError) -> None:
    with pytest.raises(UserError, match="connection to another process was lost") as caught, distributed._explained():
        raise error
    assert "\n" not in str(caught.value) and "pair.cc" not in str(caught.value)


def test_other_errors_stay_what_they_are() -> None:
    with pytest.raises(RuntimeError, match="sizes differ"), distributed._explained():
        raise RuntimeError("sizes differ")


class Store:
    """Counts, as the store of torchrun."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()

    def clone(self) -> Store:
        return self

    def add(self, key: str, more: int) -> int:
        self.counts[key] += more
        return self.counts[key]


class Ended(Exception):
    """In place of the end of the process."""


def watch(monkeypatch: pytest.MonkeyPatch, store: Store) -> list[str]:
    """What a process says when its neighbour's count stays as it is in the store, if it says anything in time."""
    said: list[str] = []
    done = threading.Event()

    def end(why: str) -> None:
        said.append(why)
        done.set()
        raise Ended

    monkeypatch.setattr(distributed, "BEAT", 0.001)
    monkeypatch.setattr(distributed, "_end", end)
    monkeypatch.setattr(threading, "excepthook", lambda _: None)
    pulse = Pulse(store, 0, 2)  # type: ignore[arg-type]
    while store.counts["pulse-0"] < 60 and not done.is_set():
        done.wait(0.01)
    pulse.stop()
    return said


def test_a_process_that_stops_counting_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    store.add("pulse-1", 3)
    assert watch(monkeypatch, store) == ["process 1 of 2 has not answered for 20 seconds"]


def test_a_process_that_has_left_or_not_begun_is_not_missed(monkeypatch: pytest.MonkeyPatch) -> None:
    store = Store()
    assert watch(monkeypatch, store) == []
    assert store.counts["pulse-0"] >= LEFT, "and this one says that it leaves"
    store.add("pulse-1", LEFT)
    assert watch(monkeypatch, store) == []


def test_processes_that_do_not_reach_each_other_try_again_together(tmp_path: Path) -> None:
    """The first attempt of one process fails; the other notices, and both connect in the second."""
    code = """
import os, sys
import torch
import torch.distributed as dist
from unmask import distributed

distributed.CONNECT = 1.0
join, calls = dist.init_process_group, []

def broken(*args, **settings):
    calls.append(1)
    if len(calls) == 1 and os.environ["RANK"] == "1":
        raise RuntimeError("gloo: timed out")
    join(*args, **settings)

dist.init_process_group = broken
with distributed.world("cpu") as world:
    total = world.sum(torch.ones(1))
print(len(calls), total.item(), dist.is_initialized())
"""
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    place = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "WORLD_SIZE": "2"}
    both = [
        subprocess.Popen(
            [sys.executable, "-c", code], env={**os.environ, **place, "RANK": rank}, stdout=subprocess.PIPE
        )
        for rank in ("0", "1")
    ]
    assert [process.communicate(timeout=120)[0] for process in both] == [b"2 2.0 False\n"] * 2
