"""Metrics of tasks against hand-made values, sums by brute force, scikit-learn and scipy, and a plain bootstrap."""

from __future__ import annotations

import math
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.data import tasks
from unmask.data.tasks import metrics
from unmask.types import UserError

SST2, COLA, QQP, STSB, MNLI = (tasks.task(f"glue/{name}") for name in ("sst2", "cola", "qqp", "stsb", "mnli"))
CLASSES = st.lists(st.tuples(st.integers(0, 1), st.integers(0, 1)), min_size=1, max_size=30)
SCORES = st.lists(st.tuples(st.integers(0, 4), st.integers(0, 4)), min_size=2, max_size=30)


def confusion(pairs) -> tuple[int, int, int, int]:
    """Hits, false alarms, misses, correct rejections."""
    count = {key: sum(pair == key for pair in pairs) for key in ((1, 1), (1, 0), (0, 1), (0, 0))}
    return count[1, 1], count[1, 0], count[0, 1], count[0, 0]


def split(pairs) -> tuple[np.ndarray, np.ndarray]:
    return np.array([p for p, _ in pairs]), np.array([y for _, y in pairs])


def midranks(values) -> list[float]:
    """The mean place of each value among all, ties sharing theirs."""
    return [sum(v < x for v in values) + (sum(v == x for v in values) + 1) / 2 for x in values]


def covariance_ratio(x, y) -> float:
    mx, my = sum(x) / len(x), sum(y) / len(y)
    above = sum((a - mx) * (b - my) for a, b in zip(x, y, strict=True))
    below = math.sqrt(sum((a - mx) ** 2 for a in x) * sum((b - my) ** 2 for b in y))
    return above / below if below > 1e-12 else math.nan


def test_by_hand():
    predicted, true = np.array([1, 1, 1, 0, 0, 0, 1, 0]), np.array([1, 1, 0, 0, 0, 1, 1, 0])
    found = metrics.compute(QQP, predicted, true)  # 3 hits, 1 false alarm, 1 miss, 3 right rejections
    assert found["f1"] == pytest.approx(2 * 3 / (2 * 3 + 1 + 1)) and found["accuracy"] == 0.75
    assert found["accuracy_stderr"] == pytest.approx(math.sqrt(0.75 * 0.25 / 8))
    assert metrics.compute(COLA, predicted, true)["matthews"] == pytest.approx((9 - 1) / 16)
    assert set(found) == {"f1", "f1_stderr", "accuracy", "accuracy_stderr"}
    scores = metrics.compute(STSB, np.array([1.0, 2.0, 3.0, 4.0]), np.array([0.0, 5.0, 4.0, 5.0]))
    # ranks 1 2 3 4 and 1 3.5 2 3.5: sums of products 3, of squares 5 and 4.5
    assert scores["spearman"] == pytest.approx(3 / math.sqrt(5 * 4.5))


@settings(max_examples=50)
@given(CLASSES)
def test_classes_against_counts(pairs):
    tp, fp, fn, tn = confusion(pairs)
    below = math.sqrt((tp + fp) * (tp + fn) * (tn + fp) * (tn + fn))
    assert metrics.compute(COLA, *split(pairs))["matthews"] == pytest.approx(
        (tp * tn - fp * fn) / below if below else math.nan, nan_ok=True
    )
    found = metrics.compute(QQP, *split(pairs))
    assert found["f1"] == pytest.approx(2 * tp / (2 * tp + fp + fn) if tp + fp + fn else 0.0)
    assert found["accuracy"] == pytest.approx((tp + tn) / len(pairs))


@settings(max_examples=50)
@given(SCORES)
def test_correlations_against_sums(pairs):
    predicted, true = split(pairs)
    found = metrics.compute(STSB, predicted, true)
    assert found["pearson"] == pytest.approx(covariance_ratio(predicted, true), abs=1e-9, nan_ok=True)
    ranks = covariance_ratio(midranks(predicted), midranks(true))
    assert found["spearman"] == pytest.approx(ranks, abs=1e-9, nan_ok=True)


def test_against_the_packages():
    from scipy import stats
    from sklearn.metrics import accuracy_score, f1_score, matthews_corrcoef

    rng = np.random.default_rng(0)
    true = rng.integers(0, 2, 500)
    predicted = np.where(rng.random(500) < 0.3, 1 - true, true)
    assert metrics.compute(QQP, predicted, true)["f1"] == f1_score(true, predicted)
    assert metrics.compute(COLA, predicted, true)["matthews"] == matthews_corrcoef(true, predicted)
    three = rng.integers(0, 3, 500)
    assert metrics.compute(MNLI, three, rng.permutation(three))["accuracy"] < 0.5
    assert metrics.compute(MNLI, three, three) == {"accuracy": 1.0, "accuracy_stderr": 0.0}
    assert metrics.compute(SST2, predicted, true)["accuracy"] == accuracy_score(true, predicted)
    scores = np.round(rng.random(500) * 5, 1)
    noisy = scores + rng.normal(size=500)
    found = metrics.compute(STSB, noisy.astype(np.float32), scores)
    assert found["spearman"] == stats.spearmanr(noisy.astype(np.float32), scores).statistic
    assert found["pearson"] == pytest.approx(stats.pearsonr(noisy, scores).statistic, abs=1e-6)


def test_matthews_of_three_classes():
    from sklearn.metrics import confusion_matrix, matthews_corrcoef

    rng = np.random.default_rng(1)
    true = rng.integers(0, 3, 200)
    predicted = np.where(rng.random(200) < 0.5, rng.integers(0, 3, 200), true)
    table = confusion_matrix(true, predicted)
    assert metrics.matthews_of(table[None])[0] == pytest.approx(matthews_corrcoef(true, predicted))


@pytest.mark.parametrize(("task", "metric"), [(QQP, "f1"), (COLA, "matthews"), (STSB, "spearman"), (STSB, "pearson")])
def test_standard_errors_are_those_of_a_plain_bootstrap(task, metric):
    """Examples drawn one by one with replacement, each set judged by another formula for the same metric."""
    from scipy import stats

    judge = {
        "f1": lambda p, y: 2 * (p * y).sum() / (p.sum() + y.sum()),
        "matthews": lambda p, y: np.corrcoef(p, y)[0, 1],  # of 0 and 1 it is Pearson's
        "spearman": lambda p, y: np.corrcoef(stats.rankdata(p), stats.rankdata(y))[0, 1],
        "pearson": lambda p, y: np.corrcoef(p, y)[0, 1],
    }[metric]
    rng = np.random.default_rng(2)
    if task.regression:
        true = np.round(rng.random(150) * 5)
        predicted = true + rng.normal(size=150) * 2
    else:
        true = (rng.random(150) < 0.7).astype(int)
        predicted = np.where(rng.random(150) < 0.2, 1 - true, true)
    drawn = [judge(predicted[rows], true[rows]) for rows in rng.integers(0, 150, (2000, 150))]
    error = metrics.compute(task, predicted, true)[f"{metric}_stderr"]
    # a standard deviation from n draws is off by 1/sqrt(2 n): 2.7% for 2000 and our 1000 together
    assert error == pytest.approx(np.std(drawn, ddof=1), rel=4 * 0.027)
    assert metrics.compute(task, predicted, true)[f"{metric}_stderr"] == error, "the seed is fixed"


def test_chunks_change_nothing(monkeypatch):
    rng = np.random.default_rng(3)
    true, predicted = rng.random(40), rng.random(40)
    whole = metrics.compute(STSB, predicted, true)
    monkeypatch.setattr(metrics, "CHUNK", 7 * 40)
    assert metrics.compute(STSB, predicted, true) == pytest.approx(whole, rel=1e-12)


def test_outputs_of_a_network_are_taken_too():
    outputs = np.array([[0.1, 0.9], [2.0, -1.0], [0.0, 3.0]])
    assert metrics.compute(SST2, outputs, np.array([1, 0, 0]))["accuracy"] == pytest.approx(2 / 3)
    scores = np.array([[1.0], [2.0], [4.0]])
    assert metrics.compute(STSB, scores, np.array([0.0, 1.0, 5.0], dtype=np.float32))["spearman"] == pytest.approx(1.0)


def test_predictions_that_are_all_alike(recwarn):
    alike, true = np.ones(4), np.array([0.0, 1.0, 2.0, 3.0])
    assert all(math.isnan(value) for value in metrics.compute(STSB, alike, true).values())
    ids = np.array([0, 1, 1, 0])
    constant = metrics.compute(COLA, np.zeros(4, dtype=int), ids)
    assert math.isnan(constant["matthews"]) and math.isnan(constant["matthews_stderr"])
    assert metrics.in_words(constant["matthews"], " ± nan") == "undefined (all predictions are the same)"
    assert metrics.in_words(0.25, " ± 0.1") == "0.2500 ± 0.1"
    assert metrics.compute(QQP, np.zeros(4, dtype=int), ids)["f1"] == 0.0
    assert not [w for w in recwarn if not issubclass(w.category, DeprecationWarning)]


def test_what_cannot_be_judged():
    with pytest.raises(UserError, match=r"glue/stsb are not finite: training diverged; lower train\.lr"):
        metrics.compute(STSB, np.array([np.nan, 1.0]), np.array([1.0, 2.0]))
    with pytest.raises(UserError, match=r"labels of glue/sst2 are hidden.*evaluate on dev"):
        metrics.compute(SST2, np.array([0, 1]), np.array([-1, -1]))
    with pytest.raises(UserError, match=r"labels of glue/stsb are hidden"):
        metrics.compute(STSB, np.array([0.0, 1.0]), np.array([np.nan, 1.0]))


@pytest.mark.parametrize(("module", "task"), [("sklearn", SST2), ("scipy", STSB)])
def test_without_the_package(monkeypatch, module, task):
    for name in [name for name in sys.modules if name.partition(".")[0] == module]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, module, None)
    with pytest.raises(UserError, match=rf"needs the package {module}; install it with: .* -m pip install .*\[tasks\]"):
        metrics.compute(task, np.array([0, 1]), np.array([0, 1]))
    with pytest.raises(UserError, match=rf"needs the package {module}; install it with"):
        metrics.check_packages(task)
