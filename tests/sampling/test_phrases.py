"""Banned words of several tokens: they never appear, under any sampler, and the law is the one that is documented."""

from __future__ import annotations

import functools
import itertools
import math

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from oracles.enumeration import CLEAN, MASK, SCHEDULES, TableNet
from oracles.laws import collect
from support.drawing import Case, each_plan, judge, keys_of, mixed, model_of, plan_for, texts
from support.helpers import random_lm, refused, run
from unmask.data.tokenization import bpe_tokenizer, bytes_tokenizer, chars_tokenizer
from unmask.errors import UserError
from unmask.models.masked import MaskedDiffusion
from unmask.sampling import Choice, LeftToRight, RevealPlan, Rules
from unmask.sampling.phrases import Phrase

TABLE = [b"a", None, b"ab", b"c"]  # c is in no word, so there is always something to write
WORDS = (b"aa", b"ba")
assert MASK == 1 and CLEAN == [0, 2, 3]


def rules() -> Rules:
    phrases = tuple(Phrase(word, TABLE) for word in WORDS)
    return Rules(frozenset(token for phrase in phrases for token in phrase.alone()), phrases=phrases)


def spells(z: tuple[int, ...]) -> bool:
    """Whether a run of known tokens spells a banned word: brute force."""
    known = "".join("?" if token == MASK else TABLE[token].decode() for token in z)
    return any(word.decode() in known for word in WORDS)


def written(z, guess, group):
    """(state, chance): the positions of a group from left to right, each without what would complete a word."""
    if not group:
        yield z, 1.0
        return
    at, *rest = sorted(group)
    weights = {y: math.exp(guess[at][y]) for y in CLEAN if not spells((*z[:at], y, *z[at + 1 :]))}
    total = sum(weights.values())
    for y, weight in weights.items():
        for state, chance in written((*z[:at], y, *z[at + 1 :]), guess, rest):
            yield state, chance * weight / total


def grouped(start, groups):
    """The law of groups one after the other."""
    law, net = {start: 1.0}, plain()
    for group in groups:
        law = collect((s, chance * p) for z, chance in law.items() for s, p in written(z, net(z, math.nan), group))
    return law


def revealed(start, steps):
    """The law of `RevealPlan`: every position has its step, all steps are equally likely (log-linear, no eps)."""
    free = [i for i, token in enumerate(start) if token == MASK]
    plans = list(itertools.product(range(steps), repeat=len(free)))
    parts = []
    for plan in plans:
        groups = [[p for p, step in zip(free, plan, strict=True) if step == now] for now in range(steps)]
        parts += [(x, p / len(plans)) for x, p in grouped(start, groups).items()]
    return collect(parts)


@functools.cache
def network() -> TableNet:
    return TableNet.random(21)


plain = functools.cache(lambda: network().denoiser())
M3 = (MASK,) * 3
CASES = {
    "one at a time": Case(LeftToRight(), lambda: grouped(M3, [[0], [1], [2]]), control=rules()),
    "two at a time": Case(LeftToRight(2), lambda: grouped(M3, [[0, 1], [2]]), control=rules()),
    "all at once": Case(LeftToRight(3), lambda: grouped(M3, [[0, 1, 2]]), control=rules()),
    "around given text": Case(
        LeftToRight(2), lambda: grouped((MASK, 0, MASK), [[0, 2]]), (MASK, 0, MASK), control=rules()
    ),
    "in steps": Case(RevealPlan(2), lambda: revealed(M3, 2), control=rules()),
}


@functools.cache
def drawn():
    model = MaskedDiffusion(network(), SCHEDULES["log-linear uncut"])
    return dict(zip(CASES, mixed(model, list(CASES.values()), keys_of(400), batch_size=100), strict=True))


@pytest.mark.parametrize("case", CASES)
def test_the_law_is_that_of_the_enumeration(case):
    assert judge(drawn()[case], CASES[case].law()) > 1e-3


@each_plan
def test_a_word_never_appears_under_any_sampler(name):
    canvases = [[MASK] * 3, [0, MASK, 0], [MASK, 2, MASK], [MASK, MASK]] * 3
    plans = [plan_for(name, canvas) for canvas in canvases]
    for choice in (Choice(), Choice(temperature=0), Choice(top_p=0.6)):
        rest = texts(model_of(), canvases, plans, keys_of(12), controls=[rules()] * 12, choice=choice)
        assert not any(spells(tuple(text)) for text in rest)


@effort(max_examples=60)
@given(
    st.lists(st.sampled_from([0, 2, 3, MASK, 4]), min_size=1, max_size=6),
    st.data(),
    st.sampled_from([b"ab", b"ba", b"aab", b"abab", b"cba", b"bb"]),
)
def test_what_is_forbidden_is_what_would_spell_the_word(canvas, data, word):
    table = [b"a", b"cab", b"ab", b"b", b"", None]
    mask = 5
    canvas = [mask if token == MASK else token for token in canvas]
    position = data.draw(st.integers(0, len(canvas) - 1))
    phrase = Phrase(word, table)
    canvas[position] = mask

    def count(ids) -> int:
        text = b"".join(b"?" if token == mask else table[token] for token in ids)
        return sum(text.startswith(word, i) for i in range(len(text)))

    forbidden = {*phrase.forbidden(canvas, position, mask).tolist(), *phrase.alone()}
    for token in (0, 1, 2, 3):
        filled = [*canvas[:position], token, *canvas[position + 1 :]]
        assert (count(filled) > count(canvas)) == (token in forbidden), (canvas, position, token)


# -- as a user says it ----------------------------------------------------------------------------------------------

CORPUS = ["the naïve café of the 日本 and the 🙂 of the other café, again and again"] * 3


@pytest.mark.parametrize(
    ("tokenizer", "word"),
    [
        (bytes_tokenizer(), "th"),
        (bytes_tokenizer(), "é"),
        (chars_tokenizer(CORPUS), "an"),
        (bpe_tokenizer(CORPUS, 270), "ou"),
    ],
    ids=["bytes", "a character", "chars", "bpe"],
)
def test_a_word_is_banned_by_its_text(tokenizer, word):
    """Nothing but the tokens of the word may be written, all of them about equally likely."""
    lm = random_lm(tokenizer, "data.length=24")
    tokens = lm.encode(word)
    assert len(tokens) > 1
    for how in ({"sampler": "plan", "steps": 3}, {"sampler": "confidence", "k": 2}, {"sampler": "gibbs", "steps": 40}):
        how = {**how, "only": [*tokens, " "], "temperature": 100.0, "seed": 1}
        assert any(word in text for text in lm.infill("a {{20}}", 4, **how))
        without = lm.infill("a {{20}}", 4, ban=[word], **how)
        assert not any(word in text for text in without)
    assert lm.infill("a {{20}}", ban=[word * 9], seed=1) == lm.infill("a {{20}}", seed=1)  # it would not occur


def test_what_cannot_be_banned_is_said():
    lm = random_lm(bytes_tokenizer(), "data.length=8", "model.method=ssd-lm", "simplex.block=4")
    with pytest.raises(UserError, match=r"'ab' is 2 tokens .* 'simplex' writes many tokens at once"):
        lm.sample(ban=["ab"])
    masked = random_lm(bytes_tokenizer(), "data.length=8")
    for where in ({"only": ["ab"]}, {"allowed": {0: ["ab"]}}):
        with pytest.raises(UserError, match="only and allowed work on single tokens"):
            masked.sample(**where)
    with pytest.raises(UserError, match="leave no token to write"):
        masked.infill("a{{2}}", ban=["ab", "bb"], only=["b"])


def test_the_command_line_bans_words():
    gap = "One day, a girl named {{1}} went to the {{1}}."
    filled = run("sample", "tiny-en", "--infill", gap, "-n", "6", "--ban", "Lily went", "--json")
    assert all("Lily went" not in sample["text"] for sample in filled.json()["samples"])
    assert filled.json()["protocol"]["ban"] == ["Lily went"]
    assert "empty" in refused("sample", "tiny-en", "--infill", gap, "--ban", "")
