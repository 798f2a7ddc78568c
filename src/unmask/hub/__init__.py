"""Models on disk and on the Hugging Face Hub: loading by name, folders that travel, checkpoints, other formats."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of

if TYPE_CHECKING:
    from .resolve import PRETRAINED, find, load

__all__ = ["PRETRAINED", "find", "load"]

__getattr__ = names_of(__name__, {"load": "resolve", "find": "resolve", "PRETRAINED": "resolve"})
