"""Processes: which one is this, sums over all of them, and the two ways to distribute a model (DDP, FSDP2).

One process without torchrun is the same code with a world of size 1. `python -m unmask.distributed` is torchrun that
ends with the exit code of its signal, and not with a traceback.
"""

from __future__ import annotations

import math
import os
import re
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import timedelta

import torch
import torch.distributed as dist
from torch import Tensor, nn

from .types import UserError


@dataclass(frozen=True)
class World:
    """One process among all."""

    rank: int
    size: int
    device: torch.device

    @property
    def main(self) -> bool:
        """The one that writes and prints."""
        return self.rank == 0

    def slots(self, total: int) -> range:
        """The contiguous share of range(total) that is this process's."""
        share, extra = divmod(total, self.size)
        start = self.rank * share + min(self.rank, extra)
        return range(start, start + share + (self.rank < extra))

    def sum(self, value: Tensor) -> Tensor:
        """Sum over all processes (float64 stays float64)."""
        if self.size > 1:
            value = value.to(self.device)
            dist.all_reduce(value)
        return value

    def barrier(self) -> None:
        """Wait for all processes."""
        if self.size > 1:
            dist.barrier()

    def first(self) -> _First:
        """`with world.first():` - the main process goes through before the others (to fill a shared cache)."""
        return _First(self)


class _First:
    def __init__(self, world: World) -> None:
        self.world = world

    def __enter__(self) -> None:
        if not self.world.main:
            self.world.barrier()

    def __exit__(self, *error: object) -> None:
        if self.world.main and error[0] is None:
            self.world.barrier()


def launched() -> bool:
    """Whether torchrun started this process: it sends signals on, waits, and takes exit codes but 0 for failures."""
    return "TORCHELASTIC_RUN_ID" in os.environ


def pick_device(name: str, local_rank: int = 0) -> torch.device:
    """'auto' is CUDA, then Apple's GPU, then the CPU; anything else is a device name of torch."""
    if name == "auto":
        if torch.cuda.is_available():
            return torch.device("cuda", local_rank)
        return torch.device("mps") if torch.backends.mps.is_available() else torch.device("cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise UserError(f"unknown device {name!r}; use auto, cpu, cuda or cuda:0") from None
    if device.type == "cuda" and device.index is None:
        device = torch.device("cuda", local_rank)
    try:
        torch.zeros(1, device=device).item()
    except (RuntimeError, AssertionError, NotImplementedError):  # each back end raises something else
        raise UserError(f"the device {name!r} cannot be used here; use auto or cpu") from None
    return device


@contextmanager
def world(device: str = "auto") -> Iterator[World]:
    """Join the processes that torchrun started, or be alone."""
    size = int(os.environ.get("WORLD_SIZE", "1"))
    local_rank = int(os.environ.get("LOCAL_RANK", "0"))
    place = pick_device(device, local_rank)
    if size == 1:
        yield World(0, 1, place)
        return
    if place.type == "cuda":
        torch.cuda.set_device(place)
    with _explained(), _joined("nccl" if place.type == "cuda" else "gloo"):
        yield World(dist.get_rank(), dist.get_world_size(), place)


def connect(backend: str, attempts: int = 3) -> None:
    """Join the other processes, all of them or none.

    After a restart of torchrun the processes sometimes do not reach each other, and would wait for half an hour. All of
    them meet at the store that torchrun keeps before and after an attempt, so that they give up and try again together.
    """
    store, rank, size = next(dist.rendezvous("env://"))
    default = dist.distributed_c10d._get_default_timeout(dist.Backend(backend))
    for attempt in range(attempts):
        meet(store, f"ready-{attempt}", size)
        dist.distributed_c10d._world.group_count = 0  # groups are named by their number, which must agree everywhere
        part = dist.PrefixStore(f"connect-{attempt}", store)
        try:
            limit = timedelta(seconds=CONNECT)
            dist.init_process_group(backend, store=part, rank=rank, world_size=size, timeout=limit)
        except RuntimeError:
            if attempt + 1 == attempts:
                raise
            continue
        if meet(store, f"connected-{attempt}", size, CONNECT + 10):
            break
        dist.destroy_process_group()
    else:
        raise UserError(f"the {size} processes cannot reach each other; check the network between them, and {CONTINUE}")
    dist.distributed_c10d._set_pg_timeout(default, dist.group.WORLD)


def meet(store: dist.Store, name: str, size: int, seconds: float = math.inf) -> bool:
    """Wait until every process is here, for so long; whether they are."""
    store.add(name, 1)
    begin = time.monotonic()
    while store.add(name, 0) < size:
        if time.monotonic() - begin > seconds:
            return False
        time.sleep(0.05)
    return True


@contextmanager
def _joined(backend: str) -> Iterator[None]:
    connect(backend)
    pulse = Pulse(dist.distributed_c10d._get_default_store(), dist.get_rank(), dist.get_world_size())
    try:
        yield
    finally:
        pulse.stop()
        dist.destroy_process_group()


CONTINUE = "run the same command again; a training continues from its last checkpoint"


@contextmanager
def _explained() -> Iterator[None]:
    """One sentence where another process was killed: what a back end raises then is a RuntimeError, or its words."""
    try:
        yield
    except RuntimeError as error:
        if not isinstance(error, dist.DistError) and not LOST.search(str(error)):
            raise
        reason = re.sub(r"^\[[^]]*\]\s*", "", " ".join(str(error).split())).split(". ")[0][:100]
        raise UserError(f"the connection to another process was lost ({reason}); {CONTINUE}") from None


class Pulse:
    """Notices that another process does not answer any more, and ends this one: torchrun then ends all of them.

    Collectives would wait for it for half an hour, and a shorter limit for them would end processes that wait for one
    that is busy. So a thread of every process counts up in the store that torchrun keeps, and watches the count of the
    process after it. It measures in beats of its own: a machine that sleeps or is overloaded stops both.
    """

    def __init__(self, store: dist.Store, rank: int, size: int) -> None:
        self.rank, self.peer, self.size = rank, (rank + 1) % size, size
        self.limit = int(os.environ.get("UNMASK_STALL_SECONDS", "20"))
        self._store, self._left = store.clone(), threading.Event()  # type: ignore[attr-defined]
        self._thread = threading.Thread(target=self._run, name="unmask-pulse", daemon=True)
        if self.limit:
            self._thread.start()

    def stop(self) -> None:
        """Say that this process leaves as it should."""
        self._left.set()
        if self.limit:
            self._thread.join(5.0)

    def _run(self) -> None:
        last, silent = 0, 0
        try:
            while not self._left.wait(BEAT):
                self._store.add(f"pulse-{self.rank}", 1)
                count = self._store.add(f"pulse-{self.peer}", 0)
                silent = silent + 1 if 0 < count == last else 0
                last = count
                if silent >= self.limit and count < LEFT:
                    _end(f"process {self.peer} of {self.size} has not answered for {silent} seconds")
            self._store.add(f"pulse-{self.rank}", LEFT)
        except RuntimeError:  # the store went with torchrun, or with its machine
            if not self._left.is_set():
                _end("torchrun, or the machine it ran on, does not answer any more")


BEAT = 1.0  # seconds
CONNECT = 30.0  # seconds of an attempt to connect: on one machine it takes none
LEFT = 1 << 40  # in the count of a process that has left
LOST = re.compile(r"gloo|connection (closed|reset|refused)|broken pipe|nccl|timed out", re.IGNORECASE)


def _end(why: str) -> None:
    """End this process from any thread: the main one may be waiting for an answer that never comes."""
    sys.stderr.write(f"unmask: {why}; {CONTINUE}\n")
    sys.stderr.flush()
    os._exit(2)


def wrap(model: nn.Module, strategy: str, world: World) -> nn.Module:
    """The module to call in training: the model itself, or in DDP, or sharded in place by FSDP2."""
    if strategy == "fsdp":
        return shard(model, world)
    if world.size == 1:
        return model
    ids = [world.device.index] if world.device.type == "cuda" else None
    return nn.parallel.DistributedDataParallel(model, device_ids=ids, gradient_as_bucket_view=True)


def shard(model: nn.Module, world: World) -> nn.Module:
    """FSDP2: each block a unit, then the rest. Methods other than forward that touch weights are registered."""
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.fsdp import fully_shard, register_fsdp_forward_method

    if not dist.is_initialized():
        raise UserError("train.strategy=fsdp needs torchrun: torchrun --nproc-per-node N -m unmask train ...")
    mesh = init_device_mesh(world.device.type, (world.size,))
    backbone = model.backbone
    assert isinstance(backbone, nn.Module)
    for block in backbone.blocks:  # type: ignore[union-attr]
        fully_shard(block, mesh=mesh)
    fully_shard(backbone, mesh=mesh)
    for name in ("head", "condition"):
        register_fsdp_forward_method(backbone, name)
    return model


def reshard(model: nn.Module) -> None:
    """Put gathered weights of an FSDP model back into shards, so that its parameters are what is stored."""
    from torch.distributed.fsdp import FSDPModule

    for module in model.modules():
        if isinstance(module, FSDPModule):
            module.reshard()


def launch() -> None:
    """torchrun, which ends with 128 + its signal; the processes have saved and said so before."""
    from torch.distributed.elastic.multiprocessing import SignalException
    from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
    from torch.distributed.run import main

    try:
        main()
    except SignalException as signal:
        sys.exit(128 + int(signal.sigval))
    except ChildFailedError as error:  # each process has said what was wrong
        code = next(iter(error.failures.values())).exitcode
        sys.exit(code if code > 0 else 128 - code)


if __name__ == "__main__":
    launch()
