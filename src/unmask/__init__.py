"""unmask: masked diffusion language models. Train, evaluate, sample and infill.

import unmask
lm = unmask.load("runs/demo")
lm.sample(4, length=128, steps=64, seed=0)
lm.infill("The {{3}} sat on the {{1}}.", n=4)
lm.score(["a sentence", "another"])
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

from .version import __version__

if TYPE_CHECKING:
    from .errors import UserError
    from .hub.resolve import load
    from .lm import LM
    from .recipes import recipe

__all__ = ["LM", "UserError", "__version__", "load", "recipe"]

__path__.append(f"{__path__[0]}/compat")  # modules by the names that they had in version 0.1, for one release

_MODULES = {"load": "hub.resolve", "LM": "lm", "recipe": "recipes", "UserError": "errors"}


def __getattr__(name: str) -> Any:
    """Import a public name, or a module, when it is first used: `unmask --help` need not wait for torch."""
    if name in _MODULES:
        globals()[name] = value = getattr(import_module(f".{_MODULES[name]}", __name__), name)
        return value
    try:
        return import_module(f".{name}", __name__)
    except ModuleNotFoundError as error:
        if error.name != f"{__name__}.{name}":
            raise
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}") from None
