"""Section 5.1: GLUE (tbl:glue), and BERT as a generator before and after MDLM fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from statistics import mean, stdev

from ...data import tasks
from ...evaluation.likelihood import baselines
from ...training.adapt import summary
from ...types import UserError
from .. import paper
from ..bench import Bench
from ..berts import BERTS, CAUSAL, PLAIN, TUNED, BertBench
from ..report import Cell, Check, Figure, Report, Row, Table
from .perplexity import LOWER, compared

FIVE = ("glue/sst2", "glue/cola", "glue/stsb", "glue/mrpc", "glue/rte")  # complete in the project's own data
Values = Mapping[str, Sequence[float]]  # number of the table -> x 100, one a seed


def bert(bench: Bench) -> Report:
    """Perplexities of the three models, then GLUE for each."""
    assert isinstance(bench, BertBench)
    known = available(FIVE, bench.local)
    bench.need(list(BERTS.values()))
    limit = bench.scored_rows
    scored = {row: bench.score(name, limit=limit) for row, name in BERTS.items()}
    simple = baselines(bench.rows("train"), bench.rows(), bench.data.tokenizer.vocab.size)
    printed = paper.BERT_PPL
    rows = [Row("unigram model", {}, {paper.PPL: Figure(math.exp(simple["unigram"]))}, "of the training text, add-one")]
    rows += [Row(row, printed.rows[row], {paper.PPL: own.perplexity}) for row, own in scored.items()]
    before, after, causal = (scored[row] for row in ("BERT", "BERT + MDLM-FT", "AR"))
    checks = [
        compared("MDLM fine-tuning lowers the bound of BERT", after, before),
        compared("AR is better than BERT by the bound of MDLM", causal, before),
        compared("AR is better than BERT + MDLM-FT", causal, after),
    ]
    values = {row: learned(bench, name, known) for row, name in BERTS.items()}
    return bench.report(
        "bert",
        f"{printed.label}; {paper.GLUE.label}",
        [Table(printed.title, printed.label, printed.columns, rows), glue_table(values, paper.GLUE.rows)],
        checks=[*checks, *glue_checks(values)],
        protocol={
            "test_rows": min(len(bench.rows()), limit or len(bench.rows())),
            "±": "perplexity: standard error over draws, AR is exact",
            **task_protocol(bench),
        },
        notes=[*printed.remarks, *paper.GLUE.remarks, f"{LOWER}."],
    )


def glue(bench: Bench) -> Report:
    """GLUE for the three models: all tasks whose files are there."""
    assert isinstance(bench, BertBench)
    known = available([task.name for task in tasks.glue()], bench.local)
    bench.need([CAUSAL, PLAIN, TUNED])
    values = {row: learned(bench, name, known) for row, name in BERTS.items()}
    absent = [task.title for task in tasks.glue() if task.name not in known]
    notes = [f"not here, so not in the table: {', '.join(absent)}."] if absent else []
    return bench.report(
        "glue",
        paper.GLUE.label,
        [glue_table(values, paper.GLUE.rows)],
        checks=glue_checks(values),
        protocol=task_protocol(bench),
        notes=[*notes, *paper.GLUE.remarks],
    )


def available(names: Sequence[str], local: str | None) -> list[str]:
    """The tasks whose training and dev files are there; none at all is an error, before anything is trained."""
    found, first = [], ""
    for name in names:
        task = tasks.task(name)
        try:
            for split in ("train", *task.evaluations):
                tasks.load(task, split, local)
        except tasks.MissingTaskData as error:  # a file that is there and damaged is no reason to go on without it
            first = first or str(error)
            continue
        found.append(name)
    if not found:
        raise UserError(f"no task of GLUE is here: {first}")
    return found


def learned(bench: BertBench, name: str, known: Sequence[str]) -> dict[str, list[float]]:
    """The numbers of all tasks for a model, after the last epoch as run_glue reports them."""
    return {key: own for task in known for key, own in numbers(bench.classifiers(name, task), task).items()}


def numbers(results: Sequence[object], name: str) -> dict[str, list[float]]:
    """By the name of the table's column: the metric x 100 of every seed."""
    task = tasks.task(name)
    found = summary(results, task.metric)  # type: ignore[arg-type]
    return {tasks.number(task, split): [100 * value for value in own["values"]] for split, own in found.items()}


def over_seeds(values: Sequence[float]) -> Figure:
    """Mean and the standard deviation over seeds."""
    return Figure(mean(values), stdev(values) if len(values) > 1 else None)


def glue_table(
    values: Mapping[str, Values], printed: Mapping[str, Mapping[str, Figure | str]], title: str = ""
) -> Table:
    """Models by tasks; the average is of the columns here, which is the paper's where all nine are."""
    columns = [column for column in paper.GLUE.columns if any(column in own for own in values.values())]
    rows = []
    for row, own in values.items():
        cells: dict[str, Cell] = {column: over_seeds(own[column]) for column in columns if column in own}
        cells[AVERAGE] = over_seeds(averages(own))
        theirs = {column: printed[row][column] for column in columns} if row in printed else {}
        if row in printed:
            theirs[AVERAGE] = Figure(mean(_value(printed[row][column]) for column in columns), decimals=2)
        rows.append(Row(row, theirs, cells))
    return Table(title or paper.GLUE.title, paper.GLUE.label, [*columns, AVERAGE], rows)


AVERAGE = "mean of these"


def _value(figure: Figure | str) -> float:
    assert isinstance(figure, Figure)
    return figure.value


def averages(values: Values) -> list[float]:
    """The mean over tasks, one a seed; of all nine it is the paper's."""
    return [mean(each) for each in zip(*values.values(), strict=True)]


def gap(better: Values, worse: Values) -> Figure:
    """The difference of the means over tasks, paired by seed, with its standard error."""
    each = [a - b for a, b in zip(averages(better), averages(worse), strict=True)]
    return Figure(mean(each), stdev(each) / math.sqrt(len(each)) if len(each) > 1 else None)


def glue_checks(values: Mapping[str, Values]) -> list[Check]:
    """The paper's claims on GLUE."""
    kept = gap(values["BERT + MDLM-FT"], values["BERT"])
    best = gap(values["BERT"], values["AR"])
    return [
        sided("BERT is better than AR on GLUE", best),
        sided("MDLM fine-tuning does not lower the mean of GLUE", kept, at_least=True),
    ]


MARGIN = 1.0  # points of GLUE that "no loss" may hide


def sided(claim: str, difference: Figure, sigmas: float = 2.0, at_least: bool = False) -> Check:
    """Whether a difference is above 0 by more than so many errors.

    `at_least`: whether it is not surely below 0, and surely not by MARGIN.
    """
    shown = f"difference of the means {difference}, paired by seed"
    if difference.error is None:
        return Check(claim, None, f"{shown}: one seed has no error")
    low, high = (difference.value + side * sigmas * difference.error for side in (-1, 1))
    if at_least and high >= 0 and low > -MARGIN:
        return Check(claim, True, f"{shown}: less than {MARGIN:g} below 0 by {sigmas:g} errors")
    if low <= 0 <= high:
        return Check(claim, None, f"{shown}: within {sigmas:g} errors, not decided")
    return Check(claim, difference.value > 0, shown)


def task_protocol(bench: BertBench) -> dict[str, str]:
    """How the numbers of GLUE came about."""
    own = bench.task_sizes
    return {
        "GLUE": f"dev sets, {own.epochs:g} epochs, lr {own.lr:g} with linear decay, batch 16, at most 128 tokens, "
        "metric after the last epoch; ± is the standard deviation over seeds; x 100",
        "training examples": "all" if own.rows is None else f"at most {own.rows} of a task, evenly spaced",
        "seeds": f"{own.seeds} classifiers a task and model",
        "pooling": "first token, dense and tanh; of the causal model the last token",
        "MRPC": "where the official dev ids are missing, every 10th row of the training file is dev",
    }
