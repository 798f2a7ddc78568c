"""Processes: which one is this, sums over all of them, and the two ways to distribute a model (DDP, FSDP2).

One process without torchrun is the same code with a world of size 1. `python -m unmask.distributed` is torchrun that
ends with the exit code of its signal, and not with a traceback.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass

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
    dist.init_process_group("nccl" if place.type == "cuda" else "gloo")
    try:
        yield World(dist.get_rank(), dist.get_world_size(), place)
    finally:
        dist.destroy_process_group()


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
