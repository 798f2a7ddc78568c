"""How to add one: each recipe of CONTRIBUTING.md, carried out. What is added is one record or one class, and one line."""

from __future__ import annotations

import json

from support.helpers import run, settings, trained
from unmask.data.records import CORPORA, Files, Hub, Record
from unmask.data.tasks import TASKS, Columns, Task


def test_a_data_set(tmp_path, monkeypatch):
    """One record: it is listed, shown, prepared and trained on by its name."""
    # the record
    haiku = Record(
        "haiku",
        "haiku of the masters, a poem per line",
        folders=("haiku",),
        layouts=(Files("lines", {"train": ("train.txt",), "valid": ("valid.txt",)}),),
        splits=("train", "valid"),
        settings={"tokenizer": "bytes", "length": 16, "layout": "wrap", "eos_between": True},
    )
    # the line
    monkeypatch.setitem(CORPORA, haiku.name, haiku)

    (tmp_path / "haiku").mkdir()
    (tmp_path / "haiku" / "train.txt").write_text("an old silent pond\n" * 200)
    (tmp_path / "haiku" / "valid.txt").write_text("a frog jumps into the pond\n" * 20)
    assert "haiku" in [entry["name"] for entry in run("data", "list", "--json").json()]
    given = [f"data.local={tmp_path}", f"data.cache={tmp_path / 'cache'}"]
    shown = run("data", "show", "haiku", "--split", "valid", "-n", "1", "--json", *given).json()
    assert "a frog jumps" in json.dumps(shown)
    network = settings("data.source=haiku", *given, "train.steps=2", "eval.rows=4")
    ran = run("train", "tiny", *network, "--out", str(tmp_path / "run"), "--quiet")
    assert ran.code == 0, ran.err
    figures = run("eval", str(tmp_path / "run"), "--json").json()
    assert figures["protocol"]["source"] == "haiku" and figures["tokens"] > 100


def test_a_task(tmp_path, monkeypatch):
    """One record: a model is fine-tuned on it, judged by its metric, and the folder says what the classes are."""
    # the record
    vowels = Task(
        name="toy/vowels",
        title="Vowels",
        about="whether a word begins with a vowel",
        labels=("consonant", "vowel"),
        metric="accuracy",
        columns=Columns("word", None, "label"),
        hub=Hub("nobody/vowels"),
        splits=("train", "dev"),
        folders=("vowels",),
    )
    # the line
    monkeypatch.setitem(TASKS, vowels.name, vowels)

    (tmp_path / "vowels").mkdir()
    words = [
        (first + rest, int(first in "aeiou")) for rest in ("tar", "bel", "nod", "ping") for first in "abecidofughu"
    ]
    for split in ("train", "dev"):
        rows = "".join(json.dumps({"word": word, "label": label}) + "\n" for word, label in words)
        (tmp_path / "vowels" / f"{split}.jsonl").write_text(rows)
    options = ["task.epochs=6", "train.batch_size=8", "train.lr=0.01", "--out", str(tmp_path / "run"), "--json"]
    figures = run("finetune", str(trained()), "toy/vowels", "--local", str(tmp_path), *options).json()
    assert figures["task"] == "toy/vowels"
    assert figures["summary"]["dev"]["mean"] > 0.9, "half of the words begin with a vowel"
