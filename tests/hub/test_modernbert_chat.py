"""ModernBERT-chat of dllm: a folder with its fields and tensors, scaled down, and its conversations."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
from tokenizers import processors

import unmask
from support.families import byte_tokenizer

transformers = pytest.importorskip("transformers")
pytest.importorskip("jinja2")
UNK, CLS, SEP, PAD, MASK = range(256, 261)
PUBLISHED: dict[str, Any] = {
    "architectures": ["ModernBertForMaskedLM"], "attention_bias": False, "attention_dropout": 0.0,
    "bos_token_id": CLS, "classifier_activation": "gelu", "classifier_bias": False, "classifier_dropout": 0.0,
    "classifier_pooling": "mean", "cls_token_id": CLS, "decoder_bias": True, "deterministic_flash_attn": False,
    "embedding_dropout": 0.0, "eos_token_id": SEP, "global_attn_every_n_layers": 3, "global_rope_theta": 160000.0,
    "gradient_checkpointing": False, "hidden_activation": "gelu", "hidden_size": 24, "initializer_cutoff_factor": 2.0,
    "initializer_range": 0.02, "intermediate_size": 36, "layer_norm_eps": 1e-05, "local_attention": 8,
    "local_rope_theta": 10000.0, "max_position_embeddings": 256, "mlp_bias": False, "mlp_dropout": 0.0,
    "model_type": "modernbert", "norm_bias": False, "norm_eps": 1e-05, "num_attention_heads": 2,
    "num_hidden_layers": 4, "pad_token_id": PAD, "position_embedding_type": "absolute", "sep_token_id": SEP,
    "tie_word_embeddings": True, "torch_dtype": "float32", "transformers_version": "4.47.0.dev0", "vocab_size": 264,
}  # fmt: skip
TEMPLATE = (
    "{% for m in messages %}{% set tag = {'system': 'SYS', 'user': 'Question', 'assistant': 'Answer'}[m.role] %}"
    "{{ '[' + tag + ']\n' + m.content | trim + '\n[/' + tag + ']\n\n' }}{% endfor %}"
    "{% if add_generation_prompt %}{{ '[Answer]\n' }}{% endif %}"
)
TALK = [{"role": "system", "content": "Be short."}, {"role": "user", "content": " Who are you?\n"}]
TEXT = "[SYS]\nBe short.\n[/SYS]\n\n[Question]\nWho are you?\n[/Question]\n\n[Answer]\n"


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    place = tmp_path_factory.mktemp("hub") / "ModernBERT-base-chat-v0.1"
    torch.manual_seed(0)
    described = {key: value for key, value in PUBLISHED.items() if key not in ("architectures", "torch_dtype")}
    net = transformers.ModernBertForMaskedLM(transformers.ModernBertConfig(**described)).eval()
    net.save_pretrained(place)
    (place / "config.json").write_text(json.dumps(PUBLISHED))
    backend = byte_tokenizer(None)
    tree = json.loads(backend.to_str())
    names = ["[UNK]", "[CLS]", "[SEP]", "[PAD]", "[MASK]"]
    flags = {"single_word": False, "lstrip": False, "rstrip": False, "normalized": False, "special": True}
    tree["added_tokens"] = [{"id": 256 + i, "content": name, **flags} for i, name in enumerate(names)]
    backend = type(backend).from_str(json.dumps(tree))
    backend.post_processor = processors.TemplateProcessing(
        "[CLS] $A [SEP]", "[CLS] $A [SEP] $B [SEP]", [("[CLS]", CLS), ("[SEP]", SEP)]
    )
    backend.save(str(place / "tokenizer.json"))
    roles = ("unk", "cls", "sep", "pad", "mask")
    config = {f"{role}_token": name for role, name in zip(roles, names, strict=True)}
    (place / "tokenizer_config.json").write_text(json.dumps(config | {"chat_template": TEMPLATE}))
    return place


@torch.no_grad()
def test_the_network_is_that_of_transformers(folder: Path) -> None:
    lm, theirs = unmask.load(folder), transformers.AutoModelForMaskedLM.from_pretrained(folder).eval()
    assert lm.model.fills_masks and lm.model.vocab.mask == MASK
    tokens = torch.randint(256, (2, 40), generator=torch.Generator().manual_seed(1))
    tokens[:, ::3] = MASK
    model: Any = lm.model
    states = model.hidden(tokens, torch.ones(2, dtype=torch.float64))
    truth = theirs(tokens).logits
    truth[..., MASK] = -torch.inf
    torch.testing.assert_close(
        model.log_x(states.flatten(0, 1)), truth[..., :261].log_softmax(-1).flatten(0, 1), rtol=1e-4, atol=1e-4
    )


def test_conversations_are_read_as_they_were_in_its_training(folder: Path) -> None:
    lm = unmask.load(folder)
    template = lm.chat_template
    assert template is not None and template.text(TALK, add_generation_prompt=True) == TEXT
    theirs = transformers.AutoTokenizer.from_pretrained(folder)
    ids = theirs.apply_chat_template(TALK, add_generation_prompt=True, tokenize=True, return_dict=False)
    assert template.prompt(TALK) == ids == list(TEXT.encode())
    assert template.end_text.strip() == "[/Answer]"
    answers = template.ids([*TALK, {"role": "assistant", "content": "I am."}])
    learned = bytes(token for token, answer in zip(answers.ids, answers.answers, strict=True) if answer)
    assert learned.startswith(b"I am.") and b"[/Answer]" in learned
    (said,) = lm.chat(TALK, max_tokens=12, seed=0, steps=4)
    assert "[MASK]" not in said and "[Question]" not in said
