"""Section 5.2: the tasks of Genomic Benchmarks (tab:genomic_benchmarks) and of GUE, for five models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import numpy as np

from ...data import tasks
from ...evaluation.uncertainty import combined, extent, mean, standard_errors
from .. import paper_dna
from ..bench import Bench
from ..claims import Claim, Difference, Relation, paired
from ..figures import Figure
from ..genome_models import CADUCEUS, GENOME, MAMBA, available_tasks, genome_sizes, sequence_classifiers, tuned
from ..report import POINTS, Cell, Check, Report, Row, Table
from ..scored import Classified
from ..specs import PaperTable
from .genome_ppl import protocol

COLUMNS = {  # the models of the paper's columns; of several fine-tunings the first
    "Mamba AR": MAMBA,
    "Caduceus MLM": CADUCEUS,
    "Caduceus Plaid": tuned(CADUCEUS, "plaid", 1),
    "Caduceus SEDD": tuned(CADUCEUS, "sedd", 1),
    "Caduceus MDLM": tuned(CADUCEUS, "mdlm", 1),
}
Right = Mapping[str, np.ndarray]  # by task: (seeds, examples), whether the classifier named the right class
Runs = Mapping[str, Sequence[Classified]]  # by column


def genomics(bench: Bench) -> Report:
    """Every available task, learned from the models of `dna`."""
    known = available_tasks(bench)
    bench.need(list(COLUMNS.values()))
    runs: dict[str, Runs] = {
        task: {
            column: [run for one in bench.of_seeds(name) for run in sequence_classifiers(bench, one, task, split)]
            for column, name in COLUMNS.items()
        }
        for task, split in known.items()
    }
    printed = paper_dna.GENOMIC_BENCHMARKS
    tables = [
        Table(title, label, list(COLUMNS), rows)
        for title, label, rows in (
            (printed.title, printed.label, [_row(task, runs[task], known[task]) for task in known if _in_paper(task)]),
            (
                "GUE, test splits",
                "not in the paper",
                [
                    _row(task, runs[task], known[task], metric)
                    for task in known
                    if not _in_paper(task)
                    for metric in ("accuracy", "matthews")
                ],
            ),
        )
        if rows
    ]
    absent = [task for task in genome_sizes(bench.scale).tasks.names if task not in known]
    return bench.report(
        "genomics",
        printed.label,
        tables,
        checks=claims(runs, bench.seeds),
        protocol={**protocol(bench, (MAMBA, CADUCEUS)), **_protocol(bench, known)},
        notes=[
            *([f"not here, so not in the tables: {', '.join(absent)}."] if absent else []),
            *printed.remarks,
            f"The paper: {printed.protocol}.",
        ],
    )


def _in_paper(task: str) -> bool:
    return task.startswith("genomics/")


def _row(task: str, runs: Runs, split: str, metric: str = "accuracy") -> Row:
    record = tasks.task(task)
    ours: dict[str, Cell] = {
        column: over_seeds([result.test[metric] for result in results]) for column, results in runs.items()
    }
    printed = paper_dna.GENOMIC_BENCHMARKS.rows.get(record.title, {})
    name = record.title if _in_paper(task) else f"{record.title}, {metric}"
    return Row(name, printed, ours, "" if split == "official" else "splits are not the official ones")


def over_seeds(values: Sequence[float]) -> Figure:
    """Mean, and the largest minus the smallest, as the paper prints them."""
    return Figure(mean(values).value, extent(values), decimals=3)


def more_accurate(left: Right, right: Right) -> Difference:
    """How many points (x 100) of mean accuracy the left one has more.

    The error has two parts, both paired: over trainings, and over the examples of the test splits, which are the same
    for all of them.
    """
    gaps = [100 * (np.asarray(left[task], float) - right[task]) for task in left]
    each = np.mean([gap.mean(1) for gap in gaps], axis=0).tolist()
    over_examples = combined(*(float(standard_errors(gap.mean(0))) for gap in gaps)) / len(gaps)
    gap = paired(each, (over_examples, min(gap.shape[1] for gap in gaps) - 1), POINTS)
    shown = Figure(gap.value, gap.error)
    return replace(gap, words=f"difference of the means {shown}, paired by seed", counted="")


def _average(column: str) -> float:
    """The paper's mean accuracy of a model over its tasks, x 100."""
    cells = [row[column] for row in paper_dna.GENOMIC_BENCHMARKS.rows.values()]
    return 100 * mean([cell.value for cell in cells if isinstance(cell, Figure)]).value


def _claim(text: str, better: str, worse: str, relation: Relation = "better") -> Claim:
    printed = _average(better) - _average(worse)
    return Claim(text, better, worse, relation, more_accurate, paper=printed)


CLAIMS = (
    _claim(
        "MDLM fine-tuning does not lower the mean accuracy of Caduceus MLM", "Caduceus MDLM", "Caduceus MLM", "no worse"
    ),
    _claim("MDLM is better than Plaid", "Caduceus MDLM", "Caduceus Plaid"),
    _claim("SEDD is better than Plaid", "Caduceus SEDD", "Caduceus Plaid"),
    _claim("Caduceus MLM is better than Mamba AR", "Caduceus MLM", "Mamba AR"),
)


def claims(runs: Mapping[str, Runs], trainings: int = 1) -> list[Check]:
    """The paper's claims, on the mean accuracy of all available tasks.

    A seed is one classifier, and with several trainings of the models one of these: the mean of its classifiers.
    """
    right: dict[str, dict[str, np.ndarray]] = {column: {} for column in COLUMNS}
    for column in COLUMNS:
        for task, results in runs.items():
            each = np.array([[example == "1" for example in result.right] for result in results[column]])
            right[column][task] = each if trainings == 1 else each.reshape(trainings, -1, each.shape[1]).mean(1)
    return [claim.check(right) for claim in CLAIMS]


def _protocol(bench: Bench, known: Mapping[str, str]) -> dict[str, str]:
    sizes = genome_sizes(bench.scale).tasks
    cut = [tasks.task(task).title for task, split in known.items() if split != "official"]
    facts = {
        "models": "Mamba AR and Caduceus MLM as they were pre-trained, the others fine-tuned from that Caduceus (the "
        "first seed of `dna`)",
        "tasks": "all weights trained, mean of the hidden states (of Caduceus over both strands) and a linear layer; "
        "the best checkpoint by validation is tested once",
        "±": f"the largest minus the smallest of {len(sizes.seeds) * bench.seeds} seeds, as in the paper",
        "training examples": "all" if sizes.rows is None else f"at most {sizes.rows} of a task, evenly spaced",
        "judged examples": "all" if sizes.eval_rows is None else f"at most {sizes.eval_rows} of a split, evenly spaced",
        "settings": "learning rate and batch size by validation, for every task and model"
        if sizes.swept
        else f"{sizes.epochs:g} epochs, batch {sizes.batch_size}, lr {sizes.lr:g}, the same for all: no sweep",
        "Plaid": "a row is read at t = 0, without noise and without a first guess",
        "claims": "of the mean accuracy over all tasks here, in points; errors over seeds and over test examples",
    }
    if cut:
        facts["splits that are not official"] = (
            f"{', '.join(cut)}: cut out of the sequences at hand (task.split=random)"
        )
    return facts


GENOMICS = PaperTable("genomics", genomics, GENOME, "hg38", local=True, claims=CLAIMS, sides=COLUMNS)
