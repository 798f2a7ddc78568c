"""Runs on several processes, and runs that are stopped or judged by script."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch

from support import helpers
from unmask.training.step import Trainer
from unmask.types import Likelihood

SETTINGS = [
    "data.tokenizer=bytes",
    "data.length=32",
    "model.dropout=0",
    "model.hidden_dim=32",
    "objective.loss=bound",
    "train.optimizer=adamw",
    "train.embeddings=random",
    "train.ema=0.99",
    "train.lr=1e-3",
    "train.steps=4",
    "train.batch_size=5",
    "train.log_every=1",
    "train.checkpoint_every=2",
    "eval.every=2",
    "eval.rows=9",
    "eval.draws=2",
]


def run(out: Path, processes: int, *extra: str, torchrun: bool = False) -> list[dict]:
    """`unmask train` on some processes; returns its journal."""
    arguments = ["train", "tiny", *SETTINGS, *extra, "--out", str(out), "--quiet"]
    if torchrun:
        launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(processes)]
        command = [*launcher, "-m", "unmask", *arguments]
        env = {**os.environ, "OMP_NUM_THREADS": "1"}
        done = subprocess.run(command, env=env, capture_output=True, text=True, timeout=120)
        assert done.returncode == 0, done.stderr
    elif processes > 1:
        helpers.run_together(processes, arguments, out.parent / "said.txt")
    else:
        ran = helpers.run(*arguments)
        assert ran.code == 0, ran.err
    return [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]


def figures(journal: list[dict], key: str) -> torch.Tensor:
    return torch.tensor([line[key] for line in journal if key in line], dtype=torch.float64)


def at_step(n: int, number: signal.Signals) -> Callable[..., Any]:
    """A step that sends this process a signal when it is the n-th."""
    original = Trainer.step

    def step(self: Trainer, data: Any, step: int, stop: bool = False) -> Any:
        if step == n:
            os.kill(os.getpid(), number)
        return original(self, data, step, stop)

    return step


def scripted(values: list[float]) -> Callable[..., Likelihood]:
    remaining = iter(values)
    return lambda *given, **named: Likelihood(next(remaining), 1, None, None, None)
