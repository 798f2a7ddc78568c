"""A torch file as a whole: load it, fetch its tensors, make plain data of its settings."""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from ...types import UserError
from .archive import Archive, Stored
from .machine import Machine
from .values import Damaged, Inert

DEEPEST, MOST = 50, 100_000  # settings inside each other, and all together


def load(path: str | Path) -> Any:
    """What a torch file holds: plain containers, numbers, text, `Stored` tensors, and `Inert` records of the rest."""
    path = Path(path)
    try:
        archive = Archive(path)
        return Machine(archive).run(archive.pickle())
    except Damaged as error:
        raise UserError(f"{path} cannot be read: {error}") from None
    except FileNotFoundError:
        raise UserError(f"{path} does not exist") from None
    except (OSError, MemoryError, RecursionError) as error:
        raise UserError(f"{path} cannot be read: {str(error) or type(error).__name__}") from None


def tensors(tree: Any, where: str | Path) -> dict[str, Tensor]:
    """The tensors of a state dict, read; anything else in it is an error that names it."""
    if not isinstance(tree, Mapping) or not tree:
        raise UserError(f"{where} does not hold a dictionary of tensors")
    for name, value in tree.items():
        if not isinstance(name, str) or not isinstance(value, Stored):
            kind = value.name if isinstance(value, Inert) else type(value).__name__
            raise UserError(f"{where} does not hold a dictionary of tensors: {str(name)[:80]!r} is a {kind}")
    size = sum(math.prod(value.shape) * value.dtype.itemsize for value in tree.values())
    if size > 4 * Path(where).stat().st_size:  # weights may be tied, but a small file must not fill the memory
        raise UserError(f"{where} cannot be read: its tensors show the same numbers again and again")
    return {name: fetch(value, where) for name, value in tree.items()}


def fetch(stored: Stored, where: str | Path) -> Tensor:
    """`stored.read()`, whose complaints name the file."""
    try:
        return stored.read()
    except Damaged as error:
        raise UserError(f"{where} cannot be read: {error}") from None
    except OSError as error:
        raise UserError(f"{where} cannot be read: {error}") from None


def plain(value: Any) -> Any:
    """Settings as plain data: OmegaConf's nodes keep their content in `_content` or `_val`; all else becomes None."""
    left = MOST  # a small file can refer to the same things again and again

    def walk(value: Any, depth: int) -> Any:
        nonlocal left
        left -= 1
        if depth > DEEPEST or left < 0:
            return None
        if isinstance(value, Inert):
            state = value.state if isinstance(value.state, dict) else {}
            return walk(state.get("_content", state.get("_val")), depth + 1)
        if isinstance(value, dict):
            return {str(key): walk(own, depth + 1) for key, own in value.items() if isinstance(key, str | int)}
        if isinstance(value, list | tuple):
            return [walk(own, depth + 1) for own in value]
        if isinstance(value, int) and abs(value) >= 1 << 63:  # Python would not even print it
            return None
        return value if isinstance(value, str | int | float | bool | None) else None

    return walk(value, 0)
