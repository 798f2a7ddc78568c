"""The zero-shot suite: seven sets in the layouts in which they are distributed, packed by hand once more."""

from __future__ import annotations

import math
from pathlib import Path

import numpy as np
import pytest

from support.helpers import refused, run, settings, train_once, trained, zero_shot_sets
from unmask import load
from unmask.config import DataConfig
from unmask.data.loader import eval_batch
from unmask.evaluation.suites import SUITES, Member, in_domain, member_data, member_rows, suite
from unmask.process.keys import Keys

TITLES = ["PTB", "Wikitext", "LM1B", "Lambada", "AG News", "Pubmed", "Arxiv"]
PTB = "it wasn't the 1 cats of {}'s house"  # by hand, of what `zero_shot_sets` writes


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return zero_shot_sets(tmp_path_factory.mktemp("sets"))


@pytest.fixture(scope="module")
def causal() -> Path:
    """A model with exact likelihoods, so that nothing is left to draws."""
    return train_once("causal-suite", "tiny", *settings("model.method=ar", "train.steps=20", "eval.every=0"))


def test_the_suite_has_the_papers_seven_sets_on_what_plays_validation():
    assert [member.title for member in SUITES["zero-shot"]] == TITLES
    assert {member.split for member in SUITES["zero-shot"]} == {"valid"}


def test_one_table_in_json_with_errors_and_protocol(root):
    ran = run("eval", str(trained()), "--suite", "zero-shot", "--local", str(root), "--draws", "3", "--json").json()
    assert [own["set"] for own in ran["sets"]] == TITLES
    for own in ran["sets"]:
        assert own["tokens"] > 0 and own["perplexity"] > 1 and own["stderr_nats"] > 0 and not own["in_domain"]
        said = own["protocol"]
        assert said["layout"] == "wrap" and said["eos_between"] is False and said["length"] == 32
        assert said["draws"] == 3 and said["seed"] == 0 and said["dtype"] == "float32" and said["weights"] == "ema"
        assert said["source"] == own["corpus"] and said["split"] == "valid"
    by = {own["corpus"]: own["protocol"]["detokenizer"] for own in ran["sets"]}
    assert by == {
        "ptb": "ptb",
        "wikitext2": "wikitext",
        "lm1b": "lm1b",
        "lambada": "lambada",
        "ag_news": "scientific",
        "pubmed": "scientific",
        "arxiv": "scientific",
    }


def test_a_set_is_scored_as_by_hand(root, causal):
    lm = load(causal)
    text = "".join(PTB.format(name) for name in ("mr. smith", "?", "the mill")) * 8  # no EOS, no line break between
    ids = list(text.encode())  # the tokenizer is bytes
    length = lm.length
    blocks = np.array(ids[: len(ids) // length * length]).reshape(-1, length)
    rows = member_rows(lm.config.data, lm.tokenizer, SUITES["zero-shot"][0], str(root), quiet=True)
    tokens, _ = rows.rows(np.arange(len(rows)))
    assert tokens.tolist() == blocks.tolist()
    own = run("eval", str(causal), "--suite", "zero-shot", "--sets", "ptb", "--local", str(root), "--json").json()[
        "sets"
    ][0]
    batch = eval_batch(rows, np.arange(len(rows)), False)
    nats = lm.model.nats(batch, Keys(0)).nats.sum().item()
    assert own["tokens"] == blocks.size and own["stderr_nats"] == 0
    assert math.isclose(own["nats_per_token"], nats / blocks.size, rel_tol=1e-6)


def test_the_table_for_people_marks_what_was_trained_on(root, causal):
    ran = run(
        "eval", str(causal), "--suite", "zero-shot", "--sets", "lambada,wikitext", "--local", str(root), "--rows", "2"
    )
    assert ran.code == 0
    lines = ran.out.splitlines()
    assert lines[0].split() == ["set", "perplexity", "±", "draws", "±", "texts", "bits/byte", "tokens"]
    assert (
        lines[1].startswith("Lambada")
        and lines[2].startswith("Wikitext")
        and "in-domain" not in ran.out.split("\n  ")[0]
    )
    assert any(line.startswith("  model: ") for line in lines) and any("draws: 1" in line for line in lines)


def test_a_source_of_several_sets_marks_each():
    members = {member.corpus: member for member in SUITES["zero-shot"]}
    data = DataConfig(source="sotu+wikitext2+tinystories")
    assert [name for name, member in members.items() if in_domain(data, member)] == ["wikitext2"]
    assert in_domain(DataConfig(source="ptb"), members["ptb"]) and not in_domain(data, members["ptb"])


def test_a_set_keeps_the_models_tokens_and_ends_and_nothing_else():
    own = DataConfig(
        source="x.jsonl", field="body", layout="pad", length=48, block_ends=True, attend_pads=True, tokenizer="bytes"
    )
    found = member_data(own, Member("PTB", "ptb", "valid"), "/somewhere")
    assert (found.source, found.layout, found.eos_between, found.attend_pads) == ("ptb", "wrap", False, False)
    assert (found.length, found.block_ends, found.tokenizer, found.local) == (48, True, "bytes", "/somewhere")


def test_ends_of_rows_are_those_of_the_model(root):
    lm = load(trained())
    data = lm.config.data.model_copy(update={"block_ends": True})
    rows = member_rows(data, lm.tokenizer, SUITES["zero-shot"][0], str(root), quiet=True)
    tokens, _ = rows.rows(np.arange(len(rows)))
    assert (tokens[:, 0] == lm.tokenizer.vocab.bos).all() and (tokens[:, -1] == lm.tokenizer.vocab.eos).all()
    assert (tokens[:, 1:-1] < 256).all()


@pytest.mark.parametrize(
    ("more", "said"),
    [
        (["--suite", "zero-shoot"], "did you mean 'zero-shot'"),
        (["--suite", "zero-shot", "--sets", "pbt"], "did you mean 'ptb'"),
        (["--suite", "zero-shot", "--sets", ","], "no set"),
        (["--suite", "zero-shot", "--data", "x"], "--data does not go with --suite"),
        (["--suite", "zero-shot", "--split", "test"], "--split does not go with --suite"),
        (["--suite", "zero-shot", "-k", "3"], "-k needs --generative"),
        (["--sets", "ptb"], "--sets needs --suite"),
        (["--suite", "zero-shot", "--estimator", "x"], "unknown estimator"),
        (["--generative", "--suite", "zero-shot"], "--suite does not go with --generative"),
    ],
)
def test_what_cannot_be_is_one_sentence(more, said):
    assert said in refused("eval", str(trained()), *more)


def test_a_missing_set_is_named_before_anything_is_computed(root, tmp_path):
    said = refused("eval", str(trained()), "--suite", "zero-shot", "--local", str(tmp_path))
    assert "ptb" in said and str(tmp_path) in said


def test_chosen_sets_come_once_and_in_the_order_named():
    assert [member.corpus for member in suite("zero-shot", ["lambada", "wikitext", "wikitext2"])] == [
        "lambada",
        "wikitext2",
    ]
