"""Packages that are optional: the core runs without them, and what needs one says how to install it."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from unmask import errors
from unmask.data import readers
from unmask.errors import UserError

ROOT = Path(errors.__file__).parents[2]
EXTRAS = (
    "datasets",
    "pyarrow",
    "transformers",
    "gguf",
    "peft",
    "jinja2",
    "lm_eval",
    "sklearn",
    "scipy",
    "mauve",
    "tensorboard",
    "pandas",
)


def test_everything_imports_and_a_text_trains_without_extras(tmp_path):
    (tmp_path / "my.txt").write_text("one text of several words\n\n" * 200)
    code = f"""
import importlib, pathlib, sys
for name in {EXTRAS}:
    sys.modules[name] = None
for path in pathlib.Path({str(ROOT / "src")!r}).rglob("unmask/**/*.py"):
    name = ".".join(path.relative_to({str(ROOT / "src")!r}).with_suffix("").parts).removesuffix(".__init__")
    if "transformers" not in name and not name.startswith(("unmask.compat", "unmask.__main__")):
        importlib.import_module(name)
from unmask.cli import main
sys.argv = ["unmask", "train", "tiny", "data.source=my.txt", "train.steps=2", "--out", "run"]
main()
"""
    ran = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True)
    assert (ran.returncode, "Traceback" in ran.stderr) == (0, False), ran.stderr
    assert (tmp_path / "run/checkpoints/step-00000002").is_dir()


def test_a_missing_package_is_one_sentence_with_a_command_that_works_here(monkeypatch, tmp_path):
    monkeypatch.setitem(sys.modules, "pyarrow", None)
    monkeypatch.setitem(sys.modules, "pyarrow.parquet", None)
    with pytest.raises(UserError) as caught:
        list(readers.parquet_rows(tmp_path / "x.parquet", list))
    command = f"{sys.executable} -m pip install -e '{ROOT}[data]'"
    assert str(caught.value) == f"a Parquet file needs the package pyarrow; install it with: {command}"


def test_the_command_names_the_package_where_this_is_no_clone(monkeypatch, tmp_path):
    monkeypatch.setattr(errors, "__file__", str(tmp_path / "site-packages/unmask/errors.py"))
    assert errors.pip("eval") == f"{sys.executable} -m pip install 'unmask[eval]'"


def test_what_an_optional_package_lacks_is_said(monkeypatch, tmp_path):
    (tmp_path / "halfway.py").write_text("import nowhere_at_all\n")
    monkeypatch.syspath_prepend(tmp_path)
    with pytest.raises(UserError, match=r"needs the package halfway \(No module named 'nowhere_at_all'\)"):
        errors.optional("halfway", "a thing", "data")
