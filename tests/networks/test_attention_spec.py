"""Attention specifications: the fast path of each against softmax by hand over its mask; and toy ones, end to end."""

from __future__ import annotations

import copy
import functools
import itertools
import math
from dataclasses import dataclass

import pytest
import torch
from torch import Tensor, nn

from oracles.enumeration import MASK, SCHEDULES, VOCAB, XS, V, ancestral_law, keep_grid, nelbo_discrete, subs
from oracles.laws import random_order_law
from support.drawing import keys_of, outcomes, p_value
from unmask.models.masked import MaskedDiffusion
from unmask.networks.causal import CausalTransformer
from unmask.networks.dit import DiT
from unmask.networks.kernels import attention
from unmask.networks.kernels.attention import Attention, Blocks, Causal, Full, Streams, TwoStreams
from unmask.networks.modern import Modern
from unmask.networks.mosaicbert import MosaicBert
from unmask.process.keys import Keys
from unmask.process.schedule import DiscreteTime
from unmask.sampling import FirstHitting, RevealPlan
from unmask.types import Batch

DIM, LENGTH = 16, 3


def by_hand(spec: str, i: int, j: int, size: int, length: int, clean: str) -> bool:
    """Whether column i sees column j, in words."""
    if spec == "streams":
        noisy_i, noisy_j, i, j = i < length, j < length, i % length, j % length
        if noisy_i:
            return i // size == j // size if noisy_j else j // size < i // size
        return not noisy_j and (j <= i if clean == "tokens" else j // size <= i // size)
    return {"full": True, "causal": j <= i, "blocks": j // size <= i // size}[spec]


def specification(name: str, size: int, length: int, clean: str) -> Attention:
    if name == "streams":
        return TwoStreams(length, size, clean)
    return {"full": Full(), "causal": Causal(), "blocks": Blocks(size)}[name]


def dense(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Softmax by hand, one query at a time; zeros for a query that sees nothing."""
    out = torch.zeros_like(q)
    for b, i in itertools.product(range(q.shape[0]), range(q.shape[2])):
        seen = torch.nonzero(allowed[b, i]).squeeze(-1)
        for h in range(q.shape[1] if len(seen) else 0):
            weight = torch.exp((k[b, h, seen] @ q[b, h, i]) / math.sqrt(q.shape[-1]))
            out[b, h, i] = (weight / weight.sum()) @ v[b, h, seen]
    return out


@pytest.fixture(params=[4, 128], ids=["groups of 4", "groups of 128"])
def group(request, monkeypatch):
    monkeypatch.setattr(attention, "GROUP", request.param)


GRID = [
    *(("full", 1), ("causal", 1)),
    *((name, size) for name in ("blocks", "streams") for size in (1, 3, 9)),
    *(pytest.param(name, size, marks=pytest.mark.slow) for name in ("blocks", "streams") for size in (2, 7)),
]


@pytest.mark.usefixtures("group")
@pytest.mark.parametrize(("name", "size"), GRID)
@pytest.mark.parametrize("padded", ["none", "left", "right"])
@pytest.mark.parametrize("way", ["all", "last", "one", "queries"])
@pytest.mark.parametrize("clean", ["blocks", "tokens"])
def test_the_fast_path_is_a_softmax_over_the_mask(name, size, padded, way, clean):
    """Over lengths that blocks divide and do not, padding, cached keys (the last columns only) and chosen queries."""
    if clean == "tokens" and name != "streams":
        pytest.skip("of two streams only")
    length = 7
    total = 2 * length if name == "streams" else length
    spec = specification(name, size, length, clean)
    g = torch.Generator().manual_seed(0)
    queries = None
    columns = torch.arange(total).expand(3, -1)
    if way == "queries":
        queries = columns = torch.tensor([[3, 0], [6, 6], [2, total - 1]])
    elif way != "all":
        columns = columns[:, -4:] if way == "last" else columns[:, -1:]
    q = torch.randn(3, 2, columns.shape[1], 4, generator=g, dtype=torch.float64)
    k, v = (torch.randn(3, 2, total, 4, generator=g, dtype=torch.float64) for _ in range(2))
    n = torch.tensor([7, 4, 0])[:, None]  # the last row is nothing but padding
    valid = None
    if padded != "none":
        valid = torch.arange(length) < n if padded == "right" else torch.arange(length) >= length - n
        valid = valid.repeat(1, total // length)
    allowed = torch.zeros(3, columns.shape[1], total, dtype=torch.bool)
    for b, i, j in itertools.product(range(3), range(columns.shape[1]), range(total)):
        real = valid is None or bool(valid[b, j])
        allowed[b, i, j] = real and by_hand(name, int(columns[b, i]), j, size, length, clean)
    got = spec.attend(q, k, v, valid, queries)
    assert got.isfinite().all()
    read = torch.ones_like(columns, dtype=torch.bool) if valid is None else valid.gather(1, columns)
    truth = dense(q, k, v, allowed)
    for b in range(3):
        torch.testing.assert_close(got[b][:, read[b]], truth[b][:, read[b]])
    mask = spec.mask(columns[..., None], torch.arange(total)[None, None])
    assert torch.equal((mask if valid is None else mask & valid[:, None]) & read[..., None], allowed & read[..., None])


def test_no_dense_mask_is_made_where_blocks_are_large(monkeypatch):
    """2 L x 2 L numbers would be 2^22 here; the largest mask of the fast path has none at all."""
    sizes = []
    real = nn.functional.scaled_dot_product_attention

    def watched(q, k, v, attn_mask=None, **more):
        sizes.append(0 if attn_mask is None else attn_mask.numel())
        return real(q, k, v, attn_mask=attn_mask, **more)

    monkeypatch.setattr(attention.F, "scaled_dot_product_attention", watched)
    q, k, v = torch.randn(3, 1, 1, 2048, 4).unbind(0)
    TwoStreams(1024, 256).attend(q, k, v)
    assert max(sizes) == 0 and len(sizes) == 8
    TwoStreams(1024, 16).attend(q, k, v)
    assert max(sizes) <= 128 * 2048


# -- in networks -----------------------------------------------------------------------------------------------------


def randomised(net):
    torch.manual_seed(0)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net.eval()


def dit() -> DiT:
    return randomised(DiT(VOCAB, DIM, n_blocks=2, n_heads=2, cond_dim=8, dropout=0.0))


def modern() -> Modern:
    return randomised(Modern(VOCAB, DIM, n_blocks=2, n_heads=2, skips="both"))


NETWORKS = {
    "dit": dit,
    "causal": lambda: randomised(CausalTransformer(VOCAB, DIM, 2, 2, dropout=0.0)),
    "mosaicbert": lambda: randomised(MosaicBert(VOCAB, DIM, 2, 2, dropout=0.0)),
    "mosaicbert causal": lambda: randomised(MosaicBert(VOCAB, DIM, 2, 2, dropout=0.0, causal=True)),
}
each_network = pytest.mark.parametrize("name", NETWORKS)


def tokens_of(batch: int = 3, length: int = 9) -> Tensor:
    return torch.randint(VOCAB.size, (batch, length), generator=torch.Generator().manual_seed(1))


@torch.no_grad()
def hidden(net, tokens: Tensor, **more) -> Tensor:
    return net(tokens, condition=net.condition(torch.zeros(len(tokens))), **more)[0]


@each_network
def test_blocks_of_one_are_causal_and_one_block_is_full(name):
    net, tokens = NETWORKS[name](), tokens_of()
    for blocks, other in ((Blocks(1), Causal()), (Blocks(9), Full()), (Blocks(50), Full())):
        want = hidden(net, tokens, attention=other)
        torch.testing.assert_close(hidden(net, tokens, attention=blocks), want, rtol=1e-5, atol=1e-5)
    assert not torch.allclose(hidden(net, tokens, attention=Causal()), hidden(net, tokens, attention=Full()), atol=1e-2)


@each_network
def test_a_column_depends_on_what_its_specification_lets_it_see(name):
    """One token is changed: after one layer only columns that see it may change, after more only those reached."""
    net, tokens = NETWORKS[name](), tokens_of(1, 8)
    for spec in (Causal(), Blocks(3), TwoStreams(4, 2), TwoStreams(4, 3, "tokens"), Strided(3)):
        columns = torch.arange(8)
        direct = spec.mask(columns[:, None], columns[None]).long()
        reached = (direct @ direct) > 0  # two layers
        before = hidden(net, tokens, attention=spec)
        for j in range(8):
            other = tokens.clone()
            other[0, j] = (other[0, j] + 1) % VOCAB.size
            changed = (hidden(net, other, attention=spec) - before).abs().amax(-1)[0] > 1e-5
            assert torch.equal(changed, reached[:, j]), (spec, j)


@pytest.mark.parametrize("padded", [False, True])
def test_a_cache_that_ends_at_a_block_changes_nothing(padded):
    net, tokens, spec = dit(), tokens_of(3, 11), Blocks(3)
    condition = net.condition(torch.zeros(3))
    valid = torch.arange(11) < torch.tensor([11, 8, 3])[:, None] if padded else None
    whole = hidden(net, tokens, attention=spec, valid=valid)
    for cuts in ([3, 6, 2], [9, 2], [6, 5]):
        cache, parts, end = net.empty_cache(3), [], 0
        for piece in tokens.split(cuts, dim=1):
            end += piece.shape[1]
            with torch.no_grad():
                part, cache = net(
                    piece,
                    condition=condition,
                    attention=spec,
                    cache=cache,
                    valid=None if valid is None else valid[:, :end],
                )
            parts.append(part)
        got, real = torch.cat(parts, 1), slice(None) if valid is None else valid
        torch.testing.assert_close(got[real], whole[real], rtol=1e-5, atol=1e-5)
    with pytest.raises(ValueError, match=r"DiT network has no cache under Full\(\)"):
        net(tokens, condition=condition, cache=net.empty_cache(3))


@each_network
def test_two_streams_are_the_clean_prefix_and_a_noisy_block(name):
    """What a noisy block says is what it says alone behind the clean blocks before it, under attention by blocks."""
    net, size, length = NETWORKS[name](), 3, 9
    clean, noisy = tokens_of(2, length), tokens_of(2, length).flip(1)
    positions = torch.arange(length).repeat(2).expand(2, -1)
    both = torch.cat((noisy, clean), 1)
    got = hidden(net, both, attention=TwoStreams(length, size), positions=positions)[:, :length]
    for begin in range(0, length, size):
        alone = torch.cat((clean[:, :begin], noisy[:, begin : begin + size]), 1)
        want = hidden(net, alone, attention=Blocks(size))[:, begin:]
        torch.testing.assert_close(got[:, begin : begin + size], want, rtol=1e-4, atol=1e-4)


# -- streams of any layout -------------------------------------------------------------------------------------------


def streams(length: int, size: int, clean: str, order: Tensor | None = None) -> Streams:
    """The columns of two streams, or some of them in any order (B, L)."""
    order = torch.arange(2 * length)[None] if order is None else order
    place, noisy = order % length, order < length
    begin = place // size * size
    after = place + 1 if clean == "tokens" else begin + size
    return Streams(place, torch.where(noisy, begin, after), noisy)


@pytest.mark.parametrize("size", [1, 2, 3, 7])
@pytest.mark.parametrize("clean", ["blocks", "tokens"])
def test_streams_side_by_side_are_two_streams(size, clean):
    length, columns = 7, torch.arange(14)
    want = TwoStreams(length, size, clean)
    assert torch.equal(
        streams(length, size, clean).mask(columns[None, :, None], columns[None, None]),
        want.mask(columns[None, :, None], columns[None, None]),
    )
    q, k, v = torch.randn(3, 2, 2, 14, 4, generator=torch.Generator().manual_seed(0)).unbind(0)
    valid = torch.arange(length).repeat(2) < torch.tensor([[7], [5]])
    orders = torch.stack([torch.randperm(14, generator=torch.Generator().manual_seed(row)) for row in range(2)])
    for exists in (None, valid):
        truth = want.attend(q, k, v, exists)
        order = orders[:, None, :, None].expand(q.shape)  # of each row its own
        parts = (x.gather(2, order) for x in (q, k, v))
        got = streams(length, size, clean, orders).attend(*parts, None if exists is None else exists.gather(1, orders))
        real = torch.ones(2, 14, dtype=torch.bool) if exists is None else exists.gather(1, orders)
        for row in range(2):
            torch.testing.assert_close(
                got[row][:, real[row]], truth.gather(2, order)[row][:, real[row]], rtol=1e-5, atol=1e-5
            )


@pytest.mark.parametrize("network", [dit, modern], ids=["dit", "modern"])
@pytest.mark.parametrize("clean", ["blocks", "tokens"])
def test_clean_columns_may_be_read_before_the_noisy_ones(network, clean):
    """A block of each row, one further on than the other: its clean columns in parts, padded on the left."""
    net, size, length = network(), 3, 9
    tokens = torch.randint(VOCAB.size, (2, 2 * length), generator=torch.Generator().manual_seed(4))
    condition, positions = net.condition(torch.zeros(2)), torch.arange(length).repeat(2)
    with torch.no_grad():
        whole = net(tokens, condition=condition, attention=TwoStreams(length, size, clean), positions=positions)[0]
    # row 0: clean 0 .. 5 and the noisy block 6 .. 8; row 1: three of padding, clean 0 .. 2 and the noisy block 3 .. 5
    order = torch.tensor([[9, 10, 11, 12, 13, 14, 6, 7, 8], [9, 9, 9, 9, 10, 11, 3, 4, 5]])
    valid = torch.tensor([[True] * 9, [False] * 3 + [True] * 6])
    spec, read, cache, at = streams(length, size, clean, order), tokens.gather(1, order), net.empty_cache(2), 0
    for part in (3, 3, 3):
        end = at + part
        seen = Streams(spec.place[:, :end], spec.sees[:, :end], spec.noisy[:, :end])
        with torch.no_grad():
            got, cache = net(
                read[:, at:end],
                condition=condition,
                attention=seen,
                positions=spec.place[:, at:end],
                valid=valid[:, :end],
                cache=cache,
            )
        at = end
    torch.testing.assert_close(got[0], whole[0, 6:9], rtol=1e-4, atol=1e-4)
    torch.testing.assert_close(got[1], whole[1, 3:6], rtol=1e-4, atol=1e-4)


# -- toy specifications: all that is needed is a mask ----------------------------------------------------------------


class Strided(Attention):
    """A column sees itself and every n-th one before it."""

    def __init__(self, stride: int) -> None:
        self.stride = stride

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        return (key <= query) & ((query - key) % self.stride == 0)


@dataclass(frozen=True)
class ToyBlocks(Attention):
    """Block-causal from scratch."""

    size: int

    def mask(self, query: Tensor, key: Tensor) -> Tensor:
        return query.div(self.size, rounding_mode="floor") >= key.div(self.size, rounding_mode="floor")


@pytest.fixture(scope="module", params=[ToyBlocks(2), Strided(2)], ids=["blocks", "strided"])
def model(request) -> MaskedDiffusion:
    """A DiT that looks as a toy says, in masked diffusion: nothing of the package is changed."""
    net = dit()
    net.attention = request.param
    return MaskedDiffusion(net, SCHEDULES["log-linear"], DiscreteTime(3)).eval()


def denoiser(model: MaskedDiffusion):
    """What the network says of a state alone, for the oracles."""

    @functools.cache
    def denoise(z: tuple[int, ...], t: float):
        return subs(model.backbone.head(hidden(model.backbone, torch.tensor([z])))[0].detach().double().numpy())

    return lambda z, t: denoise(tuple(z), 0.0)


def test_a_toy_is_its_dense_mask(model):
    """The states of the first block do not depend on what follows it."""
    for x in XS:
        other = (*x[:2], (x[2] + 1) % V)
        first, second = (hidden(model.backbone, torch.tensor([state]))[0] for state in (x, other))
        assert torch.allclose(first[:2], second[:2], atol=1e-6) and not torch.allclose(first[2], second[2], atol=1e-3)


def test_the_bound_of_a_toy_is_that_of_enumeration(model):
    """And it passes the gate: over all texts, exp(-nats) sums to at most 1."""
    copies, draws = 20, 30
    tokens = torch.tensor(XS * copies)
    batch = Batch(tokens, torch.arange(len(tokens)), len(tokens))
    with torch.no_grad():
        rows = torch.stack([model.nats(batch, Keys(11, draw)).nats.double().sum(1) for draw in range(draws)])
    values = rows.view(draws, copies, len(XS)).mean(1)
    error = values.std(0) / math.sqrt(draws)
    keep, times = keep_grid("log-linear", 3), [i / 3 for i in range(4)]
    truth = torch.tensor([nelbo_discrete(x, denoiser(model), keep, times) for x in XS])
    assert ((values.mean(0) - truth).abs() < 5 * error + 1e-3).all()
    assert torch.exp(-truth).sum() <= 1


@pytest.mark.parametrize("batch_size", [pytest.param(1, marks=pytest.mark.slow), 64])
@pytest.mark.parametrize("sampler", ["plan", "first-hitting"])
def test_a_toy_is_sampled_through_the_batcher(model, sampler, batch_size):
    n, start = 500 if batch_size > 1 else 80, (MASK,) * LENGTH
    plan = RevealPlan(2) if sampler == "plan" else FirstHitting()
    denoise = denoiser(model)
    law = ancestral_law(start, denoise, "log-linear", 2) if sampler == "plan" else random_order_law(start, denoise)
    counts = outcomes(model, [start] * n, plan, keys_of(n), batch_size=batch_size)
    assert p_value(counts, law) > 1e-3


def test_a_toy_is_trained(model):
    model = copy.deepcopy(model).train()
    batch = Batch(torch.tensor([XS[0]] * 16), torch.arange(16), 16)
    optimizer = torch.optim.Adam(model.parameters(), 1e-2)
    losses = []
    for step in range(60):
        total, weight = model(batch, Keys(0, step))
        optimizer.zero_grad()
        (total / weight).backward()
        assert all(p.grad is None or p.grad.isfinite().all() for p in model.parameters())
        optimizer.step()
        losses.append(float(total.detach() / weight))
    assert sum(losses[-20:]) < 0.5 * sum(losses[:20]), losses
