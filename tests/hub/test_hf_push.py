"""Models on the Hub: what is uploaded, what the card says, what is refused. Nothing here reaches a network."""

from __future__ import annotations

import json
import re
import shutil
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import huggingface_hub
import pytest
import torch
import yaml
from huggingface_hub.errors import LocalEntryNotFoundError

import unmask
from support.helpers import random_lm
from unmask.data import online
from unmask.data.tokenization import bytes_tokenizer
from unmask.hub.transformers import MDLM, model_card, push_to_hub
from unmask.types import UserError

TEXTS = ["one two three four.", "five six seven eight."]


class Hub:
    """What would be on the Hub."""

    def __init__(self, folder: Path, token: str | None = None) -> None:
        self.folder, self.calls, self.tokens = folder, [], [token]

    def __call__(self, token: str | None = None, **_: object) -> Hub:  # as the class HfApi is called
        self.tokens.append(token)
        return self

    def create_repo(self, repo_id: str, **how) -> SimpleNamespace:
        self.calls.append(("create_repo", repo_id, how))
        return SimpleNamespace(repo_id=repo_id)

    def upload_folder(self, *, repo_id: str, folder_path: Path, allow_patterns: list[str], **how) -> str:
        self.calls.append(("upload_folder", repo_id, how))
        for file in Path(folder_path).iterdir():
            if file.name == "manifest.json":  # a folder on this machine is sealed; the Hub has checksums of its own
                continue
            assert any(file.match(pattern) for pattern in allow_patterns), file
        shutil.copytree(folder_path, self.folder, ignore=shutil.ignore_patterns("manifest.json"))
        return f"https://huggingface.co/{repo_id}/commit/1"

    def create_commit(self, *, repo_id: str, operations: list, **how) -> str:
        self.calls.append(("create_commit", repo_id, how))
        self.folder.mkdir()
        for operation in operations:
            shutil.copy(operation.path_or_fileobj, self.folder / operation.path_in_repo)
        return "done"


@pytest.fixture
def hub(tmp_path, monkeypatch) -> Hub:
    there = Hub(tmp_path / "hub")
    monkeypatch.setattr(huggingface_hub, "HfApi", there)
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: "a token")
    monkeypatch.setattr(online, "reachable", lambda: True)
    return there


@pytest.fixture(scope="module")
def lm():
    return random_lm(bytes_tokenizer(), "data.length=32")


def header(card: str) -> dict:
    assert card.startswith("---\n")
    return yaml.safe_load(card.split("---\n")[1])


def tables(card: str) -> dict[str, list[tuple[str, ...]]]:
    """The rows of every table by its head."""
    found: dict[str, list[tuple[str, ...]]] = {}
    for block in card.split("\n\n"):
        head, *rows = block.splitlines() or [""]
        if head.startswith("| "):
            assert set(rows[0]) == {"|", "-"} and rows[0].count("|") == head.count("|")
            found[head] = [tuple(re.split(r" (?<!\\)\| ", row.strip("| "))) for row in rows[1:]]
    return found


def as_cell(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value)


def test_push_uploads_a_folder_that_comes_back(hub, lm):
    figures = {"held-out": lm.score(TEXTS, draws=4)}
    address = push_to_hub(
        lm,
        "me/my-model",
        private=True,
        token="mine",
        license="apache-2.0",
        language=["en"],
        figures=figures,
        notes="Small.",
    )
    assert address == "https://huggingface.co/me/my-model/commit/1" and hub.tokens[-1] == "mine"
    (_, name, how), (_, _, upload) = hub.calls
    assert name == "me/my-model" and how == {"private": True, "exist_ok": True} and upload["revision"] is None
    assert sorted(file.name for file in hub.folder.iterdir()) == [
        "README.md",
        "config.json",
        "model.safetensors",
        "tokenizer.json",
        "tokenizer_config.json",
    ]
    again = unmask.load(hub.folder)
    first, second = lm.model.state_dict(), again.model.state_dict()
    assert all(torch.equal(first[key], second[key]) for key in first) and first.keys() == second.keys()
    card = (hub.folder / "README.md").read_text(encoding="utf-8")
    assert header(card)["license"] == "apache-2.0" and "Small." in card


def test_the_card_has_figures_with_errors_and_protocol(lm):
    score = lm.score(TEXTS, draws=4)
    card = model_card(
        lm.config, "me/my-model", license="mit", figures={"a|b": score, "again": score.as_dict()}, tags=["x"]
    )
    assert header(card) == {
        "license": "mit",
        "library_name": "unmask",
        "pipeline_tag": "fill-mask",
        "tags": ["unmask", "mdlm", "masked-diffusion", "diffusion-language-model", "x"],
    }
    lines = [line for line in card.splitlines() if line.startswith(("| a", "| again"))]
    ppl, error = score.perplexity, score.perplexity * score.stderr_nats
    assert all(f"| {ppl:.2f} | {error:.2g} | " in line for line in lines) and len(lines) == 2
    assert r"a\|b" in card and "What differs" not in card
    assert tables(card)["| setting | value |"] == [(key, as_cell(value)) for key, value in score.protocol.items()]
    assert 'unmask.load("me/my-model")' in card and "import unmask" in card and "trust_remote_code" in card
    with pytest.raises(UserError, match="'bare' lacks protocol"):
        model_card(lm.config, "me/m", figures={"bare": {"perplexity": 3.0, "nats_per_token": 1.1, "tokens": 5}})


def test_the_card_says_once_what_figures_share_and_a_row_a_figure_of_what_differs(lm):
    score = lm.score(TEXTS, draws=4)
    own = {"source": "a|b", "split": "test", "rows": 3, "in_domain": True, "corpus": "x1"}
    other = {**own, "source": "ptb", "rows": 4, "in_domain": False, "corpus": "x2", "detokenizer": "ptb"}
    shared = score.protocol | {"split": "test"}
    figures = {
        "one": replace(score, protocol=score.protocol | own),
        "two": replace(score, protocol=score.protocol | other).as_dict(),
    }
    found = tables(model_card(lm.config, "me/m", figures=figures))
    assert found["| setting | value |"] == [(key, as_cell(value)) for key, value in shared.items()]
    assert found["| data | source | in_domain | rows | detokenizer | corpus |"] == [
        ("one", r"a\|b", "true", "3", "-", "x1"),
        ("two", "ptb", "false", "4", "ptb", "x2"),
    ]


def test_the_card_names_what_it_has_no_column_for(lm):
    score = lm.score(TEXTS, draws=4)
    many = [replace(score, protocol={f"k{i}": i + n for i in range(10)} | {"source": n}) for n in (0, 1)]
    card = model_card(lm.config, "me/m", figures={"one": many[0], "two": many[1]})
    assert tables(card)["| data | source | k0 | k1 | k2 | k3 | k4 | k5 | k6 |"] == [
        ("one", *"00123456"),
        ("two", *"11234567"),
    ]
    assert card.rstrip().endswith("Different too: k7, k8, k9.")


def test_push_needs_nothing_that_others_import(hub, lm, monkeypatch):
    """`huggingface_hub.utils` is an attribute only once somebody has imported it, as transformers does."""
    monkeypatch.delattr(huggingface_hub, "utils")
    assert push_to_hub(lm, "me/m").endswith("me/m/commit/1")
    with pytest.raises(UserError, match="is not the name of a repository"):
        push_to_hub(lm, "a/b/c")


def test_figures_in_every_form_that_we_print(hub, lm, tmp_path):
    score = lm.score(TEXTS, draws=4)
    one = f"| {score.perplexity:.2f} |"
    (tmp_path / "eval.json").write_text(json.dumps(score.as_dict()))
    (tmp_path / "suite.json").write_text(
        json.dumps({"suite": "zero-shot", "sets": [{"set": "PTB", **score.as_dict()}]})
    )
    for figures in (score, score.as_dict(), {"mine": score}, tmp_path / "eval.json", str(tmp_path / "suite.json")):
        assert one in model_card(lm.config, "me/m", figures=figures)
    assert "| PTB | " in model_card(lm.config, "me/m", figures=tmp_path / "suite.json")
    lm.push_to_hub("me/m", figures=score)
    assert one in (hub.folder / "README.md").read_text(encoding="utf-8")
    for wrong in (12.3, {"test": 12.3}, [score]):
        with pytest.raises(UserError, match="figures must be what"):
            model_card(lm.config, "me/m", figures=wrong)


def test_the_card_of_another_method_promises_no_transformers():
    lm = random_lm(bytes_tokenizer(), "model.method=sedd")
    card = model_card(lm.config, "me/m")
    assert "AutoModel" not in card and "pipeline_tag" not in header(card) and "license" not in header(card)


def test_the_card_of_a_block_model_says_its_sizes():
    lm = random_lm(bytes_tokenizer(), "model.method=block", "block.size=4", "block.mixture={1: 1, 4: 2, full: 1}")
    card = model_card(lm.config, "me/m")
    assert "block-diffusion" in header(card)["tags"] and "(method `block`, [block diffusion]" in card
    assert "It writes text in blocks of 4 tokens, and was trained on blocks of 1 token (25% of the steps), " in card
    assert "whole rows (25% of the steps)." in card and "AutoModelForMaskedLM" in card
    alone = model_card(random_lm(bytes_tokenizer(), "model.method=block", "block.size=4").config, "me/m")
    assert "was trained on these alone." in alone and "AutoModel" not in alone


def test_what_is_missing_is_one_sentence(hub, lm, monkeypatch):
    with pytest.raises(UserError, match="is not the name of a repository"):
        push_to_hub(lm, "a/b/c")
    monkeypatch.setattr(online, "reachable", lambda: False)
    with pytest.raises(UserError, match="cannot be reached"):
        push_to_hub(lm, "me/m")
    monkeypatch.setattr(huggingface_hub, "get_token", lambda: None)
    with pytest.raises(UserError, match="no Hugging Face token"):
        push_to_hub(lm, "me/m")
    assert not hub.calls


def test_what_the_hub_refuses_is_one_sentence(hub, lm, monkeypatch):
    from huggingface_hub.errors import HfHubHTTPError

    error = HfHubHTTPError.__new__(HfHubHTTPError)
    Exception.__init__(error, "403 Forbidden:\n you have no rights")

    def refuse(*_: object, **__: object) -> None:
        raise error

    monkeypatch.setattr(hub, "create_repo", refuse)
    with pytest.raises(UserError, match="refused me/m"):
        push_to_hub(lm, "me/m")


def test_the_model_class_pushes_as_transformers_does(hub, lm, monkeypatch):
    monkeypatch.setattr("transformers.utils.hub._hf_api", hub)

    def absent(*_: object, **__: object) -> None:
        raise LocalEntryNotFoundError("no card yet")

    monkeypatch.setattr("transformers.utils.hub.ModelCard.load", absent)
    model = MDLM.from_lm(lm)
    model.config.auto_map = {"AutoConfig": "configuration_mdlm.MDLMConfig"}  # as an old config would have it
    model.push_to_hub("me/my-model", private=True)
    assert hub.calls[0] == ("create_repo", "me/my-model", {"private": True, "token": None, "exist_ok": True})
    assert sorted(file.name for file in hub.folder.iterdir()) == ["README.md", "config.json", "model.safetensors"]
    assert "auto_map" not in (hub.folder / "config.json").read_text()
    again = unmask.load(hub.folder, tokenizer=lm.tokenizer)
    assert again.score(TEXTS).nats == lm.score(TEXTS).nats
