"""Time as a setting: the steps that fit, the same run as with these steps, continued, extended, on two processes."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from support.helpers import refused, run, run_together, settings
from unmask.config import Config, load_yaml, parse, steps_of
from unmask.hub import checkpoint
from unmask.recipes import RECIPES, recipe, with_overrides
from unmask.training import text
from unmask.training.budget import Cost, fitting
from unmask.types import UserError

QUICK = ["model.dropout=0.2", "train.batch_size=4", "train.log_every=1", "eval.rows=4", "eval.draws=1"]
TENSORS = ("model.safetensors", "ema.safetensors", "optimizer.safetensors")


def arguments(out: Path, *more: str, recipe: str = "tiny") -> list[str]:
    return ["train", recipe, *settings(*QUICK, *more), "--out", str(out)]


@pytest.fixture(autouse=True)
def twelve_steps_fit(monkeypatch: pytest.MonkeyPatch) -> None:
    """However busy the machine is; it is measured all the same."""
    monkeypatch.setattr(text, "fitting", lambda config, cost, seconds: fitting(config, Cost(1.0), 12.5))


def bits(out: Path) -> dict[str, bytes]:
    last = checkpoint.step_folder(out, checkpoint.steps(out)[-1])
    return {name: (last / name).read_bytes() for name in TENSORS}


def stored(out: Path) -> Config:
    return load_yaml(out / "config.yaml")


def test_a_run_by_time_is_the_run_with_the_steps_that_were_chosen(tmp_path: Path) -> None:
    done = run(*arguments(tmp_path / "timed", "train.decay=linear"), "--minutes", "0.01")
    assert done.code == 0, done.err
    chosen = stored(tmp_path / "timed").train
    assert (chosen.minutes, chosen.steps, chosen.warmup) == (0.01, 12, 1)
    assert checkpoint.steps(tmp_path / "timed")[-1] == chosen.steps
    said = re.search(r"train\.minutes=0\.01: ([\d,]+) steps of 4 rows.*until about \d\d:\d\d", done.err)
    assert said and int(said[1].replace(",", "")) == chosen.steps
    assert not list((tmp_path / "timed").glob("*measuring*")), "what was written to measure is gone"
    plain = [f"train.steps={chosen.steps}", f"train.warmup={chosen.warmup}", "train.decay=linear"]
    assert run(*arguments(tmp_path / "plain", *plain)).code == 0
    assert bits(tmp_path / "timed") == bits(tmp_path / "plain"), "measuring changed the training"


def test_the_same_command_continues_and_more_minutes_are_more_steps(tmp_path: Path) -> None:
    out = tmp_path / "r"
    assert run(*arguments(out, "train.decay=linear"), "--minutes", "0.01").code == 0
    first = stored(out).train
    again = run(*arguments(out, "train.decay=linear"), "--minutes", "0.01", "--json").json()
    assert (again["step"], again["finished"]) == (first.steps, True)
    assert again["valid"]["tokens"] > 0, "a finished run prints its figures"
    twice = run(*arguments(out, "train.decay=linear"), "--minutes", "0.02", "--json").json()
    assert twice["step"] == 2 * first.steps and stored(out).train.warmup == first.warmup
    wanted = f"already at step {2 * first.steps}, beyond train.steps={first.steps}"
    assert wanted in refused(*arguments(out, "train.decay=linear"), "--minutes", "0.01")
    assert "beyond train.steps=1;" in refused(*arguments(out, "train.decay=linear", "train.steps=1"))


def test_a_run_without_a_time_does_not_get_one(tmp_path: Path) -> None:
    assert run(*arguments(tmp_path / "r", "train.steps=2", "train.decay=cosine")).code == 0
    why = refused(*arguments(tmp_path / "r", "train.decay=cosine"), "--minutes", "1")
    assert "was started without train.minutes; set train.steps" in why


@pytest.mark.slow
def test_two_processes_choose_the_same_steps(tmp_path: Path) -> None:
    words = arguments(tmp_path / "two", "train.decay=linear", "train.micro_batch_size=1")
    run_together(2, [*words, "--minutes", "0.01", "--quiet"], tmp_path / "said.txt")
    assert checkpoint.steps(tmp_path / "two")[-1] == stored(tmp_path / "two").train.steps


def counted(config: Config, cost: Cost) -> float:
    """The cost of a run, counted step by step."""
    spec, seconds = config.resolved(), 0.0
    for step in range(1, spec.train.steps + 1):
        last = step == spec.train.steps
        judged = last or (spec.eval.every and step % spec.eval.every == 0)
        seconds += cost.step + bool(judged) * (cost.evaluation + cost.checkpoint)
        if spec.sample.every and (last or step % spec.sample.every == 0):
            seconds += cost.samples
        seconds += cost.checkpoint * (last or step % spec.train.checkpoint_every == 0)
    return seconds


@pytest.mark.parametrize(
    "more", [[], ["eval.every=7"], ["eval.every=0"], ["train.checkpoint_every=5", "sample.every=0.3"]], ids=str
)
def test_as_many_steps_as_fit_with_evaluations_and_checkpoints(more: list[str]) -> None:
    config = recipe("small").override(more)
    cost = Cost(step=0.5, evaluation=2.0, samples=1.5, checkpoint=0.25)
    for seconds in (30.0, 100.0):
        chosen = fitting(config, cost, seconds)
        assert counted(chosen, cost) <= seconds
        assert counted(chosen.changed(train={"steps": chosen.train.steps + 1}), cost) > seconds
        assert chosen.train.warmup == steps_of(0.02, chosen.train.steps)
    assert fitting(config, cost, 0.1).train.steps == 1, "at least one step"


def test_shares_follow_the_steps_and_numbers_stay() -> None:
    config = recipe("tiny")
    assert config.resolved().train.warmup == 4 and config.resolved() == config.resolved().resolved()
    assert config.override(["train.steps=1000"]).resolved().train.warmup == 20
    assert config.override(["train.steps=3"]).resolved().train.warmup == 1
    assert config.override(["train.steps=1000", "train.warmup=7"]).resolved().train.warmup == 7
    half = config.override(["eval.every=0.5", "train.checkpoint_every=0.25", "sample.every=0.1"]).resolved()
    assert (half.eval.every, half.train.checkpoint_every, half.sample.every) == (100, 50, 20)
    written = half.to_yaml()
    assert "every: 100\n" in written and "warmup: 4\n" in written, "whole numbers, as versions before wrote them"
    assert parse({"train": {"warmup": 20, "checkpoint_every": 5}}).train.warmup == 20
    assert recipe("owt").train.warmup == 2500, "the paper's"


@pytest.mark.parametrize(
    ("name", "overrides", "expected"),
    [
        ("owt", ["train.steps=1000"], {"train.warmup": 0.1, "train.minutes": None, "eval.every": 10_000}),
        ("owt", ["train.steps=2000000"], {"train.warmup": 2500}),
        ("owt", ["train.steps=1000", "train.warmup=2500"], {"train.warmup": 2500}),
        ("owt", ["train.minutes=60"], {"train.warmup": 0.1, "train.decay": "cosine", "train.checkpoint_every": 0.1}),
        ("tiny", ["train.minutes=5", "train.decay=constant"], {"train.decay": "constant", "eval.every": 0.1}),
        ("tiny", ["train.minutes=5", "eval.every=3"], {"train.decay": "linear", "eval.every": 3}),
        ("tiny", ["train.steps=5"], {"train.decay": "linear", "train.warmup": 0.02, "eval.every": 100}),
        ("small", ["train.steps=5"], {"train.minutes": None, "train.steps": 5}),
        ("small", [], {"train.minutes": 30, "train.decay": "linear"}),
        ("overnight", ["train.minutes=10"], {"train.minutes": 10, "eval.every": 0.05}),
    ],
)  # fmt: skip
def test_what_recipes_say_of_steps_follows_the_user(name: str, overrides: list[str], expected: dict[str, Any]) -> None:
    config = with_overrides(name, overrides).model_dump()
    for key, value in expected.items():
        section, _, last = key.partition(".")
        assert config[section][last] == value, key


def test_steps_and_minutes_are_not_both_given() -> None:
    with pytest.raises(UserError, match="give one of them, not both"):
        with_overrides("small", ["train.steps=5", "train.minutes=3"])
    assert "train.minutes=0" in refused("train", "tiny", "--minutes", "0")


def test_tiny_says_what_it_is_for(tmp_path: Path) -> None:
    assert "only shows that the path works" in run(*arguments(tmp_path / "r", "train.steps=1")).err
    assert "only shows that the path works" in " ".join(run("train", "--help").out.replace("│", " ").split())
    assert {"small", "overnight"} <= RECIPES.keys()
