"""Section 5.2: the tasks of Genomic Benchmarks (tab:genomic_benchmarks) and of GUE, for five models."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean

import numpy as np

from ...data import tasks
from ...training.finetune import TaskResult, predictions_file
from .. import paper_dna
from ..bench import Bench
from ..dna_bench import CADUCEUS, MAMBA, GenomeBench, tuned
from ..report import Cell, Check, Figure, Report, Row, Table
from .genome_ppl import protocol
from .glue_tables import sided

COLUMNS = {  # the models of the paper's columns; of several fine-tunings the first
    "Mamba AR": MAMBA,
    "Caduceus MLM": CADUCEUS,
    "Caduceus Plaid": tuned(CADUCEUS, "plaid", 1),
    "Caduceus SEDD": tuned(CADUCEUS, "sedd", 1),
    "Caduceus MDLM": tuned(CADUCEUS, "mdlm", 1),
}
CLAIMS = (  # better, worse, whether no loss is enough
    ("MDLM fine-tuning does not lower the mean accuracy of Caduceus MLM", "Caduceus MDLM", "Caduceus MLM", True),
    ("MDLM is better than Plaid", "Caduceus MDLM", "Caduceus Plaid", False),
    ("SEDD is better than Plaid", "Caduceus SEDD", "Caduceus Plaid", False),
    ("Caduceus MLM is better than Mamba AR", "Caduceus MLM", "Mamba AR", False),
)
Runs = Mapping[str, Sequence[TaskResult]]  # by column


def genomics(bench: Bench) -> Report:
    """Every task that is at hand, learned from the models of `dna`."""
    assert isinstance(bench, GenomeBench)
    known = bench.available()
    bench.need(list(COLUMNS.values()))
    runs: dict[str, Runs] = {
        task: {column: bench.classifiers(name, task, split) for column, name in COLUMNS.items()}
        for task, split in known.items()
    }
    printed = paper_dna.GENOMIC_BENCHMARKS
    tables = [
        Table(title, label, list(COLUMNS), rows)
        for title, label, rows in (
            (printed.title, printed.label, [_row(task, runs[task], known[task]) for task in known if _ours(task)]),
            (
                "GUE, test splits",
                "not in the paper",
                [
                    _row(task, runs[task], known[task], metric)
                    for task in known
                    if not _ours(task)
                    for metric in ("accuracy", "matthews")
                ],
            ),
        )
        if rows
    ]
    absent = [task for task in bench.sizes.tasks.names if task not in known]
    return bench.report(
        "genomics",
        printed.label,
        tables,
        checks=claims(runs),
        protocol={**protocol(bench, (MAMBA, CADUCEUS)), **_protocol(bench, known)},
        notes=[
            *([f"not here, so not in the tables: {', '.join(absent)}."] if absent else []),
            *printed.remarks,
            f"The paper: {printed.protocol}.",
        ],
    )


def _ours(task: str) -> bool:
    """Whether the paper has it."""
    return task.startswith("genomics/")


def _row(task: str, runs: Runs, split: str, metric: str = "accuracy") -> Row:
    record = tasks.task(task)
    ours: dict[str, Cell] = {column: over_seeds([run.test[metric] for run in own]) for column, own in runs.items()}
    printed = paper_dna.GENOMIC_BENCHMARKS.rows.get(record.title, {})
    name = record.title if _ours(task) else f"{record.title}, {metric}"
    return Row(name, printed, ours, "" if split == "official" else "splits are not the official ones")


def over_seeds(values: Sequence[float]) -> Figure:
    """Mean, and the largest minus the smallest, as the paper prints them."""
    return Figure(mean(values), max(values) - min(values) if len(values) > 1 else None, decimals=3)


def claims(runs: Mapping[str, Runs]) -> list[Check]:
    """The paper's claims, on the mean accuracy of all tasks here."""
    right = {column: {task: _right(task, own[column]) for task, own in runs.items()} for column in COLUMNS}
    return [
        sided(claim, advantage(right[better], right[worse]), at_least=no_loss)
        for claim, better, worse, no_loss in CLAIMS
    ]


def advantage(better: Mapping[str, np.ndarray], worse: Mapping[str, np.ndarray]) -> Figure:
    """Points (x 100) of mean accuracy that the first has more; what was right is (seeds, examples) by task.

    The error has two parts, both paired: over seeds, and over the examples of the test splits, which are the same for
    all seeds.
    """
    gaps = [100 * (better[task].astype(float) - worse[task]) for task in better]
    each = np.mean([gap.mean(1) for gap in gaps], axis=0)  # one a seed
    if len(each) < 2:
        return Figure(float(each.mean()))
    over_seeds = each.var(ddof=1) / len(each)
    over_examples = sum(gap.mean(0).var(ddof=1) / gap.shape[1] for gap in gaps) / len(gaps) ** 2
    return Figure(float(each.mean()), math.sqrt(over_seeds + over_examples))


def _right(task: str, runs: Sequence[TaskResult]) -> np.ndarray:
    """(seeds, examples) bool: whether the classifier named the right class, from the tables of its predictions."""
    found = []
    for run in runs:
        lines = (run.out / predictions_file(tasks.task(task).tested or "")).read_text(encoding="utf-8").splitlines()
        cells = [line.split("\t") for line in lines[1:]]
        found.append([cell[1] == cell[2] for cell in cells])
    return np.array(found)


def _protocol(bench: GenomeBench, known: Mapping[str, str]) -> dict[str, str]:
    own = bench.sizes.tasks
    cut = [tasks.task(task).title for task, split in known.items() if split != "official"]
    found = {
        "models": "Mamba AR and Caduceus MLM as they were pre-trained, the others fine-tuned from that Caduceus (the "
        "first seed of `dna`)",
        "tasks": "all weights trained, mean of the hidden states (of Caduceus over both strands) and a linear layer; "
        "the best checkpoint by validation is tested once",
        "±": f"the largest minus the smallest of {len(own.seeds)} seeds, as in the paper",
        "training examples": "all" if own.rows is None else f"at most {own.rows} of a task, evenly spaced",
        "judged examples": "all" if own.eval_rows is None else f"at most {own.eval_rows} of a split, evenly spaced",
        "settings": "learning rate and batch size by validation, for every task and model"
        if own.swept
        else ", ".join(own.changes) + ", the same for all: no sweep",
        "Plaid": "a row is read at t = 0, without noise and without a first guess",
        "claims": "of the mean accuracy over all tasks here, in points; errors over seeds and over test examples",
    }
    if cut:
        found["splits that are not official"] = (
            f"{', '.join(cut)}: cut out of the sequences at hand (task.split=random)"
        )
    return found


__all__ = ["genomics"]
