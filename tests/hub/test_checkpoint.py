"""Checkpoints: damage is named in one sentence, a full disk costs nothing that was there, old ones go in order."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import json
import random
import resource
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file, save_file

import unmask
from support.helpers import TRAINED, random_model, random_rows, refused, run, sentence, settings, tiny_config, trained
from support.runs import scripted
from unmask.distributed import World
from unmask.hub.resolve import checkpoint
from unmask.training import text
from unmask.training.step import Trainer
from unmask.types import UserError, Vocab

LAST = "checkpoints/step-00000300"


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    """A copy of the trained run, to be damaged."""
    return Path(shutil.copytree(trained(), tmp_path / "run"))


def resume(out: Path, *more: str) -> list[str]:
    return ["train", "tiny", *settings(*TRAINED, "train.steps=304", *more), "--out", str(out), "--quiet"]


# -- damage ----------------------------------------------------------------------------------------------------------


def truncate(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def flip(path: Path, bit: int | None = None) -> None:
    data = bytearray(path.read_bytes())
    bit = 8 * (len(data) // 2) + 3 if bit is None else bit
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


def append(path: Path) -> None:
    path.write_bytes(path.read_bytes() + b"\0")


DAMAGE: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "truncated weights": ("model.safetensors", truncate),
    "truncated average": ("ema.safetensors", truncate),
    "empty weights": ("ema.safetensors", lambda path: path.write_bytes(b"")),
    "flipped bit": ("ema.safetensors", flip),
    "flipped bit in the weights": ("model.safetensors", flip),
    "flipped bit in the optimizer": ("optimizer.safetensors", flip),
    "flipped bit in the first byte": ("ema.safetensors", lambda path: flip(path, 0)),
    "one byte more": ("ema.safetensors", append),
    "changed config": ("config.yaml", lambda path: path.write_text(path.read_text().replace("0.007", "0.008"))),
    "changed state": ("state.json", flip),
    "changed tokenizer": ("tokenizer.json", flip),
    "missing average": ("ema.safetensors", Path.unlink),
    "missing optimizer": ("optimizer.safetensors", Path.unlink),
    "missing config": ("config.yaml", Path.unlink),
    "missing manifest": ("manifest.json", Path.unlink),
    "manifest that is no JSON": ("manifest.json", truncate),
    "manifest that is no text": ("manifest.json", lambda path: path.write_bytes(b"\xff\xfe\x00")),
    "empty manifest": ("manifest.json", lambda path: path.write_bytes(b"")),
    "manifest that is a list": ("manifest.json", lambda path: path.write_text("[]")),
    "manifest without files": ("manifest.json", lambda path: path.write_text("{}")),
    "manifest of no files": ("manifest.json", lambda path: path.write_text('{"files": {}}')),
    "manifest with nonsense": ("manifest.json", lambda path: path.write_text('{"files": {"config.yaml": 3}}')),
    "manifest without sizes": ("manifest.json", lambda path: path.write_text('{"files": {"config.yaml": {}}}')),
}


@pytest.mark.parametrize("what", DAMAGE)
def test_damage_is_named_and_refused(copy: Path, what: str) -> None:
    name, harm = DAMAGE[what]
    path = copy / LAST / name
    harm(path)
    for command in (["sample", str(copy)], ["eval", str(copy / LAST)], resume(copy)):
        said = refused(*command)
        assert str(path) in said
        if (what, command[0]) != ("changed tokenizer", "train"):  # the tokenizer itself notices first
            assert "delete the folder" in said, "it says how to go on from the checkpoint before"


def test_the_advice_works(copy: Path) -> None:
    flip(copy / LAST / "model.safetensors")
    shutil.rmtree(copy / LAST)
    assert run("sample", str(copy), "--length", "4").code == 0
    assert run(*resume(copy)).code == 0
    assert checkpoint.steps(copy)[-1] == 304


def test_no_flipped_bit_of_the_manifest_gives_a_traceback(copy: Path) -> None:
    """The manifest has no checksum of its own: whatever becomes of it is refused, or changes nothing."""
    path, rng = copy / LAST / "manifest.json", random.Random(0)
    whole = path.read_bytes()
    for _ in range(150):
        flip(path, rng.randrange(8 * len(whole)))
        with contextlib.suppress(UserError):  # a space may become a tab
            checkpoint.verify(copy / LAST)
        path.write_bytes(whole)


def seal(folder: Path) -> None:
    """A manifest by hand, as somebody would write it who changes a file on purpose."""
    files = {
        p.name: {"size": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
        for p in folder.iterdir()
        if p.name != "manifest.json"
    }
    (folder / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))


BIAS = "backbone.output_layer.linear.bias"


@pytest.mark.parametrize("group", ["ema", "model", "optimizer"])
@pytest.mark.parametrize("change", ["lacks", "unknown", "shape"])
def test_tensors_that_do_not_fit_are_named(copy: Path, group: str, change: str) -> None:
    path = copy / LAST / f"{group}.safetensors"
    tensors = load_file(path)
    name = BIAS if group != "optimizer" else f"exp_avg.{BIAS}"
    if change == "lacks":
        del tensors[name]
    elif change == "unknown":
        name = "somebody.else"
        tensors[name] = torch.zeros(3)
    else:
        tensors[name] = tensors[name][:1].clone()  # a shape that would broadcast
    save_file(tensors, path)
    seal(copy / LAST)
    said = refused(*resume(copy))
    assert str(path) in said and name in said
    if group != "optimizer":
        said = refused("sample", str(copy), "--weights", "raw" if group == "model" else "ema")
        assert str(path) in said and name in said


def test_a_checkpoint_of_another_size_is_refused(copy: Path) -> None:
    config = copy / LAST / "config.yaml"
    config.write_text(config.read_text().replace("hidden_dim: 32", "hidden_dim: 16"))
    seal(copy / LAST)
    said = refused("sample", str(copy))
    assert "ema.safetensors" in said and "shape" in said


def test_a_folder_is_complete_in_itself(copy: Path, tmp_path: Path) -> None:
    alone = Path(shutil.move(copy / LAST, tmp_path / "alone"))
    shutil.rmtree(copy)
    lm = unmask.load(alone)
    assert lm.config.train.lr == 0.007 and len(lm.sample(1, length=8)) == 1
    assert not [p for p in alone.iterdir() if p.suffix in (".pt", ".pkl", ".bin", ".pth")]


# -- a full disk -----------------------------------------------------------------------------------------------------


def assert_survived(out: Path, said: str) -> None:
    assert "could not write checkpoint" in said and "step-00000304" in said
    assert "earlier checkpoints are untouched" in said and "free some space" in said
    assert checkpoint.steps(out)[-1] == 300
    checkpoint.verify(out / LAST)
    assert not list((out / "checkpoints").glob(".*"))
    assert run(*resume(out)).code == 0, "and with space again it goes on"
    assert checkpoint.steps(out)[-1] == 304


def test_full_disk(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def full(tensors: Any, path: Any, *rest: Any) -> None:
        Path(path).write_bytes(b"half")
        raise OSError(errno.ENOSPC, "No space left on device")

    with monkeypatch.context() as patch:
        patch.setattr(checkpoint, "save_file", full)
        said = refused(*resume(copy))
    assert "no space left on device" in said
    assert_survived(copy, said)


def test_files_may_grow_no_further(copy: Path) -> None:
    """The real thing: the kernel refuses to write beyond a size (Python ignores SIGXFSZ)."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    smallest = min((copy / LAST / f"{name}.safetensors").stat().st_size for name in ("model", "ema"))
    resource.setrlimit(resource.RLIMIT_FSIZE, (smallest // 2, hard))
    try:
        ran = run(*resume(copy))
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
    assert ran.code == 2 and ran.out == ""
    assert_survived(copy, sentence(ran.err))


# -- which ones are kept ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("values", "best", "kept"),
    [
        ([5.0, 3.0, 4.0, 3.0, 9.0, 3.5], 4, {4, 10, 12}),  # the first of equals
        ([6.0, 5.0, 4.0, 3.0, 2.0, 1.0], 12, {10, 12}),
        ([1.0, 2.0, 3.0, 4.0, 5.0, 6.0], 2, {2, 10, 12}),
    ],
)
def test_the_last_and_the_best_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, values: list[float], best: int, kept: set[int]
) -> None:
    monkeypatch.setattr(text, "evaluate", scripted(values))
    out = tmp_path / "run"
    own = ["train.steps=12", "train.checkpoint_every=2", "train.keep_last=2", "eval.every=2", "train.batch_size=2"]
    ran = run("train", "tiny", *settings(*own), "--out", str(out), "--quiet")
    assert ran.code == 0
    assert set(checkpoint.steps(out)) == kept
    assert checkpoint.resolve(out, "best") == checkpoint.step_folder(out, best)
    assert checkpoint.resolve(out) == checkpoint.step_folder(out, 12)
    weights = load_file(checkpoint.step_folder(out, best) / "ema.safetensors")
    loaded = unmask.load(out, which="best").model.state_dict()
    assert all(torch.equal(loaded[name], value) for name, value in weights.items())


def test_best_of_a_real_run_is_the_lowest_in_its_log() -> None:
    lines = [json.loads(line) for line in (trained() / "log.jsonl").read_text().splitlines()]
    scored = {line["step"]: line["valid_nats"] for line in lines if "valid_nats" in line}
    assert set(scored) == {150, 300}
    assert checkpoint.resolve(trained(), "best").name == f"step-{min(scored, key=scored.__getitem__):08d}"


def test_best_before_any_evaluation_is_a_sentence(copy: Path) -> None:
    state = copy / LAST / "state.json"
    state.write_text(json.dumps({**json.loads(state.read_text()), "best": None}))
    seal(copy / LAST)
    assert "best" in refused("sample", str(copy), "--which", "best")


# -- the average -----------------------------------------------------------------------------------------------------


def test_ema_equals_a_slow_average() -> None:
    vocab = Vocab(12, mask=11, pad=10)
    config = tiny_config("train.batch_size=3", "train.ema=0.8", "train.warmup=0", "model.dropout=0.1")
    trainer = Trainer(config, random_model(config, vocab), World(0, 1, torch.device("cpu")))
    rows = random_rows(vocab, 9, config.data.length)
    slow = {name: p.detach().double().clone() for name, p in trainer.model.named_parameters()}
    for n in range(45):  # (1 + n)/(10 + n) passes 0.8 at n = 35
        trainer.step(rows, n)
        decay = min(0.8, (1 + n) / (10 + n))
        for name, p in trainer.model.named_parameters():
            slow[name] = decay * slow[name] + (1 - decay) * p.detach().double()
    for name, value in slow.items():
        np.testing.assert_allclose(trainer.ema.weights[name].double().numpy(), value.numpy(), atol=1e-6, rtol=1e-5)
        assert not torch.equal(trainer.ema.weights[name], dict(trainer.model.named_parameters())[name])


def test_raw_and_average_are_both_there() -> None:
    raw = unmask.load(trained(), weights="raw").model.state_dict()
    average = unmask.load(trained()).model.state_dict()
    files = {name: load_file(trained() / LAST / f"{name}.safetensors") for name in ("model", "ema")}
    for name in raw:
        assert torch.equal(raw[name], files["model"][name])
        assert torch.equal(average[name], files["ema"][name])
    assert any(not torch.equal(raw[name], average[name]) for name in raw)


def test_a_run_without_average(tmp_path: Path) -> None:
    own = ["train.steps=2", "train.ema=0", "train.batch_size=2", "eval.rows=2"]
    assert run("train", "tiny", *settings(*own), "--out", str(tmp_path), "--quiet").code == 0
    folder = checkpoint.resolve(tmp_path)
    assert not (folder / "ema.safetensors").exists()
    assert len(unmask.load(tmp_path).sample(1, length=4)) == 1
    own[0] = "train.steps=3"
    assert run("train", "tiny", *settings(*own), "--out", str(tmp_path), "--quiet").code == 0
