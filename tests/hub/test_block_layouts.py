"""Published block diffusion models: files of the published names in small, and the network that comes out of them.

It is compared with a slow forward pass that has one dense mask over both streams (`oracles/block_diffusion.py`).
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import unmask
from oracles.block_diffusion import block_logits
from support.published import (
    HEADS,
    LENGTH,
    PUBLISHED,
    equal,
    gpt2_like,
    published_folder,
    published_tensors,
    tokens_of,
)
from unmask.data.tokenization import bytes_tokenizer
from unmask.hub import layout
from unmask.types import UserError

MASK = 258
BD3LM = PUBLISHED | {
    "_name_or_path": "kuleshov-group/bd3lm-owt-block_size4", "adaln": True, "architectures": ["BD3LM"],
    "attn_backend": "flex", "block_size": 4, "causal": False, "cross_attn": True, "model_type": "bd3lm",
    "auto_map": {"AutoConfig": "configuration.BD3LMConfig", "AutoModelForMaskedLM": "modeling_bd3lm.BD3LM"},
    "sampling_eps_max": 0.95, "sampling_eps_min": 0.45, "var_min": True,
}  # fmt: skip
TWO = {"sampling_eps_min": torch.tensor(0.45), "sampling_eps_max": torch.tensor(0.95)}


def bd3lm_folder(path: Path, **config: Any) -> tuple[Path, dict[str, Tensor]]:
    tensors = published_tensors(blocks=2) | TWO
    return published_folder(path, tensors, **(BD3LM | {"n_blocks": 2} | config)), tensors


def noised(clean: Tensor, mask: int) -> Tensor:
    hidden = torch.rand(clean.shape, generator=torch.Generator().manual_seed(5)) < 0.6
    return torch.where(hidden, mask, clean)


def two_streams(model: Any, noisy: Tensor, clean: Tensor) -> Tensor:
    with torch.no_grad():
        return model.backbone.head(model.hidden(noisy, torch.ones(len(noisy)), clean=clean))


@pytest.mark.parametrize("size", [4, 8, LENGTH])
def test_bd3lm_is_one_dense_mask_over_both_streams(size: int, tmp_path: Path) -> None:
    folder, tensors = bd3lm_folder(tmp_path / "m", block_size=size)
    lm = unmask.load(folder, tokenizer=bytes_tokenizer())
    clean = tokens_of(MASK)
    noisy = noised(clean, MASK)
    truth = block_logits({k: v for k, v in tensors.items() if k not in TWO}, noisy, clean, size, HEADS)
    assert truth.std() > 0.2
    torch.testing.assert_close(two_streams(lm.model, noisy, clean).double(), truth, rtol=1e-5, atol=1e-5)
    assert not (folder / "RAN").exists()


def test_what_its_config_means(tmp_path: Path) -> None:
    config = unmask.load(bd3lm_folder(tmp_path / "m")[0], tokenizer=bytes_tokenizer()).config
    assert (config.model.method, config.model.network) == ("block", "dit")
    assert (config.block.size, config.block.mixture, config.block.clean) == (4, None, "blocks")
    assert config.data.eos_between and not config.data.block_ends and config.data.length == LENGTH
    whole = layout.from_json(BD3LM | {"block_size": LENGTH, "var_min": False, "cross_attn": False}).config.block
    assert whole.size == "full"
    assert layout.from_json(BD3LM | {"vocab_size": 50258}).vocab == layout.GPT2


def test_it_travels(tmp_path: Path) -> None:
    folder, tensors = bd3lm_folder(tmp_path / "m")
    lm = unmask.load(folder, tokenizer=bytes_tokenizer())
    lm.save_pretrained(tmp_path / "ours")
    there = unmask.load(tmp_path / "ours")
    wanted = {name: tensor for name, tensor in tensors.items() if name not in TWO and "inv_freq" not in name}
    assert there.config == lm.config and equal(dict(there.model.state_dict()), wanted)
    assert there.sample(1, length=8, seed=1) == lm.sample(1, length=8, seed=1)


WRONG = {
    "causal": ({"causal": True}, "has causal true, but unmask reads such networks only with false"),
    "one stream": ({"cross_attn": False}, "has cross_attn false, but unmask reads such networks only with true"),
    "the time": ({"time_conditioning": True}, "has time_conditioning true, but unmask reads such networks only with"),
    "no adaLN": ({"adaln": False}, "has adaln false, but unmask reads such networks only with true"),
    "no block size": ({"block_size": None}, "does not have block_size"),
    "a field we lack": ({"window": 4}, "has window 4, which unmask does not know and which may change what the"),
    "blocks of 5": ({"block_size": 5}, "blocks of 5 tokens do not divide rows of data.length=24"),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_bd3lm_is_one_sentence(what: str, tmp_path: Path) -> None:
    change, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence) as caught:
        unmask.load(bd3lm_folder(tmp_path / "m", **change)[0], tokenizer=bytes_tokenizer())
    assert "\n" not in str(caught.value)


def test_its_two_numbers_are_numbers(tmp_path: Path) -> None:
    tensors = published_tensors(blocks=2) | {"sampling_eps_min": torch.ones(3)}
    folder = published_folder(tmp_path / "m", tensors, **(BD3LM | {"n_blocks": 2}))
    with pytest.raises(UserError, match=r"unknown 1 tensor\(s\): sampling_eps_min"):
        unmask.load(folder, tokenizer=bytes_tokenizer())


# -- BlockGen --------------------------------------------------------------------------------------------------------

BLOCKGEN = {
    "name": "small", "type": "block-dit", "hidden_size": 16, "cond_dim": 8, "length": LENGTH, "n_blocks": 1,
    "n_heads": 2, "dropout": 0.1, "attn_backend": "sdpa", "x0_causal": True,
}  # fmt: skip
MULTI = "blockgen/multi_block_size/8/owt/0.05_0.95/absorb"
SINGLE = "blockgen/single_block_size/8/owt/absorb"


def blockgen_folder(path: Path, **config: Any) -> tuple[Path, dict[str, Tensor]]:
    path.mkdir(parents=True)
    (path / "config.json").write_text(json.dumps(BLOCKGEN | config))
    tensors = published_tensors(vocab=50258, dim=16, cond=8, blocks=1, heads=2, prefix="")
    save_file(tensors, path / "model.safetensors")
    return path, tensors


@pytest.mark.parametrize(("place", "by_tokens"), [(MULTI, True), (SINGLE, False)])
def test_blockgen_is_one_dense_mask_over_both_streams(place: str, by_tokens: bool, tmp_path: Path) -> None:
    folder, tensors = blockgen_folder(tmp_path / place, x0_causal=by_tokens)
    lm = unmask.load(folder, tokenizer=gpt2_like(tmp_path / "gpt2"))
    clean = tokens_of(50256)
    noisy = noised(clean, 50257)
    truth = block_logits(tensors, noisy, clean, 8, 2, by_tokens)
    torch.testing.assert_close(two_streams(lm.model, noisy, clean).double(), truth, rtol=1e-5, atol=1e-5)
    assert lm.config.block.clean == ("tokens" if by_tokens else "blocks")
    assert lm.config.block.mixture == ({1: 0.05, 8: 0.95} if by_tokens else None)
    assert lm.config.objective.loss == "cross-entropy" and lm.config.data.block_ends


def test_blockgen_by_its_name_on_the_hub(there: Any, tmp_path: Path) -> None:
    repository = there.repositories / "jdeschena" / "blockgen"
    for place in (MULTI, MULTI.replace("absorb", "uniform")):
        blockgen_folder(repository / place)
    tokens = gpt2_like(tmp_path / "gpt2")
    lm = unmask.load(f"jdeschena/blockgen/{MULTI}", tokenizer=tokens, revision="v1")
    assert lm.config.block.size == 8
    got = sorted(p.relative_to(there.cache).as_posix() for p in there.cache.rglob("*") if p.is_file())
    assert got == [f"jdeschena/blockgen/{MULTI}/{name}" for name in ("config.json", "model.safetensors")]
    with pytest.raises(UserError, match="describes a BlockGen of noise 'uniform'; unmask reads those with masks"):
        unmask.load(f"jdeschena/blockgen/{MULTI.replace('absorb', 'uniform')}", tokenizer=tokens)
    with pytest.raises(UserError, match=r"the folder blockgen/no of jdeschena/blockgen on the .* has no config.json"):
        unmask.load("jdeschena/blockgen/blockgen/no", tokenizer=tokens)


def test_all_sizes_alike() -> None:
    place = MULTI.replace("0.05_0.95", "uniform")
    assert layout.from_json(BLOCKGEN, f"{place}/config.json").config.block.mixture == {1: 1, 2: 1, 4: 1, 8: 1}


OTHER = {
    "moved": (BLOCKGEN, "somewhere", "does not say the block size and the noise of this BlockGen; leave it in the fol"),
    "another text": (BLOCKGEN, SINGLE.replace("owt", "tinygsm"), "a BlockGen of the text 'tinygsm'"),
    "shares": (BLOCKGEN, MULTI.replace("0.05_0.95", "most"), "lies in 'most', which is not two shares"),
    "a field we lack": (BLOCKGEN | {"window": 3}, MULTI, "has window 3, which unmask does not know"),
    "another type": (BLOCKGEN | {"type": "dimamba"}, MULTI, 'has type "dimamba", but unmask reads such networks only'),
    "no width": (BLOCKGEN | {"hidden_size": "16"}, MULTI, "has hidden_size '16', which is not a number"),
}


@pytest.mark.parametrize("what", OTHER)
def test_another_blockgen_is_one_sentence(what: str) -> None:
    tree, place, sentence = OTHER[what]
    with pytest.raises(UserError, match=sentence):
        layout.from_json(tree, f"{place}/config.json")
