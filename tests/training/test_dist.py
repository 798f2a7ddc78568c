"""Processes: 1 and 2 agree, DDP and FSDP agree, and a run saved by one goes on with the other."""

from __future__ import annotations

import random
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file

from support.runs import figures, run
from unmask.distributed import World


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("corpus") / "text.txt"
    path.write_text("\n\n".join(f"{i} bottles of beer on the wall, take {i % 7} down." for i in range(400)))
    return f"data.source={path}"


@pytest.fixture(scope="module")
def alone(corpus: str, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[dict]]:
    out = tmp_path_factory.mktemp("alone") / "run"
    return out, run(out, 1, corpus)


def same(first: list[dict], second: list[dict]) -> None:
    for key in ("loss", "valid_nats", "valid_stderr_nats"):
        torch.testing.assert_close(figures(first, key), figures(second, key), rtol=2e-5, atol=2e-5)
    assert len(figures(first, "loss")) == 4


def weights(out: Path, step: int = 4, name: str = "ema") -> dict[str, torch.Tensor]:
    return load_file(out / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")


def test_two_processes_give_the_losses_and_weights_of_one(corpus: str, alone: tuple, tmp_path: Path) -> None:
    """An odd batch over two processes with accumulation: uneven shares, same numbers."""
    journal = run(tmp_path / "two", 2, corpus, "train.micro_batch_size=2", torchrun=True)
    same(alone[1], journal)
    ours, theirs = weights(alone[0]), weights(tmp_path / "two")
    for name, tensor in ours.items():
        torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "method"),
    [
        ("ddp", ["model.method=d3pm", "objective.bound=discrete", "objective.steps=9"]),
        ("fsdp", ["model.method=no-carry-over"]),  # rows to reconstruct may all be on one process
        ("fsdp", ["model.method=sedd", "model.time_conditioning=true"]),
        ("fsdp", ["model.method=ar"]),
        ("ddp", ["model.method=ssd-lm", "simplex.block=8"]),
        ("ddp", ["objective.loss=cross-entropy", "objective.clip=[0.3,0.8]"]),
        ("fsdp", ["model.network=modern", "model.time_conditioning=true"]),
        ("fsdp", ["model.network=modern", "model.skips=both", "model.method=ar"]),
        ("ddp", ["model.network=modern", "model.method=plaid"]),
        ("fsdp", ["objective.times=counts", "objective.pairs=true"]),
        ("ddp", ["model.method=block", "block.size=8", "block.mixture={1: 0.3, 8: 0.4, full: 0.3}"]),
        ("fsdp", ["model.method=block", "block.size=8", "objective.times=counts", "objective.pairs=true"]),
        ("fsdp", ["model.backbone=mosaicbert", "objective.loss=mlm"]),
        ("fsdp", ["model.backbone=mosaicbert", "model.method=ar"]),
    ],
    ids=lambda value: value if isinstance(value, str) else value[0],
)
def test_every_method_gives_the_same_with_two_processes(
    corpus: str, tmp_path: Path, strategy: str, method: list[str]
) -> None:
    one = run(tmp_path / "one", 1, corpus, *method)
    two = run(tmp_path / "two", 2, corpus, *method, f"train.strategy={strategy}")
    assert len(figures(one, "loss")) == 4
    keys = ("loss",) if "model.method=ssd-lm" in method else ("loss", "valid_nats")
    for key in keys:
        torch.testing.assert_close(figures(one, key), figures(two, key), rtol=2e-5, atol=2e-5)


@pytest.fixture(scope="module")
def genome(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("genome") / "toy.fa"
    bases = "".join(random.Random(0).choices("ACGTacgtN", weights=[8, 5, 5, 8, 2, 1, 1, 2, 1], k=20_000))
    path.write_text(">chr1\n" + "\n".join(bases[i : i + 60] for i in range(0, len(bases), 60)) + "\n")
    return f"data.source={path}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("strategy", "model"),
    [
        ("fsdp", ["model.backbone=caduceus"]),
        ("ddp", ["model.backbone=caduceus", "model.strands=ph", "data.reverse_complement=true", "objective.loss=mlm"]),
        ("fsdp", ["model.backbone=mamba", "model.method=ar", "data.reverse_complement=true"]),
        ("fsdp", ["model.backbone=hyena", "model.method=ar"]),
        ("ddp", ["model.backbone=caduceus", "model.method=plaid"]),
    ],
    ids=lambda value: value if isinstance(value, str) else "-".join(each.partition("=")[2] for each in value),
)
def test_dna_gives_the_same_with_two_processes(genome: str, tmp_path: Path, strategy: str, model: list[str]) -> None:
    every = [genome, "data.tokenizer=dna", "train.weight_decay=0.1", *model]
    one = run(tmp_path / "one", 1, *every)
    two = run(tmp_path / "two", 2, *every, f"train.strategy={strategy}")
    assert len(figures(one, "loss")) == 4
    for key in ("loss", "valid_nats"):
        torch.testing.assert_close(figures(one, key), figures(two, key), rtol=5e-5, atol=5e-5)


@pytest.mark.parametrize(
    ("first", "second"),
    [
        pytest.param((2, "ddp"), (1, "ddp"), marks=pytest.mark.slow),
        ((2, "fsdp"), (1, "ddp")),
        pytest.param((1, "ddp"), (2, "fsdp"), marks=pytest.mark.slow),
    ],
)
def test_a_run_goes_on_with_other_processes(
    corpus: str, alone: tuple, tmp_path: Path, first: tuple[int, str], second: tuple[int, str]
) -> None:
    out = tmp_path / "run"
    run(out, first[0], corpus, f"train.strategy={first[1]}", "train.steps=2")
    journal = run(out, second[0], corpus, f"train.strategy={second[1]}")
    same(alone[1], journal)


def test_a_sharded_checkpoint_is_a_model_like_any_other(corpus: str, alone: tuple, tmp_path: Path) -> None:
    import unmask

    out = tmp_path / "run"
    same(alone[1], run(out, 2, corpus, "train.strategy=fsdp"))
    assert (out / "checkpoints/step-00000004/shards").is_dir()
    for kind in ("ema", "raw"):
        ours = unmask.load(alone[0], weights=kind).model.state_dict()
        theirs = unmask.load(out, weights=kind).model.state_dict()
        for name, tensor in ours.items():
            torch.testing.assert_close(tensor, theirs[name], rtol=1e-4, atol=1e-5)
    shard = next((out / "checkpoints/step-00000004/shards").iterdir())
    shard.write_bytes(shard.read_bytes()[:-8])
    with pytest.raises(unmask.UserError, match=shard.name):
        unmask.load(out)


@pytest.mark.parametrize(("total", "size"), [(1, 1), (5, 2), (7, 3), (2, 4), (512, 8)])
def test_slots_cut_the_batch_without_gap_or_overlap(total: int, size: int) -> None:
    shares = [World(rank, size, torch.device("cpu")).slots(total) for rank in range(size)]
    assert [slot for share in shares for slot in share] == list(range(total))
    assert max(map(len, shares)) - min(map(len, shares)) <= 1
