"""Traces: a replay of the events is the generation; the JSON form keeps everything; the page shows text as text."""

from __future__ import annotations

import base64
import copy
import hashlib
import html.parser
import json
import os
import re
import shutil
import stat
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

import unmask.serve.replay as page
from support.helpers import random_lm
from unmask.data.tokenization import Tokenizer, bytes_tokenizer, chars_tokenizer
from unmask.sampling.trace import Trace
from unmask.serve.replay import SCRIPTS, render, write_html
from unmask.types import Sample, State, UserError

ASSETS = Path(page.__file__).parent
NASTY = "</script><script>alert(1)</script><!-- {{script}} &amp; </style> \u2028 \x1b[31m é €"


def event(row: int, step: int, changes: list[tuple[int, int, float]], canvas: list[int], **more: Any) -> State:
    """A state from plain lists."""
    positions, tokens, probs = zip(*changes, strict=True) if changes else ((), (), ())
    return State(
        row,
        step,
        more.pop("t", 1 / (step + 1)),
        torch.tensor(positions, dtype=torch.int64),
        torch.tensor(tokens, dtype=torch.int64),
        torch.tensor(probs),
        torch.tensor(canvas),
        step + 1,
        more.pop("done", False),
        more.pop("tops", None),
        block=more.pop("block", None),
    )


@st.composite
def generations(draw: st.DrawFn) -> tuple[Tokenizer, list[list[int]], list[State], list[list[list[int]]]]:
    """Any canvases and any events on them: writes, rewrites, re-masking, both in one event, growth, empty events."""
    tokenizer = bytes_tokenizer()
    mask = tokenizer.vocab.mask
    token = st.integers(0, tokenizer.vocab.size - 1)
    starts = draw(st.lists(st.lists(st.just(mask) | token, max_size=6), min_size=1, max_size=3))
    now, states = [list(start) for start in starts], []
    canvases = [[list(start)] for start in starts]
    for step in range(draw(st.integers(0, 8))):
        row = draw(st.integers(0, len(starts) - 1))
        now[row] += [mask] * draw(st.sampled_from([0, 0, 0, 2]))
        where = st.integers(0, len(now[row]) - 1)
        change = st.tuples(where, st.just(mask) | token, st.floats(0, 1, width=32))
        changes = draw(st.lists(change, max_size=5)) if now[row] else []
        for position, new, _ in changes:
            now[row][position] = new
        canvases[row].append(list(now[row]))
        start = draw(st.integers(0, len(now[row])))
        block = draw(st.sampled_from([None, (start, len(now[row]))])) if start < len(now[row]) else None
        states.append(event(row, step, changes, now[row], done=draw(st.booleans()), block=block))
    return tokenizer, starts, states, canvases


@given(generations())
def test_a_replay_is_the_generation(generation):
    tokenizer, starts, states, canvases = generation
    trace = Trace(tokenizer, [torch.tensor(start, dtype=torch.int64) for start in starts], {"steps": 3})
    for state in states:
        trace(state)
    text = json.dumps(trace.to_json(), allow_nan=False)
    again = Trace.from_json(json.loads(text))
    assert again.to_json() == trace.to_json()
    for course, start, expected in zip(again.recordings, starts, canvases, strict=True):
        given_ = {position for first, end in course.given for position in range(first, end)}
        assert given_ == {p for p, token in enumerate(start) if token != tokenizer.vocab.mask}
        for k, canvas in enumerate(expected):
            assert course.replay(trace.mask, k) == canvas


def test_only_pieces_that_occur_and_every_one_of_them():
    tokenizer = chars_tokenizer(["abcdef"])
    a, b, c, d = tokenizer.encode("abcd")
    mask = tokenizer.vocab.mask
    trace = Trace(tokenizer, [torch.tensor([a, mask])])
    tops = (torch.tensor([[b, c]]), torch.tensor([[0.75, 0.2]]))
    trace(event(0, 0, [(1, b, 0.75), (1, mask, 0.0)], [a, mask], tops=tops))  # tops are of what was written
    trace(event(0, 1, [(1, d, 0.123456)], [a, d], done=True))
    data = trace.to_json()
    assert data["pieces"] == {str(a): "a", str(b): "b", str(c): "c", str(d): "d", str(mask): "[MASK]"}
    assert data["special"] == [mask]
    first, second = data["sequences"][0]["events"]
    assert first["changes"] == [[1, b, 0.75, [[b, 0.75], [c, 0.2]]], [1, mask, 0.0]]
    assert second == {"step": 1, "t": 0.5, "calls": 2, "changes": [[1, d, 0.1235]]}
    assert data["sequences"][0] | {"events": []} == {
        "canvas": [a, mask],
        "given": [[0, 1]],
        "events": [],
        "text": "ad",
        "name": "",
        "done": True,
    }


def test_what_a_state_forgot_to_name_is_recorded_too():
    tokenizer = chars_tokenizer(["ab"])
    a, b = tokenizer.encode("ab")
    mask = tokenizer.vocab.mask
    trace = Trace(tokenizer, [torch.tensor([mask, mask, a])])
    trace(event(0, 0, [(0, b, 0.5)], [b, a, mask]))
    assert trace.recordings[0].replay(mask) == [b, a, mask]


def test_values_that_json_does_not_know():
    tokenizer = chars_tokenizer(["ab"])
    protocol = {"device": torch.device("cpu"), "eta": float("inf"), 3: (1, None, True), "seed": 2**63 - 1}
    trace = Trace(tokenizer, [torch.tensor([tokenizer.vocab.mask])], protocol)
    trace(event(0, 0, [(0, 1, float("nan"))], [1], t=float("nan")))
    data = json.loads(json.dumps(trace.to_json(), allow_nan=False))
    assert data["protocol"] == {"device": "cpu", "eta": "inf", "3": [1, None, True], "seed": str(2**63 - 1)}
    assert data["sequences"][0]["events"][0] == {"step": 0, "t": None, "calls": 1, "changes": [[0, 1, 0.0]]}
    assert Trace.from_json(data).to_json() == data


def test_an_unfinished_text_reads_as_far_as_it_is_written():
    tokenizer = bytes_tokenizer()
    ids = [*b"one", tokenizer.vocab.eos, *b"tw", tokenizer.vocab.mask]
    assert Trace(tokenizer, [torch.tensor(ids)]).to_json()["sequences"][0]["text"] == "one\ntw"


@pytest.mark.parametrize("how", [{"steps": 8}, {"steps": 4, "sampler": "ancestral"}])
def test_a_real_generation(how):
    lm = random_lm(bytes_tokenizer())
    canvases = [lm.prompt_canvas("one ", 16), lm.gap_canvas("two {{3}} four")]
    trace = Trace(lm.tokenizer, [canvas.ids for canvas in canvases], how)
    samples = lm.write(canvases, watch=trace, seed=5, **how)
    trace.finish(samples)
    for course, canvas, sample in zip(Trace.from_json(trace.to_json()).recordings, canvases, samples, strict=True):
        assert course.canvas == canvas.ids.tolist() and course.replay(trace.mask) == sample.ids
        assert (course.text, course.name, course.done) == (sample.text, f"seed {sample.seed}", True)
        assert course.events[-1].calls == sample.network_calls
        written = [change.position for event in course.events for change in event.changes]
        assert sorted(written) == (canvas.ids == trace.mask).nonzero().flatten().tolist()


# -- damage ----------------------------------------------------------------------------------------------------------


def good_trace() -> Trace:
    tokenizer = chars_tokenizer(["abc"])
    a, b, c = tokenizer.encode("abc")
    mask = tokenizer.vocab.mask
    trace = Trace(tokenizer, [torch.tensor([a, mask])], {"model": "m"})
    tops = (torch.tensor([[b, c]]), torch.tensor([[0.5, 0.25]]))
    trace(event(0, 0, [(1, b, 0.5)], [a, b, mask], tops=tops))  # grows
    trace(event(0, 1, [(2, c, 0.25)], [a, b, c], done=True))
    return trace


def everywhere(data: Any, path: tuple[Any, ...] = ()) -> list[tuple[Any, ...]]:
    """The path of every value inside."""
    items = data.items() if isinstance(data, dict) else enumerate(data) if isinstance(data, list) else ()
    return [path, *(found for key, value in items for found in everywhere(value, (*path, key)))]


def _read(data: Any) -> tuple[str, Trace | None]:
    try:
        return "", Trace.from_json(data)
    except UserError as error:
        return str(error), None


def test_every_kind_of_damage_is_one_sentence():
    whole = good_trace().to_json()
    assert Trace.from_json(copy.deepcopy(whole)).to_json() == whole
    refused = 0
    for path in everywhere(whole):
        if not path:
            continue
        for wrong in (None, -1, 10**9, 0.5, True, "x", [], {}, [[]], [["x", "y"]], "gone"):
            data: Any = copy.deepcopy(whole)
            *parents, key = path
            place = data
            for parent in parents:
                place = place[parent]
            if wrong == "gone":
                del place[key]
            else:
                place[key] = wrong
            problem, read = _read(data)
            if read is None:
                refused += 1
                assert problem and "\n" not in problem and len(problem) < 250
            else:  # what is accepted is a whole trace, and means what it says
                assert read.to_json() == data
                assert all(len(course.replay(read.mask)) >= len(course.canvas) for course in read.recordings)
                assert render(read)
    assert refused > 400


@pytest.mark.parametrize(
    ("change", "says"),
    [
        (lambda d: d.update(format="unmask-trace/9"), "reads 'unmask-trace/1'"),
        (lambda d: d.update(extra=1), "exactly the keys"),
        (lambda d: d["pieces"].pop(str(d["sequences"][0]["canvas"][0])), "canvas of sequence 1"),
        (lambda d: d["sequences"][0]["events"][1]["changes"][0].__setitem__(0, 3), "event 2 of sequence 1"),
        (lambda d: d["sequences"][0]["events"][1]["changes"][0].__setitem__(2, 1.5), "event 2 of sequence 1"),
        (lambda d: d["sequences"][0]["events"][0].update(length=2), "does not grow"),
        (lambda d: d["sequences"][0]["events"][1].update(calls=0), "not a growing count"),
        *(
            (lambda d, bad=bad: d["sequences"][0]["events"][0].update(block=bad), '"block" of event 1')
            for bad in (None, 3, [0], [1, 1], [2, 1], [-1, 1], [0, 99], [0, 1.5], [0, True])
        ),
        (lambda d: d["sequences"][0].update(given=[[0, 2]]), '"given" of sequence 1'),
        (lambda d: d["sequences"][0].update(given=[[1, 0]]), '"given" of sequence 1'),
    ],
)
def test_damage_is_named(change, says):
    data = good_trace().to_json()
    change(data)
    with pytest.raises(UserError, match=re.escape(says)):
        Trace.from_json(data)


def test_files(tmp_path):
    trace = good_trace()
    trace.save(tmp_path / "trace.json")
    assert Trace.load(tmp_path / "trace.json").to_json() == trace.to_json()
    (tmp_path / "half.json").write_text((tmp_path / "trace.json").read_text()[:-20])
    (tmp_path / "bytes.json").write_bytes(b"\xff\xfe")
    for name, says in [("half.json", "damaged"), ("bytes.json", "damaged"), ("none.json", "no such file"), ("", "dir")]:
        with pytest.raises(UserError, match=says):
            Trace.load(tmp_path / name)
    for data in ([], 3, None, {}, {"format": 1}):
        with pytest.raises(UserError, match="not a trace"):
            Trace.from_json(data)


# -- the page --------------------------------------------------------------------------------------------------------


class Elements(html.parser.HTMLParser):
    """The elements of a page, and what is in scripts and styles."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.tags: list[str] = []
        self.attributes: list[tuple[str, str, str | None]] = []
        self.inside: list[tuple[str, str]] = []
        self.feed(text)

    def handle_starttag(self, tag, attrs):
        self.tags.append(tag)
        self.attributes += [(tag, name, value) for name, value in attrs]

    def handle_data(self, data):
        if self.tags[-1:] in (["script"], ["style"], ["title"]) and data.strip():
            self.inside.append((self.tags[-1], data))


def nasty_trace() -> Trace:
    tokenizer = chars_tokenizer([NASTY])
    ids = tokenizer.encode(NASTY)
    trace = Trace(tokenizer, [torch.full((len(ids),), tokenizer.vocab.mask)], {"model": NASTY, NASTY: NASTY})
    trace(event(0, 0, [(i, token, 0.5) for i, token in enumerate(ids)], ids, done=True))
    trace.finish([Sample(ids, NASTY, 0, 1)])
    return trace


def test_text_stays_text():
    trace = nasty_trace()
    plain, nasty = Elements(render(good_trace())), Elements(render(trace))
    assert [tag for tag in nasty.tags if tag != "pre"] == [tag for tag in plain.tags if tag != "pre"]
    scripts = [text for tag, text in nasty.inside if tag == "script"]
    assert len(scripts) == 2 and json.loads(scripts[0]) == trace.to_json()
    assert scripts[1] == [text for tag, text in plain.inside if tag == "script"][1]
    assert render(Trace(chars_tokenizer(["a"]), []))  # nothing was written
    lone = Trace(chars_tokenizer(["a"]), [torch.tensor([1])])
    lone.recordings[0].text = "\udc80"  # half a character has no UTF-8
    render(lone).encode()


def test_nothing_is_fetched_and_only_our_own_script_runs():
    text = render(nasty_trace())
    found = Elements(text)
    assert not {"link", "img", "iframe", "object", "embed", "base", "form"} & set(found.tags)
    assert not [name for _, name, _ in found.attributes if name in ("src", "href", "style") or name.startswith("on")]
    policy = next(
        value for tag, name, value in found.attributes if name == "content" and "default-src" in (value or "")
    )
    rules = dict(rule.strip().split(" ", 1) for rule in policy.split(";"))
    assert rules["default-src"] == "'none'" and "unsafe" not in policy
    for rule, body in [
        ("style-src", next(t for tag, t in found.inside if tag == "style")),
        ("script-src", [t for tag, t in found.inside if tag == "script"][1]),
    ]:
        assert rules[rule] == f"'sha256-{base64.b64encode(hashlib.sha256(body.encode()).digest()).decode()}'"
    assert "url(http" not in text and "@import" not in text and "fetch(" not in text


def test_the_file_is_whole_or_not_there(tmp_path, monkeypatch):
    path = tmp_path / "replay.html"
    write_html(good_trace(), path)
    first = path.read_text(encoding="utf-8")
    assert first.startswith("<!doctype html>") and first.endswith("</html>\n") and "<title>m</title>" in first
    assert stat.S_IMODE(path.stat().st_mode) == 0o666 & ~_umask()
    write_html(good_trace(), path, title="<other>")
    assert "<title>&lt;other&gt;</title>" in path.read_text(encoding="utf-8")

    def full(*_: object) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "replace", full)
    with pytest.raises(UserError, match=r"could not write .*no space left"):
        write_html(good_trace(), path)
    assert [p.name for p in tmp_path.iterdir()] == ["replay.html"]
    for wrong in (tmp_path / "no" / "replay.html", tmp_path, ""):
        with pytest.raises(UserError, match="could not write"):
            write_html(good_trace(), wrong)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


def test_the_assets_are_part_of_the_package():
    import tomllib

    declared = tomllib.loads((Path(__file__).parents[2] / "pyproject.toml").read_text(encoding="utf-8"))
    patterns = declared["tool"]["setuptools"]["package-data"]["unmask.serve.replay"]
    assert {p.name for p in ASSETS.iterdir() if p.suffix not in (".py", "")} == {
        p.name for pattern in patterns for p in ASSETS.glob(pattern)
    }


# -- the script, in node ---------------------------------------------------------------------------------------------

node = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: the page's script is not run")
WALK = """
const { makePlayer, visible, orderBin, confidenceBin } = require(process.argv[1]);
const { cases, pieces } = JSON.parse(require("fs").readFileSync(0, "utf8"));
const walks = cases.map(({ course, mask, walk }) => {
  const half = course.events.length >> 1; // the rest comes later, as from a server
  const player = makePlayer({ ...course, events: course.events.slice(0, half) }, mask);
  course.events.slice(half).forEach((event, i) => { player.push(event); player.seek(i); });
  player.seek(0);
  let shown = player.canvas();
  const seen = walk.map((k) => {
    const touched = player.seek(k), now = player.canvas();
    for (let p = 0; p < Math.max(now.length, shown.length); p++)  // what differs was reported, once
      if (now[p] !== shown[p] && touched.filter((t) => t === p).length !== 1) throw Error(`position ${p} at ${k}`);
    shown = now;
    return { canvas: now, left: player.left[player.at()], history: now.map((_, p) => player.history(p).length),
             given: now.map((_, p) => player.given(p)), prob: now.map((_, p) => player.change(p)?.prob ?? null) };
  });
  return { seen, size: player.size, final: Array.from({ length: player.size }, (_, p) => player.finally(p)) };
});
const bins = [[0, 1, 50, 99].map((k) => orderBin(k, 100)), [0, 0.3, 0.95, 1].map(confidenceBin)];
console.log(JSON.stringify({ walks, pieces: pieces.map(visible), bins }));
"""


def in_node(**data: Any) -> Any:
    ran = subprocess.run(
        ["node", "-e", WALK, str(ASSETS / "player.js")],
        input=json.dumps(data),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def random_case(seed: int) -> tuple[Trace, dict[str, Any]]:
    """A trace with every kind of change, and a walk to and fro through it."""
    rng, tokenizer = torch.Generator().manual_seed(seed), bytes_tokenizer()
    mask = tokenizer.vocab.mask

    def draw(below: int) -> int:
        return int(torch.randint(below, (), generator=rng))

    canvas = [mask if draw(3) else draw(256) for _ in range(1 + draw(12))]
    trace = Trace(tokenizer, [torch.tensor(canvas)])
    for step in range(draw(15)):
        canvas += [mask] * (draw(3) if not draw(4) else 0)
        changes = [(draw(len(canvas)), mask if not draw(3) else draw(256), draw(100) / 128) for _ in range(draw(6))]
        for position, token, _ in changes:
            canvas[position] = token
        trace(event(0, step, changes, canvas))
    walk = [draw(len(trace.recordings[0].events) + 1) for _ in range(20)]
    return trace, {"course": trace.to_json()["sequences"][0], "mask": mask, "walk": walk}


@node
def test_the_page_goes_to_and_fro_as_python_does():
    traces, cases = zip(*(random_case(seed) for seed in range(60)), strict=True)
    found = in_node(cases=cases, pieces=[])
    for trace, case, result in zip(traces, cases, found["walks"], strict=True):
        course, mask = trace.recordings[0], trace.mask
        final = course.replay(mask)
        assert result["final"] == final and result["size"] == len(final)
        for k, seen in zip(case["walk"], result["seen"], strict=True):
            assert seen["canvas"] == course.replay(mask, k)
            assert seen["left"] == seen["canvas"].count(mask)
            changes = [change for event in course.events for change in event.changes]
            past = {change.position: change.prob for event in course.events[:k] for change in event.changes}
            positions = [change.position for change in changes]
            assert seen["history"] == [positions.count(p) for p in range(len(seen["canvas"]))]
            assert seen["prob"] == [past.get(p) for p in range(len(seen["canvas"]))]
            assert seen["given"] == [
                p < len(course.canvas) and course.canvas[p] != mask and p not in past
                for p in range(len(seen["canvas"]))
            ]
    assert found["bins"] == [[0, 0, 3, 5], [0, 2, 5, 5]]


@node
def test_what_nobody_can_see_is_made_visible():
    pieces = [" the", "a\t b", "\r\n", ".\n\n", "", "a⟨e2 82⟩⟨e2 8⟩", "\u202e", "\x1b[31m", "x\u00a0", "日本"]
    assert in_node(cases=[], pieces=pieces)["pieces"] == [
        [["space", " "], ["text", "the"]],
        [["text", "a"], ["tab", "\t"], ["space", " "], ["text", "b"]],
        [["line", "\n"]],
        [["text", "."], ["line", "\n"], ["line", "\n"]],
        [["code", "⟨⟩"]],
        [["text", "a"], ["code", "⟨e2 82⟩"], ["text", "⟨e2"], ["space", " "], ["text", "8⟩"]],
        [["code", "⟨u+202e⟩"]],
        [["code", "⟨u+1b⟩"], ["text", "[31m"]],
        [["text", "x"], ["space", "\u00a0"]],
        [["text", "日本"]],
    ]


@node
def test_the_script_is_well_formed(tmp_path):
    script = tmp_path / "all.js"
    script.write_text("".join((ASSETS / name).read_text() for name in SCRIPTS), encoding="utf-8")
    ran = subprocess.run(["node", "--check", str(script)], capture_output=True, text=True, timeout=60, check=False)
    assert ran.returncode == 0, ran.stderr
    for name, end in [*((name, "</script") for name in SCRIPTS), ("replay.css", "</style")]:
        text = (ASSETS / name).read_text(encoding="utf-8").lower()
        assert end not in text and "<!--" not in text
