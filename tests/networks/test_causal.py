"""The autoregressive transformer against transformers' GPT-NeoX, its cache against runs without one, its contracts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor

from support.causal_nets import BLOCKS, DIM, HEADS, VOCAB, causal, neox_logits, tokens_of
from unmask.networks.causal import Causal
from unmask.networks.kernels.attention import Attn, attention
from unmask.types import Vocab


def hidden_of(net: Causal, tokens: Tensor, **how) -> Tensor:
    with torch.no_grad():
        return net(tokens, **how)[0]


# -- GPT-NeoX --------------------------------------------------------------------------------------------------------


def test_it_is_gpt_neox():
    net, tokens = causal(), tokens_of(4, 23)
    truth = neox_logits(net, tokens)
    assert truth.std() > 0.5
    torch.testing.assert_close(net.head(hidden_of(net, tokens)), truth, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize(("size", "mask", "count"), [(30_522, 103, 131_912_250), (50_258, 50_257, 162_246_482)])
def test_the_published_sizes(size, mask, count):
    with torch.device("meta"):
        net = Causal(Vocab(size, mask=mask))
    assert sum(p.numel() for p in net.parameters()) == count


def test_the_published_names():
    parts = ["norm1.weight", "attn_qkv.weight", "attn_out.weight", "norm2.weight"]
    parts += [f"mlp.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
    names = {f"blocks.{i}.{part}" for i in range(BLOCKS) for part in parts} | {"vocab_embed.embedding"}
    names |= {"output_layer.norm_final.weight", "output_layer.linear.weight", "output_layer.linear.bias"}
    assert set(causal().state_dict()) == names


def test_a_fresh_network_finds_all_tokens_alike():
    net = Causal(VOCAB, DIM, BLOCKS, HEADS)
    hidden = hidden_of(net, tokens_of())
    assert hidden.std() > 0.5
    assert (net.head(hidden) == 0).all()


# -- what a column sees ----------------------------------------------------------------------------------------------


def test_no_column_sees_what_follows_it():
    net, tokens = causal(), tokens_of(2, 40)
    before = hidden_of(net, tokens)
    for j in range(40):
        other = tokens.clone()
        other[:, j] = (other[:, j] + 1) % VOCAB.size
        after = hidden_of(net, other)
        assert torch.equal(after[:, :j], before[:, :j])
        assert ((after[:, j:] - before[:, j:]).abs().amax(-1) > 1e-4).all()  # and sees what stands before it


@pytest.mark.parametrize("cuts", [[9], [1, 8], [5, 4], [3, 1, 1, 4], [1] * 9])
def test_a_cache_changes_nothing(cuts):
    """Columns in one call or in several, each after those of the cache."""
    net, tokens = causal(), tokens_of()
    cache, parts = net.empty_cache(3), []
    with torch.no_grad():
        for piece in tokens.split(cuts, dim=1):
            hidden, cache = net(piece, cache=cache)
            parts.append(hidden)
    assert [tuple(k.shape) for k, _ in cache] == [(3, HEADS, 9, DIM // HEADS)] * BLOCKS
    torch.testing.assert_close(torch.cat(parts, 1), hidden_of(net, tokens), rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(net.head(torch.cat(parts, 1)), neox_logits(net, tokens), rtol=1e-5, atol=1e-5)


def test_a_cache_is_not_written_into():
    net, tokens = causal(), tokens_of()
    with torch.no_grad():
        _, cache = net(tokens[:, :4], cache=net.empty_cache(3))
        copies = [(k.clone(), v.clone()) for k, v in cache]
        first, second = (net(tokens[:, 4:], cache=cache)[0] for _ in range(2))
    assert torch.equal(first, second)
    assert all(
        torch.equal(a, b) for own, copy in zip(cache, copies, strict=True) for a, b in zip(own, copy, strict=True)
    )


def test_without_a_cache_none_comes_back():
    assert causal()(tokens_of())[1] is None


def test_rows_that_end_together():
    """Padding before a row, in the cache and in what is new: the row is as it is alone."""
    net, tokens, n = causal(), tokens_of(), torch.tensor([9, 6, 2])
    place = torch.arange(9) - (9 - n)[:, None]
    rows = tokens.gather(1, place.clamp(min=0))
    cache, parts = net.empty_cache(3), []
    with torch.no_grad():
        for columns in torch.arange(9).split([5, 3, 1]):
            attn = Attn("causal", (place >= 0)[:, : columns[-1] + 1], place[:, columns].clamp(min=0))
            hidden, cache = net(rows[:, columns], attn=attn, cache=cache)
            parts.append(hidden)
    hidden = torch.cat(parts, 1)
    assert hidden.isfinite().all()
    for row, count in enumerate(n.tolist()):
        alone = hidden_of(net, tokens[row : row + 1, :count])
        torch.testing.assert_close(hidden[row : row + 1, -count:], alone, rtol=1e-5, atol=1e-5)


def test_padding_at_the_end_changes_nothing():
    net, tokens, n = causal(), tokens_of(), torch.tensor([9, 4, 0])
    valid = torch.arange(9) < n[:, None]
    hidden = hidden_of(net, tokens, attn=Attn("causal", valid))
    assert hidden.isfinite().all()
    torch.testing.assert_close(hidden[valid], hidden_of(net, tokens)[valid], rtol=1e-5, atol=1e-5)


def dense(q: Tensor, k: Tensor, v: Tensor, allowed: Tensor) -> Tensor:
    """Softmax by hand, one query at a time."""
    out = torch.zeros_like(q)
    for b in range(q.shape[0]):
        for h in range(q.shape[1]):
            for i in range(q.shape[2]):
                seen = torch.nonzero(allowed[b, i]).squeeze(-1)
                weight = torch.exp((k[b, h, seen] @ q[b, h, i]) / math.sqrt(q.shape[-1]))
                out[b, h, i] = (weight / weight.sum()) @ v[b, h, seen]
    return out


@pytest.mark.parametrize("new", [1, 2, 5, 6])
@pytest.mark.parametrize("padded", [False, True])
def test_attention_of_the_last_columns(new, padded):
    g = torch.Generator().manual_seed(new)
    q, k, v = (torch.randn(3, 2, n, 4, generator=g, dtype=torch.float64) for n in (new, 6, 6))
    valid = torch.arange(6) >= torch.tensor([0, 2, 6])[:, None] if padded else None
    allowed = torch.zeros(3, new, 6, dtype=torch.bool)
    for b in range(3):
        for i in range(new):
            own = 6 - new + i
            for j in range(own + 1):
                allowed[b, i, j] = valid is None or bool(valid[b, j]) or j == own
    torch.testing.assert_close(attention(q, k, v, Attn("causal", valid)), dense(q, k, v, allowed))


# -- the rest --------------------------------------------------------------------------------------------------------


def test_dropout_in_training_only():
    net, tokens = causal(dropout=0.5), tokens_of()
    assert torch.equal(hidden_of(net, tokens), hidden_of(causal(), tokens))
    assert not torch.equal(hidden_of(net.train(), tokens), hidden_of(net, tokens))


def test_half_precision_with_a_cache():
    net, tokens = causal(), tokens_of()
    with torch.no_grad(), torch.autocast("cpu", torch.bfloat16):
        whole = net(tokens)[0]
        _, cache = net(tokens[:, :5], cache=net.empty_cache(3))
        rest, _ = net(tokens[:, 5:], cache=cache)
    assert cache[0][0].dtype == torch.bfloat16 and whole.dtype == torch.float32
    torch.testing.assert_close(rest, whole[:, 5:], rtol=0.05, atol=0.05)


def test_it_is_told_nothing():
    net = causal()
    assert net.condition(torch.tensor([1.0, 2.0])) is None
    with pytest.raises(ValueError, match="Causal backbone takes no 'label'"):
        net.condition(torch.tensor([1.0]), torch.tensor([0]))


@pytest.mark.parametrize("name", ["inputs", "types", "cond"])
def test_it_refuses_what_it_has_no_use_for(name):
    with pytest.raises(ValueError, match=f"takes no '{name}'"):
        causal()(tokens_of(), **{name: torch.zeros(3, 9, DIM)})


def test_it_refuses_to_look_ahead():
    with pytest.raises(ValueError, match="looks to the left only"):
        causal()(tokens_of(), attn=Attn("full"))
    with pytest.raises(ValueError, match="takes no 'queries'"):
        causal()(tokens_of(), attn=Attn("causal", queries=torch.zeros(3, 1, dtype=torch.int64)))
