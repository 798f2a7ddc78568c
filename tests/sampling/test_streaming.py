"""Streaming: pieces add up to the text, come as soon as they are fixed, and nothing that was shown ever changes."""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any
from unittest import mock

import pytest

from support.helpers import run, trained
from support.writers import EACH_SAMPLER, REAL, SAMPLERS, forced, make
from unmask.data.canvas import Canvas
from unmask.lm import LM, Job, TextStream
from unmask.sampling.params import SamplingParams
from unmask.types import Sample


def watch(lm: LM, canvas: Canvas, **how: Any) -> tuple[list[str], Sample]:
    """The pieces of a canvas (empty ones too, one a state), and the sample."""
    job = Job(canvas, SamplingParams(**how))
    pieces, shown, last = TextStream(lm.prompt_builder, canvas, job.options.stop), [], None
    for state, sample in lm.run([job]):
        shown.append(pieces(state, sample))
        last = sample
    assert last is not None
    return shown, last


def same_text(lm: LM, canvas: Canvas, **how: Any) -> tuple[list[str], Sample]:
    """`watch`, with what must always hold."""
    shown, sample = watch(lm, canvas, **how)
    assert "".join(shown) == sample.text
    [alone] = lm.write([canvas], **how)
    assert (alone.text, alone.ids, alone.stopped) == (sample.text, sample.ids, sample.stopped)
    return shown, sample


def target(lm: LM, text: str | bytes | list[int], prompt: str = "", **how: Any) -> tuple[list[str], Sample]:
    """Pieces of a model that is made to write this text."""
    tokens = text.encode() if isinstance(text, str) else text
    wanted = [*lm.encode(prompt), *tokens]
    canvas = lm.prompt_canvas(prompt, len(wanted), windowed="stride" in how)
    return same_text(lm, canvas, constrain=forced(wanted), **how)


# -- the pieces are the text -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["bytes", pytest.param("bpe", marks=pytest.mark.slow), "wordpiece"])
@EACH_SAMPLER
def test_pieces_add_up_to_the_text(kind: str, how: dict[str, Any]) -> None:
    add_up(make(kind), how)


@pytest.mark.parametrize("kind", REAL)
@pytest.mark.parametrize("name", ["plan", "three at a time", "remasking windows"])
def test_pieces_of_real_tokenizers_add_up_to_the_text(kind: str, name: str) -> None:
    add_up(make(kind), SAMPLERS[name])


def add_up(lm: LM, how: dict[str, Any]) -> None:
    windowed = "stride" in how
    same_text(lm, lm.prompt_canvas("The café ", 24, windowed=windowed), temperature=1.5, **how)
    gaps = lm.gap_canvas("{{6}} the Cat\n{{4}}{{2}} sat. ", windowed=windowed)
    shown, sample = watch(lm, gaps, temperature=1.5, seed=1, **how)
    assert "".join(shown) == sample.text


@pytest.mark.parametrize("kind", ["bytes", pytest.param("wordpiece", marks=pytest.mark.slow)])
@EACH_SAMPLER
def test_stops_and_ends_of_text_in_random_text(kind: str, how: dict[str, Any]) -> None:
    """Short stop strings that random text often has, in every way of writing; what was shown was never too much."""
    lm = make(kind)
    stops = ["e", "1a", "s t", "\n", "##"] if kind == "wordpiece" else ["\x01", "ab", "e", "\n", "\ufffd\ufffd"]
    reasons = set()
    for seed in range(2):
        canvas = lm.prompt_canvas("a", 24, windowed="stride" in how)
        _, sample = same_text(lm, canvas, seed=seed, stop=stops, stop_at_eos=True, temperature=2.0, **how)
        assert not any(stop in sample.text[1:] for stop in stops)
        reasons.add(sample.stopped)
    assert reasons & {"stop", "eos"}


def test_the_stream_of_a_model_is_its_sample() -> None:
    lm = make("bpe")
    for name in ("plan", "left-to-right", "remask-cap", "windows"):
        how = {"prompt": "the ", "length": 60 if name == "windows" else 25, "seed": 3, **SAMPLERS[name]}
        pieces = list(lm.stream(**how))
        assert "".join(pieces) == lm.sample(1, **how)[0] and all(pieces)


# -- as soon as possible ---------------------------------------------------------------------------------------------


def test_left_to_right_streams_token_by_token() -> None:
    assert target(make("bytes"), "tiger", "a ", sampler="left-to-right")[0] == ["a t", "i", "g", "e", "r"]
    assert target(make("bytes"), "tiger", sampler="left-to-right", k=2)[0] == ["ti", "ge", "r"]


def test_what_is_fixed_is_shown_and_nothing_else() -> None:
    """A given order: a token is shown when all before it are written, with the given text that follows it."""
    lm = make("bytes")
    canvas = lm.gap_canvas("a{{2}}BC{{2}}D")
    wanted = [*b"axyBCzwD"]
    shown, _ = same_text(lm, canvas, sampler="order", order=[2, 0, 1, 3], constrain=forced(wanted))
    assert shown == ["a", "x", "yBCz", "wD"]


@pytest.mark.parametrize("name", ["remask-cap", "remask-rescale", "remask-loop", "corrector"])
def test_what_may_be_taken_back_is_not_shown(name: str) -> None:
    shown, sample = target(make("bytes"), "tiger tiger burning", "a ", **SAMPLERS[name])
    assert len(shown) > 2 and [piece for piece in shown if piece] == ["a ", sample.text[2:]]


def test_windows_stream_window_by_window() -> None:
    """Also with a remasking sampler: what a window has written never changes."""
    lm = make("bytes")
    text = "".join(chr(97 + i % 26) for i in range(100))
    shown, sample = target(lm, text, **SAMPLERS["remasking windows"])
    lengths = [len(piece) for piece in shown if piece]
    assert sample.text == text and lengths == [40, 9, 9, 9, 9, 9, 9, 6]


@pytest.mark.parametrize("kind", ["wordpiece", "bert-base-uncased"])
def test_other_tokenizers_stream_too(kind: str) -> None:
    lm = make(kind)
    text = lm.encode("the cat can ' t play ( on ) the mat , cats . playing dogs ! the end")[:24]
    shown, sample = target(lm, text, "The CAT", sampler="left-to-right")
    assert len([piece for piece in shown if piece]) > 10
    assert sample.text.startswith("The CAT the cat can ' t play")


# -- characters and stop strings are whole ---------------------------------------------------------------------------


def test_half_a_character_is_held_back() -> None:
    shown, _ = target(make("bytes"), "é日🙂!", sampler="left-to-right")
    assert shown == ["", "é", "", "", "日", "", "", "", "🙂", "!"]
    shown, _ = target(make("bytes"), b"a\xe6\x97b\xff\xf0", sampler="left-to-right")
    assert shown == ["a", "", "", "\ufffdb", "", "\ufffd\ufffd"], "bytes that never become a character are shown late"
    shown, _ = target(make("bytes"), "日本".encode(), sampler="left-to-right", k=2)
    assert shown == ["", "日", "本"]


@EACH_SAMPLER
def test_no_part_of_a_stop_string_is_ever_shown(how: dict[str, Any]) -> None:
    lm = make("bytes")
    for text, want in [
        ("abc st sto stop more", "abc st sto "),
        ("ab stam stamp stop", "ab stam "),
        ("ab sto", "ab sto"),
        ("stop", ""),
    ]:
        shown, sample = target(lm, text, "sto", stop=["stop", "stamp"], **how)
        assert sample.text == "sto" + want
        assert sample.stopped == ("length" if len(want) == len(text) else "stop")
        assert all(sample.text.startswith("".join(shown[:i])) for i in range(len(shown) + 1))


def test_stop_strings_delay_no_more_than_they_must() -> None:
    shown, _ = target(make("bytes"), "abcdefg", sampler="left-to-right", stop=["xyz"])
    assert shown == ["", "", "a", "b", "c", "d", "efg"]


def test_an_end_of_text_ends_the_stream() -> None:
    lm = make("bytes")
    shown, sample = target(lm, [*b"ab", 256, *b"cd"], sampler="left-to-right", stop_at_eos=True)
    assert (shown, sample.stopped, sample.network_calls) == (["a", "b", ""], "eos", 3)
    shown, sample = target(lm, [*b"ab", 256, 256, *b"cd"], sampler="left-to-right")
    assert (shown, sample.stopped) == (["a", "b", "", "", "\nc", "d"], "length")


def test_a_stop_frees_the_work() -> None:
    """Nine texts, two at a time: those that stop make room, and the network is called less often."""
    lm = make("bytes")
    texts = [(b"a.", ["."]), (b"abcdef.", ["."]), (b"a", []), *[(b"b.", ["."])] * 6]
    options = [
        SamplingParams(sampler="left-to-right", constrain=forced([*text.ljust(40, b"x")]), stop=stop)
        for text, stop in texts
    ]
    jobs = [Job(lm.prompt_canvas("", 40), own) for own in options]
    calls = []
    hidden = lm.model.hidden
    with mock.patch.object(
        lm.model, "hidden", lambda z, *more, **named: calls.append(len(z)) or hidden(z, *more, **named)
    ):
        samples = {state.row: sample for state, sample in lm.run(jobs, batch_size=2) if sample}
    assert [samples[row].text for row in range(9)] == ["a", "abcdef", "a" + "x" * 39, *["b"] * 6]
    assert [samples[row].network_calls for row in range(9)] == [2, 7, 40, *[2] * 6]
    assert sum(calls) == 2 + 7 + 40 + 12 and max(calls) == 2


def test_a_stream_that_nobody_reads_to_its_end() -> None:
    lm = make("bytes")
    lm.model.train()
    stream = lm.stream("a", length=20)
    next(stream)
    assert not lm.model.training
    stream.close()  # type: ignore[attr-defined]
    assert lm.model.training
    lm.model.eval()


# -- the command line ------------------------------------------------------------------------------------------------

COMMANDS = [
    ["--prompt", "one ", "--length", "24"],
    ["--prompt", "one é日", "--sampler", "left-to-right", "-k", "2"],
    ["--infill", "one {{3}} three {{4}}.\n", "--sampler", "confidence", "--threshold", "0.5"],
    ["--infill", "one {{2-4}} three"],
    ["--prompt", "one", "--suffix", " four.\n", "--length", "30", "--sampler", "remask-cap", "--steps", "20"],
    ["--length", "70", "--stride", "9", "--temperature", "0.7"],
    ["--length", "70", "--stride", "9", "--temperature", "0.5", "--stop", "our", "--stop", ".\n", "--stop-at-eos"],
    ["--sampler", "order", "--order", "2,0,1", "--infill", "{{3}}x", "--top-k", "3", "--min-p", "0.1", "--ban", "z"],
]


@pytest.mark.parametrize(
    "args",
    [
        pytest.param(args, id=" ".join(args)[:40], marks=[pytest.mark.slow] if number in (3, 4, 5) else [])
        for number, args in enumerate(COMMANDS)
    ],
)
def test_streamed_text_is_that_of_json(args: list[str], tmp_path: Path) -> None:
    """And of --jsonl, of --watch, and of the replay."""
    command = ["sample", str(trained()), *args, "--seed", "4"]
    plain, document = run(*command), run(*command, "--json").json()
    [sample] = document["samples"]
    assert plain.code == 0 and plain.out == sample["text"] + "\n" and plain.err == ""
    assert sample["stopped"] == ("stop" if "--stop" in args else "length")
    page = tmp_path / "replay.html"
    lines = run(*command, "--jsonl", "--html", str(page))
    row = json.loads(lines.out)
    assert lines.out.count("\n") == 1 and lines.err == f"replay: {page}\n"
    assert row.items() >= sample.items() and row["index"] == 0
    assert [token["id"] for token in row["tokens"]] == sample["ids"]
    assert all((token["step"] is None) == (token["prob"] is None) == token["given"] for token in row["tokens"])
    content = page.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")  # a name, not an address
    assert not re.search(r"https?://|src=|@import|<link", content), "one file and no network"
    assert f"<pre>{html.escape(sample['text'])}</pre>" in content
    watched = run(*command, "--watch")
    assert watched.code == 0 and watched.out == plain.out and "masks left" in watched.err


def test_several_samples_as_lines() -> None:
    command = [
        "sample",
        str(trained()),
        "--length",
        "9",
        "--prompt",
        "o",
        "-n",
        "3",
        "--seed",
        "7",
        "--batch-size",
        "2",
    ]
    ran = run(*command, "--jsonl")
    rows = [json.loads(line) for line in ran.out.splitlines()]
    assert [(row["index"], row["seed"]) for row in rows] == [(0, 7), (1, 8), (2, 9)]
    assert [row["text"] for row in rows] == [s["text"] for s in run(*command, "--json").json()["samples"]]
    assert all(row["tokens"][0] == {"id": 111, "piece": "o", "given": True, "step": None, "prob": None} for row in rows)
    assert all(0 < token["prob"] <= 1 and 0 <= token["step"] < 128 for row in rows for token in row["tokens"][1:])
    assert ran.err == ""
