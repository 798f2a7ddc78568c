"""`unmask convert`: Lightning checkpoints of the paper, .bin files, runs, and back to the published layout."""

from __future__ import annotations

import collections
import json
import sys
import types
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import unmask
from support.helpers import refused, run, trained
from support.published import (
    BYTES,
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
from unmask.data.tokenization import bytes_tokenizer

SETTINGS: dict[str, Any] = {
    "mode": "train", "diffusion": "absorbing_state", "backbone": "dit", "parameterization": "subs",
    "time_conditioning": False, "T": 0, "subs_masking": False, "seed": 1,
    "loader": {"batch_size": "${div_up:${.global_batch_size}, 8}"},
    "model": {"name": "small", "type": "ddit", "hidden_size": DIM, "cond_dim": 12, "length": LENGTH, "n_blocks": 2,
              "n_heads": HEADS, "scale_by_sigma": True, "dropout": 0.1, "tie_word_embeddings": False},
    "noise": {"type": "loglinear", "sigma_min": 1e-4, "sigma_max": 20},
    "data": {"train": "openwebtext", "valid": "wikitext103", "tokenizer_name_or_path": "gpt2", "wrap": True},
    "training": {"ema": 0.9999, "antithetic_sampling": True}, "wandb": {"tags": ["${noise.type}", "x"]},
}  # fmt: skip


def omegaconf(value: Any, module: Any, parent: Any = None) -> Any:
    """The objects that OmegaConf makes of settings, with the attributes that its pickles have."""
    kind = {dict: "DictConfig", list: "ListConfig"}.get(type(value), "AnyNode")
    node = getattr(module, kind)()
    node.__dict__ |= {"_metadata": module.ContainerMetadata(), "_parent": parent}
    if isinstance(value, dict):
        node.__dict__["_content"] = {key: omegaconf(own, module, node) for key, own in value.items()}
    elif isinstance(value, list):
        node.__dict__["_content"] = [omegaconf(own, module, node) for own in value]
    else:
        node.__dict__["_val"] = value
    return node


class Trap:
    """Runs something when it is loaded; it stands where the checkpoints have their tokenizer."""

    def __init__(self, marker: Path) -> None:
        self.marker = marker

    def __reduce__(self) -> Any:
        return eval, (f"open({str(self.marker)!r}, 'w').close()",)


def lightning(path: Path, state: dict[str, Tensor], settings: dict[str, Any], **more: Any) -> Path:
    """A checkpoint as Lightning writes it, saved by torch; the classes in it are gone afterwards."""
    module = types.ModuleType("omegaconf")
    for name in ("DictConfig", "ListConfig", "AnyNode", "ContainerMetadata"):
        setattr(module, name, type(name, (), {"__module__": "omegaconf"}))
    sys.modules["omegaconf"] = module
    try:
        hyper = {"config": omegaconf(settings, module), "tokenizer": Trap(path.parent / "RAN")}
        content = {
            "epoch": 3,
            "global_step": 1000,
            "pytorch-lightning_version": "2.2.1",
            "state_dict": collections.OrderedDict(state),
            "loops": {"fit_loop": {"state_dict": {}}},
            "callbacks": {},
            "optimizer_states": [{"state": {0: {"exp_avg": torch.ones(3)}}, "param_groups": []}],
            "lr_schedulers": [],
            "hparams_name": "kwargs",
            "hyper_parameters": hyper,
            **more,
        }
        torch.save(content, path)
    finally:
        del sys.modules["omegaconf"]
    return path


def ema(state: dict[str, Tensor], noise: int = 0) -> dict[str, Any]:
    """An average that differs from the weights: a list in the order of `parameters()`."""
    shadow = [tensor + 0.5 for name, tensor in state.items() if name != ROTARY]
    return {"decay": 0.9999, "num_updates": 7, "shadow_params": shadow + [torch.tensor(0.0)] * noise}


def changed(**changes: Any) -> dict[str, Any]:
    """The settings with some of them changed, as `model__length=8`."""
    tree = json.loads(json.dumps(SETTINGS))
    for key, value in changes.items():
        section, _, name = key.partition("__")
        (tree[section] if name else tree)[name or section] = value
    return tree


@pytest.fixture
def tokens(tmp_path: Path) -> str:
    """A folder with a tokenizer of bytes: its size is that of the small networks."""
    bytes_tokenizer().save(tmp_path / "tokens")
    return str(tmp_path / "tokens")


def converted(source: Path, out: Path, *args: str) -> tuple[Any, Any]:
    """The report of the command, and the model that it wrote."""
    report = run("convert", str(source), str(out), "--json", *args).json()
    return report, unmask.load(out)


# -- Lightning -------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("weights", ["ema", "raw"])
def test_mdlm_from_lightning(weights, tokens, tmp_path):
    state = published_tensors(blocks=2)
    file = lightning(tmp_path / "best.ckpt", state, SETTINGS, ema=ema(state))
    report, lm = converted(file, tmp_path / "out", "--tokenizer", tokens, "--weights", weights)
    assert not (tmp_path / "RAN").exists()
    wanted = {name: tensor + (0.5 if weights == "ema" else 0.0) for name, tensor in state.items()}
    assert (report["method"], report["weights"], report["tensors"]) == ("mdlm", weights, 30)
    assert report["parameters"] == sum(t.numel() for n, t in state.items() if n != ROTARY)
    truth = gpt_neox(wanted, 0.0)(tokens_of())
    torch.testing.assert_close(our_logits(lm.model, tokens_of(), 1.0), truth, rtol=1e-4, atol=1e-4)
    assert lm.config.data.length == LENGTH and lm.config.data.layout == "wrap" and lm.config.data.block_ends
    assert lm.sample(1, length=8, steps=4, seed=0)


def test_sedd_from_lightning(tokens, tmp_path):
    state = published_tensors(blocks=2)
    settings = changed(parameterization="sedd", time_conditioning=True)
    file = lightning(tmp_path / "sedd.ckpt", state, settings, ema=ema(state))
    report, lm = converted(file, tmp_path / "out", "--tokenizer", tokens)
    assert report["method"] == "sedd" and lm.config.model.time_conditioning
    averages = {name: tensor + 0.5 for name, tensor in state.items()}
    truth = gpt_neox(averages, 2.0)(tokens_of())
    torch.testing.assert_close(our_logits(lm.model, tokens_of(), 2.0), truth, rtol=1e-4, atol=1e-4)


def test_ar_from_lightning(tokens, tmp_path):
    """No sigma_map and no adaLN; the noise has a type of its own, and the first token of a row is not scored."""
    state = {n: t for n, t in published_tensors(blocks=2).items() if "adaLN" not in n and "sigma_map" not in n}
    settings = changed(parameterization="ar", backbone="ar", noise={"type": "ar", "scale": 6.0}, model__causal=True)
    file = lightning(tmp_path / "ar.ckpt", state, settings, ema=ema(state))
    report, lm = converted(file, tmp_path / "out", "--tokenizer", tokens, "--weights", "raw")
    assert report["method"] == "ar" and lm.config.objective.start_token is False
    truth = gpt_neox(state, 0.0, causal=True)(tokens_of())
    torch.testing.assert_close(our_logits(lm.model, tokens_of()), truth, rtol=1e-4, atol=1e-4)


def test_lm1b_d3pm_and_the_noise_from_lightning(tokens, tmp_path):
    state = published_tensors(blocks=2) | {"noise.empty": torch.tensor(0.0)}
    settings = changed(
        parameterization="d3pm",
        T=1000,
        time_conditioning=True,
        data__wrap=False,
        noise__type="geometric",
        data__tokenizer_name_or_path="bert-base-uncased",
    )
    averages = ema({n: t for n, t in state.items() if n != "noise.empty"}, noise=1)
    report, lm = converted(
        lightning(tmp_path / "x.ckpt", state, settings, ema=averages), tmp_path / "out", "--tokenizer", tokens
    )
    config = lm.config
    assert report["method"] == "d3pm" and (config.objective.bound, config.objective.steps) == ("discrete", 1000)
    assert (config.schedule.name, config.schedule.sigma_min, config.schedule.sigma_max) == ("geometric", 1e-4, 20)
    assert config.data.layout == "pad" and config.data.attend_pads and config.data.tokenizer == "bert-base-uncased"


def reference_loss(logits: Tensor, clean: Tensor, noisy: Tensor, step: int, steps: int, mask: int) -> Tensor:
    """The T-step loss of the ablation in the paper's words: q and p as distributions over all tokens, and their KL."""
    logits = logits.double()
    logits[..., mask] -= 1e6
    x = logits.softmax(-1)
    at_t, at_s = 1 - step / steps, 1 - (step - 1) / steps  # alpha
    masked = torch.nn.functional.one_hot(torch.tensor(mask), logits.shape[-1]).double()
    stays, moves = (1 - at_s) / (1 - at_t), (at_s - at_t) / (1 - at_t)
    truth = moves * torch.nn.functional.one_hot(clean, logits.shape[-1]).double() + stays * masked
    ours = moves * x + stays * masked
    kl = (truth * (truth.clamp(min=1e-300) / ours.clamp(min=1e-300)).log()).sum(-1)
    return steps * torch.where(noisy == mask, kl, 0.0)


def test_subs_masking_is_d3pm_without_mass_on_the_mask(tokens, tmp_path):
    """The third row of the ablation: x̂ is never [MASK], but unmasked tokens are not copied."""
    state, steps = published_tensors(blocks=2), 8
    settings = changed(parameterization="d3pm", T=steps, time_conditioning=True, subs_masking=True)
    file = lightning(tmp_path / "x.ckpt", state, settings)
    report, lm = converted(file, tmp_path / "out", "--tokenizer", tokens)
    assert report["method"] == lm.config.model.method == "no-carry-over"
    net, mask = lm.model, lm.tokenizer.vocab.mask
    clean = tokens_of(mask)
    noisy = clean.clone()
    noisy[:, ::2] = mask
    sigma = 0.7
    truth = gpt_neox(state, sigma)(noisy)
    x = net.parameterization.log_x(our_logits(net, noisy, sigma), mask).exp()
    assert x[..., mask].max() == 0
    torch.testing.assert_close(x[..., :mask], truth[..., :mask].softmax(-1), atol=1e-5, rtol=0)
    wanted = reference_loss(truth, clean, noisy, 4, steps, mask)
    nll, mass = net.parameterization.target(truth, clean, torch.tensor(0.5), mask)
    weight = torch.where(noisy == mask, steps * (1 / steps) / 0.5, 0.0)
    torch.testing.assert_close(weight * nll.double(), wanted, atol=1e-5, rtol=1e-5)
    assert torch.equal(mass, torch.ones_like(mass))


def test_a_setting_that_the_user_knows(tokens, tmp_path):
    file = lightning(tmp_path / "x.ckpt", published_tensors(blocks=2), changed(model__window=7, note="x"))
    said = refused("convert", str(file), str(tmp_path / "out"), "--tokenizer", tokens)
    assert 'has note "x", which unmask does not know and which may change' in said and "add --ignore" in said
    args = ["--tokenizer", tokens, "--ignore", "note", "--ignore", "model.window"]
    assert converted(file, tmp_path / "out", *args)[0]["method"] == "mdlm"
    said = refused("convert", str(file), str(tmp_path / "b"), *args, "--ignore", "model.x")
    assert "has no setting 'model.x'" in said
    assert "--ignore is for Lightning" in refused(
        "convert", str(tmp_path / "out"), str(tmp_path / "b"), "--ignore", "x"
    )


def test_a_checkpoint_without_averages_gives_its_weights(tokens, tmp_path):
    state = published_tensors(blocks=2)
    report, lm = converted(lightning(tmp_path / "x.ckpt", state, SETTINGS), tmp_path / "out", "--tokenizer", tokens)
    assert report["weights"] == "raw"
    assert equal(dict(lm.model.state_dict()), {n: t for n, t in state.items() if n != ROTARY})


STATE = published_tensors(blocks=2)
QKV = "backbone.blocks.1.attn_qkv.weight"
BAD = {
    "a backbone we lack": (STATE, changed(backbone="dimamba"), {}, "backbone 'dimamba' and parameterization 'subs'"),
    "a noise we lack": (STATE, changed(noise__type="loggy"), {}, "has noise type 'loggy'"),
    "a field we lack": (STATE, changed(model__window=7), {}, "has model.window 7, which unmask does not know"),
    "a section we lack": (STATE, changed(algo={"name": "bd3lm"}), {}, "has algo .*, which unmask does not know"),
    "a training we lack": (STATE, changed(training__resample=True), {}, "has training.resample true, which unmask"),
    "rows we lack": (STATE, changed(data__insert_eos=False), {}, "has data.insert_eos false, which unmask does not"),
    "a noise's field we lack": (STATE, changed(noise__power=2), {}, "has noise.power 2, which unmask does not know"),
    "uniform noise": (STATE, changed(diffusion="uniform"), {}, 'has diffusion "uniform", .* only with "absorbing_st'),
    "tied weights": (STATE, changed(model__tie_word_embeddings=True), {}, "has model.tie_word_embeddings true"),
    "another network": (STATE, changed(model__type="dimamba"), {}, 'has model.type "dimamba"'),
    "causal": (STATE, changed(model__causal=True), {}, "has model.causal true, .* only with false"),
    "masking of subs": (STATE, changed(subs_masking=True), {}, "has subs_masking true, which belongs to .*'d3pm'"),
    "masking in doubt": (STATE, changed(subs_masking="${x}"), {}, "has subs_masking '.{x}', which is not true or"),
    "another time": (
        STATE,
        changed(time_conditioning=True, training__change_of_variables=True),
        {},
        "has training.change_of_variables, with which its network sees another time",
    ),
    "sedd without its scale": (
        STATE,
        changed(parameterization="sedd", time_conditioning=True, model__scale_by_sigma=False),
        {},
        "a SEDD without scale_by_sigma",
    ),
    "no width": (STATE, changed(model__hidden_size="${oc.env:W}"), {}, "hidden_size '.{oc.env:W}', which is not"),
    "no settings": (STATE, SETTINGS, {"hyper_parameters": {}}, "does not contain the settings of its run"),
    "no network": ({"model.weight": torch.ones(2)}, SETTINGS, {}, "state_dict has no backbone.vocab_embed.embedding"),
    "a tensor less": ({n: t for n, t in STATE.items() if n != QKV}, SETTINGS, {}, f"lacks 1 tensor.*{QKV}"),
    "a tensor more": (STATE | {"metric.sum": torch.ones(1)}, SETTINGS, {}, "unknown 1 tensor.*metric.sum"),
    "a tensor less, with averages": (
        {n: t for n, t in STATE.items() if n != QKV},
        SETTINGS,
        {"ema": ema(STATE)},
        f"lacks 1 tensor.*{QKV}",
    ),
    "a tensor more, with averages": (
        STATE | {"metric.sum": torch.ones(1)},
        SETTINGS,
        {"ema": ema(STATE)},
        "unknown 1 tensor.*metric.sum",
    ),
    "another rotary base, with averages": (
        STATE | {ROTARY: STATE[ROTARY] ** 2},
        SETTINGS,
        {"ema": ema(STATE)},
        "a rotary base other",
    ),
    "a block more": (published_tensors(blocks=3), SETTINGS, {}, "unknown 10 tensor.*backbone.blocks.2"),
    "another shape": (STATE | {QKV: torch.ones(DIM, DIM)}, SETTINGS, {}, rf"{QKV} has shape \(32, 32\)"),
    "no list": (STATE, SETTINGS, {"ema": {"decay": 0.9}}, "its ema has no shadow_params"),
    "a short list": (
        STATE,
        SETTINGS,
        {"ema": {"shadow_params": ema(STATE)["shadow_params"][:-1]}},
        "ema has 29 tensors, the model 30",
    ),
    "a long list": (STATE, SETTINGS, {"ema": ema(STATE, noise=1)}, "ema has 31 tensors, the model 30"),
    "a list in another order": (
        STATE,
        SETTINGS,
        {"ema": {"shadow_params": ema(STATE)["shadow_params"][::-1]}},
        r"\(its ema\) does not fit .* backbone.vocab_embed.embedding has shape \(64,\), the model wants \(259, 32\)",
    ),
    "names in another order": (
        dict(sorted(STATE.items())),
        SETTINGS,
        {"ema": ema(STATE)},
        "in an unknown order, and its averages have no names",
    ),
}


@pytest.mark.parametrize("what", BAD)
def test_a_checkpoint_that_does_not_fit(what, tokens, tmp_path):
    import re

    state, settings, more, sentence = BAD[what]
    file = lightning(tmp_path / "x.ckpt", dict(state), settings, **more)
    said = refused("convert", str(file), str(tmp_path / "out"), "--tokenizer", tokens)
    assert re.search(sentence, said), said
    assert str(file) in said and not (tmp_path / "out").exists()


# -- other sources ---------------------------------------------------------------------------------------------------


def test_a_bin_file_with_its_config(tokens, tmp_path):
    folder = published_folder(tmp_path / "m")
    torch.save(published_tensors(), folder / "pytorch_model.bin")
    (folder / "model.safetensors").unlink()
    _, lm = converted(folder / "pytorch_model.bin", tmp_path / "a", "--tokenizer", tokens)
    again = unmask.load(folder, tokenizer=tokens)  # the folder without safetensors
    assert equal(dict(lm.model.state_dict()), dict(again.model.state_dict()))
    assert equal(dict(lm.model.state_dict()), {n: t for n, t in published_tensors().items() if n != ROTARY})
    (folder / "config.json").unlink()
    said = refused("convert", str(folder / "pytorch_model.bin"), str(tmp_path / "b"))
    assert "holds tensors only, and there is no config.json next to it" in said


def test_a_trapped_bin_file_in_a_folder_runs_nothing(tokens, tmp_path):
    folder = published_folder(tmp_path / "m")
    (folder / "model.safetensors").unlink()
    torch.save({**published_tensors(), "trap": Trap(tmp_path / "RAN")}, folder / "pytorch_model.bin")
    with pytest.raises(unmask.UserError, match=r"does not hold a dictionary of tensors: 'trap' is a .*eval"):
        unmask.load(folder, tokenizer=tokens)
    assert not (tmp_path / "RAN").exists()


def test_a_run_and_its_folder(tmp_path):
    report, lm = converted(trained(), tmp_path / "a")
    assert report["weights"] == "ema" and report["out"] == str(tmp_path / "a")
    assert equal(dict(lm.model.state_dict()), dict(unmask.load(trained()).model.state_dict()))
    report, raw = converted(trained(), tmp_path / "b", "--weights", "raw", "--dtype", "bfloat16")
    truth = unmask.load(trained(), weights="raw").model.state_dict()
    assert equal(dict(raw.model.state_dict()), {n: t.bfloat16().float() for n, t in truth.items()})
    report, _ = converted(tmp_path / "a", tmp_path / "c")
    assert report["weights"] == "as published"
    assert (tmp_path / "a" / "model.safetensors").read_bytes() == (tmp_path / "c" / "model.safetensors").read_bytes()
    assert (tmp_path / "a" / "config.json").read_text() == (tmp_path / "c" / "config.json").read_text()


def test_to_the_published_layout_and_back(tokens, tmp_path):
    folder = published_folder(tmp_path / "m")
    converted(folder, tmp_path / "ours", "--tokenizer", tokens)
    assert run("convert", str(tmp_path / "ours"), str(tmp_path / "back"), "--to", "published").code == 0
    assert equal(load_file(folder / "model.safetensors"), load_file(tmp_path / "back" / "model.safetensors"))
    tree = json.loads((tmp_path / "back" / "config.json").read_text())
    assert tree.pop("mask_token_id") == BYTES - 1  # GPT-2's needs no word
    extra = {"pad_token_id", "bos_token_id", "eos_token_id"}
    stale = {"_name_or_path", "auto_map", "return_dict", "transformers_version"}
    assert {k: v for k, v in tree.items() if k not in extra} == {k: v for k, v in PUBLISHED.items() if k not in stale}


def test_a_line_for_people(tmp_path):
    ran = run("convert", str(trained()), str(tmp_path / "out"))
    assert (
        ran.code == 0
        and ran.out.startswith(f"wrote {tmp_path / 'out'}: mdlm, ")
        and "(ema), tokenizer bytes" in ran.out
    )


REFUSED = {
    "overwriting": (["{run}", "{run}"], "already exists; give the name of a new folder"),
    "nothing there": (["no-such-thing", "{new}"], "there is no model at no-such-thing"),
    "a text": (["{text}", "{new}"], "is not a model; convert reads folders, Hub ids and .ckpt"),
    "a wrong layout": (["{run}", "{new}", "--to", "onnx"], "--to onnx must be 'unmask', 'published' or 'adapter'"),
    "wrong weights": (["{run}", "{new}", "--weights", "best"], "--weights best must be 'ema' or 'raw'"),
    "a wrong dtype": (["{run}", "{new}", "--dtype", "int4"], "dtype 'int4' must be one of"),
    "a wrong dtype, published": (["{run}", "{new}", "--dtype", "int4", "--to", "published"], "dtype 'int4' must be"),
    "a revision of a folder": (["{run}", "{new}", "--revision", "main"], "revision is for models on the Hub"),
    "a revision of a file": (["{text}", "{new}", "--revision", "main"], "revision is for models on the Hub"),
    "a tokenizer for a run": (["{run}", "{new}", "--tokenizer", "gpt2"], "which contains its tokenizer"),
}


@pytest.mark.parametrize("what", REFUSED)
def test_what_convert_refuses(what, tmp_path):
    args, sentence = REFUSED[what]
    (tmp_path / "x.txt").write_text("hello")
    places = {"run": str(trained()), "new": str(tmp_path / "new"), "text": str(tmp_path / "x.txt")}
    assert sentence in refused("convert", *(arg.format(**places) for arg in args))
    assert not (tmp_path / "new").exists()


def test_the_published_layout_is_for_mdlm(tmp_path):
    from unmask.hub.resolve import layout
    from unmask.models import registry
    from unmask.recipes import with_overrides

    config = with_overrides("tiny", ["data.tokenizer=bytes", "model.method=d3pm", "model.network=dit"])
    layout.write_folder(tmp_path / "m", registry.model(config, bytes_tokenizer().vocab), bytes_tokenizer(), config)
    said = refused("convert", str(tmp_path / "m"), str(tmp_path / "out"), "--to", "published")
    assert "the published layout cannot express the method d3pm" in said
