"""The paper's conventions on hand-written corpora: which tokens are in which row, and which caches are shared."""

import errno
import json

import numpy as np
import pytest

from support.paths import DATA
from unmask.config import DataConfig
from unmask.data import packed
from unmask.data.loader import eval_batch
from unmask.data.pack import prepare, preview
from unmask.data.records import CORPORA, record
from unmask.data.tokenization import adopt, read_tokenizer
from unmask.types import UserError

WORDS = ["[PAD]", "[CLS]", "[SEP]", "[MASK]", "[UNK]", *"abcdefghij"]
PAD, CLS, SEP = 0, 1, 2
A, B, C, D, E, F, G, H, K, J = range(5, 15)  # K is the letter i
has_shared = pytest.mark.skipif(not DATA.exists(), reason=f"{DATA} is not on this machine")


@pytest.fixture(autouse=True)
def _no_root(monkeypatch):
    monkeypatch.delenv("UNMASK_DATA", raising=False)


@pytest.fixture
def words():
    """A word is a letter; [CLS] and [SEP] as BERT has them."""
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    backend = Backend(models.WordLevel({word: i for i, word in enumerate(WORDS)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return adopt(backend, "letters", {})


def spec_for(folder, name, lines, **settings):
    """A named set whose train split is these lines, with the paper's conventions for it but a short length."""
    (folder / "data").mkdir(exist_ok=True)
    (folder / "data" / "train.jsonl").write_text("".join(json.dumps({CORPORA[name].field: x}) + "\n" for x in lines))
    own = {"local": str(folder / "data"), "cache": str(folder / "cache"), "detokenizer": "none"}
    return DataConfig(**{**record(name).conventions, **own, **settings})


def rows_of(spec, tokenizer):
    found = prepare(spec, tokenizer, splits=["train"]).split("train")
    return found.rows(range(len(found)))


# ---- golden rows


def test_owt_wraps_with_eos_between_and_at_block_ends(tmp_path, words, monkeypatch):
    import dataclasses

    monkeypatch.setitem(CORPORA, "openwebtext", dataclasses.replace(CORPORA["openwebtext"], held_out=1))
    spec = spec_for(tmp_path, "openwebtext", ["a b c", "d", "e f g h", "i j", "a a a a a a"], length=6)
    tokens, scored = rows_of(spec, words)
    assert tokens.tolist() == [  # BOS, four of: a b c . d . e f g h . i j .   (the last two are no whole block)
        [CLS, A, B, C, SEP, SEP],
        [CLS, D, SEP, E, F, SEP],
        [CLS, G, H, SEP, K, SEP],
    ]
    assert scored is None, "every token counts"
    held = prepare(spec, words, splits=["valid"]).split("valid")
    assert held.rows([0])[0].tolist() == [[CLS, A, A, A, A, SEP]], "the last document is held out"


@pytest.mark.parametrize("block_ends", [False, True])
def test_zero_shot_wraps_without_eos_between(tmp_path, words, block_ends):
    lines = ["a b c", "d", "", "e f g h", "i"]
    changes = {"length": 4 + 2 * block_ends, "block_ends": block_ends}
    own = {key: value for key, value in record("ptb").zero_shot.items() if key not in ("source", "detokenizer")}
    tokens, _ = rows_of(spec_for(tmp_path, "ptb", lines, **{**own, **changes}), words)
    stream = [[A, B, C, D], [E, F, G, H]]
    assert tokens.tolist() == ([[CLS, *row, SEP] for row in stream] if block_ends else stream)


def test_lm1b_pads_and_truncates(tmp_path, words):
    spec = spec_for(tmp_path, "lm1b", ["a b", "c d e f g h", "i j a b"], length=6)
    tokens, scored = rows_of(spec, words)
    assert tokens.tolist() == [
        [CLS, A, B, SEP, PAD, PAD],
        [CLS, C, D, E, F, SEP],
        [CLS, K, J, A, B, SEP],
    ]
    assert scored.sum(1).tolist() == [4, 6, 6], "padding does not count"


def test_both_attention_conventions(tmp_path, words):
    spec = spec_for(tmp_path, "lm1b", ["a b", "c d e f g h"], length=6)
    assert spec.attend_pads, "the paper's"
    assert not DataConfig().attend_pads, "a real attention mask is the default"
    rows = prepare(spec, words, splits=["train"]).split("train")
    papers, ours = eval_batch(rows, [0, 1], attend_pads=True), eval_batch(rows, [0, 1])
    assert papers.present is None, "padding is seen and noised"
    assert (
        ours.present.tolist()
        == ours.scored.tolist()
        == papers.scored.tolist()
        == [[True] * 4 + [False] * 2, [True] * 6]
    )


def test_nothing_is_dropped_but_the_last_partial_block(tmp_path, words):
    """Public code drops a remainder for every 1000 documents: 2500 of them, and one of these would be seen."""
    lines = [" ".join("abcdefghij"[: 1 + i % 7]) for i in range(2500)]
    spec = spec_for(tmp_path, "ptb", lines, length=1024, block_ends=False)
    tokens, _ = rows_of(spec, words)
    stream = [WORDS.index(word) for line in lines for word in line.split()]
    assert tokens.ravel().tolist() == stream[: len(stream) // 1024 * 1024]


@has_shared
def test_ptb_at_length_1024_has_rows(tmp_path):
    tokenizer = read_tokenizer(DATA / "tokenizers" / "gpt2")
    own = {"local": str(DATA / "text"), "cache": str(tmp_path), "tokenizer": "x", "block_ends": True}
    rows = prepare(DataConfig(**{**record("ptb").zero_shot, **own}), tokenizer, splits=["valid"]).split("valid")
    assert len(rows) == rows.tokens // 1022 == 76
    assert rows.describe()["detokenizer"] == "ptb"
    text = tokenizer.decode(rows.rows([0])[0][0])
    assert text.startswith("consumers may want to move their telephones")
    assert "<unk>" not in text


@has_shared
def test_lm1b_with_bert_is_what_transformers_gives(tmp_path):
    import transformers

    folder = DATA / "tokenizers" / "bert-base-uncased"
    theirs = transformers.BertTokenizerFast(tokenizer_file=str(folder / "tokenizer.json"))
    spec = DataConfig(
        **{
            **record("lm1b").conventions,
            "tokenizer": str(folder),
            "cache": str(tmp_path),
            "local": str(DATA / "text"),
        }
    )
    prepared = prepare(spec, splits=["test"])
    rows = prepared.split("test")
    sentences = [piece.text for piece, _ in zip(prepared.corpus.documents("test"), range(300), strict=False)]
    assert '"house arrest,"' in sentences[0]
    wanted = theirs(sentences, max_length=128, padding="max_length", truncation=True)
    tokens, scored = rows.rows(range(300))
    assert tokens.tolist() == wanted["input_ids"]
    assert scored.astype(int).tolist() == wanted["attention_mask"]


# ---- caches


def test_length_is_a_view(tmp_path, words):
    lines = ["a b c d e", "f g h i j", "a c e"]
    short = prepare(spec_for(tmp_path, "ptb", lines, length=4, block_ends=False), words, ["train"])
    long = prepare(spec_for(tmp_path, "ptb", lines, length=6, block_ends=True), words, ["train"])
    assert short.fingerprint == long.fingerprint
    stream = [A, B, C, D, E, F, G, H, K, J, A, C, E]
    rows = short.split("train")
    assert rows.rows(range(len(rows)))[0].tolist() == [stream[:4], stream[4:8], stream[8:12]]
    rows = long.split("train")
    assert rows.rows(range(len(rows)))[0].tolist() == [[CLS, *stream[i : i + 4], SEP] for i in (0, 4, 8)]


def test_what_changes_the_tokens_changes_the_cache(tmp_path, words):
    lines = ["a b 's c", "d ' e f"] * 5

    def key(tokenizer=words, lines=lines, **settings):
        return prepare(spec_for(tmp_path, "ptb", lines, **{"length": 4, **settings}), tokenizer, ["train"]).fingerprint

    other = adopt(_backend(reversed(WORDS)), "letters", {})  # the same name, the same words, other ids
    assert words.digest != other.digest
    keys = [
        key(),
        key(tokenizer=other),
        key(detokenizer="ptb"),
        key(detokenizer="wikitext"),
        key(lines=[*lines, "a"]),
        key(eos_between=True),
        key(layout="pad"),
    ]
    assert len(set(keys)) == len(keys)
    assert key(detokenizer="auto") == keys[2], "auto is the record's own"
    assert key(length=7) == keys[0]


def _backend(words):
    from tokenizers import Tokenizer as Backend
    from tokenizers import models, pre_tokenizers

    backend = Backend(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    return backend


def test_a_detokenizer_changes_the_tokenizer_that_is_made_here(tmp_path):
    """Characters are those of the detokenized text: `@` and the space are gone."""
    lines = ["well @-@ known"]
    own, other = (
        prepare(spec_for(tmp_path, "wikitext2", lines, length=4, tokenizer="chars", detokenizer=name)).tokenizer
        for name in ("auto", "none")
    )
    assert other.vocab.size - own.vocab.size == 2
    assert own.digest != other.digest


# ---- a disk that is full


class Full:
    """A file on a disk with room for some bytes only; like a real one it fails again when it is closed."""

    room = 0

    def __init__(self, file):
        self.file, self.name, self.failed = file, file.name, False

    def write(self, data):
        Full.room -= len(data)
        if Full.room < 0:
            self.failed = True
            raise OSError(errno.ENOSPC, "No space left on device")
        return self.file.write(data)

    def close(self):
        self.file.close()
        if self.failed:
            self.failed = False
            raise OSError(errno.ENOSPC, "No space left on device")


@pytest.mark.parametrize("layout", ["wrap", "pad"])
@pytest.mark.parametrize("room", [0, 7, 40])
def test_a_full_disk_leaves_the_cache_consistent(tmp_path, words, monkeypatch, layout, room):
    lines = ["a b c d e", "f g h i j"] * 4
    spec = spec_for(tmp_path, "ptb", lines, length=4, layout=layout)
    whole = prepare(spec.model_copy(update={"cache": str(tmp_path / "other")}), words, ["train"]).split("train")
    monkeypatch.setattr(packed, "BATCH", 200)
    monkeypatch.setattr(Full, "room", room)
    temporary = packed.SplitWriter._temporary
    monkeypatch.setattr(packed.SplitWriter, "_temporary", lambda self, name: Full(temporary(self, name)))
    with pytest.raises(UserError, match=r"could not write the cache folder .*no space left.*set data\.cache") as error:
        prepare(spec, words, ["train"])
    assert "\n" not in str(error.value)
    left = [path.name for path in (tmp_path / "cache").rglob("*") if path.is_file()]
    assert not [name for name in left if name.endswith((".part", ".bin", ".idx")) or name == "train.json"], left
    monkeypatch.undo()
    monkeypatch.delenv("UNMASK_DATA", raising=False)
    again = prepare(spec, words, ["train"]).split("train")
    assert np.array_equal(again.stream, whole.stream)


def test_a_full_disk_while_the_record_is_written(tmp_path, words, monkeypatch):
    spec = spec_for(tmp_path, "ptb", ["a b c d e"] * 4, length=4)

    def full(path, content):
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patched:
        patched.setattr(packed, "write_json", full)
        with pytest.raises(UserError, match="no space left"):
            prepare(spec, words, ["train"])
    assert not list((tmp_path / "cache").rglob("train.json")), "a split without its record is not there"
    assert len(prepare(spec, words, ["train"]).split("train")) == 10, "20 tokens, two a row between the ends"


# ---- previews


@pytest.mark.parametrize("layout", ["wrap", "pad"])
@pytest.mark.parametrize("n", [1, 2, 50])
def test_a_preview_is_the_beginning(tmp_path, words, layout, n):
    lines = ["a b c d e", "", "f g", "h i j", "a", "b c d"]
    prepared = prepare(spec_for(tmp_path, "ptb", lines, length=5, layout=layout, eos_between=True), words, ["train"])
    whole, seen = prepared.split("train"), preview(prepared, "train", n)
    kept = min(n, len(whole))
    assert min(n, len(seen)) == kept
    assert seen.rows(range(kept))[0].tolist() == whole.rows(range(kept))[0].tolist()


def test_a_preview_reads_no_more_than_it_shows(tmp_path, words, monkeypatch):
    prepared = prepare(spec_for(tmp_path, "ptb", ["a b c"] * 1000, length=4), words, splits=())
    seen = []
    original = type(words).arrays
    monkeypatch.setattr(type(words), "arrays", lambda self, texts: (seen.extend(texts), original(self, texts))[1])
    preview(prepared, "train", 3)
    assert len(seen) <= 4
    assert not list(prepared.folder.glob("*.bin"))


@pytest.mark.parametrize("layout", ["wrap", "pad"])
def test_the_first_rows_are_those_of_the_whole(tmp_path, layout):
    lines = [f"{i} a b c" for i in range(20)]
    settings = {"length": 4, "layout": layout, "tokenizer": "chars"}
    whole = prepare(spec_for(tmp_path, "ptb", lines, **settings), splits=["train"]).split("train")
    part = whole.first(7)
    assert len(part) == 7 and len(whole) > 7 and whole.first(10**6) is whole
    for mine, theirs in zip(part.rows(range(7)), whole.rows(range(7)), strict=True):
        assert (mine is None and theirs is None) or (mine == theirs).all()
    assert part.tokens <= 7 * 20 < whole.tokens or layout == "wrap"
