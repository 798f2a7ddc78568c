"""The paper's tables, re-created at a size that fits the machine: `unmask reproduce NAME`."""

from .report_files import load_results
from .run import reproduce
from .tables import TABLES

__all__ = ["TABLES", "load_results", "reproduce"]
