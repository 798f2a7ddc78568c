"""Write docs/results again from its results.json files, and the figures that other pages quote from them.

    python tools/results.py

`unmask reproduce summary --out docs/results` does the first part; tests/house/test_results.py compares both.
"""

from __future__ import annotations

from pathlib import Path

from unmask.reproduce.summary import collect, filled, write_summary

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "docs" / "results"
PAGES = (ROOT / "README.md", RESULTS / "notes.md")  # that quote figures


def main() -> None:
    """Write all of it."""
    print(write_summary(RESULTS))
    for page in PAGES:
        page.write_text(filled(page.read_text(encoding="utf-8"), collect(RESULTS)), encoding="utf-8")
        print(page)


if __name__ == "__main__":
    main()
