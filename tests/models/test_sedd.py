"""SEDD (paper appendix C): its loss is the published one, its samplers have the published law."""

from __future__ import annotations

import itertools
import math
from collections import Counter

import numpy as np
import pytest
import torch
from scipy.linalg import expm

from oracles.enumeration import (
    ALPHAS,
    CLEAN,
    LENGTH,
    MASK,
    SCHEDULES,
    XS,
    Denoiser,
    State,
    TableNet,
    V,
    masked_states,
)
from oracles.laws import collect, masks_of, written
from support.drawing import check, generate, keys_of, outcomes, p_value
from support.helpers import random_model, tiny_config
from unmask.models.masked import MaskedDiffusion, Objective
from unmask.process import ctmc
from unmask.process.keys import Keys
from unmask.process.parameterization import Score
from unmask.process.schedule import ContinuousTime, DiscreteTime, Draw, Law, Polynomial, Schedule
from unmask.sampling import Ancestral, RevealPlan, make_sampler
from unmask.types import Batch, UserError, Vocab


def measure(logits: np.ndarray) -> np.ndarray:
    """Log x̂ = logits - log(V - 1), nothing on [MASK]: not normalised."""
    out = logits - math.log(V - 1)
    out[..., MASK] = -np.inf
    return out


# -- the bound -------------------------------------------------------------------------------------------------------


def published(logits: np.ndarray, x: int, sigma: float, dsigma: float) -> float:
    """σ' [Σ_{y≠m} s_y - r log s_x + r (log r - 1)], r = 1/(e^σ - 1), with the published output layer."""
    log_s = logits - math.log(math.expm1(sigma)) - math.log(V - 1)
    r = 1 / math.expm1(sigma)
    return dsigma * (sum(math.exp(log_s[y]) for y in CLEAN) - r * log_s[x] + r * (math.log(r) - 1))


class At(Law):
    """Every row at one time of the integral, or in the last step."""

    def __init__(self, t: float, last: bool) -> None:
        self.t, self.ends = t, last

    def draw(self, uniform: torch.Tensor, schedule: Schedule) -> Draw:
        t = torch.full_like(uniform, self.t)
        ends = torch.full_like(t, self.ends, dtype=torch.bool)
        return Draw(t, schedule.keep(t), ends, ends.double(), torch.ones_like(t) if self.ends else schedule.rate(t))

    def last(self, schedule: Schedule) -> float:
        return 0.0

    def describe(self) -> dict[str, object]:
        return {}


@pytest.mark.parametrize("name", ["log-linear", "cosine", "geometric", "linear 3"])
@pytest.mark.parametrize("timed", [False, True])
def test_nats_are_the_published_integrand_at_every_time(name, timed):
    """At every masked position; σ is the true one also where the network is told none (trap 4)."""
    net, schedule, batch = TableNet.random(3, timed), SCHEDULES[name], Batch(torch.tensor(XS), torch.arange(27), 27)
    raw = net.denoiser(name, lambda logits: logits)
    seen = 0
    for t in (0.05, 0.4, 0.97):
        model = MaskedDiffusion(net, schedule, parameterization=Score())
        model.law = At(t, False)
        at = torch.tensor(t, dtype=torch.float64, requires_grad=True)
        (dsigma,) = torch.autograd.grad(schedule.sigma(at), at)
        sigma = -math.log(ALPHAS[name](t))
        nats = model.nats(batch, Keys(1)).nats.detach()
        hidden = Keys(1).uniform("mask", range(27), LENGTH) >= schedule.keep(at.detach())
        for row, x in enumerate(XS):
            z = tuple(MASK if h else y for y, h in zip(x, hidden[row].tolist(), strict=True))
            for position, token in enumerate(x):
                if z[position] != MASK:
                    assert nats[row, position] == 0
                    continue
                logits = raw(z, t)[position]
                truth = published(logits, token, sigma, float(dsigma))
                assert float(nats[row, position]) == pytest.approx(truth, rel=1e-4, abs=1e-5)
                log_score = ctmc.sedd_log_score(
                    torch.from_numpy(logits.copy()), torch.tensor(MASK), torch.tensor(sigma, dtype=torch.float64)
                )
                again = ctmc.score_entropy(log_score, torch.tensor(token), torch.tensor(sigma), dsigma.float(), MASK)
                assert float(again) == pytest.approx(truth, rel=1e-4, abs=1e-5)
                seen += 1
    assert seen > 50


@pytest.mark.parametrize("timed", [False, True])
def test_the_whole_bound_is_the_integral_and_the_last_step(timed):
    """Mean of nats over keys against quadrature of the published formula, and -log(x̂/Σx̂) at the cut-off (|z| < 4)."""
    net, low, name = TableNet.random(5, timed), 0.1, "log-linear"
    raw = net.denoiser(name, lambda logits: logits)
    node, weight = np.polynomial.legendre.leggauss(60)
    truth = []
    for x in XS[::2]:
        total = 0.0
        for t, w in zip(low + (1 - low) * (node + 1) / 2, weight * (1 - low) / 2, strict=True):
            sigma, dsigma = -math.log(1 - 0.999 * t), 0.999 / (1 - 0.999 * t)
            for z, masked in masked_states(x):
                chance = t ** len(masked) * (1 - t) ** (LENGTH - len(masked))
                total += w * chance * sum(published(raw(z, t)[i], x[i], sigma, dsigma) for i in masked)
        for z, masked in masked_states(x):
            chance = low ** len(masked) * (1 - low) ** (LENGTH - len(masked))
            for i in masked:
                own = np.exp(measure(raw(z, low)[i]))
                total -= chance * math.log(own[x[i]] / own.sum())
        truth.append(total)
    model = MaskedDiffusion(net, SCHEDULES[name], ContinuousTime(low), Score())
    tokens, copies, draws = torch.tensor(XS[::2]).repeat(12, 1), 12, 40
    batch = Batch(tokens, torch.arange(len(tokens)), len(tokens))
    with torch.no_grad():
        rows = torch.stack([model.nats(batch, Keys(2, d)).nats.double().sum(1) for d in range(draws)])
    values = rows.view(draws, copies, -1).mean(1).numpy()
    error = values.std(0, ddof=1) / math.sqrt(draws)
    assert abs((values.mean(0) - truth) / error).max() < 4
    total = values.sum(1)
    assert total.std(ddof=1) / math.sqrt(draws) < 0.03 * abs(sum(truth))
    assert abs(total.mean() - sum(truth)) < 4 * total.std(ddof=1) / math.sqrt(draws)


@pytest.mark.parametrize("shift", [60.0, 20.0, -20.0, -150.0])
@pytest.mark.parametrize("last", [False, True])
def test_gradients_are_finite_where_the_mass_is_far_from_one(shift, last):
    """Sum of x̂ from 1e26 to an underflow, in the integral and in the last step."""
    net = TableNet.random(1, True)
    with torch.no_grad():
        net.table += shift
    model = MaskedDiffusion(net, SCHEDULES["log-linear"], parameterization=Score())
    batch = Batch(torch.tensor(XS), torch.arange(27), 27)
    model.law = At(0.7, last)
    for objective in (Objective(), Objective(cross_entropy=True)):
        model.objective = objective
        loss, _ = model.loss(batch, Keys(0))
        (gradient,) = torch.autograd.grad(loss, net.table)
        assert torch.isfinite(loss) and torch.isfinite(gradient).all()
    plain = TableNet.random(1, True)
    if last and shift > -100:  # a shift of all logits is no matter where tokens are written for sure
        other = MaskedDiffusion(plain, SCHEDULES["log-linear"], parameterization=Score())
        other.law = At(0.7, True)
        model.objective = Objective()
        torch.testing.assert_close(
            model.nats(batch, Keys(0)).nats, other.nats(batch, Keys(0)).nats, rtol=1e-3, atol=1e-4
        )


def test_cross_entropy_is_of_the_scaled_score():
    net = TableNet.random(2)
    model = MaskedDiffusion(net, SCHEDULES["log-linear"], ContinuousTime(), Score(), Objective(cross_entropy=True))
    model.law = At(1.0, False)  # all masked
    batch = Batch(torch.tensor(XS[:5]), torch.arange(5), 5)
    loss, weight = model.loss(batch, Keys(0))
    logits = net.table.detach()[MASK, MASK, MASK].double().numpy()[:, CLEAN]
    log_p = logits - np.log(np.exp(logits).sum(1, keepdims=True))
    truth = -sum(log_p[i, CLEAN.index(token)] for x in XS[:5] for i, token in enumerate(x))
    assert float(loss.detach()) == pytest.approx(truth, rel=1e-5) and float(weight) == 15


def test_t_steps_are_refused_with_a_sentence():
    with pytest.raises(UserError, match=r"continuous time only; set objective\.bound=continuous") as caught:
        MaskedDiffusion(TableNet.random(), Polynomial(), DiscreteTime(4), Score())
    assert "\n" not in str(caught.value)
    model = MaskedDiffusion(TableNet.random(), Polynomial(), parameterization=Score())
    with pytest.raises(UserError, match=r"objective\.bound=continuous"):
        model.under(law=DiscreteTime(4))
    assert model.under(law=ContinuousTime(0.1)).describe()["cutoff_mask_rate"] == 0.1


@pytest.mark.parametrize("timed", ["true", "false"])
def test_with_and_without_time_conditioning(timed):
    """Trap 4: public code has log(e^0 - 1) = -inf in the output layer where the network is told no time."""
    model = random_model(tiny_config("model.method=sedd", f"model.time_conditioning={timed}"), Vocab(9, 4))
    assert model.time_conditioned == (timed == "true") and not model.normalised and model.carry_over
    batch = Batch(torch.randint(5, 9, (8, 6)), torch.arange(8), 8)
    loss, weight = model.loss(batch, Keys(0))
    loss.backward()
    assert torch.isfinite(loss) and int(weight) == 48
    assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())
    for state in generate(model, [torch.full((6,), 4)], Ancestral(5), [Keys(0)]):
        last = state
    assert last.done and 4 not in last.canvas.tolist()


# -- the samplers ----------------------------------------------------------------------------------------------------

RATE = np.tile(np.eye(V)[MASK], (V, 1)) - np.eye(V)  # jumps to [MASK] at rate 1; rows are "from"


def analytic(score: np.ndarray, sigma_s: float, sigma_t: float) -> np.ndarray:
    """[s exp(-Δσ R)](y) · exp(Δσ R)[y, m], clamped at 0 and renormalised; score of z = m, 1 at m itself."""
    delta = sigma_t - sigma_s
    probs = (score @ expm(-delta * RATE)) * expm(delta * RATE)[:, MASK]
    return np.maximum(probs, 0) / np.maximum(probs, 0).sum()


def euler(score: np.ndarray, dsigma: float, dt: float) -> np.ndarray:
    """z + Δt σ' (row of the reverse rate): jumps y ≠ m at rate R[y, m] s_y; clamped and renormalised."""
    flow = RATE[:, MASK] * score
    flow[MASK] = -sum(flow[y] for y in CLEAN)
    probs = np.eye(V)[MASK] + dt * dsigma * flow
    return np.maximum(probs, 0) / np.maximum(probs, 0).sum()


def sampler_law(start: State, denoise: Denoiser, name: str, steps: int, is_euler: bool) -> dict[State, float]:
    """T steps from 1 to 0, then what is still masked is drawn from the score without [MASK], at t = 0."""
    law = {start: 1.0}
    for i in range(steps, 0, -1):
        t, s = i / steps, (i - 1) / steps
        sigma_t, sigma_s = -math.log(ALPHAS[name](t)), -math.log(ALPHAS[name](s))
        slope = (ALPHAS[name](t - 1e-6) - ALPHAS[name](t - 3e-6)) / 2e-6 if t == 1 else None
        slope = slope or (ALPHAS[name](t + 1e-6) - ALPHAS[name](t - 1e-6)) / 2e-6
        pairs = []
        for z, chance in law.items():
            odds, x_hat = 1 / math.expm1(sigma_t), np.exp(denoise(z, t))
            options = []
            for position, token in enumerate(z):
                if token != MASK:
                    options.append([(token, 1.0)])
                    continue
                score = odds * x_hat[position]
                score[MASK] = 1.0
                at = -slope / ALPHAS[name](t)
                step = euler(score, at, 1 / steps) if is_euler else analytic(score, sigma_s, sigma_t)
                options.append([(y, p) for y, p in enumerate(step) if p > 1e-15])
            for combination in itertools.product(*options):
                pairs.append((tuple(y for y, _ in combination), chance * math.prod(p for _, p in combination)))
        law = collect(pairs)
    out = []
    for z, chance in law.items():
        log_x = denoise(z, 0.0)
        log_x = log_x - np.log(np.exp(log_x).sum(-1, keepdims=True))
        out += [(state, chance * p) for state, p in written(z, log_x, masks_of(z))]
    return collect(out)


@pytest.mark.parametrize("is_euler", [False, True], ids=["analytic", "euler"])
@pytest.mark.parametrize(
    ("name", "steps", "canvas", "timed", "shift"),
    [
        ("linear 3", 2, (MASK,) * 3, True, 0.0),  # masses on both sides of 1: some steps are clamped
        ("geometric wide cut", 2, (MASK, 2, MASK), False, -1.0),
    ],
)
def test_the_law_of_the_samplers(is_euler, name, steps, canvas, timed, shift):
    net, n = TableNet.random(7, timed), 500
    with torch.no_grad():
        net.table += shift
    denoise = net.denoiser(name, measure)
    law = sampler_law(canvas, denoise, name, steps, is_euler)
    model = MaskedDiffusion(net, SCHEDULES[name], parameterization=Score())
    plan = make_sampler("euler" if is_euler else "analytic", steps=steps)
    counts = outcomes(model, [canvas] * n, plan, keys_of(n), batch_size=n)
    assert sum(law.values()) == pytest.approx(1) and p_value(counts, law) > 1e-3
    masses = [np.exp(denoise(z, 0.5)).sum(-1) for z in ((MASK,) * 3, (MASK, 2, MASK))]
    assert shift or (np.min(masses) < 1 < np.max(masses))


def test_the_two_samplers_have_different_laws_and_the_test_can_tell():
    denoise, start = TableNet.random(7, True).denoiser("linear 3", measure), (MASK,) * 3
    one, other = (sampler_law(start, denoise, "linear 3", 2, is_euler) for is_euler in (False, True))
    assert p_value(Counter({x: round(500 * p) for x, p in other.items()}), one) < 1e-3


def test_names_of_the_samplers():
    assert make_sampler("analytic", steps=5) == make_sampler("ancestral", steps=5) == Ancestral(5)
    assert make_sampler("euler", steps=5) == Ancestral(5, euler=True)
    model = MaskedDiffusion(TableNet.random(), Polynomial(), parameterization=Score())
    assert model.default_sampler == "ancestral"
    with pytest.raises(UserError, match="ancestral"):
        check(model, torch.tensor([MASK]), RevealPlan(2))
    with pytest.raises(UserError, match="steps=0"):
        check(model, torch.tensor([MASK]), make_sampler("euler", steps=0))


def test_mask_ids_in_the_middle_have_no_mass_and_half_precision_becomes_float32():
    logits = torch.randn(6, V, generator=torch.Generator().manual_seed(0)).bfloat16()
    before = logits.clone()
    log_x = Score().log_x(logits, MASK)
    assert log_x.dtype == torch.float32 and (log_x[:, MASK] == -math.inf).all() and torch.equal(logits, before)
    np.testing.assert_allclose(log_x[:, CLEAN], logits.float()[:, CLEAN] - math.log(V - 1), rtol=1e-6)
    nll, mass = Score().target(logits, torch.tensor([0, 2, 3, 0, 2, 3]), torch.zeros(6), MASK)
    np.testing.assert_allclose(mass, np.exp(measure(logits.double().numpy())).sum(1), rtol=1e-5)
    np.testing.assert_allclose(nll, [-float(log_x[i, y]) for i, y in enumerate([0, 2, 3, 0, 2, 3])], rtol=1e-6)
