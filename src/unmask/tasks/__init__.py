"""Tasks with labels: records, files, tokens and metrics. GLUE, Genomic Benchmarks, GUE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of
from . import metrics
from .genomics import genomics, gue
from .gluesets import NUMBERS, average, glue, number
from .records import METRICS, Carve, Columns, Example, Form, Task
from .registry import TASKS, task

if TYPE_CHECKING:
    from .encoding import Encoded, encode, encode_bases
    from .files import Loaded, NotHere
    from .loading import describe, load, read, splits
    from .sequences import clean

__all__ = [
    "METRICS",
    "NUMBERS",
    "TASKS",
    "Carve",
    "Columns",
    "Encoded",
    "Example",
    "Form",
    "Loaded",
    "NotHere",
    "Task",
    "average",
    "clean",
    "describe",
    "encode",
    "encode_bases",
    "genomics",
    "glue",
    "gue",
    "load",
    "metrics",
    "number",
    "read",
    "splits",
    "task",
]

_ROOMS = {
    "Encoded": "encoding", "encode": "encoding", "encode_bases": "encoding", "Loaded": "files", "NotHere": "files",
    "describe": "loading", "load": "loading", "read": "loading", "splits": "loading", "clean": "sequences",
}  # fmt: skip

__getattr__ = names_of(__name__, _ROOMS)  # the records are there without torch
