"""Embeddings from counts: against a dense SVD, on several processes, resumed, and where there is too little text."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from oracles.associations import associations, gram_of_leading, pairs
from support.helpers import refused, run, settings
from support.runs import SETTINGS, figures
from support.runs import run as run_processes
from unmask.config import METHODS, Config, ModelConfig
from unmask.data.pack import Rows
from unmask.distributed import World
from unmask.models import registry
from unmask.process.keys import Keys
from unmask.training import cooccurrence as module
from unmask.training.cooccurrence import Associations, count, embeddings, leading, start_from_counts, unigram_bias
from unmask.types import Vocab

ALONE = World(0, 1, torch.device("cpu"))
VOCAB = Vocab(40, 39, 38)


def markov_rows(n: int = 60, length: int = 24, size: int = 38) -> Rows:
    """Text in which a token is likely followed by its neighbours, and the last ones are rare."""
    draw = np.random.default_rng(0)
    stream = [0]
    while len(stream) < n * length:
        step = draw.choice([1, 2, 5], p=[0.6, 0.3, 0.1])
        stream.append(int((stream[-1] + step) % size) if draw.random() < 0.9 else int(draw.zipf(2) % size))
    facts = {"documents": 1, "tokens": len(stream), "bytes": len(stream)}
    return Rows(np.array(stream, dtype=np.uint16), None, facts, length)


def listed(rows: Rows) -> list[list[int]]:
    return rows.rows(range(len(rows)))[0].tolist()


def test_counts_are_those_of_two_loops() -> None:
    rows = markov_rows()
    found = count(rows, VOCAB)
    assert found.single.tolist() == np.bincount(np.concatenate(listed(rows)), minlength=40).tolist()
    for offset, (codes, times) in zip((1, 2), found.pairs, strict=True):
        dense = np.zeros(40 * 40)
        dense[codes] = times
        assert np.array_equal(dense.reshape(40, 40), pairs(listed(rows), 40, offset))


def test_counts_in_parts_are_those_of_the_whole(monkeypatch: pytest.MonkeyPatch) -> None:
    rows = markov_rows()
    whole = count(rows, VOCAB)
    monkeypatch.setattr(np, "array_split", lambda array, n: [array[i : i + 7] for i in range(0, len(array), 7)])
    parts = count(rows, VOCAB)
    assert np.array_equal(whole.single, parts.single)
    for ours, theirs in zip(whole.pairs, parts.pairs, strict=True):
        assert all(np.array_equal(a, b) for a, b in zip(ours, theirs, strict=True))


@pytest.mark.parametrize("frequencies", [1024, 24])
def test_products_are_those_of_the_dense_matrix(frequencies: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """Exact where every frequency is distinguished, near it where they are rounded."""
    monkeypatch.setattr(module, "FREQUENCIES", frequencies)
    rows = markov_rows()
    dense = associations(listed(rows), 40)
    x = torch.randn(40, 5, generator=torch.Generator().manual_seed(0))
    ours = Associations(count(rows, VOCAB)).gram(x).numpy()
    theirs = dense @ dense.T @ x.double().numpy()
    error = np.linalg.norm(ours - theirs) / np.linalg.norm(theirs)
    assert error < (1e-5 if frequencies == 1024 else 0.1)


@pytest.mark.parametrize("rank", [3, 12, 40])
def test_leading_directions_are_those_of_a_full_svd(rank: int) -> None:
    rows = markov_rows()
    found = leading(Associations(count(rows, VOCAB)), 40, rank, Keys(0)).double().numpy()
    theirs = gram_of_leading(listed(rows), 40, rank)
    assert np.linalg.norm(found @ found.T - theirs) < 2e-3 * np.linalg.norm(theirs)


def test_embeddings_have_deviation_one_and_random_rows_for_tokens_that_do_not_occur() -> None:
    table = embeddings(count(markov_rows(), VOCAB), 16, Keys(0))
    assert table.std().item() == pytest.approx(1)
    assert torch.equal(table, embeddings(count(markov_rows(), VOCAB), 16, Keys(0)))
    assert not torch.equal(table, embeddings(count(markov_rows(), VOCAB), 16, Keys(1)))
    assert (table[38:].std(1) > 0.3).all()  # [MASK] and pad are not all alike


def test_a_vocabulary_that_is_smaller_than_the_width_fills_it_with_noise() -> None:
    table = embeddings(count(markov_rows(), VOCAB), 64, Keys(0))
    assert table.shape == (40, 64) and (table[:38, 40:].std(0) > 0).all()


def test_the_bias_is_the_unigram_law() -> None:
    found = count(markov_rows(), VOCAB)
    law = torch.softmax(unigram_bias(found), 0)
    expected = (found.single + 1) / (found.single + 1).sum()
    assert torch.allclose(law.double(), torch.from_numpy(expected), atol=1e-6)


NETWORKS = {
    "dit": {}, "modern": {}, "mosaicbert": {}, "mamba": {"method": "ar"}, "hyena": {"method": "ar", "dropout": 0.0},
    "caduceus": {"strands": "ph"},
}  # fmt: skip


@pytest.mark.parametrize("network", NETWORKS)
def test_every_network_gets_them_at_its_own_scale(network: str) -> None:
    heads = {"n_heads": 2} if network in ("dit", "modern", "mosaicbert") else {}
    config = Config(model=ModelConfig(network=network, hidden_dim=16, n_blocks=1, **heads, **NETWORKS[network]))
    torch.manual_seed(0)
    model = registry.model(config, VOCAB)
    tables = model.token_weights()
    assert tables is not None
    before = tables.embedding[:40].std().item()
    assert start_from_counts(model, markov_rows(), Keys(0), ALONE) == ""
    found = count(markov_rows(), VOCAB)
    expected = embeddings(found, 16, Keys(0)) * before
    assert torch.allclose(tables.embedding[:40], expected, atol=1e-6)
    if tables.head is not None:
        assert torch.allclose(tables.head[:40], expected, atol=1e-6)
    if tables.bias is not None:
        assert torch.allclose(tables.bias[:40], unigram_bias(found))


@pytest.mark.parametrize("method", [name for name in METHODS if name not in ("plaid", "ssd-lm")])
def test_every_method_of_tokens_begins_near_the_unigram_law(method: str) -> None:
    """Before the first step, from a head of the counts alone: no worse than the unigram law by much."""
    config = Config(model=ModelConfig(method=method, hidden_dim=16, n_blocks=1, n_heads=2, dropout=0.0))
    torch.manual_seed(0)
    model = registry.model(config, VOCAB).eval()
    start_from_counts(model, markov_rows(), Keys(0), ALONE)
    hidden = torch.zeros(1, model.backbone.hidden_dim)
    law = torch.softmax(model.backbone.head(hidden)[0].float(), 0)
    expected = torch.softmax(unigram_bias(count(markov_rows(), VOCAB)), 0)
    assert torch.allclose(law, expected, atol=1e-6)


@pytest.mark.parametrize("method", ["plaid", "ssd-lm"])
def test_models_that_do_not_read_tokens_start_at_random_and_say_so(method: str, tmp_path: Path) -> None:
    more = ["simplex.block=8"] if method == "ssd-lm" else []
    words = settings(f"model.method={method}", "train.embeddings=counts", "train.steps=1", *more)
    ran = run("train", "tiny", *words, "--out", str(tmp_path / "run"))
    assert ran.code == 0 and "no token embeddings that counts could set" in ran.err


@pytest.fixture(scope="module")
def text(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(f"{i} bottles of beer on the wall, take {i % 7} down." for i in range(400)))
    return f"data.source={path}"


@pytest.mark.parametrize("strategy", ["ddp", pytest.param("fsdp", marks=pytest.mark.slow)])
def test_two_processes_begin_and_learn_as_one(text: str, strategy: str, tmp_path: Path) -> None:
    words = [text, "train.embeddings=counts"]
    one = run_processes(tmp_path / "one", 1, *words)
    two = run_processes(tmp_path / "two", 2, *words, f"train.strategy={strategy}")
    torch.testing.assert_close(figures(one, "loss"), figures(two, "loss"), rtol=2e-5, atol=2e-5)
    random = run_processes(tmp_path / "random", 1, text)
    assert (figures(one, "loss")[0] < figures(random, "loss")[0]).item()


def test_a_run_that_is_continued_keeps_its_weights(text: str, tmp_path: Path) -> None:
    whole = run_processes(tmp_path / "whole", 1, text, "train.embeddings=counts")
    run_processes(tmp_path / "cut", 1, text, "train.embeddings=counts", "train.steps=2")
    cut = run_processes(tmp_path / "cut", 1, text, "train.embeddings=counts")
    assert torch.equal(figures(whole, "loss"), figures(cut, "loss"))
    other = ["train", "tiny", *SETTINGS, text, "--out", str(tmp_path / "cut")]
    assert "started with train.embeddings=counts, not random" in refused(*other)


def test_too_little_text_is_said_and_trained_all_the_same(tmp_path: Path) -> None:
    path = tmp_path / "short.txt"
    path.write_text("a b c d e f g h " * 30)
    words = ["data.tokenizer=bytes", "data.length=16", f"data.source={path}", "train.embeddings=counts"]
    small = [
        "train.steps=1",
        "eval.every=0",
        "model.hidden_dim=16",
        "data.valid_fraction=0.3",
        "data.test_fraction=0.3",
    ]
    ran = run("train", "tiny", *words, *small, "--out", str(tmp_path / "run"))
    assert ran.code == 0 and "embeddings start at random" in ran.err
