"""Commands and runs of version 0.3 go on with the recipes of version 0.3."""

from __future__ import annotations

from pathlib import Path

import pytest

from support.helpers import TEXT, run, text_file
from unmask.earlier_recipes import EARLIER
from unmask.recipes import RECIPES, recipe, with_overrides


@pytest.mark.parametrize("name", EARLIER)
def test_a_new_run_gets_the_new_recipe(name: str, tmp_path: Path) -> None:
    config = with_overrides(name, [], tmp_path / "new")
    assert config == recipe(name) and config.model.network == "modern" and config.train.optimizer == "muon"


@pytest.mark.parametrize("name", EARLIER)
@pytest.mark.parametrize("words", [["model.cond_dim=8"], ["model.method=plaid"], ["model.method=ssd-lm"]])
def test_commands_that_need_the_earlier_recipe_get_it(name: str, words: list[str]) -> None:
    assert with_overrides(name, words) == EARLIER[name]().override(words)


def test_a_setting_of_no_network_is_still_an_error() -> None:
    with pytest.raises(ValueError, match="unknown config key"):
        with_overrides("tiny", ["model.cond_din=8"])


def test_methods_without_plain_cross_entropy_have_their_bound() -> None:
    for method in ("ar", "sedd", "d3pm", "no-carry-over"):
        assert with_overrides("tiny", [f"model.method={method}"]).objective.loss == "bound"
    assert (
        with_overrides("tiny", ["model.method=sedd", "objective.loss=cross-entropy"]).objective.loss == "cross-entropy"
    )
    assert RECIPES["tiny"]().objective.loss == "cross-entropy"


def test_a_run_of_the_earlier_recipe_is_continued_by_the_same_command(tmp_path: Path) -> None:
    words = [f"data.source={text_file()}", *TEXT, "model.hidden_dim=16", "eval.rows=4", "train.batch_size=4"]
    begun = EARLIER["tiny"]().override([*words, "train.steps=2"])
    (tmp_path / "before.yaml").write_text(begun.to_yaml())
    out = str(tmp_path / "run")
    assert run("train", str(tmp_path / "before.yaml"), "--out", out, "--quiet").code == 0
    again = run("train", "tiny", *words, "train.steps=3", "--out", out)
    assert again.code == 0 and "at step 2" in again.err
