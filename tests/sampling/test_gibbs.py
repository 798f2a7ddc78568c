"""Gibbs sampling: its law after every number of updates, by matrix products; burn-in; what it reports and refuses."""

from __future__ import annotations

import itertools
import math
from collections import Counter
from functools import cache

import numpy as np
import pytest
import torch

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
    conditionals,
    random_joint,
)
from oracles.laws import collect, filtered, masks_of, order_law, windows_law, written
from support.drawing import (
    CANVASES,
    check,
    close,
    finish,
    generate,
    keys_of,
    model_of,
    p_value,
    request_of,
    tensors,
    texts,
)
from support.helpers import refused, run
from support.writers import make
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.sampling import Choice, Gibbs, Rules, Windows, make_sampler
from unmask.types import UserError

Law = dict[State, float]
M3 = (MASK,) * LENGTH
JOINT = {x: (p + 0.03) / (1 + 0.03 * len(XS)) for x, p in random_joint(5).items()}  # chains forget soon
N = 400

# -- the truth: dense matrices over all texts ------------------------------------------------------------------------


def masked(z: State, site: int) -> State:
    return (*z[:site], MASK, *z[site + 1 :])


def site_kernel(texts: list[State], denoise: Denoiser, site: int) -> np.ndarray:
    """K[x, y]: the site is masked and drawn given the others."""
    kernel, place = np.zeros((len(texts), len(texts))), {x: i for i, x in enumerate(texts)}
    for i, x in enumerate(texts):
        z = masked(x, site)
        for y, p in written(z, denoise(z, math.nan), [site]):
            kernel[i, place[y]] += p
    return kernel


def parallel_kernel(texts: list[State], denoise: Denoiser, sites: list[int]) -> np.ndarray:
    """K[x, y]: the text is read as it stands, and all sites are drawn at once."""
    kernel, place = np.zeros((len(texts), len(texts))), {x: i for i, x in enumerate(texts)}
    for i, x in enumerate(texts):
        for y, p in written(x, denoise(x, math.nan), sites):
            kernel[i, place[y]] += p
    return kernel


def gibbs_law(start: State, rounds: list[Denoiser], scan: str) -> Law:
    """The law after one update with each of these denoisers, from a canvas with masks."""
    sites = masks_of(start)
    texts = list(itertools.product(*([token] if token != MASK else CLEAN for token in start)))
    if scan == "parallel":
        law = collect(written(start, rounds[0](start, math.nan), sites))
        rest = rounds[1:]
    else:
        orders = list(itertools.permutations(sites)) if scan == "random" else [tuple(sites)]
        law, rest = {}, rounds[len(sites) :]
        for order in orders:
            own: Law = {start: 1.0}
            for site, denoise in zip(order, rounds, strict=False):
                own = collect((y, p * q) for z, p in own.items() for y, q in written(z, denoise(z, math.nan), [site]))
            law = collect([*law.items(), *((x, p / len(orders)) for x, p in own.items())])
    vector = np.array([law.get(x, 0.0) for x in texts])

    @cache
    def kernel(denoise: Denoiser, turn: int) -> np.ndarray:
        if scan == "parallel":
            return parallel_kernel(texts, denoise, sites)
        if scan == "sequential":
            return site_kernel(texts, denoise, sites[turn])
        return sum(site_kernel(texts, denoise, site) for site in sites) / len(sites)

    for number, denoise in enumerate(rest):
        vector = vector @ kernel(denoise, number % len(sites) if scan == "sequential" else 0)
    return dict(zip(texts, vector.tolist(), strict=True))


def alone(z: State, site: int) -> np.ndarray:
    """Log p(site | the others), by a sum over the joint law."""
    weights = np.zeros(V)
    for x, p in JOINT.items():
        if masked(x, site) == masked(z, site):
            weights[x[site]] += p
    with np.errstate(divide="ignore"):
        return np.log(weights / weights.sum())


def variation(law: Law, other: Law) -> float:
    """Total variation."""
    return sum(abs(law[x] - other[x]) for x in XS) / 2


@cache
def half_right() -> TableNet:
    """A masked LM that has exact conditionals of one token given all others, seen or masked, and is else at random.

    So nothing but the chain itself can lead it to the joint law: its first sweep does not.
    """
    net = TableNet.random(7)
    with torch.no_grad():
        for z in itertools.product(range(V), repeat=LENGTH):
            for site in range(LENGTH):
                if MASK not in masked(z, site)[:site] + z[site + 1 :]:
                    row = torch.tensor(alone(z, site), dtype=torch.float32)
                    row[MASK] = 2.0  # SUBS takes it out
                    net.table[z][site] = row
    return net


def of(net: TableNet) -> MaskedDiffusion:
    return MaskedDiffusion(net, SCHEDULES["log-linear"]).eval()


def counts(net: TableNet, plan: Gibbs, canvas: State = M3, n: int = N, **more) -> Counter[State]:
    return Counter(texts(of(net), [canvas] * n, plan, keys_of(n, 3), batch_size=n, **more))


# -- the law ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("plan", "canvas"),
    [
        (Gibbs(5), M3),
        (Gibbs(3), (MASK, 3, MASK)),
        (Gibbs(5, "sequential"), M3),
        (Gibbs(3, "sequential"), (0, MASK, MASK)),
        (Gibbs(3, "parallel"), M3),
        (Gibbs(2, "parallel"), (MASK, 2, MASK)),
    ],
    ids=repr,
)
def test_the_law_after_n_updates(plan, canvas):
    """Any network, whose conditionals belong to no joint law: the power of the kernel is exact all the same."""
    net = TableNet.random(2)
    law = gibbs_law(canvas, [net.denoiser()] * plan.steps, plan.scan)
    assert p_value(counts(net, plan, canvas), law) > 1e-3


def test_these_laws_differ():
    """Else the test above could not tell them apart: N draws would notice a total variation of 0.1."""
    denoise = TableNet.random(2).denoiser()
    laws = [
        gibbs_law(M3, [denoise] * steps, scan)
        for steps, scan in [
            (3, "random"),
            (5, "random"),
            (3, "sequential"),
            (4, "sequential"),
            (5, "sequential"),
            (1, "parallel"),
            (2, "parallel"),
            (3, "parallel"),
        ]
    ]
    for one, other in itertools.combinations(laws, 2):
        assert variation(one, other) > 0.1


@pytest.mark.parametrize(("scan", "steps"), [("random", 17), ("sequential", 12)])
def test_exact_conditionals_lead_to_the_joint_law(scan, steps):
    """From a first sweep that is far from it; the joint law is the one that an update leaves as it is."""
    net = half_right()
    denoise, pi = net.denoiser(), np.array([JOINT[x] for x in XS])
    for site in range(LENGTH):
        assert np.abs(pi @ site_kernel(XS, denoise, site) - pi).max() < 1e-6
    start = gibbs_law(M3, [denoise] * 3, scan)
    assert variation(start, JOINT) > 0.25
    assert variation(gibbs_law(M3, [denoise] * steps, scan), JOINT) < 2e-3
    seen = counts(net, Gibbs(steps, scan), n=200)
    assert p_value(seen, JOINT) > 1e-3
    assert p_value(seen, start) < 1e-6


def test_all_conditionals_exact_give_the_joint_law_from_the_first_sweep_on():
    net = TableNet.exact(JOINT)
    for steps in (3, 4):
        assert close(gibbs_law(M3, [conditionals(JOINT)] * steps, "random"), JOINT) < 1e-9
    assert p_value(counts(net, Gibbs(4)), JOINT) > 1e-3


def test_the_parallel_way_has_another_law():
    """The same exact conditionals, all drawn at once: neither left as it is by an update, nor where the chain ends."""
    net = half_right()
    kernel, pi = parallel_kernel(XS, net.denoiser(), [0, 1, 2]), np.array([JOINT[x] for x in XS])
    assert np.abs(pi @ kernel - pi).sum() / 2 > 0.1
    end = np.linalg.matrix_power(kernel, 400)[0]
    assert np.abs(end @ kernel - end).max() < 1e-9 and np.abs(end - pi).sum() / 2 > 0.1
    law = gibbs_law(M3, [net.denoiser()] * 6, "parallel")
    assert np.abs(np.array([law[x] for x in XS]) - end).max() < 1e-3
    seen = counts(net, Gibbs(6, "parallel"))
    assert p_value(seen, law) > 1e-3 and p_value(seen, JOINT) < 1e-6


def test_a_network_that_repeats_what_it_sees_stands_still_in_the_parallel_way():
    """The exact posterior of a token that is seen is that token: all that is ever drawn is the product of marginals."""
    denoise = conditionals(JOINT)
    law = order_law(M3, denoise, [[0, 1, 2]])
    assert close(gibbs_law(M3, [denoise] * 5, "parallel"), law) < 1e-9
    assert variation(law, JOINT) > 0.2
    seen = counts(TableNet.exact(JOINT), Gibbs(4, "parallel"))
    assert p_value(seen, law) > 1e-3 and p_value(seen, JOINT) < 1e-6


def test_the_law_in_windows():
    net = TableNet.random(4, length=2)
    denoise = net.denoiser()
    law = windows_law(M3, 2, 1, cache(lambda z: gibbs_law(z, [denoise] * 3, "random") if masks_of(z) else {z: 1.0}))
    assert p_value(counts(net, Windows(Gibbs(3), 2, 1)), law) > 1e-3


def test_rules_hold_in_every_update():
    rules = Rules(frozenset({2}), {1: (0,)})
    for scan in ("random", "sequential", "parallel"):
        for state in generate(model_of(), tensors([M3] * 20), Gibbs(8, scan), keys_of(20), controls=[rules] * 20):
            assert 2 not in state.canvas and int(state.canvas[1]) in (0, MASK)


# -- which positions -------------------------------------------------------------------------------------------------


def sites_of(plan: Gibbs, canvas: list[int], key: Keys) -> list[int]:
    states = generate(model_of(length=len(canvas)), tensors([canvas]), plan, [key])
    return [int(state.positions[0]) for state in states]


def test_every_gap_is_visited_once_before_any_is_visited_again():
    canvas = [MASK, 2, MASK, MASK, 0, MASK]
    for key in keys_of(4):
        sites = sites_of(Gibbs(40), canvas, key)
        assert len(sites) == 40 and sorted(sites[:4]) == [0, 2, 3, 5] and set(sites[4:]) == {0, 2, 3, 5}
        assert sites_of(Gibbs(9), canvas, key) == sites[:9]  # more updates only go on
    assert sites_of(Gibbs(10, "sequential"), canvas, Keys(0)) == [0, 2, 3, 5] * 2 + [0, 2]


def test_positions_are_uniform_and_each_sequences_own():
    gaps, seen, orders = torch.tensor([1, 4, 5]), Counter(), Counter()
    for key in keys_of(400):
        turns = Gibbs(63).turns(gaps, key).squeeze(1).tolist()
        orders[tuple(turns[:3])] += 1
        seen.update((turns[i],) for i in range(3, 63))
    assert p_value(seen, {(site,): 1 / 3 for site in (1, 4, 5)}) > 1e-3
    assert p_value(orders, dict.fromkeys(itertools.permutations((1, 4, 5)), 1 / 6)) > 1e-3


# -- burn-in ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scan", ["random", "sequential", "parallel"])
@pytest.mark.parametrize("burn", [0, 1, 4])
def test_burn_in_ends_at_its_update(scan, burn):
    """With top_k=1 afterwards: before update `burn` the plain draws, from it on the most likely token every time."""
    net, keys, steps = TableNet.random(6), keys_of(40), 7
    denoise, told = net.denoiser(), [[], []]
    for out, choice in zip(told, (Choice(), Choice(top_k=1)), strict=True):
        out += [[] for _ in keys]
        for state in generate(of(net), tensors([M3] * 40), Gibbs(steps, scan, burn), keys, choice=choice):
            out[state.row].append(state)
    likely = np.zeros((steps, 2), dtype=int)
    for plain, greedy in zip(*told, strict=True):
        before = M3
        for number, state in enumerate(greedy):
            if number < burn:
                assert torch.equal(state.canvas, plain[number].canvas)
            for position, token in zip(state.positions.tolist(), state.tokens.tolist(), strict=True):
                if token != MASK:
                    likely[number] += (token == denoise(before, 0.5)[position].argmax(), 1)
            before = tuple(state.canvas.tolist())
    assert (likely[burn:, 0] == likely[burn:, 1]).all()
    assert (likely[:burn, 0] < likely[:burn, 1]).all()


def test_the_law_with_burn_in():
    """Temperature and top-k together, and not an update too early or too late."""
    net = TableNet.random(14)
    plain, cut = net.denoiser(), filtered(net.denoiser(), 0.5, 2)
    seen = counts(net, Gibbs(5, "sequential", 3), n=800, choice=Choice(0.5, 2))
    early, right, late = (
        p_value(seen, gibbs_law(M3, [plain] * burn + [cut] * (5 - burn), "sequential")) for burn in (2, 3, 4)
    )
    assert right > 1e-3 and max(early, late) < 1e-6


def test_burn_in_begins_anew_in_every_window():
    """The first token of each window is drawn plainly, the second is the most likely one."""
    net = TableNet.random(4, length=2)
    plain, greedy = net.denoiser(), filtered(net.denoiser(), top_k=1)

    @cache
    def window(z: State) -> Law:
        return gibbs_law(z, [plain, greedy], "sequential") if masks_of(z) else {z: 1.0}

    seen = counts(net, Windows(Gibbs(2, "sequential", 1), 2, 1), choice=Choice(top_k=1))
    assert p_value(seen, windows_law(M3, 2, 1, window)) > 1e-3 and len(seen) > 2


def test_neighbours_have_burn_ins_of_their_own():
    plans = [Gibbs(6, "random", burn) for burn in (0, 2, 5)] * 4
    choices = [Choice(top_k=1)] * 6 + [Choice(temperature=0.3)] * 6
    together = texts(model_of(), [M3] * 12, plans, keys_of(12), choice=choices, batch_size=12)
    apart = [
        texts(model_of(), [M3], plan, [key], choice=choice)[0]
        for plan, key, choice in zip(plans, keys_of(12), choices, strict=True)
    ]
    assert together == apart


# -- what it reports -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("scan", ["random", "sequential", "parallel"])
def test_states_tell_the_whole_story(scan):
    model, plan, taken = model_of(), Gibbs(9, scan), 0
    seen, hidden = [], model.hidden
    model.hidden = lambda z, *more, **named: (seen.append(z[0].tolist()), hidden(z, *more, **named))[1]
    for canvas, key in zip(CANVASES, keys_of(len(CANVASES)), strict=True):
        seen.clear()
        now, states = list(canvas), list(generate(model, tensors([canvas]), plan, [key]))
        gaps = masks_of(tuple(canvas))
        for number, state in enumerate(states):
            written = int((state.tokens != MASK).sum())
            assert state.step == number and state.calls == (number + 1 if gaps else 0)
            assert state.done == (state is states[-1])
            assert written == (len(gaps) if scan == "parallel" else min(1, len(gaps)))
            assert (state.probs[:written] > 0).all() and (state.probs[written:] == 0).all()
            for position, token in zip(state.positions.tolist(), state.tokens.tolist(), strict=True):
                assert canvas[position] == MASK
                if scan != "parallel":
                    assert (token == MASK) == (now[position] != MASK)  # written, or taken back
                taken += token == MASK
                now[position] = token
            assert state.canvas.tolist() == now
            assert state.fixed == (len(canvas) if state.done else gaps[0])
        assert len(states) == (9 if gaps else 1) and MASK not in now
        assert all(c in (MASK, x) for c, x in zip(canvas, now, strict=True))
        if gaps:
            assert seen == [list(canvas), *(state.canvas.tolist() for state in states[:-1])]
            assert [state.t for state in states] == pytest.approx([1 - i / 9 for i in range(9)])
    assert (taken > 0) == (scan != "parallel")


@pytest.mark.parametrize("scan", ["random", "sequential", "parallel"])
def test_a_sample_depends_on_its_key_alone_and_costs_a_call_an_update(scan):
    plans = [Gibbs(3 + i, scan) for i in range(len(CANVASES))]
    model = model_of()
    whole = finish(model, CANVASES, plans, keys_of(len(CANVASES)), batch_size=3)
    due = [plan.steps if MASK in canvas else 0 for plan, canvas in zip(plans, CANVASES, strict=True)]
    assert [state.calls for state in whole] == due and sum(model.backbone.calls) == sum(due)
    for state, canvas, plan, key in zip(whole, CANVASES, plans, keys_of(len(CANVASES)), strict=True):
        assert texts(model_of(), [canvas], plan, [key]) == [tuple(state.canvas.tolist())]
    assert len(set(texts(model, [M3] * 12, Gibbs(6, scan), keys_of(12)))) > 3


def test_a_token_that_is_drawn_again_has_a_new_number():
    sweeps = Gibbs(200, "sequential")
    course = sweeps.trajectory(request_of(torch.tensor(M3), sweeps, Keys(1)), model_of())
    drawn = []
    while not course.finished:
        drawn.append(float(course.uniform(course.due())))
        course.write(course.due(), torch.tensor([0]))
    assert len(set(drawn)) == 200


def test_guidance_costs_two_calls_an_update():
    model = model_of(labels=2)
    (state,) = finish(model, [M3], Gibbs(5), keys_of(1), labels=[1], guidance=2.0)
    assert state.calls == 10 and sum(model.backbone.calls) == 10


# -- what it refuses -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("how", "words"),
    [
        ({"steps": 0}, "steps=0 must be at least 1"),
        ({"scan": "sideways"}, "scan 'sideways'.*random, sequential, parallel"),
        ({"burn": -1}, "burn=-1"),
        ({"steps": 5, "burn": 5}, "burn=5.*less than steps=5"),
        ({"eta": 0.5}, "does not take eta"),
    ],
)
def test_wrong_settings_are_a_sentence(how, words):
    with pytest.raises(UserError, match=words) as caught:
        make_sampler("gibbs", **how)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("scan", ["random", "sequential"])
def test_too_few_updates_are_refused_before_anything_is_written(scan):
    model = model_of()
    with pytest.raises(UserError, match="steps=2 updates cannot write 3 masked tokens; give at least 3 steps"):
        check(model, torch.tensor(M3), Gibbs(2, scan))
    assert texts(model, [(MASK, 0, MASK)], Gibbs(2, scan), keys_of(1))[0][1] == 0
    assert MASK not in texts(model, [M3], Gibbs(1, "parallel"), keys_of(1))[0]


def test_a_network_that_is_told_the_time_is_refused():
    with pytest.raises(UserError, match="Gibbs has no clock"):
        finish(model_of(timed=True), [M3], Gibbs(3), keys_of(1))
    with pytest.raises(UserError, match="does not take burn; it belongs to gibbs"):
        make_sampler("plan", burn=3)


# -- as a user asks for it -------------------------------------------------------------------------------------------


def test_from_python():
    lm = make("bytes")
    how = {"sampler": "gibbs", "steps": 30, "burn": 20, "top_k": 3}
    text = lm.infill("ab{{4}}cd{{3}}e", n=2, **how)
    assert all(t.startswith("ab") and "cd" in t and t.endswith("e") for t in text)
    assert lm.infill("ab{{4}}cd{{3}}e", seed=1, **how) == text[1:]
    for scan in ("random", "sequential", "parallel"):
        [sample] = lm.write_samples(1, length=10, prompt="ab", scan=scan, **how)
        assert sample.network_calls == 30 and sample.ids[:2] == [*b"ab"] and len(sample.ids) == 10
        assert all(token.prob > 0 for token in sample.tokens if not token.given)
        pieces = [piece for piece in lm.stream("ab", length=10, scan=scan, **how) if piece]
        assert "".join(pieces) == sample.text and len(pieces) <= 2  # nothing is shown before the end
    with pytest.raises(UserError, match="burn='x' must be a whole number"):
        lm.sample(sampler="gibbs", burn="x")
    with pytest.raises(UserError, match="scan=3 must be the name of a scan"):
        lm.sample(sampler="gibbs", scan=3)
    with pytest.raises(UserError, match="steps=5 updates cannot write 8"):
        lm.sample(sampler="gibbs", steps=5, length=8)


def test_from_the_command_line(tmp_path):
    model = str(tmp_path / "model")
    make("bytes").save_pretrained(model)
    args = ["sample", model, "--sampler", "gibbs", "--length", "8", "--steps", "12"]
    out = run(*args, "--top-k", "2", "--with", "scan=sequential", "--with", "burn=9", "--json").json()
    assert out["samples"][0]["network_calls"] == 12 and len(out["samples"][0]["ids"]) == 8
    told = {"sampler": "gibbs", "scan": "sequential", "burn": 9, "steps": 12, "law": "Gibbs sampling"}
    assert told.items() <= out["protocol"].items()
    assert "burn=12 must be at least 0 and less than steps=12" in refused(*args, "--with", "burn=12")
    assert "give at least 8 steps" in refused(*args[:-1], "7")
