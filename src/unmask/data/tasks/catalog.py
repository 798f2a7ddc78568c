"""All tasks by name."""

from __future__ import annotations

from ...errors import UserError, nearest
from .definition import Task
from .genomics import GENOMICS, GUE
from .glue import GLUE

TASKS: dict[str, Task] = {entry.name: entry for entry in (*GLUE, *GENOMICS, *GUE)}
LEFT_OUT = {
    "glue/wnli": "the paper leaves WNLI out of GLUE, and so does unmask",
    "genomics/drosophila_enhancers_stark": (
        "the paper leaves drosophila_enhancers_stark out of the Genomic Benchmarks, and so does unmask"
    ),
}


def task(name: str) -> Task:
    """The task of this name; one sentence with the nearest name where there is none."""
    known = TASKS.get(name)
    if known is not None:
        return known
    small = name.strip().lower()
    suite, _, last = small.rpartition("/")
    reason = next((text for full, text in LEFT_OUT.items() if small in (full, full.rpartition("/")[2])), None)
    close = [full for full, definition in TASKS.items() if _means(definition, small, suite, last)]
    meant = f" (did you mean {close[0]!r}?)" if close else nearest(small, TASKS)
    start = reason or f"unknown task {name!r}{meant}"
    raise UserError(f"{start}; the tasks are {listed(suite)}")


def _means(definition: Task, small: str, suite: str, last: str) -> bool:
    """Whether a wrong name is another common name of a task."""
    its_suite, _, rest = definition.name.rpartition("/")
    in_suite = suite in ("", its_suite) and last in (rest.lower(), *definition.short)
    return in_suite or small == definition.title.lower()


def listed(suite: str = "") -> str:
    """The names of a suite; where no suite has that name, of all but the long one."""
    known = [name for name in TASKS if name.startswith(f"{suite}/")]
    if suite and known:
        return ", ".join(known)
    return ", ".join([name for name in TASKS if not name.startswith("gue/")]) + f" and {len(GUE)} as {GUE[0].name}"
