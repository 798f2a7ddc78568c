"""Booby traps: model folders, archives and traces that run code, read elsewhere, fill the memory or never end."""

from __future__ import annotations

import contextlib
import functools
import html.parser
import json
import os
import resource
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from ledger import Ledger, hold
from trainings import STEPS, arguments, corpus, fork, preload, ran, wait
from trapped_files import CALLS, bomb, bombs_in_gzip, header_traps, json_traps, pickle_file, texts, yaml_traps

SECONDS = 60.0
MEMORY = 6 << 30  # bytes of address space beyond what a forked process has from the start


def run(ledger: Ledger) -> None:
    """Every trap once; each must end in one sentence, or do no harm."""
    preload()
    text, said = corpus(ledger.work), ledger.work / "said"
    out, portable = ledger.work / "run", ledger.work / "model"
    for command in (arguments(text, out), ["convert", str(out), str(portable)]):
        ended = ran(command, said)
        hold(ended.code == 0, f"it cannot be made: {ended.said}")
    (portable / "manifest.json").unlink(missing_ok=True)  # whoever sets a trap leaves it out, or writes another
    number = 0
    for what, traps in (
        ("model folders", _models(portable)),
        ("checkpoints", _checkpoints(out)),
        ("archives", _files()),
    ):
        for name, (commands, make) in traps.items():
            number += 1
            if ledger.only in (None, number) and not (ledger.quick and number % 3):
                folder = ledger.work / f"trap-{number}"
                with ledger.case(f"booby-trapped {what}", number, name):
                    _spring(folder, commands, make)
    if ledger.only is None:
        _traces(ledger)


Make = Callable[[Path, Path], None]  # from a new folder, and a path that nobody may write
Traps = dict[str, tuple[list[list[str]], Make]]


def _spring(folder: Path, commands: list[list[str]], make: Make) -> None:
    """Make a trap, and step into it."""
    shutil.rmtree(folder, ignore_errors=True)
    folder.mkdir()
    canary = folder / "canary"
    make(folder, canary)
    for command in commands:
        said = folder / "said"
        words = [part.replace("TRAP", str(folder)) for part in command]
        ended = wait(fork(words, said, _limited), said, SECONDS)
        hold(not canary.exists(), f"{words}: the file ran code")
        hold(
            ended.code >= 0,
            f"{words}: no end after {ended.seconds:.0f} s, or killed ({ended.code}): {ended.said[-300:]}",
        )
        hold("Traceback" not in ended.said and "root:" not in ended.said, f"{words}: {ended.said[-1500:]}")
        hold(ended.code in (0, 2), f"{words}: exit code {ended.code}: {ended.said[-500:]}")
        hold(ended.code == 0 or "unmask: " in ended.said, f"{words}: no sentence: {ended.said[-500:]}")


def _limited() -> None:
    used = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (used + MEMORY, resource.RLIM_INFINITY))


SAMPLE = ["sample", "TRAP/model", "--length", "8"]
SCORE = ["score", "TRAP/model", "--text", "one two"]


def _models(portable: Path) -> Traps:
    """Folders with config.json."""
    traps: Traps = {}

    def add(name: str, change: Callable[[Path, Path], Any], commands: list[list[str]] | None = None) -> None:
        def make(folder: Path, canary: Path) -> None:
            shutil.copytree(portable, folder / "model")
            change(folder / "model", canary)

        traps[name] = (commands or [SAMPLE], make)

    def pickled(folder: Path, canary: Path, kind: str) -> None:
        (folder / "model.safetensors").unlink()
        pickle_file(folder / "pytorch_model.bin", kind, canary)

    for kind in CALLS:
        convert = ["convert", "TRAP/model/pytorch_model.bin", "TRAP/out"]
        add(f"a pickle that calls: {kind}", functools.partial(pickled, kind=kind), [SAMPLE, convert])
    add("code named by auto_map", _code)
    for name, target in (("a file of the system", "/etc/passwd"), ("an endless file", "/dev/zero"), ("itself", "")):
        for file in ("model.safetensors", "config.json", "tokenizer.json"):
            add(f"{file} is a link to {name}", functools.partial(_link, file=file, target=target))
    for file in ("model.safetensors", "config.json", "tokenizer.json"):
        add(f"{file} is a pipe that nobody writes to", functools.partial(_pipe, file=file))
    for name in (
        "../../../etc/passwd",
        "/etc/passwd",
        "..\\x.safetensors",
        "../x.safetensors",
        "a/../../b.safetensors",
    ):
        add(f"an index that leads to {name}", functools.partial(_index, name=name))
    for name, change in json_traps().items():
        add(f"config.json: {name}", functools.partial(_config, change=change))
    for name, data in header_traps().items():
        add(f"model.safetensors: {name}", lambda folder, _, data=data: (folder / "model.safetensors").write_bytes(data))
    for name, data in {
        "nested": b"[" * 300_000,
        "huge": b'{"a":"' + b"x" * 30_000_000,
        "not UTF-8": b"\xff" * 99,
    }.items():
        add(f"tokenizer.json: {name}", lambda folder, _, data=data: (folder / "tokenizer.json").write_bytes(data))
    return traps


def _code(folder: Path, canary: Path) -> None:
    tree = json.loads((folder / "config.json").read_text())
    tree["auto_map"] = dict.fromkeys(("AutoConfig", "AutoModel", "AutoModelForMaskedLM", "AutoTokenizer"), "trap.Trap")
    (folder / "config.json").write_text(json.dumps(tree))
    for name in ("trap", "modeling_trap", "configuration_trap", "sitecustomize", "torch", "conftest"):
        (folder / f"{name}.py").write_text(f"open({str(canary)!r}, 'w')\nclass Trap: pass\n")
    settings = {"auto_map": {"AutoTokenizer": ["trap.Trap", "trap.Trap"]}, "tokenizer_class": "Trap"}
    (folder / "tokenizer_config.json").write_text(json.dumps(settings))


def _link(folder: Path, _: Path, file: str, target: str) -> None:
    (folder / file).unlink()
    (folder / file).symlink_to(target or file)


def _pipe(folder: Path, _: Path, file: str) -> None:
    (folder / file).unlink()
    os.mkfifo(folder / file)


def _index(folder: Path, _: Path, name: str) -> None:
    (folder / "model.safetensors").rename(folder.parent / "x.safetensors")
    (folder / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {"backbone.x": name}}))


def _config(folder: Path, _: Path, change: Callable[[dict[str, Any]], Any]) -> None:
    path = folder / "config.json"
    changed = change(json.loads(path.read_text()))
    path.write_text(changed if isinstance(changed, str) else json.dumps(changed))


def _checkpoints(out: Path) -> Traps:
    """Checkpoints with a manifest that agrees with the trap."""
    from unmask import files

    def make(folder: Path, canary: Path, data: str) -> None:
        model = folder / "model"
        shutil.copytree(out / "checkpoints" / f"step-{STEPS:08d}", model)
        (model / "config.yaml").write_text(data.replace("CANARY", str(canary)))
        files.seal(model)

    def outside(folder: Path, _: Path) -> None:
        make(folder, folder, (out / "checkpoints" / f"step-{STEPS:08d}" / "config.yaml").read_text())
        manifest = json.loads((folder / "model" / "manifest.json").read_text())
        manifest["files"]["../../../../../../etc/passwd"] = {"size": 1, "sha256": "0" * 64}
        manifest.pop(files.CHECK, None)
        (folder / "model" / "manifest.json").write_text(json.dumps(manifest))

    commands = [SAMPLE, ["train", "TRAP/model/config.yaml", "--out", "TRAP/run", "train.steps=1", "--quiet"]]
    text = (out / "checkpoints" / f"step-{STEPS:08d}" / "config.yaml").read_text()
    traps: Traps = {
        f"config.yaml: {name}": (commands, functools.partial(make, data=data))
        for name, data in yaml_traps(text).items()
    }
    return traps | {"a manifest that lists files elsewhere": ([SAMPLE], outside)}


def _files() -> Traps:
    """Files that are small and say that they are large, or that lead elsewhere."""
    train = ["train", "tiny", "data.tokenizer=bytes", "data.length=16", "train.steps=1", "train.batch_size=1"]
    here = ["data.cache=TRAP/cache", "--out", "TRAP/run", "--quiet"]
    traps: Traps = {}
    for name in ("zip", "zip slip", "deflated", "many entries", "lying sizes"):
        make = functools.partial(bomb, kind=name)
        traps[f"a torch file: {name}"] = ([["convert", "TRAP/trap.ckpt", "TRAP/out"]], make)
    for name, data in bombs_in_gzip().items():
        make = lambda folder, _, data=data: (folder / "trap.txt.gz").write_bytes(data)  # noqa: E731
        traps[f"a text in gzip: {name}"] = ([[*train, "data.source=TRAP/trap.txt.gz", *here]], make)
    for name, data in texts().items():
        suffix = name.rpartition(".")[2]
        make = lambda folder, _, data=data, suffix=suffix: (folder / f"trap.{suffix}").write_bytes(data)  # noqa: E731
        traps[f"a text: {name}"] = ([[*train, f"data.source=TRAP/trap.{suffix}", *here]], make)
    return traps


# -- traces ------------------------------------------------------------------------------------------------------------

INJECTED = [
    "</script><script>alert(1)</script>",
    "<img src=x onerror=alert(1)>",
    "--><svg onload=alert(1)>",
    "]]>",
    "{{script}}{{data}}",
    "\u2028alert(1)\u2029",
    "<!--<script>",
    "&lt;script&gt;",
    "\x00\x1b]0;title\x07",
    "javascript:alert(1)",
    '" onmouseover="alert(1)',
    "' onfocus='alert(1)",
    "\ud83d",
    "</pre></template></style><base href=//evil>",
]


class Tags(html.parser.HTMLParser):
    """The elements and attributes of a page, in order."""

    def __init__(self, page: str) -> None:
        super().__init__(convert_charrefs=True)
        self.tags: list[tuple[str, tuple[str, ...]]] = []
        self.feed(page)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Remember an element."""
        self.tags.append((tag, tuple(sorted(name for name, _ in attrs))))


def _traces(ledger: Ledger) -> None:
    """A replay with a text in every place has the elements of one without; damaged traces are refused."""
    from unmask.sampling.trace import FORMAT, Trace
    from unmask.serve.replay import render
    from unmask.types import UserError

    def trace(word: str) -> dict[str, Any]:
        event = {"step": 1, "t": 0.5, "calls": 1, "changes": [[0, 1, 0.5, [[1, 0.5]]]]}
        sequence = {"canvas": [0, 1], "given": [[1, 2]], "events": [event], "text": word, "name": word, "done": True}
        protocol = {"model": word, "label": word, "prompt": word, word: word}
        pieces = {"0": "[MASK]", "1": word}
        head = {"format": FORMAT, "mask": 0, "special": [0], "pieces": pieces}
        return {**head, "protocol": protocol, "sequences": [sequence]}

    sound = Tags(render(Trace.from_json(trace("word")))).tags
    for number, word in enumerate(INJECTED):
        with ledger.case("traces with HTML and scripts in texts, labels and names", number, repr(word)):
            page = render(Trace.from_json(trace(word)), title=word)
            hold(Tags(page).tags == sound, "the page has other elements")
            page.encode()
            _plots(word)
    for number, rng in ledger.cases(300, 60):
        with ledger.case("damaged traces", number):
            data = trace("word")
            _mutate(data, rng)
            begun = time.monotonic()
            with contextlib.suppress(UserError):
                tags = Tags(render(Trace.from_json(data))).tags
                hold(tags == sound or len(data["sequences"]) != 1, "other elements")
            hold(time.monotonic() - begun < 10, "it took longer than 10 seconds")


def _plots(word: str) -> None:
    """Labels in a plot are text."""
    from unmask.plot import Curve, Plot, svg

    pictures = [svg(Plot("plot", name, name, name, [Curve(name, [0.0, 1.0], [1.0, 2.0])])) for name in ("word", word)]
    sound, seen = (sorted(set(Tags(picture).tags)) for picture in pictures)
    hold(seen == sound, "a plot has other elements")


def _mutate(data: Any, rng: Any) -> None:
    """Put something else in a random place of a tree."""
    odd = [None, True, -1, 1e308, 10**30, "x" * 1000, [], {}, [[]] * 50, float("nan"), "</script>", {"a": {"b": 1}}]
    while True:
        keys = list(data) if isinstance(data, dict) else list(range(len(data)))
        if not keys:
            return
        key = rng.choice(keys)
        if isinstance(data[key], dict | list) and rng.random() < 0.7:
            data = data[key]
            continue
        data[key] = rng.choice(odd)
        return
