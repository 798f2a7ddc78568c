"""All tasks by name."""

from __future__ import annotations

from ..config import nearest
from ..errors import UserError
from .gluesets import GLUE
from .records import Task

TASKS: dict[str, Task] = {one.name: one for one in GLUE}
LEFT_OUT = {"glue/wnli": "the paper leaves WNLI out of GLUE, and so does unmask"}


def task(name: str) -> Task:
    """The task of this name; one sentence with the nearest name where there is none."""
    found = TASKS.get(name)
    if found is not None:
        return found
    small = name.strip().lower()
    why = next((text for own, text in LEFT_OUT.items() if small in (own, own.rpartition("/")[2])), None)
    close = [own for own in TASKS if small in (own.rpartition("/")[2], TASKS[own].title.lower())]
    meant = f" (did you mean {close[0]!r}?)" if close else nearest(small, TASKS)
    start = why or f"unknown task {name!r}{meant}"
    raise UserError(f"{start}; the tasks are {', '.join(TASKS)}")
