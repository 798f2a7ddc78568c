"""Every figure of docs/results, and every one that README.md quotes from there, is what results.json files say."""

from __future__ import annotations

import re

from support.paths import ROOT
from unmask.reproduce.summary import QUOTED, collect, filled, summary_files

RESULTS = ROOT / "docs" / "results"
BY_HAND = {"notes.md"}
FIX = "run: python tools/results.py"


def test_pages_and_plots_follow_from_the_results():
    made = summary_files(RESULTS)
    wrong = [name for name, text in made.items() if (RESULTS / name).read_text(encoding="utf-8") != text]
    assert not wrong, FIX
    kept = {str(path.relative_to(RESULTS)) for path in RESULTS.rglob("*") if path.suffix in (".md", ".svg")}
    assert kept == {*made, *BY_HAND}, "a page or a plot without results.json"


def test_the_readme_quotes_the_results():
    text = (ROOT / "README.md").read_text(encoding="utf-8")
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
