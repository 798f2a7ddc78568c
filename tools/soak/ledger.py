"""What was tried, what held and what was lost: a row per kind of fault, kept as one JSON file per part."""

from __future__ import annotations

import json
import os
import platform
import random
import subprocess
import sys
import time
import traceback
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]


class Lost(Exception):
    """A case that did not hold, with the reason."""


def hold(condition: object, why: str) -> None:
    """Raise unless something holds."""
    if not condition:
        raise Lost(why)


@dataclass
class Ledger:
    """The cases of one part."""

    part: str
    seed: int
    quick: bool
    work: Path  # a scratch folder of this part
    only: int | None = None  # the number of the case that is repeated
    count: int | None = None  # cases of each kind, instead of the part's number
    rows: dict[str, dict[str, int]] = field(default_factory=dict)
    lost: list[dict[str, str]] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)
    begun: float = field(default_factory=time.monotonic)

    def cases(self, most: int, least: int) -> Iterator[tuple[int, random.Random]]:
        """The numbers of the cases, each with its stream of random numbers: `most` of them, or `least` if quick."""
        for number in range(self.count or (least if self.quick else most)) if self.only is None else [self.only]:
            yield number, random.Random(f"{self.seed}/{self.part}/{number}")

    def add(self, what: str, tried: int = 1, lost: int = 0) -> None:
        """Count cases."""
        row = self.rows.setdefault(what, {"tried": 0, "held": 0, "lost": 0})
        row["tried"] += tried
        row["held"] += tried - lost
        row["lost"] += lost

    @contextmanager
    def case(self, what: str, number: int, about: str = "", tried: int = 1) -> Iterator[None]:
        """A case of `tried` faults: it holds if the block ends well; else it is printed with how to repeat it."""
        try:
            yield
        except Exception as error:
            self.add(what, tried, tried)
            repeat = f"python tools/soak --only {self.part} --seed {self.seed} --case {number}"
            why = str(error) if isinstance(error, Lost) else traceback.format_exc(limit=-4)
            self.lost.append({"what": what, "about": about, "why": why, "repeat": repeat})
            say(f"LOST {self.part}: {what}: {about}: {why}\n     repeat: {repeat}")
        else:
            self.add(what, tried)

    def tree(self) -> dict[str, Any]:
        """As JSON."""
        return {
            "part": self.part,
            **circumstances(),
            "seed": self.seed,
            "quick": self.quick,
            "seconds": round(time.monotonic() - self.begun, 1),
            "rows": [{"what": what, **row} for what, row in self.rows.items()],
            "lost": self.lost,
            "notes": self.notes,
        }


def circumstances() -> dict[str, str]:
    """When, what and where."""
    import torch

    def git(*args: str) -> str:
        return subprocess.run(["git", *args], cwd=ROOT, capture_output=True, text=True).stdout.strip()

    changed = "+" if git("status", "--porcelain", "src") else ""
    machine = f"{os.cpu_count()} cores, {platform.system()} {platform.machine()}, Python {platform.python_version()}"
    return {
        "date": time.strftime("%Y-%m-%d", time.gmtime()),
        "commit": git("rev-parse", "--short", "HEAD") + changed,
        "machine": f"{machine}, torch {torch.__version__}",
    }


def say(line: str) -> None:
    """A line on standard error."""
    sys.stderr.write(line + "\n")
    sys.stderr.flush()


# -- the table ---------------------------------------------------------------------------------------------------------

BEGIN, END = "<!-- soak: begin -->", "<!-- soak: end -->"


def table(parts: list[dict[str, Any]]) -> str:
    """The results of all parts as markdown."""
    lines = ["| what was done to it | tried | held | lost |", "|---|---:|---:|---:|"]
    totals = dict.fromkeys(("tried", "held", "lost"), 0)
    for part in parts:
        for row in part["rows"]:
            counts = {key: row[key] for key in totals}
            totals = {key: totals[key] + counts[key] for key in totals}
            lines.append(f"| {part['part']}: {row['what']} | " + " | ".join(f"{n:,}" for n in counts.values()) + " |")
    lines.append("| **all** | " + " | ".join(f"**{n:,}**" for n in totals.values()) + " |")
    lines.append("")
    for part in parts:
        size = ", quick" if part["quick"] else ""
        lines.append(
            f"- `{part['part']}`: {part['date']}, commit {part['commit']}, {part['seconds']:,.0f} s, "
            f"seed {part['seed']}{size}; {part['machine']}."
        )
        lines += [f"  - {note}" for note in part["notes"]]
        lines += [f"  - lost: {lost['what']}, {lost['about']}: `{lost['repeat']}`" for lost in part["lost"]]
    return "\n".join(lines)


def write_page(page: Path, folder: Path, order: list[str]) -> None:
    """Put the table of all results in `folder` between the markers of a page."""
    stored = [folder / f"{name}.json" for name in order]
    parts = [json.loads(path.read_text(encoding="utf-8")) for path in stored if path.exists()]
    text = page.read_text(encoding="utf-8")
    head, rest = text.split(BEGIN)
    tail = rest.split(END)[1]
    page.write_text(f"{head}{BEGIN}\n\n{table(parts)}\n\n{END}{tail}", encoding="utf-8")
