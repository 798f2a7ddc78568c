"""Samplers that take tokens back: their tables of legs, the share of masks, and what a walk does with them."""

from __future__ import annotations

import math

import pytest
import torch

from oracles.enumeration import MASK, SCHEDULES, TableNet, ancestral_law, keep_grid
from oracles.laws import corrector_legs, legs_law, remask_legs, time_of
from support.drawing import close, generate, keys_of, model_of, request_of, tensors
from unmask.process.keys import Keys
from unmask.sampling import PredictorCorrector, Remasking
from unmask.sampling.sampler import Sampler

PLANS = [
    (Remasking(1, "cap", 0.3), ("cap", 0.3)),
    (Remasking(7, "cap", 0.3), ("cap", 0.3)),
    (Remasking(6, "cap", 1.0, (0.6, 0.2)), ("cap", 1.0, (0.6, 0.2))),
    (Remasking(5, "rescale", 0.4), ("rescale", 0.4)),
    (Remasking(5, "rescale", 1.0, (0.8, 0.0)), ("rescale", 1.0, (0.8, 0.0))),
    (Remasking(10, "loop", 0.2, (0.55, 0.05)), ("loop", 0.2, (0.55, 0.05))),
    (Remasking(9, "loop", 0.9, (1.0, 0.0), 0.5), ("loop", 0.9, (1.0, 0.0), 0.5)),
]
each_schedule = pytest.mark.parametrize("name", SCHEDULES)


def table(plan: Sampler, name: str) -> list[tuple[float, float, float]]:
    legs = plan.legs(SCHEDULES[name])
    return list(zip(legs.t.tolist(), legs.reveal.tolist(), legs.sigma.tolist(), strict=True))


def flat(legs) -> list[float]:
    return [value for each in legs for value in each]


@each_schedule
@pytest.mark.parametrize(("plan", "same"), PLANS, ids=lambda value: repr(value) if isinstance(value, Sampler) else "")
def test_legs_of_remasking(plan, same, name):
    legs = remask_legs(name, plan.steps, *same)
    assert all(0 <= reveal <= 1 + 1e-12 and 0 <= sigma <= 1 for _, reveal, sigma in legs)
    assert flat(table(plan, name)) == pytest.approx(flat(legs), abs=1e-9)


@each_schedule
@pytest.mark.parametrize("how", [(4, 1, 0.3, (1.0, 0.0)), (5, 3, 0.9, (0.7, 0.3)), (1, 2, 0.5, (1.0, 0.0))], ids=repr)
def test_legs_of_a_corrector(how, name):
    assert flat(table(PredictorCorrector(*how), name)) == pytest.approx(flat(corrector_legs(name, *how)), abs=1e-9)


def shares(legs) -> list[float]:
    """The exact share of masks after each leg, from all masks on."""
    out, masks = [], 1.0
    for _, reveal, sigma in legs:
        masks = masks * (1 - reveal) + (1 - masks) * sigma
        out.append(masks)
    return out


@each_schedule
@pytest.mark.parametrize("plan", [p for p, same in PLANS if same[0] != "loop"], ids=repr)
def test_the_share_of_masks_stays_the_schedules(plan, name):
    """1 - keep at every time of the grid, whatever is taken back; in the end nothing is masked."""
    keep = keep_grid(name, plan.steps, cut=True)[::-1]
    got = shares(table(plan, name))
    assert got[: plan.steps] == pytest.approx([1 - k for k in keep[1:]], abs=1e-9) and got[-1] == 0


@each_schedule
def test_a_corrector_leaves_the_share_of_masks_where_it_was(name):
    legs = table(PredictorCorrector(3, 2, 0.4), name)
    keep, got = keep_grid(name, 3, cut=True)[::-1], shares(legs)
    corrected = [sigma > 0 for _, _, sigma in legs]
    assert any(corrected) or name == "linear 1e8"
    for leg, inside in enumerate(corrected):
        if inside:
            assert got[leg] == pytest.approx(got[leg - 1], abs=1e-12)
    for k in keep[1:]:
        assert min(abs(share - (1 - k)) for share in got) < 1e-9
    assert got[-1] == 0


@pytest.mark.parametrize("name", ["log-linear", "cosine", "geometric wide cut"])
def test_a_loop_stands_where_it_is_told_to(name):
    legs = table(Remasking(20, "loop", 0.3, (0.6, 0.3), 0.7), name)
    standing = [i for i, (_, _, sigma) in enumerate(legs) if sigma > 0]
    assert len(standing) >= 4 and standing == list(range(standing[0], standing[-1] + 1))
    for i in standing:
        assert shares(legs)[i] == pytest.approx(1 - 0.7, abs=1e-9)  # the others fall
        assert legs[i][0] == pytest.approx(time_of(name, 0.7), abs=1e-9)  # the network is told that time
    falling = [share for i, share in enumerate(shares(legs)) if i not in standing]
    assert falling == sorted(falling, reverse=True)


@pytest.mark.parametrize("plan", [Remasking(4, kind, 0.0) for kind in ("cap", "rescale")], ids=repr)
@pytest.mark.parametrize("name", ["cosine", "geometric wide cut"])
def test_without_strength_it_is_ancestral(plan, name):
    """By enumeration of the package's own table; and nothing is ever taken back."""
    denoise, start = TableNet.random(4, timed=True).denoiser(name), (MASK,) * 3
    assert close(legs_law(start, denoise, table(plan, name)), ancestral_law(start, denoise, name, 4)) < 1e-9
    states = list(generate(model_of(name, timed=True), tensors([start] * 20), plan, keys_of(20)))
    assert all((state.tokens != MASK).all() for state in states)


# -- the walk, without a network -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan",
    [Remasking(6, "cap", 0.3), Remasking(6, "rescale", 0.5, (0.7, 0.2)), PredictorCorrector(4, 1, 0.4)],
    ids=repr,
)
def test_a_walk_keeps_to_its_legs(plan):
    """40,000 positions: every leg reveals and takes back its share of those that may change, each independently."""
    n, name = 40_000, "geometric wide cut"
    canvas = torch.full((n,), MASK)
    canvas[::4] = 2  # given
    course, ours = plan.trajectory(request_of(canvas, plan, Keys(3)), model_of(name)), canvas == MASK
    for number, (_, reveal, sigma) in enumerate(table(plan, name)):
        before = course.canvas.clone()
        due = course.due()
        assert course.step == course.leg == number and (before[due] == MASK).all()
        positions, tokens = course.write(due, torch.zeros_like(due))
        back = positions[tokens == MASK]
        assert (ours[positions]).all() and (before[back] == 0).all()
        for count, chance, among in (
            (len(due), reveal, int((before == MASK).sum())),
            (len(back), sigma, int((ours & (before != MASK)).sum())),
        ):
            assert abs(count - chance * among) <= 4.5 * math.sqrt(among * chance * (1 - chance)) + 1e-6 * among
        for half in (0, 1):  # no matter where in the canvas
            part = due[(due % 8 < 4) == bool(half)]
            assert abs(len(part) - len(due) / 2) < 4.5 * math.sqrt(len(due)) / 2 + 1
    assert course.finished and (course.canvas[~ours] == 2).all() and (course.canvas != MASK).all()


def test_a_walk_draws_new_tokens_for_what_was_taken_back():
    """Otherwise it would write the same token again and mend nothing."""
    plan, model = PredictorCorrector(2, 6, 0.9), model_of()
    course = plan.trajectory(request_of(torch.full((2000,), MASK), plan, Keys(0)), model)
    drawn = []
    while not course.finished:
        due = course.due()
        drawn.append((due, course.uniform(due)))
        course.write(due, torch.zeros_like(due))
    (a, first), (b, second) = drawn[1], drawn[3]  # written, taken back in the leg between, and written again
    both = a[torch.isin(a, b)]
    pair = torch.stack([first[torch.isin(a, both)], second[torch.isin(b, both)]])
    assert len(both) > 100 and abs(float(torch.corrcoef(pair)[0, 1])) < 4 / math.sqrt(len(both))


def test_the_network_sees_a_leg_as_it_begins():
    """What is taken back in a leg is still seen in it: legs are products over positions given the canvas before."""
    plan, model = Remasking(6, "rescale", 1.0), model_of()
    seen, hidden = [], model.hidden
    model.hidden = lambda z, *more, **named: (seen.append(z[0].tolist()), hidden(z, *more, **named))[1]
    for key in keys_of(30):
        seen.clear()
        start = [MASK] * 3
        shown = [state.canvas.tolist() for state in generate(model, [torch.tensor(start)], plan, [key])]
        assert seen == [start, *shown[:-1]]


def test_legs_without_a_reveal_cost_no_call():
    """Many legs, three positions: as many calls as legs in which something is written."""
    model = model_of()
    for state in generate(model, tensors([[MASK] * 3] * 20), Remasking(400, "cap", 0.004), keys_of(20)):
        assert (state.tokens != MASK).any() and state.calls < 40
