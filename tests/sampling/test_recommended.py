"""The settings that a model recommends: they apply where a user leaves something open, and never to figures."""

from __future__ import annotations

import ast
import json
import shutil
from pathlib import Path

import pytest

import unmask
from support.helpers import random_lm, refused, run, settings, train_once, trained
from support.paths import ROOT
from unmask.cli.fill_loop import FillLoop
from unmask.cli.templates import write_template
from unmask.data.genome.bases import dna_tokenizer
from unmask.data.tokenization import bytes_tokenizer
from unmask.errors import UserError
from unmask.evaluation.generative import judge_model
from unmask.hub.card import model_card
from unmask.recipes import recipe
from unmask.sampling.params import SamplingParams
from unmask.sampling.recommended import FILE, TEXT, Recommended, of_training

COLD = Recommended({"temperature": 0.01}, "numbers", ("one two",), "one {{4}} three")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A random model, whose samples at temperature 1 and at 0.01 have nothing in common."""
    place = tmp_path_factory.mktemp("model") / "cold"
    lm = random_lm(bytes_tokenizer(), "data.length=16", scale=2.0)
    lm.recommended = COLD
    return lm.save_pretrained(place)


@pytest.fixture(scope="module")
def lm(folder):
    return unmask.load(folder)


# -- which settings apply ----------------------------------------------------------------------------------------------

ALL = {"sampler": "confidence", "steps": 8, "temperature": 0.7, "top_p": 0.9}


@pytest.mark.parametrize(
    ("explicit", "kept"),
    [
        ({}, set(ALL)),
        ({"seed": 3, "ban": ["x"], "stride": 4}, set(ALL)),
        ({"temperature": 1}, set()),  # the plain law
        ({"temperature": 1.0, "steps": 4}, set()),
        ({"temperature": 0.5}, {"sampler", "steps"}),  # top-p was chosen with the other temperature
        ({"top_k": None}, {"sampler", "steps"}),
        ({"sampler": "plan"}, {"temperature", "top_p"}),
        ({"sampler": None}, {"temperature", "top_p"}),
        ({"sampler": "confidence"}, {"steps", "temperature", "top_p"}),
        ({"steps": 4}, {"sampler", "temperature", "top_p"}),
        ({"k": 2}, {"sampler", "temperature", "top_p"}),  # instead of steps
        ({"threshold": 0.5}, {"sampler", "temperature", "top_p"}),
        ({"eta": 0.1}, {"temperature", "top_p"}),  # which the sampler does not take
    ],
)
def test_what_a_user_leaves_open_is_as_the_model_recommends(explicit, kept):
    params = Recommended(ALL).params(explicit)
    assert set(params.recommended) == kept
    plain = SamplingParams(**{name: ALL[name] for name in kept} | explicit)
    assert params == plain and params.describe().get("recommended", []) == list(params.recommended)
    assert bool(params.advice) == bool(kept)
    exact = Recommended(ALL).params(explicit, exact=True)
    assert exact == SamplingParams(**explicit) and not exact.recommended and "recommended" not in exact.describe()


@pytest.mark.parametrize(
    ("explicit", "block"),
    [
        ({}, 16),
        ({"sampler": "confidence"}, 16),
        ({"steps": 4}, 16),
        ({"temperature": 0.5}, 16),
        ({"block": 4}, 4),
        ({"block": None}, None),  # the model's
        ({"sampler": "speculative"}, None),  # which has none
        ({"temperature": 1}, None),
    ],
)
def test_a_block_size_may_be_recommended(explicit, block):
    assert Recommended({"block": 16, "temperature": 0.9}).params(explicit).block == block


def test_a_block_size_must_suit_the_sampler():
    with pytest.raises(UserError, match="leave block out"):
        Recommended({"block": 16, "sampler": "speculative"})
    with pytest.raises(UserError, match="block"):
        Recommended({"block": 0})


def test_without_a_recommendation_nothing_changes():
    assert Recommended().params({"steps": 3}) == SamplingParams(steps=3) and not Recommended()


# -- the folder ------------------------------------------------------------------------------------------------------


def test_it_travels_with_the_folder_and_the_card(folder, lm, tmp_path):
    assert lm.recommended == COLD and json.loads((folder / FILE).read_text())["settings"] == {"temperature": 0.01}
    assert unmask.load(lm.save_pretrained(tmp_path / "again")).recommended == COLD
    card = model_card(lm.config, "me/m", recommended=COLD)
    assert "temperature 0.01" in card and "`one {{4}} three`" in card and "--exact" in card
    assert "How to sample it" not in model_card(lm.config, "me/m")


def test_a_folder_without_it_is_read_as_before(folder, tmp_path):
    old = shutil.copytree(folder, tmp_path / "old")
    for name in (FILE, "manifest.json"):
        (old / name).unlink()
    assert unmask.load(old).sampling_params({"seed": 2}) == SamplingParams(seed=2)


@pytest.mark.parametrize(
    ("content", "why"),
    [
        ("{", "not JSON"),
        ("[]", "not a JSON object"),
        ('{"format": 2}', "format 2"),
        ('{"format": 1, "temperature": 0.7}', "unknown key 'temperature'"),
        ('{"format": 1, "settings": {"temprature": 0.7}}', "did you mean 'temperature'"),
        ('{"format": 1, "settings": {"temperature": "warm"}}', "must be a number"),
        ('{"format": 1, "settings": {"temperature": -1}}', "at least 0"),
        ('{"format": 1, "settings": {"seed": 1}}', "cannot be recommended"),
        ('{"format": 1, "settings": {"sampler": "plan", "eta": 1}}', "does not take eta"),
        ('{"format": 1, "settings": {"k": 3}}', "does not take k"),  # only the model knows its default sampler
        ('{"format": 1, "settings": 3}', "not an object"),
        ('{"format": 1, "prompts": "one"}', "not a list of texts"),
        ('{"format": 1, "infill": "one"}', "no gap"),
        ('{"format": 1, "infill": 1}', "not texts"),
    ],
)
def test_a_damaged_file_is_named(folder, tmp_path, content, why):
    bad = shutil.copytree(folder, tmp_path / "bad")
    (bad / FILE).write_text(content)
    (bad / "manifest.json").unlink()  # which would say that it was changed
    with pytest.raises(UserError) as error:
        unmask.load(bad)
    assert why in str(error.value) and str(bad / FILE) in str(error.value) and "\n" not in str(error.value)


# -- training --------------------------------------------------------------------------------------------------------


def test_a_trained_model_of_text_has_a_default():
    recommending = train_once(
        "recommending", "tiny", *settings("train.steps=2", "eval.every=0", "train.checkpoint_every=2")
    )
    assert (
        unmask.load(recommending).recommended.settings == TEXT and unmask.load(trained()).recommended == Recommended()
    )
    assert of_training("auto", "bpe", "plan").settings == TEXT
    for nothing in (("none", "bpe", "plan"), ("auto", "dna", "plan"), ("auto", "bpe", "gaussian")):
        assert not of_training(*nothing)
    assert of_training({"top_p": 0.5}, "dna", "plan").settings == {"top_p": 0.5}
    assert not unmask.LM(None, dna_tokenizer(), recipe("tiny")).recommended  # type: ignore[arg-type]


def test_what_cannot_be_recommended_is_refused_before_training(tmp_path):
    said = refused(
        "train", "tiny", *settings("sample.recommended={temprature: 2}"), "--out", str(tmp_path / "r"), "--quiet"
    )
    assert "sample.recommended" in said and "did you mean 'temperature'" in said


# -- every way to sample uses it, and says so ------------------------------------------------------------------------

HOW = {"length": 16, "seed": 5}


def plain(lm, text: str | None = None, n: int = 1) -> list[str]:
    """The plain law, from settings that nobody completes."""
    canvas = lm.prompt_canvas("", 16) if text is None else lm.gap_canvas(text)
    return [sample.text for sample in lm.write([canvas] * n, SamplingParams(seed=5))]


def test_python_uses_it_unless_told_otherwise(lm):
    cold = lm.sample(2, temperature=0.01, **HOW)
    assert lm.sample(2, **HOW) == cold == [s.text for s in lm.write_samples(2, **HOW)]
    assert "".join(lm.stream(length=16, seed=5)) == cold[0]
    assert cold != plain(lm, n=2) == lm.sample(2, exact=True, **HOW) == lm.sample(2, temperature=1, **HOW)
    assert "".join(lm.stream(length=16, seed=5, exact=True)) == plain(lm)[0]
    gap = "one {{6}} two"
    assert lm.infill(gap, seed=5) == lm.infill(gap, seed=5, temperature=0.01) != lm.infill(gap, seed=5, exact=True)
    assert lm.infill(gap, seed=5, exact=True) == plain(lm, gap)
    with pytest.raises(UserError, match="either options"):
        lm.write([lm.prompt_canvas("", 16)], SamplingParams(), seed=3)


def test_the_command_line_uses_it_and_says_so(lm, folder):
    ran = run("sample", str(folder), "--length", "16", "--seed", "5", "--json")
    document = ran.json()
    assert document["samples"][0]["text"] == lm.sample(**HOW)[0]
    assert document["protocol"]["recommended"] == ["temperature"] and document["protocol"]["temperature"] == 0.01
    assert ran.err == "recommended by the model: temperature 0.01 (--exact: the plain law)\n"
    streamed = run("sample", str(folder), "--length", "16", "--seed", "5")
    assert streamed.out == lm.sample(**HOW)[0] + "\n" and streamed.err == ran.err
    for exact in (["--exact"], ["--temperature", "1"]):
        ran = run("sample", str(folder), "--length", "16", "--seed", "5", "--json", *exact)
        assert ran.json()["samples"][0]["text"] == plain(lm)[0] and "recommended" not in ran.json()["protocol"]
        assert ran.err == ""


def test_templates_and_the_loop_use_it(lm):
    def filled(line: str, defaults) -> str:
        [row] = write_template(lm, [(1, line)], defaults)
        return row["text"]

    open_line, exact_line = '{"text": "one {{6}} two"}', '{"text": "one {{6}} two", "temperature": 1}'
    texts = [filled(line, {"seed": 5}) for line in (open_line, exact_line)]
    assert texts == [lm.infill("one {{6}} two", seed=5)[0], plain(lm, "one {{6}} two")[0]]
    assert filled(open_line, SamplingParams(seed=5)) == texts[1]
    assert FillLoop(lm, "m", {"seed": 5}).fill("one {{6}} two")[0].text == texts[0]
    assert FillLoop(lm, "m", {"seed": 5}, exact=True).fill("one {{6}} two")[0].text == texts[1]
    said: list[str] = []
    FillLoop(lm, "m").line(":show", said.append)
    assert "temperature 0.01" in said[0] and "recommended" in said[0]


# -- figures never do ------------------------------------------------------------------------------------------------


def test_figures_are_of_the_plain_law(lm, folder, monkeypatch):
    drawn: list[str] = []
    judged = judge_model.__globals__["judge"]
    monkeypatch.setitem(
        judge_model.__globals__, "judge", lambda texts, *a, **k: drawn.extend(texts) or judged(texts, *a, **k)
    )
    report = judge_model(str(folder), n=2, length=16, reference="none", seed=5)
    assert drawn == plain(lm, n=2) and "recommended" not in report.protocol and report.protocol["temperature"] == 1
    assert lm.score("one two three").nats == unmask.load(folder).score("one two three").nats


def calls(tree: ast.AST) -> list[str]:
    """Calls in a module that complete settings by what a model recommends."""
    wrong = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            name, on_model = node.func.attr, ast.unparse(node.func.value).split(".")[-1] in ("lm", "model", "writer")
            keywords = {word.arg for word in node.keywords} - {"batch_size", "tops", "watch"}
            completes = name in ("sample", "infill", "write_samples", "sampling_params")
            if completes or (on_model and (name == "stream" or (name == "write" and keywords))):
                wrong.append(f"{node.lineno}: {ast.unparse(node)[:80]}")
    return wrong


def test_no_module_that_measures_completes_settings():
    """Structural: settings by keyword are completed, `SamplingParams` are not; who measures uses only the latter."""
    source = ROOT / "src" / "unmask"
    measuring = ("evaluation", "reproduce", "dna", "hub/lm_eval", "models", "sampling")
    files = [file for name in measuring for file in (source / name).rglob("*.py")]
    wrong = [f"{file}:{call}" for file in files for call in calls(ast.parse(file.read_text(encoding="utf-8")))]
    assert len(files) > 80 and not wrong, "\n".join(wrong)
    assert len(calls(ast.parse("lm.sample(2)\nlm.write(c, seed=3)\nlm.write(c, options, tops=2)\nlm.stream('x')"))) == 3


def test_the_end_of_a_text_can_be_recommended(tmp_path):
    """An open text ends at an end-of-text token; one with a given end is filled as before, and says nothing."""
    lm = random_lm(bytes_tokenizer(), "data.length=64", scale=0.0)  # all tokens alike, the end among them
    open_ended = lm.sample(8, seed=0)
    lm.recommended = Recommended({"stop_at_eos": True})
    again = unmask.load(lm.save_pretrained(tmp_path / "ends"))
    assert again.recommended == lm.recommended
    texts = again.sample(8, seed=0)
    assert any(len(text) < len(whole) for text, whole in zip(texts, open_ended, strict=True))
    assert again.sample(8, seed=0, stop_at_eos=False) == open_ended == again.sample(8, seed=0, exact=True)
    assert again.infill("one {{4}} three", seed=0)[0].endswith(" three")
    assert again.recommended.params({"sampler": "confidence"}).stop_at_eos
