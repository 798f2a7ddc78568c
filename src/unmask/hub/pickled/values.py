"""What a program handles beside plain values: names and records of calls, on which nothing can be run."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any


class Damaged(Exception):
    """The file does not hold what it should; `load` makes a sentence of it."""


@dataclass(frozen=True)
class Name:
    """What a file calls by name; it is never looked up."""

    module: str
    name: str

    def __str__(self) -> str:
        return f"{self.module}.{self.name}"


@dataclass(eq=False)
class Inert:
    """What a call would have made: the record of it, on which nothing can be run."""

    name: str
    args: Any = ()
    state: Any = None
    items: list[Any] = field(default_factory=list)  # what was to be put into it


def is_count(value: Any) -> bool:
    """Whether a value can be a size, an offset or a stride."""
    return isinstance(value, int) and not isinstance(value, bool) and 0 <= value < 1 << 62
