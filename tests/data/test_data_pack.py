"""Packing: no token lost or doubled, cache keys that never collide, damage that is noticed, constant memory."""

import json
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from support.helpers import _server
from support.paths import DATA
from unmask.config import DataConfig
from unmask.data import pack
from unmask.data.pack import prepare
from unmask.data.tokenization import adopt, bytes_tokenizer
from unmask.types import UserError

WHOLE = {"valid_fraction": 0, "test_fraction": 0}
EOS = BOS = 256
PAD = 257
DOCUMENTS = st.lists(st.text(alphabet="abc é\n", min_size=0, max_size=30), min_size=1, max_size=25)


def write(folder, documents, name="a.jsonl"):
    path = Path(folder) / name
    path.write_text("".join(json.dumps({"text": text}) + "\n" for text in documents))
    return path


def spec_for(folder, path, **settings):
    return DataConfig(**{"source": str(path), "cache": f"{folder}/cache", "tokenizer": "bytes", **settings})


@pytest.fixture
def corpus(tmp_path):
    path = write(tmp_path, [f"document number {i} of the corpus" for i in range(100)])
    return lambda **settings: spec_for(tmp_path, path, **settings)


# ---- wrap


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(3, 20), st.booleans(), st.booleans())
def test_wrap_loses_and_doubles_nothing(documents, length, block_ends, eos_between):
    kept = [text for text in documents if text.strip()]
    stream = [token for text in kept for token in [*text.encode(), *([EOS] if eos_between else [])]]
    room = length - 2 if block_ends else length
    with tempfile.TemporaryDirectory() as folder:
        settings = {"length": length, "block_ends": block_ends, "eos_between": eos_between}
        spec = spec_for(folder, write(folder, documents), **settings, **WHOLE)
        if len(stream) < room:
            with pytest.raises(UserError):
                prepare(spec).split("train")
            return
        rows = prepare(spec).split("train")
        tokens, scored = rows.rows(range(len(rows)))
        assert tokens.shape == (len(stream) // room, length)
        assert tokens.dtype == np.int64
        assert scored is None
        if block_ends:
            assert (tokens[:, 0] == BOS).all()
            assert (tokens[:, -1] == EOS).all()
            tokens = tokens[:, 1:-1]
        assert tokens.ravel().tolist() == stream[: tokens.size]
        assert len(stream) - tokens.size < room, "less than one block is dropped"
        assert (rows.tokens, rows.documents) == (len(stream), len(kept))


def test_no_end_of_text_inside_a_document(tmp_path):
    path = tmp_path / "a.txt"
    path.write_text("word " * 40_000)  # four pieces of the largest size or more, one document
    rows = prepare(spec_for(tmp_path, path, length=100, **WHOLE)).split("train")
    assert (np.asarray(rows.stream) == EOS).sum() == 1
    assert bytes(rows.stream[:-1].astype(np.uint8)) == path.read_bytes()


def test_splits_are_disjoint_and_complete(corpus):
    prepared = prepare(corpus(length=4))
    texts = set()
    for name in ("train", "valid", "test"):
        stream = bytes(255 if t == EOS else t for t in prepared.split(name).stream)
        found = stream.split(b"\xff")[:-1]
        assert not texts & set(found)
        texts |= set(found)
    assert len(texts) == 100


# ---- pad


@settings(max_examples=60, deadline=None)
@given(DOCUMENTS, st.integers(3, 20), st.booleans())
def test_pad_is_one_document_a_row(documents, length, block_ends):
    kept = [text.encode() for text in documents if text.strip()]
    with tempfile.TemporaryDirectory() as folder:
        spec = spec_for(folder, write(folder, documents), length=length, block_ends=block_ends, layout="pad", **WHOLE)
        if not kept:
            with pytest.raises(UserError):
                prepare(spec).split("train")
            return
        rows = prepare(spec).split("train")
        tokens, scored = rows.rows(np.arange(len(rows)))
        assert len(rows) == rows.documents == len(kept)
        for row, mark, text in zip(tokens.tolist(), scored.tolist(), kept, strict=True):
            expected = [BOS, *text[: length - 2], EOS] if block_ends else [*text, EOS][:length]
            assert row == expected + [PAD] * (length - len(expected))
            assert mark == [True] * len(expected) + [False] * (length - len(expected))
        if not block_ends and max(map(len, kept)) <= length:
            size, ends = sum(map(len, kept)), sum(len(text) < length for text in kept)
            assert rows.bytes_per_token == pytest.approx(size / (size + ends))


def test_pad_drops_documents_without_tokens_and_pads_without_a_pad_token(tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, normalizers, pre_tokenizers

    backend = Backend(models.WordLevel({"x": 0, "</s>": 1}, unk_token="x"))
    backend.normalizer = normalizers.Replace("b", " ")
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = adopt(backend, "words", {})
    path = write(tmp_path, ["a a", "bb", "a"])
    rows = prepare(spec_for(tmp_path, path, layout="pad", length=3, **WHOLE), tokenizer).split("train")
    assert rows.rows([0, 1])[0].tolist() == [[0, 0, 1], [0, 1, 1]], "</s> fills the row"
    assert len(rows) == 2
    assert tokenizer.vocab.mask == 2


# ---- counts


def test_bytes_per_token_and_description(corpus):
    rows = prepare(corpus(length=10, **WHOLE)).split("train")
    text = sum(len(f"document number {i} of the corpus") for i in range(100))
    assert rows.bytes_per_token == pytest.approx(text / (text + 100))
    framed = prepare(corpus(length=10, block_ends=True, **WHOLE)).split("train")
    assert framed.bytes_per_token == pytest.approx(0.8 * text / (text + 100))
    said = rows.describe()
    assert (said["bytes"], said["documents"], said["rows"]) == (text, 100, (text + 100) // 10)
    assert (said["layout"], said["length"], said["tokenizer"], said["split"]) == ("wrap", 10, "bytes", "train")
    json.dumps(said)


def test_large_vocabularies_take_four_bytes(tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    backend = Backend(models.WordLevel({f"w{i}": i for i in range(70_000)}, unk_token="w0"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    spec = spec_for(tmp_path, write(tmp_path, ["w65535 w65536 w69999 w1"]), length=2, eos_between=False, **WHOLE)
    rows = prepare(spec, adopt(backend, "many", {})).split("train")
    assert rows.rows([0, 1])[0].tolist() == [[65535, 65536], [69999, 1]]
    assert prepare(spec).split("train").stream.dtype == np.uint16


# ---- the cache


def test_cache_keys(corpus):
    settings = [
        {},
        {"tokenizer": "chars"},
        {"tokenizer": "bpe", "vocab_size": 265},
        {"tokenizer": "bpe", "vocab_size": 266},
        {"layout": "pad"},
        {"eos_between": False},
        {"split_seed": 1},
        {"valid_fraction": 0.1},
        {"test_fraction": 0.1},
    ]
    names = {prepare(corpus(length=4, **s)).fingerprint for s in settings}
    assert len(names) == len(settings)
    assert prepare(corpus(length=5, block_ends=True)).fingerprint in names, "a view on the same bytes"


def test_cache_follows_content(tmp_path):
    path = write(tmp_path, ["one", "two"])
    first = prepare(spec_for(tmp_path, path, length=2))
    write(tmp_path, ["one", "too"])
    assert prepare(spec_for(tmp_path, path, length=2)).fingerprint != first.fingerprint
    copy = write(tmp_path, ["one", "two"], "copy.jsonl")
    assert prepare(spec_for(tmp_path, copy, length=2)).fingerprint == first.fingerprint


def test_cache_is_used(corpus, monkeypatch):
    expected = np.asarray(prepare(corpus(tokenizer="bpe", vocab_size=300, length=4)).split("valid").stream)

    def never(*_, **__):
        raise AssertionError("tokenized or trained again")

    monkeypatch.setattr(pack, "write_splits", never)
    monkeypatch.setattr(pack, "make_tokenizer", never)
    again = prepare(corpus(tokenizer="bpe", vocab_size=300, length=4)).split("valid").stream
    assert np.array_equal(again, expected)


def test_splits_asked_for_one_at_a_time_are_the_same(corpus, tmp_path):
    together = prepare(corpus(length=4))
    apart = prepare(corpus(length=4, cache=str(tmp_path / "other")), splits=["test"])
    assert sorted(p.name for p in apart.folder.glob("*.bin")) == ["test.bin"]
    for split in ("test", "train", "valid"):
        assert np.array_equal(together.split(split).stream, apart.split(split).stream)


@pytest.mark.parametrize("damage", ["cut", "flip", "record", "no record", "no stream"])
@pytest.mark.parametrize("layout", ["wrap", "pad"])
def test_damage_is_noticed_and_repaired(corpus, damage, layout, caplog):
    prepared = prepare(corpus(length=4, layout=layout))
    before = np.array(prepared.split("train").stream)
    stream, record = prepared.folder / "train.bin", prepared.folder / "train.json"
    if damage == "cut":
        os.truncate(stream, stream.stat().st_size - 2)
    elif damage == "flip":
        data = bytearray(stream.read_bytes())
        data[7] ^= 1
        stream.write_bytes(data)
    elif damage == "record":
        record.write_text(record.read_text()[:40])
    elif damage == "no record":
        record.unlink()
    else:
        stream.unlink()
    assert np.array_equal(prepare(corpus(length=4, layout=layout)).split("train").stream, before)
    assert ("damaged" in caplog.text) == (damage != "no record")


def test_an_interrupted_run_leaves_nothing_behind(corpus, monkeypatch):
    calls = []

    def interrupted(done, total):
        calls.append(done)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        prepare(corpus(length=4), progress=interrupted)
    cache = Path(corpus().cache)
    assert not list(cache.rglob("*.part"))
    assert not list(cache.rglob("train*"))
    assert calls
    prepare(corpus(length=4)).split("train")


def test_progress_reaches_the_end(corpus):
    seen = []
    prepare(corpus(length=4), progress=lambda done, total: seen.append((done, total)))
    size = Path(corpus().source).stat().st_size
    assert seen[-1] == (size, size)
    assert seen == sorted(seen)


def _prepare_in_process(settings):
    return prepare(DataConfig(**settings)).split("train").tokens


def test_several_processes_at_once(corpus):
    settings = corpus(length=4, tokenizer="bpe", vocab_size=300).model_dump()
    with _server().Pool(2) as pool:
        counts = pool.map(_prepare_in_process, [settings] * 2, chunksize=1)
    assert counts == [prepare(DataConfig(**settings)).split("train").tokens] * 2
    assert not list(Path(settings["cache"]).rglob("*.part"))


# ---- what users get wrong


def test_too_short_for_one_block(corpus, tmp_path):
    prepared = prepare(corpus(length=100_000))
    tokens = json.loads((prepared.folder / "valid.json").read_text())["tokens"]
    with pytest.raises(
        UserError, match=rf"'valid' of .* has {tokens} tokens, shorter than one block of data.length=1000"
    ):
        prepared.split("valid")


def test_missing_and_empty_splits_matter_only_when_asked_for(tmp_path):
    path = write(tmp_path, ["one document"])
    prepared = prepare(spec_for(tmp_path, path, length=4, valid_fraction=0, test_fraction=0.001))
    assert len(prepared.split("train")) == 3
    with pytest.raises(UserError, match="has no split 'valid'"):
        prepared.split("valid")
    with pytest.raises(UserError, match=r"split 'test' of .* is empty; give a larger data.test_fraction"):
        prepared.split("test")


def test_tokenizers_without_special_tokens(tmp_path):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models

    tokenizer = adopt(Backend(models.BPE({"a": 0}, [])), "bare", {})
    path = write(tmp_path, ["aaaa"])
    for options, fix in [({}, "eos_between=false"), ({"layout": "pad"}, "layout=wrap")]:
        with pytest.raises(UserError, match=fix):
            prepare(spec_for(tmp_path, path, length=2, **WHOLE, **options), tokenizer)
    with pytest.raises(UserError, match="block_ends=false"):
        prepare(spec_for(tmp_path, path, length=3, block_ends=True, eos_between=False, **WHOLE), tokenizer)
    prepare(spec_for(tmp_path, path, length=2, eos_between=False, **WHOLE), tokenizer).split("train")


@pytest.mark.skipif(os.name != "posix" or os.geteuid() == 0, reason="root may write anywhere")
def test_read_only_cache_that_has_everything_is_enough(corpus):
    prepare(corpus(length=4))
    cache = Path(corpus().cache)
    for path in [cache, *cache.rglob("*")]:
        path.chmod(0o555 if path.is_dir() else 0o444)
    prepare(corpus(length=4)).split("train")


# ---- memory

MEASURE = """
import json, resource, sys
from unmask.config import DataConfig
from unmask.data.pack import prepare
peaks = []
for settings in json.loads(sys.argv[1]):
    for spec in settings:
        rows = prepare(DataConfig(**spec)).split("train")
        assert rows.tokens > 1000
    peaks.append(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024)
print(peaks[1] - peaks[0])
"""


def growth(tmp_path, megabytes, *variants):
    """Growth of the peak memory in MB, from small files to large ones: text with paragraphs, and one endless line."""
    words = " ".join(f"the quick brown fox number {i} jumps over the lazy dog" for i in range(12))
    specs = []
    for size in (6, megabytes):
        for name, text in (("paragraphs", f"{words}\n\n"), ("line", f"{words} ")):
            (tmp_path / f"{name}{size}.txt").write_text(text * (size * 10**6 // len(text)))
        shared = {"cache": str(tmp_path / "cache"), "vocab_size": 300}
        specs.append([{**shared, **v, "source": str(tmp_path / f"{v['source']}{size}.txt")} for v in variants])
    command = [sys.executable, "-c", MEASURE, json.dumps(specs)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return float(done.stdout)


@pytest.mark.slow
def test_memory_does_not_grow_with_the_file(tmp_path):
    kinds = [("paragraphs", "auto"), ("paragraphs", "paragraph"), ("line", "line"), ("line", "auto")]
    variants = [{"source": source, "document": document, "tokenizer": "bytes"} for source, document in kinds]
    assert growth(tmp_path, 40, *variants) < 20


@pytest.mark.slow
@pytest.mark.parametrize(("megabytes", "tokenizer"), [(150, "bpe"), (2000, "bytes")])
def test_memory_does_not_grow_with_a_large_file(tmp_path, megabytes, tokenizer):
    assert growth(tmp_path, megabytes, {"source": "paragraphs", "tokenizer": tokenizer}) < 60


# ---- real text


def test_wikitext_with_gpt2(tmp_path):
    text, tokenizer = DATA / "text" / "wikitext2" / "raw_test.txt", DATA / "tokenizers" / "gpt2"
    if not (text.exists() and tokenizer.exists()):
        pytest.skip(f"{DATA} is not on this machine")
    spec = spec_for(tmp_path, text, tokenizer=str(tokenizer), length=1024, block_ends=True, **WHOLE)
    rows = prepare(spec).split("train")
    assert 280_000 < rows.tokens < 300_000
    tokens, _ = rows.rows([0])
    assert tokens[0, 0] == tokens[0, -1] == 50256
    assert prepare(spec).tokenizer.decode(tokens[0]).startswith(text.read_text(encoding="utf-8")[:500])


def test_ptb_has_its_own_splits(tmp_path):
    folder = DATA / "text" / "ptb"
    if not folder.exists():
        pytest.skip(f"{folder} is not on this machine")
    prepared = prepare(spec_for(tmp_path, folder, document="line"), bytes_tokenizer())
    assert [prepared.split(name).documents for name in ("train", "valid", "test")] == [42068, 3370, 3761]
