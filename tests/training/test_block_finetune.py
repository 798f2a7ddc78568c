"""`unmask finetune MODEL block`: models of other methods learn to write in blocks; recipes; what a step costs."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch

import unmask
from support.helpers import random_lm, random_model, refused, run, settings
from unmask.config import load_yaml
from unmask.data.tokenization import bytes_tokenizer
from unmask.distributed import world as join_world
from unmask.lm import LM
from unmask.recipes import mixed_blocks, recipe, with_overrides
from unmask.training import adapt, budget, fit

MODERN = ["model.hidden_dim=16", "model.n_blocks=1", "model.n_heads=2", "data.length=16"]
SHORT = ["train.steps=6", "train.batch_size=8", "train.warmup=2", "train.lr=0.003", "train.checkpoint_every=3"]
SHORT += ["eval.rows=8", "eval.draws=2", "eval.every=0"]


def modern(*changes: str) -> LM:
    """A random model on the modern network that reads bytes."""
    config, tokenizer = with_overrides("tiny", [*MODERN, *changes]), bytes_tokenizer()
    return LM(random_model(config, tokenizer.vocab, 0.3), tokenizer, config)


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("starts")
    changes = {"mdlm": [], "ar": ["model.method=ar"], "block": ["model.method=block", "block.size=4"]}
    return {name: modern(*words).save_pretrained(place / name) for name, words in changes.items()}


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("seven eight nine ten.\n" * 300)
    return str(path)


def tune(model: Path, text: str, out: Path, *more: str) -> list[str]:
    return ["finetune", str(model), "block", *SHORT, *more, "--data", text, "--out", str(out), "--quiet"]


@pytest.mark.parametrize("method", ["mdlm", "ar", "block"])
def test_a_model_begins_with_its_weights_and_goes_on_in_blocks(
    method: str, starts: dict[str, Path], text: str, tmp_path: Path
) -> None:
    out = tmp_path / "r"
    still = ["train.steps=1", "train.lr=1e-12", "train.muon_lr=1e-12", "train.warmup=0"]
    found = run(*tune(starts[method], text, out, *still), "--json").json()
    ours, theirs = unmask.load(out).model.state_dict(), unmask.load(starts[method]).model.state_dict()
    assert ours.keys() == theirs.keys()
    assert all(torch.allclose(ours[name], theirs[name], rtol=0, atol=1e-9) for name in theirs)
    config = load_yaml(out / "config.yaml")
    own = (4, None) if method == "block" else (8, {1: 0.1, 4: 0.2, 8: 0.4, "full": 0.3})
    assert (config.model.method, config.block.size, config.block.mixture) == ("block", *own)
    before, after = found["before"]["protocol"], found["after"]["protocol"]
    assert before["method"] == method and after["block"] == own[0]
    if method == "block":
        assert before["block"] == 4 and found["before"]["nats_per_token"] == pytest.approx(
            found["after"]["nats_per_token"], rel=1e-5
        )


def test_a_stopped_run_goes_on_to_the_same_bits(starts: dict[str, Path], text: str, tmp_path: Path) -> None:
    straight, halted = tmp_path / "a", tmp_path / "b"
    words = ["block.size=2", "--json"]
    done = run(*tune(starts["ar"], text, straight, *words)).json()
    assert run(*tune(starts["ar"], text, halted, "train.steps=3", *words)).json()["step"] == 3
    resumed = run(*tune(starts["ar"], text, halted, *words)).json()
    assert resumed["step"] == 6 and resumed["before"] == done["before"] and resumed["after"] == done["after"]
    assert load_yaml(halted / "config.yaml").block.mixture == {1: 0.1, 4: 0.2, 2: 0.4, "full": 0.3}
    one, two = (unmask.load(path).model.state_dict() for path in (straight, halted))
    assert all(one[name].equal(two[name]) for name in one)


def test_what_is_printed_says_the_laws(starts: dict[str, Path], text: str, tmp_path: Path) -> None:
    said = run(*tune(starts["mdlm"], text, tmp_path / "r", "train.steps=1")).out
    assert "before, mdlm: perplexity" in said and "after, blocks of 8: perplexity" in said


def test_a_block_model_is_judged_in_the_blocks_of_the_run(starts: dict[str, Path], text: str, tmp_path: Path) -> None:
    lm = unmask.load(starts["block"])
    words = ["eval.rows=4", "eval.draws=1"]
    with join_world("cpu") as world:
        for kind, changes, block in (("block", ["block.size=2"], 2), ("mdlm", [], "the whole row")):
            config = adapt.language_config(lm, "m", kind, text, None, [*words, *changes])
            assert adapt.bound(lm, config, world, True).protocol["block"] == block
    assert run("finetune", str(starts["block"]), "mdlm", *SHORT, "--data", text, "--out", str(tmp_path / "r")).code == 0
    assert unmask.load(tmp_path / "r").config.model.method == "mdlm"


def test_the_mixture_has_sizes_that_divide_the_rows() -> None:
    assert mixed_blocks(1024).mixture == {1: 0.1, 4: 0.2, 16: 0.4, "full": 0.3} and mixed_blocks(1024).size == 16
    assert mixed_blocks(24).mixture == {1: 0.1, 4: 0.2, 8: 0.4, "full": 0.3}
    assert mixed_blocks(15).mixture == {1: 0.5, "full": 0.3} and mixed_blocks(15).size == 1
    assert mixed_blocks(128, 4).mixture == {1: 0.1, 4: 0.6, "full": 0.3}
    assert mixed_blocks(128, "full").mixture == {1: 0.1, 4: 0.2, "full": 0.7}


def test_a_users_mixture_is_kept(starts: dict[str, Path], text: str) -> None:
    lm = unmask.load(starts["mdlm"])
    config = adapt.language_config(lm, "m", "block", text, None, ["block.mixture={2: 1}", "block.size=2"])
    assert config.block.mixture == {2: 1} and config.block.size == 2
    assert (config.train.steps, config.train.optimizer) == (150_000, "muon"), "as it was trained"


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["model.method=ar"], "is an autoregressive dit, which lacks the adaLN weights"),
        (["model.time_conditioning=true"], "is told the time of a row, and in block diffusion every block has a time"),
        (["model.method=plaid"], "is trained as plaid, and block needs a model of method mdlm, ar or block"),
        (["model.backbone=mosaicbert"], "is a mosaicbert, which does not read two streams; block needs a dit or a mod"),
    ],
)
def test_what_cannot_learn_blocks_is_one_sentence(changes: list[str], sentence: str, text: str, tmp_path: Path) -> None:
    random_lm(bytes_tokenizer(), *changes).save_pretrained(tmp_path / "m")
    assert sentence in refused(*tune(tmp_path / "m", text, tmp_path / "r"))


def test_a_size_that_does_not_divide(starts: dict[str, Path], text: str, tmp_path: Path) -> None:
    assert "blocks of 5 tokens do not divide" in refused(*tune(starts["mdlm"], text, tmp_path / "r", "block.size=5"))


# -- recipes ---------------------------------------------------------------------------------------------------------


def test_the_papers_settings() -> None:
    four, sixteen, lm1b = (recipe(f"bd3lm-{name}") for name in ("owt-4", "owt-16", "lm1b-8"))
    assert (four.objective.clip, sixteen.objective.clip, lm1b.objective.clip) == ((0.45, 0.95), (0.3, 0.8), None)
    for config, size in ((four, 4), (sixteen, 16), (lm1b, 8)):
        assert (config.block.size, config.block.clean, config.model.method) == (size, "blocks", "block")
        assert (config.train.steps, config.train.batch_size, config.train.lr) == (150_000, 512, 3e-4)
        assert config.data.layout == "wrap" and config.data.eos_between and not config.data.block_ends
    assert (lm1b.data.length, lm1b.data.tokenizer) == (128, "bert-base-uncased")
    blockgen = recipe("blockgen-owt")
    assert blockgen.block.mixture == {1: 0.05, 16: 0.95} and blockgen.objective.loss == "cross-entropy"


@pytest.mark.parametrize("network", ["modern", "dit"])
def test_muon_and_embeddings_from_counts(network: str, tmp_path: Path) -> None:
    small = [f"model.network={network}", "model.hidden_dim=16", "model.n_heads=2", "train.steps=3", "eval.rows=4"]
    words = [word for word in settings() if word.startswith("data.")]
    sizes = ["model.method=block", "block.size=2", "block.mixture={1: 1, 2: 1, full: 1}"]
    done = run("train", "tiny", *words, *small, *sizes, "--out", str(tmp_path / "r"), "--json").json()
    config = load_yaml(tmp_path / "r" / "config.yaml")
    assert done["finished"] and (config.train.optimizer, config.train.embeddings) == ("muon", "counts")
    assert config.objective.loss == "cross-entropy", "as for MDLM"


# -- what a step costs -----------------------------------------------------------------------------------------------


def test_two_streams_cost_more_than_one(text: str) -> None:
    """The memory of a row is that of two streams; its time is that of the mixture."""
    lm = modern()
    config = adapt.language_config(lm, "m", "block", text)
    model = fit.trained_on(lm, config)
    assert model.streams() == pytest.approx(1.7) and {model.streams(step) for step in range(16)} == {1.0, 2.0}
    assert model.backbone is lm.model.backbone and fit.trained_on(lm, lm.config) is lm.model
    one, two = (fit.row_cost(each, 16) for each in (lm.model, model))
    assert two.saved > 1.5 * one.saved and two.weights == one.weights and two.seconds > 0


def test_a_measured_step_is_the_mean_over_the_mixture(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Few steps are timed, and they may be more or less costly than others."""
    model: Any = modern("model.method=block", "block.size=4", "block.mixture={4: 0.9, full: 0.1}").model
    clock = [0.0]

    class Trained:
        def __init__(self, *_: Any) -> None: ...

        def step(self, data: Any, number: int) -> None:
            clock[0] += model.streams(number)

    monkeypatch.setattr(budget, "Trainer", Trained)
    monkeypatch.setattr(budget, "_save", lambda *_: None)
    monkeypatch.setattr(budget.time, "monotonic", lambda: clock[0])
    config = with_overrides("tiny", [])
    job: Any = SimpleNamespace(
        config=config, model=model, cut=None, data=None, streams=model.streams, evaluation_seconds=lambda trainer: 0.0
    )
    with join_world("cpu") as world:
        for seconds in (1.0, 1000.0):
            assert budget.measure(job, tmp_path, world, seconds).step == pytest.approx(model.streams())
