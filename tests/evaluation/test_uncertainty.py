"""Means, errors and spreads against scipy and against simulation."""

from __future__ import annotations

import math

import numpy as np
import pytest
from scipy import stats

from unmask.evaluation.uncertainty import (
    Statistic,
    combined,
    deviation,
    extent,
    freedom_of,
    mean,
    rate,
    rate_variance,
    ratio,
    standard_errors,
    student,
)

VALUES = np.random.default_rng(0).gamma(2.0, 3.0, size=23)


def test_mean_and_deviation_are_those_of_scipy():
    assert mean(VALUES.tolist()) == pytest.approx((VALUES.mean(), stats.sem(VALUES)), rel=1e-12)
    assert deviation(VALUES.tolist()) == pytest.approx(stats.tstd(VALUES), rel=1e-12)
    assert extent(VALUES.tolist()) == VALUES.max() - VALUES.min()


def test_one_value_has_no_error():
    assert mean([3.0]) == (3.0, None)
    assert deviation([3.0]) is None and extent([3.0]) is None
    assert rate(np.array([6.0]), np.array([2.0])) == (3.0, None)


def test_errors_along_the_last_axis():
    table = np.random.default_rng(1).normal(size=(4, 7))
    np.testing.assert_allclose(standard_errors(table), stats.sem(table, axis=1), rtol=1e-12)
    assert standard_errors(table[0]) == pytest.approx(stats.sem(table[0]), rel=1e-12)


def test_a_rate_of_texts_of_one_length_is_a_mean():
    found = rate(VALUES, np.full(23, 5.0))
    assert found == pytest.approx((VALUES.mean() / 5, stats.sem(VALUES) / 5), rel=1e-12)


def test_a_rate_agrees_with_the_jackknife():
    rng = np.random.default_rng(2)
    sizes = rng.integers(1, 30, 500).astype(float)
    amounts = sizes * rng.normal(2.0, 0.3, 500)
    found = rate(amounts, sizes)
    without = (amounts.sum() - amounts) / (sizes.sum() - sizes)
    jackknife = math.sqrt(499 / 500 * ((without - without.mean()) ** 2).sum())
    assert found.value == pytest.approx(amounts.sum() / sizes.sum(), rel=1e-12)
    assert found.stderr == pytest.approx(jackknife, rel=0.02)
    assert rate_variance(amounts, sizes) == pytest.approx((found.stderr * sizes.sum()) ** 2, rel=1e-12)


def test_a_ratio_of_two_figures_has_the_error_of_a_simulation():
    over, under = Statistic(6.0, 0.12), Statistic(2.0, 0.03)
    rng = np.random.default_rng(3)
    drawn = rng.normal(6.0, 0.12, 200_000) / rng.normal(2.0, 0.03, 200_000)
    found = ratio(over, under)
    assert found.value == 3.0 and found.stderr == pytest.approx(drawn.std(), rel=0.02)
    assert ratio(Statistic(-6.0, 0.12), under).stderr == pytest.approx(found.stderr)
    assert ratio(Statistic(6.0), Statistic(2.0)) == (3.0, None)


def test_independent_errors_add_in_squares():
    assert combined(3.0, None, 4.0) == 5.0
    assert combined(None) == 0.0


@pytest.mark.parametrize("freedom", [1, 1.3, 2, 4.5, 30, 1023, 9e5])
def test_quantiles_of_students_law(freedom):
    for probability in (0.5, 0.5001, 0.8, 0.975, 0.9999, 0.025):
        assert student(probability, freedom) == pytest.approx(stats.t.ppf(probability, freedom), rel=1e-8, abs=1e-12)
    assert student(0.975, math.inf) == pytest.approx(stats.norm.ppf(0.975))


def test_freedom_of_errors_that_add_up_is_welchs():
    first, second = np.random.default_rng(0).normal(size=9), np.arange(5.0)
    found = freedom_of((stats.sem(first), len(first) - 1), (stats.sem(second), len(second) - 1))
    assert found == pytest.approx(stats.ttest_ind(first, second, equal_var=False).df)
    assert freedom_of((0.0, 3), (None, 2)) == math.inf and freedom_of((1e-200, 3), (0.0, 2)) == pytest.approx(3)
