"""Block diffusion models of a few thousand random weights, over the vocabulary of the oracles."""

from __future__ import annotations

import pytest

from oracles.enumeration import VOCAB
from support.helpers import random_model
from unmask.models.block_diffusion import BlockDiffusion
from unmask.recipes import with_overrides
from unmask.types import Vocab

LLAMA = ["model.network=llama", "model.n_kv_heads=1", "model.mlp_dim=24", "model.qk_norm=true"]
KINDS = {  # the settings of each network
    "dit": ["model.network=dit", "model.cond_dim=8"],
    "modern": ["model.network=modern", "model.skips=both"],
    "llama": LLAMA,
    "shifted llama": [*LLAMA, "model.prediction=shifted"],
}
each_network = pytest.mark.parametrize("network", ["dit", "modern"])
every_network = pytest.mark.parametrize("network", KINDS)
each_stream = pytest.mark.parametrize("clean", ["tokens", "blocks"])


def block_model(
    network: str = "dit",
    clean: str = "tokens",
    *settings: str,
    size: int | str = 2,
    length: int = 4,
    vocab: Vocab = VOCAB,
    n_labels: int = 0,
) -> BlockDiffusion:
    """Two layers, so that what is clean reaches a block directly and by way of other clean tokens."""
    own = [f"block.size={size}", f"block.clean={clean}", f"data.length={length}", "model.n_blocks=2"]
    width = ["model.hidden_dim=16", "model.n_heads=2"]
    kind = KINDS[network]
    config = with_overrides("tiny", ["data.tokenizer=bytes", "model.method=block", *kind, *width, *own, *settings])
    model: BlockDiffusion = random_model(config, vocab, 1.5, n_labels)
    return model
