"""`unmask finetune`: a model goes on as one that writes, or learns a task; what it prints, keeps and refuses."""

from __future__ import annotations

import json
import math
import shutil
from pathlib import Path

import pytest
import torch
import yaml

import unmask
from support.helpers import random_lm, refused, run, settings
from unmask.config import load_yaml
from unmask.data.tasks import task
from unmask.data.tokenization import bytes_tokenizer
from unmask.models import registry
from unmask.training import adapt, fit
from unmask.training.finetune import load_classifier
from unmask.types import UserError, Vocab

SHORT = ["train.steps=6", "train.batch_size=8", "train.warmup=2", "train.lr=0.001", "train.log_every=1"]
SHORT += ["train.checkpoint_every=3", "eval.rows=12", "eval.draws=2", "eval.every=3"]


@pytest.fixture(scope="module")
def other(tmp_path_factory) -> Path:
    """A text that the model does not know."""
    path = tmp_path_factory.mktemp("other") / "other.txt"
    path.write_text("seven eight nine ten.\n" * 800)
    return path


@pytest.fixture(scope="module")
def masked_lm(tmp_path_factory) -> Path:
    """A BERT of a second: MLM with a MosaicBERT on the text of the other tests."""
    out = tmp_path_factory.mktemp("mlm") / "mlm"
    changes = ["model.backbone=mosaicbert", "objective.loss=mlm", "train.steps=60", "train.lr=0.005", "train.ema=0"]
    changes.append("train.optimizer=adamw")
    ran = run("train", "tiny", *settings(*changes, "eval.every=0", "eval.rows=8"), "--out", str(out), "--quiet")
    assert ran.code == 0, ran.err
    return out


@pytest.fixture(scope="module")
def causal(tmp_path_factory) -> Path:
    out = tmp_path_factory.mktemp("ar") / "ar"
    changes = ["model.method=ar", "model.backbone=mosaicbert", "train.steps=3", "eval.every=0", "eval.rows=8"]
    ran = run("train", "tiny", *settings(*changes), "--out", str(out), "--quiet")
    assert ran.code == 0, ran.err
    return out


def tune(model: Path, *more: str) -> list[str]:
    return ["finetune", str(model), "mdlm", *SHORT, *more]


def test_a_bert_learns_to_write_and_says_how_well_before_and_after(masked_lm, other, tmp_path):
    out = tmp_path / "run"
    changes = ["train.steps=60", "train.lr=0.005", "eval.every=0", "eval.rows=24", "eval.draws=4"]
    changes += ["objective.cutoff=0.1"]
    found = run(*tune(masked_lm, *changes, "--data", str(other), "--out", str(out), "--json")).json()
    assert found["finished"] and found["step"] == 60 and not found["stopped_early"]
    before, after = found["before"], found["after"]
    error = math.hypot(before["stderr_nats"], after["stderr_nats"])
    assert after["nats_per_token"] < before["nats_per_token"] - 4 * error
    assert before["tokens"] == after["tokens"] and before["protocol"]["bound"] == after["protocol"]["bound"]
    assert json.loads((out / "before.json").read_text()) == before
    config = load_yaml(out / "config.yaml")
    assert config.train.start == str(masked_lm) and config.objective.loss == "bound"
    text = run("sample", str(out), "--length", "12", "--seed", "3")
    assert text.code == 0 and "[MASK]" not in text.out


def test_the_bound_before_is_what_eval_says_of_the_model(masked_lm, other, tmp_path):
    words = ["--data", str(other), "--out", str(tmp_path / "r"), "--json"]
    ran = run(*tune(masked_lm, "train.steps=1", *words))
    same = ["--split", "valid", "--rows", "12", "--draws", "2", "--estimator", "times", "--json"]
    asked = run("eval", str(masked_lm), "--data", str(other), *same)
    assert ran.json()["before"]["nats_per_token"] == pytest.approx(asked.json()["nats_per_token"], rel=1e-6)


def test_the_first_step_begins_with_the_weights_of_the_model(masked_lm, other, tmp_path):
    out = tmp_path / "r"
    run(*tune(masked_lm, "train.steps=1", "train.lr=1e-12", "train.warmup=0", "--data", str(other), "--out", str(out)))
    ours, theirs = unmask.load(out).model.state_dict(), unmask.load(masked_lm).model.state_dict()
    assert ours.keys() == theirs.keys()
    for name, tensor in theirs.items():
        torch.testing.assert_close(ours[name], tensor, rtol=0, atol=1e-9)


def test_a_stopped_run_goes_on_to_the_same_bits(masked_lm, other, tmp_path):
    straight, halted = tmp_path / "a", tmp_path / "b"
    words = ["--data", str(other), "--quiet", "--json"]
    run(*tune(masked_lm, *words, "--out", str(straight))).json()
    assert run(*tune(masked_lm, "train.steps=3", *words, "--out", str(halted))).json()["step"] == 3
    resumed = run(*tune(masked_lm, *words, "--out", str(halted))).json()
    assert resumed["step"] == 6 and resumed["before"] == json.loads((straight / "before.json").read_text())
    one, two = (unmask.load(path).model.state_dict() for path in (straight, halted))
    assert all(one[name].equal(two[name]) for name in one)


def test_a_run_goes_on_without_the_model_it_began_with(masked_lm, other, tmp_path):
    model, out = tmp_path / "model", tmp_path / "r"
    shutil.copytree(masked_lm, model)
    words = ["--data", str(other), "--quiet", "--json", "--out", str(out)]
    first = run(*tune(model, "train.steps=3", *words)).json()
    shutil.rmtree(model)
    again = run(*tune(model, *words)).json()
    assert again["step"] == 6 and again["before"] == first["before"]
    assert "nothing" in refused(*tune(tmp_path / "nothing", "--data", str(other), "--out", str(tmp_path / "new")))
    assert "another run" in refused(*tune(masked_lm, *words))


def test_settings_are_the_papers_unless_said_otherwise(masked_lm, other):
    config = adapt.language_config(unmask.load(masked_lm), "m", "mdlm", str(other)).resolved()
    own = config.train
    assert (own.lr, own.warmup, own.betas) == (5e-5, 2500, (0.95, 0.999))
    assert (own.batch_size, own.steps, own.ema) == (512, 5000, 0)
    assert config.objective.loss == "bound" and config.model.backbone == "mosaicbert"
    again = run("finetune", str(masked_lm), "mlm", "--data", str(other), "--print-config")
    assert "loss: mlm" in again.out and "mask_rate: 0.15" in again.out
    glue = run("finetune", str(masked_lm), "glue/sst2", "--print-config")
    own = unmask.config.parse(yaml.safe_load(glue.out))
    assert (own.train.lr, own.train.batch_size, own.task.epochs, own.task.length) == (2e-5, 16, 3, 128)
    assert (own.train.decay, own.train.warmup, own.train.weight_decay) == ("linear", 0, 0)


SLOW, FAST = (fit.RowCost(seconds, saved=10, weights=100) for seconds in (0.12, 1e-5))


@pytest.mark.parametrize(
    ("cost", "changes", "expected"),
    [
        (SLOW, [], {"batch_size": 8, "micro_batch_size": None, "minutes": 30, "warmup": 0.1, "checkpoint_every": 0.1}),
        (SLOW, ["train.minutes=120"], {"batch_size": 32, "micro_batch_size": 16, "minutes": 120}),
        (SLOW, ["train.steps=200"], {"batch_size": 8, "steps": 200, "minutes": None, "checkpoint_every": 500}),
        (SLOW, ["train.batch_size=512"], {"batch_size": 512, "micro_batch_size": 16, "minutes": 30}),
        (SLOW, ["train.batch_size=512", "train.micro_batch_size=3"], {"micro_batch_size": 3}),
        (SLOW, ["train.batch_size=2", "train.steps=3"], {"batch_size": 2, "steps": 3, "micro_batch_size": None}),
        (FAST, [], {"batch_size": 512, "steps": 5000, "minutes": None, "micro_batch_size": None, "warmup": 0.5}),
    ],
)
def test_settings_fit_the_machine(masked_lm, other, tmp_path, monkeypatch, capsys, cost, changes, expected):
    """The paper's 512 rows of 0.12 s are a minute a step: fewer rows, and a time."""
    monkeypatch.setattr(fit, "row_cost", lambda lm, length: cost)
    lm = unmask.load(masked_lm)
    config = adapt.language_config(lm, "m", "mdlm", str(other), None, changes)
    fitted = fit.fit_machine(lm, config, tmp_path, changes)
    assert {key: getattr(fitted.train, key) for key in expected} == expected
    said = capsys.readouterr().err
    assert said.startswith("cost: ") and "s" in said and "GB of memory" in said and said.count("\n") == 1
    if not changes and cost is SLOW:
        assert "0.96 s, instead of 61.4 s with the recipe's rows; 30 minutes, until about" in said
        assert fitted.eval.rows == 128, "an evaluation takes a fiftieth of the time"


def test_steps_and_minutes_are_not_both_given(masked_lm, other, tmp_path):
    words = ["--data", str(other), "--out", str(tmp_path / "r"), "--minutes", "3"]
    assert "give one of them, not both" in refused(*tune(masked_lm, *words))


def test_a_row_is_measured(masked_lm):
    lm = unmask.load(masked_lm)
    cost = fit.row_cost(lm.model, 16)
    weights = sum(4 * p.numel() for p in lm.model.parameters())
    assert cost.seconds > 0 and cost.weights == weights and cost.saved > 4 * 16
    assert cost.memory(8, ema=True) - cost.memory(4, ema=False) == weights + 4 * cost.saved
    assert not lm.model.training and all(p.grad is None for p in lm.model.parameters())


def test_a_fitted_run_is_continued_with_what_it_chose(masked_lm, other, tmp_path, monkeypatch):
    monkeypatch.setattr(fit, "row_cost", lambda lm, length: fit.RowCost(12.0, 10, 100))
    words = ["--data", str(other), "--quiet", "--json", "--out", str(tmp_path / "r")]
    quick = [word for word in tune(masked_lm, *words) if not word.startswith("train.batch_size")]
    first = run(*quick).json()
    chosen = load_yaml(tmp_path / "r" / "config.yaml").train
    assert (chosen.batch_size, first["finished"]) == (8, True)
    monkeypatch.setattr(fit, "row_cost", lambda lm, length: pytest.fail("measured again"))
    again = run(*quick).json()
    assert again["before"] == first["before"] and again["after"] == first["after"], "a finished run shows its figures"
    assert run(*quick, "train.steps=7").json()["step"] == 7


@pytest.mark.parametrize("kind", ["nope", "mdml"])
def test_an_unknown_kind_lists_all_of_them(masked_lm, kind):
    said = refused("finetune", str(masked_lm), kind, "--data", "x.txt")
    for name in (*adapt.KINDS, "glue/sst2", "genomics/demo_human_or_worm", "gue/prom_core_all"):
        assert name in said


def test_a_diffusion_model_goes_on_too(other, tmp_path):
    random_lm(bytes_tokenizer()).save_pretrained(tmp_path / "dit")
    found = run(*tune(tmp_path / "dit", "--data", str(other), "--out", str(tmp_path / "r"), "--json")).json()
    assert found["after"]["nats_per_token"] < found["before"]["nats_per_token"]


def test_what_muon_trained_goes_on_with_it_and_is_continued(other, tmp_path):
    changes = {"train": {"optimizer": "muon", "lr": 0.002, "muon_lr": 0.02, "betas": (0.9, 0.98)}}
    changes["objective"] = {"loss": "cross-entropy", "cutoff": 0.01}
    lm = random_lm(bytes_tokenizer())
    lm.config = lm.config.changed(**changes)
    lm.save_pretrained(tmp_path / "dit")
    words = ["finetune", str(tmp_path / "dit"), "mdlm", "train.batch_size=4", "eval.every=0", "eval.rows=4", "--json"]
    words += ["--data", str(other), "--out", str(tmp_path / "r"), "--quiet"]
    run(*words, "train.steps=2").json()
    config = load_yaml(tmp_path / "r" / "config.yaml")
    own = config.train
    assert (own.optimizer, own.lr, own.muon_lr, own.betas) == ("muon", 0.002, 0.02, (0.9, 0.98))
    assert own.decay == "linear" and (config.objective.loss, config.objective.cutoff) == ("cross-entropy", 0.01)
    assert run(*words, "train.steps=3").json()["step"] == 3, "the same command with more steps"


def sst2(folder: Path, n: int = 48) -> Path:
    """Files of the official layout: whether a sentence has the word `good`."""
    place = folder / "SST-2"
    place.mkdir(parents=True)
    for split, rows in (("train", n), ("dev", 20)):
        lines = [f"{'good' if i % 2 else 'bad'} {i % 5}\t{i % 2}" for i in range(rows)]
        (place / f"{split}.tsv").write_text("\n".join(["sentence\tlabel", *lines]) + "\n")
    return folder


TASK = ["task.length=12", "train.lr=0.01", "task.epochs=3"]


def test_a_task_with_two_seeds(masked_lm, tmp_path):
    out, local = tmp_path / "t", sst2(tmp_path / "glue")
    words = ["finetune", str(masked_lm), "glue/sst2", *TASK, "--local", str(local), "--out", str(out)]
    found = run(*words, "--seeds", "0,1", "--json").json()
    assert found["metric"] == task("glue/sst2").metric and [own["finished"] for own in found["runs"]] == [True, True]
    one = found["summary"]["dev"]
    values = [own["last"]["dev"]["accuracy"] for own in found["runs"]]
    assert one["values"] == values and one["mean"] == pytest.approx(sum(values) / 2)
    assert one["sd"] == pytest.approx(abs(values[0] - values[1]) / math.sqrt(2))
    for seed in (0, 1):
        lines = (out / f"seed-{seed}" / "predictions.dev.tsv").read_text().splitlines()
        assert len(lines) == 21
    said = run(*words, "--seeds", "0,1")
    assert said.code == 0 and "over 2 seeds" in said.out and "glue/sst2 dev: accuracy" in said.out


def test_the_classifier_of_a_causal_model(causal, tmp_path):
    local = sst2(tmp_path / "glue")
    words = ["finetune", str(causal), "glue/sst2", *TASK, "--local", str(local), "--out", str(tmp_path / "t"), "--json"]
    assert run(*words).json()["runs"][0]["finished"]
    assert "last" in json.loads((tmp_path / "t" / "results.json").read_text())["protocol"]["pooling"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["mdml", "--data", "x"], "did you mean 'mdlm'"),
        (["glue/sst-2"], "did you mean 'glue/sst2'"),
        (["glue/wnli"], "WNLI"),
        (["mdlm"], "--data NAME_OR_PATH"),
        (["glue/sst2", "--data", "x"], "leave out --data"),
        (["mdlm", "--data", "x", "--seeds", "0,1"], "--seeds is for tasks"),
        (["glue/sst2", "--seeds", "0,x"], "for example 0,1,2"),
        (["glue/sst2", "--seeds", "1,1"], "twice"),
        (["glue/sst2", "--local", "nowhere-at-all"], "nowhere-at-all"),
        (["mdlm", "--data", "x", "train.stepz=3"], "train.steps"),
    ],
)
def test_what_is_wrong_is_one_sentence(masked_lm, words, said):
    assert said in refused("finetune", str(masked_lm), *words)


@pytest.mark.parametrize("kind", ["mdlm", "mlm"])
def test_a_causal_model_is_no_masked_lm(causal, other, kind):
    assert "looks to the left only" in refused("finetune", str(causal), kind, "--data", str(other))


def test_a_missing_model_and_a_folder_that_is_none(tmp_path, other):
    assert "nothing-here" in refused("finetune", str(tmp_path / "nothing-here"), "mdlm", "--data", str(other))


def test_train_start_is_a_model_too(masked_lm, tmp_path):
    out = tmp_path / "r"
    changes = ["model.backbone=mosaicbert", "train.steps=1", "train.lr=1e-12", "train.warmup=0", "eval.every=0"]
    changes += ["train.optimizer=adamw"]
    ran = run(
        "train", "tiny", *settings(*changes, "eval.rows=8", f"train.start={masked_lm}"), "--out", str(out), "--quiet"
    )
    assert ran.code == 0, ran.err
    ours, theirs = unmask.load(out, weights="raw").model.state_dict(), unmask.load(masked_lm).model.state_dict()
    assert all(torch.allclose(ours[name], theirs[name], atol=1e-9) for name in theirs)
    shutil.rmtree(out)
    wrong = refused(
        "train", "tiny", *settings("train.steps=1", f"train.start={masked_lm}"), "--out", str(out), "--quiet"
    )
    assert "does not fit" in wrong


def test_a_classifier_in_use(masked_lm, tmp_path):
    out, local = tmp_path / "t", sst2(tmp_path / "glue")
    words = ["finetune", str(masked_lm), "glue/sst2", *TASK, "--local", str(local), "--out", str(out), "--quiet"]
    assert run(*words, "--seeds", "0,1").code == 0
    with pytest.raises(UserError, match=r"one classifier per seed; give one of them, for example .*seed-0"):
        load_classifier(out)
    with pytest.raises(UserError, match="holds a classifier for glue/sst2"):
        unmask.load(out / "seed-0")
    classifier = load_classifier(out / "seed-0", which="last")
    lines = [line.split("\t") for line in (out / "seed-0" / "predictions.dev.tsv").read_text().splitlines()[1:]]
    texts = [line.split("\t")[0] for line in (local / "SST-2" / "dev.tsv").read_text().splitlines()[1:]]
    best = load_classifier(out / "seed-0")
    assert best.predict(texts).answers == [line[1] for line in lines]
    assert classifier.predict([]).answers == []
    for wrong, said in (("good", "takes a list"), ([("a", "b")], "single texts"), ([None], "single texts")):
        with pytest.raises(UserError, match=said):
            classifier.predict(wrong)
    with pytest.raises(UserError, match="batch_size=0"):
        classifier.predict(["good"], batch_size=0)


def test_networks_of_transformers_are_not_sharded():
    shape = {"model_type": "bert", "vocab_size": 8, "hidden_size": 8, "num_hidden_layers": 1, "num_attention_heads": 1}
    tree = {"model": {"backbone": "transformers", "architecture": shape}, "train": {"strategy": "fsdp"}}
    with pytest.raises(UserError, match=r"train\.strategy=ddp"):
        registry.model(unmask.config.parse(tree), Vocab(8, mask=4))
