"""What a reader sees of tokens: characters instead of bytes, short `repr`s, and HTML that is safe in a notebook."""

from __future__ import annotations

import re
from html.parser import HTMLParser

import pytest
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

import unmask
from support.helpers import random_lm, trained
from unmask.cli.terminal import canvas_text
from unmask.data.tokenization import bpe_tokenizer, bytes_tokenizer
from unmask.errors import UserError
from unmask.pieces import characters
from unmask.sampling.recommended import Recommended

TOKENIZER = bytes_tokenizer()
BPE = bpe_tokenizer(["naïve café 日本 🙂"] * 3, 270)


@effort(max_examples=60)
@given(st.text(max_size=12).filter(lambda text: "⟨" not in text), st.sampled_from([TOKENIZER, BPE]))
def test_all_bytes_of_a_text_are_its_characters(text, tokenizer):
    pieces = characters(tokenizer.pieces(tokenizer.encode(text)))
    assert "".join(pieces) == text


@effort(max_examples=60)
@given(st.text("aé€🙂", min_size=1, max_size=6), st.data())
def test_a_character_is_shown_as_soon_as_all_its_bytes_are_known(text, data):
    """Against the slow truth: every character is looked up in the bytes of the text."""
    raw = text.encode()
    hidden = data.draw(st.sets(st.integers(0, len(raw) - 1)))
    pieces = TOKENIZER.pieces(list(raw))
    shown = characters([None if i in hidden else piece for i, piece in enumerate(pieces)])
    at, expected = 0, [""] * len(raw)
    for character in text:
        size = len(character.encode())
        places = range(at, at + size)
        if hidden.isdisjoint(places):
            expected[at] = character
        else:
            for place in places:
                expected[place] = "" if place in hidden else pieces[place]
        at += size
    assert shown == expected


def test_watch_shows_characters_and_marks_what_is_new():
    ids = list("a日🙂".encode())
    assert canvas_text(TOKENIZER, ids, set()).plain == "a日🙂"
    half = [*ids[:-1], TOKENIZER.vocab.mask]
    assert canvas_text(TOKENIZER, half, set()).plain == "a日⟨f0⟩⟨9f⟩⟨99⟩░░ "
    text = canvas_text(TOKENIZER, ids, {3})  # the last byte of the second character
    assert [text.plain[span.start : span.end] for span in text.spans if span.style] == ["日"]


# -- in a notebook -----------------------------------------------------------------------------------------------------


class Read(HTMLParser):
    """The text of an HTML fragment, and its tags."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text, self.tags = "", []
        self.feed(re.sub(r"<style>.*?</style>", "", text, flags=re.DOTALL))

    def handle_data(self, data: str) -> None:
        self.text += data

    def handle_starttag(self, tag: str, attrs: object) -> None:
        self.tags.append(tag)


@pytest.fixture(scope="module")
def lm():
    return unmask.load(trained())


def test_a_sample_is_short_as_text_and_unmasks_itself_as_html(lm):
    [sample] = lm.write_samples(prompt="<b>日&", length=24, seed=1)
    assert repr(sample).startswith("Sample('<b>日&") and len(repr(sample)) < 130
    page = Read(sample._repr_html_())
    assert page.text == sample.text and page.tags.count("b") == len("<b>日&".encode()) and "script" not in page.tags
    assert page.tags.count("span") >= 10 and "animation-delay" in sample._repr_html_()


def test_scores_are_short_and_coloured(lm):
    score = lm.score(["one two <i>", "three four."], draws=4)
    assert re.fullmatch(
        r"Likelihood\(perplexity [\d.]+ ± [\d.e+]+, [\d.]+ nats/token, 22 tokens, 2 texts\)", repr(score)
    )
    assert "one two <i>" in Read(score._repr_html_()).text and "<i>" not in score._repr_html_()
    assert Read(score.texts[0]._repr_html_()).tags.count("span") == 11


def test_a_model_is_one_line(lm):
    random = random_lm(bytes_tokenizer())
    random.recommended = Recommended({"temperature": 0.5})
    assert "\n" not in repr(lm) and len(repr(lm)) < 200 and "mdlm on dit" in repr(lm) and "32 tokens" in repr(lm)
    assert "recommends temperature 0.5" in repr(random)


# -- unknown keywords --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("call", "near"),
    [
        (lambda lm: lm.sample(temprature=1), "'temperature'"),
        (lambda lm: lm.sample(lenght=8), "'length'"),
        (lambda lm: lm.write_samples(promt="a"), "'prompt'"),
        (lambda lm: lm.infill("a {{1}}", batchsize=3), "'batch_size'"),
        (lambda lm: list(lm.stream("a", step=3)), "'steps'"),
        (lambda lm: lm.write([], top=3), "'tops'"),
        (lambda lm: lm.score("a", drwas=3), "'draws'"),
        (lambda lm: unmask.load("tiny-en", devise="cpu"), "'device'"),
        (lambda lm: lm.push_to_hub("me/m", figure={}), "'figures'"),
    ],
)
def test_an_unknown_keyword_names_the_nearest(lm, call, near):
    with pytest.raises(UserError, match=f"did you mean {near}"):
        call(lm)


def test_a_text_is_not_a_number_of_texts(lm):
    with pytest.raises(UserError, match="prompt="):
        lm.sample("Once upon a time")
