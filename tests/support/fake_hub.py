"""The Hugging Face Hub as a folder."""

from __future__ import annotations

import shutil
from fnmatch import fnmatch
from pathlib import Path
from typing import Any


class FakeHub:
    """`snapshot_download` from a folder: what matches the patterns is copied, and every call is written down."""

    def __init__(self, repositories: Path, cache: Path) -> None:
        self.repositories, self.cache, self.calls = repositories, cache, []

    def __call__(self, name: str, *, revision: Any, allow_patterns: Any, ignore_patterns: Any, **how: Any) -> str:
        self.calls.append({"name": name, "revision": revision, **how})
        source = self.repositories / name
        if not source.is_dir():
            raise OSError("404 Client Error.\nRepository Not Found")
        for file in (p for p in source.rglob("*") if p.is_file()):
            path = file.relative_to(source).as_posix()
            allowed = any(fnmatch(path, pattern) for pattern in allow_patterns)
            if allowed and not any(fnmatch(path, pattern) for pattern in ignore_patterns):
                (self.cache / name / path).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy(file, self.cache / name / path)
        return str(self.cache / name)
