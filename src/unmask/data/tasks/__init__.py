"""Tasks with labels: records, files, tokens and metrics. GLUE, Genomic Benchmarks, GUE."""

from . import metrics
from .catalog import TASKS, task
from .definition import METRICS, Carve, Columns, Example, Form, Task
from .encoding import Encoded, encode, encode_bases
from .genomics import genomics, gue
from .glue import NUMBERS, average, glue, number
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
