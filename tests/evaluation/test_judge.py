"""Judgements: figures together, each with its error and protocol; `unmask eval --generative` from end to end."""

from __future__ import annotations

import functools
import math
import sys
from types import SimpleNamespace

import numpy as np
import pytest
from scipy import stats

import unmask
from support.helpers import SENTENCE, once, refused, run, settings, train_once
from unmask.evaluation.generative import BoundScorer, judge_model, real_rows, text_tokens
from unmask.evaluation.judge import JudgedText, judge, protocol_lines, table
from unmask.evaluation.judge.judgement import likelihood
from unmask.types import UserError

SAMPLES = [[1, 2, 3, 1, 2, 3, 1, 2, 3], [4, 5, 6, 7, 8], [], [1, 2, 9, 10]]
TEXTS = ["one two", "three", "", "four five six"]


class Letters:
    """A judge that scores letters: a nat each, two for an e. It knows no 'six'."""

    def nats(self, texts):
        return [JudgedText(len(t) + t.count("e"), len(t), len(t.split()), t.split().count("six")) for t in texts]

    def describe(self):
        return {"scorer": "letters"}


def test_perplexity_weighs_tokens_and_counts_each_once():
    judgement = judge(TEXTS, SAMPLES, scorer=Letters())
    letters = sum(map(len, TEXTS))
    nats = letters + sum(text.count("e") for text in TEXTS)
    assert judgement.figures["gen_nats_per_token"].value == pytest.approx(nats / letters)
    assert judgement.figures["gen_perplexity"].value == pytest.approx(math.exp(nats / letters))
    assert judgement.protocol["scorer"]["scored_tokens"] == letters  # retokenised, not the 18 that were sampled
    assert judgement.figures["scored_tokens_per_sample"].value == letters / 4
    assert judgement.figures["tokens_per_sample"].value == 18 / 4
    assert judgement.figures["unknown_share"].value == pytest.approx(1 / 6)
    assert judgement.protocol["empty_samples"] == 1 and judgement.samples == 4


def test_the_error_of_the_perplexity_is_that_of_the_jackknife():
    rng = np.random.default_rng(0)
    tokens = rng.integers(20, 60, 200)
    nats = tokens * rng.normal(3, 0.4, 200)
    figure = likelihood([JudgedText(float(a), int(b)) for a, b in zip(nats, tokens, strict=True)])["gen_perplexity"]
    without = np.exp((nats.sum() - nats) / (tokens.sum() - tokens))
    jackknife = math.sqrt(199 / 200 * ((without - without.mean()) ** 2).sum())
    assert figure.stderr == pytest.approx(jackknife, rel=0.02)


def test_figures_are_those_of_the_metrics_with_their_errors():
    found = judge(TEXTS, SAMPLES, network_calls=[3, 5, 4, 4], seconds=2.0).as_dict()
    entropies = [stats.entropy(np.unique(s, return_counts=True)[1]) if s else 0.0 for s in SAMPLES]
    assert found["entropy"] == pytest.approx(np.mean(entropies))
    assert found["stderr"]["entropy"] == pytest.approx(stats.sem(entropies))
    assert found["distinct_1"] == pytest.approx(10 / 18)
    assert found["repetition_4"] == pytest.approx((3 / 6 + 0 + 0 + 0) / 4)
    assert found["network_calls_per_sample"] == 4 and found["stderr"]["network_calls_per_sample"] > 0
    assert found["seconds_per_sample"] == 0.5 and "seconds_per_sample" not in found["stderr"]
    assert "gen_perplexity" not in found and found["scorer"] is None


def test_nothing_scored_is_no_perplexity():
    judgement = judge(["", ""], [[], []], scorer=Letters())
    assert "gen_perplexity" not in judgement.figures and "distinct_1" not in judgement.figures
    assert "nothing could be scored" in table({"samples": judgement})


def test_too_little_to_judge():
    with pytest.raises(UserError, match="1 samples cannot be judged; give at least 2"):
        judge(["a"], [[1]])
    with pytest.raises(UserError, match="2 texts, but tokens of 1"):
        judge(["a", "b"], [[1]])


class Features(Letters):
    def features(self, texts):
        return np.array([[len(text), text.count("e")] for text in texts], dtype=float)


def test_mauve_gets_features_of_real_and_of_generated_text(monkeypatch):
    asked = []
    fake = SimpleNamespace(compute_mauve=lambda **given: (asked.append(given), SimpleNamespace(mauve=0.25))[1])
    monkeypatch.setitem(sys.modules, "mauve", fake)
    judgement = judge(TEXTS, SAMPLES, scorer=Features(), references=["e", "ee"], seed=5)
    assert judgement.figures["mauve"].value == 0.25 and "2 references" in judgement.protocol["mauve"]
    (given,) = asked
    assert given["seed"] == 5 and given["p_features"].tolist() == [[1, 1], [2, 2]] and len(given["q_features"]) == 4
    with pytest.raises(UserError, match="give it a causal scorer"):
        judge(TEXTS, SAMPLES, scorer=Letters(), references=["e"])
    monkeypatch.setitem(sys.modules, "mauve", None)
    with pytest.raises(UserError, match=r"MAUVE \(GPLv3\) needs the package mauve; .*pip install .*\[mauve\]"):
        judge(TEXTS, SAMPLES, scorer=Features(), references=["e"])


def test_the_table_shows_errors_and_what_is_not_there():
    columns = {"samples": judge(TEXTS, SAMPLES, network_calls=[1] * 4), "real text": judge(TEXTS[::-1], SAMPLES[::-1])}
    lines = table(columns).splitlines()
    assert lines[0].split() == ["samples", "(4)", "real", "text", "(4)"]
    assert "no scorer; give one with --scorer" in lines[1]
    assert next(line for line in lines if line.startswith("entropy")).count("±") == 2
    assert next(line for line in lines if line.startswith("network calls")).split()[-1] == "-"
    assert list(protocol_lines({"a": 1, "b": {"c": 2}})) == ["  a: 1", "  b:", "    c: 2"]


# -- the command -----------------------------------------------------------------------------------------------------


@functools.cache
def model() -> str:
    """A run of two steps: what it writes is noise, which is as good to judge."""
    return str(train_once("judged", "tiny", *settings("train.steps=2", "eval.every=0")))


@functools.cache
def arpa() -> str:
    words = ["one", "two", "three", "four"]
    lines = ["\\data\\", "ngram 1=4", "", "\\1-grams:", *(f"-0.5\t{word}" for word in words), "\\end\\"]
    return str(once("words.arpa", lambda path: path.write_text("\n".join(lines))))


def generative(*args: str) -> list[str]:
    return ["eval", model(), "--generative", "-n", "3", "--steps", "4", *args]


def test_samples_are_judged_beside_real_text():
    ran = run(*generative())
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].split() == ["samples", "(3)", "real", "text", "(3)"]
    assert "no scorer; give one with --scorer" in lines[1]
    for protocol in ("  n: 3", "  length: 16", "  steps: 4", "  sampler: plan", "  seed: 0", "    split: valid"):
        assert protocol in lines


def test_json_has_every_figure_and_the_protocol():
    found = run(*generative("--scorer", f"arpa:{arpa()}", "--temperature", "0.9", "--json")).json()
    assert found["protocol"]["temperature"] == 0.9 and found["protocol"]["law"] == "T-step ancestral"
    real = found["reference"]
    assert real["scorer"] == f"arpa:{arpa()}"
    assert real["gen_nats_per_token"] == pytest.approx(0.5 * math.log(10))  # each of the four words
    assert found["samples"]["unknown_share"] > real["unknown_share"]
    assert found["samples"]["network_calls_per_sample"] <= 4 and found["samples"]["seconds_per_sample"] > 0
    assert "network_calls_per_sample" not in real


def test_samples_are_those_of_the_sample_command_and_none_is_left_out():
    drawn = run("sample", model(), "-n", "5", "--steps", "4", "--seed", "7", "--exact", "--json").json()["samples"]
    lm = unmask.load(model())
    expected = judge([s["text"] for s in drawn], [text_tokens(lm, s["ids"]) for s in drawn]).as_dict()
    found = [judge_model(model(), n=5, steps=4, seed=7, batch_size=size).samples.as_dict() for size in (2, 32)]
    for one in found:
        assert {name: one[name] for name in ("entropy", "self_bleu_4", "distinct_2", "tokens_per_sample")} == {
            name: pytest.approx(expected[name])
            for name in ("entropy", "self_bleu_4", "distinct_2", "tokens_per_sample")
        }


def test_real_rows_are_the_text_itself(tmp_path):
    lm = unmask.load(model())
    texts, ids, about = real_rows(lm, "valid", 10, 4)
    assert len(texts) == 4 and about["rows"] == 4
    stream = (SENTENCE * 3).replace("\n", "")
    for text, tokens in zip(texts, ids, strict=True):
        assert text.replace("\n", "") in stream and text
        assert bytes(tokens).decode().replace("\n", "") == text.replace("\n", "")
    other = tmp_path / "other.txt"
    other.write_text("quite another text. " * 20)
    texts, ids, about = real_rows(lm, str(other), 20, 100)
    assert texts[0] == "quite another text. " and len(ids[0]) == 20 and about["source"] == str(other)
    assert about["rows"] == about["of"] == 20  # all there is


def test_a_model_of_ours_as_a_judge_is_called_a_bound():
    lm = unmask.load(model())
    scorer = BoundScorer(lm, "x")
    scored = scorer.nats(["one two", "", "three four. one two three four."])
    assert [one.tokens for one in scored] == [7, 0, 31]
    assert scored[2].nats == pytest.approx(
        lm.score(["one two", "three four. one two three four."], method="bound").texts[1].nats
    )
    found = run(*generative("--scorer", f"unmask:{model()}", "--reference", "none", "--json")).json()
    assert found["samples"]["protocol"]["scorer"]["likelihood"] == "bound"
    assert found["reference"] is None and found["protocol"]["reference"] is None


MISTAKES = {
    "one sample": (["-n", "1"], "-n 1 is too few"),
    "no samples": (["-n", "0"], "-n 0 is too few"),
    "one row": (["--rows", "1"], "--rows 1 is too few"),
    "batch": (["--batch-size", "0"], "batch_size=0 must be at least 1"),
    "length": (["--length", "17"], "length=17 must be between 1 and 16"),
    "sampler": (["--sampler", "magic"], "unknown sampler 'magic'"),
    "steps": (["--steps", "0"], "steps"),
    "scorer kind": (["--scorer", "gpt:large"], "unknown kind of scorer 'gpt'"),
    "scorer missing": (["--scorer", "arpa:none.arpa"], "none.arpa does not exist"),
    "scorer run": (["--scorer", "unmask:nowhere"], "there is no model at nowhere"),
    "reference": (["--reference", "vaild"], "--reference vaild is not a file; give one, or train, valid, test or none"),
    "mauve": (["--mauve"], "give --scorer and --reference"),
    "data": (["--data", "x"], "--data does not go with --generative"),
    "draws": (["--draws", "4"], "--draws does not go with --generative"),
}  # fmt: skip


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(mistake):
    given, why = MISTAKES[mistake]
    assert why in refused(*generative(*given))


@pytest.mark.parametrize("option", ["-n 4", "--scorer x", "--top-k 3", "--mauve"])
def test_options_of_samples_need_generative(option):
    assert f"{option.split()[0]} needs --generative" in refused("eval", model(), *option.split())


def test_several_processes_are_refused(monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    assert "one process" in refused(*generative())


def test_short_references_are_refused(tmp_path):
    path = tmp_path / "short.txt"
    path.write_text("just twenty-one bytes")
    assert "give more text or a shorter --length" in refused(*generative("--reference", str(path)))
