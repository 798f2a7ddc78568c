"""Threads beside the one that owns the networks.

OpenMP keeps a team of workers for every thread that ever used one. As soon as a process has more of them than cores,
GNU's implementation lets workers sleep between two operations instead of spinning, and a small network becomes up to
1.5 times slower. So only the engine keeps a team: the preparation of requests stays on one core, and network calls
outside the engine run on a thread that ends.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")
WORKER = "unmask-worker"

_setting = threading.Lock()
_local = threading.local()
_hooked: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # networks that were made interruptible


def use_cores(count: int) -> None:
    """Set the number of cores that this thread uses, regardless of other threads."""
    with _setting:
        torch.set_num_threads(count)
        torch.get_num_threads()  # a thread adopts the number when it first reads it, which may be late


def run_in_thread(
    call: Callable[..., T], *args: Any, threads: int | None = None, check: Callable[[], None] | None = None
) -> T:
    """Call a function on a new thread, which takes its OpenMP team with it when it ends; errors are raised here.

    `check` is called before the function and before each call of an `interruptible` network, and ends it by raising.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def target() -> None:
        if threads is not None:
            use_cores(threads)
        try:
            if check is not None:
                check()
                _local.check = check
            result.append(call(*args))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=target, name=WORKER, daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def interruptible(model: torch.nn.Module) -> None:
    """Let every call of the model's networks first run the check of its thread, if the thread has one."""

    def run_check(*_: Any) -> None:
        check = getattr(_local, "check", None)
        if check is not None:
            check()

    for network in model.children():
        if network not in _hooked:
            network.register_forward_pre_hook(run_check)
            _hooked.add(network)
