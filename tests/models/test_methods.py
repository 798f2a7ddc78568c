"""All methods as their users meet them on the command line: what one cannot do is one sentence that helps."""

from __future__ import annotations

import functools
import math
import shutil
from pathlib import Path

import pytest
import torch
import yaml

from support.helpers import refused, run, settings, train_once
from unmask import load
from unmask.cli import eval as eval_command
from unmask.evaluation.generative import open_judge
from unmask.types import Likelihood, UserError

SEDD = ("model.method=sedd", "model.time_conditioning=true")
MADE = {
    "mdlm": (),
    "no-carry-over": ("model.method=no-carry-over",),
    "d3pm": ("model.method=d3pm", "objective.bound=discrete", "objective.steps=10"),
    "sedd": SEDD,
    "sedd-cosine": (*SEDD, "schedule.name=cosine"),
    "ar": ("model.method=ar",),
    "ar-no-start": ("model.method=ar", "objective.start_token=false"),
    "ar-no-start-ends": ("model.method=ar", "objective.start_token=false", "data.block_ends=true"),
    "ssd-lm": ("model.method=ssd-lm", "simplex.block=4"),
}


@functools.cache
def made(name: str) -> str:
    """A run of two steps."""
    more = settings(*MADE[name], "train.steps=2", "eval.rows=4", "eval.every=0")
    return str(train_once(f"method-{name}", "tiny", *more))


# -- a first token that is given and not scored ----------------------------------------------------------------------

TEXTS = ["one two three", "four. one", "ab"]


def by_hand(name: str, text: str, first: int) -> float:
    """-log p of the bytes of a short text from `first` on, one forward pass a byte."""
    lm = load(name)
    ids = lm.encode(text)
    before = [] if lm.prompt_builder.block_ends is None else [lm.prompt_builder.block_ends[0]]
    total = 0.0
    with torch.no_grad():
        for i in range(first, len(ids)):
            hidden = lm.model.backbone(torch.tensor([before + ids[:i]]))[0]
            logits = lm.model.backbone.head(hidden[0, -1:])[0].double()
            logits[lm.tokenizer.vocab.mask] = -math.inf
            total -= float(logits.log_softmax(-1)[ids[i]])
    return total


@pytest.mark.parametrize(("name", "first"), [("ar-no-start", 1), ("ar-no-start-ends", 0)])
def test_a_token_that_is_given_is_not_counted(name: str, first: int) -> None:
    lm = load(made(name))
    found = lm.score(TEXTS)
    for text, one in zip(TEXTS, found.texts, strict=True):
        nats, tokens = by_hand(made(name), text, first), len(text) - first
        assert one.tokens == tokens
        assert one.nats == pytest.approx(nats, rel=1e-5)
        assert one.perplexity == pytest.approx(math.exp(nats / tokens), rel=1e-5)
        assert one.pieces == list(text)[first:]
        assert one.token_nats is not None and len(one.token_nats) == tokens
        assert one.bytes == len(text) - first, "a byte is a token here, and the first one is given"
    assert found.tokens == sum(one.tokens for one in found.texts)
    assert found.nats == pytest.approx(sum(one.nats for one in found.texts))


def test_every_block_of_a_long_text_has_its_own_given_token() -> None:
    name, text = made("ar-no-start"), "one two three four. one two three four. one two"
    lm = load(name)
    blocks = [text[i : i + lm.length] for i in range(0, len(text), lm.length)]
    assert [len(block) for block in blocks] == [16, 16, 15]
    (one,) = lm.score([text]).texts
    assert one.tokens == len(text) - 3
    assert one.nats == pytest.approx(sum(by_hand(name, block, 1) for block in blocks), rel=1e-5)
    assert one.pieces == [piece for block in blocks for piece in block[1:]]


def test_a_judge_counts_what_it_scores() -> None:
    name = made("ar-no-start")
    judge = open_judge(f"unmask:{name}", torch.device("cpu"), "cpu")
    found = judge.nats(["one two", "a", ""])
    assert [one.tokens for one in found] == [6, 0, 0]
    assert found[0].nats == pytest.approx(by_hand(name, "one two", 1), rel=1e-5)
    assert found[1].nats == found[2].nats == 0
    assert judge.describe()["scorer_law"]["draws"] == 1  # exact: nothing is drawn


def test_exact_is_a_method_of_an_exact_model() -> None:
    lm = load(made("ar"))
    exact, bound = (lm.score(TEXTS, method=method) for method in ("exact", "bound"))
    assert exact.nats == bound.nats and exact.stderr_nats == 0
    assert exact.protocol["law"] == "exact" and exact.protocol["order"] == "left to right"


# -- refusals --------------------------------------------------------------------------------------------------------

MISTAKES = {
    "score nothing": (["score", "ar-no-start", "a"], "is given and does not score; make it longer"),
    "no start": (["sample", "ar-no-start"], "give it the first token or a prompt"),
    "bound of ar": (["eval", "ar", "--bound", "continuous"], "no choice of bound; leave out bound, steps and schedule"),
    "steps of ar": (["eval", "ar", "--steps", "3"], "no choice of bound; leave out bound, steps and schedule"),
    "no steps": (["eval", "mdlm", "--bound", "discrete"], "give one, for example --steps 1000"),
    "sedd strata": (["eval", "sedd", "--estimator", "strata"], "unmask eval: --estimator times"),
    "sedd order": (["sample", "sedd", "--sampler", "confidence"], "choose the textbook ancestral sampler"),
    "sedd gap": (["sample", "sedd", "--infill", "one {{2-3}} two"], "say how long it is, for example {{3}}"),
    "sedd span": (["score", "sedd", "one two", "--span", "0:3"], "score whole texts"),
    "ssd eval": (["eval", "ssd-lm"], "this model has no likelihood; judge its samples"),
    "ssd score": (["score", "ssd-lm", "one"], "this model has no likelihood; judge its samples"),
    "ssd judges": (["eval", "mdlm", "--generative", "--scorer", "unmask:{ssd-lm}"], "choose another scorer"),
    "nobody judges": (["eval", "mdlm", "--generative", "--scorer", "unmask:"], "give unmask:RUN"),
    "with an option": (["sample", "mdlm", "--top-p", "0.9", "--with", "top_p=0.5"], "top_p is set twice; give it once"),
    "with k": (["sample", "mdlm", "-k", "3", "--with", "k=2"], "k is set twice; give it once"),
    "with seed": (["eval", "mdlm", "--generative", "--seed", "1", "--with", "seed=2"], "seed is set twice"),
    "with nothing": (["sample", "mdlm", "--with", "top_q=0.5"], "there is no setting 'top_q' (did you mean 'top_p'?)"),
    "with twice": (["sample", "ssd-lm", *["--with", "projection=greedy"] * 2], "projection is set twice; give it once"),
}


@pytest.mark.parametrize("what", MISTAKES)
def test_mistakes_name_the_fix(what: str) -> None:
    (command, name, *rest), words = MISTAKES[what]
    rest = [word.replace("{ssd-lm}", made("ssd-lm")) if "unmask:" in word else word for word in rest]
    assert words in refused(command, made(name), *rest)


USELESS = {
    "ar time": (["model.method=ar", "model.time_conditioning=true"], "set model.time_conditioning=false"),
    "plaid loss": (["model.method=plaid", "objective.loss=cross-entropy"], "does not use objective.loss; leave it out"),
    "ar clip": (["model.method=ar", "objective.clip=[0.3,0.8]"], "does not use objective.clip; leave it out"),
    "ssd bound": (
        ["model.method=ssd-lm", "simplex.block=4", "objective.bound=discrete", "objective.steps=9"],
        "does not use objective.bound; leave it out",
    ),
    "ssd proposal": (["model.method=ssd-lm", "objective.proposal=cosine"], "does not use objective.proposal"),
    "start": (["model.method=sedd", "objective.start_token=false"], "belongs to model.method=ar, not sedd"),
}


@pytest.mark.parametrize("what", USELESS)
def test_settings_that_would_change_nothing_are_refused(what: str, tmp_path: Path) -> None:
    overrides, words = USELESS[what]
    assert words in refused("train", "tiny", *settings(*overrides), "--out", str(tmp_path / "run"), "--quiet")


def test_the_demo_is_of_one_method(tmp_path: Path) -> None:
    words = refused("demo", *settings("model.method=ar"), "--out", str(tmp_path / "run"))
    assert "unmask train demo model.method=ar" in words
    assert not (tmp_path / "run").exists()  # said before minutes of training, not after them


# -- what works ------------------------------------------------------------------------------------------------------


def test_a_discrete_bound_has_the_steps_of_the_model() -> None:
    own, asked, more = (
        run("eval", made("d3pm"), "--rows", "4", "--json", *words).json()
        for words in ([], ["--bound", "discrete"], ["--steps", "7"])
    )
    assert own == asked
    assert (own["protocol"]["steps"], more["protocol"]["steps"]) == (10, 7)


def test_the_end_of_a_training_names_a_command_that_works(tmp_path: Path) -> None:
    for name, end in (("ssd-lm", " --generative"), ("ar", "")):
        out = tmp_path / name
        more = settings(*MADE[name], "train.steps=1", "eval.rows=2")
        ran = run("train", "tiny", *more, "--out", str(out), "--quiet")
        assert ran.out.endswith(f"unmask eval {out}{end}\n")
    ran = run("eval", str(tmp_path / "ssd-lm"), "--generative", "-n", "2", "--steps", "2")
    assert ran.code == 0, ran.err


def test_an_infinite_perplexity_is_printed(monkeypatch: pytest.MonkeyPatch) -> None:
    found = Likelihood(10_000.0, 10, None, 0.0, 3.0, {"bound": "exact"})  # e^1000: what a diverged model has
    monkeypatch.setattr(eval_command, "evaluate_model", lambda *_, **__: [found])
    figures = run("eval", made("ar"), "--json").json()
    assert figures["perplexity"] is None and figures["nats_per_token"] == 1000
    assert run("eval", made("ar")).out.startswith("perplexity inf, 1442.695 bits/token, 10 tokens")


@pytest.mark.parametrize(("name", "same"), [("sedd", True), ("sedd-cosine", False)])
def test_euler_is_analytic_where_alpha_is_straight(name: str, same: bool) -> None:
    found = [
        run("sample", made(name), "--steps", "5", "-n", "8", "--jsonl", "--sampler", sampler).out
        for sampler in ("analytic", "euler")
    ]
    assert (found[0] == found[1]) is same


# -- reproduce -------------------------------------------------------------------------------------------------------


@pytest.fixture
def bench(tmp_path: Path) -> list[str]:
    """A folder with one model that seed 0 would call its own."""
    text = tmp_path / "text.txt"
    text.write_text("one two three four.\n" * 50)
    path = tmp_path / "out" / "smoke" / "text.txt" / "models" / "mdlm"
    shutil.copytree(made("mdlm"), path)
    config = yaml.safe_load((path / "config.yaml").read_text())
    config["data"]["source"] = str(text)
    (path / "config.yaml").write_text(yaml.safe_dump(config))
    return ["reproduce", "steps", "--quiet", "--out", str(tmp_path / "out"), "--data", str(text)]


def test_models_of_another_seed_are_not_shown_as_this_ones(bench: list[str]) -> None:
    words = refused(*bench, "--seed", "7")
    assert "was trained with seed 0, not 7" in words and "give another --out" in words


def test_models_of_another_text_are_not_shown_as_this_ones(bench: list[str], tmp_path: Path) -> None:
    other = tmp_path / "other" / "text.txt"  # another file of the same name
    other.parent.mkdir()
    shutil.copy(tmp_path / "text.txt", other)
    assert "give another --out" in refused(*bench[:-1], str(other))


@pytest.mark.parametrize(
    ("more", "words"),
    [
        (["--data", ""], "--data is empty; give a name"),
        (["--seed", str(2**63 - 1)], "must fit into 64 bits"),  # the second training has one more
        (["--seed", str(-(2**64))], "must fit into 64 bits"),
    ],
)
def test_reproduce_mistakes(more: list[str], words: str, tmp_path: Path) -> None:
    assert words in refused("reproduce", "ablation", "--out", str(tmp_path / "out"), *more)
    assert not (tmp_path / "out").exists()


def test_too_little_text_is_said_before_anything_is_trained(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    text = tmp_path / "short.txt"
    text.write_text("\n\n".join(f"one two three four {i} and so on. " * 5 for i in range(60)))
    words = refused("reproduce", "steps", "--quiet", "--out", str(tmp_path / "out"), "--data", str(text))
    assert "of the 6 rows of 32 tokens that error bars need; give more text" in words
    assert not (tmp_path / "out").exists()


def test_a_judge_without_likelihood_is_refused_in_python_too() -> None:
    with pytest.raises(UserError, match="cannot judge"):
        open_judge(f"unmask:{made('ssd-lm')}", torch.device("cpu"), "cpu")
