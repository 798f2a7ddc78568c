"""`unmask.load` by name: models inside the package, the Hub without a network, and models without a tokenizer."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import unmask
from support.helpers import trained
from support.paths import DATA
from support.published import (
    DIM,
    HEADS,
    LENGTH,
    equal,
    gpt2_like,
    gpt_neox,
    our_logits,
    published_folder,
    published_tensors,
    tokens_of,
)
from unmask.data import online
from unmask.data.tokenization import Tokenizer, bytes_tokenizer
from unmask.hub import layout, resolve
from unmask.process import ctmc
from unmask.types import UserError, Vocab

SHELF = DATA / "tokenizers"


@pytest.fixture
def offline(monkeypatch, tmp_path) -> Path:
    """No Hub, and an empty cache of it."""
    monkeypatch.setattr(online, "reachable", lambda: False)
    monkeypatch.delenv("UNMASK_TOKENIZERS", raising=False)
    cache = tmp_path / "cache"
    monkeypatch.setattr("huggingface_hub.constants.HF_HUB_CACHE", str(cache))
    return cache


# -- inside the package ----------------------------------------------------------------------------------------------


@pytest.fixture
def shelf(monkeypatch, tmp_path, offline) -> Path:
    """A package with one model in it."""
    folder = tmp_path / "pretrained"
    unmask.load(trained()).save_pretrained(folder / "tiny-en", dtype="float16")
    (folder / "__pycache__").mkdir()
    monkeypatch.setattr(resolve, "PRETRAINED", folder)
    monkeypatch.chdir(tmp_path)
    return folder


def test_a_built_in_model_by_name(shelf):
    assert resolve.pretrained() == ["tiny-en"]
    lm = unmask.load("tiny-en")
    assert equal(dict(lm.model.state_dict()), dict(unmask.load(shelf / "tiny-en").model.state_dict()))
    assert lm.sample(1, length=8, seed=0)


def test_a_typo_names_the_nearest(shelf):
    with pytest.raises(UserError, match=r"no model at tiny-emn \(did you mean 'tiny-en'\?\); built in are: tiny-en;"):
        unmask.load("tiny-emn")
    with pytest.raises(UserError, match=r"^there is no model at gpt; train one with"):
        unmask.load("gpt")


def test_a_package_without_models(monkeypatch, tmp_path, offline):
    monkeypatch.setattr(resolve, "PRETRAINED", tmp_path / "nothing")
    assert resolve.pretrained() == []
    with pytest.raises(UserError, match="there is no model at tiny-en"):
        unmask.load("tiny-en")


def test_one_set_of_weights(shelf):
    for how in ({"weights": "raw"}, {"which": "best"}):
        with pytest.raises(UserError, match="tiny-en holds only one set of weights"):
            unmask.load("tiny-en", **how)


def test_a_checkpoint_file_is_to_be_converted(tmp_path):
    torch.save({}, tmp_path / "last.ckpt")
    with pytest.raises(
        UserError, match=r"is a pickled file; convert it to a folder first with: unmask convert .*last.ckpt DIR"
    ):
        unmask.load(tmp_path / "last.ckpt")


# -- a Hub that is a folder ------------------------------------------------------------------------------------------


def test_only_data_comes_from_the_hub(there):
    folder = published_folder(there.repositories / "kuleshov-group" / "mdlm-owt")
    (folder / "onnx").mkdir()
    shutil.copy(folder / "model.safetensors", folder / "onnx" / "other.safetensors")
    torch.save(published_tensors(), folder / "pytorch_model.bin")
    lm = unmask.load("kuleshov-group/mdlm-owt", tokenizer=bytes_tokenizer(), revision="v1")
    truth = gpt_neox(published_tensors(), 0.0)(tokens_of())
    torch.testing.assert_close(our_logits(lm.model, tokens_of(), 0.0), truth, rtol=1e-5, atol=1e-5)
    got = sorted(p.name for p in (there.cache / "kuleshov-group" / "mdlm-owt").rglob("*") if p.is_file())
    assert got == ["config.json", "model.safetensors"]
    assert there.calls == [{"name": "kuleshov-group/mdlm-owt", "revision": "v1", "local_files_only": False}]
    assert not (folder / "RAN").exists()


def test_a_pickle_comes_only_where_nothing_else_is(there):
    folder = published_folder(there.repositories / "someone" / "old")
    (folder / "model.safetensors").unlink()
    torch.save(published_tensors(), folder / "pytorch_model.bin")
    lm = unmask.load("someone/old", tokenizer=bytes_tokenizer())
    assert equal(dict(lm.model.state_dict()), {n: t for n, t in published_tensors().items() if "inv_freq" not in n})


def test_our_own_folder_from_the_hub(there):
    unmask.load(trained()).save_pretrained(there.repositories / "me" / "mine", card="# mine")
    lm = unmask.load("me/mine")
    assert lm.tokenizer.kind == "bytes" and lm.config.model == unmask.load(trained()).config.model
    assert not (there.cache / "me" / "mine" / "README.md").exists()


def test_a_name_that_the_hub_does_not_have(there):
    with pytest.raises(
        UserError, match="there is no model at no/such, and the Hugging Face Hub does not give it: 404"
    ) as it:
        unmask.load("no/such")
    assert "\n" not in str(it.value)
    (there.repositories / "no" / "config").mkdir(parents=True)
    (there.cache / "no" / "config").mkdir(parents=True)
    with pytest.raises(UserError, match=r"the model no/config on the Hugging Face Hub has no config.json"):
        unmask.load("no/config")


def test_without_a_network(offline, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(UserError, match="Hub cannot be reached, and its cache here does not hold it") as caught:
        unmask.load("kuleshov-group/mdlm-owt")
    assert "\n" not in str(caught.value)


def test_the_cache_works_without_a_network(offline, monkeypatch, tmp_path):
    """The layout of huggingface_hub's own cache: refs, and a snapshot of a commit."""
    monkeypatch.chdir(tmp_path)
    home, commit = offline / "models--kuleshov-group--mdlm-owt", "0" * 40
    published_folder(home / "snapshots" / commit)
    (home / "refs").mkdir()
    (home / "refs" / "main").write_text(commit)
    lm = unmask.load("kuleshov-group/mdlm-owt", tokenizer=bytes_tokenizer())
    assert lm.config.data.length == LENGTH


def test_a_path_is_never_looked_for_on_the_hub(there, tmp_path):
    for path in (Path("no/such"), "./no/such", "/no/such", "a/b/c", "no\\such", "ñandú/x"):
        with pytest.raises(UserError, match="there is no model at"):
            unmask.load(path)
    assert there.calls == []


# -- models without a tokenizer --------------------------------------------------------------------------------------


def small_owt(path: Path, **config: Any) -> Path:
    """The published layout with GPT-2's vocabulary and a narrow network."""
    tensors = published_tensors(vocab=50258, dim=16, cond=8, blocks=1, heads=2)
    return published_folder(path, tensors, vocab_size=50258, hidden_dim=16, cond_dim=8, n_blocks=1, n_heads=2, **config)


def test_the_tokenizer_comes_from_the_shelf(offline, monkeypatch, tmp_path):
    folder = small_owt(tmp_path / "m")
    gpt2_like(tmp_path / "shelf" / "gpt2")
    monkeypatch.setenv("UNMASK_TOKENIZERS", str(tmp_path / "shelf"))
    lm = unmask.load(folder)
    assert lm.tokenizer.vocab == Vocab(50258, mask=50257, pad=None, bos=50256, eos=50256)
    assert lm.tokenizer.encode("t5 t7") == [5, 7]


def test_no_tokenizer_anywhere(offline, tmp_path):
    with pytest.raises(
        UserError, match=r"comes without a tokenizer.*Hub cannot be reached; give one with --tokenizer PATH"
    ):
        unmask.load(small_owt(tmp_path / "m"))


def test_a_tokenizer_of_another_size(offline, tmp_path):
    gpt2_like(tmp_path / "short", 50000)
    with pytest.raises(UserError, match=r"has 50,001 tokens with \[MASK\], and the model 50,258; give the tokenizer"):
        unmask.load(small_owt(tmp_path / "m"), tokenizer=tmp_path / "short")


@pytest.mark.skipif(not SHELF.is_dir(), reason="the shared tokenizers are not on this machine")
def test_the_real_gpt2_tokenizer(offline, monkeypatch, tmp_path):
    """[MASK] is 50257 and not [PAD], as upstream's padding would have it."""
    monkeypatch.setenv("UNMASK_TOKENIZERS", str(SHELF))
    lm = unmask.load(small_owt(tmp_path / "m"))
    assert lm.tokenizer.vocab == layout.GPT2 and lm.tokenizer.piece(50257) == "[MASK]"
    assert lm.tokenizer.encode("Hello world") == [15496, 995]
    lm.save_pretrained(tmp_path / "ours")
    assert unmask.load(tmp_path / "ours").tokenizer.digest == lm.tokenizer.digest


@pytest.mark.skipif(not SHELF.is_dir(), reason="the shared tokenizers are not on this machine")
def test_bert_where_gpt2_belongs(offline, tmp_path):
    with pytest.raises(UserError, match=r"has 30,522 tokens with \[MASK\], and the model 50,258"):
        unmask.load(small_owt(tmp_path / "m"), tokenizer=SHELF / "bert-base-uncased")


# -- SEDD ------------------------------------------------------------------------------------------------------------

SEDD: dict[str, Any] = {
    "ngpus": 8, "tokens": 258, "training": {"batch_size": 512, "n_iters": 1300001, "ema": 0.9999},
    "data": {"train": "openwebtext", "valid": "wikitext103", "cache_dir": "data"},
    "graph": {"type": "absorb", "file": "data", "report_all": False},
    "noise": {"type": "loglinear", "sigma_min": 0.0001, "sigma_max": 20},
    "sampling": {"predictor": "euler", "steps": 128, "noise_removal": True}, "optim": {"lr": 0.0003},
    "model": {"name": "small", "type": "ddit", "hidden_size": DIM, "cond_dim": 12, "length": LENGTH, "n_blocks": 2,
              "n_heads": HEADS, "scale_by_sigma": True, "dropout": 0.1},
}  # fmt: skip


def sedd_folder(path: Path, **changes: Any) -> tuple[Path, dict[str, Tensor]]:
    """louaaron/sedd-small in small: names without a prefix, and settings in sections."""
    path.mkdir(parents=True)
    tree = json.loads(json.dumps(SEDD))
    for key, value in changes.items():
        section, _, name = key.partition("__")
        (tree[section] if name else tree)[name or section] = value
    tensors = published_tensors(blocks=2, prefix="")
    (path / "config.json").write_text(json.dumps(tree))
    save_file(tensors, path / "model.safetensors")
    return path, tensors


def test_sedd_scores_are_those_of_its_own_formula(tmp_path):
    """logits - log(e^sigma - 1) - log(V - 1), and 0 for the token that is there."""
    folder, tensors = sedd_folder(tmp_path / "m")
    lm = unmask.load(folder, tokenizer=bytes_tokenizer())
    assert lm.config.model.method == "sedd" and lm.config.schedule.name == "log-linear"
    z = tokens_of()
    z[:, ::2] = 258
    sigma = 1.3
    logits = gpt_neox(tensors, sigma, prefix="")(z)
    torch.testing.assert_close(our_logits(lm.model, z, sigma), logits, rtol=1e-5, atol=1e-5)
    truth = logits - torch.log(torch.expm1(torch.tensor(sigma))) - torch.log(torch.tensor(258.0))
    truth = truth.scatter(-1, z[..., None], 0.0)
    ours = ctmc.sedd_log_score(our_logits(lm.model, z, sigma), z, torch.full(z.shape, sigma))
    torch.testing.assert_close(ours.float(), truth, rtol=1e-5, atol=1e-5)
    x_hat = lm.model.parameterization.log_x(our_logits(lm.model, z, sigma)[:, ::2], 258)
    r = 1 / torch.expm1(torch.tensor(sigma))  # s(y) = x̂(y) alpha / (1 - alpha)
    torch.testing.assert_close(x_hat[..., :258], truth[:, ::2, :258] - r.log(), rtol=1e-4, atol=1e-4)


def test_sedd_travels(tmp_path):
    folder, tensors = sedd_folder(tmp_path / "m", noise__type="geometric")
    lm = unmask.load(folder, tokenizer=bytes_tokenizer())
    assert (lm.config.schedule.name, lm.config.schedule.sigma_min, lm.config.schedule.sigma_max) == (
        "geometric",
        1e-4,
        20,
    )
    lm.save_pretrained(tmp_path / "ours")
    there = unmask.load(tmp_path / "ours")
    wanted = {f"backbone.{name}": tensor for name, tensor in tensors.items() if "inv_freq" not in name}
    assert there.config == lm.config and equal(dict(there.model.state_dict()), wanted)


def test_the_published_sizes_of_sedd():
    """170 million weights are sedd-small, 424 million sedd-medium, counted by hand from the shapes."""
    for width, blocks, heads in ((768, 12, 12), (1024, 24, 16)):
        tree = SEDD | {
            "tokens": 50257,
            "model": SEDD["model"] | {"hidden_size": width, "cond_dim": 128, "n_blocks": blocks, "n_heads": heads},
        }
        found = layout.from_json(tree)
        assert found.vocab == layout.GPT2
        with torch.device("meta"):
            model = unmask.models.registry.model(found.config, found.vocab)
        block = 12 * width**2 + 5 * width + 2 * width + 128 * 6 * width + 6 * width
        ends = 2 * 50258 * width + 50258 + width + 128 * 2 * width + 2 * width + (256 * 128 + 128) + (128 * 128 + 128)
        assert sum(p.numel() for p in model.parameters()) == blocks * block + ends


WRONG = {
    "uniform": ({"graph__type": "uniform"}, "SEDD of graph 'uniform'; unmask reads only the absorbing one"),
    "unscaled": ({"model__scale_by_sigma": False}, "SEDD without scale_by_sigma"),
    "a field": ({"model__window": 4}, "has model.window 4, which unmask does not know"),
    "a section": ({"algo": {"name": "x"}}, "has algo .*, which unmask does not know"),
    "tied": ({"model__tie_word_embeddings": True}, "has model.tie_word_embeddings true"),
    "noise": ({"noise__type": "linear"}, "has noise type 'linear'"),
    "no noise": ({"noise": None}, "it has no section 'noise'"),
    "no width": ({"model__hidden_size": "768"}, "has hidden_size '768', which is not a number"),
}


@pytest.mark.parametrize("what", WRONG)
def test_another_sedd(what, tmp_path):
    changes, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence):
        unmask.load(sedd_folder(tmp_path / "m", **changes)[0], tokenizer=bytes_tokenizer())


def test_a_tokenizer_may_be_an_object_or_a_path(tmp_path):
    folder, _ = sedd_folder(tmp_path / "m")
    bytes_tokenizer().save(tmp_path / "tokens")
    for given in (tmp_path / "tokens", str(tmp_path / "tokens" / "tokenizer.json"), bytes_tokenizer()):
        assert isinstance(unmask.load(folder, tokenizer=given).tokenizer, Tokenizer)
