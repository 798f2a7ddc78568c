"""Reading the config.json of other projects, with an error message for each value that is wrong."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ...errors import UserError

Allowed = Mapping[str, tuple[Any, ...]]


def mapping(tree: Mapping[str, Any], key: str, where: str | Path) -> Mapping[str, Any]:
    """A nested section of a config.json."""
    if not isinstance(tree.get(key), Mapping):
        raise UserError(f"{where} is damaged: it has no section {key!r}")
    return tree[key]


def value(tree: Mapping[str, Any], key: str, kind: type, where: str | Path, default: Any = None) -> Any:
    """A number or a boolean of the right kind."""
    setting = tree.get(key, default)
    shown = str(setting)[:80] if isinstance(setting, str) else setting
    if setting is None:
        raise UserError(f"{where} does not have {key}, without which the network cannot be built")
    fits = isinstance(setting, bool) if kind is bool else isinstance(setting, int if kind is int else int | float)
    if not fits or (kind is not bool and isinstance(setting, bool)):
        raise UserError(f"{where} has {key} {shown!r}, which is not {'true or false' if kind is bool else 'a number'}")
    return setting


def only(tree: Mapping[str, Any], allowed: Allowed, where: str | Path, name: str = "") -> None:
    """Raise if a setting has a value that our networks do not support; a missing one has its default."""
    for key, values in allowed.items():
        if key in tree and not any(type(tree[key]) is type(known) and tree[key] == known for known in values):
            shown, wanted = json.dumps(tree[key])[:80], " or ".join(map(json.dumps, values))
            raise UserError(f"{where} has {name}{key} {shown}, but unmask reads such networks only with {wanted}")
