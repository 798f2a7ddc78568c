"""Every sentence that a user or a reader of the code meets, with its place: errors, help texts, docstrings.

Read them aloud: python tools/sentences.py [--kind error|help|doc] [PATH ...]   (default: src/unmask)
"""

from __future__ import annotations

import argparse
import ast
from collections.abc import Iterator
from pathlib import Path

ERRORS = ("Error", "Exception", "NotHere", "NoHead")  # how the names of exceptions end
ROOT = Path(__file__).parent.parent / "src" / "unmask"


def text_of(node: ast.AST) -> str:
    """The words of a string, with {…} for what is put in; "" where it is no string."""
    if isinstance(node, ast.Constant) and isinstance(node.value, str):
        return node.value
    if isinstance(node, ast.JoinedStr):
        return "".join(text_of(part) if isinstance(part, ast.Constant) else "{…}" for part in node.values)
    if isinstance(node, ast.BinOp):
        return text_of(node.left) + text_of(node.right)
    if isinstance(node, ast.IfExp):
        return f"{text_of(node.body)} | {text_of(node.orelse)}"
    return ""


def name_of(node: ast.AST) -> str:
    """The last word of what is called."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""


def sentences(file: Path) -> Iterator[tuple[int, str, str]]:
    """(line, kind, text) of every sentence in a file."""
    for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if doc := ast.get_docstring(node):
                yield getattr(node, "lineno", 1), "doc", doc
        elif isinstance(node, ast.Call):
            if name_of(node.func).endswith(ERRORS) and node.args and (text := text_of(node.args[0])):
                yield node.lineno, "error", text
            for keyword in node.keywords:
                if keyword.arg == "help" and (text := text_of(keyword.value)):
                    yield node.lineno, "help", text


def main() -> None:
    parser = argparse.ArgumentParser(description="Print all errors, help texts and docstrings.")
    parser.add_argument("paths", nargs="*", type=Path, default=[ROOT])
    parser.add_argument("--kind", choices=("error", "help", "doc"))
    asked = parser.parse_args()
    for path in asked.paths:
        for file in sorted(path.rglob("*.py")) if path.is_dir() else [path]:
            for line, kind, text in sorted(sentences(file)):
                if asked.kind in (None, kind):
                    print(f"{file}:{line}: {kind}: {' '.join(text.split())}")


if __name__ == "__main__":
    main()
