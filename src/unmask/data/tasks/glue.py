"""GLUE as the paper counts it: eight tasks, nine numbers, all of them on dev sets.

The caption of the paper's table says "accuracy for the rest", but its CoLA column is Matthews' correlation, as in the
script it was made with. Its average is the mean of nine numbers: MNLI counts twice, matched and mismatched. WNLI is
left out. Columns and file names are those of the official archives; ids of labels are those of the Hub.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...errors import UserError, nearest
from ..records import Hub
from .definition import Carve, Columns, Form, Task

HUB = "nyu-mll/glue"
WHOLE = {"train": "train", "dev": "validation", "test": "test"}
MNLI_SPLITS = {
    "train": "train",
    "dev": "validation_matched",
    "dev-mismatched": "validation_mismatched",
    "test": "test_matched",
    "test-mismatched": "test_mismatched",
}
TSV = {"train": ("train.tsv",), "dev": ("dev.tsv",), "test": ("test.tsv",)}
ENTAILS = ("entailment", "not_entailment")
STS_HEADER = ("genre", "filename", "year", "old_index", "score", "sentence1", "sentence2")  # two more columns are spare


def _glue(subset: str, title: str, about: str, **more: Any) -> Task:
    """What all of them have in common."""
    names = {"hub": Hub(HUB, subset), "hub_splits": WHOLE, "folders": (title, subset)}
    return Task(name=f"glue/{subset}", title=title, about=about, **{**names, **more})


def _rows(train: int, dev: int, test: int) -> dict[str, int]:
    return {"train": train, "dev": dev, "test": test}


MRPC_COLUMNS = Columns("#1 String", "#2 String", "Quality")
MRPC_TRAIN, MRPC_TEST = ("msr_paraphrase_train.txt", "train"), ("msr_paraphrase_test.txt", "test")

GLUE: tuple[Task, ...] = (
    _glue(
        "mnli",
        "MNLI",
        "does a sentence follow from another, contradict it, or neither? (ten genres; mismatched: unseen ones)",
        labels=("entailment", "neutral", "contradiction"),
        metric="accuracy",
        columns=Columns("premise", "hypothesis", "label"),
        splits=tuple(MNLI_SPLITS),
        evaluations=("dev", "dev-mismatched"),
        hub_splits=MNLI_SPLITS,
        forms=(
            Form(
                {
                    "train": ("train.tsv",),
                    "dev": ("dev_matched.tsv",),
                    "dev-mismatched": ("dev_mismatched.tsv",),
                    "test": ("test_matched.tsv",),
                    "test-mismatched": ("test_mismatched.tsv",),
                },
                Columns("sentence1", "sentence2", "gold_label"),
            ),
        ),
        rows={"train": 392_702, "dev": 9_815, "dev-mismatched": 9_832, "test": 9_796, "test-mismatched": 9_847},
        unlabelled=("-",),  # five people did not agree; in the archive of the authors only
    ),
    _glue(
        "qqp",
        "QQP",
        "do two questions ask the same? (Quora)",
        labels=("not_duplicate", "duplicate"),
        metric="f1",
        also=("accuracy",),
        columns=Columns("question1", "question2", "label"),
        forms=(Form(TSV, Columns("question1", "question2", "is_duplicate")),),
        rows=_rows(363_846, 40_430, 390_965),
        broken_rows=True,
    ),
    _glue(
        "qnli",
        "QNLI",
        "does a sentence answer a question? (SQuAD)",
        labels=ENTAILS,
        metric="accuracy",
        columns=Columns("question", "sentence", "label"),
        forms=(Form(TSV, Columns("question", "sentence", "label")),),
        rows=_rows(104_743, 5_463, 5_463),
    ),
    _glue(
        "sst2",
        "SST-2",
        "is a phrase of a film review negative or positive?",
        labels=("negative", "positive"),
        metric="accuracy",
        columns=Columns("sentence", None, "label"),
        forms=(Form(TSV, Columns("sentence", None, "label")),),
        rows=_rows(67_349, 872, 1_821),
    ),
    _glue(
        "cola",
        "CoLA",
        "is a sentence grammatical?",
        labels=("unacceptable", "acceptable"),
        metric="matthews",
        also=("accuracy",),
        columns=Columns("sentence", None, "label"),
        forms=(
            Form(
                {"train": TSV["train"], "dev": TSV["dev"]},
                Columns("sentence", None, "label"),
                header=("source", "label", "mark", "sentence"),
                also={"train": "val.tsv"},
            ),
            Form({"test": TSV["test"]}, Columns("sentence", None, "label")),
        ),
        rows=_rows(8_551, 1_043, 1_063),
    ),
    _glue(
        "stsb",
        "STS-B",
        "how alike are two sentences, from 0 to 5?",
        labels=(),
        metric="spearman",
        also=("pearson",),
        columns=Columns("sentence1", "sentence2", "label"),
        forms=(
            Form(TSV, Columns("sentence1", "sentence2", "score")),
            Form(
                {"train": ("sts-train.csv",), "dev": ("sts-dev.csv",), "test": ("sts-test.csv",)},
                Columns("sentence1", "sentence2", "score"),
                header=STS_HEADER,
            ),
        ),
        rows=_rows(5_749, 1_500, 1_379),
        span=(0.0, 5.0),
    ),
    _glue(
        "mrpc",
        "MRPC",
        "do two sentences of the news say the same?",
        labels=("not_equivalent", "equivalent"),
        metric="f1",
        also=("accuracy",),
        columns=Columns("sentence1", "sentence2", "label"),
        forms=(
            Form(TSV, MRPC_COLUMNS),
            Form(
                {"train": MRPC_TRAIN, "dev": MRPC_TRAIN, "test": MRPC_TEST},
                MRPC_COLUMNS,
                carve=Carve(("mrpc_dev_ids.tsv", "dev_ids.tsv", "dev_ids"), ("#1 ID", "#2 ID"), 10),
            ),
        ),
        rows=_rows(3_668, 408, 1_725),
    ),
    _glue(
        "rte",
        "RTE",
        "does a sentence follow from a short text?",
        labels=ENTAILS,
        metric="accuracy",
        columns=Columns("sentence1", "sentence2", "label"),
        forms=(Form(TSV, Columns("sentence1", "sentence2", "label")),),
        rows=_rows(2_490, 277, 3_000),
    ),
)


def glue() -> tuple[Task, ...]:
    """The eight tasks in the order of the paper's table."""
    return GLUE


def number(task: Task, split: str = "dev") -> str:
    """The name of the paper's number for a dev split: the title of the task, and MNLI-m or MNLI-mm."""
    assert split in task.evaluations, f"{split!r} is not a dev split of {task.name}"
    if len(task.evaluations) == 1:
        return task.title
    return f"{task.title}-m" + ("m" if split.endswith("mismatched") else "")


NUMBERS: tuple[str, ...] = tuple(number(task, split) for task in GLUE for split in task.evaluations)


def average(results: Mapping[str, float]) -> float | None:
    """The paper's average, in percent: the mean of the nine NUMBERS (given as fractions); None if one is missing."""
    for name, value in results.items():
        if name not in NUMBERS:
            raise UserError(f"{name!r} is not a number of the paper's GLUE table{nearest(name, NUMBERS)}; {_listed()}")
        if not -1 <= value <= 1:
            raise UserError(f"{name}={value:g} is not a fraction; give metrics from -1 to 1, not percent")
    if any(name not in results for name in NUMBERS):
        return None
    return 100 * sum(results[name] for name in NUMBERS) / len(NUMBERS)


def _listed() -> str:
    return "they are " + ", ".join(NUMBERS)
