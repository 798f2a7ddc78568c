"""Files and folders that are complete or absent, whatever goes wrong while they are written."""

from __future__ import annotations

import errno
import os
import stat
import subprocess
import sys
from pathlib import Path

import pytest

from unmask import files
from unmask.errors import UserError


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, "No space left on device")


@pytest.fixture
def old(tmp_path: Path) -> Path:
    path = tmp_path / "a.txt"
    path.write_text("old")
    return path


@pytest.mark.parametrize("step", ["fsync", "replace"])
def test_a_full_disk_leaves_the_old_file_and_nothing_else(old, step, monkeypatch):
    monkeypatch.setattr(os, step, full)
    with pytest.raises(
        files.WriteError, match=r"could not write .*a\.txt \(no space left on device\); free some space"
    ):
        files.write_text(old, "new")
    assert old.read_text() == "old" and os.listdir(old.parent) == ["a.txt"]


def test_a_kill_leaves_the_old_file(old):
    code = (
        "import os, sys\nfrom unmask import files\n"
        "with files.replacing(sys.argv[1]) as new:\n    new.write_text('half'); os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, old], check=False).returncode == 9
    assert old.read_text() == "old"


def test_two_writers_do_not_share_a_temporary_file(old):
    with files.replacing(old) as first, files.replacing(old) as second:
        first.write_text("one")
        second.write_text("two")
    assert old.read_text() == "one", "the last to end"
    assert os.listdir(old.parent) == ["a.txt"]


def test_the_outer_explanation_wins(old, monkeypatch):
    monkeypatch.setattr(os, "replace", full)
    said = r"^could not write the cache \(no space left on device\); set UNMASK_CACHE$"
    with pytest.raises(UserError, match=said), files.writing("the cache", "set UNMASK_CACHE"):
        files.write_json(old, {})


def test_other_errors_are_not_explained_away():
    with pytest.raises(KeyError), files.writing("it", "do that"):
        raise KeyError("a bug")


# -- folders ----------------------------------------------------------------------------------------------------------


def test_a_folder_is_there_when_the_block_ended_well(tmp_path):
    folder = tmp_path / "new" / "folder"
    with files.replacing_folder(folder) as temporary:
        (temporary / "a").write_text("1")
        assert not folder.exists()
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["folder"] and (folder / "a").read_text() == "1"
    with pytest.raises(OSError), files.replacing_folder(folder) as temporary:  # noqa: PT011
        (temporary / "a").write_text("2")
    assert (folder / "a").read_text() == "1", "it was not empty"


def test_a_sealed_folder_replaces_the_old_one_or_leaves_it(tmp_path):
    folder = tmp_path / "sealed"
    for text in ("1", "2"):
        with files.sealed_folder(folder) as temporary:
            (temporary / "deep").mkdir()
            (temporary / "deep" / "a").write_text(text)
    with pytest.raises(FileNotFoundError), files.sealed_folder(folder) as temporary:
        (temporary / "gone" / "a").write_text("3")
    files.verify(folder, "box")
    assert (folder / "deep" / "a").read_text() == "2" and os.listdir(tmp_path) == ["sealed"]


def test_whatever_is_done_to_a_sealed_file_is_named(tmp_path):
    folder = tmp_path / "sealed"
    with files.sealed_folder(folder) as temporary:
        (temporary / "a").write_text("12")
        (temporary / "b").write_text("34")
    (folder / "a").write_text("13")
    with pytest.raises(UserError, match=r"^box file .*/a is damaged: its checksum does not match; mend it$"):
        files.verify(folder, "box", "; mend it")
    files.verify(folder, "box", only="b")
    (folder / "b").write_text("345")
    with pytest.raises(UserError, match="b is damaged: 3 bytes instead of 2"):
        files.verify(folder, "box", only="b")
    (folder / "b").unlink()
    with pytest.raises(UserError, match="b is missing"):
        files.verify(folder, "box", only="b")
    (folder / files.MANIFEST).write_text("{")
    with pytest.raises(UserError, match=r"box .* is incomplete: .*manifest\.json is damaged \(it is not JSON\)"):
        files.verify(folder, "box")


def test_sealed_files_are_as_open_as_the_manifest(tmp_path):
    with files.sealed_folder(tmp_path / "sealed") as temporary:
        (temporary / "a").write_text("1")
        (temporary / "a").chmod(0o600)
    assert len({stat.S_IMODE(path.stat().st_mode) for path in (tmp_path / "sealed").iterdir()}) == 1


# -- JSON -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("content", "said"),
    [
        (None, "does not exist"),
        (b"{", "it is not JSON"),
        (b"\xff", "it is not JSON"),
        (b"[1]", "it is not a JSON object"),
        (b"[" * 100_000, "it is not JSON"),
    ],
)
def test_what_is_not_a_json_object_is_one_sentence(tmp_path, content, said):
    path = tmp_path / "a.json"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(UserError, match=rf"^cannot read it: .*a\.json .*{said}"):
        files.read_json(path, "cannot read it")
    assert files.read_json_or_none(path) is None


def test_a_json_file_comes_back(tmp_path):
    path, content = tmp_path / "a.json", {"b": [1, "é"], "a": None}
    files.write_json(path, content | {"a": float("nan")})
    assert files.read_json(path) == content == files.read_json_or_none(path)


def test_a_folder_is_not_a_json_file(tmp_path):
    with pytest.raises(UserError, match=r"cannot be read \(is a directory\)"):
        files.read_json(tmp_path)
