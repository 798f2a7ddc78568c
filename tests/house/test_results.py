"""Every figure of docs/results, and every one that other pages quote from there, is what results.json files say."""

from __future__ import annotations

import json
import re
import runpy

import pytest

from support.paths import ROOT
from unmask.plot import svg
from unmask.reproduce.summary import QUOTED, collect, filled, summary_files

RESULTS = ROOT / "docs" / "results"
BY_HAND = {"notes.md", "smollm2/README.md", "smollm2/bound.svg"}
FIX = "run: python tools/results.py"
PAGES = runpy.run_path(str(ROOT / "tools" / "results.py"))["PAGES"]


def test_pages_and_plots_follow_from_the_results():
    made = summary_files(RESULTS)
    wrong = [name for name, text in made.items() if (RESULTS / name).read_text(encoding="utf-8") != text]
    assert not wrong, FIX
    kept = {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*") if path.suffix in (".md", ".svg")}
    assert kept == {*made, *BY_HAND}, "a page or a plot without results.json"


def test_the_curve_of_a_causal_model_follows_from_its_figures():
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "causal_to_diffusion.py"))
    curves = json.loads((RESULTS / "smollm2" / "curves.json").read_text())["curves"]
    assert svg(benchmark["bound_plot"](curves)) == (RESULTS / "smollm2" / "bound.svg").read_text()
    page = (RESULTS / "smollm2" / "README.md").read_text()
    for points in curves.values():
        assert all(f"{point['nats_per_token']:.2f}" in page for point in points)


def test_the_quality_of_samplers_follows_from_its_figures(monkeypatch):
    monkeypatch.syspath_prepend(str(ROOT / "benchmarks"))
    benchmark = runpy.run_path(str(ROOT / "benchmarks" / "quality.py"))
    found = json.loads((RESULTS / "tiny-en" / "quality.json").read_text())
    assert benchmark["table"](found) in (ROOT / "docs" / "sampling.md").read_text()
    for plot in benchmark["plots"](found, "quality"):
        assert svg(plot) == (ROOT / "docs" / "images" / f"{plot.name}.svg").read_text()


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_pages_quote_the_results(page):
    text = page.read_text(encoding="utf-8")
    assert len(QUOTED.findall(text)) >= 4, "figures of the results are quoted with marks"
    assert filled(text, collect(RESULTS)) == text, FIX


def test_verdicts_are_computed():
    """What is said of a claim on the page is what its effect says, and one training never decides."""
    for result in collect(RESULTS):
        for check in result.report.checks:
            if check.effect is not None and check.effect.trainings == 1 and "spread of seeds" not in check.detail:
                assert check.holds is None and "one training each" in check.verdict
    page = (RESULTS / "README.md").read_text(encoding="utf-8")
    count = re.search(r"\*\*(\d+) of (\d+) claims are decided", page)
    assert count and int(count[2]) == page.count("\n| ✓ ") + page.count("\n| ✗ ") + page.count("\n| \\~ ")
