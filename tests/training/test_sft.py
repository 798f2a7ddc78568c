"""`unmask finetune MODEL sft`: conversations as rows, the loss over answers by enumeration, runs, what is refused."""

from __future__ import annotations

import itertools
import json
import logging
import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from scipy.integrate import quad

import unmask
from support.helpers import random_lm, refused, run, run_together, tiny_config
from unmask.config import load_yaml
from unmask.data import conversations
from unmask.data.chat import ChatTemplate
from unmask.data.loader import eval_batch
from unmask.data.pack import prepare
from unmask.data.tokenization import bytes_tokenizer
from unmask.lm import LM
from unmask.process.keys import Keys
from unmask.types import Batch, UserError

EOS = bytes_tokenizer().vocab.eos
SHORT = ["train.steps=4", "train.batch_size=4", "train.warmup=1", "train.lr=0.003", "train.checkpoint_every=2"]
SHORT += ["eval.rows=4", "eval.draws=2", "eval.every=0", "train.log_every=1"]
ONE = [{"role": "user", "content": "a"}, {"role": "assistant", "content": "b"}]
TWO = [*ONE, {"role": "user", "content": "c"}, {"role": "assistant", "content": "dd"}]


def table(path: Path, rows: list[dict[str, Any]]) -> str:
    path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return str(path)


def rows_of(source: str, tmp_path: Path, *more: str, split: str = "train") -> Any:
    spec = tiny_config(
        f"data.source={source}", f"data.cache={tmp_path / 'cache'}", "data.layout=chat", "data.chat_template=plain",
        "data.length=48", *more,
    ).data  # fmt: skip
    return prepare(spec, bytes_tokenizer()).split(split)


def shown(batch: Batch, row: int, which: torch.Tensor | None) -> str:
    """The tokens of a row that a mark chooses; EOS is $."""
    assert which is not None
    return "".join("$" if token == EOS else chr(token) for token in batch.tokens[row][which[row]].tolist())


ALL = ("data.valid_fraction=0", "data.test_fraction=0")


def test_each_answer_is_a_row_after_what_was_said_before(tmp_path):
    rows = rows_of(table(tmp_path / "t.jsonl", [{"messages": TWO}]), tmp_path, *ALL)
    batch = eval_batch(rows, range(2))
    given = [shown(batch, row, batch.given) for row in range(2)]
    assert given == ["User:\na\nAssistant:\n", "User:\na\nAssistant:\nb$\nUser:\nc\nAssistant:\n"]
    assert [shown(batch, row, batch.counted()) for row in range(2)] == ["b$", "dd$"]
    free, padding = batch.free(), batch.padding
    assert padding is not None and shown(batch, 0, padding) == "$" * (48 - 21)
    assert torch.equal(free, batch.counted() | padding) and torch.equal(batch.weight(), free)
    assert rows.facts["answers"] == 5 and rows.bytes_per_token == 3 / 5


def test_one_that_looks_to_the_left_learns_all_answers_in_one_row(tmp_path):
    rows = rows_of(table(tmp_path / "t.jsonl", [{"messages": TWO}]), tmp_path, *ALL, "data.chat_rows=conversation")
    batch = eval_batch(rows, [0])
    assert len(rows) == 1 and shown(batch, 0, batch.counted()) == "b$dd$"
    assert shown(batch, 0, batch.given).endswith("\nUser:\nc\nAssistant:\n")


def test_cut_rows_end_with_the_answer(tmp_path):
    rows = rows_of(table(tmp_path / "t.jsonl", [{"messages": ONE}]), tmp_path, *ALL, "data.chat_pad=cut")
    batch = eval_batch(rows, [0])
    assert batch.padding is None
    assert shown(batch, 0, batch.weight()) == "b$" == shown(batch, 0, batch.free())
    assert shown(batch, 0, batch.present) == "User:\na\nAssistant:\nb$"


def test_prompt_and_completion_are_a_conversation_in_every_form(tmp_path):
    pairs = [
        {"prompt": "a", "completion": "b"},
        {"prompt": ONE[:1], "completion": ONE[1:]},
        {"messages": [*ONE, TWO[2]]},  # a question without an answer is left out
    ]
    expected = eval_batch(rows_of(table(tmp_path / "m.jsonl", [{"messages": ONE}]), tmp_path, *ALL), [0]).tokens
    for number, row in enumerate(pairs):
        rows = rows_of(table(tmp_path / f"{number}.jsonl", [row]), tmp_path, *ALL)
        assert torch.equal(eval_batch(rows, [0]).tokens, expected)
    (tmp_path / "list.json").write_text(json.dumps(pairs, indent=1))
    assert len(rows_of(str(tmp_path / "list.json"), tmp_path, *ALL)) == 3
    (tmp_path / "p.csv").write_text('prompt,completion\na,b\n"a",b\n')
    assert torch.equal(eval_batch(rows_of(str(tmp_path / "p.csv"), tmp_path, *ALL), [1]).tokens, expected)
    arrow = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    pq.write_table(arrow.Table.from_pylist([{"id": 7, "messages": ONE}]), tmp_path / "t.parquet")
    assert torch.equal(eval_batch(rows_of(str(tmp_path / "t.parquet"), tmp_path, *ALL), [0]).tokens, expected)
    folder = tmp_path / "folder"
    folder.mkdir()
    table(folder / "train.jsonl", [{"messages": ONE}] * 3)
    table(folder / "valid.jsonl", [{"messages": TWO}])
    assert (len(rows_of(str(folder), tmp_path)), len(rows_of(str(folder), tmp_path, split="valid"))) == (3, 2)


def test_conversations_of_the_hub_keep_their_splits(tmp_path, monkeypatch):
    datasets = pytest.importorskip("datasets")
    rows = {"train": [{"messages": TWO, "id": "1"}], "validation": [{"messages": ONE, "id": "2"}]}
    loaded = {split: datasets.Dataset.from_list(some) for split, some in rows.items()}
    monkeypatch.setattr(conversations, "load_place", lambda *where: loaded)
    assert (len(rows_of("me/talks", tmp_path)), len(rows_of("me/talks", tmp_path, split="valid"))) == (2, 1)
    monkeypatch.setattr(
        conversations, "load_place", lambda *where: {"train": loaded["train"].remove_columns("messages")}
    )
    with pytest.raises(UserError, match="data set 'me/other' has neither 'messages' nor"):
        rows_of("me/other", tmp_path)


def test_long_conversations_lose_their_oldest_turns_or_are_left_out(tmp_path, caplog):
    long = [{"role": "system", "content": "S"}, *TWO, {"role": "user", "content": "e"}, ONE[1]]
    never = [{"role": "user", "content": "x" * 50}, ONE[1]]
    source = table(tmp_path / "t.jsonl", [{"messages": long}, {"messages": never}])
    with caplog.at_level(logging.WARNING):
        rows = rows_of(source, tmp_path, *ALL)
    assert rows.facts["shortened"] == 2 and rows.facts["dropped"] == 1 and len(rows) == 3
    batch = eval_batch(rows, [2])
    assert shown(batch, 0, batch.given) == "System:\nS\nUser:\ne\nAssistant:\n"
    assert "2 of 4 rows" in caplog.text and "lost their oldest turns" in caplog.text and "1 of 4 rows" in caplog.text


# -- the loss --------------------------------------------------------------------------------------------------------


def exact_bound(lm: LM, batch: Batch, cutoff: float) -> float:
    """By all sets of hidden positions: the weight of its size times -log p of its tokens given the rest, summed."""
    free = torch.nonzero(batch.free()[0]).squeeze(-1).tolist()
    sets = [s for k in range(1, len(free) + 1) for s in itertools.combinations(free, k)]
    z = batch.tokens.repeat(len(sets), 1)
    for row, hidden in enumerate(sets):
        z[row, list(hidden)] = lm.tokenizer.vocab.mask
    present = None if batch.present is None else batch.present.repeat(len(sets), 1)
    with torch.no_grad():
        states = lm.model.backbone(z, condition=lm.model.condition(z, torch.zeros(len(z)), None), valid=present)[0]
        logits = lm.model.backbone.head(states.flatten(0, 1)).view(*z.shape, -1).double().numpy()
    logits[..., lm.tokenizer.vocab.mask] = -np.inf
    total, n = 0.0, len(free)
    for row, hidden in enumerate(sets):
        k = len(hidden)
        weight = quad(lambda r, k=k: r ** (k - 1) * (1 - r) ** (n - k), cutoff, 1)[0] + cutoff**k * (1 - cutoff) ** (
            n - k
        )
        for i in hidden:
            scores = logits[row, i]
            total += weight * (np.logaddexp.reduce(scores) - scores[int(batch.tokens[0, i])])
    return total


@pytest.mark.parametrize("pad", ["eos", "cut"])
def test_the_loss_is_the_sum_over_all_masks_of_the_answer(tmp_path, pad):
    lm = random_lm(bytes_tokenizer(), "data.length=24", "objective.cutoff=0.1", scale=2.0)
    source = table(tmp_path / "t.jsonl", [{"messages": ONE}])
    batch = eval_batch(rows_of(source, tmp_path, *ALL, "data.length=24", f"data.chat_pad={pad}"), [0])
    assert int(batch.free().sum()) == (5 if pad == "eos" else 2)
    exact = exact_bound(lm, batch, 0.1)
    n, seen = 6000, []
    many = batch.rows(torch.zeros(n, dtype=torch.long))
    many = Batch(**{**vars(many), "index": torch.arange(n), "total": n})
    forward = lm.model.backbone.forward

    def noting(fed: Any) -> Any:
        seen.append(fed.tokens)
        return forward(fed)

    lm.model.backbone.forward = noting
    with torch.no_grad():
        loss, weight = lm.model.loss(many, Keys(0).at(0))
        nats = lm.model.nats(many, Keys(1))
    assert float(weight) == 2 * n and int(nats.weight.sum()) == 2 * n  # the padding is no token of the figure
    each = nats.nats.sum(1).double()
    error = float(each.std() / n**0.5)
    assert abs(float(each.mean()) - exact) < 5 * error and abs(float(loss) / n - exact) < 5 * error
    assert error < 0.05 * exact
    tokens, mask = torch.cat(seen), lm.tokenizer.vocab.mask
    given = batch.given[0] if batch.given is not None else None
    assert (tokens[:, given] == batch.tokens[0, given]).all()  # prompts are never hidden
    assert (tokens[:, batch.free()[0]] == mask).any(0).all()  # every token of an answer is, sometimes


def test_an_autoregressive_model_scores_the_answer_after_its_prompt(tmp_path):
    lm = random_lm(bytes_tokenizer(), "data.length=48", "model.method=ar", scale=2.0)
    rows = rows_of(table(tmp_path / "t.jsonl", [{"messages": TWO}]), tmp_path, *ALL, "data.chat_rows=conversation")
    batch = eval_batch(rows, [0])
    with torch.no_grad():
        nats = lm.model.nats(batch, Keys(0))
        text = lm.model.nats(Batch(batch.tokens, batch.index, 1), Keys(0))
    counts = batch.counted()
    assert torch.equal(nats.weight, counts) and torch.allclose(nats.nats[counts], text.nats[counts])
    assert float(nats.nats[~counts].abs().sum()) == 0


# -- runs ------------------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def talks(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("talks") / "talks.jsonl"
    return table(path, [{"prompt": f"say {i % 5}", "completion": f"{i % 5}"} for i in range(60)])


@pytest.fixture(scope="module")
def starts(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    place = tmp_path_factory.mktemp("starts")
    kinds = {
        "mdlm": [],
        "ar": ["model.method=ar"],
        "block": ["model.method=block", "block.size=8", "block.mixture={1: 1, 8: 1, full: 1}"],
    }
    return {
        name: random_lm(bytes_tokenizer(), "data.length=32", *changes, scale=0.3).save_pretrained(place / name)
        for name, changes in kinds.items()
    }


def tune(model: Path, data: str, out: Path, *more: str) -> list[str]:
    common = ["--data", data, "--template", "plain", "--out", str(out), "--quiet"]
    return ["finetune", str(model), "sft", *SHORT, *common, *more]


@pytest.mark.parametrize("method", ["mdlm", "ar", "block"])
def test_a_model_learns_to_answer_with_the_method_that_it_has(starts, talks, tmp_path, method):
    out = tmp_path / "run"
    done = run(*tune(starts[method], talks, out, "train.steps=40", "train.checkpoint_every=40", "--json")).json()
    assert done["after"]["nats_per_token"] < done["before"]["nats_per_token"]
    assert done["before"]["tokens"] == done["after"]["tokens"] > 0
    config, lm = load_yaml(out / "config.yaml"), unmask.load(out)
    assert config.model.method == method and config.data.layout == "chat"
    assert config.data.chat_rows == ("conversation" if method == "ar" else "answer")
    assert lm.chat_template is not None and lm.chat_template.name == "plain"
    asked = run("eval", str(out), "--rows", "4", "--draws", "2", "--estimator", "times", "--json").json()
    assert asked["nats_per_token"] == pytest.approx(done["after"]["nats_per_token"], abs=1e-6)
    assert f"next: unmask chat {out} " in run(*tune(starts[method], talks, out, "train.steps=40")).out
    saved = unmask.load(lm.save_pretrained(tmp_path / "saved"))
    assert saved.chat_template is not None and saved.config.data.layout == "chat"


def test_a_run_that_is_continued_is_the_run_in_one_go(starts, talks, tmp_path):
    whole, parts = tmp_path / "whole", tmp_path / "parts"
    template = tmp_path / "own.jinja"
    template.write_text(ChatTemplate.named("plain", bytes_tokenizer()).source + "{# mine #}")
    own = ["--template", str(template)]
    assert run(*tune(starts["mdlm"], talks, whole, *own)).code == 0
    assert run(*tune(starts["mdlm"], talks, parts, *own, "train.steps=2")).code == 0
    template.unlink()  # the run has it
    assert run(*tune(starts["mdlm"], talks, parts, *own)).code == 0
    a, b = (unmask.load(out).model.state_dict() for out in (whole, parts))
    assert all(torch.equal(a[name], b[name]) for name in a)
    with open(talks) as file:
        other = table(tmp_path / "other.jsonl", [json.loads(line) for line in file][:50])
    assert "data.source" in refused(*tune(starts["mdlm"], other, parts, *own))


@pytest.mark.slow
def test_two_processes_take_the_step_of_one(starts, talks, tmp_path):
    one, two = tmp_path / "one", tmp_path / "two"
    same = ["train.device=cpu", "train.micro_batch_size=2"]
    assert run(*tune(starts["mdlm"], talks, one, *same)).code == 0
    run_together(2, tune(starts["mdlm"], talks, two, *same), tmp_path / "said.txt")
    a, b = (unmask.load(out).model.state_dict() for out in (one, two))
    assert all(torch.allclose(a[name], b[name], atol=1e-5) for name in a)


@pytest.mark.parametrize(
    ("row", "sentence"),
    [
        ({"text": "x"}, "has neither 'messages' nor 'prompt' and 'completion'; it has 'text'"),
        ({"messages": []}, "line 1 of .*: messages must be a list that is not empty"),
        ({"messages": ONE[:1]}, "line 1 of .* has no answer"),
        ({"messages": ONE[::-1]}, "message 1 has the role assistant, and user is expected"),
        ({"prompt": "a", "completion": 3}, "message 2 must have a role and a content"),
        ([1], "is not an object with 'messages'"),
    ],
)
def test_data_that_hold_no_conversation_are_refused(tmp_path, row, sentence):
    with pytest.raises(UserError, match=sentence):
        rows_of(table(tmp_path / "t.jsonl", [row]), tmp_path, *ALL)


def test_settings_that_do_not_fit_are_refused(starts, talks, tmp_path):
    model, out = str(starts["mdlm"]), str(tmp_path / "run")
    plain = ["finetune", model, "sft", *SHORT, "--out", out, "--quiet"]
    assert "name the conversations" in refused(*plain)
    assert "comes without a chat template; name one" in refused(*plain, "--data", talks)
    assert "does not have; use plain" in refused(*plain, "--data", talks, "--template", "chatml")
    assert "data.chat_pad='zero' is not valid" in refused(*plain, "--data", talks, "--pad", "zero")
    assert "is text, not conversations" in refused(*plain, "--data", "text8", "--template", "plain")
    assert "does not exist" in refused(*plain, "--data", str(tmp_path / "no.jsonl"), "--template", "plain")
    (tmp_path / "t.txt").write_text("text")
    assert "not a table of conversations" in refused(*plain, "--data", str(tmp_path / "t.txt"), "--template", "plain")
    assert "no conversation that fits" in refused(*plain, "--data", talks, "--template", "plain", "data.length=8")
    few = table(tmp_path / "few.jsonl", [{"messages": ONE}] * 3)
    empty = "split 'valid' of .* is empty; give a larger data.valid_fraction or more text"
    assert re.search(empty, refused(*plain, "--data", few, "--template", "plain"))
    assert "--template is for conversations" in refused("finetune", model, "mdlm", "--template", "plain")
    assert "needs the tokenizer of a model" in refused("train", "tiny", "data.layout=chat", f"data.source={talks}")
