"""All tasks by name."""

from __future__ import annotations

from ...config import nearest
from ...errors import UserError
from .definition import Task
from .genomics import GENOMICS, GUE
from .glue import GLUE

TASKS: dict[str, Task] = {one.name: one for one in (*GLUE, *GENOMICS, *GUE)}
LEFT_OUT = {
    "glue/wnli": "the paper leaves WNLI out of GLUE, and so does unmask",
    "genomics/drosophila_enhancers_stark": (
        "the paper leaves drosophila_enhancers_stark out of the Genomic Benchmarks, and so does unmask"
    ),
}


def task(name: str) -> Task:
    """The task of this name; one sentence with the nearest name where there is none."""
    found = TASKS.get(name)
    if found is not None:
        return found
    small = name.strip().lower()
    suite, _, last = small.rpartition("/")
    why = next((text for own, text in LEFT_OUT.items() if small in (own, own.rpartition("/")[2])), None)
    close = [own for own, one in TASKS.items() if _means(one, small, suite, last)]
    meant = f" (did you mean {close[0]!r}?)" if close else nearest(small, TASKS)
    start = why or f"unknown task {name!r}{meant}"
    raise UserError(f"{start}; the tasks are {listed(suite)}")


def _means(one: Task, small: str, suite: str, last: str) -> bool:
    """Whether a wrong name is a usual word for a task."""
    own, _, rest = one.name.rpartition("/")
    return (suite in ("", own) and last in (rest.lower(), *one.short)) or small == one.title.lower()


def listed(suite: str = "") -> str:
    """The names of a suite; where no suite has that name, of all but the long one."""
    known = [own for own in TASKS if own.startswith(f"{suite}/")]
    if suite and known:
        return ", ".join(known)
    return ", ".join([own for own in TASKS if not own.startswith("gue/")]) + f" and {len(GUE)} as {GUE[0].name}"
