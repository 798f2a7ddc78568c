"""Labels from the column of a file to the network: nothing is mixed up, hidden or forgotten on the way."""

from __future__ import annotations

import json
import math
import os
import random
import shutil
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch
from torch import Tensor, nn

import unmask
from support.helpers import NETWORK, folder, refused, run, tiny_config
from unmask.config import Config, DataConfig, parse
from unmask.data import labels as labels_room
from unmask.data import online
from unmask.data.cache import content_key
from unmask.data.documents import entry
from unmask.data.labels import in_order, load_labels, save_labels, translate
from unmask.data.loader import drop_labels, eval_batch, train_batch
from unmask.data.pack import Prepared, prepare
from unmask.data.rows import Rows
from unmask.distributed import World
from unmask.evaluation.likelihood import evaluate
from unmask.files import seal
from unmask.hub.resolve import checkpoint
from unmask.models import registry
from unmask.networks.dit import DiT
from unmask.process.keys import Keys
from unmask.training.step import Trainer
from unmask.types import Batch, UserError, Vocab

WHOLE = {"valid_fraction": 0, "test_fraction": 0}
VOCAB = Vocab(12, mask=11, pad=10)
COND = 6

Table = list[tuple[Any, Any]]  # text and label


def write(path: Path, table: Table) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.suffix == ".parquet":  # the label first: columns come in the order of the file, not as asked for
        pq.write_table(pa.table({"kind": [k for _, k in table], "text": [t for t, _ in table]}), path)
    else:
        path.write_text("".join(json.dumps({"text": t, "kind": k, "id": i}) + "\n" for i, (t, k) in enumerate(table)))
    return path


def spec_for(path: Path, **more: Any) -> DataConfig:
    own = {
        "source": str(path),
        "cache": str(path.parent / "cache"),
        "tokenizer": "bytes",
        "layout": "pad",
        "length": 12,
    }
    return DataConfig(**{**own, "label": "kind", **more})


def told(prepared: Prepared, split: str) -> list[tuple[str, str]]:
    """(text, name of the label) of every row, as the network would see it."""
    rows = prepared.split(split)
    tokens, scored = rows.rows(range(len(rows)))
    ids = rows.labels(range(len(rows)))
    assert scored is not None and ids is not None and ids.dtype == np.int64 and len(ids) == len(rows)
    return [
        (bytes(row[mark & (row < 256)].astype(np.uint8)).decode(), prepared.labels[i])
        for row, mark, i in zip(tokens, scored, ids, strict=True)
    ]


def random_table(n: int, names: list[Any], seed: int = 0) -> Table:
    rng = random.Random(seed)
    return [(f"{i} {rng.randrange(999)}", rng.choice(names)) for i in range(n)]


# -- from a file to the rows -----------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["a.jsonl", "a.parquet"])
@pytest.mark.parametrize("names", [["pos", "neg", "so-so"], [2, 0, 1, 11]])
def test_every_row_has_the_label_of_its_document(tmp_path: Path, name: str, names: list[Any]) -> None:
    table = random_table(300, names)
    table[5:5] = [("", names[0]), ("  ", names[1]), (None, None)]  # no row, and it shifts no label either
    prepared = prepare(spec_for(write(tmp_path / name, table), valid_fraction=0.1, test_fraction=0.1))
    assert prepared.labels == tuple(str(n) for n in sorted(names))
    found = [pair for split in ("train", "valid", "test") for pair in told(prepared, split)]
    assert sorted(found) == sorted((t, str(k)) for t, k in table if t and t.strip())
    assert len(told(prepared, "valid")) == 30


def test_a_long_document_keeps_its_label_in_all_its_parts(tmp_path: Path) -> None:
    table = [("x" * 300_000, "long"), *[(f"doc {i}", "short") for i in range(20)]]
    prepared = prepare(spec_for(write(tmp_path / "a.jsonl", table), valid_fraction=0.4))
    found = [pair for split in ("train", "valid") for pair in told(prepared, split)]
    assert {text for text, label in found if label == "long"} == {"x" * 12}
    assert sum(label == "long" for _, label in found) > 1, "the division cuts it"
    assert all(text.startswith("doc") for text, label in found if label == "short")


def test_numbers_keep_their_numbers_and_strings_are_sorted() -> None:
    numbers = [str(i) for i in range(12)]
    assert in_order(reversed(numbers)) == tuple(numbers)
    assert in_order(["b", "10", "a", "-1", "9", "9" * 5000]) == ("-1", "9", "10", "9" * 5000, "a", "b")


def test_truth_values_and_odd_strings_are_names() -> None:
    read = lambda value: entry({"text": "t", "kind": value}, "text", "kind", "line 1")  # noqa: E731
    assert [read(v).label for v in (True, False, 3, -1, "3", " é", "\ud800")] == [
        "true",
        "false",
        "3",
        "-1",
        "3",
        " é",
        "\ufffd",
    ]


def test_other_data_are_matched_by_name(tmp_path: Path) -> None:
    """The model's ids, whatever the order of the labels elsewhere and whichever of them occur."""
    known = ["neg", "pos", "so-so"]
    table = [("one", "so-so"), ("two", "neg")]
    prepared = prepare(spec_for(write(tmp_path / "a.jsonl", table), **WHOLE), labels=known)
    assert prepared.split("train").labels([0, 1]).tolist() == [2, 0]
    strange = prepare(spec_for(write(tmp_path / "b.jsonl", [("one", "pso")]), **WHOLE), labels=known)
    with pytest.raises(UserError, match=r"has the label 'pso' \(did you mean 'pos'\?\), which .* \(they have neg, pos"):
        strange.split("train")


def test_the_names_are_those_of_the_train_split(tmp_path: Path) -> None:
    source = tmp_path / "corpus"
    write(source / "train.jsonl", [("a", "x"), ("b", "z")])
    write(source / "valid.jsonl", [("c", "z")])
    write(source / "test.jsonl", [("d", "z"), ("e", "y")])
    prepared = prepare(spec_for(source, cache=str(tmp_path / "cache")), splits=("valid",))
    assert prepared.labels == ("x", "z")
    assert told(prepared, "valid") == [("c", "z")]
    with pytest.raises(UserError, match=r"split 'test' of .* has the label 'y'.* leave its rows out"):
        prepared.split("test")


def test_hub_data_sets_and_their_class_labels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import datasets

    columns = {"text": ["a", "b", "c"], "kind": [1, 0, 1], "n": [7, 7, 8]}
    made = datasets.Dataset.from_dict(columns).cast_column("kind", datasets.ClassLabel(names=["World", "Sports"]))
    monkeypatch.setattr(datasets, "load_dataset", lambda *a, **k: datasets.DatasetDict({"train": made}))
    monkeypatch.setattr(online, "reachable", lambda: True)
    spec = spec_for(tmp_path / "x", source="owner/corpus", **WHOLE)
    assert told(prepare(spec), "train") == [("a", "Sports"), ("b", "World"), ("c", "Sports")]
    assert told(prepare(spec.model_copy(update={"label": "n"})), "train") == [("a", "7"), ("b", "7"), ("c", "8")]
    with pytest.raises(UserError, match=r"data set 'owner/corpus' has no field 'kin' .* set data.label to one of"):
        prepare(spec.model_copy(update={"label": "kin"}))
    made = made.map(lambda row: {"kind": -1})  # how a data set says that it does not tell
    with pytest.raises(UserError, match="row 1 of data set 'owner/corpus' has no label"):
        prepare(spec)


# -- the cache -------------------------------------------------------------------------------------------------------


def test_labels_name_another_cache_and_leave_the_others_their_names(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", random_table(20, ["x", "y"]))
    plain = prepare(spec_for(path, label=None))
    before = content_key(1, plain.corpus.fingerprint, plain.tokenizer.digest, "pad", None)  # as it always was
    assert plain.fingerprint == before and plain.labels == ()
    assert plain.split("train").labels([0]) is None
    names = {prepare(spec_for(path, label=label)).fingerprint for label in (None, "kind", "id")}
    assert len(names) == 3
    assert not list(plain.folder.glob("*.lab"))
    trained = [prepare(spec_for(path, label=label, tokenizer="bpe", vocab_size=270)) for label in (None, "kind")]
    assert trained[0].tokenizer.digest == trained[1].tokenizer.digest
    assert len(list((tmp_path / "cache" / "tokenizers").iterdir())) == 1, "labels do not change the text"


def test_damaged_labels_are_made_again(tmp_path: Path) -> None:
    path = write(tmp_path / "a.jsonl", random_table(50, ["x", "y", "z"]))
    before = told(prepare(spec_for(path)), "train")
    prepared = prepare(spec_for(path))
    file = prepared.folder / "train.lab"
    assert file.stat().st_size == 2 * len(before)
    file.write_bytes(b"\1" + file.read_bytes()[1:])
    assert told(prepare(spec_for(path)), "train") == before
    file.unlink()
    assert told(prepared, "train") == before


# -- what users get wrong --------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (None, "line 2 of .* has no label: field 'kind' is empty; give the row a label or leave it out"),
        (" ", "line 2 of .* has no label"),
        (1.0, "field 'kind' in line 2 of .* is float, not a label; set data.label to a field of strings or whole"),
        (["x"], "field 'kind' in line 2 of .* is list, not a label"),
    ],
)
def test_rows_without_a_label(tmp_path: Path, value: Any, message: str) -> None:
    path = write(tmp_path / "a.jsonl", [("one", "x"), ("two", value)])
    with pytest.raises(UserError, match=message):
        prepare(spec_for(path, **WHOLE))
    if not isinstance(value, list):
        pq.write_table(pa.table({"text": ["two"], "kind": [value]}), tmp_path / "a.parquet")
        with pytest.raises(UserError, match=message.replace("line 2", "row 1")):
            prepare(spec_for(tmp_path / "a.parquet", **WHOLE))


def test_columns_that_do_not_exist(tmp_path: Path) -> None:
    for name, where in (("a.jsonl", "line 1 of "), ("a.parquet", "^")):
        path = write(tmp_path / name, [("one", "x")])
        with pytest.raises(UserError, match=rf"{where}\S*{name} has no field 'kin' .*'kind'\?\); set data.label to"):
            prepare(spec_for(path, label="kin"))
    path.with_name("b.jsonl").write_text('{"text": "one", "kind": "x"}\n{"text": "two"}\n')
    with pytest.raises(UserError, match=r"line 2 of .* has no field 'kind'"):
        prepare(spec_for(path.with_name("b.jsonl"), **WHOLE))


def test_plain_text_has_no_labels(tmp_path: Path) -> None:
    (tmp_path / "a.txt").write_text("some text")
    for source in (str(tmp_path / "a.txt"), "python-docs"):
        with pytest.raises(UserError, match=f"{Path(source).name} is plain text without columns.* data.label=null"):
            prepare(spec_for(tmp_path / "a.txt", source=source))


def test_too_many_labels_are_the_wrong_column(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(labels_room, "MOST", 30)
    spec = spec_for(write(tmp_path / "a.jsonl", random_table(40, ["x", "y"])), label="id", **WHOLE)
    with pytest.raises(UserError, match=r"document 31 in split 'train' of .* has label number 31, '30'.* wrong column"):
        prepare(spec)
    assert not list((tmp_path / "cache").rglob("*.lab*")), "nothing is left behind"


@pytest.mark.parametrize(
    ("data", "said"),
    [
        ({"label": "kind"}, "data: label needs rows that are one document each; set data.layout=pad"),
        ({"label": "text", "layout": "pad"}, "data: label=text is the column of the text; set data.label"),
        ({"label": "", "layout": "pad"}, "data.label='' is not valid"),
    ],
)
def test_settings_that_cannot_be(data: dict[str, Any], said: str) -> None:
    with pytest.raises(UserError) as error:
        parse({"data": data})
    assert str(error.value).startswith(said) and "\n" not in str(error.value)


# -- batches ---------------------------------------------------------------------------------------------------------


def labelled_rows(n: int = 40, n_labels: int = 3, length: int = 8) -> Rows:
    """Random rows; the label of a row can be told from its first token."""
    rng = np.random.default_rng(0)
    stream = rng.integers(0, 10, n * length).astype(np.uint16)
    marks = (stream[::length] % n_labels).astype(np.uint16)
    ends = np.arange(1, n + 1, dtype=np.uint64) * length
    facts = {"documents": n, "bytes": len(stream)}
    return Rows(stream, ends, facts, length, pad=VOCAB.pad, marks=marks, label_ids=np.arange(n_labels))


def test_batches_carry_the_labels_of_their_rows() -> None:
    rows = labelled_rows()
    for batch in (train_batch(rows, False, 3, 5, 16, range(2, 9)), eval_batch(rows, [7, 0, 31])):
        assert batch.label is not None and batch.label.dtype == torch.int64
        assert batch.label.equal(batch.tokens[:, 0] % 3)


def test_which_labels_are_hidden_depends_on_seed_step_and_slot_only() -> None:
    rows, keys = labelled_rows(), Keys(0).fork("train")

    def labels(slots: range, step: int = 4, chance: float = 0.3) -> Tensor:
        batch = drop_labels(train_batch(rows, False, 0, step, 33, slots), chance, keys.at(step))
        assert batch.label is not None
        return batch.label

    one = labels(range(33))
    for size in (2, 3):
        shares = [labels(World(rank, size, torch.device("cpu")).slots(33)) for rank in range(size)]
        assert torch.cat(shares).equal(one)
    assert torch.cat([labels(range(i, i + 1)) for i in range(33)]).equal(one), "micro-batches of one"
    given = train_batch(rows, False, 0, 4, 33, range(33)).label
    assert 0 < (one == -1).sum() < 33 and one[one >= 0].equal(given[one >= 0])
    assert not (one == -1).equal(labels(range(33), step=5) == -1)
    more = labels(range(33), chance=0.6)
    assert ((more == -1) | (one != -1)).all(), "what is hidden by a small chance is hidden by a larger one"
    assert labels(range(33), chance=0.0).equal(given)


def test_labels_are_hidden_as_often_as_the_setting_says() -> None:
    batch = Batch(torch.zeros(20_000, 1).long(), torch.arange(20_000), 20_000, label=torch.zeros(20_000).long())
    hidden = (drop_labels(batch, 0.1, Keys(3)).label == -1).double().mean().item()
    assert abs(hidden - 0.1) < 4 * math.sqrt(0.1 * 0.9 / 20_000)
    assert batch.label.eq(0).all(), "the batch itself is not written to"


def labelled_model(config: Config, n_labels: int = 3) -> Any:
    """A model whose every weight is random: to a fresh one all labels and tokens are alike."""
    torch.manual_seed(7)
    model = registry.model(config, VOCAB, n_labels)
    for p in model.parameters():
        nn.init.normal_(p, std=0.4)
    return model.eval()


def labelled_trainer(*overrides: str, seen: list[Tensor] | None = None) -> Trainer:
    config = tiny_config(
        "train.batch_size=9",
        "model.dropout=0",
        "train.warmup=0",
        "train.label_drop=0.5",
        f"model.cond_dim={COND}",
        *overrides,
    )
    model = labelled_model(config)
    if seen is not None:
        loss, nats = model.loss, model.nats  # training asks for the one, evaluation for the other
        model.loss = lambda batch, keys: (seen.append(batch.label), loss(batch, keys))[1]
        model.nats = lambda batch, keys: (seen.append(batch.label), nats(batch, keys))[1]
    return Trainer(config, model, World(0, 1, torch.device("cpu")))


@pytest.mark.parametrize("timed", ["true", "false"])
def test_accumulation_hides_the_labels_of_the_large_batch(timed: str) -> None:
    whole_labels: list[Tensor] = []
    part_labels: list[Tensor] = []
    timing = f"model.time_conditioning={timed}"
    whole = labelled_trainer(timing, seen=whole_labels)
    parts = labelled_trainer(timing, "train.micro_batch_size=4", seen=part_labels)
    rows = labelled_rows()
    for step in range(3):
        assert parts.step(rows, step)[0] == pytest.approx(whole.step(rows, step)[0], rel=1e-5)
    assert torch.cat(whole_labels).equal(torch.cat(part_labels))
    assert set(torch.cat(whole_labels).tolist()) == {-1, 0, 1, 2}
    embedding = parts.model.backbone.label_embed.embedding
    torch.testing.assert_close(embedding, whole.model.backbone.label_embed.embedding, rtol=1e-5, atol=1e-6)


def test_evaluation_hides_nothing_and_says_so() -> None:
    seen: list[Tensor] = []
    trainer, rows = labelled_trainer(seen=seen), labelled_rows(10)
    found = evaluate(trainer.model, rows, draws=1, batch_size=4)
    assert torch.cat(seen).equal(torch.from_numpy(rows.labels(range(10))))
    assert found.protocol["labels"] == "given"
    seen.clear()
    assert evaluate(trainer.model, replace(rows, marks=None), draws=1).protocol["labels"] == "none"
    assert seen == [None]
    plain = labelled_model(tiny_config(), 0)
    assert "labels" not in evaluate(plain, replace(rows, marks=None), draws=1).protocol


# -- the network -----------------------------------------------------------------------------------------------------


def folded(net: DiT, label: int) -> DiT:
    """The network without labels that does what `net` does for one of them: its vector is a bias."""
    plain = DiT(VOCAB, 16, 1, 2, COND, dropout=0.0, time_conditioning=net.time_conditioning).eval()
    state = {name: tensor for name, tensor in net.state_dict().items() if not name.startswith("label_embed")}
    state["sigma_map.mlp.2.bias"] = state["sigma_map.mlp.2.bias"] + net.label_embed.embedding.detach()[label]
    plain.load_state_dict(state, strict=True)
    return plain


@pytest.mark.parametrize("timed", [False, True])
def test_a_label_is_a_bias_of_its_own(timed: bool) -> None:
    config = tiny_config(f"model.time_conditioning={timed}", f"model.cond_dim={COND}", "model.dropout=0")
    model, plain = labelled_model(config), labelled_model(config, 0)
    net, keys = model.backbone, Keys(5)
    batch = eval_batch(labelled_rows(6), range(6))
    labels = torch.tensor([0, 2, -1, 1, 2, -1])
    assert net.condition(torch.rand(6), labels).shape == (6, COND)
    with torch.no_grad():
        got = model.nats(replace(batch, label=labels), keys).nats
        none = model.nats(replace(batch, label=None), keys).nats
        for label in (-1, 0, 1, 2):
            plain.backbone = folded(net, label)
            alone = plain.nats(replace(batch, label=None), keys).nats
            torch.testing.assert_close(got[labels == label], alone[labels == label], rtol=1e-4, atol=1e-5)
            assert (label == -1) == torch.allclose(none, alone, rtol=1e-4, atol=1e-5)
    shape = (6, COND) if timed else (1, COND)  # no label for anybody: rows are told apart by their times only
    assert net.condition(torch.rand(6)).shape == shape


def test_labels_cost_one_parameter_and_nothing_where_there_are_none() -> None:
    def made(n: int) -> DiT:
        torch.manual_seed(1)
        return DiT(VOCAB, 16, 1, 2, COND, n_labels=n)

    plain, labelled = made(0).state_dict(), made(4).state_dict()
    assert set(labelled) - set(plain) == {"label_embed.embedding"}
    assert labelled.pop("label_embed.embedding").shape == (5, COND)
    assert all(torch.equal(labelled[name], tensor) for name, tensor in plain.items()), "drawn as without labels"


def test_labels_that_the_network_does_not_have() -> None:
    net = DiT(VOCAB, 16, 1, 2, COND, n_labels=2)
    with pytest.raises(IndexError):  # in particular not "no label", which comes after the last one
        net.condition(torch.zeros(1), torch.tensor([2]))
    with pytest.raises(ValueError, match="does not take labels"):
        DiT(VOCAB, 16, 1, 2, COND).condition(torch.zeros(1), torch.tensor([0]))


# -- whole runs ------------------------------------------------------------------------------------------------------


def kinds_file(path: Path, n: int = 400, length: int = 4) -> Path:
    """Two kinds of text without a letter in common: given the kind a letter has log 4 nats, else log 2 a text more."""
    rng = random.Random(0)
    kinds = [rng.choice(["lower", "upper"]) for _ in range(n)]
    letters = {"lower": "wxyz", "upper": "ABCD"}
    return write(path, [("".join(rng.choice(letters[kind]) for _ in range(length)), kind) for kind in kinds])


def arguments(source: Path, out: Path, *more: str) -> list[str]:
    own = [
        f"data.source={source}",
        f"data.cache={folder() / 'cache'}",
        "data.label=kind",
        "data.layout=pad",
        "data.length=4",
        "data.tokenizer=chars",
        *NETWORK,
        "train.batch_size=32",
        "train.lr=0.01",
        "train.warmup=10",
        "train.ema=0.9",
        "eval.every=0",
        "eval.rows=4",
    ]
    return ["train", "tiny", *own, *more, "--out", str(out), "--quiet"]


@pytest.fixture(scope="module")
def learnt(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """A source, and a run that has learnt it."""
    home = tmp_path_factory.mktemp("labels")
    source = kinds_file(home / "kinds.jsonl")
    ran = run(*arguments(source, home / "run", "model.dropout=0", "train.steps=150"))
    assert ran.code == 0, ran.err
    return source, home / "run"


def test_the_label_matters(learnt: tuple[Path, Path]) -> None:
    source, out = learnt
    lm = unmask.load(out)
    assert lm.labels == ["lower", "upper"]
    spec = lm.config.data.model_copy(update={**WHOLE, "source": str(kinds_file(source.with_name("new.jsonl"), 100))})
    rows = prepare(spec, lm.tokenizer, splits=("train",), labels=lm.labels).split("train")
    swapped = replace(rows, label_ids=np.array([1, 0])[rows.label_ids])
    bound = lambda chosen: evaluate(lm.model, chosen, draws=8)  # noqa: E731
    right, wrong, none = bound(rows), bound(swapped), bound(replace(rows, marks=None))
    assert right.nats_per_token < math.log(4) + 0.1
    assert none.nats_per_token > math.log(4) + math.log(2) / 4 - 4 * none.stderr_nats, "nobody can do better without"
    assert right.nats_per_token + 0.05 < none.nats_per_token < wrong.nats_per_token - 0.2


def test_labels_are_sealed_into_every_checkpoint(learnt: tuple[Path, Path], tmp_path: Path) -> None:
    shutil.copytree(learnt[1], tmp_path / "run")
    file = checkpoint.resolve(tmp_path / "run") / "labels.json"
    assert json.loads(file.read_text()) == {"format": 1, "column": "kind", "names": ["lower", "upper"]}
    file.write_text(file.read_text().replace("upper", "Upper"))
    assert "labels.json is damaged" in refused("eval", str(tmp_path / "run"), "--rows", "2")
    file.unlink()
    assert "labels.json is missing" in refused("eval", str(tmp_path / "run"), "--rows", "2")


def test_names_of_a_folder(tmp_path: Path) -> None:
    save_labels(tmp_path, "kind", ("b", "a"))
    assert load_labels(tmp_path, "kind") == ["b", "a"]
    assert load_labels(tmp_path, None) == []
    for content in ("{", "[]", '{"names": []}', '{"names": [1]}'):
        (tmp_path / "labels.json").write_text(content)
        with pytest.raises(UserError, match=r"labels.json is damaged"):
            load_labels(tmp_path, "kind")
    with pytest.raises(UserError, match=r"labels.json is missing.*data.label=kind"):
        load_labels(tmp_path / "elsewhere", "kind")
    assert translate([], ["a"], "nowhere").shape == (0,)


def test_a_continued_run_has_the_same_bits(learnt: tuple[Path, Path], tmp_path: Path) -> None:
    source, _ = learnt
    own = ["train.batch_size=7", "train.micro_batch_size=3", "model.dropout=0.2", "train.label_drop=0.4", "seed=2"]
    command: Callable[[str, int], list[str]] = lambda name, steps: arguments(  # noqa: E731
        source, tmp_path / name, *own, f"train.steps={steps}"
    )
    for name, steps in (("straight", 8), ("stopped", 3), ("stopped", 8)):
        ran = run(*command(name, steps))
        assert ran.code == 0, ran.err
    ours, theirs = (checkpoint.step_folder(tmp_path / name, 8) for name in ("stopped", "straight"))
    for file in ("model.safetensors", "ema.safetensors", "optimizer.safetensors", "labels.json"):
        assert (ours / file).read_bytes() == (theirs / file).read_bytes(), file
    assert "data.label=kind" in refused(*command("straight", 9), "data.label=id")
    assert "train.label_drop=0.4" in refused(*command("straight", 9), "train.label_drop=0.1")


def test_a_continued_run_keeps_the_ids_of_its_labels(learnt: tuple[Path, Path], tmp_path: Path) -> None:
    """They are read from the checkpoint, so another rule of ordering in a later version cannot swap them."""
    source, _ = learnt
    command = arguments(source, tmp_path / "run", "train.batch_size=4", "train.steps=2")
    assert run(*command).code == 0
    before = checkpoint.resolve(tmp_path / "run")
    save_labels(before, "kind", ("upper", "lower"))
    seal(before)
    assert run(*command, "train.steps=3").code == 0
    assert unmask.load(tmp_path / "run").labels == ["upper", "lower"]


@pytest.mark.slow
@pytest.mark.parametrize("strategy", ["ddp", "fsdp"])
def test_two_processes_train_with_the_labels_of_one(learnt: tuple[Path, Path], tmp_path: Path, strategy: str) -> None:
    own = ["model.dropout=0", "train.batch_size=7", "train.steps=4", "train.label_drop=0.4"]
    assert run(*arguments(learnt[0], tmp_path / "one", *own)).code == 0
    launcher = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", "-m", "unmask"]
    command = [*launcher, *arguments(learnt[0], tmp_path / "two", *own, f"train.strategy={strategy}")]
    subprocess.run(command, env={**os.environ, "OMP_NUM_THREADS": "1"}, check=True, timeout=300)
    one, two = (unmask.load(tmp_path / name) for name in ("one", "two"))
    assert one.labels == two.labels
    for name, tensor in one.model.state_dict().items():
        torch.testing.assert_close(tensor, two.model.state_dict()[name], rtol=1e-4, atol=1e-5)
