"""Imports point one way (DESIGN 3). A new room needs a line in LEVELS: that is the moment to think where it belongs."""

from __future__ import annotations

import ast
from pathlib import Path

import unmask

ROOT = Path(unmask.__file__).parent
LEVELS = [
    {"errors", "version", "lazy"},
    {"types"},
    {"keys", "config"},  # config is plain data and imports only types, so anything above may read it
    {"schedule", "ops", "data"},
    {"masking", "parameterization", "backbones", "recipes"},
    {"bounds", "samplers", "ctmc"},
    {"models"},
    {"build", "checkpoint", "dist", "terminal", "trace", "pickles"},
    {"trainer", "evaluate", "track", "tasks", "page", "judge", "canvas", "layout"},
    {"writing", "scoring", "loop", "classifying"},
    {"lm"},  # below train, which writes samples with it
    {"train", "finetune", "hub", "suites", "datacommands", "genomes"},
    {"adapt", "sweep"},
    {"commands", "demo", "filling", "generative", "templates", "reproduce", "convert", "harness", "hf"},
    {"cli", "serve", "__main__", "unmask"},  # `unmask` is the package's own __init__
]
LEVEL = {room: level for level, rooms in enumerate(LEVELS) for room in rooms}
SIDEWAYS = {  # neighbours on one level that may know each other, this way round
    ("parameterization", "masking"),
    ("finetune", "train"),
    ("reproduce", "generative"),  # samples and their judge
    ("judge", "evaluate"),  # one formula for the error of a ratio
    ("cli", "serve"),
    ("__main__", "cli"),
}
OPTIONAL = {
    "tensorboard", "trackio", "wandb", "transformers", "scipy", "matplotlib", "lm_eval", "starlette", "uvicorn",
    "mauve", "pocketsphinx", "accelerate", "sklearn", "mamba_ssm",
}  # fmt: skip
FILES = sorted(ROOT.rglob("*.py"))


def room_of(parts: tuple[str, ...]) -> str:
    return parts[0] if parts and parts[0] != "__init__" else "unmask"


def imports(file: Path, top_only: bool = False) -> list[tuple[int, tuple[str, ...]]]:
    """(line, absolute dotted name below the package's parent) of every import, one entry a name."""
    package = ("unmask", *file.relative_to(ROOT).parts[:-1])
    tree = ast.parse(file.read_text(encoding="utf-8"))
    found = []
    for node in tree.body if top_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            found += [(node.lineno, tuple(alias.name.split("."))) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = package[: len(package) + 1 - node.level] if node.level else ()
            base += tuple((node.module or "").split(".")) if node.module else ()
            found += [(node.lineno, (*base, alias.name)) for alias in node.names]
    return found


def test_every_room_has_a_level():
    unknown = {room_of(file.relative_to(ROOT).with_suffix("").parts) for file in FILES} - set(LEVEL)
    assert not unknown, f"add {sorted(unknown)} to LEVELS in tests/test_imports.py, at the lowest level that fits"


def test_imports_point_one_way():
    wrong = []
    for file in FILES:
        here = room_of(file.relative_to(ROOT).with_suffix("").parts)
        for line, name in imports(file):
            if name[0] != "unmask":
                continue
            is_module = len(name) > 1 and ((ROOT / name[1]).is_dir() or (ROOT / f"{name[1]}.py").is_file())
            there = name[1] if is_module else "unmask"
            if here == there or (here, there) in SIDEWAYS or here not in LEVEL:
                continue
            if LEVEL.get(there, len(LEVELS)) >= LEVEL[here]:
                wrong.append(f"{file.relative_to(ROOT)}:{line} ({here}) imports {there}, which is not below it")
    assert not wrong, "\n".join(wrong)


def test_optional_packages_are_imported_where_they_are_used():
    wrong = [
        f"{file.relative_to(ROOT)}:{line} imports {name[0]} at the top; do it inside the function that needs it"
        for file in FILES
        for line, name in imports(file, top_only=True)
        if name[0] in OPTIONAL and not {"serve", "hf"} & set(file.parts)
    ]
    assert not wrong, "\n".join(wrong)
