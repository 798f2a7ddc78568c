"""One thread and one seed for every test: the machine is shared, and a failure must come back when it is run again.

All workers of a session share one folder (`support.helpers.folder`): what is trained once is trained once.
"""

from __future__ import annotations

import gc
import os
import shutil
import tempfile

import pytest
import torch
from hypothesis import settings

torch.set_num_threads(1)
settings.register_profile("same every time", derandomize=True, deadline=None, database=None)
settings.load_profile("same every time")


def pytest_configure(config: pytest.Config) -> None:
    if not hasattr(config, "workerinput"):  # workers inherit the environment of the process that starts them
        os.environ["UNMASK_TESTS_FOLDER"] = folder = tempfile.mkdtemp(prefix="unmask-tests-")
        config.add_cleanup(lambda: shutil.rmtree(folder, ignore_errors=True))


def pytest_collection_finish() -> None:
    gc.collect()
    gc.freeze()  # what all imports left is there to the end: nobody need look through it again and again


@pytest.fixture(autouse=True)
def _seeded() -> None:
    torch.set_num_threads(1)  # a test may have changed it, and equal bits need equal threads
    torch.manual_seed(0)
