"""Published models on a Llama or Qwen trunk: folders of each family's exact names, and every way to spoil them.

What a loaded model computes is compared with transformers' network under the mask and the shift of the family.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

import unmask
from support.fake_hub import FakeHub
from support.families import CAUSAL, EOS, LLAMA3, MASK, ROWS, SHIFTED, byte_tokenizer, reference, tensors_of, write
from support.helpers import refused, run
from unmask.data.tokenization import read_tokenizer
from unmask.hub import layout
from unmask.lm import LM
from unmask.networks.foreign import families
from unmask.types import UserError

transformers = pytest.importorskip("transformers")
LOADED = ["llama", "llama3", "mistral", "qwen2", "qwen3", "llada", "Dream", "a2d-qwen3"]
IDS = torch.tensor([[70, 71, MASK, 40, MASK, MASK, 101, 32, 99], [5, MASK, 7, 8, 200, MASK, MASK, 3, 90]])


@torch.no_grad()
def truth(family: str, ids: Tensor = IDS) -> Tensor:
    """Logits of transformers' network: causal, or with a mask that hides nothing, and shifted where the family is."""
    net = reference(family)
    if family in CAUSAL:
        return net(ids).logits
    logits = net(ids, attention_mask=torch.zeros(len(ids), 1, ids.shape[1], ids.shape[1])).logits
    return torch.cat((logits[:, :1], logits[:, :-1]), dim=1) if family in SHIFTED else logits


@torch.no_grad()
def said(lm: LM, ids: Tensor = IDS) -> Tensor:
    net = lm.model.backbone
    return net.head(net(ids)[0])


def agrees(lm: LM, family: str) -> None:
    """Without the rows beyond the vocabulary, and without the [MASK] that a causal model got here."""
    real = 258 if family in CAUSAL else 259
    expected = truth(family)[..., :real]
    assert expected.std() > 0.3
    torch.testing.assert_close(said(lm)[..., :real], expected, rtol=1e-5, atol=1e-5)


# -- every family ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("shards", [0, 3])
@pytest.mark.parametrize("family", LOADED)
def test_a_folder_is_the_network_of_transformers(family, shards, tmp_path):
    folder = write(tmp_path / "m", family, shards=shards)
    lm = unmask.load(folder)
    assert (lm.config.model.method, lm.config.model.network) == ("ar" if family in CAUSAL else "mdlm", "llama")
    assert lm.config.model.prediction == ("shifted" if family in SHIFTED else "same")
    assert (lm.length, lm.tokenizer.vocab.mask, lm.tokenizer.vocab.eos) == (64, MASK, EOS)
    agrees(lm, family)
    assert not (folder / "RAN").exists()


@pytest.mark.parametrize("family", ["llada", "Dream", "a2d-qwen3"])
def test_the_mask_is_never_written_and_texts_are_scored(family, tmp_path):
    lm = unmask.load(write(tmp_path / "m", family))
    assert said(lm)[..., MASK].abs().max() > 0  # a logit as any other, which the method takes out
    texts = lm.sample(4, length=12, seed=0)
    assert len(texts) == 4 and not any("<|mask|>" in text for text in texts)
    assert lm.infill("a {{2}} b")[0].startswith("a ")
    assert lm.score("some text").nats > 0


def test_by_name_from_the_hub_and_on_the_command_line(there: FakeHub, tmp_path):
    write(tmp_path / "repositories" / "GSAI-ML" / "LLaDA-8B-Instruct", "llada", shards=2)
    agrees(unmask.load("GSAI-ML/LLaDA-8B-Instruct"), "llada")
    ran = run("sample", "GSAI-ML/LLaDA-8B-Instruct", "--length", "8", "--seed", "0", "--json")
    assert ran.code == 0 and json.loads(ran.out)


def test_the_record_of_a_family_says_three_things():
    """Where a token is predicted, which columns see which, and the id of [MASK]."""
    facts = {(f.model_type, f.name): (f.topology, f.prediction, f.mask) for f in families.FAMILIES}
    assert facts["llada", ""] == ("bidirectional", "same", 126336)
    assert facts["Dream", ""] == ("bidirectional", "shifted", 151666)
    assert facts["sdar", ""] == ("block_causal", "same", 151669)
    assert facts["Fast_dLLM_Qwen", ""] == ("block_causal", "shifted", 151665)
    assert facts["a2d-qwen3", ""][:2] == ("bidirectional", "same")
    assert facts["a2d-qwen3", "bd3lm"][:2] == ("block_causal", "same")
    assert {facts[kind, ""][0] for kind in ("llama", "mistral", "qwen2", "qwen3")} == {"causal"}


# -- files -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("dtype", [torch.bfloat16, torch.float16])
def test_weights_keep_their_type_and_the_file_its_bytes(dtype, tmp_path):
    folder = write(tmp_path / "m", "llada", dtype=dtype)
    before = (folder / "model.safetensors").read_bytes()
    lm = unmask.load(folder)
    assert {p.dtype for p in lm.model.parameters()} == {dtype} and all(p.requires_grad for p in lm.model.parameters())
    expected = truth("llada")[..., :259]
    assert (said(lm).float() - expected).square().mean().sqrt() < 0.05 * expected.std()
    assert lm.sample(1, length=8, seed=0)
    with torch.no_grad():
        for parameter in lm.model.parameters():
            parameter.add_(1)
    assert (folder / "model.safetensors").read_bytes() == before


def test_types_are_mixed_in_a_file_and_one_in_the_model(tmp_path):
    tensors = {name: t if "norm" in name else t.bfloat16() for name, t in tensors_of("llama").items()}
    folder = write(tmp_path / "m", "llama")
    save_file(tensors, folder / "model.safetensors")
    assert {p.dtype for p in unmask.load(folder).model.parameters()} == {torch.bfloat16}


def test_frequencies_in_old_files_must_be_those_of_the_config(tmp_path):
    right = 1.0 / (1e5 ** (torch.arange(0, 6, 2).float() / 6))
    for n, (theta, fits) in enumerate([(right, True), (right.bfloat16().float(), True), (1 / right, False)]):
        name = "model.layers.1.self_attn.rotary_emb.inv_freq"
        folder = write(tmp_path / str(n), "llama", tensors=tensors_of("llama") | {name: theta})
        if fits:
            agrees(unmask.load(folder), "llama")
            continue
        with pytest.raises(UserError, match="inv_freq does not agree with its config"):
            unmask.load(folder)


def test_a_tied_head_may_be_there_twice_if_it_is_the_same(tmp_path):
    tensors = tensors_of("a2d-qwen3")
    table = tensors["model.embed_tokens.weight"]
    agrees(
        unmask.load(write(tmp_path / "a", "a2d-qwen3", tensors=tensors | {"lm_head.weight": table.clone()})),
        "a2d-qwen3",
    )
    with pytest.raises(UserError, match="its head is not its embedding, to which it is tied"):
        unmask.load(write(tmp_path / "b", "a2d-qwen3", tensors=tensors | {"lm_head.weight": table + 1}))


def test_a_shard_that_is_missing_or_cut_is_named(tmp_path):
    folder = write(tmp_path / "m", "llada", shards=3)
    shard = folder / "model-00002-of-00003.safetensors"
    content = shard.read_bytes()
    shard.write_bytes(content[: len(content) // 2])
    with pytest.raises(UserError, match=rf"{shard.name} is damaged"):
        unmask.load(folder)
    shard.unlink()
    with pytest.raises(UserError, match=rf"{shard.name} is missing"):
        unmask.load(folder)


@pytest.mark.parametrize(
    ("change", "words"),
    [({"mask_token_id": 97}, "ordinary token"), ({"num_experts": 8}, "mixture of experts"), ({"shards": 2}, "missing")],
)
def test_on_the_command_line_it_is_one_sentence_and_exit_code_2(change, words, tmp_path):
    folder = write(tmp_path / "m", "llada", **change)
    if "shards" in change:
        (folder / "model-00002-of-00002.safetensors").unlink()
    for command in (["sample"], ["score"], ["chat", "--template", "plain"], ["serve", "--port", "0"]):
        name, *options = command
        assert words in refused(name, str(folder), *(["text"] if name == "score" else []), *options)


def test_the_context_of_a_chat_is_chosen_on_the_command_line(tmp_path):
    folder = str(write(tmp_path / "m", "llada"))
    chat = ["chat", folder, "--template", "plain"]
    for command in (chat, ["serve", folder, "--port", "0"]):
        assert "length=65 is longer than the 64 tokens" in refused(*command, "--context", "65")
    assert "reads and writes 48 tokens" in refused(*chat, "--context", "48", "--max-tokens", "40")


@pytest.mark.parametrize(
    ("edit", "sentence"),
    [
        (
            lambda t: {k: v for k, v in t.items() if "blocks.1.up_proj" not in k},
            r"lacks 1 tensor\(s\): .*blocks.1.mlp.up_",
        ),
        (lambda t: t | {"model.transformer.wpe.weight": torch.zeros(2)}, r"has unknown 1 tensor\(s\): .*wpe.weight"),
        (lambda t: t | {"model.transformer.ln_f.weight": torch.zeros(9)}, r"norm.weight has shape \(9,\)"),
    ],
)
def test_tensors_are_all_accounted_for(edit, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence):
        unmask.load(write(tmp_path / "m", "llada", tensors=edit(tensors_of("llada"))))


# -- config.json -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("family", "change", "sentence"),
    [
        ("llada", {"activation_type": "swiglu"}, 'activation_type "swiglu", but unmask reads such networks only with'),
        ("llada", {"alibi": True}, "has alibi true"),
        ("llada", {"block_type": "sequential"}, "block_type"),
        ("llada", {"scale_logits": True}, "scale_logits true"),
        ("llada", {"include_qkv_bias": True}, "include_qkv_bias true"),
        ("llada", {"d_model": ...}, "does not have d_model"),
        ("llada", {"mlp_hidden_size": None}, "does not have mlp_hidden_size"),
        ("llada", {"n_heads": 5}, "must be a multiple of n_heads=5"),
        ("llada", {"n_layers": 3}, "lacks 9 tensor"),
        ("llada", {"sliding": 4}, "has sliding 4, which unmask does not know"),
        ("llama", {"hidden_act": "gelu"}, 'hidden_act "gelu"'),
        ("llama", {"attention_bias": True}, "attention_bias true"),
        (
            "llama",
            {"rope_scaling": {"rope_type": "llama3", "factor": 8.0}},
            "rope_scaling, does not have low_freq_factor",
        ),
        ("llama3", {"rope_scaling": LLAMA3 | {"low_freq_factor": 4.0}}, "low must be below high"),
        ("mistral", {"sliding_window": 4096}, "sliding_window 4096"),
        ("mistral", {"sliding_window": ...}, "sliding_window 4096"),  # as transformers reads it
        ("llama", {"rope_parameters": {"rope_type": "yarn", "rope_theta": 1e4}}, 'rope_parameters.rope_type "yarn"'),
        ("llama", {"rope_scaling": {"type": "default", "factor": 2.0}}, "rope_scaling.factor 2.0"),
        ("qwen2", {"use_sliding_window": True}, "use_sliding_window true"),
        ("qwen2", {"layer_types": ["full_attention", "sliding_attention"]}, "layer_types other than"),
        ("Dream", {"block_size": 32}, "has block_size 32, which unmask does not know"),
        ("Dream", {"use_mrope": True}, "use_mrope true"),
        ("qwen3", {"quantization_config": {"bits": 4}}, "has quantization_config"),
        ("llada", {"num_experts": 64, "num_experts_per_tok": 8}, r"a mixture of experts \(llada\).*give a dense model"),
        ("qwen3", {"model_type": "qwen3_moe"}, r"a mixture of experts \(qwen3_moe\)"),
        ("qwen3", {"model_type": "llada2_moe"}, r"a mixture of experts \(llada2_moe\)"),
        ("qwen3", {"model_type": "sdar_moe"}, r"a mixture of experts \(sdar_moe\)"),
        ("llada", {"mask_token_id": 300}, "mask_token_id 300, which is outside a vocabulary of 264 tokens"),
        ("llada", {"mask_token_id": 97}, "token 97, which is 'a' in its tokenizer 'm': an ordinary token"),
        ("llada", {"mask_token_id": 262}, r"\[MASK\] is token 262, and its tokenizer 'm' has only 259 tokens"),
        ("llada", {"mask_token_id": "x"}, "has mask_token_id 'x', which is not a number"),
        (
            "llada",
            {"mask_token_id": 257},
            r"is token 258 \(<\|mask\|>\) of the tokenizer 'm' and token 257 \(<\|im_end",
        ),
        ("llada", {"mask_token_id": EOS, "mask": "<|other|>"}, "is its eos token as well; mend mask_token_id"),
        ("llada", {"model_type": "nemotron"}, "unmask reads .*'llada', 'Dream', 'sdar', 'Fast_dLLM_Qwen', 'a2d-llama'"),
    ],
)
def test_what_would_change_the_computation_is_named(family, change, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence) as error:
        unmask.load(write(tmp_path / "m", family, **change))
    assert "\n" not in str(error.value)


def test_a_tokenizer_that_names_another_mask(tmp_path):
    folder = write(tmp_path / "m", "llada", tokenizer={"mask_token": "<|im_end|>"})
    with pytest.raises(
        UserError,
        match=r"\[MASK\] is token 257 \(<\|im_end\|>\) of the tokenizer 'm' and token 258 \(<\|mask\|>\) of the",
    ):
        unmask.load(folder)
    other = write(tmp_path / "other", "llada", mask=None)
    with pytest.raises(UserError, match=r"\[MASK\] is token 258, and its tokenizer 'other' has only 258 tokens"):
        unmask.load(other)


def test_a_mask_that_only_the_settings_of_the_tokenizer_have(tmp_path):
    folder = write(
        tmp_path / "m", "llada", mask=None, tokenizer={"added_tokens_decoder": {"258": {"content": "<|mdm|>"}}}
    )
    lm = unmask.load(folder)
    assert lm.tokenizer.piece(MASK) == "<|mdm|>" and lm.tokenizer.encode("<|mdm|>")[0] != MASK
    agrees(lm, "llada")


def test_ids_where_there_are_several_and_theta_in_any_place(tmp_path):
    rope = {"rope_theta": 1e5, "rope_type": "default"}
    folder = write(tmp_path / "m", "llama", eos_token_id=[EOS, 257], rope_theta=..., rope_parameters=rope)
    agrees(unmask.load(folder), "llama")
    with pytest.raises(AssertionError):  # 10000 where none is said
        agrees(unmask.load(write(tmp_path / "n", "llama", rope_theta=...)), "llama")


def test_rows_have_the_length_that_is_asked_for(tmp_path):
    folder = write(tmp_path / "m", "llada")
    assert unmask.load(folder, length=32).length == 32
    with pytest.raises(UserError, match="length=65 is longer than the 64 tokens"):
        unmask.load(folder, length=65)


# -- causal models ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("family", CAUSAL)
def test_a_causal_model_writes_what_transformers_writes_and_goes_back(family, tmp_path):
    lm = unmask.load(write(tmp_path / "m", family))
    theirs = reference(family)
    prompt = torch.tensor([lm.encode("ab c")])
    with torch.no_grad():
        best = theirs.generate(
            prompt, do_sample=False, max_length=20, eos_token_id=None, suppress_tokens=[*range(258, ROWS)]
        )
    wrote = lm.write([lm.prompt_canvas("ab c", 20)], temperature=0.0, seed=0)[0]
    assert wrote.ids == best[0].tolist()
    lm.save_pretrained(tmp_path / "saved")
    again, info = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "saved", output_loading_info=True)
    assert not info["missing_keys"] and not info["unexpected_keys"]
    with torch.no_grad():
        torch.testing.assert_close(again(IDS).logits, truth(family))
    agrees(unmask.load(tmp_path / "saved"), family)
    tree = json.loads((tmp_path / "saved" / "config.json").read_text())
    assert tree["model_type"] == {"llama3": "llama", "mistral": "llama"}.get(family, family)
    (tmp_path / "saved" / "config.json").write_text(json.dumps(tree | {"hidden_size": 32}))
    (tmp_path / "saved" / "manifest.json").unlink()
    with pytest.raises(UserError, match="contradicts itself: hidden_size is 32"):
        unmask.load(tmp_path / "saved")


def test_a_tokenizer_that_begins_texts_with_bos(tmp_path):
    """Then rows begin with it, all tokens of a text are scored, and a text needs no prompt."""
    from tokenizers import processors

    folder = write(tmp_path / "m", "llama")
    backend = byte_tokenizer(None)
    first = processors.TemplateProcessing("<|endoftext|> $A", None, [("<|endoftext|>", EOS)])
    backend.post_processor = first
    backend.save(str(folder / "tokenizer.json"))
    lm = unmask.load(folder)
    assert lm.config.data.block_ends
    text = "abc"
    ids = torch.tensor([[EOS, *lm.encode(text)]])
    log_p = truth("llama", ids)[0, :-1, :258].log_softmax(-1)
    nats = -log_p.gather(1, ids[0, 1:, None]).sum()
    assert lm.score(text).nats == pytest.approx(float(nats), rel=1e-4)
    assert lm.sample(1, length=6, seed=0)
    plain = unmask.load(write(tmp_path / "n", "llama"))
    assert not plain.config.data.block_ends and plain.score(text).tokens == 2
    score = plain.score("äbc")  # of its four bytes the first is given, half a letter, which goes with the other half
    assert (score.tokens, score.bytes) == (3, 4) and plain.score("abc").bytes == 2


@pytest.mark.parametrize("family", ["llada", "Dream"])
def test_a_diffusion_model_is_saved_as_ours(family, tmp_path):
    """transformers would run it as a causal one, so it has no name there."""
    lm = unmask.load(write(tmp_path / "m", family, dtype=torch.bfloat16))
    lm.save_pretrained(tmp_path / "saved", dtype="bfloat16")
    assert json.loads((tmp_path / "saved" / "config.json").read_text())["model_type"] == "unmask"
    again = unmask.load(tmp_path / "saved")
    assert torch.equal(said(again), said(lm)) and again.config.model == lm.config.model


# -- a tokenizer in parts --------------------------------------------------------------------------------------------


def test_vocab_and_merges_are_the_tokenizer_of_transformers(tmp_path):
    vocabulary = {piece: i for piece, i in byte_tokenizer(None).get_vocab().items() if len(piece) == 1}
    merges = [("Ġ", "t"), ("h", "e"), ("Ġt", "he"), ("1", "2"), ("!", "!")]
    for a, b in merges:
        vocabulary[a + b] = len(vocabulary)
    (tmp_path / "vocab.json").write_text(json.dumps(vocabulary))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n" + "".join(f"{a} {b}\n" for a, b in merges))
    settings = {"tokenizer_class": "DreamTokenizer", "eos_token": "<|endoftext|>", "mask_token": "<|mask|>"}
    (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings))
    ours = read_tokenizer(tmp_path)
    theirs = transformers.Qwen2Tokenizer(vocab=vocabulary, merges=merges)
    for text in ("In the 1212 theatre!!\n\n  the e\u0301tude", "it's THE'S", "\t tabs\r\nand 12 !!"):
        assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"]
    (tmp_path / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "CodeGenTokenizer"}))
    with pytest.raises(UserError, match="the tokenizer class CodeGenTokenizer, which unmask does not know"):
        read_tokenizer(tmp_path)


def test_a_folder_with_its_tokenizer_in_parts_loads(tmp_path):
    folder = write(tmp_path / "m", "Dream")
    vocabulary = {piece: i for piece, i in byte_tokenizer(None).get_vocab().items() if i < 256}
    (folder / "tokenizer.json").unlink()
    (folder / "vocab.json").write_text(json.dumps(vocabulary))
    (folder / "merges.txt").write_text("")
    special = ["<|endoftext|>", "<|im_end|>", "<|mask|>"]
    added = {str(256 + i): {"content": token} for i, token in enumerate(special)}
    names = {"tokenizer_class": "DreamTokenizer", "added_tokens_decoder": added, "eos_token": "<|endoftext|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(names))
    lm = unmask.load(folder)
    agrees(lm, "Dream")
    assert (lm.tokenizer.vocab.mask, lm.tokenizer.vocab.eos) == (MASK, EOS)


# -- memory ----------------------------------------------------------------------------------------------------------

MEASURE = """
import re, sys, torch, unmask
small = unmask.load(sys.argv[1])
small.model.backbone(torch.zeros(1, 4, dtype=torch.int64))
def peak(): return 1024 * int(re.search(r"VmHWM:\\s+(\\d+)", open("/proc/self/status").read())[1])
before = peak()
lm = unmask.load(sys.argv[2])
with torch.no_grad():
    lm.model.backbone.head(lm.model.backbone(torch.zeros(1, 4, dtype=torch.int64))[0])
weights = sum(p.numel() * p.element_size() for p in lm.model.parameters())
print((peak() - before) / weights, weights)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="the peak of a process is read from /proc")
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_loading_takes_little_more_memory_than_the_weights(dtype, tmp_path):
    """Half a gigabyte in three shards, every weight used once: no second copy of them is made.

    (getrusage would show the peak of the process that started this one.)
    """
    small = write(tmp_path / "small", "llada")
    big = shutil.copytree(small, tmp_path / "big")
    (big / "model.safetensors").unlink()
    sizes = {"d_model": 1024, "n_heads": 8, "n_kv_heads": 8, "mlp_hidden_size": 4096}
    blocks = {"float32": 8, "bfloat16": 16}[dtype]
    tree = json.loads((big / "config.json").read_text()) | sizes | {"n_layers": blocks}
    (big / "config.json").write_text(json.dumps(tree))
    described = layout.read_folder(big)
    with torch.device("meta"):
        from unmask.models import registry

        names = registry.model(described.config, unmask.load(small).tokenizer.vocab).state_dict()
    back = {ours: theirs for theirs, ours in families.LLADA.items()}
    shapes = {families.renamed(name.removeprefix("backbone."), back): t.shape for name, t in names.items()}
    places: dict[str, str] = {}
    for shard in range(3):
        part = {
            name: torch.full(shape, 0.01, dtype=getattr(torch, dtype)) for name, shape in list(shapes.items())[shard::3]
        }
        save_file(part, big / f"model-{shard}.safetensors")
        places |= dict.fromkeys(part, f"model-{shard}.safetensors")
    (big / "model.safetensors.index.json").write_text(json.dumps({"weight_map": places}))
    ran = subprocess.run(
        [sys.executable, "-c", MEASURE, str(small), str(big)], capture_output=True, text=True, check=True
    )
    share, weights = (float(word) for word in ran.stdout.split())
    assert weights > 4e8 and 0.9 < share < 1.15, (share, weights)
