"""Forms of gaps as settings: every text fits, for each kind of tokenizer, in Python and on the command line."""

from __future__ import annotations

import functools
import json
import re

import pytest
import torch

from support.helpers import random_lm, refused, run, trained
from unmask.constraints import choices, motif, open_frame, regex
from unmask.data.adopted import adopt, read_vocab_file
from unmask.data.genome.bases import dna_tokenizer
from unmask.data.tokenization import bpe_tokenizer, bytes_tokenizer, chars_tokenizer
from unmask.sampling import SamplingParams
from unmask.sampling.params import all_settings
from unmask.types import UserError

TEXT = 'the cat is 12 years old, née 2013. Was it? {"a": [1, 2]} yes, no. ' * 20


@functools.cache
def lm_of(kind, folder=None):
    if kind == "wordpiece":
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
            "yes",
            "no",
            "4",
        ]
        (folder / "vocab.txt").write_text("\n".join(words) + "\n")
        tokenizer = adopt(read_vocab_file(folder / "vocab.txt", {}), "words", {}, require_mask=True)
    else:
        made = {"bytes": bytes_tokenizer, "dna": dna_tokenizer, "chars": lambda: chars_tokenizer([TEXT])}
        tokenizer = (made | {"bpe": lambda: bpe_tokenizer([TEXT], 320)})[kind]()
    source = {"dna": ["data.tokenizer=dna"]}.get(kind, [])
    return random_lm(tokenizer, "data.length=32", *source)


@pytest.mark.parametrize(
    ("kind", "text", "pattern"),
    [
        ("bytes", "the {{6}} is", r"\d\d\.\d\d\."),
        ("bytes", "{{5}}", "[a-zé]+"),
        ("chars", "it is {{4}}. No {{3}}", r"\d+[a-z]?"),
        ("bpe", "the {{4}} is {{3}} old", r"[a-z]+( [a-z]+)*"),
        ("bpe", "the{{4}}", r" \d+,? ?[a-z]*"),
        ("bpe", "{{4}}, yes", r"[A-Z]\w+"),
        ("dna", "ACGT{{9}}ACG", "[AT]*C[AT]*"),
        ("wordpiece", "the cat is {{3}}.", r"\d+s?( no)*"),
        ("wordpiece", "the cat is{{2}}", "(yes|no|a)+, ?[a-z]*|cats"),
        ("wordpiece", "{{2}} is", "cat.|the 12"),
    ],
)
def test_every_gap_matches(kind, text, pattern, tmp_path):
    lm = lm_of(kind, tmp_path if kind == "wordpiece" else None)
    outside = re.split(r"\{\{\d\}\}", text)
    gap = f" ?({pattern})" if kind == "wordpiece" else f"({pattern})"  # WordPiece sets words apart itself
    whole = re.compile(gap.join(re.escape(part) for part in outside), re.ASCII)
    for sampler in ("plan", "confidence", "left-to-right"):
        for filled in lm.infill(text, 6, regex=pattern, sampler=sampler, stop_at_eos=False):
            assert whole.fullmatch(filled), filled


def test_an_open_text_ends_where_it_is_complete():
    lm = lm_of("bytes")
    for sample in lm.write_samples(12, prompt="a ", length=20, regex=r"\d{1,3}", stop_at_eos=None):
        assert re.fullmatch(r"a \d{1,3}", sample.text) and sample.stopped == "eos" and sample.log_weight is not None
    for text in lm.sample(4, prompt="a ", length=5, regex=r"\d*", stop_at_eos=False):
        assert re.fullmatch(r"a \d{3}", text)


SCHEMA = {
    "type": "object",
    "properties": {"a": {"type": "integer"}, "b": {"type": "array", "items": {"enum": ["x", True]}}},
    "required": ["a"],
}


@pytest.mark.parametrize("kind", ["bytes", "bpe"])
def test_json_is_valid_under_its_schema(kind):
    for text in lm_of(kind).sample(25, length=30, schema=SCHEMA):
        value = json.loads(text)
        assert (
            isinstance(value["a"], int)
            and set(value) <= {"a", "b"}
            and all(x in ("x", True) for x in value.get("b", []))
        )


def test_choices_and_forms_for_each_gap():
    lm = lm_of("bytes")
    assert set(lm.infill("it is {{3}}.", 12, choices=["yes", "no!"])) <= {"it is yes.", "it is no!."}
    for text in lm.infill(
        "a {{2}} b {{2}} c {{3}}", 8, where=[r"\d+", None, choices(["xyz", "xyy"])], stop_at_eos=False
    ):
        assert re.fullmatch(r"(?s)a \d\d b .{0,2} c xy[yz]", text) or "\n" in text
    assert all(
        re.fullmatch(r"a \d\d b \d\d", text)
        for text in lm.infill("a {{2}} b {{2}}", 4, where=r"\d+", stop_at_eos=False)
    )


def test_gaps_carry_patterns():
    lm = lm_of("bytes")
    for text in lm.infill(r"a {{2: \d+ }} b {{1}} c {{3:[xy]{2}z}}", 6, stop_at_eos=False):
        assert re.fullmatch(r"(?s)a \d\d b .* c [xy]{2}z", text)
    for text in lm.infill("a {{1-4:[0-9]{3}}} b", 2):
        assert re.fullmatch(r"a \d{3} b", text)
    assert {s.stopped for s in lm.write([lm.gap_canvas("a {{9:[01]{2}}}")] * 3, stop_at_eos=None)} == {"eos"}
    assert lm.gap_canvas("a {{2}} b").patterns == () and lm.gap_canvas("{{1}}b{{2:ab}}").patterns == (None, "ab")
    for text, said in (
        ("{{2:(}} b", "not a regular expression|missing"),
        ("{{2:}} b", "a pattern follows a colon"),
        ("{{x:ab}} b", "a pattern follows a colon"),
        ("{{2:ab}}{{1}}", "two gaps side by side"),
        ("a {{3:ab}}!", "at position 4 any token would be one too many"),
    ):
        with pytest.raises(UserError, match=said):
            lm.infill(text)
    with pytest.raises(UserError, match="gaps of the text have patterns"):
        lm.infill("{{2:ab}} b", regex="ab")


def test_dna_with_a_motif_in_an_open_frame():
    lm = lm_of("dna")
    for text in lm.infill("ACG{{12}}ACG", 8, where=motif("TATA") & open_frame()):
        gap = text[3:15]
        assert "TATA" in gap and not {gap[i : i + 3] for i in range(0, 12, 3)} & {"TAA", "TAG", "TGA"}


def test_lengths_that_do_not_fit_are_left_out():
    lm = lm_of("bytes")
    assert all(re.fullmatch(r"a \d{4} b", text) for text in lm.infill("a {{1-6}} b", 2, regex=r"\d{4}"))
    with pytest.raises(UserError, match="give it 9"):
        lm.infill("a {{1-3}} b", regex=r"\d{9}")


def test_particles_give_a_text_a_chance_and_their_worth():
    lm = lm_of("bytes")
    [sample] = lm.write_samples(1, prompt="a ", length=5, regex=r"\d*", stop_at_eos=False, particles=5, tops=0)
    assert re.fullmatch(r"a \d{3}", sample.text) and sample.log_weight is None
    assert -30 < sample.log_chance < 0 and 1 <= sample.effective <= 5.0001
    assert {"log_chance", "effective"} <= set(sample.as_dict()) and len(sample.tokens) == 5
    [again] = lm.write_samples(1, prompt="a ", length=5, regex=r"\d*", stop_at_eos=False, particles=5)
    assert again.text == sample.text
    with pytest.raises(UserError, match="cannot be watched"):
        lm.infill("a {{2}}", regex="ab", particles=2, watch=print)


def test_a_sample_is_the_same_alone_and_in_a_batch():
    lm = lm_of("bpe")
    together = lm.infill("the {{5}} is", 5, regex="[a-z ]+", seed=3)
    assert together == [lm.infill("the {{5}} is", 1, regex="[a-z ]+", seed=3 + i)[0] for i in range(5)]


@pytest.mark.parametrize(
    ("how", "said"),
    [
        ({"regex": "a{9}"}, "the 3 tokens from position 2 on cannot be a text that fits a{9}; give it 9 tokens"),
        ({"regex": "(a"}, "is not valid"),
        ({"regex": "a*", "choices": ["a"]}, "give either regex or choices"),
        ({"where": ["a", "b"]}, "where has 2 forms, but the text has 1 gaps"),
        ({"where": []}, "where has 0 forms, but the text has 1 gaps"),
        ({"choices": []}, "choices are a list of at least one text"),
        ({"where": 3}, "where=3 must be a regular expression or a Language"),
        ({"regex": "a*", "stride": 4}, "leave out the stride"),
        ({"regex": "a*", "ban": ["ab"]}, "banned words of several tokens"),
        ({"regex": "[xyz]*", "ban": ["x", "y", "z"]}, "at position 2 any token"),
        ({"schema": {"type": "integer", "maximum": 3}}, "'maximum'"),
        ({"particles": 3}, "drawn under a constraint"),
    ],
)
def test_mistakes_are_said_in_a_sentence(how, said):
    with pytest.raises(UserError, match=re.escape(said)):
        lm_of("bytes").infill("a {{3}} b", **how)


def test_a_schema_that_is_nested_too_deeply_is_said():
    with pytest.raises(UserError, match="must be a JSON schema"):
        all_settings()["schema"].parse('{"a":' * 50_000 + "1" + "}" * 50_000)


def test_protocols_name_the_form():
    assert SamplingParams(regex="a+").describe()["regex"] == "a+"
    assert SamplingParams(where=[None, regex("a+")]).describe()["where"] == [None, "a+"]
    assert SamplingParams(where=motif("TATA")).describe()["where"] == "motif TATA"
    json.dumps(SamplingParams(where="a").describe())


# -- the command line ------------------------------------------------------------------------------------------------


def test_options_of_the_command_line(tmp_path):
    model = str(trained())
    texts = run("sample", model, "--infill", "one {{3}} three", "--regex", "[a-f]+", "-n", "3", "--jsonl")
    assert all(re.fullmatch("one [a-f]{3} three", json.loads(line)["text"]) for line in texts.out.splitlines())
    (tmp_path / "form.json").write_text('{"type": "integer"}')
    document = run("sample", model, "--schema", str(tmp_path / "form.json"), "--length", "6", "--json").json()
    assert isinstance(json.loads(document["samples"][0]["text"]), int)
    drawn = run(
        "sample", model, "--infill", "one {{3}} ", "--choices", "two", "--choices", "six", "--particles", "4", "-n", "2"
    )
    assert (
        set(drawn.out.splitlines()) <= {"one two ", "one six "} and drawn.err.count("a free text fits with chance") == 2
    )
    assert "must be a JSON schema" in refused("sample", model, "--schema", "nowhere.json")
    assert "does not go with" in refused("sample", model, "--regex", "a", "--particles", "2", "--watch")


def test_lines_of_a_template(tmp_path):
    model = str(trained())
    (tmp_path / "lines.jsonl").write_text('{"text": "one {{3}}.", "choices": ["two", "six"]}\n')
    line = run("sample", model, "--template", str(tmp_path / "lines.jsonl")).out
    assert json.loads(line)["text"] in ("one two.", "one six.")


def test_class_chances_stay_on_the_rows_of_the_span():
    """The head runs on the open positions of the span, in chunks; the text is the same."""
    lm = lm_of("bytes")
    expected = lm.infill("a {{6}} b", 3, regex="[a-z]+")
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("unmask.sampling.token_step.LOGITS_AT_ONCE", 2 * lm.tokenizer.vocab.size)
        assert lm.infill("a {{6}} b", 3, regex="[a-z]+") == expected
    assert torch.is_grad_enabled()
