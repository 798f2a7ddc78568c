"""What every plan keeps to, whatever its law: given tokens, reported changes, calls, batches, what it refuses."""

from __future__ import annotations

import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch

from oracles.enumeration import CLEAN, MASK, SCHEDULES, TableNet, V
from oracles.laws import masks_of
from support.drawing import (
    CANVASES,
    PLANS,
    TIMED,
    TIMELESS,
    each_plan,
    finish,
    generate,
    keys_of,
    model_of,
    plan_for,
    tensors,
    texts,
)
from support.helpers import random_model, tiny_config
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean, Score
from unmask.sampling import (
    Adaptive,
    Ancestral,
    Batcher,
    Choice,
    FirstHitting,
    LeftToRight,
    Remasking,
    Request,
    RevealPlan,
    Rules,
    Windows,
    token_step,
)
from unmask.types import State, UserError, Vocab

LONG = [[MASK] * 5, [MASK, 2, MASK, MASK, 0, MASK], [3, 3, 0, MASK]]  # for windows
TEXTBOOK = {"ancestral", "ancestral windows"}  # calls the network at every step, needed or not
TAKES_BACK = {"cap", "rescale", "loop", "corrector", "remasking windows", "gibbs", "gibbs sweeps", "gibbs windows"}


def canvases_for(name: str) -> list[list[int]]:
    return CANVASES + LONG if isinstance(PLANS[name], Windows) else CANVASES


def history(model: MaskedDiffusion, name: str, canvases: list[list[int]], **more) -> list[list[State]]:
    """All states of each canvas."""
    out: list[list[State]] = [[] for _ in canvases]
    plans = [plan_for(name, canvas) for canvas in canvases]
    for state in generate(model, tensors(canvases), plans, keys_of(len(canvases)), **more):
        out[state.row].append(state)
    return out


@each_plan
@pytest.mark.parametrize("schedule", ["log-linear", "geometric wide cut", "linear 1e8"])
def test_states_tell_the_whole_story(name, schedule):
    """Given tokens stand, every change is reported in order, no [MASK] is left, and `fixed` is kept to."""
    canvases = canvases_for(name)
    taken = 0
    for canvas, states in zip(
        canvases, history(model_of(schedule, timed=name in TIMED), name, canvases, batch_size=3), strict=True
    ):
        now, fixed, last = list(canvas), 0, states[-1].canvas.tolist()
        for state in states:
            for position, token, prob in zip(state.positions, state.tokens, state.probs, strict=True):
                assert canvas[position] == MASK and now[position] != token and 0 <= prob <= 1
                assert (token == MASK) == (now[position] != MASK) == (prob == 0)  # written, or taken back
                taken += int(token == MASK)
                now[position] = int(token)
            assert state.canvas.tolist() == now
            assert fixed <= state.fixed <= len(now) and now[: state.fixed] == last[: state.fixed]
            assert MASK not in now[: state.fixed]
            fixed = state.fixed
        assert [state.done for state in states] == [False] * (len(states) - 1) + [True]
        assert MASK not in last and set(last) <= set(CLEAN) and fixed == len(last)
        assert [c for c, x in zip(canvas, last, strict=True) if c != MASK] == [
            x for c, x in zip(canvas, last, strict=True) if c != MASK
        ]
    assert (taken > 0) == (name in TAKES_BACK) or schedule == "linear 1e8"  # else nothing was tried


@each_plan
def test_what_is_fixed_is_told_as_soon_as_it_is(name):
    """A stream shows text up to the first mask; only what may be taken back is held back to the end."""
    for canvas, states in zip(canvases_for(name), history(model_of(), name, canvases_for(name)), strict=True):
        for state in states:
            leading = (masks_of(tuple(state.canvas.tolist())) or [len(canvas)])[0]
            if name not in {*TAKES_BACK, "ancestral windows"} or state.done:  # its windows stay open for all T steps
                assert state.fixed == leading
            elif not isinstance(PLANS[name], Windows):
                assert state.fixed == masks_of(tuple(canvas))[0]


@each_plan
def test_calls_are_counted_and_never_empty(name):
    model, canvases = model_of(timed=name in TIMED), canvases_for(name)
    told = history(model, name, canvases, batch_size=4)
    assert sum(model.backbone.calls) == sum(states[-1].calls for states in told)
    for canvas, states in zip(canvases, told, strict=True):
        calls = range(1, len(states) + 1) if MASK in canvas or name in TEXTBOOK else [0]
        assert [s.calls for s in states] == list(calls)
        steps = [s.step for s in states]
        assert steps == sorted(set(steps)) and steps[0] >= 0
        if name not in TEXTBOOK and MASK in canvas:
            assert all((s.tokens != MASK).any() for s in states)
    if name in ("first-hitting", "left-to-right", "order", "confidence"):
        assert [states[-1].calls for states in told] == [canvas.count(MASK) for canvas in canvases]
    if name == "two at a time":
        assert [states[-1].calls for states in told] == [-(-canvas.count(MASK) // 2) for canvas in canvases]
    if name == "ancestral":
        assert {states[-1].calls for canvas, states in zip(canvases, told, strict=True)} == {3}


@each_plan
def test_batches_are_full_until_the_tail(name):
    """A finished sequence makes room at once: only after the last one has begun may calls get smaller."""
    model = model_of(timed=name in TIMED)
    finish(
        model,
        [[MASK] * 3, [MASK, 0, MASK]] * 7,
        [plan_for(name, [MASK] * (3 - i % 2)) for i in range(14)],
        keys_of(14),
        batch_size=5,
    )
    sizes = model.backbone.calls
    tail = next((i for i, size in enumerate(sizes) if size < 5), len(sizes))
    assert tail >= 2 and set(sizes[:tail]) == {5} and sizes[tail:] == sorted(sizes[tail:], reverse=True)


@each_plan
def test_a_sample_depends_on_its_key_and_on_nothing_else(name):
    model, canvases = model_of("geometric wide cut", timed=name in TIMED), canvases_for(name)
    plans = [plan_for(name, canvas) for canvas in canvases]
    before = [list(canvas) for canvas in canvases]
    given = tensors(canvases)
    whole = texts(model, canvases, plans, keys_of(len(canvases)))
    for size in (1, 3):
        assert texts(model, canvases, plans, keys_of(len(canvases)), batch_size=size) == whole
    list(generate(model, given, plans, keys_of(len(canvases))))
    assert [canvas.tolist() for canvas in given] == before == canvases  # nobody's canvas is written to
    for keys in ([Keys(i) for i in range(12)], [Keys(5, i) for i in range(12)]):
        assert len(set(texts(model, [[MASK] * 3] * 12, plan_for(name, [MASK] * 3), keys))) > 3


@each_plan
def test_chunks_of_the_head_change_nothing(name, monkeypatch):
    model, canvases = model_of(timed=name in TIMED), canvases_for(name)
    n, plans = len(canvases), [plan_for(name, canvas) for canvas in canvases_for(name)]
    more = {
        "choice": [Choice(), Choice(top_k=2)] * (n // 2) + [Choice(temperature=2)] * (n % 2),
        "controls": [None, Rules(frozenset({0})), Rules(allowed={})] * (n // 3) + [None] * (n % 3),
        "tops": 2,
    }
    whole = finish(model, canvases, plans, keys_of(n), **more)
    for rows in (1, 4):
        monkeypatch.setattr(token_step, "LOGITS_AT_ONCE", rows * V)
        for state, same in zip(finish(model, canvases, plans, keys_of(n), **more), whole, strict=True):
            assert state.canvas.tolist() == same.canvas.tolist()
            assert (state.tops is None) == (same.tops is None)
            if same.tops:
                assert state.tops[0].tolist() == same.tops[0].tolist()


@each_plan
def test_a_real_network_gives_the_columns_that_are_asked_for(name):
    """The last block may leave out columns that nobody wants: with and without that, the same texts and calls."""
    model, mask = random_model(tiny_config("data.length=12"), Vocab(20, 19)), 19
    canvases = [[mask] * 6, [3] * 9 + [mask] * 2, [1, mask, 3], [4, 4]]
    plans = [plan_for(name, [MASK if token == mask else 0 for token in canvas]) for canvas in canvases]
    takes = model.backbone.takes
    assert "queries" in takes
    runs = []
    for size in (1, 3):
        for model.backbone.takes in (takes, takes - {"queries"}):
            last = finish(model, canvases, plans, keys_of(len(canvases)), batch_size=size)
            runs.append([(state.canvas.tolist(), state.calls) for state in last])
            assert all(mask not in text for text, _ in runs[-1])
    assert runs[1:] == runs[:-1]


# -- what a state says of the network --------------------------------------------------------------------------------

NOT_WINDOWS = [name for name in PLANS if not isinstance(PLANS[name], Windows)]


@pytest.mark.parametrize("name", NOT_WINDOWS)
@pytest.mark.parametrize("m", [1, 2, 10])
def test_probabilities_and_alternatives_are_those_of_the_network(name, m):
    """Filters and rules shape what is drawn, never what is told of the network."""
    net = TableNet.random(2)
    model, denoise = MaskedDiffusion(net, SCHEDULES["log-linear"]), net.denoiser()
    more = {"choice": Choice(temperature=1.7, top_k=3), "controls": [Rules(frozenset({2}))] * len(CANVASES)}
    seen = 0
    for canvas, states in zip(CANVASES, history(model, name, CANVASES, tops=m, **more), strict=True):
        before = tuple(canvas)
        for state in states:
            law = np.exp(denoise(before, 0.5))
            written = int((state.tokens != MASK).sum())
            for i, (position, token) in enumerate(zip(state.positions[:written], state.tokens, strict=False)):
                assert float(state.probs[i]) == pytest.approx(law[position, token], rel=1e-5)
                ids, probs = state.tops[0][i].tolist(), state.tops[1][i].tolist()
                order = np.argsort(-law[position])[: min(m, V - 1)]
                assert ids == order.tolist() and probs == pytest.approx(law[position, order].tolist(), rel=1e-5)
                seen += 1
            if MASK in canvas:
                assert state.tops[0].shape == state.tops[1].shape == (written, min(m, V - 1))
            before = tuple(state.canvas.tolist())
    assert seen >= sum(canvas.count(MASK) for canvas in CANVASES)


def test_nobody_gets_the_alternatives_of_a_neighbour():
    for plan in (RevealPlan(2), Ancestral(4)):
        work = Batcher(model_of(), 3)
        for row, tops in enumerate((0, 2, 1)):
            work.add(Request(row, torch.tensor([MASK] * 3), plan, Keys(row), tops=tops))
        while work.busy:
            for state, _ in work.step():
                assert (state.tops is None) == (state.row == 0)
                if state.tops:
                    assert state.tops[0].shape == (len(state.positions), (0, 2, 1)[state.row])


def test_none_are_reported_unless_asked_for():
    assert all(s.tops is None for s in generate(model_of(), tensors(CANVASES), RevealPlan(2), keys_of(8)))


# -- stopping --------------------------------------------------------------------------------------------------------


@each_plan
def test_until_stops_a_sequence_and_frees_its_place(name):
    model, canvases = model_of(timed=name in TIMED), [[MASK] * 3] * 6
    plan = plan_for(name, [MASK] * 3)
    others = texts(model, canvases, plan, keys_of(6))
    model.backbone.calls.clear()
    states = list(
        generate(model, tensors(canvases), plan, keys_of(6), batch_size=2, until=lambda state: state.row in (1, 3, 4))
    )
    for row in range(6):
        own = [state for state in states if state.row == row]
        assert [state.done for state in own] == [False] * (len(own) - 1) + [True]
        if row in (1, 3, 4):
            assert len(own) == 1 and own[0].calls == 1
        else:
            assert tuple(own[-1].canvas.tolist()) == others[row]
    sizes = model.backbone.calls
    assert sum(sizes) == sum(state.calls for state in states if state.done)
    tail = next((i for i, size in enumerate(sizes) if size < 2), len(sizes))
    assert set(sizes[:tail]) == {2} and set(sizes[tail:]) <= {1}  # the place of a stopped one is taken at once


def test_a_dropped_sequence_is_forgotten_wherever_it_is():
    work = Batcher(model_of(), 1)
    for row in range(3):
        work.add(Request(row, torch.tensor([MASK] * 3), LeftToRight(), Keys(row)))
    assert [state.row for state, _ in work.step()] == [0]
    work.drop(0)
    work.drop(2)
    rows = []
    while work.busy:
        rows += [state.row for state, _ in work.step()]
    assert rows == [1] * 3


# -- the ends of chance ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Same(Keys):
    """Keys whose every uniform is one number."""

    value: float = 0.0

    def at(self, step: int) -> Keys:
        return self

    def fork(self, purpose: str) -> Keys:
        return self

    def uniform(self, purpose, index, *shape: int) -> torch.Tensor:
        return torch.full((len(list(index)), *shape), self.value, dtype=torch.float64)


@each_plan
@pytest.mark.parametrize("value", [0.0, 1 - 2.0**-53])
@pytest.mark.parametrize("schedule", ["log-linear", "log-linear uncut", "geometric wide cut"])
def test_no_draw_leaves_a_mask(name, value, schedule):
    """What is left over at the end is drawn like all others, also by the draw that comes once in 2^53."""
    net = TableNet.random(1, timed=name in TIMED)
    with torch.no_grad():  # a softmax that sums to a little less than 1 in float32, and one that is all but sure
        net.table[..., 2] += 20.0
    canvases = canvases_for(name)
    plans = [plan_for(name, canvas) for canvas in canvases]
    keys = [Same(i, 0, value) for i in range(len(canvases))]
    for text in texts(MaskedDiffusion(net, SCHEDULES[schedule]), canvases, plans, keys):
        assert set(text) <= set(CLEAN)


RARE = {"many steps": RevealPlan(100_000), "many remaskings": Remasking(60, "rescale", 0.01), "textbook": Ancestral(60)}


@pytest.mark.parametrize("name", [*PLANS, *RARE])
def test_a_rare_token_keeps_its_chance(name):
    """Its 1e-7 of the uniforms writes it, and not a number beside them, however many the steps."""
    table = np.zeros((V + 1,) * 3 + (3, V))
    table[...] = np.log([0.4, 0.9, 1e-7, 0.6 - 1e-7])  # [MASK] is token 1: SUBS takes it out
    model = MaskedDiffusion(TableNet(table), SCHEDULES["log-linear"])
    plan = RARE[name] if name in RARE else plan_for(name, [MASK] * 3)
    for value, token in ((0.4 - 1e-7, 0), (0.4 + 5e-8, 2), (0.4 + 2e-7, 3)):
        assert texts(model, [[MASK] * 3], plan, [Same(0, 0, value)]) == [(token,) * 3]


# -- filters ---------------------------------------------------------------------------------------------------------

BLIND = [name for name in PLANS if not isinstance(getattr(PLANS[name], "plan", PLANS[name]), Adaptive)]


@pytest.mark.parametrize("name", BLIND)
def test_neither_filters_nor_rules_change_when_a_position_is_written(name):
    model, canvases = model_of("geometric wide cut"), canvases_for(name)

    def clock(**more) -> list:
        return [
            [(s.step, s.t, s.positions.tolist()) for s in states] for states in history(model, name, canvases, **more)
        ]

    plain, n = clock(), len(canvases)
    for choice in (Choice(temperature=0), Choice(temperature=3, top_p=0.2), Choice(top_k=1, min_p=0.9)):
        assert clock(choice=choice) == plain
    assert clock(controls=[Rules(frozenset({0, 2}))] * n) == plain


# -- refusals --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", TIMELESS)
def test_a_plan_without_a_clock_is_refused_by_a_network_that_is_told_the_time(name):
    with pytest.raises(UserError, match="has no clock"):
        finish(model_of(timed=True), [[MASK] * 3], plan_for(name, [MASK] * 3), keys_of(1))


@pytest.mark.parametrize("name", [name for name in PLANS if name not in TEXTBOOK])
@pytest.mark.parametrize("meaning", [Mean(zero_mask=False), Mean(carry_over=False), Mean(False, False), Score()])
def test_a_network_that_has_a_say_in_the_reveal_takes_the_textbook_only(name, meaning):
    """Mass on [MASK], mass that is not 1, or tokens that are written anew: no plan can be drawn ahead."""
    model = MaskedDiffusion(TableNet.random(), SCHEDULES["log-linear"], parameterization=meaning)
    with pytest.raises(UserError, match=r"carries tokens over .* sums to 1.*ancestral"):
        finish(model, [[MASK] * 3], plan_for(name, [MASK] * 3), keys_of(1))


@pytest.mark.parametrize(
    ("plan", "words"),
    [
        (lambda: Remasking(3, "loops"), "loops.*cap, rescale, loop"),
        (lambda: Remasking(3, eta=1.5), "eta=1.5"),
        (lambda: Remasking(3, eta=math.nan), "eta=nan"),
        (lambda: Remasking(3, window=(0.2, 0.5)), "window"),
        (lambda: Remasking(3, "loop", keep=1.0), "keep=1.0"),
        (lambda: Remasking(0), "steps=0"),
        (lambda: Adaptive("surest", k=1), "surest.*confidence, entropy, margin"),
        (lambda: Adaptive("margin"), "margin order either"),
        (lambda: Adaptive("margin", k=1, steps=4), "margin order either"),
        (lambda: Adaptive("margin", k=0), "k=0"),
        (lambda: Adaptive("margin", steps=0), "steps=0"),
        (lambda: Adaptive("margin", threshold=1.1), "threshold=1.1.*margin"),
        (lambda: Adaptive("entropy", threshold=-1.0), "threshold=-1.0.*nats"),
        (lambda: LeftToRight(0), "k=0"),
        (lambda: Windows(FirstHitting(), 4, 4), "stride=4.*window of 4"),
        (lambda: Windows(FirstHitting(), 4, 2, (0, 2)), "stride=2.*window of 2"),
        (lambda: Windows(FirstHitting(), 4, 0), "stride=0"),
        (lambda: Windows(Windows(FirstHitting(), 3, 1), 4, 1), "used inside windows"),
    ],
)
def test_wrong_settings_are_a_sentence(plan, words):
    with pytest.raises(UserError, match=words) as caught:
        plan()
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(
    ("order", "words"),
    [
        ([0, 1], "leaves out masked position 2"),
        ([0, 1, 2, 3], "position 3, but there are 3"),
        ([0, 1, 1], "1 twice"),
        ([-1, 0, 1], "-1"),
    ],
)
def test_an_order_that_does_not_fit_is_a_sentence(order, words):
    from unmask.sampling import GivenOrder

    with pytest.raises(UserError, match=words):
        finish(model_of(), [[MASK] * 3], GivenOrder(order), keys_of(1))


def test_a_batch_needs_room():
    with pytest.raises(UserError, match="batch_size=0"):
        finish(model_of(), [[MASK] * 3], FirstHitting(), keys_of(1), batch_size=0)


@each_plan
def test_nothing_to_do(name):
    assert list(generate(model_of(), [], plan_for(name, []), [])) == []
    (state,) = finish(model_of(), [[2, 0, 3]], plan_for(name, []), keys_of(1))
    assert state.canvas.tolist() == [2, 0, 3] and state.fixed == 3
