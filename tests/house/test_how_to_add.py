"""How to add one: each recipe of CONTRIBUTING.md, carried out. One record or one class, and one line elsewhere."""

from __future__ import annotations

import itertools
import json
from dataclasses import dataclass

from support.helpers import refused, run, settings, trained
from unmask.data.records import CORPORA, Files, Hub, Record
from unmask.data.tasks import TASKS, Columns, Task
from unmask.sampling import SAMPLERS, Sampler
from unmask.sampling.named import SamplerEntry
from unmask.sampling.orders import in_order
from unmask.sampling.sampler import masked_positions


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
    """One record: a model is fine-tuned on it by its name and judged by its metric."""
    # the record
    letters = Task(
        name="toy/letters",
        title="Letters",
        about="whether a word has a q",
        labels=("without", "with"),
        metric="accuracy",
        columns=Columns("word", None, "label"),
        hub=Hub("nobody/letters"),
        splits=("train", "dev"),
        folders=("letters",),
    )
    # the line
    monkeypatch.setitem(TASKS, letters.name, letters)

    (tmp_path / "letters").mkdir()
    words = ["".join(word) for word in itertools.product("abqc", "defg", "hqij", "klmn")]
    for split, part in (("train", words), ("dev", words[::5])):
        rows = [json.dumps({"word": word, "label": int("q" in word)}) + "\n" for word in part]
        (tmp_path / "letters" / f"{split}.jsonl").write_text("".join(rows))
    options = ["task.epochs=4", "train.batch_size=16", "train.lr=0.003", "--out", str(tmp_path / "run"), "--json"]
    figures = run("finetune", str(trained()), "toy/letters", "--local", str(tmp_path), *options).json()
    assert figures["task"] == "toy/letters" and figures["metric"] == "accuracy"
    assert figures["summary"]["dev"]["mean"] > 0.8, "44 of 100 words have one"


@dataclass(frozen=True)
class RightToLeft(Sampler):
    """From the last masked position to the first, k at a time."""

    k: int = 1
    deterministic = True
    timeless = True

    def course(self, canvas, model, key):
        return in_order(canvas, key, masked_positions(canvas, model.vocab).flip(0), self.k)


def test_a_sampler(monkeypatch):
    """One class and one entry: it is chosen by its name, takes its setting, and the batcher runs it like any other."""
    # the line
    monkeypatch.setitem(SAMPLERS, "right-to-left", SamplerEntry(("k",), RightToLeft, "right to left"))

    command = ["sample", str(trained()), "--sampler", "right-to-left", "--length", "9"]
    document = run(*command, "-k", "2", "-n", "3", "--json").json()
    assert document["protocol"]["sampler"] == "right-to-left" and len(document["samples"]) == 3
    assert [sample["network_calls"] for sample in document["samples"]] == [5, 5, 5]
    tokens = json.loads(run(*command, "--jsonl").out)["tokens"]
    assert [token["step"] for token in tokens] == [*range(8, -1, -1)]
    assert "did you mean 'right-to-left'" in refused(*command[:3], "right-to-lefd")
