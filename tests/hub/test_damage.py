"""Model folders and configs that are damaged or lie: the file is named, nothing is loaded, and nothing hangs."""

from __future__ import annotations

import json
import os
import random
import shutil
from pathlib import Path

import pytest

import unmask
from support.helpers import refused, run, trained
from unmask import files
from unmask.config import Config, load_yaml
from unmask.hub.resolve import checkpoint
from unmask.types import UserError

LAST = "checkpoints/step-00000300"


@pytest.fixture
def portable(tmp_path: Path) -> Path:
    folder = tmp_path / "model"
    assert run("convert", str(trained()), str(folder)).code == 0
    return folder


@pytest.fixture
def step(tmp_path: Path) -> Path:
    return Path(shutil.copytree(trained() / LAST, tmp_path / "step"))


def flip(path: Path, bit: int) -> None:
    data = bytearray(path.read_bytes())
    data[bit // 8] ^= 1 << bit % 8
    path.write_bytes(data)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "manifest.json"])
def test_a_flipped_bit_of_a_model_folder_is_named(portable: Path, name: str) -> None:
    flip(portable / name, 8 * ((portable / name).stat().st_size * 2 // 3) + 1)
    assert name in refused("sample", str(portable))


def test_a_card_may_be_edited_and_a_manifest_taken_away(portable: Path) -> None:
    (portable / "README.md").write_text("mine")
    assert run("sample", str(portable), "--length", "4").code == 0
    config = portable / "config.json"
    config.write_text(config.read_text().replace("0.007", "0.008"))
    assert "delete manifest.json" in refused("sample", str(portable))
    (portable / "manifest.json").unlink()
    assert run("sample", str(portable), "--length", "4").code == 0


def test_a_folder_that_another_library_wrote_into_is_read(portable: Path) -> None:
    config = portable / "config.json"
    config.write_text(json.dumps(json.loads(config.read_text()) | {"transformers_version": "9.9"}))
    assert run("sample", str(portable), "--length", "4").code == 0
    truncated = (portable / "model.safetensors").read_bytes()[:-9]
    (portable / "model.safetensors").write_bytes(truncated)
    assert "model.safetensors" in refused("sample", str(portable))


def test_a_flipped_checksum_accuses_the_manifest_and_not_the_file(step: Path) -> None:
    manifest, rng = step / "manifest.json", random.Random(0)
    whole = manifest.read_bytes()
    for _ in range(60):
        flip(manifest, rng.randrange(8 * len(whole)))
        said = "manifest.json"
        try:
            checkpoint.verify(step)
        except UserError as error:
            said = str(error)
        else:
            assert json.loads(manifest.read_bytes()).get("files") == json.loads(whole)["files"]
        assert "manifest.json" in said
        manifest.write_bytes(whole)


def test_a_checkpoint_whose_manifest_has_no_stamp_is_still_read(step: Path) -> None:
    """As version 0.2 wrote them."""
    manifest = step / "manifest.json"
    manifest.write_text(json.dumps({"format": 1, "files": json.loads(manifest.read_text())["files"]}))
    assert unmask.load(step).length == 32


def test_a_pipe_in_a_model_folder_does_not_hang(portable: Path) -> None:
    (portable / "manifest.json").unlink()
    (portable / "model.safetensors").unlink()
    os.mkfifo(portable / "model.safetensors")
    assert "no weights" in refused("sample", str(portable))


@pytest.mark.parametrize("size", ["n_blocks: 1000000000", f"n_blocks: 1{'0' * 60}", "hidden_dim: 1099511627776"])
def test_a_checkpoint_of_an_absurd_size_is_refused_before_memory_is_taken(step: Path, size: str) -> None:
    config = step / "config.yaml"
    key = size.partition(":")[0]
    lines = [
        size.join(("  ", "")) if line.strip().startswith(f"{key}:") else line for line in config.read_text().split("\n")
    ]
    config.write_text("\n".join(lines))
    files.seal(step)
    assert key in refused("sample", str(step))


def test_shapes_are_compared_before_memory_is_taken(step: Path) -> None:
    config = step / "config.yaml"
    config.write_text(config.read_text().replace("hidden_dim: 32", f"hidden_dim: {1 << 20}"))
    files.seal(step)
    assert "does not fit" in refused("sample", str(step))


def test_yaml_that_is_nested_too_deeply_is_a_sentence(tmp_path: Path) -> None:
    path = tmp_path / "config.yaml"
    path.write_text("[" * 2_000)
    with pytest.raises(UserError, match="not YAML"):
        load_yaml(path)
    with pytest.raises(UserError):
        Config().override([f"train.steps={'[' * 2_000}"])


def test_a_deleted_checkpoint_loses_its_name_first(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A kill in the middle of the deletion leaves no folder that looks like a checkpoint."""
    out = tmp_path / "run"
    for number in (1, 2, 3):
        checkpoint.step_folder(out, number).mkdir(parents=True)

    def killed(path: Path, **_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(files.shutil, "rmtree", killed)
    with pytest.raises(KeyboardInterrupt):
        checkpoint.prune(out, 2, None)
    assert checkpoint.steps(out) in ([1, 2, 3], [2, 3])
    monkeypatch.undo()
    checkpoint.prune(out, 2, None)
    assert checkpoint.steps(out) == [2, 3] and not list((out / "checkpoints").glob(".*"))
