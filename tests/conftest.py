"""One thread and one seed for every test: the machine is shared, and a failure must come back when it is run again."""

from __future__ import annotations

import pytest
import torch

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.manual_seed(0)
