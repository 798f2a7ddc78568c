"""The modern transformer against a slow one, its weights by hand, and every method on it."""

from __future__ import annotations

import math
from typing import Any

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

import unmask
from oracles.modern import modern_logits, time_by_hand
from support.helpers import random_model
from unmask.config import Config
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.models import registry
from unmask.networks.kernels.attention import Attention, Blocks, Causal, Full, TwoStreams
from unmask.networks.kernels.fused import rms_norm, squared_relu
from unmask.networks.kernels.positions import rotary_table, rotate
from unmask.networks.modern import Modern
from unmask.process.keys import Keys
from unmask.recipes import with_overrides
from unmask.types import Batch, Vocab

VOCAB = Vocab(17, mask=5, pad=0)
DIM, HEADS, BLOCKS = 24, 3, 2
SKIPS = ["none", "x0", "both"]


def modern(seed: int = 0, **more: Any) -> Modern:
    """A small network in which every weight matters."""
    torch.manual_seed(seed)
    net = Modern(VOCAB, DIM, BLOCKS, HEADS, **more)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.4)
    return net.eval()


def tokens_of(rows: int = 2, length: int = 8, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB.size, (rows, length), generator=torch.Generator().manual_seed(seed))


@torch.no_grad()
def logits_of(net: Modern, tokens: Tensor, **more: Any) -> Tensor:
    return net.head(net(tokens, **more)[0])


def slow(net: Modern, tokens: Tensor, allowed: Tensor, condition: Tensor | None = None) -> Tensor:
    return modern_logits(net.state_dict(), HEADS, tokens, allowed, condition)


def same(got: Tensor, truth: Tensor) -> None:
    assert truth.std() > 0.5
    torch.testing.assert_close(got.double(), truth.double(), rtol=1e-5, atol=1e-5)


# -- the slow network ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skips", SKIPS)
@pytest.mark.parametrize("causal", [False, True])
def test_it_is_the_slow_network(skips: str, causal: bool) -> None:
    net, tokens = modern(skips=skips, causal=causal), tokens_of()
    everything = torch.ones(1, 8, 8, dtype=torch.bool)
    same(logits_of(net, tokens), slow(net, tokens, everything.tril() if causal else everything))


@pytest.mark.parametrize("spec", [Full(), Causal(), Blocks(3), TwoStreams(4, 2)], ids=repr)
def test_under_any_attention_and_padding(spec: Attention) -> None:
    """The slow network gets the mask of the pattern itself; a column that exists sees only columns that exist."""
    net, tokens = modern(skips="both"), tokens_of()
    column = torch.arange(8)
    mask = spec.mask(column[None, :, None], column[None, None])
    same(logits_of(net, tokens, attention=spec), slow(net, tokens, mask))
    valid = torch.tensor([[True] * 8, [True, True, False, True] * 2])
    truth = slow(net, tokens, (mask & valid[:, None]) | torch.eye(8, dtype=torch.bool))
    same(logits_of(net, tokens, attention=spec, valid=valid)[valid], truth[valid])


def test_time_and_labels_are_added_to_the_embedding() -> None:
    net, tokens = modern(time_conditioning=True, n_labels=2), tokens_of(3)
    state, sigma = net.state_dict(), [0.0, 0.7, 5.0]
    condition = net.condition(torch.tensor(sigma), torch.tensor([1, 0, -1]))
    rows = [time_by_hand(state, s) + state["label_embed.embedding"][i] for s, i in zip(sigma, (1, 0, 2), strict=True)]
    truth = slow(net, tokens, torch.ones(1, 8, 8, dtype=torch.bool), torch.stack(rows))
    same(logits_of(net, tokens, condition=condition), truth)
    without = net.condition(torch.tensor(sigma))
    torch.testing.assert_close(without[2], condition[2])  # no label is the same in both ways of saying so
    with pytest.raises(IndexError):
        net.condition(torch.zeros(1), torch.tensor([2]))


def test_without_time_and_labels_there_is_nothing_to_condition() -> None:
    net = modern()
    assert net.condition(torch.ones(3)) is None
    assert not any("sigma" in name or "label" in name for name in net.state_dict())


# -- weights ---------------------------------------------------------------------------------------------------------


def test_weights_counted_by_hand() -> None:
    """768 wide, 12 blocks, 30522 tokens: 12 · 12 · 768² in the blocks, 2 scalars each, 30522 · 769 for the tokens."""
    vocab, wide = Vocab(30_522, mask=103), 768 * 768
    time, labels = 257 * 768 + 769 * 768, 4 * 768
    counts = {}
    for name, more in {
        "none": {"skips": "none"},
        "x0": {},
        "both": {"skips": "both"},
        "told": {"time_conditioning": True, "n_labels": 3},
    }.items():
        with torch.device("meta"):
            counts[name] = sum(p.numel() for p in Modern(vocab, **more).parameters())  # type: ignore[arg-type]
    plain = 12 * 12 * wide + 30_522 * 769
    assert counts == {"none": plain, "x0": plain + 24, "both": plain + 48, "told": plain + 24 + time + labels}


def test_names_and_what_is_not_decayed() -> None:
    matrices = {f"blocks.{i}.{part}.weight" for i in range(BLOCKS) for part in ("qkv", "out", "fc", "proj")}
    rest = {f"blocks.{i}.{kind}_skip" for i in range(BLOCKS) for kind in ("x0", "value")}
    rest |= {"vocab_embed.embedding", "head_bias"}
    net = modern(skips="both", n_labels=2, time_conditioning=True)
    told = {"label_embed.embedding"} | {f"sigma_map.mlp.{i}.bias" for i in (0, 2)}
    decayed = matrices | {f"sigma_map.mlp.{i}.weight" for i in (0, 2)}
    assert set(net.state_dict()) == decayed | rest | told
    assert net.no_decay() == rest | told
    assert net.matrices() == {name: 3 if "qkv" in name else 1 for name in matrices}


def test_a_fresh_network() -> None:
    """It reads nothing but its own token, is not sure of any other, and the size of the embedding does not matter."""
    torch.manual_seed(0)
    net, tokens = Modern(Vocab(4000, mask=5), 128, 3, 4), torch.full((1, 6), 5)
    hidden = net(tokens)[0].detach()
    own = net.vocab_embed.embedding[5].detach()
    torch.testing.assert_close(hidden[0, 0], own / own.square().mean().sqrt(), rtol=1e-3, atol=1e-3)
    others = torch.arange(4000) != 5
    assert net.head(hidden)[0, 0, others].std().item() == pytest.approx(0.5, rel=0.05)
    with torch.no_grad():
        net.vocab_embed.embedding.mul_(10)
    torch.testing.assert_close(net(tokens)[0], hidden, rtol=1e-3, atol=1e-3)


# -- inputs ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("skips", SKIPS)
def test_rows_that_end_together(skips: str) -> None:
    """Padding before a row, in the cache and in what is new: the row is as it is alone."""
    net, tokens, n = modern(skips=skips, causal=True), tokens_of(3, 9), torch.tensor([9, 6, 2])
    place = torch.arange(9) - (9 - n)[:, None]
    rows = tokens.gather(1, place.clamp(min=0))
    cache, parts = net.empty_cache(3), []
    with torch.no_grad():
        for columns in torch.arange(9).split([5, 3, 1]):
            valid, positions = (place >= 0)[:, : columns[-1] + 1], place[:, columns].clamp(min=0)
            hidden, cache = net(rows[:, columns], valid=valid, positions=positions, cache=cache)
            parts.append(hidden)
    whole = net.head(torch.cat(parts, 1))
    for row, count in enumerate(n.tolist()):
        truth = slow(net, tokens[row : row + 1, :count], torch.ones(1, count, count, dtype=torch.bool).tril())
        same(whole[row : row + 1, -count:], truth)


@pytest.mark.parametrize("skips", SKIPS)
def test_some_columns_after_a_cache(skips: str) -> None:
    net, tokens, queries = modern(skips=skips, causal=True), tokens_of(3, 9), torch.tensor([[3, 0], [1, 1], [2, 3]])
    with torch.no_grad():
        _, cache = net(tokens[:, :5], cache=net.empty_cache(3))
        some = net(tokens[:, 5:], cache=cache, queries=queries)[0]
        whole = net(tokens)[0]
    torch.testing.assert_close(some, whole[torch.arange(3)[:, None], 5 + queries], rtol=1e-5, atol=1e-5)


def test_embeddings_in_place_of_tokens_are_of_any_size() -> None:
    net, tokens = modern(), tokens_of()
    embeddings = net.vocab_embed(tokens)
    for scale in (1.0, 7.0):
        got = net.head(net(embeddings=scale * embeddings)[0])
        torch.testing.assert_close(got, net.head(net(tokens)[0]), rtol=1e-4, atol=1e-4)


def test_dropout_is_in_training_only() -> None:
    net, tokens = modern(dropout=0.5), tokens_of()
    assert torch.equal(logits_of(net, tokens), logits_of(net, tokens))
    net.train()
    assert (logits_of(net, tokens) - logits_of(net, tokens)).abs().max() > 1e-2


def test_autocast_keeps_the_residual_stream_and_the_norms_in_float32() -> None:
    net, tokens = modern(skips="both"), tokens_of()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = net(tokens)[0]
    exact = net(tokens)[0]
    assert hidden.dtype == torch.float32
    assert (hidden - exact).abs().mean() < 0.05 * exact.abs().mean()


# -- derivatives -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shape", [(1, 5, 1, 6), (2, 5, 1, 6)], ids=["same angles", "angles of each row"])
def test_norm_and_rotation(shape: tuple[int, ...]) -> None:
    """Against torch's norm and the rotation of the DiT; the derivative against differences."""
    torch.manual_seed(0)
    x = torch.randn(2, 5, 3, 6, dtype=torch.float64, requires_grad=True)
    cos, sin = (table.view(shape).double() for table in rotary_table(torch.randint(9, shape[:2]), 6))
    normed = F.rms_norm(x, (6,), eps=1e-6)
    torch.testing.assert_close(rms_norm(x), normed)
    torch.testing.assert_close(rms_norm(x, cos, sin), rotate(normed, cos, sin))
    angle = torch.rand(shape, dtype=torch.float64)
    angle[..., 3:] = angle[..., :3]
    assert torch.autograd.gradcheck(lambda x: rms_norm(x, angle.cos(), angle.sin()), x)
    assert torch.autograd.gradcheck(rms_norm, x)


def test_squared_relu() -> None:
    x = torch.linspace(-2, 2, 8, dtype=torch.float64, requires_grad=True)
    torch.testing.assert_close(squared_relu(x), torch.relu(x) ** 2)
    assert torch.autograd.gradcheck(squared_relu, x)


# -- methods ---------------------------------------------------------------------------------------------------------

METHODS = {
    "mdlm": [],
    "mdlm with time": ["model.time_conditioning=true"],
    "no-carry-over": ["model.method=no-carry-over"],
    "d3pm": ["model.method=d3pm", "objective.bound=discrete", "objective.steps=10"],
    "sedd": ["model.method=sedd", "model.time_conditioning=true"],
    "ar": ["model.method=ar", "model.skips=both"],
    "ssd-lm": ["model.method=ssd-lm", "simplex.block=4"],
    "plaid": ["model.method=plaid"],
}


def config_of(method: str, *more: str) -> Config:
    sizes = ["model.hidden_dim=32", "model.n_blocks=2", "model.n_heads=2", "data.tokenizer=bytes", "data.length=16"]
    return with_overrides("tiny", ["model.network=modern", *sizes, *METHODS[method], *more])


@pytest.mark.parametrize("method", METHODS)
def test_every_method_learns_with_it(method: str) -> None:
    """Rows of one repeated token: the loss is finite, falls, and every weight that is trained gets a gradient."""
    torch.manual_seed(0)
    model = registry.model(config_of(method), VOCAB)
    assert isinstance(model.backbone, Modern)
    tokens = torch.tensor([1, 2, 3, 4])[torch.arange(16) % 4][:, None].expand(-1, 8).contiguous()
    batch = Batch(tokens, torch.arange(16), 16)
    optimizer = torch.optim.Adam(model.parameters(), lr=1e-2)
    losses = []
    for step in range(40):
        total, weight = model.loss(batch, Keys(0, step=step))
        losses.append(float((total / weight).detach()))
        optimizer.zero_grad()
        (total / weight).backward()
        if step == 3:
            assert all(p.grad is not None and p.grad.isfinite().all() for p in model.parameters() if p.requires_grad)
        optimizer.step()
    assert all(map(math.isfinite, losses))
    assert sum(losses[-5:]) < 0.7 * sum(losses[:5])


@pytest.mark.parametrize("told", [False, True])
def test_a_network_that_is_told_the_time_can_use_it(told: bool) -> None:
    """The token is 1 at small times and 2 at large ones: nothing else tells them apart."""
    torch.manual_seed(0)
    net = Modern(VOCAB, DIM, BLOCKS, HEADS, time_conditioning=told)
    optimizer = torch.optim.Adam(net.parameters(), lr=1e-2)
    tokens, sigma = torch.full((16, 4), VOCAB.mask), torch.linspace(0, 3, 16)
    target = torch.where(sigma < 1.5, 1, 2)[:, None].expand(-1, 4)
    for _ in range(60):
        logits = net.head(net(tokens, condition=net.condition(sigma))[0])
        loss = F.cross_entropy(logits.flatten(0, 1), target.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.1 if told else loss > math.log(2) - 0.01


@pytest.mark.parametrize("method", ["mdlm", "ar", "sedd", "plaid"])
def test_it_is_saved_and_loaded(method: str, tmp_path) -> None:
    config, tokenizer = config_of(method, "model.skips=both"), bytes_tokenizer()
    lm = LM(random_model(config, tokenizer.vocab), tokenizer, config)
    lm.save_pretrained(tmp_path / "m")
    there = unmask.load(tmp_path / "m")
    weights, loaded = lm.model.state_dict(), there.model.state_dict()
    assert weights.keys() == loaded.keys() and all(torch.equal(weights[name], loaded[name]) for name in weights)
    assert there.config.model == lm.config.model
    assert there.sample(seed=3, length=8) == lm.sample(seed=3, length=8)


def test_plaid_trains_the_embedding_that_its_head_is_tied_to() -> None:
    model = registry.model(config_of("plaid"), VOCAB)
    assert all(parameter.requires_grad for parameter in model.backbone.parameters())
