"""Trainings that are killed (kill -9) and continued: by the clock, at a file operation, in the middle of a write."""

from __future__ import annotations

import functools
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path

from ledger import Ledger, Lost, hold
from trainings import (
    arguments,
    corpus,
    environment,
    fork,
    intact_steps,
    preload,
    ran,
    same_end,
    torn,
    undisturbed,
    wait,
    watch,
)

KILLS = 2  # of each training
KINDS = {
    "by the clock, from the start of the process to its end": "clock",
    "by the clock, from the import of torch on": "launch",
    "at a random operation on a file (open, rename, delete)": "operation",
    "in the middle of a write to a checkpoint, a log or packed data": "write",
}


def run(ledger: Ledger) -> None:
    """100 kills: 50 trainings that are killed twice and then left alone."""
    preload()
    text, place, counted = corpus(ledger.work), ledger.work / "reference", ledger.work / "operations"
    shutil.rmtree(place, ignore_errors=True)
    reference, seconds = undisturbed(ledger.work, text, functools.partial(watch, place, 0, counted))
    sizes = [path.stat().st_size for path in reference.parent.rglob("*") if path.is_file()]
    limits = (seconds, int(counted.read_text()), max(sizes))
    names = dict(zip(KINDS.values(), KINDS, strict=True))
    for number, rng in ledger.cases(100 // KILLS, 10 // KILLS):
        kind = ("clock", "operation", "write", "operation", "launch")[number % 5]
        with ledger.case(names[kind], number, f"training {number}", KILLS):
            _killed_twice(ledger.work / f"case-{number}", kind, rng, text, reference, limits)


def _killed_twice(
    folder: Path, kind: str, rng: random.Random, text: Path, reference: Path, limits: tuple[float, int, int]
) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    out, said = folder / "run", folder.with_suffix(".said")
    command = arguments(text, out)
    folder.mkdir()
    newest = 0
    for _ in range(KILLS):
        _kill(kind, rng, folder, command, said, limits)
        hold("Traceback" not in said.read_text(errors="replace"), f"a traceback before the kill: {said}")
        steps = intact_steps(out)  # a folder with the name of a checkpoint is one
        hold(not newest or newest in steps or max(steps, default=0) > newest, f"checkpoint {newest} was lost: {steps}")
        newest = max(steps, default=0)
    ended = ran(command, said)
    hold(ended.code == 0, f"it does not continue: {ended.said}")
    same_end(out, reference)
    shutil.rmtree(folder)


def _kill(
    kind: str, rng: random.Random, folder: Path, command: list[str], said: Path, limits: tuple[float, int, int]
) -> None:
    """Start a training and kill it; one that was too fast is left as it is."""
    seconds, operations, size = limits
    if kind == "operation":
        ran(command, said, functools.partial(watch, folder, rng.randint(1, operations)))
    elif kind == "write":
        ran(command, said, functools.partial(torn, int(size ** rng.uniform(0.3, 1.0))))
    elif kind == "clock":
        child = fork(command, said)
        time.sleep(rng.uniform(0, seconds))
        os.kill(child, signal.SIGKILL)
        wait(child, said)
    elif kind == "launch":
        with said.open("wb") as file:
            arguments = [sys.executable, "-m", "unmask", *command]
            process = subprocess.Popen(arguments, env=environment(), stdout=file, stderr=file)
        time.sleep(rng.uniform(0, seconds + 4.0))
        process.kill()
        process.wait()
    else:
        raise Lost(kind)
