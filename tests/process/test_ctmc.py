"""Appendix C against dense matrices, matrix exponentials, the published formulas in numpy, and enumerated joints."""

from __future__ import annotations

import decimal
import itertools
import math

import numpy as np
import pytest
import torch
from scipy.integrate import solve_ivp
from scipy.linalg import expm

from oracles.enumeration import (
    ALPHAS,
    CLEAN,
    LENGTH,
    MASK,
    SCHEDULES,
    XS,
    V,
    conditionals,
    masked_states,
    nelbo_continuous,
    noise_matrix,
    one_hot,
    random_joint,
)
from unmask.errors import UserError
from unmask.process import bounds, ctmc, masking
from unmask.process.schedule import SigmaSchedule, reveal_chance

PRIORS = {"mask": one_hot(MASK), "uniform": np.full(V, 1 / V), "some": np.array([0.1, 0.2, 0.3, 0.4])}
UNCUT = ["log-linear uncut", "root", "cosine uncut", "linear 1e8"]  # alpha runs over all of [0, 1]
STATES = list(itertools.product(range(V), repeat=LENGTH))
Z = torch.tensor(STATES)  # (S, L)
each_prior = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)
each_schedule = pytest.mark.parametrize("name", SCHEDULES)


def tensor(value) -> torch.Tensor:
    return torch.as_tensor(value, dtype=torch.float64)


def close(got, truth, rtol: float = 1e-12, atol: float = 0.0) -> None:
    np.testing.assert_allclose(np.asarray(got), np.asarray(truth), rtol=rtol, atol=atol)


def times(name: str) -> torch.Tensor:
    """Times that look into every corner of a schedule, by the part of alpha's range that is left."""
    low, high = ALPHAS[name](1.0), ALPHAS[name](0.0)
    return SCHEDULES[name].inverse(low + (high - low) * tensor([1e-6, 0.01, 0.2, 0.5, 0.9, 0.999, 1 - 1e-6]))


def dsigma(name: str, t: torch.Tensor) -> torch.Tensor:
    """-alpha'/alpha."""
    schedule = SCHEDULES[name]
    return schedule.dsigma(t) if isinstance(schedule, SigmaSchedule) else -schedule.dalpha(t) / schedule.alpha(t)


def random_log_x(n: int, kind: str, seed: int = 0) -> torch.Tensor:
    """(n, V): a law of the clean tokens, any positive measure on them, or one that has mass on [MASK] too."""
    rng = np.random.default_rng(seed)
    x = rng.gamma(0.5, size=(n, V)) + 1e-3
    if kind != "mass on mask":
        x[:, MASK] = 0
    scale = x.sum(1, keepdims=True) if kind == "subs" else 1.0
    with np.errstate(divide="ignore"):
        return tensor(np.log(x / scale))


def masked(n: int) -> torch.Tensor:
    return torch.full((n,), MASK)


# -- the forward chain -----------------------------------------------------------------------------------------------


@each_prior
@pytest.mark.parametrize(("alpha_s", "alpha_t"), [(1.0, 0.6), (0.7, 0.4), (0.999, 1e-3), (0.5, 0.5 - 1e-9)])
def test_the_exponential_of_the_rate_is_the_transition(prior, alpha_s, alpha_t):
    rate = ctmc.rate_matrix(tensor(prior))
    close(rate.sum(1), np.zeros(V), atol=1e-15)
    exact = expm(math.log(alpha_s / alpha_t) * rate.numpy())
    got = masking.transition(torch.eye(V, dtype=torch.float64), tensor(alpha_s), tensor(alpha_t), tensor(prior))
    close(got, exact, rtol=0, atol=1e-13)


@each_prior
@each_schedule
def test_the_marginal_obeys_kolmogorovs_equation(prior, name):
    """dq/dt = q R_t with R_t = sigma' R, by a five-point difference of dense noise matrices."""
    x, alpha = np.array([0.3, 0.1, 0.4, 0.2]), ALPHAS[name]
    for t in SCHEDULES[name].inverse(tensor([0.8, 0.5, 0.15])):
        h = 5e-4 * min(float(t), 1 - float(t))
        q = [x @ noise_matrix(alpha(float(t) + k * h), prior) for k in (-2, -1, 0, 1, 2)]
        slope = (q[0] - 8 * q[1] + 8 * q[3] - q[4]) / (12 * h)
        speed = float(dsigma(name, t))
        close(slope / speed, q[2] @ ctmc.rate_matrix(tensor(prior)).numpy(), rtol=0, atol=1e-10)


def test_the_mask_rate_is_the_papers_transposed():
    """R_t(y', y) = alpha'/alpha (I - m 1')(y', y), from y to y'; here alpha'/alpha = -1."""
    paper = -(np.eye(V) - np.outer(one_hot(MASK), np.ones(V)))
    close(ctmc.rate_matrix(ctmc.mask_prior(V, MASK)), paper.T)


# -- the score -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("sigma", [1e-30, 1e-16, 1e-9, 1e-3, 0.3, math.log(2), 0.7, 5.0, 40.0, 750.0, 1e8])
def test_log_expm1_has_all_its_digits(sigma):
    with decimal.localcontext(decimal.Context(prec=80, Emax=decimal.MAX_EMAX, Emin=decimal.MIN_EMIN)):
        truth = float((decimal.Decimal(sigma).exp() - 1).ln())
    close(ctmc.log_expm1(tensor(sigma)), truth, rtol=4e-16, atol=4e-16)


@pytest.mark.parametrize("kind", ["subs", "measure", "mass on mask"])
@pytest.mark.parametrize("alpha", [1e-3, 0.4, 0.9, 0.9999])
def test_the_score_is_the_ratio_of_marginals(kind, alpha):
    """From dense matrices, for masked positions and (x̂ = z: carry-over) for unmasked ones."""
    log_x, sigma = random_log_x(8, kind), -torch.log(tensor(alpha))
    got = torch.exp(ctmc.log_score(log_x, masked(8), sigma, MASK))
    q = alpha * log_x.exp().numpy() + (1 - alpha) * one_hot(MASK)
    close(got, q / q[:, [MASK]])
    close(ctmc.concrete_score(tensor(one_hot(MASK)), log_x.exp(), tensor(alpha), tensor(one_hot(MASK))), got)
    got = torch.exp(ctmc.log_score(log_x[:3], torch.tensor(CLEAN), sigma, MASK))
    q = noise_matrix(alpha, one_hot(MASK))[CLEAN]
    close(got, q / q[range(3), CLEAN][:, None])


@each_prior
def test_the_score_for_any_prior(prior):
    x, z = np.array([0.3, 0.1, 0.4, 0.2]), np.eye(V)
    q = x @ noise_matrix(0.6, prior)
    close(ctmc.concrete_score(tensor(z), tensor(x), tensor(0.6), tensor(prior)), q[None] / q[:, None])


@pytest.mark.parametrize("sigma", [1e-20, 1e-3, 0.5, 7.0, 900.0])
def test_score_and_mean_invert_each_other(sigma):
    z = torch.tensor([MASK, *CLEAN, MASK])
    log_x, sigma = random_log_x(5, "measure"), tensor(sigma)
    back = ctmc.log_mean(ctmc.log_score(log_x, z, sigma, MASK), z, sigma, MASK).exp()
    truth = np.where((z == MASK).numpy()[:, None], log_x.exp().numpy(), np.eye(V)[z])  # carry-over: x̂ = z
    close(back, truth, atol=1e-300)


def test_mass_on_mask_comes_back_folded():
    log_x, alpha = random_log_x(6, "mass on mask"), 0.3
    sigma, x = -torch.log(tensor(alpha)), log_x.exp().numpy()
    got = ctmc.log_mean(ctmc.log_score(log_x, masked(6), sigma, MASK), masked(6), sigma, MASK).exp()
    truth = x / (1 + alpha * x[:, [MASK]] / (1 - alpha))
    close(got[:, CLEAN], truth[:, CLEAN])
    assert (got[:, MASK] == 0).all()


@pytest.mark.parametrize("sigma", [1e-20, 1e-8, 0.4, 0.6, 7.0, 900.0])
def test_sedd_output_layer(sigma):
    logits = tensor(np.random.default_rng(1).normal(size=(V, V)))
    z = torch.arange(V)
    got = ctmc.sedd_log_score(logits, z, tensor(sigma))
    scale = sigma if sigma > 50 else math.log(math.expm1(sigma))
    truth = logits.numpy() - scale - math.log(V - 1)
    close(got, np.where(np.eye(V, dtype=bool), 0.0, truth))
    mean = ctmc.log_mean(got, z, tensor(sigma), MASK)[MASK, CLEAN]
    close(mean, logits.numpy()[MASK, CLEAN] - math.log(V - 1), rtol=0, atol=1e-12)  # sigma cancels in x̂


def test_sigma_has_the_shape_of_z():
    """(rows, positions) at once is each alone: nothing leaks between rows, nothing is written on."""
    log_x = random_log_x(6, "measure").reshape(2, 3, V)
    z, sigma = torch.tensor([[MASK, 0, MASK], [2, MASK, 3]]), tensor([[0.1, 0.2, 0.3], [1.0, 2.0, 3.0]])
    kept = log_x.clone(), z.clone(), sigma.clone()
    score = ctmc.log_score(log_x, z, sigma, MASK)
    step = ctmc.analytic_step(score, z, sigma / 2, sigma, MASK)
    for i, j in np.ndindex(2, 3):
        one = ctmc.log_score(log_x[i, j], z[i, j], sigma[i, j], MASK)
        assert torch.equal(one, score[i, j])
        assert torch.equal(ctmc.analytic_step(one, z[i, j], sigma[i, j] / 2, sigma[i, j], MASK), step[i, j])
    assert all(torch.equal(a, b) for a, b in zip(kept, (log_x, z, sigma), strict=True))


@pytest.mark.parametrize("sigma", [0.0, -0.1, math.inf, math.nan])
def test_a_score_refuses_a_sigma_that_is_not_the_true_one(sigma):
    rows, z, sigma = random_log_x(2, "subs"), masked(2), tensor([1.0, sigma])
    for call in (
        lambda: ctmc.log_score(rows, z, sigma, MASK),
        lambda: ctmc.log_mean(rows, z, sigma, MASK),
        lambda: ctmc.sedd_log_score(rows, z, sigma),
        lambda: ctmc.score_entropy(rows, torch.zeros_like(z), sigma, sigma, MASK),
    ):
        with pytest.raises(UserError, match="true noise level"):
            call()


# -- the bound -------------------------------------------------------------------------------------------------------


def paper_nelbo(x: int, score: np.ndarray, alpha: float, speed: float) -> float:
    """The boxed sum of appendix C.2 at y = m, with K(a) = a log a - a and R_t(m, y') = sigma'."""
    q = noise_matrix(alpha, one_hot(MASK))[x]
    total = 0.0
    for y in CLEAN:
        ratio = q[y] / q[MASK]
        total += speed * score[y]
        if ratio > 0:
            total += speed * (-ratio * math.log(score[y]) + ratio * math.log(ratio) - ratio)
    return total


@pytest.mark.parametrize("alpha", [0.01, 0.5, 0.99])
def test_score_entropy_is_the_papers_sum(alpha):
    """For any positive score, not only for one that comes from a law."""
    score = np.random.default_rng(3).gamma(1.0, size=(3, V)) + 0.05
    got = ctmc.score_entropy(tensor(np.log(score)), torch.tensor(CLEAN), -torch.log(tensor(alpha)), tensor(1.7), MASK)
    close(got, [paper_nelbo(x, row, alpha, 1.7) for x, row in zip(CLEAN, score, strict=True)])


@pytest.mark.parametrize("kind", ["subs", "measure", "mass on mask"])
@each_schedule
def test_sedds_integrand_is_mdlms(name, kind):
    schedule, t = SCHEDULES[name], times(name).repeat_interleave(3)
    log_x, x = random_log_x(len(t), kind), torch.tensor(CLEAN * (len(t) // 3))
    sigma, alpha = schedule.sigma(t), schedule.alpha(t)
    score = ctmc.log_score(log_x, masked(len(t)), sigma, MASK)
    got = ctmc.score_entropy(score, x, sigma, dsigma(name, t), MASK)
    folded = log_x.exp() / (1 + alpha / (1 - alpha) * log_x[:, MASK].exp())[:, None]
    mass = folded[:, CLEAN].sum(1)
    if kind == "subs":
        close(mass, np.ones(len(t)))
    nll = -torch.log(folded[range(len(t)), x])
    close(got, bounds.continuous(nll, mass, schedule.rate(t)))


def test_the_gradient_of_sedds_loss():
    """d/dlogits = rate (x̂ - x) at clean tokens and 0 at [MASK], also where sigma is tiny."""
    logits = tensor(np.random.default_rng(5).normal(size=(4, V))).requires_grad_()
    sigma, x = tensor([1e-12, 1e-3, 1.0, 30.0]), torch.tensor([0, 2, 3, 0])
    score = ctmc.sedd_log_score(logits, masked(4), sigma)
    ctmc.score_entropy(score, x, sigma, tensor(2.0), MASK).sum().backward()
    truth = np.exp(logits.detach().numpy()) / (V - 1) - np.eye(V)[x]
    truth[:, MASK] = 0
    close(logits.grad, 2.0 / np.expm1(sigma.numpy())[:, None] * truth, rtol=1e-11)


def integrate(name: str, score_of) -> dict[tuple[int, ...], float]:
    """For every x: the integral over t, and the sum over all z_t, of q(z_t|x) times the score entropy.

    Gauss-Legendre in alpha is exact: at a fixed z the integrand is a polynomial in alpha of degree L - 1.
    """
    low, high = ALPHAS[name](1.0), ALPHAS[name](0.0)
    node, weight = np.polynomial.legendre.leggauss(10)
    t = SCHEDULES[name].inverse(tensor(low + (high - low) * (node + 1) / 2))
    alpha = np.array([ALPHAS[name](float(u)) for u in t])
    weight = weight * (high - low) / 2 / -SCHEDULES[name].dalpha(t).numpy()  # dt
    sigma, speed = SCHEDULES[name].sigma(t)[:, None, None], dsigma(name, t)[:, None, None]
    score = score_of(Z.expand(len(t), -1, -1), sigma)  # (n, S, L, V)
    cost = {y: ctmc.score_entropy(score, torch.full(score.shape[:-1], y), sigma, speed, MASK).numpy() for y in CLEAN}
    out = {}
    for x in XS:
        out[x] = 0.0
        for z, hidden in masked_states(x):
            chance = (1 - alpha) ** len(hidden) * alpha ** (LENGTH - len(hidden))
            for position in hidden:
                out[x] += float((weight * chance * cost[x[position]][:, STATES.index(z), position]).sum())
    return out


def exact_log_x(joint) -> torch.Tensor:
    """Log conditionals (S, L, V) for every state."""
    denoise = conditionals(joint)
    return tensor(np.stack([denoise(z, math.nan) for z in STATES]))


@each_schedule
def test_the_score_entropy_of_exact_conditionals_is_tight(name):
    joint = random_joint(2)
    log_x = exact_log_x(joint)
    got = integrate(name, lambda z, sigma: ctmc.log_score(log_x.expand(*z.shape, V), z, sigma, MASK))
    low, high = ALPHAS[name](1.0), ALPHAS[name](0.0)
    for x, p in joint.items():
        close(got[x], nelbo_continuous(x, conditionals(joint), low, high), rtol=1e-11)
        if name in UNCUT:
            close(got[x], -math.log(p), rtol=1e-11)


@pytest.mark.parametrize("shift", [-1.0, 0.0, 1.5])
def test_any_sedd_network_is_a_bound(shift):
    """The sum over all x of exp(-nats) is at most 1 for any logits: the mass term pays for a large score."""
    logits = shift + tensor(np.random.default_rng(7).normal(size=(len(STATES), LENGTH, V)))
    nats = integrate("log-linear uncut", lambda z, sigma: ctmc.sedd_log_score(logits.expand(*z.shape, V), z, sigma))
    assert 1e-6 < sum(math.exp(-value) for value in nats.values()) < 1


# -- steps -----------------------------------------------------------------------------------------------------------


def published_analytic(score: np.ndarray, z: int, delta: float) -> np.ndarray:
    """SEDD's staggered_score times transp_transition, with [MASK] where it is."""
    stag = score * math.exp(delta)
    stag[MASK] -= math.expm1(delta) * score.sum()
    return stag * (math.exp(-delta) * one_hot(z) - (z == MASK) * math.expm1(-delta))


def published_euler(score: np.ndarray, z: int, speed: float, dt: float) -> np.ndarray:
    """SEDD's one_hot + dt sigma' reverse_rate, from transp_rate times score."""
    edge = -one_hot(z) + (z == MASK)
    reverse = edge * score
    reverse[z] = 0
    reverse[z] = -reverse.sum()
    return one_hot(z) + dt * speed * reverse


def any_scores(n: int = 12) -> tuple[np.ndarray, torch.Tensor]:
    """Positive scores that no x̂ explains, with 1 at z, for z masked and not."""
    score, z = np.random.default_rng(11).gamma(1.0, size=(n, V)) + 0.01, np.arange(n) % V
    score[range(n), z] = 1
    return score, torch.from_numpy(z)


@pytest.mark.parametrize("delta", [2.0**-20, 0.25, 2.0])  # sigma_t - sigma_s has no rounding
def test_steps_are_the_published_ones(delta):
    score, z = any_scores()
    log_score = tensor(np.log(score))
    got = ctmc.analytic_step(log_score, z, tensor(0.25), tensor(0.25) + delta, MASK)
    truth = np.stack([published_analytic(row.copy(), i, delta) for row, i in zip(score, z.tolist(), strict=True)])
    close(got, truth, atol=1e-13)
    got = ctmc.euler_step(log_score, z, tensor(delta / 0.01), 0.01, MASK)
    truth = np.stack([published_euler(row, i, delta / 0.01, 0.01) for row, i in zip(score, z.tolist(), strict=True)])
    close(got, truth, atol=1e-14)
    assert (truth < 0).any() == (delta > 1)  # the long step is one that has to be clamped
    law = ctmc.renormalise(got).numpy()
    positive = np.where(truth > 0, truth, 0)
    close(law, positive / positive.sum(1, keepdims=True), atol=1e-14)


@pytest.mark.parametrize("sigma", [1e-5, 0.4, 3.0])
def test_the_denoising_step_is_the_published_one(sigma):
    """The analytic step over all of sigma, with [MASK] dropped, drawn in proportion."""
    score, z = any_scores()
    got = ctmc.denoise_step(tensor(np.log(score)), z, MASK)
    truth = np.stack([published_analytic(row.copy(), i, sigma) for row, i in zip(score, z.tolist(), strict=True)])
    truth[:, MASK] = 0
    close(got, truth / truth.sum(1, keepdims=True), rtol=1e-11)


@each_schedule
def test_the_analytic_step_with_the_subs_score_is_the_posterior(name):
    schedule, grid = SCHEDULES[name], times(name)
    pairs = [(s, t) for t, s in itertools.combinations(grid.tolist(), 2)]  # alpha rises along the grid, t falls
    s, t = tensor(pairs).T
    log_x, prior, n = random_log_x(len(pairs), "subs"), tensor(one_hot(MASK)), len(pairs)
    score = ctmc.log_score(log_x, masked(n), schedule.sigma(t), MASK)
    got = ctmc.analytic_step(score, masked(n), schedule.sigma(s), schedule.sigma(t), MASK)
    alpha_s, alpha_t = schedule.alpha(s)[:, None], schedule.alpha(t)[:, None]
    close(got, masking.posterior(prior, log_x.exp(), alpha_s, alpha_t, prior), rtol=0, atol=1e-13)
    close(got, ctmc.reverse_step(log_x, alpha_s, alpha_t, MASK), rtol=0, atol=1e-13)


def test_the_analytic_step_to_the_start_is_the_mean():
    """Over all of sigma everything is revealed by x̂, over none of it nothing, at any noise level.

    A log score is about -sigma, so float64 holds it to sigma · 1e-16; the published form loses e^sigma · 1e-16.
    """
    log_x, sigma = random_log_x(4, "subs"), tensor([1e-12, 0.5, 20.0, 1e4])
    score = ctmc.log_score(log_x, masked(4), sigma, MASK)
    got = ctmc.analytic_step(score, masked(4), tensor(0.0), sigma, MASK)
    for row, truth, noise in zip(got, log_x.exp(), sigma.tolist(), strict=True):
        close(row, truth, rtol=0, atol=4e-16 * max(1.0, noise))
    assert torch.equal(ctmc.analytic_step(score, masked(4), sigma, sigma, MASK), tensor(np.eye(V)[[MASK] * 4]))


@pytest.mark.parametrize("kind", ["subs", "measure"])
def test_the_denoising_step_draws_from_the_mean(kind):
    log_x, z = random_log_x(6, kind), torch.tensor([MASK, MASK, MASK, 0, 2, 3])
    got = ctmc.denoise_step(ctmc.log_score(log_x, z, tensor([1e-5, 1.0, 50.0, 1e-5, 1.0, 50.0]), MASK), z, MASK)
    x = log_x.exp().numpy()
    close(got, np.where((z == MASK).numpy()[:, None], x / x.sum(1, keepdims=True), np.eye(V)[z]))


def euler_law(log_x: torch.Tensor, name: str, start: float, end: float, steps: int) -> torch.Tensor:
    """The law of one position after Euler steps from [MASK], as a product of (V, V) matrices."""
    law, dt, every = tensor(one_hot(MASK)), (start - end) / steps, torch.arange(V)
    for i in range(steps):
        t = tensor(start - i * dt)
        score = ctmc.log_score(log_x.expand(V, V), every, SCHEDULES[name].sigma(t), MASK)
        law = law @ ctmc.euler_step(score, every, dsigma(name, t), dt, MASK)
    return law


def euler_error(name: str, end: float, steps: int, start: float = 0.8) -> float:
    """How far Euler's law is from the one posterior step over the same time."""
    log_x, prior, schedule = random_log_x(1, "subs")[0], tensor(one_hot(MASK)), SCHEDULES[name]
    alpha_s, alpha_t = schedule.alpha(tensor(end)), schedule.alpha(tensor(start))
    truth = masking.posterior(prior, log_x.exp(), alpha_s, alpha_t, prior)
    return float((euler_law(log_x, name, start, end, steps) - truth).abs().max())


@pytest.mark.parametrize("name", ["square", "cosine", "linear 3", "geometric wide cut"])
def test_euler_converges_to_the_posterior(name):
    """One step is wrong by O(dt²), a walk over a fixed time by O(dt)."""
    assert math.log2(euler_error(name, 0.8 - 2e-4, 1) / euler_error(name, 0.8 - 1e-4, 1)) == pytest.approx(2, abs=2e-3)
    assert math.log2(euler_error(name, 0.2, 128) / euler_error(name, 0.2, 256)) == pytest.approx(1, abs=2e-2)
    assert euler_error(name, 0.2, 256) < 5e-3


@pytest.mark.parametrize("steps", [1, 7])
@pytest.mark.parametrize("name", ["log-linear", "log-linear uncut"])
def test_euler_is_exact_where_alpha_is_a_line(name, steps):
    """Rate · dt is then the reveal chance u itself."""
    assert euler_error(name, 0.2, steps) < 1e-14


# -- the reversed chain ----------------------------------------------------------------------------------------------


@each_prior
def test_the_reverse_rate_undoes_the_forward_one(prior):
    """Q R̄ = -q R: run backwards, the marginals go the way they came; and jumps balance one by one."""
    x, rate = np.array([0.3, 0.1, 0.4, 0.2]), ctmc.rate_matrix(tensor(prior))
    q = x @ noise_matrix(0.6, prior)
    score = ctmc.concrete_score(torch.eye(V, dtype=torch.float64), tensor(x), tensor(0.6), tensor(prior))
    back = ctmc.reverse_rate(rate, score).numpy()
    close(q @ back, -(q @ rate.numpy()), atol=1e-15)
    close(back.sum(1), np.zeros(V), atol=1e-14)
    off = ~np.eye(V, dtype=bool)
    close((q[:, None] * back)[off], (q[:, None] * rate.numpy()).T[off], atol=1e-16)


def test_the_reverse_rate_of_subs_is_the_papers():
    """R̄_t(y', y) = -alpha'/(1 - alpha) [x̂ - m](y') <y, m>, and R_t = sigma' R, sigma' = -alpha'/alpha."""
    alpha, slope, log_x = 0.3, -0.7, random_log_x(1, "subs")[0]
    score = ctmc.log_score(log_x.expand(V, V), torch.arange(V), -torch.log(tensor(alpha)), MASK).exp()
    got = ctmc.reverse_rate(-slope / alpha * ctmc.rate_matrix(ctmc.mask_prior(V, MASK)), score)
    paper = -slope / (1 - alpha) * np.outer(log_x.exp().numpy() - one_hot(MASK), one_hot(MASK))
    close(got, paper.T, atol=1e-15)


def test_a_state_that_cannot_be_has_no_reverse_jumps():
    """x = 0 for sure: nothing is ever 2 or 3, their scores are 0/0 and 1/0, and the rates stay finite."""
    prior = ctmc.mask_prior(V, MASK)
    score = ctmc.concrete_score(torch.eye(V, dtype=torch.float64), tensor(one_hot(0)), tensor(0.5), prior)
    assert not torch.isfinite(score[2:]).any()
    truth = np.zeros((V, V))
    truth[MASK, 0], truth[MASK, MASK] = 1, -1
    close(ctmc.reverse_rate(ctmc.rate_matrix(prior), score), truth)


def sequence_rate() -> np.ndarray:
    """The rate on whole sequences: one position jumps at a time (a sum of Kronecker products)."""
    rate, total = ctmc.rate_matrix(ctmc.mask_prior(V, MASK)).numpy(), 0.0
    for position in range(LENGTH):
        total = total + np.kron(np.kron(np.eye(V**position), rate), np.eye(V ** (LENGTH - 1 - position)))
    return total


def sequence_score(log_x: torch.Tensor, sigma: float) -> torch.Tensor:
    """Scores of positions as (S, S): entry (z, z') where z' differs from z in one position, else 0."""
    score = ctmc.log_score(log_x, Z, tensor(sigma), MASK).exp()  # (S, L, V)
    out = torch.zeros(len(Z), len(Z), dtype=torch.float64)
    row = torch.arange(len(Z))
    for position, y in itertools.product(range(LENGTH), range(V)):
        column = row + (y - Z[:, position]) * V ** (LENGTH - 1 - position)
        out[row, column] = torch.where(Z[:, position] == y, 0.0, score[:, position, y])
    return out


def sequence_marginal(joint, sigma: float) -> np.ndarray:
    """Q_t over all sequences: the joint through the exponential of the rate."""
    start = np.zeros(len(STATES))
    for x, p in joint.items():
        start[STATES.index(x)] = p
    return start @ expm(sigma * sequence_rate())


@pytest.mark.parametrize("sigma", [0.05, 0.7, 4.0])
def test_exact_conditionals_give_the_exact_score_of_the_joint(sigma):
    """At a masked position s(y) = q_t(z with y)/q_t(z), ratios of sums over the whole joint, for every z."""
    joint = random_joint(3)
    q, got = sequence_marginal(joint, sigma), sequence_score(exact_log_x(joint), sigma).numpy()
    possible = sequence_rate().T > 0  # the reverse jumps z -> z' that there are
    assert possible.sum() == LENGTH * 3 * V ** (LENGTH - 1)
    close(got[possible], (q[None] / q[:, None])[possible], rtol=1e-11)


def test_the_reversed_chain_brings_all_masks_back_to_the_joint():
    """Integrate the reversed Kolmogorov equation from e^-30 of signal to e^-30 of noise.

    In lam = log(e^sigma - 1) the reverse rates are bounded: no end is stiff.
    """
    joint = random_joint(4)
    log_x, rate = exact_log_x(joint), tensor(sequence_rate())

    def slope(lam: float, p: np.ndarray) -> np.ndarray:
        sigma = np.logaddexp(0, lam)
        back = ctmc.reverse_rate(rate, sequence_score(log_x, sigma)).numpy()
        return p @ back * math.expm1(-sigma)  # -d sigma / d lam = -(1 - alpha)

    start = one_hot(STATES.index((MASK,) * LENGTH), len(STATES))
    middle = math.log(math.expm1(0.7))
    path = solve_ivp(slope, (30.0, -30.0), start, "DOP853", t_eval=[middle, -30.0], rtol=1e-11, atol=1e-13)
    assert path.success
    close(path.y[:, 0], sequence_marginal(joint, 0.7), rtol=0, atol=1e-10)
    close(path.y[:, 1], sequence_marginal(joint, 0.0), rtol=0, atol=1e-10)


def test_euler_is_one_step_along_the_reverse_rate():
    log_x, sigma, every = random_log_x(1, "subs")[0].expand(V, V), tensor(0.8), torch.arange(V)
    score = ctmc.log_score(log_x, every, sigma, MASK)
    back = ctmc.reverse_rate(1.3 * ctmc.rate_matrix(ctmc.mask_prior(V, MASK)), score.exp())
    close(ctmc.euler_step(score, every, tensor(1.3), 0.05, MASK), np.eye(V) + 0.05 * back.numpy(), atol=1e-15)


def test_one_step_reveals_at_the_chance_of_the_schedule():
    """Under SUBS the analytic step leaves [MASK] with chance u, whatever the network says."""
    log_x, alpha_s, alpha_t = random_log_x(5, "subs"), tensor(0.6), tensor(0.25)
    score = ctmc.log_score(log_x, masked(5), -torch.log(alpha_t), MASK)
    step = ctmc.analytic_step(score, masked(5), -torch.log(alpha_s), -torch.log(alpha_t), MASK)
    close(1 - step[:, MASK], np.full(5, float(reveal_chance(alpha_s, alpha_t))))
