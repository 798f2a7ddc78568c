"""Imports point one way, and a name is used once."""

from __future__ import annotations

import ast
from collections import defaultdict
from pathlib import Path

import unmask

ROOT = Path(unmask.__file__).parent
# Each may import what stands before it. `unmask` is the package's own __init__ and __main__.
ORDER = """
    errors jsonable version pieces types files config distributed progress text_tables plot process data
    constraints networks earlier_recipes recipes sampling models evaluation lm hub training dna reproduce serve cli
    transformers unmask
""".split()  # noqa: SIM905
EXCEPTIONS = {
    ("lm", "hub"),  # LM.save_pretrained writes the folder that hub reads
    ("evaluation", "unmask"),  # the judge of generated text may be the name of a model: unmask.load
}
OPTIONAL = """
    tensorboard trackio wandb transformers scipy matplotlib lm_eval starlette uvicorn prometheus_client mauve
    pocketsphinx accelerate sklearn mamba_ssm gguf jinja2 peft
""".split()  # noqa: SIM905
FILES = [file for file in sorted(ROOT.rglob("*.py")) if "compat" not in file.parts]  # old names: each a stub


def top(file: Path) -> str:
    """The package (or top-level module) that a file belongs to."""
    name = file.relative_to(ROOT).with_suffix("").parts[0]
    return "unmask" if name in ("__init__", "__main__") else name


def imports(file: Path, top_only: bool = False) -> list[tuple[int, tuple[str, ...]]]:
    """(line, absolute dotted name) of every import that runs, one entry for each name."""
    package = ("unmask", *file.relative_to(ROOT).parts[:-1])
    tree = ast.parse(file.read_text(encoding="utf-8"))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) == "TYPE_CHECKING"
        for inner in ast.walk(node)
    }
    result = []
    for node in tree.body if top_only else ast.walk(tree):
        if id(node) in for_types:
            continue
        if isinstance(node, ast.Import):
            result += [(node.lineno, tuple(alias.name.split("."))) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            base += tuple(node.module.split(".")) if node.module else ()
            result += [(node.lineno, (*base, alias.name)) for alias in node.names]
    return result


def test_every_top_level_name_has_its_place():
    assert {top(file) for file in FILES} == set(ORDER)


def test_imports_point_one_way():
    wrong = []
    for file in FILES:
        importer = top(file)
        for line, name in imports(file):
            if name[0] != "unmask":
                continue
            imported = name[1] if len(name) > 1 and name[1] in ORDER else "unmask"
            if importer == imported or (importer, imported) in EXCEPTIONS:
                continue
            if ORDER.index(imported) >= ORDER.index(importer):
                wrong.append(f"{file.relative_to(ROOT)}:{line} imports {imported}, which stands after {importer}")
    assert not wrong, "\n".join(wrong)


def test_a_module_name_is_used_once():
    """Also not once in the singular and once in the plural. Files of the command line are named by their command.

    `unmask.transformers` is the short name of `unmask.hub.transformers`.
    """
    names = defaultdict(list)
    for file in FILES:
        place = file.relative_to(ROOT)
        if place.parts[0] not in ("cli", "transformers.py") and file.stem != "__main__":
            stem = file.parent.name if file.stem == "__init__" else file.stem
            names[stem.removesuffix("s")].append(str(place))
    twice = {name: places for name, places in names.items() if len(places) > 1}
    assert not twice


def test_a_class_name_is_used_once():
    names = defaultdict(list)
    for file in FILES:
        for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))):
            if isinstance(node, ast.ClassDef):
                names[node.name].append(f"{file.relative_to(ROOT)}:{node.lineno}")
    twice = {name: places for name, places in names.items() if len(places) > 1}
    assert not twice


def test_optional_packages_are_imported_where_they_are_used():
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name[0]} at the top; do it inside the function that needs it"
        for file in FILES
        for line, name in imports(file, top_only=True)
        if name[0] in OPTIONAL
        and file.relative_to(ROOT).parts[0] != "serve"
        and file.relative_to(ROOT).parts[:2] != ("hub", "transformers")
    ]
    assert not wrong, "\n".join(wrong)
