"""SIGTERM inside a step of many micro-batches: it acts between two of them, and nothing is lost."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from support.helpers import run, settings
from unmask.hub import checkpoint
from unmask.training import step as training_step
from unmask.training import text

STEPS, MICROS = 5, 12
QUICK = [
    f"train.batch_size={MICROS}", "train.micro_batch_size=1", "model.dropout=0.2", f"train.steps={STEPS}",
    "eval.every=2", "eval.rows=4", "eval.draws=1", "train.log_every=1", "train.checkpoint_every=100",
]  # fmt: skip


def arguments(out: Path) -> list[str]:
    return ["train", "tiny", *settings(*QUICK), "--out", str(out)]


def signalled(step: int, micro: int, calls: list[tuple[int, int]]) -> Callable[..., Any]:
    """Batches as they are, and SIGTERM with one of them; notes which were asked for after it."""

    def cut(config: Any, rows: Any, slots: range, keys: Any) -> Any:
        if (keys.step, slots.start) >= (step, micro):
            calls.append((keys.step, slots.start))
        if (keys.step, slots.start) == (step, micro):
            os.kill(os.getpid(), signal.SIGTERM)
        return training_step.text_batch(config, rows, slots, keys)

    return cut


def bits(out: Path) -> dict[str, bytes]:
    last = checkpoint.step_folder(out, STEPS)
    return {path.name: path.read_bytes() for path in last.glob("*.safetensors")}


def test_a_step_ends_between_micro_batches_and_is_done_again_to_the_same_bits(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert run(*arguments(tmp_path / "whole")).code == 0
    out = tmp_path / "r"
    for step, micro in ((0, 3), (3, 0), (3, MICROS - 2), (4, 1)):
        calls: list[tuple[int, int]] = []
        with monkeypatch.context() as patched:
            patched.setattr(text, "text_batch", signalled(step, micro, calls))
            stopped = run(*arguments(out))
        assert stopped.code == 130
        assert len(calls) <= 2, "the signal waits for one micro-batch at most"
        said = f"stopped at step {step} and saved" if step else "stopped in the first step, nothing to save yet"
        assert f"{said}; run the same command again to continue" in stopped.err
        assert checkpoint.steps(out)[-1:] == ([step] if step else [])
    assert run(*arguments(out)).code == 0
    assert len(bits(out)) == 3 and bits(out) == bits(tmp_path / "whole")


def test_progress_tells_of_micro_batches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    heard = []
    monkeypatch.setattr(
        "unmask.progress.Display.inside", lambda self, what: lambda *count: heard.append((what, *count))
    )
    assert run(*arguments(tmp_path / "r")).code == 0
    assert [count for what, *count in heard if what == "micro-batch"][:MICROS] == [
        [done, MICROS] for done in range(1, MICROS + 1)
    ]
    assert ("evaluating", 4, 4) in heard
