"""Threads beside the one that owns the networks.

OpenMP keeps a team of workers for every thread that ever asked for one. As soon as there are more of them in a process
than cores, GNU's implementation lets workers sleep between two operations instead of spinning, and a small network
becomes up to 1.5 times slower. So only the engine keeps a team: what prepares requests stays on one core, and what
asks a network beside the engine does so on a thread that ends.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, TypeVar

import torch

T = TypeVar("T")


_setting = threading.Lock()
_own = threading.local()
_asking: weakref.WeakSet[torch.nn.Module] = weakref.WeakSet()  # networks that were made interruptible


def use_cores(count: int) -> None:
    """So many workers for what this thread does, whatever others are told."""
    with _setting:
        torch.set_num_threads(count)
        torch.get_num_threads()  # a thread takes the number for itself when it first looks, and may look late


def briefly(
    call: Callable[..., T], *given: Any, threads: int | None = None, check: Callable[[], None] | None = None
) -> T:
    """Do it on a thread of its own that takes its team with it when it ends; an error is raised here.

    `check` is called before it begins and before each call of an `interruptible` network, and ends it by raising.
    """
    result: list[T] = []
    errors: list[BaseException] = []

    def work() -> None:
        if threads is not None:
            use_cores(threads)
        try:
            if check is not None:
                check()
                _own.check = check
            result.append(call(*given))
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=work, name="unmask-briefly", daemon=True)
    thread.start()
    thread.join()
    if errors:
        raise errors[0]
    return result[0]


def interruptible(model: torch.nn.Module) -> None:
    """Let every call of the model's networks first ask the check of the thread that it is on, if it has one."""

    def ask(*_: Any) -> None:
        check = getattr(_own, "check", None)
        if check is not None:
            check()

    for network in model.children():
        if network not in _asking:
            network.register_forward_pre_hook(ask)
            _asking.add(network)
