"""Block-causal models on a Llama or Qwen trunk: what they say of a block is what transformers' network says of it.

That network reads the clean blocks and the noisy one under a dense block mask, once for each block.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import unmask
from oracles.blocks import Rereader
from support.families import MASK, SHIFTED, reference, write
from unmask.models.block_diffusion import BlockDiffusion
from unmask.sampling import Slot
from unmask.types import UserError

pytest.importorskip("transformers")
NAMED = {"sdar": ("SDAR", 4), "Fast_dLLM_Qwen": ("Fast_dLLM_v2", 32), "a2d-qwen3": ("Qwen3-diffusion-bd3lm", 32)}
each_family = pytest.mark.parametrize("family", NAMED)


def folder_of(path: Path, family: str, **more: Any) -> Path:
    """In it the name, which is all that a BD3LM of dllm differs by."""
    return write(path / NAMED[family][0], family, **more)


@torch.no_grad()
def truth(family: str, tokens: Tensor, size: int) -> Tensor:
    """Logits of transformers' network for the last block of a row, a block that sees itself and those before it."""
    block = torch.arange(len(tokens)) // size
    mask = torch.zeros(len(tokens), len(tokens)).masked_fill(block[:, None] < block, torch.finfo(torch.float32).min)
    logits = reference(family)(tokens[None], attention_mask=mask[None, None], use_cache=False).logits[0, :, :259]
    if family in SHIFTED:
        logits = torch.cat((logits[:1], logits[:-1]))
    return logits[block == block[-1]]


def texts(length: int = 64) -> tuple[Tensor, Tensor]:
    """Two clean rows, and noisy ones."""
    g = torch.Generator().manual_seed(3)
    clean = torch.randint(256, (2, length), generator=g)
    return clean, torch.where(torch.rand(clean.shape, generator=g) < 0.6, MASK, clean)


def near(got: Tensor, expected: Tensor) -> None:
    assert expected.std() > 0.3
    torch.testing.assert_close(got, expected, rtol=1e-5, atol=1e-5)


@each_family
def test_a_folder_is_the_network_of_transformers_block_by_block(family: str, tmp_path: Path) -> None:
    """In two streams, and block after block with a cache."""
    lm, size = unmask.load(folder_of(tmp_path, family)), NAMED[family][1]
    model = lm.model
    assert isinstance(model, BlockDiffusion)
    assert (lm.config.model.method, lm.config.block.size, lm.config.block.clean) == ("block", size, "blocks")
    assert (model.block_size, lm.length, lm.tokenizer.vocab.mask) == (size, 64, MASK)
    clean, noisy = texts()
    denoiser = model.denoiser()
    with torch.no_grad():
        streams = model.backbone.head(model.hidden(noisy, torch.ones(2), clean=clean))
        for at in range(0, 64, size):
            z = torch.cat((clean[:, :at], noisy[:, at : at + size]), 1)
            slots = [Slot(row, max(0, at - size), None, 0, at, size) for row in range(2)]
            asked = torch.arange(at, at + size).expand(2, -1)
            cached = model.backbone.head(denoiser.hidden(z, torch.ones(2), queries=asked, slots=slots))
            for row in range(2):
                expected = truth(family, z[row], size)
                near(streams[row, at : at + size], expected)
                near(cached[row], expected)


@each_family
def test_what_is_written_is_the_same_without_a_cache(family: str, tmp_path: Path, monkeypatch: Any) -> None:
    """After a prompt that ends within a block; the mask is never written, and texts are scored."""
    lm = unmask.load(folder_of(tmp_path, family))
    asked = {"n": 2, "prompt": "Once", "length": 40, "steps": 2, "seed": 0}
    written = lm.sample(**asked)
    assert all(text.startswith("Once") and "<|mask|>" not in text for text in written)
    assert lm.infill("a {{2}} b")[0].startswith("a ")
    assert lm.score("some text").nats > 0
    monkeypatch.setattr(BlockDiffusion, "denoiser", lambda model: Rereader(model))
    assert lm.sample(**asked) == written


def test_it_travels(tmp_path: Path) -> None:
    lm = unmask.load(folder_of(tmp_path, "Fast_dLLM_Qwen"))
    lm.save_pretrained(tmp_path / "ours")
    there = unmask.load(tmp_path / "ours")
    assert there.config == lm.config
    assert there.sample(1, length=40, steps=2, seed=1) == lm.sample(1, length=40, steps=2, seed=1)


@pytest.mark.parametrize(
    ("positions", "size", "length"), [(64, 4, 64), (50, 4, 48), (63, 32, 32), (32768, 4, 1024), (32768, 2048, 2048)]
)
def test_rows_are_whole_blocks(positions: int, size: int, length: int, tmp_path: Path) -> None:
    lm = unmask.load(folder_of(tmp_path, "sdar", max_position_embeddings=positions, block_size=size))
    assert (lm.length, lm.config.block.size) == (length, size)


def test_a_block_size_that_is_not_said_is_that_of_the_family(tmp_path: Path) -> None:
    for n, missing in enumerate((..., None)):
        assert unmask.load(folder_of(tmp_path / str(n), "sdar", block_size=missing)).config.block.size == 4


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"block_size": 0}, "has block_size 0, but a block has at least one token$"),
        ({"block_size": "4"}, "has block_size '4', which is not a number$"),
        ({"block_size": 128}, "has blocks of 128 tokens, but positions for 64 only$"),
        ({"num_experts": 8}, r"describes a mixture of experts \(sdar\)"),
    ],
)
def test_other_blocks_are_one_sentence(change: dict[str, Any], sentence: str, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=sentence):
        unmask.load(folder_of(tmp_path, "sdar", **change))


def test_a_causal_model_that_calls_itself_an_sdar_is_causal(tmp_path: Path) -> None:
    lm = unmask.load(write(tmp_path / "uno-qwen3-8B", "sdar"))
    assert lm.config.model.method == "ar"
    ids = texts(12)[0]
    with torch.no_grad():
        near(lm.model.backbone.head(lm.model.backbone(ids)[0])[..., :258], reference("sdar")(ids).logits[..., :258])
