"""Several trainings of a model: verdicts with a known truth, names, reports, the plan, and the page of all claims."""

from __future__ import annotations

import json
import math
import re
import xml.etree.ElementTree as ET
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from test_reproduce import TINY, sentences

from support.helpers import refused, run
from unmask.config import load_yaml
from unmask.plot import EffectBar, Forest, forest_svg
from unmask.reproduce.claims import Claim, Difference, decide, fewer_nats, paired, smaller, trainings_for
from unmask.reproduce.figures import Figure
from unmask.reproduce.report import Check, EffectSize, Report, Row, Table
from unmask.reproduce.report_files import load_results, write_report
from unmask.reproduce.scales import SCALES
from unmask.reproduce.scored import ScoredModel, mean_perplexity, mean_rate
from unmask.reproduce.specs import Setup, of_seed
from unmask.reproduce.summary import BEGIN, END, collect, filled, summary_files, write_summary
from unmask.reproduce.text_models import TEXT
from unmask.types import UserError

# -- verdicts with a known truth -------------------------------------------------------------------------------------


def world(rng: np.random.Generator, effect: float, trainings: int, chance: float = 0.05) -> tuple[list[Any], list[Any]]:
    """Two kinds of model: what texts are worth is shared, every training of either has its own luck."""
    rows, tokens = 48, np.full(48, 10.0)
    texts, taste = rng.normal(30, 3, rows), rng.normal(0, 0.2, rows)  # `taste`: texts on which the second is better

    def trained(level: np.ndarray) -> ScoredModel:
        nats = level + 10 * rng.normal(0, chance / math.sqrt(2)) + rng.normal(0, 0.05, rows)
        return ScoredModel(nats[:, None], tokens, True, {})

    left = [trained(texts) for _ in range(trainings)]
    return left, [trained(texts + taste + 10 * effect) for _ in range(trainings)]


@pytest.mark.parametrize("trainings", [2, 3, 5])
def test_a_difference_of_chance_is_rarely_called_a_finding(trainings):
    """The interval of two sigmas covers the truth as often as it says, with few trainings too."""
    rng, n = np.random.default_rng(trainings), 300
    missed = 0
    for _ in range(n):
        gap = fewer_nats(*world(rng, 0.02, trainings))
        missed += abs(gap.value - 0.02) > gap.reach(2)
    outside = 2 * stats.norm.sf(2)
    assert stats.binomtest(missed, n, outside, "greater").pvalue > 1e-3


def test_texts_alone_would_call_it_a_finding_and_one_training_decides_nothing():
    rng = np.random.default_rng(0)
    sure = 0
    for _ in range(50):
        gap = fewer_nats(*world(rng, 0.0, 1))
        sure += abs(gap.apart) > 2
        check = decide("x", gap)
        assert check.holds is None and check.verdict.startswith("not decided (one training each; needs ")
        assert check.effect and check.effect.low is None and check.effect.trainings == 1
    assert sure > 25, "the error over texts knows nothing of the chance of a training"


def test_an_effect_is_found_in_its_direction():
    rng = np.random.default_rng(1)
    left, right = world(rng, 0.5, 4)
    assert decide("x", fewer_nats(left, right)).verdict == "holds"
    assert decide("x", fewer_nats(right, left)).verdict == "refuted"
    assert decide("x", fewer_nats(left, right), paper=0.3).effect == replace(
        decide("x", fewer_nats(left, right)).effect, paper=0.3
    )


def test_errors_of_texts_and_trainings_are_combined():
    rng = np.random.default_rng(2)
    left, right = world(rng, 0.1, 3)
    gap = fewer_nats(left, right)
    each = [(b.nats - a.nats).sum() / 480 for a, b in zip(left, right, strict=True)]
    texts = np.mean([(b.nats - a.nats)[:, 0] for a, b in zip(left, right, strict=True)], axis=0) / 10
    parts = stats.sem(each) ** 2, stats.sem(texts) ** 2
    assert gap.value == pytest.approx(np.mean(each)) and gap.error == pytest.approx(math.sqrt(sum(parts)))
    assert gap.freedom == pytest.approx(sum(parts) ** 2 / (parts[0] ** 2 / 2 + parts[1] ** 2 / 47))
    assert gap.spread == pytest.approx(np.std(each, ddof=1)) and gap.trainings == 3
    low, high = stats.t.interval(stats.norm.cdf(2) - stats.norm.cdf(-2), gap.freedom, gap.value, gap.error)
    effect = decide("x", gap).effect
    assert effect and (effect.low, effect.high) == (pytest.approx(low), pytest.approx(high))


def test_trainings_that_are_said_to_be_needed_decide_with_the_power_that_is_promised():
    rng = np.random.default_rng(3)
    for distance in (0.1, 0.05, 0.03):
        n = trainings_for(distance, 0.05, 0.0, 2)
        assert n is not None
        gaps = [paired(rng.normal(distance, 0.05, n).tolist()) for _ in range(400)]
        found = [gap.value > gap.reach(2) for gap in gaps]
        assert 0.74 < np.mean(found) < 0.97, (distance, n)
    assert trainings_for(0.01, 0.05, 0.02, 2) is None, "more trainings do not help against few texts"
    assert trainings_for(1e-5, 0.05, 0.0, 2) is None
    needs = [trainings_for(distance, 0.05, 0.005, 2) for distance in (0.2, 0.1, 0.05, 0.03)]
    assert needs == sorted(needs) and needs[0] == 3


@pytest.mark.parametrize(
    ("value", "error", "relation", "margin", "holds"),
    [
        (0.001, 0.005, "equal", 0.03, True),
        (-0.001, 0.005, "equal", 0.03, True),
        (0.001, 0.05, "equal", 0.03, None),  # too little is known
        (0.02, 0.004, "equal", 0.03, True),  # a difference, and a small one
        (0.05, 0.005, "equal", 0.03, False),
        (-0.05, 0.005, "equal", 0.03, False),
        (0.04, 0.01, "equal", 0.03, None),
        (0.01, 0.01, "equal", 0.0, True),  # an identity
        (0.03, 0.01, "equal", 0.0, False),
        (0.03, 0.01, "better", 0.0, True),
        (-0.03, 0.01, "better", 0.0, False),
        (0.01, 0.01, "better", 0.0, None),
    ],
)
def test_relations(value, error, relation, margin, holds):
    difference = Difference(value, error, "", trainings=30, spread=error * math.sqrt(30))
    check = decide("x", difference, relation, margin=margin)
    assert check.holds is holds
    assert bool(check.needs) is (holds is None)


def test_claims_that_are_not_about_trainings_are_decided_by_one():
    fast, slow = [{"seconds": Figure(1.0, 0.01)}], [{"seconds": Figure(3.0, 0.1)}]

    def seconds(left: Any, right: Any) -> Difference:
        return smaller([one["seconds"] for one in left], [one["seconds"] for one in right])

    claim = Claim("faster", "a", "b", measure=seconds, trained=False)
    check = claim.check({"a": fast, "b": slow})
    assert check.verdict == "holds" and check.effect and check.effect.value == pytest.approx(math.log(3))
    assert check.effect.trainings is None and check.effect.unit == "log ratio"
    assert replace(claim, trained=True).check({"a": fast, "b": slow}).holds is None


def test_trainings_that_are_scored_on_the_same_draws_share_their_error():
    """Two variances whose true ratio is 1: the interval holds it as often as it says."""
    rng = np.random.default_rng(6)

    def covered(same_draws: bool) -> float:
        inside = 0
        for _ in range(400):
            sides = []
            for shared in rng.normal(0, 0.2, 2):  # of the draws, the same for all trainings
                values = np.exp(shared + rng.normal(0, 0.01, 3))
                sides.append([Figure(value, 0.2 * value) for value in values.tolist()])
            gap = smaller(*sides, same_draws=same_draws)
            inside += abs(gap.value) <= gap.reach(2)
        return inside / 400

    assert 0.92 < covered(True) < 0.985
    assert covered(False) < 0.3


def test_means_over_trainings():
    rng = np.random.default_rng(4)
    models = [ScoredModel(rng.normal(20, 1, (6, 4)), np.full(6, 10), False, {}) for _ in range(3)]
    rates = [model.rate for model in models]
    found = mean_rate(models)
    assert found.value == pytest.approx(np.mean([rate.value for rate in rates])) and found.bound
    draws = math.sqrt(sum((rate.error or 0) ** 2 for rate in rates) / 3)
    assert found.error == pytest.approx(math.hypot(draws, stats.sem([rate.value for rate in rates])))
    assert mean_perplexity(models).value == pytest.approx(math.exp(found.value))
    assert mean_perplexity(models[:1]) == models[0].perplexity


# -- names -----------------------------------------------------------------------------------------------------------


def test_the_first_seed_keeps_its_name():
    assert [of_seed("mdlm", seed) for seed in (0, 1, 2)] == ["mdlm", "mdlm-seed1", "mdlm-seed2"]
    assert [of_seed("all-512-seed0", seed) for seed in (0, 1)] == ["all-512-seed0", "all-512-seed1"]
    one, three = (TEXT.of_seeds(Setup(SCALES["small"], "a.txt", 5), n) for n in (1, 3))
    assert {name: three[name] for name in one} == one and len(three) == 3 * len(one)
    assert three["mdlm-longer-seed2"].continues == "mdlm-seed2"
    assert [three[of_seed("mdlm", seed)].config.seed for seed in range(3)] == [5, 6, 7]
    assert [three[of_seed("ar-judge", seed)].config.seed for seed in range(3)] == [6, 7, 8], "never that of its models"


# -- the command -----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("seeds")
    (folder / "text").mkdir()
    for seed, (split, n) in enumerate({"train": 400, "valid": 60, "test": 60}.items()):
        (folder / "text" / f"{split}.txt").write_text(sentences(n, seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(folder / "cache"))
        patch.setitem(SCALES, "smoke", replace(TINY, steps=4, unjudged=""))
        yield folder


def words(place: Path, *more: str) -> list[str]:
    return ["reproduce", *more, "--data", str(place / "text"), "--out", str(place / "out"), "--quiet", "--json"]


@pytest.fixture(scope="module")
def said(place) -> dict[str, Any]:
    return run(*words(place, "time-conditioning", "--seeds", "2")).json()


def test_every_model_is_trained_with_every_seed(said, place):
    models = place / "out" / "smoke" / "text" / "models"
    names = {f"mdlm{time}{end}{seed}" for time in ("", "-time") for end in ("", "-longer") for seed in ("", "-seed1")}
    assert {path.name for path in models.iterdir() if path.is_dir()} == names == {one["name"] for one in said["models"]}
    assert {name: load_yaml(models / name / "config.yaml").seed for name in names} == {
        name: int(name.endswith("seed1")) for name in names
    }
    assert said["command"].endswith("--seeds 2") and said["protocol"]["training_seed"] == [0, 1]


def test_the_report_shows_each_training_and_its_claims_count_them(said):
    main, each = said["tables"]
    assert each["columns"] == ["seed 0", "seed 1", "mean", "deviation"]
    rows = {row["name"]: {column: cell["value"] for column, cell in row["ours"].items()} for row in each["rows"]}
    shown = {row["name"]: row["ours"] for row in main["rows"]}
    for model, row in (("mdlm", "MDLM w/o time conditioning"), ("mdlm-time", "MDLM w/ time conditioning")):
        own = rows[model]
        assert own["seed 0"] != own["seed 1"] and own["mean"] == pytest.approx((own["seed 0"] + own["seed 1"]) / 2)
        assert shown[row]["PPL"]["value"] == pytest.approx(math.exp(own["mean"]))
    gaps = [rows["mdlm-time-longer"][f"seed {seed}"] - rows["mdlm-longer"][f"seed {seed}"] for seed in (0, 1)]
    check = said["checks"][1]
    assert check["effect"]["value"] == pytest.approx(np.mean(gaps)) and check["effect"]["trainings"] == 2
    assert check["effect"]["paper"] == pytest.approx(math.log(23.21 / 23.05))
    assert "2 trainings" in check["detail"]


def test_a_plan_says_what_is_missing_and_trains_nothing(said, place):
    before = sorted(path.name for path in (place / "out").rglob("models/*"))
    found = run(*words(place, "time-conditioning", "--seeds", "3", "--plan")).json()
    done = {one["name"]: one["done"] for one in found["trainings"]}
    assert len(done) == 12 and {name for name, share in done.items() if share == 0} == {
        f"mdlm{time}{end}-seed2" for time in ("", "-time") for end in ("", "-longer")
    }
    assert found["measured"] and all(hours > 0 for hours in found["claims"].values())
    assert sum(one["hours"] for one in found["trainings"]) == pytest.approx(max(found["claims"].values()))
    lines = run(*words(place, "lm", "--plan")[:-1]).out
    assert "mdlm-time-longer" in lines and "AR is better than MDLM (longer training)" in lines and "core-hours" in lines
    assert sorted(path.name for path in (place / "out").rglob("models/*")) == before


def test_wrong_numbers_of_seeds(place):
    assert "--seeds 0" in refused(*words(place, "lm", "--seeds", "0")[:-1])

    assert "--plan is for scales that train here" in refused("reproduce", "lm", "--plan", "--scale", "paper")


# -- the page of all claims ------------------------------------------------------------------------------------------


def report(**changes: Any) -> Report:
    effect = EffectSize(0.05, 0.01, 0.03, 0.07, "nats", 0.02, 3)
    checks = [
        Check("a | b", True, "well", effect),
        Check("c", False, "", replace(effect, value=-3.0, low=-4.0, high=-2.0, unit="points")),
        Check(
            "d", None, "", replace(effect, low=None, high=None, trainings=1), "one training each; needs about 2 more"
        ),
        Check("e", True, "chi-square"),
    ]
    table = Table("T", "tab:x", ["PPL"], [Row("AR", {}, {"PPL": Figure(31.4, 0.2)})])
    return replace(
        Report("lm", "tab:x", "small", "unmask reproduce lm", [table], checks=checks, data="x/text"), **changes
    )


def test_claims_of_the_paper_are_counted_apart_from_ours(tmp_path):
    write_report(report(), tmp_path / "text" / "lm")
    alone = write_summary(tmp_path).read_text()
    write_report(report(name="laws", study=True), tmp_path / "text" / "laws")
    page = write_summary(tmp_path).read_text()
    assert "Of the paper's tables" not in alone
    assert "**6 of 8 claims are decided:**" in page and "Of the paper's tables 3 of 4, of our own 3 of 4." in page
    theirs, ours = page.index("| the paper's | data"), page.index("| our own | data")
    assert theirs < page.index("[lm](text/lm/report.md): tab") < ours < page.index("[laws](text/laws/report.md): tab")
    assert "our own | data" not in alone


def test_a_page_is_made_of_all_results_and_keeps_what_stands_around(tmp_path):
    write_report(report(), tmp_path / "text" / "lm")
    write_report(report(name="ablation", unjudged="too small"), tmp_path / "text" / "ablation")
    (tmp_path / "README.md").write_text(
        f"# By hand\n\n{BEGIN}\nold\n{END}\n\nAR has <!-- text/lm | AR | PPL -->99<!-- / -->.\n"
    )
    page = write_summary(tmp_path).read_text()
    assert page.startswith("# By hand\n") and "\nold\n" not in page
    assert page.endswith("AR has <!-- text/lm | AR | PPL -->31.40 ± 0.20<!-- / -->.\n")
    assert "**3 of 4 claims are decided:** 2 hold, 1 refuted, 1 not decided." in page
    assert "| [lm](text/lm/report.md): tab:x | text, small | 2 | 1 | 1 | 1, 3 |" in page
    assert "text, small, not judged |  |  |  |" in page and "unmask reproduce lm" in page
    (line,) = [line for line in page.splitlines() if "a \\| b" in line]
    assert [cell.strip() for cell in line.replace("\\|", "").split("|")[1:-1]] == [
        "✓",
        "a  b",
        "0.020 nats",
        "0.050 ± 0.010 nats",
        "3",
        "holds",
    ]
    assert "not decided (one training each; needs about 2 more)" in page
    assert {path.name for path in tmp_path.glob("*.svg")} == {"claims-nats.svg", "claims-points.svg"}
    assert summary_files(tmp_path) == summary_files(tmp_path) and write_summary(tmp_path).read_text() == page


def test_effects_survive_the_file(tmp_path):
    write_report(report(), tmp_path)
    assert load_results(tmp_path).checks == report().checks
    assert json.loads((tmp_path / "results.json").read_text())["checks"][0]["effect"]["paper"] == 0.02


def test_a_page_quotes_cells_and_claims(tmp_path):
    write_report(report(), tmp_path / "text" / "lm")
    rows = ("AR | PPL", "c | here", "c | paper", "c | verdict", "d | trainings")
    page = filled("; ".join(f"<!-- text/lm | {row} -->old<!-- / -->" for row in rows), collect(tmp_path))
    assert re.sub("<!-- .*? -->", "", page) == "31.40 ± 0.20; -3.000 ± 0.010 points; 0.020 points; refuted; 1"
    assert filled(page, collect(tmp_path)) == page
    for what, count in (("decided", "3 of 4"), ("holds", "2")):
        assert f">{count}<" in filled(f"<!-- all | claims | {what} -->?<!-- / -->", collect(tmp_path))


def test_what_is_wrong_with_a_page(tmp_path):
    with pytest.raises(UserError, match=r"has no results\.json"):
        write_summary(tmp_path)
    write_report(report(), tmp_path / "text" / "lm")
    (tmp_path / "README.md").write_text("# By hand\n")
    with pytest.raises(UserError, match="put them where the summary should be"):
        write_summary(tmp_path)
    with pytest.raises(UserError, match=r"no figure text/lm \| MDLM \| PPL"):
        filled("<!-- text/lm | MDLM | PPL -->1<!-- / -->", collect(tmp_path))
    other = Table("T", "tab:x", ["PPL"], [Row("AR", {}, {"PPL": Figure(31.5, 0.2)})])
    write_report(report(tables=[*report().tables, other]), tmp_path / "text" / "lm")
    with pytest.raises(UserError, match=r"several figures AR \| PPL, 31\.40 ± 0\.20 and 31\.50"):
        filled("<!-- text/lm | AR | PPL -->1<!-- / -->", collect(tmp_path))


def test_a_forest_shows_values_intervals_and_references():
    bars = [EffectBar("a <claim>", 0.5, 0.4, 0.6, 0.1, "holds"), EffectBar("b", -2.0, None, None)]
    forest = Forest("f", "T", "x", {"one": bars[:1], "two": bars[1:]}, {"holds": "#009E73"}, "paper", 0.01)
    picture = forest_svg(forest)
    assert picture == forest_svg(forest)
    root = ET.fromstring(picture)
    space = "{http://www.w3.org/2000/svg}"
    (first, second) = [group for group in root.iter(f"{space}g") if group.get("class") == "effect"]
    circle, paths = first.find(f"{space}circle"), first.findall(f"{space}path")
    assert circle is not None and circle.get("fill") == "#009E73" and len(paths) == 2
    assert not second.findall(f"{space}path"), "neither an interval nor a reference"
    other = second.find(f"{space}circle")
    assert other is not None and float(other.get("cx") or 0) < 670 < float(circle.get("cx") or 0)
    assert ET.fromstring(forest_svg(replace(forest, groups={}))) is not None
