"""Schedules against autograd and the paper's formulas; times against counting, statistics and exact integrals."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from scipy import stats

from oracles.enumeration import ALPHAS, SCHEDULES, continuous_nodes
from unmask.process.keys import Keys
from unmask.process.schedule import (
    ContinuousTime,
    Cosine,
    DiscreteTime,
    Geometric,
    Linear,
    Polynomial,
    Schedule,
    reveal_chance,
    strata,
)

each_schedule = pytest.mark.parametrize("name", SCHEDULES)
any_schedule = st.one_of(
    st.builds(Polynomial, st.floats(0.3, 4), st.sampled_from([0.0, 1e-4, 1e-2, 0.3])),
    st.builds(Cosine, st.sampled_from([1, 2]), st.sampled_from([0.0, 1e-4, 1e-2, 0.3])),
    st.builds(Linear, st.floats(1, 100)),
    st.builds(Geometric, st.floats(1e-5, 0.5), st.floats(1, 50)),
)


def interior(schedule: Schedule, n: int = 200) -> torch.Tensor:
    """Times at which alpha is spread evenly over the schedule's own range, ends left out."""
    low, high = (float(schedule.alpha(torch.tensor(t, dtype=torch.float64))) for t in (1.0, 0.0))
    return schedule.inverse(low + (high - low) * (torch.arange(n, dtype=torch.float64) + 0.5) / n)


def derivative(function, t: torch.Tensor) -> torch.Tensor:
    t = t.clone().requires_grad_()
    return torch.autograd.grad(function(t).sum(), t)[0]


@each_schedule
def test_alpha_and_sigma_are_the_papers(name):
    schedule = SCHEDULES[name]
    for t in (0.0, 1e-9, 0.1, 0.37, 0.999):
        truth = ALPHAS[name](t)
        at = torch.tensor(t, dtype=torch.float64)
        assert float(schedule.alpha(at)) == pytest.approx(truth, abs=1e-15)
        if truth > 0:
            assert float(schedule.sigma(at)) == pytest.approx(-math.log(truth), rel=1e-12, abs=1e-15)


@each_schedule
def test_ends(name):
    ends = SCHEDULES[name].alpha(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    assert ends == pytest.approx([ALPHAS[name](0.0), ALPHAS[name](1.0)], abs=1e-15)
    keep = SCHEDULES[name].keep(torch.tensor([0.0, 1.0], dtype=torch.float64)).tolist()
    assert keep[1] == 0.0  # generation starts from nothing but masks, whatever alpha(1) is
    assert keep[0] == (1.0 if ends[0] == 1 else pytest.approx((ends[0] - ends[1]) / (1 - ends[1]), abs=1e-14))


def check_calculus(schedule: Schedule) -> None:
    t = interior(schedule)
    slope = derivative(schedule.alpha, t)
    torch.testing.assert_close(schedule.dalpha(t), slope, rtol=1e-10, atol=1e-14)
    assert (slope < 0).all()
    torch.testing.assert_close(schedule.rate(t), -slope / (1 - schedule.alpha(t)), rtol=1e-9, atol=1e-12)
    # the weight must be that of the schedule that actually masks
    chance = derivative(schedule.keep, t)
    torch.testing.assert_close(schedule.rate(t), -chance / (1 - schedule.keep(t)), rtol=1e-8, atol=1e-12)
    torch.testing.assert_close(derivative(schedule.sigma, t), -slope / schedule.alpha(t), rtol=1e-9, atol=1e-12)


def check_inverse(schedule: Schedule) -> None:
    t = interior(schedule)
    alpha = schedule.alpha(t)
    torch.testing.assert_close(schedule.inverse(alpha), t, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(schedule.alpha(schedule.inverse(alpha)), alpha, rtol=0, atol=1e-14)
    ends = torch.tensor([0.0, 1.0], dtype=torch.float64)
    if float(schedule.alpha(ends[1])) > 0:
        torch.testing.assert_close(schedule.inverse(schedule.alpha(ends)), ends, rtol=0, atol=2e-7)


def check_monotone(schedule: Schedule) -> None:
    t = torch.linspace(0, 1, 2001, dtype=torch.float64)
    alpha, keep = schedule.alpha(t), schedule.keep(t)
    assert (alpha.diff() <= 0).all() and (keep.diff() <= 0).all()
    assert alpha.max() <= 1 and alpha.min() >= 0
    assert (schedule.alpha(interior(schedule)).diff() > 0).all()


@each_schedule
def test_derivative_rate_and_inverse_of_named_schedules(name):
    check_calculus(SCHEDULES[name])
    check_inverse(SCHEDULES[name])
    check_monotone(SCHEDULES[name])


@settings(max_examples=60)
@given(schedule=any_schedule)
def test_derivative_rate_and_inverse_of_any_schedule(schedule):
    check_calculus(schedule)
    check_inverse(schedule)
    check_monotone(schedule)


@each_schedule
def test_reveal_chance_is_the_same_with_and_without_the_cut(name):
    schedule = SCHEDULES[name]
    t = interior(schedule, 50)  # from the last time to the first
    with_cut = reveal_chance(schedule.alpha(t[1:]), schedule.alpha(t[:-1]))
    without = reveal_chance(schedule.keep(t[1:]), schedule.keep(t[:-1]))
    torch.testing.assert_close(with_cut, without, rtol=1e-9, atol=1e-12)
    assert (with_cut > 0).all() and (with_cut < 1).all()


def test_rate_keeps_its_digits_where_alpha_is_nearly_one():
    for schedule in (Linear(20.0), Linear(1e8), Geometric(1e-9, 20.0)):
        t = schedule.inverse(torch.tensor([1 - 1e-6, 1 - 1e-3], dtype=torch.float64))
        sigma = schedule.sigma(t)
        slope = derivative(schedule.sigma, t)
        series = slope / (sigma + sigma**2 / 2 + sigma**3 / 6 + sigma**4 / 24)  # e^sigma - 1
        torch.testing.assert_close(schedule.rate(t), series, rtol=1e-12, atol=0)
    assert Linear(1e8).rate(torch.tensor([0.5], dtype=torch.float64)).item() == 0  # e^sigma overflows, the rate is 0


# -- strata ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1, 2, 7, 64, 513, 70_001])
def test_one_row_per_stratum_of_the_global_batch(total):
    some = torch.arange(total) if total < 1000 else torch.arange(0, total, 71)
    u = strata(some, total, Keys(0, 5))
    place = torch.floor(u * total)
    assert u.dtype == torch.float64 and u.min() >= 0 and u.max() < 1
    assert len(place.unique()) == len(some)
    if total < 1000:
        assert torch.equal(place.sort().values, torch.arange(total).double())


@pytest.mark.parametrize("ranks", [1, 2, 3, 5])
@pytest.mark.parametrize("micro", [1, 4, 30])
def test_any_cutting_into_ranks_and_micro_batches_gives_the_same_times(ranks, micro):
    total, keys = 30, Keys(2, 11)
    whole = strata(torch.arange(total), total, keys)
    for rank in range(ranks):
        mine = torch.arange(rank, total, ranks)
        got = torch.cat([strata(part, total, keys) for part in mine.split(micro)])
        assert torch.equal(got, whole[mine])


def test_assignment_and_jitter_are_unbiased_and_independent():
    total, draws = 6, 2000
    u = torch.stack([strata(torch.arange(total), total, Keys(0, step)) for step in range(draws)]).numpy() * total
    place, jitter = np.floor(u).astype(int), u % 1
    counts = np.stack([np.bincount(place[:, row], minlength=total) for row in range(total)])
    assert stats.chisquare(counts, axis=1).pvalue.min() > 1e-3  # every row sees every time
    assert stats.kstest(jitter.ravel(), "uniform").pvalue > 1e-3
    correlation = np.corrcoef(jitter.T) - np.eye(total)
    assert abs(correlation).max() < 4 / math.sqrt(draws)  # a shared offset would give 1
    assert abs(np.corrcoef(place[1:, 0], place[:-1, 0])[0, 1]) < 4 / math.sqrt(draws)


# -- laws ------------------------------------------------------------------------------------------------------------


@each_schedule
@pytest.mark.parametrize("cutoff", [1e-3, 0.05])
def test_continuous_draws_estimate_known_integrals(name, cutoff):
    """Cost 1 a masked position: the bound is exactly 1. Cost keep: exactly 1/2 of what is revealed, plus the rest."""
    schedule, law = SCHEDULES[name], ContinuousTime(cutoff)
    uniform, weight, last = continuous_nodes(schedule, law)
    draw = law.draw(uniform, schedule)
    assert not draw.finite.any() and (draw.u == 0).all()
    at_end = law.draw(torch.tensor([0.0, last * 0.999], dtype=torch.float64), schedule)
    assert at_end.finite.all() and (at_end.u == 1).all()
    assert (1 - at_end.keep).tolist() == pytest.approx([last, last], rel=1e-9)
    assert at_end.scale.tolist() == pytest.approx([1 / last, 1 / last], rel=1e-9)
    assert at_end.t[0] == at_end.t[1] and ((draw.t >= at_end.t[0]) & (draw.t <= 1)).all()

    masked = (weight * draw.scale * (1 - draw.keep)).sum()
    assert float(masked + last) == pytest.approx(1, abs=1e-8)
    by_keep = (weight * draw.scale * (1 - draw.keep) * draw.keep).sum()
    assert float(by_keep) == pytest.approx((1 - last) ** 2 / 2, abs=1e-8)  # the integral of k dk from 0 to 1 - last


@pytest.mark.parametrize("name", [name for name in SCHEDULES if name != "linear 1e8"])  # a sliver of 1e-7: see above
def test_continuous_draws_on_a_plain_grid(name):
    """The same integral with no change of variables: midpoints of the uniform itself."""
    schedule, law, n = SCHEDULES[name], ContinuousTime(), 100_000
    draw = law.draw((torch.arange(n, dtype=torch.float64) + 0.5) / n, schedule)
    value = draw.scale * (1 - draw.keep)
    assert float(value.mean()) == pytest.approx(1, abs=5e-4 if name == "root" else 2e-4)  # root: alpha'(0) is infinite


@pytest.mark.parametrize("cutoff", [1e-3, 0.05])
@pytest.mark.parametrize("schedule", [*SCHEDULES.values(), Linear(1e-4)], ids=repr)
def test_the_last_step_starts_at_the_mask_rate_of_the_cut_off(schedule, cutoff):
    """Mask rate means that of the process that is run, `1 - keep`; a schedule cut at t = 0 ends where it ends."""
    draw = ContinuousTime(cutoff).draw(torch.zeros(1, dtype=torch.float64), schedule)
    left_over = 1 - schedule.keep(torch.zeros((), dtype=torch.float64))
    assert draw.finite.all() and -1e-12 <= float(draw.t) <= 1
    assert float(1 - draw.keep) == pytest.approx(max(cutoff, float(left_over)), rel=1e-9)


@pytest.mark.parametrize("eps", [0.0, 1e-3, 0.1])
def test_log_linear_is_t_uniform_with_weight_one_over_t(eps):
    u = torch.tensor([0.0, 5e-4, 0.01, 0.3, 0.999], dtype=torch.float64)
    draw = ContinuousTime(1e-3).draw(u, Polynomial(eps=eps))
    expected = torch.clamp(u, min=1e-3)
    torch.testing.assert_close(draw.t, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(draw.scale, 1 / expected, rtol=1e-9, atol=0)
    torch.testing.assert_close(1 - draw.keep, expected, rtol=1e-9, atol=0)
    assert draw.finite.tolist() == [True, True, False, False, False]


@each_schedule
@pytest.mark.parametrize("steps", [1, 2, 5, 100])
def test_discrete_draws_visit_every_step_once_in_t(name, steps):
    schedule = SCHEDULES[name]
    u = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    draw = DiscreteTime(steps).draw(u, schedule)
    alpha = [ALPHAS[name]((i + 1) / steps) for i in range(steps)]
    before = [1.0, *alpha[:-1]]
    assert draw.t.tolist() == pytest.approx([(i + 1) / steps for i in range(steps)])
    assert draw.u.tolist() == pytest.approx([(s - t) / (1 - t) for s, t in zip(before, alpha, strict=True)], abs=1e-9)
    assert draw.u[0] == 1 and draw.finite.all() and (draw.scale == steps).all()
    reveal = draw.u * (1 - draw.keep)
    assert float(reveal.sum()) == pytest.approx(1, abs=1e-12)  # every position is revealed in exactly one step
    for edge in (0.0, 1 - 2**-53, 1.0):  # a stratum may round up to 1
        at_edge = DiscreteTime(steps).draw(torch.tensor([edge], dtype=torch.float64), schedule)
        assert all(torch.isfinite(getattr(at_edge, field)).all() for field in ("t", "keep", "u", "scale"))
        assert 0 < float(at_edge.t) <= 1


@each_schedule
def test_draws_are_finite_and_in_range_everywhere(name):
    u = torch.cat([torch.linspace(0, 1, 1001, dtype=torch.float64), torch.tensor([1e-300, 2**-53, 1 - 2**-53])])
    for law in (ContinuousTime(), ContinuousTime(1e-6), ContinuousTime(0.5), DiscreteTime(1), DiscreteTime(1000)):
        draw = law.draw(u, SCHEDULES[name])
        for value in (draw.t, draw.keep, draw.u, draw.scale):
            assert torch.isfinite(value).all()
        assert ((draw.keep >= 0) & (draw.keep <= 1) & (draw.u >= 0) & (draw.u <= 1) & (draw.scale >= 0)).all()
        assert ((draw.t >= -1e-12) & (draw.t <= 1)).all()


def test_draw_rows_looks_up_every_field():
    draw = ContinuousTime().draw(torch.tensor([0.0, 0.5, 0.9], dtype=torch.float64), Polynomial())
    looked_up = draw.rows(torch.tensor([2, 0, 0]))
    for field in ("t", "keep", "finite", "u", "scale"):
        assert torch.equal(getattr(looked_up, field), getattr(draw, field)[[2, 0, 0]])
