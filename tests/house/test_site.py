"""The site: every page is reached from its contents, the API reference covers every package, and it builds."""

from __future__ import annotations

import importlib
import os
import re
import subprocess
import sys
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
import yaml

import unmask

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
SITE = yaml.safe_load((ROOT / "mkdocs.yml").read_text(encoding="utf-8"))
DIRECTIVE = re.compile(r"^::: ([\w.]+)$", re.MULTILINE)


def entries(tree: Any) -> list[str]:
    """The pages of a part of the contents."""
    if isinstance(tree, str):
        return [tree]
    return [page for part in (tree.values() if isinstance(tree, dict) else tree) for page in entries(part)]


def documented() -> list[str]:
    """What the API reference names."""
    return [name for page in sorted((DOCS / "api").glob("*.md")) for name in DIRECTIVE.findall(page.read_text())]


def test_the_contents_lead_to_every_page_and_to_nothing_else():
    pages = {str(path.relative_to(DOCS)) for path in DOCS.rglob("*.md")}
    reports = {page for page in pages if page.startswith("results/") and page != "results/README.md"}  # its links
    listed = entries(SITE["nav"])
    assert sorted(listed) == sorted(pages - reports)


@pytest.mark.parametrize("name", documented())
def test_what_the_reference_names_is_there(name):
    try:
        importlib.import_module(name)
    except ModuleNotFoundError:
        module, _, attribute = name.rpartition(".")
        assert getattr(importlib.import_module(module), attribute).__doc__


def test_the_reference_covers_every_package():
    place = Path(unmask.__file__).parent
    packages = {path.parent.name for path in place.glob("*/__init__.py")}
    covered = {name.split(".")[1] for name in documented()}
    assert packages - covered <= {"cli", "compat", "transformers"}, "of the command line, and old or short names"


class Page(HTMLParser):
    """What a page loads when it is opened."""

    def __init__(self) -> None:
        super().__init__()
        self.loads: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        address = found.get("src") if tag in ("script", "img", "iframe") else None
        if tag == "link" and found.get("rel") in ("stylesheet", "preconnect", "icon"):
            address = found.get("href")
        self.loads += [address] if address else []


@pytest.mark.slow
def test_it_builds_and_loads_nothing_from_elsewhere(tmp_path):
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(tmp_path / "site")]
    ran = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"NO_MKDOCS_2_WARNING": "1"}, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    pages = sorted((tmp_path / "site").rglob("*.html"))
    assert len(pages) > len(entries(SITE["nav"]))
    for path in pages:
        page = Page()
        page.feed(path.read_text(encoding="utf-8"))
        assert page.loads and not [address for address in page.loads if "//" in address], path.name
    sampling = (tmp_path / "site" / "api" / "sampling.html").read_text(encoding="utf-8")
    headings = re.findall(r'<h\d id="unmask\.sampling\.([\w.]+)"', sampling)
    assert len([name for name in headings if name.endswith(".Gibbs")]) == 1, "where it is defined, and nowhere else"
