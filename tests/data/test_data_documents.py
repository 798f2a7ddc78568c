"""Readers: what a document is, where long ones are cut, and what users get wrong."""

import gzip
import json

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data import documents
from unmask.data.documents import Piece, by_file, by_line, by_paragraph, cut, read_jsonl, read_parquet, read_text
from unmask.types import UserError

LINES = st.lists(st.text(alphabet=" \tab\n", max_size=12), max_size=12)


def whole(pieces):
    """Documents put together again from their pieces."""
    found, current = [], ""
    for text, ends, _ in pieces:
        current += text
        if ends:
            found.append(current)
            current = ""
    assert current == "", "the last piece ends its document"
    return found


@given(chunks=LINES)
def test_lines_whatever_the_chunks(chunks):
    expected = [line for line in "".join(chunks).split("\n") if line.strip()]
    assert whole(cut(by_line(chunks))) == expected


@given(chunks=LINES)
def test_paragraphs_whatever_the_chunks(chunks):
    expected, current = [], []
    for line in [*"".join(chunks).split("\n"), ""]:  # the obvious way: collect lines until a blank one
        if line.strip():
            current.append(line)
        elif current:
            expected.append("\n".join(current))
            current = []
    assert whole(cut(by_paragraph(chunks))) == expected


@given(chunks=LINES, size=st.integers(2, 9))
def test_cutting_loses_nothing_and_respects_the_size(chunks, size):
    text = "".join(chunks)
    pieces = list(cut(by_file(chunks), size))
    assert "".join(piece.text for piece in pieces) == (text if text.strip() or len(text) > size else "")
    assert all(0 < len(piece.text) <= size for piece in pieces)
    assert [piece.ends for piece in pieces] == [False] * (len(pieces) - 1) + [True] * bool(pieces)


def test_cuts_prefer_paragraphs_then_lines_then_words():
    text = "one two three\nfour five\n\nsix seven eight nine"
    assert [p.text for p in cut([(text, True)], 30)] == ["one two three\nfour five\n", "\nsix seven eight nine"]
    assert [p.text for p in cut([("one two\nthree four", True)], 10)] == ["one two", "\nthree", " four"]
    assert [p.text for p in cut([("x" * 25, True)], 10)] == ["x" * 10, "x" * 10, "x" * 5]


def test_text_in_small_chunks_keeps_characters_and_newlines_whole(tmp_path, monkeypatch):
    monkeypatch.setattr("unmask.data.readers.CHUNK", 3)
    path = tmp_path / "a.txt"
    path.write_bytes("\ufeffa€\r\nb\rc🙂\n".encode())
    assert "".join(read_text(path)) == "a€\nb\nc🙂\n"


@pytest.mark.parametrize(
    ("data", "offset"), [(b"abc\xff", 3), (b"abcdefgh\xe2\x82", 8), ("€€€".encode() + b"\xe2(", 9)]
)
def test_not_utf8_names_file_and_offset(tmp_path, monkeypatch, data, offset):
    monkeypatch.setattr("unmask.data.readers.CHUNK", 4)
    path = tmp_path / "latin.txt"
    path.write_bytes(data)
    with pytest.raises(UserError, match=rf"latin\.txt is not UTF-8 text: bad byte at offset {offset};"):
        list(read_text(path))


def test_gzip_and_damaged_gzip(tmp_path):
    path = tmp_path / "a.txt.gz"
    path.write_bytes(gzip.compress(b"hello\nworld\n" * 1000))
    assert "".join(read_text(path)) == "hello\nworld\n" * 1000
    path.write_bytes(path.read_bytes()[:-9])
    with pytest.raises(UserError, match="cut short or damaged"):
        list(read_text(path))


def test_jsonl(tmp_path):
    path = tmp_path / "a.jsonl"
    rows = [{"text": "a\nb", "id": 1}, {"text": None}, {"text": ""}, {"text": "\ud800x"}]
    path.write_text("\n\n".join(map(json.dumps, rows)))
    assert [p.text for p in documents.read(path, "row", "text", 99)] == ["a\nb", "\ufffdx"]


@pytest.mark.parametrize(
    ("line", "message"),
    [
        (b'{"text": "a"', r"line 2 of .*a\.jsonl is not JSON"),
        (b'["a"]', "line 2 of .* is not a JSON object"),
        (b'{"txt": "a"}', r"line 2 of .* has no field 'text' \(did you mean 'txt'\?\)"),
        (b'{"text": 3}', "field 'text' in line 2 of .* is int, not text"),
        (b'{"text": "\xff"}', "bad byte at offset 24"),
    ],
)
def test_jsonl_mistakes(tmp_path, line, message):
    path = tmp_path / "a.jsonl"
    path.write_bytes(b'{"text": "a"}\n' + line)
    with pytest.raises(UserError, match=message):
        list(read_jsonl(path, "text"))


def test_parquet(tmp_path):
    path = tmp_path / "a.parquet"
    texts = [f"document {i}" if i % 7 else None for i in range(1000)]
    pq.write_table(pa.table({"body": texts, "n": list(range(1000))}), path)
    assert [entry.text for entry in read_parquet(path, "body")] == [text for text in texts if text]
    with pytest.raises(UserError, match=r"no field 'boddy' \(did you mean 'body'\?\)"):
        list(read_parquet(path, "boddy"))
    with pytest.raises(UserError, match="not text"):
        list(read_parquet(path, "n"))
    path.write_bytes(b"PAR1 nonsense")
    with pytest.raises(UserError, match="cannot be read as a Parquet file"):
        list(read_parquet(path, "body"))


@settings(max_examples=30)
@given(st.text(min_size=1, max_size=200), st.integers(2, 40))
def test_pieces_are_pieces_of_any_text(text, size):
    assert "".join(p.text for p in cut([(text, False), ("", True)], size)) in ("", text)
    assert isinstance(next(iter(cut([("x", True)]))), Piece)
