"""The autoregressive transformer against transformers' GPT-NeoX, its cache against runs without one, its contracts."""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from support.causal_nets import BLOCKS, DIM, HEADS, VOCAB, causal, neox_logits, tokens_of
from unmask.networks.causal import CausalTransformer
from unmask.types import Vocab


def hidden_of(net: CausalTransformer, tokens: Tensor, **how) -> Tensor:
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
        net = CausalTransformer(Vocab(size, mask=mask))
    assert sum(p.numel() for p in net.parameters()) == count


def test_the_published_names():
    parts = ["norm1.weight", "attn_qkv.weight", "attn_out.weight", "norm2.weight"]
    parts += [f"mlp.{i}.{kind}" for i in (0, 2) for kind in ("weight", "bias")]
    names = {f"blocks.{i}.{part}" for i in range(BLOCKS) for part in parts} | {"vocab_embed.embedding"}
    names |= {"output_layer.norm_final.weight", "output_layer.linear.weight", "output_layer.linear.bias"}
    assert set(causal().state_dict()) == names


def test_a_fresh_network_finds_all_tokens_alike():
    net = CausalTransformer(VOCAB, DIM, BLOCKS, HEADS)
    hidden = hidden_of(net, tokens_of())
    assert hidden.std() > 0.5
    assert (net.head(hidden) == 0).all()


# -- what a column sees ----------------------------------------------------------------------------------------------


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
            valid, positions = (place >= 0)[:, : columns[-1] + 1], place[:, columns].clamp(min=0)
            hidden, cache = net(rows[:, columns], valid=valid, positions=positions, cache=cache)
            parts.append(hidden)
    hidden = torch.cat(parts, 1)
    assert hidden.isfinite().all()
    for row, count in enumerate(n.tolist()):
        alone = hidden_of(net, tokens[row : row + 1, :count])
        torch.testing.assert_close(hidden[row : row + 1, -count:], alone, rtol=1e-5, atol=1e-5)


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
