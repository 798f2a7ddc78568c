"""Packages whose names are imported when they are first used: `unmask --help` need not wait for torch."""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Mapping
from typing import Any


def names_of(package: str, rooms: Mapping[str, str]) -> Callable[[str], Any]:
    """The `__getattr__` of a package: `rooms` says in which of its modules each public name is."""

    def find(name: str) -> Any:
        if name not in rooms:
            raise AttributeError(f"module {package!r} has no attribute {name!r}")
        value = getattr(importlib.import_module(f".{rooms[name]}", package), name)
        setattr(sys.modules[package], name, value)
        return value

    return find
