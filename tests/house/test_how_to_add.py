"""How to add one: each recipe of CONTRIBUTING.md, carried out. One record or one class, and one line elsewhere.

The sixth, a table, is in tests/reproduce/test_new_tables.py.
"""

from __future__ import annotations

import itertools
import json
import math
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import nn

from support.helpers import TEXT, command_tree, folder, refused, run, settings, text_file, trained
from unmask.config import METHODS, NETWORKS, ModelConfig
from unmask.data.records import CORPORA, Files, Hub, Record
from unmask.data.tasks import TASKS, Columns, Task
from unmask.models.registry import masked
from unmask.networks.interface import Network
from unmask.process.parameterization import Mean
from unmask.sampling import SAMPLERS, Sampler, SamplerEntry
from unmask.sampling.orders import in_order
from unmask.sampling.sampler import positions_of
from unmask.sampling.settings import k_setting


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

    k: int = k_setting()
    deterministic = True
    timeless = True

    def trajectory(self, request, model):
        return in_order(request, model.vocab, positions_of(request.writable(model.vocab)).flip(0), self.k)


def test_a_sampler(monkeypatch):
    """One class and one entry: it is chosen by its name, takes its setting, and the batcher runs it like any other."""
    # the line
    monkeypatch.setitem(
        SAMPLERS,
        "right-to-left",
        SamplerEntry(RightToLeft, "right to left", "from the last mask", "exact for that order"),
    )

    command_tree.cache_clear()
    command = ["sample", str(trained()), "--sampler", "right-to-left", "--length", "9"]
    document = run(*command, "-k", "2", "-n", "3", "--json").json()
    assert document["protocol"]["sampler"] == "right-to-left" and len(document["samples"]) == 3
    assert [sample["network_calls"] for sample in document["samples"]] == [5, 5, 5]
    tokens = json.loads(run(*command, "--jsonl").out)["tokens"]
    assert [token["step"] for token in tokens] == [*range(8, -1, -1)]
    assert "did you mean 'right-to-left'" in refused(*command[:3], "right-to-lefd")


class MixerConfig(ModelConfig):
    """The settings of the network below."""

    implementation: ClassVar[str] = f"{__name__}:Mixer"
    network: Literal["mixer"] = "mixer"
    width: int = 5


class Mixer(Network):
    """Convolutions over the neighbours."""

    def __init__(self, vocab, hidden_dim, n_blocks, width):
        super().__init__()
        self.vocab, self.hidden_dim = vocab, hidden_dim
        self.embed = nn.Embedding(vocab.size, hidden_dim)
        self.blocks = nn.ModuleList(nn.Conv1d(hidden_dim, hidden_dim, width, padding="same") for _ in range(n_blocks))
        self.out = nn.Linear(hidden_dim, vocab.size)

    @classmethod
    def from_config(cls, settings, vocab, n_labels=0, causal=False):
        return cls(vocab, settings.hidden_dim, settings.n_blocks, settings.width)

    def forward(self, inputs):
        x = self.embed(inputs.content)
        for mix in self.blocks:
            seen = x if inputs.valid is None else x * inputs.valid[..., None]
            x = x + F.gelu(mix(seen.transpose(1, 2)).transpose(1, 2))
        return x, None

    def head(self, rows):
        return self.out(rows)


def test_a_network(tmp_path, monkeypatch):
    """One class with its settings: it is trained, evaluated, sampled and loaded by its name."""
    # the line
    monkeypatch.setitem(NETWORKS, "mixer", MixerConfig)

    data = [f"data.source={text_file()}", f"data.cache={folder() / 'cache'}", *TEXT]
    network = ["model.network=mixer", "model.width=3", "model.hidden_dim=16", "model.n_blocks=2"]
    out = str(tmp_path / "run")
    ran = run(
        "train",
        "tiny",
        *data,
        *network,
        "train.optimizer=adamw",
        "train.steps=120",
        "train.lr=0.01",
        "eval.every=0",
        "--out",
        out,
        "--quiet",
    )
    assert ran.code == 0, ran.err
    assert run("eval", out, "--json").json()["perplexity"] < 20, "of 256 bytes"
    assert len(run("sample", out, "-n", "2", "--length", "12", "--json").json()["samples"]) == 2
    assert "model.width" in refused("train", "tiny", *data, "model.network=mixer", "model.widht=3", "--out", out)
    assert "looks both ways" in refused("train", "tiny", *data, *network, "model.method=ar", "--out", out + "2")


@dataclass(frozen=True)
class Smooth(Mean):
    """SUBS with a hundredth of every prediction spread over all tokens: nothing is ever ruled out."""

    def log_x(self, logits, mask):
        predicted = 0.99 * super().log_x(logits, mask).exp() + 0.01 / (logits.shape[-1] - 1)
        return predicted.log().index_fill(-1, torch.tensor([mask]), -math.inf)


smooth = masked(Smooth())


def test_a_method(tmp_path, monkeypatch):
    """One formula and one line: it is trained, scored and sampled by its name, and says what it cannot do."""
    # the line
    monkeypatch.setitem(METHODS, "smooth", f"{__name__}:smooth")

    out = str(tmp_path / "run")
    ran = run(
        "train", "tiny", *settings("model.method=smooth", "train.steps=3", "eval.rows=8"), "--out", out, "--quiet"
    )
    assert ran.code == 0, ran.err
    figures = run("eval", out, "--draws", "2", "--json").json()
    assert 0 < figures["perplexity"] < 1000
    assert run("score", out, "one two", "--json").json()["nats"] > 0
    assert len(run("sample", out, "-n", "2", "--length", "8", "--json").json()["samples"]) == 2
    assert "did you mean 'smooth'" in refused("train", "tiny", *settings("model.method=smoth"), "--out", out)
