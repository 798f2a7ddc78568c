"""The modules of the live page that need no page, in node: events from a stream, gaps of a text, the file to keep."""

from __future__ import annotations

import base64
import io
import json
import re
import shutil
import subprocess
from importlib.resources import files
from pathlib import Path
from random import Random
from typing import Any

import pytest
import torch

from unmask.data.tokenization import bytes_tokenizer
from unmask.sampling.trace import Trace
from unmask.serve.page import FILES, assets
from unmask.serve.replay import render, shell

pytestmark = pytest.mark.skipif(shutil.which("node") is None, reason="node is not installed: the script is not run")


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """The files as a browser gets them."""
    there = tmp_path_factory.mktemp("page")
    for name, asset in assets().items():
        (there / name).write_bytes(asset.body)
    (there / "package.json").write_text('{"type": "module"}')
    return there


def in_node(folder: Path, module: str, code: str, given: Any) -> Any:
    program = (
        f"import * as own from './{module}'; import fs from 'node:fs';"
        f"const given = JSON.parse(fs.readFileSync(0, 'utf8')); {code}"
    )
    ran = subprocess.run(
        ["node", "--input-type=module", "-e", program],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stderr
    return json.loads(ran.stdout)


def test_every_script_is_well_formed(folder):
    for name in FILES:
        if name.endswith(".js"):
            ran = subprocess.run(
                ["node", "--check", str(folder / name)], capture_output=True, text=True, timeout=60, check=False
            )
            assert ran.returncode == 0, ran.stderr


def test_events_however_the_chunks_fall(folder):
    """By the standard of server-sent events, cut at every place, with both usual line ends."""
    text = ': hello\n\nevent: start\ndata: {"a":1}\n\ndata: one\ndata: two\n\nevent: x\n\nevent:done\ndata:é\nid: 3\n\n'
    expected = [["start", '{"a":1}'], ["message", "one\ntwo"], ["done", "é"]]
    streams = [text.replace("\n", end) for end in ("\n", "\r\n")]
    cuts = [[stream[:i], stream[i:]] for stream in streams for i in range(len(stream) + 1)]
    cuts += [list(stream) for stream in streams]
    code = """console.log(JSON.stringify(given.map((chunks) => {
        const feed = own.eventParser();
        return chunks.flatMap(feed).map(({ event, data }) => [event, data]);
    })));"""
    assert in_node(folder, "stream.js", code, cuts) == [expected] * len(cuts)


WORDS = [
    ("The little dog ran.", 4, 14, "little dog"),
    ("The little dog ran.", 3, 15, "little dog"),  # without the spaces around
    ("The little dog ran.", 6, 12, "little dog"),  # whole words
    ("The little dog ran.", 13, 13, "dog"),  # the word at the cursor
    ("The little dog ran.", 11, 11, "dog"),
    ("naïve café", 2, 2, "naïve"),
    ("don't go", 2, 2, "don't"),
    ("a, b", 1, 2, ","),
    ("中文句子很好", 2, 4, "句子"),  # a script without spaces
    ("a {{3}} b", 2, 5, "{{3}}"),  # gaps are not cut
    ("a {{3}} b c", 5, 9, "{{3}} b"),
]


def test_words_become_gaps(folder):
    code = """console.log(JSON.stringify(given.map(([text, start, end]) =>
        text.slice(...own.wordsAt(text, start, end, false)))));"""
    assert in_node(folder, "editor.js", code, [case[:3] for case in WORDS]) == [case[3] for case in WORDS]


def test_masks_after_the_end_of_a_text_vanish(folder):
    """Once it is known that the text is finished, and only at its end."""
    (folder / "player.cjs").write_text((folder / "player.js").read_text())
    events = [{"step": k, "t": None, "calls": k, "changes": [[k, k, 1.0]]} for k in range(2)]
    code = """const { makePlayer } = (await import('./player.cjs')).default;
        const player = makePlayer({ canvas: [9, 9, 9, 9], given: [], events: given }, 9), seen = [];
        const look = (k) => seen.push([player.seek(k).sort(), player.masks(), player.exists(1), player.exists(3)]);
        look(2); player.finish(); look(2); look(1); look(2);
        console.log(JSON.stringify(seen));"""
    assert in_node(folder, "stream.js", code, events) == [
        [[0, 1], 2, True, True],
        [[2, 3], 0, True, False],
        [[1, 2, 3], 3, True, True],
        [[1, 2, 3], 0, True, False],
    ]


def test_a_part_becomes_a_gap_and_the_rest_stays(folder):
    apple = ["⟨f0 9f⟩", "⟨8d⟩", "⟨8e⟩"]
    given = [
        [["I", " like", " ", *apple, "."], 1, 1],
        [["I", " like", " ", *apple, "."], 6, 6],
        [["I", " like", " ", *apple, "."], 4, 4],  # inside a character: all of it
        [["a", "⟨8e⟩", "b"], 0, 0],  # which is no character whatever is done
    ]
    code = """console.log(JSON.stringify(given.map(([pieces, from, to]) => {
        const { before, after, size } = own.withGap(pieces, from, to);
        return [before, size, after];
    })));"""
    assert in_node(folder, "rewriting.js", code, given) == [
        ["I", 1, " 🍎."],
        ["I like 🍎", 1, ""],
        ["I like ", 3, "."],
        ["", 2, "b"],
    ]


def test_a_stream_that_breaks_off_is_an_error(folder):
    code = """
    const tries = [];
    for (const text of given) {
        globalThis.fetch = async () => new Response(new Blob([text]).stream());
        const seen = [];
        await own.postEvents("/", {}, (event) => seen.push(event)).then(() => tries.push([seen, ""]), (error) => tries.push([seen, error.message]));
    }
    globalThis.fetch = async () => new Response(new ReadableStream({ pull() { throw new TypeError("network error"); } }));
    await own.postEvents("/", {}, () => 0).catch((error) => tries.push([[], error.message]));
    console.log(JSON.stringify(tries));
    """  # noqa: E501
    start, end, wrong = (
        "event: start\ndata: {}\n\n",
        "event: end\ndata: {}\n\n",
        "The connection to the server was lost",
    )
    found = in_node(folder, "stream.js", code, [start + end, start, ""])
    assert found[0] == [["start", "end"], ""] and found[1][0] == ["start"]
    assert all(said.startswith(wrong) for _, said in found[1:]) and len(found) == 4


def test_gaps_are_found_as_python_finds_them(folder):
    from unmask.data.canvas import parse_gaps
    from unmask.types import UserError

    texts = [
        "a {{3}} b",
        "{{2-6}}",
        "{{ 12 }}",
        "{{}}",
        "{{x}}",
        "{3}",
        "no",
        "{{1}}{{2}}",
        "{{{4}}}",
        "a ___ b",
        "a [MASK] b",
        "_____",
    ]
    found = in_node(folder, "editor.js", "console.log(JSON.stringify(given.map((text) => own.hasGap(text))));", texts)
    for text, has in zip(texts, found, strict=True):
        try:
            parse_gaps(text)
        except UserError:
            continue  # the server says what is wrong
        assert has, text
    code = "console.log(JSON.stringify(given.map((at) => own.gapAt('ab {{3}} c {{2-6}}', at))));"
    found = in_node(folder, "editor.js", code, [0, 5, 9, 14])
    assert found == [None, [3, 8, 3, None, None], None, [11, 18, 2, 6, None]]
    text = r"x {{3:[a-z]{2}}} {{1-2: b|c }}"
    code = f"console.log(JSON.stringify(given.map((at) => own.gapAt({json.dumps(text)}, at))));"
    found = in_node(folder, "editor.js", code, [4, 20])
    assert [gap[2:] for gap in found] == [[3, None, "[a-z]{2}"], [1, 2, " b|c "]]
    assert [part.pattern for part in parse_gaps(text)[1::2]] == ["[a-z]{2}", "b|c"]
    assert [text[gap[0] : gap[1]] for gap in found] == ["{{3:[a-z]{2}}}", "{{1-2: b|c }}"]
    code = "console.log(JSON.stringify(given.map(([text, kind]) => own.tokensIn(text, kind))));"
    assert in_node(folder, "editor.js", code, [["ACG T", "dna"], ["é", "bytes"], ["two words.", "text"]]) == [4, 2, 3]


def test_the_file_to_keep_is_the_one_that_python_writes(folder):
    """The same trace through the browser's code and through `render` is the same page, with any text in it."""
    tokenizer = bytes_tokenizer()
    nasty = "</script><!--<b>&amp; {{data}} {{title}} $& \u2028 é '\""
    canvas = torch.tensor(tokenizer.encode(nasty))
    trace = Trace(tokenizer, [canvas], {"model": "<i>m</i>"})
    data = trace.to_json()
    found = in_node(
        folder,
        "export.js",
        "console.log(JSON.stringify(own.fillShell(given.shell, given.trace)));",
        {"shell": shell(), "trace": data},
    )
    python = render(trace)
    cut = '<script type="application/json" id="trace">'

    def parts(page: str) -> tuple[Any, str]:
        head, _, rest = page.partition(cut)
        block, _, tail = rest.partition("</script>")
        return json.loads(block), head.split("<main>")[0].split("<title>")[0] + tail

    assert parts(found)[0] == data == parts(python)[0]
    assert parts(found)[1] == parts(python)[1]  # policy, style and script, and what follows the data
    assert found.count("<script") == python.count("<script") and "<b>&amp;" not in found


def test_a_gif_has_the_frames_it_was_made_from(folder):
    """Pillow reads the pixels back: noise, which fills the table of codes again and again, still frames, one pixel."""
    image = pytest.importorskip("PIL.Image", reason="Pillow is not installed: the film is not read")
    generator = torch.Generator().manual_seed(0)
    width, height = 97, 61
    noise = [torch.randint(0, 200, (height, width), generator=generator) for _ in range(2)]
    dot = noise[1].clone()
    dot[7, 90] = 201
    frames = [torch.zeros(height, width, dtype=torch.int64), *noise, noise[1], dot, torch.full_like(dot, 3)]
    code = """
    const colours = Array.from({ length: 255 }, (_, i) => [i, 255 - i, (7 * i) % 256]);
    const gif = own.makeGif(given.width, given.height, colours);
    for (const frame of given.frames) gif.add(Uint8Array.from(frame), 12);
    console.log(JSON.stringify(Buffer.from(gif.finish()).toString("base64")));
    """
    given = {"width": width, "height": height, "frames": [frame.flatten().tolist() for frame in frames]}
    data = base64.b64decode(in_node(folder, "gif.js", code, given))
    with image.open(io.BytesIO(data)) as film:
        assert film.size == (width, height) and film.info["loop"] == 0
        read = []
        for i in range(film.n_frames):
            film.seek(i)
            pixels = torch.tensor(list(film.convert("RGB").tobytes())).reshape(height, width, 3)
            read.append((pixels[..., 0], film.info["duration"]))
    # A still frame may be shown as one with the frame before it, for twice as long.
    shown, times = [frames[0], *noise, dot, frames[-1]], [120, 120, 240, 120, 120]
    if len(read) == len(frames):
        shown, times = frames, [120] * len(frames)
    assert len(read) == len(shown)
    for (pixels, time), frame, expected in zip(read, shown, times, strict=True):
        assert torch.equal(pixels, frame) and time == expected


def test_a_palette_keeps_the_colours_that_there_are(folder):
    code = """
    const frame = new Uint8ClampedArray(given.flatMap((rgb) => [...rgb, 255]));
    const { colours, indices } = own.makePalette([frame]);
    console.log(JSON.stringify([...indices(frame)].map((i) => colours[i])));
    """
    colours = [[0, 0, 0], [255, 255, 255], [216, 210, 198], [59, 76, 192], [255, 255, 255]]
    assert in_node(folder, "gif.js", code, colours) == colours
    rare = [[r, g, 128] for r in range(0, 256, 8) for g in range(0, 256, 8)]  # more than there is room for
    assert in_node(folder, "gif.js", code, [*rare, *colours * 3])[len(rare) :] == colours * 3


def joined_by_python(pieces: list[bytes | None]) -> list[str | None]:
    """Slow and obvious: a character belongs to the token that holds its first byte, if all its bytes are there."""
    owner = [(p, byte) for p, piece in enumerate(pieces) if piece is not None for byte in piece]
    shown: list[list[str]] = [[] for _ in pieces]
    i = 0
    while i < len(owner):
        p, byte = owner[i]
        for size in (4, 3, 2, 1):
            part = owner[i : i + size]
            between = any(pieces[q] is None for q in range(part[0][0], part[-1][0]))  # a mask
            try:
                text = bytes(one for _, one in part).decode()
            except UnicodeDecodeError:
                continue
            if len(text) == 1 and len(part) == size and not between:
                shown[p].append(text)
                i += size
                break
        else:
            shown[p].append(f"⟨{byte:02x}⟩")
            i += 1
    texts = ["".join(parts).replace("⟩⟨", " ") for parts in shown]
    return [None if piece is None else text for piece, text in zip(pieces, texts, strict=True)]


def test_characters_are_put_together_from_their_bytes(folder):
    """Random texts, cut into tokens at random bytes and masked at random, against a slow truth."""
    random = Random(0)
    cases = []
    for _ in range(300):
        letters = [random.choice("aпи世界🙂é é\n") for _ in range(random.randrange(1, 9))]
        data = "".join(letters).encode() + random.choice([b"", b"\xff", b"\xe4\xb8", b"\xc0\xaf", b"\xed\xa0\x80"])
        cuts = sorted(random.sample(range(1, len(data)), random.randrange(0, len(data)))) if len(data) > 1 else []
        pieces = [data[a:b] for a, b in zip([0, *cuts], [*cuts, len(data)], strict=True)]
        cases.append([None if random.random() < 0.15 else piece for piece in pieces])

    def shown(piece: bytes | None) -> str | None:  # as a tokenizer shows a token alone
        if piece is None:
            return None
        text = piece.decode("utf-8", "surrogateescape")
        return re.sub("[\udc80-\udcff]+", lambda bad: f"⟨{bad[0].encode('utf-8', 'surrogateescape').hex(' ')}⟩", text)

    ran = subprocess.run(
        [
            "node",
            "-e",
            "const { joined } = require(process.argv[1]);"
            "const given = JSON.parse(require('fs').readFileSync(0, 'utf8'));"
            "console.log(JSON.stringify(given.map(joined)));",
            str(files("unmask.serve.replay") / "player.js"),
        ],
        input=json.dumps([[shown(piece) for piece in case] for case in cases]),
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )
    assert ran.returncode == 0, ran.stderr
    for case, found in zip(cases, json.loads(ran.stdout), strict=True):
        assert found == joined_by_python(case), case
