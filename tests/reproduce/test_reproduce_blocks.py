"""The study of block sizes: every law of one network, beside models that are trained apart."""

from __future__ import annotations

import json
import math
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from support.helpers import run
from unmask.config import ModelConfig
from unmask.reproduce.scales import SCALES
from unmask.reproduce.specs import Setup
from unmask.reproduce.tables.block_sizes import MODELS, block_models

SMOKE = SCALES["smoke"]
assert SMOKE.sizes is not None
TINY = replace(
    SMOKE,
    steps=4,
    rows=4,
    samples=2,
    sizes=replace(
        SMOKE.sizes,
        network=ModelConfig(network="modern", hidden_dim=16, n_blocks=1, n_heads=2),
        vocab_size=300,
        warmup=1,
        checkpoint_every=4,
    ),
)


@pytest.fixture(scope="module")
def said(tmp_path_factory: pytest.TempPathFactory) -> tuple[dict[str, Any], Path]:
    folder = tmp_path_factory.mktemp("blocks")
    text = folder / "text"
    text.mkdir()
    for split, n in {"train": 400, "valid": 100, "test": 100}.items():
        (text / f"{split}.txt").write_text("".join(f"the {i % 7} dogs see {i % 5} cats.\n" for i in range(n)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(folder / "cache"))
        patch.setitem(SCALES, "smoke", TINY)
        words = ("--data", str(text), "--out", str(folder / "out"), "--quiet", "--json")
        return run("reproduce", "blocks", *words).json(), folder / "out" / "smoke" / "text" / "blocks"


def test_all_laws_of_the_mixture_stand_beside_the_models_trained_apart(said):
    table, samples, trainings = said[0]["tables"]
    rows = {row["name"]: row for row in table["rows"]}
    laws = [f"mixture, {law}" for law in ("1", "2", "4", "8", "16", "the whole row")]
    assert list(rows) == ["AR", "MDLM", "blocks of 16", "blocks of 8", "blocks of 4", *laws]
    assert rows["blocks of 4"]["paper"]["PPL"]["value"] == 28.23 and rows["AR"]["paper"]["PPL"]["value"] == 22.83
    exact = {name for name, row in rows.items() if not row["ours"]["PPL"]["bound"]}
    assert exact == {"AR", "mixture, 1"}
    seeds = {row["name"]: row["ours"] for row in trainings["rows"]}
    for row, key in (("AR", "blocks-ar-seed0"), ("mixture, 2", "mixture by blocks of 2")):
        each = [seeds[key][f"seed {seed}"]["value"] for seed in (0, 1)]
        assert seeds[key]["mean"]["value"] == pytest.approx(sum(each) / 2) and each[0] != each[1]
        assert rows[row]["ours"]["PPL"]["value"] == pytest.approx(math.exp(sum(each) / 2))
    trained = {model["name"] for model in said[0]["models"]}
    assert {"blocks-ar-seed0", "blocks-ar-seed1", "blocks-mixture-seed1", "ar-judge"} <= trained
    assert "ar-judge-seed1" not in trained, "only the first seed writes samples"
    written = {row["name"]: row["ours"] for row in samples["rows"]}
    assert (
        written["blocks of 16, T=2"]["network calls"]["value"] < written["blocks of 16, T=16"]["network calls"]["value"]
    )
    assert {"AR", "speculative", "real text"} <= set(written)
    assert written["speculative"]["network calls"]["value"] < written["blocks of 1"]["network calls"]["value"]


def test_the_page_has_plots_and_no_verdict(said):
    results, folder = said
    assert len(list(folder.glob("*.svg"))) == len(results["plots"]) == 2
    assert json.loads((folder / "results.json").read_text())["tables"] == results["tables"]
    assert all(check["holds"] is None for check in results["checks"])


def test_models_are_trained_for_as_many_steps_on_the_same_rows():
    models = block_models(Setup(SCALES["small"], "a.txt"))
    assert len(models) == len(MODELS)
    configs = [spec.config for spec in models.values()]
    assert len({(config.train.steps, config.train.batch_size, config.data.length) for config in configs}) == 1


def test_the_papers_scale_prints_commands(tmp_path):
    ran = run("reproduce", "blocks", "--scale", "paper", "--out", str(tmp_path))
    lines = [line for line in ran.out.splitlines() if "block-16-seed0" in line]
    assert ran.code == 0 and len(lines) == 1
    assert "model.method=block" in lines[0] and "train lm1b" in lines[0]
