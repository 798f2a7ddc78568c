"""Files to lines and rows: what gzip, csv and the plain file say is the same, and damage is named."""

from __future__ import annotations

import csv
import gzip

import pytest

from unmask.data import readers
from unmask.types import UserError

TEXT = "a\tb\r\nc\n\nlast"


@pytest.mark.parametrize("name", ["x.txt", "x.txt.gz", "x"])
def test_lines_are_numbered_plain_or_packed(tmp_path, name):
    content = TEXT.encode("utf-8-sig")
    (tmp_path / name).write_bytes(gzip.compress(content) if name != "x.txt" else content)
    assert list(readers.numbered_lines(tmp_path / name)) == [(1, "a\tb"), (2, "c"), (3, ""), (4, "last")]


def test_a_file_that_is_not_what_it_says(tmp_path):
    path = tmp_path / "x.bin"
    path.write_bytes(b"abc\xff")
    with pytest.raises(UserError, match=r"is not UTF-8 text: bad byte at offset 3"):
        list(readers.read_lines(path))
    with pytest.raises(UserError, match=r"x\.bin is not text; give a VCF"):
        list(readers.numbered_lines(path, "VCF"))
    with pytest.raises(UserError, match="there is no file"):
        list(readers.read_lines(tmp_path / "none"))
    with pytest.raises(UserError, match="is a folder"):
        list(readers.read_lines(tmp_path))


def test_cells_are_those_of_csv(tmp_path):
    path = tmp_path / "x.csv"
    path.write_text('name,text\n\na,"one, two"\nb,"three\nfour"\n')
    rows = list(readers.csv_rows(path))
    with path.open(newline="") as file:
        assert [cells for _, cells in rows] == [cells for cells in csv.reader(file) if cells]
    assert [readers.number_in(where) for where, _ in rows] == ["1", "3", "5"]  # a row ends in its line
    assert rows[1][0] == f"line 3 of {path}"
    path.write_text('a,"b\n')
    with pytest.raises(UserError, match=r"of .*x\.csv is damaged \(unexpected end of data\); write the file again"):
        list(readers.csv_rows(path))


def test_progress_counts_bytes_of_the_packed_file(tmp_path):
    path, seen = tmp_path / "x.gz", []
    path.write_bytes(gzip.compress(b"x" * 3_000_000))
    assert (
        b"".join(readers.read_bytes(path, 1 << 20, lambda done, total: seen.append((done, total)))) == b"x" * 3_000_000
    )
    size = path.stat().st_size
    assert len(seen) == 3 and all(0 < done <= size and total == size for done, total in seen)
