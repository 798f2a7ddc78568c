"""LoRA: what is trained, merging, folders of adapters (peft reads ours, and we read theirs), what is refused."""

from __future__ import annotations

import json
import re
import shutil
import sys
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

import unmask
from support.encoders import VOCAB, tree
from support.families import LLADA_NAMES, write
from support.helpers import random_lm, random_model, refused, run, run_together
from unmask.config import AdapterConfig
from unmask.data.tokenization import bytes_tokenizer
from unmask.hub import lora
from unmask.lm import LM
from unmask.models.masked import MaskedDiffusion
from unmask.networks.encoder import Encoder
from unmask.process.keys import Keys
from unmask.process.schedule import Polynomial
from unmask.recipes import with_overrides
from unmask.training import adapt
from unmask.training.memory import recompute_blocks
from unmask.types import Batch, UserError

peft = pytest.importorskip("peft")
transformers = pytest.importorskip("transformers")
SHORT = ["train.steps=4", "train.batch_size=4", "train.warmup=1", "train.lr=0.01", "train.checkpoint_every=2"]
SHORT += ["eval.rows=4", "eval.draws=1", "eval.every=0", "train.log_every=1", "data.length=16", "train.device=cpu"]
MODERN = ["model.network=modern", "model.hidden_dim=16", "model.n_blocks=2", "model.n_heads=2"]
LLAMA = ["model.network=llama", "model.hidden_dim=16", "model.n_blocks=2", "model.n_heads=2", "model.mlp_dim=24"]
NETWORKS = {
    "dit": ["model.n_blocks=2"],
    "modern": MODERN,
    "llama": [*LLAMA, "model.n_kv_heads=1"],
    "mosaicbert": ["model.network=mosaicbert", "model.n_blocks=2"],
    "mamba": ["model.method=ar", "model.network=mamba", "model.hidden_dim=16", "model.n_blocks=2"],
}
IDS = torch.tensor([[70, 71, 200, 40, 3, 7, 101, 32, 99]])


def lm_of(name: str, *more: str) -> LM:
    words = ["data.tokenizer=bytes", "data.length=16", "model.hidden_dim=16", "model.n_heads=2", *NETWORKS[name], *more]
    if name == "mamba":
        words = [word for word in words if "n_heads" not in word]
    config, tokenizer = with_overrides("small" if name == "modern" else "tiny", words), bytes_tokenizer()
    return LM(random_model(config, tokenizer.vocab), tokenizer, config)


def shake(lm: LM, scale: float = 0.3) -> None:
    """Adapters that change something: fresh ones do not."""
    torch.manual_seed(3)
    with torch.no_grad():
        for weight in lora.adapters(lm.model).values():
            weight.copy_(torch.randn_like(weight) * scale)


def states(lm: LM, **how: Any) -> Tensor:
    net = lm.model.backbone
    condition = net.condition(torch.zeros(1))
    with torch.no_grad():
        return net(IDS, condition=condition, **how)[0] if condition is not None else net(IDS, **how)[0]


@pytest.mark.parametrize("name", NETWORKS)
def test_adapters_begin_as_nothing_are_all_that_is_trained_and_merge(name):
    lm = lm_of(name)
    before = {key: weight.clone() for key, weight in lm.model.state_dict().items()}
    plain, matrices = states(lm), lm.model.backbone.matrices()
    lora.attach(lm.model, AdapterConfig(rank=2))
    assert torch.equal(states(lm), plain)
    trained = {key for key, weight in lm.model.named_parameters() if weight.requires_grad}
    assert trained == set(lora.adapters(lm.model)) and len(trained) == 2 * len(matrices)
    shake(lm)
    adapted = states(lm)
    assert (adapted - plain).abs().max() > 0.1
    queries = torch.tensor([[1, 4]])
    if "queries" in lm.model.backbone.takes:  # networks take projections apart there
        assert torch.allclose(states(lm, queries=queries), adapted[:, [1, 4]], atol=1e-5)
    pairs = {key: weight.clone() for key, weight in lora.adapters(lm.model).items()}
    lora.merge(lm.model)
    assert torch.allclose(states(lm), adapted, atol=1e-4)
    after = lm.model.state_dict()
    assert after.keys() == before.keys() and all(weight.requires_grad for weight in lm.model.parameters())
    for key, weight in before.items():
        stem = key.removesuffix(".weight")
        a, b = (pairs.get(f"{stem}.lora_{which}.default.weight") for which in "AB")
        expected = weight if a is None or b is None else weight + 2.0 * b @ a  # alpha is twice the rank
        assert torch.allclose(after[key], expected, atol=1e-6)


@pytest.mark.parametrize("kind", ["bert", "modernbert", "deberta-v2"])
def test_encoders_of_transformers_get_adapters_too(kind):
    torch.manual_seed(0)
    net = Encoder.from_architecture(tree(kind), VOCAB, 0.0).eval()
    model, tokens = MaskedDiffusion(net, Polynomial()).eval(), torch.arange(5, 14)[None]
    lora.attach(model, AdapterConfig(rank=2))
    with torch.no_grad():
        plain = net(tokens)[0]
        for weight in lora.adapters(model).values():
            weight.normal_(std=0.5)
        adapted = net(tokens)[0]
        lora.merge(model)
        assert torch.allclose(net(tokens)[0], adapted, atol=1e-4) and (adapted - plain).abs().max() > 0.1


def test_some_layers_by_name_and_what_does_not_exist():
    lm = lm_of("llama")
    wanted = lora.targets(lm.model.backbone, AdapterConfig(rank=2, targets=["q_proj", "mlp.up_proj"]))
    assert wanted == [f"blocks.{i}.{name}" for i in range(2) for name in ("self_attn.q_proj", "mlp.up_proj")]
    with pytest.raises(UserError, match=r"no linear layer of the blocks is named 'k_prj' \(did you mean 'k_proj'"):
        lora.attach(lm.model, AdapterConfig(rank=2, targets=["k_prj"]))
    assert lora.alpha(AdapterConfig(rank=4)) == 8 and lora.alpha(AdapterConfig(rank=4, alpha=3)) == 3


def test_without_peft_one_sentence(monkeypatch):
    monkeypatch.setitem(sys.modules, "peft", None)
    with pytest.raises(UserError, match=r"LoRA needs the package peft; install it with: .*lora"):
        lora.attach(lm_of("dit").model, AdapterConfig(rank=2))


@pytest.mark.parametrize("name", ["dit", "modern", "llama", "mosaicbert"])
def test_recomputed_blocks_have_the_same_gradients(name):
    gradients = []
    for recompute in (False, True):
        lm = lm_of(name)
        lora.attach(lm.model, AdapterConfig(rank=2))
        shake(lm)
        if recompute:
            recompute_blocks(lm.model.backbone)
        loss, _ = lm.model.train()(Batch(IDS, torch.arange(1), 1), Keys(0).at(0))
        loss.backward()
        gradients.append({key: weight.grad for key, weight in lora.adapters(lm.model).items()})
    assert all(torch.allclose(gradients[0][key], gradients[1][key], atol=1e-6) for key in gradients[0])
    assert max(float(grad.abs().max()) for grad in gradients[0].values()) > 0


def test_a_16_bit_base_keeps_its_type_and_its_memory(tmp_path):
    base = unmask.load(write(tmp_path / "base", "qwen2", dtype=torch.bfloat16))
    model = lora.based_on(base, base.config)
    lora.attach(model, AdapterConfig(rank=2))
    table = model.backbone.token_weights()
    assert table is not None and table.embedding.dtype == torch.bfloat16
    assert table.embedding.data_ptr() == base.model.backbone.token_weights().embedding.data_ptr()
    assert {weight.dtype for weight in lora.adapters(model).values()} == {torch.float32}
    loss, _ = model(Batch(IDS, torch.arange(1), 1), Keys(0).at(0))
    loss.backward()
    assert torch.isfinite(loss)


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("text") / "text.txt"
    path.write_text("seven eight nine ten.\n" * 300)
    return str(path)


@pytest.fixture(scope="module")
def base(tmp_path_factory: pytest.TempPathFactory) -> Path:
    lm = random_lm(bytes_tokenizer(), "model.n_blocks=2", scale=0.3)
    return lm.save_pretrained(tmp_path_factory.mktemp("base") / "base")


@pytest.fixture(scope="module")
def causal(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A Llama as transformers writes it."""
    return write(tmp_path_factory.mktemp("causal") / "causal", "llama")


def tune(model: Path, kind: str, text: str, out: Path, *more: str) -> list[str]:
    return ["finetune", str(model), kind, *SHORT, "--data", text, "--out", str(out), "--lora", "2", "--quiet", *more]


@pytest.fixture(scope="module")
def tuned(base: Path, text: str, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("tuned") / "run"
    ran = run(*tune(base, "mdlm", text, out, "train.ema=0.5", "train.recompute=true"))
    assert ran.code == 0, ran.err
    return out


def test_a_run_keeps_adapters_only_and_is_the_base_with_them(tuned, base, tmp_path):
    folder = tuned / "checkpoints" / "step-00000004"
    held = {group: load_file(folder / f"{group}.safetensors") for group in ("model", "ema", "optimizer")}
    assert held["model"] and all(".lora_" in name for group in held.values() for name in group)
    assert held["model"].keys() == held["ema"].keys()
    lm, start = unmask.load(tuned), unmask.load(base)
    ours, theirs = lm.model.state_dict(), start.model.state_dict()
    changed = {name for name in ours if not torch.equal(ours[name], theirs[name])}
    assert changed == {f"backbone.{name}" for name in start.model.backbone.matrices()}
    again = unmask.load(lm.save_pretrained(tmp_path / "merged"))  # a whole model
    assert all(torch.equal(again.model.state_dict()[name], ours[name]) for name in ours)
    assert again.config.train.lora.rank is None


def test_a_run_that_is_continued_is_the_run_in_one_go(tuned, base, text, tmp_path):
    out, more = tmp_path / "run", ("train.ema=0.5", "train.recompute=true")
    assert run(*tune(base, "mdlm", text, out, "train.steps=2", *more)).code == 0
    assert run(*tune(base, "mdlm", text, out, *more)).code == 0
    name = "checkpoints/step-00000004/model.safetensors"
    a, b = load_file(out / name), load_file(tuned / name)
    assert a.keys() == b.keys() and all(torch.equal(a[key], b[key]) for key in a)
    assert "train.lora.rank=2, not 3" in refused(*tune(base, "mdlm", text, out, *more, "--lora", "3"))


@pytest.mark.slow
def test_two_processes_take_the_step_of_one(tuned, base, text, tmp_path):
    more = ("train.ema=0.5", "train.recompute=true", "train.micro_batch_size=2")
    run_together(2, tune(base, "mdlm", text, tmp_path / "two", *more), tmp_path / "said.txt")
    name = "checkpoints/step-00000004/model.safetensors"
    a, b = load_file(tmp_path / "two" / name), load_file(tuned / name)
    assert a.keys() == b.keys() and all(torch.allclose(a[key], b[key], atol=1e-5) for key in a)


def test_adapters_of_a_run_are_a_folder_that_is_its_base_with_them(tuned, base, tmp_path):
    done = run("convert", str(tuned), str(tmp_path / "adapter"), "--to", "adapter", "--json").json()
    assert done["tensors"] == 16 and done["weights"] == "ema"
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert settings["peft_type"] == "LORA" and settings["r"] == 2 and settings["lora_alpha"] == 4
    ours, theirs = unmask.load(tmp_path / "adapter"), unmask.load(tuned)
    a, b = ours.model.state_dict(), theirs.model.state_dict()
    assert a.keys() == b.keys() and all(torch.allclose(a[name], b[name], atol=1e-7) for name in a)
    assert ours.recommended == theirs.recommended != unmask.load(base).recommended
    assert run("convert", str(tmp_path / "adapter"), str(tmp_path / "whole")).code == 0
    assert torch.equal(unmask.load(tmp_path / "whole").model.state_dict()[next(iter(a))], a[next(iter(a))])


# -- peft and transformers -------------------------------------------------------------------------------------------


def test_plain_peft_loads_what_we_write(causal, text, tmp_path):
    assert run(*tune(causal, "ar", text, tmp_path / "run", "train.lr=0.1")).code == 0
    assert run("convert", str(tmp_path / "run"), str(tmp_path / "adapter"), "--to", "adapter").code == 0
    net = transformers.LlamaForCausalLM.from_pretrained(causal, dtype=torch.float32)
    theirs = peft.PeftModel.from_pretrained(net, tmp_path / "adapter").eval()
    lm, start = unmask.load(tmp_path / "adapter"), unmask.load(causal)
    with torch.no_grad():
        expected = theirs(IDS).logits[0]
        ours = lm.model.backbone.head(states(lm)[0])[:, : expected.shape[-1]]
        plain = start.model.backbone.head(states(start)[0])[:, : expected.shape[-1]]
    assert torch.allclose(ours, expected[:, : ours.shape[-1]], atol=1e-4)
    assert (ours - plain).abs().max() > 1e-2


def test_we_load_what_plain_peft_writes(causal, tmp_path):
    net = transformers.LlamaForCausalLM.from_pretrained(causal, dtype=torch.float32)
    theirs = peft.get_peft_model(net, peft.LoraConfig(r=3, lora_alpha=6, target_modules=["q_proj", "down_proj"]))
    torch.manual_seed(0)
    with torch.no_grad():
        for name, weight in theirs.named_parameters():
            if "lora_" in name:
                weight.normal_(std=0.2)
    theirs.save_pretrained(tmp_path / "adapter")
    lm = unmask.load(tmp_path / "adapter")
    with torch.no_grad():
        expected = theirs.eval()(IDS).logits[0]
        ours = lm.model.backbone.head(states(lm)[0])
    assert torch.allclose(ours[:, : expected.shape[-1]], expected[:, : ours.shape[-1]], atol=1e-4)


def test_adapters_of_a_llada_have_its_names(text, tmp_path):
    """Those of its published code, so that peft can put them onto that."""
    base = write(tmp_path / "llada", "llada")
    assert run(*tune(base, "mdlm", text, tmp_path / "run")).code == 0
    assert run("convert", str(tmp_path / "run"), str(tmp_path / "adapter"), "--to", "adapter").code == 0
    parts = [LLADA_NAMES[name] for name in LLADA_NAMES if name.startswith(("self_attn", "mlp"))]
    layers = {f"model.transformer.blocks.{i}.{part}" for i in range(2) for part in parts}
    held = load_file(tmp_path / "adapter" / "adapter_model.safetensors")
    assert held.keys() == {f"base_model.model.{layer}.lora_{side}.weight" for layer in layers for side in "AB"}
    settings = json.loads((tmp_path / "adapter" / "adapter_config.json").read_text())
    assert set(settings["target_modules"]) == layers  # "ff_out" alone would be the head, too
    a, b = (unmask.load(tmp_path / name).model.state_dict() for name in ("run", "adapter"))
    assert all(torch.equal(a[name], b[name]) for name in a)


# -- what is refused -------------------------------------------------------------------------------------------------


@pytest.fixture
def adapter(causal: Path, tmp_path: Path) -> Path:
    """Adapters of a copy of the base that may be changed."""
    shutil.copytree(causal, tmp_path / "base")
    lm = unmask.load(tmp_path / "base")
    found, config = lora.fingerprint(lm.model), lm.config.changed(train={"lora": AdapterConfig(rank=2)})
    lora.attach(lm.model, config.train.lora)
    lora.write_adapter(tmp_path / "adapter", lm.model, lm, config, str(tmp_path / "base"), found, torch.float32)
    return tmp_path / "adapter"


def test_adapters_of_another_base_model_are_refused(adapter, tmp_path):
    unmask.load(adapter)
    weights = tmp_path / "base" / "model.safetensors"
    tensors = load_file(weights)
    save_file(tensors | {"model.norm.weight": tensors["model.norm.weight"] + 1}, weights, metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"holds adapters of another base model than .* its weights differ"):
        unmask.load(adapter)
    file = adapter / "adapter_model.safetensors"
    held = load_file(file)
    name = "base_model.model.model.layers.0.self_attn.q_proj.lora_A.weight"
    for spoiled, sentence in (
        ({**held, name: held[name][:, :-1].contiguous()}, "holds adapters of another base model than .*has shape"),
        ({**held, name.replace("layers.0", "layers.7"): held[name].clone()}, "has no layer for"),
        ({**held, "base_model.model.lm_head.weight": held[name].clone()}, "holds more than LoRA's matrices"),
    ):
        save_file(spoiled, file)
        with pytest.raises(UserError, match=sentence):
            unmask.load(adapter)
    shutil.rmtree(tmp_path / "base")
    with pytest.raises(UserError, match="a base model that cannot be loaded: there is no model at"):
        unmask.load(adapter)


def test_a_base_with_another_network_is_refused(tuned, causal, text, tmp_path):
    """A causal one, which would be turned first."""
    run("convert", str(tuned), str(tmp_path / "adapter"), "--to", "adapter")
    settings = tmp_path / "adapter" / "adapter_config.json"
    settings.write_text(json.dumps(json.loads(settings.read_text()) | {"base_model_name_or_path": str(causal)}))
    assert f"the model {causal} has another network" in refused("sample", str(tmp_path / "adapter"))
    mine, out = shutil.copytree(causal, tmp_path / "mine"), tmp_path / "run"
    assert run(*tune(mine, "mdlm", text, out)).code == 0
    shutil.rmtree(mine)
    write(mine, "qwen2")
    sentence = "another network than the one that was trained further: (norm_eps|rotary_base|qkv_bias) is"
    for command in (["sample", str(out)], tune(mine, "mdlm", text, out, "train.steps=6")):
        assert re.search(sentence, refused(*command))


def test_damaged_folders_are_refused(adapter):
    file, settings = adapter / "adapter_model.safetensors", adapter / "adapter_config.json"
    tree = json.loads(settings.read_text())
    file.write_bytes(b"no")
    with pytest.raises(UserError, match="is damaged"):
        unmask.load(adapter)
    file.unlink()
    with pytest.raises(UserError, match="is missing"):
        unmask.load(adapter)
    for change, sentence in (
        ({"base_model_name_or_path": None}, "does not name its base model"),
        ({"rank_pattern": {"q_proj": 4}}, "ranks of their own"),
        ({"peft_type": "PREFIX_TUNING"}, "unmask reads LoRA"),
        ({"layers_pattern": "x", "target_modules": "y"}, "is damaged or of another version of peft"),
    ):
        settings.write_text(json.dumps(tree | change))
        with pytest.raises(UserError, match=sentence):
            unmask.load(adapter)


def test_a_base_that_changed_under_a_run_is_refused(base, text, tmp_path):
    mine, out = tmp_path / "mine", tmp_path / "run"
    shutil.copytree(base, mine)
    assert run(*tune(mine, "mdlm", text, out, "train.steps=2")).code == 0
    shutil.rmtree(mine)
    random_lm(bytes_tokenizer(), "model.n_blocks=2", scale=0.4).save_pretrained(mine)
    with pytest.raises(UserError, match="adapters of another base model than"):
        unmask.load(out)


def test_adapters_learn_at_train_lr_also_beside_weights_of_muon(text):
    """Muon, which trained the base, has a rate of its own: adapters learned at it, and train.lr changed nothing."""
    lm = lm_of("modern")
    assert lm.config.train.optimizer == "muon"
    for more, optimizer, rate in (
        ([], "adamw", adapt.LORA_RATE),
        (["train.lr=0.003"], "adamw", 0.003),
        (["train.optimizer=muon"], "muon", adapt.LORA_RATE),
    ):
        config = adapt.language_config(lm, "m", "mdlm", str(text), None, ["train.lora.rank=2", *more])
        assert (config.train.optimizer, config.train.lr) == (optimizer, rate)
    assert adapt.language_config(lm, "m", "mdlm", str(text)).train.optimizer == "muon"


def test_settings_that_do_not_fit_are_refused(base, text, tmp_path):
    out = str(tmp_path / "run")
    assert "train.lora trains adapters beside the weights" in refused(
        "train", "tiny", "train.lora.rank=2", "--out", out
    )
    assert "use ddp" in refused(*tune(base, "mdlm", text, tmp_path / "run", "train.strategy=fsdp"))
    assert "'k_proj'" in refused(*tune(base, "mdlm", text, tmp_path / "run", "train.lora.targets=[k_proj]"))
    assert "its name alone describes" in refused(*tune(base, "mdlm", text, tmp_path / "run", "--weights", "raw"))
    assert "is for runs with train.lora" in refused("convert", str(base), str(tmp_path / "a"), "--to", "adapter")
    sentence = refused("finetune", str(base), "glue/sst2", "--lora", "2", "--local", str(tmp_path), "--out", out)
    assert "train.lora is for language models" in sentence
