"""Weights that are laid out once: the same products, for as long as the weights do not change."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from support.helpers import random_model, tiny_config
from unmask.networks.kernels import packed_linear as module
from unmask.networks.kernels.packed_linear import PackedLinear, PackedWeights, packed_linear
from unmask.process.keys import Keys
from unmask.sampling import Batcher, BlockByBlock, FirstHitting, Request
from unmask.types import Vocab

pytestmark = pytest.mark.skipif(
    "AVX" not in torch.backends.cpu.get_cpu_capability() or not torch.backends.mkldnn.is_available(),
    reason="there are no copies on this machine",
)
WIDE, DEEP = 700, 640  # more than LEAST


@pytest.fixture
def weights() -> PackedWeights:
    return PackedWeights()


@pytest.fixture
def layer() -> PackedLinear:
    torch.manual_seed(0)
    return PackedLinear(DEEP, WIDE)


def plain(x: Tensor, layer: nn.Linear) -> Tensor:
    return F.linear(x.double(), layer.weight.double(), None if layer.bias is None else layer.bias.double()).float()


def used(weights: PackedWeights, layer: nn.Linear, x: Tensor) -> Tensor:
    with torch.no_grad(), weights.in_use():
        return layer(x)


@pytest.mark.parametrize("rows", [(1,), (2,), (3,), (4,), (5, 1), (2, 17), (2, 3, 11), ()])
def test_products_are_those_of_a_linear_layer(weights, layer, rows, monkeypatch):
    for from_memory in (0, module.FROM_MEMORY):  # where few rows are filled up, and where they are not
        monkeypatch.setattr(module, "FROM_MEMORY", from_memory)
        x = torch.randn(*rows, DEEP)
        got = used(weights, layer, x)
        assert got.shape == (*rows, WIDE)
        torch.testing.assert_close(got, plain(x, layer), rtol=1e-5, atol=1e-5)
    assert weights.held_bytes == 4 * DEEP * WIDE


def test_a_weight_that_has_changed_is_laid_out_anew(weights, layer):
    x = torch.randn(2, DEEP)
    used(weights, layer, x)
    with torch.no_grad():
        layer.weight[3] += 1
    torch.testing.assert_close(used(weights, layer, x), plain(x, layer), rtol=1e-5, atol=1e-5)
    layer.weight.data = torch.randn(WIDE, DEEP)
    torch.testing.assert_close(used(weights, layer, x), plain(x, layer), rtol=1e-5, atol=1e-4)
    assert weights.held_bytes == 4 * DEEP * WIDE


def test_where_there_are_no_copies(weights, layer, monkeypatch):
    x = torch.randn(2, DEEP)
    want = F.linear(x, layer.weight, layer.bias)
    assert torch.equal(layer(x), want) and torch.equal(packed_linear(x, layer.weight, layer.bias), want)
    with weights.in_use():
        assert torch.equal(layer(x), want) and layer(x).requires_grad  # with gradients
        with torch.no_grad():
            assert torch.equal(layer.to(torch.bfloat16)(x.bfloat16()), F.linear(x.bfloat16(), layer.weight, layer.bias))
            layer.float()
            small = PackedLinear(8, 8)
            assert torch.equal(small(x[:, :8]), F.linear(x[:, :8], small.weight, small.bias))
            assert layer(x[:0]).shape == (0, WIDE)
            monkeypatch.setattr(module, "MOST_BYTES", 4 * DEEP * WIDE - 1)  # no room
            layer(x)
    assert weights.held_bytes == 0


def test_copies_live_as_long_as_a_batcher():
    size = ("data.length=12", "block.size=4", "model.hidden_dim=384", "model.n_heads=4")
    model = random_model(tiny_config("model.method=block", *size), Vocab(12, 11)).eval()
    batcher = Batcher(model.denoiser(), 2)
    batcher.add(Request(0, torch.full((12,), 11), BlockByBlock(FirstHitting(), 4), Keys(0)))
    for _ in batcher.run():
        pass
    held = batcher._packed
    assert held.held_bytes > 0 and module._IN_USE.get() is None
    gone = weakref.ref(held)
    del held, batcher
    gc.collect()
    assert gone() is None
