"""When data run out: the grid of models, the choice of AR's regularisation, and exact laws."""

from __future__ import annotations

from typing import Any

import pytest
from test_learning import TINY
from test_reproduce import sentences

from support.helpers import refused, run
from unmask.hub.resolve import load
from unmask.reproduce import learning_models
from unmask.reproduce.bench import Bench
from unmask.reproduce.scales import SCALES
from unmask.reproduce.specs import Setup
from unmask.reproduce.tables import data_limited
from unmask.reproduce.tables.data_limited import STRENGTHS, limited_models


def test_every_kind_sees_the_same_rows_as_often():
    models = limited_models(Setup(SCALES["small"], "a.txt", 3))
    grid = data_limited.SIZES["small"]
    longer = [f"limited-mdlm-{n}x{epochs}" for n, times in data_limited.LONGER["small"].items() for epochs in times]
    assert longer and set(longer) <= set(models)
    assert len(models) == (len(STRENGTHS) + 2) * sum(map(len, grid.values())) + len(longer)
    for name, spec in models.items():
        unique, epochs = map(int, name.rpartition("-")[2].split("x"))
        config = spec.config
        assert config.train.rows * config.data.length == unique and config.seed == 3
        assert config.train.steps * config.train.batch_size * config.data.length == unique * epochs
        assert (config.model.network, config.model.hidden_dim) == ("modern", 64) and config.train.optimizer == "muon"
    strong = models[f"limited-ar-strong-{min(grid)}x4"].config
    assert (strong.model.dropout, strong.train.weight_decay, strong.model.method) == (0.3, 0.3, "ar")
    mixture = models[f"limited-mixture-{min(grid)}x4"].config
    assert mixture.model.method == "block" and sum(mixture.block.mixture.values()) == pytest.approx(1)
    assert mixture.objective.loss == "cross-entropy"


def test_strengths_and_epochs_are_chosen_by_validation(monkeypatch, tmp_path):
    nats = {  # of a cell: an AR that overfits unless it is regularised, an MDLM that goes on learning
        ("plain", 1): 5.0, ("decay", 1): 5.1, ("strong", 1): 5.2, ("heavy", 1): 5.3,
        ("plain", 4): 4.6, ("decay", 4): 4.5, ("strong", 4): 4.7, ("heavy", 4): 4.9,
        ("plain", 16): 6.0, ("decay", 16): 4.8, ("strong", 16): 4.55, ("heavy", 16): 4.58,
    }  # fmt: skip
    trained = []
    bench = Bench(SCALES["small"], "a.txt", tmp_path, seeds=3)
    monkeypatch.setattr(bench, "need", lambda names, extra=(): trained.append((names, extra)))

    def valid_nats(_bench, side, strength, _unique, epochs, _first=False):
        return nats[strength, epochs] if side == "AR" else 6 - epochs / 10

    monkeypatch.setattr(data_limited, "_valid_nats", valid_nats)
    monkeypatch.setitem(data_limited.LONGER, "small", {256: (32,)})
    strengths = data_limited._trained(bench, {256: (1, 4, 16)})
    assert strengths == {(256, 1): "plain", (256, 4): "decay", (256, 16): "strong"}
    best = data_limited._best_epochs(bench, 256, (1, 4, 16), strengths)
    assert best == {"AR": 4, "MDLM": 32, "mixture, blocks of 1": 16}
    (all_seeds, first_seed), (chosen, none) = trained
    assert "limited-mdlm-256x32" in all_seeds and "limited-mixture-256x32" not in all_seeds
    assert {name.rpartition("-")[0] for name in all_seeds} == {"limited-mdlm", "limited-mixture"}
    assert len(first_seed) == 3 * len(STRENGTHS) and all(name.startswith("limited-ar-") for name in first_seed)
    assert chosen == ["limited-ar-plain-256x1", "limited-ar-decay-256x4", "limited-ar-strong-256x16"] and not none


@pytest.mark.slow
def test_the_study(tmp_path, monkeypatch):
    (tmp_path / "text").mkdir()
    for seed, (split, n) in enumerate({"train": 300, "valid": 60, "test": 60}.items()):
        (tmp_path / "text" / f"{split}.txt").write_text(sentences(n, seed))
    monkeypatch.setenv("UNMASK_CACHE", str(tmp_path / "cache"))
    monkeypatch.setitem(learning_models.SIZES, "smoke", TINY)
    monkeypatch.setitem(data_limited.SIZES, "smoke", {256: (1, 2)})
    place = ["--data", str(tmp_path / "text"), "--out", str(tmp_path / "out"), "--quiet"]
    words = ["data-limited", *place, "--seeds", "2"]
    found: dict[str, Any] = run("reproduce", *words, "--json").json()
    rows = {row["name"]: row["ours"] for row in found["tables"][0]["rows"]}
    assert len(rows) == 8 and found["study"]
    exact = {name for name, row in rows.items() if not row["nats/token"]["bound"]}
    assert exact == {name for name in rows if name.startswith(("AR", "mixture, blocks of 1"))}
    assert {row["chosen"] for name, row in rows.items() if name.startswith("AR")} <= {*STRENGTHS}
    assert found["checks"][0]["claim"] == "MDLM is better than AR (256 unique tokens, 1 epoch)"
    last = [check["claim"] for check in found["checks"][4:]]
    assert last[0] == "MDLM is better than AR (256 unique tokens, each after its best number of epochs)"
    best = dict(part.split(": ") for part in found["protocol"]["best epochs, 256 tokens"].split("; "))
    assert best.keys() == {"AR", "MDLM", "mixture, blocks of 1"} and set(best.values()) <= {"1", "2"}
    assert len(last) == 2 and len(found["plots"][0]["curves"]) == 4
    models = tmp_path / "out" / "smoke" / "text" / "models"
    again = {path.name for path in models.glob("limited-ar-*-seed1")}
    assert again == {
        f"limited-ar-{rows[f'AR, 256 tokens x {epochs}']['chosen']}-256x{epochs}-seed1" for epochs in (1, 2)
    }
    trained = load(models / "limited-mdlm-256x2").config
    assert trained.train.rows == 16 and trained.train.steps * trained.train.batch_size == 32
    monkeypatch.setitem(data_limited.SIZES, "smoke", {2**20: (1,)})
    monkeypatch.setattr(data_limited.Bench, "need", lambda *_: None)
    assert "training tokens of the 1,048,576 needed" in refused("reproduce", *words)
