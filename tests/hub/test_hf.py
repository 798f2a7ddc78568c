"""Our networks as models of transformers: registration, both directions, strictness, no code of repositories."""

from __future__ import annotations

import json
import math
import subprocess
import sys
import types
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from tokenizers import Tokenizer as Backend
from torch.nn import functional as F
from transformers import (
    CONFIG_MAPPING,
    AutoConfig,
    AutoModelForMaskedLM,
    AutoTokenizer,
    PreTrainedTokenizerFast,
    pipeline,
)
from transformers.utils.logging import disable_progress_bar

import unmask
from support.helpers import random_lm, random_model, tiny_config
from unmask.data.tokenization import adopt, bpe_tokenizer, bytes_tokenizer, chars_tokenizer
from unmask.hub.transformers import MDLM, MDLMConfig, UnmaskForMaskedLM
from unmask.lm import LM
from unmask.models import registry
from unmask.networks.dit import BlockCall, rotary_of
from unmask.recipes import with_overrides
from unmask.types import UserError, Vocab

disable_progress_bar()
TEXT = "the cat sat on the mat, and the dog saw it. Größe 3€\n"
TRAP = "import pathlib; pathlib.Path({marker!r}).write_text('ran')\nclass MDLMConfig: pass\nMDLM = Tok = MDLMConfig\n"
PUBLISHED = {
    "_name_or_path": "kuleshov-group/mdlm-owt", "architectures": ["MDLM"],
    "auto_map": {"AutoConfig": "configuration_mdlm.MDLMConfig", "AutoModelForMaskedLM": "modeling_mdlm.MDLM"},
    "cond_dim": 8, "dropout": 0.1, "hidden_dim": 16, "model_length": 32, "model_type": "mdlm", "n_blocks": 2,
    "n_heads": 2, "return_dict": False, "time_conditioning": False, "torch_dtype": "float32",
    "transformers_version": "4.38.2", "vocab_size": 23,
}  # fmt: skip


def make_lm(*overrides: str) -> LM:
    return random_lm(bpe_tokenizer([TEXT * 40], 300), "data.length=32", "model.n_blocks=2", *overrides)


@pytest.fixture(scope="module")
def lm() -> LM:
    return make_lm()


@pytest.fixture(scope="module")
def folder(lm, tmp_path_factory) -> Path:
    return lm.save_pretrained(tmp_path_factory.mktemp("hf") / "model")


@pytest.fixture
def published(tmp_path) -> Path:
    """A folder of the published layout, with code that must never run."""
    path = tmp_path / "published"
    path.mkdir()
    (path / "config.json").write_text(json.dumps(PUBLISHED))
    model = MDLM(MDLMConfig(**{k: v for k, v in PUBLISHED.items() if k not in ("auto_map", "model_type")}))
    for parameter in model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    save_file(model.state_dict(), path / "model.safetensors", metadata={"format": "pt"})
    for name in ("configuration_mdlm", "modeling_mdlm", "tokenization_mdlm"):
        (path / f"{name}.py").write_text(TRAP.format(marker=str(tmp_path / "ran")))
    return path


def rows_of(lm: LM, n: int = 3, length: int = 12) -> torch.Tensor:
    return torch.randint(0, lm.tokenizer.vocab.mask, (n, length), generator=torch.Generator().manual_seed(1))


# -- registration ------------------------------------------------------------------------------------------------------


def python(code: str) -> str:
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def test_import_unmask_imports_neither_torch_nor_transformers():
    code = "import sys, unmask; print(sorted({'torch', 'transformers', 'numpy'} & set(sys.modules)))"
    assert python(code) == "[]\n"


def test_import_unmask_leaves_the_import_system_alone():
    code = "import sys; before = list(sys.meta_path), list(sys.path_hooks)\nimport unmask\n"
    assert python(f"{code}print(before == (sys.meta_path, sys.path_hooks))") == "True\n"


def test_without_transformers_one_sentence_says_what_is_missing():
    code = (
        "import sys; sys.modules['transformers'] = None\nimport unmask, unmask.hub\n"
        "try: import unmask.transformers\nexcept ImportError as error: print(error)"
    )
    said = python(code)
    assert said.startswith("unmask.transformers needs the package transformers; install it with: ")
    assert said.endswith("[transformers]'\n")


@pytest.mark.parametrize(
    ("first", "name"),
    [
        ("unmask.transformers", "unmask.hub.transformers"),
        *(
            pytest.param(*pair, marks=pytest.mark.slow)
            for pair in [
                ("transformers", "unmask.transformers"),
                ("transformers", "unmask.hub.transformers"),
                ("unmask.transformers", "unmask.transformers"),
            ]
        ),
    ],
)
def test_the_import_registers_whoever_comes_first(first, name):
    code = f"import {first}\nimport {name}\nfrom transformers import AutoConfig, AutoModelForMaskedLM\n"
    small = "vocab_size=11, hidden_dim=8, n_blocks=1, n_heads=1, cond_dim=8, model_length=8"
    made = f"AutoModelForMaskedLM.from_config(AutoConfig.for_model('mdlm', {small}))"
    assert python(f"{code}print(type({made}).__module__)") == "unmask.hub.transformers.modeling\n"


def test_without_the_import_transformers_says_that_it_does_not_know_us(folder, monkeypatch):
    monkeypatch.delitem(CONFIG_MAPPING._extra_content, "mdlm")  # as before it was imported
    with pytest.raises(ValueError, match="`mdlm` but Transformers does not recognize this architecture"):
        AutoConfig.from_pretrained(folder)


def test_the_short_name_has_the_same_names():
    import unmask.transformers

    for name in unmask.hub.transformers.__all__:
        assert getattr(unmask.transformers, name) is getattr(unmask.hub.transformers, name)


# -- code in repositories ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("trust", [None, False, True])
def test_code_of_a_repository_is_never_run(published, tmp_path, trust):
    config = AutoConfig.from_pretrained(published, trust_remote_code=trust)
    model = AutoModelForMaskedLM.from_pretrained(published, trust_remote_code=trust)
    assert type(config) is MDLMConfig and type(model) is MDLM
    assert not hasattr(config, "auto_map") and config.return_dict is True
    model.save_pretrained(tmp_path / "again")
    saved = json.loads((tmp_path / "again" / "config.json").read_text())
    assert not {"auto_map", "return_dict", "unmask"} & saved.keys()
    assert {key: saved[key] for key in PUBLISHED if key in saved and key != "transformers_version"} == {
        key: PUBLISHED[key]
        for key in PUBLISHED
        if key not in ("auto_map", "return_dict", "_name_or_path", "torch_dtype", "transformers_version")
    }
    a, b = (load_file(path / "model.safetensors") for path in (published, tmp_path / "again"))
    assert a.keys() == b.keys() and all(torch.equal(a[name], b[name]) for name in a)
    assert not list((tmp_path / "again").glob("*.py")) and not (tmp_path / "ran").exists()
    exec((published / "modeling_mdlm.py").read_text())  # the trap does work
    assert (tmp_path / "ran").exists()


@pytest.mark.parametrize("trust", [None, False])
def test_code_named_by_a_tokenizer_is_not_run_unless_it_is_trusted(folder, published, tmp_path, trust):
    for name in ("tokenizer.json", "tokenizer_config.json"):
        (published / name).write_bytes((folder / name).read_bytes())
    settings = json.loads((published / "tokenizer_config.json").read_text())
    settings["auto_map"] = {"AutoTokenizer": ["tokenization_mdlm.Tok", "tokenization_mdlm.Tok"]}
    (published / "tokenizer_config.json").write_text(json.dumps(settings))
    tokenizer = AutoTokenizer.from_pretrained(published, trust_remote_code=trust)
    assert tokenizer.mask_token == "[MASK]" and not (tmp_path / "ran").exists()


# -- the network -------------------------------------------------------------------------------------------------------


def test_logits_are_those_of_the_lm_and_never_say_mask(lm, folder):
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokens = rows_of(lm)
    tokens[:, ::3] = lm.tokenizer.vocab.mask
    net = lm.model.backbone
    want = net.head(net(tokens, condition=net.condition(torch.zeros(3)))[0])
    for how in ({}, {"return_dict": True}, {"timesteps": torch.tensor([0.1, 1.0, 5.0])}):
        found = model(input_ids=tokens, **how)
        assert type(found).__name__ == "MaskedLMOutput" and found.loss is None
        mask = lm.tokenizer.vocab.mask
        assert (found.logits[..., mask] == float("-inf")).all()
        rest = [token for token in range(lm.tokenizer.vocab.size) if token != mask]
        torch.testing.assert_close(found.logits[..., rest], want[..., rest])


def test_absent_positions_are_not_attended_to(lm, folder):
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokens = rows_of(lm, 2, 10)
    mask = torch.ones_like(tokens)
    mask[0, 7:] = 0
    other = torch.where(mask == 1, tokens, (tokens + 5) % lm.tokenizer.vocab.mask)
    a, b = (model(input_ids=x, attention_mask=mask).logits for x in (tokens, other))
    torch.testing.assert_close(a[0, :7], b[0, :7])
    alone = model(input_ids=tokens[:1, :7]).logits
    torch.testing.assert_close(a[0, :7], alone[0])
    assert not torch.allclose(a[0, :7, 0], model(input_ids=tokens).logits[0, :7, 0])


def test_time_is_told_where_the_network_is_made_for_it(tmp_path):
    lm = make_lm("model.time_conditioning=true")
    model = AutoModelForMaskedLM.from_pretrained(lm.save_pretrained(tmp_path / "timed")).eval()
    tokens, sigma = rows_of(lm), torch.tensor([0.1, 1.0, 5.0])
    net = lm.model.backbone
    want = net.head(net(tokens, condition=net.condition(sigma))[0])[..., 0]
    torch.testing.assert_close(model(input_ids=tokens, timesteps=sigma).logits[..., 0], want)
    torch.testing.assert_close(
        model(input_ids=tokens).logits[..., 0], model(input_ids=tokens, timesteps=torch.zeros(3)).logits[..., 0]
    )
    assert not torch.allclose(model(input_ids=tokens).logits[..., 0], want)


def test_labels_give_the_mean_cross_entropy_and_a_gradient(lm, folder):
    model = AutoModelForMaskedLM.from_pretrained(folder)
    tokens = rows_of(lm)
    labels = torch.full_like(tokens, -100)
    labels[:, 2:5] = tokens[:, 2:5]
    inputs = tokens.clone()
    inputs[:, 2:5] = lm.tokenizer.vocab.mask
    out = model(input_ids=inputs, labels=labels)
    logits = out.logits[:, 2:5].reshape(-1, out.logits.shape[-1])
    want = F.cross_entropy(logits[:, : lm.tokenizer.vocab.mask], tokens[:, 2:5].reshape(-1))  # [MASK] is the last token
    torch.testing.assert_close(out.loss, want)
    out.loss.backward()
    assert all(torch.isfinite(p.grad).all() for p in model.parameters() if p.grad is not None)
    assert model.get_input_embeddings().embedding.grad.abs().sum() > 0
    assert not model.get_output_embeddings().weight.grad[lm.tokenizer.vocab.mask].any()


def test_embeddings_and_inputs_that_it_has_no_use_for(lm, folder):
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokens = rows_of(lm)
    vectors = model.get_input_embeddings()(tokens)
    torch.testing.assert_close(model(inputs_embeds=vectors).logits, model(input_ids=tokens).logits)
    model.set_input_embeddings(torch.nn.Embedding.from_pretrained(model.get_input_embeddings().embedding.detach()))
    torch.testing.assert_close(model(input_ids=tokens).logits, model(inputs_embeds=vectors).logits)
    for wrong in ({}, {"input_ids": tokens, "inputs_embeds": vectors}):
        with pytest.raises(UserError, match="either input_ids or inputs_embeds"):
            model(**wrong)
    with pytest.raises(UserError, match="no output_attentions"):
        model(input_ids=tokens, output_attentions=True)
    with pytest.raises(UserError, match="fixed at"):
        model.resize_token_embeddings(7)


def test_hidden_states_and_tuples(lm, folder):
    """The embeddings and every block's output, in the published order; the last norm and the head follow them."""
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokens = rows_of(lm)
    with torch.no_grad():
        plain, full = model(input_ids=tokens), model(input_ids=tokens, output_hidden_states=True)
        assert plain.hidden_states is None and len(full.hidden_states) == model.config.n_blocks + 1
        assert torch.equal(full.logits, plain.logits)
        assert torch.equal(full.hidden_states[0], model.get_input_embeddings()(tokens))
        net = model.backbone
        cond = net.condition(torch.zeros(len(tokens)))
        x, how = full.hidden_states[0], BlockCall(rotary_of(torch.arange(tokens.shape[1]), net.head_dim), net.attention)
        for block, state in zip(net.blocks, full.hidden_states[1:], strict=True):
            x, _ = block(x, cond, how)
            torch.testing.assert_close(state, x)
        logits = net.head(net.output_layer(x, cond))
        torch.testing.assert_close(full.logits[..., :-1], logits[..., :-1])
        again = model(input_ids=tokens, output_hidden_states=True, labels=tokens, return_dict=False)
    assert isinstance(again, tuple) and torch.equal(again[1], full.logits) and len(again[2]) == len(full.hidden_states)
    assert not any(block._forward_hooks for block in net.blocks)
    (alone,) = model(input_ids=tokens, return_dict=False)
    torch.testing.assert_close(alone, full.logits)


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
@pytest.mark.parametrize("timed", [False, True])
def test_sixteen_bits(tmp_path, dtype, timed):
    lm = make_lm(f"model.time_conditioning={str(timed).lower()}")
    folder = lm.save_pretrained(tmp_path / "m")
    full = AutoModelForMaskedLM.from_pretrained(folder, device_map=None).eval()
    half = AutoModelForMaskedLM.from_pretrained(folder, dtype=dtype).eval()
    assert half.dtype in (dtype, torch.float32) and half.get_output_embeddings().weight.dtype == dtype
    how = {"input_ids": rows_of(lm), "timesteps": torch.tensor([0.1, 1.0, 3.0])}
    a, b = (model(**how).logits[..., 0].float() for model in (full, half))
    assert (a - b).abs().max() < 0.1 * a.std() and not torch.equal(a, b)
    half.save_pretrained(tmp_path / "half")
    again = unmask.load(tmp_path / "half", tokenizer=lm.tokenizer).model.state_dict()
    for name, tensor in lm.model.state_dict().items():
        torch.testing.assert_close(again[name], tensor, rtol=2**-7, atol=1e-6)
    full.to(dtype)
    assert (full(**how).logits[..., 0].float() - a).abs().max() < 0.1 * a.std()
    torch.testing.assert_close(full.backbone.rotary_emb.inv_freq, 10000 ** (-torch.arange(4) / 4.0))


# -- fill-mask and tokens ----------------------------------------------------------------------------------------------


def test_fill_mask_never_suggests_the_mask(lm, folder):
    fill = pipeline("fill-mask", model=str(folder), device="cpu")
    size, mask = lm.tokenizer.vocab.size, lm.tokenizer.vocab.mask
    one = fill("the [MASK] sat", top_k=size - 1)
    assert sorted(found["token"] for found in one) == [token for token in range(size) if token != mask]
    assert sum(found["score"] for found in one) == pytest.approx(1, abs=1e-4)
    several = fill("the [MASK] sat [MASK] the mat", top_k=4)
    assert len(several) == 2 and all(found["token"] != mask for row in several for found in row)
    ids = [*lm.encode("the "), mask, *lm.encode(" sat")]
    net = lm.model.backbone
    logits = net.head(net(torch.tensor([ids]), condition=net.condition(torch.zeros(1)))[0])[0, ids.index(mask)]
    logits[mask] = float("-inf")
    assert one[0]["score"] == pytest.approx(logits.softmax(-1).max().item(), rel=1e-4)


@pytest.mark.parametrize(
    "make", [bytes_tokenizer, lambda: chars_tokenizer([TEXT]), lambda: bpe_tokenizer([TEXT] * 9, 300)]
)
def test_tokens_are_the_same(make, tmp_path):
    ours = make()
    random_lm(ours).save_pretrained(tmp_path / "m")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "m")
    for text in (TEXT, "", " two  spaces \n\n", "naïve 🐈 \t", "a" * 300):
        assert theirs(text)["input_ids"] == ours.encode(text)
        assert theirs.decode(ours.encode(text), clean_up_tokenization_spaces=False) == ours.decode(ours.encode(text))
    vocab = ours.vocab
    assert (theirs.mask_token_id, theirs.pad_token_id, theirs.eos_token_id) == (vocab.mask, vocab.pad, vocab.eos)
    assert theirs("x[MASK]")["input_ids"][-1] == vocab.mask and vocab.mask not in ours.encode("x[MASK]")


def test_a_tokenizer_with_a_template_of_its_own(tmp_path):
    from tokenizers import Tokenizer, models, pre_tokenizers, processors

    words = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "cat"]
    backend = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.Whitespace()
    backend.post_processor = processors.TemplateProcessing(
        single="[CLS] $A [SEP]", special_tokens=[("[CLS]", 2), ("[SEP]", 3)]
    )
    ours = adopt(backend, "wordy", {})
    random_lm(ours).save_pretrained(tmp_path / "m")
    theirs = AutoTokenizer.from_pretrained(tmp_path / "m")
    assert theirs("the cat")["input_ids"] == [2, 5, 6, 3]
    assert theirs("the cat", add_special_tokens=False)["input_ids"] == ours.encode("the cat") == [5, 6]


# -- both ways ---------------------------------------------------------------------------------------------------------


def test_there_and_back_is_bit_exact(lm, folder, tmp_path):
    AutoModelForMaskedLM.from_pretrained(folder).save_pretrained(tmp_path / "back")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "back")
    again = unmask.load(tmp_path / "back")
    first, second = lm.model.state_dict(), again.model.state_dict()
    assert first.keys() == second.keys() and all(torch.equal(first[name], second[name]) for name in first)
    files = [load_file(path / "model.safetensors") for path in (folder, tmp_path / "back")]
    assert files[0].keys() == files[1].keys() and all(torch.equal(files[0][name], files[1][name]) for name in files[0])
    assert again.tokenizer.vocab == lm.tokenizer.vocab and again.tokenizer.kind == "bpe"
    assert again.config == lm.config.model_copy(update={"data": lm.config.data.model_copy(update={"cache": None})})
    assert again.score(TEXT, draws=2).nats == lm.score(TEXT, draws=2).nats
    assert again.sample(2, seed=3, steps=8) == lm.sample(2, seed=3, steps=8)


def test_what_transformers_drops_from_the_tokenizer_is_not_missed(lm, folder, tmp_path):
    AutoModelForMaskedLM.from_pretrained(folder).save_pretrained(tmp_path / "back")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "back")
    settings = json.loads((tmp_path / "back" / "tokenizer_config.json").read_text())
    settings.pop("unmask", None)
    (tmp_path / "back" / "tokenizer_config.json").write_text(json.dumps(settings))
    again = unmask.load(tmp_path / "back")
    assert again.tokenizer.vocab == lm.tokenizer.vocab and again.encode(TEXT) == lm.encode(TEXT)


def test_settings_changed_in_transformers_are_changed_for_us(folder, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(folder, dropout=0.25)
    assert model.backbone.blocks[0].dropout == 0.25
    model.save_pretrained(tmp_path / "m")
    AutoTokenizer.from_pretrained(folder).save_pretrained(tmp_path / "m")
    assert unmask.load(tmp_path / "m").config.model.dropout == 0.25


def test_an_lm_of_a_model_and_a_model_of_an_lm(lm, folder):
    model = AutoModelForMaskedLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    for given in (tokenizer, lm.tokenizer):
        own = model.unmask_lm(given)
        assert own.model.backbone is model.backbone and own.encode(TEXT) == lm.encode(TEXT)
        assert own.score(TEXT, draws=2).nats == pytest.approx(lm.score(TEXT, draws=2).nats, rel=1e-5)
    back = MDLM.from_lm(lm)
    tokens = rows_of(lm)
    torch.testing.assert_close(back(input_ids=tokens).logits, model(input_ids=tokens).logits)
    assert not back.training and back.config.described().config.schedule == lm.config.schedule


def test_a_tokenizer_of_another_model_is_refused(folder, tmp_path):
    model = AutoModelForMaskedLM.from_pretrained(folder)
    random_lm(bytes_tokenizer()).save_pretrained(tmp_path / "other")
    for wrong in (AutoTokenizer.from_pretrained(tmp_path / "other"), bytes_tokenizer()):
        with pytest.raises(UserError, match="give the tokenizer that"):
            model.unmask_lm(wrong)
    with pytest.raises(UserError, match="fast one"):
        model.unmask_lm(types.SimpleNamespace())


def test_published_models_with_the_tokenizer_of_gpt2():
    own = json.loads(bytes_tokenizer()._backend.to_str())
    own["added_tokens"] = [{**own["added_tokens"][0], "content": "<|endoftext|>"}]
    theirs = PreTrainedTokenizerFast(tokenizer_object=Backend.from_str(json.dumps(own)), eos_token="<|endoftext|>")
    model = MDLM(MDLMConfig(vocab_size=258, hidden_dim=16, n_blocks=1, n_heads=2, cond_dim=8, model_length=32)).eval()
    with pytest.raises(UserError, match="257 tokens and mask token None"):
        model.unmask_lm(theirs)
    theirs.add_special_tokens({"mask_token": "[MASK]"})
    lm = model.unmask_lm(theirs)
    assert lm.tokenizer.vocab == Vocab(258, mask=257, eos=256) and lm.config.schedule.name == "log-linear"
    assert len(lm.sample(1, length=8, seed=0)) == 1
    nats = lm.score("a text", draws=64)  # of a network that knows nothing yet, 257 tokens are alike
    assert nats.nats_per_token == pytest.approx(math.log(257), abs=5 * nats.stderr_nats + 1e-6)


def test_the_published_size():
    with torch.device("meta"):
        model = MDLM(MDLMConfig(cond_dim=128))
    assert sum(p.numel() for p in model.parameters()) == 169_627_218 and len(model.state_dict()) == 131
    assert model.config.mask_token_id == 50257


def test_other_methods_have_no_class(tmp_path):
    lm = make_lm("model.method=sedd")
    with pytest.raises(UserError, match="method mdlm"):
        MDLM.from_lm(lm)
    with pytest.raises(UserError, match="method mdlm"):
        AutoModelForMaskedLM.from_pretrained(lm.save_pretrained(tmp_path / "sedd"))


def test_the_modern_network_is_a_model_too(tmp_path):
    """Our own folder, strictly; the logits, the round trip and the bridge back are those of the network."""
    config = with_overrides(
        "tiny", ["data.tokenizer=bytes", "model.hidden_dim=32", "model.n_blocks=2", "data.length=16"]
    )
    tokenizer = bytes_tokenizer()
    torch.manual_seed(0)
    lm = LM(registry.model(config, tokenizer.vocab), tokenizer, config)
    for parameter in lm.model.parameters():
        torch.nn.init.normal_(parameter, std=0.3)
    loaded = AutoModelForMaskedLM.from_pretrained(lm.save_pretrained(tmp_path / "ours"))
    assert isinstance(loaded, UnmaskForMaskedLM) and isinstance(MDLM.from_lm(lm), UnmaskForMaskedLM)
    ids = torch.tensor([[5, tokenizer.vocab.mask, 7, 8]])
    with torch.no_grad():
        expected = lm.model.backbone.head(lm.model.hidden(ids, torch.zeros(1, dtype=torch.float64)))
        expected[..., tokenizer.vocab.mask] = -torch.inf
        assert torch.allclose(loaded(ids).logits, expected, atol=1e-5)
        half = AutoModelForMaskedLM.from_pretrained(tmp_path / "ours", dtype=torch.bfloat16)
        assert torch.allclose(half(ids).logits.float(), expected, atol=1.0)
    loaded.save_pretrained(tmp_path / "theirs")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "theirs").unmask_lm(tokenizer)
    assert again.config.model == lm.config.model and again.score("abc", seed=0).nats == lm.score("abc", seed=0).nats
    assert loaded.get_output_embeddings() is None


@pytest.mark.parametrize("network", ["dit", "modern"])
def test_a_block_model_is_a_masked_lm_of_whole_rows(network, tmp_path):
    """Trained on whole rows among others: in transformers it is what it is as a single block."""
    small = [f"model.network={network}", "model.method=block", "model.hidden_dim=32", "data.length=16", "block.size=4"]
    config = with_overrides("tiny", [*small, "block.mixture={1: 1, full: 3}"])
    tokenizer = bytes_tokenizer()
    lm = LM(random_model(config, tokenizer.vocab), tokenizer, config)
    loaded = AutoModelForMaskedLM.from_pretrained(lm.save_pretrained(tmp_path / "ours")).eval()
    assert isinstance(loaded, UnmaskForMaskedLM)
    ids, mask = rows_of(lm), lm.tokenizer.vocab.mask
    ids[:, ::2] = mask
    with torch.no_grad():
        expected = lm.model.backbone.head(lm.model.in_blocks(None).hidden(ids, torch.ones(len(ids)), clean=rows_of(lm)))
        expected[..., mask] = -torch.inf
        torch.testing.assert_close(loaded(ids).logits, expected, rtol=1e-5, atol=1e-5)
    loaded.save_pretrained(tmp_path / "theirs")
    again = AutoModelForMaskedLM.from_pretrained(tmp_path / "theirs").unmask_lm(lm.tokenizer)
    assert again.config.block == lm.config.block and again.model.block_size == 4
    assert again.score(TEXT, seed=0).nats == pytest.approx(lm.score(TEXT, seed=0).nats, rel=1e-5)
    other = LM(lm.model, tokenizer, with_overrides("tiny", small))
    with pytest.raises(UserError, match=r"if whole rows are among its block sizes.*this model is block"):
        MDLM.from_lm(other)


def test_labelled_models(tmp_path):
    config = tiny_config("data.layout=pad", "data.label=kind")
    tokenizer = bytes_tokenizer()
    torch.manual_seed(0)
    network = registry.model(config, tokenizer.vocab, 2)
    for parameter in network.parameters():
        torch.nn.init.normal_(parameter, std=0.2)
    lm = LM(network.eval(), tokenizer, config, labels=["a", "b"])
    model = AutoModelForMaskedLM.from_pretrained(lm.save_pretrained(tmp_path / "m")).eval()
    tokens, kinds = rows_of(lm), torch.tensor([0, 1, -1])
    net = lm.model.backbone
    want = net.head(net(tokens, condition=net.condition(torch.zeros(3), kinds))[0])[..., 0]
    torch.testing.assert_close(model(input_ids=tokens, classes=kinds).logits[..., 0], want)
    assert model.unmask_lm(tokenizer).labels == ["a", "b"]


# -- what must not pass silently ---------------------------------------------------------------------------------------


def damaged(folder: Path, tmp_path: Path, change) -> Path:
    out = tmp_path / "damaged"
    out.mkdir()
    for file in folder.iterdir():
        (out / file.name).write_bytes(file.read_bytes())
    tensors = load_file(out / "model.safetensors")
    change(tensors)
    save_file(tensors, out / "model.safetensors", metadata={"format": "pt"})
    return out


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (
            lambda t: t.pop("backbone.blocks.1.attn_out.weight"),
            r"lacks 1 tensor\(s\): backbone.blocks.1.attn_out.weight",
        ),
        (lambda t: t.update(extra=torch.zeros(2)), r"has unknown 1 tensor\(s\): extra"),
        (
            lambda t: t.update({"backbone.blocks.0.norm1.weight": torch.zeros(3)}),
            r"backbone.blocks.0.norm1.weight has shape \(3,\), the model wants \(16,\)",
        ),
        (lambda t: t["backbone.rotary_emb.inv_freq"].mul_(2), "a rotary base other"),
        (lambda t: t["backbone.rotary_emb.inv_freq"].pow_(1.001), "a rotary base other"),
    ],
)
def test_weights_that_do_not_fit(folder, tmp_path, change, says):
    path = damaged(folder, tmp_path, change)
    for how in ({}, {"ignore_mismatched_sizes": True}):
        with pytest.raises(UserError, match=says):
            AutoModelForMaskedLM.from_pretrained(path, **how)


def test_inv_freq_may_be_absent(lm, folder, tmp_path):
    path = damaged(folder, tmp_path, lambda t: t.pop("backbone.rotary_emb.inv_freq"))
    model, info = AutoModelForMaskedLM.from_pretrained(path, output_loading_info=True)
    assert not info["unexpected_keys"]
    torch.testing.assert_close(model.backbone.rotary_emb.inv_freq, 10000 ** (-torch.arange(4) / 4.0))
    assert model.unmask_lm(lm.tokenizer).score(TEXT).nats == pytest.approx(lm.score(TEXT).nats, rel=1e-5)


def test_a_config_that_is_wrong_is_one_sentence():
    with pytest.raises(UserError, match="n_heads"):
        MDLM(MDLMConfig(vocab_size=11, hidden_dim=16, n_heads=3, n_blocks=1))
    with pytest.raises(UserError, match="outside a vocabulary"):
        MDLM(MDLMConfig(vocab_size=11, mask_token_id=11, hidden_dim=16, n_heads=2, n_blocks=1))
