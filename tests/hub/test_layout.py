"""The folder in which a model travels: the published layout, ours, and every way to spoil them.

The published files are built here from the list of names and shapes alone, and what the loaded network
computes is compared with GPT-NeoX, whose weights are folded from the same tensors.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from support.helpers import settings, tiny_config, trained
from support.published import (
    BLOCKS,
    BYTES,
    COND,
    DIM,
    HEADS,
    LENGTH,
    PUBLISHED,
    ROTARY,
    equal,
    gpt_neox,
    our_logits,
    published_folder,
    published_tensors,
    tokens_of,
)
from unmask.config import ModelConfig
from unmask.data.tokenization import Tokenizer, bytes_tokenizer
from unmask.hub.resolve import layout
from unmask.models import registry
from unmask.recipes import recipe, with_overrides
from unmask.types import UserError, Vocab

MATTERS = {
    "architectures",
    "cond_dim",
    "dropout",
    "hidden_dim",
    "model_length",
    "model_type",
    "n_blocks",
    "n_heads",
    "time_conditioning",
    "torch_dtype",
    "vocab_size",
}


# -- an independent network on the same tensors ----------------------------------------------------------------------


# -- published -------------------------------------------------------------------------------------------------------


def test_the_published_network_is_gpt_neox_after_folding(tmp_path):
    tensors = published_tensors()
    assert len(tensors) == 131
    lm = unmask.load(published_folder(tmp_path / "m", tensors), tokenizer=bytes_tokenizer())
    truth = gpt_neox(tensors, 0.0)(tokens_of())
    assert truth.std() > 0.2
    torch.testing.assert_close(our_logits(lm.model, tokens_of(), 5.0), truth, rtol=1e-5, atol=1e-5)  # not told the time
    assert not (tmp_path / "m" / "RAN").exists()


def test_a_published_network_that_is_told_the_time(tmp_path):
    tensors = published_tensors()
    lm = unmask.load(published_folder(tmp_path / "m", tensors, time_conditioning=True), tokenizer=bytes_tokenizer())
    for sigma in (0.3, 4.0):
        truth = gpt_neox(tensors, sigma)(tokens_of())
        torch.testing.assert_close(our_logits(lm.model, tokens_of(), sigma), truth, rtol=1e-5, atol=1e-5)


def test_what_a_published_config_means():
    found = layout.from_json(PUBLISHED | {"vocab_size": 50258, "model_length": 1024})
    assert found.vocab == Vocab(50258, mask=50257, bos=50256, eos=50256) and found.vocab_size == 50258
    paper = recipe("owt")
    network = {"hidden_dim": DIM, "n_blocks": BLOCKS, "n_heads": HEADS, "cond_dim": COND}
    assert found.config == paper.model_copy(update={"model": ModelConfig(**network)})
    assert layout.from_json(PUBLISHED).vocab is None  # only a tokenizer can say which of the tokens is [MASK]


def test_published_to_ours_to_published_is_bit_exact(tmp_path):
    from unmask.hub.convert import write_published

    first = published_folder(tmp_path / "first")
    lm = unmask.load(first, tokenizer=bytes_tokenizer())
    lm.save_pretrained(tmp_path / "ours")
    again = unmask.load(tmp_path / "ours")
    assert again.config == lm.config and again.tokenizer.vocab == lm.tokenizer.vocab
    write_published(tmp_path / "second", again)
    before, after = (load_file(folder / "model.safetensors") for folder in (first, tmp_path / "second"))
    assert len(before) == 131 and equal(before, after)
    tree = json.loads((tmp_path / "second" / "config.json").read_text())
    assert {key: tree[key] for key in MATTERS} == {key: PUBLISHED[key] for key in MATTERS}
    assert not {"unmask", "auto_map", "return_dict"} & tree.keys()


@pytest.mark.parametrize("method", ["mdlm", "sedd", "ar"])
@pytest.mark.parametrize(
    ("size", "mask", "counts"),
    [
        (50258, 50257, {"mdlm": 169_627_218, "sedd": 169_627_218, "ar": 162_246_482}),
        (30522, 103, {"mdlm": 139_292_986, "sedd": 139_292_986, "ar": 131_912_250}),
    ],
)
def test_parameter_counts_are_those_of_the_paper(method, size, mask, counts):
    with torch.device("meta"):
        model = registry.model(layout.paper_config(method, {}, 128), Vocab(size, mask))
    assert sum(p.numel() for p in model.parameters()) == counts[method]


# -- ours ------------------------------------------------------------------------------------------------------------


def test_a_run_travels_bit_exactly(tmp_path):
    run = unmask.load(trained())
    run.save_pretrained(tmp_path / "m", card="# a card")
    assert sorted(p.name for p in (tmp_path / "m").iterdir()) == [
        "README.md",
        "config.json",
        "manifest.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    there = unmask.load(tmp_path / "m")
    assert equal(dict(run.model.state_dict()), dict(there.model.state_dict()))
    assert there.sample(2, length=16, seed=3) == run.sample(2, length=16, seed=3)
    assert there.score(["one two"], seed=1).nats == run.score(["one two"], seed=1).nats
    assert there.config.model_copy(update={"data": run.config.data}) == run.config
    assert there.config.data == run.config.data.model_copy(update={"cache": None})  # a path of this machine
    assert (there.tokenizer.name, there.tokenizer.kind) == ("bytes", "bytes")


METHODS = {
    "mdlm": ["model.method=mdlm"],
    "sedd": ["model.method=sedd", "model.time_conditioning=true"],
    "d3pm": ["model.method=d3pm"],
    "ar": ["model.method=ar"],
    "ssd-lm": ["model.method=ssd-lm", "simplex.block=4"],
    "block": ["model.method=block", "block.size=4", "block.mixture={1: 0.25, 4: 0.5, full: 0.25}"],
}


@pytest.mark.parametrize("method", METHODS)
def test_every_method_travels(method, tmp_path):
    config = with_overrides("tiny", settings(*METHODS[method]))
    tokenizer = bytes_tokenizer()
    model = registry.model(config, tokenizer.vocab)
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    layout.write_folder(tmp_path / "m", model, tokenizer, config)
    tree = json.loads((tmp_path / "m" / "config.json").read_text())
    kind = ("mdlm", ["MDLM"]) if method == "mdlm" else ("unmask", ["Unmask"])
    assert (tree["model_type"], tree["architectures"]) == kind
    assert (ROTARY in load_file(tmp_path / "m" / "model.safetensors")) == (method == "mdlm")
    there = unmask.load(tmp_path / "m")
    assert equal(dict(there.model.state_dict()), dict(model.state_dict())) and there.config.block == config.block


def test_labels_travel(tmp_path):
    config = with_overrides("tiny", settings("data.layout=pad", "data.label=topic"))
    model = registry.model(config, bytes_tokenizer().vocab, 2)
    layout.write_folder(tmp_path / "m", model, bytes_tokenizer(), config, ("sports", "world"))
    lm = unmask.load(tmp_path / "m")
    assert lm.labels == ["sports", "world"] and lm.model.backbone.n_labels == 2


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_sixteen_bits_load_as_float32(dtype, tmp_path):
    run = unmask.load(trained())
    run.save_pretrained(tmp_path / "m", dtype=dtype)
    kind = getattr(torch, dtype)
    stored = load_file(tmp_path / "m" / "model.safetensors")
    assert all(tensor.dtype == (torch.float32 if name == ROTARY else kind) for name, tensor in stored.items())
    there = unmask.load(tmp_path / "m")
    for name, tensor in there.model.state_dict().items():
        assert tensor.dtype == torch.float32
        assert torch.equal(tensor, run.model.state_dict()[name].to(kind).float())


def test_weights_that_sixteen_bits_cannot_hold(tmp_path):
    run = unmask.load(trained())
    with torch.no_grad():
        run.model.backbone.vocab_embed.embedding[0, 0] = 1e6
    with pytest.raises(UserError, match=r"backbone.vocab_embed.embedding holds numbers beyond the range of float16"):
        run.save_pretrained(tmp_path / "m", dtype="float16")
    assert not (tmp_path / "m").exists()


def test_the_tokenizer_survives_libraries_that_rewrite_its_settings(tmp_path):
    run = unmask.load(trained())
    run.save_pretrained(tmp_path / "m")
    path = tmp_path / "m" / "tokenizer_config.json"
    path.write_text(json.dumps({k: v for k, v in json.loads(path.read_text()).items() if k != "unmask"}))
    there = unmask.load(tmp_path / "m").tokenizer
    assert (there.vocab, there.name, there.kind) == (run.tokenizer.vocab, "bytes", "bytes")
    assert there.digest == run.tokenizer.digest


def test_keys_that_a_library_leaves_out_or_adds_do_not_matter(tmp_path):
    run = unmask.load(trained())
    run.save_pretrained(tmp_path / "m")
    path = tmp_path / "m" / "config.json"
    tree = json.loads(path.read_text())
    for key in ("dropout", "mlp_ratio", "pad_token_id", "vocab_size"):
        del tree[key]
    path.write_text(json.dumps(tree | {"transformers_version": "5.22.2", "auto_map": {"AutoConfig": "evil.Config"}}))
    assert unmask.load(tmp_path / "m").config.model == run.config.model


# -- shards ----------------------------------------------------------------------------------------------------------


def sharded(folder: Path, index: bool) -> Path:
    """The weights of a folder in three files."""
    tensors = load_file(folder / "model.safetensors")
    (folder / "model.safetensors").unlink()
    places = {name: f"model-{i % 3 + 1:05d}-of-00003.safetensors" for i, name in enumerate(tensors)}
    for file in set(places.values()):
        save_file({name: tensors[name] for name in tensors if places[name] == file}, folder / file)
    if index:
        (folder / "model.safetensors.index.json").write_text(json.dumps({"metadata": {}, "weight_map": places}))
    return folder


@pytest.mark.parametrize("index", [True, False])
def test_shards_are_the_whole(index, tmp_path):
    folder = sharded(published_folder(tmp_path / "m"), index)
    assert equal(layout.read_tensors(folder), published_tensors())
    assert unmask.load(folder, tokenizer=bytes_tokenizer()).config.data.length == LENGTH


def test_a_shard_that_is_missing_or_leads_out_of_the_folder(tmp_path):
    folder = sharded(published_folder(tmp_path / "m"), True)
    index = folder / "model.safetensors.index.json"
    whole = index.read_text()
    index.write_text(whole.replace("model-00002-of-00003", "../other"))
    with pytest.raises(UserError, match=r"'../other.safetensors' is not a safetensors file of its folder"):
        layout.read_tensors(folder)
    index.write_text(whole)
    (folder / "model-00002-of-00003.safetensors").unlink()
    with pytest.raises(UserError, match=r"model-00002-of-00003.safetensors is missing"):
        layout.read_tensors(folder)


def test_a_tensor_in_two_shards(tmp_path):
    folder = sharded(published_folder(tmp_path / "m"), False)
    shutil.copy(folder / "model-00001-of-00003.safetensors", folder / "model-00009-of-00003.safetensors")
    with pytest.raises(UserError, match="which another file in its folder holds as well"):
        layout.read_tensors(folder)


# -- bad weights -----------------------------------------------------------------------------------------------------

SPOILT = {
    "missing": (lambda t: t.pop("backbone.blocks.3.attn_out.weight"), r"it lacks 1 tensor\(s\): backbone.blocks.3.att"),
    "extra": (lambda t: t.update(evil=torch.ones(1)), r"it has unknown 1 tensor\(s\): evil"),
    "a block more": (
        lambda t: t.update({k.replace("blocks.0", "blocks.12"): v.clone() for k, v in t.items() if "blocks.0." in k}),
        r"it has unknown 10 tensor\(s\): backbone.blocks.12.adaLN_modulation.bias",
    ),
    "mis-shaped": (
        lambda t: t.update({"backbone.output_layer.linear.bias": torch.ones(BYTES - 1)}),
        r"backbone.output_layer.linear.bias has shape \(258,\), the model wants \(259,\)",
    ),
    "turned": (
        lambda t: t.update({"backbone.blocks.0.mlp.0.weight": torch.ones(DIM, 4 * DIM)}),
        r"blocks.0.mlp.0.weight has shape \(32, 128\), the model wants \(128, 32\)",
    ),
    "another rotary base": (lambda t: t.update({ROTARY: t[ROTARY] ** 1.1}), "has a rotary base other than 10000"),
    "a longer rotary buffer": (lambda t: t.update({ROTARY: torch.ones(16)}), "has a rotary base"),
    "whole numbers": (
        lambda t: t.update({"backbone.blocks.0.mlp.0.bias": torch.ones(4 * DIM, dtype=torch.int64)}),
        "blocks.0.mlp.0.bias holds torch.int64, not 16- or 32-bit floats",
    ),
    "64-bit": (
        lambda t: t.update({"backbone.blocks.0.mlp.0.bias": torch.ones(4 * DIM, dtype=torch.float64)}),
        "holds torch.float64, not 16- or 32-bit",
    ),
}


@pytest.mark.parametrize("what", SPOILT)
def test_every_tensor_is_accounted_for(what, tmp_path):
    spoil, sentence = SPOILT[what]
    tensors = published_tensors()
    spoil(tensors)
    with pytest.raises(UserError, match=sentence):
        unmask.load(published_folder(tmp_path / "m", tensors), tokenizer=bytes_tokenizer())


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"n_blocks": 10**9}, "n_blocks=1000000000 is not valid"),
        ({"n_blocks": 10**4}, "does not fit this model of 10000 blocks: it has 131 tensors"),
        ({"hidden_dim": 32 * 10**6}, r"has shape \(259, 32\), the model wants \(259, 32000000\)"),
        ({"hidden_dim": 32 * 10**12}, "hidden_dim=32000000000000 is not valid"),
        ({"cond_dim": 10**9}, r"has shape \(12, 256\), the model wants \(1000000000, 256\)"),
        ({"mlp_ratio": 10**30}, "too large to exist"),
    ],
)
def test_claimed_sizes_take_no_memory(change, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        unmask.load(published_folder(tmp_path / "m", **change), tokenizer=bytes_tokenizer())


def test_the_rotary_buffer_may_be_absent_or_rounded(tmp_path):
    tensors = published_tensors()
    whole = unmask.load(published_folder(tmp_path / "a", tensors), tokenizer=bytes_tokenizer())
    for name, change in {"b": None, "c": tensors[ROTARY].half()}.items():
        other = {k: v for k, v in tensors.items() if k != ROTARY} | ({} if change is None else {ROTARY: change})
        lm = unmask.load(published_folder(tmp_path / name, other), tokenizer=bytes_tokenizer())
        assert equal(dict(lm.model.state_dict()), dict(whole.model.state_dict()))


def test_damaged_or_absent_weights(tmp_path):
    folder = published_folder(tmp_path / "m")
    path = folder / "model.safetensors"
    path.write_bytes(path.read_bytes()[:-100])
    with pytest.raises(UserError, match=r"weights file .*model.safetensors is damaged"):
        unmask.load(folder, tokenizer=bytes_tokenizer())
    path.unlink()
    with pytest.raises(UserError, match=r"has no weights: it holds neither model.safetensors nor pytorch_model.bin"):
        unmask.load(folder, tokenizer=bytes_tokenizer())


# -- bad settings ----------------------------------------------------------------------------------------------------

WRONG = {
    "no width": ({"hidden_dim": None}, "does not have hidden_dim"),
    "a text for a number": ({"n_blocks": "12"}, "has n_blocks '12', which is not a number"),
    "a fraction of a block": ({"n_blocks": 1.5}, "has n_blocks 1.5, which is not a number"),
    "a switch for a number": ({"n_heads": True}, "has n_heads True, which is not a number"),
    "a number for a switch": ({"time_conditioning": 1}, "has time_conditioning 1, which is not true or false"),
    "heads that do not divide": ({"n_heads": 5}, "hidden_dim=32 must be an even multiple of n_heads=5"),
    "no tokens": ({"vocab_size": None}, "does not have vocab_size"),
    "another model": ({"model_type": "bert"}, "its model_type is 'bert'"),
    "a mask outside": ({"mask_token_id": 400}, "the mask id 400 is outside a vocabulary of 259 tokens"),
    "a mask that is a text": ({"mask_token_id": "[MASK]"}, "has the mask token '\\[MASK\\]', which is not a number"),
    "a network that looks left": ({"causal": True}, "has causal true, but unmask reads such networks only with false"),
    "block diffusion": ({"block_size": 4}, "has block_size 4, but unmask reads such networks only with null or 24"),
    "a field we lack": ({"window": 4}, "has window 4, which unmask does not know and which may change what the"),
    "unmask of the future": ({"unmask": {"format": 2}}, "'unmask' part of format 2, and this version reads 1"),
    "unmask that is none": ({"unmask": 7}, "'unmask' part of format 7"),
    "unmask without settings": ({"unmask": {"format": 1}}, "it has no section 'config'"),
}  # fmt: skip


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_config_is_one_sentence(what):
    change, sentence = WRONG[what]
    with pytest.raises(UserError, match=sentence) as caught:
        layout.from_json(PUBLISHED | change, "there/config.json")
    assert str(caught.value).startswith("there/config.json") and "\n" not in str(caught.value)


CONTRADICTIONS = {
    "width": (lambda t: t.update(hidden_dim=64), "hidden_dim is 64 at the top level and 16 in its 'unmask' part"),
    "tokens": (lambda t: t.update(vocab_size=300), "vocab_size is 300 at the top level and 259"),
    "mask": (lambda t: t.update(mask_token_id=5), "mask_token_id is 5 at the top level and 258"),
    "kind": (lambda t: t.update(model_type="unmask"), "model_type is 'unmask' at the top level and 'mdlm'"),
    "labels": (lambda t: t["unmask"].update(labels=["a"]), "data.label is None and it lists 1 labels"),
    "names of labels": (lambda t: t["unmask"].update(labels=[1]), "labels are not a list of names"),
    "a setting": (lambda t: t["unmask"]["config"]["model"].update(hidden=3), "unknown config key 'model.hidden'"),
    "vocabulary": (lambda t: t["unmask"]["vocab"].update(mask=None), "has the mask token None, which is not a number"),
    "tokenizer": (lambda t: t["unmask"].update(tokenizer={"name": "x"}), "its tokenizer has no name and kind"),
}


@pytest.mark.parametrize("what", CONTRADICTIONS)
def test_a_config_that_contradicts_itself(what):
    config = tiny_config()
    vocab = bytes_tokenizer().vocab
    tree = json.loads(json.dumps(layout.to_json(config, vocab, (), "float32", {"name": "bytes", "kind": "bytes"})))
    assert layout.from_json(tree).config.model == config.model
    spoil, sentence = CONTRADICTIONS[what]
    spoil(tree)
    with pytest.raises(UserError, match=sentence):
        layout.from_json(tree)


def test_a_wrong_tokenizer_is_refused(tmp_path):
    folder = published_folder(tmp_path / "m", published_tensors(vocab=300), vocab_size=300)
    with pytest.raises(UserError, match=r"the tokenizer 'bytes' has 259 tokens with \[MASK\], and the model 300"):
        unmask.load(folder, tokenizer=bytes_tokenizer())
    other = published_folder(tmp_path / "n", mask_token_id=7)
    with pytest.raises(UserError, match=r"\[MASK\] is token 258 of the tokenizer 'bytes' and token 7 of the model"):
        unmask.load(other, tokenizer=bytes_tokenizer())


def test_tokenizer_files_of_another_model(tmp_path):
    unmask.load(trained()).save_pretrained(tmp_path / "m")
    backend = Tokenizer.load(tmp_path / "m")._backend
    backend.add_tokens(["more"])
    backend.save(str(tmp_path / "m" / "tokenizer.json"))
    (tmp_path / "m" / "tokenizer_config.json").unlink()
    with pytest.raises(UserError, match=r"tokenizer.json has 260 tokens, and the model 259"):
        unmask.load(tmp_path / "m")
    (tmp_path / "m" / "tokenizer.json").write_text("{}")
    with pytest.raises(UserError, match=r"tokenizer.json is damaged or not a tokenizer.json"):
        unmask.load(tmp_path / "m")


# -- writing ---------------------------------------------------------------------------------------------------------


def test_nothing_is_overwritten_and_nothing_is_left_of_a_failure(tmp_path, monkeypatch):
    run = unmask.load(trained())
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "mine.txt").write_text("mine")
    with pytest.raises(UserError, match="full already exists"):
        run.save_pretrained(tmp_path / "full")
    assert (tmp_path / "full" / "mine.txt").read_text() == "mine"
    (tmp_path / "empty").mkdir()
    run.save_pretrained(tmp_path / "empty")

    def full(*args: Any, **kwargs: Any) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("unmask.hub.layout.folder.save_file", full)
    with pytest.raises(UserError, match=r"could not write .*new .*no space left on device"):
        run.save_pretrained(tmp_path / "new")
    assert sorted(p.name for p in tmp_path.iterdir()) == ["empty", "full"]


def test_a_dtype_that_is_none(tmp_path):
    with pytest.raises(UserError, match="dtype 'int8' must be one of float32, float16, bfloat16"):
        unmask.load(trained()).save_pretrained(tmp_path / "m", dtype="int8")
