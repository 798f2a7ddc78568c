"""What the paper does not have: another zero-shot set, another table with models of its own; and earlier reports."""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
from test_reproduce import TINY, sentences

from support.helpers import run, zero_shot_sets
from unmask.data import records
from unmask.data.records import Record
from unmask.evaluation.suites import SUITES, Member
from unmask.hub.resolve import checkpoint, load
from unmask.plot import svg
from unmask.reproduce import TABLES
from unmask.reproduce.bench import Bench
from unmask.reproduce.claims import Claim
from unmask.reproduce.rendering import markdown
from unmask.reproduce.report import Report, Row, Table, plot_stems
from unmask.reproduce.report_files import load_results
from unmask.reproduce.scales import SCALES
from unmask.reproduce.specs import Finetuning, ModelSpec, PaperTable, Setup, changed
from unmask.reproduce.text_models import TEXT, text_models

RESULTS = Path(__file__).resolve().parents[2] / "docs" / "results"


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory):
    folder = tmp_path_factory.mktemp("new")
    (folder / "text").mkdir()
    for seed, (split, n) in enumerate({"train": 400, "valid": 100, "test": 100}.items()):
        (folder / "text" / f"{split}.txt").write_text(sentences(n, seed))
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(folder / "cache"))
        patch.setenv("UNMASK_DATA", str(zero_shot_sets(folder / "sets")))
        patch.setitem(SCALES, "smoke", TINY)
        yield folder


def options(place: Path) -> list[str]:
    return ["--data", str(place / "text"), "--out", str(place / "out"), "--quiet", "--json"]


def test_a_set_without_a_row_in_the_paper_has_our_figures_only(place, monkeypatch):
    """A record and a member of the suite: it is scored, and no claim of the paper is about it."""
    (place / "sets" / "news").mkdir()
    lines = "".join(json.dumps({"text": line}) + "\n" for line in sentences(80, 9).splitlines())
    (place / "sets" / "news" / "valid.jsonl").write_text(lines)
    monkeypatch.setitem(records.CORPORA, "news", Record("news", "sentences", folders=("news",)))
    monkeypatch.setitem(SUITES, "zero-shot", (Member("News", "news", "valid"), *SUITES["zero-shot"][:2]))
    found = run("reproduce", "zero-shot", *options(place)).json()
    rows = {row["name"]: row for row in found["tables"][0]["rows"]}
    assert list(rows) == ["News", "PTB", "Wikitext"]
    assert rows["News"]["paper"] == {} and rows["PTB"]["paper"]["AR"]["value"] == 82.05
    figures = [rows["News"]["ours"][column]["value"] for column in ("AR", "SEDD", "MDLM", "unigram")]
    assert all(math.isfinite(value) and value > 1 for value in figures)
    assert [check["claim"].split(":")[0] for check in found["checks"]] == ["PTB", "Wikitext"] * 4
    page = (place / "out" / "smoke" / "text" / "zero-shot" / "report.md").read_text()
    (line,) = [line for line in page.splitlines() if line.startswith("| News ")]
    assert [cell.strip() for cell in line.split("|")[2:7:2]] == ["–"] * 3  # no paper, ours, no paper, ...


def toy_models(setup: Setup) -> dict[str, ModelSpec]:
    """A narrower MDLM, and that one fine-tuned as SEDD."""
    mdlm = text_models(setup)["mdlm"].config
    short = {"train": {"steps": 3, "batch_size": 4, "warmup": 1}, "eval": {"rows": 4, "draws": 1, "every": 0}}
    return {
        "narrow": ModelSpec(changed(mdlm, {"model": {"hidden_dim": 8}, "train": {"steps": 4}})),
        "narrow-sedd": ModelSpec(Finetuning("sedd", short), start="narrow"),
    }


def toy(bench: Bench) -> Report:
    bench.need(["mdlm", "narrow", "narrow-sedd"])
    scored = {name: bench.score(name) for name in ("mdlm", "narrow", "narrow-sedd")}
    rows = [Row(name, {}, {"PPL": model.perplexity}) for name, model in scored.items()]
    claim = Claim("width helps", "mdlm", "narrow")
    return bench.report("toy", "here", [Table("Toy", "here", ["PPL"], rows)], checks=[claim.check(scored)], protocol={})


def test_a_table_is_a_function_and_its_models(place, monkeypatch):
    """One `PaperTable` with shared models, a new one, and one that starts from it; what exists is not trained again."""
    monkeypatch.setitem(TABLES, "toy", PaperTable("toy", toy, TEXT.including(toy_models), "lm1b"))
    found = run("reproduce", "toy", *options(place)).json()
    models = place / "out" / "smoke" / "text" / "models"
    assert {own["name"]: own["steps"] for own in found["models"]} == {"mdlm": 10, "narrow": 4, "narrow-sedd": 3}
    assert checkpoint.steps(models / "narrow-sedd") == [3]
    tuned = load(models / "narrow-sedd").config
    assert tuned.model.method == "sedd" and tuned.model.hidden_dim == 8 and tuned.train.start == str(models / "narrow")
    assert [check["claim"] for check in found["checks"]] == ["width helps"]
    before = {path: path.stat().st_mtime_ns for path in models.rglob("*.safetensors")}
    assert run("reproduce", "toy", *options(place)).json()["tables"] == found["tables"]
    assert {path: path.stat().st_mtime_ns for path in models.rglob("*.safetensors")} == before


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("results.json")), ids=lambda path: "/".join(path.parts[-3:-1]))
def test_reports_of_earlier_versions_are_read(path):
    report = load_results(path)
    assert report.tables and report.checks and report.name in TABLES
    assert markdown(report).startswith(f"# {report.name}")
    for stem, plot in zip(plot_stems(report.plots), report.plots, strict=True):
        assert svg(plot) == (path.parent / f"{stem}.svg").read_text(), "equal input gives equal bytes"


@pytest.mark.parametrize("path", sorted(RESULTS.rglob("*.md")), ids=lambda path: "/".join(path.parts[-3:]))
def test_pages_of_results_are_as_their_figures_and_name_no_folder_of_ours(path):
    text = path.read_text()
    assert not [word for word in ("/work/", "../shared", "runs/data", "runs/pretrained") if word in text]
    if path.name == "report.md":
        assert text == markdown(load_results(path.parent))
        assert load_results(path.parent).data in text.splitlines()[0].replace("\\", "")
