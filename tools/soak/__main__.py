"""Faults on purpose: kill, fill, damage, flood and trap this project, and count what held.

    make soak                                    all parts, an hour at most on 2 cores
    make soak QUICK=1                            five minutes
    python tools/soak --only kill --count 3      a part, and fewer cases
    python tools/soak --only kill --case 17      a case again
    python tools/soak --table                    only write the table again

Every part leaves a JSON file in runs/soak; the table of all of them is written into docs/reliability.md.
"""

from __future__ import annotations

import argparse
import importlib
import json
import shutil
import sys
import tempfile
from pathlib import Path

from ledger import ROOT, Ledger, say, write_page

sys.path.insert(0, str(ROOT / "src"))
PARTS = ["kill", "disk", "flips", "folder", "ranks", "load", "traps"]


def main() -> int:
    """Run the parts, keep their results, write the table; 1 if anything was lost."""
    parser = argparse.ArgumentParser(prog="soak", description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--only", action="append", choices=PARTS, help="a part (may be repeated)")
    parser.add_argument("--quick", action="store_true", help="five minutes instead of an hour")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--case", type=int, help="repeat the case of this number; nothing is recorded")
    parser.add_argument("--count", type=int, help="cases of each kind")
    parser.add_argument("--results", type=Path, default=ROOT / "runs" / "soak")
    parser.add_argument("--page", type=Path, default=ROOT / "docs" / "reliability.md")
    parser.add_argument("--keep", action="store_true", help="keep the scratch folders")
    parser.add_argument("--table", action="store_true", help="run nothing, write the table")
    asked = parser.parse_args()
    asked.results.mkdir(parents=True, exist_ok=True)
    scratch = Path(tempfile.mkdtemp(prefix="unmask-soak-"))
    lost = 0
    for part in [] if asked.table else asked.only or PARTS:
        ledger = Ledger(part, asked.seed, asked.quick, scratch / part, asked.case, asked.count)
        ledger.work.mkdir()
        say(f"{part} ...")
        with ledger.case("the part itself", 0):  # what ends it is lost too
            importlib.import_module(part).run(ledger)
        if not ledger.rows.get("the part itself", {}).get("lost"):
            ledger.rows.pop("the part itself")
        result = ledger.tree()
        lost += len(result["lost"])
        for row in result["rows"]:
            say(f"  {row['what']}: tried {row['tried']}, held {row['held']}, lost {row['lost']}")
        say(f"  {result['seconds']:.0f} s")
        if asked.case is None:
            (asked.results / f"{part}.json").write_text(json.dumps(result, indent=1) + "\n", encoding="utf-8")
    if asked.case is None:
        write_page(asked.page, asked.results, PARTS)
    if not asked.keep:
        shutil.rmtree(scratch, ignore_errors=True)
    return 1 if lost else 0


if __name__ == "__main__":
    sys.exit(main())
