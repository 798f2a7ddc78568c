"""The forward process and its reversal against dense transition matrices and Bayes' rule; draws against measures."""

from __future__ import annotations

import itertools
import math

import numpy as np
import pytest
import torch
from scipy import stats

from oracles.enumeration import MASK, V, bayes, d3pm, kl, noise_matrix, one_hot
from unmask.process import ctmc, masking
from unmask.process.keys import Keys

PRIORS = {
    "mask": one_hot(MASK),
    "uniform": np.full(V, 1 / V),
    "some": np.array([0.1, 0.2, 0.3, 0.4]),
}
# (alpha_s, alpha_t): a step inside, a long one, the step to s = 0, from all noise, and both
STEPS = [(0.7, 0.4), (0.999, 1e-3), (1.0, 0.6), (0.3, 0.0), (1.0, 0.0), (0.5, 0.5 - 1e-9)]
each_prior = pytest.mark.parametrize("prior", PRIORS.values(), ids=PRIORS)


def tensor(value) -> torch.Tensor:
    return torch.tensor(value, dtype=torch.float64)


@each_prior
@pytest.mark.parametrize("alpha", [0.0, 0.3, 1.0])
def test_marginal_is_a_row_of_the_noise_matrix(prior, alpha):
    matrix = noise_matrix(alpha, prior)
    for x in range(V):
        got = masking.marginal(tensor(one_hot(x)), tensor(alpha), tensor(prior))
        np.testing.assert_allclose(got, matrix[x], atol=1e-15)


@each_prior
@pytest.mark.parametrize(("alpha_s", "alpha_t"), STEPS)
def test_transitions_compose_to_the_marginal(prior, alpha_s, alpha_t):
    """Q_s Q_{t|s} = Q_t: the property that defines q(z_t|z_s)."""
    step = np.stack(
        [masking.transition(tensor(one_hot(z)), tensor(alpha_s), tensor(alpha_t), tensor(prior)) for z in range(V)]
    )
    np.testing.assert_allclose(noise_matrix(alpha_s, prior) @ step, noise_matrix(alpha_t, prior), atol=1e-15)
    np.testing.assert_allclose(step.sum(1), 1, atol=1e-15)


@each_prior
@pytest.mark.parametrize(("alpha_s", "alpha_t"), STEPS)
def test_posterior_is_bayes_rule(prior, alpha_s, alpha_t):
    guesses = [one_hot(x) for x in range(V)] + [np.array([0.2, 0.3, 0.4, 0.1]), np.array([0.5, 0.0, 0.25, 0.25])]
    compared = 0
    for z, x in itertools.product(range(V), guesses):
        if (x @ noise_matrix(alpha_t, prior))[z] == 0:
            continue  # z cannot come from x
        truth = bayes(z, x, alpha_s, alpha_t, prior)
        got = masking.posterior(tensor(one_hot(z)), tensor(x), tensor(alpha_s), tensor(alpha_t), tensor(prior))
        np.testing.assert_allclose(got, truth, atol=1e-14)
        compared += 1
    assert compared >= 6


@pytest.mark.parametrize(("alpha_s", "alpha_t"), STEPS)
def test_posterior_under_masks_is_the_papers_eq_6(alpha_s, alpha_t):
    prior = tensor(PRIORS["mask"])
    for x in (0, 2, 3):
        args = tensor(one_hot(x)), tensor(alpha_s), tensor(alpha_t), prior
        hidden = masking.posterior(tensor(one_hot(MASK)), *args)
        expected = ((1 - alpha_s) * one_hot(MASK) + (alpha_s - alpha_t) * one_hot(x)) / (1 - alpha_t)
        np.testing.assert_allclose(hidden, expected, atol=1e-14)
        if alpha_t > 0:
            np.testing.assert_allclose(masking.posterior(tensor(one_hot(x)), *args), one_hot(x), atol=1e-14)


# -- fold and reverse_step -------------------------------------------------------------------------------------------


def random_x(seed: int, with_mask: bool) -> np.ndarray:
    logits = np.random.default_rng(seed).normal(size=V) * 2
    if not with_mask:
        logits[MASK] = -np.inf
    return d3pm(logits)


@pytest.mark.parametrize("with_mask", [False, True])
@pytest.mark.parametrize(("alpha_s", "alpha_t"), STEPS)
def test_reverse_step_is_the_posterior_of_the_guess(alpha_s, alpha_t, with_mask):
    """p(z_s|z_t = m) = q(z_s|z_t = m, x = x̂), mass of x̂ on [MASK] included."""
    log_x = np.stack([random_x(seed, with_mask) for seed in range(5)])
    before = tensor(log_x)
    got = ctmc.reverse_step(before, tensor(alpha_s), tensor(alpha_t), MASK)
    truth = [bayes(MASK, np.exp(row), alpha_s, alpha_t, PRIORS["mask"]) for row in log_x]
    np.testing.assert_allclose(got, truth, atol=1e-13)
    np.testing.assert_allclose(before, log_x)  # arguments are not written to


@pytest.mark.parametrize(("alpha_s", "alpha_t"), STEPS)
def test_fold_turns_a_guess_into_chances_of_being_revealed(alpha_s, alpha_t):
    """u x̃(y) is p(z_s = y|z_t = m) for any step from t: x̃ depends on t alone."""
    log_x = random_x(3, with_mask=True)
    folded, mass = masking.fold(tensor(log_x), tensor(log_x[MASK]), 0.0, tensor(alpha_t))
    u = (alpha_s - alpha_t) / (1 - alpha_t)
    truth = bayes(MASK, np.exp(log_x), alpha_s, alpha_t, PRIORS["mask"])
    for y in (0, 2, 3):
        assert u * math.exp(folded[y]) == pytest.approx(truth[y], abs=1e-14)
    assert float(mass) == pytest.approx(sum(math.exp(folded[y]) for y in (0, 2, 3)), abs=1e-14)
    assert 1 - u * float(mass) == pytest.approx(truth[MASK], abs=1e-13)


def test_fold_takes_measures_that_are_not_normalised():
    """Scores: x̂ with any total. Only the ratio to the chance of [MASK] counts."""
    log_x = tensor(np.random.default_rng(0).normal(size=V))
    folded, mass = masking.fold(log_x, log_x[MASK], torch.logsumexp(log_x, -1), tensor(0.3))
    scale = 1 + 0.3 / 0.7 * math.exp(log_x[MASK])
    assert float(mass) == pytest.approx(sum(math.exp(log_x[y]) for y in (0, 2, 3)) / scale, rel=1e-12)
    assert folded.tolist() == pytest.approx((log_x - math.log(scale)).tolist(), rel=1e-12)


def test_fold_is_nothing_without_mass_on_the_mask():
    log_x = tensor(random_x(1, with_mask=False))
    folded, mass = masking.fold(log_x, log_x[MASK], 0.0, tensor(0.4))
    assert torch.equal(folded[[0, 2, 3]], log_x[[0, 2, 3]])
    assert float(mass) == pytest.approx(1, abs=1e-15)


# -- corrupt ---------------------------------------------------------------------------------------------------------


def test_corrupt_masks_where_the_uniform_says_so():
    tokens = torch.tensor([[0, 2, 3], [3, 3, 0]])
    uniform = tensor([[0.1, 0.5, 0.9], [0.0, 0.999, 0.5]])
    z = masking.corrupt(tokens, tensor([[0.5], [0.0]]), uniform, MASK)
    assert z.tolist() == [[0, MASK, MASK], [MASK] * 3]  # [0, keep) stays; at keep = 0 nothing does
    assert masking.corrupt(tokens, tensor([[1.0], [1.0]]), uniform, MASK).equal(tokens)
    assert tokens.tolist() == [[0, 2, 3], [3, 3, 0]]


def test_corrupt_is_a_bernoulli_in_every_position_on_its_own():
    keep, n = tensor([0.3]), 20_000
    uniform = Keys(0).uniform("mask", [0], n, 3)[0]
    z = masking.corrupt(torch.full((n, 3), 2), keep, uniform, MASK)
    pattern = ((z == 2).long() * torch.tensor([4, 2, 1])).sum(1)
    chances = [math.prod(0.3 if bit else 0.7 for bit in bits) for bits in itertools.product((0, 1), repeat=3)]
    counts = torch.bincount(pattern, minlength=8).numpy()
    assert stats.chisquare(counts, np.array(chances) * n).pvalue > 1e-3


# -- categorical -----------------------------------------------------------------------------------------------------


def measure(log_probs: torch.Tensor, token: int) -> float:
    """Length of the interval of uniforms that give this token, from its two ends found by bisection to 2^-53."""

    def first_at_or_after(wanted: int) -> float:
        low, high = 0, 2**53
        while low < high:
            middle = (low + high) // 2
            got = int(masking.categorical(log_probs[None], tensor([middle / 2**53])))
            low, high = (low, middle) if got >= wanted else (middle + 1, high)
        return low / 2**53

    return first_at_or_after(token + 1) - first_at_or_after(token)


def test_every_token_has_its_measure_and_rare_ones_too():
    probs = tensor([0.3, 1e-6, 0.2, 1e-9, 0.5 - 1e-6 - 1e-9, 0.0])
    for token, p in enumerate(probs.tolist()):
        assert measure(probs.log(), token) == pytest.approx(p, abs=1e-12)
        assert measure(probs.log().float(), token) == pytest.approx(p, abs=1e-7 * p**0.5 + 1e-12)  # rounding of logits
    assert measure((5 * probs).log(), 1) == pytest.approx(1e-6, abs=1e-12)  # rows need not be normalised


def test_a_rare_token_among_many_keeps_its_chance():
    """With float32 noise a token of chance 1e-6 loses most of it. The last of 50,258 tokens here."""
    size = 50_258
    logits = torch.randn(size, generator=torch.Generator().manual_seed(0))
    logits[-1] = torch.logsumexp(logits[:-1], 0) + math.log(1e-6)
    truth = torch.softmax(logits.double(), 0)
    for token in (size - 1, 17, int(logits.argmin())):
        assert measure(logits, token) == pytest.approx(float(truth[token]), abs=1e-12)


def test_counts_over_a_grid_are_exact():
    probs, n = tensor([0.25, 1e-4, 0.4999, 0.25]), 1_000_000
    grid = (torch.arange(n, dtype=torch.float64) + 0.5) / n
    total = torch.softmax(probs.log(), -1).expand(1000, V)
    tokens = torch.cat([masking.categorical(total.log(), part) for part in grid.split(1000)])
    counts = torch.bincount(tokens, minlength=V).tolist()
    assert counts == [250_000, 100, 499_900, 250_000]


@pytest.mark.parametrize("dead", [0, 1, 3])
def test_a_token_without_mass_never_comes_wherever_it_is(dead):
    """SUBS puts -inf on [MASK]: at both ends of the uniform and at every boundary it must not appear."""
    rng = np.random.default_rng(dead)
    logits = tensor(rng.normal(size=(300, V)) * 5)
    logits[:, dead] = -math.inf
    edges = torch.softmax(logits, -1).cumsum(-1)
    for uniform in (torch.zeros(300), torch.full((300,), 1 - 2**-53), *edges.unbind(-1), *(edges - 2**-53).unbind(-1)):
        tokens = masking.categorical(logits, uniform.double().clamp(0, 1 - 2**-53))
        assert (tokens != dead).all() and (tokens < V).all()


def test_categorical_takes_no_rows_at_all():
    assert masking.categorical(torch.zeros(0, V), torch.zeros(0, dtype=torch.float64)).shape == (0,)


@pytest.mark.parametrize("prior", ["mask", "uniform"])
@pytest.mark.parametrize("steps", [1, 4])
def test_the_diffusion_loss_of_either_prior_is_brute_force(prior, steps):
    """Sum over steps of E_q(z_t|x) KL(q(z_s|z_t,x) || q(z_s|z_t,x̂)), from `masking` and from matrices."""
    pi, guess, loss, truth = PRIORS[prior], np.array([0.5, 0.05, 0.25, 0.2]), 0.0, 0.0
    for i in range(1, steps + 1):
        alpha_s, alpha_t = 1 - (i - 1) / steps, 1 - i / steps
        ends = tensor(alpha_s), tensor(alpha_t), tensor(pi)
        at_t = masking.marginal(tensor(one_hot(2)), ends[1], ends[2])
        for z in range(V):
            if at_t[z] > 0 and not (prior == "mask" and z != MASK):  # carry-over: unmasked positions cost nothing
                q = masking.posterior(tensor(one_hot(z)), tensor(one_hot(2)), *ends)
                p = masking.posterior(tensor(one_hot(z)), tensor(guess), *ends)
                loss += float(at_t[z] * (torch.xlogy(q, q) - torch.xlogy(q, p)).sum())
                rows = [bayes(z, x, alpha_s, alpha_t, pi) for x in (one_hot(2), guess)]
                truth += noise_matrix(alpha_t, pi)[2, z] * kl(*rows)
    assert loss == pytest.approx(truth, rel=1e-12) and loss > 0.1
