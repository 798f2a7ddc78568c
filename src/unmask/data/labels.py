"""Labels: a column of the data, one label per document, as numbers for the network and as names for everyone else.

The cache knows the labels of a split in the order in which they were met (`pack`). What the network sees is the place
of a label among the names of the train split, which are kept with every checkpoint in labels.json: so a model scores
other data by the meaning of their labels, whatever their order there.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np

from ..errors import nearest
from ..files import read_json_or_none, write_json
from ..types import UserError

MOST = 10_000  # different labels; more of them means the wrong column
FILE = "labels.json"
_NUMBER = re.compile(r"-?[0-9]{1,18}")


class Numbering:
    """The labels of a split while it is written: numbered in the order in which they are met."""

    def __init__(self, column: str) -> None:
        self.column = column
        self.ids: dict[str, int] = {}

    def number(self, name: str | None, document: str) -> int:
        """The number of a label; `document` is named if there are too many of them."""
        assert name is not None, "readers give every document a label"
        label_id = self.ids.setdefault(name, len(self.ids))
        if label_id >= MOST:
            raise UserError(
                f"{document} has label number {label_id + 1:,}, {name[:40]!r}, and at most {MOST:,} different labels "
                f"are possible; data.label={self.column} looks like the wrong column"
            )
        return label_id


def in_order(names: Iterable[str]) -> tuple[str, ...]:
    """Names in the order of their ids: numbers by value (labels 0 .. n-1 keep their numbers), then text."""

    def place(name: str) -> tuple[int, int, str]:
        return (0, int(name), name) if _NUMBER.fullmatch(name) else (1, 0, name)

    return tuple(sorted(names, key=place))


def translate(names: Sequence[str], known: Sequence[str], where: str) -> np.ndarray:
    """(len(names),) int64: the id of each label of a split among the known ones."""
    ids = {name: i for i, name in enumerate(known)}
    for name in names:
        if name not in ids:
            listed = ", ".join(known[:12]) + (", ..." if len(known) > 12 else "")
            raise UserError(
                f"{where} has the label {name[:40]!r}{nearest(name, known)}, which the training data did not have "
                f"(they have {listed}); leave its rows out, or train with some of them"
            )
    return np.array([ids[name] for name in names], dtype=np.int64)


def save_labels(folder: str | Path, column: str, names: Sequence[str]) -> None:
    """Write labels.json: the names in the order of their ids."""
    write_json(Path(folder) / FILE, {"format": 1, "column": column, "names": list(names)})


def load_labels(folder: str | Path, column: str | None) -> list[str]:
    """The names that `save_labels` wrote; none for a model without labels (`data.label` of its config is null)."""
    if column is None:
        return []
    path = Path(folder) / FILE
    if not path.is_file():
        raise UserError(f"checkpoint file {path} is missing, and the model was trained with data.label={column}")
    names = (read_json_or_none(path) or {}).get("names")
    if not isinstance(names, list) or not names or not all(isinstance(name, str) for name in names):
        raise UserError(f"checkpoint file {path} is damaged: it lists no labels")
    return names
