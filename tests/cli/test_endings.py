"""How commands end where something outside of them goes wrong: one sentence, a code, no traceback."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest
import torch

from support.helpers import refused, run, settings
from unmask import __main__ as entry
from unmask.training.step import Trainer

ERRORS = {
    "cpu": RuntimeError("[enforce fail at alloc_cpu.cpp:121] DefaultCPUAllocator: not enough memory: you tried to ..."),
    "kernel": RuntimeError("DefaultCPUAllocator: can't allocate memory: you tried to allocate 8 bytes. Error code 12"),
    "gpu": torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 20.00 MiB"),
    "python": MemoryError(),
}


@pytest.mark.parametrize("error", ERRORS.values(), ids=ERRORS)
def test_out_of_memory_is_a_sentence_with_advice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    def step(*given: object) -> None:
        raise error

    monkeypatch.setattr(Trainer, "step", step)
    said = refused("train", "demo", *settings("train.steps=1"), "--out", str(tmp_path / "r"))
    assert "out of memory; take fewer rows at once (train.micro_batch_size" in said


def test_an_allocation_that_really_fails(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(Trainer, "step", lambda *given: torch.empty(1 << 60, dtype=torch.uint8))
    said = refused("train", "demo", *settings("train.steps=1"), "--out", str(tmp_path / "r"))
    assert "out of memory" in said


def test_other_errors_stay_visible(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(*given: object) -> None:
        raise RuntimeError("shapes do not match")

    monkeypatch.setattr(Trainer, "step", step)
    with pytest.raises(RuntimeError, match="shapes"):
        run("train", "demo", *settings("train.steps=1"), "--out", str(tmp_path / "r"))


@pytest.mark.parametrize(
    "words",
    [
        ["train", "tiny", "--out", ""],
        ["train", "tiny", "--out="],
        ["finetune", "tiny-en", "mdlm", "--data", "x.txt", "--out", " "],
        ["demo", "--out", ""],
        ["reproduce", "lm", "--out", ""],
        ["embed", "tiny-en", "x.fa", "--out", ""],
        ["variants", "tiny-en", "x.vcf", "--genome", "g.fa", "--out", ""],
        ["compare", "a.fa", "b.fa", "--out", ""],
        ["sample", "tiny-en", "--html", ""],
    ],
    ids=" ".join,
)
def test_an_empty_path_is_refused(words: list[str]) -> None:
    option = next(word for word in words if word.startswith("--out") or word == "--html").rstrip("=")
    assert f"{option} is empty; give the path to write to" in refused(*words)


def test_an_empty_folder_to_convert_to() -> None:
    assert "DIR is empty" in refused("convert", "tiny-en", "")


def test_an_interrupt_while_importing_has_no_traceback(monkeypatch: pytest.MonkeyPatch) -> None:
    codes: list[int] = []
    monkeypatch.setattr(entry.os, "_exit", codes.append)

    class Interrupted:
        def find_spec(self, name: str, *more: object) -> None:
            if name == "unmask.cli":
                raise KeyboardInterrupt

    monkeypatch.delitem(sys.modules, "unmask.cli")
    monkeypatch.delattr("unmask.cli")
    monkeypatch.setattr(sys, "meta_path", [Interrupted(), *sys.meta_path])
    entry.main()
    assert codes == [130]
