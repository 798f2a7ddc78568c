"""Rules on what may be written: the renormalised law, the user's function, and what is said when nothing is left."""

from __future__ import annotations

import functools
import math

import pytest
import torch

from oracles.enumeration import CLEAN, MASK, SCHEDULES, TableNet, V, ancestral_law
from oracles.laws import legs_law, order_law, remask_legs, ruled, surest_law
from support.drawing import (
    Case,
    each_plan,
    finish,
    generate,
    judge,
    keys_of,
    mixed,
    model_of,
    plan_for,
    texts,
)
from unmask.models.masked import MaskedDiffusion
from unmask.process.parameterization import Mean
from unmask.sampling import Adaptive, Ancestral, Choice, LeftToRight, Remasking, RevealPlan, Rules, Windows
from unmask.types import UserError, Vocab

EOS = 3
VOCAB = Vocab(V, MASK, eos=EOS)
NAME = "log-linear"


@functools.cache
def network() -> TableNet:
    net = TableNet.random(21)
    net.vocab = VOCAB
    return net


def with_eos() -> MaskedDiffusion:
    return MaskedDiffusion(network(), SCHEDULES[NAME])


plain = functools.cache(lambda: network().denoiser())
M2, M3, M4 = (MASK,) * 2, (MASK,) * 3, (MASK,) * 4


def late_end(position: int, token: int) -> bool:
    return position >= 2 or token != EOS


def tilt(log_p: torch.Tensor, positions: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
    """Twice as much for token 0, nothing for 2 at position 1."""
    out = log_p.clone()
    out[:, 0] += math.log(2)
    out[positions == 1, 2] = -math.inf
    return out


def tilted(z, t):
    out = plain()(z, t).copy()
    out[:, 0] += math.log(2)
    out[1:2, 2] = -math.inf
    return ruled(lambda z, t: out, lambda position, token: True)(z, t)


CASES: dict[str, Case] = {
    "a ban": Case(
        RevealPlan(2),
        lambda: ancestral_law(M3, ruled(plain(), lambda i, y: y != 0), NAME, 2),
        control=Rules(frozenset({0})),
    ),
    "a ban, textbook": Case(
        Ancestral(2),
        lambda: ancestral_law(M2, ruled(plain(), lambda i, y: y != 0), NAME, 2),
        M2,
        control=Rules(frozenset({0, MASK})),
    ),
    "a ban, remasking": Case(
        Remasking(3, "rescale", 0.6),
        lambda: legs_law(M2, ruled(plain(), lambda i, y: y != 0), remask_legs(NAME, 3, "rescale", 0.6)),
        M2,
        control=Rules(frozenset({0})),
    ),
    "allowed": Case(
        Adaptive("confidence", k=1),
        lambda: surest_law(M3, ruled(plain(), lambda i, y: i != 1 or y in (0, EOS)), "confidence", 1),
        control=Rules(allowed={1: [0, EOS]}),
    ),
    "no early end": Case(
        LeftToRight(), lambda: order_law(M3, ruled(plain(), late_end), [[0], [1], [2]]), control=Rules(eos_from=2)
    ),
    "a function": Case(RevealPlan(3), lambda: ancestral_law(M3, tilted, NAME, 3), control=Rules(constrain=tilt)),
    "rules, then filters": Case(
        LeftToRight(3),
        lambda: order_law(M3, ruled(plain(), lambda i, y: y in best_of_allowed(i)), [[0, 1, 2]]),
        control=Rules(frozenset({0})),
        choice=Choice(top_k=1),
    ),
    "in windows": Case(  # positions count from the beginning of the whole canvas
        Windows(LeftToRight(), 2, 1),
        lambda: windowed_law(),
        M4,
        control=Rules(allowed={0: [2], 2: [0, EOS]}, eos_from=3),
    ),
    "no rules": Case(RevealPlan(2), lambda: ancestral_law(M3, plain(), NAME, 2)),
}


def best_of_allowed(position: int) -> set[int]:
    law = plain()(M3, 0.0)[position]
    return {max((y for y in CLEAN if y != 0), key=lambda y: law[y])}


def windowed_law():
    """Left to right, each token given the one before it and nothing else."""

    def may(position, token):
        return {0: token == 2, 1: token != EOS, 2: token == 0, 3: True}[position]

    law = {M4: 1.0}
    for position in range(4):
        start = max(0, min(position - 1, 2))
        step = {}
        for z, chance in law.items():
            guess = plain()(z[start : start + 2], 0.0)[position - start]
            weights = {y: math.exp(guess[y]) for y in CLEAN if may(position, y)}
            for y, w in weights.items():
                state = (*z[:position], y, *z[position + 1 :])
                step[state] = step.get(state, 0.0) + chance * w / sum(weights.values())
        law = step
    return law


@functools.cache
def run():
    return dict(zip(CASES, mixed(with_eos(), list(CASES.values()), keys_of(200), batch_size=100), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_law_under_rules_is_that_of_the_renormalised_network(case):
    assert judge(run()[case], CASES[case].law()) > 1e-3


@each_plan
def test_what_is_banned_never_appears(name):
    canvases = [[MASK] * 3, [0, MASK, 0], [MASK, MASK]] * 2
    plans = [plan_for(name, canvas) for canvas in canvases]
    for token in CLEAN:
        rest = texts(model_of(), canvases, plans, keys_of(6), controls=[Rules(frozenset({token}))] * 6)
        for canvas, text in zip(canvases, rest, strict=True):
            assert all(x != token for c, x in zip(canvas, text, strict=True) if c == MASK)  # a given one may stand


def test_a_rule_never_changes_when_the_textbook_reveals_where_the_network_says_it():
    """With mass on [MASK] the chance of a reveal is the network's: a ban must not turn it into a hurry."""
    net = TableNet.random(5)
    with torch.no_grad():
        net.table[...] = net.table[0, 0, 0]  # the same whatever stands there: then only the rule could matter
    model = MaskedDiffusion(net, SCHEDULES[NAME], parameterization=Mean(zero_mask=False))

    def clock(control):
        states = generate(model, [torch.tensor(M3)] * 20, Ancestral(6), keys_of(20), controls=[control] * 20)
        return [(s.row, s.step, s.positions.tolist()) for s in states]

    assert clock(Rules(frozenset({0, 2}))) == clock(Rules(allowed={0: [3], 1: [0]})) == clock(None)


# -- the user's function ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "plan", [LeftToRight(2), Adaptive("margin", k=1), Windows(LeftToRight(), 2, 1), Ancestral(3)], ids=repr
)
def test_a_function_gets_normalised_rows_positions_and_the_canvas(plan):
    """What it does to its arguments stays with it."""
    asked, before = [], {}

    def look(log_p, positions, canvas):
        assert log_p.shape == (len(positions), V) and positions.dtype == torch.int64
        torch.testing.assert_close(log_p.exp().sum(-1), torch.ones(len(positions)))
        assert torch.isneginf(log_p[:, [MASK, 2]]).all()  # other rules come first
        assert (canvas[positions] == MASK).all() and canvas.tolist() == before["text"]
        asked.extend(positions.tolist())
        out = log_p.clone()
        canvas.fill_(0)
        positions.fill_(0)
        log_p.fill_(0.0)
        return out

    before["text"] = [MASK, 3, MASK, MASK] if isinstance(plan, Windows) else [MASK, 3, MASK]
    canvas, control = list(before["text"]), Rules(frozenset({2}), constrain=look)
    model, rest = model_of(), None
    for state in generate(model, [torch.tensor(canvas)], plan, keys_of(1), controls=[control]):
        before["text"] = rest = state.canvas.tolist()
    assert set(asked) == {i for i, token in enumerate(canvas) if token == MASK}
    assert rest == list(texts(model, [canvas], plan, keys_of(1), controls=[Rules(frozenset({2}))])[0])


def test_a_function_cannot_bring_back_what_is_forbidden():
    control = Rules(frozenset({0}), {1: [2]}, 3, lambda log_p, positions, canvas: torch.zeros_like(log_p))
    for text in texts(with_eos(), [M3] * 60, RevealPlan(2), keys_of(60), controls=[control] * 60):
        assert text == (2, 2, 2)
    free = Rules(constrain=lambda log_p, positions, canvas: torch.zeros_like(log_p))
    tokens = sum(texts(with_eos(), [M3] * 60, RevealPlan(2), keys_of(60), controls=[free] * 60), ())
    assert set(tokens) == set(CLEAN) and all(30 < tokens.count(y) < 90 for y in CLEAN)


def forbid(at: int):
    def constrain(log_p, positions, canvas):
        out = log_p.clone()
        out[positions == at] = -math.inf
        return out

    return constrain


@pytest.mark.parametrize(
    ("control", "words"),
    [
        (Rules(constrain=forbid(1)), "leave no token to write at position 1"),
        (Rules(constrain=lambda log_p, p, c: log_p * math.nan), "constrain returned NaN"),
        (Rules(constrain=lambda log_p, p, c: log_p + math.inf), "constrain returned NaN"),
        (Rules(constrain=lambda log_p, p, c: log_p[:, :2]), r"shape \(\d, 4\), not \(\d, 2\)"),
        (Rules(constrain=lambda log_p, p, c: None), r"shape \(\d, 4\), not NoneType"),
        (Rules(frozenset({0, 2}), eos_from=2, constrain=lambda log_p, p, c: log_p), "no token to write at position"),
        (Rules(frozenset({0, 2}), eos_from=2), "no token to write at position"),
    ],
)
@pytest.mark.parametrize("plan", [RevealPlan(2), Adaptive("entropy", k=2), Ancestral(2)], ids=repr)
def test_when_nothing_is_left_it_is_a_sentence(plan, control, words):
    with pytest.raises(UserError, match=words) as caught:
        finish(with_eos(), [M3], plan, keys_of(1), controls=[control])
    assert "\n" not in str(caught.value)


# -- contradictions, before anything is written ----------------------------------------------------------------------


@pytest.mark.parametrize(
    ("control", "words"),
    [
        (Rules(frozenset({9})), "token 9 .*vocabulary of 4"),
        (Rules(frozenset({-1})), "token -1"),
        (Rules(allowed={0: [7]}), "token 7"),
        (Rules(allowed={3: [0]}), "position 3, but the canvas has 3"),
        (Rules(allowed={-1: [0]}), "position -1"),
        (Rules(allowed={0: []}), "position 0 is empty"),
        (Rules(allowed={0: [MASK]}), r"\[MASK\] cannot be allowed at position 0"),
        (Rules(allowed={1: [0]}), "position 1 is given as 'two'"),
        (Rules(frozenset({0, 3}), {2: [0, 3]}), "contradiction at position 2.* only 'zero', 'end', .* banned"),
        (Rules(allowed={2: [EOS]}, eos_from=3), "contradiction at position 2: it allows only 'end', .* ends at 3"),
        (Rules(frozenset({0}), {2: [0, EOS]}, eos_from=3), "position 2.*banned or an end of text"),
        (Rules(frozenset({0, 2, 3})), "every token is banned"),
        (Rules(frozenset({0, 1, 2, 3})), "every token is banned"),
    ],
)
def test_contradictions_are_named(control, words):
    canvas = torch.tensor([MASK, 2, MASK])
    with pytest.raises(UserError, match=words) as caught:
        control.check(canvas, VOCAB, {0: "zero", 1: "mask", 2: "two", 3: "end"}.__getitem__)
    assert "\n" not in str(caught.value)
    model = with_eos()
    with pytest.raises(UserError):
        list(generate(model, [canvas], RevealPlan(3), keys_of(1), controls=[control]))


@pytest.mark.parametrize(
    "control",
    [
        Rules(),
        Rules(frozenset({2})),  # given tokens may be banned ones
        Rules(frozenset({0, 2})),
        Rules(allowed={1: [2, 0]}),
        Rules(frozenset({0}), {0: [0, 2]}),
        Rules(allowed={2: [EOS]}, eos_from=2),
        Rules(allowed={0: [EOS, 0]}, eos_from=3),
        Rules(frozenset({MASK})),
    ],
)
def test_rules_that_leave_something_are_none(control):
    control.check(torch.tensor([MASK, 2, MASK]), VOCAB)
    assert len(texts(with_eos(), [(MASK, 2, MASK)], RevealPlan(2), keys_of(1), controls=[control])) == 1
