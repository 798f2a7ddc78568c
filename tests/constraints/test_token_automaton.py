"""Automata over tokens: what they read is what the bytes of the tokens spell, for every kind of vocabulary."""

from __future__ import annotations

import functools
import itertools
import math
import re

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from tokenizers import AddedToken, Tokenizer, decoders, models, pre_tokenizers

from unmask.constraints import TokenAutomaton, choices, for_tokenizer, motif, open_frame, over_tokens, regex
from unmask.data.adopted import adopt, read_vocab_file
from unmask.data.genome.bases import dna_tokenizer
from unmask.data.tokenization import bpe_tokenizer, bytes_tokenizer, chars_tokenizer
from unmask.errors import UserError

SPELLING = [b"a", None, b"ab", b"b", b"ba", "é".encode()[:1], "é".encode()[1:], "é".encode(), b"", b" a", b"c"]
MASK = 1
TEXT = 'the cat is 12 years old, née 2013. Was it? {"a": [1, 2]} yes, no. ' * 20


def spelled(tokens):
    parts = [SPELLING[token] for token in tokens]
    return None if any(part is None or part == b"" for part in parts) else b"".join(parts)


def matches(pattern, data):
    try:
        return data is not None and re.fullmatch(pattern, data.decode(), re.ASCII) is not None
    except UnicodeDecodeError:
        return False


@pytest.mark.parametrize("pattern", ["(ab)*a?", "a{2,3}|b+", "[aé]{1,3}", "(?s).*", "(a|b| )*b", "(ab|ba)+"])
def test_it_reads_what_the_bytes_spell(pattern):
    automaton = over_tokens(regex(pattern), SPELLING, MASK)
    for n in range(4):
        for tokens in itertools.product(range(len(SPELLING)), repeat=n):
            assert automaton.reads(tokens) == matches(pattern, spelled(tokens)), tokens


def parts(inner):
    return st.one_of(
        st.tuples(inner, inner).map("".join),
        st.lists(inner, min_size=1, max_size=3).map(lambda options: f"(?:{'|'.join(options)})"),
        inner.map(lambda part: f"(?:{part})*"),
    )


@settings(max_examples=80, deadline=None)
@given(
    st.recursive(st.sampled_from(["a", "b", "é", "[ab]", ".", "a{1,2}"]), parts, max_leaves=5),
    st.lists(st.lists(st.integers(0, len(SPELLING) - 1), max_size=5), min_size=4, max_size=4),
)
def test_patterns_that_nobody_chose(pattern, sequences):
    automaton = over_tokens(regex(pattern), SPELLING, MASK)
    for tokens in sequences:
        assert automaton.reads(tokens) == matches(pattern, spelled(tokens))


def dense(automaton: TokenAutomaton) -> np.ndarray:
    """(Q, V): where each token leads from each state, -1 for nowhere."""
    table = np.full((automaton.states, len(automaton.classes)), -1)
    for source, label, target in zip(automaton.source, automaton.label, automaton.target, strict=True):
        table[source, automaton.classes == label] = target
    return table


@pytest.mark.parametrize("pattern", ["(ab)*a?", "[aé]{1,3}", "(?s).*", "(ab|ba)+", "a{0,9}"])
def test_classes_are_all_tokens_with_equal_transitions_and_no_state_is_useless(pattern):
    automaton = over_tokens(regex(pattern), SPELLING, MASK)
    table = dense(automaton)
    columns = {tuple(column) for column in table.T.tolist() if max(column) >= 0}
    assert len(columns) == automaton.n_classes
    assert all((automaton.classes[token] < 0) == (table[:, token].max() < 0) for token in range(len(SPELLING)))
    assert automaton.classes[MASK] == -1
    reached, left = {0}, [0]
    for state in left:
        for target in set(table[state].tolist()) - {-1} - reached:
            reached.add(target)
            left.append(target)
    assert reached == set(range(automaton.states))
    assert (np.diff(automaton.source) >= 0).all() and len(automaton.source) == len(
        {*zip(automaton.source, automaton.label, strict=True)}
    )


def test_states_in_parts_are_the_same_automaton(monkeypatch):
    whole = over_tokens(regex("[a-cé ]{0,40}"), SPELLING, MASK)
    monkeypatch.setattr("unmask.constraints.token_automaton.AT_ONCE", 20)
    parts = over_tokens(regex("[a-cé ]{0,40}"), SPELLING, MASK)
    assert (dense(whole) == dense(parts)).all() and (whole.accepting == parts.accepting).all()


def test_an_end_of_text_may_follow_and_then_anything():
    automaton = over_tokens(regex("ab*"), SPELLING, MASK, ends=[10])
    for n in range(4):
        for tokens in itertools.product(range(len(SPELLING)), repeat=n):
            end = tokens.index(10) if 10 in tokens else n
            expected = matches("ab*", spelled(tokens[:end])) and MASK not in tokens[end:]
            assert automaton.reads(tokens) == expected, tokens


def test_a_language_that_no_token_spells():
    with pytest.raises(UserError, match="no tokens of this model's vocabulary spell a text that fits xyz"):
        over_tokens(regex("xyz"), SPELLING, MASK)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_the_chances_of_classes(dtype):
    automaton = over_tokens(regex("(ab)*a?|[é ]+"), SPELLING, MASK)
    rng = np.random.default_rng(0)
    log_p = rng.normal(size=(5, len(SPELLING))) * np.array([[1], [10], [300], [1], [2000]])
    log_p[3, ::2] = -math.inf
    sums, best = automaton.weights(torch.tensor(log_p, dtype=dtype)), automaton.best(torch.tensor(log_p, dtype=dtype))
    for row, label in itertools.product(range(5), range(automaton.n_classes)):
        values = torch.tensor(log_p, dtype=dtype)[row, torch.from_numpy(automaton.classes == label)].double()
        assert sums[row, label] == pytest.approx(float(values.logsumexp(0)), abs=1e-5)
        assert best[row, label] == pytest.approx(float(values.max()))
    nothing = automaton.weights(torch.full((1, len(SPELLING)), -math.inf, dtype=dtype))
    assert np.isneginf(nothing).all()


# -- the vocabularies of tokenizers ----------------------------------------------------------------------------------


def wordpiece(folder):
    words = [
        "[PAD]",
        "[UNK]",
        "[CLS]",
        "[SEP]",
        "[MASK]",
        "the",
        "cat",
        "is",
        "12",
        "##3",
        "##s",
        "a",
        ",",
        ".",
        "?",
        "##!",
        "yes",
        "no",
    ]
    (folder / "vocab.txt").write_text("\n".join(words) + "\n")
    return adopt(read_vocab_file(folder / "vocab.txt", {}), "words", {}, require_mask=True)


def sentencepiece(folder):
    words = ["<unk>", "▁the", "▁cat", "s", "▁", "1", "▁12", ".", "a", "<0x0A>", "<0xC3>", "<0xA9>", "<mask>"]
    backend = Tokenizer(
        models.BPE({word: i for i, word in enumerate(words)}, [], unk_token="<unk>", byte_fallback=True)
    )
    backend.pre_tokenizer = pre_tokenizers.Metaspace()
    backend.decoder = decoders.Sequence(
        [decoders.Replace("▁", " "), decoders.ByteFallback(), decoders.Fuse(), decoders.Strip(" ", 1, 0)]
    )
    backend.add_special_tokens([AddedToken("<unk>", special=True), AddedToken("<mask>", special=True)])
    return adopt(backend, "pieces", {})


KINDS = {
    "bytes": lambda _: bytes_tokenizer(),
    "chars": lambda _: chars_tokenizer([TEXT]),
    "bpe": lambda _: bpe_tokenizer([TEXT], 320),
    "dna": lambda _: dna_tokenizer(),
    "wordpiece": wordpiece,
    "sentencepiece": sentencepiece,
}


@functools.cache
def _made(kind, folder):
    return KINDS[kind](folder)


@pytest.fixture
def tokenizer(request, tmp_path):
    return _made(request.param, tmp_path)


each_kind = pytest.mark.parametrize("tokenizer", KINDS, indirect=True)


@each_kind
def test_tokens_spell_what_is_decoded(tokenizer):
    """After another word, random tokens read as their spellings side by side."""
    rng, ordinary = np.random.default_rng(0), [t for t in range(tokenizer.vocab.size) if t not in tokenizer.special]
    word = next(t for t in ordinary if (tokenizer.spelling[t] or b"").strip().isalpha())
    checked = 0
    for _ in range(300):
        tokens = rng.choice(ordinary, 4).tolist()
        data = b"".join(tokenizer.spelling[t] or b"" for t in tokens)
        try:
            text = data.decode()
        except UnicodeDecodeError:
            continue
        before, both = tokenizer.decode([word]), tokenizer.decode([word, *tokens])
        assert both == before + text
        checked += 1
    assert checked > 15


@each_kind
def test_the_automaton_of_a_tokenizer_reads_what_the_pattern_matches(tokenizer):
    pattern = "[ACGT]+" if tokenizer.kind == "dna" else r"(?s)[ \w]*[0-9a-z.]"
    automaton = for_tokenizer(regex(pattern), tokenizer)
    assert automaton is for_tokenizer(regex(pattern), tokenizer)  # compiled once
    rng = np.random.default_rng(1)
    seen = {True: 0, False: 0}
    likely = np.flatnonzero(automaton.classes >= 0)
    for _ in range(400):
        tokens = rng.choice(likely if rng.random() < 0.9 else tokenizer.vocab.size, rng.integers(1, 5)).tolist()
        special = any(token in tokenizer.special for token in tokens)
        data = b"".join(tokenizer.spelling[t] or b"" for t in tokens)
        expected = not special and matches(pattern, data)
        assert automaton.reads(tokens) == expected, tokens
        seen[expected] += 1
    assert min(seen.values()) > 5


def test_special_and_unknown_tokens_never_fit():
    for tokenizer in (bytes_tokenizer(), chars_tokenizer(["abc\n"]), dna_tokenizer()):
        automaton = for_tokenizer(regex(r"(?s).*"), tokenizer)
        assert (automaton.classes[list(tokenizer.special)] == -1).all()
        assert tokenizer.vocab.mask in tokenizer.special


def test_motifs_in_an_open_frame():
    automaton = for_tokenizer(motif("TATAWAW") & open_frame(), dna_tokenizer())
    tokenizer = dna_tokenizer()
    assert automaton.reads(tokenizer.encode("CCTATAAATCC")) and automaton.shortest == 7
    assert not automaton.reads(tokenizer.encode("CTATAAATCC"))  # TAA, in frame
    assert not automaton.reads(tokenizer.encode("CCTATAANTCC"))


def test_the_shortest_text():
    assert over_tokens(regex("(ab){3}"), SPELLING, MASK).shortest == 3
    assert over_tokens(choices(["abba", "aaaaa"]), SPELLING, MASK).shortest == 2


def test_a_form_of_the_empty_text_alone_takes_no_token():
    automaton = over_tokens(regex(""), SPELLING, MASK)
    assert automaton.reads([]) and not automaton.reads([0]) and automaton.shortest == 0


def test_an_automaton_with_too_many_transitions_or_states_is_refused(monkeypatch):
    for name, most in (("MOST_TRANSITIONS", 20), ("MOST_RUNS", 20)):
        with monkeypatch.context() as patch:
            patch.setattr(f"unmask.constraints.token_automaton.{name}", most)
            with pytest.raises(UserError, match="too many for the vocabulary"):
                over_tokens(regex("[ab]{0,50}"), SPELLING, MASK)
    assert over_tokens(regex("[ab]{0,50}"), SPELLING, MASK).states == 51


def test_the_largest_class_has_what_the_others_leave():
    """The same chances by subtraction and by sums, also of rows in which the largest class is next to nothing."""
    spelling = [None, b"1", b"22", *(bytes([97 + i % 26, 97 + i // 26]) for i in range(300))]
    automaton = over_tokens(regex("[0-9]*[a-z]*"), spelling, 0)
    logits = torch.randn(6, len(spelling), generator=torch.Generator().manual_seed(0))
    logits[:, 0] = -math.inf
    logits[1, 1] = 30.0  # a digit, all but certainly
    logits[2, 3:] = -100.0
    logits[3, 1:3] = -100.0
    log_p = torch.log_softmax(logits, -1)
    assert 2 * len(automaton._others[0]) < len(automaton.members[0])
    assert np.allclose(np.exp(automaton.chances(log_p)), np.exp(automaton.weights(log_p)), rtol=1e-5, atol=0)
    few = over_tokens(regex("[0-9]*"), spelling, 0)
    assert np.array_equal(few.chances(log_p), few.weights(log_p))


@pytest.mark.parametrize("pattern", ["a*", "(a|b)*", "(ab)*", "c?"])
def test_what_may_follow_the_end_is_not_what_may_stand_before_it(pattern):
    """Also where the first state leads to itself."""
    spelling = [None, b"a", b"b", b"c", None]  # the mask, letters, and an end
    automaton = over_tokens(regex(pattern), spelling, 0, ends=[4])
    for tokens in itertools.product(range(1, 5), repeat=3):
        text = b"".join(spelling[token] or b"." for token in tokens).decode().partition(".")[0]
        assert automaton.reads(tokens) == (re.fullmatch(pattern, text) is not None), tokens
