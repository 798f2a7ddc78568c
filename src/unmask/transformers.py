"""`import unmask.transformers` registers our models with transformers: the short name of `unmask.hub.transformers`."""

from .hub.transformers import *  # noqa: F403
