"""Documentation that is checked: every setting is described, every link leads somewhere, every command line parses."""

from __future__ import annotations

import ast
import importlib.util
import re
import shlex
from pathlib import Path

import pytest
import typer
import yaml

from unmask.cli import SETTINGS, app, full_command
from unmask.config import NETWORKS, Config, known_keys
from unmask.recipes import RECIPES

ROOT = Path(__file__).parents[2]
PAGES = sorted([*ROOT.glob("docs/*.md"), *ROOT.glob("*.md")])
FENCE = re.compile(r"^```(\w*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
ROW = re.compile(r"^\| `([\w.]+)` \| `(.*?)` \|", re.MULTILINE)
COMMANDS = typer.main.get_command(app).commands | {name: full_command(name) for name in SETTINGS}  # type: ignore[attr-defined]

every_page = pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def command_lines(page: Path) -> list[list[str]]:
    """The words after `unmask` in every shell block and in every inline code that begins with it."""
    text = text_of(page)
    lines = [
        line
        for language, body in FENCE.findall(text)
        if language in ("bash", "console", "sh")
        for line in body.replace("\\\n", " ").splitlines()
    ]
    lines += re.findall(r"`(unmask [a-z][^`\n]+)`", FENCE.sub("", text))
    found = []
    for line in lines:
        match = re.match(r"(?:\$ )?(?:\w+=\S+ )*(?:torchrun .*-m |python -m |\.venv/bin/)?unmask (\S.*)", line)
        if match:
            words = shlex.split(match[1], comments=True)
            stops = [i for i, word in enumerate(words) if word in ("|", ">", "2>", "&", "&&", ";")]
            found.append(words[: stops[0]] if stops else words)
    return found


def anchors(page: Path) -> set[str]:
    """The headings as GitHub and mkdocs name them."""
    heads = re.findall(r"^#+ (.+)$", FENCE.sub("", text_of(page)), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", head.lower()).replace(" ", "-") for head in heads}


def test_there_is_something_to_check():
    assert {"index.md", "training.md", "CHANGELOG.md"} <= {page.name for page in PAGES}
    assert sum(len(command_lines(page)) for page in PAGES) > 20


def defaults_of(settings):
    return {name: field.default for name, field in settings.model_fields.items()}


def test_every_setting_is_described_with_its_default():
    described = dict(ROW.findall(text_of(ROOT / "docs" / "training.md")))
    assert sorted(described) == sorted(known_keys())
    networks = {key: value for settings in reversed(NETWORKS.values()) for key, value in defaults_of(settings).items()}
    tree = Config().model_dump(mode="json")
    tree["model"] = networks | tree["model"]
    for key, default in described.items():
        value = tree
        for part in key.split("."):
            value = value[part]
        stated = yaml.safe_load(default)
        assert (float(stated) if isinstance(value, float) else stated) == value, key


def test_every_room_is_described():
    rooms = {path.stem for path in (ROOT / "src" / "unmask").iterdir() if path.suffix == ".py" or path.is_dir()}
    text = text_of(ROOT / "docs" / "architecture.md")
    missing = {room for room in rooms if not room.startswith("__") and not re.search(rf"\b{room}\b", text)}
    assert not missing


@every_page
def test_links_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", FENCE.sub("", text_of(page))):
        if "://" in target or target.startswith("mailto:"):
            continue
        name, _, anchor = target.partition("#")
        there = (page.parent / name).resolve() if name else page
        assert there.exists(), f"{page.name} links to {target}"
        if anchor:
            assert anchor in anchors(there), f"{page.name} links to {target}"


@every_page
def test_command_lines_parse(page):
    for words in command_lines(page):
        name, *arguments = words
        if name.startswith("-"):
            continue
        assert name in COMMANDS, f"unmask {name} in {page.name}"
        if not arguments:  # the name of a command in a sentence
            continue
        try:
            context = COMMANDS[name].make_context(name, arguments)
        except Exception as error:  # typer brings a click of its own, or does not
            pytest.fail(f"unmask {shlex.join(words)} in {page.name}: {error}")
        overrides = context.params.get("overrides") or []
        recipe = context.params.get("recipe", "demo")
        if all("=" in assignment for assignment in overrides):
            (RECIPES[recipe]() if recipe in RECIPES else Config()).override(overrides)


@every_page
def test_make_targets_exist(page):
    targets = set(re.findall(r"^([\w-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    asked = re.findall(r"(?:^|`)make ([a-z-]+)(?=`|$)", text_of(page), re.MULTILINE)
    assert set(asked) <= targets


@every_page
def test_python_blocks_compile(page):
    for language, body in FENCE.findall(text_of(page)):
        if language == "python":
            compile(body, page.name, "exec")


@every_page
def test_python_blocks_import_what_is_there(page):
    for language, body in FENCE.findall(text_of(page)):
        for node in ast.walk(ast.parse(body)) if language == "python" else ():
            if isinstance(node, ast.ImportFrom) and node.module and node.module.split(".")[0] == "unmask":
                module = importlib.import_module(node.module)
                for alias in node.names:
                    assert hasattr(module, alias.name) or _is_module(f"{node.module}.{alias.name}"), alias.name


def _is_module(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:
        return False
