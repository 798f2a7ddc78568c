"""The house in figures, for any tree of this project, so that two trees can be compared.

    python tools/figures.py [TREE ...]

Top-level names, lines, places that repeat each other (where the command `duplicates` is on the path), and the seconds
of `import unmask` and `unmask --help`, the least of five.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

TIMES = 5


def lines(folder: Path) -> tuple[int, int]:
    """Files and lines of Python below a folder."""
    files = sorted(folder.rglob("*.py"))
    return len(files), sum(len(file.read_text(encoding="utf-8").splitlines()) for file in files)


def top_level(package: Path) -> list[str]:
    """Packages and modules that stand directly in the package."""
    return sorted(
        path.stem
        for path in package.iterdir()
        if not path.name.startswith("__") and (path.suffix == ".py" or (path.is_dir() and any(path.rglob("*.py"))))
    )


def repetitions(tree: Path) -> str:
    """How many pairs `duplicates` counts below src and below tests."""
    if shutil.which("duplicates") is None:
        return "not counted: there is no command `duplicates`"
    counts = []
    for part in ("src", "tests"):
        command = ["duplicates", "--repo", str(tree / part), "--seconds", "120", "--most", "1"]
        said = subprocess.run(command, capture_output=True, text=True, check=True).stdout
        number = re.search(r"\d+", said) if not said.startswith("no duplicates") else None
        counts.append(f"{part} {number[0] if number else 0}")
    return ", ".join(counts)


def seconds(tree: Path, *arguments: str) -> float:
    """The least of a few runs of `python ARGUMENTS` with the package of the tree."""
    environment = os.environ | {"PYTHONPATH": str(tree / "src")}

    def once() -> float:
        started = time.perf_counter()
        subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)
        return time.perf_counter() - started

    return min(once() for _ in range(TIMES))


def figures(tree: Path) -> dict[str, str]:
    """What is printed, by name."""
    names = top_level(tree / "src" / "unmask")
    nothing = seconds(tree, "-c", "pass")
    shown: dict[str, Callable[[], str]] = {
        "top-level names": lambda: f"{len(names)}: {' '.join(names)}",
        "src": lambda: "{} files, {:,} lines".format(*lines(tree / "src")),
        "tests": lambda: "{} files, {:,} lines".format(*lines(tree / "tests")),
        "pairs that repeat": lambda: repetitions(tree),
        "import unmask": lambda: f"{seconds(tree, '-c', 'import unmask'):.2f} s (python alone {nothing:.2f} s)",
        "unmask --help": lambda: f"{seconds(tree, '-m', 'unmask', '--help'):.2f} s",
    }
    return {name: figure() for name, figure in shown.items()}


def main() -> None:
    for tree in sys.argv[1:] or ["."]:
        print(Path(tree).resolve())
        for name, figure in figures(Path(tree).resolve()).items():
            print(f"  {name:<18} {figure}")


if __name__ == "__main__":
    main()
