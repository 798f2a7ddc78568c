"""Griffe extension of the API reference: every name is shown where it is defined, not again where it is re-exported."""

from __future__ import annotations

from typing import Any

import griffe


class WhereDefined(griffe.Extension):
    """Drops names that a module only imports."""

    def on_module(self, *, mod: griffe.Module, **kwargs: Any) -> None:
        """Called for every module when its members are known."""
        for name in [name for name, member in mod.members.items() if member.is_alias]:
            mod.del_member(name)
        mod.exports = None
