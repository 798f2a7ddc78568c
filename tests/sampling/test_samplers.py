"""Samplers against the exact T-step law, found by enumerating every step; contracts; how a token is chosen."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from scipy import stats

from oracles.enumeration import (
    ALPHAS,
    CLEAN,
    LENGTH,
    MASK,
    SCHEDULES,
    TableNet,
    V,
    ancestral_law,
    d3pm,
    keep_grid,
    random_joint,
    step_law,
)
from oracles.laws import collect, filtered, masks_of, ruled, time_of, written
from support.drawing import CANVASES, finish, generate, keys_of, model_of, outcomes, p_value, request_of
from unmask.models.masked import MaskedDiffusion
from unmask.process.parameterization import Mean
from unmask.process.schedule import Schedule
from unmask.sampling import Ancestral, Choice, FirstHitting, RevealPlan, stack, time_grid
from unmask.types import State, UserError, Vocab

PLANS = [RevealPlan, Ancestral]
N = 1000  # samples a law is judged by; one test below says what that can tell apart
each_plan = pytest.mark.parametrize("plan", PLANS)


# -- (c) the law -----------------------------------------------------------------------------------------------------

LAWS = {
    "a joint's exact conditionals": ("log-linear", 3, (MASK,) * 3, "exact"),
    "any network": ("cosine", 2, (MASK,) * 3, "plain"),
    "a given token": ("square", 3, (MASK, 2, MASK), "plain"),
    "time-conditioned and cut": ("geometric wide cut", 3, (MASK,) * 2, "timed"),
}


@pytest.mark.parametrize(("case", "plan"), [*((case, RevealPlan) for case in LAWS), (list(LAWS)[-1], Ancestral)])
def test_the_law_is_the_exact_t_step_law(case, plan):
    name, steps, canvas, kind = LAWS[case]
    net = TableNet.exact(random_joint()) if kind == "exact" else TableNet.random(7, timed=kind == "timed")
    law = ancestral_law(canvas, net.denoiser(name), name, steps)
    counts = outcomes(MaskedDiffusion(net, SCHEDULES[name]), [canvas] * N, plan(steps), keys_of(N), batch_size=N)
    assert p_value(counts, law) > 1e-3


def test_the_test_of_the_law_can_tell_laws_apart():
    """Power: one step more or less, or the left-overs of a cut schedule without a step of their own, are noticed."""
    denoise, start = TableNet.random(7).denoiser(), (MASK,) * 3
    right = ancestral_law(start, denoise, "cosine", 2)
    cut = ancestral_law(start, denoise, "geometric wide cut", 2)
    alpha = [1.0, *(ALPHAS["geometric wide cut"](t) for t in (0.5, 1.0))]
    merged = step_law(step_law({start: 1.0}, denoise, 1.0, alpha[1], alpha[2]), denoise, 0.5, alpha[0], alpha[1])
    for truth, wrong in ((right, ancestral_law(start, denoise, "cosine", 3)), (cut, merged)):
        counts = Counter({x: round(N * p) for x, p in wrong.items()})
        assert p_value(counts, truth) < 1e-3


def mass_law(start: tuple[int, ...], denoise, name: str, steps: int) -> dict[tuple[int, ...], float]:
    """T steps where x̂ has mass on [MASK]: after the last one masks are left, which are drawn from the clean tokens.

    The process is the one that the bound is of: it ends in all masks, whatever alpha(1) is.
    """
    keep, law = keep_grid(name, steps, cut=True), {start: 1.0}
    for i in range(steps, 0, -1):
        law = step_law(law, denoise, i / steps, keep[i - 1], keep[i])
    clean = ruled(denoise, lambda position, token: token != MASK)
    return collect((state, c * p) for z, c in law.items() for state, p in written(z, clean(z, 0.0), masks_of(z)))


@pytest.mark.parametrize(
    ("name", "steps", "canvas", "is_timed"),
    [
        ("log-linear", 3, (MASK,) * 3, False),
        ("geometric wide cut", 2, (MASK, 2, MASK), True),
        ("cosine", 1, (MASK,), False),
    ],
)
def test_the_textbook_is_exact_where_the_network_has_mass_on_mask(name, steps, canvas, is_timed):
    """D3PM: the network has a say in when a position is revealed. What is left in the end is drawn, not left."""
    net = TableNet.random(7, timed=is_timed)
    with torch.no_grad():
        net.table[..., MASK] += 1.5
    law = mass_law(canvas, net.denoiser(name, d3pm), name, steps)
    model = MaskedDiffusion(net, SCHEDULES[name], parameterization=Mean(zero_mask=False))
    counts = outcomes(model, [canvas] * 300, Ancestral(steps), keys_of(300), batch_size=300)
    assert p_value(counts, law) > 1e-3
    without = ancestral_law(canvas, net.denoiser(name), name, steps)
    assert len(canvas) == 1 or p_value(counts, without) < 1e-3  # and that is not the law of SUBS


def test_reveal_plan_and_ancestral_agree():
    """Two independent samples of the same law, without an oracle between them."""
    model = model_of("log-linear", seed=3, timed=True)
    first, second = (
        outcomes(model, [(MASK,) * 2] * N, plan(3), keys_of(N, seed), batch_size=N) for seed, plan in enumerate(PLANS)
    )
    table = np.array([[counts[x] for counts in (first, second)] for x in first | second])
    table = np.concatenate([table[table.sum(1) >= 10], table[table.sum(1) < 10].sum(0, keepdims=True)])
    assert stats.chi2_contingency(table[table.sum(1) > 0]).pvalue > 1e-3


@dataclass(frozen=True)
class Grid:
    """Keys whose uniforms are every point of an even grid: measures by counting instead of by chance."""

    n: int

    def uniform(self, purpose: str, index, length: int) -> torch.Tensor:
        assert length == self.n
        return ((torch.arange(self.n, dtype=torch.float64) + 0.5) / self.n)[None]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("steps", [1, 3, 7])
def test_chance_of_every_reveal_step(name, steps):
    """(alpha_s - alpha_t)/(1 - alpha_1), and (1 - alpha_0)/(1 - alpha_1) for what is left over."""
    n = 50_000
    _, alphas = time_grid(SCHEDULES[name], steps)
    reveal = RevealPlan.draw(torch.ones(n, dtype=torch.bool), alphas, Grid(n))
    alpha = [ALPHAS[name](1 - k / steps) for k in range(steps + 1)]
    chance = [(alpha[k + 1] - alpha[k]) / (1 - alpha[0]) for k in range(steps)] + [(1 - alpha[-1]) / (1 - alpha[0])]
    counts = torch.bincount(reveal, minlength=steps + 1) / n
    assert counts.tolist() == pytest.approx(chance, abs=2 / n)
    given = RevealPlan.draw(torch.zeros(n, dtype=torch.bool), alphas, Grid(n))
    assert (given == -1).all()


@pytest.mark.parametrize("name", SCHEDULES)
def test_first_hitting_times(name):
    """The share of positions that is written by time t is keep(t), exactly; the rest comes together at t = 0."""
    n, model = 300, model_of(name)
    course = FirstHitting().trajectory(request_of(torch.full((n,), MASK), FirstHitting(), Grid(n)), model)
    last = keep_grid(name, 1, cut=True)[0]
    in_time = sum((i + 0.5) / n < last for i in range(n))
    for i, (step, t, positions) in enumerate(course.events[:in_time]):
        assert step == i and positions.tolist() == [i]  # the grid's numbers rise from left to right
        assert t == pytest.approx(time_of(name, (i + 0.5) / n), abs=1e-9)
    rest = [(event.step, event.t, event.positions.tolist()) for event in course.events[in_time:]]
    assert rest == ([(in_time, 0.0, list(range(in_time, n)))] if in_time < n else [])


# -- contracts -------------------------------------------------------------------------------------------------------


@each_plan
@pytest.mark.parametrize("name", ["log-linear", "geometric wide cut", "linear 1e8"])
@pytest.mark.parametrize("steps", [1, 2, 50])
def test_given_tokens_never_change_and_no_mask_is_left(plan, name, steps):
    model, keys = model_of(name, timed=True), keys_of(len(CANVASES))
    before = [list(c) for c in CANVASES]
    canvases = {row: list(c) for row, c in enumerate(CANVASES)}
    for state in generate(model, [torch.tensor(c) for c in CANVASES], plan(steps), keys, batch_size=3):
        was, now = canvases[state.row], state.canvas.tolist()
        changed = [i for i in range(len(now)) if was[i] != now[i]]
        assert changed == state.positions.tolist()  # every write is reported, and a token is written once
        assert all(was[i] == MASK and now[i] in CLEAN for i in changed)
        assert state.tokens.tolist() == [now[i] for i in changed]
        assert ((state.probs > 0) & (state.probs <= 1)).all() and len(state.probs) == len(changed)
        assert 0 <= state.step <= steps and state.t == pytest.approx(1 - state.step / steps)
        canvases[state.row] = now
        if state.done:
            assert MASK not in now
    assert all(MASK not in canvas for canvas in canvases.values())
    assert before == CANVASES


def test_canvases_are_not_written_to():
    canvas = torch.tensor([MASK, 0, MASK])
    for plan in PLANS:
        list(generate(model_of(), [canvas], plan(3), keys_of(1)))
        assert canvas.tolist() == [MASK, 0, MASK]


@pytest.mark.parametrize("steps", [1, 2, 3, 1000])
def test_a_plan_calls_the_network_only_when_something_is_revealed(steps):
    model = model_of()
    for state in finish(model, CANVASES, RevealPlan(steps), keys_of(len(CANVASES)), batch_size=4):
        masks = CANVASES[state.row].count(MASK)
        assert state.calls <= min(steps, masks) and (state.calls > 0) == (masks > 0)
    assert sum(model.backbone.calls) == sum(  # rows through the network, over all calls
        state.calls for state in finish(model_of(), CANVASES, RevealPlan(steps), keys_of(len(CANVASES)))
    )
    cut = finish(model_of("geometric wide cut"), CANVASES, RevealPlan(steps), keys_of(len(CANVASES)))
    assert all(state.calls <= min(steps + 1, CANVASES[state.row].count(MASK)) for state in cut)  # and the left-overs


@pytest.mark.parametrize("steps", [1, 2, 5])
def test_every_state_counts_its_calls_and_steps(steps):
    events: dict[int, list[State]] = {}
    for state in generate(model_of(), [torch.tensor(c) for c in CANVASES], RevealPlan(steps), keys_of(len(CANVASES))):
        events.setdefault(state.row, []).append(state)
    for row, states in events.items():
        masks = CANVASES[row].count(MASK)
        assert [s.calls for s in states] == (list(range(1, len(states) + 1)) if masks else [0])
        assert [s.step for s in states] == sorted({s.step for s in states})
        assert sum(len(s.positions) for s in states) == masks
        assert [s.done for s in states] == [False] * (len(states) - 1) + [True]


@each_plan
@pytest.mark.parametrize("name", ["log-linear", "geometric wide cut"])
def test_a_sample_does_not_depend_on_its_batch(plan, name):
    model, keys = model_of(name, timed=True), keys_of(len(CANVASES))
    whole = [state.canvas.tolist() for state in finish(model, CANVASES, plan(3), keys, batch_size=100)]
    for size in (1, 2, 5):
        assert [s.canvas.tolist() for s in finish(model, CANVASES, plan(3), keys, batch_size=size)] == whole
    order = [4, 0, 7, 5]
    some = finish(model, [CANVASES[i] for i in order], plan(3), [keys[i] for i in order], batch_size=3)
    assert [s.canvas.tolist() for s in some] == [whole[i] for i in order]


def test_a_seed_is_a_sample():
    model = model_of()
    first, again, other = (
        [s.canvas.tolist() for s in finish(model, [[MASK] * 3] * 40, RevealPlan(8), keys_of(40, seed))]
        for seed in (0, 0, 1)
    )
    assert first == again and first != other


@each_plan
def test_nothing_to_do(plan):
    assert list(generate(model_of(), [], plan(3), [])) == []
    (state,) = finish(model_of(), [[2, 0, 3]], plan(1), keys_of(1))
    assert state.canvas.tolist() == [2, 0, 3]


@each_plan
@pytest.mark.parametrize("steps", [0, -3])
def test_no_steps_is_a_sentence(plan, steps):
    with pytest.raises(UserError, match=f"steps={steps}"):
        list(generate(model_of(), [torch.tensor([MASK])], plan(steps), keys_of(1)))


@pytest.mark.parametrize("schedule", SCHEDULES.values(), ids=SCHEDULES)
def test_time_grid_ends_are_exact(schedule: Schedule):
    times, alphas = time_grid(schedule, 7)
    assert times[0] == 1 and times[-1] == 0 and (alphas.diff() >= 0).all() and (times.diff() < 0).all()
    assert torch.equal(alphas, schedule.alpha(times))


def test_stack_fills_with_pad_and_says_what_exists():
    short, long = torch.tensor([2]), torch.tensor([0, MASK])
    z, present = stack([short, long], Vocab(V, MASK, pad=3))
    assert z.tolist() == [[2, 3], [0, MASK]] and present.tolist() == [[True, False], [True, True]]
    z, present = stack([long, long], Vocab(V, MASK))
    assert present is None and z.shape == (2, 2)


# -- Choice ----------------------------------------------------------------------------------------------------------

LOG_X = torch.tensor([[0.5, 0.0, 0.3, 0.15, 0.05]]).log()


def law_of(choice: Choice, log_x: torch.Tensor = LOG_X, n: int = 2000) -> list[float]:
    """Share of an even grid of uniforms that gives each token."""
    tokens, _ = choice(log_x.expand(n, -1), (torch.arange(n, dtype=torch.float64) + 0.5) / n)
    return (torch.bincount(tokens, minlength=log_x.shape[1]) / n).tolist()


def scaled(weights) -> list[float]:
    return [w / sum(weights) for w in weights]


@pytest.mark.parametrize(
    ("choice", "weights"),
    [
        (Choice(), [0.5, 0, 0.3, 0.15, 0.05]),
        (Choice(temperature=0), [1, 0, 0, 0, 0]),
        (Choice(temperature=0.5), [0.25, 0, 0.09, 0.0225, 0.0025]),
        (Choice(temperature=2), [math.sqrt(p) for p in (0.5, 0, 0.3, 0.15, 0.05)]),
        (Choice(top_k=1), [1, 0, 0, 0, 0]),
        (Choice(top_k=2), [0.5, 0, 0.3, 0, 0]),
        (Choice(top_k=100), [0.5, 0, 0.3, 0.15, 0.05]),
        (Choice(top_p=1e-9), [1, 0, 0, 0, 0]),  # never nothing
        (Choice(top_p=0.45), [1, 0, 0, 0, 0]),
        (Choice(top_p=0.6), [0.5, 0, 0.3, 0, 0]),  # the token that crosses 0.6 stays in
        (Choice(top_p=0.81), [0.5, 0, 0.3, 0.15, 0]),
        (Choice(top_p=1), [0.5, 0, 0.3, 0.15, 0.05]),
        (Choice(top_k=3, top_p=0.6), [0.5, 0, 0.3, 0, 0]),  # 0.5/0.95 < 0.6: top-p of what top-k left
        (Choice(temperature=0.5, top_p=0.6), [1, 0, 0, 0, 0]),  # 0.25/0.365 > 0.6: temperature first
        (Choice(min_p=0.5), [0.5, 0, 0.3, 0, 0]),
        (Choice(min_p=0.2), [0.5, 0, 0.3, 0.15, 0]),
        (Choice(min_p=0.0), [0.5, 0, 0.3, 0.15, 0.05]),
        (Choice(min_p=1.0), [1, 0, 0, 0, 0]),
        (Choice(temperature=0.5, min_p=0.5), [1, 0, 0, 0, 0]),  # 0.09/0.25 < 0.5: temperature first
        (Choice(top_p=0.96, min_p=0.2), [0.5, 0, 0.3, 0.15, 0]),
        (Choice(top_k=3, top_p=0.85, min_p=0.4), [0.5, 0, 0.3, 0, 0]),
        (Choice(top_k=2, top_p=0.7), [0.5, 0, 0.3, 0, 0]),  # 0.5/0.8 < 0.7; with all it would have been 0.5 + 0.3 > 0.7
        (Choice(temperature=2, top_k=2, top_p=0.55), [1, 0, 0, 0, 0]),  # 0.707/1.255 > 0.55
    ],
    ids=repr,
)
def test_the_law_of_a_choice(choice, weights):
    assert law_of(choice) == pytest.approx(scaled(weights), abs=1e-3)


@pytest.mark.parametrize("scales", [(6.0,), (0.3,), (6.0, 0.3, 2.0)])  # few tokens hold nearly all, or all alike
def test_top_p_of_a_large_vocabulary_is_that_of_all_tokens_in_order(scales):
    rows = torch.stack([torch.randn(3000, generator=torch.Generator().manual_seed(1)) * scale for scale in scales])
    for p in (0.05, 0.5, 0.9, 0.999):
        for row, kept in zip(rows.double().numpy(), Choice(top_p=p).filtered(rows).isfinite(), strict=True):
            order = np.argsort(-row)
            sums = np.cumsum(np.exp(row[order]) / np.exp(row).sum())
            want = order[: int(np.searchsorted(sums, p)) + 1]
            assert set(torch.nonzero(kept).squeeze(-1).tolist()) == set(want.tolist())


@pytest.mark.parametrize("choice", [Choice(), Choice(top_k=3), Choice(top_p=1.0), Choice(temperature=1)], ids=repr)
def test_a_rare_token_keeps_its_chance_through_the_choice(choice):
    """Uniforms just inside and just outside of the 1e-6 that belong to the rare token."""
    log_x = torch.tensor([[0.4, 1e-6, 0.6 - 1e-6]], dtype=torch.float64).log()
    edges = torch.tensor([0.4 - 1e-12, 0.4 + 1e-12, 0.4 + 1e-6 - 1e-12, 0.4 + 1e-6 + 1e-12], dtype=torch.float64)
    assert choice(log_x.expand(4, -1), edges)[0].tolist() == [0, 1, 1, 2]


def test_a_choice_reports_what_the_network_gave_whatever_the_filter():
    tokens, probs = Choice(temperature=0.3, top_k=2)(LOG_X.expand(50, -1), torch.linspace(0, 0.999, 50).double())
    torch.testing.assert_close(probs, LOG_X.exp()[0, tokens])


def test_ties_and_rows_of_one_token():
    flat = torch.zeros(1, 4)
    assert law_of(Choice(), flat) == pytest.approx([0.25] * 4, abs=1e-3)
    assert sum(p > 0 for p in law_of(Choice(top_p=0.5), flat)) == 2
    assert law_of(Choice(top_k=2), flat) == law_of(Choice(min_p=1.0), flat) == law_of(Choice(), flat)  # as likely
    sure = torch.tensor([[-math.inf, 0.0, -math.inf]])
    for choice in (Choice(), Choice(temperature=0), Choice(top_k=2), Choice(top_p=0.5), Choice(temperature=1e-3)):
        assert law_of(choice, sure) == [0, 1, 0]


@pytest.mark.parametrize("temperature", [1e-3, 1e-30, 1e-40, 1e-300])
def test_a_temperature_near_zero_is_the_most_likely_token(temperature):
    """Dividing by it overflows float32 long before a user runs out of zeros; NaN would write any token, even [MASK]."""
    log_x = torch.tensor([[0.2, 0.0, 0.5, 0.3], [0.9, 0.0, 0.05, 0.05]]).log()
    tokens, _ = Choice(temperature=temperature)(log_x, torch.tensor([0.99, 0.5], dtype=torch.float64))
    assert tokens.tolist() == [2, 0]


@each_plan
def test_filters_never_change_when_a_position_is_revealed(plan):
    model, keys = model_of(), keys_of(30)
    canvases = [torch.tensor([MASK, 2, MASK][: 1 + i % 3]) for i in range(30)]

    def clock(choice: Choice) -> list[tuple]:
        states = generate(model, canvases, plan(4), keys, choice=choice, batch_size=30)
        return sorted((s.row, s.step, s.positions.tolist()) for s in states)

    plain = clock(Choice())
    for choice in (Choice(temperature=0), Choice(temperature=3), Choice(top_k=1), Choice(top_p=0.2)):
        assert clock(choice) == plain


CHOICES = [
    {"temperature": 0.6}, {"top_k": 2}, {"top_p": 0.7}, {"min_p": 0.3}, {"temperature": 1.8, "top_p": 0.8},
    {"temperature": 0.5, "top_k": 2, "top_p": 0.9, "min_p": 0.1},
]  # fmt: skip


@pytest.mark.parametrize("how", CHOICES, ids=repr)
def test_filters_are_the_oracles_on_any_rows(how):
    """Exactly, row by row: 200 random distributions, with a token that cannot be."""
    log_x = torch.randn(200, 1, 6, dtype=torch.float64) * 2
    log_x[..., MASK] = -math.inf
    log_x = torch.log_softmax(log_x, -1)
    rows = torch.softmax(Choice(**how).filtered(log_x[:, 0]), -1)
    expected = np.stack([np.exp(filtered(lambda z, t, row=row: row, **how)((MASK,), 0.0)[0]) for row in log_x.numpy()])
    np.testing.assert_allclose(rows.numpy(), expected, atol=1e-9)


def test_filters_change_the_law_as_the_enumeration_says():
    """Top-k inside the sampler: the exact law with a denoiser that was cut by hand."""
    net = TableNet.random(9)
    plain = net.denoiser("log-linear")

    def top_2(z, t):
        out = plain(z, t).copy()
        for row in out:
            row[np.argsort(row)[:-2]] = -np.inf
        return out - np.log(np.exp(out).sum(-1, keepdims=True))

    law = ancestral_law((MASK,) * LENGTH, top_2, "log-linear", 3)
    model = MaskedDiffusion(net, SCHEDULES["log-linear"])
    counts = outcomes(model, [(MASK,) * 3] * N, RevealPlan(3), keys_of(N), choice=Choice(top_k=2), batch_size=N)
    assert p_value(counts, law) > 1e-3


@pytest.mark.parametrize(
    ("field", "value"),
    list(itertools.product(["temperature"], [-1.0, math.inf, math.nan]))
    + list(itertools.product(["top_k"], [0, -2]))
    + list(itertools.product(["top_p"], [0.0, 1.5, -0.1, math.nan]))
    + list(itertools.product(["min_p"], [-0.1, 1.1, math.nan])),
)
def test_a_wrong_choice_is_a_sentence_that_names_it(field, value):
    with pytest.raises(UserError, match=f"{field}={value}"):
        Choice(**{field: value})
