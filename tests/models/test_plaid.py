"""Plaid: the noise and the bound, against closed forms, exact posteriors, slow loops and an enumeration."""

from __future__ import annotations

import math
import shutil
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from support.helpers import refused, run, settings, tiny_config
from support.plaid_models import DIM, MASK, SIZE, VOCAB, model_of, pairs, shaken, table_model
from unmask import load
from unmask.models import registry
from unmask.models.plaid import Plaid
from unmask.models.plaid_noise import GammaBounds, NoiseSchedule, posterior_scale, prior_nats, ramp
from unmask.networks.dit import DiT
from unmask.process.keys import Keys
from unmask.types import Batch, UserError, Vocab


def batch_of(rows: int = 6, length: int = 4, seed: int = 0, **more: Any) -> Batch:
    rng = np.random.default_rng(seed)
    tokens = torch.from_numpy(rng.choice([1, 3, 4, 5, 6], (rows, length)))
    return Batch(tokens, torch.arange(rows), rows, **more)


# -- the noise -------------------------------------------------------------------------------------------------------


def test_gamma_grows_and_its_slope_is_the_derivative() -> None:
    torch.manual_seed(1)
    schedule = NoiseSchedule()
    assert sum(p.numel() for p in schedule.parameters()) == 3 * 1024
    t = torch.linspace(0, 1, 301, dtype=torch.float64, requires_grad=True)
    value, slope = schedule(t)
    assert value.dtype == slope.dtype == torch.float64
    assert value[0].item() == 0 and value[-1].item() == pytest.approx(1, abs=1e-15)
    assert (value[1:] > value[:-1]).all()
    (auto,) = torch.autograd.grad(value.sum(), t)
    torch.testing.assert_close(slope, auto, rtol=1e-12, atol=1e-12)
    h = 1e-5
    there, _ = schedule(t + h)
    back, _ = schedule(t - h)
    torch.testing.assert_close(slope, (there - back) / (2 * h), rtol=1e-6, atol=1e-9)


def test_prior_and_posterior_are_those_of_normal_distributions() -> None:
    torch.manual_seed(2)
    x = torch.nn.functional.normalize(torch.randn(6, DIM, dtype=torch.float64), dim=-1)
    z = torch.randn(DIM, dtype=torch.float64)
    for gamma in torch.tensor([-4.0, 0.3, 7.0], dtype=torch.float64):
        alpha, sigma = torch.sigmoid(-gamma).sqrt(), torch.sigmoid(gamma).sqrt()
        q = torch.distributions.Normal(alpha * x, sigma)
        kl = torch.distributions.kl_divergence(q, torch.distributions.Normal(torch.zeros_like(x), 1.0)).sum(-1)
        torch.testing.assert_close(prior_nats(gamma, DIM).expand(6), kl)
        log_q = q.log_prob(z).sum(-1)
        torch.testing.assert_close((posterior_scale(gamma) * (x @ z)).log_softmax(0), log_q.log_softmax(0))


def test_the_ramp() -> None:
    assert [ramp(step, 4) for step in (0, 1, 3, 4, 99)] == [0.25, 0.5, 1, 1, 1]
    assert ramp(0, 0) == 1
    assert GammaBounds(-2.0, 5.0).gamma.tolist() == [-2, 5]


# -- the bound -------------------------------------------------------------------------------------------------------


def repeated(tokens: Sequence[Sequence[int]], n: int) -> Batch:
    """Every text n times."""
    rows = torch.tensor(tokens).repeat_interleave(n, 0)
    return Batch(rows, torch.arange(len(rows)), len(rows))


def text_means(model: Plaid, tokens: Sequence[Sequence[int]], n: int, draws: int = 1) -> tuple[Tensor, Tensor]:
    """Mean nats of each text, and the standard error."""
    batch = repeated(tokens, n)
    with torch.no_grad():
        nats = torch.cat(
            [model.nats(batch, Keys(5, draw)).nats.double().sum(1).view(len(tokens), n) for draw in range(draws)], 1
        )
    return nats.mean(1), nats.std(1) / nats.shape[1] ** 0.5


@pytest.mark.parametrize(("gamma_0", "share", "precision"), [(0.0, 0.5, 0.015), (-3.0, 0.125, 0.045)])
def test_with_the_exact_posterior_the_bound_is_the_entropy(gamma_0: float, share: float, precision: float) -> None:
    model, p = table_model(gamma_0=gamma_0, reconstruct=share)
    tokens = [token for token in range(SIZE) if token != MASK]
    nats, error = text_means(model, [[token] for token in tokens], 3000)
    truth = -p[tokens].log()
    slack = 0.004  # z_1 is not quite noise: at gamma = 6 a quarter of a percent of its variance is signal
    assert ((nats - truth).abs() < 4.5 * error + slack).all(), (nats, truth, error)
    entropy, mean = float((p[tokens] * truth).sum()), float((p[tokens] * nats).sum())
    spread = float((p[tokens] * error).square().sum().sqrt())
    assert spread < precision
    assert abs(mean - entropy) < 4 * spread + slack


def test_with_a_wrong_posterior_it_is_above() -> None:
    model, p = table_model()
    with torch.no_grad():
        model.backbone.log_p.zero_()  # all tokens alike
    tokens = [token for token in range(SIZE) if token != MASK]
    nats, error = text_means(model, [[token] for token in tokens], 2000)
    assert ((nats - math.log(SIZE - 1)).abs() < 4.5 * error + 0.004).all()  # which is exact for that p
    assert float((p[tokens] * nats).sum()) > float(-(p[tokens] * p[tokens].log()).sum()) + 0.1


def test_a_constant_guess_costs_the_difference_of_signal_to_noise(monkeypatch: pytest.MonkeyPatch) -> None:
    model, _ = table_model(reconstruct=1e-9)
    x_hat = torch.linspace(-1, 1, DIM, dtype=torch.float64)

    def constant(self: Plaid, hidden: Tensor, z: Tensor, gamma: Tensor, tokens: Tensor, bias: float) -> tuple:
        return x_hat.expand(len(z), -1), torch.zeros(len(z), dtype=torch.float64)

    monkeypatch.setattr(Plaid, "_read", constant)
    batch = repeated([[4]], 4001)  # one row at t = 0, a stratum of time each for the others
    with torch.no_grad():
        found = float(model.nats(batch, Keys(0)).nats.sum() / 4001)
        low, high = model.gamma_bounds()
        distance = float(((model.embeddings()[4] - x_hat) ** 2).sum())
    snr = math.exp(-low.item()) - math.exp(-high.item())
    assert found == pytest.approx(0.5 * snr * distance + prior_nats(high, DIM).item(), rel=1e-4)


def test_every_row_is_right_by_itself_whoever_shares_the_batch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A row is read at t = 0 now, at another time then: the mean over draws is both terms of that row."""

    def constant(self: Plaid, hidden: Tensor, z: Tensor, gamma: Tensor, tokens: Tensor, bias: float) -> tuple:
        return 0 * z, tokens.double()  # |E[x] - 0|² = 1 and a cost at t = 0 that is the number of the token

    monkeypatch.setattr(Plaid, "_read", constant)
    model, _ = table_model(reconstruct=0.3)
    tokens = torch.tensor([[1], [3], [4], [5], [6]])
    with torch.no_grad():
        low, high = (float(end) for end in model.gamma_bounds())
        rest = 0.5 * (math.exp(-low) - math.exp(-high)) + float(prior_nats(torch.tensor(high).double(), DIM))
        for total in (1, 5):
            batch = Batch(tokens[:total], torch.arange(total), total)
            nats = torch.stack([model.nats(batch, Keys(3, draw)).nats[:, 0] for draw in range(300)])
            error = nats.std(0) / 300**0.5
            assert ((nats.mean(0) - tokens[:total, 0] - rest).abs() < 4.5 * error).all(), total
            read = (nats > 0).sum()  # a look at every row, whatever it is shared with
            assert read == nats.numel()


def test_what_a_network_says_sums_to_at_most_one() -> None:
    """Any network: exp(-bound) over all texts is a part of a distribution."""
    vocab = Vocab(4, 3)
    model = model_of(3, vocab, gamma_0=-2.0, gamma_1=3.0)
    texts = [[a, b] for a in range(3) for b in range(3)]
    nats, error = text_means(model, texts, 700, draws=2)
    mass = (-nats).exp()
    assert float(mass.sum()) < 1 + 4 * float((mass * error).square().sum().sqrt())
    assert float(mass.sum()) > 0.01  # and not by being far above everything


def test_with_the_exact_posterior_of_two_tokens_it_is_their_joint_probability() -> None:
    model = pairs(gamma_0=-4.0)  # p(x | z_0) knows nothing of pairs: z_0 has to say it all
    texts = [[a, b] for a in range(1, 4) for b in range(1, 4)]
    nats, error = text_means(model, texts, 3000)
    truth = torch.tensor([-math.log(float(model.joint[a, b])) for a, b in texts], dtype=torch.float64)
    assert ((nats - truth).abs() < 4.5 * error + 0.01).all(), (nats, truth, error)
    assert float(error.max()) < 0.3 and float((truth - truth.mean()).abs().max()) > 1


# -- against a slow loop ---------------------------------------------------------------------------------------------


def slow(model: Plaid, batch: Batch, keys: Keys, training: bool) -> list[dict[str, Any]]:
    """Every row alone, in the words of the paper: the terms of each, with a graph."""
    total, share = batch.total, max(1, round(model.reconstruct * batch.total))
    place = keys.permute("strata", batch.index, total)
    found = []
    for i, index in enumerate(batch.index.tolist()):
        n = batch.tokens.shape[1] if batch.present is None else int(batch.present[i].sum())
        tokens, weight = batch.tokens[i, :n], batch.weight()[i, :n]
        first = bool(place[i] < share)
        jitter = float(keys.uniform("time", [index])[0])
        t = torch.tensor(0.0 if first else (place[i] - share + jitter) / (total - share), dtype=torch.float64)
        tilde, slope = (out[0] for out in model.noise_schedule(t[None]))
        low, high = model.gamma_bounds.gamma.double()
        gamma = low + (high - low) * tilde
        table = model.embedding_matrix.embedding
        table = table / table.norm(dim=-1, keepdim=True)
        noise = torch.from_numpy(keys.stream("noise", index).standard_normal((n, DIM))).float()
        alpha, sigma = torch.sigmoid(-gamma).sqrt().float(), torch.sigmoid(gamma).sqrt().float()
        z = alpha * table[tokens] + sigma * noise
        bias = min(1.0, (keys.step + 1) / model.bias_warmup) if training else 1.0
        angle = gamma * torch.exp(torch.linspace(-5, 5, 32, dtype=torch.float64))
        told = model.read_noise(torch.cat([angle.sin(), angle.cos()]).float())

        def probabilities(guess: Tensor, z=z, alpha=alpha, sigma=sigma, told=told, bias=bias, table=table, row=i):
            inputs = model.read_z(z / torch.sqrt(alpha**2 / DIM + sigma**2)) + told
            inputs = inputs + model.read_guess(math.sqrt(DIM) * guess)
            label = None if batch.label is None else batch.label[row : row + 1]
            cond = model.backbone.condition(torch.zeros(1), label)
            hidden = model.backbone(embeddings=inputs[None], condition=cond)[0][0]
            logits = model.backbone.head(hidden) + bias * alpha / sigma**2 * (z @ table.T)
            logits = torch.cat([logits[:, :MASK], torch.full_like(logits[:, :1], -1e30), logits[:, MASK + 1 :]], 1)
            return torch.softmax(logits, -1)

        guess = torch.zeros_like(z)
        if not training or float(keys.uniform("guess", [index])[0]) < model.self_condition:
            with torch.no_grad():
                guess = probabilities(guess) @ table
        p = probabilities(guess)
        square = ((table[tokens] - p @ table) ** 2).sum(-1)
        cost = 0.5 * (high - low) * slope * torch.exp(-gamma) * square
        prior = 0.5 * (DIM * (torch.sigmoid(high) - 1 - torch.sigmoid(high).log()) + torch.sigmoid(-high))
        nll = -p[torch.arange(n), tokens].log()
        scale = total / share if first else total / (total - share)
        value = (scale * (nll if first else cost) + prior) * weight
        found.append(
            {
                "nats": value,
                "loss": (cost * weight).sum() / weight.sum(),
                "first": first,
                "plain": value.sum(),
                "mass": scale * weight.sum(),
                "tokens": n,
            }
        )
    return found


def padded(batch: Batch) -> Batch:
    """The same rows with some that are shorter, and tokens that do not count."""
    lengths = torch.tensor([4, 2, 3, 1, 4, 3])[: len(batch), None]
    present = torch.arange(batch.tokens.shape[1]) < lengths
    scored = present & ~((torch.arange(len(batch))[:, None] == 0) & (torch.arange(batch.tokens.shape[1]) == 1))
    return replace(batch, tokens=torch.where(present, batch.tokens, 0), present=present, scored=scored)


@pytest.mark.parametrize("training", [False, True])
@pytest.mark.parametrize("step", [0, 3, 30])
def test_the_bound_is_that_of_a_slow_loop(training: bool, step: int) -> None:
    model, keys = model_of(self_condition=0.5), Keys(9, step)
    for batch in (batch_of(), padded(batch_of()), replace(batch_of(), index=torch.arange(3, 9), total=11)):
        truth = slow(model, batch, keys, training)
        assert any(one["first"] for one in truth) or batch.total == 11
        if training:
            loss, weight = model.loss(batch, keys)
            assert float(weight) == float(batch.weight().sum())
            assert loss.item() == pytest.approx(sum(one["plain"].item() for one in truth), rel=2e-5)
            continue
        found = model.nats(batch, keys)
        assert found.nats.dtype == torch.float32 and torch.equal(found.weight, batch.weight())
        for i, one in enumerate(truth):
            torch.testing.assert_close(found.nats[i, : one["tokens"]], one["nats"].float(), rtol=3e-5, atol=1e-5)
            assert not found.nats[i, one["tokens"] :].any()


def test_labels_are_told() -> None:
    model = model_of(n_labels=2)
    batch = replace(batch_of(), label=torch.tensor([0, 1, -1, 1, 0, 1]))
    found = model.nats(batch, Keys(0)).nats
    for i, one in enumerate(slow(model, batch, Keys(0), False)):
        torch.testing.assert_close(found[i], one["nats"].float(), rtol=3e-5, atol=1e-5)
    assert not torch.allclose(found, model.nats(replace(batch, label=None), Keys(0)).nats)


def test_the_schedule_minimises_the_square_and_all_else_the_loss() -> None:
    model, keys = model_of(self_condition=0.5), Keys(4, 2)
    batch = padded(batch_of())
    loss, _ = model.loss(batch, keys)
    loss.backward()
    rows = slow(model, batch, keys, True)
    plain = sum(one["plain"] for one in rows)
    square = sum(one["mass"] * one["loss"] ** 2 for one in rows if not one["first"])
    checked = 0
    for name, p in model.named_parameters():
        if name == "backbone.vocab_embed.embedding":
            assert p.grad is None and not p.requires_grad
            continue
        target = square if name.startswith("noise_schedule") else plain
        (truth,) = torch.autograd.grad(target, p, retain_graph=True)
        scale = float(truth.abs().max())
        torch.testing.assert_close(p.grad, truth, rtol=1e-3, atol=1e-4 * scale, msg=lambda text, name=name: name + text)
        checked += scale > 0
    assert checked > 12


def gradients(model: Plaid, batches: Sequence[Batch], keys: Keys) -> tuple[float, dict[str, Tensor]]:
    model.zero_grad(set_to_none=True)
    losses = [model.loss(batch, keys)[0] for batch in batches]
    for loss in losses:
        loss.backward()
    return sum(loss.item() for loss in losses), {
        name: p.grad.clone() for name, p in model.named_parameters() if p.grad is not None
    }


def test_the_cut_into_micro_batches_changes_nothing() -> None:
    model, keys, batch = model_of(), Keys(1, 5), padded(batch_of())
    whole, one = gradients(model, [batch], keys)
    parts, two = gradients(model, [batch.rows(torch.tensor([4, 0])), batch.rows(torch.tensor([1, 2, 3, 5]))], keys)
    assert parts == pytest.approx(whole, rel=1e-5)
    assert one.keys() == two.keys()
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-4 * float(one[name].abs().max()))


def test_every_trained_weight_has_a_gradient_whatever_the_rows_are() -> None:
    """As DDP wants it: rows at t = 0 only, rows at other times only, no row with a guess."""
    model, batch = model_of(self_condition=0.01), batch_of()
    places = Keys(1, 5).permute("strata", batch.index, 6)
    for rows in (places < 1, places >= 1):
        _, found = gradients(model, [batch.rows(torch.from_numpy(np.flatnonzero(rows)))], Keys(1, 5))
        assert found.keys() == {name for name, p in model.named_parameters() if p.requires_grad}


def test_padding_says_nothing() -> None:
    model, keys, batch = model_of(), Keys(2), padded(batch_of())
    more = torch.cat([batch.tokens, torch.full((6, 3), 5)], 1)
    no = torch.zeros(6, 3, dtype=torch.bool)
    longer = replace(
        batch,
        tokens=torch.where(torch.cat([batch.present, no], 1), more, 6),
        present=torch.cat([batch.present, no], 1),
        scored=torch.cat([batch.scored, no], 1),
    )
    found, same = model.nats(batch, keys), model.nats(longer, keys)
    torch.testing.assert_close(same.nats[:, :4], found.nats, rtol=1e-5, atol=1e-5)
    assert not same.nats[:, 4:].any()


def test_big_vocabularies_go_in_chunks(monkeypatch: pytest.MonkeyPatch) -> None:
    model, keys, batch = model_of(), Keys(2, 1), padded(batch_of())
    whole, one = gradients(model, [batch], keys)
    monkeypatch.setattr("unmask.process.chunks.LOGITS_AT_ONCE", 3 * SIZE)
    parts, two = gradients(model, [batch], keys)
    assert parts == pytest.approx(whole, rel=1e-6)
    for name in one:
        torch.testing.assert_close(one[name], two[name], rtol=1e-3, atol=1e-5 * float(one[name].abs().max()))


# -- both strands ----------------------------------------------------------------------------------------------------


def caduceus_model(strands: str, **how: Any) -> Plaid:
    from unmask.data.genome.bases import VOCAB as BASES
    from unmask.networks.caduceus import Caduceus

    torch.manual_seed(0)
    model = Plaid(Caduceus(BASES, how.pop("dim", 6), n_blocks=how.pop("n_blocks", 2), strands=strands), **how)
    return shaken(model, 0.2)


@pytest.mark.parametrize(("strands", "equivariant"), [("ps", True), ("ph", False)])
def test_the_other_strand_is_the_same_text(strands: str, equivariant: bool) -> None:
    from unmask.data.genome.bases import COMPLEMENT

    model = caduceus_model(strands).double()
    comp = torch.from_numpy(COMPLEMENT[:12])
    table = model.embeddings()
    assert torch.allclose(table.norm(dim=-1), torch.ones(12, dtype=torch.float64))
    assert torch.equal(table[comp], table.flip(-1)) is equivariant
    assert (table @ table.T - torch.eye(12)).abs().max().item() < 0.95  # and still every token has its own
    z, guess = torch.randn(2, 3, 9, 16, dtype=torch.float64).unbind()
    gamma = torch.tensor([-2.0, 0.5, 4.0], dtype=torch.float64)
    present = torch.arange(9) < torch.tensor([[9], [5], [7]])

    def log_x(z: Tensor, guess: Tensor, present: Tensor) -> Tensor:
        hidden = model.hidden(z, gamma, guess, present)
        levels = gamma[:, None].expand(3, 9)
        return model.log_x(hidden.flatten(0, 1), z.flatten(0, 1), levels.flatten()).view(3, 9, -1)

    with torch.no_grad():
        here = log_x(z, guess, present)
        there = log_x(z.flip(1, 2), guess.flip(1, 2), present.flip(1)).flip(1)[..., comp]
    ordinary = [token for token in range(12) if token != 3]
    off = float((here - there)[present][:, ordinary].abs().max())
    assert (off < 1e-10) is equivariant
    assert off < 1e-10 or off > 1e-3


def test_the_weights_beside_the_backbone_are_counted() -> None:
    """The paper prints 507K for its Plaid; with Plaid's own modules it is less (docs/methods.md)."""
    for strands in ("ps", "ph"):
        model = caduceus_model(strands, dim=118, n_blocks=4)
        assert sum(p.numel() for p in model.backbone.parameters()) == 470_702
        own = 12 * 16 + 3 * 1024 + 2 + 2 * 16 * 118 + 64 * 118 + 118
        assert sum(p.numel() for p in model.parameters()) == 470_702 + own == 485_414


def test_a_caduceus_is_trained() -> None:
    from unmask.data.genome.bases import VOCAB as BASES

    model = caduceus_model("ps", bias_warmup=1)
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    row = torch.tensor([7, 8, 9, 10] * 3)
    batch = Batch(row.repeat(16, 1), torch.arange(16), 16)
    losses = []
    for step in range(40):
        loss, weight = model.train()(batch, Keys(0, step))
        assert weight == 16 * 12
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(float(loss.detach() / weight))
    assert BASES.size == 12
    assert sum(losses[-5:]) / 5 < 0.6 * losses[0]


# -- what it says of itself ------------------------------------------------------------------------------------------


def test_names_and_rates() -> None:
    model = registry.model(tiny_config("model.method=plaid", "plaid.lr_factor=3"), Vocab(9, 4))
    assert list(model.state_dict()) == [name for name, _ in model.named_parameters()]  # an EMA has all of it
    noise = {"noise_schedule.slope", "noise_schedule.shift", "noise_schedule.height", "gamma_bounds.gamma"}
    assert model.rates().keys() == {"embedding_matrix.embedding", *noise} and set(model.rates().values()) == {3.0}
    assert model.default_sampler == "gaussian" and model.likelihood and not model.exact
    assert model.describe()["gamma"] == [-3, 6]


def test_a_short_run_gets_past_the_warm_up() -> None:
    for steps, warmup in ((100, 50), (20_000, 5000)):
        assert registry.model(tiny_config("model.method=plaid", f"train.steps={steps}"), VOCAB).bias_warmup == warmup


REFUSED = {
    "bound": (["objective.bound=discrete", "objective.steps=9"], "does not use objective.bound; leave it out"),
    "time": (["model.time_conditioning=true"], "set model.time_conditioning=false"),
    "fsdp": (["train.strategy=fsdp"], "set train.strategy=ddp"),
    "backbone": (["model.backbone=mosaicbert"], "set model.network=dit or model.network=caduceus"),
    "gamma": (["plaid.gamma_0=7"], "must be below gamma_1"),
    "share": (["plaid.reconstruct=1"], "plaid.reconstruct"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_cannot_be_trained_is_a_sentence(what: str, tmp_path: Path) -> None:
    overrides, words = REFUSED[what]
    assert words in refused(
        "train", "tiny", *settings("model.method=plaid", *overrides), "--out", str(tmp_path / "run"), "--quiet"
    )


def test_what_cannot_be_built_is_a_sentence() -> None:
    net = DiT(VOCAB, hidden_dim=16, n_blocks=1, n_heads=2, cond_dim=8)
    with pytest.raises(UserError, match=r"plaid\.embed_dim=0"):
        Plaid(net, embed_dim=0)
    with pytest.raises(UserError, match=r"plaid\.gamma_0=2"):
        Plaid(net, gamma_0=2, gamma_1=1)
    net.causal = True
    with pytest.raises(UserError, match="looks both ways"):
        Plaid(net)


# -- on the command line ---------------------------------------------------------------------------------------------

SHORT = (
    "model.method=plaid",
    "train.steps=6",
    "train.checkpoint_every=3",
    "train.keep_last=9",
    "eval.every=3",
    "eval.rows=8",
    "train.batch_size=8",
)


def train(out: Path, *more: str) -> None:
    ran = run("train", "tiny", *settings(*SHORT, *more), "--out", str(out), "--quiet")
    assert ran.code == 0, ran.err


def test_a_run_on_text_is_trained_continued_evaluated_and_scored(tmp_path: Path) -> None:
    out = tmp_path / "plaid"
    train(out)
    half = tmp_path / "half"
    shutil.copytree(out, half)
    shutil.rmtree(half / "checkpoints" / "step-00000006")
    train(half)
    one, two = (load(path, weights="raw").model.state_dict() for path in (out, half))
    for name in one:
        assert torch.equal(one[name], two[name]), name
    figures = run("eval", str(out), "--rows", "16", "--draws", "3", "--json").json()
    assert 1 < figures["perplexity"] < 1e9 and figures["stderr_nats"] > 0
    assert figures["protocol"]["bound"] == "continuous" and figures["protocol"]["self_conditioning"] is True
    again = run("eval", str(out), "--rows", "16", "--draws", "3", "--json", "--batch-size", "5").json()
    assert again["nats_per_token"] == pytest.approx(figures["nats_per_token"], rel=1e-5)
    assert len(load(out).score(["one two", "three"]).texts) == 2
    assert "leave out bound, steps and schedule" in refused("eval", str(out), "--steps", "9")
    assert "score whole texts" in refused("score", str(out), "one two", "--span", "0:3")


@pytest.mark.slow
def test_two_processes_give_the_losses_of_one(tmp_path: Path) -> None:
    from support.runs import figures, run

    text = tmp_path / "text.txt"
    text.write_text("\n\n".join(f"{i} bottles of beer on the wall, take {i % 7} down." for i in range(400)))
    one, two = (run(tmp_path / str(n), n, f"data.source={text}", "model.method=plaid") for n in (1, 2))
    for key in ("loss", "valid_nats"):
        torch.testing.assert_close(figures(one, key), figures(two, key), rtol=2e-5, atol=2e-5)
    assert len(figures(one, "loss")) == 4
