"""The vocabulary of DNA: the paper's ids, the other strand, the tokenizer and its files."""

from __future__ import annotations

import pickle

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from unmask.config import DataConfig
from unmask.data.genome.bases import COMPLEMENT, VOCAB, dna_tokenizer, reverse_complement
from unmask.data.pack import prepare
from unmask.data.tokenization import Tokenizer, make_tokenizer
from unmask.types import UserError, Vocab

PAPER = {"[CLS]": 0, "[SEP]": 1, "[BOS]": 2, "[MASK]": 3, "[PAD]": 4, "[RESERVED]": 5, "[UNK]": 6,
         "A": 7, "C": 8, "G": 9, "T": 10, "N": 11}  # fmt: skip
READ = {"A": "A", "C": "C", "G": "G", "T": "T", "U": "T"} | dict.fromkeys("NRYSWKMBDHV", "N")
PARTNER = {"A": "T", "T": "A", "C": "G", "G": "C"}


def slow(text: str) -> list[int]:
    """One letter after the other, straight from the paper's table."""
    return [PAPER[READ[c.upper()]] if c.isascii() and c.upper() in READ else PAPER["[UNK]"] for c in text]


def test_the_ids_are_the_papers():
    tokenizer = dna_tokenizer()
    assert [tokenizer.piece(token) for token in range(12)] == list(PAPER)
    assert tokenizer.vocab == VOCAB == Vocab(size=12, mask=3, pad=4, bos=2, eos=1)
    assert (tokenizer.kind, tokenizer.name) == ("dna", "dna")
    assert tokenizer.pieces(range(12)) == list(PAPER)


@given(st.text(alphabet=st.one_of(st.sampled_from("ACGTUNacgtunRYSWKMBDHVryXx \n-[MASK]é"), st.characters())))
def test_both_ways_of_encoding_equal_the_table(text):
    tokenizer = dna_tokenizer()
    assert tokenizer.encode(text) == slow(text)
    ids, places = tokenizer.offsets(text)
    if text.isascii():
        assert ids == slow(text)
        assert places == [(i, i + 1) for i in range(len(text))]


@given(st.text(alphabet="ACGTN"))
def test_text_comes_back(text):
    tokenizer = dna_tokenizer()
    ids = tokenizer.encode(text.lower())
    assert tokenizer.decode(ids) == text
    assert tokenizer.decode([2, *ids, 1, 4, 4]) == text
    assert tokenizer.decode([3, *ids, 4], skip_special=False) == f"[MASK]{text}[PAD]"


def test_it_travels(tmp_path):
    tokenizer = dna_tokenizer()
    tokenizer.save(tmp_path)
    for other in (Tokenizer.load(tmp_path), pickle.loads(pickle.dumps(tokenizer))):
        assert (other.kind, other.vocab, other.digest) == ("dna", VOCAB, tokenizer.digest)
        assert other.encode("acgtRxN") == [7, 8, 9, 10, 11, 6, 11]


def test_the_complement():
    names = list(PAPER)
    for token, name in enumerate(names):
        assert names[COMPLEMENT[token]] == PARTNER.get(name, name)
    assert COMPLEMENT.shape == (16,) and (COMPLEMENT[12:] == range(12, 16)).all()


@given(st.lists(st.text(alphabet="ACGTN", min_size=7, max_size=7), min_size=1, max_size=4), st.booleans())
def test_the_other_strand(rows, as_tensor):
    def ids(texts):
        tokens = np.array([slow(text) for text in texts], dtype=np.int64 if as_tensor else np.uint8)
        return torch.from_numpy(tokens) if as_tensor else tokens

    wanted = ["".join(PARTNER.get(c, c) for c in reversed(text)) for text in rows]
    found = reverse_complement(ids(rows))
    assert found.dtype == ids(rows).dtype
    assert found.tolist() == ids(wanted).tolist()
    assert reverse_complement(found).tolist() == ids(rows).tolist()


def test_sequences_in_a_text_file(tmp_path):
    """A sequence a line; line breaks are no bases."""
    (tmp_path / "sequences.txt").write_text("ACGTACGT\nacgnrt\n")
    spec = DataConfig(
        source=str(tmp_path / "sequences.txt"),
        tokenizer="dna",
        length=5,
        layout="pad",
        valid_fraction=0,
        test_fraction=0,
        cache=str(tmp_path / "cache"),
    )
    rows = prepare(spec).split("train")
    tokens, _ = rows.rows([0, 1])
    assert tokens.tolist() == [slow("ACGTA"), slow("ACGNN")]
    wrapped = prepare(spec.model_copy(update={"layout": "wrap"})).split("train")
    assert wrapped.stream.tolist() == [*slow("ACGTACGT"), 1, *slow("ACGNNT"), 1]


@pytest.mark.parametrize("name", ["intervals", "soft_mask"])
def test_what_only_fasta_has_is_refused_for_text(tmp_path, name):
    (tmp_path / "a.txt").write_text("ACGT\n")
    value = {"intervals": "a.bed", "soft_mask": "mask"}[name]
    with pytest.raises(UserError, match=rf"data\.{name}={value} is for FASTA .* is text; leave it out"):
        prepare(DataConfig(source=str(tmp_path / "a.txt"), tokenizer="dna", cache=str(tmp_path), **{name: value}))


def test_its_name():
    assert make_tokenizer(DataConfig(tokenizer="dna"), lambda: ()).digest == dna_tokenizer().digest
    with pytest.raises(UserError, match=r"unknown tokenizer 'dnaa' \(did you mean 'dna'\?\)"):
        make_tokenizer(DataConfig(tokenizer="dnaa"), lambda: ())
