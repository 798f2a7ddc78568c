"""What is kept of a training: facts of its run, and its scores row by row, a few kilobytes of text in a folder.

Weights are large, and the machine that trained them may be gone. A table is made from scores, so a table whose
trainings took weeks, or several machines, goes on from these files. They say which settings and texts they are of;
those of others are not taken for this one's.
"""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Mapping, Set
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from ..config import parse
from ..files import read_json, write_text
from ..jsonable import finite
from ..types import UserError
from .scored import Classified, ScoredModel

TRAINING = "training.json"
FACTS, SCORE = {"facts", "settings"}, {"exact", "nats", "of", "protocol", "tokens"}
CLASSIFIER = {"last", "of", "right", "settings", "test"}
PLACES = {  # settings that say where and how a training runs, and not what comes out
    "data": ("source", "local", "cache"),
    "train": ("device", "log_every", "checkpoint_every", "keep_last", "sinks"),
}
FIX = "; delete it, and it is made again"
DIGITS = 5  # of the nats of a row: far below the noise of a draw


def essential(settings: Any) -> Any:
    """Settings of a training without those that say where it runs, and with the defaults of keys that are newer."""
    if not isinstance(settings, dict) or "config" not in settings:
        return {key: essential(value) for key, value in settings.items()} if isinstance(settings, dict) else settings
    try:
        tree = parse(settings["config"]).model_dump(mode="json")
    except UserError:  # a version that had other keys
        return settings
    for section, keys in PLACES.items():
        tree[section] = {key: value for key, value in tree[section].items() if key not in keys}
    return {**settings, "config": {key: tree[key] for key in tree if key not in ("eval", "sample")}}


@dataclass(frozen=True)
class KeptScores:
    """A folder with one folder per model."""

    folder: Path

    def has(self, name: str) -> bool:
        """Whether anything is kept under this name."""
        return (self.folder / name / TRAINING).exists()

    def facts(self, name: str, settings: dict[str, Any]) -> dict[str, Any] | None:
        """The facts of a training with these settings; None if none are kept."""
        kept = self._read(self.folder / name / TRAINING, FACTS)
        return kept["facts"] if kept and essential(kept["settings"]) == essential(settings) else None

    def keep_facts(self, name: str, settings: dict[str, Any], facts: dict[str, Any]) -> None:
        """Write the facts; scores of a model of the same name with other settings are deleted."""
        if self.facts(name, settings) is None:
            for file in (self.folder / name).glob("*.json"):
                file.unlink()
        self._write(self.folder / name / TRAINING, {"facts": facts, "settings": settings})

    def score(self, name: str, what: str, of: dict[str, Any]) -> ScoredModel | None:
        """A score that was kept; `of` is all that it depends on."""
        kept = self._read(self._file(name, what, of), SCORE)
        if kept is None:
            return None
        return ScoredModel(np.array(kept["nats"]).T, np.array(kept["tokens"]), kept["exact"], kept["protocol"])

    def keep_score(self, name: str, what: str, of: dict[str, Any], scored: ScoredModel) -> ScoredModel:
        """Write a score; returns it as it will be read."""
        content = {
            "exact": scored.exact,
            "nats": scored.nats.T.round(DIGITS).tolist(),  # a line per draw
            "of": of,
            "protocol": scored.protocol,
            "tokens": scored.tokens.astype(int).tolist(),
        }
        self._write(self._file(name, what, of), content)
        read = self.score(name, what, of)
        assert read is not None
        return read

    def classifier(self, name: str, task: str, settings: dict[str, Any], of: dict[str, Any]) -> Classified | None:
        """How good a classifier on a model with these settings is; `of` is all else that it depends on."""
        kept = self._read(self._file(name, task, of), CLASSIFIER)
        if kept is None or essential(kept["settings"]) != essential(settings):
            return None
        last = {split: _numbers(metrics) for split, metrics in kept["last"].items()}
        return Classified(last, _numbers(kept["test"]), kept["right"])

    def keep_classifier(
        self, name: str, task: str, settings: dict[str, Any], of: dict[str, Any], classified: Classified
    ) -> None:
        """Write how good a classifier is."""
        self._write(self._file(name, task, of), {"of": of, "settings": settings, **finite(asdict(classified))})

    def _file(self, name: str, what: str, of: dict[str, Any]) -> Path:
        slug = re.sub(r"[^A-Za-z0-9]+", "-", what).strip("-")
        text = json.dumps(of, sort_keys=True, ensure_ascii=False)
        return self.folder / name / f"{slug}-{hashlib.sha256(text.encode()).hexdigest()[:12]}.json"

    @staticmethod
    def _read(file: Path, needed: Set[str]) -> dict[str, Any] | None:
        if not file.exists():
            return None
        kept = read_json(file, "a kept score", FIX)
        if needed - kept.keys():
            raise UserError(f"a kept score: {file} is damaged (it has no {min(needed - kept.keys())}){FIX}")
        return kept

    @staticmethod
    def _write(file: Path, content: dict[str, Any]) -> None:
        """Lists of numbers on one line each: short, and a change shows where it is."""
        file.parent.mkdir(parents=True, exist_ok=True)
        lines = []
        for key, value in sorted(content.items()):
            nested = isinstance(value, list) and value and isinstance(value[0], list)
            text = (
                "[\n  " + ",\n  ".join(map(json.dumps, value)) + "\n ]" if nested else json.dumps(value, sort_keys=True)
            )
            lines.append(f' "{key}": {text}')
        write_text(file, "{\n" + ",\n".join(lines) + "\n}\n")


def _numbers(metrics: Mapping[str, float | None]) -> dict[str, float]:
    """Metrics from JSON, where null is one that is not defined."""
    return {name: math.nan if value is None else value for name, value in metrics.items()}
