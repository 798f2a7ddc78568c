"""Data sets of the Hugging Face Hub, through their Arrow files on disk; code of a data set is never run."""

from __future__ import annotations

import errno
from collections.abc import Iterator
from typing import Any

from ..errors import UserError, optional
from . import documents
from .documents import Detokenize, FileEntry
from .online import hub, reason
from .records import Hub
from .streams import Reader


def load_place(place: Hub, where: str, missing: str, ways: str = "") -> Any:
    """What `datasets` loads from a place, or one sentence why it cannot."""
    datasets = optional("datasets", f"{missing}; loading it from the Hugging Face Hub", "data")
    with hub() as online:
        try:
            files = dict(place.files) or None
            return datasets.load_dataset(place.name, place.subset, data_files=files, revision=place.revision)
        except (OSError, ValueError, RuntimeError, ImportError, datasets.exceptions.DatasetsError) as error:
            why = reason(error, 300)
            if _is_full(error):
                raise UserError(
                    f"the disk is full: no space for {where}; set HF_HOME to a larger disk: {why}"
                ) from None
            if not online:
                way = f"; {ways}" if ways else ""
                raise UserError(f"{missing}, and the Hugging Face Hub cannot be reached{way}") from None
            if isinstance(error, OSError):
                way = f" ({ways})" if ways else ""
                raise UserError(f"{missing}, and was not found on the Hugging Face Hub{way}: {why}") from None
            raise UserError(f"{where} cannot be loaded: {why}") from None  # subset missing, code needed


def _is_full(error: BaseException) -> bool:
    """Whether a disk was full: the library hides the reason in the causes of its error."""
    cause: BaseException | None = error
    while cause is not None:
        if isinstance(cause, OSError) and (cause.errno == errno.ENOSPC or "disk space" in str(cause)):
            return True
        cause = cause.__cause__
    return False


def reader_of(rows: Any, field: str, label: str | None, where: str, detokenize: Detokenize | None) -> Reader:
    """Reads the pieces of a split; classes by their names."""
    wanted = documents.checked_fields(field, label, rows.column_names, where)
    names = getattr(rows.features.get(label), "names", None)  # of a ClassLabel, whose -1 is "not known"

    def entries() -> Iterator[FileEntry]:
        number = 0
        for batch in rows.select_columns(wanted).iter(batch_size=256):
            for values in zip(*(batch[column] for column in wanted), strict=True):
                number += 1
                row = dict(zip(wanted, values, strict=True))
                if label is not None and names is not None and isinstance(row[label], int):
                    row[label] = names[row[label]] if row[label] >= 0 else None
                if (entry := documents.entry(row, field, label, f"row {number} of {where}")) is not None:
                    yield entry

    return lambda: documents.by_row(entries(), detokenize)
