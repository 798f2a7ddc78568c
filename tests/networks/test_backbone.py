"""The diffusion transformer against transformers' GPT-NeoX with adaLN folded into its weights, and its contracts."""

from __future__ import annotations

import math

import pytest
import torch
from torch import Tensor, nn

from support.neox import neox
from unmask.models.masked import MaskedDiffusion
from unmask.networks.dit import DiT
from unmask.networks.kernels.attention import Causal, Full
from unmask.networks.kernels.positions import rotary_table, rotate
from unmask.process.keys import Keys
from unmask.process.schedule import ContinuousTime, DiscreteTime, Polynomial
from unmask.types import Batch, Vocab

VOCAB = Vocab(17, mask=5, pad=0)
DIM, HEADS, COND = 32, 4, 12


def dit(seed: int = 0, dropout: float = 0.0, **kwargs) -> DiT:
    """A small DiT in which no weight is zero, adaLN and output layer included."""
    torch.manual_seed(seed)
    net = DiT(VOCAB, DIM, n_blocks=2, n_heads=HEADS, cond_dim=COND, dropout=dropout, **kwargs)
    for parameter in net.parameters():
        nn.init.normal_(parameter, std=0.3)
    return net.eval()


def tokens_of(batch: int = 3, length: int = 9, seed: int = 1) -> Tensor:
    return torch.randint(VOCAB.size, (batch, length), generator=torch.Generator().manual_seed(seed))


def logits_of(net: DiT, tokens: Tensor, sigma: Tensor | None = None, **more) -> Tensor:
    sigma = torch.zeros(len(tokens)) if sigma is None else sigma
    with torch.no_grad():
        return net.head(net(tokens, condition=net.condition(sigma), **more)[0])


# -- GPT-NeoX --------------------------------------------------------------------------------------------------------


def condition_by_hand(net: DiT, sigma: float) -> Tensor:
    """A sinusoid of 256 channels, cosines first, periods up to 1e4; Linear, SiLU, Linear, SiLU."""
    angles = [sigma * 10_000.0 ** (-i / 128) for i in range(128)]
    wave = torch.tensor([*map(math.cos, angles), *map(math.sin, angles)])
    first, _, second = net.sigma_map.mlp
    h = first.weight @ wave + first.bias
    h = second.weight @ (h * torch.sigmoid(h)) + second.bias
    return h * torch.sigmoid(h)


def folded_neox(net: DiT, sigma: float):
    """LN weight · (1 + scale), LN bias = shift, gates into the output projections; qkv interleaved by head."""
    oracle = neox(VOCAB.size, DIM, 2, HEADS)
    cond = condition_by_hand(net, sigma)
    state = {"gpt_neox.embed_in.weight": net.vocab_embed.embedding, "lm_head.weight": net.output_layer.linear.weight}
    for i, block in enumerate(net.blocks):
        ada = block.adaLN_modulation
        shift1, scale1, gate1, shift2, scale2, gate2 = (ada.weight @ cond + ada.bias).chunk(6)
        qkv = block.attn_qkv.weight.view(3, HEADS, DIM // HEADS, DIM).permute(1, 0, 2, 3).reshape(3 * DIM, DIM)
        state |= {
            f"gpt_neox.layers.{i}.{name}": value
            for name, value in {
                "input_layernorm.weight": block.norm1.weight * (1 + scale1),
                "input_layernorm.bias": shift1,
                "post_attention_layernorm.weight": block.norm2.weight * (1 + scale2),
                "post_attention_layernorm.bias": shift2,
                "attention.query_key_value.weight": qkv,
                "attention.dense.weight": gate1[:, None] * block.attn_out.weight,
                "mlp.dense_h_to_4h.weight": block.mlp[0].weight,
                "mlp.dense_h_to_4h.bias": block.mlp[0].bias,
                "mlp.dense_4h_to_h.weight": gate2[:, None] * block.mlp[2].weight,
                "mlp.dense_4h_to_h.bias": gate2 * block.mlp[2].bias,
            }.items()
        }
    out = net.output_layer
    shift, scale = (out.adaLN_modulation.weight @ cond + out.adaLN_modulation.bias).chunk(2)
    state |= {
        "gpt_neox.final_layer_norm.weight": out.norm_final.weight * (1 + scale),
        "gpt_neox.final_layer_norm.bias": shift,
    }
    oracle.load_state_dict(state, strict=True)

    def logits(tokens: Tensor, causal: bool) -> Tensor:
        length = tokens.shape[1]
        mask = torch.zeros(len(tokens), 1, length, length)
        if causal:
            mask = mask.masked_fill(torch.ones(length, length).triu(1).bool(), -math.inf)
        with torch.no_grad():
            return oracle(input_ids=tokens, attention_mask=mask).logits + out.linear.bias

    return logits


@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("sigma", [None, 0.0, 1.7])
def test_it_is_gpt_neox_after_folding(sigma, causal):
    """None: the network that is not told the time, whatever sigma it is given."""
    net, tokens = dit(time_conditioning=sigma is not None), tokens_of()
    told = torch.full((3,), 123.0 if sigma is None else sigma)
    got = logits_of(net, tokens, told, attention=Causal() if causal else Full())
    truth = folded_neox(net, sigma or 0.0)(tokens, causal)
    assert truth.std() > 0.5
    torch.testing.assert_close(got, truth, rtol=1e-5, atol=1e-5)


# -- contracts -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(("size", "mask", "count"), [(50_258, 50_257, 169_627_218), (30_522, 103, 139_292_986)])
def test_parameter_counts_are_the_published_ones(size, mask, count):
    with torch.device("meta"):
        net = DiT(Vocab(size, mask))
    assert sum(p.numel() for p in net.parameters()) == count


def test_parameter_names_are_the_published_ones():
    names = set(dit().state_dict())
    assert {
        "vocab_embed.embedding",
        "sigma_map.mlp.0.weight",
        "sigma_map.mlp.2.bias",
        "blocks.1.norm1.weight",
        "blocks.1.attn_qkv.weight",
        "blocks.1.attn_out.weight",
        "blocks.1.norm2.weight",
        "blocks.1.mlp.0.weight",
        "blocks.1.mlp.2.bias",
        "blocks.1.adaLN_modulation.weight",
        "output_layer.norm_final.weight",
        "output_layer.linear.weight",
        "output_layer.linear.bias",
        "output_layer.adaLN_modulation.bias",
    } <= names
    assert not any("attn" in name and name.endswith("bias") for name in names)


def test_padding_may_be_on_the_left_or_be_a_whole_row():
    net, tokens = dit(), tokens_of()
    valid = torch.tensor([[False] * 4 + [True] * 5, [True] * 9, [False] * 9])
    positions = (torch.arange(9) - 4).clamp(min=0).expand(3, -1).clone()
    positions[1] = torch.arange(9)
    got = logits_of(net, tokens, valid=valid, positions=positions)
    torch.testing.assert_close(got[0, 4:], logits_of(net, tokens[:1, 4:])[0], rtol=1e-5, atol=1e-5)
    torch.testing.assert_close(got[1], logits_of(net, tokens[1:2])[0], rtol=1e-5, atol=1e-5)
    assert torch.isfinite(got).all()


@pytest.mark.parametrize("padded", [False, True])
@pytest.mark.parametrize("timed", [False, True])
def test_some_queries_are_those_columns_of_everything(padded, timed):
    """Whatever is left out of the last block must not show in what is kept: order, repeats and shifted positions."""
    net, tokens = dit(time_conditioning=timed), tokens_of(3, 9)
    valid = torch.arange(9) < torch.tensor([9, 6, 4])[:, None] if padded else None
    positions = torch.arange(9) + torch.tensor([0, 5, 2])[:, None]
    queries = torch.tensor([[0, 8, 3], [5, 0, 0], [3, 1, 2]])
    sigma = torch.tensor([0.1, 1.0, 3.0])
    everything = logits_of(net, tokens, sigma, valid=valid, positions=positions)
    some = logits_of(net, tokens, sigma, valid=valid, positions=positions, queries=queries)
    assert some.shape == (3, 3, VOCAB.size)
    torch.testing.assert_close(some, everything[torch.arange(3)[:, None], queries], rtol=1e-5, atol=1e-5)


def test_gradients_are_finite_with_a_row_of_nothing_but_padding():
    net, tokens = dit(), tokens_of()
    valid = torch.tensor([[True] * 9, [True] * 3 + [False] * 6, [False] * 9])
    hidden = net(tokens, condition=net.condition(torch.zeros(3)), valid=valid)[0]
    net.head(hidden[valid]).square().sum().backward()
    assert all(torch.isfinite(p.grad).all() for p in net.parameters())


def test_conditioning_a_row_is_that_row_alone():
    net, tokens, sigma = dit(time_conditioning=True), tokens_of(), torch.tensor([0.0, 0.4, 7.0])
    got = logits_of(net, tokens, sigma)
    for row in range(3):
        alone = logits_of(net, tokens[row : row + 1], sigma[row : row + 1])
        torch.testing.assert_close(got[row], alone[0], rtol=1e-5, atol=1e-5)
    assert (got[0] - logits_of(net, tokens, sigma.flip(0))[0]).abs().max() > 1e-2  # time does matter
    timeless = dit(time_conditioning=False)
    assert torch.equal(logits_of(timeless, tokens, sigma), logits_of(timeless, tokens, sigma.flip(0)))


def test_positions_are_data_and_only_their_differences_count():
    net, tokens = dit(), tokens_of()
    plain = logits_of(net, tokens)
    for positions in (torch.arange(9), torch.arange(9) + 100, torch.arange(9).expand(3, -1) + torch.tensor([[7]])):
        torch.testing.assert_close(logits_of(net, tokens, positions=positions), plain, rtol=1e-3, atol=1e-4)
    per_row = torch.stack([torch.arange(9), torch.arange(9) * 2, torch.arange(9).flip(0)])
    got = logits_of(net, tokens, positions=per_row)
    torch.testing.assert_close(got[0], plain[0], rtol=1e-5, atol=1e-5)
    assert ((got - plain).abs().amax((1, 2))[1:] > 1e-3).all()
    order = torch.randperm(9)  # rows may lie in memory in any order, as long as they carry their number
    shuffled = logits_of(net, tokens[:, order], positions=order)
    torch.testing.assert_close(shuffled, plain[:, order], rtol=1e-5, atol=1e-5)


def test_rotation_turns_the_pairs_i_and_i_plus_half_by_position_times_frequency():
    x = torch.randn(5, 6)
    got = rotate(x, *rotary_table(torch.arange(5) * 3, 6))
    for row in range(5):
        for i in range(3):
            angle = 3 * row * 10_000.0 ** (-2 * i / 6)
            pair = complex(x[row, i], x[row, i + 3]) * complex(math.cos(angle), math.sin(angle))
            assert complex(got[row, i], got[row, i + 3]) == pytest.approx(pair, abs=1e-5)


# -- the start of training -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("timed", [False, True])
def test_at_the_start_every_token_is_equally_likely(timed):
    net = DiT(VOCAB, DIM, 2, HEADS, COND, time_conditioning=timed)
    assert (logits_of(net, tokens_of()) == 0).all()
    batch = Batch(tokens_of(64, 20).clamp(min=6), torch.arange(64), 64)
    for law in (ContinuousTime(), DiscreteTime(10)):
        model = MaskedDiffusion(net, Polynomial(), law)
        total, weight = 0.0, 0
        for step in range(40):
            with torch.no_grad():
                loss, n = model(batch, Keys(0, step))
            total, weight = total + float(loss), weight + int(n)
        assert weight == 40 * 64 * 20
        assert total / weight == pytest.approx(math.log(16), rel=0.02)  # log(V - 1): [MASK] is no option


def test_dropout_is_in_training_only():
    net, tokens = dit(dropout=0.5), tokens_of()
    assert torch.equal(logits_of(net, tokens), logits_of(net, tokens))
    net.train()
    assert (logits_of(net, tokens) - logits_of(net, tokens)).abs().max() > 1e-2


def test_embeddings_in_place_of_tokens():
    net, tokens = dit(), tokens_of()
    cond = net.condition(torch.zeros(3))
    inputs = net.vocab_embed(tokens)
    torch.testing.assert_close(
        net(embeddings=inputs, condition=cond)[0], net(tokens, condition=cond)[0], rtol=0, atol=0
    )


def test_autocast_keeps_the_residual_stream_and_the_norms_in_float32():
    net, tokens = dit(), tokens_of()
    with torch.autocast("cpu", dtype=torch.bfloat16):
        hidden = net(tokens, condition=net.condition(torch.zeros(3)))[0]
    assert hidden.dtype == torch.float32
    exact = net(tokens, condition=net.condition(torch.zeros(3)))[0]
    assert (hidden - exact).abs().mean() < 0.05 * exact.abs().mean()
