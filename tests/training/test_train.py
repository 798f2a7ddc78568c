"""The training step against hand-written ones, and whether anything is learnt."""

from __future__ import annotations

import copy
import json
import math
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor, nn

from support.helpers import SENTENCE, random_model, random_rows, run, settings, tiny_config, trained
from unmask.config import TrainConfig
from unmask.data.loader import train_batch
from unmask.data.rows import Rows
from unmask.distributed import World
from unmask.training.optimizers import learning_rate
from unmask.training.step import Trainer
from unmask.types import Vocab

VOCAB = Vocab(12, mask=11, pad=10)
HERE = World(0, 1, torch.device("cpu"))


def make(*overrides: str, scale: float = 1.0) -> Trainer:
    config = tiny_config("train.batch_size=7", "model.dropout=0", "train.warmup=0", *overrides)
    return Trainer(config, random_model(config, VOCAB, scale), HERE)


def weights(trainer: Trainer) -> dict[str, Tensor]:
    return {name: p.detach().clone() for name, p in trainer.model.named_parameters()}


def rows(padded: bool = True) -> Rows:
    return random_rows(VOCAB, 20, 16, padded=padded)


# -- accumulation ----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("micro", [1, 3, 6])
@pytest.mark.parametrize("padded", [False, True])
def test_accumulation_is_the_large_batch(micro: int, padded: bool) -> None:
    """Also where micro-batches hold different numbers of tokens, and the last one is smaller than the others."""
    whole, cut = make(), make(f"train.micro_batch_size={micro}")
    data = rows(padded)
    for step in range(3):
        ours, _ = cut.step(data, step)
        theirs, _ = whole.step(data, step)
        assert ours == pytest.approx(theirs, rel=1e-5)
    for (name, a), b in zip(weights(cut).items(), weights(whole).values(), strict=True):
        # Adam divides by the gradient's own size: where that is rounding noise, so is the step.
        np.testing.assert_allclose(a.numpy(), b.numpy(), atol=1e-6, rtol=1e-5, err_msg=name)


def test_the_loss_is_a_mean_over_tokens_that_count() -> None:
    trainer, data = make("train.lr=1e-9"), rows()
    figures, _ = trainer.step(data, 0)
    batch = train_batch(data, False, seed=0, step=0, batch_size=7, slots=range(7))
    assert batch.scored is not None
    assert figures["tokens"] == batch.scored.sum()
    nats = trainer.model.nats(batch, trainer.keys.at(0)).nats.detach()
    assert figures["loss"] == pytest.approx(float(nats.sum() / batch.scored.sum()), rel=1e-5)
    assert float(nats[~batch.scored].abs().sum()) == 0


def test_speed_counts_every_token_also_where_the_loss_is_of_the_masked_ones_only() -> None:
    data = rows()
    bound, masked = (make(f"objective.loss={loss}").step(data, 0)[0] for loss in ("bound", "cross-entropy"))
    assert masked["tokens"] == bound["tokens"] and masked["examples"] == bound["examples"] == 7


# -- the step --------------------------------------------------------------------------------------------------------


def gradients(trainer: Trainer, data: Rows, step: int) -> list[Tensor]:
    """The gradient of the mean, on a copy of the model, before clipping."""
    model = copy.deepcopy(trainer.model)
    size = trainer.config.train.batch_size
    batch = train_batch(data, False, seed=0, step=step, batch_size=size, slots=range(size))
    scored = model.nats(batch, trainer.keys.at(step))
    (scored.nats.sum() / scored.weight.sum()).backward()
    return [p.grad for p in model.parameters() if p.grad is not None]


def test_step_equals_hand_written_adamw() -> None:
    beta1, beta2, eps, decay, lr = 0.8, 0.95, 1e-6, 0.1, 3e-3
    trainer = make(
        f"train.betas=[{beta1}, {beta2}]",
        f"train.adam_eps={eps}",
        f"train.weight_decay={decay}",
        f"train.lr={lr}",
        "train.clip=null",
    )
    data = rows()
    slow = [p.detach().double().clone() for p in trainer.model.parameters()]
    first, second = ([torch.zeros_like(p) for p in slow] for _ in range(2))
    for step in range(4):
        for i, g in enumerate(gradients(trainer, data, step)):
            g = g.double()
            first[i] = beta1 * first[i] + (1 - beta1) * g
            second[i] = beta2 * second[i] + (1 - beta2) * g**2
            corrected = first[i] / (1 - beta1 ** (step + 1))
            spread = (second[i] / (1 - beta2 ** (step + 1))).sqrt()
            slow[i] = slow[i] * (1 - lr * decay) - lr * corrected / (spread + eps)
        trainer.step(data, step)
    for (name, p), want in zip(trainer.model.named_parameters(), slow, strict=True):
        np.testing.assert_allclose(p.detach().double().numpy(), want.numpy(), atol=2e-6, rtol=1e-4, err_msg=name)


@pytest.mark.parametrize("clip", [0.05, 1e6])
def test_clipping_is_torchs(clip: float) -> None:
    """With eps = 1 Adam's first step keeps the size of the gradient, so a wrong factor shows."""
    trainer = make(f"train.clip={clip}", "train.adam_eps=1.0", "train.lr=1.0", "train.betas=[0.0, 0.0]")
    data = rows()
    before = weights(trainer)
    holders = [nn.Parameter(torch.zeros_like(g)) for g in gradients(trainer, data, 0)]
    for holder, g in zip(holders, gradients(trainer, data, 0), strict=True):
        holder.grad = g
    norm = float(nn.utils.clip_grad_norm_(holders, clip))
    figures, _ = trainer.step(data, 0)
    assert figures["grad_norm"] == pytest.approx(norm, rel=1e-5)
    assert (norm > clip) == (clip < 1), "the example clips in one case and not in the other"
    for holder, (name, old) in zip(holders, before.items(), strict=True):
        assert holder.grad is not None
        moved = old - weights(trainer)[name]
        np.testing.assert_allclose(moved, holder.grad / (holder.grad.abs() + 1), atol=1e-6, rtol=1e-3)


def test_learning_rates_by_hand() -> None:
    spec = TrainConfig(steps=110, lr=0.8, warmup=10)
    assert [learning_rate(spec, n) for n in (0, 4, 9, 10, 109)] == pytest.approx([0.08, 0.4, 0.8, 0.8, 0.8])
    linear = spec.model_copy(update={"decay": "linear", "final_lr": 0.25})
    assert [learning_rate(linear, n) for n in (0, 9, 10, 35, 60, 110)] == pytest.approx(
        [0.08, 0.8, 0.8, 0.65, 0.5, 0.2]
    )
    cosine = spec.model_copy(update={"decay": "cosine", "final_lr": 0.0})
    at_quarter = 0.4 * (1 + math.sqrt(0.5))
    assert [learning_rate(cosine, n) for n in (9, 10, 35, 60, 110)] == pytest.approx(
        [0.8, 0.8, at_quarter, 0.4, 0.0], abs=1e-12
    )
    assert learning_rate(TrainConfig(steps=5, lr=0.1, warmup=0), 0) == 0.1
    falling = [learning_rate(cosine, n) for n in range(10, 111)]
    assert falling == sorted(falling, reverse=True)


def test_the_log_shows_the_learning_rate_that_was_used(tmp_path: Path) -> None:
    own = ["train.steps=6", "train.batch_size=2", "train.warmup=4", "train.lr=4e-3", "train.log_every=1", "eval.rows=2"]
    assert run("train", "tiny", *settings(*own), "--out", str(tmp_path), "--quiet").code == 0
    lines = [json.loads(line) for line in (tmp_path / "log.jsonl").read_text().splitlines()]
    assert [line["lr"] for line in lines if "lr" in line] == pytest.approx([0.001, 0.002, 0.003, 0.004, 0.004, 0.004])


# -- precision, compilation, randomness ------------------------------------------------------------------------------


def test_bf16_is_near_float32() -> None:
    """Weights stay float32; losses differ by bf16's 3 digits, and differ at all."""
    plain, half = make(), make("train.precision=bf16")
    data = rows()
    pairs = [(half.step(data, step)[0], plain.step(data, step)[0]) for step in range(5)]
    for ours, theirs in pairs:
        assert ours["loss"] == pytest.approx(theirs["loss"], rel=0.03)
    assert any(ours["loss"] != theirs["loss"] for ours, theirs in pairs)
    assert {p.dtype for p in half.model.parameters()} == {torch.float32}


@pytest.mark.slow
def test_a_compiled_run_is_the_same_run(tmp_path: Path) -> None:
    found = []
    for switch in ("true", "false"):
        out = tmp_path / switch
        own = ["train.steps=3", "train.batch_size=4", "train.log_every=1", "eval.rows=4", f"train.compile={switch}"]
        assert run("train", "tiny", *settings(*own), "--out", str(out), "--quiet").code == 0
        lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
        found.append([line.get("loss", line.get("valid_nats")) for line in lines])
    assert len(found[0]) == 4
    assert found[0] == pytest.approx(found[1], rel=1e-4)


def test_dropout_depends_on_the_seed_and_the_step_only() -> None:
    def losses(seed: int, noise: int) -> list[float]:
        config = tiny_config("model.dropout=0.5", "train.batch_size=4", "train.lr=1e-9", f"seed={seed}")
        trainer = Trainer(config, random_model(config, VOCAB), HERE)
        found = []
        for step in (0, 1):
            torch.manual_seed(noise)
            torch.rand(noise)
            found.append(trainer.step(rows(), step)[0]["loss"])
        return found

    first = losses(0, 1)
    assert losses(0, 2) == first
    assert losses(1, 1) != first


def test_stop_is_handed_back() -> None:
    trainer = make()
    assert trainer.step(rows(), 0, False)[1] is False
    assert trainer.step(rows(), 1, True)[1] is True


def test_a_gradient_that_is_not_finite_ends_the_run() -> None:
    trainer = make()
    with torch.no_grad():
        next(trainer.model.parameters()).fill_(float("nan"))
    with pytest.raises((FloatingPointError, ValueError), match="not finite"):
        trainer.step(rows(), 0)


# -- learning --------------------------------------------------------------------------------------------------------


def test_it_learns_far_beyond_letter_frequencies() -> None:
    """A context-free model of this text cannot do better than its unigram entropy; ours reaches half of it."""
    counts = Counter(SENTENCE.encode())
    entropy = -sum(n / len(SENTENCE) * math.log(n / len(SENTENCE)) for n in counts.values())
    lines = [json.loads(line) for line in (trained() / "log.jsonl").read_text().splitlines()]
    valid = {line["step"]: line["valid_nats"] for line in lines if "valid_nats" in line}
    loss = {line["step"]: line["loss"] for line in lines if "loss" in line}
    assert loss[10] > entropy
    assert valid[300] < 0.5 * entropy
    assert valid[300] < valid[150]


def test_a_discrete_objective_trains(tmp_path: Path) -> None:
    own = [
        "train.steps=40",
        "objective.bound=discrete",
        "objective.steps=8",
        "schedule.name=cosine",
        "eval.rows=8",
        "model.time_conditioning=true",
        "train.lr=0.01",
        "train.warmup=5",
    ]
    ran = run("train", "tiny", *settings(*own), "--out", str(tmp_path), "--quiet", "--json")
    found: dict[str, Any] = ran.json()
    assert found["finished"] and found["step"] == 40
    assert found["valid"]["protocol"]["bound"] == "discrete" and found["valid"]["protocol"]["steps"] == 8
    assert found["valid"]["nats_per_token"] < 4 < math.log(258)


def test_two_worlds_share_a_batch() -> None:
    """Which slots a process takes is arithmetic: every slot once, whatever the number of processes."""
    trainer = make("train.micro_batch_size=2")
    for size in (1, 2, 3):
        taken = []
        for rank in range(size):
            trainer.world = replace(HERE, rank=rank, size=size)
            taken += [slot for slots in trainer.micro_slots() for slot in slots]
        assert sorted(taken) == list(range(7))
