"""unmask: masked diffusion language models. Train, evaluate, sample and infill.

import unmask
lm = unmask.load("runs/demo")
lm.sample(4, length=128, steps=64, seed=0)
lm.infill("The {{3}} sat on the {{1}}.", n=4)
lm.score(["a sentence", "another"])
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from .hub.transformers.register import watch
from .lazy import names_of
from .version import __version__

if TYPE_CHECKING:
    from .errors import UserError
    from .hub.resolve import load
    from .lm import LM
    from .recipes import recipe

__all__ = ["LM", "UserError", "__version__", "load", "recipe"]

_ROOMS = {"load": "hub", "LM": "lm", "recipe": "recipes", "UserError": "errors"}

__getattr__ = names_of(__name__, _ROOMS)

watch()  # our model classes are known to transformers, whenever it is used; this imports neither it nor torch
