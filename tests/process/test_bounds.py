"""The bounds against enumeration: exact for exact conditionals, equal to brute-force KLs, never better than a law."""

from __future__ import annotations

import math
from dataclasses import fields

import numpy as np
import pytest
import torch

from oracles.enumeration import (
    ALPHAS,
    MASK,
    SCHEDULES,
    XS,
    TableNet,
    ancestral_law,
    bayes,
    conditionals,
    continuous_nodes,
    d3pm,
    keep_grid,
    kl,
    last_step,
    masked_states,
    nelbo_continuous,
    nelbo_discrete,
    one_hot,
    random_joint,
    subs,
)
from unmask.process import bounds, masking
from unmask.process.schedule import ContinuousTime, DiscreteTime, Draw, Schedule

STEPS = (1, 2, 5, 10, 100)
JOINT = random_joint()
ENTROPY = -sum(p * math.log(p) for p in JOINT.values())
each_schedule = pytest.mark.parametrize("name", SCHEDULES)


class Costs:
    """What a denoiser gives every x under every mask, laid out for the functions under test: (x, z, position)."""

    def __init__(self, denoise, t=math.nan, clean=XS):
        states = [masked_states(x) for x in clean]
        guess = {z: denoise(z, t) for each in states for z, _ in each}
        hidden = [[[token == MASK for token in z] for z, _ in each] for each in states]
        at_x = [
            [[guess[z][i, x[i]] if z[i] == MASK else 0.0 for i in range(len(x))] for z, _ in each]
            for x, each in zip(clean, states, strict=True)
        ]
        at_mask = [[[guess[z][i, MASK] for i in range(len(z))] for z, _ in each] for each in states]
        self.masked = torch.tensor(hidden)  # (x, z, L)
        self.log_x = torch.tensor(at_x, dtype=torch.float64)
        self.log_mask = torch.tensor(at_mask, dtype=torch.float64)

    def chance(self, keep: torch.Tensor) -> torch.Tensor:
        """q(z|x) (x, z)."""
        return torch.where(self.masked, 1 - keep, keep).prod(-1)

    def target(self, keep: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        folded, mass = masking.fold(self.log_x, self.log_mask, 0.0, keep)
        return -folded, mass

    def expected(self, draw: Draw) -> torch.Tensor:
        """E[nats] (n, x) for n draws, by `bounds.nats`."""
        draw = Draw(*(getattr(draw, f.name)[:, None, None, None] for f in fields(draw)))
        nll, mass = self.target(draw.keep)
        value = bounds.nats(draw, nll, mass)
        return (self.chance(draw.keep) * (value * self.masked).sum(-1)).sum(-1)


def expected(costs_at, draw: Draw) -> torch.Tensor:
    """The same for costs that depend on the time; `costs_at(None)` gives those that do not."""
    if (costs := costs_at(None)) is not None:
        return costs.expected(draw)
    return torch.cat([costs_at(float(t)).expected(draw.rows(torch.tensor([i]))) for i, t in enumerate(draw.t)])


def expected_continuous(costs_at, schedule: Schedule, law: ContinuousTime, n: int) -> torch.Tensor:
    """Exact E[nats] (x,) over the uniform, finite last step included."""
    uniform, weight, last = continuous_nodes(schedule, law, n)
    end = law.draw(torch.zeros(1, dtype=torch.float64), schedule)
    return weight @ expected(costs_at, law.draw(uniform, schedule)) + last * expected(costs_at, end)[0]


def expected_discrete(costs_at, schedule: Schedule, steps: int) -> torch.Tensor:
    uniform = (torch.arange(steps, dtype=torch.float64) + 0.5) / steps
    return expected(costs_at, DiscreteTime(steps).draw(uniform, schedule)).mean(0)


def timeless(denoise):
    costs = Costs(denoise)
    return lambda _t: costs


# -- (a) exact conditionals ------------------------------------------------------------------------------------------


def quadrature(schedule: Schedule, chance) -> torch.Tensor:
    """The integral of eq. 10 over the schedule's own range, (x,): Gauss-Legendre in alpha, times from `inverse`."""
    low, high = (float(schedule.alpha(torch.tensor(t, dtype=torch.float64))) for t in (1.0, 0.0))
    nodes, weights = np.polynomial.legendre.leggauss(12)
    t = schedule.inverse(torch.from_numpy(low + (high - low) * (nodes + 1) / 2))
    costs, total = Costs(conditionals(JOINT)), 0.0
    for at, w in zip(t, torch.from_numpy(weights) * (high - low) / 2, strict=True):
        value = bounds.continuous(-costs.log_x, torch.ones(()), schedule.rate(at)) * costs.masked
        total = total + w / -schedule.dalpha(at) * (costs.chance(chance(at)) * value.sum(-1)).sum(-1)
    return total


@each_schedule
def test_with_exact_conditionals_the_continuous_bound_is_the_likelihood(name):
    """For every x, not on average. A schedule cut at t = 0 is compared with the integral over its own range."""
    schedule, denoise = SCHEDULES[name], conditionals(JOINT)
    cut = keep_grid(name, 1, cut=True)[0]
    truth = [nelbo_continuous(x, denoise, 0.0, cut) for x in XS]
    np.testing.assert_allclose(quadrature(schedule, schedule.keep), truth, atol=1e-9)
    if cut == 1:
        np.testing.assert_allclose(truth, [-math.log(JOINT[x]) for x in XS], atol=1e-9)


@each_schedule
def test_the_same_with_the_papers_own_alpha(name):
    """Masks drawn with alpha itself, as published: the likelihood where alpha runs from 1 to 0, else its range."""
    schedule, denoise = SCHEDULES[name], conditionals(JOINT)
    low, high = ALPHAS[name](1.0), ALPHAS[name](0.0)
    truth = [nelbo_continuous(x, denoise, low, high) for x in XS]
    np.testing.assert_allclose(quadrature(schedule, schedule.alpha), truth, atol=1e-9)
    if (low, high) == (0, 1):
        np.testing.assert_allclose(truth, [-math.log(JOINT[x]) for x in XS], atol=1e-9)


@each_schedule
def test_the_cut_off_costs_only_what_its_last_step_costs(name):
    law, denoise = ContinuousTime(0.02), conditionals(JOINT)
    got = expected_continuous(timeless(denoise), SCHEDULES[name], law, 200)
    keep = float(law.draw(torch.zeros(1, dtype=torch.float64), SCHEDULES[name]).keep)
    truth = [nelbo_continuous(x, denoise, 0.0, keep) + last_step(x, denoise, keep, 0.0) for x in XS]
    np.testing.assert_allclose(got, truth, rtol=1e-8)
    mean = sum(p * float(value) for p, value in zip(JOINT.values(), got, strict=True))
    assert ENTROPY - 1e-9 <= mean <= ENTROPY + (1 - keep) ** 2 * 3  # second order in the mask rate that is left


@each_schedule
def test_the_discrete_bound_decreases_to_the_entropy(name):
    costs_at = timeless(conditionals(JOINT))
    probs = torch.tensor(list(JOINT.values()), dtype=torch.float64)
    by_steps = {steps: float(probs @ expected_discrete(costs_at, SCHEDULES[name], steps)) for steps in STEPS}
    for finer, coarser in ((2, 1), (5, 1), (10, 2), (10, 5), (100, 10)):  # nested grids: never worse
        assert ENTROPY - 1e-9 <= by_steps[finer] <= by_steps[coarser] + 1e-9
    if name in ("log-linear", "log-linear uncut"):  # 3.272 3.229 3.199 3.189 3.179 -> 3.178
        values = [by_steps[steps] - ENTROPY for steps in STEPS]
        assert values == sorted(values, reverse=True)
        assert values[-1] < 0.03 * values[0]
    assert by_steps[1] == pytest.approx(sum(product_entropy()), abs=1e-9)  # one step knows the marginals only


def product_entropy():
    for position in range(3):
        marginal: dict[int, float] = {}
        for x, p in JOINT.items():
            marginal[x[position]] = marginal.get(x[position], 0.0) + p
        yield -sum(p * math.log(p) for p in marginal.values())


# -- (b) brute force -------------------------------------------------------------------------------------------------


@each_schedule
@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("log_x", [subs, d3pm])
def test_the_discrete_bound_is_a_sum_of_brute_force_kls(name, steps, log_x):
    """Posterior matrices by Bayes' rule, all z; with mass on [MASK] it is D3PM's bound. T = 1 and s = 0 included."""
    net = TableNet.random(4)
    denoise = net.denoiser(log_x=log_x)
    got = expected_discrete(timeless(denoise), SCHEDULES[name], steps)
    keep, times = keep_grid(name, steps), [i / steps for i in range(steps + 1)]
    for i in range(0, len(XS), 5):
        assert float(got[i]) == pytest.approx(nelbo_discrete(XS[i], denoise, keep, times), rel=1e-9)


@pytest.mark.parametrize(("alpha_s", "alpha_t"), [(0.7, 0.4), (1.0, 0.4), (1.0, 0.0), (0.2, 0.0), (0.999, 0.998)])
def test_one_step_is_the_kl_and_the_published_closed_form(alpha_s, alpha_t):
    for seed in range(5):
        log_x = d3pm(np.random.default_rng(seed).normal(size=4) * 2)
        x, x_mask = math.exp(log_x[2]), math.exp(log_x[MASK])
        q = bayes(MASK, one_hot(2), alpha_s, alpha_t, one_hot(MASK))
        p = bayes(MASK, np.exp(log_x), alpha_s, alpha_t, one_hot(MASK))
        folded, mass = masking.fold(
            *torch.from_numpy(log_x)[[2, MASK]], 0.0, torch.tensor(alpha_t, dtype=torch.float64)
        )
        u = torch.tensor((alpha_s - alpha_t) / (1 - alpha_t), dtype=torch.float64)
        got = float(bounds.discrete(-folded, mass, u, torch.tensor(7.0)))
        assert got == pytest.approx(7 * kl(q, p), rel=1e-9, abs=1e-12)
        evidence = alpha_t * x_mask + 1 - alpha_t
        closed = (alpha_s - alpha_t) / (1 - alpha_t) * math.log(evidence / ((1 - alpha_t) * x))
        if alpha_s < 1:
            stay = (1 - alpha_s) * evidence / ((1 - alpha_t) * (alpha_s * x_mask + 1 - alpha_s))
            closed += (1 - alpha_s) / (1 - alpha_t) * math.log(stay)
        assert got == pytest.approx(7 * closed, rel=1e-9, abs=1e-12)


def test_under_subs_it_is_a_weighted_cross_entropy():
    nll, u = torch.tensor([0.5, 2.0, 30.0]).double(), torch.tensor([0.1, 1.0, 0.0]).double()
    got = bounds.discrete(nll, torch.ones(3).double(), u, torch.tensor(10.0))
    torch.testing.assert_close(got, 10 * u * nll, rtol=0, atol=0)
    torch.testing.assert_close(bounds.continuous(nll, torch.ones(3), torch.tensor(3.0)), 3 * nll, rtol=1e-12, atol=0)


def test_many_short_steps_are_the_continuous_bound():
    """T KL -> rate [nll + mass - 1] as u = rate/T -> 0."""
    nll, mass, rate = torch.tensor([0.7, 3.0]).double(), torch.tensor([0.6, 0.95]).double(), 2.5
    steps = torch.tensor(1e7).double()
    got = bounds.discrete(nll, mass, rate / steps, steps)
    torch.testing.assert_close(got, bounds.continuous(nll, mass, torch.tensor(rate)), rtol=1e-5, atol=0)


@each_schedule
@pytest.mark.parametrize("law", [*(DiscreteTime(steps) for steps in (*STEPS, 1000)), ContinuousTime()], ids=repr)
def test_no_nan_at_any_time_and_finite_gradients(name, law):
    """At s = 0 the published discrete loss is 0 · log(x/0). Also at exact bin ends and both ends of the uniform."""
    some = torch.linspace(0, 1, 41, dtype=torch.float64)
    uniform = torch.cat([some, torch.tensor([1e-12, 1 - 2**-53]), some[:-1] + 1e-3])
    draw = law.draw(uniform, SCHEDULES[name])
    for nll_at, mass_at in ((0.0, 1.0), (5.0, 1.0), (5.0, 0.5), (50.0, 1e-20)):
        nll = torch.full_like(uniform, nll_at, dtype=torch.float32).requires_grad_()
        mass = torch.full_like(uniform, mass_at, dtype=torch.float32).requires_grad_()
        value = bounds.nats(draw, nll, mass)
        assert torch.isfinite(value).all()
        for grad in torch.autograd.grad(value.sum(), (nll, mass)):
            assert torch.isfinite(grad).all()


# -- (i) the gate: no network may put more than 1 on everything ------------------------------------------------------


def total_probability(nats: torch.Tensor) -> float:
    return float(torch.exp(-nats).sum())


def costs_of(net: TableNet, name: str, log_x=subs):
    denoise = net.denoiser(name, log_x)
    if net.drift is None:
        return timeless(denoise)
    return lambda t: None if t is None else Costs(denoise, min(max(t, 0.0), 1.0))


@each_schedule
@pytest.mark.parametrize("log_x", [subs, d3pm])
def test_no_network_puts_more_than_one_on_all_sequences(name, log_x):
    for seed in range(3):
        net = TableNet.random(seed, spread=1 + seed) if seed else TableNet.exact(JOINT)  # the best one is the hardest
        costs_at = costs_of(net, name, log_x)
        laws = [total_probability(expected_discrete(costs_at, SCHEDULES[name], steps)) for steps in (1, 2, 3, 20)]
        laws += [
            total_probability(expected_continuous(costs_at, SCHEDULES[name], ContinuousTime(cutoff), 60))
            for cutoff in (1e-3, 0.2)
        ]
        assert max(laws) <= 1 + 1e-9
        if log_x is subs:
            assert laws[0] == pytest.approx(1, abs=1e-9)  # T = 1 is a product of independent positions: exact
            assert min(laws) > (0.05 if seed else 0.8)  # a bound that says nothing would pass the gate as well
        else:
            assert laws[0] < 1 - 1e-3  # D3PM wastes what it puts on [MASK]


@pytest.mark.parametrize("name", ["log-linear", "cosine", "geometric wide cut"])
def test_no_time_conditioned_network_does_either(name):
    costs_at = costs_of(TableNet.random(5, timed=True), name)
    laws = [total_probability(expected_discrete(costs_at, SCHEDULES[name], steps)) for steps in (1, 2, 4)]
    laws.append(total_probability(expected_continuous(costs_at, SCHEDULES[name], ContinuousTime(), 24)))
    assert max(laws) <= 1 + 1e-9 and laws[0] == pytest.approx(1, abs=1e-9)


@pytest.mark.parametrize("name", [name for name in SCHEDULES if ALPHAS[name](0.0) == 1])
@pytest.mark.parametrize("steps", [1, 2, 4])
def test_the_discrete_bound_bounds_what_the_sampler_does(name, steps):
    """Not just some law: -log of the exact chance that T ancestral steps end in x."""
    net = TableNet.random(6)
    law = ancestral_law((MASK,) * 3, net.denoiser(name), name, steps)
    got = expected_discrete(costs_of(net, name), SCHEDULES[name], steps)
    gap = np.array([float(value) + math.log(law[x]) for x, value in zip(XS, got, strict=True)])
    assert gap.min() > -1e-9
    if steps == 1:
        assert abs(gap).max() < 1e-9
