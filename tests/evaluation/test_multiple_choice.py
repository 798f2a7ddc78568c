"""Choices in a gap: their probabilities against products of the network's own distributions, order by order."""

from __future__ import annotations

import itertools
import math

import pytest
import torch

from support.helpers import random_lm
from unmask.data.tokenization import chars_tokenizer
from unmask.types import UserError

LETTERS = "abcdef "


def lm_of(*settings):
    return random_lm(chars_tokenizer([LETTERS]), "data.length=16", *settings)


@pytest.fixture(scope="module")
def lm():
    return lm_of()


def one_by_one(lm, before, choice, after, order):
    """p(choice) with its letters written in this order, from the distributions at open positions."""
    letters, chance = [None] * len(choice), 1.0
    for at in order:
        shown = "".join("{{1}}" if y is None else y for y in letters)
        [place] = [
            place
            for place in lm.marginals(before + shown + after, top=99).positions
            if place.position == len(before) + at
        ]
        chance *= place.probs[place.pieces.index(choice[at])]
        letters[at] = choice[at]
    return chance


def any_order(lm, before, choice, after):
    orders = list(itertools.permutations(range(len(choice))))
    return sum(one_by_one(lm, before, choice, after, order) for order in orders) / len(orders)


def normalised(values):
    return [value / sum(values) for value in values]


@pytest.mark.parametrize(("text", "choices"), [("ab{{}}e", "abc"), ("a{{3}}b", ["cc", "da"]), ("fe", ["abc", "aba"])])
def test_equally_long_choices_have_the_law_of_any_order(lm, text, choices):
    before, _, after = text.partition("{{3}}" if "{{3}}" in text else "{{}}")
    found = lm.choose(text, list(choices))
    expected = normalised([any_order(lm, before, choice, after) for choice in choices])
    assert [answer.probability for answer in found] == pytest.approx(expected, rel=1e-4)
    assert [answer.text for answer in found] == list(choices) and all(answer.error == 0 for answer in found)


def test_different_lengths_are_weighed_by_the_given_text(lm):
    """One given letter: its bound under a masked gap is one distribution, so all of it is exact."""
    choices, expected = ["b", "cd", "bad"], []
    for choice in choices:
        [first] = [
            place for place in lm.marginals(f"{{{{{1 + len(choice)}}}}}", top=99).positions if not place.position
        ]
        expected.append(first.probs[first.pieces.index("a")] * any_order(lm, "a", choice, ""))
    found = lm.choose("a{{}}", choices)
    assert [answer.probability for answer in found] == pytest.approx(normalised(expected), rel=1e-4)


def test_an_autoregressive_model_counts_what_follows():
    lm = lm_of("model.method=ar")
    choices = ["b", "cd", "bad"]
    whole = [lm.score(f"a{choice}f").nats for choice in choices]
    found = lm.choose("a{{}}f", choices)
    assert [a.probability for a in found] == pytest.approx(normalised([math.exp(-n) for n in whole]), rel=1e-4)
    alone = lm.choose("a", choices)
    assert sum(a.probability for a in alone) == pytest.approx(1) and alone != found


def test_blocks_are_read_from_left_to_right():
    lm = lm_of("model.method=block", "block.size=1")
    choices = ["b", "cd"]
    found = lm.choose("a", choices)
    nats = [lm.score(f"a{choice}", span=(1, 1 + len(choice)), method="exact").nats for choice in choices]
    assert [a.probability for a in found] == pytest.approx(normalised([math.exp(-n) for n in nats]), rel=1e-4)


def test_long_choices_have_an_error_that_covers_the_truth(lm, monkeypatch):
    choices = ["abcd", "dcba", "feed"]
    exact = [answer.probability for answer in lm.choose("a{{}}b", choices)]
    monkeypatch.setattr("unmask.evaluation.multiple_choice.EXACT", 2)
    found = lm.choose("a{{}}b", choices)
    for answer, p in zip(found, exact, strict=True):
        assert answer.error > 0 and abs(answer.probability - p) < 5 * answer.error + 1e-3


def test_a_choice_of_one_token_is_what_a_constraint_draws(lm):
    samples = lm.infill("ab{{1}}e", n=400, choices=["a", "f"], exact=True)
    share = sum(text == "abae" for text in samples) / 400
    p = lm.choose("ab{{1}}e", ["a", "f"])[0].probability
    assert abs(share - p) < 4.5 * math.sqrt(p * (1 - p) / 400)


@pytest.mark.parametrize(
    ("text", "choices", "said"),
    [
        ("a{{}}", ["b"], "at least two different choices"),
        ("a{{1:b|c}}", ["b", "c"], "has a pattern, and the choices say what it may be"),
        ("a{{}}", ["b", "b"], "at least two different choices"),
        ("a{{}}", ["b", ""], "none of them empty"),
        ("a{{}}", "bc", "at least two different choices"),
        ("a{{}}b{{}}", ["b", "c"], "has 2 gaps"),
    ],
)
def test_what_is_no_choice_is_said(lm, text, choices, said):
    with pytest.raises(UserError, match=said):
        lm.choose(text, choices)
    assert torch.is_grad_enabled()
