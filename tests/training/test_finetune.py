"""Fine-tuning on tasks: it learns, goes on bit for bit, stops early, keeps the best, and its files say what it says."""

from __future__ import annotations

import csv
import json
import math
import os
import signal
import socket
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from support.helpers import _server, random_lm, settings, tiny_config
from support.runs import at_step, scripted
from unmask import UserError
from unmask.config import Config, ModelConfig
from unmask.data import tasks
from unmask.data.loader import train_rows
from unmask.data.tokenization import bytes_tokenizer, chars_tokenizer
from unmask.evaluation.classification import encoded
from unmask.hub.resolve import checkpoint
from unmask.lm import LM
from unmask.models import registry
from unmask.process.keys import Keys
from unmask.recipes import with_overrides
from unmask.training import text as train_room
from unmask.training.finetune import TaskResult, example_batch, finetune, load_classifier
from unmask.training.step import Trainer
from unmask.training.text import train

LETTERS = "abcdefgh q"
EPOCHS = "task.epochs=3"  # what the run of the module takes


def sentences(n: int, seed: int) -> list[tuple[str, int]]:
    """Words of a few letters; the label is whether a q is among them."""
    rng = np.random.default_rng(seed)
    found = []
    for i in range(n):
        word = rng.choice(list(LETTERS[:-1]), int(rng.integers(3, 10)))
        if i % 2:
            word[int(rng.integers(len(word)))] = "q"
        text = "".join(word).strip() or "a"
        found.append((text, int("q" in text)))
    return found


def write(path: Path, header: list[str], lines: list[list[Any]]) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("".join("\t".join(map(str, line)) + "\n" for line in [header, *lines]))


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """SST-2, STS-B and MNLI in their layouts, with toys inside."""
    root = tmp_path_factory.mktemp("glue")
    for split, n, seed in (("train", 480, 0), ("dev", 90, 1)):
        write(root / f"SST-2/{split}.tsv", ["sentence", "label"], [list(row) for row in sentences(n, seed)])
        pairs = [[a, b, 5.0 * x] for (a, x), (b, _) in zip(sentences(40, seed), sentences(40, seed + 5), strict=True)]
        write(root / f"STS-B/{split}.tsv", ["sentence1", "sentence2", "score"], pairs)
    names = ["entailment", "neutral", "contradiction"]
    for file, seed in (("train", 0), ("dev_matched", 1), ("dev_mismatched", 2)):
        lines = [[text, text[::-1], names[i % 3]] for i, (text, _) in enumerate(sentences(30, seed))]
        write(root / f"MNLI/{file}.tsv", ["sentence1", "sentence2", "gold_label"], lines)
    return root


def model(*overrides: str) -> LM:
    return random_lm(bytes_tokenizer(), "model.hidden_dim=32", "model.dropout=0.1", *overrides)


def task_config(root: Path, *overrides: str, task: str = "sst2", lm: tuple[str, ...] = ()) -> Config:
    base = tiny_config("model.hidden_dim=32", "model.dropout=0.1", *lm)
    return base.override(
        [
            f"task.name=glue/{task}",
            f"task.local={root}",
            "task.length=16",
            "task.epochs=1",
            "train.start=toy",
            "train.ema=0",
            "train.batch_size=16",
            "train.micro_batch_size=10",
            "train.lr=0.003",
            "train.warmup=0",
            "train.decay=linear",
            "train.log_every=1",
            "train.checkpoint_every=100",
            "eval.every=0",
            "sample.every=0",
            "train.device=cpu",
            *overrides,
        ]
    )


def journal(out: Path) -> list[dict[str, Any]]:
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    return [
        {k: v for k, v in line.items() if k not in ("examples_per_second", "core_seconds", "step_seconds")}
        for line in lines
    ]


def same_run(ours: Path, theirs: Path) -> None:
    assert checkpoint.steps(ours) == checkpoint.steps(theirs)
    last = checkpoint.step_folder(ours, checkpoint.steps(ours)[-1])
    names = {path.name for path in last.iterdir()}
    assert {"model.safetensors", "optimizer.safetensors", "state.json", "metrics.json", "predictions.dev.tsv"} <= names
    for name in names:
        assert (last / name).read_bytes() == (theirs / "checkpoints" / last.name / name).read_bytes(), name
    assert journal(ours) == journal(theirs)
    for name in ("predictions.dev.tsv", "results.json"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name


# -- learning --------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def learnt(root: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, TaskResult]:
    out = tmp_path_factory.mktemp("learnt") / "run"
    return out, finetune(model(), task_config(root, EPOCHS), out, quiet=True)


def test_a_toy_task_is_learnt(learnt: tuple[Path, TaskResult]) -> None:
    out, result = learnt
    assert result.finished and not result.stopped_early and result.step == 3 * 480 // 16
    assert result.best["dev"]["accuracy"] > 0.95
    p = result.best["dev"]["accuracy"]
    assert result.best["dev"]["accuracy_stderr"] == pytest.approx(math.sqrt(p * (1 - p) / 90))
    scored = {line["step"]: line["dev_accuracy"] for line in journal(out) if "dev_accuracy" in line}
    assert list(scored) == [30, 60, 90], "after every epoch"
    assert result.best_step == min(step for step in scored if scored[step] == max(scored.values()))
    assert result.last["dev"]["accuracy"] == scored[90]


def test_files_say_what_the_classifier_says(learnt: tuple[Path, TaskResult], root: Path) -> None:
    out, result = learnt
    lines = list(csv.DictReader((out / "predictions.dev.tsv").open(), delimiter="\t"))
    dev = sentences(90, 1)
    names = ["negative", "positive"]
    assert [line["label"] for line in lines] == [names[label] for _, label in dev]
    assert [int(line["index"]) for line in lines] == list(range(90))
    found = load_classifier(out).predict([text for text, _ in dev], batch_size=7)
    assert found.answers == [line["prediction"] for line in lines]
    table = np.array([[float(line[f"p({name})"]) for name in names] for line in lines])
    assert found.probabilities is not None
    np.testing.assert_allclose(found.probabilities, table, atol=2e-6)
    right = sum(line["prediction"] == line["label"] for line in lines)
    assert result.best["dev"]["accuracy"] == pytest.approx(right / 90)
    told = json.loads((out / "results.json").read_text())
    assert told["best"] == {"step": result.best_step, "metrics": result.best}
    assert told["predictions"]["step"] == result.best_step
    protocol = told["protocol"]
    assert protocol["rows"] == {"train": 480, "dev": 90} and protocol["pooling"] == "first token"
    assert protocol["start"] == "toy" and protocol["lr"] == 0.003 and protocol["data"]["dev"]["sha256"]


def test_calling_again_changes_nothing(learnt: tuple[Path, TaskResult], root: Path) -> None:
    out, result = learnt
    before = {p: p.read_bytes() for p in out.rglob("*") if p.is_file()}
    again = finetune(model(), task_config(root, EPOCHS), out, quiet=True)
    assert (again.step, again.finished, again.best, again.last) == (90, True, result.best, result.last)
    assert {p: p.read_bytes() for p in out.rglob("*") if p.is_file()} == before


def test_the_head_of_the_language_model_and_nothing_else_stays(learnt: tuple[Path, TaskResult]) -> None:
    before = model().model.state_dict()
    after = load_file(checkpoint.step_folder(learnt[0], 90) / "model.safetensors")
    kept = {name for name, tensor in before.items() if torch.equal(after[name], tensor)}
    assert kept == {"backbone.output_layer.linear.weight", "backbone.output_layer.linear.bias"}
    moments = load_file(checkpoint.step_folder(learnt[0], 90) / "optimizer.safetensors")
    assert not any("output_layer.linear" in name for name in moments)


@pytest.mark.parametrize(("epochs", "batch", "steps"), [(3, 16, 90), (0.1, 16, 3), (0.1, 48, 1), (1, 7, 69)])
def test_epochs_say_how_many_steps(epochs: float, batch: int, steps: int) -> None:
    from unmask.training.finetune import with_steps

    config = tiny_config(f"task.epochs={epochs}", f"train.batch_size={batch}")
    assert with_steps(config, 480).train.steps == steps


def test_every_example_once_an_epoch(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Of task.rows examples, evenly spaced."""
    seen: list[str] = []
    cut = Trainer.step

    def step(self: Trainer, data: Any, step: int, stop: bool = False) -> Any:
        batches = [self.cut(self.config, data, slots, self.keys.at(step)) for slots in self.micro_slots()]
        for batch in batches:
            rows = zip(batch.tokens, batch.present, strict=True)
            seen.extend(bytes(tokens[present][1:-1].tolist()).decode() for tokens, present in rows)
        return cut(self, data, step, stop)

    monkeypatch.setattr(Trainer, "step", step)
    finetune(model(), task_config(root, "task.rows=48"), tmp_path, quiet=True)
    assert sorted(seen) == sorted(text for text, _ in sentences(480, 0)[::10])
    assert seen != [text for text, _ in sentences(480, 0)[::10]]


@pytest.mark.parametrize("task", ["stsb", "mnli"])
@pytest.mark.parametrize("network", [("model.backbone=mosaicbert",), ("model.method=ar",)], ids=["mosaic", "ar"])
def test_scores_and_pairs_and_two_dev_sets(root: Path, tmp_path: Path, task: str, network: tuple[str, ...]) -> None:
    out, config = tmp_path / "run", task_config(root, "train.ema=0.9", task=task, lm=network)
    result = finetune(model(*network), config, out, quiet=True)
    dev = ["dev"] if task == "stsb" else ["dev", "dev-mismatched"]
    assert list(result.best) == dev
    loaded = load_classifier(out, which="last")
    averages = load_file(checkpoint.step_folder(out, result.step) / "ema.safetensors")
    assert all(torch.equal(p, averages[name]) for name, p in loaded.model.named_parameters())
    for split in dev:
        assert (out / f"predictions.{split}.tsv").read_text().count("\n") == (41 if task == "stsb" else 31)
    lines = list(csv.DictReader((out / "predictions.dev.tsv").open(), delimiter="\t"))
    best = load_classifier(out)
    if task == "stsb":
        pairs = [(a, b) for (a, _), (b, _) in zip(sentences(40, 1), sentences(40, 6), strict=True)]
        scores = np.array(best.predict(pairs).answers, dtype=np.float64)
        np.testing.assert_allclose(scores, [float(line["prediction"]) for line in lines], atol=1e-4)
        assert list(lines[0]) == ["index", "prediction", "label"]
    else:
        pairs = [(text, text[::-1]) for text, _ in sentences(30, 1)]
        assert best.predict(pairs).answers == [line["prediction"] for line in lines]
    with pytest.raises(UserError, match="pairs of texts"):
        best.predict(["one text"])


# -- stopping and going on -------------------------------------------------------------------------------------------


OFTEN = ["eval.every=10", "train.checkpoint_every=4"]


@pytest.fixture(scope="module")
def undisturbed(root: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("undisturbed") / "run"
    finetune(model(), task_config(root, *OFTEN), out, quiet=True)
    return out


def child(root: Path, out: Path, kill_at: int) -> None:
    torch.set_num_threads(1)
    Trainer.step = at_step(kill_at, signal.SIGKILL)  # type: ignore[method-assign]
    finetune(model(), task_config(root, *OFTEN), out, quiet=True)


def test_a_killed_run_goes_on_to_the_same_bits(root: Path, undisturbed: Path, tmp_path: Path) -> None:
    out = tmp_path / "run"
    for kill_at in (3, 23):  # before the first checkpoint, and after an evaluation
        process = _server().Process(target=child, args=(root, out, kill_at))
        process.start()
        process.join(120)
        assert process.exitcode == -signal.SIGKILL
    assert checkpoint.steps(out)[-1] == 20
    threads = torch.get_num_threads()
    torch.set_num_threads(json.loads((undisturbed / "checkpoints/step-00000030/state.json").read_text())["threads"])
    try:
        finetune(model(), task_config(root, *OFTEN), out, quiet=True)
    finally:
        torch.set_num_threads(threads)
    same_run(out, undisturbed)


def test_a_signal_saves_and_loses_nothing(
    root: Path, undisturbed: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    out = tmp_path / "run"
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", at_step(14, signal.SIGTERM))
        cut = finetune(model(), task_config(root, *OFTEN), out, quiet=True)
    assert not cut.finished and cut.step == 14 and checkpoint.steps(out)[-1] == cut.step
    assert "run the same command again" in capsys.readouterr().err
    assert not (out / "results.json").exists()
    assert finetune(model(), task_config(root, *OFTEN), out, quiet=True).finished
    ours, theirs = (checkpoint.step_folder(path, 30) for path in (out, undisturbed))
    for name in ("model.safetensors", "optimizer.safetensors", "predictions.dev.tsv"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes()
    assert journal(out) == journal(undisturbed)


def tuned_without_dropout(root: Path, out: Path) -> None:
    own = ["model.dropout=0", "task.dropout=0", "task.rows=45", "train.batch_size=15", "train.micro_batch_size=4"]
    finetune(model("model.dropout=0"), task_config(root, *own), out, quiet=True)


def together(root: Path, out: Path, rank: int, port: int) -> None:
    """One of two processes, as torchrun starts them."""
    torch.set_num_threads(1)
    own = {"RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    os.environ.update({name: str(value) for name, value in own.items()})
    tuned_without_dropout(root, out)


def test_two_processes_give_the_losses_and_predictions_of_one(root: Path, tmp_path: Path) -> None:
    """An odd batch over two processes with accumulation; the unused head bothers nobody."""
    tuned_without_dropout(root, tmp_path / "one")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    started = [_server().Process(target=together, args=(root, tmp_path / "two", rank, port)) for rank in (0, 1)]
    for process in started:
        process.start()
    for process in started:
        process.join(120)
    assert [process.exitcode for process in started] == [0, 0]
    one, two = journal(tmp_path / "one"), journal(tmp_path / "two")
    assert len(one) == len(two) == 4
    for ours, theirs in zip(one, two, strict=True):
        assert ours == pytest.approx(theirs, rel=2e-5, abs=2e-5)
    assert checkpoint.steps(tmp_path / "one") == checkpoint.steps(tmp_path / "two")
    tables = [
        list(csv.DictReader((tmp_path / n / "predictions.dev.tsv").open(), delimiter="\t")) for n in ("one", "two")
    ]
    assert len(tables[0]) == 90
    for a, b in zip(*tables, strict=True):
        assert float(a["p(positive)"]) == pytest.approx(float(b["p(positive)"]), abs=1e-4)


def test_a_step_has_its_examples_once_the_longest_first(root: Path) -> None:
    """Sorted by length, each in a slot of its own; micro-batches are cut from that, and pad as far as they need."""
    config, rng = task_config(root, "train.batch_size=12"), np.random.default_rng(0)
    texts = ["".join(rng.choice(list("abc"), int(n))) for n in rng.integers(1, 40, 50)]
    examples = [tasks.Example(text, None, i % 2, i) for i, text in enumerate(texts)]
    data = encoded(tasks.task("glue/sst2"), examples, bytes_tokenizer(), 128)
    for step in range(5):
        keys = Keys(config.seed, step)
        whole, last = (example_batch(config, data, slots, keys) for slots in (range(12), range(9, 12)))
        assert whole.present is not None
        sizes = whole.present.sum(1).tolist()
        assert sizes == sorted(sizes, reverse=True) and len(set(sizes)) > 1
        rows = train_rows(len(data), config.seed, step, 12, range(12))
        seen = {
            int(slot): row[:size].tolist() for slot, row, size in zip(whole.index, whole.tokens, sizes, strict=True)
        }
        assert seen == {slot: data.ids(row).tolist() for slot, row in enumerate(rows)}
        assert last.tokens.shape[1] == sizes[9] and (last.index == whole.index[9:]).all()


# -- early stops and the best ----------------------------------------------------------------------------------------


def metrics(values: list[float]) -> Callable[..., dict[str, float]]:
    remaining = iter(values)
    return lambda *given: {"accuracy": next(remaining), "accuracy_stderr": 0.0}


PATIENT = ["eval.every=2", "train.patience=3", "train.checkpoint_every=100", "train.keep_last=1"]
FIGURES = [0.5, 0.7, 0.7, 0.6, 0.69, 0.9, 0.9, 0.9, 0.9, 0.8, 1.0]  # after the second come three that are no better


@pytest.mark.parametrize("cut_at", [None, 6, 7])
def test_patience_counts_right_across_a_stop(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cut_at: int | None
) -> None:
    monkeypatch.setattr("unmask.data.tasks.metrics.compute", metrics(FIGURES))
    config = task_config(root, *PATIENT)
    if cut_at is not None:
        with monkeypatch.context() as patch:
            patch.setattr(Trainer, "step", at_step(cut_at, signal.SIGTERM))
            assert not finetune(model(), config, tmp_path, quiet=True).finished
    result = finetune(model(), config, tmp_path, quiet=True)
    assert (result.step, result.finished, result.stopped_early) == (10, True, True)
    assert result.best_step == 4 and result.best["dev"]["accuracy"] == 0.7 and result.last["dev"]["accuracy"] == 0.69
    assert checkpoint.steps(tmp_path) == [4, 10], "the best and the last"
    again = finetune(model(), config, tmp_path, quiet=True)
    assert (again.step, again.finished, again.stopped_early) == (10, True, True)
    more = finetune(model(), task_config(root, *PATIENT, "train.patience=4"), tmp_path, quiet=True)
    assert (more.step, more.best_step) == (20, 12), "a larger patience goes on where it stopped"


def test_the_best_is_what_is_loaded_and_written(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("unmask.data.tasks.metrics.compute", metrics([0.1, 0.8, 0.2]))
    result = finetune(model(), task_config(root, "eval.every=10"), tmp_path, quiet=True)
    assert result.best_step == 20
    best, last = (checkpoint.step_folder(tmp_path, step) for step in (20, 30))
    assert (tmp_path / "predictions.dev.tsv").read_bytes() == (best / "predictions.dev.tsv").read_bytes()
    assert (best / "predictions.dev.tsv").read_bytes() != (last / "predictions.dev.tsv").read_bytes()
    for which, folder in ((None, best), ("last", last)):
        weights, loaded = load_file(folder / "model.safetensors"), load_classifier(tmp_path, which=which)
        assert all(torch.equal(tensor, weights[name]) for name, tensor in loaded.model.state_dict().items())


def text_config(*overrides: str) -> Config:
    own = ["train.batch_size=2", "eval.every=2", "eval.rows=2", "sample.every=0", "train.steps=20", *overrides]
    return with_overrides("tiny", settings(*own))


def test_language_models_stop_early_too(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Lower is better there."""
    monkeypatch.setattr(train_room, "evaluate", scripted([5.0, 3.0, 3.0, 4.0, 1.0]))
    result = train(text_config("train.patience=2"), tmp_path, quiet=True)
    assert (result.step, result.finished, result.stopped_early) == (8, True, True)
    assert checkpoint.resolve(tmp_path, "best").name == "step-00000004"
    with pytest.raises(UserError, match=r"eval\.every"):
        train(text_config("train.patience=2", "eval.every=0"), tmp_path / "other", quiet=True)


# -- beginning with a model ------------------------------------------------------------------------------------------


def start_model() -> LM:
    return random_lm(chars_tokenizer(["one two three four.\n"]))


def test_a_run_begins_with_the_weights_and_the_tokenizer_of_a_model(tmp_path: Path) -> None:
    lm, config = start_model(), text_config("train.start=mine", "train.steps=1", "train.lr=1e-12")
    train(config, tmp_path, quiet=True, start=lm)
    folder = checkpoint.resolve(tmp_path)
    for group in ("model", "ema"):
        for name, tensor in load_file(folder / f"{group}.safetensors").items():
            torch.testing.assert_close(tensor, lm.model.state_dict()[name], rtol=0, atol=1e-9)
    import unmask

    assert unmask.load(tmp_path).tokenizer.digest == lm.tokenizer.digest
    longer = text_config("train.start=mine", "train.steps=2", "train.lr=1e-12")
    assert train(longer, tmp_path, quiet=True).step == 2, "a run that goes on needs no model to begin with"


def test_a_model_that_does_not_fit(tmp_path: Path) -> None:
    lm = start_model()
    with pytest.raises(UserError, match=r"the model mine does not fit.*shape"):
        train(text_config("train.start=mine", "model.hidden_dim=32"), tmp_path / "a", quiet=True, start=lm)
    with pytest.raises(UserError, match=r"the model mine does not fit.*tensor"):
        train(text_config("train.start=mine", "model.n_blocks=2"), tmp_path / "b", quiet=True, start=lm)
    with pytest.raises(UserError, match=r"set train\.start"):
        train(text_config(), tmp_path / "c", quiet=True, start=lm)
    with pytest.raises(UserError, match="unmask finetune mine mdlm"):
        train(text_config("train.start=mine"), tmp_path / "d", quiet=True)
    with pytest.raises(UserError, match="unmask finetune MODEL glue/sst2"):
        train(text_config("task.name=glue/sst2"), tmp_path / "e", quiet=True)


# -- what cannot be --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("overrides", "sentence"),
    [
        (["task.name=null"], "no task is named"),
        (["task.name=glue/sst3"], "unknown task"),
        (["train.start=null"], "name it in train.start"),
        (["train.strategy=fsdp"], "use ddp"),
        (["sample.every=3"], "writes nothing"),
        (["data.label=column", "data.layout=pad"], "data.label=None, not column"),
        (["model.n_blocks=2"], "the model toy does not fit"),
    ],
)
def test_settings_that_cannot_be(root: Path, tmp_path: Path, overrides: list[str], sentence: str) -> None:
    with pytest.raises(UserError, match=sentence):
        finetune(model(), task_config(root, *overrides), tmp_path, quiet=True)
    assert not checkpoint.steps(tmp_path)


def test_going_on_with_something_else(learnt: tuple[Path, TaskResult], root: Path, tmp_path: Path) -> None:
    out, _ = learnt
    for overrides, sentence in (
        ([EPOCHS, "task.name=glue/stsb"], "started with task.name=glue/sst2, not glue/stsb"),
        ([EPOCHS, "train.start=other"], "started with train.start=toy, not other"),
        ([], "started with task.epochs=3"),
    ):
        with pytest.raises(UserError, match=sentence):
            finetune(model(), task_config(root, *overrides), out, quiet=True)
    other = model()
    with torch.no_grad():
        next(other.model.parameters()).add_(1)
    with pytest.raises(UserError, match=r"the weights or the tokenizer of the model toy changed"):
        finetune(other, task_config(root, EPOCHS), out, quiet=True)
    write(tmp_path / "train.tsv", ["sentence", "label"], [list(row) for row in sentences(480, 3)])
    write(tmp_path / "dev.tsv", ["sentence", "label"], [list(row) for row in sentences(90, 1)])
    with pytest.raises(UserError, match=r"the files of glue/sst2 changed"):
        finetune(model(), task_config(tmp_path, EPOCHS), out, quiet=True)


def test_a_bert_of_transformers_and_rows_that_it_cannot_take(root: Path, tmp_path: Path) -> None:
    """Its tied weights are averaged, kept and loaded like all others."""
    transformers: Any = pytest.importorskip("transformers")
    spec = transformers.BertConfig(
        vocab_size=259,
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=16,
        max_position_embeddings=16,
        architectures=["BertForMaskedLM"],
    ).to_dict()
    network = ModelConfig(network="transformers", architecture=spec)
    config = task_config(root, "task.rows=48", "train.ema=0.9").model_copy(update={"model": network})
    tokenizer = bytes_tokenizer()
    lm = LM(registry.model(config, tokenizer.vocab), tokenizer, config)
    with pytest.raises(UserError, match=r"task\.length=17 is longer than the 16 tokens"):
        finetune(lm, config.override(["task.length=17"]), tmp_path, quiet=True)
    assert finetune(lm, config, tmp_path, quiet=True).step == 3
    loaded = load_classifier(tmp_path)
    averages = load_file(checkpoint.step_folder(tmp_path, 3) / "ema.safetensors")
    assert all(torch.equal(p, averages[name]) for name, p in loaded.model.named_parameters())
    lines = csv.DictReader((tmp_path / "predictions.dev.tsv").open(), delimiter="\t")
    found = loaded.predict([text for text, _ in sentences(90, 1)])
    assert found.answers == [line["prediction"] for line in lines]


def test_a_language_model_is_no_classifier(tmp_path: Path) -> None:
    train(text_config("train.steps=1"), tmp_path, quiet=True)
    with pytest.raises(UserError, match="holds a language model, not a classifier"):
        load_classifier(tmp_path)


def test_the_last_line_of_progress_is_one_and_has_its_own_figure(tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    config = text_config("train.steps=4", "eval.every=2", "eval.rows=4", "eval.draws=1", "train.log_every=1")
    result = train(config, tmp_path / "run")
    lines = [line for line in capsys.readouterr().err.splitlines() if line.startswith("step 4/4")]
    assert result.valid is not None
    assert len(lines) == 1 and f"valid ppl {result.valid.perplexity:.2f}" in lines[0] and "loss" in lines[0]


# -- figures that are none -------------------------------------------------------------------------------------------


def strict(text: str) -> Any:
    """JSON without Python's NaN."""
    return json.loads(text, parse_constant=lambda name: pytest.fail(f"{name} is not JSON"))


def test_a_constant_classifier_has_no_correlation(
    root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    same = lambda model, data, *more: np.ones((len(data), model.n_outputs))  # noqa: E731
    monkeypatch.setattr("unmask.training.finetune.outputs", same)
    out, config = tmp_path / "r", task_config(root, "task.max_steps=1", task="stsb")
    for _ in range(2):  # trained, and read again
        done = finetune(model(), config, out)
        assert math.isnan(done.last["dev"]["spearman"]) and done.best_step is None and done.finished
    assert "dev spearman undefined (all predictions are the same)" in capsys.readouterr().err
    assert strict((out / "results.json").read_text())["last"]["metrics"]["dev"]["spearman"] is None
    assert [strict(line) for line in (out / "log.jsonl").read_text().splitlines()]


def test_missing_packages_are_noticed_before_anything_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn.metrics", None)
    monkeypatch.setattr("unmask.training.finetune.read_splits", lambda *given: pytest.fail("read"))
    with pytest.raises(UserError, match="needs the package sklearn; install it with"):
        finetune(model(), task_config(tmp_path), tmp_path / "r", quiet=True)


def test_a_task_has_epochs_and_no_minutes(root: Path, tmp_path: Path) -> None:
    with pytest.raises(UserError, match=r"task\.epochs or task\.max_steps, not minutes"):
        finetune(model(), task_config(root, "train.minutes=2"), tmp_path / "m", quiet=True)
