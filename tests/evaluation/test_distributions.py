"""Distributions at open positions: the head of the network called by hand, exact conditionals, and one call for all."""

from __future__ import annotations

import functools
import math

import numpy as np
import pytest
import torch

from support.helpers import random_lm, random_model, tiny_config
from unmask.data.tokenization import bytes_tokenizer
from unmask.errors import UserError
from unmask.evaluation import Marginals
from unmask.lm import LM

LENGTH = "data.length=24"
METHODS = {
    "mdlm": [],
    "timed": ["model.time_conditioning=true"],
    "d3pm": ["model.method=d3pm"],
    "sedd": ["model.method=sedd"],
    "block": ["model.method=block", "block.size=4"],
    "single": ["model.method=block", "block.size=1"],
}


@functools.cache
def make(name: str) -> LM:
    return random_lm(bytes_tokenizer(), LENGTH, *METHODS[name], scale=2.0)


def by_hand(lm: LM, ids: list[int], label: int | None = None) -> np.ndarray:
    """(L, V) float64: the softmax of the head without the logit of [MASK], at the time of this share of masks."""
    net, mask = lm.model.backbone, lm.tokenizer.vocab.mask
    share = ids.count(mask) / len(ids)
    z = torch.tensor([ids])
    sigma = torch.tensor([min(30.0, -math.log(1 - (1 - 1e-3) * share))])  # log-linear: 1 - alpha = (1 - eps) t
    with torch.no_grad():
        condition = net.condition(sigma, None if label is None else torch.tensor([label]))
        logits = net.head(net(z, condition=condition)[0])[0].double().numpy()
    logits[:, mask] = -np.inf
    p = np.exp(logits - logits.max(1, keepdims=True))
    return p / p.sum(1, keepdims=True)


def whole(one: Marginals, size: int) -> np.ndarray:
    """(open positions, V): what it says of every token; 0 of those that it leaves out."""
    p = np.zeros((len(one.positions), size))
    for row, place in zip(p, one.positions, strict=True):
        assert len(place.ids) == len(set(place.ids)) == len(place.pieces) == len(place.probs)
        assert place.probs == sorted(place.probs, reverse=True)
        row[place.ids] = place.probs
    return p


@pytest.mark.parametrize("name", METHODS)
def test_they_are_the_softmax_of_the_head(name: str) -> None:
    lm, vocab = make(name), make(name).tokenizer.vocab
    found = lm.marginals("ab{{2}}cd {{3}}", top=vocab.size)
    ids = [*b"ab", vocab.mask, vocab.mask, *b"cd ", vocab.mask, vocab.mask, vocab.mask]
    assert found.ids == [None if token == vocab.mask else token for token in ids] and found.gaps == [2, 3]
    assert [place.position for place in found.positions] == [2, 3, 7, 8, 9]
    p, want = whole(found, vocab.size), by_hand(lm, ids)[[2, 3, 7, 8, 9]]
    assert np.allclose(p, want, atol=1e-6) and np.abs(np.diff(want, axis=0)).max() > 0.01
    assert np.allclose(p.sum(1), 1, atol=1e-5)
    assert all(vocab.mask not in place.ids and len(place.ids) == vocab.size - 1 for place in found.positions)
    entropy = [-sum(q * math.log(q) for q in row if q > 0) for row in want]
    assert [place.entropy for place in found.positions] == pytest.approx(entropy, abs=1e-4)


def test_one_open_position_has_its_exact_conditional() -> None:
    """-log p of a token given the rest of its text, by the exact law of scores."""
    lm = make("mdlm")
    (p,) = whole(lm.marginals("he{{1}}lo", top=300), 259)
    for letter in "aly":
        nats = lm.score(f"he{letter}lo", span=(2, 3), method="exact").nats
        assert -math.log(p[ord(letter)]) == pytest.approx(nats, abs=1e-4)


def test_the_most_likely_are_the_first_of_all() -> None:
    lm = make("mdlm")
    every, few = (lm.marginals("a{{2}}b", top=top) for top in (10**9, 3))
    for all_of_them, first in zip(every.positions, few.positions, strict=True):
        assert (first.ids, first.pieces, first.probs) == (
            all_of_them.ids[:3], all_of_them.pieces[:3], all_of_them.probs[:3]
        )  # fmt: skip
        assert first.entropy == all_of_them.entropy and first.pieces == lm.tokenizer.pieces(first.ids)
    assert [len(place.ids) for place in lm.marginals("a{{2}}b").positions] == [5, 5]
    assert repr(few) == "Marginals(2 open: " + ", ".join(
        f"{place.pieces[0]!r} {place.probs[0]:.3g}" for place in few.positions
    ) + ")"  # fmt: skip


@pytest.mark.parametrize("name", METHODS)
def test_texts_of_any_lengths_share_a_call(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    lm, calls = make(name), []
    texts = ["a{{1}}", "one {{2}} two {{4}} three", "{{3}}", "___ x [MASK]"]
    alone = [lm.marginals(text) for text in texts]
    hidden = lm.model.hidden
    monkeypatch.setattr(lm.model, "hidden", lambda *args, **how: calls.append(len(args[0])) or hidden(*args, **how))
    for batch_size, expected in ((16, [4]), (3, [3, 1])):
        calls.clear()
        together = lm.marginals(texts, batch_size=batch_size)
        assert calls == expected
        for one, single in zip(together, alone, strict=True):
            assert one.ids == single.ids and one.gaps == single.gaps
            for place, same in zip(one.positions, single.positions, strict=True):
                assert place.ids == same.ids and place.probs == pytest.approx(same.probs, rel=1e-4, abs=1e-6)


@pytest.mark.parametrize("name", ["block", "single"])
def test_a_block_model_reads_the_text_as_a_single_block(name: str) -> None:
    lm = make(name)
    row = LM(lm.model.in_blocks(None), lm.tokenizer, lm.config)
    assert lm.marginals("abc{{3}}defg{{2}}") == row.marginals("abc{{3}}defg{{2}}")


def test_a_gap_of_unknown_length_is_as_long_as_in_a_filling() -> None:
    lm = make("mdlm")
    found, canvas = lm.marginals("one {{1-3}} two"), lm.gap_canvas("one {{1-3}} two")
    assert found.gaps == canvas.lengths and len(found.positions) == canvas.lengths[0]
    tree = found.as_dict()
    assert tree["gap_nats"] == canvas.nats and set(canvas.nats) == {"1", "2", "3"}
    assert tree["gap_errors"] == canvas.errors and tree["gap_undecided"] == canvas.undecided
    assert set(lm.marginals("one {{2}} two").as_dict()) == {"ids", "positions", "gaps"}


def test_a_label_is_seen() -> None:
    tokenizer, config = bytes_tokenizer(), tiny_config(LENGTH)
    model = random_model(config, tokenizer.vocab, 2.0, n_labels=2)
    lm = LM(model, tokenizer, config, ["soft", "hard"])
    ids = [ord("a"), tokenizer.vocab.mask, ord("b")]
    found = {}
    for number, label in ((None, None), (0, "soft"), (1, "hard")):
        found[label] = whole(lm.marginals("a{{1}}b", top=300, label=label), 259)[0]
        assert np.allclose(found[label], by_hand(lm, ids, number)[1], atol=1e-6)
    assert np.abs(found["soft"] - found["hard"]).max() > 1e-3
    with pytest.raises(UserError, match="soft"):
        lm.marginals("a{{1}}b", label="loud")


def test_rows_with_ends_begin_with_their_start() -> None:
    lm = random_lm(bytes_tokenizer(), LENGTH, "data.block_ends=true", scale=2.0)
    found = lm.marginals("a{{1}}b")
    assert found.ids[0] == lm.tokenizer.vocab.bos and [place.position for place in found.positions] == [2]


def test_nothing_is_written_and_training_goes_on() -> None:
    lm = random_lm(bytes_tokenizer(), LENGTH, "model.dropout=0.9")
    before = {name: value.clone() for name, value in lm.model.state_dict().items()}
    want = lm.marginals("a{{2}}")
    lm.model.train()
    assert lm.marginals("a{{2}}") == want and lm.model.training
    assert all(torch.equal(value, before[name]) for name, value in lm.model.state_dict().items())


def test_what_cannot_be_read_is_a_sentence() -> None:
    lm = make("mdlm")
    for texts, words in (
        ("no gap", "there is no gap"), ("", "there is no gap"), ([], "at least one text"), (["a{{1}}", "b"], "no gap"),
        ("{{25}}", "longer than the 24 tokens"), ("a" * 24 + "{{1}}", "longer than the 24 tokens"),
        ("{{3-1}}", "smaller length first"), ("{{1-3}}", "needs given text"), ("a{{1}}\udcff", "UTF-8"),
    ):  # fmt: skip
        with pytest.raises(UserError, match=words):
            lm.marginals(texts)
    for how, words in (({"top": 0}, "at least 1"), ({"batch_size": 0}, "at least 1"), ({"tops": 3}, "'top'")):
        with pytest.raises(UserError, match=words):
            lm.marginals("a{{1}}", **how)
    with pytest.raises(UserError, match="label"):
        lm.marginals("a{{1}}", label="soft")
    for name in ("d3pm", "sedd"):
        with pytest.raises(UserError, match="say how long it is"):
            make(name).marginals("a{{1-3}}")


@pytest.mark.parametrize("settings", [["model.method=ar"], ["model.method=ssd-lm", "simplex.block=8"]], ids=str)
def test_a_model_that_fills_no_masks_says_so(settings: list[str]) -> None:
    lm = random_lm(bytes_tokenizer(), LENGTH, *settings)
    with pytest.raises(UserError, match="no distribution at a position inside a text"):
        lm.marginals("a{{1}}b")


def test_a_network_that_predicts_nothing_says_so() -> None:
    lm = random_lm(bytes_tokenizer(), LENGTH)
    with torch.no_grad():
        next(lm.model.parameters()).fill_(float("nan"))
    with pytest.raises(UserError, match="NaN"):
        lm.marginals("a{{1}}b")
