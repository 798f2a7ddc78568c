"""Several processes: one of them killed or stopped under DDP and FSDP, elastic restarts, two nodes with a network."""

from __future__ import annotations

import os
import random
import shutil
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from ledger import Ledger, hold
from trainings import STEPS, arguments, corpus, environment, intact_steps, journal

MINUTE = 60.0
LAUNCH = [sys.executable, "-m", "torch.distributed.run"]
LONG = ["train.steps=100000", "eval.every=0", "train.checkpoint_every=20", "train.log_every=10"]


def run(ledger: Ledger) -> None:
    """Each fault at a random moment, for both strategies."""
    text = corpus(ledger.work)
    for number, rng in ledger.cases(8, 2):
        strategy, fault = ("ddp", "fsdp")[number % 2], ("killed", "stopped (SIGSTOP)")[number // 2 % 2]
        if ledger.quick:
            fault = ("killed", "stopped (SIGSTOP)")[number % 2]
        with ledger.case(f"a process of two {fault}: all end within a minute, and it continues", number, strategy):
            _fault(ledger.work / f"case-{number}", strategy, fault, rng, text)
    for number, rng in ledger.cases(4, 1):
        strategy = ("ddp", "fsdp")[number % 2]
        with ledger.case("a process of two killed under torchrun --max-restarts: it restarts", number, strategy):
            _elastic(ledger.work / f"elastic-{number}", strategy, rng, text)
    for number, _ in ledger.cases(2, 1):
        strategy = ("ddp", "fsdp")[number % 2]
        with ledger.case("two nodes in network namespaces, with the documented command", number, strategy):
            _nodes(ledger, ledger.work / f"nodes-{number}", strategy, text)


def _command(text: Path, out: Path, strategy: str, *more: str) -> list[str]:
    return ["-m", "unmask", *arguments(text, out, f"train.strategy={strategy}", *more)]


def _standalone(*more: str) -> list[str]:
    return [*LAUNCH, "--standalone", "--nproc-per-node", "2", *more]


@contextmanager
def _process(command: list[str], said: Path) -> Iterator[subprocess.Popen[bytes]]:
    """A process in a group of its own, which ends with the block."""
    with said.open("wb") as file:
        process = subprocess.Popen(command, env=environment(), stdout=file, stderr=file, start_new_session=True)
    try:
        yield process
    finally:
        for child in workers(process.pid):
            with suppress(ProcessLookupError):
                os.kill(child, signal.SIGKILL)
        with suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def workers(parent: int) -> list[int]:
    """The processes that a process started, and those that they started."""
    children = []
    for folder in Path("/proc").iterdir():
        if folder.name.isdecimal():
            try:
                fields = (folder / "stat").read_text().rpartition(")")[2].split()
            except OSError:
                continue
            if int(fields[1]) == parent and fields[0] != "Z":
                children += [int(folder.name), *workers(int(folder.name))]
    return sorted(children)


def _until(ready: Callable[[], object], process: subprocess.Popen[bytes], said: Path, seconds: float = 240.0) -> None:
    deadline = time.monotonic() + seconds
    while not ready():
        hold(process.poll() is None, f"it ended before: {said.read_text(errors='replace')[-2000:]}")
        hold(time.monotonic() < deadline, f"nothing happened for {seconds:.0f} s: {said}")
        time.sleep(0.05)


def _steps(out: Path) -> int:
    from unmask.hub import checkpoint

    return max(checkpoint.steps(out), default=0)


def _ours(said: Path) -> str:
    """Our sentence; a traceback through our code is none."""
    text = said.read_text(errors="replace")
    # torchrun prints a table of its own; a traceback of a process of ours has a line of this package
    hold("src/unmask" not in text and "site-packages/unmask" not in text, f"a traceback of ours: {text[-3000:]}")
    return text


def _fault(folder: Path, strategy: str, fault: str, rng: random.Random, text: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    out, said = folder / "run", folder / "said"
    with _process([*_standalone(), *_command(text, out, strategy, *LONG)], said) as process:
        _until(lambda: _steps(out) >= 20, process, said)
        time.sleep(rng.uniform(0, 2))
        victim = rng.choice(workers(process.pid)[:2])
        begun = time.monotonic()
        os.kill(victim, signal.SIGKILL if fault == "killed" else signal.SIGSTOP)
        try:
            process.wait(2 * MINUTE)
        except subprocess.TimeoutExpired:
            hold(False, "it did not end in two minutes")
        seconds = time.monotonic() - begun
        hold(process.returncode != 0, "it ended as if nothing had happened")
    hold(seconds <= MINUTE, f"it ended after {seconds:.0f} s")
    words = _ours(said)
    hold("unmask: " in words, f"no sentence of ours: {words[-2000:]}")
    reached = intact_steps(out)[-1]
    goal = reached + 10
    again = [*LONG, f"train.steps={goal}"]
    with _process([*_standalone(), *_command(text, out, strategy, *again)], said) as process:
        process.wait(4 * MINUTE)
        hold(process.returncode == 0, f"it does not continue: {said.read_text(errors='replace')[-2000:]}")
    hold(intact_steps(out)[-1] == goal, "it did not come to its end")
    logged = [line["step"] for line in journal(out) if "loss" in line]
    hold(logged == sorted({*range(10, goal, 10), goal}), f"steps are missing in the log, or twice: {logged}")


def _elastic(folder: Path, strategy: str, rng: random.Random, text: Path) -> None:
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    out, said = folder / "run", folder / "said"
    settings = ["train.steps=2000", "eval.every=0", "train.checkpoint_every=20", "train.log_every=10"]
    with _process([*_standalone("--max-restarts", "3"), *_command(text, out, strategy, *settings)], said) as process:
        _until(lambda: _steps(out) >= 20, process, said)
        time.sleep(rng.uniform(0, 1))
        before = workers(process.pid)[:2]
        os.kill(rng.choice(before), signal.SIGKILL)
        _until(lambda: workers(process.pid) and not set(before) & set(workers(process.pid)), process, said)
        reached = _steps(out)
        _until(lambda: _steps(out) > reached, process, said)
    _ours(said)
    intact_steps(out)


# -- two nodes ---------------------------------------------------------------------------------------------------------


def _ip(*args: str) -> None:
    subprocess.run(["ip", *args], check=True, capture_output=True)


@contextmanager
def _network() -> Iterator[list[list[str]]]:
    """What starts a command on either of two nodes: network namespaces with names and a cable between them."""
    names = [f"unmask-soak-{side}-{os.getpid()}" for side in "ab"]
    folders = [Path("/etc/netns") / name for name in names]  # `ip netns exec` puts these files over those in /etc
    try:
        for name, folder in zip(names, folders, strict=True):
            _ip("netns", "add", name)
            folder.mkdir(parents=True)
            (folder / "hosts").write_text("127.0.0.1 localhost\n10.77.0.1 node-a\n10.77.0.2 node-b\n")
        _ip("link", "add", "soak-a", "netns", names[0], "type", "veth", "peer", "name", "soak-b", "netns", names[1])
        starts = []
        for side, name in zip("ab", names, strict=True):
            inside = ["netns", "exec", name, "ip"]
            _ip(*inside, "addr", "add", f"10.77.0.{1 + (side == 'b')}/24", "dev", f"soak-{side}")
            _ip(*inside, "link", "set", f"soak-{side}", "up")
            _ip(*inside, "link", "set", "lo", "up")
            named = ["unshare", "--uts", "sh", "-c", f'hostname node-{side}; exec "$@"', "sh"]
            starts.append(["ip", "netns", "exec", name, *named])
        yield starts
    finally:
        for name, folder in zip(names, folders, strict=True):
            subprocess.run(["ip", "netns", "del", name], capture_output=True)
            shutil.rmtree(folder, ignore_errors=True)


def _nodes(ledger: Ledger, folder: Path, strategy: str, text: Path) -> None:
    if shutil.which("ip") is None or os.geteuid() != 0:
        ledger.notes.append("two nodes: network namespaces need root and iproute2; both ran on one host instead")
        _both(folder, strategy, text, [[], []], "localhost")
        return
    with _network() as starts:
        _both(folder, strategy, text, starts, "node-a")


def _both(folder: Path, strategy: str, text: Path, prefixes: list[list[str]], first: str) -> None:
    """The command of docs/distributed.md on both nodes."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    out = folder / "run"
    with socket.socket() as probe:
        probe.bind(("", 0))
        port = probe.getsockname()[1]
    processes, files = [], []
    try:
        for rank, prefix in enumerate(prefixes):
            places = ["--rdzv-backend", "c10d", "--rdzv-endpoint", f"{first}:{port}", "--rdzv-id", "docs"]
            nodes = ["--nnodes", "2", "--node-rank", str(rank), "--nproc-per-node", "1"]
            command = [*prefix, *LAUNCH, *nodes, *places, *_command(text, out, strategy)]
            files.append(folder / f"said-{rank}")
            with files[-1].open("wb") as file:
                processes.append(subprocess.Popen(command, env=environment(), stdout=file, stderr=file))
        for process, said in zip(processes, files, strict=True):
            process.wait(4 * MINUTE)
            hold(process.returncode == 0, f"a node failed: {said.read_text(errors='replace')[-3000:]}")
    finally:
        for process in processes:
            process.kill()
            process.wait()
    hold(intact_steps(out)[-1] == STEPS, "it did not come to its end")
