"""The embedded corpus: real prose, from this Python, without running any of it."""

import re
import subprocess
import sys

import pytest

from unmask.config import DataConfig
from unmask.data import python_docs
from unmask.data.corpora import open_corpus
from unmask.data.python_docs import prose
from unmask.types import UserError


@pytest.fixture(scope="module")
def corpus():
    return python_docs.documents()


def test_size(corpus):
    """CPython 3.11.7 has 1,320 documents and 1,504,655 characters; others differ by what they ship."""
    assert 300 < len(corpus) < 5000
    assert 400_000 < sum(map(len, corpus)) < 4_000_000
    assert min(map(len, corpus)) >= python_docs.MINIMUM_DOCUMENT


def test_reads_as_prose(corpus):
    text = "\n\n".join(corpus)
    for code in (">>>", "::=", "\n   ", "\t", "====", "****"):
        assert code not in text, code
    words = re.findall(r"[a-z]+", text.lower())
    assert 0.04 < words.count("the") / len(words) < 0.09, "as often as in English"
    letters = sum(character.isalpha() or character.isspace() for character in text)
    assert letters / len(text) > 0.9
    assert "Assert statements are a convenient way to insert debugging assertions into a program" in text


def test_nothing_is_said_twice(corpus):
    paragraphs = [paragraph for text in corpus for paragraph in text.split("\n\n")]
    assert len(paragraphs) == len(set(paragraphs))


def test_order_is_that_of_the_installation(monkeypatch):
    """Read twice it is the same, here from a part of the modules."""
    some = list(python_docs._sources())[::12]
    monkeypatch.setattr(python_docs, "_sources", lambda: some)
    first, second = (python_docs._documents.__wrapped__("") for _ in range(2))
    assert first == second and len(first) > 100


def test_fingerprint_and_splits(corpus, tmp_path):
    opened = open_corpus(DataConfig(cache=str(tmp_path)))
    assert opened.fingerprint == open_corpus(DataConfig(cache=str(tmp_path))).fingerprint
    assert opened.splits == ("train", "valid", "test")
    valid = sum(len(piece.text) for piece in opened.documents("valid"))
    assert 0.02 < valid / sum(map(len, corpus)) < 0.09


def test_no_module_is_imported():
    code = (
        "import sys\nfrom unmask.data import python_docs\nbefore = set(sys.modules)\n"
        "list(python_docs._sections())\nnext(python_docs._docstrings())\nprint(sorted(set(sys.modules) - before))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    imported = {name for name in eval(done.stdout) if not name.startswith("_sysconfigdata")}  # sysconfig's own table
    assert imported == {"pydoc_data", "pydoc_data.topics"}


def test_stripped_installations(monkeypatch):
    monkeypatch.setattr(python_docs, "_sources", list)
    assert len(python_docs.documents()) > 50, "the reference alone is enough"
    monkeypatch.setattr(python_docs, "_topics", dict)
    with pytest.raises(UserError, match="'python-docs' is too small to use"):
        python_docs.documents()


@pytest.mark.parametrize(
    ("raw", "clean"),
    [
        (
            "A heading of this text\n**********************\n\nIt is hard-\nwrapped  at some\nwidth.",
            "A heading of this text\n\nIt is hard-wrapped at some width.",
        ),
        (
            "This is how it is used:\n\n>>> f(1)\n2\n\nIt is the end of the text.",
            "This is how it is used:\n\nIt is the end of the text.",
        ),
        ("Called as in the grammar:\n\n   stmt ::= a | b\n   other ::= c", "Called as in the grammar:"),
        (
            "f(x, y=1) -> int\n\nReturn the sum of the ``x`` and *all* the others, see :func:`sum`.",
            'Return the sum of the "x" and all the others, see sum.',
        ),
        (
            "x -- the first of the two\n     numbers\ny -- the second of the two numbers",
            "x -- the first of the two numbers\n\ny -- the second of the two numbers",
        ),
        (
            "* The first item of a list\n  goes on here\n* The second item of the list",
            "The first item of a list goes on here\n\nThe second item of the list",
        ),
        ("import os\nfor name in os.listdir(path):\n    print(name)", ""),
        ("+-----+-----+\n| one | two |\n+=====+=====+", ""),
    ],
)
def test_cleaning(raw, clean):
    assert prose(raw) == clean
