"""Training by mask counts, in complementary pairs, with bell-shaped and clipped mask rates: what its mean is.

The mean of a loss is over everything that is drawn: a row has one uniform number, which says how many positions are
hidden, and one per position, whose order says which. Both are enumerated, so the means are exact.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch
from torch import Tensor

from oracles.enumeration import MASK, SCHEDULES, Denoiser, State, TableNet, V, stretches
from support.helpers import random_model, tiny_config
from unmask.config import Config
from unmask.evaluation import default_estimator
from unmask.evaluation.estimators import STRATA, every_set
from unmask.models import registry
from unmask.models.masked import MaskedDiffusion, Objective
from unmask.process.counts import count_chances, count_weights, hidden_sets
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean, Score
from unmask.process.schedule import (
    Bell,
    ClippedTime,
    ContinuousTime,
    DiscreteTime,
    Law,
    LogUniform,
    Polynomial,
    Schedule,
)
from unmask.training.loop import _continued
from unmask.types import Batch, UserError, Vocab

NET = TableNet.random(5, length=4)
COUNTS, PAIRS = Objective(counts=True), Objective(counts=True, pairs=True)

# -- rows ------------------------------------------------------------------------------------------------------------


def row(x: State, *, present: str = "", scored: str = "", given: str = "") -> Batch:
    """One row; a string of 0 and 1 says where something holds, nothing is the default."""

    def flags(text: str) -> Tensor | None:
        return torch.tensor([[c == "1" for c in text]]) if text else None

    place = torch.zeros(1, dtype=torch.int64)
    return Batch(torch.tensor([x]), place, 1, flags(scored), flags(present), given=flags(given))


ROWS = {
    "whole": row((0, 3, 2, 2)),
    "short": row((2, 0, 3, 0), present="1110", scored="1110"),
    "padding that is seen": row((3, 0, 2, 0), scored="1100"),
    "given": row((3, 2, 0, 2), given="0100"),
    "given and short": row((2, 2, 0, 3), present="1110", scored="1010", given="1000"),
    "one token": row((3, 2, 0, 2), given="1101"),
    "nothing": row((3, 2, 0, 2), given="1111"),
}

LAWS: dict[str, Law] = {
    "cut-off": ContinuousTime(0.1),
    "no cut-off": ContinuousTime(0.0),
    "three steps": DiscreteTime(3),
    "one step": DiscreteTime(1),
    "bell": ContinuousTime(0.1, Bell(5.0)),
    "log-uniform": ContinuousTime(0.1, LogUniform(0.05)),
    "clipped": ClippedTime(0.3, 0.8),
}

# -- the mean of a loss ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Scripted(Keys):
    """Keys that say what they are told: the time of a row, and the uniforms of its positions."""

    place: float = 0.0
    positions: tuple[float, ...] = ()

    def uniform(self, purpose: str, index: Iterable[int] | Tensor, *shape: int) -> Tensor:
        numbers = {"time": [self.place], "mask": [self.positions]}[purpose]
        return torch.tensor(numbers, dtype=torch.float64)


def number(batch: Batch, model: MaskedDiffusion, place: float) -> int:
    """How many positions of the first view are hidden."""
    law, weighted = model.objective.law or model.law, not model.objective.cross_entropy
    keys = Scripted(0, 0, place, (0.5,) * batch.tokens.shape[1])
    hidden, _ = hidden_sets(batch, keys, law, model.schedule, weighted=weighted, pairs=model.objective.pairs)
    return int(hidden[0].sum())


def parts(batch: Batch, model: MaskedDiffusion) -> Iterator[tuple[float, float]]:
    """(chance, a place in the middle) of every part of [0, 1) in which one number of positions is hidden."""
    return stretches(lambda place: number(batch, model, place))


def mean_of(batch: Batch, model: MaskedDiffusion, figure: Callable[[Tensor, Tensor], Tensor]) -> Tensor:
    """The mean of a figure of (loss, weight) over everything that is drawn."""
    length = batch.tokens.shape[1]
    orders = list(itertools.permutations([(i + 0.5) / length for i in range(length)]))
    total = torch.zeros(())
    for chance, place in parts(batch, model):
        for order in orders:
            total = total + chance / len(orders) * figure(*model.loss(batch, Scripted(0, 0, place, order)))
    return total


def sets(batch: Batch) -> Iterator[tuple[list[int], list[int], int]]:
    """(hidden positions, those of them that count, how many could be hidden) for every set but the empty one."""
    places = torch.nonzero(batch.free()[0]).flatten().tolist()
    counts = batch.weight()[0].tolist()
    for size in range(1, len(places) + 1):
        for chosen in itertools.combinations(places, size):
            yield list(chosen), [i for i in chosen if counts[i]], len(places)


def cost(batch: Batch, hidden: list[int], counted: list[int], denoise: Denoiser) -> float:
    """-log x̂ of the hidden tokens that count."""
    x, there = batch.tokens[0].tolist(), [True] * 4 if batch.present is None else batch.present[0].tolist()
    z = tuple(V if not there[i] else MASK if i in hidden else token for i, token in enumerate(x))
    guess = denoise(z, 0.5)
    return -sum(guess[i, x[i]] for i in counted)


def bound_by_time(batch: Batch, law: Law, schedule: Schedule) -> float:
    """The bound as what it is: an integral over mask rates, or a sum over steps, of all masks there are."""

    def at(rate: float) -> float:
        return sum(
            rate ** len(hidden) * (1 - rate) ** (m - len(hidden)) * cost(batch, hidden, counted, NET.denoiser())
            for hidden, counted, m in sets(batch)
        )

    if isinstance(law, DiscreteTime):
        end = float(schedule.alpha(torch.ones(1)))
        alpha = [1.0] + [float(schedule.alpha(torch.tensor(i / law.steps))) for i in range(1, law.steps + 1)]
        keep = [(a - end) / (1 - end) for a in alpha]
        return sum((keep[i] - keep[i + 1]) / (1 - keep[i + 1]) * at(1 - keep[i + 1]) for i in range(law.steps))
    low, high = (law.low, law.high) if isinstance(law, ClippedTime) else (law.cutoff, 1.0)  # type: ignore[attr-defined]
    node, weight = np.polynomial.legendre.leggauss(8)  # the integrand is a polynomial
    rates = low + (node + 1) / 2 * (high - low)
    inside = sum(w * at(p) / p for p, w in zip(rates, weight / 2 * (high - low), strict=True))
    return inside + (0.0 if isinstance(law, ClippedTime) else at(low))


def model_of(law: Law, objective: Objective, name: str = "log-linear") -> MaskedDiffusion:
    """A clipped law is one of training only."""
    if isinstance(law, ClippedTime):
        return MaskedDiffusion(NET, SCHEDULES[name], ContinuousTime(0.1), objective=replace(objective, law=law))
    return MaskedDiffusion(NET, SCHEDULES[name], law, objective=objective)


@pytest.mark.parametrize("objective", [COUNTS, PAIRS], ids=["counts", "pairs"])
@pytest.mark.parametrize("law", LAWS)
def test_the_mean_of_the_loss_is_the_bound(law: str, objective: Objective) -> None:
    name = "cosine" if "steps" in law else "log-linear"
    model = model_of(LAWS[law], objective, name)
    for kind, batch in ROWS.items():
        with torch.no_grad():
            found = float(mean_of(batch, model, lambda loss, _: loss))
        truth = bound_by_time(batch, LAWS[law], SCHEDULES[name])
        assert found == pytest.approx(truth, rel=2e-5, abs=1e-6), kind
        if not isinstance(LAWS[law], ClippedTime):
            assert found == pytest.approx(float(every_set(model, batch, 0, batch.free()[0], 64).sum()), rel=2e-5)


@pytest.mark.parametrize("objective", [COUNTS, PAIRS], ids=["counts", "pairs"])
def test_the_mean_of_the_gradient_is_that_of_the_bound(objective: Objective) -> None:
    """The bound is a sum over every set; the gradient of that sum comes from autograd."""
    model, batch = model_of(ContinuousTime(0.1), objective), ROWS["given"]
    (found,) = torch.autograd.grad(mean_of(batch, model, lambda loss, _: loss), [NET.table])
    c, total = count_weights(model.law, model.schedule, 3), torch.zeros(())
    for hidden, counted, m in sets(batch):
        z = batch.tokens.clone()
        z[0, hidden] = MASK
        log_x = model.log_x(model.hidden(z, torch.ones(1))[0])
        share = float(c[len(hidden)]) / len(hidden) / math.comb(m, len(hidden))
        total = total - share * log_x[counted, batch.tokens[0, counted]].sum()
    (truth,) = torch.autograd.grad(total, [NET.table])
    assert float(truth.abs().max()) > 0.1
    torch.testing.assert_close(found, truth, rtol=1e-4, atol=1e-6)


# -- cross-entropy: every number of masks alike, no weights ----------------------------------------------------------


@pytest.mark.parametrize("kind", ROWS)
def test_cross_entropy_by_counts_is_a_plain_mean_over_numbers_and_sets(kind: str) -> None:
    batch, denoise = ROWS[kind], NET.denoiser()
    model = model_of(ContinuousTime(0.1), replace(COUNTS, cross_entropy=True))
    with torch.no_grad():
        loss, weight = (float(mean_of(batch, model, lambda *pair, i=i: pair[i])) for i in (0, 1))
    want_loss = want_weight = 0.0
    for hidden, counted, m in sets(batch):
        chance = 1 / m / math.comb(m, len(hidden))
        want_loss += chance * cost(batch, hidden, counted, denoise)
        want_weight += chance * len(counted)
    assert loss == pytest.approx(want_loss, rel=2e-5, abs=1e-6)
    assert weight == pytest.approx(want_weight, rel=2e-5, abs=1e-6)


@pytest.mark.parametrize("kind", ROWS)
def test_a_pair_predicts_every_token_once(kind: str) -> None:
    """A set and its complement: n from 1 to M are alike, so a set S is a view where |S| or M - |S| is drawn."""
    batch, denoise = ROWS[kind], NET.denoiser()
    model = model_of(ContinuousTime(0.1), replace(PAIRS, cross_entropy=True))
    free, counts = batch.free(), int((batch.free() & batch.weight()).sum())
    for step in range(20):
        hidden, weight = hidden_sets(batch, Keys(1, step), model.law, model.schedule, weighted=False, pairs=True)
        assert torch.equal(hidden.sum(0), free[0].long()) and len(weight) == 2
        assert float(model.loss(batch, Keys(1, step))[1]) == counts
    with torch.no_grad():
        found = float(mean_of(batch, model, lambda loss, _: loss))
    truth = 0.0
    for hidden, counted, m in sets(batch):
        n = len(hidden)
        drawn = (1 + (n < m)) / m  # M - n = 0 is never drawn
        truth += drawn / math.comb(m, n) * cost(batch, hidden, counted, denoise)
    assert found == pytest.approx(truth, rel=2e-5, abs=1e-6)


# -- chances and weights of counts -----------------------------------------------------------------------------------


@pytest.mark.parametrize("total", [1, 2, 7, 64, 257])
@pytest.mark.parametrize("law", LAWS)
def test_chances_are_chances_and_weights_undo_them(law: str, total: int) -> None:
    """Also for rows that nobody can enumerate: the mean weight of n hidden tokens is c_n."""
    c = count_weights(LAWS[law], Polynomial(), total).numpy()
    n = np.arange(total + 1)
    q, weight = count_chances(LAWS[law], Polynomial(), total, True)
    assert q.sum() == pytest.approx(1) and q[0] == 0
    np.testing.assert_allclose(n * q * weight, c, rtol=1e-9, atol=1e-15)
    q, weight = count_chances(LAWS[law], Polynomial(), total, True, True)
    assert q.sum() == pytest.approx(1) and not q[2 * n < total].any()
    np.testing.assert_allclose(n * (q + q[::-1]) * weight, c, rtol=1e-9, atol=1e-15)


def test_a_clipped_range_has_its_part_of_every_coefficient() -> None:
    """Ranges that lie side by side add up to the whole, which is 1 for every number."""
    for total in (1, 5, 300):
        edges = [0.0, 0.1, 0.45, 1.0]
        ranges = [count_weights(ClippedTime(a, b), Polynomial(), total) for a, b in itertools.pairwise(edges)]
        np.testing.assert_allclose(sum(ranges), [0.0, *[1.0] * total], atol=1e-9)
        node, w = np.polynomial.legendre.leggauss(200)
        p, w = 0.1 + (node + 1) / 2 * 0.35, w / 2 * 0.35
        for n in {1, (total + 1) // 2, total}:
            truth = n * math.comb(total, n) * float((w * p ** (n - 1) * (1 - p) ** (total - n)).sum())
            assert float(ranges[1][n]) == pytest.approx(truth, rel=1e-7, abs=1e-12)


def test_counts_of_a_proposal_are_those_of_its_mask_rates() -> None:
    """Against numbers drawn by the textbook: a time, then a coin for every position."""
    total, rng = 20, np.random.default_rng(0)
    q, weight = count_chances(ContinuousTime(1e-3, Bell(6.0)), Polynomial(), total, False)
    rate = 1 - Bell(6.0).keep(torch.from_numpy(rng.random(200_000))).numpy()
    drawn = np.bincount(rng.binomial(total, rate), minlength=total + 1)[1:]
    expected = q[1:] * drawn.sum()
    assert ((drawn - expected) ** 2 / expected).sum() < 45  # 19 degrees of freedom
    assert weight.tolist() == [0.0] + [1.0] * total
    assert q[10] > 3 * q[1] and q[10] > 3 * q[20]


def test_sets_of_a_size_are_alike() -> None:
    """Each of the six sets of two positions, 3000 times over."""
    batch, found = Batch(torch.zeros(3000, 4, dtype=torch.int64), torch.arange(3000), 3000), {}
    hidden, weight = hidden_sets(batch, Keys(2), ContinuousTime(0.0), Polynomial())
    sizes = hidden.sum(1)
    assert sizes.min() == 1 and sizes.max() == 4 and len(weight.unique()) == 4
    for each in hidden[sizes == 2].tolist():
        found[tuple(each)] = found.get(tuple(each), 0) + 1
    mean = sum(found.values()) / 6
    assert len(found) == 6 and sum((k - mean) ** 2 / mean for k in found.values()) < 20
    chances = np.array([n**-0.5 for n in range(1, 5)])
    np.testing.assert_allclose(np.bincount(sizes)[1:], 3000 * chances / chances.sum(), atol=1.01)  # strata, not luck


# -- any number of processes, and how much noise is left -------------------------------------------------------------

VOCAB = Vocab(11, 4, pad=0)


def text(rows: int, length: int) -> Batch:
    tokens = torch.randint(5, 11, (rows, length), generator=torch.Generator().manual_seed(3))
    lengths = torch.arange(rows) % length + 1
    there = torch.arange(length) < lengths[:, None]
    return Batch(tokens, torch.arange(rows), rows, scored=there, present=there)


SETTINGS = {
    "counts": ["objective.times=counts"],
    "pairs": ["objective.times=counts", "objective.pairs=true"],
    "plain pairs": ["objective.times=counts", "objective.pairs=true", "objective.loss=cross-entropy"],
    "bell": ["objective.times=counts", "objective.proposal=bell"],
    "bell by time": ["objective.proposal=bell"],
    "clipped": ["objective.times=counts", "objective.clip=[0.2,0.6]"],
}


@pytest.mark.parametrize("kind", SETTINGS)
def test_a_batch_may_be_cut_in_any_way(kind: str) -> None:
    model, batch = random_model(tiny_config("data.length=8", *SETTINGS[kind]), VOCAB), text(13, 8)
    with torch.no_grad():
        for step in range(3):
            keys = Keys(0, step)
            whole = [float(each) for each in model.loss(batch, keys)]
            for cut in ([0, 7, 13], [0, 1, 5, 12, 13]):
                shares = [batch.rows(torch.arange(a, b)) for a, b in itertools.pairwise(cut)]
                parts = [[float(each) for each in model.loss(share, keys)] for share in shares]
                assert np.sum(parts, 0).tolist() == pytest.approx(whole, rel=1e-5)


def test_counts_have_less_noise_than_times() -> None:
    """A random network, 16 rows of 12 tokens, 60 draws each; margins of a factor of 2 in the deviation."""
    tokens = torch.randint(5, 11, (16, 12), generator=torch.Generator().manual_seed(1))
    batch, found = Batch(tokens, torch.arange(16), 16), {}
    for kind, settings in {"times": [], **SETTINGS}.items():
        if kind in ("times", "counts", "pairs"):
            model = random_model(tiny_config("data.length=12", *settings), VOCAB)
            with torch.no_grad():
                losses = [float(model.loss(batch, Keys(4, step))[0]) for step in range(60)]
            found[kind] = np.std(losses)
    assert 2 * found["counts"] < found["times"] and 2 * found["pairs"] < found["times"]


# -- clipped for a while ---------------------------------------------------------------------------------------------


def test_a_clipped_range_may_end() -> None:
    law = ClippedTime(0.05, 0.4)
    batch = text(6, 4)
    batch = replace(batch, tokens=batch.tokens % 3 + (batch.tokens % 3 > 0))  # 0, 2, 3
    for objective in (Objective(), COUNTS, Objective(cross_entropy=True)):
        plain, always, ended = (
            MaskedDiffusion(NET, Polynomial(), objective=other)
            for other in (objective, replace(objective, law=law), replace(objective, law=law, law_until=3))
        )
        for step in range(6):
            same, other = (always, plain) if step < 3 else (plain, always)
            keys = Keys(0, step)
            assert torch.equal(ended.loss(batch, keys)[0], same.loss(batch, keys)[0])
            assert not torch.equal(ended.loss(batch, keys)[0], other.loss(batch, keys)[0])
            assert torch.equal(ended.nats(batch, keys).nats, plain.nats(batch, keys).nats)


def test_the_end_of_a_clipped_range_is_a_share_of_the_steps(tmp_path) -> None:
    config = tiny_config("objective.clip=[0.01,0.5]", "objective.clip_until=0.3", "train.steps=50")
    model = registry.model(config, VOCAB)
    assert isinstance(model, MaskedDiffusion)
    assert model.objective == Objective(law=ClippedTime(0.01, 0.5), law_until=15)
    begun = config.resolved()
    assert begun.objective.clip_until == 15
    longer = _continued(begun, config.override(["train.steps=100"]), tmp_path)  # it stays where it was
    assert longer.objective.clip_until == 15 and longer.train.steps == 100
    assert tiny_config().resolved().objective.clip_until is None


# -- bell ------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("steep", [0.1, 2.0, 4.0, 10.0])
def test_a_bell_is_a_logistic_density_between_two_ends(steep: float) -> None:
    bell = Bell(steep, 0.0)
    p = torch.linspace(0, 1, 2001, dtype=torch.float64)
    t = bell.inverse(1 - p)
    assert float(t[0]) == 0 and float(t[-1]) == pytest.approx(1, abs=1e-12) and (t.diff() > 0).all()
    density = -1 / bell.dalpha(t)
    truth = 1 / torch.cosh(steep * (p - 0.5)) ** 2
    torch.testing.assert_close(density / density[1000], truth, rtol=1e-5, atol=1e-12)
    assert float(density.mean()) == pytest.approx(1, abs=2e-3)
    assert float(density[0]) == pytest.approx(steep / math.sinh(steep), rel=1e-9)
    torch.testing.assert_close(1 - bell.alpha(t), p, rtol=1e-7, atol=1e-8)
    draw = ContinuousTime(1e-3, bell).draw(t, Polynomial())
    weight = draw.scale * (1 - draw.keep)  # 1 under an even draw of mask rates
    assert float(weight.max()) == pytest.approx(math.sinh(steep) / steep, rel=2e-3)


# -- what is said, and what is refused -------------------------------------------------------------------------------


def test_the_likelihood_stays_that_of_the_law() -> None:
    batch = text(6, 8)
    plain = random_model(tiny_config("data.length=8"), VOCAB)
    assert "training" not in plain.describe()
    for kind in ("counts", "pairs", "plain pairs", "clipped"):
        model = random_model(tiny_config("data.length=8", *SETTINGS[kind]), VOCAB)
        assert torch.equal(model.nats(batch, Keys(1)).nats, plain.nats(batch, Keys(1)).nats)
        told = model.describe()
        words = str(told.pop("training"))
        assert told == plain.describe() and words.startswith("mask counts in strata")
        assert ("complement" in words) == ("pairs" in kind) and ("without the weights" in words) == ("plain" in kind)
        assert ("mask rates 0.2 to 0.6 only" in words) == (kind == "clipped")
        assert default_estimator(model) is STRATA


def test_settings_become_what_they_say() -> None:
    made = registry.model(tiny_config(*SETTINGS["pairs"], "objective.proposal=bell", "schedule.steep=3"), VOCAB)
    assert isinstance(made, MaskedDiffusion)
    assert made.objective == Objective(counts=True, pairs=True) and made.law == ContinuousTime(0.1, Bell(3.0))
    usual = registry.model(tiny_config(), VOCAB)
    assert isinstance(usual, MaskedDiffusion) and usual.objective == Objective()


WRONG = {
    "pairs of times": (["objective.pairs=true"], "set objective.times=counts"),
    "clipped pairs": ([*SETTINGS["pairs"], "objective.clip=[0.1,0.5]"], "leave out one of them"),
    "an end of nothing": (["objective.clip_until=0.5"], "set clip too"),
    "no end": (["objective.clip=[0.1,0.5]", "objective.clip_until=0"], "objective.clip_until"),
    "half a step": (["objective.clip=[0.1,0.5]", "objective.clip_until=2.5"], "a share of train.steps below 1"),
    "counts of BERT": (["objective.times=counts", "objective.loss=mlm"], "leave out times"),
    "a count of what": (["objective.times=count"], "'strata', 'independent' or 'counts'"),
    "too steep": (["schedule.steep=11"], "schedule.steep"),
    "flat": (["schedule.steep=0"], "schedule.steep"),
    "ar": (["model.method=ar", "objective.times=counts"], "does not use objective.times; leave it out"),
    "ar pairs": (["model.method=ar", *SETTINGS["pairs"]], "does not use objective.times; leave it out"),
    "a time": (["model.time_conditioning=true", "objective.times=counts"], "set model.time_conditioning=false"),
    "d3pm": (["model.method=d3pm", "objective.times=counts"], "set objective.times=strata, or model.method=mdlm"),
    "no carry-over": (["model.method=no-carry-over", "objective.times=counts"], "set objective.times=strata"),
    "sedd": (["model.method=sedd", "objective.times=counts"], "set objective.times=strata, or model.method=mdlm"),
}


@pytest.mark.parametrize("what", WRONG)
def test_what_cannot_be_is_a_sentence_with_its_fix(what: str) -> None:
    settings, words = WRONG[what]
    with pytest.raises(UserError) as caught:
        registry.model(tiny_config(*settings), VOCAB)
    assert words in str(caught.value) and "\n" not in str(caught.value) and len(str(caught.value)) < 250


def test_objects_refuse_it_too() -> None:
    for meaning in (Score(), Mean(carry_over=False), Mean(zero_mask=False)):
        with pytest.raises(UserError, match=r"set objective.times=strata"):
            MaskedDiffusion(NET, Polynomial(), parameterization=meaning, objective=COUNTS)
    with pytest.raises(UserError, match=r"set model.time_conditioning=false"):
        MaskedDiffusion(TableNet.random(0, timed=True), Polynomial(), objective=COUNTS)
    assert Config().objective.times == "strata" and not Config().objective.pairs
