"""Patterns as automata over bytes: the same texts as Python's `re` accepts, and none of what cannot be followed."""

from __future__ import annotations

import itertools
import re
import string

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from unmask.constraints import Language, choices, motif, open_frame, regex
from unmask.constraints.language import LAST, _utf8
from unmask.errors import UserError

PATTERNS = [
    "", "a", "abc", "a|b", "a|", "(a|b)*abb", "a*", "a+b?", "(ab){2,3}", "a{3}", "a{,2}b", "[abc]+", "[^abc]",
    "[a-c0-9]*", r"\d+", r"\D\d", r"\w+\s\w+", r"\W\S", ".", ".{2}", "(?s).a", "(?i)ab[c-e]", "(?i)[^a]b",
    "(?i:a)b", "a.c", "[.]", r"\.", "(?:ab|a)(?:c|bcd)", "(a*)*", "(a|b|ab)*c", "a*?b", "a+?", "x{0}",
    "(?P<name>a)b", "^ab$", "^a|b$", "(^a)?b", "a(b$)?", r"\Aa\Z", "[ä-ü]", "é+", "[€-⃀]{1,2}", "[😀-😎]a?",
    "[^a]{2}", r"[\w.]+@[\w]+\.(com|org)", r"\d{1,3}(,\d{3})*", r"(\d\d)?\d\d:\d\d", "(a{1,2}){2}",
    "[a-z]+( [a-z]+){0,2}", r"-?(0|[1-9]\d*)(\.\d+)?", "(?x) a b # no more", r"[\]\\^-]", r"\x41\u00e9",
    "(a|(b|(c|d)))e", "((a|b)(c|d)){1,2}", "a{2,}", "(|a)b", r"[^\d]a", r"[^\s\w]",
]  # fmt: skip
ALPHABET = "abcdeAxé€😀1 ,.:-\n"


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_short_text_as_re_does(pattern):
    language, exact = regex(pattern), re.compile(pattern, re.ASCII)
    for n in range(4):
        for letters in itertools.product("abc1A é\n." if n == 3 else ALPHABET, repeat=n):
            text = "".join(letters)
            expected = exact.fullmatch(text) is not None
            if "$" in pattern and text.endswith("\n"):  # Python's $ is also before a last line break
                continue
            assert (text in language) == expected, (pattern, text)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_texts_that_match_are_accepted(pattern):
    language = regex(pattern)

    @settings(max_examples=25, deadline=None)
    @given(st.from_regex(re.compile(pattern, re.ASCII), fullmatch=True))
    def accepted(text):
        assert text in language or ("$" in pattern and text.endswith("\n"))

    accepted()


def parts(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        st.tuples(inner, st.sampled_from(["*", "+", "?", "{2}", "{1,3}", "*?"])).map(
            lambda pair: f"(?:{pair[0]}){pair[1]}"
        ),
    )


LEAVES = st.sampled_from(["a", "b", "é", "[ab]", "[^a]", ".", r"\d", r"\w", "", "0", "€"])


@settings(max_examples=150, deadline=None)
@given(st.recursive(LEAVES, parts, max_leaves=6), st.lists(st.text("abé€0 \n", max_size=6), min_size=5, max_size=5))
def test_patterns_that_nobody_chose(pattern, texts):
    language, exact = regex(pattern), re.compile(pattern, re.ASCII)
    for text in texts:
        assert (text in language) == (exact.fullmatch(text) is not None)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, LAST), st.integers(0, 5000))
def test_ranges_of_characters_are_ranges_of_bytes(low, size):
    high = min(low + size, LAST)
    sequences = list(_utf8(low, high))
    for code in {low, high, (low + high) // 2, max(low - 1, 0), min(high + 1, LAST), 0xD800}:
        if 0xD800 <= code < 0xE000:
            continue
        data = chr(code).encode()
        inside = [
            s for s in sequences if len(s) == len(data) and all(a <= b <= c for (a, c), b in zip(s, data, strict=True))
        ]
        assert len(inside) == (low <= code <= high)


def test_the_automaton_is_the_smallest():
    assert [len(regex(p).delta) for p in ("(a|b)*abb", "a{5}", "abc|xbc", "(?s).", "(?a)[a-z]*")] == [4, 6, 4, 9, 1]
    assert len(regex("a$|bcd^").delta) == 2  # nothing follows a b
    both = regex("ab|cde") & regex("ab|cdf")
    assert len(both.delta) == 3 and (both.delta >= 0).sum() == 2


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        (r"(a)\1", "a reference to a group"),
        ("(?=a)a", "look-around"),
        ("a(?<!b)", "look-around"),
        (r"\bword", "a boundary of a word"),
        ("(a)?(?(1)b|c)", "a condition on a group"),
        ("(?>a)", "an atomic group"),
        ("a*+b", "a possessive repetition"),
        ("(?m)^a", "the flag m"),
        (r"(?m:a$)\nb", "the flag m"),
        (r"(?u:\W)", "the flag u"),
        ("(a", "is not valid"),
        ("[^\\s\\S]", "no text fits"),
        ("a^b", "no text fits"),
        ("[ab]*a[ab]{15}", "states"),
    ],
)
def test_what_is_no_regular_language_is_refused(pattern, said):
    with pytest.raises(UserError, match=re.escape(said)):
        regex(pattern)


def test_patterns_that_are_too_large_are_refused(monkeypatch):
    monkeypatch.setattr("unmask.constraints.language.MOST_PARTS", 1000)
    with pytest.raises(UserError, match="repeats too much"):
        regex("((a{99}){99}){99}")


@pytest.mark.parametrize(
    ("pattern", "said"),
    [
        ("(?:(?:(?:){60000}){60000}){60000}", "repeats too much"),  # of nothing
        ("[acegikmoqsuwy]{99999}", "repeats too much"),  # few states, many arcs
        ("(?:a?){5000}a{5000}", "too many ways"),
        ("(" * 2000 + "a" + ")" * 2000, "nested too deeply"),
    ],
)
def test_patterns_that_would_take_long_are_refused_on_the_way(pattern, said):
    with pytest.raises(UserError, match=said):
        regex(pattern)


def test_states_that_differ_far_ahead_are_compared_for_a_while_only(monkeypatch):
    pattern = "(?:a{99}[ab])*a{0,99}"
    assert len(regex(pattern).delta) == 100
    monkeypatch.setattr("unmask.constraints.language.MOST_COMPARED", 99_000)
    with pytest.raises(UserError, match="differ only far ahead"):
        regex("(?:a{98}[ab])*a{0,98}")


def test_choices_are_these_texts_alone():
    language = choices(["yes", "no", "naïve", "yes"])
    assert all(text in language for text in ("yes", "no", "naïve"))
    assert not any(text in language for text in ("", "ye", "yess", "nai"))
    for wrong in ([], "yes", [1]):
        with pytest.raises(UserError, match="a list of at least one text"):
            choices(wrong)


def test_the_texts_of_two_languages():
    both = regex("[ab]*") & regex(".{3}") & regex(".*a")
    assert {"".join(t) for t in itertools.product("ab", repeat=3) if "".join(t) in both} == {"aaa", "aba", "baa", "bba"}
    with pytest.raises(UserError, match="no text fits"):
        regex("a+") & regex("b+")


def test_one_space_before_a_text_is_not_part_of_it():
    language = regex(" ?ab|b").after_space
    assert [text in language for text in ("ab", " ab", "  ab", "b", " b", "  b", "", " ")] == [
        True, True, True, True, True, False, False, False,
    ]  # fmt: skip


def every_sequence(n):
    return ("".join(letters) for letters in itertools.product("ACGT", repeat=n))


def test_motifs_are_found_as_a_search_finds_them():
    language, search = motif("ywR"), re.compile("[CT][AT][AG]")
    for n in range(6):
        assert all((text in language) == (search.search(text) is not None) for text in every_sequence(n))
    assert "ACNGT" not in motif("N")
    with pytest.raises(UserError, match="'X' in the motif"):
        motif("AXA")
    with pytest.raises(UserError, match="empty"):
        motif("")


@pytest.mark.parametrize("start", [0, 1, 2])
def test_an_open_frame_has_no_stop_codon_in_it(start):
    language = open_frame(start)
    for n in range(7):
        for text in every_sequence(n):
            codons = {text[i : i + 3] for i in range(start, n - 2, 3)}
            assert (text in language) == (not codons & {"TAA", "TAG", "TGA"})
    assert "TAATGA" in open_frame(stops=["TAG"]) and "TAG" not in open_frame(stops=["TAG"])
    with pytest.raises(UserError, match="start=3"):
        open_frame(3)


def test_a_language_says_what_it_is():
    assert repr(regex("ab")) == "Language(ab, 3 states)" and isinstance(regex("ab"), Language)
    assert all(c in regex(r"\w") for c in string.ascii_letters + string.digits + "_")
