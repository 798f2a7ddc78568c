"""Windows: the product of their laws, what the network is shown, and what can never change any more."""

from __future__ import annotations

import functools

import pytest
import torch

from oracles.enumeration import MASK, SCHEDULES, TableNet, ancestral_law
from oracles.laws import collect, order_law, surest_law, windows_law
from support.drawing import Case, generate, judge, keys_of, mixed, model_of, request_of, tensors
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.sampling import Adaptive, Ancestral, FirstHitting, GivenOrder, LeftToRight, Remasking, RevealPlan, Windows
from unmask.types import UserError

BOS, EOS = 0, 3
SCHEDULE = "geometric wide cut"
wide = functools.cache(lambda: TableNet.random(8, length=4).denoiser(SCHEDULE))


def framed(inner):
    """The law of a window that is shown between BOS and EOS."""
    return lambda z: collect((x[1:-1], p) for x, p in inner((BOS, *z, EOS)).items())


def masks(*given: tuple[int, int], n: int = 3) -> tuple[int, ...]:
    canvas = [MASK] * n
    for position, token in given:
        canvas[position] = token
    return tuple(canvas)


CASES = {
    "framed": Case(
        Windows(RevealPlan(2), 4, 1, (BOS, EOS)),
        lambda: windows_law(masks(), 2, 1, framed(lambda z: ancestral_law(z, wide(), SCHEDULE, 2))),
    ),
    "framed, shorter than a window": Case(
        Windows(Ancestral(2), 4, 1, (BOS, EOS)),
        lambda: framed(lambda z: ancestral_law(z, wide(), SCHEDULE, 2))(masks(n=1)),
        masks(n=1),
    ),
    "framed, given tokens": Case(
        Windows(Adaptive("entropy", k=1), 4, 1, (BOS, EOS)),
        lambda: windows_law(masks((1, 2), n=4), 2, 1, framed(lambda z: surest_law(z, wide(), "entropy", 1))),
        masks((1, 2), n=4),
    ),
    "the last one moved back": Case(
        Windows(LeftToRight(2), 3, 2),
        lambda: windows_law(masks((0, 2), n=4), 3, 2, lambda z: order_law(z, wide(), two_at_a_time(z))),
        masks((0, 2), n=4),
    ),
}


def two_at_a_time(z):
    places = [i for i, token in enumerate(z) if token == MASK]
    return [places[i : i + 2] for i in range(0, len(places), 2)]


@functools.cache
def run():
    model = MaskedDiffusion(TableNet.random(8, length=4), SCHEDULES[SCHEDULE])
    return dict(zip(CASES, mixed(model, list(CASES.values()), keys_of(500), batch_size=100), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_law_is_the_product_of_the_windows(case):
    assert judge(run()[case], CASES[case].law()) > 1e-3


# -- what the network is shown ---------------------------------------------------------------------------------------


def shown(plan: Windows, canvas: list[int], net: TableNet | None = None) -> tuple[list[list[int]], list]:
    """All that the network sees of one canvas, and the states."""
    model = MaskedDiffusion(net or TableNet.random(1, length=4), SCHEDULES["log-linear"])
    seen, hidden = [], model.hidden
    model.hidden = lambda z, *more, **named: (seen.append(z[0].tolist()), hidden(z, *more, **named))[1]
    return seen, list(generate(model, [torch.tensor(canvas)], plan, keys_of(1)))


@pytest.mark.parametrize("frame", [None, (BOS, EOS)])
@pytest.mark.parametrize("inner", [LeftToRight(), RevealPlan(3), Remasking(6, "rescale", 0.8)], ids=repr)
@pytest.mark.parametrize("canvas", [[MASK] * 7, [2, MASK, MASK, 0, 3, MASK, 2, 2, MASK], [MASK]], ids=len)
def test_the_network_sees_one_framed_window_of_what_stands(frame, inner, canvas):
    """The frame is around every window and never in the text, so that no window can end the text with it."""
    plan = Windows(inner, 4, 1, frame)
    room = min(plan.room, len(canvas))
    seen, states = shown(plan, canvas)
    texts = [canvas, *(state.canvas.tolist() for state in states)]
    for part, text, state in zip(seen, texts, states, strict=False):
        assert len(part) <= 4
        if frame is not None:
            assert part[0] == BOS and part[-1] == EOS
            part = part[1:-1]
        assert len(part) == room
        inside = [start for start in range(len(text) - room + 1) if text[start : start + room] == part]
        written = state.positions.tolist()
        assert any(start <= min(written) and max(written) < start + room for start in inside)
    assert len(seen) == len(states) and len(states[-1].canvas) == len(canvas)


def test_windows_move_by_the_stride_and_the_last_one_ends_with_the_text():
    seen, states = shown(Windows(LeftToRight(4), 4, 3), [MASK] * 9)
    assert [state.positions.tolist() for state in states] == [[0, 1, 2, 3], [4, 5, 6], [7, 8]]
    text = states[-1].canvas.tolist()
    assert [part[: part.index(MASK)] for part in seen] == [[], text[3:4], text[5:7]]


def test_a_window_with_nothing_to_write_costs_no_call():
    seen, states = shown(Windows(FirstHitting(), 4, 2), [MASK, 0, 0, 0, 2, 2, 0, 3, 3, 3, 0, MASK])
    assert len(seen) == states[-1].calls == 2
    assert [state.positions.tolist() for state in states] == [[0], [11]]


@pytest.mark.parametrize("frame", [None, (BOS, EOS)])
def test_what_a_window_wrote_never_changes(frame):
    """Also where the plan inside takes tokens back: they are the window's own, and only while it is open."""
    plan = Windows(Remasking(6, "rescale", 0.9), 6, 2, frame)
    canvas, taken = torch.full((15,), MASK), 0
    canvas[5] = 2
    for key in keys_of(10):
        course, closed = plan.trajectory(request_of(canvas, plan, key), model_of()), torch.zeros(15, dtype=torch.bool)
        while not course.finished:
            before, number, end = course.whole().clone(), course.number, course.start + plan.room
            due = course.due()
            positions, tokens = course.write(due, torch.zeros_like(due))
            assert not closed[positions].any() and (canvas[positions] == MASK).all()
            assert torch.equal(course.whole()[closed], before[closed])
            taken += int((tokens == MASK).sum())
            if course.number != number:
                closed[:end] = True
            assert MASK not in course.whole()[closed]
        assert course.fixed() == 15 and MASK not in course.whole()
    assert taken > 20


@pytest.mark.parametrize(
    "inner", [LeftToRight(), FirstHitting(), Ancestral(4), Remasking(6, "rescale", 0.9)], ids=lambda p: type(p).__name__
)
@pytest.mark.parametrize("frame", [None, (BOS, EOS)])
def test_a_frame_is_not_counted_as_text(inner, frame):
    """`fixed` counts tokens of the canvas: what it promises stands, and orders promise all up to the first mask."""
    _, states = shown(Windows(inner, 4, 1, frame), [MASK, 2, MASK, MASK, MASK, 0, MASK])
    last = states[-1].canvas.tolist()
    for state in states:
        text = state.canvas.tolist()
        assert MASK not in text[: state.fixed] and text[: state.fixed] == last[: state.fixed]
        if isinstance(inner, LeftToRight | FirstHitting):
            assert state.fixed == (text.index(MASK) if MASK in text else len(text))
    assert states[-1].fixed == len(last)


def test_each_window_has_random_numbers_of_its_own():
    """Else every window would repeat the one before it."""
    plan = Windows(LeftToRight(), 3, 2)
    course = plan.trajectory(request_of(torch.full((9,), MASK), plan, Keys(0)), model_of())
    drawn = []
    while not course.finished:
        due = course.due()
        drawn.append(float(course.uniform(due)[0]))
        course.write(due, torch.zeros_like(due))
    assert len(drawn) == len(set(drawn)) == 9


def test_positions_and_steps_are_those_of_the_whole_canvas():
    """Time inside a window begins again; the number of the step goes on."""
    _, states = shown(Windows(RevealPlan(2), 4, 2), [MASK] * 8)
    steps = [state.step for state in states]
    assert steps == sorted(set(steps)) and sum(state.t == 1.0 for state in states) <= 3
    assert sorted(p for state in states for p in state.positions.tolist()) == list(range(8))


def test_an_order_of_one_window_is_refused():
    with pytest.raises(UserError, match="given order"):
        Windows(GivenOrder([0, 1]), 4, 2)


def test_mixed_lengths_through_one_batch():
    """Long texts in windows beside short ones without: nobody is padded beyond a window."""
    model = model_of()
    plans = [Windows(LeftToRight(), 3, 1), LeftToRight(), Windows(FirstHitting(), 2, 1)]
    canvases = [[MASK] * 8, [MASK] * 2, [MASK] * 5]
    last = {s.row: s for s in generate(model, tensors(canvases), plans, keys_of(3))}
    assert [len(last[row].canvas) for row in range(3)] == [8, 2, 5]
    assert [last[row].calls for row in range(3)] == [8, 2, 5]
