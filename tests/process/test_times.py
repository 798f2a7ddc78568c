"""Times of the training and of the bound: parts, proposals, clipped ranges, strata, and losses that are no bound."""

from __future__ import annotations

import functools
import math
from typing import get_args

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor, nn

from oracles.enumeration import (
    ALPHAS,
    LENGTH,
    MASK,
    SCHEDULES,
    XS,
    TableNet,
    masked_states,
    subs,
)
from support.helpers import random_model, tiny_config
from unmask.config import METHODS, Config, ScheduleName, parse
from unmask.models import registry
from unmask.models.masked import MaskedDiffusion, Objective
from unmask.process.keys import Keys
from unmask.process.schedule import (
    ClippedTime,
    ContinuousTime,
    DiscreteTime,
    Draw,
    Geometric,
    Law,
    Linear,
    LogUniform,
    Polynomial,
    Schedule,
    independent,
    strata,
)
from unmask.types import Batch, UserError, Vocab

PROPOSALS: dict[str, Schedule] = {**SCHEDULES, "log-uniform": LogUniform(1e-3)}
SMOOTH = [name for name in SCHEDULES if name not in ("linear 1e8", "root", "geometric wide cut")]


@functools.cache
def pieces() -> tuple[Tensor, Tensor]:
    """(nodes, weights) of Gauss-Legendre on the eighths of [0, 1]."""
    node, weight = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(48))
    begin = torch.arange(8, dtype=torch.float64)[:, None] / 8
    return (begin + (node + 1) / 16).flatten(), (weight / 16).repeat(8)


def integral(law: Law, schedule: Schedule, cost) -> float:
    """E over the uniform of what a draw says of the whole: Gauss-Legendre on pieces."""
    last = law.last(schedule)
    node, weight = pieces()
    total = 0.0
    for low, high in ((0.0, last), (last, 1.0)):
        if high > low:
            draw = law.draw(low + (high - low) * node, schedule)
            total += (high - low) * float((weight * value_of(draw, cost)).sum())
    return total


def value_of(draw: Draw, cost) -> Tensor:
    """What each draw says of the whole: an infinitesimal step costs its rate, a finite one its chance of a reveal."""
    return draw.scale * torch.where(draw.finite, draw.u, 1.0) * (1 - draw.keep) * cost(draw.t, draw.keep)


COSTS = {
    "one": lambda t, keep: torch.ones_like(keep),
    "keep": lambda t, keep: keep,
    "bent": lambda t, keep: torch.exp(-2 * keep) * (1 + keep**3),
}


# -- split -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 2, 49])
def test_the_parts_of_t_steps_are_the_steps(name, steps):
    """Every step once: T - 1 that are not the last, and the last, which ends at t = 0."""
    law, schedule = DiscreteTime(steps), SCHEDULES[name]
    middle = (torch.arange(max(1, steps - 1), dtype=torch.float64) + 0.5) / max(1, steps - 1)
    inner, last = law.split(middle, schedule)
    whole = law.draw((torch.arange(steps, dtype=torch.float64) + 0.5) / steps, schedule)
    for cost in COSTS.values():
        each = value_of(whole, cost) / steps
        if steps > 1:
            torch.testing.assert_close(value_of(inner, cost) / (steps - 1), each[1:], rtol=1e-12, atol=1e-14)
        torch.testing.assert_close(value_of(last, cost), each[:1].expand(len(middle)), rtol=1e-12, atol=1e-14)
    if steps > 1:
        assert (inner.u < 1).all() and inner.t.tolist() == pytest.approx(whole.t[1:].tolist(), abs=1e-15)
    else:
        assert (inner.scale == 0).all()  # there is no other step
    assert (last.u == 1).all() and last.t.tolist() == pytest.approx([1 / steps] * len(middle))
    assert law.last(schedule) == pytest.approx(1 / steps)


CONTINUOUS = {
    "plain": ContinuousTime(0.02),
    "proposed": ContinuousTime(0.02, Polynomial(2.0, 0.0)),
    "log-uniform": ContinuousTime(0.02, LogUniform(0.01)),
    "clipped": ClippedTime(0.2, 0.9),
}


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize("kind", CONTINUOUS)
def test_the_parts_of_continuous_time_add_up_to_the_draw(name, kind):
    law, schedule = CONTINUOUS[kind], SCHEDULES[name]
    node, weight = pieces()
    inner, last = law.split(node, schedule)
    assert not inner.finite.any()
    for cost in COSTS.values():
        inside, rest = float((weight * value_of(inner, cost)).sum()), float(value_of(last, cost)[0])
        rest = rest if law.last(schedule) else 0.0
        assert inside + rest == pytest.approx(integral(law, schedule, cost), rel=1e-4, abs=1e-9)
    if kind != "clipped":
        assert last.finite.all() and (last.u == 1).all()
        chance = float(1 - last.keep[0])
        assert law.last(schedule) == pytest.approx(chance, rel=1e-9) and (last.scale == pytest.approx(1, rel=1e-9))
    else:
        assert law.last(schedule) == 0 and (last.scale == 0).all()


@given(steps=st.integers(1, 2000), place=st.sampled_from([0.0, 2**-53, 1e-17, 0.5, 1 - 2**-53, 1.0]))
def test_a_step_that_is_not_the_last_is_not_the_last(steps, place):
    """Also where 1/T times T is not 1 in float64."""
    inner, last = DiscreteTime(steps).split(torch.tensor([place], dtype=torch.float64), Polynomial())
    assert steps == 1 or (float(inner.t) > 1.5 / steps and float(inner.u) < 1)
    assert float(last.t) == pytest.approx(1 / steps)


# -- proposals -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["log-linear", "cosine", "geometric wide cut"])
@pytest.mark.parametrize("proposal", [name for name in PROPOSALS if name not in ("linear 1e8", "geometric wide cut")])
def test_a_proposal_changes_no_integral(name, proposal):
    """∫ cost dκ from 0 to 1 - last, and the last step: no schedule is left in it but for the names of the times."""
    cutoff, schedule = 0.01, SCHEDULES[name]
    left_over = 1 - float(schedule.keep(torch.zeros((), dtype=torch.float64)))
    low = max(cutoff, left_over)
    kappa, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(100))
    kappa, w = (kappa + 1) / 2 * (1 - low), w / 2 * (1 - low)
    law = ContinuousTime(cutoff, PROPOSALS[proposal])
    assert law.last(schedule) == pytest.approx(low, rel=1e-6)
    for cost in COSTS.values():
        end = torch.tensor([1 - low], dtype=torch.float64)
        truth = float((w * cost(kappa, kappa)).sum() + low * cost(end, end)[0])
        assert integral(law, schedule, cost) == pytest.approx(truth, rel=1e-4)


@pytest.mark.parametrize("name", ["log-linear", "geometric wide cut", "cosine"])
@pytest.mark.parametrize("proposal", ["square", "cosine", "log-uniform"])
def test_every_time_keeps_its_name(name, proposal):
    """A network that is told the time hears the model's own one, at which that much is masked."""
    schedule, u = SCHEDULES[name], torch.linspace(0, 1, 101, dtype=torch.float64)
    draw = ContinuousTime(0.01, PROPOSALS[proposal]).draw(u, schedule)
    torch.testing.assert_close(schedule.keep(draw.t), draw.keep, rtol=1e-7, atol=1e-9)
    plain = ContinuousTime(0.01).draw(u[:1], schedule)
    assert float(draw.t[0]) == pytest.approx(float(plain.t[0]), abs=1e-9)
    assert all(torch.isfinite(getattr(draw, field)).all() for field in ("t", "keep", "u", "scale"))


@pytest.mark.parametrize("timed", [False, True])
@pytest.mark.parametrize("proposal", ["square", "log-uniform"])
def test_the_bound_of_a_network_does_not_depend_on_the_proposal(timed, proposal):
    """The whole path: mean nats under a proposal against an enumeration in the model's own times (|z| < 4)."""
    net, name, low = TableNet.random(4, timed), "cosine", 0.05
    denoise = net.denoiser(name, subs)
    kappa, w = np.polynomial.legendre.leggauss(60)
    kappa, w = (kappa + 1) / 2 * (1 - low), w / 2 * (1 - low)
    end = ALPHAS[name](1.0)

    def time(k: float) -> float:
        return math.acos((end + k * (1 - end) - 1e-3) / 0.999) * 2 / math.pi

    def cost(x: tuple[int, ...], k: float) -> float:
        """E over masks of -log x̂ of the masked tokens."""
        total = 0.0
        for z, masked in masked_states(x):
            guess = denoise(z, time(k))
            chance = (1 - k) ** len(masked) * k ** (LENGTH - len(masked))
            total -= chance * sum(guess[i, x[i]] for i in masked)
        return total

    chosen = XS[::5]
    truth = [sum(wi / (1 - k) * cost(x, k) for k, wi in zip(kappa, w, strict=True)) + cost(x, 1 - low) for x in chosen]
    model = MaskedDiffusion(net, SCHEDULES[name], ContinuousTime(low, PROPOSALS[proposal]))
    tokens, copies, draws = torch.tensor(chosen).repeat(20, 1), 20, 30
    batch = Batch(tokens, torch.arange(len(tokens)), len(tokens))
    with torch.no_grad():
        rows = torch.stack([model.nats(batch, Keys(7, d)).nats.double().sum(1) for d in range(draws)])
    values = rows.view(draws, copies, len(chosen)).mean(1).numpy()
    error = values.std(0, ddof=1) / math.sqrt(draws)
    assert (error < 0.1 * np.array(truth)).all() and abs((values.mean(0) - truth) / error).max() < 4


def test_a_proposal_that_never_gets_there_is_a_sentence():
    """It would be another bound under the name of this one."""
    law = ContinuousTime(1e-3, LogUniform(0.1))
    with pytest.raises(UserError, match=r"mask rate 0\.1.*objective\.cutoff") as caught:
        law.draw(torch.zeros(1, dtype=torch.float64), Polynomial())
    assert "\n" not in str(caught.value)
    ContinuousTime(0.1, LogUniform(0.1)).draw(torch.zeros(1, dtype=torch.float64), Polynomial())


def test_every_named_proposal_reaches_the_default_cut_off():
    for name in get_args(ScheduleName):
        made = registry.law(Config().override([f"objective.proposal={name}"]).objective)
        assert isinstance(made, ContinuousTime) and made.proposal is not None
        draw = made.draw(torch.linspace(0, 1, 11, dtype=torch.float64), Polynomial())
        assert torch.isfinite(draw.scale).all() and float(1 - draw.keep[0]) == pytest.approx(1e-3, rel=1e-3)
        assert name.split("-")[0] in repr(made.proposal).lower() or name in ("log-linear", "cosine-squared")


# -- LogUniform ------------------------------------------------------------------------------------------------------


@given(low=st.floats(1e-6, 0.9), eps=st.sampled_from([0.0, 1e-3, 0.3]))
def test_log_uniform_by_calculus(low, eps):
    schedule = LogUniform(low, eps)
    t = torch.linspace(0, 1, 101, dtype=torch.float64).requires_grad_()
    (slope,) = torch.autograd.grad(schedule.alpha(t).sum(), t)
    t = t.detach()
    torch.testing.assert_close(schedule.dalpha(t), slope, rtol=1e-9, atol=1e-14)
    torch.testing.assert_close(schedule.inverse(schedule.alpha(t)), t, rtol=1e-7, atol=1e-7)
    torch.testing.assert_close(schedule.rate(t), torch.full_like(t, -math.log(low)), rtol=1e-6, atol=0)  # one weight
    rates = (1 - schedule.keep(t)).numpy()
    np.testing.assert_allclose(np.diff(np.log(rates)), -math.log(low) / 100, rtol=1e-5)  # evenly in the log
    assert rates[0] == pytest.approx(low, rel=1e-6) and rates[-1] == 1
    assert float(schedule.alpha(torch.ones((), dtype=torch.float64))) == pytest.approx(eps, abs=1e-12)


def test_log_uniform_as_a_proposal_gives_all_draws_one_weight():
    draw = ContinuousTime(1e-2, LogUniform(1e-2)).draw(torch.linspace(0.011, 1, 50, dtype=torch.float64), Polynomial())
    assert not draw.finite.any()
    torch.testing.assert_close(draw.scale, torch.full_like(draw.scale, math.log(100) / 0.99), rtol=1e-6, atol=0)


# -- ClippedTime -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", SMOOTH)
@pytest.mark.parametrize(("low", "high"), [(0.3, 0.8), (0.05, 1.0)])
def test_a_clipped_range_is_that_part_of_the_bound(name, low, high):
    schedule, law = SCHEDULES[name], ClippedTime(low, high)
    draw = law.draw(torch.linspace(0, 1, 1001, dtype=torch.float64), schedule)
    rates = 1 - draw.keep
    assert float(rates[0]) == pytest.approx(low, rel=1e-6) and float(rates[-1]) == pytest.approx(high, rel=1e-6)
    assert (rates.diff() > 0).all() and not draw.finite.any()
    assert draw.t.diff().numpy() == pytest.approx(np.full(1000, float(draw.t[-1] - draw.t[0]) / 1000), rel=1e-6)
    kappa, w = (torch.from_numpy(a) for a in np.polynomial.legendre.leggauss(60))
    kappa, w = 1 - high + (kappa + 1) / 2 * (high - low), w / 2 * (high - low)
    for cost in COSTS.values():
        truth = float((w * cost(kappa, kappa)).sum())
        assert integral(law, schedule, cost) == pytest.approx(truth, rel=1e-5)
    assert law.describe()["bound"] == f"none: mask rates {low} to {high} only"


def test_clipping_is_for_training_only():
    net, batch = TableNet.random(1), Batch(torch.tensor(XS), torch.arange(27), 27)
    plain = MaskedDiffusion(net, Polynomial())
    clipped = MaskedDiffusion(net, Polynomial(), objective=Objective(law=ClippedTime(0.4, 0.6)))
    for step in range(4):
        keys = Keys(0, step)
        assert torch.equal(clipped.nats(batch, keys).nats, plain.nats(batch, keys).nats)
        u = strata(batch.index, 27, keys)
        rate = 0.4 + 0.2 * u
        masked = keys.uniform("mask", range(27), LENGTH) >= (1 - rate)[:, None]
        denoise, total = net.denoiser(), 0.0
        for row, x in enumerate(XS):
            z = tuple(MASK if h else y for y, h in zip(x, masked[row].tolist(), strict=True))
            total -= 0.2 / float(rate[row]) * sum(denoise(z, 0.0)[i, y] for i, y in enumerate(x) if z[i] == MASK)
        loss, weight = clipped.loss(batch, keys)
        assert float(loss.detach()) == pytest.approx(total, rel=1e-4) and int(weight) == 81


# -- strata or not ---------------------------------------------------------------------------------------------------


def test_independent_times_have_the_same_mean_and_strata_less_variance():
    """Cost κ²: mean 1/3, by 400 batches of 16; a stratum of 1/16 leaves next to nothing of the variance."""
    total, found = 16, {}
    for draw in (strata, independent):
        u = torch.stack([draw(torch.arange(total), total, Keys(3, step)) for step in range(400)])
        assert u.dtype == torch.float64 and (u >= 0).all() and (u < 1).all()
        means = (u**2).mean(1)
        assert abs(float(means.mean()) - 1 / 3) < 4 * float(means.std()) / 20
        found[draw] = float(means.var())
    assert found[independent] == pytest.approx(4 / 45 / total, rel=0.35)
    assert found[strata] < 0.05 * found[independent]


def test_independent_times_do_not_depend_on_the_batch_and_are_said():
    keys = Keys(1, 2)
    whole = independent(torch.arange(9), 9, keys)
    assert torch.equal(independent(torch.tensor([7, 2]), 9, keys), whole[[7, 2]])
    assert torch.equal(independent(torch.arange(9), 1000, keys), whole) and len(whole.unique()) == 9
    net, batch = TableNet.random(1), Batch(torch.tensor(XS), torch.arange(27), 27)
    model = MaskedDiffusion(net, Polynomial(eps=0.0), objective=Objective(stratified=False))
    assert model.describe()["times"] == "independent" and "times" not in MaskedDiffusion(net, Polynomial()).describe()
    u = independent(torch.arange(27), 27, keys)
    masked = keys.uniform("mask", range(27), LENGTH) >= 1 - u.clamp(min=1e-3)[:, None]
    assert torch.equal(model.nats(batch, keys).nats > 0, masked)


@pytest.mark.parametrize("stratified", [True, False])
def test_both_ways_to_draw_times_estimate_one_bound(stratified):
    """SUBS on exact one-step costs: a constant network costs log 3 a token, whatever the times (|z| < 4)."""
    net = TableNet(np.zeros((5, 5, 5, 3, 4)))
    model = MaskedDiffusion(net, Polynomial(), ContinuousTime(0.05), objective=Objective(stratified=stratified))
    batch = Batch(torch.tensor(XS), torch.arange(27), 27)
    with torch.no_grad():
        sums = np.array([float(model.nats(batch, Keys(5, d)).nats.double().sum()) for d in range(120)])
    error = sums.std(ddof=1) / math.sqrt(120)
    assert abs(sums.mean() - 81 * math.log(3)) < 4 * error and error < 0.1 * 81


# -- cross-entropy ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["mdlm", "sedd"])
def test_cross_entropy_is_the_plain_mean_over_masked_tokens(method):
    """Against torch's own, row by row, on logits over the tokens that are not [MASK]."""
    vocab = Vocab(9, 4)
    config = tiny_config(f"model.method={method}", "data.length=6", "objective.loss=cross-entropy")
    model, tokens, keys = random_model(config, vocab), torch.randint(5, 9, (7, 6)), Keys(2, 3)
    scored = torch.rand(7, 6) < 0.8
    loss, weight = model.loss(Batch(tokens, torch.arange(7), 7, scored=scored), keys)
    draw = model.law.draw(strata(torch.arange(7), 7, keys), model.schedule)
    masked = keys.uniform("mask", range(7), 6) >= draw.keep[:, None]
    others, total, count = [y for y in range(9) if y != 4], 0.0, 0
    for row in range(7):
        z = torch.where(masked[row], 4, tokens[row])
        with torch.no_grad():
            hidden = model.backbone(z[None], condition=model.backbone.condition(torch.zeros(1)))[0][0]
            logits = model.backbone.head(hidden)[:, others]
        for i in range(6):
            if masked[row, i] and scored[row, i]:
                target = torch.tensor(others.index(int(tokens[row, i])))
                total += float(nn.functional.cross_entropy(logits[i], target))
                count += 1
    assert count > 5 and float(weight) == count
    assert float(loss.detach()) == pytest.approx(total, rel=1e-4)
    bound = tiny_config(f"model.method={method}", "data.length=6")
    batch = Batch(tokens, torch.arange(7), 7)
    assert torch.equal(model.nats(batch, keys).nats, random_model(bound, vocab).nats(batch, keys).nats)  # scored alike


def test_cross_entropy_of_nothing_is_nothing():
    net = TableNet.random(0)
    model = MaskedDiffusion(net, Polynomial(), objective=Objective(cross_entropy=True))
    nothing = Batch(torch.tensor(XS), torch.arange(27), 27, scored=torch.zeros(27, 3, dtype=torch.bool))
    loss, weight = model.loss(nothing, Keys(0))
    assert float(loss.detach()) == 0 and float(weight) == 0


# -- settings --------------------------------------------------------------------------------------------------------


def test_there_is_a_maker_for_every_method():
    assert all(callable(registry.maker(method)) for method in METHODS)


@pytest.mark.parametrize(
    ("wrong", "words"),
    [
        (["objective.proposal=cosinus"], "objective.proposal='cosinus'"),
        (["objective.proposal=cosine", "objective.bound=discrete", "objective.steps=4"], "proposal.*continuous"),
        (["objective.loss=mse"], "objective.loss='mse'"),
        (["objective.clip=[0.8,0.3]"], r"clip=\[0.8, 0.3\].*two mask rates"),
        (["objective.clip=[0,0.3]"], r"clip=\[0.0, 0.3\].*two mask rates"),
        (["objective.clip=[0.5,1.5]"], r"clip=\[0.5, 1.5\].*two mask rates"),
        (["objective.clip=[0.5]"], "objective.clip"),
        (["objective.clip=0.5"], "objective.clip"),
        (["objective.times=sobol"], "objective.times='sobol'"),
        (["objective.start_token=perhaps"], "objective.start_token"),
        (["schedule.low=0"], "schedule.low=0"),
        (["schedule.low=1"], "schedule.low=1"),
        (["model.method=mdml"], "model.method='mdml'"),
        (["schedule.name=loguniform"], "schedule.name='loguniform'"),
    ],
)
def test_wrong_settings_are_a_sentence(wrong, words):
    with pytest.raises(UserError, match=words) as caught:
        Config().override(wrong)
    assert "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_settings_become_what_they_say():
    made = tiny_config(
        "objective.proposal=log-uniform",
        "objective.loss=cross-entropy",
        "objective.clip=[0.3,0.8]",
        "objective.times=independent",
        "schedule.name=cosine",
        "schedule.low=1e-4",
        "schedule.eps=0.01",
    )
    model = registry.model(made, Vocab(9, 4))
    assert isinstance(model, MaskedDiffusion)
    assert model.law == ContinuousTime(made.objective.cutoff, LogUniform(1e-4, 0.01))
    assert model.objective == Objective(True, ClippedTime(0.3, 0.8), False)
    assert "LogUniform" in str(model.describe()["proposal"])
    assert parse(made.model_dump(mode="json")) == made  # a tuple goes through YAML and JSON as a list
    usual = registry.model(tiny_config(), Vocab(9, 4))
    assert usual.objective == Objective() and usual.law == ContinuousTime(made.objective.cutoff)
    for name, truth in (("log-uniform", LogUniform()), ("linear", Linear()), ("geometric", Geometric())):
        assert registry.schedule(Config().override([f"schedule.name={name}"]).schedule) == truth


def test_a_config_from_before_the_new_keys_means_what_it_meant():
    old = tiny_config().model_dump(mode="json")
    for key in ("proposal", "loss", "clip", "times", "start_token"):
        del old["objective"][key]
    del old["schedule"]["low"], old["model"]["method"]
    old["sample"]["steps"] = 128
    assert parse(old).override(["sample.steps=null"]) == tiny_config()
