"""Where things lie: the project, and the real data beside it (without them, tests that read them skip)."""

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = ROOT.parent / "shared"
DATA = SHARED / "data"
