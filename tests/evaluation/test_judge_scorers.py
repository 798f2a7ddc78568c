"""Networks as judges against independent truth: `transformers`, one token at a time."""

from __future__ import annotations

import itertools
import json
import math
import re
import struct
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from hypothesis import given
from hypothesis import strategies as st

import unmask
from support.families import tensors_of
from support.families import write as write_family
from support.paths import DATA
from unmask.data.tokenization import bytes_tokenizer
from unmask.evaluation.judge import Scorer, open_scorer
from unmask.evaluation.judge.formats.llama2c import HEADER, Llama2cScorer, SentencePieces, read_model
from unmask.evaluation.judge.scorers import windows
from unmask.types import UserError

STORIES = DATA / "weights" / "stories260K"
TEXT = DATA / "text" / "tinystories"
TEXTS = ["", "a", "the cat sat on the mat", "ünïcode ☃", "abc " * 40, "x" * 75, "one more", "and the last"]

# -- windows ---------------------------------------------------------------------------------------------------------


@given(st.integers(0, 60), st.integers(2, 12))
def test_windows_score_every_token_once_with_half_a_context_before_it(length, context):
    scored = []
    for window in windows(length, context):
        assert 0 <= window.start < window.first < window.stop <= length
        assert window.stop - window.start <= context
        assert window.start == 0 or window.first - window.start >= context // 2
        scored += range(window.first, window.stop)
    assert scored == list(range(1, length))


# -- transformers ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def gpt2(tmp_path_factory):
    """A random GPT-2 of 16 positions that reads bytes."""
    transformers = pytest.importorskip("transformers")
    folder = tmp_path_factory.mktemp("gpt2")
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=259, n_positions=16, n_embd=16, n_layer=2, n_head=2, initializer_range=0.5
    )
    transformers.GPT2LMHeadModel(config).save_pretrained(folder)
    bytes_tokenizer().save(folder)
    return folder


def without_bos(folder: Path, to: Path) -> Path:
    """A copy whose tokenizer has no BOS."""
    for file in folder.iterdir():
        (to / file.name).write_bytes(file.read_bytes())
    (to / "tokenizer_config.json").write_text(json.dumps({"tokenizer_class": "PreTrainedTokenizerFast"}))
    return to


def slow_nats(model, ids: list[int], context: int) -> float:
    """One network call a token, with the context that the protocol promises."""
    total, step = 0.0, context // 2
    for j in range(1, len(ids)):
        start = 0 if j < context else step * ((j - context) // step + 1)
        logits = model(torch.tensor([ids[start:j]])).logits[0, -1]
        total += float(F.cross_entropy(logits, torch.tensor(ids[j])))
    return total


@torch.no_grad()
def test_a_causal_model_scores_every_token_of_every_text_once(gpt2):
    scorer = open_scorer(str(gpt2))
    assert isinstance(scorer, Scorer)
    found = scorer.nats(TEXTS)
    for text, scored in zip(TEXTS, found, strict=True):
        ids = [256, *text.encode()]  # [EOS] is also BOS
        assert scored.tokens == len(text.encode())  # none cut off, although the model reads 16 at once
        assert scored.nats == pytest.approx(slow_nats(scorer.model, ids, 16), rel=1e-4)
    assert scorer.describe()["first_token"] == "scored after BOS"
    assert scorer.describe()["context"] == 16


@pytest.mark.parametrize("size", [1, 3, 5, 100])
def test_no_batch_is_left_out_and_its_size_changes_nothing(gpt2, size):
    scorer = open_scorer(f"hf:{gpt2}")
    usual = scorer.nats(TEXTS)
    scorer.batch_size = size
    for one, other in zip(scorer.nats(TEXTS), usual, strict=True):
        assert one.tokens == other.tokens
        assert one.nats == pytest.approx(other.nats, rel=1e-5)


@torch.no_grad()
def test_without_bos_the_first_token_is_context_only(gpt2, tmp_path):
    scorer = open_scorer(str(without_bos(gpt2, tmp_path)))
    scored = scorer.nats(["abcd", "a", ""])
    assert [one.tokens for one in scored] == [3, 0, 0]
    assert scored[0].nats == pytest.approx(slow_nats(scorer.model, list(b"abcd"), 16), rel=1e-4)
    assert "no BOS" in scorer.describe()["first_token"]


@torch.no_grad()
def test_features_are_mean_hidden_states_of_the_first_window(gpt2):
    scorer = open_scorer(str(gpt2))
    features = scorer.features(TEXTS)
    assert features.shape == (len(TEXTS), 16)
    for text, row in zip(TEXTS, features, strict=True):
        ids = [256, *text.encode()][:16]
        hidden = scorer.model.transformer(torch.tensor([ids])).last_hidden_state[0, 1:]
        np.testing.assert_allclose(row, hidden.mean(0) if text else np.zeros(16), atol=1e-5)


def test_a_network_that_sees_the_future_is_refused(tmp_path):
    transformers = pytest.importorskip("transformers")
    config = transformers.BertConfig(
        vocab_size=259,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        initializer_range=0.5,
    )
    transformers.BertLMHeadModel(config).save_pretrained(tmp_path)
    bytes_tokenizer().save(tmp_path)
    with pytest.raises(UserError, match=r"sees later tokens.*give a causal"):
        open_scorer(str(tmp_path))


def test_missing_weights_never_stay_random(gpt2, tmp_path):
    from safetensors.torch import load_file, save_file

    for file in gpt2.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    weights = load_file(tmp_path / "model.safetensors")
    del weights["transformer.h.1.mlp.c_fc.weight"]
    save_file(weights, tmp_path / "model.safetensors", metadata={"format": "pt"})
    with pytest.raises(UserError, match=r"lacks weights \(transformer.h.1.mlp.c_fc.weight"):
        open_scorer(str(tmp_path))


def test_pickled_weights_are_not_read(gpt2, tmp_path):
    for file in gpt2.iterdir():
        if file.name != "model.safetensors":
            (tmp_path / file.name).write_bytes(file.read_bytes())
    torch.save({}, tmp_path / "pytorch_model.bin")
    with pytest.raises(UserError, match=r"cannot be loaded as a causal language model.*safetensors"):
        open_scorer(str(tmp_path))


# -- llama2.c --------------------------------------------------------------------------------------------------------

SHAPE = (16, 24, 2, 4, 2)  # dim, hidden, layers, heads, key and value heads


def write_model(folder: Path, shared: bool, length: int = 12) -> Path:
    """A random model of 270 tokens in the file format, and its tokenizer: bytes, a few characters and merges."""
    d, h, n, heads, kv = SHAPE
    pieces = [b"<unk>", b"\n<s>\n", b"\n</s>\n", *(b"<0x%02X>" % byte for byte in range(256))]
    pieces += [b" ", b"a", b"b", b"c", b"t", b"h", b"e", b"th", b"the", b" the", b"ab"]
    scores = [0.0] * 266 + [-1.0, -2.0, -3.0, -3.0]
    rng = np.random.default_rng(1)
    size, half = len(pieces), d // heads // 2
    counts = [
        size * d,
        n * d,
        n * d * d,
        2 * n * kv * 2 * half * d,
        n * d * d,
        n * d,
        3 * n * h * d,
        d,
        2 * length * half,
    ]
    weights = [rng.standard_normal(count) * 0.4 for count in counts] + (
        [] if shared else [rng.standard_normal(size * d)]
    )
    header = HEADER.pack(*SHAPE, size if shared else -size, length)
    (folder / "model.bin").write_bytes(header + np.concatenate(weights).astype("<f4").tobytes())
    tokens = b"".join(struct.pack("<fi", s, len(p)) + p for s, p in zip(scores, pieces, strict=True))
    (folder / f"tok{size}.bin").write_bytes(struct.pack("<i", 8) + tokens)
    return folder


def as_transformers(path: Path):
    """The same weights in LlamaForCausalLM, which turns halves of a head where llama2.c turns neighbours."""
    transformers = pytest.importorskip("transformers")
    shape, w = read_model(path)
    config = transformers.LlamaConfig(
        vocab_size=shape.vocab_size,
        hidden_size=shape.dim,
        intermediate_size=shape.hidden_dim,
        rms_norm_eps=1e-5,
        num_hidden_layers=shape.n_layers,
        num_attention_heads=shape.n_heads,
        num_key_value_heads=shape.n_kv_heads,
        max_position_embeddings=shape.seq_len,
        tie_word_embeddings=shape.shared,
        attn_implementation="eager",
    )
    names = {
        "v_proj": "wv", "o_proj": "wo", "gate_proj": "w1", "down_proj": "w2", "up_proj": "w3",
        "input_layernorm": "norm_att", "post_attention_layernorm": "norm_ffn", "q_proj": "wq", "k_proj": "wk",
    }  # fmt: skip
    state = {"model.embed_tokens.weight": w["embed"], "model.norm.weight": w["norm"]}
    state["lm_head.weight"] = w["embed" if shape.shared else "classifier"]
    for layer, (theirs, ours) in itertools.product(range(shape.n_layers), names.items()):
        value = w[ours][layer]
        if ours in ("wq", "wk"):
            value = value.unflatten(0, (-1, shape.head_dim // 2, 2)).transpose(1, 2).reshape(value.shape)
        where = "" if "norm" in theirs else "self_attn." if ours in ("wq", "wk", "wv", "wo") else "mlp."
        state[f"model.layers.{layer}.{where}{theirs}.weight"] = value
    model = transformers.LlamaForCausalLM(config).eval()
    model.load_state_dict(state)
    return model


@torch.no_grad()
@pytest.mark.parametrize("shared", [True, False])
def test_llama2c_is_llama(tmp_path, shared):
    scorer = open_scorer(f"llama2c:{write_model(tmp_path, shared)}")
    oracle = as_transformers(tmp_path / "model.bin")
    texts = ["", "the abc", "a☃b the the", "the cab " * 5]
    for text, scored in zip(texts, scorer.nats(texts), strict=True):
        ids = [1, *scorer.encode(text)]
        assert scored.tokens == len(ids) - 1
        assert scored.nats == pytest.approx(slow_nats(oracle, ids, 12), rel=1e-4)


def slow_pieces(pieces: SentencePieces, text: str) -> list[int]:
    """The tokenizer of llama2.c as it is written there: look at all neighbours, merge the best, begin again."""
    ids: list[int] = []
    for character in " " + text:
        known = pieces.ids.get(character.encode())
        ids += [byte + 3 for byte in character.encode()] if known is None else [known]
    while True:
        best = None
        for i, (left, right) in enumerate(itertools.pairwise(ids)):
            token = pieces.ids.get(pieces.pieces[left] + pieces.pieces[right])
            if token is not None and (best is None or pieces.scores[token] > best[0]):
                best = pieces.scores[token], i, token
        if best is None:
            return ids
        ids[best[1] : best[1] + 2] = [best[2]]


@given(st.text("abcthe ☃", min_size=1, max_size=30))
def test_pieces_are_merged_best_first(text):
    alphabet = [b" ", b"a", b"b", b"c", b"t", b"h", b"e", b"th", b"the", b" the", b"ab", b"bc", b"he", b" a", b"aba"]
    pieces = SentencePieces([b"?"] * 259 + alphabet, [0.0] * 266 + [-1.0, -2.0, -3.0, -3.0, -3.0, -2.5, -4.0, -2.0])
    pieces.ids.pop(b"?")
    assert pieces.encode(text) == slow_pieces(pieces, text)


@pytest.mark.skipif(not STORIES.is_dir(), reason="the real model is not on this machine")
def test_the_real_stories_model_prefers_stories():
    scorer = open_scorer(f"llama2c:{STORIES}")
    assert scorer.encode("Once upon a time") == [403, 407, 261, 378]  # as in the tests of llama2.c
    stories = re.split(r"(?<!\n)\n(?!\n)", (TEXT / "stories.txt").read_text()[:4000])[:4]
    scored = scorer.nats([*stories, *(" ".join(sorted(story.split())) for story in stories)])
    real, shuffled = (np.sum([one[:2] for one in part], 0) for part in (scored[:4], scored[4:]))
    assert 3 < math.exp(real[0] / real[1]) < 5
    assert math.exp(shuffled[0] / shuffled[1]) > 50
    ids = torch.tensor([[1, *scorer.encode(stories[0])]])
    loss = as_transformers(STORIES / "stories260K.bin")(ids, labels=ids).loss.item()
    assert scored[0].nats / scored[0].tokens == pytest.approx(loss, rel=1e-5)


# -- what a user got wrong -------------------------------------------------------------------------------------------


def damaged(content: bytes, name: str = "model.bin"):
    def make(folder: Path) -> str:
        write_model(folder, shared=True)
        (folder / name).write_bytes(content)
        return f"llama2c:{folder / 'model.bin'}"

    return make


def cut(name: str, size: int):
    def make(folder: Path) -> str:
        write_model(folder, shared=True)
        (folder / name).write_bytes((folder / name).read_bytes()[:size])
        return f"llama2c:{folder}"

    return make


def text_file(folder: Path, name: str) -> Path:
    (folder / name).write_bytes(b"\xff\xfe no text \x80")
    return folder / name


def two_models(folder: Path) -> str:
    write_model(folder, shared=True)
    (folder / "other.bin").write_bytes(b"")
    return f"llama2c:{folder}"


def no_tokenizer(folder: Path) -> str:
    (write_model(folder, shared=True) / "tok270.bin").unlink()
    return f"llama2c:{folder}"


MISTAKES = {
    "unknown kind": (lambda f: "gpt:large", "unknown kind of scorer 'gpt'; give hf:"),
    "no place": (lambda f: "arpa:", "has no path or name"),
    "hf missing": (lambda f: f"hf:{f}/none", "none does not exist"),
    "hf file": (lambda f: f"hf:{text_file(f, 'x.safetensors')}", "is a file; give the folder"),
    "hf empty folder": (lambda f: f"hf:{f}", "has no config.json"),
    "hf nowhere": (lambda f: "nobody/nothing", "nobody/nothing"),
    "llama2c missing": (lambda f: f"llama2c:{f}/none", "none does not exist"),
    "llama2c empty folder": (lambda f: f"llama2c:{f}", "holds no model"),
    "llama2c two": (two_models, "holds 2 models; name one"),
    "llama2c no tokenizer": (no_tokenizer, "put tok270.bin beside it"),
    "llama2c short": (cut("model.bin", 10), "too short for a llama2.c model: 10 bytes"),
    "llama2c cut": (cut("model.bin", 5000), r"damaged: it has 5000 bytes but its header requires \d+"),
    "llama2c noise": (damaged(b"\x01\xf0\xff\xff" * 100), "its header makes no sense"),
    "llama2c version": (damaged(struct.pack("<2i", 0x616B3432, 2) + bytes(300)), "version 2; export it with version 0"),
    "tokenizer cut": (cut("tok270.bin", 900), "it has fewer than 270 tokens"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_are_one_sentence(mistake, tmp_path):
    make, why = MISTAKES[mistake]
    with pytest.raises(UserError, match=why) as caught:
        open_scorer(make(tmp_path))
    assert "\n" not in str(caught.value)


def test_transformers_is_optional(monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match="needs the package transformers; install it with: "):
        open_scorer("hf:x")


def test_kinds_are_guessed_from_names(tmp_path):
    write_model(tmp_path, shared=True)
    assert isinstance(open_scorer(str(tmp_path / "model.bin")), Llama2cScorer)


def test_formats_are_imported_by_their_prefix_only():
    code = "import sys, unmask.evaluation.generative; print([name for name in sys.modules if 'judge.formats' in name])"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


def test_a_causal_folder_of_ours_is_a_judge_though_its_tokenizer_has_a_mask_too_many(tmp_path):
    """[MASK] is a token that the network has no row for; where a text spells it, its letters are scored."""
    named = {"bos_token": "<|endoftext|>"}
    how = {"tensors": without_padding("llama"), "tokenizer": named, "vocab_size": 258}
    theirs = write_family(tmp_path / "theirs", "llama", **how)
    ours = unmask.load(theirs).save_pretrained(tmp_path / "ours")
    scorer = open_scorer(f"hf:{ours}")
    assert len(scorer.tokenizer) == 259 and scorer.vocab_size == 258
    texts = ["some words", "a [MASK] b [MASK]", "[MASK]"]
    for text in texts:
        assert scorer.encode(text) == list(text.encode())
    for one, two in zip(scorer.nats(texts), open_scorer(f"hf:{theirs}").nats(texts), strict=True):
        assert one.nats == pytest.approx(two.nats, rel=1e-5) and one.tokens == two.tokens


def test_a_text_is_scored_after_the_mark_between_texts_where_bos_begins_messages(tmp_path):
    """As in SmolLM2-Instruct: `<|im_start|>` is its BOS, and its training had `<|endoftext|>` between texts."""
    folder = write_family(tmp_path / "m", "llama", tensors=without_padding("llama"), vocab_size=258)
    tokenizer = (folder / "tokenizer.json").read_text().replace("<|im_end|>", "<|im_start|>")
    (folder / "tokenizer.json").write_text(tokenizer)
    settings = {"tokenizer_class": "PreTrainedTokenizerFast", "bos_token": "<|im_start|>"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))
    scorer = open_scorer(f"hf:{folder}")
    assert (scorer.tokenizer.bos_token_id, scorer.bos) == (257, 256)
    ids = torch.tensor([[256, *b"some words"]])
    with torch.no_grad():
        log_p = scorer.model(ids).logits[0, :-1].log_softmax(-1)
    truth = -log_p.gather(1, ids[0, 1:, None]).sum()
    assert scorer.nats(["some words"])[0].nats == pytest.approx(float(truth), rel=1e-4)


def test_a_tokenizer_with_other_tokens_too_many_is_refused(tmp_path):
    folder = write_family(tmp_path / "m", "llama", tensors=without_padding("llama", 250), vocab_size=250)
    with pytest.raises(UserError, match="has 250 tokens and its tokenizer 258; they do not belong together"):
        open_scorer(f"hf:{folder}")


def without_padding(family: str, rows: int = 258) -> dict[str, torch.Tensor]:
    tables = ("model.embed_tokens.weight", "lm_head.weight")
    return {name: t[:rows].clone() if name in tables else t for name, t in tensors_of(family).items()}
