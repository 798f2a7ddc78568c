"""What is kept of a training: a table from scores alone with the same figures, and nothing of other settings."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from test_reproduce import TINY, sentences

from support.helpers import refused, run
from unmask.config import Config
from unmask.reproduce import bench as bench_module
from unmask.reproduce.kept_scores import KeptScores, essential
from unmask.reproduce.scales import SCALES
from unmask.reproduce.scored import ScoredModel
from unmask.types import UserError


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("kept")
    (folder / "text").mkdir()
    for seed, (split, n) in enumerate({"train": 300, "valid": 60, "test": 60}.items()):
        (folder / "text" / f"{split}.txt").write_text(sentences(n, seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(folder / "cache"))
        patch.setitem(SCALES, "smoke", TINY)
        yield folder


def table(place: Path, *more: str, out: str = "out") -> dict[str, Any]:
    words = ["--data", str(place / "text"), "--out", str(place / out), "--scores", str(place / "scores")]
    return run("reproduce", "time-conditioning", *words, "--seeds", "2", "--quiet", "--json", *more).json()


@pytest.fixture(scope="module")
def first(place) -> dict[str, Any]:
    return table(place)


def test_without_weights_the_table_is_the_same(place, first, monkeypatch):
    """On another machine: other folders, no weights, and nothing is trained."""
    monkeypatch.setattr(bench_module, "train", lambda *_, **__: pytest.fail("a training that is kept is made again"))
    moved = shutil.copytree(place / "text", place / "elsewhere" / "text")
    words = ["--data", str(moved), "--out", str(place / "other"), "--scores", str(place / "scores"), "--seeds", "2"]
    again = run("reproduce", "time-conditioning", *words, "--quiet", "--json").json()
    for part in ("tables", "checks", "models"):
        assert again[part] == first[part]
    assert not list((place / "other").rglob("*.safetensors"))
    assert "--scores" in again["command"]


def test_the_plan_knows_what_is_kept(place, first):
    found = table(place, "--plan", out="other")
    assert found["trainings"] and all(one["done"] == 1 and one["hours"] == 0 for one in found["trainings"])


def test_only_what_is_missing_is_trained(place, first, monkeypatch):
    made: list[str] = []
    real = bench_module.train
    monkeypatch.setattr(
        bench_module, "train", lambda config, out, **how: made.append(out.name) or real(config, out, **how)
    )
    shutil.rmtree(place / "scores" / "mdlm-time-seed1")
    again = table(place, out="third")
    assert made == ["mdlm-time-seed1"]  # its longer training is kept
    assert again["tables"] == first["tables"]


def test_a_table_that_needs_journals_trains_again_where_scores_alone_are_kept(place, first):
    words = ["--data", str(place / "text"), "--out", str(place / "journals"), "--scores", str(place / "scores")]
    found = run("reproduce", "variance-curve", *words, "--seeds", "2", "--quiet", "--json").json()
    assert [row["ours"]["batches"]["value"] > 3 for row in found["tables"][0]["rows"]] == [True] * 3


def test_scores_of_other_settings_or_texts_are_not_taken(tmp_path):
    kept, config = KeptScores(tmp_path), Config()
    scored = ScoredModel(np.arange(6.0).reshape(3, 2), np.full(3, 4), False, {"law": "bound"})
    settings = {"text": "a", "config": config.model_dump(mode="json")}
    kept.keep_facts("mdlm", settings, {"steps": 3})
    kept.keep_score("mdlm", "test", {"seed": 0}, scored)
    found = kept.score("mdlm", "test", {"seed": 0})
    assert found is not None and (found.nats == scored.nats).all() and found.protocol == scored.protocol
    assert kept.score("mdlm", "test", {"seed": 1}) is None and kept.score("mdlm", "valid", {"seed": 0}) is None
    for change in (["train.lr=0.1"], ["model.n_blocks=3"], ["data.length=32"], ["seed=1"]):
        assert kept.facts("mdlm", {**settings, "config": config.override(change).model_dump(mode="json")}) is None
    assert kept.facts("mdlm", {**settings, "text": "b"}) is None
    for change in (["data.source=elsewhere"], ["train.log_every=3"], ["eval.rows=3"], ["train.device=cuda"]):
        assert kept.facts("mdlm", {**settings, "config": config.override(change).model_dump(mode="json")}) == {
            "steps": 3
        }
    kept.keep_facts("mdlm", settings, {"steps": 3, "seconds": 1})
    assert kept.score("mdlm", "test", {"seed": 0}) is not None
    kept.keep_facts("mdlm", {**settings, "text": "b"}, {"steps": 3})
    assert kept.score("mdlm", "test", {"seed": 0}) is None, "of the text before"


def test_a_folder_of_scores_of_another_text_is_left_alone(place, first):
    """Another file that counts as a split is enough, and the scores may be the work of weeks."""
    (place / "larger").mkdir()
    other = shutil.copytree(place / "text", place / "larger" / "text")
    (other / "more_test.txt").write_text(sentences(20, 9))
    before = {path: path.read_bytes() for path in (place / "scores").rglob("*.json")}
    words = ["--data", str(other), "--out", str(place / "other"), "--scores", str(place / "scores")]
    said = refused("reproduce", "time-conditioning", *words, "--seeds", "2")
    assert "has scores of another text or of other settings" in said and "give another --scores" in said
    assert {path: path.read_bytes() for path in (place / "scores").rglob("*.json")} == before


def test_a_key_that_is_newer_than_the_scores_has_its_default():
    tree = Config().model_dump(mode="json")
    del tree["train"]["recompute"]
    assert essential({"config": tree}) == essential({"config": Config().model_dump(mode="json")})
    assert essential({"config": tree | {"gone": 1}}) != essential({"config": tree})
    start = {"kind": "mdlm", "changes": {"train": {"steps": 3}}, "start": {"config": tree}}
    assert essential(start)["start"] == essential({"config": tree}) and essential(start)["kind"] == "mdlm"


@pytest.mark.parametrize("damage", ["", "[]", "{}", '{"exact": tr', '{"exact": true, "nats": [[1]]}'])
def test_a_damaged_file_is_named(tmp_path, damage):
    kept = KeptScores(tmp_path)
    scored = ScoredModel(np.ones((3, 2)), np.full(3, 4), False, {})
    kept.keep_score("mdlm", "test", {}, scored)
    (file,) = (tmp_path / "mdlm").iterdir()
    file.write_text(damage)
    with pytest.raises(UserError, match=f"{file.name} is damaged.*delete it, and it is made again"):
        kept.score("mdlm", "test", {})


def test_a_damaged_file_is_a_sentence_of_the_command(place, first):
    broken = shutil.copytree(place / "scores", place / "broken")
    (broken / "mdlm" / "training.json").write_text(json.dumps({"facts": {}}))
    words = ["--data", str(place / "text"), "--out", str(place / "other"), "--scores", str(broken)]
    assert "training.json is damaged" in refused("reproduce", "time-conditioning", *words, "--seeds", "2")


def test_a_file_in_place_of_the_folder_is_refused_before_anything_is_trained(tmp_path):
    file = tmp_path / "scores"
    file.write_text("")
    ran = run("reproduce", "lm", "--out", str(tmp_path / "out"), "--scores", str(file))
    assert ran.code == 2 and f"--scores {file} is a file" in ran.err and not (tmp_path / "out").exists()
