"""Words: names say what a thing is, and documents that are not in the repository are not cited."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from pathlib import Path

import pytest

from support.paths import ROOT

SRC = ROOT / "src" / "unmask"
VAGUE = {"own", "found", "usual", "told", "there", "here"}  # as a word of a name: what it is, is the better name
CITATION = re.compile(
    r"\b(?:DESIGN|SYSTEMS|PITFALLS|ECOSYSTEM)(?:\.md)?(?=[:;)]| \d| §| section| trap| P\d)|\bPITFALL|\bissue \d"
)
TEXTS = [
    path
    for folder in ("src", "tests", "docs", "benchmarks", "tools")
    for path in sorted((ROOT / folder).rglob("*"))
    if path.suffix in (".py", ".md") and path != Path(__file__)
]


def names(tree: ast.Module) -> Iterator[tuple[int, str]]:
    """(line, name) of everything that the code names: functions, classes, arguments, variables, attributes."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.lineno, node.name
        elif isinstance(node, ast.arg):
            yield node.lineno, node.arg
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.id
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.lineno, node.attr


def words(name: str) -> set[str]:
    """own_mask, OwnMask and OWN_MASK are both "own" and "mask"."""
    return set(re.sub(r"(?<=[a-z])(?=[A-Z])", "_", name).lower().split("_"))


def vague(file: Path) -> list[str]:
    tree = ast.parse(file.read_text(encoding="utf-8"))
    return [f"{file.relative_to(SRC)}:{line}: {name}" for line, name in names(tree) if words(name) & VAGUE]


def test_names_say_what_a_thing_is():
    wrong = [line for file in sorted(SRC.rglob("*.py")) if "compat" not in file.parts for line in vague(file)]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("name", "caught"), [("own_mask", True), ("NotHere", True), ("known", False), ("rownames", False)]
)
def test_a_word_is_a_part_of_a_name(name, caught):
    assert bool(words(name) & VAGUE) == caught


def test_documents_outside_the_repository_are_not_cited():
    wrong = [
        f"{path.relative_to(ROOT)}:{number}: {line.strip()}"
        for path in TEXTS
        for number, line in enumerate(path.read_text(encoding="utf-8").splitlines(), 1)
        if CITATION.search(line)
    ]
    assert not wrong, "\n".join(wrong)
