"""Tasks with labels: records, files, tokens and metrics. GLUE, Genomic Benchmarks, GUE."""

from __future__ import annotations

from typing import TYPE_CHECKING

from ...lazy import names_of
from . import metrics
from .catalog import TASKS, task
from .definition import METRICS, Carve, Columns, Example, Form, Task
from .genomics import genomics, gue
from .glue import NUMBERS, average, glue, number

if TYPE_CHECKING:
    from .encoding import Encoded, encode, encode_bases
    from .loading import load, splits
    from .sequences import clean
    from .task_files import Loaded, MissingTaskData

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
    "MissingTaskData",
    "Task",
    "average",
    "clean",
    "encode",
    "encode_bases",
    "genomics",
    "glue",
    "gue",
    "load",
    "metrics",
    "number",
    "splits",
    "task",
]

_ROOMS = {
    "Encoded": "encoding",
    "Loaded": "task_files",
    "MissingTaskData": "task_files",
    "clean": "sequences",
    "encode": "encoding",
    "encode_bases": "encoding",
    "load": "loading",
    "splits": "loading",
}

__getattr__ = names_of(__name__, _ROOMS)  # the records are there without torch
