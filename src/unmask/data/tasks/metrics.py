"""How good predictions are, and how sure that number is: accuracy, F1, Matthews, Spearman, Pearson.

Values come from scikit-learn and scipy. Every metric has a standard error over the examples: of the accuracy p it is
sqrt(p (1 - p) / n), of the others the standard deviation of a bootstrap (REPLICATES sets of n examples drawn with
replacement, a fixed seed). Where a metric is not defined (constant predictions have no correlation, and no Matthews) it
is NaN, and null in JSON; scikit-learn says 0, as if it were chance level.
"""

from __future__ import annotations

import math

import numpy as np

from ...errors import UserError, optional
from .definition import Task

REPLICATES = 1000
CHUNK = 1 << 21  # numbers of a bootstrap held at once
SKLEARN, SCIPY = ((module, "a metric of this task", "tasks") for module in ("sklearn.metrics", "scipy.stats"))


def compute(task: Task, predictions: np.ndarray, labels: np.ndarray) -> dict[str, float]:
    """The metrics of a task, each with METRIC_stderr; predictions are (n,) ids or scores, or (n, n_outputs) outputs."""
    predicted, true = _checked(task, predictions, labels)
    out: dict[str, float] = {}
    for name in task.metrics:
        value, error = _correlation(name, predicted, true) if task.regression else _counted(name, predicted, true, task)
        out |= {name: value, f"{name}_stderr": error}
    return out


def check_packages(task: Task) -> None:
    """Raise if a package is missing that `compute` needs: before anything is trained, and not after it."""
    optional(*SCIPY if task.regression else SKLEARN)


def in_words(value: float, error: str = "") -> str:
    """A metric for people."""
    return "undefined (all predictions are the same)" if math.isnan(value) else f"{value:.4f}{error}"


def _checked(task: Task, predictions: np.ndarray, labels: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    predicted, true = np.asarray(predictions), np.asarray(labels)
    assert true.ndim == 1 and len(predicted) == len(true) > 0, "a prediction for every label"
    if not np.isfinite(predicted).all():
        raise UserError(f"some predictions for {task.name} are not finite: training diverged; lower train.lr")
    if predicted.ndim == 2:
        assert predicted.shape[1] == task.n_outputs, "one number for every class"
        predicted = predicted[:, 0] if task.regression else predicted.argmax(axis=1)
    if not np.isfinite(true).all() or (not task.regression and (true < 0).any()):
        raise UserError(f"some labels of {task.name} are hidden, as in a test split; evaluate on {task.evaluations[0]}")
    kind = np.float64 if task.regression else np.int64
    return predicted.astype(kind), true.astype(kind)


# ---- classes: everything is in the table of counts


def _counted(name: str, predicted: np.ndarray, true: np.ndarray, task: Task) -> tuple[float, float]:
    """A metric of classes from scikit-learn, with its standard error."""
    sk = optional(*SKLEARN)
    if name == "accuracy":
        p = float(sk.accuracy_score(true, predicted))
        return p, float(np.sqrt(p * (1 - p) / len(true)))
    if name == "f1":
        assert len(task.labels) == 2, "F1 is that of the second of two classes"
        value = float(sk.f1_score(true, predicted, zero_division=0.0))
    elif _alike(true) or _alike(predicted):
        return math.nan, math.nan
    else:
        value = float(sk.matthews_corrcoef(true, predicted))
    n = len(task.labels)
    assert max(true.max(), predicted.max()) < n, "ids of classes"
    table = np.bincount(true * n + predicted, minlength=n * n)  # (n * n,)
    by_counts = {"f1": f1_of, "matthews": matthews_of}[name]
    assert np.isclose(by_counts(table.reshape(1, n, n))[0], value, atol=1e-9), "one metric, two formulas"
    drawn = _stream(name).multinomial(len(true), table / len(true), REPLICATES)  # n draws of examples, as counts
    return value, float(by_counts(drawn.reshape(-1, n, n)).std(ddof=1))


def f1_of(tables: np.ndarray) -> np.ndarray:
    """(R,) F1 of class 1 for (R, 2, 2) counts [true, predicted]."""
    hits = tables[:, 1, 1].astype(np.float64)
    return _ratio(2 * hits, 2 * hits + tables[:, 0, 1] + tables[:, 1, 0])


def matthews_of(tables: np.ndarray) -> np.ndarray:
    """(R,) Matthews' correlation for (R, n, n) counts [true, predicted]: the correlation of one-hot vectors."""
    counts = tables.astype(np.float64)
    true, predicted, all_ = counts.sum(axis=2), counts.sum(axis=1), counts.sum(axis=(1, 2))
    together = np.trace(counts, axis1=1, axis2=2) * all_ - (true * predicted).sum(axis=1)
    variances = (all_**2 - (true**2).sum(axis=1)) * (all_**2 - (predicted**2).sum(axis=1))
    return _ratio(together, np.sqrt(variances))


# ---- scores


def _correlation(name: str, predicted: np.ndarray, true: np.ndarray) -> tuple[float, float]:
    """A correlation from scipy, with its standard error."""
    stats = optional(*SCIPY)
    if _alike(predicted) or _alike(true):
        return math.nan, math.nan
    value = float({"spearman": stats.spearmanr, "pearson": stats.pearsonr}[name](predicted, true).statistic)
    n, stream, correlations = len(true), _stream(name), []
    for start in range(0, REPLICATES, step := max(1, CHUNK // n)):
        rows = stream.integers(0, n, (min(step, REPLICATES - start), n))
        pair = predicted[rows], true[rows]
        if name == "spearman":
            pair = stats.rankdata(pair[0], axis=1), stats.rankdata(pair[1], axis=1)
        correlations.append(pearson_of(*pair))
    return value, float(np.concatenate(correlations).std(ddof=1))


def pearson_of(x: np.ndarray, y: np.ndarray) -> np.ndarray:
    """(R,) correlations of the rows of two (R, n) arrays."""
    x, y = x - x.mean(axis=1, keepdims=True), y - y.mean(axis=1, keepdims=True)
    return _ratio((x * y).sum(axis=1), np.sqrt((x * x).sum(axis=1) * (y * y).sum(axis=1)))


def _alike(values: np.ndarray) -> bool:
    return bool((values == values[0]).all())


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """A quotient, 0 where there is nothing to divide by."""
    return np.divide(above, below, out=np.zeros_like(above, dtype=np.float64), where=below > 0)


def _stream(name: str) -> np.random.Generator:
    """The same numbers every time, a separate stream for each metric."""
    from ...process.keys import Keys

    return Keys(0).stream(f"bootstrap/{name}")
