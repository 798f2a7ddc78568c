"""Orders by what the network says: exactly the positions that a slow look at its distribution names; replayed texts."""

from __future__ import annotations

import itertools
import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from oracles.enumeration import MASK, SCHEDULES, XS, TableNet, V, random_joint
from oracles.laws import collect, hitting_law, masks_of, order_law, ruled, surest, surest_law, windows_law
from support.drawing import CANVASES, Law, generate, keys_of, outcomes, p_value, tensors
from support.helpers import random_lm, random_model, refused, tiny_config
from unmask.data.chat import ChatTemplate
from unmask.data.tokenization import bytes_tokenizer
from unmask.models.masked import MaskedDiffusion
from unmask.sampling import (
    Adaptive,
    FirstHitting,
    GivenOrder,
    LeftToRight,
    RevealPlan,
    Rules,
    Sampler,
    Windows,
    replay,
)
from unmask.sampling.adaptive import MEASURES, by_score, loss_at_once
from unmask.sampling.params import SamplingParams
from unmask.sampling.sampler import positions_of
from unmask.types import UserError, Vocab

M3 = (MASK,) * 3
ORDERS = [
    {"k": 1}, {"k": 2}, {"k": 7}, {"steps": 1}, {"steps": 2}, {"steps": 9}, {"threshold": 0.0}, {"threshold": 0.35},
    {"threshold": 0.6}, {"threshold": 1.0}, {"entropy_bound": 0.0}, {"entropy_bound": 0.4}, {"entropy_bound": 0.9},
]  # fmt: skip


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("how", ORDERS, ids=repr)
@pytest.mark.parametrize("banned", [frozenset(), frozenset({2})], ids=["", "ban"])
def test_the_surest_positions_are_written_next(measure, how, banned):
    """Also under rules: the surest of what may be written."""
    net = TableNet.random(3)
    denoise = ruled(net.denoiser(), lambda position, token: token not in banned)
    model, canvases = MaskedDiffusion(net, SCHEDULES["log-linear"]), CANVASES * 3
    before = {row: tuple(canvas) for row, canvas in enumerate(canvases)}
    masks = {row: canvas.count(MASK) for row, canvas in enumerate(canvases)}
    controls = [Rules(banned) if banned else None] * len(canvases)
    for state in generate(
        model, tensors(canvases), Adaptive(measure, **how), keys_of(len(canvases)), controls=controls, batch_size=5
    ):
        was = before[state.row]
        if masks[state.row]:
            k = how.get("k") or (-(-masks[state.row] // how["steps"]) if "steps" in how else None)
            due = surest(was, denoise(was, math.nan), measure, k, how.get("threshold"), how.get("entropy_bound"))
            assert state.positions.tolist() == sorted(due)
            assert state.t == pytest.approx(len(masks_of(was)) / masks[state.row])
        before[state.row] = tuple(state.canvas.tolist())


@pytest.mark.parametrize("measure", MEASURES)
def test_ties_go_to_the_left(measure):
    model = MaskedDiffusion(TableNet(np.zeros((V + 1,) * 3 + (3, V))), SCHEDULES["log-linear"])
    states = generate(model, [torch.tensor(M3)], Adaptive(measure, k=1), keys_of(1))
    assert [state.positions.tolist() for state in states] == [[0], [1], [2]]


@pytest.mark.parametrize("measure", MEASURES)
def test_rounding_does_not_choose_on_an_empty_canvas(measure):
    """Attention over equal values is blind to positions: all masks tie, up to rounding that depends on the batch."""
    model = random_model(tiny_config("data.length=12"), Vocab(20, 19))
    for n, size in itertools.product((3, 7, 12), (1, 4)):
        canvases = tensors([[19] * n] * size)
        states = list(generate(model, canvases, Adaptive(measure, k=2), keys_of(size), batch_size=size))
        assert all(state.positions.tolist() == [0, 1] for state in states[:size])


@pytest.mark.parametrize(("measure", "threshold"), [("confidence", 1.0), ("margin", 1.0), ("entropy", 0.0)])
def test_a_threshold_that_is_just_reached_is_reached(measure, threshold):
    table = np.zeros((V + 1,) * 3 + (3, V))
    table[..., 2] = 500.0  # sure, to the last bit
    model = MaskedDiffusion(TableNet(table), SCHEDULES["log-linear"])
    (state,) = generate(model, [torch.tensor(M3)], Adaptive(measure, threshold=threshold), keys_of(1))
    assert state.positions.tolist() == [0, 1, 2]


# -- an end-of-text that waits -----------------------------------------------------------------------------------------

END = 2


def ending(seed: int) -> MaskedDiffusion:
    """A network that often thinks that the text is over."""
    net = TableNet.random(seed, length=5)
    net.vocab = replace(net.vocab, eos=END)
    with torch.no_grad():
        net.table[..., 2:, END] += 2.5
    return MaskedDiffusion(net, SCHEDULES["log-linear"])


@pytest.mark.parametrize("measure", MEASURES)
@pytest.mark.parametrize("how", [{"k": 1}, {"k": 3}, {"threshold": 0.5}, {"entropy_bound": 0.9}], ids=repr)
def test_a_late_end_waits_for_the_text_before_it(measure, how):
    model, n, waited = ending(4), 30, 0
    denoise, before = model.backbone.denoiser(), dict.fromkeys(range(n), (MASK,) * 5)
    states = generate(model, tensors([(MASK,) * 5] * n), Adaptive(measure, late_eos=True, **how), keys_of(n))
    for state in states:
        was = before[state.row]
        log_x = denoise(was, math.nan)
        is_end = {i: int(log_x[i].argmax()) == END for i in masks_of(was)}
        waiting = {i for i in is_end if is_end[i] and any(j < i and not is_end[j] for j in is_end)}
        ready = tuple(0 if i in waiting else token for i, token in enumerate(was))
        due = surest(ready, log_x, measure, how.get("k"), how.get("threshold"), how.get("entropy_bound"))
        assert state.positions.tolist() == sorted(due)
        waited += len(waiting)
        before[state.row] = tuple(state.canvas.tolist())
    assert waited and all(MASK not in canvas for canvas in before.values())


@pytest.mark.parametrize(("late", "first"), [(False, 1), (True, 0)])
def test_the_end_of_an_answer_waits_too(late, first):
    """LLaDA's answers end with a token of their own, before the end-of-text that fills the rest."""
    lm = random_lm(bytes_tokenizer(), "data.length=48")
    lm.chat_template = ChatTemplate.named("plain", lm.tokenizer)
    canvas = replace(lm.chat_canvas([{"role": "user", "content": "Hi"}], 4), ends=frozenset({ord("!")}))
    request = lm.request(canvas, SamplingParams(sampler="confidence", k=1, late_eos=late))
    trajectory = request.sampler.trajectory(request, lm.model.denoiser())
    logits = torch.zeros(4, lm.tokenizer.vocab.size)
    logits[[0, 2, 3], ord("a")], logits[1, ord("!")] = 5.0, 9.0  # surest of all: the answer has one letter
    trajectory.choose(trajectory.score(logits.log_softmax(-1)))
    assert trajectory.due().tolist() == [len(canvas.ids) - 4 + first]


def test_a_late_end_needs_an_end():
    model = MaskedDiffusion(TableNet.random(3), SCHEDULES["log-linear"])
    with pytest.raises(UserError, match="late_eos needs a tokenizer with an end-of-text token"):
        list(generate(model, [torch.tensor(M3)], Adaptive("entropy", k=1, late_eos=True), keys_of(1)))


def test_late_ends_are_a_setting_of_orders_by_sureness_only():
    assert SamplingParams(sampler="confidence", late_eos=True).describe()["late_eos"] is True
    said = refused("sample", "tiny-en", "--sampler", "plan", "--late-eos")
    assert said == "sampler 'plan' does not take late_eos; it belongs to confidence, entropy, margin"


# -- a bound on the entropy of what is written together --------------------------------------------------------------


def groups_of(net: TableNet, plan: Sampler, canvas=(MASK,) * 3, n: int = 40) -> list[list[list[int]]]:
    """For each of n samples, the positions of its steps; all by the same keys."""
    groups: list[list[list[int]]] = [[] for _ in range(n)]
    model = MaskedDiffusion(net, SCHEDULES["log-linear"])
    for state in generate(model, tensors([canvas] * n), plan, keys_of(n), batch_size=n):
        groups[state.row].append(state.positions.tolist())
    return groups


def test_the_law_of_a_bound():
    net, start, plan = TableNet.random(5, spread=2.5, length=4), (MASK,) * 4, Adaptive("entropy", entropy_bound=0.6)
    model = MaskedDiffusion(net, SCHEDULES["log-linear"])
    counts = outcomes(model, [start] * 1000, plan, keys_of(1000), batch_size=250)
    assert p_value(counts, surest_law(start, net.denoiser(), "entropy", bound=0.6)) > 1e-3
    for how in ({"k": 1}, {"k": 2}, {"k": 3}, {"k": 4}, {"threshold": 0.6}):
        assert p_value(counts, surest_law(start, net.denoiser(), "entropy", **how)) < 1e-6


@pytest.mark.parametrize("measure", MEASURES)
def test_a_bound_of_nothing_is_one_token_and_one_without_end_is_all(measure):
    net = TableNet.random(5, length=4)
    canvas = (MASK,) * 4
    assert groups_of(net, Adaptive(measure, entropy_bound=0.0), canvas) == groups_of(
        net, Adaptive(measure, k=1), canvas
    )
    assert groups_of(net, Adaptive(measure, entropy_bound=1e9), canvas, 3) == [[[0, 1, 2, 3]]] * 3


def test_what_is_certain_costs_no_call():
    """Positions that the network is certain of tell nothing of each other, so that 0 is not exceeded."""
    table = np.zeros((V + 1,) * 3 + (3, V))
    table[..., :2, 2] = 500.0
    assert groups_of(TableNet(table), Adaptive("entropy", entropy_bound=0.0), n=1) == [[[0, 1, 2]]]


@pytest.mark.parametrize("measure", MEASURES)
def test_a_larger_bound_writes_more_at_once(measure):
    """The first steps contain each other; where the canvas changes no prediction, calls can only become fewer."""
    bounds = (0.0, 0.2, 0.5, 0.8, 1.2, 2.0, 9.0)
    for seed in range(5):
        net, rows = TableNet.random(seed, length=5), np.random.default_rng(seed).normal(scale=2, size=(5, V))
        firsts = [set(groups_of(net, Adaptive(measure, entropy_bound=b), (MASK,) * 5, 1)[0][0]) for b in bounds]
        assert all(a <= b for a, b in itertools.pairwise(firsts))
        blind = TableNet(np.broadcast_to(rows, (V + 1,) * 5 + (5, V)))
        calls = [len(groups_of(blind, Adaptive(measure, entropy_bound=b), (MASK,) * 5, 1)[0]) for b in bounds]
        assert calls == sorted(calls, reverse=True) and calls[0] == 5 and calls[-1] == 1 and len(set(calls)) > 2


def test_what_is_lost_is_bounded_in_any_order():
    """The loss itself: the divergence of a joint law from the product of its marginals, by enumeration."""

    def nats(joint, positions) -> float:
        marginal = collect((tuple(x[i] for i in positions), p) for x, p in joint.items())
        return -sum(p * math.log(p) for p in marginal.values())

    for seed, order in itertools.product(range(5), itertools.permutations(range(3))):
        joint = random_joint(seed)
        each = [nats(joint, [i]) for i in order]
        bounds = loss_at_once(torch.tensor(each)).tolist()
        for n, bound in enumerate(bounds, 1):
            assert bound == pytest.approx(sum(each[:n]) - max(each[:n]), abs=1e-6)
            assert sum(each[:n]) - nats(joint, order[:n]) <= bound + 1e-6


def test_the_rule_is_that_of_transformers():
    """Ascending entropies: the sum without the largest is the sum without the last."""
    name = "transformers.models.diffusion_gemma.generation_diffusion_gemma"
    theirs = pytest.importorskip(name, reason="this version of transformers has no EntropyBoundSampler")
    logits = torch.tensor(np.random.default_rng(0).normal(scale=3, size=(50, 12, 8)), dtype=torch.float32)
    canvas = torch.zeros(50, 12, dtype=torch.int64)
    for bound in (0.05, 0.3, 1.0, 3.0):
        sampler = theirs.EntropyBoundSampler(theirs.EntropyBoundSamplerConfig(entropy_bound=bound), 12, 8, 1)
        accepted = sampler.accept_canvas(canvas, canvas + 1, logits, 0) == 1
        for row, taken in zip(logits.log_softmax(-1), accepted, strict=True):
            scores = MEASURES["entropy"](row)
            order = by_score(scores)
            assert set(order[loss_at_once(-scores[order]) <= bound].tolist()) == set(positions_of(taken).tolist())


# -- replay ----------------------------------------------------------------------------------------------------------

net = TableNet.random(11)
REPLAYED: dict[str, tuple[Sampler, Law]] = {
    "left-to-right": (LeftToRight(), order_law(M3, net.denoiser(), [[0], [1], [2]])),
    "left-to-right 2": (LeftToRight(2), order_law(M3, net.denoiser(), [[0, 1], [2]])),
    "order": (GivenOrder([1, 2, 0]), order_law(M3, net.denoiser(), [[1], [2], [0]])),
    "confidence": (Adaptive("confidence", k=1), surest_law(M3, net.denoiser(), "confidence", 1)),
    "entropy": (Adaptive("entropy", threshold=0.8), surest_law(M3, net.denoiser(), "entropy", threshold=0.8)),
    "margin": (Adaptive("margin", steps=2), surest_law(M3, net.denoiser(), "margin", 2)),
    "entropy bound": (Adaptive("entropy", entropy_bound=0.6), surest_law(M3, net.denoiser(), "entropy", bound=0.6)),
    "margin bound": (Adaptive("margin", entropy_bound=0.6), surest_law(M3, net.denoiser(), "margin", bound=0.6)),
    "windows": (
        Windows(Adaptive("margin", k=1), 2, 1),
        windows_law(M3, 2, 1, lambda z: surest_law(z, net.denoiser(), "margin", 1)),
    ),
}


def replayed(plan: Sampler, targets, canvas=M3, keys=None, **more) -> list[torch.Tensor]:
    model, n = MaskedDiffusion(net, SCHEDULES["log-linear"]), len(targets)
    return replay(model, tensors([canvas] * n), tensors(targets), plan, keys or keys_of(n), **more)


@pytest.mark.parametrize("name", REPLAYED)
def test_a_replay_is_the_exact_likelihood_of_the_plan(name):
    """Over all texts it sums to 1: the gate that every likelihood passes."""
    plan, law = REPLAYED[name]
    assert plan.deterministic
    log_p = [float(each.sum()) for each in replayed(plan, XS, batch_size=10)]
    assert sum(map(math.exp, log_p)) == pytest.approx(1, abs=1e-6)
    assert [math.exp(p) for p in log_p] == pytest.approx([law[x] for x in XS], rel=1e-5)


def test_a_replay_is_how_often_the_plan_writes_a_text():
    plan = Adaptive("entropy", threshold=0.8)
    law = {x: math.exp(float(p.sum())) for x, p in zip(XS, replayed(plan, XS), strict=True)}
    total = sum(law.values())
    counts = outcomes(MaskedDiffusion(net, SCHEDULES["log-linear"]), [M3] * 1000, plan, keys_of(1000), batch_size=250)
    assert p_value(counts, {x: p / total for x, p in law.items()}) > 1e-3


def test_a_replay_gives_each_token_its_own_and_given_ones_nothing():
    (log_p,) = replayed(LeftToRight(), [(0, 2, 3)], canvas=(MASK, 2, MASK))
    denoise = net.denoiser()
    expected = [denoise((MASK, 2, MASK), 0)[0, 0], 0.0, denoise((0, 2, MASK), 0)[2, 3]]
    assert log_p.dtype == torch.float64 and log_p.tolist() == pytest.approx(expected, rel=1e-5)


def test_a_replay_with_a_key_is_the_chain_rule_along_its_order():
    """First-hitting and T-step plans: the order is the key's, the same as when it writes."""
    model, denoise = MaskedDiffusion(net, SCHEDULES["log-linear"]), net.denoiser()
    for plan, key in itertools.product((FirstHitting(), RevealPlan(2)), keys_of(12)):
        groups = [state.positions.tolist() for state in generate(model, [torch.tensor(M3)], plan, [key])]
        law = order_law(M3, denoise, groups)
        log_p = [float(each.sum()) for each in replayed(plan, XS, keys=[key] * len(XS))]
        assert [math.exp(p) for p in log_p] == pytest.approx([law[x] for x in XS], rel=1e-5)


def test_the_mean_over_orders_is_the_law_of_first_hitting():
    """Many keys, one text: the two ways of using a plan are one law."""
    law, n = hitting_law(M3, net.denoiser(), "log-linear", 5), 400
    x = max(law, key=law.__getitem__)
    p = torch.stack([each.sum() for each in replayed(FirstHitting(), [x] * n)]).exp()
    assert abs(float(p.mean()) - law[x]) < 4 * float(p.std()) / math.sqrt(n)


def test_a_replay_under_rules_is_the_likelihood_under_them():
    banned = Rules(frozenset({2}))
    texts = list(itertools.product([0, 3], repeat=3))
    law = surest_law(M3, ruled(net.denoiser(), lambda position, token: token != 2), "margin", 1)
    log_p = [float(each.sum()) for each in replayed(Adaptive("margin", k=1), texts, rules=banned)]
    assert [math.exp(p) for p in log_p] == pytest.approx([law[x] for x in texts], rel=1e-5)
    assert float(replayed(LeftToRight(), [(2, 0, 0)], rules=banned)[0].sum()) == -math.inf


@pytest.mark.parametrize(
    ("target", "words"),
    [((0, 2), "target 1 has 2 tokens"), ((0, MASK, 0), "target 1 holds"), ((0, 0, 0), "target 1 differs.*position 1")],
)
def test_a_text_that_does_not_fit_the_canvas_is_a_sentence(target, words):
    with pytest.raises(UserError, match=words):
        replayed(LeftToRight(), [(0, 2, 0), target], canvas=(MASK, 2, MASK))


def test_only_orders_are_called_deterministic():
    for plan in (FirstHitting(), RevealPlan(3), Windows(RevealPlan(2), 3, 1)):
        assert not plan.deterministic
