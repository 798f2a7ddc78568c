"""`python-docs`: the embedded corpus, English prose that every machine with CPython already has.

Two sources. The language reference ships as text in `pydoc_data.topics`; every section of it is a document. The
standard library's docstrings are read from its source files with `ast` (no module is ever imported); a class with its
methods is a document, and so is a module with its functions. Both are hard-wrapped technical text with code in
between, so `prose` keeps the English sentences, joined into paragraphs, and drops code, grammars, tables, signatures
and rulers. A paragraph that was seen before is dropped, since topics quote each other and so do docstrings.

CPython 3.11.7 on Linux gives 1,320 documents, 1,504,655 characters.
"""

from __future__ import annotations

import ast
import functools
import hashlib
import importlib
import re
import sysconfig
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

from ..errors import UserError

CLEANING = 1  # part of the fingerprint: raise it when the rules below change
MINIMUM_DOCUMENT = 80  # characters; shorter docstrings are labels, not prose
MINIMUM_CORPUS = 100_000  # characters; less means that this Python was stripped of its library

_SKIPPED = frozenset({"test", "tests", "idlelib", "lib2to3", "site-packages", "dist-packages", "__pycache__"})
_RULER = re.compile(r"^\s*([=\-*~^#+.`_\"':|<>])\1{2,}[\s|+\-=]*$")
_ITEM = re.compile(r"^\s*(?:[*\-•o]\s+|\(?\d{1,2}[.)]\s+|\(?[a-z]\)\s+)")
_DEFINITION = re.compile(r"^\s*\S{1,40}(?:\s\S{1,20})?\s+--?\s")
_ASCII = str.maketrans({"’": "'", "‘": "'", "“": '"', "”": '"', "—": "-", "–": "-", "…": "...", "\xa0": " "})
_FUNCTION_WORDS = frozenset(
    re.findall(
        r"\w+",
        """the a an of to is are was be been it its this that these those which who when where and or but not no if
        then than as at by for from in into on onto with without will would can could may might must should shall do
        does has have had you your we our they their there here all any each other same such only also both either""",
    )
)


def documents() -> tuple[str, ...]:
    """The documents, in an order that depends on the installed Python only."""
    return _documents(fingerprint())


@functools.lru_cache(maxsize=1)
def _documents(_: str) -> tuple[str, ...]:
    seen: set[str] = set()
    texts = []
    for raw in [*_sections(), *_docstrings()]:
        text = prose(raw, seen)
        if len(text) >= MINIMUM_DOCUMENT:
            texts.append(text)
    if sum(map(len, texts)) < MINIMUM_CORPUS:
        raise UserError(
            "this Python was installed without its documentation and library sources, so the corpus 'python-docs' "
            "is too small to use; give data.source=FILE_OR_FOLDER instead"
        )
    return tuple(texts)


def fingerprint() -> str:
    """Content hash of what the corpus is made of; much cheaper than making it."""
    digest = hashlib.sha256(f"python-docs {CLEANING}".encode())
    for name, text in sorted(_topics().items()):
        digest.update(f"\0{name}\0{text}".encode())
    for path in _sources():
        digest.update(b"\0" + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _topics() -> dict[str, str]:
    try:
        return dict(importlib.import_module("pydoc_data.topics").topics)
    except (ImportError, AttributeError):  # some distributions leave it out
        return {}


def _sources() -> list[Path]:
    root = Path(sysconfig.get_path("stdlib"))
    files = [path for path in root.rglob("*.py") if not _SKIPPED.intersection(path.relative_to(root).parts)]
    return sorted(files, key=lambda path: path.relative_to(root).as_posix())


def _sections() -> Iterator[str]:
    """The topics, cut at their headings (a line with a ruler of the same length under it)."""
    for _, text in sorted(_topics().items()):
        lines = text.expandtabs().splitlines()
        heads = [
            i
            for i, (line, below) in enumerate(pairwise(lines))
            if line.strip() and not line.startswith(" ") and _RULER.match(below) and len(below) == len(line)
        ]
        for start, end in zip([0, *heads], [*heads, len(lines)], strict=True):
            if body := "\n".join(lines[start:end]).strip("\n"):
                yield body


def _docstrings() -> Iterator[str]:
    """One text per class (its methods included) and one per module (its functions included), in source order."""
    for path in _sources():
        try:
            tree = ast.parse(path.read_bytes())
        except (SyntaxError, ValueError):  # deliberately broken files exist
            continue
        texts: list[list[str]] = []
        _collect(tree, texts, None)
        yield from ("\n\n".join(text) for text in texts)


def _collect(node: ast.AST, texts: list[list[str]], owner: list[str] | None) -> None:
    if isinstance(node, ast.Module | ast.ClassDef):
        owner = []
        texts.append(owner)
    if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef) and owner is not None:
        owner.extend(filter(None, [ast.get_docstring(node)]))
    for field in ("body", "orelse", "handlers", "finalbody"):  # statements only: expressions hold no docstrings
        for child in getattr(node, field, ()):
            _collect(child, texts, owner)


def prose(text: str, seen: set[str] | None = None) -> str:
    """The English of a hard-wrapped technical text: one line per paragraph, a blank line between paragraphs."""
    kept: list[str] = []
    for block in re.split(r"\n(?:[ \t]*\n)+", text.expandtabs().translate(_ASCII)):
        for paragraph in _paragraphs(block.splitlines()):
            if not _is_prose(paragraph):
                continue
            if seen is not None:
                if paragraph in seen:
                    continue
                seen.add(paragraph)
            kept.append(paragraph)
    return "\n\n".join(kept)


def _paragraphs(lines: list[str]) -> Iterator[str]:
    """Join the lines of one block; list items and changes of indentation start anew."""
    current: list[str] = []
    indent, hanging = 0, False
    for line in lines:
        if ">>>" in line[:12]:  # a doctest, with its output, reaches to the end of the block
            break
        if _RULER.match(line):
            if current:
                yield _join(current)
            current = []
            continue
        depth = len(line) - len(line.lstrip())
        item = bool(_ITEM.match(line) or _DEFINITION.match(line))
        deeper = depth > indent and (hanging or (len(current) > 1 and depth - indent <= 2))
        if current and (item or (depth != indent and not deeper)):
            yield _join(current)
            current = []
        if not current:
            indent, hanging = depth, item
        current.append(line)
    if current:
        yield _join(current)


def _join(lines: list[str]) -> str:
    """One line, without markup."""
    text = ""
    for line in (line.strip() for line in lines):
        glue = "" if not text or (len(text) > 1 and text[-1] == "-" and text[-2].isalpha()) else " "
        text += glue + line
    text = _ITEM.sub("", text, count=1)
    text = re.sub(r":[a-z]+:`~?([^`]+)`", r"\1", text)  # :func:`name`
    text = re.sub(r"``([^`]+)``", r'"\1"', text)
    text = re.sub(r"`([^`']+)[`']", r'"\1"', text)
    text = re.sub(r"(?<![\w*])(\*{1,2})(\w(?:[^*]*[\w.!?)])?)\1(?![\w*])", r"\2", text)  # *emphasis*
    text = re.sub(r"::$", ":", text)
    return re.sub(r"\s+", " ", text).strip()


def _is_prose(paragraph: str) -> bool:
    """Whether a paragraph reads as English: enough words, enough of them function words, few symbols."""
    words = re.findall(r"[A-Za-z]+(?:'[a-z]+)?", paragraph)
    if len(words) < 5 or "::=" in paragraph or not re.match(r"[\"'(_]*[A-Za-z](?!\w* = )", paragraph):
        return False
    letters = len(re.findall(r"[^\W\d]", paragraph)) / len(paragraph.replace(" ", ""))
    common = sum(word.lower() in _FUNCTION_WORDS for word in words) / len(words)
    code = len(re.findall(r"[=<>{}\[\]|\\@%&;#]|\w\(\w|\.\w", paragraph)) / len(words)
    return letters > 0.75 and common > 0.15 and code < 0.25
