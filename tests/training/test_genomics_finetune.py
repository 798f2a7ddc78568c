"""Classifiers of DNA: mean pooling and both strands by hand, the protocol of Genomic Benchmarks on a toy, the sweep."""

from __future__ import annotations

import csv
import json
import signal
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import nn

from support.helpers import random_lm, refused, run
from support.runs import at_step
from unmask import UserError
from unmask.data import tasks
from unmask.data.genome.bases import dna_tokenizer, reverse_complement
from unmask.evaluation.classification import encoded, outputs
from unmask.hub.resolve import checkpoint
from unmask.lm import LM
from unmask.models.classifier import Classifier
from unmask.models.plaid import Plaid
from unmask.process.keys import Keys
from unmask.recipes import GENOMICS_GRID, GENOMICS_SEEDS, genomics_finetuning
from unmask.training import adapt
from unmask.training.finetune import finetune, load_classifier, with_steps
from unmask.training.optimizers import learning_rate
from unmask.training.step import Trainer
from unmask.training.sweep import over_seeds, spread, sweep
from unmask.types import Batch

TASK = "genomics/dummy_mouse_enhancers_ensembl"
NETWORKS = {
    "dit": [],
    "ps": ["model.backbone=caduceus", "model.strands=ps"],
    "ps swapped": ["model.backbone=caduceus", "model.swap_strands=true"],
    "ph": ["model.backbone=caduceus", "model.strands=ph"],
    "mamba": ["model.backbone=mamba", "model.method=ar"],
    "plaid": ["model.backbone=caduceus", "model.method=plaid", "plaid.embed_dim=4"],
}


@cache
def lm(name: str) -> LM:
    network = NETWORKS[name] if name == "dit" else [*NETWORKS[name], "model.state_dim=4"]
    return random_lm(dna_tokenizer(), "data.tokenizer=dna", *network, "model.hidden_dim=8")


def classifier(name: str, double: bool = False) -> Classifier:
    """One with large random weights everywhere."""
    torch.manual_seed(3)
    config, vocab = lm(name).config, dna_tokenizer().vocab
    from unmask.models import registry

    own = registry.model(config, vocab)
    with torch.no_grad():
        for mine, theirs in zip(own.parameters(), lm(name).model.parameters(), strict=True):
            mine.copy_(theirs)
    reader = own if isinstance(own, Plaid) else None
    found = Classifier(own.backbone, 3, pooling="mean", dropout=0.0, reader=reader).eval()
    nn.init.normal_(found.classifier.weight)
    nn.init.normal_(found.classifier.bias)
    return found.double() if double else found


def rows(*lengths: int) -> Batch:
    rng, width = np.random.default_rng(sum(lengths)), max(lengths)
    present = torch.arange(width)[None] < torch.tensor(lengths)[:, None]
    tokens = torch.where(present, torch.from_numpy(rng.integers(7, 12, present.shape)), 4)
    return Batch(tokens, torch.arange(len(lengths)), len(lengths), present=present)


def other_strand(batch: Batch) -> Batch:
    assert batch.present is not None
    tokens = batch.tokens.clone()
    for row, present in enumerate(batch.present):
        tokens[row, present] = reverse_complement(tokens[row, present])
    return Batch(tokens, batch.index, batch.total, present=batch.present)


# -- pooling ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("name", NETWORKS)
def test_the_mean_is_over_real_bases(name: str) -> None:
    """Each row alone, without padding; the linear layer by hand; of a ps network the mean of its two answers."""
    model, batch = classifier(name), rows(9, 4, 1)
    weight, bias = (p.detach().double().numpy() for p in (model.classifier.weight, model.classifier.bias))
    found = model.outputs(batch).detach().double().numpy()
    net = model.backbone
    for row, n in enumerate((9, 4, 1)):
        tokens = batch.tokens[row : row + 1, :n]
        if isinstance(model.reader, Plaid):
            level = model.reader.gamma(torch.zeros(1, dtype=torch.float64))
            z = (1 / (1 + level.exp())).sqrt().float() * model.reader.embeddings()[tokens]
            hidden = model.reader.hidden(z, level)
        else:
            hidden = net(tokens, condition=net.condition(torch.zeros(1)))[0]
        states = hidden[0].detach().double().numpy()
        if getattr(net, "strands", "") == "ps":
            forth, back = states[:, :8].mean(0), states[:, 8:].mean(0)[::-1]
            want = ((weight @ forth + bias) + (weight @ back + bias)) / 2
        else:
            want = weight @ states.mean(0) + bias
        np.testing.assert_allclose(found[row], want, rtol=1e-4, atol=1e-5)
    assert model.pooling == "mean over real tokens" + (", both strands averaged" if model.two_strands else "")


def test_a_mean_over_padding_would_be_another() -> None:
    """What the code of Caduceus does: there the answer depends on the rows beside."""
    model = classifier("ph")
    alone, beside = model.outputs(rows(4)), rows(9, 4)
    beside.tokens[1, :4] = rows(4).tokens[0]
    torch.testing.assert_close(model.outputs(beside)[1:], alone, rtol=1e-5, atol=1e-5)
    hidden = model.backbone(beside.tokens, valid=beside.present)[0]
    assert not torch.allclose(model.classifier(hidden.mean(1))[1], alone[0], atol=1e-2)


@pytest.mark.parametrize("name", ["ps", "ps swapped", "plaid"])
def test_a_ps_classifier_has_one_answer_for_both_strands(name: str) -> None:
    if name == "plaid":
        model, batch, tolerance = classifier(name), rows(12, 7, 2), 1e-5
    else:
        model, batch, tolerance = classifier(name, double=True), rows(12, 7, 2), 1e-6
    one, two = model.outputs(batch), model.outputs(other_strand(batch))
    torch.testing.assert_close(one, two, rtol=0, atol=tolerance)
    assert (one[0] - one[1]).abs().max() > 1e-2, "and different answers for different rows"


@pytest.mark.parametrize("name", ["ph", "dit", "mamba"])
def test_others_have_two_answers_unless_they_are_conjoined(name: str) -> None:
    model = classifier(name)
    batch = rows(12, 7)
    assert (model.outputs(batch) - model.outputs(other_strand(batch))).abs().max() > 1e-3
    texts = ["ACGGTTNACA", "TTTGAC", "G"]
    task, tokenizer = tasks.task(TASK), dna_tokenizer()
    opposite = ["".join(dict(zip("ACGTN", "TGCAN", strict=True))[b] for b in reversed(text)) for text in texts]
    data, turned = (
        encoded(task, [tasks.Example(text, None, 0, i) for i, text in enumerate(some)], tokenizer, 50)
        for some in (texts, opposite)
    )
    one, two = outputs(model, data, 2, both=True), outputs(model, turned, 2, both=True)
    np.testing.assert_allclose(one, two, rtol=0, atol=1e-6)
    singles = (outputs(model, data, 2) + outputs(model, turned, 2)) / 2
    np.testing.assert_allclose(one, singles, rtol=0, atol=1e-6)


def test_only_what_matters_takes_gradients() -> None:
    for name in NETWORKS:
        model = classifier(name)
        unused = model.freeze_unused()
        model.outputs(rows(6, 3)).square().sum().backward()
        assert all((p.grad is None) == (n in unused) for n, p in model.named_parameters())
        assert not any(n.startswith(("backbone.layers", "classifier")) for n in unused)
        names = list(model.state_dict())
        assert not any(n.startswith("reader.backbone") for n in names), "weights are saved once"


# -- the protocol ----------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sequences of 20 to 40 bases in the layout of the package; positive ones have more G and C."""
    root, rng = tmp_path_factory.mktemp("toy"), np.random.default_rng(0)
    for split, n in (("train", 100), ("test", 60)):
        for kind, rich in (("negative", 0.25), ("positive", 0.75)):
            folder = root / TASK.rpartition("/")[2] / split / kind
            folder.mkdir(parents=True)
            for i in range(n // 2):
                p = [(1 - rich) / 2, rich / 2, rich / 2, (1 - rich) / 2]
                (folder / f"{i}.txt").write_text("".join(rng.choice(list("ACGT"), int(rng.integers(20, 40)), p=p)))
    return root


OWN = ["task.epochs=4", "train.batch_size=10", "train.lr=0.01", "train.log_every=1", "train.device=cpu"]


def settings(name: str, toy: Path, *more: str) -> Any:
    return adapt.task_config(lm(name), name, TASK, str(toy), [*OWN, *more])


def test_the_settings_of_the_paper() -> None:
    found = adapt.task_config(lm("ps"), "m", "genomics/human_enhancers_cohn")
    assert (found.task.length, found.task.pooling, found.task.strands) == (500, "mean", "one")
    assert (found.train.weight_decay, found.train.decay, found.train.final_lr, found.train.ema) == (
        0.1,
        "cosine",
        0.1,
        0,
    )
    assert GENOMICS_GRID == {"train.lr": (1e-3, 2e-3), "train.batch_size": (128, 256)} and GENOMICS_SEEDS == (
        1,
        2,
        3,
        4,
        5,
    )
    for name, strands in (("ps", "one"), ("ph", "conjoin"), ("mamba", "augment"), ("dit", "augment")):
        assert genomics_finetuning(lm(name).config).task.strands == strands
    for examples, steps, warmup in ((18_759, 1466, 15), (208_214, 16_000, 160), (871, 69, 1)):
        spec = with_steps(found, examples).train
        assert (spec.steps, spec.warmup) == (steps, warmup), "ten epochs, at most 16K steps, a hundredth of warm-up"
    assert learning_rate(spec, spec.steps) == pytest.approx(0.1 * spec.lr)


@pytest.fixture(scope="module")
def learnt(toy: Path, tmp_path_factory: pytest.TempPathFactory) -> Any:
    out = tmp_path_factory.mktemp("learnt") / "run"
    return out, finetune(lm("ps"), settings("ps", toy, "seed=1"), out, quiet=True)


def test_the_best_by_validation_is_tested_once(learnt: Any, toy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out, result = learnt
    assert result.finished and result.test["accuracy"] > 0.8 and result.step == 36
    scored = {
        one["step"]: one["dev_accuracy"] for one in map(json.loads, (out / "log.jsonl").open()) if "dev_accuracy" in one
    }
    assert list(scored) == [9, 18, 27, 36], "after every epoch, on validation only"
    assert result.best_step == min(step for step in scored if scored[step] == max(scored.values()))
    told = json.loads((out / "results.json").read_text())
    assert told["test"]["metrics"] == result.test and told["test"]["step"] == result.best_step
    assert told["protocol"]["rows"] == {"train": 90, "dev": 10, "test": 60}
    assert told["protocol"]["pooling"] == "mean over real tokens, both strands averaged"
    lines = list(csv.DictReader((out / "predictions.test.tsv").open(), delimiter="\t"))
    right = np.mean([line["prediction"] == line["label"] for line in lines])
    assert len(lines) == 60 and result.test["accuracy"] == pytest.approx(right)
    best = load_classifier(out).predict([one.first for one in tasks.load(tasks.task(TASK), "test", str(toy)).examples])
    assert best.answers == [line["prediction"] for line in lines], "the best checkpoint, loaded again"
    monkeypatch.setattr("unmask.training.finetune.TaskJob.judge", None)  # nothing is judged again
    again = finetune(lm("ps"), settings("ps", toy, "seed=1"), out, quiet=True)
    assert (again.test, again.best, again.best_step) == (result.test, result.best, result.best_step)


def test_predictions_of_sequences(learnt: Any) -> None:
    model = load_classifier(learnt[0])
    found = model.predict(["GCGCGGCCGCGCCGGGCGCG" * 2, "atatnaattattttatatta", "TAATATAAAATAATTNATAT"])
    assert found.answers == ["positive", "negative", "negative"] and found.probabilities is not None
    np.testing.assert_allclose(found.probabilities[1], found.probabilities[2], atol=1e-6)  # the other strand
    for bad, said in ((["ACGT", "MKLV"], "example 1 has the letter 'L' at base 3"), ([""], "example 0 has no bases")):
        with pytest.raises(UserError, match=said):
            model.predict(bad)
    with pytest.raises(UserError, match="single texts"):
        model.predict([("A", "C")])


@pytest.mark.parametrize("name", ["ph", "mamba", "plaid"])
def test_others_learn_too(name: str, toy: Path, tmp_path: Path) -> None:
    result = finetune(lm(name), settings(name, toy, "train.lr=0.02"), tmp_path, quiet=True)
    assert result.test["accuracy"] > 0.7
    texts = [one.first for one in tasks.load(tasks.task(TASK), "test", str(toy)).examples]
    lines = list(csv.DictReader((tmp_path / "predictions.test.tsv").open(), delimiter="\t"))
    assert load_classifier(tmp_path).predict(texts, batch_size=7).answers == [line["prediction"] for line in lines]


def test_training_sees_both_strands_by_slot_and_step(toy: Path) -> None:
    """Half of the rows, whichever way a batch is cut; the labels stay."""
    from unmask.training.finetune import example_batch

    config = settings("ph", toy)
    assert config.task.strands == "conjoin"
    texts = [one.first for one in tasks.load(tasks.task(TASK), "train", str(toy)).examples]
    data = tasks.encode_bases([tasks.Example(t, None, i % 2, i) for i, t in enumerate(texts)], dna_tokenizer(), 64)
    plain = config.override(["task.strands=one"])
    turned = 0
    for step in range(40):
        keys = Keys(5, step)
        one, two = (example_batch(own, data, range(10), keys) for own in (plain, config))
        assert torch.equal(one.label, two.label) and torch.equal(one.present, two.present)
        flipped = other_strand(one).tokens
        for row in range(10):
            same, other = torch.equal(two.tokens[row], one.tokens[row]), torch.equal(two.tokens[row], flipped[row])
            assert same or other
            turned += other
        part = example_batch(config, data, range(3, 7), keys)
        width = part.tokens.shape[1]
        assert torch.equal(part.tokens, two.tokens[3:7, :width])
    assert 150 < turned < 250, "of 400"


def test_a_stopped_run_goes_on_to_the_same_numbers(
    learnt: Any, toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", at_step(20, signal.SIGTERM))
        assert not finetune(lm("ps"), settings("ps", toy, "seed=1"), tmp_path, quiet=True).finished
    assert not (tmp_path / "results.json").exists()
    result = finetune(lm("ps"), settings("ps", toy, "seed=1"), tmp_path, quiet=True)
    assert (result.test, result.best, result.best_step) == (learnt[1].test, learnt[1].best, learnt[1].best_step)
    assert (tmp_path / "results.json").read_bytes() == (learnt[0] / "results.json").read_bytes()


# -- the sweep -------------------------------------------------------------------------------------------------------

GRID = {"train.lr": (1e-6, 0.01), "train.batch_size": (10, 30)}


def test_the_sweep_takes_the_best_by_validation_and_tests_nothing_else(
    toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = settings("ps", toy, "task.epochs=3")
    trained: list[int] = []
    original = Trainer.step

    def counting(self: Trainer, data: Any, step: int, stop: bool = False) -> Any:
        trained.append(step)
        return original(self, data, step, stop)

    monkeypatch.setattr(Trainer, "step", counting)
    done = sweep(lm("ps"), config, tmp_path, [1, 2], GRID, quiet=True)
    assert done.finished and done.best is not None and len(done.cells) == 4
    by_hand = {
        cell.out.name: np.mean(
            [
                json.loads((cell.out / f"seed-{seed}/results.json").read_text())["best"]["metrics"]["dev"]["accuracy"]
                for seed in (1, 2)
            ]
        )
        for cell in done.cells
    }
    names = ["lr-1e-06-batch_size-10", "lr-1e-06-batch_size-30", "lr-0.01-batch_size-10", "lr-0.01-batch_size-30"]
    assert list(by_hand) == names
    best = next(name for name in names if by_hand[name] == max(by_hand.values()))
    assert done.best.out.name == best and done.best.settings["train.lr"] == 0.01, "a rate of 1e-6 learns nothing"
    tested = {path.parent.parent.name for path in tmp_path.glob("*/*/predictions.test.tsv")}
    assert tested == {best}
    told = json.loads((tmp_path / "results.json").read_text())
    values = [run.test["accuracy"] for run in done.best.runs]
    assert told["summary"]["test"]["values"] == values and told["chosen"] == done.best.settings
    assert told["summary"]["test"]["max_min"] == pytest.approx(abs(values[0] - values[1]))
    assert [cell["validation"]["mean"] for cell in told["cells"]] == pytest.approx(list(by_hand.values()))
    assert len(trained) == 2 * 2 * (27 + 9)
    again = sweep(lm("ps"), config, tmp_path, [1, 2], GRID, quiet=True)
    assert len(trained) == 2 * 2 * (27 + 9), "finished runs are read"
    assert json.loads((tmp_path / "results.json").read_text()) == told and again.best is not None
    checkpoint_of_one = checkpoint.steps(tmp_path / best / "seed-1")
    assert checkpoint_of_one, "the runs are ordinary runs"


def test_a_stopped_sweep_goes_on(toy: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config, grid = settings("ps", toy, "task.epochs=2"), {"train.lr": (0.01,), "train.batch_size": (30, 45)}
    with monkeypatch.context() as patch:
        patch.setattr(Trainer, "step", at_step(1, signal.SIGTERM))
        done = sweep(lm("ps"), config, tmp_path, [1, 2], grid, quiet=True)
    assert not done.finished and done.best is None and not (tmp_path / "results.json").exists()
    assert not list(tmp_path.glob("*/seed-2")), "it stops where it was stopped"
    done = sweep(lm("ps"), config, tmp_path, [1, 2], grid, quiet=True)
    assert done.finished and [run.step for cell in done.cells for run in cell.runs] == [6, 6, 4, 4]


def test_the_error_bar_is_the_papers() -> None:
    """The difference between the largest and the smallest value over the seeds."""
    found = spread([0.70, 0.75, 0.72])
    assert found["mean"] == pytest.approx(0.7233, abs=1e-4) and found["max_min"] == pytest.approx(0.05)
    assert found["sd"] == pytest.approx(np.std([0.70, 0.75, 0.72], ddof=1)) and spread([0.5])["sd"] is None


def test_over_seeds(learnt: Any) -> None:
    found = over_seeds([learnt[1], learnt[1]], "accuracy")
    assert found["test"]["values"] == [learnt[1].test["accuracy"]] * 2 and found["test"]["max_min"] == 0
    assert found["dev"]["mean"] == learnt[1].best["dev"]["accuracy"]


# -- the command line ------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def saved(tmp_path_factory: pytest.TempPathFactory) -> str:
    """A model of DNA as a run."""
    root = tmp_path_factory.mktemp("saved")
    fasta = root / "g.fa"
    fasta.write_text(">a\n" + "ACGTTGCA" * 200 + "\n")
    ran = run(
        "train",
        "tiny",
        "data.tokenizer=dna",
        f"data.source={fasta}",
        f"data.cache={root}/cache",
        "data.length=32",
        "model.backbone=caduceus",
        "model.hidden_dim=8",
        "model.n_blocks=1",
        "model.state_dim=4",
        "train.steps=2",
        "train.batch_size=2",
        "eval.rows=2",
        "--out",
        f"{root}/lm",
        "--quiet",
    )
    assert ran.code == 0, ran.err
    return f"{root}/lm"


def test_the_command_line(saved: str, toy: Path, tmp_path: Path) -> None:
    cheap = ["task.epochs=0.5", "train.batch_size=20", "--local", str(toy), "--quiet", "--out", str(tmp_path)]
    ran = run("finetune", saved, TASK, *cheap, "--seeds", "1,2")
    assert ran.code == 0, ran.err
    lines = ran.out.splitlines()
    assert lines[0].startswith(f"{TASK} dev: accuracy ") and "(largest - smallest of 2 seeds)" in lines[1]
    told = run("finetune", saved, TASK, *cheap, "--seeds", "1,2", "--json").json()
    assert [one["test"]["accuracy"] for one in told["runs"]] == told["summary"]["test"]["values"]


def test_a_sweep_on_the_command_line(saved: str, toy: Path, tmp_path: Path) -> None:
    cheap = ["task.max_steps=1", "task.rows=8", "--local", str(toy), "--quiet", "--out", str(tmp_path), "--sweep"]
    told = run("finetune", saved, TASK, *cheap, "--seeds", "3", "--json").json()
    assert len(told["cells"]) == 4 and sum(cell["chosen"] for cell in told["cells"]) == 1
    assert told["seeds"] == [3] and told["protocol"]["chosen_by"].startswith("the highest mean over 1 seeds")
    ran = run("finetune", saved, TASK, *cheap, "--seeds", "3")
    assert ran.code == 0 and ran.out.count("(chosen)") == 1 and f"{TASK} test: accuracy" in ran.out


@pytest.mark.parametrize(
    ("args", "said"),
    [
        (["glue/sst2", "--sweep"], "--sweep is for tasks with a test split"),
        ([TASK, "--sweep", "train.lr=1"], "train.lr is what --sweep tries"),
        ([TASK, "train.warmup=5"], "set task.warmup instead of train.warmup"),
        ([TASK, "train.steps=5"], "set task.epochs instead of train.steps=5"),
        (["genomics/cohn"], "did you mean 'genomics/human_enhancers_cohn'?"),
        ([TASK, "--local", "/nowhere"], "task.local=/nowhere does not exist"),
        (["glue/sst2", "task.strands=augment", "--local", "GLUE"], "which have no strands"),
    ],
)
def test_commands_that_are_refused(args: list[str], said: str, saved: str, tmp_path: Path) -> None:
    glue = tmp_path / "glue/SST-2"
    glue.mkdir(parents=True)
    for split in ("train", "dev"):
        (glue / f"{split}.tsv").write_text("sentence\tlabel\nA\t1\nC\t0\n")
    args = [str(tmp_path / "glue") if part == "GLUE" else part for part in args]
    assert said in refused("finetune", saved, *args, "--out", str(tmp_path / "out"))


def test_text_models_are_refused(toy: Path, tmp_path: Path) -> None:
    from unmask.data.tokenization import bytes_tokenizer

    text = random_lm(bytes_tokenizer())
    with pytest.raises(UserError, match=r"a task on bases needs a model of bases"):
        finetune(text, adapt.task_config(text, "m", TASK, str(toy), OWN), tmp_path, quiet=True)
