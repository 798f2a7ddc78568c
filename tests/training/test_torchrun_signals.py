"""SIGTERM under torchrun: one sentence, exit code 0 or 143, no traceback of ours, and the run is intact."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from support.helpers import text_file
from support.runs import SETTINGS
from unmask.hub import checkpoint

LAUNCHERS = {"torchrun": "torch.distributed.run", "ours": "unmask.distributed"}


def children(process: int) -> list[int]:
    done = subprocess.run(["pgrep", "-P", str(process)], capture_output=True, text=True)
    return [int(line) for line in done.stdout.split()]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("launcher", "strategy", "who", "code"),
    [
        ("ours", "ddp", "launcher", 143),
        ("ours", "fsdp", "all", 143),
        ("torchrun", "ddp", "rank", 0),
        ("torchrun", "fsdp", "ranks", 0),
        ("torchrun", "ddp", "launcher", 1),  # the traceback of torchrun comes after our sentence
    ],
)
def test_a_signal_ends_with_our_sentence(tmp_path: Path, launcher: str, strategy: str, who: str, code: int) -> None:
    out, err = tmp_path / "r", tmp_path / "err"
    more = ["train.steps=100000", "train.batch_size=4", "eval.every=0", "train.checkpoint_every=100000"]
    words = ["train", "tiny", f"data.source={text_file()}", *SETTINGS, *more, f"train.strategy={strategy}"]
    start = [sys.executable, "-m", LAUNCHERS[launcher], "--standalone", "--nproc-per-node", "2", "-m", "unmask"]
    command = [*start, *words, "--out", str(out), "--quiet"]
    with err.open("w") as said:
        process = subprocess.Popen(command, stderr=said, env={**os.environ, "OMP_NUM_THREADS": "1"})
        deadline = time.monotonic() + 180
        while not (out / "log.jsonl").exists() and process.poll() is None and time.monotonic() < deadline:
            time.sleep(0.2)
        ranks = children(process.pid)
        assert len(ranks) == 2, err.read_text()
        for each in {"launcher": [process.pid], "rank": ranks[1:], "ranks": ranks, "all": [process.pid, *ranks]}[who]:
            os.kill(each, signal.SIGTERM)
        assert process.wait(60) == code, err.read_text()
    text = err.read_text()
    [step] = checkpoint.steps(out)
    assert text.count(f"stopped at step {step} and saved; run the same command again to continue") == 1
    if code != 1:
        assert "Traceback" not in text and "Error" not in text
    checkpoint.verify(checkpoint.step_folder(out, step))
