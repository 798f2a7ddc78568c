"""SSD-LM: the process on logits, the loss and the writing of blocks, each against a slow loop; a text it learns."""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import pytest
import torch
from scipy import integrate, stats
from torch import Tensor

from oracles.enumeration import SCHEDULES
from support.drawing import check, generate, request_of
from unmask.models.masked import MaskedDiffusion
from unmask.models.ssd_lm import SimplexDiffusion
from unmask.networks.dit import DiT
from unmask.process.keys import Keys
from unmask.process.schedule import strata
from unmask.sampling import Ancestral, Choice, RevealPlan, Rules, Windows
from unmask.sampling.request import NOTHING
from unmask.sampling.simplex import (
    PROJECTIONS,
    Simplex,
    abar,
    almost_one_hot,
    greedy_projection,
    multi_hot_projection,
    noised,
    sampling_projection,
)
from unmask.types import Batch, State, UserError, Vocab

MASK, SIZE, BLOCK, K = 2, 9, 4, 5.0
VOCAB = Vocab(SIZE, MASK, eos=7)


def network(vocab: Vocab = VOCAB, hidden: int = 16, seed: int = 0, **settings) -> DiT:
    torch.manual_seed(seed)
    return DiT(vocab, hidden_dim=hidden, n_blocks=2, n_heads=2, cond_dim=8, dropout=0.0, **settings)


def model_of(seed: int = 0, context: int | None = None, n_labels: int = 0) -> SimplexDiffusion:
    """Weights that make positions differ: a fresh DiT says the same of everything."""
    model = SimplexDiffusion(network(seed=seed, n_labels=n_labels), BLOCK, steps=40, scale=K, context=context).eval()
    with torch.no_grad():
        for name, p in model.named_parameters():
            if "embed" in name:
                p.copy_(2 * torch.randn(p.shape))
            elif name == "backbone.output_layer.linear.weight":
                p.copy_(torch.randn(p.shape) / 2)
            elif "blocks" in name and "adaLN" in name:
                p.add_(0.3 * torch.randn(p.shape))
            elif "attn_out" in name:
                p.mul_(4.0)
    return model


def run(
    model: SimplexDiffusion, canvases: Sequence[Sequence[int]], plan, seeds: Sequence[int] | None = None, **settings
) -> tuple[list[list[int]], list[State]]:
    """The finished canvases, and all states."""
    keys = [Keys(seed) for seed in (range(len(canvases)) if seeds is None else seeds)]
    states = list(generate(model, [torch.tensor(c, dtype=torch.int64) for c in canvases], plan, keys, **settings))
    last = {state.row: state for state in states}
    return [last[row].canvas.tolist() for row in range(len(canvases))], states


def masks(n: int, *given: int) -> list[int]:
    return [*given, *[MASK] * (n - len(given))]


def random_log_x(n: int, size: int = SIZE, seed: int = 0) -> Tensor:
    logits = torch.from_numpy(np.random.default_rng(seed).normal(scale=2.0, size=(n, size)))
    return torch.log_softmax(logits, -1)


# -- the process -----------------------------------------------------------------------------------------------------


def slow_abar(step: float, total: float) -> float:
    def f(s: float) -> float:
        return math.cos((s / total + 1e-4) / (1 + 1e-4) * math.pi / 2) ** 2

    return f(step) / f(0)


def test_abar_is_the_published_one_and_falls_from_one_to_nothing():
    steps = torch.arange(5001, dtype=torch.float64)
    got = abar(steps / 5000)
    assert got.dtype == torch.float64
    assert got[0] == 1
    assert got[-1] < 1e-30
    assert (got.diff() < 0).all()
    assert np.allclose(got, [slow_abar(step, 5000) for step in range(5001)], rtol=0, atol=1e-15)


def test_almost_one_hot_is_k_at_the_token_and_minus_k_elsewhere():
    tokens = torch.tensor([[0, 3], [8, 8]])
    got = almost_one_hot(tokens, SIZE, 3.0)
    assert got.shape == (2, 2, SIZE)
    for place in np.ndindex(2, 2, SIZE):
        assert got[place] == (3.0 if tokens[place[:2]] == place[2] else -3.0)


def test_noise_has_the_moments_and_the_law_of_the_process():
    t = torch.tensor([0.2, 0.7], dtype=torch.float64)
    x = almost_one_hot(torch.tensor([1, 4]).expand(20_000, 2).T, 5, K)  # (2, 20000, 5)
    noise = torch.from_numpy(np.random.default_rng(0).standard_normal(x.shape, dtype=np.float32))
    z = noised(x, t, noise, K).double()
    for row, token in enumerate((1, 4)):
        kept = slow_abar(float(t[row]), 1.0)
        for column in range(5):
            mean = math.sqrt(kept) * (K if column == token else -K)
            law = stats.norm(mean, K * math.sqrt(1 - kept))
            assert stats.kstest(z[row, :, column].numpy(), law.cdf).pvalue > 1e-4
    assert torch.equal(noised(x, torch.zeros(2, dtype=torch.float64), noise, K), x)
    pure = noised(x, torch.ones(2, dtype=torch.float64), noise, K)
    assert torch.allclose(pure, K * noise, atol=1e-6)


def test_the_signal_becomes_readable_as_often_as_the_integral_says():
    """P(argmax of z is the token) = E[Phi(c + e)^(V - 1)]: one normal number is above V - 1 others."""
    t, size, n = 0.6, 6, 40_000
    kept = slow_abar(t, 1.0)
    ahead = 2 * math.sqrt(kept / (1 - kept))  # K and -K are 2K apart, the noise has K
    want, _ = integrate.quad(lambda e: stats.norm.pdf(e) * stats.norm.cdf(e + ahead) ** (size - 1), -9, 9)
    x = almost_one_hot(torch.zeros(1, n, dtype=torch.int64), size, K)
    noise = torch.from_numpy(Keys(3).stream("noise").standard_normal(x.shape, dtype=np.float32))
    hits = int((noised(x, torch.tensor([t]), noise, K).argmax(-1) == 0).sum())
    assert stats.binomtest(hits, n, want).pvalue > 1e-4


# -- projections -----------------------------------------------------------------------------------------------------


def nucleus(probs: np.ndarray, top_p: float) -> set[int]:
    """Tokens from the most likely one on until they hold top_p."""
    chosen: set[int] = set()
    for token in sorted(range(len(probs)), key=lambda y: -probs[y]):
        if sum(probs[y] for y in chosen) >= top_p:
            break
        chosen.add(token)
    return chosen


@pytest.mark.parametrize("name", PROJECTIONS)
@pytest.mark.parametrize("choice", [Choice(top_p=0.8), Choice(0.5, top_p=0.6), Choice(0.0), Choice(top_k=3)], ids=str)
def test_projections_give_only_k_and_minus_k(name, choice):
    log_x = random_log_x(50)
    before = log_x.clone()
    got = PROJECTIONS[name](log_x, torch.rand(50, generator=torch.Generator().manual_seed(0)), choice, K)
    assert got.shape == log_x.shape
    assert got.dtype == torch.float32
    assert set(got.unique().tolist()) == {K, -K}
    assert torch.equal(log_x, before)


def test_multi_hot_is_the_nucleus():
    log_x = random_log_x(200)
    for top_p in (0.05, 0.5, 0.9, 0.999):
        got = multi_hot_projection(log_x, torch.zeros(200), Choice(top_p=top_p), K) > 0
        for row, probs in zip(got, log_x.exp().numpy(), strict=True):
            assert set(torch.nonzero(row).flatten().tolist()) == nucleus(probs, top_p)


def test_sampling_draws_from_the_nucleus_by_its_probabilities():
    n = 20_000
    log_x = random_log_x(1, seed=5)
    got = sampling_projection(
        log_x.expand(n, -1), torch.from_numpy(np.random.default_rng(1).random(n)), Choice(top_p=0.9), K
    )
    assert ((got > 0).sum(-1) == 1).all()
    counts = (got > 0).sum(0).numpy()
    probs = log_x.exp().numpy()[0]
    kept = sorted(nucleus(probs, 0.9))
    assert 2 <= len(kept) < SIZE
    assert counts.sum() == counts[kept].sum()
    assert stats.chisquare(counts[kept], n * probs[kept] / probs[kept].sum()).pvalue > 1e-4


def test_greedy_is_sampling_from_a_nucleus_of_one():
    log_x = random_log_x(200)
    uniform = torch.from_numpy(np.random.default_rng(2).random(200))
    want = greedy_projection(log_x, uniform, Choice(), K)
    assert want.argmax(-1).tolist() == np.argmax(log_x.numpy(), -1).tolist()
    for other in (Choice(top_p=1e-9), Choice(temperature=0.0), Choice(temperature=1e-6)):
        assert torch.equal(sampling_projection(log_x, uniform, other, K), want)
        if other.temperature != 1e-6:
            assert torch.equal(multi_hot_projection(log_x, uniform, other, K), want)


# -- the network and the loss ----------------------------------------------------------------------------------------


def slow_logits(model: SimplexDiffusion, context: Sequence[int], z: np.ndarray, t: float) -> np.ndarray:
    """One block alone: its inputs put together by hand, nothing padded, all columns; in float64 but for the network."""
    weights = {name: p.detach().double().numpy() for name, p in model.named_parameters()}
    embedding = weights["backbone.vocab_embed.embedding"]
    rows = [embedding[token] for token in context]
    for logits in z:
        chance = np.exp(logits - logits.max())
        mixed = weights["embed_sum.weight"] @ (chance / chance.sum())
        rows.append(mixed + weights["timestep.weight"][:, 0] * t + weights["timestep.bias"])
    inputs = torch.tensor(np.array(rows), dtype=torch.float32)[None]
    with torch.no_grad():
        hidden, _ = model.backbone(embeddings=inputs, condition=model.backbone.condition(torch.zeros(1)))
        return model.backbone.head(hidden[0, len(context) :]).double().numpy()


def slow_loss(model: SimplexDiffusion, batch: Batch, keys: Keys) -> tuple[float, int]:
    """A loop over rows, each cut, noised and scored alone."""
    length = batch.tokens.shape[1]
    place = int(keys.stream("context").integers(length - BLOCK + 1))
    times = strata(batch.index, batch.total, keys)
    total, count = 0.0, 0
    for row, tokens in enumerate(batch.tokens.tolist()):
        scored = [True] * length if batch.scored is None else batch.scored[row].tolist()
        end = max((i + 1 for i in range(length) if scored[i]), default=0)
        start = max(0, min(place, end - BLOCK))
        exists = [True] * length if batch.present is None else batch.present[row].tolist()
        here = [i for i in range(start, start + BLOCK) if exists[i]]
        if not here:
            continue
        first = 0 if model.context is None else max(0, start - model.context)
        step = 1 + math.floor(float(times[row]) * model.steps)
        kept = slow_abar(step, model.steps)
        noise = keys.stream("noise", int(batch.index[row])).standard_normal((BLOCK, SIZE), dtype=np.float32)
        z = np.array(
            [
                [
                    math.sqrt(kept) * (K if y == tokens[i] else -K) + math.sqrt(1 - kept) * K * e
                    for y, e in enumerate(own)
                ]
                for i, own in zip(range(start, start + BLOCK), noise.astype(float), strict=True)
                if exists[i]
            ]
        )
        for i, logits in zip(here, slow_logits(model, tokens[first:start], z, step / model.steps), strict=True):
            if scored[i]:
                clean = [value for y, value in enumerate(logits) if y != MASK]
                total += math.log(sum(math.exp(value) for value in clean)) - logits[tokens[i]]
                count += 1
    return total, count


def batch_of(n: int = 6, length: int = 11, seed: int = 0, **more) -> Batch:
    rng = np.random.default_rng(seed)
    clean = [token for token in range(SIZE) if token != MASK]
    tokens = torch.from_numpy(rng.choice(clean, size=(n, length)))
    return Batch(tokens, index=torch.arange(n) + 3, total=20, **more)


def ragged() -> Batch:
    """Rows of 11, 9, 5, 4, 2 and 0 tokens, and a hole in the first that does not count."""
    held = torch.arange(11) < torch.tensor([11, 9, 5, 4, 2, 0])[:, None]
    scored = held.clone()
    scored[0, 8] = False
    return batch_of(scored=scored, present=held)


@pytest.mark.parametrize("context", [None, 1, 3])
@pytest.mark.parametrize("kind", ["full", "ragged", "pads are seen"])
def test_the_loss_is_that_of_a_slow_loop_over_rows(context, kind):
    model = model_of(context=context)
    batch = {"full": batch_of(), "ragged": ragged(), "pads are seen": batch_of(scored=ragged().scored)}[kind]
    places = set()
    for step in range(5):
        keys = Keys(1, step)
        places.add(int(keys.stream("context").integers(11 - BLOCK + 1)))
        with torch.no_grad():
            loss, weight = model(batch, keys)
        want, count = slow_loss(model, batch, keys)
        assert int(weight) == count > 0
        assert float(loss) == pytest.approx(want, rel=2e-5)
    assert len(places) > 2


def test_a_batch_may_be_cut_in_any_way():
    model, batch, keys = model_of(), ragged(), Keys(4, 2)
    whole, weight = model.loss(batch, keys)
    parts = [
        model.loss(Batch(batch.tokens[i], batch.index[i], batch.total, batch.scored[i], batch.present[i]), keys)
        for i in (slice(0, 1), slice(1, 4), slice(4, 6))
    ]
    assert sum(part.item() for part, _ in parts) == pytest.approx(whole.item(), rel=1e-5)
    assert sum(int(own) for _, own in parts) == int(weight)


def test_a_loss_depends_on_the_keys_and_on_nothing_else():
    model, batch = model_of(), batch_of()
    torch.manual_seed(1)
    first = model.loss(batch, Keys(4, 2))[0]
    torch.manual_seed(2)
    assert torch.equal(first, model.loss(batch, Keys(4, 2))[0])
    assert not torch.equal(first, model.loss(batch, Keys(4, 3))[0])


def test_times_are_uniform_on_the_grid_and_contexts_on_all_lengths(monkeypatch):
    model = SimplexDiffusion(network(), BLOCK, steps=5)
    seen: list[Tensor] = []
    sizes = []

    def hidden(context: Tensor, z: Tensor, t: Tensor, *_: Tensor | None) -> Tensor:
        seen.append(t)
        sizes.append(context.shape[1])
        return torch.zeros(len(z), BLOCK, 16)

    monkeypatch.setattr(model, "hidden", hidden)
    for step in range(400):
        model.loss(batch_of(n=2), Keys(0, step))
    steps = (torch.cat(seen) * 5).numpy()
    assert np.allclose(steps, steps.round())
    times = np.bincount(steps.round().astype(int), minlength=6)
    assert times[0] == 0
    assert stats.chisquare(times[1:]).pvalue > 1e-4
    counts = np.bincount(sizes)
    assert len(counts) == 11 - BLOCK + 1  # contexts of 0 to 7 tokens
    assert stats.chisquare(counts).pvalue > 1e-4


def test_every_weight_gets_a_gradient_even_without_a_context():
    model, batch = model_of(), batch_of(length=BLOCK)
    loss, _ = model.loss(batch, Keys(0))
    loss.backward()
    missing = {name for name, p in model.named_parameters() if p.grad is None}
    assert not missing
    assert (model.embed_sum.weight.grad.abs().sum(0) > 0).all()
    assert (model.timestep.weight.grad != 0).all() and (model.timestep.bias.grad != 0).all()
    assert not model.backbone.vocab_embed.embedding.grad.any()
    loss, _ = model.loss(batch_of(), Keys(1))
    loss.backward()
    assert model.backbone.vocab_embed.embedding.grad.any()


def test_networks_that_take_no_queries_and_bf16_give_the_same_loss():
    model, batch, keys = model_of(), ragged(), Keys(2, 1)
    want = model.loss(batch, keys)[0].item()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        assert model.loss(batch, keys)[0].item() == pytest.approx(want, rel=0.02)
    model.backbone.takes -= {"queries"}
    assert model.loss(batch, keys)[0].item() == pytest.approx(want, rel=1e-6)


def test_embed_sum_begins_as_the_embedding_and_is_not_tied_to_it():
    model = SimplexDiffusion(network(), BLOCK)
    embedding = model.backbone.vocab_embed.embedding
    assert torch.equal(model.embed_sum.weight, embedding.T)
    assert model.timestep.weight.shape == (16, 1)
    with torch.no_grad():
        embedding.add_(1.0)
    assert not torch.equal(model.embed_sum.weight, embedding.T)


# -- writing ---------------------------------------------------------------------------------------------------------


def slow_write(model: SimplexDiffusion, canvas: Sequence[int], plan: Simplex, seed: int, choice: Choice) -> list[int]:
    """The published loop for one canvas: nothing is shared with another, nothing is padded."""
    text = [token for token in canvas if token != MASK]
    number = 0
    while len(text) < len(canvas):
        rng = Keys(seed).stream("block", number)
        z = K * rng.standard_normal((BLOCK, SIZE), dtype=np.float32).astype(float)
        seen = text if plan.context is None else text[-plan.context :]
        for step in range(plan.steps, 0, -1):
            logits = slow_logits(model, seen, z, step / plan.steps)
            logits[:, MASK] = -np.inf
            if step == 1:
                break
            uniform = rng.random(BLOCK)
            kept = slow_abar(step - 1, plan.steps)
            noise = rng.standard_normal((BLOCK, SIZE), dtype=np.float32).astype(float)
            x = np.full((BLOCK, SIZE), -K)
            for i in range(BLOCK):
                tempered = logits[i] / choice.temperature
                probs = np.exp(tempered - tempered.max())
                probs /= probs.sum()
                likely = sorted(nucleus(probs, choice.top_p or 1.0))
                if plan.projection == "greedy":
                    x[i, np.argmax(probs)] = K
                elif plan.projection == "multi-hot":
                    x[i, likely] = K
                else:
                    total = np.cumsum(probs[likely]) / probs[likely].sum()
                    x[i, likely[int(np.searchsorted(total, uniform[i], side="right"))]] = K
            z = math.sqrt(kept) * x + math.sqrt(1 - kept) * K * noise
        text += np.argmax(logits, -1).tolist()
        number += 1
    return text[: len(canvas)]


CANVASES = [masks(6), masks(11, 0, 5, 8), masks(BLOCK, 1), masks(9, 3, 3), masks(8)]


@pytest.mark.parametrize(
    ("plan", "choice"),
    [
        (Simplex(5), Choice()),
        (Simplex(7, context=3), Choice(0.8, top_p=0.7)),
        (Simplex(4, "multi-hot"), Choice(top_p=0.6)),
        (Simplex(6, "greedy", 1), Choice()),
        (Simplex(1), Choice()),
    ],
    ids=str,
)
def test_blocks_are_written_as_in_the_slow_loop(plan, choice):
    model = model_of()
    got, _ = run(model, CANVASES, plan, choice=choice, batch_size=3)
    want = [slow_write(model, canvas, plan, seed, choice) for seed, canvas in enumerate(CANVASES)]
    assert got == want
    written = {
        token for text, canvas in zip(want, CANVASES, strict=True) for token in text[len(canvas) - canvas.count(MASK) :]
    }
    assert len(written) > 3  # the network is no constant


def test_a_sample_does_not_depend_on_its_neighbours():
    model = model_of()
    plans = [Simplex(5), Simplex(3, "greedy"), Simplex(8, "multi-hot", 2), Simplex(5, context=4), Simplex(2)]
    choices = [Choice(top_p=0.9), Choice(), Choice(top_p=0.5), Choice(0.0), Choice()]
    together, _ = run(model, CANVASES, plans, choice=choices)
    for row in range(len(CANVASES)):
        alone, _ = run(model, [CANVASES[row]], plans[row], [row], choice=choices[row], batch_size=1)
        assert alone[0] == together[row]
    pairs, _ = run(model, CANVASES, plans, choice=choices, batch_size=2)
    assert pairs == together


def test_seeds_reproduce_and_differ():
    model, plan = model_of(), Simplex(4)
    first, _ = run(model, [masks(12)] * 3, plan, [0, 1, 0])
    torch.manual_seed(5)
    again, _ = run(model, [masks(12)] * 3, plan, [0, 1, 0])
    assert first == again
    assert first[0] == first[2] != first[1]


def test_greedy_writes_what_sampling_from_a_nucleus_of_one_writes():
    model = model_of()
    greedy, _ = run(model, CANVASES, Simplex(6, "greedy"))
    assert run(model, CANVASES, Simplex(6), choice=Choice(top_p=1e-9))[0] == greedy
    assert run(model, CANVASES, Simplex(6), choice=Choice(temperature=0.0))[0] == greedy
    assert run(model, CANVASES, Simplex(6))[0] != greedy


def test_states_tell_what_happened_and_given_tokens_never_change():
    model, plan = model_of(), Simplex(5)
    starts = [torch.tensor(canvas) for canvas in [*CANVASES, [1, 0, 8]]] + [NOTHING]
    before = [canvas.clone() for canvas in starts]
    states = list(generate(model, starts, plan, [Keys(i) for i in range(7)], batch_size=4, tops=3))
    assert all(torch.equal(a, b) for a, b in zip(starts, before, strict=True))
    for row, start in enumerate(before):
        own = [state for state in states if state.row == row]
        given = int((start != MASK).sum())
        blocks = math.ceil((len(start) - given) / BLOCK)
        assert [state.done for state in own] == [False] * (len(own) - 1) + [True]
        assert [state.calls for state in own] == ([5 * (i + 1) for i in range(blocks)] or [0])
        canvas, end = start.clone(), given
        for step, state in enumerate(own):
            assert (state.step, state.t) == (step, 1.0)
            assert state.positions.tolist() == list(range(end, min(end + BLOCK, len(start))))
            canvas[state.positions] = state.tokens
            end = min(end + BLOCK, len(start))
            assert torch.equal(state.canvas, canvas)
            assert state.fixed == end
            assert MASK not in state.tokens.tolist()
            if blocks:
                assert ((state.probs > 0) & (state.probs <= 1)).all()
                assert state.tops[0].shape == (len(state.tokens), 3)
                assert torch.equal(state.tops[0][:, 0], state.tokens)  # the most likely token is what is written
                assert torch.allclose(state.tops[1][:, 0], state.probs)
        assert torch.equal(canvas[:given], start[:given])
        assert MASK not in canvas.tolist()


def test_probabilities_are_those_of_the_last_softmax():
    model = model_of()
    _, (state,) = run(model, [masks(5, 4, 0)], Simplex(1))
    z = K * Keys(0).stream("block", 0).standard_normal((BLOCK, SIZE), dtype=np.float32).astype(float)
    logits = slow_logits(model, [4, 0], z, 1.0)
    for token, prob, row in zip(state.tokens.tolist(), state.probs.tolist(), logits, strict=False):
        total = sum(math.exp(value) for y, value in enumerate(row) if y != MASK)
        assert prob == pytest.approx(math.exp(row[token]) / total, rel=1e-4)


def test_mask_is_never_written_even_where_the_network_wants_nothing_else():
    model = model_of()
    with torch.no_grad():
        model.backbone.output_layer.linear.bias[MASK] += 1000.0
    for plan in (Simplex(3), Simplex(3, "greedy"), Simplex(3, "multi-hot")):
        texts, states = run(model, CANVASES, plan, choice=Choice(top_p=0.9))
        assert all(MASK not in text for text in texts)
        assert all((state.probs > 1e-6).all() for state in states)


def test_rules_hold_in_every_block():
    model, n = model_of(), 10
    free, _ = run(model, [masks(n, 1)], Simplex(4))
    banned = frozenset(free[0][1:5])
    control = Rules(banned=banned - {8}, allowed={6: [8], 9: [5, 8]}, eos_from=n)
    text = run(model, [masks(n, 1)], Simplex(4), controls=[control])[0][0]
    assert text[0] == 1
    assert not (banned - {8}) & set(text[1:])
    assert text[6] == 8 and text[9] in (5, 8)
    assert VOCAB.eos not in text
    places = []

    def constrain(log_p: Tensor, positions: Tensor, canvas: Tensor) -> Tensor:
        places.append((positions.tolist(), canvas.tolist()))
        assert (canvas[positions] == MASK).all()  # positions beyond the canvas are cut off and not asked for
        return log_p.index_fill(-1, torch.tensor([0, 1, 3, 4, 5]), float("-inf"))

    text = run(model, [masks(n, 1)], Simplex(2), controls=[Rules(constrain=constrain)])[0][0]
    assert set(text[1:]) <= {6, 7, 8}
    assert [where for where, _ in places] == [[1, 2, 3, 4]] * 2 + [[5, 6, 7, 8]] * 2 + [[9]] * 2
    assert places[-1][1] == [*text[:9], MASK]


def test_a_sequence_stops_where_it_is_told():
    model = model_of()
    free, _ = run(model, [masks(12), masks(12)], Simplex(3))
    texts, states = run(model, [masks(12), masks(12)], Simplex(3), until=lambda s: s.row == 1 and s.fixed >= 8)
    assert texts == [free[0], [*free[1][:8], *[MASK] * 4]]
    assert [(s.fixed, s.done) for s in states if s.row == 1] == [(4, False), (8, True)]
    assert [(s.fixed, s.done) for s in states if s.row == 0] == [(4, False), (8, False), (12, True)]


def test_the_training_context_is_the_usual_one():
    texts, _ = run(model_of(context=3), CANVASES, Simplex(4))
    assert texts == run(model_of(), CANVASES, Simplex(4, context=3))[0]
    assert texts != run(model_of(), CANVASES, Simplex(4))[0]


def test_labels_reach_the_network():
    model, plan = model_of(n_labels=2), Simplex(4)
    texts, _ = run(model, [masks(12)] * 3, plan, [0, 0, 0], labels=[0, 1, None])
    assert texts[0] != texts[1] != texts[2]
    assert texts[2] == run(model, [masks(12)], plan, [0])[0][0]
    keys, batch = Keys(0), batch_of()
    told = [
        model.loss(Batch(batch.tokens, batch.index, 20, label=torch.full((6,), label)), keys)[0].item()
        for label in (0, 1)
    ]
    assert told[0] != told[1]


# -- a text that is learned ------------------------------------------------------------------------------------------

SONG, LENGTH = [0, 5, 3, 8, 1, 6, 4, 7], 10


def song(start: int, n: int) -> list[int]:
    return [SONG[(start + i) % len(SONG)] for i in range(n)]


@functools.cache
def learned() -> tuple[SimplexDiffusion, list[float]]:
    """A model of the song that never ends, and its loss a token in every step."""
    model = SimplexDiffusion(network(hidden=32), BLOCK, steps=50, scale=K)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-2)
    rng, losses, steps = np.random.default_rng(0), [], 250
    for step in range(steps):
        optimizer.param_groups[0]["lr"] = 1e-2 * min(1.0, 2 * (1 - step / steps))
        tokens = torch.tensor([song(int(start), LENGTH) for start in rng.integers(len(SONG), size=16)])
        loss, weight = model(Batch(tokens, torch.arange(16), 16), Keys(0, step))
        optimizer.zero_grad()
        (loss / weight).backward()
        optimizer.step()
        losses.append(loss.item() / weight.item())
    return model.eval(), losses


def test_the_loss_of_a_text_that_repeats_itself_falls():
    _, losses = learned()
    assert losses[0] == pytest.approx(math.log(SIZE - 1), rel=0.05)  # a fresh network knows nothing
    assert np.median(losses[-50:]) < 0.1  # of most steps: without a context nobody knows where the song begins


@pytest.mark.parametrize(
    ("plan", "length"),
    [
        (Simplex(20, "greedy"), LENGTH),
        (Simplex(20), LENGTH),
        (Simplex(60, "multi-hot"), LENGTH),
        (Simplex(20, context=6), 30),
    ],
    ids=str,
)
def test_what_was_learned_goes_on(plan, length):
    model, _ = learned()
    starts = [(0, 2), (5, 6), (9, 2), (7, 6)]
    canvases = [masks(length, *song(start, given)) for start, given in starts]
    texts, _ = run(model, canvases, plan, choice=Choice(top_p=0.9))
    assert texts == [song(start, length) for start, _ in starts]


# -- refusals --------------------------------------------------------------------------------------------------------


def test_there_is_no_likelihood_and_nothing_to_score_under():
    model = model_of()
    assert not model.likelihood
    assert model.default_sampler == "simplex"
    with pytest.raises(UserError, match="has no likelihood; judge its samples with unmask eval --generative"):
        model.nats(batch_of(), Keys(0))
    with pytest.raises(UserError, match="no noise schedule"):
        model.under(SCHEDULES["cosine"])
    assert model.describe() == {
        "bound": "none: cross-entropy of a noised block",
        "block": BLOCK,
        "steps": 40,
        "scale": K,
        "context": None,
    }


@pytest.mark.parametrize("canvas", [[0, MASK, 1], [MASK, 0, MASK], [MASK, 3]])
def test_gaps_and_suffixes_are_refused(canvas):
    with pytest.raises(UserError, match="cannot fill gaps or write towards a suffix"):
        generate(model_of(), [torch.tensor(canvas)], Simplex(2), [Keys(0)])


@pytest.mark.parametrize("plan", [Ancestral(3), RevealPlan(3), Windows(RevealPlan(3), 4, 2)], ids=str)
def test_other_plans_are_refused(plan):
    with pytest.raises(UserError, match=f"cannot follow {type(plan).__name__}"):
        check(model_of(), torch.tensor(masks(3)), plan)


def test_other_models_cannot_follow_the_plan():
    model = MaskedDiffusion(network(), SCHEDULES["log-linear"])
    for plan in (Simplex(2), Windows(Simplex(2), 4, 2)):
        with pytest.raises(UserError, match="only SSD-LM models"):
            check(model, torch.tensor(masks(3)), plan)
        with pytest.raises(UserError, match="only SSD-LM models"):
            list(generate(model, [torch.tensor(masks(3))], plan, [Keys(0)]))
    with pytest.raises(UserError, match="only SSD-LM models"):
        Simplex(2).trajectory(request_of(torch.tensor(masks(3)), Simplex(2), Keys(0)), model)


def test_settings_that_cannot_be_are_refused():
    for wrong, words in [
        ({"steps": 0}, "steps=0"),
        ({"projection": "warm"}, "sampling, multi-hot, greedy"),
        ({"context": 0}, "context=0"),
    ]:
        with pytest.raises(UserError, match=words):
            Simplex(**wrong)
    for wrong in ({"block": 0}, {"steps": 0}, {"scale": 0.0}, {"scale": math.inf}, {"context": 0}):
        with pytest.raises(UserError, match=rf"simplex\.{next(iter(wrong))}="):
            SimplexDiffusion(network(), **wrong)
    with pytest.raises(UserError, match="time_conditioning=false"):
        SimplexDiffusion(network(time_conditioning=True))
    with pytest.raises(UserError, match=r"set simplex\.block to at most 3"):
        model_of().loss(batch_of(length=3), Keys(0))


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"batch_size": 0}, "batch_size=0"),
        ({"guidance": 2.0, "labels": [0]}, "guidance=2.0"),
        ({"controls": [Rules(banned=frozenset({99}))]}, "token 99"),
        ({"sampler": Simplex(2, "multi-hot")}, "give top_p"),
        ({"sampler": Simplex(2, "multi-hot"), "choice": Choice(top_p=1.0)}, "give top_p"),
    ],
    ids=str,
)
def test_requests_that_cannot_be_met_are_refused(settings, words):
    settings = {"sampler": Simplex(2), **settings}
    with pytest.raises(UserError, match=words):
        generate(model_of(), [torch.tensor(masks(3))], keys=[Keys(0)], **settings)
