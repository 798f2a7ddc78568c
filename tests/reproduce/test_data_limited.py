"""When data run out: the grid of models, the choice of AR's regularisation, and exact laws."""

from __future__ import annotations

from typing import Any

import pytest
from test_learning import TINY
from test_reproduce import sentences

from support.helpers import refused, run
from unmask.hub.resolve import load
from unmask.reproduce import learning_models
from unmask.reproduce.scales import SCALES
from unmask.reproduce.specs import Setup
from unmask.reproduce.tables import data_limited
from unmask.reproduce.tables.data_limited import STRENGTHS, DataSizes, limited_models


def test_every_kind_sees_the_same_rows_as_often():
    models = limited_models(Setup(SCALES["small"], "a.txt", 3))
    grid = data_limited.SIZES["small"]
    assert len(models) == (len(STRENGTHS) + 2) * len(grid.unique) * len(grid.epochs)
    for name, spec in models.items():
        unique, epochs = map(int, name.rpartition("-")[2].split("x"))
        config = spec.config
        assert config.train.rows * config.data.length == unique and config.seed == 3
        assert config.train.steps * config.train.batch_size * config.data.length == unique * epochs
        assert config.model.network == "modern" and config.train.optimizer == "muon"
    strong = models[f"limited-ar-strong-{grid.unique[0]}x4"].config
    assert (strong.model.dropout, strong.train.weight_decay, strong.model.method) == (0.3, 0.3, "ar")
    mixture = models[f"limited-mixture-{grid.unique[0]}x4"].config
    assert mixture.model.method == "block" and sum(mixture.block.mixture.values()) == pytest.approx(1)
    assert mixture.objective.loss == "cross-entropy"


@pytest.mark.slow
def test_the_study(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    for seed, (split, n) in enumerate({"train": 300, "valid": 60, "test": 60}.items()):
        (tmp_path / "text" / f"{split}.txt").write_text(sentences(n, seed))
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(learning_models.SIZES, "smoke", TINY)
    monkeypatch.setitem(data_limited.SIZES, "smoke", DataSizes((256,), (1, 2)))
    words = ["data-limited", "--data", str(tmp_path / "text"), "--out", str(tmp_path / "out"), "--quiet"]
    found: dict[str, Any] = run("reproduce", *words, "--json").json()
    rows = {row["name"]: row["ours"] for row in found["tables"][0]["rows"]}
    assert len(rows) == 8 and found["study"]
    exact = {name for name, row in rows.items() if not row["nats/token"]["bound"]}
    assert exact == {name for name in rows if name.startswith(("AR", "mixture, blocks of 1"))}
    assert {row["chosen"] for name, row in rows.items() if name.startswith("AR")} <= {*STRENGTHS}
    assert found["checks"][0]["claim"] == "MDLM is better than AR (256 unique tokens, 1 epoch)"
    assert len(found["checks"]) == 4 and len(found["plots"][0]["curves"]) == 4
    trained = load(tmp_path / "out" / "smoke" / "text" / "models" / "limited-mdlm-256x2").config
    assert trained.train.rows == 16 and trained.train.steps * trained.train.batch_size == 32
    monkeypatch.setitem(data_limited.SIZES, "smoke", DataSizes((2**20,), (1,)))
    monkeypatch.setattr(data_limited.Bench, "need", lambda *_: None)
    assert "training tokens of the 1,048,576 needed" in refused("reproduce", *words)
