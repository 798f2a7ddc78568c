"""The trunk of Llama, Qwen2 and Qwen3 against transformers, under every pattern of attention, cached and not."""

from __future__ import annotations

from functools import cache
from typing import Any

import pytest
import torch
from torch import Tensor

from support.helpers import random_model
from unmask.config import Config, LlamaConfig, parse
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.models import registry
from unmask.networks.kernels.attention import Attention, Blocks, Causal, Full, TwoStreams
from unmask.networks.llama import Llama
from unmask.types import UserError, Vocab

transformers = pytest.importorskip("transformers")
VOCAB, ROWS = Vocab(37, mask=36, pad=0), 40
SIZES = {
    "hidden_size": 24, "num_hidden_layers": 3, "num_attention_heads": 4, "num_key_value_heads": 2,
    "intermediate_size": 40, "vocab_size": ROWS, "max_position_embeddings": 64, "rms_norm_eps": 1e-4,
    "rope_parameters": {"rope_type": "default", "rope_theta": 5000.0},
}  # fmt: skip
OURS = {
    "hidden_dim": 24, "n_blocks": 3, "n_heads": 4, "n_kv_heads": 2, "mlp_dim": 40, "rotary_base": 5000.0,
    "norm_eps": 1e-4, "embedding_rows": ROWS,
}  # fmt: skip
KINDS: dict[str, tuple[str, dict[str, Any], dict[str, Any]]] = {  # class, more of theirs, more of ours
    "llama": ("Llama", {"tie_word_embeddings": False}, {"tied": False}),
    "llama tied": ("Llama", {"tie_word_embeddings": True, "num_key_value_heads": 4}, {"tied": True, "n_kv_heads": 4}),
    "qwen2": ("Qwen2", {"tie_word_embeddings": False}, {"tied": False, "qkv_bias": True}),
    "qwen3": ("Qwen3", {"tie_word_embeddings": True, "head_dim": 10}, {"tied": True, "qk_norm": True, "head_dim": 10}),
}
PATTERNS = [Full(), Causal(), Blocks(3), Blocks(4), TwoStreams(6, 2)]


@cache
def pair(kind: str) -> tuple[Any, Llama]:
    """A network of transformers in which every weight matters, and ours with the same weights."""
    name, theirs, ours = KINDS[kind]
    torch.manual_seed(0)
    other = getattr(transformers, f"{name}ForCausalLM")(
        getattr(transformers, f"{name}Config")(**SIZES | theirs, attn_implementation="eager")
    ).eval()
    with torch.no_grad():
        for weight_name, weight in other.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.3 + ("norm" in weight_name))
    net = Llama(VOCAB, **OURS | ours).eval()
    tensors = {
        key.removeprefix("model.").replace("layers.", "blocks."): tensor for key, tensor in other.state_dict().items()
    }
    if ours["tied"]:
        assert torch.equal(tensors.pop("lm_head.weight"), tensors["embed_tokens.weight"])
    net.load_state_dict(tensors)
    return other, net


def tokens_of(rows: int = 3, length: int = 12) -> Tensor:
    return torch.randint(VOCAB.size, (rows, length), generator=torch.Generator().manual_seed(1))


def mask_of(spec: Attention, length: int, valid: Tensor | None = None) -> Tensor:
    column = torch.arange(length)
    seen = spec.mask(column[None, :, None], column[None, None])
    return seen if valid is None else (seen & valid[:, None]) | torch.eye(length, dtype=torch.bool)


@torch.no_grad()
def theirs(kind: str, tokens: Tensor, seen: Tensor, positions: Tensor | None = None) -> Tensor:
    """Their logits under any mask (1 or B, L, L)."""
    hidden = torch.zeros(seen.shape).masked_fill(~seen, torch.finfo(torch.float32).min)[:, None]
    mask = hidden.expand(len(tokens), -1, -1, -1)
    return pair(kind)[0](tokens, attention_mask=mask, position_ids=positions, use_cache=False).logits[..., : VOCAB.size]


@torch.no_grad()
def ours(net: Llama, tokens: Tensor, **more: Any) -> Tensor:
    return net.head(net(tokens, **more)[0])


def same(got: Tensor, truth: Tensor) -> None:
    assert truth.std() > 0.5
    torch.testing.assert_close(got, truth, rtol=1e-5, atol=1e-5)


def shift(logits: Tensor) -> Tensor:
    return torch.cat((logits[:, :1], logits[:, :-1]), dim=1)


@cache
def shifted(kind: str) -> Llama:
    """Our network with the same weights, each token predicted by the column before it."""
    net = Llama(VOCAB, **OURS | KINDS[kind][2], prediction="shifted").eval()
    net.load_state_dict(pair(kind)[1].state_dict())
    return net


# -- transformers ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("spec", PATTERNS, ids=repr)
@pytest.mark.parametrize("kind", KINDS)
def test_it_is_the_network_of_transformers(kind, spec):
    tokens = tokens_of()
    positions = torch.arange(6).repeat(2)[None] if isinstance(spec, TwoStreams) else None
    more = {"attention": spec, "positions": positions}
    same(ours(pair(kind)[1], tokens, **more), theirs(kind, tokens, mask_of(spec, 12), positions))
    valid = torch.tensor([[True] * 12, [True] * 9 + [False] * 3, [True, False] * 6])
    truth = theirs(kind, tokens, mask_of(spec, 12, valid), positions)
    same(ours(pair(kind)[1], tokens, valid=valid, **more)[valid], truth[valid])


@pytest.mark.parametrize("kind", KINDS)
def test_their_causal_network_needs_no_mask(kind):
    tokens = tokens_of()
    with torch.no_grad():
        truth = pair(kind)[0](tokens).logits[..., : VOCAB.size]
    same(ours(pair(kind)[1], tokens, attention=Causal()), truth)


@pytest.mark.parametrize("spec", [Full(), Causal(), Blocks(4)], ids=repr)
@pytest.mark.parametrize("kind", ["llama", "qwen2"])
def test_shifted_logits_are_their_logits_one_column_later(kind, spec):
    """logits' = cat(logits[0], logits[:-1]), also for some columns only."""
    tokens, net = tokens_of(), shifted(kind)
    truth = shift(theirs(kind, tokens, mask_of(spec, 12)))
    same(ours(net, tokens, attention=spec), truth)
    queries = torch.tensor([[0, 1, 11], [5, 4, 0], [3, 3, 8]])
    same(ours(net, tokens, attention=spec, queries=queries), truth[torch.arange(3)[:, None], queries])


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("kind", KINDS)
def test_in_sixteen_bits_it_is_as_near_to_the_truth_as_theirs(kind, dtype):
    """Both are compared with float32 on the same rounded weights; what ours computes is never less exact by half."""
    tokens, (other, net) = tokens_of(), pair(kind)
    rounded = {name: weight.to(dtype).float() for name, weight in net.state_dict().items()}
    exact = Llama(VOCAB, **OURS | KINDS[kind][2])
    exact.load_state_dict(rounded)
    truth = ours(exact, tokens, attention=Causal())
    half = Llama(VOCAB, **OURS | KINDS[kind][2]).to(dtype)
    half.load_state_dict(rounded)
    got = ours(half, tokens, attention=Causal())
    assert got.dtype == dtype
    with torch.no_grad():
        near = transformers.AutoModelForCausalLM.from_config(other.config, dtype=dtype).eval()
        near.load_state_dict(other.state_dict())
        theirs_error = (near(tokens).logits[..., : VOCAB.size].float() - truth).square().mean().sqrt()
    error = (got.float() - truth).square().mean().sqrt()
    assert error <= 1.5 * theirs_error and 0 < theirs_error < 0.1 * truth.std()


# -- caches ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("spec", "cuts"), [(Causal(), [5, 1, 6]), (Blocks(3), [3, 6, 3]), (Blocks(4), [8, 4])], ids=repr
)
@pytest.mark.parametrize("shift_it", [False, True])
@pytest.mark.parametrize("kind", ["llama", "qwen3"])
def test_with_a_cache_it_is_the_network_of_transformers(kind, spec, cuts, shift_it):
    tokens, net = tokens_of(), shifted(kind) if shift_it else pair(kind)[1]
    cache, parts = net.empty_cache(3), []
    with torch.no_grad():
        for piece in tokens.split(cuts, dim=1):
            hidden, cache = net(piece, attention=spec, cache=cache)
            parts.append(net.head(hidden))
    truth = theirs(kind, tokens, mask_of(spec, 12))
    same(torch.cat(parts, 1), shift(truth) if shift_it else truth)
    assert cache[0][0].shape == (3, 2, 12, net.head_dim)  # of the heads of keys alone


def test_two_streams_say_what_blocks_with_a_cache_say():
    """A shifted prediction of the first token of a block is read at the last clean token before it."""
    net, clean, size = shifted("llama"), tokens_of(2, 12), 3
    noisy = torch.where(torch.arange(12) % 2 == 0, VOCAB.mask, clean)
    both = ours(net, torch.cat((noisy, clean), 1), attention=TwoStreams(12, size), positions=torch.arange(12).repeat(2))
    cache = net.empty_cache(2)
    for begin in range(0, 12, size):
        block = slice(begin, begin + size)
        with torch.no_grad():
            hidden = net(noisy[:, block], attention=Blocks(size), cache=cache)[0]
            cache = net(clean[:, block], attention=Blocks(size), cache=cache)[1]
        same(net.head(hidden), both[:, block])
    same(both[:, 12:], ours(net, clean, attention=Blocks(size)))


# -- the vocabulary, the weights -------------------------------------------------------------------------------------


def test_rows_beyond_the_vocabulary_and_a_mask_without_a_row():
    _, net = pair("llama")
    states = torch.randn(5, 24)
    logits = net.head(states)
    assert logits.shape == (5, 37)
    torch.testing.assert_close(logits, (states @ net.lm_head.weight.T)[:, :37])
    less = Llama(VOCAB, **OURS | {"embedding_rows": 36})
    torch.testing.assert_close(less.head(states)[:, :36], states @ less.embed_tokens.weight.T)
    assert not less.head(states)[:, 36].any()


def test_weights_counted_by_hand():
    """SmolLM2-135M: 49152 · 576 + 30 · (576 · (576 + 2 · 192 + 576 + 3 · 1536) + 2 · 576) + 576 = 134,515,008."""
    sizes = {"hidden_dim": 576, "n_blocks": 30, "n_heads": 9, "n_kv_heads": 3, "mlp_dim": 1536}
    with torch.device("meta"):
        net = Llama(Vocab(49_152, mask=1), **sizes)
    assert sum(p.numel() for p in net.parameters()) == 134_515_008
    assert {"embed_tokens.weight", "norm.weight", "blocks.0.input_layernorm.weight"} <= net.no_decay()
    assert len(net.matrices()) == 30 * 7 and not net.no_decay() & set(net.matrices())


def test_a_fresh_network_is_sure_of_nothing():
    torch.manual_seed(0)
    net = Llama(VOCAB, **OURS | {"qkv_bias": True, "tied": False})
    assert ours(net, tokens_of()).std() < 0.2
    assert not net.blocks[0].self_attn.q_proj.bias.any()


# -- settings --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("wrong", "sentence"),
    [
        ({"n_heads": 5}, "hidden_dim=24 must be a multiple of n_heads=5"),
        ({"head_dim": 7}, "even number of channels"),
        ({"n_kv_heads": 3}, "n_heads=4 must be a multiple of n_kv_heads=3"),
    ],
)
def test_sizes_that_do_not_fit(wrong, sentence):
    with pytest.raises(UserError, match=sentence):
        parse({"model": {"network": "llama", "hidden_dim": 24, "n_heads": 4} | wrong})


@pytest.mark.parametrize("method", ["mdlm", "ar"])
def test_methods_run_on_it(method):
    settings = {"method": method, "network": "llama", "hidden_dim": 16, "n_blocks": 2, "n_heads": 2, "mlp_dim": 24}
    more = {"prediction": "shifted"} if method == "mdlm" else {}
    config, tokenizer = Config(model=LlamaConfig(**settings, **more)), bytes_tokenizer()
    lm = LM(random_model(config, tokenizer.vocab), tokenizer, config)
    assert isinstance(lm.model.backbone, Llama) and lm.model.backbone.causal == (method == "ar")
    assert len(lm.sample(2, length=8, seed=0)) == 2
    assert lm.score("a text").nats > 0


def test_ar_is_shifted_anyway():
    with pytest.raises(UserError, match=r"set model\.prediction=same"):
        registry.network(LlamaConfig(method="ar", prediction="shifted"), VOCAB, causal=True)
