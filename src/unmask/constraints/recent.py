"""What was compiled lately, kept up to a number of bytes: patterns may come from strangers."""

from __future__ import annotations

import functools
import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, ParamSpec, Protocol, TypeVar

MOST_BYTES = 64_000_000  # of the results of one function


class Sized(Protocol):
    """Something that knows how much memory it takes."""

    @property
    def nbytes(self) -> int:
        """Bytes."""


P = ParamSpec("P")
R = TypeVar("R", bound=Sized)


def recent(call: Callable[P, R]) -> Callable[P, R]:
    """Keep the latest results of a function of hashable arguments, and the last one however large it is."""
    kept: OrderedDict[Hashable, R] = OrderedDict()
    lock = threading.Lock()

    @functools.wraps(call)
    def recalled(*args: P.args, **more: P.kwargs) -> R:
        key: Any = (args, tuple(sorted(more.items())))
        with lock:
            if key in kept:
                kept.move_to_end(key)
                return kept[key]
        result = call(*args, **more)
        with lock:
            result = kept.setdefault(key, result)  # another thread may have been first
            while len(kept) > 1 and sum(one.nbytes for one in kept.values()) > MOST_BYTES:
                kept.popitem(last=False)
        return result

    return recalled
