"""Tasks with labels: records, files, tokens and metrics. GLUE now; the seam is open for others."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ..lazy import names_of
from . import metrics
from .gluesets import NUMBERS, average, glue, number
from .records import METRICS, Carve, Columns, Example, Form, Task
from .registry import TASKS, task

if TYPE_CHECKING:
    from .encoding import Encoded, encode
    from .files import Loaded, NotHere, describe, load, read

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
    "describe",
    "encode",
    "glue",
    "load",
    "metrics",
    "number",
    "read",
    "task",
]

_ROOMS = {
    "Encoded": "encoding", "encode": "encoding", "Loaded": "files", "NotHere": "files", "describe": "files",
    "load": "files", "read": "files",
}  # fmt: skip

__getattr__ = names_of(__name__, _ROOMS)  # the records are there without torch
