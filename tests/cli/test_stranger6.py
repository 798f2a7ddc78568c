"""What a stranger met with fine-tuning: settings that got lost, numbers of another model, sentences that misled."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import unmask
from support.helpers import folder, random_lm, text_file
from unmask import UserError
from unmask.config import Config
from unmask.data import online
from unmask.data.tokenization import bytes_tokenizer
from unmask.hub import resolve
from unmask.hub.checkpoint import step_folder
from unmask.reproduce.claims import decide, paired_by_seed
from unmask.reproduce.figures import Figure
from unmask.reproduce.tables.glue_tables import available
from unmask.training import adapt, loop
from unmask.training.loop import open_folder

ROWS = "index\tsentence1\tsentence2\tlabel\n0\ta b\tc d\tentailment\n1\te f\tg h\tnot_entailment\n"
SHORT = ["train.steps=1", "train.batch_size=2", "train.warmup=1", "eval.every=0", "eval.rows=4", "eval.draws=1"]


@pytest.fixture(scope="module")
def lm() -> unmask.LM:
    """A random model of bytes."""
    return random_lm(bytes_tokenizer(), "model.backbone=mosaicbert")


def language(lm: unmask.LM, *overrides: str) -> Config:
    """The settings of a short fine-tuning."""
    own = [*SHORT, f"data.cache={folder() / 'cache'}", *overrides]
    return adapt.language_config(lm, "toy", "mdlm", str(text_file()), None, own)


# -- settings that would change nothing ------------------------------------------------------------------------------


def test_what_comes_with_the_weights_is_not_set(lm):
    for key, own, other in (
        ("model.hidden_dim", lm.config.model.hidden_dim, 8),
        ("model.backbone", "mosaicbert", "dit"),
        ("data.tokenizer", "bytes", "gpt2"),
    ):
        for config in (
            lambda *own: adapt.language_config(lm, "toy", "mdlm", "text", None, own),
            lambda *own: adapt.task_config(lm, "toy", "glue/rte", None, own),
        ):
            name = key.replace("backbone", "network")  # the old name is read too
            with pytest.raises(
                UserError, match=f"^{name}={own} belongs to the weights of toy; leave out {name}={other}"
            ):
                config(f"{key}={other}")
            assert config(f"{key}={own}").train.start == "toy"
    assert language(lm, "model.dropout=0.3").model.dropout == 0.3


def test_what_is_an_argument_is_not_set(lm):
    with pytest.raises(UserError, match=r"^train.start is set by the arguments: toy; leave out train.start=other"):
        language(lm, "train.start=other")
    with pytest.raises(UserError, match=r"^task.name is set by the arguments: glue/rte; leave out task.name=glue/cola"):
        adapt.task_config(lm, "toy", "glue/rte", None, ["task.name=glue/cola"])


def test_steps_and_length_of_a_task_have_names_of_their_own(lm):
    for key, instead in (("train.steps", "task.epochs"), ("data.length", "task.length")):
        with pytest.raises(UserError, match=f"^{key} has no effect on a task; set {instead} instead of {key}=7"):
            adapt.task_config(lm, "toy", "glue/rte", None, [f"{key}=7"])


# -- the bound before, and the folder --------------------------------------------------------------------------------


def test_the_bound_before_is_not_that_of_another_attempt(lm, tmp_path):
    """A run that was killed before its first checkpoint leaves the bound of whatever model it was."""
    (tmp_path / adapt.BEFORE).write_text('{"perplexity": 1.0}')
    first = adapt.continue_training(lm, language(lm), tmp_path, quiet=True).before
    assert first is not None and first["perplexity"] > 50
    assert json.loads((tmp_path / adapt.BEFORE).read_text()) == first
    (tmp_path / adapt.BEFORE).write_text('{"perplexity": 2.0}')  # of a run that has begun it is kept
    assert adapt.continue_training(lm, language(lm, "train.steps=2"), tmp_path, quiet=True).before == {
        "perplexity": 2.0
    }


def test_what_cannot_be_is_said_before_anything_is_measured(lm, tmp_path, monkeypatch):
    monkeypatch.setattr(adapt, "bound", lambda *_: pytest.fail("it was measured"))
    (tmp_path / "file").write_text("")
    with pytest.raises(UserError, match=r"^cannot make the folder .*file: File exists; choose another --out"):
        adapt.continue_training(lm, language(lm), tmp_path / "file", quiet=True)
    with pytest.raises(UserError, match=r"^train.patience counts evaluations"):
        adapt.continue_training(lm, language(lm, "train.patience=1"), tmp_path / "run", quiet=True)
    monkeypatch.setattr(loop.os, "access", lambda path, mode: False)  # root may write everywhere
    with pytest.raises(UserError, match=r"^the folder .*run is not writable; choose another --out"):
        adapt.continue_training(lm, language(lm), tmp_path / "run", quiet=True)


def test_a_folder_of_another_kind_of_run(lm, tmp_path):
    """The first setting that differs is no help where all of them do."""
    config = language(lm)
    step_folder(tmp_path, 1).mkdir(parents=True)
    (tmp_path / "config.yaml").write_text(config.to_yaml())
    task = adapt.task_config(lm, "toy", "glue/rte", None, [])
    with pytest.raises(
        UserError, match=r"started with task.name=None, not glue/rte: it is another run; choose another"
    ):
        open_folder(task, tmp_path)
    other = adapt.language_config(lm, "other", "mdlm", "elsewhere.txt", None, [])
    with pytest.raises(UserError, match=r"started with train.start=toy, not other: it is another run; choose another"):
        open_folder(other, tmp_path)


# -- GLUE, and names of models ---------------------------------------------------------------------------------------


def write(root: Path, name: str, text: str) -> None:
    """The files of a task."""
    (root / name).mkdir(parents=True)
    for split in ("train", "dev"):
        (root / name / f"{split}.tsv").write_text(text)


def test_a_damaged_task_is_not_left_out_of_the_table(tmp_path):
    write(tmp_path, "RTE", ROWS)
    assert available(["glue/sst2", "glue/rte"], str(tmp_path)) == ["glue/rte"]
    write(tmp_path, "SST-2", "sentence\tlable\na film\t1\n")
    with pytest.raises(UserError, match=r"train.tsv has no column 'label'"):
        available(["glue/sst2", "glue/rte"], str(tmp_path))
    with pytest.raises(UserError, match=r"^no task of GLUE is available: .* has no file for the split 'train' of CoLA"):
        available(["glue/cola"], str(tmp_path))


def test_numbers_that_are_all_the_same_are_not_lower():
    """Classifiers that say one label have no spread at all."""
    for value, holds in ((0.0, True), (-0.1, False), (0.1, True)):
        assert decide("it is not lower", paired_by_seed(Figure(value, 0.0)), "no worse").holds is holds
    assert decide("it is higher", paired_by_seed(Figure(0.0, 0.0))).holds is None


def test_old_names_of_the_hub(monkeypatch, tmp_path):
    """bert-base-uncased is the example of our own page."""
    asked: list[str] = []

    def download(name: str, **how: object) -> str:
        asked.append(name)
        raise OSError("404 Client Error")

    monkeypatch.setattr(online, "reachable", lambda: True)
    monkeypatch.setattr("huggingface_hub.snapshot_download", download)
    monkeypatch.chdir(tmp_path)
    for name in ("bert-base-uncased", "distilroberta-base", "xlm-roberta-base"):
        with pytest.raises(UserError, match=f"no model at {name}, and the Hugging Face Hub does not give it: 404"):
            unmask.load(name)
    for name in ("bert", "my-bert-run", "tiny"):
        with pytest.raises(UserError, match=f"^there is no model at {name}.*train one with"):
            resolve.find(name)
    assert asked == ["bert-base-uncased", "distilroberta-base", "xlm-roberta-base"]
