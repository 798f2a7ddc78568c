"""Corpora: sources, splits, fingerprints and the sentences for what is missing."""

import gzip
import json
import os
from collections import Counter
from itertools import chain, islice

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from unmask.config import DataConfig
from unmask.data import corpora, online
from unmask.data.cache import file_hash
from unmask.data.corpora import Division, open_corpus
from unmask.data.documents import Piece
from unmask.types import UserError


@pytest.fixture
def spec(tmp_path):
    """A config with a cache of its own."""

    def make(source, **settings):
        return DataConfig(source=str(source), cache=str(tmp_path / "cache"), **settings)

    return make


def texts(corpus, split):
    return [piece.text for piece in corpus.documents(split)]


def lines(path, count, word="line"):
    path.write_text("".join(f"{word} {i}\n" for i in range(count)))
    return path


# ---- division into splits


@given(st.floats(0.01, 0.5), st.floats(0.01, 0.45), st.integers(0, 99), st.integers(1, 2000))
def test_division_has_the_fractions_asked_for(valid, test, seed, count):
    found = Counter(islice(Division(valid, test, seed).names(), count))
    assert abs(found["valid"] - valid * count) <= 1.01
    assert abs(found["test"] - test * count) <= 2.1
    assert sum(found.values()) == count


def test_division_is_stratified_and_seeded():
    first, again, other = (list(islice(Division(0.05, 0.05, seed).names(), 2000)) for seed in (0, 0, 1))
    assert first == again != other
    for run in range(0, 2000, 20):
        assert first[run : run + 20].count("valid") == 1
    assert len({first[run : run + 20].index("valid") for run in range(0, 2000, 20)}) > 10, "not always the same place"
    assert set(islice(Division(0, 0, 0).names(), 50)) == {"train"}
    assert Division(0.1, 0, 0).splits == ("train", "valid")


@given(st.lists(st.booleans(), max_size=60), st.integers(0, 5))
def test_documents_end_where_their_next_piece_goes_elsewhere(ends, seed):
    pieces = [Piece(f"{i} ", end) for i, end in enumerate(ends)]
    names = list(islice(Division(0.3, 0.2, seed).names(), len(pieces)))
    divided = list(Division(0.3, 0.2, seed).divide(pieces))
    assert [(split, piece.text) for split, piece in divided] == [
        (n, p.text) for n, p in zip(names, pieces, strict=True)
    ]
    for i, (_, piece) in enumerate(divided):
        last = i == len(pieces) - 1
        assert piece.ends == (last or ends[i] or names[i] != names[i + 1])


def test_one_file_is_divided_without_loss(tmp_path, spec):
    corpus = open_corpus(spec(lines(tmp_path / "a.txt", 400), document="line"))
    assert corpus.splits == ("train", "valid", "test")
    parts = {split: texts(corpus, split) for split in corpus.splits}
    assert sorted(chain(*parts.values())) == sorted(f"line {i}" for i in range(400))
    assert len(parts["valid"]) == 20
    assert abs(len(parts["test"]) - 20) <= 1


def test_one_document_can_still_be_divided(tmp_path, spec):
    text = " ".join(f"word{i}" for i in range(20_000))  # one file, one line
    (tmp_path / "a.txt").write_text(text)
    corpus = open_corpus(spec(tmp_path / "a.txt"))
    sizes = {split: sum(map(len, texts(corpus, split))) / len(text) for split in corpus.splits}
    assert 0.03 < sizes["valid"] < 0.07
    assert 0.03 < sizes["test"] < 0.07
    assert sum(sizes.values()) == pytest.approx(1)
    everything = open_corpus(spec(tmp_path / "a.txt", valid_fraction=0, test_fraction=0))
    assert everything.splits == ("train",)
    assert "".join(texts(everything, "train")) == text
    assert [piece.ends for piece in everything.documents("train")].count(True) == 1


def test_asking_for_one_split_or_all_gives_the_same(tmp_path, spec):
    corpus = open_corpus(spec(lines(tmp_path / "a.txt", 90), document="line"))
    every = list(corpus.pieces(corpus.splits))
    for split in corpus.splits:
        assert list(corpus.documents(split)) == [piece for name, piece in every if name == split]


# ---- folders


def test_folder_with_its_own_splits(tmp_path, spec):
    folder = tmp_path / "ptb"
    folder.mkdir()
    for split in ("train", "valid", "test"):
        lines(folder / f"ptb.{split}.txt", 3, split)
    (folder / "README.txt").write_text("not a part of it")
    corpus = open_corpus(spec(folder, document="line"))
    assert corpus.splits == ("train", "valid", "test")
    assert texts(corpus, "valid") == ["valid 0", "valid 1", "valid 2"]
    assert "1 ignored" in corpus.description


@pytest.mark.parametrize("name", ["validation.jsonl", "val-00000-of-00001.jsonl", "my_dev.jsonl", "valid/part.jsonl"])
def test_names_of_the_valid_split(tmp_path, spec, name):
    folder = tmp_path / "corpus"
    (folder / "valid").mkdir(parents=True)
    (folder / "train.jsonl").write_text(json.dumps({"text": "t"}))
    (folder / name).write_text(json.dumps({"text": "v"}))
    corpus = open_corpus(spec(folder))
    assert (texts(corpus, "train"), texts(corpus, "valid")) == (["t"], ["v"])
    with pytest.raises(UserError, match=r"has no split 'test'.* it has train, valid"):
        corpus.documents("test")


def test_folder_without_splits_is_one_corpus_of_all_formats(tmp_path, spec):
    folder = tmp_path / "corpus"
    (folder / "sub").mkdir(parents=True)
    (folder / "b.txt").write_text("from b")
    (folder / "sub" / "a.txt.gz").write_bytes(gzip.compress(b"from a"))
    (folder / "how_to_test.jsonl").write_text('{"text": "from jsonl"}')
    pq.write_table(pa.table({"text": ["from parquet"]}), folder / "c.parquet")
    (folder / ".hidden.txt").write_text("no")
    (folder / "image.png").write_bytes(b"\xff")
    corpus = open_corpus(spec(folder, valid_fraction=0, test_fraction=0))
    assert texts(corpus, "train") == ["from b", "from parquet", "from jsonl", "from a"]


def test_auto_documents(tmp_path, spec):
    path = tmp_path / "a.txt"
    path.write_text("one\ntwo\n\nthree\n")
    whole = {"valid_fraction": 0, "test_fraction": 0}
    assert texts(open_corpus(spec(path, **whole)), "train") == ["one\ntwo\n\nthree\n"]
    assert texts(open_corpus(spec(path, layout="pad", **whole)), "train") == ["one\ntwo", "three"]
    path.write_text("one\ntwo\nthree\n")
    assert texts(open_corpus(spec(path, layout="pad", **whole)), "train") == ["one", "two", "three"]


# ---- fingerprints


def test_fingerprint_is_of_the_content_not_of_the_path(tmp_path, spec):
    first, second = lines(tmp_path / "a.txt", 50), lines(tmp_path / "b.txt", 50)
    print_of = lambda path, **settings: open_corpus(spec(path, **settings)).fingerprint  # noqa: E731
    assert print_of(first) == print_of(second)
    second.write_text(first.read_text() + "x")
    assert print_of(first) != print_of(second)
    assert (
        len({print_of(first, **s) for s in ({}, {"document": "line"}, {"split_seed": 1}, {"test_fraction": 0.1})}) == 4
    )


def test_big_files_are_hashed_once_but_never_wrongly(tmp_path, monkeypatch):
    path = lines(tmp_path / "a.txt", 50)
    cache = tmp_path / "cache"
    cache.mkdir()
    monkeypatch.setattr("unmask.data.cache.SMALL", 0)
    fresh = file_hash(path, cache)
    assert not list(cache.rglob("*.json")), "a file written a moment ago may still change within its time stamp"
    os.utime(path, ns=(10**18, 10**18))
    assert file_hash(path, cache) == fresh
    reads = []
    monkeypatch.setattr("hashlib.file_digest", lambda *a: reads.append(a))
    assert file_hash(path, cache) == fresh
    assert not reads
    monkeypatch.undo()
    path.write_text(path.read_text().replace("line 1\n", "line X\n"))  # same size
    os.utime(path, ns=(10**18 + 1, 10**18 + 1))
    assert file_hash(path, cache) != fresh


# ---- what users get wrong


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("python-doc", r"no corpus, file or folder 'python-doc' \(did you mean 'python-docs'\?\)"),
        ("missing.txt", "file or folder missing.txt does not exist"),
        ("/no/such/place", "file or folder /no/such/place does not exist"),
    ],
)
def test_unknown_sources(spec, source, message):
    with pytest.raises(UserError, match=message):
        open_corpus(spec(source))


def test_files_that_are_no_corpora(tmp_path, spec):
    for name, content, message in [
        ("a.txt", "", "holds no text"),
        ("b.txt", " \n\n", "holds no text"),
        ("c.pdf", "%PDF-1.7", "is not a corpus but a PDF"),
        ("d.jsonl", '{"body": "x"}', "no field 'text'"),
    ]:
        (tmp_path / name).write_text(content)
        with pytest.raises(UserError, match=message):
            open_corpus(spec(tmp_path / name))
    (tmp_path / "empty").mkdir()
    with pytest.raises(UserError, match=r"holds no \.txt"):
        open_corpus(spec(tmp_path / "empty"))


def test_unusable_cache_folder(tmp_path):
    (tmp_path / "file").write_text("x")
    with pytest.raises(UserError, match="could not write the cache folder"):
        open_corpus(DataConfig(source=str(lines(tmp_path / "a.txt", 9)), cache=str(tmp_path / "file" / "cache")))


# ---- the Hub


def test_hub_name_without_network(spec, monkeypatch):
    monkeypatch.setattr(online, "reachable", lambda: False)
    with pytest.raises(UserError, match=r"'owner/corpus' is not a named data set .*Hub cannot be reached"):
        open_corpus(spec("owner/corpus"))


def test_hub_data_set(spec, monkeypatch):
    import datasets

    calls = []

    def load_dataset(*args, **settings):
        calls.append((args, settings))
        rows = {name: datasets.Dataset.from_dict({"body": [f"{name} {i}" for i in range(3)]}) for name in names}
        return datasets.DatasetDict(rows)

    monkeypatch.setattr(datasets, "load_dataset", load_dataset)
    monkeypatch.setattr(online, "reachable", lambda: True)
    names = ["train", "validation", "test", "extra"]
    corpus = open_corpus(spec("owner/corpus", subset="small", field="body"))
    assert corpus.splits == ("train", "valid", "test", "extra")
    assert texts(corpus, "valid") == ["validation 0", "validation 1", "validation 2"]
    assert calls[0][0] == ("owner/corpus", "small")
    assert "trust_remote_code" not in calls[0][1]
    with pytest.raises(UserError, match=r"has no field 'text'.*'body'"):
        open_corpus(spec("owner/corpus"))
    names = ["train"]  # as OpenWebText: divided like a file
    corpus = open_corpus(spec("owner/corpus", field="body", valid_fraction=0.5))
    assert corpus.splits == ("train", "valid", "test")
    assert corpora.SPLIT_NAMES["dev"] == "valid"


def test_the_division_is_this_one() -> None:
    """Golden: caches hold splits that were made at different times, so another division needs another SPLITTING."""
    names = list(islice(Division(0.05, 0.05, 0).names(), 100))
    valid, test = ([i for i, name in enumerate(names) if name == split] for split in ("valid", "test"))
    assert (corpora.SPLITTING, valid, test) == (2, [4, 29, 50, 66, 96], [13, 30, 47, 68, 84])
