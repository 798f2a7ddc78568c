"""Threads beside the engine: only the engine keeps workers, whatever the others do."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import pytest
import torch

from support.serving import diffusion_lm, running
from unmask.errors import UserError
from unmask.serve.threads import WORKER, run_in_thread, use_cores


def in_thread(call):
    found = []
    thread = threading.Thread(target=lambda: found.append(call()))
    thread.start()
    thread.join()
    return found[0]


@pytest.fixture(autouse=True)
def as_before():
    before = torch.get_num_threads()
    yield
    in_thread(lambda: use_cores(before))  # what threads to come begin with


def test_every_thread_has_its_own_number_of_cores():
    told, looked = threading.Event(), threading.Event()

    def first() -> int:
        use_cores(3)
        told.set()
        looked.wait(10)
        torch.ones(1 << 18).exp()  # a thread that only now looks for the number must not find the other's
        return torch.get_num_threads()

    def second() -> int:
        told.wait(10)
        use_cores(1)
        looked.set()
        return torch.get_num_threads()

    main = torch.get_num_threads()
    found = {}
    threads = [threading.Thread(target=lambda own=own: found.update({own.__name__: own()})) for own in (first, second)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == {"first": 3, "second": 1} and torch.get_num_threads() == main


def test_work_on_a_thread_that_ends():
    assert run_in_thread(lambda a, b: (a + b, threading.current_thread().name), 1, 2) == (3, WORKER)
    assert run_in_thread(torch.get_num_threads, threads=2) == 2
    with pytest.raises(UserError, match="no such thing"):
        run_in_thread(_refuse)
    assert all(thread.name != WORKER for thread in threading.enumerate())


def _refuse() -> None:
    raise UserError("no such thing")


@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="threads are counted in /proc")
def test_workers_go_with_their_thread():
    code = """
import os, time, torch
from unmask.serve.threads import run_in_thread, use_cores
count = lambda: len(os.listdir("/proc/self/task"))
use_cores(4)  # torch has another pool, too, which stays
before = count()
def work():
    torch.ones(1 << 20).exp().sum()
    return count()
during = run_in_thread(work, threads=4)
end = time.monotonic() + 20
while count() != before and time.monotonic() < end:
    time.sleep(0.01)
print(before, during, count())
"""
    env = {**os.environ, "OMP_NUM_THREADS": "1"}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=env, timeout=120)
    before, during, after = map(int, told.stdout.split())
    assert during == before + 4 and after == before, told.stderr  # the thread itself and three workers


def test_only_the_engine_uses_many_cores(monkeypatch):
    from unmask.serve import api, engine

    seen: dict[str, set[int]] = {}

    def told(name: str, call):
        def and_tell(*given, **more):
            seen.setdefault(name, set()).add(torch.get_num_threads())
            return call(*given, **more)

        return and_tell

    monkeypatch.setattr(api, "prepare", told("prepare", api.prepare))
    monkeypatch.setattr(api, "_score", told("score", api._score))
    monkeypatch.setattr(engine.Engine, "_step", told("engine", engine.Engine._step))
    use_cores(2)
    with running({"tiny": diffusion_lm()}) as server:
        for _ in range(3):
            assert server.post("/v1/infill", {"prompt": "ab", "length": 8}).status == 200
            assert server.post("/v1/score", {"text": "ab"}).status == 200
            assert server.post("/v1/infill", {"text": "ab {{1-2}}"}).status == 200
    assert seen == {"engine": {2}, "prepare": {1, 2}, "score": {2}}  # ranged gaps ask the network, too
