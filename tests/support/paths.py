"""Where things lie: the project, and the real data beside it (without them, tests that read them skip)."""

import os
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
SHARED = Path(os.environ.get("UNMASK_TEST_SHARED", ROOT.parent / "shared"))
DATA = SHARED / "data"
