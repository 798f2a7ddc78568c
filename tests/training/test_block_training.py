"""Block diffusion as a stranger meets it: trained on a mixture of sizes, killed, continued, scored and sampled."""

from __future__ import annotations

import json
import math
import signal
from pathlib import Path

import pytest
import torch

import unmask
from support.helpers import NETWORK, SENTENCE, TEXT, folder, refused, run, settings, start, text_file, train_once
from support.runs import at_step
from unmask.hub.resolve import checkpoint
from unmask.process.keys import Keys
from unmask.training.step import Trainer
from unmask.types import Batch

MIXTURE = ["model.method=block", "block.size=4", "block.mixture={1: 0.2, 4: 0.4, full: 0.4}"]


def trained() -> Path:
    """Blocks of 1, 4 and 32 tokens, on a text that is easy to learn."""
    steps = ["train.steps=300", "train.lr=0.007", "train.ema=0.95", "eval.every=300", "eval.rows=24"]
    text = [f"data.source={text_file()}", f"data.cache={folder() / 'cache'}", "data.tokenizer=bytes", "data.length=32"]
    own = ["model.hidden_dim=32", "model.n_blocks=1", "sample.recommended=none", "seed=1"]
    return train_once("block sizes", "tiny", *text, *MIXTURE, *own, *steps)


def test_one_network_learns_every_block_size():
    lm = unmask.load(trained())
    assert lm.config.block.mixture == {1: 0.2, 4: 0.4, "full": 0.4}
    text = (SENTENCE * 3)[:32]
    batch = Batch(torch.tensor([lm.tokenizer.encode(text)] * 32), torch.arange(32), 32)
    for size, most in ((1, 0.4), (4, 0.5), (None, 1.2)):
        with torch.no_grad():
            nats = lm.model.in_blocks(size).nats(batch, Keys(0)).nats
        assert float(nats.mean()) < most  # of log 14 = 2.6 of single letters


def test_it_is_scored_and_sampled_as_it_was_trained():
    model = str(trained())
    found = run("eval", model, "--rows", "24", "--json").json()
    assert found["perplexity"] < 1.7 and found["protocol"]["block"] == 4
    for block, calls in ((None, 8), (4, 8), (1, 32), (32, 1), (5, 7)):
        more = [] if block is None else ["--block", str(block)]
        samples = run("sample", model, "-n", "2", "--steps", "1", *more, "--json").json()["samples"]
        assert [(sample["network_calls"], len(sample["ids"])) for sample in samples] == [(calls, 32)] * 2
    written = run("sample", model, "--prompt", "one two", "--block", "1", "--temperature", "0.1").out
    assert written.startswith("one two three four.\none two")
    beyond = run("sample", model, "--prompt", "one two", "--length", "90", "--stride", "16", "--temperature", "0.1").out
    assert beyond.startswith("one two three four.\none two three") and len(beyond.rstrip("\n")) >= 85
    first, second = (run("score", model, text, "--json").json()["nats"] for text in (SENTENCE, SENTENCE[::-1]))
    assert first < 0.5 * second
    filled = run("sample", model, "--prompt", "one", "--suffix", "four.", "--length", "20")
    assert filled.code == 0 and filled.out.startswith("one") and filled.out.rstrip().endswith("four.")


def test_other_models_have_no_blocks():
    plain = train_once("no blocks", "tiny", *settings("train.steps=1", "eval.every=0"))
    said = refused("sample", str(plain), "--block", "4")
    assert said == "block=4 is for models of method block, which this one is not; leave it out"


@pytest.mark.parametrize("padding", [["data.learn_end=true"], ["data.learn_end=false"]], ids=["learned", "unseen"])
def test_rows_with_padding(tmp_path, padding):
    """A document in each row, shorter than some of its blocks."""
    lines = tmp_path / "lines.txt"
    lines.write_text("\n\n".join("one two three four."[: 4 + i % 15] for i in range(300)))
    own = [f"data.source={lines}", f"data.cache={tmp_path / 'cache'}", "data.layout=pad", *TEXT, *NETWORK]
    steps = ["train.steps=12", "train.log_every=1", "eval.rows=8", "eval.every=12"]
    out = tmp_path / "run"
    ran = run("train", "tiny", *own, *MIXTURE, *padding, *steps, "--out", str(out), "--quiet")
    assert ran.code == 0, ran.err
    losses = [line["loss"] for line in journal(out) if "loss" in line]
    assert len(losses) == 12 and all(math.isfinite(loss) for loss in losses)
    assert run("sample", str(out), "-n", "2", "--block", "4").code == 0


# -- killed and continued --------------------------------------------------------------------------------------------


def journal(out: Path) -> list[dict]:
    """The log without the figures that depend on the clock."""
    lines = [json.loads(line) for line in (out / "log.jsonl").read_text().splitlines()]
    clock = ("tokens_per_second", "core_seconds", "step_seconds")
    return [{key: value for key, value in line.items() if key not in clock} for line in lines]


def die_at(step: int) -> None:
    Trainer.step = at_step(step, signal.SIGKILL)  # type: ignore[method-assign]


def test_a_killed_run_goes_on_to_the_same_bits(tmp_path):
    """The block size of a step is a function of the step, so a run that goes on takes the sizes that were left."""
    own = ["train.batch_size=4", "train.log_every=1", "eval.every=0", "model.dropout=0.1", "train.steps=16"]
    words = ["train", "tiny", *settings(*MIXTURE, *own, "train.checkpoint_every=4"), "--quiet", "--out"]
    assert run(*words, str(tmp_path / "whole")).code == 0
    for step in (6, 13):
        process = start([*words, str(tmp_path / "cut")], tmp_path / "err", die_at, step)
        process.join(120)
        assert process.exitcode == -signal.SIGKILL, (tmp_path / "err").read_text()
    assert checkpoint.steps(tmp_path / "cut")[-1] == 12
    assert run(*words, str(tmp_path / "cut")).code == 0
    ours, theirs = (checkpoint.step_folder(tmp_path / name, 16) for name in ("cut", "whole"))
    for name in ("model.safetensors", "ema.safetensors", "optimizer.safetensors"):
        assert (ours / name).read_bytes() == (theirs / name).read_bytes(), name
    assert journal(tmp_path / "cut") == journal(tmp_path / "whole")
    other = refused(*words, str(tmp_path / "cut"), "block.size=8")
    assert "block.size" in other
