"""What a tokenizer does not know is never silent: capitals decide about lower case, shares are said, DNA is DNA."""

from __future__ import annotations

import json
import logging

import pytest

from support.helpers import random_lm, refused, settings
from unmask.config import DataConfig
from unmask.data.adopted import read_tokenizer
from unmask.data.pack import prepare
from unmask.types import UserError

SPECIAL = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]"]
SMILES = [*SPECIAL, "C", "c", "N", "n", "O", "Cl", "Br", "(", ")", "=", "1", "2", "##C", "##c", "##O"]


def vocabulary(folder, words, **config):
    folder.mkdir(exist_ok=True)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    if config:
        (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_entries_with_capitals_decide(tmp_path):
    cased = read_tokenizer(vocabulary(tmp_path / "cased", SMILES))
    assert cased.pieces(cased.encode("Cl c N")) == [" Cl", " c", " N"]
    said = read_tokenizer(vocabulary(tmp_path / "said", SMILES, do_lower_case=True))
    assert said.encode("Cl") == cased.encode("Cl")
    plain = [*SPECIAL, *(f"w{i}" for i in range(300)), "hello"]
    lower = read_tokenizer(vocabulary(tmp_path / "lower", plain))
    assert lower.encode("Hello") == lower.encode("hello") == [len(plain) - 1]
    kept = read_tokenizer(vocabulary(tmp_path / "kept", plain, do_lower_case=False))
    assert kept.encode("Hello") == [kept.unknown]


def test_the_share_is_in_the_protocol_and_much_of_it_is_a_warning(tmp_path, caplog):
    place = vocabulary(tmp_path / "words", [*SPECIAL, "one", "two", "."])
    source = tmp_path / "text.txt"
    source.write_text("one two three . " * 200)
    spec = DataConfig(source=str(source), tokenizer=str(place), length=8, cache=str(tmp_path / "cache"))
    with caplog.at_level(logging.WARNING):
        for _ in range(2):  # tokenized, and from the cache
            caplog.clear()
            rows = prepare(spec).split("train")
            assert rows.describe()["unknown_tokens"] == pytest.approx(0.25, abs=0.02)
            assert sum("are [UNK]" in record.message for record in caplog.records) == 1
    source.write_text("one two . " * 200)
    caplog.clear()
    assert prepare(spec).split("train").describe()["unknown_tokens"] == 0
    assert not caplog.records
    record = next((tmp_path / "cache").rglob("train.json"))
    facts = json.loads(record.read_text())
    assert "unknown" in facts


def test_a_split_of_an_older_version_is_counted(tmp_path):
    place = vocabulary(tmp_path / "words", [*SPECIAL, "one", "two", "."])
    source = tmp_path / "text.txt"
    source.write_text("one two three . " * 200)
    spec = DataConfig(source=str(source), tokenizer=str(place), length=8, cache=str(tmp_path / "cache"))
    share = prepare(spec).split("train").describe()["unknown_tokens"]
    for record in (tmp_path / "cache").rglob("*.json"):
        facts = json.loads(record.read_text())
        if "unknown" in facts:
            del facts["unknown"]
            record.write_text(json.dumps(facts))
    assert prepare(spec).split("train").describe()["unknown_tokens"] == share > 0.2


def test_given_texts_are_counted_where_they_become_ids(tmp_path, caplog):
    tokenizer = read_tokenizer(vocabulary(tmp_path / "words", [*SPECIAL, "one", "two", "."]))
    lm = random_lm(tokenizer, "data.length=8")
    with caplog.at_level(logging.WARNING):
        assert lm.score("one two .").protocol["unknown_tokens"] == 0
        assert not caplog.records
        assert lm.score("one two three four").protocol["unknown_tokens"] == 0.5
        lm.score("five")
    assert sum("are [UNK]" in record.message for record in caplog.records) == 1  # once, not for every text
    other = random_lm(tokenizer, "data.length=8")
    caplog.clear()
    other.sample(1, prompt="three two", steps=2)
    assert "are [UNK]" in caplog.text and other.prompt_builder.unknown.facts()["unknown_tokens"] == 0.5


def test_text_is_not_dna(tmp_path):
    english = tmp_path / "english.txt"
    english.write_text("It was the best of times, it was the worst of times.\n" * 200)
    words = settings(f"data.source={english}", "data.tokenizer=dna")
    sentence = refused("train", "tiny", *words, "--out", str(tmp_path / "run"))
    assert "is not DNA" in sentence and "are not bases" in sentence
    bases = tmp_path / "bases.txt"
    bases.write_text("acgtnRYACGTTGCA\n" * 400)
    spec = DataConfig(source=str(bases), tokenizer="dna", length=8, cache=str(tmp_path / "cache"))
    assert prepare(spec).split("train").tokens
    with pytest.raises(UserError, match="is not DNA"):
        prepare(spec.model_copy(update={"source": str(english)}))
