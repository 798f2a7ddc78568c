"""Masked diffusion end to end: unbiased against enumeration, independent of the batch, rows only."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from oracles.enumeration import (
    LENGTH,
    MASK,
    SCHEDULES,
    XS,
    TableNet,
    conditionals,
    d3pm,
    keep_grid,
    last_step,
    nelbo_continuous,
    nelbo_discrete,
    random_joint,
    subs,
)
from support.drawing import generate
from unmask.models.masked import MaskedDiffusion
from unmask.networks.dit import DiT
from unmask.process.keys import Keys
from unmask.process.parameterization import Mean
from unmask.process.schedule import ContinuousTime, DiscreteTime, Draw, Geometric, Law, LogUniform, Polynomial, Schedule
from unmask.sampling import Ancestral, Choice, RevealPlan
from unmask.types import Batch, Vocab

VOCAB = Vocab(23, mask=7, pad=0)


def dit_model(law: Law | None = None, schedule: Schedule | None = None, **kwargs) -> MaskedDiffusion:
    """A small transformer in which no weight is zero."""
    torch.manual_seed(0)
    net = DiT(VOCAB, 16, n_blocks=2, n_heads=2, cond_dim=8, dropout=0.0, **kwargs)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.2)
    return MaskedDiffusion(net, schedule or Polynomial(), law).eval()


def text(rows: int = 8, length: int = 12, seed: int = 0) -> Tensor:
    tokens = torch.randint(1, VOCAB.size - 1, (rows, length), generator=torch.Generator().manual_seed(seed))
    return tokens + (tokens >= VOCAB.mask)  # neither pad nor mask


def batch_of(rows: int = 8, length: int = 12, **kwargs) -> Batch:
    return Batch(text(rows, length), torch.arange(rows), rows, **kwargs)


@dataclass(frozen=True)
class Fixed(Law):
    """Every row at one given time."""

    t: float
    keep: float

    def draw(self, uniform: Tensor, schedule: Schedule) -> Draw:
        at = torch.full_like(uniform, self.t)
        return Draw(at, 0 * at + self.keep, torch.zeros_like(at, dtype=torch.bool), 0 * at, 0 * at + 2.0)

    def last(self, schedule: Schedule) -> float:
        return 0.0

    def describe(self) -> dict[str, object]:
        return {"bound": "fixed"}


# -- unbiased --------------------------------------------------------------------------------------------------------


def estimate(model: MaskedDiffusion, copies: int = 8, draws: int = 80) -> tuple[np.ndarray, np.ndarray]:
    """Mean nats of every x over keys, and its standard error; strata make rows of one draw dependent, draws not."""
    tokens = torch.tensor(XS * copies)
    batch = Batch(tokens, torch.arange(len(tokens)), len(tokens))
    with torch.no_grad():
        rows = [model.nats(batch, Keys(11, draw)).nats.double().sum(1) for draw in range(draws)]
    values = torch.stack(rows).view(draws, copies, len(XS)).mean(1).numpy()
    return values.mean(0), values.std(0, ddof=1) / math.sqrt(draws)


def truth_of(net: TableNet, name: str, law: Law, log_x) -> np.ndarray:
    denoise = net.denoiser(name, log_x)
    if isinstance(law, DiscreteTime):
        keep, times = keep_grid(name, law.steps), [i / law.steps for i in range(law.steps + 1)]
        return np.array([nelbo_discrete(x, denoise, keep, times) for x in XS])
    keep = float(law.draw(torch.zeros(1, dtype=torch.float64), SCHEDULES[name]).keep)
    return np.array([nelbo_continuous(x, denoise, 0.0, keep) + last_step(x, denoise, keep, 0.0) for x in XS])


CASES = [
    ("log-linear", ContinuousTime(0.02), "plain", subs),
    ("cosine", ContinuousTime(0.02), "exact", subs),
    ("geometric wide cut", ContinuousTime(), "plain", subs),
    ("log-linear", DiscreteTime(3), "timed", subs),
    ("geometric wide cut", DiscreteTime(2), "timed", subs),
    ("cosine-squared", DiscreteTime(4), "plain", d3pm),
]


@pytest.mark.parametrize(("name", "law", "kind", "log_x"), CASES, ids=lambda value: getattr(value, "__name__", value))
def test_nats_are_an_unbiased_draw_of_the_exact_bound(name, law, kind, log_x):
    net = TableNet.exact(random_joint()) if kind == "exact" else TableNet.random(2, timed=kind == "timed")
    model = MaskedDiffusion(net, SCHEDULES[name], law, Mean(zero_mask=log_x is subs))
    mean, error = estimate(model)
    truth = truth_of(net, name, law, log_x)
    assert (error < 0.2 * truth).all()
    assert abs((mean - truth) / error).max() < 4
    assert abs((mean - truth).sum()) < 4 * math.sqrt((error**2).sum())


def test_exact_conditionals_give_the_likelihood_of_every_sequence():
    """The whole path (strata, masks, network, SUBS, bound) against -log p(x) itself."""
    joint = random_joint(3)
    mean, error = estimate(MaskedDiffusion(TableNet.exact(joint), SCHEDULES["log-linear"]), draws=100)
    truth = np.array([-math.log(joint[x]) for x in XS])
    assert np.allclose(truth, [nelbo_continuous(x, conditionals(joint), 0.0, 1.0) for x in XS])
    assert abs((mean - truth) / error).max() < 4


# -- independent of the batch ----------------------------------------------------------------------------------------


@pytest.mark.parametrize("law", [ContinuousTime(), DiscreteTime(5)], ids=repr)
@pytest.mark.parametrize("timed", [False, True])
def test_a_row_is_worth_the_same_alone_and_in_any_batch(law, timed):
    model, batch, keys = dit_model(law, time_conditioning=timed), batch_of(), Keys(4, 9)
    whole = model.nats(batch, keys).nats
    for rows in ([3], [7, 0], [1, 2, 3, 4]):
        part = Batch(batch.tokens[rows], torch.tensor(rows), batch.total)
        got = model.nats(part, keys).nats
        assert torch.equal(got == 0, whole[rows] == 0)  # the same masks
        torch.testing.assert_close(got, whole[rows], rtol=1e-5, atol=1e-5)
    assert not torch.equal(whole == 0, model.nats(batch, keys.at(10)).nats == 0)


def test_a_batch_may_be_longer_padded_and_still_count_the_same():
    """Present and scored: the padding neither costs nor shows, whatever it holds and however long it is."""
    model, keys = dit_model(Fixed(0.6, 0.4)), Keys(0)
    tokens, real = text(4, 10), torch.arange(10) < torch.tensor([10, 6, 3, 1])[:, None]
    values = []
    for filler in (VOCAB.pad, 5):
        padded = Batch(torch.where(real, tokens, filler), torch.arange(4), 4, scored=real, present=real)
        values.append(model.nats(padded, keys))
    torch.testing.assert_close(values[0].nats, values[1].nats, rtol=0, atol=0)
    assert values[0].weight.equal(real) and (values[0].nats[~real] == 0).all()
    for row, length in enumerate((10, 6, 3, 1)):
        alone = model.nats(Batch(tokens[row : row + 1, :length], torch.tensor([row]), 4), keys)
        torch.testing.assert_close(values[0].nats[row, :length], alone.nats[0], rtol=1e-5, atol=1e-5)


# -- what counts -----------------------------------------------------------------------------------------------------


def test_only_scored_positions_cost_and_all_of_them_weigh():
    model, keys = dit_model(), Keys(1)
    everything = model.nats(batch_of(), keys)
    scored = torch.rand(8, 12) < 0.5
    some = model.nats(batch_of(scored=scored), keys)
    torch.testing.assert_close(some.nats, everything.nats * scored, rtol=1e-5, atol=1e-6)
    assert some.weight.equal(scored) and everything.weight.all()
    with torch.no_grad():
        loss, weight = model.loss(batch_of(scored=scored), keys)
        again = model(batch_of(scored=scored), keys)
    assert int(weight) == int(scored.sum())  # tokens, masked or not
    assert float(loss) == pytest.approx(float(some.nats.detach().sum()), rel=1e-6)
    assert some.nats.dtype == torch.float32
    assert float(again[0]) == float(loss) and int(again[1]) == int(weight)


@pytest.mark.parametrize("keep", [0.0, 0.5, 1.0])
def test_unmasked_positions_cost_nothing_and_masked_ones_the_cross_entropy(keep):
    model, batch = dit_model(Fixed(0.5, keep)), batch_of()
    uniform = Keys(0).uniform("mask", range(8), 12)
    z = torch.where(uniform < keep, batch.tokens, VOCAB.mask)
    got = model.nats(batch, Keys(0)).nats
    with torch.no_grad():
        logits = model.backbone.head(model.backbone(z, condition=model.backbone.condition(torch.zeros(8)))[0])
    logits[..., VOCAB.mask] = -math.inf
    cross_entropy = nn.functional.cross_entropy(logits.transpose(1, 2), batch.tokens, reduction="none")
    torch.testing.assert_close(got, 2.0 * cross_entropy * (z == VOCAB.mask), rtol=1e-5, atol=1e-5)


def test_rows_without_a_mask_give_zero_loss_and_zero_gradients():
    model = dit_model(Fixed(0.0, 1.0))
    loss, weight = model.loss(batch_of(), Keys(0))
    loss.backward()
    assert float(loss.detach()) == 0 and int(weight) == 96
    for parameter in model.parameters():
        assert parameter.grad is None or (parameter.grad == 0).all()
    nothing = torch.zeros(8, 12, dtype=torch.bool)
    loss, weight = dit_model().loss(batch_of(scored=nothing), Keys(0))
    assert float(loss.detach()) == 0 and int(weight) == 0


@pytest.mark.parametrize("law", [ContinuousTime(), DiscreteTime(1), DiscreteTime(7)], ids=repr)
def test_gradients_are_finite_under_every_schedule(law):
    for schedule in SCHEDULES.values():
        model = dit_model(law, schedule)
        loss, _ = model.loss(batch_of(), Keys(0))
        loss.backward()
        assert torch.isfinite(loss)
        assert all(p.grad is None or torch.isfinite(p.grad).all() for p in model.parameters())


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_network_that_is_told_the_time_is_told_a_number(name):
    """At t = 1 an uncut schedule has alpha = 0 and sigma = -log alpha is infinite: no network can use that."""
    model = dit_model(DiscreteTime(2), SCHEDULES[name], time_conditioning=True)
    batch = batch_of()
    assert torch.isfinite(model.nats(batch, Keys(0)).nats).all()
    canvas = torch.full((6,), VOCAB.mask)
    for state in generate(model, [canvas], RevealPlan(4), [Keys(0)]):
        assert torch.isfinite(state.probs).all()


# -- rows only, in chunks --------------------------------------------------------------------------------------------


def test_the_head_sees_masked_scored_rows_and_nothing_else(monkeypatch):
    model, seen = dit_model(Fixed(0.5, 0.7)), []
    head = model.backbone.head
    monkeypatch.setattr(model.backbone, "head", lambda rows: seen.append(tuple(rows.shape)) or head(rows))
    scored = torch.rand(8, 12) < 0.6
    masked = Keys(0).uniform("mask", range(8), 12) >= 0.7
    model.nats(batch_of(scored=scored), Keys(0))
    assert seen == [(int((scored & masked).sum()), 16)]


@pytest.mark.parametrize("zero_mask", [True, False])
@pytest.mark.parametrize("rows", [1, 5, 40])
def test_chunks_change_nothing(monkeypatch, rows, zero_mask):
    def run() -> tuple[Tensor, list[Tensor]]:
        model = dit_model(DiscreteTime(3))
        model.parameterization = Mean(zero_mask=zero_mask)
        nats = model.nats(batch_of(), Keys(2)).nats
        nats.sum().backward()
        return nats.detach(), [p.grad for p in model.parameters()]

    whole, gradients = run()
    monkeypatch.setattr("unmask.process.chunks.LOGITS_AT_ONCE", rows * VOCAB.size)
    chunked, chunked_gradients = run()
    torch.testing.assert_close(chunked, whole, rtol=1e-5, atol=1e-6)
    for got, truth in zip(chunked_gradients, gradients, strict=True):
        torch.testing.assert_close(got, truth, rtol=1e-4, atol=1e-5)
    assert sum(float(g.abs().sum()) for g in gradients) > 1


# -- the rest of the interface ---------------------------------------------------------------------------------------


def test_under_another_law_it_is_the_same_network():
    model = dit_model().train()
    other = model.under(law=DiscreteTime(4))
    assert other.backbone is model.backbone and other.training and isinstance(model.law, ContinuousTime)
    assert other.schedule is model.schedule and other.describe()["steps"] == 4
    assert model.under(SCHEDULES["cosine"]).schedule is SCHEDULES["cosine"]


def test_every_likelihood_names_its_law():
    described = dit_model(DiscreteTime(4), SCHEDULES["geometric"]).describe()
    assert described["bound"] == "discrete" and described["steps"] == 4
    assert "Geometric" in str(described["schedule"]) and "Mean" in str(described["parameterization"])
    assert dit_model(ContinuousTime(0.01)).describe()["cutoff_mask_rate"] == 0.01


def test_a_model_that_reconstructs_says_from_what():
    assert "reconstruction" not in dit_model().describe()
    model = MaskedDiffusion(TableNet.random(), Polynomial(), parameterization=Mean(carry_over=False))
    assert "last step" in model.describe()["reconstruction"]
    assert not model.carry_over and not model.normalised and model.default_sampler == "ancestral"
    assert dit_model().carry_over and dit_model().normalised and dit_model().default_sampler == "plan"


@pytest.mark.parametrize("plan", [RevealPlan(6), Ancestral(6)], ids=repr)
@pytest.mark.parametrize("timed", [False, True])
def test_a_transformer_writes_rows_of_any_length_side_by_side(plan, timed):
    """Padding in a batch of canvases is invisible to a real network too (equal up to float ties)."""
    model = dit_model(time_conditioning=timed)
    canvases = [torch.full((n,), VOCAB.mask) for n in (3, 9, 1, 6)]
    canvases[1][2:5] = torch.tensor([4, 8, 15])
    keys = [Keys(i) for i in range(4)]

    def run(size: int) -> dict[int, list[int]]:
        return {s.row: s.canvas.tolist() for s in generate(model, canvases, plan, keys, batch_size=size)}

    together, alone = run(4), run(1)
    assert together == alone
    assert together[1][2:5] == [4, 8, 15]
    assert not any(VOCAB.mask in row for row in together.values())


def test_greedy_writing_in_one_step_is_the_argmax_of_one_call():
    model, canvas = dit_model(), torch.full((1, LENGTH), VOCAB.mask)
    (state,) = generate(model, [canvas[0]], RevealPlan(1), [Keys(0)], choice=Choice(temperature=0))
    with torch.no_grad():
        logits = model.backbone.head(model.backbone(canvas, condition=model.backbone.condition(torch.zeros(1)))[0])[0]
    logits[:, VOCAB.mask] = -math.inf
    assert state.canvas.tolist() == logits.argmax(-1).tolist() and state.calls == 1
    torch.testing.assert_close(state.probs, torch.softmax(logits, -1).amax(-1))


def test_masks_do_not_depend_on_the_law_and_times_do_not_depend_on_the_mask():
    """Streams with a purpose of their own: another law looks at the same uniforms."""
    batch, keys = batch_of(64, 12), Keys(5)
    few, many = (dit_model(Fixed(0.5, keep)).nats(batch, keys).nats != 0 for keep in (0.8, 0.3))
    assert (many | ~few).all()  # more masks are a superset
    rates = [int(flags.sum()) / flags.numel() for flags in (few, many)]
    assert rates == pytest.approx([0.2, 0.7], abs=0.05)


def test_mask_ids_in_the_middle_of_the_vocabulary_are_left_out_of_every_law():
    """`x < V - 1` is not the same as `x is not [MASK]`."""
    net = TableNet.random(1)
    model = MaskedDiffusion(net, SCHEDULES["log-linear"], DiscreteTime(1))
    with torch.no_grad():
        log_x = model.log_x(net.table[MASK, MASK, MASK])
    assert (log_x[:, MASK] == -math.inf).all()
    total = 0.0
    for x in itertools.product([0, 2, 3], repeat=LENGTH):
        row = Batch(torch.tensor([x]), torch.tensor([0]), 1)
        total += math.exp(-float(model.nats(row, Keys(0)).nats.detach().sum()))
    assert total == pytest.approx(1, abs=1e-5)


@pytest.mark.parametrize(
    ("schedule", "cutoff", "rate"),
    [
        (Polynomial(), 1e-3, 1e-3),
        (Polynomial(2.0, 1e-2), 0.07, 0.07),
        (Geometric(0.05, 20.0), 1e-3, 1 - math.exp(-0.05)),
        (Geometric(0.2, 20.0), 1e-3, 1 - math.exp(-0.2)),
        (Geometric(0.05, 20.0), 0.3, 0.3),
        (LogUniform(0.02), 1e-3, 0.02),
    ],
    ids=repr,
)
def test_the_protocol_has_the_mask_rate_of_the_last_step_that_is_taken(schedule, cutoff, rate):
    """Of all positions that are masked in the last step, so many are: the share of masks among many draws."""
    law = ContinuousTime(cutoff)
    said = MaskedDiffusion(dit_model(law).backbone, schedule, law).describe()["cutoff_mask_rate"]
    assert said == pytest.approx(rate, rel=1e-5)
    last = law.draw(torch.linspace(0, 1, 4001, dtype=torch.float64), schedule)
    assert float(1 - last.keep[last.finite].mean()) == pytest.approx(said, rel=1e-4)
