"""Small trainings that can be killed: forked from this process, which has imported torch, so that each starts at once.

This process itself runs no network, so that its threads are not missing in a fork.
"""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ledger import ROOT, hold

STEPS = 24
NETWORK = ["model.hidden_dim=16", "model.n_blocks=1", "model.n_heads=2", "model.cond_dim=8", "model.dropout=0.1"]
TRAINING = [
    f"train.steps={STEPS}", "train.batch_size=4", "train.micro_batch_size=3", "train.warmup=5", "train.log_every=1",
    "train.checkpoint_every=2", "train.keep_last=2", "eval.every=6", "eval.rows=4", "eval.draws=1",
]  # fmt: skip
SENTENCE = "one two three four five six seven eight.\n"
CLOCKED = ("tokens_per_second", "core_seconds", "step_seconds", "seconds")  # figures that depend on the clock


def corpus(folder: Path, lines: int = 1500) -> Path:
    """A text that is easy to learn; the same bytes and the same time stamp everywhere."""
    path = folder / "text.txt"
    if not path.exists():
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text("".join(f"{i % 97} {SENTENCE}" for i in range(lines)), encoding="utf-8")
        os.utime(path, (1e9, 1e9))
    return path


def arguments(text: Path, out: Path, *more: str, cache: Path | None = None) -> list[str]:
    """`unmask train` on a text."""
    data = [f"data.source={text}", f"data.cache={cache or out.parent / 'cache'}", "data.tokenizer=bytes"]
    settings = [*data, "data.length=16", *NETWORK, *TRAINING, *more]
    return ["train", "tiny", *settings, "--out", str(out), "--quiet"]


def environment(**more: str) -> dict[str, str]:
    """For processes: this tree, one thread."""
    return {**os.environ, "PYTHONPATH": str(ROOT / "src"), "OMP_NUM_THREADS": "1", **more}


@dataclass
class Ended:
    """How a process ended; `code` is negative for a signal."""

    code: int
    said: str
    seconds: float

    @property
    def sentence(self) -> str:
        """The last line of what it said."""
        return (self.said.strip().splitlines() or [""])[-1]


def preload() -> None:
    """Import what a training needs, before the first fork."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch._dynamo

    import unmask.cli
    import unmask.cli.sample
    import unmask.training.text

    assert unmask.training.text and torch._dynamo
    torch.set_num_threads(1)


def fork(args: list[str], said: Path, before: Callable[[], None] = lambda: None) -> int:
    """`unmask ARGS` in a forked process, both streams into a file; `before` runs in it first. Gives its id."""
    from unmask import cli

    child = os.fork()
    if child:
        return child
    code = 70
    try:
        handle = os.open(said, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
        os.dup2(handle, 1)
        os.dup2(handle, 2)
        sys.argv = ["unmask", *args]
        before()
        cli.main()
        code = 0
    except SystemExit as stop:
        code = int(stop.code or 0)
    except BaseException:
        import traceback

        traceback.print_exc()
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)


def wait(child: int, said: Path, seconds: float = 120.0) -> Ended:
    """Wait for a forked process; after `seconds` it is killed, and its code is that of the alarm."""
    begun, late = time.monotonic(), False
    while True:
        done, status = os.waitpid(child, os.WNOHANG)
        if done:
            break
        if time.monotonic() - begun > seconds and not late:
            os.kill(child, signal.SIGKILL)
            late = True
        time.sleep(0.005)
    code = -signal.SIGALRM if late else os.waitstatus_to_exitcode(status)
    text = said.read_text(encoding="utf-8", errors="replace") if said.exists() else ""
    return Ended(code, text, time.monotonic() - begun)


def ran(args: list[str], said: Path, before: Callable[[], None] = lambda: None) -> Ended:
    """`unmask ARGS` in a forked process, to its end."""
    return wait(fork(args, said, before), said)


def undisturbed(folder: Path, text: Path, before: Callable[[], None] = lambda: None) -> tuple[Path, float]:
    """A training that nobody disturbs, with which the others are compared: its run and its seconds."""
    out = folder / "reference" / "run"
    ended = ran(arguments(text, out), folder / "said", before)
    hold(ended.code == 0, f"the undisturbed training failed: {ended.said}")
    return out, ended.seconds


def launched(args: list[str], seconds: float = 240.0, **more: str) -> Ended:
    """`unmask ARGS` in a new process, to its end."""
    begun = time.monotonic()
    command = [sys.executable, "-m", "unmask", *args]
    try:
        done = subprocess.run(command, env=environment(**more), capture_output=True, text=True, timeout=seconds)
    except subprocess.TimeoutExpired as late:
        return Ended(-signal.SIGALRM, (late.stderr or b"").decode(errors="replace"), seconds)
    return Ended(done.returncode, done.stdout + done.stderr, time.monotonic() - begun)


# -- dying at a chosen moment ------------------------------------------------------------------------------------------

OPERATIONS = ("open", "os.rename", "os.remove", "os.mkdir", "os.rmdir", "os.chmod", "os.truncate", "shutil.copymode")


def watch(folder: Path, moment: int, note: Path | None = None) -> None:
    """Die as from kill -9 at operation number `moment` on a file below `folder`; a `note` gets the number of all."""
    seen, prefix = [0], str(folder)

    def hook(event: str, given: tuple[Any, ...]) -> None:
        if event not in OPERATIONS or not given or not str(given[0]).startswith(prefix):
            return
        if event == "open" and not (len(given) > 2 and given[2] & (os.O_WRONLY | os.O_RDWR | os.O_CREAT)):
            return
        seen[0] += 1
        if seen[0] == moment:
            os.kill(os.getpid(), signal.SIGKILL)
        if note is not None:
            os.pwrite(counter, b"%8d" % seen[0], 0)

    counter = -1 if note is None else os.open(note, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    sys.addaudithook(hook)


def torn(size: int) -> None:
    """Die in the middle of the first write that makes any file longer than `size` bytes."""
    signal.signal(signal.SIGXFSZ, signal.SIG_DFL)
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, resource.RLIM_INFINITY))


# -- what a run must be ------------------------------------------------------------------------------------------------


def journal(out: Path) -> list[dict[str, Any]]:
    """The log without the figures that depend on the clock."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text(encoding="utf-8").splitlines()]
    return [{key: value for key, value in line.items() if key not in CLOCKED} for line in lines]


def intact_steps(out: Path) -> list[int]:
    """The steps that have a checkpoint; each of them is complete, or it is lost."""
    from unmask.hub import checkpoint

    steps = checkpoint.steps(out)
    for step in steps:
        checkpoint.verify(checkpoint.step_folder(out, step))
    return steps


def same_end(out: Path, reference: Path, steps: int = STEPS) -> None:
    """Raise unless a run ended with the bits of the one that nobody disturbed."""
    from unmask.hub import checkpoint

    ours, theirs = (checkpoint.step_folder(path, steps) for path in (out, reference))
    for name in ("model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json"):
        hold((ours / name).read_bytes() == (theirs / name).read_bytes(), f"{ours / name} has other bits")
    hold(intact_steps(out) == intact_steps(reference), f"other checkpoints: {intact_steps(out)}")
    hold(journal(out) == journal(reference), "the log differs")
    left = [path for path in out.rglob(".*") if path.name != ".lock"]
    hold(not left, f"leftovers: {left}")
