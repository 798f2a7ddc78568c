"""Template files: a bad line is named by its number and takes nobody with it; a good one is what it is alone."""

from __future__ import annotations

import io
import json
import re
import sys
from pathlib import Path
from typing import Any
from unittest import mock

import pytest
import torch

import unmask
from support.helpers import Ran, refused, run, trained
from support.writers import make
from unmask.cli.templates import BadLine, read_lines, write_template
from unmask.lm import LM
from unmask.sampling.params import SamplingParams
from unmask.types import UserError

Row = dict[str, Any]


def written(lm: LM, *rows: object, usual: SamplingParams | None = None, **how: Any) -> list[Row | BadLine]:
    """What comes of these lines (objects, or text as it stands in a file)."""
    lines = [row if isinstance(row, str) and row[:1] in ("{", "[", "n", '"') else json.dumps(row) for row in rows]
    return list(write_template(lm, list(enumerate(lines, 1)), usual or SamplingParams(), **how))


def reason(row: object, lm: LM | None = None, **usual: Any) -> str:
    """Why a line is wrong: it stands between two others, which are written all the same."""
    lm = lm or make("bytes")
    good = {"text": "a{{2}}", "seed": 3}
    before, found, after = written(lm, good, row, good, usual=SamplingParams(**usual))
    assert isinstance(before, dict) and isinstance(after, dict) and (before["line"], after["line"]) == (1, 3)
    assert {**before, "line": 0} == {**after, "line": 0}
    assert isinstance(found, BadLine), found
    assert found.number == 2 and len(found.reason) < 300
    return found.reason


# -- wrong lines -----------------------------------------------------------------------------------------------------

A, P = {"text": "a{{1}}"}, {"prompt": "a"}
WRONG: list[tuple[object, str]] = [
    ("nonsense", "not JSON; write an object"), ('{"text": "a{{2}}"', "not JSON"), ('{"text": "a{{2}}"} x', "not JSON"),
    ('{"text": "a{{2}}", "id": NaN}', "not JSON"), ('{"text": "a{{2}}", "id": 1e999}', "not JSON"),
    ('{"text": "a{{2}}", "seed": ' + "9" * 5000 + "}", "not JSON"), ("[" * 100_000, "not JSON"),
    ([1, 2], "not an object"), (5, "not an object"), (None, "not an object"), (True, "not an object"),
    ({"txt": "a{{1}}"}, r"unknown key 'txt' \(did you mean 'text'\?\)"), (A | {"temprature": 1}, "temperature"),
    (A | {"constrain": "x"}, "unknown key 'constrain'"), (A | {"watch": 1}, "unknown key"),
    ({}, 'nothing to write: give "text"'), ({"length": 5}, "nothing to write"),
    ({"text": 5}, "text must be text, not 5"), ({"text": ["a"]}, "text must be text"),
    ({"prompt": {"a": 1}}, "prompt must be text"), ({"suffix": 1}, "suffix must be"),
    (A | {"prompt": "b"}, "prompt cannot be combined with text"), (A | {"suffix": ""}, "suffix cannot be"),
    (A | {"length": 5}, "length cannot be"), ({"text": "a"}, "no gap to fill"), ('""', "no gap to fill"),
    ({"text": "a{{0}}"}, "is not a gap"), ({"text": "a{{40}}"}, "longer than the 40"),
    ({"text": "\udcff{{1}}"}, "UTF-8"), ({"text": "{{1-2}}"}, "needs given text"),
    ({"text": "a{{1-2}}", "stride": 4}, "does not work with a stride"),
    (A | {"n": "3"}, 'n must be a whole number, not "3"'), (A | {"n": True}, "not true"), (A | {"n": 1.0}, "not 1.0"),
    (A | {"n": 0}, "n=0"), (A | {"n": -1}, "n=-1"), (P | {"length": "5"}, 'length must be a whole number, not "5"'),
    (P | {"length": 0}, "length=0"), (P | {"length": 41}, "length=41"),
    ({"prompt": "abc", "length": 3}, "nothing to write"), (A | {"seed": 1.5}, "seed=1.5"),
    (A | {"seed": 2**63}, "seed=9223372036854775808"), (A | {"seed": 2**63 - 1, "n": 2}, "seed=9223372036854775808"),
    (A | {"temperature": "hot"}, "temperature='hot'"), (A | {"temperature": -1}, "=-1"),
    (A | {"top_p": "x"}, "top_p='x'"), (A | {"top_k": 1.5}, "top_k=1.5"), (A | {"steps": True}, "steps=True"),
    (A | {"steps": 0}, "steps=0"), (A | {"sampler": "plam"}, "did you mean 'plan'"),
    (A | {"sampler": []}, r"sampler=\[\]"), (A | {"k": 1}, "does not take k"),
    (A | {"ban": "x"}, 'ban must be a list, not "x"'), (A | {"ban": [None]}, "ban="),
    (A | {"only": ["xy"]}, "'xy' is 2 tokens"), (A | {"stop": ""}, 'stop must be a list, not ""'),
    (A | {"stop": [""]}, "stop="), (A | {"stop": [5]}, "stop="),
    ({"text": "a{{1}}b", "stop": ["x"]}, "ends in given text"), (A | {"stop_at_eos": 1}, "stop_at_eos=1"),
    (A | {"allowed": ["a"]}, "allowed must map"), (A | {"allowed": {"0": "a"}}, "allowed must map"),
    (A | {"allowed": {"x": ["a"]}}, "map"), (A | {"allowed": {"0": [None]}}, "allowed="),
    (A | {"allowed": {"1": ["a"]}}, "token 1"), (A | {"allowed": {"-1": ["a"]}}, "map"),
    (A | {"allowed": {"0": [True]}}, "allowed="), (A | {"sampler": "remask-cap", "window": [1, 0.5, 0]}, "window="),
    (A | {"sampler": "remask-cap", "window": 0.5}, "window must be a list, not 0.5"),
    (A | {"sampler": "order", "order": ["0"]}, "order="), (A | {"sampler": "order"}, "order"),
    (A | {"sampler": "order", "order": [0, 0]}, "position 0 twice"), (A | {"label": "x"}, "without labels"),
    (A | {"guidance": 2}, "needs a label"), (A | {"guidance": []}, "guidance="), (P | {"stride": 0}, "stride=0"),
    (P | {"stride": "4"}, "stride='4'"), (A | {"text ": 1}, "unknown key 'text '"),
    (A | {"min_length": "1"}, "min_length='1'"), ({"prompt": ["x" * 999]}, r"prompt must be .{1,60}\.\.\.$"),
]  # fmt: skip


@pytest.mark.parametrize(("row", "piece"), WRONG, ids=[f"{i} {str(row)[:30]}" for i, (row, _) in enumerate(WRONG)])
def test_a_wrong_line_is_a_sentence_and_the_others_are_written(row: object, piece: str) -> None:
    said = reason(row)
    assert re.search(piece, said), said


def test_null_is_not_given() -> None:
    lm = make("bytes")
    [found] = written(lm, {"prompt": "a", "text": None, "length": None, "seed": None, "top_k": None, "n": None}, n=1)
    [want] = written(lm, {"prompt": "a"})
    assert found == want


def test_a_line_that_fails_on_the_way_takes_nobody_with_it() -> None:
    """A user's function that leaves nothing to write in some lines, found out after others were half done."""
    lm = make("bytes")

    def no_b(log_p: torch.Tensor, positions: torch.Tensor, canvas: torch.Tensor) -> torch.Tensor:
        late = (canvas != lm.tokenizer.vocab.mask).sum() > 3
        return log_p - torch.inf if canvas[0] == ord("b") and late else log_p

    rows = [{"text": f"{letter}{{{{6}}}}", "n": 2} for letter in "abcba"]
    found = written(lm, *rows, usual=SamplingParams(constrain=no_b, sampler="left-to-right"), batch_size=3)
    assert [row.number if isinstance(row, BadLine) else row["line"] for row in found] == [1, 1, 2, 2, 3, 3, 4, 4, 5, 5]
    for row in found:
        if isinstance(row, BadLine):
            assert row.number in (2, 4) and "leave no token to write" in row.reason
    want = written(lm, *({**rows[i], "seed": 2 * i} for i in (0, 2, 4)), usual=SamplingParams(sampler="left-to-right"))
    assert [row["text"] for row in found if isinstance(row, dict)] == [
        row["text"] for row in want if isinstance(row, dict)
    ]


def test_wrong_settings_for_all_are_no_fault_of_a_line() -> None:
    for how in ({"n": 0}, {"batch_size": 0}):
        with pytest.raises(UserError, match="=0"):
            written(make("bytes"), {"text": "a{{1}}"}, **how)


# -- right lines -----------------------------------------------------------------------------------------------------

LINES: list[dict[str, Any]] = [
    {"text": "the {{3}} of"}, {"text": "a{{2-4}}b", "seed": 5, "n": 2}, {"prompt": "", "length": 12, "temperature": 0},
    {"suffix": "!", "length": 9, "sampler": "left-to-right", "k": 2}, {"prompt": "x", "suffix": "y", "top_k": 2},
    {"prompt": "long", "length": 70, "stride": 11, "steps": 6}, {"prompt": "", "n": 3, "seed": -1, "length": 5},
    {"text": "{{4}}.", "sampler": "order", "order": [3, 1, 0, 2]}, {"prompt": "a", "stop": ["e", "\x01"], "seed": 2},
    {"prompt": "a", "sampler": "remask-loop", "steps": 9, "window": [0.9, 0.1], "keep": 0.5},
    {"text": "{{3}}", "allowed": {"0": ["q"], "2": [122]}, "ban": ["e"]}, {"prompt": "a", "min_length": 5, "length": 8},
]  # fmt: skip


def alone(lm: LM, row: dict[str, Any], **usual: Any) -> list[Any]:
    """The same request by the ordinary functions."""
    how = {
        **usual,
        **{key: value for key, value in row.items() if key not in ("text", "prompt", "suffix", "n", "length")},
    }
    how |= {"allowed": {int(i): words for i, words in how["allowed"].items()}} if "allowed" in how else {}
    n, windowed = row.get("n", 1), "stride" in how
    if "text" in row:
        return lm.write([lm.gap_canvas(row["text"], windowed=windowed)] * n, **how)
    canvas = lm.prompt_canvas(row.get("prompt", ""), row.get("length"), row.get("suffix", ""), windowed)
    return lm.write([canvas] * n, **how)


@pytest.mark.parametrize("batch_size", [1, 5])
def test_a_line_is_what_it_is_alone(batch_size: int) -> None:
    lm = make("bytes")
    found = written(lm, *LINES, batch_size=batch_size)
    want: list[Any] = []
    for i, row in enumerate(LINES, 1):
        want += [(i, j, sample) for j, sample in enumerate(alone(lm, row, seed=len(want)))]
    assert len(found) == len(want) == len(LINES) + 3
    for row, (line, index, sample) in zip(found, want, strict=True):
        assert isinstance(row, dict) and (row["line"], row["index"]) == (line, index)
        expected = sample.as_dict(tokens=True)
        for token, other in zip(row["tokens"], expected["tokens"], strict=True):
            assert (token.pop("prob") or 0) == pytest.approx(other.pop("prob") or 0, rel=1e-4)
        assert row.get("gap_nats", {}) == pytest.approx(expected.pop("gap_nats", {}))
        assert {key: row[key] for key in expected} == expected


def test_the_settings_of_a_line_are_used() -> None:
    """Each of them changes what is written, or when, of a line that is otherwise the same."""
    lm = make("bytes")
    base = {"prompt": "ab", "length": 50, "stride": 30}
    rows = [
        base, {**base, "seed": 1}, {**base, "temperature": 0}, {**base, "sampler": "first-hitting"},
        {**base, "sampler": "left-to-right"}, {**base, "stride": 9}, {**base, "top_k": 3}, {**base, "length": 51},
        {**base, "suffix": "c"}, {**base, "steps": 2},
    ]  # fmt: skip
    found = [row for row in written(lm, *rows) if isinstance(row, dict)]
    ways = {(row["text"], tuple(token["step"] for token in row["tokens"])) for row in found}
    assert len(ways) == len(found) == len(rows)
    usual = SamplingParams(temperature=0.0, sampler="left-to-right", seed=9)
    given, own = written(lm, base, {**base, "seed": 1, "sampler": "plan", "temperature": 1}, usual=usual)
    assert isinstance(given, dict) and isinstance(own, dict)
    assert own["text"] == found[1]["text"] and given["seed"] == 9
    assert given["text"] == lm.sample(1, **base, temperature=0, sampler="left-to-right", seed=9)[0]


def test_every_sample_of_a_file_has_its_own_seed() -> None:
    lm, gap = make("bytes"), {"text": "a{{2}}b", "n": 2}
    rows = [row for row in written(lm, gap, gap, {**gap, "seed": 0}, {"txt": 1}, gap) if isinstance(row, dict)]
    assert [row["seed"] for row in rows] == [0, 1, 2, 3, 0, 1, 7, 8]
    assert [row["text"] for row in rows[:2]] == [row["text"] for row in rows[4:6]] == lm.infill(gap["text"], 2)


def test_names_numbers_and_order() -> None:
    lm = make("bytes")
    rows = ["a{{30}}", {"text": "b{{1}}", "id": {"any": [1, None]}, "n": 2}, {"txt": 1}, {"prompt": "c", "id": 0}]
    seen: list[tuple[int, int]] = []
    found = written(lm, *rows, n=1, length=7, batch_size=2, report=lambda done, total: seen.append((done, total)))
    bad = [row for row in found if isinstance(row, BadLine)]
    assert [row.number if isinstance(row, BadLine) else row["line"] for row in found] == [1, 2, 2, 3, 4]
    assert [row.get("id", "none") for row in found if isinstance(row, dict)] == ["none", *[{"any": [1, None]}] * 2, 0]
    assert len(bad) == 1 and seen == [(i, 4) for i in range(1, 5)]
    assert isinstance(found[-1], dict) and len(found[-1]["ids"]) == 7, "the usual length"
    assert [
        row["index"] for row in written(lm, "a{{1}}", {"text": "b{{1}}", "n": 1}, n=3) if isinstance(row, dict)
    ] == [0, 1, 2, 0]


def test_a_finished_line_does_not_wait_for_later_ones() -> None:
    lm = make("bytes")
    lines = [(1, '"a{{1}}"'), (2, "nonsense"), (3, '"b{{30}}"')]
    calls: list[int] = []
    hidden = lm.model.hidden
    with mock.patch.object(lm.model, "hidden", lambda z, *more: calls.append(1) or hidden(z, *more)):  # type: ignore[func-returns-value]
        stream = write_template(lm, lines, SamplingParams(sampler="left-to-right"))
        first, second = next(stream), next(stream)
        assert isinstance(first, dict) and isinstance(second, BadLine) and len(calls) == 1
        assert len(list(stream)) == 1 and len(calls) == 30


# -- files and the command line --------------------------------------------------------------------------------------


def template(tmp_path: Path, content: str | bytes, *args: str) -> Ran:
    path = tmp_path / "lines.jsonl"
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return run("sample", str(trained()), "--template", str(path), *args)


def rows_of(ran: Ran) -> list[Row]:
    return [json.loads(line) for line in ran.out.splitlines()]


def test_a_file_of_lines(tmp_path: Path) -> None:
    content = '\ufeff{"prompt": "one", "length": 12}\r\n\n  \n"two {{2}}\\n{{3}}"\n'
    content += 'not {{json}}\n{"text": "é{{1}}", "id": "é"}'
    ran = template(tmp_path, content, "--temperature", "0", "--batch-size", "2")
    rows = rows_of(ran)
    assert ran.code == 2 and [row["line"] for row in rows] == [1, 4, 5, 6]
    assert rows[0]["text"].startswith("one") and len(rows[0]["tokens"]) == len(rows[0]["ids"]) == 12
    assert rows[1]["text"].startswith("two ") and rows[3]["text"].startswith("é") and rows[3]["id"] == "é"
    assert set(rows[2]) == {"line", "error"} and "not JSON" in rows[2]["error"]
    assert ran.err.count("\n") == 1 and ran.err.startswith("unmask: line 5 of ") and "not JSON" in ran.err
    assert rows[0]["text"] == unmask.load(trained()).sample(1, prompt="one", length=12, temperature=0)[0]


def test_exit_codes_and_one_document(tmp_path: Path) -> None:
    good = template(tmp_path, '"one {{2}}"\n{"prompt": "a", "n": 2, "length": 5}\n', "--seed", "3", "--jsonl")
    assert good.code == 0 and good.err == "" and [row["seed"] for row in rows_of(good)] == [3, 4, 5]
    found = template(tmp_path, '"one {{2}}"\n{"prompt": "a", "n": 2, "length": 5}\n', "--seed", "3", "--json").json()
    assert found["lines"] == rows_of(good)
    assert (
        found["protocol"]["sampler"] == "plan"
        and found["protocol"]["weights"] == "ema"
        and found["protocol"]["steps"] == 128
    )
    ran = template(tmp_path, '{"x": 1}\n"a{{x\\ny}}"\n', "--json", "-n", "2")
    assert ran.code == 2 and [set(line) for line in json.loads(ran.out)["lines"]] == [{"line", "error"}] * 2
    assert len(ran.err.splitlines()) == 2 and all("Traceback" not in line for line in ran.err.splitlines())
    several = template(tmp_path, '"one {{2}}"\n', "-n", "3")
    assert [row["index"] for row in rows_of(several)] == [0, 1, 2]


def test_bytes_that_are_no_text(tmp_path: Path) -> None:
    ran = template(tmp_path, b'{"text": "\xff{{1}}"}\n"a{{1}}"\n\xff\n')
    rows = rows_of(ran)
    assert (
        ran.code == 2
        and "UTF-8" in rows[0]["error"]
        and rows[1]["text"].startswith("a")
        and "not JSON" in rows[2]["error"]
    )


def test_standard_input() -> None:
    stdin = io.TextIOWrapper(io.BytesIO('"one {{2}}"\n{"prompt": "é", "length": 4}\n'.encode()))
    with mock.patch.object(sys, "stdin", stdin):
        ran = run("sample", str(trained()), "--template", "-")
    assert ran.code == 0 and [row["line"] for row in rows_of(ran)] == [1, 2]
    with mock.patch.object(sys, "stdin", io.TextIOWrapper(io.BytesIO())):
        assert "the template file - is empty" in refused("sample", str(trained()), "--template", "-")


def test_files_that_are_none(tmp_path: Path) -> None:
    def said(path: Path, *args: str) -> str:
        return refused("sample", str(trained()), "--template", str(path), *args)

    assert "no such file" in said(tmp_path / "nowhere.jsonl")
    assert "is a directory" in said(tmp_path)
    for name, content, piece in [
        ("empty", b"", "is empty"),
        ("blank", b"\n \r\n\n", "is empty"),
        ("bom", b"\xef\xbb\xbf", "is empty"),
        ("binary", b"\x7fELF\x00\x00\x01", "is not text"),
        ("wide", '"a{{1}}"\n'.encode("utf-16"), "is not text"),
    ]:
        (tmp_path / name).write_bytes(content)
        assert piece in said(tmp_path / name)
    (tmp_path / "good").write_text('"a{{1}}"\n')
    for args, piece in [
        (["-n", "0"], "-n 0"),
        (["--batch-size", "0"], "batch_size=0"),
        (["--sampler", "plam"], "did you mean 'plan'"),
        (["--temperature", "-1"], "temperature=-1"),
        (["--prompt", "a"], "--template does not go with --prompt"),
        (["--suffix", "a"], "--template"),
        (["--infill", "a{{1}}"], "--template"),
        (["--watch"], "--template"),
        (["--html", "x.html"], "--template"),
        (["--json", "--jsonl"], "either --json"),
    ]:
        assert piece in said(tmp_path / "good", *args)
    assert read_lines(tmp_path / "good") == [(1, '"a{{1}}"')]
