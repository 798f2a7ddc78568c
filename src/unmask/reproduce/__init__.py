"""The paper's tables, re-created at a size that fits the machine: `unmask reproduce NAME`."""

from .run import reproduce
from .tables import TABLES

__all__ = ["TABLES", "reproduce"]
