"""Section 5.1: GLUE (tbl:glue), and BERT as a generator before and after MDLM fine-tuning."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ...data import tasks
from ...evaluation.likelihood import baselines
from ...evaluation.uncertainty import deviation, mean
from ...types import UserError
from .. import paper
from ..bench import Bench
from ..bert_models import BERT, BERTS, CAUSAL, FIVE, PLAIN, TUNED, GlueSizes, glue_classifiers, glue_sizes, scored_rows
from ..claims import Claim, Difference, paired_by_seed
from ..figures import Figure
from ..report import Cell, Report, Row, Table
from ..scored import Classified, mean_perplexity
from ..specs import PaperTable
from .perplexity import LOWER, errors

AVERAGE = "mean of these"
Values = Mapping[str, Sequence[float]]  # number of the table -> x 100, one per seed
BOUND_CLAIMS = tuple(
    Claim(text, less, more, paper=paper.log_ratio(paper.BERT_PPL, less, more))
    for text, less, more in (
        ("MDLM fine-tuning lowers the bound of BERT", "BERT + MDLM-FT", "BERT"),
        ("AR is better than BERT by the bound of MDLM", "AR", "BERT"),
        ("AR is better than BERT + MDLM-FT", "AR", "BERT + MDLM-FT"),
    )
)


def bert(bench: Bench) -> Report:
    """Perplexities of the three models, then GLUE for each."""
    known = available(FIVE, bench.local)
    bench.need(list(BERTS.values()))
    limit, sizes = scored_rows(bench.scale), glue_sizes(bench.scale)
    scored = {row: bench.scores(name, limit=limit) for row, name in BERTS.items()}
    simple = baselines(bench.rows("train"), bench.rows(), bench.data.tokenizer.vocab.size)
    printed = paper.BERT_PPL
    rows = [Row("unigram model", {}, {paper.PPL: Figure(math.exp(simple["unigram"]))}, "of the training text, add-one")]
    rows += [Row(row, printed.rows[row], {paper.PPL: mean_perplexity(model)}) for row, model in scored.items()]
    values = {row: learned(bench, name, known, sizes) for row, name in BERTS.items()}
    return bench.report(
        "bert",
        f"{printed.label}; {paper.GLUE.label}",
        [Table(printed.title, printed.label, printed.columns, rows), glue_table(values, paper.GLUE.rows)],
        checks=[claim.check(scored) for claim in BOUND_CLAIMS] + [claim.check(values) for claim in GLUE_CLAIMS],
        protocol={
            "test_rows": min(len(bench.rows()), limit or len(bench.rows())),
            "±": errors(bench, "perplexity: standard error over draws, AR is exact"),
            **task_protocol(bench, sizes),
        },
        notes=[*printed.remarks, *paper.GLUE.remarks, *([f"{LOWER}."] if bench.seeds == 1 else [])],
    )


def glue(bench: Bench) -> Report:
    """GLUE for the three models: all tasks whose files are available."""
    sizes = glue_sizes(bench.scale)
    known = available([task.name for task in tasks.glue()], bench.local)
    bench.need([CAUSAL, PLAIN, TUNED])
    values = {row: learned(bench, name, known, sizes) for row, name in BERTS.items()}
    absent = [task.title for task in tasks.glue() if task.name not in known]
    notes = [f"not here, so not in the table: {', '.join(absent)}."] if absent else []
    return bench.report(
        "glue",
        paper.GLUE.label,
        [glue_table(values, paper.GLUE.rows)],
        checks=[claim.check(values) for claim in GLUE_CLAIMS],
        protocol=task_protocol(bench, sizes),
        notes=[*notes, *paper.GLUE.remarks],
    )


def available(names: Sequence[str], local: str | None) -> list[str]:
    """The tasks whose training and dev files are available; raises before anything is trained if there are none."""
    complete, first = [], ""
    for name in names:
        task = tasks.task(name)
        try:
            for split in ("train", *task.evaluations):
                tasks.load(task, split, local)
        except tasks.MissingTaskData as error:  # a file that exists and is damaged is no reason to continue without it
            first = first or str(error)
            continue
        complete.append(name)
    if not complete:
        raise UserError(f"no task of GLUE is available: {first}")
    return complete


def learned(bench: Bench, name: str, known: Sequence[str], sizes: GlueSizes) -> dict[str, list[float]]:
    """The numbers of all tasks for a model, after the last epoch as run_glue reports them.

    One a classifier; with several trainings of the model one a training, the mean of its classifiers.
    """
    each: list[dict[str, list[float]]] = []
    for training, one in enumerate(bench.of_seeds(name)):
        each.append({})
        for task in known:
            each[-1] |= numbers(glue_classifiers(bench, one, task, sizes, training), task)
    if len(each) == 1:
        return each[0]
    return {column: [mean(values[column]).value for values in each] for column in each[0]}


def numbers(results: Sequence[Classified], name: str) -> dict[str, list[float]]:
    """By the name of the table's column: the metric x 100 of every seed; as in run_glue 0 where it is not defined."""
    task = tasks.task(name)
    metrics = {split: [result.last[split][task.metric] for result in results] for split in task.evaluations}
    return {
        tasks.number(task, split): [0.0 if math.isnan(value) else 100 * value for value in values]
        for split, values in metrics.items()
    }


def over_seeds(values: Sequence[float]) -> Figure:
    """Mean and the standard deviation over seeds."""
    return Figure(mean(values).value, deviation(values))


def glue_table(
    values: Mapping[str, Values], printed: Mapping[str, Mapping[str, Figure | str]], title: str = ""
) -> Table:
    """Models by tasks; the average is over these columns, as in the paper if all nine are there."""
    columns = [column for column in paper.GLUE.columns if any(column in numbers for numbers in values.values())]
    rows = []
    for row, numbers in values.items():
        cells: dict[str, Cell] = {column: over_seeds(numbers[column]) for column in columns if column in numbers}
        cells[AVERAGE] = over_seeds(averages(numbers))
        theirs = {column: printed[row][column] for column in columns} if row in printed else {}
        if row in printed:
            theirs[AVERAGE] = Figure(mean([_value(printed[row][column]) for column in columns]).value, decimals=2)
        rows.append(Row(row, theirs, cells))
    return Table(title or paper.GLUE.title, paper.GLUE.label, [*columns, AVERAGE], rows)


def _value(figure: Figure | str) -> float:
    assert isinstance(figure, Figure)
    return figure.value


def averages(values: Values) -> list[float]:
    """The mean over tasks, one per seed; as in the paper if there are all nine."""
    return [mean(each).value for each in zip(*values.values(), strict=True)]


def higher_mean(left: Values, right: Values) -> Difference:
    """The difference of the means over tasks, paired by seed."""
    each = [a - b for a, b in zip(averages(left), averages(right), strict=True)]
    return paired_by_seed(Figure(*mean(each)), len(each))


def _gain(better: str, worse: str) -> float:
    """The paper's difference of the averages."""
    return _value(paper.GLUE.rows[better]["Avg"]) - _value(paper.GLUE.rows[worse]["Avg"])


GLUE_CLAIMS = (
    Claim("BERT is better than AR on GLUE", "BERT", "AR", measure=higher_mean, paper=_gain("BERT", "AR")),
    Claim(
        "MDLM fine-tuning does not lower the mean of GLUE",
        "BERT + MDLM-FT",
        "BERT",
        "no worse",
        higher_mean,
        paper=_gain("BERT + MDLM-FT", "BERT"),
    ),
)


def task_protocol(bench: Bench, sizes: GlueSizes) -> dict[str, str]:
    """How the numbers of GLUE were obtained."""
    trained = f" of each of {bench.seeds} trainings, whose means count" if bench.seeds > 1 else ""
    return {
        "GLUE": f"dev sets, {sizes.epochs:g} epochs, lr {sizes.lr:g} with linear decay, batch 16, at most 128 tokens, "
        "metric after the last epoch; ± is the standard deviation over seeds; x 100",
        "training examples": "all" if sizes.rows is None else f"at most {sizes.rows} of a task, evenly spaced",
        "seeds": f"{sizes.seeds} classifiers a task and model{trained}",
        "pooling": "first token, dense and tanh; of the causal model the last token",
        "MRPC": "where the official dev ids are missing, every 10th row of the training file is dev",
    }


BERT_TABLE = PaperTable("bert", bert, BERT, "c4", local=True, claims=(*BOUND_CLAIMS, *GLUE_CLAIMS), sides=BERTS)
GLUE = PaperTable("glue", glue, BERT, "c4", local=True, claims=GLUE_CLAIMS, sides=BERTS)
