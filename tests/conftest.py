"""One thread and one seed for every test: the machine is shared, and a failure must come back when it is run again."""

from __future__ import annotations

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("same every time", derandomize=True, deadline=None, database=None)
settings.load_profile("same every time")


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
