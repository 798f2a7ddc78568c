"""Reading the config.json of others: one sentence for each value that is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError

Allowed = Mapping[str, tuple[Any, ...]]


def mapping(tree: Mapping[str, Any], key: str, where: str | Path) -> Mapping[str, Any]:
    """A part of a config.json that has parts of its own."""
    if not isinstance(tree.get(key), Mapping):
        raise UserError(f"{where} is damaged: it has no part {key!r}")
    return tree[key]


def value(tree: Mapping[str, Any], key: str, kind: type, where: str | Path, default: Any = None) -> Any:
    """A number or switch of the right kind."""
    found = tree.get(key, default)
    shown = str(found)[:80] if isinstance(found, str) else found
    if found is None:
        raise UserError(f"{where} does not say {key}, without which the network cannot be built")
    fits = isinstance(found, bool) if kind is bool else isinstance(found, int if kind is int else int | float)
    if not fits or (kind is not bool and isinstance(found, bool)):
        raise UserError(f"{where} has {key} {shown!r}, which is not {'true or false' if kind is bool else 'a number'}")
    return found


def only(tree: Mapping[str, Any], allowed: Allowed, where: str | Path, name: str = "") -> None:
    """Raise if a setting is another than our networks have; one that is not there is as usual."""
    for key, values in allowed.items():
        if key in tree and not any(type(tree[key]) is type(known) and tree[key] == known for known in values):
            shown, wanted = json.dumps(tree[key])[:80], " or ".join(map(json.dumps, values))
            raise UserError(f"{where} has {name}{key} {shown}, and unmask reads such a network with {wanted} only")
