"""The Hub that tests of this folder see."""

from __future__ import annotations

import pytest

from support.fake_hub import FakeHub
from unmask.data import online


@pytest.fixture
def there(monkeypatch, tmp_path) -> FakeHub:
    fake = FakeHub(tmp_path / "repositories", tmp_path / "downloaded")
    monkeypatch.setattr(online, "reachable", lambda: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", fake)
    monkeypatch.delenv("UNMASK_TOKENIZERS", raising=False)
    monkeypatch.chdir(tmp_path)
    return fake
