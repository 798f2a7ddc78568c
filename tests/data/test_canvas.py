"""From typed text to canvases and back: what was given comes back byte for byte, whatever the tokenizer does to it."""

from __future__ import annotations

import itertools
import re
from unittest import mock

import pytest
import torch
from hypothesis import given
from hypothesis import settings as effort
from hypothesis import strategies as st

from support.writers import ALL, MAKERS, OWN, REAL, make
from unmask.data.canvas import LONGEST, Canvas, Gap, parse_gaps
from unmask.lm import LM
from unmask.types import UserError

# No braces (they are gaps), no lone surrogates (no UTF-8); many spaces, line breaks and characters of 1-4 bytes.
LETTERS = st.sampled_from(list("ab  \n\t'.#ÉÀßnaïve日🙂\u0301\u200d\x00\u00a0\ufffd"))
TEXTS = st.one_of(
    st.text(LETTERS, max_size=5),
    st.text(st.characters(exclude_categories=["Cs"], exclude_characters="{}"), max_size=3),
    st.sampled_from(["", " ", "the Cat ", " cats playING", "[MASK]", "<|endoftext|>", "##s", "don't", "  ", "a\r\n"]),
)
SIZES = st.tuples(st.integers(1, 3), st.integers(0, 2))


def spell(sizes: tuple[int, int]) -> str:
    low, more = sizes
    return f"{{{{{low}-{low + more}}}}}" if more else f"{{{{{low}}}}}"


def pasted(parts: list[str], text: str) -> bool:
    """Whether a text is the parts in their order with only gaps between them."""
    return re.fullmatch("(.*?)".join(map(re.escape, parts)), text, re.DOTALL) is not None


# -- byte for byte ---------------------------------------------------------------------------------------------------


@ALL
@effort(max_examples=12)
@given(data=st.data(), parts=st.lists(TEXTS, min_size=2, max_size=4), seed=st.integers(0, 2**62))
def test_given_text_comes_back_byte_for_byte(kind: str, data: st.DataObject, parts: list[str], seed: int) -> None:
    lm = make(kind)
    sizes = [data.draw(SIZES) for _ in parts[1:]]
    template = parts[0] + "".join(spell(size) + part for size, part in zip(sizes, parts[1:], strict=True))
    tokens = sum(len(lm.encode(lm.prompt_builder.before_gap(part))) for part in parts[:-1]) + len(lm.encode(parts[-1]))
    ranged = any(more for _, more in sizes)
    if tokens + sum(low for low, _ in sizes) > 40 or (ranged and not tokens):
        with pytest.raises(UserError, match=r"the 40 |needs given text"):
            lm.gap_canvas(template, draws=2)
        return
    canvas = lm.gap_canvas(template, draws=2)
    assert len(canvas.lengths) == len(sizes)
    assert all(low <= size <= low + more for size, (low, more) in zip(canvas.lengths, sizes, strict=True))
    masks = canvas.ids == lm.tokenizer.vocab.mask
    assert int(masks.sum()) == sum(canvas.lengths)
    [sample] = lm.write([canvas], seed=seed, steps=3)
    assert pasted(parts, sample.text), (parts, sample.text)
    assert torch.equal(torch.tensor(sample.ids)[~masks], canvas.ids[~masks])
    if kind == "bytes":
        assert sample.text == by_hand(lm, parts, canvas.lengths, sample.ids)


def by_hand(lm: LM, parts: list[str], lengths: list[int], ids: list[int]) -> str:
    """The same text from bytes alone: an end of text (and padding, which is nothing) between other text is a break."""
    vocab, rest = lm.tokenizer.vocab, list(ids)
    runs: list[str | list[int]] = [parts[0]]
    for length, part in zip(lengths, parts[1:], strict=True):
        del rest[: len(runs[-1].encode()) if isinstance(runs[-1], str) else 0]
        written, rest = rest[:length], rest[length:]
        if runs[-1] == "" and len(runs) > 1:  # gaps without text between them are one
            runs.pop()
            runs[-1] = [*runs[-1], *written]  # type: ignore[list-item]
        else:
            runs.append(written)
        runs.append(part)
    text, broken = "", False
    for i, run in enumerate(runs):
        if isinstance(run, str):
            text += ("\n" if broken and run else "") + run
            continue
        tokens = [token for token in run if token != vocab.pad]
        pieces: list[str] = []
        for piece in re.split("E+", "".join("E" if token == vocab.eos else f"{token:02x}" for token in tokens)):
            pieces.append(bytes.fromhex(piece).decode("utf-8", "replace"))
        if len(pieces) > 1 and pieces[-1] == "":
            pieces.pop()
        if len(pieces) > 1 and pieces[0] == "" and not any(isinstance(r, str) and r for r in runs[:i]):
            pieces.pop(0)
        text += "\n".join(pieces) if any(pieces) else ""
        broken = bool(text) and run[-1] == vocab.eos
    return text


@ALL
@effort(max_examples=20)
@given(prompt=TEXTS, suffix=TEXTS, length=st.integers(1, 40), seed=st.integers(0, 2**62))
def test_prompts_and_suffixes_stay(kind: str, prompt: str, suffix: str, length: int, seed: int) -> None:
    lm = make(kind)
    how = {"prompt": prompt, "suffix": suffix, "length": length, "seed": seed, "steps": 3}
    if len(lm.encode(lm.prompt_builder.before_gap(prompt))) + len(lm.encode(suffix)) >= length:
        with pytest.raises(UserError, match="nothing to write"):
            lm.write_samples(1, **how)
        return
    [sample] = lm.write_samples(1, **how)
    assert len(sample.ids) == length
    assert sample.text.startswith(prompt) and sample.text.endswith(suffix)
    assert len(sample.text) >= len(prompt) + len(suffix)


@OWN
@pytest.mark.parametrize("stride", [None, 11])
def test_block_ends_and_windows_change_nothing_of_it(kind: str, stride: int | None) -> None:
    lm = make(kind, "data.block_ends=true")
    parts = ["The CAFÉ\n ", " of\n\nthe ", "", "  x. "]
    text = "{{2}}".join(parts)
    for sample in lm.write([lm.gap_canvas(text, windowed=stride is not None)] * 2, stride=stride, steps=4):
        assert pasted(parts, sample.text)
        assert (sample.ids[0] == lm.tokenizer.vocab.bos) == (stride is None), "windows get their frame from the plan"
    [sample] = lm.write_samples(1, prompt=parts[0], suffix=parts[1], stride=stride, length=39, steps=4)
    assert pasted(parts[:2], sample.text) and len(sample.ids) == 39


def test_every_window_is_framed_as_rows_were_in_training() -> None:
    lm = make("bytes", "data.block_ends=true")
    vocab, seen = lm.tokenizer.vocab, []
    hidden = lm.model.hidden
    with mock.patch.object(lm.model, "hidden", lambda z, *more: seen.append(z) or hidden(z, *more)):  # type: ignore[func-returns-value]
        [sample] = lm.write_samples(1, prompt="ab", length=90, stride=20, steps=4)
    assert len(sample.ids) == 90 and len(seen) > 4
    assert all(z.shape == (1, 40) and z[0, 0] == vocab.bos and z[0, -1] == vocab.eos for z in seen)


# -- reading ---------------------------------------------------------------------------------------------------------


def filled(lm: LM, template: str, written: list[int]) -> str:
    """A text with these tokens in its gaps."""
    canvas = lm.gap_canvas(template)
    ids = canvas.ids.clone()
    ids[ids == lm.tokenizer.vocab.mask] = torch.tensor(written)
    return lm.text(canvas, ids)


def test_an_end_of_text_between_other_text_is_a_line_break() -> None:
    lm = make("bytes")
    end, x, y = lm.tokenizer.vocab.eos or 0, ord("x"), ord("y")
    for template, written, want in [
        ("a{{3}}b", [x, end, y], "ax\nyb"),
        ("a{{3}}b", [end, x, y], "a\nxyb"),
        ("a{{3}}b", [x, y, end], "axy\nb"),
        ("a{{3}}b", [end, end, end], "a\nb"),
        ("a{{3}}", [end, end, x], "a\nx"),
        ("a{{3}}", [x, end, end], "ax"),
        ("{{3}}b", [end, end, x], "xb"),
        ("{{3}}b", [end, end, end], "b"),
        ("{{2}}{{1}}b", [x, end, y], "x\nyb"),
        ("a{{1}}b{{1}}c", [end, x], "a\nbxc"),
    ]:
        assert filled(lm, template, written) == want, (template, written)


def test_gaps_without_text_between_them_are_one() -> None:
    """A character whose bytes stand in two gaps is whole."""
    lm = make("bytes")
    assert lm.gap_canvas("a{{1}}{{2}}").parts == ["a", slice(1, 4)]
    assert lm.gap_canvas("a{{1}}{{2}}").lengths == [1, 2]
    assert filled(lm, "{{1}}{{2}}b", list("日".encode())) == "日b"
    assert filled(lm, "a{{2}}b", list("日".encode()[:2])) == "a\ufffdb"


@pytest.mark.parametrize("kind", ["wordpiece", "bert-base-uncased"])
def test_wordpiece_sets_words_apart_but_never_twice(kind: str) -> None:
    lm = make(kind)
    [cat], [dot] = lm.encode("cat"), lm.encode(".")
    [ing] = lm.encode("playing")[1:] or [
        next(i for i in range(lm.tokenizer.vocab.size) if lm.tokenizer.piece(i) == "##ing")
    ]
    for template, token, want in [
        ("The{{1}}", cat, "The cat"),
        ("The {{1}}", cat, "The cat"),
        ("The\n{{1}}", cat, "The\ncat"),
        ("The\t {{1}} SAT", cat, "The\t cat SAT"),
        ("{{1}}SAT", cat, "catSAT"),
        (" {{1}}", cat, " cat"),
        ("The{{1}}", dot, "The."),
        ("CAN{{1}}", ing, "CANing"),
        ("CAN {{1}}", ing, "CAN ing"),
    ]:
        assert filled(lm, template, [token]) == want, template
    assert filled(lm, "{{1}}\n{{1}}", [cat, cat]) == "cat\ncat"


@pytest.mark.parametrize("kind", ["bpe", "gpt2"])
def test_the_space_before_a_gap_is_its_first_word_s(kind: str) -> None:
    lm = make(kind)
    [the], [space_the] = lm.encode("the"), lm.encode(" the")
    assert the != space_the
    for given_text, token, want in [
        ("a {{1}}", space_the, "a the"),
        ("a {{1}}", the, "a the"),
        ("a{{1}}", space_the, "a the"),
        ("a{{1}}", the, "athe"),
        ("a  {{1}}", space_the, "a  the"),
        ("a\n{{1}}", space_the, "a\n the"),
    ]:
        assert filled(lm, given_text, [token]) == want, given_text
    assert lm.gap_canvas("a {{1}}").ids.tolist() == [*lm.encode("a"), lm.tokenizer.vocab.mask]


@OWN
def test_a_prefix_of_the_canvas_reads_as_a_prefix_of_the_text(kind: str) -> None:
    lm = make(kind)
    for sample in lm.write([lm.gap_canvas("The {{9}} café\n{{7}}{{3}}")] * 8, steps=2, temperature=3.0):
        canvas, ids = lm.gap_canvas("The {{9}} café\n{{7}}{{3}}"), torch.tensor(sample.ids)
        whole = lm.prompt_builder.text(canvas, ids)
        for upto in range(len(ids) + 1):
            part = lm.prompt_builder.text(canvas, ids, upto).rstrip("\ufffd")  # the beginning of a character
            assert whole.startswith(part), (upto, part, whole)
        assert lm.prompt_builder.text(canvas, ids, len(ids)) == whole == sample.text


def test_whether_a_text_ends_in_a_gap() -> None:
    for kind in MAKERS:
        lm = make(kind)
        assert lm.gap_canvas("a{{1}}").open_end and lm.prompt_canvas("a", 9).open_end and lm.prompt_canvas("").open_end
        assert not lm.gap_canvas("{{1}} ").open_end and not lm.prompt_canvas("a", 9, "b").open_end
    assert Canvas(torch.tensor([1]), [slice(0, 1), ""]).open_end


# -- gaps as they are typed ------------------------------------------------------------------------------------------


def test_gaps_are_parsed() -> None:
    assert parse_gaps("a{{3}}b{{ 2 - 6 }}") == ["a", Gap(3, 3), "b", Gap(2, 6), ""]
    assert parse_gaps("{{007}}{{1-1}}") == ["", Gap(7, 7), "", Gap(1, 1), ""]
    for wrong, why in [
        ("{{6-2}}", r"smaller length first, \{\{2-6\}\}"),
        ("{{0-3}}", "is not a gap"),
        ("{{1-}}", "is not a gap"),
        ("{{-3}}", "is not a gap"),
        ("{{1-2-3}}", "is not a gap"),
        ("{{1–3}}", "is not a gap"),
        ("{{a}}", "is not"),
        ("{{1-0}}", "is not a gap"),
        ("x", "no gap"),
        ("", "no gap"),
        ("a {3} b", r"no gap to fill; \{3\} has one brace on either side, write \{\{3\}\}"),
        ("a {{3} b", r"'\{\{3\}' is half a gap; write \{\{3\}\}"),
        ("a {{2-6 b", r"is half a gap; write \{\{2-6\}\}"),
        ("{{1}} and {3}} b", r"'\{3\}\}' is half a gap; write \{\{3\}\}"),
        ("{{1}} and {{3", r"'\{\{3' is half a gap"),
        ("{{3} and {{2}}", "is not a gap"),
        ("snake_case __init__", "no gap"),
    ]:
        with pytest.raises(UserError, match=why):
            parse_gaps(wrong)


def test_blanks_and_masks_are_gaps_too() -> None:
    assert parse_gaps("The ___ sat on __.") == ["The ", Gap(3, 3), " sat on ", Gap(2, 2), "."]
    assert parse_gaps("[MASK][MASK] sat __") == ["", Gap(2, 2), " sat ", Gap(2, 2), ""]
    assert parse_gaps("____ {{2}} [MASK] f{3}") == ["____ ", Gap(2, 2), " [MASK] f{3}"]  # braces say what is a gap


@effort(max_examples=60)
@given(
    st.lists(st.tuples(st.integers(1, 30), st.integers(0, 30)), min_size=1, max_size=4),
    st.integers(0, 30),
    st.booleans(),
)
def test_candidates_are_all_lengths_that_fit(sizes: list[tuple[int, int]], given_tokens: int, framed: bool) -> None:
    lm = make("bytes", *(["data.block_ends=true"] if framed else []))
    gaps = [Gap(low, low + more) for low, more in sizes]
    parts: list[str | Gap] = ["x" * given_tokens]
    for gap in gaps:
        parts += [gap, ""]
    room = 40 - given_tokens - framed
    every = itertools.product(*(range(gap.low, gap.high + 1) for gap in gaps))
    want = [list(lengths) for lengths in every if sum(lengths) <= room]
    if len(want) > 256:
        with pytest.raises(UserError, match="more than 256 combinations"):
            lm.prompt_builder.candidates(parts)
    elif not want and any(more for _, more in sizes):
        with pytest.raises(UserError, match="longer than the 40 tokens"):
            lm.prompt_builder.candidates(parts)
    elif want:
        found = lm.prompt_builder.candidates(parts)
        assert found == want
        assert all(len(lm.prompt_builder.gaps(parts, lengths).ids) <= 40 for lengths in found)


def test_ranges_without_end_are_cut_to_what_fits() -> None:
    lm = make("bytes")
    assert list(lm.gap_canvas("abc{{1-999999999}}" + "d" * 34, draws=2).nats) == ["1", "2", "3"]
    with pytest.raises(UserError, match="more than 256"):
        lm.gap_canvas("a{{1-999999999}}{{1-999999999}}")
    with pytest.raises(UserError, match="even the shortest"):
        lm.gap_canvas("x" * 30 + "{{11-12}}")
    many = lm.gap_canvas("a" + "{{1}}" * 37 + "{{1-2}}", draws=2)
    assert list(many.nats) == ["+".join(["1"] * 38), "+".join(["1"] * 37 + ["2"])]


def test_lengths_nobody_can_write() -> None:
    lm = make("bytes")
    for call in (
        lambda: lm.gap_canvas("{{999999999}}", windowed=True),
        lambda: lm.gap_canvas("{{4000000}}{{4000000}}", windowed=True),
        lambda: lm.prompt_canvas("a", 999999999999, windowed=True),
    ):
        with pytest.raises(UserError, match=f"{LONGEST:,}"):
            call()
    assert len(lm.prompt_canvas("a", 100_000, windowed=True).ids) == 100_000


def test_real_tokenizers_are_tested_where_they_are_there() -> None:
    for kind in REAL:
        lm = make(kind)
        assert lm.prompt_builder.joins_spaces and lm.prompt_builder.drops_spaces == (kind != "gpt2")
