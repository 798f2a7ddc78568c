"""`unmask reproduce bert`, `glue` and `encoder`: trained from nothing in seconds, beside the paper's figures."""

from __future__ import annotations

import json
import math
import random
import shlex
import shutil
from dataclasses import replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any

import pytest
import torch

from support.helpers import refused, run
from unmask.config import ModelConfig
from unmask.data import tasks
from unmask.reproduce import bench as bench_module
from unmask.reproduce import bert_models, paper, task_classifiers
from unmask.reproduce.bert_models import BertSizes, GlueSizes
from unmask.reproduce.claims import decide, paired_by_seed
from unmask.reproduce.figures import Figure
from unmask.reproduce.kept_scores import KeptScores
from unmask.reproduce.scored import Classified
from unmask.reproduce.tables.glue_tables import GLUE_CLAIMS, averages, glue_table, higher_mean, numbers

WORDS = ["sun", "rain", "snow", "wind", "cloud", "storm"]
SIZES = BertSizes(
    ModelConfig(backbone="mosaicbert", hidden_dim=16, n_blocks=1, n_heads=2, dropout=0.0),
    length=16,
    vocab_size=300,
    steps=10,
    warmup=1,
    tuning=0.2,
    lr=1e-3,
    tuning_lr=5e-4,
    tasks=GlueSizes(1e-3, 1, 16, 2),
    log_every=1,
)


def sentences(n: int, seed: int) -> list[str]:
    rng = random.Random(seed)
    return [f"the {rng.choice(WORDS)} is {rng.choice(WORDS)} and {rng.choice(WORDS)}." for _ in range(n)]


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    """A text, and two tasks of GLUE in their official layouts."""
    folder = tmp_path_factory.mktemp("bert")
    (folder / "text").mkdir()
    for seed, (split, n) in enumerate({"train": 600, "valid": 200}.items()):
        (folder / "text" / f"{split}.txt").write_text("\n".join(sentences(n, seed)) + "\n")
    for task, header in (("RTE", "index\tsentence1\tsentence2\tlabel"), ("SST-2", "sentence\tlabel")):
        (folder / "glue" / task).mkdir(parents=True)
        for split, n in (("train", 40), ("dev", 24)):
            texts = sentences(2 * n, n)
            if task == "RTE":
                names = ("entailment", "not_entailment")
                lines = [f"{i}\t{texts[i]}\t{texts[n + i]}\t{names[i % 2]}" for i in range(n)]
            else:
                lines = [f"{texts[i]}\t{i % 2}" for i in range(n)]
            (folder / "glue" / task / f"{split}.tsv").write_text("\n".join([header, *lines]) + "\n")
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("UNMASK_CACHE", str(folder / "cache"))
        patch.delenv("UNMASK_DATA", raising=False)
        patch.setitem(bert_models.BERT_SIZES, "smoke", SIZES)
        tuning = replace(bert_models.ENCODER_SIZES["smoke"], length=16, steps=2, tasks=GlueSizes(1e-3, 1, 16, 2))
        patch.setitem(bert_models.ENCODER_SIZES, "smoke", tuning)
        yield folder


def options(place: Path, *more: str) -> list[str]:
    words = ["--data", str(place / "text"), "--local", str(place / "glue"), "--out", str(place / "out"), "--quiet"]
    return [*words, *more]


@pytest.fixture(scope="module")
def said(place) -> dict[str, Any]:
    return {name: run("reproduce", name, *options(place), "--json").json() for name in ("bert", "glue")}


def rows(table: dict[str, Any]) -> dict[str, dict[str, Any]]:
    return {row["name"]: row["ours"] for row in table["rows"]}


def test_perplexities_of_three_models_beside_the_papers(said, place):
    table = said["bert"]["tables"][0]
    assert list(rows(table)) == ["unigram model", "AR", "BERT", "BERT + MDLM-FT"]
    assert all(math.isfinite(own["PPL"]["value"]) for own in rows(table).values())
    page = (place / "out" / "smoke" / "text" / "bert" / "report.md").read_text()
    theirs = {row["name"]: row["paper"] for row in table["rows"]}
    assert [theirs[row]["PPL"]["value"] for row in ("AR", "BERT", "BERT + MDLM-FT")] == [22, 78, 35]
    for printed in ("≤ 78", "≤ 35", "92.20", "90.14", "61.37", "47.29"):
        assert printed in page
    assert f"--local {place / 'glue'}" in page and "unmask reproduce bert --scale smoke" in page


def test_three_models_the_third_begins_with_the_first(said, place):
    models = {own["name"]: own for own in said["bert"]["models"]}
    assert set(models) == {"bert", "bert-ar", "bert-mdlm"}
    assert (models["bert"]["steps"], models["bert-ar"]["steps"], models["bert-mdlm"]["steps"]) == (10, 10, 2)
    assert models["bert"]["parameters"] == models["bert-ar"]["parameters"] == models["bert-mdlm"]["parameters"]
    seen = {name: own["unmasked_tokens"] / own["tokens"] for name, own in models.items()}
    assert seen == pytest.approx({"bert": 1 - 0.8 * 0.3, "bert-ar": 1.0, "bert-mdlm": 0.5}, abs=1e-3)
    folder = place / "out" / "smoke" / "text" / "models"
    assert f"start: {folder / 'bert'}" in (folder / "bert-mdlm" / "config.yaml").read_text()


def test_figures_of_glue_are_those_of_the_runs(said, place):
    found = rows(said["glue"]["tables"][0])
    assert list(found["AR"]) == ["SST-2", "RTE", "mean of these"]
    assert rows(said["bert"]["tables"][1]) == found, "models and classifiers are trained once"
    folder = place / "out" / "smoke" / "text" / "tasks"
    for row, name in {"AR": "bert-ar", "BERT": "bert", "BERT + MDLM-FT": "bert-mdlm"}.items():
        values = []
        for column, task in (("SST-2", "sst2"), ("RTE", "rte")):
            own = []
            for seed in (0, 1):
                lines = (
                    (folder / name / f"glue-{task}" / f"seed-{seed}" / "predictions.dev.tsv").read_text().splitlines()
                )
                cells = [line.split("\t") for line in lines[1:]]
                results = json.loads((folder / name / f"glue-{task}" / f"seed-{seed}" / "results.json").read_text())
                assert results["best"]["step"] == results["last"]["step"], "one epoch, one evaluation"
                own.append(100 * mean(cell[1] == cell[2] for cell in cells))
            assert found[row][column]["value"] == pytest.approx(mean(own))
            assert found[row][column]["error"] == pytest.approx(stdev(own))
            values.append(own)
        both = [mean(each) for each in zip(*values, strict=True)]
        assert found[row]["mean of these"]["value"] == pytest.approx(mean(both))
    absent = " ".join(said["glue"]["notes"])
    assert (
        all(title in absent for title in ("MNLI", "QQP", "QNLI", "CoLA", "STS-B", "MRPC"))
        and "SST-2" not in absent.split("table:")[1].split(".")[0]
    )


def test_classifiers_that_are_kept_need_no_weights(said, place, tmp_path, monkeypatch):
    """On another machine, with the scores alone, nothing is learned again; other examples are not taken for these."""
    kept = shutil.copytree(place / "out" / "smoke" / "text" / "scores", tmp_path / "scores")
    words = [*options(place, "--out", str(tmp_path / "out"), "--scores", str(kept)), "--json"]
    with monkeypatch.context() as patch:
        patch.setattr(bench_module, "train", lambda *_, **__: pytest.fail("a training that is kept is made again"))
        patch.setattr(
            task_classifiers, "classify", lambda *_, **__: pytest.fail("a classifier that is kept is made again")
        )
        assert run("reproduce", "glue", *words).json()["tables"] == said["glue"]["tables"]
    assert not list((tmp_path / "out").rglob("*.safetensors"))
    again: list[Path] = []
    real = task_classifiers.classify

    def learn(lm, config, out, seeds, **how):
        again.append(out)
        return real(lm, config, out, seeds, **how)

    monkeypatch.setattr(task_classifiers, "classify", learn)
    other = shutil.copytree(place / "glue", tmp_path / "glue")
    with (other / "RTE" / "train.tsv").open("a") as file:
        file.write("40\tthe sun is rain\tthe sun is rain\tentailment\n")
    run("reproduce", "glue", *(str(other) if word == str(place / "glue") else word for word in words)).json()
    assert {path.parent.name for path in again} == {"glue-rte"} and len(again) == 3 * SIZES.tasks.seeds


def test_a_kept_classifier_with_an_undefined_metric(tmp_path):
    kept, settings = KeptScores(tmp_path), {"text": "a", "path": "bert"}
    classified = Classified({"dev": {"matthews": math.nan, "accuracy": 0.5}}, {}, "")
    kept.keep_classifier("bert", "glue/cola", settings, {"seed": 1}, classified)
    found = kept.classifier("bert", "glue/cola", settings, {"seed": 1})
    assert found is not None and math.isnan(found.last["dev"]["matthews"]) and found.last["dev"]["accuracy"] == 0.5
    assert kept.classifier("bert", "glue/cola", settings, {"seed": 2}) is None
    assert kept.classifier("bert", "glue/cola", {**settings, "path": "other"}, {"seed": 1}) is None
    assert numbers([found], "glue/cola") == {"CoLA": [0.0]}, "as in run_glue"


def test_the_average_of_all_nine_is_the_papers():
    for row, printed in paper.GLUE.rows.items():
        values = {column: [own.value] for column, own in printed.items() if column != "Avg" and isinstance(own, Figure)}
        assert tuple(values) == tasks.NUMBERS
        wanted = printed["Avg"]
        assert isinstance(wanted, Figure) and averages(values)[0] == pytest.approx(wanted.value, abs=0.011)
        table = glue_table({row: values}, paper.GLUE.rows)
        assert table.rows[0].paper["mean of these"].value == pytest.approx(wanted.value, abs=0.011)


def test_claims_are_paired_by_seed():
    low, high = {"a": [1.0, 2.0], "b": [3.0, 5.0]}, {"a": [2.0, 3.5], "b": [4.0, 6.5]}
    found = higher_mean(high, low)
    assert found.value == pytest.approx(1.25) and found.error == pytest.approx(stdev([1.0, 1.5]) / math.sqrt(2))
    assert decide("x", found).holds is None, "two seeds: Student's law is wide"
    low, high = ({key: [*values, *values, *values] for key, values in side.items()} for side in (low, high))
    assert decide("x", higher_mean(high, low)).holds
    for value, error, better, no_worse in (
        (-1.0, 0.1, False, False),
        (0.1, 0.1, None, True),
        (0.1, None, None, None),
        (-0.1, 0.1, None, True),
        (-0.9, 0.5, None, None),
    ):
        gap = paired_by_seed(Figure(value, error))
        assert decide("x", gap).holds is better and decide("x", gap, "no worse").holds is no_worse
    sides = {"AR": low, "BERT": high, "BERT + MDLM-FT": low}
    assert [claim.check(sides).holds for claim in GLUE_CLAIMS] == [True, False]


@pytest.mark.parametrize("name", ["bert", "glue"])
def test_the_papers_scale_prints_commands(tmp_path, place, name):
    ran = run("reproduce", name, "--scale", "paper", "--local", str(place / "glue"), "--out", str(tmp_path))
    assert ran.code == 0, ran.err
    lines = [shlex.split(line) for line in ran.out.splitlines()]
    assert [words[5:7] for words in lines if words[5] == "train"] == [
        ["train", "mosaicbert-causal"],
        ["train", "mosaicbert"],
    ]
    for words in lines:
        if words[5] == "train":
            assert run(*words[5:], "--print-config").code == 0
    tuned = next(words for words in lines if words[5] == "finetune")
    assert tuned[6].endswith("models/bert") and tuned[7] == "mdlm"


@pytest.fixture(scope="module")
def tiny_bert(place) -> Path:
    """A BERT of transformers without a head for masks, with a tokenizer for the text."""
    from tokenizers import Tokenizer, models, pre_tokenizers
    from transformers import BertConfig, BertModel, PreTrainedTokenizerFast

    names = ["[PAD]", "[UNK]", "[CLS]", "[SEP]", "[MASK]", "the", "is", "and", ".", *WORDS]
    backend = Tokenizer(models.WordLevel({name: i for i, name in enumerate(names)}, unk_token="[UNK]"))
    backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
    special = {f"{role}_token": f"[{role.upper()}]" for role in ("pad", "unk", "cls", "sep", "mask")}
    folder = place / "tiny-bert"
    PreTrainedTokenizerFast(tokenizer_object=backend, **special).save_pretrained(folder)
    torch.manual_seed(0)
    shape = BertConfig(
        vocab_size=len(names),
        hidden_size=16,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=32,
        max_position_embeddings=130,
        pad_token_id=0,
    )
    BertModel(shape).save_pretrained(folder)
    return folder


def test_an_encoder_before_and_after(tiny_bert, place):
    words = ["reproduce", "encoder", *options(place, "--model", str(tiny_bert), "--json")]
    found = run(*words).json()
    bounds, glue, texts = found["tables"]
    assert list(rows(bounds)) == ["before", "after"] and all(own["PPL"]["bound"] for own in rows(bounds).values())
    assert list(rows(glue)["before"]) == ["RTE", "mean of these"]
    assert len(texts["rows"]) == 8 and all(own["text"] for own in rows(texts).values())
    assert f"--model {tiny_bert}" in found["command"]
    assert run(*words).json()["tables"][:2] == found["tables"][:2]
    twice = run(*words, "--seeds", "2").json()
    each = rows(twice["tables"][3])
    assert [list(own) for own in each.values()] == [["seed 0", "seed 1", "mean", "deviation"]] * 2
    before, after = (each[f"{name} by the bound of MDLM"] for name in ("before", "after"))
    assert before["seed 0"] == before["seed 1"] and before["deviation"]["value"] == 0, "it is the same model"
    assert after["seed 0"] != after["seed 1"]


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["bert", "--scale", "medium"], "scales smoke, small and paper"),
        (["encoder"], "--model"),
        (["bert", "--model", "x"], "--model"),
        (["lm", "--local", "x"], "--local belongs to"),
        (["bert", "--in-domain", "ptb"], "--in-domain"),
    ],
)
def test_what_is_wrong_is_one_sentence(place, tmp_path, words, said):
    base = ["--data", str(place / "text"), "--out", str(tmp_path), "--quiet"]
    more = [] if "--local" in words else ["--local", str(place / "glue")]
    assert said in refused("reproduce", *words, *base, *more)


def test_no_task_at_all_is_said_before_anything_is_trained(place, tmp_path):
    (tmp_path / "empty").mkdir()
    words = ["--data", str(place / "text"), "--local", str(tmp_path / "empty"), "--out", str(tmp_path / "o"), "--quiet"]
    assert "no task of GLUE is available" in refused("reproduce", "bert", *words)
    assert not (tmp_path / "o").exists()


@pytest.mark.slow
def test_two_trainings_have_classifiers_of_their_own(said, place):
    found = run("reproduce", "glue", *options(place, "--seeds", "2"), "--json").json()
    assert {"bert-seed1", "bert-mdlm-seed1", "bert-ar-seed1"} <= {model["name"] for model in found["models"]}
    assert "of each of 2 trainings" in found["protocol"]["seeds"]
    folder = place / "out" / "smoke" / "text" / "tasks"
    first, second = (
        {path.parent.name for path in (folder / name / "glue-rte").glob("*/config.yaml")}
        for name in ("bert", "bert-seed1")
    )
    assert first and second and not first & second, "other seeds"
