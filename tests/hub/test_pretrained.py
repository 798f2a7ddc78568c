"""The model inside the package: there without network, small, documented, and better than no model."""

from __future__ import annotations

import fnmatch
import math
import re
import socket
import tomllib
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

import unmask
from support.helpers import refused, run
from unmask.evaluation.suites import SUITES, in_domain
from unmask.hub.resolve import PRETRAINED, pretrained
from unmask.lm import LM

NAME = "tiny-en"
FOLDER = PRETRAINED / NAME
STORY = "Once upon a time, there was a little dog. He liked to play in the park with his friends."


@pytest.fixture(scope="module")
def lm() -> LM:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(socket.socket, "connect", lambda *_: pytest.fail("a built-in model needs no network"))
        return unmask.load(NAME)


def test_it_is_in_the_package_small_and_complete():
    assert pretrained() == [NAME]
    files = {path.name: path.stat().st_size for path in FOLDER.iterdir()}
    tokenizer = {"tokenizer.json", "tokenizer_config.json"}
    assert set(files) == {"config.json", "model.safetensors", "manifest.json", "sampling.json", "README.md"} | tokenizer
    assert sum(files.values()) < 20e6
    assert {
        tensor.dtype for name, tensor in load_file(FOLDER / "model.safetensors").items() if "inv_freq" not in name
    } == {torch.float16}
    root = Path(__file__).parents[2]
    patterns = tomllib.loads((root / "pyproject.toml").read_text())["tool"]["setuptools"]["package-data"]["unmask"]
    for name in files:  # so that a wheel has them too
        assert any(fnmatch.fnmatch(f"hub/pretrained/{NAME}/{name}", pattern) for pattern in patterns)


def test_it_has_between_five_and_ten_million_weights(lm):
    assert 5e6 < sum(p.numel() for p in lm.model.parameters()) < 10e6
    assert lm.tokenizer.vocab.size == 4096


def test_it_knows_english_better_than_letters_in_disorder(lm):
    text, disorder = lm.score(STORY, draws=8), lm.score(" ".join(sorted(STORY.split())), draws=8)
    assert text.nats_per_token < math.log(4095) - 4  # far better than guessing
    assert text.nats + 3 * text.tokens * (text.stderr_nats or 0) < disorder.nats


def test_it_writes_and_fills(lm):
    first = lm.sample(2, prompt="Once upon a time", length=32, temperature=0.8, seed=3)
    assert first == lm.sample(2, prompt="Once upon a time", length=32, temperature=0.8, seed=3)
    assert all(text.startswith("Once upon a time") and len(text) > 30 for text in first)
    assert re.fullmatch(r"Tim saw a .+ in the .+\.", lm.infill("Tim saw a {{1}} in the {{1}}.", seed=0)[0], re.DOTALL)


def test_the_command_line_takes_its_name():
    ran = run("sample", NAME, "--prompt", "The dog", "--length", "12", "--json").json()
    assert ran["samples"][0]["text"].startswith("The dog")
    assert "did you mean 'tiny-en'" in refused("sample", "tiny-em")


def test_transformers_reads_it(lm):
    from transformers import AutoModelForMaskedLM, AutoTokenizer

    import unmask.transformers  # noqa: F401  # which registers the class

    model, tokenizer = AutoModelForMaskedLM.from_pretrained(FOLDER), AutoTokenizer.from_pretrained(FOLDER)
    ids = tokenizer(STORY, return_tensors="pt")["input_ids"]
    assert ids[0].tolist() == lm.encode(STORY)
    ids[0, 5] = tokenizer.mask_token_id
    with torch.no_grad():
        assert model(ids).logits[0, 5].argmax() != tokenizer.mask_token_id


def test_what_it_was_trained_on_is_said(lm):
    assert not [member.corpus for member in SUITES["zero-shot"] if in_domain(lm.config.data, member)]
    assert lm.config.data.source == "tinystories"
    assert "is not a named data set" in refused("eval", NAME)


def test_its_card_has_figures_with_errors_and_protocol():
    card = (FOLDER / "README.md").read_text()
    assert re.search(r"^\| TinyStories[^|]*\| [\d.,]+ \| [\d.]+ \|", card, re.MULTILINE)
    assert card.count("\n> ") >= 40, "twenty stories and twenty gaps"
    for word in ("draws", "seed", "dtype", "float16", "CDLA", "Limits", "Samples", "steps", "AutoModelForMaskedLM"):
        assert word in card
