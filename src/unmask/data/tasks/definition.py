"""What a task is: data with a version. Nothing here reads a file.

A task is a set of short texts, or of pairs of them, with one label each, and the number by which it is judged (section
5.1 and appendix D.6 of the paper), or of DNA sequences (section 5.2 and appendix D.7). What is true of one task only is
in its record (`glue`, `genomics`); `task_files` reads what a record describes, `metrics` judges, `encoding` makes
tokens of it.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from ..records import Hub

METRICS = ("accuracy", "f1", "matthews", "spearman", "pearson")


@dataclass(frozen=True)
class Columns:
    """The names of the columns that matter."""

    first: str
    second: str | None
    label: str

    def texts(self) -> list[str]:
        """The columns that a row must have, whatever split it is in."""
        return [self.first] if self.second is None else [self.first, self.second]


@dataclass(frozen=True)
class Carve:
    """A dev split that is cut out of the training file, where it has no file.

    A file `ids` lists its rows by the values of two columns. Without such a file every `every`-th row is used.
    """

    ids: tuple[str, ...]
    columns: tuple[str, str]
    every: int


@dataclass(frozen=True)
class Form:
    """One form in which the files of a task are distributed: tab-separated, quotes are ordinary characters.

    Of several names for a split the first that exists is used. `also` is a second file of a split, read after the
    first if the two together have the rows that the split should have.
    """

    files: Mapping[str, tuple[str, ...]]
    columns: Columns
    header: tuple[str, ...] = ()  # the columns, where the first line does not name them
    also: Mapping[str, str] = field(default_factory=dict)
    carve: Carve | None = None


@dataclass(frozen=True)
class Task:
    """A task with labels; everything that is true of it only."""

    name: str  # "glue/sst2"
    title: str  # as the paper writes it
    about: str  # one line
    labels: tuple[str, ...]  # names in the order of their ids; none: a regression
    metric: str  # the number of the paper, one of METRICS
    columns: Columns  # of the Hub, and of .jsonl, .parquet and .csv files
    hub: Hub = field(hash=False)
    also: tuple[str, ...] = ()  # metrics that are reported too
    splits: tuple[str, ...] = ("train", "dev", "test")
    evaluations: tuple[str, ...] = ("dev",)  # splits that the paper's numbers are of
    hub_splits: Mapping[str, str] = field(default_factory=dict, hash=False)  # ours -> the Hub's
    folders: tuple[str, ...] = ()  # common names of its folder, in upper or lower case
    forms: tuple[Form, ...] = field(default=(), hash=False)  # besides .jsonl, .parquet and .csv
    rows: Mapping[str, int] = field(default_factory=dict, hash=False)  # of the official splits
    span: tuple[float, float] | None = None  # of a regression: the least and the largest score
    unlabelled: tuple[str, ...] = ()  # labels that say "nobody knows": such rows are left out, and counted
    broken_rows: bool = False  # the official file has rows with too few columns: left out, and counted
    sequences: bool = False  # texts are sequences of bases (`sequences` reads them)
    length: int | None = None  # of sequences: the bases that the paper's protocol cuts them to
    tested: str | None = None  # the split that the best checkpoint is judged on, once, when all training is over
    references: Mapping[str, str] = field(default_factory=dict, hash=False)  # class -> genome its intervals are of
    numbered: tuple[str, ...] = ()  # names in the order of the ids in published tables, if that is not that of `labels`
    short: tuple[str, ...] = ()  # what else people call it
    version: int = 1  # grows whenever a number could change: reading, splitting, metric

    @property
    def regression(self) -> bool:
        """Whether the label is a score."""
        return not self.labels

    @property
    def pairs(self) -> bool:
        """Whether an example is two texts."""
        return self.columns.second is not None

    @property
    def n_outputs(self) -> int:
        """How many numbers a classifier gives for an example."""
        return len(self.labels) or 1

    @property
    def metrics(self) -> tuple[str, ...]:
        """All numbers that are reported, the paper's first."""
        return (self.metric, *self.also)

    @property
    def allowed(self) -> str:
        """In words, what a label may be."""
        if self.span is not None:
            return f"a score from {self.span[0]:g} to {self.span[1]:g}"
        return ", ".join(f"{i} ({name})" for i, name in enumerate(self.numbered or self.labels))


@dataclass(frozen=True)
class Example:
    """One row of a task."""

    first: str
    second: str | None
    label: int | float | None  # an id, or the score of a regression; None: hidden
    index: int  # its place in the split, from 0
