"""Public functions, classes and methods that only tests use: candidates for deletion.

python tools/only_tests.py    a name is used if code of src, benchmarks or tools reads it, or a page of docs has it
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

ROOT = Path(__file__).parent.parent


def trees(folder: str) -> Iterator[tuple[Path, ast.Module]]:
    for path in sorted((ROOT / folder).rglob("*.py")):
        yield path, ast.parse(path.read_text(encoding="utf-8"))


def reads(*folders: str) -> Counter[str]:
    """How often names are read; imports and strings do not count."""
    names: Counter[str] = Counter()
    for folder in folders:
        for _, tree in trees(folder):
            for node in ast.walk(tree):
                if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                    names[node.id] += 1
                elif isinstance(node, ast.Attribute):
                    names[node.attr] += 1
    return names


def main() -> None:
    used, tested = reads("src", "benchmarks", "tools"), reads("tests")
    pages = [*(ROOT / "docs").glob("*.md"), ROOT / "README.md"]
    promised = set(re.findall(r"\w+", " ".join(page.read_text(encoding="utf-8") for page in pages)))
    for file, tree in trees("src"):
        for node in ast.walk(tree):
            if not isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef) or node.name[0] == "_":
                continue
            if not used[node.name] and node.name not in promised:
                state = "only tests" if tested[node.name] else "nobody, or a framework by its name"
                print(f"{file.relative_to(ROOT)}:{node.lineno}: {node.name} ({state})")


if __name__ == "__main__":
    main()
