"""Tokenizers: lossless, [MASK] in its own place, and text that can never become a special token."""

import copy
import functools
import json
import pickle
import shutil
import subprocess
import sys
from itertools import chain

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, decoders, models, pre_tokenizers
from tokenizers import Tokenizer as Backend

from support.paths import DATA
from unmask.config import DataConfig
from unmask.data import online
from unmask.data.documents import cut
from unmask.data.tokenization import Tokenizer, adopt, bpe_tokenizer, bytes_tokenizer, chars_tokenizer, make_tokenizer
from unmask.types import UserError

SHARED = DATA / "tokenizers"
TEXTS = ["The quick brown fox jumps over the lazy dog. " * 20, "naïve café – €5 🙂\n" * 20, "[MASK] <|endoftext|>"]
BYTES, BPE, CHARS = bytes_tokenizer(), bpe_tokenizer(TEXTS, 400), chars_tokenizer(TEXTS)
OWN = {"bytes": BYTES, "bpe": BPE, "chars": CHARS}


@functools.cache
def published(name):
    if not (SHARED / name / "tokenizer.json").exists():
        pytest.skip(f"{SHARED / name} is not on this machine")
    return make_tokenizer(DataConfig(tokenizer=str(SHARED / name)), lambda: ())


# ---- round trips


@given(st.text())
@settings(max_examples=200)
def test_bytes_and_bpe_are_lossless(text):
    for tokenizer in (BYTES, BPE):
        assert tokenizer.decode(tokenizer.encode(text)) == text
    assert BYTES.encode(text) == list(text.encode())


@given(st.text(alphabet=[*sorted(set("".join(TEXTS))), "Ω", "\0"]))
def test_chars_know_the_corpus_and_only_that(text):
    known = set("".join(TEXTS))
    assert CHARS.decode(CHARS.encode(text)) == "".join(c if c in known else "\ufffd" for c in text)


@given(st.text())
@settings(max_examples=100)
def test_short_cuts_agree_with_the_library(text):
    for tokenizer in (BYTES, CHARS):
        slow = tokenizer._backend.encode(text, add_special_tokens=False).ids
        assert tokenizer.encode(text) == slow


def test_lone_surrogates_do_not_stop_a_run():
    for tokenizer in OWN.values():
        assert tokenizer.encode("a\ud800b") == tokenizer.encode("a\ufffdb")


@pytest.mark.parametrize("name", ["bytes", "bpe", "chars", "gpt2", "bert-base-uncased"])
def test_any_id_can_be_decoded_and_shown(name):
    tokenizer = OWN.get(name) or published(name)
    every = range(tokenizer.vocab.size)
    for token in [*every][:: 1 if name in OWN else 97]:
        tokenizer.decode([token])
        tokenizer.decode([token], skip_special=False)
    shown = tokenizer.pieces(every)
    assert len(shown) == tokenizer.vocab.size
    assert all(piece.encode() for piece in shown), "something to see for every token, in valid Unicode"
    assert shown[tokenizer.vocab.mask] == "[MASK]"


def test_pieces_show_text_and_parts_of_characters():
    assert "".join(BPE.pieces(BPE.encode("The quick fox"))) == "The quick fox"
    assert BYTES.pieces(BYTES.encode("a€")) == ["a", "⟨e2⟩", "⟨82⟩", "⟨ac⟩"]
    assert BPE.decode([BPE.vocab.mask, *BPE.encode("fox"), BPE.vocab.pad], skip_special=False) == "[MASK]fox[PAD]"
    assert BPE.decode([BPE.vocab.mask, *BPE.encode("fox"), BPE.vocab.pad]) == "fox"


# ---- special tokens


@pytest.mark.parametrize("name", ["bytes", "bpe", "chars", "gpt2", "bert-base-uncased"])
def test_text_never_becomes_a_special_token(name):
    tokenizer = OWN.get(name) or published(name)
    special = {tokenizer.vocab.mask, tokenizer.vocab.pad, tokenizer.vocab.bos, tokenizer.vocab.eos} - {None}
    for text in ("[MASK]", "a [MASK] b", "[PAD][EOS][BOS]", "<|endoftext|>", "[CLS] [SEP]", "x<mask>y"):
        assert not special & set(tokenizer.encode(text)), text


def test_mask_as_an_ordinary_word_is_taken_apart():
    backend = Backend(models.WordLevel({"[UNK]": 0, "a": 1, "[MASK]": 2, "b": 3}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer = adopt(backend, "words", {})
    assert tokenizer.vocab.mask == 2
    assert tokenizer.encode("a [MASK] b") == [1, 0, 0, 3]


def test_copies_keep_the_rules():
    for tokenizer in (pickle.loads(pickle.dumps(BPE)), copy.deepcopy(BPE)):
        assert tokenizer.encode("[MASK] café") == BPE.encode("[MASK] café")
        assert tokenizer.digest == BPE.digest


def test_own_specials_are_distinct_and_last():
    for tokenizer in OWN.values():
        v = tokenizer.vocab
        assert [v.eos, v.pad, v.mask] == [v.size - 3, v.size - 2, v.size - 1]
        assert v.bos == v.eos
    assert BYTES.vocab.size == 259
    assert BPE.vocab.size <= 400


def test_gpt2():
    tokenizer = published("gpt2")
    v = tokenizer.vocab
    assert (v.size, v.mask, v.eos, v.bos, v.pad) == (50258, 50257, 50256, 50256, None)
    assert tokenizer.encode("Hello world") == [15496, 995]
    assert tokenizer.decode([15496, 995, 50257, 50256]) == "Hello world"


def test_bert():
    tokenizer = published("bert-base-uncased")
    v = tokenizer.vocab
    assert (v.size, v.mask, v.bos, v.eos, v.pad) == (30522, 103, 101, 102, 0)
    assert tokenizer.encode("Hello world") == [7592, 2088]
    assert len(tokenizer.encode("hello " * 300)) == 300, "the truncation in the published file is off"


def test_mask_never_lands_on_pad():
    """The published recipe adds [PAD] to GPT-2 and gets the id that it uses for [MASK]."""
    backend = Backend(models.BPE({"a": 0, "b": 1, "<|endoftext|>": 2}, []))
    backend.add_special_tokens(["<|endoftext|>", "[PAD]"])
    tokenizer = adopt(backend, "padded", {"pad_token": "[PAD]"})
    assert (tokenizer.vocab.pad, tokenizer.vocab.mask, tokenizer.vocab.size) == (3, 4, 5)
    shared = Backend(models.BPE({"a": 0, "[MASK]": 1}, []))
    tokenizer = adopt(shared, "shared", {"pad_token": "[MASK]", "mask_token": {"content": "[MASK]"}})
    assert tokenizer.vocab.pad == 1
    assert tokenizer.vocab.mask == 2


def test_gaps_in_the_numbering():
    tokenizer = adopt(Backend(models.BPE({"a": 0, "b": 7}, [])), "spread", {})
    assert tokenizer.vocab.mask not in (0, 7)
    assert tokenizer.vocab.size == 8, "every id is inside, not only as many as there are tokens"
    with pytest.raises(UserError, match="with gaps"):
        adopt(Backend(models.BPE({"a": 0, "b": 1, "c": 3}, [])), "gap", {})


def test_declared_tokens_win_over_usual_names():
    backend = Backend(models.BPE({t: i for i, t in enumerate(["a", "</s>", "<end>", "<m>"])}, []))
    tokenizer = adopt(backend, "own", {"eos_token": "<end>", "mask_token": "<m>"})
    assert (tokenizer.vocab.eos, tokenizer.vocab.mask, tokenizer.vocab.size) == (2, 3, 4)


# ---- BPE training


def test_bpe_training_is_deterministic_and_capped(monkeypatch):
    again = bpe_tokenizer(iter(TEXTS), 400)
    assert again.digest == BPE.digest
    monkeypatch.setattr("unmask.data.tokenization.BPE_SAMPLE", 100)

    def endless():
        while True:
            yield "some words again and again "

    assert bpe_tokenizer(endless(), 300).vocab.size < 300
    with pytest.raises(UserError, match=r"vocab_size=200 is too small .* at least 259"):
        bpe_tokenizer(TEXTS, 200)


def test_bpe_does_not_depend_on_threads_or_hash_seed():
    code = (
        "from unmask.data.tokenization import bpe_tokenizer\n"
        "print(bpe_tokenizer((f'{i * i} words {i % 7} and more {i % 13}' for i in range(2000)), 500).digest)"
    )
    environment = {"RAYON_NUM_THREADS": "3", "PYTHONHASHSEED": "7", "OMP_NUM_THREADS": "1"}
    done = subprocess.run([sys.executable, "-c", code], env=environment, capture_output=True, text=True, check=True)
    here = bpe_tokenizer((f"{i * i} words {i % 7} and more {i % 13}" for i in range(2000)), 500)
    assert done.stdout.strip() == here.digest


@pytest.mark.parametrize("name", ["bpe", "gpt2", "bert-base-uncased"])
def test_cutting_a_document_does_not_change_its_tokens(name):
    tokenizer = BPE if name == "bpe" else published(name)
    random = np.random.default_rng(0)
    words = ["one", "it's", "  two", "three,\n", "\n\nfour", "five.  ", "\t(six)", "7 8", "\n \n nine"]
    text = " ".join(random.choice(words, 3000))
    pieces = [piece.text for piece in cut([(text, True)], 700)]
    assert len(pieces) > 15
    assert list(chain(*tokenizer.encode_batch(pieces))) == tokenizer.encode(text)


# ---- files and names


@pytest.mark.parametrize("name", ["bytes", "bpe", "chars", "gpt2", "bert-base-uncased"])
def test_save_and_load(tmp_path, name):
    tokenizer = OWN.get(name) or published(name)
    tokenizer.save(tmp_path / "model")
    again = Tokenizer.load(tmp_path / "model")
    assert (again.vocab, again.name, again.digest) == (tokenizer.vocab, tokenizer.name, tokenizer.digest)
    assert again.encode("[MASK] café") == tokenizer.encode("[MASK] café")
    through_config = make_tokenizer(DataConfig(tokenizer=str(tmp_path / "model")), lambda: ())
    assert through_config.digest == tokenizer.digest


def test_transformers_reads_what_we_save(tmp_path):
    transformers = pytest.importorskip("transformers")
    BPE.save(tmp_path)
    theirs = transformers.AutoTokenizer.from_pretrained(tmp_path)
    assert theirs("The quick fox")["input_ids"] == BPE.encode("The quick fox")
    assert (theirs.mask_token_id, theirs.pad_token_id) == (BPE.vocab.mask, BPE.vocab.pad)


def test_damaged_files_are_named(tmp_path):
    BPE.save(tmp_path / "a")
    for name in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copytree(tmp_path / "a", folder := tmp_path / name)
        (folder / name).write_bytes((folder / name).read_bytes()[:100])
        with pytest.raises(UserError, match=f"{name} is damaged"):
            Tokenizer.load(folder)
        (folder / name).unlink()
        with pytest.raises(UserError, match=f"{name} does not exist"):
            Tokenizer.load(folder)
    bytes_tokenizer().save(tmp_path / "b")
    shutil.copy(tmp_path / "b" / "tokenizer.json", tmp_path / "a")
    with pytest.raises(UserError, match="do not belong together"):
        Tokenizer.load(tmp_path / "a")
    (tmp_path / "a" / "tokenizer_config.json").write_text(json.dumps({"unmask": {"vocab": {"size": 3}}}))
    with pytest.raises(UserError, match="damaged"):
        Tokenizer.load(tmp_path / "a")


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("byte", r"unknown tokenizer 'byte' \(did you mean 'bytes'\?\)"),
        ("char", "did you mean 'chars'"),
        ("./tokenizer.json", "tokenizer file ./tokenizer.json does not exist"),
        ("owner/model", "'owner/model' is not a built-in tokenizer .*Hub cannot be reached"),
        ("we ird", "is not a built-in tokenizer"),
    ],
)
def test_unknown_tokenizers(monkeypatch, tmp_path, name, message):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(online, "reachable", lambda: False)
    with pytest.raises(UserError, match=message):
        make_tokenizer(DataConfig(tokenizer=name), lambda: ())


def test_digests_differ():
    other = Backend.from_str(BPE._backend.to_str())
    other.add_tokens([AddedToken("extra")])
    other.decoder = decoders.ByteLevel()
    assert len({BYTES.digest, BPE.digest, CHARS.digest, adopt(other, "x", {}).digest}) == 4
