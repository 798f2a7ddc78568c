"""Any text is a corpus: source code, tables, lists, compressed files; and a sentence for what is not text."""

from __future__ import annotations

import bz2
import csv
import gzip
import json
import lzma
import os
import re
import shutil
from functools import partial
from pathlib import Path

import numpy as np
import pytest

import unmask
from support.helpers import folder, refused, run, text_file, trained
from unmask.cli.data import lines_of_list
from unmask.config import DataConfig
from unmask.data import python_docs, readers
from unmask.data.adopted import read_tokenizer
from unmask.data.corpora import open_corpus
from unmask.data.detokenize import mojibake
from unmask.data.overview import list_sets
from unmask.data.rows import Rows
from unmask.types import UserError

ROWS = ["first, with a comma", 'second "quoted"', "third\nof two lines"]


def texts(source: Path, **settings) -> list[str]:
    spec = DataConfig(source=str(source), valid_fraction=0, test_fraction=0, cache=str(folder() / "cache"), **settings)
    return [piece.text for piece in open_corpus(spec).documents("train")]


def table(path: Path, column: str = "body") -> Path:
    if path.suffix == ".csv":
        with path.open("w", newline="") as file:
            csv.writer(file).writerows([["n", column], *([i, row] for i, row in enumerate(ROWS))])
    else:
        rows = [{"n": i, column: row} for i, row in enumerate(ROWS)]
        lines = "".join(json.dumps(row) + "\n" for row in rows)
        path.write_text(json.dumps(rows, indent=1) if path.suffix == ".json" else lines)
    return path


@pytest.mark.parametrize("name", ["a.py", "a.md", "a.html", "a.tex", "a.c", "README", "a.log"])
def test_a_file_of_any_name_is_text(tmp_path, name):
    (tmp_path / name).write_text("some text\nof two lines\n")
    assert texts(tmp_path / name) == ["some text\nof two lines\n"]
    assert texts(tmp_path / name, document="line") == ["some text", "of two lines"]


@pytest.mark.parametrize("name", ["t.csv", "t.json", "t.jsonl", "t.ndjson"])
def test_tables(tmp_path, name):
    path = table(tmp_path / name)
    assert texts(path, field="body") == ROWS
    with pytest.raises(UserError, match=r"has no field 'text'; set data\.field to one of 'n', 'body'"):
        texts(path)


def test_tabs_and_lists_of_lines(tmp_path):
    (tmp_path / "t.tsv").write_text('n\ttext\n1\ta "b\n')
    assert texts(tmp_path / "t.tsv") == ['a "b']
    (tmp_path / "lines.json").write_text('{"text": "a"}\n{"text": "b"}\n')
    assert texts(tmp_path / "lines.json") == ["a", "b"]
    (tmp_path / "tree.json").write_text('{\n "text": {"a": 1}\n}')
    with pytest.raises(UserError, match=r"neither a list of rows nor one row per line; .* data.document=file"):
        texts(tmp_path / "tree.json")
    assert texts(tmp_path / "tree.json", document="file") == ['{\n "text": {"a": 1}\n}']
    (tmp_path / "cut.json").write_text('[{"text": "a"}, {"text": "b"')
    with pytest.raises(UserError, match=r"row 2 of .*cut\.json is not JSON"):
        texts(tmp_path / "cut.json")


@pytest.mark.parametrize("chunk", [1, 7, 64])
def test_a_list_is_read_row_by_row_whatever_the_chunks(tmp_path, monkeypatch, chunk):
    monkeypatch.setattr(readers, "CHUNK", chunk)
    rows = [{"text": "x" * n, "n": [n, {"a": -1.5e3}]} for n in range(40)] + ["ä", 12, 345]
    (tmp_path / "t.json").write_text(" \n" + json.dumps(rows, ensure_ascii=False))
    assert [row for _, row in readers.json_rows(tmp_path / "t.json")] == rows


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_compressed_files(tmp_path, ending, pack):
    (tmp_path / f"a.py.{ending}").write_bytes(pack(b"print(1)\n" * 50))
    assert "".join(texts(tmp_path / f"a.py.{ending}")) == "print(1)\n" * 50
    (tmp_path / f"t.csv.{ending}").write_bytes(pack(b"text\nhello\n"))
    assert texts(tmp_path / f"t.csv.{ending}") == ["hello"]
    (tmp_path / f"cut.txt.{ending}").write_bytes(pack(b"print(1)\n" * 5000)[:-20])
    with pytest.raises(UserError, match="cut short or damaged"):
        texts(tmp_path / f"cut.txt.{ending}")


def test_zstd_is_read_where_python_has_it(tmp_path):
    (tmp_path / "a.txt.zst").write_bytes(readers.ZSTD_MAGIC + b"rest")
    with pytest.raises(UserError, match=r"compressed with zstd, which Python reads from version 3\.14|cut short"):
        texts(tmp_path / "a.txt.zst")


@pytest.mark.parametrize(("ending", "pack"), [("gz", gzip.compress), ("xz", lzma.compress), ("bz2", bz2.compress)])
def test_bombs_are_refused_before_they_are_unpacked(tmp_path, monkeypatch, ending, pack):
    monkeypatch.setattr(readers, "BOMB", (1 << 16, 50))
    (tmp_path / f"bomb.jsonl.{ending}").write_bytes(pack(b"0" * (1 << 24)))
    with pytest.raises(UserError, match="unpacks to more than 50 times its size"):
        texts(tmp_path / f"bomb.jsonl.{ending}")


def test_a_row_that_is_too_long_is_refused(tmp_path, monkeypatch):
    monkeypatch.setattr(readers, "MOST_ROW", 1 << 20)
    for name in ("long.jsonl", "long.json"):
        row = json.dumps({"text": "x" * (3 << 20)})
        (tmp_path / name).write_text(f"[{row}]" if name.endswith(".json") else row)
        with pytest.raises(UserError, match=r"(line|row) 1 of .* is longer than"):
            texts(tmp_path / name)


def test_absurd_sizes_are_refused_before_anything_is_read(tmp_path, monkeypatch):
    with (tmp_path / "vocab.txt").open("wb") as file:
        file.truncate(1 << 40)  # no disk is used
    with pytest.raises(UserError, match="more than any tokenizer"):
        read_tokenizer(tmp_path / "vocab.txt")
    (tmp_path / "vocab.txt").rename(tmp_path / "tokenizer.json")
    with pytest.raises(UserError, match="more than any tokenizer"):
        read_tokenizer(tmp_path)
    monkeypatch.setattr(readers, "MOST_ROW", 1 << 16)
    monkeypatch.setattr(readers, "CHUNK", 1 << 12)
    (tmp_path / "long.csv").write_text("text\n" + "x" * (1 << 18))
    with pytest.raises(UserError, match=r"line 2 of .* is longer than|field larger than"):
        texts(tmp_path / "long.csv")


def test_small_files_leave_no_notes(tmp_path):
    for i in range(5):
        (tmp_path / f"{i}.txt").write_text("text")
        os.utime(tmp_path / f"{i}.txt", ns=(10**18, 10**18))
    spec = DataConfig(source=str(tmp_path), cache=str(tmp_path / ".cache"))
    open_corpus(spec)
    assert not (tmp_path / ".cache/hashes").exists()


def test_folders_of_code(tmp_path):
    for name, text in {"train.py": "a", "lib/test_x.py": "b", "notes.md": "c", "lib/x.c": "d"}.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(text)
    with pytest.raises(UserError, match=r"data\.files='\*\.py' \(it has 2 \.py, 1 \.c, 1 \.md\)"):
        texts(tmp_path)
    assert texts(tmp_path, files="*.py") == ["b", "a"]  # their names are not splits
    assert texts(tmp_path, files="*.py, *.md") == ["b", "c", "a"]
    assert texts(tmp_path, files="lib/*") == ["b", "d"]
    with pytest.raises(UserError, match=r"no file that matches data\.files=\*\.rs"):
        texts(tmp_path, files="*.rs")
    with pytest.raises(UserError, match=r"chooses files of a folder"):
        texts(tmp_path / "train.py", files="*.py")


@pytest.mark.parametrize(
    ("content", "sentence"),
    [
        (b"%PDF-1.7 ...", "a PDF; make text of it"),
        (b"PK\3\4...", "a zip file"),
        ("text".encode("utf-16"), "iconv -f utf-16 -t utf-8"),
        (b"abc\0\1\2", "it is not text"),
        (b"caf\xe9 caf\xe9", "is not UTF-8 text"),
    ],
)
def test_what_is_not_text_is_named(tmp_path, content, sentence):
    (tmp_path / "thing.dat").write_bytes(content)
    with pytest.raises(UserError, match=re.escape(sentence)):
        texts(tmp_path / "thing.dat")


# -- evaluation on foreign files -------------------------------------------------------------------------------------


def test_eval_scores_all_of_a_foreign_file(tmp_path):
    held_out = tmp_path / "held-out.txt"
    held_out.write_text("one two three four.\n" * 100)
    how = ("--draws", "1", "--batch-size", "64", "--json")
    ran = run("eval", str(trained()), "--data", str(held_out), *how).json()
    assert ran["protocol"]["split"] == "all" and ran["tokens"] == 100 * 20 + 1  # the end
    ran = run("eval", str(trained()), "--data", str(held_out), "--split", "valid", *how).json()
    assert ran["protocol"]["split"] == "valid" and ran["tokens"] < 1000
    assert run("eval", str(trained()), "--rows", "2", *how).json()["protocol"]["split"] == "valid"
    same = run("eval", str(trained()), "--data", str(text_file()), "--rows", "2", *how).json()
    assert same["protocol"]["split"] == "valid"  # the text of the training
    parts = tmp_path / "parts"
    for split in ("train", "valid"):
        (parts / split).mkdir(parents=True)
        shutil.copy(held_out, parts / split / "a.txt")
    assert run("eval", str(trained()), "--data", str(parts), "--rows", "2", *how).json()["protocol"]["split"] == "valid"
    table(tmp_path / "t.csv")
    assert "set data.field" in refused("eval", str(trained()), "--data", str(tmp_path / "t.csv"))
    assert run("eval", str(trained()), "--data", str(tmp_path / "t.csv"), "--field", "body", *how).code == 0


# -- mojibake --------------------------------------------------------------------------------------------------------


def test_text_that_was_decoded_twice_is_mended_and_other_text_is_not():
    for text in ("don’t", "“Hi,” she said – so", "été à l’œuvre", "1 000 €"):
        wrong = text.encode().decode("cp1252", errors="ignore") if "”" in text else text.encode().decode("cp1252")
        assert wrong != text and mojibake(wrong) == text
    for text in ("naïve café", "“quoted”", "日本語", "Ã Â", "âge"):
        assert mojibake(text) == text


def test_the_demo_corpus_has_none():
    assert not any(mojibake(text) != text for text in python_docs.documents())


# -- the list of data sets -------------------------------------------------------------------------------------------


def test_the_list_fits_the_terminal():
    sets = list_sets()
    for width in (40, 80, 120):
        lines = lines_of_list(sets, width)
        assert max(map(len, lines)) <= width
        assert all(any(record["name"] in line for line in lines) for record in sets)
    assert len(lines_of_list(sets)) == len(sets) + 1  # a pipe gets one line per set


@pytest.mark.parametrize("block_ends", [False, True])
@pytest.mark.parametrize("size", [5, 20, 21, 39])
def test_rest_is_a_shorter_row_and_nothing_else_changes(block_ends, size):
    """Every token of the stream comes back once, in order, with the rest of a row that is not whole."""
    stream = np.arange(10, 10 + size, dtype=np.uint16)
    ends = (1, 2) if block_ends else None
    make = partial(Rows, stream, None, {"documents": 1, "bytes": 3 * size}, 10, ends, pad=0)
    whole, every = make(), make(rest=True)
    tokens, counts = every.rows(range(len(every)))
    counts = np.ones_like(tokens, dtype=bool) if counts is None else counts
    inside = counts & ~np.isin(tokens, (1, 2))
    assert tokens[inside].tolist() == stream.tolist() and (tokens[~counts] == 0).all()
    assert (
        np.array_equal(tokens[: len(whole)], whole.rows(range(len(whole)))[0])
        and whole.rows(range(len(whole)))[1] is None
    )
    assert every.bytes_per_token * counts.sum() == pytest.approx(3 * size)
    if block_ends:
        assert [row[count].tolist()[-1] for row, count in zip(tokens, counts, strict=True)] == [2] * len(every)


def test_a_foreign_file_is_scored_to_its_last_token(tmp_path):
    """`eval` of a file shorter than a row is what `score` says of its text, by the exact law of a causal model."""
    (tmp_path / "held.txt").write_text("a short text")
    out = tmp_path / "ar"
    train = ("train", "tiny", f"data.source={words(tmp_path)}", "data.tokenizer=bytes", "data.eos_between=false")
    assert run(*train, "model.method=ar", "train.steps=2", "--out", str(out), "--quiet").code == 0
    found = run("eval", str(out), "--data", str(tmp_path / "held.txt"), "--json").json()
    scored = unmask.load(out).score("a short text")
    assert found["tokens"] == scored.tokens == 12 and found["protocol"]["rest"]
    assert found["nats_per_token"] == pytest.approx(scored.nats_per_token, rel=1e-5)


def words(folder):
    path = folder / "words.txt"
    path.write_text("some words of a text that is long enough for a few rows\n" * 60)
    return path
