"""Reported likelihoods: they depend on the seed only, their error bars are right, bits are nats are bytes."""

from __future__ import annotations

import hashlib
import json
import math
import shutil
from collections import Counter
from functools import cache
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import yaml

import unmask
from support.helpers import SENTENCE, folder, random_model, random_rows, refused, run, settings, tiny_config, trained
from unmask.config import DataConfig
from unmask.data.pack import prepare
from unmask.distributed import World
from unmask.evaluation import STRATA, default_estimator
from unmask.evaluation.likelihood import baselines, evaluate, pick_rows, row_nats, summarise
from unmask.models.masked import MaskedDiffusion
from unmask.process.keys import Keys
from unmask.process.schedule import Cosine, DiscreteTime, Geometric, Law, Linear, Polynomial, Schedule
from unmask.types import Batch, Likelihood, UserError, Vocab

VOCAB = Vocab(12, mask=11, pad=10)


@cache
def model() -> MaskedDiffusion:
    found: MaskedDiffusion = random_model(tiny_config("data.length=8"), VOCAB, scale=1.5)
    return found


def score(n: int = 13, padded: bool = False, **how: Any) -> Likelihood:
    return evaluate(model(), random_rows(VOCAB, n, 8, padded=padded), **{"draws": 3, **how})


# -- the seed and nothing else ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
def test_batch_size_does_not_matter(padded: bool) -> None:
    whole = score(padded=padded, batch_size=13)
    for size in (1, 4, 100):
        part = score(padded=padded, batch_size=size)
        assert part.nats == pytest.approx(whole.nats, rel=1e-5)
        assert part.stderr_nats == pytest.approx(whole.stderr_nats, rel=1e-4)
        assert part.tokens == whole.tokens


def test_history_does_not_matter() -> None:
    first, other = score(seed=5), score(seed=6)
    torch.manual_seed(99)
    assert score(seed=5) == first
    assert other.nats != first.nats


def test_training_mode_does_not_matter_and_is_left_alone() -> None:
    config = tiny_config("data.length=8", "model.dropout=0.5")
    noisy = random_model(config, VOCAB)
    rows = random_rows(VOCAB, 5, 8)
    want = evaluate(noisy, rows)
    assert not noisy.training
    assert evaluate(noisy.train(), rows) == want
    assert noisy.training


def test_draws_are_a_beginning_of_more_draws() -> None:
    """Draw k is the same whether two or ten are taken, and every draw is another one."""
    totals = [score(draws=k).nats * k for k in (1, 2, 3)]
    singles = np.diff([0.0, *totals])
    assert len(set(singles.round(6))) == 3


def test_processes_add_up() -> None:
    whole = score()
    for size in (2, 3):
        shares = [score(world=Share(rank, size, torch.device("cpu"))) for rank in range(size)]
        assert sum(share.tokens for share in shares) == whole.tokens
        assert sum(share.nats for share in shares) == pytest.approx(whole.nats, rel=1e-5)


class Share(World):
    """One process of several that keeps its sums to itself."""

    def sum(self, value: torch.Tensor) -> torch.Tensor:
        return value


def test_limit_takes_rows_evenly() -> None:
    assert pick_rows(10, 4).tolist() == [0, 2, 5, 7]
    assert pick_rows(3, 7).tolist() == pick_rows(3, None).tolist() == [0, 1, 2]
    assert score(limit=4).tokens == 4 * 8
    for wrong in (0, -1):
        with pytest.raises(UserError, match="rows"):
            score(limit=wrong)
    for how in ({"draws": 0}, {"batch_size": 0}):
        with pytest.raises(UserError, match="at least 1"):
            score(**how)


# -- error bars ------------------------------------------------------------------------------------------------------


def test_monte_carlo_error_is_calibrated() -> None:
    """The spread over seeds is what one evaluation says it is."""
    found = [score(16, seed=seed, draws=8) for seed in range(60)]
    spread = np.std([f.nats_per_token for f in found], ddof=1)
    reported = math.sqrt(np.mean([(f.stderr_nats or 0) ** 2 for f in found]))
    assert reported / 1.35 < spread < reported * 1.35


def test_error_over_texts_is_calibrated() -> None:
    """Over fresh texts and fresh seeds the variance is the sum of both errors squared."""
    found = [
        evaluate(model(), random_rows(VOCAB, 24, 8, padded=True, seed=seed), draws=6, seed=seed) for seed in range(50)
    ]
    spread = np.std([f.nats_per_token for f in found], ddof=1)
    reported = math.sqrt(np.mean([(f.stderr_nats or 0) ** 2 + (f.stderr_data or 0) ** 2 for f in found]))
    assert reported / 1.4 < spread < reported * 1.4


def test_errors_that_cannot_be_known_are_none() -> None:
    assert score(draws=1).stderr_nats is None
    one = evaluate(model(), random_rows(VOCAB, 1, 8), draws=2)
    assert one.stderr_data is None and one.stderr_nats is not None


def test_summary_by_hand() -> None:
    nats = np.array([[1.0, 3.0], [6.0, 2.0], [4.0, 4.0]])
    tokens = np.array([2.0, 2.0, 4.0])
    found = summarise(nats, tokens, 0.5, {"a": 1})
    assert found.nats == 10.0 and found.tokens == 8 and found.bytes == 4.0
    # totals of the draws: 11 and 9, sample deviation sqrt(2), over sqrt(2) draws
    assert found.stderr_nats == pytest.approx(1.0 / 8)
    # row means 2, 4, 4; expected at 1.25 a token 2.5, 2.5, 5: residues -0.5, 1.5, -1; 3.5 · 3/2 = 5.25;
    # variances of the draws 2, 8, 0, halved: 5
    assert found.stderr_data == pytest.approx(math.sqrt(0.25) / 8)


# -- one number under several laws -----------------------------------------------------------------------------------


def under(schedule: Schedule | None = None, law: Law | None = None, draws: int = 24) -> tuple[float, float]:
    lm, rows = learnt()
    assert isinstance(lm.model, MaskedDiffusion)
    found = evaluate(lm.model.under(schedule, law), rows, draws=draws, seed=3)
    return found.nats_per_token, found.stderr_nats or 0.0


@cache
def learnt() -> Any:
    lm = unmask.load(trained())
    return lm, prepare(lm.config.data, lm.tokenizer, splits=("valid",)).split("valid")


@pytest.mark.parametrize(
    "schedule", [Cosine(), Cosine(2), Polynomial(2.0), Polynomial(0.5), Linear(), Geometric()], ids=repr
)
def test_the_continuous_bound_does_not_depend_on_the_schedule(schedule: Schedule) -> None:
    ours, theirs = under(schedule), under()
    assert abs(ours[0] - theirs[0]) < 4 * math.hypot(ours[1], theirs[1])
    assert ours[1] < 0.2, "an error bar that could hide anything"


def test_more_steps_are_a_tighter_bound() -> None:
    limit, error = under()
    (one, exact), (four, error4), (many, error_many) = (under(law=DiscreteTime(t)) for t in (1, 4, 500))
    assert exact < 1e-6, "with one step everything is masked: nothing to draw"
    assert one > four + 4 * error4
    assert four > limit + 4 * math.hypot(error, error4)
    assert abs(many - limit) < 4 * math.hypot(error, error_many)


# -- models without context ------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
def test_baselines_equal_a_direct_count(padded: bool) -> None:
    train, valid = (random_rows(VOCAB, n, 8, padded=padded, seed=n) for n in (1500, 40))
    seen: Counter[int] = Counter()
    total = count = 0.0
    for i in range(len(train)):
        tokens, scored = train.rows([i])
        seen.update(t for j, t in enumerate(tokens[0].tolist()) if scored is None or scored[0, j])
    everything = sum(seen.values())
    for i in range(len(valid)):
        tokens, scored = valid.rows([i])
        for j, token in enumerate(tokens[0].tolist()):
            if scored is None or scored[0, j]:
                total -= math.log((seen[token] + 1) / (everything + 11))  # add-one over all tokens but [MASK]
                count += 1
    found = baselines(train, valid, VOCAB.size)
    assert found == {"uniform": pytest.approx(math.log(11)), "unigram": pytest.approx(total / count)}


# -- the command -----------------------------------------------------------------------------------------------------

KEYS = {
    "perplexity",
    "nats_per_token",
    "bits_per_token",
    "bits_per_byte",
    "stderr_nats",
    "stderr_data",
    "tokens",
    "protocol",
}


def test_json_has_exactly_the_promised_keys() -> None:
    found = run("eval", str(trained()), "--json", "--draws", "2").json()
    assert set(found) == KEYS
    assert found["perplexity"] == pytest.approx(math.exp(found["nats_per_token"]))
    assert found["bits_per_token"] == pytest.approx(found["nats_per_token"] / math.log(2))
    protocol = found["protocol"]
    assert protocol["bound"] == "continuous" and protocol["cutoff_mask_rate"] == 0.1  # of the recipe
    assert protocol["draws"] == 2 and protocol["seed"] == 0 and protocol["split"] == "valid"
    assert protocol["weights"] == "ema"
    assert 0 < found["stderr_nats"] < 1
    # 20 bytes a sentence; an EOS after each piece of text is a token without a byte
    bytes_per_token = protocol["bytes"] / (protocol["bytes"] + protocol["documents"])
    assert found["bits_per_byte"] == pytest.approx(found["bits_per_token"] / bytes_per_token)


def test_a_byte_is_a_token_where_nothing_is_added(tmp_path: Path) -> None:
    out = tmp_path / "run"
    own = ["train.steps=1", "train.batch_size=1", "eval.rows=2", "data.eos_between=false"]
    assert run("train", "tiny", *settings(*own), "--out", str(out), "--quiet").code == 0
    found = run("eval", str(out), "--json").json()
    assert found["bits_per_byte"] == pytest.approx(found["bits_per_token"], rel=1e-12)


def test_the_command_is_the_function() -> None:
    lm, rows = learnt()
    found = run("eval", str(trained()), "--json", "--draws", "3", "--seed", "4", "--batch-size", "7").json()
    want = evaluate(lm.model, rows, draws=3, seed=4, estimator=default_estimator(lm.model)).as_dict()
    assert found["protocol"]["estimator"] == STRATA.name
    assert found["nats_per_token"] == pytest.approx(want["nats_per_token"], rel=1e-5)
    assert found["stderr_nats"] == pytest.approx(want["stderr_nats"], rel=1e-4)
    assert run("eval", str(trained()), "--json", "--draws", "1").json()["stderr_nats"] is None


def test_evaluation_in_training_is_the_command() -> None:
    """The last figure of the log comes again from the saved folder."""
    lines = [json.loads(line) for line in (trained() / "log.jsonl").read_text().splitlines()]
    logged = [line["valid_nats"] for line in lines if "valid_nats" in line][-1]
    found = run("eval", str(trained()), "--json", "--draws", "2", "--rows", "24", "--estimator", "times").json()
    assert found["nats_per_token"] == pytest.approx(logged, rel=1e-5)


def test_options_reach_the_protocol() -> None:
    found = run(
        "eval",
        str(trained()),
        "--json",
        "--steps",
        "8",
        "--schedule",
        "cosine",
        "--weights",
        "raw",
        "--which",
        "best",
        "--split",
        "test",
        "--rows",
        "5",
        "--seed",
        "9",
    ).json()
    said = found["protocol"]
    assert said["bound"] == "discrete" and said["steps"] == 8 and "Cosine" in said["schedule"]
    assert said["weights"] == "raw" and said["checkpoint"] == "best" and said["split"] == "test"
    assert said["rows"] == 5 and said["seed"] == 9 and found["tokens"] == 5 * 32


def test_other_data() -> None:
    """Text that the model never saw costs more; the model's own tokenizer reads it."""
    other = folder() / "other.txt"
    other.write_text("".join(reversed(SENTENCE)) * 400)
    own = run("eval", str(trained()), "--json").json()
    found = run("eval", str(trained()), "--json", "--data", str(other)).json()
    assert found["protocol"]["source"] == str(other)
    assert found["nats_per_token"] > own["nats_per_token"] + 1
    assert "--steps" in refused("eval", str(trained()), "--bound", "continuous", "--steps", "3")


def test_plain_output_has_figures_and_protocol() -> None:
    ran = run("eval", str(trained()), "--draws", "2")
    assert ran.code == 0
    first, *rest = ran.out.splitlines()
    assert first.startswith("perplexity ") and "±" in first and "bits/byte" in first
    assert any(line.strip().startswith("cutoff_mask_rate") for line in rest)


def test_padding_is_not_scored() -> None:
    """Rows of a padded split count their own tokens, and end marks where there are any."""
    path = folder() / "lines.txt"
    path.write_text("".join("ab" * (1 + i % 3) + "\n" for i in range(300)))
    how = {"tokenizer": "bytes", "layout": "pad", "length": 8, "block_ends": True, "learn_end": False}
    prepared = prepare(DataConfig(source=str(path), cache=str(folder() / "cache"), **how))
    rows = prepared.split("train")
    network = random_model(tiny_config("data.length=8"), prepared.tokenizer.vocab)
    found = evaluate(network, rows, draws=1)
    want = sum(2 + int(rows.ends[i]) - (int(rows.ends[i - 1]) if i else 0) for i in range(len(rows)))  # type: ignore[index]
    assert found.tokens == want
    seen = evaluate(network, rows, draws=1, attend_pads=True)
    assert seen.tokens == found.tokens and seen.nats != found.nats


def test_the_protocol_names_the_type_it_was_computed_in() -> None:
    lm = unmask.load(trained())
    rows = prepare(lm.config.data, lm.tokenizer, splits=("valid",)).split("valid")
    plain = evaluate(lm.model, rows, draws=1, limit=2)
    with torch.autocast("cpu", dtype=torch.bfloat16):
        cast = evaluate(lm.model, rows, draws=1, limit=2)
    assert (plain.protocol["dtype"], cast.protocol["dtype"]) == ("float32", "bfloat16")
    assert plain.nats != cast.nats


# -- other methods ---------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("padded", [False, True])
def test_an_exact_model_takes_one_draw_and_has_no_error_of_its_own(padded: bool) -> None:
    """However many draws are asked for; the sum is that of -log p(token | tokens before it), one prefix at a time."""
    causal = random_model(tiny_config("model.method=ar", "data.length=8"), VOCAB)
    rows = random_rows(VOCAB, 5, 8, padded=padded)
    found = evaluate(causal, rows, draws=7)
    assert found.stderr_nats == 0.0 and found.stderr_data is not None and found.stderr_data > 0
    assert found.protocol["draws"] == 1 and found.protocol["estimator"] == "none: exact"
    other = evaluate(causal, rows, draws=7, batch_size=2, seed=0)  # matrix products of other shapes: up to rounding
    assert other.nats == pytest.approx(found.nats, rel=1e-6) and other.tokens == found.tokens
    assert other.stderr_data == pytest.approx(found.stderr_data, rel=1e-5) and other.protocol == found.protocol
    nats, tokens = row_nats(causal, rows, draws=7)
    assert nats.shape == (5, 1) and tokens.sum() == found.tokens and nats.sum() == pytest.approx(found.nats)
    truth = 0.0
    for row in range(5):
        begin, end = (
            (0 if not row else int(rows.ends[row - 1]), int(rows.ends[row])) if padded else (8 * row, 8 * row + 8)
        )  # type: ignore[index]
        text = [VOCAB.mask, *(int(token) for token in rows.stream[begin:end])]
        with torch.no_grad():
            for i in range(1, len(text)):
                logits = causal.backbone.head(causal.backbone(torch.tensor([text[:i]]))[0][0, -1])
                logits[VOCAB.mask] = -math.inf
                truth -= float(torch.log_softmax(logits, -1)[text[i]])
    assert found.nats == pytest.approx(truth, rel=1e-5)


def test_rows_before_they_are_summed() -> None:
    rows = random_rows(VOCAB, 6, 8)
    nats, tokens = row_nats(model(), rows, draws=3, seed=2)
    assert nats.shape == (6, 3) and tokens.tolist() == [8.0] * 6
    for draw in range(3):
        alone = row_nats(model(), rows, draws=draw + 1, seed=2, batch_size=4)[0]
        assert alone[:, draw] == pytest.approx(nats[:, draw], rel=1e-5)
    found = evaluate(model(), rows, draws=3, seed=2)
    assert found.nats == pytest.approx(nats.mean(1).sum()) and found.tokens == 48


class Mute(MaskedDiffusion):
    """A model that bounds nothing."""

    likelihood = False


def test_a_model_without_a_likelihood_is_refused_with_a_sentence() -> None:
    mute = Mute(model().backbone, model().schedule)
    with pytest.raises(UserError, match=r"no likelihood.*--generative") as caught:
        evaluate(mute, random_rows(VOCAB, 2, 8))
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("method", ["d3pm", "no-carry-over", "sedd"])
def test_other_methods_depend_on_the_seed_and_nothing_else(method: str) -> None:
    network = random_model(tiny_config(f"model.method={method}", "data.length=8"), VOCAB)
    rows = random_rows(VOCAB, 9, 8, padded=True)
    whole = evaluate(network, rows, draws=3, seed=1)
    for size in (1, 4):
        part = evaluate(network, rows, draws=3, seed=1, batch_size=size)
        assert part.nats == pytest.approx(whole.nats, rel=1e-5) and part.tokens == whole.tokens
    shares = [
        evaluate(network, rows, draws=3, seed=1, world=Share(rank, 2, torch.device("cpu"))).nats for rank in (0, 1)
    ]
    assert sum(shares) == pytest.approx(whole.nats, rel=1e-5)
    batch = Batch(torch.from_numpy(np.array(rows.stream[:8], dtype=np.int64))[None], torch.tensor([0]), 1)
    assert torch.isfinite(network.nats(batch, Keys(0)).nats).all()


def test_a_checkpoint_from_before_the_new_settings_is_scored_as_it_was(tmp_path: Path) -> None:
    """Its config.yaml knows none of the keys of the objective that came later."""
    now = json.loads(run("eval", str(trained()), "--rows", "4", "--draws", "1", "--json").out)
    old = tmp_path / "old"
    shutil.copytree(trained(), old)
    gone = 0
    for path in old.rglob("config.yaml"):
        said = yaml.safe_load(path.read_text())
        for section, keys in (
            ("objective", ["proposal", "loss", "clip", "times", "start_token"]),
            ("schedule", ["low"]),
        ):
            gone += sum(said[section].pop(key, "never") != "never" for key in keys)
        path.write_text(yaml.safe_dump(said))
        files = {
            p.name: {"size": p.stat().st_size, "sha256": hashlib.sha256(p.read_bytes()).hexdigest()}
            for p in path.parent.iterdir()
            if p.is_file() and p.name != "manifest.json"
        }
        if (path.parent / "manifest.json").exists():
            (path.parent / "manifest.json").write_text(json.dumps({"format": 1, "files": files}))
    assert gone >= 6
    then = json.loads(run("eval", str(old), "--rows", "4", "--draws", "1", "--json").out)
    assert then["perplexity"] == now["perplexity"] and then["protocol"]["bound"] == now["protocol"]["bound"]
