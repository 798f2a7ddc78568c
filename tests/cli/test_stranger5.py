"""What a stranger met: sentences that misled, settings that got lost, files that others could not read."""

from __future__ import annotations

import json
import os
import shutil
import stat
from pathlib import Path
from typing import Any

import pytest
import torch

import unmask
from unmask import UserError, files
from unmask.config import Config, DataConfig, ModelConfig, TrainConfig
from unmask.data.corpora import open_corpus
from unmask.data.overview import settings_for
from unmask.data.tokenization import bytes_tokenizer, make_tokenizer
from unmask.evaluation.suites import SUITES, SuiteResult, evaluate_suite, in_domain, suite, table_lines
from unmask.hub.convert import convert
from unmask.hub.resolve import load
from unmask.reproduce.bench import Bench
from unmask.reproduce.scales import scale_named
from unmask.training.text import train
from unmask.types import Likelihood

TINY = ModelConfig(hidden_dim=16, n_blocks=1, n_heads=2, cond_dim=8)


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model of bytes that was trained for two steps, without block ends."""
    folder = tmp_path_factory.mktemp("stranger")
    (folder / "book.txt").write_text("one two three four five\n" * 400)
    data = DataConfig(source=str(folder / "book.txt"), tokenizer="bytes", length=16, cache=str(folder / "cache"))
    train(Config(data=data, model=TINY, train=TrainConfig(steps=2, batch_size=4, warmup=1)), folder / "run", quiet=True)
    return folder / "run"


@pytest.fixture
def offline(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.data.online.reachable", lambda: False)
    monkeypatch.delenv("UNMASK_TOKENIZERS", raising=False)
    monkeypatch.delenv("UNMASK_DATA", raising=False)


def test_an_empty_source_is_one_sentence() -> None:
    with pytest.raises(UserError, match=r"data\.source='' is not valid"):
        settings_for("")


def test_a_typo_with_a_local_folder_gets_the_nearest_name(tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"'pbt' is not a named data set \(did you mean 'ptb'\?\)"):
        open_corpus(DataConfig(source="pbt", local=str(tmp_path)))


def test_tokenizers_of_the_shelf_serve_data_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, offline: None) -> None:
    spec = DataConfig(tokenizer="someones")
    with pytest.raises(UserError, match=r"UNMASK_TOKENIZERS to a folder that holds someones/tokenizer\.json"):
        make_tokenizer(spec, list)
    ours = bytes_tokenizer()
    ours.save(tmp_path / "someones")
    monkeypatch.setenv("UNMASK_TOKENIZERS", str(tmp_path))
    assert make_tokenizer(spec, list).vocab == ours.vocab


def test_bytes_is_a_tokenizer_that_can_be_given(run: Path, tmp_path: Path, offline: None) -> None:
    convert(str(run), tmp_path / "pub", to="published")
    (tmp_path / "pub/tokenizer.json").unlink()
    (tmp_path / "pub/tokenizer_config.json").unlink()
    assert load(tmp_path / "pub", tokenizer="bytes").tokenizer.vocab == bytes_tokenizer().vocab
    with pytest.raises(UserError, match="kind bpe is made from a text"):
        load(tmp_path / "pub", tokenizer="bpe")


def test_without_a_network_nobody_is_told_to_train_a_published_model(offline: None) -> None:
    with pytest.raises(UserError, match=r"connect to the network, or give the folder of a copy$"):
        load("kuleshov-group/a-model-that-is-not-here")


def test_the_published_layout_says_what_it_cannot_say(run: Path, tmp_path: Path) -> None:
    done = convert(str(run), tmp_path / "pub", to="published")
    assert done["unsaid"] == {"data.block_ends": False}
    assert load(tmp_path / "pub").config.data.block_ends, "this is what got lost"
    assert convert(str(run), tmp_path / "own")["unsaid"] == {}
    assert not load(tmp_path / "own").config.data.block_ends
    other = load(run)
    tree = other.config.model_dump()
    tree["schedule"]["name"] = "cosine"
    other.config = Config.model_validate(tree)
    other.save_pretrained(tmp_path / "cosine")
    done = convert(str(tmp_path / "cosine"), tmp_path / "cosine-pub", to="published")
    assert set(done["unsaid"]) == {"data.block_ends", "schedule"}


@pytest.mark.parametrize("dtype", ["float16", "bfloat16"])
def test_a_folder_of_16_bits_writes_and_scores_through_transformers(run: Path, tmp_path: Path, dtype: str) -> None:
    from transformers import AutoModelForMaskedLM

    import unmask.transformers  # which registers the class

    convert(str(run), tmp_path / "half", dtype=dtype)
    ours = unmask.load(tmp_path / "half")
    model = AutoModelForMaskedLM.from_pretrained(tmp_path / "half")
    assert next(model.parameters()).dtype == getattr(torch, dtype)
    lm = model.unmask_lm(ours.tokenizer)
    assert next(lm.model.parameters()).dtype == torch.float32
    assert next(model.parameters()).dtype == getattr(torch, dtype), "the model itself stays as it was"
    assert lm.score("one two", draws=4).perplexity == pytest.approx(ours.score("one two", draws=4).perplexity, rel=1e-6)
    assert lm.sample(1, length=8, seed=1) == ours.sample(1, length=8, seed=1)


def test_wikitext103_holds_wikitext2() -> None:
    (member,) = suite("zero-shot", ["wikitext2"])
    for source in ("wikitext2", "wikitext-2", "wikitext103", "wikitext-103", "sotu+wikitext103"):
        assert in_domain(DataConfig(source=source), member), source
    assert not in_domain(DataConfig(source="ptb"), member)


@pytest.mark.parametrize("bad", [{"rows": 0}, {"draws": 0}, {"batch_size": 0}])
def test_a_suite_refuses_before_it_reads_a_set(run: Path, bad: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    def never(*_: object) -> None:
        raise AssertionError("a set was read")

    monkeypatch.setattr("unmask.evaluation.suites.member_rows", never)
    with pytest.raises(UserError, match="must be at least 1"):
        evaluate_suite(load(run), SUITES["zero-shot"], estimator=unmask.evaluation.likelihood.TIMES, **bad)


def test_a_suite_refuses_a_model_without_likelihood(run: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.evaluation.suites.member_rows", lambda *_: pytest.fail("a set was read"))
    lm = load(run)
    monkeypatch.setattr(type(lm.model), "likelihood", False)
    with pytest.raises(UserError, match="no likelihood"):
        evaluate_suite(lm, SUITES["zero-shot"], estimator=unmask.evaluation.likelihood.TIMES)


def test_the_table_of_a_suite_names_every_detokenizer() -> None:
    members = suite("zero-shot", ["ptb", "lm1b"])
    results = [
        SuiteResult(member, False, Likelihood(10.0, 10, 10.0, 0.1, 0.1, {"draws": 2, "detokenizer": member.corpus}))
        for member in members
    ]
    lines = table_lines(results)
    assert "  draws: 2" in lines
    assert lines[-1] == "  detokenizer: ptb (PTB), lm1b (LM1B)"


def test_reproduce_reads_its_text_where_the_sets_lie(tmp_path: Path) -> None:
    def local(source: str) -> str | None:
        return Bench(scale_named("smoke"), source, tmp_path, local="/data").config("mdlm").data.local

    assert local("ptb") == "/data"
    assert local("python-docs") is None and local("book.txt") is None and local("wikitext103") is None


def test_the_command_of_a_report_says_where_the_sets_lie(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Bench, "protocol", lambda self, **more: more)
    bench = Bench(scale_named("smoke"), "ptb", tmp_path, local="/my data", known=("ptb",))
    assert bench.report("zero-shot", "", [], protocol={}).command == (
        "unmask reproduce zero-shot --scale smoke --data ptb --seed 0 --local '/my data' --in-domain ptb"
    )


def test_files_of_the_cache_may_be_read_by_others(tmp_path: Path) -> None:
    before = os.umask(0o022)
    try:
        files.write_json(tmp_path / "a.json", {"a": 1})
    finally:
        os.umask(before)
    assert stat.S_IMODE((tmp_path / "a.json").stat().st_mode) == 0o644
    assert json.loads((tmp_path / "a.json").read_text()) == {"a": 1}
    with pytest.raises(OSError, match="missing"), files.replacing(tmp_path / "a.json") as temporary:
        shutil.copy(tmp_path / "missing", temporary)
    assert os.listdir(tmp_path) == ["a.json"]


def test_weights_are_as_open_to_others_as_their_neighbours(run, tmp_path):
    folder = load(run).save_pretrained(tmp_path / "model")
    checkpoint = next((run / "checkpoints").iterdir())
    for place in (folder, checkpoint):
        assert len({stat.S_IMODE(path.stat().st_mode) for path in place.iterdir() if path.is_file()}) == 1


def test_weights_that_a_folder_does_not_have_are_not_promised(run, tmp_path):
    folder = load(run).save_pretrained(tmp_path / "model")
    with pytest.raises(UserError, match="holds only one set of weights; leave --weights out"):
        convert(str(folder), tmp_path / "out", weights="raw")
    assert not (tmp_path / "out").exists()
