"""`unmask reproduce learning`: what its recipes are, its order, and its report from what is trained so far."""

from __future__ import annotations

import importlib.util
import json
import math
import time
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from test_reproduce import sentences

from support.helpers import refused, run
from unmask.config import ModelConfig, differences
from unmask.earlier_recipes import demo as demo_of_before
from unmask.hub.resolve import checkpoint, load
from unmask.process.schedule import ContinuousTime
from unmask.reproduce import bench as bench_module
from unmask.reproduce.claims import decide
from unmask.reproduce.lead import crossing, lasting, reached
from unmask.reproduce.learning_models import (
    PARTS,
    RECIPES,
    SIZES,
    WHOLE,
    StudySizes,
    forward_tokens,
    learning_models,
    study_config,
    training_seconds,
    under_whole_bound,
)
from unmask.reproduce.report_files import load_results
from unmask.reproduce.scales import SCALES
from unmask.reproduce.scored import ScoredModel
from unmask.reproduce.specs import Setup
from unmask.reproduce.study import Run
from unmask.reproduce.tables.learning import with_chance
from unmask.training.text import TextJob, train
from unmask.types import UserError

ROOT = Path(__file__).resolve().parents[2]
TINY = StudySizes(
    ModelConfig(hidden_dim=16, n_blocks=1, n_heads=2, cond_dim=8, dropout=0.0),
    length=16,
    vocab_size=280,
    budgets={512: 2, 1024: 1},
    smaller={256: 2},
    longest={2048: 1},
    rates=(1e-3, 2e-3, 4e-3),
    tried=1,
    rows=8,
)


# -- what is declared ------------------------------------------------------------------------------------------------


def config(name: str, tokens: int = 2**19, rate: float = 7e-4) -> Any:
    return study_config(name, SIZES["small"], "python-docs", tokens, rate)


def changes(one: str, other: str) -> dict[str, tuple[Any, Any]]:
    return {key: (old, new) for key, old, new in differences(config(one), config(other))}


def test_the_papers_recipe_is_the_demo_of_version_0_3():
    own, demo = config("paper"), demo_of_before()
    for section in ("model", "objective", "schedule"):
        assert getattr(own, section) == getattr(demo, section)
    kept = ("lr", "betas", "warmup", "decay", "final_lr", "ema", "weight_decay", "clip", "batch_size", "optimizer")
    assert all(getattr(own.train, key) == getattr(demo.train, key) for key in (*kept, "embeddings"))
    assert (own.data.length, own.data.vocab_size, own.train.steps) == (128, 4096, 256)


def test_recipes_differ_by_what_their_names_say():
    assert changes("all-without-counts", "all") == {"train.embeddings": ("random", "counts")}
    assert changes("paper", "paper+counts") == {"train.embeddings": ("random", "counts")}
    assert changes("all-without-muon", "all") == {
        "train.optimizer": ("adamw", "muon"),
        "train.lr": (7e-4, 2e-3),
        "train.muon_lr": (0.03, 0.02),
    }
    assert changes("all-without-cross-entropy", "all") == {
        "objective.loss": ("bound", "cross-entropy"),
        "objective.cutoff": (0.1, 1e-3),
    }
    assert changes("all-without-linear", "all") == {"train.decay": ("cosine", "linear"), "train.ema": (0.995, 0.0)}
    assert changes("all", "all+weights") == {"objective.loss": ("cross-entropy", "bound")}
    assert changes("all", "all+muon-double") == {"train.muon_lr": (0.02, 0.04)}
    assert changes("all", "all+pairs") == {
        "objective.times": ("strata", "counts"),
        "objective.pairs": (False, True),
        "train.batch_size": (16, 8),
    }
    assert config("all-without-modern").model == config("paper").model
    assert config("all").model.network == "modern" == config("paper+modern").model.network
    assert {name for name in RECIPES if name.startswith("all-without-")} == {f"all-without-{part}" for part in PARTS}
    assert config("ar").objective.loss == config("ar-all").objective.loss == "bound"
    assert config("ar-all").train == config("all").train and config("ar-all").model.method == "ar"


@pytest.mark.parametrize("name", RECIPES)
def test_every_recipe_puts_its_budget_through_the_network(name):
    for tokens in (2**15, 2**19, 2**23):
        assert forward_tokens(config(name, tokens)) == tokens


def test_names_do_not_collide_and_scales_have_their_budgets():
    for name, sizes in SIZES.items():
        models = learning_models(Setup(SCALES[name], "text"))
        settings = [spec.config.model_dump_json() for spec in models.values()]
        assert len(set(settings)) == len(settings), "a name more than once"
        assert all(f"-{forward_tokens(spec.config)}-seed" in key for key, spec in models.items())
        assert list(sizes.budgets) == sorted(sizes.budgets) and max(sizes.smaller) < sizes.first
    assert list(SIZES["small"].budgets) == [524_288, 2_097_152, 8_388_608]
    assert not any("without" in name for name in learning_models(Setup(SCALES["medium"], "text")))
    with pytest.raises(UserError, match="learning has the scales smoke, small, medium, not paper"):
        learning_models(Setup(SCALES["paper"], "text"))


# -- head start or factor --------------------------------------------------------------------------------------------


def fake(tokens: int, nats: float, seconds: float) -> Run:
    return Run(f"{tokens}", tokens, seconds, ScoredModel(np.full((4, 2), nats * 8), np.full(4, 8), False, {}))


def test_a_crossing_lies_on_the_line_over_log_tokens():
    x = [100.0, 400.0, 1600.0]
    nats = [5 - math.log(value / 100) for value in x]
    assert crossing(x, nats, 5 - math.log(3.7)) == (pytest.approx(370), False)
    assert crossing(x, nats, nats[1]) == (pytest.approx(400), False)
    assert crossing(x, nats, 6.0) == (100.0, True)
    assert crossing(x, nats, nats[-1] - 0.1) is None and crossing([], [], 1.0) is None


def curve(shift: float, factor: float, budgets: list[int], slower: float = 1.0) -> dict[int, list[Run]]:
    """A law of learning, moved by a number of tokens or by a factor."""
    return {
        tokens: [fake(tokens, 9 - 0.5 * math.log(tokens * factor + shift), slower * tokens / 1000)]
        for tokens in budgets
    }


def test_a_factor_is_found():
    budgets = [2**k for k in range(10, 24)]
    points = reached(curve(0, 1, budgets[8::2]), curve(0, 10, budgets, slower=2))
    assert [point.fewer_tokens.value for point in points] == pytest.approx([10] * 3)
    assert [point.fewer_seconds.value for point in points] == pytest.approx([5] * 3)
    assert not any(point.least for point in points)
    said = lasting("tokens", [float(p.budget) for p in points], [p.fewer_tokens.value for p in points])
    assert "100% of the way" in said and said.endswith("nearer to a factor.")


def test_a_head_start_is_found():
    budgets = list(range(1000, 4_000_000, 2000))
    points = reached(curve(0, 1, [500_000, 2_000_000]), curve(450_000, 1, budgets))
    assert [point.fewer_tokens.value for point in points] == pytest.approx([10, 2_000_000 / 1_550_000], rel=1e-3)
    said = lasting("tokens", [500_000, 2_000_000], [point.fewer_tokens.value for point in points])
    assert "A head start of 450000 tokens would leave 1.29" in said and said.endswith("nearer to a head start.")
    assert lasting("tokens", [1, 4], [5.0, 6.0]).endswith("the ratio grows.")
    assert lasting("tokens", [1, 4], [5.0, 1.1]).endswith("less than a head start is left.")
    assert "no lead" in lasting("tokens", [1, 4], [0.9, 1.1])


def test_what_the_smallest_budget_reaches_is_a_least_ratio_and_what_none_reaches_is_left_out():
    (point,) = reached({1000: [fake(1000, 5.0, 1.0)], 4000: [fake(4000, 3.0, 4.0)]}, {100: [fake(100, 4.0, 0.1)]})
    assert point.least and point.fewer_tokens.value == 10 and point.budget == 1000


def test_seeds_are_paired():
    slow, fast = {800: [fake(800, 5.0, 8.0), fake(800, 4.5, 8.0)]}, {}
    fast = {100: [fake(100, 6.0, 1.0), fake(100, 5.5, 1.0)], 400: [fake(400, 5.0, 4.0), fake(400, 3.5, 4.0)]}
    (point,) = reached(slow, fast)
    ratios = [800 / 400, 800 / 200]  # of the second seed half-way, on a log scale
    assert point.fewer_tokens.value == pytest.approx(np.mean(ratios))
    assert point.fewer_tokens.error == pytest.approx(np.std(ratios, ddof=1) / math.sqrt(2))


def test_one_training_is_judged_by_the_spread_of_seeds():
    rng = np.random.default_rng(0)
    left = ScoredModel(40 + rng.normal(0, 0.1, (50, 2)), np.full(50, 10), False, {})
    right = ScoredModel(left.nats + 0.5 + rng.normal(0, 0.1, (50, 2)), left.tokens, False, {})  # 0.05 a token
    assert decide("helps", with_chance(None)([left], [right])).holds is None, "one training each"
    assert decide("helps", with_chance(0.01, 60)([left], [right])).holds is True
    assert decide("helps", with_chance(0.02, 60)([left], [right])).holds is None  # 2 sqrt(2) 0.02 = 0.057
    assert decide("helps", with_chance(0.01, 2)([left], [right])).holds is None, "the spread of two is hardly known"


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("learning")
    (folder / "text").mkdir()
    for seed, (split, n) in enumerate({"train": 300, "valid": 60, "test": 60}.items()):
        (folder / "text" / f"{split}.txt").write_text(sentences(n, seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(folder / "cache"))
        patch.setitem(SIZES, "smoke", TINY)
        yield folder


def options(place: Path, *more: str) -> list[str]:
    return ["learning", "--data", str(place / "text"), "--out", str(place / "out"), "--quiet", *more]


@pytest.fixture(scope="module")
def stopped(place) -> dict[str, Any]:
    """The study stopped after some trainings, and what it says of them."""
    assert "leave out --no-train" in refused("reproduce", *options(place, "--no-train"))
    asked: list[str] = []

    def limited(config, out, **more):
        if len(asked) == 13:
            raise UserError("stopped")
        asked.append(out.name)
        return train(config, out, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bench_module, "train", limited)
        assert "stopped" in refused("reproduce", *options(place))
    return {"asked": asked, "report": run("reproduce", *options(place, "--no-train", "--json")).json()}


@pytest.fixture(scope="module")
def complete(place, stopped) -> dict[str, Any]:
    """The same command once more."""
    before = times(place)
    found = run("reproduce", *options(place, "--json")).json()
    assert {path: when for path, when in times(place).items() if path in before} == before, "nothing is trained again"
    return found


def times(place: Path) -> dict[Path, int]:
    return {path: path.stat().st_mtime_ns for path in (place / "out").rglob("*.safetensors")}


def table(report: dict[str, Any], title: str) -> dict[str, Any]:
    (found,) = [own for own in report["tables"] if own["title"].startswith(title)]
    return {row["name"]: row["ours"] for row in found["rows"]}


def test_a_study_that_was_stopped_reports_what_there_is_and_leaves_the_test_split_alone(stopped, place):
    report = stopped["report"]
    assert stopped["asked"][0] == "paper-lr0.001-512-seed0" and "all-512-seed0" in stopped["asked"][:4]
    assert report["command"].endswith("--no-train") and "Not complete" in report["notes"][-1]
    assert {model["name"] for model in report["models"]} == set(stopped["asked"])
    assert "left alone" in report["notes"][-1] and any("valid split" in own["title"] for own in report["tables"])
    assert not [own["title"] for own in report["tables"] if "test split" in own["title"]]


def test_the_same_command_goes_on_and_completes_it(complete, place):
    names = {path.name for path in (place / "out" / "smoke" / "text" / "models").iterdir() if path.is_dir()}
    assert {model["name"] for model in complete["models"]} == names
    for name in ("all-256-seed1", "ar-all-512-seed1", "all+pairs-512-seed0", "all-1024-seed0", "paper+muon-512-seed0"):
        assert name in names and checkpoint.steps(place / "out" / "smoke" / "text" / "models" / name)
    assert sum(name.startswith("paper-lr") and name.endswith("-1024-seed0") for name in names) == 1  # the chosen one
    tested = {path.parent.name for path in (place / "out").rglob("test-whole-bound-*.json")}
    assert len(tested) == 2 and all("-2048-" in name for name in tested), "the longest trainings only"
    assert not [note for note in complete["notes"] if "Not complete" in note]


def test_the_plan_has_the_rates_that_were_chosen(complete, place):
    plan = run("reproduce", *options(place, "--plan", "--json")).json()
    assert [row["name"] for row in plan["trainings"] if row["done"] < 1] == []


def test_the_rate_is_the_best_on_the_validation_split(complete):
    rows = table(complete, "Every recipe")
    for method in ("baseline", "AR, baseline"):
        rates = {name: row["nats/token"]["value"] for name, row in rows.items() if name.startswith(f"{method}, rate")}
        assert min(rates, key=lambda name: rates[name]).endswith("(chosen)")
        assert sum(name.endswith("(chosen)") for name in rates) == 1
    assert len(rows) >= len(RECIPES) and all(row["CPU seconds"]["value"] > 0 for row in rows.values())


def test_differences_and_ratios_follow_from_the_scores(complete, place):
    folder = place / "out" / "smoke" / "text"
    models = folder / "models"

    def nats(name: str, split: str) -> float:
        (file,) = (folder / "scores" / name).glob(f"{split}-*.json")
        kept = json.loads(file.read_text())
        return float(np.mean(kept["nats"], axis=0).sum() / np.sum(kept["tokens"]))

    rows, (chosen,) = table(complete, "Every recipe"), models.glob("paper-lr*-1024-seed0")
    base = chosen.name.replace("1024", "512")
    gap = rows["paper+linear"]["against the baseline"]["value"]
    assert gap == pytest.approx(nats(base.replace("paper", "paper+linear"), "valid") - nats(base, "valid"))
    finals = table(complete, "The finalists by budget, valid split")
    assert finals["all parts, 512 tokens"]["nats/token"]["value"] == pytest.approx(
        np.mean([nats(f"all-512-seed{seed}", "valid") for seed in (0, 1)])
    )
    longest = table(complete, "The finalists by budget, test split")
    assert longest.keys() == {f"{recipe}, 2,048 tokens" for recipe in ("baseline", "all parts")}
    assert longest["all parts, 2,048 tokens"]["nats/token"]["value"] == pytest.approx(nats("all-2048-seed0", "test"))
    behind = table(complete, "Nats/token that MDLM has more than AR")
    assert behind.keys() == {"256 tokens", "512 tokens", "1,024 tokens"}, "where both are trained"
    gaps = [nats(f"all-256-seed{seed}", "valid") - nats(f"ar-all-256-seed{seed}", "valid") for seed in (0, 1)]
    assert behind["256 tokens"]["all parts"]["value"] == pytest.approx(np.mean(gaps))
    ratio = table(complete, "What all parts need")["MDLM, baseline with 1,024 tokens"]
    own = [nats(f"all-{tokens}-seed0", "valid") for tokens in (256, 512, 1024, 2048)]
    place_, least = crossing([256.0, 512.0, 1024.0, 2048.0], own, nats(chosen.name, "valid"))  # type: ignore[misc]
    shown = ratio["times fewer tokens"]
    assert (shown == f"≥ {1024 / place_:.2f}") if least else (shown["value"] == pytest.approx(1024 / place_))
    assert any(note.startswith("MDLM: ") for note in complete["notes"])


def longest_claims() -> list[str]:
    return [f"all parts are better than the baseline{method}, 2,048 tokens" for method in ("", " of AR")]


def test_the_report_is_ours_and_has_its_claims(complete, place):
    report = load_results(place / "out" / "smoke" / "text" / "learning")
    page = (place / "out" / "smoke" / "text" / "learning" / "report.md").read_text()
    assert report.study and "of the paper" not in page.splitlines()[0] and "A study of this project" in page
    claims = [check.claim for check in report.checks]
    assert [f"{part} helps on top of the other parts" in claims for part in PARTS] == [True] * len(PARTS)
    assert "all parts are better than the baseline of AR, 512 tokens" in claims
    assert [name in claims for name in longest_claims()] == [True, False], "the longest budget is of MDLM only"
    assert f"{longest_claims()[0]}, test split" in claims
    assert [plot.name for plot in report.plots] == ["nats-tokens", "nats-seconds", "ratios"]


def test_scores_are_of_the_bound_without_a_raised_cut_off(complete, place):
    model = load(next((place / "out" / "smoke" / "text" / "models").glob("paper-lr*-1024-seed0"))).model
    assert model.law.cutoff == 0.1
    assert under_whole_bound(model).law == ContinuousTime(1e-4) and "mask counts" in WHOLE.name


def test_no_train_is_for_studies():
    assert "--no-train belongs to learning" in refused("reproduce", "lm", "--no-train")


def test_seconds_of_learning_are_those_of_the_counts_and_steps(place, tmp_path, monkeypatch):
    """Evaluations do not count, and a run that is continued adds to what it has."""
    slow = 0.2

    def burn(self, trainer, step):
        end = time.process_time() + slow
        while time.process_time() < end:
            pass

    monkeypatch.setattr(TextJob, "evaluate", burn)
    settings = study_config("all", TINY, str(place / "text"), 1024, 1e-3)
    settings = settings.override(["eval.every=1", "train.log_every=1", "train.decay=constant", "train.warmup=1"])
    train(settings.override(["train.steps=2"]), tmp_path / "run", quiet=True)
    first = training_seconds(tmp_path / "run")
    train(settings, tmp_path / "run", quiet=True)
    lines = [json.loads(line) for line in (tmp_path / "run" / "log.jsonl").read_text().splitlines()]
    spent = [line["step_seconds"] for line in lines if "loss" in line]
    assert len(spent) == 4 and spent == sorted(spent) and spent[1] == first < spent[2]
    assert lines[-1]["core_seconds"] > slow and spent[3] - spent[2] < slow
    with pytest.raises(UserError, match="does not say how long"):
        training_seconds(tmp_path)


def benchmark(name: str) -> ModuleType:
    spec = importlib.util.spec_from_file_location(f"{name}_benchmark", ROOT / "benchmarks" / f"{name}.py")
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_vocabularies_are_compared_by_the_bytes_that_they_see(place, capsys):
    module = benchmark("vocabulary")
    text = place / "text"
    module.main(["--data", str(text), "--scale=smoke", "--sizes", "280", "300", "--megabytes=0.01", "--json"])
    rows = json.loads(capsys.readouterr().out)
    assert [row["entries"] for row in rows] == [280, 300] and all(
        row["bits_per_byte"] > row["error"] > 0 for row in rows
    )
    for row in rows:
        step = row["bytes_per_token"] * 16 * 32
        assert row["tokens"] * row["bytes_per_token"] == pytest.approx(1e4, abs=step), "up to a step"
    assert rows[0]["bytes_per_token"] < rows[1]["bytes_per_token"] and len(module.lines(rows)) >= 3


def test_the_benchmark_stops_at_the_first_share_that_is_as_good(place, monkeypatch, capsys):
    module = benchmark("learning")
    monkeypatch.setattr(
        "sys.argv",
        [
            "learning.py",
            "--data",
            str(place / "text"),
            "--scale",
            "smoke",
            "--tokens",
            "1024",
            "--shares",
            "0.5",
            "1",
            "--json",
        ],
    )
    module.main()
    found = json.loads(capsys.readouterr().out)
    assert found["paper"]["tokens"] == 1024 and [own["tokens"] for own in found["all"]] in ([512], [512, 1024])
    better = [own["nats"] <= found["paper"]["nats"] for own in found["all"]]
    assert found["reached"] == better[-1] and not any(better[:-1])
    assert "times fewer tokens" in module.lines(found["paper"], found["all"])[0]
