"""int8 matrices: near the float ones, the same for a row whatever stands beside it, and never saved."""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import nn

import unmask
from support.helpers import random_lm, refused, run
from unmask.data.tokenization import bytes_tokenizer
from unmask.networks.kernels.int8 import Int8Linear, quantize
from unmask.types import UserError


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("bias", [True, False])
def test_a_layer_is_near_the_float_one(bias: bool, dtype: torch.dtype) -> None:
    torch.manual_seed(0)
    linear = nn.Linear(64, 48, bias=bias).to(dtype)
    x = torch.randn(3, 5, 64).to(dtype) * torch.logspace(-3, 3, 5)[:, None].to(dtype)
    x[0, 0] = 0
    layer = Int8Linear(linear)
    with torch.no_grad():
        got, truth = layer(x), linear(x)
    assert got.dtype == dtype and got.shape == truth.shape
    error = (got - truth).float().norm(dim=-1) / truth.float().norm(dim=-1).clamp(min=1e-9)
    assert 0 < error.max() < 0.03  # each row has its own scale
    assert (layer.weight - linear.weight).abs().max() <= linear.weight.abs().max() / 127
    assert layer(x[:, :0]).shape == (3, 0, 48)


def test_whole_numbers_are_exact() -> None:
    linear = nn.Linear(40, 3, bias=False)
    with torch.no_grad():
        linear.weight.copy_(torch.randint(-127, 128, (3, 40)))
        linear.weight[:, 0] = 127
    x = torch.randint(-127, 128, (4, 40)).float()
    x[:, 1] = -127
    torch.testing.assert_close(Int8Linear(linear)(x), linear(x).detach(), rtol=1e-6, atol=1e-3)


def test_a_row_does_not_depend_on_the_others() -> None:
    torch.manual_seed(0)
    layer, x = Int8Linear(nn.Linear(32, 16)), torch.randn(20, 32)
    assert torch.equal(torch.cat([layer(row[None]) for row in x]), layer(x))


@pytest.mark.parametrize("network", ["modern", "dit", "llama", "mosaicbert"])
def test_every_network_loads_in_int8(network: str, tmp_path: Path) -> None:
    sizes = ["model.mlp_dim=64"] if network == "llama" else []
    lm = random_lm(bytes_tokenizer(), f"model.backbone={network}", "data.length=16", *sizes, scale=0.3)
    folder = lm.save_pretrained(tmp_path / network)
    other = unmask.load(folder, quantize="int8")
    z, t = torch.randint(250, (4, 16)), torch.ones(4, dtype=torch.float64)
    queries = torch.tensor([[3, 7]]).expand(4, -1)
    with torch.no_grad():
        for some in (None, queries):
            one, two = (each.model.log_x(each.model.hidden(z, t, queries=some)) for each in (lm, other))  # type: ignore[operator]
            one, two = (torch.nan_to_num(each, neginf=0) for each in (one, two))
            assert 0 < (one - two).norm() / one.norm() < 0.05
    assert "int8" in str(other.score("some text", draws=1).protocol["dtype"])
    with pytest.raises(UserError, match="this model is int8, for inference only; to save it, load it again without"):
        other.save_pretrained(tmp_path / "again")
    assert not (tmp_path / "again").exists()


def test_it_is_asked_for_by_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"quantize='int4' is not known; int8 is"):
        unmask.load("tiny-en", quantize="int4")
    assert "quantize='in8' is not known" in refused("sample", "tiny-en", "--quantize", "in8")
    words = ["sample", "tiny-en", "--length", "8", "--steps", "2", "--seed", "1", "--json"]
    said = run(*words, "--quantize", "int8").json()
    assert said["protocol"]["dtype"] == "float32, matrices int8"
    assert run(*words).json()["protocol"]["dtype"] == "float32"


def test_other_devices_are_refused() -> None:
    lm = random_lm(bytes_tokenizer(), "model.backbone=modern", "data.length=16")
    with pytest.raises(UserError, match="int8 is for the CPU"):
        quantize(lm.model.backbone.to("meta"))
