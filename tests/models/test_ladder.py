"""The ladder from MDLM to D3PM (paper appendix A.2): bounds by enumeration, samplers by their law, the command line.

`Scripted` keys say which time and which mask a row gets, so that expectations are sums over all of them, not means.
"""

from __future__ import annotations

import functools
import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles.enumeration import (
    CLEAN,
    LENGTH,
    MASK,
    SCHEDULES,
    XS,
    Denoiser,
    State,
    TableNet,
    V,
    bayes,
    conditionals,
    d3pm,
    keep_grid,
    kl,
    masked_states,
    nelbo_discrete,
    one_hot,
    random_joint,
    step_law,
    subs,
)
from oracles.laws import collect, masks_of, ruled, written
from support.drawing import check, finish, generate, keys_of, outcomes, p_value, request_of
from support.helpers import folder, random_model, refused, run, settings, tiny_config, train_once
from unmask.config import METHODS
from unmask.models.masked import MaskedDiffusion, Objective
from unmask.models.registry import model
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean, Parameterization, Score
from unmask.process.schedule import ContinuousTime, DiscreteTime, Law
from unmask.sampling import SAMPLERS, Ancestral, FirstHitting, RevealPlan, Windows
from unmask.types import Batch, UserError, Vocab

KINDS: dict[str, tuple[Parameterization, Callable[[np.ndarray], np.ndarray]]] = {
    "d3pm": (Mean(zero_mask=False, carry_over=False), d3pm),
    "no-carry-over": (Mean(carry_over=False), subs),
}
each_kind = pytest.mark.parametrize("kind", KINDS)
ONE_TIME = Objective(stratified=False)  # a row's time is its own uniform, which `Scripted` gives


# -- expectations, exactly -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scripted(Keys):
    """Keys that give each row a time and two masks, and say whether it is reconstructed."""

    time: Tensor = field(default_factory=lambda: torch.empty(0))  # (N,)
    hidden: Tensor = field(default_factory=lambda: torch.empty(0))  # (N, L) bool: of the step
    last_hidden: Tensor = field(default_factory=lambda: torch.empty(0))  # (N, L) bool: of the reconstruction
    drawn: bool = False  # whether rows are reconstructed

    def uniform(self, purpose: str, index: object, *shape: int) -> Tensor:
        if purpose == "time":
            return self.time
        hidden = {"mask": self.hidden, "last mask": self.last_hidden}[purpose]
        return hidden.double() * (1 - 2.0**-53)  # 0 is below any keep, and this one below none

    def permute(self, purpose: str, index: object, total: int) -> np.ndarray:
        assert purpose == "reconstruct" and total == 1
        return np.full(len(self.time), 0 if self.drawn else 1)


PATTERNS = torch.tensor(list(itertools.product([False, True], repeat=LENGTH)))


def chances(keep: np.ndarray) -> np.ndarray:
    """(nodes, patterns): chance of every pattern of masks."""
    n = PATTERNS.sum(1).numpy()
    return (1 - keep[:, None]) ** n * keep[:, None] ** (LENGTH - n)


def scripted(model: MaskedDiffusion, xs: Sequence[State], nodes: Sequence[float], last: bool) -> np.ndarray:
    """(xs, nodes, patterns): nats of every x, time and mask; with `last`, of the reconstruction alone."""
    time = torch.tensor(nodes, dtype=torch.float64).repeat_interleave(len(PATTERNS)).repeat(len(xs))
    masks = PATTERNS.repeat(len(xs) * len(nodes), 1)
    none = torch.zeros_like(masks)
    keys = Scripted(0, 0, time, none if last else masks, masks if last else none, last)
    tokens = torch.tensor(xs).repeat_interleave(len(nodes) * len(PATTERNS), 0)
    batch = Batch(tokens, torch.arange(len(time)), 1)
    with torch.no_grad():
        nats = model.nats(batch, keys).nats
        if last:  # without what the step costs, which is something where it begins with all masked
            nats = nats - model.nats(batch, Scripted(0, 0, time, none, none)).nats
    assert torch.isfinite(nats).all()
    return nats.double().sum(1).view(len(xs), len(nodes), len(PATTERNS)).numpy()


def expected_discrete(model: MaskedDiffusion, xs: Sequence[State], keep: Sequence[float]) -> np.ndarray:
    """E[nats] of T steps for each x: T - 1 of them drawn evenly, and the reconstruction."""
    steps = len(keep) - 1
    nodes = [(j + 0.5) / (steps - 1) for j in range(steps - 1)]
    total = (chances(np.array([keep[1]])) * scripted(model, xs, [0.5 / steps], True)).sum((1, 2))
    if nodes:
        total += (chances(np.array(keep[2:])) * scripted(model, xs, nodes, False)).sum((1, 2)) / (steps - 1)
    return total


def expected_continuous(model: MaskedDiffusion, xs: Sequence[State], low: float, n: int = 80) -> np.ndarray:
    """E[nats] under the log-linear schedule, for which mask rate is time: Gauss-Legendre in [low, 1], and the rest."""
    node, weight = np.polynomial.legendre.leggauss(n)
    inside, rest = (node + 1) / 2, chances(np.array([1 - low]))
    at = chances(1 - (low + (1 - low) * inside))
    if not model.carry_over:
        value, end = scripted(model, xs, list(inside), False), scripted(model, xs, [0.5], True)
        return (at * value).sum(2) @ weight / 2 + (rest * end).sum((1, 2))
    value = scripted(model, xs, list(low + (1 - low) * inside), False)
    end = scripted(model, xs, [low / 2], False)
    return (1 - low) * (at * value).sum(2) @ weight / 2 + low * (rest * end).sum((1, 2))


def reconstruction(x: State, denoise: Denoiser, keep: float, t: float) -> float:
    """E over z of -log x̂(x) at all positions, masked or not."""
    total = 0.0
    for z, masked in masked_states(x):
        chance = (1 - keep) ** len(masked) * keep ** (len(x) - len(masked))
        if chance:
            guess = denoise(z, t)
            total -= chance * sum(guess[position, token] for position, token in enumerate(x))
    return total


def nelbo(x: State, denoise: Denoiser, keep: Sequence[float], times: Sequence[float]) -> float:
    """KL of steps 2 .. T from dense matrices, and the reconstruction from z at the first time."""
    return nelbo_discrete(x, denoise, keep[1:], times[1:]) + reconstruction(x, denoise, keep[1], times[1])


def network(seed: int, timed: bool, mass: float = 1.0) -> TableNet:
    net = TableNet.random(seed, timed)
    with torch.no_grad():
        net.table[..., MASK] += mass  # D3PM has to learn that nothing stays masked; this one has not
    return net


def model_of(kind: str, net: TableNet, law: Law, name: str = "log-linear") -> MaskedDiffusion:
    return MaskedDiffusion(net, SCHEDULES[name], law, KINDS[kind][0], ONE_TIME)


# -- the bound -------------------------------------------------------------------------------------------------------


@each_kind
@pytest.mark.parametrize(
    ("steps", "name", "timed"),
    [
        (1, "log-linear", True),
        (2, "log-linear", False),
        (2, "geometric wide cut", True),
        (5, "log-linear", True),
        (5, "geometric wide cut", False),
        (300, "cosine", True),
    ],
)
def test_nats_are_the_t_step_bound_of_the_matrices(kind, steps, name, timed):
    net = network(3, timed)
    keep, times = keep_grid(name, steps), [i / steps for i in range(steps + 1)]
    model, denoise = model_of(kind, net, DiscreteTime(steps), name), net.denoiser(name, KINDS[kind][1])
    xs = XS[5:6] if steps > 100 else XS[::4]
    truth = [nelbo(x, denoise, keep, times) for x in xs]
    assert expected_discrete(model, xs, keep) == pytest.approx(truth, rel=2e-5)


@pytest.mark.parametrize(("kind", "timed"), [("d3pm", True), ("d3pm", False), ("no-carry-over", True)])
def test_nats_in_continuous_time_are_the_limit_of_many_steps(kind, timed):
    """Log-linear: mask rate is time, so a fine grid of [cutoff, 1] is one of both; Richardson takes out the 1/T."""
    net, low = network(4, timed), 0.1
    model, denoise = model_of(kind, net, ContinuousTime(low)), net.denoiser("log-linear", KINDS[kind][1])
    for x in XS[5:6]:
        values = []
        for n in (60, 120, 240):
            times = [low + (1 - low) * i / n for i in range(n + 1)]
            values.append(nelbo_discrete(x, denoise, [1 - t for t in times], times))
        once = [2 * b - a for a, b in itertools.pairwise(values)]
        limit = (4 * once[1] - once[0]) / 3
        truth = limit + reconstruction(x, denoise, 1 - low, low)
        assert abs(once[1] - once[0]) < 1e-2  # the limit is near
        assert expected_continuous(model, [x], low, 200) == pytest.approx([truth], rel=1e-4)


def test_every_step_of_d3pm_is_the_published_formula():
    """Paper eq. A.2: T {u log[..] + (1 - u) log[..]}, u = (α_s - α_t)/(1 - α_t), typed from there."""
    steps, net, x = 6, network(8, False), (0, 3, 2)
    keep, z = keep_grid("log-linear", steps), (MASK,) * 3
    guess = np.exp(net.denoiser(log_x=d3pm)(z, 0.0))
    model = model_of("d3pm", net, DiscreteTime(steps))
    nodes = [(j + 0.5) / (steps - 1) for j in range(steps - 1)]
    got = scripted(model, [x], nodes, False)[0, :, -1] / (steps - 1)  # all masked
    for j, value in enumerate(got):
        s, t = keep[j + 1], keep[j + 2]
        total = 0.0
        for position, token in enumerate(x):
            m = guess[position, MASK]
            first = math.log((t * m + 1 - t) / ((1 - t) * guess[position, token]))
            second = math.log((1 - s) * (t * m + 1 - t) / ((1 - t) * (s * m + 1 - s)))
            total += (s - t) / (1 - t) * first + (1 - s) / (1 - t) * second
        assert value == pytest.approx(total, rel=1e-5)


@each_kind
@pytest.mark.parametrize("law", [DiscreteTime(1), DiscreteTime(2), DiscreteTime(7), ContinuousTime()], ids=repr)
def test_nothing_is_nan_not_even_a_gradient(kind, law):
    """Trap 3: the published code has 0 · log 0 at s = 0. And networks that are sure, of anything."""
    for name, scale in itertools.product(["log-linear uncut", "cosine", "linear 1e8", "geometric"], [1.0, 60.0]):
        net = network(1, True)
        with torch.no_grad():
            net.table *= scale
        model = MaskedDiffusion(net, SCHEDULES[name], law, KINDS[kind][0])
        batch = Batch(torch.tensor(XS), torch.arange(27), 27)
        for objective in (Objective(), Objective(cross_entropy=True)):
            model.objective = objective
            net.table.grad = None
            for step in range(3):
                loss, weight = model.loss(batch, Keys(0, step))
                assert torch.isfinite(loss) and float(weight) > 0
                loss.backward()
            assert torch.isfinite(net.table.grad).all() and (net.table.grad != 0).any()


@pytest.mark.parametrize(
    ("kind", "law"),
    [
        *itertools.product(KINDS, [DiscreteTime(1), DiscreteTime(2), DiscreteTime(5)]),
        *itertools.product([*KINDS, "sedd"], [ContinuousTime(0.05), ContinuousTime(0.6)]),
    ],
    ids=str,
)
def test_no_network_gives_more_than_one_in_all(kind, law):
    """The sum over all x of exp(-nats(x)) is at most 1, for any network."""
    for seed, timed in ((0, False), (1, True)):
        net = network(seed, timed, mass=-3.0)  # not much on [MASK]: a gate that is nearly touched is the harder one
        if isinstance(law, DiscreteTime):
            nats = expected_discrete(model_of(kind, net, law), XS, keep_grid("log-linear", law.steps))
        else:
            meaning = Score() if kind == "sedd" else KINDS[kind][0]
            model = MaskedDiffusion(net, SCHEDULES["log-linear"], law, meaning, ONE_TIME)
            nats = expected_continuous(model, XS, law.cutoff, 40)
        total = np.exp(-nats).sum()
        assert total < 1 + 1e-5
        if law == DiscreteTime(1) and kind == "no-carry-over":
            assert total == pytest.approx(1, abs=1e-5)  # one step from all masks is an exact law


def exact_net(joint: dict[State, float], shift: float = 0.0) -> TableNet:
    """The exact conditionals with no mass on [MASK]; a token that is there is copied."""
    table, denoise = np.zeros((V + 1,) * LENGTH + (LENGTH, V)), conditionals(joint)
    for z in itertools.product(range(V), repeat=LENGTH):
        table[z] = np.maximum(denoise(z, math.nan), -60.0) + shift
    return TableNet(table)


@pytest.mark.parametrize("kind", [*KINDS, "sedd"])
def test_exact_conditionals_give_the_likelihood_of_every_sequence(kind):
    """Every rung of the ladder, and SEDD with the exact score, against -log p(x) itself."""
    joint, low = random_joint(5), 1e-3
    meaning = Score() if kind == "sedd" else KINDS[kind][0]
    net = exact_net(joint, math.log(V - 1) if kind == "sedd" else 0.0)
    model = MaskedDiffusion(net, SCHEDULES["log-linear"], ContinuousTime(low), meaning, ONE_TIME)
    assert expected_continuous(model, XS, low) == pytest.approx([-math.log(joint[x]) for x in XS], abs=1e-4)


# -- one row in four -------------------------------------------------------------------------------------------------


def batch_of(copies: int) -> Batch:
    tokens = torch.tensor(XS * copies)
    return Batch(tokens, torch.arange(len(tokens)), len(tokens))


@each_kind
@pytest.mark.parametrize("law", [DiscreteTime(3), ContinuousTime(0.05)], ids=repr)
def test_nats_with_real_keys_are_unbiased(kind, law):
    """Strata, masks and the rows that are reconstructed, all drawn: the mean is the bound (|z| < 4)."""
    net, draws, copies = network(6, True), 50, 4
    model = MaskedDiffusion(net, SCHEDULES["log-linear"], law, KINDS[kind][0])
    fixed = model_of(kind, net, law)
    if isinstance(law, DiscreteTime):
        truth = expected_discrete(fixed, XS, keep_grid("log-linear", law.steps))
    else:
        truth = expected_continuous(fixed, XS, law.cutoff, 40)
    with torch.no_grad():
        rows = torch.stack([model.nats(batch_of(copies), Keys(3, d)).nats.double().sum(1) for d in range(draws)])
    values = rows.view(draws, copies, len(XS)).mean(1).numpy()
    error = values.std(0, ddof=1) / math.sqrt(draws)
    assert (error < 0.25 * truth).all()
    assert abs((values.mean(0) - truth) / error).max() < 4
    total = values.sum(1)
    assert abs(total.mean() - truth.sum()) < 4 * total.std(ddof=1) / math.sqrt(draws)


@pytest.mark.parametrize("total", [1, 4, 10])
def test_every_row_is_reconstructed_equally_often_and_weighs_so(total):
    """With one step there is nothing else: a row that is drawn costs -log x̂ · total/share, the others nothing."""
    net = network(2, False)
    model = MaskedDiffusion(net, SCHEDULES["log-linear"], DiscreteTime(1), KINDS["d3pm"][0])
    denoise = net.denoiser(log_x=d3pm)
    x, share, draws = XS[7], math.ceil(total / 4), 200
    full = reconstruction(x, denoise, 0.0, 1.0)
    batch = Batch(torch.tensor([x] * total), torch.arange(total), total)
    with torch.no_grad():
        nats = torch.stack([model.nats(batch, Keys(1, d)).nats.double().sum(1) for d in range(draws)]).numpy()
    assert ((nats > 0).sum(1) == share).all()
    assert nats[nats > 0] == pytest.approx(np.full(share * draws, full * total / share), rel=1e-5)
    assert nats.sum(1) == pytest.approx(np.full(draws, total * full), rel=1e-5)  # no noise from the drawing itself
    chance = share / total
    assert abs((nats > 0).mean(0) - chance).max() <= 4.5 * math.sqrt(chance * (1 - chance) / draws)


@each_kind
@pytest.mark.parametrize("law", ["discrete", "continuous"])
def test_parts_of_a_batch_add_up_to_the_whole(kind, law):
    """Micro-batches and processes: sums, weights and gradients do not depend on how the global batch is cut."""
    bound = ["objective.bound=discrete", "objective.steps=5"] if law == "discrete" else []
    config = tiny_config(f"model.method={kind}", "data.length=6", *bound)
    model, tokens = random_model(config, Vocab(9, 4)), torch.randint(5, 9, (13, 6))
    batch, keys = Batch(tokens, torch.arange(13), 13), Keys(3, 5)
    whole, weight = model.loss(batch, keys)
    truth = float(whole.detach())
    gradient = torch.autograd.grad(whole, list(model.parameters()), allow_unused=True)
    each = model.nats(batch, keys).nats.detach()
    for cut in ([7], [1, 2, 3, 4, 9], [12]):
        which = torch.arange(13)[torch.randperm(13)].tensor_split(cut)
        parts = [batch.rows(rows) for rows in which]
        losses = [model.loss(part, keys) for part in parts]
        total = torch.stack([loss for loss, _ in losses]).sum()
        assert float(total.detach()) == pytest.approx(truth, rel=1e-5)
        assert sum(int(w) for _, w in losses) == int(weight) == 78
        for part, rows in zip(parts, which, strict=True):
            torch.testing.assert_close(model.nats(part, keys).nats.detach(), each[rows], rtol=1e-4, atol=1e-5)
        again = torch.autograd.grad(total, list(model.parameters()), allow_unused=True)
        for a, b in zip(again, gradient, strict=True):
            assert (a is None) == (b is None)
            if a is not None:
                torch.testing.assert_close(a, b, rtol=1e-3, atol=1e-4)


@each_kind
@pytest.mark.parametrize("law", [DiscreteTime(1), DiscreteTime(4), ContinuousTime()], ids=repr)
def test_every_process_makes_equally_many_passes(kind, law):
    """Sharded weights are gathered in every pass: a process that left one out would leave the others waiting."""
    net = network(0, False)
    model = MaskedDiffusion(net, SCHEDULES["log-linear"], law, KINDS[kind][0])
    with torch.no_grad():
        for row in range(27):
            net.calls.clear()
            model.nats(batch_of(1).rows(torch.tensor([row])), Keys(0))
            assert net.calls == [1, 1]


@each_kind
def test_only_scored_positions_are_reconstructed_and_padding_is_not_seen(kind):
    config = tiny_config(f"model.method={kind}", "data.length=8", "objective.bound=discrete", "objective.steps=2")
    model, real = random_model(config, Vocab(9, 4)), torch.arange(8) < torch.tensor([8, 5, 3, 1])[:, None]
    tokens = torch.randint(5, 9, (4, 8))
    found = []
    for filler in (0, 6):
        padded = Batch(torch.where(real, tokens, filler), torch.arange(4), 4, scored=real, present=real)
        found.append(torch.stack([model.nats(padded, Keys(0, d)).nats.detach() for d in range(8)]))
    torch.testing.assert_close(found[0], found[1], rtol=0, atol=0)
    assert (found[0][:, ~real] == 0).all() and (found[0][:, real] > 0).any(0).all()
    some = real & (torch.arange(8) % 2 == 0)
    part = Batch(tokens, torch.arange(4), 4, scored=some, present=real)
    for d in range(8):
        torch.testing.assert_close(model.nats(part, Keys(0, d)).nats.detach(), found[0][d] * some, rtol=1e-4, atol=1e-5)


# -- the sampler -----------------------------------------------------------------------------------------------------


def ladder_law(start: State, denoise: Denoiser, name: str, steps: int) -> dict[State, float]:
    """T - 1 steps by the posterior of the bound, then all that was not given is written from x̂ without [MASK]."""
    keep, law = keep_grid(name, steps), {start: 1.0}
    for i in range(steps, 1, -1):
        law = step_law(law, denoise, i / steps, keep[i - 1], keep[i])
    clean = ruled(denoise, lambda position, token: token != MASK)
    own = masks_of(start)
    return collect((state, c * p) for z, c in law.items() for state, p in written(z, clean(z, 1 / steps), own))


@each_kind
@pytest.mark.parametrize(
    ("name", "steps", "canvas", "timed"),
    [
        ("log-linear", 3, (MASK,) * 3, True),
        ("geometric wide cut", 2, (MASK,) * 2, True),
        ("cosine", 1, (MASK, 2, MASK), False),
    ],
)
def test_the_law_of_the_sampler(kind, name, steps, canvas, timed):
    net, n = network(7, timed), 500
    denoise = net.denoiser(name, KINDS[kind][1])
    law = ladder_law(canvas, denoise, name, steps)
    model = MaskedDiffusion(net, SCHEDULES[name], parameterization=KINDS[kind][0])
    counts = outcomes(model, [canvas] * n, Ancestral(steps), keys_of(n), batch_size=n)
    assert sum(law.values()) == pytest.approx(1) and p_value(counts, law) > 1e-3
    if steps > 1:  # and it is not the law of a model that carries over
        kept = collect(
            (state, c * p)
            for z, c in _before_last(canvas, denoise, name, steps).items()
            for state, p in written(z, ruled(denoise, lambda _, y: y != MASK)(z, 1 / steps), masks_of(z))
        )
        assert p_value(counts, kept) < 1e-3


def _before_last(start: State, denoise: Denoiser, name: str, steps: int) -> dict[State, float]:
    keep, law = keep_grid(name, steps), {start: 1.0}
    for i in range(steps, 1, -1):
        law = step_law(law, denoise, i / steps, keep[i - 1], keep[i])
    return law


@dataclass(frozen=True)
class Grid(Keys):
    """Keys whose uniforms are every point of an even grid: measures by counting instead of by chance."""

    def uniform(self, purpose: str, index: object, *shape: int) -> Tensor:
        n = shape[-1]
        return ((torch.arange(n, dtype=torch.float64) + 0.5) / n).expand(1, *shape)


@pytest.mark.parametrize("name", ["log-linear", "linear 3", "geometric wide cut"])
def test_the_chance_of_a_reveal_is_that_of_the_posterior_of_the_bound(name):
    """With much mass on [MASK] it matters which alpha is meant: that of the process that ends in all masks."""
    steps, n, x_hat = 4, 20_000, np.array([0.2, 0.55, 0.15, 0.1])
    model = MaskedDiffusion(network(0, False), SCHEDULES[name], parameterization=KINDS["d3pm"][0])
    course = Ancestral(steps).trajectory(request_of(torch.full((n,), MASK), Ancestral(steps), Grid(0)), model)
    keep, most = keep_grid(name, steps), 0.0
    for i in range(steps, 1, -1):
        most = max(most, 1 - float(bayes(MASK, x_hat, keep[i - 1], keep[i], one_hot(MASK))[MASK]))
        look = course.candidates()
        course.choose(course.score(torch.from_numpy(np.log(x_hat)).float().expand(len(look), V)))
        course.write(course.due(), torch.zeros(len(course.due()), dtype=torch.int64))
        assert int((course.canvas != MASK).sum()) / n == pytest.approx(most, abs=2 / n)
    assert most > 0.1 and len(course.candidates()) == n  # the next one writes all


@each_kind
@pytest.mark.parametrize(("name", "steps"), [("log-linear", 3), ("geometric wide cut", 4)])
def test_the_bound_is_a_bound_of_what_is_sampled(kind, name, steps):
    """The loss and the sampler have the same posterior: nats(x) >= -log p(x) of the sampler, for every x."""
    net = exact_net(random_joint(2))
    with torch.no_grad():
        net.table[..., MASK] = math.log(0.1)
    law = ladder_law((MASK,) * 3, net.denoiser(name, KINDS[kind][1]), name, steps)
    model, keep = model_of(kind, net, DiscreteTime(steps), name), keep_grid(name, steps)
    gaps = expected_discrete(model, XS, keep) + [math.log(law[x]) for x in XS]
    assert min(gaps) > -1e-5 and np.mean(gaps) < 1  # not by being loose


@pytest.mark.parametrize("kind", [*KINDS, "sedd"])
@pytest.mark.parametrize("plan", [Ancestral(1), Ancestral(4), Ancestral(4, euler=True)], ids=repr)
def test_states_tell_the_whole_story(kind, plan):
    """Given tokens stand, every change is reported, and what is called fixed never changes, also by the last step."""
    meaning = Score() if kind == "sedd" else KINDS[kind][0]
    model = MaskedDiffusion(network(1, True), SCHEDULES["geometric wide cut"], parameterization=meaning)
    canvases = [[MASK] * 3, [0, MASK, 3], [2, 2, 2], [MASK], [3, MASK, MASK], [MASK, 2, MASK], [0]] * 4
    now, fixed = {i: list(c) for i, c in enumerate(canvases)}, dict.fromkeys(range(len(canvases)), 0)
    told: dict[int, list] = {}
    for state in generate(model, [torch.tensor(c) for c in canvases], plan, keys_of(len(canvases)), batch_size=5):
        for position, token in zip(state.positions.tolist(), state.tokens.tolist(), strict=True):
            assert canvases[state.row][position] == MASK and token in CLEAN
            now[state.row][position] = token
        assert state.canvas.tolist() == now[state.row]
        assert ((state.probs > 0) & (state.probs <= 1)).all()
        assert fixed[state.row] <= state.fixed
        fixed[state.row] = state.fixed
        told.setdefault(state.row, []).append(state)
    changed = 0
    for row, states in told.items():
        last = states[-1].canvas.tolist()
        assert states[-1].done and MASK not in last and states[-1].fixed == len(last)
        assert all(a in (MASK, b) for a, b in zip(canvases[row], last, strict=True))
        for before, after in itertools.pairwise(states):
            assert after.canvas.tolist()[: before.fixed] == before.canvas.tolist()[: before.fixed]
            changed += sum(a not in (MASK, b) for a, b in zip(before.canvas.tolist(), last, strict=True))
    assert (changed > 0) == (kind != "sedd" and plan.steps > 1)


@each_kind
def test_a_sample_does_not_depend_on_its_batch_and_windows_move_on(kind):
    model = MaskedDiffusion(network(1, True), SCHEDULES["log-linear"], parameterization=KINDS[kind][0])
    canvases = [[MASK] * 3, [0, MASK, 3], [MASK], [MASK, 2]]
    for plan in (Ancestral(3), Windows(Ancestral(2), 2, 1)):
        whole = [s.canvas.tolist() for s in finish(model, canvases, plan, keys_of(4))]
        assert [s.canvas.tolist() for s in finish(model, canvases, plan, keys_of(4), batch_size=1)] == whole
        assert whole[1][0] == 0 and whole[1][2] == 3 and whole[3][1] == 2


@pytest.mark.parametrize("plan", [RevealPlan(3), FirstHitting()], ids=repr)
def test_plans_that_are_drawn_ahead_are_refused(plan):
    for meaning in (*(KINDS[kind][0] for kind in KINDS), Score()):
        model = MaskedDiffusion(network(1, False), SCHEDULES["log-linear"], parameterization=meaning)
        with pytest.raises(UserError, match="choose the textbook ancestral sampler"):
            finish(model, [[MASK] * 3], plan, keys_of(1))
        with pytest.raises(UserError, match="choose the textbook ancestral sampler"):
            check(model, torch.tensor([MASK] * 3), plan)


def test_one_step_of_the_oracle_is_one_of_the_matrices():
    """The published ratio of D3PM's step, from the posterior itself, so that the oracles above stand on something."""
    guess, s, t = np.array([0.3, 0.4, 0.2, 0.1]), 0.7, 0.4
    q, p = (bayes(MASK, g, s, t, one_hot(MASK)) for g in (one_hot(2), guess))
    assert q == pytest.approx([0, 0.5, 0.5, 0])  # u = 0.3/0.6
    evidence = t * guess[MASK] + 1 - t
    assert p == pytest.approx([0.09 / evidence, 1 - 0.18 / evidence, 0.06 / evidence, 0.03 / evidence])
    assert kl(q, p) > 0


# -- the command line ------------------------------------------------------------------------------------------------

TRAINED = [
    "data.length=12",
    "train.steps=2",
    "train.batch_size=4",
    "eval.rows=4",
    "eval.draws=2",
    "sample.every=2",
    "sample.n=1",
    "sample.steps=4",
    "train.checkpoint_every=2",
    "train.log_every=1",
]


@functools.cache
def run_of(method: str) -> str:
    more = ["model.time_conditioning=true"] if method in ("d3pm", "sedd") else []
    return str(train_once(f"ladder {method}", "tiny", *settings(*TRAINED, f"model.method={method}", *more)))


TRAINABLE = ["d3pm", "no-carry-over", "sedd", "ar"]


@pytest.mark.parametrize("method", TRAINABLE)
def test_train_eval_score_and_sample_on_the_command_line(method):
    model = run_of(method)
    found = run("eval", model, "--draws", "3", "--rows", "6", "--json").json()
    assert math.isfinite(found["perplexity"]) and found["tokens"] == 6 * 12
    if method == "ar":
        assert found["stderr_nats"] == 0 and found["protocol"]["draws"] == 1
        assert found["protocol"]["bound"] == "exact" and "exact" in found["protocol"]["estimator"]
    else:
        assert found["stderr_nats"] > 0 and found["protocol"]["draws"] == 3
    assert ("reconstruction" in found["protocol"]) == (method in KINDS)
    scored = run("score", model, "one two", "--json").json()
    assert scored["tokens"] == 7 and scored["nats"] > 0
    steps = [] if method == "ar" else ["--steps", "6"]
    drawn = run("sample", model, "-n", "2", *steps, "--json").json()
    want = "left-to-right" if method == "ar" else "ancestral"
    assert drawn["protocol"]["sampler"] == want and len(drawn["samples"]) == 2


def test_the_wrong_sampler_is_a_sentence():
    assert "ancestral" in refused("sample", run_of("d3pm"), "--sampler", "plan")
    assert "left-to-right" in refused("sample", run_of("ar"), "--sampler", "plan")
    for sampler in ("analytic", "euler"):
        protocol = run("sample", run_of("sedd"), "--sampler", sampler, "--steps", "3", "--json").json()["protocol"]
        assert protocol["sampler"] == sampler and protocol["steps"] == 3


def test_samples_that_cannot_be_drawn_are_refused_before_the_training():
    """The recipes of the paper draw samples every 50,000 steps: that is late for a sentence."""
    out = folder() / "never begun"
    more = settings(*TRAINED, "model.method=ar", "objective.start_token=false")
    assert "no start symbol" in refused("train", "tiny", *more, "--quiet", "--out", str(out))
    assert not (out / "config.yaml").exists()
    assert "length=99" in refused("train", "tiny", *settings(*TRAINED, "sample.length=99"), "--out", str(out))


def test_bounds_that_a_method_does_not_have_are_a_sentence():
    more = settings("model.method=sedd", "objective.bound=discrete", "objective.steps=4")
    assert "objective.bound=continuous" in refused(
        "train", "tiny", *more, "--quiet", "--out", str(folder() / "ladder no")
    )


@pytest.mark.parametrize("method", METHODS)
def test_every_method_can_be_built_and_says_what_it_is(method):
    model = random_model(tiny_config(f"model.method={method}", "data.length=32"), Vocab(9, 4))
    batch = Batch(torch.randint(5, 9, (5, 32)), torch.arange(5), 5)
    loss, weight = model.loss(batch, Keys(0))
    assert torch.isfinite(loss) and float(weight) > 0
    assert model.describe() and model.default_sampler in SAMPLERS
    assert model.exact == (method == "ar") and model.likelihood == (method != "ssd-lm")


@pytest.mark.parametrize("change", ["objective.clip=[0.3,0.8]", "objective.loss=cross-entropy"])
@pytest.mark.parametrize("method", ["d3pm", "no-carry-over"])
def test_without_carry_over_copying_must_be_learnt(method: str, change: str) -> None:
    """Neither of these losses has the reconstruction in it: the model's bound would be worse than nothing."""
    config = tiny_config(f"model.method={method}", change)
    with pytest.raises(UserError, match="learns to copy"):
        model(config, Vocab(9, 4))
